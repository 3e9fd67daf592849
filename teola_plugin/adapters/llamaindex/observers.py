"""Components tell the session where the framework's own run is.

- A part of the pipeline tells that its run begins, and with what (see parts.py).
- A component that the run-ahead cannot foresee tells its value as the run comes to it. Nodes are handed over as copies,
  for the framework goes on to change its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import (
    CitationQueryEngine,
    CustomQueryEngine,
    RetrieverQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle

from teola_plugin.adapters.interception import around
from teola_plugin.adapters.llamaindex.entries import ANSWERS, RETRIEVES, entry_of
from teola_plugin.adapters.llamaindex.own_runs import OwnRun
from teola_plugin.adapters.llamaindex.parts import entered, heard, own_run, part_of
from teola_plugin.adapters.llamaindex.rehearsal import fresh
from teola_plugin.adapters.plain import is_plain
from teola_plugin.seams import current

ENGINES = (RetrieverQueryEngine, CitationQueryEngine, TransformQueryEngine, SubQuestionQueryEngine)

_awaited: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""By id, for components of pydantic have no hash."""


def await_value(component: object) -> None:
    """A graph waits for this component; all others need not say anything."""
    _awaited[id(component)] = component


def is_awaited(component: object) -> bool:
    """A graph waits for its value."""
    return _awaited.get(id(component)) is component


def install() -> None:
    """Instrument engines, retrievers, synthesizers and postprocessors. Idempotent."""
    for engine in ENGINES:
        _replace(engine, "_query", {})  # below `query`, which RetryQueryEngine goes round
        _replace(engine, "retrieve", RETRIEVES)
        _replace(engine, "synthesize", ANSWERS)
    _replace(BaseRetriever, "retrieve", {})
    _replace(BaseSynthesizer, "synthesize", ANSWERS)
    _replace(BaseNodePostprocessor, "postprocess_nodes", {})
    for base in (BaseQueryEngine, CustomQueryEngine):
        _OWN.replace(base, "query", coroutines=["aquery"])


@dataclass(frozen=True, slots=True)
class _Own:
    """The run of a function of the user's that is read: told what it came to once it is over."""

    own: OwnRun
    finish: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        return self.finish(value)

    async def ready(self) -> None:
        """Wait for what was asked ahead, which a synchronous function would wait for on the loop."""
        await self.own.ready()


@contextlib.contextmanager
def _own_query(
    engine: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_async: bool
) -> Iterator[Callable[[Any], Any]]:
    """The run of an engine of a class of the user's begins; stock ones say so below."""
    part, name = part_of(engine), "aquery" if is_async else "query"
    with heard(engine, name, args, kwargs) as tell:
        own = own_run(part, name, args, kwargs) if part is not None else None
        if own is None:
            yield tell
            return
        with entered(part, own):
            yield _Own(own, tell)


_OWN = around(_own_query)


def _replace(cls: type, method: str, does: Mapping[str, bool]) -> None:
    prefix = "_" if method.startswith("_") else ""
    coroutine = f"{prefix}a{method.removeprefix(prefix)}"
    sync, coroutines = [each for each in [method] if each in vars(cls)], [c for c in [coroutine] if c in vars(cls)]
    around(_running(method, coroutine, does)).replace(cls, *sync, coroutines=coroutines)


def _running(method: str, coroutine: str, does: Mapping[str, bool]) -> Callable[..., Any]:
    """The run of a stock component: it is entered, and what it came to is told."""

    @contextlib.contextmanager
    def running(
        component: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_async: bool
    ) -> Iterator[Callable[[Any], Any]]:
        name, query, part = coroutine if is_async else method, _Query(args, kwargs), part_of(component)
        with heard(component, name, args, kwargs) as tell, contextlib.ExitStack() as run:

            def finish(value: Any) -> Any:
                run.close()
                return value if query.has_changed() else tell(_told(component, value))

            if part is None:
                yield finish
                return
            entry = own_run(part, name, args, kwargs) or entry_of(args, kwargs, does, is_async=is_async)
            run.enter_context(entered(part, entry))
            yield _Own(entry, finish) if isinstance(entry, OwnRun) else finish

    return running


class _Query:
    """The query that a part is given. One that changes it makes what follows another than what was foreseen."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        bundles = [value for value in (*args, *kwargs.values()) if isinstance(value, QueryBundle)]
        self._held = [(bundle, bundle.query_str) for bundle in bundles]

    def has_changed(self) -> bool:
        """Whether its text is another one now."""
        return any(bundle.query_str is not text for bundle, text in self._held)


def _told(component: object, value: Any) -> Any:
    session = current() if is_awaited(component) else None
    if session and isinstance(value, list) and is_plain(value) and all(isinstance(n, NodeWithScore) for n in value):
        session.observe(component, fresh(value))
    return value
