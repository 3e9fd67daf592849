"""Which primitives an engine can be handed the payloads of by another engine (forwarding.py).

    vectors: [] = embedding(*texts) @ embedder
    hits: [] = searching(*vectors, top_k=3) @ store      follows `vectors`: its payload is the vector as it is

Only what has no effects, and waits for nothing else: it may begin as soon as the value is there.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from teola_plugin.engines import Place
from teola_plugin.graph import DECODES, PIPELINE, Primitive
from teola_plugin.plan import Plan
from teola_plugin.runtime.session.ancestry import Sight, Where
from teola_plugin.runtime.session.slots import SHARED


@runtime_checkable
class HandedOn(Protocol):
    """An engine that others may hand values on to, and which hands on itself."""

    @property
    def address(self) -> Hashable:
        """Of the engine, and of this process as its client."""
        ...

    @property
    def is_far(self) -> bool:
        """On another node: the way there takes longer than a message costs."""
        ...

    def expect(self, owner: Hashable, places: Sequence[Place]) -> None:
        """What the query will ask at these places is to be handed on: listen for the outcomes."""
        ...

    def release(self, owner: Hashable) -> None:
        """The query is over."""
        ...


def followers_of(plan: Plan, sights: Mapping[str, Sight]) -> dict[str, tuple[Primitive, ...]]:
    """Of each primitive, those that take its values as they are, item by item, and nothing besides."""
    found = {p.name: tuple(c for c in plan.consumers[p.name] if _follows(p, sights[c.name], plan)) for p in plan.graph}
    return {name: followers for name, followers in found.items() if followers}


def _follows(p: Primitive, sight: Sight, plan: Plan) -> bool:
    follower = sight.primitive
    if PIPELINE in (p.engine, follower.engine) or follower.kind not in SHARED:
        return False
    if follower.when or follower.after or follower.gated or follower.setting("ahead"):
        return False
    is_told_whole = p.kind in (*SHARED, *DECODES) and not plan.yields[p.name]
    where = Where.ITEM if sight.map_depth else Where.WHOLE
    return is_told_whole and plan.depths[p.name] == sight.map_depth and sight.args == ((where, p.name),)
