"""The local host: the schedulers and engines of this process, on an event-loop thread of the package.

    ask (any thread) --call_soon_threadsafe--> worker of the engine: EngineScheduler --batch--> Engine.run
                                                      ^--------------- outcomes -------------------'

Each engine has a worker (worker.py). All changes of a worker happen on the loop thread, so there are no locks.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import Context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from teola_plugin import forks, loops
from teola_plugin.engines import NOT_URGENT, Engine, Failed, Item, Urgency
from teola_plugin.errors import EngineClosed
from teola_plugin.finalizers import kept_off
from teola_plugin.runtime.hosts.admission import Admission
from teola_plugin.runtime.scheduler.policies import POLICIES, PRIORITIES, PolicyName
from teola_plugin.runtime.scheduler.work_item import Request, WorkItem
from teola_plugin.runtime.scheduler.work_table import Counts
from teola_plugin.runtime.scheduler.worker import EngineWorker, Rules, Sink
from teola_plugin.seams import Reply
from teola_plugin.tenancy import ANYBODY, Terms

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Query:
    """The query of a request. `owner`: unique in the process, 0 for none. `begun_s`: by `time.monotonic`."""

    owner: Hashable = 0
    terms: Terms = ANYBODY
    begun_s: float = 0.0


NOBODY = Query()
RULES = Rules()


AUDIT_S = 5.0


class LocalHost:
    """The host of this process's engines. Threads may call `submit`, `cancel` and `release` at any time.

    The loop thread starts with the first call and ends with `close` or the interpreter. A forked child starts a new
    loop thread.
    """

    def __init__(
        self,
        policy: PolicyName = "critical_path",
        rules: Rules = RULES,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`rules` apply to workers that are made from now on. `loop`: run on this loop, and start no thread."""
        self._policy: PolicyName = policy
        self.rules = rules
        self.admission = Admission()
        self._ids = itertools.count(1)
        self._begin(loop)
        forks.in_child(self._begin_anew)

    def _begin(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._workers: weakref.WeakKeyDictionary[Any, EngineWorker] = weakref.WeakKeyDictionary()
        self._sinks: dict[Hashable, Sink] = {}
        self._door = threading.RLock()  # held to start and stop the loop and to hand over work
        self._keeps = False  # some engine keeps things for queries
        self._is_closing = False
        self._loop: asyncio.AbstractEventLoop | None = loop
        if loop is not None:
            loops.add(loop)
        self._thread: threading.Thread | None = None
        self._thread_id = threading.get_ident() if loop is not None else 0
        self._auditing: asyncio.TimerHandle | None = None

    def _begin_anew(self) -> None:
        """Start afresh in a forked child, where the loop thread does not exist."""
        forks.leave(self._loop, list(self._workers.values()))
        self._begin()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The host's event loop, started if necessary."""
        with kept_off, self._door:
            if self._loop is None:
                self._start()
            assert self._loop is not None
            return self._loop

    def use(self, policy: PolicyName) -> None:
        """Make batches by this policy from now on, on all engines without a policy of their own."""

        def use() -> None:
            self._policy = policy
            for engine, worker in self._workers.items():
                worker.scheduler.policy = POLICIES[self._policy_of(engine)]

        self.soon(use)

    def _policy_of(self, engine: Engine) -> PolicyName:
        return getattr(engine, "policy", None) or self._policy

    def rule(self, rules: Rules) -> None:
        """Apply rules from now on, on all engines."""

        def rule() -> None:
            self.rules = rules
            for worker in self._workers.values():
                worker.rule(rules)

        self.rules = rules
        self.soon(rule)

    def new_id(self) -> int:
        """Return a number that is unique among the items and queries of this process."""
        return next(self._ids)

    def submit(
        self, engine: Engine, op: str, payloads: Sequence[Any], settings: Mapping[str, Any], replies: Sequence[Reply],
        *, query: Query = NOBODY, urgency: Urgency = NOT_URGENT, gives_way: Callable[[], bool] | None = None,
    ) -> None:  # fmt: skip
        """Queue a request; `replies` (one per payload) get the outcomes. Closing a reply's stream cancels the item.

        `gives_way`: asked if the request would have to wait; if true, the request is Overloaded.
        """
        owner, tenant, deadline_s = query.owner, query.terms.tenant, query.terms.deadline_s
        begun_s = query.begun_s
        priority = PRIORITIES[self._policy_of(engine)](urgency, begun_s)
        items = [
            Item(payload, owner, priority, next(self._ids), tenant, deadline_s, 0, urgency, begun_s)
            for payload in payloads
        ]
        for item, reply in zip(items, replies, strict=True):
            reply.cancel = lambda item_id=item.id: self.cancel(engine, (item_id,))  # type: ignore[misc]
            reply.withdraw = partial(self._withdraw, engine, item.id)
        whose = items[0].id if owner == 0 and items else owner
        depth, remaining_s, own_s = urgency.depth, urgency.remaining_s, urgency.own_s
        request = Request(op, settings, [], whose, depth, remaining_s, begun_s, own_s=own_s, gives_way=gives_way)
        request.tenant = tenant
        request.items = [WorkItem(item, request, reply) for item, reply in zip(items, replies, strict=True)]
        self._keeps |= hasattr(engine, "release")
        coming = self._workers.get(engine) if threading.get_ident() == self._thread_id else None
        if coming is not None:  # so that queries of the same turn know of one another
            coming.scheduler.coming_items += len(items)
        self.soon(self._enqueue, engine, request, coming)

    def cancel(self, engine: Engine, ids: Sequence[int]) -> None:
        """Cancel items."""

        def cancel() -> None:
            if worker := self._workers.get(engine):
                worker.cancel(ids)

        self.soon(cancel)

    def _withdraw(self, engine: Engine, item_id: int, agrees: Callable[[], bool]) -> None:
        """See `Reply.withdraw`."""

        def withdraw() -> None:
            if worker := self._workers.get(engine):
                worker.withdraw(item_id, agrees)

        self.soon(withdraw)

    def rescale(self, engine: Engine) -> None:
        """Use the new `instances` of the engine, and give no more work to removed instances."""

        def rescale() -> None:
            if worker := self._workers.get(engine):
                worker.dispatch()

        self.soon(rescale)

    def is_saturated(self, engine: Engine) -> bool:
        """Whether the engine is too busy for rewrites which cost compute."""
        if engine.capabilities.is_scheduled:
            return bool(getattr(engine, "is_saturated", False))  # its own scheduler tells
        worker = self._workers.get(engine)
        return worker is not None and worker.is_saturated

    def begins_at_once(self, engine: Engine, count: int) -> bool:
        """Whether `count` items would not have to wait, as far as the host can tell."""
        if engine.capabilities.is_scheduled:
            return not self.is_saturated(engine)
        worker = self._workers.get(engine)
        return worker.begins_at_once(count) if worker else count <= engine.capabilities.max_items

    def counts(self, engine: Engine) -> Counts:
        """Return the counts of the engine's items so far."""
        worker = self._workers.get(engine)
        return replace(worker.counts) if worker else Counts()

    def load(self, engine: Engine) -> tuple[int, int]:
        """Return the number of items waiting for the engine, and the number of items with the engine."""
        worker = self._workers.get(engine)
        return (worker.scheduler.queued_items, worker.scheduler.running_items) if worker else (0, 0)

    def subscribe(self, owner: Hashable, sink: Sink) -> None:
        """Call `sink`, on the loop thread, for each batch that held an item of `owner`."""
        self._sinks[owner] = sink

    def release(self, owner: Hashable) -> None:
        """Let engines drop the state of a finished query."""
        self._sinks.pop(owner, None)

        def release() -> None:
            for engine in list(self._workers):
                if forget := getattr(engine, "release", None):
                    forget(owner)

        if self._keeps:
            self.soon(release)

    def _enqueue(self, engine: Engine, request: Request, coming: EngineWorker | None) -> None:
        works = request.items
        if coming is not None:
            coming.scheduler.coming_items -= len(works)
        try:
            if self._is_closing or asyncio.get_running_loop() is not self._loop:
                raise EngineClosed(f"engine {engine.name!r} was shut down")
            worker = self._workers.get(engine)
            if worker is None:
                worker = self._workers[engine] = EngineWorker(
                    engine, POLICIES[self._policy_of(engine)], self.rules, self._sinks
                )
            worker.submit(engine, request)
            worker.dispatch_soon()
            if self._auditing is None and self._thread is not None:
                self._auditing = self._loop.call_later(AUDIT_S, self._audit)
        except Exception as e:  # an engine that breaks the protocol, or a host that ends: the waiters get the error
            for work in works:
                work.notify(Failed(e))

    def _audit(self) -> None:
        """Run the watchdog while any item is open."""
        self._auditing = None
        for worker in list(self._workers.values()):
            worker.audit()
        if self._loop is not None and any(worker.has_open_items for worker in self._workers.values()):
            self._auditing = self._loop.call_later(AUDIT_S, self._audit)

    def soon(self, callback: Callable[..., None], *args: Any) -> None:
        """Call `callback` on the loop thread, in an empty context: no context of the caller reaches an engine.

        Never at once, not even on the loop thread: the caller may be a finalizer that interrupts a scheduler there.
        """
        loop = self._loop
        if loop is not None and threading.get_ident() == self._thread_id:  # there is no thread to wake
            loop.call_soon(callback, *args, context=Context())
            return
        with kept_off, self._door:
            self.loop.call_soon_threadsafe(callback, *args, context=Context())

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop thread after some seconds."""

        def begin() -> None:
            self.loop.call_later(delay_s, callback)

        self.soon(begin)

    def _start(self) -> None:
        started: Future[asyncio.AbstractEventLoop] = Future()

        def run() -> None:
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
            self._thread_id = threading.get_ident()
            loops.add(loop)
            loop.call_soon(started.set_result, loop)
            with kept_off:
                loop.run_forever()
            if self._thread_id == threading.get_ident():  # and no other has begun meanwhile
                self._thread_id = 0  # the next thread may get the same
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

        self._thread = threading.Thread(target=run, name="teola-host", daemon=True)
        self._thread.start()
        self._loop = started.result()
        atexit.register(self.close)

    def close(self, timeout_s: float = 10.0) -> None:
        """End all work with EngineClosed, close the engines, stop the thread. The next call starts afresh.

        Raises: EngineLoopBlocked on the loop thread.
        """
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            return
        loops.check_may_wait()
        atexit.unregister(self.close)
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self.aclose(), loop).result(timeout_s)
        with kept_off, self._door:  # outcomes so far are still delivered, before the stop
            if self._loop is loop:
                loop.call_soon_threadsafe(loop.stop)
                self._loop = self._thread = None
                self._is_closing = False
        thread.join(timeout_s)

    async def aclose(self) -> None:
        """End all work with EngineClosed and close the engines; for a host that lives on the caller's loop."""
        self._is_closing = True
        workers = list(self._workers.items())
        self._workers.clear()
        if self._auditing is not None:
            self._auditing.cancel()
            self._auditing = None
        for _, worker in workers:
            await worker.close()
        for engine, _ in workers:
            try:
                await engine.close()
            except Exception:  # an engine that cannot close must not keep the others open
                log.exception("engine %r did not close", engine.name)
