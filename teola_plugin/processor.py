"""CPU load of the process while calls are running.

Running ahead uses time in which the framework waits for models. If Python computes all the time (many concurrent calls,
models which answer at once), running ahead would only slow the calls down, so nothing runs ahead.

    processor.begin()      # a call begins
    processor.is_busy      # by the last WINDOW_S seconds of calls
    processor.end()        # a call has ended

Local models which compute in separate threads are not counted, since the interpreter stays free.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from teola_plugin import forks
from teola_plugin.finalizers import kept_off

WINDOW_S = 0.25
"""Seconds of running calls before a judgement."""

BUSY = 0.8
"""CPU seconds per second of calls; Python on all threads reaches little more than 1."""

STALE_S = 1.0
"""Seconds for which a judgement holds."""


class Processor:
    """Counts the CPU time of the process while calls are running; from any thread.

    `limit`: the CPU seconds per second of calls from which on the process is busy.
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
        """Whether the last calls left no time to run ahead."""
        return time.perf_counter() < self._busy_until_s

    @property
    def has_one_call(self) -> bool:
        """Whether a single call is running."""
        return self._under_way == 1

    def begin(self) -> None:
        """A call begins."""
        self._note(1)

    def end(self) -> None:
        """A call has ended."""
        self._note(-1)

    @contextmanager
    def model(self) -> Iterator[None]:
        """Run a local model in the current thread, inside the block."""
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
