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
"""CPU seconds per second of calls above which the process is busy; Python on all threads reaches little more than 1."""

BUSY_SIDE_BY_SIDE = 0.6
"""The same where calls overlapped: the time that one of them waits is of use to the others. Beside other processes, on
full cores, 64 calls at once reached 0.73 to 0.9.
"""

FREE = 0.2
"""The same below which a busy process, in which nothing runs ahead, is free again at once: running ahead takes up to
three times the CPU time of a call.
"""

AGAIN_S = 10.0
"""Seconds after which running ahead is tried again if a busy process has become neither busy nor free."""

STALE_S = 1.0
"""Seconds without calls after which a judgement is forgotten."""


class Processor:
    """Counts the CPU time of the process while calls are running; from any thread.

    `limits`: the share of CPU time from which on the process is busy: with one call at a time, and side by side.
    """

    def __init__(self, limits: tuple[float, float] = (BUSY, BUSY_SIDE_BY_SIDE)) -> None:
        self.limits = limits
        self._begin_anew()
        forks.in_child(self._begin_anew)

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0
        self._most = self._most_before = 0
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

    @property
    def side_by_side(self) -> int:
        """The most calls that were running at once in the present window and the last one."""
        return max(self._most, self._most_before)

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
                    self._judge(now[0], self._cpu_s / self._wall_s)
            elif now[0] > self._last[0] + STALE_S:
                self._busy_until_s = 0.0
            self._last = now
            self._under_way += change
            self._most = max(self._most, self._under_way)

    def _judge(self, now_s: float, share: float) -> None:
        if share > self.limits[self._most > 1]:
            self._busy_until_s = now_s + AGAIN_S
        elif share < FREE:
            self._busy_until_s = 0.0
        self._wall_s = self._cpu_s = 0.0
        self._most, self._most_before = self._under_way, self._most


processor = Processor()
