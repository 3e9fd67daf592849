"""Keys of values: equal only for values which no engine could tell apart.

    value_key({"stop": ["\\n"]}) == value_key({"stop": ["\\n"]})      also between two objects
    value_key([1]) != value_key((1,)) != value_key([True])            types differ, as do 0.0 and -0.0
    value_key({"a": 1, "b": 2}) != value_key({"b": 2, "a": 1})        so does the order of keys
    value_key(object()) != value_key(object())                        not even for the same object

A key is a snapshot: later changes of the object do not change the key. Where a key is kept, the work is done on a
`snapshot` of the object, so key and work agree.

A key holds the exact type of each part: floats by bits, arrays by type, shape and bytes, mappings and sets in order,
objects of pydantic and dataclasses by class and contents, classes and functions by identity, kept alive. All other
objects are not comparable, nor are sets whose copies iterate in a different order, nor are values with too much depth
or size: the key is an `Incomparable`, equal to no other key. A key finer than necessary costs time, a coarser key gives
a wrong answer.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import re
import struct
import sys
import types
import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from teola_plugin.engines import Foreign

MAX_DEPTH = 100
"""Largest nesting of containers. JSON schemas of real programs nest some ten deep."""

MAX_PARTS = 250_000
"""Largest number of parts of one value, a container counting for `CONTAINER_PARTS`. Lists which hold one list twice,
which holds another twice, and so on, have too many parts to visit."""

CONTAINER_PARTS = 10

UNSENT_FIELDS = frozenset({"callbacks", "callback_manager"})
"""Fields of a model which observe a call and take no part in it."""

_HEAP_TYPE = 1 << 9
"""Flag of classes made while a program runs, as all classes written in Python are."""

Telling = Callable[[Any, "_Teller"], Any]


class Incomparable:
    """The key of a value without exact key: equal to no other key."""

    __slots__ = ()


class Same:
    """Part of a key: one object, kept alive and compared by identity, whatever `__eq__` says."""

    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return type(other) is Same and other.held is self.held

    def __hash__(self) -> int:
        return id(self.held)

    def __repr__(self) -> str:
        return f"<{type(self.held).__name__} at {id(self.held):#x}>"


class _Secret:
    """Part of a key: compares by contents, and does not show them."""

    __slots__ = ("_held",)

    def __init__(self, held: Any) -> None:
        self._held = held

    def __eq__(self, other: object) -> bool:
        return type(other) is _Secret and bool(other._held == self._held)

    def __hash__(self) -> int:
        return hash(self._held)

    def __repr__(self) -> str:
        return "<secret>"


class _Untold(Exception):
    """A part of the value has no exact key."""


# --- keys ------------------------------------------------------------------------------------------------------------


def value_key(value: Any, *, without: tuple[type, str] | None = None) -> Hashable:
    """Return a hashable key, equal for indistinguishable values. Never raises.

    `without`: a pydantic class, and a field of the class to leave out.

    >>> value_key({"b": [1, 2.0]}) == value_key({"b": [1, 2.0]}), value_key({"b": [1, 2.0]}) == value_key({"b": [1, 2]})
    (True, False)
    """
    kind = type(value)
    if kind is str or kind is int or value is None:
        return value  # type: ignore[no-any-return]
    return _key(value, _Teller(without))


Other = Callable[[Any, Callable[[Any], Any]], Any]
"""A function which makes the key of an incomparable object of a configuration, given a function for keys of parts."""


def configuration_key(model: Any, other: Other | None = None) -> Hashable:
    """Return the key of all user settings of a model: the fields, without those which only observe calls. Never raises.

    An incomparable field (a client, a lock) counts by identity, or by the result of `other`. Private attributes do not
    count: models keep clients and counters there. A field changed by a call therefore makes each call unlike the call
    before.
    """
    return _key(model, _Teller(other=other or _as_itself))


def _as_itself(value: Any, tell: Callable[[Any], Any]) -> Any:
    return Same(value)


def is_comparable(key: Hashable) -> bool:
    """Whether another request may have the same key."""
    return type(key) is not Incomparable


def _key(value: Any, teller: _Teller) -> Hashable:
    try:
        return teller.tell(value)  # type: ignore[no-any-return]
    except Exception:  # around objects of the user's, which may be in the midst of a change
        return Incomparable()


class _Teller:
    """Makes one key: see `value_key` and `configuration_key`."""

    __slots__ = ("_depth", "_left", "other", "without")

    def __init__(self, without: tuple[type, str] | None = None, *, other: Other | None = None) -> None:
        self.without = without
        self._depth = MAX_DEPTH
        self._left = MAX_PARTS
        self.other = other

    def tell(self, value: Any) -> Any:
        """Return the key of a value. Raises: _Untold, and errors of the value's own code."""
        kind = type(value)
        if kind is str or kind is int or value is None:
            return value
        tell = _TELLINGS.get(kind) or _telling_of(kind)
        if tell is not None:
            return tell(value, self)
        if self.other is not None:
            return self.other(value, self.tell)
        raise _Untold

    def all(self, values: Iterable[Any], count: int) -> list[Any]:
        """Return the keys of `count` values one level deeper."""
        self._depth -= 1
        self._left -= count + CONTAINER_PARTS
        if self._depth < 0 or self._left < 0:
            raise _Untold
        tell = self.tell
        told = [each if type(each) is str else tell(each) for each in values]
        self._depth += 1
        return told

    def items(self, pairs: Mapping[Any, Any]) -> tuple[Any, ...]:
        """Return the keys of the keys and values of an exact dict."""
        return (*self.all(pairs.keys(), len(pairs)), *self.all(pairs.values(), len(pairs)))


