"""LangGraph for the reader: graphs called by nodes, and the arguments injected into nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import replace
from typing import Any

from langchain_core.runnables import ensure_config
from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal import _config
from langgraph._internal._constants import CONF
from langgraph.config import get_config, get_stream_writer
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import DEFAULT_RUNTIME, Runtime
from langgraph.types import interrupt

from teola_plugin.adapters.handlers import noted_by
from teola_plugin.adapters.langchain.reading_runnables import CALLBACKS, handlers_in, require_plain_config
from teola_plugin.adapters.langgraph.front import Way
from teola_plugin.adapters.langgraph.reading import QUIET, GraphReader
from teola_plugin.adapters.reader.asking import Asker
from teola_plugin.adapters.reader.foreign import is_one_of
from teola_plugin.adapters.reader.run import NOWHERE, Run
from teola_plugin.adapters.reader.values import Barrier, Callee, Opaque, Pending, Unknown

_READ: dict[str, type | None] = {
    "recursion_limit": int, "tags": list, "metadata": dict, "run_name": str, CONF: dict, "callbacks": None,
}  # fmt: skip
"""The keys of a config that are read, with the class of each value."""

_HAS_OWN_THREADS = hasattr(_config, "_CHECKPOINT_COORDINATE_KEYS")
"""Whether a thread's id in a config drops the configurable values of the context, as in newer releases."""


class LangGraphAsker:
    """Implements `asking.Asker`: adds graphs to the components of LangChain's asker.

    `langchain`: LangChain's asker. `way`: the settings of the call.
    """

    def __init__(self, langchain: Any, way: Way, *, is_of_function: bool = False) -> None:
        """`is_of_function`: see `GraphReader`."""
        self._langchain = langchain
        self._way = way
        self._is_of_function = is_of_function
        self.heard = langchain.heard
        if not is_of_function:
            langchain.own_config = way.config

    def run_component(
        self, run: Run, component: Any, value: Any, kwargs: dict[str, Any], *, is_async: bool, source: Any
    ) -> Any:
        """Return the result of a runnable for a value. Raises: Barrier, Stalled."""
        if type(component) is not CompiledStateGraph:
            return self._langchain.run_component(run, component, value, kwargs, is_async=is_async, source=source)
        if kwargs:
            raise Barrier(f"the graph {component.get_name()} is called with arguments that are not read")
        return self._run_graph(run, component, value, replace(self._way, is_async=is_async))

    def _run_graph(self, run: Run, graph: Any, value: Any, way: Way, limit: int | None = None) -> Any:
        """Return the result of a graph. `limit`: the recursion limit that the caller sets. Raises: Barrier, Stalled."""
        if self._is_of_function and graph.store is not None:
            raise Barrier(f"the graph {graph.get_name()} has a store of its own")
        where, way_around, config = run.where, self._way, self._langchain.own_config
        if not self._is_of_function:
            run.where = NOWHERE  # a function may run the graph several times
        self._way, self._langchain.own_config = way, way.config
        try:
            reader = GraphReader(graph, self.run_component, is_of_function=self._is_of_function)
            return reader.whole(run, value, way, limit)
        finally:
            run.where, self._way, self._langchain.own_config = where, way_around, config

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
        if type(held) is ToolNode and name == "tools_by_name":
            return run.load(held.tools_by_name)
        return self._langchain.attribute(run, owner, name)

    def _invoking(self, graph: Any, is_async: bool) -> Callable[..., Any]:
        def invoke(run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            given = dict(zip(("input", "config"), args, strict=False))
            if len(args) > 2 or given.keys() & kwargs or not {"input"} <= {*given, *kwargs} <= {"input", "config"}:
                raise Barrier(f"the graph {graph.get_name()} is called with arguments that are not read")
            given.update(kwargs)
            config, way, limit = given.get("config"), self._way, None
            if config is None or config is not run.load(way.config):
                way, limit = self._configured({} if config is None else config, way, graph)

            def force() -> Any:
                return self._run_graph(run, graph, given["input"], replace(way, is_async=is_async), limit)

            return Pending(force) if is_async else force()

        return invoke

    def _configured(self, config: Any, way: Way, graph: Any) -> tuple[Way, int | None]:
        """Return the settings of a graph called with a config that is not the caller's, and the recursion limit if set.

        A graph's own limit precedes the caller's. A config with a thread's id drops the configurable values of the
        caller. Raises: Barrier for other configs.
        """
        refused = Barrier(f"the graph {graph.get_name()} is called with a config that is not read")
        if type(config) is not dict or not config.keys() <= _READ.keys():
            raise refused
        require_plain_config(config)
        self.heard.update(noted_by(handlers_in(config)))
        if any(type(held) is not _READ[key] for key, held in config.items() if _READ[key] and held is not None):
            raise refused
        limit, configurable = config.get("recursion_limit"), config.get(CONF)
        if configurable:
            is_thread = configurable.keys() == {"thread_id"} and type(configurable["thread_id"]) in (str, int)
            if not (is_thread and _HAS_OWN_THREADS):
                raise refused
            way = replace(way, config={**way.config, CONF: dict(configurable)}, runtime=DEFAULT_RUNTIME)
        own = (graph.config or {}).get("recursion_limit")
        return way, own if limit is None and type(own) is int else limit

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


def with_graphs(langchain: Asker, context: Context, *, is_async: bool) -> Asker:
    """Return an asker for a function's calls of graphs, too; LangChain's alone if the function runs inside a run."""
    if context.run(var_child_runnable_config.get) is not None:
        return langchain
    unknown = {key: Unknown() for key in ("metadata", "tags", "run_name", "run_id")}
    limit = context.run(ensure_config)["recursion_limit"]
    config = {**unknown, "callbacks": CALLBACKS, "recursion_limit": limit, CONF: {}}
    return LangGraphAsker(langchain, Way(is_async, config, DEFAULT_RUNTIME), is_of_function=True)
