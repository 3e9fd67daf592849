"""An engine behind a line, without a transport: client and service on one loop, in virtual time."""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import sys
import threading
import time
import types
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from teola_plugin import runtime
from teola_plugin.engines import NOT_URGENT, Batch, Completion, Delta, Done, Emit, Failed, Outcome
from teola_plugin.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineClosed,
    EngineCrashed,
    EngineError,
    Overloaded,
    Poisoned,
)  # fmt: skip
from teola_plugin.profile import Profile
from teola_plugin.registry import EngineConfig
from teola_plugin.runtime.engines.build import build
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM
from teola_plugin.runtime.hosts import limits, selection
from teola_plugin.runtime.hosts.local import LocalHost, Query
from teola_plugin.runtime.hosts.pool import EnginePool
from teola_plugin.runtime.hosts.ray import cluster, engines, transport
from teola_plugin.runtime.hosts.ray.actor import EngineActor
from teola_plugin.runtime.hosts.ray.transport import RayTransport
from teola_plugin.runtime.hosts.remote import server as services
from teola_plugin.runtime.hosts.remote.client import RemoteEngine
from teola_plugin.runtime.hosts.remote.messages import EngineInfo, SubmitRequest, said
from teola_plugin.runtime.hosts.remote.server import EngineServer
from teola_plugin.seams import Reply
from teola_plugin.tenancy import Terms
from tests.support.direct_line import DirectTransport, attached, run
from tests.support.fakes import FakeEngine, says


def ask(host: LocalHost, engine: Any, payloads: Sequence[Any], op: str = "embedding", **more: Any) -> list[Reply]:
    replies = [Reply() for _ in payloads]
    host.submit(engine, op, payloads, more.pop("settings", {}), replies, **more)
    return replies


async def results(replies: Sequence[Reply]) -> list[Any]:
    return await asyncio.gather(*(reply.aresult() for reply in replies), return_exceptions=True)


def test_two_clients_share_batches() -> None:
    async def work() -> None:
        engine = FakeEngine(max_items=8)
        lines = [DirectTransport(lambda: engine, client=name) for name in "ab"]
        remotes = [await attached(lines[0])]
        lines[1].service = lines[0].service
        remotes.append(await attached(lines[1]))
        hosts = [LocalHost(loop=asyncio.get_running_loop()) for _ in remotes]
        engine.gate = asyncio.Event()
        first = ask(hosts[0], remotes[0], ["warm"])
        await asyncio.sleep(1)
        asked = [ask(h, r, [f"{h is hosts[0]} {i}" for i in range(3)]) for h, r in zip(hosts, remotes, strict=True)]
        await asyncio.sleep(1)
        engine.gate.set()
        assert sorted(await results([*first, *asked[0], *asked[1]])) == sorted(engine.seen)
        assert [len(batch.items) for batch in engine.batches] == [1, 6]

    run(work)


def test_a_batch_reaches_one_of_several_instances_as_one_call() -> None:
    async def work() -> None:
        fakes = [FakeEngine(name=f"e/{i}", max_items=8) for i in range(2)]
        children = [await attached(DirectTransport(lambda fake=fake: fake, client="head")) for fake in fakes]
        for fake in fakes:
            fake.gate = asyncio.Event()
        head = DirectTransport(lambda: EnginePool("e", children))
        remote, host = await attached(head), LocalHost(loop=asyncio.get_running_loop())
        owners = [Query(owner=i) for i in range(1, 5)]
        asked = [ask(host, remote, [f"{q.owner}{i}" for i in range(4)], query=q)[:] for q in owners]
        await asyncio.sleep(1)
        for fake in fakes:
            fake.gate.set()
        assert await results([r for replies in asked for r in replies]) == [
            f"{o}{i}" for o in range(1, 5) for i in range(4)
        ]
        assert [[len(b.items) for b in fake.batches] for fake in fakes] == [[8], [8]]

    run(work)


