"""`sub_questions`: the elements of a JSON array, as LlamaIndex's `SubQuestionOutputParser` reads the array.

The array is the whole JSON of the text, or the value of the key `items`. The JSON is the text after the first fence
marked `json`, if any, from the first bracket to the last matching bracket. Texts which only a YAML parser can read are
not followed: for such texts, and for texts without array, `close` raises.
"""

from __future__ import annotations

import json
import re
from typing import Any

from teola_plugin.errors import ItemsError
from teola_plugin.items.elements import Elements

_FENCE = "```json"
_BRACKET = re.compile(r"[\[{]")
_ITEMS = ('"items"', ":", "[")
_OTHER = "?"
"""Replaces a beginning which can no longer be the expected beginning."""


class SubQuestionItems:
    """See `ItemParser`."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._last = ""  # the last characters, in which the fence may begin
        self._is_fenced = False
        self._array = _Array()
        self._given: list[Any] = []

    def feed(self, text: str) -> list[Any]:
        self._pieces.append(text)
        if not self._given and not self._is_fenced:
            before, fence, after = (self._last + text).partition(_FENCE)
            self._last = before[-len(_FENCE) + 1 :]
            if fence:  # text before the fence does not count
                self._is_fenced = True
                self._array, text = _Array(), after
        elements = self._array.feed(text)
        self._given += elements
        return elements

    def close(self) -> list[Any]:
        try:
            whole = json.loads(_json_of("".join(self._pieces)))
        except (ValueError, RecursionError) as e:
            raise ItemsError(f"items='sub_questions': the text is no JSON ({e})") from e
        if isinstance(whole, dict):
            whole = whole.get("items")
        if not isinstance(whole, list) or whole[: len(self._given)] != self._given:
            raise ItemsError("items='sub_questions': the text is not the array it began as, or none")
        return whole[len(self._given) :]


class _Array:
    """The first array of a text, unless an object comes first: then the array under the object's first key, `items`."""

    def __init__(self) -> None:
        self._head = ""  # the unread text
        self._expected: tuple[str, ...] | None = None  # the tokens before the elements
        self._elements = Elements()

    def feed(self, text: str) -> list[Any]:
        if self._expected is None:
            if (bracket := _BRACKET.search(text)) is None:
                return []
            self._expected = _ITEMS if bracket[0] == "{" else ()
            text = text[bracket.end() :]
        if self._expected:
            self._head += text
            while self._expected and (head := self._head.lstrip()).startswith(self._expected[0]):
                self._head = head[len(self._expected[0]) :]
                self._expected = self._expected[1:]
            if self._expected:
                head = self._head.lstrip()
                self._head = head if self._expected[0].startswith(head) else _OTHER
                return []
            text = self._head
        return self._elements.feed(text)


def _json_of(text: str) -> str:
    if _FENCE in text:
        text = text.split(_FENCE)[1].strip().strip("`").strip()
    square, brace = text.find("["), text.find("{")
    is_array = brace < 0 or 0 <= square < brace
    begin, end = (square, text.rfind("]")) if is_array else (brace, text.rfind("}"))
    return text[begin : end + 1]
