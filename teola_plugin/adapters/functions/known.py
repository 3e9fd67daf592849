"""What counts as a pipeline here: a function, a method, or an object of a plain class of the user's with methods.

Nothing of the user's runs while this is found out.
"""

from __future__ import annotations

import abc
import ast
import builtins
import dis
import inspect
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from teola_plugin.adapters.functions.askers import has_langchain, has_llamaindex
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.calls import compiled
from teola_plugin.adapters.reader.mentions import codes_in, functions_in, mentioned
from teola_plugin.adapters.reader.reach import asks_what_it_is_given, reach_of
from teola_plugin.adapters.reader.values import Barrier
from teola_plugin.adapters.source import node_of

MOST = 1_000
"""Objects that are searched for components."""

_FRAMEWORKS = frozenset({"langchain", "langgraph", "llama_index", "openai", "teola_plugin", "tavily"})
_METAS = (type, abc.ABCMeta)
_BASES = (object, abc.ABC, typing.Generic)
"""Classes of which a subclass is like another of the user's."""

_UNUSUAL = ("__del__", "__init_subclass__", "__getattribute__", "__getattr__", "__setattr__", "__reduce__")
"""Methods of an object which a second object of a subclass would run once more, or in another way."""


def plain_function(pipeline: Any) -> types.FunctionType | None:
    """Return the function behind a function or a method; None for any other object."""
    function = pipeline.__func__ if type(pipeline) is types.MethodType else pipeline
    return function if type(function) is types.FunctionType else None


def knows(pipeline: Any) -> bool:
    """Whether the object is a function, a method or an object whose methods are read."""
    if not (has_langchain() or has_llamaindex()):
        return False
    function = plain_function(pipeline)
    return _is_users(function) if function is not None else _is_plain_object(pipeline)


def _is_users(function: types.FunctionType) -> bool:
    """Whether the function is the user's, and runs to its end when it is called or awaited."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return False
    return not foreign.is_of_library(function) and not foreign.is_standard(function)


def _is_plain_object(value: Any) -> bool:
    """Whether an object has attributes, and only classes of the user's without unusual methods."""
    cls = type(value)
    try:
        if foreign.own_attributes(value) is None or not foreign.has_plain_lookup(cls) or type(cls) not in _METAS:
            return False
        classes = [each for each in foreign.mro_of(cls) if not any(each is base for base in _BASES)]
        if any(foreign.is_library_class(each) or "__slots__" in foreign.namespace_of(each) for each in classes):
            return False
    except Barrier:  # a class that cannot be looked at
        return False
    spaces = [foreign.namespace_of(each) for each in classes]
    return not any(name in space for space in spaces for name in _UNUSUAL) and not any(map(_uses_class, spaces))


def _uses_class(space: Mapping[str, Any]) -> bool:
    """Whether a method uses the object's class, which is another one for the object that the user gets back."""
    nodes = [node_of(each) for each in space.values() if type(each) is types.FunctionType]
    return any(node is None or _looks_at_class(node) for node in nodes)


def _looks_at_class(node: ast.AST) -> bool:
    """Whether a method looks at a class for more than what a subclass of ours has in common with the user's."""
    parts = list(ast.walk(node))
    named = {id(each.value) for each in parts if isinstance(each, ast.Attribute) and each.attr in _IN_COMMON}
    return any(_is_class_of(each) and id(each) not in named for each in parts)


_IN_COMMON = ("__name__", "__qualname__", "__module__", "__doc__")


def _is_class_of(part: ast.AST) -> bool:
    match part:
        case ast.Attribute(attr="__class__") | ast.Call(func=ast.Name(id="type")):
            return True
    return False


def functions_of(pipeline: Any) -> dict[str, types.FunctionType]:
    """Return the functions that are read as they begin, by name: that of a function or method, an object's methods."""
    function = plain_function(pipeline)
    if function is not None:
        return {function.__name__: function} if compiled(function) is not None else {}
    found: dict[str, types.FunctionType] = {}
    for cls in reversed(foreign.mro_of(type(pipeline))):
        for name, each in foreign.namespace_of(cls).items() if cls is not object else ():
            found.pop(name, None)
            is_entry = name == "__call__" or not name.startswith("_")
            if is_entry and type(each) is types.FunctionType and _is_users(each) and compiled(each) is not None:
                found[name] = each
    return found


def may_ask(pipeline: Any, functions: Iterable[types.FunctionType]) -> bool:
    """Whether the functions may make requests, by what they mention and what the object holds."""
    if plain_function(pipeline) is None or type(pipeline) is types.MethodType:
        held = list(held_by([getattr(pipeline, "__self__", pipeline)]))
        inner = [method for each in held for method in _methods_of(each)]
        return any(map(_is_component, held)) or any(map(_mentions_component, [*functions, *inner]))
    return any(map(_may_ask, functions))


def _methods_of(value: Any) -> list[types.FunctionType]:
    """Return the methods of an object of a plain class of the user's."""
    if _is_component(value) or foreign.is_class(value) or not foreign.has_plain_lookup(type(value)):
        return []
    return list(filter(_is_users, foreign.methods_of(type(value))))


def _may_ask(function: types.FunctionType) -> bool:
    """Whether a function may make requests: by what it mentions, or what it is given (`def answer(question, llm)`)."""
    if reach_of(function, lambda value: False).asks or _names_later(function):
        return True
    nodes = [node_of(each) for each in functions_in(function)]
    return any(asks_what_it_is_given(node) for node in nodes if node is not None)


def _names_later(function: types.FunctionType) -> bool:
    """Whether the function names what its module has not set yet, as a decorator sees it."""
    read = [each for code in codes_in(function) for each in dis.get_instructions(code)]
    named = {each.argval for each in read if each.opname == "LOAD_GLOBAL"}
    return any(name not in function.__globals__ and not hasattr(builtins, name) for name in named)


def _mentions_component(function: types.FunctionType) -> bool:
    return any(map(_is_component, held_by(mentioned(function))))


def _is_component(value: Any) -> bool:
    of = value if foreign.is_class(value) else type(value)
    root = foreign.module_of(of).partition(".")[0]
    return root in _FRAMEWORKS or root.startswith("langchain_") or root.startswith("llama_index_")


def held_by(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values, and what containers and the user's own objects among them hold."""
    todo, seen = list(values), set[int]()
    while todo and len(seen) < MOST:
        each = todo.pop()
        if foreign.is_atom(each) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        kind = type(each)
        if foreign.is_one_of(kind, (list, tuple, set, frozenset)):  # a metaclass may define `__eq__`
            todo += each
        elif kind is dict:
            todo += each.values()
        elif not _is_component(each) and not foreign.is_class(each):
            todo += _attributes(each)


def _attributes(value: Any) -> list[Any]:
    try:
        is_users = foreign.has_plain_lookup(type(value)) and not foreign.is_library_class(type(value))
        return list((foreign.own_attributes(value) or {}).values()) if is_users else []
    except Barrier:
        return []
