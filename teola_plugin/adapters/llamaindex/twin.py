"""The optimized object: the user's object itself, state and all, seen through a subclass with entry methods.

LlamaIndex checks `isinstance` and sets private attributes while running (`engine._response_synthesizer._streaming`). So
a twin shares the `__dict__` of its original, and its class has the same names. Entry methods open a call and run the
framework's own method inside; they carry the dispatcher's own mark, so no second span appears. Copies and pickles of a
twin are plain. A stream keeps its call open until the stream ends, is closed, or is forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.workflow import Workflow
from llama_index_instrumentation.dispatcher import DISPATCHER_SPAN_DECORATED_ATTR

from teola_plugin.adapters import Calls
from teola_plugin.adapters.leaf import plain_class
from teola_plugin.adapters.llamaindex.entries import Entry, entry_of, methods_of
from teola_plugin.adapters.llamaindex.indexes import make_class_twin
from teola_plugin.adapters.llamaindex.ingestion import ingesting, is_of_processes
from teola_plugin.adapters.llamaindex.listeners import may_refuse
from teola_plugin.adapters.llamaindex.own_runs import outermost
from teola_plugin.adapters.llamaindex.parts import OwnSteps, entered, entered_method, method_run, step_run, steps_of
from teola_plugin.adapters.llamaindex.reading_parts import original_of
from teola_plugin.adapters.llamaindex.streams import until_read
from teola_plugin.adapters.methods import attribute_of
from teola_plugin.adapters.source import TWIN_OF
from teola_plugin.seams import active, current, is_part_of_call

log = logging.getLogger(__name__)
MAKES = ("with_retriever", "as_query_engine", "as_retriever", "as_chat_engine")
"""Methods that make a pipeline from the user's object, to be optimized too."""


def make_twin(pipeline: Any, calls: Calls) -> Any:
    """Return the twin of a component or of the class of an index; the object itself if its class forbids a twin."""
    if isinstance(pipeline, type):
        return make_class_twin(pipeline, calls)
    cls = plain_class(pipeline)
    namespace: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__teola__": True,
        "__teola_calls__": calls,
        TWIN_OF: pipeline,
        # protocol 1: from the second on, pickle insists that the class be the object's own
        "__reduce_ex__": lambda self, protocol: _sharing(cls, self).__reduce_ex__(min(protocol, 1)),
        "__copy__": lambda self: copy.copy(_sharing(cls, self)),
        "__deepcopy__": lambda self, memo: copy.deepcopy(_sharing(cls, self), memo),
        **_entries(cls, calls),
        **_read_steps(pipeline),
    }
    if hasattr(cls, "__del__"):  # the state is the original's, which the twin's class keeps alive
        namespace["__del__"] = lambda self: None
    if not hasattr(cls, "explain"):
        namespace["explain"] = lambda self, format="text", analyze=None: calls.explain(format, analyze)
    for name in MAKES:
        if hasattr(cls, name):
            namespace[name] = _again(cls, name, calls)
    try:
        twin: Any = type(cls)(cls.__name__, (cls,), namespace)
    except TypeError:  # the class wants arguments from its subclasses
        return pipeline
    if issubclass(cls, Workflow):  # each class of workflows begins without steps added from outside
        twin._step_functions = cls._step_functions
    return _sharing(twin, pipeline)


def calls_of(pipeline: Any) -> Calls | None:
    """Return the calls behind a twin's entry methods; None for any other object."""
    made = pipeline if isinstance(pipeline, type) else type(pipeline)
    calls: Calls | None = vars(made).get("__teola_calls__")
    return calls


def _entries(cls: type, calls: Calls) -> dict[str, Any]:
    is_engine = issubclass(cls, BaseQueryEngine)
    entries: dict[str, Any] = {}
    for name, does in methods_of(cls).items():
        for method, make in ((name, _sync_entry), (f"a{name}", _async_entry)):
            original = attribute_of(cls, method)
            if original is None:
                continue
            find = partial(attribute_of, cls, method)  # the method may be replaced after `optimize`
            entry = functools.wraps(original)(make(find, calls, does, method, is_root=not is_engine))
            setattr(entry, DISPATCHER_SPAN_DECORATED_ATTR, True)
            entries[method] = entry
    return entries


def _read_steps(pipeline: Any) -> dict[str, Any]:
    """Return the steps of a workflow, which are read as they begin."""
    steps, cls = steps_of(pipeline), plain_class(pipeline)
    return {name: _step(steps, cls, name, function) for name, function in steps.functions.items()} if steps else {}


