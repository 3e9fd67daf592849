"""The transport from a process to an engine's actor, which the process finds by name, or makes."""

from __future__ import annotations

import asyncio
import pickle
import uuid
import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any, Literal

from teola_plugin.errors import EngineClosed, EngineError
from teola_plugin.registry import EngineConfig
from teola_plugin.runtime.hosts.ray.cluster import NAMESPACE, check_room, connect, is_far
from teola_plugin.runtime.hosts.remote.messages import EngineInfo, Outcomes, SubmitRequest, UnixAddress
from teola_plugin.runtime.hosts.remote.unix_rpc import Connection
from teola_plugin.runtime.hosts.remote.unix_rpc import connect as connect_near

PREFIX = "engine:"
"""The prefix of the actors' names, in Ray's namespace `teola`."""

SIDE_BY_SIDE = 10_000
"""The number of calls that an actor takes at once; nearly all calls wait."""

Lifetime = Literal["owned", "detached"]

_owned: dict[str, Any] = {}
"""The actors started by this process, which live as long as the process, not only while a reference exists."""


LARGE_BYTES = 64 * 1024
"""The size from which Ray keeps an array in shared memory, by reference, if Ray finds the array in the message."""


def pickled(message: Any) -> bytes:
    """Pickle a message, with the user's script by value, since other processes cannot import the script."""
    import ray

    found: bytes = ray.cloudpickle.dumps(message)
    return found


def sealed(message: Any) -> Any:
    """Return the message as bytes, which Ray takes unchanged; Ray's own pickling doubles the cost of a small call.

    A message with a large array is returned unchanged.
    """
    import ray

    large: list[Any] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < LARGE_BYTES:
            return True
        large.append(buffer)
        return False

    found = ray.cloudpickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=is_small)
    return message if large else found


def opened(message: Any) -> Any:
    """Return the `sealed` message."""
    return pickle.loads(message) if isinstance(message, bytes) else message


def forget(name: str) -> None:
    """Stop keeping an engine alive from this process."""
    _owned.pop(name, None)


class RayTransport:
    """Implements `client.Transport`. `actor`: the class of actors to make; `config`: None to make none.

    Ray restarts a crashed actor, but not the calls: the worker in front retries pure requests.
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
        self._made_here: Any = None
        self._nearby: UnixAddress | None = None
        self._connected_to: UnixAddress | None = None
        self._near: Connection | None = None
        self._let_go: Callable[[], Any] = lambda: None

    async def hello(self) -> EngineInfo:
        if self._actor is None:
            self._actor = await asyncio.to_thread(self._found)
        try:
            hello: EngineInfo = await self._actor.hello.remote()
        except Exception:
            self._actor = None  # look it up again next time: it may have been replaced by another of its name
            raise
        if not is_far(self._ray, hello.node):
            self._nearby = hello.nearby
        return hello

    async def submit(self, requests: Sequence[SubmitRequest]) -> Outcomes:
        said: Outcomes = await self._ask("submit", requests)
        return said

    async def poll(self) -> Outcomes:
        said: Outcomes = await self._ask("poll")
        return said

    async def cancel(self, ids: Sequence[int]) -> None:
        await self._ask("cancel", ids)

    async def release(self, owner: Hashable) -> None:
        await self._ask("release", owner)

    async def leave(self) -> None:
        if self._actor is None:
            return
        try:
            await self._ask("leave")
        finally:
            self._let_go()

    def begin_anew(self) -> None:
        self._client = uuid.uuid4().hex

    def restart(self) -> None:
        """End the process; Ray starts another."""
        if self._actor is not None:
            self._ray.kill(self._actor, no_restart=False)

    def kill(self) -> None:
        """End the process for good."""
        forget(self.name)
        if self._actor is not None:
            self._ray.kill(self._actor)
            self._actor = None

    def undo(self) -> None:
        """End the engine if the transport made the engine; an engine from elsewhere stays."""
        made, self._made_here = self._made_here, None
        if made is not None:
            forget(self.name)
            self._ray.kill(made)
            self._actor = None

    async def _ask(self, method: str, *args: Any) -> Any:
        """Call a method over a socket to a process of this machine, else as a call of Ray."""
        if self._nearby and self._connected_to != self._nearby:
            self._connected_to = self._nearby
            self._let_go()
            if near := await connect_near(self._nearby, pickled):
                self._near = near
                self._let_go = weakref.finalize(self, near.let_go)
        if self._near and self._near.is_open:
            return await self._near.call(method, self._client, *args)
        if self._actor is None:
            raise EngineClosed(f"engine {self.name!r} is not connected")
        return opened(await self._actor.ask.remote(method, self._client, sealed(args)))

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
