"""The supersteps of a state graph, run symbolically: which nodes come next, and what each sees of the state.

LangGraph shows the writes of a superstep when its slowest node has ended. But a node reads certain keys, and each of
these is known as soon as the node that wrote it has ended:

    a -> b -> d          superstep 2 is {b, c}, superstep 3 is {d}; d reads what b wrote, so it can run ahead of c
      -> c -> e

So from a *front* (the nodes that LangGraph is about to run) the tracer goes on, superstep by superstep, while it is
certain which nodes follow: up to a conditional edge, a node that runs for the second time, or an interrupt. There the
next front is revealed by LangGraph's own run (see follow.py).
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

from langgraph._internal._runnable import RunnableCallable
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.ephemeral_value import EphemeralValue
from langgraph.channels.last_value import LastValue
from langgraph.channels.named_barrier_value import NamedBarrierValue
from langgraph.constants import START
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel._write import ChannelWrite, ChannelWriteEntry

from teola_plugin.adapters.langchain.binding import ABSENT
from teola_plugin.adapters.langchain.functions import trace_function
from teola_plugin.adapters.langchain.trace import Tracer, asked_by
from teola_plugin.adapters.langchain.values import Constant, Record, Root, Symbol, Untraceable, Value
from teola_plugin.adapters.langgraph.returned import returned_keys
from teola_plugin.adapters.plain import has_own_code, is_plain
from teola_plugin.adapters.purity import effects_of
from teola_plugin.trace import Traced

Graph = CompiledStateGraph[Any, Any, Any, Any]
Names = frozenset[str]

ALL = frozenset({"*"})
"""Interrupts at every node."""


@dataclass(frozen=True, slots=True)
class Front:
    """Where a run stands: the nodes that are about to run, who has come to which join, and where it will interrupt."""

    nodes: Names
    joined: frozenset[tuple[str, str]] = frozenset()
    stops_before: Names = frozenset()
    stops_after: Names = frozenset()


@dataclass(frozen=True, slots=True)
class Stretch:
    """What may run ahead from a front: the p-graph, and the nodes of each superstep it covers."""

    traced: Traced
    steps: tuple[Names, ...]


def trace_from(graph: Graph, front: Front) -> Stretch:
    """What follows from a front, as far as that is certain. Never runs the user's code."""
    return _Steps(graph, front).trace()


def first_front(graph: Graph) -> Front:
    """The nodes that a fresh input leads to, where no condition decides that."""
    before, after = map(interrupts, (graph.interrupt_before_nodes, graph.interrupt_after_nodes))
    following = _following(graph, frozenset({START}), frozenset())
    return Front(following.nodes if following.are_all else frozenset(), frozenset(), before, after)


def asks(graph: Graph) -> bool:
    """Some node may run ahead and asks an engine."""
    return bool(_Steps(graph, Front(frozenset(graph.nodes) - {START})).trace_apart().engines)


def interrupts(nodes: str | Iterable[str] | None) -> Names:
    """Where to interrupt, as LangGraph takes it: names, or "*"."""
    return frozenset([nodes] if isinstance(nodes, str) else nodes or ())


class _Following(NamedTuple):
    """The nodes of the next superstep, as far as they are certain, and who has come to which join by then.

    `are_all`: there are no others. `is_decided`: nothing that takes its time, or may refuse to go on, runs before it.
    """

    nodes: Names
    joined: frozenset[tuple[str, str]]
    are_all: bool
    is_decided: bool


