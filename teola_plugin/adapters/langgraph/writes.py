"""The writes of a node's value to the state of a graph, and the state after them.

Writes are applied as by LangGraph: in the order of tasks, with the graph's own reducers, which are interpreted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import add
from typing import Any

from langgraph._internal._constants import OVERWRITE
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.ephemeral_value import EphemeralValue
from langgraph.channels.last_value import LastValue
from langgraph.graph.message import add_messages
from langgraph.types import Command, Overwrite, Send

from teola_plugin.adapters.langgraph.front import NOTHING, Graph
from teola_plugin.adapters.reader import classes, records
from teola_plugin.adapters.reader.calls import call
from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Barrier, Perhaps, Stalled, Undecided, Unknown

Update = tuple[str, Any]

ROOT = "__root__"
"""The key of a state that is one value, as of `StateGraph(dict)`: each node gets the value itself and may change it."""


class Open(Stalled):
    """A node and its edge were read to the end, and the successors depend on unknown values."""


KEEPING = (add, add_messages)
"""Reducers that change neither of their arguments."""

KEPT = (LastValue, BinaryOperatorAggregate, EphemeralValue)
"""Kinds of channels with known values. An `EphemeralValue` lasts one superstep."""


def updates_of(run: Run, value: Any, keys: Sequence[str]) -> Iterator[Update]:
    """Yield the writes of a node's value under these keys. Raises: Stalled, Barrier."""
    kind = type(value)
    if tuple(keys) == (ROOT,):
        yield from _whole(run, value)
    elif (items := run.open_items(value)) is not None:
        yield from ((key, each) for key, each in items.items() if key in keys)
    elif run.is_unknown(value):
        raise Stalled("what a node returns is not known yet")
    elif kind is dict:
        yield from ((key, each) for key, each in value.items() if key in keys)
    elif kind is Command:
        if value.graph is not None:
            raise Barrier("a Command goes to another graph")
        yield from ((key, each) for key, each in _pairs(run, value.update) if key in keys)
    elif kind in (list, tuple) and any(type(each) is Command for each in value):
        for each in value:
            yield from updates_of(run, each, keys)
    elif value is not None:
        yield from _fields(value, keys)


def _whole(run: Run, value: Any) -> Iterator[Update]:
    """Yield the write of a node's value as the state. Raises: Stalled, Barrier."""
    if type(value) is Unknown and run.open_items(value) is None:
        raise Stalled("what a node returns is not known yet")
    parts = value if type(value) in (list, tuple) else [value]
    if any(type(each) is Command and (each.graph or each.update) is not None for each in parts):
        raise Barrier("a Command writes to a state without keys")
    if not any(type(each) is Command for each in parts):
        if value is not None:
            yield ROOT, value
    elif len(parts) > 1:
        raise Barrier("several Commands write to a state without keys")


def _pairs(run: Run, update: Any) -> Iterator[Update]:
    """Yield the writes of a Command's update. Raises: Stalled, Barrier."""
    if run.is_unknown(update):
        raise Stalled("what a Command writes is not known yet")
    if type(update) is dict:
        yield from update.items()
    elif type(update) in (list, tuple) and all(type(each) is tuple and len(each) == 2 for each in update):
        for key, value in update:
            if type(key) is not str:
                raise Barrier("a Command writes under what is no key")
            yield key, value
    elif update is not None:
        raise Barrier("a Command writes what is no dict")


def _fields(value: Any, keys: Sequence[str]) -> Iterator[Update]:
    """Yield the writes of an object. LangGraph leaves out fields of a pydantic model with the default None."""
    cls, fields = type(value), classes.fields_of(value)
    if fields is None or not any("__annotations__" in classes.namespace_of(each) for each in classes.mro_of(cls)):
        raise Barrier("a node returns what is no update of the state", hint="return a dict")
    is_model = facts_of(cls).is_model
    kept = records.model_slot(value, "__pydantic_fields_set__") if is_model else ()
    defaults = classes.in_mro(cls, "__pydantic_fields__") if is_model else {}
    for key in keys:
        if key not in fields:
            if classes.in_mro(cls, key) is not classes.MISSING:
                raise Barrier(f"a node returns an object that computes {key}")
            continue
        default = defaults[key].default if key in defaults else NOTHING
        if fields[key] is not None or default is not None or key in kept:
            yield key, fields[key]


