"""ALTO's checking of facts: what is written as a list goes on item by item, or when it is whole.

    answer -> claims -> two searches for each -> passages -> scores -> a verdict for each claim -> report
              [ ]       [[ ]]                    [[ ]]       [[ ]]     [ ]

    whole       |answer|claim claim claim claim|search search|BM25|ColBERT|verdicts|
    streamed    |answer|claim claim claim claim|
                             |search search|BM25|ColBERT|verdict|                     of the first claim
                                               |search search|BM25|ColBERT|verdict|   of the last

Both run the same graph on the same engines; streamed is that graph after the passes. Lists are nested twice: evidence
is gathered for each claim and verdicts for each question by the ancestry of the items, which the graph scheduler keeps,
so that any instance may serve any item.

Source: ALTO (arXiv 2403.04311). Its abstract has 3x throughput at 4 s a request and 1.8x lower tail latency, and does
not say whether the 4 s are the mean: here are both, mean and P99. It ran on eight A100; what its stages take is not to
be had and assumed here: lengths of texts below, `PROFILES`, how many GPUs each stage has (`GPUS`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from simulator import BatchServer, LlmServer, System, Workload, simulate
from simulator.arrivals import poisson

from papers.figures import Cell, Figure, Plot, Result, Row, Series, Setting, Table
from papers.parrot.engines import A100_7B
from papers.parrot.engines import Context as Sequences
from papers.parrot.graphs import text
from papers.parrot.rows import rate_at
from teola_plugin.graph import Graph, parse
from teola_plugin.passes import DEFAULT, Context, Pass, optimize_graph
from teola_plugin.passes.estimates import planned
from teola_plugin.plan import Plan
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.runtime.scheduler.policies import PolicyName

ANSWER_TOKENS = 128
CLAIM_TOKENS = 25
ASKED_TOKENS = 24
VERDICT_TOKENS = 10
"""Assumed: an answer of some sentences, sentences of that length as claims, half as long the two searches for one."""

SEARCHES = 2
PASSAGES = 10
PASSAGE_TOKENS = 100
EVIDENCE = 3
"""So many of the passages are read for a verdict."""

CLAIMS = (2, 4, 6, 8)
"""In an answer; the example in ALTO's paper has two."""

TARGET_S = 4.0
STAGES = ("answerer", "extractor", "asker", "judge")


def graph(n: int, one_pool: bool = False) -> Graph:
    """The pipeline, for answers that make n claims. `one_pool`: all its LLMs are one engine."""
    answerer, extractor, asker, judge = ["llm"] * 4 if one_pool else STAGES
    return parse(f"""
inputs(question)
kv = prefilling('Answer in a few sentences. ', question) @ {answerer}
answer = decoding(kv, max_tokens={ANSWER_TOKENS}) @ {answerer}
claims_kv = prefilling('List what is claimed here, one a line. ', answer) @ {extractor}
claims: [] = decoding(claims_kv, items='lines', max_tokens={CLAIM_TOKENS * n}, shape='lines:{n}') @ {extractor}
asked_kv: [] = prefilling('Two searches, one a line, to check: ', *claims) @ {asker}
asked: [[]] = decoding(*asked_kv, items='lines', max_tokens={ASKED_TOKENS}, shape='lines:{SEARCHES}') @ {asker}
hits: [[]] = searching(*asked, top_k={PASSAGES}) @ bm25, reads(corpus)
passages: [[]] = call(*hits, fn='passages') @ python
scores: [[]] = reranking(*asked, *passages) @ colbert
evidence: [] = call(*passages, *scores, fn='evidence') @ python
verdicts_kv: [] = prefilling('True or false? ', *claims, ' Evidence: ', *evidence) @ {judge}
verdicts: [] = decoding(*verdicts_kv, max_tokens={VERDICT_TOKENS}) @ {judge}
report = call(claims, verdicts, fn='report') @ python
outputs(report)
""")


def _passages(hit: Mapping[str, Any]) -> str:
    return "".join(hit["documents"])


