"""How the streamed answer of an OpenAI-compatible server is read, and what is said of one that breaks the protocol.

A broken connection may be tried again; an answer that is no answer would come the same way again, so it is an
EngineError: events that are no JSON or lack what they must have, a page in place of a stream, an end without a reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from teola_plugin.engines import Completion, Delta, Outcome
from teola_plugin.errors import EngineError
from teola_plugin.items.tool_calls import BEGIN, END

SHOWN_CHARACTERS = 60
TOLD_OF_PROMPT = 12
"""So many characters in a row that are also in the prompt are taken for a part of it, and not shown."""

BROKEN_OFF = ("abort", "error")
"""Reasons that servers give for an end that is none of the model's."""


class _Malformed(Exception):
    """What is wrong with an event."""


async def read_answer(stream: Any, answer: Answer, where: str, prompt: str) -> None:
    """Read all events. `prompt`: what is not to be repeated in messages.

    Raises: what the client raises for a broken connection or an error that the server tells; EngineError for what is no
    answer, or for one that has not come to its end.
    """
    try:
        await _read_events(stream, answer, prompt)
    except _Malformed as e:
        raise EngineError(f"{where} sent what is no answer in OpenAI's protocol: {e}") from None
    if not answer.finish_reason:
        kind = str(stream.response.headers.get("content-type", "")).partition(";")[0]
        instead = f", but sent {kind or 'something'} in place of a stream" if kind != "text/event-stream" else ""
        raise EngineError(f"{where} ended an answer early, without a reason{instead}")
    if answer.finish_reason in BROKEN_OFF:
        raise EngineError(f"{where} broke off its answer (finish_reason {answer.finish_reason!r})")


async def _read_events(stream: Any, answer: Answer, prompt: str) -> None:
    events = aiter(stream)
    while True:
        try:
            event = await anext(events, None)
        except json.JSONDecodeError as e:
            raise _Malformed(f"an event that is no JSON ({e.msg}): {_excerpt(e.doc, prompt)}") from None
        except UnicodeDecodeError as e:
            raise _Malformed(f"bytes that are no UTF-8 ({e.reason})") from None
        except (ValueError, TypeError, AttributeError, RecursionError) as e:  # of what the client makes of an event
            raise _Malformed(f"an event that cannot be read ({type(e).__name__})") from None
        if event is None:
            return
        answer.read(event)


def _excerpt(text: str, prompt: str) -> str:
    """How a text begins, unless that repeats the prompt."""
    begin = text[:SHOWN_CHARACTERS]
    ends = range(TOLD_OF_PROMPT, len(begin) + 1)
    if any(begin[end - TOLD_OF_PROMPT : end] in prompt for end in ends):
        return f"{len(text)} characters, with some of the prompt"
    return repr(begin) + (f" and {len(text) - len(begin)} more characters" if len(text) > len(begin) else "")


class Answer:
    """What was read of an answer."""

    def __init__(self, tell: Callable[[Outcome], None]) -> None:
        self._tell = tell
        self.begin()

    def begin(self) -> None:
        """Nothing is read yet, or not any more."""
        self.pieces: list[str] = []
        self.prompt_tokens = 0
        self.finish_reason = ""
        self._token_ids: list[int] = []
        self._told_tokens = 0
        self._call = ("", "")

    @property
    def output_tokens(self) -> int:
        """As the server counts them, if it does."""
        return self._told_tokens or len(self._token_ids)

    def read(self, chunk: Any) -> None:
        """One event of the stream. Raises: _Malformed; the client checks no types."""
        usage, choices = getattr(chunk, "usage", None), getattr(chunk, "choices", None)
        if usage is not None:
            self.prompt_tokens = _field(usage, "prompt_tokens", int) or 0
            self._told_tokens = _field(usage, "completion_tokens", int) or 0
        if choices is None and usage is None:
            raise _Malformed("an event without choices")
        for choice in _field(chunk, "choices", list) or ():
            if _field(choice, "index", int):
                raise _Malformed("a second choice, where one was asked for")
            self._read_choice(choice)

    def _read_choice(self, choice: Any) -> None:
        delta = getattr(choice, "delta", None)
        text = _field(choice, "text", str) if delta is None else _field(delta, "content", str)
        token_ids = _field(choice, "token_ids", list) or ()
        self._token_ids += token_ids
        if text or token_ids:
            self._say(text or "")
        for call in (_field(delta, "tool_calls", list) or ()) if delta is not None else ():
            if (function := getattr(call, "function", None)) is not None:
                self._read_call(_field(function, "name", str) or "", _field(function, "arguments", str) or "")
        if reason := _field(choice, "finish_reason", str):
            self._say_call()
            self.finish_reason = reason

    def completion(self) -> Completion:
        """The whole of it."""
        return Completion(
            "".join(self.pieces), token_ids=self._token_ids, pieces=self.pieces, prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            finish_reason="stop" if self.finish_reason == "tool_calls" else self.finish_reason,
        )  # fmt: skip

    def _say(self, text: str) -> None:
        self.pieces.append(text)
        self._tell(Delta(text))

    def _read_call(self, name: str, arguments: str) -> None:
        """Part of a call; the first one has the name."""
        if name:
            self._say_call()
            self._call = (name, "")
        self._call = (self._call[0], self._call[1] + arguments)

    def _say_call(self) -> None:
        """The call that is complete; whether its arguments are JSON is the reader's matter."""
        name, arguments = self._call
        self._call = ("", "")
        if name:
            self._say(f'{BEGIN}{{"name": {json.dumps(name)}, "arguments": {arguments or "{}"}}}{END}')


def _field(thing: Any, name: str, kind: type) -> Any:
    """The field of an event, or None. Raises: _Malformed for one of another type, or of what has no fields."""
    if isinstance(thing, str | int | float | list | dict):
        raise _Malformed(f"a {type(thing).__name__} in place of an object with {name!r}")
    found = getattr(thing, name, None)
    if found is not None and (not isinstance(found, kind) or isinstance(found, bool)):
        raise _Malformed(f"{name!r} of type {type(found).__name__}, not {kind.__name__}")
    return found
