"""The objects that a function may use, by the names in the code: a hint, never a permission."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from teola_plugin.adapters.reader.foreign import is_one_of, is_standard
from teola_plugin.adapters.reader.values import is_installed_file, isinstance_of
from teola_plugin.adapters.source import MISSING, unwrapped

MOST = 200
"""Functions that are looked at."""


def mentioned(callable_: Any) -> Iterator[Any]:
    """Yield the values of the names in a function's code, and recursively in the code of functions among the values.

    Functions without known code, and functions after the first `MOST`, are yielded themselves.
    """
    return (value for value, is_read in _named(callable_) if not is_read)


def functions_in(callable_: Any) -> list[types.FunctionType]:
    """Return the functions whose code `mentioned` looks into."""
    return [value for value, is_read in _named(callable_) if is_read]


def _named(callable_: Any) -> Iterator[tuple[Any, bool]]:
    todo, seen = [callable_], set[int]()
    while todo:
        each = todo.pop()
        function = unwrapped(each)
        if function is None or len(seen) > MOST:
            yield each, False
            continue
        if type(each) is types.MethodType:
            yield each.__self__, False
            todo += [found for code in codes_in(function) for found in _functions_of(each.__self__, code.co_names)]
        if id(function) in seen:
            continue
        seen.add(id(function))
        yield function, True
        for value in _mentioned(function):
            if type(value) is types.FunctionType:
                todo.append(value)
            else:
                yield value, False


def is_harmless(value: Any) -> bool:
    """Whether no part can make a request: data, or an object of the standard library."""
    if type(value) is types.ModuleType:
        return value.__name__.split(".")[0] in sys.stdlib_module_names
    return _is_harmless(value)


def _mentioned(function: types.FunctionType) -> Iterator[Any]:
    """Yield the values of the names in the code of a function, and the defaults."""
    for code in codes_in(function):
        for name in code.co_names:
            value = function.__globals__.get(name, MISSING)
            if value is not MISSING:
                yield value
                yield from _functions_of(value, code.co_names)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue
        for code in codes_in(function):
            yield from _functions_of(cell.cell_contents, code.co_names)
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())


def codes_in(function: types.FunctionType) -> Iterator[types.CodeType]:
    """Yield the code of a function, and of the functions and comprehensions inside."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [const for const in code.co_consts if type(const) is types.CodeType]
        yield code


def _functions_of(value: Any, names: Iterable[str]) -> Iterator[types.FunctionType]:
    """Yield the user's own functions among the names of a module, or of an object's class."""
    if type(value) is types.ModuleType:
        spaces: list[Any] = [value.__dict__]
    else:
        spaces = [type.__dict__["__dict__"].__get__(cls) for cls in type.__dict__["__mro__"].__get__(type(value))]
    for name in names:
        found = next((space[name] for space in spaces if name in space), None)
        while type(found) is types.FunctionType and str(found.__globals__.get("__name__")).startswith("teola_plugin."):
            found = vars(found).get("__wrapped__")  # what stands in place of a framework's method, or of the user's
        if type(found) is types.FunctionType and not (
            is_standard(found) or is_installed_file(found.__code__.co_filename)
        ):
            yield found


_ASKED = frozenset({
    "invoke", "embed_query", "similarity_search", "complete", "get_query_embedding", "_query", "_retrieve",
    "_postprocess_nodes",
})  # fmt: skip
"""Methods of components: classes with such a method do not count as data, even pydantic models."""

_OF_DATA = ("__pydantic_fields__", "__dataclass_fields__", "__required_keys__", "_member_map_")
_BASES = ((BaseException,), (dict,), (tuple,))

_PLAIN = (type(None), bool, int, float, complex, str, bytes, types.BuiltinFunctionType, types.GenericAlias)


def _is_harmless(value: Any) -> bool:
    """Whether a value is data, a class of data, or of the standard library, so that no part can make a request."""
    kind = type(value)
    if is_one_of(kind, _PLAIN) or (getattr(builtins, getattr(kind, "__name__", ""), None) is kind and kind is not type):
        if is_one_of(kind, (list, tuple, set, frozenset)):
            return all(map(_is_harmless, value))
        return kind is not dict or all(map(_is_harmless, value.values()))
    if isinstance_of(value, type):
        names = {
            name for each in type.__dict__["__mro__"].__get__(value) for name in type.__dict__["__dict__"].__get__(each)
        }
        if not names.isdisjoint(_ASKED):
            return False
        is_data = not names.isdisjoint(_OF_DATA) or type.__dict__["__mro__"].__get__(value)[-2:-1] in _BASES
        return is_data or str(type.__dict__["__module__"].__get__(value)).split(".")[0] in sys.stdlib_module_names
    return str(getattr(kind, "__module__", "")).split(".")[0] in sys.stdlib_module_names
