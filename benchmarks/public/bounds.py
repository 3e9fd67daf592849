"""How fast an application could be: the longest path through the requests of one of its runs.

A request depends on the earlier ones whose marks it contains (that is data), on those that its table names (a router or
a guard reads their reply; or their reply leaves no mark, such as a vector), and on what these depend on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from public.server import Asked


@dataclass(frozen=True)
class Needs:
    """`stages`: the name of a request by a marker in its text, the first that fits; else its kind. `after`: the stages
    all of whose earlier requests one of a stage waits for. A stage without an entry waits for all that came before."""

    stages: tuple[tuple[str, str], ...] = ()
    after: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def stage(self, asked: Asked) -> str:
        if asked.kind != "chat":
            return asked.kind
        return next((stage for marker, stage in self.stages if marker in asked.text), asked.kind)


NEEDS: dict[str, Needs] = {}


def bound_s(name: str, asked: Sequence[Asked], seconds: float) -> float:
    """The time of the longest path, and of what the run spent while no request was under way."""
    needs = NEEDS.get(name, Needs())
    ends: list[float] = []
    for n, each in enumerate(asked):
        waited = max((ends[k] for k in depends(needs, asked, n)), default=0.0)
        ends.append(waited + each.end_s - each.start_s)
    return max(ends, default=0.0) + seconds - _busy_s(asked)


def depends(needs: Needs, asked: Sequence[Asked], at: int) -> set[int]:
    """The earlier requests that this one needs."""
    stage = needs.stage(asked[at])
    earlier = range(at)
    if stage not in needs.after:
        return {k for k in earlier if asked[k].end_s <= asked[at].start_s}
    uses = set(asked[at].uses)
    return {k for k in earlier if needs.stage(asked[k]) in needs.after[stage] or uses & set(asked[k].gives)}


def _busy_s(asked: Sequence[Asked]) -> float:
    """The time in which a request was under way."""
    total, until = 0.0, 0.0
    for each in sorted(asked, key=lambda a: a.start_s):
        total += max(0.0, each.end_s - max(each.start_s, until))
        until = max(until, each.end_s)
    return total
