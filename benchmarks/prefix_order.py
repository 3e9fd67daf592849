"""More long beginnings of prompts than the prefix cache holds: queues with and without the cache-aware order.

    python benchmarks/prefix_order.py                       three rates, two policies (two minutes)
    python benchmarks/prefix_order.py --rate 0.9 --prompts 32 --cache 32768

Everything is in virtual time: the schedulers and lanes of real runs on an LLM that waits by the paper's 7B profile and
whose prefix cache drops what was used least recently. A query asks once, with one of `--prompts` few-shot prompts of
`--tokens` tokens before a question of its own; every fourth checks its answer with a second prompt. The cache holds
`--cache` tokens, which is what a 7B model leaves of 24 GB. Rates are shares of the capacity without the order, which is
what comes out when all queries come at once (`inf`). Each line has the same queries at the same moments.

`hits`: the share of all prompt tokens that were in the cache. `tolerance`: how far queries may change places
(`Limits.prefix_tolerance_s`), 0 for not at all. Published for a cache-aware order: 37 -> 56 % (workloads.md).
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer
from simulator.arrivals import Arrival, drive, poisson

from teola_plugin.engines import EngineSpec
from teola_plugin.graph import parse
from teola_plugin.passes import Context
from teola_plugin.passes.estimates import planned
from teola_plugin.profile import PAPER_LLM
from teola_plugin.runtime.engines.prefix_cache import BLOCK_TOKENS, PrefixCache
from teola_plugin.runtime.engines.simulated import ProfileLLM
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.hosts.virtual_time import VirtualLoop
from teola_plugin.runtime.scheduler.batching import Limits
from teola_plugin.runtime.scheduler.policies import PolicyName
from teola_plugin.runtime.scheduler.worker import Rules
from teola_plugin.runtime.session.graph_runner import run_query
from teola_plugin.runtime.session.plan_executor import Prepared
from teola_plugin.screen import own_screen, progress_bar

ROW = "{:>6} {:14}{:>10}{:>9}{:>9}{:>9}{:>9}{:>9}"
HEADS = ("rate", "policy", "tolerance", "hits", "mean", "P50", "P99", "per s")
QUESTION_TOKENS, ANSWER_TOKENS = 40, 32
GRAPHS = {
    "ask": """
inputs(shots, question)
kv = prefilling(shots, question) @ llm
answer = decoding(kv, max_tokens=32) @ llm
outputs(answer)
""",
    "ask and check": """
