"""Chats and map-reduce summaries on the same engines: Parrot's last workload, for which it deduces objectives.

    chat          somebody waits for each token         latency: the instance with the fewest texts
    map           the reduce waits for the last note    throughput: one instance after the other is filled
    reduce        somebody waits for it                 latency

vLLM knows no objectives, so all of it is tuned for the one or the other: for latency little runs at once on an
instance, and for throughput all that fits. Ours deduces them from the graphs (`deduce_objectives`).

Source: Parrot, OSDI 2024, section 8.5; sizes from its artifact (figure 18 there), except the chats', which it draws
from ShareGPT: `CHAT_TOKENS` and `CHAT_OUTPUTS` are assumed. The paper has its results only in a plot.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass, replace

from simulator.arrivals import Arrival

from papers.figures import Cell, Figure, Result, Row, Setting, Table
from papers.parrot.engines import (
    A6000_7B,
    LATENCY_TUNED_TOKENS,
    MAX_SEQUENCES,
    Context,
    Way,
    ours,
    vllm_then,
)
from papers.parrot.graphs import App, background, map_reduce
from papers.parrot.runs import latency_s, run
from teola_plugin.passes import DEFAULT, OPTIONAL

GPUS = 4
CHAT_TOKENS = 300
CHAT_OUTPUTS = (100, 200, 300, 400)
"""Each as likely."""

CHATS = 40
"""One a second."""


CHAT_SEQUENCES = 16
"""At once on an instance that somebody waits for, as Parrot lowers the objective of its chats."""

CHUNKS = 76
CHUNK_TOKENS = 470
OUTPUT_TOKENS = 50
SUMMARIES_S = (0.0, 0.5, 1.0, 11.0, 11.5, 12.0, 22.0, 22.5, 23.0)
"""When the nine map-reduce summaries begin. All of this as in the artifact."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """What runs, in which way, with at most `largest` texts at once on an instance. `lasts_s`: until nobody comes."""

    way: Way
    largest: int
    seeds: tuple[int, ...]
    lasts_s: float = CHATS


@dataclass(frozen=True, slots=True)
class Times:
    """Of a chat by the token of its answer, and of a summary."""

    chat_ms: float
    summary_s: float


def mixed(part: Mixed) -> Times:
    """The mean of a few runs."""
    each = [_once(part, seed) for seed in part.seeds]
    return Times(statistics.fmean(at.chat_ms for at in each), statistics.fmean(at.summary_s for at in each))


def _once(part: Mixed, seed: int) -> Times:
    drawn = random.Random(seed)
    room = (part.way.kv_tokens or A6000_7B.kv_tokens) - OUTPUT_TOKENS - 100
    apps: dict[str, App] = {f"chat {n}": background(CHAT_TOKENS, n) for n in CHAT_OUTPUTS}
    apps["summary"] = map_reduce(CHUNKS, CHUNK_TOKENS, OUTPUT_TOKENS, room)
    chats = [(float(second), f"chat {drawn.choice(CHAT_OUTPUTS)}") for second in range(CHATS)]
    coming = sorted(chats + [(at_s, "summary") for at_s in SUMMARIES_S])
    arrivals = [Arrival(number, app, at_s) for number, (at_s, app) in enumerate(coming) if at_s < part.lasts_s]
    context = Context(CHUNK_TOKENS)
    done = run(apps, arrivals, part.way, A6000_7B, context, instances=GPUS, max_items=part.largest, seed=seed)
    took_s = [(each.arrival.app, latency_s(each, part.way)) for each in done.ended]
    return Times(
        statistics.fmean(1e3 * seconds / int(app.split()[1]) for app, seconds in took_s if app != "summary"),
        statistics.fmean(seconds for app, seconds in took_s if app == "summary"),
    )


def figure_18(setting: Setting) -> Result:
    """Objectives deduced, or one for all."""
    seeds = tuple(range(3 * setting.seed, 3 * setting.seed + (1 if setting.quick else 3)))
    lasts_s = 10.0 if setting.quick else float(CHATS)
    roomy, mine = vllm_then(A6000_7B.kv_tokens), ours(A6000_7B.kv_tokens)
    ways = {
        "vLLM tuned for latency": (vllm_then(LATENCY_TUNED_TOKENS), MAX_SEQUENCES),
        "vLLM tuned for throughput": (roomy, MAX_SEQUENCES),
        "vLLM, 16 at once": (roomy, CHAT_SEQUENCES),
        "ours, no objectives, 16 at once": (mine, CHAT_SEQUENCES),
        "ours, 16 at once": (replace(mine, passes=(*DEFAULT, *OPTIONAL)), CHAT_SEQUENCES),
    }
    found = setting.map(mixed, [Mixed(way, largest, seeds, lasts_s) for way, largest in ways.values()])
    rows = tuple(_row(name, at, found[-1]) for name, at in zip(ways, found, strict=True))
    columns = ("chat, a token", "ours over it", "map-reduce summary", "ours over it")
    says = (
        "With objectives, the notes of a summary fill one instance after the other, and a chat takes the one with the "
        "fewest texts: the table has what that gives the chats, and what it costs the summaries.",
    )
    return Result((Table("Chats and summaries on four A6000", columns, rows),), says=says)


def _row(name: str, at: Times, best: Times) -> Row:
    chat = (Cell(at.chat_ms, unit="ms"), Cell(at.chat_ms / best.chat_ms, unit="x"))
    return Row(name, (*chat, Cell(at.summary_s, unit="s"), Cell(at.summary_s / best.summary_s, unit="x")))


FIGURES = (Figure("parrot-mixed", "Chats beside map-reduce summaries", "Parrot, section 8.5", figure_18),)
