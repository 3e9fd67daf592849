"""How many texts an LLM writes side by side, as tables: prompts in the order in which they are due, and who begins."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass
from typing import Any

import pytest

from teola_plugin.engines import Batch, Capabilities, Emit, Item, Taker, Urgency
from teola_plugin.profile import PAPER_LLM, LlmProfile, Profile
from teola_plugin.runtime.engines.simulated import ProfileLLM
from teola_plugin.runtime.hosts.local import LocalHost, Query
from teola_plugin.runtime.hosts.virtual_time import VirtualLoop
from teola_plugin.runtime.scheduler.batching import Limits
from teola_plugin.runtime.scheduler.policies import POLICIES
from teola_plugin.runtime.scheduler.prefill_admission import PIECE_CHARACTERS, PrefillAdmission
from teola_plugin.runtime.scheduler.worker import Rules
from teola_plugin.seams import Reply
from tests.support.by_id import Scheduler, request_of

LLM = LlmProfile(Profile.affine(0.0, token_s=0.01), Profile.affine(0.1))
"""A prompt of 400 characters takes 1 s, ten steps as long."""

AGING_S = 30.0


@dataclass(frozen=True)
class P:
    """A prompt: its query, seconds to prefill and to decode (None: nobody knows), and its operation."""

    query: int
    prefill_s: int = 1
    decode_s: float | None = 1.0
    op: str = "decoding"

    @property
    def settings(self) -> dict[str, Any]:
        return {} if self.decode_s is None else {"max_tokens": round(self.decode_s / 0.1)}


def scheduler_of(
    policy: str = "critical_path", llm: LlmProfile | None = LLM, instances: int = 1, *, prefix: bool = False
) -> Scheduler:
    capabilities = Capabilities(32, concurrent=True, prefix=prefix)
    return Scheduler(POLICIES[policy], capabilities, replicas=instances, limits=Limits(None, AGING_S, 0.0), llm=llm)


def put(scheduler: Scheduler, number: int, p: P, text: str = "", *, taker: Taker | None = None) -> None:
    """Queue it; the lower its number, the sooner it is due."""
    text = text or f"{number:04}".ljust(400 * p.prefill_s, ".")
    item = Item(text, p.query, id=number + 1, urgency=Urgency(taker=taker))
    scheduler.submit(request_of(p.op, p.settings, [item], p.query, 1, begun_s=float(number)))


def begun(scheduler: Scheduler, now_s: float = 0.0) -> list[int]:
    """The numbers of those that begin now."""
    numbers = []
    while batch := scheduler.batch(now_s):
        numbers += [item.id - 1 for item in batch.items]
    return numbers


# Nobody begins where others would be held up for more than twice what they decode.
TABLE = [
    ("long prompts, short answers", [P(1, 3, 0.2), P(2, 3, 0.2), P(3, 3, 0.2), P(4, 3, 0.2)], [0]),
    ("short prompts, long answers", [P(1, 1, 9.0), P(2, 1, 9.0), P(3, 1, 9.0), P(4, 1, 9.0)], [0, 1, 2, 3]),
    ("as many as bear each other", [P(n, 1, 1.0) for n in range(8)], [0, 1, 2]),
    ("a query waits for nobody of its own", [P(1, 3, 0.2), P(1, 3, 0.2), P(1, 3, 0.2)], [0, 1, 2]),
    ("nor for those whose length nobody knows", [P(1, 3, None), P(2, 3, 0.2), P(3, 3, 0.2)], [0, 1, 2]),
    ("nor for prefills", [P(1, 3, 0.2, "partial_prefilling"), P(2, 3, 0.2)], [0, 1]),
    ("nobody overtakes one that waits", [P(1, 1, 0.2), P(2, 9, 0.2), P(3, 1, 0.9)], [0]),
]


@pytest.mark.parametrize(("prompts", "begins"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
@pytest.mark.parametrize("policy", ["topology", "critical_path"])
def test_who_begins(policy: str, prompts: list[P], begins: list[int]) -> None:
    scheduler = scheduler_of(policy)
    for number, p in enumerate(prompts):
        put(scheduler, number, p)
    assert begun(scheduler) == begins


HARD = [P(1, 3, 0.2), P(2, 3, 0.2)]
"""The second had better wait."""


@pytest.mark.parametrize(("policy", "llm"), [("to", LLM), ("po", LLM), ("topology", None), ("critical_path", None)])
def test_others_know_of_no_company(policy: str, llm: LlmProfile | None) -> None:
    scheduler = scheduler_of(policy, llm)
    for number, p in enumerate(HARD):
        put(scheduler, number, p)
    assert begun(scheduler) == [0, 1]


def test_a_batch_is_as_many_texts_as_it_has_items() -> None:
    for count, begins in ((4, [0, 1, 2, 3]), (2, [0, 1, 2])):
        scheduler = scheduler_of()
        items = [Item("." * 400, 1, id=n + 1) for n in range(count)]
        scheduler.submit(request_of("decoding", {"max_tokens": 10}, items, 1, begun_s=0.0))
        put(scheduler, count, P(2, 1, 1.0))
        assert begun(scheduler) == begins


@pytest.mark.parametrize("tokens", [None, 0, -1, True, 64.0, "9"])
def test_a_length_that_is_none_is_unknown(tokens: Any) -> None:
    scheduler = scheduler_of()
    for number in range(2):
        item = Item("." * 4000, number, id=number + 1)
        scheduler.submit(request_of("decoding", {"max_tokens": tokens}, [item], number))
    assert begun(scheduler) == [0, 1]


def test_the_longest_length_is_no_infinity() -> None:
    scheduler = scheduler_of()
    scheduler.submit(request_of("decoding", {"max_tokens": 10**400}, [Item("", 1, id=1)], 1))
    assert begun(scheduler) == [0]


@pytest.mark.parametrize("is_together", [True, False])
def test_when_the_company_ends_the_next_begins(is_together: bool) -> None:
    scheduler = scheduler_of()
    put(scheduler, 0, HARD[0])
    assert is_together or begun(scheduler) == [0]
    put(scheduler, 1, HARD[1])
    assert begun(scheduler) == ([0] if is_together else [])
    scheduler.end([1])
    assert begun(scheduler) == [1]


def test_another_instance_takes_what_would_wait_at_the_best_one() -> None:
    scheduler = scheduler_of(instances=2)
    for number in range(3):
        put(scheduler, number, P(number, 3, 0.2))
    assert begun(scheduler) == [0, 1]
    scheduler.end([1])
    assert begun(scheduler) == [2]


def test_the_more_have_waited_for_longer_the_less_it_matters() -> None:
    """Two, and then five, for a second and a half, beside one whom a prefill holds up for 2.6 s more than it bears."""
    for count, begins in ((2, []), (5, [1])):
        scheduler = scheduler_of()
        for number in range(count):
            put(scheduler, number, P(number, 3, 0.2))
        assert begun(scheduler) == [0]
        assert begun(scheduler, 1.5) == begins, count


def test_what_has_waited_for_too_long_begins() -> None:
    scheduler = scheduler_of()
    put(scheduler, 0, P(1, 1, 0.2))
    put(scheduler, 1, P(2, 30, 0.2))
    assert begun(scheduler) == [0]
    assert begun(scheduler, AGING_S - 1) == []
    assert scheduler.waits_until_s == AGING_S
    assert begun(scheduler, AGING_S) == [1]


def test_a_prompt_is_as_long_as_what_is_not_in_the_cache() -> None:
    known, other = ("." * 4 * PIECE_CHARACTERS, "," * 4 * PIECE_CHARACTERS)
    for prefix, text, begins in ((True, known, [1]), (True, other, []), (False, known, [])):
        scheduler = scheduler_of(prefix=prefix)
        put(scheduler, 0, P(1, decode_s=0.2), known + "What?")
        assert begun(scheduler) == [0]
        put(scheduler, 1, P(2, decode_s=0.2), text + "Who?")
        assert begun(scheduler) == begins, (prefix, text[:1])


def test_what_an_instance_has_cached_another_has_not() -> None:
    scheduler = scheduler_of(instances=2, prefix=True)
    text = "." * 4 * PIECE_CHARACTERS
    for number, begins in ((0, [0]), (1, [1])):
        put(scheduler, number, P(number, decode_s=0.2), f"{text}{number}")
        assert begun(scheduler) == begins
    put(scheduler, 2, P(2, decode_s=0.2), f"{text}2")
    assert begun(scheduler) == [2], "both have it by now"
    company, item = PrefillAdmission(LLM, has_prefixes=True), Item(text, 3, id=3)
    for at, sent in enumerate((text, "," * len(text))):
        company.start(at, request_of("decoding", {"max_tokens": 2}, [Item(sent, at, id=at + 1)], at).items)
    assert [company.should_defer(at, 3, item, 1, 0.0) for at in (0, 1)] == [False, True]


def test_prompts_that_come_together_hold_others_up_together() -> None:
    """One query writes 2 s on; a prompt of another takes 1 s, and so does each that comes with it."""
    company, item = PrefillAdmission(LLM, has_prefixes=False), Item("." * 400, 2, id=2)
    company.start(0, request_of("decoding", {"max_tokens": 20}, [Item("", 1, id=1)], 1).items)
    assert [company.should_defer(0, 2, item, together, 0.0) for together in (1, 4, 5)] == [False, False, True]
    assert not company.should_defer(0, 1, item, 5, 0.0), "it needs them all"


@pytest.mark.parametrize("taker", [None, Taker(0.1, 0.1)])
def test_only_those_that_are_handed_on_come_together(taker: Taker | None) -> None:
    scheduler = scheduler_of()
    put(scheduler, 0, P(1, 1, 2.0))
    assert begun(scheduler) == [0]
    for number in range(1, 6):
        put(scheduler, number, P(2, 1, 2.0), taker=taker)
    assert begun(scheduler) == ([] if taker else [1, 2, 3, 4, 5])


def test_nobody_waits_for_what_hangs_for_longer_than_its_age() -> None:
    async def run() -> float:
        loop = asyncio.get_running_loop()
        host = LocalHost("critical_path", Rules(Limits(aging_s=AGING_S)), loop=loop)

        class Hanging(ProfileLLM):
            async def run(self, batch: Batch, emit: Emit) -> None:
                if batch.items[0].payload == "hangs":
                    await asyncio.Event().wait()
                await super().run(batch, emit)

        engine = Hanging("llm", LLM)
        replies = [Reply(), Reply()]
        for query, text in enumerate(("hangs", "." * 4000)):
            host.submit(
                engine, "decoding", [text], {"max_tokens": 1}, [replies[query]], query=Query(query + 1, begun_s=0.0)
            )
        await replies[1].aresult()
        ended_s = loop.time()
        await host.aclose()
        return ended_s

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(run()) == pytest.approx(AGING_S + LLM.prefill_s(4000))


def test_short_answers_to_long_prompts_come_sooner() -> None:
    """The paper's 7B model, 24 prompts of 512 tokens within 4 s, 10 tokens each: mean and longest."""

    async def run(policy: str) -> list[float]:
        loop = asyncio.get_running_loop()
        host = LocalHost(policy, loop=loop)  # type: ignore[arg-type]
        engine = ProfileLLM("llm", PAPER_LLM["7b"], max_prefill_tokens=1024)

        async def ask(query: int) -> float:
            await asyncio.sleep(query / 6)
            reply, began_s = Reply(), loop.time()
            host.submit(
                engine, "decoding", [f"{query} " + "word " * 511], {"max_tokens": 10}, [reply],
                query=Query(query, begun_s=began_s), urgency=Urgency(1, 0.5),
            )  # fmt: skip
            await reply.aresult()
            return loop.time() - began_s

        latencies_s = await asyncio.gather(*map(ask, range(24)))
        await host.aclose()
        return latencies_s

    found = {}
    for policy in ("to", "topology", "critical_path"):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            found[policy] = runner.run(run(policy))
    for policy in ("topology", "critical_path"):
        assert statistics.fmean(found[policy]) < 0.8 * statistics.fmean(found["to"])
        assert max(found[policy]) < max(found["to"])
