"""App C on real engines: vLLM, an embedder, a cross-encoder and Chroma, in each way, in turns.

`real` takes models for a small machine, benchmarks/gpu.py large ones. What a small machine can show: that all ways come
to the same answers, and what overlap gains where every engine shares a few cores with all others. All ways have vLLM's
prefix cache, the baselines too, and the same queries, each way as a tenant of its own; no two of these are alike, so
the cache holds instructions and nothing else that helps. Bundles of `po` share the LLM, as vLLM batches continuously.

All answers are compared with those of the first way. In half precision some differ with what else is in a batch, so
answers are counted, too, that are shorter than they were to be.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
import zlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, TypeVar

from simulator.arrivals import drive, poisson

from papers.apps import advanced_rag
from papers.figures import Cell, Result, Row, Setting, Table
from papers.teola.modes import BEST, OURS, PAPERS, Way
from teola_plugin import runtime
from teola_plugin.engines import Batch, Completion, Done, Emit, Engine, Outcome
from teola_plugin.tenancy import terms

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
    short = short_texts(models.engines["llm"])
    try:
        tried = [Tried(way, _app(way, models, scale), {}) for way in WAYS]
        for each in tried:
            took_s = each.ask({"check": _query("check", scale)})
            told(f"check  {each.way}: {took_s:.3f} s, {zlib.crc32(each.answers['check'].encode()):08x}")
        alone: dict[Way, list[float]] = {way: [] for way in WAYS}
        at_once: dict[Way, list[float]] = {way: [] for way in WAYS}
        for turn in _until(ends_s, range(scale.rounds)):
            for each in _rotated(tried, turn):
                alone[each.way].append(each.ask({f"{turn}": _query(f"{turn}", scale)}))
                told(f"alone  {each.way}: {alone[each.way][-1]:.3f} s")
        for turn in _until(ends_s, range(scale.bursts)):
            for each in _rotated(tried, turn):
                names = [f"burst {turn} {n}" for n in range(scale.burst)]
                at_once[each.way].append(scale.burst / each.ask({name: _query(name, scale) for name in names}))
                told(f"burst  {each.way}: {at_once[each.way][-1]:.3f}/s")
        most = max(map(statistics.fmean, at_once.values()))
        arriving = {}
        for share in _until(ends_s, scale.shares):
            arriving[share] = _arriving(tried, share, most, scale)
            told(f"rate {share * most:.3g}/s  " + ", ".join(f"{way} {s:.3f} s" for way, s in arriving[share].items()))
    finally:
        runtime.host.close()
    alike = {each.way: equal(each, tried[0], short[each.way.name]) for each in tried}
    shown = _shown(alone, at_once, alike, where)
    return replace(shown, tables=(*shown.tables, *([_arriving_table(arriving, most)] if arriving else [])))


@dataclass(frozen=True, slots=True)
class Tried:
    """A way, and what it answered to each query, by the query's name."""

    way: Way
    app: Any
    answers: dict[str, str]

    def ask(self, queries: Mapping[str, Mapping[str, str]]) -> float:
        """Ask queries that come at once. Returns the seconds until the last answer."""

        async def ask() -> None:
            await asyncio.gather(*(self.answer(name, query) for name, query in queries.items()))

        began_s = time.perf_counter()
        self.run(ask())
        return time.perf_counter() - began_s

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` as this way's tenant and by its policy."""
        runtime.host.use(self.way.policy)
        with terms(tenant=self.way.name):
            return asyncio.run(work)

    async def answer(self, name: str, query: Mapping[str, str]) -> None:
        self.answers[name] = await self.app.arun(**query)


def short_texts(llm: Engine) -> Counter[str]:
    """Count, by tenant, the texts of an LLM that from now on end before the limit, though only the limit ends them."""
    short: Counter[str] = Counter()
    run = llm.run

    async def counted(batch: Batch, emit: Emit) -> None:
        is_long = batch.settings.get("ignore_eos") and "structured_outputs" not in batch.settings

        def counting(at: int, outcome: Outcome) -> None:
            text = outcome.value if isinstance(outcome, Done) else None
            if is_long and isinstance(text, Completion) and text.output_tokens < batch.settings["max_tokens"]:
                short[batch.items[at].tenant] += 1
            emit(at, outcome)

        await run(batch, counting)

    llm.run = counted  # type: ignore[method-assign]
    return short


def equal(one: Tried, other: Tried, short: int) -> str:
    same = sum(answer == other.answers[name] for name, answer in one.answers.items())
    return f"{same} of {len(other.answers)}" + (f", {short} SHORT" if short else "")


def _until(ends_s: float, items: Sequence[T]) -> Iterator[T]:
    """The first item, and each that is begun before that time."""
    for at, item in enumerate(items):
        if at == 0 or time.perf_counter() < ends_s:
            yield item


def _arriving(tried: Sequence[Tried], share: float, most: float, scale: Scale) -> dict[Way, float]:
    """The mean latency of each way at that share of the rate `most`, with the same arrivals."""
    arrivals = poisson(share * most, {"C": 1}, count=scale.count, seed=0)
    queries = {a.number: (f"{share} {a.number}", _query(f"{share} {a.number}", scale)) for a in arrivals}
    found = {}
    for each in tried:
        ended = each.run(drive(arrivals, lambda a, each=each: each.answer(*queries[a.number])))  # type: ignore[misc]
        if failed := [one.error for one in ended if one.error]:
            raise failed[0]
        found[each.way] = statistics.fmean(one.latency_s for one in ended)
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
    alone: Mapping[Way, Sequence[float]], at_once: Mapping[Way, Sequence[float]], equal: Mapping[Way, str], where: str
) -> Result:
    alone_s = {way: statistics.median(seconds) for way, seconds in alone.items()}
    per_s = {way: statistics.fmean(found) for way, found in at_once.items()}
    rows = tuple(
        Row(str(way), (
            Cell(alone_s[way], None, "s"), Cell(alone_s[way] / alone_s[BEST], None, "x"),
            Cell(per_s[way], None, "/s"), Cell(per_s[BEST] / per_s[way], None, "x"),
            Cell(equal[way]),
        ))
        for way in alone
    )  # fmt: skip
    columns = ("alone", "over ours", "at once", "ours over it", "equal answers")
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


def _query(name: str, scale: Scale) -> dict[str, str]:
    """Texts of true words; `name` stands at their beginning and in each chunk, so that nothing is alike."""
    from teola_plugin.demo.corpus import QUESTIONS, passages
    from teola_plugin.templates.functions import CHARACTERS

    size = scale.chunks * (scale.chunk_tokens - scale.overlap_tokens) * CHARACTERS
    words = itertools.cycle(" ".join(passage.text for passage in passages(200)).split())
    document = [f"({name} {each})" if each % 20 == 0 else next(words) for each in range(size // 2)]
    return {"question": f"{QUESTIONS[0]} ({name})", "document": " ".join(document)[:size]}


def _rotated(tried: list[Tried], turn: int) -> list[Tried]:
    at = turn % len(tried)
    return [*tried[at:], *tried[:at]]
