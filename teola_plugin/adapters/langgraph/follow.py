"""LangGraph's run, followed from superstep to superstep: the next nodes are certain only when the run gets there.

Each `tick` of LangGraph's loop tells the session the next tasks and their state. If the prediction expects these tasks,
prediction goes on. If not (a conditional edge was decided, a node was not read, a thread was resumed), a new prediction
begins from there.

    tick -> front (tasks, state) -> prediction: superstep, superstep, ... -> early requests
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from langchain_core.runnables import Runnable, RunnablePassthrough, ensure_config
from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal._constants import CONF, CONFIG_KEY_RESUMING, CONFIG_KEY_RUNTIME, NS_END, NS_SEP, PUSH
from langgraph._internal._runnable import RunnableCallable
from langgraph._internal._typing import MISSING
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.last_value import LastValueAfterFinish
from langgraph.channels.named_barrier_value import NamedBarrierValue, NamedBarrierValueAfterFinish
from langgraph.constants import START
from langgraph.graph._branch import BranchSpec
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel._loop import AsyncPregelLoop, PregelLoop

from teola_plugin.adapters.interception import intercept
from teola_plugin.adapters.langchain import reading_retrievers
from teola_plugin.adapters.langchain.binding import Entered
from teola_plugin.adapters.langchain.reading import LangChainAsker
from teola_plugin.adapters.langchain.reading_runnables import CALLBACKS
from teola_plugin.adapters.langchain.trace import trace as trace_runnable
from teola_plugin.adapters.langgraph.agents import Agents, agents_in, has_replies_streamed
from teola_plugin.adapters.langgraph.depths import Depths
from teola_plugin.adapters.langgraph.front import Front, Graph, Task, Way, interrupts
from teola_plugin.adapters.langgraph.inside import LangGraphAsker
from teola_plugin.adapters.langgraph.places import Place, Places, Step
from teola_plugin.adapters.langgraph.reading import GraphReader, is_known, route_of, where_of
from teola_plugin.adapters.langgraph.savable import can_be_saved
from teola_plugin.adapters.reader.calls import compiled
from teola_plugin.adapters.reader.mentions import mentioned
from teola_plugin.adapters.reader.notes import Notes
from teola_plugin.adapters.reader.prediction import CallLine, Prediction, State
from teola_plugin.adapters.reader.reach import reach_of
from teola_plugin.adapters.reader.run import Given, Run
from teola_plugin.adapters.reader.stacks import Listener
from teola_plugin.adapters.reader.values import Unknown, isinstance_of
from teola_plugin.adapters.source import origin_of, unwrapped
from teola_plugin.graph import Graph as PGraph
from teola_plugin.routes import CallRoutes
from teola_plugin.seams import current
from teola_plugin.trace import Asides, Break, Progress, Reading, Traced
from teola_plugin.turns import Turn

log = logging.getLogger(__name__)


def install() -> None:
    """Make LangGraph's loop report its position. Idempotent."""
    intercept(PregelLoop, "tick", _telling_tick)


def _telling_tick(original: Callable[..., bool]) -> Callable[..., bool]:
    def tick(self: Any) -> bool:
        goes_on = original(self)
        if goes_on and (session := current()) is not None:
            session.observe(self.nodes, self)
        return goes_on

    return tick


def trace(graph: Any) -> Traced:
    """Return the follower of a compiled graph, with its early tools and readings."""
    if not is_known(graph):
        return Traced(PGraph((), (), ()))
    try:
        agents = agents_in(graph)
        breaks = [why for agent in agents.values() for why in agent.breaks]
        early = dict.fromkeys(tool for agent in agents.values() for tool in agent.shown)
        if not (prepared(graph) or agents):
            return Traced(PGraph((), (), ()), breaks=tuple(breaks))
        followed = Followed(graph, agents, readings_of(graph), functions=functions_in(graph))
        return Traced(
            PGraph((), (), ()), breaks=tuple(breaks), follow=followed.follow, early=tuple(early),
            readings=tuple(followed.readings.values()), wake=followed.places.forget,
        )  # fmt: skip
    except Exception as e:  # a graph of an unforeseen kind runs as the original
        log.exception("%s could not be read", graph.get_name())
        broken = Break("TB213", f"{graph.get_name()}: {type(e).__name__}: {e}")
        return Traced(PGraph((), (), ()), breaks=(broken,))


