"""Whole lives of engines and their clients, drawn from a seed and run in virtual time.

    problems = simulate(seed)        # the same each time; [] if the contract of the runtime held

A world has an embedder, a store, and an LLM, each with some instances that do what they should not
(faulty_engines.py), and clients of several tenants that ask in bursts, with and without deadlines, for what others ask
for too, and cancel at any moment. What each reply has to come to is written down in `Client.judge`: a value that is
not the payload's own is wrong, and so is an error that nothing in this world accounts for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.engines import WRITES, Capabilities, Delta, Done, Failed, Outcome, Urgency
from teola_plugin.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineClosed,
    EngineCrashed,
    EngineError,
    Overloaded,
    Poisoned,
)
from teola_plugin.runtime.debts import Counts
from teola_plugin.runtime.engine_scheduler import Limits
from teola_plugin.runtime.lane import Lane, Rules
from teola_plugin.runtime.local import LocalHost, Query
from teola_plugin.runtime.retries import ALONE_AFTER
from teola_plugin.runtime.shares import OVERFULL
from teola_plugin.runtime.virtual_time import Stuck, VirtualLoop
from teola_plugin.seams import Reply
from teola_plugin.tenancy import Terms
from tests.faulty_engines import (
    BatchError,
    Faults,
    GoneError,
    Hiccup,
    Instance,
    ItemError,
    Record,
    Restartable,
    Several,
    nature_of,
    text_of,
    value_of,
)

PATIENCE_S = 5000.0
"""After this a reply without an end is taken to have none."""

MOST_STEPS = 1_000_000

STALL_S = 8.0
AGING_S = 5.0
UNFAIR = 10
"""So many times its fair share of time nobody may wait."""

GREEDY = {"temperature": 0}
SAMPLED = {"temperature": 0.7}


class Ending(Exception):
    """A listener that fails."""


class Watched(Reply):
    """A reply that remembers how it was told."""

    __slots__ = ("_loop", "by_itself", "ended_s", "puts", "text")

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self.puts = 0
        self.by_itself = False
        self.text = ""
        self.ended_s = math.inf

    def put(self, outcome: Outcome) -> None:
        if self.outcome is None:
            if isinstance(outcome, Delta):
                self.text += outcome.text
            else:
                self.ended_s = self._loop.time()
        if not isinstance(outcome, Delta):
            self.puts += 1
        super().put(outcome)

    def cancel_unless_ended(self) -> None:
        if self.outcome is None:
            self.by_itself = True
            self.puts -= 1
        super().cancel_unless_ended()


@dataclass(eq=False)
class Asked:
    """One item of a client."""

    op: str
    payload: str
    tenant: str
    settings: dict[str, Any]
    deadline_s: float
    asked_s: float
    ahead: int
    reply: Watched

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        with contextlib.suppress(Ending):
            self.reply.cancel_unless_ended()


@dataclass(eq=False)
class Served:
    """An engine of the world, with all that was asked of it."""

    engine: Several
    record: Record
    limits: Limits
    asked: list[Asked] = field(default_factory=list)
    lane: Lane | None = None
    spare: Callable[[], Instance] | None = None


class World:
    """See the module. `is_calm`: nothing goes wrong, and time is shared fairly."""

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
            return kind(f"{name}{rng.randint(0, 9)}", capabilities, self._faults(), record, seed)

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

    async def run(self) -> None:
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
            if all(served.lane is None or not served.lane._tasks for served in self.all) and self.loop.time() > 50:
                break
            await asyncio.sleep(1)
        for plan in self.plans:
            plan.cancel()
        self.judge()
        await self.host.aclose()
        await asyncio.sleep(10)  # late replies
        self._judge_rest()

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
            urgency=Urgency(rng.randint(0, 5), rng.uniform(0, 100)),
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
        served.lane = served.lane or self.host._lanes.get(served.engine)

    def look(self, served: Served) -> None:
        """The queue stays within its bounds."""
        self._find_lane(served)
        most = served.limits.max_queued_items
        if most is None or served.lane is None:
            return
        ledger = served.lane._ledger  # what crashed, or failed for somebody else, is queued again whatever waits
        fresh = Counter(debt.item.tenant for debt in ledger.owed.values() if not debt.attempt)
        if fresh.total() - ledger.counts.joined > OVERFULL * most:
            self.complain(f"{fresh.total()} items wait, and {OVERFULL * most} may")
        if max(fresh.values(), default=0) - ledger.counts.joined > most:
            self.complain(f"{fresh} items wait, and {most} may of one tenant")

    def audit(self) -> None:
        """The watchdog has nothing to find."""
        for served in self.all:
            self._find_lane(served)
            if served.lane:
                served.lane.audit()

    # --- what is judged in the end -----------------------------------------------------------------------------------

    def judge(self) -> None:
        """Each reply, each engine."""
        for served in self.all:
            nonces: Counter[str] = Counter()
            for asked in served.asked:
                if problem := self.problem_of(served, asked):
                    self.complain(f"{served.engine.name} {asked.op} {asked.payload!r} of {asked.tenant}: {problem}")
                if asked.op == "decoding" and asked.settings is SAMPLED and isinstance(asked.reply.outcome, Done):
                    nonces[str(asked.reply.outcome.value)] += 1
            for text, times in nonces.items():
                if times > 1:
                    self.complain(f"{times} replies share the sampled text {text!r}")
            for written, times in served.record.writes.items():
                if times > 1:
                    self.complain(f"{written} was written {times} times")
            for item, times in served.record.crashes.items():
                if times > ALONE_AFTER + 1:
                    self.complain(f"item {item} was in {times} crashes")
            if served.lane:
                self._judge_lane(served.engine.name, served.lane)

    def _judge_lane(self, name: str, lane: Lane) -> None:
        counts: Counts = lane.counts
        if counts.open or counts.lost:
            self.complain(f"{name}: counts do not add up: {counts}")
        if not lane.is_clear:
            scheduler, ledger = lane.scheduler, vars(lane._ledger)
            self.complain(f"{name}: left: {scheduler.queued_items=} {scheduler.running_items=} {ledger}")
        if lane.held is not None or lane.owes:
            self.complain(f"{name}: the engine is still held")
        if lane._tasks and not self.never_recovers:
            self.complain(f"{name}: tasks go on: {lane._tasks}")

    def _judge_rest(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            self.complain(f"tasks are left: {left}")
        timers = [handle for handle in self.loop._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        if timers:
            self.complain(f"timers are left: {timers}")

    def problem_of(self, served: Served, asked: Asked) -> str:
        """What is wrong with how it ended, or nothing."""
        reply = asked.reply
        if reply.outcome is None:
            return "never ended"
        if reply.puts > 1:
            return f"was told {reply.puts} ends"
        if reply.ended_s > max(asked.deadline_s, asked.asked_s) + 1e-6:
            return f"ended at {reply.ended_s}, though it had until {asked.deadline_s}"
        if reply.text and not self._is_prefix(asked):
            return f"streamed {reply.text!r}"
        if isinstance(reply.outcome, Done):
            return self._wrong_value(asked, reply.outcome.value) or (
                self._unfair(served, asked) if self.is_calm else ""
            )
        error = reply.outcome.error
        return "" if self._is_accounted_for(served, asked, error) else f"failed with {error!r} for no reason"

    def _is_prefix(self, asked: Asked) -> bool:
        whole = text_of(asked.payload, GREEDY, 0)
        text = asked.reply.text
        return whole.startswith(text[: len(whole)]) and (asked.settings is SAMPLED or len(text) <= len(whole))

    def _wrong_value(self, asked: Asked, value: Any) -> str:
        if asked.op == "decoding":
            whole = text_of(asked.payload, GREEDY, 0)
            right = value == whole if asked.settings is GREEDY else str(value).startswith(whole)
            if right and asked.reply.text and asked.reply.text != value:
                return f"told {asked.reply.text!r}, and then {value!r}"
        else:
            expected = value_of(asked.op, asked.payload, asked.tenant)
            right = value == expected or (isinstance(value, dict) and replace_notes(value) == expected)
            if asked.op == "searching" and isinstance(value, dict) and len(value["notes"]) > 1:
                return "shares its value with another"
        return "" if right else f"came to {value!r}"

    def _is_accounted_for(self, served: Served, asked: Asked, error: BaseException) -> bool:
        """Something in this world explains the error."""
        key = (asked.op, asked.payload, asked.tenant)
        is_final = asked.op in WRITES or (asked.settings is SAMPLED and bool(asked.reply.text))
        nature = nature_of(asked.payload)
        match error:
            case DeadlineExceeded():
                return asked.reply.ended_s >= asked.deadline_s - 1e-6
            case Cancelled():
                return asked.reply.by_itself
            case Overloaded():
                return served.limits.max_queued_items is not None and 0 < error.retry_after_s < 1e6
            case EngineClosed():
                return asked.reply.ended_s >= self.is_closed_s
            case Poisoned():
                return nature == "crasher"
            case EngineCrashed():
                return is_final
            case ItemError():
                return nature == "fails" and error.args == (asked.payload,)
            case BatchError():
                return is_final or (nature == "poison" and error.args == (asked.payload,))
            case Hiccup():
                return is_final
            case GoneError():
                return served.record.is_gone
            case EngineError():
                return served.record.lost[key] >= (1 if is_final else 2)
        return False

    def _unfair(self, served: Served, asked: Asked) -> str:
        """It waited for much longer than its share of the engine would have needed for its tenant's items."""
        if not self.is_calm:
            return ""
        began_s = served.record.began_s.get((asked.payload, asked.tenant), math.inf)
        item_s = 0.15 if served is not self.llm else 2.0
        fair_s = (asked.ahead + 1) * len(self.tenants) * item_s
        waited_s = began_s - asked.asked_s
        limit_s = UNFAIR * fair_s + AGING_S
        return f"waited {waited_s:.1f} s, of which {limit_s:.1f} were fair" if waited_s > limit_s else ""


def replace_notes(value: dict[str, Any]) -> dict[str, Any]:
    """As it was before its reader wrote in it."""
    return {**value, "notes": []}


def simulate(seed: int) -> list[str]:
    """Run the world of this seed. What was wrong in it."""
    problems: list[str] = []

    async def main() -> None:
        world = World(seed)
        problems.append("did not come to its end")
        await world.run()
        problems[:] = world.problems

    return [*in_virtual_time(main), *problems]


class _Bounded(VirtualLoop):
    """A loop in which nothing goes on for ever without end, as a fault might."""

    steps = 0

    def time(self) -> float:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Stuck("it goes on for ever")
        return super().time()


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, None]]) -> list[str]:
    """Run it. What the event loop had to complain of."""
    logging.getLogger("teola_plugin.runtime").setLevel(logging.CRITICAL)
    problems: list[str] = []
    try:
        with asyncio.Runner(loop_factory=_Bounded) as runner:
            runner.get_loop().set_exception_handler(lambda loop, told: problems.append(f"loop: {told}"))
            runner.run(main())
    except Exception as e:  # a problem, whatever it is
        problems.append(f"{type(e).__name__}: {e}")
    return problems