def _step(steps: OwnSteps, cls: type, name: str, function: Any) -> Any:
    async def astep(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (now := attribute_of(cls, name)) is not function:
            return await now.__get__(self, cls)(*args, **kwargs)
        with _reading(steps, name, args, kwargs):
            return await function(self, *args, **kwargs)

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (now := attribute_of(cls, name)) is not function:
            return now.__get__(self, cls)(*args, **kwargs)
        with _reading(steps, name, args, kwargs):
            return function(self, *args, **kwargs)

    return functools.wraps(function)(astep if inspect.iscoroutinefunction(function) else step)


def _reading(
    steps: OwnSteps, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> contextlib.AbstractContextManager[None]:
    """Begin reading a step. LlamaIndex passes all arguments by name; other calls run the step unchanged."""
    session = current()
    if session is None or session.is_at_rest or args:
        return contextlib.nullcontext()
    try:
        return entered(steps.workflow, step_run(steps, name, kwargs))
    except Exception:  # a fault of ours is never the user's: the step runs as it is
        log.exception("the step %s could not be read", name)
        return contextlib.nullcontext()


def _reading_method(
    twin: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> contextlib.AbstractContextManager[None]:
    """Begin reading a user's override of an entry method."""
    component, session = original_of(twin), current()
    try:
        own = method_run(component, name, args, kwargs, is_beside=False)
    except Exception:  # a fault of ours is never the user's: the method runs as it is
        log.exception("the method %s could not be read", name)
        return contextlib.nullcontext()
    if own is None or session is None or session.is_at_rest:
        return contextlib.nullcontext()
    return entered_method(component, own)


def _sync_entry(
    find: Callable[[], Any], calls: Calls, does: Mapping[str, bool], name: str, *, is_root: bool
) -> Callable[..., Any]:
    def entry(self: Any, *args: Any, **kwargs: Any) -> Any:
        method = find().__get__(self, type(self))
        if is_part_of_call(is_followed=isinstance(self, Workflow)):
            return method(*args, **kwargs)
        inputs = partial(_inputs_of, self, args, kwargs, does, is_async=False, is_root=is_root)
        call = calls.open(inputs, loop=asyncio._get_running_loop() if isinstance(self, Workflow) else None)
        try:
            with active(call.session), outermost(), ingesting(self, kwargs), _reading_method(self, name, args, kwargs):
                value = method(*args, **kwargs)
        except BaseException:
            call.close()
            raise
        return until_read(value, call)

    return entry


def _async_entry(
    find: Callable[[], Any], calls: Calls, does: Mapping[str, bool], name: str, *, is_root: bool
) -> Callable[..., Any]:
    async def entry(self: Any, *args: Any, **kwargs: Any) -> Any:
        method = find().__get__(self, type(self))
        if is_part_of_call(is_followed=isinstance(self, Workflow)):
            return await method(*args, **kwargs)
        inputs = partial(_inputs_of, self, args, kwargs, does, is_async=True, is_root=is_root)
        call = calls.open(inputs, loop=asyncio.get_running_loop())
        try:
            with active(call.session), outermost(), ingesting(self, kwargs), _reading_method(self, name, args, kwargs):
                value = await method(*args, **kwargs)
        except BaseException:
            call.close()
            raise
        return until_read(value, call)

    return entry


def _inputs_of(
    component: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], does: Mapping[str, bool], *, is_async: bool,
    is_root: bool,
) -> list[Entry]:  # fmt: skip
    if is_of_processes(component, kwargs) or may_refuse(component):
        return []
    return [entry_of(args, kwargs, does, is_async=is_async, is_root=is_root)]


def _again(cls: type, name: str, calls: Calls) -> Callable[..., Any]:
    @functools.wraps(attribute_of(cls, name))
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return calls.again(attribute_of(cls, name).__get__(original_of(self), cls)(*args, **kwargs))

    return method


def _sharing(cls: Any, original: Any) -> Any:
    """Return an object of this class with the state of `original`, shared and not copied."""
    made = object.__new__(cls)  # its own `__new__` may warn of the class
    object.__setattr__(made, "__dict__", original.__dict__)
    for name in ("__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__"):
        if hasattr(original, name):
            object.__setattr__(made, name, getattr(original, name))
    return made
