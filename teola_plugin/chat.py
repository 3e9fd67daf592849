"""Conversations as one text, for models without a chat template and for servers with their own template.

    System: Answer in one word.                  render_plainly: the prompt of a model without template
    User: What is the capital of France?
    Assistant:

    {role: system} Answer in one word. {role: user} What is ...      write_chat, the inverse of read_chat;
                                                                     the brackets stand for control characters

Both write the contents of the messages in order, so the text up to an unknown message is a prefix of the whole prompt
and may be prefilled early. For a prefix, `read_chat` returns the messages with the last message cut short. Control
characters in a content are escaped.
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
"""`role` (system, user, assistant or tool) and `content`, as in chat templates. An assistant's message may have
`tool_calls` (each with a `function` that has `name` and `arguments`), a tool's message `name` and `tool_call_id`."""

Tool = Mapping[str, Any]
"""A tool for the model, as JSON schema: `{"type": "function", "function": {"name": ..., ...}}`."""


def render_plainly(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    """Return the prompt of a conversation, up to the assistant's answer.

    >>> render_plainly([{"role": "user", "content": "Hello"}])
    'User: Hello\\nAssistant:'
    """
    lines = [f"Tools, called with {BEGIN}...{END}: {json.dumps(list(tools))}"] if tools else []
    for message in messages:
        calls = write_tool_calls([call["function"] for call in message.get("tool_calls", ())])
        lines.append(f"{message['role'].capitalize()}: {message['content']}{calls}")
    return "".join(f"{line}\n" for line in lines) + "Assistant:"


def render_for(engine: object, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    """Return the prompt in the format of the engine's model; without `render_chat`, the prompt of `render_plainly`."""
    render_chat = getattr(engine, "render_chat", render_plainly)
    return str(render_chat(messages, tools) if tools else render_chat(messages))


HEAD, BODY, END_OF_CHAT, ESCAPE = "\x01", "\x02", "\x04", "\x10"
"""Start of heading, start of text, end of transmission, data link escape. `str.strip` does not count them as white
space.
"""

_TO_ESCAPE = re.compile(f"[{HEAD}{BODY}{END_OF_CHAT}{ESCAPE}]")
_ESCAPED = re.compile(f"{ESCAPE}([ABDP])")


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation. `is_whole`: the assistant's turn follows; otherwise a prefix, cut anywhere."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    is_whole: bool


def write_chat(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    """Return the conversation as a text for `read_chat`.

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
    """Return the conversation written by `write_chat`, or the beginning of a conversation; None for any other text.

    Raises: EngineError for a damaged conversation, such as a template value with control characters.
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
