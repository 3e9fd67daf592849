"""Class checks: `isinstance`, `issubclass`, `type`, `except` and the class patterns of `match`.

A class may answer by a metaclass or a `__subclasshook__` of the user's. So the answer comes from the MRO, and for
abstract base classes from the registries of `abc`, as in `abc`.
"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import abc
import functools
import sys
import types
import typing
from typing import Any

from teola_plugin.adapters.reader import arrays, foreign
from teola_plugin.adapters.reader.facts import text_accessor
from teola_plugin.adapters.reader.foreign import MISSING, describe, in_mro, is_class, is_subtype, mro_of, namespace_of
from teola_plugin.adapters.reader.values import (
    Barrier,
    Callee,
    Lazy,
    Opaque,
    Pending,
    Stale,
    Undecided,
    Unknown,
    isinstance_of,
)

_UNION = type(typing.Optional[int])  # noqa: UP045
_SPECIAL = type(typing.Mapping)
_SUBCLASSES = type.__dict__["__subclasses__"]
_HOOK = object.__dict__["__subclasshook__"]
_KNOWN = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    functools.partial,
)
"""Types with a lookup of their own whose objects report their class correctly."""

_HELD: dict[str, type] = {"text": str, "texts": list, "list": list, "bool": bool}


def is_instance(run: Any, value: Any, cls_value: Any) -> Any:
    """Return `isinstance(value, cls_value)`. Raises: TypeError, Undecided, Barrier."""
    classes = _classes(run, cls_value)
    if type(value) is Unknown:
        return _of_unknown(run, value, classes)
    if isinstance_of(value, Opaque):
        if isinstance_of(value.held, Opaque):
            return _of_own(value, classes)
        cls = type(value.held)
        if not any(cls is each for each in _KNOWN) and not foreign.has_plain_lookup(cls) and not is_class(value.held):
            raise Barrier(f"it asks for the class of {describe(value)}")
        if not foreign.has_known_classes(cls):
            raise Barrier(f"it asks for the class of {describe(value)}")
    elif type(value) is Lazy:
        raise Barrier("it asks for the class of an iterator")
    else:
        cls = type(value)
    return any(_is_instance_of(run, cls, each) for each in classes)


def _is_instance_of(run: Any, cls: type, of: type) -> bool:
    if type(of) in foreign.TYPED_DICT_METAS:
        raise TypeError("TypedDict does not support instance and class checks")
    return _is_subclass(run, cls, of, 0)


def is_subclass(run: Any, cls_value: Any, of_value: Any) -> Any:
    """Return `issubclass(cls_value, of_value)`."""
    classes = _classes(run, of_value)
    if type(cls_value) is Unknown:
        raise Undecided
    if type(cls_value) is not Opaque or not is_class(cls_value.held):
        raise TypeError("issubclass() arg 1 must be a class")
    if not foreign.has_known_classes(cls_value.held):
        raise Barrier(f"it asks about {describe(cls_value)}, which has a metaclass")
    return any(_is_instance_of(run, cls_value.held, each) for each in classes)


def type_of(run: Any, value: Any) -> Any:
    """Return `type(value)`. A text may be of LangChain's class of texts, which the reader takes for a `str`."""
    if text_accessor() is not None and (type(value) is str or (type(value) is Unknown and value.holds == "text")):
        return run.unknown(value, is_safe=True)
    if type(value) is Unknown:
        held = _HELD.get(value.holds) if type(value.holds) is str else None
        return run.load(held) if held is not None else run.unknown(value, is_safe=True)
    if isinstance_of(value, Opaque):
        if isinstance_of(value.held, Opaque) or isinstance_of(value.held, Stale):
            raise Barrier("it asks for the type of a function or coroutine")
        return run.load(type(value.held))
    if type(value) is Lazy:
        raise Barrier("it asks for the type of an iterator")
    return run.load(type(value))


# --- classes that are asked for --------------------------------------------------------------------------------------


def _classes(run: Any, value: Any) -> list[type]:
    """Return the classes that a class, a tuple or a union of classes stands for."""
    if type(value) is tuple:
        return [each for part in value for each in _classes(run, part)]
    if type(value) is Unknown:
        raise Undecided
    if value is None:
        raise TypeError("arg 2 must be a type, a tuple of types, or a union")
    if type(value) is not Opaque:
        if isinstance_of(value, Opaque):
            raise Barrier("it asks whether something is of what is no class")
        raise TypeError("arg 2 must be a type, a tuple of types, or a union")
    return _held_classes(value.held)


def _held_classes(held: Any) -> list[type]:
    kind = type(held)
    if kind is types.UnionType or kind is _UNION:
        if kind is _UNION and held.__origin__ is not typing.Union:
            raise TypeError("subscripted generics cannot be used with class and instance checks")
        return [each for part in held.__args__ for each in _held_classes(part)]
    if kind is _SPECIAL:
        return [held.__origin__]
    if kind is types.GenericAlias:
        raise TypeError("isinstance() argument 2 cannot be a parameterized generic")
    if not is_class(held):
        raise Barrier(f"it asks whether something is of {describe(held)}")
    if not foreign.has_known_classes(held):
        raise Barrier(f"it asks whether something is of {describe(held)}, which decides that itself")
    return [held]


def _is_like_abc(cls: type) -> bool:
    return foreign.has_known_classes(cls) and in_mro(cls, "_is_protocol") is False


# --- answers ---------------------------------------------------------------------------------------------------------


