"""What happened while a query ran, as frozen facts. Times are `time.perf_counter()` seconds of this process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchRan:
    """An engine ran a batch that held items of this query, and maybe of others."""

    engine: str
    op: str
    items: int
    started_s: float
    ended_s: float
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PrimitiveRan:
    """Instances of a primitive ran ahead as one request: `items` of them."""

    primitive: str
    engine: str
    items: int
    started_s: float
    ended_s: float
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Retired:
    """The framework reached a leaf. `outcome`: hit (ran ahead), miss (computed now) or stale (the store changed)."""

    engine: str
    op: str
    outcome: str
    at_s: float


Event = BatchRan | PrimitiveRan | Retired
