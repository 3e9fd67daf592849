"""What a program will ask for, while it runs: read again each time that an answer comes.

An evaluation (`Run`) goes as far as it can with the answers there are, and says what is asked next. What is certain is
asked at once; what comes of it is an answer for the evaluation after that:

    read -> asks -> engines -> answers -> read -> ... -> the end of the program, or something that is not read

With routes that are learned (see branches.py) each reading is followed by a second one that assumes them; what only
that one comes to is *possible*, and given up as soon as no reading comes to it any more.

Nobody waits for a prediction, and it tells nobody but the engines. Where an engine fails, it ends: the framework's own
run will meet the same.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from teola_plugin.adapters.reader.asking import Ask, Asker, Request
from teola_plugin.adapters.reader.branches import Branches
from teola_plugin.adapters.reader.exchange import Exchange
from teola_plugin.adapters.reader.resuming import Passed, Stop
from teola_plugin.adapters.reader.run import Answer, Given, Run, TooLarge
from teola_plugin.adapters.reader.stacks import Listener, is_wrong
from teola_plugin.adapters.reader.values import Barrier, Stalled, Undecided
from teola_plugin.engines import Done, Failed, Foreign
from teola_plugin.failures import Withheld
from teola_plugin.request_identity import request_key
from teola_plugin.routes import CallRoutes
from teola_plugin.seams import Reply
from teola_plugin.trace import Asides, Mark

log = logging.getLogger(__name__)

MAX_READINGS = 200
"""Of one program, from one state on."""


class Line(Protocol):
    """Where a prediction asks, and where it has its work done."""

    def ask(self, request: Request, mark: Mark | None = None) -> Reply | None:
        """The reply to a request, which may still be on its way; None if it is not made.

        `mark`: see `trace.Asides.request`.
        """
        ...

    def give_up(self, reply: Reply) -> None:
        """Nobody needs this reply any more."""
        ...

    def soon(self, work: Callable[[], None]) -> None:
        """Do some work in another thread."""
        ...

    def spent(self, seconds: float) -> None:
        """So much CPU time went into reading."""
        ...


@dataclass
class State:
    """What a program is read from: its inputs and how often each request was made before.

    `program` evaluates it. It may return another state, from which the next evaluation is to begin: one that is reached
    for certain, with nothing unknown in it.
    """

    program: Callable[[Run], State | None]
    given: Given
    counts: Counter[Hashable] = field(default_factory=Counter)


class Prediction:
    """One program, from one state on. `barriers`: what was not read, where; `readings`: how often it was read."""

    def __init__(
        self, asker: Asker, line: Line, state: State, *, speculates: bool = False, routes: CallRoutes | None = None,
        listener: Listener | None = None,
    ) -> None:  # fmt: skip
        """`speculates`: what is only possible is asked too. `routes`: learned, to be learned from and assumed.

        `listener`: hears the framework's run; see resuming.py.
        """
        self.barriers: list[Barrier] = []
        self.readings = 0
        self._speculates = speculates
        self._asker = asker
        self._line = line
        self._state = state
        self._answers: dict[Hashable, Answer] = {}
        self._given = state.given
        self._replies: dict[Hashable, Reply] = {}
        self._found: dict[Hashable, Request] = {}
        self._keys: dict[Hashable, Hashable] = {}
        self._routes = routes
        self._possible: dict[Hashable, Ask] = {}
        self._waiting: dict[Hashable, tuple[Ask, Reply]] = {}
        self._stops: Sequence[Stop] = ()
        self._passed: list[Passed] = []
        self._unbound: list[Passed] = []
        self._mark: Mark | None = None
        self._listener = listener or Listener()
        self._listener.on_news = self._read_behind
        self._lock = threading.Lock()
        self._is_reading = False
        self._has_news = False
        self._is_stopped = False
        self.is_over = False

    def begin(self) -> None:
        """Read it, in another thread."""
        self._news()

    def stop(self, *, is_wrong: bool = False) -> None:
        """Nothing more is asked from here on. `is_wrong`: what was assumed is known not to be so."""
        with self._lock:
            self.is_over = self._is_stopped = self._listener.is_over = True
            possible = list(self._possible.values()) if is_wrong else []
        for ask in possible:
            self._give_up(ask)
        if self._routes is not None:
            self._news(is_last=True)  # how its branches came out

    def _news(self, *, is_last: bool = False) -> None:
        with self._lock:
            self._has_news = True
            if self._is_reading or (self.is_over and not is_last):
                return
            self._is_reading = True
        self._line.soon(self._read)

    def _read(self) -> None:
        while True:
            with self._lock:
                if not self._has_news or (self.is_over and self._routes is None):
                    self._is_reading = False
                    return
                self._has_news = False
            started_s = time.thread_time()
            try:
                self._evaluate()
            except Exception:  # a fault of ours is never the user's: nothing more runs ahead
                log.exception("a program could not be read")
                self.is_over = self._listener.is_over = True
            finally:
                self._line.spent(time.thread_time() - started_s)
            if self._is_stopped and self._routes is not None:
                self._routes.forget(self)

    def _evaluate(self) -> None:
        self.readings += 1
        came = [key for key, (_, reply) in list(self._waiting.items()) if reply.outcome is not None]
        if self.readings > MAX_READINGS or not all(self._answered(*self._waiting.pop(key)) for key in came):
            self.is_over = self._listener.is_over = True
            return
        run = self._run()
        after = self._read_on(run, self.barriers)
        self._submit(run)
        if after is not None:
            self._state = after
            self._passed, self._mark = self._passed[run.used :], run.mark
            run.hand_on(self._given)
            self._has_news = True
            return
        self._listen(run)
        if run.branches is not None and not (self.is_over or self._has_news):
            self._go_on(run, run.branches)
        with self._lock:
            self.is_over |= not (self._waiting or self._has_news)

    def _listen(self, run: Run) -> None:
        """Read on behind what was not read, once the framework's run has come past it."""
        if run.is_lost:
            is_wrong(run.open.stop)
        if not run.stops:
            return
        del self._passed[run.used :]
        self._stops = run.stops
        self._listener.note(run.stops)
        self._read_behind()

    def _read_behind(self) -> None:
        with self._lock:
            passed = None if self._listener.is_over else self._listener.find(self._stops)
            if passed is None:
                return
            self._stops = ()
            self._unbound.append(passed)
            self.is_over = False
        self._news()

    def _run(self, *, is_assuming: bool = False) -> Run:
        branches = Branches(self._routes, self, is_assuming) if self._routes is not None else None
        run = Run(self._asker, answers=self._answers, given=self._given, branches=branches)
        run.counts.update(self._state.counts)
        while self._unbound:
            passed = self._unbound.pop()
            with contextlib.suppress(Barrier):  # it is too much
                passed.bind(self._given, run.heard)
                self._passed.append(passed)
        run.passed, run.mark = self._passed, self._mark
        return run

    def _read_on(self, run: Run, barriers: list[Barrier]) -> State | None:
        try:
            return self._state.program(run)
        except Barrier as e:
            barriers.append(e)
        except (Stalled, Undecided):
            pass
        except Exception as e:  # the program raises, as the framework's run will
            log.debug("what was read raises %r", e)
        finally:
            run.put_back()
        return None

    def _go_on(self, run: Run, branches: Branches) -> None:
        """Ask for what is possible where it is likely, and give up what was asked so and is possible no more."""
        reached = set(run.counts)
        if branches.may_assume and branches.routes.may_ask:
            further = self._run(is_assuming=True)
            self._read_on(further, [])
            self._submit(further, is_possible=True)
            reached |= set(further.counts)
        with self._lock:
            left = [ask for ask in self._possible.values() if ask.request.key not in reached]
        for ask in left:
            self._give_up(ask)

    def _give_up(self, ask: Ask) -> None:
        with self._lock:
            if self._possible.pop(ask.key, None) is None:
                return  # it is certain by now, or another thread has given it up
            reply = self._replies[ask.key]
            if reply.outcome is not None:
                return  # it is there, and may be wanted after all
            del self._replies[ask.key]
        self._line.give_up(reply)

    def _is_passed(self, where: Hashable) -> bool:
        """The framework's run of a function has made a request that was not found: it may be past what is read here.

        What it has changed since outside of the function may have been read as it is now, and not as it was.
        """
        made = self._listener.made(where)
        if not made or any(request.act is not None for request in self._found.values()):
            return False
        for number, request in self._found.items():
            if number not in self._keys:
                self._keys[number] = request_key(request.spec, request.op, request.payload, request.settings)
        return not made <= Counter(self._keys.values())

    def _submit(self, run: Run, *, is_possible: bool = False) -> None:
        self._found.update((ask.key, ask.request) for ask in run.asks.values())
        for ask in run.asks.values():
            if not may_be_asked(ask, speculates=self._speculates):
                continue
            if ask.key in self._replies:
                if not is_possible:
                    self._possible.pop(ask.key, None)
                continue
            if ask.request.spec.is_outside and self._is_passed(ask.where):
                continue
            with self._lock:  # whoever stops it may ask for the same after that
                reply = None if self.is_over else self._line.ask(ask.request, ask.mark)
                if reply is not None:
                    self._replies[ask.key] = reply
                    if is_possible:
                        self._possible[ask.key] = ask
            if reply is None:
                self.is_over |= not is_possible
                return
            self._waiting[ask.key] = ask, reply
            reply.when_ended(self._news)

    def _answered(self, ask: Ask, reply: Reply) -> bool:
        """Make an answer of a reply. Returns whether the prediction goes on."""
        outcome = reply.outcome
        if self._replies.get(ask.key) is not reply:  # given up
            return True
        if outcome is None or isinstance(outcome, Failed):
            return ask.key in self._possible
        try:
            answer = Answer(self._given.copy(ask.request.value(outcome.value)))
        except (Barrier, Withheld, TooLarge) as e:
            log.debug("a reply is not read: %r", e)
            return False
        except Exception as e:  # the framework cannot read the reply either; the program gets the error
            answer = Answer(error=e)
        self._answers[ask.key] = answer
        return True


