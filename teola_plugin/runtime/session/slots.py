"""Slots: where the run-ahead of a call and the framework's own run meet, item by item.

A *slot* is the reply of an item, under a key (request_identity.py). The n-th request of the framework's run for a key
gets the n-th slot, and so does the n-th request of the run-ahead: the first to arrive starts the computation, the
second shares the result (single flight), and no slot is handed to the framework twice (single use). Slots that were
never taken are counted as wasted.

The same embedding, rerank score or search requested twice in a call is computed once: later slots of the key share the
reply. Requests to foreign models are made as often as the framework's run makes them.

A slot of a store that changes (`stamp` of the engine, such as the version of a Chroma collection) is valid only while
the stamp is unchanged since the submission: a search that ran ahead of a write is computed anew.
"""

from __future__ import annotations

import bisect
import heapq
import math
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from teola_plugin.engines import Failed
from teola_plugin.seams import Reply
from teola_plugin.trace import Mark

SHARED = ("embedding", "reranking", "searching")
"""Operations whose value is the same each time. Callers may change search results, so each caller gets a copy."""


SHORT_LEAD_S = 0.02
"""The framework starts parallel work within this time, in seconds."""


class Since(NamedTuple):
    """When work of the run-ahead began: how often the slots had been rewound, and how many of a key had been `taken`.

    After a further rewind work that `ends` gets no slots. Other work first gets the slots that the framework's run took
    meanwhile and the run-ahead had not come to: the work asks late for what the framework has asked already.
    """

    rewound: int
    taken: Mapping[Hashable, int]
    ends: bool


class Next(NamedTuple):
    """A slot that was reached.

    `outcome`: "hit" (the computation has begun), "miss" (the caller has to begin the computation), "stale" (as a miss,
    because the store has changed; `outdated` is the reply in flight) or "left" (left to the framework's run). `source`:
    for a slot that shares, the reply to take over. `lead_s`: how long before a hit the request had begun.
    """

    reply: Reply
    outcome: str
    source: Reply | None = None
    outdated: Reply | None = None
    lead_s: float = 0.0


class _Taken(NamedTuple):
    """A reply that the framework's run requested. `lead_s`: for a hit, how long before the request had begun."""

    asked_s: float
    lead_s: float
    reply: Reply
    is_hit: bool


@dataclass(slots=True)
class _Slot:
    reply: Reply
    stamp: Hashable = None
    is_of_framework: bool = False
    """The framework's run opened the slot, not the run-ahead."""

    is_ahead: bool = False
    """The run-ahead has come to the slot."""

    is_shared: bool = False
    """The slot has the reply of an earlier slot."""

    is_given_up: bool = False
    """The reply is, or will be, Cancelled."""

    is_left: bool = False
    """The run-ahead was not to ask; the slot gets the reply of the framework's request, if any."""

    since_s: float = field(default_factory=time.perf_counter)


@dataclass(slots=True)
class _OfKey:
    """All slots of a key; `taken` by the framework's run, `ahead` by the run-ahead."""

    slots: list[_Slot] = field(default_factory=list)
    taken: int = 0
    ahead: int = 0
    has_given_up: bool = False
    """Some slots may be given up."""

    passed: list[int] = field(default_factory=list)
    """Positions of taken slots that the run-ahead had not come to before a rewind."""

    def rewind(self) -> None:
        """Let the run-ahead begin again at the first slot that is not taken."""
        self.passed += range(self.ahead, self.taken)
        self.ahead = self.taken

    def next_passed(self, taken: int) -> _Slot | None:
        """Return the next slot passed over, once, for work that began when `taken` slots had been taken."""
        at = bisect.bisect_left(self.passed, taken)
        return self.slots[self.passed.pop(at)] if at < len(self.passed) else None

    def share(self, op: str) -> Reply | None:
        """Add a slot that takes over the reply of the last slot, where no caller can tell the difference."""
        if op not in SHARED or not self.slots or isinstance(self.slots[-1].reply.outcome, Failed):
            return None
        last = self.slots[-1]
        if op == "searching" and self.taken == len(self.slots):
            return None  # the taker may have changed the result
        self.slots.append(_Slot(Reply(), last.stamp, is_shared=True))
        return last.reply.copied() if op == "searching" else last.reply


class _Mark:
    """Implements `trace.Mark`: `taken`, how often the framework's run had requested each key."""

    def __init__(self, taken: Mapping[Hashable, int]) -> None:
        self.is_beside = False
        self._taken = taken
        self._at = Counter(taken)

    def taken(self, key: Hashable) -> int:
        """See `trace.Mark`."""
        return self._taken.get(key, 0)

    def next(self, key: Hashable) -> int:
        """See `trace.Mark`."""
        at = self._at[key]
        self._at[key] += 1
        return at


