"""A simulation from beginning to end."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from simulator.arrivals import Arrival, Ended
from simulator.clock import Clock
from simulator.cores import Cores
from simulator.lane import Lane
from simulator.query import Query, World, prepare
from simulator.requests import Request
from simulator.systems import System, Workload, check
from simulator.usage import Simulation, Span
from simulator.values import Count, tokens_of
from teola_plugin.errors import TeolaError


def simulate(
    arrivals: Sequence[Arrival], workloads: Mapping[str, Workload], system: System, *, seed: int = 0,
    trace: bool = False, count: Count = tokens_of,
) -> Simulation:  # fmt: skip
    """What becomes of queries that arrive so, of workloads by their names (`Arrival.app`).

    `seed`: of what is drawn at random, the network's delays. `count`: tokens of a text. With `trace` there is a span
    for each request.

    Raises: EngineError, TeolaError, before anything runs, for a graph that needs what the system has not. An error in a
    query ends that query.
    """
    missing = {arrival.app for arrival in arrivals} - set(workloads)
    if missing:
        raise TeolaError(f"queries of {', '.join(sorted(missing))} arrive, and there is no such workload")
    check(workloads, system)
    clock = Clock()
    cores = Cores(clock, system.cores) if system.cores is not None else None
    ids = itertools.count(1)
    lanes = {
        name: Lane(server, system, clock, count, ids, cores, trace=trace) for name, server in system.servers.items()
    }
    prepared = {name: prepare(workload) for name, workload in workloads.items()}
    ended: dict[int, Ended] = {}
    spans: list[Span] = []

    def over(query: Query) -> None:
        arrival = arrivals[query.place]
        ended[query.place] = Ended(arrival, clock.now_s - arrival.at_s, query.error)

    def answered(request: Request) -> None:
        spans.append(
            Span(
                arrivals[request.query].number, request.step.name, request.step.engine, request.queued_s,
                request.begin_s, clock.now_s, len(request.payloads),
            )
        )  # fmt: skip

    world = World(clock, lanes, seed, system.bundles, over, answered if trace else None)

    def begin(place: int, arrival: Arrival) -> None:
        Query(place, arrival.number, prepared[arrival.app], world).start()

    for place, arrival in enumerate(arrivals):
        clock.at(arrival.at_s, begin, place, arrival)
    clock.run()
    took_s = max((each.arrival.at_s + each.latency_s for each in ended.values()), default=0.0)
    return Simulation(
        [ended[place] for place in range(len(arrivals))],
        took_s,
        {name: lane.use for name, lane in lanes.items()},
        spans,
    )
