"""Runs one application in this process, original and optimized."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

from public import stand_ins
from public.bounds import bound_s
from public.case import Case
from public.server import Asked

HERE = Path(__file__).parent
UNUSED = (
    "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "TAVILY_API_KEY", "FIREWORKS_API_KEY", "BRAVE_API_KEY", "ELASTICSEARCH_URL",
    "ELASTICSEARCH_USER", "ELASTICSEARCH_PASSWORD", "ELASTICSEARCH_API_KEY", "PINECONE_API_KEY", "PINECONE_ENVIRONMENT",
)  # fmt: skip
"""Keys and addresses that applications want to be set."""
OWN = "the original's own"
"""Of what its two runs do not agree in, nothing is compared."""
BLOCK_CALLS = 2
"""Calls of a block for each of those side by side."""
WARM_BLOCKS = 2
"""Blocks of calls before the measured ones, where both pipelines run mixed."""
STEPS = 40
"""The most supersteps: a judge that is never content would go on for LangGraph's default of some thousands."""


@dataclass(frozen=True)
class Settings:
    apps: str
    inputs: int = 4
    repeats: int = 3
    chat_ms: float = 250
    embed_ms: float = 60
    search_ms: float = 200
    speculate: str = ""
    side_by_side: int = 0
    waiting: bool = False

    @property
    def delays_s(self) -> dict[str, float]:
        return {"chat": self.chat_ms / 1000, "embed": self.embed_ms / 1000, "search": self.search_ms / 1000}


@dataclass
class Measured:
    """One input of an application. `extra`, `missing`: requests of the optimized run against the original's."""

    question: str
    original_ms: float
    optimized_ms: float
    bound_ms: float
    requests: int
    extra: int
    missing: int
    raised: str
    differences: list[str]


@dataclass
class Load:
    """Calls side by side: what one takes in ms, of CPU time (`mixed`) or of wall-clock time (`apart`).

    `aside_ms`: CPU time beside the optimized calls, for each, more than beside the original's; None of wall-clock time.
    """

    original_ms: list[float] = field(default_factory=list)
    optimized_ms: list[float] = field(default_factory=list)
    raised: list[str] = field(default_factory=list)
    aside_ms: float | None = None


@dataclass
class Found:
    name: str
    is_same_object: bool = False
    inputs: list[Measured] = field(default_factory=list)
    load: Load = field(default_factory=Load)
    error: str = ""


@dataclass
class Run:
    """One call: what came of it, what it printed, and what the service was asked meanwhile."""

    answer: Any
    seconds: float
    asked: list[Asked]
    printed: list[str]
    tree: Any
    history: Any


