"""Operators over values that may be unknown.

Each returns CPython's result or `Unknown`, or raises `Undecided` or `Barrier`.
"""

from __future__ import annotations

import operator
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from teola_plugin.adapters.reader import (
    amounts,
    arrays,
    bounds,
    dataframe_uses,
    dataframes,
    foreign,
    hints,
    natives_files,
    taking,
    texts,
    unknowns,
)
from teola_plugin.adapters.reader.asking import NOT_MINE
from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.heap import MAPPINGS, Each, changed_by, end_of, of_lists
from teola_plugin.adapters.reader.table import (
    VIEWS,
    is_key,
    is_open_key,
    is_text,
    is_unknown,
    kind_of,
    known,
    may_be_shared,
    require_no_decimals,
    require_order,
    unknown_atom,
    unknown_number,
    walked,
)
from teola_plugin.adapters.reader.values import (
    ANYWHERE,
    ARRAYS,
    STALE,
    Barrier,
    Lazy,
    Opaque,
    Perhaps,
    Stalled,
    Undecided,
    Unknown,
    isinstance_of,
    shown,
)

formatted = texts.formatted
percent = texts.percent

_PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "<<": operator.lshift, ">>": operator.rshift, "&": operator.and_,
    "|": operator.or_, "^": operator.xor, "@": operator.matmul, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.iadd, "-": operator.isub, "*": operator.imul, "&": operator.iand, "|": operator.ior,
    "^": operator.ixor,
}  # fmt: skip

_UNARY: dict[str, Callable[[Any], Any]] = {"-": operator.neg, "+": operator.pos, "~": operator.invert}

SEQUENCES = (list, tuple, str, bytes, bytearray)
MUTABLE = (list, dict, set, deque, OrderedDict, Counter, defaultdict)
NUMBERS = (int, float, bool, complex)
REUSED = (int, float, complex, str, bytes, tuple, frozenset, range, bool, type(None))
"""Types where CPython may use the same object for equal values."""
ATOMS = (int, float, bool, complex, str, bytes, type(None))


# --- arithmetic ------------------------------------------------------------------------------------------------------


def binary(run: Any, name: str, a: Any, b: Any) -> Any:
    """Return the result of `a <name> b`."""
    kind, other = type(a), type(b)
    if kind in NUMBERS and other in NUMBERS:
        _bound_numbers(name, a, b)
        return _PLAIN[name](a, b)
    if isinstance_of(a, Opaque) or isinstance_of(b, Opaque):
        return _combined(run, name, a, b)
    if (is_unknown(run, a) or is_unknown(run, b)) and not (name == "%" and kind is str and unknown_atom(b)):
        return _unknown_binary(run, name, a, b)
    if name == "%" and kind in (str, bytes):
        return texts.percent(run, a, b)
    require_no_decimals(a, b)
    _bound(run, name, a, b)
    if kind is Counter or (name in "-&^" and kind in (set, frozenset)):
        run.require_known(a, b)
    found = _PLAIN[name](a, b)
    return run.keep_order(found, a, b) if type(found) in (set, frozenset) else found


def _combined(run: Any, name: str, a: Any, b: Any) -> Any:
    if name == "/" and (path := natives_files.joined(a, b)) is not None:
        return path
    if arrays.is_array(a) or arrays.is_array(b):
        return arrays.binary(run, name, a, b)
    if name == "|":
        found = run.asker.combine(run, a, b)
        if found is not NOT_MINE:
            return found
        if (united := hints.united(a, b)) is not None:
            return united
    if is_unknown(run, a) or is_unknown(run, b):
        raise Undecided
    return _PLAIN[name](a, b)


def _bound_numbers(name: str, a: Any, b: Any) -> None:
    if type(a) in (int, bool) and type(b) in (int, bool):
        if name == "*":
            bounds.bits(a.bit_length() + b.bit_length())
        elif name == "**" and b > 0:
            bounds.bits(a.bit_length() * b)
        elif name == "<<" and b > 0:
            bounds.bits(a.bit_length() + b)


