"""`markdown`: the text after `- ` or `* ` at a line's start, as in LangChain's `MarkdownListOutputParser`.

The blank after the mark may be a line break, and so may the blanks before: `^\\s*[-*]\\s([^\\n]+)$`.
"""

from __future__ import annotations

import re

from teola_plugin.items.pattern import PatternItems

_BLANKS = re.compile(r"\s*")
_ELSEWHERE, _AT_START, _MARKED, _BLANK = range(4)


class _Bullets:
    """See `Marks`. `_at`: within a line, after only blanks of a line, after the mark, or after the blank behind it."""

    def __init__(self) -> None:
        self._at = _AT_START

    def find(self, text: str, at: int) -> int:
        while at < len(text):
            if self._at == _ELSEWHERE:
                if (at := text.find("\n", at) + 1) == 0:
                    return -1
                self._at = _AT_START
            elif self._at == _AT_START:
                at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]  # matches nothing, too
                if at < len(text):
                    at, self._at = (at + 1, _MARKED) if text[at] in "-*" else (at, _ELSEWHERE)
            elif self._at == _MARKED:
                at, self._at = (at + 1, _BLANK) if text[at].isspace() else (at, _ELSEWHERE)
            else:
                self._at = _ELSEWHERE
                if text[at] != "\n":
                    return at
        return -1


def markdown_items() -> PatternItems:
    """Return a fresh parser."""
    return PatternItems(_Bullets())
