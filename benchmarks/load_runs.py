"""What the load benchmark measures, and how it is shown."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from jinja2 import Environment, FileSystemLoader
from simulator.arrivals import Arrival, Ended

from teola_plugin.comparison.result import SEED
from teola_plugin.engines import Batch, Emit, Engine

ROW = "{:>6}  {:32}{:>8}{:>8}{:>8}{:>8}{:>8}  {:19}{:19} {}"
HEADS = ("rate", "", "mean", "P50", "P95", "P99", "per s", "mean ratio [95 %]", "P99 ratio [95 %]", "items per batch")
BASE = "topology"
"""Ratios are those to this policy with the passes, at the same rate."""


RESAMPLES = 500

PROFILE_S = 20.0
"""For the profile of each real engine."""


@dataclass(frozen=True, slots=True)
class Way:
    """How the queries are run; the framework alone if `policy` is empty."""

    policy: str = ""
    has_passes: bool = True

    def __str__(self) -> str:
        return f"{self.policy}{'' if self.has_passes else ', no passes'}" if self.policy else "original"


@dataclass(frozen=True, slots=True)
class Run:
    """What one way came to at one rate: latencies of the queries of each seed, and mean batch sizes by engine."""

    way: Way
    share: float
    latencies_s: tuple[tuple[float, ...], ...]
    per_s: float
    batches: Mapping[str, float]
    errors: tuple[str, ...]
    busy: float = 0.0
    pause_s: float = 0.0

    @property
    def all_s(self) -> list[float]:
        return [latency_s for seed in self.latencies_s for latency_s in seed]

    @property
    def mean_s(self) -> float:
        return statistics.fmean(self.all_s)

    def percentile_s(self, percent: float) -> float:
        return float(np.percentile(self.all_s, percent))


@dataclass(frozen=True, slots=True)
class Measured:
    """One seed: how the queries ended, in how many seconds, and mean batch sizes by engine.

    In real time, `busy` is the share of one core that this process had: near 1 the interpreter is what is measured.
    `pause_s`: how long its event loop stood still at most: a second and more is the machine's, and spoils the line.
    """

    ended: Sequence[Ended]
    took_s: float
    batches: Mapping[str, float]
    busy: float = 0.0
    pause_s: float = 0.0


class World(Protocol):
    """Apps on engines. `mix`: how often each comes."""

    mix: Mapping[str, float]
    has_original: bool

    def measure(self, way: Way, arrivals: Sequence[Arrival], run: int) -> Measured:
        """Run the queries; `run` makes their questions those of no other run."""
        ...


def lines(runs: Sequence[Run]) -> Iterable[str]:
    """The table of one rate."""
    base = next((run for run in runs if run.way == Way(BASE)), None)
    for run in runs:
        percentiles = (run.percentile_s(percent) for percent in (50, 95, 99))
        ratios = [ratio(run, base, of) for of in (np.mean, partial(np.percentile, q=99))] if base else ["", ""]
        batches = ", ".join(f"{name} {size:.1f}" for name, size in run.batches.items())
        batches += f", busy {run.busy:.0%}, pause {run.pause_s:.2f}" if run.busy else ""
        failed = f"  {len(run.errors)} FAILED: {run.errors[0]:.120}" if run.errors else ""
        figures = (f"{seconds:.2f}" for seconds in (run.mean_s, *percentiles, run.per_s))
        yield ROW.format(f"{run.share:g}", str(run.way), *figures, *ratios, batches + failed).rstrip()


def ratio(run: Run, base: Run, of: Callable[[np.ndarray], np.floating]) -> str:
    """How the figure compares with the base, and the interval over resamples of seeds, or of queries if there is one.

    Both have the same queries, so the same ones are drawn of both. With one seed that leaves out what differs from
    run to run: in real time some percent on a quiet machine, anything on a busy one.
    """
    ours, theirs = (np.array([np.array(seed) for seed in each.latencies_s]) for each in (run, base))
    if ours.shape != theirs.shape:
        return "-"  # some failed
    if len(ours) == 1:
        ours, theirs = ours.T, theirs.T
    drawn = np.random.default_rng(SEED).integers(0, len(ours), (RESAMPLES, len(ours)))
    ratios = [of(ours[rows].ravel()) / of(theirs[rows].ravel()) for rows in drawn]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return f"{of(ours.ravel()) / of(theirs.ravel()):.2f} [{low:.2f}, {high:.2f}]"


def picture(runs: Sequence[Run]) -> str:
    """Mean and P99 against the rate, a line for each way."""
    shares = sorted({run.share for run in runs})
    panels = [("mean", lambda run: run.mean_s), ("P99", lambda run: run.percentile_s(99))]
    ways = list(dict.fromkeys(run.way for run in runs))
    series = [
        {
            "title": f"{title}, seconds",
            "top": max(map(of, runs)),
            "lines": [[(run.share, of(run)) for run in runs if run.way == way] for way in ways],
        }
        for title, of in panels
    ]
    template = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True).get_template("load.svg.j2")
    return template.render(panels=series, shares=shares, ways=[(str(way), way.has_passes) for way in ways])


class Meter:
    """How many items the batches of an engine have; where it batches continuously, how many items run at once."""

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self._is_concurrent = engine.capabilities.concurrent
        self._run = engine.run
        self._running = 0
        self._sizes: list[int] = []
        engine.run = self.run  # type: ignore[method-assign]

    async def run(self, batch: Batch, emit: Emit) -> None:
        size = len(batch.items)
        self._running += size
        self._sizes.append(self._running if self._is_concurrent else size)
        try:
            await self._run(batch, emit)
        finally:
            self._running -= size

    def mean(self) -> float:
        """Since the last time it was asked."""
        sizes, self._sizes = self._sizes, []
        return statistics.fmean(sizes) if sizes else 0.0


async def measured(run: Awaitable[Sequence[Ended]], meters: Sequence[Meter]) -> Measured:
    """What becomes of the queries, and what the process, its event loop and its engines do meanwhile."""
    for meter in meters:
        meter.mean()
    watch = asyncio.create_task(_longest_pause_s())
    began_s, busy_s = time.perf_counter(), time.process_time()
    ended = await run
    took_s, busy_s = time.perf_counter() - began_s, time.process_time() - busy_s
    watch.cancel()
    return Measured(ended, took_s, {meter.name: meter.mean() for meter in meters}, busy_s / took_s, await watch)


async def _longest_pause_s() -> float:
    """How long the event loop stood still at most, until this is cancelled: the machine had other things to do."""
    longest_s = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            woken_s = time.perf_counter()
            await asyncio.sleep(0.05)
            longest_s = max(longest_s, time.perf_counter() - woken_s - 0.05)
    return longest_s
