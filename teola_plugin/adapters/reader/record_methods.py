"""Methods and properties of frameworks' data classes and of pydantic models: closed lists of pure functions."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from pydantic.warnings import PydanticDeprecatedSince20
from pydantic_core import PydanticSerializationError

from teola_plugin.adapters.reader import foreign, outlets, records
from teola_plugin.adapters.reader.facts import facts_of, is_stock_record_class, is_user_code
from teola_plugin.adapters.reader.foreign import ATOMS, describe, in_mro, mro_of
from teola_plugin.adapters.reader.pydantic_schemas import is_clean_model
from teola_plugin.adapters.reader.table import kind_of
from teola_plugin.adapters.reader.values import Barrier, Callee, Opaque, Undecided, Unknown, isinstance_of

_DUMPS = frozenset(["model_dump", "model_dump_json", "dict", "json", "to_dict", "to_json"])
_NEWER = {"dict": "model_dump", "json": "model_dump_json", "copy": "model_copy"}
"""Deprecated methods of pydantic's, and the methods that these call."""

_READS = foreign.words(
    "pretty_repr get_content get_text get_embedding get_metadata_str get_node_id get_score get_type "
    "as_related_node_info get_doc_id to_string to_messages text is_lc_serializable lc_id get_lc_namespace"
)
_SILENT = frozenset(["pretty_print"])
"""Printing methods: nothing is printed, and the result is None."""

_PROPERTIES = foreign.words(
    "text output_text content_blocks node_id ref_doc_id extra_info hash source_node prev_node next_node parent_node "
    "child_nodes embedding metadata id_ content nested_blocks doc_id embedding_strs messages model_extra "
    "model_fields_set"
)
_OF_NODE = frozenset(["metadata", "embedding", "node_id", "id_"])
"""Properties of a NodeWithScore that forward to the node."""

_MAKERS = frozenset(["model_validate", "model_validate_json", "parse_obj", "parse_raw"])
_SCHEMAS = frozenset(["model_json_schema", "schema"])
_FILTERS = "llama_index.core.vector_stores.types"
_OF_FILTERS = (("MetadataFilter", "from_dict"), ("MetadataFilters", "from_dicts"))
"""Class methods of LlamaIndex's filters that only validate."""


def require_clean(value: Any) -> None:
    """Require a value whose output runs no user code, such as a serializer. Raises: Barrier."""
    todo, seen = [value], set[int]()
    while todo:
        part = todo.pop()
        cls = type(part)
        if cls in ATOMS or isinstance_of(part, Opaque) or id(part) in seen:
            continue
        seen.add(id(part))
        if cls is list or cls is tuple or cls is set or cls is frozenset:
            todo += part
        elif foreign.is_kind_of(part, dict):
            todo += dict.values(part)
        else:
            facts = facts_of(cls)
            if facts.is_model and not is_stock_record_class(cls) and not is_clean_model(cls):
                raise Barrier(f"it writes out {describe(part)}, which has code for that")
            todo += (records.fields_of(part) or {}).values()


def record_method(run: Any, value: Any, name: str) -> Any:
    """Return a bound method of a record, written by a library. Raises: Barrier for methods not listed."""
    cls = type(value)
    if name in _SILENT:
        return Callee(lambda run, args, kwargs: None, name)
    if name in _NEWER and _is_deprecated(cls, name):
        return Callee(lambda run, args, kwargs: _newer(run, value, name)(run, args, kwargs), name)
    if name in ("model_copy", "copy") and facts_of(cls).is_model:
        return Callee(lambda run, args, kwargs: _model_copy(run, value, args, kwargs), name)
    if name in ("_asdict", "_replace") and facts_of(cls).kind == "tuple":
        return Callee(lambda run, args, kwargs: _of_tuple(run, value, name, args, kwargs), name)
    if name in _DUMPS or (name in _READS and is_stock_record_class(cls)):
        return Callee(lambda run, args, kwargs: _called(run, value, name, args, kwargs), name)
    raise Barrier(f"it calls {name} of {describe(value)}")


