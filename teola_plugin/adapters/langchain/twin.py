"""The object that `optimize` returns for a runnable: a shallow copy whose class is a same-named subclass.

Everything that LangChain derives from the class (run names, ids, repr, schemas, graphs) stays unchanged, children are
the user's own objects, and the entry methods run the class's own method inside a call:

    invoke ainvoke batch abatch stream astream batch_as_completed abatch_as_completed transform atransform
    (astream_events and astream_log go through astream)

The input of `transform` comes in pieces that only the framework may read, so nothing runs ahead; but engines batch the
requests with other queries. A class that waits for the whole input and goes on with `stream` still does so.

Pipelines made from a twin (`|`, `bind`, `with_retry`, ...) are optimized again. A pickle of a twin is the plain object.
As with any shallow copy, a field set on the original afterwards does not reach the twin. A field set on the twin takes
effect, but predictions use the old value until `optimize` is called again.

`stream` and its kin are generator functions only where the class's are: some runnables raise before the first step.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import sys
import types
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.globals import get_llm_cache
from langchain_core.runnables import Runnable, RunnableLambda, RunnableSequence
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.runnables.configurable import (
    DynamicRunnable,
    RunnableConfigurableAlternatives,
    RunnableConfigurableFields,
)
from langchain_core.runnables.history import RunnableWithMessageHistory

from teola_plugin.adapters import Call, Calls, interception
from teola_plugin.adapters.langchain import generators
from teola_plugin.adapters.langchain.binding import Entered, Mode
from teola_plugin.adapters.langchain.generators import of_the_kind_of
from teola_plugin.adapters.langchain.stream_readers import Taker, taker_at
from teola_plugin.adapters.langchain.watched import heard_by, is_refusable, is_watched, tokens_heard
from teola_plugin.adapters.reader.values import isinstance_of
from teola_plugin.seams import active, current, is_part_of_call

_CALLS = "__teola_calls__"
_CHOICES = "__teola_choices__"
_CACHE = "__teola_cache__"
"""The names in a twin's dict, which pydantic takes for no field: its `Calls`, its `_choices`, and the response cache in
use when the pipeline was read.
"""

REMADE = (
    "__or__", "__ror__", "pipe", "pick", "assign", "bind", "with_config", "with_listeners", "with_alisteners",
    "with_types", "with_retry", "with_fallbacks", "map", "configurable_fields", "configurable_alternatives",
    "bind_tools", "with_structured_output", "model_copy", "copy",
)  # fmt: skip
"""Methods that make a new pipeline from the pipeline."""


def make_twin(
    pipeline: Runnable[Any, Any], calls: Calls, parts: Iterable[Runnable[Any, Any]] | None = None
) -> Runnable[Any, Any]:
    """Return a copy of the same type whose calls go through `calls`.

    `parts`: the parts that a config may replace; the pipeline itself by default.
    """
    twin = copy.copy(pipeline)
    object.__setattr__(twin, "__class__", _twin_class(type(pipeline)))
    vars(twin)[_CALLS] = calls
    vars(twin)[_CHOICES] = _choices([pipeline] if parts is None else parts)
    vars(twin)[_CACHE] = get_llm_cache()
    return twin


def _choices(parts: Iterable[Runnable[Any, Any]]) -> frozenset[str] | None:
    """Return the keys of `configurable` that change the pipeline; None for unknown keys.

    `config_specs` would look into the user's functions, and at attributes of objects held there. Inside functions, no
    component that a config can choose runs ahead (see reading.py).
    """
    found: set[str] = set()
    todo: list[Any] = list(parts)
    seen: set[int] = set()
    while todo:
        part = todo.pop()
        if id(part) in seen or isinstance_of(part, RunnableLambda):
            continue
        seen.add(id(part))
        kind = type(part)
        if kind in (list, tuple):
            todo += part
        elif kind is dict:
            todo += part.values()
        elif isinstance_of(part, DynamicRunnable):
            if isinstance_of(part, RunnableConfigurableFields):
                found.update(spec.id for spec in part.fields.values())
            elif isinstance_of(part, RunnableConfigurableAlternatives) and not part.prefix_keys:
                found.add(part.which.id)
                todo += part.alternatives.values()
            else:
                return None
            todo.append(part.default)
        elif isinstance_of(part, RunnableWithMessageHistory):
            found.update(spec.id for spec in part.history_factory_config)
            todo.append(part.bound)
        elif isinstance_of(part, Runnable) and "__dict__" in dir(kind):
            todo += object.__getattribute__(part, "__dict__").values()
    return frozenset(found)


def calls_of(pipeline: Any) -> Calls | None:
    """Return the calls behind a twin, None for any other object."""
    return vars(pipeline).get(_CALLS) if hasattr(type(pipeline), "__teola__") else None


def plain(twin: Any) -> Any:
    """Return the pipeline as an object of the plain class; any object but a twin is returned unchanged."""
    if not hasattr(type(twin), "__teola__"):
        return twin
    cls: Any = type(twin).__base__
    if hasattr(cls, "__copy__"):
        copied = cls.__copy__(twin)
    else:
        copied = object.__new__(type(twin))
        vars(copied).update(vars(twin))
    for name in (_CALLS, _CHOICES, _CACHE):
        vars(copied).pop(name, None)
    object.__setattr__(copied, "__class__", cls)
    return copied


@functools.cache
def _twin_class(cls: type) -> type:
    namespace: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__slots__": (),
        "__teola__": True,
        **_entries(cls),
        **{name: _remaking(getattr(cls, name)) for name in REMADE if hasattr(cls, name)},
        **_identity(cls),
    }
    if not hasattr(cls, "explain"):
        namespace["explain"] = _explain
    return type(cls)(cls.__name__, (cls,), namespace)


# --- entry methods ---------------------------------------------------------------------------------------------------


def _entries(cls: Any) -> dict[str, Callable[..., Any]]:
    """The entry methods of `cls`, each inside a call."""

    def invoke(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:
        with _inside(self, _plainly([input], kwargs), config, "invoke"):
            return cls.invoke(self, input, config, **kwargs)

    async def ainvoke(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:
        with _inside(self, _plainly([input], kwargs), config, "ainvoke"):
            return await cls.ainvoke(self, input, config, **kwargs)

    def batch(self: Any, inputs: Any, config: Any = None, **kwargs: Any) -> Any:
        with _inside(self, _plainly(inputs, kwargs), config, "batch", not kwargs.get("return_exceptions")):
            return cls.batch(self, inputs, config, **kwargs)

    async def abatch(self: Any, inputs: Any, config: Any = None, **kwargs: Any) -> Any:
        with _inside(self, _plainly(inputs, kwargs), config, "abatch", not kwargs.get("return_exceptions")):
            return await cls.abatch(self, inputs, config, **kwargs)

    def stream(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:
        chunks = cls.stream(self, input, config, **kwargs)
        return _steps(self, chunks, _plainly([input], kwargs), config, "stream", kwargs)

    def batch_as_completed(self: Any, inputs: Any, config: Any = None, **kwargs: Any) -> Any:
        chunks = cls.batch_as_completed(self, inputs, config, **kwargs)
        return _steps(self, chunks, _plainly(inputs, kwargs), config, "invoke")

    def astream(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:
        chunks = cls.astream(self, input, config, **kwargs)
        return _asteps(self, chunks, _plainly([input], kwargs), config, "astream", kwargs)

    def abatch_as_completed(self: Any, inputs: Any, config: Any = None, **kwargs: Any) -> Any:
        chunks = cls.abatch_as_completed(self, inputs, config, **kwargs)
        return _asteps(self, chunks, _plainly(inputs, kwargs), config, "ainvoke")

    def transform(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:
        given = _outside(input) if hasattr(input, "__next__") and not _is_plain(self) else input
        return _steps(self, cls.transform(self, given, config, **kwargs), [], config, "stream")

    def atransform(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:
        given = _aoutside(input) if hasattr(input, "__anext__") and not _is_plain(self) else input
        return _asteps(self, cls.atransform(self, given, config, **kwargs), [], config, "astream")

    entries: tuple[Callable[..., Any], ...] = (
        invoke, ainvoke, batch, abatch, stream, batch_as_completed, astream, abatch_as_completed,
    )  # fmt: skip
    entries += tuple(e for e in (transform, atransform) if not _is_inherited(cls, e.__name__))
    stood_for = {e.__name__: (getattr(cls, e.__name__), e) for e in entries if hasattr(cls, e.__name__)}
    return {name: functools.wraps(method)(of_the_kind_of(method, e)) for name, (method, e) in stood_for.items()}


def _is_inherited(cls: type, method: str) -> bool:
    """Whether the class inherits the method from `Runnable`."""
    return next((c for c in cls.__mro__ if method in vars(c)), None) is Runnable


def _outside(chunks: Iterator[Any]) -> Iterator[Any]:
    """Yield the same chunks; their producer is no part of the call."""
    while True:
        with active(None):
            try:
                chunk = next(chunks)
            except StopIteration:
                return
        yield chunk


async def _aoutside(chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
    while True:
        with active(None):
            try:
                chunk = await anext(chunks)
            except StopAsyncIteration:
                return
        yield chunk


KNOWN_ARGUMENTS = frozenset({
    "return_exceptions",
    # of langchain-classic's chains
    "return_only_outputs", "include_run_info",
    # of compiled graphs
    "context", "stream_mode", "print_mode", "output_keys", "interrupt_before", "interrupt_after", "durability",
    "control", "subgraphs", "debug", "version", "checkpoint_during",
})  # fmt: skip
"""Arguments of entry methods that do not change model requests."""


def _plainly(inputs: Any, kwargs: Mapping[str, Any]) -> Sequence[Any]:
    """Return the inputs that may run ahead: none with unread arguments, or if `inputs` is no list."""
    is_list = type(inputs) is list or type(inputs) is tuple
    return inputs if is_list and not (kwargs and kwargs.keys() - KNOWN_ARGUMENTS) else []


class _inside:
    """The inside of a call of the twin, which is opened and closed here unless the twin is plain."""

    __slots__ = ("_active", "_call", "_open")

    def __init__(self, twin: Any, inputs: Sequence[Any], config: Any, mode: Mode, is_lockstep: bool = False) -> None:
        self._open = None if _is_plain(twin) else functools.partial(_open, twin, inputs, config, mode, is_lockstep)

    def __enter__(self) -> None:
        if self._open is not None:
            self._call = self._open()
            self._active = active(self._call.session)
            self._active.__enter__()

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            try:
                self._active.__exit__()
            finally:
                self._call.close()


def _steps(
    twin: Any, chunks: Iterator[Any], inputs: Sequence[Any], config: Any, mode: Mode,
    options: Mapping[str, Any] | None = None,
) -> Iterator[Any]:  # fmt: skip
    return chunks if _is_plain(twin) else _stepping(twin, chunks, inputs, config, mode, options)


def _stepping(
    twin: Any, chunks: Iterator[Any], inputs: Sequence[Any], config: Any, mode: Mode, options: Mapping[str, Any] | None
) -> Iterator[Any]:
    call = _open(twin, inputs, config, mode, find_taker=_finder(twin, options))
    try:
        while True:
            with active(call.session):
                try:
                    chunk = next(chunks)
                except StopIteration:
                    break
            yield chunk
    finally:
        try:
            with active(call.session):
                if close := getattr(chunks, "close", None):
                    close()
        finally:
            call.close()


def _asteps(
    twin: Any, chunks: AsyncIterator[Any], inputs: Sequence[Any], config: Any, mode: Mode,
    options: Mapping[str, Any] | None = None,
) -> AsyncIterator[Any]:  # fmt: skip
    return chunks if _is_plain(twin) else _astepping(twin, chunks, inputs, config, mode, options)


async def _astepping(
    twin: Any, chunks: AsyncIterator[Any], inputs: Sequence[Any], config: Any, mode: Mode,
    options: Mapping[str, Any] | None,
) -> AsyncIterator[Any]:  # fmt: skip
    call = _open(twin, inputs, config, mode, find_taker=_finder(twin, options))
    try:
        while True:
            with active(call.session):
                try:
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    break
            yield chunk
    finally:
        try:
            with active(call.session):
                if close := getattr(chunks, "aclose", None):
                    await close()
        finally:
            call.close()


def _is_plain(twin: Any) -> bool:
    """Whether the twin runs as part of another call, or has no calls of its own."""
    calls: Calls | None = vars(twin).get(_CALLS)
    if calls is None or current() is None:
        return calls is None
    return is_part_of_call(is_followed=calls.traced.follow is not None)


def _finder(twin: Any, options: Mapping[str, Any] | None) -> Callable[[], Taker | None]:
    """Return a function that finds the reader of a stream, see `stream_readers.taker_at`; None of what is no graph.

    Called by the stream's generator. The function looks at source texts: not for calls at rest.
    """
    if options is None or vars(twin)[_CALLS].traced.follow is None:
        return _no_taker
    reader: types.FrameType | None = sys._getframe(2)
    while reader is not None and reader.f_code.co_filename in _PASSING_ON:
        reader = reader.f_back
    return _no_taker if reader is None else functools.partial(taker_at, reader, twin, options)


def _no_taker() -> Taker | None:
    return None


_PASSING_ON = (generators.__file__, interception.__file__)
"""Modules whose generators take an item of a stream only when the caller takes one."""


def _open(
    twin: Any, inputs: Sequence[Any], config: Any, mode: Mode, is_lockstep: bool = False,
    find_taker: Callable[[], Taker | None] = _no_taker,
) -> Call:  # fmt: skip
    calls: Calls = vars(twin)[_CALLS]
    loop = asyncio.get_running_loop() if mode.startswith("a") else None
    entered = functools.partial(_entered, twin, inputs, config, mode, find_taker)
    return calls.open(entered, count=len(inputs), loop=loop, is_lockstep=is_lockstep)


def _entered(
    twin: Any, inputs: Sequence[Any], config: Any, mode: Mode, find_taker: Callable[[], Taker | None]
) -> Sequence[Entered]:
    """Return what the call is given; nothing if the call is to run as it is."""
    given = [*config] if isinstance(config, list | tuple) else [config]
    configs = [c for c in (*given, var_child_runnable_config.get()) if isinstance(c, dict)]
    if any(c.get("max_concurrency") is not None or _is_chosen(twin, c) for c in configs):
        return ()  # a limit on concurrency, or another pipeline than the one read: nothing runs ahead
    if get_llm_cache() is not vars(twin)[_CACHE]:
        return ()  # nor a request that a cache may answer
    own = getattr(twin, "config", None)
    configs.append(own if isinstance(own, dict) else {})
    if any(map(is_refusable, configs)):
        return ()  # a handler may end the call before any request
    if any(map(is_watched, configs)):
        mode = "events"
    taker = find_taker()
    heard, is_only = heard_by(configs) | (taker.changes if taker else frozenset()), len(inputs) == 1
    taker = None if mode == "events" else taker
    with tokens_heard(configs):
        return [Entered(v, mode, heard=heard, is_only=is_only, twin=twin, taker=taker) for v in inputs]


def _is_chosen(twin: Any, config: Mapping[str, Any]) -> bool:
    """Whether the call's config changes the pipeline."""
    choices, chosen = vars(twin)[_CHOICES], config.get("configurable") or ()
    return bool(chosen) if choices is None else not choices.isdisjoint(chosen)


