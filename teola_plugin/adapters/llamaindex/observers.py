"""Components report the position of the framework's own run to the session.

- A part of the pipeline reports the begin of its run, with the inputs (see parts.py).
- A component without predictions reports its value as the run computes the value. Nodes are passed on as copies, for
  the framework goes on to change its own.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.evaluation import BaseEvaluator
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
from teola_plugin.adapters.leaf import plain_class
from teola_plugin.adapters.llamaindex.entries import ANSWERS, RETRIEVES, entry_of
from teola_plugin.adapters.llamaindex.own_runs import OwnRun
from teola_plugin.adapters.llamaindex.parts import entered, entered_method, heard, method_run, own_run, part_of
from teola_plugin.adapters.llamaindex.reading_parts import METHODS, is_replaced, original_of
from teola_plugin.adapters.llamaindex.rehearsal import fresh
from teola_plugin.adapters.methods import attribute_of, without_replacements
from teola_plugin.adapters.plain import is_plain
from teola_plugin.seams import current

ENGINES = (RetrieverQueryEngine, CitationQueryEngine, TransformQueryEngine, SubQuestionQueryEngine)

_awaited: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The awaited components by id, for pydantic components have no hash."""


def await_value(component: object) -> None:
    """Note that a graph waits for the component; no further component needs to report."""
    _awaited[id(component)] = component


def is_awaited(component: object) -> bool:
    """Whether a graph waits for the component's value."""
    return _awaited.get(id(component)) is component


def install() -> None:
    """Instrument engines, retrievers, synthesizers and postprocessors. Idempotent."""
    for engine in ENGINES:
        _replace(engine, "_query", {})  # below `query`, which RetryQueryEngine bypasses
        _replace(engine, "retrieve", RETRIEVES)
        _replace(engine, "synthesize", ANSWERS)
    _replace(BaseRetriever, "retrieve", {})
    _replace(BaseSynthesizer, "synthesize", ANSWERS)
    _replace(BaseNodePostprocessor, "postprocess_nodes", {})
    for judging in METHODS[BaseEvaluator]:
        around(_judging(judging)).replace(BaseEvaluator, judging)
    for base in (BaseQueryEngine, CustomQueryEngine):
        _OWN.replace(base, "query", coroutines=["aquery"])


def _judging(method: str) -> Callable[..., Any]:
    """Surround a judgement of an evaluator, whose result is reported."""

    def judging(
        evaluator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_async: bool
    ) -> contextlib.AbstractContextManager[Callable[[Any], Any]]:
        return heard(evaluator, method, args, kwargs)

    return judging


@dataclass(frozen=True, slots=True)
class _Own:
    """The run of a user function that is read; its result is reported at the end."""

    own: OwnRun
    finish: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        return self.finish(value)

    async def ready(self) -> None:
        """Wait for early requests, for which a synchronous function would otherwise wait on the loop."""
        await self.own.ready()


@contextlib.contextmanager
def _own_query(
    engine: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_async: bool
) -> Iterator[Callable[[Any], Any]]:
    """Surround the run of a user's engine class; stock engines report below."""
    part, name = part_of(engine), "aquery" if is_async else "query"
    with heard(engine, name, args, kwargs) as tell:
        own = own_run(part, name, args, kwargs) if part is not None else None
        if own is None:
            yield tell
            return
        with entered(part, own):
            yield _Own(own, tell)


_OWN = around(_own_query)


def observe_overrides(component: object, methods: Iterable[str]) -> None:
    """Let the user's overrides of entry methods report as the framework's methods do."""
    for name in methods:
        cls = plain_class(component)
        owner = next(each for each in cls.__mro__ if name in vars(each))
        forms = around(_overriding(weakref.ref(owner), name))
        if name.startswith("a"):
            forms.replace(owner, coroutines=[name])
        else:
            forms.replace(owner, name)


