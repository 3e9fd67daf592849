"""The event loops that engines run on. A thread that waits for an engine must not be the one that runs its loop.

Code of the user's may get there all the same: an engine of its own, a listener of a reply, a finalizer. Whoever is
about to wait in a thread asks here first, since waiting would stop all engines of the process for good.
"""

from __future__ import annotations

import asyncio
import weakref

from teola_plugin.errors import EngineLoopBlocked

_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def add(loop: asyncio.AbstractEventLoop) -> None:
    """Engines run on this loop."""
    _loops.add(loop)


def runs_engines() -> bool:
    """Whether the calling thread runs an event loop of engines right now."""
    loop = asyncio._get_running_loop()
    return loop is not None and loop in _loops


def check_may_wait() -> None:
    """Raises: EngineLoopBlocked, where a wait would stop the engines that are waited for."""
    if runs_engines():
        raise blocked()


def blocked() -> EngineLoopBlocked:
    """The error of a wait that would stop the engines."""
    return EngineLoopBlocked(
        "a synchronous call on the event loop of the engines would wait for itself: use the asynchronous form there"
        " (ainvoke, aquery, arun, ...), or call it in a thread (asyncio.to_thread)"
    )
