"""An event loop whose clock jumps: when nothing is ready, it is at once as late as the next timer.

Schedulers, hosts and profile engines run on it as they are, an hour of theirs in a second of ours, and in the same
order each time: nothing there depends on how fast this machine is.

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work())                 # asyncio.sleep(3600) in there takes no time

Threads do not belong here: the clock would run away from them.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class Stuck(RuntimeError):
    """Everybody waits, and nothing is due any more."""


class _Jumping(selectors.DefaultSelector):
    """Instead of waiting, it moves the clock on."""

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
    """See the module. Its time starts at 0. Raises (`run_until_complete`): Stuck."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumping.now_s

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """There are no other threads, and nobody has to be woken."""
        return self.call_soon(callback, *args, context=context)
