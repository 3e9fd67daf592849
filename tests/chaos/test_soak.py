"""Hours of a server in minutes: answers, cancels, poison and crashes, and nothing that grows.

It goes in rounds; after each, when all is at rest, what is left is counted.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from teola_plugin import runtime
from teola_plugin.engines import Batch, Emit
from teola_plugin.errors import DeadlineExceeded, EngineCrashed, Poisoned
from teola_plugin.runtime.engines.simulated import ProfileLLM
from teola_plugin.tenancy import Terms
from tests.chaos.apps import IS_FULL, Engines, as_chain, as_graph, expected, make_engines

pytestmark = pytest.mark.timeout(400)

SECONDS = 180 if IS_FULL else 6
ROUNDS = 9 if IS_FULL else 5
WARM_ROUNDS = 3 if IS_FULL else 2
CLIENTS = 16
QUESTIONS = 150 if IS_FULL else 60
"""As many different ones: what is cached by texts is full after the first rounds."""

FLAT_BYTES = 12 << 20
"""Noise of the allocator. In a soak of 3 minutes some 4,000 queries run: 4 KB kept for each would show."""

EVENTS = frozenset({"BatchRan", "PrimitiveRan", "Retired"})
"""Those of the last 64 calls are kept in their reports, more or fewer of them."""

CRASHES = 0.01
POISON = 37
"""Every so manyth question."""


class PoisonError(Exception):
    """This question fails, and whatever is in a batch with it."""


class Fragile:
    """An LLM that now and then crashes."""

    def __init__(self, llm: ProfileLLM) -> None:
        self.name, self.capabilities, self.profile = llm.name, llm.capabilities, llm.profile
        self._llm = llm
        self._drawn = random.Random(3)
        self._crashed = asyncio.Event()
        self._is_up = True
        self.crashes = 0

    async def run(self, batch: Batch, emit: Emit) -> None:
        if not self._is_up:
            raise EngineCrashed("is down")
        work = asyncio.ensure_future(self._llm.run(batch, emit))
        crash = asyncio.ensure_future(self._crashed.wait())
        if self._drawn.random() < CRASHES:
            asyncio.get_running_loop().call_later(self._drawn.uniform(0, 0.05), self.crash)
        await asyncio.wait({work, crash}, return_when=asyncio.FIRST_COMPLETED)
        crash.cancel()
        if not work.done():
            work.cancel()
            raise EngineCrashed("crashed")
        await work

    def crash(self) -> None:
        self.crashes += 1
        self._is_up = False
        self._crashed.set()

    async def recovered(self) -> None:
        await asyncio.sleep(0.05)
        self._crashed.clear()
        self._is_up = True

    def abort(self, ids: Sequence[int]) -> None:
        self._llm.abort(ids)

    async def close(self) -> None:
        await self._llm.close()


@dataclass(frozen=True)
class Left:
    """What there is when nothing runs."""

    rss_bytes: int
    ours: Counter[str]
    files: int
    threads: int
    tasks: int


async def left(engines: Engines) -> Left:
    """After what ends by itself a little later."""
    for _ in range(200):
        if all(worker.is_clear for worker in runtime.host._workers.values()):
            break
        await asyncio.sleep(0.02)
    assert all(worker.is_clear for worker in runtime.host._workers.values())
    gc.collect()
    ours = Counter(
        type(each).__qualname__ for each in gc.get_objects() if str(type(each).__module__).startswith("teola_plugin")
    )
    for kind in EVENTS:
        del ours[kind]
    process = psutil.Process()
    tasks = len(asyncio.all_tasks(runtime.host.loop))
    return Left(process.memory_info().rss, ours, process.num_fds(), threading.active_count(), tasks)


async def test_a_soak_leaves_memory_flat() -> None:
    plain = make_engines(0.005)

    def fails(payload: Any) -> BaseException | None:
        if "poison" in str(payload):
            raise PoisonError
        return None

    plain.llm._fail_on = fails
    engines = Engines(Fragile(plain.llm), plain.embedder)  # type: ignore[arg-type]
    forms = {"graph": as_graph(engines), "LangChain": as_chain(engines)}
    questions = [f"question {n}" if n % POISON else f"poison {n}" for n in range(1, QUESTIONS + 1)]
    right = {form: await expected(form, questions) for form in forms}
    drawn = random.Random(5)
    seen: Counter[str] = Counter()

    async def once() -> str:
        form, question = drawn.choice([*forms]), drawn.choice(questions)
        deadline_s = drawn.choice((30.0, 30.0, 30.0, 0.05))
        asked = asyncio.ensure_future(
            forms[form](question, Terms(drawn.choice(("", "a", "b")), time.monotonic() + deadline_s))
        )
        if drawn.random() < 0.15:
            await asyncio.sleep(drawn.uniform(0, 0.2))
            asked.cancel()
        try:
            said = await asked
        except PoisonError:
            return "PoisonError" if "poison" in question else "somebody else's poison"
        except (Poisoned, DeadlineExceeded, asyncio.CancelledError) as e:
            return type(e).__name__
        assert said == right[form][question]
        return "answered"

    async def client(until_s: float) -> None:
        while time.monotonic() < until_s:
            seen.update([await once()])

    gc.collect()
    gc.freeze()  # what was there before is not counted, nor gone through in each round
    rounds = []
    for _ in range(ROUNDS):
        until_s = time.monotonic() + SECONDS / ROUNDS
        await asyncio.gather(*(client(until_s) for _ in range(CLIENTS)))
        rounds.append(await left(engines))
    gc.unfreeze()
    warm, last = rounds[WARM_ROUNDS - 1], rounds[-1]
    rss = [each.rss_bytes for each in rounds[WARM_ROUNDS - 1 :]]
    slope = statistics.linear_regression(range(len(rss)), rss).slope
    counts = runtime.host.counts(engines.llm)
    print(f"\n{dict(seen)}, {counts.crashes} crashes, {counts.repeated} attempts repeated")
    print(f"RSS {[each.rss_bytes >> 20 for each in rounds]} MiB, {slope / 1024:.0f} KiB a round; {last.files} files")
    print(f"objects of ours {[each.ours.total() for each in rounds]}, more: {last.ours - warm.ours}")
    assert "somebody else's poison" not in seen
    assert counts.open == counts.lost == 0
    assert counts.crashes > 0
    assert {"answered", "PoisonError", "DeadlineExceeded", "CancelledError"} <= set(seen)
    assert (last.ours - warm.ours).total() < 100
    assert last.files <= warm.files + 2
    assert last.threads <= warm.threads + 2
    assert last.tasks <= warm.tasks + 1
    assert runtime.host.admission.inside == 0
    assert max(rss) - rss[0] < FLAT_BYTES
