"""Providers: outside services used by the run-ahead, guarded so that an outage does not multiply requests.

A *provider* is a service shared by several client models: the origin of the address, or another key given by the
adapter (`EngineSpec.provider`). Engines in the process have no provider.

**Breaker.** One outage failure, or a few other failures in a row, end early requests to a provider for all queries: for
a pause which doubles each time, and until a request of the framework itself has succeeded. The probe of an open breaker
is therefore a request which the original makes as well, and costs nothing. After `ENOUGH` requests without a failure
the breaker closes sooner: a busy service with rare failures is not avoided for long. A provider without any answer yet
may be down, so the breaker begins half open.

    a new provider --------------------------.
                                             v
    closed --failure--> open --pause over--> half open --success of the framework's own request--> closed
                         ^------- failure ------'

**Errors.** The framework's run takes the error of an early request, the same object and once, if the framework would
have met the error itself (`ProviderCall.stands`): the service raised the error, or the service's answer could not be
used. Otherwise, and where the error may come of company, the framework makes the request again.

**Company.** A request is in company of another running request to the same provider, unless the framework's run waited
for both at the same time: the original would not have run both side by side. An error which may come of company
(failures.py) is not raised to the framework; the framework repeats the request once the company has ended.

**Retries.** Retries of a client are made once. An early request makes the first attempt; a second attempt is made only
if the framework's run waits for the request by then (`hold_retry`). Otherwise the retry is withheld, and the framework
makes the request itself if the run gets there.

**Records.** Log records of an early request are logged when the framework takes the reply (adapters/records.py).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextvars import ContextVar, Token
from dataclasses import dataclass
from urllib.parse import urlsplit

from teola_plugin import forks
from teola_plugin.errors import TeolaError
from teola_plugin.failures import Withheld, is_of_service, is_outage, may_come_of_company
from teola_plugin.finalizers import kept_off

FEW = 3
"""Consecutive failures which open a breaker, if none is an outage."""

ENOUGH = 20
"""Consecutive successes which close a breaker at once: with one wasted request each time, 5 % of all."""

FIRST_PAUSE_S = 5.0
"""The pause of running ahead after a breaker has opened, which doubles each time up to LONGEST_PAUSE_S."""

LONGEST_PAUSE_S = 80.0

COMPANY_S = 30.0
"""Longest wait of the framework's run for company to end, before the request is repeated."""

PORTS = {"http": 80, "https": 443}

MAX_PROVIDERS = 1024
"""The number of remembered providers: the last used."""


@dataclass(slots=True)
class Breaker:
    """Decides from the outcomes of a provider's requests whether requests may run ahead.

    Pure: the caller reads the clock.
    """

    failures: int = 0
    """Consecutive failures."""

    successes: int = 0
    """Consecutive successes since the last failure."""

    is_open: bool = True
    until_s: float = 0.0
    pause_s: float = FIRST_PAUSE_S
    """Length of the next pause."""

    @property
    def is_settled(self) -> bool:
        """Whether a further success changes nothing."""
        return self.successes >= ENOUGH

    def may_ask(self, now_s: float) -> bool:
        """Whether requests may run ahead."""
        return not self.is_open or (self.successes > 0 and now_s >= self.until_s)

    def succeeded(self) -> None:
        """A request came back with an answer."""
        self.failures = 0
        self.successes += 1
        if self.successes >= ENOUGH:
            self.is_open = False
            self.pause_s = FIRST_PAUSE_S

    def failed(self, now_s: float, *, is_outage: bool) -> None:
        """A request failed."""
        self.is_open &= not self.may_ask(now_s)
        self.successes = 0
        self.failures += FEW if is_outage else 1
        if self.is_open:  # begun before, or the framework's own request: the outage goes on
            self.until_s = max(self.until_s, now_s + self.pause_s / 2)
        elif self.failures >= FEW:
            self.is_open = True
            self.until_s = now_s + self.pause_s
            self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)


