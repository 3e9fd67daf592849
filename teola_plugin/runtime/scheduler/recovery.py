"""Recovery of instances that crashed or stall, and of the items without an outcome.

    nothing emitted for `stall_s` --> `restart` --again, or no `restart`--> its call is cancelled
    crash --> takes no work until `recovered` returns
                 --raises, and no other instance is up--> `gone`
                 --raises, and another is--> `recovered` is called again after a while

Both a restart and a cancelled call count as crashes for the open items of the instance. An item whose attempt is over
without an outcome:

    its batch failed      halved, until those that fail are alone with their error
    its instance crashed  tried again; after `ALONE_AFTER` crashes alone, and after one more it is Poisoned
    nothing was said      tried again, `LOST_RETRIES` times

An item that must not be repeated fails at once, with the same error.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from teola_plugin.engines import Engine
from teola_plugin.errors import EngineClosed, EngineCrashed, EngineError, Poisoned
from teola_plugin.runtime.scheduler.batching import EngineScheduler
from teola_plugin.runtime.scheduler.work_item import Attempt, Request, WorkItem
from teola_plugin.runtime.scheduler.work_table import Counts, WorkTable

log = logging.getLogger(__name__)
Spawn = Callable[[Coroutine[Any, Any, None]], object]

RECOVERY_S = 0.5
"""The time after which an instance without `recovered` is assumed to work again, in seconds."""

AGAIN_S = (5.0, 30.0, 120.0)
"""The time after which an instance that could not recover is tried again, in seconds, if another instance is up; then
the instance gets work again."""

ALONE_AFTER = 2
"""The number of crashes with an item in the batch after which the item runs in a batch of its own."""

LOST_RETRIES = 1
"""How often an item is tried again of which an engine said nothing."""


class Recovery:
    """The recovery of one engine. `back` is called when an instance takes work again, `gone` when none will."""

    def __init__(
        self, name: str, scheduler: EngineScheduler, counts: Counts, stall_s: float | None, *, spawn: Spawn,
        back: Callable[[], None], gone: Callable[[Exception], None],
    ) -> None:  # fmt: skip
        self._name = name
        self._scheduler = scheduler
        self._counts = counts
        self.rule(stall_s)
        self._spawn = spawn
        self._back = back
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._down: dict[int, Engine] = {}  # recovering instances, by place, which a resize may give to another
        self._restarted_s: dict[int, float] = {}  # when each instance was restarted last

    def rule(self, stall_s: float | None) -> None:
        """Set how long an instance may emit nothing; None for any time."""
        self._stall_s = stall_s

    # --- crashes -----------------------------------------------------------------------------------------------------

    def crashed(self, attempt: Attempt) -> None:
        """Take an instance out of service until recovered. Several attempts may report the same crash."""
        if not self._scheduler.replicas.is_up(attempt.at):
            return
        self._counts.crashes += 1
        log.warning("engine %r: instance %d crashed with %d items in it", self._name, attempt.at, len(attempt.works))
        self._scheduler.mark(attempt.at, is_up=False)
        self._down[attempt.at] = attempt.engine
        self._spawn(self._recover(attempt.engine, attempt.at))

    async def _recover(self, instance: Engine, at: int) -> None:
        recovered: Callable[[], Coroutine[Any, Any, None]] | None = getattr(instance, "recovered", None)
        for wait_s in AGAIN_S:
            try:
                await (recovered() if recovered else asyncio.sleep(RECOVERY_S))
                break
            except Exception as e:  # around an engine: the engine will not come back, and the waiters get the error
                log.error("engine %r: instance %d does not come back: %s", self._name, at, e)
                if not self._scheduler.has_replica_up:
                    self._gone(e)  # and the next request may find it well again
                    break
            await asyncio.sleep(wait_s)
        if self._down.get(at) is instance:
            del self._down[at]
            self._scheduler.mark(at, is_up=True)
            self._back()

    # --- stalls ------------------------------------------------------------------------------------------------------

    def watch(self, attempt: Attempt) -> None:
        """Watch an attempt for a stall until the end: also without waiters, since other items wait for the slots."""
        if self._stall_s is not None:
            attempt.watch = self._loop.call_at(attempt.heard_s + self._stall_s, self._look, attempt, self._stall_s)

    def _look(self, attempt: Attempt, stall_s: float) -> None:
        if self._loop.time() >= attempt.heard_s + stall_s:  # as the timer was set, to the last bit
            self._stalled(attempt, self._loop.time() - attempt.heard_s)
            attempt.heard_s = self._loop.time()
        attempt.watch = self._loop.call_at(attempt.heard_s + stall_s, self._look, attempt, stall_s)

    def _stalled(self, attempt: Attempt, silent_s: float) -> None:
        self._counts.stalls += 1
        restart: Callable[[], None] | None = getattr(attempt.engine, "restart", None)
        if restart and not attempt.was_restarted:
            attempt.was_restarted = True
            if self._restarted_s.get(attempt.at, -math.inf) >= attempt.started_s:
                return  # for another attempt, whose result comes here as well
            self._restarted_s[attempt.at] = self._loop.time()
            log.warning("engine %r: no word for %.1f s, its process is ended", self._name, silent_s)
            try:
                restart()
            except Exception:  # around an engine: its call is cancelled next time
                log.exception("engine %r could not be restarted", self._name)
        elif attempt.task:
            attempt.is_given_up = True
            log.warning("engine %r: no word for %.1f s, its call is cancelled", self._name, silent_s)
            attempt.task.cancel()


class Retries:
    """The retries of one engine."""

    def __init__(self, name: str, scheduler: EngineScheduler, table: WorkTable, time_s: Callable[[], float]) -> None:
        self._name = name
        self._scheduler = scheduler
        self._table = table
        self._time_s = time_s

    def settle(self, attempt: Attempt, error: BaseException | None) -> None:
        """Retry or fail the items of a batch without an outcome, after the return of the call."""
        left = attempt.open
        for work in attempt.works:
            self._table.free(work, attempt)
        for work in left:
            attempt.owners |= work.owners
        self._scheduler.finish(left, self._time_s())
        if isinstance(error, EngineCrashed):
            self.again(left, error)
        elif error is None:
            self._ask_once_more(left)
        elif len(attempt.works) == 1 or isinstance(error, EngineClosed):
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
            self._scheduler.finish((work,), self._time_s())
            if not work.may_repeat:
                self._table.fail(work, error)
            elif work.crashes > ALONE_AFTER:
                self._table.fail(work, caused(Poisoned(_BLAMED.format(self._name, work.crashes)), error))
            else:
                self._resubmit([work])

    def _resubmit(self, items: Sequence[WorkItem], *, is_apart: bool = False) -> None:
        """Queue items again as separate requests. `is_apart`: the items share no batch with other requests."""
        first = items[0]
        is_alone = first.crashes >= ALONE_AFTER  # until the end: also if an answer was lost meanwhile
        apart = ("apart", first.item.id, first.attempts) if is_apart or is_alone else None
        former: dict[Request, list[WorkItem]] = {}
        for work in items:
            former.setdefault(work.request, []).append(work)
        for request, mine in former.items():
            again = replace(request, items=mine, group=apart or request.group, is_alone=is_alone)
            for work in mine:
                work.attempt, work.request = None, again
            self._scheduler.resubmit(again, self._time_s())


_BLAMED = "engine {!r} crashed {} times with this item in it, the last time alone"


def caused(error: BaseException, cause: BaseException) -> BaseException:
    """Set the cause of an error. Returns the error."""
    error.__cause__ = cause
    return error
