"""LangChain messages with an unknown text: converting them to a chat cannot raise."""

from __future__ import annotations

import sys
from typing import Any

from teola_plugin.adapters.reader import foreign, records
from teola_plugin.adapters.reader.facts import facts_of, is_stock_record_class
from teola_plugin.adapters.reader.values import Undecided, Unknown, is_random_id

_ROLES = foreign.words("system human user ai assistant")


def is_chat(run: Any, value: Any) -> bool:
    """Whether a value certainly converts to a list of messages, whatever the unknown parts."""
    kind = type(value)
    if kind is not list and kind is not tuple:
        return False
    return not run.is_unknown(value) and all(is_message(run, each) or is_pair(run, each) for each in value)


def is_message(run: Any, value: Any) -> bool:
    """Whether a value is a message with at most text, name and a random id unknown."""
    if type(value) is Unknown:
        return bool(value.holds == "message")
    cls = type(value)
    if not is_message_class(cls):
        return False
    own = object.__getattribute__(value, "__dict__")
    return all(_is_fine(run, name, held) for name, held in own.items())


def is_message_class(cls: type) -> bool:
    """Whether a class is a message class of LangChain without user code; chunks are excluded."""
    kinds = sys.modules.get("langchain_core.messages")
    if kinds is None or not is_stock_record_class(cls) or facts_of(cls).user_names:
        return False
    own = vars(kinds)
    return foreign.is_subtype(cls, own["BaseMessage"]) and not foreign.is_subtype(cls, own["BaseMessageChunk"])


def _is_fine(run: Any, name: str, held: Any) -> bool:
    if name in ("content", "name") and type(held) is Unknown:
        return bool(held.holds == "text")
    if name == "id" and is_random_id(held):
        return True
    try:
        run.require_known(held)
    except Undecided:
        return False
    return True


def is_pair(run: Any, value: Any) -> bool:
    """Whether a value is `(role, text)` or `{"role": role, "content": text}`, or a text."""
    if _is_text(value):
        return True
    if type(value) is tuple and len(value) == 2:
        role, text = value
    elif type(value) is dict and value.keys() == {"role", "content"} and not run.is_unknown(value):
        role, text = value["role"], value["content"]
    else:
        return False
    return type(role) is str and role in _ROLES and _is_text(text)


def _is_text(value: Any) -> bool:
    return type(value) is str or (type(value) is Unknown and value.holds == "text")


def message_of(run: Any, value: Any) -> Any:
    """Return the message that the framework makes of a value accepted by `is_pair`."""
    convert = vars(sys.modules["langchain_core.messages"])["convert_to_messages"]
    if _is_text(value):
        role, text = "human", value
    else:
        role, text = value if type(value) is tuple else (value["role"], value["content"])
    (made,) = convert([(role, "")])
    if not records.is_record(made):
        raise Undecided
    object.__getattribute__(made, "__dict__")["content"] = text
    return made
