"""The work table of an engine: the open work items, and how each item ends exactly once.

    add/join --> open --tell/fail--> done | failed
                  '-------detach--> expired | cancelled

Equal requests join the same item (work_item.py). If the item fails, each waiter but the first gets a separate attempt,
unless the item may have crashed the engine: a suspect does not get a chance for each waiter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from teola_plugin.engines import Delta, Done, Failed
from teola_plugin.errors import Cancelled, DeadlineExceeded, EngineClosed, EngineCrashed, EngineError, Poisoned
from teola_plugin.runtime.scheduler.batching import EngineScheduler
from teola_plugin.runtime.scheduler.deadlines import Deadlines
from teola_plugin.runtime.scheduler.work_item import Counts, Waiter, WorkItem

log = logging.getLogger(__name__)

SHARED = (EngineClosed, EngineCrashed, Poisoned)
"""Errors that all waiters of an item get, without separate attempts."""


class WorkTable:
    """The open items of an engine. `late` is called after items have expired."""

    def __init__(
        self, name: str, scheduler: EngineScheduler, loop: asyncio.AbstractEventLoop, late: Callable[[], None]
    ) -> None:
        self.counts = Counts()
        self.open: dict[int, WorkItem] = {}
        self._name = name
        self._scheduler = scheduler
        self._time_s = loop.time
        self._late = late
        self._waiting_for: dict[int, int] = {}  # the item of each waiter, by the ids of both
        self._joinable: dict[Hashable, int] = {}
        self._abandoned: dict[int, int] = {}  # the attempt of each running item without a waiter
        self._deadlines = Deadlines(loop, self._expire)

    @property
    def is_clear(self) -> bool:
        """Whether nothing is kept for any item."""
        return not (self.open or self._waiting_for or self._joinable or self._abandoned or self._deadlines)

    # --- in ----------------------------------------------------------------------------------------------------------

    def refuse_late(self, waiter: Waiter) -> bool:
        """End a waiter whose deadline had passed on arrival. Returns whether the deadline had passed."""
        if waiter.item.deadline_s > self._time_s():
            return False
        self.counts.taken += 1
        self.counts.expired += 1
        waiter.notify(Failed(DeadlineExceeded(f"the deadline had passed when engine {self._name!r} was asked")))
        return True

    def join(self, waiter: Waiter) -> bool:
        """Join an equal item in flight whose deadline is no sooner. Returns whether such an item exists."""
        if waiter.key is None:
            return False
        work = self.open.get(self._joinable.get(waiter.key, 0))
        if work is None or work.item.deadline_s < waiter.item.deadline_s:
            return False
        self.counts.joined += 1
        self._waiting_for[waiter.item.id] = work.item.id
        self._deadlines.add(waiter.item.id, waiter.item.deadline_s)
        work.join(waiter)
        joining = waiter.request
        self._scheduler.raise_priority(work.request, work.item.id, joining.depth, joining.remaining_s)
        return True

    def add(self, waiter: Waiter) -> None:
        """Add a new item."""
        item = waiter.item
        self.open[item.id] = WorkItem(item, waiter.request, {item.id: waiter}, waiter.key)
        self.counts.taken += 1
        self._waiting_for[item.id] = item.id
        if waiter.key is not None:
            self._joinable[waiter.key] = item.id
        self._deadlines.add(item.id, item.deadline_s)

    # --- looked up ---------------------------------------------------------------------------------------------------

    def current(self, item_id: int, attempt: int) -> WorkItem | None:
        """Return the open item, if the attempt is the current attempt."""
        work = self.open.get(item_id)
        return work if work and work.engine is not None and work.attempt == attempt else None

    def is_unbegun(self, waiter: int) -> bool:
        """Whether no attempt has begun on the item of a waiter."""
        work = self.open.get(self._waiting_for.get(waiter, 0))
        return work is not None and work.attempt == 0

    def free(self, item_id: int, attempt: int) -> None:
        """Free the slot of an attempt that has ended with no waiter left."""
        if self._abandoned.get(item_id) == attempt:
            del self._abandoned[item_id]
            self._scheduler.finish((item_id,), self._time_s())

    # --- out ---------------------------------------------------------------------------------------------------------

    def tell(self, work: WorkItem, outcome: Delta | Done | Failed) -> None:
        """Give an outcome of the instance to the waiters of an item."""
        if isinstance(outcome, Failed):
            self.fail(work, outcome.error)
            return
        if isinstance(outcome, Done):
            self._end(work)
        try:
            work.tell(outcome)
        except EngineCrashed as e:  # of a repeated text that turned out differently
            if isinstance(outcome, Delta):
                self._stop(work)
            self._failed(work, e, to_all=True)
            return
        self.counts.done += isinstance(outcome, Done)

    def fail(self, work: WorkItem, error: BaseException, *, to_all: bool = False) -> None:
        """End an item with an error. `to_all`: no waiter gets a separate attempt."""
        self._end(work)
        self._failed(work, error, to_all=to_all)

    def _failed(self, work: WorkItem, error: BaseException, *, to_all: bool) -> None:
        self.counts.failed += 1
        first, *others = work.waiters.values()
        if to_all or work.told or isinstance(error, SHARED):
            work.fail(error)
            return
        for waiter in others:
            self.add(replace(waiter, key=None))
            again = replace(waiter.request, items=[waiter.item])
            self.open[waiter.item.id].request = again
            self._scheduler.resubmit(again, self._time_s())
        first.notify(Failed(error))

    def _end(self, work: WorkItem, *, is_running: bool = False) -> None:
        """Remove an item from the table. `is_running`: the slot stays taken until the attempt ends."""
        item_id = work.item.id
        del self.open[item_id]
        if is_running:
            self._abandoned[item_id] = work.attempt
        else:
            self._scheduler.finish((item_id,), self._time_s())
            self._scheduler.withdraw((item_id,))
        for waiter in work.waiters:
            del self._waiting_for[waiter]
            self._deadlines.discard(waiter)
        if self._joinable.get(work.key) == item_id:
            del self._joinable[work.key]

    def detach(self, waiter: int, error: Cancelled | DeadlineExceeded) -> None:
        """Remove a waiter with an error; without a waiter left, the work is stopped."""
        work = self.open.get(self._waiting_for.get(waiter, 0))
        if work is None:
            return
        if len(work.waiters) > 1:
            del self._waiting_for[waiter]
            self._deadlines.discard(waiter)
            work.waiters.pop(waiter).notify(Failed(error))
            return
        self.counts.expired += isinstance(error, DeadlineExceeded)
        self.counts.cancelled += not isinstance(error, DeadlineExceeded)
        self._stop(work)
        work.fail(error)

    def _stop(self, work: WorkItem) -> None:
        """Remove an item, and abort the item at the running instance."""
        engine = work.engine
        self._end(work, is_running=bool(self._scheduler.withdraw((work.item.id,))))
        if engine is not None and engine.capabilities.abort:
            try:
                engine.abort((work.item.id,))
            except Exception:  # around an engine: the item has ended here, whatever happens in the engine
                log.exception("engine %r could not end an item", self._name)

    def _expire(self, waiters: Sequence[int]) -> None:
        for waiter in waiters:
            self.detach(waiter, DeadlineExceeded(f"engine {self._name!r} did not answer before the deadline"))
        self._late()

    def audit(self) -> None:
        """Fail items that neither wait nor run. Such an item would be a fault of this package, and is counted."""
        for work in list(self.open.values()):
            if not self._scheduler.holds(work.item.id):
                self.counts.lost += 1
                self.fail(work, EngineError(f"engine {self._name!r} lost an item; please report this"), to_all=True)
