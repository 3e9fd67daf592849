"""Real engines of this machine for the graphs of load_apps.py: vLLM with the tiny Llama, MiniLM, a tiny cross-encoder.

The store waits by the paper's profile: what a search costs on a CPU is no matter of scheduling.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil
from load_apps import GRAPHS, Several, texts

from teola_plugin.engines import Engine
from teola_plugin.profile import PAPER
from teola_plugin.runtime.engines.simulated import ProfileStore

LIST = "queries: [] = decoding(queries_kv, items='lines', max_tokens=24, shape='lines:3') @ llm"
"""A model of random weights writes no lines: its text is cut into three."""

CUT = "text = decoding(queries_kv, max_tokens=24) @ llm\n        queries: [] = call(text, fn='thirds') @ python"


def _with_fixed_lengths(graph: str) -> str:
    """The graph with greedy answers that do not end by themselves."""
    lines = graph.replace(LIST, CUT).splitlines()
    fixed = [line.replace(") @ llm", ", temperature=0.0, ignore_eos=True) @ llm") for line in lines]
    return "\n".join(f if " decoding(" in line else line for f, line in zip(fixed, lines, strict=True))


REAL_GRAPHS = {name: _with_fixed_lengths(text) for name, text in GRAPHS.items()}


@dataclass(frozen=True, slots=True)
class RealEngines:
    """Engines by the names that the graphs have for them. `profiles`, and how many cores each kept busy meanwhile."""

    made: Mapping[str, Engine]
    profiles: Mapping[str, Any]
    demands: Mapping[str, float]

    @property
    def shared(self) -> dict[str, Several]:
        return {name: Several([engine]) for name, engine in self.made.items()}


def real_engines(budget_s: float) -> RealEngines:
    """Made and measured now, for so many seconds each. The host closes them with itself."""
    from sentence_transformers import CrossEncoder, SentenceTransformer

    from teola_plugin.demo.parts import llm_parts
    from teola_plugin.demo.tiny_model import minilm_path, tiny_cross_encoder
    from teola_plugin.profiling import measure
    from teola_plugin.runtime.engines.embedding import EmbeddingEngine
    from teola_plugin.runtime.engines.reranking import RerankingEngine

    made: dict[str, Engine] = {
        "llm": llm_parts("real").llm,
        "embedder": EmbeddingEngine(SentenceTransformer(str(minilm_path()), device="cpu")),
        "reranker": RerankingEngine(CrossEncoder(str(tiny_cross_encoder()), device="cpu")),
    }
    profiles, demands = {}, {}
    for name, engine in made.items():
        began_s, used_s = time.perf_counter(), _processors_s()
        profiles[name] = engine.profile = measure(engine, budget_s=budget_s)  # type: ignore[attr-defined]
        demands[name] = (_processors_s() - used_s) / (time.perf_counter() - began_s)
    made["store"] = ProfileStore(texts(), PAPER["searching"], PAPER["ingestion"])
    return RealEngines(made, profiles, demands)


def _processors_s() -> float:
    """What this process and those that it started have used of processors so far."""
    me = psutil.Process()
    used = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(each.user + each.system for each in used)
