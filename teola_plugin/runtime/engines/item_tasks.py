"""Tasks for items that are requests to a service: each item has a task that ends or fails alone, in time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from teola_plugin.engines import Batch, Done, Emit, Failed, Item, Outcome
from teola_plugin.errors import Cancelled

Tell = Callable[[Outcome], None]
Work = Callable[[Item, Tell], Awaitable[Any]]
"""A function that makes the value of an item, and may report deltas before."""


class ItemTasks(dict[int, "asyncio.Task[None]"]):
    """The running tasks of an engine, by item id."""

    async def run(
        self, engine: str, batch: Batch, emit: Emit, work: Work, error_of: Callable[[Exception], BaseException]
    ) -> None:
        """Run a batch, all items side by side. `error_of`: maps an exception of the work to the error of the item."""

        async def answer(item: Item, tell: Tell) -> None:
            try:
                async with asyncio.timeout_at(None if math.isinf(item.deadline_s) else item.deadline_s):
                    value = await work(item, tell)
                tell(Done(value))
            except asyncio.CancelledError:
                tell(Failed(Cancelled(f"engine {engine!r} was told to stop")))
            except Exception as e:  # an item fails alone
                tell(Failed(error_of(e)))

        tasks = [asyncio.ensure_future(answer(item, partial(emit, at))) for at, item in enumerate(batch.items)]
        ids = {item.id: task for item, task in zip(batch.items, tasks, strict=True)}
        self |= ids
        try:
            await asyncio.gather(*tasks)
        finally:
            for item_id in ids:
                self.pop(item_id, None)

    def abort(self, ids: Sequence[int]) -> None:
        """Cancel items, from any thread."""
        for item_id in ids:
            if task := self.get(item_id):
                task.get_loop().call_soon_threadsafe(task.cancel)
