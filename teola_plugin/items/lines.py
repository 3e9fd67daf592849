"""`lines`: one item per line, as LangChain's `LineListOutputParser` reads it: strip, split, drop empty lines.

The text is stripped as a whole and its lines are not, so blanks at the end of a line, and lines of blanks,
stay if any text follows and go if none does: they are held back until the next character that is no blank.
"""

from __future__ import annotations


class LineItems:
    """See `ItemParser`."""

    def __init__(self) -> None:
        self._open = ""
        self._has_begun = False

    def feed(self, text: str) -> list[str]:
        self._open += text
        if not self._has_begun:
            self._open = self._open.lstrip()
            self._has_begun = bool(self._open)
        certain = self._open.rstrip()
        *lines, last = certain.split("\n")
        if self._open.startswith("\n", len(certain)):  # the last line with text in it ends without blanks
            self._open = self._open[len(certain) + 1 :]
            lines.append(last)
        else:
            self._open = last + self._open[len(certain) :]
        return [line for line in lines if line]

    def close(self) -> list[str]:
        return [line for line in self._open.rstrip().split("\n") if line]
