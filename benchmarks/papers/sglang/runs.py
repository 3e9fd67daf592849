"""How long SGLang's programs take in plain LangChain and optimized, on an LLM that waits as a 7B model would.

    users: 1 -> query 0 -> query 3 ...      each asks the next query as soon as its last one is answered
           2 -> query 1 -> query 4 ...
           3 -> query 2 -> query 5 ...

The framework, the run-ahead, the schedulers and the engine are the real ones, on one event loop whose clock jumps
(runtime/hosts/virtual_time.py): what the machine itself needs takes no time, and two runs give the same.

Each way has an engine of its own, with an empty prefix cache, and the same queries. Cache and batch are those of the
testbed of SGLang's paper: an A10G has room for about 16,000 tokens of KV cache beside a 7B model in 16 bits (0.5 MB a
token), which a dozen and a half of such prompts fill.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

from papers.sglang.programs import Form, Program, reply
from teola_plugin import optimize, runtime
from teola_plugin.api import optimized
from teola_plugin.errors import TeolaError
from teola_plugin.graph import DECODES, Graph
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.passes import Record
from teola_plugin.profile import PAPER_LLM
from teola_plugin.runtime.engines.prefix_cache import BLOCK_TOKENS, PrefixCache
from teola_plugin.runtime.engines.simulated import ProfileLLM
from teola_plugin.runtime.hosts.virtual_time import VirtualLoop
from teola_plugin.runtime.scheduler.batching import Limits
from teola_plugin.runtime.scheduler.worker import Rules
from teola_plugin.runtime.session import background

KV_TOKENS = 16_384
MAX_ITEMS = 16
PREFILL_TOKENS = 4096
"""What one prefill takes at most: SGLang's `chunked_prefill_size` on such a GPU is 2048 to 4096."""

TOLERANCE_S = Limits().aging_s
"""By how much a prompt may be overtaken by others that begin as one before them: whatever waits longer goes first."""


@dataclass(frozen=True, slots=True)
class Way:
    """`form`: how the code is written. `is_ordered`: prompts that begin alike go next to each other."""

    form: Form
    is_optimized: bool = False
    is_ordered: bool = False


WAYS = {
    "in turn": Way("in turn"),
    "by hand": Way("by hand"),
    "optimized": Way("in turn", is_optimized=True),
    "ordered": Way("in turn", is_optimized=True, is_ordered=True),
}


@dataclass(frozen=True, slots=True)
class Run:
    """What one way came to. `computed_tokens`: of prompts, prefixes that ran ahead included."""

    answers: tuple[str, ...]
    latencies_s: tuple[float, ...]
    took_s: float
    computed_tokens: int
    cached_tokens: int

    @property
    def per_s(self) -> float:
        return len(self.answers) / self.took_s

    @property
    def mean_s(self) -> float:
        return statistics.fmean(self.latencies_s)


@dataclass(frozen=True, slots=True)
class Found:
    """What `optimize` read in the code: how many generations may run side by side, and which prompts begin alike."""

    branches: int
    prefixes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """So many users at once, so many queries of all, and answers of this share of their lengths."""

    users: int
    queries: int
    share: float = 1.0


class FrameworkLoop(VirtualLoop):
    """What a framework hands to threads is run on the spot: the clock would run away from them."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        return asyncio.wrap_future(at_once(partial(func, *args)), loop=self)


def at_once(work: Callable[[], Any]) -> Future[Any]:
    """What an executor's `submit` gives, of work that is done by then."""
    future: Future[Any] = Future()
    try:
        future.set_result(work())
    except Exception as e:  # around the framework's or our own call: it is raised where that is waited for
        future.set_exception(e)
    return future


@contextmanager
def simulated() -> Iterator[asyncio.Runner]:
    """A runner on a virtual loop, which is the host's loop too; whoever asks for the time is told the loop's."""
    with asyncio.Runner(loop_factory=FrameworkLoop) as runner:
        loop = runner.get_loop()
        runtime.host.close()
        runtime.host._begin(loop)
        try:
            with (
                patch("time.monotonic", loop.time),
                patch("time.perf_counter", loop.time),
                patch.object(background._askers, "submit", at_once),  # as what the framework hands to threads
            ):
                yield runner
        finally:
            runtime.host._begin()


