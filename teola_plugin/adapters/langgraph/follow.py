"""LangGraph's run, followed from superstep to superstep: where it goes is known for certain only when it gets there.

Each `tick` of LangGraph's loop tells the session which nodes are about to run, and the state they see. If that is what
the run-ahead expects, it goes on. If not (a conditional edge was decided, a loop turns, a thread was resumed), what may
run ahead from there begins anew. What follows from a front is worked out once, the first time beside the call.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from langchain_core.runnables import ensure_config
from langgraph._internal._constants import NS_END, NS_SEP, PUSH
from langgraph.channels.named_barrier_value import NamedBarrierValue
from langgraph.constants import START
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel._io import read_channels
from langgraph.pregel._loop import PregelLoop

from teola_plugin.adapters.langchain.binding import Entered
from teola_plugin.adapters.langgraph.agents import agents_in, has_replies_streamed
from teola_plugin.adapters.langgraph.supersteps import (
    Front,
    Graph,
    Names,
    Stretch,
    asks,
    first_front,
    interrupts,
    trace_from,
)
from teola_plugin.graph import Graph as PGraph
from teola_plugin.seams import current, instrument
from teola_plugin.trace import Asides, Break, Traced
from teola_plugin.turns import Turn

log = logging.getLogger(__name__)

MAX_FRONTS = 64
"""So many fronts of a graph are kept; a graph that comes to more is left to LangGraph from there on."""


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
    """What comes first in a compiled graph, and how to go on from there."""
    if not isinstance(graph, CompiledStateGraph) or "__root__" in graph.builder.channels:
        return Traced(PGraph((), (), ()))
    try:
        fronts = Fronts(graph)
        traced, agents = fronts.first.traced, fronts.agents.values()
        breaks = [why for agent in agents for why in agent.breaks]
        early = dict.fromkeys(tool for agent in agents for tool in agent.shown)
        first = replace(traced, breaks=(*traced.breaks, *breaks), early=tuple(early))
        return replace(first, follow=fronts.follow) if agents or asks(graph) else first
    except Exception as e:  # a graph of a kind that nobody thought of runs as it is
        log.exception("%s could not be read", graph.get_name())
        broken = Break("TB213", f"{graph.get_name()}: {type(e).__name__}: {e}")
        return Traced(PGraph((), (), ()), breaks=(broken,))


class Fronts:
    """What may run ahead from each front of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.first = trace_from(graph, first := first_front(graph))
        self.agents = agents_in(graph)
        self._known: dict[Front, Stretch | None] = {first: self.first}

    def stretch(self, front: Front) -> Stretch | None:
        """What follows from a front, or None while that is not known."""
        if front not in self._known and len(self._known) < MAX_FRONTS:
            self._known[front] = None
            learn = partial(copy_context().run, self._learn, front)  # what is assumed pure is assumed there too
            threading.Thread(target=learn, name="teola-trace", daemon=True).start()
        return self._known.get(front)

    def _learn(self, front: Front) -> None:
        try:
            self._known[front] = trace_from(self.graph, front)
        except Exception:  # a fault of ours is never the user's; nothing runs ahead from there
            log.exception("what follows from %s could not be told", ", ".join(sorted(front.nodes)))

    def follow(self, entered: Entered) -> Following:
        """One call."""
        return Following(self, entered)


@dataclass
class Following:
    """Implements `trace.Follower` for one call: the loop it follows, and the supersteps that the run-ahead covers."""

    fronts: Fronts
    entered: Entered
    loop: weakref.ref[Any] | None = None
    expected: list[Names] = field(default_factory=list)
    loops: dict[str, weakref.ref[Any]] = field(default_factory=dict)
    """Those of graphs with tools, by their namespaces."""

    is_beside = False  # a new front takes the place of the last

    def tell(self, component: object, value: Any, asides: Asides) -> tuple[Traced, Mapping[str, Any]] | None:
        """See `trace.Follower.tell`; the value is the loop, or a turn of a model."""
        if component is Turn:
            self._hear(value, asides)
            return None
        if id(component) in self.fronts.agents:
            self.loops[_namespace(value.config)] = weakref.ref(value)
        if component is not self.fronts.graph.nodes or (self.loop is not None and self.loop() is not value):
            return None  # another graph's, or the same graph inside itself
        self.loop = weakref.ref(value)
        nodes = frozenset(task.name for task in value.tasks.values())
        if START in nodes:
            return None  # LangGraph still takes the input in
        if self.expected and self.expected[0] == nodes:
            del self.expected[0]
            return None
        self.expected = []
        if value.config.get("max_concurrency") is not None or any(
            task.path[0] == PUSH for task in value.tasks.values()
        ):
            return None  # only so many at a time, or a node with an input of its own (Send)
        stretch = self.fronts.stretch(_front(value, nodes))
        if stretch is None or value.stop - value.step < len(stretch.steps) - 1:
            return None
        self.expected = list(stretch.steps[1:])
        state = read_channels(value.channels, list(self.fronts.graph.builder.channels))
        entered = replace(self.entered, value=state)  # `bind` copies: nodes and reducers may change it in place
        if has_replies_streamed(value):
            entered = replace(entered, mode="events")
        return stretch.traced, stretch.traced.bind(entered)

    def _hear(self, turn: Turn, asides: Asides) -> None:
        """A model is asked: by a node of which graph?"""
        around, _, task = _namespace(ensure_config()).rpartition(NS_SEP)
        loop = self.loops[around]() if around in self.loops else None
        if loop is not None:
            self.fronts.agents[id(loop.nodes)].hear(turn, task.partition(NS_END)[0], loop, asides)


def _namespace(config: Mapping[str, Any]) -> str:
    """Where a loop, or a task of one, stands: `outer:<id>|inner:<id>`."""
    return str(config.get("configurable", {}).get("checkpoint_ns", ""))


def _front(loop: Any, nodes: Names) -> Front:
    joined = frozenset(
        (key, node)
        for key, channel in loop.channels.items()
        if isinstance(channel, NamedBarrierValue)
        for node in channel.seen
    )
    return Front(nodes, joined, interrupts(loop.interrupt_before), interrupts(loop.interrupt_after))
