"""The worker of an engine, which takes requests in, makes batches and runs the batches on the engine's instances.

    submit --> queue --next_batch--> attempt on an instance --outcome--> waiters
                 ^                        |
                 '------- retry ----------'     crashed, lost, or its batch failed

Everything here runs on a single event loop, so there are no locks, and each item ends exactly once (work_table.py):

- **Joined.** The same embedding, rerank, search or greedy text requested by two queries of a tenant at the same time,
  or twice by one request, is a single item (but no request to a service outside this process, and no sampled text).
- **A batch fails** (the engine raises): open items are halved until the failing items are alone, each with its error.
- **An instance crashes** (EngineCrashed): the instance takes no work until `recovered` (recovery.py). Its items are
  retried before later requests. An item that took part in `ALONE_AFTER` crashes runs alone next time; after another
  crash the item is Poisoned (recovery.py). An item with effects is never retried, nor a sampled text emitted in part.
- **An outcome of no item**, or a value that is no outcome: the remaining outcomes of the batch are dropped, and open
  items are halved as after a failure. An item alone in a batch cannot get the value of another item.
- **No outcome** for an item although the batch is over: the item is retried once.
- **Nothing emitted** for `stall_s`: the instance is restarted, which counts as a crash.
- **Deadline.** An item in any state ends with DeadlineExceeded, and the engine is told to abort the item.
- **Cancelled** likewise. An item with further waiters goes on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from teola_plugin.engines import Capabilities, Delta, Emit, Engine, Failed, Item, Outcome, is_repeatable
from teola_plugin.errors import Cancelled, EngineClosed, EngineCrashed, Overloaded
from teola_plugin.events import BatchRan
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.runtime.hosts.tasks import spawn
from teola_plugin.runtime.scheduler.batching import EngineScheduler, Limits
from teola_plugin.runtime.scheduler.policies import Policy
from teola_plugin.runtime.scheduler.recovery import Recovery, Retries, caused
from teola_plugin.runtime.scheduler.work_item import Attempt, Request, WorkItem, as_promised, ids_of
from teola_plugin.runtime.scheduler.work_table import Counts, WorkTable
from teola_plugin.runtime.session.speculation import crowded_out
from teola_plugin.value_keys import value_key

log = logging.getLogger(__name__)

Sink = Callable[[BatchRan], None]

FOLLOWING_TURNS = 3
"""The turns of the loop from the end of an item until the next request of the query is in the queue. Only then are free
slots given away: a query that goes on comes before a query that begins."""

FOLLOWING_S = 0.0001
"""The duration of these turns if there is little else to do. With an empty queue the turns are left out, unless a
request comes within the duration: the turns were 5 % of the runtime's cost."""


@dataclass(frozen=True, slots=True)
class Rules:
    """`limits` of the queue. `stall_s`: how long a batch may run without an outcome, None for any time."""

    limits: Limits = field(default_factory=Limits)
    stall_s: float | None = None


