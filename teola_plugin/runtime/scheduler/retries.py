"""What becomes of an item whose attempt is over without an end.

    its batch failed      halved, until those that fail are alone with their error
    its instance crashed  tried again; after `ALONE_AFTER` crashes alone, and after one more it is Poisoned
    nothing was said      tried again, `LOST_RETRIES` times

What may not be repeated fails at once, with that error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from teola_plugin.errors import EngineClosed, EngineCrashed, EngineError, Poisoned
from teola_plugin.runtime.scheduler.attempt import Attempt
from teola_plugin.runtime.scheduler.batching import EngineScheduler
from teola_plugin.runtime.scheduler.work_item import Debt
from teola_plugin.runtime.scheduler.work_table import Ledger

ALONE_AFTER = 2
LOST_RETRIES = 1


class Retries:
    """For one engine."""

    def __init__(self, name: str, scheduler: EngineScheduler, ledger: Ledger, time_s: Callable[[], float]) -> None:
        self._name = name
        self._scheduler = scheduler
        self._ledger = ledger
        self._time_s = time_s

    def settle(self, attempt: Attempt, error: BaseException | None) -> None:
        """The batch is over: see to the items that have not ended."""
        left = [debt for item_id, number in attempt.numbers.items() if (debt := self._ledger.current(item_id, number))]
        for item_id, number in attempt.numbers.items():
            self._ledger.free(item_id, number)
        for debt in left:
            attempt.owners |= debt.owners
            self._scheduler.finish((debt.item.id,), self._time_s())
        if isinstance(error, EngineCrashed):
            self.again(left, error)
        elif error is None:
            self._ask_once_more(left)
        elif len(attempt.numbers) == 1 or isinstance(error, EngineClosed):
            for debt in left:
                self._ledger.fail(debt, error)
        else:
            self._halve(left, error)

    def _halve(self, left: Sequence[Debt], error: BaseException) -> None:
        """They failed in company, maybe only because of it."""
        for debt in left:
            if not debt.may_repeat:
                self._ledger.fail(debt, error)
        rest = [debt for debt in left if debt.may_repeat]
        half = (len(rest) + 1) // 2
        for part in (rest[:half], rest[half:]):
            if part:
                self._resubmit(part, is_apart=True)

    def _ask_once_more(self, left: Sequence[Debt]) -> None:
        for debt in left:
            debt.losses += 1
            if debt.may_repeat and debt.losses <= LOST_RETRIES:
                self._resubmit([debt])
            else:
                self._ledger.fail(debt, EngineError(f"engine {self._name!r} ended without an answer"))

    def again(self, debts: Sequence[Debt], error: BaseException) -> None:
        """Their engine crashed."""
        for debt in debts:
            debt.crashes += 1
            self._scheduler.finish((debt.item.id,), self._time_s())
            if not debt.may_repeat:
                self._ledger.fail(debt, error)
            elif debt.crashes > ALONE_AFTER:
                self._ledger.fail(debt, caused(Poisoned(_BLAMED.format(self._name, debt.crashes)), error))
            else:
                self._resubmit([debt])

    def _resubmit(self, debts: Sequence[Debt], *, is_apart: bool = False) -> None:
        """Queue them again as one request of their own; `is_apart`: in no batch with others."""
        first = debts[0].request
        is_alone = debts[0].crashes >= ALONE_AFTER  # until it ends: also if its answer was lost meanwhile
        group = ("apart", debts[0].item.id, debts[0].attempt) if is_apart or is_alone else first.group
        again = replace(first, items=[d.item for d in debts], group=group, is_alone=is_alone)
        for debt in debts:
            debt.give_up()
            debt.request = again
        self._scheduler.resubmit(again, self._time_s())


_BLAMED = "engine {!r} crashed {} times with this item in it, the last time alone"


def caused(error: BaseException, cause: BaseException) -> BaseException:
    """The error, with its cause."""
    error.__cause__ = cause
    return error
