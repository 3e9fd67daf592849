"""Policies: which waiting items make the next batch of an engine. Each gives every request a rank (waiting.py).

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

from bisect import bisect_left
from collections.abc import Callable, Hashable, Reversible, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from teola_plugin.engines import Urgency

REMAINING_TIME_WEIGHT = 0.3
"""How much what a query has yet to do counts, in `critical_path`, against when it came. 0 is first come first served.
The more it is, the lower the mean of the load benchmark, and the longer the longest wait: with a half the mean is 1 %
lower near saturation, and the P99 2 % higher, which is then no longer below that of `topology`."""


@dataclass(frozen=True, slots=True)
class WarmPrefixes:
    """Which beginnings were run lately (`last_run`: the latest last), and how far requests may change places."""

    tolerance_s: float
    last_run: Reversible[Hashable]


Rank = tuple[float, ...]
"""The least goes first."""


class Ranked(Protocol):
    """A request that waits. `depth` and `remaining_s`: requests, and predicted seconds, from here to the output of its
    query, which began at `begun_s`; `own_s` of the seconds it takes itself.
    """

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


class QueryWaiting(Protocol):
    """What waits of a query. `first`: the arrival of its first request here. `depths`: each once, ascending.

    `longest`: `remaining_s` and `own_s` of the request that has most yet to do.
    """

    @property
    def first(self) -> int: ...
    @property
    def depths(self) -> Sequence[int]: ...
    @property
    def longest(self) -> tuple[float, float]: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """The order of the requests that wait for an engine.

    `rank`: of a request, given what waits of its query; it is the same as long as `context` of that is. `is_near`:
    whether a request may go before one of a lower rank whose prefix is cold, None for never. `shares_batches`: whether
    a batch may hold several requests.
    """

    name: PolicyName
    rank: Callable[[Ranked, QueryWaiting], Rank]
    context: Callable[[QueryWaiting], Hashable] = lambda of_query: None
    is_near: Callable[[Any, Any, float], bool] | None = None
    shares_batches: bool = True


PolicyName = Literal["po", "to", "topology", "critical_path"]


def _arrival(request: Ranked, of_query: QueryWaiting) -> Rank:
    return (request.arrival,)


def _deepest(request: Ranked, of_query: QueryWaiting) -> Rank:
    """By the rounds of the query, the deepest requests being its first; then by when the query came."""
    depths = of_query.depths
    in_round = len(depths) - 1 - bisect_left(depths, request.depth)
    return (in_round, request.begun_s, of_query.first, request.arrival)


def _is_near_in_round(first: Rank, other: Rank, tolerance_s: float) -> bool:
    return first[0] == other[0] and other[1] <= first[1] + tolerance_s


def _due(request: Ranked, of_query: QueryWaiting) -> Rank:
    """By when the query came and what that has yet to do, which is what its longest request has.

    A request with a shorter way to the output than another of its query is due later, by as much as it can wait. One
    that is itself much shorter than that other makes little room by waiting, and may then find a long batch of others
    before it: it gives way by as much less. (Questions that let others' pages be embedded first, when those of their
    own document are done, cost 3 to 6 % of the mean.)
    """
    remaining_s, own_s = of_query.longest
    shorter_s = remaining_s - request.remaining_s
    can_wait_s = shorter_s * min(1.0, request.own_s / own_s if own_s else 1.0)
    return (_due_s(request.begun_s, remaining_s + can_wait_s), shorter_s, request.arrival)


def _is_due_near(first: Rank, other: Rank, tolerance_s: float) -> bool:
    return other[0] <= first[0] + tolerance_s


def _due_s(begun_s: float, remaining_s: float) -> float:
    return begun_s + REMAINING_TIME_WEIGHT * remaining_s


po = Policy("po", _arrival, shares_batches=False)
to = Policy("to", _arrival)
topology = Policy("topology", _deepest, lambda of_query: tuple(of_query.depths), _is_near_in_round)
critical_path = Policy("critical_path", _due, lambda of_query: of_query.longest, _is_due_near)

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
