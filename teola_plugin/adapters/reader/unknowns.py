"""Methods and fields of values that are not known yet, by what they will be."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from typing import Any

from teola_plugin.adapters.reader import texts
from teola_plugin.adapters.reader.table import words
from teola_plugin.adapters.reader.values import Arguments, Barrier, Undecided, Unknown

_MESSAGE_FIELDS: dict[str, str] = {
    "content": "text", "tool_calls": "any", "invalid_tool_calls": "any", "response_metadata": "any",
    "additional_kwargs": "any", "usage_metadata": "any", "id": "any", "name": "any", "type": "text",
}  # fmt: skip

_CHANGING = words(
    "append extend insert pop remove clear reverse sort update popitem setdefault add discard "
    "appendleft extendleft popleft "
    "rotate move_to_end subtract difference_update intersection_update symmetric_difference_update"
)


def unknown_method(run: Any, value: Unknown, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """`value.name(*args, **kwargs)`."""
    if value.holds == "text":
        return texts.unknown_text_method(run, value, name, args, kwargs)
    if value.holds == "texts":
        return _texts_method(run, value, name, args, kwargs)
    if value.holds == "message" and name == "text" and not args and not kwargs:
        return run.unknown(value, holds="text", is_safe=True)
    if value.holds == "any" and name in _CHANGING:
        raise Barrier(f"it calls {name} of a value that is not known yet and may be another's")
    raise Undecided


def _texts_method(run: Any, value: Unknown, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if kwargs or any(type(each) is Unknown for each in args if name not in ("append", "count")):
        raise Undecided
    if name == "copy" and not args:
        return run.unknown(value, holds="texts", is_safe=True)
    if name == "count" and len(args) == 1:
        return run.unknown(value, holds="number", is_safe=True)
    if name == "append" and len(args) == 1:
        if not texts.is_text(args[0]):
            value.holds = "any"
        return None
    if name == "pop":
        return run.unknown(value, holds="text")
    if name in ("reverse", "clear") and not args:
        return None
    if name in _CHANGING:
        value.holds = "any"
    raise Undecided


def unknown_field(run: Any, value: Unknown, name: str) -> Any:
    """`value.name`, which is no call."""
    holds = value.holds
    if holds == "message" and name in _MESSAGE_FIELDS:
        return run.unknown(value, holds=_MESSAGE_FIELDS[name], is_safe=True)
    if isinstance(holds, str):
        raise Undecided
    declared = field_of(holds, name)
    if declared is None:
        raise Undecided
    return run.unknown(value, holds=declared, is_safe=True)


# --- annotations -----------------------------------------------------------------------------------------------------


def field_of(cls: type, name: str) -> str | type | None:
    """What a declared field of a pydantic model or a dataclass holds; None if there is none, or code may run."""
    mro = type.__dict__["__mro__"].__get__(cls)
    for each in mro:
        own = type.__dict__["__dict__"].__get__(each)
        if "__getattribute__" in own and each is not object:
            return None
        if isinstance(own.get(name), property):
            return None
    for each in mro:
        own = type.__dict__["__dict__"].__get__(each)
        annotations = own.get("__annotations__")
        if type(annotations) is dict and name in annotations:
            return holds_of_annotation(annotations[name], each) if _is_data_class(mro) else None
    return None


def _is_data_class(mro: tuple[type, ...]) -> bool:
    """Its fields are attributes: of a TypedDict they are items."""
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return any(each is base or "__dataclass_fields__" in type.__dict__["__dict__"].__get__(each) for each in mro)


def item_of(cls: type, name: str) -> str | type | None:
    """What an item of a TypedDict holds."""
    own = type.__dict__["__dict__"].__get__(cls)
    required = own.get("__required_keys__")
    annotations = own.get("__annotations__")
    if type(required) is frozenset and name in required and type(annotations) is dict and name in annotations:
        return holds_of_annotation(annotations[name], cls)
    return None


_SIMPLE: dict[Any, str] = {str: "text", bool: "bool", int: "number", float: "number"}


def holds_of_annotation(annotation: Any, owner: type) -> str | type:
    """What a value so annotated holds, in the words of `Unknown.holds`."""
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
    if _is_class(annotation) and (
        _is_data_class(type.__dict__["__mro__"].__get__(annotation)) or dataclasses.is_dataclass(annotation)
    ):
        return annotation  # type: ignore[no-any-return]
    return "any"


def _is_class(value: Any) -> bool:
    return type in type.__dict__["__mro__"].__get__(type(value))


_NAMES: dict[str, Any] = {"str": str, "bool": bool, "int": int, "float": float}


def _resolved(annotation: str, owner: type) -> Any:
    """A simple name that nothing in the owner's module hides, `list[str]`; None for anything else."""
    module = sys.modules.get(type.__dict__["__module__"].__get__(owner))
    hidden = types.ModuleType.__dict__["__dict__"].__get__(module) if type(module) is types.ModuleType else {}
    if annotation in _NAMES:
        return None if annotation in hidden else _NAMES[annotation]
    if annotation in ("list[str]", "List[str]") and "str" not in hidden and "list" not in hidden:
        return list[str]
    found = hidden.get(annotation) if type(hidden) is dict else None
    return found if found is not None and _is_class(found) else None