class EngineWorker:
    """The worker of an engine.

    The worker holds the engine only while items are open, so that an engine is freed with the model.
    """

    def __init__(self, engine: Engine, policy: Policy, rules: Rules, sinks: Mapping[Hashable, Sink]) -> None:
        self.name = engine.name
        self.held: Engine | None = None
        self.scheduler = EngineScheduler(
            policy, _handing_on(engine.capabilities), replicas=len(_instances(engine)), limits=rules.limits,
            knee_items=_knee_items(engine), llm=_llm_profile(engine),
        )  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._time_s = self._loop.time  # on Linux and macOS the clock of `time.perf_counter` too
        self._table = WorkTable(self.name, self.scheduler, self._loop, self.dispatch)
        self._retries = Retries(self.name, self.scheduler, self._table, self._time_s)
        self._recovery = Recovery(
            self.name,
            self.scheduler,
            self.counts,
            rules.stall_s,
            spawn=self._spawn,
            back=self.dispatch,
            gone=self._gone,
        )
        self._told_of = engine.capabilities
        self._capabilities = _handing_on(engine.capabilities)
        self._sinks = sinks
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._will_dispatch = False
        self._freed_s = -math.inf
        self._again_s = math.inf

    @property
    def counts(self) -> Counts:
        """The counts of all items so far."""
        return self._table.counts

    # --- in ----------------------------------------------------------------------------------------------------------

    def submit(self, engine: Engine, request: Request) -> None:
        """Queue a request, or give the replies the reason for refusal."""
        if self._is_closed:
            raise EngineClosed(f"engine {self.name!r} was shut down")
        works = [work for work in request.items if not work.is_answered]
        for work in works:
            work.item = _sized(engine, request, work.item)
            work.key = self._key(engine, request, work.item)
        works = [work for work in works if not (self._table.refuse_late(work) or self._table.join(work))]
        works, again = _once_each(works)
        if self._capabilities.pads and len(works) > self._capabilities.max_items:
            works.sort(key=lambda work: -_length(work.item.payload))  # the long ones share batches
        request.items = works
        try:
            if request.gives_way and not self.begins_at_once(len(works)) and request.gives_way():
                raise crowded_out()
            self.scheduler.submit(request, self._time_s())
        except Overloaded as e:
            self.counts.refused += len(works) + len(again)
            for work in (*works, *again):
                work.notify(Failed(e))
            request.items = []  # no cycle of a request and items is left to the garbage collector
            return
        for work in works:
            self.held = engine
            self._table.add(work)
        for work in again:
            self._table.join(work)

    def _key(self, engine: Engine, request: Request, item: Item) -> Hashable:
        """Return a key that is equal for equal items; None for an item that cannot be compared."""
        op = request.op
        is_elsewhere = self._capabilities.remote or self._capabilities.is_scheduled
        if is_elsewhere or op == "partial_prefilling" or not is_repeatable(op, request.settings):
            return None
        stamp = getattr(engine, "stamp", None)
        whose = item.owner if getattr(engine, "is_per_query", False) else None
        return (item.tenant, request.group, value_key(item.payload), stamp() if stamp else None, whose)

    def rule(self, rules: Rules) -> None:
        """Set the rules that hold from now on."""
        self.scheduler.limits = rules.limits
        self._recovery.rule(rules.stall_s)

    @property
    def is_saturated(self) -> bool:
        """Whether the engine is too busy for rewrites which cost compute."""
        return self.scheduler.is_saturated

    def begins_at_once(self, count: int) -> bool:
        """Whether `count` more items would not have to wait."""
        return self.scheduler.begins_at_once(count)

    @property
    def has_open_items(self) -> bool:
        """Whether any item is open."""
        return not self._table.is_empty

    @property
    def is_clear(self) -> bool:
        """Whether nothing waits, runs or is kept of any item."""
        return self._table.is_clear and not (self.scheduler.queued_items or self.scheduler.running_items)

    # --- work --------------------------------------------------------------------------------------------------------

    def dispatch_soon(self) -> None:
        """Dispatch in the next turn of the loop, or in a few, together with all requests that come in until then."""
        is_followed = self._time_s() - self._freed_s < FOLLOWING_S
        self._dispatch_in(FOLLOWING_TURNS if is_followed else 1)

    def _came_free(self) -> None:
        if self.scheduler.queued_items:
            self._dispatch_in(FOLLOWING_TURNS)
            return
        self._freed_s = self._time_s()
        if self._table.is_empty:
            self.held = None

    def _dispatch_in(self, turns: int) -> None:
        if not self._will_dispatch:
            self._will_dispatch = True
            self._dispatch_after(turns)

    def _dispatch_after(self, turns: int) -> None:
        if turns:
            self._loop.call_soon(self._dispatch_after, turns - 1)
        else:
            self.dispatch()

    def dispatch(self) -> None:
        """Start batches as long as there is room."""
        self._will_dispatch = False
        if self._table.is_empty:
            self.held = None
        if self.held is None or self._is_closed:
            return
        instances = _instances(self.held)
        if len(instances) != self.scheduler.replicas.count:
            self.scheduler.resize(len(instances))
        if self.held.capabilities is not self._told_of:
            self._learn(self.held.capabilities)
        while attempt := self.scheduler.next_batch(self._time_s()):
            self._start(instances[attempt.at], attempt)
        if self.scheduler.waits_until_s < self._again_s:
            self._again_s = self.scheduler.waits_until_s
            self._loop.call_at(self._again_s, self._dispatch_again)

    def _dispatch_again(self) -> None:
        """Dispatch requests that have waited for running items long enough."""
        self._again_s = math.inf
        self.dispatch()

    def _learn(self, capabilities: Capabilities) -> None:
        """Take over capabilities that are known only once the engine runs, such as the KV cache."""
        self._told_of = capabilities
        self._capabilities = _handing_on(capabilities)
        self.scheduler.learn(self._capabilities)

    def _start(self, instance: Engine, attempt: Attempt) -> None:
        attempt.engine = instance
        items = attempt.batch.items
        for work in attempt.works:
            work.begin(attempt)
            self.counts.repeated += work.attempts > 1
        self.counts.batches += 1
        self.counts.mixed += any(item.owner != items[0].owner for item in items)
        self.scheduler.replicas.begin_call(attempt.at)
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
        self.scheduler.replicas.end_call(attempt.at)
        if isinstance(error, EngineCrashed) and not self._is_closed:
            self._recovery.crashed(attempt)
        self._retries.settle(attempt, error)
        ids = ids_of(attempt.works)
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
            work = attempt.work_at(position, outcome)
            if work is None or attempt.broke_protocol:
                self._distrust(attempt, position, outcome)
                return
            outcome = as_promised(self.name, attempt.batch.op, work.item, outcome)
            if work.runs(attempt):
                attempt.owners |= work.owners
                if isinstance(outcome, Failed) and isinstance(outcome.error, EngineCrashed):
                    self._retries.again([work], outcome.error)
                else:
                    self._table.tell(work, outcome)
            elif not isinstance(outcome, Delta):
                self.counts.late += 1
                self._table.free(work, attempt)
            if not isinstance(outcome, Delta) and self._capabilities.concurrent:
                self._came_free()

        return emit

    def _distrust(self, attempt: Attempt, position: object, outcome: object) -> None:
        self.counts.misplaced += 1
        if not attempt.broke_protocol:
            attempt.broke_protocol = attempt.protocol_error(self.name, position, outcome)
            log.error("%s; nothing more of that batch is heard", attempt.broke_protocol)

    def _gone(self, error: Exception) -> None:
        for work in self._table.open():
            self._table.fail(work, error, to_all=True)

    # --- cancellation, the end ---------------------------------------------------------------------------------------

    def cancel(self, waiters: Sequence[int]) -> None:
        """Remove waiters."""
        for waiter in waiters:
            self._table.detach(waiter, Cancelled("the item was cancelled"))
        self.dispatch_soon()

    def withdraw(self, waiter: int, agrees: Callable[[], bool]) -> None:
        """Remove a waiter of an item that no instance has begun, if `agrees` returns true."""
        if self._table.is_unbegun(waiter) and agrees():
            self.cancel((waiter,))

    def audit(self) -> None:
        """Run the watchdog of the work table."""
        self._table.audit()

    async def close(self) -> None:
        """End everything with EngineClosed."""
        self._is_closed = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for work in self._table.open():
            self._table.fail(work, EngineClosed(f"engine {self.name!r} was shut down"))
        self.held = None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return spawn(work, self._tasks)


