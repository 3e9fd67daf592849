"""The prediction of a running program's requests: the program is read again at each answer.

An evaluation (`Run`) goes as far as the answers allow and returns the next requests. Certain requests are made at once;
each reply is an answer for the next evaluation:

    read -> asks -> engines -> answers -> read -> ... -> the end of the program, or an unread statement

With learned routes (see branches.py) each reading is followed by a second reading that assumes the routes. Requests of
the second reading alone are *possible*, and cancelled as soon as no reading finds them.

No caller waits for a prediction, and only engines hear of the requests. A failing engine ends the prediction: the
framework's run will meet the same failure.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from teola_plugin.adapters.reader.asking import Ask, Asker, Request
from teola_plugin.adapters.reader.branches import Branches
from teola_plugin.adapters.reader.changes import Changed
from teola_plugin.adapters.reader.exchange import Exchange
from teola_plugin.adapters.reader.resuming import Passed, Stop
from teola_plugin.adapters.reader.run import Answer, Given, Run, TooLarge
from teola_plugin.adapters.reader.stacks import Listener, is_wrong
from teola_plugin.adapters.reader.values import Barrier, Renewed, Stalled, Undecided
from teola_plugin.engines import Done, Failed, Foreign
from teola_plugin.failures import Withheld
from teola_plugin.request_identity import request_key
from teola_plugin.routes import CallRoutes
from teola_plugin.seams import Reply
from teola_plugin.trace import Asides, Mark

log = logging.getLogger(__name__)

MAX_READINGS = 200
"""Readings of one program from one state."""

GATHERING = 0.5
"""How long a reply waits for further replies, as a part of the time of the latest evaluation.

