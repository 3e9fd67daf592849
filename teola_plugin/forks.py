"""What a forked child does with copies of its parent's threads, event loops and processes: it lets them be.

A server may load an application, answer a first question and only then fork its workers (`gunicorn --preload`,
multiprocessing on Linux). In a worker our objects are there and their threads are not; whoever waited for one would
wait for ever. So whoever owns such a thing says with `in_child` how it begins anew. Nothing of the parent's is closed:
sockets, epoll sets and processes are still in use there.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

_functions: list[Callable[[], None]] = []
_methods: weakref.WeakKeyDictionary[object, Callable[[Any], None]] = weakref.WeakKeyDictionary()
_left: list[object] = []


def in_child(act: Callable[[], None]) -> None:
    """Call `act` in each forked child, before anything else there. A bound method does not keep its object alive."""
    if isinstance(act, MethodType):
        _methods[act.__self__] = act.__func__
    else:
        _functions.append(act)


def leave(*things: object) -> None:
    """Never finalize these: a loop's destructor would take its files out of the parent's epoll set."""
    _left.extend(things)


def _begin_anew() -> None:
    for act in _functions:
        act()
    for owner, method in list(_methods.items()):
        method(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
