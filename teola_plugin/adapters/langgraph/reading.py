"""The supersteps of a state graph, read over possibly unknown values.

The next nodes and their views of the state are computed as by LangGraph: tasks in the order of their writes (nodes by
name, then `Send`s); a conditional edge sees the state with the writes of its own node; a join waits for all its nodes,
a deferred node until all other work is done. Reading goes on while the next nodes are certain.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from langchain_core.runnables.config import run_in_executor
from langgraph._internal._constants import NS_END, NS_SEP, PUSH
from langgraph._internal._runnable import RunnableCallable
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.ephemeral_value import EphemeralValue
from langgraph.channels.last_value import LastValueAfterFinish
from langgraph.channels.named_barrier_value import NamedBarrierValue, NamedBarrierValueAfterFinish
from langgraph.constants import END, START
from langgraph.graph._branch import BranchSpec
from langgraph.graph.state import CompiledStateGraph, _coerce_state
from langgraph.managed.is_last_step import IsLastStepManager, RemainingStepsManager
from langgraph.pregel._write import ChannelWrite, ChannelWriteEntry
from langgraph.types import Command, Send

from teola_plugin.adapters.langchain.reading_runnables import require_own_methods
from teola_plugin.adapters.langgraph.front import SIDE_BY_SIDE, Front, Graph, Task, Way
from teola_plugin.adapters.langgraph.writes import KEPT, ROOT, Open, Update, applied, gotos_of, targets_of, updates_of
from teola_plugin.adapters.reader import classes
from teola_plugin.adapters.reader.calls import call
from teola_plugin.adapters.reader.companions import beside
from teola_plugin.adapters.reader.prediction import may_be_asked
from teola_plugin.adapters.reader.run import NOWHERE, Run
from teola_plugin.adapters.reader.texts import are_shown
from teola_plugin.adapters.reader.values import (
    TIMED,
    Barrier,
    Callee,
    Opaque,
    Pending,
    Perhaps,
    Stalled,
    Undecided,
    Unknown,
    isinstance_of,
)
from teola_plugin.trace import Reading

RunComponent = Callable[..., Any]
"""See `adapters.langchain.reading.run_component`."""

_BRANCH = "branch:to:"

MAX_SUPERSTEPS = 60

QUIET = Callee(lambda run, args, kwargs: None, "writer")
"""A writer to the stream of a run that writes nothing: the framework's own run writes."""


@dataclass
class _Led:
    """The successors of the tasks of a superstep. `assumed`: all successors, where some edge is undecided."""

    joined: dict[str, set[str]]
    found: set[str] = field(default_factory=set)
    sends: list[Task] = field(default_factory=list)
    waits: bool = False
    assumed: tuple[str, ...] | None = None