class _Gain:
    """How much later the last reply would have come at most, if hits had begun when the framework asked.

    A hit requested while the framework waits for earlier replies adds nothing to the gain of the earlier replies: the
    framework waits for all of them at once. Any other hit comes later by the gain of the hits before, and adds the lead
    of the hit, or the duration of the work if the work had ended. A short lead counts only where the framework waited
    for a reply in between: otherwise the lead is the time that threads take to get their turn.
    """

    def __init__(self) -> None:
        self.gained_s = 0.0
        self._later_s = self._waited_s = 0.0
        self._waiting: list[tuple[float, float]] = []  # a heap: when a reply came, and how much later it would have
        self._not_come: list[tuple[_Taken, float]] = []

    def add(self, fresh: Sequence[_Taken]) -> None:
        """Note requests that the framework's run has made since the last time, in order."""
        not_come, self._not_come = self._not_come, []
        for taken, gained_s in not_come:
            self._wait_for(taken, gained_s)
        for taken in fresh:
            while self._waiting and self._waiting[0][0] <= taken.asked_s:
                self._waited_s, gained_s = heapq.heappop(self._waiting)
                self._later_s = max(self._later_s, gained_s)
            begun_s = taken.asked_s - taken.lead_s
            own_s = taken.lead_s if taken.reply.came_s is None else min(taken.lead_s, taken.reply.came_s - begun_s)
            if self._waited_s < begun_s and taken.lead_s < SHORT_LEAD_S:
                own_s = 0.0
            self.gained_s = max(self.gained_s, self._later_s + own_s)
            self._wait_for(taken, self._later_s + own_s)

    def _wait_for(self, taken: _Taken, gained_s: float) -> None:
        if taken.reply.came_s is None:
            self._not_come.append((taken, gained_s))
        else:
            heapq.heappush(self._waiting, (max(taken.asked_s, taken.reply.came_s), gained_s))


