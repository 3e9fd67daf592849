"""How far ahead the readings of a graph find requests, from one call to the next.

A reading goes on behind an unknown reply, since a request further on may not need the reply. In most graphs the next
request does: then each reading passes through all nodes that follow, for nothing. So from the third call on, a reading
that has requests under way ends where readings with as many replies have found nothing in earlier calls:

    superstep            1   2   3   4   5
    replies known        0   1   1   -   4       the fewest with which a request was found there
    with one reply, a reading ends before superstep 5

Every `EVERY`-th call is read as far as possible again. Ending early costs time at worst.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

FEW = 2
"""The number of calls that are read as far as possible first."""

EVERY = 8


@dataclass(slots=True)
class Depths:
    """What readings from one superstep on have found. `found`: for each superstep, the fewest replies known then.

    `calls`: how many calls were read.
    """

    calls: int = 0
    found: dict[int, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin a call."""
        self.calls += 1

    def note(self, superstep: int, replies: int) -> None:
        """Note that a reading has found an unknown request in a superstep."""
        self.found[superstep] = min(replies, self.found.get(superstep, replies))

    def last(self, replies: int) -> float:
        """Return the last superstep to be read."""
        if self.calls <= FEW or self.calls % EVERY == 0:
            return math.inf
        found = dict(self.found)
        last = max((number for number, fewest in found.items() if fewest <= replies), default=0)
        return min((number for number in found if number > last), default=math.inf) - 1
