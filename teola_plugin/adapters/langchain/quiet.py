"""Muted callbacks: in early and rehearsed code, a request for a callback manager of LangChain gets an empty manager.

So no handler of the user's, no tracer from the environment and no hook of a library hears of early code; the
framework's own run reports to them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import Context, ContextVar
from typing import Any, TypeVar

from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler, CallbackManager
from langchain_core.runnables.config import var_child_runnable_config

from teola_plugin.adapters.interception import intercept
from teola_plugin.providers import running, running_as
from teola_plugin.seams import active, current, is_unheard

T = TypeVar("T")


def apart(context: Context, function: Callable[[], T]) -> T:
    """Return `function()`, run in a copy of the caller's context, with our session and without LangChain's config.

    Clients of hosted models take credentials from the context; the config belongs to the framework's run alone.
    """
    session, call = current(), running()

    def run() -> T:
        var_child_runnable_config.set(None)
        with active(session), running_as(call):
            return function()

    return context.copy().run(run)


async def aapart(context: Context, function: Callable[[], Awaitable[T]]) -> T:
    """`apart` for a coroutine function."""
    session, call = current(), running()

    async def run() -> T:
        var_child_runnable_config.set(None)
        with active(session), running_as(call):
            return await function()

    return await asyncio.get_running_loop().create_task(run(), context=context.copy())


_told: ContextVar[list[Any] | None] = ContextVar("teola_told", default=None)


@contextlib.contextmanager
def told(manager: Any = None) -> Iterator[list[Any]]:
    """Yield a list of all effects that only the framework's run can have.

    Entries: each request for a manager that was denied, each look at LangChain's config, and each event sent to the
    given `manager`.
    """
    asked: list[Any] = []
    token = _told.set(asked)
    config = var_child_runnable_config.get()
    if is_unheard():
        var_child_runnable_config.set(_Config(config or {}, asked))  # type: ignore[arg-type]
        if manager is not None:
            manager.handlers = [_Listener(asked)]
            manager.inheritable_handlers = manager.handlers
    try:
        yield asked
    finally:
        var_child_runnable_config.set(config)
        _told.reset(token)


class _Config(dict[str, Any]):
    """LangChain's config; each test for its presence is noted."""

    def __init__(self, config: Mapping[str, Any], asked: list[Any]) -> None:
        super().__init__(config)
        self._asked = asked

    def __bool__(self) -> bool:
        self._asked.append("config")
        return True


class _Listener(BaseCallbackHandler):
    """A handler for the events sent by a tool itself to the callbacks."""

    run_inline = True

    def __init__(self, asked: list[Any]) -> None:
        self._asked = asked

    def on_text(self, text: str, **kwargs: Any) -> None:
        self._asked.append("text")

    def on_retry(self, retry_state: Any, **kwargs: Any) -> None:
        self._asked.append("retry")


def install() -> None:
    """Instrument both managers. Idempotent."""
    for manager in (CallbackManager, AsyncCallbackManager):
        intercept(manager, "configure", _unheard_configure)


def _unheard_configure(original: Callable[..., Any]) -> Callable[..., Any]:
    def configure(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_unheard():
            return original(cls, *args, **kwargs)
        if (asked := _told.get()) is not None:
            asked.append(cls)
        return cls(handlers=[])

    return configure
