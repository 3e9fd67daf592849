"""Functions beside each other on an event loop: an error in one function cancels all others.

    one    ask A, parse the reply
    two    ask B, ask C

B is asked as `two` begins. C is asked unless the reply to A cannot be parsed by then, so C waits for that reply. Where
`one` may raise before asking anything, B waits too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.adapters.reader.values import ANYWHERE, Barrier, Stalled, Undecided


@dataclass
class Companion:
    """One of the functions. `begins_asking`: a request comes before anything that may raise.

    `first` and `later`: the first request, if unanswered, and further requests. `gates`: the sources of errors.
    `is_cancelled`: an error of another function ends the function at its next request.
    """

    is_cancelled: bool = True
    begins_asking: bool = False
    first: list[Any] = field(default_factory=list)
    later: list[Any] = field(default_factory=list)
    gates: frozenset[Hashable] = frozenset()


@dataclass
class Companions:
    """The functions beside each other, in one evaluation."""

    run: Any
    _all: list[Companion] = field(default_factory=list)

    @contextlib.contextmanager
    def one(self, *, is_cancelled: bool = True) -> Iterator[Companion]:
        """Evaluate one function inside the context. A function that is not read to the end may raise."""
        run, own = self.run, Companion(is_cancelled)
        before, met, asked = run.gates, len(run.met), len(run.asks)
        self._all.append(own)
        try:
            yield own
        except (Barrier, Stalled, Undecided, Exception):
            own.gates |= ANYWHERE
            raise
        finally:
            own.gates |= run.gates - before
            asks = list(run.asks.values())[asked:]
            requests = [each for each in run.met[met:] if each.source is not None]
            if requests:
                first = requests[0]
                own.begins_asking = first.is_answered or not (
                    first.ask is None or first.ask.is_possible or first.ask.gates - before
                )
                own.first = [first.ask] if first.ask is not None else []
            own.later = [ask for ask in asks if not any(ask is each for each in own.first)]

    def add_unread(self) -> None:
        """Note that a function which is not read runs beside the others."""
        self._all.append(Companion(gates=ANYWHERE))

    def hold_back(self) -> None:
        """Let the requests of each function wait for the others."""
        for own in self._all:
            others = [each for each in self._all if each is not own and each.gates]
            for ask in own.later if own.is_cancelled else ():
                ask.gates = ask.gates.union(*(each.gates for each in others))
            for ask in own.first if own.is_cancelled else ():
                ask.gates = ask.gates.union(*(each.gates for each in others if not each.begins_asking))
