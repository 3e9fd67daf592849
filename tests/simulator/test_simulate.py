"""Queries without a framework, in virtual time: what they come to, when they arrive, and what policies make of load."""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from simulator.arrivals import Arrival, Ended, drive, poisson

from teola_plugin.engines import EngineSpec
from teola_plugin.errors import EngineClosed, EngineError, TeolaError
from teola_plugin.graph import parse
from teola_plugin.passes import DEFAULT, Context, optimize_graph
from teola_plugin.passes.estimates import planned
from teola_plugin.profile import PAPER, PAPER_LLM
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM, ProfileReranker, ProfileStore
from teola_plugin.runtime.engines.simulated_text import complete, embed, score
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.hosts.virtual_time import VirtualLoop
from teola_plugin.runtime.scheduler.policies import PolicyName
from teola_plugin.runtime.session.graph_runner import run_query
from teola_plugin.runtime.session.plan_executor import Prepared
from teola_plugin.seams import Reply
from teola_plugin.trace import Function
from tests.support.interpret import interpret

T = TypeVar("T")
TEXTS = [f"passage {n} of the store" for n in range(9)]
RAG = """
inputs(question, chunks=[])
vecs: [] = embedding(*chunks) @ embedder
load = ingestion(*vecs, *chunks) @ store, writes(kb)
queries_kv = prefilling('Three searches for: ', question) @ llm
queries: [] = decoding(queries_kv, items='lines', max_tokens=24, shape='lines:3') @ llm
q: [] = embedding(*queries) @ embedder
hit: [] = searching(*q, top_k=3) @ store, reads(kb), after(load)
passages: [] = call(hit, fn='merged') @ python
scores: [] = reranking(question, *passages) @ reranker
top = call(passages, scores, fn='best') @ python
kv = prefilling('Question: ', question, ' Context: ', top) @ llm
answer = decoding(kv, max_tokens=16) @ llm
outputs(answer, top, load)
"""
CHAT = """
inputs(question)
kv = prefilling('You are friendly. ', question) @ llm
answer = decoding(kv, max_tokens=12) @ llm
outputs(answer)
"""


def merged(hits: list[dict[str, Any]]) -> list[str]:
    return sorted({text for hit in hits for text in hit["documents"]})


FUNCTIONS = {
    "merged": Function(merged),
    "best": Function(lambda passages, scores: max(zip(scores, passages, strict=True))[1]),
}


def engines(**more: Any) -> dict[str, Any]:
    return {
        "embedder": ProfileEmbedding(8, PAPER["embedding"], max_items=16),
        "reranker": ProfileReranker(PAPER["reranking"]),
        "store": ProfileStore(TEXTS, PAPER["searching"], PAPER["ingestion"]),
        "llm": ProfileLLM("llm", PAPER_LLM["7b"], max_items=4, **more),
    }


def prepared(text: str, parts: dict[str, Any], functions: dict[str, Function] = FUNCTIONS) -> Prepared:
    context = Context(
        {name: each.profile for name, each in parts.items()},
        {name: each.capabilities for name, each in parts.items()},
        expected_items=12,
    )
    graph = optimize_graph(parse(text), DEFAULT, context, strict=True).graph
    specs = {name: EngineSpec("engine", each, name) for name, each in parts.items()}
    return Prepared(planned(graph, context), functions, specs)


def virtually(work: Callable[[LocalHost], Awaitable[T]], policy: PolicyName = "topology") -> T:
    async def run() -> T:
        host = LocalHost(policy, loop=asyncio.get_running_loop())
        try:
            return await work(host)
        finally:
            await host.aclose()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


def given(number: int) -> dict[str, Any]:
    return {"question": f"question {number}?", "chunks": [f"chunk {n} of {number}" for n in range(5 + number % 9)]}


def meant(text: str, inputs: dict[str, Any]) -> dict[str, Any]:
    store = ProfileStore(TEXTS, PAPER["searching"], PAPER["ingestion"])
    answers: dict[str, Any] = {
        "embedder": lambda op, payload, settings: embed(payload, 8),
        "reranker": lambda op, payload, settings: score(*payload),
        "llm": lambda op, payload, settings: complete(payload, settings),
        "store": lambda op, payload, settings: None if op == "ingestion" else store._found(payload, settings),
    }
    return interpret(parse(text), inputs, answers, {name: each.call for name, each in FUNCTIONS.items()})


@pytest.mark.parametrize("policy", ["po", "to", "topology", "critical_path"])
def test_many_queries_at_once_come_to_what_their_graph_means(policy: PolicyName) -> None:
    parts = engines()
    rag = prepared(RAG, parts)

    async def work(host: LocalHost) -> list[dict[str, Any]]:
        return await asyncio.gather(*(run_query(host, rag, given(n)) for n in range(6)))

    assert virtually(work, policy) == [meant(RAG, given(n)) for n in range(6)]
    assert max(parts["llm"].stats.sizes) <= 4


