"""Synchronous code that the framework calls from its coroutines, prevented from blocking the caller's event loop.

`TransformQueryEngine.aquery` runs its transform on the loop, Chroma has no async search, `aretrieve` of many a
retriever is `retrieve`. Each waits for a model or a store there, and every other query of the process waits, too. So
the same code first runs on a thread, with callbacks muted, and asks the session; then on the loop, where each answer is
present:

    thread:  double._retrieve(query)  --ask-->  session          replies are noted
    loop:    self._retrieve(query)    --ask-->  the noted ones    callbacks, events and errors in their place

Only code without effects runs twice: stock components without prints (FLARE always prints), on models and stores that
ask the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from types import FunctionType, MethodType
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
from llama_index.core.llms import LLM
from llama_index.core.postprocessor import LLMRerank
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.query_engine import (
    MultiStepQueryEngine,
    RetryQueryEngine,
    ToolRetrieverRouterQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.schema import QueryBundle
from llama_index.core.storage.docstore import BaseDocumentStore
from llama_index.core.types import BaseOutputParser
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from teola_plugin.adapters.early import is_free_of_code
from teola_plugin.adapters.interception import intercept
from teola_plugin.adapters.leaf import is_stock_of, plain_class
from teola_plugin.adapters.llamaindex.known import (
    is_asked_each_time,
    is_embedder,
    is_local_docstore,
    is_local_store,
    is_plain_template,
    is_store,
)
from teola_plugin.adapters.llamaindex.models import is_model, is_ours
from teola_plugin.adapters.llamaindex.reachable import is_silent, reachable
from teola_plugin.adapters.llamaindex.rehearsal import stand_in
from teola_plugin.adapters.methods import is_as_published
from teola_plugin.adapters.reader.foreign import is_of_library
from teola_plugin.adapters.rehearsal import is_rehearsing
from teola_plugin.engines import EngineSpec
from teola_plugin.request_identity import request_key
from teola_plugin.seams import Hold, Reply, Session, active, current
from teola_plugin.value_keys import is_comparable

Act = Callable[..., Any]


def install() -> None:
    """Instrument the coroutines with synchronous code inside. Idempotent."""
    intercept(BaseRetriever, "_aretrieve", _unblocking(_retrieve))
    intercept(BasePydanticVectorStore, "aquery", _unblocking(lambda store, query: store.query(query)))
    intercept(TransformQueryEngine, "_aquery", _unblocking(_transform))
    intercept(MultiStepQueryEngine, "_aquery", _unblocking(lambda engine, query: engine._query_multistep(query)))
    intercept(ToolRetrieverRouterQueryEngine, "_aquery", _unblocking(lambda e, query: e._retriever.retrieve(query)))
    intercept(RetryQueryEngine, "_aquery", _unblocking(lambda engine, query: engine._query(query)))


def _retrieve(retriever: Any, query: QueryBundle) -> Any:
    return retriever._retrieve(query)


def _transform(engine: Any, query: QueryBundle) -> Any:
    return engine._query_transform.run(query, metadata=engine._transform_metadata)


def _unblocking(act: Act) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a wrapper. `act`: the coroutine's synchronous code, as a function of the component and its argument."""

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            run = original.__get__(self, type(self))
            session = current()
            (query, *others) = [*args, *kwargs.values()]
            if session is None or others or is_rehearsing() or not _may_repeat(self):
                return await run(*args, **kwargs)
            noted = _Notes(session)
            await _on_a_thread(lambda: act(stand_in(self), replace(query)), noted)
            with active(_Replay(noted)):
                return await run(*args, **kwargs)

        return method

    return wrapper


async def _on_a_thread(act: Callable[[], Any], noted: _Notes) -> None:
    """Run on a separate thread: user code waiting for the same call may hold all threads of the loop."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def run() -> None:
        with contextlib.suppress(BaseException), active(_Noting(noted)):  # the run on the loop will raise the same
            act()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_end, over)

    with contextlib.suppress(RuntimeError):  # no thread is available
        threading.Thread(target=copy_context().run, args=(run,), name="teola-unblocked", daemon=True).start()
        try:
            await over
        finally:
            noted.is_over = True


def _end(over: asyncio.Future[None]) -> None:
    if not over.done():  # unless cancelled
        over.set_result(None)


# --- what may run twice ----------------------------------------------------------------------------------------------


def only_asks(component: Any) -> bool:
    """Whether a component's run has no effects beside requests to models and stores."""
    return _only_ask(_parts_of(component))


def _may_repeat(component: Any) -> bool:
    """Whether a component only asks, and has a model or store to ask."""
    parts = _parts_of(component)
    return _only_ask(parts) and any(map(_waits, parts))


def _parts_of(component: Any) -> list[Any]:
    return reachable(component, (BaseEmbedding, BasePydanticVectorStore, BaseDocumentStore))


def _only_ask(parts: Sequence[Any]) -> bool:
    return all(map(_is_known, parts)) and not _streams(parts)


def _streams(parts: Sequence[Any]) -> bool:
    """Whether a foreign model may be asked for a stream, which cannot be read twice."""
    is_elsewhere = any(isinstance(part, LLM) and not is_ours(part) for part in parts)
    return is_elsewhere and any(getattr(part, "_streaming", False) for part in parts)


def _waits(component: Any) -> bool:
    is_asked = isinstance(component, LLM | BaseEmbedding | BasePydanticVectorStore)
    return is_asked and not is_local_store(component)


