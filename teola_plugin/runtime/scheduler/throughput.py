"""The throughput of an engine, estimated from recently finished items."""

from __future__ import annotations

MEAN_OF_ITEMS = 32
"""The approximate number of items in the mean."""

AT_LEAST_S = 0.05
"""The shortest time a caller is told to wait, and the estimate before anything has ended."""


class Throughput:
    """Seconds per item. Items that end at the same time share the time since the previous items."""

    def __init__(self) -> None:
        self._item_s = 0.0
        self._since_s = 0.0
        self._gap_s = 0.0
        self._gap_items = 0

    def begin(self, now_s: float) -> None:
        """Note that the engine was idle until now."""
        self._fold()
        self._since_s = now_s

    def end(self, items: int, now_s: float) -> None:
        """Note that `items` items ended."""
        if now_s > self._since_s:
            self._fold()
            self._gap_s, self._since_s = now_s - self._since_s, now_s
        self._gap_items += items

    def _fold(self) -> None:
        self._item_s = self.item_s
        self._gap_s, self._gap_items = 0.0, 0

    @property
    def item_s(self) -> float:
        """Seconds per item, all slots together."""
        if not (self._gap_items and self._gap_s):
            return self._item_s
        took_s = self._gap_s / self._gap_items
        weight = min(1.0, self._gap_items / MEAN_OF_ITEMS) if self._item_s else 1.0
        return self._item_s + (took_s - self._item_s) * weight

    def needs_s(self, items: int) -> float:
        """Return the seconds that `items` items take."""
        return max(AT_LEAST_S, items * self.item_s)
