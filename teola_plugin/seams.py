"""Where the frameworks' own code meets a running session.

A *leaf* is a call that the framework's code makes to a model or a store. Leaves are intercepted on the class that
defines them (adapters/interception.py), below callbacks, caches and limiters. The replacement first asks for
`current()`: without a session, or inside an engine, the original runs and nothing else happens. With one, it hands the
call over:

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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from teola_plugin import forks, loops
from teola_plugin.engines import Delta, Done, EngineSpec, Failed, Outcome
from teola_plugin.errors import Cancelled
from teola_plugin.finalizers import kept_off
from teola_plugin.providers import ProviderCall


class Hold(Protocol):
    """Work of the framework that is over by the time a model has answered, and is to be over before a reply is."""

    def due(self, *, blocks_loop: bool) -> Sequence[Future[None]]:
        """What is under way. `blocks_loop`: the caller waits in the thread of a running event loop."""
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """Why a reply is not handed out yet, and until when at the most: what ran ahead began that much earlier."""

    holds: Sequence[Hold]
    until_s: float

    def wait(self) -> None:
        """Until the work is over, in a thread."""
        blocks_loop = asyncio._get_running_loop() is not None
        if due := [each for hold in self.holds for each in hold.due(blocks_loop=blocks_loop)]:
            concurrent.futures.wait(due, max(0, self.until_s - time.perf_counter()))

    async def wait_async(self) -> None:
        """`wait` for a coroutine."""
        if due := [each for hold in self.holds for each in hold.due(blocks_loop=False)]:
            await asyncio.wait(map(asyncio.wrap_future, due), timeout=max(0, self.until_s - time.perf_counter()))


class Reply:
    """The outcome of one item, readable from any thread and any event loop; it may still be on its way.

    It keeps all deltas, so a reader that comes late sees the same stream. `provider_call`: of an item that a provider
    outside this process is asked for. `withdraw`: give it up if no engine has begun it, and a function agrees.
    `held`: what has to be over before a reader has it. `came_s`: when it ended.
    """

    __slots__ = (
        "_changed", "_copies", "_deltas", "_enders", "_listeners", "_lock", "_outcome", "came_s", "cancel",
        "held", "provider_call", "queued", "withdraw",
    )  # fmt: skip

    def __init__(self, cancel: Callable[[], None] | None = None) -> None:
        self._lock = threading.RLock()
        self._changed: threading.Condition | None = None  # made for the first who waits in a thread
        self._deltas: list[str] = []
        self._outcome: Done | Failed | None = None
        self._listeners: list[Callable[[Outcome], None]] = []
        self._enders: list[Callable[[], None]] = []
        self._copies: list[Reply] = []
        self.cancel: Callable[[], None] = cancel or (lambda: None)
        self.queued: Any = None  # what may be taken over from its engine: see runtime/session/queued_calls.py
        self.withdraw: Callable[[Callable[[], bool]], None] = lambda agrees: None
        self.provider_call: ProviderCall | None = None
        self.held: Held | None = None
        self.came_s: float | None = None

    @property
    def outcome(self) -> Done | Failed | None:
        """How it ended, or None while it has not."""
        return self._outcome

    def put(self, outcome: Outcome) -> None:
        """Record what the engine says; anything after the end is ignored."""
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
            enders = self._enders if self._outcome is not None else ()
            if self._changed is not None:
                self._changed.notify_all()
        told = [*(functools.partial(listener, outcome) for listener in listeners), *enders]
        errors = [error for tell in told if (error := _error_of(tell))]
        if errors:
            raise errors[0]

    def copied(self) -> Reply:
        """The reply with a value of its own, equal to what this one's is now, or will be before anybody has it."""
        copied = Reply()
        with kept_off, self._lock:
            if self._outcome is None:
                self._copies.append(copied)
            else:
                copied.put(_copy(self._outcome))
        return copied

    def listen(self, listener: Callable[[Outcome], None]) -> None:
        """Call `listener` with everything said so far and from now on, in order, from whichever thread says it."""
        with kept_off, self._lock:
            for text in self._deltas:
                listener(Delta(text))
            if self._outcome is not None:
                listener(self._outcome)
            else:
                self._listeners.append(listener)

    def when_ended(self, act: Callable[[], None]) -> None:
        """Call `act` once it has ended, from whichever thread says so; deltas cost nothing."""
        with kept_off, self._lock:
            if self._outcome is None:
                self._enders.append(act)
                return
        act()

    def ended_with(self, error: BaseException) -> bool:
        """The error is how it ended, not what interrupted a wait for it (Ctrl-C, a cancelled task)."""
        return self._outcome == Failed(error)

    def result(self) -> Any:
        """The value, waiting for it. Raises: the engine's own error; EngineLoopBlocked, see `loops`."""
        self._wait_while_held()
        with kept_off, self._lock:
            while self._outcome is None:
                self._wait()
        return _value(self._outcome)

    async def aresult(self) -> Any:
        """`result` for a coroutine; cancelling it leaves the reply alone."""
        if self.held:
            await self.held.wait_async()
        await self._await(lambda: self._outcome is not None)
        assert self._outcome is not None
        return _value(self._outcome)

    def stream(self) -> Iterator[str]:
        """The deltas, then the end of the iterator or the engine's own error. Closing it early cancels the work."""
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
        """Tell the engine that nobody will read this."""
        if self._outcome is None:
            self.cancel()
            self.put(Failed(Cancelled("nobody waits for this item any more")))

    def _wait_while_held(self) -> None:
        if self.held:
            self.held.wait()

    def _wait(self) -> None:
        """For news; the lock is held, and free meanwhile."""
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
                with contextlib.suppress(RuntimeError):  # the reader's loop is closed: nobody is left to wake
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
    """What a listener raised: the others are to hear of it first."""
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