def _following(graph: Graph, nodes: Names, joined: frozenset[tuple[str, str]]) -> _Following:
    found: set[str] = set()
    come = set(joined)
    are_all = is_decided = True
    for name in sorted(nodes):
        for writer in graph.nodes[name].writers:
            if not isinstance(writer, ChannelWrite):
                are_all = False  # a conditional edge
                is_decided &= _is_swift(writer)
                continue
            for entry in writer.writes:
                if not isinstance(entry, ChannelWriteEntry):
                    are_all &= not getattr(entry, "static", None)  # it may return a Command
                    continue
                channel = graph.channels[entry.channel]
                targets = graph.trigger_to_nodes.get(entry.channel, ())
                if type(channel) is NamedBarrierValue:
                    come.add((entry.channel, entry.value))
                elif type(channel) is EphemeralValue:
                    found.update(targets)
                else:
                    are_all = False  # a deferred node
    for key, channel in graph.channels.items():
        if isinstance(channel, NamedBarrierValue) and channel.names <= {node for join, node in come if join == key}:
            found.update(graph.trigger_to_nodes.get(key, ()))
            come = {(join, node) for join, node in come if join != key}
    return _Following(frozenset(found), frozenset(come), are_all, is_decided)


def _is_swift(edge: Any) -> bool:
    """What decides a conditional edge only computes."""
    path = getattr(getattr(edge.func, "__self__", None), "path", None)
    return type(path) is RunnableCallable and path.func is not None and effects_of(path.func).pure


Lazy = Callable[[], Symbol]
"""What a key holds, put into the graph once somebody reads it."""