class GraphReader:
    """The reader of a compiled graph. `run_component` reads a node if the node is a LangChain runnable."""

    def __init__(
        self, graph: Graph, run_component: RunComponent, readings: Mapping[str, Reading] | None = None,
        on_read: Callable[[int, str, int, bool], None] = lambda number, name, asked, is_whole: None,
        since: int | None = None, *, is_shown: bool = False, is_of_function: bool = False,
    ) -> None:  # fmt: skip
        """`readings`: by the names of nodes, records of how far each node is read. `since`: see `route_of`.

        `on_read`: called with a superstep, a node, the number of this node's requests allowed so far, and whether the
        node was read to its end, so its writes are its only effect. `is_shown`: the caller prints what a node returns
        before the next nodes run. `is_of_function`: a function without a graph around runs the graph, and makes all
        requests of the nodes.
        """
        self.graph = graph
        outputs = graph.output_channels
        self._outputs = (outputs,) if type(outputs) is str else outputs
        self._run_component = run_component
        self._readings = readings or {}
        self._on_read = on_read
        self._since = since
        self._is_shown = is_shown
        self._is_of_function = is_of_function

    # --- supersteps --------------------------------------------------------------------------------------------------

    def superstep(self, run: Run, front: Front, way: Way) -> Front:
        """Return the front after the nodes of `front` have run. Raises: Stalled, Barrier, errors of a node."""
        updates: list[Update] = []
        before, ended = run.gates, run.gates
        blocked: BaseException | None = None
        led = _Led({key: set(seen) for key, seen in front.joined.items()}, waits=front.waits)
        mark, last, run.is_beside = run.mark, run.mark, len(front.tasks) > 1
        around, site, sent = run.where, run.site, 0
        given, shared = [[task.argument] for task in front.tasks], [*front.state.values()]
        with beside(run, given, are_cancelled=way.is_async, shared=shared) as companions:
            for place, task in enumerate(front.tasks):
                if not self._is_of_function:
                    run.where = _within(around, task.name, front.number, sent if task.is_sent else None)
                run.site = (site, (front.number, place))
                sent += task.is_sent
                run.mark = mark
                run.gates = before if place < SIDE_BY_SIDE else ended  # tasks side by side do not wait for each other
                marked = run.leaves
                try:
                    with companions.one(is_cancelled=not self._is_on_thread(task)):
                        updates += self._noted(run, task, front, way, led)
                except (Barrier, Stalled, Undecided) as e:
                    run.drop_leaves(marked)
                    blocked = e if blocked is None or isinstance(e, Barrier) else blocked
                ended |= run.gates
                last = last if run.mark is mark else run.mark
        run.gates, run.mark, run.where, run.site = ended, last, around, site
        if blocked is not None:
            try:
                raise blocked if isinstance(blocked, Barrier) else Stalled
            finally:
                blocked = None  # else the error would refer to this frame, which refers to the error
        return self._next(front, applied(run, self.graph, front.state, updates), updates, led)

    def _is_on_thread(self, task: Task) -> bool:
        """Whether an asynchronous run calls a task's function on a thread, which goes on when the task is cancelled."""
        component = self.graph.nodes[task.name].bound if task.name in self.graph.nodes else None
        return type(component) is RunnableCallable and (component.afunc is None or _is_in_executor(component.afunc))

    def _next(self, front: Front, state: Mapping[str, Any], updates: list[Update], led: _Led) -> Front:
        for key, channel in self.graph.channels.items():
            if type(channel) is NamedBarrierValue and channel.names <= led.joined.get(key, set()):
                led.found.update(self.graph.trigger_to_nodes.get(key, ()))
                led.joined[key] = set()
        if led.waits and led.sends and not led.found:
            raise Stalled("deferred nodes run beside what is sent")
        if led.assumed is not None:
            if led.waits or led.sends or not led.found.issubset(led.assumed):
                raise Stalled("where it probably goes does not fit")
            led.found.update(led.assumed)
        return Front(
            (*map(Task, sorted(led.found)), *led.sends),
            state,
            front.number + 1,
            {key: frozenset(seen) for key, seen in led.joined.items()},
            led.waits,
            self._has_written(front, updates),
        )

    def _has_written(self, front: Front, updates: Sequence[Update]) -> bool | None:
        """Whether the graph's output was written before or by the updates; None: it is not known."""
        perhaps = [type(value) is Perhaps for key, value in updates if key in self._outputs]
        if front.has_written or not all(perhaps):
            return True
        return None if perhaps else front.has_written

    def _noted(self, run: Run, task: Task, front: Front, way: Way, led: _Led) -> list[Update]:
        """Return the writes of a task; `led` takes in its successors."""
        counted, open_before, gates = run.counts.total(), len(run.asks), run.gates
        skipped, changes = len(run.skipped), run.changes.number
        barrier: Barrier | None = None
        is_whole = False
        try:
            value = self._node(run, task, front, way)
            if self._is_shown and not are_shown([value, front.state]):
                run.raises()
            updates = list(updates_of(run, value, self._keys(task.name)))
            try:
                self._follow(run, task, updates, value, front, way, led)
            except (Stalled, Undecided):
                led.assumed = self.assumed(run, front)
                if led.assumed is None:
                    raise
                run.gates = gates  # a run that has raised here went nowhere
            is_whole = True
            return updates
        except Open:
            is_whole = sum(not isinstance(each, ChannelWrite) for each in self.graph.nodes[task.name].writers) == 1
            raise
        except Barrier as e:
            barrier = e
            raise
        finally:
            asks = list(run.asks.values())[open_before:]
            left = sum(not may_be_asked(ask, speculates=way.speculates) for ask in asks)
            requests = run.counts.total() - counted
            if not run.is_assuming:
                self._note(task.name, barrier, requests, run.skipped[skipped:])
                is_quiet = is_whole and run.changes.number == changes
                self._on_read(front.number, task.name, requests - left, is_quiet)
            barrier = None  # see `superstep`

    def assumed(self, run: Run, front: Front) -> tuple[str, ...] | None:
        """Return the nodes that probably follow; None without an assumption."""
        if run.branches is None or self._since is None:
            return None
        likely: Any = run.branches.assumed(route_of(front.names, front.number - self._since))
        return likely  # type: ignore[no-any-return]

    def _note(self, name: str, barrier: Barrier | None, requests: int, skipped: Sequence[Barrier]) -> None:
        if name in self._readings:
            self._readings[name].note(barrier, requests, skipped)

    # --- whole runs --------------------------------------------------------------------------------------------------

    def whole(self, run: Run, given: Any, way: Way, limit: int | None = None) -> Any:
        """Return the result of the graph, run inside of a graph or a node. Raises: Stalled, Barrier.

        `limit`: the recursion limit of the call, if set.
        """
        graph, name = self.graph, self.graph.get_name()
        require_own_methods(graph)
        if not (graph.checkpointer is None or graph.checkpointer is False):
            raise Barrier(f"the graph {name} has a checkpointer of its own")
        if graph.interrupt_before_nodes or graph.interrupt_after_nodes or (graph.config or {}).get("configurable"):
            raise Barrier(f"the graph {name} interrupts or has a config of its own")
        if graph.step_timeout is not None:
            raise Barrier(f"the graph {name} limits the time of its steps")
        if way.is_resumed and graph.checkpointer is None:
            raise Barrier(f"the graph {name} may go on from where it was")
        if not is_known(graph) or given is None or type(given) is Command:
            raise Barrier(f"the graph {name} is given no state")
        limit = _limit_of(graph, way) if limit is None else limit
        inner = Way(way.is_async, {**way.config, "recursion_limit": limit}, way.runtime, limit)
        front = self.entered(run, given, inner)
        while front.tasks and front.number < min(limit, MAX_SUPERSTEPS):  # at the limit LangGraph raises
            front = self.superstep(run, front, inner)
        if front.tasks or front.waits:
            raise Barrier(f"the graph {name} runs for too long, or has deferred nodes")
        found = {key: front.state[key] for key in self._outputs if key in front.state}
        if front.has_written is None:
            raise Stalled(f"it is not known whether the graph {name} writes to its output")
        if graph.output_channels == ROOT:
            return found.get(ROOT) if front.has_written else None
        if any(type(value) is Perhaps for value in found.values()):
            return Unknown(items=found)
        return found if front.has_written else None

    def entered(self, run: Run, given: Any, way: Way) -> Front:
        """Return the first front of a run with this input."""
        updates = list(updates_of(run, given, self._keys(START)))
        initial = {
            key: _fresh(run, channel.value)
            for key, channel in self.graph.channels.items()
            if type(channel) is BinaryOperatorAggregate and channel.is_available()
        }
        start, led = Front((Task(START),), initial, 0), _Led({})
        self._follow(run, Task(START), updates, given, start, way, led)
        return self._next(start, applied(run, self.graph, initial, updates), updates, led)

    def _keys(self, name: str) -> tuple[str, ...]:
        """Return the keys that a node may write, in LangGraph's order."""
        builder = self.graph.builder
        keys = builder.schemas[builder.input_schema] if name == START else builder.channels
        return tuple(key for key in keys if key in builder.channels)

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _node(self, run: Run, task: Task, front: Front, way: Way) -> Any:
        node = self.graph.nodes[task.name]
        if node.cache_policy or self.graph.cache_policy:
            raise Barrier(f"the results of the node {task.name} are cached")
        given = task.argument if task.is_sent else self._seen(run, node.channels, node.mapper, front, way)
        if task.name == START:
            return given
        if getattr(node, "timeout", None) is None:
            return self._result(run, node.bound, given, way)
        run.limits += 1
        try:
            return self._result(run, node.bound, given, way)
        finally:
            run.limits -= 1
            run.raises(TIMED)

    def _result(self, run: Run, component: Any, given: Any, way: Way) -> Any:
        """Return the result of a node's component."""
        if type(component) is RunnableCallable:
            return self._called(run, component, given, way)
        if type(component) is CompiledStateGraph:
            inner = GraphReader(component, self._run_component, is_of_function=self._is_of_function)
            return inner.whole(run, given, way)
        return self._run_component(run, component, given, {}, is_async=way.is_async, source=component)

    def _called(self, run: Run, component: RunnableCallable, given: Any, way: Way) -> Any:
        is_coroutine = way.is_async and component.afunc is not None and not _is_in_executor(component.afunc)
        function = component.afunc if is_coroutine else component.func
        if component.explode_args or function is None:
            raise Barrier(f"{component.name} cannot be called so")
        kwargs = {name: run.load(value) for name, value in component.kwargs.items()}
        for name in component.func_accepts:
            if name not in kwargs:
                kwargs[name] = _injected(run, name, way)
        value = call(run, run.load(function), (given,), kwargs)
        if is_coroutine and type(value) is Pending:
            value = value.force()
        if type(value) is Opaque and component.recurse:
            return self._run_component(run, value.held, given, {}, is_async=way.is_async, source=component)
        if isinstance_of(value, Opaque):
            raise Barrier(f"{component.name} returns {classes.describe(value)}")
        return value

    def _seen(self, run: Run, names: Any, mapper: Any, front: Front, way: Way, *, is_fresh: bool = False) -> Any:
        """Return the state as a node sees it or, with `is_fresh`, a conditional edge."""
        builder = self.graph.builder
        if names == ROOT or names == [ROOT]:
            return self._whole(front)
        if type(names) is not list:
            raise Barrier("it is given a state of a kind that is not known")
        seen: dict[str, Any] = {}
        for name in sorted(names, key=lambda name: name in builder.managed) if is_fresh else names:
            if name in builder.managed:
                seen[name] = _managed(builder.managed[name], front.number, way)
            elif type(builder.channels.get(name)) not in KEPT:
                raise Barrier(f"{name} is a {type(builder.channels.get(name)).__name__}")
            elif name in front.state:
                seen[name] = front.state[name]
        seen, optional = _parted(seen)
        if optional:
            run.taint_but(seen, optional)
        if mapper is None:
            return seen
        if optional:
            raise Stalled(f"it is not known whether {next(iter(optional))} is written")
        if type(mapper) is not partial or mapper.func is not _coerce_state:
            raise Barrier("the state is made in a way that is not known")
        return classes.construct(run, run.load(mapper.args[0]), (), seen)

    def _whole(self, front: Front) -> Any:
        """Return a state without keys. Raises: Barrier if nodes beside each other may change it, Stalled."""
        if len(front.tasks) > 1:
            raise Barrier("nodes beside each other are given one state, which each of them may change")
        if type(self.graph.builder.channels[ROOT]) not in KEPT or ROOT not in front.state:
            raise Barrier("the state is of a kind that is not known")
        if type(state := front.state[ROOT]) is Perhaps:
            raise Stalled("it is not known whether the state is written")
        return state

    # --- edges -------------------------------------------------------------------------------------------------------

    def _follow(
        self, run: Run, task: Task, updates: list[Update], value: Any, front: Front, way: Way, led: _Led
    ) -> None:
        """Add the successors of a node to `led`."""
        undecided: Stalled | Undecided | None = None
        try:
            for goto in gotos_of(run, value):
                self._go(goto, led)
        except Open as e:
            if not run.is_assuming:
                raise
            undecided = e
        for writer in self.graph.nodes[task.name].writers:
            if not isinstance(writer, ChannelWrite):
                try:
                    for target in self._decided(run, writer, task, updates, value, front, way):
                        self._go(target, led)
                except (Stalled, Undecided) as e:
                    if not run.is_assuming:
                        raise
                    undecided = e
                continue
            for entry in writer.writes:
                if isinstance(entry, ChannelWriteEntry):
                    self._edge(entry.channel, entry.value, led)
        if undecided is not None:
            raise undecided

    def _edge(self, key: str, value: Any, led: _Led) -> None:
        channel = self.graph.channels.get(key)
        if type(channel) is EphemeralValue:
            led.found.update(self.graph.trigger_to_nodes.get(key, ()))
        elif type(channel) is NamedBarrierValue:
            led.joined.setdefault(key, set()).add(value)
        elif type(channel) in (LastValueAfterFinish, NamedBarrierValueAfterFinish):
            led.waits = True
        else:
            raise Barrier("it leads to a node that is not there")

    def _go(self, target: Any, led: _Led) -> None:
        if type(target) is Send:
            if type(target.node) is not str:
                raise Stalled("where it goes is not known yet")
            if target.node not in self.graph.nodes:
                raise Barrier("it leads to a node that is not there")
            led.sends.append(Task(target.node, target.arg))
        elif type(target) is not str:
            raise Barrier("it leads to what is no node")
        elif target != END:
            self._edge(_BRANCH + target, None, led)

    def _decided(
        self, run: Run, writer: Any, task: Task, updates: list[Update], value: Any, front: Front, way: Way
    ) -> Iterator[Any]:
        """Yield the targets of a conditional edge. Raises: Stalled while the edge is undecided."""
        branch = getattr(getattr(writer, "func", None), "__self__", None)
        if type(branch) is not BranchSpec:
            raise Barrier("a conditional edge of a kind that is not known")
        builder = self.graph.builder
        own = builder.nodes[task.name].input_schema if task.name in builder.nodes else builder.state_schema
        schema = branch.input_schema or own
        names = list(builder.schemas[schema])
        mapper = self.graph.schema_to_mapper.get(schema)
        state = applied(run, self.graph, front.state, updates, names)
        now = Front(front.tasks, state, front.number)
        seen = self._seen(run, names, mapper, now, way, is_fresh=True)
        written = value if type(value) is dict else run.open_items(value)
        if mapper is None and branch.input_schema is None and written is not None:
            items = dict(written)
            run.spread(items, run.open_items(seen) or seen)
            seen, optional = _parted(items)
            if optional:
                run.taint_but(seen, optional)
        path: Any = branch.path
        if type(path) is RunnableCallable:
            chosen = self._called(run, path, seen, way)
        else:
            chosen = self._run_component(run, path, seen, {}, is_async=way.is_async, source=path)
        for each in targets_of(run, chosen):
            if type(each) is Send or not branch.ends:
                yield each
            else:
                run.require_known(each)
                yield branch.ends[each]