def read_whole(
    asker: Asker, ask: Callable[[Request], Reply | None], program: Callable[[Run], Any], given: Given,
    note: Callable[[Barrier | None, int, Sequence[Barrier]], None] = lambda *noted: None, *, later: Line | None = None,
    listener: Listener | None = None,
) -> Any:  # fmt: skip
    """What a program comes to, whose requests are made here; waits for their replies.

    `note` is told of each reading how far it came, how many requests it found, and what it went on behind. `later`:
    where to ask once the framework's run has come past what was not read (`listener`: see `Prediction`).

    Raises: LookupError if it is not read to its end, and what the program raises.
    """
    line = _Waiting(ask, later)
    found: list[Any] = []
    raised: list[Exception] = []

    def read(run: Run) -> None:
        barrier: Barrier | None = None
        try:
            value = Exchange(run).out(program(run))
            if run.has_changed_given:
                raise Barrier("it changes its input")
        except Barrier as e:
            barrier = e
            raise
        except Exception as e:
            if not run.asks:
                raised.append(e)
            raise
        finally:
            note(barrier, run.counts.total(), run.skipped)
        if not run.asks:
            found.append(value)

    prediction = Prediction(asker, line, State(read, given), listener=listener)
    prediction.begin()
    line.wait(prediction)
    if raised:
        raise raised[0]
    if not found:
        raise LookupError(prediction.barriers[0].what if prediction.barriers else "it was not read to its end")
    return found[0]


