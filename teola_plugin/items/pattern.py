"""Items that a regular expression finds one after the other, each running to the end of its line."""

from __future__ import annotations

import re


class PatternItems:
    """See `ItemParser`. An item is group 1 of a match of `pattern`; it is complete once a line break follows.

    `opening` matches, up to the end of the text so far, whatever must be kept because a later match could
    begin in it or, for a pattern that looks at line starts, because it tells where in a line the text stands.
    """

    def __init__(self, pattern: re.Pattern[str], opening: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._opening = opening
        self._open = ""

    def feed(self, text: str) -> list[str]:
        self._open += text
        items, at = [], 0
        for match in self._pattern.finditer(self._open):
            if match.end() == len(self._open):
                break
            items.append(match[1])
            at = match.end()
        opening = self._opening.search(self._open, at)
        self._open = self._open[opening.start() :] if opening else ""
        return items

    def close(self) -> list[str]:
        return [match[1] for match in self._pattern.finditer(self._open)]
