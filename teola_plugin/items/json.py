"""`json`: the elements of a JSON array, as LangChain's `JsonOutputParser` reads the array.

The parser strips blanks and backticks and reads the rest; failing this, the text after the first fence (three
backticks, perhaps `json`). Either reading mends a text which stops half-way: open brackets and strings are closed, and
characters dropped from the end until the rest is JSON.

    [ "red", "gre          an element is returned at the following comma or bracket
            ^

Until the array begins, and if the text holds anything but an array, nothing is returned and `close` decides. The
exception to "no continuation could change it": a later bracket which closes nothing makes the framework's parser drop
the whole array, so an element is certain only as long as the text continues as JSON. Otherwise, if the framework's
value no longer begins with the returned elements, `close` raises; so does a text without array. Not followed: the
parser's special treatment of a backslash before a line break in the value of a key `action_input`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from teola_plugin.errors import ItemsError
from teola_plugin.items.elements import BLANKS, DECODER, Elements

FENCE = "```"
LONGEST_BEGIN = len("Infinity")
MENDING_CHARS = 1_000_000
"""The most characters read to mend a text which stops half-way: each try reads all, on the engines' event loop."""

_FENCE = re.compile(r"```(?:json)?(.*)", re.DOTALL)
_STARTS_VALUE = re.compile(r'[\[{"\-0-9]|null|true|false|NaN|Infinity')
_MARK = re.compile(r'(?P<open>[\[{])|(?P<shut>[\]}])|"(?:\\.|[^"\\])*(?:"|(?P<cut>\\?)\Z)', re.DOTALL)


class JsonItems:
    """See `ItemParser`."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._begin = _ArrayBegin()
        self._elements: Elements | None = None
        self._given: list[Any] = []

    def feed(self, text: str) -> list[Any]:
        self._pieces.append(text)
        if self._elements is None:
            rest = self._begin.feed(text)
            if rest is None:
                return []
            self._elements, text = Elements(), rest
        elements = self._elements.feed(text)
        self._given += elements
        return elements

    def close(self) -> list[Any]:
        try:
            whole = _parse_markdown("".join(self._pieces))
        except (ValueError, RecursionError) as e:
            raise ItemsError(f"items='json': the text is no JSON ({e})") from e
        if not isinstance(whole, list):
            raise ItemsError(f"items='json': the text is no JSON array but {type(whole).__name__}")
        if whole[: len(self._given)] != self._given:
            raise ItemsError("items='json': the text went on as no JSON after elements were handed out")
        return whole[len(self._given) :]


class _ArrayBegin:
    """Finds the bracket which opens the array: at the start of the text, or of the text after the first fence."""

    def __init__(self) -> None:
        self._has_begun = False
        self._first = ""  # the first few characters which are neither blanks nor backticks
        self._last = ""  # the last characters, in which the fence may begin
        self._fenced: str | None = None  # the first few characters behind the fence
        self._is_json = False
        self._is_over = False

    def feed(self, text: str) -> str | None:
        """Return the text after the bracket; None before the bracket."""
        if self._is_over:
            return None
        if not self._has_begun:
            text = text.lstrip()
            self._has_begun = bool(text)
        if len(self._first) < LONGEST_BEGIN:
            self._first = _strip_left(self._first + text)
            if self._first.startswith("["):
                return self._first[1:]
            if _STARTS_VALUE.match(self._first):  # the first reading does not fail
                self._is_over = True
                return None
            self._first = self._first[:LONGEST_BEGIN]
        return self._behind_fence(text)

    def _behind_fence(self, text: str) -> str | None:
        if self._fenced is None:
            before, fence, after = (self._last + text).partition(FENCE)
            self._last = before[-len(FENCE) + 1 :]
            if not fence:
                return None
            self._fenced, text = "", after
        self._fenced += text
        if not self._is_json and self._fenced.startswith("json"):
            self._fenced, self._is_json = self._fenced[4:], True
        if not self._is_json and "json".startswith(self._fenced):
            return None  # the mark may still become `json`
        self._is_json = True  # or there is none
        self._fenced = _strip_left(self._fenced)
        if self._fenced.startswith("["):
            return self._fenced[1:]
        self._is_over = bool(self._fenced)
        return None


def _strip_left(text: str) -> str:
    return text.lstrip(BLANKS + "`")


def _parse_markdown(text: str) -> Any:
    text = text.strip()
    try:
        return _parse_mending(text.strip(BLANKS + "`"))
    except json.JSONDecodeError:
        fence = _FENCE.search(text)
        if fence is None:
            raise
        return _parse_mending(fence[1].strip(BLANKS + "`"))


def _parse_mending(text: str) -> Any:
    """Return the value of a text which may stop half-way; None if brackets do not match. Raises: JSONDecodeError."""
    try:
        return DECODER.decode(text)
    except json.JSONDecodeError:
        mended = _close_open(text)
        if mended is None:
            return None
        if not _STARTS_VALUE.match(text):  # no beginning of the text can be JSON
            raise
        body, closers = mended
        tries = max(1, MENDING_CHARS // len(text))
        for end in range(len(body), max(0, len(body) - tries), -1):
            try:
                return DECODER.decode(body[:end] + closers)
            except json.JSONDecodeError:
                continue
        raise


def _close_open(text: str) -> tuple[str, str] | None:
    """Return the text with its last string closed, and the missing brackets; None if brackets do not match."""
    expected: list[str] = []
    for mark in _MARK.finditer(text):
        if mark["open"]:
            expected.append("]" if mark["open"] == "[" else "}")
        elif mark["shut"]:
            if not expected or expected.pop() != mark["shut"]:
                return None
        elif mark["cut"] is not None:
            text = text[: len(text) - len(mark["cut"])] + '"'
    return text, "".join(reversed(expected))
