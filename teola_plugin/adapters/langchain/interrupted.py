"""Calls that are interrupted (Ctrl-C, a signal handler that raises) while LangChain waits for threads of its own.

A pool waits for all its threads before the interruption goes on to the caller. Meanwhile nothing more is asked ahead.
"""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

from langchain_core.runnables.config import ContextThreadPoolExecutor

from teola_plugin.seams import current


def install() -> None:
    """Let LangChain's pools tell the session. Idempotent."""
    ContextThreadPoolExecutor.__exit__ = _exit  # type: ignore[method-assign]


def _exit(self: Executor, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> bool | None:
    interrupt = getattr(current(), "interrupt", None)
    if interrupt and kind is not None and not issubclass(kind, Exception):
        interrupt()
    return Executor.__exit__(self, kind, error, traceback)
