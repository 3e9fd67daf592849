"""The server of an engine: the engine with a scheduler, for clients in other processes, independent of the transport.

    client --submit(requests)--> queue of the worker --batches--> instances
    client <--------------------- outcomes as they come, in answer to `submit`, or to `poll` while none is under way

A single call of a client at a time waits for outcomes; further calls are answered at once. So a lone request takes a
single round trip, and many simultaneous requests need no more than a single call for all new outcomes.

Requests of all clients share queue, batches and prefix cache. A client that has not called for `LEASE_S` counts as
dead: all its work is cancelled, so that a killed driver leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from teola_plugin.engines import Delta, Engine, Failed, Outcome
from teola_plugin.errors import Overloaded
from teola_plugin.runtime.hosts.local import LocalHost, Query
from teola_plugin.runtime.hosts.remote.messages import Outcomes, SubmitRequest, said, unpacked
from teola_plugin.runtime.scheduler.work_table import Counts
from teola_plugin.seams import Reply
from teola_plugin.tenancy import Terms

LEASE_S = 15.0
POLL_S = 2.0
"""The seconds that a poll waits for outcomes; a live client polls again at once."""

MAX_SAID = 4096
"""The largest number of outcomes in a message."""


@dataclass(slots=True)
class _Client:
    """A client. `replies`: of open items, by id. `outbox`: outcomes that the client has not received yet.

    `owners`: queries of the client for which the engine may keep state.
    """

    seen_s: float
    replies: dict[int, Reply] = field(default_factory=dict)
    owners: set[Hashable] = field(default_factory=set)
    outbox: list[tuple[int, Outcome]] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    epoch: str = field(default_factory=lambda: uuid.uuid4().hex)
    number: int = 0
    is_waiting: bool = False


class EngineServer:
    """The server of an engine. All methods are for the event loop that made the server."""

    def __init__(self, engine: Engine, host: LocalHost) -> None:
        self.engine = engine
        self._host = host
        self._clients: dict[str, _Client] = {}
        self._is_draining = False
        self._loop = asyncio.get_running_loop()
        self._reaper = self._loop.create_task(self._reap())

    # --- what clients call -------------------------------------------------------------------------------------------

    async def submit(self, client: str, requests: Sequence[SubmitRequest]) -> Outcomes:
        """Queue requests, then answer like `poll`."""
        one = self._client(client)
        for asked in requests:
            replies = [Reply() for _ in asked.ids]
            for item_id, reply in zip(asked.ids, replies, strict=True):
                one.replies[item_id] = reply
                reply.listen(partial(self._say, one, item_id))
            self._begin(client, asked, replies)
        return await self._news(one)

    def _begin(self, client: str, asked: SubmitRequest, replies: Sequence[Reply]) -> None:
        if self._is_draining:
            for reply in replies:
                reply.put(Failed(Overloaded(f"engine {self.engine.name!r} is being stopped")))
            return
        owner: Hashable = (client, asked.owner) if asked.owner != 0 else 0
        if owner != 0 and self.engine.capabilities.prefix:
            self._clients[client].owners.add(owner)
        now_s = self._loop.time()
        query = Query(owner, Terms(asked.tenant, now_s + asked.left_s), now_s - asked.age_s)
        self._host.submit(
            self.engine, asked.op, unpacked(asked.payloads), asked.settings, replies,
            query=query, urgency=asked.urgency,
        )  # fmt: skip

    async def poll(self, client: str) -> Outcomes:
        """Return the new outcomes of a client, after a short wait unless another call of the client waits."""
        return await self._news(self._client(client))

    async def _news(self, one: _Client) -> Outcomes:
        if not (one.outbox or one.is_waiting):
            one.is_waiting = True
            one.news.clear()
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await one.news.wait()
            finally:  # also if the call is cancelled: else no other would ever wait, and its client ask without end
                one.is_waiting = False
        told, one.outbox = one.outbox[:MAX_SAID], one.outbox[MAX_SAID:]
        number = one.number
        one.number += bool(told)
        return said(one.epoch, number, told, is_saturated=self._host.is_saturated(self.engine))

    async def cancel(self, client: str, ids: Sequence[int]) -> None:
        """Cancel items of a client."""
        one = self._client(client)
        for item_id in ids:
            if reply := one.replies.get(item_id):
                reply.cancel_unless_ended()

    async def release(self, client: str, owner: Hashable) -> None:
        """Free the engine's state for a query of a client."""
        self._client(client).owners.discard((client, owner))
        self._host.release((client, owner))

    async def leave(self, client: str) -> None:
        """Cancel the open items of a client and free the state of the client's queries."""
        if one := self._clients.pop(client, None):
            for reply in list(one.replies.values()):
                reply.cancel_unless_ended()
            for owner in one.owners:
                self._host.release(owner)

    # --- what operators call -----------------------------------------------------------------------------------------

    @property
    def open_items(self) -> int:
        """The number of open items of all clients."""
        return len(self._waiting())

    def stats(self) -> dict[str, Any]:
        """Counts of all items, the items that wait and run now, and the number of clients."""
        counts: Counts = self._host.counts(self.engine)
        worker = self._host.load(self.engine)
        return {
            "clients": len(self._clients), "open": self.open_items, "queued": worker[0], "running": worker[1],
            **{name: getattr(counts, name) for name in Counts.__slots__},
        }  # fmt: skip

    def rescaled(self) -> None:
        """Take over another number of instances of the engine."""
        self._host.rescale(self.engine)

    async def drain(self, timeout_s: float) -> int:
        """Take nothing more in and wait for open items. Returns how many had not ended in time."""
        self._is_draining = True
        done = asyncio.gather(*(reply.aresult() for reply in self._waiting()), return_exceptions=True)
        await asyncio.wait({done}, timeout=timeout_s)
        return self.open_items

    async def close(self) -> None:
        """Cancel everything and close the engine."""
        self._reaper.cancel()
        await self._host.aclose()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _client(self, name: str) -> _Client:
        one = self._clients.get(name)
        if one is None:
            one = self._clients[name] = _Client(self._loop.time())
        one.seen_s = self._loop.time()
        return one

    def _waiting(self) -> list[Reply]:
        return [reply for one in self._clients.values() for reply in one.replies.values()]

    def _say(self, one: _Client, item_id: int, outcome: Outcome) -> None:
        if not isinstance(outcome, Delta):
            one.replies.pop(item_id, None)
        one.outbox.append((item_id, outcome))
        one.news.set()

    async def _reap(self) -> None:
        """Remove clients that have not called for `LEASE_S`."""
        while True:
            await asyncio.sleep(LEASE_S / 3)
            for name, one in list(self._clients.items()):
                if self._loop.time() - one.seen_s > LEASE_S:
                    await self.leave(name)
