"""The scheduler of an engine for tests that are written in items and their ids."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from teola_plugin.engines import Batch, Item
from teola_plugin.runtime.scheduler.batching import EngineScheduler
from teola_plugin.runtime.scheduler.work_item import Request, WorkItem


def request_of(
    op: str, settings: Mapping[str, Any], items: Sequence[Item], query: Hashable, depth: int = 0,
    remaining_s: float = 0.0, begun_s: float = 0.0, **more: Any,
) -> Request:  # fmt: skip
    """A request of these items, which wait for it."""
    request = Request(op, settings, [], query, depth, remaining_s, begun_s, **more)
    request.items = [WorkItem(item, request) for item in items]
    if items:
        request.tenant = items[0].tenant
    return request


class Scheduler(EngineScheduler):
    """Batches out, ids in."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.works: dict[int, WorkItem] = {}

    def resubmit(self, request: Request, now_s: float = 0.0) -> None:
        self.works |= {work.item.id: work for work in request.items}
        super().resubmit(request, now_s)

    def batch(self, now_s: float = 0.0) -> Batch | None:
        """The next one."""
        attempt = self.next_batch(now_s)
        return attempt.batch if attempt else None

    def end(self, ids: Iterable[int], now_s: float = 0.0) -> None:
        """These are over."""
        self.finish([self.works[item_id] for item_id in ids if item_id in self.works], now_s)

    def take_out(self, ids: Iterable[int]) -> list[int]:
        """Of these, those that run."""
        return [work.item.id for work in self.withdraw([self.works[item_id] for item_id in ids])]
