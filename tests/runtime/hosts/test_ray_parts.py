"""An engine's actor, the line to it and the list of engines, with doubles for Ray and for other processes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from teola_plugin.engines import Capabilities
from teola_plugin.errors import EngineCrashed, EngineError, EngineUnavailable
from teola_plugin.registry import EngineConfig
from teola_plugin.runtime.hosts.ray import actor, engines, transport
from teola_plugin.runtime.hosts.ray.actor import VERSION, EngineActor
from teola_plugin.runtime.hosts.ray.transport import RayTransport
from teola_plugin.runtime.hosts.remote.client import RemoteEngine
from teola_plugin.runtime.hosts.remote.messages import PROTOCOL, EngineInfo

CONFIG = EngineConfig("e", "embedding", model="m", num_cpus=2, num_gpus=1, resources={"far": 1})


def greeting(**fields: Any) -> EngineInfo:
    said: dict[str, Any] = {
        "protocol": PROTOCOL, "version": VERSION, "python": "3", "name": "e", "kind": "embedding", "model": "m",
        "identity": "", "config": {}, "capabilities": Capabilities(), "profile": None, "pid": 1, "node": "here",
        "instances": 1,
    }  # fmt: skip
    return EngineInfo(**{**said, **fields})


# --- an actor --------------------------------------------------------------------------------------------------------


class Children:
    """The actors of an engine's instances: what was done to each, by name. Those in `refused` cannot be built."""

    def __init__(self) -> None:
        self.did: dict[str, list[str]] = {}
        self.refused: set[str] = set()
        self.may_start = asyncio.Event()
        self.may_start.set()


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Children:
    made = Children()

    class Transport(RayTransport):
        async def hello(self) -> EngineInfo:
            await made.may_start.wait()
            made.did[self.name] = []
            if self.name in made.refused:
                raise EngineUnavailable("no room")
            return greeting(name=self.name)

        def undo(self) -> None:
            made.did[self.name].append("undone")

        def kill(self) -> None:
            made.did[self.name].append("killed")

    class Child(RemoteEngine):
        async def at_rest(self) -> None:
            await asyncio.sleep(0)
            made.did[self._transport.name].append("at rest")  # type: ignore[attr-defined]

        async def close(self) -> None:
            made.did[self._transport.name].append("closed")  # type: ignore[attr-defined]

    monkeypatch.setattr(actor, "RayTransport", Transport)
    monkeypatch.setattr(actor, "RemoteEngine", Child)
    return made


def actor_of(instances: int) -> EngineActor:
    return EngineActor(replace(CONFIG, instances=instances).to_json())


ENDED = ["at rest", "closed", "killed"]


async def test_instances_that_are_taken_away_end_their_work_and_then_their_process(children: Children) -> None:
    actor = actor_of(2)
    assert await actor.scale(4) == 4
    assert list(children.did) == ["e/0", "e/1", "e/2", "e/3"]
    assert await actor.scale(1) == 1
    assert list(children.did.values()) == [[], ENDED, ENDED, ENDED]
    assert await actor.scale(2) == 2
    assert list(children.did)[4:] == ["e/4"]
    await actor.close()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "the service goes on"


async def test_a_start_that_failed_leaves_nothing_and_is_tried_again(children: Children) -> None:
    actor = actor_of(3)
    children.refused = {"e/2"}
    with pytest.raises(EngineUnavailable, match="no room"):
        await actor.stats()
    assert list(children.did.values()) == [ENDED, ENDED, ["undone"]]
    assert (await actor.stats())["open"] == 0
    assert list(children.did)[3:] == ["e/3", "e/4", "e/5"]
    await actor.close()


async def test_an_actor_answers_its_clients_calls_alone_and_only_once_it_is_built(children: Children) -> None:
    actor = actor_of(2)
    with pytest.raises(EngineError, match="no call 'close'"):
        await actor.ask("close", "client", transport.sealed(()))
    with pytest.raises(EngineCrashed, match="being started"):
        await actor.ask("release", "client", transport.sealed(("owner",)))
    children.may_start.clear()
    building = asyncio.create_task(actor.stats())
    while actor._building is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    with pytest.raises(EngineCrashed, match="being started"):
        await actor.ask("release", "client", transport.sealed(("owner",)))
    children.may_start.set()
    await building
    assert transport.opened(await actor.ask("release", "client", transport.sealed(("owner",)))) is None
    await actor.close()


# --- a line ----------------------------------------------------------------------------------------------------------


