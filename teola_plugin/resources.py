"""Locks of users' models and versions of users' stores, shared by all of the process.

Engines and interception need both, and do not know each other. Objects are held weakly and told apart by identity, so
nothing here outlives an object, and an `id` reused by Python never finds the value of another object.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

from teola_plugin import forks
from teola_plugin.errors import EngineClosed
from teola_plugin.finalizers import kept_off

V = TypeVar("V")

WRITE_COUNTERS = 4096
"""The number of write counters. Stores share counters by hash, which bounds the memory; a clash costs a miss."""


class IdentityMap(Generic[V]):
    """Values by the identity of weakly held objects.

    A value must not reference its object, or neither is ever freed.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], V]] = {}
        self._creating = threading.RLock()
        forks.in_child(self._begin_anew)

    def _begin_anew(self) -> None:
        self._creating = threading.RLock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Any) -> V | None:
        """Return the value of the very object, if there is a value."""
        entry = self._entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def get_or_make(self, key: Any, make: Callable[[], V]) -> V:
        """Return the value of the very object, made once. Raises: TypeError if the object cannot be held weakly."""
        if (value := self.get(key)) is not None:
            return value
        with kept_off, self._creating:
            value = self.get(key)
            if value is None:
                value = make()
                self._entries[id(key)] = (weakref.ref(key, self._forget(id(key))), value)
            return value

    def forget(self, key: Any) -> None:
        """Drop the value of the very object."""
        if self.get(key) is not None:
            self._entries.pop(id(key), None)

    def _forget(self, identity: int) -> Callable[[Any], None]:
        # Called while the object dies, before the id is free. No lock: the call may interrupt `get_or_make`.
        return lambda _: self._entries.pop(identity, None) and None


def held(resource: Any, keep: bool) -> Callable[[], Any]:
    """Return a function which gives an engine its resource. Without `keep` the resource is held weakly.

    Raises (the function): EngineClosed once the resource is gone.
    """
    if keep:
        return lambda: resource
    reference = weakref.ref(resource)

    def get() -> Any:
        if (found := reference()) is None:
            raise EngineClosed("the model or store that this engine stood on no longer exists")
        return found

    return get


# --- one user of a model at a time --------------------------------------------------------------------------

_locks: IdentityMap[AbstractContextManager[Any]] = IdentityMap()


def _begin_anew() -> None:
    """Make new locks in a forked child: a thread of the parent may have held a lock."""
    global _locks
    _locks = IdentityMap()


forks.in_child(_begin_anew)


def lock_for(model: object) -> AbstractContextManager[Any]:
    """Return the lock of a model with an engine, to be held while running the model. Reentrant."""
    return _locks.get_or_make(model, threading.RLock)


def exclusive(model: object) -> AbstractContextManager[Any]:
    """Return a context for calls past the engine, which waits until the engine does not run the model."""
    return _locks.get(model) or nullcontext()


# --- versions of stores -------------------------------------------------------------------------------------

_writes = [0] * WRITE_COUNTERS
_resets = 0
_counting = threading.Lock()


def version(store: Hashable) -> tuple[int, int]:
    """Return a version which changes when a write to the store begins or ends in the process.

    `store`: the store's identity.
    """
    return _resets, _writes[hash(store) % WRITE_COUNTERS]


@contextlib.contextmanager
def writing(store: Hashable) -> Iterator[None]:
    """Mark a write to the store inside the block. Values read before the end are stale afterwards."""
    _count(store)
    try:
        yield
    finally:
        _count(store)


@contextlib.contextmanager
def resetting() -> Iterator[None]:
    """Mark a deletion inside the block whose store is unknown: all stores get a new version."""
    _reset()
    try:
        yield
    finally:
        _reset()


def _count(store: Hashable) -> None:
    with kept_off, _counting:
        _writes[hash(store) % WRITE_COUNTERS] += 1


def _reset() -> None:
    global _resets
    with kept_off, _counting:
        _resets += 1
