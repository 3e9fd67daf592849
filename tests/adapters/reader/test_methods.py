"""Methods of plain values and operators give what CPython gives, and say nothing wrong of what is not known."""

from __future__ import annotations

import copy
import datetime
import decimal
import operator
import random
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from teola_plugin.adapters.reader import methods, operators
from teola_plugin.adapters.reader.values import Unknown
from tests.adapters.reader.oracle import SAMPLES, agree, both_methods, judge_unknown, new_run, outcome, with_hole
from tests.adapters.reader.test_natives import VALUES

OBJECTS: tuple[Any, ...] = (
    "", "a b c", "Abc-12", "  x\ny ", "{} {}", "{a}-{b:>4}", "{0!r:5}", "%s", b"ab cd", 5, -255, True, 2.5, [], [1,
    2, 1],
    ["b", "a"], [[1], 2], (1, 2, 1), {}, {"a": 1, "b": [2]}, {1: 2}, {1, 2}, frozenset({1}), deque([1, 2, 3]),
    Counter("abca"), OrderedDict(a=1, b=2), defaultdict(list, {"a": [1]}), range(5), slice(1, 5), re.compile("a(b)?"),
    re.compile(r"\s+"), datetime.datetime(2024, 5, 17, 12, 30), datetime.date(2024, 2, 29), datetime.time(1, 2),
    datetime.timedelta(hours=5), decimal.Decimal("1.25"), Fraction(3, 7),
)  # fmt: skip

CASES = [
    (value, name)
    for value in OBJECTS
    for name in sorted(methods.READ.get(type(value), frozenset()) | methods.WRITE.get(type(value), frozenset()))
]


def case_id(case: tuple[Any, str]) -> str:
    return f"{type(case[0]).__name__}.{case[1]}"


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_a_method_gives_what_cpython_gives(case: tuple[Any, str]) -> None:
    value, name = case
    chance = random.Random(case_id(case))
    for _ in range(40):
        args = tuple(chance.choices(VALUES, k=chance.choice((0, 1, 1, 1, 2, 3))))
        native, ours = both_methods(value, name, args, {})
        assert agree(native, ours), (value, name, args, native, ours)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_nothing_wrong_is_said_of_a_method(case: tuple[Any, str]) -> None:
    value, name = case
    chance = random.Random(case_id(case))
    for holds in [*SAMPLES] * 8:
        hole = Unknown(holds, frozenset(["model"]))
        args = list(chance.choices(VALUES, k=chance.choice((0, 1, 1, 2, 3))))
        given: list[Any] = [value, args]
        if chance.random() < 0.4 and type(value) in (list, dict, tuple, deque):
            given[0] = with_hole(value, hole, chance) if type(value) is not deque else deque([1, hole, 2])
        elif args:
            at = chance.randrange(len(args))
            args[at] = with_hole(args[at], hole, chance)
        if given[0] is hole:
            continue
        how, wrong = judge_unknown(
            lambda run, it: methods.method(run, it[0], name, tuple(it[1]), {}),
            lambda it: getattr(it[0], name)(*it[1]),
            given,
            hole,
        )
        assert not wrong, (given, holds, how, wrong)


TEXT_METHODS = sorted(methods.READ[str])


@pytest.mark.parametrize("name", TEXT_METHODS)
def test_nothing_wrong_is_said_of_a_method_of_an_unknown_text(name: str) -> None:
    chance = random.Random(name)
    for _ in range(150):
        hole = Unknown("text", frozenset(["model"]))
        given = [hole, list(chance.choices(VALUES, k=chance.choice((0, 1, 1, 2, 3))))]
        how, wrong = judge_unknown(
            lambda run, it: methods.unknown_method(run, it[0], name, tuple(it[1]), {}),
            lambda it: getattr(it[0], name)(*it[1]),
            given,
            hole,
        )
        assert not wrong, (given, how, wrong)


# --- operators -------------------------------------------------------------------------------------------------------

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "<<": operator.lshift, ">>": operator.rshift, "&": operator.and_,
    "|": operator.or_, "^": operator.xor, "@": operator.matmul,
}  # fmt: skip
IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.iadd, "-": operator.isub, "*": operator.imul, "|": operator.ior, "&": operator.iand,
    "%": operator.imod,
}  # fmt: skip
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "in": lambda a, b: a in b, "not in": lambda a, b: a not in b,
}  # fmt: skip
ITEMS = (*VALUES, slice(1, None), slice(None, None, -1), slice(0, 2), "%s and %s", "%(a)s", "%d", "%5.1f", "%")


def subscript(owner: Any, at: Any) -> Any:
    return owner[at]


def set_item(owner: Any, at: Any) -> Any:
    owner[at] = [5]


def del_item(owner: Any, at: Any) -> Any:
    del owner[at]


Operation = tuple[str, Callable[[Any, Any, Any], Any], Callable[[Any, Any], Any]]
OPERATIONS: list[Operation] = [
    *[(name, lambda run, a, b, n=name: operators.binary(run, n, a, b), act) for name, act in BINARY.items()],
    *[(name + "=", lambda run, a, b, n=name: operators.in_place(run, n, a, b), act) for name, act in IN_PLACE.items()],
    *[(name, lambda run, a, b, n=name: operators.compare(run, n, a, b), act) for name, act in COMPARE.items()],
    ("[]", operators.subscript, subscript),
    ("[]=", lambda run, a, b: operators.set_item(run, a, b, [5]), set_item),
    ("del", operators.del_item, del_item),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each[0])
def test_an_operator_gives_what_cpython_gives(operation: Operation) -> None:
    name, ours, theirs = operation
    chance = random.Random(name)
    for _ in range(1500):
        a, b = chance.choice(ITEMS), chance.choice(ITEMS)
        if name in ("**", "<<", "*", "*=") and b == 10**20:
            continue  # CPython would compute for ever
        one, two = copy.deepcopy((a, b)), copy.deepcopy((a, b))
        native = outcome(lambda one=one: (theirs(*one), *one))
        read = outcome(lambda two=two: (ours(new_run(), *two), *two))
        assert agree(native, read), (name, a, b, native, read)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each[0])
@pytest.mark.parametrize("holds", [*SAMPLES])
def test_nothing_wrong_is_said_by_an_operator(operation: Operation, holds: str) -> None:
    name, ours, theirs = operation
    chance = random.Random(name + holds)
    for _ in range(300):
        hole = Unknown(holds, frozenset(["model"]))
        given = [chance.choice(ITEMS), chance.choice(ITEMS)]
        at = chance.randrange(2)
        given[at] = with_hole(given[at], hole, chance)
        how, wrong = judge_unknown(lambda run, it: ours(run, *it), lambda it: theirs(*it), given, hole)
        assert not wrong, (name, given, holds, how, wrong)
