"""Plain data: values whose methods are known, so that reading them, or calling `get` or `split`, changes nothing.

Framework code runs early on plain data only, since a text put into a prompt may be an object that writes itself out.
Plain data: numbers, texts, the standard containers, arrays, dates, documents, messages, and the user's records that
have fields and no code. An iterator, a queue, a client or a path is not plain; nor is a set of several elements, whose
copy may iterate in another order.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import fractions
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.foreign import (
    BUILTINS,
    is_kind_of,
    is_library_class,
    is_of_library,
    is_one_of,
    is_subtype,
    module_of,
    mro_of,
    namespace_of,
)
from teola_plugin.adapters.reader.records import fields_of, model_slot
from teola_plugin.adapters.reader.values import Barrier as UnreadableClass
from teola_plugin.engines import Completion

MOST = 10_000
"""The number of containers inspected in a value, a bound for recursive containers. Each takes about 1 us."""

_ATOMS = frozenset([
    type(None), bool, int, float, complex, str, bytes, range, Completion, decimal.Decimal, fractions.Fraction,
    uuid.UUID, datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone,
])  # fmt: skip
_LISTS = frozenset([list, tuple, set, frozenset, deque])
_SETS = frozenset([set, frozenset])
_DICTS = frozenset([dict, OrderedDict, Counter])
"""Without defaultdict: reading an item may change the dict."""

_FRAMEWORKS = (
    "langchain_core.documents.", "langchain_core.messages.", "langchain_core.outputs.", "langchain_core.prompt_values",
    "langchain_core.runnables.utils", "llama_index.core.schema",
    "llama_index.core.base.llms.types", "llama_index.core.base.response.schema",
)  # fmt: skip
"""Modules whose classes only hold their arguments."""

_OF_TUPLES = frozenset(["_make"])
"""The method that `namedtuple` writes into a class."""

_NUMPY = frozenset([np.ndarray, *np.sctypeDict.values()])


def is_plain(value: Any) -> bool:
    """Whether the value and its contents are plain data. Calls no code of the value."""
    values = [value]
    for _ in range(MOST):
        if not values:
            return True
        value = values.pop()
        parts = _parts(value, type(value))
        if parts is None:
            return False
        values += [part for part in parts if not _is_atom(type(part))]
    return False


def is_read_safely(value: Any) -> bool:
    """Whether reading the items or elements of the value, if a container, runs no code of the user's."""
    kind = type(value)
    is_container = any(is_subtype(kind, each) for each in _CONTAINERS)
    return not is_container or is_one_of(kind, _CONTAINERS) or is_library_class(kind)


_CONTAINERS = (dict, list, tuple, OrderedDict, Counter, defaultdict)


def _parts(value: Any, kind: type) -> list[Any] | None:
    """Return the values that plain data holds; None if the value is not plain."""
    if type(kind) is type:
        if kind in _ATOMS:
            return []
        if kind in _LISTS:
            return None if kind in _SETS and len(value) > 1 else [*value]
        if kind in _DICTS:
            return [*value, *value.values()]
        if kind in _NUMPY:
            return None if value.dtype.hasobject else []
    try:
        if is_library_class(kind) and module_of(kind).startswith(_FRAMEWORKS):
            return [value._value_] if is_kind_of(value, enum.Enum) else _fields(value)
        facts = facts_of(kind)
        if facts.kind == "enum":
            return None if facts.user_names else [value._value_]
        is_data = facts.kind in ("record", "tuple") and facts.user_names <= _OF_TUPLES
        fields = fields_of(value) if is_data else None
        private = model_slot(value, "__pydantic_private__") if facts.is_model else None
    except UnreadableClass:
        return None
    if fields is None:
        return None
    return [*fields.values(), *(private if type(private) is dict else {}).values(), *_of_class(kind, facts.fields)]


def _of_class(cls: type, fields: tuple[str, ...]) -> list[Any]:
    """Return the class attributes reachable from objects: a template may call such attributes."""
    own = [namespace_of(each) for each in mro_of(cls) if id(each) not in BUILTINS and not is_library_class(each)]
    held = [value for names in own for name, value in names.items() if name[:1] != "_" and name not in fields]
    return [value for value in held if type(value) is not FunctionType or not is_of_library(value)]


def _is_atom(kind: type) -> bool:
    return type(kind) is type and kind in _ATOMS


def on_plain_data(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function restricted to plain data: LookupError for any other argument."""

    def call(*args: Any) -> Any:
        if not all(map(is_plain, args)):
            raise LookupError("an argument is no plain data")
        return function(*args)

    return call


def copied(value: Any) -> Any:
    """Return a copy of plain data that shares no changeable part with `value`."""
    return value if _is_atom(type(value)) else copy.deepcopy(value)


def is_unchanging(value: Any) -> bool:
    """Whether the value cannot be changed in place."""
    return _is_atom(type(value))


def _fields(value: Any) -> list[Any]:
    held = [*value, *value.values()] if is_kind_of(value, dict) else []
    extra = getattr(value, "__pydantic_extra__", None) or {}
    return [*held, *getattr(value, "__dict__", {}).values(), *extra.values()]
