"""Options that all tests share."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator

import pytest

from teola_plugin import runtime
from teola_plugin.demo.tiny_model import tiny_model
from teola_plugin.runtime.engines.vllm import VllmEngine

os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")  # chromadb refuses a second client with other settings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected halves of text fixtures")
    parser.addoption("--garbage-to-host", action="store_true", help="let only the host's thread collect garbage")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Whatever a finalizer does there, engines must go on."""
    if not session.config.getoption("--garbage-to-host"):
        return
    gc.collect()
    gc.freeze()
    gc.disable()
    loop = runtime.host.loop

    def collect() -> None:
        gc.collect()
        loop.call_later(0.01, collect)

    loop.call_soon_threadsafe(collect)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether a test should write what it got instead of comparing it."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def vllm_engine() -> Iterator[VllmEngine]:
    """The tiny model on vLLM, for tests marked `real`; on the shared host, as an engine belongs to one event loop."""
    engine = VllmEngine(tiny_model(), max_num_seqs=16, shortest_prefill=0)
    yield engine
    asyncio.run_coroutine_threadsafe(engine.close(), runtime.host.loop).result()
