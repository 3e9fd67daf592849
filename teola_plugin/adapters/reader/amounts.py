"""Kinds of unknown numbers: of what type they are, and how large they may be.

    int64       a whole number below 2**64
    count64     the same, not below 0
    real64      a float that is finite and below 2**64
    number64    any of these
    int, count, number, and the class float: the same of any size; a float may also be infinite or no number
    mixed       any float, or a whole number below 2**960

What is too large for a float is refused beside a float and in divisions. A result has a larger bound than the operands,
so a sum that grows with the rounds of a loop, which joins unlike bounds, is soon of any size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from teola_plugin.adapters.reader.values import Unknown

_MOST_BITS = 960
"""The largest bound: the sum, difference, product or quotient by a whole number of two such fits a float."""

_USUAL_BITS = 64

Parts = tuple[str, int | None]
"""Whether a number is a "count", an "int", a "real" or any of these ("number"), and the bits of the bound."""

_WHOLE = ("count", "int")

_PARTS: dict[str, Parts] = {
    "int": ("int", None), "count": ("count", None), "number": ("number", None), "mixed": ("mixed", None),
    "bool": ("count", 1),
    **{f"{kind}{n}": (kind, n) for kind in (*_WHOLE, "real", "number") for n in range(1, _MOST_BITS + 1)},
}  # fmt: skip

COUNT = f"count{_USUAL_BITS}"
"""The kind of lengths."""

PLACE = f"int{_USUAL_BITS}"
"""The kind of positions in texts, which may be -1."""

JSON = "json"
"""The kind of what `json.loads` makes, and of each part: texts, numbers, None, lists and dicts of built-in types."""

ARRAY, FLAG, ROW, SCALAR = "array", "flag", "row", "scalar"
"""Kinds of arrays and numbers of numpy, and of embeddings; see arrays.py."""

NUMBERS: frozenset[str | type] = frozenset([*_PARTS, float])


def number_holds(kind: str, bits: int | None) -> str | type:
    """Return a kind of numbers, as in `Unknown.holds`."""
    if bits is None or bits > _MOST_BITS:
        return float if kind == "real" else kind
    return f"{kind}{bits}"


def holds_of_number(value: Any) -> str | type:
    """Return the kind of a known int or float; that of most is the same."""
    kind, bits = _of_known(value)
    return number_holds(kind, bits and max(bits, _USUAL_BITS))


def holds_of(value: Any) -> str | type:
    """Return the kind of a value, as in `Unknown.holds`."""
    kind = type(value)
    if kind is Unknown:
        return value.holds  # type: ignore[no-any-return]
    if kind is int or kind is float:
        return holds_of_number(value)
    return {str: "text", bool: "bool"}.get(kind, "any")


def parts_of(holds: Any) -> Parts | None:
    """Return type and bound of a kind of numbers; None for another kind."""
    if type(holds) is str:
        return _PARTS.get(holds)
    return ("real", None) if holds is float else None


def is_plain(holds: Any) -> bool:
    """Whether values of the kind are such as `json.loads` makes."""
    return holds in (JSON, "text") or parts_of(holds) is not None


def is_atom(holds: Any) -> bool:
    """Whether values of the kind are texts or numbers, which have a hash and never change."""
    return parts_of(holds) is not None or (type(holds) is str and holds in ("text", SCALAR))


def length_of(holds: Any) -> str | None:
    """Return the length in the kind of an embedding, or of a one-dimensional array; None for another kind."""
    if type(holds) is not str or not holds.startswith((f"{ROW}:", f"{ARRAY}:")):
        return None
    return holds.partition(":")[2]


def item_of(holds: Any) -> str | type | None:
    """Return the kind of the items of an embedding or an array; None for another kind."""
    if length_of(holds) is None:
        return ARRAY if type(holds) is str and holds == ARRAY else None
    return float if holds.startswith(ROW) else SCALAR


def parts_of_value(value: Any) -> Parts | None:
    """Return type and bound of a number, known or unknown; None for another value."""
    if type(value) is Unknown:
        return parts_of(value.holds)
    return _of_known(value) if type(value) in (int, float, bool) else None


def _of_known(value: Any) -> Parts:
    if type(value) is float:
        kind, bits = "real", math.frexp(value)[1] if math.isfinite(value) else _MOST_BITS + 1
    else:
        kind, bits = "int" if value < 0 else "count", value.bit_length()
    return kind, max(1, bits) if bits <= _MOST_BITS else None


def either(one: str | type, two: str | type) -> str | type:
    """Return the kind of a value of one of two kinds."""
    if one is two or (type(one) is str and one == two):
        return one
    first, second = parts_of(one), parts_of(two)
    if JSON in (one, two) and is_plain(one) and is_plain(two):
        return JSON
    if first is None or second is None:
        return _either_array(one, two)
    if any(each[0] in ("real", "mixed") for each in (first, second)) and not any(map(_is_large, (first, second))):
        return number_holds(*first) if first == second else float if first[0] == second[0] == "real" else "mixed"
    if first[1] is None or second[1] is None or (first[1] != second[1] and "bool" not in (one, two)):
        return number_holds(_together(first, second), None)
    return number_holds(_together(first, second), max(first[1], second[1]))


def _either_array(one: str | type, two: str | type) -> str | type:
    """Return the kind of a value of one of two kinds, not both of which are of numbers."""
    names = [each if type(each) is str else "real" if each is float else "" for each in (one, two)]
    if SCALAR in names and any(each.startswith("real") for each in names):
        return float
    if FLAG in names and "bool" in names:
        return FLAG
    return ARRAY if all(each.startswith((ARRAY, FLAG, SCALAR)) for each in names) else "any"


def any_of(kinds: Iterable[str | type]) -> str | type | None:
    """Return the kind of a value of one of these kinds; None if there are none."""
    found: str | type | None = None
    for each in kinds:
        found = each if found is None else either(found, each)
    return found


def _is_large(parts: Parts) -> bool:
    """Whether the number may be a whole number that is too large for a float."""
    return parts[1] is None and parts[0] not in ("real", "mixed")


def is_large(value: Any) -> bool:
    """Whether a number may be a whole number that numpy refuses to compare with a float."""
    parts = parts_of_value(value)
    return parts is not None and _is_large(parts)


def _together(one: Parts, two: Parts) -> str:
    if one[0] == two[0]:
        return one[0]
    return "int" if one[0] in _WHOLE and two[0] in _WHOLE else "number"


def computed(name: str, a: Any, b: Any) -> tuple[str | type, bool] | None:
    """Return the kind of `a <name> b`, and whether it cannot raise for what is too large; None for other operands."""
    one, two = parts_of_value(a), parts_of_value(b)
    if one is None or two is None or name not in _BITS:
        return None
    kind = "real" if name == "/" or "real" in (one[0], two[0]) else _together(one, two)
    kind = "int" if kind == "count" and name == "-" else "number" if kind == "mixed" else kind
    is_large = [_is_large(each) for each in (one, two)]
    may_be_real = [each[0] not in _WHOLE for each in (one, two)]
    is_refused = (is_large[0] and may_be_real[1]) or (is_large[1] and may_be_real[0]) or (name == "/" and any(is_large))
    if one[1] is None or two[1] is None:
        return number_holds(kind, None), not is_refused
    bits = _BITS[name](one[1], two[1])
    if name in ("/", "//") and two[0] not in _WHOLE:
        is_known = type(b) is float and b
        bits = bits + max(0, 2 - math.frexp(b)[1]) if is_known else _MOST_BITS + 1
    return number_holds(kind, bits), not is_refused


def computed_of_json(name: str, one: str | type, two: str | type) -> str | type | None:
    """Return the kind of `a <name> b`, which may raise, by the kinds of both; None if neither is of JSON."""
    if JSON not in (one, two) or not is_plain(one) or not is_plain(two) or name not in _BITS:
        return None
    are_numbers = [parts_of(each) is not None for each in (one, two)]
    if name in ("-", "/", "//") or (name == "+" and any(are_numbers)) or (name == "%" and are_numbers[0]):
        return "number"
    return "text" if name == "+" and "text" in (one, two) else JSON


_BITS: dict[str, Any] = {
    "+": lambda one, two: max(one, two) + 1, "-": lambda one, two: max(one, two) + 1, "*": lambda one, two: one + two,
    "/": lambda one, two: one + 1, "//": lambda one, two: one + 1, "%": lambda one, two: two + 1,
}  # fmt: skip


def is_positive(name: str, a: Any, b: Any, are_true: tuple[bool, bool]) -> bool:
    """Whether `a <name> b` is a sum of a number that counts as true and another, neither below 0."""
    parts = (parts_of_value(a), parts_of_value(b))
    return name == "+" and any(are_true) and all(each is not None and each[0] == "count" for each in parts)


def summed(holds: str | type | None) -> tuple[str | type, bool] | None:
    """Return the kind of a sum of any number of such values, and whether it cannot raise; None for other values."""
    if holds is None:
        return COUNT, True
    parts = parts_of(holds)
    if parts is None:
        return None
    kind = parts[0] if parts[0] in _WHOLE else "number"  # without items it is the whole number 0
    return number_holds(kind, parts[1] and parts[1] + _USUAL_BITS), parts[0] in _WHOLE or not _is_large(parts)


def negated(holds: str | type) -> str | type | None:
    """Return the kind of `-value`, `+value` and `abs(value)`; None for other values."""
    parts = parts_of(holds)
    return None if parts is None else number_holds("int" if parts[0] == "count" else parts[0], parts[1])


def rounded(holds: str | type) -> str | type | None:
    """Return the kind of a number that is rounded to some digits; None for other values."""
    parts = parts_of(holds)
    return None if parts is None else number_holds(parts[0], parts[1] and parts[1] + 1)


def whole_of(holds: str | type) -> str | type | None:
    """Return the kind of the whole number that is made of a number; None if there may be none."""
    parts = parts_of(holds)
    if parts is None or (parts[0] not in _WHOLE and parts[1] is None):
        return None
    return number_holds(*parts) if parts[0] in _WHOLE else number_holds("int", parts[1] and parts[1] + 1)


def real_of(holds: str | type) -> str | type | None:
    """Return the kind of the float that is made of a number; None if the number may be too large."""
    parts = parts_of(holds)
    if parts is None or _is_large(parts):
        return None
    return number_holds("real", parts[1] and parts[1] + 1)
