"""Whether this process is busy computing while calls are under way.

What runs ahead uses time in which the framework waits for models. Where there is none, because Python computes all the
time (many calls side by side, models that answer at once), it only takes time from the calls: nothing runs ahead then.

    processor.begin()      # a call begins
    processor.is_busy      # what the last WINDOW_S seconds of calls say
    processor.end()        # a call has ended

Local models that compute in threads of their own are not counted: they leave the interpreter free.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from teola_plugin import forks
from teola_plugin.finalizers import kept_off

WINDOW_S = 0.25
"""Of calls under way, before they are judged."""

BUSY = 0.8
"""CPU seconds per second of calls; Python on all of its threads does not come to much more than one."""

STALE_S = 1.0
"""How long a judgement holds."""


class Processor:
    """Counts the CPU time of this process while calls are under way; from any thread.

    `limit`: the CPU seconds per second of calls from which on it is busy.
    """

    def __init__(self, limit: float = BUSY) -> None:
        self.limit = limit
        self._begin_anew()
        forks.in_child(self._begin_anew)

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0
        self._models_s = 0.0
        self._wall_s = self._cpu_s = 0.0
        self._last = (0.0, 0.0)
        self._busy_until_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether the last calls left no time to run ahead in."""
        return time.perf_counter() < self._busy_until_s

    def begin(self) -> None:
        """A call begins."""
        self._note(1)

    def end(self) -> None:
        """A call has ended."""
        self._note(-1)

    @contextmanager
    def model(self) -> Iterator[None]:
        """A local model computes inside, in this thread."""
        began_s = time.thread_time()
        try:
            yield
        finally:
            self._models_s += time.thread_time() - began_s

    def _note(self, change: int) -> None:
        with kept_off, self._lock:
            now = (time.perf_counter(), time.process_time() - self._models_s)
            if self._under_way > 0:
                self._wall_s += now[0] - self._last[0]
                self._cpu_s += now[1] - self._last[1]
                if self._wall_s >= WINDOW_S:
                    self._busy_until_s = now[0] + STALE_S if self._cpu_s > self.limit * self._wall_s else 0.0
                    self._wall_s = self._cpu_s = 0.0
            self._last = now
            self._under_way += change


processor = Processor()
