"""Deadlines of many items, with a single timer.

An item that ends before the deadline is removed at once, or at the latest when half of the entries are of no use: a
deadline far ahead keeps nothing alive.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Sequence

ROOM = 64
"""The number of useless entries that are kept before a cleanup."""


class Deadlines:
    """Deadlines by item. `expire` is called on the loop with the items whose deadline has passed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[Sequence[int]], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._due: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, item_id: int, deadline_s: float) -> None:
        """Add the deadline of an item."""
        if deadline_s == math.inf:
            return
        self._due[item_id] = deadline_s
        heapq.heappush(self._heap, (deadline_s, item_id))
        if self._heap[0] == (deadline_s, item_id):
            self._set_timer()

    def discard(self, item_id: int) -> None:
        """Remove an item that has ended."""
        if self._due.pop(item_id, None) is None:
            return
        if not self._due:
            self._heap.clear()
            self._set_timer()
        elif len(self._heap) > 2 * len(self._due) + ROOM:
            self._heap = [(deadline_s, item_id) for item_id, deadline_s in self._due.items()]
            heapq.heapify(self._heap)

    def _set_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._heap[0][0], self._ring) if self._heap else None

    def _ring(self) -> None:
        late: list[int] = []
        while self._heap and self._heap[0][0] <= self._loop.time():
            deadline_s, item_id = heapq.heappop(self._heap)
            if self._due.get(item_id) == deadline_s:
                del self._due[item_id]
                late.append(item_id)
        self._set_timer()
        if late:
            self._expire(late)
