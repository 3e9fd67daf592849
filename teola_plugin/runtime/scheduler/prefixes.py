"""What the prompts at an LLM have in common at their beginning: which was run lately, and which is being prefilled.

- **Run lately.** The policy may put prompts that begin alike next to each other (`policies.Warm`), since a prefix cache
  that drops what was used least recently still has what ran last. Which texts it has nobody tells us; the last few are
  a guess that costs nothing if it is wrong.
- **Being prefilled.** Where an engine reuses a prefix only once it is computed (`Capabilities.prefix_at_end`), the
  prompts of a query wait for the early prefill of their beginning, and compute no part of it themselves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable

from teola_plugin.engines import Item
from teola_plugin.runtime.scheduler.policies import Warm

PREFIX_CHARS = 512
"""Prompts that begin alike for so long have a prefix in common: some hundred tokens, as an instruction has."""

WARM_BEGINNINGS = 32
"""So many that were run last count as warm."""


def beginning_of(item: Item) -> Hashable:
    """Equal for prompts of a tenant that begin alike; None for what is no prompt."""
    return (item.tenant, hash(item.payload[:PREFIX_CHARS])) if isinstance(item.payload, str) else None


class Beginnings:
    """Those of one engine's prompts."""

    def __init__(self) -> None:
        self._last_run: OrderedDict[Hashable, int] = OrderedDict()  # the latest last
        self._runs = 0
        self._prefills: dict[int, tuple[Hashable, str]] = {}  # query and text, by item

    def ran(self, items: Iterable[Item]) -> None:
        """They have begun, one after the other."""
        last_run = self._last_run
        for item in items:
            if (beginning := beginning_of(item)) is not None:
                self._runs += 1
                last_run[beginning] = self._runs
                last_run.move_to_end(beginning)
        while len(last_run) > WARM_BEGINNINGS:
            last_run.popitem(last=False)

    def warm(self, tolerance_s: float) -> Warm | None:
        """For a policy; None without a tolerance."""
        return Warm(tolerance_s, self._last_run) if tolerance_s else None

    def prefill(self, items: Iterable[Item], query: Hashable) -> None:
        """Prompts of this query are to wait for these."""
        self._prefills |= {item.id: (query, item.payload) for item in items if isinstance(item.payload, str)}

    def ended(self, ids: Iterable[int]) -> None:
        """These items, whatever they are, are waited for no more."""
        if self._prefills:
            for item_id in ids:
                self._prefills.pop(item_id, None)

    @property
    def holds_any_up(self) -> bool:
        """Some prompt may have to wait."""
        return bool(self._prefills)

    def holds_up(self, item: Item, query: Hashable) -> bool:
        """Its beginning is being prefilled. A prefill waits for shorter ones."""
        text = item.payload
        if not isinstance(text, str):
            return False
        most = len(text) - (item.id in self._prefills)
        return any(
            whose == query and len(known) <= most and text.startswith(known) for whose, known in self._prefills.values()
        )
