"""Interception: the meeting point of the frameworks' own code and a running session.

A *leaf* is a call of a model or a store by the framework's code. Leaves are intercepted on the defining class
(adapters/interception.py), below callbacks, caches and limiters. The replacement first checks `current()`: without a
session, or inside an engine, only the original runs. With a session, the replacement passes the call on:

    session = current()
    if session is None: return original(self, texts, ...)
    replies = session.ask(spec, "embedding", texts, settings)      # one reply per item: a hit, or computed now
    return np.stack([r.result() for r in replies])

A session exists only inside a call of an optimized pipeline.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import functools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from teola_plugin import forks, loops
from teola_plugin.effects import NOTHING, Assumed
from teola_plugin.engines import Delta, Done, EngineSpec, Failed, Outcome
from teola_plugin.errors import Cancelled
from teola_plugin.finalizers import kept_off
from teola_plugin.providers import ProviderCall


class Hold(Protocol):
    """Work of the framework which normally ends while a model computes, and must end before the reply is handed out."""

    def due(self, *, blocks_loop: bool) -> Sequence[Future[None]]:
        """Return the unfinished work. `blocks_loop`: the caller waits in the thread of a running event loop."""
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """The work which delays a reply, with the latest end of the delay: the lead of the early request, no longer."""

    holds: Sequence[Hold]
    until_s: float

    def wait(self) -> None:
        """Wait in a thread until the work is over."""
        blocks_loop = asyncio._get_running_loop() is not None
        if due := [each for hold in self.holds for each in hold.due(blocks_loop=blocks_loop)]:
            concurrent.futures.wait(due, max(0, self.until_s - time.perf_counter()))

    async def wait_async(self) -> None:
        """`wait` for a coroutine."""
        if due := [each for hold in self.holds for each in hold.due(blocks_loop=False)]:
            await asyncio.wait(map(asyncio.wrap_future, due), timeout=max(0, self.until_s - time.perf_counter()))


def _do_nothing(*_: Any) -> None:
    """Nothing is left to cancel."""


class Reply:
    """The future outcome of one item, readable from any thread and any event loop.

    All deltas are kept, so a late reader sees the same stream. `provider_call`: the request, if an outside provider
    computes the item. `withdraw`: drop the item if no engine has begun it and the given function agrees. `held`: the
    work which must end before a reader gets the value. `came_s`: the time of the outcome.
    """

    __slots__ = (
        "_changed", "_copies", "_deltas", "_enders", "_listeners", "_lock", "_outcome", "came_s", "cancel",
        "held", "provider_call", "queued", "withdraw",
    )  # fmt: skip

    def __init__(self, cancel: Callable[[], None] | None = None) -> None:
        self._lock = threading.RLock()
        self._changed: threading.Condition | None = None  # made for the first waiting thread
        self._deltas: list[str] = []
        self._outcome: Done | Failed | None = None
        self._listeners: list[Callable[[Outcome], None]] = []
        self._enders: list[Callable[[], None]] = []
        self._copies: list[Reply] = []
        self.cancel: Callable[[], None] = cancel or _do_nothing
        self.queued: Any = None  # the queued call, for another caller: see runtime/session/queued_calls.py
        self.withdraw: Callable[[Callable[[], bool]], None] = _do_nothing
        self.provider_call: ProviderCall | None = None
        self.held: Held | None = None
        self.came_s: float | None = None

    @property
    def outcome(self) -> Done | Failed | None:
        """The outcome, or None while unfinished."""
        return self._outcome

    def put(self, outcome: Outcome) -> None:
        """Record an outcome of the engine; anything after the end is ignored."""
        with kept_off, self._lock:
            if self._outcome is not None:
                return
            if isinstance(outcome, Delta):
                self._deltas.append(outcome.text)
            else:
                for copied in self._copies:
                    copied.put(_copy(outcome))
                self._outcome = outcome
                self.came_s = time.perf_counter()
            listeners = list(self._listeners)
            enders = self._release() if self._outcome is not None else []
            if self._changed is not None:
                self._changed.notify_all()
        told: list[Callable[[], None]] = [*(functools.partial(listener, outcome) for listener in listeners), *enders]
        errors = [error for tell in told if (error := _error_of(tell))]
        if errors:
            raise errors[0]

    def _release(self) -> list[Callable[[], None]]:
        """Forget what served an unfinished reply, which may refer to the reply. Returns what is to be told."""
        enders, self._enders, self._listeners, self._copies = self._enders, [], [], []
        self.cancel, self.withdraw, self.queued = _do_nothing, _do_nothing, None
        return enders

    def copied(self) -> Reply:
        """Return a second reply with its own copy of the value, made before any reader has the value."""
        copied = Reply()
        with kept_off, self._lock:
            if self._outcome is None:
                self._copies.append(copied)
            else:
                copied.put(_copy(self._outcome))
        return copied

    def listen(self, listener: Callable[[Outcome], None]) -> None:
        """Call `listener` with every past and future outcome, in order, from the emitting thread."""
        with kept_off, self._lock:
            for text in self._deltas:
                listener(Delta(text))
            if self._outcome is not None:
                listener(self._outcome)
            else:
                self._listeners.append(listener)

    def when_ended(self, act: Callable[[], None]) -> None:
        """Call `act` once the reply has ended, from the emitting thread; deltas cost nothing."""
        with kept_off, self._lock:
            if self._outcome is None:
                self._enders.append(act)
                return
        act()

    def ended_with(self, error: BaseException) -> bool:
        """The error is how it ended, not what interrupted a wait for it (Ctrl-C, a cancelled task)."""
        return self._outcome == Failed(error)

    def result(self) -> Any:
        """Wait for the value and return it. Raises: the engine's own error; EngineLoopBlocked, see `loops`."""
        self._wait_while_held()
        with kept_off, self._lock:
            while self._outcome is None:
                self._wait()
        return _value(self._outcome)

    async def aresult(self) -> Any:
        """`result` for a coroutine; cancelling the coroutine does not cancel the reply."""
        if self.held:
            await self.held.wait_async()
        await self._await(lambda: self._outcome is not None)
        assert self._outcome is not None
        return _value(self._outcome)

    def stream(self) -> Iterator[str]:
        """Yield the deltas, then end or raise the engine's own error. Closing the iterator early cancels the work."""
        seen = 0
        try:
            self._wait_while_held()
            while True:
                with kept_off, self._lock:
                    while len(self._deltas) == seen and self._outcome is None:
                        self._wait()
                    fresh, ended = self._deltas[seen:], self._outcome
                seen += len(fresh)
                yield from fresh
                if ended is not None and seen == len(self._deltas):
                    _value(ended)
                    return
        finally:
            self.cancel_unless_ended()

    async def astream(self) -> AsyncIterator[str]:
        """`stream` for a coroutine."""
        seen = 0
        try:
            if self.held:
                await self.held.wait_async()
            while True:
                at = seen
                await self._await(lambda: len(self._deltas) > at or self._outcome is not None)  # noqa: B023
                with kept_off, self._lock:
                    fresh, ended = self._deltas[seen:], self._outcome
                seen += len(fresh)
                for text in fresh:
                    yield text
                if ended is not None and seen == len(self._deltas):
                    _value(ended)
                    return
        finally:
            self.cancel_unless_ended()

    def cancel_unless_ended(self) -> None:
        """Tell the engine to stop the item, since there is no reader left."""
        if self._outcome is None:
            self.cancel()
            self.put(Failed(Cancelled("nobody waits for this item any more")))

    def _wait_while_held(self) -> None:
        if self.held:
            self.held.wait()

    def _wait(self) -> None:
        """Wait for news. The lock is held by the caller, and released while waiting."""
        if holds_engine_loop():
            raise loops.blocked()
        if self._changed is None:
            self._changed = threading.Condition(self._lock)
        self._changed.wait()

    async def _await(self, ready: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            woken = loop.create_future()

            def wake(_: Outcome, woken: asyncio.Future[None] = woken) -> None:
                with contextlib.suppress(RuntimeError):  # the reader's loop is closed: no reader is left to wake
                    loop.call_soon_threadsafe(_wake, woken)

            with kept_off, self._lock:
                if ready():
                    return
                self._listeners.append(wake)
            try:
                await woken
            finally:
                with kept_off, self._lock, contextlib.suppress(ValueError):
                    self._listeners.remove(wake)


def _error_of(tell: Callable[[], None]) -> Exception | None:
    """Return the error raised by a listener; the other listeners are called before it is raised."""
    try:
        tell()
    except Exception as e:  # around a user's callback
        return e
    return None


def _copy(outcome: Done | Failed) -> Done | Failed:
    return Done(copy.deepcopy(outcome.value)) if isinstance(outcome, Done) else outcome


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def _value(outcome: Done | Failed) -> Any:
    if isinstance(outcome, Failed):
        raise outcome.error.with_traceback(outcome.traceback)
    return outcome.value


class OwnRequest(Protocol):
    """A request that the caller makes inside the `with` block, and that no early request can answer."""

    @property
    def call(self) -> ProviderCall | None:
        """The request as the provider sees the request; None if the request stays in the process."""
        ...

    def __enter__(self) -> None: ...

    def __exit__(self, cls: Any, error: BaseException | None, traceback: Any, /) -> None: ...


class Session(Protocol):
    """One call of an optimized pipeline, from the view of the framework's code.

    What a session need not do has a default here: it runs nothing ahead and is told nothing.
    """

    assumed: Assumed = NOTHING
    """The functions that adapters take for declared `@pure` while the session is current."""

    is_at_rest: bool = False
    """Whether the call leaves everything to the framework, since running ahead gained nothing lately."""

    holds_engine_loop: bool = False
    """Whether the call blocks the event loop of the engines, so that nobody may wait for an engine."""

    sends_ahead: bool = False
    """Whether `will_ask` sends anything."""

    @property
    def is_closed(self) -> bool:
        """Whether the call is over. A session that is never closed lets no leaf compute by itself."""
        return False

    @property
    def is_unheard(self) -> bool:
        """Whether the running code is not the framework's own run, so that callbacks, traces and logs are muted."""
        return False

    @property
    def wants_values(self) -> bool:
        """Whether `observe` does anything."""
        return True

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        """Return one reply per payload: an early request, or the same work submitted now as one request."""
        ...

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        """Return the reply of a leaf which only the caller can compute (a foreign model), and whether the caller must.

        True: nothing ran ahead. The caller computes in the current thread and must `put` a `Done` or `Failed`, shared
        with any early request for the same key.
        """
        ...

    def ask_alone(self, asked: Callable[[], tuple[str, Hashable]], op: str) -> OwnRequest | None:
        """Return a request without a key, which no early request can answer; None where one may have the reply.

        `asked` returns the name of the engine, and the service (None: the process). The request is counted, so the
        caller makes it.
        """
        return None

    def will_ask(self, asked: Sequence[tuple[EngineSpec, str, Any, Mapping[str, Any]]]) -> None:
        """Send all requests at once that the framework's run is about to make in sequence."""
        return

    def observe(self, component: object, value: Any) -> None:
        """Tell the run-ahead the value of a component which only the framework's run may compute."""
        return

    def enter(self, component: object, value: Any) -> object | None:
        """Enter a part of the pipeline. Returns the prefetch scope for the input, or None if nothing runs ahead.

        The part then runs `inside` the scope, so that its observed values are told to no other scope.
        """
        return None

    def hold(self, hold: Hold) -> None:
        """Delay every early reply until the work of `hold` is over; `hold` is asked anew for each reply."""
        return

    def close(self) -> object:
        """End the session: the call, or the function that ran ahead, has ended."""
        return None


_session: ContextVar[Session | None] = ContextVar("teola_session", default=None)


def current() -> Session | None:
    """Return the session of the running call; None in a task which outlives the call."""
    session = _session.get()
    return None if session is None or session.is_closed else session


_of_function: ContextVar[Session | None] = ContextVar("teola_of_function", default=None)
"""The session of the plain function that runs here, if a function is the pipeline."""


@contextlib.contextmanager
def function_active(session: Session | None) -> Iterator[None]:
    """`active`, for a pipeline that is a plain function."""
    token = _of_function.set(session)
    try:
        with active(session):
            yield
    finally:
        _of_function.reset(token)


def is_part_of_call(*, is_followed: bool) -> bool:
    """Whether an optimized pipeline that is called here belongs to a running call.

    `is_followed`: the pipeline is revealed as it runs (a graph, a workflow). A plain function is read up to such a
    pipeline, so the pipeline opens a call of its own inside.
    """
    session = current()
    return session is not None and not (is_followed and session is _of_function.get())


_within: ContextVar[object | None] = ContextVar("teola_within", default=None)


def within() -> object | None:
    """Return the prefetch scope of the part of the pipeline which runs here; see `Session.enter`."""
    return _within.get()


@contextlib.contextmanager
def inside(entered: object | None) -> Iterator[None]:
    """Run an entered part inside the block."""
    token = _within.set(entered)
    try:
        yield
    finally:
        _within.reset(token)


def holds_engine_loop() -> bool:
    """Whether a wait for an engine here would stop the engines, in this thread or in a thread waiting for it."""
    session = _session.get()
    return loops.runs_engines() or (session is not None and session.holds_engine_loop)


def is_unheard() -> bool:
    """Whether the running code is a rehearsal or an early reading."""
    session = _session.get()
    return session is not None and session.is_unheard


def _forget_session() -> None:
    """Drop the session in a forked child: its replies go to the parent."""
    _session.set(None)


forks.in_child(_forget_session)


class active:
    """Make `session` the session of leaves reached inside; `None` makes leaves plain again (inside an engine)."""

    __slots__ = ("_session", "_token")

    def __init__(self, session: Session | None) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._token = _session.set(self._session)

    def __exit__(self, *_: object) -> None:
        _session.reset(self._token)


def share(claimed: tuple[Reply, bool], compute: Callable[[], Any]) -> Any:
    """Return the value of a `claim`ed leaf: from the early request, or computed here and shared with equal requests.

    An error is raised if the framework's run would have met the error by itself (providers.py). Otherwise the value is
    computed again, since the early requests were more, or slightly different, than the framework's. The value is also
    computed again if a handler of logging raises, which clients take for an error of the request.
    """
    reply, is_mine = claimed
    try:
        if is_mine:
            with _answering(reply):
                value = compute()
            reply.put(Done(value))
            return value
        value = reply.result()
        if _is_told(reply):
            return value
    except BaseException as e:
        if _stands(e, reply, is_mine) and (not reply.ended_with(e) or _is_told(reply)):
            raise
    return _computed_anew(reply.provider_call, compute)


async def ashare(claimed: tuple[Reply, bool], compute: Callable[[], Awaitable[Any]]) -> Any:
    """`share` for a coroutine."""
    reply, is_mine = claimed
    try:
        if is_mine:
            with _answering(reply):
                value = await compute()
            reply.put(Done(value))
            return value
        value = await reply.aresult()
        if _is_told(reply):
            return value
    except BaseException as e:
        if _stands(e, reply, is_mine) and (not reply.ended_with(e) or _is_told(reply)):
            raise
    return await _acomputed_anew(reply.provider_call, compute)


def alone(request: OwnRequest, compute: Callable[[], Any], may_repeat: Callable[[], bool]) -> Any:
    """Return the value of an own request, computed here.

    The value is computed again after an error that early requests of other calls may have caused, if `may_repeat`.
    """
    try:
        with request:
            return compute()
    except BaseException as e:
        if _is_callers(e, request) or not may_repeat():
            raise
    return _computed_anew(request.call, compute)


async def aalone(request: OwnRequest, compute: Callable[[], Awaitable[Any]], may_repeat: Callable[[], bool]) -> Any:
    """`alone` for a coroutine."""
    try:
        with request:
            return await compute()
    except BaseException as e:
        if _is_callers(e, request) or not may_repeat():
            raise
    return await _acomputed_anew(request.call, compute)


def _is_callers(error: BaseException, request: OwnRequest) -> bool:
    return is_unheard() or request.call is None or request.call.stands(error)


REPEATS = 2
"""How often a value is computed anew, as long as early requests that began meanwhile may have caused the error."""


def _computed_anew(call: ProviderCall | None, compute: Callable[[], Any]) -> Any:
    """Return the value of a request that failed beside early requests, computed after those have ended."""
    if call is None:
        return compute()
    left = REPEATS
    while True:
        call.wait_for_company()
        call, left = ProviderCall(call.provider, is_own=True), left - 1
        try:
            with call:
                return compute()
        except BaseException as e:
            if not left or call.stands(e):
                raise


async def _acomputed_anew(call: ProviderCall | None, compute: Callable[[], Awaitable[Any]]) -> Any:
    """`_computed_anew` for a coroutine."""
    if call is None:
        return await compute()
    left = REPEATS
    while True:
        await call.await_company()
        call, left = ProviderCall(call.provider, is_own=True), left - 1
        try:
            with call:
                return await compute()
        except BaseException as e:
            if not left or call.stands(e):
                raise


def _stands(error: BaseException, reply: Reply, is_mine: bool) -> bool:
    """Whether the error of a claimed leaf is raised to the caller, without computing the value again."""
    if is_unheard() or not reply.ended_with(error):
        return True
    return reply.provider_call.stands(error) if reply.provider_call else is_mine


def _is_told(reply: Reply) -> bool:
    """Log the held-back records of an early reply. Returns whether the user's handlers took them without an error."""
    try:
        if reply.provider_call and not is_unheard():
            reply.provider_call.log_held()
    except Exception:  # around a user's callback
        return False
    return True


@contextlib.contextmanager
def _answering(reply: Reply) -> Iterator[None]:
    """Record the caller's value inside the block as the reply's outcome.

    All sharers of the reply get the same error.
    """
    try:
        with reply.provider_call or contextlib.nullcontext():
            yield
    except BaseException as e:
        reply.put(Failed(e))
        raise
