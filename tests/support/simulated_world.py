"""A world drawn from a seed: its engines, its clients and what these do, and what is watched meanwhile.

It has an embedder, a store, and an LLM, each with some instances that do what they should not (faulty_engines.py).
Clients of several tenants ask in bursts, with and without deadlines, for what others ask for too, and cancel at any
moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.engines import WRITES, Capabilities, Done, Failed, Outcome, Taker, Urgency
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.runtime.hosts.local import LocalHost, Query
from teola_plugin.runtime.scheduler.batching import Limits
from teola_plugin.runtime.scheduler.fairness import OVERFULL
from teola_plugin.runtime.scheduler.worker import EngineWorker, Rules
from teola_plugin.tenancy import Terms
from tests.support.faulty_engines import Faults, Instance, Record, Restartable, Several
from tests.support.simulated_requests import GREEDY, SAMPLED, Asked, Ending, Watched

PATIENCE_S = 5000.0
"""After this a reply without an end is taken to have none."""

LLM_PROFILE = LlmProfile(Profile.affine(0.3), Profile.affine(0.1))
"""With this, prompts of several queries wait for each other at an LLM (runtime/scheduler/prefill_admission.py)."""

TAKERS = (None, Taker(0.5, 2.0))
"""With the latter, texts of a query that has the LLM to itself come in waves
(runtime/scheduler/staggered_prefills.py)."""

STALL_S = 8.0
AGING_S = 5.0


@dataclass(eq=False)
class Served:
    """An engine of the world, with all that was asked of it."""

    engine: Several
    record: Record
    limits: Limits
    asked: list[Asked] = field(default_factory=list)
    worker: EngineWorker | None = None
    spare: Callable[[], Instance] | None = None


class World:
    """See the module. `is_calm`: nothing goes wrong, and time is shared fairly. `problems`: what was wrong so far."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.problems: list[str] = []
        self.is_calm = self.rng.random() < 0.2
        self.is_closed_s = math.inf
        self.loop = asyncio.get_running_loop()
        self.tenants = [f"t{n}" for n in range(self.rng.choice((1, 2, 2, 3)))]
        self.never_recovers = not self.is_calm and self.rng.random() < 0.05
        limit = self.rng.choice((None, None, 3, 10))
        limits = Limits(None if self.is_calm else limit, AGING_S)
        policy = self.rng.choice(("po", "to", "topology", "critical_path"))
        self.host = LocalHost(policy, Rules(limits, STALL_S), loop=self.loop)  # type: ignore[arg-type]
        few = self.rng.choice((2, 4, 8))
        self.llm_profile = LLM_PROFILE if seed % 2 else None
        self.embedder = self._served("embedder", Capabilities(max_items=few), 3, limits)
        self.store = self._served("store", Capabilities(max_items=few, abort=True), 1, limits)
        self.llm = self._served(
            "llm",
            Capabilities(few, self.rng.choice((None, 40, 150, 300)), concurrent=True, prefix=True, abort=True),
            3,
            limits,
        )
        self.all = (self.embedder, self.store, self.llm)
        self.numbers = iter(range(10**9))
        self.plans: list[asyncio.TimerHandle] = []

    def _served(self, name: str, capabilities: Capabilities, most: int, limits: Limits) -> Served:
        rng = self.rng
        record = Record(self.complain)

        def new() -> Instance:
            kind = rng.choice((Instance, Restartable))
            seed = random.Random(rng.random())
            made = kind(f"{name}{rng.randint(0, 9)}", capabilities, self._faults(), record, seed)
            made.profile = self.llm_profile
            return made

        served = Served(Several([new() for _ in range(rng.randint(1, most))]), record, limits, spare=new)
        record.is_awaited = lambda op, payload, tenant: any(
            asked.reply.ended_s >= self.loop.time() and (asked.op, asked.payload, asked.tenant) == (op, payload, tenant)
            for asked in served.asked
        )
        record.look = lambda: self.look(served)
        return served

    def _faults(self) -> Faults:
        if self.is_calm:
            return Faults()
        rates = [self.rng.choice((0.0, 0.0, 0.03, 0.15)) for _ in range(8)]
        return Faults(*rates, bad_recoveries=self.rng.random() < 0.05, never_recovers=self.never_recovers)

    def complain(self, what: str) -> None:
        self.problems.append(f"{self.loop.time():.3f} s: {what}")

    # --- what happens ------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Until the last client has heard of the end of all that it asked for, and engines are at rest."""
        clients = [asyncio.ensure_future(self._client()) for _ in range(self.rng.randint(2, 6))]
        if not self.is_calm and self.rng.random() < 0.1:
            clients.append(asyncio.ensure_future(self._close()))
        if self.rng.random() < 0.3:
            clients.append(asyncio.ensure_future(self._scale()))
        await asyncio.gather(*clients)
        until_s = self.loop.time() + PATIENCE_S
        while self.loop.time() < until_s and any(a.reply.outcome is None for served in self.all for a in served.asked):
            await asyncio.sleep(1)
            self.audit()
        for _ in range(100):  # what hangs has to be noticed first
            if all(served.worker is None or not served.worker._tasks for served in self.all) and self.loop.time() > 50:
                break
            await asyncio.sleep(1)
        for plan in self.plans:
            plan.cancel()

    async def _client(self) -> None:
        rng = self.rng
        tenant = rng.choice(self.tenants)
        for owner in range(rng.randint(1, 6)):
            await asyncio.sleep(rng.choice((0.0, 0.1, rng.expovariate(0.5))))
            for _ in range(rng.choice((1, 1, 2, 5))):
                self.ask(tenant, owner)

    def ask(self, tenant: str, owner: int) -> None:
        """One request, and what the client does with it."""
        rng = self.rng
        served = rng.choice(self.all)
        if served is self.embedder:
            op, settings = "embedding", rng.choice(({}, {"prompt": "query"}))
        elif served is self.store:
            op, settings = rng.choice(("searching", "ingestion", "searching")), {}
        else:
            op = rng.choice(("decoding", "decoding", "partial_prefilling"))
            settings = rng.choice((GREEDY, SAMPLED)) if op == "decoding" else {}
        deadline_s = math.inf
        if self.never_recovers or (not self.is_calm and rng.random() < 0.3):
            deadline_s = self.loop.time() + rng.choice((-1.0, 0.0, 0.3, 2.0, 20.0)) * rng.random()
        asked = self.submit(served, op, tenant, settings, deadline_s, owner)
        for one in asked if not self.is_calm else ():
            self._maybe_cancel(one)
            self._maybe_listen(one, tenant, owner)

    def submit(
        self, served: Served, op: str, tenant: str, settings: dict[str, Any], deadline_s: float, owner: int
    ) -> list[Asked]:
        rng = self.rng
        size = rng.choice((0, 1, 1, 1, 2, 3, 7))
        now_s = self.loop.time()
        ahead = sum(other.reply.outcome is None and other.tenant == tenant for other in served.asked)
        asked = [
            Asked(op, self._payload(op), tenant, settings, deadline_s, now_s, ahead + size, Watched())
            for _ in range(size)
        ]
        served.asked += asked
        self.host.submit(
            served.engine, op, [one.payload for one in asked], settings, [one.reply for one in asked],  # type: ignore[arg-type]
            query=Query(owner, Terms(tenant, deadline_s), now_s),
            urgency=Urgency(rng.randint(0, 5), rng.uniform(0, 100), taker=TAKERS[owner % 2]),
        )  # fmt: skip
        self.loop.call_soon(self.look, served)
        return asked

    def _payload(self, op: str) -> str:
        """Some are asked for more than once, but what is written is not."""
        kinds = ("ok",) if self.is_calm else ("ok",) * 16 + ("none", "fails", "poison", "crasher")
        nature = self.rng.choice(kinds)
        often = op not in WRITES and self.rng.random() < 0.5
        return f"{nature}:{self.rng.randint(0, 3) if often else next(self.numbers) + 10}"

    def _maybe_cancel(self, one: Asked) -> None:
        rng = self.rng
        match rng.choice((0, 0, 0, 0, 0, 0, 1, 2, 3, 4)):
            case 1:
                one.cancel()
            case 2:
                self.plans.append(self.loop.call_later(rng.expovariate(2), one.cancel))
            case 3:
                self.plans.append(self.loop.call_later(rng.expovariate(0.1), one.cancel))
            case 4:  # while it is told a piece of the text
                one.reply.listen(lambda outcome: one.cancel())

    def _maybe_listen(self, one: Asked, tenant: str, owner: int) -> None:
        """Clients that act while they are being told."""

        def act(outcome: Outcome) -> None:
            if isinstance(outcome, Done) and isinstance(outcome.value, dict):
                outcome.value["notes"].append("seen")
            if what == 1 and isinstance(outcome, Done | Failed):
                self.ask(tenant, owner)
            if what == 2:
                raise Ending

        what = self.rng.choice((0, 0, 0, 0, 0, 1, 2))
        if (self.loop.time() < 60 and what != 1) or self.rng.random() < 0.3:
            with contextlib.suppress(Ending):
                one.reply.listen(act)

    async def _close(self) -> None:
        await asyncio.sleep(self.rng.uniform(0, 5))
        self.is_closed_s = self.loop.time()
        for served in self.all:
            self._find_lane(served)
        await self.host.aclose()

    async def _scale(self) -> None:
        for _ in range(3):
            await asyncio.sleep(self.rng.uniform(0, 3))
            served = self.rng.choice((self.embedder, self.llm))
            if len(served.engine.instances) > 1 and self.rng.random() < 0.5:
                served.engine.instances = served.engine.instances[:-1]
            elif served.spare:
                served.engine.instances = [*served.engine.instances, served.spare()]
            self.host.rescale(served.engine)  # type: ignore[arg-type]

    # --- what is watched meanwhile -----------------------------------------------------------------------------------

    def _find_lane(self, served: Served) -> None:
        served.worker = served.worker or self.host._workers.get(served.engine)

    def look(self, served: Served) -> None:
        """The queue stays within its bounds."""
        self._find_lane(served)
        most = served.limits.max_queued_items
        if most is None or served.worker is None:
            return
        table = served.worker._table  # what crashed, or failed for somebody else, is queued again whatever waits
        fresh = Counter(work.item.tenant for work in table.open() if not work.attempts)
        if fresh.total() - table.counts.joined > OVERFULL * most:
            self.complain(f"{fresh.total()} items wait, and {OVERFULL * most} may")
        if max(fresh.values(), default=0) - table.counts.joined > most:
            self.complain(f"{fresh} items wait, and {most} may of one tenant")

    def audit(self) -> None:
        """The watchdog has nothing to find."""
        for served in self.all:
            self._find_lane(served)
            if served.worker:
                served.worker.audit()
