"""Calls to foreign models (`Foreign`): side by side, on threads or on the caller's own event loop.

A call runs in an empty context: no session, and none of the callbacks, tags and traces that frameworks carry in context
variables, because the framework's own run will report the call in its place. (An adapter may have the call enter
another context.)

A streamed call emits text from its own thread or loop; the host's loop passes the text on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from contextvars import Context
from functools import partial
from typing import Any

from teola_plugin.engines import Batch, Capabilities, Delta, Done, Emit, Failed, Foreign, Item
from teola_plugin.errors import Cancelled, EngineClosed
from teola_plugin.providers import ProviderCall
from teola_plugin.runtime.engines.worker import Worker

MAX_ITEMS = 16
"""The maximum number of calls side by side; a bound on threads, not on the capacity of the called service."""


class PythonEngine:
    """An engine for `Foreign` payloads of any operation, up to `max_items` at once. `abort` cancels if possible."""

    def __init__(self, *, name: str = "python", max_items: int = MAX_ITEMS) -> None:
        self.name = name
        self.capabilities = Capabilities(max_items=max_items, concurrent=True, abort=True, remote=True)
        self._worker = Worker(name, threads=max_items)
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self, batch: Batch, emit: Emit) -> None:
        """See `teola_plugin.engines`."""
        tasks = []
        for position, item in enumerate(batch.items):
            task = asyncio.create_task(self._finish(position, item, emit))
            self._tasks[item.id] = task
            tasks.append(task)
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
            for position, task in enumerate(tasks):
                if task.cancelled():  # before its first step
                    emit(position, Failed(Cancelled("the call was cancelled")))
        finally:
            for item in batch.items:
                self._tasks.pop(item.id, None)

    async def _finish(self, position: int, item: Item, emit: Emit) -> None:
        telling = _Telling(position, emit)
        try:
            emit(position, await self._outcome(item.payload, telling))
        except asyncio.CancelledError:
            telling.is_over = True
            emit(position, Failed(Cancelled("the call was cancelled, or the event loop it ran on has ended")))
        except Exception as e:  # around an engine's run: whatever the error, the item gets it
            emit(position, Failed(e))

    async def _outcome(self, payload: Any, telling: _Telling) -> Done | Failed:
        if not isinstance(payload, Foreign):
            return await self._worker.call(lambda: _called(payload))
        call = partial(payload.stream, telling) if payload.is_streamed and payload.stream else payload.call
        if not payload.is_async:
            return await self._worker.call(
                lambda: _called(call, payload.provider_call) if payload.first.is_me(self) else _TAKEN_OVER
            )
        if payload.loop is None or not payload.loop.is_running():
            raise EngineClosed("the event loop of the caller is not running")
        if not payload.first.is_me(self):
            return _TAKEN_OVER
        work = _awaited(call, payload.provider_call)
        return await asyncio.wrap_future(Context().run(asyncio.run_coroutine_threadsafe, work, payload.loop))

    def abort(self, ids: Sequence[int]) -> None:
        """Cancel calls. A call on a thread runs on, a stream to the next piece, without a waiter."""
        for item_id in ids:
            if task := self._tasks.get(item_id):
                task.cancel()

    async def close(self) -> None:
        """End the threads; a later batch starts new threads."""
        self._worker.stop()


class _Telling:
    """The forwarder of a streamed call's text to `emit`, in order and before the end."""

    def __init__(self, position: int, emit: Emit) -> None:
        self.is_over = False
        self._loop = asyncio.get_running_loop()
        self._position = position
        self._emit = emit

    def __call__(self, text: str) -> None:
        if self.is_over:
            raise Cancelled("nobody waits for this reply any more")
        self._loop.call_soon_threadsafe(self._emit, self._position, Delta(text), context=Context())


_TAKEN_OVER = Failed(Cancelled("who waits for the call makes it"))


def _called(call: Callable[[], Any], provider_call: ProviderCall | None = None) -> Done | Failed:
    """Return the model's error as a value: a future takes no StopIteration, and an exit would end the host."""
    try:
        with provider_call or nullcontext():
            return Done(call())
    except BaseException as e:  # around an engine's run: raised again where the framework asks for the reply
        return Failed(e)


async def _awaited(call: Callable[[], Awaitable[Any]], provider_call: ProviderCall | None) -> Done | Failed:
    try:
        with provider_call or nullcontext():
            return Done(await call())
    except asyncio.CancelledError:
        raise
    except BaseException as e:  # see `_called`
        return Failed(e)
