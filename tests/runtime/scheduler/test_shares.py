"""Who gets how much: tenants' shares of slots and of room, the door of a host, terms, and what instances hold."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from teola_plugin.engines import Capabilities, Item, Urgency
from teola_plugin.errors import Overloaded, TeolaError
from teola_plugin.runtime.hosts.admission import Admission
from teola_plugin.runtime.scheduler.batching import Limits
from teola_plugin.runtime.scheduler.fairness import REMEMBERED_TENANTS, TenantFairness
from teola_plugin.runtime.scheduler.policies import POLICIES, PRIORITIES
from teola_plugin.runtime.scheduler.prefixes import PrefixTracker, prefix_of
from teola_plugin.runtime.scheduler.replicas import Replicas
from teola_plugin.runtime.scheduler.throughput import AT_LEAST_S, Throughput
from teola_plugin.runtime.scheduler.work_item import Request, Status, WorkItem
from teola_plugin.tenancy import ANYBODY, Terms, current_terms, terms
from tests.support.by_id import Scheduler, request_of

IDS = iter(range(1, 10**9))


def items(tenant: str, count: int = 1, **more: Any) -> list[Item]:
    return [Item("x", id=next(IDS), tenant=tenant, **more) for _ in range(count)]


def request(tenant: str, count: int = 1, *, query: int = 1, **more: Any) -> Request:
    return request_of("embedding", more.pop("settings", {}), items(tenant, count), query, **more)


def scheduler(free: int = 4, policy: str = "to", **limits: Any) -> Scheduler:
    return Scheduler(POLICIES[policy], Capabilities(max_items=free), limits=Limits(**limits))


def served(engine: Scheduler, batches: int, now_s: float = 0.0) -> list[list[str]]:
    found = []
    for _ in range(batches):
        batch = engine.batch(now_s)
        if batch is None:
            break
        found.append([item.tenant for item in batch.items])
        engine.end([item.id for item in batch.items], now_s)
    return found


# --- slots -----------------------------------------------------------------------------------------------------------


def test_each_tenant_gets_its_share_of_each_batch() -> None:
    engine = scheduler(4)
    for tenant, count in (("a", 20), ("b", 20)):
        engine.submit(request(tenant, count))
    assert [sorted(batch) for batch in served(engine, 3)] == [["a", "a", "b", "b"]] * 3


def test_who_was_served_least_comes_first() -> None:
    engine = scheduler(1)
    for tenant in ("a", "b", "c"):
        engine.submit(request(tenant, 10))
    assert [tenant for (tenant,) in served(engine, 6)] == ["a", "b", "c"] * 2


def test_what_no_share_wanted_goes_to_whoever_waits() -> None:
    engine = scheduler(4)
    engine.submit(request("a", 20))
    engine.submit(request("b", 1))
    assert [sorted(batch) for batch in served(engine, 2)] == [["a", "a", "a", "b"], ["a"] * 4]


def test_a_batch_has_the_settings_of_its_first_item_only() -> None:
    engine = scheduler(4)
    engine.submit(request("a", 2))
    engine.submit(request("b", 2, settings={"prompt": "q"}))
    assert sorted(served(engine, 2)) == [["a", "a"], ["b", "b"]]


def test_who_comes_back_is_not_owed_for_its_pause() -> None:
    engine = scheduler(1)
    engine.submit(request("a", 1))
    served(engine, 1)
    engine.submit(request("b", 30))
    served(engine, 10)
    engine.submit(request("a", 30))
    assert sum(tenant == "a" for (tenant,) in served(engine, 10)) in (5, 6)


def test_tokens_count_where_items_have_them() -> None:
    engine = scheduler(4)
    for tenant, count, tokens in (("a", 4, 100), ("b", 4, 1)):
        engine.submit(request_of("embedding", {}, items(tenant, count, tokens=tokens), tenant))
    assert engine.batch()
    assert engine._fairness.in_turn() == ["b", "a"]


def test_what_a_tenant_was_served_while_nobody_else_was_there_does_not_count() -> None:
    engine = scheduler(1)
    engine.submit(request("a", 10))
    served(engine, 10)
    engine.submit(request("b", 10))
    engine.submit(request("a", 10))
    assert sorted(tenant for (tenant,) in served(engine, 4)) == ["a", "a", "b", "b"]


def test_tenants_that_are_gone_are_forgotten_in_the_end() -> None:
    shares = TenantFairness()
    shares.came("stays", 1)
    for n in range(3 * REMEMBERED_TENANTS):
        shares.came(f"t{n}", 1)
        shares.serve(f"t{n}", 1)
        shares.left(f"t{n}", 1)
    assert len(shares._served) <= REMEMBERED_TENANTS + 4
    assert len(shares.in_turn()) == 1


@pytest.mark.parametrize("policy", ["to", "topology", "critical_path", "po"])
def test_the_oldest_of_those_that_waited_too_long_goes_first(policy: str) -> None:
    engine = scheduler(1, policy, aging_s=5.0)
    for n, since_s in enumerate((0.0, 1.0, 2.0)):
        engine.submit(request("", query=n, remaining_s=1000.0 if n == 0 else 1.0, begun_s=10.0 - n, depth=n), since_s)
    first = engine.batch(10.0)
    assert first is not None
    assert [r.query for r in engine._queue.requests()] == [1, 2], "the one that came first is gone"


def test_what_waited_too_long_is_filled_up_with_others_like_it() -> None:
    engine = scheduler(4, aging_s=5.0)
    for n in range(3):
        engine.submit(request("", query=n), float(n))
    assert [len(batch) for batch in served(engine, 2, now_s=5.5)] == [3]


@pytest.mark.parametrize(("own", "others", "going"), [(2, 10, [1, 1, 2, 2]), (6, 10, [1] * 6), (3, 0, [1] * 3)])
def test_a_batch_beyond_the_knee_has_items_of_its_first_query_only(own: int, others: int, going: list[int]) -> None:
    engine = Scheduler(POLICIES["critical_path"], Capabilities(max_items=16), limits=Limits(), knee_items=lambda op: 4)
    for query, count in ((1, own), (2, others)):
        if count:
            engine.submit(request("", count, query=query, begun_s=float(query)))
    of = {work.item.id: r.query for r in engine._queue.requests() for work in r.items}
    batch = engine.batch()
    assert batch is not None
    assert [of[item.id] for item in batch.items] == going


def test_a_suspect_waits_for_an_instance_of_its_own_and_has_it() -> None:
    engine = Scheduler(POLICIES["to"], Capabilities(max_items=4, concurrent=True), limits=Limits(aging_s=5.0))

    def going(now_s: float) -> list[Any]:
        batch = engine.batch(now_s)
        return [] if batch is None else [item.payload for item in batch.items]

    def submit(payload: str, now_s: float, *, is_alone: bool = False) -> Item:
        item = Item(payload, id=next(IDS))
        engine.submit(request_of("embedding", {}, [item], payload, is_alone=is_alone), now_s)
        return item

    first = submit("a", 0.0)
    assert going(0.0) == ["a"]
    suspect = submit("suspect", 0.0, is_alone=True)
    second = submit("b", 1.0)
    assert going(1.0) == ["b"], "others do not wait for it"
    submit("c", 6.0)
    assert going(6.0) == [], "it has waited for long: the instance takes nothing else"
    engine.end([first.id, second.id], 7.0)
    assert going(7.0) == ["suspect"]
    assert going(7.0) == [], "nothing beside it"
    engine.end([suspect.id], 8.0)
    assert going(8.0) == ["c"]


# --- room ------------------------------------------------------------------------------------------------------------


def test_one_tenant_does_not_fill_the_queue_for_another() -> None:
    engine = scheduler(max_queued_items=10)
    engine.submit(request("a", 10))
    with pytest.raises(Overloaded, match="of tenant 'a'"):
        engine.submit(request("a", 1))
    engine.submit(request("b", 5))
    with pytest.raises(Overloaded):
        engine.submit(request("b", 1))


def test_tenants_together_hold_at_most_twice_the_bound() -> None:
    engine = scheduler(max_queued_items=4)
    engine.submit(request("a", 4))
    engine.submit(request("b", 2))
    engine.submit(request("c", 1))
    engine.submit(request("d", 1))
    with pytest.raises(Overloaded):
        engine.submit(request("e", 1))


def test_who_is_refused_is_told_when_to_come_back() -> None:
    engine = scheduler(1, max_queued_items=4)
    engine.submit(request("", 4))
    for n in range(2):
        assert engine.batch(2.0 * n)
        engine.end(list(engine.works), 2.0 * (n + 1))
    engine.batch(4.0)
    with pytest.raises(Overloaded) as refused:
        engine.submit(request("", 4))
    assert refused.value.retry_after_s == pytest.approx(2 * 2.0)


def test_a_pace_is_of_what_ended_lately() -> None:
    pace = Throughput()
    assert pace.needs_s(100) == AT_LEAST_S
    pace.begin(10.0)
    for n in range(200):
        pace.end(1, 10.0 + 0.5 * (n + 1))
    assert pace.needs_s(4) == pytest.approx(2.0)
    pace.begin(1000.0)  # it was idle for long
    pace.end(1, 1000.5)
    assert pace.needs_s(4) == pytest.approx(2.0)


def test_the_time_in_which_nothing_was_asked_is_no_part_of_the_pace() -> None:
    engine = scheduler(1)
    for begun_s in (0.0, 100.0):
        engine.submit(request(""), begun_s)
        batch = engine.batch(begun_s)
        assert batch is not None
        engine.end([item.id for item in batch.items], begun_s + 1.0)
    engine.submit(request("", 10), 200.0)
    assert engine.drained_in_s() == pytest.approx(10.0)


# --- the door --------------------------------------------------------------------------------------------------------


def entered(door: Admission, *tenants: str) -> list[bool]:
    found = []
    for tenant in tenants:
        try:
            door.enter(Terms(tenant), 0.0)
        except Overloaded:
            found.append(False)
        else:
            found.append(True)
    return found


def test_a_door_lets_in_as_many_as_may_run_and_those_who_find_their_share() -> None:
    door = Admission(4)
    assert entered(door, *"aaaaa") == [True] * 4 + [False]
    assert entered(door, *"bbb") == [True, True, False], "half is its share"
    assert entered(door, *"cc") == [True, False]
    assert entered(door, *"dd") == [True, False]
    assert entered(door, "e") == [False], "twice as many as may run are inside"
    assert door.inside == 8
    door.leave(Terms("a"), 1.0)
    assert door.inside == 7


def test_a_place_that_is_left_is_free() -> None:
    door = Admission(1)
    for n in range(3):
        assert entered(door, "a", "a") == [True, False]
        door.leave(Terms("a"), float(n))
    assert door.inside == 0


def test_a_query_that_could_not_end_in_time_is_not_let_in() -> None:
    door = Admission(10)
    door.enter(ANYBODY, 0.0)
    door.leave(ANYBODY, 4.0)
    door.enter(ANYBODY, 4.0)
    with pytest.raises(Overloaded, match="before its deadline"):
        door.enter(Terms("", 4.0 + 7.0), 4.0)
    door.enter(Terms("", 4.0 + 9.0), 4.0)


def test_a_host_that_drains_waits_for_those_inside_and_lets_nobody_in() -> None:
    door = Admission()
    door.enter(ANYBODY, 0.0)
    assert door.drain(0.01) == 1
    assert entered(door, "a") == [False]
    left: list[int] = []
    draining = threading.Thread(target=lambda: left.append(door.drain(30)))
    draining.start()
    time.sleep(0.05)
    assert left == []
    door.leave(ANYBODY, 1.0)
    draining.join()
    assert left == [0]
    door.reopen()
    assert entered(door, "a") == [True]


# --- terms -----------------------------------------------------------------------------------------------------------


def test_terms_hold_inside_and_no_longer() -> None:
    with terms(tenant="a", deadline_s=100) as outer:
        with terms(deadline_s=1000) as inner:
            assert inner == outer, "an inner deadline cannot be later"
        with terms(tenant="b", deadline_s=1) as inner:
            assert inner.tenant == "b"
            assert inner.deadline_s < outer.deadline_s
        assert current_terms() == outer
        with terms(tenant=""):
            assert current_terms().tenant == ""
    assert current_terms() == ANYBODY


@pytest.mark.parametrize("deadline_s", [0, -1.0, math.nan])
def test_a_deadline_that_has_passed_is_refused(deadline_s: float) -> None:
    with pytest.raises(TeolaError, match="seconds from now"), terms(deadline_s=deadline_s):
        pass


# --- instances -------------------------------------------------------------------------------------------------------


def instances(count: int, **capabilities: Any) -> Replicas:
    return Replicas(Capabilities(**{"max_items": 4, "concurrent": True, **capabilities}), count)


def put(where: Replicas, at: int, *, query: int = 1, payload: Any = "x", **more: Any) -> WorkItem:
    (work,) = request_of("decoding", {}, [Item(payload, id=next(IDS), **more)], query).items
    where.start(at, [work], query, is_alone=False)
    return work


def best(where: Replicas, payload: str = "x", query: int = 99, **more: Any) -> int | None:
    return where.best(Item(payload, id=next(IDS), **more), query, where.room())


def test_the_instance_with_the_least_load_is_next() -> None:
    where = instances(3)
    first = put(where, 0)
    put(where, 1)
    assert best(where) == 2
    put(where, 2)
    put(where, 2)
    where.end([first])
    assert best(where) == 0
    assert where.running_items == 3


def test_the_load_of_an_llm_is_its_tokens() -> None:
    where = instances(2, max_tokens=100)
    large = put(where, 0, tokens=80)
    for _ in range(3):
        put(where, 1, tokens=10)
    assert best(where, tokens=10) == 1
    assert best(where, tokens=75) is None, "it fits nowhere"
    where.end([large])
    assert best(where, tokens=75) == 0
    assert where.loads() == [0.0, 30.0]
    assert best(where, tokens=1000) == 0, "what never fits goes alone, and the engine says so"


def test_an_instance_that_is_down_or_leaves_gets_nothing() -> None:
    where = instances(3)
    where.mark(0, is_up=False)
    held = put(where, 2)
    where.resize(2)
    assert (where.up(), where.room(), where.count) == ([1], [0, 4, 0], 2)
    where.end([held])
    assert len(where.room()) == 2
    where.mark(0, is_up=True)
    assert where.up() == [0, 1]


def test_an_engine_with_one_batch_at_a_time_takes_turns_and_nothing_beside_a_batch() -> None:
    where = instances(2, concurrent=False)
    found = []
    for _ in range(4):
        where.next_turn()
        found.append(best(where))
    assert sorted(found[:2]) == [0, 1] == sorted(found[2:])
    where.begin_call(0)
    assert where.room() == [0, 4]
    where.end_call(0)
    put(where, 0)
    assert where.room() == [0, 4]


PREFIX = "p" * 600


def test_prompts_that_begin_alike_go_where_that_is_known_unless_it_is_much_busier() -> None:
    where = instances(2, prefix=True, max_items=8)
    put(where, 1, payload=PREFIX + "a", query=1)
    put(where, 0, payload="another", query=2)
    assert best(where, PREFIX + "b") == 1
    assert best(where, "unknown") == 0
    assert best(where, PREFIX + "b", tenant="other") == 0
    for n in range(3):
        put(where, 1, payload=f"busy {n}", query=3)
    assert best(where, PREFIX + "b") == 0


def test_the_last_slots_are_not_for_throughput_while_others_are_at_work() -> None:
    where = instances(1, max_items=4)
    slow = Urgency(objective="throughput")
    first, *_ = [put(where, 0, query=1, urgency=slow) for _ in range(3)]
    assert best(where, query=1, urgency=slow) == 0
    put(where, 0, query=2)
    where.end([first])
    assert best(where, query=1, urgency=slow) is None
    assert best(where, query=2) == 0


def test_prompts_wait_for_the_prefill_of_their_own_querys_beginning_only() -> None:
    prefixes = PrefixTracker()
    prefill, prompt, other = (
        request_of("decoding", {}, [Item(text, id=next(IDS))], query).items[0]
        for text, query in (("once upon", 1), ("once upon a time", 1), ("once upon a time", 2))
    )
    prefixes.prefill([prefill])
    assert prefixes.holds_up(prompt)
    assert not prefixes.holds_up(other)
    assert not prefixes.holds_up(prefill), "nor does it wait for itself"
    prefixes.ended([prefill])
    assert prefixes.holds_any_up, "it still waits"
    prefill.status = Status.RUNNING
    prefixes.ended([prefill])
    assert not prefixes.holds_any_up
    assert not prefixes.holds_up(prompt)


def test_tenants_have_no_beginning_in_common() -> None:
    one, same, other = (Item("x" * 600, tenant=tenant) for tenant in ("a", "a", "b"))
    assert prefix_of(one) == prefix_of(same) != prefix_of(other)


@pytest.mark.parametrize(("policy", "order"), [("topology", [1, 0]), ("critical_path", [0, 1]), ("to", [0, 0])])
def test_what_an_engine_with_a_queue_of_its_own_is_told(policy: str, order: Sequence[int]) -> None:
    shallow, deep = Urgency(1, 1.0), Urgency(5, 9.0)
    said = [PRIORITIES[policy](urgency, 0.0) for urgency in (shallow, deep)]
    assert [sorted(set(said)).index(each) for each in said] == order
