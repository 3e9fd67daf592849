"""Known functions, found by identity: `native_of`."""

from __future__ import annotations

import sys
import types
from typing import Any

from teola_plugin.adapters.reader import (
    arrays,
    foreign,
    methods,
    natives_async,
    natives_builtins,
    natives_frameworks,
    natives_library,
    natives_packages,
    natives_tokens,
    unknowns,
)
from teola_plugin.adapters.reader.heap import changed_by
from teola_plugin.adapters.reader.table import kind_of, known, may_be_shared, registered
from teola_plugin.adapters.reader.values import Arguments, Barrier, Handler

__all__ = ["native_of", "natives_async", "natives_builtins", "natives_library"]


def native_of(obj: Any) -> Handler | None:
    """Return the handler for calls of the object; None if unknown."""
    handler = registered(obj)
    if handler is not None:
        return handler
    if (handler := arrays.native_of(obj)) is not None:
        return handler
    kind = type(obj)
    if kind is types.BuiltinMethodType:
        return _bound(obj)
    if kind is types.MethodDescriptorType:
        return _unbound(obj)
    if kind is not types.FunctionType:
        return natives_packages.making_of(obj) if foreign.is_class(obj) else None
    if (found := natives_packages.native_of(obj) or natives_tokens.native_of(obj)) is not None:
        return found
    if sys.modules.keys().isdisjoint(("langchain_core", "pydantic")):
        return None
    return natives_frameworks.native_of(obj)


def _bound(obj: types.BuiltinMethodType) -> Handler | None:
    """Return the handler of a stored method of a plain value, such as `"a b".split`."""
    owner, name = obj.__self__, obj.__name__
    if type(type(owner)) is not type or not methods.has_method(type(owner), name):
        return None
    return lambda run, args, kwargs: methods.method(run, run.load(owner), name, args, kwargs)


def _unbound(obj: types.MethodDescriptorType) -> Handler | None:
    """Return the handler of a method of a plain type, such as `str.strip`."""
    owner, name = obj.__objclass__, obj.__name__
    if not methods.has_method(owner, name):
        return None

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        if not args:
            raise TypeError("it needs an argument")
        if kind_of(args[0]) in ("text", "texts"):
            return methods.unknown_method(run, args[0], name, args[1:], kwargs)
        held = changed_by(args[0])
        if type(held) is owner:
            return methods.method(run, held, name, args[1:], kwargs)
        if name in unknowns.CHANGING and may_be_shared(held):
            raise Barrier(f"it calls {name} of a value that is not known yet and may be another's")
        known(run, held)
        raise Barrier(f"it calls {name} of another class")

    return handle
