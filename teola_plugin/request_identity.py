"""Request identity: the equality of two requests, for slots, for joins in flight and for batch groups.

Two requests are the same if engine, operation, settings and payload are, each by its `value_key`. Further distinctions
(the tenant, the version of a store) are compared where known: runtime/session/slots.py and runtime/scheduler/worker.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from teola_plugin.engines import EngineSpec
from teola_plugin.value_keys import Incomparable, Same, value_key


def request_key(spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> Hashable:
    """Return the key of one item requested of an engine; an `Incomparable` for an item without comparable key."""
    return keys_of(spec, op, settings)(payload)


def keys_of(spec: EngineSpec, op: str, settings: Mapping[str, Any]) -> Callable[[Any], Hashable]:
    """Return a `request_key` function for many payloads with the same settings."""
    asked = value_key(settings)
    engine = Same(spec.resource)  # an `id` alone might belong to a different object by the time of the comparison

    def key(payload: Any) -> Hashable:
        told = payload if type(payload) is str else value_key(payload)
        for each in (asked, told):
            if type(each) is Incomparable:
                return each
        return _RequestKey((spec.kind, engine, op, asked, told))

    return key


class _RequestKey:
    """The key of a request: a tuple that is hashed once, as many tables look the key up."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, parts: tuple[Hashable, ...]) -> None:
        self._parts = parts
        self._hash = hash(parts)

    def __eq__(self, other: object) -> bool:
        return other is self or (
            type(other) is _RequestKey and other._hash == self._hash and other._parts == self._parts
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return repr(self._parts)
