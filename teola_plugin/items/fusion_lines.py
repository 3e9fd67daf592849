"""`fusion_lines`: one item per line, as LlamaIndex's `QueryFusionRetriever` reads an LLM's queries.

Backticks are stripped from both ends of the text, blanks from both ends of each line, and empty lines are dropped.
Backticks before a line break are not at the end of the text, so a line is certain at its line break.
"""

from __future__ import annotations

from teola_plugin.items.pieces import joined


class FusionLineItems:
    """See `ItemParser`."""

    def __init__(self) -> None:
        self._line: list[str] = []  # the pieces of the last line
        self._has_begun = False

    def feed(self, text: str) -> list[str]:
        if not self._has_begun:
            text = text.lstrip("`")
            self._has_begun = bool(text)
        first, *more = text.split("\n")
        self._line.append(first)
        items: list[str] = []
        for line in more:
            items += _item(joined(self._line))
            self._line = [line]
        return items

    def close(self) -> list[str]:
        return _item(joined(self._line).rstrip("`"))


def _item(line: str) -> list[str]:
    return [stripped] if (stripped := line.strip()) else []
