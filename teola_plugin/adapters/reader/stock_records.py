"""Objects of the frameworks' data classes, as their constructors make them.

A constructor runs on known values only. Some fields are known to keep any text unchanged: there the constructor runs
with a placeholder, which the unknown value then replaces.
"""

from __future__ import annotations

from typing import Any

from teola_plugin.adapters.reader import foreign, records
from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.foreign import describe, in_mro
from teola_plugin.adapters.reader.values import Barrier, Opaque, Undecided, Unknown, is_random_id, isinstance_of

_CARRYING = frozenset(["Send", "Command", "Overwrite"])
"""Classes of LangGraph that keep arguments unchanged."""

_FILLED: dict[str, dict[str, Any]] = {
    "HumanMessage": {"content": "", "name": "x"},
    "AIMessage": {"content": "", "name": "x"},
    "SystemMessage": {"content": "", "name": "x"},
    "ToolMessage": {"content": "", "tool_call_id": "", "name": "x"},
    "FunctionMessage": {"content": "", "name": "x"},
    "ChatMessage": {"content": "", "role": "x"},
    "Document": {"page_content": ""},
    "TextNode": {"text": ""},
    "NodeWithScore": {"score": 0.5},
}
"""Fields that keep values unchanged if the value is of the placeholder's kind. Messages keep a random `id` as well."""

_FIRST = {"Document": "page_content"}
_COPIED = {"Document": "metadata"}
_MAKING = frozenset(["__init__", "__post_init__", "model_post_init"])


def stock_record(run: Any, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of calling a data class of a framework. Raises: errors of the constructor, Barrier."""
    facts = facts_of(cls)
    name = foreign.name_of_class(cls)
    if facts.user_names & _MAKING or type(in_mro(cls, "__new__")) is not type(object.__new__):
        raise Barrier(f"it makes an object of the class {name}, which was changed")
    if name in _CARRYING and foreign.module_of(cls) == "langgraph.types":
        if kwargs.get("timeout") is not None:
            raise Barrier(f"it makes a {name} with a timeout")
        return cls(*args, **kwargs)
    if not facts.is_model:
        return _made(run, cls, args, kwargs)
    if foreign.module_of(cls).startswith("llama_index.") and name in ("Document", "ChatMessage", "ImageDocument"):
        content = kwargs.get("content")
        if name == "ChatMessage" and type(content) is Unknown and content.holds == "text":
            made = _made(run, cls, args, {**kwargs, "content": "x"})
            if type(made) is not Unknown:  # a message of one text
                vars(made.blocks[0])["text"] = content
            return made
        return _with_id(run, cls, _made(run, cls, args, kwargs), kwargs)
    return _with_id(run, cls, _filled(run, cls, name, args, kwargs), kwargs)


def _made(run: Any, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        run.require_known(*args, *kwargs.values())
    except Undecided:
        found = [each for each in (*args, *kwargs.values()) if type(each) is Unknown]
        return run.unknown(*(found or [Unknown()]), holds=cls)
    run.tick(10)
    return cls(*args, **kwargs)


def _filled(run: Any, cls: type, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    fillable = _FILLED.get(name, {})
    named = dict(kwargs)
    if len(args) == 1 and fillable:
        first = _FIRST.get(name, "content")
        if first in fillable and first not in named:
            named, args = {first: args[0], **named}, ()
    later: dict[str, Any] = {}
    for field, value in named.items():
        replaced = _replaced(run, name, field, value, fillable)
        if replaced is not None:
            named[field], later[field] = replaced
    made = _made(run, cls, args, named)
    if type(made) is not Unknown:
        object.__getattribute__(made, "__dict__").update(later)
    return made


def _replaced(run: Any, name: str, field: str, value: Any, fillable: dict[str, Any]) -> tuple[Any, Any] | None:
    """Return the placeholder for an unknown argument, and the value of the field; None for any other argument."""
    if is_random_id(value) and field == "id" and "content" in fillable:
        return "x", value
    if type(value) is Unknown and field in fillable:
        placeholder = fillable[field]
        if type(placeholder) is str and value.holds == "text":
            return placeholder, value
        holds = {str: "text", float: "number"}[type(placeholder)] if field != "content" else "any"
        return placeholder, run.unknown(value, holds=holds)
    if field == "node" and name == "NodeWithScore" and records.is_record(value) and run.is_unknown(value) is False:
        return None
    if run.is_unknown(value) or _is_known(run, value):
        return None
    if field == _COPIED.get(name) and type(value) is dict and all(type(key) is str for key in value):
        return {}, dict(value)
    if field == "content" and field in fillable and type(value) is list and all(map(_is_block, value)):
        return "", [dict(each) if type(each) is dict else each for each in value]
    return None


def _is_block(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str for key in value) and not any(isinstance_of(v, Opaque) for v in value.values())
    return type(value) is str or (type(value) is Unknown and value.holds == "text")


def _is_known(run: Any, value: Any) -> bool:
    try:
        run.require_known(value)
    except Undecided:
        return False
    return True


def _with_id(run: Any, cls: type, made: Any, kwargs: dict[str, Any]) -> Any:
    """Give nodes of LlamaIndex without an id a random, unknown id."""
    if type(made) is Unknown or "id_" not in facts_of(cls).fields or not foreign.module_of(cls).startswith("llama_"):
        return made
    if kwargs.keys().isdisjoint(("id_", "doc_id", "node_id")):
        own = foreign.own_attributes(made)
        if own is None:
            raise Barrier(f"it makes an object of {describe(cls)}")
        own["id_"] = run.unknown(holds="text", is_safe=True)
    return made
