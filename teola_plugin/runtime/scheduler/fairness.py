"""Fairness between the tenants of an engine: waiting items and served items of each tenant.

- **Bounds.** Each tenant with work here may hold an equal share of `max_queued_items`; more is refused. A tenant that
  comes when the rest hold everything still gets a share, so all together may hold more than the bound, at most
  `OVERFULL` times as much.
- **Order.** While several tenants wait, the next slots go to the least served tenant. A tenant that comes (back) starts
  level with the least served tenant at work: a pause earns nothing.
"""

from __future__ import annotations

from teola_plugin.errors import Overloaded

OVERFULL = 2
"""How many times the bound all tenants together may hold: a bound for memory, since each new tenant gets a share."""

REMEMBERED_TENANTS = 1024
"""The number of tenants without waiting items that are remembered besides the tenants with work."""


class TenantFairness:
    """The waiting items, and the items or tokens served so far, by tenant."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self._served: dict[str, float] = {}
        self.waiting = 0

    def check_room(self, tenant: str, items: int, limit: int, retry_after_s: float) -> None:
        """Check that items can wait here. Raises: Overloaded."""
        held = self._held.get(tenant, 0)
        most = max(1, limit // (len(self._held) + (tenant not in self._held)))
        if held + items > most or self.waiting + items > OVERFULL * limit:
            whose = f" of tenant {tenant!r}" if tenant else ""
            raise Overloaded(
                f"{held} items{whose} wait already ({self.waiting} in all), {items} more came, and {most} may wait: "
                f"try again in {retry_after_s:.2g} s"
                + (", or ask for fewer at a time (limit: max_queued_items)" if items > most else ""),
                retry_after_s,
            )

    def came(self, tenant: str, items: int) -> None:
        """Note that items wait from now on."""
        if tenant not in self._held:
            self._catch_up(tenant)
        self._held[tenant] = self._held.get(tenant, 0) + items
        self.waiting += items

    def left(self, tenant: str, items: int) -> None:
        """Note that items wait no more."""
        self._held[tenant] -= items
        if not self._held[tenant]:
            del self._held[tenant]
        self.waiting -= items

    def serve(self, tenant: str, cost: float) -> None:
        """Charge slots to a tenant: items, or tokens where items have them."""
        self._served[tenant] = self._served.get(tenant, 0.0) + cost

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
