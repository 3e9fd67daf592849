"""Values that go from one engine straight to the next, while the process that asked only learns of them.

    client --embed, onward to search--> embedder --vectors--> store --found--> client, which expects it
    client <----------vectors---------- embedder

Work is told apart by its *place*: the query, the primitive, the tag of the item. A client that has the vectors and
hears nothing of the search for a while asks for it after all. Whoever comes first with a place has it begun, the other
engine or the client's own request, and the second finds it there. So nothing depends on what is handed on: lost, late
or twice, it only changes when work begins. It takes twice the messages of asking in turn, so it is for engines on other
nodes, and rests while they are busy. Which primitives follow others so: followers.py.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from teola_plugin.engines import Done, Item, Onward, Outcome, Place
from teola_plugin.runtime.hosts.remote.messages import Asked, packed
from teola_plugin.runtime.hosts.tasks import spawn
from teola_plugin.runtime.session.ancestry import Tag
from teola_plugin.seams import Reply

log = logging.getLogger(__name__)

Send = Callable[[Hashable, Sequence[Asked]], Awaitable[None]]
"""Takes requests to the engine with that address."""


class HandingOn:
    """What an engine's clients want handed on, as it comes out."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._going: dict[int, _Going] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def watch(self, asked: Asked, replies: Sequence[Reply]) -> None:
        """Hand on the values of these replies to a request."""
        begun_s = self._loop.time()
        for tag, reply in zip(asked.tags, replies, strict=True):
            reply.listen(partial(self._hear, asked, begun_s, tag))

    def _hear(self, asked: Asked, begun_s: float, tag: Tag, outcome: Outcome) -> None:
        if not isinstance(outcome, Done):
            return
        if not self._going:
            self._loop.call_soon(self._flush)
        self._going.setdefault(id(asked), _Going(asked, begun_s, [])).values.append((tag, outcome.value))

    def _flush(self) -> None:
        """One call for all that came out together and goes to the same engine."""
        going, self._going = self._going, {}
        calls: dict[Hashable, list[Asked]] = {}
        for each in going.values():
            for onward in each.asked.onward:
                calls.setdefault(onward.address, []).append(_asked(each, onward, self._loop.time()))
        for address, requests in calls.items():
            spawn(self._sent(address, requests), self._sending)

    async def _sent(self, address: Hashable, requests: Sequence[Asked]) -> None:
        try:
            await self._send(address, requests)
        except Exception as e:  # around another engine, which the client asks itself in a moment
            log.debug("could not hand on to %s: %s", address, e)


class _Going(NamedTuple):
    """Values that one request has brought so far. `begun_s`: when it came."""

    asked: Asked
    begun_s: float
    values: list[tuple[Tag, Any]]


def _asked(going: _Going, onward: Onward, now_s: float) -> Asked:
    """The request that follows, as the client would make it."""
    asked, passed_s = going.asked, now_s - going.begun_s
    return replace(
        asked,
        op=onward.op, settings=dict(onward.settings), ids=(), payloads=packed(value for _, value in going.values),
        urgency=onward.urgency, left_s=asked.left_s - passed_s, age_s=asked.age_s + passed_s,
        name=onward.name, tags=tuple(tag for tag, _ in going.values), onward=onward.then,
    )  # fmt: skip


class Begun:
    """What has begun for a client: by place, a reply that waits for its own request, or a mark that it came."""

    def __init__(self) -> None:
        self._at: dict[tuple[Hashable, Place], tuple[Reply | None, float]] = {}

    def give(self, owner: Hashable, place: Place, now_s: float) -> Reply | None:
        """The reply to begin there for somebody who hands on; None if it has begun."""
        if (owner, place) in self._at:
            return None
        reply = Reply()
        self._at[owner, place] = reply, now_s
        return reply

    def take(self, owner: Hashable, place: Place, now_s: float) -> Reply | None:
        """What was begun there; the client's own request is there now."""
        found, _ = self._at.get((owner, place), (None, 0.0))
        self._at[owner, place] = None, now_s
        return found

    @property
    def open(self) -> list[Reply]:
        """What goes on and nobody has asked for yet."""
        return [reply for reply, _ in self._at.values() if reply is not None and reply.outcome is None]

    def forget(self, before_s: float = math.inf) -> None:
        """What was begun before that. Whoever still asks for what nobody took has it begun anew."""
        for key, (reply, since_s) in list(self._at.items()):
            if since_s < before_s:
                del self._at[key]
                if reply is not None:
                    reply.cancel_unless_ended()


class Expected:
    """What a client expects: by place nothing yet, the value, or the number of its own item that waits for it."""

    def __init__(self) -> None:
        self._of: dict[Hashable, dict[Place, Done | int | None]] = {}
        self._untold: set[tuple[Hashable, Place]] = set()

    def __bool__(self) -> bool:
        """Something is still to be told."""
        return bool(self._untold)

    def add(self, owner: Hashable, places: Iterable[Place]) -> None:
        """From now on, until `forget`."""
        known = self._of.setdefault(owner, {})
        for place in places:
            if place not in known:
                known[place] = None
                self._untold.add((owner, place))

    def take(self, items: Sequence[Item]) -> tuple[dict[int, Done], set[int]]:
        """The values that are known, by position, and the items that wait for theirs from now on."""
        known: dict[int, Done] = {}
        waiting: set[int] = set()
        for position, item in enumerate(items):
            places = self._of.get(item.owner, {})
            if item.place is None or item.place not in places:
                continue
            if isinstance(found := places[item.place], Done):
                known[position] = found
            else:
                places[item.place] = item.id
                waiting.add(item.id)
        return known, waiting

    def hear(self, owner: Hashable, place: Place, outcome: Done) -> int | None:
        """The item that has waited for it; others will find it here."""
        places = self._of.get(owner, {})
        if place not in places:
            return None
        self._untold.discard((owner, place))
        waiting, places[place] = places[place], outcome
        return waiting if isinstance(waiting, int) else None

    def forget(self, owner: Hashable) -> None:
        """The query is over."""
        self._untold.difference_update([(owner, place) for place in self._of.pop(owner, ())])
