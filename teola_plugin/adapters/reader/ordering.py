"""Sorting, minimum, maximum and sum, in the order of CPython: all keys first, or element by element."""

from __future__ import annotations

import functools
import operator
from typing import Any

from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.table import collected, kind_of, known, require_no_decimals, unknown_number, whole
from teola_plugin.adapters.reader.taking import Check, compared, number
from teola_plugin.adapters.reader.values import Arguments, Handler, Lazy, Opaque, Undecided, Unknown

_COMPARED = type(functools.cmp_to_key(operator.sub)(0))


def ordered(run: Any, elements: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return the elements, sorted. Raises: Undecided, TypeError."""
    known(run, *kwargs.values())
    run.tick(1 + len(elements) // 10)
    by = kwargs.get("key")
    keys = elements if by is None else [call(run, by, (each,), {}) for each in elements]
    if len(elements) < 2:
        list[Any]().sort(reverse=kwargs.get("reverse", False))  # for CPython's errors
        return elements[:]
    run.require_known(*[each for each in keys if type(each) is not _COMPARED])
    require_no_decimals(*keys)
    order = sorted(range(len(elements)), key=keys.__getitem__, reverse=kwargs.get("reverse", False))
    return [elements[at] for at in order]


_KEYS_OF_TEXTS = (len, str.lower, str.upper, str.casefold, str.strip)


def sorts_unknown(run: Any, value: Any, args: Arguments, kwargs: dict[str, Any]) -> bool:
    """Whether sorting an iterable of unknown content cannot raise: one of texts, or of numbers."""
    each, by = run.each_of(value), kwargs.get("key")
    if args or not kwargs.keys() <= {"key", "reverse"} or type(kwargs.get("reverse", False)) not in (bool, int):
        return False
    if each is None or each.holds not in ("text", "number"):
        return False
    is_key = type(by) is Opaque and any(by.held is key for key in _KEYS_OF_TEXTS)
    return by is None or (is_key and each.holds == "text")


def sort(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Handle the function `sorted`."""
    if len(args) == 1 and run.is_unknown(args[0]) and sorts_unknown(run, args[0], (), kwargs):
        return run.taint_with([], run.each_of(args[0]))
    if len(args) != 1 or not kwargs.keys() <= {"key", "reverse"}:
        raise TypeError("sorted() takes one positional argument")
    by_itself = kwargs.get("key") is None
    return ordered(run, in_any_order(run, args[0]) if by_itself else collected(run, args[0]), kwargs)


def in_any_order(run: Any, value: Any, check: Check | None = None) -> list[Any]:
    """Return all elements, for functions that do not depend on the order: of sets of texts, or of integers."""
    is_set = type(value) in (set, frozenset) and not run.is_unknown(value)
    if is_set and set(map(type, value)) in ({str}, {int}):
        return list(value)
    return collected(run, whole(run, value, check))


def extreme(function: Any) -> Handler:
    """Handle `min` and `max`. All keys are computed even if the result is undecided."""
    is_better = operator.lt if function is min else operator.gt

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        known(run, *(args if len(args) == 1 else ()))
        if not args or not kwargs.keys() <= {"key", "default"} or (len(args) > 1 and "default" in kwargs):
            raise TypeError("wrong arguments")
        by = kwargs.get("key")
        known(run, by)
        keys, compares = list[Any](), compared()

        def take(run: Any, each: Any) -> None:
            keys.append(each if by is None else call(run, by, (each,), {}))
            compares(run, keys[-1])

        walk = in_any_order if by is None else collected
        given = whole(run, args[0], take) if len(args) == 1 else args
        elements = walk(run, given)
        run.tick(1 + len(elements) // 10)
        if type(args[0]) is not Lazy or len(args) > 1:
            for each in elements:
                take(run, each)
        if not elements:
            if "default" in kwargs:
                return kwargs["default"]
            raise ValueError("the argument is empty")
        return _best(run, elements, keys, by, is_better)

    return handle


def _best(run: Any, elements: list[Any], keys: list[Any], by: Any, is_better: Any) -> Any:
    require_no_decimals(*keys)
    found, best, unsure = elements[0], None, list[Any]()
    for at, (each, key) in enumerate(zip(elements, keys, strict=True)):
        if type(key) is Unknown:
            unsure.append(key)
        elif len(elements) > 1:
            try:
                run.require_known(key)
            except Undecided:
                unsure.append(run.unknown(key))
        if at == 0:
            best = key
        elif not unsure and is_better(key, best):
            found, best = each, key
    if unsure and len(elements) > 1:
        numbers = [*unsure, best] if type(best) is not Unknown else unsure
        is_safe = all(unknown_number(each) or type(each) in (int, float, bool) for each in numbers)
        all_numbers = by is None and all(unknown_number(each) or type(each) in (int, float, bool) for each in elements)
        is_safe = is_safe and (all_numbers or by is not None) and all(unknown_number(each) for each in unsure)
        return run.unknown(*unsure, holds="number" if all_numbers else "any", is_safe=is_safe)
    return found


def total(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Handle the function `sum`."""
    if not args or len(args) + len(kwargs) > 2 or not kwargs.keys() <= {"start"}:
        raise TypeError("wrong arguments")
    start = kwargs["start"] if kwargs else args[1] if len(args) == 2 else 0
    if len(args) == 1 and not kwargs and kind_of(args[0]) == "counts":
        return run.unknown(args[0], holds="number", is_safe=True)
    known(run, args[0], start)

    def add(run: Any, each: Any) -> None:
        if type(start) not in (list, tuple) or type(each) is not type(start):
            number(run, each)

    elements = in_any_order(run, args[0], add)
    run.tick(1 + len(elements) // 10)
    numbers = all(type(each) in (int, bool, float) or unknown_number(each) for each in (*elements, start))
    unsure = [each for each in (*elements, start) if unknown_number(each)]
    if numbers and unsure:
        return run.unknown(*unsure, holds="number", is_safe=all(type(each) is not float for each in elements))
    if type(start) in (list, tuple) and all(type(each) is type(start) for each in elements):
        known(run, *elements)
        run.tick(sum(map(len, elements)) * max(1, len(elements)) // 100)
        return sum(elements, start)
    run.require_known(elements, start)
    require_no_decimals(*elements, start)
    return sum(elements, start)
