"""Retries of items whose attempt is over without an outcome.

    its batch failed      halved, until those that fail are alone with their error
    its instance crashed  tried again; after `ALONE_AFTER` crashes alone, and after one more it is Poisoned
    nothing was said      tried again, `LOST_RETRIES` times

An item that must not be repeated fails at once, with the same error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from teola_plugin.errors import EngineClosed, EngineCrashed, EngineError, Poisoned
from teola_plugin.runtime.scheduler.batching import EngineScheduler
from teola_plugin.runtime.scheduler.work_item import Attempt, WorkItem
from teola_plugin.runtime.scheduler.work_table import WorkTable

ALONE_AFTER = 2
LOST_RETRIES = 1


class Retries:
    """The retries of one engine."""

    def __init__(self, name: str, scheduler: EngineScheduler, table: WorkTable, time_s: Callable[[], float]) -> None:
        self._name = name
        self._scheduler = scheduler
        self._table = table
        self._time_s = time_s

    def settle(self, attempt: Attempt, error: BaseException | None) -> None:
        """Retry or fail the items of a batch without an outcome, after the return of the call."""
        left = [work for item_id, number in attempt.numbers.items() if (work := self._table.current(item_id, number))]
        for item_id, number in attempt.numbers.items():
            self._table.free(item_id, number)
        for work in left:
            attempt.owners |= work.owners
            self._scheduler.finish((work.item.id,), self._time_s())
        if isinstance(error, EngineCrashed):
            self.again(left, error)
        elif error is None:
            self._ask_once_more(left)
        elif len(attempt.numbers) == 1 or isinstance(error, EngineClosed):
            for work in left:
                self._table.fail(work, error)
        else:
            self._halve(left, error)

    def _halve(self, left: Sequence[WorkItem], error: BaseException) -> None:
        """Retry items of a failed batch in two halves: any item may have made the batch fail."""
        for work in left:
            if not work.may_repeat:
                self._table.fail(work, error)
        rest = [work for work in left if work.may_repeat]
        half = (len(rest) + 1) // 2
        for part in (rest[:half], rest[half:]):
            if part:
                self._resubmit(part, is_apart=True)

    def _ask_once_more(self, left: Sequence[WorkItem]) -> None:
        for work in left:
            work.losses += 1
            if work.may_repeat and work.losses <= LOST_RETRIES:
                self._resubmit([work])
            else:
                self._table.fail(work, EngineError(f"engine {self._name!r} ended without an answer"))

    def again(self, items: Sequence[WorkItem], error: BaseException) -> None:
        """Retry items of an instance that crashed."""
        for work in items:
            work.crashes += 1
            self._scheduler.finish((work.item.id,), self._time_s())
            if not work.may_repeat:
                self._table.fail(work, error)
            elif work.crashes > ALONE_AFTER:
                self._table.fail(work, caused(Poisoned(_BLAMED.format(self._name, work.crashes)), error))
            else:
                self._resubmit([work])

    def _resubmit(self, items: Sequence[WorkItem], *, is_apart: bool = False) -> None:
        """Queue items again as a separate request. `is_apart`: the items share no batch with other requests."""
        first = items[0]
        is_alone = first.crashes >= ALONE_AFTER  # until the end: also if an answer was lost meanwhile
        group = ("apart", first.item.id, first.attempt) if is_apart or is_alone else first.request.group
        again = replace(first.request, items=[work.item for work in items], group=group, is_alone=is_alone)
        for work in items:
            work.give_up()
            work.request = again
        self._scheduler.resubmit(again, self._time_s())


_BLAMED = "engine {!r} crashed {} times with this item in it, the last time alone"


def caused(error: BaseException, cause: BaseException) -> BaseException:
    """Set the cause of an error. Returns the error."""
    error.__cause__ = cause
    return error
