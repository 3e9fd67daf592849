"""Fake engines and functions for the pure layers: values depend on all that went in, writes leave traces.

An engine is its own resource. A search sees all rows of its engine at that moment, so it notices every write
that comes too early or too late. Of two primitives that write, the later one shows (`last`); items of one
primitive commute.

Functions go by their names: `list_*` gives some items, `is_*` a truth, `touch*` writes to every engine, all
else a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from zlib import crc32

from teola_plugin.graph import Graph, Input
from teola_plugin.plan import make_plan
from teola_plugin.runtime.session.graph_scheduler import Closed, Event, Fragment, GraphScheduler
from tests.support.interpret import EngineFunction, interpret, run_instance

READS = ("searching",)
WRITES = ("ingestion", "tool")


class World:
    """The engines of one run; `rows` is the state that they are in."""

    def __init__(self, graph: Graph) -> None:
        self.rows: dict[str, dict[str, str]] = {p.engine: {} for p in graph if p.engine and (p.reads or p.writes)}
        self.engines: dict[str, EngineFunction] = {p.engine: self._engine(p.engine) for p in graph}
        names = {p.setting("fn") for p in graph} - {None}
        self.functions: dict[str, Callable[..., Any]] = {name: self._function(name) for name in names}

    def _engine(self, name: str) -> EngineFunction:
        def call(op: str, payload: Any, settings: Mapping[str, Any]) -> str:
            if op in WRITES:
                self._write(name, payload, settings.get("by", ""))
            seen = sorted(self.rows.get(name, {}).items()) if op in READS else ()
            return _decoded(payload) if op == "decoding" else _text(op, payload, sorted(settings.items()), seen)

        return call

    def _function(self, name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if name.startswith("touch"):
                for engine in self.rows:
                    self._write(engine, args, name)
            if name.startswith("list_"):
                return [_text(name, args, i) for i in range(_number(args) % 4)]
            if name.startswith("is_"):
                return _number(name, args) % 2 == 0
            return _text(name, args)

        return call

    def _write(self, engine: str, payload: Any, by: str) -> None:
        self.rows[engine] |= {repr(payload): by, "last": by}


def _decoded(prompt: Any) -> str:
    number = _number(prompt)
    return "\n".join(f"line {i} of {number}" for i in range(number % 4))


def _text(*parts: Any) -> str:
    return f"{parts[0]}<{_number(*parts)}>"


def _number(*parts: Any) -> int:
    return crc32(repr(parts).encode())


def some_inputs(graph: Graph, items: int) -> dict[str, Any]:
    """A value for each input; lists have `items` items, lists of lists fewer and fewer."""

    def value(i: Input, depth: int, items: int, label: str) -> Any:
        if depth == 0:
            return label
        return [value(i, depth - 1, max(0, items - at), f"{label}{at}") for at in range(items)]

    return {i.name: value(i, i.depth, items, i.name) for i in graph.inputs}


def run_in_order(graph: Graph, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """Outputs and final state, as the interpreter has them."""
    world = World(graph)
    return interpret(graph, inputs, world.engines, world.functions), world.rows


def run_in_any_order(
    graph: Graph, inputs: Mapping[str, Any], choose: Callable[[int], int]
) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """Outputs and final state when instances run one by one, in an order that `choose(how many)` picks.

    All ready instances compete, and the items of a partial decoding arrive one by one among them.
    """
    world, plan = World(graph), make_plan(graph)
    scheduler = GraphScheduler(plan, inputs)
    waiting: list[Callable[[], list[Event]]] = []

    def add(requests: Any) -> None:
        for ready in requests:
            for tag, args in zip(ready.tags, ready.args, strict=True):
                waiting.append(lambda p=ready.primitive, t=tag, a=args: run(p, t, a))

    def run(p: Any, tag: Any, args: Any) -> list[Event]:
        made = run_instance(p, args, world.engines, world.functions)
        if not plan.yields[p.name]:
            return [Fragment(p.name, tag, None if p.kind == "ingestion" else made)]
        items: list[Event] = [Fragment(p.name, (*tag, i), item) for i, item in enumerate(made)]
        events = [*items, Closed(p.name, tag, len(items))]
        if p.kind != "partial_decoding":
            return events
        hand_out(events)
        return []

    def hand_out(events: list[Event]) -> None:
        def first() -> list[Event]:
            if len(events) > 1:
                hand_out(events[1:])
            return events[:1]

        waiting.append(first)

    add(scheduler.start())
    while waiting:
        events = waiting.pop(choose(len(waiting)))()
        if events:
            add(scheduler.apply(events))
    assert scheduler.is_done
    values = {}
    for name in graph.outputs:
        try:
            values[name] = scheduler.value(name)
        except KeyError:  # skipped
            continue
    return values, world.rows
