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
from teola_plugin.runtime.scheduler.work_item import Status, WorkItem

PREFIX_CHARS = 512
"""The characters in which prompts with a common prefix agree: some hundred tokens, as an instruction has."""

WARM_PREFIXES = 32
"""The number of most recent prefixes that count as warm."""


def prefix_of(item: Item) -> Hashable:
    """Return a key that is equal for prompts of a tenant with the same prefix; None for an item that is no prompt."""
    return (item.tenant, hash(item.payload[:PREFIX_CHARS])) if isinstance(item.payload, str) else None


class PrefixTracker:
    """The prefixes of an engine's prompts."""

    def __init__(self) -> None:
        self._last_run: OrderedDict[Hashable, None] = OrderedDict()  # the latest last
        self._prefills: set[WorkItem] = set()

    def ran(self, works: Iterable[WorkItem]) -> None:
        """Note that items have begun, in order."""
        last_run = self._last_run
        for work in works:
            if (prefix := prefix_of(work.item)) is not None:
                last_run[prefix] = None
                last_run.move_to_end(prefix)
        while len(last_run) > WARM_PREFIXES:
            last_run.popitem(last=False)

    def warm(self, tolerance_s: float) -> WarmPrefixes | None:
        """Return the warm prefixes for a policy; None without a tolerance."""
        return WarmPrefixes(tolerance_s, self._last_run) if tolerance_s else None

    def prefill(self, works: Iterable[WorkItem]) -> None:
        """Let prompts of a query wait for prefills."""
        self._prefills.update(work for work in works if isinstance(work.item.payload, str))

    def ended(self, works: Iterable[WorkItem]) -> None:
        """Note that items have ended, unless queued again: no prompt waits for them any more."""
        if self._prefills:
            self._prefills.difference_update(work for work in works if work.status is not Status.QUEUED)

    @property
    def holds_any_up(self) -> bool:
        """Whether any prompt may have to wait."""
        return bool(self._prefills)

    def holds_up(self, work: WorkItem) -> bool:
        """Whether the prefix of an item is being prefilled. A prefill waits for shorter prefills."""
        text, query = work.item.payload, work.request.query
        if not isinstance(text, str):
            return False
        most = len(text) - (work in self._prefills)
        prefills = (each.item.payload for each in self._prefills if each.request.query == query)
        return any(len(known) <= most and text.startswith(known) for known in prefills)
