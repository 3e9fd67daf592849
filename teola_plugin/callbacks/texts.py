"""Texts into and out of a leaf, and the search for an output in a later input.

An output is recognized by its *pieces*: the beginnings of its lines, without list marks, and of quoted parts. A leaf
which gets one line of a list, or one field of a JSON answer, is therefore still seen to need the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

Pieces = tuple[str, ...]
"""No pieces at all: the output is not recognizable, so any later leaf may need it."""

SHORTEST = 8
"""Shorter texts ("yes", "3") occur in many inputs by chance."""

LONGEST = 64
MOST = 16
"""The most characters of a piece, and the most pieces, needed to recognize a text."""

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
    """Whether an output with the pieces may be part of the input; None is any input."""
    return not said or given is None or any(piece in text for piece in said for text in given)


def of_messages(prompts: Any) -> tuple[str, ...]:
    """Return the texts given to a chat model."""
    return tuple(_of_message(message) for messages in prompts for message in messages)


def of_result(result: Any) -> tuple[str, ...]:
    """Return the texts of a model; nothing if the model calls tools, whose arguments may be anything."""
    answers = [answer for answers in result.generations for answer in answers]
    if any(getattr(getattr(answer, "message", None), "tool_calls", None) for answer in answers):
        return ()
    return tuple(answer.text for answer in answers)


def of_documents(documents: Any) -> tuple[str, ...]:
    """Return the texts of a retriever."""
    return tuple(document.page_content for document in documents)


def of_output(output: Any) -> tuple[str, ...]:
    """Return the output of a tool, if it is text."""
    return (output if isinstance(output, str) else _of_message(output),)


def _of_message(message: Any) -> str:
    content = getattr(message, "content", "")
    return content if isinstance(content, str) else str(getattr(message, "text", ""))


def _end_of_mark(part: str) -> int:
    match = _MARK.match(part)
    return match.end() if match else 0
