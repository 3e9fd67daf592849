"""What waits in heaps goes as a look through all of it would say, whatever comes, leaves or changes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable

import pytest

from teola_plugin.engines import Item
from teola_plugin.runtime.scheduler.policies import (
    POLICIES,
    REMAINING_TIME_WEIGHT,
    PolicyName,
    WarmPrefixes,
    critical_path,
)
from teola_plugin.runtime.scheduler.waiting import STALE, Waiting
from teola_plugin.runtime.scheduler.work_item import Request
from tests.support.by_id import request_of

Ranks = dict[int, tuple[float, ...]]


def ranks_of(policy: str, queue: dict[int, Request], first: dict[Hashable, int]) -> Ranks:
    """By place, as policies.py says it in words."""
    found: Ranks = {}
    for place, request in queue.items():
        mine = [other for other in queue.values() if other.query == request.query]
        if policy in ("po", "to"):
            found[place] = (request.arrival, place)
        elif policy == "topology":
            deeper = {other.depth for other in mine if other.depth > request.depth}
            found[place] = (len(deeper), request.begun_s, first[request.query], request.arrival, place)
        else:
            longest_s, own_s = max((other.remaining_s, other.own_s) for other in mine)
            shorter_s = longest_s - request.remaining_s
            waits_s = shorter_s * min(1.0, request.own_s / own_s if own_s else 1.0)
            due_s = request.begun_s + REMAINING_TIME_WEIGHT * (longest_s + waits_s)
            found[place] = (due_s, shorter_s, request.arrival, place)
    return found


def is_near(policy: str, ranks: Ranks, first: int, other: int, tolerance_s: float) -> bool:
    if policy == "topology":
        return ranks[first][0] == ranks[other][0] and ranks[other][1] <= ranks[first][1] + tolerance_s
    return policy == "critical_path" and ranks[other][0] <= ranks[first][0] + tolerance_s


def looked_through(
    policy: str, queue: dict[int, Request], ranks: Ranks, free: int, tenant: str, may_run: Callable[[Request], bool],
    warm: WarmPrefixes,
) -> list[tuple[int, int]]:  # fmt: skip
    """The picks of a tenant, found by looking at all that waits, again for each."""
    found: list[tuple[int, int]] = []
    left = {place for place, request in queue.items() if request.tenant == tenant and may_run(request)}
    latest = list(reversed(warm.last_run))
    while left and free:
        place = min(left, key=lambda each: ranks[each])
        for prefix in latest:
            alike = [each for each in left if queue[each].prefix == prefix]
            near = [each for each in alike if is_near(policy, ranks, place, each, warm.tolerance_s)]
            if near:
                place = min(near, key=lambda each: ranks[each])
                break
        request = queue[place]
        found.append((place, min(free, request.waiting)))
        free -= found[-1][1]
        if policy == "po":
            break
        if request.prefix is not None:
            latest = [request.prefix, *(each for each in latest if each != request.prefix)]
        left = {each for each in left if queue[each].group == request.group} - {place}
    return found


class Play:
    """A queue in heaps, and the same queue as a dict."""

    def __init__(self, seed: int) -> None:
        self.drawn = random.Random(seed)
        self.policy: PolicyName = self.drawn.choice(sorted(POLICIES))  # type: ignore[arg-type]
        self.waiting = Waiting(POLICIES[self.policy])
        self.queue: dict[int, Request] = {}
        self.first: dict[Hashable, int] = {}
        self.places = itertools.count()
        self.lengths = [self.drawn.uniform(0, 4) for _ in range(4)]

    def come(self) -> None:
        drawn, place = self.drawn, next(self.places)
        query = drawn.randrange(5)
        request = request_of(
            drawn.choice(["decoding", "embedding"]), {}, [Item("", query, id=0, tenant=drawn.choice("ab"))], query,
            drawn.randrange(3), drawn.choice(self.lengths), begun_s=float(query // 2),
            arrival=place - drawn.randrange(2), group=drawn.choice("gh"), prefix=drawn.choice([None, "x", "y", "z"]),
            own_s=drawn.choice([0.0, 1.0, 2.0]),
        )  # fmt: skip
        request.items = request.items * drawn.randint(1, 3)
        self.queue[place] = request
        self.first.setdefault(query, request.arrival)
        self.waiting.add(request)

    def leave(self, place: int, count: int) -> None:
        request = self.queue[place]
        self.waiting.took(request, count)
        request.items = request.items[count:]
        if not request.items:
            del self.queue[place]
            self.waiting.remove(request)
            if not any(other.query == request.query for other in self.queue.values()):
                del self.first[request.query]

    def change(self) -> None:
        if self.queue and self.drawn.random() < 0.5:
            place = self.drawn.choice(list(self.queue))
            depth, remaining_s = self.drawn.randrange(4), self.drawn.choice(self.lengths)
            self.waiting.raise_priority(self.queue[place], depth, remaining_s)
            assert self.queue[place].depth >= depth
            assert self.queue[place].remaining_s >= remaining_s
        elif self.drawn.random() < 0.2:
            self.policy = self.drawn.choice(sorted(POLICIES))  # type: ignore[assignment]
            self.waiting.use(POLICIES[self.policy])

    def look(self) -> None:
        """What is found is what a look through all finds; some of it leaves."""
        drawn = self.drawn
        barred = drawn.sample(sorted(self.queue), len(self.queue) // 4) if drawn.random() < 0.3 else []
        tenant, free, out = drawn.choice("ab"), drawn.randint(1, 6), {id(self.queue[place]) for place in barred}
        warm = WarmPrefixes(drawn.choice([0.0, 0.5, 2.0]), drawn.sample("xyz", 2))

        def may_run(request: Request) -> bool:
            return id(request) not in out

        ranks = ranks_of(self.policy, self.queue, self.first)
        expected = looked_through(self.policy, self.queue, ranks, free, tenant, may_run, warm)
        places = {id(request): place for place, request in self.queue.items()}
        picks = self.waiting.picks(free, may_run, tenant, warm=warm)
        assert [(places[id(pick.request)], pick.size) for pick in picks] == expected
        mine = [(r.arrival, place) for place, r in self.queue.items() if r.tenant == tenant and may_run(r)]
        oldest = self.waiting.oldest(may_run, tenant)
        assert (places[id(oldest)] if oldest else None) == (min(mine)[1] if mine else None)
        if picks:
            filled = self.waiting.topped_up(picks, 2, may_run)
            group, taken = picks[0].request.group, sum(pick.size for pick in picks)
            there = sum(r.waiting for r in self.queue.values() if r.group == group and may_run(r))
            assert sum(pick.size for pick in filled) == min(there, taken + 2)
        for place, count in expected:
            if drawn.random() < 0.7:
                self.leave(place, count)

    def check(self) -> None:
        assert len(self.waiting) == len(self.queue)
        assert self.waiting.queries == len({request.query for request in self.queue.values()})
        for query in range(5):
            texts = [r.waiting for r in self.queue.values() if r.query == query and r.op == "decoding"]
            assert self.waiting.prompts(query) == sum(texts)


@pytest.mark.parametrize("seed", range(60))
def test_what_goes_next_is_what_a_look_through_all_finds(seed: int) -> None:
    play = Play(seed)
    for _ in range(120):
        play.drawn.choice([play.come, play.come, play.come, play.look, play.change])()
        play.check()
    while play.queue:
        play.look()
    play.check()
    assert not play.waiting._tenants
    assert not play.waiting._groups
    assert not play.waiting._queries


def test_heaps_do_not_keep_what_has_left() -> None:
    waiting = Waiting(critical_path)
    requests: list[Request] = []
    for place in range(5_000):
        requests.append(request_of("embedding", {}, [Item("", place, id=place)], place, arrival=place))
        waiting.add(requests[-1])
        if place >= 10:
            waiting.remove(requests[place - 10])
    stands = [waiting._tenants[""], *(group.stands[""] for group in waiting._groups.values())]
    kept = [len(each) for stand in stands for each in (stand.heap.entries, stand.line._requests)]
    assert len(kept) == 4
    assert max(kept) <= 2 * 10 + STALE + 1
