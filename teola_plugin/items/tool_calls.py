"""Calls of tools in a model's answer, in the form of Hermes and Qwen, told while the answer is being written.

    I look it up. <tool_call>{"name": "search", "arguments": {"query": "bees"}}</tool_call>
    ^ content                                                                ^ the call is complete here

Between the marks, the first JSON value is the call; it is handed out when its last bracket is there. Where that is no
object with a `name` and `arguments`, the text is told as an invalid call. What stands outside the marks is content,
less the blanks after a call. However the text is cut, all of it together comes to the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BEGIN, END = "<tool_call>", "</tool_call>"

_DECODER = json.JSONDecoder(strict=False)
_BLANKS = " \t\n\r"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. `arguments` is None where the model wrote no valid call; `text` is what it wrote between the marks."""

    name: str
    arguments: Mapping[str, Any] | None
    text: str


Said = str | ToolCall


class ToolCallParser:
    """The content and the calls of one answer, which comes in pieces."""

    def __init__(self) -> None:
        self._rest = ""
        self._is_inside = False
        self._is_given = False
        self._is_after_call = False

    def feed(self, text: str) -> list[Said]:
        """What the text up to here completes, in order: pieces of content, and calls."""
        self._rest += text
        said: list[Said] = []
        while self._step(said):
            pass
        return said

    def close(self) -> list[Said]:
        """What the end of the text completes. The last call may lack its mark."""
        rest, self._rest = self._rest, ""
        if self._is_inside:
            return [] if self._is_given else [_call(rest)]
        return [rest] if rest else []

    def _step(self, said: list[Said]) -> bool:
        """Whether a mark was passed."""
        if self._is_after_call:
            self._rest = self._rest.lstrip(_BLANKS)
            self._is_after_call = not self._rest
        mark = END if self._is_inside else BEGIN
        before, found, after = self._rest.partition(mark)
        if not self._is_inside:
            certain = before if found else before[: len(before) - _overlap(before, BEGIN)]
            if certain:
                said.append(certain)
            self._rest = after if found else before[len(certain) :]
        elif not self._is_given and (found or _value(before) is not None):
            said.append(_call(before))
            self._is_given = True
        if found:
            self._rest, self._is_given, self._is_after_call = after, False, self._is_inside
            self._is_inside = not self._is_inside
        return bool(found)


def parse_tool_calls(text: str) -> tuple[str, list[ToolCall]]:
    """Content and calls of a whole answer.

    >>> parse_tool_calls('Look: <tool_call>{"name": "now", "arguments": {}}</tool_call>')[0]
    'Look: '
    """
    parser = ToolCallParser()
    said = [*parser.feed(text), *parser.close()]
    calls = [part for part in said if isinstance(part, ToolCall)]
    content = "".join(part for part in said if isinstance(part, str))
    return content, calls


def write_tool_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """The text of calls, each with `name` and `arguments`; what `parse_tool_calls` reads."""
    written = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
    return "\n".join(f"{BEGIN}\n{json.dumps(call, ensure_ascii=False)}\n{END}" for call in written)


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of the text may begin the mark."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-n:])), 0)


def _value(text: str) -> Any:
    """The first JSON value, if it is a complete object or array."""
    start = text.lstrip(_BLANKS)
    if not start.startswith(("{", "[")):
        return None
    try:
        return _DECODER.raw_decode(start)[0]
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