Replies to requests made together often come together: the first alone would be read for nothing, and the others would
wait for that reading.
"""

MAX_IN_VAIN = 3
"""Rounds of a loop that are read on behind an unread statement and have only one request, before no more are read."""


class Line(Protocol):
    """The connection of a prediction to requests and worker threads."""

    def ask(self, request: Request, mark: Mark | None = None) -> Reply | None:
        """Return the reply to a request, maybe still on the way; None if the request is not made.

        `mark`: see `trace.Asides.request`.
        """
        ...

    def give_up(self, reply: Reply) -> None:
        """Cancel a reply that no reading needs any more."""
        ...

    def soon(self, work: Callable[[], None]) -> None:
        """Run some work in another thread."""
        ...

    def spent(self, seconds: float) -> None:
        """Count CPU time that was spent on reading."""
        ...


@dataclass
class State:
    """The start of a reading: the inputs of a program and how often each request was made before.

    `program` evaluates the program. The program may return another state for the next evaluation to begin from: a state
    reached for certain, without unknown values. `waits`: whether an evaluation finds nothing that the latest one has
    not found, if these requests (keys) are answered.
    """

    program: Callable[[Run], State | None]
    given: Given
    counts: Counter[Hashable] = field(default_factory=Counter)
    waits: Callable[[Set[Hashable]], bool] = lambda answered: False


class Prediction:
    """The prediction of one program from one state. `barriers`: the unread statements; `readings`: how many.

    `is_evaluating`: an evaluation goes on now.
    """

    def __init__(
        self, asker: Asker, line: Line, state: State, *, speculates: bool = False, routes: CallRoutes | None = None,
        listener: Listener | None = None,
    ) -> None:  # fmt: skip
        """Prepare a prediction.

        `speculates`: possible requests are made too. `routes`: learned routes, to learn from and to assume.
        `listener`: hears the framework's run; see resuming.py.
        """
        self.barriers: list[Barrier] = []
        self.readings = 0
        self.is_evaluating = False
        self._together: list[list[Hashable]] = []
        self._speculates = speculates
        self._asker = asker
        self._line = line
        self._state = state
        self._answers: dict[Hashable, Answer] = {}
        self._given = state.given
        self._replies: dict[Hashable, Reply] = {}
        self._found: dict[tuple[Hashable, int], Request] = {}
        self._keys: dict[Hashable, Hashable] = {}
        self._accounted: dict[Hashable, tuple[int, int]] = {}
        self._routes = routes
        self._possible: dict[Hashable, Ask] = {}
        self._waiting: dict[Hashable, tuple[Ask, Reply]] = {}
        self._stops: Sequence[Stop] = ()
        self._passed: list[Passed] = []
        self._changed: list[Changed] = []
        self._unbound: list[Passed] = []
        self._had_found = self._rounds_in_vain = 0
        self._mark: Mark | None = None
        self._took_s = 0.0
        self._has_come = threading.Event()
        self._listener = listener or Listener()
        if listener is not None:
            listener.on_news = self._read_behind
        self._lock = threading.Lock()
        self._is_reading = False
        self._has_news = False
        self._is_due = True
        self._is_stopped = False
        self.is_over = False

    def begin(self) -> None:
        """Start reading in another thread."""
        self._news()

    def stop(self, *, is_wrong: bool = False) -> None:
        """Make no more requests. `is_wrong`: the assumed routes have proved wrong."""
        with self._lock:
            self.is_over = self._is_stopped = True
            self._has_come.set()
            self._listener.end()
            possible = list(self._possible.values()) if is_wrong else []
        for ask in possible:
            self._give_up(ask)
        if self._routes is not None:
            self._news(is_last=True)  # how its branches came out

    def withdraw(self) -> bool:
        """End a prediction that has read nothing yet. Returns whether the prediction had read nothing."""
        with self._lock:
            if self.readings or not self._has_news or self._is_stopped:
                return False
            self.is_over = self._is_stopped = True
            self._listener.end()
        return True

    @property
    def is_reading(self) -> bool:
        """Whether the program is being read, or about to be."""
        return self._is_reading

    @property
    def may_go_on(self) -> bool:
        """Whether reading goes on now, or may go on behind an unread statement; see resuming.py."""
        return (self._is_reading or bool(self._stops)) and not self._listener.is_over

    @property
    def found(self) -> int:
        """The number of requests that were found so far."""
        return len(self._found)

    def had_room(self, are_asked_together: Callable[[Sequence[Reply]], bool]) -> bool:
        """Whether an evaluation found several requests that the framework's run did not make together."""
        for keys in self._together:
            replies = [reply for key in keys if (reply := self._replies.get(key)) is not None]
            if len(replies) < len(keys) or not are_asked_together(replies):
                return True
        return False

    def _news(self, *, is_last: bool = False) -> None:
        with self._lock:
            self._has_news = True
            self._has_come.set()
            if self._is_reading or (self.is_over and not is_last):
                return
            self._is_reading = True
        self._line.soon(self._read)

    def _gather(self) -> None:
        """Wait a little for the replies that have not come yet, if some have."""
        until_s = time.monotonic() + GATHERING * self._took_s
        while (left_s := until_s - time.monotonic()) > 0 and not (self.is_over or self._unbound):
            self._has_come.clear()
            came = [reply.outcome is not None for _, reply in list(self._waiting.values())]
            if all(came) or not any(came):
                return
            self._has_come.wait(left_s)

    def _read(self) -> None:
        while True:
            self._gather()
            with self._lock:
                if not self._has_news or (self.is_over and self._routes is None):
                    self._is_reading = False
                    return
                self._has_news = False
            started_s, began_s = time.thread_time(), time.monotonic()
            self.is_evaluating = True
            try:
                self._evaluate()
            except Exception:  # a fault of ours is never the user's: nothing more runs ahead
                log.exception("a program could not be read")
                self._end()
            finally:
                self.is_evaluating = False
                self._took_s = time.monotonic() - began_s
                self._line.spent(time.thread_time() - started_s)
            if self._is_stopped and self._routes is not None:
                self._routes.forget(self)

    def _evaluate(self) -> None:
        came = [key for key, (_, reply) in list(self._waiting.items()) if reply.outcome is not None]
        if self.readings >= MAX_READINGS or not all(self._answered(*self._waiting.pop(key)) for key in came):
            self._end()
            return
        if came and self._may_wait(came):
            with self._lock:
                self.is_over |= not (self._waiting or self._has_news)
            return
        self.readings += 1
        run, after = self._read_anew(self.barriers)
        self._submit(run)
        if after is not None:
            self._state = after
            self._passed, self._mark = self._passed[run.used :], run.mark
            del self._changed[: run.used]
            run.hand_on(self._given)
            self._has_news = self._is_due = True
            return
        self._is_due = False
        self._listen(run)
        if run.branches is not None and not (self.is_over or self._has_news):
            self._go_on(run, run.branches)
        with self._lock:
            self.is_over |= not (self._waiting or self._has_news)

    def _end(self) -> None:
        self.is_over = True
        self._listener.end()

    def _may_wait(self, came: Sequence[Hashable]) -> bool:
        """Whether no evaluation is needed for these replies."""
        if self._is_due or self._routes is not None or self._unbound:
            return False
        answers = [self._answers.get(key) for key in came]
        return all(each and not each.error for each in answers) and self._state.waits(self._answers.keys())

    def _listen(self, run: Run) -> None:
        """Read on behind unread statements once the framework's run has come past them."""
        if run.is_lost:
            is_wrong(run.open.stop)
        again = [stop for each in run.passed[: run.used] if (stop := each.again) is not None]
        stops = [*run.stops, *(run.after if run.changes.is_needed else ()), *again]
        if not stops:
            return
        del self._passed[run.used :]
        self._stops = stops
        self._listener.note(stops)
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
        while len(self._changed) <= len(self._passed) + len(self._unbound):
            self._changed.append({})
        run = Run(self._asker, answers=self._answers, given=self._given, branches=branches, changed=self._changed)
        run.counts.update(self._state.counts)
        run.give_way()
        while self._unbound:
            passed = self._unbound.pop()
            passed.made_keys = Counter(key() for key in self._listener.made(passed.where)[: passed.made])
            self._begin_round(passed)
            with contextlib.suppress(Barrier):  # too much to copy
                passed.bind(self._given, run.heard)
                self._passed.append(passed)
        run.passed, run.mark = self._passed, self._mark
        return run

    def _begin_round(self, passed: Passed) -> None:
        """Forget how the framework's run came past the same stop in an earlier round of a loop."""
        stops = ((at, each.again) for at, each in enumerate(self._passed))
        at, stop = next(((at, stop) for at, stop in stops if stop is not None and passed.is_past(stop)), (0, None))
        if stop is None:
            return
        self._rounds_in_vain = self._rounds_in_vain + 1 if len(self._found) <= self._had_found + 1 else 0
        self._had_found = len(self._found)
        if self._rounds_in_vain >= MAX_IN_VAIN:
            self._listener.leave(stop)
        del self._passed[at:]
        for each in self._changed[at + 1 :]:
            each.clear()

    def _read_anew(self, barriers: list[Barrier], *, is_assuming: bool = False) -> tuple[Run, State | None]:
        """Evaluate the program until an evaluation comes to no further change of outside values."""
        while True:
            run = self._run(is_assuming=is_assuming)
            with contextlib.suppress(Renewed):
                return run, self._read_on(run, barriers)

    def _read_on(self, run: Run, barriers: list[Barrier]) -> State | None:
        try:
            return self._state.program(run)
        except Barrier as e:
            barriers.append(e.bare())
        except (Stalled, Undecided):
            pass
        except Exception as e:  # the program raises, as the framework's run will
            log.debug("what was read raises %r", e)
        finally:
            run.put_back()
        return None

    def _go_on(self, run: Run, branches: Branches) -> None:
        """Make possible requests where they are likely, and cancel possible requests that no reading finds now."""
        reached = set(run.counts)
        if branches.may_assume and branches.routes.has_budget:
            further, _ = self._read_anew([], is_assuming=True)
            self._submit(further, is_possible=True)
            reached |= set(further.counts)
        with self._lock:
            left = [ask for ask in self._possible.values() if ask.request.key not in reached]
        for ask in left:
            self._give_up(ask)

    def _give_up(self, ask: Ask) -> None:
        with self._lock:
            if self._possible.pop(ask.key, None) is None:
                return  # certain by now, or cancelled by another thread
            reply = self._replies[ask.key]
            if reply.outcome is not None:
                return  # the reply is there, and may still be used
            del self._replies[ask.key]
        self._line.give_up(reply)

    def _is_passed(self, run: Run, where: Hashable) -> bool:
        """Whether the framework's run of a function has made a request that was not found, so may be past the reading.

        Values outside of the function may have changed since, and may have been read as of now instead of as of then.
        Requests of unread statements do not count: the reading has gone on with the values behind the statement.
        """
        last = max((each for each in run.passed[: run.used] if each.where == where), key=_made, default=None)
        since = last.made if last is not None else 0
        made = self._listener.made(where, since)
        if not made or self._accounted.get(where) == (since, len(made)):
            return False
        acts = [request for request in self._found.values() if request.op == "act"]
        if acts and not any(each.shares for each in acts):
            return False
        found = [
            self._key_of(number, request)
            for number, request in self._found.items()
            if request.op != "act" and (last is None or self._is_since(last, number, request))
        ]
        if (Counter(key() for key in made) - Counter(found)).total() > len(acts):
            return True
        self._accounted[where] = since, len(made)  # requests that were found stay found
        return False

    def _is_since(self, passed: Passed, number: tuple[Hashable, int], request: Request) -> bool:
        """Whether a request was found for after the framework's run had come past a stop."""
        key, at = number
        return at - passed.began[key] >= passed.made_keys[self._key_of(number, request)]

    def _is_behind(self, run: Run, ask: Ask) -> bool:
        """Whether the framework's run has come past the place of a request, and has not made the request.

        Where reading has gone on behind an unread statement, what it found before that is read again: from a component
        that may have been changed in place since.
        """
        marks = [id(each.mark) for each in run.passed[: run.used]]
        at = marks.index(id(ask.mark)) + 1 if id(ask.mark) in marks else 0
        later = [each.made for each in run.passed[at : run.used] if each.where == ask.where]
        request = ask.request
        if not later or request.has_own_requests:
            return bool(later) and request.act is not None
        last: Passed | None = run.passed[at - 1] if at and run.passed[at - 1].where == ask.where else None
        since, before = (last.made, last.counts) if last is not None else (0, self._state.counts)
        made = [key() for key in self._listener.made(ask.where)[since : later[-1]]]
        return made.count(self._key_of(ask.key, request)) <= ask.number - before.get(request.key, 0)

    def _key_of(self, number: Hashable, request: Request) -> Hashable:
        """Return the key of a request's reply at the engine, made once."""
        if number not in self._keys:
            self._keys[number] = request_key(request.spec, request.op, request.payload, request.settings)
        return self._keys[number]

    def _submit(self, run: Run, *, is_possible: bool = False) -> None:
        self._found.update((ask.key, ask.request) for ask in run.asks.values())
        if len(run.asks) > 1:
            self._together.append([*run.asks])
        for ask in run.asks.values():
            if not may_be_asked(ask, speculates=self._speculates):
                continue
            if ask.key in self._replies:
                if not is_possible:
                    self._possible.pop(ask.key, None)
                continue
            if ask.request.spec.is_outside and (self._is_passed(run, ask.where) or self._is_behind(run, ask)):
                continue
            with self._lock:  # after a stop, another prediction may ask for the same
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
        """Turn a reply into an answer. Returns whether the prediction goes on."""
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


