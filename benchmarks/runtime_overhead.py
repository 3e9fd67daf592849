"""What the runtime itself costs: queries of 8 primitives on engines that answer at once, here and on Ray.

    python benchmarks/runtime_overhead.py             in this process
    python benchmarks/runtime_overhead.py --ray       and on Ray: each engine an actor

`one query`: milliseconds for each primitive of a chain, one after the other, nothing else going on. `many`: queries a
second with 64 under way, and milliseconds of that for each primitive.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from teola_plugin import runtime
from teola_plugin.engines import Batch, Capabilities, Done, Emit, Engine, EngineSpec
from teola_plugin.graph import parse
from teola_plugin.plan import make_plan
from teola_plugin.registry import EngineConfig
from teola_plugin.runtime.session.graph_runner import run_query
from teola_plugin.runtime.session.plan_executor import Prepared

OPS = ("embedding", "searching", "reranking", "embedding", "searching", "reranking", "embedding", "searching")
UNDER_WAY = 64
ROW = "{:12}{:>24}{:>16}{:>24}"


class AtOnce:
    """Gives back what it is given."""

    capabilities = Capabilities(max_items=64)

    def __init__(self, name: str = "at_once") -> None:
        self.name = name

    async def run(self, batch: Batch, emit: Emit) -> None:
        for position, item in enumerate(batch.items):
            emit(position, Done(item.payload))

    def abort(self, ids: Sequence[int]) -> None:
        pass

    async def close(self) -> None:
        pass


def main(
    ray: Annotated[bool, typer.Option("--ray", help="Also on Ray.")] = False,
    queries: Annotated[int, typer.Option(min=UNDER_WAY)] = 2000,
) -> None:
    """Print one row for each runtime."""
    print(ROW.format("runtime", "one query, ms/primitive", "many, q/s", "many, ms/primitive"))
    here: dict[str, Engine] = {op: AtOnce(op) for op in dict.fromkeys(OPS)}
    print(_row("local", here, queries))
    if ray:
        from teola_plugin.runtime.hosts.ray.cluster import connect
        from teola_plugin.runtime.hosts.ray.engines import start

        connect(num_cpus=8)
        made = "runtime_overhead:AtOnce"  # Ray puts the folder of the script on its workers' path
        there: dict[str, Engine] = {op: start(EngineConfig(op, "custom", executable=made, num_cpus=0)) for op in here}
        print(_row("ray", there, queries // 4))
        print(f"an empty call of an actor, for comparison: {_bare_call_s() * 1e3:.3f} ms")
    runtime.host.close()


def _row(name: str, engines: Mapping[str, Engine], queries: int) -> str:
    graph = _chain(engines)
    one_s = asyncio.run_coroutine_threadsafe(_one_by_one(graph, 200), runtime.host.loop).result()
    many_s = asyncio.run_coroutine_threadsafe(_many(graph, queries), runtime.host.loop).result()
    return ROW.format(
        name, f"{one_s * 1e3 / len(OPS):.3f}", f"{queries / many_s:.0f}", f"{many_s * 1e3 / queries / len(OPS):.3f}"
    )


def _bare_call_s() -> float:
    import ray

    class Echo:
        async def echo(self) -> None:
            pass

    actor = ray.remote(Echo).options(num_cpus=0).remote()

    async def calls() -> float:
        times = []
        for _ in range(200):
            started_s = time.perf_counter()
            await actor.echo.remote()
            times.append(time.perf_counter() - started_s)
        return statistics.median(times)

    return asyncio.run(calls())


def _chain(engines: Mapping[str, Engine]) -> Prepared:
    lines = ["inputs(x0)", *(f"x{i + 1} = {op}(x{i}) @ {op}" for i, op in enumerate(OPS)), f"outputs(x{len(OPS)})"]
    specs = {name: EngineSpec("engine", engine, name) for name, engine in engines.items()}
    return Prepared(make_plan(parse("\n".join(lines))), {}, specs)


async def _one_by_one(graph: Prepared, queries: int) -> float:
    times = []
    for i in range(queries):
        started_s = time.perf_counter()
        await _answer(graph, f"alone {i}")
        times.append(time.perf_counter() - started_s)
    return statistics.median(times)


async def _many(graph: Prepared, queries: int) -> float:
    left = iter(range(queries))

    async def client() -> None:
        for i in left:
            await _answer(graph, f"many {i}")

    started_s = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(UNDER_WAY)))
    return time.perf_counter() - started_s


async def _answer(graph: Prepared, text: str) -> Any:
    outputs = await run_query(runtime.host, graph, {"x0": text})
    assert outputs[f"x{len(OPS)}"] == text
    return outputs


if __name__ == "__main__":
    typer.run(main)
