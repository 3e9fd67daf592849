"""The testbed of Teola: one instance of each engine that is no LLM, two of each LLM, and how long they take.

| engine | profile | instances |
|---|---|---|
| llm | core LLM: 7B as published; 13B and 30B: its seconds by the number of parameters, assumed | 2 |
| small_llm, writer_llm | 7B; 2B: as above | 2 |
| embedder | bge-large: 0.05 s + 0.025 s for each text; or that of the prototype's logs | 1 |
| reranker, store | the prototype's logs | 1 |
| search, tools | 0.5 s, assumed; services elsewhere that answer all they are asked side by side | 64 |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from simulator import BatchServer, LlmServer

from papers.apps import APPS, passages
from papers.teola.modes import Way
from teola_plugin.passes import Context
from teola_plugin.passes.estimates import TESTBED
from teola_plugin.profile import PAPER, PAPER_LLM, LlmProfile, Profile

SIZES = {"7b": 7, "13b": 13, "30b": 30}
"""Core LLMs: billions of parameters."""

LARGEST = (32, 64)
"""Largest batches of LLMs and of other engines, unless a baseline does better with smaller ones."""

PREFILL_TOKENS = 1024
"""What one prefill takes at most: the paper's figure 7."""

HOP_S = 0.0005
"""Between a scheduler and an engine, each way: an actor call of Ray takes about a millisecond."""

SERVICES = 64
INSTANCES = {
    "llm": 2, "small_llm": 2, "writer_llm": 2, "embedder": 1, "reranker": 1, "store": 1,
    "search": SERVICES, "tools": SERVICES,
}  # fmt: skip

BATCHED: Mapping[str, Mapping[str, Profile]] = {
    "embedder": {"embedding": PAPER["embedding"]},
    "reranker": {"reranking": PAPER["reranking"]},
    "store": {"searching": PAPER["searching"], "ingestion": PAPER["ingestion"]},
    "search": {"websearch": TESTBED["websearch"]},
    "tools": {"tool": TESTBED["tool"]},
}
LOGS = {"embedder": {"embedding": PAPER["embedding_logs"]}}
"""The embedder of the prototype's logs: 28 ms + 1 ms for each text."""


def llm_of(size: str) -> LlmProfile:
    """The published 7B model, or one of another size."""
    return scaled(PAPER_LLM["7b"], SIZES.get(size, 2) / SIZES["7b"])


def scaled(profile: LlmProfile, factor: float) -> LlmProfile:
    """All its seconds times a factor."""
    return replace(
        profile,
        prefill=_scaled(profile.prefill, factor),
        step=_scaled(profile.step, factor),
        pair_s=factor * profile.pair_s,
    )


def _scaled(profile: Profile, factor: float) -> Profile:
    points = tuple((items, factor * seconds) for items, seconds in profile.points)
    return replace(profile, points=points, token_s=factor * profile.token_s)


def servers_of(
    apps: tuple[str, ...], size: str, way: Way, largest: tuple[int, int] | None = None, instances: int = 1, *,
    has_logs: bool = False,
) -> Mapping[str, BatchServer | LlmServer]:  # fmt: skip
    """What these apps need. `size`: of the core LLM; `instances`: times those of the testbed."""
    llm_items, items = largest or LARGEST
    names = dict.fromkeys(name for app in apps for name in APPS[app].engines)
    found: dict[str, BatchServer | LlmServer] = {}
    for name in names:
        count = instances * INSTANCES[name]
        if name in LLM_SIZES:
            profile = llm_of(LLM_SIZES[name] or size)
            found[name] = LlmServer(
                profile, count, llm_items, max_prefill_tokens=PREFILL_TOKENS, prefix_cache=way.prefix_cache
            )
        else:
            profiles = (LOGS if has_logs else {}).get(name) or BATCHED[name]
            most = 1 if INSTANCES[name] == SERVICES else items
            found[name] = BatchServer(profiles, count, most, _texts() if name in ("store", "search") else ())
    return found


LLM_SIZES = {"llm": "", "small_llm": "7b", "writer_llm": "2b"}
"""The LLMs; the core LLM has the size that is asked for."""


def context_of(app: str, size: str, way: Way, *, has_logs: bool = False) -> Context:
    """What the passes know of the engines. The answer is the app's own, so a list may end when it is complete."""
    servers = servers_of((app,), size, way, has_logs=has_logs)
    profiles = {
        name: server.profile if isinstance(server, LlmServer) else next(iter(server.profiles.values()))
        for name, server in servers.items()
    }
    capabilities = {name: server.capabilities(bundles=False) for name, server in servers.items()}
    return Context(profiles, capabilities, allow_early_stop=True, streams_lists=True)


@cache
def _texts() -> tuple[str, ...]:
    return passages()
