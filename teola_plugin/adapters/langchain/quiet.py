"""What runs ahead, or is rehearsed, is not heard by LangChain's callbacks: who asks for a manager gets an empty one.

So no handler of the user's, no tracer from the environment and no hook of a library learns of it; the framework's own
run will tell them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextvars import Context, ContextVar
from typing import Any, TypeVar

from langchain_core.callbacks import AsyncCallbackManager, CallbackManager
from langchain_core.runnables.config import var_child_runnable_config

from teola_plugin.seams import active, current, instrument, is_unheard

T = TypeVar("T")


def apart(context: Context, function: Callable[[], T]) -> T:
    """What `function` returns in a copy of the caller's context, with our session and without LangChain's config.

    Clients of hosted models take credentials from the context; the config is the framework's run's alone.
    """
    session = current()

    def run() -> T:
        var_child_runnable_config.set(None)
        with active(session):
            return function()

    return context.copy().run(run)


async def aapart(context: Context, function: Callable[[], Awaitable[T]]) -> T:
    """`apart` for a coroutine function."""
    session = current()

    async def run() -> T:
        var_child_runnable_config.set(None)
        with active(session):
            return await function()

    return await asyncio.get_running_loop().create_task(run(), context=context.copy())


_told: ContextVar[list[Any] | None] = ContextVar("teola_told", default=None)


@contextlib.contextmanager
def told() -> Iterator[list[Any]]:
    """A list that gets an entry for each manager that is asked for inside and not given."""
    asked: list[Any] = []
    token = _told.set(asked)
    try:
        yield asked
    finally:
        _told.reset(token)


def install() -> None:
    """Instrument both managers. Idempotent."""
    for manager in (CallbackManager, AsyncCallbackManager):
        instrument(manager, "configure", _unheard_configure)


def _unheard_configure(original: Callable[..., Any]) -> Callable[..., Any]:
    def configure(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_unheard():
            return original(cls, *args, **kwargs)
        if (asked := _told.get()) is not None:
            asked.append(cls)
        return cls(handlers=[])

    return configure