def _bound(run: Any, name: str, a: Any, b: Any) -> None:
    if name == "*":
        for one, two in ((a, b), (b, a)):
            if (type(one) in SEQUENCES or type(one) is deque) and type(two) in (int, bool):
                bounds.items(run, len(one) * max(0, two))
    elif name == "+":
        if type(a) in SEQUENCES and type(a) is type(b):
            size = len(a) + len(b)
            bounds.characters(run, size) if type(a) in (str, bytes) else bounds.items(run, size)
    elif name == "**" and type(a) is Fraction and type(b) is int:
        bounds.bits((a.numerator.bit_length() + a.denominator.bit_length()) * abs(b))
    elif name == "|" and type(a) in MUTABLE and type(b) in MUTABLE:
        bounds.items(run, len(a) + len(b))


def _unknown_binary(run: Any, name: str, a: Any, b: Any) -> Any:
    """Return results that cannot raise: of texts, lists, nearby times and numbers small enough for a float."""
    if arrays.is_array(a) or (arrays.is_array(b) and type(a) is not str):
        return arrays.binary(run, name, a, b)
    if name == "+" and is_text(a) and is_text(b):
        text: Unknown = run.unknown(a, b, holds="text", is_safe=True)
        text.is_true = run.is_true(a) or run.is_true(b)
        return text
    if (found := unknowns.arithmetic(run, name, a, b)) is not None:
        return found
    if name == "+" and holds_texts(run, a) and holds_texts(run, b):
        return run.unknown(a, b, holds="texts", is_safe=True)
    if name in _OF_SETS and type(a) is type(b) is set and (each := _each_of_sets(run, a, b)) is not None:
        return run.taint_with(set(), each)
    if name == "+" and _is_list(a) and _is_list(b):
        over = a.over if type(a) is type(b) is Unknown and len(a.over) == 1 and a.over == b.over else ()
        return Unknown("list", run.sources(a, b), over=over)
    _note_refused(run, _PLAIN[name], a, b)
    raise Undecided


_OF_SETS = ("&", "-", "|", "^")


def _each_of_sets(run: Any, one: Any, two: Any) -> Each | None:
    """Return what is known of the items of two sets together."""
    first, second = run.each_of(one), run.each_of(two)
    return None if first is None or second is None else first.joined(second)


def _note_refused(run: Any, operation: Callable[[Any, Any], Any], a: Any, b: Any) -> None:
    """Note that the operation raises whatever the reply, if all possible values of the two kinds are refused."""
    pairs = [(one, two) for one in _samples_of(a) for two in _samples_of(b)]
    if pairs and not any(_takes(operation, one, two) for one, two in pairs):
        run.raises()


def _takes(operation: Callable[[Any, Any], Any], one: Any, two: Any) -> bool:
    try:
        operation(one, two)
    except TypeError:
        return False
    except Exception:  # of these samples alone
        return True
    return True


def _samples_of(value: Any) -> tuple[Any, ...]:
    if type(value) is Unknown:
        return ([],) if kind_of(value) in ("texts", "list") else texts.samples(kind_of(value))
    return (value,) if type(value) in ATOMS else ()


def holds_texts(run: Any, value: Any) -> bool:
    """Whether the value is a list of texts, known or unknown."""
    if type(value) is list:
        each = run.each_of(value)
        return each is not None and each.holds in ("text", None)
    return kind_of(value) == "texts"


def _is_list(value: Any) -> bool:
    return type(value) is list or kind_of(value) in ("texts", "list")


def unary(run: Any, name: str, value: Any) -> Any:
    """Return the result of `-value`, `+value`, `~value`, `not value`."""
    if name == "not":
        return not truth(run, value)
    if arrays.is_array(value):
        return arrays.unary(run, name, value)
    if name in ("-", "+") and unknown_number(value):
        return run.unknown(value, holds=amounts.negated(value.holds), is_safe=True)
    known(run, value)
    require_no_decimals(value)
    if type(value) is Counter:
        run.require_known(value)
    return _UNARY[name](value)


