"""`sub_questions`: the elements of a JSON array, as LlamaIndex's `SubQuestionOutputParser` reads it.

The array is the whole of the text's JSON or stands under its key `items`; JSON is what follows the first fence marked
`json`, if there is one, from its first bracket to the last one that fits it. Texts that only a YAML parser can read
are not followed: there, and where the text is no such array in the end, `close` raises.
"""

from __future__ import annotations

import json
import re
from typing import Any

from teola_plugin.errors import ItemsError
from teola_plugin.items.json import complete_elements

_FENCE = "```json"
_ARRAY = re.compile(r'[^\[{]*(?:\[|\{\s*"items"\s*:\s*\[)')


class SubQuestionItems:
    """See `ItemParser`."""

    def __init__(self) -> None:
        self._text = ""
        self._at = -1  # where the next element may begin; -1 before the array
        self._given: list[Any] = []

    def feed(self, text: str) -> list[Any]:
        self._text += text
        if not self._given:
            begin = _ARRAY.match(self._text, _json_start(self._text))
            self._at = begin.end() if begin else -1
        elements, self._at = complete_elements(self._text, self._at)
        self._given += elements
        return elements

    def close(self) -> list[Any]:
        try:
            whole = json.loads(_json_of(self._text))
        except (ValueError, RecursionError) as e:
            raise ItemsError(f"items='sub_questions': the text is no JSON ({e})") from e
        if isinstance(whole, dict):
            whole = whole.get("items")
        if not isinstance(whole, list) or whole[: len(self._given)] != self._given:
            raise ItemsError("items='sub_questions': the text is not the array it began as, or none")
        return whole[len(self._given) :]


def _json_start(text: str) -> int:
    at = text.find(_FENCE)
    return 0 if at < 0 else at + len(_FENCE)


def _json_of(text: str) -> str:
    if _FENCE in text:
        text = text.split(_FENCE)[1].strip().strip("`").strip()
    square, brace = text.find("["), text.find("{")
    is_array = brace < 0 or 0 <= square < brace
    begin, end = (square, text.rfind("]")) if is_array else (brace, text.rfind("}"))
    return text[begin : end + 1]
