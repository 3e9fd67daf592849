"""Scenes of one engine: who pays for what fails or crashes."""

from __future__ import annotations

import asyncio
from typing import Any

from teola_plugin.engines import WRITES, Delta, Done
from teola_plugin.errors import EngineCrashed, Poisoned
from teola_plugin.runtime.scheduler.batching import Limits
from teola_plugin.runtime.scheduler.worker import Rules
from tests.support.faulty_engines import BatchError, Instance, ItemError
from tests.support.scene import LLM, Scene, error_of
from tests.support.simulated_requests import GREEDY


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
    scene.expect(scene.worker.counts.crashes == 3, f"{scene.worker.counts.crashes} crashes")
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


async def halves_of_two_tenants_are_each_tenants_own() -> list[str]:
    """Where they do not fit at once, and the tenant of the first has no more to wait for."""
    scene = Scene(LLM)
    scene.ask("ok:1", op="partial_prefilling", tenant="a")
    scene.ask("poison:1", "ok:2", "ok:3", op="partial_prefilling", tenant="b")
    await asyncio.sleep(0.01)
    scene.ask("ok:4", "ok:5", "ok:6", op="partial_prefilling", tenant="c")
    again: list[set[str]] = []
    resubmit = scene.worker.scheduler.resubmit
    scene.worker.scheduler.resubmit = lambda request, now_s: (
        again.append({work.item.tenant for work in request.items}), resubmit(request, now_s),
    )  # fmt: skip
    await scene.until_all_ended()
    scene.expect({"b"} in again and all(len(tenants) == 1 for tenants in again), f"together: {again}")
    scene.expect(sum(isinstance(reply.outcome, Done) for reply in scene.replies) == 6, "not only the poisoned failed")
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
    scene.expect(scene.worker.is_clear, "something is left")
    return scene.problems


SCENES = (
    readers_of_a_failure_have_their_own_try,
    a_crasher_has_no_more_tries_for_more_readers,
    crashed_work_is_tried_again,
    poison_fails_alone,
    halves_of_two_tenants_are_each_tenants_own,
    a_text_told_in_part_fails_alone,
    suspects_run_under_load,
    a_suspect_stays_one_when_its_answer_is_lost,
    another_text_the_second_time_is_stopped,
)
