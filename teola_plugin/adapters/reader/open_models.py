"""Objects of pydantic models with values that are unknown or not plain data: made field by field.

Pydantic's core checks each field with the field's schema from the model. A model without its own validators does the
same, so an unknown value in one field does not affect the rest.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

from teola_plugin.adapters.reader import foreign, records
from teola_plugin.adapters.reader.annotations import declared_of
from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.foreign import in_mro, namespace_of
from teola_plugin.adapters.reader.heap import sources_of
from teola_plugin.adapters.reader.pydantic_schemas import has_no_code, is_clean_metadata, is_plain_default
from teola_plugin.adapters.reader.values import Barrier, Opaque, Undecided, Unknown, isinstance_of

_MODEL = foreign.words("type cls schema config ref metadata custom_init root_model")
_FIELDS = foreign.words("type fields model_name computed_fields")
_FIELD = foreign.words("type schema metadata")
_DEFAULT = foreign.words("type schema default default_factory default_factory_takes_data copy_default metadata")
_FACTORIES = (list, dict, set)
_PLAIN_KEYS = frozenset(["type", "metadata"])


def open_model(run: Any, cls: type, kwargs: dict[str, Any]) -> Any:
    """Make an object field by field; None if the model must be made as a whole. Raises: errors of pydantic, Barrier."""
    shape = _shape(cls)
    if shape is None:
        return None
    fields, config = shape
    found: dict[str, Any] = {}
    for name, schema in fields.items():
        if name in kwargs:
            found[name] = _checked(run, cls, name, _inner(schema), config, kwargs[name])
        elif schema["type"] == "default":
            found[name] = _default(run, schema)
        else:
            return None  # pydantic raises for the missing field
    return records.new_record(cls, found, {name for name in fields if name in kwargs})


def _shape(cls: type) -> tuple[dict[str, Any], Any] | None:
    """Return the schemas of the fields, and the config; None unless the model checks each field on its own."""
    facts = facts_of(cls)
    if facts.kind != "record" or not facts.is_model or facts.user_names & {"__init__", "model_post_init"}:
        return None
    core = sys.modules["pydantic_core._pydantic_core"]
    namespace = namespace_of(cls)
    if type(namespace.get("__pydantic_validator__")) is not core.__dict__["SchemaValidator"]:
        return None
    schema: Any = namespace.get("__pydantic_core_schema__")
    if in_mro(cls, "__pydantic_post_init__") is not None or not _is(schema, "model", _MODEL):
        return None
    if schema["cls"] is not cls or schema.get("custom_init") or schema.get("root_model"):
        return None
    config, inner = schema.get("config"), schema["schema"]
    if type(config) not in (dict, type(None)) or (config or {}).keys() - {"title"}:
        return None  # the config may change texts, or refuse values
    if not _is(inner, "model-fields", _FIELDS) or inner.get("computed_fields") or type(inner["fields"]) is not dict:
        return None
    if not all(map(_is_open_field, inner["fields"].values())):
        return None
    return {name: field["schema"] for name, field in inner["fields"].items()}, config


def _is(schema: Any, kind: str, keys: frozenset[str]) -> bool:
    return type(schema) is dict and schema.get("type") == kind and schema.keys() <= keys


def _is_open_field(field: Any) -> bool:
    return _is(field, "model-field", _FIELD) and is_clean_metadata(field.get("metadata")) and _is_open(field["schema"])


def _is_open(schema: Any) -> bool:
    """Whether values and default of a field are made without user code."""
    if type(schema) is dict and schema.get("type") == "default":
        factory = schema.get("default_factory")
        is_known = factory is None or any(factory is each for each in _FACTORIES)
        if not schema.keys() <= _DEFAULT or not is_known or schema.get("default_factory_takes_data"):
            return False
        schema = schema["schema"]
    return has_no_code(schema) or _is_instance_of(schema) is not None


def _is_instance_of(schema: Any) -> type | None:
    """Return the class that values must have, if the schema checks no more."""
    cls: Any = schema.get("cls") if _is(schema, "is-instance", frozenset(["type", "cls", "metadata"])) else None
    return cls if foreign.is_class(cls) and type(cls) is type else None


def _inner(schema: dict[str, Any]) -> Any:
    return schema["schema"] if schema["type"] == "default" else schema


def _default(run: Any, schema: dict[str, Any]) -> Any:
    factory = schema.get("default_factory")
    if factory is not None:
        return factory()
    default = schema["default"]
    if not is_plain_default(default):
        return run.unknown(holds=_kind_of_copy(default), is_safe=True)
    loaded = run.load(default)
    run.require_known(loaded)
    return copy.deepcopy(loaded)  # as pydantic does


def _kind_of_copy(value: Any) -> str | type:
    """Return the class of a deep copy of an object, "any" if the object's class decides that itself."""
    cls = type(value)
    is_own = type(cls) is not type or in_mro(cls, "__deepcopy__") is not foreign.MISSING
    if is_own or any(foreign.owner_in_mro(cls, name) is not object for name in ("__reduce_ex__", "__reduce__")):
        return "any"
    has_code = any(map(callable, (foreign.own_attributes(value) or {}).values()))  # in place of a method of the class
    return "any" if has_code else cls


