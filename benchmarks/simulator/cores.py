"""Processors that the engines of one machine share: with too few of them all that runs takes longer.

    cores.at(1.0, due_s, act)      act() at that second if a processor is free until then, else as much later

As operating systems do it, roughly: whoever works gets the same share of what he could use. An engine on processors of
its own, or one that waits for another machine, has no part in this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ROUNDING_S = 2e-9
"""An event loop calls what is due up to a nanosecond early."""


@dataclass(slots=True)
class _Job:
    """`left_s`: on as many processors as it can use."""

    left_s: float
    demand: float
    act: Callable[..., None]
    args: tuple[Any, ...]


class Cores:
    """So many processors. Seconds are of the loop's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: float) -> None:
        self._loop = loop
        self._count = count
        self._jobs: list[_Job] = []
        self._speed = 1.0
        self._since_s = 0.0
        self._turn = 0

    def at(self, demand: float, due_s: float, act: Callable[..., None], *args: Any) -> None:
        """Call it at that second, or as much later as `demand` processors are not to be had until then."""
        if not demand:
            self._loop.call_at(due_s, act, *args)
            return
        self._pass()
        self._jobs.append(_Job(due_s - self._loop.time(), demand, act, args))
        self._plan()

    def _pass(self) -> None:
        """What was done since the last time."""
        done_s = (self._loop.time() - self._since_s) * self._speed
        self._since_s = self._loop.time()
        for job in self._jobs:
            job.left_s -= done_s

    def _plan(self) -> None:
        """As it stands, the first one ends then."""
        self._turn += 1
        if self._jobs:
            self._speed = min(1.0, self._count / sum(job.demand for job in self._jobs))
            left_s = min(job.left_s for job in self._jobs)
            self._loop.call_at(self._loop.time() + left_s / self._speed, self._ended, self._turn)

    def _ended(self, turn: int) -> None:
        if turn != self._turn:
            return  # others came or went
        self._pass()
        ended = [job for job in self._jobs if job.left_s <= ROUNDING_S]
        self._jobs = [job for job in self._jobs if job.left_s > ROUNDING_S]
        self._plan()
        for job in ended:
            job.act(*job.args)
