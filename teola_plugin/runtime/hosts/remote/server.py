"""An engine with its scheduler, serving clients in other processes. It knows no transport: see engines.py.

    client --submit(requests)--> queue of the worker --batches--> instances
    client <--------------------- outcomes as they come, in answer to `submit`, or to `poll` while none is under way

Of a client's calls one at a time waits for news; the others are answered at once. So a request that is alone takes one
call, there and back, and many at the same time need no more than one call for all that is new.

Requests of all clients share queue, batches and prefix cache. A client that is not heard of for `LEASE_S` is taken for
dead: its work is cancelled, so that a driver which is killed leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from teola_plugin.engines import Delta, Done, Engine, Failed, Outcome, Place
from teola_plugin.errors import Overloaded
from teola_plugin.runtime.hosts.local import LocalHost, Query
from teola_plugin.runtime.hosts.remote.forwarding import Begun, HandingOn, Send
from teola_plugin.runtime.hosts.remote.messages import Asked, ItemId, Said, said, unpacked
from teola_plugin.runtime.scheduler.work_item import Counts
from teola_plugin.seams import Reply
from teola_plugin.tenancy import Terms

LEASE_S = 15.0
POLL_S = 2.0
"""How long a poll waits for news; a client that lives polls again at once."""

MAX_SAID = 4096
"""Outcomes in one message."""


@dataclass(slots=True)
class _Client:
    """`replies` by the client's ids, until they ended; `outbox` is what it has not been told yet.

    `owners`: its queries for which the engine may keep something.
    """

    seen_s: float
    replies: dict[int, Reply] = field(default_factory=dict)
    owners: set[Hashable] = field(default_factory=set)
    outbox: list[tuple[ItemId, Outcome]] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    epoch: str = field(default_factory=lambda: uuid.uuid4().hex)
    number: int = 0
    is_waiting: bool = False
    begun: Begun = field(default_factory=Begun)


class EngineService:
    """All methods are for the loop that made it."""

    def __init__(self, engine: Engine, host: LocalHost, hand_on: Send | None = None) -> None:
        """`hand_on`: the way to other engines, for what their clients are about to ask them."""
        self.engine = engine
        self._host = host
        self._handing_on = HandingOn(hand_on) if hand_on else None
        self._clients: dict[str, _Client] = {}
        self._is_draining = False
        self._handed_on = 0
        self._loop = asyncio.get_running_loop()
        self._reaper = self._loop.create_task(self._reap())

    # --- what clients call -------------------------------------------------------------------------------------------

    async def submit(self, client: str, requests: Sequence[Asked]) -> Said:
        """Queue the requests, and tell as `poll` does."""
        one = self._client(client)
        for asked in requests:
            places: Sequence[Place | None] = _places(asked) or [None] * len(asked.ids)
            fresh: list[int] = []
            replies: list[Reply] = []
            for at, (item_id, place) in enumerate(zip(asked.ids, places, strict=True)):
                reply = one.begun.take(asked.owner, place, self._loop.time()) if place else None
                if reply is None:
                    fresh.append(at)
                replies.append(reply or Reply())
                one.replies[item_id] = replies[-1]
                replies[-1].listen(partial(self._say, one, item_id))
            if fresh:
                self._begin(client, asked, fresh, [replies[at] for at in fresh])
        return await self._news(one)

    async def given(self, client: str, requests: Sequence[Asked]) -> None:
        """Another engine hands on what this client is about to ask: begin it."""
        one = self._client(client)
        for asked in requests:
            fresh: list[int] = []
            replies: list[Reply] = []
            for at, place in enumerate(_places(asked)):
                if reply := one.begun.give(asked.owner, place, self._loop.time()):
                    self._handed_on += 1
                    fresh.append(at)
                    replies.append(reply)
                    reply.listen(partial(self._say, one, (asked.owner, place)))
            if fresh:
                self._begin(client, asked, fresh, replies)

    def _begin(self, client: str, asked: Asked, fresh: Sequence[int], replies: Sequence[Reply]) -> None:
        """Queue those items of a request."""
        if self._is_draining:
            for reply in replies:
                reply.put(Failed(Overloaded(f"engine {self.engine.name!r} is being stopped")))
            return
        owner: Hashable = (client, asked.owner) if asked.owner != 0 else 0
        if owner != 0 and self.engine.capabilities.prefix:
            self._clients[client].owners.add(owner)
        now_s = self._loop.time()
        query = Query(owner, Terms(asked.tenant, now_s + asked.left_s), now_s - asked.age_s)
        payloads = unpacked(asked.payloads)
        self._host.submit(
            self.engine, asked.op, [payloads[at] for at in fresh], asked.settings, replies,
            query=query, urgency=asked.urgency,
        )  # fmt: skip
        if asked.onward and self._handing_on:
            self._handing_on.watch(replace(asked, tags=tuple(asked.tags[at] for at in fresh)), replies)

    async def poll(self, client: str) -> Said:
        """What is new for this client, waiting for it a while unless another call of its does."""
        return await self._news(self._client(client))

    async def _news(self, one: _Client) -> Said:
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

    async def cancel(self, client: str, ids: Sequence[ItemId]) -> None:
        """The client does not want these any more."""
        one, now_s = self._client(client), self._loop.time()
        for item_id in ids:
            reply = one.replies.get(item_id) if isinstance(item_id, int) else one.begun.take(*item_id, now_s)
            if reply is not None:
                reply.cancel_unless_ended()

    async def release(self, client: str, owner: Hashable) -> None:
        """That query of the client's is over."""
        self._client(client).owners.discard((client, owner))
        self._host.release((client, owner))

    async def leave(self, client: str) -> None:
        """The client goes: what it waits for is cancelled, and nothing is kept for its queries."""
        if one := self._clients.pop(client, None):
            for reply in list(one.replies.values()):
                reply.cancel_unless_ended()
            one.begun.forget()
            for owner in one.owners:
                self._host.release(owner)

    # --- what operators call -----------------------------------------------------------------------------------------

    @property
    def open_items(self) -> int:
        """Items that clients wait for."""
        return len(self._waiting())

    def stats(self) -> dict[str, Any]:
        """How it does: counts of all items, what waits and runs now, clients."""
        counts: Counts = self._host.counts(self.engine)
        worker = self._host.load(self.engine)
        return {
            "clients": len(self._clients), "open": self.open_items, "queued": worker[0], "running": worker[1],
            "handed_on": self._handed_on,
            **{name: getattr(counts, name) for name in Counts.__slots__},
        }  # fmt: skip

    def rescaled(self) -> None:
        """The engine has another number of instances."""
        self._host.rescale(self.engine)

    async def drain(self, timeout_s: float) -> int:
        """Take nothing more in and wait for what is there. How many items had not ended in time."""
        self._is_draining = True
        done = asyncio.gather(*(reply.aresult() for reply in self._waiting()), return_exceptions=True)
        await asyncio.wait({done}, timeout=timeout_s)
        return self.open_items

    async def close(self) -> None:
        """End everything."""
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
        """What clients wait for, or are about to."""
        return [reply for one in self._clients.values() for reply in (*one.replies.values(), *one.begun.open)]

    def _say(self, one: _Client, item_id: ItemId, outcome: Outcome) -> None:
        if isinstance(item_id, int):
            if not isinstance(outcome, Delta):
                one.replies.pop(item_id, None)
        elif not isinstance(outcome, Done):
            return  # the client will hear of it when it asks
        one.outbox.append((item_id, outcome))
        one.news.set()

    async def _reap(self) -> None:
        """Let go of clients that are not heard of."""
        while True:
            await asyncio.sleep(LEASE_S / 3)
            for name, one in list(self._clients.items()):
                one.begun.forget(self._loop.time() - LEASE_S / 3)
                if self._loop.time() - one.seen_s > LEASE_S:
                    await self.leave(name)


def _places(asked: Asked) -> list[Place]:
    """Of its items, if they have any."""
    return [Place(asked.name, tag) for tag in asked.tags]
