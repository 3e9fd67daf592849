"""Handlers of functions of LangChain and LangGraph that only compute; looked up in imported modules."""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

from teola_plugin.adapters.reader import chat, classes
from teola_plugin.adapters.reader.calling import call, callback
from teola_plugin.adapters.reader.exchange import Exchange
from teola_plugin.adapters.reader.table import kind_of, known, unknowns
from teola_plugin.adapters.reader.values import (
    Arguments,
    Barrier,
    Handler,
    Opaque,
    Undecided,
    Unknown,
    is_random_id,
    isinstance_of,
    unknown_id,
)

_GOOD = (str, int, bool, float, type(None))


def native_of(function: types.FunctionType) -> Handler | None:
    """Return the handler of a function of the module itself; None for functions that a user has put there."""
    for (module_name, name), make in _FUNCTIONS.items():
        module = sys.modules.get(module_name)
        if module is None or type(module) is not types.ModuleType:
            continue
        own = vars(module)
        if own.get(name) is function and function.__globals__ is own:
            handler: Handler = make(function)
            return handler
    return None


def _reads(function: Any) -> Handler:
    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        known(run, *args)
        exchange = Exchange(run)
        given, named = exchange.out(list(args)), exchange.out(dict(kwargs))
        return exchange.back(function(*given, **named))

    return handle


def _buffer_string(function: Any) -> Handler:
    read = _reads(function)

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        found = [each for each in unknowns(run, *args, *kwargs.values()) if not is_random_id(each)]
        if found and all(kind_of(each) == "message" for each in found):
            return run.unknown(*found, holds="text", is_safe=True)
        return read(run, args, kwargs)

    return handle


def _format_document(function: Any) -> Handler:
    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        if len(args) != 2 or kwargs or not isinstance_of(args[1], Opaque):
            raise Barrier("it calls format_document() in an unusual way")
        document, prompt = args
        known(run, document)
        fields = {"page_content": classes.attribute(run, document, "page_content")}
        metadata = classes.attribute(run, document, "metadata")
        known(run, metadata)
        fields.update(metadata)
        wanted = classes.attribute(run, prompt, "input_variables")
        run.require_known(wanted)
        if any(name not in fields for name in wanted):
            raise ValueError("the document misses metadata variables")
        return call(run, classes.attribute(run, prompt, "format"), (), {name: fields[name] for name in wanted})

    return handle


def _trim_messages(function: Any) -> Handler:
    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        named = dict(kwargs)
        counter = named.pop("token_counter", None)
        if len(args) != 1 or not all(type(each) in (*_GOOD, tuple, list) for each in named.values()):
            raise Barrier("it calls trim_messages() in an unusual way")
        known(run, *args)
        exchange = Exchange(run)
        given, named = exchange.out(list(args)), exchange.out(named)
        if isinstance_of(counter, Opaque):
            if counter.held is not len and type(counter.held) is not types.FunctionType:
                raise Barrier("it counts tokens by a model")
            count = callback(run, counter)
            counter = len if counter.held is len else lambda messages: count(exchange.back(messages))
        elif type(counter) is not str:
            raise Undecided
        return exchange.back(function(*given, token_counter=counter, **named))

    return handle


def _add_messages(function: Any) -> Handler:
    """Handle `add_messages`: messages without an id get a random id, unknown before the framework's run."""

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        if len(args) != 2 or kwargs:
            raise Barrier("it calls add_messages() in an unusual way")
        known(run, *args)
        left, right = (_messages(run, each) for each in args)
        for message in [*left, *right]:
            if type(message) is not Unknown and object.__getattribute__(message, "__dict__").get("id") is None:
                classes.set_attribute(run, message, "id", unknown_id())
        return _merged(run, left, right)

    return handle


def _messages(run: Any, value: Any) -> list[Any]:
    """Convert a value to messages as the framework does."""
    given = value if type(value) is list else [value]
    made = []
    for each in given:
        if type(each) is Unknown:
            if kind_of(each) != "message":
                raise Undecided
            made.append(each)
            continue
        if chat.is_message(run, each):
            made.append(each)
            continue
        if chat.is_pair(run, each):
            made.append(chat.message_of(run, each))
            continue
        Exchange(run).out(each)  # known, except for the id
        made += _coerced(each)
    return made


def _coerced(value: Any) -> list[Any]:
    kinds = sys.modules["langchain_core.messages"]
    mro = type.__dict__["__mro__"].__get__(type(value))
    if kinds.BaseMessage in mro and kinds.BaseMessageChunk not in mro:
        return [value]
    return [kinds.message_chunk_to_message(each) for each in kinds.convert_to_messages([value])]


def _id_of(message: Any) -> Any:
    if type(message) is Unknown:
        return ("of", id(message))
    own = object.__getattribute__(message, "__dict__").get("id")
    return ("random", id(own)) if is_random_id(own) else own


def _is_removal(message: Any) -> bool:
    return type(message) is sys.modules["langchain_core.messages"].RemoveMessage


def _merged(run: Any, left: list[Any], right: list[Any]) -> list[Any]:
    all_removed = [at for at, each in enumerate(right) if _is_removal(each) and each.id == "__remove_all__"]
    if all_removed:
        return right[all_removed[-1] + 1 :]
    merged = left.copy()
    places = {_id_of(each): at for at, each in enumerate(merged)}
    removed = set()
    for each in right:
        run.tick()
        key = _id_of(each)
        at = places.get(key)
        if at is not None and _is_removal(each):
            removed.add(key)
        elif at is not None:
            removed.discard(key)
            merged[at] = each
        elif _is_removal(each):
            raise ValueError("it deletes a message that does not exist")
        else:
            places[key] = len(merged)
            merged.append(each)
    return [each for each in merged if _id_of(each) not in removed] if removed else merged


def _field(function: Any) -> Handler:
    """Handle `pydantic.Field` of plain values."""
    known_names = inspect.signature(function).parameters.keys() - {"extra"}

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        named = dict(kwargs)
        if not named.keys() <= known_names:  # pydantic warns
            raise Barrier("it makes a field with arguments that pydantic does not know")
        factory = named.pop("default_factory", None)
        if factory is not None:
            if not any(isinstance_of(factory, Opaque) and factory.held is each for each in (list, dict, set, str, int)):
                raise Barrier("it makes a field with a factory of its own")
            factory = factory.held
        run.require_known(*args, *named.values())
        if not all(type(each) in (*_GOOD, list, dict, type(Ellipsis)) for each in (*args, *named.values())):
            raise Barrier("it makes a field in an unusual way")
        exchange = Exchange(run)
        given, named = exchange.out(list(args)), exchange.out(named)
        return Opaque(
            function(*given, **named, **({} if factory is None else {"default_factory": factory})), is_own=True
        )

    return handle


_FUNCTIONS: dict[tuple[str, str], Any] = {
    ("pydantic.fields", "Field"): _field,
    ("langchain_core.messages.utils", "get_buffer_string"): _buffer_string,
    ("langchain_core.messages.utils", "convert_to_messages"): _reads,
    ("langchain_core.messages.utils", "trim_messages"): _trim_messages,
    ("langchain_core.prompts.base", "format_document"): _format_document,
    ("langgraph.graph.message", "add_messages"): _add_messages,
}