def _evidence(passages: Sequence[str], scores: Sequence[float]) -> str:
    """Of all that was found for one claim."""
    best = max(zip(scores, passages, strict=True))[1]
    return best[: EVIDENCE * len(best) // PASSAGES]


def _report(claims: Sequence[str], verdicts: Sequence[str]) -> str:
    return "\n".join(f"{claim}: {verdict}" for claim, verdict in zip(claims, verdicts, strict=True))


FUNCTIONS: Mapping[str, Callable[..., Any]] = {"passages": _passages, "evidence": _evidence, "report": _report}
CORPUS = tuple(text(f"passage {n}", PASSAGE_TOKENS) for n in range(1000))


# --- ways ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Way:
    """What is done to the graph, and who goes first."""

    name: str
    policy: PolicyName
    passes: tuple[Pass, ...] = ()
    one_pool: bool = False


WHOLE = Way("whole outputs", "to")
STREAMED = Way("streamed", "critical_path", DEFAULT)
POOLED = Way("streamed, one pool of LLMs", "critical_path", DEFAULT, one_pool=True)

GPUS = {"answerer": 1, "extractor": 1, "asker": 1, "judge": 3, "colbert": 2}
"""Eight in all, by what each stage needs."""

LLM = A100_7B.profile(Sequences(400), is_shared=False)
PROFILES: Mapping[str, Profile | LlmProfile] = {
    **dict.fromkeys((*STAGES, "llm"), LLM),
    "bm25": Profile.affine(0.0, 0.03, source="assumed: 30 ms a search on a core"),
    "colbert": Profile.affine(0.01, 0.01, source="assumed: 20 ms for the passages of one search, 10 ms for more"),
}


def system(way: Way) -> System:
    """Eight GPUs, and four cores for BM25."""
    llms = {"llm": sum(GPUS[stage] for stage in STAGES)} if way.one_pool else {stage: GPUS[stage] for stage in STAGES}
    servers: dict[str, BatchServer | LlmServer] = {
        name: LlmServer(LLM, count, max_items=256, max_prefill_tokens=8000) for name, count in llms.items()
    }
    servers["bm25"] = BatchServer({"searching": _batches("bm25")}, instances=4, max_items=1, texts=CORPUS)
    servers["colbert"] = BatchServer({"reranking": _batches("colbert")}, GPUS["colbert"])
    return System(servers, way.policy)


def _batches(name: str) -> Profile:
    profile = PROFILES[name]
    assert isinstance(profile, Profile)
    return profile


@dataclass(frozen=True, slots=True)
class Load:
    """Questions, whose answers make so many claims, at a rate."""

    way: Way
    claims: int
    per_s: float
    questions: int
    seed: int


@dataclass(frozen=True, slots=True)
class Checked:
    """Latencies of all questions, and the share of the time for which each engine's instances were busy."""

    mean_s: float
    p99_s: float
    busy: Mapping[str, float]


def check(load: Load) -> Checked:
    """Answer these questions and check the answers. Raises: what a query raised, which is a mistake of ours."""
    workload = Workload(_plan(load.way, load.claims), FUNCTIONS, lambda n: {"question": text(f"question {n}", 20)})
    arrivals = poisson(load.per_s, {"facts": 1.0}, count=load.questions, seed=load.seed)
    servers = system(load.way)
    done = simulate(arrivals, {"facts": workload}, servers, seed=load.seed)
    for each in done.ended:
        if each.error:
            raise each.error
    seconds = sorted(each.latency_s for each in done.ended)
    busy = {name: use.busy_s / done.took_s / servers.servers[name].instances for name, use in done.engines.items()}
    return Checked(statistics.fmean(seconds), seconds[math.ceil(0.99 * len(seconds)) - 1], busy)


@cache
def _plan(way: Way, n: int) -> Plan:
    known = {name: server.capabilities(bundles=False) for name, server in system(way).servers.items()}
    context = Context(PROFILES, known, expected_items=n, expected_tokens=PASSAGE_TOKENS)
    optimized = optimize_graph(graph(n, way.one_pool), way.passes, context, strict=True).graph
    return planned(optimized, context)


def least_s(n: int) -> float:
    """Of a question alone: the way of its last claim, which is written after all others. It may be read early."""
    prompts = (27, ANSWER_TOKENS + 10, CLAIM_TOKENS + 9, EVIDENCE * PASSAGE_TOKENS)
    steps = ANSWER_TOKENS + CLAIM_TOKENS * n + ASKED_TOKENS + VERDICT_TOKENS - len(prompts)  # a prefill says a token
    batches_s = _batches("bm25").predict_s(1) + _batches("colbert").predict_s(1)
    return sum(map(LLM.prefill_s, prompts)) + steps * LLM.step_s(1) + batches_s


# --- the figure ------------------------------------------------------------------------------------------------------

RATES = {
    2: (0.5, 8.0, 14.0, 16.0, 18.0),
    4: (0.5, 4.0, 6.0, 7.0, 8.0, 9.0, 11.0),
    6: (0.25, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0),
    8: (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0),
}
"""Questions a second, by how many claims an answer makes: from hardly any to more than the engines can do."""

Curve = Sequence[tuple[float, float]]


def facts(setting: Setting) -> Result:
    """What streaming gives, by the number of claims."""
    ways = (WHOLE, STREAMED) if setting.quick else (WHOLE, STREAMED, POOLED)
    claims = CLAIMS[-1:] if setting.quick else CLAIMS
    lasts_s, least = (10.0, 30) if setting.quick else (40.0, 80)
    rates = {n: RATES[n][:: 2 if setting.quick else 1] for n in claims}

    def of(way: Way, n: int, rate: float) -> Load:
        return Load(way, n, rate, max(least, round(rate * lasts_s)), setting.seed)

    loads = [of(way, n, rate) for n in claims for way in ways for rate in rates[n]]
    found = dict(zip(loads, setting.map(check, loads), strict=True))
    rows, plots = [], []
    for n in claims:
        curves = [[(rate, found[of(way, n, rate)]) for rate in rates[n]] for way in ways]
        means = [[(rate, at.mean_s) for rate, at in curve] for curve in curves]
        tails = [[(rate, at.p99_s) for rate, at in curve] for curve in curves]
        rows += _rows(n, ways, means, tails)
        series = [Series(way.name, tuple(curve)) for way, curve in zip(ways, means, strict=True)]
        series += [Series(f"P99, {way.name}", tuple(curve), True) for way, curve in zip(ways, tails, strict=True)]
        plots.append(Plot(f"{n} claims", "questions a second", "latency (s)", tuple(series), top=3 * TARGET_S))
    return Result((Table("Facts checked", COLUMNS, tuple(rows), "claims, way"),), tuple(plots), SAYS)


COLUMNS = ("alone", "bound", "mean of 4 s at", "over whole", "P99 of 4 s at", "over whole", "P99, at most lower by")
SAYS = (
    "Alone, streamed is at the bound, the last claim's way. How much more load a target leaves room for rests on how "
    "near to it a question alone comes with whole outputs.",
    "The engines have as much to do in both ways, and near their limit the tail is the queue in front of them: "
    "streaming moves forward what is asked of them, and takes none of it away.",
)


def _rows(n: int, ways: Sequence[Way], means: Sequence[Curve], tails: Sequence[Curve]) -> list[Row]:
    at_mean, at_tail = ([rate_at(curve, TARGET_S) for curve in curves] for curves in (means, tails))
    rows = []
    for at, way in enumerate(ways):
        is_ours = way is STREAMED
        cells = (
            Cell(means[at][0][1], unit="s"),
            Cell(least_s(n), unit="s"),
            Cell(at_mean[at], unit="/s"),
            Cell(_times(at_mean[at], at_mean[0]), "up to 3x" if is_ours else None, "x"),
            Cell(at_tail[at], unit="/s"),
            Cell(_times(at_tail[at], at_tail[0]), unit="x"),
            Cell(max(a / b for (_, a), (_, b) in zip(tails[0], tails[at], strict=True)), 1.8 if is_ours else None, "x"),
        )
        rows.append(Row(f"{n}, {way.name}", cells))
    return rows


def _times(a: float, b: float) -> float | None:
    return a / b if b else None


FIGURES = (Figure("alto-facts", "Facts checked, streamed or not", "ALTO, abstract", facts),)
