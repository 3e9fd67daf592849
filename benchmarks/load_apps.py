"""Applications of the load benchmark as graphs, on shared engines that wait by the paper's profiles.

The sizes of a query (how many chunks, how long they are) are drawn from its number, so they are the same whatever the
policy, the rate and the order of arrivals.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import textwrap
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from load_runs import Measured, Meter, Way, measured
from simulator.arrivals import Arrival, Ended, drive

from teola_plugin import runtime
from teola_plugin.engines import Batch, Emit, Engine, EngineSpec
from teola_plugin.errors import EngineError
from teola_plugin.graph import parse
from teola_plugin.passes import DEFAULT, Context, Pass, optimize_graph
from teola_plugin.passes.estimates import planned
from teola_plugin.profile import PAPER, PAPER_LLM
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM, ProfileReranker, ProfileStore
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.hosts.virtual_time import VirtualLoop
from teola_plugin.runtime.session.graph_runner import run_query
from teola_plugin.runtime.session.plan_executor import Prepared
from teola_plugin.trace import Function

T = TypeVar("T")

GRAPHS = {
    "naive RAG": """
        inputs(question)
        q = embedding(question) @ embedder
        hit = searching(q, top_k=3) @ store, reads(kb)
        context = call(hit, fn='joined') @ python
        kv = prefilling('Answer from the context. Question: ', question, ' Context: ', context) @ llm
        answer = decoding(kv, max_tokens=32) @ llm
        outputs(answer)
    """,
    "advanced RAG": """
        inputs(question, chunks=[])
        vecs: [] = embedding(*chunks) @ embedder
        load = ingestion(*vecs, *chunks) @ store, writes(kb)
        queries_kv = prefilling('Three searches, one per line, for: ', question) @ llm
        queries: [] = decoding(queries_kv, items='lines', max_tokens=24, shape='lines:3') @ llm
        q: [] = embedding(*queries) @ embedder
        hit: [] = searching(*q, top_k=8) @ store, reads(kb), after(load)
        passages: [] = call(hit, fn='merged') @ python
        scores: [] = reranking(question, *passages) @ reranker
        top = call(passages, scores, fn='best') @ python
        one = call(top, fn='first') @ python
        two = call(top, fn='second') @ python
        kv = prefilling('Answer in one sentence. Question: ', question, ' Context: ', one) @ llm
        draft = decoding(kv, max_tokens=24) @ llm
        kv_2 = prefilling('Improve the answer. Question: ', question, ' Context: ', two, ' Answer: ', draft) @ llm
        answer = decoding(kv_2, max_tokens=32) @ llm
        outputs(answer, load)
    """,
    "contextual retrieval": """
        inputs(question, document, chunks=[])
        kvs: [] = prefilling('Say where this part stands. Document: ', document, ' Part: ', *chunks) @ llm
        situated: [] = decoding(*kvs, max_tokens=12) @ llm
        vecs: [] = embedding(*situated) @ embedder
        load = ingestion(*vecs, *situated) @ store, writes(kb)
        q = embedding(question) @ embedder
        hit = searching(q, top_k=16) @ store, reads(kb), after(load)
        passages: [] = call(hit, fn='merged') @ python
        scores: [] = reranking(question, *passages) @ reranker
        top = call(passages, scores, fn='best') @ python
        one = call(top, fn='first') @ python
        kv = prefilling('Answer from the context. Question: ', question, ' Context: ', one) @ llm
        answer = decoding(kv, max_tokens=32) @ llm
        outputs(answer, load)
    """,
    "tree summary": """
        inputs(question, chunks=[])
        kvs: [] = prefilling('Sum up what matters for ', question, ': ', *chunks) @ llm
        notes: [] = decoding(*kvs, max_tokens=24) @ llm
        joined = call(notes, fn='listed') @ python
        kv = prefilling('Answer from the notes. Question: ', question, ' Notes: ', joined) @ llm
        answer = decoding(kv, max_tokens=48) @ llm
        outputs(answer)
    """,
    "chat": """
        inputs(question)
        kv = prefilling('You are a friendly assistant. ', question) @ llm
        answer = decoding(kv, max_tokens=24) @ llm
        outputs(answer)
    """,
}
MIX = {"naive RAG": 4, "advanced RAG": 1, "contextual retrieval": 1, "tree summary": 1, "chat": 6}
CHUNKS = {"advanced RAG": (8, 32), "contextual retrieval": (3, 8), "tree summary": (3, 8)}
"""How many chunks a query of an app comes with."""

CHUNK_WORDS = 80
PREFILL_TOKENS = 1024
"""What one prefill takes at most, as in the paper's figure 7."""

