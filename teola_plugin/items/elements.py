"""The elements of a JSON array being written, read once from left to right.

[ "red", {"a": [1, 2]}, "gre
       ^              ^         an element is complete at the following comma or bracket
"""

from __future__ import annotations

import json
import re
from typing import Any

from teola_plugin.items.pieces import joined

BLANKS = " \t\n\r"
DECODER = json.JSONDecoder(strict=False)

_OUTSIDE = re.compile(r'["\[\]{},]')
_INSIDE = re.compile(r'["\\]')


class Structure:
    """Follows brackets and strings through a text. `depth`: the number of open brackets of any kind."""

    def __init__(self) -> None:
        self.depth = 0
        self._is_string = False
        self._is_escaped = False

    def next(self, text: str, at: int) -> int:
        """Return the position of the next bracket or comma outside of strings (-1: none), and update `depth` past
        it.
        """
        while at < len(text):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            mark = (_INSIDE if self._is_string else _OUTSIDE).search(text, at)
            if mark is None:
                return -1
            at = mark.end()
            match mark[0]:
                case '"':
                    self._is_string = not self._is_string
                case "\\":
                    self._is_escaped = True
                case sign:
                    self.depth += {",": 0, "[": 1, "{": 1}.get(sign, -1)
                    return mark.start()
        return -1


class Elements:
    """The elements of one array, fed with the text after the opening bracket; none is found after invalid JSON."""

    def __init__(self) -> None:
        self._structure = Structure()
        self._element: list[str] = []  # the pieces of the incomplete element
        self._is_over = False

    def feed(self, text: str) -> list[Any]:
        """Return the elements complete now."""
        elements: list[Any] = []
        begin = at = 0
        while not self._is_over:
            if (at := self._structure.next(text, at)) < 0:
                self._element.append(text[begin:])
                break
            if (text[at] == "," and self._structure.depth == 0) or self._structure.depth < 0:
                self._element.append(text[begin:at])
                elements += self._completed(is_last=text[at] != ",")
                begin = at + 1
            at += 1
        return elements

    def _completed(self, *, is_last: bool) -> list[Any]:
        element, self._element = joined(self._element).strip(BLANKS), []
        self._is_over = is_last
        try:
            value, end = DECODER.raw_decode(element)
        except (ValueError, RecursionError):
            end = -1
        if end != len(element):
            self._is_over = True
            return []
        return [value]