@dataclass(frozen=True)
class Followed:
    """A graph with followed calls. `agents`: by the `id` of the nodes of the graph and of the subgraphs.

    `readings`: of the nodes, by name. `functions`: see `functions_in`.
    """

    graph: Graph
    agents: Mapping[int, Agents]
    readings: Mapping[str, Reading]
    functions: Sequence[Any] = ()
    places: Places = field(default_factory=Places)

    def follow(self, entered: Entered) -> Following:
        """Return the follower of one call."""
        return Following(self, entered)


@dataclass
class Following:
    """Implements `trace.Follower` for one call: the loop followed, and the prediction ahead of the loop.

    `expected`: by the number of a superstep, the names of its predicted tasks.
    """

    followed: Followed
    entered: Entered
    loop: weakref.ref[Any] | None = None
    prediction: Prediction | None = None
    expected: dict[int, tuple[str, ...]] = field(default_factory=dict)
    asked: dict[tuple[int, str], int] = field(default_factory=dict)
    """The number of requests found for a node in a superstep that may be asked."""

    whole: set[tuple[int, str]] = field(default_factory=set)
    """Nodes of supersteps that, by the reading, leave nothing behind but their writes."""

    loops: dict[str, weakref.ref[Any]] = field(default_factory=dict)
    """The loops of graphs with tools, by their namespaces."""

    likely: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """As `expected`, for tasks that were only assumed."""

    since: int = 0
    """The superstep in which the loop began."""

    branch: Hashable = None
    """The last branch reached by the loop."""

    notes: Notes | None = None
    """The notes of the latest prediction."""

    steps: list[Step] = field(default_factory=list)
    """The supersteps of the loop since the prediction began; the latest one alone if there is no prediction."""

    is_beside = False

    def tell(self, component: object, value: Any, asides: Asides) -> None:
        """See `trace.Follower.tell`; the value is the loop, or a turn of a model."""
        if component is Turn:
            if asides.routes is None or not asides.routes.is_at_rest:
                self._hear(value, asides)
            return
        if id(component) in self.followed.agents:
            self.loops[_namespace(value.config)] = weakref.ref(value)
        if component is not self.followed.graph.nodes or (self.loop is not None and self.loop() is not value):
            return  # another graph's, or the same graph inside itself
        self.loop = weakref.ref(value)
        tasks = _tasks(value)
        names = tuple(task.name for task in tasks)
        for name in self.followed.readings.keys() & names:
            self.followed.readings[name].come()
        if asides.routes is not None:
            self._learn(asides.routes, tasks, value.step)
            if asides.routes.is_at_rest:
                return
        if START in names and (asides.routes is None or not self.followed.graph.builder.branches.get(START)):
            return  # LangGraph still takes the input in, and no reply decides the next nodes
        if asides.routes is None:
            self._came_to(names, asides.progress())
        if self.expected.get(value.step) == names:
            self._count(value.step)
            return
        if asides.routes is None and self._is_left_out(names, asides):
            asides.rest()
            return
        if any(task.writes for task in value.tasks.values()):
            return  # a resumed thread: some tasks have run already
        if value.config.get("max_concurrency") is not None or self.followed.graph.step_timeout is not None:
            return  # a limit on concurrency or time
        self._predict(value, tasks, asides)

    def end(self, asides: Asides) -> None:
        """See `trace.Follower.end`."""
        progress = asides.progress()
        self._judge(self.steps, progress, asides)
        self._compare(progress)

    def _judge(self, steps: Sequence[Step], end: Progress, asides: Asides) -> None:
        """Judge the prediction over the supersteps. Requests of the framework's run before make a prediction late."""
        prediction = self.prediction
        if prediction is None or not steps:
            return
        asked, is_read = end.asked - steps[0][1].asked, prediction.readings > prediction.is_evaluating
        is_late = asked > 0 and not (is_read and asked <= prediction.found + 1)
        had_room = prediction.had_room(asides.are_asked_together)
        self.followed.places.judge(steps, end, had_room=had_room, is_late=is_late)

    def _came_to(self, place: Place, progress: Progress) -> None:
        """Note a superstep, and look at the superstep before if left out."""
        self._compare(progress, place)
        self.steps.append((place, progress))

    def _compare(self, progress: Progress, after: Place | None = None) -> None:
        if self.prediction is None and self.steps:
            self.followed.places.compare(self.steps.pop(), progress, after)

    def _is_left_out(self, place: Place, asides: Asides) -> bool:
        """Judge the prediction that ends here. Returns whether none is made in its place."""
        *before, here = self.steps
        self._judge(before, here[1], asides)
        self.steps = [here]
        if not self.followed.places.is_left_out(place):
            return False
        self._drop_prediction()
        return True

    def _drop_prediction(self, *, is_wrong: bool = False) -> None:
        if self.prediction is not None:
            self.prediction.stop(is_wrong=is_wrong)
            self.prediction = None
        self.expected, self.asked, self.whole, self.likely = {}, {}, set(), {}

    def _learn(self, routes: CallRoutes, tasks: tuple[Task, ...], number: int) -> None:
        """Record the route taken by the framework's run."""
        names = tuple(task.name for task in tasks)
        if self.branch is None:
            self.since = number
        else:
            routes.took(self.branch, None if any(task.is_sent for task in tasks) else names)
        self.branch = route_of(names, number - self.since)
        routes.reached(self.branch)

    def _predict(self, loop: Any, tasks: tuple[Task, ...], asides: Asides) -> None:
        likely = self.likely.get(loop.step, ())
        self._drop_prediction(is_wrong=bool(likely) and not any(task.name in likely for task in tasks))
        asides.rewind()
        given = Given(self.entered.heard)
        way = _way_of(loop, speculates=asides.speculates)
        asker = LangGraphAsker(
            LangChainAsker(self.entered.context, is_async=way.is_async, heard=self.entered.heard), way
        )
        asked, whole = self.asked, self.whole

        def note(number: int, name: str, requests: int, is_whole: bool) -> None:
            asked[number, name] = max(requests, asked.get((number, name), 0))
            (whole.add if is_whole else whole.discard)((number, name))

        taker = self.entered.taker
        graph = GraphReader(
            self.followed.graph, asker.run_component, self.followed.readings, note, self.since,
            is_shown=taker is not None and taker.shows,
        )  # fmt: skip
        is_streamed = self.entered.mode in ("stream", "astream", "events") and taker is None
        is_stepwise = is_streamed or not _is_of_langgraph(loop.checkpointer)
        is_saved = loop.checkpointer is not None and loop.durability == "sync"
        steps = _Supersteps(graph, way, given, self.expected, is_stepwise, self.likely, is_saved)
        if tasks[0].name == START:
            tasks = tuple(Task(START, task.input) for task in loop.tasks.values())
        front = _front_of(loop, self.followed.graph, tasks, given)
        state = steps.state(front)
        self.notes = given.note(self.followed.functions, self.notes)
        line = CallLine(asides, has_replies_streamed(loop))
        listener = Listener(_where(_namespace(loop.config)), roots=self.followed.functions)
        asides.when_asked(listener.hear)
        self.prediction = Prediction(
            asker, line, state, speculates=asides.speculates, routes=asides.routes, listener=listener
        )
        self.prediction.begin()

    def _count(self, number: int) -> None:
        """Record a superstep of the framework's run that was read before."""
        for (at, name), requests in list(self.asked.items()):
            reading = self.followed.readings.get(name)
            if at == number and reading is not None:
                reading.ahead = max(reading.ahead or 0, requests)

    def _hear(self, turn: Turn, asides: Asides) -> None:
        """Find the graph whose node asks a model, and let its agents start tools early."""
        around, _, task = _namespace(ensure_config()).rpartition(NS_SEP)
        loop = self.loops[around]() if around in self.loops else None
        if loop is not None:
            running, own = task.partition(NS_END)[0], self.loop() if self.loop else None
            whole, at = self.whole, (loop.step, running)
            agents = self.followed.agents[id(loop.nodes)]
            agents.hear(turn, running, loop, asides, lambda: loop is own and at in whole)


