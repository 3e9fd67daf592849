"""Checks of elements: functions that consume an iterator look at each element before the next is made, and may raise.

    sum(llm.invoke(q).content for q in questions)        TypeError behind the first reply: no second request

A `Check` gets each consumed element. The check raises as CPython, or notes that an operation may raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from teola_plugin.adapters.reader import amounts
from teola_plugin.adapters.reader.table import is_collection, kind_of, unknown_atom, unknown_number
from teola_plugin.adapters.reader.values import NO_SOURCES, Undecided, Unknown

Check = Callable[[Any, Any], None]
"""Gets the run and an element."""


def hashed(run: Any, value: Any) -> None:
    """Check an element of a set, or a key."""
    is_hashed(run, value)


def is_hashed(run: Any, value: Any) -> bool:
    """Whether a key is known; an unknown key may also be unhashable. Raises: TypeError."""
    try:
        run.require_hashable(value)
    except Undecided:
        if not unknown_atom(value):
            may_raise(run, value)
        return False
    hash(value)
    return True


def paired(run: Any, value: Any) -> None:
    """Check an item for a dict."""
    if type(value) in (tuple, list) and not run.is_unknown(value) and len(value) == 2:
        is_hashed(run, value[0])
    else:
        may_raise(run, value)


def number(run: Any, value: Any) -> None:
    """Check a summand of numbers."""
    if not is_number(value) and kind_of(value) != amounts.SCALAR:
        may_raise(run, value)


def is_number(value: Any) -> bool:
    """Whether the value is a number, known or unknown."""
    return type(value) in (int, float, bool) or unknown_number(value)


def summed(run: Any, start: Any = 0) -> Check:
    """Return a check of summands: an iterator goes on only if what came so far can be added."""
    so_far, path = start, run.path

    def check(run: Any, value: Any) -> None:
        nonlocal so_far
        if type(start) not in (list, tuple) or type(value) is not type(start):
            number(run, value)
        if not (is_number(value) and is_number(so_far)):
            return
        if unknown_number(value) or unknown_number(so_far):
            holds, fits = amounts.computed("+", so_far, value) or ("number", False)
            total = Unknown(holds, run.sources(so_far, value))
            if not fits:
                run.raises(total.sources, error=OverflowError)
        else:
            total = so_far + value
        if run.path != path:  # of an item that is perhaps not taken
            total = Unknown(amounts.either(amounts.holds_of(so_far), amounts.holds_of(total)), run.sources(total))
        so_far = total

    return check


_COMPARABLE = ({"number", "large number"}, {"number", amounts.SCALAR}, {"text"})


def compared(run: Any) -> Check:
    """Return a check of elements that are compared with the elements before."""
    kinds: set[str] = set()

    def check(run: Any, value: Any) -> None:
        kind = "number" if is_number(value) else "text" if type(value) is str else kind_of(value)
        kind = "large number" if kind == "number" and amounts.is_large(value) else kind
        kinds.add(kind)
        if not any(kinds <= each for each in _COMPARABLE):
            may_raise(run, value)

    return check


def grow(run: Any, held: Any, items: Any) -> None:
    """Extend a list or a deque by an unknown value, which perhaps cannot be iterated."""
    own, new = run.each_of(held), run.each_of(items)
    run.taint_with(held, own.joined(new) if own and new else None)
    if not is_collection(items):
        run.raises(run.sources(items))


def stops(run: Any, value: Any) -> None:
    """Check an element that may be the last to be consumed."""
    run.raises()


def may_raise(run: Any, value: Any) -> None:
    """Note that consuming the value may raise.

    The error depends on the later value, or is certain for a kind that no consumer accepts.
    """
    run.raises(value.sources if type(value) is Unknown and value.holds in ("any", amounts.JSON) else NO_SOURCES)
