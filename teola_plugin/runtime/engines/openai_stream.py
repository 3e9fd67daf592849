"""The streamed answer of an OpenAI-compatible server, and errors for answers that break the protocol.

A broken connection may be retried; a malformed answer would come the same way again, so the error is an EngineError:
events that are no JSON or lack required fields, a page in place of a stream, an end without a reason.
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
"""The number of characters in a row that, if also in the prompt, count as part of the prompt and are not shown."""

BROKEN_OFF = ("abort", "error")
"""Finish reasons of an end that the model did not cause."""


class _Malformed(Exception):
    """An event is malformed; the text says how."""


async def read_answer(stream: Any, answer: Answer, where: str, prompt: str) -> None:
    """Read all events. `prompt`: the text not to be repeated in messages.

    Raises: the client's errors for a broken connection or an error reported by the server; EngineError for a malformed
    or incomplete answer.
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
        except (ValueError, TypeError, AttributeError, RecursionError) as e:  # from the client's parser of events
            raise _Malformed(f"an event that cannot be read ({type(e).__name__})") from None
        if event is None:
            return
        answer.read(event)


def _excerpt(text: str, prompt: str) -> str:
    """Return the beginning of a text, unless the beginning repeats the prompt."""
    begin = text[:SHOWN_CHARACTERS]
    ends = range(TOLD_OF_PROMPT, len(begin) + 1)
    if any(begin[end - TOLD_OF_PROMPT : end] in prompt for end in ends):
        return f"{len(text)} characters, with some of the prompt"
    return repr(begin) + (f" and {len(text) - len(begin)} more characters" if len(text) > len(begin) else "")


class Answer:
    """The parts of an answer read so far."""

    def __init__(self, tell: Callable[[Outcome], None]) -> None:
        self._tell = tell
        self.begin()

    def begin(self) -> None:
        """Start with an empty answer, also after a failed attempt."""
        self.pieces: list[str] = []
        self.prompt_tokens = 0
        self.finish_reason = ""
        self._token_ids: list[int] = []
        self._told_tokens = 0
        self._call = ("", "")

    @property
    def output_tokens(self) -> int:
        """The output tokens by the server's count, or by the token ids."""
        return self._told_tokens or len(self._token_ids)

    def read(self, chunk: Any) -> None:
        """Read an event of the stream. Raises: _Malformed; the client checks no types."""
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
        """Return the whole answer."""
        return Completion(
            "".join(self.pieces), token_ids=self._token_ids, pieces=self.pieces, prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            finish_reason="stop" if self.finish_reason == "tool_calls" else self.finish_reason,
        )  # fmt: skip

    def _say(self, text: str) -> None:
        self.pieces.append(text)
        self._tell(Delta(text))

    def _read_call(self, name: str, arguments: str) -> None:
        """Read a part of a tool call; the first part has the name."""
        if name:
            self._say_call()
            self._call = (name, "")
        self._call = (self._call[0], self._call[1] + arguments)

    def _say_call(self) -> None:
        """Report a complete tool call; the reader of the answer checks whether the arguments are JSON."""
        name, arguments = self._call
        self._call = ("", "")
        if name:
            self._say(f'{BEGIN}{{"name": {json.dumps(name)}, "arguments": {arguments or "{}"}}}{END}')


def _field(thing: Any, name: str, kind: type) -> Any:
    """Return a field of an event, or None. Raises: _Malformed for a wrong type, or without fields."""
    if isinstance(thing, str | int | float | list | dict):
        raise _Malformed(f"a {type(thing).__name__} in place of an object with {name!r}")
    found = getattr(thing, name, None)
    if found is not None and (not isinstance(found, kind) or isinstance(found, bool)):
        raise _Malformed(f"{name!r} of type {type(found).__name__}, not {kind.__name__}")
    return found
