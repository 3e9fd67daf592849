"""The prefixes of an LLM's prompts: recently used prefixes, and prefixes in prefill.

- **Recently used.** A policy may put prompts with the same prefix next to each other (`policies.WarmPrefixes`), since a
  prefix cache with least-recently-used eviction still has the latest prefixes. The engine does not report the contents
  of the cache; the last few prefixes are a guess that costs nothing if wrong.
- **Being prefilled.** Where an engine reuses a prefix only once computed (`Capabilities.prefix_at_end`), the prompts of
  a query wait for the early prefill of the prefix and compute no part of the prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable

from teola_plugin.engines import Item
from teola_plugin.runtime.scheduler.policies import WarmPrefixes

PREFIX_CHARS = 512
"""The characters in which prompts with a common prefix agree: some hundred tokens, as an instruction has."""

WARM_BEGINNINGS = 32
"""The number of most recent prefixes that count as warm."""


def beginning_of(item: Item) -> Hashable:
    """Return a key that is equal for prompts of a tenant with the same prefix; None for an item that is no prompt."""
    return (item.tenant, hash(item.payload[:PREFIX_CHARS])) if isinstance(item.payload, str) else None


class PrefixTracker:
    """The prefixes of an engine's prompts."""

    def __init__(self) -> None:
        self._last_run: OrderedDict[Hashable, None] = OrderedDict()  # the latest last
        self._prefills: dict[int, tuple[Hashable, str]] = {}  # query and text, by item

    def ran(self, items: Iterable[Item]) -> None:
        """Note that items have begun, in order."""
        last_run = self._last_run
        for item in items:
            if (beginning := beginning_of(item)) is not None:
                last_run[beginning] = None
                last_run.move_to_end(beginning)
        while len(last_run) > WARM_BEGINNINGS:
            last_run.popitem(last=False)

    def warm(self, tolerance_s: float) -> WarmPrefixes | None:
        """Return the warm prefixes for a policy; None without a tolerance."""
        return WarmPrefixes(tolerance_s, self._last_run) if tolerance_s else None

    def prefill(self, items: Iterable[Item], query: Hashable) -> None:
        """Let prompts of a query wait for prefills."""
        self._prefills |= {item.id: (query, item.payload) for item in items if isinstance(item.payload, str)}

    def ended(self, ids: Iterable[int]) -> None:
        """Note that items have ended: no prompt waits for them any more."""
        if self._prefills:
            for item_id in ids:
                self._prefills.pop(item_id, None)

    @property
    def holds_any_up(self) -> bool:
        """Whether any prompt may have to wait."""
        return bool(self._prefills)

    def holds_up(self, item: Item, query: Hashable) -> bool:
        """Whether the prefix of an item is being prefilled. A prefill waits for shorter prefills."""
        text = item.payload
        if not isinstance(text, str):
            return False
        most = len(text) - (item.id in self._prefills)
        return any(
            whose == query and len(known) <= most and text.startswith(known) for whose, known in self._prefills.values()
        )