# --- values ----------------------------------------------------------------------------------------------------------


def _checked(run: Any, cls: type, name: str, schema: dict[str, Any], config: Any, value: Any) -> Any:
    """Return the content of a field for a value."""
    kind = schema["type"]
    if kind == "any":
        return value
    wanted = _is_instance_of(schema)
    if wanted is not None:
        return _instance(run, wanted, value)
    try:
        run.require_known(value)
    except Undecided:
        return _open_value(run, cls, name, schema, value)
    run.tick(10)
    return _validator(schema, config).validate_python(value)


_validators: dict[int, tuple[Any, Any]] = {}


def _validator(schema: dict[str, Any], config: Any) -> Any:
    """Return the validator, cached by schema: each schema has one config."""
    known = _validators.get(id(schema))
    if known is None or known[0] is not schema:
        if len(_validators) >= foreign.MOST_CLASSES:
            _validators.clear()
        core = sys.modules["pydantic_core._pydantic_core"].__dict__
        known = _validators[id(schema)] = schema, core["SchemaValidator"](schema, config)
    return known[1]


def _instance(run: Any, wanted: type, value: Any) -> Any:
    kind: Any = value.holds if type(value) is Unknown else None
    if foreign.is_class(kind) and foreign.is_subtype(kind, wanted):
        return value
    if run.is_unknown(value):
        return run.unknown(value)
    if isinstance_of(value, Opaque) and foreign.is_subtype(type(value.held), wanted):
        return value
    raise Barrier("a model holds an object that is not read")


def _open_value(run: Any, cls: type, name: str, schema: dict[str, Any], value: Any) -> Any:
    """Return the content of a field for a value with unknown parts."""
    if schema["type"] == "nullable" and type(value) is Unknown and schema.keys() <= _PLAIN_KEYS | {"schema"}:
        schema = schema["schema"]
    is_plain = schema.keys() <= _PLAIN_KEYS
    if type(value) is Unknown and is_plain and (schema["type"], value.holds) in (("str", "text"), ("bool", "bool")):
        return value
    if _is(schema, "list", _PLAIN_KEYS | {"items_schema"}):
        inner = schema.get("items_schema", {"type": "any"})
        is_text = inner["type"] == "str" and inner.keys() <= _PLAIN_KEYS
        if type(value) is Unknown and value.holds == "texts" and is_text:
            return run.unknown(value, holds="texts", is_safe=True)
        is_list = type(value) is list and not run.is_unknown(value)
        if is_list and (inner["type"] == "any" or (is_text and all(map(_is_text, value)))):
            return list(value)
    holds = declared_of(cls, name) or "any"
    sources = [each for each in _parts(value) if sources_of(each)]
    return run.unknown(*sources, holds=holds)


def _is_text(value: Any) -> bool:
    return type(value) is str or (type(value) is Unknown and value.holds == "text")


def _parts(value: Any) -> list[Any]:
    """Return the values in a value, if all unknown parts are among them."""
    if type(value) is Unknown:
        return [value]
    if type(value) is list and all(type(each) is Unknown or foreign.is_atom(each) for each in value):
        return value
    return []
