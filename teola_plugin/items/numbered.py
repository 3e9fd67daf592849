"""`numbered`: the text after `1. ` to the end of the line, as in LangChain's `NumberedListOutputParser`.

The number may stand anywhere in a line, and the blank after the dot may be a line break: `\\d+\\.\\s([^\\n]+)`.
"""

from __future__ import annotations

import re

from teola_plugin.items.pattern import PatternItems

_DIGIT = re.compile(r"\d")
_DIGITS = re.compile(r"\d*")


class _Numbers:
    """See `Marks`. `_seen`: the part of a mark at the end of the text so far: nothing, digits, the dot, the blank."""

    def __init__(self) -> None:
        self._seen = 0

    def find(self, text: str, at: int) -> int:
        while at < len(text):
            if self._seen == 0:
                if (digit := _DIGIT.search(text, at)) is None:
                    return -1
                at = digit.end()
                self._seen = 1
            elif self._seen == 1:
                at = _DIGITS.match(text, at).end()  # type: ignore[union-attr]  # matches nothing, too
                if at < len(text):
                    at, self._seen = (at + 1, 2) if text[at] == "." else (at, 0)
            elif self._seen == 2:
                at, self._seen = (at + 1, 3) if text[at].isspace() else (at, 0)
            else:
                self._seen = 0
                if text[at] != "\n":
                    return at
        return -1


def numbered_items() -> PatternItems:
    """Return a fresh parser."""
    return PatternItems(_Numbers())