def _is_subclass(run: Any, cls: type, of: type, depth: int) -> bool:
    """Whether `issubclass` holds, found without running user code. Raises: Barrier."""
    run.tick()
    if is_subtype(cls, of):
        return True
    is_protocol = type(of) in foreign.PROTOCOL_METAS if foreign.has_known_classes(of) else True
    if (is_protocol and not _is_like_abc(of)) or depth > 20:
        raise Barrier(f"it asks whether something is of {describe(of)}, which decides that itself")
    if in_mro(type(of), "__subclasscheck__") is type.__dict__["__subclasscheck__"]:
        return False
    return _by_abc(run, cls, of, depth)


def _by_abc(run: Any, cls: type, of: type, depth: int) -> bool:
    """Return the result of `ABCMeta.__subclasscheck__`, without caching."""
    registry, cache, negative, version = _abc._get_dump(of)
    if any(each() is cls for each in cache):
        return True
    if version == abc.get_cache_token() and any(each() is cls for each in negative):
        return False
    hook = in_mro(of, "__subclasshook__")
    if hook is not _HOOK:
        answer = _hooked(cls, of, hook)
        if answer is not NotImplemented:
            return answer is True
    for each in registry:
        registered = each()
        if registered is not None and _is_subclass(run, cls, registered, depth + 1):
            return True
    return any(_is_subclass(run, cls, each, depth + 1) for each in _SUBCLASSES(of))


def _hooked(cls: type, of: type, hook: Any) -> Any:
    """Return the answer of a hook of the standard library, which looks for methods in the MRO."""
    function = hook.__func__ if type(hook) is classmethod else None
    if type(function) is not types.FunctionType or not _is_of_collections(function):
        raise Barrier(f"it asks whether something is of {describe(of)}, which decides that itself")
    if not foreign.has_known_classes(cls):
        raise Barrier(f"it asks for the class of {describe(cls)}")
    for each in mro_of(cls):
        namespace_of(each)  # raises Barrier if lookups could run code
    return function(of, cls)


def _is_of_collections(function: types.FunctionType) -> bool:
    module = sys.modules.get("_collections_abc")
    return (type(module) is types.ModuleType and function.__globals__ is module.__dict__) or (
        foreign.is_of_library(function)
    )


def _of_unknown(run: Any, value: Unknown, classes: list[type]) -> Any:
    answers = [_holds(run, value.holds, each) for each in classes]
    if any(answer is True for answer in answers):
        return True
    if all(answer is False for answer in answers):
        return False
    return run.unknown(value, holds="bool", is_safe=True)


def _holds(run: Any, holds: Any, of: type) -> bool | None:
    """Whether values of the kind `holds` are instances of a class; None if unknown."""
    if type(of) in foreign.TYPED_DICT_METAS:
        raise TypeError("TypedDict does not support instance and class checks")
    if type(holds) is str and (held := _HELD.get(holds) or arrays.class_of(holds)) is not None:
        return _is_subclass(run, held, of, 0)
    if holds == "message" and type(holds) is str:
        module = sys.modules.get("langchain_core.messages.ai")
        holds = None if module is None else module.__dict__.get("AIMessage")
    if is_class(holds):
        return True if is_subtype(holds, of) else None
    return None


def _of_own(value: Any, classes: list[type]) -> bool:
    """Whether a function or coroutine of the program itself is an instance of one of the classes."""
    kind = types.CoroutineType if type(value) is Pending else types.FunctionType
    if any(each is object or each is kind for each in classes):
        return True
    if type(value) is not Pending and isinstance_of(value, Callee):
        if all(id(each) in foreign.BUILTINS for each in classes):
            return False
    elif all(id(each) in foreign.BUILTINS for each in classes):
        return False
    raise Barrier("it asks for the class of a function or coroutine")


# --- exceptions ------------------------------------------------------------------------------------------------------


def is_exception(value: Any) -> bool:
    """Whether the value can be raised."""
    return foreign.is_kind_of(value, BaseException)


def is_caught(run: Any, error: BaseException, kinds: Any) -> bool:
    """Whether `except kinds` catches an exception."""
    if type(kinds) is tuple:
        return any(is_caught(run, error, each) for each in kinds)
    if type(kinds) is not Opaque or not is_class(kinds.held):
        raise Barrier("it catches what is no class of exceptions")
    if not is_subtype(kinds.held, BaseException):
        raise TypeError("catching classes that do not inherit from BaseException is not allowed")
    return is_subtype(type(error), kinds.held)


def takes_each(kinds: Any, errors: set[type[BaseException]]) -> bool:
    """Whether `except kinds` catches all of the errors and of their subclasses."""
    if type(kinds) is tuple:
        return all(any(takes_each(each, {error}) for each in kinds) for error in errors)
    if type(kinds) is not Opaque or not is_class(kinds.held):
        return False
    return all(is_subtype(error, kinds.held) for error in errors)


# --- match -----------------------------------------------------------------------------------------------------------

_SELF = frozenset(map(id, (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)))


def match_places(run: Any, cls_value: Any, count: int) -> tuple[str, ...] | None:
    """Return the attributes for positional patterns of a class; None if the pattern is for the value itself."""
    if type(cls_value) is not Opaque or not is_class(cls_value.held):
        raise Barrier("it matches what is no class")
    cls = cls_value.held
    places = in_mro(cls, "__match_args__")
    if places is MISSING:
        if any(id(each) in _SELF for each in mro_of(cls)):
            if count != 1:
                raise TypeError("the class accepts 1 positional sub-pattern")
            return None
        places = ()
    if type(places) is not tuple or not all(type(name) is str for name in places):
        raise Barrier(f"it matches {describe(cls_value)}, which has unusual __match_args__")
    if count > len(places):
        raise TypeError(f"the class accepts {len(places)} positional sub-patterns")
    return places[:count]
