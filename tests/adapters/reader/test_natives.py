"""Functions that the reader handles give what CPython gives, for arguments of all kinds."""

from __future__ import annotations

import ast
import base64
import copy
import datetime
import decimal
import fractions
import functools
import html
import itertools
import json
import math
import operator
import os
import random
import re
import statistics
import string
import textwrap
import urllib.parse
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest

from teola_plugin.adapters.reader import calls
from teola_plugin.adapters.reader.values import Opaque, Undecided, Unknown
from tests.adapters.reader.oracle import SAMPLES, agree, both, judge_unknown, new_run, with_hole

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 255, 10**20, 0.0, -0.0, 1.5, -2.25, float("inf"), 1 + 2j, "", "a", "b", "abc",
    "A b  c", "12", " 3 ", "1.5", "x=%s", "[1, 2]", '{"a": [1, 2.5, null]}', "a,b,c", "2024-05-17", "\n a\n  b",
    "<a&b>",
    "é", b"", b"ab", [], [1, 2, 3], [3, 1, 2], ["b", "a"], [[1], [2]], [(1, "a"), (2, "b")], [1, "a"], [0.5, 2],
    (), (1,), (2, 1), ("a", "b"), {}, {"a": 1, "b": 2}, {1: "x"}, {"b": [1], "a": (2,)}, set(), {1, 2}, frozenset({3}),
    range(4), range(0), deque([1, 2]), Counter("aab"), OrderedDict(a=1), datetime.date(2024, 5, 17),
    datetime.datetime(2024, 5, 17, 12, 30), datetime.timedelta(days=1), decimal.Decimal("1.10"),
    fractions.Fraction(1, 3),
)  # fmt: skip

FUNCTIONS: tuple[Callable[..., Any], ...] = (
    len, list, dict, set, frozenset, tuple, enumerate, zip, reversed, slice, all, any, sum, abs, bool, divmod, chr, ord,
    hex, bin, oct, round, int, float, complex, bytes, ascii, iter, range, str, repr, format, sorted, max, min, pow,
    functools.reduce, itertools.chain, itertools.islice, itertools.zip_longest, itertools.product,
    itertools.permutations, itertools.combinations, itertools.pairwise, itertools.accumulate, itertools.groupby,
    itertools.count, itertools.repeat, itertools.cycle, itertools.chain.from_iterable, itertools.filterfalse,
    math.ceil, math.floor, math.sqrt, math.log, math.isclose, math.gcd, math.prod, math.fsum, math.dist, math.trunc,
    operator.add, operator.sub, operator.mul, operator.mod, operator.eq, operator.ne, operator.lt, operator.contains,
    operator.getitem, operator.neg, operator.not_, operator.truth, operator.or_, operator.and_,
    statistics.mean, statistics.median, statistics.mode, statistics.stdev,
    textwrap.dedent, textwrap.fill, textwrap.shorten, textwrap.indent, string.capwords, ast.literal_eval,
    html.escape, html.unescape, json.dumps, json.loads, copy.copy, copy.deepcopy, os.path.join, os.path.splitext,
    os.path.basename, re.escape, re.split, re.findall, re.search, re.match, re.fullmatch, datetime.timedelta,
    datetime.date.fromisoformat,
    datetime.datetime.fromisoformat, decimal.Decimal, fractions.Fraction,
    deque, Counter, OrderedDict, defaultdict, urllib.parse.quote, urllib.parse.unquote, urllib.parse.urljoin,
    urllib.parse.urlencode, base64.b64encode, base64.b64decode, dict.fromkeys, int.from_bytes, bytes.fromhex,
    str.upper, str.split, str.join, list.copy, dict.get, str.maketrans, filter, map,
)  # fmt: skip


def named(function: Any) -> str:
    return str(getattr(function, "__qualname__", function))


@pytest.mark.parametrize("function", FUNCTIONS, ids=named)
def test_a_function_gives_what_cpython_gives(function: Callable[..., Any]) -> None:
    chance = random.Random(named(function))
    cases: list[tuple[Any, ...]] = [(), *((each,) for each in VALUES)]
    cases += [tuple(chance.choices(VALUES, k=2)) for _ in range(150)]
    cases += [tuple(chance.choices(VALUES, k=3)) for _ in range(60)]
    read = 0
    for args in cases:
        native, ours = both(function, args, {})
        assert agree(native, ours), (args, native, ours)
        read += ours[0] == native[0] == "value"
    assert read, "it is never read"


