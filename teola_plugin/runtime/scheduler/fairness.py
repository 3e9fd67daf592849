"""Fairness between the tenants of an engine: waiting items and served items of each tenant.

- **Bounds.** Each tenant with work here may hold an equal share of `max_queued_items`; more is refused. A tenant that
  comes when the rest hold everything still gets a share, so all together may hold more than the bound, at most
  `OVERFULL` times as much.
- **Order.** While several tenants wait, the next slots go to the least served tenant. A tenant that comes (back) starts
  level with the least served tenant at work: a pause earns nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from teola_plugin.engines import Item
from teola_plugin.errors import Overloaded

OVERFULL = 2

REMEMBERED_TENANTS = 1024
"""The number of tenants without waiting items that are remembered besides the tenants with work."""


class TenantFairness:
    """The waiting items, and the items or tokens served so far, by tenant."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self._served: dict[str, float] = {}
        self.waiting = 0

    def check_room(self, items: Collection[Item], limit: int, retry_after_s: float) -> None:
        """Check that all items can wait here. Raises: Overloaded."""
        for tenant, more in Counter(item.tenant for item in items).items():
            held = self._held.get(tenant, 0)
            most = max(1, limit // (len(self._held) + (tenant not in self._held)))
            if held + more > most or self.waiting + len(items) > OVERFULL * limit:
                whose = f" of tenant {tenant!r}" if tenant else ""
                raise Overloaded(
                    f"{held} items{whose} wait already ({self.waiting} in all), {more} more came, and {most} may wait: "
                    f"try again in {retry_after_s:.2g} s"
                    + (", or ask for fewer at a time (limit: max_queued_items)" if more > most else ""),
                    retry_after_s,
                )

    def came(self, items: Collection[Item]) -> None:
        """Note that items wait from now on."""
        held = self._held
        for item in items:
            tenant = item.tenant
            if tenant not in held:
                self._catch_up(tenant)
            held[tenant] = held.get(tenant, 0) + 1
        self.waiting += len(items)

    def left(self, items: Collection[Item]) -> None:
        """Note that items wait no more."""
        held = self._held
        for item in items:
            tenant = item.tenant
            held[tenant] -= 1
            if not held[tenant]:
                del held[tenant]
        self.waiting -= len(items)

    def serve(self, items: Iterable[Item]) -> None:
        """Charge items, which get slots, to the tenants."""
        served = self._served
        for item in items:
            tenant = item.tenant
            served[tenant] = served.get(tenant, 0.0) + (item.tokens or 1)

    def in_turn(self) -> list[str]:
        """Return the tenants with waiting items, the least served first."""
        if len(self._held) <= 1:
            return list(self._held)
        return sorted(self._held, key=lambda tenant: self._served.get(tenant, 0.0))

    def _catch_up(self, tenant: str) -> None:
        if not self._held:
            self._served = {tenant: 0.0}
            return
        floor = min(self._served.get(other, 0.0) for other in self._held)
        self._served[tenant] = max(self._served.get(tenant, 0.0), floor)
        if len(self._served) > 2 * len(self._held) + REMEMBERED_TENANTS:
            self._served = {other: s for other, s in self._served.items() if other in self._held or other == tenant}
