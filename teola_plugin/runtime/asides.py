"""Work that asks models and stores while it runs ahead: in a thread of its own, or on the caller's event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context
from typing import Any

from teola_plugin import forks

MAX_ASKING = 64
"""So many pieces of work run at once, each in a thread of its own."""

_askers: ThreadPoolExecutor


def _begin() -> None:
    global _askers
    _askers = ThreadPoolExecutor(MAX_ASKING, thread_name_prefix="teola-ask")


_begin()
forks.in_child(_begin)


def begin(work: Callable[[], Any], is_async: bool, loop: asyncio.AbstractEventLoop | None) -> Future[Any] | None:
    """Begin a function or coroutine function, in an empty context. None: a coroutine has no loop to run on."""
    with contextlib.suppress(RuntimeError):  # the interpreter ends, or the loop was closed just now
        if not is_async:
            return _askers.submit(Context().run, work)
        if loop is not None and loop.is_running():
            return Context().run(asyncio.run_coroutine_threadsafe, work(), loop)
    return None
