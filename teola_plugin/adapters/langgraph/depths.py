"""How far ahead the readings of a graph find requests, from one call to the next.

A reading goes on behind an unknown reply, since a request further on may not need the reply. In most graphs the next
request does: then each reading passes through all nodes that follow, for nothing. So from the third call on, a reading
that has requests under way ends where readings with as many replies have looked and found nothing in earlier calls:

    superstep                                          1   2   3   4   5
    the fewest replies with which a request was found  0   1   1   -   4
    the most with which none was found                 -   0   0   4   3
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
    """What readings from one superstep on have found, for each superstep.

    `found`: the fewest replies that were known when a request was found; `empty`: the most when none was. `calls`: how
    many calls were read.
    """

    calls: int = 0
    found: dict[int, int] = field(default_factory=dict)
    empty: dict[int, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin a call."""
        self.calls += 1

    def note(self, superstep: int, replies: int, *, has_found: bool) -> None:
        """Note that a reading has passed through a superstep."""
        if has_found:
            self.found[superstep] = min(replies, self.found.get(superstep, replies))
        else:
            self.empty[superstep] = max(replies, self.empty.get(superstep, replies))

    def last(self, replies: int) -> float:
        """Return the last superstep to be read."""
        if self.calls <= FEW or self.calls % EVERY == 0:
            return math.inf
        found, empty = dict(self.found), dict(self.empty)
        read = (number for number, fewest in found.items() if fewest <= replies or empty.get(number, -1) < replies)
        last = max(read, default=0)
        return min((number for number in found if number > last), default=math.inf) - 1
