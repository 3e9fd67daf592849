"""Log records of early requests, held back until the framework's run takes their reply.

Clients log each request (`httpx` at INFO). A record of an early request would reach the user's handlers too early and
from another thread, or although the framework never makes the request. So the call of the request holds the record,
and the thread that takes the reply logs it: with the original arguments, as from the client's own line. Handlers,
filters and formatters then hear the same as in a run without us.

    engine's thread:  httpx: logger.info(...) -> held by the call
    caller's thread:  model.invoke(...)       -> takes the reply -> logger.info(...), from httpx's line

Other records of a rehearsal, or of a function that runs ahead, are dropped: the framework's run logs them.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

from teola_plugin.providers import running
from teola_plugin.seams import is_unheard

_LOG = logging.Logger._log.__code__


class _HeldBack(logging.Filter):
    """A filter that passes the records of the framework's own run, and holds or drops the records of early code."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is heard now."""
        call = running()
        if call is not None and (is_unheard() or not call.is_own):
            if record not in _held:  # each handler of a logger that was made later filters the record again
                _held.add(record)
                call.held.append(_logging_again() or partial(logging.getLogger(record.name).handle, record))
            return False
        return not is_unheard()


_FILTER = _HeldBack()
_held: weakref.WeakSet[logging.LogRecord] = weakref.WeakSet()
_loggers_with_filter = 0


def hold_back() -> None:
    """Make all existing loggers and handlers hold back records of early requests, before the user's filters.

    Called as each call begins. A later logger is covered by the filter of its handlers.
    """
    global _loggers_with_filter
    if _loggers_with_filter != (count := len(logging.root.manager.loggerDict)):
        for logger in _loggers():
            _add_filter(logger)
        _loggers_with_filter = count
    for reference in [*logging._handlerList]:  # type: ignore[attr-defined]  # at each call, so without further calls
        if (handler := reference()) is not None and _FILTER not in handler.filters:
            _add_filter(handler)


def remove_filters() -> None:
    """Remove our filter from all loggers and handlers."""
    global _loggers_with_filter
    _loggers_with_filter = 0
    for each in (*_loggers(), *_handlers()):
        each.removeFilter(_FILTER)


def _add_filter(to: logging.Filterer) -> None:
    if _FILTER not in to.filters:
        to.filters.insert(0, _FILTER)


def _loggers() -> list[logging.Logger]:
    made = list(logging.root.manager.loggerDict.values())
    return [logging.root, *(each for each in made if isinstance(each, logging.Logger))]


def _handlers() -> list[logging.Handler]:
    made = list(logging._handlerList)  # type: ignore[attr-defined]
    return [handler for reference in made if (handler := reference()) is not None]


def _logging_again() -> Callable[[], None] | None:
    """Return a function that repeats the running call of `Logger.info` or the like; None outside of a call."""
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