def test_a_fault_of_an_engine_is_raised() -> None:
    fault = EngineClosed("no more")
    parts = engines(fail_on=lambda prompt: fault if "Context" in prompt else None)
    with pytest.raises(EngineClosed) as caught:
        virtually(lambda host: run_query(host, prepared(RAG, parts), given(1)))
    assert caught.value is fault


def test_a_fault_of_a_function_is_raised() -> None:
    def boom(*_: Any) -> Any:
        raise ZeroDivisionError("boom")

    functions = {**FUNCTIONS, "best": Function(boom)}
    with pytest.raises(ZeroDivisionError):
        virtually(lambda host: run_query(host, prepared(RAG, engines(), functions), given(1)))


@pytest.mark.parametrize(
    ("text", "functions"),
    [
        ("inputs(x)\na = call(x, fn='f') @ pipeline\noutputs(a)", {}),
        ("inputs(x)\na = call(x, fn='f') @ python\noutputs(a)", {"f": Function(str, asks=True)}),
    ],
)
def test_what_needs_a_framework_is_refused(text: str, functions: dict[str, Function]) -> None:
    with pytest.raises(TeolaError, match="framework"):
        virtually(lambda host: run_query(host, prepared(text, {}, functions), {"x": "x"}))


def test_a_store_understands_searches_and_ingestions_only() -> None:
    async def work(host: LocalHost) -> None:
        reply = Reply()
        host.submit(engines()["store"], "embedding", ["text"], {}, [reply])
        await reply.aresult()

    with pytest.raises(EngineError, match="'embedding'"):
        virtually(work)


def test_arrivals_are_the_same_at_every_rate_only_closer() -> None:
    slow, fast = (poisson(rate, {"rag": 1, "chat": 3}, count=400, seed=5) for rate in (1.0, 4.0))
    assert [a.app for a in slow] == [a.app for a in fast]
    assert [a.at_s for a in slow] == pytest.approx([4 * a.at_s for a in fast])
    assert slow[-1].at_s == pytest.approx(400, rel=0.15)
    assert sum(a.app == "chat" for a in slow) == pytest.approx(300, rel=0.1)
    gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(slow)]
    assert statistics.stdev(gaps) == pytest.approx(statistics.fmean(gaps), rel=0.15), "as of a Poisson process"
    assert slow != poisson(1.0, {"rag": 1, "chat": 3}, count=400, seed=6)


def test_the_load_is_open_and_a_failure_is_one_query_s() -> None:
    arrivals = [Arrival(0, "a", 1.0), Arrival(1, "b", 1.5), Arrival(2, "c", 1.5)]
    seen: list[tuple[int, float]] = []

    async def run(arrival: Arrival) -> None:
        seen.append((arrival.number, asyncio.get_running_loop().time()))
        await asyncio.sleep(10)
        if arrival.app == "b":
            raise ZeroDivisionError

    ended = virtually(lambda host: drive(arrivals, run))
    assert seen == [(0, 1.0), (1, 1.5), (2, 1.5)]
    assert [e.latency_s for e in ended] == pytest.approx([10, 10, 10])
    assert [type(e.error) for e in ended] == [type(None), ZeroDivisionError, type(None)]


def loaded(policy: PolicyName, rate: float = 6.0, seed: int = 3) -> list[Ended]:
    parts = engines()
    apps = {"rag": prepared(RAG, parts), "chat": prepared(CHAT, parts)}
    arrivals = poisson(rate, {"rag": 1, "chat": 2}, count=60, seed=seed)

    async def work(host: LocalHost) -> list[Ended]:
        def run(a: Arrival) -> Awaitable[Any]:
            inputs = given(a.number) if a.app == "rag" else {"question": f"and {a.number}?"}
            return run_query(host, apps[a.app], inputs)

        return await drive(arrivals, run)

    return virtually(work, policy)


def test_virtual_time_is_the_same_each_time() -> None:
    assert [e.latency_s for e in loaded("critical_path")] == [e.latency_s for e in loaded("critical_path")]


def test_under_load_the_order_of_queries_tells() -> None:
    """Short and long queries, at a rate that the LLM cannot keep up with: mean latencies in virtual time."""
    policies: tuple[PolicyName, ...] = ("to", "topology", "critical_path")
    to_s, topology_s, critical_path_s = (
        statistics.fmean(e.latency_s for seed in range(8) for e in loaded(p, 12.0, seed)) for p in policies
    )
    assert min(to_s, topology_s) > 1.02 * critical_path_s
