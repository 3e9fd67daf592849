"""Values that go from one engine in another process straight to the next: what it saves, and what may go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from teola_plugin.engines import NOT_URGENT, Batch, Done, Emit, Item, Place
from teola_plugin.graph import parse
from teola_plugin.plan import make_plan
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.hosts.remote import server as services
from teola_plugin.runtime.hosts.remote.client import HANDED_ON_S, RemoteEngine
from teola_plugin.runtime.hosts.remote.forwarding import Expected
from teola_plugin.runtime.hosts.remote.messages import Asked
from teola_plugin.runtime.session.ancestry import sights_of
from teola_plugin.runtime.session.followers import followers_of
from teola_plugin.runtime.session.graph_runner import run_query
from teola_plugin.runtime.session.plan_executor import Prepared
from teola_plugin.tenancy import Terms
from teola_plugin.trace import Function
from tests.direct_line import DirectLine, attached, run
from tests.fakes import FakeEngine, says

HOP_S = 0.125
WORK_S = 5.0
CHAIN = """
inputs(question)
kv = prefilling(question) @ llm
text = decoding(kv, max_tokens=8) @ llm
vector = embedding(text) @ embedder
hits = searching(vector, top_k=3) @ store
outputs(hits)
"""
MANY = """
inputs(texts=[])
vectors: [] = embedding(*texts) @ embedder
hits: [] = searching(*vectors, top_k=3) @ store
outputs(hits)
"""


class Slow(FakeEngine):
    """Takes `WORK_S` for a batch, and notes when each began."""

    def __init__(self, answer: Callable[[Any], Any] = str, **more: Any) -> None:
        super().__init__(answer, **more)
        self.work_s = WORK_S
        self.began_s: list[float] = []

    async def run(self, batch: Batch, emit: Emit) -> None:
        self.began_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.work_s)
        await super().run(batch, emit)


@pytest.fixture(autouse=True)
def _someone_always_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """News does not wait for the next poll."""
    monkeypatch.setattr(services, "POLL_S", 25.0)


@dataclass
class World:
    """Three engines, each behind a line of its own, and a client."""

    engines: dict[str, Slow]
    lines: dict[str, DirectLine]
    remotes: dict[str, RemoteEngine]
    host: LocalHost

    async def ask(self, text: str, inputs: dict[str, Any], terms: Terms | None = None) -> tuple[dict[str, Any], float]:
        """The outputs, and what they took. The engines have heard of the client before."""
        specs = {name: FakeEngine.spec.fget(remote) for name, remote in self.remotes.items()}  # type: ignore[attr-defined]
        prepared = Prepared(make_plan(parse(text)), {"upper": Function(str.upper)}, specs)
        started_s = asyncio.get_running_loop().time()
        outputs = await run_query(self.host, prepared, inputs, **({"terms": terms} if terms else {}))
        return outputs, asyncio.get_running_loop().time() - started_s


async def made(*, hop_s: float = HOP_S, hands_on: bool = True) -> World:
    engines = {
        "llm": Slow(lambda prompt: says(f"{prompt}, said"), concurrent=True),
        "embedder": Slow(lambda text: f"<{text}>"),
        "store": Slow(lambda vector: [f"near {vector}"]),
    }
    lines = {name: DirectLine(lambda engine=engine: engine, delay_s=hop_s) for name, engine in engines.items()}  # type: ignore[misc]
    if hands_on:
        by_id = {id(line): line for line in lines.values()}
        for line in lines.values():
            line.others = by_id
    remotes = {name: await attached(line) for name, line in lines.items()}
    return World(engines, lines, remotes, LocalHost(loop=asyncio.get_running_loop()))


def test_a_chain_of_engines_waits_for_no_client() -> None:
    async def work() -> None:
        straight, around = await made(), await made(hands_on=False)
        outputs, took_s = await straight.ask(CHAIN, {"question": "bees"})
        others, around_s = await around.ask(CHAIN, {"question": "bees"})
        assert outputs == others == {"hits": ["near <bees, said>"]}
        assert took_s == pytest.approx(3 * WORK_S + 4 * HOP_S)  # client, LLM, embedder, store, client
        assert around_s >= 3 * WORK_S + 6 * HOP_S  # there and back each; the pieces of the text come before it
        assert [len(engine.seen) for engine in straight.engines.values()] == [1, 1, 1]

    run(work)


def test_a_batch_goes_on_as_one() -> None:
    async def work() -> None:
        world = await made()
        outputs, took_s = await world.ask(MANY, {"texts": ["a", "b", "c"]})
        assert outputs == {"hits": [["near <a>"], ["near <b>"], ["near <c>"]]}
        assert took_s == pytest.approx(2 * WORK_S + 3 * HOP_S)
        assert [len(batch.items) for batch in world.engines["store"].batches] == [3]

    run(work)


def test_settings_tenant_deadline_and_urgency_go_along() -> None:
    async def work() -> None:
        world = await made()
        now_s = asyncio.get_running_loop().time()
        await world.ask(MANY, {"texts": ["a"]}, Terms("acme", now_s + 100))
        (batch,) = world.engines["store"].batches
        (item,) = batch.items
        assert batch.settings == {"top_k": 3}
        assert (item.tenant, item.deadline_s) == ("acme", pytest.approx(now_s + 100, abs=3 * HOP_S))
        assert item.urgency.depth == 1
        assert item.begun_s == pytest.approx(now_s, abs=3 * HOP_S)

    run(work)


@pytest.mark.parametrize("fault", ["lost", "late", "twice", "refused"])
def test_what_is_handed_on_may_go_wrong(fault: str) -> None:
    async def work() -> None:
        world = await made()
        store = world.lines["store"]
        assert store.service
        really = store.service.given

        async def given(client: str, requests: Sequence[Asked]) -> None:
            if fault == "refused":
                raise ConnectionError("the process is gone")
            if fault == "late":
                await asyncio.sleep(2)
                await really(client, requests)
            if fault == "twice":
                await really(client, requests)
                await really(client, requests)

        store.service.given = given  # type: ignore[method-assign]
        outputs, took_s = await world.ask(MANY, {"texts": ["a", "b"]})
        assert outputs == {"hits": [["near <a>"], ["near <b>"]]}
        late_s = 0 if fault == "twice" else HANDED_ON_S + HOP_S
        assert took_s == pytest.approx(2 * WORK_S + 3 * HOP_S + late_s)
        await asyncio.sleep(60)
        assert len(world.engines["store"].seen) == 2

    run(work)


def test_the_next_engine_restarts_with_what_it_was_given() -> None:
    async def work() -> None:
        world = await made()
        asking = asyncio.ensure_future(world.ask(MANY, {"texts": ["a"]}))
        await asyncio.sleep(WORK_S + 2 * HOP_S + WORK_S / 2)
        assert len(world.engines["store"].began_s) == 1
        world.lines["store"].restart()
        outputs, _ = await asking
        assert outputs == {"hits": [["near <a>"]]}
        assert len(world.engines["store"].began_s) == 2

    run(work)


def test_an_error_of_the_next_engine_is_the_querys() -> None:
    async def work() -> None:
        world = await made()

        def fail(vector: Any) -> Any:
            raise ValueError(f"{vector} is no vector")

        world.engines["store"].answer = fail
        with pytest.raises(ValueError, match="<a> is no vector"):
            await world.ask(MANY, {"texts": ["a"]})
        assert len(world.engines["store"].seen) == 1

    run(work)


def test_the_first_of_many_may_wait_long_for_the_last() -> None:
    """It is let go of meanwhile, and asked for again: nobody hears of that."""

    async def work() -> None:
        world = await made()
        world.engines["embedder"].capabilities = replace(world.engines["embedder"].capabilities, max_items=1)
        world.engines["store"].work_s = 12.0
        outputs, _ = await world.ask(MANY, {"texts": ["a", "b", "c"]})
        assert outputs == {"hits": [["near <a>"], ["near <b>"], ["near <c>"]]}

    run(work)


def test_what_is_expected_and_no_longer_wanted_is_stopped() -> None:
    async def work() -> None:
        world = await made()
        asking = asyncio.ensure_future(world.ask(MANY, {"texts": ["a"]}))
        await asyncio.sleep(WORK_S + 2.5 * HOP_S)  # the vector is here, and the search has begun
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.sleep(2 * HOP_S)
        assert world.engines["store"].aborted
        await asyncio.sleep(2 * HANDED_ON_S)
        assert "submit" not in world.lines["store"].calls
        assert not world.remotes["store"]._unsent

    run(work)


def test_who_expects_twice_forgets_nothing() -> None:
    expected, place = Expected(), Place("hits", (0,))
    expected.add(1, [place])
    assert expected.hear(1, place, Done("found")) is None
    expected.add(1, [place, Place("hits", (1,))])
    assert expected.take([Item("v", owner=1, id=5, place=place)]) == ({0: Done("found")}, set())
    assert expected.hear(1, Place("hits", (1,)), Done("too")) is None
    assert not expected


def test_nothing_is_kept_once_the_query_is_over() -> None:
    async def work() -> None:
        world = await made()
        await world.ask(MANY, {"texts": ["a", "b"]})
        asking = asyncio.ensure_future(world.ask(CHAIN, {"question": "never"}))
        await asyncio.sleep(HOP_S)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not any(remote._handed_on for remote in world.remotes.values())
        polls = [len(line.calls) for line in world.lines.values()]
        await asyncio.sleep(2 * services.LEASE_S)
        for line, before in zip(world.lines.values(), polls, strict=True):
            assert line.service
            assert not line.service._clients
            assert len(line.calls) <= before + 2  # and nobody polls

    run(work)


def test_what_nobody_asked_for_is_cancelled() -> None:
    async def work() -> None:
        world = await made()
        store = world.engines["store"]
        store.gate = asyncio.Event()
        service = world.lines["store"].service
        assert service
        await service.poll("a")
        await service.given("a", [Asked("searching", {}, (), ["v"], 7, "", NOT_URGENT, 60.0, 0.0, "hits", ((0,),))])
        await asyncio.sleep(services.LEASE_S)
        assert store.aborted

    run(work)


FOLLOWED = "inputs(x, xs=[]); {}; outputs(b)"


@pytest.mark.parametrize(
    ("graph", "followers"),
    [
        ("a = embedding(x) @ e; b = searching(a) @ s", {"a": ["b"]}),
        ("a: [] = embedding(*xs) @ e; b: [] = searching(*a) @ s", {"a": ["b"]}),
        ("a: [] = embedding(*xs) @ e; c: [] = searching(*a) @ s; b: [] = searching(*a) @ t", {"a": ["c", "b"]}),
        ("a: [] = embedding(*xs) @ e; b = reranking(a) @ r", {}),  # the list, not its items
        ("a: [] = embedding(*xs) @ e; b: [] = searching(*a, x) @ s", {}),  # another argument
        ("w = ingestion(x) @ s, writes(k); a = embedding(x) @ e; b = searching(a) @ s, reads(k), after(w)", {}),
        ("a: [] = embedding(*xs) @ e; b: [] = call(*a, fn='upper') @ python", {}),
        ("a = embedding(x) @ pipeline; b = searching(a) @ s", {}),
        ("c = condition(x, fn='upper') @ python; a = embedding(x) @ e; b = searching(a) @ s, when(c)", {}),
        ("a = embedding(x) @ e; b = searching(a, ahead=True) @ s", {}),  # perhaps nobody wants it
    ],
)  # fmt: skip
def test_who_follows(graph: str, followers: dict[str, list[str]]) -> None:
    plan = make_plan(parse(FOLLOWED.format(graph).replace("; ", "\n")))
    assert {name: [p.name for p in each] for name, each in followers_of(plan, sights_of(plan)).items()} == followers
