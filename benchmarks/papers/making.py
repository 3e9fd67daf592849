"""Figures are made one after the other, the independent parts of each side by side in processes.

with processes(2, progress) as spread:
    made = [make(figure, Setting(quick=True, map=spread)) for figure in figures]
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

from papers.figures import Figure, Map, R, Result, Setting, T


@dataclass(frozen=True, slots=True)
class Made:
    """A figure, what came out, and how long it took on this machine."""

    figure: Figure
    result: Result
    took_s: float


Progress = Callable[[int, int], None]
"""Told how many parts are done, and of how many, whenever either changes."""


def make(figure: Figure, setting: Setting) -> Made:
    """Make one."""
    began_s = time.perf_counter()
    result = figure.make(setting)
    return Made(figure, result, time.perf_counter() - began_s)


@contextmanager
def processes(count: int | None = None, progress: Progress = lambda done, total: None) -> Iterator[Map]:
    """A `Map` over so many processes (None: one for each core), which are fresh: nothing of this one is forked."""
    done = total = 0

    with ProcessPoolExecutor(count or os.cpu_count(), get_context("spawn")) as pool:

        def spread(function: Callable[[T], R], items: Sequence[T], /) -> list[R]:
            nonlocal done, total
            total += len(items)
            futures: list[Future[R]] = [pool.submit(function, item) for item in items]
            try:
                for _ in as_completed(futures):
                    done += 1
                    progress(done, total)
                return [future.result() for future in futures]
            finally:
                for future in futures:
                    future.cancel()  # one raised: the rest is of no use

        yield spread