# --- another pipeline made of it -------------------------------------------------------------------------------------


def _remaking(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def remake(self: Any, *args: Any, **kwargs: Any) -> Any:
        # a step of a sequence may be the twin itself; a copy must not have our attributes
        is_step = method.__name__ in ("__or__", "__ror__", "pipe") and not isinstance(self, RunnableSequence)
        made = method(self if is_step else plain(self), *args, **kwargs)
        calls = vars(self).get(_CALLS)
        return calls.again(made) if calls is not None and isinstance(made, Runnable) else made

    return remake


def _explain(self: Any, format: str = "text", analyze: Any = None) -> str:
    """See `teola_plugin.explain`."""
    calls: Calls = vars(self)[_CALLS]
    return calls.explain(format, analyze)


def _identity(cls: Any) -> dict[str, Any]:
    """Return the plain object's equality, copies and pickles."""

    def __eq__(self: Any, other: Any) -> Any:
        return cls.__eq__(plain(self), plain(other))

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        return copy.copy, (plain(self),)  # pickle insists that an object is rebuilt as its own class

    def __copy__(self: Any) -> Any:
        copied = plain(self)
        return make_twin(copied, vars(self)[_CALLS]) if _CALLS in vars(self) else copied

    def __deepcopy__(self: Any, memo: Any) -> Any:
        copied = copy.deepcopy(plain(self), memo)
        return vars(self)[_CALLS].again(copied) if _CALLS in vars(self) else copied

    methods = (__eq__, __reduce_ex__, __copy__, __deepcopy__)
    return {**{m.__name__: m for m in methods}, "__hash__": cls.__hash__}
