"""Services outside this process, as the run-ahead uses them, so that an outage of one does not multiply requests.

A *provider* is a service that several models may be clients of: the origin of its address, or what else its adapter
says (`EngineSpec.provider`). Engines that run in this process have none.

**Breaker.** One failure that speaks of an outage, or a few others in a row, end asking ahead at a provider for all
queries: for a while that doubles, and until a request of the framework's own has succeeded. So the probe of an open
breaker is a request that the original makes as well, and costs nothing. Without a single failure for `ENOUGH` requests
it closes sooner: a busy service that fails now and then is not left for long. A provider that has not answered yet may
be down, so its breaker begins half open.

    a new provider --------------------------.
                                             v
    closed --failure--> open --pause over--> half open --success of the framework's own request--> closed
                         ^------- failure ------'

**Errors.** The framework's run takes an error of what ran ahead, the same object and once, if it would have got that
error itself (`ProviderCall.stands`): the service told it, or has answered and the answer could not be used. Otherwise,
and where the error may come of company, the framework asks again.

**Company.** A request is in company of another one that was under way at its provider, unless the framework's run
waited for both at the same time: the original would not have had them side by side. An error that may come of that
(failures.py) is not raised to the framework either, which asks again once the company is gone.

**Retries.** Clients with a ladder of retries climb it once. What runs ahead makes its first attempt; a second one is
made only if the framework's run waits for the request by then (`hold_retry`). Otherwise it is withheld, and the
framework asks itself if it ever comes there.

**Records.** What a client logs of a request that runs ahead is logged by who takes its reply (adapters/records.py).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass
from urllib.parse import urlsplit

from teola_plugin import forks
from teola_plugin.errors import TeolaError
from teola_plugin.failures import Withheld, is_of_service, is_outage, may_come_of_company
from teola_plugin.finalizers import kept_off

FEW = 3
"""So many failures in a row open a breaker, if none of them speaks of an outage."""

ENOUGH = 20
"""So many successes in a row close it again at once: with one request in vain each time, 5 % of all."""

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 80.0

COMPANY_S = 30.0
"""How long the framework's run waits for company to end, at most, before it asks again."""

PORTS = {"http": 80, "https": 443}

MAX_PROVIDERS = 1024
"""So many are remembered: the ones used last."""


@dataclass(slots=True)
class Breaker:
    """Whether to ask a provider ahead, from the ends of its requests. Pure: the caller reads the clock."""

    failures: int = 0
    """In a row."""

    successes: int = 0
    """In a row, since the last failure."""

    is_open: bool = True
    until_s: float = 0.0
    pause_s: float = FIRST_PAUSE_S
    """How long it will be open next."""

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
        if self.is_open:  # it began before that, or is the framework's own: the outage goes on
            self.until_s = max(self.until_s, now_s + self.pause_s / 2)
        elif self.failures >= FEW:
            self.is_open = True
            self.until_s = now_s + self.pause_s
            self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)


class Provider:
    """What this process knows of one service. Safe to use from any thread."""

    def __init__(self) -> None:
        self._breaker = Breaker()
        self._under_way: set[ProviderCall] = set()
        self._waiting: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._lock = threading.RLock()

    def may_ask(self, now_s: float) -> bool:
        """See `Breaker.may_ask`."""
        with kept_off, self._lock:
            return self._breaker.may_ask(now_s)

    def heard(self, error: BaseException | None, now_s: float) -> None:
        """A request has ended, with this error if any."""
        waiting: list[weakref.WeakMethod[Callable[[], None]]] = []
        with kept_off, self._lock:
            if error is None:
                self._breaker.succeeded()
            else:
                self._breaker.failed(now_s, is_outage=is_outage(error))
            if self._breaker.may_ask(now_s):
                waiting, self._waiting = self._waiting, waiting
        for each in waiting:
            if act := each():
                act()

    def when_asked(self, act: Callable[[], None]) -> None:
        """Call the method `act` once, after a reply that lets requests run ahead, if its object is still there."""
        with kept_off, self._lock:
            self._waiting = [each for each in self._waiting if each() is not None]
            self._waiting.append(weakref.WeakMethod(act))

    def begin(self, call: ProviderCall) -> None:
        """An attempt of the call begins, the first one or another."""
        with kept_off, self._lock:
            self._under_way.discard(call)
            call.company = [other for other in self._under_way if not (call.is_taken and other.is_taken)]
            for other in call.company:
                other.company.append(call)
            self._under_way.add(call)

    def take(self, call: ProviderCall) -> None:
        """The framework's run waits for the call. Those under way that it waits for as well are no company of it."""
        with kept_off, self._lock:
            call.is_taken = True
            for other in [each for each in call.company if each.is_taken and each in self._under_way]:
                call.company.remove(other)
                if call in other.company:
                    other.company.remove(call)

    def end(self, call: ProviderCall) -> None:
        """The call is not under way any more."""
        with kept_off, self._lock:
            self._under_way.discard(call)


