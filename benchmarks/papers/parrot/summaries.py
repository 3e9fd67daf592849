"""Parrot's applications that are chains and maps: its figures 11 to 13, ours beside the published ratios.

    a client elsewhere    call 1 . . . 244 ms . . . call 2 . . . 244 ms . . . call 3      each call queues as a new one
    graph at the engine   call 1 | call 2 | call 3                                        each goes on as an old one

Both sides use the same engine (engines.py). vLLM as it was at the time has no automatic prefix cache; vLLM of
today has, so that beside it one sees what rests on the cache: here nothing, as no two prompts begin alike. Times are
means over the artifact's articles.

Its chunks "of 1024 tokens" are counted by a splitter that adds a start token and two for the blank to each word: they
have about 470, and there are 46 to 104 in an article (words of the artifact's texts, and 1.15 times the tokens that
cl100k_base has, for Llama's). With these numbers of calls all ten articles agree on one time for a token and one for a
call. Source: Parrot, OSDI 2024, and the raw results of its artifact.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from simulator.arrivals import Arrival, poisson

from papers.figures import Figure, Result, Setting, Table
from papers.parrot.engines import (
    A100_13B,
    LATENCY_TUNED_TOKENS,
    Context,
    Way,
    ours,
    vllm_then,
    vllm_today,
)
from papers.parrot.graphs import App, background, chain, map_reduce
from papers.parrot.rows import per_way, ratios, times
from papers.parrot.runs import at_once, latency_s, mean_latency_s, run

ARTICLE_CHUNKS = (76, 47, 52, 46, 63, 59, 104, 100, 49, 63)
"""Calls of a chain over each of the ten articles of figures 11, 12a and 13."""

CHUNK_TOKENS = 470
LONGER_ARTICLE_CHUNKS = (
    28, 23, 23, 23, 25, 24, 30, 21, 25, 24, 22, 22, 23, 27, 26, 26, 24, 25, 25, 23, 29, 26, 28, 20, 28,
)  # fmt: skip
"""The same for the 25 articles of figure 12b, whose chunks are twice as long ("2048")."""

LONGER_CHUNK_TOKENS = 900
OUTPUTS = (25, 50, 75, 100)
BACKGROUND_PER_S = (0.0, 1.0, 2.0, 3.0, 3.5)
BACKGROUND_TOKENS = 512
CHAINS = (10, 15, 20, 25)
OUTPUT_TOKENS = 50
MAP_REDUCE_TOKENS = 45_000
"""What the artifact lets Parrot's map stage run at once (max_total_tokens)."""

SPARE_TOKENS = 100
"""The artifact's vLLM cuts a prompt so that so many are left beside the answer."""

THEN, TODAY = vllm_then(LATENCY_TUNED_TOKENS), vllm_today(LATENCY_TUNED_TOKENS)
THEN_FULL = vllm_then(A100_13B.kv_tokens)
OURS, OURS_FULL = ours(LATENCY_TUNED_TOKENS), ours(A100_13B.kv_tokens)


# --- figure 11 -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lone:
    """The articles, one after the other, with answers of so many tokens."""

    way: Way
    articles: tuple[int, ...]
    output_tokens: int


def chain_s(part: Lone) -> float:
    """The mean time of a chain that has the engine to itself."""
    return statistics.fmean(_alone_s(chain(n, CHUNK_TOKENS, part.output_tokens), part) for n in part.articles)


def map_reduce_s(part: Lone) -> float:
    """The mean time of a map and its reduce."""
    most_tokens = (part.way.kv_tokens or A100_13B.kv_tokens) - part.output_tokens - SPARE_TOKENS
    apps = (map_reduce(n, CHUNK_TOKENS, part.output_tokens, most_tokens) for n in part.articles)
    return statistics.fmean(_alone_s(app, part) for app in apps)


def _alone_s(app: App, part: Lone) -> float:
    context = Context(CHUNK_TOKENS + 2 * part.output_tokens)
    return mean_latency_s(run({"app": app}, at_once(["app"]), part.way, A100_13B, context), part.way)


