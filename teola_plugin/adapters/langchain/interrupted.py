"""Calls interrupted (Ctrl-C, a signal handler that raises) while LangChain waits for threads of its own.

A pool waits for all its threads before the interruption reaches the caller. Meanwhile no more requests run ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.runnables.config import ContextThreadPoolExecutor

from teola_plugin.adapters.interception import intercept
from teola_plugin.seams import current


def install() -> None:
    """Make LangChain's pools report interruptions to the session. Idempotent."""
    intercept(ContextThreadPoolExecutor, "__exit__", _telling_exit, is_inherited=True)


def _telling_exit(original: Callable[..., Any]) -> Callable[..., Any]:
    def __exit__(self: Any, kind: type[BaseException] | None, error: Any, traceback: Any) -> Any:
        interrupt = getattr(current(), "interrupt", None)
        if interrupt and kind is not None and not issubclass(kind, Exception):
            interrupt()
        return original(self, kind, error, traceback)

    return __exit__
