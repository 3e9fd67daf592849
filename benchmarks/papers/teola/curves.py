"""Latency against the rate: every way, from light load to the saturation of LlamaDist.

    1  the largest batches of each tuned way: of 1, 2, 4, ... those with the lowest mean at 0.9 of what all can serve
    2  the capacity of each way: what its busiest engine could serve, by the batches of a burst
    3  every way at rates that are shares of LlamaDist's capacity, the same queries at the same moments

Beyond its own capacity the latency of a way grows with the length of the run, and so does a ratio to it: such a rate
counts for no largest speed-up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from papers.figures import Setting
from papers.teola.measure import Load, Measured, Place, measure
from papers.teola.modes import BEST, PAPERS, Way
from papers.teola.testbed import LARGEST

Largest = Mapping[Way, tuple[int, int]]
"""The largest batches of (LLMs, other engines)."""

DOUBLED = (1, 2, 4, 8, 16, 32, 64)
TUNED_AT = 0.9
"""The share of the least capacity of all tuned ways at which their largest batches are tried."""

STEADY = 0.95
"""A way is not saturated up to this share of its capacity."""

MANY = 64
"""Instances of each engine: as good as without end for one query."""

SEEDS = 8
"""Draws of arrivals at each rate, whose means are taken: one alone can make ways differ by 2 % that do the same."""

TUNING_SEEDS = 3
"""Of these the first so many are drawn to find the largest batches by: one alone can find some that are bad."""

SAME = 0.05
"""Two rates that differ by less are one."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Queries of a run, of a burst, and one at a time; seeds; and the rates as shares of LlamaDist's capacity."""

    queries: int
    burst: int
    alone: int
    seeds: tuple[int, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(
        cls, setting: Setting, shares: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.85, 1.0), queries: int = 120
    ) -> Sizes:
        if setting.quick:
            few = max(2, queries // 30)
            return cls(few, few, 1, (setting.seed,), (0.1, 1.0))
        seeds = tuple(range(setting.seed, setting.seed + SEEDS))
        return cls(queries, queries // 3, queries // 6, seeds, shares)


@dataclass(frozen=True, slots=True)
class Curves:
    """Of every way the runs at every rate, one for each seed, and its capacity in queries a second."""

    rates: tuple[float, ...]
    runs: Mapping[Way, tuple[tuple[Measured, ...], ...]]
    bursts: Mapping[Way, Measured]
    largest: Largest

    def mean_s(self, way: Way, at: int) -> float:
        return statistics.fmean(run.mean_s for run in self.runs[way][at])

    def p99_s(self, way: Way, at: int) -> float:
        return statistics.fmean(run.p99_s for run in self.runs[way][at])

    def is_steady(self, way: Way, at: int) -> bool:
        """The rate is below the way's capacity."""
        return self.rates[at] <= STEADY * self.bursts[way].capacity_per_s

    def speed_up(self, baseline: Way, at: int, ours: Way = BEST) -> float:
        """How many times as long a query of the baseline takes."""
        return self.mean_s(baseline, at) / self.mean_s(ours, at)

    def most(self, ways: Sequence[Way], ours: Way = BEST) -> float:
        """The largest speed-up over any of them, at rates that it can serve; 0 if there is no such rate."""
        return max(
            (self.speed_up(way, at, ours) for way in ways for at in self._places if self.is_steady(way, at)),
            default=0.0,
        )

    def least(self, ways: Sequence[Way], ours: Way = BEST) -> float:
        """The least speed-up over the best of them, over all rates."""
        return min(self.speed_up(way, at, ours) for way in ways for at in self._places)

    @property
    def _places(self) -> range:
        return range(len(self.rates))


def curves(setting: Setting, place: Place, ways: Sequence[Way], sizes: Sizes, more: Sequence[float] = ()) -> Curves:
    """Every way at shares of the capacity of LlamaDist-TO, at two of LlamaDist-PO's, and at `more`."""
    largest = tuned(setting, place, ways, sizes)
    loads = [Load(place, way, math.inf, sizes.burst, setting.seed, largest[way]) for way in ways]
    bursts = {run.load.way: run for run in setting.map(measure, loads)}
    rates = _rates(bursts, sizes, setting.quick, more)
    loads = [
        Load(place, way, rate, sizes.queries, seed, largest[way])
        for way in ways
        for rate in rates
        for seed in sizes.seeds
    ]
    measured = setting.map(measure, loads)
    runs = {
        way: tuple(
            tuple(run for run in measured if run.load.way == way and run.load.rate_per_s == rate) for rate in rates
        )
        for way in ways
    }
    return Curves(rates, runs, bursts, largest)


def _rates(bursts: Mapping[Way, Measured], sizes: Sizes, is_quick: bool, more: Sequence[float]) -> tuple[float, ...]:
    chains: dict[str, float] = {}
    for way in PAPERS:
        if way in bursts:
            chains.setdefault(way.policy, bursts[way].capacity_per_s)  # of LlamaDist, else of LlamaDistPC
    wanted = [share * chains.get("to", max(run.capacity_per_s for run in bursts.values())) for share in sizes.shares]
    if "po" in chains and not is_quick:
        wanted += [share * chains["po"] for share in (0.5, STEADY)]
    kept: list[float] = []
    for rate in sorted([*wanted, *more]):
        if not kept or rate > (1 + SAME) * kept[-1]:
            kept.append(rate)
    return tuple(kept)


def tuned(setting: Setting, place: Place, ways: Sequence[Way], sizes: Sizes) -> Largest:
    """The largest batches of each way: the engines' own; if tuned, of the doubled ones those with the lowest mean."""
    found = dict.fromkeys(ways, LARGEST)
    tuning = [way for way in ways if way.is_tuned]
    loads = [Load(place, way, math.inf, sizes.burst, setting.seed, LARGEST) for way in tuning]
    rate = TUNED_AT * min((run.capacity_per_s for run in setting.map(measure, loads)), default=0.0)
    doubled = DOUBLED[3::3] if setting.quick else DOUBLED
    for at in (1, 0):  # first the other engines, then the LLMs
        loads = [
            Load(place, way, rate, sizes.queries, seed, _with(found[way], at, each))
            for way in tuning
            for each in reversed(doubled)
            if each <= LARGEST[at]
            for seed in sizes.seeds[:TUNING_SEEDS]
        ]
        tried: dict[Way, dict[tuple[int, int], float]] = {way: {} for way in tuning}
        for run in setting.map(measure, loads):
            sums, largest = tried[run.load.way], run.load.largest or LARGEST
            sums[largest] = sums.get(largest, 0.0) + run.mean_s
        for way, sums in tried.items():
            found[way] = min(sums, key=lambda largest: sums[largest])
    return found


def _with(largest: tuple[int, int], at: int, value: int) -> tuple[int, int]:
    return (value, largest[1]) if at == 0 else (largest[0], value)
