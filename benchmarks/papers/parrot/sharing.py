"""Parrot's applications that share prefixes: its figures 14, 16 and 17, ours beside the published ratios.

    system prompt    instruction (5,107 tokens) | question          the same for all users: a literal of the graph
    agents           all code (4,800 tokens)    | "review file 3"   read by all reviewers, and made at run time

What of their ratios is not scheduling: Parrot reads the KV cache of a shared prefix once for a whole batch, by an
attention kernel of its own. The artifact has its own system with that kernel and without; "without" is what can be
compared here, where a prefix is computed and held once but read once for each sequence. Source: Parrot, OSDI 2024,
sections 8.3 and 8.4; sizes and raw results from its artifact.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.arrivals import poisson

from papers.figures import Cell, Figure, Plot, Result, Row, Series, Setting, Table
from papers.parrot.engines import A100_7B, A100_13B, A6000_7B, Context, Way, ours, vllm_then, vllm_today
from papers.parrot.graphs import Turn, assistant, team
from papers.parrot.rows import per_way, rate_at, ratios, times
from papers.parrot.runs import at_once, latency_s, mean_latency_s, run

# --- figure 14 -------------------------------------------------------------------------------------------------------

SYSTEM_TOKENS = 5107
QUESTION_TOKENS = 1060
"""What a prompt has on average behind the shared part: 6,167 in all."""

BATCHES = (8, 16, 32, 64)
COPILOT_OUTPUTS = (
    619, 393, 183, 191, 393, 209, 212, 192, 800, 360, 192, 232, 232, 191, 351, 351, 619, 191, 393, 248, 248, 360, 360,
    393, 209, 232, 232, 800, 360, 269, 360, 195, 800, 393, 269, 256, 232, 303, 269, 209, 251, 209, 800, 183, 800, 192,
    393, 192, 212, 313, 800, 196, 195, 212, 195, 351, 393, 351, 232, 251, 232, 196, 351, 360,
)  # fmt: skip
"""Tokens of the 64 answers."""


@dataclass(frozen=True, slots=True)
class Batch:
    """64 requests, so many of them at once."""

    way: Way
    largest: int


def copilot_s(part: Batch) -> float:
    """The mean time from the place in the batch to the end of the answer."""
    apps = {f"{n} tokens": assistant("Copilot", SYSTEM_TOKENS, QUESTION_TOKENS, n) for n in set(COPILOT_OUTPUTS)}
    arrivals = at_once([f"{n} tokens" for n in COPILOT_OUTPUTS])
    context = Context(SYSTEM_TOKENS + QUESTION_TOKENS + round(statistics.fmean(COPILOT_OUTPUTS) / 2), SYSTEM_TOKENS)
    done = run(apps, arrivals, part.way, A100_7B, context, max_items=part.largest, trace=True)
    return statistics.fmean(span.end_s - span.begin_s for span in done.spans)


def figure_14(setting: Setting) -> Result:
    """A system prompt of 5,107 tokens."""
    unshared = replace(vllm_then(A100_7B.kv_tokens), is_remote=False)
    shared = replace(vllm_today(None), is_remote=False)
    fitting = [size for size in BATCHES if size * (SYSTEM_TOKENS + QUESTION_TOKENS) <= A100_7B.kv_tokens]
    parts = [Batch(unshared, size) for size in fitting]
    parts += [Batch(way, size) for way in (shared, ours(None)) for size in BATCHES]
    seconds = setting.map(copilot_s, parts)
    then, (today, mine) = seconds[: len(fitting)], per_way(seconds[len(fitting) :], 2)
    too_large = [Cell("out of memory")] * (len(BATCHES) - len(fitting))
    rows = (
        _filled(
            ratios("over nothing shared", then, mine[: len(then)], (1.73, 1.93), "published: without their kernel"),
            too_large,
        ),
        ratios("over the prefix shared", today, mine, (1.02, 1.23, 1.38, 1.63), "published: their kernel alone"),
        _filled(times("nothing shared", then, (13.6, 23.3)), too_large),
        times("the prefix shared", today, (7.88, 12.1, 18.4, 32.8)),
        times("ours", mine, (7.72, 9.82, 13.3, 20.1)),
    )
    says = (
        "Nothing here is scheduling: one call a query, all there from the start. Over vLLM that shares the prompt too, "
        "Parrot's 1.02 to 1.63 are its kernel's, and ours is 1.",
        "Unshared prompts of 6,167 tokens take 7 to 9 % longer in the artifact than here: a profile that is linear in "
        "tokens leaves out what attention takes more for longer ones.",
    )
    return Result((Table("A system prompt of 5,107 tokens", tuple(map(str, BATCHES)), rows, "batch"),), says=says)


def _filled(row: Row, cells: Sequence[Cell]) -> Row:
    return Row(row.label, (*row.cells, *cells))


# --- figure 16 -------------------------------------------------------------------------------------------------------

GPTS = (
    ("productivity", 7437, 7, 704), ("images", 1116, 8, 89), ("programming", 1694, 4, 631), ("data", 2031, 4, 416),
)  # fmt: skip
"""Tokens of system prompt, question and answer; the four come equally often."""

GPUS = 4
ARTIFACT_TOKENS = 30_000
"""What the artifact lets vLLM run at once on each; Parrot has no limit but its memory, 48,000."""

RATES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
REQUESTS = 500
LIMIT_MS = 100.0
"""A token, at most on average: where the published curves are read."""

PUBLISHED_MS = {
    "vLLM": ((0.25, 45.0), (0.5, 57.0), (1.0, 219.0), (2.0, 775.0)),
    "Parrot without its kernel": ((0.5, 42.0), (1.0, 59.0), (2.0, 91.0), (3.0, 133.0), (4.0, 194.0)),
    "Parrot": ((1.0, 32.0), (2.0, 35.0), (4.0, 44.0), (6.0, 77.0), (8.0, 126.0)),
}


@dataclass(frozen=True, slots=True)
class Mix:
    """The four apps at so many requests a second in all."""

    way: Way
    per_s: float
    count: int
    seed: int


def gpts_ms(part: Mix) -> float:
    """Latency by the token of the answer, on average."""
    apps = {name: assistant(name, system, question, output) for name, system, question, output in GPTS}
    outputs = {name: output for name, _, _, output in GPTS}
    context = Context(round(statistics.fmean(system + output / 2 for _, system, _, output in GPTS)))
    arrivals = poisson(part.per_s, dict.fromkeys(apps, 1.0), count=part.count, seed=part.seed)
    done = run(apps, arrivals, part.way, A6000_7B, context, instances=GPUS, max_items=128, seed=part.seed)
    return statistics.fmean(1e3 * latency_s(each, part.way) / outputs[each.arrival.app] for each in done.ended)


def figure_16(setting: Setting) -> Result:
    """Four GPTs."""
    rates = RATES[::3] if setting.quick else RATES
    ways = (vllm_then(ARTIFACT_TOKENS), vllm_then(A6000_7B.kv_tokens), vllm_today(None), ours(None))
    parts = [Mix(way, rate, REQUESTS, setting.seed) for way in ways for rate in rates]
    curves = [tuple(zip(rates, found, strict=True)) for found in per_way(setting.map(gpts_ms, parts), len(ways))]
    then, full, today, mine = (rate_at(curve, LIMIT_MS) for curve in curves)
    published = {name: rate_at(curve, LIMIT_MS) for name, curve in PUBLISHED_MS.items()}
    sharing, with_kernel = (published[name] / published["vLLM"] for name in ("Parrot without its kernel", "Parrot"))
    columns = ("requests a second", "ours over it")
    rows = (
        Row("vLLM as it was, 30,000 tokens", (Cell(then, published["vLLM"], "/s"), Cell(mine / then, sharing, "x"))),
        Row("vLLM as it was, all memory", (Cell(full, unit="/s"), Cell(mine / full, unit="x"))),
        Row("vLLM of today", (Cell(today, unit="/s"), Cell(mine / today, unit="x"))),
        Row("ours", (Cell(mine, published["Parrot without its kernel"], "/s"), Cell(1.0, unit="x"))),
    )
    labels = ("vLLM as it was, 30,000 tokens", "vLLM as it was, all memory", "vLLM of today", "ours")
    lines = [Series(label, curve) for label, curve in zip(labels, curves, strict=True)]
    lines += [Series(f"{name} (published)", points, is_dashed=True) for name, points in PUBLISHED_MS.items()]
    says = (
        f"Published curves read where they cross {LIMIT_MS:.0f} ms a token: {with_kernel:.1f}x with Parrot's kernel, "
        f"{sharing:.1f}x by sharing alone.",
    )
    plot = Plot("Latency of a token of the answer", "requests a second", "ms", tuple(lines), top=250.0)
    return Result((Table(f"Four GPTs at {LIMIT_MS:.0f} ms a token", columns, rows),), (plot,), says)


# --- figure 17 -------------------------------------------------------------------------------------------------------

FILES = (4, 8, 12, 16)
ROUNDS = 4
"""Of review and revision: the artifact's log has one, and runs it three times more."""

