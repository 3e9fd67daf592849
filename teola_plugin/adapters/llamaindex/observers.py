"""Components tell the session where the framework's own run is.

- A part of the pipeline tells that its run begins, and with what (see parts.py).
- A component that the run-ahead cannot foresee tells its value as the run comes to it. Nodes are handed over as copies,
  for the framework goes on to change its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

from teola_plugin.adapters.llamaindex.entries import ANSWERS, RETRIEVES, entry_of
from teola_plugin.adapters.llamaindex.own_runs import OwnRun
from teola_plugin.adapters.llamaindex.parts import entered, heard, own_run, part_of
from teola_plugin.adapters.llamaindex.rehearsal import fresh
from teola_plugin.adapters.plain import is_plain
from teola_plugin.seams import current, instrument

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
        _instrument(engine, "_query", {})  # below `query`, which RetryQueryEngine goes round
        _instrument(engine, "retrieve", RETRIEVES)
        _instrument(engine, "synthesize", ANSWERS)
    _instrument(BaseRetriever, "retrieve", {})
    _instrument(BaseSynthesizer, "synthesize", ANSWERS)
    _instrument(BaseNodePostprocessor, "postprocess_nodes", {})
    for base in (BaseQueryEngine, CustomQueryEngine):
        instrument(base, "query", _own_sync)
        instrument(base, "aquery", _own_async)


def _own_sync(original: Callable[..., Any]) -> Callable[..., Any]:
    """The run of an engine of a class of the user's begins; stock ones say so below."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = original.__get__(self, type(self))
        part = part_of(self)
        with heard(self, "query", args, kwargs) as tell:
            if part is None or (own := own_run(part, "query", args, kwargs)) is None:
                return tell(run(*args, **kwargs))
            with entered(part, own):
                return tell(run(*args, **kwargs))

    return method


def _own_async(original: Callable[..., Any]) -> Callable[..., Any]:
    async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = original.__get__(self, type(self))
        part = part_of(self)
        with heard(self, "aquery", args, kwargs) as tell:
            if part is None or (own := own_run(part, "aquery", args, kwargs)) is None:
                return tell(await run(*args, **kwargs))
            with entered(part, own):
                await own.ready()
                return tell(await run(*args, **kwargs))

    return method


def _instrument(cls: type, method: str, does: Mapping[str, bool]) -> None:
    prefix = "_" if method.startswith("_") else ""
    if method in vars(cls):
        instrument(cls, method, _sync(method, does))
    if (coroutine := f"{prefix}a{method.removeprefix(prefix)}") in vars(cls):
        instrument(cls, coroutine, _async(coroutine, does))


def _sync(name: str, does: Mapping[str, bool]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            run = original.__get__(self, type(self))  # bound, so that its span knows whose it is
            query = _Query(args, kwargs)
            with heard(self, name, args, kwargs) as tell:
                if (part := part_of(self)) is None:
                    value = run(*args, **kwargs)
                else:
                    entry = own_run(part, name, args, kwargs) or entry_of(args, kwargs, does, is_async=False)
                    with entered(part, entry):
                        value = run(*args, **kwargs)
                return value if query.has_changed() else tell(_told(self, value))

        return method

    return wrapper


def _async(name: str, does: Mapping[str, bool]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            run = original.__get__(self, type(self))
            query = _Query(args, kwargs)
            with heard(self, name, args, kwargs) as tell:
                if (part := part_of(self)) is None:
                    value = await run(*args, **kwargs)
                else:
                    entry = own_run(part, name, args, kwargs) or entry_of(args, kwargs, does, is_async=True)
                    with entered(part, entry):
                        if isinstance(entry, OwnRun):
                            await entry.ready()
                        value = await run(*args, **kwargs)
                return value if query.has_changed() else tell(_told(self, value))

        return method

    return wrapper


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
