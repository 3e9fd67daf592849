"""The local host: the schedulers and engines of this process, on one event-loop thread of our own.

    ask (any thread) --call_soon_threadsafe--> lane of the engine: EngineScheduler --batch--> Engine.run
                                                      ^--------------- outcomes -------------------'

A *lane* is one engine with its scheduler. Everything that changes a lane runs on the loop thread, so there are no
locks. An error that the engine raises instead of telling it per item fails the items still open, never the lane.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import Context
from typing import Any

from teola_plugin import forks
from teola_plugin.engines import Batch, Delta, Engine, Failed, Item, Outcome
from teola_plugin.errors import Cancelled, EngineClosed
from teola_plugin.events import BatchRan
from teola_plugin.finalizers import kept_off
from teola_plugin.runtime.engine_scheduler import EngineScheduler, Request
from teola_plugin.runtime.policies import POLICIES, PolicyName
from teola_plugin.seams import Reply

log = logging.getLogger(__name__)
Sink = Callable[[BatchRan], None]


class _Lane:
    """One engine: its scheduler, the replies its items owe, and who wants to hear of its batches.

    It keeps the engine alive only while it owes a reply, so that an engine goes with the model it stands on.
    """

    def __init__(self, engine: Engine, policy: PolicyName) -> None:
        self.name = engine.name
        self.held: Engine | None = None
        self.scheduler = EngineScheduler(POLICIES[policy], engine.capabilities)
        self.owed: dict[int, Reply] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def submit(self, engine: Engine, request: Request, replies: Sequence[Reply]) -> None:
        pairs = zip(request.items, replies, strict=True)
        wanted = {item.id: (item, reply) for item, reply in pairs if reply.outcome is None}  # not cancelled on its way
        if not wanted:
            return
        request.items = [item for item, _ in wanted.values()]
        self.held = engine
        self.owed.update((item_id, reply) for item_id, (_, reply) in wanted.items())
        self.scheduler.submit(request)

    def pump(self, sinks: Mapping[int, Sink]) -> None:
        while (engine := self.held) and (batch := self.scheduler.next_batch()):
            task = asyncio.get_running_loop().create_task(self._run(engine, batch, sinks))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _run(self, engine: Engine, batch: Batch, sinks: Mapping[int, Sink]) -> None:
        started_s = time.perf_counter()

        def emit(position: int, outcome: Outcome) -> None:
            self._tell(batch.items[position], outcome)
            if not isinstance(outcome, Delta) and engine.capabilities.concurrent:
                self.pump(sinks)

        error: BaseException = EngineClosed(f"engine {self.name!r} ended without an answer")
        try:
            await engine.run(batch, emit)
        except asyncio.CancelledError:
            error = EngineClosed(f"engine {self.name!r} was shut down")
        except BaseException as e:  # whatever an engine raises belongs to its items; an exit would end the loop thread
            error = e
        for item in batch.items:
            self._tell(item, Failed(error))  # only those still open hear it
        ids = tuple(item.id for item in batch.items)
        ran = BatchRan(self.name, batch.op, len(ids), started_s, time.perf_counter(), ids)
        for owner in {item.owner for item in batch.items}:
            if sink := sinks.get(owner):
                sink(ran)
        self.pump(sinks)

    def _tell(self, item: Item, outcome: Outcome) -> None:
        ended = not isinstance(outcome, Delta)
        if ended:
            self.scheduler.finish((item.id,))
        reply = self.owed.pop(item.id, None) if ended else self.owed.get(item.id)
        if reply is not None:
            reply.put(outcome)
        if not self.owed:
            self.held = None

    def cancel(self, ids: Sequence[int]) -> None:
        for item_id in ids:
            if reply := self.owed.pop(item_id, None):
                reply.put(Failed(Cancelled("the item was cancelled")))
        running = self.scheduler.withdraw(ids)
        if running and self.held and self.held.capabilities.abort:
            self.held.abort(running)
        if not self.owed:
            self.held = None


class LocalHost:
    """Engines of this process. Threads may call `submit`, `cancel` and `release` at any time.

    The loop thread starts with the first call and ends with `close` or the interpreter. A forked child starts its own.
    """

    def __init__(self, policy: PolicyName = "topology") -> None:
        self._policy: PolicyName = policy
        self._ids = itertools.count(1)
        self._begin()
        forks.in_child(self._begin_anew)

    def _begin(self) -> None:
        self._lanes: weakref.WeakKeyDictionary[Any, _Lane] = weakref.WeakKeyDictionary()
        self._sinks: dict[int, Sink] = {}
        self._door = threading.RLock()  # held to start and stop the loop and to hand work over to it
        self._keeps = False  # some engine keeps things for queries
        self._is_closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def _begin_anew(self) -> None:
        """In a forked child, where the loop thread is not."""
        forks.leave(self._loop, list(self._lanes.values()))
        self._begin()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The host's event loop, started if need be."""
        with kept_off, self._door:
            if self._loop is None:
                self._start()
            assert self._loop is not None
            return self._loop

    def use(self, policy: PolicyName) -> None:
        """Make batches by this policy from now on, on all engines."""

        def use() -> None:
            self._policy = policy
            for lane in self._lanes.values():
                lane.scheduler.policy = POLICIES[policy]

        self.soon(use)

    def new_id(self) -> int:
        """A number no other item or query of this process has."""
        return next(self._ids)

    def submit(
        self, engine: Engine, op: str, payloads: Sequence[Any], settings: Mapping[str, Any], replies: Sequence[Reply],
        *, owner: int = 0, depth: int = 0,
    ) -> None:  # fmt: skip
        """Queue one request; `replies` (one per payload) get the outcomes. Closing a reply's stream cancels it."""
        items = [Item(payload, owner, -depth, next(self._ids)) for payload in payloads]
        for item, reply in zip(items, replies, strict=True):
            reply.cancel = lambda item_id=item.id: self.cancel(engine, (item_id,))  # type: ignore[misc]
        request = Request(op, settings, items, owner or items[0].id if items else 0, depth)
        self._keeps |= hasattr(engine, "release")
        self.soon(self._enqueue, engine, request, replies)

    def cancel(self, engine: Engine, ids: Sequence[int]) -> None:
        """Nobody wants these items any more."""

        def cancel() -> None:
            if lane := self._lanes.get(engine):
                lane.cancel(ids)
                lane.pump(self._sinks)

        self.soon(cancel)

    def subscribe(self, owner: int, sink: Sink) -> None:
        """`sink` hears, on the loop thread, of each batch that held an item of `owner`."""
        self._sinks[owner] = sink

    def release(self, owner: int) -> None:
        """The query is over: engines may drop what they keep for it."""
        self._sinks.pop(owner, None)

        def release() -> None:
            for engine in list(self._lanes):
                if forget := getattr(engine, "release", None):
                    forget(owner)

        if self._keeps:
            self.soon(release)

    def _enqueue(self, engine: Engine, request: Request, replies: Sequence[Reply]) -> None:
        try:
            if self._is_closing or asyncio.get_running_loop() is not self._loop:
                raise EngineClosed(f"engine {engine.name!r} was shut down")
            lane = self._lanes.get(engine)
            if lane is None:
                lane = self._lanes[engine] = _Lane(engine, self._policy)
            lane.submit(engine, request, replies)
            lane.pump(self._sinks)
        except Exception as e:  # an engine that keeps its protocol not, or ours that ends: who waits must hear of it
            for reply in replies:
                reply.put(Failed(e))

    def soon(self, callback: Callable[..., None], *args: Any) -> None:
        """Call it on the loop thread, in an empty context: nothing of the caller's reaches an engine.

        Never at once, not even on the loop thread: the caller may be a finalizer that interrupts a scheduler there.
        """
        with kept_off, self._door:
            self.loop.call_soon_threadsafe(callback, *args, context=Context())

    def _start(self) -> None:
        started: Future[asyncio.AbstractEventLoop] = Future()

        def run() -> None:
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
            loop.call_soon(started.set_result, loop)
            with kept_off:
                loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

        self._thread = threading.Thread(target=run, name="teola-host", daemon=True)
        self._thread.start()
        self._loop = started.result()
        atexit.register(self.close)

    def close(self, timeout_s: float = 10.0) -> None:
        """End all work with EngineClosed, close the engines, stop the thread. The next call starts afresh."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            return
        atexit.unregister(self.close)
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._close_lanes(), loop).result(timeout_s)
        with kept_off, self._door:  # what came in so far is still told, before the stop
            if self._loop is loop:
                loop.call_soon_threadsafe(loop.stop)
                self._loop = self._thread = None
                self._is_closing = False
        thread.join(timeout_s)

    async def _close_lanes(self) -> None:
        self._is_closing = True
        lanes = list(self._lanes.items())
        self._lanes.clear()
        for _, lane in lanes:
            for task in lane.tasks:
                task.cancel()
            await asyncio.gather(*lane.tasks, return_exceptions=True)
            for reply in list(lane.owed.values()):
                reply.put(Failed(EngineClosed(f"engine {lane.name!r} was shut down")))
        for engine, _ in lanes:
            try:
                await engine.close()
            except Exception:  # an engine that cannot close must not keep the others open
                log.exception("engine %r did not close", engine.name)
