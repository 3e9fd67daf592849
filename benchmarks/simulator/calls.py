"""Calls of modelled engines: the way to an engine and back, processors that engines share, and several instances.

Engine.run --hop--> begin(call) ... tell([(call, position, outcome)]) --hop--> emit(position, outcome)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.cores import Cores
from simulator.values import Count
from teola_plugin.engines import Batch, Capabilities, Delta, Emit, Engine, Outcome
from teola_plugin.errors import EngineError

Told = tuple["Call", int, Outcome]
"""An outcome of the item at a position of a call."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What all engines of a simulation share. `count`: tokens of a text; `hop_s` and `cores`: see `System`.

    `is_traced`: the first delta of each item, which is empty, tells that the item was begun.
    """

    loop: asyncio.AbstractEventLoop
    count: Count
    hop_s: float = 0.0
    cores: Cores | None = None
    is_traced: bool = False

    def after(self, demand: float, seconds: float, act: Callable[..., None], *args: Any) -> None:
        """Call `act` after work of so many seconds on `demand` processors: later where processors are shared."""
        due_s = self.loop.time() + seconds
        if self.cores:
            self.cores.at(demand, due_s, act, *args)
        else:
            self.loop.call_at(due_s, act, *args)

    def hop(self, act: Callable[..., None], *args: Any) -> None:
        """Call `act` one hop later."""
        if self.hop_s:
            self.loop.call_later(self.hop_s, act, *args)
        else:
            act(*args)

    def tell(self, outcomes: Sequence[Told]) -> None:
        """Emit outcomes one hop later."""
        if outcomes:
            self.hop(_emit, outcomes)


class Call:
    """A call of `Engine.run`, which ends with the last outcome."""

    __slots__ = ("_emit", "_ended", "_open", "_setup", "batch")

    def __init__(self, batch: Batch, emit: Emit, setup: Setup) -> None:
        self.batch = batch
        self._emit = emit
        self._setup = setup
        self._open = len(batch.items)
        self._ended: asyncio.Future[None] = setup.loop.create_future()

    async def end_of(self, begin: Callable[[Call], None]) -> None:
        """Let an instance begin the call, and wait until all items have ended."""
        self._setup.hop(begin, self)
        await self._ended

    def begin(self, position: int) -> None:
        """Note that an item was begun."""
        if self._setup.is_traced:
            self._emit(position, Delta(""))

    def emit(self, position: int, outcome: Outcome) -> None:
        """Emit an outcome now."""
        self._emit(position, outcome)
        if type(outcome) is not Delta:
            self._open -= 1
            if not self._open and not self._ended.done():
                self._ended.set_result(None)


def _emit(outcomes: Sequence[Told]) -> None:
    for call, position, outcome in outcomes:
        call.emit(position, outcome)


@dataclass(eq=False)
class Replicated:
    """An engine of several instances. `kv_tokens`: see `Engine`; None where the KV cache has no end."""

    name: str
    capabilities: Capabilities
    instances: Sequence[Engine]
    kv_tokens: Callable[[str, Any, Mapping[str, Any]], int] | None = None

    async def run(self, batch: Batch, emit: Emit) -> None:
        """Only instances run batches. Raises: EngineError."""
        raise EngineError(f"{self.name!r} runs nothing itself")

    def abort(self, ids: Sequence[int]) -> None:
        """Do nothing: instances abort."""

    async def close(self) -> None:
        """Do nothing."""
