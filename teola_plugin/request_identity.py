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
        return spec.kind, engine, op, asked, told

    return key
