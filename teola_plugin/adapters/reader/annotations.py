"""The kinds of values in fields and items of classes, by annotation."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from typing import Any

from pydantic_core import PydanticUndefined

from teola_plugin.adapters.reader import foreign


def field_of(cls: type, name: str) -> str | type | None:
    """Return the kind of a declared field of a pydantic model or a dataclass; None without a field, or if code runs.

    Defaults are not checked against annotations: a field with the default None is not known to be a text.
    """
    holds = declared_of(cls, name)
    return holds if holds is None or _fits_default(cls, name, holds) else "any"


def declared_of(cls: type, name: str) -> str | type | None:
    """`field_of`, for a field with a value that pydantic has checked."""
    mro = foreign.mro_of(cls)
    is_hidden = type(foreign.in_mro(cls, name)) is property
    if is_hidden or not foreign.has_plain_lookup(cls) or not _is_data_class(mro):
        return None
    for each in mro:
        annotations = foreign.namespace_of(each).get("__annotations__")
        if type(annotations) is dict and name in annotations:
            return holds_of_annotation(annotations[name], each)
    return None


def _fits_default(cls: type, name: str, holds: str | type) -> bool:
    """Whether a field that is given no value is of the kind, too."""
    for key in ("__pydantic_fields__", "__fields__", "__dataclass_fields__"):
        fields = foreign.in_mro(cls, key)
        if type(fields) is not dict or name not in fields:
            continue
        factory, default = fields[name].default_factory, fields[name].default
        if not foreign.is_one_of(factory, (None, dataclasses.MISSING)):
            return factory is list and holds in _KNOWN[list]
        is_needed = key == "__fields__" and fields[name].required is True
        return is_needed or foreign.is_one_of(default, (PydanticUndefined, dataclasses.MISSING)) or _is(default, holds)
    return True


_KNOWN: dict[type, tuple[str, ...]] = {
    str: ("text",), bool: ("bool",), int: ("int", "mixed"), float: ("mixed",), list: ("list", "texts")
}  # fmt: skip
"""The kinds of annotations that fit values of a type."""


def _is(value: Any, holds: str | type) -> bool:
    """Whether a known value is of an annotation's kind."""
    if holds == "texts" and type(value) is list:
        return all(type(each) is str for each in value)
    return type(value) is holds or holds in _KNOWN.get(type(value), ())


def _is_data_class(mro: tuple[type, ...]) -> bool:
    """Whether the fields of the class are attributes, unlike the items of a TypedDict."""
    bases = (foreign.base_model(), foreign.old_model())
    return any(foreign.is_one_of(each, bases) or "__dataclass_fields__" in foreign.namespace_of(each) for each in mro)


_SIMPLE: dict[Any, str] = {str: "text", bool: "bool", int: "int", float: "mixed"}


def holds_of_annotation(annotation: Any, owner: type) -> str | type:
    """Return the kind of a value with this annotation, as in `Unknown.holds`."""
    if type(annotation) is str:
        annotation = _resolved(annotation, owner)
    for simple, holds in _SIMPLE.items():
        if annotation is simple:
            return holds
    if type(annotation) is type(typing.Annotated[int, 0]) and hasattr(annotation, "__metadata__"):
        return holds_of_annotation(typing.get_args(annotation)[0], owner)
    if type(annotation) in (types.GenericAlias, type(typing.List[int]), type(typing.Literal["a"])):  # noqa: UP006
        origin, args = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is list and len(args) == 1:
            return "texts" if holds_of_annotation(args[0], owner) == "text" else "list"
        if origin is typing.Literal and all(type(each) is str for each in args):
            return "text"
        return "any"
    if foreign.is_class(annotation) and _is_data_class(foreign.mro_of(annotation)):
        return annotation  # type: ignore[no-any-return]
    return "any"


_NAMES: dict[str, Any] = {"str": str, "bool": bool, "int": int, "float": float}


def _resolved(annotation: str, owner: type) -> Any:
    """Resolve a simple name that the owner's module does not hide, or `list[str]`; None for any other annotation."""
    module = sys.modules.get(foreign.module_of(owner))
    hidden = vars(module) if type(module) is types.ModuleType else {}
    if annotation in _NAMES:
        return None if annotation in hidden else _NAMES[annotation]
    if annotation in ("list[str]", "List[str]") and "str" not in hidden and "list" not in hidden:
        return list[str]
    found = hidden.get(annotation) if type(hidden) is dict else None
    return found if found is not None and foreign.is_class(found) else None