def gotos_of(run: Run, value: Any) -> Iterator[Any]:
    """Yield the targets of a node's value: names and `Send`s. Raises: Stalled."""
    if type(value) is Send:
        yield value
        return
    for each in value if type(value) in (list, tuple) else [value]:
        if type(each) is Command:
            yield from targets_of(run, each.goto)


def targets_of(run: Run, chosen: Any) -> list[Any]:
    """Return the chosen targets as a list. Raises: Stalled."""
    several = chosen if type(chosen) in (list, tuple) else [chosen]
    if run.is_unknown(chosen) or any(map(run.is_unknown, several)):
        raise Open("where it goes is not known yet")
    return list(several)


def applied(
    run: Run, graph: Graph, state: Mapping[str, Any], updates: Sequence[Update], only: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the state after these updates; `only`: the keys of interest. Raises: Barrier, errors of a reducer."""
    by_key: dict[str, list[Any]] = {}
    for key, value in updates:
        if only is None or key in only:
            by_key.setdefault(key, []).append(value)
    after = {key: value for key, value in state.items() if type(graph.channels.get(key)) is not EphemeralValue}
    for key, values in by_key.items():
        channel = graph.channels.get(key)
        if any(type(each) is Perhaps for each in (*values, after.get(key))):
            after[key] = _perhaps_written(run, key, channel, after.get(key, NOTHING), values)
        elif type(channel) in (LastValue, EphemeralValue):
            if len(values) != 1:
                raise Barrier(f"two nodes write {key}", hint="give it a reducer: Annotated[..., operator.add]")
            after[key] = values[0]
        elif type(channel) is BinaryOperatorAggregate:
            after[key] = _reduced(run, key, channel, after.get(key, NOTHING), values)
    return after


def _perhaps_written(run: Run, key: str, channel: Any, held: Any, values: Sequence[Any]) -> Any:
    """Return the value of a channel that may not have been written before, or may not be written now."""
    if type(channel) is BinaryOperatorAggregate and len(values) > 1:
        if any(_may_overwrite(each.value if type(each) is Perhaps else each) for each in values):
            raise Barrier(f"it overwrites {key}")
        for each in values:
            held = _perhaps_written(run, key, channel, held, [each])
        return held
    if len(values) != 1 or type(channel) not in (LastValue, BinaryOperatorAggregate):
        raise Stalled(f"it is not known whether {key} is written")
    is_written, is_held = type(values[0]) is not Perhaps, held is not NOTHING and type(held) is not Perhaps
    value = values[0] if is_written else values[0].value
    before = held.value if type(held) is Perhaps else held
    after = value
    if type(channel) is BinaryOperatorAggregate:
        is_known = type(held) is not Perhaps and any(channel.operator is each for each in KEEPING)
        after = _reduced(run, key, channel, held, [value]) if is_known else run.unknown(value, before)
    if not is_written and before is not NOTHING:
        after = run.joined(before, after)
    return after if is_written or is_held else Perhaps(after)


def _reduced(run: Run, key: str, channel: BinaryOperatorAggregate[Any], held: Any, values: list[Any]) -> Any:
    if any(map(_may_overwrite, values)):
        raise Barrier(f"it overwrites {key}")
    if held is NOTHING:
        held, values = values[0], values[1:]
    operator = run.load(channel.operator)
    for value in values:
        try:
            held = call(run, operator, (held, value), {})
        except Undecided:
            held = run.unknown(held, value)
    return held


def _may_overwrite(value: Any) -> bool:
    """Whether LangGraph may take the value for an `Overwrite`."""
    return type(value) is Overwrite or (
        type(value) is dict and (OVERWRITE in value or {"type", "value"} <= value.keys())
    )
