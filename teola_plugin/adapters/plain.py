"""Plain data: values whose methods are known, so that reading them, or calling `get` or `split`, changes nothing.

A function is proven pure from its source, where `x["http"].get(url)` and `x["row"].get(key)` look the same. So what
was proven runs ahead on plain data only: numbers, texts, the standard containers, arrays, dates, documents, messages
and records of the user's that have fields and no code. An iterator, a queue, a client or a path is none of these.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import types
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from teola_plugin.engines import Completion

MOST = 10_000
"""Containers that are looked at in one value: a bound for those that hold themselves. One takes about 1 us."""

_ATOMS = frozenset([
    type(None), bool, int, float, complex, str, bytes, range, Completion, decimal.Decimal, fractions.Fraction,
    uuid.UUID, datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone,
])  # fmt: skip
_LISTS = frozenset([list, tuple, set, frozenset, deque])
_DICTS = frozenset([dict, OrderedDict, Counter])
"""Not defaultdict: to read one may change it."""

_FRAMEWORKS = (
    "langchain_core.documents.", "langchain_core.messages.", "langchain_core.outputs.", "langchain_core.prompt_values",
    "langchain_core.runnables.utils", "llama_index.core.schema",
    "llama_index.core.base.llms.types", "llama_index.core.base.response.schema",
)  # fmt: skip
"""Modules whose classes only hold what they are given."""

_LIBRARIES = frozenset(["builtins", "abc", "collections", "_collections", "enum", "pydantic", "typing"])
_COMPILED = frozenset(["<string>", dataclasses.__file__])
"""What a class without code of its author's is made of: things of these packages, and functions from these files."""
_HINTS = ("__annotate__", "__annotate_func__")
"""What Python 3.14 compiles annotations to."""


def is_plain(value: Any) -> bool:
    """The value, and all that it holds, is plain data."""
    values = [value]
    for _ in range(MOST):
        if not values:
            return True
        value = values.pop()
        kind: type = type(value)
        if kind in _ATOMS:
            continue
        if kind in _LISTS:
            parts = [*value]
        elif kind in _DICTS:
            parts = [*value, *value.values()]
        elif isinstance(value, np.ndarray | np.generic):
            if kind.__module__ != "numpy" or value.dtype.hasobject:
                return False
            continue
        elif kind.__module__.startswith(_FRAMEWORKS) or _is_record(kind):
            parts = _fields(value)
        else:
            return False
        values += [part for part in parts if type(part) not in _ATOMS]
    return False


def on_plain_data(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which raises LookupError for anything but plain data."""

    def call(*args: Any) -> Any:
        if not all(map(is_plain, args)):
            raise LookupError("an argument is no plain data")
        return function(*args)

    return call


def copied(value: Any) -> Any:
    """Plain data that shares nothing with `value` that can be changed."""
    return value if type(value) in _ATOMS else copy.deepcopy(value)


def is_unchanging(value: Any) -> bool:
    """Whether nobody can change the value in place."""
    return type(value) in _ATOMS


def on_own_copies(function: Callable[..., Any]) -> Callable[..., Any]:
    """The user's function on copies of plain data, so that what it changes in place is seen by nobody else.

    Arguments that share an object share its copy. Raises LookupError, as `on_plain_data`.
    """
    return on_plain_data(lambda *args: function(*copy.deepcopy(args)))


def has_own_code(cls: type) -> bool:
    """Its author wrote something that runs when it is made or used: a method, a property or another descriptor."""
    own = [vars(c) for c in cls.__mro__ if not _is_of_library(c)]
    return any(_runs(member) for members in own for name, member in members.items() if name not in _HINTS)


@lru_cache(maxsize=256)
def _is_record(cls: type) -> bool:
    if issubclass(cls, tuple):
        return hasattr(cls, "_fields") and not has_own_code(cls)
    is_kind = issubclass(cls, enum.Enum) or dataclasses.is_dataclass(cls) or hasattr(cls, "__pydantic_fields__")
    return is_kind and cls.__dictoffset__ != 0 and not has_own_code(cls)


def _fields(value: Any) -> list[Any]:
    if isinstance(value, enum.Enum):
        return [value.value]
    if isinstance(value, tuple):
        return [*value]
    held = dict(value) if isinstance(value, dict) else {}
    extra = getattr(value, "__pydantic_extra__", None) or {}
    return [*held, *held.values(), *getattr(value, "__dict__", {}).values(), *extra.values()]


def _runs(member: Any) -> bool:
    match member:
        case staticmethod() | classmethod():
            return _runs(member.__func__)
        case types.FunctionType():
            return member.__code__.co_filename not in _COMPILED and not _is_of_library(member)
        case types.BuiltinFunctionType():
            return not isinstance(member.__self__, type)  # `object.__new__`, which an enum keeps
        case property() | types.MethodType():
            return True
        case _:
            is_used = callable(member) or hasattr(type(member), "__get__")
            return is_used and not isinstance(member, type) and not _is_of_library(type(member))


def _is_of_library(thing: Any) -> bool:
    return (thing.__module__ or "").split(".")[0] in _LIBRARIES
