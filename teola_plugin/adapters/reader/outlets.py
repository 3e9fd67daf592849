"""The outputs of `print`, logging and warnings: whether writing may raise, by the current setup.

Streams and handlers of the standard library and of installed packages accept all values: the handlers of logging catch
their own errors, and errors of streams. User code in their place (a stream, a handler, a filter) may raise: handlers
and filters of logging if the source says so. A stream may also raise if closed, or if the encoding lacks a character.
"""

from __future__ import annotations

import io
import logging
import logging.handlers
import sys
import warnings
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from teola_plugin.adapters.handlers import any_raises
from teola_plugin.adapters.reader.foreign import is_kind_of, is_subtype
from teola_plugin.adapters.reader.values import is_installed_file, type_name

_WRITES_ALL = ("utf8", "utf16", "utf32")


def prints(texts: list[str | None], name: str = "stdout") -> bool:
    """Whether the stream `sys.name` certainly accepts the texts, None standing for any text."""
    return accepts(getattr(sys, name), texts)


def accepts(stream: Any, texts: list[str | None]) -> bool:
    """Whether a stream certainly accepts the texts, None standing for any text. None is no stream: nothing is shown."""
    if stream is None:
        return True
    if type(stream) is _proxy():
        stream = stream.rich_proxied_file
    if not _is_installed(type(stream)) or getattr(stream, "closed", False):
        return False
    if not is_kind_of(stream, io.TextIOWrapper) or stream.errors != "strict":
        return True
    return all(is_encoded(text, str(stream.encoding)) for text in texts)


def flushes(run: Any, stream: Any) -> bool:
    """Whether a value is `sys.stdout` or `sys.stderr`, and its `flush` raises nothing, as far as `print` does not.

    While rich shows a live display, `flush` shows the begun line as markup, which may raise.
    """
    if run.lives or type(stream) is _proxy():
        return False
    if not any(stream is getattr(sys, name) and prints([], name) for name in ("stdout", "stderr")):
        return False
    return "flush" not in (getattr(stream, "__dict__", None) or ())


def _proxy() -> Any:
    """Return the class of the streams that rich puts in place of the standard ones while a display is live."""
    return getattr(sys.modules.get("rich.file_proxy"), "FileProxy", ())


def is_encoded(text: str | None, encoding: str) -> bool:
    """Whether a text can be encoded, None standing for any text."""
    if text is None or text.isascii():
        return text is not None or encoding.lower().replace("-", "").startswith(_WRITES_ALL)
    try:
        text.encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True


def _is_installed(cls: type) -> bool:
    """Whether the class is from the standard library or an installed package."""
    module = sys.modules.get(_module_of(cls))
    if _module_of(cls).split(".")[0] in sys.stdlib_module_names - {"__main__"}:
        return vars(module).get(type_name(cls)) is cls
    return is_installed_file(getattr(module, "__file__", None) or "")


def _module_of(cls: type) -> str:
    """Return the name of the module that a class, maybe written in C, claims to be from."""
    module = type.__dict__["__module__"].__get__(cls)
    return module if type(module) is str else ""


def logs(logger: Any, level: int | None) -> tuple[bool, bool]:
    """Whether a record of a level (None: any) is certainly logged without an error; the same if formatting fails.

    Handlers of the standard library print a formatting error, handlers of other packages may raise the error.
    """
    if type(logger) not in (logging.Logger, logging.RootLogger):
        return False, False
    if level is not None and not logger.isEnabledFor(level):
        return True, True
    if not makes_records():
        return False, False
    if any_raises(users_hearing(logger)):
        return False, False
    return True, all(_module_of(type(each)).startswith("logging") for each in _handlers_of(logger))


def users_hearing(logger: Any) -> list[Any]:
    """Return the handlers, filters and formatters of a logger that are functions or objects of user classes."""
    return [each for each in hearers_of(logger) if each is not None and not _is_installed(type(each))]


def makes_records() -> bool:
    """Whether the record factory is the standard library's, or wrapped by installed packages (Ray, vLLM)."""
    return _makes_records(logging.getLogRecordFactory())


def hearers_of(logger: logging.Logger) -> Iterator[Any]:
    """Yield the handlers of a logger, with their filters, formatters and streams."""
    yield from logger.filters
    for handler in _handlers_of(logger):
        yield from (handler, *handler.filters, handler.formatter, getattr(handler, "stream", None))


def _makes_records(factory: Any) -> bool:
    if factory is logging.LogRecord:
        return True
    if type(factory) is FunctionType:
        held = [cell.cell_contents for cell in factory.__closure__ or ()]
        is_installed = is_installed_file(factory.__code__.co_filename)
    else:
        held = list(getattr(factory, "__dict__", {}).values())
        is_installed = not isinstance(factory, type) and _is_installed(type(factory))
    return is_installed and all(map(_makes_records, filter(callable, held)))


def _handlers_of(logger: Any) -> Iterator[Any]:
    while logger is not None:
        for handler in logger.handlers:
            yield handler
            while is_kind_of(handler, logging.handlers.MemoryHandler) and handler.target is not None:
                handler = handler.target
                yield handler
        logger = logger.parent if logger.propagate else None


def warns(category: type) -> bool:
    """Whether a warning of the class certainly does not become an error."""
    shows: Any = getattr(warnings, "_showwarnmsg_impl", None)  # `catch_warnings` and pytest put that of a list there
    is_kept = type(getattr(shows, "__self__", None)) is list or getattr(shows, "__module__", "") == "warnings"
    if not is_kept or warnings.showwarning.__module__ not in ("warnings", "logging"):
        return False
    for action, message, cls, module, line in warnings.filters:
        kind: Any = cls
        if not is_subtype(category, kind):
            continue
        if action == "error":
            return False
        if message is None and module is None and line == 0:
            return True
    return True
