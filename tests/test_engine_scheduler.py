"""Engine scheduling as tables: requests in, batches out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teola_plugin.engines import Batch, Capabilities, Item
from teola_plugin.runtime.engine_scheduler import EngineScheduler, Request
from teola_plugin.runtime.policies import POLICIES


@dataclass(frozen=True)
class R:
    """A request: query, name, items, depth, settings."""

    query: int
    name: str
    items: int = 1
    depth: int = 1
    settings: tuple[tuple[str, int], ...] = ()


def fill(policy: str, requests: list[R], **capabilities: int | bool) -> EngineScheduler:
    scheduler = EngineScheduler(POLICIES[policy], Capabilities(**capabilities))  # type: ignore[arg-type]
    number = 0
    for r in requests:
        items = [Item(f"{r.name}{i}", r.query, id=(number := number + 1)) for i in range(r.items)]
        scheduler.submit(Request("embedding", dict(r.settings), items, r.query, r.depth))
    return scheduler


def drain(scheduler: EngineScheduler) -> list[list[str]]:
    batches = []
    while batch := scheduler.next_batch():
        batches.append([item.payload for item in batch.items])
        scheduler.finish([item.id for item in batch.items])
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
    first = scheduler.next_batch()
    assert first is not None
    assert scheduler.next_batch() is None
    scheduler.finish([first.items[0].id])
    assert scheduler.next_batch() is None, "half of the batch is still with the engine"
    scheduler.finish([first.items[1].id])
    assert scheduler.next_batch() is not None


def test_continuous_batching_refills_each_freed_slot() -> None:
    scheduler = fill("to", [R(1, "a", 3)], max_items=2, concurrent=True)
    first = scheduler.next_batch()
    assert first is not None
    scheduler.finish([first.items[0].id])
    second = scheduler.next_batch()
    assert second is not None
    assert [item.payload for item in second.items] == ["a2"]


def test_a_withdrawn_item_leaves_the_queue_or_is_named_as_running() -> None:
    scheduler = fill("to", [R(1, "a", 3)], max_items=1)
    assert scheduler.next_batch() is not None
    assert scheduler.withdraw([1, 2]) == [1]
    assert scheduler.queued_items == 1


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
        batch: Batch | None = scheduler.next_batch()
        if batch:
            assert 0 < len(batch.items) <= slots
            running += batch.items
            seen += [item.payload for item in batch.items]
            assert len(running) <= slots
        elif running:
            scheduler.finish([running.pop(rng.randrange(len(running))).id])
    assert sorted(seen) == sorted(f"{r.name}{i}" for r in requests for i in range(r.items))
    assert scheduler.running_items == 0
