"""An event loop with virtual time: when nothing is ready, the clock jumps to the next timer.

Schedulers, hosts and profile engines run on the loop unchanged, an hour of virtual time in a second, and in the same
order each time: nothing depends on the speed of the machine.

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work())                 # asyncio.sleep(3600) in there takes no time

Threads do not belong here: the clock would run away from them.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class Stuck(RuntimeError):
    """All tasks wait, and no timer is due any more."""


class _Jumping(selectors.DefaultSelector):
    """A selector that advances the clock instead of waiting."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise Stuck("all tasks wait for something that never comes")
        self.now_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module. Time starts at 0. Raises (`run_until_complete`): Stuck."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._jumping.now_s

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Schedule without a wake-up: there are no other threads."""
        return self.call_soon(callback, *args, context=context)
