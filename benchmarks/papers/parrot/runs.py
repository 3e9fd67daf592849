"""One simulated run of Parrot's applications, in one way of using the engine."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from simulator import LlmServer, Simulation, System, Workload, simulate
from simulator.arrivals import Arrival, Ended

from papers.parrot.engines import MAX_SEQUENCES, ROUND_TRIP_S, Context, Model, Way, round_trip_s
from papers.parrot.graphs import App
from teola_plugin.passes import Context as Known
from teola_plugin.passes import optimize_graph
from teola_plugin.passes.estimates import planned


def run(
    apps: Mapping[str, App],
    arrivals: Sequence[Arrival],
    way: Way,
    model: Model,
    context: Context,
    *,
    instances: int = 1,
    max_items: int = MAX_SEQUENCES,
    seed: int = 0,
    trace: bool = False,
) -> Simulation:
    """The queries of these apps on `model`, whose sequences have that context on average.

    Raises: what a query raised; in a simulation that is a mistake of ours.
    """
    llm = way.llm(model, context, instances, max_items)
    workloads = {name: _workload(app, way, llm) for name, app in apps.items()}
    done = simulate(arrivals, workloads, System({"llm": llm}, way.policy), seed=seed, trace=trace)
    for ended in done.ended:
        if ended.error:
            raise ended.error
    return done


def latency_s(ended: Ended, way: Way) -> float:
    """As its client sees it: who submits a whole graph waits for one round trip, too."""
    return ended.latency_s + (0.0 if way.is_remote else ROUND_TRIP_S)


def mean_latency_s(done: Simulation, way: Way) -> float:
    """Of all queries."""
    return statistics.fmean(latency_s(ended, way) for ended in done.ended)


def at_once(apps: Sequence[str]) -> list[Arrival]:
    """A query of each app, all at the start."""
    return [Arrival(number, app, 0.0) for number, app in enumerate(apps)]


def _workload(app: App, way: Way, llm: LlmServer) -> Workload:
    known = Known({"llm": llm.profile}, {"llm": llm.capabilities(bundles=False)})
    graph = optimize_graph(app.graph, way.passes, known, strict=True).graph
    plan = planned(graph, known)
    return Workload(plan, app.functions, app.inputs, round_trip_s if way.is_remote else None)
