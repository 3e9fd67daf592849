"""A simulation from beginning to end: queries of real plans on the local host, in virtual time, on modelled engines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from simulator.arrivals import Arrival, drive
from simulator.batch_server import BatchEngine
from simulator.calls import Replicated, Setup
from simulator.client import Client, sources_of
from simulator.cores import Cores
from simulator.llm_server import LlmEngine
from simulator.systems import LlmServer, Server, System, Workload, check
from simulator.usage import EngineUse, Simulation, Span
from simulator.values import Count, prompt_of, tokens_of
from simulator.writing import output_tokens
from teola_plugin.engines import EngineSpec
from teola_plugin.errors import TeolaError
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.hosts.virtual_time import VirtualLoop
from teola_plugin.runtime.scheduler.batching import Limits
from teola_plugin.runtime.scheduler.worker import Rules
from teola_plugin.runtime.session.graph_runner import run_query
from teola_plugin.runtime.session.plan_executor import Prepared, PreparedRounds
from teola_plugin.trace import Function

DAY_S = 86_400.0
"""After the last query, so that what engines have begun ends and counts."""


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
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_simulated(arrivals, workloads, system, seed, trace, count))


async def _simulated(
    arrivals: Sequence[Arrival], workloads: Mapping[str, Workload], system: System, seed: int, trace: bool, count: Count
) -> Simulation:
    loop = asyncio.get_running_loop()
    host = LocalHost(system.policy, Rules(Limits(prefix_tolerance_s=system.prefix_tolerance_s)), loop=loop)
    cores = Cores(loop, system.cores) if system.cores is not None else None
    setup = Setup(loop, count, system.hop_s, cores, trace)
    uses = {name: EngineUse() for name in system.servers}
    engines = {name: _engine(name, each, system, setup, uses[name]) for name, each in system.servers.items()}
    specs = {name: EngineSpec("engine", engine, name) for name, engine in engines.items()}
    prepared = {name: _prepared(each, specs, bundles=system.bundles) for name, each in workloads.items()}
    sources = {name: sources_of(each) for name, each in workloads.items()}
    spans: list[Span] = []

    async def run(arrival: Arrival) -> None:
        workload, own = workloads[arrival.app], host
        if trace or workload.round_trip_s:
            client = Client(host, loop, sources[arrival.app], arrival.number, seed, workload.round_trip_s,
                            spans.append if trace else None)  # fmt: skip
            own = cast("LocalHost", client)
        await run_query(own, prepared[arrival.app], workload.inputs(arrival.number))

    ended = await drive(arrivals, run)
    await asyncio.sleep(DAY_S)
    took_s = max((each.arrival.at_s + each.latency_s for each in ended), default=0.0)
    for name, engine in engines.items():
        uses[name].joined = host.counts(engine).joined
    await host.aclose()
    return Simulation(ended, took_s, uses, spans)


def _engine(name: str, server: Server, system: System, setup: Setup, use: EngineUse) -> Replicated:
    capabilities = server.capabilities(bundles=system.bundles)
    if not isinstance(server, LlmServer):
        return Replicated(name, capabilities, [BatchEngine(name, server, setup, use) for _ in range(server.instances)])

    def kv_tokens(op: str, payload: Any, settings: Mapping[str, Any]) -> int:
        return (server.count or setup.count)(payload) + (output_tokens(server, settings) if op == "decoding" else 0)

    llms = [LlmEngine(name, server, setup, use, bundles=system.bundles) for _ in range(server.instances)]
    return Replicated(name, capabilities, llms, kv_tokens if server.kv_tokens is not None else None)


def _prepared(workload: Workload, specs: Mapping[str, EngineSpec], *, bundles: bool) -> Prepared:
    """The workload as `run_query` takes it. `bundles`: the items of a primitive are one request."""
    functions = {name: Function(call, is_glue=True) for name, call in workload.functions.items()}
    rounds = {
        name: PreparedRounds(each.rounds, _prepared(workload.each_round(name), specs, bundles=bundles))
        for name, each in workload.rounds.items()
    }
    prepared = Prepared(workload.plan, functions, specs, rounds=rounds, join=prompt_of)
    if not bundles:
        return prepared
    return replace(prepared, sights={name: replace(each, stage_items=0) for name, each in prepared.sights.items()})
