"""The engine scheduler: a queue of requests in, batches out. Pure: it reads no clock and calls nobody.

One for each engine, shared by all queries and applications. A policy (policies.py) picks which items make the next
batch; the picked items reach the engine as *one* call. An engine that batches continuously (an LLM) has as many slots
as items it holds at once, and each finished item frees its slot; any other runs one batch at a time.

    scheduler.submit(request)
    while batch := scheduler.next_batch(): start(batch)
    scheduler.finish(batch, items)        # these items ended: their slots are free
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.engines import Batch, Capabilities, Item, freeze
from teola_plugin.runtime.policies import Policy


@dataclass(slots=True)
class Request:
    """Items of one primitive (or of one leaf call) of one query. `items` shrinks as they leave in batches."""

    op: str
    settings: Mapping[str, Any]
    items: list[Item]
    query: int
    depth: int = 0
    arrival: int = field(default=0)
    group: Hashable = None

    def __post_init__(self) -> None:
        self.group = (self.op, freeze(self.settings))

    @property
    def waiting(self) -> int:
        """How many of its items are not in a batch yet."""
        return len(self.items)


class EngineScheduler:
    """Queue and slots of one engine."""

    def __init__(self, policy: Policy, capabilities: Capabilities) -> None:
        self.policy = policy
        self._capabilities = capabilities
        self._queue: list[Request] = []
        self._running: set[int] = set()
        self._arrivals = itertools.count()

    @property
    def queued_items(self) -> int:
        """Items that are in no batch yet."""
        return sum(request.waiting for request in self._queue)

    @property
    def running_items(self) -> int:
        """Items that are with the engine."""
        return len(self._running)

    def submit(self, request: Request) -> None:
        """Queue a request; its arrival is its place in the order of submissions."""
        request.arrival = next(self._arrivals)
        if request.items:
            self._queue.append(request)

    def next_batch(self) -> Batch | None:
        """The next batch if the engine has a free slot for one; its items count as running from now on."""
        free = self._free_slots()
        if not self._queue or free <= 0:
            return None
        picks = self.policy(self._queue, free)
        first = self._queue[picks[0].index]
        items: list[Item] = []
        for pick in picks:
            request = self._queue[pick.index]
            items += request.items[: pick.count]
            del request.items[: pick.count]
        self._queue = [request for request in self._queue if request.items]
        self._running.update(item.id for item in items)
        return Batch(first.op, first.settings, tuple(items))

    def finish(self, ids: Collection[int]) -> None:
        """These items ended; asking twice does no harm."""
        self._running.difference_update(ids)

    def withdraw(self, ids: Collection[int]) -> list[int]:
        """Take items out of the queue; those returned are with the engine and only it can stop them."""
        gone = set(ids)
        for request in self._queue:
            request.items = [item for item in request.items if item.id not in gone]
        self._queue = [request for request in self._queue if request.items]
        return list(gone & self._running)

    def _free_slots(self) -> int:
        limit = self._capabilities.max_items
        if self._capabilities.concurrent:
            return limit - len(self._running)
        return 0 if self._running else limit
