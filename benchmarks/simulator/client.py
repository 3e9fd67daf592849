"""The host as one query sees it: what a client elsewhere waits for on the network, and the spans of requests.

    run_query --submit--> Client --one way--> LocalHost --outcomes--> Client --one way--> replies

Which primitive a request is of is told by its urgency: each primitive of a plan has an object of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from simulator.systems import Workload
from simulator.usage import Span
from teola_plugin.engines import NOT_URGENT, Engine, Failed, Outcome, Urgency
from teola_plugin.errors import Cancelled
from teola_plugin.graph import Primitive
from teola_plugin.runtime.hosts.local import NOBODY, LocalHost, Query
from teola_plugin.seams import Reply


@dataclass(frozen=True, slots=True)
class Source:
    """A primitive. `is_mapped`: it asks for each item of a list."""

    primitive: Primitive
    is_mapped: bool


def sources_of(workload: Workload) -> dict[int, Source]:
    """The primitives of a workload and its rounds, by the identities of their urgencies."""
    plan = workload.plan
    found = {id(plan.remaining[p.name]): Source(p, plan.map_depths[p.name] > 0) for p in plan.graph}
    for name in workload.rounds:
        found |= sources_of(workload.each_round(name))
    return found


@dataclass(slots=True)
class Client:
    """Submits requests; all else is the host's. `tell`: hears of each request that was answered.

    `round_trip_s`: drawn anew for each request; None: the query runs where the engines are.
    """

    host: LocalHost
    loop: asyncio.AbstractEventLoop
    sources: Mapping[int, Source]
    number: int
    seed: int
    round_trip_s: Callable[[random.Random], float] | None
    tell: Callable[[Span], None] | None
    asked: Counter[str] = field(default_factory=Counter)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.host, name)

    def submit(
        self, engine: Engine, op: str, payloads: Sequence[Any], settings: Mapping[str, Any], replies: Sequence[Reply],
        *, query: Query = NOBODY, urgency: Urgency = NOT_URGENT, gives_way: Callable[[], bool] | None = None,
    ) -> None:  # fmt: skip
        """Submit a request to the host, after one way to it."""
        source = self.sources[id(urgency)]
        submit = partial(self.host.submit, engine, op, payloads, settings, query=query, urgency=urgency,
                         gives_way=gives_way)  # fmt: skip
        if self.round_trip_s is None:
            self._trace(source.primitive, engine, replies)
            submit(replies)
            return
        way_s = self._one_way_s(source)
        there = [self._beyond(reply, way_s, is_guess=gives_way is not None) for reply in replies]

        def arrive() -> None:
            self._trace(source.primitive, engine, there)
            submit(there)

        self.loop.call_later(way_s, arrive)

    def _one_way_s(self, source: Source) -> float:
        """Half the round trip. It is drawn for the request alone, so that other ways to run the query have the same."""
        assert self.round_trip_s is not None
        name = source.primitive.name
        place = (self.asked[name],) if source.is_mapped else ()
        self.asked[name] += 1
        return self.round_trip_s(random.Random(f"{self.seed} {self.number} {name} {place}")) / 2

    def _beyond(self, reply: Reply, way_s: float, *, is_guess: bool) -> Reply:
        """A reply at the host, whose outcomes take their way to the reply of the client.

        That a guess has failed is known at once: its primitive may be wanted meanwhile, and is then asked for again.
        """
        there = Reply()

        def come(outcome: Outcome) -> None:
            if is_guess and isinstance(outcome, Failed):
                reply.put(outcome)
            else:
                self.loop.call_later(way_s, reply.put, outcome)

        there.listen(come)
        reply.cancel = there.cancel_unless_ended
        return there

    def _trace(self, p: Primitive, engine: Engine, replies: Sequence[Reply]) -> None:
        if (tell := self.tell) is None:
            return
        open_ = set(replies)
        span = Span(self.number, p.name, engine.name, self.loop.time(), -1.0, -1.0, len(replies))

        def hear(reply: Reply, outcome: Outcome) -> None:
            nonlocal span
            if span.begin_s < 0:
                span = replace(span, begin_s=self.loop.time())
            if reply.outcome is None:
                return
            open_.discard(reply)
            if not open_ and (p.setting("early_stop") or not _was_cancelled(replies)):
                tell(replace(span, end_s=self.loop.time()))

        for reply in replies:
            reply.listen(partial(hear, reply))


def _was_cancelled(replies: Sequence[Reply]) -> bool:
    return any(isinstance(r.outcome, Failed) and isinstance(r.outcome.error, Cancelled) for r in replies)
