"""The requests that wait for an engine, in the order of the policy: a decision costs the logarithm of their number.

A policy gives each request a rank, which depends on the request and on the waiting requests of the query (policies.py).
Requests of a query with equal urgency, group (operation and settings) and prefix make a *lot*: the rank orders them by
arrival, so only the first stands for the lot. A prefix counts only if it is warm, or if several requests have it. Ranks
of other lots of the query change only if a lot comes or leaves that is longer, or farther from the output, than the
rest.

    tenant             line by arrival, heap of lots by rank; a heap for each prefix
    group              line by arrival, of all tenants
    tenant, group      line by arrival, heap of lots by rank; a heap for each prefix

A request that has left stays in a line until it is the first, an outdated rank in a heap until it is at the top, or
until a push finds most of no use.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import NamedTuple

from teola_plugin.runtime.scheduler.policies import Policy, Rank, WarmPrefixes
from teola_plugin.runtime.scheduler.work_item import Request

STALE = 64
"""The number of useless entries that a heap or a line may hold besides as many useful entries."""

MayRun = Callable[[Request], bool]


class Pick(NamedTuple):
    """The next `size` items of a request."""

    request: Request
    size: int


class _Line:
    """Requests in the order of arrival, of which `living` wait."""

    __slots__ = ("_requests", "_start", "living")

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._start = 0
        self.living = 0

    def add(self, request: Request) -> None:
        """Add a request, which seldom came before another."""
        requests = self._requests
        self.living += 1
        if not requests or requests[-1].arrival <= request.arrival:
            requests.append(request)
        else:
            insort(requests, request, self._start, key=_arrived)

    def left(self) -> None:
        """Note that a request waits no more."""
        self.living -= 1
        if len(self._requests) > 2 * self.living + STALE:
            self._requests = list(self)
            self._start = 0

    def drop(self, request: Request) -> None:
        """Take out a request that still waits."""
        self._requests.remove(request)
        self.living -= 1

    def first(self) -> Request:
        """Return the first request; there has to be one."""
        requests = self._requests
        while requests[self._start].lot is None:
            self._start += 1
        return requests[self._start]

    def __iter__(self) -> Iterator[Request]:
        requests = self._requests
        if self.living:
            yield self.first()
            for at in range(self._start + 1, len(requests)):
                if requests[at].lot is not None:
                    yield requests[at]


def _arrived(request: Request) -> tuple[int, int]:
    return (request.arrival, request.place)


_Ranked = tuple[Rank, int, "Lot"]
"""A rank, the place of the request with the rank, and the lot."""


class _Heap:
    """Lots by rank, of which `living` wait."""

    __slots__ = ("entries", "living")

    def __init__(self) -> None:
        self.entries: list[_Ranked] = []
        self.living = 0

    def push(self, entry: _Ranked) -> None:
        """Add a new rank of a lot."""
        heapq.heappush(self.entries, entry)
        self.trim()

    def trim(self) -> None:
        """Remove outdated ranks, if many."""
        if len(self.entries) > 2 * self.living + STALE:
            self.entries = [*{id(entry[2]): entry for entry in self.entries if entry[0] is entry[2].rank}.values()]
            heapq.heapify(self.entries)


class _Stand:
    """The requests of a tenant, or of a tenant's group."""

    __slots__ = ("heap", "line", "prefixes")

    def __init__(self) -> None:
        self.line = _Line()
        self.heap = _Heap()
        self.prefixes: dict[Hashable, _Heap] = {}

    def enter(self, prefix: Hashable) -> Sequence[_Heap]:
        """Return the heaps for a new lot with a prefix, None for no prefix."""
        heaps = [self.heap]
        if prefix is not None:
            heap = self.prefixes.get(prefix)
            if heap is None:
                heap = self.prefixes[prefix] = _Heap()
            heaps.append(heap)
        for heap in heaps:
            heap.living += 1
        return heaps

    def leave(self, prefix: Hashable) -> None:
        """Note that a lot with a prefix is empty."""
        self.heap.living -= 1
        if not self.heap.living:
            self.heap.entries.clear()  # outdated, and the lots refer to this
        if prefix is not None:
            heap = self.prefixes[prefix]
            heap.living -= 1
            if not heap.living:
                del self.prefixes[prefix]


class _Group:
    """The requests of a group, of all tenants and by tenant."""

    __slots__ = ("line", "stands")

    def __init__(self) -> None:
        self.line = _Line()
        self.stands: dict[str, _Stand] = {}


