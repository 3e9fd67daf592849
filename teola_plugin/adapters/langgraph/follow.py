"""LangGraph's run, followed from superstep to superstep: where it goes is known for certain only when it gets there.

Each `tick` of LangGraph's loop tells the session which tasks are about to run, and the state they see. If that is what
the prediction expects, it goes on. If not (a conditional edge was decided, a node was not read, a thread was resumed),
a new one begins from there.

    tick -> front (tasks, state) -> prediction: superstep, superstep, ... -> requests, asked ahead
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from langchain_core.runnables import Runnable, RunnablePassthrough, ensure_config
from langgraph._internal._constants import CONF, CONFIG_KEY_RUNTIME, NS_END, NS_SEP, PUSH
from langgraph._internal._runnable import RunnableCallable
from langgraph.channels.named_barrier_value import NamedBarrierValue
from langgraph.constants import START
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel._loop import AsyncPregelLoop, PregelLoop

from teola_plugin.adapters.langchain.binding import Entered
from teola_plugin.adapters.langchain.models import instrument_loaded
from teola_plugin.adapters.langchain.reading import LangChainAsker
from teola_plugin.adapters.langchain.trace import trace as trace_runnable
from teola_plugin.adapters.langgraph.agents import Agents, agents_in, has_replies_streamed
from teola_plugin.adapters.langgraph.reading import Front, Graph, GraphReader, LangGraphAsker, Task, Way, interrupts
from teola_plugin.adapters.reader.asking import Request
from teola_plugin.adapters.reader.calls import compiled
from teola_plugin.adapters.reader.mentions import is_harmless, mentioned
from teola_plugin.adapters.reader.prediction import Prediction, State, acted
from teola_plugin.adapters.reader.run import Given, Run
from teola_plugin.adapters.reader.values import Unknown, isinstance_of
from teola_plugin.adapters.source import origin_of, unwrapped
from teola_plugin.graph import Graph as PGraph
from teola_plugin.seams import Reply, current, instrument
from teola_plugin.trace import Asides, Break, Reading, Traced
from teola_plugin.turns import Turn

log = logging.getLogger(__name__)


def install() -> None:
    """Let LangGraph's loop tell where it is. Idempotent."""
    instrument(PregelLoop, "tick", _telling_tick)


def _telling_tick(original: Callable[..., bool]) -> Callable[..., bool]:
    def tick(self: Any) -> bool:
        goes_on = original(self)
        if goes_on and (session := current()) is not None:
            session.observe(self.nodes, self)
        return goes_on

    return tick


def trace(graph: Any) -> Traced:
    """How to follow a compiled graph, and what starts early in it."""
    if not isinstance(graph, CompiledStateGraph) or "__root__" in graph.builder.channels:
        return Traced(PGraph((), (), ()))
    try:
        agents = agents_in(graph)
        breaks = [why for agent in agents.values() for why in agent.breaks]
        early = dict.fromkeys(tool for agent in agents.values() for tool in agent.shown)
        if not (agents or prepared(graph)):
            return Traced(PGraph((), (), ()), breaks=tuple(breaks))
        followed = Followed(graph, agents, readings_of(graph))
        return Traced(
            PGraph((), (), ()), breaks=tuple(breaks), follow=followed.follow, early=tuple(early),
            readings=tuple(followed.readings.values()),
        )  # fmt: skip
    except Exception as e:  # a graph of a kind that nobody thought of runs as it is
        log.exception("%s could not be read", graph.get_name())
        broken = Break("TB213", f"{graph.get_name()}: {type(e).__name__}: {e}")
        return Traced(PGraph((), (), ()), breaks=(broken,))


@dataclass(frozen=True)
class Followed:
    """One graph whose calls are followed. `agents`: by the `id` of the nodes of it and of the graphs in it.

    `readings`: of its nodes, by name.
    """

    graph: Graph
    agents: Mapping[int, Agents]
    readings: Mapping[str, Reading]

    def follow(self, entered: Entered) -> Following:
        """One call."""
        return Following(self, entered)


@dataclass
class Following:
    """Implements `trace.Follower` for one call: the loop it follows, and the prediction that goes ahead of it.

    `expected`: by the number of a superstep, the names of its tasks, as far as they were predicted.
    """

    followed: Followed
    entered: Entered
    loop: weakref.ref[Any] | None = None
    prediction: Prediction | None = None
    expected: dict[int, tuple[str, ...]] = field(default_factory=dict)
    loops: dict[str, weakref.ref[Any]] = field(default_factory=dict)
    """Those of graphs with tools, by their namespaces."""

    is_beside = False

    def tell(self, component: object, value: Any, asides: Asides) -> None:
        """See `trace.Follower.tell`; the value is the loop, or a turn of a model."""
        if component is Turn:
            self._hear(value, asides)
            return
        if id(component) in self.followed.agents:
            self.loops[_namespace(value.config)] = weakref.ref(value)
        if component is not self.followed.graph.nodes or (self.loop is not None and self.loop() is not value):
            return  # another graph's, or the same graph inside itself
        self.loop = weakref.ref(value)
        tasks = _tasks(value)
        if START in (task.name for task in tasks):
            return  # LangGraph still takes the input in
        names = tuple(task.name for task in tasks)
        if self.expected.get(value.step) == names:
            return
        if value.config.get("max_concurrency") is not None or has_replies_streamed(value):
            return  # only so many at a time; or the models are asked for streams, which have readers
        self._predict(value, tasks, asides)

    def _predict(self, loop: Any, tasks: tuple[Task, ...], asides: Asides) -> None:
        if self.prediction is not None:
            self.prediction.stop()
        asides.rewind()
        given = Given()
        channels = loop.channels
        held = {
            key: channels[key].get() for key in self.followed.graph.builder.channels if channels[key].is_available()
        }
        state = given.copy(held)
        tasks = tuple(Task(task.name, given.copy(task.argument)) if task.is_sent else task for task in tasks)
        joined = {
            key: frozenset(channel.seen) for key, channel in channels.items() if isinstance(channel, NamedBarrierValue)
        }
        asker = LangGraphAsker(LangChainAsker(self.entered.context, is_async=isinstance(loop, AsyncPregelLoop)))
        way = Way(
            isinstance(loop, AsyncPregelLoop),
            _config_of(loop),
            loop.config.get(CONF, {}).get(CONFIG_KEY_RUNTIME),
            interrupts(loop.interrupt_before),
            interrupts(loop.interrupt_after),
        )
        self.expected = {}
        steps = _Supersteps(
            GraphReader(self.followed.graph, asker.run_component, self.followed.readings),
            way,
            given,
            self.expected,
            loop.stop,
        )
        line = _Line(asides)
        front = Front(tasks, state, joined)
        self.prediction = Prediction(asker, line, steps.state(front, loop.step), speculates=asides.speculates)
        self.prediction.begin()

    def _hear(self, turn: Turn, asides: Asides) -> None:
        """A model is asked: by a node of which graph?"""
        around, _, task = _namespace(ensure_config()).rpartition(NS_SEP)
        loop = self.loops[around]() if around in self.loops else None
        if loop is not None:
            self.followed.agents[id(loop.nodes)].hear(turn, task.partition(NS_END)[0], loop, asides)