@dataclass
class _Steps:
    """The supersteps from a front on. `rest`: what the state was there; None for a graph that begins with nothing.

    `certain`: keys that were written for certain. `passed`: by node, keys that it may just have passed on, if they were
    there. `optional`: keys that a graph inside another one was given, if they were there. `is_open`: others may run as
    well, or later.
    """

    graph: Graph
    front: Front
    tracer: Tracer = field(default_factory=lambda: Tracer(streams=False))
    rest: Root | None = field(default_factory=Root)
    written: dict[str, Lazy] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    steps: list[Names] = field(default_factory=list)
    results: dict[str, Symbol] = field(default_factory=dict)
    certain: set[str] = field(default_factory=set)
    passed: dict[str, set[str]] = field(default_factory=dict)
    optional: set[str] = field(default_factory=set)
    is_open: bool = False

    @property
    def draft(self) -> Any:
        return self.tracer.draft

    def trace(self) -> Stretch:
        self.run(is_running=True)
        return Stretch(self.draft.traced(Record(self.results)), tuple(self.steps))

    def run(self, *, is_running: bool) -> None:
        """Go on while it is certain which nodes follow. `is_running`: the framework runs those of the front now."""
        nodes, joined, stops = self.front.nodes, self.front.joined, self.front.stops_before
        while nodes:
            if self.is_open or nodes & self.results.keys() or (self.steps and _meets(nodes, stops)):
                self.is_open = True
                return
            self._superstep(nodes, is_running=is_running and not self.steps)
            if _meets(nodes, self.front.stops_after):
                self.is_open = True
                return
            nodes, joined, are_all, is_decided = _following(self.graph, nodes, joined)
            if not are_all:
                self.is_open = True
                if nodes and is_decided and not (nodes & self.results.keys() or stops):
                    self._superstep(nodes, is_running=False)  # beside others; what these read is written already

    def trace_apart(self) -> Traced:
        """The nodes of the front as if each ran at some later time."""
        self._superstep(self.front.nodes, is_running=False)
        traced: Traced = self.draft.traced(Record(self.results))
        return traced

    def _superstep(self, nodes: Names, *, is_running: bool) -> None:
        results: dict[str, Symbol] = {}
        with self.draft.side_by_side() as branch:
            for name in sorted(nodes):  # the order in which LangGraph applies writes
                branch()
                results[name] = self._node(name, is_running=is_running)
        updates: dict[str, list[tuple[Lazy, bool]]] = {}
        for name, result in results.items():
            for key, update, is_certain in self._updates(name, result):
                updates.setdefault(key, []).append((update, is_certain))
        for key, writes in updates.items():
            self._write(key, writes)
        self.steps.append(nodes)
        self.results |= results

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _node(self, name: str, *, is_running: bool) -> Symbol:
        node = self.graph.nodes[name]
        component = node.bound
        channels = [node.channels] if isinstance(node.channels, str) else node.channels
        fields = _Fields({k: partial(self._present, k) for k in channels if k in self.written})
        given = Record(fields, self.rest, partial(self._whole, tuple(channels)))

        def read() -> Symbol:
            if node.cache_policy or self.graph.cache_policy:
                raise Untraceable("TB103", "its results are cached")
            if not isinstance(component, RunnableCallable):
                if self.unknown.intersection(channels):
                    raise Untraceable("TB120", ", ".join(sorted(self.unknown.intersection(channels))))
                if node.mapper is not None:
                    raise Untraceable("TB108", "the state is no dict")
                if isinstance(component, CompiledStateGraph):
                    return self._subgraph(name, component, is_running=is_running)
                return self.tracer.trace(component, given, name)
            if type(component) is not RunnableCallable or component.kwargs or component.explode_args:
                raise Untraceable("TB102", type(component).__name__)
            if component.func_accepts:
                raise Untraceable("TB101", f"it takes the run's {', '.join(component.func_accepts)}")
            return trace_function(
                self.draft, component, _function(component), given, name, asked_by,
                prepare=_preparation(node.mapper), is_running=is_running,
                unknown=frozenset(self.unknown.intersection(channels)), check=_update,
            )  # fmt: skip

        return self.tracer.attempt(read, component, given, name)

    def _subgraph(self, name: str, graph: Graph, *, is_running: bool) -> Record:
        """What a graph inside this one returns, if that is certain. Raises: Untraceable."""
        front, schemas = first_front(graph), graph.builder.schemas
        if graph.checkpointer or graph.cache_policy or "__root__" in graph.builder.channels:
            raise Untraceable("TB121", "it has a checkpointer or a cache of its own, or a state without keys")
        inner = _Steps(graph, front, self.tracer, rest=None)
        for key in schemas[graph.builder.input_schema]:
            if key in self.graph.builder.channels and (self.rest or key in self.written):
                inner.written[key] = self._held(key)
                if key not in self.written or key in self.optional:
                    inner.optional.add(key)
        inner.run(is_running=is_running)
        if inner.is_open or inner.unknown or not inner.steps:
            raise Untraceable("TB121", "what it does is decided while it runs")
        self.passed[name] = inner.written.keys() - inner.certain
        return Record(_Fields({k: w for k, w in inner.written.items() if k in schemas[graph.builder.output_schema]}))

    def _updates(self, name: str, result: Symbol) -> Iterator[tuple[str, Lazy, bool]]:
        """The keys that a node writes, what, and whether that is certain: else it may turn out to be ABSENT."""
        keys = self.graph.builder.channels
        if isinstance(result, Record) and result.rest is None:
            passed = self.passed.get(name, ())
            for key in (key for key in result.fields if key in keys):
                yield key, partial(result.fields.__getitem__, key), key not in passed
            return
        value = self.draft.value(result, name)
        bound = self.graph.nodes[name].bound
        written = returned_keys(_function(bound)) if isinstance(bound, RunnableCallable) else None
        for key in keys:
            if written is None or key in written.sometimes:
                yield key, partial(self._get, value, key), False
            elif key in written.always:
                yield key, partial(self.draft.field, value, key), True

    def _get(self, value: Value, key: str) -> Symbol:
        def get(written: Any) -> Any:
            return written.get(key, ABSENT) if isinstance(written, dict) else ABSENT

        made: Symbol = self.draft.call(key, f"get_{key}", get, value, identity=("written", key), is_total=True)
        return made

    # --- the state ---------------------------------------------------------------------------------------------------

    def _present(self, key: str) -> Symbol:
        """What a key holds, for somebody who cannot do without."""
        symbol = self.written[key]()
        if key not in self.optional:
            return symbol
        made: Symbol = self.draft.call(
            key, "present", _present, self.draft.value(symbol), identity="present", is_total=True
        )
        return made

    def _write(self, key: str, updates: list[tuple[Lazy, bool]]) -> None:
        channel = self.graph.channels[key]
        self.optional.discard(key)
        if type(channel) is LastValue and [is_certain for _, is_certain in updates] == [True]:
            self.written[key] = _once(updates[0][0])
            self.certain.add(key)
        elif type(channel) is LastValue or (type(channel) is BinaryOperatorAggregate and _is_pure(channel.operator)):
            merged = partial(self._merged, key, self._held(key), [update for update, _ in updates])
            self.written[key] = _once(merged)
        else:
            self.unknown.add(key)

    def _held(self, key: str) -> Lazy:
        """What the state has under a key, or ABSENT."""
        if key in self.written:
            return self.written[key]
        return partial(self.draft.bindings.optional, key) if self.rest else lambda: Constant(ABSENT)

    def _whole(self, keys: tuple[str, ...]) -> Value:
        """The state as a node sees it."""

        def made(*values: Any) -> dict[str, Any]:
            return {key: value for key, value in zip(keys, values, strict=True) if value is not ABSENT}

        args = [self.draft.value(self._held(key)(), key) for key in keys]
        whole: Value = self.draft.call("state", "state", made, *args, identity=("state", keys), is_total=True)
        return whole

    def _merged(self, key: str, before: Lazy, updates: list[Lazy]) -> Symbol:
        """What LangGraph's own channel makes of the updates of one superstep.

        On copies: a reducer may change its arguments (`add_messages` gives messages their ids), and other primitives
        have the same values.
        """
        channel: Any = self.graph.channels[key]
        args = [self.draft.value(get(), key) for get in (before, *updates)]

        def merge(old: Any, *updates: Any) -> Any:
            known = [update for update in updates if update is not ABSENT]
            if not all(map(is_plain, known)):
                raise LookupError("an update is no plain data")
            made = channel.copy() if old is ABSENT else channel.from_checkpoint(copy.deepcopy(old))
            made.update(copy.deepcopy(known))
            return made.get()

        is_glue = getattr(channel, "operator", operator.add) in _SWIFT
        made: Symbol = self.draft.call(key, f"update_{key}", merge, *args, is_glue=is_glue)
        return made