class ProviderCall:
    """One request to a provider. `is_own`: the framework's run makes it; `is_taken`: it waits for it, at least.

    `was_taken`: it did so when the request ended. `has_reply`: the service has answered, so that an error is
    that of the request itself. `company`: the requests that its last attempt was in company of.
    `held`: logs what its client has logged and nobody has heard yet.
    """

    __slots__ = ("company", "has_reply", "held", "is_own", "is_taken", "over", "provider", "was_taken")

    def __init__(self, provider: Provider, *, is_own: bool) -> None:
        self.provider = provider
        self.is_own = is_own
        self.is_taken = is_own
        self.was_taken = is_own
        self.has_reply = False
        self.company: list[ProviderCall] = []
        self.over: Future[None] = Future()
        self.held: list[Callable[[], None]] = []

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        """The request is made inside. Raises: Withheld if it would run ahead and may not any more."""
        if not (self.is_taken or self.provider.may_ask(time.monotonic())):
            raise Withheld("a request that runs ahead is not begun: its provider has failed, or not answered yet")
        self.provider.begin(self)
        try:
            with running_as(self):
                yield
        finally:
            self.was_taken = self.is_taken
            self.provider.end(self)
            if not self.over.done():
                self.over.set_result(None)

    def log_held(self) -> None:
        """Log what was held back, in the thread of who takes the reply."""
        while self.held:
            self.held.pop(0)()

    def stands(self, error: BaseException) -> bool:
        """Whether the framework's run would have come to this error by itself."""
        if isinstance(error, Withheld):  # decided before the framework's run came, if only a moment before
            return False
        if may_come_of_company(error):  # or of its time: the framework would have asked later
            return self.was_taken and not self.company
        is_ours = isinstance(error, TeolaError | asyncio.CancelledError)
        return self.is_own or is_of_service(error) or (self.has_reply and not is_ours)

    def wait_for_company(self) -> None:
        """Return when the requests that it was in company of have ended."""
        if self.company and not _is_on_a_loop():  # they may need that loop
            concurrent.futures.wait([other.over for other in self.company], COMPANY_S)

    async def await_company(self) -> None:
        """`wait_for_company` for a coroutine."""
        if self.company:
            await asyncio.wait([asyncio.wrap_future(other.over) for other in self.company], timeout=COMPANY_S)


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# --- the call that runs here -----------------------------------------------------------------------------------------

_running: ContextVar[ProviderCall | None] = ContextVar("teola_provider_call", default=None)


def running() -> ProviderCall | None:
    """The request that is made in this context."""
    return _running.get()


@contextlib.contextmanager
def running_as(call: ProviderCall | None) -> Iterator[None]:
    """What a client does inside is part of the call."""
    token = _running.set(call)
    try:
        yield
    finally:
        _running.reset(token)


def reply_came() -> None:
    """The service has answered the request that is made in this context."""
    if call := _running.get():
        call.has_reply = True


def hold_retry() -> None:
    """Another attempt is about to be made, because of the error that is being handled. Raises: Withheld."""
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


def origin_of(url: str) -> tuple[str, str, int | None] | None:
    """Scheme, host and port of an address; None for what is none."""
    parts = urlsplit(url)
    try:
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:  # of a port out of range
        port = None
    return (parts.scheme, parts.hostname, port) if parts.hostname else None


def provider(key: Hashable) -> Provider:
    """The provider of this key, always the same one while it is in use."""
    with kept_off, _looking:
        found = _providers.pop(key, None) or Provider()
        _providers[key] = found
        if len(_providers) > MAX_PROVIDERS:
            _providers.popitem(last=False)
        return found


def forget() -> None:
    """Forget what is known of all providers."""
    global _looking
    _looking = threading.RLock()  # in a forked child, a thread of the parent's may have held it
    _providers.clear()


forks.in_child(forget)
