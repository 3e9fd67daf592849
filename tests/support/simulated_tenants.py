"""Tenants that contend for one engine without faults, drawn from a seed: each gets its share, and in time.

    problems = contend(seed)        # [] if every tenant had its share, and every deadline was kept

Some tenants ask for far more than the engine can serve, all at once. One asks for little, again and again. Items are
asked for twice, with different deadlines, and the engine keeps the deadline that it is told, as one behind a service.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter

from teola_plugin.engines import Batch, Capabilities, Done, Emit, Failed
from teola_plugin.errors import DeadlineExceeded
from teola_plugin.runtime.scheduler.batching import Limits
from teola_plugin.runtime.scheduler.worker import Rules
from tests.support.faulty_engines import Instance
from tests.support.scene import Scene, error_of
from tests.support.simulated_requests import Watched
from tests.support.simulation import in_virtual_time

MODEST = "modest"
BATCH_S = 0.15
"""What a batch of this engine takes at most."""

ROUNDS = 3
"""So many batches of others the modest tenant may have to wait for, and so many batches ahead another may be."""

EXACT_S = 1e-6


class Punctual(Instance):
    """It fails what comes out after the deadline that it was told."""

    async def _said(self, batch: Batch, at: int, emit: Emit) -> Done | Failed:
        said = await super()._said(batch, at, emit)
        if asyncio.get_running_loop().time() >= batch.items[at].deadline_s:
            return Failed(DeadlineExceeded("the engine kept the deadline"))
        return said


class Contest:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.slots = rng.choice((1, 2, 4, 8))
        self.instances = rng.choice((1, 1, 2))
        self.scene = Scene(
            Capabilities(max_items=self.slots, concurrent=rng.random() < 0.5, abort=True),
            policy=rng.choice(("po", "to", "topology", "critical_path")), kind=Punctual, instances=self.instances,
            rules=Rules(Limits(aging_s=rng.choice((0.3, 5.0, 30.0)))),
        )  # fmt: skip
        self.greedy = [f"greedy{n}" for n in range(rng.choice((1, 2, 3)))]
        self.asked: list[tuple[str, float, Watched]] = []
        self.wanted: Counter[str] = Counter()

    async def live(self) -> list[str]:
        """Until everything has ended. What was wrong."""
        rounds = self.rng.randint(6, 12) * self.slots * self.instances
        for _ in range(rounds):
            for tenant in self.greedy:
                self._ask(tenant, self.rng.randint(1, 3))
        modest = asyncio.ensure_future(self._ask_modestly())
        await self.scene.until_all_ended()
        modest.cancel()
        await self.scene.until_all_ended()
        self._judge_shares()
        self._judge_deadlines()
        await self.scene.host.aclose()
        return self.scene.problems

    def _ask(self, tenant: str, size: int) -> None:
        rng = self.rng
        payloads = [f"ok:{tenant}-{self.wanted[tenant] + n}" for n in range(size)]
        self.wanted[tenant] += size
        owner, urgency = rng.randint(1, 9), {"depth": rng.randint(0, 5), "remaining_s": rng.uniform(0, 50)}
        readers = [math.inf]
        if rng.random() < 0.2:  # the same is asked for by somebody else
            readers = rng.sample([math.inf, rng.uniform(0.1, 3.0)], 2)
        for left_s in readers:
            by_s = self.scene.loop.time() + left_s
            replies = self.scene.ask(*payloads, tenant=tenant, owner=owner, deadline_s=by_s, **urgency)  # type: ignore[arg-type]
            self.asked += [(payload, by_s, reply) for payload, reply in zip(payloads, replies, strict=True)]

    async def _ask_modestly(self) -> None:
        """Each time one item, which nobody else may hold up for long; it is given no more time than that."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.5, 1.5) * (len(self.greedy) + 1) * BATCH_S)
            left_s = (ROUNDS + 1) * (len(self.greedy) + 1) * BATCH_S
            payload, by_s = f"ok:{MODEST}-{self.wanted[MODEST]}", self.scene.loop.time() + left_s
            self.wanted[MODEST] += 1
            (reply,) = self.scene.ask(payload, tenant=MODEST, deadline_s=by_s, owner=100)
            self.asked.append((payload, by_s, reply))

    def _judge_shares(self) -> None:
        """While all that are greedy still wait, none is served much more than another."""
        served: Counter[str] = Counter()
        most = (ROUNDS * self.instances + 1) * self.slots
        for batch in self.scene.record.batches:
            served.update(payload.removeprefix("ok:").partition("-")[0] for payload in batch)
            if any(served[tenant] + self.slots >= self.wanted[tenant] for tenant in self.greedy):
                return
            counts = [served[tenant] for tenant in self.greedy]
            if max(counts) - min(counts) > most:
                self.scene.problems.append(f"one tenant was served much more than another: {served}")
                return

    def _judge_deadlines(self) -> None:
        began_s = {payload: at_s for (payload, _), at_s in self.scene.record.began_s.items()}
        last_s: dict[str, float] = {}
        for payload, by_s, reply in self.asked:
            last_s[payload] = max(by_s, last_s.get(payload, 0.0))
            is_late = isinstance(error_of(reply), DeadlineExceeded)
            if not is_late and not isinstance(reply.outcome, Done):
                self.scene.problems.append(f"{payload}: {reply.outcome}")
            if is_late and (MODEST in payload or abs(reply.ended_s - by_s) > EXACT_S):
                self.scene.problems.append(
                    f"{payload} was told at {reply.ended_s} that it is late, and had until {by_s}"
                )
            if reply.ended_s > by_s + EXACT_S:
                self.scene.problems.append(f"{payload} ended at {reply.ended_s}, and had until {by_s}")
        for payload, at_s in began_s.items():
            if at_s > last_s[payload] + EXACT_S:
                self.scene.problems.append(f"{payload} was begun at {at_s}, when nobody waited any more")


def contend(seed: int) -> list[str]:
    """Run the contest of this seed in virtual time. What was wrong in it."""
    problems: list[str] = []

    async def main() -> None:
        problems.append("did not come to its end")
        problems[:] = await Contest(seed).live()

    return [*in_virtual_time(main), *problems]
