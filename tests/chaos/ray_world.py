"""Engines and queries for the tests on Ray: profile engines, whose answers are known beforehand."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from teola_plugin import runtime
from teola_plugin.engines import Batch, Capabilities, Done, Emit, Engine, EngineSpec
from teola_plugin.errors import EngineUnavailable
from teola_plugin.graph import parse
from teola_plugin.plan import make_plan
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.registry import EngineConfig
from teola_plugin.runtime.engines.build import build
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.hosts.ray import engines as rays
from teola_plugin.runtime.hosts.remote.client import RemoteEngine
from teola_plugin.runtime.hosts.virtual_time import VirtualLoop
from teola_plugin.runtime.session.graph_runner import run_query
from teola_plugin.runtime.session.plan_executor import Prepared
from teola_plugin.seams import Reply
from teola_plugin.tenancy import Terms
from teola_plugin.trace import Function

GRAPH = """
inputs(question)
rewrite_kv = prefilling('Other words for: ', question) @ llm
rewrites: [] = partial_decoding(rewrite_kv, items='lines', max_tokens=24, shape='lines:3', temperature=0) @ llm
vectors: [] = embedding(*rewrites) @ embedder
pairs: [] = call(question, *rewrites, fn='pair') @ python
scores: [] = reranking(*pairs) @ reranker
context = call(vectors, scores, fn='context') @ python
kv = prefilling('Answer from context. Question: ', question, ' Context: ', context) @ llm
answer = decoding(kv, max_tokens=12, temperature=0) @ llm
outputs(answer)
"""

CONFIGS = {
    "embedder": EngineConfig(
        "embedder", "profile_embedding", config={"dim": 16}, profile=Profile.affine(0.005, 0.001), num_cpus=0.1
    ),
    "reranker": EngineConfig("reranker", "profile_reranking", profile=Profile.affine(0.005, 0.001), num_cpus=0.1),
    "llm": EngineConfig(
        "llm", "profile_llm", num_cpus=0.1,
        profile=LlmProfile(prefill=Profile.affine(0.004), step=Profile.affine(0.004, 0.0001)),
    ),
}  # fmt: skip


def prepared(engines: Mapping[str, Engine]) -> Prepared:
    functions = {
        "pair": Function(lambda question, rewrite: (question, rewrite), is_glue=True),
        "context": Function(
            lambda vectors, scores: f"{sum(float(v[0]) for v in vectors):.3f} {sum(map(float, scores)):.3f}",
            is_glue=True,
        ),
    }
    return Prepared(make_plan(parse(GRAPH)), functions, {n: EngineSpec("engine", e, n) for n, e in engines.items()})


def expected(questions: Sequence[str]) -> list[str]:
    """The answers, from engines of this process in virtual time."""

    async def all_of_them() -> list[str]:
        host = LocalHost(loop=asyncio.get_running_loop())
        graph = prepared({name: build(config) for name, config in CONFIGS.items()})
        found = [await run_query(host, graph, {"question": question}) for question in questions]
        await host.aclose()
        return [str(outputs["answer"]) for outputs in found]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(all_of_them())


async def answer(graph: Prepared, question: str, deadline_s: float) -> str:
    """On the host of this process."""
    terms = Terms("", asyncio.get_running_loop().time() + deadline_s)
    outputs = await run_query(runtime.host, graph, {"question": question}, terms=terms)
    return str(outputs["answer"])


def ask(engine: RemoteEngine, payloads: list[Any], op: str = "embedding", **settings: Any) -> list[Reply]:
    replies = [Reply() for _ in payloads]
    runtime.host.submit(engine, op, payloads, settings, replies)
    return replies


def wait_for(replies: list[Reply], timeout_s: float) -> None:
    until_s = time.monotonic() + timeout_s
    while any(r.outcome is None for r in replies) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert all(r.outcome is not None for r in replies), "some item never ended"


def stats(ray: Any, name: str) -> dict[str, Any]:
    actor = ray.get_actor(rays.PREFIX + name, namespace="teola")
    found: dict[str, Any] = ray.get(actor.stats.remote(), timeout=60)
    return found


def idle(ray: Any, name: str) -> bool:
    """Nothing waits or runs there, after a while at most."""
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        found = stats(ray, name)
        if found["open"] == found["queued"] == found["running"] == 0:
            return True
        time.sleep(0.05)
    return False


class Fragile:
    """Answers with what it was asked; `bad` ends its process."""

    name = "fragile"
    capabilities = Capabilities(max_items=16)

    async def run(self, batch: Batch, emit: Emit) -> None:
        if any(item.payload == "bad" for item in batch.items):
            os._exit(1)
        for position, item in enumerate(batch.items):
            emit(position, Done(item.payload))

    def abort(self, ids: Sequence[int]) -> None:
        """Batches are short."""

    async def close(self) -> None:
        """Nothing to close."""


def make_fragile(**_: Any) -> Fragile:
    return Fragile()


def make_one_of(most: int, folder: str) -> Fragile:
    """Leaves its process id in the folder. There are to be no more than so many."""
    made = Path(folder)
    if len(list(made.iterdir())) >= most:
        raise EngineUnavailable(f"there are {most} already")
    (made / str(os.getpid())).touch()
    return Fragile()


def processes_in(folder: Path) -> list[psutil.Process]:
    """Of the engines that `make_one_of` has made there, as far as they live."""
    pids = [int(path.name) for path in folder.iterdir()]
    return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