CALLS: tuple[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]], ...] = (
    (sorted, ([3, 1, 2],), {"reverse": True}), (sorted, (["bb", "a"],), {"key": len}),
    (sorted, ([1, "a"],), {"key": str}),
    (sorted, ([],), {"key": None}), (max, (["a", "bbb", "cc"],), {"key": len}), (min, ([],), {"default": 5}),
    (min, (3, 1, 2), {}), (max, (1, 2.5), {"key": abs}), (max, ([],), {}), (max, (1,), {}),
    (min, (1, 2), {"default": 1}),
    (sum, ([[1], [2]], []), {}), (sum, ([1, 2],), {"start": 10}), (sum, (["a"], ""), {}), (sum, ([0.1] * 10,), {}),
    (int, ("ff", 16), {}), (int, ("z",), {"base": 36}), (round, (2.675, 2), {}), (round, (5,), {"ndigits": -1}),
    (str, (b"ab", "utf-8"), {}), (dict, ([("a", 1)],), {"b": 2}), (dict, (), {"a": 1}),
    (enumerate, ("ab",), {"start": 3}),
    (zip, ([1], [1, 2]), {"strict": True}), (json.dumps, ({"b": 1, "a": [1, None]},), {"indent": 2, "sort_keys": True}),
    (json.dumps, ({"é": 1},), {"ensure_ascii": False}), (json.dumps, ({1, 2},), {"default": sorted}),
    (json.dumps, ([datetime.date(2024, 1, 2)],), {"default": str}), (json.dumps, ({1, 2},), {}),
    (json.loads, ('{"a": 1.5}',), {"parse_float": str}), (json.loads, ('{"a": {"b": 1}}',), {"object_hook": len}),
    (json.loads, ("{",), {}), (textwrap.wrap, ("a b c " * 30,), {"width": 20}),
    (functools.reduce, (max, [3, 1, 4]), {}),
    (functools.reduce, (operator.add, [], "x"), {}), (functools.reduce, (operator.add, []), {}),
    (itertools.groupby, ("aabbc",), {}), (itertools.groupby, (["a", "bb", "cc"],), {"key": len}),
    (itertools.accumulate, ([1, 2, 3], max), {}), (itertools.accumulate, ([1, 2],), {"initial": 5}),
    (itertools.takewhile, (bool, [1, 2, 0, 3]), {}), (itertools.dropwhile, (bool, [1, 0, 3]), {}),
    (itertools.starmap, (max, [(1, 2), (3, 0)]), {}), (itertools.product, ("ab",), {"repeat": 2}),
    (map, (str, [1, 2]), {}), (map, (max, [1, 5], [3, 2, 9]), {}), (map, (str.upper, ["a", "b"]), {}),
    (filter, (None, [0, 1, "", "a"]), {}), (filter, (str.isdigit, ["1", "a"]), {}),
    (re.sub, (r"(a)(b)", r"\2\1", "abab"), {}), (re.sub, ("a", str, "aba"), {}), (re.sub, ("a", len, "aba"), {}),
    (re.findall, (r"(\w)=(\d+)", "a=1, b=22"), {}), (re.split, (r",\s*", "a, b,c"), {"maxsplit": 1}),
    (re.search, ("A", "xa", re.IGNORECASE), {}), (re.search, ("(", "x"), {}), (re.subn, ("a", "b", "aa"), {"count": 1}),
    (re.finditer, ("a.", "abac"), {}), (re.match, (b"a", "a"), {}), (re.compile, ("a+",), {"flags": re.I}),
    (datetime.datetime.strptime, ("2024-05-17 10:11", "%Y-%m-%d %H:%M"), {}), (next, ([1],), {}),
    (pow, (3, 200, 7), {}),
    (html.escape, ("<'\">",), {"quote": False}), (format, (3.14159, ".2f"), {}), (format, (5, "05d"), {}),
    (format, ("a", ">5"), {}), (format, ([1], "5"), {}), (format, (datetime.date(2024, 5, 17), "%d.%m.%Y"), {}),
    (hash, ([],), {}), (hash, (5,), {}), (chr, (-1,), {}), (print, ("a",), {"sep": 1}), (print, ("a",), {"end": ""}),
    (copy.deepcopy, ({"a": [1, {2: (3, [4])}]},), {}), (defaultdict, (list, {"a": [1]}), {}), (callable, (5,), {}),
    (datetime.date, (2024, 5, 17), {}), (datetime.date, (2024, 13, 1), {}),
    (datetime.datetime, (2024, 5, 17), {"hour": 5}),
    (uuid.UUID, ("12345678123456781234567812345678",), {}), (uuid.UUID, ("x",), {}), (re.sub, ("a+", "b", "caat"), {}),
    (datetime.date.fromisoformat, ("2024-05-17",), {}),
    (datetime.datetime.combine, (datetime.date(2024, 1, 2), datetime.time(3)), {}),
)  # fmt: skip


@pytest.mark.parametrize("case", CALLS, ids=lambda case: named(case[0]))
def test_a_call_gives_what_cpython_gives(case: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]) -> None:
    function, args, kwargs = case
    native, _ = both(function, args, kwargs)
    _, ours = both(function, tuple(map(as_read, args)), {name: as_read(each) for name, each in kwargs.items()})
    assert ours == native


@pytest.mark.parametrize("function", FUNCTIONS, ids=named)
@pytest.mark.parametrize("holds", [*SAMPLES])
def test_nothing_wrong_is_said_of_what_is_not_known(function: Callable[..., Any], holds: str) -> None:
    chance = random.Random(named(function) + holds)
    for _ in range(120):
        hole = Unknown(holds, frozenset(["model"]))
        given = tuple(chance.choices(VALUES, k=chance.choice((1, 1, 2, 2, 3))))
        at = chance.randrange(len(given))
        given = tuple(with_hole(each, hole, chance) if i == at else each for i, each in enumerate(given))
        how, wrong = judge_unknown(
            lambda run, args: calls.call(run, Opaque(function), args, {}), lambda args: function(*args), given, hole
        )
        assert not wrong, (given, holds, how, wrong)


def as_read(value: Any) -> Any:
    """A function is an object of somebody else's to the reader."""
    return Opaque(value) if callable(value) else value


def test_lines_of_a_reply_are_wrapped() -> None:
    run, text = new_run(), Unknown("text")
    for function, holds in ((textwrap.wrap, "texts"), (textwrap.fill, "text")):
        for args, kwargs in (((text,), {}), ((text, 5), {}), ((text,), {"width": 5})):
            assert calls.call(run, Opaque(function), args, kwargs).holds == holds
        for args, kwargs in (((text, 0), {}), ((text, text), {}), ((text,), {"width": 5, "max_lines": 1})):
            with pytest.raises(Undecided):
                calls.call(run, Opaque(function), args, kwargs)
    assert not run.gates
