"""Items which follow a mark and run to the end of the line, read once from left to right."""

from __future__ import annotations

from typing import Protocol

from teola_plugin.items.pieces import joined


class Marks(Protocol):
    """Finds the marks. The state is kept between calls; after an item the search goes on at the line break."""

    def find(self, text: str, at: int) -> int:
        """Return the start of the next item with at least one character; -1 if none begins in the text."""
        ...


class PatternItems:
    """See `ItemParser`. An item is complete once a line break follows."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._item: list[str] = []  # the pieces of the incomplete item

    def feed(self, text: str) -> list[str]:
        items: list[str] = []
        at = 0
        while at < len(text):
            if not self._item and (at := self._marks.find(text, at)) < 0:
                break
            end = text.find("\n", at)
            self._item.append(text[at:end] if end >= 0 else text[at:])
            if end < 0:
                break
            items += self.close()
            at = end
        return items

    def close(self) -> list[str]:
        item, self._item = joined(self._item), []
        return [item] if item else []
