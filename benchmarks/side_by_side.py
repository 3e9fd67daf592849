"""What the benchmarks share: a table of rows that are measured one after the other, each printed when it is done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol, TypeVar

from teola_plugin import runtime
from teola_plugin.screen import own_screen, progress_bar

Told = Callable[[int, int], None]
"""Is told how many of how many rounds are done."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


Parts = TypeVar("Parts")
Row = TypeVar("Row", bound=Named)


def print_rows(
    layout: str, heads: tuple[str, ...], title: str, only: str, *,
    parts: AbstractContextManager[Parts], rows: Callable[[Parts], Iterable[Row]],
    measured: Callable[[Row, asyncio.Runner, Told], list[str]],
) -> None:  # fmt: skip
    """The rows made of `parts` whose name contains `only`, in that layout. All coroutines run on one event loop."""
    with own_screen() as screen, progress_bar(screen.console) as progress, asyncio.Runner() as runner:
        task = progress.add_task("starting the engines", total=None)

        def tell(name: str, done: int, total: int) -> None:
            progress.update(task, description=name, completed=done, total=total)

        try:
            with parts as models:
                screen.say(title)
                screen.say(layout.format(*heads))
                for row in rows(models):
                    if only in row.name:
                        screen.say(layout.format(*measured(row, runner, partial(tell, row.name))).rstrip())
        finally:
            runtime.host.close()


async def seconds_of(act: Callable[[], Awaitable[object]]) -> float:
    started_s = time.perf_counter()
    await act()
    return time.perf_counter() - started_s


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f}"
