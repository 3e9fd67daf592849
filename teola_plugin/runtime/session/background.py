"""Work that asks models and stores while it runs ahead: in a thread of its own, or on the caller's event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from typing import Any

from teola_plugin.runtime.engines.worker import Worker

MAX_ASKING = 64
"""So many pieces of work run at once, each in a thread of its own."""

MAX_READING = 2
"""So many functions are read at once, of all calls. Reading only computes: more threads would not be sooner, and would
hold up the calls themselves, which run in the same interpreter."""

_askers = Worker("ask", MAX_ASKING)
_readers = Worker("read", MAX_READING)


def begin_reading(work: Callable[[], None]) -> Future[Any] | None:
    """Begin to read, in an empty context. What was not begun yet may be cancelled."""
    with contextlib.suppress(RuntimeError):  # the interpreter ends
        return _readers.submit(work)
    return None


def begin(work: Callable[[], Any], is_async: bool, loop: asyncio.AbstractEventLoop | None) -> Future[Any] | None:
    """Begin a function or coroutine function, in an empty context. None: a coroutine has no loop to run on."""
    with contextlib.suppress(RuntimeError):  # the interpreter ends, or the loop was closed just now
        if not is_async:
            return _askers.submit(work)
        if loop is not None and loop.is_running():
            return Context().run(asyncio.run_coroutine_threadsafe, work(), loop)
    return None
