"""Requests of a call to providers outside this process: whether requests may run ahead, and the response to failures.

After a failure no more requests of the call run ahead at the provider (the framework's run makes requests when it gets
there), and queued requests that have not begun are withdrawn. The breaker of the provider hears of every end. Requests
held back by the breaker are sent ahead after the reply that closes the breaker, no matter which call the reply belongs
to.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from teola_plugin import providers
from teola_plugin.engines import EngineSpec, Failed
from teola_plugin.errors import Cancelled, DeadlineExceeded, EngineClosed, Overloaded
from teola_plugin.finalizers import kept_off
from teola_plugin.providers import Provider, ProviderCall
from teola_plugin.runtime.engines import engine_for
from teola_plugin.seams import Reply

OURS = (
    Cancelled, DeadlineExceeded, EngineClosed, Overloaded, asyncio.CancelledError, KeyboardInterrupt, SystemExit,
)  # fmt: skip
"""Errors that say nothing about the provider."""


def provider_of(spec: EngineSpec) -> Provider | None:
    """Return the provider behind an engine; None if the engine runs in this process, or in a process of the package."""
    engine = engine_for(spec)
    if not engine.capabilities.remote:
        return None
    named: tuple[Hashable, ...] = (spec.provider, getattr(engine, "provider", None), spec.key)
    return providers.provider(next(key for key in named if key is not None))


class Outside:
    """The provider requests of a call. Safe to use from any thread."""

    def __init__(self, leave: Callable[[Reply], bool], soon: Callable[[Callable[[], None]], None]) -> None:
        """`soon` calls a function on another thread.

        `leave`: a method that gives up a reply's slot and returns whether it could; its object is not kept.
        """
        self._owner, self._leave = weakref.ref(leave.__self__), leave.__func__  # type: ignore[attr-defined]
        self._soon = soon
        self._lock = threading.RLock()
        self._failed: set[Provider] = set()
        self._open: dict[Provider, dict[Reply, None]] = {}  # asked ahead, in order
        self._waiting: dict[Provider, list[Callable[[], None]]] = {}

    def may_ask(self, provider: Provider | None) -> bool:
        """Whether requests to the provider may run ahead."""
        return provider is None or (provider not in self._failed and provider.may_ask(time.monotonic()))

    def when_answered(self, provider: Provider, act: Callable[[], None]) -> None:
        """Call `act` once requests may run ahead at the provider, if ever: after a reply to any call."""
        provider.when_asked(self._wake_soon)
        with kept_off, self._lock:
            self._waiting.setdefault(provider, []).append(act)
        self._wake(provider)

    def _wake_soon(self) -> None:
        self._soon(self._wake_all)

    def _wake_all(self) -> None:
        for provider in list(self._waiting):
            self._wake(provider)

    def _wake(self, provider: Provider) -> None:
        if not self.may_ask(provider):
            return
        with kept_off, self._lock:
            waiting = self._waiting.pop(provider, ())
        for act in waiting:
            act()

    def ask(self, provider: Provider | None, reply: Reply, *, is_own: bool) -> None:
        """Note that a reply is requested, by the framework's own run (`is_own`) or ahead."""
        if provider is None:
            return
        if reply.provider_call:  # taken over by the framework's run before an engine had begun
            reply.provider_call.is_own = True
            reply.provider_call.provider.take(reply.provider_call)
            return
        reply.provider_call = ProviderCall(provider, is_own=is_own)
        if not is_own:
            with kept_off, self._lock:
                self._open.setdefault(provider, {})[reply] = None
        reply.when_ended(lambda: self._ended(provider, reply))

    def alone(self, provider: Provider | None, ended: Callable[[], None]) -> OwnRequest:
        """Return a request of the framework's own run; `ended` is called at its end."""
        return OwnRequest(ProviderCall(provider, is_own=True) if provider else None, self._heard, ended)

    def take(self, reply: Reply) -> None:
        """The framework's run waits for what was asked ahead."""
        if reply.provider_call:
            reply.provider_call.provider.take(reply.provider_call)

    def _ended(self, provider: Provider, reply: Reply) -> None:
        with kept_off, self._lock:
            self._open.get(provider, {}).pop(reply, None)
        self._heard(provider, reply.outcome.error if isinstance(reply.outcome, Failed) else None)

    def _heard(self, provider: Provider, error: BaseException | None) -> None:
        if isinstance(error, OURS):
            return
        queued: list[Reply] = []
        if error:
            with kept_off, self._lock:
                queued = list(self._open.get(provider, ()))
                self._failed.add(provider)
        provider.heard(error, time.monotonic())
        for other in queued:
            other.withdraw(partial(self._gives_up, other))

    def _gives_up(self, reply: Reply) -> bool:
        owner = self._owner()
        return owner is not None and bool(self._leave(owner, reply))


class OwnRequest:
    """See `seams.OwnRequest`. The request is made inside the `with` block.

    `call`: None if the request stays in this process. `heard`: told how the request ended; `ended`: called afterwards.
    """

    __slots__ = ("_ended", "_heard", "call")

    def __init__(
        self, call: ProviderCall | None, heard: Callable[[Provider, BaseException | None], None],
        ended: Callable[[], None],
    ) -> None:  # fmt: skip
        self.call = call
        self._heard = heard
        self._ended = ended

    def __enter__(self) -> None:
        if self.call is not None:
            self.call.__enter__()

    def __exit__(self, cls: Any, error: BaseException | None, traceback: Any) -> None:
        if self.call is not None:
            try:
                self.call.__exit__()
            finally:
                if error is not None or not self.call.provider.is_settled:
                    self._heard(self.call.provider, error)
        self._ended()
