"""Checks, by the core schema, that pydantic makes and writes out objects of a model without running user code."""

from __future__ import annotations

import sys
import time
import types
import uuid
from collections.abc import Callable
from typing import Any

from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.facts import facts_of, is_user_code
from teola_plugin.adapters.reader.foreign import ATOMS, MISSING, in_mro, namespace_of
from teola_plugin.adapters.reader.old_models import is_clean_old_model
from teola_plugin.adapters.reader.records import fields_of, model_slot

MOST = 5_000
"""Parts of a schema that are looked at."""

_TYPES = foreign.words(
    "any none bool int float decimal str bytes date time datetime timedelta literal list tuple set frozenset "
    "dict nullable union tagged-union default model model-fields model-field typed-dict typed-dict-field "
    "definitions definition-ref uuid lax-or-strict json-or-python missing-sentinel enum"
)  # fmt: skip
"""Schemas that only call pydantic's core."""

KEYS = foreign.words(
    "type schema fields items_schema keys_schema values_schema choices definitions extras_schema lax_schema "
    "strict_schema json_schema python_schema extras_keys_schema"
)  # fmt: skip
"""Keys of a schema that hold schemas."""

_DATA = foreign.words(
    "ref metadata config custom_init root_model post_init frozen model_name computed_fields default "
    "default_factory default_factory_takes_data copy_default validate_default on_error expected cls members "
    "sub_type missing strict min_length max_length pattern strip_whitespace to_lower to_upper regex_engine ge "
    "le gt lt multiple_of allow_inf_nan variadic_item_index fail_fast discriminator from_attributes required "
    "total extra_behavior validation_alias serialization_alias serialization_exclude mode auto_collapse "
    "microseconds_precision val_json_bytes coerce_numbers_to_str cls_name schema_ref version generic_origin "
    "cls_repr decimal_places max_digits now_op tz_constraint now_utc_offset custom_error_type "
    "custom_error_message custom_error_context revalidate_instances serialize_by_alias"
)  # fmt: skip

_FACTORIES = (list, dict, set, str, int, float, tuple)
RANDOM = (uuid.uuid4, uuid.uuid1, time.time)
"""Functions that return a different default in each run."""


def is_clean_model(cls: type) -> bool:
    """Whether making and writing out objects of a pydantic model runs no user code."""
    facts = facts_of(cls)
    return facts.kind == "record" and facts.is_model and _kept(cls, "model", lambda: _is_clean(cls))


def _kept(cls: type, what: str, find: Callable[[], bool]) -> bool:
    """Return the result of `find` for a class, cached until classes are checked again."""
    known = _known.get((id(cls), what))
    if known is not None and known[0] is cls and known[1] == foreign.epoch():
        return known[2]
    if len(_known) >= foreign.MOST_CLASSES:
        _known.clear()
    now, found = foreign.epoch(), find()
    _known[id(cls), what] = cls, now, found
    foreign.note_kept(_known, (id(cls), what), cls)
    return found


_known: dict[tuple[int, str], tuple[type, int, bool]] = {}


def dumped_fields(cls: Any) -> list[str] | None:
    """Return the keys of `model_dump()` of an object of the class; None if the fields do not decide the keys."""
    method = in_mro(cls, "model_dump") if foreign.is_class(cls) else None
    if type(method) is not types.FunctionType or is_user_code("model_dump", method) or not is_clean_model(cls):
        return None
    schema: Any = namespace_of(cls)["__pydantic_core_schema__"]
    schema = schema["schema"] if schema["type"] == "definitions" else schema
    if schema["type"] != "model" or schema.get("root_model") or (schema.get("config") or {}).keys() - {"title"}:
        return None
    inner = schema["schema"]
    if inner["type"] != "model-fields" or inner.keys() - {"type", "fields", "model_name", "computed_fields"}:
        return None
    if inner.get("computed_fields") or any("serialization_exclude" in each for each in inner["fields"].values()):
        return None
    return list(inner["fields"])


def is_clean_schema(cls: type) -> bool:
    """Whether pydantic checks data for a class without user code.

    True for clean models, and for the models that LangChain makes from the signature of a function.
    """
    return is_clean_model(cls) or (_is_without_code(cls) and _is_clean(cls))


def is_made_without_code(cls: type) -> bool:
    """Whether pydantic makes an object of a model from JSON without user code.

    Unlike clean models, such models may have computed fields, which run only for output, or `RANDOM` defaults, or be
    models of pydantic 1.
    """
    return is_clean_model(cls) or _kept(cls, "made", lambda: _is_made_without_code(cls))


def _is_made_without_code(cls: type) -> bool:
    facts = facts_of(cls)
    is_data = facts.is_model and (facts.kind == "record" or facts.is_computed)
    return (is_data and _is_clean(cls, is_shown=False)) or is_clean_old_model(cls)


def made_up_fields(value: Any) -> list[str]:
    """Return the fields of a model's object with an unset `RANDOM` default."""
    fields_set = model_slot(value, "__pydantic_fields_set__")
    if type(fields_set) is not set or foreign.is_library_class(type(value)):
        return []
    fields = in_mro(type(value), "__pydantic_fields__")
    return [
        name
        for name, field in fields.items()
        if name not in fields_set and foreign.is_one_of(getattr(field, "default_factory", None), RANDOM)
    ]


