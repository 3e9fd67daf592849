"""What the passes that share or move work come to at run time: slots of a call, prefixes, early prefills."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from teola_plugin.engines import EngineSpec
from teola_plugin.graph import Graph, parse
from teola_plugin.passes import Context, Pass, optimize_graph
from teola_plugin.passes.share_prefixes import share_prefixes
from teola_plugin.passes.share_subexpressions import share_subexpressions
from teola_plugin.plan import make_plan
from teola_plugin.profile import PAPER_LLM, Profile
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM
from teola_plugin.runtime.engines.simulated_text import tokenize
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.hosts.virtual_time import VirtualLoop
from teola_plugin.runtime.scheduler.prefixes import PrefixTracker
from teola_plugin.runtime.session.graph_runner import run_query
from teola_plugin.runtime.session.plan_executor import Prepared
from teola_plugin.runtime.session.report import Report
from teola_plugin.runtime.session.session import Session
from teola_plugin.trace import Function
from tests.support.fakes import FakeEngine, says

# --- a framework's own run asks for both ----------------------------------------------------------------------

TWICE = {
    "embedding": "inputs(x); a = embedding(x) @ e; b = embedding(x) @ e; outputs(a, b)",
    "searching": "inputs(x); a = searching(x) @ e, reads(kb); b = searching(x) @ e, reads(kb); outputs(a, b)",
    "decoding": "inputs(x); kv = prefilling(x) @ e; a = decoding(kv, temperature=0) @ e; "
    "b = decoding(kv, temperature=0) @ e; outputs(a, b)",
}


@pytest.fixture
def host() -> Iterator[LocalHost]:
    host = LocalHost()
    yield host
    host.close()


def called(host: LocalHost, op: str, context: Context) -> Report:
    """The framework's run asks twice for what the graph, after the pass, has run ahead."""
    engine = FakeEngine(lambda payload: says("text") if op == "decoding" else [payload], name="e", concurrent=True)
    graph = optimize_graph(parse(TWICE[op]), [share_subexpressions], context, strict=True).graph
    session = Session(host)
    session.run_ahead(Prepared(make_plan(graph), {}, {"e": engine.spec}), [{"x": "why"}], {})
    for _ in range(40):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), host.loop).result()
    settings = {"temperature": 0} if op == "decoding" else {}
    for _ in range(2):
        session.ask(engine.spec, op, ["why"], settings)[0].result()
    return session.close()


@pytest.mark.parametrize("op", TWICE)
def test_in_a_framework_each_ask_finds_what_ran_ahead(host: LocalHost, op: str) -> None:
    report = called(host, op, Context())
    assert (report.hits, report.misses, report.wasted) == (2, 0, 0)


@pytest.mark.parametrize(("op", "hits"), [("embedding", 2), ("searching", 1), ("decoding", 1)])
def test_why_nothing_is_shared_there(host: LocalHost, op: str, hits: int) -> None:
    """The second search and the second text would be computed again, when the framework waits for them."""
    report = called(host, op, Context(allow_early_stop=True))
    assert (report.hits, report.misses) == (hits, 2 - hits)


# --- prompts that begin alike -----------------------------------------------------------------------------------

AGENTS = """
inputs(task, code)
a_kv = prefilling('Code: ', code, ' Review it for ', task) @ llm
a = decoding(a_kv, max_tokens=8) @ llm
b_kv = prefilling('Code: ', code, ' Test it for ', task) @ llm
b = decoding(b_kv, max_tokens=8) @ llm
c_kv = prefilling('Code: ', code, ' Document it for ', task) @ llm
c = decoding(c_kv, max_tokens=8) @ llm
all = call(a, b, c, fn='all') @ python
outputs(all)
"""
CODE = " ".join(f"word{n}" for n in range(1000))
INPUTS = {"task": "somebody", "code": CODE}


