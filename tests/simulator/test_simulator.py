"""The simulator: the same latencies as on profile engines, and what it makes of queries that go wrong."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import statistics
import textwrap
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from simulator import (
    Arrival,
    BatchServer,
    Ended,
    LlmServer,
    Simulation,
    System,
    Workload,
    poisson,
    simulate,
    simulate_many,
)  # fmt: skip
from simulator.arrivals import drive

from teola_plugin.engines import EngineSpec
from teola_plugin.errors import EngineError, GraphError, TeolaError
from teola_plugin.graph import parse
from teola_plugin.passes import BRANCHES, DEFAULT, Context, Pass, optimize_graph
from teola_plugin.passes.estimates import planned
from teola_plugin.profile import PAPER, PAPER_LLM, Profile
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM, ProfileReranker, ProfileStore
from teola_plugin.runtime.engines.simulated_text import answer, tokenize
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.hosts.virtual_time import VirtualLoop
from teola_plugin.runtime.scheduler.policies import PolicyName
from teola_plugin.runtime.session.graph_runner import run_query
from teola_plugin.runtime.session.plan_executor import Prepared
from teola_plugin.templates import App, Apply, Generation, Loop
from teola_plugin.trace import Function

TEXTS = [f"passage {n} of the store tells of what has the number {n}" for n in range(40)]
RAG = """
inputs(question, chunks=[])
vecs: [] = embedding(*chunks) @ embedder
load = ingestion(*vecs, *chunks) @ store, writes(kb)
queries_kv = prefilling('Three searches for: ', question) @ llm
queries: [] = decoding(queries_kv, items='lines', max_tokens=30, shape='lines:4', wanted=2) @ llm
q: [] = embedding(*queries) @ embedder
hit: [] = searching(*q, top_k=5) @ store, reads(kb), after(load)
passages: [] = call(hit, fn='merged') @ python
scores: [] = reranking(question, *passages) @ reranker
top = call(passages, scores, fn='best') @ python
kv = prefilling('Answer in one sentence from what was found. Question: ', question, ' Context: ', top) @ llm
answer = decoding(kv, max_tokens=16) @ llm
outputs(answer, load)
"""
CHAT = """
inputs(question)
kv = prefilling('You are friendly. ', question) @ llm
answer = decoding(kv, max_tokens=12, temperature=0) @ llm
outputs(answer)
"""
JUDGED = """
inputs(question, chunks=[])
kv = prefilling('Is a search needed? ', question) @ llm
verdict = decoding(kv, max_tokens=12) @ llm
needed = condition(verdict, fn='odd') @ python
vecs: [] = embedding(*chunks) @ embedder, when(needed)
q = embedding(question) @ embedder, when(needed)
hit = searching(q, top_k=5) @ store, reads(kb), when(needed)
passages: [] = call(hit, fn='documents') @ python, when(needed)
scores: [] = reranking(question, *passages) @ reranker, when(needed)
top = call(passages, scores, fn='best') @ python, when(needed)
q_2: [] = embedding(*chunks) @ embedder, when(needed, False)
hits: [] = searching(*q_2, top_k=2) @ store, reads(kb), when(needed, False)
other = call(hits, fn='merged') @ python, when(needed, False)
either = aggregate(top, other)
kv_2 = prefilling('Answer: ', question, ' Context: ', either) @ llm
answer = decoding(kv_2, max_tokens=16) @ llm
outputs(answer, vecs)
"""
EMBED = "inputs(x); y = embedding(x) @ embedder; outputs(y)"


def merged(hits: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({text for hit in hits for text in hit["documents"]})


def best(passages: Sequence[str], scores: Sequence[float]) -> str:
    return max(zip(scores, passages, strict=True))[1]


def given(number: int) -> dict[str, Any]:
    chunks = [f"chunk {n} of {number}" for n in range(5 + number % 9)]
    return {"question": f"what of number {number}?", "chunks": chunks}


SERVERS: dict[str, BatchServer | LlmServer] = {
    "embedder": BatchServer({"embedding": PAPER["embedding"]}, max_items=16),
    "reranker": BatchServer({"reranking": PAPER["reranking"]}),
    "store": BatchServer({name: PAPER[name] for name in ("searching", "ingestion")}, texts=TEXTS),
    "llm": LlmServer(PAPER_LLM["7b"], max_items=4, max_prefill_tokens=256),
}


def system(policy: PolicyName = "critical_path", servers: Mapping[str, Any] = SERVERS, **more: Any) -> System:
    return System(servers, policy, **more)


def server(name: str, **changes: Any) -> dict[str, BatchServer | LlmServer]:
    return {**SERVERS, name: replace(SERVERS[name], **changes)}


def workload(
    text: str, passes: Sequence[Pass] = (), inputs: Callable[[int], Mapping[str, Any]] = given, **functions: Any
) -> Workload:
    context = Context(
        {n: s.profile if isinstance(s, LlmServer) else next(iter(s.profiles.values())) for n, s in SERVERS.items()},
        {n: s.capabilities(bundles=False) for n, s in SERVERS.items()},
        expected_items=12,
        allow_early_stop=True,
    )
    graph = optimize_graph(parse(textwrap.dedent(text)), passes, context, strict=True).graph
    return Workload(planned(graph, context), {"merged": merged, "best": best, **functions}, inputs)


APPS = {"rag": workload(RAG, DEFAULT), "chat": workload(CHAT)}
ODD = {"odd": lambda text: zlib.crc32(text.encode()) % 2 == 1, "documents": lambda hit: hit["documents"]}
BRANCHED = {
    "rag": workload(JUDGED, BRANCHES, **{**ODD, "merged": lambda hits: str(merged(hits))}),
    "chat": workload(CHAT),
}


def one(text: str, of: System | None = None, count: int = 1, *, gap_s: float = 0.0, **more: Any) -> Simulation:
    """A few queries of one kind that come at once, or one after the other."""
    found = workload(text, **{"inputs": lambda n: {"x": f"x{n}"}, **more})
    arrivals = [Arrival(n, "app", n * gap_s) for n in range(count)]
    return simulate(arrivals, {"app": found}, of or system(), trace=True)


def latencies(simulation: Simulation) -> list[float]:
    return [ended.latency_s for ended in simulation.ended]


# --- profile engines on the same host ---------------------------------------------------------------------------------


class Several:
    """An engine of instances."""

    def __init__(self, instances: Sequence[Any]) -> None:
        self.instances = instances
        self.name, self.capabilities = instances[0].name, instances[0].capabilities

    async def close(self) -> None:
        for each in self.instances:
            await each.close()


def really(
    arrivals: Sequence[Arrival], policy: PolicyName, instances: int, apps: Mapping[str, Workload] = APPS
) -> list[Ended]:
    """The same queries on LocalHost and the profile engines."""
    makes: dict[str, Callable[[], Any]] = {
        "embedder": lambda: ProfileEmbedding(8, PAPER["embedding"], max_items=16),
        "reranker": lambda: ProfileReranker(PAPER["reranking"]),
        "store": lambda: ProfileStore(TEXTS, PAPER["searching"], PAPER["ingestion"]),
        "llm": lambda: ProfileLLM("llm", PAPER_LLM["7b"], max_items=4, max_prefill_tokens=256),
    }
    specs = {
        name: EngineSpec("engine", Several([make() for _ in range(instances)]), name) for name, make in makes.items()
    }
    prepared = {
        name: Prepared(app.plan, {fn: Function(call) for fn, call in app.functions.items()}, specs)
        for name, app in apps.items()
    }

    async def run() -> list[Ended]:
        host = LocalHost(policy, loop=asyncio.get_running_loop())
        try:
            return await drive(arrivals, lambda a: run_query(host, prepared[a.app], given(a.number)))
        finally:
            await host.aclose()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


@pytest.mark.parametrize(
    ("policy", "rate", "instances"),
    [("critical_path", 3.0, 1), ("topology", 6.0, 2), ("to", 3.0, 1), ("po", 2.0, 1), ("critical_path", 12.0, 2)],
)
def test_latencies_are_those_of_the_real_host(policy: PolicyName, rate: float, instances: int) -> None:
    """With the same texts, query by query; the first of them come at once."""
    arrivals = poisson(rate, {"rag": 1, "chat": 2}, count=40, seed=7)
    arrivals = [replace(a, at_s=0.0) if a.number < 5 else a for a in arrivals]
    says = partial(answer, dim=8, texts=TEXTS)
    servers = {name: replace(each, instances=instances, answers=says) for name, each in SERVERS.items()}
    simulated = simulate(arrivals, APPS, system(policy, servers), count=lambda text: len(tokenize(text)))
    assert latencies(simulated) == pytest.approx([ended.latency_s for ended in really(arrivals, policy, instances)])
    assert not any(ended.error for ended in simulated.ended)


@pytest.mark.parametrize(
    ("policy", "rate", "instances"), [("critical_path", 1.0, 1), ("critical_path", 8.0, 1), ("to", 3.0, 2)]
)
def test_what_branches_read_ahead_takes_as_long_as_on_the_real_host(
    policy: PolicyName, rate: float, instances: int
) -> None:
    arrivals = poisson(rate, {"rag": 1, "chat": 1}, count=40, seed=7)
    says = partial(answer, dim=8, texts=TEXTS)
    servers = {name: replace(each, instances=instances, answers=says) for name, each in SERVERS.items()}
    simulated = simulate(arrivals, BRANCHED, system(policy, servers), count=lambda text: len(tokenize(text)))
    real = really(arrivals, policy, instances, BRANCHED)
    assert latencies(simulated) == pytest.approx([ended.latency_s for ended in real])
    assert not any(ended.error for ended in [*real, *simulated.ended])


def test_a_guess_that_is_wanted_before_it_arrives_waits_as_others_do() -> None:
    apps = {name: replace(app, round_trip_s=lambda drawn: drawn.uniform(0, 3)) for name, app in BRANCHED.items()}
    done = simulate(poisson(8.0, {"rag": 1, "chat": 1}, count=60, seed=7), apps, system())
    assert [ended.error for ended in done.ended] == [None] * 60


@pytest.mark.parametrize("round_trip_s", [None, 0.2])
@pytest.mark.parametrize("is_wanted", [True, False])
def test_what_nobody_wants_is_not_waited_for_and_fails_nobody(is_wanted: bool, round_trip_s: float | None) -> None:
    text = """
    inputs(question)
    kv = prefilling('Is a search needed? ', question) @ llm
    verdict = decoding(kv, max_tokens=12) @ llm
    needed = condition(verdict, fn='needed') @ python
    q = embedding(question) @ embedder, when(needed)
    outputs(verdict, q)
    """

    def fails(op: str, payload: Any, settings: Any) -> Any:
        raise OSError("gone")

    latency: dict[str, float] = {}
    for name, passes in (("ahead", BRANCHES), ("after", ())):
        app = replace(workload(text, passes, needed=lambda verdict: is_wanted), round_trip_s=None)
        if round_trip_s:
            app = replace(app, round_trip_s=lambda drawn: round_trip_s)
        (ended,) = simulate([Arrival(0, "a", 0.0)], {"a": app}, system(servers=server("embedder", answers=fails))).ended
        assert (repr(ended.error) == "OSError('gone')") == is_wanted
        latency[name] = ended.latency_s
    assert latency["ahead"] == pytest.approx(latency["after"]), "a read that failed is made again"


def asked_although_unwanted(ahead: str) -> Simulation:
    text = f"""
    inputs(question)
    verdict = embedding(question) @ embedder
    needed = condition(verdict, fn='needed') @ python
    kv = prefilling(question) @ llm
    {ahead}
    late = aggregate(ahead), when(needed)
    outputs(verdict, late)
    """
    return one(text, needed=lambda verdict: False, inputs=given)


def test_what_nobody_wants_any_more_is_not_asked_for() -> None:
    found = asked_although_unwanted("""text = decoding(kv, max_tokens=12) @ llm
    ahead = embedding(text, ahead=True) @ embedder""")
    assert (found.engines["embedder"].items, found.engines["llm"].items) == (1, 1)


def test_a_text_that_nobody_wants_any_more_is_not_written_on() -> None:
    found = asked_although_unwanted("ahead = decoding(kv, max_tokens=500, ahead=True) @ llm")
    assert 0 < found.engines["llm"].steps < 100


@pytest.mark.parametrize("rounds", [2, 7])
def test_rounds_that_are_revealed_take_as_long_as_on_the_real_host(rounds: int) -> None:
    better = Generation("Better: {draft}", "draft", max_tokens=10, name="better")
    counting = Apply(lambda number: number + 1, "number", "number")
    loop = Loop(better >> counting, lambda number: number == rounds, of="number", at_most=None)
    template = Generation("{question}", "draft", max_tokens=10) >> loop >> Generation("Sum {draft}", "answer")
    inputs = {"question": "what is it?", "number": 0}

    async def run() -> tuple[float, App]:
        host = LocalHost(loop=asyncio.get_running_loop())
        app = App("rounds", template, {"llm": ProfileLLM("llm", PAPER_LLM["7b"])}, inputs=["number"], host=host)
        began_s = host.loop.time()
        await app.run_here(**inputs)
        took_s = host.loop.time() - began_s
        await host.aclose()
        return took_s, app

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        took_s, app = runner.run(run())
    prepared = app.configured({}).prepared
    functions = {name: function.call for name, function in prepared.functions.items()}
    looping = Workload(prepared.plan, functions, lambda _: inputs, rounds=prepared.rounds)
    llm = LlmServer(PAPER_LLM["7b"], answers=partial(answer, dim=8, texts=TEXTS))
    simulated = simulate(
        [Arrival(0, "rounds", 0.0)], {"rounds": looping}, system(servers={"llm": llm}), trace=True,
        count=lambda text: len(tokenize(text)),
    )  # fmt: skip
    assert latencies(simulated) == pytest.approx([took_s])
    assert sum(span.engine == "llm" for span in simulated.spans) == rounds + 2
    with pytest.raises(EngineError, match=r"workload 'rounds': .*the system has no engine 'llm'"):
        simulate([], {"rounds": looping}, system(servers={}))


def test_with_texts_of_its_own_latencies_are_about_those() -> None:
    arrivals = poisson(3.0, {"rag": 1, "chat": 2}, count=60, seed=7)
    simulated = simulate(arrivals, APPS, system())
    real_s = statistics.fmean(ended.latency_s for ended in really(arrivals, "critical_path", 1))
    assert statistics.fmean(latencies(simulated)) == pytest.approx(real_s, rel=0.08)


def test_the_apps_hand_out_items_and_stop_early() -> None:
    """So that the tests before and after this one are about that, too."""
    printed = str(APPS["rag"].plan.graph)
    assert "partial_decoding" in printed
    assert "early_stop=True" in printed
    assert "stage_items" in printed


def test_it_is_the_same_each_time() -> None:
    arrivals = poisson(8.0, {"rag": 1, "chat": 2}, count=40, seed=7)
    assert simulate(arrivals, APPS, system(), trace=True) == simulate(arrivals, APPS, system(), trace=True)
    assert simulate(arrivals, APPS, system("topology")) != simulate(arrivals, APPS, system("to"))


def test_many_steps_at_once_are_the_same_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals = poisson(9.0, {"rag": 1, "chat": 2}, count=40, seed=7)
    jumping = simulate(arrivals, APPS, system(hop_s=0.004))
    monkeypatch.setattr("simulator.llm_server.MOST_STEPS", 1)
    stepping = simulate(arrivals, APPS, system(hop_s=0.004))
    assert latencies(jumping) == pytest.approx(latencies(stepping), abs=1e-9)
    assert jumping.engines["llm"].steps == stepping.engines["llm"].steps > 100


def test_engines_of_one_machine_slow_one_another_down_if_it_has_too_few_processors() -> None:
    arrivals = poisson(9.0, {"rag": 1, "chat": 2}, count=40, seed=7)
    apart, enough, few = (simulate(arrivals, APPS, system(cores=cores)) for cores in (None, 4, 1))
    assert latencies(enough) == pytest.approx(latencies(apart), abs=1e-9)
    assert statistics.fmean(latencies(few)) > 1.2 * statistics.fmean(latencies(apart))
    assert [ended.error for ended in few.ended] == [None] * 40


def test_an_engine_that_only_waits_is_not_slowed_down() -> None:
    waiting = {name: replace(each, demand=0.0) for name, each in SERVERS.items()}
    arrivals = poisson(9.0, {"rag": 1, "chat": 2}, count=40, seed=7)
    alone = simulate(arrivals, APPS, system())
    assert latencies(simulate(arrivals, APPS, system(servers=waiting, cores=1))) == pytest.approx(latencies(alone))


def test_simulations_may_run_side_by_side() -> None:
    assert simulate_many(math.sqrt, [4.0, 9.0, 16.0], processes=2) == [2.0, 3.0, 4.0]


# --- batches and bundles ----------------------------------------------------------------------------------------------

MAPPED = """
inputs(x, xs=[])
kvs: [] = prefilling('About ', *xs) @ llm
notes: [] = decoding(*kvs, max_tokens=11) @ llm
outputs(notes)
"""


def three(number: int) -> dict[str, Any]:
    return {"x": "x", "xs": [f"{n} of {number}" for n in range(3)]}


def test_what_comes_at_the_same_time_is_one_batch_unless_bundles_run_alone() -> None:
    """Two queries: one batch of both, or one after the other."""
    together, alone = (one(EMBED, system("po" if b else "to", bundles=b), 2) for b in (False, True))
    assert (together.engines["embedder"].batches, alone.engines["embedder"].batches) == (1, 2)
    assert latencies(together) == pytest.approx([0.1, 0.1])
    assert latencies(alone) == pytest.approx([0.075, 0.15])


def test_an_llm_runs_bundles_alone_too() -> None:
    shared = one(MAPPED, system("to", server("llm", max_items=8)), 2, inputs=three)
    bundled = one(MAPPED, system("po", server("llm", max_items=8), bundles=True), 2, inputs=three)
    assert shared.engines["llm"].step_items == bundled.engines["llm"].step_items == 2 * 3 * 10
    assert (shared.engines["llm"].steps, bundled.engines["llm"].steps) == (10, 20)
    first_s, second_s = latencies(bundled)
    assert second_s == pytest.approx(2 * first_s, rel=0.02)
    assert [span.items for span in bundled.spans] == [3, 3], "one request for each bundle"


def test_the_same_thing_asked_for_at_the_same_time_is_one_item() -> None:
    found = one(EMBED, count=3, inputs=lambda n: {"x": "the same"})
    assert (found.engines["embedder"].items, found.engines["embedder"].joined) == (1, 2)
    assert latencies(found) == pytest.approx([0.075] * 3)
    chats = [one(CHAT.replace("temperature=0", f"temperature={t}"), count=3, inputs=lambda n: {"question": "?"})
             for t in (0, 0.5)]  # fmt: skip
    assert [chat.engines["llm"].items for chat in chats] == [1, 3], "sampled texts are each their own"


# --- the network ------------------------------------------------------------------------------------------------------


def test_each_request_and_each_reply_takes_a_hop() -> None:
    assert latencies(one(EMBED, system(hop_s=0.01))) == pytest.approx([0.075 + 0.02])
    chain = "inputs(x); y = embedding(x) @ embedder; z = searching(y, top_k=1) @ store; outputs(z)"
    assert latencies(one(chain, system(hop_s=0.01))) == pytest.approx([0.075 + 0.004 + 0.04])


def test_who_asks_for_each_request_himself_pays_a_round_trip_for_each() -> None:
    plain = workload("inputs(x); y = embedding(x) @ embedder; z = searching(y, top_k=1) @ store; outputs(z)",
                     inputs=lambda n: {"x": f"{n}"})  # fmt: skip
    asks = replace(plain, round_trip_s=lambda drawn: drawn.uniform(0.2, 0.3))
    other = workload("inputs(x); w = embedding('w') @ embedder; y = embedding(x) @ embedder; outputs(y)",
                     inputs=lambda n: {"x": f"{n}"})  # fmt: skip
    arrivals = [Arrival(n, "app", 10.0 * n) for n in range(3)]
    extra = [
        [s - t for s, t in zip(latencies(simulate(arrivals, {"app": ours}, system(), seed=1)), times, strict=True)]
        for ours, times in ((asks, [0.079] * 3), (replace(other, round_trip_s=asks.round_trip_s), [0.0] * 3))
    ]
    assert all(0.4 < each < 0.6 for each in extra[0])
    assert len(set(extra[0])) == 3
    drawn = random.Random("1 0 y ()")
    assert simulate(arrivals, {"app": asks}, system(), seed=1, trace=True).spans[0].queued_s == pytest.approx(
        drawn.uniform(0.2, 0.3) / 2
    )


# --- what goes wrong --------------------------------------------------------------------------------------------------


def boom(*_: Any) -> Any:
    raise LookupError("boom")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("inputs(x); y = call(x, fn='boom') @ python; outputs(y)", LookupError),
        ("inputs(x); y = searching(x) @ store; outputs(y)", EngineError),
        ("inputs(x); kv = prefilling(x) @ llm; y = decoding(kv, shape='rings:3') @ llm; outputs(y)", EngineError),
        ("inputs(x); kv = prefilling(x) @ llm; y: [] = decoding(kv, items='runes') @ llm; outputs(y)", GraphError),
        ("inputs(x); y: [] = call(x, fn='five') @ python; z = embedding(y) @ embedder; outputs(z)", TeolaError),
    ],
)
def test_an_error_ends_its_own_query(text: str, error: type[BaseException]) -> None:
    apps = {"bad": workload(text, inputs=lambda n: {"x": "x"}, boom=boom, five=lambda x: 5), "chat": APPS["chat"]}
    bad, chat = simulate([Arrival(0, "bad", 0.0), Arrival(1, "chat", 0.0)], apps, system()).ended
    assert isinstance(bad.error, error)
    assert chat.error is None
    assert chat.latency_s > 0.3


def test_the_first_error_ends_a_query_at_once() -> None:
    text = "inputs(x); y = call(x, fn='boom') @ python; z = embedding(x) @ embedder; outputs(z)"
    (ended,) = one(text, boom=boom).ended
    assert (type(ended.error), ended.latency_s) == (LookupError, 0.0)


def test_inputs_that_fail_are_an_error_of_the_query() -> None:
    assert isinstance(one(EMBED, inputs=boom).ended[0].error, LookupError)
    waits = one(EMBED, inputs=lambda n: {}).ended[0]
    assert isinstance(waits.error, TeolaError)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("inputs(x); y = embedding(x) @ elsewhere; outputs(y)", ("'app'", "y = embedding", "'elsewhere'", "embedder")),
        ("inputs(x); y = reranking(x, x) @ embedder; outputs(y)", ("y = reranking", "'embedder'", "'reranking'")),
        ("inputs(x); y = embedding(x) @ llm; outputs(y)", ("y = embedding", "'llm'")),
        ("inputs(x); y = call(x, fn='unheard') @ python; outputs(y)", ("'unheard'", "merged")),
        ("inputs(x); y = call(x, fn='merged') @ pipeline; outputs(y)", ("framework",)),
        ("inputs(x); y = call(x, fn='merged') @ llm; outputs(y)", ("'llm'", "framework")),
    ],
)
def test_what_the_system_lacks_is_refused_before_anything_runs(text: str, named: Sequence[str]) -> None:
    asked: list[int] = []
    with pytest.raises(TeolaError) as caught:
        one(text, inputs=lambda n: asked.append(n) or {"x": "x"})
    assert all(name in str(caught.value) for name in named)
    assert not asked


def test_a_search_without_texts_and_an_app_without_a_workload_are_refused() -> None:
    with pytest.raises(EngineError, match="texts="):
        one("inputs(x); y = searching(x, top_k=1) @ store; outputs(y)", system(servers=server("store", texts=())))
    web = {**SERVERS, "web": BatchServer({"websearch": Profile.affine(0.5)})}
    with pytest.raises(EngineError, match="texts="):
        one("inputs(x); y: [] = websearch(x) @ web; outputs(y)", system(servers=web))
    found = one("inputs(x); y: [] = websearch(x) @ web; z: [] = embedding(*y) @ embedder; outputs(z)",
                system(servers={**web, "web": replace(web["web"], texts=TEXTS)}))  # fmt: skip
    assert found.engines["embedder"].items == 4
    with pytest.raises(TeolaError, match="other"):
        simulate([Arrival(0, "other", 0.0)], APPS, system())


def test_a_profile_beyond_its_range_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    narrow = replace(PAPER["embedding"], measured_items=(4, 8), source="measured by this test")
    with caplog.at_level(logging.WARNING):
        found = one(EMBED, system(servers=server("embedder", profiles={"embedding": narrow})), 3, gap_s=1.0)
    assert latencies(found) == pytest.approx([0.075] * 3), "extrapolated"
    assert [record.message.startswith("measured by this test") for record in caplog.records] == [True]


# --- what it reports --------------------------------------------------------------------------------------------------


def test_spans_tell_when_a_request_was_asked_for_begun_and_answered() -> None:
    first, second = one(EMBED, system(servers=server("embedder", max_items=1)), 2).spans
    assert (first.query, first.primitive, first.engine, first.items) == (0, "y", "embedder", 1)
    assert [(s.queued_s, s.begin_s, s.end_s) for s in (first, second)] == [
        (0.0, 0.0, pytest.approx(0.075)),
        (0.0, pytest.approx(0.075), pytest.approx(0.15)),
    ]


def test_the_time_is_that_of_the_last_query() -> None:
    found = one(EMBED, count=3, gap_s=2.0)
    assert found.took_s == pytest.approx(4.075)
    assert found.engines["embedder"].busy_s == pytest.approx(3 * 0.075)


def test_tokens_count_where_a_profile_goes_by_them() -> None:
    by_token = Profile.affine(0.1, token_s=0.01)
    servers = server("embedder", profiles={"embedding": by_token})
    assert latencies(one(EMBED, system(servers=servers), inputs=lambda n: {"x": "x" * 40})) == pytest.approx([0.2])
    prompted = EMBED.replace("embedding(x)", "embedding(x, prompt='pppp')")
    assert latencies(one(prompted, system(servers=servers), inputs=lambda n: {"x": "x" * 40})) == pytest.approx([0.21])
