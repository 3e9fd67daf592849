"""Conversations as plain text, for engines whose model brings no chat template of its own.

    System: Answer in one word.
    User: What is the capital of France?
    Assistant:

Each message's content appears in it unchanged and in order, so the text up to a message that is not yet known is a
prefix of the whole prompt, which may be computed ahead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

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
