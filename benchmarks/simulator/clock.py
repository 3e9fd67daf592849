"""The clock of a simulation: what is due when, one heap of events.

    clock.at(2.5, act)      act() at second 2.5
    clock.soon(act)         act() still at this instant, after all that was asked for before it
    clock.run()             until nothing is due any more

Time passes only from one event to the next. What happens at one instant happens in the order in which it was asked
for, as on an event loop, so a simulation is the same each time.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any


class Clock:
    """`now_s` starts at 0."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._soon: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._numbers = itertools.count()

    def at(self, due_s: float, act: Callable[..., None], *args: Any) -> None:
        """Call it at that second, or now if that is past."""
        heapq.heappush(self._due, (due_s if due_s > self.now_s else self.now_s, next(self._numbers), act, args))

    def soon(self, act: Callable[..., None], *args: Any) -> None:
        """Call it at this instant, after what was asked for before."""
        self._soon.append((act, args))

    def after(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Call it so many seconds from now; `soon` for none."""
        if delay_s > 0:
            self.at(self.now_s + delay_s, act, *args)
        else:
            self._soon.append((act, args))

    def run(self) -> None:
        """Until nothing is due."""
        due, soon = self._due, self._soon
        while True:
            while soon:
                act, args = soon.popleft()
                act(*args)
            if not due:
                return
            now_s, _, act, args = heapq.heappop(due)
            self.now_s = now_s
            soon.append((act, args))
            while due and due[0][0] <= now_s:
                _, _, act, args = heapq.heappop(due)
                soon.append((act, args))