def _is_known(component: Any) -> bool:
    if not is_as_published(plain_class(component)):
        return False
    match component:
        case LLM():
            return is_model(component)
        case BaseEmbedding():
            return is_embedder(component) and is_asked_each_time(component)
        case BasePydanticVectorStore():
            return is_local_store(component) or is_store(component)
        case BaseDocumentStore():
            return is_local_docstore(component)
    is_stock = is_stock_of(component, "llama_index.core") or is_ours(component)
    if plain_class(component).__module__.startswith(_ACTING):
        return False
    return (
        is_stock
        and _has_usual_settings(component)
        and is_silent(component)
        and all(map(_is_repeatable, vars(component).values()))
    )


def _has_usual_settings(component: Any) -> bool:
    """Whether a component does not raise because of its own settings."""
    match component:
        case VectorIndexRetriever():
            return type(component._similarity_top_k) in (int, float, type(None))
        case LLMRerank(choice_batch_size=size):
            return size > 0
    return True


_ACTING = (
    "llama_index.core.indices.struct_store", "llama_index.core.indices.knowledge_graph",
    "llama_index.core.indices.property_graph", "llama_index.core.query_engine.jsonalyze",
    "llama_index.core.query_engine.knowledge_graph", "llama_index.core.query_engine.pandas",
)  # fmt: skip
"""The modules of components whose database or interpreter executes text written by a model or the user."""


def _is_repeatable(held: Any) -> bool:
    """Whether the value is no user code, or user code that may run twice."""
    match held:
        case BasePromptTemplate(output_parser=parser):
            return _is_repeatable(parser) and is_plain_template(held, parser=type(parser))
        case BaseOutputParser():
            return is_stock_of(held, "llama_index")
        case BaseEmbedding():
            return is_embedder(held)
        case MethodType(__func__=FunctionType() as function, __self__=owner):
            if is_of_library(function) and is_stock_of(owner, "llama_index.core"):
                return True
    return not callable(held) or is_free_of_code(held)


# --- the two runs ----------------------------------------------------------------------------------------------------


class _Over(BaseException):
    """The end of an abandoned run on a thread. Not an `Exception`: synthesizers swallow exceptions."""


@dataclass
class _Notes:
    """The requests, replies and reports of the run on the thread, for the run on the loop."""

    session: Session
    replies: dict[Hashable, deque[tuple[Reply, bool]]] = field(default_factory=lambda: defaultdict(deque))
    entered: dict[int, deque[object | None]] = field(default_factory=lambda: defaultdict(deque))
    observed: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    is_over: bool = False


class _Noting(Session):
    """The session of the run on the thread, never closed: the run must not go on to the models themselves."""

    is_unheard = True

    def __init__(self, notes: _Notes) -> None:
        self._notes = notes
        self.assumed, self.sends_ahead = notes.session.assumed, notes.session.sends_ahead

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        keys = [self._key(spec, op, payload, settings) for payload in payloads]
        replies = self._session().ask(spec, op, payloads, settings)
        for key, reply in zip(keys, replies, strict=True):
            self._notes.replies[key].append((reply, False))
        return replies

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        key = self._key(spec, op, payload, settings)
        reply, is_mine = self._session().claim(spec, op, payload, settings)
        self._notes.replies[key].append((reply, False))
        return reply, is_mine

    def will_ask(self, asked: Sequence[Any]) -> None:
        self._session().will_ask(asked)

    def observe(self, component: object, value: Any) -> None:
        self._session().observe(component, value)
        self._notes.observed[id(component)] += 1

    def enter(self, component: object, value: Any) -> object | None:
        front = self._session().enter(component, value)
        self._notes.entered[id(component)].append(front)
        return front

    def hold(self, hold: Hold) -> None:
        self._session().hold(hold)

    def _key(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> Hashable:
        key = request_key(spec, op, payload, settings)
        if not is_comparable(key):  # the run on the loop could not find its reply, and would ask once more
            raise _Over
        return key

    def _session(self) -> Session:
        if self._notes.is_over:
            raise _Over
        return self._notes.session


class _Replay(Session):
    """The session of the run on the loop."""

    def __init__(self, notes: _Notes) -> None:
        self._notes = notes
        self._session = notes.session
        self.assumed = notes.session.assumed

    @property
    def is_closed(self) -> bool:
        return self._session.is_closed

    @property
    def is_unheard(self) -> bool:
        return self._session.is_unheard

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        noted = [self._noted(spec, op, payload, settings) for payload in payloads]
        missing = [payload for payload, found in zip(payloads, noted, strict=True) if found is None]
        asked = iter(self._session.ask(spec, op, missing, settings) if missing else ())
        return [next(asked) if found is None else found[0] for found in noted]

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        return self._noted(spec, op, payload, settings) or self._session.claim(spec, op, payload, settings)

    def observe(self, component: object, value: Any) -> None:
        if self._notes.observed[id(component)]:
            self._notes.observed[id(component)] -= 1
        else:
            self._session.observe(component, value)

    def enter(self, component: object, value: Any) -> object | None:
        fronts = self._notes.entered[id(component)]
        return fronts.popleft() if fronts else self._session.enter(component, value)

    def hold(self, hold: Hold) -> None:
        self._session.hold(hold)

    def _noted(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool] | None:
        replies = self._notes.replies[request_key(spec, op, payload, settings)]
        return replies.popleft() if replies else None
