"""An engine's service and its client by themselves: full messages, messages out of order, silence, and what is kept."""

from __future__ import annotations

import asyncio
import math
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from teola_plugin.engines import NOT_URGENT, Batch, Capabilities, Delta, Done, Failed, Item
from teola_plugin.errors import EngineError
from teola_plugin.runtime.hosts.local import LocalHost, Query
from teola_plugin.runtime.hosts.pool import EnginePool
from teola_plugin.runtime.hosts.remote import server as services
from teola_plugin.runtime.hosts.remote.client import HANG_S
from teola_plugin.runtime.hosts.remote.messages import Outcomes, SubmitRequest, packed, said, unpacked
from teola_plugin.runtime.hosts.remote.server import EngineServer
from teola_plugin.seams import Reply
from teola_plugin.tenancy import Terms
from tests.support.direct_line import DirectTransport, attached, run
from tests.support.fakes import FakeEngine, says


def asked(*payloads: Any, op: str = "embedding", owner: int = 1, tenant: str = "", **more: Any) -> SubmitRequest:
    ids = tuple(more.pop("ids", range(1, len(payloads) + 1)))
    given = {"left_s": math.inf, "age_s": 0.0, **more}
    return SubmitRequest(op, {}, ids, packed(payloads), owner, tenant, NOT_URGENT, **given)


class Desk:
    """A service with one engine."""

    def __init__(self, engine: FakeEngine | None = None) -> None:
        self.engine = engine or FakeEngine(concurrent=True, max_items=64)
        self.service = EngineServer(self.engine, LocalHost(loop=asyncio.get_running_loop()))


def test_what_one_message_does_not_hold_comes_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        desk = Desk()
        first = await desk.service.submit("a", [asked(*(f"{n}" for n in range(50)))])
        messages = [first, *[await desk.service.poll("a") for _ in range(12)]]
        told = [each for message in messages for each in message]
        assert [item_id for item_id, _ in told] == list(range(1, 51))
        assert [outcome.value for _, outcome in told] == [f"{n}" for n in range(50)]
        assert max(len(message.ids) for message in messages) == 7
        assert [m.number for m in messages if m.ids] == list(range(8))
        await desk.service.close()

    monkeypatch.setattr(services, "MAX_SAID", 7)
    run(work)


def test_many_outcomes_at_once_all_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        line = DirectTransport(lambda: FakeEngine(lambda text: says("a b c d e"), concurrent=True, max_items=64))
        remote, host = await attached(line), LocalHost(loop=asyncio.get_running_loop())
        replies = [Reply() for _ in range(20)]
        host.submit(remote, "decoding", [f"{n}" for n in range(20)], {}, replies)
        async with asyncio.timeout(100):
            assert [await reply.aresult() for reply in replies] == ["a b c d e"] * 20
        assert list(replies[7].stream()) == ["a ", "b ", "c ", "d ", "e"]

    monkeypatch.setattr(services, "MAX_SAID", 3)
    run(work)


def test_messages_are_heard_in_the_order_in_which_they_were_sent() -> None:
    async def work() -> None:
        remote = await attached(DirectTransport(FakeEngine))
        told: list[str] = []
        batch = Batch("decoding", {}, (Item("x", id=1),))
        running = asyncio.ensure_future(remote.run(batch, lambda at, outcome: told.append(str(outcome))))
        await asyncio.sleep(0)
        remote._outgoing.clear()  # what the other side says is said here
        messages = [said("e", n, [(1, Delta(f"{n}"))]) for n in range(3)] + [said("e", 3, [(1, Done("end"))])]
        for n in (0, 3, 2, 1):
            remote._take(messages[n])
        await asyncio.wait_for(running, 10)
        assert told == [str(Delta(f"{n}")) for n in range(3)] + [str(Done("end"))]

    run(work)


class Mute(DirectTransport):
    """One that never answers a call that brings work."""

    restarts = 0

    async def submit(self, requests: Sequence[SubmitRequest]) -> Outcomes:
        return await asyncio.Event().wait()  # type: ignore[return-value]

    def restart(self) -> None:
        self.restarts += 1