def test_instances_share_what_was_asked_at_once_by_its_length() -> None:
    async def work() -> None:
        fakes = [FakeEngine(name=f"e/{i}", max_items=2, pads=True) for i in range(2)]
        children = [await attached(DirectTransport(lambda fake=fake: fake, client="head")) for fake in fakes]
        remote, host = (
            await attached(DirectTransport(lambda: EnginePool("e", children))),
            LocalHost(loop=asyncio.get_running_loop()),
        )
        texts = ["a", "long text", "bc", "a longer text"]
        assert await results(ask(host, remote, texts)) == texts
        assert sorted(fake.seen for fake in fakes) == [["a longer text", "long text"], ["bc", "a"]]

    run(work)


def test_no_instance_gets_more_than_its_kv_cache_holds() -> None:
    """A prompt of 80 characters is taken for 40 tokens and 16 of answer; afterwards for what it was."""

    async def work() -> None:
        text = Completion("a b", pieces=("a ", "b"), prompt_tokens=20)
        fakes = [FakeEngine(lambda _: text, name=f"llm/{i}", concurrent=True) for i in range(2)]
        for fake in fakes:
            fake.capabilities = replace(fake.capabilities, max_tokens=128)
            fake.gate = asyncio.Event()
        children = [await attached(DirectTransport(lambda fake=fake: fake, client="head")) for fake in fakes]
        remote, host = (
            await attached(DirectTransport(lambda: EnginePool("llm", children))),
            LocalHost(loop=asyncio.get_running_loop()),
        )
        replies = ask(host, remote, ["x" * 80] * 5, "decoding", settings={"temperature": 1})
        await asyncio.sleep(1)
        assert [len(fake.seen) for fake in fakes] == [2, 2]
        before = children[0].kv_tokens("decoding", "x" * 80, {})
        for fake in fakes:
            fake.gate.set()
        assert await results(replies) == ["a b"] * 5
        assert children[0].kv_tokens("decoding", "x" * 80, {}) < before == 57

    run(work)


def test_streams_arrive_in_order_and_end() -> None:
    async def work() -> None:
        remote = await attached(DirectTransport(lambda: FakeEngine(lambda _: says("one two three"), concurrent=True)))
        host = LocalHost(loop=asyncio.get_running_loop())
        (reply,) = ask(host, remote, ["x"], "decoding")
        pieces = [piece async for piece in reply.astream()]
        assert pieces == ["one ", "two ", "three"]
        assert isinstance(reply.result(), Completion)
        assert reply.result().pieces == ("one ", "two ", "three")

    run(work)


def test_pure_work_survives_a_crash_and_texts_are_told_once() -> None:
    async def work() -> None:
        made: list[ProfileLLM] = []

        def make() -> ProfileLLM:
            from teola_plugin.profile import PAPER_LLM

            made.append(ProfileLLM("llm", PAPER_LLM["7b"]))
            return made[-1]

        line = DirectTransport(make)
        remote, host = await attached(line), LocalHost(loop=asyncio.get_running_loop())
        greedy = {"max_tokens": 40, "temperature": 0}
        whole = (await results(ask(host, remote, ["tell"], "decoding", settings=greedy)))[0]
        (reply,) = ask(host, remote, ["tell"], "decoding", settings=greedy)
        heard: list[str] = []
        reply.listen(lambda outcome: heard.append(outcome.text) if isinstance(outcome, Delta) else None)
        await asyncio.sleep(0.5)
        assert 0 < len(heard) < 40
        line.restart()
        assert await results([reply]) == [whole]
        assert "".join(heard) == whole
        assert len(made) == 2
        assert host.counts(remote).repeated == 1

    run(work)


@pytest.mark.parametrize(("op", "settings"), [("ingestion", {}), ("decoding", {"max_tokens": 40})])
def test_what_cannot_be_repeated_fails_with_the_crash(op: str, settings: dict[str, Any]) -> None:
    async def work() -> None:
        engine = FakeEngine(lambda _: says("one two three"), concurrent=True)
        line = DirectTransport(lambda: engine)
        remote, host = await attached(line), LocalHost(loop=asyncio.get_running_loop())
        (reply,) = ask(host, remote, ["x"], op, settings=settings)
        heard = asyncio.Event()
        reply.listen(lambda outcome: heard.set())
        if op == "decoding":
            await heard.wait()
        else:
            engine.gate = asyncio.Event()
            await asyncio.sleep(0.1)
        line.restart()
        assert [type(found) for found in await results([reply])] == [EngineCrashed]

    run(work)


