"""Short lives of one engine, each about one promise of the runtime, in virtual time.

    problems = play(SCENARIOS["old ones first"])      # [] if it was kept

What simulation.py draws from seeds finds what nobody thought of; here is what had to be thought of.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from typing import Any

from teola_plugin.engines import WRITES, Capabilities, Delta, Done, Failed, Urgency
from teola_plugin.errors import DeadlineExceeded, EngineClosed, EngineCrashed, EngineError, Overloaded, Poisoned
from teola_plugin.runtime.deadlines import ROOM
from teola_plugin.runtime.engine_scheduler import Limits
from teola_plugin.runtime.lane import Rules
from teola_plugin.runtime.local import LocalHost, Query
from teola_plugin.tenancy import Terms
from tests.faulty_engines import BatchError, Faults, Instance, ItemError, Record, Restartable, Several
from tests.simulation import GREEDY, SAMPLED, Watched, in_virtual_time

BATCHES = Capabilities(max_items=4)
LLM = Capabilities(max_items=4, concurrent=True, abort=True)


class Scene:
    """One engine, made of `kind`, and what is asked of it. An item takes about a tenth of a second."""

    def __init__(
        self, capabilities: Capabilities = BATCHES, faults: Faults | None = None, *, policy: str = "topology",
        kind: type[Instance] = Instance, rules: Rules | None = None, instances: int = 1,
    ) -> None:  # fmt: skip
        self.loop = asyncio.get_running_loop()
        self.problems: list[str] = []
        self.record = Record(self.problems.append)
        each = [
            kind(f"engine{n}", capabilities, faults or Faults(), self.record, random.Random(n))
            for n in range(instances)
        ]
        self.engine = Several(each)
        self.host = LocalHost(policy, rules or Rules(), loop=self.loop)  # type: ignore[arg-type]
        self.replies: list[Watched] = []

    def ask(
        self, *payloads: str, op: str = "embedding", settings: dict[str, Any] | None = None, tenant: str = "",
        deadline_s: float = math.inf, owner: int = 1, depth: int = 0, remaining_s: float = 0.0,
    ) -> list[Watched]:  # fmt: skip
        replies = [Watched() for _ in payloads]
        self.replies += replies
        self.host.submit(
            self.engine, op, payloads, settings or {}, replies,  # type: ignore[arg-type]
            query=Query(owner, Terms(tenant, deadline_s), self.loop.time()), urgency=Urgency(depth, remaining_s),
        )  # fmt: skip
        return replies

    @property
    def lane(self) -> Any:
        return self.host._lanes[self.engine]

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.problems.append(what)

    async def until_all_ended(self, within_s: float = 1000.0) -> None:
        until_s = self.loop.time() + within_s
        while any(reply.outcome is None for reply in self.replies) and self.loop.time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        never = sum(reply.outcome is None for reply in self.replies)
        self.expect(not never, f"{never} replies never ended")
        self.expect(all(reply.puts <= 1 for reply in self.replies), "a reply was told two ends")

    def served(self) -> list[str]:
        """All payloads, in the order in which the engine got them."""
        return [payload for batch in self.record.batches for payload in batch]


def error_of(reply: Watched) -> BaseException | None:
    return reply.outcome.error if isinstance(reply.outcome, Failed) else None


async def deep_ones_first() -> list[str]:
    scene = Scene(Capabilities(max_items=1, concurrent=True))
    scene.ask("ok:busy", owner=9)
    await asyncio.sleep(0.01)
    scene.ask("ok:shallow", depth=1)
    scene.ask("ok:deep", depth=5)
    await scene.until_all_ended()
    scene.expect(scene.served() == ["ok:busy", "ok:deep", "ok:shallow"], f"served in the order {scene.served()}")
    return scene.problems


async def one_call_for_a_batch() -> list[str]:
    scene = Scene()
    scene.ask("ok:busy", owner=9)
    await asyncio.sleep(0.01)
    for owner in range(4):
        scene.ask(f"ok:{owner}a", f"ok:{owner}b", owner=owner)
    await scene.until_all_ended()
    sizes = [len(batch) for batch in scene.record.batches]
    scene.expect(sizes == [1, 4, 4], f"batches of {sizes}")
    return scene.problems


async def old_ones_first() -> list[str]:
    """One that is always overtaken by more urgent ones."""
    aging_s = 5.0
    scene = Scene(policy="critical_path", rules=Rules(Limits(aging_s=aging_s)))
    slow = scene.ask("ok:slow", remaining_s=1e6, settings={"prompt": "another"})
    for n in range(400):
        scene.ask(f"ok:{n}a", f"ok:{n}b", owner=n + 2, remaining_s=1.0)
        await asyncio.sleep(0.05)
    await scene.until_all_ended()
    scene.expect(slow[0].ended_s < 3 * aging_s, f"the old one ended at {slow[0].ended_s}")
    return scene.problems


async def aged_ones_are_batched() -> list[str]:
    """Where everything is late, batches must not become small: it would be later still."""
    scene = Scene(rules=Rules(Limits(aging_s=0.01)))
    for n in range(40):
        scene.ask(f"ok:{n}", owner=n)
    await scene.until_all_ended()
    scene.expect(len(scene.record.batches) == 10, f"{len(scene.record.batches)} batches for 40 items")
    return scene.problems


async def tenants_have_equal_shares() -> list[str]:
    scene = Scene(rules=Rules(Limits(aging_s=0.5)))
    for n in range(100):
        scene.ask(f"ok:{n}a", f"ok:{n}b", owner=n, tenant="abusive")
    await asyncio.sleep(2)
    before = len(scene.served())
    for n in range(20):
        scene.ask(f"ok:polite{n}", owner=1000 + n, tenant="polite")
    await scene.until_all_ended()
    polite = sum("polite" in payload for payload in scene.served()[before : before + 44])
    scene.expect(polite >= 18, f"{polite} of 44 slots for the polite tenant")
    return scene.problems


async def queues_are_bounded() -> list[str]:
    scene = Scene(rules=Rules(Limits(max_queued_items=10)))
    for n in range(100):
        scene.ask(f"ok:{n}")
        scene.ask(f"ok:{n}", tenant=f"t{n}")
    await asyncio.sleep(0)
    scene.expect(scene.lane.scheduler.queued_items <= 20, f"{scene.lane.scheduler.queued_items} items wait")
    refused = [error for reply in scene.replies if isinstance(error := error_of(reply), Overloaded)]
    scene.expect(len(refused) >= 180, f"{len(refused)} were refused")
    scene.expect(all(error.retry_after_s > 0 for error in refused), "no word of when to try again")
    await scene.until_all_ended()
    return scene.problems


async def readers_of_a_failure_have_their_own_try() -> list[str]:
    """Also when nothing else is owed meanwhile."""
    scene = Scene()
    for _ in range(3):
        scene.ask("fails:1")
    await scene.until_all_ended()
    errors = [error_of(reply) for reply in scene.replies]
    scene.expect(all(isinstance(error, ItemError) for error in errors), f"{errors}")
    scene.expect(len({id(error) for error in errors}) == 3, "readers share an error")
    return scene.problems


async def a_crasher_has_no_more_tries_for_more_readers() -> list[str]:
    scene = Scene()
    for _ in range(5):
        scene.ask("crasher:1")
    await scene.until_all_ended()
    scene.expect(all(isinstance(error_of(reply), Poisoned) for reply in scene.replies), "not all heard of it")
    scene.expect(scene.lane.counts.crashes == 3, f"{scene.lane.counts.crashes} crashes")
    return scene.problems


async def crashed_work_is_tried_again() -> list[str]:
    scene = Scene()
    scene.ask("crasher:1", "ok:1", "ok:2")
    await scene.until_all_ended()
    scene.expect(isinstance(error_of(scene.replies[0]), Poisoned), "the crasher is not blamed")
    scene.expect(all(isinstance(reply.outcome, Done) for reply in scene.replies[1:]), "its mates failed")
    return scene.problems


async def poison_fails_alone() -> list[str]:
    """Also if nobody waits for the poisoned one any more when its batch fails."""
    scene = Scene()
    cancelled, *mates = scene.ask("poison:1", "ok:1")
    poison, *others = scene.ask("poison:2", "ok:2", "ok:3", op="searching", owner=2)
    await asyncio.sleep(0.01)
    cancelled.cancel_unless_ended()
    await scene.until_all_ended()
    scene.expect(isinstance(error_of(poison), BatchError), f"the poisoned one: {poison.outcome}")
    scene.expect(all(isinstance(reply.outcome, Done) for reply in mates + others), "a mate failed")
    return scene.problems


async def a_text_told_in_part_fails_alone() -> list[str]:
    """Of a batch that fails, what may not be repeated takes nobody with it."""
    scene = Scene(LLM)
    write = next(iter(WRITES))
    scene.ask("poison:1", "ok:1", op=write)
    await scene.until_all_ended()
    scene.expect(all(isinstance(error_of(reply), BatchError) for reply in scene.replies), "a write was tried again")
    scene.expect(len(scene.record.batches) == 1, f"{scene.record.batches}")
    return scene.problems


async def suspects_run_under_load() -> list[str]:
    """An instance that is never idle makes way for who has to be alone."""
    scene = Scene(LLM, rules=Rules(Limits(aging_s=5.0)))
    suspect, *_ = scene.ask("crasher:1", "ok:1", op="partial_prefilling")
    for n in range(600):
        scene.ask(f"ok:{n + 10}", owner=n + 2, op="partial_prefilling", depth=9)
        scene.ask(f"ok:{n + 10000}", owner=n + 2, op="partial_prefilling", depth=9)
        await asyncio.sleep(0.06)
    scene.expect(suspect.ended_s < 25, f"the suspect ended at {suspect.ended_s}")
    await scene.until_all_ended()
    return scene.problems


async def a_suspect_stays_one_when_its_answer_is_lost() -> list[str]:
    """In company it would be blamed for what that does."""
    inside: list[str] = []
    seen: list[list[str]] = []

    class Unlucky(Instance):
        async def run(self, batch: Any, emit: Any) -> None:
            mine = [item.payload for item in batch.items]
            inside.extend(mine)
            seen.append(list(inside))
            await asyncio.sleep(1)
            for payload in mine:
                inside.remove(payload)
            if "ok:1" in mine and len(seen) <= 2:
                raise EngineCrashed("for no reason")
            for at, payload in enumerate(mine):
                if payload != "ok:1" or len(seen) > 3:  # the third time its answer is lost
                    emit(at, Done(payload))

    scene = Scene(LLM, kind=Unlucky)
    scene.ask("ok:1")
    while len(seen) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    for n in range(8):
        scene.ask(f"ok:{n + 10}", owner=2)
    await scene.until_all_ended()
    scene.expect([those for those in seen if "ok:1" in those] == [["ok:1"]] * 4, f"{seen}")
    return scene.problems


async def far_deadlines_leave_nothing() -> list[str]:
    scene = Scene()
    stays = scene.ask("ok:stays", deadline_s=1e6)
    scene.engine.instances[0]._faults.hang = 0.0
    for n in range(300):
        scene.ask(f"ok:{n}a", f"ok:{n}b", deadline_s=1e6)
        await asyncio.sleep(0.12)
    kept = len(scene.lane._ledger._deadlines)
    scene.expect(kept <= 2 * len(scene.lane._ledger.owed) + ROOM + 1, f"{kept} deadlines of items that ended")
    await scene.until_all_ended()
    scene.expect(stays[0].outcome is not None and scene.lane.is_clear, "something is kept")
    return scene.problems


async def late_ones_end_in_any_state() -> list[str]:
    """Queued, running, hanging, and where the engine cannot even be told."""

    class Deaf(Instance):
        def abort(self, ids: Any) -> None:
            raise RuntimeError("cannot")

    scene = Scene(LLM, Faults(hang=1.0), kind=Deaf)
    for n in range(12):
        scene.ask(f"ok:{n}", op="decoding", settings=SAMPLED, deadline_s=1 + n / 10)
    before = scene.ask("ok:before", op="decoding", settings=GREEDY, deadline_s=0.0)
    await asyncio.sleep(5)
    for n, reply in enumerate(scene.replies[:12]):
        scene.expect(isinstance(error_of(reply), DeadlineExceeded), f"{reply.outcome}")
        scene.expect(reply.ended_s <= 1 + n / 10 + 1e-6, f"ended {reply.ended_s - 1 - n / 10} s too late")
    scene.expect(isinstance(error_of(before[0]), DeadlineExceeded), "what came too late was taken in")
    scene.expect("ok:before" not in scene.served(), "what came too late reached the engine")
    return scene.problems


async def what_hangs_is_ended_though_nobody_waits() -> list[str]:
    """Or it would keep its slots for ever."""
    problems: list[str] = []
    for kind in (Instance, Restartable):
        scene = Scene(faults=Faults(hang=1.0), kind=kind, rules=Rules(stall_s=5.0))
        scene.ask("ok:1", "ok:2", deadline_s=1.0)
        await asyncio.sleep(2)
        after = scene.ask("ok:after", deadline_s=scene.loop.time() + 60)
        await scene.until_all_ended()
        scene.expect(isinstance(after[0].outcome, Done), f"{kind.__name__}: after a hang {after[0].outcome}")
        problems += scene.problems
    return problems


async def an_engine_that_never_recovers_keeps_nobody() -> list[str]:
    scene = Scene(faults=Faults(never_recovers=True))
    scene.ask("crasher:1", "ok:1", deadline_s=30.0)
    await scene.until_all_ended()
    scene.expect(
        all(isinstance(error_of(r), DeadlineExceeded) and r.ended_s <= 30.0 for r in scene.replies), "not by then"
    )
    gone = Scene(faults=Faults(bad_recoveries=1))
    gone.ask("crasher:1", "ok:1")
    await gone.until_all_ended()
    again = gone.ask("ok:2")
    await gone.until_all_ended()
    gone.expect(isinstance(again[0].outcome, Done), f"the next request: {again[0].outcome}")
    await scene.host.aclose()
    return scene.problems + gone.problems


async def an_answer_before_its_time() -> list[str]:
    """`run` returns, and says only then what it has."""

    class Hasty(Instance):
        async def run(self, batch: Any, emit: Any) -> None:
            for at, item in enumerate(batch.items):
                asyncio.get_running_loop().call_later(1.0, emit, at, Done(f"late {item.payload}"))

    scene = Scene(kind=Hasty)
    scene.ask("ok:1")
    scene.ask("ok:2", op=next(iter(WRITES)))
    await scene.until_all_ended()
    scene.expect(all(isinstance(error_of(reply), EngineError) for reply in scene.replies), "a stale answer was told")
    await asyncio.sleep(5)
    scene.expect(scene.lane.counts.late == 3 and scene.lane.counts.open == 0, f"{scene.lane.counts}")
    return scene.problems


async def one_call_at_a_time() -> list[str]:
    """Also where a call goes on after its last answer."""

    class Tidy(Instance):
        async def run(self, batch: Any, emit: Any) -> None:
            await super().run(batch, emit)
            self._calls.add(tidying := asyncio.get_running_loop().create_future())
            await asyncio.sleep(0.5)
            self._calls.discard(tidying)

    scene = Scene(kind=Tidy)
    for n in range(20):
        scene.ask(f"ok:{n}", owner=n)
        await asyncio.sleep(0.05)
    await scene.until_all_ended()
    return scene.problems


async def each_reader_has_what_was_found() -> list[str]:
    """As its own, even if another one changes it at once."""
    scene = Scene()
    for _ in range(3):
        for reply in scene.ask("ok:1", op="searching"):
            reply.listen(lambda outcome: outcome.value["notes"].append("mine"))
    await scene.until_all_ended()
    notes = [reply.outcome.value["notes"] for reply in scene.replies]
    scene.expect(notes == [["mine"]] * 3, f"{notes}")
    scene.expect(scene.lane.counts.joined == 2, "they were not joined")
    return scene.problems


async def tenants_share_nothing() -> list[str]:
    scene = Scene()
    for tenant in ("a", "b"):
        scene.ask("ok:1", tenant=tenant)
    await scene.until_all_ended()
    values = [reply.outcome.value["tenant"] for reply in scene.replies]
    scene.expect(values == ["a", "b"], f"{values}")
    return scene.problems


async def closing_in_the_middle() -> list[str]:
    scene = Scene(LLM)
    for n in range(12):
        scene.ask(f"ok:{n}", op="decoding", settings=GREEDY)
    await asyncio.sleep(0.2)
    lane = scene.lane
    await scene.host.aclose()
    after = scene.ask("ok:after", op="decoding", settings=GREEDY)
    await scene.until_all_ended()
    scene.expect(all(isinstance(error_of(reply), EngineClosed) for reply in scene.replies[1:]), "another end")
    scene.expect(isinstance(error_of(after[0]), EngineClosed) and lane.is_clear, f"something is left: {lane.counts}")
    return scene.problems


async def instances_come_and_go() -> list[str]:
    scene = Scene(LLM, instances=2)
    for n in range(40):
        scene.ask(f"ok:{n}", op="decoding", settings=GREEDY, owner=n)
    await asyncio.sleep(0.2)
    one, two = scene.engine.instances
    scene.engine.instances = [one]
    scene.host.rescale(scene.engine)  # type: ignore[arg-type]
    await asyncio.sleep(0.5)
    scene.engine.instances = []
    scene.host.rescale(scene.engine)  # type: ignore[arg-type]
    await asyncio.sleep(5)
    scene.expect(not (one.holding or two.holding) and scene.lane.owes, "work went where no instance is")
    scene.engine.instances = [two, one]
    scene.host.rescale(scene.engine)  # type: ignore[arg-type]
    await scene.until_all_ended()
    scene.expect(all(isinstance(reply.outcome, Done) for reply in scene.replies), "something failed")
    return scene.problems


async def another_text_the_second_time_is_stopped() -> list[str]:
    """Nobody is told two texts in one, and what writes it does not go on."""

    class Fickle(Instance):
        async def run(self, batch: Any, emit: Any) -> None:
            first = not self._record.batches
            self._record.batches.append([item.payload for item in batch.items])
            for piece in ("one ", "text ") if first else ("an", "other ", "text "):
                emit(0, Delta(piece))
                await asyncio.sleep(1)
            if first:
                raise EngineCrashed("in the middle")
            emit(0, Done("another text "))

    scene = Scene(LLM, kind=Fickle)
    reply, *_ = scene.ask("ok:1", op="decoding", settings=GREEDY)
    await scene.until_all_ended()
    scene.expect(reply.text == "one text ", f"told {reply.text!r}")
    scene.expect(isinstance(error_of(reply), EngineCrashed), f"{reply.outcome}")
    scene.expect(len(scene.record.aborted) == 1, "it writes on")
    await asyncio.sleep(5)
    scene.expect(scene.lane.is_clear, "something is left")
    return scene.problems


SCENARIOS: dict[str, Callable[[], Awaitable[list[str]]]] = {
    scene.__name__.replace("_", " "): scene
    for scene in (
        deep_ones_first, one_call_for_a_batch, old_ones_first, aged_ones_are_batched, tenants_have_equal_shares,
        queues_are_bounded, readers_of_a_failure_have_their_own_try, a_crasher_has_no_more_tries_for_more_readers,
        crashed_work_is_tried_again, poison_fails_alone, a_text_told_in_part_fails_alone, suspects_run_under_load,
        a_suspect_stays_one_when_its_answer_is_lost, far_deadlines_leave_nothing, late_ones_end_in_any_state,
        what_hangs_is_ended_though_nobody_waits, an_engine_that_never_recovers_keeps_nobody,
        an_answer_before_its_time, one_call_at_a_time, each_reader_has_what_was_found, tenants_share_nothing,
        closing_in_the_middle, instances_come_and_go, another_text_the_second_time_is_stopped,
    )
}  # fmt: skip


def play(scenario: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """What was wrong in it."""
    problems: list[str] = []

    async def main() -> None:
        problems.extend(await scenario())

    return [*in_virtual_time(main), *problems]