def _is_of_langgraph(saver: Any) -> bool:
    return saver is None or type(saver).__module__.split(".")[0] == "langgraph"


@dataclass(frozen=True)
class _Supersteps:
    """The program of a prediction: a graph from a front on.

    `is_stepwise`: user code runs between supersteps (the reader of a stream, a checkpointer) and may end the run.
    `expected`, `likely`: see `Following`. `is_saved`: the state is saved before the next superstep begins.
    """

    reader: GraphReader
    way: Way
    given: Given
    expected: dict[int, tuple[str, ...]]
    is_stepwise: bool = False
    likely: dict[int, tuple[str, ...]] = field(default_factory=dict)
    is_saved: bool = False
    depths: Depths = field(default_factory=Depths)

    def state(self, front: Front, counts: Any = None) -> State:
        """Return the program from this front on."""

        def program(run: Run) -> State | None:
            return self._read(run, front)

        def waits(answered: Set[Hashable]) -> bool:
            return self.depths.may_end(front.number, answered)

        state = State(program, self.given, waits=waits)
        if counts:
            state.counts.update(counts)
        return state

    def _read(self, run: Run, front: Front) -> State | None:
        self.depths.begin()
        while front.tasks and front.number <= self.way.stop:
            (self.likely if run.has_assumed else self.expected)[front.number] = front.names
            if run.asks and run.branches is None and self.depths.may_end(front.number):
                return None
            met, unread, is_whole = len(run.met), (len(run.skipped), run.changes.number), False
            try:
                after = self.reader.superstep(run, front, self.way)
                if self.way.stops_between(front, after):
                    return None
                is_whole = unread == (len(run.skipped), run.changes.number)
            finally:
                self.depths.note(front.number, run.met[met:], is_whole=is_whole)
            if self.is_stepwise and self.reader.assumed(run, front) != after.names:
                run.raises()
            sent = [task.argument for task in after.tasks if task.is_sent]
            if self.is_saved and not can_be_saved(run, [dict(after.state), sent]):
                run.raises()
            front = after
            is_open = run.asks or run.gates or run.in_doubt or run.has_assumed
            if not (is_open or run.has_open(*front.state.values(), *sent)):  # all is certain up to here
                return self.state(self._kept(run, front), run.counts)
        return None

    def _kept(self, run: Run, front: Front) -> Front:
        arguments = [task.argument for task in front.tasks if task.is_sent]
        state, arguments = run.renewed(self.given, [dict(front.state), arguments])
        left = iter(arguments)
        tasks = tuple(Task(t.name, next(left)) if t.is_sent else t for t in front.tasks)
        return replace(front, tasks=tasks, state=state)


