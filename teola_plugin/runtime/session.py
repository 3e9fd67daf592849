"""A session: one call of an optimized pipeline, where the run-ahead and the framework's own run meet in slots.

A *slot* is the reply of one item, under the key (engine, operation, settings, payload). The n-th time the framework's
run asks for a key it gets the n-th slot, and so does the run-ahead: whoever comes first has it computed, the other
shares it (single flight), and no slot is handed to the framework twice (single use). What never found a taker is
counted as wasted.

The same embedding, rerank score or search asked for twice in a call is computed once: later slots of the key share the
reply.

A slot of a store that changes (`stamp` of its engine, such as the version of a Chroma collection) is only good while
the stamp is the one it was submitted under: a search that ran ahead of a write is computed anew.

What runs ahead is a *front*: one plan for each input of the call. A pipeline that is revealed as it runs has one front
after the other, or, where its parts are pipelines of their own, several beside each other.
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

from teola_plugin import seams
from teola_plugin.effects import NOTHING, Assumed
from teola_plugin.engines import Engine, EngineSpec, Failed, Foreign, Outcome, freeze
from teola_plugin.errors import Cancelled
from teola_plugin.events import BatchRan, Event, PrimitiveRan, Retired
from teola_plugin.finalizers import kept_off
from teola_plugin.graph import Graph
from teola_plugin.runtime import asides
from teola_plugin.runtime.engines import engine_for
from teola_plugin.runtime.local import LocalHost
from teola_plugin.runtime.run_ahead import Prepared, RunAhead
from teola_plugin.seams import Reply
from teola_plugin.trace import Asides, Items, Traced

log = logging.getLogger(__name__)
ASIDE = "tools"
"""Where work runs that no graph holds, in the events of a call."""

MAX_RUNS = 256
"""So many inputs of one batch run ahead at once: more than an engine takes, and no burden on other queries."""

HEAD_START_S = 0.02
"""How long a call waits at most for its run-ahead to begin, where that is to ask for a list as a stream: if the
framework's run came first, it would ask for the whole. Beginning takes some 0.1 ms; more, where the process is busy."""

SHARED = ("embedding", "reranking", "searching")
"""Work whose value is the same each time. What a search finds is changed by those who get it, so each has a copy."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one call came to. `hits` + `shared` + `misses` + `stale` = items the framework's run asked for.

    `hits` had run ahead (or were on their way). `shared`: the framework was there first and the run-ahead used its
    result. `misses`: the run-ahead did not foresee them. `stale`: foreseen, but the store changed in between.
    `wasted`: items that ran ahead and nobody took. `prefills`: prefixes that an engine prefilled early. `fallbacks`:
    why a run-ahead ended early, if one did. `rested`: none began, see `teola_plugin.worth`. `lead_s`: by how much all
    hits together had been begun before the framework asked for them. `asking_s`: from the start to the last thing the
    framework asked for. `graphs`: the e-graphs that ran ahead, one after the other.
    """

    hits: int = 0
    shared: int = 0
    misses: int = 0
    stale: int = 0
    wasted: int = 0
    prefills: int = 0
    started_s: float = 0.0
    ended_s: float = 0.0
    fallbacks: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    lead_s: float = 0.0
    asking_s: float = 0.0
    rested: bool = False
    graphs: tuple[Graph, ...] = ()


Listener = Callable[[Report, Traced], None]
"""Is told what a call came to, and how its pipeline was read."""

Begun = tuple[Prepared, Mapping[str, Any], Mapping[int, str]]
"""What may run ahead: the plan, its inputs, and the primitive @ pipeline that each observed component's value is."""

Follow = Callable[[object, Any, Asides], Begun | None]


@dataclass(eq=False, slots=True)
class _Front:
    """The runs of one plan. `observed`: see `Begun`; `told`: the components whose value it knows."""

    observed: Mapping[int, str]
    runs: list[RunAhead] = field(default_factory=list)
    told: set[int] = field(default_factory=set)

    def awaits(self, component: object) -> bool:
        return id(component) in self.observed and id(component) not in self.told

    @property
    def is_over(self) -> bool:
        return bool(self.runs) and all(run.is_done for run in self.runs)

    def stop(self) -> None:
        for run in self.runs:
            run.stop()


@dataclass(slots=True)
class _Slot:
    reply: Reply
    stamp: Hashable = None
    is_ours: bool = False
    """The framework's run opened it, not the run-ahead."""

    is_shared: bool = False
    """It has the reply of an earlier slot."""

    since_s: float = field(default_factory=time.perf_counter)