# --- exact types -----------------------------------------------------------------------------------------------------

_bits = struct.Struct("<d").pack


def _float(value: float, teller: _Teller) -> Any:
    return float, _bits(value)


def _itself(value: Any, teller: _Teller) -> Any:
    return type(value), value


def _bytearray(value: bytearray, teller: _Teller) -> Any:
    return bytearray, bytes(value)


def _sequence(value: Any, teller: _Teller) -> Any:
    return (type(value), *teller.all(value, len(value)))


def _set(value: Any, teller: _Teller) -> Any:
    return (type(value), *teller.all(_in_order(type(value), value), len(value)))


def _in_order(kind: type[set[Any]] | type[frozenset[Any]], items: Any) -> list[Any]:
    """Return the items of a set, if copies of the set iterate in the same order. Raises: _Untold.

    Copies may differ where hashes collide or depend on identity: the order is then the order of insertion.
    """
    held = list(kind.__iter__(items))
    copies = copy.deepcopy(held)
    if list(map(hash, held)) != list(map(hash, copies)) or list(map(id, kind(copies))) != list(map(id, copies)):
        raise _Untold
    return held


def _dict(value: Any, teller: _Teller) -> Any:
    return type(value), teller.items(value)


def _defaultdict(value: defaultdict[Any, Any], teller: _Teller) -> Any:
    return defaultdict, teller.tell(value.default_factory), teller.items(value)


def _partial(value: functools.partial[Any], teller: _Teller) -> Any:
    return (functools.partial, *teller.all((value.func, value.args, value.keywords, vars(value)), 4))


def _the_same(value: Any, teller: _Teller) -> Any:
    return Same(value)


def _foreign(value: Foreign, teller: _Teller) -> Any:
    """Return the key given by the maker of the foreign call."""
    if type(value.key) is Incomparable:
        raise _Untold
    hash(value.key)
    return Foreign, value.key, value.is_async


def _reduced(value: Any, teller: _Teller) -> Any:
    """Return the reduction of the value, for immutable classes of the standard library."""
    return (type(value), *teller.all(value.__reduce_ex__(4), 6))


_TELLINGS: dict[type, Telling] = {
    float: _float,
    bool: _itself,
    bytes: _itself,
    type(...): _itself,
    type(NotImplemented): _itself,
    bytearray: _bytearray,
    list: _sequence,
    tuple: _sequence,
    set: _set,
    frozenset: _set,
    dict: _dict,
    OrderedDict: _dict,
    defaultdict: _defaultdict,
    functools.partial: _partial,
    types.FunctionType: _the_same,
    types.BuiltinFunctionType: _the_same,
    types.ModuleType: _the_same,
    Foreign: _foreign,
    **dict.fromkeys(
        (
            complex, range, slice, decimal.Decimal, fractions.Fraction, uuid.UUID, datetime.date, datetime.time,
            datetime.datetime, datetime.timedelta, datetime.timezone, pathlib.PurePosixPath, pathlib.PosixPath,
            pathlib.PureWindowsPath, re.Pattern,
        ),
        _reduced,
    ),
}  # fmt: skip


# --- classes ---------------------------------------------------------------------------------------------------------


def _telling_of(kind: type) -> Telling | None:
    """Return the function which makes keys of a class's objects; None if the objects are not comparable."""
    if type(kind).__hash__ is not type.__hash__ or type(kind).__eq__ is not type.__eq__:
        return None  # a class which may pose as a different class
    return _found_telling(kind)


