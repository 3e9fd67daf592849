"""Options that all tests share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from teola_plugin import runtime
from teola_plugin.demo.tiny_model import tiny_model
from teola_plugin.runtime.engines.vllm import VllmEngine

os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")  # chromadb refuses a second client with other settings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected halves of text fixtures")


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