def prepared(graph: Graph) -> bool:
    """Compile the functions of a graph and instrument their components. Returns whether the graph may make requests."""
    reading_retrievers.instrument_loaded()
    may_ask = False
    for each in (graph, *(inner for _, inner in graph.get_subgraphs(recurse=True))):
        for function in _functions_of(each):
            if isinstance(function, Runnable):
                trace_runnable(function)
                may_ask = True
                continue
            if plain := unwrapped(function):
                compiled(plain)
            for value in mentioned(function):
                if isinstance_of(value, Runnable):
                    trace_runnable(value)
            may_ask |= reach_of(function, lambda value: False).asks
    return may_ask


def functions_in(graph: Graph) -> list[Any]:
    """Return what a graph and its subgraphs run: functions and components of nodes, conditional edges, reducers."""
    graphs: tuple[Any, ...] = (graph, *(inner for _, inner in graph.get_subgraphs(recurse=True)))
    channels = [channel for each in graphs for channel in each.channels.values()]
    reducers = [each.operator for each in channels if type(each) is BinaryOperatorAggregate]
    return [*(function for each in graphs for function in _functions_of(each)), *reducers]


def _functions_of(graph: Any) -> Iterator[Any]:
    """Yield the functions of a graph's nodes and conditional edges; for other nodes, the component."""
    for node in graph.nodes.values():
        branches = [getattr(writer.func, "__self__", None) for writer in node.writers]
        for bound in (node.bound, *(branch.path for branch in branches if type(branch) is BranchSpec)):
            if type(bound) is RunnableCallable:
                yield from (f for f in (bound.func, bound.afunc) if f is not None and type(f) is not partial)
            elif isinstance_of(bound, Runnable) and type(bound) not in (CompiledStateGraph, RunnablePassthrough):
                yield bound