@functools.lru_cache(maxsize=1024)
def _found_telling(kind: type) -> Telling | None:
    if issubclass(kind, (type, enum.Enum)):
        return _the_same
    if (numpy := sys.modules.get("numpy")) is not None:
        if kind is numpy.ndarray:
            return _array
        if issubclass(kind, numpy.generic):
            return _scalar
    base = next(c for c in kind.__mro__ if not c.__flags__ & _HEAP_TYPE)  # the first base not written in Python
    if base is str and kind is getattr(sys.modules.get("langchain_core.messages.base"), "TextAccessor", None):
        return _text
    if base is not object:
        return functools.partial(_subclass, _READ[base]) if base in _READ else None
    if (pydantic := sys.modules.get("pydantic")) is not None:
        if issubclass(kind, (pydantic.SecretStr, pydantic.SecretBytes)):
            return _secret
        if issubclass(kind, pydantic.BaseModel):
            return _model
        if issubclass(kind, pydantic.AnyUrl):
            return _url
    return _state if hasattr(kind, "__dataclass_fields__") else None


def _text(value: Any, teller: _Teller) -> Any:
    """Return the text of a parser of LangChain's: services cannot tell its class from `str`."""
    return str.__str__(value)


_READ: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: lambda value: bytes(memoryview(value)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    set: lambda value: tuple(_in_order(set, value)),
    frozenset: lambda value: tuple(_in_order(frozenset, value)),
    dict: lambda value: dict(dict.items(value)),
    OrderedDict: lambda value: dict(OrderedDict.items(value)),
}
"""Functions which read an object of a subclass as an object of the class, without calling overridden methods."""


def _subclass(read: Callable[[Any], Any], value: Any, teller: _Teller) -> Any:
    return (*_state(value, teller), teller.tell(read(value)))


def _state(value: Any, teller: _Teller) -> Any:
    """Return the class, the contents of the object's dict, and the contents of the slots."""
    slots = {
        (cls, name): member.__get__(value)
        for cls in type(value).__mro__
        for name, member in vars(cls).items()
        if type(member) is types.MemberDescriptorType and _has(member, value)
    }
    return type(value), teller.items(_fields(value)), tuple(slots), tuple(teller.all(slots.values(), len(slots)))


def _fields(value: Any) -> dict[str, Any]:
    try:
        return object.__getattribute__(value, "__dict__")  # type: ignore[no-any-return]
    except AttributeError:
        return {}


def _has(member: types.MemberDescriptorType, value: Any) -> bool:
    try:
        member.__get__(value)
    except AttributeError:
        return False
    return True


def _model(value: Any, teller: _Teller) -> Any:
    """Return the key of a pydantic object; for a configuration, of the user's settings only."""
    held, extra = _fields(value), value.__pydantic_extra__ or {}
    if teller.other is not None:
        fields = {name: held[name] for name in type(value).model_fields if name in held and name not in UNSENT_FIELDS}
        return type(value), teller.items(fields), teller.items(extra)
    given = frozenset(value.__pydantic_fields_set__)
    if teller.without and isinstance(value, teller.without[0]):
        held, given = {k: v for k, v in held.items() if k != teller.without[1]}, given - {teller.without[1]}
    return type(value), teller.items(held), teller.items(extra), given, teller.items(value.__pydantic_private__ or {})


def _secret(value: Any, teller: _Teller) -> Any:
    return type(value), _Secret(teller.tell(value.get_secret_value()))


def _url(value: Any, teller: _Teller) -> Any:
    return type(value), str(value)


def _array(value: Any, teller: _Teller) -> Any:
    if value.dtype.hasobject or value.dtype.fields:
        raise _Untold
    return type(value), value.dtype.str, value.shape, value.tobytes()


def _scalar(value: Any, teller: _Teller) -> Any:
    if value.dtype.hasobject or value.dtype.fields:
        raise _Untold
    return type(value), value.dtype.str, value.tobytes()


# --- snapshots -------------------------------------------------------------------------------------------------------


def snapshot(value: Any) -> Any:
    """Return a copy of the present value: mutable parts with a key are copied. Never raises."""
    if type(value) is str:
        return value
    try:
        return _copied(value, {})
    except Exception:  # values too deep, or without copy, have no key or do not change
        return value


def _copied(value: Any, made: dict[int, tuple[Any, Any]]) -> Any:
    """Copy a value. `made`: copied objects, kept alive, and their copies."""
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if known := made.get(id(value)):
        return known[1]
    if kind is dict:
        copied: Any = {key: each if type(each) is str else _copied(each, made) for key, each in value.items()}
    elif kind is list or kind is tuple:
        copied = kind([each if type(each) is str else _copied(each, made) for each in value])
    else:
        copied = copy.deepcopy(value) if _telling_of(kind) is not None else value
    made[id(value)] = value, copied
    return copied


_UNCHANGING = frozenset(
    (str, int, type(None), Foreign, *(kind for kind, tell in _TELLINGS.items() if tell in (_float, _itself, _the_same)))
)