def test_a_process_that_says_nothing_is_ended_once() -> None:
    async def work() -> None:
        line = Mute(FakeEngine)
        remote = await attached(line)
        batch = Batch("ingestion", {}, (Item("x", id=1),))
        running = asyncio.ensure_future(remote.run(batch, lambda at, outcome: None))
        await asyncio.sleep(HANG_S - 1)
        assert line.restarts == 0
        await asyncio.sleep(2)
        assert line.restarts == 1
        with pytest.raises(EngineError, match="did not answer"):
            await running

    run(work)


def test_an_answer_of_before_a_break_is_not_heard() -> None:
    async def work() -> None:
        line = DirectTransport(FakeEngine, delay_s=1.0)
        remote, host = await attached(line), LocalHost(loop=asyncio.get_running_loop())
        reply = Reply()
        host.submit(remote, "embedding", ["x"], {}, [reply])
        await asyncio.sleep(1.5)  # the answer is on its way
        before = remote._epoch
        remote._break(ConnectionError("gone"))
        await asyncio.sleep(0.7)
        assert remote._epoch == before == ""
        assert await asyncio.wait_for(reply.aresult(), 100) == "x"
        assert line.service is not None
        assert line.service.engine.seen == ["x", "x"]

    run(work)


def test_the_age_and_the_tenant_of_a_query_come_along() -> None:
    async def work() -> None:
        engine = FakeEngine(concurrent=True)
        line = DirectTransport(lambda: engine, delay_s=0.5)
        remote, host = await attached(line), LocalHost(loop=asyncio.get_running_loop())
        await asyncio.sleep(100)
        now_s = asyncio.get_running_loop().time()
        reply = Reply()
        host.submit(remote, "embedding", ["x"], {}, [reply], query=Query(1, Terms("acme", now_s + 50), now_s - 30))  # type: ignore[arg-type]
        await reply.aresult()
        (item,) = engine.batches[0].items
        assert item.tenant == "acme"
        assert item.begun_s == pytest.approx(now_s - 30 + 0.5, abs=0.1)
        assert item.deadline_s == pytest.approx(now_s + 50 + 0.5, abs=0.1)

    run(work)


@pytest.mark.parametrize("has_prefix", [True, False])
def test_the_other_side_hears_of_the_end_of_a_query_where_it_may_keep_something(has_prefix: bool) -> None:
    async def work() -> None:
        engine = FakeEngine(concurrent=True)
        engine.capabilities = Capabilities(prefix=has_prefix, concurrent=True)
        line = DirectTransport(lambda: engine)
        remote, host = await attached(line), LocalHost(loop=asyncio.get_running_loop())
        reply = Reply()
        host.submit(remote, "embedding", ["x"], {}, [reply], query=Query(7))
        await reply.aresult()
        host.release(7)
        await asyncio.sleep(1)
        assert ("release" in line.calls) is has_prefix
        if has_prefix:
            assert engine.released == [("a", 7)]

    run(work)


def test_queries_of_two_clients_are_two_though_they_have_one_number() -> None:
    async def work() -> None:
        desk = Desk()
        desk.engine.gate = asyncio.Event()
        calls = [desk.service.submit(client, [asked("x", op="decoding", owner=1)]) for client in ("a", "b")]
        asyncio.get_running_loop().call_later(0.1, desk.engine.gate.set)
        assert [list(message) for message in await asyncio.gather(*calls)] == [[(1, Done("x"))]] * 2
        owners = {item.owner for batch in desk.engine.batches for item in batch.items}
        assert owners == {("a", 1), ("b", 1)}
        await desk.service.release("a", 1)
        await asyncio.sleep(0.1)
        assert desk.engine.released == [("a", 1)]
        await desk.service.leave("b")
        await asyncio.sleep(0.1)
        assert desk.engine.released == [("a", 1), ("b", 1)]
        await desk.service.close()

    run(work)


