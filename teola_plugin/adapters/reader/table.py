"""The table of known functions, found by identity, and the common handlers.

carries   forwards elements without looking inside: elements may be unknown
reads     looks into the arguments: all parts must be known
nothing   only has an effect, such as printing, which the framework's run performs
random    returns an unpredictable value, and never raises
"""

from __future__ import annotations

import datetime
import gc
import operator
import sys
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from teola_plugin.adapters.reader import amounts, bounds, dataframe_uses, dataframes
from teola_plugin.adapters.reader.calling import callback
from teola_plugin.adapters.reader.heap import FILTERED, MAPPED
from teola_plugin.adapters.reader.values import (
    Arguments,
    Barrier,
    Callee,
    Handler,
    Lazy,
    Opaque,
    Undecided,
    Unknown,
    isinstance_of,
    type_name,
)

VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
ORDERED_VIEWS: tuple[type, ...] = (
    type(OrderedDict().keys()),
    type(OrderedDict().values()),
    type(OrderedDict().items()),
)


def words(names: str) -> frozenset[str]:
    """Return a set of names."""
    return frozenset(names.split())


_FUNCTIONS: dict[int, tuple[Any, Handler, types.CodeType | None]] = {}
_CLASS_METHODS: dict[tuple[int, str], tuple[Any, Handler]] = {}


def register(handler: Handler, *functions: Any) -> None:
    """Register a handler for calls of the functions, except functions that replace one of the standard library.

    A class method of a class written in C is a different object at each read.
    """
    for function in functions:
        code = function.__code__ if type(function) is types.FunctionType else None
        if code is not None and function.__globals__.get("__name__", "").split(".")[0] not in sys.stdlib_module_names:
            continue
        if type(function) is types.BuiltinMethodType and type(function.__self__) is type:
            _CLASS_METHODS[id(function.__self__), function.__name__] = function.__self__, handler
        else:
            _FUNCTIONS[id(function)] = function, handler, code


def registered(function: Any) -> Handler | None:
    """Return the handler of the function, unless the function's code was changed."""
    found = _FUNCTIONS.get(id(function))
    if found is not None:
        is_same = found[0] is function and (found[2] is None or function.__code__ is found[2])
        return found[1] if is_same else None
    if type(function) is types.BuiltinMethodType:
        owner = function.__self__
        method = _CLASS_METHODS.get((id(owner), function.__name__))
        if method is not None and method[0] is owner:
            return method[1]
    return None


# --- values ----------------------------------------------------------------------------------------------------------


def is_unknown(run: Any, value: Any) -> bool:
    """Whether a value is unknown, as `run.is_unknown`; also for views of a dict, whose content may be unknown."""
    kind = type(value)
    if kind in VIEWS or kind in ORDERED_VIEWS:
        value = gc.get_referents(value)[0]
    return bool(run.is_unknown(value))


class Aware(datetime.datetime):
    """The kind of an unknown time that may have a zone: comparing it with a time without a zone raises."""


_CLASSES: dict[int, str] = {
    id(each): type_name(each)
    for each in (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, uuid.UUID, float)
}
_CLASSES[id(Aware)] = "datetime"
_NUMBERS = {
    holds: {"int": "int", "count": "int", "mixed": "number", "real": "float", "number": "number"}[parts[0]]
    for holds in amounts.NUMBERS
    if holds != "bool" and (parts := amounts.parts_of(holds)) is not None
}


def kind_of(value: Any) -> str:
    """Return the kind of an unknown value: a word of `Unknown.holds`, a class name, or "object"; "" if known.

    Numbers are of the kinds "int", "float", "number" and "bool", whatever their bound.
    """
    if type(value) is not Unknown:
        return ""
    holds = value.holds
    return _NUMBERS.get(holds, holds) if type(holds) is str else _CLASSES.get(id(holds), "object")


def may_be_shared(value: Any) -> bool:
    """Whether the program may know an unknown value by another name, so that changes of the value are not read."""
    if type(value) is not Unknown:
        return False
    return (
        value.is_shared or kind_of(value) in ("any", amounts.JSON, "list") or amounts.item_of(value.holds) is not None
    )


def known(run: Any, *values: Any) -> None:
    """Require known values; parts may be unknown. Raises: Undecided."""
    for value in values:
        if is_unknown(run, value):
            raise Undecided


def require_no_decimals(*values: Any) -> None:
    """Require values other than Decimals, whose results and errors depend on a context. Raises: Barrier.

    The context belongs to the thread, and the program may have changed it.
    """
    if any(type(each) is Decimal for each in values):
        raise Barrier("it computes with decimals, by the context of its thread")


def unknowns(run: Any, *values: Any) -> list[Any]:
    """Return the unknown parts of the values. Raises: Barrier if a part is a foreign object."""
    found: list[Any] = []
    todo, seen = list(values), set[int]()
    while todo:
        value = todo.pop()
        kind = type(value)
        if is_unknown(run, value):
            found.append(value)
        elif kind in (list, tuple, deque, set, frozenset):
            if id(value) not in seen:
                seen.add(id(value))
                todo += value
        elif isinstance_of(value, dict):
            if id(value) not in seen:
                seen.add(id(value))
                todo += dict.values(value)
                todo += dict.keys(value)
        elif isinstance_of(value, Opaque):
            raise Barrier("it hands on an object that is no plain data")
    return found