class _Waiting:
    """Implements `Line` for a thread that waits: it asks by `ask`, and goes on `later`, when nobody waits any more."""

    def __init__(self, ask: Callable[[Request], Reply | None], later: Line | None) -> None:
        self._ask = ask
        self._later = later
        self._works: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_left = False

    def wait(self, prediction: Prediction) -> None:
        """Do the work of a prediction until it is over."""
        while not prediction.is_over:
            self._works.get()()
        with self._lock:
            self._is_left = True
        while not self._works.empty():
            self.soon(self._works.get())

    def ask(self, request: Request, mark: Mark | None = None) -> Reply | None:
        """See `Line`."""
        return self._ask(request) if mark is None or self._later is None else self._later.ask(request, mark)

    def soon(self, work: Callable[[], None]) -> None:
        """See `Line`."""
        with self._lock:
            if not self._is_left:
                self._works.put(work)
                return
        if self._later is not None:
            self._later.soon(work)

    def give_up(self, reply: Reply) -> None:
        """Whoever waits asks for nothing in vain."""

    def spent(self, seconds: float) -> None:
        """Whoever waits has spent it."""


@dataclass(frozen=True)
class CallLine:
    """Implements `Line` for a call: what is asked lands in its slots.

    `is_streamed`: LangChain asks models for streams, which have readers; those of others are left to it.
    """

    asides: Asides
    is_streamed: bool = False

    def ask(self, request: Request, mark: Mark | None = None) -> Reply | None:
        """See `Line`."""
        if self.is_streamed and (request.act is not None or isinstance(request.payload, Foreign)):
            return None
        if request.act is None:
            return self.asides.request(request.spec, request.op, request.payload, request.settings, mark)
        return acted(self.asides, request, mark)

    def give_up(self, reply: Reply) -> None:
        """See `Line`."""
        self.asides.drop(reply)

    def soon(self, work: Callable[[], None]) -> None:
        """See `Line`."""
        self.asides.read(work)

    def spent(self, seconds: float) -> None:
        """See `Line`."""
        self.asides.spent(seconds)


