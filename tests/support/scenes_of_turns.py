"""Scenes of one engine: what runs when, in which batch, for whom."""

from __future__ import annotations

import asyncio
from typing import Any

from teola_plugin.engines import Capabilities, Done, Taker
from teola_plugin.errors import Overloaded
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.runtime.scheduler.batching import Limits
from teola_plugin.runtime.scheduler.worker import Rules
from tests.support.faulty_engines import Instance
from tests.support.scene import LLM, Scene, error_of
from tests.support.simulated_requests import GREEDY

ABUSE = 8
KEPT = 0.45
"""Of what a tenant is served alone, when it has half of the engine."""

AGING_S = Limits().aging_s
BOUNDED = Rules(Limits(max_queued_items=40))


async def deep_ones_first() -> list[str]:
    scene = Scene(Capabilities(max_items=1, concurrent=True))
    scene.ask("ok:busy", owner=9)
    await asyncio.sleep(0.01)
    scene.ask("ok:shallow", depth=1)
    scene.ask("ok:deep", depth=5)
    await scene.until_all_ended()
    scene.expect(scene.served() == ["ok:busy", "ok:deep", "ok:shallow"], f"served in the order {scene.served()}")
    return scene.problems


async def texts_that_hold_each_other_up_come_one_by_one() -> list[str]:
    scene = Scene(LLM, policy="critical_path")
    scene.engine.instances[0].profile = LlmProfile(Profile.affine(10.0), Profile.affine(0.1))
    beside: list[int] = []
    scene.record.look = lambda: beside.append(len(scene.engine.instances[0].holding))
    for owner in range(1, 7):
        scene.ask(f"ok:{owner}", op="decoding", settings=GREEDY, owner=owner)
    await scene.until_all_ended()
    scene.expect(beside == [0] * 6, f"beside others {beside}, in {scene.record.batches}")
    scene.expect(scene.loop.time() < AGING_S, "each waited until it was too old to wait")
    return scene.problems


async def texts_that_are_handed_on_come_in_waves() -> list[str]:
    scene = Scene(LLM, policy="critical_path")
    scene.engine.instances[0].profile = LlmProfile(Profile.affine(1.0), Profile.affine(0.1))
    for n in range(4):
        scene.ask(f"ok:{n}", op="decoding", settings=GREEDY, taker=Taker(0.1, 2.0))
    await scene.until_all_ended()
    sizes = [len(batch) for batch in scene.record.batches]
    scene.expect(sizes == [2, 2], f"waves of {sizes}")
    scene.expect(scene.loop.time() < AGING_S, "the later wave waited until it was too old to wait")
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


async def one_call_at_a_time() -> list[str]:
    """Also where a call goes on after its last answer."""

    class Tidy(Instance):
        async def run(self, batch: Any, emit: Any) -> None:
            await super().run(batch, emit)
            self._calls[tidying := asyncio.get_running_loop().create_future()] = None
            await asyncio.sleep(0.5)
            del self._calls[tidying]

    scene = Scene(kind=Tidy)
    for n in range(20):
        scene.ask(f"ok:{n}", owner=n)
        await asyncio.sleep(0.05)
    await scene.until_all_ended()
    scene.expect(all(isinstance(reply.outcome, Done) for reply in scene.replies), "an item failed")
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


async def a_polite_tenant_keeps_its_service() -> list[str]:
    """It asks for all that the engine can do, beside one that asks for `ABUSE` times as much."""
    alone, beside = Scene(rules=BOUNDED), Scene(rules=BOUNDED)
    most, kept = await _served_politely(alone, abuse=0), await _served_politely(beside, abuse=ABUSE)
    beside.expect(kept >= KEPT * most, f"of {most} items of the polite tenant {kept} are left")
    return alone.problems + beside.problems


async def _served_politely(scene: Scene, abuse: int) -> int:
    """Items of a polite tenant in ten seconds, while between its requests come `abuse` of another."""
    for n in range(100 * (abuse + 1)):
        tenant = "abusive" if n % (abuse + 1) else "polite"
        scene.ask(*(f"ok:{tenant}{n}{of}" for of in "abcd"), tenant=tenant, owner=n)
        await asyncio.sleep(0.1 / (abuse + 1))
    served = sum("polite" in payload for payload in scene.served())
    await scene.until_all_ended()
    return served


async def queues_are_bounded() -> list[str]:
    scene = Scene(rules=Rules(Limits(max_queued_items=10)))
    for n in range(100):
        scene.ask(f"ok:{n}")
        scene.ask(f"ok:{n}", tenant=f"t{n}")
    await asyncio.sleep(0)
    scene.expect(scene.worker.scheduler.queued_items <= 20, f"{scene.worker.scheduler.queued_items} items wait")
    refused = [error for reply in scene.replies if isinstance(error := error_of(reply), Overloaded)]
    scene.expect(len(refused) >= 180, f"{len(refused)} were refused")
    scene.expect(all(error.retry_after_s > 0 for error in refused), "no word of when to try again")
    await scene.until_all_ended()
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
    scene.expect(not (one.holding or two.holding) and scene.worker.has_open_items, "work went where no instance is")
    scene.engine.instances = [two, one]
    scene.host.rescale(scene.engine)  # type: ignore[arg-type]
    await scene.until_all_ended()
    scene.expect(all(isinstance(reply.outcome, Done) for reply in scene.replies), "something failed")
    return scene.problems


async def tenants_share_nothing() -> list[str]:
    scene = Scene()
    for tenant in ("a", "b"):
        scene.ask("ok:1", tenant=tenant)
    await scene.until_all_ended()
    values = [reply.outcome.value["tenant"] for reply in scene.replies]
    scene.expect(values == ["a", "b"], f"{values}")
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
    scene.expect(scene.worker.counts.joined == 2, "they were not joined")
    return scene.problems


SCENES = (
    deep_ones_first,
    texts_that_hold_each_other_up_come_one_by_one,
    texts_that_are_handed_on_come_in_waves,
    one_call_for_a_batch,
    one_call_at_a_time,
    old_ones_first,
    aged_ones_are_batched,
    tenants_have_equal_shares,
    a_polite_tenant_keeps_its_service,
    queues_are_bounded,
    instances_come_and_go,
    tenants_share_nothing,
    each_reader_has_what_was_found,
)