BATCH_ITEMS = 32
"""The largest batch of an encoder: of 16, 32 and 64, with this policy `to` has its lowest mean at 0.5, 0.7 and 0.9."""


@dataclass(eq=False)
class Several:
    """An engine of several instances."""

    instances: Sequence[Engine]

    def __post_init__(self) -> None:
        self.name = self.instances[0].name
        self.capabilities = self.instances[0].capabilities
        self.profile = self.instances[0].profile  # type: ignore[attr-defined]

    async def run(self, batch: Batch, emit: Emit) -> None:
        raise EngineError(f"{self.name!r} runs nothing itself")

    def abort(self, ids: Sequence[int]) -> None:
        for each in self.instances:
            each.abort(ids)

    async def close(self) -> None:
        for each in self.instances:
            await each.close()


def mix_of(apps: Sequence[str]) -> Mapping[str, float]:
    """The apps of which one of these is a part of the name."""
    return {name: n for name, n in MIX.items() if any(part in name for part in apps)}


class Simulated:
    """Implements `load_runs.World`, in virtual time; each measurement has engines of its own."""

    has_original = False

    def __init__(self, apps: Sequence[str], instances: int) -> None:
        self.mix = mix_of(apps)
        self._instances = instances

    def measure(self, way: Way, arrivals: Sequence[Arrival], run: int) -> Measured:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(self._measured(way, arrivals))

    async def _measured(self, way: Way, arrivals: Sequence[Arrival]) -> Measured:
        loop = asyncio.get_running_loop()
        host = LocalHost(way.policy, loop=loop)
        engines = make_engines(self._instances)
        meters = [Meter(each) for several in engines.values() for each in several.instances]
        apps = {name: prepare(name, engines, DEFAULT if way.has_passes else ()) for name in self.mix}
        ended = await drive(arrivals, lambda a: run_query(host, apps[a.app], inputs_of(a.app, a.number)))
        took_s = loop.time()
        await host.aclose()
        sizes = {meter.name: [] for meter in meters}
        for meter in meters:
            sizes[meter.name].append(meter.mean())
        return Measured(ended, took_s, {name: statistics.fmean(means) for name, means in sizes.items()})


class InRealTime:
    """Implements `load_runs.World`, on the host of this process; all runs share the engines."""

    has_original = False

    def __init__(self, apps: Sequence[str], engines: Mapping[str, Several], graphs: Mapping[str, str] = GRAPHS) -> None:
        self.mix = mix_of(apps)
        self._meters = [Meter(each) for several in engines.values() for each in several.instances]
        self._apps = {
            has_passes: {name: prepare(name, engines, passes, graphs) for name in self.mix}
            for has_passes, passes in ((True, DEFAULT), (False, ()))
        }
        warm_up(self._apps[True])

    def measure(self, way: Way, arrivals: Sequence[Arrival], run: int) -> Measured:
        runtime.host.use(way.policy)
        return on_host(measured(driven(self._apps[way.has_passes], arrivals, run), self._meters))


def warm_up(apps: Mapping[str, Prepared]) -> None:
    """A query of each, for what is loaded and compiled at first use."""
    on_host(driven(apps, [Arrival(-1 - n, name, 0.0) for n, name in enumerate(apps)]))


