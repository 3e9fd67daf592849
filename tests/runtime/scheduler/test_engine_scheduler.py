"""Engine scheduling as tables: requests in, batches out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teola_plugin.engines import Batch, Capabilities, Item, Urgency
from teola_plugin.runtime.scheduler.batching import Limits
from teola_plugin.runtime.scheduler.policies import POLICIES
from teola_plugin.runtime.scheduler.prefixes import PREFIX_CHARS
from tests.support.by_id import Scheduler, request_of


@dataclass(frozen=True)
class R:
    """A request: query, name, items, depth, settings."""

    query: int
    name: str
    items: int = 1
    depth: int = 1
    settings: tuple[tuple[str, int], ...] = ()


def fill(policy: str, requests: list[R], **capabilities: int | bool) -> Scheduler:
    scheduler = Scheduler(POLICIES[policy], Capabilities(**capabilities))  # type: ignore[arg-type]
    number = 0
    for r in requests:
        items = [Item(f"{r.name}{i}", r.query, id=(number := number + 1)) for i in range(r.items)]
        scheduler.submit(request_of("embedding", dict(r.settings), items, r.query, r.depth))
    return scheduler


def drain(scheduler: Scheduler) -> list[list[str]]:
    batches = []
    while batch := scheduler.batch():
        batches.append([item.payload for item in batch.items])
        scheduler.end([item.id for item in batch.items])
    return batches


TABLE = [
    # one invocation at a time, whatever else waits
    ("po", 4, [R(1, "a", 2), R(2, "b", 1), R(1, "c", 1)], [["a0", "a1"], ["b0"], ["c0"]]),
    # first come first served over all requests, to the largest batch
    ("to", 4, [R(1, "a", 2), R(2, "b", 1), R(1, "c", 3)], [["a0", "a1", "b0", "c0"], ["c1", "c2"]]),
    # settings differ: no common batch
    ("to", 4, [R(1, "a"), R(2, "b", settings=(("k", 1),)), R(3, "c")], [["a0", "c0"], ["b0"]]),
    # the paper's point: the deep request of the late query is not behind the shallow one of the early query
    ("topology", 2, [R(1, "a", depth=3), R(1, "b", depth=1), R(2, "g", depth=3), R(2, "h", depth=1)],
     [["a0", "g0"], ["b0", "h0"]]),
    # ties within a query batch together; the earlier query goes first
    ("topology", 3, [R(1, "a", depth=2), R(2, "g", depth=9), R(1, "b", depth=2)], [["a0", "b0", "g0"]]),
    # shallower ones fill what the deepest leave free
    ("topology", 4, [R(1, "a", depth=1), R(1, "b", 2, depth=5)], [["b0", "b1", "a0"]]),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "slots", "requests", "batches"), TABLE)
def test_policy(policy: str, slots: int, requests: list[R], batches: list[list[str]]) -> None:
    assert drain(fill(policy, requests, max_items=slots)) == batches


def test_a_blocking_engine_runs_one_batch_at_a_time() -> None:
    scheduler = fill("to", [R(1, "a", 3)], max_items=2)
    first = scheduler.batch()
    assert first is not None
    assert scheduler.batch() is None
    scheduler.end([first.items[0].id])
    assert scheduler.batch() is None, "half of the batch is still with the engine"
    scheduler.end([first.items[1].id])
    assert scheduler.batch() is not None


def test_continuous_batching_refills_each_freed_slot() -> None:
    scheduler = fill("to", [R(1, "a", 3)], max_items=2, concurrent=True)
    first = scheduler.batch()
    assert first is not None
    scheduler.end([first.items[0].id])
    second = scheduler.batch()
    assert second is not None
    assert [item.payload for item in second.items] == ["a2"]


def prompt(scheduler: Scheduler, item_id: int, text: str, query: int = 1, op: str = "decoding") -> None:
    scheduler.submit(request_of(op, {}, [Item(text, query, id=item_id)], query))


def taken(scheduler: Scheduler) -> list[list[int]]:
    batches = []
    while batch := scheduler.batch():
        batches.append([item.id for item in batch.items])
    return batches


def of_two() -> Scheduler:
    return Scheduler(POLICIES["to"], Capabilities(8, concurrent=True, prefix=True), replicas=2)


def placed(scheduler: Scheduler, item_id: int, text: str, query: int, primitive: int | None = None) -> int:
    """On which instance. Each prompt is of a primitive of its own, unless that is given."""
    item = Item(text, query, id=item_id, urgency=Urgency(item_id if primitive is None else primitive))
    scheduler.submit(request_of("decoding", {}, [item], query))
    batch = scheduler.batch()
    assert batch is not None
    return batch.instance


def test_a_prompt_goes_where_its_long_beginning_is_unless_that_is_much_busier() -> None:
    scheduler = of_two()
    context = "c" * PREFIX_CHARS
    assert [placed(scheduler, n, f"{context} {n}", n) for n in range(1, 6)] == [0, 0, 0, 1, 1]


def test_prompts_of_one_primitive_of_a_query_keep_together_unless_an_instance_is_idle() -> None:
    scheduler = of_two()
    for item_id, query in ((1, 8), (2, 9)):
        placed(scheduler, item_id, f"busy {item_id}", query)
    assert [placed(scheduler, n, f"leaf {n}", 1, primitive=0) for n in (3, 4, 5)] == [0, 0, 0]
    assert placed(scheduler, 6, "sum", 1) == 1
    scheduler = of_two()
    assert [placed(scheduler, n, f"leaf {n}", 1, primitive=0) for n in (3, 4, 5)] == [0, 1, 1]


def test_of_instances_with_as_much_to_do_a_query_goes_where_it_was() -> None:
    """What its prompts have in common is short: it is worth no company."""
    scheduler = of_two()
    assert placed(scheduler, 1, "who?", 1) == 0
    assert placed(scheduler, 2, "what?", 2) == 1
    scheduler.end([1, 2])
    assert placed(scheduler, 3, "what? it is", 2) == 1
    assert placed(scheduler, 4, "what? it was", 2) == 0  # the other is idle
    assert placed(scheduler, 5, "who? I", 1) == 0
    assert placed(scheduler, 6, "who? you", 1) == 1


@pytest.mark.parametrize(("at_end", "first"), [(True, [[1], [4, 5]]), (False, [[1], [2, 3, 4, 5]])])
def test_prompts_wait_for_the_prefill_of_their_beginning_where_they_would_compute_it(
    at_end: bool, first: list[list[int]]
) -> None:
    scheduler = fill("to", [], max_items=8, concurrent=True, prefix=True, prefix_at_end=at_end)
    prompt(scheduler, 1, "code:", op="partial_prefilling")
    for item_id, text, query in ((2, "code: review", 1), (3, "code:", 1), (4, "another", 1), (5, "code: mine", 2)):
        prompt(scheduler, item_id, text, query)
    assert taken(scheduler) == first
    scheduler.end([1])
    assert taken(scheduler) == ([[2, 3]] if at_end else [])


def test_a_prefill_waits_for_a_shorter_one_but_equal_ones_not_for_each_other() -> None:
    scheduler = fill("to", [], max_items=8, concurrent=True, prefix=True, prefix_at_end=True)
    for item_id, text in ((1, "code:"), (2, "code:"), (3, "code: plan")):
        prompt(scheduler, item_id, text, op="partial_prefilling")
    assert taken(scheduler) == [[1, 2]]
    scheduler.end([1, 2])
    assert taken(scheduler) == [[3]]


@pytest.mark.parametrize("requests", [[["code:", "code: plan"]], [["a", "bc"], ["b", "ac"]]])
def test_nested_prefills_of_one_request_or_of_two_do_not_wait_for_each_other(requests: list[list[str]]) -> None:
    scheduler = fill("to", [], max_items=8, concurrent=True, prefix=True, prefix_at_end=True)
    ids = iter(range(1, 9))
    for texts in requests:
        items = [Item(text, 1, id=next(ids)) for text in texts]
        scheduler.submit(request_of("partial_prefilling", {}, items, 1))
    went: list[int] = []
    while batch := scheduler.batch():
        went += [item.id for item in batch.items]
        scheduler.end([item.id for item in batch.items])
    assert sorted(went) == [*range(1, 2 * len(requests) + 1)]


def test_a_suspect_waits_for_no_prefill() -> None:
    """When it is due, everybody waits for it, the prefill too."""
    scheduler = fill("to", [], max_items=1, concurrent=True, prefix=True, prefix_at_end=True)
    scheduler.submit(request_of("decoding", {}, [Item("code: review", 1, id=1)], 1, is_alone=True, group="alone"))
    prompt(scheduler, 2, "code:", op="partial_prefilling")
    batch = scheduler.batch(now_s=100.0)
    assert batch is not None
    assert [item.id for item in batch.items] == [1]


def test_nothing_waits_for_a_prefill_that_was_withdrawn() -> None:
    scheduler = fill("to", [], max_items=1, concurrent=True, prefix=True, prefix_at_end=True)
    prompt(scheduler, 1, "another")
    assert taken(scheduler) == [[1]]
    prompt(scheduler, 2, "code:", op="partial_prefilling")
    prompt(scheduler, 3, "code: review")
    assert scheduler.take_out([2]) == []
    scheduler.end([1])
    assert taken(scheduler) == [[3]]


@pytest.mark.parametrize(("tolerance_s", "order"), [(0.0, [1, 2, 3, 4, 5]), (1.0, [1, 3, 2, 4, 5])])
def test_prompts_that_begin_alike_go_next_to_each_other(tolerance_s: float, order: list[int]) -> None:
    """Within the tolerance: the fifth begins like the first too, and is due too late to go before the second."""
    limits = Limits(prefix_tolerance_s=tolerance_s)
    scheduler = Scheduler(POLICIES["critical_path"], Capabilities(1, concurrent=True, prefix=True), limits=limits)
    begins = ["a", "b", "a", "b", "a"]
    for at, due_s in enumerate((0.0, 0.1, 0.2, 0.3, 3.0)):
        item = Item(begins[at] * PREFIX_CHARS + str(at), at, id=at + 1)
        scheduler.submit(request_of("decoding", {}, [item], at, begun_s=due_s))
    found = []
    while batch := scheduler.batch():
        found += [item.id for item in batch.items]
        scheduler.end(found)
    assert found == order


def objective(scheduler: Scheduler, item_id: int, query: int, what: str) -> None:
    item = Item("text", query, id=item_id, urgency=Urgency(1, 1.0, what))
    scheduler.submit(request_of("decoding", {}, [item], query))


def test_throughput_fills_all_but_the_slots_that_one_instance_keeps() -> None:
    scheduler = Scheduler(POLICIES["to"], Capabilities(16, concurrent=True), replicas=2)
    objective(scheduler, 1, 2, "latency")
    assert taken(scheduler) == [[1]]
    for item_id in range(2, 42):
        objective(scheduler, item_id, 1, "throughput")
    assert sum(map(len, taken(scheduler))) == 15 + 14


def test_throughput_leaves_slots_for_others_only_beside_others() -> None:
    alone = Scheduler(POLICIES["to"], Capabilities(16, concurrent=True))
    mixed = Scheduler(POLICIES["to"], Capabilities(16, concurrent=True))
    objective(mixed, 1, 2, "latency")
    assert taken(mixed) == [[1]]
    for scheduler in (alone, mixed):
        for item_id in range(2, 22):
            objective(scheduler, item_id, 1, "throughput")
    assert len(taken(alone)[0]) == 16
    assert sum(map(len, taken(mixed))) == 13
    objective(mixed, 30, 3, "latency")
    assert taken(mixed) == [[30]], "behind a queue that may not have the slot"


def test_a_withdrawn_item_leaves_the_queue_or_is_named_as_running() -> None:
    scheduler = fill("to", [R(1, "a", 3)], max_items=1)
    assert scheduler.batch() is not None
    assert scheduler.take_out([1, 2]) == [1]
    assert scheduler.queued_items == 1


def test_who_joins_an_item_that_runs_makes_the_rest_of_its_request_more_urgent() -> None:
    scheduler = Scheduler(POLICIES["topology"], Capabilities(1, concurrent=True), limits=Limits(prefix_tolerance_s=0.0))
    for depth, ids in ((6, (1, 2, 3)), (5, (4,)), (0, (5,)), (8, (6,))):
        scheduler.submit(request_of("embedding", {}, [Item("text", 1, id=item_id) for item_id in ids], 1, depth))
        if depth == 6:
            assert taken(scheduler) == [[1]]
    scheduler.raise_priority(scheduler.works[1], 9, 0.0)
    order = []
    for _ in range(5):
        scheduler.end(scheduler.works)
        order += taken(scheduler)
    assert order == [[2], [3], [6], [4], [5]]


@given(
    st.sampled_from(sorted(POLICIES)),
    st.integers(1, 5),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 3), st.integers(0, 1)), max_size=12),
    st.randoms(use_true_random=False),
)
def test_every_item_reaches_the_engine_exactly_once(policy, slots, concurrent, table, rng) -> None:  # type: ignore[no-untyped-def]
    requests = [R(q, f"{n}:", items, depth, (("k", k),)) for n, (q, items, depth, k) in enumerate(table)]
    scheduler = fill(policy, requests, max_items=slots, concurrent=concurrent)
    running: list[Item] = []
    seen: list[str] = []
    while scheduler.queued_items or running:
        batch: Batch | None = scheduler.batch()
        if batch:
            assert 0 < len(batch.items) <= slots
            running += batch.items
            seen += [item.payload for item in batch.items]
            assert len(running) <= slots
        elif running:
            scheduler.end([running.pop(rng.randrange(len(running))).id])
    assert sorted(seen) == sorted(f"{r.name}{i}" for r in requests for i in range(r.items))
    assert scheduler.running_items == 0


@pytest.mark.parametrize(("is_concurrent", "most"), [(False, [4, 4, 1]), (True, [8, 4, 4])])
def test_what_would_begin_at_once(is_concurrent: bool, most: list[int]) -> None:
    """Of two instances of four items: while nothing runs, while one is busy, and with three that wait."""
    scheduler = Scheduler(POLICIES["to"], Capabilities(max_items=4, concurrent=is_concurrent), replicas=2)
    found = [max(n for n in range(9) if scheduler.begins_at_once(n))]
    scheduler.submit(request_of("embedding", {}, [Item(str(n), id=n) for n in range(4)], 1))
    assert scheduler.batch()
    found.append(max(n for n in range(9) if scheduler.begins_at_once(n)))
    if not is_concurrent:
        scheduler.submit(request_of("embedding", {}, [Item(str(n), id=n) for n in range(10, 13)], 2))
    found.append(max(n for n in range(9) if scheduler.begins_at_once(n)))
    assert found == most
