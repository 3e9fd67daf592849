"""Components that the run-ahead cannot foresee tell their values as the framework's own run comes to them.

Nodes are handed over as copies, for the framework goes on to change its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore

from teola_plugin.adapters.llamaindex.rehearsal import fresh
from teola_plugin.seams import current, instrument

_awaited: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""By id, for components of pydantic have no hash."""


def await_value(component: object) -> None:
    """A graph waits for this component; all others need not say anything."""
    _awaited[id(component)] = component


def install() -> None:
    """Instrument retrievers and postprocessors. Idempotent."""
    instrument(BaseRetriever, "retrieve", _sync)
    instrument(BaseRetriever, "aretrieve", _async)
    instrument(BaseNodePostprocessor, "postprocess_nodes", _sync)
    instrument(BaseNodePostprocessor, "apostprocess_nodes", _async)


def _sync(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        value = original.__get__(self, type(self))(*args, **kwargs)  # bound, so that its span knows whose it is
        _tell(self, value)
        return value

    return method


def _async(original: Callable[..., Any]) -> Callable[..., Any]:
    async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        value = await original.__get__(self, type(self))(*args, **kwargs)
        _tell(self, value)
        return value

    return method


def _tell(component: object, value: Any) -> None:
    if _awaited.get(id(component)) is not component or (session := current()) is None:
        return
    if isinstance(value, list) and all(isinstance(n, NodeWithScore) for n in value):
        session.observe(component, fresh(value))