class Walk:
    """An iterator over a container or another iterator, which becomes unknown when the source does."""

    __slots__ = ("_is_lost", "_iterator", "_run", "_source")

    def __init__(self, run: Any, source: Any, iterator: Iterator[Any]) -> None:
        self._run = run
        self._source = source
        self._iterator = iterator
        self._is_lost = False

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> Any:
        if self._is_lost or is_unknown(self._run, self._source):
            raise Undecided
        self._run.tick()
        try:
            return next(self._iterator)
        except Undecided:  # its place is not known
            self._is_lost = True
            raise


def require_order(run: Any, *values: Any) -> None:
    """Require no sets whose elements may have another order in the framework's run. Raises: Barrier."""
    if not all(map(run.has_order, values)):
        raise Barrier("it walks a set that it did not make", hint="sort it")


_MANY = 10_000
_FINAL = (str, bytes, tuple, range, frozenset)


def walked(run: Any, value: Any) -> Iterator[Any]:
    """Return an iterator over the elements of a value. Raises: Undecided, TypeError for values without elements."""
    if type(value) is Lazy:
        return value
    if type(value) is dataframes.OfPandas:
        return dataframe_uses.iterated(run, value)
    require_order(run, value)
    if type(value) in _FINAL and len(value) < _MANY:
        return iter(value)
    known(run, value)
    return Walk(run, value, steps(value))


_FILLED = (dict, OrderedDict, defaultdict, Counter, set, deque)
"""Containers that are filled anew where a change on a path that is not taken is undone: iterators lose their place."""


_COMPARED = 256
"""Items that are compared in each step of a walk."""


def steps(value: Any, order: Callable[[Any], Iterator[Any]] = iter) -> Iterator[Any]:
    """Return an iterator that goes on where it is after an undone change. `order`: `iter` or `reversed`."""
    if type(value) in (*VIEWS, *ORDERED_VIEWS):
        is_of = [type(value) in (views[n] for views in (VIEWS, ORDERED_VIEWS)) for n in range(3)]
        held = value.mapping
        one = (lambda key: key) if is_of[0] else held.__getitem__ if is_of[1] else lambda key: (key, held[key])
        return _Steps(held, order, one, is_ordered=type(value) in ORDERED_VIEWS)
    if type(value) not in _FILLED:
        return order(value)
    return _Steps(value, order, lambda item: item, is_ordered=type(value) is OrderedDict)


class _Steps:
    """An iterator over the first items of a container, as long as the container has the items in the same order.

    `is_ordered`: of an OrderedDict, whose iterators end with the last item, whatever was changed, or with an error.
    """

    __slots__ = ("_at", "_has_failed", "_held", "_is_ordered", "_items", "_one", "_order")

    def __init__(
        self, held: Any, order: Callable[[Any], Iterator[Any]], one: Callable[[Any], Any], *, is_ordered: bool
    ) -> None:
        self._held, self._order, self._one, self._is_ordered = held, order, one, is_ordered
        self._items = list(order(held))
        self._at = 0
        self._has_failed = False

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> Any:
        at, items = self._at, self._items
        if at > len(items) or (at == len(items) and self._is_ordered):
            self._at = len(items) + 1
            raise StopIteration
        if self._has_failed or len(self._held) != len(items):
            self._has_failed = True
            self._at = len(items) if self._is_ordered else at
            raise RuntimeError("the container changed its size during iteration")
        if not _has(self._held, items, self._order, at):
            raise Barrier("it changes a container which it walks")
        self._at += 1
        if at == len(items):
            raise StopIteration
        return self._one(items[at])


def _has(held: Any, items: Sequence[Any], order: Callable[[Any], Iterator[Any]], at: int) -> bool:
    """Whether a container still has the items in the same order; of many items, only the ends and the next item."""
    if type(held) is deque or at == len(items) or len(items) <= _COMPARED:
        return all(map(operator.is_, items, order(held)))
    if items[at] not in held or next(order(held)) is not items[0]:
        return False
    return type(held) is set or next(iter(held) if order is reversed else reversed(held)) is items[-1]


def lazy(run: Any, iterator: Iterator[Any]) -> Lazy:
    """Wrap an iterator for the program."""
    return Lazy(run, Walk(run, None, iterator))


def collected(run: Any, value: Any) -> list[Any]:
    """Return all elements of a value. Raises: Undecided, Barrier, TypeError."""
    if hasattr(type(value), "__len__") and not isinstance_of(value, Opaque) and type(value) is not Unknown:
        bounds.items(run, len(value))
    return list(walked(run, value))


