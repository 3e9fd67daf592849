"""Work that nobody wants any more, given up in every way and at every moment: engines stop, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from teola_plugin import optimize, runtime, terms
from teola_plugin.errors import Cancelled, DeadlineExceeded
from teola_plugin.runtime.hosts.local import Query
from teola_plugin.seams import Reply
from teola_plugin.tenancy import ANYBODY, Terms
from tests.chaos.apps import IS_FULL, Engines, as_chain, chain, make_engines, write_much

pytestmark = pytest.mark.timeout(400)

CANCELS = 500 if IS_FULL else 80
AT_ONCE = 40
MOMENT_S = 0.5
"""So many queries at once take longer: when the last are given up, many wait and some run."""

MANY_TOKENS = 800
"""Ten seconds of them: an engine that goes on is not idle soon."""

IDLE_S = 1.0
"""It takes some 10 ms, a decode step, on a machine that nobody else uses."""

STREAMS_IDLE_S = 5.0
"""LangChain leaves the branches of a RunnableParallel running when a stream of it is closed: each ends the call of its
model, 16 tokens here, as it does without us. A callback may listen to that, so it is not for us to end it."""

Way = Callable[[Engines, str, float], Awaitable[str]]
"""Asks a question, gives it up after so many seconds, and says how it ended."""


async def by_reply(engines: Engines, question: str, after_s: float) -> str:
    """What a framework does that closes a stream of a model: the reply is cancelled."""
    replies = [Reply(), Reply()]
    settings = {"max_tokens": MANY_TOKENS, "temperature": 0}
    query = Query(runtime.host.new_id(), Terms(random.choice(["", "acme"])), time.monotonic())
    runtime.host.submit(engines.llm, "decoding", [question, f"{question}!"], settings, replies, query=query)
    await asyncio.sleep(after_s)
    replies[0].cancel_unless_ended()
    replies[1].cancel_unless_ended()
    try:
        await replies[0].aresult()
    except Cancelled:
        return "cancelled"
    return "answered"


async def by_task(engines: Engines, question: str, after_s: float) -> str:
    """What a web server does whose client went away."""
    asked = asyncio.ensure_future(optimize(chain(engines)).ainvoke({"question": question}))
    await asyncio.sleep(after_s)
    asked.cancel()
    try:
        await asked
    except asyncio.CancelledError:
        return "cancelled"
    return "answered"


async def by_closed_stream(engines: Engines, question: str, after_s: float) -> str:
    """Somebody has read enough, or nothing at all."""
    stream = optimize(chain(engines)).astream({"question": question})
    reading = asyncio.ensure_future(_read(stream))
    done, _ = await asyncio.wait({reading}, timeout=after_s)
    if not done:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
    await stream.aclose()  # type: ignore[attr-defined]
    return "answered" if done else "cancelled"


async def _read(stream: object) -> None:
    async for _ in stream:  # type: ignore[attr-defined]
        pass


async def by_deadline(engines: Engines, question: str, after_s: float) -> str:
    """It is over by itself."""
    with terms(deadline_s=after_s + 0.001):
        try:
            await optimize(chain(engines)).ainvoke({"question": question})
        except DeadlineExceeded:
            return "expired"
    return "answered"


AT_ANY_MOMENT: tuple[Way, ...] = (by_reply, by_task, by_deadline)
ENDS = {by_reply: "cancelled", by_task: "cancelled", by_deadline: "expired", by_closed_stream: "cancelled"}


@pytest.mark.parametrize(
    ("ways", "cancels", "longest_s"),
    [(AT_ANY_MOMENT, CANCELS, IDLE_S), ((by_closed_stream,), CANCELS // 4, STREAMS_IDLE_S)], ids=["all", "streams"],
)  # fmt: skip
async def test_whatever_is_given_up_leaves_nothing_behind(
    ways: tuple[Way, ...], cancels: int, longest_s: float
) -> None:
    engines = make_engines(reply=write_much)
    drawn = random.Random(11)
    seen: Counter[str] = Counter()
    idle_s = []
    for first in range(0, cancels, AT_ONCE):
        drawn_ways = [drawn.choice(ways) for _ in range(min(AT_ONCE, cancels - first))]
        after_s = [min(MOMENT_S, drawn.uniform(0, 2 * MOMENT_S)) for _ in drawn_ways]  # half of them in one moment
        asked = [way(engines, f"question {first + at}", after_s[at]) for at, way in enumerate(drawn_ways)]
        ended = await asyncio.gather(*asked)
        seen.update(f"{way.__name__} {end}" for way, end in zip(drawn_ways, ended, strict=True))
        began_s = time.monotonic()
        while any(map(is_busy, (engines.llm, engines.embedder))) and time.monotonic() < began_s + longest_s:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        idle_s.append(time.monotonic() - began_s)
    print(f"\n{dict(sorted(seen.items()))}, idle after at most {max(idle_s) * 1000:.0f} ms")
    assert max(idle_s) < longest_s
    assert not engines.llm._running
    assert not engines.llm._waiting
    for engine in (engines.llm, engines.embedder):
        counts = runtime.host.counts(engine)
        assert counts.taken == counts.done + counts.failed + counts.cancelled + counts.expired
        assert counts.failed == counts.lost == 0
        assert runtime.host._workers[engine].is_clear
    assert runtime.host.admission.inside == 0
    assert {f"{way.__name__} {ENDS[way]}" for way in ways} <= set(seen)
    original = as_chain(engines, is_original=True)
    assert await as_chain(engines)("After all", ANYBODY) == await original("After all", ANYBODY)


def is_busy(engine: object) -> bool:
    return runtime.host.load(engine) != (0, 0)  # type: ignore[arg-type]
