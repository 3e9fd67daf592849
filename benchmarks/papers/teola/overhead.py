"""Figure 12 of Ayo: what graph optimization and communication take of a query, measured on this machine.

The passes and the runtime's way to an engine and back are measured with a real clock, on engines that answer at once;
the query they are shares of is simulated.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial

from papers.apps import APPS
from papers.figures import Cell, Result, Row, Setting, Table
from papers.teola.curves import Sizes
from papers.teola.measure import Load, Place, measure, plan_for
from papers.teola.modes import BEST
from papers.teola.testbed import HOP_S
from teola_plugin.engines import Batch, Capabilities, Done, Emit, EngineSpec
from teola_plugin.graph import parse
from teola_plugin.plan import make_plan
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.session.graph_runner import run_query
from teola_plugin.runtime.session.plan_executor import Prepared

CHAIN = 8
"""Requests one after the other, to measure one."""


class AtOnce:
    """Answers each item with itself."""

    name = "at_once"
    capabilities = Capabilities(max_items=64)

    async def run(self, batch: Batch, emit: Emit) -> None:
        for position, item in enumerate(batch.items):
            emit(position, Done(item.payload))

    def abort(self, ids: object) -> None:
        pass

    async def close(self) -> None:
        pass


def overhead(setting: Setting) -> Result:
    """Shares of a query that is alone: the passes once per structure, requests at what one costs here and on Ray."""
    repeats = 3 if setting.quick else 15
    request_s = asyncio.run(_request_s(20 if setting.quick else 400))
    alone = Sizes.of(setting).alone
    loads = [Load(Place((app,)), BEST, 0.0, alone, setting.seed, hop_s=hop_s) for app in APPS for hop_s in (HOP_S, 0.0)]
    means = [run.mean_s for run in setting.map(measure, loads)]
    rows = []
    for at, app in enumerate(APPS):
        with_hops_s, without_s = means[2 * at : 2 * at + 2]
        make_plan_of = partial(plan_for, Place((app,)), app, BEST)
        graph_s = _median_s(make_plan_of, repeats)
        requests = max(urgency.depth for urgency in make_plan_of().remaining.values())
        here = requests * request_s / without_s
        cells = (
            Cell(1e3 * graph_s, unit="ms"),
            Cell(100 * graph_s / with_hops_s, (1.3, 3.0), "%"),
            Cell(100 * graph_s / with_hops_s / REUSED, unit="%"),
            Cell(100 * here, unit="%"),
            Cell(100 * (with_hops_s - without_s) / with_hops_s, (3.1, 6.2), "%"),
        )
        rows.append(Row(app, cells))
    columns = (
        "passes and plan", "if made for each query", f"made once for {REUSED}", "requests, this process",
        "requests, Ray",
    )  # fmt: skip
    says = (
        f"One request in this process: {1e3 * request_s:.2f} ms, there and back, measured now; on Ray "
        f"{1e3 * HOP_S:g} ms each way, in all simulated figures and for all ways.",
        "Passes run once for each structure of a pipeline, not for each query.",
    )
    return Result((Table("Share of a query that is alone", columns, tuple(rows), "app"),), says=says)


REUSED = 100
"""Queries of one structure. Any number that a service sees in a minute."""


async def _request_s(queries: int) -> float:
    """Seconds for one request of a query that is alone, in this process, on an engine that answers at once."""
    names = ["x", *(f"v{at}" for at in range(CHAIN))]
    lines = [f"{after} = embedding({before}) @ at_once" for before, after in itertools.pairwise(names)]
    plan = make_plan(parse("\n".join(["inputs(x)", *lines, f"outputs({names[-1]})"])))
    host = LocalHost("critical_path", loop=asyncio.get_running_loop())
    prepared = Prepared(plan, {}, {"at_once": EngineSpec("engine", AtOnce(), "at_once")})
    took_s = []
    for number in range(queries):
        began_s = time.perf_counter()
        await run_query(host, prepared, {"x": f"question {number}"})
        took_s.append(time.perf_counter() - began_s)
    await host.aclose()
    return statistics.median(took_s) / CHAIN


def _median_s(work: Callable[[], object], repeats: int) -> float:
    took_s = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        work()
        took_s.append(time.perf_counter() - began_s)
    return statistics.median(took_s)
