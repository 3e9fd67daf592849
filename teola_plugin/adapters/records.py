"""Log records of requests that run ahead, held back until the framework's run takes their reply.

Clients tell loggers of each request (`httpx` does at INFO). A record of a request that runs ahead would reach the
user's handlers too early and from another thread, or although the framework never asks. So its call holds it, and who
takes the reply logs it: with the arguments it was logged with, as from the line of the client that did, so that
handlers, filters and formatters hear what they would have heard.

    engine's thread:  httpx: logger.info(...) -> held by the call
    caller's thread:  model.invoke(...)       -> takes the reply -> logger.info(...), from httpx's line

What else a rehearsal, or a function that runs ahead, logs is heard by nobody: the framework's run logs it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

from teola_plugin.providers import running
from teola_plugin.seams import is_unheard

_LOG = logging.Logger._log.__code__


def held_back(original: Callable[[Any, logging.LogRecord], None]) -> Callable[[Any, logging.LogRecord], None]:
    """`Logger.handle`, which holds what ran ahead (a wrapper for `seams.instrument`)."""

    def handle(self: Any, record: logging.LogRecord) -> None:
        call = running()
        if call is not None and (is_unheard() or not call.is_own):
            call.held.append(_logging_again() or partial(self.handle, record))
        elif not is_unheard():
            original(self, record)

    # Handlers that look for who logs go by the files of the frames around them.
    handle.__code__ = handle.__code__.replace(co_filename=_LOG.co_filename)
    return handle


def _logging_again() -> Callable[[], None] | None:
    """Makes the call of `Logger.info` or the like that this runs in once more; None if it runs in none."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code is not _LOG:
        frame = frame.f_back
    if frame is None:
        return None
    given = frame.f_locals
    while frame.f_code.co_filename == _LOG.co_filename:
        frame = frame.f_back
    code = frame.f_code
    place = _from_place.__code__.replace(
        co_filename=code.co_filename, co_name=code.co_name, co_qualname=code.co_qualname,
        co_firstlineno=frame.f_lineno - 1,
    )  # fmt: skip
    return partial(
        FunctionType(place, frame.f_globals), given["self"].log, given["level"], given["msg"], *given["args"],
        **{name: given[name] for name in ("exc_info", "extra", "stack_info")},
    )  # fmt: skip


def _from_place(log: Callable[..., None], *args: Any, **options: Any) -> None:
    log(*args, **options)