def _overriding(owner: weakref.ref[type], name: str) -> Callable[..., Any]:
    """Surround the run of the user's override in a class: enter the part, and report the result."""
    methods = (name.removeprefix("a"), f"a{name.removeprefix('a')}")

    def overriding(
        component: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_async: bool
    ) -> contextlib.AbstractContextManager[Callable[[Any], Any]] | None:
        return None if current() is None else inside_call(component, args, kwargs)

    @contextlib.contextmanager
    def inside_call(component: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Callable[[Any], Any]]:
        query = _Query(args, kwargs)
        part = part_of(component) if _is_observed(component, name, owner()) else None
        own = None if part is None else method_run(part, name, args, kwargs, is_beside=True)
        with contextlib.ExitStack() as run:
            run.enter_context(_in_override(component))
            if own is not None:
                run.enter_context(entered_method(part, own))

            def finish(value: Any) -> Any:
                run.close()
                return value if query.has_changed() else _told(component, value, methods)

            yield finish

    return overriding


_overridden: ContextVar[frozenset[int]] = ContextVar("teola_overridden", default=frozenset())
"""The ids of components inside whose overrides the run is: only the outermost override has the component's value."""


@contextlib.contextmanager
def _in_override(component: object) -> Iterator[None]:
    token = _overridden.set(_overridden.get() | {id(original_of(component))})
    try:
        yield
    finally:
        _overridden.reset(token)


def _is_observed(component: object, name: str, owner: type | None = None) -> bool:
    """Whether calls of the user's override report: nothing else replaces the override, in the class or the object.

    `owner`: the class in which the override must stand.
    """
    cls, found = plain_class(component), attribute_of(plain_class(component), name)
    is_first = owner is None or owner is next((each for each in cls.__mro__ if name in vars(each)), None)
    return is_first and name not in vars(component) and without_replacements(found) is not found


def _replace(cls: type, method: str, does: Mapping[str, bool]) -> None:
    prefix = "_" if method.startswith("_") else ""
    coroutine = f"{prefix}a{method.removeprefix(prefix)}"
    forms = around(_running(method, coroutine, does))
    if method in vars(cls):
        forms.replace(cls, method)
    if coroutine in vars(cls):
        forms.replace(cls, coroutines=[coroutine])


def _running(method: str, coroutine: str, does: Mapping[str, bool]) -> Callable[..., Any]:
    """Surround the run of a stock component: enter the part, and report the result."""

    @contextlib.contextmanager
    def running(
        component: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_async: bool
    ) -> Iterator[Callable[[Any], Any]]:
        name, query, part = coroutine if is_async else method, _Query(args, kwargs), part_of(component)
        with heard(component, name, args, kwargs) as tell, contextlib.ExitStack() as run:

            def finish(value: Any) -> Any:
                run.close()
                return value if query.has_changed() else tell(_told(component, value, (method, coroutine)))

            if part is None:
                yield finish
                return
            entry = own_run(part, name, args, kwargs) or entry_of(args, kwargs, does, is_async=is_async)
            run.enter_context(entered(part, entry))
            yield _Own(entry, finish) if isinstance(entry, OwnRun) else finish

    return running


class _Query:
    """The query of a part. A part that changes its query invalidates the predictions after the part."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        bundles = [value for value in (*args, *kwargs.values()) if isinstance(value, QueryBundle)]
        self._held = [(bundle, bundle.query_str) for bundle in bundles]

    def has_changed(self) -> bool:
        """Whether the query's text was replaced."""
        return any(bundle.query_str is not text for bundle, text in self._held)


def _told(component: object, value: Any, methods: Sequence[str]) -> Any:
    """Report a value, except inside a user's method of the same name: `return super().retrieve(query)[:3]`.

    Such a method reports itself if all of the component's do.
    """
    session = current() if is_awaited(component) else None
    is_inside = id(original_of(component)) in _overridden.get()
    if session and (is_inside or any(is_replaced(component, n) and not _is_observed(component, n) for n in methods)):
        return value
    if session and isinstance(value, list) and is_plain(value) and all(isinstance(n, NodeWithScore) for n in value):
        session.observe(component, fresh(value))
    return value
