"""The replicas of an engine: the items of each replica, and the choice of the replica for an item.

An item goes to the replica with the least load (running items; for LLMs the tokens); among equals, to the replica that
had the query last. Unless much busier, the replica with the prefix is preferred for prompts with the same long prefix,
and prompts of a primitive of a query go to the same replica: they are prefilled together. (Other prompts of the query
share too little: prefills of other queries would delay them.) Replicas that run a batch at a time take turns.

Where objectives were deduced (passes/deduce_objectives.py), a throughput group leaves some slots of the least loaded
replica free while several queries are at work.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

from teola_plugin.engines import Capabilities, Item
from teola_plugin.runtime.scheduler.prefixes import prefix_of
from teola_plugin.runtime.scheduler.work_item import WorkItem

REMEMBERED_PREFIXES = 4096

KEPT_SHARE = 0.125
"""The share of a replica's slots that is not for throughput groups: 4 of 32, and at least 1."""

BUSIER = 0.25
"""The maximum excess load, as a share of the slots, up to which a replica with the prefix is preferred to the least
loaded replica."""


@dataclass(slots=True)
class _Replica:
    """Running items with their tokens, and calls, which may last longer than the items."""

    items: int = 0
    tokens: int = 0
    calls: int = 0
    is_up: bool = True
    is_leaving: bool = False
    is_alone: bool = False

    @property
    def takes_work(self) -> bool:
        return self.is_up and not self.is_leaving

    @property
    def is_idle(self) -> bool:
        return not (self.items or self.calls)


