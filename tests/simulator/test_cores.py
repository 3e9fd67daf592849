"""Engines that share the processors of one machine."""

from __future__ import annotations

from functools import partial

import pytest
from simulator.clock import Clock
from simulator.cores import Cores

Jobs = list[tuple[float, float, float]]
"""When each begins, what it takes on processors enough, and how many it uses."""


@pytest.mark.parametrize(
    ("count", "jobs", "ends"),
    [
        (1, [(0.0, 1.0, 1.0)], [1.0]),
        (1, [(0.0, 1.0, 1.0), (0.0, 1.0, 1.0)], [2.0, 2.0]),
        (2, [(0.0, 1.0, 1.0), (0.0, 1.0, 1.0)], [1.0, 1.0]),
        (1, [(0.0, 1.0, 1.0), (0.5, 1.0, 1.0)], [1.5, 2.0]),
        (2, [(0.0, 1.0, 1.0), (0.0, 1.0, 1.0), (0.0, 2.0, 1.0)], [1.5, 1.5, 2.5]),
        (2, [(0.0, 3.0, 1.5), (0.0, 3.0, 1.5)], [4.5, 4.5]),
        (1, [(0.0, 2.0, 0.5), (0.0, 1.0, 0.5)], [2.0, 1.0]),
        (1, [(0.0, 2.0, 1.0), (0.0, 1.0, 0.0)], [2.0, 1.0]),  # one that only waits
        (1, [(0.0, 1.0, 1.0), (5.0, 1.0, 1.0)], [1.0, 6.0]),
    ],
)
def test_with_too_few_processors_all_that_runs_takes_longer(count: float, jobs: Jobs, ends: list[float]) -> None:
    clock, found = Clock(), dict[int, float]()
    cores = Cores(clock, count)

    def end(n: int) -> None:
        found[n] = clock.now_s

    def begin(n: int, seconds: float, demand: float) -> None:
        cores.at(demand, clock.now_s + seconds, end, n)

    for n, (begin_s, seconds, demand) in enumerate(jobs):
        clock.at(begin_s, partial(begin, n, seconds, demand))
    clock.run()
    assert [found[n] for n in range(len(jobs))] == pytest.approx(ends)


def test_what_follows_from_an_end_runs_beside_the_others() -> None:
    clock, found = Clock(), list[float]()
    cores = Cores(clock, 1)
    cores.at(1.0, 1.0, lambda: cores.at(1.0, clock.now_s + 1.0, lambda: found.append(clock.now_s)))
    cores.at(1.0, 3.0, lambda: found.append(clock.now_s))
    clock.run()
    assert found == pytest.approx([4.0, 5.0])
