"""A request in the queue of an engine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from teola_plugin.engines import Item
from teola_plugin.value_keys import value_key


@dataclass(slots=True)
class Request:
    """Items of a primitive (or of a component's call) of a query. `items` shrinks as items leave in batches.

    `remaining_s`: predicted seconds to the end of the query, which began at `begun_s`; the request takes `own_s` of the
    seconds. `arrival`, `since_s`: the number in the order of submissions, and the time of arrival. `is_alone`:
    suspected of crashing the engine, so the request runs alone. `beginning`: see policies.py. `gives_way`: asked
    whether to refuse the request if the request would have to wait (session/speculation.py).
    """

    op: str
    settings: Mapping[str, Any]
    items: list[Item]
    query: Hashable
    depth: int = 0
    remaining_s: float = 0.0
    begun_s: float = 0.0
    is_alone: bool = False
    arrival: int = -1
    since_s: float = 0.0
    group: Hashable = None
    beginning: Hashable = None
    own_s: float = 0.0
    gives_way: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        if self.group is None:
            self.group = (self.op, value_key(self.settings))

    @property
    def waiting(self) -> int:
        """The number of items that are not in a batch yet."""
        return len(self.items)

    @property
    def tenant(self) -> str:
        """The tenant of the request."""
        return self.items[0].tenant if self.items else ""