class OfQuery:
    """The waiting requests of a query, by lot. `first`, `longest`, `depths`: see `policies.QueryWaiting`."""

    __slots__ = ("_depths", "_lengths", "depths", "first", "longest", "lots")

    def __init__(self, first: int) -> None:
        self.first = first
        self.longest = (0.0, 0.0)
        self.depths: list[int] = []
        self.lots: dict[Hashable, Lot] = {}
        self._lengths: dict[tuple[float, float], int] = {}
        self._depths: dict[int, int] = {}

    def add(self, lot: Lot) -> None:
        """Add a lot."""
        self.longest = max(self.longest, lot.length) if self.lots else lot.length
        self.lots[lot.key] = lot
        self._lengths[lot.length] = self._lengths.get(lot.length, 0) + 1
        if lot.depth not in self._depths:
            insort(self.depths, lot.depth)
        self._depths[lot.depth] = self._depths.get(lot.depth, 0) + 1

    def remove(self, lot: Lot) -> None:
        """Remove a lot."""
        del self.lots[lot.key]
        self._lengths[lot.length] -= 1
        if not self._lengths[lot.length]:
            del self._lengths[lot.length]
            if lot.length == self.longest:
                self.longest = max(self._lengths, default=(0.0, 0.0))
        self._depths[lot.depth] -= 1
        if not self._depths[lot.depth]:
            del self._depths[lot.depth]
            self.depths.remove(lot.depth)


class Lot:
    """The requests of a query with equal urgency, group and prefix. `rank`: of the first; None once the lot is empty.

    `length`: predicted seconds to the output, and of the request.
    """

    __slots__ = ("depth", "group", "heaps", "key", "length", "line", "of_query", "own", "prefix", "rank", "tenant")

    def __init__(
        self, key: Hashable, request: Request, of_query: OfQuery, tenant: _Stand, group: _Group, own: _Stand,
        prefix: Hashable,
    ) -> None:  # fmt: skip
        self.key = key
        self.length = (request.remaining_s, request.own_s)
        self.depth = request.depth
        self.of_query = of_query
        self.tenant = tenant
        self.group = group
        self.own = own
        self.prefix = prefix
        self.line = _Line()
        self.heaps = (*tenant.enter(prefix), *own.enter(prefix))
        self.rank: Rank | None = None

    def __lt__(self, other: Lot) -> bool:
        """The order of the same rank of the same lot, twice in a heap, does not matter."""
        return False

    @property
    def lines(self) -> tuple[_Line, ...]:
        """The lines in which the requests of the lot stand besides the lot's own."""
        return (self.tenant.line, self.group.line, self.own.line)