def test_whoever_crashes_it_each_time_is_poisoned_and_its_mates_are_not() -> None:
    async def work() -> None:
        line = DirectTransport(lambda: engine_of(line))
        line.restart_s = 0.1
        remote, host = await attached(line), LocalHost(loop=asyncio.get_running_loop())
        found = await results(ask(host, remote, ["a", "bad", "b"]))
        assert (found[0], type(found[1]), found[2]) == ("a", Poisoned, "b")

    run(work)


def engine_of(line: DirectTransport) -> FakeEngine:
    class Crashing(FakeEngine):
        async def run(self, batch: Batch, emit: Emit) -> None:
            if "bad" in [item.payload for item in batch.items]:
                line.restart()
                await asyncio.Event().wait()
            await super().run(batch, emit)

    return Crashing()


def test_another_model_under_the_name_is_not_taken_for_it() -> None:
    async def work() -> None:
        line = DirectTransport(lambda: FakeEngine())
        remote, host = await attached(line), LocalHost(loop=asyncio.get_running_loop())
        assert await results(ask(host, remote, ["a"])) == ["a"]
        line.identity = "other"
        line.restart()
        (found,) = await results(ask(host, remote, ["b"]))
        assert isinstance(found, EngineError)
        assert "another model" in str(found)

    run(work)


def test_a_cancelled_item_is_cancelled_over_there() -> None:
    async def work() -> None:
        engine = FakeEngine(concurrent=True)
        line = DirectTransport(lambda: engine)
        remote, host = await attached(line), LocalHost(loop=asyncio.get_running_loop())
        engine.gate = asyncio.Event()
        (reply,) = ask(host, remote, ["x"], "decoding")
        await asyncio.sleep(1)
        reply.cancel_unless_ended()
        await asyncio.sleep(1)
        assert len(engine.aborted) == 1
        assert line.service is not None
        assert line.service.open_items == 0
        assert [type(found) for found in await results([reply])] == [Cancelled]

    run(work)


def test_the_deadline_travels_as_a_duration() -> None:
    async def work() -> None:
        engine = ProfileEmbedding(4, Profile.affine(5.0))
        line = DirectTransport(lambda: engine)
        remote, host = await attached(line), LocalHost(loop=asyncio.get_running_loop())
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        (reply,) = ask(host, remote, ["x"], query=Query(1, Terms("t", begun_s + 1.0), begun_s))
        assert [type(found) for found in await results([reply])] == [DeadlineExceeded]
        assert loop.time() == pytest.approx(begun_s + 1.0)

    run(work)


def test_the_work_of_a_client_that_is_gone_ends() -> None:
    async def work() -> None:
        engine = FakeEngine(concurrent=True)
        engine.gate = asyncio.Event()
        line = DirectTransport(lambda: engine)
        await line.hello()
        await line.submit([SubmitRequest("decoding", {}, (1,), ["x"], 1, "", NOT_URGENT, math.inf, 0.0)])
        await asyncio.sleep(services.LEASE_S * 2)
        assert line.service is not None
        assert (line.service.open_items, len(engine.aborted)) == (0, 1)

    run(work)


def test_a_draining_service_ends_what_it_has_and_takes_nothing_more() -> None:
    async def work() -> None:
        engine = ProfileEmbedding(4, Profile.affine(1.0), max_items=1)
        line = DirectTransport(lambda: engine)
        remote, host = await attached(line), LocalHost(loop=asyncio.get_running_loop())
        before = ask(host, remote, ["a", "b", "c"])
        await asyncio.sleep(0.5)
        assert line.service is not None
        draining = asyncio.ensure_future(line.service.drain(10))
        await asyncio.sleep(0)
        (late,) = await results(ask(host, remote, ["d"]))
        assert isinstance(late, Overloaded)
        assert await draining == 0
        assert all(isinstance(found, np.ndarray) for found in await results(before))

    run(work)


