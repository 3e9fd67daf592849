"""Recovery of instances that crashed or stall.

    nothing emitted for `stall_s` --> `restart` --again, or no `restart`--> its call is cancelled
    crash --> takes no work until `recovered` returns
                 --raises, and no other instance is up--> `gone`
                 --raises, and another is--> `recovered` is called again after a while

Both a restart and a cancelled call count as crashes for the open items of the instance.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any

from teola_plugin.engines import Engine
from teola_plugin.runtime.scheduler.batching import EngineScheduler
from teola_plugin.runtime.scheduler.work_item import Attempt, Counts

log = logging.getLogger(__name__)
Spawn = Callable[[Coroutine[Any, Any, None]], object]

RECOVERY_S = 0.5
"""The time after which an instance without `recovered` is assumed to work again, in seconds."""

AGAIN_S = (5.0, 30.0, 120.0)
"""The time after which an instance that could not recover is tried again, in seconds, if another instance is up; then
the instance gets work again."""


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
        log.warning("engine %r: instance %d crashed with %d items in it", self._name, attempt.at, len(attempt.numbers))
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
