"""The instances of an engine: what each holds, and which one an item goes to.

The one with the least load (executing items, for LLMs their tokens), of equals the one that had the query last. Unless
it is much busier, prompts with the same long beginning prefer the instance that has it, and prompts of one primitive of
a query the one that has the others: they are prefilled together. (What else a query asks shares too little for that:
the prefills of others would hold it up.) Engines that run one batch at a time take turns.

Where objectives were deduced (passes/deduce_objectives.py), a throughput group leaves some slots of the least loaded
instance free for others while several queries are at work.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

from teola_plugin.engines import Capabilities, Item
from teola_plugin.runtime.scheduler.prefixes import beginning_of

REMEMBERED_PREFIXES = 4096

KEPT_SHARE = 0.125
"""Of the slots of one instance, so many are not for throughput groups: 4 of 32, and at least one."""

BUSIER = 0.25
"""An instance that has the prefix is preferred while its load is at most by this share of its slots above the least."""


@dataclass(slots=True)
class _Instance:
    """What one holds: items, with their tokens, and calls, which may last longer than their items.

    It takes work if it `is_up` and not `is_leaving`.
    """

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


class Instances:
    """Slots and loads. Instances are named by their place, from 0 on."""

    def __init__(self, capabilities: Capabilities, count: int) -> None:
        self.capabilities = capabilities
        self._each = [_Instance() for _ in range(count)]
        self._running: dict[int, tuple[int, int, Hashable]] = {}  # of an item: instance, tokens, query
        self._turn = 0
        self._prefixes: OrderedDict[Hashable, int] = OrderedDict()

    @property
    def running_items(self) -> int:
        """Items that are with an instance."""
        return len(self._running)

    @property
    def count_up(self) -> int:
        """How many take work."""
        return len(self.up())

    def up(self) -> list[int]:
        """Those that take work."""
        return [at for at, each in enumerate(self._each) if each.takes_work]

    def is_up(self, at: int) -> bool:
        """That one has not crashed."""
        return at < len(self._each) and self._each[at].is_up

    def is_free(self, at: int) -> bool:
        """No item is with that one."""
        return not self._each[at].items

    def has(self, query: Hashable) -> bool:
        """Something of that query is with an instance."""
        return any(other == query for _, _, other in self._running.values())

    def holds(self, item_id: int) -> bool:
        """The item is with an instance."""
        return item_id in self._running

    @property
    def count(self) -> int:
        """How many there are, less those that leave."""
        return sum(not each.is_leaving for each in self._each)

    def resize(self, count: int) -> None:
        """So many from now on. One that leaves takes nothing new, and is gone when what it holds has ended."""
        while len(self._each) < count:
            self._each.append(_Instance())
        for at, each in enumerate(self._each):
            each.is_leaving = at >= count
        self._trim()

    def _trim(self) -> None:
        while self._each and self._each[-1].is_leaving and self._each[-1].is_idle:
            self._each.pop()

    def mark(self, at: int, *, is_up: bool) -> None:
        """Whether one takes work."""
        if at < len(self._each):
            self._each[at].is_up = is_up

    # --- room --------------------------------------------------------------------------------------------------------

    def room(self, *, make_way: bool = False) -> list[int]:
        """How many items each takes now. `make_way`: leave the least loaded to itself until it is idle."""
        room = [self._room(each) for each in self._each]
        if make_way and not self.idle():
            at = min(self.up(), key=self._load, default=None)
            if at is not None:
                room[at] = 0
        return room

    def _room(self, each: _Instance) -> int:
        limit = self.capabilities.max_items
        if not each.takes_work or each.is_alone:
            return 0
        if self.capabilities.concurrent:
            return limit - each.items
        return limit if each.is_idle else 0

    def idle(self) -> list[int]:
        """Those that take work and have none."""
        return [at for at in self.up() if self._each[at].is_idle]

    def next_turn(self) -> None:
        """Another batch is to be placed."""
        self._turn += 1

    def best(self, item: Item, query: Hashable, room: Sequence[int], load: Sequence[float] | None = None) -> int | None:
        """The instance for an item, of those with room. `load`: what each would have, if not what it has."""
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
        for near in (known,) if least == 0 else (sibling, known):  # one is idle: together is not worth waiting for
            if near in fitting and load[near] <= least + slack:
                return near
        return min(fitting, key=lambda at: (load[at], at != latest))

    def _less_kept(self, room: Sequence[int], load: Sequence[float], query: Hashable) -> Sequence[int]:
        """The room for a throughput group: less what is kept for other queries, if any are at work here."""
        up = self.up()
        if not up or all(other == query for _, _, other in self._running.values()):
            return room
        kept, at_least = max(1, int(KEPT_SHARE * self.capabilities.max_items)), min(up, key=lambda at: load[at])
        return [free - kept if at == at_least else free for at, free in enumerate(room)]

    def fits(self, item: Item, tokens: int, has_company: bool) -> bool:
        """There is KV cache for it beside `tokens`. What is larger than all there is goes alone; the engine says so."""
        limit = self.capabilities.max_tokens
        return not limit or tokens + item.tokens <= limit or (tokens == 0 and not has_company)

    def tokens(self, at: int) -> int:
        """Of KV cache that one has promised."""
        return self._each[at].tokens

    def loads(self) -> list[float]:
        """The load of each."""
        return [self._load(at) for at in range(len(self._each))]

    def _load(self, at: int) -> float:
        each = self._each[at]
        return float(each.tokens if self.capabilities.max_tokens else each.items)

    def weight(self, item: Item) -> int:
        """What an item adds to the load."""
        return item.tokens if self.capabilities.max_tokens else 1

    def _prefix_keys(self, item: Item, query: Hashable) -> list[Hashable]:
        """Of prompts of one query, of one primitive of it, and with one beginning; none for what is no prompt."""
        beginning = beginning_of(item) if self.capabilities.prefix else None
        return [] if beginning is None else [(item.tenant, query), (item.tenant, query, item.urgency), beginning]

    # --- items come and go -------------------------------------------------------------------------------------------

    def start(self, at: int, items: Sequence[Item], query: Hashable, *, is_alone: bool) -> None:
        """These items of a query are with that instance from now on."""
        each = self._each[at]
        each.is_alone = is_alone
        has_choice = len(self._each) > 1
        each.items += len(items)
        for item in items:
            tokens = item.tokens
            each.tokens += tokens
            self._running[item.id] = (at, tokens, query)
            if has_choice:
                self._remember(item, query, at)

    def _remember(self, item: Item, query: Hashable, at: int) -> None:
        for key in self._prefix_keys(item, query):
            self._prefixes[key] = at
            self._prefixes.move_to_end(key)
        while len(self._prefixes) > REMEMBERED_PREFIXES:
            self._prefixes.popitem(last=False)

    def begin_call(self, at: int) -> None:
        """A batch is being run there: one that runs no two at once takes nothing before the call is over."""
        self._each[at].calls += 1

    def end_call(self, at: int) -> None:
        """It is over."""
        self._each[at].calls -= 1
        self._trim()

    def end(self, ids: Collection[int]) -> int:
        """These items ended; how many of them were with an instance."""
        ended = 0
        for item_id in ids:
            if (held := self._running.pop(item_id, None)) is not None:
                at, tokens, _ = held
                each = self._each[at]
                each.items -= 1
                each.tokens -= tokens
                each.is_alone &= each.items > 0
                ended += 1
        self._trim()
        return ended
