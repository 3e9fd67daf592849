"""The supersteps of a state graph, read over values that are not known yet.

What the nodes write, which node comes next and what it sees of the state is worked out as LangGraph does it: writes are
applied in the order of tasks (nodes by name, then `Send`s), with the graph's own reducers; a conditional edge sees the
state with the writes of its own node; joins wait for all of theirs. Reading goes on while it is certain which nodes
follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from langgraph._internal._constants import OVERWRITE
from langgraph._internal._fields import get_update_as_tuples
from langgraph._internal._runnable import RunnableCallable
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.ephemeral_value import EphemeralValue
from langgraph.channels.last_value import LastValue
from langgraph.channels.named_barrier_value import NamedBarrierValue
from langgraph.config import get_stream_writer
from langgraph.constants import END, START
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel._write import ChannelWrite, ChannelWriteEntry
from langgraph.runtime import Runtime
from langgraph.types import Command, Overwrite, Send, interrupt

from teola_plugin.adapters.reader import classes
from teola_plugin.adapters.reader.calls import call
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import (
    Barrier,
    Callee,
    Opaque,
    Pending,
    Stalled,
    Undecided,
    Unknown,
    isinstance_of,
)
from teola_plugin.trace import Reading

Graph = CompiledStateGraph[Any, Any, Any, Any]
Names = frozenset[str]
RunComponent = Callable[..., Any]
"""See `adapters.langchain.reading.run_component`."""

_BRANCH = "branch:to:"
_NO_ARGUMENT: Any = object()

MAX_SUPERSTEPS = 60


@dataclass(frozen=True)
class Task:
    """A node that is to run; `argument` where a `Send` gives it one of its own."""

    name: str
    argument: Any = _NO_ARGUMENT

    @property
    def is_sent(self) -> bool:
        """A `Send` asked for it."""
        return self.argument is not _NO_ARGUMENT


@dataclass(frozen=True)
class Front:
    """Where a run stands: the tasks that are about to run, what the state holds, and who has come to which join."""

    tasks: tuple[Task, ...]
    state: Mapping[str, Any]
    joined: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Of its tasks, in the order of their writes."""
        return tuple(task.name for task in self.tasks)


@dataclass(frozen=True)
class Way:
    """How one call runs a graph: asynchronously or not, with which config, and where it interrupts."""

    is_async: bool
    config: Mapping[str, Any]
    runtime: Any = None
    stops_before: frozenset[str] = frozenset()
    stops_after: frozenset[str] = frozenset()


