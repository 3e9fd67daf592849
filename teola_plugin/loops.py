"""The event loops of engines. A thread which waits for an engine must not run the engine's loop.

User code may run on such a loop all the same: an engine of the user's, a listener of a reply, a finalizer. Every
blocking wait checks here first, since such a wait would stop all engines of the process for good.
"""

from __future__ import annotations

import asyncio
import weakref

from teola_plugin.errors import EngineLoopBlocked

_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def add(loop: asyncio.AbstractEventLoop) -> None:
    """Register the loop as a loop of engines."""
    _loops.add(loop)


def runs_engines() -> bool:
    """Whether the calling thread runs an event loop of engines right now."""
    loop = asyncio._get_running_loop()
    return loop is not None and loop in _loops


def check_may_wait() -> None:
    """Check that the calling thread may block.

    Raises: EngineLoopBlocked, where a wait would stop the awaited engines.
    """
    if runs_engines():
        raise blocked()


def blocked() -> EngineLoopBlocked:
    """Return the error of a wait which would stop the engines."""
    return EngineLoopBlocked(
        "a synchronous call on the event loop of the engines would wait for itself: use the asynchronous form there"
        " (ainvoke, aquery, arun, ...), or call it in a thread (asyncio.to_thread)"
    )
