"""What clients of simulated engines ask for, and how they were told of its end."""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass
from typing import Any

from teola_plugin.engines import Delta, Outcome
from teola_plugin.seams import Reply

GREEDY = {"temperature": 0, "max_tokens": 1}
SAMPLED = {"temperature": 0.7, "max_tokens": 1}


class Ending(Exception):
    """A listener that fails."""


class Watched(Reply):
    """A reply that remembers how it was told."""

    __slots__ = ("_loop", "by_itself", "ended_s", "puts", "text")

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self.puts = 0
        self.by_itself = False
        self.text = ""
        self.ended_s = math.inf

    def put(self, outcome: Outcome) -> None:
        if self.outcome is None:
            if isinstance(outcome, Delta):
                self.text += outcome.text
            else:
                self.ended_s = self._loop.time()
        if not isinstance(outcome, Delta):
            self.puts += 1
        super().put(outcome)

    def cancel_unless_ended(self) -> None:
        if self.outcome is None:
            self.by_itself = True
            self.puts -= 1
        super().cancel_unless_ended()


@dataclass(eq=False)
class Asked:
    """One item of a client."""

    op: str
    payload: str
    tenant: str
    settings: dict[str, Any]
    deadline_s: float
    asked_s: float
    ahead: int
    reply: Watched

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        with contextlib.suppress(Ending):
            self.reply.cancel_unless_ended()
