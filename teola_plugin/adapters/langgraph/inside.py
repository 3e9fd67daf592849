"""LangGraph for the reader: graphs called by nodes, and the arguments injected into nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.runnables import ensure_config
from langgraph._internal._constants import CONF
from langgraph.config import get_config, get_stream_writer
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt

from teola_plugin.adapters.langgraph.front import Way
from teola_plugin.adapters.langgraph.reading import QUIET, GraphReader
from teola_plugin.adapters.reader.foreign import is_one_of
from teola_plugin.adapters.reader.run import NOWHERE, Run
from teola_plugin.adapters.reader.values import Barrier, Callee, Opaque, Pending, Unknown


class LangGraphAsker:
    """Implements `asking.Asker`: adds graphs to the components of LangChain's asker.

    `langchain`: LangChain's asker. `way`: the settings of the call.
    """

    def __init__(self, langchain: Any, way: Way) -> None:
        self._langchain = langchain
        self._way = way
        self.heard = langchain.heard
        langchain.own_config = way.config

    def run_component(
        self, run: Run, component: Any, value: Any, kwargs: dict[str, Any], *, is_async: bool, source: Any
    ) -> Any:
        """Return the result of a runnable for a value. Raises: Barrier, Stalled."""
        if type(component) is not CompiledStateGraph:
            return self._langchain.run_component(run, component, value, kwargs, is_async=is_async, source=source)
        if kwargs:
            raise Barrier(f"the graph {component.get_name()} is called with arguments that are not read")
        way = replace(self._way, is_async=is_async)
        where, run.where = run.where, NOWHERE  # a function may run the graph several times
        try:
            return GraphReader(component, self.run_component).whole(run, value, way)
        finally:
            run.where = where

    def attribute(self, run: Run, owner: Opaque, name: str) -> Any:
        """See `Asker`."""
        held = owner.held
        if type(held) is Runtime:
            if name == "stream_writer":
                return QUIET
            if name in ("context", "previous"):
                return run.load(getattr(held, name))
            raise Barrier(f"it uses the {name} of the runtime")
        if type(held) is CompiledStateGraph:
            if name in ("invoke", "ainvoke"):
                return Callee(self._invoking(held, name == "ainvoke"), name)
            raise Barrier(f"it uses {name} of a graph")
        return self._langchain.attribute(run, owner, name)

    def _invoking(self, graph: Any, is_async: bool) -> Callable[..., Any]:
        def invoke(run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            config = kwargs.get("config", args[1] if len(args) == 2 else None)
            is_own = config is None or config is run.load(self._way.config)
            if len(args) not in (1, 2) or kwargs.keys() - {"config"} or not is_own:
                raise Barrier(f"the graph {graph.get_name()} is called with arguments that are not read")

            def force() -> Any:
                return self.run_component(run, graph, args[0], {}, is_async=is_async, source=graph)

            return Pending(force) if is_async else force()

        return invoke

    def call(self, run: Run, callee: Opaque, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """See `Asker`."""
        if callee.held is interrupt:
            raise Barrier("it interrupts the graph")
        if callee.held is get_stream_writer:
            return QUIET
        if is_one_of(callee.held, (ensure_config, get_config)):
            return self._config(run, *args, **kwargs)
        return self._langchain.call(run, callee, args, kwargs)

    def _config(self, run: Run, config: Any = None) -> dict[str, Any]:
        """Return a copy of a node's own config, also its context's. Raises: Barrier for a foreign config."""
        own = run.load(self._way.config)
        given = own if config is None else config
        hidden = (name for name, held in own.items() if type(held) is Unknown)
        if type(given) is not dict or given.keys() != own.keys() or any(type(given[n]) is not Unknown for n in hidden):
            raise Barrier("it makes a config of its own")
        return {**given, "recursion_limit": Unknown(), CONF: {**given[CONF]}}

    def construct(self, run: Run, cls: type, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """See `Asker`."""
        return self._langchain.construct(run, cls, args, kwargs)

    def combine(self, run: Run, left: Any, right: Any) -> Any:
        """See `Asker`."""
        return self._langchain.combine(run, left, right)