def figure_11(setting: Setting) -> Result:
    """A chain alone."""
    articles = ARTICLE_CHUNKS[4:5] if setting.quick else ARTICLE_CHUNKS
    ways = (THEN, TODAY, OURS)
    seconds = setting.map(chain_s, [Lone(way, articles, tokens) for way in ways for tokens in OUTPUTS])
    then, today, mine = per_way(seconds, len(ways))
    medians = "median of the ten published runs: 1.35, 1.20, 1.14, 1.10"
    rows = (
        ratios("over vLLM as it was", then, mine, (1.35, 1.20, 1.20, 1.32), medians),
        ratios("over vLLM of today", today, mine),
        times("vLLM as it was", then, (56.5, 91.3, 133.0, 193.0)),
        times("ours", mine, (41.7, 76.2, 110.8, 145.8)),
    )
    calls = statistics.fmean(articles)
    says = (
        f"A chain has {calls:.0f} calls. In each, a client elsewhere loses a round trip of 244 ms, and nothing else is "
        "gained: the ratio falls as answers get longer.",
        "Published means at 75 and 100 tokens rest on two and three of ten runs (1.5, 1.5; 1.4, 2.0, 2.4), which took "
        "that much longer on their side for reasons the artifact does not tell; the other runs are within 0.02 of the "
        "median.",
    )
    return Result((Table("Chain summary", tuple(map(str, OUTPUTS)), rows, "output tokens"),), says=says)


# --- figure 12a ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Beside:
    """A chain over an article of so many chunks, beside calls of others at a rate."""

    way: Way
    chunks: int
    per_s: float
    seed: int


STARTS_S = 3.0
"""The chain begins when the others have been at it for so long."""


def beside_s(part: Beside) -> tuple[float, float]:
    """Seconds of the chain, and the mean of the others' calls that came while it ran."""
    apps = {
        "chain": chain(part.chunks, CHUNK_TOKENS, OUTPUT_TOKENS),
        "others": background(BACKGROUND_TOKENS, OUTPUT_TOKENS),
    }
    lasts_s = 2.0 * part.chunks
    while True:
        others = poisson(part.per_s or 1.0, {"others": 1}, count=round(part.per_s * lasts_s), seed=part.seed)
        arrivals = [*others, Arrival(len(others), "chain", STARTS_S)]
        done = run(apps, arrivals, part.way, A100_13B, Context(CHUNK_TOKENS + OUTPUT_TOKENS), seed=part.seed)
        mine = latency_s(done.ended[-1], part.way)
        if not others or STARTS_S + mine <= others[-1].at_s:
            break
        lasts_s *= 2  # the others had stopped before the chain was over
    beside = [ended.latency_s for ended in done.ended[:-1] if ended.arrival.at_s < STARTS_S + mine]
    return mine, statistics.fmean(beside) if beside else 0.0


def figure_12a(setting: Setting) -> Result:
    """A chain beside the calls of others."""
    articles = (20,) if setting.quick else ARTICLE_CHUNKS
    every = 4 if setting.quick else 1
    rates = BACKGROUND_PER_S[::every]
    ways = (THEN, THEN_FULL, OURS, OURS_FULL)
    parts = [Beside(way, n, rate, setting.seed) for way in ways for rate in rates for n in articles]
    both = per_way(setting.map(beside_s, parts), len(ways) * len(rates))
    then, full, tuned, mine = per_way([statistics.fmean(of for of, _ in found) for found in both], len(ways))
    others = per_way([statistics.fmean(of for _, of in found) for found in both], len(ways))
    published = (1.32, 1.14, 1.26, 1.73, 2.88)[::every]
    rows = (
        ratios("over vLLM as it was, tuned for latency", then, mine, published),
        ratios("tuned for latency too, over the same", then, tuned, published),
        ratios("over vLLM as it was, all memory", full, mine),
        times("vLLM as it was, tuned for latency", then, () if setting.quick else (99.7, 107.2, 125.8, 179.0, 302.0)),
        times("ours, tuned for latency too", tuned, () if setting.quick else (75.8, 93.8, 100.0, 103.7, 104.7)),
        times("ours", mine),
        times("others' calls: vLLM as it was, tuned for latency", others[0]),
        times("others' calls: vLLM as it was, all memory", others[1]),
        times("others' calls: ours, tuned for latency too", others[2]),
        times("others' calls: ours", others[3]),
    )
    columns = tuple(f"{rate:g} /s" for rate in rates)
    says = (
        "Ours serves the others' calls as they come: at 3 a second their prefills alone take 31 % of the time of the "
        "engine. What Parrot's 104 s cost the others is not published.",
        "Published at 0 /s: 1.20 without one of ten runs.",
    )
    return Result((Table("Chain summary beside others' calls", columns, rows, "background"),), says=says)