@dataclass(frozen=True)
class _Supersteps:
    """The program of a prediction: a graph from a front on."""

    reader: GraphReader
    way: Way
    given: Given
    expected: dict[int, tuple[str, ...]]
    stop: int

    def state(self, front: Front, number: int, counts: Any = None) -> State:
        """To be read from this front, which is superstep `number`."""

        def program(run: Run) -> State | None:
            return self._read(run, front, number)

        state = State(program, self.given)
        if counts:
            state.counts.update(counts)
        return state

    def _read(self, run: Run, front: Front, number: int) -> State | None:
        at = number
        while front.tasks and at <= self.stop:
            self.expected[at] = front.names
            after = self.reader.superstep(run, front, self.way)
            if self.reader.is_interrupted(front, after, self.way):
                return None
            front, at = after, at + 1
            if not (run.asks or run.gates or run.in_doubt):  # nothing is left open up to here
                return self.state(self._kept(front), at, run.counts)
        return None

    def _kept(self, front: Front) -> Front:
        tasks = tuple(Task(t.name, self.given.copy(t.argument)) if t.is_sent else t for t in front.tasks)
        return Front(tasks, self.given.copy(dict(front.state)), front.joined)


@dataclass(frozen=True)
class _Line:
    """Implements `prediction.Line` for a call: what is asked lands in its slots."""

    asides: Asides

    def ask(self, request: Request) -> Reply | None:
        """See `Line`."""
        if request.act is None:
            return self.asides.request(request.spec, request.op, request.payload, request.settings)
        return acted(self.asides, request)

    def soon(self, work: Callable[[], None]) -> None:
        """See `Line`."""
        self.asides.read(work)

    def spent(self, seconds: float) -> None:
        """See `Line`."""
        self.asides.spent(seconds)


def prepared(graph: Graph) -> bool:
    """Compile the functions of a graph and instrument what they use. Returns whether anything in it may be asked."""
    instrument_loaded()
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
                may_ask |= not is_harmless(value)
    return may_ask


def _functions_of(graph: Any) -> Iterator[Any]:
    """The functions of its nodes and conditional edges; a node that is no function as it is."""
    for node in graph.nodes.values():
        for component in (node.bound, *(getattr(w.func, "__self__", None) for w in node.writers if hasattr(w, "func"))):
            bound = getattr(component, "path", component)
            if type(bound) is RunnableCallable:
                yield from (f for f in (bound.func, bound.afunc) if f is not None and type(f) is not partial)
            elif isinstance(bound, Runnable) and not isinstance(bound, CompiledStateGraph | RunnablePassthrough):
                yield bound


def readings_of(graph: Graph) -> dict[str, Reading]:
    """The nodes of a graph that are functions."""
    found: dict[str, Reading] = {}
    for name, node in graph.nodes.items():
        function = getattr(node.bound, "func", None) or getattr(node.bound, "afunc", None)
        if name != START and function is not None:
            found[name] = Reading(f"{name}: {origin_of(function)}", origin_of(function))
    return found


def _tasks(loop: Any) -> tuple[Task, ...]:
    """What is about to run, in the order of its writes: nodes by name, then what was sent."""
    tasks = loop.tasks.values()
    pulled = sorted(task.name for task in tasks if task.path[0] != PUSH)
    return (*map(Task, pulled), *(Task(task.name, task.input) for task in tasks if task.path[0] == PUSH))


def _config_of(loop: Any) -> dict[str, Any]:
    """The config as a node sees it: what LangGraph and LangChain put in is not known."""
    configurable = {
        key: Unknown() if key.startswith(("__", "checkpoint_")) else value
        for key, value in loop.config.get(CONF, {}).items()
    }
    hidden = {key: Unknown() for key in ("callbacks", "metadata", "tags", "run_name", "run_id")}
    return {**hidden, "recursion_limit": loop.config.get("recursion_limit", Unknown()), CONF: configurable}


def _namespace(config: Mapping[str, Any]) -> str:
    """Where a loop, or a task of one, stands: `outer:<id>|inner:<id>`."""
    return str(config.get(CONF, {}).get("checkpoint_ns", ""))