def test_vectors_travel_as_one_array_and_arrive_as_their_readers_own() -> None:
    vectors = [np.full(3, i, dtype=np.float32) for i in range(4)]
    outcomes: list[tuple[int, Outcome]] = [(i, Done(v)) for i, v in enumerate(vectors)]
    message = said("e", 0, outcomes)
    assert len(pickle.dumps(message, protocol=5, buffer_callback=lambda _: None)) < 600
    for (item_id, outcome), vector in zip(message, vectors, strict=True):
        assert isinstance(outcome, Done)
        outcome.value[0] = 9
        assert vector[0] == item_id != 9


def test_an_error_that_cannot_travel_says_the_same() -> None:
    class Odd(Exception):
        def __init__(self, a: int, b: int) -> None:
            super().__init__(f"{a} {b}")

    ((_, outcome),) = said("e", 0, [(1, Failed(Odd(1, 2)))])
    assert isinstance(outcome, Failed)
    assert str(outcome.error) == "Odd: 1 2"
    ((_, outcome),) = said("e", 0, [(1, Failed(KeyError("x")))])
    assert isinstance(outcome, Failed)
    assert repr(outcome.error) == "KeyError('x')"


def test_an_engine_of_several_instances_in_this_process_spreads_its_batches() -> None:
    async def work() -> None:
        config = EngineConfig(
            "pool", "profile_embedding", config={"dim": 4}, profile=Profile.affine(1.0), instances=3, max_items=2,
            policy="po",
        )  # fmt: skip
        engine, host, loop = build(config), LocalHost(loop=asyncio.get_running_loop()), asyncio.get_running_loop()
        begun_s = loop.time()
        replies = [reply for i in range(6) for reply in ask(host, engine, [f"text {i}"])]
        await results(replies)
        assert loop.time() - begun_s == pytest.approx(2.0), "six requests one by one, three at a time"
        assert [len(each.stats.sizes) for each in engine.instances] == [2, 2, 2]  # type: ignore[attr-defined]

    run(work)


def test_an_engine_with_a_policy_of_its_own_keeps_it() -> None:
    async def work() -> None:
        engine, host = FakeEngine(max_items=2), LocalHost(loop=asyncio.get_running_loop())
        engine.policy = "po"  # type: ignore[attr-defined]
        host.use("to")
        await results([*ask(host, engine, ["a"]), *ask(host, engine, ["b"])])
        assert [len(batch.items) for batch in engine.batches] == [1, 1]

    run(work)


# --- breaks ----------------------------------------------------------------------------------------------------------


def one_of(item_id: int, op: str = "decoding") -> SubmitRequest:
    return SubmitRequest(op, {}, (item_id,), ["x"], 1, "", NOT_URGENT, math.inf, 0.0)


async def in_time(replies: Sequence[Reply]) -> list[Any]:
    return await asyncio.wait_for(results(replies), 600)


def test_after_a_cancelled_call_another_one_waits_for_news() -> None:
    async def work() -> None:
        engine = FakeEngine(concurrent=True)
        engine.gate = asyncio.Event()
        service = EngineServer(engine, LocalHost(loop=asyncio.get_running_loop()))
        waiting = asyncio.ensure_future(service.submit("a", [one_of(1)]))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.wait({waiting})
        asyncio.get_running_loop().call_later(1.0, engine.gate.set)
        assert (await service.poll("a")).ids == (1,)
        await service.close()

    run(work)


class SleepyLine(DirectTransport):
    """Its next call takes so long to get there."""

    asleep_s = 0.0

    async def _call(self, name: str, *args: Any) -> Any:
        asleep_s, self.asleep_s = self.asleep_s, 0.0
        await asyncio.sleep(asleep_s)
        return await super()._call(name, *args)


