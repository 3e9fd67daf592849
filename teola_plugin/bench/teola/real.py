"""App C on real engines, here: vLLM, MiniLM, a cross-encoder and Chroma, in each way, in turns.

What a small machine can show: that all ways come to the same answers, and what overlap gains where every engine shares
a few cores with all others. All ways have vLLM's prefix cache, the baselines too; no two timed queries are alike, so
it holds instructions and nothing else that helps. Bundles of `po` share the LLM, as vLLM batches continuously.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from teola_plugin import runtime
from teola_plugin.bench.apps import advanced_rag
from teola_plugin.bench.figures import Cell, Result, Row, Setting, Table
from teola_plugin.bench.teola.modes import BEST, OURS, PAPERS, Way

PACKAGES = ("vllm", "sentence_transformers", "chromadb")
WAYS = (*PAPERS, *(way for way in OURS if way.prefix_cache == "full"))
ROUNDS, BURST = 6, 6
CHUNKS, QUICK_CHUNKS = 48, 12
CHUNK_TOKENS, OVERLAP_TOKENS = 64, 8
"""Of four characters, so that a query takes seconds and no minutes on two cores."""


def real(setting: Setting) -> Result:
    """Latency of one query alone, and queries per second of a few at once."""
    if missing := [package for package in PACKAGES if find_spec(package) is None]:
        return Result(says=(f"Not made: it needs {', '.join(missing)}, which is not installed.",))
    rounds, burst, chunks = (1, 2, QUICK_CHUNKS) if setting.quick else (ROUNDS, BURST, CHUNKS)
    with _apps() as apps:
        answers = {way: _ask(way, app, [_query("check", chunks)])[0] for way, app in apps.items()}
        alone: dict[Way, list[float]] = {way: [] for way in apps}
        at_once: dict[Way, list[float]] = {way: [] for way in apps}
        for turn in range(rounds):
            for way in _rotated(list(apps), turn):
                alone[way].append(_ask(way, apps[way], [_query(f"{turn} {way}", chunks)])[1])
        for turn in range(1 if setting.quick else 2):
            for way in _rotated(list(apps), turn):
                queries = [_query(f"burst {turn} {way} {n}", chunks) for n in range(burst)]
                at_once[way].append(burst / _ask(way, apps[way], queries)[1])
    equal = {way: answer == answers[PAPERS[0]] for way, answer in answers.items()}
    return _shown(alone, at_once, equal)


def _shown(
    alone: Mapping[Way, Sequence[float]], at_once: Mapping[Way, Sequence[float]], equal: Mapping[Way, bool]
) -> Result:
    alone_s = {way: statistics.median(seconds) for way, seconds in alone.items()}
    per_s = {way: statistics.fmean(found) for way, found in at_once.items()}
    rows = tuple(
        Row(str(way), (
            Cell(alone_s[way], None, "s"), Cell(alone_s[way] / alone_s[BEST], None, "x"),
            Cell(per_s[way], None, "/s"), Cell(per_s[BEST] / per_s[way], None, "x"),
            Cell("yes" if equal[way] else "NO"),
        ))
        for way in alone
    )  # fmt: skip
    columns = ("alone", "over ours", "at once", "ours over it", "same answer")
    spread = ", ".join(f"{way} {min(seconds):.2f} to {max(seconds):.2f} s" for way, seconds in alone.items())
    return Result(
        (Table("App C on the engines of this machine", columns, rows),), says=(f"Alone, the spread: {spread}.",)
    )


@contextmanager
def _apps() -> Iterator[dict[Way, Any]]:
    from sentence_transformers import CrossEncoder, SentenceTransformer

    from teola_plugin.demo.parts import llm_parts
    from teola_plugin.demo.tiny_model import minilm_path, tiny_cross_encoder
    from teola_plugin.runtime.engines.chroma_documents import ChromaDocumentsEngine
    from teola_plugin.runtime.engines.embedding import EmbeddingEngine
    from teola_plugin.runtime.engines.reranking import RerankingEngine
    from teola_plugin.templates import App

    parts = llm_parts("real")
    engines = {
        "llm": parts.llm,
        "embedder": EmbeddingEngine(SentenceTransformer(str(minilm_path()))),
        "reranker": RerankingEngine(CrossEncoder(str(tiny_cross_encoder()))),
        "store": ChromaDocumentsEngine(),
    }

    def app(way: Way) -> App:
        template = advanced_rag(
            way.shape == "parallel", chunk=(CHUNK_TOKENS, OVERLAP_TOKENS), writing=_settings(parts.queries),
            answering=_settings(parts.answer),
        )  # fmt: skip
        return App("advanced RAG", template, engines, passes=way.passes)

    try:
        yield {way: app(way) for way in WAYS}
    finally:
        runtime.host.close()


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """How long a text is says the template."""
    return {name: value for name, value in given.items() if name != "max_tokens"}


def _ask(way: Way, app: Any, queries: Sequence[Mapping[str, Any]]) -> tuple[list[str], float]:
    """The answers to queries that come at once, and the seconds until the last."""
    runtime.host.use(way.policy)

    async def ask() -> list[str]:
        return list(await asyncio.gather(*(app.arun(**query) for query in queries)))

    began_s = time.perf_counter()
    answers = asyncio.run(ask())
    return answers, time.perf_counter() - began_s


def _query(name: str, chunks: int) -> dict[str, str]:
    """Texts of true words; `name` stands at their beginning and in each chunk, so that nothing is alike."""
    from teola_plugin.demo.corpus import QUESTIONS, passages
    from teola_plugin.templates.functions import CHARACTERS

    size = (CHUNK_TOKENS - OVERLAP_TOKENS) * CHARACTERS
    words = itertools.cycle(" ".join(passage.text for passage in passages(200)).split())
    document = [f"({name} {each})" if each % 20 == 0 else next(words) for each in range(chunks * size // 2)]
    return {"question": f"{QUESTIONS[0]} ({name})", "document": " ".join(document)[: chunks * size]}


def _rotated(ways: list[Way], turn: int) -> list[Way]:
    at = turn % len(ways)
    return [*ways[at:], *ways[:at]]
