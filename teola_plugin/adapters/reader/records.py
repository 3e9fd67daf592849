"""Objects that only hold data: their fields, and copies made without their constructors."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.facts import facts_of, text_accessor
from teola_plugin.adapters.reader.foreign import MISSING, in_mro

MODEL_SLOTS = ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
"""What an object of a pydantic model has besides its fields."""


def fields_of(value: Any) -> dict[Any, Any] | None:
    """The values that an object of a record holds, by name; None if it is no record."""
    facts = facts_of(type(value))
    if facts.kind == "record":
        own = foreign.own_attributes(value)
        extra = model_slot(value, "__pydantic_extra__") if facts.is_model else None
        return {**own, **extra} if own is not None and type(extra) is dict and extra else own
    if facts.kind == "slots":
        return _slots_of(value, facts.fields)
    if facts.kind == "tuple":
        return dict(zip(facts.fields, tuple.__iter__(value), strict=False))
    return None


def is_record(value: Any) -> bool:
    """Whether the value is an object that only holds data."""
    return facts_of(type(value)).kind in ("record", "slots", "tuple")


def is_atom_enum(value: Any) -> bool:
    """Whether the value is a member of an enum that runs no code of the user's when it is used."""
    return facts_of(type(value)).kind == "enum"


def model_slot(value: Any, name: str) -> Any:
    """One of `MODEL_SLOTS` of an object of a model, MISSING if it was never set."""
    member = in_mro(type(value), name)
    if type(member) is not types.MemberDescriptorType:
        return MISSING
    try:
        return member.__get__(value, type(value))
    except AttributeError:
        return MISSING


def set_model_slot(value: Any, name: str, content: Any) -> None:
    """See `model_slot`."""
    in_mro(type(value), name).__set__(value, content)


def new_object(cls: type) -> Any:
    """An object without attributes. Raises: TypeError for an abstract class."""
    return object.__new__(cls)


def new_record(cls: type, fields: dict[str, Any], fields_set: set[str] | None = None) -> Any:
    """An object of a record with these fields, made without its constructor. `fields_set`: of a pydantic model."""
    made = new_object(cls)
    facts = facts_of(cls)
    if facts.kind == "slots":
        _fill_slots(made, fields)
        return made
    object.__getattribute__(made, "__dict__").update(fields)
    if facts.is_model:
        set_model_slot(made, "__pydantic_fields_set__", set(fields) if fields_set is None else fields_set)
        set_model_slot(made, "__pydantic_extra__", None)
        set_model_slot(made, "__pydantic_private__", None)
    return made


def copy_of(value: Any, load: Callable[[Any], Any], keep: Callable[[Any], Any]) -> Any:
    """A copy of a record, a member of an enum as it is, or MISSING for any other object.

    `keep` is told of the copy before its fields are read by `load`, for objects that hold themselves.
    """
    cls = type(value)
    if cls is text_accessor():
        return str.__str__(value)
    facts = facts_of(cls)
    if facts.kind == "enum":
        return value
    if facts.kind == "tuple":
        return keep(tuple.__new__(cls, [load(part) for part in tuple.__iter__(value)]))
    if facts.kind == "slots":
        return _copied_slots(value, cls, facts.fields, load, keep)
    if facts.kind != "record" or foreign.is_abstract(cls):
        return MISSING
    return _copied_record(value, cls, facts.is_model, load, keep)


def _copied_record(
    value: Any, cls: type, is_model: bool, load: Callable[[Any], Any], keep: Callable[[Any], Any]
) -> Any:
    own = foreign.own_attributes(value)
    if own is None:
        return MISSING
    slots = [model_slot(value, name) for name in MODEL_SLOTS] if is_model else []
    if is_model and (type(slots[0]) is not set or not all(map(_is_optional_dict, slots[1:])) or slots[2]):
        return MISSING
    made = keep(new_object(cls))
    fields = object.__getattribute__(made, "__dict__")
    for name, part in list(own.items()):
        fields[name] = load(part)
    if is_model:
        set_model_slot(made, MODEL_SLOTS[0], load(slots[0]))
        set_model_slot(made, MODEL_SLOTS[1], load(slots[1]))
        set_model_slot(made, MODEL_SLOTS[2], slots[2] if slots[2] is None else {})
    return made


def _is_optional_dict(content: Any) -> bool:
    return content is None or type(content) is dict


def _copied_slots(
    value: Any, cls: type, names: tuple[str, ...], load: Callable[[Any], Any], keep: Callable[[Any], Any]
) -> Any:
    if in_mro(cls, "__dict__") is not MISSING and foreign.own_attributes(value):
        return MISSING
    made = keep(new_object(cls))
    _fill_slots(made, {name: load(part) for name, part in _slots_of(value, names).items()})
    return made


def _slots_of(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    found = {}
    for name in names:
        try:
            found[name] = in_mro(type(value), name).__get__(value, type(value))
        except AttributeError:
            continue
    return found


def _fill_slots(made: Any, fields: dict[str, Any]) -> None:
    for name, part in fields.items():
        in_mro(type(made), name).__set__(made, part)