class Session(Protocol):
    """One call of an optimized pipeline, as the framework's code sees it."""

    @property
    def is_closed(self) -> bool:
        """The call is over."""
        ...

    @property
    def is_unheard(self) -> bool:
        """What runs here is not the framework's own run: no callback, trace or log may tell of it."""
        ...

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        """One reply per payload: what ran ahead, or the same work submitted now as one request."""
        ...

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        """The reply of a leaf that only the caller can compute (a foreign model), and whether the caller must.

        True: nothing ran ahead; the caller computes in its own thread and must `put` a `Done` or `Failed`, which a
        run-ahead that wants the same will then share.
        """
        ...

    def observe(self, component: object, value: Any) -> None:
        """Tell the run-ahead the value of a component that only the framework's run may compute."""

    def enter(self, component: object, value: Any) -> object | None:
        """The framework's run comes to a part of the pipeline, with this input: what runs ahead for it, if anything.

        The part's run is then to be `inside` of that, so that what it observes is told to no other.
        """
        ...

    def hold(self, hold: Hold) -> None:
        """Hand out no reply that ran ahead before what `hold` says is over, which is asked for each anew."""


_session: ContextVar[Session | None] = ContextVar("teola_session", default=None)


def current() -> Session | None:
    """The session of the running call. A task that outlives its call has none any more."""
    session = _session.get()
    return None if session is None or session.is_closed else session


_within: ContextVar[object | None] = ContextVar("teola_within", default=None)


def within() -> object | None:
    """What runs ahead for the part of the pipeline that runs here; see `Session.enter`."""
    return _within.get()


@contextlib.contextmanager
def inside(entered: object | None) -> Iterator[None]:
    """The run of a part that was entered."""
    token = _within.set(entered)
    try:
        yield
    finally:
        _within.reset(token)


def holds_engine_loop() -> bool:
    """A wait of what runs here for an engine would stop the engines: here, or in the thread that waits for this one."""
    return loops.runs_engines() or getattr(_session.get(), "holds_engine_loop", False)


def is_unheard() -> bool:
    """What runs here is a rehearsal, or runs ahead."""
    session = _session.get()
    return session is not None and session.is_unheard


def _forget_session() -> None:
    """Its replies are on their way to the parent."""
    _session.set(None)


forks.in_child(_forget_session)


@contextlib.contextmanager
def active(session: Session | None) -> Iterator[None]:
    """Leaves reached inside ask `session`; `None` makes them plain again (inside an engine)."""
    token = _session.set(session)
    try:
        yield
    finally:
        _session.reset(token)


def share(claimed: tuple[Reply, bool], compute: Callable[[], Any]) -> Any:
    """The value of a leaf that was `claim`ed: what ran ahead, or computed here for whoever wants the same.

    An error is raised if the framework's run would have come to it by itself (providers.py). Otherwise the value is
    computed again: more calls ran at once than the framework makes, or not quite the same ones. So it is where a
    handler of logging raises, which clients take for an error of the request.
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
    if reply.provider_call:
        reply.provider_call.wait_for_company()
    return compute()


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
    if reply.provider_call:
        await reply.provider_call.await_company()
    return await compute()


def _stands(error: BaseException, reply: Reply, is_mine: bool) -> bool:
    """Whether the error of a claimed leaf is raised to the caller, who does not compute it again."""
    if is_unheard() or not reply.ended_with(error):
        return True
    return reply.provider_call.stands(error) if reply.provider_call else is_mine


def _is_told(reply: Reply) -> bool:
    """Whether the user's handlers have taken what the client logged of a reply that ran ahead."""
    try:
        if reply.provider_call and not is_unheard():
            reply.provider_call.log_held()
    except Exception:  # around a user's callback
        return False
    return True


@contextlib.contextmanager
def _answering(reply: Reply) -> Iterator[None]:
    """The caller computes the value inside. Whoever shares the reply gets the same error."""
    try:
        with reply.provider_call.under_way() if reply.provider_call else contextlib.nullcontext():
            yield
    except BaseException as e:
        reply.put(Failed(e))
        raise