class Replicas:
    """Slots and loads of all replicas, which are named by place, from 0 on."""

    def __init__(self, capabilities: Capabilities, count: int) -> None:
        self.capabilities = capabilities
        self._each = [_Replica() for _ in range(count)]
        self.running_items = 0
        self._queries: Counter[Hashable] = Counter()  # the running items of each query
        self._turn = 0
        self._prefixes: OrderedDict[Hashable, int] = OrderedDict()

    @property
    def count_up(self) -> int:
        """The number of replicas that take work."""
        return len(self.up())

    def up(self) -> list[int]:
        """Return the replicas that take work."""
        return [at for at, each in enumerate(self._each) if each.takes_work]

    def is_up(self, at: int) -> bool:
        """Whether a replica has not crashed."""
        return at < len(self._each) and self._each[at].is_up

    def is_free(self, at: int) -> bool:
        """Whether a replica has no items."""
        return not self._each[at].items

    def has(self, query: Hashable) -> bool:
        """Whether an item of the query is with a replica."""
        return query in self._queries

    @property
    def count(self) -> int:
        """The number of replicas, without leaving replicas."""
        return sum(not each.is_leaving for each in self._each)

    def resize(self, count: int) -> None:
        """Set the number of replicas. A leaving replica takes nothing new and is removed once idle."""
        while len(self._each) < count:
            self._each.append(_Replica())
        for at, each in enumerate(self._each):
            each.is_leaving = at >= count
        self._trim()

    def _trim(self) -> None:
        while self._each and self._each[-1].is_leaving and self._each[-1].is_idle:
            self._each.pop()

    def mark(self, at: int, *, is_up: bool) -> None:
        """Set whether a replica takes work."""
        if at < len(self._each):
            self._each[at].is_up = is_up

    # --- room --------------------------------------------------------------------------------------------------------

    def room(self, *, make_way: bool = False) -> list[int]:
        """Return the number of items that each replica takes now. `make_way`: give the least loaded none until idle."""
        room = [self._room(each) for each in self._each]
        if make_way and not self.idle():
            at = min(self.up(), key=self._load, default=None)
            if at is not None:
                room[at] = 0
        return room

    def _room(self, each: _Replica) -> int:
        limit = self.capabilities.max_items
        if not each.takes_work or each.is_alone:
            return 0
        if self.capabilities.concurrent:
            return limit - each.items
        return limit if each.is_idle else 0

    def idle(self) -> list[int]:
        """Return the replicas that take work and have none."""
        return [at for at in self.up() if self._each[at].is_idle]

    def next_turn(self) -> None:
        """Let the next replica in turn have the next batch."""
        self._turn += 1

    def best(self, item: Item, query: Hashable, room: Sequence[int], load: Sequence[float] | None = None) -> int | None:
        """Return the replica for an item, of those with room. `load`: the load of each, by default the current load."""
        if item.urgency.objective == "throughput" and self.capabilities.concurrent and self.capabilities.max_items > 1:
            room = self._less_kept(room, self.loads() if load is None else load, query)
        if len(room) == 1:
            return 0 if room[0] > 0 else None
        load = self.loads() if load is None else load
        fitting = [at for at, free in enumerate(room) if free > 0 and self.fits(item, self._each[at].tokens, False)]
        if not fitting:
            return None
        if not self.capabilities.concurrent:
            return fitting[self._turn % len(fitting)]
        slack = BUSIER * (self.capabilities.max_tokens or self.capabilities.max_items)
        least = min(load[at] for at in fitting)
        latest, sibling, known = (self._prefixes.get(key) for key in self._prefix_keys(item, query) or (None,) * 3)
        for near in (known,) if least == 0 else (sibling, known):  # a replica is idle: no wait for a common replica
            if near in fitting and load[near] <= least + slack:
                return near
        return min(fitting, key=lambda at: (load[at], at != latest))

    def _less_kept(self, room: Sequence[int], load: Sequence[float], query: Hashable) -> Sequence[int]:
        """Return the room for a throughput group: less the slots kept for other queries, if several are at work."""
        up = self.up()
        if not up or self._queries.keys() <= {query}:
            return room
        kept, at_least = max(1, int(KEPT_SHARE * self.capabilities.max_items)), min(up, key=lambda at: load[at])
        return [free - kept if at == at_least else free for at, free in enumerate(room)]

    def fits(self, item: Item, tokens: int, has_company: bool) -> bool:
        """Whether there is KV cache for an item beside `tokens`. A larger item goes alone, to be refused."""
        limit = self.capabilities.max_tokens
        return not limit or tokens + item.tokens <= limit or (tokens == 0 and not has_company)

    def tokens(self, at: int) -> int:
        """Return the tokens of KV cache that a replica has promised."""
        return self._each[at].tokens

    def loads(self) -> list[float]:
        """Return the load of each replica."""
        return [self._load(at) for at in range(len(self._each))]

    def _load(self, at: int) -> float:
        each = self._each[at]
        return float(each.tokens if self.capabilities.max_tokens else each.items)

    def weight(self, item: Item) -> int:
        """Return the load that an item adds."""
        return item.tokens if self.capabilities.max_tokens else 1

    def _prefix_keys(self, item: Item, query: Hashable) -> list[Hashable]:
        """Return keys of a prompt's query, primitive and prefix; none for an item that is no prompt."""
        prefix = prefix_of(item) if self.capabilities.prefix else None
        return [] if prefix is None else [(item.tenant, query), (item.tenant, query, item.urgency), prefix]

    # --- items come and go -------------------------------------------------------------------------------------------

    def start(self, at: int, works: Collection[WorkItem], query: Hashable, *, is_alone: bool) -> None:
        """Note that items of a query run on a replica from now on."""
        each = self._each[at]
        each.is_alone = is_alone
        each.items += len(works)
        each.tokens += sum(work.item.tokens for work in works)
        self.running_items += len(works)
        self._queries[query] += len(works)
        has_choice = len(self._each) > 1
        for work in works:
            work.replica = at
            if has_choice:
                self._remember(work.item, query, at)

    def _remember(self, item: Item, query: Hashable, at: int) -> None:
        for key in self._prefix_keys(item, query):
            self._prefixes[key] = at
            self._prefixes.move_to_end(key)
        while len(self._prefixes) > REMEMBERED_PREFIXES:
            self._prefixes.popitem(last=False)

    def begin_call(self, at: int) -> None:
        """Note that a call begins; a replica that runs a batch at a time takes nothing before the end of the call."""
        self._each[at].calls += 1

    def end_call(self, at: int) -> None:
        """Note that a call is over."""
        self._each[at].calls -= 1
        self._trim()

    def end(self, works: Collection[WorkItem]) -> None:
        """Note that running items have ended."""
        for work in works:
            assert work.replica is not None
            each, query = self._each[work.replica], work.request.query
            work.replica = None
            each.items -= 1
            each.tokens -= work.item.tokens
            each.is_alone &= each.items > 0
            self._queries[query] -= 1
            if not self._queries[query]:
                del self._queries[query]
        self.running_items -= len(works)
        self._trim()
