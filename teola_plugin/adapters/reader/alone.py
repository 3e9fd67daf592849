"""Whether a call is alone in the process, so that nobody stores where the call's functions do while a request waits.

A call is alone if no code of the user's can run beside its functions: each further thread is ours, or an idle thread of
a known library; the event loop, if there is one, has no further task, timer, callback or socket; a signal interrupts or
ends. Only code that runs could change that, so a call that begins alone stays alone, but for what the call itself
starts (see `notes.Notes.stores_alone`). Finalizers and callbacks of weak references run at any moment, between requests
too, and count if functions mention such; threads of libraries in C that come into Python later are not seen.

Who can be told nothing is not alone: another kind of loop, an unknown thread, greenlets.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import functools
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import thread as pool
from typing import Any

_OURS = "teola_plugin."
_SWITCHING = ("gevent", "eventlet")
"""Modules under which other code runs in the thread that waits for a reply."""

_MAX_SIGNALS = 65
_MONITOR = ("tqdm._monitor", "TMonitor")
_PROTOCOL = ("anyio._backends._asyncio", "StreamProtocol")
"""The class behind the connections that HTTP clients keep: only a task that waits hears of these."""


def thread_alone() -> int:
    """Return the number of the calling thread if the call that begins here is alone; 0 if that cannot be told."""
    here = threading.get_ident()
    return here if is_alone(here) and _is_loop_quiet() else 0


def is_alone(here: int) -> bool:
    """Whether only the call in a thread may run code of the user's, as far as threads and signals go."""
    if not sys.modules.keys().isdisjoint(_SWITCHING) or not _are_signals_plain():
        return False
    threads = {each.ident: each for each in threading.enumerate()}  # one that begins has no number yet
    return all(number == here or _is_idle(threads.get(number)) for number in {*threads, *sys._current_frames()})


def _is_idle(thread: threading.Thread | None) -> bool:
    """Whether a thread runs no code of the user's, and begins none by itself."""
    if thread is None:
        return False
    if _is_of(thread, _MONITOR):
        return True
    own = vars(thread)
    target, args = own.get("_target"), own.get("_args") or (None,)
    if target is pool._worker:  # type: ignore[attr-defined]
        executor = args[0]()
        return isinstance(executor, ThreadPoolExecutor) and _has_no_work(executor)
    return type(thread) is threading.Thread and str(getattr(target, "__module__", "")).startswith(_OURS)


def _has_no_work(executor: Any) -> bool:
    """Whether all threads of a pool wait for work: a thread that takes some is counted out before, and in after."""
    return bool(executor._idle_semaphore._value == len(executor._threads))


def _is_of(value: Any, known: tuple[str, str]) -> bool:
    module, name = known
    return type(value) is getattr(sys.modules.get(module), name, _is_of)


def _are_signals_plain() -> bool:
    """Whether no signal runs a function of the user's: a signal of Python's own, or of asyncio's, interrupts."""
    get: Any = vars(sys.modules["_signal"])["getsignal"]
    handlers = [get(number) for number in range(1, _MAX_SIGNALS) if number not in (32, 33)]
    return all(type(each) is int or each is None or _interrupts(each) for each in handlers)


def _interrupts(handler: Any) -> bool:
    if type(handler) is functools.partial:
        return type(getattr(handler.func, "__self__", None)) is asyncio.Runner
    return handler is vars(sys.modules["_signal"])["default_int_handler"]


# --- event loops -----------------------------------------------------------------------------------------------------


def _is_loop_quiet() -> bool:
    """Whether the loop that runs here, or the one that synchronous code may run here, does nothing else."""
    if (loop := asyncio._get_running_loop()) is not None:
        return _is_quiet(loop, asyncio.current_task(loop))
    policy = vars(asyncio.events).get("_event_loop_policy")
    if policy is None:
        return True
    local = getattr(policy, "_local", None)
    loop = getattr(local, "_loop", None)
    return local is not None and (loop is None or loop.is_closed() or _is_quiet(loop, None))


def _is_quiet(loop: Any, task: Any) -> bool:
    if type(loop) is not asyncio.SelectorEventLoop or not asyncio.all_tasks(loop) <= {task}:
        return False
    own = vars(loop)
    watched = own["_selector"].get_map()
    handles: Iterable[Any] = (handle for key in list(watched.values()) for handle in key.data if handle is not None)
    is_due = any(not each._cancelled for each in (*own["_ready"], *own["_scheduled"]))
    return not is_due and not own.get("_signal_handlers") and all(_only_wakes(each, loop) for each in handles)


def _only_wakes(handle: Any, loop: Any) -> bool:
    """Whether a callback for a socket only wakes the loop, or the task that waits for a client's connection."""
    held = getattr(handle._callback, "__self__", None)
    if held is loop:
        return bool(handle._callback.__name__ == "_read_from_self")
    return _is_of(vars(held).get("_protocol"), _PROTOCOL) if hasattr(held, "__dict__") else False
