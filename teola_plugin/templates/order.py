"""Branches in an order in which each comes after those that it takes values from.

[searching, expansion]  ->  expansion, searching          which takes its queries
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence

from teola_plugin.errors import GraphError
from teola_plugin.templates.flow import Branches, Chain, Component, Condition, Loop, Step, as_step, components, names_of
from teola_plugin.templates.options import Takes

Needs = Callable[[Component], Iterable[Takes]]
"""What a component takes, as it is configured."""


def in_order(ways: Sequence[Step], there: Container[str], needs: Needs) -> Iterator[Step]:
    """The branches, otherwise as they are written. `there`: names of values that come before all of them.

    Raises: GraphError if some take from one another.
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
    """The names of all that a step takes, its own values among them."""
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
