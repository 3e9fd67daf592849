"""The knowledge of several frameworks, as one asker: a function may use components of each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextvars import Context
from typing import Any

from teola_plugin.adapters.reader.asking import NOT_MINE, Asker
from teola_plugin.adapters.reader.foreign import is_subtype
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Barrier, Callee, Opaque


def has_langchain() -> bool:
    """Whether LangChain is loaded."""
    return "langchain_core.runnables" in sys.modules


def has_llamaindex() -> bool:
    """Whether LlamaIndex is loaded."""
    return "llama_index.core" in sys.modules


def _has_own_calls(value: Any) -> bool:
    """Whether the value is an optimized graph, which runs ahead in calls of its own inside a function."""
    graphs = sys.modules.get("langgraph.graph.state")
    cls = type(value)
    return graphs is not None and cls is not graphs.CompiledStateGraph and is_subtype(cls, graphs.CompiledStateGraph)


def _refuse(run: Run, args: Any, kwargs: Any) -> Any:
    raise Barrier("it runs an optimized graph, which runs ahead by itself")


class Askers:
    """Implements `asking.Asker`: the first asker that knows an object answers."""

    def __init__(self, askers: Sequence[Asker]) -> None:
        self._askers = askers

    def attribute(self, run: Run, owner: Opaque, name: str) -> Any:
        """See `Asker`."""
        if name in ("invoke", "ainvoke") and _has_own_calls(owner.held):
            return Callee(_refuse, name)
        return self._first("attribute", run, owner, name)

    def call(self, run: Run, callee: Opaque, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """See `Asker`."""
        return self._first("call", run, callee, args, kwargs)

    def construct(self, run: Run, cls: type, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """See `Asker`."""
        return self._first("construct", run, cls, args, kwargs)

    def combine(self, run: Run, left: Any, right: Any) -> Any:
        """See `Asker`."""
        return self._first("combine", run, left, right)

    def _first(self, hook: str, *args: Any) -> Any:
        for asker in self._askers:
            if (found := getattr(asker, hook)(*args)) is not NOT_MINE:
                return found
        return NOT_MINE


def langchain_asker(context: Context, *, is_async: bool) -> Asker:
    """Return LangChain's asker for a call in the context."""
    from teola_plugin.adapters.langchain.reading import LangChainAsker
    from teola_plugin.adapters.langchain.watched import heard_by

    asker = LangChainAsker(context, is_async=is_async, heard=heard_by([]))
    if "langgraph.graph.state" not in sys.modules:
        return asker
    from teola_plugin.adapters.langgraph.inside import with_graphs

    return with_graphs(asker, context, is_async=is_async)


def may_run_ahead() -> bool:
    """Whether nothing in the context forbids early requests: a limit, or a handler that may refuse."""
    if has_langchain():
        from langchain_core.runnables.config import var_child_runnable_config

        from teola_plugin.adapters.langchain.watched import is_refusable, is_watched

        config = var_child_runnable_config.get() or {}
        if config.get("max_concurrency") is not None or is_refusable(config) or is_watched(config):
            return False
    return True
