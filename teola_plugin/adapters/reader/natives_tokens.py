"""Handlers of tiktoken: the encodings, and numbers of tokens.

The tokens of a text depend on the encoding and the text alone. An encoding that this process has not loaded would be
fetched on first use: the framework's run does so.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Sequence
from typing import Any

from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.values import (
    Arguments,
    Barrier,
    Callee,
    Handler,
    Opaque,
    Undecided,
    isinstance_of,
    type_name,
)

_CHARACTERS_PER_TICK = 5
"""Measured: 0.2 to 0.3 us a character."""

_ENCODING = ("encode", "encode_ordinary")


def native_of(function: types.FunctionType) -> Handler | None:
    """Return the handler of a function of tiktoken that returns an encoding."""
    for module, name in (("tiktoken.model", "encoding_for_model"), ("tiktoken.registry", "get_encoding")):
        if _of_module(module, name) is function:
            return _for_model if name == "encoding_for_model" else _by_name
    return None


def _of_module(module: str, name: str) -> Any:
    found = sys.modules.get(module)
    return vars(found).get(name) if type(found) is types.ModuleType else None


def _for_model(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    return run.load(table_of(_text_in(run, args, kwargs, "model_name")))


def _by_name(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    return run.load(_loaded(_text_in(run, args, kwargs, "encoding_name")))


def _text_in(run: Any, args: Arguments, kwargs: dict[str, Any], name: str) -> str:
    given = [*args, *(held for key, held in kwargs.items() if key == name)]
    run.require_known(*given)
    if len(given) != 1 or len(args) + len(kwargs) != 1 or type(given[0]) is not str:
        raise Barrier("it asks for a table of tokens in an unusual way")
    return given[0]


def table_of(model: str) -> Any:
    """Return tiktoken's encoding for a model. Raises: Barrier if the encoding is unknown or not loaded."""
    find = _of_module("tiktoken.model", "encoding_name_for_model")
    try:
        name = find(model)
    except (KeyError, TypeError):
        raise Barrier(f"tiktoken has no table for {model}") from None
    return _loaded(name)


def _loaded(name: str) -> Any:
    loaded = _of_module("tiktoken.registry", "ENCODINGS")
    found = loaded.get(name) if type(loaded) is dict else None
    if not is_table(found):
        raise Barrier("it counts tokens by a table that is not loaded yet")
    return found


def is_table(held: Any) -> bool:
    """Whether an object is an encoding of tiktoken with the package's own methods."""
    cls = _of_module("tiktoken.core", "Encoding")
    if not foreign.is_class(cls) or type(held) is not cls or not _are_published(cls):
        return False
    own = foreign.own_attributes(held)
    return own is not None and own.keys().isdisjoint(_ENCODING)


def _are_published(cls: type) -> bool:
    return all(is_published(foreign.in_mro(cls, name), name, ["tiktoken.core"]) for name in _ENCODING)


def is_published(function: Any, name: str, modules: Sequence[str]) -> bool:
    """Whether a method is the published method of this name in one of the modules."""
    if type(function) is not types.FunctionType or function.__code__.co_name != name:
        return False
    loaded = [sys.modules.get(each) for each in modules]
    return any(type(each) is types.ModuleType and function.__globals__ is vars(each) for each in loaded)


def attribute(table: Any, name: str) -> Callee | None:
    """Return a method of an encoding that only computes."""
    if name not in _ENCODING:
        return None

    def encode(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        if len(args) != 1 or kwargs:
            raise Barrier(f"it calls {name} in an unusual way")
        return tokens(run, table, args[0], name)

    return Callee(encode, name)


def tokens(run: Any, table: Any, text: Any, method: str = "encode") -> Any:
    """Return the tokens of a text. Raises: Barrier, Undecided."""
    if run.is_unknown(text):
        raise Undecided
    if type(text) is not str:
        what = f"a {type_name(type(text))}" if not isinstance_of(text, Opaque) else "an object"
        raise Barrier(f"it counts the tokens of {what}")
    run.tick(1 + len(text) // _CHARACTERS_PER_TICK)
    try:
        return list(_encoded(table, method, text))
    except ValueError as e:  # the text holds a special token
        raise Barrier("it counts the tokens of a text that may not be encoded") from e


@functools.lru_cache(maxsize=64)
def _encoded(table: Any, method: str, text: str) -> tuple[int, ...]:
    """Cache the tokens: a function is read again at each reply, and counts the same texts each time."""
    return tuple(getattr(table, method)(text))