def run(program: Program, way: Way, load: Load) -> Run:
    """All queries, on an engine of their own."""
    tolerance_s = TOLERANCE_S if way.is_ordered else 0.0
    with simulated() as runner:
        runtime.host.use("critical_path" if way.is_optimized else "to")
        runtime.host.rule(Rules(Limits(prefix_tolerance_s=tolerance_s)))
        try:
            return runner.run(_measured(program, way, load))
        finally:
            runner.run(runtime.host.aclose())
            runtime.host.use("critical_path")
            runtime.host.rule(Rules())


def found(program: Program) -> Found:
    """In the code where branches stand in turn."""
    try:
        made = optimized(_pipeline(program, WAYS["optimized"], _engine())).optimized
    except TeolaError:  # one call of a model: there is nothing to run ahead
        return Found(1, ())
    return Found(_width(made.graph), tuple(_shared(made.records)))


def _engine() -> ProfileLLM:
    return ProfileLLM(
        "llm", PAPER_LLM["7b"], max_items=MAX_ITEMS, max_prefill_tokens=PREFILL_TOKENS, reply=reply,
        cache=PrefixCache(KV_TOKENS // BLOCK_TOKENS),
    )  # fmt: skip


def _pipeline(program: Program, way: Way, engine: ProfileLLM, share: float = 1.0) -> Any:
    def say(max_tokens: int, shape: str = "") -> EngineChatModel:
        if not shape:
            return EngineChatModel(engine=engine, max_tokens=max(1, round(max_tokens * share)))
        layout, _, count = shape.partition(":")
        settings = {"shape": f"{layout}:{max(1, round(int(count) * share))}"}
        return EngineChatModel(engine=engine, max_tokens=max_tokens, settings=settings)

    pipeline = program.build(say, way.form)
    return optimize(pipeline) if way.is_optimized else pipeline


async def _measured(program: Program, way: Way, load: Load) -> Run:
    engine, loop = _engine(), asyncio.get_running_loop()
    pipeline = _pipeline(program, way, engine, load.share)
    ended: dict[int, tuple[str, float]] = {}
    numbers = iter(range(load.queries))

    async def user() -> None:
        for number in numbers:
            began_s = loop.time()
            _wake(pipeline)
            answer = await program.call(pipeline, program.given(number))
            ended[number] = (repr(answer), loop.time() - began_s)

    await asyncio.gather(*(user() for _ in range(load.users)))
    in_order = [ended[number] for number in range(load.queries)]
    return Run(
        tuple(answer for answer, _ in in_order), tuple(latency_s for _, latency_s in in_order), loop.time(),
        engine.stats.tokens, engine.stats.cached_tokens,
    )  # fmt: skip


def _wake(pipeline: Any) -> None:
    """Whether running ahead pays is judged by the machine's clock, which says nothing here."""
    with suppress(TeolaError):  # an original
        optimized(pipeline).wake()


def hit_rate(measured: Run, original: Run) -> float:
    """The share of the prompts' tokens that was not computed.

    Prompts are those that the original asks, so that what ran ahead and was found in the cache later counts once.
    """
    return 1 - measured.computed_tokens / (original.computed_tokens + original.cached_tokens)


def _width(graph: Graph) -> int:
    """The most generations that wait for equally many others."""
    levels: dict[str, int] = {}
    for p in graph:
        before = [levels[name] for name in (*(r.name for r in p.refs), *p.after) if name in levels]
        levels[p.name] = max(before, default=0) + (p.kind in DECODES)
    at = [levels[p.name] for p in graph if p.kind in DECODES]
    return max(map(at.count, at), default=1)


def _shared(records: Sequence[Record]) -> list[str]:
    return [f"{r.primitive}: {r.reason}" for r in records if r.pass_name == "share_prefixes"]
