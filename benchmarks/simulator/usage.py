"""What a simulation came to: how each query ended, what each engine did, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.arrivals import Ended


@dataclass(slots=True)
class EngineUse:
    """What all instances of an engine did. A batch is one prefill of an LLM, one call of any other.

    `busy_s`: added up over the instances. `steps`: decode steps of an LLM, and `step_items` the sequences in them.
    `joined`: items that another request was waiting for already.
    """

    batches: int = 0
    items: int = 0
    busy_s: float = 0.0
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    steps: int = 0
    step_items: int = 0
    joined: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """A request: asked for, begun by an instance (its first item), and answered (its last)."""

    query: int
    primitive: str
    engine: str
    queued_s: float
    begin_s: float
    end_s: float
    items: int = 1


@dataclass(frozen=True, slots=True)
class Simulation:
    """`ended`: in the order of the arrivals. `took_s`: until the last one had. `spans`: with `trace=True`."""

    ended: Sequence[Ended]
    took_s: float
    engines: Mapping[str, EngineUse]
    spans: Sequence[Span] = ()
