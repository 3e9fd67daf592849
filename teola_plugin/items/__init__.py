"""Item grammars: split a text into items while the text is being written.

    parser = parser_for("lines")
    parser.feed("what is\\nwho ")     # ['what is']          the items complete now
    parser.feed("was")               # []
    parser.close()                   # ['who was']          completed only by the end of the text

A grammar follows one output parser of one framework: all items together equal the parser's result for the whole text,
however the text was cut. An item is returned once *no continuation* could change it; the rest is held back, if need be
to the end. The exception is `json`: a text which stops being JSON half-way invalidates its earlier items, so there (and
in `sub_questions`) `close` raises.

Each character is read a bounded number of times, however the text is cut, since texts are fed on the event loop shared
by all engines. A text of more than `MAX_CHARS` has no items here; only the framework's own run reads such a text.

| grammar | the framework's parser |
|---|---|
| `lines` | LangChain `LineListOutputParser` (MultiQueryRetriever) |
| `fusion_lines` | LlamaIndex `QueryFusionRetriever` (which then keeps the first `num_queries - 1`) |
| `numbered`, `markdown` | LangChain `NumberedListOutputParser`, `MarkdownListOutputParser` |
| `csv` | LangChain `CommaSeparatedListOutputParser` |
| `json` | LangChain `JsonOutputParser` on a text that is an array: its elements |
| `sub_questions` | LlamaIndex `SubQuestionOutputParser`: the elements of the array |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from teola_plugin.errors import GraphError, ItemsError
from teola_plugin.items.csv import CsvItems
from teola_plugin.items.fusion_lines import FusionLineItems
from teola_plugin.items.json import JsonItems
from teola_plugin.items.lines import LineItems
from teola_plugin.items.markdown import markdown_items
from teola_plugin.items.numbered import numbered_items
from teola_plugin.items.sub_questions import SubQuestionItems

__all__ = ["GRAMMARS", "MAX_CHARS", "ItemParser", "parse_items", "parser_for"]


class ItemParser(Protocol):
    """The items of one text, fed in pieces. `close` is called once, after the last `feed`."""

    def feed(self, text: str) -> list[Any]:
        """Return the items completed by the text so far, without earlier items.

        Raises: ItemsError if the text is longer than `MAX_CHARS`.
        """
        ...

    def close(self) -> list[Any]:
        """Return the remaining items.

        Raises: ItemsError if the whole text does not fit the grammar (`json`, `sub_questions`).
        """
        ...


GRAMMARS: dict[str, Callable[[], ItemParser]] = {
    "lines": LineItems,
    "fusion_lines": FusionLineItems,
    "numbered": numbered_items,
    "markdown": markdown_items,
    "csv": CsvItems,
    "json": JsonItems,
    "sub_questions": SubQuestionItems,
}


MAX_CHARS = 1_000_000


class _Bounded:
    """Implements `ItemParser` for texts of up to `MAX_CHARS`."""

    def __init__(self, grammar: str) -> None:
        self._grammar = grammar
        self._parser = GRAMMARS[grammar]()
        self._chars = 0
        self.close = self._parser.close

    def feed(self, text: str) -> list[Any]:
        self._chars += len(text)
        if self._chars > MAX_CHARS:
            raise ItemsError(f"items={self._grammar!r}: a text of more than {MAX_CHARS:,} characters is not read")
        return self._parser.feed(text)


def parser_for(grammar: str) -> ItemParser:
    """Return a fresh parser. Raises: GraphError for an unknown grammar."""
    if grammar not in GRAMMARS:
        raise GraphError(f"items={grammar!r}: no such item grammar; there are {', '.join(GRAMMARS)}")
    return _Bounded(grammar)


def parse_items(grammar: str, text: str) -> list[Any]:
    """Return all items of a whole text. Raises: as `parser_for` and `ItemParser.close`.

    >>> parse_items("numbered", "1. red\\n2. green")
    ['red', 'green']
    """
    parser = parser_for(grammar)
    return [*parser.feed(text), *parser.close()]