def _is_without_code(cls: type) -> bool:
    """Whether the class is a model that claims to be a framework's, without any code that could run."""
    facts, model = facts_of(cls), foreign.base_model()
    return facts.kind == "component" and not facts.user_names and model is not None and foreign.is_subtype(cls, model)


def _is_clean(cls: type, *, is_shown: bool = True) -> bool:
    core = sys.modules.get("pydantic_core._pydantic_core")
    if core is None:
        return False
    namespace = namespace_of(cls)
    if type(namespace.get("__pydantic_validator__")) is not core.__dict__["SchemaValidator"]:
        return False
    if type(namespace.get("__pydantic_serializer__")) is not core.__dict__["SchemaSerializer"]:
        return False
    if in_mro(cls, "__pydantic_post_init__") is not None or not is_clean_config(in_mro(cls, "model_config")):
        return False
    return has_no_code(namespace.get("__pydantic_core_schema__", MISSING), is_shown=is_shown)


def has_no_code(schema: Any, *, is_shown: bool = True) -> bool:
    """Whether pydantic's core calls only itself for a schema.

    `is_shown`: objects are also shown and written out, so that computed fields run.
    """
    todo = [schema]
    for _ in range(MOST):
        if not todo:
            return True
        part = todo.pop()
        if type(part) is list or type(part) is tuple:
            todo += part
        elif type(part) is dict:
            inner = _inner(part, is_shown)
            if inner is None:
                return False
            todo += inner
        elif type(part) is not str:
            return False
    return False


def _inner(schema: dict[Any, Any], is_shown: bool) -> list[Any] | None:
    """Return the schemas in a schema, None if the schema may call code."""
    if not all(type(key) is str for key in schema):
        return None
    kind = schema.get("type")
    if kind is None or type(kind) is not str:  # fields or choices, by name
        return list(schema.values())
    if kind not in _TYPES or not schema.keys() <= KEYS | _DATA or not _is_clean_data(kind, schema, is_shown):
        return None
    found: list[Any] = []
    for key in KEYS - {"type"}:
        part = schema.get(key)
        if type(part) is dict and key in ("fields", "choices"):
            found += part.values()
        elif part is not None:
            found.append(part)
    return found


def _is_clean_data(kind: str, schema: dict[str, Any], is_shown: bool) -> bool:
    if any(schema.get(name) for name in ("custom_init", "post_init", "from_attributes")):
        return False
    if schema.get("computed_fields") and is_shown:
        return False
    if "serialization_exclude_if" in schema or "missing" in schema or type(schema.get("pattern", "")) is not str:
        return False
    if schema.get("regex_engine", "rust-regex") != "rust-regex" or type(schema.get("discriminator", "")) is not str:
        return False
    if not is_clean_config(schema.get("config")) or not is_clean_metadata(schema.get("metadata")):
        return False
    factory, factories = schema.get("default_factory", list), _FACTORIES if is_shown else (*_FACTORIES, *RANDOM)
    if schema.get("default_factory_takes_data") or not foreign.is_one_of(factory, factories):
        return False
    if not is_plain_default(schema.get("default")) or not is_plain_default(schema.get("expected")):
        return False
    cls: Any = schema.get("cls")
    if kind == "enum":
        return foreign.is_class(cls) and facts_of(cls).kind == "enum"
    if kind == "model":
        if not foreign.is_class(cls):
            return False
        facts = facts_of(cls)
        is_data = facts.kind == "record" or (facts.is_computed and not is_shown)
        is_made = is_data and not facts.user_names & {"__init__", "model_post_init"}
        return is_made or _is_without_code(cls)
    return cls is None or (foreign.is_class(cls) and type(cls) in foreign.TYPED_DICT_METAS)


def is_clean_config(config: Any) -> bool:
    """Whether the settings of a model are data: settings may be functions, or let attributes of any object be read."""
    if config is None:
        return True
    if type(config) is dict and config.get("from_attributes"):
        return False
    return is_plain_default(config) and config.get("regex_engine", "rust-regex") == "rust-regex"


def is_clean_metadata(metadata: Any) -> bool:
    """Whether the JSON schema of a part is made without user code."""
    if metadata is None:
        return True
    if type(metadata) is not dict or not all(type(key) is str for key in metadata):
        return False
    for key, value in metadata.items():
        if key in ("pydantic_js_functions", "pydantic_js_annotation_functions"):
            if type(value) is not list or not all(map(_is_of_pydantic, value)):
                return False
        elif not is_plain_default(value):
            return False
    return True


def _is_of_pydantic(function: Any) -> bool:
    if type(function) is types.MethodType:
        function = function.__func__
    return type(function) is types.FunctionType and foreign.is_of_library(function)


def is_plain_default(value: Any, depth: int = 4) -> bool:
    """Whether a value is exact builtin data, or members of enums without code."""
    cls = type(value)
    if type(cls) is type and cls in ATOMS:
        return True
    if depth and (cls is list or cls is tuple or cls is set or cls is frozenset):
        return all(is_plain_default(part, depth - 1) for part in value)
    if depth and cls is dict:
        return all(is_plain_default(part, depth - 1) for pair in value.items() for part in pair)
    kind = facts_of(cls).kind
    if kind == "record" and depth:
        return all(is_plain_default(part, depth - 1) for part in (fields_of(value) or {}).values())
    return kind == "enum"
