"""Whether a function could ask for anything at all, by the names in its code: a hint, which allows nothing."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from teola_plugin.adapters.reader.values import isinstance_of
from teola_plugin.adapters.source import MISSING, unwrapped

MOST = 200
"""So many functions are looked at; beyond that the answer is yes."""


def may_ask(callable_: Any, is_engine: Callable[[Any], bool]) -> bool:
    """Whether something that asks an engine, or that is not known, can be reached by the names in the code.

    `is_engine`: whether an object, or what a class makes, is asked for something.
    """
    todo, seen = [callable_], set[int]()
    while todo:
        function = unwrapped(todo.pop())
        if function is None or len(seen) > MOST:
            return True
        if id(function) in seen:
            continue
        seen.add(id(function))
        for value in (*_bound(callable_), *_mentioned(function)):
            kind = type(value)
            if kind is types.FunctionType:
                todo.append(value)
            elif kind is types.ModuleType:
                if value.__name__.split(".")[0] not in sys.stdlib_module_names:
                    return True
            elif is_engine(value) or not _is_harmless(value):
                return True
    return False


def _bound(callable_: Any) -> Iterator[Any]:
    if type(callable_) is types.MethodType:
        yield callable_.__self__


def _mentioned(function: types.FunctionType) -> Iterator[Any]:
    """What the names in the code of a function stand for, and its defaults."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [const for const in code.co_consts if type(const) is types.CodeType]
        for name in code.co_names:
            value = function.__globals__.get(name, MISSING)
            if value is not MISSING:
                yield value
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())


_OF_DATA = ("__pydantic_fields__", "__dataclass_fields__", "__required_keys__", "_member_map_")
_BASES = ((BaseException,), (dict,), (tuple,))

_PLAIN = (type(None), bool, int, float, complex, str, bytes, types.BuiltinFunctionType, types.GenericAlias)


def _is_harmless(value: Any) -> bool:
    """It is data, a class of data, or of the standard library: nothing in it can be asked."""
    kind = type(value)
    if kind in _PLAIN or getattr(builtins, getattr(kind, "__name__", ""), None) is kind and kind is not type:
        if kind in (list, tuple, set, frozenset):
            return all(map(_is_harmless, value))
        return kind is not dict or all(map(_is_harmless, value.values()))
    if isinstance_of(value, type):
        names = {name for each in type.__dict__["__mro__"].__get__(value) for name in type.__dict__["__dict__"].__get__(each)}
        is_data = not names.isdisjoint(_OF_DATA) or type.__dict__["__mro__"].__get__(value)[-2:-1] in _BASES
        return is_data or str(type.__dict__["__module__"].__get__(value)).split(".")[0] in sys.stdlib_module_names
    return str(getattr(kind, "__module__", "")).split(".")[0] in sys.stdlib_module_names