def test_what_a_process_asked_for_is_asked_for_again_if_it_was_taken_for_dead() -> None:
    async def work() -> None:
        engine = FakeEngine(concurrent=True)
        line = SleepyLine(lambda: engine)
        remote, host = await attached(line), LocalHost(loop=asyncio.get_running_loop())
        engine.gate = asyncio.Event()
        replies = ask(host, remote, ["x"])
        await asyncio.sleep(1)
        line.asleep_s = services.LEASE_S * 1.8
        await asyncio.sleep(services.LEASE_S * 3)
        engine.gate.set()
        assert await in_time(replies) == ["x"]
        assert host.counts(remote).repeated == 1

    run(work)


def test_an_idle_process_that_was_taken_for_dead_goes_on() -> None:
    async def work() -> None:
        line = DirectTransport(lambda: FakeEngine())
        remote, host = await attached(line), LocalHost(loop=asyncio.get_running_loop())
        for _ in range(3):
            assert await in_time([*ask(host, remote, ["x"]), *ask(host, remote, ["y"])]) == ["x", "y"]
            await asyncio.sleep(services.LEASE_S * 2)
        assert host.counts(remote).crashes == 0

    run(work)


class LossyLine(DirectTransport):
    """Loses answers of a process that lives: `lost` of them break the line, `silent` ones never come."""

    lost, silent = 0, 0

    async def _call(self, name: str, *args: Any) -> Any:
        found = await super()._call(name, *args)
        if name == "submit" and self.silent:
            self.silent -= 1
            await asyncio.Event().wait()
        if name in ("submit", "poll") and self.lost and found.ids:
            self.lost -= 1
            raise ConnectionError("the answer was lost")
        return found


def test_a_lost_message_does_not_hold_up_those_after_it() -> None:
    async def work() -> None:
        line = LossyLine(lambda: FakeEngine(lambda _: says("one two three"), concurrent=True))
        remote, host = await attached(line), LocalHost(loop=asyncio.get_running_loop())
        greedy = {"settings": {"temperature": 0}}
        assert await in_time(ask(host, remote, ["x"], "decoding", **greedy)) == ["one two three"]
        line.lost = 1
        (reply,) = ask(host, remote, ["x"], "decoding", **greedy)
        heard: list[str] = []
        reply.listen(lambda outcome: heard.append(outcome.text) if isinstance(outcome, Delta) else None)
        assert await in_time([reply]) == ["one two three"]
        assert heard == ["one ", "two ", "three"]

    run(work)


def test_a_call_from_before_a_break_neither_ends_the_process_nor_keeps_others_waiting() -> None:
    async def work() -> None:
        engine = FakeEngine(concurrent=True)
        line = LossyLine(lambda: engine)
        remote, host, loop = (
            await attached(line),
            LocalHost(loop=asyncio.get_running_loop()),
            asyncio.get_running_loop(),
        )
        engine.gate = asyncio.Event()
        line.silent = 1
        first = ask(host, remote, ["x"])
        await asyncio.sleep(1)
        line.lost = 1
        second = ask(host, remote, ["y"])
        await asyncio.sleep(0.5)  # the second call was answered at once, which never came; the first still waits
        engine.gate.set()
        begun_s, before = loop.time(), line.service
        assert await in_time([*first, *second]) == ["x", "y"]
        assert loop.time() - begun_s < 5
        await asyncio.sleep(60)
        assert line.service is before

    run(work)


def test_what_was_not_sent_when_the_line_broke_is_not_sent_afterwards() -> None:
    async def work() -> None:
        engine = FakeEngine()
        line = DirectTransport(lambda: engine)
        remote, host = await attached(line), LocalHost(loop=asyncio.get_running_loop())
        await results(ask(host, remote, ["a"]))
        (reply,) = ask(host, remote, ["x"], "ingestion")
        for _ in range(10):
            if not remote._outgoing:
                await asyncio.sleep(0)
        assert remote._outgoing
        remote._break(ConnectionError("gone"))
        assert [type(found) for found in await in_time([reply])] == [EngineCrashed]
        await asyncio.sleep(10)
        assert engine.seen == ["a"]

    run(work)


