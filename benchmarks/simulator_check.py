"""The simulator against real runs: mean latencies of both, side by side, at five loads.

    python benchmarks/simulator_check.py                      profile engines, in virtual time (20 s)
    python benchmarks/simulator_check.py --engines profile    the same, really waiting (3 minutes)
    python benchmarks/simulator_check.py --engines real       vLLM, MiniLM, a cross-encoder on this machine (6 minutes)
    python benchmarks/simulator_check.py --speed              simulated queries per second of one core

Loads are shares of the capacity: of what comes out of the simulation when many queries come at once. Both sides have
the same queries at the same moments. Profiles of the real engines are measured in the same run, before it.

The simulator has texts of its own. `same texts` is the simulation with what the profile engines say, where queries can
be compared one by one: so many of them end within a decode step of the run. `late waits` is the simulation in which
every wait of an engine takes as much longer as waits take on this machine, measured before: more, the busier it is.

Real engines share the cores of this machine and slow one another down. How many cores each keeps busy while it works
is measured with its profile. `own cores` is the simulation in which each engine has cores enough of its own.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache, partial
from typing import Annotated, Any

import typer
from load_apps import (
    BATCH_ITEMS,
    CHUNK_WORDS,
    FUNCTIONS,
    PREFILL_TOKENS,
    driven,
    inputs_of,
    make_engines,
    mix_of,
    on_host,
    prepare,
    texts,
    warm_up,
)  # fmt: skip
from load_real import REAL_GRAPHS, real_engines
from simulator import BatchServer, LlmServer, System, Workload, simulate
from simulator.arrivals import Arrival, Ended, drive, poisson

from teola_plugin import runtime
from teola_plugin.profile import PAPER, PAPER_LLM, LlmProfile, Profile
from teola_plugin.runtime.engines.simulated_text import answer, tokenize
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.hosts.virtual_time import VirtualLoop
from teola_plugin.runtime.session.graph_runner import run_query
from teola_plugin.runtime.session.plan_executor import Prepared
from teola_plugin.screen import own_screen, progress_bar

ROW = "{:>5}{:>8}  {:>8}{:>11}{:>8}  {:>8}{:>11}{:>8}  {:>11}{:>8}"
HEADS = ("load", "per s", "mean", "simulated", "diff", "P95", "simulated", "diff")
SAME_TEXTS, LATE, OWN = ("same texts", "equal"), ("late waits", "diff"), ("own cores", "diff")
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
BURST = 60


class Engines(StrEnum):
    virtual = "virtual"
    profile = "profile"
    real = "real"


QUERIES = {Engines.virtual: 200, Engines.profile: 60, Engines.real: 40}
"""At each load."""


@dataclass(frozen=True, slots=True)
class World:
    """Apps on engines, and what is simulated in their place. `run`: what became of queries; a step takes `step_s`.

    `other`: simulated for a second comparison.
    """

    mix: Mapping[str, float]
    run: Callable[[Sequence[Arrival]], list[Ended]]
    workloads: Mapping[str, Workload]
    system: System
    step_s: float
    other: System | None = None
    other_heads: tuple[str, str] = ("", "")
    note: str = ""


def main(
    engines: Annotated[Engines, typer.Option()] = Engines.virtual,
    share: Annotated[list[float] | None, typer.Option(help="Loads, as shares of the capacity.")] = None,
    queries: Annotated[int | None, typer.Option(min=2, help="At each load.")] = None,
    seed: Annotated[int, typer.Option()] = 1,
    app: Annotated[list[str] | None, typer.Option(help="Apps of the mix, by parts of their names (all).")] = None,
    instances: Annotated[int, typer.Option(min=1, help="Of each engine (not real).")] = 1,
    budget: Annotated[float, typer.Option(min=1, help="Seconds for the profile of each real engine.")] = 20.0,
    speed: Annotated[bool, typer.Option(help="Only how fast the simulator is.")] = False,
) -> None:
    """Print one line for each load."""
    with own_screen() as screen, progress_bar(screen.console) as progress:
        if speed:
            for line in speeds():
                screen.say(line)
            return
        task = progress.add_task("starting the engines", total=None)
        mix = mix_of(app or [""])
        with real_world(mix, budget) if engines == Engines.real else profile_world(mix, engines, instances) as world:
            count = queries or QUERIES[engines]
            burst = [replace(a, at_s=0.0) for a in poisson(1.0, mix, count=BURST, seed=0)]
            capacity = BURST / simulate(burst, world.workloads, world.system).took_s
            screen.say(f"{engines} engines, seconds; {count} queries at each load; capacity {capacity:.2f} per s")
            screen.say(world.note)
            screen.say(ROW.format(*HEADS, *world.other_heads))
            for turn, load in enumerate(share or SHARES, 1):
                progress.update(task, description=f"load {load:g}")
                drawn = poisson(load * capacity, mix, count=count, seed=seed)
                arrivals = [replace(a, number=a.number + turn * count) for a in drawn]  # nothing is cached from before
                screen.say(ROW.format(f"{load:g}", f"{load * capacity:.2f}", *compared(world, arrivals)))


def compared(world: World, arrivals: Sequence[Arrival]) -> list[str]:
    """Means, 95th percentiles, and the mean of the other simulation: how near it is, or in how many queries."""
    real = world.run(arrivals)
    if failed := [each.error for each in real if each.error]:
        raise failed[0]
    ours = simulate(arrivals, world.workloads, world.system).ended
    cells = []
    for of in (statistics.fmean, lambda seconds: statistics.quantiles(seconds, n=20)[-1]):
        real_s, ours_s = (of([each.latency_s for each in ended]) for ended in (real, ours))
        cells += [f"{real_s:.3f}", f"{ours_s:.3f}", f"{ours_s / real_s - 1:+.1%}"]
    if world.other is None:
        return [*cells, "", ""]
    other = simulate(arrivals, world.workloads, world.other).ended
    mean_s, real_s = (statistics.fmean(each.latency_s for each in ended) for ended in (other, real))
    near = [abs(a.latency_s - b.latency_s) <= world.step_s for a, b in zip(real, other, strict=True)]
    told = f"{sum(near)}/{len(near)}" if world.other_heads == SAME_TEXTS else f"{mean_s / real_s - 1:+.1%}"
    return [*cells, f"{mean_s:.3f}", told]


# --- profile engines ------------------------------------------------------------------------------------------------


@contextmanager
def profile_world(mix: Mapping[str, float], kind: Engines, instances: int) -> Iterator[World]:
    """The apps of the load benchmark on profile engines, in virtual or real time."""
    workloads = workloads_of({name: prepare(name, make_engines(instances)) for name in mix})
    step_s, system = PAPER_LLM["7b"].step_s(32), paper_system(instances)
    if kind == Engines.virtual:
        run = partial(run_virtually, mix, instances)
        same = paper_system(instances, partial(answer, dim=16, texts=texts()))
        yield World(mix, run, workloads, system, step_s, same, SAME_TEXTS)
        return
    late_s = waited_s(step_s) - step_s
    engines = make_engines(instances)
    run = partial(run_really, {name: prepare(name, engines) for name in mix})
    note = f"a wait of {1000 * step_s:.0f} ms takes {1000 * late_s:.1f} ms more here"
    yield World(mix, run, workloads, system, step_s, later(system, late_s), LATE, note)


def later(system: System, late_s: float) -> System:
    """Every wait of an engine takes so much longer."""

    def late(profile: Profile) -> Profile:
        return replace(profile, points=tuple((n, seconds + late_s) for n, seconds in profile.points))

    def slowed(server: BatchServer | LlmServer) -> BatchServer | LlmServer:
        if isinstance(server, BatchServer):
            return replace(server, profiles={op: late(profile) for op, profile in server.profiles.items()})
        llm = server.profile
        return replace(server, profile=replace(llm, prefill=late(llm.prefill), step=late(llm.step)))

    return replace(system, servers={name: slowed(server) for name, server in system.servers.items()})


STORE = {name: PAPER[name] for name in ("searching", "ingestion")}


def paper_system(instances: int, answers: Callable[..., Any] | None = None) -> System:
    """What `load_apps.make_engines` makes; tokens are words and signs."""
    more: dict[str, Any] = {"instances": instances, "answers": answers, "count": lambda text: len(tokenize(text))}
    return System({
        "embedder": BatchServer({"embedding": PAPER["embedding"]}, max_items=BATCH_ITEMS, **more),
        "reranker": BatchServer({"reranking": PAPER["reranking"]}, max_items=BATCH_ITEMS, **more),
        "store": BatchServer(STORE, texts=texts(), **more),
        "llm": LlmServer(PAPER_LLM["7b"], max_prefill_tokens=PREFILL_TOKENS, **more),
    })  # fmt: skip


def workloads_of(apps: Mapping[str, Prepared]) -> dict[str, Workload]:
    """The same plans and functions for the simulator."""
    calls = {name: function.call for name, function in FUNCTIONS.items()}
    return {name: Workload(app.plan, calls, partial(inputs_of, name)) for name, app in apps.items()}


def run_really(apps: Mapping[str, Prepared], arrivals: Sequence[Arrival]) -> list[Ended]:
    """In real time, on the host of this process."""
    return on_host(driven(apps, arrivals))


def waited_s(seconds: float, times: int = 100) -> float:
    """What waiting for so long takes on this machine: its timers are late, the more so the more others it runs."""

    async def wait() -> float:
        began_s = time.perf_counter()
        for _ in range(times):
            await asyncio.sleep(seconds)
        return (time.perf_counter() - began_s) / times

    return on_host(wait())


def run_virtually(mix: Mapping[str, float], instances: int, arrivals: Sequence[Arrival]) -> list[Ended]:
    """On a loop of virtual time, on engines of its own."""

    async def run() -> list[Ended]:
        engines = make_engines(instances)
        apps = {name: prepare(name, engines) for name in mix}
        host = LocalHost("critical_path", loop=asyncio.get_running_loop())
        ended = await drive(arrivals, lambda a: run_query(host, apps[a.app], inputs_of(a.app, a.number)))
        await host.aclose()
        return ended

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


# --- real engines ---------------------------------------------------------------------------------------------------


@contextmanager
def real_world(mix: Mapping[str, float], budget_s: float) -> Iterator[World]:
    """The same graphs on real engines, as their profiles are now."""
    from teola_plugin.runtime.engines.lengths import count_tokens

    try:
        real = real_engines(budget_s)
        counts = {name: lru_cache(100_000)(partial(count_tokens, engine)) for name, engine in real.made.items()}
        most = {name: engine.capabilities for name, engine in real.made.items()}
        llm = real.profiles["llm"]
        assert isinstance(llm, LlmProfile)
        servers: dict[str, BatchServer | LlmServer] = {
            **{
                name: BatchServer(
                    {op: real.profiles[name]}, 1, most[name].max_items, count=counts[name], demand=real.demands[name]
                )
                for name, op in (("embedder", "embedding"), ("reranker", "reranking"))
            },
            "store": BatchServer(STORE, texts=texts(), demand=0.0),  # it waits
            "llm": LlmServer(
                llm, 1, most["llm"].max_items, kv_tokens=most["llm"].max_tokens, block_tokens=CPU_BLOCK_TOKENS,
                mixes_prefills=True, count=counts["llm"], demand=real.demands["llm"],
            ),
        }  # fmt: skip
        apps = {name: prepare(name, real.shared, graphs=REAL_GRAPHS) for name in mix}
        warm_up(apps)
        system = System(servers, cores=len(os.sched_getaffinity(0)))
        used = ", ".join(f"{name} {n:.2f}" for name, n in real.demands.items())
        note = f"{_told(real.profiles)}; cores in use: {used}"
        run = partial(run_really, apps)
        yield World(mix, run, workloads_of(apps), system, llm.step_s(8), System(servers), OWN, note)
    finally:
        runtime.host.close()


CPU_BLOCK_TOKENS = 128
"""vLLM's block size on a CPU."""


