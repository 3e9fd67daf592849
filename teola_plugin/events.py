"""Events of a query, as frozen facts. Times are `time.perf_counter()` seconds of the process."""

from __future__ import annotations

from typing import NamedTuple


class BatchRan(NamedTuple):
    """An engine ran a batch with items of the query, and maybe of other queries."""

    engine: str
    op: str
    items: int
    started_s: float
    ended_s: float
    ids: tuple[int, ...] = ()


class PrimitiveRan(NamedTuple):
    """Instances of a primitive ran ahead as one request of `items` items."""

    primitive: str
    engine: str
    items: int
    started_s: float
    ended_s: float
    failed: bool = False


class Retired(NamedTuple):
    """The framework reached a leaf. `outcome`: hit (ran ahead), miss (computed now) or stale (the store changed)."""

    engine: str
    op: str
    outcome: str
    at_s: float


Event = BatchRan | PrimitiveRan | Retired
