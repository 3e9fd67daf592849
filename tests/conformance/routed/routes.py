"""Where a framework's pipelines are caught, so that its tests meet optimized ones without knowing.

The classes of the framework are changed, for the whole process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    RouterRunnable,
    RunnableAssign,
    RunnableBinding,
    RunnableBranch,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableEach
from langchain_core.runnables.configurable import RunnableConfigurableAlternatives, RunnableConfigurableFields
from langchain_core.runnables.retry import RunnableRetry

from routed.twins import Twins
from teola_plugin.seams import current

COMPOSITES: tuple[type, ...] = (
    RouterRunnable, RunnableAssign, RunnableBinding, RunnableBranch, RunnableConfigurableAlternatives,
    RunnableConfigurableFields, RunnableEach, RunnableGenerator, RunnableLambda, RunnableParallel, RunnablePassthrough,
    RunnablePick, RunnableRetry, RunnableSequence, RunnableWithFallbacks,
)  # fmt: skip
ENTRIES = (
    "invoke", "ainvoke", "batch", "abatch", "stream", "astream", "batch_as_completed", "abatch_as_completed",
)  # fmt: skip


def route_calls(twins: Twins) -> None:
    """A call of a composite, a retriever or an old-style chain becomes one of its twin."""
    from langchain_classic.chains.base import Chain

    for cls in (*COMPOSITES, BaseRetriever, Chain):
        for name in ENTRIES:
            setattr(cls, name, _routed(getattr(cls, name), twins))


def _routed(original: Callable[..., Any], twins: Twins) -> Callable[..., Any]:
    """The method, of the same kind of function: LangChain and its tests ask."""

    def bound(self: Any) -> Callable[..., Any]:
        if _is_twin(self) or current() is not None:
            return functools.partial(original, self)
        method: Callable[..., Any] = getattr(twins.twin_of(self), original.__name__)
        return method

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return bound(self)(*args, **kwargs)

    async def acall(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await bound(self)(*args, **kwargs)

    def stream(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        yield from bound(self)(*args, **kwargs)

    async def astream(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async with contextlib.aclosing(bound(self)(*args, **kwargs)) as chunks:
            async for chunk in chunks:
                yield chunk

    kinds: tuple[tuple[Callable[..., bool], Callable[..., Any]], ...] = (
        (inspect.iscoroutinefunction, acall),
        (inspect.isgeneratorfunction, stream),
        (inspect.isasyncgenfunction, astream),
    )
    routed = next((method for is_kind, method in kinds if is_kind(original)), call)
    return functools.wraps(original)(routed)


def _is_twin(pipeline: Any) -> bool:
    return hasattr(type(pipeline), "__teola__")


def give_head_start(model: Any, seconds: float) -> None:
    """In a call of a twin, models begin later. Not a synchronous one in an event loop, which that would hold up."""
    invoke, ainvoke = model.invoke, model.ainvoke

    @functools.wraps(invoke)
    def slow_invoke(self: Any, *args: Any, **kwargs: Any) -> Any:
        if current() is not None and asyncio._get_running_loop() is None:
            time.sleep(seconds)
        return invoke(self, *args, **kwargs)

    @functools.wraps(ainvoke)
    async def slow_ainvoke(self: Any, *args: Any, **kwargs: Any) -> Any:
        if current() is not None:
            await asyncio.to_thread(time.sleep, seconds)  # where a test freezes time, asyncio.sleep never ends
        return await ainvoke(self, *args, **kwargs)

    model.invoke, model.ainvoke = slow_invoke, slow_ainvoke


def route_objects(twins: Twins) -> None:
    """A composite becomes its twin at the end of its constructor; subclasses that the tests define do not."""
    for cls in COMPOSITES:
        cls.__init__ = _becoming(cls, twins)  # type: ignore[misc]


def _becoming(cls: Any, twins: Twins) -> Callable[..., None]:
    original = cls.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if type(self) is cls:
            twin = twins.twin_of(self)
            vars(self).update(vars(twin))
            object.__setattr__(self, "__class__", type(twin))

    return __init__


def route_graphs(twins: Twins) -> None:
    """What compiles to a graph gives an optimized one."""
    from langgraph.func import entrypoint
    from langgraph.graph import StateGraph

    for cls, name in ((StateGraph, "compile"), (entrypoint, "__call__")):
        setattr(cls, name, _optimizing(getattr(cls, name), twins))


def _optimizing(original: Callable[..., Any], twins: Twins) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        return twins.twin_of(original(*args, **kwargs))

    return make