class LangGraphAsker:
    """Implements `asking.Asker`: knows graphs and what LangGraph gives to nodes, besides what LangChain's asker knows.

    `langchain`: that one.
    """

    def __init__(self, langchain: Any) -> None:
        self._langchain = langchain

    def run_component(
        self, run: Run, component: Any, value: Any, kwargs: dict[str, Any], *, is_async: bool, source: Any
    ) -> Any:
        """What a runnable makes of a value. Raises: Barrier."""
        if type(component) is CompiledStateGraph:
            way = Way(is_async, {})
            return GraphReader(component, self.run_component).whole(run, value, way)
        return self._langchain.run_component(run, component, value, kwargs, is_async=is_async, source=source)

    def attribute(self, run: Run, owner: Opaque, name: str) -> Any:
        """See `Asker`."""
        held = owner.held
        if type(held) is Runtime:
            if name == "stream_writer":
                return _quiet
            if name in ("context", "previous"):
                return run.load(getattr(held, name))
            raise Barrier(f"it uses the {name} of the runtime")
        if type(held) is CompiledStateGraph and name in ("invoke", "ainvoke"):
            return Callee(self._invoking(held, name == "ainvoke"), name)
        return self._langchain.attribute(run, owner, name)

    def _invoking(self, graph: Any, is_async: bool) -> Callable[..., Any]:
        def invoke(run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if len(args) not in (1, 2) or kwargs.keys() - {"config"}:
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
            return _quiet
        return self._langchain.call(run, callee, args, kwargs)

    def construct(self, run: Run, cls: type, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """See `Asker`."""
        return self._langchain.construct(run, cls, args, kwargs)

    def combine(self, run: Run, left: Any, right: Any) -> Any:
        """See `Asker`."""
        return self._langchain.combine(run, left, right)


_quiet = Callee(lambda run, args, kwargs: None, "writer")
"""Writes to the stream of a run, which the framework's own run does."""


class GraphReader:
    """Reads one compiled graph. `run_component` reads the runnables of LangChain's that are nodes of it."""

    def __init__(
        self, graph: Graph, run_component: RunComponent, readings: Mapping[str, Reading] | None = None
    ) -> None:
        """`readings`: by the names of nodes, where to note how far each is read."""
        self.graph = graph
        self._run_component = run_component
        self._readings = readings or {}

    # --- supersteps --------------------------------------------------------------------------------------------------

    def superstep(self, run: Run, front: Front, way: Way) -> Front:
        """The front after the nodes of this one have run. Raises: Stalled, Barrier, what a node raises."""
        writes: list[tuple[Task, list[tuple[str, Any]], Any]] = []
        gates, blocked = run.gates, None
        ended = gates
        for task in front.tasks:
            run.gates = gates  # they run side by side: none waits for another
            asked = len(run.asks)
            try:
                value = self._node(run, task, front.state, way)
                writes.append((task, list(self._updates(run, value)), value))
                self._note(task, None, len(run.asks) - asked)
            except (Barrier, Stalled, Undecided) as e:
                blocked = e if blocked is None or isinstance(blocked, Stalled) else blocked
                self._note(task, e if isinstance(e, Barrier) else None, len(run.asks) - asked)
            ended |= run.gates
        run.gates = ended
        if blocked is not None:
            if isinstance(blocked, Barrier):
                raise blocked
            raise Stalled from blocked
        joined = {key: set(seen) for key, seen in front.joined.items()}
        found: set[str] = set()
        sends: list[Task] = []
        for task, updates, value in writes:
            self._follow(run, task, updates, value, front.state, way, found, sends, joined)
        state = self._applied(run, front.state, writes)
        for key, channel in self.graph.channels.items():
            if isinstance(channel, NamedBarrierValue) and channel.names <= joined.get(key, set()):
                found.update(self.graph.trigger_to_nodes.get(key, ()))
                joined[key] = set()
        tasks = (*(Task(name) for name in sorted(found)), *sends)
        return Front(tasks, state, {key: frozenset(seen) for key, seen in joined.items()})

    def _note(self, task: Task, barrier: Barrier | None, requests: int) -> None:
        reading = self._readings.get(task.name)
        if reading is not None:
            reading.readings += 1
            reading.barrier, reading.where, reading.hint = ("", "", "") if barrier is None else (
                barrier.what, barrier.where.rsplit("/", 1)[-1], barrier.hint,
            )  # fmt: skip
            reading.requests = max(reading.requests, requests)

    def is_interrupted(self, before: Front, after: Front, way: Way) -> bool:
        """LangGraph stops between these."""
        return _meets(before.names, way.stops_after) or _meets(after.names, way.stops_before)

    def whole(self, run: Run, given: Any, way: Way) -> Any:
        """What the graph returns, run inside of another one or of a node. Raises: Stalled, Barrier."""
        graph = self.graph
        if graph.checkpointer not in (None, False) or graph.interrupt_before_nodes or graph.interrupt_after_nodes:
            raise Barrier(f"the graph {graph.get_name()} has a checkpointer or interrupts of its own")
        if "__root__" in graph.builder.channels:
            raise Barrier(f"the graph {graph.get_name()} has a state without keys")
        inner = replace(way, stops_before=frozenset(), stops_after=frozenset())
        front = self.entered(run, given, inner)
        for _ in range(MAX_SUPERSTEPS):
            if not front.tasks:
                keys = graph.builder.schemas[graph.builder.output_schema]
                return {key: front.state[key] for key in keys if key in front.state}
            front = self.superstep(run, front, inner)
        raise Barrier(f"the graph {graph.get_name()} runs for too long")

    def entered(self, run: Run, given: Any, way: Way) -> Front:
        """The first front of a run that begins with this input."""
        keys = self.graph.builder.schemas[self.graph.builder.input_schema]
        updates = [(key, value) for key, value in self._updates(run, given) if key in keys]
        task = Task(START)
        state = self._applied(run, self._initial(run), [(task, updates, given)])
        found: set[str] = set()
        sends: list[Task] = []
        joined: dict[str, set[str]] = {}
        self._follow(run, task, updates, given, state, way, found, sends, joined)
        return Front((*(Task(name) for name in sorted(found)), *sends), state)

    def _initial(self, run: Run) -> dict[str, Any]:
        channels = self.graph.channels
        return {
            key: run.load(channel.value)
            for key, channel in channels.items()
            if isinstance(channel, BinaryOperatorAggregate) and channel.is_available()
        }

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _node(self, run: Run, task: Task, state: Mapping[str, Any], way: Way) -> Any:
        node = self.graph.nodes[task.name]
        if node.cache_policy or self.graph.cache_policy:
            raise Barrier(f"the results of the node {task.name} are cached")
        given = task.argument if task.is_sent else self._seen(run, node, state)
        component = node.bound
        if type(component) is RunnableCallable:
            return self._called(run, component, given, way)
        if isinstance(component, CompiledStateGraph):
            return GraphReader(component, self._run_component).whole(run, given, way)
        return self._run_component(run, component, given, {}, is_async=way.is_async, source=component)

    def _called(self, run: Run, component: RunnableCallable, given: Any, way: Way) -> Any:
        if component.explode_args:
            raise Barrier(f"{component.name} takes its input apart")
        kwargs = {name: run.load(value) for name, value in component.kwargs.items()}
        for name in component.func_accepts:
            kwargs[name] = _injected(run, name, way)
        function = (component.afunc if way.is_async else None) or component.func or component.afunc
        if isinstance(function, partial):  # LangGraph's own, which runs it in a thread
            function = component.func
        value = call(run, run.load(function), (given,), kwargs)
        while type(value) is Pending:
            value = value.force()
        if isinstance_of(value, Opaque):
            if component.recurse and type(value) is Opaque:
                return self._run_component(run, value.held, given, {}, is_async=way.is_async, source=component)
            raise Barrier(f"{component.name} returns {classes.describe(value)}")
        return value

    def _seen(self, run: Run, node: Any, state: Mapping[str, Any]) -> Any:
        """The state as a node sees it."""
        names = [node.channels] if isinstance(node.channels, str) else node.channels
        managed = self.graph.builder.managed
        seen = {n: Unknown("any") if n in managed else state[n] for n in names if n in state or n in managed}
        if node.mapper is None:
            return seen
        schema = getattr(node.mapper, "args", (None,))[0]
        if schema is None:
            raise Barrier("the state is made in a way that is not known")
        return classes.construct(run, run.load(schema), (), seen)

    # --- writes ------------------------------------------------------------------------------------------------------

    def _updates(self, run: Run, value: Any) -> Iterator[tuple[str, Any]]:
        """What a node's value writes. Raises: Stalled, Barrier."""
        keys = self.graph.builder.channels
        if run.is_unknown(value):
            raise Stalled("what a node returns is not known yet")
        if value is None:
            return
        kind = type(value)
        if kind is Command:
            if value.graph is not None:
                raise Barrier("a Command goes to another graph")
            yield from self._updates(run, _pairs(value.update))
        elif kind is dict:
            yield from ((key, each) for key, each in value.items() if key in keys)
        elif kind in (list, tuple) and any(type(each) is Command for each in value):
            for each in value:
                yield from self._updates(run, each)
        elif classes.fields_of(value) is not None:
            yield from ((key, each) for key, each in get_update_as_tuples(value, list(keys)))
        else:
            raise Barrier("a node returns what is no update of the state")

    def _applied(
        self, run: Run, state: Mapping[str, Any], writes: Sequence[tuple[Task, list[tuple[str, Any]], Any]]
    ) -> dict[str, Any]:
        """The state after these writes, in the order that LangGraph applies them."""
        by_key: dict[str, list[Any]] = {}
        for _, updates, _ in writes:
            for key, value in updates:
                by_key.setdefault(key, []).append(value)
        after = dict(state)
        for key, values in by_key.items():
            channel = self.graph.channels[key]
            if any(map(_overwrites, values)):
                raise Barrier(f"it overwrites {key}")
            if type(channel) is LastValue:
                if len(values) != 1:
                    raise Barrier(f"two nodes write {key}")
                after[key] = values[0]
            elif type(channel) is BinaryOperatorAggregate:
                after[key] = self._reduced(run, channel, after.get(key, _NO_ARGUMENT), values)
            else:
                raise Barrier(f"{key} is a {type(channel).__name__}")
        return after

    def _reduced(self, run: Run, channel: BinaryOperatorAggregate[Any], held: Any, values: list[Any]) -> Any:
        if held is _NO_ARGUMENT:
            held, values = values[0], values[1:]
        operator = run.load(channel.operator)
        for value in values:
            try:
                held = call(run, operator, (held, value), {})
            except Undecided:
                held = run.unknown(held, value)
        return held

    # --- edges -------------------------------------------------------------------------------------------------------

    def _follow(
        self, run: Run, task: Task, updates: list[tuple[str, Any]], value: Any, state: Mapping[str, Any], way: Way,
        found: set[str], sends: list[Task], joined: dict[str, set[str]],
    ) -> None:  # fmt: skip
        """Where a node leads to."""
        for goto in _gotos(run, value):
            self._go(goto, found, sends)
        for writer in self.graph.nodes[task.name].writers:
            if not isinstance(writer, ChannelWrite):
                for target in self._decided(run, writer, task, updates, value, state, way):
                    self._go(target, found, sends)
                continue
            for entry in writer.writes:
                if isinstance(entry, ChannelWriteEntry):
                    self._edge(entry, found, joined)

    def _edge(self, entry: ChannelWriteEntry, found: set[str], joined: dict[str, set[str]]) -> None:
        channel = self.graph.channels[entry.channel]
        if type(channel) is NamedBarrierValue:
            joined.setdefault(entry.channel, set()).add(entry.value)
        elif type(channel) is EphemeralValue:
            found.update(self.graph.trigger_to_nodes.get(entry.channel, ()))
        else:
            raise Barrier("it leads to a node that is deferred")

    def _go(self, target: Any, found: set[str], sends: list[Task]) -> None:
        if type(target) is Send:
            sends.append(Task(target.node, target.arg))
        elif target != END:
            channel = self.graph.channels.get(_BRANCH + target)
            if type(channel) is not EphemeralValue:
                raise Barrier("it leads to a node that is deferred or not there")
            found.add(target)

    def _decided(
        self, run: Run, writer: Any, task: Task, updates: list[tuple[str, Any]], value: Any, state: Mapping[str, Any],
        way: Way,
    ) -> Iterator[Any]:  # fmt: skip
        """Where a conditional edge leads to. Raises: Stalled while that is not decided."""
        branch = getattr(getattr(writer, "func", None), "__self__", None)
        path = getattr(branch, "path", None)
        if branch is None or path is None:
            raise Barrier("a conditional edge of a kind that is not known")
        schema = branch.input_schema or self.graph.builder.state_schema
        fresh = self._applied(run, state, [(task, updates, value)]) if task.name != START else dict(state)
        seen: Any = {key: fresh[key] for key in self.graph.builder.schemas[schema] if key in fresh}
        mapper = self.graph.schema_to_mapper.get(schema)
        if mapper is not None:
            seen = classes.construct(run, run.load(schema), (), seen)
        elif branch.input_schema is None and type(value) is dict:
            seen = {**value, **seen}
        chosen = (
            self._called(run, path, seen, way)
            if type(path) is RunnableCallable
            else self._run_component(run, path, seen, {}, is_async=way.is_async, source=path)
        )
        if run.is_unknown(chosen):
            raise Stalled("where it goes is not known yet")
        for each in chosen if type(chosen) in (list, tuple) else [chosen]:
            if run.is_unknown(each):
                raise Stalled("where it goes is not known yet")
            if type(each) is Send or not branch.ends:
                yield each
            else:
                run.require_known(each)
                yield branch.ends[each]


def _overwrites(value: Any) -> bool:
    """LangGraph may take it for an `Overwrite`."""
    return type(value) is Overwrite or (
        type(value) is dict and (OVERWRITE in value or {"type", "value"} <= value.keys())
    )


def _pairs(update: Any) -> Any:
    """The update of a Command, which may be a list of pairs."""
    if type(update) in (list, tuple) and all(type(pair) is tuple and len(pair) == 2 for pair in update):
        return dict(update)
    return update


def _gotos(run: Run, value: Any) -> Iterator[Any]:
    for each in value if type(value) in (list, tuple) else [value]:
        if type(each) is Command:
            gotos: Any = each.goto if type(each.goto) in (list, tuple) else [each.goto]
            for goto in gotos:
                if run.is_unknown(goto):
                    raise Stalled("where it goes is not known yet")
                yield goto


def _injected(run: Run, name: str, way: Way) -> Any:
    """What LangGraph gives to a parameter of a node that it knows by name."""
    if name == "config":
        return run.load(way.config)
    if name == "writer":
        return _quiet
    if name == "runtime":
        return run.load(way.runtime)
    if name in ("store", "previous"):
        return run.load(getattr(way.runtime, name, None))
    raise Barrier(f"a node takes {name}")


def interrupts(nodes: str | Iterable[str] | None) -> Names:
    """Where to interrupt, as LangGraph takes it: names, or "*"."""
    return frozenset([nodes] if isinstance(nodes, str) else nodes or ())


def _meets(names: Sequence[str], stops: frozenset[str]) -> bool:
    return bool(stops) and (stops == frozenset({"*"}) or not stops.isdisjoint(names))
