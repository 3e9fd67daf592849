"""Checks that `dataclass` or `NamedTuple` wrote the methods of a class.

Names, files and modules of methods can be forged. So an equal class is made from the fields alone, and the code of the
methods is compared.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import Any

from teola_plugin.adapters.reader.foreign import MISSING, namespace_of

_PARAMETERS = ("init", "repr", "eq", "order", "unsafe_hash", "frozen")
_FLAGS = ("init", "repr", "compare", "kw_only")


def dataclass_fields(cls: type) -> dict[str, dataclasses.Field[Any]] | None:
    """Return the fields that `dataclass` noted on a class, in order; None without fields, or after tampering."""
    namespace = namespace_of(cls)
    fields = namespace.get("__dataclass_fields__", MISSING)
    if type(fields) is not dict or type(namespace.get("__dataclass_params__")) is not dataclasses._DataclassParams:  # type: ignore[attr-defined]
        return None
    items: Any = fields.items()
    for name, field in items:
        if type(name) is not str or type(field) is not dataclasses.Field or field.name is not name:
            return None
        if kind_of_field(field) == "class":
            continue
        if any(type(getattr(field, flag)) is not bool for flag in _FLAGS):
            return None
        hashes: Any = field.hash
        if hashes is not None and type(hashes) is not bool:
            return None
    return fields


def kind_of_field(field: dataclasses.Field[Any]) -> str:
    """Return "field", "class" (a ClassVar) or "init" (an InitVar, which is passed but not kept)."""
    kind = field._field_type  # type: ignore[attr-defined]
    if kind is dataclasses._FIELD:  # type: ignore[attr-defined]
        return "field"
    return "class" if kind is dataclasses._FIELD_CLASSVAR else "init"  # type: ignore[attr-defined]


def parameters(cls: type) -> dict[str, bool] | None:
    """Return the parameters of `dataclass` for a class, None if tampered with."""
    given = namespace_of(cls)["__dataclass_params__"]
    found = {name: getattr(given, name) for name in _PARAMETERS}
    return found if all(type(value) is bool for value in found.values()) else None


def made_by_dataclass(cls: type, names: set[str], post_init: bool) -> bool:
    """Whether the functions under the names are the functions that `dataclass` writes for the fields of the class."""
    fields, given = dataclass_fields(cls), None
    if fields is not None:
        given = parameters(cls)
    if fields is None or given is None:
        return False
    shapes = tuple(_shape(field) for field in fields.values() if kind_of_field(field) != "class")
    own, again = namespace_of(cls), _methods(shapes, tuple(given.values()), post_init)
    return again is not None and all(_is_same(own[name], again.get(name)) for name in names)


_Shape = tuple[str, str, tuple[str, Any] | None, bool, bool, bool | None, bool, Any]


def _shape(field: dataclasses.Field[Any]) -> _Shape:
    """Return all parts of a field that the code of the methods depends on."""
    default: tuple[str, Any] | None = None
    if field.default_factory is not dataclasses.MISSING:
        default = ("default_factory", list)
    elif field.default is not dataclasses.MISSING:
        default = ("default", None)
    return (
        field.name, kind_of_field(field), default, field.init, field.repr, field.hash, field.compare, field.kw_only
    )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _methods(shapes: tuple[_Shape, ...], given: tuple[bool, ...], post_init: bool) -> Mapping[str, Any] | None:
    """Return the names that `dataclass` writes for the fields and parameters; None if `dataclass` refuses."""
    kept: list[tuple[str, Any, Any]] = []
    for name, kind, default, is_in_init, is_in_repr, is_hashed, is_compared, is_keyword in shapes:
        hint: Any = int if kind == "field" else dataclasses.InitVar[int]
        made: Any = dataclasses.field(
            init=is_in_init, repr=is_in_repr, hash=is_hashed, compare=is_compared, kw_only=is_keyword,
            **dict([default] if default else []),
        )  # fmt: skip
        kept.append((name, hint, made))
    namespace = {"__post_init__": lambda self: None} if post_init else {}
    parameters_ = dict(zip(_PARAMETERS, given, strict=True))
    try:
        return vars(dataclasses.make_dataclass("Fresh", kept, namespace=namespace, **parameters_))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _is_same(one: Any, two: Any) -> bool:
    """Whether two functions have the same code, and the module does not redefine names that the code uses."""
    if type(one) is not types.FunctionType or type(two) is not types.FunctionType:
        return False
    if one.__code__ != two.__code__ or any(name in one.__globals__ for name in ("hash", "NotImplemented")):
        return False
    cells = dict(zip(one.__code__.co_freevars, one.__closure__ or (), strict=True))
    if "user_function" not in cells:
        return True
    again = dict(zip(two.__code__.co_freevars, two.__closure__ or (), strict=True))
    if one.__globals__ is not two.__globals__ or type(cells["repr_running"].cell_contents) is not set:
        return False  # the wrapper of a dataclass' `__repr__`
    return _is_same(cells["user_function"].cell_contents, again["user_function"].cell_contents)


def made_by_namedtuple(cls: type) -> bool:
    """Whether objects of a class are made by the function that `namedtuple` writes for the class's fields."""
    namespace = namespace_of(cls)
    fields, new = namespace.get("_fields", MISSING), namespace.get("__new__", MISSING)
    if type(fields) is not tuple or not all(type(name) is str for name in fields):
        return False
    if type(new) is staticmethod:
        new = new.__func__
    if type(new) is not types.FunctionType:
        return False
    again = vars(collections.namedtuple("Fresh", fields, rename=True))["__new__"]
    again = again.__func__ if type(again) is staticmethod else again
    inner = new.__globals__.get("_tuple_new")
    return bool(new.__code__ == again.__code__) and type(inner) is types.BuiltinMethodType and inner == tuple.__new__
