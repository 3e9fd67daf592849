"""`json`: the elements of a JSON array, as LangChain's `JsonOutputParser` reads it.

That parser strips blanks and backticks and reads what is left; failing that, it reads what follows the first
fence (three backticks, perhaps `json`). Either reading mends a text that stops half-way: it closes what is
open and drops characters from the end until the rest is JSON.

    [ "red", "gre          an element is handed out when the comma or bracket after it is there
            ^

Until the array begins, and if the text holds anything but an array, nothing is handed out and `close`
decides. The exception to "no continuation could change it": a later bracket that closes nothing makes the
framework's parser drop the whole array, so an element is certain only as long as the text goes on as JSON. If
it does not, and the framework's value no longer begins with the elements handed out, `close` raises, as it
does if there is no array. Not followed: the parser's special treatment of a backslash before a line break in
the value of a key `action_input`.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from teola_plugin.errors import ItemsError

_DECODER = json.JSONDecoder(strict=False)
_NEVER = sys.maxsize
_BLANKS = " \t\n\r"
_FENCE = re.compile(r"```(?:json)?(.*)", re.DOTALL)
_STARTS_VALUE = re.compile(r'[\[{"\-0-9]|null|true|false|NaN|Infinity')
_MARK = re.compile(r'(?P<open>[\[{])|(?P<shut>[\]}])|"(?:\\.|[^"\\])*(?:"|(?P<cut>\\?)\Z)', re.DOTALL)


class JsonItems:
    """See `ItemParser`."""

    def __init__(self) -> None:
        self._text = ""
        self._at = -1  # where the next element may begin; before the array: -1, after it: _NEVER
        self._given: list[Any] = []

    def feed(self, text: str) -> list[Any]:
        self._text += text
        if self._at < 0:
            self._at = _array_start(self._text)
        elements, self._at = complete_elements(self._text, self._at)
        self._given += elements
        return elements

    def close(self) -> list[Any]:
        try:
            whole = _parse_markdown(self._text)
        except (ValueError, RecursionError) as e:
            raise ItemsError(f"items='json': the text is no JSON ({e})") from e
        if not isinstance(whole, list):
            raise ItemsError(f"items='json': the text is no JSON array but {type(whole).__name__}")
        if whole[: len(self._given)] != self._given:
            raise ItemsError("items='json': the text went on as no JSON after elements were handed out")
        return whole[len(self._given) :]


def _array_start(text: str) -> int:
    """Where the first element of the array begins, or -1: no array so far."""
    body = _strip_left(text.lstrip())
    if not body.startswith("[") and not _STARTS_VALUE.match(body):  # else the first reading does not fail
        fence = _FENCE.search(text)
        body = _strip_left(fence[1]) if fence else ""
    return len(text) - len(body) + 1 if body.startswith("[") else -1


def complete_elements(text: str, at: int) -> tuple[list[Any], int]:
    """The elements from `at` on that are complete, and where the next may begin; none before the array (-1)."""
    elements: list[Any] = []
    while at >= 0 and (found := _complete_element(text, at)):
        value, at = found
        elements.append(value)
    return elements, at


def _complete_element(text: str, at: int) -> tuple[Any, int] | None:
    """The element that begins at `at` and where the next may begin, if what follows shows it complete."""
    try:
        value, end = _DECODER.raw_decode(text, _skip_blanks(text, at))
    except (ValueError, RecursionError):
        return None
    end = _skip_blanks(text, end)
    match text[end : end + 1]:
        case ",":
            return value, end + 1
        case "]":
            return value, _NEVER
        case _:
            return None


def _skip_blanks(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in _BLANKS:
        at += 1
    return at


def _strip_left(text: str) -> str:
    return text.lstrip(_BLANKS + "`")


def _parse_markdown(text: str) -> Any:
    text = text.strip()
    try:
        return _parse_mending(text.strip(_BLANKS + "`"))
    except json.JSONDecodeError:
        fence = _FENCE.search(text)
        if fence is None:
            raise
        return _parse_mending(fence[1].strip(_BLANKS + "`"))


def _parse_mending(text: str) -> Any:
    """The value of a text that may stop half-way; None if brackets do not match. Raises: JSONDecodeError."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError:
        mended = _close_open(text)
        if mended is None:
            return None
        if not _STARTS_VALUE.match(text):  # no beginning of it can be JSON
            raise
        body, closers = mended
        for end in range(len(body), 0, -1):
            try:
                return _DECODER.decode(body[:end] + closers)
            except json.JSONDecodeError:
                continue
        raise


def _close_open(text: str) -> tuple[str, str] | None:
    """The text, its last string closed, and the brackets it lacks; None if brackets do not match."""
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
