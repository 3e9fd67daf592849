"""The requests that wait for an engine, in the order of the policy: a decision costs the logarithm of their number.

A policy gives each request a rank, which depends on the request and on the waiting requests of the query (policies.py).
Ranks change only if a request comes or leaves that is longer, or farther from the output, than the query's remaining
requests. Requests are kept in heaps by rank, a heap for each tenant, for each of the tenant's groups (operation and
settings) and for prompts with the same prefix, and in heaps by arrival. A request that has left, or has a new rank,
stays in a heap until it is at the top.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from teola_plugin.runtime.scheduler.policies import Policy, WarmPrefixes
from teola_plugin.runtime.scheduler.work_item import Request

STALE = 64
"""The number of useless entries that a heap may hold besides as many useful entries."""

MayRun = Callable[[Request], bool]


class Pick(NamedTuple):
    """The next `size` items of a request."""

    request: Request
    size: int


Key = tuple[str | None, int | None, Hashable]
"""Of a stand: the tenant, the number of the group, and the prefix of prompts; None for any."""


@dataclass(slots=True)
class OfQuery:
    """The waiting requests of a query. `first`: the arrival of the first request. `longest`: see policies.py.

    `depths`: ways to the output, each once, ascending.
    """

    first: int
    longest: tuple[float, float] = (0.0, 0.0)
    depths: list[int] = field(default_factory=list)
    requests: dict[int, Request] = field(default_factory=dict)
    _lengths: Counter[tuple[float, float]] = field(default_factory=Counter)
    _depths: Counter[int] = field(default_factory=Counter)

    def add(self, request: Request) -> None:
        """Add a request."""
        self.requests[request.place] = request
        length = (request.remaining_s, request.own_s)
        self._lengths[length] += 1
        self.longest = max(self.longest, length) if len(self.requests) > 1 else length
        if not self._depths[request.depth]:
            insort(self.depths, request.depth)
        self._depths[request.depth] += 1

    def remove(self, request: Request) -> None:
        """Remove a request."""
        del self.requests[request.place]
        length = (request.remaining_s, request.own_s)
        self._lengths[length] -= 1
        if not self._lengths[length]:
            del self._lengths[length]
            if length == self.longest:
                self.longest = max(self._lengths, default=(0.0, 0.0))
        self._depths[request.depth] -= 1
        if not self._depths[request.depth]:
            del self._depths[request.depth]
            self.depths.remove(request.depth)


_Ordered = tuple[Any, int, Request]
"""A rank or an arrival, the place, and the request."""


class _Order:
    """Requests, least first, and useless entries."""

    __slots__ = ("heap",)

    def __init__(self) -> None:
        self.heap: list[_Ordered] = []

    def trim(self, living: int) -> None:
        """Remove useless entries, if many; `living` entries are useful."""
        if len(self.heap) > 2 * living + STALE:
            self.heap = [each for each in self.heap if _is_valid(each)]
            heapq.heapify(self.heap)

    def head(self, aside: list[_Ordered], may_go: MayRun) -> Request | None:
        """Return the first request that may go; earlier requests are put `aside`."""
        heap = self.heap
        while heap:
            if not _is_valid(heap[0]):
                heapq.heappop(heap)
            elif may_go(heap[0][2]):
                return heap[0][2]
            else:
                aside.append(heapq.heappop(heap))
        return None


def _is_valid(item: _Ordered) -> bool:
    rank, _, request = item
    return request.rank is rank or (type(rank) is int and request.rank is not None)


class _Stand:
    """The requests of a key, by rank and by arrival, each order only where used."""

    __slots__ = ("arrived", "key", "living", "ranked")

    def __init__(self, key: Key) -> None:
        tenant, _, prefix = self.key = key
        self.living = 0
        self.ranked = None if tenant is None else _Order()
        self.arrived = _Order() if prefix is None else None

    def add(self, by_rank: _Ordered, by_arrival: _Ordered) -> None:
        """Add a request."""
        self.living += 1
        if self.ranked:
            heapq.heappush(self.ranked.heap, by_rank)
        if self.arrived:
            heapq.heappush(self.arrived.heap, by_arrival)

    def remove(self) -> None:
        """Note that a request has left."""
        self.living -= 1
        for order in (self.ranked, self.arrived):
            if order:
                order.trim(self.living)

    def rerank(self, by_rank: _Ordered) -> None:
        """Note that a request has another rank."""
        if self.ranked:
            heapq.heappush(self.ranked.heap, by_rank)
            self.ranked.trim(self.living)


class Waiting:
    """The requests that wait for an engine."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._requests: dict[int, Request] = {}  # by place
        self._queries: dict[Hashable, OfQuery] = {}
        self._stands: dict[Key, _Stand] = {}
        self._groups: dict[Hashable, int] = {}
        self._numbers = itertools.count(1)
        self._places = itertools.count(1)
        self._prompts: Counter[Hashable] = Counter()

    # --- contents ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._requests)

    def requests(self) -> Collection[Request]:
        """Return all requests, in the order in which they were added."""
        return self._requests.values()

    @property
    def queries(self) -> int:
        """The number of queries with waiting requests."""
        return len(self._queries)

    def prompts(self, query: Hashable) -> int:
        """Return the number of texts of a query that are to be written."""
        return self._prompts[query]

    # --- requests come and go ----------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Add a request with items, behind requests of equal rank."""
        place = request.place = next(self._places)
        self._requests[place] = request
        request.stands = self._stands_of(request)
        of_query = self._queries.get(request.query)
        if of_query is None:
            of_query = self._queries[request.query] = OfQuery(request.arrival)
        before = self._policy.context(of_query)
        of_query.add(request)
        if request.op == "decoding":
            self._prompts[request.query] += request.waiting
        request.rank = self._policy.rank(request, of_query)
        by_rank, by_arrival = (request.rank, place, request), (request.arrival, place, request)
        for stand in request.stands:
            stand.add(by_rank, by_arrival)
        if len(of_query.requests) > 1 and before != self._policy.context(of_query):
            self._rerank(of_query)

    def remove(self, request: Request) -> None:
        """Remove a request whose items have been taken (`took`)."""
        del self._requests[request.place]
        of_query = self._queries[request.query]
        before = self._policy.context(of_query)
        of_query.remove(request)
        request.rank = None
        for stand in request.stands:
            stand.remove()
            if not stand.living:
                del self._stands[stand.key]
                if stand.key[0] is None:
                    del self._groups[request.group]
        request.stands = ()
        if not of_query.requests:
            del self._queries[request.query]
        elif before != self._policy.context(of_query):
            self._rerank(of_query)

    def took(self, request: Request, count: int) -> None:
        """Note that `count` items of a request wait no more."""
        if request.op == "decoding":
            self._prompts[request.query] -= count
            if not self._prompts[request.query]:
                del self._prompts[request.query]

    def raise_priority(self, request: Request, depth: int, remaining_s: float) -> None:
        """Raise a request to the urgency of a request that joined."""
        of_query = self._queries[request.query]
        of_query.remove(request)
        request.depth, request.remaining_s = max(request.depth, depth), max(request.remaining_s, remaining_s)
        of_query.add(request)
        self._rerank(of_query)

    def use(self, policy: Policy) -> None:
        """Order all by another policy from now on."""
        self._policy = policy
        for of_query in self._queries.values():
            self._rerank(of_query)

    def _rerank(self, of_query: OfQuery) -> None:
        for request in of_query.requests.values():
            rank = self._policy.rank(request, of_query)
            if rank != request.rank:
                request.rank = rank
                by_rank = (rank, request.place, request)
                for stand in request.stands:
                    stand.rerank(by_rank)

    def _stands_of(self, request: Request) -> tuple[_Stand, ...]:
        tenant, prefix = request.tenant, request.prefix
        group = self._groups.get(request.group)
        if group is None:
            group = self._groups[request.group] = next(self._numbers)
        keys: list[Key] = [(tenant, None, None), (tenant, group, None), (None, group, None)]
        if prefix is not None:
            keys += [(tenant, None, prefix), (tenant, group, prefix)]
        found: list[_Stand] = []
        for key in keys:
            stand = self._stands.get(key)
            if stand is None:
                stand = self._stands[key] = _Stand(key)
            found.append(stand)
        return tuple(found)

    # --- picks -------------------------------------------------------------------------------------------------------

    def oldest(self, may_run: MayRun, tenant: str, group: Hashable = None) -> Request | None:
        """Return the oldest request of a tenant that may run, of a group if given."""
        with _Look(may_run) as look:
            return look.oldest(self._stands.get((tenant, self._groups.get(group), None)))

    def picks(
        self, free: int, may_run: MayRun, tenant: str, group: Hashable = None, warm: WarmPrefixes | None = None
    ) -> list[Pick]:
        """Return the next requests of a tenant by the policy, of a single group, until `free` items are found.

        `group`: of the requests, None for the group of the first request.
        """
        found: list[Pick] = []
        number = self._groups.get(group)
        latest: Sequence[Hashable] = ()
        if warm and self._policy.is_near:
            latest = [each for each in reversed(warm.last_run) if (tenant, number, each) in self._stands]
        with _Look(may_run) as look:
            while free > 0 and (request := self._next(look, tenant, number, latest, warm)):
                number = self._groups[request.group]
                look.taken.add(request.place)
                found.append(Pick(request, min(free, request.waiting)))
                free -= found[-1].size
                if not self._policy.shares_batches:
                    break
                if warm and request.prefix is not None:
                    latest = [request.prefix, *(each for each in latest if each != request.prefix)]
        return found

    def topped_up(self, picks: Sequence[Pick], free: int, may_run: MayRun, tenant: str | None = None) -> Sequence[Pick]:
        """Return the picks, with the remaining slots filled by requests of the same group, first come first served.

        `tenant`: the tenant of the requests, None for all tenants.
        """
        if free <= 0 or not picks:
            return picks
        filled = {id(pick.request): pick for pick in picks}
        with _Look(may_run) as look:
            stand = self._stands.get((tenant, self._groups[picks[0].request.group], None))
            while free > 0 and (request := look.oldest(stand)):
                look.taken.add(request.place)
                had = filled[id(request)].size if id(request) in filled else 0
                if (more := min(free, request.waiting - had)) > 0:
                    filled[id(request)] = Pick(request, had + more)
                    free -= more
        return list(filled.values())

    def _next(
        self, look: _Look, tenant: str, group: int | None, latest: Sequence[Hashable], warm: WarmPrefixes | None
    ) -> Request | None:
        """Return the first request by rank; before it, of nearby requests, the request whose prefix ran last."""
        first = look.first(self._stands.get((tenant, group, None)))
        is_near = self._policy.is_near
        if first is None or warm is None or is_near is None:
            return first
        for prefix in latest:
            request = look.first(self._stands.get((tenant, group, prefix)))
            if request is not None and is_near(first.rank, request.rank, warm.tolerance_s):
                return request
        return first


class _Look:
    """A look through orders: passed entries are put back at the end."""

    def __init__(self, may_run: MayRun) -> None:
        self.taken: set[int] = set()
        self._may_run = may_run
        self._aside: dict[int, tuple[_Order, list[_Ordered]]] = {}

    def __enter__(self) -> _Look:
        return self

    def __exit__(self, *_: object) -> None:
        for order, aside in self._aside.values():
            for item in aside:
                heapq.heappush(order.heap, item)

    def first(self, stand: _Stand | None) -> Request | None:
        """Return the first request by rank that is not taken and may run."""
        return self._head(stand.ranked) if stand and stand.ranked else None

    def oldest(self, stand: _Stand | None) -> Request | None:
        """Return the first request by arrival that is not taken and may run."""
        return self._head(stand.arrived) if stand and stand.arrived else None

    def _head(self, order: _Order) -> Request | None:
        _, aside = self._aside.setdefault(id(order), (order, []))
        return order.head(aside, self._may_go)

    def _may_go(self, request: Request) -> bool:
        return request.place not in self.taken and self._may_run(request)
