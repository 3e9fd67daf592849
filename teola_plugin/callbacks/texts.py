"""The texts that go into a leaf and come out of it, and how one is found in another.

What came out is known by its *pieces*: the beginnings of its lines, without list marks, and of what stands in quotes.
So a leaf that was given one line of a list, or one field of a JSON answer, is still seen to need that answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

Pieces = tuple[str, ...]
"""None at all: what came out cannot be recognized, so whatever began later may need it."""

SHORTEST = 8
"""A shorter text ("yes", "3") occurs in many by chance."""

LONGEST = 64
MOST = 16
"""Enough of a piece, and enough of them, to recognize a text by."""

_BETWEEN = re.compile(r'[\n"]+')
_MARK = re.compile(r"\s*(?:(?:[-*\u2022]|\d+[.)])\s+)?")


def pieces(texts: Iterable[str]) -> Pieces:
    """
    >>> pieces(['1. keep the hive dry', 'no'])
    ()
    >>> pieces(['1. keep the hive dry\\n2. feed the bees'])
    ('keep the hive dry', 'feed the bees')
    """
    found: list[str] = []
    for text in texts:
        parts = [part[_end_of_mark(part) :].rstrip()[:LONGEST] for part in _BETWEEN.split(text)]
        long = [part for part in parts if len(part) >= SHORTEST]
        if not long:
            return ()
        found += long[:MOST]
    return tuple(found)


def occurs(said: Pieces, given: Sequence[str] | None) -> bool:
    """Something with these pieces may be part of what was given; None is anything."""
    return not said or given is None or any(piece in text for piece in said for text in given)


def of_messages(prompts: Any) -> tuple[str, ...]:
    """What a chat model is given."""
    return tuple(_of_message(message) for messages in prompts for message in messages)


def of_result(result: Any) -> tuple[str, ...]:
    """What a model said; nothing if it calls tools, whose arguments may be anything."""
    answers = [answer for answers in result.generations for answer in answers]
    if any(getattr(getattr(answer, "message", None), "tool_calls", None) for answer in answers):
        return ()
    return tuple(answer.text for answer in answers)


def of_documents(documents: Any) -> tuple[str, ...]:
    """What a retriever found."""
    return tuple(document.page_content for document in documents)


def of_output(output: Any) -> tuple[str, ...]:
    """What a tool returned, where that is text."""
    return (output if isinstance(output, str) else _of_message(output),)


def _of_message(message: Any) -> str:
    content = getattr(message, "content", "")
    return content if isinstance(content, str) else str(getattr(message, "text", ""))


def _end_of_mark(part: str) -> int:
    match = _MARK.match(part)
    return match.end() if match else 0
