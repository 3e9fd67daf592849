"""`csv`: comma-separated values, as LangChain's `CommaSeparatedListOutputParser` reads them.

The parser reads the text as CSV and, if the CSV is broken at any point, splits the whole text at commas instead. A
value is certain only while both readings agree on all values so far. The readings differ from the first value which
begins with a quote, ends in a blank, or holds a line break: from there on all values wait for the end.
"""

from __future__ import annotations

import csv
import re
from io import StringIO

from teola_plugin.items.pieces import joined

_SPECIAL = re.compile(r'\A"|[\n\r]')


class CsvItems:
    """See `ItemParser`."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._value: list[str] = []  # the pieces of the first value not returned yet
        self._count = 0
        self._is_certain = True

    def feed(self, text: str) -> list[str]:
        self._pieces.append(text)
        if not self._is_certain:
            return []
        first, *more = text.split(",")
        self._value.append(first)
        items: list[str] = []
        for begun in more:
            value = joined(self._value).lstrip(" ")
            self._is_certain = value == value.strip() and not _SPECIAL.search(value)
            if not self._is_certain:
                break
            items.append(value)
            self._value = [begun]
        self._count += len(items)
        return items

    def close(self) -> list[str]:
        return _parse(joined(self._pieces))[self._count :]


def _parse(text: str) -> list[str]:
    try:
        return [value for row in csv.reader(StringIO(text), skipinitialspace=True) for value in row]
    except csv.Error:
        return [value.strip() for value in text.split(",")]
