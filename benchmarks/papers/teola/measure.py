"""One run of the simulator: applications that arrive at a rate, in one way, on the testbed; a part that `Map` spreads.

    measured = setting.map(measure, [Load(Place(("C",)), way, rate_per_s=0.5) for way in WAYS])

Every way gets the same queries at the same moments. `rate_per_s` 0: each query comes when all before it have ended;
infinite: all come at once, which is how the capacity is found.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from simulator import EngineUse, Simulation, System, Workload, simulate
from simulator.arrivals import Arrival, poisson

from papers.apps import APPS
from papers.teola.critical_path import spent_s
from papers.teola.modes import Way
from papers.teola.testbed import HOP_S, INSTANCES, LLM_SIZES, context_of, servers_of
from teola_plugin.passes import optimize_graph
from teola_plugin.passes.estimates import durations, planned
from teola_plugin.plan import Plan, make_plan

ALONE_S = 1000.0
"""Between queries that are to be alone."""


@dataclass(frozen=True, slots=True)
class Place:
    """What arrives where: `size` is that of the core LLM; `has_logs`: the embedder is that of the prototype's logs."""

    apps: tuple[str, ...]
    size: str = "7b"
    has_logs: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """What is run. `largest`: of the batches of (LLMs, other engines); None: the engine's own.

    `instances`: times those of every engine.
    """

    place: Place
    way: Way
    rate_per_s: float
    queries: int = 100
    seed: int = 0
    largest: tuple[int, int] | None = None
    instances: int = 1
    hop_s: float = HOP_S


@dataclass(frozen=True, slots=True)
class Measured:
    """Latencies in the order of arrivals, all seconds until the last had ended, and what the engines did."""

    load: Load
    latencies_s: tuple[float, ...]
    took_s: float
    engines: Mapping[str, EngineUse]

    @property
    def mean_s(self) -> float:
        return statistics.fmean(self.latencies_s)

    @property
    def p99_s(self) -> float:
        """Of all queries the latency that one in a hundred exceeds (the nearest rank)."""
        ordered = sorted(self.latencies_s)
        return ordered[math.ceil(0.99 * len(ordered)) - 1]

    def work_s(self, engine: str) -> float:
        """Of each instance, for a query."""
        return self.engines[engine].busy_s / (self.load.instances * INSTANCES[engine] * len(self.latencies_s))

    @property
    def per_s(self) -> float:
        return len(self.latencies_s) / self.took_s

    @property
    def busiest(self) -> tuple[str, float]:
        """The engine whose instances were busy for the largest share of the time, and that share."""
        shares = {name: self.work_s(name) * self.per_s for name in self.engines}
        return max(shares.items(), key=lambda pair: pair[1])

    @property
    def capacity_per_s(self) -> float:
        """Queries a second, if its busiest engine never waited. Of a burst: what it can serve for long."""
        return self.per_s / self.busiest[1]


def measure(load: Load) -> Measured:
    """Run it. Raises: what a query raised; in a simulation that is a mistake of ours."""
    done = simulated(load)
    return Measured(load, tuple(ended.latency_s for ended in done.ended), done.took_s, done.engines)


def path_of(load: Load) -> Mapping[str, float]:
    """What the end of its first query, alone, waited for: see critical_path.py."""
    done = simulated(replace(load, queries=1, rate_per_s=0.0), trace=True)
    return spent_s(plan_of(load.place, load.place.apps[0], load.way).graph, done.spans, done.ended[0].latency_s)


@dataclass(frozen=True, slots=True)
class Written:
    """The texts that one primitive has an LLM write for a query: how many, and when the first and last are there."""

    engine: str
    count: int
    first_s: float
    last_s: float


def written_of(load: Load) -> Written:
    """Of its first query, alone: where most texts are written."""
    done = simulated(replace(load, queries=1, rate_per_s=0.0), trace=True)
    ends: dict[tuple[str, str], list[float]] = {}
    for span in done.spans:
        if span.engine in LLM_SIZES and not span.primitive.endswith("_early"):
            ends.setdefault((span.engine, span.primitive), []).append(span.end_s - done.ended[0].arrival.at_s)
    (engine, _), found = max(ends.items(), key=lambda each: len(each[1]))
    return Written(engine, len(found), min(found), max(found))


def simulated(load: Load, *, trace: bool = False) -> Simulation:
    """As `measure`, with all that the simulator tells."""
    place, way = load.place, load.way
    workloads = {app: Workload(plan_of(place, app, way), APPS[app].functions, APPS[app].inputs) for app in place.apps}
    servers = servers_of(place.apps, place.size, way, load.largest, load.instances, has_logs=place.has_logs)
    system = System(servers, way.policy, bundles=way.has_bundles, hop_s=load.hop_s)
    done = simulate(_arrivals(load), workloads, system, seed=load.seed, trace=trace)
    for ended in done.ended:
        if ended.error:
            raise ended.error
    return done


@lru_cache(maxsize=256)
def plan_of(place: Place, app: str, way: Way) -> Plan:
    """Of an app in one way; made once in each process, as for a pipeline of a user."""
    return plan_for(place, app, way)


def plan_for(place: Place, app: str, way: Way) -> Plan:
    """Passes and plan, made now."""
    context = context_of(app, place.size, way, has_logs=place.has_logs)
    graph = optimize_graph(APPS[app].graph(way.shape), way.passes, context, strict=True).graph
    return planned(graph, context) if way.in_waves else make_plan(graph, durations(graph, context))


def _arrivals(load: Load) -> Sequence[Arrival]:
    mix = dict.fromkeys(load.place.apps, 1.0)
    arrivals = poisson(load.rate_per_s or 1.0, mix, count=load.queries, seed=load.seed)
    if load.rate_per_s == 0:
        return [Arrival(arrival.number, arrival.app, at * ALONE_S) for at, arrival in enumerate(arrivals)]
    return arrivals
