"""The function that the user gets back: the same name, signature and kind, and a call around each run."""

from __future__ import annotations

import asyncio
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
from teola_plugin.adapters.reader import foreign
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
    """Return the method of an object's twin. The method runs on the user's own object, and so does the reader."""
    cls = type(pipeline)

    def present(args: tuple[Any, ...]) -> Any:  # the method may be replaced after `optimize`
        if attribute_of(cls, name) is function:
            return function
        return lambda *rest, **kwargs: getattr(rest[0], name)(*rest[1:], **kwargs)

    def inside(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractContextManager[None]:
        return _inside(calls, reading, Entered(function, args, kwargs))

    def own(args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (_own(pipeline, args[0]), *args[1:]) if args and calls_of(args[0]) is calls else args

    return _entry(function, calls, present, inside, own)


def _own(pipeline: Any, twin: Any) -> Any:
    """Return the object of the user's class behind a twin: the user's own, unless the twin was copied by hand."""
    if vars(twin) is vars(pipeline):
        return pipeline
    made = object.__new__(type(pipeline))
    object.__setattr__(made, "__dict__", vars(twin))
    return made


class _Own:
    """An attribute with code (a property, a class method), as the user's own object and class have it."""

    def __init__(self, pipeline: Any, name: str) -> None:
        self._pipeline, self._name = pipeline, name

    def __get__(self, twin: Any, cls: type) -> Any:
        return getattr(type(self._pipeline) if twin is None else _own(self._pipeline, twin), self._name)

    def __set__(self, twin: Any, value: Any) -> None:
        setattr(_own(self._pipeline, twin), self._name, value)

    def __delete__(self, twin: Any) -> None:
        delattr(_own(self._pipeline, twin), self._name)


def _with_code(cls: type) -> Iterator[str]:
    """Yield the names of attributes of a class that run code where they are looked up, other than methods."""
    for each in foreign.mro_of(cls)[:-1]:
        for name, value in foreign.namespace_of(each).items():
            is_method = type(value) in (types.FunctionType, staticmethod)
            if name[:2] != "__" and not is_method and foreign.is_descriptor(value):
                yield name


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
        **{name: _Own(pipeline, name) for name in _with_code(cls)},
        **entries,
    }
    twin: Any = object.__new__(type(cls.__name__, (cls,), namespace))
    object.__setattr__(twin, "__dict__", pipeline.__dict__)
    return twin


# --- entries ---------------------------------------------------------------------------------------------------------

_Present = Callable[[tuple[Any, ...]], Callable[..., Any]]
_Inside = Callable[[tuple[Any, ...], dict[str, Any]], AbstractContextManager[None]]
_Owned = Callable[[tuple[Any, ...]], tuple[Any, ...]]


def _entry(
    function: types.FunctionType, calls: Calls, present: _Present, inside: _Inside, own: _Owned = lambda args: args
) -> types.FunctionType:
    """Return a function of the same kind.

    `present`: what to run now. `inside`: the call around it. `own`: the arguments that it gets.
    """

    def entry(*given: Any, **kwargs: Any) -> Any:
        args = own(given)
        now = present(args)
        if current() is not None or now is not function:
            return _handed_back(now(*args, **kwargs), args, given)
        with inside(args, kwargs):
            return _handed_back(function(*args, **kwargs), args, given)

    async def aentry(*given: Any, **kwargs: Any) -> Any:
        args = own(given)
        now = present(args)
        if current() is not None or now is not function:
            return _handed_back(await now(*args, **kwargs), args, given)
        with inside(args, kwargs):
            return _handed_back(await function(*args, **kwargs), args, given)

    made: Any = functools.wraps(function)(aentry if inspect.iscoroutinefunction(function) else entry)
    vars(made).update({_CALLS: calls, TWIN_OF: function})
    return made  # type: ignore[no-any-return]


def _handed_back(value: Any, args: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
    """Return the twin for a method that returns its own object."""
    return given[0] if args is not given and value is args[0] else value


@contextmanager
def _inside(calls: Calls, reading: Reading, entered: Entered) -> Iterator[None]:
    loop = asyncio._get_running_loop() if entered.is_async else None
    is_driven = entered.is_async and loop is None  # a coroutine may be driven by hand, or by another library
    inputs: Sequence[Any] = [entered] if may_run_ahead() and not is_driven else []
    call = calls.open(lambda: inputs, count=len(inputs), loop=loop)
    try:
        with function_active(call.session), running(entered, reading) if inputs else nullcontext():
            yield
    finally:
        call.close()
