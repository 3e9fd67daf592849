"""A session: one call of an optimized pipeline, where the run-ahead and the framework's own run meet in slots.

Each requested item is a slot (slots.py), which both runs find. A *front* is a prefetch scope: the run-ahead of a plan
for each input of the call. A pipeline that is revealed as it runs has several fronts in sequence, or, where parts are
pipelines of their own, several fronts side by side.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakSet

from teola_plugin import providers, seams
from teola_plugin.effects import NOTHING, Assumed, assuming
from teola_plugin.engines import Engine, EngineSpec, Failed, Foreign, Outcome, Urgency
from teola_plugin.errors import Cancelled
from teola_plugin.events import BatchRan, Event, PrimitiveRan, Retired
from teola_plugin.failures import Withheld
from teola_plugin.finalizers import kept_off
from teola_plugin.graph import Graph
from teola_plugin.providers import Provider
from teola_plugin.request_identity import keys_of, request_key
from teola_plugin.routes import CallRoutes
from teola_plugin.runtime.engines import engine_for
from teola_plugin.runtime.hosts.local import LocalHost, Query
from teola_plugin.runtime.session import background
from teola_plugin.runtime.session.batch_gates import Lockstep
from teola_plugin.runtime.session.nested import AskedAhead, pass_on, require_asking, withheld
from teola_plugin.runtime.session.plan_executor import PATIENCE_S, PlanExecutor, Prepared
from teola_plugin.runtime.session.provider_calls import Outside, OwnRequest, provider_of
from teola_plugin.runtime.session.queued_calls import HEAD_START_S, queued, taken_over
from teola_plugin.runtime.session.report import Listener, Report
from teola_plugin.runtime.session.slots import SHARED, Next, Since, Slots
from teola_plugin.seams import Held, Hold, Reply
from teola_plugin.tenancy import ANYBODY, Terms
from teola_plugin.trace import Asides, Asked, Hear, Items, Mark, Progress
from teola_plugin.value_keys import is_comparable, snapshot

log = logging.getLogger(__name__)
ASIDE = "tools"
"""The engine name, in the events of a call, of work that no graph holds."""

NEXT = Urgency(1)
"""The urgency of a request that only the end of the query follows."""

MAX_RUNS = 256
"""The maximum number of inputs of a batch that run ahead at once: more than an engine takes, and no burden on other
queries."""

Begun = tuple[Prepared, Mapping[str, Any], Mapping[int, str]]
"""A plan that may run ahead, with inputs, and the primitive @ pipeline behind the value of each observed component."""

Follow = Callable[[object, Any, Asides], Begun | None]


@dataclass(eq=False, slots=True)
class _Front:
    """The runs of a plan. `observed`: see `Begun`; `told`: the components whose value is known."""

    observed: Mapping[int, str]
    runs: list[PlanExecutor] = field(default_factory=list)
    told: set[int] = field(default_factory=set)

    def awaits(self, component: object) -> bool:
        return id(component) in self.observed and id(component) not in self.told

    @property
    def is_over(self) -> bool:
        return bool(self.runs) and all(run.is_done for run in self.runs)

    def stop(self) -> None:
        for run in self.runs:
            run.stop()


def _ended(asides: Asides) -> None:
    """Do nothing at the end of a call that nothing follows."""


class Session(seams.Session):
    """The session of a call. Safe to use from any thread.

    A task started by user code may outlive the call; requests of the task to the closed session are only computed.
    """

    def __init__(
        self, host: LocalHost, *, urgency: Urgency = NEXT, terms: Terms = ANYBODY,
        loop: asyncio.AbstractEventLoop | None = None, assumed: Assumed = NOTHING, speculates: bool = False,
        routes: CallRoutes | None = None,
    ) -> None:  # fmt: skip
        """Open a session. `assumed`: functions that adapters take for declared `@pure` while the session is current.

        `speculates`, `routes`: see `trace.Asides`.
        """
        self.assumed = assumed
        self.speculates = speculates
        self.routes = routes
        self._host = host
        self._follow: Follow | None = None
        self._ended: Callable[[Asides], None] = _ended
        self._query = Query(host.new_id(), terms, time.monotonic())
        self._loop = loop
        self._urgency = urgency
        self._lock = threading.RLock()  # the garbage collector may close a session in any thread, at any moment
        self._slots = Slots()
        self._outside = Outside(self._leave, host.soon)
        self._fronts: list[_Front] = []
        self._is_alone = False
        self._is_idle = self._has_aside = False
        self._asked_alone = 0
        self._is_off = False
        self._is_ahead = False
        self._is_beside = False
        self._awaited: Sequence[Reply] = ()  # requests of the framework's run that may be awaited now
        self._events: list[Event] = []
        self._fallbacks: list[str] = []
        self._reading_s = 0.0
        self._graphs: dict[int, Graph] = {}
        self._prefills: list[Reply] = []
        self._asides: list[Future[Any]] = []
        self._hearing: list[Hear] = []
        self._holds: WeakSet[Hold] | None = None
        self._put_off: list[Callable[[], None]] = []  # readings that wait for the framework's next request
        self._is_closed = False
        self._started_s = time.perf_counter()
        self.listeners: list[Listener] = []  # get the report at the end; more may be added meanwhile

    sends_ahead = True
    is_unheard = False
    is_closed: bool = False  # an attribute, since each request of the framework's run reads the state several times

    # --- the run-ahead -----------------------------------------------------------------------------------------------

    def run_ahead(
        self, prepared: Prepared, inputs: Sequence[Mapping[str, Any]], observed: Mapping[int, str], *,
        beside: bool = False, is_lockstep: bool = False,
    ) -> object:  # fmt: skip
        """Start a front with a run for each input, in place of the earlier fronts or `beside` them.

        `is_lockstep`: if an input raises, no input gets any further (see batch_gates.py). The front runs on while the
        caller does. The returned object stands for the front in `seams.within`.
        """
        if not self._is_ahead:
            self._is_ahead = True
            self._subscribe()
        front = _Front(observed)
        with kept_off, self._lock:
            earlier = [] if beside else self._fronts
            goes_on = [other for other in self._fronts if not other.is_over] if beside else []
            self._fronts = [*goes_on, front]
            since = self._slots.since()
        self._graphs[id(prepared.plan.graph)] = prepared.plan.graph

        waiting = iter(inputs)
        lockstep = Lockstep(len(inputs)) if is_lockstep and len(inputs) > 1 else None
        begun = threading.Event()

        def begin() -> None:
            for values in itertools.islice(waiting, 0 if self._is_closed else 1):
                front.runs.append(PlanExecutor(prepared, values, self, self._record, begin_next, lockstep, since))
                front.runs[-1].start()

        def start() -> None:
            for before in earlier:
                before.stop()
            try:
                for _ in range(MAX_RUNS):
                    begin()
            finally:
                begun.set()

        begin_next = partial(self._host.soon, begin) if len(inputs) > MAX_RUNS else None
        self._host.soon(start)
        if prepared.streams_lists and any(p.kind == "partial_decoding" for p in prepared.plan.graph):
            begun.wait(HEAD_START_S)
        return front

    def follow(self, follow: Follow, ended: Callable[[Asides], None] = _ended, *, beside: bool = False) -> None:
        """Let `follow` decide what may run ahead after each report of the framework's run. `ended` is told of the end.

        `beside`: fronts go on side by side, and functions that run ahead are followed too.
        """
        self._follow, self._ended, self._is_beside = follow, ended, beside
        if not self._is_alone:
            self._subscribe()

    def _subscribe(self) -> None:
        with kept_off, self._lock:
            if not self._is_closed:  # a reading may outlive the call, and nobody would release the host's list
                self._host.subscribe(self._query.owner, self._events.append)

    def _record(self, event: Event) -> None:
        self._events.append(event)

    @property
    def _runs(self) -> list[PlanExecutor]:
        return [run for front in self._fronts for run in front.runs]

    def submit_ahead(
        self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any], urgency: Urgency,
        since: Since | None = None, mark: Mark | None = None,
    ) -> list[Reply]:  # fmt: skip
        """See `plan_executor.Ahead`.

        `since`: when the work began that asks; `mark`: see `trace.Asides.request`.
        """
        return self._ahead(spec, op, payloads, settings, urgency, since=since, mark=mark)

    def _ahead(
        self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any], urgency: Urgency, *,
        is_guess: bool = False, since: Since | None = None, mark: Mark | None = None,
    ) -> list[Reply]:  # fmt: skip
        """Submit requests ahead. `mark`: the framework's run will take the requests after the mark."""
        engine = engine_for(spec)
        provider = self._provider_of(spec)
        asks = self._outside.may_ask(provider)
        stamp = _stamp(engine)
        payloads, settings = snapshot(list(payloads)), snapshot(settings)
        key = keys_of(spec, op, settings)
        replies: list[Reply] = []
        fresh: list[tuple[Any, Reply]] = []
        missing: list[Reply] = []
        shared: list[tuple[Reply, Any, Reply]] = []
        left: list[tuple[Any, Reply]] = []
        with kept_off, self._lock:
            if self._is_closed or self._is_past(since):
                return [_ended_reply() for _ in payloads]
            self._is_idle = False
            for payload in payloads:
                if not is_comparable(asked := key(payload)):  # the framework's run could not find the slot
                    replies.append(_ended_reply("the item is like no other"))
                    continue
                if _is_unsure(mark, asked):
                    replies.append(_ended_reply("it is not known who has asked for it"))
                    continue
                shares = "" if isinstance(payload, Foreign) else op  # a hosted service gets every request
                if mark is None or mark.is_beside:
                    slot = self._slots.ahead(asked, stamp, shares=shares, asks=asks, since=since)
                else:
                    slot = self._slots.coming(asked, mark, stamp, asks=asks)
                if slot.source:
                    shared.append((slot.source, payload, slot.reply))
                elif slot.outcome == "miss":
                    fresh.append(self._asked_ahead(provider, payload, slot.reply))
                    missing.append(slot.reply)
                elif slot.outcome == "left":
                    left.append((payload, slot.reply))
                replies.append(slot.reply)
        submit = partial(self._submit, engine, op, settings=settings, urgency=urgency, spec=spec)
        submit(fresh, gives_way=partial(self._give_way, missing) if is_guess else None)
        self._take_over(shared, submit)
        if provider and left and not is_guess:
            self._outside.when_answered(provider, partial(self._ask_after_all, provider, left, submit))
        return replies

    def _asked_ahead(self, provider: Provider | None, payload: Any, reply: Reply) -> tuple[Any, Reply]:
        """Return the payload and the reply to submit for a slot of the run-ahead. The lock is held."""
        self._outside.ask(provider, reply, is_own=False)
        return self._to_submit(self._bound(payload, reply), reply)

    def _ask_after_all(
        self, provider: Provider, left: Sequence[tuple[Any, Reply]],
        submit: Callable[[Sequence[tuple[Any, Reply]]], None],
    ) -> None:  # fmt: skip
        """Send requests ahead that had been left to the framework's run, if not reached yet."""
        with kept_off, self._lock:
            open_yet = [] if self._is_closed else [each for each in left if self._slots.ask_after_all(each[1])]
            fresh = [self._asked_ahead(provider, payload, reply) for payload, reply in open_yet]
        submit(fresh)

    def _give_way(self, replies: Sequence[Reply]) -> bool:
        """Give up the slots. Returns whether the framework's run had taken none."""
        with kept_off, self._lock:
            given_up = [self._slots.give_up(reply) for reply in replies]
        return all(given_up)

    def _leave(self, reply: Reply) -> bool:
        """Give up the slot of a reply. Returns whether the framework's run had not taken the slot."""
        with kept_off, self._lock:
            return self._slots.give_up(reply)

    def withholds(self, spec: EngineSpec) -> bool:
        """See `trace.Asides` and `nested.Call`."""
        return not self._outside.may_ask(self._provider_of(spec))

    def when_open(self, spec: EngineSpec, act: Callable[[], None]) -> None:
        """See `trace.Asides`."""
        provider = self._provider_of(spec) if spec.is_outside else None
        if provider is None or self._outside.may_ask(provider):
            act()
            return
        since = self._slots.since(ends=True)

        def act_after_all() -> None:
            if not self._is_past(since):
                act()

        self._outside.when_answered(provider, act_after_all)

    def _provider_of(self, spec: EngineSpec) -> Provider | None:
        return provider_of(spec)

    def guess(
        self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any], urgency: Urgency,
        since: Since | None = None,
    ) -> list[Reply] | None:  # fmt: skip
        """See `plan_executor.Ahead`."""
        if self._is_closed or self.withholds(spec) or not self._host.begins_at_once(engine_for(spec), len(payloads)):
            return None
        return self._ahead(spec, op, payloads, settings, urgency, is_guess=True, since=since)

    def settle(self, replies: Sequence[Reply], *, is_wanted: bool) -> None:
        """See `plan_executor.Ahead`."""
        for reply in replies if not is_wanted else ():
            self.give_up(reply)

    def prefill(self, spec: EngineSpec, text: Any, settings: Mapping[str, Any], urgency: Urgency) -> None:
        """See `plan_executor.Ahead` and `trace.Asides`."""
        engine = engine_for(spec)
        if (
            engine.capabilities.prefix
            and isinstance(text, str)
            and not (self._is_closed or self._host.is_saturated(engine) or self.withholds(spec))
        ):
            self._prefills.append(Reply())
            self._outside.ask(self._provider_of(spec), self._prefills[-1], is_own=False)
            self._submit(engine, "partial_prefilling", [(text, self._prefills[-1])], settings, urgency, spec)

    def asking(self, urgency: Urgency, since: Since | None = None, mark: Mark | None = None) -> AskedAhead | _Inner:
        """See `plan_executor.Ahead`, and `submit_ahead`."""
        return _Inner(self, urgency, since, mark) if self._is_beside else AskedAhead(self, urgency, since, mark)

    def aside(
        self, name: str, work: Callable[[], Any], *, is_async: bool = False, is_until_rewound: bool = False,
        mark: Mark | None = None,
    ) -> None:  # fmt: skip
        """See `trace.Asides`."""
        with kept_off, self._lock:
            since = self._slots.since(ends=True) if is_until_rewound else None
            self._has_aside, self._is_idle = True, False  # before the work asks
        session = self.asking(NEXT, since, mark)

        @contextlib.contextmanager
        def noted() -> Iterator[None]:
            started_s, failed = time.perf_counter(), True
            try:
                with seams.active(session), assuming(self.assumed):
                    yield
                failed = False
            except (Exception, Withheld) as e:  # the framework's run will meet the same error in the usual place
                log.debug("%s was lost in the run-ahead: %r", name or work, e)
            finally:
                if name:
                    self._events.append(PrimitiveRan(name, ASIDE, 1, started_s, time.perf_counter(), failed))

        def run() -> None:
            with noted():
                work()

        async def arun() -> None:
            with noted():
                await work()

        if not self._is_closed and (begun := background.begin(arun if is_async else run, is_async, self._loop)):
            self._asides.append(begun)
            if self.is_closed:  # meanwhile
                begun.cancel()

    def request(
        self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any], mark: Mark | None = None
    ) -> Reply:
        """See `trace.Asides`."""
        if not self._is_ahead:
            self._is_ahead = True
            self._subscribe()
        return self._ahead(spec, op, [payload], settings, NEXT, mark=mark)[0]

    def when_asked(self, hear: Hear) -> None:
        """See `trace.Asides`."""
        with kept_off, self._lock:
            if not self._is_closed:
                self._hearing = [*self._hearing, hear]
                return
        hear(None)

    def _tell(self, key: Callable[[], Hashable], items: int = 1) -> None:
        """Report a request of the framework's run to the listeners."""
        hearing, asked = self._hearing, Asked(key, self._mark_here, items)
        try:
            silent = [hear for hear in hearing if not hear(asked)]
        except Exception as e:  # a fault of ours is never the user's
            silent = hearing
            self.fell_back(e)
        with kept_off, self._lock:
            self._hearing = [hear for hear in self._hearing if hear not in silent]

    def _mark_here(self) -> Mark:
        with kept_off, self._lock:
            return self._slots.mark()

    def will_ask(self, asked: Sequence[tuple[EngineSpec, str, Any, Mapping[str, Any]]]) -> None:
        """See `seams.Session.will_ask`."""
        if self._is_off or self._is_closed:
            return
        self._is_alone = False
        if not self._is_ahead:
            self._is_ahead = True
            self._subscribe()
        mark = self._mark_here()
        for spec, op, payload, settings in asked:
            self._ahead(spec, op, [payload], settings, NEXT, mark=mark)

    def spent(self, seconds: float) -> None:
        """See `trace.Asides`."""
        self._reading_s += seconds

    def progress(self) -> Progress:
        """See `trace.Asides`."""
        with kept_off, self._lock:
            asked, ahead = self._slots.progress()
            return Progress(asked + self._asked_alone, ahead, self._slots.gained_s(), len(self._prefills))

    def are_asked_together(self, replies: Sequence[Reply]) -> bool:
        """See `trace.Asides`."""
        with kept_off, self._lock:
            return self._slots.are_asked_together(replies)

    def rest(self) -> None:
        """See `trace.Asides`."""
        self.rewind()
        with kept_off, self._lock:
            _, ahead = self._slots.progress()
            self._is_idle = not (ahead or self._has_aside)

    def drop(self, reply: Reply) -> None:
        """See `trace.Asides`."""
        with kept_off, self._lock:
            is_dropped = self._slots.give_up(reply, is_wasted=True)
        if is_dropped:
            reply.cancel_unless_ended()

    def rewind(self) -> None:
        """See `trace.Asides`."""
        with kept_off, self._lock:
            self._is_idle = False
            self._slots.rewind()

    def read(self, work: Callable[[], None], *, may_wait: bool = False) -> None:
        """See `trace.Asides`."""
        with kept_off, self._lock:
            is_put_off = may_wait and self.is_retiring_busy and not self._is_closed
            if is_put_off:
                self._put_off.append(work)
        if is_put_off:
            self._host.later(PATIENCE_S, self._resume)
        else:
            self._read(work)

    def _resume(self) -> None:
        """Begin the readings that waited."""
        with kept_off, self._lock:
            put_off, self._put_off = self._put_off, []
        for work in put_off:
            self._read(work)

    def _read(self, work: Callable[[], None]) -> None:
        session = self.asking(NEXT)

        def run() -> None:
            with seams.active(session), assuming(self.assumed):
                work()

        if not self._is_closed and (begun := background.begin_reading(run)):
            self._asides.append(begun)
            if self.is_closed:  # meanwhile
                begun.cancel()

    def _is_past(self, since: Since | None) -> bool:
        """Whether work that began then gets no slots, see `slots.Since`.

        The result is certain only under the lock; `when_open` checks without the lock, and the request checks again.
        """
        return since is not None and since.ends and since.rewound != self._slots.rewound

    def claim_ahead(
        self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any], since: Since | None = None,
        mark: Mark | None = None,
    ) -> tuple[Reply, bool]:  # fmt: skip
        """Implement `seams.Session.claim` for a function running ahead.

        Raises: Withheld.
        """
        provider = self._provider_of(spec)
        key = request_key(spec, op, payload, settings)
        with kept_off, self._lock:
            if self._is_closed or self._is_past(since) or not is_comparable(key):
                return _ended_reply(), False
            asks = self._outside.may_ask(provider)
            if _is_unsure(mark, key):
                return _ended_reply(), False
            if mark is None or mark.is_beside:
                slot = self._slots.ahead(key, asks=asks, since=since)
            else:
                slot = self._slots.coming(key, mark, asks=asks)
            if slot.outcome == "miss":  # the framework's run may take the slot as soon as the lock is free
                self._outside.ask(provider, slot.reply, is_own=False)
        if slot.outcome == "left":
            raise withheld(spec)
        return slot.reply, slot.outcome == "miss"

    def give_up(self, reply: Reply) -> None:
        """Give up the request of a function running ahead which failed, or was stopped."""
        if self._leave(reply):
            reply.cancel_unless_ended()

    @property
    def callers_loop(self) -> asyncio.AbstractEventLoop | None:
        """See `plan_executor.Ahead`."""
        return self._loop

    def fell_back(self, error: BaseException) -> None:
        """See `plan_executor.Ahead`."""
        self._fallbacks.append(f"TF001 {type(error).__name__}: {error}")

    def be_alone(self, *, rest: bool = False, is_off: bool = False) -> None:
        """Let nothing run ahead that is known as the call begins; with `rest`, although something could.

        With `rest` or `is_off`, nothing runs ahead that becomes known later, either.
        """
        self._is_alone = True
        self.is_at_rest = rest
        self._is_off = rest or is_off

    @property
    def is_retiring_busy(self) -> bool:
        """See `plan_executor.Ahead`."""
        return not any(reply.outcome is None for reply in self._awaited)

    # --- the framework's run (seams.Session) -------------------------------------------------------------------------

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        """See `seams.Session.ask`."""
        engine = engine_for(spec)
        provider = self._provider_of(spec)
        stamp = _stamp(engine)
        payloads, settings = snapshot(list(payloads)), snapshot(settings)
        replies: list[Reply] = []
        fresh: list[tuple[Any, Reply]] = []
        shared: list[tuple[Reply, Any, Reply]] = []
        if self._hearing and payloads:
            self._tell(lambda: request_key(spec, op, payloads[0], settings), len(payloads))
        with kept_off, self._lock:
            if self._is_closed or (self._is_alone and op not in SHARED):  # there is no slot to look for
                replies = [Reply() for _ in payloads]
                fresh, payloads = list(zip(payloads, replies, strict=True)), ()
                if not self._is_closed:
                    self._events += [Retired(engine.name, op, "miss", time.perf_counter())] * len(fresh)
            key = keys_of(spec, op, settings if payloads else {})
            for payload in payloads:
                slot = self._retire(key(payload), stamp, shares=op)
                if slot.source:
                    shared.append((slot.source, payload, slot.reply))
                replies.append(slot.reply)
                if slot.outcome != "hit":
                    fresh.append((payload, slot.reply))
                self._events.append(Retired(engine.name, op, slot.outcome, time.perf_counter()))
        for _, reply in fresh:
            self._outside.ask(provider, reply, is_own=True)
        fresh = [(self._bound(payload, reply), reply) for payload, reply in fresh]
        # The framework waits for these requests: before any early request.
        urgency = self._urgency._replace(depth=self._urgency.depth + 1, taker=None)
        submit = partial(self._submit, engine, op, settings=settings, urgency=urgency, spec=spec)
        submit(fresh)
        self._take_over(shared, submit)
        if not self._is_alone:
            self._will_await(replies)
        return replies

    def ask_alone(self, asked: Callable[[], tuple[str, Hashable]], op: str) -> OwnRequest | None:
        """See `seams.Session.ask_alone`."""
        if not (self._is_alone or self._is_idle):
            return None
        engine, service = asked()  # code of adapters, so not under the lock
        provider = None if service is None or self.is_unheard else providers.provider(service)
        if self._is_closed:
            return self._outside.alone(provider, lambda: None)
        if self._is_alone:  # `will_ask` takes no lock to change it
            self._asked_alone += 1
        else:
            with kept_off, self._lock:
                if not self._is_idle:  # another thread has begun to run ahead meanwhile
                    return None
                self._asked_alone += 1
        self._events.append(Retired(engine, op, "miss", asked_s := time.perf_counter()))
        return self._outside.alone(provider, partial(self._computed, engine, op, asked_s))

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        """See `seams.Session.claim`."""
        provider = self._provider_of(spec)
        if self._hearing:
            self._tell(lambda: request_key(spec, op, payload, settings))
        with kept_off, self._lock:
            if self._is_closed:
                self._outside.ask(provider, reply := Reply(), is_own=True)
                return reply, True
            slot = self._retire(request_key(spec, op, payload, settings))
        if slot.outcome == "hit" and (taken := taken_over(slot.reply)):
            with kept_off, self._lock:
                self._slots.is_taken_over(slot.reply)
            slot = Next(taken, "miss")
        self._events.append(Retired(spec.name or spec.kind, op, slot.outcome, asked_s := time.perf_counter()))
        self._will_await([slot.reply])
        if slot.outcome == "hit":
            self._outside.take(slot.reply)
        else:
            self._outside.ask(provider, slot.reply, is_own=True)
            slot.reply.when_ended(partial(self._computed, spec.name or spec.kind, op, asked_s))
        return slot.reply, slot.outcome != "hit"

    def _computed(self, engine: str, op: str, asked_s: float) -> None:
        """Record that the caller of `claim` has computed the request: a batch of one."""
        self._events.append(BatchRan(engine, op, 1, asked_s, time.perf_counter()))

    @property
    def wants_values(self) -> bool:
        """See `seams.Session.wants_values`."""
        return bool(self._fronts) or self._follow is not None

    def observe(self, component: object, value: Any) -> None:
        """See `seams.Session.observe`. With several inputs the value is dropped, since the input is not known.

        The first value counts for a component that runs more than once (a retry, a fallback).
        """
        if not self.wants_values:
            return
        within = seams.within()
        awaiting = [front for front in self._fronts if front.awaits(component)]
        front = within if within in awaiting else next(iter(awaiting), None)
        if not isinstance(front, _Front):
            if not any(id(component) in front.observed for front in self._fronts):
                self.enter(component, value)
            return
        name = front.observed[id(component)]
        if len(front.runs) == 1 and front.runs[0].has_read(name):
            return
        if not isinstance(value, Items):
            front.told.add(id(component))

        def tell() -> None:  # finds the run on the loop thread, where the run may only just have begun
            if len(front.runs) == 1:
                front.runs[0].observe(name, value)

        self._host.soon(tell)

    def enter(self, component: object, value: Any) -> object | None:
        """See `seams.Session.enter`."""
        follow = self._follow
        if follow is None:
            return None
        try:
            begun = follow(component, value, self)
        except Exception as e:  # a fault of ours is never the user's: the framework's run goes on alone
            self._follow = None
            self.fell_back(e)
            return None
        if begun is None:
            return None
        prepared, inputs, observed = begun
        return self.run_ahead(prepared, [inputs], observed, beside=self._is_beside)

    def hold(self, hold: Hold) -> None:
        """See `seams.Session.hold`."""
        with kept_off, self._lock:
            self._holds = self._holds or WeakSet()
            self._holds.add(hold)

    def interrupt(self) -> None:
        """Make no more requests: the caller is interrupted, and waits only for threads of the framework."""
        with kept_off, self._lock:
            self._is_closed = True
            self.is_closed = not self.is_unheard
        for aside in self._asides:
            aside.cancel()
        if self._is_ahead:
            self._stop()

    def close(self) -> Report:
        """End the run-ahead, cancel the replies that were never taken, and return the report."""
        with kept_off, self._lock:
            self._is_closed = True
            self.is_closed = not self.is_unheard
            self._put_off = []  # the call's objects are kept no longer
        try:
            self._ended(self)
        except Exception as e:  # a fault of ours is never the user's
            self.fell_back(e)
        gained_s, hosted_hits, wasted, shared = 0.0, 0, 0, 0
        left: Sequence[Reply] = ()
        with kept_off, self._lock:
            if not self._slots.are_unused:
                gained_s, hosted_hits = self._slots.gained_s(), self._slots.hosted_hits()
                left, wasted, shared = self._slots.clear()
            asides, hearing = self._asides, self._forgotten()
        for reply in left:  # not under the lock: listeners may call the session
            reply.cancel_unless_ended()
        for aside in asides:
            aside.cancel()
        if self._is_ahead:
            self._stop()
        for hear in hearing:
            hear(None)
        if not self._is_alone:
            self._host.release(self._query.owner)
        events = tuple(self._events)
        outcomes = [e.outcome for e in events if type(e) is Retired]
        return Report(
            outcomes.count("hit"),
            shared,
            outcomes.count("miss") - shared,
            outcomes.count("stale"),
            wasted,
            sum(not reply.outcome or bool(getattr(reply.outcome, "value", 0)) for reply in self._prefills),
            self._started_s,
            time.perf_counter(),
            tuple(self._fallbacks),
            events,
            gained_s,
            hosted_hits,
            self.is_at_rest,
            tuple(self._graphs.values()),
            self._reading_s,
        )

    def _forgotten(self) -> list[Hear]:
        """Forget the adapters' followers and listeners: they refer to the session, and keep the user's objects.

        The lock is held. Returns the listeners, which are then told of the end.
        """
        hearing, self._hearing = self._hearing, []
        self._follow, self._ended, self._asides = None, _ended, []
        return hearing

    def _stop(self) -> None:
        def stop() -> None:
            for front in self._fronts:
                front.stop()
            self._fronts = []

        self._host.soon(stop)

    # --- work --------------------------------------------------------------------------------------------------------

    def _will_await(self, replies: Sequence[Reply]) -> None:
        with kept_off, self._lock:
            self._awaited = [*(reply for reply in self._awaited if reply.outcome is None), *replies]
        if not self.is_retiring_busy:
            self._resume()
            for run in self._runs:
                if run.has_put_off:
                    self._host.soon(run.resume)

    def _retire(self, key: Hashable, stamp: Hashable = None, *, shares: str = "") -> Next:
        slot = self._slots.retire(key, stamp, shares=shares)
        if slot.outdated:
            self._host.soon(slot.outdated.cancel_unless_ended)
        if slot.lead_s and self._holds:
            slot.reply.held = Held(tuple(self._holds), time.perf_counter() + slot.lead_s)
        return slot

    def _bound(self, payload: Any, reply: Reply) -> Any:
        """Return the payload bound to the loop of a foreign model's client: the payload's own, or else the caller's."""
        if not isinstance(payload, Foreign):
            return payload
        loop = (payload.loop or self._loop) if payload.is_async else None
        return replace(payload, loop=loop, provider_call=reply.provider_call)

    def _to_submit(self, payload: Any, reply: Reply) -> tuple[Any, Reply]:
        return queued(payload, reply)

    def _take_over(
        self, shared: Sequence[tuple[Reply, Any, Reply]], submit: Callable[[Sequence[tuple[Any, Reply]]], None]
    ) -> None:
        """Let replies take the values of earlier replies. A failed request is made again: an error is raised once."""

        def hear(outcome: Outcome, payload: Any, reply: Reply) -> None:
            if isinstance(outcome, Failed) and reply.outcome is None and not self.is_closed:
                submit([(self._bound(payload, reply), reply)])
            else:
                reply.put(outcome)

        for source, payload, reply in shared:
            source.listen(partial(hear, payload=payload, reply=reply))

    def _submit(
        self, engine: Engine, op: str, work: Sequence[tuple[Any, Reply]], settings: Mapping[str, Any], urgency: Urgency,
        spec: EngineSpec, gives_way: Callable[[], bool] | None = None,
    ) -> None:  # fmt: skip
        if work:
            payloads, replies = zip(*work, strict=True)
            self._host.submit(
                engine, op, payloads, settings, replies, query=self._query, urgency=urgency, gives_way=gives_way,
            )  # fmt: skip


