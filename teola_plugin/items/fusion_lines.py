"""`fusion_lines`: one item per line, as LlamaIndex's `QueryFusionRetriever` reads the queries an LLM wrote.

Backticks go from both ends of the text, blanks from both ends of each line, and empty lines altogether. A
line break shields the backticks before it from the end of the text, so a line is certain once it is broken.
"""

from __future__ import annotations


class FusionLineItems:
    """See `ItemParser`."""

    def __init__(self) -> None:
        self._open = ""
        self._has_begun = False

    def feed(self, text: str) -> list[str]:
        self._open += text
        if not self._has_begun:
            self._open = self._open.lstrip("`")
            self._has_begun = bool(self._open)
        *lines, self._open = self._open.split("\n")
        return [line.strip() for line in lines if line.strip()]

    def close(self) -> list[str]:
        line = self._open.rstrip("`").strip()
        return [line] if line else []
