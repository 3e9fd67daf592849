"""Policies: which waiting items make the next batch of an engine. Each is a pure function of the queue.

    po             per-invocation oriented: the request that came first, alone. Latency of one invocation above all.
    to             throughput oriented: first come first served over all requests, filled to the free slots.
    topology       Teola's topology-aware batching (arXiv 2407.00326, Algorithm 2): requests form a bucket per query,
                   buckets stand by the arrival of their queries, and each bucket gives its deepest requests first
                   (those with the longest way to the output), until the slots are full.
    critical_path  earliest due first: a query is due some time after it came, the sooner the less it has yet to do in
                   predicted seconds. A short query overtakes a long one that came a little earlier, a query that
                   nears its end one that begins, and nobody is overtaken for long.

A batch holds one operation with one set of settings, those of the request that is picked first. In `topology` a
bucket first gives all requests of its greatest depth before the next bucket is asked, and shallower ones only fill
slots that all buckets leave free: that is what keeps a deep request of a late query from waiting behind a shallow one
of an early query (the paper's figure 7).

A bucket stands by when its query came, not by when its next request came to this engine: a query's later steps would
else queue behind the first steps of all who came in between, which costs the slowest queries a tenth and more.

Where an LLM keeps the beginnings of prompts in a cache (`WarmPrefixes`), those that begin as something run lately go
next to it, as far as the two policies with an order between queries leave it open: nobody goes before what is due more
than `tolerance_s` sooner, by the policy's own measure, so whoever comes later than that waits behind. The order stays
that of the policy up to this tolerance, and `po` and `to` stay what they are.

    due        1.0  1.1  1.2  1.3   3.0        tolerance 1 s, a ran last
    begins     b    a    b    a     a     ->   a a b b | a
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from teola_plugin.engines import Urgency


class Waiting(Protocol):
    """A request in the queue: `waiting` items are not yet in a batch.

    `depth` and `remaining_s`: requests, and predicted seconds, from here to the output of its query, which began at
    `begun_s`; `own_s` of the seconds it takes itself.
    """

    @property
    def query(self) -> Hashable: ...
    @property
    def depth(self) -> int: ...
    @property
    def remaining_s(self) -> float: ...
    @property
    def own_s(self) -> float: ...
    @property
    def arrival(self) -> int: ...
    @property
    def begun_s(self) -> float: ...
    @property
    def waiting(self) -> int: ...
    @property
    def group(self) -> Hashable: ...
    @property
    def beginning(self) -> Hashable:
        """Equal for prompts that begin alike; None for what is like no other."""


@dataclass(frozen=True, slots=True)
class Pick:
    """The next `count` items of the request at `index` in the queue."""

    index: int
    count: int


REMAINING_TIME_WEIGHT = 0.3
"""How much what a query has yet to do counts, in `critical_path`, against when it came. 0 is first come first served.
The more it is, the lower the mean of the load benchmark, and the longer the longest wait: with a half the mean is 1 %
lower near saturation, and the P99 2 % higher, which is then no longer below that of `topology`."""


@dataclass(frozen=True, slots=True)
class WarmPrefixes:
    """Which beginnings were run lately (`last_run`: the larger the later), and how far requests may change places."""

    tolerance_s: float
    last_run: Mapping[Hashable, int]


class Policy(Protocol):
    """Takes the queue, which is not empty, and the number of free slots, which is not zero."""

    def __call__(self, queue: Sequence[Waiting], free: int, warm: WarmPrefixes | None = None, /) -> list[Pick]: ...


PolicyName = Literal["po", "to", "topology", "critical_path"]


def po(queue: Sequence[Waiting], free: int, warm: WarmPrefixes | None = None) -> list[Pick]:
    """The request that came first, alone."""
    first = min(range(len(queue)), key=lambda i: queue[i].arrival)
    return [Pick(first, min(free, queue[first].waiting))]


def to(queue: Sequence[Waiting], free: int, warm: WarmPrefixes | None = None) -> list[Pick]:
    """First come first served, filled to `free` slots."""
    return fill(queue, in_order([request.arrival for request in queue]), free)


def topology(queue: Sequence[Waiting], free: int, warm: WarmPrefixes | None = None) -> list[Pick]:
    """Buckets by the arrival of their queries, deepest first within each."""
    depths: dict[Hashable, set[int]] = {}
    for request in queue:
        depths.setdefault(request.query, set()).add(request.depth)
    rounds = {query: sorted(found, reverse=True) for query, found in depths.items()}
    earliest = _earliest(queue)
    ranks = [
        (rounds[request.query].index(request.depth), request.begun_s, earliest[request.query], request.arrival)
        for request in queue
    ]

    def is_near(first: int, other: int, tolerance_s: float) -> bool:
        (first_round, first_s, *_), (other_round, other_s, *_) = ranks[first], ranks[other]
        return first_round == other_round and other_s <= first_s + tolerance_s

    return fill(queue, _warm_first(queue, in_order(ranks), is_near, warm), free)


def critical_path(queue: Sequence[Waiting], free: int, warm: WarmPrefixes | None = None) -> list[Pick]:
    """What is due first, by when its query came and what that has yet to do.

    The longest `remaining_s` of a query here is what it has yet to do. A request with a shorter way to the output than
    another of its query is due later, by as much as it can wait. One that is itself much shorter than that other makes
    little room by waiting, and may then find a long batch of others before it: it gives way by as much less. (Questions
    that let others' pages be embedded first, when those of their own document are done, cost 3 to 6 % of the mean.)
    """
    longest: dict[Hashable, Waiting] = {}
    for request in queue:
        if request.remaining_s > longest.setdefault(request.query, request).remaining_s:
            longest[request.query] = request

    ranks: list[tuple[float, float, int]] = []
    for request in queue:
        other = longest[request.query]
        shorter_s = other.remaining_s - request.remaining_s
        can_wait_s = shorter_s * min(1.0, request.own_s / other.own_s if other.own_s else 1.0)
        ranks.append((_due_s(request.begun_s, other.remaining_s + can_wait_s), shorter_s, request.arrival))

    def is_near(first: int, other: int, tolerance_s: float) -> bool:
        return ranks[other][0] <= ranks[first][0] + tolerance_s

    return fill(queue, _warm_first(queue, in_order(ranks), is_near, warm), free)


def _due_s(begun_s: float, remaining_s: float) -> float:
    return begun_s + REMAINING_TIME_WEIGHT * remaining_s


def _earliest(queue: Sequence[Waiting]) -> dict[Hashable, int]:
    earliest: dict[Hashable, int] = {}
    for request in queue:
        earliest[request.query] = min(request.arrival, earliest.get(request.query, request.arrival))
    return earliest


POLICIES: dict[str, Policy] = {"po": po, "to": to, "topology": topology, "critical_path": critical_path}

APPLICATION_AWARE = (topology, critical_path)
"""Those that tell queries apart; the others know invocations only."""


def no_priority(urgency: Urgency, begun_s: float) -> int:
    """In the order in which they are handed on."""
    return 0


def by_depth(urgency: Urgency, begun_s: float) -> int:
    """The longest way to the output first, counted in requests."""
    return -urgency.depth


def by_due_time(urgency: Urgency, begun_s: float) -> int:
    """Earliest due first, in milliseconds."""
    return round(1000 * _due_s(begun_s, urgency.remaining_s))


PRIORITIES: dict[str, Callable[[Urgency, float], int]] = {
    "po": no_priority, "to": no_priority, "topology": by_depth, "critical_path": by_due_time,
}  # fmt: skip
"""What an engine that orders its own queue is told (`Item.priority`) of a request whose query began at `begun_s`."""


def in_order(ranks: Iterable[Any]) -> Iterator[int]:
    """Their places, by rank. Of a long queue no more is sorted than is asked for, which is a few free slots."""
    places = [(rank, place) for place, rank in enumerate(ranks)]
    heapq.heapify(places)
    while places:
        yield heapq.heappop(places)[1]


def _warm_first(
    queue: Sequence[Waiting],
    order: Iterator[int],
    is_near: Callable[[int, int, float], bool],
    warm: WarmPrefixes | None,
) -> Iterator[int]:
    """The order, where of those near the first one that whose beginning was run last goes next."""
    return order if warm is None else _changed(queue, order, is_near, warm)


def _changed(
    queue: Sequence[Waiting], order: Iterator[int], is_near: Callable[[int, int, float], bool], warm: WarmPrefixes
) -> Iterator[int]:
    tolerance_s, last_run = warm.tolerance_s, warm.last_run
    newest = max(last_run.values(), default=0)
    runs_now: dict[Hashable, int] = {}
    near: list[int] = []
    following = next(order, None)
    while near or following is not None:
        while following is not None and (not near or is_near(near[0], following, tolerance_s)):
            near.append(following)
            following = next(order, None)
        at, latest = 0, -1  # of equals the first
        for place, index in enumerate(near):
            beginning = queue[index].beginning
            run = runs_now.get(beginning, last_run.get(beginning, -1))
            if run > latest:
                at, latest = place, run
        index = near.pop(at)
        if (beginning := queue[index].beginning) is not None:
            runs_now[beginning] = newest = newest + 1
        yield index


def fill(queue: Sequence[Waiting], order: Iterable[int], free: int) -> list[Pick]:
    """The requests in this order, those with the first one's operation and settings, until the slots are full."""
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
