"""Policies: which requests make a batch, as tables, as rules for any queue, and in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teola_plugin.engines import Engine, Item, Urgency
from teola_plugin.profile import PAPER_LLM
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM
from teola_plugin.runtime.hosts.local import LocalHost, Query
from teola_plugin.runtime.hosts.virtual_time import VirtualLoop
from teola_plugin.runtime.scheduler.policies import (
    POLICIES,
    PRIORITIES,
    REMAINING_TIME_WEIGHT,
    Policy,
    PolicyName,
    WarmPrefixes,
    critical_path,
    topology,
)
from teola_plugin.runtime.scheduler.waiting import Waiting
from teola_plugin.seams import Reply
from tests.support.by_id import request_of


@dataclass(frozen=True)
class W:
    """A request that waits: query, seconds to the output, when the query began; the rest as it comes."""

    query: int
    remaining_s: float
    begun_s: float = 0.0
    waiting: int = 1
    depth: int = 1
    group: Hashable = "g"
    arrival: int = 0
    prefix: Hashable = None
    own_s: float = 0.0


def picks_of(policy: Policy, queue: list[W], free: int, warm: WarmPrefixes | None = None) -> list[tuple[int, int]]:
    """The places in the queue of what is picked, and how many items of each."""
    waiting = Waiting(policy)
    places: dict[int, int] = {}
    for place, w in enumerate(queue):
        items = [Item("", w.query, id=0)] * w.waiting
        request = request_of(
            "decoding", {}, items, w.query, w.depth, w.remaining_s, w.begun_s, arrival=w.arrival, group=w.group,
            prefix=w.prefix, own_s=w.own_s,
        )  # fmt: skip
        waiting.add(request)
        places[id(request)] = place
    return [(places[id(pick.request)], pick.size) for pick in waiting.picks(free, lambda request: True, "", warm=warm)]


TABLE = [
    # a short query overtakes a long one that came a little earlier
    ([W(1, 5.0, begun_s=0.0), W(2, 1.0, begun_s=1.0)], 1, [(1, 1)]),
    # not one that came long ago
    ([W(1, 5.0, begun_s=0.0), W(2, 1.0, begun_s=5.0)], 1, [(0, 1)]),
    # of equal queries the one that came first, whichever of its requests came first here
    ([W(2, 3.0, begun_s=1.0, arrival=1), W(1, 3.0, begun_s=0.0, arrival=2)], 1, [(1, 1)]),
    # of one query what its end waits for longest, whatever its depth
    ([W(1, 1.0, depth=9), W(1, 4.0, depth=1)], 1, [(1, 1)]),
    # what its query does not wait for yet makes way for another query's longest (the paper's figure 7)
    ([W(1, 2.0), W(1, 0.5), W(2, 2.0, begun_s=0.4)], 2, [(0, 1), (2, 1)]),
    # if it is as long itself; a short one would make little room
    ([W(1, 2.0, own_s=1.0), W(1, 0.5, own_s=1.0), W(2, 2.0, own_s=1.0, begun_s=0.4)], 2, [(0, 1), (2, 1)]),
    ([W(1, 2.0, own_s=1.0), W(1, 0.5, own_s=0.1), W(2, 2.0, own_s=1.0, begun_s=0.4)], 2, [(0, 1), (1, 1)]),
    # and within its query waits for the longest all the same
    ([W(1, 0.5, own_s=0.0), W(1, 2.0, own_s=1.0)], 1, [(1, 1)]),
    # and fills what is free
    ([W(1, 2.0), W(1, 0.5, waiting=3), W(2, 2.0, begun_s=0.4)], 4, [(0, 1), (2, 1), (1, 2)]),
    # the first one's group is that of the batch
    ([W(1, 2.0, group="a"), W(2, 1.0, group="b"), W(3, 3.0, group="b")], 8, [(1, 1), (2, 1)]),
    # what nobody predicted anything of goes by the age of the query, then as it came
    ([W(1, 0.0, begun_s=2.0), W(2, 0.0, begun_s=1.0, arrival=5), W(2, 0.0, begun_s=1.0, arrival=4)], 8,
     [(2, 1), (1, 1), (0, 1)]),
]  # fmt: skip


@pytest.mark.parametrize(("queue", "free", "picks"), TABLE)
def test_critical_path(queue: list[W], free: int, picks: list[tuple[int, int]]) -> None:
    assert picks_of(critical_path, queue, free) == picks


WAITING = st.builds(
    W, query=st.integers(1, 4), remaining_s=st.floats(0, 9), begun_s=st.floats(0, 9), waiting=st.integers(1, 5),
    depth=st.integers(0, 4), group=st.sampled_from("ab"), arrival=st.integers(0, 99),
    prefix=st.sampled_from((None, *"xyz")), own_s=st.floats(0, 9),
)  # fmt: skip
QUEUES = st.lists(WAITING, min_size=1, max_size=9)


WARM = st.builds(WarmPrefixes, st.sampled_from((0.0, 0.5, 3.0)), st.lists(st.sampled_from("xyz"), unique=True))


@settings(deadline=None)
@given(st.sampled_from(sorted(POLICIES)), QUEUES, st.integers(1, 9), st.none() | WARM)
def test_a_batch_is_of_one_group_and_fits(
    policy: PolicyName, queue: list[W], free: int, warm: WarmPrefixes | None
) -> None:
    picks = picks_of(POLICIES[policy], queue, free, warm)
    assert 1 <= sum(count for _, count in picks) <= free
    assert len({place for place, _ in picks}) == len(picks), "no request twice"
    assert all(1 <= count <= queue[place].waiting for place, count in picks)
    groups = {queue[place].group for place, _ in picks}
    assert len(groups) == 1
    if policy != "po":  # no slot stays free while somebody of the group waits
        assert sum(count for _, count in picks) == min(free, sum(w.waiting for w in queue if w.group in groups))


@settings(deadline=None)
@given(QUEUES)
def test_nobody_is_overtaken_by_a_query_that_came_when_it_should_have_ended(queue: list[W]) -> None:
    first = queue[picks_of(critical_path, queue, 1)[0][0]]
    for other in queue:
        longest_s = max(w.remaining_s for w in queue if w.query == other.query)
        assert first.begun_s <= other.begun_s + longest_s


@settings(deadline=None)
@given(QUEUES, WARM)
def test_nobody_goes_before_what_is_due_more_than_the_tolerance_sooner(queue: list[W], warm: WarmPrefixes) -> None:
    queue = [replace(w, group="g", waiting=1, own_s=0.0) for w in queue]

    def due_s(w: W) -> float:
        longest_s = max(other.remaining_s for other in queue if other.query == w.query)
        return w.begun_s + REMAINING_TIME_WEIGHT * (2 * longest_s - w.remaining_s)

    order = [queue[place] for place, _ in picks_of(critical_path, queue, len(queue), warm)]
    for at, w in enumerate(order):
        assert all(due_s(w) <= due_s(later) + warm.tolerance_s for later in order[at:])


@settings(deadline=None)
@given(QUEUES, WARM)
def test_topology_changes_places_only_within_a_round_and_the_tolerance(queue: list[W], warm: WarmPrefixes) -> None:
    queue = [replace(w, group="g", waiting=1, begun_s=float(w.query)) for w in queue]

    def in_round(w: W) -> int:
        return len({other.depth for other in queue if other.query == w.query and other.depth > w.depth})

    order = [queue[place] for place, _ in picks_of(topology, queue, len(queue), warm)]
    for at, w in enumerate(order):
        assert all(in_round(w) <= in_round(later) for later in order[at:])
        alike = [later for later in order[at:] if in_round(w) == in_round(later)]
        assert all(w.begun_s <= later.begun_s + warm.tolerance_s for later in alike)


@pytest.mark.parametrize("policy", ["po", "to"])
@settings(deadline=None)
@given(queue=QUEUES, free=st.integers(1, 9), warm=WARM)
def test_po_and_to_keep_their_order(policy: PolicyName, queue: list[W], free: int, warm: WarmPrefixes) -> None:
    assert picks_of(POLICIES[policy], queue, free, warm) == picks_of(POLICIES[policy], queue, free)


def test_what_is_warm_goes_first_then_what_begins_like_it() -> None:
    queue = [W(n, 0.0, begun_s=n / 10, prefix=begins) for n, begins in enumerate("babacb")]
    warm = WarmPrefixes(1.0, ["c", "a"])
    order = [queue[place].query for place, _ in picks_of(critical_path, queue, 6, warm)]
    assert order == [1, 3, 4, 0, 2, 5]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=9))
def test_what_is_handed_on_is_the_order_of_the_queue(queries: list[tuple[int, int]]) -> None:
    queue = [W(n, remaining_s, begun_s, arrival=n) for n, (remaining_s, begun_s) in enumerate(queries)]
    handed_on = [PRIORITIES["critical_path"](Urgency(w.depth, w.remaining_s), w.begun_s) for w in queue]
    order = [place for place, _ in picks_of(critical_path, queue, len(queue))]
    assert order == sorted(range(len(queue)), key=lambda i: (handed_on[i], i))


def test_every_policy_says_what_it_hands_on() -> None:
    assert PRIORITIES.keys() == POLICIES.keys()
    assert PRIORITIES["topology"](Urgency(3), 0.0) < PRIORITIES["topology"](Urgency(2), 0.0)


FIGURE_7 = {"po": (0.5, 1.5), "to": (0.8, 1.3), "topology": (0.8, 0.8), "critical_path": (0.8, 0.8)}
"""When the deep requests of two queries end. Blind batching is `to`: the next request of query 2 waits until 1.3 s."""


def embedder() -> ProfileEmbedding:
    return ProfileEmbedding(4, PAPER_LLM["figure7"].prefill, max_items=2)


def llm() -> ProfileLLM:
    return ProfileLLM("llm", PAPER_LLM["figure7"], max_items=2)


# An LLM takes one prompt after the other, so `po` is as `to` there.
@pytest.mark.parametrize(
    ("policy", "ends_s", "make"),
    [
        *((p, s, embedder) for p, s in FIGURE_7.items()),
        *((p, FIGURE_7["to" if p == "po" else p], llm) for p in FIGURE_7),
    ],
)
def test_figure_7(policy: PolicyName, ends_s: tuple[float, float], make: Callable[[], Engine]) -> None:
    """Prompts of 512 tokens, at most two at once: 0.5 s one, 0.8 s two. Query 1 has a deep and a shallow one."""

    async def run() -> list[float]:
        loop = asyncio.get_running_loop()
        host = LocalHost(policy, loop=loop)
        engine = make()
        op = "embedding" if make is embedder else "partial_prefilling"

        async def ask(query: int, depth: int) -> float:
            reply = Reply()
            host.submit(
                engine, op, [f"{query}{depth}" + " word" * 511], {}, [reply],
                query=Query(query, begun_s=query / 100), urgency=Urgency(depth, depth * 0.5),
            )  # fmt: skip
            await reply.aresult()
            return loop.time()

        before = [asyncio.create_task(ask(9, depth)) for depth in (1, 2)]
        await asyncio.sleep(0.1)
        tasks = [asyncio.create_task(ask(query, depth)) for query, depth in ((1, 2), (1, 1), (2, 2))]
        began_s = max(await asyncio.gather(*before))
        deep, _, other = await asyncio.gather(*tasks)
        await host.aclose()
        return [deep - began_s, other - began_s]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(run()) == pytest.approx(ends_s)
