"""Several applications on shared engines, from light load to saturation: each policy, with and without the passes.

    python benchmarks/load.py                      LangChain on engines that wait by published profiles (6 minutes)
    python benchmarks/load.py --engines real       LangChain on vLLM, MiniLM, a cross-encoder and Chroma, here
    python benchmarks/load.py --graphs             e-graphs without a framework, on either of them
    python benchmarks/load.py --engines simulate   e-graphs in virtual time (2 minutes)
    python benchmarks/load.py --plot load.svg      mean and P99 against the rate, as a picture

Queries arrive at random (Poisson), of all apps in a mix, whether those before have ended or not. Rates are shares of
the capacity: of what comes out when `--burst` queries come at once, under policy `to` with the passes. Each line of the
table gets the same queries at the same moments. No two queries ask the same, so nothing is joined or cached but the
prompts' common beginnings.

`original` is the framework's own `ainvoke` on the same engines, with their dynamic batching (`to`).
"""

from __future__ import annotations

import gc
import itertools
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from load_apps import InRealTime, Simulated, make_engines
from load_runs import HEADS, PROFILE_S, ROW, Measured, Run, Way, World, lines, picture
from simulator.arrivals import poisson

from teola_plugin import runtime
from teola_plugin.runtime.scheduler.policies import POLICIES
from teola_plugin.screen import own_screen, progress_bar


class Engines(StrEnum):
    profile = "profile"
    real = "real"
    simulate = "simulate"


SIZES = {Engines.profile: (40, 1), Engines.real: (20, 1), Engines.simulate: (150, 4)}
"""Queries for each seed and rate, and seeds."""


def main(
    engines: Annotated[Engines, typer.Option()] = Engines.profile,
    policy: Annotated[list[str] | None, typer.Option(help="Those to compare (all).")] = None,
    share: Annotated[list[float] | None, typer.Option(help="Rates, as shares of the capacity (0.3 and 0.9).")] = None,
    app: Annotated[list[str] | None, typer.Option(help="Apps of the mix, by parts of their names (all).")] = None,
    queries: Annotated[int | None, typer.Option(min=2, help="For each seed and rate.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions, each with other arrivals.")] = None,
    burst: Annotated[int, typer.Option(min=2, help="Queries at once, to find the capacity.")] = 40,
    graphs: Annotated[bool, typer.Option("--graphs", help="E-graphs in place of LangChain.")] = False,
    instances: Annotated[
        int, typer.Option(min=1, help="Of each engine (simulate, or profile engines with --graphs).")
    ] = 1,
    without: Annotated[bool, typer.Option(help="Also without the passes.")] = True,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (SVG).")] = None,
) -> None:
    """Print one line for each way of running the queries, at each rate."""
    usual = SIZES[engines]
    size = Size(queries or usual[0], range(1, 1 + (seeds or usual[1])), burst * instances)
    runs: list[Run] = []
    with own_screen() as screen, progress_bar(screen.console) as progress:
        task = progress.add_task("starting the engines", total=None)
        with _world(engines, graphs, instances, app or [""]) as world:
            ways = [Way(p, has) for has in ((True, False) if without else (True,)) for p in policy or [*POLICIES]]
            ways = [*([Way()] if world.has_original else []), *ways]
            load = Load(world, size)
            progress.update(task, description="finding the capacity")
            capacity = load.capacity()
            screen.say(
                f"{engines} engines, seconds; {size.queries} queries for each of {len(size.seeds)} seeds; "
                f"{', '.join(f'{n:g} {name}' for name, n in world.mix.items())}; capacity {capacity:.2f} per s"
            )
            screen.say(ROW.format(*HEADS))
            for rate in sorted(share or (0.3, 0.9)):
                found = load.runs(ways, rate, rate * capacity, lambda said: progress.update(task, description=said))
                runs += found
                for line in lines(found):
                    screen.say(line)
        if plot:
            plot.write_text(picture(runs), encoding="utf-8")
            screen.say(f"picture: {plot}")


@contextmanager
def _world(engines: Engines, graphs: bool, instances: int, apps: Sequence[str]) -> Iterator[World]:
    if engines == Engines.simulate:
        yield Simulated(apps, instances)
        return
    try:
        if not graphs:
            from load_chains import Chains

            world: World = Chains(engines.value, apps)
        elif engines == Engines.real:
            from load_real import REAL_GRAPHS, real_engines

            world = InRealTime(apps, real_engines(PROFILE_S).shared, REAL_GRAPHS)
        else:
            world = InRealTime(apps, make_engines(instances))
        gc.collect()
        gc.freeze()  # else a collection of all that was imported stops half a second of whichever run it falls into
        yield world
    finally:
        runtime.host.close()


@dataclass(frozen=True, slots=True)
class Size:
    queries: int
    seeds: Sequence[int]
    burst: int


class Load:
    """Runs the queries of one world."""

    def __init__(self, world: World, size: Size) -> None:
        self._world = world
        self._size = size
        self._runs = itertools.count(1)

    def capacity(self) -> float:
        """Queries per second of a burst."""
        arrivals = [replace(a, at_s=0.0) for a in poisson(1.0, self._world.mix, count=self._size.burst, seed=0)]
        return self._size.burst / self._world.measure(Way("to"), arrivals, next(self._runs)).took_s

    def runs(self, ways: Sequence[Way], share: float, rate: float, say: Callable[[str], None]) -> list[Run]:
        """For each seed all ways, in another order: a time in which the machine is slow is no single way's."""
        found: dict[Way, list[Measured]] = {way: [] for way in ways}
        for seed in self._size.seeds:
            arrivals = poisson(rate, self._world.mix, count=self._size.queries, seed=seed)
            for way in random.Random(seed).sample(ways, len(ways)):
                say(f"{share:g} {way}, seed {seed}")
                found[way].append(self._world.measure(way, arrivals, next(self._runs)))
        return [self._run(way, share, found[way]) for way in ways]

    def _run(self, way: Way, share: float, found: Sequence[Measured]) -> Run:
        return Run(
            way, share, tuple(tuple(e.latency_s for e in each.ended if not e.error) for each in found),
            statistics.fmean(len(each.ended) / each.took_s for each in found),
            {name: statistics.fmean(f.batches.get(name, 0.0) for f in found) for name in found[0].batches},
            tuple(repr(e.error) for each in found for e in each.ended if e.error),
            statistics.fmean(each.busy for each in found), max(each.pause_s for each in found),
        )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