def readings_of(graph: Graph) -> dict[str, Reading]:
    """Return the readings of a graph's nodes with functions."""
    found: dict[str, Reading] = {}
    for name, node in graph.nodes.items():
        bound = node.bound
        function = bound.func or bound.afunc if type(bound) is RunnableCallable else None
        if name != START and function is not None:
            origin = origin_of(function)
            found[name] = Reading(f"{name}: {origin}", origin, came=0)
    return found


def _tasks(loop: Any) -> tuple[Task, ...]:
    """Return the next tasks in the order of their writes: nodes by name, then sent tasks."""
    tasks = loop.tasks.values()
    pulled = sorted(task.name for task in tasks if task.path[0] != PUSH)
    return (*map(Task, pulled), *(Task(task.name, task.input) for task in tasks if task.path[0] == PUSH))


def _front_of(loop: Any, graph: Graph, tasks: tuple[Task, ...], given: Given) -> Front:
    """Return the position of a loop, with copies of its state."""
    channels = loop.channels
    held = {key: channels[key].get() for key in graph.builder.channels if channels[key].is_available()}
    state = given.copy(held)
    joined = {
        key: frozenset() if channel.is_available() else frozenset(channel.seen)  # every successor runs now
        for key, channel in channels.items()
        if type(channel) is NamedBarrierValue
    }
    return Front(
        tuple(Task(task.name, given.copy(task.argument)) if task.is_sent else task for task in tasks),
        state,
        loop.step,
        joined,
        waits=any(map(_is_waiting, channels.values())),
    )


def _is_waiting(channel: Any) -> bool:
    """Whether a deferred node waits, or may wait, until all other work is done."""
    if type(channel) is NamedBarrierValueAfterFinish:
        return bool(channel.seen) and not channel.finished
    return type(channel) is LastValueAfterFinish and channel.value is not MISSING and not channel.finished


def _way_of(loop: Any, *, speculates: bool) -> Way:
    """Return the settings of a loop. Entries put by LangGraph and LangChain into a node's config are unknown."""
    configured = loop.config.get(CONF, {})
    configurable = {
        key: Unknown() if key.startswith(("__", "checkpoint_")) else value for key, value in configured.items()
    }
    hidden = {"callbacks": CALLBACKS, **{key: Unknown() for key in ("metadata", "tags", "run_name", "run_id")}}
    limit = loop.config.get("recursion_limit", Unknown())
    return Way(
        isinstance(loop, AsyncPregelLoop),
        {**hidden, "recursion_limit": limit, CONF: configurable},
        configured.get(CONFIG_KEY_RUNTIME),
        loop.stop,
        interrupts(loop.interrupt_before),
        interrupts(loop.interrupt_after),
        is_resumed=bool(configured.get(CONFIG_KEY_RESUMING)),
        speculates=speculates,
    )


def _where(around: str) -> Callable[[], Hashable]:
    return lambda: where_of((var_child_runnable_config.get() or {}).get("metadata") or {}, around)


def _namespace(config: Mapping[str, Any]) -> str:
    """Return the namespace of a loop, or of a task of a loop: `outer:<id>|inner:<id>`."""
    return str(config.get(CONF, {}).get("checkpoint_ns", ""))