class Provider:
    """The state of one service in the process. Thread-safe."""

    def __init__(self) -> None:
        self._breaker = Breaker()
        self._under_way: set[ProviderCall] = set()
        self._early: set[ProviderCall] = set()  # those under way that the framework's run does not wait for
        self._waiting: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._lock = threading.RLock()
        self.is_settled = False
        """Whether a further success changes nothing."""

    def may_ask(self, now_s: float) -> bool:
        """See `Breaker.may_ask`."""
        with kept_off, self._lock:
            return self._breaker.may_ask(now_s)

    def heard(self, error: BaseException | None, now_s: float) -> None:
        """Record the end of a request, with the error if any."""
        if error is None and self.is_settled:
            return
        waiting: list[weakref.WeakMethod[Callable[[], None]]] = []
        with kept_off, self._lock:
            if error is None:
                self._breaker.succeeded()
            else:
                self._breaker.failed(now_s, is_outage=is_outage(error))
            if self._breaker.may_ask(now_s):
                waiting, self._waiting = self._waiting, waiting
            self.is_settled = self._breaker.is_settled and not self._waiting
        for each in waiting:
            if act := each():
                act()

    def when_asked(self, act: Callable[[], None]) -> None:
        """Call the method `act` once, after a reply which lets requests run ahead, unless its object is gone."""
        with kept_off, self._lock:
            self._waiting = [each for each in self._waiting if each() is not None]
            self._waiting.append(weakref.WeakMethod(act))
            self.is_settled = False

    def begin(self, call: ProviderCall) -> None:
        """Record the start of an attempt of the call, the first or a further one.

        Without early calls under way, a call of the framework's run takes no lock: of two calls that begin at the same
        moment, one sees the other.
        """
        if call.is_taken:
            call.company = []
            self._under_way.add(call)
            if not self._early:
                return
        with kept_off, self._lock:
            if not call.is_taken:
                self._early.add(call)
            under_way = self._under_way.copy() - {call}
            company = [other for other in under_way if not (call.is_taken and other.is_taken)]
            call.company = list(map(weakref.ref, company))
            for other in company:
                if (mine := weakref.ref(call)) not in other.company:
                    other.company.append(mine)
            self._under_way.add(call)

    def take(self, call: ProviderCall) -> None:
        """Record that the framework's run waits for the call. Running calls with the same waiter are no company."""
        with kept_off, self._lock:
            call.is_taken = True
            self._early.discard(call)
            for other in [each for each in call.in_company() if each.is_taken and each in self._under_way]:
                call.company.remove(weakref.ref(other))
                if weakref.ref(call) in other.company:
                    other.company.remove(weakref.ref(call))

    def end(self, call: ProviderCall) -> None:
        """Record that the call is no longer running."""
        self._under_way.discard(call)
        self._early.discard(call)
        call.has_ended = True
        if call.over is not None:
            _set_over(call.over)

    def end_of(self, call: ProviderCall) -> Future[None]:
        """Return a future that is done once the call has ended."""
        with kept_off, self._lock:
            if call.over is None:
                call.over = Future()
            over = call.over
        if call.has_ended:
            _set_over(over)
        return over


