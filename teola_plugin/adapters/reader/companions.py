"""Functions side by side on an event loop: an error in a function cancels all companions.

    left     ask A, parse the reply
    right    ask B, ask C

B is asked as `right` begins. C is asked unless parsing the reply to A has failed by then, so C waits for the reply.
Where `left` may raise before asking anything, B waits too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.adapters.reader.values import ANYWHERE, Barrier, Stalled, Undecided


@dataclass
class Companion:
    """A function. `begins_asking`: a request comes before anything may raise.

    `first` and `later`: the first request, if unanswered, and further requests. `gates`: the sources of errors.
    `is_cancelled`: an error of another function ends the function at the next request.
    """

    is_cancelled: bool = True
    begins_asking: bool = False
    first: list[Any] = field(default_factory=list)
    later: list[Any] = field(default_factory=list)
    gates: frozenset[Hashable] = frozenset()


@contextlib.contextmanager
def beside(run: Any, *, are_cancelled: bool = True) -> Iterator[Companions]:
    """Evaluate functions side by side inside the context, each in `Companions.one`.

    At the end the requests of each function wait for the others, if these `are_cancelled` by an error.
    """
    companions = Companions(run)
    try:
        yield companions
    finally:
        if are_cancelled:
            companions.hold_back()


@dataclass
class Companions:
    """The functions side by side, in an evaluation."""

    run: Any
    _all: list[Companion] = field(default_factory=list)

    @contextlib.contextmanager
    def one(self, *, is_cancelled: bool = True) -> Iterator[None]:
        """Evaluate a function inside the context. A function not read to the end may raise."""
        run, own = self.run, Companion(is_cancelled)
        before, met, asked = run.gates, len(run.met), len(run.asks)
        self._all.append(own)
        try:
            yield
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
        """Note that an unread function runs beside the functions."""
        self._all.append(Companion(gates=ANYWHERE))

    def hold_back(self) -> None:
        """Let the requests of each function wait for the others."""
        for own in self._all:
            others = [each for each in self._all if each is not own and each.gates]
            for ask in own.later if own.is_cancelled else ():
                ask.gates = ask.gates.union(*(each.gates for each in others))
            for ask in own.first if own.is_cancelled else ():
                ask.gates = ask.gates.union(*(each.gates for each in others if not each.begins_asking))
