"""Methods and fields of values that are not known yet, by what they will be."""

from __future__ import annotations

import datetime
import sys
import types
import typing
from typing import Any

from teola_plugin.adapters.reader import foreign, texts
from teola_plugin.adapters.reader.table import kind_of, words
from teola_plugin.adapters.reader.values import Arguments, Barrier, Undecided, Unknown, type_name

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
    if kind_of(value) == "text":
        return texts.unknown_text_method(run, value, name, args, kwargs)
    if kind_of(value) == "texts":
        return _texts_method(run, value, name, args, kwargs)
    if kind_of(value) == "message" and name == "text" and not args and not kwargs:
        return run.unknown(value, holds="text", is_safe=True)
    if kind_of(value) == "message" and name == "pretty_print" and not args and not kwargs:
        return None
    if kind_of(value) in texts.SAMPLES and name in _OF_SAMPLES:
        return _sampled(run, value, name, args, kwargs)
    if kind_of(value) == "any" and name in _CHANGING:
        raise Barrier(f"it calls {name} of a value that is not known yet and may be another's")
    raise Undecided


_TYPES: dict[str, type] = {"text": str, "texts": list, "bool": bool}


def surely_has(value: Unknown, name: str) -> bool:
    """Whether reading the attribute cannot raise."""
    kind = kind_of(value)
    if kind in texts.SAMPLES:
        return hasattr(texts.SAMPLES[kind], name)
    return kind in _TYPES and hasattr(_TYPES[kind], name)


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
    if kind_of(value) in texts.SAMPLES:
        return _sampled_field(run, value, name)
    declared = field_of(holds, name)
    if declared is None:
        raise Undecided
    return run.unknown(value, holds=declared, is_safe=True)


# --- values that are like one another --------------------------------------------------------------------------------

_OF_SAMPLES = words(
    "isoformat strftime date time timetz timestamp weekday isoweekday isocalendar ctime toordinal total_seconds "
    "utcoffset tzname"
)


def holds_of(value: Any) -> str | type:
    """What a sample of a result says about the result."""
    kind = type(value)
    if type_name(kind) in texts.SAMPLES:
        return kind
    return {str: "text", bool: "bool", int: "number"}.get(kind, "any")


def _sampled(run: Any, value: Unknown, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    run.require_known(*args, *kwargs.values())
    sample = texts.SAMPLES[kind_of(value)]
    if not hasattr(sample, name):
        raise AttributeError(name)
    return run.unknown(value, holds=holds_of(getattr(sample, name)(*args, **kwargs)), is_safe=True)


def _sampled_field(run: Any, value: Unknown, name: str) -> Any:
    found = getattr(texts.SAMPLES[kind_of(value)], name)
    if callable(found):
        raise Undecided
    return run.unknown(value, holds=holds_of(found) if found is not None else "any", is_safe=True)


_SMALL = datetime.timedelta(days=10_000)


def arithmetic(run: Any, name: str, a: Any, b: Any) -> Unknown | None:
    """What cannot raise: times and floats that are near one another; None if it may."""
    one, two = (kind_of(each) for each in (a, b))
    if one in ("datetime", "date") and type(b) is datetime.timedelta and name in ("+", "-"):
        return run.unknown(a, holds=a.holds, is_safe=True) if abs(b) < _SMALL else None
    if one == two == "datetime" and name == "-" and a.holds is b.holds is datetime.datetime:
        return run.unknown(a, b, holds=datetime.timedelta, is_safe=True)  # type: ignore[no-any-return]
    if "float" not in (one, two) or not all(_is_small(each) for each in (a, b)):
        return None
    if name in ("+", "-") or (name == "/" and type(b) in (int, float) and b):
        return run.unknown(a, b, holds=float, is_safe=True)  # type: ignore[no-any-return]
    return run.unknown(a, b, holds="number", is_safe=True) if name == "*" else None


def _is_small(value: Any) -> bool:
    if type(value) is Unknown:
        return kind_of(value) == "float"
    return type(value) is float or (type(value) is int and abs(value) < 2**53)


# --- annotations -----------------------------------------------------------------------------------------------------


def field_of(cls: type, name: str) -> str | type | None:
    """What a declared field of a pydantic model or a dataclass holds; None if there is none, or code may run."""
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
    """Its fields are attributes: of a TypedDict they are items."""
    base = foreign.base_model()
    return any(each is base or "__dataclass_fields__" in foreign.namespace_of(each) for each in mro)


def item_of(cls: type, name: str) -> str | type | None:
    """What an item of a TypedDict holds."""
    own = foreign.namespace_of(cls)
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
    if foreign.is_class(annotation) and _is_data_class(foreign.mro_of(annotation)):
        return annotation  # type: ignore[no-any-return]
    return "any"


_NAMES: dict[str, Any] = {"str": str, "bool": bool, "int": int, "float": float}


def _resolved(annotation: str, owner: type) -> Any:
    """A simple name that nothing in the owner's module hides, `list[str]`; None for anything else."""
    module = sys.modules.get(foreign.module_of(owner))
    hidden = vars(module) if type(module) is types.ModuleType else {}
    if annotation in _NAMES:
        return None if annotation in hidden else _NAMES[annotation]
    if annotation in ("list[str]", "List[str]") and "str" not in hidden and "list" not in hidden:
        return list[str]
    found = hidden.get(annotation) if type(hidden) is dict else None
    return found if found is not None and foreign.is_class(found) else None