def driven(apps: Mapping[str, Prepared], arrivals: Sequence[Arrival], run: int = 0) -> Coroutine[Any, Any, list[Ended]]:
    """What becomes of these queries on the host of this process."""
    return drive(arrivals, lambda a: run_query(runtime.host, apps[a.app], inputs_of(a.app, a.number, run)))


def on_host(work: Coroutine[Any, Any, T]) -> T:
    """What it comes to on the loop of the host."""
    return asyncio.run_coroutine_threadsafe(work, runtime.host.loop).result()


def make_engines(instances: int = 1) -> dict[str, Several]:
    """What the apps share, by the names that the graphs have for it."""
    makes: dict[str, Callable[[], Engine]] = {
        "embedder": lambda: ProfileEmbedding(16, PAPER["embedding"], max_items=BATCH_ITEMS),
        "reranker": lambda: ProfileReranker(PAPER["reranking"], max_items=BATCH_ITEMS),
        "store": lambda: ProfileStore(texts(), PAPER["searching"], PAPER["ingestion"]),
        "llm": lambda: ProfileLLM("llm", PAPER_LLM["7b"], max_prefill_tokens=PREFILL_TOKENS),
    }
    return {name: Several([make() for _ in range(instances)]) for name, make in makes.items()}


def prepare(
    app: str, engines: Mapping[str, Several], passes: Sequence[Pass] = DEFAULT, graphs: Mapping[str, str] = GRAPHS
) -> Prepared:
    """The app's graph rewritten, planned and put on the engines."""
    context = Context(
        {name: each.profile for name, each in engines.items()},
        {name: each.capabilities for name, each in engines.items()},
        expected_items=16,
        expected_tokens=CHUNK_WORDS,
    )
    graph = optimize_graph(parse(textwrap.dedent(graphs[app])), passes, context, strict=True).graph
    specs = {name: EngineSpec("engine", engine, name) for name, engine in engines.items()}
    return Prepared(planned(graph, context), FUNCTIONS, specs)


def inputs_of(app: str, number: int, run: int = 0) -> dict[str, Any]:
    """What query `number` asks: in another run the same with other words, so that nothing is cached from before."""
    drawn, words = random.Random(number), _vocabulary(run)
    given: dict[str, Any] = {"question": f"{_words(drawn, 12, words)} ({app} {number})"}
    if app in CHUNKS:
        given["chunks"] = [_words(drawn, CHUNK_WORDS, words) for _ in range(drawn.randint(*CHUNKS[app]))]
    if app == "contextual retrieval":
        given["document"] = " ".join(given["chunks"][:4])
    return given


@cache
def texts() -> tuple[str, ...]:
    """What the store holds."""
    return tuple(_words(random.Random(-n - 1), CHUNK_WORDS) for n in range(64))


VOCABULARY = [f"{start}{end}" for start in ("ba", "ko", "ri", "su", "tel", "mar") for end in ("no", "vin", "dor", "ke")]


@cache
def _vocabulary(run: int) -> Sequence[str]:
    return random.Random(run).sample(VOCABULARY, len(VOCABULARY)) if run else VOCABULARY


def _words(drawn: random.Random, count: int, words: Sequence[str] = VOCABULARY) -> str:
    return " ".join(drawn.choices(words, k=count))


def _documents(hit: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[str]:
    hits: Iterable[Mapping[str, Any]] = [hit] if isinstance(hit, Mapping) else hit
    return list(dict.fromkeys(text for each in hits for text in each["documents"]))


def _best(passages: Sequence[str], scores: Sequence[float]) -> list[str]:
    return [passages[i] for i in sorted(range(len(scores)), key=lambda i: -scores[i])[:3]]


FUNCTIONS = {
    "joined": Function(lambda hit: "\n".join(_documents(hit))),
    "merged": Function(_documents),
    "best": Function(_best),
    "first": Function(lambda top: top[0]),
    "second": Function(lambda top: top[1]),
    "listed": Function("\n".join),
    "thirds": Function(lambda text: [text[len(text) * n // 3 : len(text) * (n + 1) // 3] for n in range(3)]),
}
