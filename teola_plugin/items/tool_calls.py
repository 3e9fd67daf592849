"""Tool calls in a model's answer, in the format of Hermes and Qwen, parsed while the answer is being written.

    I look it up. <tool_call>{"name": "search", "arguments": {"query": "bees"}}</tool_call>
    ^ content                                                                ^ the call is complete here

Between the marks, the first JSON value is the call, returned at its last bracket. If the value is no object with a
`name` and `arguments`, the text is returned as an invalid call. Text outside the marks is content, without the blanks
after a call. The result does not depend on how the text is cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from teola_plugin.items.elements import BLANKS, DECODER, Structure
from teola_plugin.items.pieces import joined

BEGIN, END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. `arguments` is None for an invalid call; `text` is the text between the marks."""

    name: str
    arguments: Mapping[str, Any] | None
    text: str


Said = str | ToolCall


class ToolCallParser:
    """The content and the calls of one answer, fed in pieces."""

    def __init__(self) -> None:
        self._rest = ""  # a possible beginning of a mark
        self._call: _Written | None = None  # the call being written
        self._is_after_call = False

    def feed(self, text: str) -> list[Said]:
        """Return the pieces of content and the calls completed by the text so far, in order."""
        said: list[Said] = []
        found = True
        while found:
            text, found = self._step(text, said)
        return said

    def close(self) -> list[Said]:
        """Return the content and calls completed by the end of the text. The last call may lack its mark."""
        rest, self._rest = self._rest, ""
        if self._call is not None:
            return self._call.feed(rest, is_over=True)
        return [rest] if rest else []

    def _step(self, text: str, said: list[Said]) -> tuple[str, bool]:
        """Return the text after the next mark, and whether there is a mark."""
        text, self._rest = self._rest + text, ""
        if self._is_after_call:
            text = text.lstrip(BLANKS)
            self._is_after_call = not text
        mark = BEGIN if self._call is None else END
        before, found, after = text.partition(mark)
        if not found and (held := _overlap(before, mark)):
            before, self._rest = before[:-held], before[-held:]
        if self._call is None:
            said += [before] if before else []
            self._call = _Written() if found else None
        else:
            said += self._call.feed(before, is_over=bool(found))
            if found:
                self._call, self._is_after_call = None, True
        return after, bool(found)


class _Written:
    """A call being written: complete at its last bracket, or at the mark if the mark comes first."""

    def __init__(self) -> None:
        self._structure = Structure()
        self._pieces: list[str] = []
        self._has_begun = False
        self._is_given = self._is_none = False

    def feed(self, text: str, *, is_over: bool) -> list[Said]:
        if self._is_given:
            return []
        self._pieces.append(text)
        if is_over or self._is_complete(text):
            call = joined(self._pieces)
            self._is_given = is_over or _value(call) is not None
            self._is_none = not self._is_given
            return [_call(call)] if self._is_given else []
        return []

    def _is_complete(self, text: str) -> bool:
        if not self._has_begun:
            text = text.lstrip(BLANKS)
            self._has_begun = bool(text)
            self._is_none = self._has_begun and text[0] not in "{["
        at = -1
        while not self._is_none and (at := self._structure.next(text, at + 1)) >= 0:
            if self._structure.depth <= 0:
                return True
        return False


def parse_tool_calls(text: str) -> tuple[str, list[ToolCall]]:
    """Return content and calls of a whole answer.

    >>> parse_tool_calls('Look: <tool_call>{"name": "now", "arguments": {}}</tool_call>')[0]
    'Look: '
    """
    parser = ToolCallParser()
    said = [*parser.feed(text), *parser.close()]
    calls = [part for part in said if isinstance(part, ToolCall)]
    content = "".join(part for part in said if isinstance(part, str))
    return content, calls


def write_tool_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of calls, each with `name` and `arguments`; the inverse of `parse_tool_calls`."""
    written = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
    return "\n".join(f"{BEGIN}\n{json.dumps(call, ensure_ascii=False)}\n{END}" for call in written)


def _overlap(text: str, mark: str) -> int:
    """Return the number of characters at the end of the text which may begin the mark."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-n:])), 0)


def _value(text: str) -> Any:
    """Return the first JSON value, if it is a complete object or array."""
    start = text.lstrip(BLANKS)
    if not start.startswith(("{", "[")):
        return None
    try:
        return DECODER.raw_decode(start)[0]
    except (ValueError, RecursionError):
        return None


def _call(text: str) -> ToolCall:
    match _value(text):
        case {"name": str(name), "arguments": dict(arguments)}:
            return ToolCall(name, arguments, text)
        case {"name": str(name)}:
            return ToolCall(name, None, text)
        case _:
            return ToolCall("", None, text)
