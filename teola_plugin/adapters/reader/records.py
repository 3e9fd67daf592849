"""Objects which only hold data: the fields, and copies made without constructors."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.facts import MODEL_SLOTS, Facts, facts_of, plain_text, text_accessor
from teola_plugin.adapters.reader.foreign import MISSING, in_mro


def fields_of(value: Any) -> dict[Any, Any] | None:
    """Return the values of a record's object, by name; None for any other object."""
    facts = facts_of(type(value))
    if facts.kind == "record":
        own = foreign.plain_attributes(value)
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
    """Whether the value is a member of an enum whose use runs no user code."""
    return facts_of(type(value)).kind == "enum"


def model_slot(value: Any, name: str) -> Any:
    """Return one of the `MODEL_SLOTS` of a model's object, MISSING if never set."""
    cls = type(value)
    members = facts_of(cls).members
    return _member(value, cls, members[MODEL_SLOTS.index(name)]) if members else MISSING


def set_model_slot(value: Any, name: str, content: Any) -> None:
    """Set one of the `MODEL_SLOTS`; see `model_slot`."""
    facts_of(type(value)).members[MODEL_SLOTS.index(name)].__set__(value, content)


def data_of_event(value: Any) -> dict[Any, Any] | None:
    """Return the data of a workflow event under names that are no fields; None for any other object."""
    if not facts_of(type(value)).is_event:
        return None
    private = model_slot(value, "__pydantic_private__")
    data = private.get("_data") if type(private) is dict else None
    return data if type(data) is dict else None


def new_object(cls: type) -> Any:
    """Make an object without attributes. Raises: TypeError for an abstract class."""
    return object.__new__(cls)


def new_record(cls: type, fields: dict[str, Any], fields_set: set[str] | None = None) -> Any:
    """Make a record from fields, without the constructor. `fields_set`: the set fields of a pydantic model."""
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


Load = Callable[[Any], Any]
"""Returns the copy of a part of a copied object."""


def copy_of(value: Any, load: Load, load_key: Load, keep: Load) -> Any:
    """Copy a container or a record; members of enums are returned as they are, MISSING for any other object.

    `load_key` copies hashed parts, `load` all other parts. `keep` gets and returns the copy before any parts are
    copied, as objects may contain themselves.
    """
    cls = type(value)
    if type(cls) is type:  # other metaclasses may define `__eq__` and `__hash__`
        copied = _copied_container(value, cls, load, load_key, keep)
        if copied is not MISSING:
            return copied
    facts = facts_of(cls)
    if facts.kind == "record":
        if foreign.is_abstract(cls):
            return MISSING
        return _copied_record(value, cls, facts, load, keep)
    if facts.kind == "enum":
        return value
    if facts.kind == "tuple":
        return keep(tuple.__new__(cls, [load(part) for part in tuple.__iter__(value)]))
    if facts.kind == "slots":
        return _copied_slots(value, cls, facts.fields, load, keep)
    return plain_text(value) if cls is text_accessor() else MISSING


def _copied_container(value: Any, cls: type, load: Load, load_key: Load, keep: Load) -> Any:
    if cls in (dict, OrderedDict, Counter, defaultdict):
        made = keep(defaultdict(value.default_factory) if cls is defaultdict else cls())
        for key, part in list(value.items()):
            made[load_key(key)] = load(part)
        return made
    if cls in (list, deque):
        made = keep([] if cls is list else deque(maxlen=value.maxlen))
        made.extend([load(part) for part in list(value)])
        return made
    if cls is tuple:
        return keep(tuple([load(part) for part in value]))
    if cls in (set, frozenset):
        return keep(cls([load_key(part) for part in list(value)]))
    return MISSING


def _copied_record(value: Any, cls: type, facts: Facts, load: Load, keep: Load) -> Any:
    own, members = foreign.plain_attributes(value), facts.members
    if own is None:
        return MISSING
    slots = [_member(value, cls, member) for member in members]
    if slots and (type(slots[0]) is not set or not all(map(_is_optional_dict, slots[1:]))):
        return MISSING
    if slots and slots[2] and not facts.is_event:
        return MISSING
    made = keep(object.__new__(cls))
    fields = object.__getattribute__(made, "__dict__")
    for name, part in list(own.items()):
        fields[name] = load(part)
    for member, part in zip(members, slots, strict=True):
        member.__set__(made, part if part is None else load(part))
    return made


def _member(value: Any, cls: type, member: Any) -> Any:
    try:
        return member.__get__(value, cls)
    except AttributeError:
        return MISSING


def _is_optional_dict(content: Any) -> bool:
    return content is None or type(content) is dict


def _copied_slots(value: Any, cls: type, names: tuple[str, ...], load: Load, keep: Load) -> Any:
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
