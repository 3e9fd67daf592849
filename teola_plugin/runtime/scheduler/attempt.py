"""An attempt: a batch with an instance."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, field

from teola_plugin.engines import Batch, Engine
from teola_plugin.errors import EngineError


@dataclass(slots=True, eq=False)
class Attempt:
    """`numbers`: which attempt of each item it is. `owners`: the queries that had part in it.

    `heard_s`: when it last said something. `is_given_up`: nothing was heard of it for too long.
    `broke_protocol`: it emitted what cannot be; nothing is heard of it from then on.
    """

    engine: Engine
    batch: Batch
    numbers: dict[int, int]
    started_s: float
    heard_s: float
    owners: set[Hashable] = field(default_factory=set)
    task: asyncio.Task[None] | None = None
    watch: asyncio.TimerHandle | None = None
    was_restarted: bool = False
    is_given_up: bool = False
    broke_protocol: EngineError | None = None

    @property
    def at(self) -> int:
        """The place of its instance."""
        return self.batch.instance

    def end(self) -> None:
        """Its call is over."""
        if self.watch:
            self.watch.cancel()
        self.watch = self.task = None
