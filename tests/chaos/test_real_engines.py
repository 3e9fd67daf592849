"""A RAG on vLLM, MiniLM and Chroma while half of its readers go away and the process of vLLM is killed.

The answers of all others are those of the original pipeline: generation is greedy, and of a model with random weights
any other token shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from typing import Any

import psutil
import pytest

from teola_plugin import optimize, runtime
from teola_plugin.demo.corpus import passages
from teola_plugin.demo.langchain_kit import LangChainKit
from teola_plugin.demo.parts import Sizes, real_parts
from teola_plugin.runtime.engines.vllm import VllmEngine
from tests.chaos.apps import IS_FULL

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

QUERIES = 100 if IS_FULL else 20
ABORTS = QUERIES // 2
AT_ONCE = 16
WAIT_S = 60


def core_processes(engine: VllmEngine) -> list[psutil.Process]:
    assert engine._core is not None
    processes = engine._core.llm.engine_core.resources.engine_manager.processes
    return [psutil.Process(process.pid) for process in processes]


async def give_up(pipeline: Any, question: str, drawn: random.Random) -> None:
    """Read a little of the answer, or wait a little, and go away."""
    stream = pipeline.astream({"question": question})
    if drawn.random() < 0.5:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(anext(stream), drawn.uniform(0.1, 3))
    else:
        await anext(stream)
    await stream.aclose()


async def settled(engine: VllmEngine) -> None:
    """Nothing of any request is left: not in the lane, not in vLLM's front, not in its core."""
    lane = runtime.host._workers[engine]
    assert engine._core is not None
    llm = engine._core.llm
    for _ in range(WAIT_S * 20):
        if lane.is_clear and not llm.output_processor.request_states and not len(engine._core.prefills):
            break
        await asyncio.sleep(0.05)
    assert runtime.host.load(engine) == (0, 0)
    assert not llm.output_processor.request_states
    assert not len(engine._core.prefills)
    await asyncio.gather(*engine._core.closing)
    assert await llm.reset_prefix_cache()  # it cannot while a request of the core holds a block


async def test_a_killed_core_and_readers_that_go_away_change_no_answer(vllm_engine: VllmEngine) -> None:
    kit = LangChainKit(real_parts(vllm_engine), Sizes(passages(40)), "chaos")
    original = kit.pipeline("naive")
    questions = [f"What does chapter {n} say of names?" for n in range(QUERIES)]
    drawn = random.Random(2)
    victims = set(drawn.sample(range(QUERIES), ABORTS))
    right = await original.abatch([{"question": q} for q in questions], {"max_concurrency": AT_ONCE})
    pipeline = optimize(kit.pipeline("naive"))
    counts = runtime.host.counts(vllm_engine)
    before = core_processes(vllm_engine)
    places = asyncio.Semaphore(AT_ONCE)
    ended = 0
    said: dict[int, str] = {}

    async def query(number: int) -> None:
        nonlocal ended
        async with places:
            if number in victims:
                await give_up(pipeline, questions[number], drawn)
            else:
                said[number] = await pipeline.ainvoke({"question": questions[number]})
            ended += 1
            if ended == QUERIES // 2:
                for process in before:
                    os.kill(process.pid, signal.SIGKILL)

    await asyncio.gather(*map(query, range(QUERIES)))
    now = runtime.host.counts(vllm_engine)
    print(f"\n{len(said)} answered, {ABORTS} given up, {now}")
    assert said == {number: right[number] for number in range(QUERIES) if number not in victims}
    assert now.crashes == counts.crashes + 1
    assert now.repeated > counts.repeated
    assert now.failed == counts.failed
    on_host = asyncio.run_coroutine_threadsafe(settled(vllm_engine), runtime.host.loop)
    await asyncio.wrap_future(on_host)
    now = runtime.host.counts(vllm_engine)  # a prefill that nobody waits for may have been the last to end
    assert now.open == now.lost == 0
    after = core_processes(vllm_engine)
    assert not psutil.wait_procs(before, timeout=WAIT_S)[1]
    assert all(process.is_running() for process in after)
    assert await pipeline.ainvoke({"question": questions[0]}) == right[0]
