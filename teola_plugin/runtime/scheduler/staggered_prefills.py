"""Staggered prefills: in which waves an LLM writes the texts of a query, where the next engine takes texts one by one.

    all at once                                  in waves
    llm       p p p p d d d                      p p d d d p d d d
    llm       p p p p d d d                      p p p d d d p d d d       p: a prefill, d: decode steps of all
    embedder                e e e e e e e e              e e   e e e e e e

An LLM prefills all available prompts before any decode. So texts that begin together end together, and the next step,
such as embedding each text, waits for the last prefill. Two changes let the next step begin earlier:
- Each replica gets fewer of the texts than the next replica: the replicas end in sequence. No cost.
- Some texts wait until earlier texts of the replica have ended. The cost is decode steps, once more for each wave.

How many texts each replica gets, and how many of them wait, is the best of a few plans by the latency profiles (without
profiles, or without `max_tokens`, nothing waits). As soon as another query comes, all waiting texts begin: decode steps
are not repeated while another query waits for the engine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from teola_plugin.engines import Item, Taker, Urgency
from teola_plugin.runtime.scheduler.prefill_admission import PrefillAdmission
from teola_plugin.runtime.scheduler.replicas import Replicas
from teola_plugin.runtime.scheduler.work_item import Request, WorkItem

LATE = tuple(n / 16 for n in range(9))
"""The shares of all texts that may wait."""

SOONER = 0.5
"""The ratio of waiting texts of a replica to the waiting texts of the previous replica, which is free sooner."""

UNEVEN = 4.0
"""The largest ratio between the texts of a replica and of the previous replica."""

MOST_TIME = 0.97
"""The maximum time of waves, up to the end of the next step, as a share of the time of all texts at once."""

ENDED = 4
"""The next wave begins when 1 in `ENDED` texts of the current wave is still written: small batches decode badly."""


class Costs(NamedTuple):
    """Costs in seconds: the prefill of a prompt, the steps of a text; a batch of the next step, and per text."""

    prefill_s: float
    decode_s: float
    batch_s: float
    item_s: float


def best_waves(count: int, replicas: int, most: int, costs: Costs) -> tuple[tuple[int, ...], ...]:
    """Return, for each replica, the number of texts in each wave; none if waves gain too little.

    `most`: the slots of a replica.

    >>> best_waves(48, 2, 32, Costs(0.09, 0.5, 0.05, 0.025))
    ((17, 6), (22, 3))
    >>> best_waves(48, 2, 32, Costs(0.09, 0.5, 0.05, 0.0))
    ()
    """
    longest = 1 + costs.item_s / max(costs.prefill_s, costs.item_s / (UNEVEN - 1)) if costs.item_s else 1.0
    # Texts without a slot wait.
    at_once = tuple((min(n, most), max(0, n - most)) for n in _split(count, replicas, 1.0))
    found = [at_once]
    for ratio in dict.fromkeys((1.0, math.sqrt(longest), longest)):
        shares = _split(count, replicas, ratio)
        for share in LATE:
            waiting = _split(round(share * count), replicas, SOONER)
            waves = tuple((n - later, later) for n, later in zip(shares, waiting, strict=True))
            if all(0 <= n <= most for each in waves for n in each):
                found.append(waves)
    best = min(found, key=lambda waves: over_s(waves, costs))
    return best if over_s(best, costs) < MOST_TIME * over_s(at_once, costs) else ()


def _split(count: int, replicas: int, ratio: float) -> list[int]:
    """Return the number of texts for each replica, each `ratio` times as many as for the previous replica."""
    weights = [ratio**n for n in range(replicas)]
    ends = [round(count * end / sum(weights)) for end in itertools.accumulate(weights)]
    return [end - begin for begin, end in itertools.pairwise([0, *ends])]


def over_s(waves: Collection[Sequence[int]], costs: Costs) -> float:
    """Return the seconds until the next step is over: batches in sequence, each with all finished texts."""
    ends: list[tuple[float, int]] = []
    for of_one in waves:
        now_s = 0.0
        for n in of_one:
            if n:
                now_s += n * costs.prefill_s + costs.decode_s
                ends.append((now_s, n))
    ends.sort()
    over, at = 0.0, 0
    while at < len(ends):
        begin_s, first = max(over, ends[at][0]), at
        while at < len(ends) and ends[at][0] <= begin_s:
            at += 1
        over = begin_s + costs.batch_s + costs.item_s * sum(n for _, n in ends[first:at])
    return over


@dataclass(slots=True)
class _Plan:
    """A plan of waves. `left`: by replica, the texts of each wave yet to begin; the first wave runs, of `size` texts.

    `running`: the running texts.
    """

    query: Hashable
    urgency: Urgency
    until_s: float
    left: dict[int, list[int]]
    size: dict[int, int]
    running: set[WorkItem] = field(default_factory=set)


class StaggeredPrefills:
    """Staggered prefills of an engine, while a single query waits."""

    def __init__(self, admission: PrefillAdmission) -> None:
        self._admission = admission
        self._plan: _Plan | None = None
        self._refused: tuple[Hashable, Urgency] | None = None  # the latest texts without a gain from waves

    def plan(self, queue: Collection[Request], replicas: Replicas, now_s: float, aging_s: float) -> None:
        """Plan waves for the queue, while a replica is idle; a text waits no longer than `aging_s`.

        The plan is made once for all texts of a primitive: later texts and retried texts just begin.
        """
        first = next((request for request in queue if request.op == "decoding"), None)
        if self._plan or first is None or (taker := first.first.urgency.taker) is None:
            return
        query, urgency = first.query, first.first.urgency
        texts = [request for request in queue if request.op == "decoding"]
        until_s = min(request.since_s for request in texts) + aging_s
        if until_s <= now_s or (query, urgency) == self._refused:
            return
        is_all = all(r.query == query and (r.op == "partial_prefilling" or _is_for(r, urgency)) for r in queue)
        if not is_all or replicas.has(query):
            return
        items = [work.item for request in texts for work in request.items]
        waves = self._staggered(items, first.settings, replicas, taker)
        if not waves:
            self._refused = (query, urgency)
            return
        left = {at: [n for n in each if n] for at, each in zip(replicas.up(), waves, strict=True)}
        self._plan = _Plan(query, urgency, until_s, left, {at: sum(each[:1]) for at, each in left.items()})

    def _staggered(
        self, items: Sequence[Item], settings: Mapping[str, Any], replicas: Replicas, taker: Taker
    ) -> tuple[tuple[int, ...], ...]:
        up, most = replicas.up(), replicas.capabilities.max_items
        written = self._admission.texts(settings, 1)
        is_many = len(items) > 2 * most * len(up)  # they fill the slots more than twice
        if is_many or written.unknown or not all(isinstance(item.payload, str) for item in items):
            return ()
        prefill_s = sum(self._admission.prefill_s(up[0], item) for item in items) / len(items)
        costs = Costs(prefill_s, written.seconds, *taker)
        return best_waves(len(items), len(up), most, costs)

    def came(self, request: Request) -> None:
        """End the plan if a request comes which is no early prefill of the same query."""
        if (plan := self._plan) and not (request.query == plan.query and request.op == "partial_prefilling"):
            self._plan = None

    def started(self, at: int, request: Request, works: Sequence[WorkItem]) -> None:
        """Note that items of a request run on a replica from now on."""
        if (plan := self._plan) and request.op == "decoding" and request.query == plan.query:
            plan.running.update(works)
            if left := plan.left.get(at):
                left[0] = max(0, left[0] - len(works))

    def ended(self, works: Iterable[WorkItem]) -> None:
        """Note that items have ended."""
        if self._plan:
            self._plan.running.difference_update(works)

    def room(self, room: Sequence[int], now_s: float) -> Sequence[int]:
        """Return the room of each replica, less the room for later waves."""
        if (plan := self._plan) is None:
            return room
        wanted = [self._wanted(plan, at) for at in range(len(room))]
        if plan.until_s <= now_s or all(most is None for most in wanted):
            self._plan = None
            return room
        return [free if most is None else min(free, most) for free, most in zip(room, wanted, strict=True)]

    @property
    def until_s(self) -> float:
        """Until when texts may be held back; infinite if none are."""
        return self._plan.until_s if self._plan else math.inf

    @staticmethod
    def _wanted(plan: _Plan, at: int) -> int | None:
        """Return the number of texts that the running or next wave of a replica still takes; None after the last."""
        left, running = plan.left.get(at), sum(work.replica == at for work in plan.running)
        while left and not left[0] and running * ENDED <= plan.size[at]:
            del left[0]
            plan.size[at] = left[0] if left else 0
        return left[0] if left else None


def _is_for(request: Request, urgency: Urgency) -> bool:
    return request.op == "decoding" and request.first.urgency == urgency
