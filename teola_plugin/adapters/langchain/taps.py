"""Tool calls in the replies of foreign models, detected as their chunks pass by.

Only where the framework itself streams the reply (`stream_mode="messages"`, `streaming=True`): the request to the
service stays unchanged. The class of a model is instrumented when a session first meets the model with tools.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from langchain_core.language_models import BaseChatModel

from teola_plugin.adapters.interception import Stream, intercept
from teola_plugin.adapters.langchain.models import is_ours
from teola_plugin.seams import current
from teola_plugin.turns import OnCall, Turn

_is_heard: ContextVar[bool] = ContextVar("teola_is_heard", default=False)


def install() -> None:
    """Detect tool calls in the replies of all chat models. Idempotent."""
    for method in ("_generate_with_cache", "_agenerate_with_cache"):
        intercept(BaseChatModel, method, _meeting)


def _meeting(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("tools") and current() is not None and not is_ours(self):
            for name, wrapper in (("_stream", _heard(is_async=False)), ("_astream", _heard(is_async=True))):
                if getattr(type(self), name) is not getattr(BaseChatModel, name):
                    intercept(type(self), name, wrapper)
        return original(self, *args, **kwargs)

    return method


def _heard(*, is_async: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a wrapper that detects tool calls as the chunks are passed on."""

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            chunks = original(self, *args, **kwargs)
            on_call = _listener(kwargs)
            if on_call is None:
                return chunks
            stream = Stream(_hearing, heard=_Calls(on_call).feed)
            return stream.apassed_on(chunks) if is_async else stream.passed_on(chunks)

        return method

    return wrapper


def _listener(kwargs: dict[str, Any]) -> OnCall | None:
    session = current()
    if session is None or session.is_unheard or _is_heard.get() or not kwargs.get("tools"):
        return None
    session.observe(Turn, turn := Turn())
    return turn.on_call


@contextlib.contextmanager
def _hearing() -> Iterator[None]:
    """Mark chunks as already heard for a method of the same name further up."""
    token = _is_heard.set(True)
    try:
        yield
    finally:
        _is_heard.reset(token)


class _Calls:
    """The tool calls in the chunks of one reply: each is reported once its arguments are complete JSON."""

    def __init__(self, on_call: OnCall) -> None:
        self._on_call = on_call
        self._parts: dict[Any, tuple[int, str, str]] = {}  # position, name, arguments so far

    def feed(self, chunk: Any) -> None:
        for part in getattr(chunk.message, "tool_call_chunks", None) or ():
            key = part.get("index") if part.get("index") is not None else (len(self._parts),)
            position, name, written = self._parts.get(key, (len(self._parts), "", ""))
            name, written = name + (part.get("name") or ""), written + (part.get("args") or "")
            self._parts[key] = (position, name, written)
            if (part.get("args") or "").rstrip().endswith("}") and name:
                with contextlib.suppress(ValueError, RecursionError):
                    arguments = json.loads(written)
                    if isinstance(arguments, dict):
                        self._on_call(position, name, arguments)
