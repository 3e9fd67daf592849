"""What takes all elements of an iterator looks at each before it has the next one made, and may raise there.

    sum(llm.invoke(q).content for q in questions)        TypeError behind the first reply: nobody asks a second time

A `Check` is told of each element that was taken. It raises what CPython raises at it, or notes that something may.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from teola_plugin.adapters.reader.table import kind_of, unknown_number
from teola_plugin.adapters.reader.values import NO_SOURCES, Undecided, Unknown

Check = Callable[[Any, Any], None]
"""Given the run and an element."""


def hashed(run: Any, value: Any) -> None:
    """Checks an element of a set, or a key."""
    is_hashed(run, value)


def is_hashed(run: Any, value: Any) -> bool:
    """Whether a key is known; if it is not, it may be that it cannot be hashed. Raises: TypeError."""
    try:
        run.require_hashable(value)
    except Undecided:
        if kind_of(value) not in ("text", "number", "bool"):
            may_raise(run, value)
        return False
    hash(value)
    return True


def paired(run: Any, value: Any) -> None:
    """Checks an item that a dict is made of."""
    if type(value) in (tuple, list) and not run.is_unknown(value) and len(value) == 2:
        is_hashed(run, value[0])
    else:
        may_raise(run, value)


def number(run: Any, value: Any) -> None:
    """Checks what is added to other numbers."""
    if not is_number(value):
        may_raise(run, value)


def is_number(value: Any) -> bool:
    """It is a number, known or not."""
    return type(value) in (int, float, bool) or unknown_number(value)


def compared() -> Check:
    """Checks what is compared with those before."""
    kinds: set[str] = set()

    def check(run: Any, value: Any) -> None:
        kind = "number" if is_number(value) else "text" if type(value) is str else kind_of(value)
        kinds.add(kind)
        if len(kinds) > 1 or kind not in ("number", "text"):
            may_raise(run, value)

    return check


def stops(run: Any, value: Any) -> None:
    """Checks an element behind which no further one may be taken."""
    run.raises()


def may_raise(run: Any, value: Any) -> None:
    """Whoever takes the value may raise: by what it will be, or for certain if it is of a kind that nobody takes."""
    run.raises(value.sources if type(value) is Unknown and value.holds == "any" else NO_SOURCES)