class _Inner(Session):
    """The session of a function running ahead as a call, with parts that run ahead of the function.

    Each item requested by the function, or ahead of the function, is a single slot of the surrounding call.
    """

    is_unheard = True  # and never closed, as with `AskedAhead`

    def __init__(self, outer: Session, urgency: Urgency, since: Since | None = None, mark: Mark | None = None) -> None:
        super().__init__(outer._host, urgency=urgency, loop=outer._loop, assumed=outer.assumed)
        self._outer = outer
        self._since = since
        self._mark = mark
        self._query = outer._query
        self._graphs, self._fallbacks = outer._graphs, outer._fallbacks
        self._follow, self._is_beside = outer._follow, True

    def _provider_of(self, spec: EngineSpec) -> None:
        """Return None: the surrounding call decides whether to ask."""

    def withholds(self, spec: EngineSpec) -> bool:
        return self._outer.withholds(spec)

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        require_asking(self._outer, spec)
        return super().ask(spec, op, payloads, settings)

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        with kept_off, self._lock:
            slot = self._retire(request_key(spec, op, payload, settings))
        self._will_await([slot.reply])
        return self._shared(slot, spec, op, payload, settings)

    def claim_ahead(
        self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any], since: Since | None = None,
        mark: Mark | None = None,
    ) -> tuple[Reply, bool]:  # fmt: skip
        with kept_off, self._lock:
            slot = self._slots.ahead(request_key(spec, op, payload, settings))
        return self._shared(slot, spec, op, payload, settings)

    def _shared(
        self, slot: Next, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]
    ) -> tuple[Reply, bool]:
        if slot.outcome == "hit":
            reply = taken_over(slot.reply)
            return reply or slot.reply, reply is not None
        claimed, is_mine = self._outer.claim_ahead(spec, op, payload, settings, self._since, self._mark)
        slot.reply.queued = claimed.queued
        claimed.listen(slot.reply.put)
        return claimed, is_mine

    def _to_submit(self, payload: Any, reply: Reply) -> tuple[Any, Reply]:
        return payload, reply  # the surrounding call submits

    def prefill(self, spec: EngineSpec, text: Any, settings: Mapping[str, Any], urgency: Urgency) -> None:
        self._outer.prefill(spec, text, settings, urgency)

    def close(self) -> Report:
        """Stop the run-ahead; requested items stay in the slots of the call."""
        if self._is_ahead:
            self._stop()
        with kept_off, self._lock:
            hearing = self._forgotten()
        for hear in hearing:
            hear(None)
        return Report()

    def _subscribe(self) -> None:
        """Do nothing: batches belong to the call."""

    def _record(self, event: Event) -> None:
        self._outer._record(event)

    def _submit(
        self, engine: Engine, op: str, work: Sequence[tuple[Any, Reply]], settings: Mapping[str, Any], urgency: Urgency,
        spec: EngineSpec, gives_way: Callable[[], bool] | None = None,
    ) -> None:  # fmt: skip
        payloads = [payload for payload, _ in work]
        theirs = self._outer.submit_ahead(spec, op, payloads, settings, urgency, self._since, self._mark)
        pass_on(self._outer, theirs, [reply for _, reply in work])


def _is_unsure(mark: Mark | None, key: Hashable) -> bool:
    """Whether an item was requested before the mark by one of several tasks that run side by side."""
    return mark is not None and mark.is_beside and mark.taken(key) > 0


def _ended_reply(why: str = "the call is over") -> Reply:
    reply = Reply()
    reply.put(Failed(Cancelled(why)))
    return reply


def _stamp(engine: Engine) -> Hashable:
    """Return the version of the data read by the engine, for engines with versions."""
    stamp: Callable[[], Hashable] | None = getattr(engine, "stamp", None)
    return stamp() if stamp else None