def _made(passed: Passed) -> int:
    return passed.made


Note = Callable[[Barrier | None, int, Sequence[Barrier]], None]
"""Is told of a reading: the barrier at the end, the number of requests, and the skipped statements."""


@contextlib.contextmanager
def noting(run: Run, note: Note) -> Iterator[None]:
    """Tell `note` how far a program is read inside the context."""
    barrier: Barrier | None = None
    try:
        yield
    except Barrier as e:
        barrier = e
        raise
    finally:
        note(barrier, run.counts.total(), run.skipped)
        barrier = None  # else the barrier would refer to this frame, which refers to the barrier


def read_whole(
    asker: Asker, ask: Callable[[Request], Reply | None], program: Callable[[Run], Any], given: Given,
    note: Note = lambda *noted: None, *, later: Line | None = None, listener: Listener | None = None,
) -> Any:  # fmt: skip
    """Return the result of a program, making the requests of the program here and waiting for the replies.

    `later`: the line for requests once the framework's run has come past an unread statement (`listener`: see
    `Prediction`).

    Raises: LookupError if the program is not read to the end, and errors of the program.
    """
    line = _Waiting(ask, later)
    found: list[Any] = []
    raised: list[Exception] = []

    def read(run: Run) -> None:
        try:
            with noting(run, note):
                value = Exchange(run).out(program(run))
                if run.has_changed_given:
                    raise Barrier("it changes its input")
                if run.changes.number:
                    raise Barrier(run.changes.what)
        except Exception as e:
            if not run.asks:
                raised.append(e)
            raise
        if not run.asks:
            found.append(value)

    prediction = Prediction(asker, line, State(read, given), listener=listener)
    prediction.begin()
    line.wait(prediction)
    if raised:
        raise raised.pop()
    if not found:
        raise LookupError(prediction.barriers[0].what if prediction.barriers else "it was not read to its end")
    return found[0]


