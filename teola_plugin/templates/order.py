"""Topological order of branches: each comes after the branches whose values it takes.

[searching, expansion]  ->  expansion, searching          searching takes the queries
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence

from teola_plugin.errors import GraphError
from teola_plugin.templates.flow import Branches, Chain, Component, Condition, Loop, Step, as_step, components, names_of
from teola_plugin.templates.options import Takes

Needs = Callable[[Component], Iterable[Takes]]
"""The inputs of a component, as configured."""


def in_order(ways: Sequence[Step], there: Container[str], needs: Needs) -> Iterator[Step]:
    """Yield the branches, otherwise in written order. `there`: names of values available before all branches.

    Raises: GraphError if branches take values from one another.
    """
    waiting = list(ways)
    while waiting:
        free = (way for way in waiting if not _takes_from([w for w in waiting if w is not way], way, there, needs))
        ready = next(free, None)
        if ready is None:
            names = ", ".join(repr(next(components(way)).name) for way in waiting)
            raise GraphError(f"a cycle: the branches that begin with {names} take from one another")
        waiting.remove(ready)
        yield ready


def _takes_from(others: Sequence[Step], way: Step, there: Container[str], needs: Needs) -> bool:
    given = {name for other in others for c in components(other) for name in c.outputs.values()}
    own = {name for c in components(way) for name in c.outputs.values()}
    for names in _taken(way, needs):
        first = next((n for n in names if n in own or n in given or n in there), None)
        if first in given and first not in own and first not in there:
            return True
    return False


def _taken(step: Step, needs: Needs) -> Iterator[tuple[str, ...]]:
    """Yield the names of all inputs of a step, its own values included."""
    match as_step(step):
        case Component() as component:
            yield from (takes.names for takes in needs(component))
        case Chain(steps=parts) | Branches(ways=parts):
            for part in parts:
                yield from _taken(part, needs)
        case Condition(of=of, then=then, otherwise=otherwise):
            yield from ((name,) for name in names_of(of))
            yield from _taken(then, needs)
            if otherwise is not None:
                yield from _taken(otherwise, needs)
        case Loop(of=of, body=body):
            yield from ((name,) for name in names_of(of))
            yield from _taken(body, needs)