class ProviderCall:
    """One request to a provider, made inside a `with` block.

    Raises (as the block begins): Withheld for an early request that may no longer run ahead.

    `is_own`: the framework's run makes the request; `is_taken`: the framework's run waits for it.

    `was_taken`: taken when the request ended. `has_reply`: the service has answered, so an error belongs to the request
    itself. `company`: the requests in company of the last attempt. `held`: logs the client's records which are still
    held back.
    """

    __slots__ = (
        "__weakref__", "_token", "company", "has_ended", "has_reply", "held", "is_own", "is_taken", "over", "provider",
        "was_taken",
    )  # fmt: skip

    def __init__(self, provider: Provider, *, is_own: bool) -> None:
        self.provider = provider
        self.is_own = is_own
        self.is_taken = is_own
        self.was_taken = is_own
        self.has_reply = False
        self.company: list[weakref.ref[ProviderCall]] = []
        self.has_ended = False
        self.over: Future[None] | None = None
        self._token: Token[ProviderCall | None] | None = None
        self.held: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        if not (self.is_taken or self.provider.may_ask(time.monotonic())):
            raise Withheld("a request that runs ahead is not begun: its provider has failed, or not answered yet")
        self.provider.begin(self)
        self._token = _running.set(self)

    def __exit__(self, *_: object) -> None:
        self.was_taken = self.is_taken
        self.provider.end(self)  # first: a coroutine that is closed in another context cannot reset the variable
        if (token := self._token) is not None:
            self._token = None  # it refers to the context, and so to the session
            _running.reset(token)

    def log_held(self) -> None:
        """Log the records held back, in the thread which takes the reply."""
        while self.held:
            self.held.pop(0)()

    def stands(self, error: BaseException) -> bool:
        """Whether the framework's run would have met the error by itself."""
        if isinstance(error, Withheld):  # decided before the framework's run came, if only a moment before
            return False
        if may_come_of_company(error):  # or of the early time: the framework would have asked later
            return self.was_taken and not self.company
        is_ours = isinstance(error, TeolaError | asyncio.CancelledError)
        return self.is_own or is_of_service(error) or (self.has_reply and not is_ours)

    def wait_for_company(self) -> None:
        """Wait until the requests in company have ended."""
        over = self._company_over()
        if over and not _is_on_a_loop():  # the company may need the loop
            concurrent.futures.wait(over, COMPANY_S)

    async def await_company(self) -> None:
        """`wait_for_company` for a coroutine."""
        if over := self._company_over():
            await asyncio.wait(list(map(asyncio.wrap_future, over)), timeout=COMPANY_S)

    def _company_over(self) -> list[Future[None]]:
        return [other.provider.end_of(other) for other in self.in_company()]

    def in_company(self) -> Sequence[ProviderCall]:
        """Return the requests in company that have not ended, and perhaps some that have."""
        return [other for reference in self.company if (other := reference()) is not None]


def _set_over(over: Future[None]) -> None:
    with contextlib.suppress(concurrent.futures.InvalidStateError):  # it is set already
        over.set_result(None)


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# --- the call that runs here -----------------------------------------------------------------------------------------

_running: ContextVar[ProviderCall | None] = ContextVar("teola_provider_call", default=None)


def running() -> ProviderCall | None:
    """Return the request being made in the current context."""
    return _running.get()


@contextlib.contextmanager
def running_as(call: ProviderCall | None) -> Iterator[None]:
    """Count everything a client does inside the block as part of the call."""
    token = _running.set(call)
    try:
        yield
    finally:
        _running.reset(token)


def reply_came() -> None:
    """Record that the service has answered the request of the current context."""
    if call := _running.get():
        call.has_reply = True


def hold_retry() -> None:
    """Check whether a retry may follow the error being handled. Raises: Withheld."""
    call, error = _running.get(), sys.exception()
    if call is None:
        return
    if error:
        call.provider.heard(error, time.monotonic())
    if not call.is_taken:
        raise Withheld("a request that runs ahead is not repeated before it is waited for") from error
    call.provider.begin(call)


# --- all of them -----------------------------------------------------------------------------------------------------

_providers: OrderedDict[Hashable, Provider] = OrderedDict()
_looking = threading.RLock()


@functools.lru_cache(maxsize=256)
def origin_of(url: str) -> tuple[str, str, int | None] | None:
    """Return scheme, host and port of an address; None for any other text."""
    parts = urlsplit(url)
    try:
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:  # of a port out of range
        port = None
    return (parts.scheme, parts.hostname, port) if parts.hostname else None


def provider(key: Hashable) -> Provider:
    """Return the provider of the key, always the same object while in use."""
    if len(_providers) < MAX_PROVIDERS and (found := _providers.get(key)):
        return found
    with kept_off, _looking:
        found = _providers.pop(key, None) or Provider()
        _providers[key] = found
        if len(_providers) > MAX_PROVIDERS:
            _providers.popitem(last=False)
        return found


def forget() -> None:
    """Forget the state of all providers."""
    global _looking
    _looking = threading.RLock()  # in a forked child, a thread of the parent may have held the lock
    _providers.clear()


forks.in_child(forget)