def route_of(names: tuple[str, ...], number: int) -> Hashable:
    """Return a branch to be learned: the tasks after a superstep, the `number`-th since the run began."""
    return "superstep", number, names


def is_known(graph: Any) -> bool:
    """Whether the graph is LangGraph's own class, with a state of keys, or of one value."""
    if type(graph) is not CompiledStateGraph:
        return False
    is_one_value = ROOT in graph.builder.channels
    return graph.output_channels == ROOT if is_one_value else type(graph.output_channels) is list


def _limit_of(graph: Graph, way: Way) -> int:
    """Return the recursion limit of a graph inside a graph. Raises: Barrier if both the call and the graph set a limit.

    LangGraph's default has its own type and gives way to both limits.
    """
    said = [config["recursion_limit"] for config in (graph.config or {}, way.config) if "recursion_limit" in config]
    known = said if all(isinstance_of(limit, int) for limit in said) else []
    limits = {limit for limit in known if type(limit) is int} or set(known)
    if len(limits) != 1:
        raise Barrier(f"the graph {graph.get_name()} is given a recursion limit that is not known")
    limit: int = limits.pop()
    return limit


def where_of(metadata: Mapping[str, Any], around: str) -> Hashable:
    """Return `Run.where` for code with this metadata, in a graph run in the namespace `around`."""
    namespace, path = metadata.get("langgraph_checkpoint_ns"), metadata.get("langgraph_path")
    if type(namespace) is not str or type(path) is not tuple:
        return NOWHERE
    names = tuple(part.partition(NS_END)[0] for part in namespace.removeprefix(around).strip(NS_SEP).split(NS_SEP))
    return names, metadata.get("langgraph_step"), path[1] if path[0] == PUSH else None