def run(passes: Sequence[Pass], *, at_end: bool) -> tuple[Graph, dict[str, Any], ProfileLLM, float]:
    """The graph, the outputs, the engine afterwards, and when the query ended."""
    llm = ProfileLLM("llm", PAPER_LLM["7b"], prefix_at_end=at_end)
    context = Context({"llm": llm.profile}, {"llm": llm.capabilities}, expected_tokens=1000)
    graph = optimize_graph(parse(AGENTS), passes, context, strict=True).graph
    outputs, ended_s = run_graph(graph, llm)
    return graph, outputs, llm, ended_s


def run_graph(graph: Graph, llm: ProfileLLM) -> tuple[dict[str, Any], float]:
    """The outputs, and when the query ended."""
    functions = {"all": Function(lambda *texts: texts), "text": Function(lambda vector, plan: plan)}
    engines = {"llm": llm, "encoder": ProfileEmbedding(4, Profile.affine(0.5), name="encoder")}
    specs = {name: EngineSpec("engine", engine, name) for name, engine in engines.items()}
    prepared = Prepared(make_plan(graph), functions, specs)

    async def go() -> tuple[dict[str, Any], float]:
        host = LocalHost(loop=asyncio.get_running_loop())
        outputs = await run_query(host, prepared, INPUTS)
        ended_s = asyncio.get_running_loop().time()
        await host.aclose()
        return outputs, ended_s

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(go())


def test_what_prompts_have_in_common_is_computed_once_where_the_engine_would_not() -> None:
    once = len(tokenize(CODE))
    _, outputs, plain, plain_s = run([], at_end=True)
    graph, same, shared, shared_s = run([share_prefixes], at_end=True)
    assert [p.kind for p in graph].count("partial_prefilling") == 1
    assert same == outputs
    assert plain.stats.tokens > 3 * once
    assert once < shared.stats.tokens < 1.1 * once
    assert shared_s < plain_s


def test_without_waiting_each_would_compute_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefixTracker, "prefill", lambda *_: None)
    _, _, shared, _ = run([share_prefixes], at_end=True)
    assert shared.stats.tokens > 3 * len(tokenize(CODE))


def test_an_engine_that_shares_what_is_under_way_is_left_alone() -> None:
    graph, _, plain, _ = run([share_prefixes], at_end=False)
    assert graph == parse(AGENTS)
    assert plain.stats.tokens < 1.1 * len(tokenize(CODE))


# --- early prefills ---------------------------------------------------------------------------------------------

HEAD = """
inputs(task, code)
kv = prefilling('Plan: ', task) @ llm
plan = decoding(kv, max_tokens=8) @ llm
"""
TAIL = "answer = decoding(answer_kv, max_tokens=8) @ llm; outputs(answer)"
SEARCH = "vector = embedding(plan) @ encoder; late = call(vector, plan, fn='text') @ python"
PLAIN = "answer_kv = prefilling('Code: ', code, ' By ', {late}) @ llm"
EARLY = """
early = partial_prefilling('Code: ', code, ' By ') @ llm{after}
answer_kv = full_prefilling(early, {late}) @ llm
"""


def ended_s(*parts: str, **names: str) -> float:
    """When a query ends of the graph of these parts."""
    text = "\n".join(part.format(**names) for part in (HEAD, *parts, TAIL))
    return run_graph(parse(text), ProfileLLM("llm", PAPER_LLM["7b"]))[1]


def test_an_early_prefill_gains_nothing_from_what_its_engine_is_writing_for_the_rest() -> None:
    assert ended_s(EARLY, late="plan", after="") > ended_s(PLAIN, late="plan")


def test_it_gains_the_time_in_which_the_engine_is_idle() -> None:
    plain_s = ended_s(SEARCH, PLAIN, late="late")
    assert ended_s(SEARCH, EARLY, late="late", after="") > plain_s - 0.01
    assert ended_s(SEARCH, EARLY, late="late", after=", after(plan)") < plain_s - 0.2