def in_place(run: Any, name: str, a: Any, b: Any) -> Any:
    """Return `a` after `a <name>= b`."""
    if (lists := changed_by(a)) is not a:
        in_place(run, name, lists, b)
        return a
    if type(a) is Unknown:
        run.forget_truth(a)
    is_number = type(b) in ATOMS or (unknown_number(b) and name == "+" and kind_of(a) == amounts.JSON)
    if arrays.is_changed(a) or (may_be_shared(a) and name in _IN_PLACE and not is_number):
        raise Barrier("it changes a value that is not known yet")
    if kind_of(a) == "texts" and name in _IN_PLACE and not holds_texts(run, b):
        a.holds = "any"
    if type(a) not in MUTABLE or name not in _IN_PLACE or isinstance_of(b, Opaque):
        return binary(run, name, a, b)
    run.touch(a)
    run.escapes(a, b)
    if isinstance_of(a, dict):
        run.changes.changes("update", a)
    if name == "+" and type(a) in (list, deque) and (type(b) is Unknown or (type(b) is list and is_unknown(run, b))):
        taking.grow(run, a, b)
        return a
    are_sets = type(a) is type(b) is set and name in _OF_SETS and (is_unknown(run, a) or is_unknown(run, b))
    if are_sets and (each := _each_of_sets(run, a, b)) is not None:
        return run.taint_with(a, each)
    if is_unknown(run, b) or (is_unknown(run, a) and type(a) is not list):
        run.taint(a)
        run.raises(b.sources if type(b) is Unknown else None)
        return a
    if is_unknown(run, a):
        return _added(run, name, a, b)
    if name == "*":
        _bound(run, name, a, b)
    try:
        operand = _in_place_operand(run, name, a, b)
        if type(a) is set:
            run.keep_order(a, a, operand)
        return _IN_PLACE[name](a, operand)
    except Undecided:
        run.taint(a)
        run.raises()
        return a


def _added(run: Any, name: str, a: list[Any], b: Any) -> Any:
    """Return a list of unknown content after `a <name>= b`."""
    if name == "*":
        _IN_PLACE[name](list[Any](), b)  # raises a TypeError for what is no number
        return a
    each = run.each_of(a)
    items = list(walked(run, b)) if name == "+" else _IN_PLACE[name](list[Any](), b)
    if each is not None:
        run.taint_with(a, each)
        run.gain(a, *items)
    return a


def _in_place_operand(run: Any, name: str, a: Any, b: Any) -> Any:
    if name == "+" and type(a) in (list, deque) and type(b) not in (int, str):
        require_order(run, b)
        if type(b) in SEQUENCES or type(b) in MUTABLE:
            bounds.items(run, len(a) + len(b))
        return walked(run, b) if type(b) is Lazy else b
    if type(a) is Counter:
        run.require_known(a, b)
    elif type(a) is set:
        run.require_known(b)
    return b


# --- comparisons -----------------------------------------------------------------------------------------------------


def compare(run: Any, name: str, a: Any, b: Any) -> Any:
    """Return the result of `a <name> b`."""
    if type(a) in ATOMS and type(b) in ATOMS and name in _PLAIN:
        return _PLAIN[name](a, b)
    if name in ("is", "is not"):
        return _identity(run, name == "is", a, b)
    if name in ("in", "not in"):
        return _membership(run, name == "in", a, b)
    if arrays.is_array(a) or arrays.is_array(b):
        return arrays.compare(run, name, a, b)
    if type(a) is Unknown or type(b) is Unknown:
        return _unknown_comparison(run, name, a, b)
    if dataframes.OfPandas in (type(a), type(b)):
        return dataframe_uses.compared(run, _PLAIN[name], a, b)
    if name in ("==", "!="):
        return _equality(run, name == "==", a, b)
    run.require_known(a, b)
    known(run, a, b)
    require_no_decimals(a, b)
    return _PLAIN[name](a, b)


