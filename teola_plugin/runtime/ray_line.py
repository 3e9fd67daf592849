"""The way from a process to an engine's actor, which it finds by name, or makes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any, Literal

from teola_plugin.errors import EngineClosed, EngineError
from teola_plugin.registry import EngineConfig
from teola_plugin.runtime.messages import Asked, Hello, ItemId, Said
from teola_plugin.runtime.ray_cluster import NAMESPACE, check_room, connect, is_far

PREFIX = "engine:"
"""Of the actors' names, in Ray's namespace `teola`."""

SIDE_BY_SIDE = 10_000
"""Calls that an actor takes at once; nearly all of them wait."""

Lifetime = Literal["owned", "detached"]

_owned: dict[str, Any] = {}
"""The actors that this process started: they are to live as long as it does, and not only while somebody holds them."""


class RayWay:
    """The way from an engine to others: `onward.Send`."""

    def __init__(self) -> None:
        self._actors: dict[str, Any] = {}

    async def __call__(self, address: Any, requests: Sequence[Asked]) -> None:
        """Raises: ValueError if there is no such engine."""
        name, client = address
        if name not in self._actors:
            self._actors[name] = await asyncio.to_thread(connect().get_actor, PREFIX + name, namespace=NAMESPACE)
        try:
            await self._actors[name].given.remote(client, requests)
        except Exception:
            self._actors.pop(name, None)  # it may have been replaced by another of its name
            raise


def forget(name: str) -> None:
    """This process no longer keeps that engine alive."""
    _owned.pop(name, None)


class RayLine:
    """Implements `remote.Line`. `actor`: the class of actors to make; `config`: None to make none.

    An actor that crashes is restarted by Ray, but not its calls: the lane in front asks again for what is pure.
    """

    def __init__(
        self,
        actor: type,
        config: EngineConfig | None,
        *,
        name: str = "",
        lifetime: Lifetime = "owned",
        is_child: bool = False,
    ) -> None:
        self._class = actor
        self._config = config
        self.name = name or (config.name if config else "")
        self._lifetime = lifetime
        self._is_child = is_child
        self._client = uuid.uuid4().hex
        self._actor: Any = None
        self.is_far = False
        self._made_here: Any = None

    @property
    def address(self) -> Hashable:
        return self.name, self._client

    async def hello(self) -> Hello:
        if self._actor is None:
            self._actor = await asyncio.to_thread(self._found)
        try:
            hello: Hello = await self._actor.hello.remote()
        except Exception:
            self._actor = None  # look it up again next time: it may have been replaced by another of its name
            raise
        self.is_far = is_far(self._ray, hello.node)
        return hello

    async def submit(self, requests: Sequence[Asked]) -> Said:
        said: Said = await self._there.submit.remote(self._client, requests)
        return said

    async def poll(self) -> Said:
        said: Said = await self._there.poll.remote(self._client)
        return said

    async def cancel(self, ids: Sequence[ItemId]) -> None:
        await self._there.cancel.remote(self._client, ids)

    async def release(self, owner: Hashable) -> None:
        await self._there.release.remote(self._client, owner)

    async def leave(self) -> None:
        if self._actor is not None:
            await self._actor.leave.remote(self._client)

    def begin_anew(self) -> None:
        self._client = uuid.uuid4().hex

    def restart(self) -> None:
        """End the process; Ray starts another."""
        if self._actor is not None:
            self._ray.kill(self._actor, no_restart=False)

    def kill(self) -> None:
        """End it for good."""
        forget(self.name)
        if self._actor is not None:
            self._ray.kill(self._actor)
            self._actor = None

    def undo(self) -> None:
        """End the engine if it is there only because this line made it; others' engines stay."""
        made, self._made_here = self._made_here, None
        if made is not None:
            forget(self.name)
            self._ray.kill(made)
            self._actor = None

    @property
    def _there(self) -> Any:
        if self._actor is None:
            raise EngineClosed(f"engine {self.name!r} is not connected")
        return self._actor

    @cached_property
    def _ray(self) -> Any:
        return connect()

    def _found(self) -> Any:
        try:
            return self._ray.get_actor(PREFIX + self.name, namespace=NAMESPACE)
        except ValueError as e:
            if self._config is None:
                raise EngineError(f"there is no engine {self.name!r} on this Ray cluster: see `teola engines`") from e
        return self._made(self._config)

    def _made(self, config: EngineConfig) -> Any:
        wanted = {"CPU": config.num_cpus, "GPU": config.num_gpus, **config.resources}
        if not self._is_child:
            check_room(self._ray, config.name, wanted, config.instances)
        has_children = config.instances > 1
        options: dict[str, Any] = {
            "num_cpus": 0 if has_children else config.num_cpus,
            "num_gpus": 0 if has_children else config.num_gpus,
            "resources": {} if has_children else dict(config.resources),
        }
        actor = self._ray.remote(self._class).options(
            name=PREFIX + config.name, namespace=NAMESPACE, get_if_exists=True,
            lifetime="detached" if self._lifetime == "detached" else None,
            max_restarts=-1, max_task_retries=0, max_concurrency=SIDE_BY_SIDE, **options,
        ).remote(config.to_json())  # fmt: skip
        self._made_here = actor
        if self._lifetime == "owned":
            _owned[config.name] = actor
        return actor