class Waiting:
    """The requests that wait for an engine."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._queries: dict[Hashable, OfQuery] = {}
        self._tenants: dict[str, _Stand] = {}
        self._groups: dict[Hashable, _Group] = {}
        self._places = itertools.count(1)
        self._prompts: Counter[Hashable] = Counter()
        self._single: dict[Hashable, Request] = {}  # by prefix, if no other request has it
        self._shared: Counter[Hashable] = Counter()  # the requests in lots with a prefix
        self._count = 0

    # --- contents ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count

    def requests(self) -> Collection[Request]:
        """Return all requests, those of a tenant in the order of arrival."""
        return [request for stand in self._tenants.values() for request in stand.line]

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
        self._count += 1
        request.place = next(self._places)
        if request.op == "decoding":
            self._prompts[request.query] += request.waiting
        self._place(request)

    def _place(self, request: Request) -> None:
        prefix = request.prefix
        if prefix is None or self._policy.is_near is None:
            self._enter(request, None)
        elif prefix in self._shared or self._share(prefix):
            self._shared[prefix] += 1
            self._enter(request, prefix)
        else:
            self._single[prefix] = request
            self._enter(request, None)
        for line in request.lot.lines:
            line.add(request)

    def remove(self, request: Request) -> None:
        """Remove a request whose items have been taken (`took`)."""
        lot: Lot = request.lot
        self._count -= 1
        is_first = lot.line.first() is request
        request.lot = None
        for line in lot.lines:
            line.left()
        lot.line.left()
        self._left(lot, request, is_first=is_first)
        if lot.prefix is not None:
            self._shared[lot.prefix] -= 1
            if not self._shared[lot.prefix]:
                del self._shared[lot.prefix]
        elif self._single.get(request.prefix) is request:
            del self._single[request.prefix]
        if not lot.own.line.living:
            del lot.group.stands[request.tenant]
            if not lot.group.line.living:
                del self._groups[request.group]
            if not lot.tenant.line.living:
                del self._tenants[request.tenant]

    def took(self, request: Request, count: int) -> None:
        """Note that `count` items of a request wait no more."""
        if request.op == "decoding":
            self._prompts[request.query] -= count
            if not self._prompts[request.query]:
                del self._prompts[request.query]

    def raise_priority(self, request: Request, depth: int, remaining_s: float) -> None:
        """Raise a request to the urgency of a request that joined."""
        if depth <= request.depth and remaining_s <= request.remaining_s:
            return
        lot = self._leave(request)
        request.depth, request.remaining_s = max(request.depth, depth), max(request.remaining_s, remaining_s)
        self._enter(request, lot.prefix)

    def use(self, policy: Policy) -> None:
        """Order all by another policy from now on."""
        requests = sorted(self.requests(), key=_arrived)
        first = {query: of_query.first for query, of_query in self._queries.items()}
        self._policy = policy
        self._tenants, self._groups, self._single, self._shared = {}, {}, {}, Counter()
        self._queries = {query: OfQuery(arrival) for query, arrival in first.items()}
        for request in requests:
            self._place(request)

    # --- lots --------------------------------------------------------------------------------------------------------

    def _share(self, prefix: Hashable) -> bool:
        """Let the only request with a prefix, if there is one, stand in a lot with the prefix."""
        request = self._single.pop(prefix, None)
        if request is None:
            return False
        self._leave(request)
        self._shared[prefix] += 1
        self._enter(request, prefix)
        return True

    def _leave(self, request: Request) -> Lot:
        """Take a request, which goes on waiting, out of its lot. Returns the lot."""
        lot: Lot = request.lot
        is_first = lot.line.first() is request
        lot.line.drop(request)
        self._left(lot, request, is_first=is_first)
        self._queries.setdefault(request.query, lot.of_query)
        return lot

    def _enter(self, request: Request, prefix: Hashable) -> None:
        """Let a request stand in a lot."""
        of_query = self._queries.get(request.query)
        if of_query is None:
            of_query = self._queries[request.query] = OfQuery(request.arrival)
        key = (
            request.tenant, request.group, prefix, request.depth, request.remaining_s, request.own_s, request.begun_s
        )  # fmt: skip
        lot = of_query.lots.get(key)
        if lot is None:
            lot = self._new_lot(key, request, of_query, prefix)
        request.lot = lot
        lot.line.add(request)
        if lot.line.first() is request:
            self._rank(lot)

    def _new_lot(self, key: Hashable, request: Request, of_query: OfQuery, prefix: Hashable) -> Lot:
        tenant = self._tenants.get(request.tenant)
        if tenant is None:
            tenant = self._tenants[request.tenant] = _Stand()
        group = self._groups.get(request.group)
        if group is None:
            group = self._groups[request.group] = _Group()
        own = group.stands.get(request.tenant)
        if own is None:
            own = group.stands[request.tenant] = _Stand()
        lot = Lot(key, request, of_query, tenant, group, own, prefix)
        self._changed(of_query, lot, is_new=True)
        return lot

    def _left(self, lot: Lot, request: Request, *, is_first: bool) -> None:
        """Note that a request has left a lot, where it was the first or not."""
        if lot.line.living:
            if is_first:
                self._rank(lot)
            return
        lot.rank, lot.heaps = None, ()
        lot.tenant.leave(lot.prefix)
        lot.own.leave(lot.prefix)
        self._changed(lot.of_query, lot, is_new=False)
        if not lot.of_query.lots:
            del self._queries[request.query]

    def _changed(self, of_query: OfQuery, lot: Lot, *, is_new: bool) -> None:
        """Add or remove a lot, and rank the others anew where their ranks depend on the lot."""
        before = self._policy.context(of_query)
        has_others = len(of_query.lots) > (not is_new)
        if is_new:
            of_query.add(lot)
        else:
            of_query.remove(lot)
        if has_others and before != self._policy.context(of_query):
            for other in of_query.lots.values():
                if other is not lot:
                    self._rank(other)

    def _rank(self, lot: Lot) -> None:
        """Rank a lot anew, as its first request."""
        first = lot.line.first()
        lot.rank = self._policy.rank(first, lot.of_query)
        entry = (lot.rank, first.place, lot)
        for heap in lot.heaps:
            heap.push(entry)

    # --- picks -------------------------------------------------------------------------------------------------------

    def _stand(self, tenant: str, group: Hashable) -> _Stand | None:
        """Return the requests of a tenant, of a group if given."""
        if group is None:
            return self._tenants.get(tenant)
        of_all = self._groups.get(group)
        return of_all.stands.get(tenant) if of_all else None

    def oldest(self, may_run: MayRun, tenant: str, group: Hashable = None) -> Request | None:
        """Return the oldest request of a tenant that may run, of a group if given."""
        stand = self._stand(tenant, group)
        return next(filter(may_run, stand.line), None) if stand else None

    def picks(
        self, free: int, may_run: MayRun, tenant: str, group: Hashable = None, warm: WarmPrefixes | None = None
    ) -> list[Pick]:
        """Return the next requests of a tenant by the policy, of a single group, until `free` items are found.

        `group`: of the requests, None for the group of the first request.
        """
        found: list[Pick] = []
        if free <= 0:
            return found
        stand = self._stand(tenant, group)
        latest: Sequence[Hashable] = ()
        if warm and self._policy.is_near:
            for prefix in self._single.keys() & warm.last_run:
                self._share(prefix)
            if stand and stand.prefixes:
                latest = [prefix for prefix in reversed(warm.last_run) if prefix in stand.prefixes]
        look = _Look(self._policy, may_run)
        while stand and (request := self._next(look, stand, latest, warm)):
            found.append(Pick(request, min(free, request.waiting)))
            free -= found[-1].size
            if free <= 0 or not self._policy.shares_batches:
                break
            stand = request.lot.own
            look.taken.add(request.place)
            if warm and (prefix := request.lot.prefix) is not None:
                latest = [prefix, *(each for each in latest if each != prefix)]
        look.end()
        return found

    def topped_up(self, picks: Sequence[Pick], free: int, may_run: MayRun, tenant: str | None = None) -> Sequence[Pick]:
        """Return the picks, with the remaining slots filled by requests of the same group, first come first served.

        `tenant`: the tenant of the requests, None for all tenants.
        """
        if free <= 0 or not picks:
            return picks
        filled = {pick.request.place: pick for pick in picks}
        group = self._groups[picks[0].request.group]
        for request in group.line if tenant is None else group.stands[tenant].line:
            had = filled[request.place].size if request.place in filled else 0
            if (more := min(free, request.waiting - had)) > 0 and may_run(request):
                filled[request.place] = Pick(request, had + more)
                free -= more
                if not free:
                    break
        return list(filled.values())

    def _next(
        self, look: _Look, stand: _Stand, latest: Sequence[Hashable], warm: WarmPrefixes | None
    ) -> Request | None:
        """Return the first request by rank; before it, of nearby requests, the request whose prefix ran last."""
        found = look.first(stand.heap)
        is_near = self._policy.is_near
        if found is None or warm is None or is_near is None:
            return found.request if found else None
        for prefix in latest:
            heap = stand.prefixes.get(prefix)
            if heap and (other := look.first(heap)) and is_near(found.rank, other.rank, warm.tolerance_s):
                return other.request
        return found.request


class _Found(NamedTuple):
    """A request with its rank."""

    rank: Rank
    request: Request


class _Look:
    """A look through heaps. A lot whose first requests are passed stands for the next one until the end of the look."""

    def __init__(self, policy: Policy, may_run: MayRun) -> None:
        self.taken: set[int] = set()
        self._policy = policy
        self._may_run = may_run
        self._passed: dict[Lot, _Found | None] = {}
        self._rest: dict[Lot, Iterator[Request]] = {}  # not looked at yet

    def end(self) -> None:
        """Let the first request stand for each lot again."""
        for lot in self._passed:
            assert lot.rank is not None
            entry = (lot.rank, lot.line.first().place, lot)
            for heap in lot.heaps:
                heap.push(entry)
        self._rest.clear()  # the iterators refer to this look

    def first(self, heap: _Heap) -> _Found | None:
        """Return the first request by rank that is not taken and may run."""
        entries = heap.entries
        while entries:
            rank, _, lot = entries[0]
            if lot in self._passed:
                found = self._passed[lot]
            else:
                found = _Found(lot.rank, lot.line.first()) if lot.rank is not None else None
            if found is None or found.rank is not rank:
                heapq.heappop(entries)
            elif self._may_go(found.request):
                return found
            else:
                self._pass(lot)
        return None

    def _pass(self, lot: Lot) -> None:
        rest = self._rest.get(lot)
        if rest is None:
            rest = self._rest[lot] = filter(self._may_go, lot.line)
        request = next(rest, None)
        if request is None:
            self._passed[lot] = None
            return
        found = self._passed[lot] = _Found(self._policy.rank(request, lot.of_query), request)
        for heap in lot.heaps:
            heapq.heappush(heap.entries, (found.rank, request.place, lot))

    def _may_go(self, request: Request) -> bool:
        return request.place not in self.taken and self._may_run(request)
