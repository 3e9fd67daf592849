"""Many simulations at once, each on a core of its own.

def point(rate: float) -> float:                                  # of a module, so that other processes find it
    arrivals = poisson(rate, {"rag": 1}, count=500, seed=1)
    return statistics.fmean(each.latency_s for each in simulate(arrivals, {"rag": rag()}, system()).ended)

curve = simulate_many(point, [0.5, 1.0, 2.0])
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def simulate_many(run: Callable[[T], R], settings: Iterable[T], *, processes: int | None = None) -> list[R]:
    """What `run` makes of each setting, in their order. `processes`: None for one on each core.

    `run`, the settings and what it returns travel between processes that are started for this (spawned, not forked).
    """
    with ProcessPoolExecutor(processes or os.cpu_count(), get_context("spawn")) as pool:
        return list(pool.map(run, settings))
