"""Engines that share the processors of one machine."""

from __future__ import annotations

from functools import partial

import pytest
from simulator.cores import Cores

from teola_plugin.runtime.hosts.virtual_time import Stuck, VirtualLoop

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
    loop, found = VirtualLoop(), dict[int, float]()
    cores = Cores(loop, count)

    def end(n: int) -> None:
        found[n] = loop.time()

    def begin(n: int, seconds: float, demand: float) -> None:
        cores.at(demand, loop.time() + seconds, end, n)

    for n, (begin_s, seconds, demand) in enumerate(jobs):
        loop.call_at(begin_s, partial(begin, n, seconds, demand))
    run_until_idle(loop)
    assert [found[n] for n in range(len(jobs))] == pytest.approx(ends)


def test_what_follows_from_an_end_runs_beside_the_others() -> None:
    loop, found = VirtualLoop(), list[float]()
    cores = Cores(loop, 1)
    cores.at(1.0, 1.0, lambda: cores.at(1.0, loop.time() + 1.0, lambda: found.append(loop.time())))
    cores.at(1.0, 3.0, lambda: found.append(loop.time()))
    run_until_idle(loop)
    assert found == pytest.approx([4.0, 5.0])


def run_until_idle(loop: VirtualLoop) -> None:
    with pytest.raises(Stuck):
        loop.run_forever()
    loop.close()
