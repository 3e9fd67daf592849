"""Conversations as plain text, for engines whose model brings no chat template of its own.

    System: Answer in one word.
    User: What is the capital of France?
    Assistant:

Each message's content appears in it unchanged and in order, so the text up to a message that is not yet known is a
prefix of the whole prompt, which may be computed ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
"""`role` (system, user or assistant) and `content`, as in every chat template."""


def render_plainly(messages: Sequence[Message]) -> str:
    """The prompt of a conversation, up to where the assistant answers.

    >>> render_plainly([{"role": "user", "content": "Hello"}])
    'User: Hello\\nAssistant:'
    """
    return "".join(f"{m['role'].capitalize()}: {m['content']}\n" for m in messages) + "Assistant:"
