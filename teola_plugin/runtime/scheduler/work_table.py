"""The ledger of a lane: what is owed, who waits for it, and how each item ends, once.

    owe/join --> owed --settle--> done | failed      the readers hear it
                  '-----let_go--> expired | cancelled

Requests for the same thing are joined (work_item.py). If it fails, each reader but the first has a try of its own, except
where the item may have brought the engine down: it does not get one chance for each reader.
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
from teola_plugin.runtime.scheduler.work_item import Counts, Debt, Reader

log = logging.getLogger(__name__)

SHARED = (EngineClosed, EngineCrashed, Poisoned)
"""Errors that all readers of an item share."""


class Ledger:
    """See the module. `late`: is called after items ended because their time was over."""

    def __init__(
        self, name: str, scheduler: EngineScheduler, loop: asyncio.AbstractEventLoop, late: Callable[[], None]
    ) -> None:
        self.counts = Counts()
        self.owed: dict[int, Debt] = {}
        self._name = name
        self._scheduler = scheduler
        self._time_s = loop.time
        self._late = late
        self._reading: dict[int, int] = {}  # the item that a reader waits for
        self._joinable: dict[Hashable, int] = {}
        self._let_run: dict[int, int] = {}  # what nobody waits for but an instance still runs: the attempt
        self._deadlines = Deadlines(loop, self._expire)

    @property
    def is_clear(self) -> bool:
        """Nothing is kept for any item."""
        return not (self.owed or self._reading or self._joinable or self._let_run or self._deadlines)

    # --- in ----------------------------------------------------------------------------------------------------------

    def refuse_late(self, reader: Reader) -> bool:
        """Its time was over before it came: it ends here."""
        if reader.item.deadline_s > self._time_s():
            return False
        self.counts.taken += 1
        self.counts.expired += 1
        reader.hear(Failed(DeadlineExceeded(f"the deadline had passed when engine {self._name!r} was asked")))
        return True

    def join(self, reader: Reader) -> bool:
        """Wait for an item that is in flight already, if there is one that does not end sooner."""
        if reader.key is None:
            return False
        debt = self.owed.get(self._joinable.get(reader.key, 0))
        if debt is None or debt.item.deadline_s < reader.item.deadline_s:
            return False
        self.counts.joined += 1
        self._reading[reader.item.id] = debt.item.id
        self._deadlines.add(reader.item.id, reader.item.deadline_s)
        debt.join(reader)
        return True

    def owe(self, reader: Reader) -> None:
        """A new item."""
        item = reader.item
        self.owed[item.id] = Debt(item, reader.request, {item.id: reader}, reader.key)
        self.counts.taken += 1
        self._reading[item.id] = item.id
        if reader.key is not None:
            self._joinable[reader.key] = item.id
        self._deadlines.add(item.id, item.deadline_s)

    # --- looked up ---------------------------------------------------------------------------------------------------

    def current(self, item_id: int, attempt: int) -> Debt | None:
        """What is owed for the item, if that is the attempt that counts."""
        debt = self.owed.get(item_id)
        return debt if debt and debt.engine is not None and debt.attempt == attempt else None

    def is_unbegun(self, reader: int) -> bool:
        """Whether the reader waits for an item that was not attempted yet."""
        debt = self.owed.get(self._reading.get(reader, 0))
        return debt is not None and debt.attempt == 0

    def free(self, item_id: int, attempt: int) -> None:
        """An attempt ended that nobody waits for: its slot is free."""
        if self._let_run.get(item_id) == attempt:
            del self._let_run[item_id]
            self._scheduler.finish((item_id,), self._time_s())

    # --- out ---------------------------------------------------------------------------------------------------------

    def tell(self, debt: Debt, outcome: Delta | Done | Failed) -> None:
        """What the instance says of an item."""
        if isinstance(outcome, Failed):
            self.fail(debt, outcome.error)
            return
        if isinstance(outcome, Done):
            self._end(debt)
        try:
            debt.tell(outcome)
        except EngineCrashed as e:  # of a repeated text that turned out differently
            if isinstance(outcome, Delta):
                self._stop(debt)
            self._failed(debt, e, to_all=True)
            return
        self.counts.done += isinstance(outcome, Done)

    def fail(self, debt: Debt, error: BaseException, *, to_all: bool = False) -> None:
        """It ends so. `to_all`: its readers have no try of their own."""
        self._end(debt)
        self._failed(debt, error, to_all=to_all)

    def _failed(self, debt: Debt, error: BaseException, *, to_all: bool) -> None:
        self.counts.failed += 1
        first, *others = debt.readers.values()
        if to_all or debt.told or isinstance(error, SHARED):
            debt.fail(error)
            return
        for reader in others:
            self.owe(replace(reader, key=None))
            again = replace(reader.request, items=[reader.item])
            self.owed[reader.item.id].request = again
            self._scheduler.resubmit(again, self._time_s())
        first.hear(Failed(error))

    def _end(self, debt: Debt, *, is_running: bool = False) -> None:
        """It is owed no more. `is_running`: its slot is not free yet."""
        item_id = debt.item.id
        del self.owed[item_id]
        if is_running:
            self._let_run[item_id] = debt.attempt
        else:
            self._scheduler.finish((item_id,), self._time_s())
            self._scheduler.withdraw((item_id,))
        for reader in debt.readers:
            del self._reading[reader]
            self._deadlines.discard(reader)
        if self._joinable.get(debt.key) == item_id:
            del self._joinable[debt.key]

    def let_go(self, reader: int, error: Cancelled | DeadlineExceeded) -> None:
        """One reader hears how it ended; the work ends with the last one."""
        debt = self.owed.get(self._reading.get(reader, 0))
        if debt is None:
            return
        if len(debt.readers) > 1:
            del self._reading[reader]
            self._deadlines.discard(reader)
            debt.readers.pop(reader).hear(Failed(error))
            return
        self.counts.expired += isinstance(error, DeadlineExceeded)
        self.counts.cancelled += not isinstance(error, DeadlineExceeded)
        self._stop(debt)
        debt.fail(error)

    def _stop(self, debt: Debt) -> None:
        """It is owed no more, and if an instance has it, that one hears so."""
        engine = debt.engine
        self._end(debt, is_running=bool(self._scheduler.withdraw((debt.item.id,))))
        if engine is not None and engine.capabilities.abort:
            try:
                engine.abort((debt.item.id,))
            except Exception:  # around an engine: the item has ended here, whatever becomes of it there
                log.exception("engine %r could not end an item", self._name)

    def _expire(self, readers: Sequence[int]) -> None:
        for reader in readers:
            self.let_go(reader, DeadlineExceeded(f"engine {self._name!r} did not answer before the deadline"))
        self._late()

    def audit(self) -> None:
        """The watchdog: fail what neither waits nor runs. It would be a fault of ours, and is counted."""
        for debt in list(self.owed.values()):
            if not self._scheduler.holds(debt.item.id):
                self.counts.lost += 1
                self.fail(debt, EngineError(f"engine {self._name!r} lost an item; please report this"), to_all=True)
