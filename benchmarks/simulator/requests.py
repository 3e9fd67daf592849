"""What passes between a query, the lanes and the servers of a simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from teola_plugin.engines import Item, Urgency
from teola_plugin.graph import Primitive
from teola_plugin.runtime.scheduler.work_item import Request as Queued
from teola_plugin.runtime.scheduler.work_item import WorkItem
from teola_plugin.runtime.session.ancestry import Tag
from teola_plugin.runtime.session.speculation import SpeculativeRequest


@dataclass(frozen=True, slots=True)
class Lost:
    """In place of the value of an item that failed."""

    error: BaseException


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A primitive, as far as its requests are concerned; worked out once for a workload.

    `op` and `settings` are the engine's, and requests with equal `group` may share a batch. `grammar`: of the `wanted`
    items that are handed out while the text is being written, if it `is_followed`, else cut out of it at its end.
    `literal_args`: so many at the head are literals. `yields`: a list from each single input. `is_ahead`: perhaps
    nobody wants it.
    """

    primitive: Primitive
    name: str
    engine: str
    op: str
    settings: Mapping[str, Any]
    group: Any
    urgency: Urgency
    yields: bool
    is_prompt: bool
    is_early: bool
    is_inline: bool
    is_followed: bool
    is_repeatable: bool
    literal_args: int
    function: str | None
    grammar: str | None
    wanted: int | None
    early_stop: bool
    is_ahead: bool


@dataclass(slots=True, eq=False)
class Request:
    """One request of a query: a value for each payload. `open`: so many are not there yet.

    `ended` is called with the last value, `told(request, position, items, is_last)` with items of a text once complete.
    `handed`: how many items of a text, by position. `is_dropped`: nobody wants it any more. `guess`: perhaps nobody
    did. `is_over`: its values have come to the query, or will not.
    """

    step: Step
    query: int
    began_s: float
    tags: Sequence[Tag]
    payloads: Sequence[Any]
    ended: Callable[[Request], None]
    told: Callable[[Request, int, Sequence[Any], bool], None]
    values: list[Any]
    open: int
    works: list[Work] = field(default_factory=list)
    handed: dict[int, int] = field(default_factory=dict)
    has_lost: bool = False
    is_dropped: bool = False
    is_over: bool = False
    guess: SpeculativeRequest[Request] | None = None
    round_trip_s: float = -1.0
    queued_s: float = 0.0
    begin_s: float = -1.0


class Work:
    """An item of a lane, by all names of `engines.Item`, so that the schedulers take it for one.

    `request` and `position` read its value, and so do the `others`, who asked for the same later. `unit`: what it is to
    the scheduler. `joinable`: where it is found by its `key`. `told`: the items of its text so far.
    """

    __slots__ = (
        "has_ended", "id", "joinable", "key", "others", "payload", "position", "priority", "request", "step", "tokens",
        "told", "unit",
    )  # fmt: skip
    tenant = ""
    deadline_s = math.inf

    def __init__(
        self, id: int, request: Request, position: int, payload: Any, queued: Queued, tokens: int, priority: int
    ) -> None:
        self.id = id
        self.step = request.step
        self.request = request
        self.position = position
        self.payload = payload
        self.unit = WorkItem(cast("Item", self), queued)
        queued.items.append(self.unit)
        self.tokens = tokens
        self.priority = priority
        self.others: Sequence[tuple[Request, int]] = ()
        self.joinable: dict[Any, Work] | None = None
        self.key: Any = None
        self.told: Sequence[Any] = ()
        self.has_ended = False

    @property
    def owner(self) -> int:
        """The query."""
        return self.request.query

    @property
    def urgency(self) -> Urgency:
        """Of its primitive."""
        return self.step.urgency

    @property
    def begun_s(self) -> float:
        """When its query began."""
        return self.request.began_s