def whole(run: Any, value: Any, check: Callable[[Any, Any], None] | None = None) -> Any:
    """Collect an iterator, checking each element before the next is made; return any other value unchanged."""
    if type(value) is not Lazy:
        return value
    found = []
    for each in value:
        run.tick()
        if check is not None:
            check(run, each)
        found.append(each)
    return found


SHORT_PAUSE_S = 0.2
"""Pauses that are shorter in all slow down no requests."""


def require_no_wait(run: Any, seconds: Any) -> None:
    """Require short pauses. Raises: Barrier for pauses that may keep requests apart, as rate limits of services ask."""
    if type(seconds) not in (int, float) or (run.paused_s + seconds) >= SHORT_PAUSE_S:
        raise Barrier("it waits", hint="what is asked after a pause is not asked before it")
    run.paused_s += seconds


def is_sequence(value: Any) -> bool:
    """Whether iterating the value cannot raise, even if its elements are unknown."""
    if type(value) is Unknown and (value.over or amounts.length_of(value.holds) is not None):
        return not value.over or value.over[0] not in (MAPPED, FILTERED) or all(map(is_iterable, value.over[2:]))
    return type(value) in (list, tuple) or kind_of(value) in ("text", "texts", "list")


def is_iterable(value: Any) -> bool:
    """Whether iterating the value cannot raise, for a sequence or a text."""
    return is_sequence(value) or type(value) is str


def is_collection(value: Any) -> bool:
    """Whether taking all items of the value at once cannot raise, even if its elements are unknown."""
    return is_sequence(value) or type(value) in (set, deque, dict, OrderedDict, defaultdict, Counter)


def unknown_number(value: Any) -> bool:
    """Whether the value is an unknown number."""
    return type(value) is Unknown and amounts.parts_of(value.holds) is not None


def is_text(value: Any) -> bool:
    """Whether the value is a text, known or unknown."""
    return type(value) is str or kind_of(value) == "text"


def is_key(value: Any) -> bool:
    """Whether a value, known or unknown, certainly has a hash, and compares without code of the program."""
    if type(value) is tuple:
        return all(map(is_key, value))
    return value is None or amounts.is_atom(amounts.holds_of(value)) or type(value) in (bool, bytes)


def is_open_key(run: Any, value: Any) -> bool:
    """Whether it is not known which key a value is."""
    return type(value) is Unknown or (type(value) is tuple and bool(run.sources(value)))


def unknown_atom(value: Any) -> bool:
    """Whether the value is an unknown text or number, which has a hash and never changes."""
    return type(value) is Unknown and amounts.is_atom(value.holds)


# --- handlers --------------------------------------------------------------------------------------------------------


def nothing(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Handle functions that only have an effect."""


def random(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Handle functions with a different value each time."""
    return run.unknown(*args, is_safe=True)


def carries(function: Callable[..., Any]) -> Handler:
    """Handle a function whose result has parts of the arguments."""

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        known(run, *args, *kwargs.values())
        return function(*args, **kwargs)

    return handle


def reads(
    function: Callable[..., Any], *, collects: Callable[[Any, Any], None] | None = None,
    size: Callable[..., None] | None = None,
) -> Handler:  # fmt: skip
    """Handle a function that looks into its arguments.

    `collects`: the function accepts iterators, and `collects` checks each element (see taking.py).
    `size(run, *args, **kwargs)` raises Barrier if the function would compute too much.
    """

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        if collects is not None:
            require_order(run, *args)
            args = tuple([whole(run, each, collects) for each in args])
        known(run, *args, *kwargs.values())
        run.require_known(*args, *kwargs.values())
        if size is not None:
            size(run, *args, **kwargs)
        return function(*args, **kwargs)

    return handle


def makes_iterator(function: Callable[..., Any], at: int | None = None, keys: tuple[str, ...] = ()) -> Handler:
    """Handle functions that make an iterator of iterators; a callable stands at position `at` or under `keys`."""

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        known(run, *args, *kwargs.values())
        given = [called(run, each) if i == at else iterated(run, each) for i, each in enumerate(args)]
        named = {name: called(run, each) if name in keys else each for name, each in kwargs.items()}
        return lazy(run, iter(function(*given, **named)))

    return handle


def iterated(run: Any, value: Any) -> Any:
    """Return an argument for a function that iterates: numbers and similar values are returned unchanged."""
    return walked(run, value) if hasattr(type(value), "__iter__") else value


def called(run: Any, value: Any) -> Any:
    """Return a Python function that calls a value of the program; values that C cannot call are returned unchanged."""
    known(run, value)
    return callback(run, value) if isinstance_of(value, Opaque) else value


def gives(holds: str, function: Callable[..., Any]) -> Handler:
    """Handle a function of a single argument which raises for no argument."""

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        if len(args) == 1 and not kwargs and (found := unknowns(run, args[0])):
            return run.unknown(*found, holds=holds, is_safe=True)
        run.require_known(*args, *kwargs.values())
        return function(*args, **kwargs)

    return handle


def handled(handler: Handler, name: str) -> Callee:
    """Return a function of the reader's, for the program."""
    return Callee(handler, name)
