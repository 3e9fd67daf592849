"""Options that all tests share."""

from __future__ import annotations

import asyncio
import functools
import gc
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakSet

import pytest

from teola_plugin import providers, runtime, worth
from teola_plugin.adapters import configured
from teola_plugin.adapters.interception import interception
from teola_plugin.adapters.langgraph import places
from teola_plugin.demo.tiny_model import tiny_model
from teola_plugin.processor import processor
from teola_plugin.runtime.engines.vllm import VllmEngine

RLock = threading.RLock
STDERR = pytest.StashKey[int]()
HUNG_S = 240
GARBAGE_OBJECTS = 200_000
COLD_PROVIDER = providers.Provider
REST_VISITS = places.REST_VISITS
PATIENCE_CALLS, CHECKED_GAIN = worth.PATIENCE_CALLS, worth.CHECKED_GAIN
CHECKED_CALLS, READING = worth.CHECKED_CALLS, worth.READING
SHOWN_CALLS = 8
ROOT = Path(__file__).parents[1] / "t"  # tests/ and teola_plugin/, not .venv/
os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")  # chromadb refuses a second client with other settings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected halves of text fixtures")
    parser.addoption("--sample", type=int, default=0, help="run so many cases of a test with more: others each commit")
    parser.addoption("--garbage-to-host", action="store_true", help="let only the host's thread collect garbage")
    parser.addoption("--garbage-under-locks", action="store_true", help="collect garbage in whoever takes a lock")


def pytest_configure(config: pytest.Config) -> None:
    """Collect garbage between tests only, run ahead of each call, let no process be too busy, leave no event loop.

    LangChain by itself stops for good where a stream that failed is collected inside `ThreadPoolExecutor.submit`:
    closing it joins threads, and they want the lock that all executors share.
    """
    config.stash[STDERR] = os.dup(2)  # what pytest captures later goes elsewhere
    interception.keep(config)  # tests of parts do not optimize anything
    asyncio.set_event_loop(None)  # as after `asyncio.run`: otherwise LlamaIndex makes one here that nobody closes
    gc.set_threshold(0)
    # Engines that answer at once leave no time to run ahead in, and nothing is gained from them.
    processor.limits = (math.inf, math.inf)
    places.REST_VISITS = 0
    worth.PATIENCE_CALLS, worth.CHECKED_GAIN = sys.maxsize, 0.0
    worth.CHECKED_CALLS, worth.READING = sys.maxsize, 0.0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if most := config.getoption("--sample"):
        kept = sampled(items, most, int(os.environ.get("TEOLA_TEST_TURN", "0")))
        config.hook.pytest_deselected(items=list({*items} - {*kept}))
        items[:] = kept


def sampled(items: Sequence[pytest.Item], most: int, turn: int) -> list[pytest.Item]:
    """Of each test with more than `most` cases, at most so many at equal distances; `turn` chooses which."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in sorted(items, key=lambda item: item.nodeid):  # whatever order the tests run in
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    steps = {name: math.ceil(len(each) / most) for name, each in cases.items()}
    kept = {id(item) for name, each in cases.items() for item in each[turn % steps[name] :: steps[name]]}
    return [item for item in items if id(item) in kept]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of real engines run in one process of pytest-xdist: each would import them, and start a vLLM and a server.

    Its groups (`xdist_group`) would do, but pytest 9 leaves out what it adds to the ids of tests.
    """
    from xdist.scheduler import LoadScopeScheduling

    class RealInOneProcess(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "real" if names_real_engines(nodeid.partition("::")[0]) else nodeid

    return RealInOneProcess(config, log)


@functools.cache
def names_real_engines(path: str) -> bool:
    text = (ROOT.parent / path).read_text()
    return "mark.real" in text or "vllm_engine" in text


class CollectingLock:
    """A reentrant lock that often collects garbage where it is taken, once it is."""

    _next_s = 0.0

    def __init__(self) -> None:
        self._lock = RLock()
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._is_owned = self._lock._is_owned
        self._release_save, self._acquire_restore = self._lock._release_save, self._lock._acquire_restore

    def __enter__(self) -> None:
        self._lock.acquire()
        if (now_s := time.perf_counter()) > CollectingLock._next_s:
            gc.collect()
            CollectingLock._next_s = now_s + 0.02

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Whatever a finalizer does there, engines must go on."""
    to_host, under_locks = map(session.config.getoption, ("--garbage-to-host", "--garbage-under-locks"))
    if to_host or under_locks:
        gc.collect()
        gc.freeze()
        gc.disable()
    if under_locks:
        runtime.host._door = CollectingLock()
        threading.RLock = CollectingLock
    if to_host:
        loop = runtime.host.loop

        def collect() -> None:
            gc.collect()
            loop.call_later(0.01, collect)

        loop.call_soon_threadsafe(collect)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that does not even end by its timeout says in a few lines where all threads are, and ends the run."""
    alarm = threading.Timer(HUNG_S, _end_run, (item,))
    alarm.daemon = True
    alarm.start()
    try:
        return (yield)
    finally:
        alarm.cancel()
        if gc.get_count()[0] > GARBAGE_OBJECTS:
            gc.collect()


def _end_run(item: pytest.Item) -> None:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = {_stack(frame): names.get(ident, "?") for ident, frame in sys._current_frames().items()}
    lines = [f"{name}: {stack}" for stack, name in stacks.items() if threading.current_thread().name != name]
    seed = item.config.getoption("randomly_seed", None)
    lines.append(f"No end after {HUNG_S} s: {item.nodeid} (--randomly-seed={seed})")
    os.write(item.config.stash[STDERR], "\n".join(["", *lines, ""]).encode())
    os._exit(1)


def _stack(frame: FrameType) -> str:
    """The calls in our own files, and the innermost two, outermost first."""
    calls = list(traceback.walk_stack(frame))
    ours = [call for i, call in enumerate(calls) if i < 2 or str(ROOT) in call[0].f_code.co_filename]
    shown = [f"{Path(f.f_code.co_filename).stem}:{line} {f.f_code.co_name}" for f, line in reversed(ours)]
    return " > ".join(shown[-SHOWN_CALLS:])


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether a test should write what it got instead of comparing it."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True)
def _providers_have_answered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each provider has answered before and none has failed; in a test marked `cold`, none was asked before."""
    providers.forget()
    monkeypatch.setattr(configured, "_changed_by_calls", WeakSet())
    if request.node.get_closest_marker("cold") is None:
        monkeypatch.setattr(providers, "Provider", answered_provider)


def answered_provider() -> providers.Provider:
    """A provider that may be asked ahead."""
    provider = COLD_PROVIDER()
    provider.heard(None, 0.0)
    return provider


@pytest.fixture(scope="session")
def vllm_engine() -> Iterator[VllmEngine]:
    """The tiny model on vLLM, for tests marked `real`; on the shared host, as an engine belongs to one event loop."""
    engine = VllmEngine(tiny_model(), max_num_seqs=16, shortest_prefill=0)
    yield engine
    asyncio.run_coroutine_threadsafe(engine.close(), runtime.host.loop).result()


@pytest.fixture(autouse=True)
def _vllm_has_started(request: pytest.FixtureRequest) -> None:
    """Before the test runs anything in threads: forked beside them, its core may hang for good."""
    if "vllm_engine" in request.fixturenames:
        engine: VllmEngine = request.getfixturevalue("vllm_engine")
        asyncio.run_coroutine_threadsafe(engine.start(), runtime.host.loop).result()