def _equality(run: Any, is_equal: bool, a: Any, b: Any) -> Any:
    kind = type(a)
    if (kind is type(b) and kind in (list, tuple, dict, set) and not (is_unknown(run, a) or is_unknown(run, b))
            and len(a) != len(b)):  # fmt: skip
        return not is_equal
    if isinstance_of(a, Opaque) or isinstance_of(b, Opaque):
        return _opaque_equality(is_equal, a, b)
    if kind is list and type(b) is list and a and all(map(_is_the_same, a, b)):  # Python looks at identity first
        known(run, a, b)
        return is_equal
    run.require_known(a, b)
    known(run, a, b)
    return (a == b) is is_equal


def _is_the_same(one: Any, two: Any) -> bool:
    """Whether two items of lists are one message, or one unknown message."""
    return one is two and (kind_of(one) == "message" or facts_of(type(one)).is_model)


def _opaque_equality(is_equal: bool, a: Any, b: Any) -> Any:
    """Compare foreign objects, which must compare by identity; a plain object never equals a foreign object.

    Raises: Barrier for foreign objects with their own `__eq__`.
    """
    for one in (a, b):
        if isinstance_of(one, Opaque) and not _has_default_equality(one.held):
            raise Barrier("it compares objects that are no plain data")
    if isinstance_of(a, Opaque) and isinstance_of(b, Opaque):
        return (a.held is b.held) is is_equal
    return not is_equal


def _has_default_equality(held: Any) -> bool:
    return not _defines(type(held), "__eq__", "__ne__")


def _defines(kind: type, *names: str) -> bool:
    """Whether a class apart from `object` defines any of the special methods."""
    return any(foreign.owner_in_mro(kind, name) not in (None, object) for name in names)


def _unknown_comparison(run: Any, name: str, a: Any, b: Any) -> Any:
    if a is b and name in ("==", "!=") and kind_of(a) in ("text", "texts", "bool"):
        return name == "=="
    if arrays.is_numeric(a) or arrays.is_numeric(b):
        return arrays.compare(run, name, a, b)
    is_safe = name in ("==", "!=")
    if not is_safe:
        _note_refused(run, _PLAIN[name], a, b)
        are_texts = is_text(a) and is_text(b)
        is_safe = are_texts or all(unknown_number(each) or type(each) in (int, float, bool) for each in (a, b))
    found = run.unknown(a, b, holds="bool", is_safe=is_safe)
    if type(b) is int and name in _LEAST and type(a) is Unknown and a.holds == amounts.COUNT and type(a.of) is tuple:
        more, is_true = _LEAST[name]
        if b + more > 0:
            found.of = (a.of[0], is_true, a.of[2], *((1,) if b + more > 1 else ()))
    return found


_LEAST = {">": (1, True), ">=": (0, True), "==": (0, True), "<": (0, False), "<=": (1, False), "!=": (0, False)}
"""How many items more than the number a length has at least, and the truth of the comparison which shows that."""


def _identity(run: Any, is_same: bool, a: Any, b: Any) -> Any:
    if type(a) is Unknown or type(b) is Unknown:
        if a is b:
            return is_same
        found = run.unknown(a, b, holds="bool", is_safe=True)
        found.of = run.shown(a, not is_same) if kind_of(a) == "match" and b is None else None
        return found
    if a is not b and (run.stands_in(a) or run.stands_in(b)):
        return Unknown("bool", ANYWHERE)
    if a is STALE or b is STALE:
        raise Barrier("it compares what is not known by `is`")
    if isinstance_of(a, Opaque) and isinstance_of(b, Opaque):
        if type(a) is type(b) is dataframes.OfPandas and not (a.is_own or b.is_own):
            return (a.root is b.root) is is_same
        if a.is_own != b.is_own or (a.is_own and a is not b):
            return _own_identity(is_same, a, b)
        return (a.held is b.held) is is_same
    if a is b or type(a) is not type(b) or type(a) not in REUSED or type(a) in (bool, type(None)):
        return (a is b) is is_same
    raise Barrier("it compares plain values by `is`", hint="compare them by ==")


