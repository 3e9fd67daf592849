"""The Ray actor of an engine: an engine with a scheduler, or the scheduler of several instances.

    engine "llm", one instance       actor llm            scheduler and engine in one process
    engine "llm", three instances    actor llm            scheduler
                                     actors llm/0 .. /2   an engine each, at the resources of the instance

Each actor is an `EngineServer`. The actors of several instances are ordinary actors, whose only client is the
scheduler; they make no batches, because arriving batches fit already.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from teola_plugin.engines import Engine
from teola_plugin.errors import EngineCrashed, EngineError
from teola_plugin.registry import EngineConfig
from teola_plugin.runtime.engines.build import build
from teola_plugin.runtime.engines.identity import identity
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.hosts.pool import EnginePool
from teola_plugin.runtime.hosts.ray.transport import RayTransport, opened, pickled, sealed
from teola_plugin.runtime.hosts.remote.client import RemoteEngine
from teola_plugin.runtime.hosts.remote.messages import PROTOCOL, EngineInfo
from teola_plugin.runtime.hosts.remote.server import EngineServer
from teola_plugin.runtime.hosts.remote.unix_rpc import Server

VERSION = version("teola-plugin")

ASKED = frozenset({"submit", "poll", "cancel", "release", "leave"})
"""The client methods of `EngineServer`."""


class EngineActor:
    """An `EngineServer` in a process of its own. Ray passes a config as JSON; the engine is built at `hello`."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        self._config = EngineConfig.from_json(said)
        self._building: asyncio.Task[EngineServer] | None = None
        self._hello: EngineInfo | None = None
        self._children: list[str] = []
        self._server = Server(self._answer, pickled)

    async def hello(self) -> EngineInfo:
        """Return the description of the engine once ready. Raises: errors of building the engine."""
        service = await self._service()
        if self._hello is None:
            self._hello = await asyncio.to_thread(self._introduction, service.engine)
        return replace(self._hello, instances=len(getattr(service.engine, "instances", (1,))))

    async def ask(self, method: str, client: str, args: Any) -> Any:
        """Return the answer of `EngineServer` to a method in `ASKED`. Arguments and answer are `sealed`.

        Raises: EngineCrashed before the engine is built.
        """
        return sealed(await self._answer(method, client, *opened(args)))

    async def _answer(self, method: str, client: str, *args: Any) -> Any:
        if method not in ASKED:
            raise EngineError(f"engine {self._config.name!r} has no call {method!r}")
        return await getattr(self._there, method)(client, *args)

    async def stats(self) -> dict[str, Any]:
        return (await self._service()).stats()

    async def scale(self, instances: int) -> int:
        """Set the number of instances; removed instances first end their work."""
        service = await self._service()
        pool = service.engine
        if not isinstance(pool, EnginePool):
            raise EngineError(f"engine {self._config.name!r} was started with one instance, beside its scheduler")
        while len(pool.instances) < instances:
            child = await self._new_child()
            pool.instances = [*pool.instances, child]
        going, pool.instances = pool.instances[instances:], pool.instances[:instances]
        service.rescaled()
        for engine in going:
            await _stop_child(engine)
        return len(pool.instances)

    async def nodes(self) -> list[str]:
        """Return the nodes of the instances."""
        engine = (await self._service()).engine
        if isinstance(engine, EnginePool):
            return [each.hello.node for each in engine.instances if isinstance(each, RemoteEngine)]
        return [(await self.hello()).node]

    async def drain(self, timeout_s: float) -> int:
        return await self._there.drain(timeout_s) if self._is_built else 0

    async def close(self) -> None:
        """End the engine, so that no process of the engine is left behind."""
        self._server.close()
        if self._is_built:
            await self._there.close()

    @property
    def _is_built(self) -> bool:
        built = self._building
        return built is not None and built.done() and not built.cancelled() and built.exception() is None

    @property
    def _there(self) -> EngineServer:
        """The server. Raises: EngineCrashed before the engine is built: a new process must first be asked for `hello`.

        Building may take longer than any other call, and a client that waited here would take the engine for hanging,
        and end the process.
        """
        if self._building is None or not self._is_built:
            raise EngineCrashed(f"engine {self._config.name!r} is being started")
        return self._building.result()

    async def _service(self) -> EngineServer:
        if self._building is None or (self._building.done() and not self._is_built):
            self._building = asyncio.get_running_loop().create_task(self._made())
        return await asyncio.shield(self._building)

    async def _made(self) -> EngineServer:
        await self._server.start()
        host = LocalHost(self._config.policy or "critical_path", loop=asyncio.get_running_loop())  # type: ignore[arg-type]
        if self._config.instances > 1:
            return EngineServer(EnginePool(self._config.name, await self._new_children()), host)
        engine = await asyncio.to_thread(build, _in_actor(self._config))
        if start := getattr(engine, "start", None):
            await start()
        return EngineServer(engine, host)

    async def _new_children(self) -> list[Engine]:
        children: list[Engine] = []
        try:
            while len(children) < self._config.instances:
                children.append(await self._new_child())
        except Exception:  # any error of building: the other children must not keep resources that the next try needs
            for child in children:
                await _stop_child(child)
            raise
        return children

    async def _new_child(self) -> Engine:
        number = len(self._children)
        config = replace(self._config, name=f"{self._config.name}/{number}", instances=1, policy="to")
        self._children.append(config.name)
        transport = RayTransport(EngineActor, config, is_child=True)
        try:
            return RemoteEngine(transport, await transport.hello())
        except Exception:  # any error of building the child
            await asyncio.to_thread(transport.undo)
            raise

    def _introduction(self, engine: Engine) -> EngineInfo:
        import ray

        config = self._config
        first = engine.instances[0] if isinstance(engine, EnginePool) else engine
        known = first.hello.identity if isinstance(first, RemoteEngine) else _identity(config, first)
        return EngineInfo(
            PROTOCOL, VERSION, platform.python_version(), config.name, config.kind, config.model,
            known, config.to_json(), engine.capabilities, getattr(engine, "profile", None),
            os.getpid(), ray.get_runtime_context().get_node_id(), 1, self._server.address,
        )  # fmt: skip


def _in_actor(config: EngineConfig) -> EngineConfig:
    """Return the config for an actor: a forked child would wait for threads of the Ray worker, so vLLM spawns."""
    return replace(config, config={**config.config, "start_method": "spawn"}) if config.kind == "vllm" else config


def _identity(config: EngineConfig, engine: Engine) -> str:
    """Return the declared and checked identity; else the model's identity; else a hash of the config.

    The config of an engine may hold secrets, and an identity is shown in messages.
    """
    if config.identity:
        return config.identity
    try:
        return identity(engine)
    except EngineError:
        said = json.dumps(dict(config.config), sort_keys=True).encode()
        return f"{config.executable or config.kind} {hashlib.sha256(said).hexdigest()[:24]}"


async def _stop_child(engine: Engine) -> None:
    if isinstance(engine, RemoteEngine):
        transport = engine._transport
        await engine.at_rest()
        await engine.close()
        if isinstance(transport, RayTransport):
            await asyncio.to_thread(transport.kill)