DESIGN_TOKENS = 890
CODING = Turn("write", 3605, 104, (627, 1019, 284, 554, 517, 243, 346, 551))
REVIEWING = Turn("review", 4797, 72, (403, 434, 424, 364, 342, 312, 537, 516))
REVISING = Turn("revise", 5372, 126, (673, 838, 335, 532, 558, 252, 227, 590))
"""Tokens of the artifact's log, of eight files: as counted there times the 1.24, 1.31 and 1.32 that the model's own
tokenizer makes more (by its sums of each round). A file after the eighth is as the first again."""

LATENCY_TUNED_AGENTS_TOKENS = 7096
"""VLLM_CAPACITY of the artifact's run that is tuned for latency."""


@dataclass(frozen=True, slots=True)
class Project:
    """A program of so many files."""

    way: Way
    files: int


@dataclass(frozen=True, slots=True)
class Written:
    """Seconds of a project, and where the tokens of its prompts came from."""

    seconds: float
    prefilled_tokens: int
    cached_tokens: int


def agents(part: Project) -> Written:
    """One project, alone."""
    turns = (CODING, *itertools.chain.from_iterable([(REVIEWING, REVISING)] * ROUNDS))
    apps = {"team": team(part.files, DESIGN_TOKENS, turns)}
    shared = statistics.fmean(turn.shared_tokens for turn in turns)
    own = statistics.fmean(turn.own_tokens + statistics.fmean(turn.output_tokens) / 2 for turn in turns)
    context = Context(round(shared + own), round(shared))
    done = run(apps, at_once(["team"]), part.way, A100_13B, context)
    use = done.engines["llm"]
    return Written(mean_latency_s(done, part.way), use.prefilled_tokens, use.cached_tokens)


