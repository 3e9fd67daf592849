"""Contexts of `with` statements: only contexts without effects that the program can see.

Semaphores are not read: with semaphores, or locks held during requests, the user limits concurrent requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.attributes import attribute
from teola_plugin.adapters.reader.values import Barrier, Opaque, isinstance_of

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_ASYNC_LOCKS = (asyncio.Lock,)

IS_USED = "__teola_is_used__"
"""An attribute of the reader's stand-ins for contexts that can be entered once."""


def entered(run: Any, context: Any) -> Any:
    """Return the value of `name` in `with context as name`. Raises: Barrier if leaving the context has effects.

    A lock is held until `run.locks` is put back.
    """
    held = context.held if type(context) is Opaque else None
    if held is None or isinstance_of(held, Opaque):
        raise Barrier("it uses a with statement")
    kind = type(held)
    if any(kind is each for each in _LOCKS):
        run.locks += 1
        return True
    if any(kind is each for each in _ASYNC_LOCKS):
        run.locks += 1
        return None
    if kind is contextlib.nullcontext:
        if vars(held).get(IS_USED):
            raise Barrier("it enters a context for the second time")
        if IS_USED in vars(held):
            vars(held)[IS_USED] = True
        return attribute(run, context, "enter_result")
    raise Barrier(f"it uses a with statement on {foreign.describe(context)}")
