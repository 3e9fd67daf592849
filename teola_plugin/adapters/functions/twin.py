"""The function that the user gets back: the same name, signature and kind, and a call around each run."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from teola_plugin.adapters import Calls
from teola_plugin.adapters.functions.askers import may_run_ahead
from teola_plugin.adapters.functions.known import functions_of, plain_function
from teola_plugin.adapters.functions.runs import Entered, running
from teola_plugin.adapters.methods import attribute_of
from teola_plugin.adapters.source import TWIN_OF
from teola_plugin.seams import current, function_active
from teola_plugin.trace import Reading

_CALLS = "__teola_calls__"


def make_twin(pipeline: Any, calls: Calls) -> Any:
    """Return a function, a method of the same object, or an object with the same attributes, run through `calls`."""
    functions = functions_of(pipeline)
    readings = dict(zip(functions, calls.traced.readings, strict=True))
    if plain_function(pipeline) is None:
        entries = {name: _method(pipeline, name, each, calls, readings[name]) for name, each in functions.items()}
        return _object(pipeline, calls, entries)
    ((name, function),) = functions.items()
    inside = partial(_inside, calls, readings[name])
    entry = _entry(function, calls, lambda args: function, lambda args, kwargs: inside(Entered(function, args, kwargs)))
    return types.MethodType(entry, pipeline.__self__) if type(pipeline) is types.MethodType else entry


def calls_of(pipeline: Any) -> Calls | None:
    """Return the calls behind a twin; None for any other object."""
    function = plain_function(pipeline)
    calls: Calls | None = vars(type(pipeline) if function is None else function).get(_CALLS)
    return calls


def _method(pipeline: Any, name: str, function: types.FunctionType, calls: Calls, reading: Reading) -> Any:
    """Return the method of an object's twin. The reader reads the user's own object."""
    cls = type(pipeline)

    def present(args: tuple[Any, ...]) -> Any:  # the method may be replaced after `optimize`
        now = attribute_of(cls, name)
        return function if now is function else lambda *rest, **kwargs: now.__get__(args[0], cls)(*rest[1:], **kwargs)

    def inside(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractContextManager[None]:
        return _inside(calls, reading, Entered(function, (pipeline, *args[1:]), kwargs))

    return _entry(function, calls, present, inside)


def _object(pipeline: Any, calls: Calls, entries: Mapping[str, Any]) -> Any:
    """Return an object of a subclass of the same name that shares its attributes with the user's object."""
    cls = type(pipeline)
    namespace: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__teola__": True,
        _CALLS: calls,
        TWIN_OF: pipeline,
        # protocol 1: from the second on, pickle insists that the class be the object's own
        "__reduce_ex__": lambda self, protocol: pipeline.__reduce_ex__(min(protocol, 1)),
        "__copy__": lambda self: copy.copy(pipeline),
        "__deepcopy__": lambda self, memo: copy.deepcopy(pipeline, memo),
        **entries,
    }
    twin: Any = object.__new__(type(cls.__name__, (cls,), namespace))
    object.__setattr__(twin, "__dict__", pipeline.__dict__)
    return twin


# --- entries ---------------------------------------------------------------------------------------------------------

_Present = Callable[[tuple[Any, ...]], Callable[..., Any]]
_Inside = Callable[[tuple[Any, ...], dict[str, Any]], AbstractContextManager[None]]


def _entry(function: types.FunctionType, calls: Calls, present: _Present, inside: _Inside) -> types.FunctionType:
    """Return a function of the same kind. `present`: what to run now; `inside`: the call around it."""

    def entry(*args: Any, **kwargs: Any) -> Any:
        now = present(args)
        if current() is not None or now is not function:
            return now(*args, **kwargs)
        with inside(args, kwargs):
            return function(*args, **kwargs)

    async def aentry(*args: Any, **kwargs: Any) -> Any:
        now = present(args)
        if current() is not None or now is not function:
            return await now(*args, **kwargs)
        with inside(args, kwargs):
            return await function(*args, **kwargs)

    made: Any = functools.wraps(function)(aentry if inspect.iscoroutinefunction(function) else entry)
    vars(made).update({_CALLS: calls, TWIN_OF: function})
    return made  # type: ignore[no-any-return]


@contextmanager
def _inside(calls: Calls, reading: Reading, entered: Entered) -> Iterator[None]:
    inputs: Sequence[Any] = [entered] if may_run_ahead() else []
    call = calls.open(inputs, loop=asyncio.get_running_loop() if entered.is_async else None)
    try:
        with function_active(call.session), running(entered, reading) if inputs else nullcontext():
            yield
    finally:
        call.close()