def test_who_lets_an_engine_go_is_told_so() -> None:
    async def work() -> None:
        engine = FakeEngine()
        line = DirectTransport(lambda: engine)
        remote, host = await attached(line), LocalHost(loop=asyncio.get_running_loop())
        engine.gate = asyncio.Event()
        (reply,) = ask(host, remote, ["x"])
        await asyncio.sleep(1)
        await remote.close()
        assert [type(found) for found in await in_time([reply])] == [EngineClosed]
        assert line.service is not None
        assert line.service.stats()["clients"] == 0

    run(work)


def test_nothing_is_kept_for_the_queries_of_a_client_that_is_gone() -> None:
    async def work() -> None:
        engine = FakeEngine(concurrent=True)
        line = DirectTransport(lambda: engine)
        await line.hello()
        await line.submit([one_of(1)])
        await asyncio.sleep(services.LEASE_S * 2)
        assert [*map(str, engine.released)] == ["('a', 1)"]

    run(work)


def test_an_error_whose_class_is_not_known_here_says_the_same() -> None:
    module = types.ModuleType("only_there")
    exec("class Odd(Exception): pass", module.__dict__)
    sys.modules["only_there"] = module
    message = said("e", 0, [(1, Failed(module.Odd("x"))), (2, Done("y"))])
    travelling = pickle.dumps(message)
    del sys.modules["only_there"]
    (_, failed), (_, done) = pickle.loads(travelling)
    assert (str(failed.error), done) == ("Odd: x", Done("y"))


def test_vectors_in_company_of_an_error_are_their_readers_own_too() -> None:
    buffers: list[Any] = []
    message = said("e", 0, [(1, Done(np.zeros(3, dtype=np.float32))), (2, Failed(KeyError("x")))])
    sent = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    (_, done), _ = pickle.loads(sent, buffers=[bytes(buffer) for buffer in buffers])
    done.value[0] = 1


# --- processes of Ray, without Ray -----------------------------------------------------------------------------------


def test_a_process_that_is_being_started_says_so_and_may_be_stopped() -> None:
    async def work() -> None:
        actor = EngineActor(EngineConfig("e", "embedding", model="/there/is/none").to_json())
        with pytest.raises(EngineCrashed, match="being started"):
            await actor.ask("submit", "a", ([one_of(1)],))
        with pytest.raises(EngineCrashed):
            await actor.ask("poll", "a", ())
        assert await actor.drain(1.0) == 0
        await actor.close()

    run(work)


def test_building_an_engine_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        actor = EngineActor(EngineConfig("e", "embedding", model="m").to_json())
        made: list[object] = [EngineError("not yet"), object()]

        async def build() -> Any:
            found = made.pop(0)
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(actor, "_made", build)
        with pytest.raises(EngineError, match="not yet"):
            await actor._service()
        assert await actor._service() is await actor._service()

    run(work)


def test_a_small_message_travels_as_bytes_and_one_with_a_large_array_as_it_is() -> None:
    class OfThisScript:
        """What another process could not import."""

    small = (one_of(1), np.arange(8, dtype=np.float32), OfThisScript)
    sealed = transport.sealed(small)
    assert isinstance(sealed, bytes)
    asked, vector, _ = transport.opened(sealed)
    assert asked == one_of(1)
    vector[0] = 1.0  # a copy of its own
    large = (one_of(1), np.zeros(transport.LARGE_BYTES, dtype=np.float32))
    assert transport.opened(transport.sealed(large)) is large


class FakeRay:
    """Actors by name; their `hello` fails. Has the part of Ray that a line uses."""

    def __init__(self) -> None:
        self.actors: dict[str, Any] = {}
        self.killed: list[Any] = []
        self.nodes = lambda: [{"Alive": True, "Resources": {"CPU": 8}}]

    def get_actor(self, name: str, namespace: str) -> Any:
        if name not in self.actors:
            raise ValueError(name)
        return self.actors[name]

    def remote(self, actor: type) -> Any:
        def options(name: str, **_: Any) -> Any:
            return types.SimpleNamespace(remote=lambda _: self.actors.setdefault(name, failing()))

        return types.SimpleNamespace(options=options)

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


def failing() -> Any:
    async def hello() -> EngineInfo:
        raise ConnectionError("it is starting again")

    return types.SimpleNamespace(hello=types.SimpleNamespace(remote=hello))


