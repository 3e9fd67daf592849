"""Speculative requests of a query: made before the condition is decided (passes/speculate_branches.py). Pure state.

    guess = speculation.add(ready, request)            # is_wanted(name) is None
    speculation.withdraw(guess)                        # failed before the decision: as if the request was not made
    for guess, is_wanted in speculation.decided(scheduler.is_wanted): ...

An entry without a request was not requested, or has failed: if wanted after all, the entry is requested again, and only
the second outcome counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from teola_plugin.errors import Overloaded
from teola_plugin.runtime.session.graph_scheduler import Ready

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class SpeculativeRequest(Generic[R]):
    """A primitive that may be requested, and the request if made. `is_open`: the condition is not decided yet."""

    ready: Ready
    request: R | None
    is_open: bool = True


def crowded_out() -> Overloaded:
    """Return the error of a speculative request that would have to wait for other work."""
    return Overloaded("what perhaps nobody wants does not wait for other work")


class Speculation(Generic[R]):
    """The speculative requests of a query; the condition of requests in `open` is not decided yet."""

    def __init__(self) -> None:
        self.open: list[SpeculativeRequest[R]] = []

    def add(self, ready: Ready, request: R | None) -> SpeculativeRequest[R]:
        """Add a speculative request."""
        guess = SpeculativeRequest(ready, request)
        self.open.append(guess)
        return guess

    def withdraw(self, guess: SpeculativeRequest[R]) -> bool:
        """Drop a request that failed while undecided. Returns whether the request was still undecided."""
        if guess.is_open:
            guess.request = None
        return guess.is_open

    def decided(self, is_wanted: Callable[[str], bool | None]) -> list[tuple[SpeculativeRequest[R], bool]]:
        """Remove and return the requests whose condition is decided by now, each with whether the value is wanted."""
        wanted = {name: is_wanted(name) for name in {guess.ready.primitive.name for guess in self.open}}
        found = [(guess, known) for guess in self.open if (known := wanted[guess.ready.primitive.name]) is not None]
        for guess, _ in found:
            guess.is_open = False
        self.open = [guess for guess in self.open if guess.is_open]
        return found