@dataclass(slots=True)
class _Slots:
    """All slots of one key; `taken` by the framework's run, `ahead` by the run-ahead."""

    slots: list[_Slot] = field(default_factory=list)
    taken: int = 0
    ahead: int = 0


class Session:
    """Implements `seams.Session` for one call. Safe to use from any thread.

    A task that the user's code began may outlive the call; what it asks of the closed session is computed, no more.
    """

    def __init__(
        self, host: LocalHost, *, depth: int = 1, loop: asyncio.AbstractEventLoop | None = None,
        assumed: Assumed = NOTHING,
    ) -> None:  # fmt: skip
        """`assumed`: what adapters are to take for declared `@pure` while this session is current."""
        self.assumed = assumed
        self._host = host
        self._follow: Follow | None = None
        self._owner = host.new_id()
        self._loop = loop
        self._retiring_depth = depth + 1  # the framework is waiting for it: before anything that runs ahead
        self._lock = threading.RLock()  # the garbage collector may close a session in any thread, at any moment
        self._table: dict[Hashable, _Slots] = {}
        self._fronts: list[_Front] = []
        self._is_alone = False
        self._is_ahead = False
        self._is_beside = False
        self._awaited: Sequence[Reply] = ()  # what the framework's run asked for and may be waiting for
        self._events: list[Event] = []
        self._fallbacks: list[str] = []
        self._has_rested = False
        self._graphs: dict[int, Graph] = {}
        self._prefills: list[Reply] = []
        self._asides: list[Future[Any]] = []
        self._lead_s = 0.0
        self._is_closed = False
        self._started_s = time.perf_counter()
        self.listeners: list[Listener] = []  # whoever hears of the call may add itself, to be told how it ended

    is_unheard = False

    @property
    def is_closed(self) -> bool:
        """See `seams.Session.is_closed`."""
        return self._is_closed

    # --- the run-ahead -----------------------------------------------------------------------------------------------

    def run_ahead(
        self, prepared: Prepared, inputs: Sequence[Mapping[str, Any]], observed: Mapping[int, str], *,
        beside: bool = False,
    ) -> object:  # fmt: skip
        """Start a front with one run for each input, in place of the earlier ones or `beside` them.

        It goes on while the caller does. What comes back stands for the front in `seams.within`.
        """
        if not self._is_ahead:
            self._is_ahead = True
            self._subscribe()
        front = _Front(observed)
        with kept_off, self._lock:
            earlier = [] if beside else self._fronts
            goes_on = [other for other in self._fronts if not other.is_over] if beside else []
            self._fronts = [*goes_on, front]
        self._graphs[id(prepared.plan.graph)] = prepared.plan.graph

        waiting = iter(inputs)
        begun = threading.Event()

        def begin() -> None:
            for values in itertools.islice(waiting, 0 if self._is_closed else 1):
                front.runs.append(RunAhead(prepared, values, self, self._record, begin_next))
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

    def follow(self, follow: Follow, *, beside: bool = False) -> None:
        """Let `follow` say what may run ahead after something that the framework's run has told.

        `beside`: each such front goes on beside the others, and functions that run ahead are followed too.
        """
        self._follow, self._is_beside = follow, beside
        self._subscribe()

    def _subscribe(self) -> None:
        self._host.subscribe(self._owner, self._events.append)

    def _record(self, event: Event) -> None:
        self._events.append(event)

    @property
    def _runs(self) -> list[RunAhead]:
        return [run for front in self._fronts for run in front.runs]

    def submit_ahead(
        self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any], depth: int
    ) -> list[Reply]:
        """See `run_ahead.Ahead`."""
        engine = engine_for(spec)
        stamp = _stamp(engine)
        replies: list[Reply] = []
        fresh: list[tuple[Any, Reply]] = []
        shared: list[tuple[Reply, Any, Reply]] = []
        with kept_off, self._lock:
            if self._is_closed:
                return [_ended_reply() for _ in payloads]
            for payload in payloads:
                entry = self._entry(spec, op, payload, settings)
                if entry.ahead == len(entry.slots):
                    if source := _share(entry, op):
                        shared.append((source, payload, entry.slots[-1].reply))
                    else:
                        entry.slots.append(_Slot(Reply(), stamp))
                        fresh.append((self._bound(payload), entry.slots[-1].reply))
                replies.append(entry.slots[entry.ahead].reply)
                entry.ahead += 1
        submit = partial(self._submit, engine, op, settings=settings, depth=depth, spec=spec)
        submit(fresh)
        self._take_over(shared, submit)
        return replies

    def prefill(self, spec: EngineSpec, text: Any, settings: Mapping[str, Any], depth: int) -> None:
        """See `run_ahead.Ahead` and `trace.Asides`."""
        engine = engine_for(spec)
        if engine.capabilities.prefix and isinstance(text, str) and not self._is_closed:
            self._prefills.append(Reply())
            self._submit(engine, "partial_prefilling", [(text, self._prefills[-1])], settings, depth, spec)

    def asking(self, depth: int) -> _Asking | _Inner:
        """See `run_ahead.Ahead`."""
        return _Inner(self, depth) if self._is_beside else _Asking(self, depth)

    def aside(self, name: str, work: Callable[[], Any], *, is_async: bool = False) -> None:
        """See `trace.Asides`."""
        session = self.asking(1)

        @contextlib.contextmanager
        def noted() -> Iterator[None]:
            started_s, failed = time.perf_counter(), True
            try:
                with seams.active(session):
                    yield
                failed = False
            except Exception as e:  # the framework's run will meet it in its own place
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

        if not self._is_closed and (begun := asides.begin(arun if is_async else run, is_async, self._loop)):
            self._asides.append(begun)
            if self.is_closed:  # meanwhile
                begun.cancel()

    def claim_ahead(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        """`seams.Session.claim` for a function that runs ahead."""
        with kept_off, self._lock:
            if self._is_closed:
                return _ended_reply(), False
            entry = self._entry(spec, op, payload, settings)
            is_first = entry.ahead == len(entry.slots)
            if is_first:
                entry.slots.append(_Slot(Reply()))
            entry.ahead += 1
            return entry.slots[entry.ahead - 1].reply, is_first

    @property
    def callers_loop(self) -> asyncio.AbstractEventLoop | None:
        """See `run_ahead.Ahead`."""
        return self._loop

    def fell_back(self, error: BaseException) -> None:
        """See `run_ahead.Ahead`."""
        self._fallbacks.append(f"TF001 {type(error).__name__}: {error}")

    def be_alone(self, *, rest: bool = False) -> None:
        """Nothing will run ahead in this call; with `rest`, although something could."""
        self._is_alone = True
        self._has_rested = rest

    @property
    def is_retiring_busy(self) -> bool:
        """See `run_ahead.Ahead`."""
        return not any(reply.outcome is None for reply in self._awaited)

    # --- the framework's run (seams.Session) -------------------------------------------------------------------------

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        """See `seams.Session.ask`."""
        engine = engine_for(spec)
        stamp = _stamp(engine)
        replies: list[Reply] = []
        fresh: list[tuple[Any, Reply]] = []
        shared: list[tuple[Reply, Any, Reply]] = []
        with kept_off, self._lock:
            if self._is_closed or (self._is_alone and op not in SHARED):  # there is no slot to look for
                fresh = [(self._bound(payload), Reply()) for payload in payloads]
                replies, payloads = [reply for _, reply in fresh], ()
                if not self._is_closed:
                    self._events += [Retired(engine.name, op, "miss", time.perf_counter())] * len(fresh)
            for payload in payloads:
                entry = self._entry(spec, op, payload, settings)
                if entry.taken == len(entry.slots) and (source := _share(entry, op)):
                    shared.append((source, payload, entry.slots[-1].reply))
                reply, outcome = self._retire(entry, stamp)
                replies.append(reply)
                if outcome != "hit":
                    fresh.append((self._bound(payload), reply))
                self._events.append(Retired(engine.name, op, outcome, time.perf_counter()))
        submit = partial(self._submit, engine, op, settings=settings, depth=self._retiring_depth, spec=spec)
        submit(fresh)
        self._take_over(shared, submit)
        if not self._is_alone:
            self._will_await(replies)
        return replies

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        """See `seams.Session.claim`."""
        with kept_off, self._lock:
            if self._is_closed:
                return Reply(), True
            reply, outcome = self._retire(self._entry(spec, op, payload, settings), None)
            self._events.append(Retired(spec.name or spec.kind, op, outcome, asked_s := time.perf_counter()))
        self._will_await([reply])
        if outcome != "hit":
            reply.when_ended(partial(self._computed, spec.name or spec.kind, op, asked_s))
        return reply, outcome != "hit"

    def _computed(self, engine: str, op: str, asked_s: float) -> None:
        """The caller of `claim` has computed it: a batch of one."""
        self._events.append(BatchRan(engine, op, 1, asked_s, time.perf_counter()))

    def observe(self, component: object, value: Any) -> None:
        """See `seams.Session.observe`. With several inputs it is not known whose run it was, so nothing is said.

        Of a component that runs more than once (a retry, a fallback) the first value counts.
        """
        within = seams.within()
        awaiting = [front for front in self._fronts if front.awaits(component)]
        front = within if within in awaiting else next(iter(awaiting), None)
        if not isinstance(front, _Front):
            if not any(id(component) in front.observed for front in self._fronts):
                self.enter(component, value)
            return
        name = front.observed[id(component)]
        if not isinstance(value, Items):
            front.told.add(id(component))

        def tell() -> None:  # looks for the run on the loop thread, where it may only just have begun
            if len(front.runs) == 1:
                front.runs[0].observe(name, value)

        self._host.soon(tell)

    def enter(self, component: object, value: Any) -> object | None:
        """See `seams.Session.enter`."""
        if self._follow is None:
            return None
        try:
            begun = self._follow(component, value, self)
        except Exception as e:  # a fault of ours is never the user's: the framework's run goes on alone
            self._follow = None
            self.fell_back(e)
            return None
        if begun is None:
            return None
        prepared, inputs, observed = begun
        return self.run_ahead(prepared, [inputs], observed, beside=self._is_beside)

    def close(self) -> Report:
        """End the run-ahead, cancel what nobody took, and say what the call came to."""
        with kept_off, self._lock:
            self._is_closed = True
            shared = sum(slot.is_ours for entry in self._table.values() for slot in entry.slots[: entry.ahead])
            left = [slot for entry in self._table.values() for slot in entry.slots[entry.taken :]]
            self._table.clear()
        wasted = sum(not slot.is_shared for slot in left)
        for slot in left:  # not under our lock: whoever hears of it may come to us
            slot.reply.cancel_unless_ended()
        for aside in self._asides:
            aside.cancel()

        self._stop()
        if not self._is_alone:
            self._host.release(self._owner)
        events = tuple(self._events)
        outcomes = [e.outcome for e in events if isinstance(e, Retired)]
        last_asked_s = max((e.at_s for e in events if isinstance(e, Retired)), default=self._started_s)
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
            self._lead_s,
            last_asked_s - self._started_s,
            self._has_rested,
            tuple(self._graphs.values()),
        )

    def _stop(self) -> None:
        def stop() -> None:
            for front in self._fronts:
                front.stop()
            self._fronts = []

        if self._is_ahead:
            self._host.soon(stop)

    # --- slots -------------------------------------------------------------------------------------------------------

    def _will_await(self, replies: Sequence[Reply]) -> None:
        with kept_off, self._lock:
            self._awaited = [*(reply for reply in self._awaited if reply.outcome is None), *replies]
        if not self.is_retiring_busy:
            for run in self._runs:
                if run.has_put_off:
                    self._host.soon(run.resume)

    def _entry(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> _Slots:
        key = (spec.key, op, freeze(settings), freeze(payload))
        return self._table.setdefault(key, _Slots())

    def _retire(self, entry: _Slots, stamp: Hashable) -> tuple[Reply, str]:
        """The next slot for the framework's run, and whether it was a hit, a miss or stale."""
        at, entry.taken = entry.taken, entry.taken + 1
        if at == len(entry.slots):
            entry.slots.append(_Slot(Reply(), stamp, is_ours=True))
            return entry.slots[at].reply, "miss"
        slot = entry.slots[at]
        if slot.stamp == stamp:
            self._lead_s += time.perf_counter() - slot.since_s
            return slot.reply, "hit"
        self._host.soon(slot.reply.cancel_unless_ended)
        entry.slots[at] = _Slot(Reply(), stamp)
        return entry.slots[at].reply, "stale"

    def _bound(self, payload: Any) -> Any:
        """A coroutine of a foreign model runs on the loop its client belongs to: the caller's."""
        return replace(payload, loop=self._loop) if isinstance(payload, Foreign) and payload.is_async else payload

    def _take_over(
        self, shared: Sequence[tuple[Reply, Any, Reply]], submit: Callable[[Sequence[tuple[Any, Reply]]], None]
    ) -> None:
        """Let replies have the values of others. What failed is asked for again: an error is raised in one place."""

        def hear(outcome: Outcome, payload: Any, reply: Reply) -> None:
            if isinstance(outcome, Failed) and reply.outcome is None and not self.is_closed:
                submit([(self._bound(payload), reply)])
            else:
                reply.put(outcome)

        for source, payload, reply in shared:
            source.listen(partial(hear, payload=payload, reply=reply))

    def _submit(
        self, engine: Engine, op: str, work: Sequence[tuple[Any, Reply]], settings: Mapping[str, Any], depth: int,
        spec: EngineSpec,
    ) -> None:  # fmt: skip
        if work:
            payloads, replies = zip(*work, strict=True)
            self._host.submit(engine, op, payloads, settings, replies, owner=self._owner, depth=depth)


class _Asking:
    """Implements `seams.Session` for a function that runs ahead: what it asks lands in the slots."""

    is_unheard = True

    def __init__(self, session: Session, depth: int) -> None:
        self.assumed = session.assumed
        self._session = session
        self._depth = depth

    @property
    def is_closed(self) -> bool:
        return False  # even a closed session must not let the function go on to the models themselves

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        return self._session.submit_ahead(spec, op, payloads, settings, self._depth)

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        return self._session.claim_ahead(spec, op, payload, settings)

    def observe(self, component: object, value: Any) -> None:
        """What runs ahead tells nobody."""

    def enter(self, component: object, value: Any) -> None:
        """Nor where it is."""

    def close(self) -> None:
        """Nothing is its own."""


class _Inner(Session):
    """A function that runs ahead as if it were a call: its parts run ahead of it.

    Each item that it, or what runs ahead of it, asks for is one slot of the call around it.
    """

    is_unheard = True

    def __init__(self, outer: Session, depth: int) -> None:
        super().__init__(outer._host, depth=depth, loop=outer._loop, assumed=outer.assumed)
        self._outer = outer
        self._owner = outer._owner
        self._graphs, self._fallbacks = outer._graphs, outer._fallbacks
        self._follow, self._is_beside = outer._follow, True

    @property
    def is_closed(self) -> bool:
        return False  # as with `_Asking`

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        with kept_off, self._lock:
            reply, outcome = self._retire(self._entry(spec, op, payload, settings), None)
        if outcome == "hit":
            self._will_await([reply])
            return reply, False
        claimed, is_mine = self._outer.claim_ahead(spec, op, payload, settings)
        claimed.listen(reply.put)
        self._will_await([reply])
        return claimed, is_mine

    def claim_ahead(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        reply, is_mine = super().claim_ahead(spec, op, payload, settings)
        if not is_mine:
            return reply, False
        claimed, is_mine = self._outer.claim_ahead(spec, op, payload, settings)
        claimed.listen(reply.put)
        return claimed, is_mine

    def prefill(self, spec: EngineSpec, text: Any, settings: Mapping[str, Any], depth: int) -> None:
        self._outer.prefill(spec, text, settings, depth)

    def close(self) -> Report:
        """It has ended; what it asked for stays in the slots of the call."""
        self._stop()
        return Report()

    def _subscribe(self) -> None:
        """The batches are those of the call."""

    def _record(self, event: Event) -> None:
        self._outer._record(event)

    def _submit(
        self, engine: Engine, op: str, work: Sequence[tuple[Any, Reply]], settings: Mapping[str, Any], depth: int,
        spec: EngineSpec,
    ) -> None:  # fmt: skip
        theirs = self._outer.submit_ahead(spec, op, [payload for payload, _ in work], settings, depth)
        for (_, mine), reply in zip(work, theirs, strict=True):
            mine.cancel = reply.cancel_unless_ended
            reply.listen(mine.put)


def _share(entry: _Slots, op: str) -> Reply | None:
    """Make a new slot that is to take over the reply of the last one, where nobody can tell the difference."""
    if op not in SHARED or not entry.slots or isinstance(entry.slots[-1].reply.outcome, Failed):
        return None
    last = entry.slots[-1]
    if op == "searching" and entry.taken == len(entry.slots):
        return None  # whoever has it may have changed it
    entry.slots.append(_Slot(Reply(), last.stamp, is_shared=True))
    return last.reply.copied() if op == "searching" else last.reply


def _ended_reply() -> Reply:
    reply = Reply()
    reply.put(Failed(Cancelled("the call is over")))
    return reply


def _stamp(engine: Engine) -> Hashable:
    """The version of what the engine reads, for engines that have one."""
    stamp: Callable[[], Hashable] | None = getattr(engine, "stamp", None)
    return stamp() if stamp else None
