"""Unfinished results: the call ends with its result.

The caller reads a streaming response. A chat engine's response is read by a thread or task of the framework's, which
writes the text to the memory while the caller gets a copy; with an older engine the caller's stream itself writes the
memory. A workflow is a task. An abandoned response ends its call on garbage collection.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import Any

from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse
from llama_index.core.chat_engine.types import StreamingAgentChatResponse
from llama_index.core.workflow.handler import WorkflowHandler  # type: ignore[attr-defined]

from teola_plugin.adapters import Call
from teola_plugin.adapters.interception import Stream, around
from teola_plugin.seams import active

STREAMS = (StreamingResponse, AsyncStreamingResponse, StreamingAgentChatResponse)

_open: dict[int, Call] = {}
"""The calls of chat responses still being written, by the id of the response: responses have no hash."""


def install() -> None:
    """Make chat responses report the end of writing. Idempotent."""
    _ENDING.replace(StreamingAgentChatResponse, "write_response_to_history", coroutines=["awrite_response_to_history"])


def until_read(value: Any, call: Call) -> Any:
    """Return the framework's own response; the call ends now, or with its stream, or with the workflow."""
    name = "response_gen"
    if isinstance(value, StreamingAgentChatResponse):
        if value.is_writing_to_memory:
            _close_with(value, call)
            return value
        name = "achat_stream" if value.chat_stream is None else "chat_stream"
    if isinstance(value, WorkflowHandler):
        done: Any = getattr(value, "_result_task", value)  # in older versions the handler is a future itself
        done.add_done_callback(lambda _: call.close())
        return value
    stream = getattr(value, name) if isinstance(value, STREAMS) else None
    held: Any
    passing = Stream(lambda: active(call.session), closed=call.close)
    if isinstance(stream, Generator):
        held = passing.passed_on(stream)
    elif isinstance(stream, AsyncGenerator):
        held = passing.apassed_on(stream)
    else:
        call.close()
        return value
    weakref.finalize(held, call.close).atexit = False  # a generator that was never begun runs no `finally`
    setattr(value, name, held)
    return value


# --- chats -----------------------------------------------------------------------------------------------------------


def _close_with(response: Any, call: Call) -> None:
    _open[id(response)] = call
    weakref.finalize(response, _close, id(response)).atexit = False
    if response.is_done or response.exception is not None:  # meanwhile
        _close(id(response))


def _close(number: int) -> None:
    if call := _open.pop(number, None):
        call.close()


@contextlib.contextmanager
def _ending(response: Any, args: Any, kwargs: Any, is_async: bool) -> Iterator[None]:
    try:
        yield
    finally:
        _close(id(response))


_ENDING = around(_ending)
