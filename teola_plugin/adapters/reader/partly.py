"""Values with unknown parts, as inputs of components."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from teola_plugin.adapters.reader import foreign, records
from teola_plugin.adapters.reader.heap import sources_of, without_number
from teola_plugin.adapters.reader.run import Met, Run
from teola_plugin.adapters.reader.values import Opaque, Unknown, isinstance_of


def unknowns_in(run: Run, value: Any) -> Iterator[Any]:
    """Yield the unknown parts of a value."""
    todo, seen = [value], set[int]()
    while todo:
        value = todo.pop()
        if foreign.is_atom(value) or id(value) in seen:
            continue
        seen.add(id(value))
        run.tick()
        if run.is_unknown(value):
            yield value
        elif foreign.is_one_of(type(value), (list, tuple, set, frozenset)):
            todo += value
        elif type(value) is dict:
            todo += value.values()
        elif not isinstance_of(value, Opaque):
            todo += (records.fields_of(value) or {}).values()


def unknown_from(
    run: Run, value: Any, holds: str | type, *, is_safe: bool, more: frozenset[Hashable] = frozenset()
) -> Unknown:
    """Return the unknown result of a component for a value with unknown parts.

    Unless `is_safe`, the component may raise.
    """
    found = list(unknowns_in(run, value))
    of_input: frozenset[Hashable] = frozenset().union(*map(sources_of, found))
    source = next(iter(more), None)
    run.met.append(Met(source, (without_number(source), run.site), unknown=of_input))
    sources = more | of_input
    if not is_safe:
        run.raises(sources)
    return Unknown(holds, sources)
