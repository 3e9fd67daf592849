"""`lines`: one item per line, as LangChain's `LineListOutputParser` does: strip, split, drop empty lines.

The text is stripped as a whole, the lines are not. Blanks at the end of a line, and lines of blanks, therefore stay
only if more text follows, and are held back until the next character which is no blank.
"""

from __future__ import annotations

from teola_plugin.items.pieces import joined


class LineItems:
    """See `ItemParser`."""

    def __init__(self) -> None:
        self._line: list[str] = []  # the pieces of the last line, up to the last character which is no blank
        self._blanks: list[str] = []  # the pieces of the blanks behind
        self._has_begun = False

    def feed(self, text: str) -> list[str]:
        if not self._has_begun:
            text = text.lstrip()
            self._has_begun = bool(text)
        certain = text.rstrip()
        lines: list[str] = []
        if certain:
            first, *more = joined([*self._blanks, certain]).split("\n")
            self._blanks = []
            self._line.append(first)
            for line in more:
                lines += self.close()
                self._line = [line]
        if len(certain) < len(text):
            self._blanks.append(text[len(certain) :])
        if self._blanks and self._blanks[0].startswith("\n"):  # the last line with text in it ends without blanks
            lines += self.close()
            self._blanks[0] = self._blanks[0].lstrip("\n")
            if not self._blanks[0]:
                self._blanks.pop(0)
        return lines

    def close(self) -> list[str]:
        line, self._line = joined(self._line), []
        return [line] if line else []
