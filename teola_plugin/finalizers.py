"""Keeps finalizers of the user's pipelines off the threads of hosts and engines.

Python collects garbage in whichever thread happens to allocate, and closes the suspended generators among the garbage.
LangChain's generators call models when closed, and join threads: on the thread of a host or of an engine, such a
finalizer would wait for the thread itself, and stop all calls; likewise under a lock which the thread wants. While such
a thread, or the holder of one of our locks, collects, generators and coroutines stay referenced; the next collection in
another thread closes them, as without teola_plugin.

CPython 3.11 may collect between finding a method on a class and binding the method, when no reference is held: a method
taken off a class by a finalizer has to stay in memory until the collection has ended.
"""

from __future__ import annotations

import gc
import sys
import threading
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from teola_plugin import forks

SUSPENDABLE = frozenset({GeneratorType, CoroutineType, AsyncGeneratorType})

_ours: dict[int, int] = {}
_held: list[Any] = []
_orphans: list[Any] = []
_taken_off: list[Any] = []
_is_collecting = False
forks.in_child(_ours.clear)


class _KeptOff:
    """Inside, the thread finalizes no generator or coroutine which runs code when closed.

    Reentrant, for all threads.
    """

    def __enter__(self) -> None:
        ident = threading.get_ident()
        _ours[ident] = _ours.get(ident, 0) + 1

    def __exit__(self, *_: object) -> None:
        ident = threading.get_ident()
        if (left := _ours.pop(ident, 1) - 1) > 0:  # in a forked child they are cleared
            _ours[ident] = left


kept_off = _KeptOff()


def keep_for_now(method: Any) -> None:
    """Keep a method that is taken off a class until the next collection, if a collection goes on now."""
    if _is_collecting:
        _taken_off.append(method)


def _on_collection(phase: str, info: dict[str, int]) -> None:
    global _is_collecting
    _is_collecting = phase == "start"
    if _is_collecting:
        _taken_off.clear()
    if threading.get_ident() not in _ours:
        _orphans.clear()
    elif phase == "start":
        for generation in range(info["generation"] + 1):
            _held.extend([found for found in gc.get_objects(generation) if type(found) in SUSPENDABLE])
    else:
        _orphans.extend([found for found, count in zip(_held, _counted(_held), strict=True) if count == ALONE])
        _held.clear()


def _counted(held: list[Any]) -> list[int]:
    return [sys.getrefcount(found) for found in held]


ALONE = _counted([object()])[0]
"""The reference count of an object held by one list; counting adds some, depending on the Python version."""

gc.callbacks.append(_on_collection)
