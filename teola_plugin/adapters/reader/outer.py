"""Names from outside of a function: closures, globals, builtins."""

from __future__ import annotations

import builtins
import types
from collections.abc import Hashable
from typing import Any

from teola_plugin.adapters.reader.foreign import MISSING
from teola_plugin.adapters.reader.values import Barrier


def place_of(function: types.FunctionType, name: str) -> Hashable:
    """Return the storage of an outside name of a function: a cell, or the globals with the name."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    if name in cells:
        return id(cells[name])
    return id(function.__globals__), name


def held_at(function: types.FunctionType, name: str) -> Any:
    """Return what the storage of an outside name holds; MISSING for an empty cell and for names of builtins."""
    code, names = function.__code__, function.__globals__
    if name not in code.co_freevars:
        return names.get(name, MISSING) if type(names) is dict else MISSING
    try:
        return (function.__closure__ or ())[code.co_freevars.index(name)].cell_contents
    except ValueError:
        return MISSING


def outside(function: types.FunctionType, name: str) -> Any:
    """Return the current value of an outside name of a function. Raises: NameError, Barrier."""
    code = function.__code__
    if name in code.co_freevars:
        try:
            return (function.__closure__ or ())[code.co_freevars.index(name)].cell_contents
        except ValueError:
            raise NameError(f"cannot access free variable {name!r}") from None
    names = function.__globals__
    if type(names) is not dict:
        raise Barrier("its globals are no plain dict")
    if name in names:
        return names[name]
    known = names.get("__builtins__", builtins)
    known = known.__dict__ if type(known) is types.ModuleType else known
    if type(known) is not dict:
        raise Barrier("its builtins are no plain dict")
    if name in known:
        return known[name]
    raise NameError(f"name {name!r} is not defined")