def figure_17(setting: Setting) -> Result:
    """Agents that write a program."""
    sizes = FILES[::3] if setting.quick else FILES
    ways = (
        vllm_then(LATENCY_TUNED_AGENTS_TOKENS), vllm_then(A100_13B.kv_tokens), vllm_today(None), ours(None),
    )  # fmt: skip
    found = setting.map(agents, [Project(way, files) for way in ways for files in sizes])
    latency, throughput, today, mine = per_way([each.seconds for each in found], len(ways))
    written = per_way(found, len(ways))

    def at(published: Sequence[float]) -> list[float]:
        return [published[FILES.index(files)] for files in sizes]

    paged = (185.3, 201.4, 232.8, 248.7)

    def kernel(ratio: float) -> str:
        return f"published with their kernel: {ratio}x at {FILES[-1]} files"

    rows = (
        ratios("over vLLM tuned for latency", latency, mine, at((2.93, 4.75, 6.40, 7.65)), kernel(8.9)),
        ratios("over vLLM tuned for throughput", throughput, mine, at((1.26, 1.53, 1.81, 2.09)), kernel(2.43)),
        ratios("over vLLM of today", today, mine),
        times("vLLM tuned for latency", latency, at((543.0, 956.7, 1488.9, 1902.6))),
        times("vLLM tuned for throughput", throughput, at((234.0, 307.9, 422.2, 519.5))),
        times("ours", mine, at(paged)),
        _tokens("tokens prefilled: tuned for throughput", [each.prefilled_tokens for each in written[1]]),
        _tokens("tokens prefilled: ours", [each.prefilled_tokens for each in written[-1]]),
        _tokens("tokens of prompts that were cached: ours", [each.cached_tokens for each in written[-1]]),
    )
    says = ("Published here is Parrot without its kernel, whose prefixes are shared as ours are.",)
    return Result((Table("Agents that write a program", tuple(map(str, sizes)), rows, "files"),), says=says)


def _tokens(label: str, counts: Sequence[int]) -> Row:
    return Row(label, tuple(Cell(count) for count in counts))


FIGURES = (
    Figure("parrot-system-prompt", "A shared system prompt", "Parrot, figure 14", figure_14),
    Figure("parrot-gpts", "Four GPTs", "Parrot, figure 16", figure_16),
    Figure("parrot-agents", "Agents that write a program", "Parrot, figure 17", figure_17),
)
