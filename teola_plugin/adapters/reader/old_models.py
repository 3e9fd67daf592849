"""Models of pydantic 1 (`pydantic.v1`): whether making an object runs no user code.

Such models have no core schema. The notes of the metaclass list all code that runs: the fields with validators, the
root validators, the config. Accepted are only fields of plain types and of accepted models, with pydantic's own
validators for the type.
"""

from __future__ import annotations

import datetime
import sys
import types
import typing
from typing import Any

from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.facts import facts_of, is_dunder
from teola_plugin.adapters.reader.foreign import MISSING, in_mro, mro_of, namespace_of

_NOTED = foreign.words(
    "__config__ __fields__ __exclude_fields__ __include_fields__ __validators__ __pre_root_validators__ "
    "__post_root_validators__ __schema_cache__ __json_encoder__ __custom_root_type__ __private_attributes__ "
    "__slots__ __hash__ __class_vars__ __signature__"
)
"""Names that the metaclass puts into each class."""

_EMPTY = (
    ("__validators__", dict), ("__pre_root_validators__", list), ("__post_root_validators__", list),
    ("__private_attributes__", dict),
)  # fmt: skip

_TYPES = (
    str, int, float, bool, bytes, list, dict, tuple, set, frozenset, type(None), typing.Any, datetime.date,
    datetime.datetime, datetime.time, datetime.timedelta,
)  # fmt: skip

_LITERAL = type(typing.Literal["a"])
_DEEPEST = 10


def is_clean_old_model(cls: type, depth: int = 0) -> bool:
    """Whether making an object of a model of pydantic 1, and making the JSON schema, runs no user code."""
    model = foreign.old_model()
    if model is None or depth > _DEEPEST or not foreign.has_known_classes(cls) or not foreign.is_subtype(cls, model):
        return False
    own = facts_of(cls).user_names - _NOTED
    if facts_of(cls).kind != "component" or any(is_dunder(name) or in_mro(model, name) is not MISSING for name in own):
        return False
    if any(type(held := in_mro(cls, name)) is not kind or held for name, kind in _EMPTY):
        return False
    fields = namespace_of(cls).get("__fields__")
    if type(fields) is not dict or not is_plain_config(in_mro(cls, "__config__")):
        return False
    return all(type(name) is str and _is_clean_field(field, depth) for name, field in fields.items())


def is_plain_config(config: Any) -> bool:
    """Whether the settings of a model are data."""
    if type(config) is not type:
        return False
    own = [each for each in mro_of(config) if id(each) not in foreign.BUILTINS and not foreign.is_library_class(each)]
    return all(_is_data(value) for each in own for value in namespace_of(each).values())


def _is_data(value: Any) -> bool:
    kind = type(value)
    if kind is dict or kind is list or kind is tuple or kind is set:
        return all(map(_is_data, [*value, *value.values()] if kind is dict else value))
    is_plain = foreign.is_atom(value) or kind is types.GetSetDescriptorType or facts_of(kind).kind == "enum"
    return is_plain or (foreign.is_library_class(kind) and foreign.name_of_class(kind) == "UndefinedType")


def _is_clean_field(field: Any, depth: int) -> bool:
    noted = sys.modules["pydantic.v1.fields"].__dict__
    if type(field) is not noted["ModelField"] or type(field.field_info) is not noted["FieldInfo"]:
        return False
    if not foreign.is_one_of(field.default_factory, (None, list, dict, set)) or field.discriminator_key is not None:
        return False
    lists = [field.sub_fields, field.validators, field.pre_validators, field.post_validators]
    if type(field.class_validators) is not dict or field.class_validators or not all(map(_is_optional_list, lists)):
        return False
    info = [getattr(field.field_info, name) for name in noted["FieldInfo"].__slots__ if name != "default_factory"]
    if not all(map(_is_data, (field.default, field.alias, info))) or not is_plain_config(field.model_config):
        return False
    parts = [*(field.sub_fields or ()), *([] if field.key_field is None else [field.key_field])]
    if not all(_is_clean_field(part, depth + 1) for part in parts):
        return False
    if not field.sub_fields and not _is_clean_type(field.type_, depth):
        return False
    return all(_is_of_pydantic(each) for some in lists[1:] for each in some or ())


def _is_optional_list(value: Any) -> bool:
    return value is None or type(value) is list


def _is_clean_type(annotation: Any, depth: int) -> bool:
    if foreign.is_one_of(annotation, _TYPES):
        return True
    if type(annotation) is _LITERAL:
        return all(map(foreign.is_atom, typing.get_args(annotation)))
    if not foreign.is_class(annotation):
        return False
    return facts_of(annotation).kind == "enum" or is_clean_old_model(annotation, depth + 1)


def _is_of_pydantic(function: Any) -> bool:
    """Whether the function is pydantic's validator for a type; for a model the validator is a method of the model."""
    if type(function) is types.MethodType:
        function = function.__func__
    if type(function) is not types.FunctionType:
        return False
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    if len(held) == 1 and type(held[0]) is types.MethodType:  # around `Model.validate`
        bare = types.FunctionType(function.__code__, function.__globals__, closure=(types.CellType(None),))
        return foreign.is_of_library(bare) and _is_of_pydantic(held[0])
    return foreign.is_of_library(function)
