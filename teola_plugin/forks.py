"""Forked children: the threads, event loops and processes copied from the parent are left alone.

A server may load an application, answer a first question and only then fork its workers (`gunicorn --preload`,
multiprocessing on Linux). A worker has copies of our objects but not of our threads, so waiting for a copied thread
would never end. Each owner of a thread therefore registers a reset with `in_child`. Nothing of the parent's is closed:
the parent still uses the sockets, epoll sets and processes.
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
    """Call `act` in each forked child, before anything else.

    A registered bound method does not keep its object alive.
    """
    if isinstance(act, MethodType):
        _methods[act.__self__] = act.__func__
    else:
        _functions.append(act)


def leave(*things: object) -> None:
    """Never finalize the objects: a loop's destructor would remove files from the parent's epoll set."""
    _left.extend(things)


def _begin_anew() -> None:
    for act in _functions:
        act()
    for owner, method in list(_methods.items()):
        method(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
