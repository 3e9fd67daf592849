"""Admission of queries at a host: how many queries run at once, for each tenant.

If several tenants are at work, each may have an equal share of `max_queries` running. A tenant that comes when the
share is taken by the rest still gets a share, so for a while more queries may run, at most `OVERFULL` times as many. A
refused query is told at once, and when to come back; an admitted query is never turned away. A query that would not end
before the deadline, by the recent throughput, is refused too.

A draining host admits no query, and waits for the running queries.
"""

from __future__ import annotations

import threading

from teola_plugin import forks, loops
from teola_plugin.errors import Overloaded
from teola_plugin.finalizers import kept_off
from teola_plugin.runtime.scheduler.fairness import OVERFULL
from teola_plugin.runtime.scheduler.throughput import Throughput
from teola_plugin.tenancy import Terms


class Admission:
    """A counter of queries, for any thread. `max_queries`: None for any number."""

    def __init__(self, max_queries: int | None = None) -> None:
        self.max_queries = max_queries
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._inside: dict[str, int] = {}
        self._throughput = Throughput()
        self._is_draining = False
        self._is_drained = threading.Event()

    @property
    def inside(self) -> int:
        """The number of running queries."""
        return sum(self._inside.values())

    def enter(self, terms: Terms, now_s: float) -> None:
        """Admit a query. Raises: Overloaded."""
        with kept_off, self._lock:
            if why := self._why_not(terms, now_s):
                wait_s = self._throughput.needs_s(1)
                raise Overloaded(f"{why}: try again in {wait_s:.2g} s", wait_s)
            if not self._inside:
                self._throughput.begin(now_s)
            self._inside[terms.tenant] = self._inside.get(terms.tenant, 0) + 1

    def leave(self, terms: Terms, now_s: float) -> None:
        """Note the end of an admitted query."""
        with kept_off, self._lock:
            if (left := self._inside.pop(terms.tenant, 1) - 1) > 0:
                self._inside[terms.tenant] = left
            self._throughput.end(1, now_s)
            if self._is_draining and not self._inside:
                self._is_drained.set()

    def _why_not(self, terms: Terms, now_s: float) -> str:
        if self._is_draining:
            return "this process is shutting down"
        if self.max_queries is None:
            return ""
        if self.inside >= OVERFULL * self.max_queries:
            return f"{self.inside} queries run already"
        running = self._inside.get(terms.tenant, 0)
        most = max(1, self.max_queries // len({*self._inside, terms.tenant}))
        if running >= most:
            whose = f" of tenant {terms.tenant!r}" if terms.tenant else ""
            return f"{running} queries{whose} run already, and {most} may"
        if now_s + self._throughput.item_s * (self.inside + 1) > terms.deadline_s:
            return f"{self.inside} queries run already, and this one would not end before its deadline"
        return ""

    def drain(self, timeout_s: float) -> int:
        """Admit no more queries, and wait for the running queries. Returns how many had not ended in time.

        Raises: EngineLoopBlocked, see `loops`.
        """
        loops.check_may_wait()
        with kept_off, self._lock:
            self._is_draining = True
            if not self._inside:
                self._is_drained.set()
        self._is_drained.wait(timeout_s)
        return self.inside

    def reopen(self) -> None:
        """Admit queries again."""
        with kept_off, self._lock:
            self._is_draining = False
            self._is_drained.clear()
