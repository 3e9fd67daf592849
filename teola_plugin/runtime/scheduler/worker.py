"""A lane: one engine, its scheduler and what it owes. All that happens to an item after it was taken in.

    submit --> queue --next_batch--> attempt on an instance --outcome--> readers
                 ^                        |
                 '---- once more ---------'     crashed, lost, or failed in company

Everything here runs on one event loop, so there are no locks, and each item ends exactly once (work_table.py):

- **Joined.** The same embedding, rerank, search or greedy text asked for by two queries of one tenant at the same time
  is one item (not for services that we do not run ourselves, nor for sampled texts).
- **A batch fails** (the engine raises): its open items are halved until those that fail are alone with their error.
- **An instance crashes** (EngineCrashed): it takes no work until it has `recovered` (recovery.py); what it had is tried
  again, before what came later. Who was there at `ALONE_AFTER` crashes runs alone next time; if that crashes too, it is
  Poisoned (retries.py). What has effects is never tried again, nor a sampled text that was told in part.
- **An outcome of no item**, or what is no outcome: nothing more of that batch is heard, and what is open of it is
  halved as if the batch had failed. An item that is alone cannot get the value of another one.
- **No answer** to an item although its batch is over: tried again once.
- **No word** of a batch for `stall_s`: the instance is ended, which is a crash.
- **Deadline.** Whatever state an item is in, it ends with DeadlineExceeded, and its engine is told to stop it.
- **Cancelled** likewise. An item that others wait for too goes on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from teola_plugin.engines import Batch, Capabilities, Delta, Emit, Engine, Failed, Item, Outcome, is_repeatable
from teola_plugin.errors import Cancelled, EngineClosed, EngineCrashed, Overloaded
from teola_plugin.events import BatchRan
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.runtime.hosts.tasks import spawn
from teola_plugin.runtime.scheduler.attempt import Attempt
from teola_plugin.runtime.scheduler.batching import EngineScheduler, Limits
from teola_plugin.runtime.scheduler.outcomes import as_promised, index_of, protocol_error
from teola_plugin.runtime.scheduler.policies import Policy
from teola_plugin.runtime.scheduler.recovery import Recovery
from teola_plugin.runtime.scheduler.request import Request
from teola_plugin.runtime.scheduler.retries import Retries, caused
from teola_plugin.runtime.scheduler.work_item import Counts, Reader
from teola_plugin.runtime.scheduler.work_table import Ledger
from teola_plugin.runtime.session.speculation import crowded_out
from teola_plugin.seams import Reply
from teola_plugin.value_keys import value_key

log = logging.getLogger(__name__)

Sink = Callable[[BatchRan], None]

FOLLOWING_TURNS = 3
"""Turns of the loop from the end of an item until what its query asks next is here: the reply, the graph scheduler, the
queue. Only then are the slots given away: a query that goes on comes before one that begins."""

FOLLOWING_S = 0.0001
"""How long such turns take if there is little else to do. With nothing in the queue they are left out, unless something
comes within that time: they were 5 % of what the runtime costs."""


@dataclass(frozen=True, slots=True)
class Rules:
    """`limits` of the queue. `stall_s`: how long a batch may go without a word, None for any time."""

    limits: Limits = field(default_factory=Limits)
    stall_s: float | None = None


class Lane:
    """See the module. It keeps the engine alive only while it owes something, so that an engine goes with its model."""

    def __init__(self, engine: Engine, policy: Policy, rules: Rules, sinks: Mapping[Hashable, Sink]) -> None:
        self.name = engine.name
        self.held: Engine | None = None
        self.scheduler = EngineScheduler(
            policy, _handing_on(engine.capabilities), instances=len(_instances(engine)), limits=rules.limits,
            knee_items=_knee_items(engine), llm=_llm_profile(engine),
        )  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._time_s = self._loop.time  # on Linux and macOS the clock of `time.perf_counter` too
        self._ledger = Ledger(self.name, self.scheduler, self._loop, self.pump)
        self._retries = Retries(self.name, self.scheduler, self._ledger, self._time_s)
        self._recovery = Recovery(
            self.name, self.scheduler, self.counts, rules.stall_s, spawn=self._spawn, back=self.pump, gone=self._gone
        )
        self._told_of = engine.capabilities
        self._capabilities = _handing_on(engine.capabilities)
        self._sinks = sinks
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._will_pump = False
        self._freed_s = -math.inf
        self._again_s = math.inf

    @property
    def counts(self) -> Counts:
        """What became of all items so far."""
        return self._ledger.counts

    # --- in ----------------------------------------------------------------------------------------------------------

    def submit(self, engine: Engine, request: Request, replies: Sequence[Reply]) -> None:
        """Take a request in, or let its replies hear why not."""
        if self._is_closed:
            raise EngineClosed(f"engine {self.name!r} was shut down")
        readers = [
            Reader(_sized(engine, request, item), request, reply, self._key(engine, request, item))
            for item, reply in zip(request.items, replies, strict=True)
            if reply.outcome is None
        ]
        readers = [r for r in readers if not (self._ledger.refuse_late(r) or self._ledger.join(r))]
        if self._capabilities.pads and len(readers) > self._capabilities.max_items:
            readers.sort(key=lambda reader: -_length(reader.item.payload))  # the long ones share batches
        request.items = [reader.item for reader in readers]
        try:
            if request.gives_way and not self.begins_at_once(len(readers)) and request.gives_way():
                raise crowded_out()
            self.scheduler.submit(request, self._time_s())
        except Overloaded as e:
            self.counts.refused += len(readers)
            for reader in readers:
                reader.hear(Failed(e))
            return
        for reader in readers:
            self.held = engine
            self._ledger.owe(reader)

    def _key(self, engine: Engine, request: Request, item: Item) -> Hashable:
        """What makes two items the same, None for what is like no other."""
        op = request.op
        is_elsewhere = self._capabilities.remote or self._capabilities.is_scheduled
        if is_elsewhere or op == "partial_prefilling" or not is_repeatable(op, request.settings):
            return None
        stamp = getattr(engine, "stamp", None)
        whose = item.owner if getattr(engine, "is_per_query", False) else None
        return (item.tenant, request.group, value_key(item.payload), stamp() if stamp else None, whose)

    def rule(self, rules: Rules) -> None:
        """These rules from now on."""
        self.scheduler.limits = rules.limits
        self._recovery.rule(rules.stall_s)

    @property
    def is_saturated(self) -> bool:
        """It has so much to do that rewrites which cost compute should rest."""
        return self.scheduler.is_saturated

    def begins_at_once(self, count: int) -> bool:
        """So many items would not have to wait."""
        return self.scheduler.begins_at_once(count)

    @property
    def owes(self) -> bool:
        """Somebody waits for an item."""
        return bool(self._ledger.owed)

    @property
    def is_clear(self) -> bool:
        """Nothing waits, runs or is remembered of any item."""
        return self._ledger.is_clear and not (self.scheduler.queued_items or self.scheduler.running_items)

    # --- work --------------------------------------------------------------------------------------------------------

    def pump_soon(self) -> None:
        """Start what can be started in a turn of the loop, or a few, with all that has come in by then, as batches."""
        is_followed = self._time_s() - self._freed_s < FOLLOWING_S
        self._pump_in(FOLLOWING_TURNS if is_followed else 1)

    def _came_free(self) -> None:
        if self.scheduler.queued_items:
            self._pump_in(FOLLOWING_TURNS)
            return
        self._freed_s = self._time_s()
        if not self._ledger.owed:
            self.held = None

    def _pump_in(self, turns: int) -> None:
        if not self._will_pump:
            self._will_pump = True
            self._pump_after(turns)

    def _pump_after(self, turns: int) -> None:
        if turns:
            self._loop.call_soon(self._pump_after, turns - 1)
        else:
            self.pump()

    def pump(self) -> None:
        """Start what can be started."""
        self._will_pump = False
        if not self._ledger.owed:
            self.held = None
        if self.held is None or self._is_closed:
            return
        instances = _instances(self.held)
        if len(instances) != self.scheduler.instances.count:
            self.scheduler.resize(len(instances))
        if self.held.capabilities is not self._told_of:
            self._learn(self.held.capabilities)
        while batch := self.scheduler.next_batch(self._time_s()):
            self._start(instances[batch.instance], batch)
        if self.scheduler.waits_until_s < self._again_s:
            self._again_s = self.scheduler.waits_until_s
            self._loop.call_at(self._again_s, self._pump_again)

    def _pump_again(self) -> None:
        """What waits for others to end has waited for long enough."""
        self._again_s = math.inf
        self.pump()

    def _learn(self, capabilities: Capabilities) -> None:
        """Some are known only once the engine runs, such as how much KV cache it has."""
        self._told_of = capabilities
        self._capabilities = _handing_on(capabilities)
        self.scheduler.learn(self._capabilities)

    def _start(self, instance: Engine, batch: Batch) -> None:
        numbers = {item.id: self._ledger.owed[item.id].begin(instance) for item in batch.items}
        self.counts.repeated += sum(number > 1 for number in numbers.values())
        self.counts.batches += 1
        self.counts.mixed += any(item.owner != batch.items[0].owner for item in batch.items)
        attempt = Attempt(instance, batch, numbers, self._time_s(), self._time_s())
        self.scheduler.instances.begin_call(attempt.at)
        attempt.task = self._spawn(self._run(attempt))
        self._recovery.watch(attempt)

    async def _run(self, attempt: Attempt) -> None:
        error: BaseException | None = None
        try:
            await attempt.engine.run(attempt.batch, self._emit(attempt))
        except asyncio.CancelledError as e:
            error = _why_cancelled(self.name, attempt, e)
        except BaseException as e:  # whatever an engine raises belongs to its items; an exit would end the loop thread
            error = e
        error = error or attempt.broke_protocol
        ended_s = self._time_s()
        attempt.end()
        self.scheduler.instances.end_call(attempt.at)
        if isinstance(error, EngineCrashed) and not self._is_closed:
            self._recovery.crashed(attempt)
        self._retries.settle(attempt, error)
        ids = tuple(attempt.numbers)
        ran = BatchRan(self.name, attempt.batch.op, len(ids), attempt.started_s, ended_s, ids)
        try:
            for owner in attempt.owners:
                if sink := self._sinks.get(owner):
                    sink(ran)
        finally:
            self._came_free()

    def _emit(self, attempt: Attempt) -> Emit:
        def emit(position: int, outcome: Outcome) -> None:
            attempt.heard_s = self._time_s()
            at = index_of(attempt.batch, position, outcome)
            if at is None or attempt.broke_protocol:
                self._distrust(attempt, position, outcome)
                return
            item = attempt.batch.items[at]
            item_id, outcome = item.id, as_promised(self.name, attempt.batch.op, item, outcome)
            if debt := self._ledger.current(item_id, attempt.numbers[item_id]):
                attempt.owners |= debt.owners
                if isinstance(outcome, Failed) and isinstance(outcome.error, EngineCrashed):
                    self._retries.again([debt], outcome.error)
                else:
                    self._ledger.tell(debt, outcome)
            elif not isinstance(outcome, Delta):
                self.counts.late += 1
                self._ledger.free(item_id, attempt.numbers[item_id])
            if not isinstance(outcome, Delta) and self._capabilities.concurrent:
                self._came_free()

        return emit

    def _distrust(self, attempt: Attempt, position: object, outcome: object) -> None:
        self.counts.misplaced += 1
        if not attempt.broke_protocol:
            attempt.broke_protocol = protocol_error(self.name, attempt.batch, position, outcome)
            log.error("%s; nothing more of that batch is heard", attempt.broke_protocol)

    def _gone(self, error: Exception) -> None:
        for debt in list(self._ledger.owed.values()):
            self._ledger.fail(debt, error, to_all=True)

    # --- cancellation, the end ---------------------------------------------------------------------------------------

    def cancel(self, readers: Sequence[int]) -> None:
        """Nobody reads these any more."""
        for reader in readers:
            self._ledger.let_go(reader, Cancelled("the item was cancelled"))
        self.pump_soon()

    def withdraw(self, reader: int, agrees: Callable[[], bool]) -> None:
        """Let go of an item that no instance has begun, if this function agrees."""
        if self._ledger.is_unbegun(reader) and agrees():
            self.cancel((reader,))

    def audit(self) -> None:
        """The watchdog: see `Ledger.audit`."""
        self._ledger.audit()

    async def close(self) -> None:
        """End everything with EngineClosed."""
        self._is_closed = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for debt in list(self._ledger.owed.values()):
            self._ledger.fail(debt, EngineClosed(f"engine {self.name!r} was shut down"))
        self.held = None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return spawn(work, self._tasks)


def _why_cancelled(name: str, attempt: Attempt, error: asyncio.CancelledError) -> BaseException:
    if attempt.is_given_up:
        return caused(EngineCrashed(f"engine {name!r} said nothing for too long"), error)
    return EngineClosed(f"engine {name!r} was shut down")


def _handing_on(capabilities: Capabilities) -> Capabilities:
    """Where another scheduler stands behind, nothing waits here."""
    if not capabilities.is_scheduled:
        return capabilities
    return replace(capabilities, concurrent=True, max_items=sys.maxsize, max_tokens=None, prefix=False)


def _knee_items(engine: Engine) -> Callable[[str], int | None]:
    """By operation, for an engine with a profile that runs one batch at a time."""
    if engine.capabilities.concurrent:
        return lambda op: None
    one = next(iter(_instances(engine)), engine)
    profile = getattr(one, "profile", None)
    knees = {op: each.knee_items for op, each in getattr(one, "profiles", {}).items()}
    knee = profile.knee_items if isinstance(profile, Profile) else None
    return lambda op: knees.get(op, knee)


def _llm_profile(engine: Engine) -> LlmProfile | None:
    """Of an LLM whose texts hold up one another, where this is the scheduler that they wait in."""
    if engine.capabilities.is_scheduled or engine.capabilities.remote:
        return None
    profile = getattr(next(iter(_instances(engine)), engine), "profile", None)
    return profile if isinstance(profile, LlmProfile) else None


def _instances(engine: Engine) -> Sequence[Engine]:
    instances: Sequence[Engine] | None = getattr(engine, "instances", None)
    return (engine,) if instances is None else instances


def _sized(engine: Engine, request: Request, item: Item) -> Item:
    """The item with the KV cache that it may need, where the engine tells."""
    kv_tokens = getattr(engine, "kv_tokens", None)
    if kv_tokens is None:
        return item
    tokens = kv_tokens(request.op, item.payload, request.settings)
    return replace(item, tokens=tokens) if tokens != item.tokens else item


def _length(payload: Any) -> int:
    """Of a text, or of several that are read as one, in characters, as sentence-transformers sorts them."""
    return sum(map(len, map(str, payload))) if isinstance(payload, tuple) else len(str(payload))
