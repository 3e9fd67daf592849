"""App C on real engines: vLLM, an embedder, a cross-encoder and Chroma, in each way, in turns.

`real` takes models for a small machine, benchmarks/gpu.py large ones. What a small machine can show: that all ways come
to the same answers, and what overlap gains where every engine shares a few cores with all others. All ways have vLLM's
prefix cache, the baselines too; no two timed queries are alike, so it holds instructions and nothing else that helps.
Bundles of `po` share the LLM, as vLLM batches continuously.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, TypeVar

from simulator.arrivals import drive, poisson

from papers.apps import advanced_rag
from papers.figures import Cell, Result, Row, Setting, Table
from papers.teola.modes import BEST, OURS, PAPERS, Way
from teola_plugin import runtime
from teola_plugin.engines import Engine

T = TypeVar("T")

PACKAGES = ("vllm", "sentence_transformers", "chromadb")
WAYS = (*PAPERS, *(way for way in OURS if way.prefix_cache == "full"))


@dataclass(frozen=True, slots=True)
class Scale:
    """So many rounds of a query alone and of `bursts` with so many queries at once; the sizes of a document.

    `shares` of what the best way does at once are the rates at which `count` queries each arrive at random. Tokens are
    of four characters. After `limit_s` no further round, burst or rate is begun, but for the first of each.
    """

    rounds: int = 6
    bursts: int = 2
    burst: int = 6
    chunks: int = 48
    chunk_tokens: int = 64
    overlap_tokens: int = 8
    shares: tuple[float, ...] = ()
    count: int = 40
    limit_s: float = float("inf")


QUICK = Scale(rounds=1, bursts=1, burst=2, chunks=12)


@dataclass(frozen=True, slots=True)
class Models:
    """The engines of the app, and the settings under which its LLM writes queries and answers."""

    engines: Mapping[str, Engine]
    writing: Mapping[str, Any]
    answering: Mapping[str, Any]


def real(setting: Setting) -> Result:
    """Latency of one query alone, and queries per second of a few at once."""
    if missing := [package for package in PACKAGES if find_spec(package) is None]:
        return Result(says=(f"Not made: it needs {', '.join(missing)}, which is not installed.",))
    return compared(_small_models(), QUICK if setting.quick else Scale(), "this machine")


def compared(models: Models, scale: Scale, where: str, *, told: Callable[[str], None] = lambda line: None) -> Result:
    """The same on models of any size. It ends their engines. `told`: what is measured, as it comes."""
    ends_s = time.perf_counter() + scale.limit_s
    try:
        apps = {way: _app(way, models, scale) for way in WAYS}
        answers = {}
        for way, app in apps.items():
            answers[way], took_s = _ask(way, app, [_query("check", scale)])
            told(f"check  {way}: {took_s:.3f} s, {zlib.crc32(repr(answers[way]).encode()):08x}")
        alone: dict[Way, list[float]] = {way: [] for way in apps}
        at_once: dict[Way, list[float]] = {way: [] for way in apps}
        for turn in _until(ends_s, range(scale.rounds)):
            for way in _rotated(list(apps), turn):
                alone[way].append(_ask(way, apps[way], [_query(f"{turn} {way}", scale)])[1])
                told(f"alone  {way}: {alone[way][-1]:.3f} s")
        for turn in _until(ends_s, range(scale.bursts)):
            for way in _rotated(list(apps), turn):
                queries = [_query(f"burst {turn} {way} {n}", scale) for n in range(scale.burst)]
                at_once[way].append(scale.burst / _ask(way, apps[way], queries)[1])
                told(f"burst  {way}: {at_once[way][-1]:.3f}/s")
        most = max(map(statistics.fmean, at_once.values()))
        arriving = {}
        for share in _until(ends_s, scale.shares):
            arriving[share] = _arriving(apps, share, most, scale)
            told(f"rate {share * most:.3g}/s  " + ", ".join(f"{way} {s:.3f} s" for way, s in arriving[share].items()))
    finally:
        runtime.host.close()
    equal = {way: answer == answers[PAPERS[0]] for way, answer in answers.items()}
    shown = _shown(alone, at_once, equal, where)
    return replace(shown, tables=(*shown.tables, *([_arriving_table(arriving, most)] if arriving else [])))


def _until(ends_s: float, items: Sequence[T]) -> Iterator[T]:
    """The first item, and each that is begun before that time."""
    for at, item in enumerate(items):
        if at == 0 or time.perf_counter() < ends_s:
            yield item


def _arriving(apps: Mapping[Way, Any], share: float, most: float, scale: Scale) -> dict[Way, float]:
    """The mean latency of each way at that share of the rate `most`, with the same arrivals."""
    arrivals = poisson(share * most, {"C": 1}, count=scale.count, seed=0)
    found = {}
    for way, app in apps.items():
        runtime.host.use(way.policy)
        queries = {a.number: _query(f"{share} {way} {a.number}", scale) for a in arrivals}
        ended = asyncio.run(drive(arrivals, lambda a, app=app, queries=queries: app.arun(**queries[a.number])))  # type: ignore[misc]
        if failed := [each.error for each in ended if each.error]:
            raise failed[0]
        found[way] = statistics.fmean(each.latency_s for each in ended)
    return found


def _arriving_table(arriving: Mapping[float, Mapping[Way, float]], most: float) -> Table:
    columns = tuple(said for share in arriving for said in (f"at {share * most:.3g}/s", "over ours"))
    ways = next(iter(arriving.values()))
    rows = tuple(
        Row(str(way), tuple(
            cell for found in arriving.values()
            for cell in (Cell(found[way], None, "s"), Cell(found[way] / found[BEST], None, "x"))
        ))
        for way in ways
    )  # fmt: skip
    return Table("The same where queries arrive at random, mean latency", columns, rows)


def _shown(
    alone: Mapping[Way, Sequence[float]], at_once: Mapping[Way, Sequence[float]], equal: Mapping[Way, bool], where: str
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
    return Result((Table(f"App C on the engines of {where}", columns, rows),), says=(f"Alone, the spread: {spread}.",))


def _small_models() -> Models:
    from sentence_transformers import CrossEncoder, SentenceTransformer

    from teola_plugin.demo.parts import llm_parts
    from teola_plugin.demo.tiny_model import minilm_path, tiny_cross_encoder
    from teola_plugin.runtime.engines.chroma_documents import ChromaDocumentsEngine
    from teola_plugin.runtime.engines.embedding import EmbeddingEngine
    from teola_plugin.runtime.engines.reranking import RerankingEngine

    parts = llm_parts("real")
    engines: dict[str, Engine] = {
        "llm": parts.llm,
        "embedder": EmbeddingEngine(SentenceTransformer(str(minilm_path()))),
        "reranker": RerankingEngine(CrossEncoder(str(tiny_cross_encoder()))),
        "store": ChromaDocumentsEngine(),
    }
    return Models(engines, parts.queries, parts.answer)


def _app(way: Way, models: Models, scale: Scale) -> Any:
    from teola_plugin.templates import App

    template = advanced_rag(
        way.shape == "parallel", chunk=(scale.chunk_tokens, scale.overlap_tokens), writing=_settings(models.writing),
        answering=_settings(models.answering),
    )  # fmt: skip
    return App("advanced RAG", template, models.engines, passes=way.passes)


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


def _query(name: str, scale: Scale) -> dict[str, str]:
    """Texts of true words; `name` stands at their beginning and in each chunk, so that nothing is alike."""
    from teola_plugin.demo.corpus import QUESTIONS, passages
    from teola_plugin.templates.functions import CHARACTERS

    size = scale.chunks * (scale.chunk_tokens - scale.overlap_tokens) * CHARACTERS
    words = itertools.cycle(" ".join(passage.text for passage in passages(200)).split())
    document = [f"({name} {each})" if each % 20 == 0 else next(words) for each in range(size // 2)]
    return {"question": f"{QUESTIONS[0]} ({name})", "document": " ".join(document)[:size]}


def _rotated(ways: list[Way], turn: int) -> list[Way]:
    at = turn % len(ways)
    return [*ways[at:], *ways[:at]]
