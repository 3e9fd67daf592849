"""The kinds of values in fields and items of classes, by annotation."""

from __future__ import annotations

import sys
import types
import typing
from typing import Any

from teola_plugin.adapters.reader import foreign


def field_of(cls: type, name: str) -> str | type | None:
    """Return the kind of a declared field of a pydantic model or a dataclass; None without a field, or if code runs."""
    mro = foreign.mro_of(cls)
    is_hidden = type(foreign.in_mro(cls, name)) is property
    if is_hidden or not foreign.has_plain_lookup(cls) or not _is_data_class(mro):
        return None
    for each in mro:
        annotations = foreign.namespace_of(each).get("__annotations__")
        if type(annotations) is dict and name in annotations:
            return holds_of_annotation(annotations[name], each)
    return None


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
        if origin is list and len(args) == 1 and holds_of_annotation(args[0], owner) == "text":
            return "texts"
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