class _Fields(Mapping[str, Symbol]):
    def __init__(self, held: Mapping[str, Lazy]) -> None:
        self._held = held

    def __getitem__(self, key: str) -> Symbol:
        return self._held[key]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


def _update(value: Any) -> Any:
    """The update of the state that a node returned. Raises: LookupError for what is none, or a `Command`."""
    if value is not None and not isinstance(value, dict):
        raise LookupError(f"a node returned a {type(value).__name__}")
    return value


def _present(value: Any) -> Any:
    if value is ABSENT:
        raise LookupError("the state has no such key")
    return value


def _function(component: RunnableCallable) -> Callable[..., Any]:
    function: Any = component.func or component.afunc
    return cast(Callable[..., Any], function)


def _once(make: Lazy) -> Lazy:
    made: list[Symbol] = []

    def get() -> Symbol:
        if not made:
            made.append(make())
        return made[0]

    return get


def _meets(nodes: Names, stops: Names) -> bool:
    return stops == ALL or not stops.isdisjoint(nodes)


def _preparation(mapper: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """What makes an object of the state, if it is one. Raises: Untraceable."""
    schema = getattr(mapper, "args", (None,))[0]
    if mapper is not None and (schema is None or has_own_code(schema)):
        raise Untraceable("TB101", "its state has code of its own")
    return mapper


_SWIFT = (operator.add, operator.or_)
"""Reducers that may run on the thread of the schedulers; others are the user's, or copy messages."""


def _is_pure(reducer: Any) -> bool:
    return reducer is add_messages or reducer in _SWIFT or effects_of(reducer).pure
