"""A line to an engine's service on the same loop, in virtual time: what can go wrong between processes, without any."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any

from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.hosts.remote.client import RemoteEngine
from teola_plugin.runtime.hosts.remote.messages import PROTOCOL, EngineInfo, Outcomes, SubmitRequest
from teola_plugin.runtime.hosts.remote.server import EngineServer
from teola_plugin.runtime.hosts.virtual_time import VirtualLoop

Work = Callable[[], Coroutine[Any, Any, None]]


def run(work: Work) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work())


class DirectTransport:
    """A line to a service on the same loop, through pickles as any transport's. `make` makes the engine, each time.

    `delay_s`: of a message.
    """

    def __init__(self, make: Callable[[], Any], client: str = "a", identity: str = "m", delay_s: float = 0.0) -> None:
        self.make, self.client, self.identity, self.delay_s = make, client, identity, delay_s
        self.service: EngineServer | None = None
        self.calls: list[str] = []
        self.crashed = asyncio.Event()
        self.restart_s = 2.0

    async def hello(self) -> EngineInfo:
        if self.service is None:
            await asyncio.sleep(self.restart_s)
            engine = self.make()
            self.service = EngineServer(engine, LocalHost(loop=asyncio.get_running_loop()))
            self.crashed = asyncio.Event()
        engine = self.service.engine
        return EngineInfo(
            PROTOCOL, "0", "3", engine.name, "fake", "model", self.identity, {}, engine.capabilities, None, 1, "node", 1
        )

    async def _call(self, name: str, *args: Any) -> Any:
        self.calls.append(name)
        await asyncio.sleep(self.delay_s)
        if self.service is None:
            raise ConnectionError("the process is gone")
        work = asyncio.ensure_future(getattr(self.service, name)(self.client, *pickle.loads(pickle.dumps(args))))
        gone = asyncio.ensure_future(self.crashed.wait())
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not work.done():
            work.cancel()
            raise ConnectionError("the process is gone")
        await asyncio.sleep(self.delay_s)
        return pickle.loads(pickle.dumps(work.result()))

    async def submit(self, requests: Sequence[SubmitRequest]) -> Outcomes:
        found: Outcomes = await self._call("submit", requests)
        return found

    async def poll(self) -> Outcomes:
        found: Outcomes = await self._call("poll")
        return found

    async def cancel(self, ids: Sequence[int]) -> None:
        await self._call("cancel", ids)

    async def release(self, owner: Hashable) -> None:
        await self._call("release", owner)

    async def leave(self) -> None:
        await self._call("leave")

    def begin_anew(self) -> None:
        self.client += "'"

    def restart(self) -> None:
        service, self.service = self.service, None
        self.crashed.set()
        if service:
            self.closing = asyncio.ensure_future(service.close())


async def attached(line: DirectTransport) -> RemoteEngine:
    return RemoteEngine(line, await line.hello())