inputs(shots, question, check)
kv = prefilling(shots, question) @ llm
draft = decoding(kv, max_tokens=32) @ llm
kv_2 = prefilling(check, question, ' ', draft) @ llm
answer = decoding(kv_2, max_tokens=32) @ llm
outputs(answer)
""",
}
MIX = {"ask": 3, "ask and check": 1}


@dataclass(frozen=True)
class Setting:
    """`prompts` beginnings of `tokens` tokens each, a cache of `cache_tokens`, `slots` texts at once."""

    prompts: int
    tokens: int
    cache_tokens: int
    slots: int
    queries: int
    seeds: Sequence[int]


@dataclass(frozen=True)
class Found:
    latencies_s: Sequence[float]
    hits: float
    per_s: float


def main(
    policy: Annotated[list[str] | None, typer.Option(help="critical_path and topology.")] = None,
    rate: Annotated[list[float] | None, typer.Option(help="Shares of the capacity; inf: all at once.")] = None,
    tolerance: Annotated[list[float] | None, typer.Option(help="Seconds.")] = None,
    prompts: Annotated[int, typer.Option(min=1)] = 24,
    tokens: Annotated[int, typer.Option(min=BLOCK_TOKENS)] = 1536,
    cache: Annotated[int, typer.Option(min=BLOCK_TOKENS, help="In tokens.")] = 16_384,
    slots: Annotated[int, typer.Option(min=1)] = 16,
    queries: Annotated[int, typer.Option(min=2, help="For each seed.")] = 200,
    seeds: Annotated[int, typer.Option(min=1)] = 3,
) -> None:
    """Print one line for each rate, policy and tolerance."""
    setting = Setting(prompts, tokens, cache, slots, queries, range(1, 1 + seeds))
    with own_screen() as screen, progress_bar(screen.console) as progress:
        task = progress.add_task("finding the capacity", total=None)
        burst = poisson(math.inf, MIX, count=queries, seed=0)
        capacity = measured(setting, "critical_path", 0.0, burst, 0).per_s
        screen.say(
            f"virtual time, seconds; {queries} queries for each of {seeds} seeds; {prompts} prompts of {tokens} "
            f"tokens, a cache of {cache}, {slots} slots; capacity {capacity:.2f} per s"
        )
        screen.say(ROW.format(*HEADS))
        for share in sorted(rate or (0.9, 1.2, math.inf)):
            for name in policy or ("critical_path", "topology"):
                for tolerance_s in tolerance or (0.0, 2.0, 10.0):
                    progress.update(task, description=f"{share:g} {name} {tolerance_s:g}")
                    found = [
                        measured(setting, name, tolerance_s, arrivals, seed)  # type: ignore[arg-type]
                        for seed in setting.seeds
                        for arrivals in [poisson(share * capacity, MIX, count=queries, seed=seed)]
                    ]
                    screen.say(_row(share, name, tolerance_s, found))


def _row(share: float, policy: str, tolerance_s: float, found: Sequence[Found]) -> str:
    latencies_s = [latency_s for each in found for latency_s in each.latencies_s]
    p50_s, p99_s = np.percentile(latencies_s, (50, 99))
    return ROW.format(
        f"{share:g}", policy, f"{tolerance_s:g}", f"{statistics.fmean(each.hits for each in found):.0%}",
        f"{statistics.fmean(latencies_s):.2f}", f"{p50_s:.2f}", f"{p99_s:.2f}",
        f"{statistics.fmean(each.per_s for each in found):.2f}",
    )  # fmt: skip


def measured(setting: Setting, policy: PolicyName, tolerance_s: float, arrivals: Sequence[Arrival], seed: int) -> Found:
    """All of these queries, on an engine of their own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_measured(setting, policy, tolerance_s, arrivals, seed))


async def _measured(
    setting: Setting, policy: PolicyName, tolerance_s: float, arrivals: Sequence[Arrival], seed: int
) -> Found:
    loop = asyncio.get_running_loop()
    host = LocalHost(policy, Rules(Limits(prefix_tolerance_s=tolerance_s)), loop=loop)
    cache = PrefixCache(max_blocks=setting.cache_tokens // BLOCK_TOKENS)
    llm = ProfileLLM("llm", PAPER_LLM["7b"], max_items=setting.slots, cache=cache)
    apps = {name: _prepared(text, llm) for name, text in GRAPHS.items()}
    drawn = random.Random(seed)
    shots = [_words(drawn, setting.tokens) for _ in range(setting.prompts)]
    inputs = {a.number: _inputs(random.Random(f"{seed} {a.number}"), shots, a.app) for a in arrivals}
    ended = await drive(arrivals, lambda a: run_query(host, apps[a.app], inputs[a.number]))
    took_s = loop.time()
    await host.aclose()
    if errors := [each.error for each in ended if each.error]:
        raise errors[0]
    hits = llm.stats.cached_tokens / (llm.stats.cached_tokens + llm.stats.tokens)
    return Found([each.latency_s for each in ended], hits, len(ended) / took_s)


def _prepared(text: str, llm: ProfileLLM) -> Prepared:
    graph = parse(text)
    context = Context({"llm": llm.profile}, {"llm": llm.capabilities}, expected_tokens=ANSWER_TOKENS)
    return Prepared(planned(graph, context), {}, {"llm": EngineSpec("engine", llm, "llm")})


def _inputs(drawn: random.Random, shots: Sequence[str], app: str) -> Mapping[str, Any]:
    given = {"shots": drawn.choice(shots), "question": _words(drawn, QUESTION_TOKENS)}
    return given | ({"check": drawn.choice(shots)} if app == "ask and check" else {})


def _words(drawn: random.Random, count: int) -> str:
    return " ".join(drawn.choices(VOCABULARY, k=count)) + " "


VOCABULARY = [f"{start}{end}" for start in ("ba", "ko", "ri", "su", "tel", "mar") for end in ("no", "vin", "dor", "ke")]


if __name__ == "__main__":
    typer.run(main)
