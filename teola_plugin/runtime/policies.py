"""Policies: which waiting items make the next batch of an engine. Each is a pure function of the queue.

    po         per-invocation oriented: the request that came first, alone. Latency of one invocation before all else.
    to         throughput oriented: first come first served over all requests, filled to the free slots.
    topology   Teola's topology-aware batching (arXiv 2407.00326, Algorithm 2): requests form a bucket per query,
               buckets stand by their earliest arrival, and each bucket gives its deepest requests first (those with
               the longest way to the output), until the slots are full.

A batch holds one operation with one set of settings, those of the request that is picked first. In `topology` a
bucket first gives all requests of its greatest depth before the next bucket is asked, and shallower ones only fill
slots that all buckets leave free: that is what keeps a deep request of a late query from waiting behind a shallow one
of an early query (the paper's figure 7).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


class Waiting(Protocol):
    """A request in the queue: `waiting` items are not yet in a batch."""

    @property
    def query(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def arrival(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def group(self) -> Hashable: ...


@dataclass(frozen=True, slots=True)
class Pick:
    """The next `count` items of the request at `index` in the queue."""

    index: int
    count: int


Policy = Callable[[Sequence[Waiting], int], list[Pick]]
PolicyName = Literal["po", "to", "topology"]


def po(queue: Sequence[Waiting], free: int) -> list[Pick]:
    """The request that came first, alone."""
    first = min(range(len(queue)), key=lambda i: queue[i].arrival)
    return [Pick(first, min(free, queue[first].waiting))]


def to(queue: Sequence[Waiting], free: int) -> list[Pick]:
    """First come first served, filled to `free` slots."""
    return _fill(queue, sorted(range(len(queue)), key=lambda i: queue[i].arrival), free)


def topology(queue: Sequence[Waiting], free: int) -> list[Pick]:
    """Buckets by earliest arrival, deepest first within each."""
    earliest: dict[int, int] = {}
    depths: dict[int, set[int]] = {}
    for request in queue:
        earliest[request.query] = min(request.arrival, earliest.get(request.query, request.arrival))
        depths.setdefault(request.query, set()).add(request.depth)
    rounds = {query: sorted(found, reverse=True) for query, found in depths.items()}

    def rank(i: int) -> tuple[int, int, int]:
        request = queue[i]
        return (rounds[request.query].index(request.depth), earliest[request.query], request.arrival)

    return _fill(queue, sorted(range(len(queue)), key=rank), free)


POLICIES: dict[str, Policy] = {"po": po, "to": to, "topology": topology}


def _fill(queue: Sequence[Waiting], order: Iterable[int], free: int) -> list[Pick]:
    picks: list[Pick] = []
    group: Hashable = None
    for index in order:
        request = queue[index]
        if picks and request.group != group:
            continue
        group = request.group
        count = min(free, request.waiting)
        picks.append(Pick(index, count))
        free -= count
        if not free:
            break
    return picks