class _Waiting:
    """Implements `Line` for a waiting thread: requests go to `ask`, and to `later` once the thread waits no longer."""

    def __init__(self, ask: Callable[[Request], Reply | None], later: Line | None) -> None:
        self._ask = ask
        self._later = later
        self._works: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_left = False

    def wait(self, prediction: Prediction) -> None:
        """Run the work of a prediction until the prediction is over."""
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
        """Ignore: a waiting thread makes no unused requests."""

    def spent(self, seconds: float) -> None:
        """See `Line`."""
        if self._later is not None:
            self._later.spent(seconds)


@dataclass(frozen=True)
class CallLine:
    """Implements `Line` for a call: requests open slots of the call.

    `is_streamed`: LangChain asks models for streams with readers; streams of foreign models are left to LangChain.
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
        self.asides.read(work, may_wait=self.asides.routes is None)  # the last reading for routes has no time to wait

    def spent(self, seconds: float) -> None:
        """See `Line`."""
        self.asides.spent(seconds)


def acted(asides: Asides, request: Request, mark: Mark | None = None) -> Reply:
    """Return the reply to a request that runs a function beside the call instead of asking an engine."""
    reply = Reply()
    act: Any = request.act

    def work() -> None:
        _act(reply, act)

    async def awork() -> None:
        try:
            reply.put(Done(await act()))
        except BaseException as e:  # waiters for the reply must hear of the error
            reply.put(Failed(e))
            raise

    begun, is_async = (awork if request.is_async else work), request.is_async
    aside = partial(asides.aside, request.shown, begun, is_async=is_async, is_until_rewound=True, mark=mark)
    asides.when_open(request.spec, aside)
    return reply


def acted_at_once(request: Request) -> Reply | None:
    """`acted` for a waiting caller; None for a coroutine function, which has no loop here.

    The function runs in its own thread, so that functions do not wait for each other, or in the caller's thread if
    `MAX_ACTING` are running.
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
    except BaseException as e:  # waiters for the reply must hear of the error
        reply.put(Failed(e))
        raise


def may_be_asked(ask: Ask, *, speculates: bool = False) -> bool:
    """Whether a request is made ahead of the program.

    Requests that leave this process's own engines must be certain. On own engines a request may also stand behind an
    operation that may raise: errors are rare, cost no provider, and the request is counted as wasted. `speculates`: the
    user allows possible requests too.
    """
    if speculates or ask.is_certain:
        return True
    return not (ask.is_possible or ask.request.spec.is_outside)