# --- figure 12b ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Together:
    """So many chains that begin at once."""

    way: Way
    count: int


def together_s(part: Together) -> float:
    """The mean time of a chain."""
    chunks = LONGER_ARTICLE_CHUNKS[: part.count]
    apps = {f"article {n}": chain(count, LONGER_CHUNK_TOKENS, OUTPUT_TOKENS) for n, count in enumerate(chunks)}
    done = run(apps, at_once(list(apps)), part.way, A100_13B, Context(LONGER_CHUNK_TOKENS + OUTPUT_TOKENS))
    return mean_latency_s(done, part.way)


def figure_12b(setting: Setting) -> Result:
    """Many chains at once."""
    counts = CHAINS[:1] if setting.quick else CHAINS
    ways = (THEN, THEN_FULL, OURS, OURS_FULL)
    seconds = setting.map(together_s, [Together(way, count) for way in ways for count in counts])
    then, full, tuned, mine = per_way(seconds, len(ways))
    published = (1.38, 1.52, 1.63, 1.68)[: len(counts)]
    rows = (
        ratios("over vLLM as it was, tuned for latency", then, mine, published),
        ratios("tuned for latency too, over the same", then, tuned, published),
        ratios("over vLLM as it was, all memory", full, mine),
        times("vLLM as it was, tuned for latency", then, (112.8, 171.9, 234.7, 292.9)[: len(counts)]),
        times("ours, tuned for latency too", tuned, (81.7, 113.3, 143.7, 174.6)[: len(counts)]),
        times("ours", mine),
    )
    return Result((Table("Chains at once", tuple(map(str, counts)), rows, "chains"),))


# --- figure 13 -------------------------------------------------------------------------------------------------------


def figure_13(setting: Setting) -> Result:
    """Map and reduce."""
    articles = ARTICLE_CHUNKS[4:5] if setting.quick else ARTICLE_CHUNKS
    ways = (THEN, THEN_FULL, TODAY, ours(MAP_REDUCE_TOKENS))
    seconds = setting.map(map_reduce_s, [Lone(way, articles, tokens) for way in ways for tokens in OUTPUTS])
    then, full, today, mine = per_way(seconds, len(ways))
    rows = (
        ratios("over vLLM tuned for latency", then, mine, (1.66, 1.97, 2.19, 2.30)),
        ratios("over vLLM with all its memory", full, mine),
        ratios("over vLLM of today, tuned for latency", today, mine),
        times("vLLM tuned for latency", then, (12.8, 19.4, 26.8, 34.3)),
        times("ours", mine, (7.7, 9.9, 12.2, 14.9)),
    )
    says = (
        f"At 25 tokens ours takes {mine[0]:.2f} s (Parrot 7.70) with the client's round trip, which Parrot's time "
        f"leaves out; vLLM {then[0]:.1f} s (theirs 12.8): here room is kept for each answer and nothing is preempted.",
        "With all its memory vLLM writes the notes as fast; what is left is the client's round trips. The artifact "
        "holds it to 4,096 tokens for the sake of who waits for single tokens: see the chats beside summaries.",
    )
    return Result((Table("Map-reduce summary", tuple(map(str, OUTPUTS)), rows, "output tokens"),), says=says)


FIGURES = (
    Figure("parrot-chain", "Chain summary", "Parrot, figure 11", figure_11),
    Figure("parrot-background", "Chain summary beside others' calls", "Parrot, figure 12a", figure_12a),
    Figure("parrot-chains", "Chains at once", "Parrot, figure 12b", figure_12b),
    Figure("parrot-map-reduce", "Map-reduce summary", "Parrot, figure 13", figure_13),
)