def test_a_client_that_leaves_waits_for_nothing_and_one_that_polls_lives_on() -> None:
    async def work() -> None:
        desk = Desk()
        desk.engine.gate = asyncio.Event()
        calls = [
            asyncio.ensure_future(desk.service.submit(client, [asked("x", op="decoding")])) for client in ("a", "b")
        ]
        await asyncio.sleep(0.1)
        await desk.service.leave("a")
        await asyncio.sleep(0.1)
        assert (desk.service.open_items, len(desk.engine.aborted)) == (1, 1)
        for _ in range(20):
            await asyncio.sleep(1)
            await desk.service.poll("b")
        assert desk.service.open_items == 1, "who polls is alive"
        asyncio.get_running_loop().call_later(0.1, desk.engine.gate.set)
        assert list(await desk.service.poll("b")) == [(1, Done("x"))]
        assert [list(await call) for call in calls[1:]] == [[]], "that call came back long ago"
        await desk.service.close()

    run(work)


@pytest.mark.parametrize("is_busy", [True, False])
def test_how_busy_an_engine_is_is_told(is_busy: bool) -> None:
    async def work() -> None:
        desk = Desk(FakeEngine(concurrent=True, max_items=4))
        desk.engine.gate = asyncio.Event()
        texts = [f"{n}" for n in range(9 if is_busy else 1)]
        call = asyncio.ensure_future(desk.service.submit("a", [asked(*texts)]))
        await asyncio.sleep(0.1)
        message = await desk.service.poll("a")
        assert message.is_saturated is is_busy
        desk.engine.gate.set()
        await call
        await desk.service.close()

    run(work)


# --- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        [np.zeros(2, np.float32), np.ones(3, np.float32)],
        [np.zeros(2, np.float32), np.ones(2, np.float64)],
        [np.zeros(2, np.float32), "text"],
        ["text", np.zeros(2, np.float32)],
        [np.zeros(2, np.float32)] * 2,
        [np.array([None, 1], dtype=object)] * 2,
        [],
    ],
    ids=repr,
)
def test_values_arrive_as_they_were_sent(values: list[Any]) -> None:
    found = unpacked(pickle.loads(pickle.dumps(packed(values))))
    assert len(found) == len(values)
    for each, value in zip(found, values, strict=True):
        assert type(each) is type(value)
        assert getattr(each, "dtype", None) == getattr(value, "dtype", None)
        assert np.array_equal(each, value)
    arrays = [each for each in found if isinstance(each, np.ndarray)]
    assert all(each.flags.owndata for each in arrays), "whoever gets one may change it"


class Unpicklable(Exception):
    """Its pickle can be made, and not be read."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("takes two")


def test_an_error_that_does_not_come_back_from_its_pickle_says_the_same() -> None:
    message = pickle.loads(pickle.dumps(said("e", 0, [(1, Failed(Unpicklable(1, 2))), (2, Done(5))])))
    (_, error), (_, value) = message
    assert isinstance(error.error, EngineError)
    assert str(error.error) == "Unpicklable: takes two"
    assert value == Done(5)


def test_a_pool_runs_each_batch_where_it_is_meant_to_and_is_no_scheduler() -> None:
    async def work() -> None:
        engines = [FakeEngine(), FakeEngine()]
        for engine in engines:
            engine.capabilities = Capabilities(is_scheduled=True, max_items=5)
        pool = EnginePool("pool", engines)
        assert (pool.capabilities.is_scheduled, pool.capabilities.max_items) == (False, 5)
        assert pool.capabilities is pool.capabilities
        await pool.run(Batch("embedding", {}, (Item("x", id=1),), 1), lambda at, outcome: None)
        pool.abort([1])
        pool.release(3)
        assert [engine.seen for engine in engines] == [[], ["x"]]
        assert [engine.aborted for engine in engines] == [[1], [1]]
        assert [engine.released for engine in engines] == [[3], [3]]
        await pool.close()
        assert all(engine.is_closed for engine in engines)

    run(work)
