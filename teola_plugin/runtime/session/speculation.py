"""What was asked before anybody knew whether it is wanted (passes/speculate_branches.py): pure state, for one query.

    guess = guesses.add(ready, request)                # is_wanted(name) is None
    guesses.withdraw(guess)                            # it failed before it was decided: as if it had not been asked
    for guess, is_wanted in guesses.decided(scheduler.is_wanted): ...

A guess without a request was not asked, or it has failed: if it turns out to be wanted it is asked for, as what is
certain is, and what comes of that counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from teola_plugin.errors import Overloaded
from teola_plugin.runtime.session.graph_scheduler import Ready

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Guess(Generic[R]):
    """What may be asked, and what was. `is_open`: nobody knows yet whether it is wanted."""

    ready: Ready
    request: R | None
    is_open: bool = True


def crowded_out() -> Overloaded:
    """Why a lane refuses a guess."""
    return Overloaded("what perhaps nobody wants does not wait for other work")


class Guesses(Generic[R]):
    """`open`: those that are not decided yet."""

    def __init__(self) -> None:
        self.open: list[Guess[R]] = []

    def add(self, ready: Ready, request: R | None) -> Guess[R]:
        """One more."""
        guess = Guess(ready, request)
        self.open.append(guess)
        return guess

    def withdraw(self, guess: Guess[R]) -> bool:
        """As if it had not been asked, unless it is decided. Whether that is so."""
        if guess.is_open:
            guess.request = None
        return guess.is_open

    def decided(self, is_wanted: Callable[[str], bool | None]) -> list[tuple[Guess[R], bool]]:
        """Those of which it is known by now whether they are wanted; they are open no more."""
        wanted = {name: is_wanted(name) for name in {guess.ready.primitive.name for guess in self.open}}
        found = [(guess, known) for guess in self.open if (known := wanted[guess.ready.primitive.name]) is not None]
        for guess, _ in found:
            guess.is_open = False
        self.open = [guess for guess in self.open if guess.is_open]
        return found