def _told(profiles: Mapping[str, Any]) -> str:
    llm = profiles["llm"]
    return (
        f"profiles: LLM {1000 * llm.prefill_s(256):.0f} ms for 256 tokens, {1000 * llm.step_s(1):.1f} and "
        f"{1000 * llm.step_s(8):.1f} ms a step of 1 and 8; {CHUNK_WORDS} words: "
        f"embedding {1000 * profiles['embedder'].predict_s(1, 120):.0f} ms, "
        f"reranking {1000 * profiles['reranker'].predict_s(1, 140):.0f} ms"
    )


# --- how fast -------------------------------------------------------------------------------------------------------


def speeds() -> Iterator[str]:
    """Simulated queries per second of processor time of one core, the best of five."""
    for name, rate, count in (("advanced RAG", 0.6, 300), ("chat", 5.0, 1000)):
        given = {n: inputs_of(name, n) for n in range(count)}
        workload = replace(workloads_of({name: prepare(name, make_engines())})[name], inputs=given.__getitem__)
        servers = {engine: replace(server, count=None) for engine, server in paper_system(1).servers.items()}
        work = partial(simulate, poisson(rate, {name: 1}, count=count, seed=1), {name: workload}, System(servers))
        best_s = min(processor_s(work) for _ in range(5))
        yield f"{name}: {count / best_s:,.0f} queries a second at {rate:g} per s"


def processor_s(work: Callable[[], object]) -> float:
    """What it takes."""
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


if __name__ == "__main__":
    typer.run(main)
