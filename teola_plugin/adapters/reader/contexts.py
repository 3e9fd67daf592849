"""What `with` enters: only contexts that change nothing which the program can see.

Not semaphores: by them the user decides how much is asked at once, as by a lock that is held while something is asked.
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


def entered(run: Any, context: Any) -> Any:
    """What `with context as name` gives to the name. Raises: Barrier for what does anything when it is left.

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
        return attribute(run, context, "enter_result")
    raise Barrier(f"it uses a with statement on {foreign.describe(context)}")
