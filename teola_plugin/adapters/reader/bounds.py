"""Limits of one operation: sizes of results, and the time of a regular expression."""

from __future__ import annotations

import math
import re
import re._compiler as regex_compiler  # type: ignore[import-not-found]
import re._constants as regex  # type: ignore[import-not-found]
import re._parser as regex_parser  # type: ignore[import-not-found]
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from teola_plugin.adapters.reader.values import Barrier

ITEMS = 1_000_000
CHARACTERS = 10_000_000
BITS = 100_000
STEPS = 5_000_000
"""Steps of a regular expression; some 50 ms."""

SHORT = 16
"""The length of texts in which any pattern is fast."""

_PER_TICK = 50
"""Elements that C handles in the time of one operation of the reader."""


def items(run: Any, count: int) -> None:
    """Allow a result of `count` items. Raises: Barrier."""
    if count > ITEMS:
        raise Barrier("it makes a very large container")
    run.tick(1 + max(0, count) // _PER_TICK)


def characters(run: Any, count: int) -> None:
    """Allow a text of `count` characters. Raises: Barrier."""
    if count > CHARACTERS:
        raise Barrier("it makes a very large text")
    run.tick(1 + max(0, count) // 5_000)


def bits(count: int) -> None:
    """Allow an integer of `count` bits. Raises: Barrier."""
    if count > BITS:
        raise Barrier("it computes a very large number")


_WIDE = re.compile(r"\d{5,}")


def spec(text: str) -> None:
    """Allow a format specification. Raises: Barrier for a great width."""
    if len(text) > 4 and _WIDE.search(text):
        raise Barrier("it formats with a great width")


# --- regular expressions ---------------------------------------------------------------------------------------------

_REPEATS = (regex.MAX_REPEAT, regex.MIN_REPEAT, regex.POSSESSIVE_REPEAT)


@dataclass
class _Segment:
    """The repeated single characters of a pattern in front of `end`, a text that has to follow them.

    `choices`: in how many ways the options and alternatives among them may be taken.
    """

    runs: list[re.Pattern[Any]] = field(default_factory=list)
    end: str = ""
    choices: int = 1

    def tries(self, text: Any) -> tuple[int, int]:
        """Return in how many ways the segment is tried from one place of the text, and how many come past `end`.

        To one place of `end`, all lengths but one decide the last.
        """
        lengths = [1 + max((m.end() - m.start() for m in each.finditer(text)), default=0) for each in self.runs]
        ways = self.choices * math.prod(lengths)
        if not self.end or type(text) is not str:
            return ways, ways
        width = sum(lengths) - len(lengths) + 1 if self.choices == 1 else len(text)
        ends = _most_within(text, min(self.end, key=text.count), width)
        return ways, min(ways, ends * ways // max(lengths, default=1))


def _most_within(text: str, character: str, width: int) -> int:
    """Return how often a character occurs, at the most, within so many places of a text that follow each other."""
    places = [match.start() for match in re.finditer(re.escape(character), text)]
    first = most = 0
    for n, place in enumerate(places):
        while place - places[first] >= width:
            first += 1
        most = max(most, n - first + 1)
    return most


def _tree_of(pattern: re.Pattern[Any]) -> Any:
    return regex_parser.parse(pattern.pattern, pattern.flags & ~regex.SRE_FLAG_DEBUG)


class _Shape:
    """The parts of a pattern that decide the time: repeated single characters, and whether there are harder repeats."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        tree = _tree_of(pattern)
        self.is_hard = False
        self.segments = [_Segment()]
        self._flags = pattern.flags
        is_literal = not pattern.flags & re.IGNORECASE
        self.prefix = _prefix(tree) if is_literal else ""
        self._walk(tree, is_last=True, is_needed=is_literal)

    def _walk(self, tree: Any, *, is_last: bool, is_needed: bool = False) -> None:
        """Collect the parts. `is_needed`: no match goes round this part of the pattern."""
        for at, (op, argument) in enumerate(tree):
            if op is regex.LITERAL and is_needed and self.segments[-1] != _Segment():
                self.segments[-1].end = _prefix(list(tree)[at:])
                self.segments.append(_Segment())
            self._visit(op, argument, tree, is_last=is_last and at == len(tree) - 1, is_needed=is_needed)

    def _visit(self, op: Any, argument: Any, tree: Any, *, is_last: bool, is_needed: bool) -> None:
        if op in _REPEATS:
            low, high, body = argument
            if high is not regex.MAXREPEAT and high <= 1:
                self.segments[-1].choices *= 1 + high - low
                self._walk(body, is_last=False)
            elif len(body) == 1 and body[0][0] in (regex.IN, regex.ANY, regex.LITERAL, regex.NOT_LITERAL):
                if not (is_last and op is not regex.MIN_REPEAT):
                    self.segments[-1].runs.append(self._run_of(tree, body))
            elif high is regex.MAXREPEAT or low != high or _repeats(body):
                self.is_hard = True
        elif op is regex.SUBPATTERN:
            _, added, dropped, body = argument
            self._walk(body, is_last=is_last, is_needed=is_needed and not added and not dropped)
        elif op is regex.BRANCH:
            self.segments[-1].choices *= len(argument[1])
            for branch in argument[1]:
                self._walk(branch, is_last=is_last)
        elif op in (regex.ASSERT, regex.ASSERT_NOT):
            self._walk(argument[1], is_last=False)
        elif op in (regex.GROUPREF, regex.GROUPREF_IGNORE, regex.GROUPREF_EXISTS, regex.ATOMIC_GROUP):
            self.is_hard = True

    def _run_of(self, tree: Any, body: Any) -> re.Pattern[Any]:
        alone = regex_parser.SubPattern(tree.state, [(regex.MAX_REPEAT, (1, regex.MAXREPEAT, body))])
        outer = regex_parser.SubPattern(tree.state, [(regex.SUBPATTERN, (None, 0, 0, alone))])
        compiled: re.Pattern[Any] = regex_compiler.compile(outer, self._flags & ~regex.SRE_FLAG_DEBUG)
        return compiled


def _repeats(tree: Any) -> bool:
    return any(op in (*_REPEATS, regex.BRANCH, regex.SUBPATTERN, regex.GROUPREF) for op, _ in tree)


def _prefix(tree: Any) -> Any:
    found = []
    for op, argument in tree:
        if op is not regex.LITERAL:
            break
        found.append(chr(argument))
    return "".join(found)


@lru_cache(maxsize=256)
def _shape(pattern: re.Pattern[Any]) -> _Shape | None:
    try:
        return _Shape(pattern)
    except Exception:  # of the parser's: a pattern of another version
        return None


@lru_cache(maxsize=256)
def groups_of(pattern: re.Pattern[Any]) -> frozenset[int]:
    """Return the groups that are part of each match of the pattern."""
    try:
        return frozenset([0, *_certain(_tree_of(pattern))])
    except Exception:  # of the parser's: a pattern of another version
        return frozenset([0])


def _certain(tree: Any) -> Iterator[int]:
    for op, argument in tree:
        if op is regex.SUBPATTERN:
            if argument[0] is not None:
                yield argument[0]
            yield from _certain(argument[-1])
        elif op in _REPEATS and argument[0] > 0:
            yield from _certain(argument[2])


@lru_cache(maxsize=256)
def opening_of(pattern: re.Pattern[Any], number: int) -> str:
    """Return the bracket with which each match of a group begins but for white space; "" for another beginning."""
    try:
        tree = _tree_of(pattern)
    except Exception:  # of the parser's: a pattern of another version
        return ""
    bodies = _bodies(tree, number) if number else [tree]
    return next(map(_opening, bodies), "").strip()


def _bodies(tree: Any, number: int) -> Iterator[Any]:
    """Yield the part of a pattern that is a group; of no group inside of an alternative or a condition."""
    for op, argument in tree:
        if op is regex.SUBPATTERN and argument[0] == number:
            yield argument[-1]
        elif op is regex.SUBPATTERN or op in _REPEATS:
            yield from _bodies(argument[-1], number)


_SPACE = " "


def _opening(tree: Any) -> str:
    """Return the bracket with which all texts of a pattern begin; `_SPACE` if these are white space alone, else ""."""
    for op, argument in tree:
        if op in (regex.AT, regex.ASSERT, regex.ASSERT_NOT):
            continue
        if op is regex.LITERAL:
            found = chr(argument)
        elif op is regex.SUBPATTERN:
            found = _opening(argument[-1])
        elif op in _REPEATS:
            found = _opening(argument[2])
            found = found if argument[0] or found == _SPACE else ""
        else:
            is_space = op is regex.IN and argument == [(regex.CATEGORY, regex.CATEGORY_SPACE)]
            found = _SPACE if is_space else ""
        if not found.isspace():
            return found if found in ("{", "[") else ""
    return _SPACE


def matching(run: Any, pattern: re.Pattern[Any], text: Any, *, is_anchored: bool = False) -> None:
    """Allow matching a pattern with a text. Raises: Barrier if matching may take long."""
    size = len(text)
    run.tick(1 + size // 200)
    if size <= SHORT:
        return
    shape = _shape(pattern)
    if shape is None or shape.is_hard:
        raise Barrier("it uses a regular expression with repeats inside of repeats", hint="simplify the pattern")
    starts = 1 if is_anchored else size
    if shape.prefix and type(text) is str and not is_anchored:
        starts = text.count(shape.prefix) + 1
    steps = 0
    for segment in shape.segments:
        tries, passed = segment.tries(text)
        steps += starts * tries
        starts *= passed
        if steps > STEPS:
            raise Barrier("it uses a regular expression that may take long", hint="simplify the pattern")
    run.tick(1 + steps // 1_000)