def _own_identity(is_same: bool, a: Opaque, b: Opaque) -> bool:
    return (a is b) is is_same


def _membership(run: Any, is_in: bool, a: Any, b: Any) -> Any:
    b = b if (lists := of_lists(b)) is None else lists
    kind = type(b)
    if type(a) is str and (items := run.open_items(b)) is not None:
        is_open = type(items.get(a)) is Perhaps
        return run.unknown(b, holds="bool", is_safe=True) if is_open else (a in items) is is_in
    if kind is Unknown:
        safe = (kind_of(b) == "text" and is_text(a)) or kind_of(b) == "texts" or (b.is_dict and is_key(a))
        if not safe:
            run.use_up(b)
        found = run.unknown(a, b, holds="bool", is_safe=safe)
        found.of = run.shown(b, is_in, a) if kind_of(b) == "text" and type(a) is str and a else None
        return found
    if type(b) is dataframes.OfPandas:
        return dataframe_uses.contains(run, b, a) is is_in
    if isinstance_of(b, Opaque):
        return (a in run.environment(a)) is is_in if foreign.is_environment(b.held) else a in b
    if is_unknown(run, b):
        is_hashable = is_key(a)
        is_safe = (kind in (list, deque) and not _may_compare_arrays(run, a, b)) or (
            kind in (set, *MAPPINGS) and is_hashable
        )
        found = run.unknown(a, b, holds="bool", is_safe=is_safe)
        found.of = run.shown(b, is_in, a) if kind in MAPPINGS and is_hashable else None
        return found
    if type(a) is Unknown or (type(a) is tuple and is_key(a) and kind in MAPPINGS and is_open_key(run, a)):
        return _unknown_membership(run, is_in, a, b)
    if kind in (list, tuple, deque) or kind is VIEWS[1]:
        return _listed(run, is_in, a, b)
    if kind is Lazy:
        return _found(run, a, walked(run, b)) is is_in
    run.require_known(a)
    return (a in b) is is_in


def _may_compare_arrays(run: Any, *values: Any) -> bool:
    """Whether values may be arrays of numpy, or hold some: a comparison may be an array, which has no truth."""
    return not ARRAYS.isdisjoint(run.sources(*values))


def _listed(run: Any, is_in: bool, a: Any, elements: Any) -> Any:
    unsure: list[Any] = []
    for each in elements:
        run.tick()
        found = True if each is a else compare(run, "==", each, a)
        if type(found) is Unknown:
            unsure.append(found)
        elif found:
            return is_in  # whatever the elements before
    is_safe = not any(map(arrays.may_be_array, unsure))
    return run.unknown(*unsure, holds="bool", is_safe=is_safe) if unsure else not is_in


def _found(run: Any, a: Any, elements: Any) -> bool:
    """Whether an element equals `a`, up to the first match. Raises: Undecided at an unknown element."""
    for each in elements:
        run.tick()
        if each is a or truth(run, compare(run, "==", each, a)):
            return True
    return False


def _unknown_membership(run: Any, is_in: bool, a: Any, b: Any) -> Any:
    kind = type(b)
    if kind in (list, tuple, deque) or kind in VIEWS:
        if any(each is a for each in b):
            return is_in
        return (not is_in) if not b else run.unknown(a, holds="bool", is_safe=not _may_compare_arrays(run, a, b))
    if kind is str:
        return run.unknown(a, holds="bool", is_safe=kind_of(a) == "text")
    if kind in (dict, set, frozenset, OrderedDict, defaultdict, Counter) and is_key(a):
        found = run.unknown(a, holds="bool", is_safe=True)
        found.of = run.shown(b, is_in, a) if kind in MAPPINGS else None
        return found if b else not is_in
    raise Undecided