def _within(around: Any, name: str, number: int, sent: int | None) -> Hashable:
    """Return `Run.where` of a node in a superstep: the names of all enclosing nodes. `sent`: a sent task's number."""
    if around is NOWHERE:
        return None
    names: tuple[str, ...] = (*(around[0] if around else ()), name)
    return names, number, sent


def _is_in_executor(function: Any) -> bool:
    """Whether the function is LangGraph's coroutine function for a node without its own."""
    return type(function) is partial and function.func is run_in_executor


def _fresh(run: Run, value: Any) -> Any:
    """Return the initial value of a reduced key: a separate object for each run."""
    return type(value)() if type(value) in (list, dict, set) and not value else run.load(value)


def _managed(manager: Any, number: int, way: Way) -> Any:
    if manager is RemainingStepsManager:
        return way.stop - number
    return number == way.stop - 1 if manager is IsLastStepManager else Unknown("any")


def _injected(run: Run, name: str, way: Way) -> Any:
    """Return the argument injected by LangGraph for a node's parameter of this name."""
    if name == "config":
        return run.load(way.config)
    if name == "writer":
        return QUIET
    if name in ("runtime", "store", "previous") and way.runtime is not None:
        return run.load(way.runtime if name == "runtime" else getattr(way.runtime, name))
    raise Barrier(f"a node takes {name}")


def _parted(items: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the items which a state has, and the items which the state may have."""
    sure = {key: item for key, item in items.items() if type(item) is not Perhaps}
    return sure, {key: item.value for key, item in items.items() if type(item) is Perhaps}
