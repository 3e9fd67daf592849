"""The work table of an engine: the open work items, and how each item ends exactly once.

    add/join --> open --tell/fail--> done | failed
                  '-------detach--> expired | cancelled

Equal items are joined to the same item (work_item.py). If the item fails, each waiter but the first gets a separate
attempt, unless the item may have crashed the engine: a suspect does not get a chance for each waiter.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from teola_plugin.engines import Delta, Done, Failed
from teola_plugin.errors import Cancelled, DeadlineExceeded, EngineClosed, EngineCrashed, EngineError, Poisoned
from teola_plugin.runtime.scheduler.batching import EngineScheduler
from teola_plugin.runtime.scheduler.work_item import Attempt, Status, WorkItem

log = logging.getLogger(__name__)

SHARED = (EngineClosed, EngineCrashed, Poisoned)
"""Errors that all waiters of an item get, without separate attempts."""


@dataclass(slots=True)
class Counts:
    """Counts of all items of an engine: `taken` = `done` + `failed` + `cancelled` + `expired` + open items.

    `joined`: waiters that joined an item in flight. `refused`: items not taken in. `repeated`: attempts after the
    first. `crashes`: of instances. `stalls`: instances that were ended because of silence. `late`: outcomes without a
    waiter. `lost`: items that neither waited nor ran, found by the watchdog (there should be none). `misplaced`:
    outcomes of no item of the batch, and all later outcomes of the batch. `batches`: calls of instances, of which
    `mixed` held items of several queries.
    """

    taken: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    joined: int = 0
    refused: int = 0
    repeated: int = 0
    crashes: int = 0
    stalls: int = 0
    late: int = 0
    lost: int = 0
    misplaced: int = 0
    batches: int = 0
    mixed: int = 0

    @property
    def open(self) -> int:
        """The number of items that have not ended."""
        return self.taken - self.done - self.failed - self.cancelled - self.expired


class WorkTable:
    """The open items of an engine. `late` is called after items have expired."""

    def __init__(
        self, name: str, scheduler: EngineScheduler, loop: asyncio.AbstractEventLoop, late: Callable[[], None]
    ) -> None:
        self.counts = Counts()
        self._name = name
        self._scheduler = scheduler
        self._time_s = loop.time
        self._late = late
        self._waiters: dict[int, WorkItem] = {}  # the items whose replies have no outcome yet, by id
        self._joinable: dict[Hashable, WorkItem] = {}
        self._deadlines = Deadlines(loop, self._expire)

    @property
    def is_empty(self) -> bool:
        """Whether no item is open."""
        return not self._waiters

    @property
    def is_clear(self) -> bool:
        """Whether nothing is kept for any item."""
        return not (self._waiters or self._joinable or self._deadlines)

    def open(self) -> list[WorkItem]:
        """Return the open items, without joined items."""
        return list(dict.fromkeys(waiter.leader or waiter for waiter in self._waiters.values()))

    # --- in ----------------------------------------------------------------------------------------------------------

    def refuse_late(self, work: WorkItem) -> bool:
        """End an item whose deadline had passed on arrival. Returns whether the deadline had passed."""
        if work.item.deadline_s > self._time_s():
            return False
        self.counts.taken += 1
        self.counts.expired += 1
        work.status = Status.EXPIRED
        work.notify(Failed(DeadlineExceeded(f"the deadline had passed when engine {self._name!r} was asked")))
        return True

    def join(self, work: WorkItem) -> bool:
        """Join an equal item in flight whose deadline is no sooner. Returns whether such an item exists."""
        if work.key is None:
            return False
        leader = self._joinable.get(work.key)
        if leader is None or leader.item.deadline_s < work.item.deadline_s:
            return False
        self.counts.joined += 1
        self._keep(work)
        work.join(leader)
        self._scheduler.raise_priority(leader, work.request.depth, work.request.remaining_s)
        return True

    def add(self, work: WorkItem) -> None:
        """Add a new item."""
        self.counts.taken += 1
        self._keep(work)
        if work.key is not None:
            self._joinable[work.key] = work

    def _keep(self, work: WorkItem) -> None:
        self._waiters[work.item.id] = work
        self._deadlines.add(work.item.id, work.item.deadline_s)

    # --- looked up ---------------------------------------------------------------------------------------------------

    def is_unbegun(self, waiter: int) -> bool:
        """Whether no attempt has begun on the item of a waiter."""
        work = self._work_of(waiter)
        return work is not None and not work.attempts

    def _work_of(self, waiter: int) -> WorkItem | None:
        work = self._waiters.get(waiter)
        return work.leader or work if work else None

    def free(self, work: WorkItem, attempt: Attempt) -> None:
        """Free the slot of an attempt that has ended with no waiter left."""
        if work.attempt is attempt and work.status is not Status.RUNNING:
            self._scheduler.finish((work,), self._time_s())
            work.attempt = None

    # --- out ---------------------------------------------------------------------------------------------------------

    def tell(self, work: WorkItem, outcome: Delta | Done | Failed) -> None:
        """Give an outcome of the instance to the waiters of an item."""
        if isinstance(outcome, Failed):
            self.fail(work, outcome.error)
            return
        if isinstance(outcome, Done):
            self._end(work, Status.DONE)
        try:
            work.tell(outcome)
        except EngineCrashed as e:  # of a repeated text that turned out differently
            if isinstance(outcome, Delta):
                self._stop(work, Status.FAILED)
            self._failed(work, e, to_all=True)
            return
        self.counts.done += isinstance(outcome, Done)

    def fail(self, work: WorkItem, error: BaseException, *, to_all: bool = False) -> None:
        """End an item with an error. `to_all`: no waiter gets a separate attempt."""
        self._end(work, Status.FAILED)
        self._failed(work, error, to_all=to_all)

    def _failed(self, work: WorkItem, error: BaseException, *, to_all: bool) -> None:
        self.counts.failed += 1
        for waiter in work.waiters:
            waiter.status = Status.FAILED
        first, *others = work.waiters
        if to_all or work.told or isinstance(error, SHARED):
            work.fail(error)
            return
        for waiter in others:
            waiter.key = None
            waiter.request = replace(waiter.request, items=[waiter])
            self.add(waiter)
            self._scheduler.resubmit(waiter.request, self._time_s())
        first.notify(Failed(error))

    def _end(self, work: WorkItem, status: Status, *, is_running: bool = False) -> None:
        """Remove an item from the table. `is_running`: the slot stays taken until the attempt ends."""
        if not is_running:
            self._scheduler.finish((work,), self._time_s())
            self._scheduler.withdraw((work,))
            work.attempt = None
        work.status = status
        for waiter in work.waiters:
            waiter.status = status
            self._forget(waiter)
        if self._joinable.get(work.key) is work:
            del self._joinable[work.key]

    def _forget(self, waiter: WorkItem) -> None:
        waiter.leader = None
        del self._waiters[waiter.item.id]
        self._deadlines.discard(waiter.item.id)

    def detach(self, waiter_id: int, error: Cancelled | DeadlineExceeded) -> None:
        """Remove a waiter with an error; without a waiter left, the work is stopped."""
        waiter, work = self._waiters.get(waiter_id), self._work_of(waiter_id)
        if waiter is None or work is None:
            return
        is_late = isinstance(error, DeadlineExceeded)
        status = Status.EXPIRED if is_late else Status.CANCELLED
        if len(work.waiters) > 1:
            waiter.leave(status)
            self._forget(waiter)
            waiter.notify(Failed(error))
            return
        self.counts.expired += is_late
        self.counts.cancelled += not is_late
        self._stop(work, status)
        work.fail(error)

    def _stop(self, work: WorkItem, status: Status) -> None:
        """Remove an item, and abort the item at the running instance."""
        attempt = work.attempt if work.status is Status.RUNNING else None
        self._end(work, status, is_running=bool(self._scheduler.withdraw((work,))))
        if attempt is not None and attempt.engine.capabilities.abort:
            try:
                attempt.engine.abort((work.item.id,))
            except Exception:  # around an engine: the item has ended here, whatever happens in the engine
                log.exception("engine %r could not end an item", self._name)

    def _expire(self, waiters: Sequence[int]) -> None:
        for waiter in waiters:
            self.detach(waiter, DeadlineExceeded(f"engine {self._name!r} did not answer before the deadline"))
        self._late()

    def audit(self) -> None:
        """Fail items which neither wait nor run. An item in neither state is a fault of the package, and is counted."""
        for work in self.open():
            if not self._scheduler.holds(work):
                self.counts.lost += 1
                self.fail(work, EngineError(f"engine {self._name!r} lost an item; please report this"), to_all=True)


ROOM = 64
"""The number of useless deadlines that are kept before a cleanup."""


class Deadlines:
    """Deadlines by item, with a single timer. `expire` is called on the loop with the items whose deadline has passed.

    An item that ends before the deadline is removed at once, or at the latest when half of the entries are of no use: a
    deadline far ahead keeps nothing alive.
    """

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
