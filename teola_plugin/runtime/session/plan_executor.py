"""The plan executor: the run-ahead of a query, which takes ready requests from the graph scheduler to the engines.

The executor lives on the host's loop thread. Texts are joined and cheap glue is called right there; functions of the
user go to a worker thread; everything else becomes a request, through the session's slots. The executor never raises: a
function that fails, like an item that fails, makes the primitive lost, and the framework's own run will meet the same
error in the usual place.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from teola_plugin import seams
from teola_plugin.engines import Completion, Delta, Done, EngineSpec, Failed, Foreign, Outcome, Urgency
from teola_plugin.errors import ItemsError
from teola_plugin.events import PrimitiveRan
from teola_plugin.failures import Withheld
from teola_plugin.graph import DECODES, PIPELINE, READER, Primitive
from teola_plugin.items import parse_items, parser_for
from teola_plugin.plan import Plan
from teola_plugin.rounds import Rounds
from teola_plugin.runtime.engines.worker import Worker
from teola_plugin.runtime.session import background
from teola_plugin.runtime.session.ancestry import Sight, Tag, sights_of
from teola_plugin.runtime.session.batch_gates import Lockstep, batch_gates
from teola_plugin.runtime.session.graph_scheduler import Closed, Event, Fragment, GraphScheduler, Lost, Ready
from teola_plugin.runtime.session.slots import Since
from teola_plugin.runtime.session.speculation import Speculation, SpeculativeRequest
from teola_plugin.seams import Reply
from teola_plugin.trace import Function, Items

log = logging.getLogger(__name__)

_workers = Worker("call", threads=8)

PATIENCE_S = 0.05
"""The maximum time that a function or a reading is deferred: several times the gap between two leaves of LlamaIndex
(about 10 ms).
"""


class Ahead(Protocol):
    """The part of a session that a run-ahead uses."""

    def submit_ahead(
        self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any], urgency: Urgency,
        since: Since | None = None,
    ) -> list[Reply]:  # fmt: skip
        """Return a reply per payload, in a slot; requests already made by the framework's run are shared."""
        ...

    def guess(
        self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any], urgency: Urgency,
        since: Since | None = None,
    ) -> list[Reply] | None:  # fmt: skip
        """Submit speculative requests, as `submit_ahead`; None if the requests would have to wait for other work."""
        ...

    def settle(self, replies: Sequence[Reply], *, is_wanted: bool) -> None:
        """Decide speculative requests: if wanted, errors count from now on; otherwise the requests are given up."""
        ...

    def prefill(self, spec: EngineSpec, text: Any, settings: Mapping[str, Any], urgency: Urgency) -> None:
        """Ask the engine to prefill a prefix, if the prefix is text. No caller waits for the prefill."""
        ...

    def asking(self, urgency: Urgency, since: Since | None = None) -> seams.Session:
        """Return the session of a function that asks models and stores."""
        ...

    @property
    def callers_loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of the call, if the call came from a coroutine."""
        ...

    def fell_back(self, error: BaseException) -> None:
        """Report that the run-ahead ends because of an internal error."""
        ...

    @property
    def is_retiring_busy(self) -> bool:
        """Whether the framework's run waits for no reply, but computes."""
        ...


def _plain(value: Any) -> Any:
    """Return the value as the framework's own code passes it on: a completion as text."""
    return str(value) if type(value) is Completion else value


