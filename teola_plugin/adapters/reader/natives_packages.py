"""Handlers of functions of other packages: loguru's loggers, tenacity's retries, tqdm's progress bars, graphs, rich.

Loggers write nothing during a reading. A function under `retry` is read as called once: an error, which would cause a
second call, ends the reading.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from teola_plugin.adapters.reader import foreign, graphs, natives_pandas, natives_rich, operators
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.natives_builtins import shows
from teola_plugin.adapters.reader.values import (
    Arguments,
    Barrier,
    Callee,
    Handler,
    Lazy,
    Opaque,
    Pending,
    isinstance_of,
)

_LEVELS = frozenset({"trace", "debug", "info", "success", "warning", "error", "exception", "critical"})
_REPEATED = frozenset({"retry_if_exception", "retry_if_exception_type", "retry_if_not_exception_type"})
"""Conditions of tenacity that do not look at results."""

_AFTER_AN_ERROR = frozenset({
    "stop", "wait", "retry", "reraise", "sleep", "after", "before_sleep", "retry_error_cls", "retry_error_callback",
})  # fmt: skip


def native_of(function: types.FunctionType) -> Handler | None:
    """Return the handler of a function that the packages here define or have made."""
    for package in (graphs, natives_pandas, natives_rich):
        found: Handler | None = package.native_of(function)
        if found is not None:
            return found
    name: Any = function.__globals__.get("__name__")
    module = sys.modules.get(name) if type(name) is str and name in _PACKAGES else None
    if type(module) is not types.ModuleType or vars(module) is not function.__globals__:
        return None
    return _PACKAGES[name](function, vars(sys.modules["tenacity"]) if name == "tenacity.asyncio" else vars(module))


# --- loguru ----------------------------------------------------------------------------------------------------------


def _of_loguru(function: types.FunctionType, module: dict[str, Any]) -> Handler | None:
    name = function.__code__.co_name
    cls: Any = module.get("Logger")
    if name not in _LEVELS or not foreign.is_class(cls) or foreign.in_mro(cls, name) is not function:
        return None

    def log(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        logger = args[0].held if args and type(args[0]) is Opaque else None
        shows(run, *args[1:2])
        if type(logger) is not cls or len(args) != 2 or kwargs or not _catches(logger):
            run.raises()

    return log


def _catches(logger: Any) -> bool:
    """Whether a message is certainly written without an error, as handlers are set up to catch their errors."""
    _, _, is_record, is_lazy, is_colored, _, _, patchers, _ = logger._options
    core = logger._core
    if is_record or is_lazy or is_colored or patchers or core.patcher is not None:
        return False
    return all(handler._error_interceptor._should_catch is True for handler in core.handlers.values())


# --- tenacity --------------------------------------------------------------------------------------------------------


def _of_tenacity(function: types.FunctionType, module: dict[str, Any]) -> Handler | None:
    if module.get("retry") is function:
        return _retry
    names = function.__code__.co_freevars
    if function.__code__.co_name not in ("wrapped_f", "async_wrapped") or "self" not in names:
        return None
    held = dict(zip(names, function.__closure__ or (), strict=True))
    around = held["self"].cell_contents
    inner = held["f" if "f" in held else "fn"].cell_contents
    kinds = [module.get(name) for name in ("Retrying", "AsyncRetrying")]
    if not foreign.is_one_of(type(around), kinds):
        return None
    own = vars(around)
    if own["before"] is not module.get("before_nothing") or not _repeats_errors(own["retry"]):
        return None
    return lambda run, args, kwargs: _once(run, run.load(inner), args, kwargs)


def _repeats_errors(condition: Any) -> bool:
    return _is_of_tenacity(type(condition), "tenacity.retry") and foreign.name_of_class(type(condition)) in _REPEATED


def _is_of_tenacity(cls: type, *modules: str) -> bool:
    name = foreign.module_of(cls) if foreign.has_known_classes(cls) else ""
    module = sys.modules.get(name) if name in modules else None
    return type(module) is types.ModuleType and vars(module).get(foreign.name_of_class(cls)) is cls


def making_of(cls: type) -> Handler | None:
    """Return the handler for making an object of a class of the packages.

    The class itself stands for a condition of tenacity, since conditions are not used before an error.
    """
    if _is_progress_bar(cls):
        return _walked
    if (made := natives_pandas.making_of(cls) or natives_rich.making_of(cls)) is not None:
        return made
    if graphs.is_graph_class(cls):
        return lambda run, args, kwargs: graphs.make_graph(run, cls, args, kwargs)
    if not _is_of_tenacity(cls, "tenacity.retry", "tenacity.stop", "tenacity.wait"):
        return None
    return lambda run, args, kwargs: Opaque(cls, is_own=True)


def _retry(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Return the decorator made by `retry(...)`, or for plain `@retry` the decorated function."""
    condition = kwargs.get("retry")
    held: Any = condition.held if type(condition) is Opaque else None
    is_made_here = foreign.is_class(held) and _is_of_tenacity(held, "tenacity.retry")
    is_known = condition is None or (
        foreign.name_of_class(held) in _REPEATED if is_made_here else _repeats_errors(held)
    )
    if not is_known or not kwargs.keys() <= _AFTER_AN_ERROR or len(args) > 1 or (args and kwargs):
        raise Barrier("it uses retry() with what is called for each try")

    def decorate(run: Any, given: Arguments, named: dict[str, Any]) -> Any:
        (inner,) = given
        return Callee(lambda run, args, kwargs: _once(run, inner, args, kwargs), "wrapped_f")

    return decorate(run, args, {}) if args else Callee(decorate, "wrap")


def _once(run: Any, inner: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    def tried(make: Any) -> Any:
        raised = run.raised
        try:
            found = make()
        except Exception as e:  # of the program that is read
            raise Barrier("it calls a function again that raised") from e
        if run.raised != raised:
            run.raises()  # another error than that of the function
        return found

    found = tried(lambda: call(run, inner, args, kwargs))
    return Pending(lambda: tried(found.force)) if isinstance_of(found, Pending) else found


_PACKAGES = {"loguru._logger": _of_loguru, "tenacity": _of_tenacity, "tenacity.asyncio": _of_tenacity}


# --- tqdm ------------------------------------------------------------------------------------------------------------


def _is_progress_bar(cls: type) -> bool:
    """Whether the class is a progress bar of tqdm."""
    name = foreign.module_of(cls)
    module = sys.modules.get(name) if name.partition(".")[0] == "tqdm" else None
    return type(module) is types.ModuleType and module.__dict__.get(foreign.name_of_class(cls)) is cls


def _walked(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Iterate a progress bar, which yields the elements of its iterable; the framework's run shows the bar."""
    if len(args) != 1 or not _BAR.issuperset(kwargs):
        raise Barrier("it gives a progress bar more than a label")
    return run.unknown(args[0]) if run.is_unknown(args[0]) else Lazy(run, iter(operators.iterated(run, args[0])))


_BAR = frozenset({"desc", "total", "leave", "unit", "position", "ncols", "disable"})