class Ray:
    """Actors by name, and what was asked of Ray."""

    exceptions = SimpleNamespace(RayError=ConnectionError)
    util = SimpleNamespace(client=SimpleNamespace(ray=SimpleNamespace(is_connected=lambda: False)))

    def __init__(self, **actors: Any) -> None:
        self.actors = {f"engine:{name}": actor for name, actor in actors.items()}
        self.options: dict[str, Any] = {}
        self.killed: list[Any] = []

    def get_actor(self, name: str, namespace: str) -> Any:
        if name not in self.actors:
            raise ValueError(name)
        return self.actors[name]

    def nodes(self) -> list[Any]:
        return [{"Alive": True, "Resources": {"CPU": 8, "GPU": 4, "far": 4}}]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "elsewhere")

    def remote(self, actor: type) -> Any:
        def options(**said: Any) -> Any:
            self.options = said
            return SimpleNamespace(remote=lambda _: self.actors.setdefault(said["name"], answering("made")))

        return SimpleNamespace(options=options)

    def kill(self, actor: Any, no_restart: bool = True) -> None:
        self.killed.append((actor.identity, no_restart))


def answering(identity: str) -> Any:
    """An actor that says who it is."""

    async def hello() -> EngineInfo:
        return greeting(identity=identity)

    return SimpleNamespace(identity=identity, hello=SimpleNamespace(remote=hello))


def line_to(ray: Ray, monkeypatch: pytest.MonkeyPatch, config: EngineConfig = CONFIG, **options: Any) -> RayTransport:
    monkeypatch.setattr(transport, "connect", lambda: ray)
    monkeypatch.setattr(transport, "_owned", {})
    return RayTransport(EngineActor, config, **options)


@pytest.mark.parametrize("was_there", [False, True])
async def test_a_line_takes_back_what_it_made_alone(monkeypatch: pytest.MonkeyPatch, was_there: bool) -> None:
    ray = Ray(**({"e": answering("others'")} if was_there else {}))
    line = line_to(ray, monkeypatch)
    assert (await line.hello()).identity == ("others'" if was_there else "made")
    line.undo()
    assert ray.killed == ([] if was_there else [("made", True)])


async def test_an_engine_that_was_replaced_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone() -> EngineInfo:
        raise ConnectionError("it was ended")

    ray = Ray(e=SimpleNamespace(hello=SimpleNamespace(remote=gone)))
    line = line_to(ray, monkeypatch)
    with pytest.raises(ConnectionError):
        await line.hello()
    ray.actors["engine:e"] = answering("new")
    assert (await line.hello()).identity == "new"


@pytest.mark.parametrize("lifetime", ["detached", "owned"])
@pytest.mark.parametrize("instances", [1, 3])
async def test_what_ray_is_asked_for(monkeypatch: pytest.MonkeyPatch, lifetime: Any, instances: int) -> None:
    """The scheduler of several instances takes none of their resources."""
    ray = Ray()
    await line_to(ray, monkeypatch, replace(CONFIG, instances=instances), lifetime=lifetime).hello()
    assert ray.options["lifetime"] == ("detached" if lifetime == "detached" else None)
    wanted = {"num_cpus": 2, "num_gpus": 1, "resources": {"far": 1}}
    none = {"num_cpus": 0, "num_gpus": 0, "resources": {}}
    assert {name: ray.options[name] for name in wanted} == (wanted if instances == 1 else none)
    assert ray.options["max_restarts"] == -1


async def test_a_process_that_is_to_start_anew_is_not_ended_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray()
    line = line_to(ray, monkeypatch)
    await line.hello()
    line.restart()
    line.kill()
    assert ray.killed == [("made", False), ("made", True)]


async def test_what_does_not_fit_into_the_cluster_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray()
    with pytest.raises(EngineError, match=r"5 instances of .* do not fit"):
        await line_to(ray, monkeypatch, replace(CONFIG, instances=5)).hello()
    assert ray.actors == {}


# --- engines of a cluster --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("differs", [{"version": "0"}, {"protocol": PROTOCOL + 1}, {"model": "other"}])
def test_an_engine_that_is_another_is_refused(differs: dict[str, Any]) -> None:
    engines._check(greeting(), CONFIG)
    with pytest.raises(EngineError, match=r"engine 'e' (runs|exists)"):
        engines._check(greeting(**differs), CONFIG)


def test_the_list_shows_engines_that_do_not_answer_and_no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(asked: list[Any], timeout: float) -> list[Any]:
        if "hangs" in asked:
            raise TimeoutError
        return asked

    def actor(said: Any) -> Any:
        return SimpleNamespace(hello=SimpleNamespace(remote=lambda: said), stats=SimpleNamespace(remote=lambda: {}))

    ray: Any = Ray(**{"a": actor("hello"), "a/0": actor("hello"), "b": actor("hangs"), "c": actor("hello")})
    named = [{"name": name, "namespace": "teola"} for name in ray.actors] + [{"name": "x", "namespace": "other"}]
    ray.util = SimpleNamespace(list_named_actors=lambda all_namespaces: named)
    ray.get = get
    monkeypatch.setattr(engines, "connect", lambda address: ray)
    assert [(each.name, each.hello) for each in engines.engines()] == [("a", "hello"), ("b", None), ("c", "hello")]
