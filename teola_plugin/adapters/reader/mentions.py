"""What a function may come to use, by the names in its code: a hint, which allows nothing."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from teola_plugin.adapters.reader.foreign import is_standard
from teola_plugin.adapters.reader.values import is_installed_file, isinstance_of
from teola_plugin.adapters.source import MISSING, unwrapped

MOST = 200
"""So many functions are looked at."""


def mentioned(callable_: Any) -> Iterator[Any]:
    """What the names in the code of a function stand for, and in the code of the functions among these, and so on.

    A function whose code is not known, and what comes after the first `MOST` ones, is given itself.
    """
    return (value for value, is_read in _named(callable_) if not is_read)


def functions_in(callable_: Any) -> list[types.FunctionType]:
    """The functions whose code `mentioned` looks into."""
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
    """Nothing in it can be asked: it is data, or of the standard library."""
    if type(value) is types.ModuleType:
        return value.__name__.split(".")[0] in sys.stdlib_module_names
    return _is_harmless(value)


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
                yield from _functions_of(value, code.co_names)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue
        yield from _functions_of(cell.cell_contents, function.__code__.co_names)
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())


def _functions_of(value: Any, names: Iterable[str]) -> Iterator[types.FunctionType]:
    """The functions under these names of a module, or of the class of an object, that no package manager installed."""
    if type(value) is types.ModuleType:
        spaces: list[Any] = [value.__dict__]
    else:
        spaces = [type.__dict__["__dict__"].__get__(cls) for cls in type.__dict__["__mro__"].__get__(type(value))]
    for name in (each for each in names if each not in _ASKED):
        found = next((space[name] for space in spaces if name in space), None)
        if type(found) is types.FunctionType and not (
            is_standard(found) or is_installed_file(found.__code__.co_filename)
        ):
            yield found


_ASKED = frozenset({
    "invoke", "embed_query", "similarity_search", "complete", "get_query_embedding", "_query", "_retrieve",
    "_postprocess_nodes",
})  # fmt: skip
"""Methods of components: a class with one of them is none of data, though its objects may be pydantic's models."""

_OF_DATA = ("__pydantic_fields__", "__dataclass_fields__", "__required_keys__", "_member_map_")
_BASES = ((BaseException,), (dict,), (tuple,))

_PLAIN = (type(None), bool, int, float, complex, str, bytes, types.BuiltinFunctionType, types.GenericAlias)


def _is_harmless(value: Any) -> bool:
    """It is data, a class of data, or of the standard library: nothing in it can be asked."""
    kind = type(value)
    if kind in _PLAIN or (getattr(builtins, getattr(kind, "__name__", ""), None) is kind and kind is not type):
        if kind in (list, tuple, set, frozenset):
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
