"""What each tenant has waiting and was served at one engine.

- **Bounds.** Of `max_queued_items` each tenant that has work here may hold an equal share; what is more, is refused. A
  tenant that comes when the others hold everything still finds its share, so together they may hold more, at most
  `OVERFULL` times the bound.
- **Fairness.** While several tenants wait, the next slots go to the one that has been served least. Who comes (back)
  starts level with whoever of those at work was served least, and is not owed for its pause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from teola_plugin.engines import Item
from teola_plugin.errors import Overloaded

OVERFULL = 2

REMEMBERED_TENANTS = 1024
"""So many that have nothing waiting are remembered beside those that have."""


class Shares:
    """Items that wait, and items or tokens that were served, by tenant."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self._served: dict[str, float] = {}
        self.waiting = 0

    @property
    def tenants(self) -> int:
        """How many have something waiting."""
        return len(self._held)

    def check_room(self, items: Collection[Item], limit: int, retry_after_s: float) -> None:
        """Raises: Overloaded if not all of them can wait here."""
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
        """They wait from now on."""
        held = self._held
        for item in items:
            tenant = item.tenant
            if tenant not in held:
                self._catch_up(tenant)
            held[tenant] = held.get(tenant, 0) + 1
        self.waiting += len(items)

    def left(self, items: Collection[Item]) -> None:
        """They wait no more."""
        held = self._held
        for item in items:
            tenant = item.tenant
            held[tenant] -= 1
            if not held[tenant]:
                del held[tenant]
        self.waiting -= len(items)

    def serve(self, items: Iterable[Item]) -> None:
        """Their slots are their tenants'."""
        served = self._served
        for item in items:
            tenant = item.tenant
            served[tenant] = served.get(tenant, 0.0) + (item.tokens or 1)

    def in_turn(self, tenants: Mapping[str, object]) -> list[str]:
        """Who was served least comes first."""
        return sorted(tenants, key=lambda tenant: self._served.get(tenant, 0.0))

    def _catch_up(self, tenant: str) -> None:
        if not self._held:
            self._served = {tenant: 0.0}
            return
        floor = min(self._served.get(other, 0.0) for other in self._held)
        self._served[tenant] = max(self._served.get(tenant, 0.0), floor)
        if len(self._served) > 2 * len(self._held) + REMEMBERED_TENANTS:
            self._served = {other: s for other, s in self._served.items() if other in self._held or other == tenant}
