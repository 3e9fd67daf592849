"""A worker by itself: what is joined and what is not, who hears of what, and deadlines."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from teola_plugin.engines import Batch, Capabilities, Delta, Done, Emit, Failed, Item, Urgency, is_repeatable
from teola_plugin.errors import Cancelled, DeadlineExceeded, EngineClosed, EngineCrashed, EngineError, Overloaded
from teola_plugin.runtime.hosts.local import LocalHost, Query
from teola_plugin.runtime.hosts.tasks import spawn
from teola_plugin.runtime.scheduler.batching import EngineScheduler
from teola_plugin.runtime.scheduler.policies import POLICIES
from teola_plugin.runtime.scheduler.recovery import Recovery
from teola_plugin.runtime.scheduler.work_item import Attempt, Status, WorkItem
from teola_plugin.runtime.scheduler.work_table import ROOM, Counts, Deadlines, WorkTable
from teola_plugin.runtime.scheduler.worker import EngineWorker
from teola_plugin.seams import Reply
from teola_plugin.tenancy import Terms
from tests.support.by_id import request_of
from tests.support.direct_line import run
from tests.support.fakes import FakeEngine, says

GREEDY = {"temperature": 0}


class Desk:
    """A host with one engine that is held back until `go`."""

    def __init__(self, engine: FakeEngine | None = None) -> None:
        self.engine = engine or FakeEngine(concurrent=True)
        self.engine.gate = asyncio.Event()
        self.host = LocalHost(loop=asyncio.get_running_loop())

    def ask(
        self, payload: Any = "x", op: str = "embedding", settings: Any = None, *, owner: int = 1, tenant: str = "",
        left_s: float = math.inf, depth: int = 0,
    ) -> Reply:  # fmt: skip
        reply = Reply()
        by_s = asyncio.get_running_loop().time() + left_s
        self.host.submit(
            self.engine, op, [payload], settings or {}, [reply],
            query=Query(owner, Terms(tenant, by_s)), urgency=Urgency(depth),
        )  # fmt: skip
        return reply

    async def go(self) -> None:
        await asyncio.sleep(0.01)
        assert self.engine.gate
        self.engine.gate.set()
        await asyncio.sleep(0.01)

    def counts(self) -> Any:
        return self.host.counts(self.engine)


@pytest.mark.parametrize(
    ("op", "settings", "more", "times"),
    [
        ("embedding", {}, {}, 1),
        ("embedding", {}, {"owner": 2}, 1),
        ("searching", {"top_k": 3}, {"owner": 2}, 1),
        ("decoding", GREEDY, {"owner": 2}, 1),
        ("decoding", {}, {"owner": 2}, 2),
        ("decoding", {"temperature": 0.7}, {"owner": 2}, 2),
        ("ingestion", {}, {}, 2),
        ("partial_prefilling", {}, {}, 2),
        ("embedding", {}, {"payload": "y"}, 2),
        ("embedding", {}, {"settings": {"prompt": "q"}}, 2),
        ("embedding", {}, {"op": "reranking"}, 2),
        ("embedding", {}, {"tenant": "another"}, 2),
        ("searching", {"top_k": 3}, {"settings": {"top_k": 4}}, 2),
        ("decoding", GREEDY, {"settings": {**GREEDY, "stop": ["a"]}}, 2),
    ],
)
async def test_what_is_asked_for_twice_at_the_same_time(op: str, settings: Any, more: Any, times: int) -> None:
    desk = Desk()
    first = desk.ask(op=op, settings=settings)
    await asyncio.sleep(0)
    second = desk.ask(**{"op": op, "settings": settings, **more})
    await desk.go()
    assert first.outcome == Done("x")
    assert second.outcome == Done(more.get("payload", "x"))
    assert len(desk.engine.seen) == times
    assert desk.counts().joined == 2 - times


async def test_what_one_request_has_twice_is_computed_once() -> None:
    desk = Desk()
    replies = [Reply() for _ in range(3)]
    desk.host.submit(desk.engine, "embedding", ["x", "y", "x"], {}, replies)
    await desk.go()
    assert [reply.outcome for reply in replies] == [Done("x"), Done("y"), Done("x")]
    assert desk.engine.seen == ["x", "y"]
    assert desk.counts().joined == 1


async def test_what_a_refused_request_has_twice_is_refused_twice() -> None:
    desk = Desk(FakeEngine(max_items=1))
    desk.ask("first")
    replies = [Reply() for _ in range(2)]
    desk.host.submit(desk.engine, "embedding", ["x", "x"], {}, replies, gives_way=lambda: True)
    await desk.go()
    assert [type(reply.outcome.error) for reply in replies if isinstance(reply.outcome, Failed)] == [Overloaded] * 2
    assert desk.counts().refused == 2


async def test_a_search_after_a_write_is_not_joined_to_one_before() -> None:
    desk = Desk()
    before = desk.ask(op="searching")
    await asyncio.sleep(0.01)
    desk.engine.version += 1
    after = desk.ask(op="searching", owner=2)
    await desk.go()
    assert (before.outcome, after.outcome) == (Done("x"), Done("x"))
    assert desk.engine.seen == ["x", "x"]


@pytest.mark.parametrize("kind", ["remote", "is_scheduled"])
async def test_requests_to_what_others_run_are_not_joined(kind: str) -> None:
    engine = FakeEngine(concurrent=True)
    engine.capabilities = replace(engine.capabilities, **{kind: True})
    desk = Desk(engine)
    for owner in (1, 2):
        desk.ask(owner=owner)
    await desk.go()
    assert engine.seen == ["x", "x"]


async def test_a_payload_that_is_like_no_other_is_joined_to_none() -> None:
    class Odd:
        __hash__ = None  # type: ignore[assignment]

    desk = Desk(FakeEngine(lambda payload: 1, concurrent=True))
    odd = Odd()
    replies = [desk.ask(odd, owner=owner) for owner in (1, 2)]
    await desk.go()
    assert [reply.outcome for reply in replies] == [Done(1)] * 2
    assert len(desk.engine.seen) == 2


@pytest.mark.parametrize(("first_s", "second_s", "times"), [(1.0, math.inf, 2), (1.0, 5.0, 2), (5.0, 1.0, 1)])
async def test_what_ends_sooner_is_not_joined(first_s: float, second_s: float, times: int) -> None:
    desk = Desk()
    desk.ask(left_s=first_s)
    desk.ask(left_s=second_s, owner=2)
    await desk.go()
    assert len(desk.engine.seen) == times
    assert [item.deadline_s == math.inf for batch in desk.engine.batches for item in batch.items].count(True) == (
        second_s == math.inf
    )


def test_each_reader_has_the_deadline_it_came_with() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        desk = Desk()
        replies = [desk.ask(left_s=left_s, owner=n) for n, left_s in enumerate((9.0, 3.0, 6.0))]
        ended_s: dict[int, float] = {}
        for n, reply in enumerate(replies):
            reply.when_ended(lambda n=n: ended_s.__setitem__(n, loop.time()))  # type: ignore[misc]
        began_s = loop.time()
        await asyncio.sleep(7.0)
        assert len(desk.engine.seen) == 1
        assert {n: at_s - began_s for n, at_s in ended_s.items()} == pytest.approx({1: 3.0, 2: 6.0})
        assert desk.engine.aborted == []
        await asyncio.sleep(3.0)
        assert ended_s[0] - began_s == pytest.approx(9.0)
        assert all(isinstance(r.outcome, Failed) and isinstance(r.outcome.error, DeadlineExceeded) for r in replies)
        assert len(desk.engine.aborted) == 1, "now nobody waits any more"
        assert desk.counts().expired == 1

    run(work)


async def test_what_comes_late_is_not_computed() -> None:
    desk = Desk()
    late = desk.ask(left_s=-1.0)
    await desk.go()
    assert isinstance(late.outcome, Failed)
    assert isinstance(late.outcome.error, DeadlineExceeded)
    assert desk.engine.seen == []
    assert (desk.counts().taken, desk.counts().expired) == (1, 1)


async def test_who_joins_makes_an_item_as_urgent_as_it_is_itself() -> None:
    desk = Desk(FakeEngine(max_items=1))
    desk.host.use("topology")
    desk.ask("busy")
    await asyncio.sleep(0.01)
    desk.ask("a", depth=1)
    desk.ask("b", depth=5)
    desk.ask("a", depth=9, owner=1)
    await desk.go()
    assert desk.engine.seen == ["busy", "a", "b"]


async def test_a_batch_is_told_to_all_whose_items_it_held() -> None:
    desk = Desk()
    heard: list[int] = []
    for owner in (1, 2):
        desk.host.subscribe(owner, lambda ran, owner=owner: heard.append(owner))  # type: ignore[misc]
        desk.ask(owner=owner)
    await desk.go()
    assert sorted(heard) == [1, 2]
    assert len(desk.engine.seen) == 1


async def test_what_is_refused_is_told_so_and_a_guess_does_not_wait() -> None:
    engine = FakeEngine(max_items=1)
    desk = Desk(engine)
    desk.ask("busy")
    await asyncio.sleep(0.01)
    replies = [Reply(), Reply()]
    asked: list[bool] = []
    for reply, gives_way in zip(replies, (True, False), strict=True):
        desk.host.submit(
            engine, "embedding", [f"guess {gives_way}"], {}, [reply], gives_way=lambda g=gives_way: asked.append(g) or g
        )  # type: ignore[misc]
    await desk.go()
    assert asked == [True, False]
    assert isinstance(replies[0].outcome, Failed)
    assert isinstance(replies[0].outcome.error, Overloaded)
    assert replies[1].outcome == Done("guess False")
    assert desk.counts().refused == 1


async def test_whoever_comes_to_a_closed_lane_hears_so() -> None:
    desk = Desk()
    desk.ask("x")
    await asyncio.sleep(0.01)
    worker = desk.host._workers[desk.engine]
    await worker.close()
    request = request_of("embedding", {}, [Item("late", id=10**6)], 1)
    with pytest.raises(EngineClosed):
        worker.submit(desk.engine, request)
    assert worker.held is None


async def test_an_engine_that_crashes_because_it_is_closed_has_not_crashed() -> None:
    class Ending(FakeEngine):
        async def run(self, batch: Batch, emit: Emit) -> None:
            assert self.gate
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                raise EngineCrashed("its process ended") from None

    desk = Desk(Ending())
    reply = desk.ask("x")
    await asyncio.sleep(0.01)
    worker = desk.host._workers[desk.engine]
    await worker.close()
    assert isinstance(reply.outcome, Failed)
    assert worker.counts.crashes == 0


async def test_an_engine_tells_later_how_much_it_takes() -> None:
    desk = Desk(FakeEngine(max_items=1, concurrent=True))
    for n in range(3):
        desk.ask(f"{n}")
    await asyncio.sleep(0.01)
    assert len(desk.engine.seen) == 1
    desk.engine.capabilities = replace(desk.engine.capabilities, max_items=8)
    desk.ask("3")
    await asyncio.sleep(0.01)
    assert len(desk.engine.seen) == 4
    await desk.go()


async def test_an_engine_keeps_a_policy_of_its_own() -> None:
    engine = FakeEngine(concurrent=True)
    engine.policy = "po"  # type: ignore[attr-defined]
    desk = Desk(engine)
    desk.ask("x")
    await desk.go()
    worker = desk.host._workers[engine]
    assert worker.scheduler.policy is POLICIES["po"]
    desk.host.use("to")
    await asyncio.sleep(0.01)
    assert worker.scheduler.policy is POLICIES["po"]


async def test_an_abort_that_fails_ends_the_item_all_the_same() -> None:
    class Stubborn(FakeEngine):
        def abort(self, ids: Sequence[int]) -> None:
            raise RuntimeError("no")

    desk = Desk(Stubborn(concurrent=True))
    reply, other = desk.ask("x"), desk.ask("y")
    await asyncio.sleep(0.01)
    reply.cancel_unless_ended()
    await desk.go()
    assert other.outcome == Done("y")
    assert desk.counts().cancelled == 1


async def test_a_watchdog_finds_what_is_lost() -> None:
    desk = Desk()
    reply = desk.ask("x")
    await asyncio.sleep(0.01)
    worker = desk.host._workers[desk.engine]
    works = worker._table.open()
    worker.audit()
    assert desk.counts().lost == 0
    worker.scheduler.finish(works, 0.0)
    worker.audit()
    assert desk.counts().lost == 1
    assert isinstance(reply.outcome, Failed)
    await desk.go()


def test_the_watchdog_looks_while_anything_is_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("teola_plugin.runtime.hosts.local.AUDIT_S", 0.01)
    looked: list[int] = []
    enough = threading.Event()

    def audit(self: EngineWorker) -> None:
        looked.append(1)
        if len(looked) == 3:
            enough.set()

    monkeypatch.setattr(EngineWorker, "audit", audit)
    engine, host, reply = FakeEngine(), LocalHost(), Reply()
    engine.gate = asyncio.Event()
    host.submit(engine, "embedding", ["x"], {}, [reply])
    assert enough.wait(20)
    host.loop.call_soon_threadsafe(engine.gate.set)
    assert reply.result() == "x"
    host.close()


async def test_an_engine_that_cannot_close_keeps_no_other_open() -> None:
    class Stuck(FakeEngine):
        async def close(self) -> None:
            raise RuntimeError("no")

    host = LocalHost(loop=asyncio.get_running_loop())
    engines = [Stuck(), FakeEngine(), Stuck(), FakeEngine()]
    for engine in engines:
        host.submit(engine, "embedding", ["x"], {}, [reply := Reply()])
        await reply.aresult()
    await host.aclose()
    assert [engine.is_closed for engine in engines] == [False, True, False, True]


def begun(work: WorkItem, attempt: Attempt | None = None) -> Attempt:
    """An attempt that has begun on the item."""
    made = attempt or Attempt(Batch(work.request.op, {}, (work.item,)), (work,), 0.0, 0.0)
    made.engine = FakeEngine()
    work.begin(made)
    return made


# --- the table -------------------------------------------------------------------------------------------------------


class Book:
    """A table with one item, which is with an engine. `late`: when it was told that deadlines have passed."""

    def __init__(self, left_s: float = math.inf) -> None:
        loop = asyncio.get_running_loop()
        self.late: list[float] = []
        self.scheduler = EngineScheduler(POLICIES["to"], Capabilities(max_items=4, concurrent=True, abort=True))
        self.table = WorkTable("e", self.scheduler, loop, lambda: self.late.append(loop.time()))
        item = Item("x", id=1, deadline_s=loop.time() + left_s)
        request = request_of("embedding", {}, [item], 1)
        (self.work,) = request.items
        self.work.reply = self.reply = Reply()
        self.scheduler.submit(request)
        self.table.add(self.work)
        attempt = self.scheduler.next_batch()
        assert attempt
        self.attempt = begun(self.work, attempt)


async def test_what_a_former_attempt_says_frees_no_slot_of_a_later_one() -> None:
    book = Book()
    former, latest = book.attempt, begun(book.work)
    book.table.detach(1, Cancelled("nobody waits"))
    assert book.work.status is Status.CANCELLED
    book.table.free(book.work, former)
    assert book.scheduler.running_items == 1
    book.table.free(book.work, latest)
    assert book.scheduler.running_items == 0
    assert book.table.is_clear


def test_places_are_looked_at_again_once_a_deadline_has_passed() -> None:
    async def work() -> None:
        book = Book(left_s=3.0)
        await asyncio.sleep(10)
        assert book.late == [3.0]
        assert isinstance(book.reply.outcome, Failed)
        assert book.table.is_empty
        assert book.work.status is Status.EXPIRED

    run(work)


# --- recovery ---------------------------------------------------------------------------------------------------------


class Ward:
    """Two instances; the first has crashed, and does not recover so many times."""

    def __init__(self, failures: int) -> None:
        loop = asyncio.get_running_loop()
        self.tried_s: list[float] = []
        self.back_s: list[float] = []
        self.gone: list[Exception] = []
        self.counts = Counts()
        scheduler = EngineScheduler(POLICIES["to"], Capabilities(), replicas=2)
        self.tasks: set[asyncio.Task[None]] = set()
        recovery = Recovery(
            "e", scheduler, self.counts, None, spawn=lambda work: spawn(work, self.tasks),
            back=lambda: self.back_s.append(loop.time()), gone=self.gone.append,
        )  # fmt: skip

        class Patient(FakeEngine):
            async def recovered(_) -> None:
                self.tried_s.append(loop.time())
                if len(self.tried_s) <= failures:
                    raise EngineError("not yet")

        engine = Patient()
        for n in range(2):  # two of its batches tell of it
            attempt = Attempt(Batch("embedding", {}, (Item("x", id=n),), 0), (), loop.time(), loop.time())
            attempt.engine = engine
            recovery.crashed(attempt)
        self.is_up = lambda: scheduler.replicas.is_up(0)


@pytest.mark.parametrize(
    ("failures", "tried_s", "back_s"),
    [(0, [0.0], 0.0), (2, [0.0, 5.0, 35.0], 35.0), (9, [0.0, 5.0, 35.0], 155.0)],
)
def test_an_instance_is_tried_again_more_and_more_seldom(failures: int, tried_s: list[float], back_s: float) -> None:
    async def work() -> None:
        ward = Ward(failures)
        assert not ward.is_up()
        assert ward.counts.crashes == 1
        await asyncio.sleep(1000)
        assert (ward.tried_s, ward.back_s) == (tried_s, [back_s])
        assert ward.is_up()
        assert ward.gone == [], "the other one works"

    run(work)


def test_who_says_nothing_is_restarted_once_and_then_given_up() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        restarted_s: list[float] = []

        class Silent(FakeEngine):
            def restart(self) -> None:
                restarted_s.append(loop.time())

        scheduler = EngineScheduler(POLICIES["to"], Capabilities(concurrent=True))
        tasks: set[asyncio.Task[None]] = set()
        recovery = Recovery(
            "e", scheduler, counts := Counts(), 2.0, spawn=lambda work: spawn(work, tasks), back=lambda: None,
            gone=lambda error: None,
        )  # fmt: skip
        engine = Silent()
        attempts, calls = [], [asyncio.ensure_future(asyncio.sleep(1000)) for _ in range(2)]
        for n, call in enumerate(calls):
            attempt = Attempt(Batch("decoding", {}, (Item("x", id=n),)), (), loop.time(), loop.time())
            attempt.engine = engine
            attempt.task = call  # type: ignore[assignment]
            call.add_done_callback(lambda _, attempt=attempt: attempt.end())  # type: ignore[misc]
            attempts.append(attempt)
            recovery.watch(attempt)
        await asyncio.sleep(3.0)
        assert restarted_s == [2.0], "once for both"
        assert not any(attempt.is_given_up for attempt in attempts)
        attempts[0].heard_s = loop.time()
        await asyncio.sleep(1.5)
        assert [attempt.is_given_up for attempt in attempts] == [False, True]
        await asyncio.sleep(2.0)
        assert all(call.cancelled() for call in calls)
        assert (restarted_s, counts.stalls) == ([2.0], 4)

    run(work)


# --- work ------------------------------------------------------------------------------------------------------------


def work(op: str = "decoding", settings: Any = None) -> tuple[WorkItem, list[Reply]]:
    (made,) = request_of(op, settings or {}, [Item("x", id=1)], 1).items
    made.reply = Reply()
    return made, [made.reply, Reply()]


def test_who_joins_a_text_late_hears_its_beginning() -> None:
    made, (_, late) = work(settings=GREEDY)
    begun(made)
    made.tell(Delta("a"))
    WorkItem(Item("x", id=2), made.request, late).join(made)
    made.tell(Delta("b"))
    made.tell(Done(says("ab")))
    assert list(late.stream()) == ["a", "b"]


def test_a_text_that_is_written_again_is_told_on_from_where_it_was() -> None:
    made, (reply, _) = work(settings=GREEDY)
    for n in range(2):
        begun(made)
        assert made.attempts == n + 1
        for piece in ("a", "b", "c")[: n + 2]:
            made.tell(Delta(piece))
    made.tell(Done("abc"))
    assert list(reply.stream()) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("op", "settings", "is_told", "may_repeat"),
    [
        ("ingestion", {}, False, False),
        ("tool", {}, False, False),
        ("embedding", {}, False, True),
        ("decoding", {}, False, True),
        ("decoding", {}, True, False),
        ("decoding", GREEDY, True, True),
    ],
)
def test_what_may_be_tried_again(op: str, settings: Any, is_told: bool, may_repeat: bool) -> None:
    made, _ = work(op, settings)
    if is_told:
        begun(made)
        made.tell(Delta("a"))
    assert made.may_repeat is may_repeat


def test_only_greedy_generations_come_to_the_same() -> None:
    settings: list[dict[str, Any]] = [{}, {"temperature": 1.0}, {"temperature": 0.0}]
    assert [is_repeatable("decoding", each) for each in settings] == [False, False, True]
    assert is_repeatable("embedding", {"temperature": 1.0})
    assert not is_repeatable("ingestion", {})


# --- deadlines --------------------------------------------------------------------------------------------------------


def test_deadlines_ring_one_after_the_other_and_once() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        rung: list[tuple[float, list[int]]] = []
        deadlines = Deadlines(loop, lambda ids: rung.append((loop.time(), list(ids))))
        for item_id, left_s in ((1, 5.0), (2, 2.0), (3, 5.0), (4, 8.0), (5, math.inf), (6, 3.0)):
            deadlines.add(item_id, loop.time() + left_s)
        deadlines.discard(6)
        await asyncio.sleep(20)
        assert [(at_s, sorted(ids)) for at_s, ids in rung] == [(2.0, [2]), (5.0, [1, 3]), (8.0, [4])]
        assert not deadlines

    run(work)


def test_a_deadline_that_was_moved_rings_at_its_new_time() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        rung: list[tuple[float, list[int]]] = []
        deadlines = Deadlines(loop, lambda ids: rung.append((loop.time(), list(ids))))
        deadlines.add(1, 2.0)
        deadlines.add(2, 4.0)
        deadlines.discard(1)
        deadlines.add(1, 6.0)
        await asyncio.sleep(20)
        assert rung == [(4.0, [2]), (6.0, [1])]

    run(work)


def test_what_ended_long_before_its_deadline_is_not_kept() -> None:
    async def work() -> None:
        deadlines = Deadlines(asyncio.get_running_loop(), lambda ids: None)
        deadlines.add(0, 1e6)
        for item_id in range(1, 10 * ROOM):
            deadlines.add(item_id, 1e6 + item_id)
            deadlines.discard(item_id)
        assert len(deadlines) <= 2 + ROOM + 1

    run(work)