def truth(run: Any, value: Any) -> bool:
    """Whether a value counts as true. Raises: Undecided."""
    kind = type(value)
    if kind is bool:
        return value  # type: ignore[no-any-return]
    if kind is dataframes.OfPandas:
        return dataframe_uses.truth(run, value)
    if isinstance_of(value, Opaque):
        return _opaque_truth(value)
    if kind is Unknown or is_unknown(run, value):
        if run.is_true(value):
            return True
        arrays.truth(run, value)
        raise Undecided
    return bool(value)


def _opaque_truth(value: Opaque) -> bool:
    """Whether an object counts as true: always in classes with neither `__bool__` nor `__len__`."""
    held = value.held
    if (number := arrays.held_truth(value)) is not None:
        return number
    if isinstance_of(held, Opaque) or type(held) is type or not _defines(type(held), "__bool__", "__len__"):
        return True
    return bool(value)


# --- items -----------------------------------------------------------------------------------------------------------


def subscript(run: Any, held: Any, at: Any) -> Any:
    """Return `held[at]`."""
    kind = type(held)
    if type(at) is str and (items := run.open_items(held)) is not None:
        if type(items[at]) is not Perhaps:
            return items[at]
        run.raises(run.sources(held), error=KeyError)
        return items[at].value
    if arrays.is_array(held):
        return arrays.item(run, held, at)
    if kind is Unknown:
        if kind_of(held) in ("text", "texts", "list") and type(at) is slice and _whole_numbers(at):
            part = Unknown(held.holds, run.sources(held, at), over=held.over)
            part.of = texts.opening_between(held, at)
            return part
        if kind_of(held) == "message":
            run.raises()
        if kind_of(held) == "any":
            run.fill_perhaps()
        if held.is_dict and type(at) is str:
            return run.unknown(held, error=KeyError)
        if kind_of(held) in ("text", "texts") and type(at) in ATOMS and type(at) not in (int, bool):
            run.raises()
        inner = {
            "text": "text",
            "texts": "texts" if type(at) is slice else _of_texts(at),
            amounts.JSON: amounts.JSON,
        }.get(kind_of(held), "any")
        if kind_of(held) == amounts.JSON and (type(at) is str or _is_whole(at)):
            for each in (TypeError, KeyError, *([] if type(at) is str else [IndexError])):
                run.raises(run.sources(held, at), error=each)
            return run.unknown(held, at, holds=amounts.JSON, is_safe=True)
        is_sequence = kind_of(held) in ("text", "texts", "list")
        error = IndexError if is_sequence and _is_whole(at) else Exception
        return run.unknown(held, at, holds=inner, is_safe=is_sequence and _is_there(run, held, at), error=error)
    if isinstance_of(held, Opaque):
        return _opaque_subscript(run, held, at)
    if is_unknown(run, held):
        if kind is list and type(at) is slice and _whole_numbers(at):
            each = run.each_of(held)
            if each is None:
                return run.unknown(held, at, is_safe=True)
            return run.taint_with([], each.joined(Each(None, run.sources(at))))
        if kind is list and type(at) is int and (each := run.each_of(held)) is not None:
            is_safe = _is_there(run, held, at)
            return run.unknown(held, holds=each.holds or "any", is_safe=is_safe, error=IndexError)
        if kind in MAPPINGS and (each := run.each_of(held)) is not None:
            return _item_of_dict(run, held, at, each)
        return run.changed_item(held, at)
    if type(at) is slice and run.sources(at):
        holds = "text" if kind is str else "texts" if kind is list and held and _all_texts(held) else "any"
        return run.unknown(held, at, holds=holds, is_safe=kind in (str, list, tuple) and _whole_numbers(at))
    if kind in MAPPINGS and is_open_key(run, at) and (each := run.each_of(held)) is not None:
        return _item_of_dict(run, held, at, each)
    if type(at) is Unknown:
        are_texts = kind in (list, tuple, dict) and _all_texts(held)
        end = end_of(at) if kind in (list, tuple, str) else None
        is_there = end is not None and end <= len(held)
        holds = "text" if kind is str else _of_texts(at) if are_texts else "any"
        error = IndexError if kind in (list, tuple, str) and _is_whole(at) else Exception
        return run.unknown(at, holds=holds, is_safe=is_there, error=error)
    run.require_known(at)
    if kind is defaultdict and at not in held:
        run.touch(held)
    if type(at) is slice and kind in SEQUENCES:
        run.tick(1 + len(held) // 50)
    return held[at]


def item_of(run: Any, held: Any) -> tuple[str | type, bool]:
    """Return the kind of an item of an unknown value, and whether the value certainly is a list, tuple or text."""
    if type(held) is Unknown:
        kind = kind_of(held)
        return "text" if kind in ("text", "texts") else "any", kind in ("text", "texts", "list")
    each = run.each_of(held) if type(held) is list else None
    holds = each.holds if each is not None and each.holds is not None and amounts.is_atom(each.holds) else "any"
    return holds, type(held) in (list, tuple)


def _item_of_dict(run: Any, held: Any, at: Any, each: Each) -> Any:
    """Return the item of a dict at a key, where the dict's content or the key is unknown."""
    is_hashed, lists = is_key(at), each.lists
    value = each.value
    if type(held) is Counter:
        value = amounts.either(value or amounts.COUNT, amounts.COUNT)
    elif type(held) is defaultdict and held.default_factory is not None:
        lists = run.lists_for(held, each, run.sources(at)) if held.default_factory is list else None
        made = "list" if lists else amounts.holds_of(held.default_factory())
        value = amounts.either(value or made, made)
        run.touch(held)
        run.taint_with(held, each.joined(Each(_kind_of_key(at), run.sources(at), value, lists)))
    is_made = is_hashed and (type(held) is Counter or (type(held) is defaultdict and held.default_factory is not None))
    holds = value if value is not None and (amounts.is_atom(value) or value == amounts.JSON) else "any"
    is_safe = is_made or run.has_key(held, at)
    found = run.unknown(held, at, holds=holds, is_safe=is_safe, error=KeyError if is_hashed else Exception)
    return found if lists is None else run.listed(lists, run.sources(held, at))


def _kind_of_key(at: Any) -> str | type:
    """Return the kind of a key, "any" for what is no text or number."""
    return holds if amounts.is_atom(holds := amounts.holds_of(at)) else "any"


def _kind_of_value(value: Any) -> str | type:
    """Return the kind of a value in a dict: also of what searches find."""
    is_found = type(value) is Unknown and type(value.holds) is str and value.holds in _FOUND
    return value.holds if is_found else _kind_of_key(value)


_FOUND = ("document", "found node", "text node")


def _opaque_subscript(run: Any, held: Opaque, at: Any) -> Any:
    if type(held) is dataframes.OfPandas:
        return dataframe_uses.subscript(run, held, at)
    if foreign.is_environment(held.held):
        return run.environment(at)[at]
    found = hints.subscripted(run, held, at)
    if found is None:
        raise Barrier(f"it reads an item of {shown(held)}")
    return found


def _is_there(run: Any, held: Any, at: Any) -> bool:
    """Whether a text or list that is not known certainly has an item at this place."""
    return type(at) is int and at in (0, -1, 1, -2) and run.is_true(held) and (at in (0, -1) or run.has_key(held, 1))


def _whole_numbers(at: slice) -> bool:
    """Whether slicing by these does not raise."""
    are_whole = all(_is_whole(each) or each is None for each in (at.start, at.stop))
    return are_whole and (at.step is None or (type(at.step) is int and at.step != 0))


def _is_whole(at: Any) -> bool:
    """Whether the value certainly is a whole number."""
    return type(at) is int or kind_of(at) == "int"


def _of_texts(at: Any) -> str:
    """Return the kind of an item of a container of texts; "any" where `at` may be a slice."""
    return "text" if amounts.is_atom(amounts.holds_of(at)) else "any"


def _all_texts(held: Any) -> bool:
    return all(type(each) is str for each in (held.values() if type(held) is dict else held))


def set_item(run: Any, held: Any, at: Any, value: Any, *, is_new: bool = False) -> None:
    """Store `held[at] = value`. `is_new`: if the value is a list, nothing else holds it."""
    if type(held) is dataframes.OfPandas:
        dataframe_uses.store(run, held, at, value)
        return
    held = changed_by(held)
    if unknowns.stores_in_found(run, held, at, value):
        return
    optional = run.optional_of(held) if type(at) is str else None
    _require_items(held, at, operator.setitem, value)
    _before_change(run, held)
    run.escapes(held, at, value)
    if type(at) is not slice:
        run.changes.changes("", held, (value,))
    if kind_of(held) == "texts" and not is_text(value):
        held.holds = "any"
    if optional is not None:
        held[at] = value
        run.taint_but(held, {key: each for key, each in optional.items() if key != at})
        return
    is_open = is_open_key(run, at) if type(held) in MAPPINGS else is_unknown(run, at)
    if is_unknown(run, held) or is_open or (is_unknown(run, value) and type(at) is slice):
        if type(at) is slice:
            if type(value) is Lazy:
                raise Stalled("an iterator is used up")
            run.use_up(value)
        _lose(run, held, at, value, is_new=is_new)
        return
    try:
        if type(held) is list and type(at) is slice:
            held[at] = list(walked(run, value))
        else:
            held[at] = value
    except Undecided:
        _lose(run, held, at)


def del_item(run: Any, held: Any, at: Any) -> None:
    """Delete `held[at]`."""
    held = changed_by(held)
    _require_items(held, at, operator.delitem)
    _before_change(run, held)
    run.changes.changes("pop", held)
    if is_unknown(run, held) or is_unknown(run, at):
        _lose(run, held, at)
        run.raises(at.sources if type(at) is Unknown else None)
        return
    try:
        del held[at]
    except Undecided:
        _lose(run, held, at)
        run.raises()


def _require_items(held: Any, at: Any, change: Callable[..., None], *value: Any) -> None:
    """Require items that can be changed. Raises: the error of the change, Stalled, Barrier."""
    if isinstance_of(held, Opaque):
        change(held, at, *value)
    if foreign.in_mro(type(held), f"__{change.__name__}__") is foreign.MISSING:
        may_be_index = foreign.in_mro(type(at), "__index__") is not foreign.MISSING and type(at) not in ATOMS
        if type(at) is Unknown or isinstance_of(at, Opaque) or may_be_index:
            raise Stalled("it changes an item of a value without any, and it is not known at what place")
        change(held, at, *value)


def _before_change(run: Any, held: Any) -> None:
    if may_be_shared(held):
        raise Barrier("it changes a value that is not known yet")
    if type(held) is not Unknown:
        run.touch(held)


def _lose(run: Any, held: Any, at: Any, *values: Any, is_new: bool = False) -> None:
    """Note that the content of the container is unknown from here on, and the store itself may have raised."""
    run.forget_truth(held)
    if type(held) is Unknown:
        run.raises(held.sources)
        return
    each = run.each_of(held) if type(held) in MAPPINGS and values else None
    new = None if each is None else stored(run, held, at, values[0], each, is_new=is_new)
    run.taint(held)
    if not (is_key(at) and type(held) in MAPPINGS):
        run.raises(run.sources(at) if is_open_key(run, at) else None)
    if each is not None:
        run.taint_with(held, each.joined(new))
        run.note_key(held, at)


def stored(run: Any, held: Any, at: Any, value: Any, each: Each, *, is_new: bool) -> Each:
    """Return what is known of an item that is stored in a dict, of which `each` is known before."""
    lists = each.lists if each.lists is not None and of_lists(value) is each.lists.one else None
    if is_new and _is_list(value) and (lists := run.lists_for(held, each, run.sources(at))) is not None:
        run.put_into(lists, value)
    return Each(_kind_of_key(at), run.sources(at, value), "list" if lists is not None else _kind_of_value(value), lists)


def iterated(run: Any, value: Any) -> Iterator[Any]:
    """Return an iterator over the elements of a value, for a loop. Raises: Undecided, Barrier, TypeError."""
    return walked(run, value)