def _is_deprecated(cls: type, name: str) -> bool:
    """Whether a call of the method warns, as methods of pydantic 1 do in pydantic 2."""
    found = in_mro(cls, name)
    return hasattr(getattr(found, "__func__", found), "__deprecated__")


def _newer(run: Any, value: Any, name: str) -> Any:
    """Return the method that a deprecated one calls. The warning, maybe an error, comes from the framework's run."""
    if not outlets.warns(PydanticDeprecatedSince20):
        run.raises()
    if name != "copy":
        return lambda run, args, kwargs: _called(run, value, _NEWER[name], args, _of_newer(name, kwargs))
    return lambda run, args, kwargs: _model_copy(run, value, args, kwargs)


def _of_newer(name: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments handed on by a deprecated method. Raises: Barrier."""
    if not kwargs.keys() <= {"include", "exclude", "by_alias", "exclude_unset", "exclude_defaults", "exclude_none"}:
        raise Barrier(f"it calls {name} with options that are not read")
    return {"by_alias": False, **kwargs}


def _called(run: Any, value: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if name == "get_content" and type(in_mro(type(value), name)) is types.FunctionType:
        node = (records.fields_of(value) or {}).get("node", value)
        value = node
    run.require_known(*args, *kwargs.values())
    missing = _unknown_atoms(value) if name == "model_dump" and kwargs.keys() <= _CHOSEN else []
    if missing:
        value = in_mro(type(value), "model_copy")(
            value, update={field: _SAMPLES[kind_of(held)] for field, held in missing}
        )
    run.require_known(value)
    if name in _DUMPS:
        require_clean(value)
        if any(option in kwargs for option in ("context", "fallback", "encoder", "polymorphic_serialization")):
            raise Barrier(f"it calls {name} with options that are not read")
    found = in_mro(type(value), name)
    if type(found) is not types.FunctionType or is_user_code(name, found):
        raise Barrier(f"it calls {name} of {describe(value)}")
    run.tick(20)
    if name in _DUMPS:
        kwargs = _without_warnings(
            run, value, name, kwargs, is_checked=all(kind_of(held) != "number" for _, held in missing)
        )
    made = _plain(found(value, *args, **kwargs))
    return {**made, **{field: held for field, held in missing if field in made}} if missing else made


def _without_warnings(run: Any, value: Any, name: str, kwargs: dict[str, Any], *, is_checked: bool) -> dict[str, Any]:
    """Return the options with which a model is written out without warnings, which the framework's run gives.

    Pydantic warns of a field whose value is of another type than declared. Raises: Barrier where `name` has no such
    option.
    """
    written = in_mro(type(value), "model_dump")
    if written is foreign.MISSING or kwargs.get("warnings", True) not in (True, "warn"):
        return kwargs
    try:
        if is_checked:
            written(value, warnings="error")
            return kwargs
    except PydanticSerializationError:
        pass
    if not outlets.warns(UserWarning):
        run.raises()
    if name not in _NEWER.values():
        raise Barrier(f"it calls {name} of {describe(value)}, of which pydantic warns")
    return {**kwargs, "warnings": False}


_SAMPLES: dict[Any, Any] = {"text": "", "id": "", "bool": False, "number": 0, "int": 0, "float": 0}
"""By the kind of an unknown value that is the same in the output: a value in the value's place."""

_CHOSEN = frozenset(["include", "exclude"])
"""Options of `model_dump` that depend on the fields' names alone."""


def _unknown_atoms(value: Any) -> list[tuple[str, Unknown]]:
    """Return the unknown fields of a pydantic record, each of which holds a text, a number or a flag."""
    if not facts_of(type(value)).is_model:
        return []
    fields = records.fields_of(value) or {}
    unknown = [(name, held) for name, held in fields.items() if type(held) is Unknown]
    return [(name, held) for name, held in unknown if kind_of(held) in _SAMPLES]


def _plain(value: Any) -> Any:
    """Convert a subclass of `str`, such as the type of `message.text`, to `str`."""
    return str.__str__(value) if foreign.is_kind_of(value, str) and type(value) is not str else value


def _model_copy(run: Any, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copy a model, sharing the values of fields, which may be unknown."""
    update = kwargs.get("update")
    if args or not kwargs.keys() <= {"update", "deep"} or (update is not None and type(update) is not dict):
        raise Barrier("it calls model_copy() in an unusual way")
    run.require_known(kwargs.get("deep"))
    if kwargs.get("deep"):
        run.require_known(value)
    names = records.model_slot(value, "__pydantic_fields_set__")
    extra = records.model_slot(value, "__pydantic_extra__")
    if run.is_unknown(value) or run.is_unknown(names) or run.is_unknown(extra) or run.is_unknown(update):
        raise Undecided
    found = in_mro(type(value), "model_copy")
    return found(value, update=update, deep=bool(kwargs.get("deep")))


def _of_tuple(run: Any, value: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    fields = records.fields_of(value) or {}
    if name == "_asdict":
        return fields
    if args or not kwargs.keys() <= fields.keys():
        raise ValueError("got unexpected field names")
    return tuple.__new__(type(value), [kwargs.get(field, held) for field, held in fields.items()])


# --- properties ------------------------------------------------------------------------------------------------------


def stock_property(run: Any, value: Any, name: str, read: Callable[[Any, Any, str], Any]) -> Any:
    """Return a property written by a library; `read` reads an attribute. Raises: Barrier for properties not listed."""
    cls = type(value)
    if name not in _PROPERTIES or not any(is_stock_record_class(each) for each in mro_of(cls)):
        raise Barrier(f"it uses {name} of {describe(value)}")
    own = object.__getattribute__(value, "__dict__")
    if name in _OF_NODE and "node" in own and foreign.name_of_class(cls) == "NodeWithScore":
        return read(run, own["node"], name)
    if name == "text" and "content" in own and len(own) > 1:
        held = own["content"]
        if type(held) is Unknown and held.holds == "text":
            return held
        run.require_known(held)
    elif name not in ("model_fields_set", "model_extra"):
        run.require_known(value)
    found = in_mro(cls, name)
    run.tick(5)
    return _plain(found.fget(value))


# --- class methods ---------------------------------------------------------------------------------------------------


def class_method(run: Any, cls: type, name: str) -> Any:
    """Return a bound class method, written by a library. Raises: Barrier for methods not listed."""
    if name in _MAKERS | _SCHEMAS and is_clean_model(cls):
        if _is_deprecated(cls, name):
            raise Barrier(
                f"it calls {name}, which is deprecated", hint="call the method that pydantic names in its place"
            )
    elif not ((foreign.name_of_class(cls), name) in _OF_FILTERS and foreign.module_of(cls) == _FILTERS):
        if name == "_make" and facts_of(cls).kind == "tuple":
            raise Barrier("it calls _make of a NamedTuple")
        raise Barrier(f"it calls {name} of the class {foreign.name_of_class(cls)}")
    found = in_mro(cls, name)
    return Callee(lambda run, args, kwargs: _made(run, cls, found, args, kwargs), name)


def _made(run: Any, cls: type, found: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        run.require_known(*args, *kwargs.values())
    except Undecided:
        return run.unknown(*args, *kwargs.values(), holds=cls if found.__func__.__name__ in _MAKERS else "any")
    if not kwargs.keys().isdisjoint(("schema_generator", "context", "from_attributes")):
        raise Barrier("it validates with options that are not read")
    require_clean(args)
    run.tick(20)
    return found.__func__(cls, *args, **kwargs)
