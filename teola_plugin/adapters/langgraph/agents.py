"""Agents: calls of read-only tools start while the model still writes; meanwhile the next prompt is prefilled.

    model writes   call 1 | call 2 | .
    tools                 | call 1 ..... |
                                   | call 2 ......... |
    prefill                          | system, history, answer | result 1 |          (result 2 comes with the next turn)

The early calls run with callbacks muted, beside the framework's run, which repeats each call in its own place and finds
the value. Only tools count whose node directly follows the model's node, with no code between to refuse or change a
call.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from langchain_core.runnables.config import run_in_executor
from langchain_core.tools import BaseTool
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel._loop import AsyncPregelLoop

from teola_plugin.adapters.langchain import taps
from teola_plugin.adapters.langchain.tools import EarlyTool, instrument_tool, read_tool
from teola_plugin.adapters.langchain.watched import is_watched, wants_streams
from teola_plugin.adapters.langgraph.front import Graph, Names, interrupts
from teola_plugin.adapters.source import origin_of
from teola_plugin.effects import declared_effects
from teola_plugin.engines import Urgency
from teola_plugin.finalizers import kept_off
from teola_plugin.trace import Asides, Break
from teola_plugin.turns import Turn

EVERY = "*"
AGENTS = ("langchain.agents.factory", "langgraph.prebuilt.chat_agent_executor")
WRAPPERS = ("wrap_model_call_handler", "awrap_model_call_handler")
"""The variables of the model's node of `create_agent` where the user's middleware stands around the model."""


@dataclass(frozen=True)
class Agents:
    """The tool nodes of a graph: the nodes before each, its early tools, its tools with possible writes.

    `asking`: nodes with model calls and no effects.
    """

    leading: Mapping[str, Names] = field(default_factory=dict)
    tools: Mapping[str, Mapping[str, EarlyTool]] = field(default_factory=dict)
    writing: Mapping[str, Names] = field(default_factory=dict)
    asking: Names = frozenset()
    breaks: tuple[Break, ...] = ()

    @property
    def shown(self) -> tuple[str, ...]:
        """The tools with early starts, as `explain` names them."""
        tools = [tool.tool for node in self.tools.values() for tool in node.values()]
        return tuple(dict.fromkeys(f"{tool.name}: {_origin(tool)}" for tool in tools))

    def __bool__(self) -> bool:
        return bool(self.leading)

    def hear(
        self, turn: Turn, running: str, loop: Any, asides: Asides, is_read: Callable[[], bool] = lambda: False
    ) -> None:
        """Start early tool calls from a reply, if the requesting node leads straight to the tools.

        `is_read`: whether the reader knows by now: the node leaves nothing behind but its writes.
        """
        after, before = interrupts(loop.interrupt_after), interrupts(loop.interrupt_before)
        if running in after or EVERY in after or EVERY in before or loop.config.get("max_concurrency") is not None:
            return
        near = [node for node, leading in self.leading.items() if running in leading and node not in before]
        if near:
            is_heard = has_replies_streamed(loop)
            is_alone = all(task.name == running for task in loop.tasks.values())
            asks_only = running in self.asking

            def may_change() -> bool:  # by code that runs before the superstep of the tools
                return not (is_alone and (asks_only or is_read()))

            tools = {
                name: tool
                for node in near
                for name, tool in self.tools[node].items()
                if tool.is_so_still() and not (tool.is_outside and is_heard)
            }
            writing = frozenset(name for node in near for name in self.writing[node])
            Answers(turn, tools, writing, isinstance(loop, AsyncPregelLoop), asides, may_change)


class Answers:
    """The early answers of tools to one reply of the model, and the prompt prefix made of them.

    After the call of a possibly writing tool no call starts early: a later tool may read the written data. Nor does a
    tool start early while running code `may_change` its answer.
    """

    def __init__(
        self, turn: Turn, tools: Mapping[str, EarlyTool], writing: Names, is_async: bool, asides: Asides,
        may_change: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._turn = turn
        self._tools = tools
        self._writing = writing
        self._may_change = may_change
        self._has_written = False
        self._is_async = is_async
        self._asides = asides
        self._context = copy_context()
        self._lock = threading.Lock()
        self._contents: dict[int, str] = {}
        self._calls = 0
        self._is_written = False
        self._prefilled = -1
        turn.on_call, turn.on_end = self._call, self._written

    def _call(self, position: int, name: str, arguments: Mapping[str, Any]) -> None:
        self._calls += 1
        self._has_written |= name in self._writing
        if self._has_written or (tool := self._tools.get(name)) is None:
            return
        if not tool.is_changeless and self._may_change():
            return
        begin, is_async = tool.begin(name, arguments, self._is_async, self._context)

        def work() -> None:
            self._answered(position, begin())

        async def awork() -> None:
            self._answered(position, await begin())

        self._asides.aside(name, awork if is_async else work, is_async=is_async)

    def _answered(self, position: int, message: Any) -> None:
        if isinstance(content := getattr(message, "content", None), str):
            with kept_off, self._lock:
                self._contents[position] = content
            self._prefill()

    def _written(self) -> None:
        self._is_written = True
        if self._calls and self._turn.follow_up:
            self._asides.aside("", self._prefill)

    def _prefill(self) -> None:
        """Prefill the beginning of the next prompt while some tool still works."""
        spec, follow_up = self._turn.spec, self._turn.follow_up
        if spec is None or follow_up is None:
            return
        with kept_off, self._lock:
            known = list(self._known())
            is_news = self._is_written and self._prefilled < len(known) < self._calls
            if is_news:
                self._prefilled = len(known)
        if is_news:
            self._asides.prefill(spec, follow_up(known), {}, Urgency(1))

    def _known(self) -> Iterator[str]:
        """Yield the answers of the first tools, up to the first unknown answer."""
        for position in range(self._calls):
            if position not in self._contents:
                return
            yield self._contents[position]


def has_replies_streamed(loop: Any) -> bool:
    """Whether models in this run of a graph must stream; LangGraph's own handlers are with the run's manager."""
    return is_watched(loop.config) or wants_streams(loop.manager)


def agents_in(graph: Graph) -> dict[int, Agents]:
    """Return the agents of a graph and of its subgraphs, by the `id` of each graph's nodes."""
    graphs = [graph, *(inner for _, inner in graph.get_subgraphs(recurse=True))]
    known = {id(each.nodes): agents_of(each) for each in graphs if isinstance(each, CompiledStateGraph)}
    return {key: agents for key, agents in known.items() if agents}


