"""Keeps finalizers of the user's pipelines off the threads that everybody waits for.

Python collects garbage in whichever thread happens to allocate, and closes the suspended generators that it finds
there. LangChain's ask their models on being closed, and join their threads: on the thread of a host or of an engine,
they would wait for that very thread, and all calls with them. So while such a thread collects, generators and
coroutines stay referenced; the next collection in another thread closes them, as without us.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from teola_plugin import forks

SUSPENDABLE = frozenset({GeneratorType, CoroutineType, AsyncGeneratorType})

_ours: set[int] = set()
_held: list[Any] = []
_orphans: list[Any] = []
forks.in_child(_ours.clear)


@contextlib.contextmanager
def kept_off() -> Iterator[None]:
    """No garbage that runs on when it is closed is finalized by this thread in here."""
    ident = threading.get_ident()
    _ours.add(ident)
    try:
        yield
    finally:
        _ours.discard(ident)


def _on_collection(phase: str, info: dict[str, int]) -> None:
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
"""References to what only a list of ours holds; the counting itself adds some, depending on the version of Python."""

gc.callbacks.append(_on_collection)