def acted(asides: Asides, request: Request, mark: Mark | None = None) -> Reply:
    """The reply to what is no request of one engine: what its function returns, beside the call."""
    reply = Reply()
    act: Any = request.act

    def work() -> None:
        _act(reply, act)

    async def awork() -> None:
        try:
            reply.put(Done(await act()))
        except BaseException as e:  # whoever waits for the reply must hear of it
            reply.put(Failed(e))
            raise

    begun, is_async = (awork if request.is_async else work), request.is_async
    aside = partial(asides.aside, request.shown, begun, is_async=is_async, is_until_rewound=True, mark=mark)
    asides.when_open(request.spec, aside)
    return reply


def acted_at_once(request: Request) -> Reply | None:
    """`acted` for who waits: in a thread of its own, so that several do not wait for each other, or here if there are
    many. None for a coroutine function, which has no loop here.
    """
    if request.is_async:
        return None
    reply = Reply()
    is_apart = _threads.acquire(blocking=False)

    def work() -> None:
        try:
            with contextlib.suppress(Exception, Withheld):
                _act(reply, request.act)
        finally:
            if is_apart:
                _threads.release()

    if is_apart:
        threading.Thread(target=copy_context().run, args=(work,), name="teola-act", daemon=True).start()
    else:
        work()
    return reply


MAX_ACTING = 64
_threads = threading.BoundedSemaphore(MAX_ACTING)


def _act(reply: Reply, act: Any) -> None:
    try:
        reply.put(Done(act()))
    except BaseException as e:  # whoever waits for the reply must hear of it
        reply.put(Failed(e))
        raise


def may_be_asked(ask: Ask, *, speculates: bool = False) -> bool:
    """Whether a request is made ahead of the program.

    What leaves this process's own engines is asked only if it is certain. On these it may also stand behind what
    perhaps raises: that is rare, costs nobody else, and is counted as wasted. `speculates`: the user lets what is
    merely possible be asked as well.
    """
    if speculates or ask.is_certain:
        return True
    return not (ask.is_possible or ask.request.spec.is_outside)