def agents_of(graph: Graph) -> Agents:
    """Return the tool nodes of a graph, and instrument the classes of their tools."""
    leading: dict[str, Names] = {}
    tools: dict[str, dict[str, EarlyTool]] = {}
    writing: dict[str, set[str]] = {}
    breaks: list[Break] = []
    for name, node in graph.nodes.items():
        bound = node.bound
        if not isinstance(bound, ToolNode) or bound._wrap_tool_call or bound._awrap_tool_call:
            continue
        leading[name], tools[name], writing[name] = _leading_to(graph, name), {}, set()
        for tool in bound.tools_by_name.values():
            found = _read(bound, tool)
            if isinstance(found, EarlyTool):
                instrument_tool(type(tool))
                tools[name][tool.name] = found
            else:
                breaks.append(Break("TB130", f"{tool.name}: {found}", _origin(tool), HINT))
                writing[name].add(tool.name)
    if leading:
        taps.install()
    asking = frozenset(node for nodes in leading.values() for node in nodes if _only_asks(graph.nodes[node].bound))
    return Agents(leading, tools, {name: frozenset(names) for name, names in writing.items()}, asking, tuple(breaks))


HINT = "say that it only reads: @teola_plugin.reads(...) on its function, or metadata={'readOnlyHint': True}"


def _read(node: ToolNode, tool: BaseTool) -> EarlyTool | str:
    injected = node._injected_args.get(tool.name)
    if injected and (injected.state or injected.store or injected.runtime):
        return "it is given the state, the store or the runtime"
    return read_tool(tool)


def _origin(tool: BaseTool) -> str:
    return origin_of(getattr(tool, "func", None) or getattr(tool, "coroutine", None) or type(tool)._run)


def _only_asks(node: Any) -> bool:
    """Whether a node calls a model as LangChain's agents do, or has only functions declared free of effects."""
    functions = [f for f in (getattr(node, "func", None), getattr(node, "afunc", None)) if f and not _in_executor(f)]
    if functions and all(getattr(f, "__module__", "") in AGENTS for f in functions):
        held = [inspect.getclosurevars(f).nonlocals for f in functions]
        return not any(values.get(name) for values in held for name in WRAPPERS)
    return bool(functions) and all(said is not None and said.pure for said in map(declared_effects, functions))


def _in_executor(function: Any) -> bool:
    """Whether the function is LangGraph's coroutine function for a node without its own."""
    return isinstance(function, partial) and function.func is run_in_executor


def _leading_to(graph: Graph, name: str) -> Names:
    """Return the nodes from which an edge, or one way of a conditional edge, leads straight to the node `name`."""
    builder = graph.builder
    straight = {start for start, end in builder.edges if end == name}
    chosen = {
        start
        for start, branches in builder.branches.items()
        for branch in branches.values()
        if branch.ends is None or name in branch.ends.values()
    }
    return frozenset(straight | chosen)
