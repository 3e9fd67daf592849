"""What a library's object can reach: whether a change outside of it can be seen by it.

The garbage collector tells what objects refer to, also those in C. Modules, classes and code are left out: a library
looks into nothing of a program's through them. A function counts with its variables and defaults.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Hashable, Set
from typing import Any

from teola_plugin.adapters.reader import foreign

MOST = 20_000
"""Objects that are looked at: some 10 ms."""

_LEFT_OUT = (types.ModuleType, type, types.CodeType, types.FrameType, types.BuiltinFunctionType)


def reached(root: Any) -> Set[Hashable] | None:
    """Return the ids of all objects that an object can reach, with their dicts of attributes; None for too many."""
    seen: dict[int, Any] = {}
    left = [root]
    while left:
        value = left.pop()
        if id(value) in seen or foreign.is_atom(value) or foreign.is_one_of(type(value), _LEFT_OUT):
            continue
        if foreign.is_class(value) or _is_of_numbers(value):
            continue
        seen[id(value)] = value
        if len(seen) > MOST:
            return None
        if type(value) is types.FunctionType:
            left += [value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__]
            continue
        own = foreign.own_attributes(value)
        left += gc.get_referents(value) if own is None else [own, *gc.get_referents(value)]
    return seen.keys()


def _is_of_numbers(value: Any) -> bool:
    """Whether a list is a vector, as stores hold many."""
    return type(value) is list and len(value) > 1 and type(value[0]) is float and type(value[-1]) is float