class Slots:
    """The slots of a call. The session ensures that only one thread at a time uses the slots."""

    def __init__(self) -> None:
        self._taken: list[_Taken] = []
        self._gain = _Gain()
        self._noted = 0  # so many of the taken ones are in the gain
        self._dropped = 0
        self.rewound = 0  # so often
        self._by_key: dict[Hashable, _OfKey] = {}
        self._open: dict[Hashable, _OfKey] = {}  # those with slots that the framework's run has not taken

    @property
    def are_unused(self) -> bool:
        """Whether neither run has come to a slot."""
        return not self._by_key

    def mark(self) -> Mark:
        """Return a mark of the current position of the framework's run."""
        return _Mark({key: entry.taken for key, entry in self._by_key.items()})

    def since(self, *, ends: bool = False) -> Since:
        """Return the beginning of work that begins now."""
        return Since(self.rewound, {} if ends else {key: entry.taken for key, entry in self._by_key.items()}, ends)

    def coming(self, key: Hashable, mark: Mark, stamp: Hashable = None, *, asks: bool = True) -> Next:
        """Return the next slot that the framework's run takes after a mark, regardless of early requests."""
        entry = self._open[key] = self._by_key.setdefault(key, _OfKey())
        at = mark.next(key)
        if at < len(entry.slots) and not entry.slots[at].is_given_up:
            entry.slots[at].is_ahead = True
            return Next(entry.slots[at].reply, "hit")
        entry.slots[at : at + 1] = [_Slot(Reply(), stamp, is_ahead=True, is_left=not asks)]
        entry.ahead = max(entry.ahead, at + 1)
        return Next(entry.slots[at].reply, "miss" if asks else "left")

    def ahead(
        self, key: Hashable, stamp: Hashable = None, *, shares: str = "", asks: bool = True, since: Since | None = None
    ) -> Next:
        """Return the next slot for the run-ahead. `shares`: the operation, where a reply may be taken over.

        Without `asks`, requests that have not begun are left to the framework's run. `since`: when the work that asks
        began; by default now.
        """
        entry = self._open[key] = self._by_key.setdefault(key, _OfKey())
        if since and (passed := entry.next_passed(since.taken.get(key, 0))):
            passed.is_ahead = True
            return Next(passed.reply, "hit")
        fresh = "miss" if asks else "left"
        for at in range(entry.taken, len(entry.slots)) if entry.has_given_up else ():
            if entry.slots[at].is_given_up:
                entry.slots[at] = _Slot(Reply(), stamp, is_ahead=True, is_left=not asks)
                return Next(entry.slots[at].reply, fresh)
        at, entry.ahead = entry.ahead, entry.ahead + 1
        if at < len(entry.slots):
            entry.slots[at].is_ahead = True
            return Next(entry.slots[at].reply, "hit")
        if source := entry.share(shares):
            return Next(entry.slots[at].reply, "hit", source)
        entry.slots.append(_Slot(Reply(), stamp, is_ahead=True, is_left=not asks))
        return Next(entry.slots[at].reply, fresh)

    def retire(self, key: Hashable, stamp: Hashable = None, *, shares: str = "") -> Next:
        """Return the next slot for the framework's run."""
        entry = self._by_key.setdefault(key, _OfKey())
        found = self._retire(entry, stamp, shares)
        if entry.taken >= len(entry.slots):
            self._open.pop(key, None)
        self._taken.append(_Taken(time.perf_counter(), found.lead_s, found.reply, found.outcome == "hit"))
        return found

    def _retire(self, entry: _OfKey, stamp: Hashable, shares: str) -> Next:
        at = entry.taken
        source = entry.share(shares) if at == len(entry.slots) else None
        entry.taken += 1
        if at == len(entry.slots):
            entry.slots.append(_Slot(Reply(), stamp, is_of_framework=True))
            return Next(entry.slots[at].reply, "miss")
        slot = entry.slots[at]
        if slot.is_left and not slot.is_given_up:
            slot.is_left, slot.is_of_framework, slot.stamp = False, True, stamp
            return Next(slot.reply, "miss")
        if slot.is_given_up:
            entry.slots[at] = _Slot(Reply(), stamp)
            return Next(entry.slots[at].reply, "miss")
        if slot.stamp == stamp:
            return Next(slot.reply, "hit", source, lead_s=time.perf_counter() - slot.since_s)
        entry.slots[at] = _Slot(Reply(), stamp)
        return Next(entry.slots[at].reply, "stale", outdated=slot.reply)

    def gained_s(self) -> float:
        """Return what the hits so far have gained, see `_Gain`."""
        self._gain.add(self._taken[self._noted :])
        self._noted = len(self._taken)
        return self._gain.gained_s

    def progress(self) -> tuple[int, int]:
        """Return how many requests the framework's run has made, and how many slots ahead of it wait for it."""
        waiting = (slot for entry in self._open.values() for slot in entry.slots[entry.taken :])
        return len(self._taken), sum(not slot.is_given_up for slot in waiting)

    def are_asked_together(self, replies: Sequence[Reply]) -> bool:
        """Whether the framework's run has asked for the last of these before the first of them came."""
        asked_s = {id(taken.reply): taken.asked_s for taken in self._taken}
        came_s = min((reply.came_s for reply in replies if reply.came_s is not None), default=math.inf)
        return all(asked_s.get(id(reply), math.inf) < came_s for reply in replies)

    def hosted_hits(self) -> int:
        """Return the number of hits among the requests to providers outside the process."""
        return sum(taken.is_hit and taken.reply.provider_call is not None for taken in self._taken)

    def rewind(self) -> None:
        """Let the run-ahead begin again at the first slots that the framework's run has not taken."""
        self.rewound += 1
        for entry in self._by_key.values():
            entry.rewind()

    def ask_after_all(self, reply: Reply) -> bool:
        """Let the run-ahead make a request it had left. Returns False if the framework's run has already come there."""
        for entry in self._by_key.values():
            for slot in entry.slots[entry.taken :]:
                if slot.reply is reply and slot.is_left and not slot.is_given_up:
                    slot.is_left, slot.since_s = False, time.perf_counter()
                    return True
        return False

    def is_taken_over(self, reply: Reply) -> None:
        """Note that the framework's run computes a slot already reached, in place of the engine."""
        for entry in self._by_key.values():
            for slot in entry.slots[: entry.taken]:
                slot.is_of_framework |= slot.reply is reply

    def give_up(self, reply: Reply, *, is_wasted: bool = False) -> bool:
        """Give up the request of a run-ahead. Returns whether to cancel: not if the framework's run has taken the slot.

        `is_wasted`: the request counts as wasted, even if the framework's run makes the same request later.
        """
        for entry in self._by_key.values():
            for slot in entry.slots[entry.taken :]:
                if slot.reply is reply:
                    if is_wasted and not (slot.is_shared or slot.is_left or slot.is_given_up):
                        self._dropped += 1
                        slot.is_left = True
                    slot.is_given_up = entry.has_given_up = True
                    return True
        return False

    def clear(self) -> tuple[Sequence[Reply], int, int]:
        """Remove all slots.

        Returns the replies that the framework's run did not take, how many of them share no reply, and how many slots
        opened by the framework's run the run-ahead took.
        """
        entries = list(self._by_key.values())
        self._by_key.clear()
        self._open.clear()
        left = [slot for entry in entries for slot in entry.slots[entry.taken :]]
        ours = sum(slot.is_of_framework and slot.is_ahead for entry in entries for slot in entry.slots)
        wasted = sum(not (slot.is_shared or slot.is_left) for slot in left)
        return [slot.reply for slot in left], wasted + self._dropped, ours
