"""LangChain's messages: converted for chat templates, and made from a model's text.

for_template(AIMessage("", tool_calls=[...]))         {"role": "assistant", "content": "", "tool_calls": [...]}
said("<tool_call>{...}</tool_call>", ids)             {"content": "", "tool_calls": [...], "invalid_tool_calls": []}
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ChatMessage, ToolMessage
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk

from teola_plugin.chat import Message, Tool
from teola_plugin.errors import EngineError
from teola_plugin.items.tool_calls import Said, ToolCall, ToolCallParser, parse_tool_calls

ROLES = {"human": "user", "ai": "assistant"}
ANY = ("any", "required", True)

Ids = Callable[[int], str]
"""A function which returns the id of the n-th call of an answer."""


def new_ids() -> Ids:
    """Return the ids of the calls of one answer; repeated use gives the same ids."""
    answer = uuid.uuid4().hex[:20]
    return lambda position: f"call_{answer}{position}"


def for_template(message: BaseMessage) -> Message:
    """Return the message for chat templates. Raises: EngineError if the message is not plain text."""
    content = message.content
    if isinstance(content, list):
        blocks = [{"type": "text", "text": block} if isinstance(block, str) else block for block in content]
        if strange := [block.get("type") for block in blocks if block.get("type") != "text"]:
            raise EngineError(f"an engine takes text only, not a block of type {strange[0]!r}")
        content = "".join(block["text"] for block in blocks)
    role = message.role if isinstance(message, ChatMessage) else ROLES.get(message.type, message.type)
    shown: dict[str, Any] = {"role": role, "content": content}
    if isinstance(message, AIMessage) and message.tool_calls:
        shown["tool_calls"] = [
            {"type": "function", "id": call["id"], "function": {"name": call["name"], "arguments": call["args"]}}
            for call in message.tool_calls
        ]
    if isinstance(message, ToolMessage):
        shown["tool_call_id"] = message.tool_call_id
        if message.name:
            shown["name"] = message.name
    return shown


def said(text: str, ids: Ids) -> dict[str, Any]:
    """Return the fields of an `AIMessage` for an answer to a request with tools."""
    content, calls = parse_tool_calls(text)
    valid, invalid = [], []
    for position, call in enumerate(calls):
        if call.arguments is None:
            invalid.append(
                invalid_tool_call(
                    name=call.name or None, args=call.text.strip(), id=ids(position), error="not a valid call"
                )
            )
        else:
            valid.append(tool_call(name=call.name, args=dict(call.arguments), id=ids(position)))
    return {"content": content, "tool_calls": valid, "invalid_tool_calls": invalid}


class Chunks:
    """A streamed answer, in chunks. Without `ids` of tool calls, all text is content."""

    def __init__(self, ids: Ids | None) -> None:
        self._ids = ids
        self._parser = ToolCallParser()
        self._calls = 0

    def feed(self, text: str) -> list[ChatGenerationChunk]:
        """Return the chunks completed by the text so far."""
        return self._chunks(self._parser.feed(text) if self._ids else [text])

    def close(self) -> list[ChatGenerationChunk]:
        """Return the chunks completed by the end of the text."""
        return self._chunks(self._parser.close())

    def _chunks(self, parts: Sequence[Said]) -> list[ChatGenerationChunk]:
        return [ChatGenerationChunk(message=self._message(part)) for part in parts]

    def _message(self, part: Said) -> AIMessageChunk:
        if not isinstance(part, ToolCall):
            return AIMessageChunk(content=part)
        assert self._ids
        arguments = part.text.strip() if part.arguments is None else json.dumps(part.arguments)
        chunk = tool_call_chunk(name=part.name or None, args=arguments, id=self._ids(self._calls), index=self._calls)
        self._calls += 1
        return AIMessageChunk(content="", tool_call_chunks=[chunk])


def constraint(tools: Sequence[Tool], choice: Any) -> dict[str, Any]:
    """Return the settings of a decoding which force a tool call, unless the model may choose.

    Raises: EngineError for an unknown choice.
    """
    if choice in (None, "auto", "none", False):
        return {}
    functions = [tool["function"] for tool in tools]
    if choice not in ANY:
        name = choice["function"]["name"] if isinstance(choice, Mapping) else choice
        functions = [function for function in functions if function["name"] == name]
        if not functions:
            raise EngineError(f"tool_choice={name!r}: there is no such tool")
    tags = [
        {
            "type": "tag",
            "begin": f'<tool_call>{{"name": {json.dumps(function["name"])}, "arguments": ',
            "content": {"type": "json_schema", "json_schema": function.get("parameters") or {"type": "object"}},
            "end": "}</tool_call>",
        }
        for function in functions
    ]
    form = {"type": "tags_with_separator", "tags": tags, "separator": "\n", "at_least_one": True}
    form["stop_after_first"] = choice not in ANY
    return {"structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", "format": form})}}