def _why_cancelled(name: str, attempt: Attempt, error: asyncio.CancelledError) -> BaseException:
    if attempt.is_given_up:
        return caused(EngineCrashed(f"engine {name!r} said nothing for too long"), error)
    return EngineClosed(f"engine {name!r} was shut down")


def _handing_on(capabilities: Capabilities) -> Capabilities:
    """Return capabilities with which nothing waits here, where the engine has a scheduler of its own."""
    if not capabilities.is_scheduled:
        return capabilities
    return replace(capabilities, concurrent=True, max_items=sys.maxsize, max_tokens=None, prefix=False)


def _knee_items(engine: Engine) -> Callable[[str], int | None]:
    """Return the knee of each operation, for an engine with a profile that runs a batch at a time."""
    if engine.capabilities.concurrent:
        return lambda op: None
    one = next(iter(_instances(engine)), engine)
    profile = getattr(one, "profile", None)
    knees = {op: each.knee_items for op, each in getattr(one, "profiles", {}).items()}
    knee = profile.knee_items if isinstance(profile, Profile) else None
    return lambda op: knees.get(op, knee)


def _llm_profile(engine: Engine) -> LlmProfile | None:
    """Return the profile of an LLM whose texts wait in this scheduler; None for other engines."""
    if engine.capabilities.is_scheduled or engine.capabilities.remote:
        return None
    profile = getattr(next(iter(_instances(engine)), engine), "profile", None)
    return profile if isinstance(profile, LlmProfile) else None


def _instances(engine: Engine) -> Sequence[Engine]:
    instances: Sequence[Engine] | None = getattr(engine, "instances", None)
    return (engine,) if instances is None else instances


def _sized(engine: Engine, request: Request, item: Item) -> Item:
    """Return the item with the KV cache tokens that the item may need, where the engine tells."""
    kv_tokens = getattr(engine, "kv_tokens", None)
    if kv_tokens is None:
        return item
    tokens = kv_tokens(request.op, item.payload, request.settings)
    return replace(item, tokens=tokens) if tokens != item.tokens else item


def _once_each(works: list[WorkItem]) -> tuple[list[WorkItem], list[WorkItem]]:
    """Return the items of a request without items equal to an earlier one, and those items."""
    once: list[WorkItem] = []
    again: list[WorkItem] = []
    keys = set[Hashable]()
    for work in works:
        (again if work.key in keys else once).append(work)
        if work.key is not None:
            keys.add(work.key)
    return once, again


def _length(payload: Any) -> int:
    """Return the characters of a text, or of several texts read together, as sentence-transformers sorts them."""
    return sum(map(len, map(str, payload))) if isinstance(payload, tuple) else len(str(payload))
