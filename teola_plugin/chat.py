"""Conversations as one text: for models without a chat template, and for servers that have their own.

    System: Answer in one word.                  render_plainly: what such a model reads
    User: What is the capital of France?
    Assistant:

    {role: system} Answer in one word. {role: user} What is ...      write_chat, which read_chat reads back exactly;
                                                                     the brackets stand for control characters

In both, each message's content appears in order, so the text up to a message that is not yet known is a prefix of the
whole prompt, which may be computed ahead. Of such a prefix, `read_chat` gives the messages with the last one cut short.
A content that has the control characters itself is written with these escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from teola_plugin.errors import EngineError
from teola_plugin.items.tool_calls import BEGIN, END, write_tool_calls

Message = Mapping[str, Any]
"""`role` (system, user, assistant or tool) and `content`, as in every chat template. An assistant's message may have
`tool_calls` (each with a `function` that has `name` and `arguments`), a tool's its `name` and `tool_call_id`."""

Tool = Mapping[str, Any]
"""A tool that the model may call, as JSON schema: `{"type": "function", "function": {"name": ..., ...}}`."""


def render_plainly(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    """The prompt of a conversation, up to where the assistant answers.

    >>> render_plainly([{"role": "user", "content": "Hello"}])
    'User: Hello\\nAssistant:'
    """
    lines = [f"Tools, called with {BEGIN}...{END}: {json.dumps(list(tools))}"] if tools else []
    for message in messages:
        calls = write_tool_calls([call["function"] for call in message.get("tool_calls", ())])
        lines.append(f"{message['role'].capitalize()}: {message['content']}{calls}")
    return "".join(f"{line}\n" for line in lines) + "Assistant:"


def render_for(engine: object, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    """The prompt of a conversation as the engine's model wants it; `render_plainly`, where the engine does not say."""
    render_chat = getattr(engine, "render_chat", render_plainly)
    return str(render_chat(messages, tools) if tools else render_chat(messages))


HEAD, BODY, END_OF_CHAT, ESCAPE = "\x01", "\x02", "\x04", "\x10"
"""Start of heading, start of text, end of transmission, data link escape: no white space to `str.strip`."""

_TO_ESCAPE = re.compile(f"[{HEAD}{BODY}{END_OF_CHAT}{ESCAPE}]")
_ESCAPED = re.compile(f"{ESCAPE}([ABDP])")


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation. `is_whole`: it is the assistant's turn; otherwise it is a prefix of one, cut anywhere."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    is_whole: bool


def write_chat(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    """The conversation as a text that `read_chat` reads.

    >>> write_chat([{"role": "user", "content": "Hello"}])
    '\\x01{"role": "user"}\\x02Hello\\x04'
    """
    parts = [f"{HEAD}{json.dumps(list(tools))}{BODY}"] if tools else []
    for message in messages:
        heading = json.dumps({name: value for name, value in message.items() if name != "content"})
        content = _TO_ESCAPE.sub(lambda found: ESCAPE + chr(ord(found[0]) + 64), message["content"])
        parts.append(f"{HEAD}{heading}{BODY}{content}")
    return "".join(parts) + END_OF_CHAT


def read_chat(text: str) -> Chat | None:
    """The conversation that `write_chat` wrote, or the beginning of one; None if the text is none.

    Raises: EngineError if it is neither, as where a value with control characters was put into one.
    """
    if not text.startswith(HEAD):
        return None
    body = text.removesuffix(END_OF_CHAT)
    messages: list[Message] = []
    tools: tuple[Tool, ...] = ()
    for part in body[1:].split(HEAD):
        heading, _, content = part.partition(BODY)
        try:
            fields = json.loads(heading)
        except ValueError as e:
            raise EngineError(
                "a conversation cannot be read: its text was put together of parts that do not fit"
            ) from e
        if isinstance(fields, list):
            tools = tuple(fields)
        else:
            messages.append({**fields, "content": _ESCAPED.sub(lambda found: chr(ord(found[1]) - 64), content)})
    return Chat(tuple(messages), tools, text.endswith(END_OF_CHAT))
