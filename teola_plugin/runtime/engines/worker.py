"""Worker threads of engines, and how a batch runs on a thread.

    run_batch: host loop --batch--> worker thread: compute(payloads) --outcomes--> host loop: emit

A single thread per engine means that nothing else uses the model meanwhile; a tokenizer of Hugging Face, for example,
raises "Already borrowed" when two threads use it. Work runs in an empty context: no session, no callbacks.

A batch that fails is halved until the failing items are alone, each with its own error:

    [a b X c] fails -> [a b] ok, [X c] fails -> [X] failed, [c] ok
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import Context
from queue import SimpleQueue
from typing import Any, TypeVar

from teola_plugin import forks
from teola_plugin.engines import Batch, Done, Emit, Failed
from teola_plugin.errors import EngineError
from teola_plugin.finalizers import kept_off
from teola_plugin.processor import processor

T = TypeVar("T")
_Jobs = SimpleQueue[tuple["Future[Any]", Callable[[], Any]] | None]

Compute = Callable[[Sequence[Any]], Sequence[Any]]
"""A function that takes all payloads of a batch and returns as many values."""


class Worker:
    """Up to `threads` daemon threads, started when needed. The threads end with the worker, and with `stop`."""

    def __init__(self, name: str, threads: int = 1) -> None:
        self._name = name
        self._limit = threads
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        self._starting = threading.Lock()
        self._jobs: _Jobs = SimpleQueue()
        self._idle: deque[None] = deque()
        self._started = 0
        self._end = weakref.finalize(self, self._jobs.put, None)

    async def call(self, function: Callable[[], T]) -> T:
        """Return or raise the result of `function` on a worker thread. A call not begun yet can be cancelled."""
        return await asyncio.wrap_future(self.submit(function))

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Submit a call without waiting.

        Unlike a ThreadPoolExecutor's `submit`, takes no lock that user code may hold: all executors share a single
        lock.
        """
        future: Future[T] = Future()
        with kept_off, self._starting:
            self._jobs.put((future, function))
            try:
                self._idle.pop()
            except IndexError:
                self._start()
        return future

    def _start(self) -> None:
        if self._started < self._limit:
            self._started += 1
            name = f"teola-{self._name}-{self._started}"
            threading.Thread(target=_serve, args=(self._jobs, self._idle), name=name, daemon=True).start()

    def stop(self) -> None:
        """End the threads after the queued calls. The next call starts new threads."""
        with kept_off, self._starting:
            self._end()
            self._begin()


def _serve(jobs: _Jobs, idle: deque[None]) -> None:
    with kept_off:
        while job := jobs.get():
            future, function = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(Context().run(function))
                except BaseException as e:  # around an engine's run: the waiting caller gets the error
                    future.set_exception(e)
            del job, future, function  # an idle thread must not keep a model alive
            idle.append(None)
    jobs.put(None)  # for the next thread


async def run_batch(worker: Worker, batch: Batch, emit: Emit, op: str, compute: Compute) -> None:
    """Run a batch, as `Engine.run` does, for an engine with the single operation `op`."""
    payloads = [item.payload for item in batch.items]
    for position, outcome in enumerate(await worker.call(lambda: _outcomes(batch.op, payloads, op, compute))):
        emit(position, outcome)


def _outcomes(asked: str, payloads: Sequence[Any], op: str, compute: Compute) -> list[Done | Failed]:
    if asked == op:
        return isolate(compute, payloads)
    return [Failed(EngineError(f"this engine understands {op!r}, not {asked!r}"))] * len(payloads)


def isolate(compute: Compute, payloads: Sequence[Any]) -> list[Done | Failed]:
    """Return an outcome per payload; an item that fails in a batch but not alone succeeds."""
    try:
        with processor.model():
            values = compute(payloads)
        if len(values) != len(payloads):
            raise EngineError(f"the engine's model gave {len(values)} values for {len(payloads)} items")
        return [Done(value) for value in values]
    except BaseException as e:  # around an engine's run: each item gets its own error, or exit
        if len(payloads) == 1:
            return [Failed(e)]
    half = len(payloads) // 2
    return isolate(compute, payloads[:half]) + isolate(compute, payloads[half:])
