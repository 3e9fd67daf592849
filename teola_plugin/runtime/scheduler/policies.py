"""Policies: which waiting items make the next batch of an engine. Each policy gives every request a rank (waiting.py).

    po             per-invocation oriented: the request that came first, alone. Latency of one invocation above all.
    to             throughput oriented: first come first served over all requests, filled to the free slots.
    topology       Teola's topology-aware batching (arXiv 2407.00326, Algorithm 2): requests form a bucket per query,
                   buckets are ordered by the arrival of the query, and each bucket gives the deepest requests first
                   (with the longest way to the output), until the slots are full.
    critical_path  earliest due first: a query is due some time after its arrival, the sooner the less work remains in
                   predicted seconds. A short query overtakes a long query that came a little earlier, a query near
                   its end overtakes a new query, and no query is overtaken for long.

A batch holds a single operation with a single set of settings, taken from the request that is picked first. In
`topology` a bucket first gives all requests of the greatest depth before the next bucket is asked, and shallower
requests only fill slots that all buckets leave free: so a deep request of a late query does not wait behind a shallow
request of an early query (the paper's figure 7).

A bucket is ordered by the arrival of the query, not by the arrival of the next request at this engine: otherwise a
query's later steps would queue behind the first steps of all later queries, which costs the slowest queries a tenth and
more.

Where an LLM caches the prefixes of prompts (`WarmPrefixes`), prompts with a recently used prefix go next to each other,
as far as the two policies with an order between queries allow: no request goes before a request that is due more than
`tolerance_s` sooner, by the policy's own measure, so later requests wait behind. Up to the tolerance the order is the
policy's, and `po` and `to` do not change.

    due        1.0  1.1  1.2  1.3   3.0        tolerance 1 s, a ran last
    prefix     b    a    b    a     a     ->   a a b b | a
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Reversible, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from teola_plugin.engines import Urgency

REMAINING_TIME_WEIGHT = 0.3
"""The weight of a query's remaining time, in `critical_path`, against the arrival time. 0 is first come first served.
The larger the weight, the lower the mean of the load benchmark, and the longer the longest wait: with a half the mean
is 1 % lower near saturation, and the P99 2 % higher, which is then no longer below the P99 of `topology`."""


@dataclass(frozen=True, slots=True)
class WarmPrefixes:
    """Which prefixes were run lately (`last_run`: the latest last), and how far requests may change places."""

    tolerance_s: float
    last_run: Reversible[Hashable]


Rank = tuple[float, ...]
"""The least goes first."""


class Ranked(Protocol):
    """A waiting request. `depth` and `remaining_s`: requests, and predicted seconds, from here to the output of the
    query, which began at `begun_s`; the request takes `own_s` of the seconds."""

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
    """The waiting requests of a query. `first`: the arrival of the first request here. `depths`: each once, ascending.

    `longest`: `remaining_s` and `own_s` of the request with the most remaining time.
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

    `rank`: of a request, given the waiting requests of the query; unchanged as long as the `context` of the query is.
    `is_near`: whether a request may go before a request of a lower rank whose prefix is cold, None for never.
    `shares_batches`: whether a batch may hold several requests.
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
    """Order by the rounds of a query, the deepest requests being the first; then by the query's arrival."""
    depths = of_query.depths
    in_round = len(depths) - 1 - bisect_left(depths, request.depth)
    return (in_round, request.begun_s, of_query.first, request.arrival)


def _is_near_in_round(first: Rank, other: Rank, tolerance_s: float) -> bool:
    return first[0] == other[0] and other[1] <= first[1] + tolerance_s


def _due(request: Ranked, of_query: QueryWaiting) -> Rank:
    """Order by the arrival of the query and its remaining time, which is the remaining time of the longest request.

    A request with a shorter way to the output than another request of the query is due later, by the time for which the
    request can wait. A request that is much shorter than the longest makes little room by waiting, and may then find a
    long batch ahead: such a request yields correspondingly less. (If questions let pages of other queries be embedded
    first, when the pages of the own document are done, the mean is 3 to 6 % higher.)
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
"""The policies that tell queries apart; the remaining policies know only invocations."""


def no_priority(urgency: Urgency, begun_s: float) -> int:
    """Return 0 for all requests: the engine keeps the order of submission."""
    return 0


def by_depth(urgency: Urgency, begun_s: float) -> int:
    """Return a priority with the longest way to the output first, counted in requests."""
    return -urgency.depth


def by_due_time(urgency: Urgency, begun_s: float) -> int:
    """Return a priority with the earliest due request first, in milliseconds."""
    return round(1000 * _due_s(begun_s, urgency.remaining_s))


PRIORITIES: dict[str, Callable[[Urgency, float], int]] = {
    "po": no_priority, "to": no_priority, "topology": by_depth, "critical_path": by_due_time,
}  # fmt: skip
"""The functions, by policy, for the `Item.priority` of a request whose query began at `begun_s`, for an engine that
orders its own queue."""
