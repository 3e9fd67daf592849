"""Retrievers that a program makes: compound ones of LangChain's, and objects of the user's classes.

    MultiQueryRetriever.from_llm(retriever, llm)       made by LangChain's own code
    Reranking(vectorstore=store, k=5)                  a class of the user's: made where that runs no code of the user's

Of the user's classes each field is checked by itself, and components are put into their fields as they are. The search
is read like that of any retriever of the user's.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import VectorStore

from teola_plugin.adapters.langchain import models
from teola_plugin.adapters.langchain.reading_parts import is_made_as_published
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.pydantic_schemas import has_no_code, is_plain_default
from teola_plugin.adapters.reader.values import Barrier, Opaque, isinstance_of, shown, type_name

_MAKING = frozenset({
    "__init__", "__new__", "__setattr__", "__getattribute__", "__init_subclass__", "model_post_init", "model_construct",
})  # fmt: skip
_CONFIG = frozenset({"arbitrary_types_allowed", "extra", "protected_namespaces", "title"})
"""Settings of a model without influence on the values of fields."""

_MODEL = frozenset({
    "type", "cls", "schema", "config", "custom_init", "root_model", "post_init", "ref", "metadata",
})  # fmt: skip
_FACTORIES = (list, dict, set)
_COMPONENTS = (Runnable, VectorStore, Embeddings)

_PACKAGES = ("langchain_classic.retrievers.", "langchain.retrievers.")
_STOCK = frozenset({
    "ContextualCompressionRetriever", "EnsembleRetriever", "LLMChainExtractor", "LLMChainFilter", "MergerRetriever",
    "MultiQueryRetriever",
})  # fmt: skip


def is_stock_class(cls: type) -> bool:
    """Whether the class is a compound retriever, or a compressor, of langchain-classic, made as published."""
    return type_name(cls) in _STOCK and is_made_as_published(cls, *_PACKAGES)


def is_users_class(cls: type) -> bool:
    """Whether the class is a retriever of the user's whose objects are made without code of the user's."""
    if not foreign.has_known_classes(cls) or not foreign.is_subtype(cls, BaseRetriever):
        return False
    facts = facts_of(cls)
    if foreign.is_library_class(cls) or foreign.is_abstract(cls) or facts.kind != "component":
        return False
    private, config = (foreign.in_mro(cls, name) for name in ("__private_attributes__", "model_config"))
    is_plain = not facts.user_names & _MAKING and config.keys() <= _CONFIG
    return is_plain and private.keys() == BaseRetriever.__private_attributes__.keys() and _fields(cls) is not None


def asks_often(cls: type) -> bool:
    """Whether objects of the class are made here, and may ask more than once for a query."""
    return is_stock_class(cls) or is_users_class(cls)


def _fields(cls: type) -> dict[str, Any] | None:
    """Return the schemas of the fields by name; None if pydantic may do more than check each field."""
    schema: Any = foreign.namespace_of(cls).get("__pydantic_core_schema__")
    known: dict[str, Any] = {}
    if type(schema) is dict and schema.get("type") == "definitions":
        known = {each.get("ref"): each for each in schema["definitions"]}
        schema = schema["schema"]
    if type(schema) is not dict or schema.get("type") != "model" or not schema.keys() <= _MODEL:
        return None
    inner = schema["schema"]
    if schema["cls"] is not cls or inner.get("type") != "model-fields" or inner.get("computed_fields"):
        return None
    fields = inner["fields"]
    if not all(each.keys() <= {"type", "schema", "metadata"} for each in fields.values()):
        return None
    found = {name: _checked_by(each["schema"], known) for name, each in fields.items()}
    return None if None in found.values() else found


def _checked_by(schema: Any, known: dict[str, Any]) -> Any:
    """Return the schema of a field's values, or the class of the component; None if it runs code."""
    if schema["type"] == "definition-ref":
        schema = known[schema["schema_ref"]]
    if schema["type"] == "default":
        factory = schema.get("default_factory")
        if not is_plain_default(schema.get("default")) or schema.get("validate_default"):
            return None
        if factory is not None and not foreign.is_one_of(factory, _FACTORIES):
            return None
        return _checked_by(schema["schema"], known)
    if has_no_code(schema):
        return schema
    if schema["type"] == "nullable":
        return _checked_by(schema["schema"], known)
    while schema["type"] == "function-after" and _is_of_package(schema["function"]["function"]):
        schema = schema["schema"]  # a component's own validators, after which it is the same object
    cls: Any = schema.get("cls") if schema["type"] in ("model", "is-instance") else None
    is_kept = (schema.get("config") or {}).get("revalidate_instances", "never") == "never"
    return cls if is_kept and foreign.is_class(cls) and foreign.has_known_classes(cls) else None


def _is_of_package(function: Any) -> bool:
    return type(function) is types.FunctionType and models.is_of_packages(function)


def require_fields(cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises: Barrier unless the arguments are all fields that it needs, with values that never change."""
    needed = {name for name, field in foreign.in_mro(cls, "__pydantic_fields__").items() if field.is_required()}
    fields = _fields(cls) or {}
    if args or not needed <= kwargs.keys() <= fields.keys():
        raise Barrier(f"it makes an object of the class {type_name(cls)} in an unusual way")
    for name, value in kwargs.items():
        if not _is_kept(value, fields[name]):
            raise Barrier(f"it hands {shown(value)} to an object of the class {type_name(cls)} as {name}")


def _is_kept(value: Any, wanted: Any) -> bool:
    """Whether the field of a retriever keeps a value as it is."""
    if not isinstance_of(value, Opaque):
        return foreign.is_atom(value) and not foreign.is_class(wanted)
    held = value.held
    if isinstance_of(held, Opaque) or not foreign.has_plain_lookup(type(held)):
        return False
    if value.is_own and not any(foreign.is_kind_of(held, each) for each in _COMPONENTS):
        return False
    if foreign.is_class(wanted):
        return foreign.is_kind_of(held, wanted)
    return "any" in (wanted["type"], wanted.get("schema", wanted)["type"])


def made(cls: Any, **given: Any) -> Any:
    """Return an object of the class. Raises: errors of pydantic."""
    core, fields = sys.modules["pydantic_core"], _fields(cls) or {}
    values = {
        name: value if foreign.is_class(fields[name]) else core.SchemaValidator(fields[name]).validate_python(value)
        for name, value in given.items()
    }
    return cls.model_construct(set(given), **values)


def argument(run: Any, exchange: Any, value: Any) -> Any:
    """Return what the object gets for an argument."""
    return value.held if isinstance_of(value, Opaque) else exchange.out(value)
