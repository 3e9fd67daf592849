"""Replacements of generator functions: LangChain demands generator functions (`RunnableGenerator(chain.transform)`)."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any


def of_the_kind_of(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, which returns an iterator, as a generator function if `original` is one."""

    def stream(*args: Any, **kwargs: Any) -> Iterator[Any]:
        yield from function(*args, **kwargs)

    async def astream(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async with contextlib.aclosing(function(*args, **kwargs)) as chunks:
            async for chunk in chunks:
                yield chunk

    if inspect.isgeneratorfunction(original):
        return stream
    return astream if inspect.isasyncgenfunction(original) else function
