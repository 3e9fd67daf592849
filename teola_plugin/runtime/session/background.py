"""Background work of the run-ahead that calls models and stores: on a worker thread, or on the caller's event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from typing import Any

from teola_plugin.runtime.engines.worker import Worker

MAX_ASKING = 64
"""The maximum number of functions that run at once, each in a thread of its own."""

MAX_READING = 2
"""The maximum number of functions read at once, over all calls. Reading only computes: more threads would not end
sooner, and would slow down the calls, which run in the same interpreter."""

_askers = Worker("ask", MAX_ASKING)
_readers = Worker("read", MAX_READING)


def begin_reading(work: Callable[[], None]) -> Future[Any] | None:
    """Start reading in an empty context; cancellable until begun. Returns None if the interpreter ends."""
    with contextlib.suppress(RuntimeError):  # the interpreter ends
        return _readers.submit(work)
    return None


def begin(work: Callable[[], Any], is_async: bool, loop: asyncio.AbstractEventLoop | None) -> Future[Any] | None:
    """Start a function or coroutine function in an empty context. Returns None if a coroutine has no loop to run on."""
    with contextlib.suppress(RuntimeError):  # the interpreter ends, or the loop was closed just now
        if not is_async:
            return _askers.submit(work)
        if loop is not None and loop.is_running():
            return Context().run(asyncio.run_coroutine_threadsafe, work(), loop)
    return None
