"""Allowed uses of classes and foreign objects, without running code of the classes: the single import for all uses."""

from __future__ import annotations

from typing import Any

from teola_plugin.adapters.reader import natives_dataclasses
from teola_plugin.adapters.reader.attributes import attribute, set_attribute
from teola_plugin.adapters.reader.construction import call_object, construct, make_class
from teola_plugin.adapters.reader.contexts import entirely, inside
from teola_plugin.adapters.reader.foreign import (
    ATOMS,
    MISSING,
    begin,
    describe,
    has_known_metaclass,
    in_mro,
    is_atom,
    is_class,
    is_kind_of,
    module_of,
    mro_of,
    name_of_class,
    namespace_of,
)
from teola_plugin.adapters.reader.instances import (
    is_caught,
    is_exception,
    is_instance,
    is_subclass,
    match_places,
    takes_each,
    type_of,
)
from teola_plugin.adapters.reader.pydantic_schemas import is_clean_model
from teola_plugin.adapters.reader.record_methods import record_method, require_clean
from teola_plugin.adapters.reader.records import copy_of, fields_of, is_atom_enum, is_record, new_record
from teola_plugin.adapters.reader.values import Barrier

__all__ = [
    "ATOMS",
    "MISSING",
    "attribute",
    "begin",
    "call_object",
    "construct",
    "copy_of",
    "describe",
    "entirely",
    "fields_of",
    "has_known_metaclass",
    "in_mro",
    "inside",
    "is_atom",
    "is_atom_enum",
    "is_caught",
    "is_class",
    "is_clean_model",
    "is_exception",
    "is_instance",
    "is_kind_of",
    "is_record",
    "is_subclass",
    "make_class",
    "match_args",
    "module_of",
    "mro_of",
    "name_of_class",
    "namespace_of",
    "natives_dataclasses",
    "new_record",
    "record_method",
    "require_clean",
    "set_attribute",
    "takes_each",
    "type_of",
]  # fmt: skip


def match_args(run: Any, cls_value: Any, value: Any, count: int) -> list[Any]:
    """Return the values to match with the first `count` positional patterns of a class."""
    places = match_places(run, cls_value, count)
    if places is None:
        return [value]
    try:
        return [attribute(run, value, name) for name in places]
    except AttributeError as e:
        raise Barrier("it matches attributes that an object lacks") from e
