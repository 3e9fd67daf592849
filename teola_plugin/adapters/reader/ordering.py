"""Sorting, minimum, maximum and sum, in the order of CPython: all keys first, or element by element."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from teola_plugin.adapters.reader import amounts, arrays
from teola_plugin.adapters.reader.calling import call, may_change
from teola_plugin.adapters.reader.heap import MAPPED
from teola_plugin.adapters.reader.table import (
    collected,
    is_collection,
    kind_of,
    known,
    require_no_decimals,
    unknown_number,
    whole,
)
from teola_plugin.adapters.reader.taking import Check, compared, is_number, summed
from teola_plugin.adapters.reader.values import ARRAYS, Arguments, Handler, Lazy, Undecided, Unknown

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
    if any(type(each) is Unknown for each in keys) and all(map(_is_fixed, elements)) and _are_comparable(keys):
        return [functools.reduce(lambda one, two: run.joined(one, two, run.sources(keys) - ARRAYS), elements)] * len(
            elements
        )
    run.require_known(*[each for each in keys if type(each) is not _COMPARED])
    require_no_decimals(*keys)
    order = sorted(range(len(elements)), key=keys.__getitem__, reverse=kwargs.get("reverse", False))
    return [elements[at] for at in order]


def sorts_unknown(run: Any, value: Any, args: Arguments, kwargs: dict[str, Any]) -> bool:
    """Whether sorting an iterable of unknown content cannot raise: one of texts, or of numbers."""
    if args or not kwargs.keys() <= {"key", "reverse"} or type(kwargs.get("reverse", False)) not in (bool, int):
        return False
    return is_collection(value) and _has_order(run, value, kwargs.get("key"))


def _has_order(run: Any, items: Any, by: Any) -> bool:
    """Whether comparing unknown items by a key cannot raise: by texts, or by numbers."""
    if by is not None:
        return _are_comparable(run.items_of(Unknown("any", run.sources(items), over=(MAPPED, by, items))))
    each = run.each_of(items)
    if each is None:
        return False
    if each.holds is None or amounts.is_atom(each.holds):
        return True
    return type(items) is Unknown and len(items.over) > 1 and _are_comparable(run.items_of(items))


def _calls_for_unknown(run: Any, items: Any, by: Any) -> bool:
    """Call a key of the program's for any number of items, or for none, of an unknown value, which may be no iterable.

    Returns False, without a call, for known items and for keys that only compute.
    """
    if not run.is_unknown(items) or not may_change(by):
        return False
    run.items_of(Unknown("any", run.sources(items), over=(MAPPED, by, items)))
    return True


def _are_comparable(keys: Sequence[Any]) -> bool:
    """Whether comparing such keys cannot raise: texts, or numbers, or tuples of these."""
    if all(type(each) is tuple and len(each) == len(keys[0]) for each in keys):
        return all(map(_are_comparable, zip(*keys, strict=True)))
    return amounts.is_atom(amounts.any_of(map(amounts.holds_of, keys)))


def _is_fixed(value: Any) -> bool:
    """Whether a value is a text, a number or a tuple of these, which never changes."""
    if type(value) is tuple:
        return all(map(_is_fixed, value))
    return amounts.is_atom(amounts.holds_of(value))


def sort(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Handle the function `sorted`."""
    if len(args) == 1 and run.is_unknown(args[0]) and sorts_unknown(run, args[0], (), kwargs):
        each = run.each_of(args[0])
        if each is not None and (each.holds is None or amounts.is_atom(each.holds)):
            return run.taint_with([], each)
        return run.list_of(args[0])
    if len(args) == 1 and kwargs.keys() <= {"key", "reverse"} and _calls_for_unknown(run, args[0], kwargs.get("key")):
        return run.unknown(*args, *kwargs.values(), holds="list")
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
        if (
            len(args) == 1
            and run.is_unknown(args[0])
            and is_collection(args[0])
            and kwargs.keys() <= {"key", "default"}
        ):
            return _best_of_unknown(run, args[0], **kwargs)
        if len(args) == 1 and kwargs.keys() <= {"key", "default"} and _calls_for_unknown(
            run, args[0], kwargs.get("key")
        ):  # fmt: skip
            return run.unknown(*args, *kwargs.values())
        known(run, *(args if len(args) == 1 else ()))
        if not args or not kwargs.keys() <= {"key", "default"} or (len(args) > 1 and "default" in kwargs):
            raise TypeError("wrong arguments")
        by = kwargs.get("key")
        known(run, by)
        keys, compares = list[Any](), compared(run)

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
        is_safe = _are_comparable(keys)
        holds = amounts.any_of(map(amounts.holds_of, elements))
        made = run.unknown(*unsure, holds=holds if amounts.is_atom(holds) else "any", is_safe=is_safe)
        are_numbers = is_better is operator.gt and by is None and all(map(is_number, elements))
        made.is_true = are_numbers and any(type(each) is not Unknown and each > 0 for each in elements)
        return made
    return found


def _best_of_unknown(run: Any, items: Any, key: Any = None, **default: Any) -> Any:
    """Return the best of unknown items."""
    has_order = _has_order(run, items, key)
    is_safe = has_order and (bool(default) or run.is_true(items))
    each = run.each_of(items)
    holds = each.holds if each is not None and amounts.is_atom(each.holds) else "any"
    found = run.unknown(items, holds=holds, is_safe=is_safe, error=ValueError if has_order else Exception)
    return run.joined(found, default["default"]) if default else found


def _added(start: Any, elements: list[Any]) -> dict[str, Any]:
    """Return what is known of a sum of numbers, of which some are unknown, in the words of `Run.unknown`."""
    found, is_safe = start, True
    for each in elements:
        holds, fits = amounts.computed("+", found, each) or ("number", False)
        found, is_safe = Unknown(holds), is_safe and fits
    return {"holds": amounts.holds_of(found), "is_safe": is_safe, "error": OverflowError}


def total(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Handle the function `sum`."""
    if not args or len(args) + len(kwargs) > 2 or not kwargs.keys() <= {"start"}:
        raise TypeError("wrong arguments")
    start = kwargs["start"] if kwargs else args[1] if len(args) == 2 else 0
    if len(args) == 1 and not kwargs and run.is_unknown(args[0]) and is_collection(args[0]):
        each = run.each_of(args[0])
        if each is not None and each.holds == amounts.JSON:
            return run.unknown(args[0], holds="number")
        if each is not None and (made := amounts.summed(each.holds)) is not None:
            return run.unknown(args[0], holds=made[0], is_safe=made[1], error=OverflowError)
    known(run, args[0], start)
    elements = in_any_order(run, args[0], summed(run, start))
    run.tick(1 + len(elements) // 10)
    numbers = all(type(each) in (int, bool, float) or unknown_number(each) for each in (*elements, start))
    unsure = [each for each in (*elements, start) if unknown_number(each)]
    if any(kind_of(each) == amounts.SCALAR for each in elements):
        return arrays.summed(run, *elements, start)
    if numbers and unsure:
        return run.unknown(*unsure, **_added(start, elements))
    if type(start) in (list, tuple) and all(type(each) is type(start) for each in elements):
        known(run, *elements)
        run.tick(sum(map(len, elements)) * max(1, len(elements)) // 100)
        return sum(elements, start)
    run.require_known(elements, start)
    require_no_decimals(*elements, start)
    return sum(elements, start)