class Bench:
    """An application beside its service."""

    def __init__(self, case: Case, url: str, settings: Settings) -> None:
        from teola_plugin import optimize
        from teola_plugin.calling import Caller

        self.case, self.settings = case, settings
        self._control = httpx.Client(base_url=url, timeout=60)
        self._caller = Caller()
        self.module = _imported(case, settings.apps)
        self.original = case.pipeline(self.module) if callable(case.pipeline) else getattr(self.module, case.pipeline)
        self.optimized = optimize(self.original, **({"speculate": settings.speculate} if settings.speculate else {}))

    def asked(self, delays_s: Mapping[str, float] | None = None) -> list[Asked]:
        body = {"delays_s": delays_s} if delays_s else {}
        return [Asked(**each) for each in self._control.post("/control", json=body).json()]

    def _given(self, text: str) -> Any:
        return self.case.given(text, self.module) if self.case.needs_module else self.case.given(text)

    def run(self, pipeline: Any, text: str, *, form: str = "", **options: Any) -> Run:
        from teola_plugin.comparison.langchain import Recorder
        from teola_plugin.comparison.trees import canonical_tree

        self.asked()
        config: dict[str, Any] = {
            key: dict(value) if isinstance(value, Mapping) else value for key, value in self.case.config.items()
        }
        config["recursion_limit"] = STEPS
        if self.case.threads:
            config.setdefault("configurable", {})["thread_id"] = str(uuid.uuid4())
        recorder = Recorder() if options.pop("is_recorded", False) else None
        given = self._given(text)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            answer = self._caller.call(
                pipeline, form or self.case.form, given,
                config=config | ({"callbacks": [recorder]} if recorder else {}), **options,
            )  # fmt: skip
        tree = canonical_tree(recorder.nodes) if recorder else None
        lines = sorted(printed.getvalue().splitlines())
        return Run(answer, answer.seconds, self.asked(), lines, tree, self._history(pipeline, config))

    def _history(self, pipeline: Any, config: Any) -> Any:
        from teola_plugin.comparison.values import plain

        if not self.case.threads:
            return None
        return [
            [plain(state.values), list(state.next), {k: state.metadata[k] for k in ("source", "step")}]
            for state in pipeline.get_state_history(config)
        ]

    def mixed(self) -> Load:
        """CPU time of calls side by side, half of them of the original, mixed in the same threads.

        Both halves meet the same neighbours and the same contention, which blocks of one pipeline each do not. Since
        the interpreter computes all the time here, calls per second follow from the CPU time of a call. CPU time that
        belongs to no call, such as that of the engines' threads, counts for the optimized pipeline, but for what calls
        of the original alone spend so.
        """
        calls = BLOCK_CALLS * self.settings.side_by_side
        both = [self.original, self.optimized]
        with contextlib.redirect_stdout(io.StringIO()), told_of_threads():
            alone, own_ms = self._measured(calls * self.settings.repeats, [self.original])
            self._measured(WARM_BLOCKS * calls, both)
            mixed, aside_ms = self._measured(2 * calls * self.settings.repeats, both)
        self.asked()
        aside_ms = max(0.0, 2 * aside_ms - own_ms)
        return Load(
            [spent + own_ms for pipeline, spent, _ in mixed if pipeline is self.original],
            [spent + aside_ms for pipeline, spent, _ in mixed if pipeline is self.optimized],
            [raised for _, _, raised in (*alone, *mixed) if raised], aside_ms - own_ms,
        )  # fmt: skip

    def _measured(self, count: int, pipelines: list[Any]) -> tuple[list[tuple[Any, float, str]], float]:
        """Pipeline, ms and error of each of `count` calls, and the ms for each call that belong to none."""
        side_by_side = self.settings.side_by_side

        def one(n: int) -> tuple[Any, list[float], str]:
            pipeline, spent = pipelines[(n // side_by_side + n) % len(pipelines)], list[float]()
            call = self._call(n // len(pipelines))
            with spending(spent):
                raised = _raised_by(pipeline, call)
            return pipeline, spent, raised

        began_s = time.process_time()
        with ThreadPoolExecutor(side_by_side) as pool:
            told = [(pipeline, sum(spent), raised) for pipeline, spent, raised in list(pool.map(one, range(count)))]
        total_ms = 1000 * (time.process_time() - began_s)
        return told, (total_ms - sum(spent for _, spent, _ in told)) / count

    def apart(self) -> Load:
        """Wall-clock time in blocks of calls, original and optimized in turns; of two blocks the second counts."""
        found = Load()
        for _ in range(self.settings.repeats):
            for pipeline, walls in ((self.original, found.original_ms), (self.optimized, found.optimized_ms)):
                self._block(pipeline)
                wall_ms, raised = self._block(pipeline)
                walls.append(wall_ms)
                found.raised += raised
        return found

    def _call(self, n: int) -> tuple[Any, dict[str, Any]]:
        config = {**self.case.config, "recursion_limit": STEPS}
        text = self.case.questions[n % len(self.case.questions)]
        configurable = {**config.get("configurable", {}), "thread_id": str(uuid.uuid4())}
        return self._given(text), ({**config, "configurable": configurable} if self.case.threads else config)

    def _block(self, pipeline: Any) -> tuple[float, list[str]]:
        """Wall-clock ms for each call of a block, and what calls raised."""
        count = BLOCK_CALLS * self.settings.side_by_side
        calls = [self._call(n) for n in range(count)]
        with contextlib.redirect_stdout(io.StringIO()):
            began = time.perf_counter()
            raised = self._side_by_side(pipeline, calls)
            wall = time.perf_counter() - began
        self.asked()
        return 1000 * wall / count, raised

    def _side_by_side(self, pipeline: Any, calls: list[tuple[Any, Any]]) -> list[str]:
        async def aone(call: tuple[Any, Any], slots: asyncio.Semaphore) -> str:
            async with slots:
                try:
                    await pipeline.ainvoke(call[0], config=call[1])
                except Exception as e:  # of the application
                    return repr(e)
            return ""

        async def all_of_them() -> list[str]:
            slots = asyncio.Semaphore(self.settings.side_by_side)
            return await asyncio.gather(*(aone(call, slots) for call in calls))

        if self.case.form == "ainvoke":
            told = asyncio.run(all_of_them())
        else:
            with ThreadPoolExecutor(self.settings.side_by_side) as pool:
                told = list(pool.map(partial(_raised_by, pipeline), calls))
        return [each for each in told if each]

    def measure(self, text: str) -> Measured:
        pairs = [self._pair(text, is_swapped=bool(n % 2)) for n in range(self.settings.repeats + 1)]
        timed = pairs[1:] or pairs
        bounds = [bound_s(self.case.name, first.asked, first.seconds) for first, _ in timed]
        is_steady = all(_keys(first.asked) == _keys(pairs[0][0].asked) for first, _ in pairs)
        extra, missing = zip(*[_against(first.asked, second.asked, is_steady) for first, second in pairs], strict=True)
        differences = [
            f"{OWN} {what} differs" if _said(what, first, again) else _said(what, first, second)
            for what in ("answer", "history", "printed")
            for (first, second), (again, _) in zip(pairs, [*pairs[1:], pairs[0]], strict=True)
        ]
        return Measured(
            text, 1000 * statistics.median(first.seconds for first, _ in timed),
            1000 * statistics.median(second.seconds for _, second in timed), 1000 * statistics.median(bounds),
            len(pairs[0][0].asked), max(extra), max(missing),
            type(error).__name__ if (error := pairs[0][0].answer.error) else "",
            [each for each in dict.fromkeys([*differences, *self._streams(text)]) if each],
        )  # fmt: skip

    def _pair(self, text: str, is_swapped: bool, **options: Any) -> tuple[Run, Run]:
        order = (self.optimized, self.original) if is_swapped else (self.original, self.optimized)
        runs = [self.run(pipeline, text, **options) for pipeline in order]
        return (runs[1], runs[0]) if is_swapped else (runs[0], runs[1])

    def _streams(self, text: str) -> Iterator[str]:
        """Differences of the callbacks' trees and of what is streamed, where the original is always the same."""
        options: dict[str, Any] = {"form": self.case.form.replace("invoke", "stream"), "is_recorded": True}
        if hasattr(self.original, "stream_mode"):
            options["stream_mode"] = "updates"
        first, second = self._pair(text, is_swapped=False, **options)
        others = [self.run(self.original, text, **options) for _ in range(3)]
        for what in ("stream", "tree", "requests", "printed"):
            is_steady = not any(_said(what, first, each) for each in others)
            if is_steady and (difference := _said(what, first, second)):
                yield f"streamed: {difference}"


_spent: ContextVar[list[float] | None] = ContextVar("spent", default=None)
_counted = threading.local()


@contextlib.contextmanager
def spending(spent: list[float]) -> Iterator[None]:
    """Add to `spent` the ms of CPU time of this thread inside the block, and of what the block has threads do."""
    token, began_s = _spent.set(spent), time.thread_time()
    try:
        yield
    finally:
        if getattr(_counted, "spent", None) is not spent:
            spent.append(1000 * (time.thread_time() - began_s))
        _spent.reset(token)


@contextlib.contextmanager
def told_of_threads() -> Iterator[None]:
    """Count the CPU time of threads for the call that starts them, and that of work in a pool for the call behind."""
    start_thread, submit_work = threading.Thread.start, ThreadPoolExecutor.submit

    def start(thread: threading.Thread) -> None:
        if (spent := _spent.get()) is not None:
            run = thread.run

            def counted() -> None:
                _counted.spent = spent
                try:
                    run()
                finally:
                    spent.append(1000 * time.thread_time())

            thread.run = counted  # type: ignore[method-assign]
        start_thread(thread)

    def submit(pool: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if (spent := _spent.get()) is None:
            return submit_work(pool, work, *args, **kwargs)

        def done() -> Any:
            with spending(spent):
                return work(*args, **kwargs)

        return submit_work(pool, done)

    with mock.patch.multiple(threading.Thread, start=start), mock.patch.multiple(ThreadPoolExecutor, submit=submit):
        yield


def _raised_by(pipeline: Any, call: tuple[Any, Any]) -> str:
    try:
        pipeline.invoke(call[0], config=call[1])
    except Exception as e:  # of the application
        return repr(e)
    return ""


def _told(what: str, run: Run) -> Any:
    from teola_plugin.comparison.values import plain

    match what:
        case "answer":
            error = run.answer.error
            said = {"raised": type(error).__name__, "text": str(error)} if error else plain(run.answer.value)
            return json.dumps(said, sort_keys=True, default=repr)
        case "stream":  # what runs in parallel ends in any order
            value = run.answer.value
            if isinstance(value, dict):
                value = {key: sorted(json.dumps(plain(each), default=repr) for each in value[key]) for key in value}
            return json.dumps([repr(run.answer.error), plain(value)], sort_keys=True, default=repr)
        case "tree":
            return json.dumps(sorted(json.dumps(plain(each), sort_keys=True, default=repr) for each in run.tree or ()))
        case "requests":
            return sorted(_keys(run.asked).items())
        case "printed":
            return run.printed
    return json.dumps(run.history, sort_keys=True, default=repr)


def _said(what: str, first: Run, second: Run) -> str:
    """How the two differ, in short, or nothing."""
    from teola_plugin.comparison.values import without_new_ids

    ours, theirs = (str(_told(what, run)) for run in (first, second))
    ours, theirs = without_new_ids(ours, theirs)
    if ours == theirs:
        return ""
    at = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
    start = max(0, at - 40)
    return f"{what}: {ours[start : at + 60]!r} is {theirs[start : at + 60]!r}"


def _keys(asked: list[Asked]) -> Counter[str]:
    return Counter(each.key for each in asked)


def _against(first: list[Asked], second: list[Asked], is_steady: bool) -> tuple[int, int]:
    """Extra and missing requests; only their number counts where the original's own differ, as by the time of day."""
    ours, theirs = (_keys(asked) if is_steady else Counter(each.kind for each in asked) for asked in (first, second))
    return (theirs - ours).total(), (ours - theirs).total()


def _imported(case: Case, apps: str) -> Any:
    sys.path.insert(0, str(Path(apps) / case.name))
    return importlib.import_module(case.module)


@contextlib.contextmanager
def served(name: str) -> Iterator[str]:
    """The service in a process of its own; its address."""
    server = subprocess.Popen(
        [sys.executable, "-m", "public.server", name], stdout=subprocess.PIPE, text=True, cwd=HERE.parent
    )
    try:
        assert server.stdout
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait()


def found(case: Case, settings: Settings) -> Found:
    with served(case.name) as url:
        os.environ.update(
            OPENAI_BASE_URL=url + "/v1", OPENAI_API_BASE=url + "/v1", OLLAMA_BASE_URL=url + "/v1", USER_AGENT="gate",
            LANGSMITH_TRACING="false", **dict.fromkeys(UNUSED, "none"),
        )  # fmt: skip
        stand_ins.install()
        result = Found(case.name)
        bench = Bench(case, url, settings)
        result.is_same_object = bench.optimized is bench.original
        bench.asked(settings.delays_s)
        if settings.side_by_side:
            is_apart = settings.waiting or case.form == "ainvoke"  # a coroutine's own CPU time cannot be told
            result.load = bench.apart() if is_apart else bench.mixed()
            return result
        for text in case.questions[: settings.inputs]:
            result.inputs.append(bench.measure(text))
    return result


def run(name: str, settings: Settings, told: Connection) -> None:
    """Send what was found of an application. What it prints and warns of while it is imported is dropped."""
    from public.cases import CASES

    warnings.simplefilter("ignore")
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with quiet[0], quiet[1], tempfile.TemporaryDirectory() as place, contextlib.chdir(place):  # some keep files
        try:
            result = found(CASES[name], settings)
        except Exception:  # of the application, or of ours: a row of the table says so
            result = Found(name, error=traceback.format_exc())
    told.send(result)