def joined(p: Primitive, pieces: Sequence[Any]) -> Any:
    """Return the pieces of a prompt, joined; a single piece that is no text (as of a foreign model) passes through."""
    if len(pieces) == 1:
        return _plain(pieces[0])
    return "".join(map(str, pieces))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A pipeline prepared for running, once: the plan, and the objects behind the plan's names.

    `streams_lists`: foreign models are asked for a stream where the items of a text are used separately. `rounds`:
    functions that are graphs, prepared as well. `join`: makes a prompt of the arguments of a prefilling. `sights`:
    where the primitives find arguments; `ahead`: speculative primitives; `gates`: see batch_gates.py. The last three
    are computed here.
    """

    plan: Plan
    functions: Mapping[str, Function]
    engines: Mapping[str, EngineSpec]
    streams_lists: bool = False
    rounds: Mapping[str, PreparedRounds] = field(default_factory=dict)
    join: Callable[[Primitive, Sequence[Any]], Any] = field(default=joined, compare=False, repr=False)
    sights: Mapping[str, Sight] = field(default_factory=dict, compare=False, repr=False)
    ahead: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    gates: Mapping[str, frozenset[str]] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.sights:
            object.__setattr__(self, "sights", sights_of(self.plan))
            object.__setattr__(self, "ahead", frozenset(p.name for p in self.plan.graph if p.setting("ahead")))
            object.__setattr__(self, "gates", batch_gates(self.plan.graph, self.functions, self.engines))


@dataclass(frozen=True, slots=True)
class PreparedRounds:
    """A function that is a graph, run in rounds until an end condition."""

    rounds: Rounds
    each: Prepared


class PlanExecutor:
    """The run-ahead of a query. All methods are for the loop thread only."""

    def __init__(
        self, prepared: Prepared, inputs: Mapping[str, Any], session: Ahead, record: Callable[[PrimitiveRan], None],
        at_rest: Callable[[], None] | None = None, lockstep: Lockstep | None = None, since: Since | None = None,
    ) -> None:  # fmt: skip
        """Prepare a run. `at_rest` is called once, when no request is in flight.

        Then all is done, or waits for the framework's run.

        `lockstep`: shared with the other inputs of a batch, if a failing input ends the whole batch. `since`: when the
        run began, as its requests count.
        """
        self._prepared = prepared
        self._since = since
        self._plan = prepared.plan
        self._functions = prepared.functions
        self._engines = prepared.engines
        self._streams_lists = prepared.streams_lists
        self._session = session
        self._record = record
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._scheduler = GraphScheduler(prepared.plan, inputs, prepared.sights)
        self._put_off: list[Callable[[], None]] = []
        self._told: dict[str, int] = {}  # how many items of a list the framework's run has told so far
        self._read: set[str] = set()  # primitives @ reader whose value is known
        self._left: set[str] = set()  # of these, the primitives whose value came from the framework's run
        self._tasks: list[Future[None]] = []
        self._inner: dict[tuple[str, Tag], PlanExecutor] = {}
        self._guesses: Speculation[list[Reply]] = Speculation()
        self._at_rest = at_rest
        self._lockstep = lockstep
        self._gates_left = set[str]().union(*prepared.gates.values()) if lockstep else set()
        self._on_its_way = 0
        self._is_over = False

    def start(self) -> None:
        """Start everything that the inputs allow."""
        self._go(self._scheduler.start)

    def observe(self, name: str, value: Any) -> None:
        """Take the value of the primitive `name`, @ pipeline or @ reader, from the framework's own run."""
        p = self._plan.primitives.get(name)
        if p is None or name in self._read:
            return
        if p.engine == READER:
            self._read.add(name)
            self._left.add(name)
        depth = self._plan.depths[name]
        if p.kind == "condition":
            value = bool(value)
        if isinstance(value, Items):
            self._go(lambda: self._scheduler.apply(self._more(name, value)))
        elif depth == 0:
            self._go(lambda: self._scheduler.apply([Fragment(name, (), value)]))
        elif depth == 1 and isinstance(value, Sequence):
            self._go(lambda: self._scheduler.apply(self._more(name, Items(value, is_last=True))))

    def _more(self, name: str, told: Items) -> list[Event]:
        begin = self._told.get(name, 0)
        end = self._told[name] = begin + len(told.items)
        items = [Fragment(name, (begin + i,), item) for i, item in enumerate(told.items)]
        return [*items, Closed(name, (), end)] if told.is_last else [*items]

    def has_read(self, name: str) -> bool:
        """Whether the value of a primitive @ reader is known. For any thread."""
        return name in self._read

    @property
    def is_done(self) -> bool:
        """Whether every output has a value, was skipped, or is lost."""
        return self._scheduler.is_done

    def outputs(self) -> dict[str, Any] | None:
        """Return the values of the outputs, without skipped outputs; None if any output is lost or not there yet."""
        return self._scheduler.outputs()

    @property
    def has_put_off(self) -> bool:
        """Whether deferred functions wait for `resume`."""
        return bool(self._put_off)

    def resume(self) -> None:
        """Start the deferred functions: the framework's run waits."""
        put_off, self._put_off = self._put_off, []
        for work in put_off:
            _workers.submit(work)

    def stop(self) -> None:
        """Stop the run-ahead: no new requests are made."""
        self._is_over = True
        self._put_off = []
        for task in self._tasks:
            task.cancel()
        for inner in self._inner.values():
            inner.stop()

    def _go(self, step: Callable[[], list[Ready]], ended: int = 0) -> None:
        self._on_its_way -= ended
        if not self._is_over:
            self._step(step)
        if self._on_its_way == 0 and self._at_rest:
            at_rest, self._at_rest = self._at_rest, None
            at_rest()

    def _step(self, step: Callable[[], list[Ready]]) -> None:
        try:
            pending = step()
            if self._guesses.open:
                self._settle()
            while pending:
                events: list[Event] = []
                for ready in pending:
                    events += self._begin(ready)
                pending = self._scheduler.apply(events) if events else []
                if self._guesses.open:
                    self._settle()
            if self._lockstep and self._gates_left:
                self._tell_passed(self._lockstep)
        except Exception as e:  # a fault of the run-ahead is never the user's: the framework's run goes on alone
            self._is_over = True
            self._session.fell_back(e)

    def _tell_passed(self, lockstep: Lockstep) -> None:
        """Report newly passed gates to the other inputs of the batch."""
        passed = {name for name in self._gates_left if self._scheduler.has_passed(name)}
        self._gates_left -= passed
        for name in passed:
            lockstep.passed(name)

    def _settle(self) -> None:
        """Settle the speculative requests whose condition is decided."""
        for guess, is_wanted in self._guesses.decided(self._scheduler.is_wanted):
            replies = guess.request or ()
            if is_wanted and replies and not _any_failed(replies):
                self._session.settle(replies, is_wanted=True)
                continue
            guess.request = None
            self._session.settle(replies, is_wanted=False)
            if is_wanted:
                self._request(guess.ready)

    def _begin(self, ready: Ready) -> list[Event]:
        """Start a request. Returns the events of everything that could be computed at once."""
        p = ready.primitive
        if p.name in self._read:
            return []
        if self._left and not self._left.isdisjoint(p.after) and self._is_stale(ready):
            return [] if p.engine == READER else [Lost(p.name, tag) for tag in ready.tags]
        if p.engine == PIPELINE or (p.name in self._prepared.ahead and self._scheduler.is_wanted(p.name) is False):
            return []
        if self._lockstep and (gates := self._prepared.gates.get(p.name)) and not self._lockstep.is_open(gates):
            self._lockstep.when_open(gates, lambda: self._soon(lambda: self._scheduler.apply(self._begin(ready))))
            return []
        match p.kind:
            case "prefilling" | "full_prefilling":
                return [*self._prompts(ready)]
            case "partial_prefilling":
                prompts = self._prompts(ready)
                for prompt in prompts:
                    self._session.prefill(self._engines[p.engine], prompt.value, {}, self._plan.remaining[p.name])
                return [*prompts]
            case "aggregate" if p.setting("fn") is None:
                made = (_made(self._plan, p, tag, args[0]) for tag, args in ready.instances)
                return list(itertools.chain.from_iterable(made))
            case "call" if (prepared := self._prepared.rounds.get(p.setting("fn"))) is not None:
                for tag, args in ready.instances:
                    self._on_its_way += 1
                    self._round(1, p, tag, prepared, prepared.rounds.first(args))
                return []
            case "call" | "condition" | "chunking" | "aggregate":
                return self._call(ready, self._functions[p.setting("fn")])
            case _:
                self._request(ready)
                return []

    def _prompts(self, ready: Ready) -> list[Fragment]:
        p, join = ready.primitive, self._prepared.join
        return [Fragment(p.name, tag, join(p, args)) for tag, args in ready.instances]

    def _is_stale(self, ready: Ready) -> bool:
        """Whether functions that the framework's run had to execute before may have changed an argument."""
        is_stale = self._functions[ready.primitive.setting("fn")].is_stale if ready.primitive.setting("fn") else None
        return is_stale is not None and any(is_stale(*args) for args in ready.args)

    def _call(self, ready: Ready, function: Function) -> list[Event]:
        def call() -> list[Event]:
            called = (self._called(ready.primitive, tag, function, args) for tag, args in ready.instances)
            return list(itertools.chain.from_iterable(called))

        def work() -> None:
            events = [] if ready.primitive.name in self._read else call()
            self._soon(lambda: self._scheduler.apply(self._kept(ready.primitive, events)), ended=1)

        if function.is_glue:
            return call()
        if function.asks or function.is_async:
            works = [self._asking(ready.primitive, tag, function, args) for tag, args in ready.instances]
        else:
            works = [work]
        self._on_its_way += len(works)
        self._put_off += works  # first, so that a run that starts to wait meanwhile finds the work
        if self._session.is_retiring_busy:
            self._loop.call_later(PATIENCE_S, self.resume)
        else:
            self.resume()
        return []

    def _kept(self, p: Primitive, events: list[Event]) -> list[Event]:
        """Return the events that count. A function that could not be read is left to the framework's run."""
        if p.engine != READER:
            return events
        if p.name in self._read or any(isinstance(event, Lost) for event in events):
            return []
        if not self._plan.map_depths[p.name]:
            self._read.add(p.name)
        return events

    def _asking(self, p: Primitive, tag: Tag, function: Function, args: tuple[Any, ...]) -> Callable[[], None]:
        """Return a callback which starts a call of a function with model requests."""
        session = self._session.asking(self._plan.remaining[p.name], self._since)
        loop = self._session.callers_loop

        def ended(events: list[Event], started_s: float) -> None:
            failed = any(isinstance(event, Lost) for event in events)
            session.close()
            self._record(PrimitiveRan(p.name, p.engine, 1, started_s, time.perf_counter(), failed))
            self._soon(lambda: self._scheduler.apply(self._kept(p, events)), ended=1)

        def work() -> None:
            started_s = time.perf_counter()
            with seams.active(session):
                events = self._called(p, tag, function, args)
            ended(events, started_s)

        async def awork() -> None:
            started_s = time.perf_counter()
            with seams.active(session):
                try:
                    events = _made(self._plan, p, tag, await function.call(*args))
                except (Exception, Withheld, asyncio.CancelledError) as e:
                    events = _lost(p, tag, e)
            ended(events, started_s)

        def begin() -> None:
            if self._is_over:
                return
            begun = background.begin(awork if function.is_async else work, function.is_async, loop)
            if begun is None:
                self._soon(lambda: self._scheduler.apply([Lost(p.name, tag)]), ended=1)
            elif function.is_async:
                self._tasks.append(begun)

        return begin

    def _round(self, number: int, p: Primitive, tag: Tag, prepared: PreparedRounds, inputs: Mapping[str, Any]) -> None:
        """Run round `number` of a function that is a graph, and all later rounds."""

        def ended() -> list[Ready]:
            outputs = inner.outputs()
            if outputs is None:
                return self._scheduler.apply([Lost(p.name, tag)])
            after = prepared.rounds.after(number, inputs, outputs)
            if after is None:
                return self._scheduler.apply(_made(self._plan, p, tag, prepared.rounds.value(inputs, outputs)))
            self._on_its_way += 1
            self._round(number + 1, p, tag, prepared, after)
            return []

        inner = PlanExecutor(
            prepared.each, inputs, self._session, self._record, lambda: self._soon(ended, ended=1), since=self._since
        )
        self._inner[p.name, tag] = inner
        inner.start()

    def _called(self, p: Primitive, tag: Tag, function: Function, args: tuple[Any, ...]) -> list[Event]:
        try:
            return _made(self._plan, p, tag, function.call(*args))
        except (Exception, Withheld) as e:  # of the user's function: the framework's run will meet the same error
            return _lost(p, tag, e)

    def _request(self, ready: Ready) -> None:
        p = ready.primitive
        is_wanted = self._scheduler.is_wanted(p.name) if p.name in self._prepared.ahead else True
        started_s = time.perf_counter()
        payloads = [_plain(args[0]) if len(args) == 1 else tuple(map(_plain, args)) for args in ready.args]
        spec, op, urgency = self._engines[p.engine], p.kind.removeprefix("partial_"), self._plan.remaining[p.name]
        is_followed = p.kind == "partial_decoding"
        if is_followed and self._streams_lists:
            payloads = [replace(x, is_streamed=True) if isinstance(x, Foreign) else x for x in payloads]
        guess: SpeculativeRequest[list[Reply]] | None = None
        if is_wanted is None:
            guessed = self._session.guess(spec, op, payloads, p.engine_settings, urgency, self._since)
            guess = self._guesses.add(ready, guessed)
            if guessed is None:
                return
            replies = guessed
        else:
            replies = self._session.submit_ahead(spec, op, payloads, p.engine_settings, urgency, self._since)
        if is_followed:
            self._follow_items(p, ready.tags[0], replies[0])
        ends = itertools.count(1)  # from several threads, where the framework's run computes shared replies
        self._on_its_way += 1

        def ended() -> None:
            if next(ends) == len(replies):
                failed = _any_failed(replies)
                if not (guess and guess.request is None):  # else the request was given up
                    self._record(PrimitiveRan(p.name, p.engine, len(replies), started_s, time.perf_counter(), failed))
                self._soon(came, ended=1)

        def came() -> list[Ready]:
            if guess and guess.request is None:
                return []
            if guess and _any_failed(replies) and self._guesses.withdraw(guess):
                self._session.settle(replies, is_wanted=False)
                return []
            return self._scheduler.apply([] if is_followed else self._outcomes(p, ready.tags, replies))

        for reply in replies:
            reply.when_ended(ended)

    def _outcomes(self, p: Primitive, tags: Sequence[Tag], replies: Sequence[Reply]) -> list[Event]:
        events: list[Event] = []
        for tag, reply in zip(tags, replies, strict=True):
            if not isinstance(reply.outcome, Done):
                events.append(Lost(p.name, tag))
            elif self._plan.yields[p.name] and p.kind in DECODES:
                items = parse_items(p.setting("items"), reply.outcome.value)
                events += _spread(p.name, tag, items[: p.setting("wanted")])
            elif self._plan.yields[p.name]:
                events += _spread(p.name, tag, reply.outcome.value)
            else:
                events.append(Fragment(p.name, tag, reply.outcome.value))
        return events

    def _follow_items(self, p: Primitive, tag: Tag, reply: Reply) -> None:
        """Hand out each item of a decoding as soon as the item's text is complete."""
        parser, wanted = parser_for(p.setting("items")), p.setting("wanted")
        count = 0
        is_closed = is_streamed = False

        def whole(text: Any) -> list[Any]:  # a foreign model may emit the whole text at once
            return [*([] if is_streamed else parser.feed(str(text))), *parser.close()]

        def read(outcome: Delta | Done) -> list[Any] | None:
            try:
                return parser.feed(outcome.text) if isinstance(outcome, Delta) else whole(outcome.value)
            except ItemsError as e:  # the framework's run reads the text in its own way
                log.debug("%s: %s", p.name, e)
                return None

        def hear(outcome: Outcome) -> None:
            nonlocal count, is_closed, is_streamed
            if is_closed:
                return
            events: list[Event] = []
            if isinstance(outcome, Failed) or (items := read(outcome)) is None:
                events.append(Lost(p.name, tag))
                is_closed = True
            else:
                is_streamed = True
                if wanted is not None:
                    items = items[: wanted - count]
                events += [Fragment(p.name, (*tag, count + i), item) for i, item in enumerate(items)]
                count += len(items)
                if isinstance(outcome, Done) or count == wanted:
                    events.append(Closed(p.name, tag, count))
                    is_closed = True
            if events:
                self._soon(lambda: self._scheduler.apply(events))
            if is_closed and p.setting("early_stop"):
                reply.cancel_unless_ended()

        reply.listen(hear)

    def _soon(self, step: Callable[[], list[Ready]], ended: int = 0) -> None:
        if threading.get_ident() == self._thread_id:
            self._loop.call_soon(self._go, step, ended, context=Context())
        else:
            self._loop.call_soon_threadsafe(self._go, step, ended, context=Context())


def _any_failed(replies: Sequence[Reply]) -> bool:
    return any(isinstance(reply.outcome, Failed) for reply in replies)


def _made(plan: Plan, p: Primitive, tag: Tag, value: Any) -> list[Event]:
    return _spread(p.name, tag, value) if plan.yields[p.name] else [Fragment(p.name, tag, value)]


def _lost(p: Primitive, tag: Tag, error: BaseException) -> list[Event]:
    log.debug("%s was lost in the run-ahead: %r", p.name, error)
    return [Lost(p.name, tag)]


def _spread(name: str, tag: Tag, items: Sequence[Any]) -> list[Event]:
    return [*(Fragment(name, (*tag, i), item) for i, item in enumerate(items)), Closed(name, tag, len(items))]