@pytest.mark.parametrize("was_there", [True, False])
def test_an_engine_that_cannot_be_reached_is_ended_only_by_who_made_it(
    monkeypatch: pytest.MonkeyPatch, was_there: bool
) -> None:
    ray = FakeRay()
    config = EngineConfig("e", "embedding", model="m")
    if was_there:
        ray.actors["engine:e"] = failing()
    monkeypatch.setattr(transport, "connect", lambda: ray)
    monkeypatch.setattr(transport, "_owned", {"e": ray.actors["engine:e"]} if was_there else {})
    with pytest.raises(EngineError, match="starting again"):
        engines._attached(RayTransport(EngineActor, config, lifetime="detached"), config)
    assert ray.killed == ([] if was_there else [ray.actors["engine:e"]])
    assert list(transport._owned) == (["e"] if was_there else [])


def test_an_engine_on_ray_that_nobody_asked_for_and_that_does_not_fit_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from teola_plugin.engines import EngineSpec
    from teola_plugin.runtime.engines import identity

    def attach(name: str) -> RemoteEngine:
        raise EngineError("it runs another version")

    resource = FakeEngine()
    config = EngineConfig("e", "embedding", model="m", identity="m")
    running = engines.Running("e", types.SimpleNamespace(identity="m"), {})  # type: ignore[arg-type]
    monkeypatch.setattr(cluster, "is_connected", lambda: True)
    monkeypatch.setattr(cluster, "connect", lambda: None)
    monkeypatch.setattr(identity, "describe", lambda _: config)
    monkeypatch.setattr(engines, "engines", lambda: [running])
    monkeypatch.setattr(engines, "attach", attach)
    specs = {"model": EngineSpec("engine", resource, "model")}
    assert selection.place(specs, "auto") == {"model": "'e': it runs another version"}


# --- the host's end --------------------------------------------------------------------------------------------------


def test_what_the_last_of_a_hosts_thread_asks_for_is_heard_by_the_next() -> None:
    host, heard = LocalHost(), threading.Event()

    def last() -> None:
        while host._loop is not None:
            time.sleep(0.001)
        host.soon(heard.set)

    host.soon(last)
    host.close(0.01)
    assert heard.wait(10)
    assert host._thread_id != 0
    host.close()


def test_on_sigterm_nobody_is_let_in_again(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Any] = []
    was_draining: list[bool] = []
    monkeypatch.setattr(limits, "LAST_WORD_S", 0)
    monkeypatch.setattr("signal.signal", lambda _, handler: handlers.append(handler))
    real_kill = os.kill

    def kill(process: int, number: int) -> None:  # those who look whether another process lives use it, too
        if (process, number) == (os.getpid(), 15):
            was_draining.append(runtime.host.admission._is_draining)
        else:
            real_kill(process, number)

    monkeypatch.setattr("os.kill", kill)
    limits.drain_on_sigterm(0.1)
    handlers[0](15, None)
    for thread in threading.enumerate():
        if thread.name == "teola-drain":
            thread.join()
    runtime.host.admission.reopen()
    assert was_draining == [True]


@pytest.mark.parametrize(
    ("free", "reason"),
    [({"CPU": 1.0}, "the cluster has no 2 CPU and no 1 GPU free for it"), ({"CPU": 4.0, "GPU": 1.0}, "it is still")],
)
def test_who_waits_for_an_engine_is_told_why(
    free: dict[str, float], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        name = "llm"

        async def hello(self) -> str:
            await asyncio.sleep(0.1)
            return "hello"

    said: list[str] = []
    monkeypatch.setattr(engines.log, "warning", lambda text, *args: said.append(text % args))
    monkeypatch.setattr(engines, "PATIENT_S", 0.01)
    monkeypatch.setattr(engines, "connect", lambda: types.SimpleNamespace(available_resources=lambda: free))
    config = EngineConfig("llm", "vllm", model="llama", num_cpus=2, num_gpus=1)
    line: Any = Slow()
    assert engines._greeted(line, config) == "hello"
    assert said[0].startswith(f"waiting for the engine 'llm': {reason}")
