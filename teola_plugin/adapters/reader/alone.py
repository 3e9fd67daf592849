"""Whether a call is alone in the process, so that nobody stores where the call's functions do while a request waits.

A call is alone if no code of the user's can run beside its functions: each further thread is ours, or an idle thread of
a known library; the event loop, if there is one, has no further task, timer, callback or socket; a signal interrupts or
ends. Only running code starts more, so a call alone at the beginning stays alone, but for what the call itself
starts (see `notes.Notes.stores_alone`). Finalizers and callbacks of weak references run at any moment, between requests
too, and count if functions mention them. Not seen are threads in C coming to Python later, and a thread (of `_thread`,
of a pool) taking up work at the very moment. Of further kinds of loops, threads and greenlets nothing is known.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import thread as pool
from typing import Any

_OURS = "teola_plugin."
_SWITCHING = ("gevent", "eventlet")
"""Modules under which further code runs in a thread waiting for a reply."""

_SIGNALS = tuple(map(int, signal.valid_signals()))


def thread_alone() -> int:
    """Return the number of the calling thread if a call beginning here is alone; 0 if nothing is known."""
    here = threading.get_ident()
    with contextlib.suppress(Exception):  # of another release of Python, which keeps what is asked here elsewhere
        return here if is_alone(here) and _is_loop_quiet() else 0
    return 0


def is_alone(here: int) -> bool:
    """Whether only the call in a thread may run code of the user's, as far as threads and signals go."""
    if not sys.modules.keys().isdisjoint(_SWITCHING) or not _are_signals_plain():
        return False
    threads = {each.ident: each for each in threading.enumerate()}  # one that begins has no number yet
    return all(number == here or _is_idle(number, threads) for number in {*threads, *sys._current_exceptions()})


def _is_idle(number: int | None, threads: Mapping[int | None, threading.Thread]) -> bool:
    """Whether a thread runs no code of the user's, and begins none by itself."""
    if (thread := threads.get(number)) is None:  # made by `_thread`, or in C
        return False
    if type(thread) is getattr(sys.modules.get("tqdm._monitor"), "TMonitor", None):
        return True
    target = vars(thread).get("_target")
    if target is pool._worker:
        frame, work = sys._current_frames().get(number or 0), pool._threads_queues.get(thread)
        return frame is not None and frame.f_code is target.__code__ and work is not None and bool(work.empty())
    return type(thread) is threading.Thread and str(getattr(target, "__module__", "")).startswith(_OURS)


def _are_signals_plain() -> bool:
    """Whether no signal runs a function of the user's: a signal of Python's own, or of asyncio's, interrupts."""
    get: Any = vars(sys.modules["_signal"])["getsignal"]
    return all(type(each) is int or each is None or _interrupts(each) for each in map(get, _SIGNALS))


def _interrupts(handler: Any) -> bool:
    if type(handler) is functools.partial:
        return type(getattr(handler.func, "__self__", None)) is asyncio.Runner
    return handler is vars(sys.modules["_signal"])["default_int_handler"]


# --- event loops -----------------------------------------------------------------------------------------------------


def _is_loop_quiet() -> bool:
    """Whether the loop running here, or the loop for synchronous code to run here, does nothing else."""
    if (loop := asyncio._get_running_loop()) is not None:
        return _is_quiet(loop, asyncio.current_task(loop))
    policy = vars(asyncio.events).get("_event_loop_policy")
    if policy is None:
        return True
    local = getattr(policy, "_local", None)
    loop = getattr(local, "_loop", None)
    return local is not None and (loop is None or loop.is_closed() or _is_quiet(loop, None))


def _is_quiet(loop: Any, task: Any) -> bool:
    """Whether a loop has nothing to do but a task. Clients of `anyio` leave an idle connection."""
    if type(loop) is not asyncio.SelectorEventLoop or not asyncio.all_tasks(loop) <= {task}:
        return False
    own = vars(loop)
    is_due = any(not each._cancelled for each in (*own["_ready"], *own["_scheduled"]))
    return not is_due and not own.get("_signal_handlers") and len(own["_selector"].get_map()) <= 1  # to be woken by
