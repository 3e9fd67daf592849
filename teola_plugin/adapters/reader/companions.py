"""Functions side by side, on an event loop or on threads.

On an event loop an error in a function cancels all companions:

    left     ask A, parse the reply
    right    ask B, ask C

B is asked as `right` begins. C is asked unless parsing the reply to A has failed by then, so C waits for the reply.
Where `left` may raise before asking anything, B waits too.

A function that changes an object which another function reaches ends the reading: how far each function has come at
the change is not known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.adapters.reader.heap import Log
from teola_plugin.adapters.reader.values import ANYWHERE, Barrier, Renewed, Stalled, Undecided


@dataclass
class Companion:
    """A function. `begins_asking`: a request comes before anything may raise.

    `first` and `later`: the first request, if unanswered, and further requests. `gates`: the sources of errors.
    `is_cancelled`: an error of another function ends the function at the next request. `given`: what the function
    alone is given; `changes`: the objects that the function has changed, with the contents before.
    """

    is_cancelled: bool = True
    given: Sequence[Any] = ()
    changes: Log = field(default_factory=dict)
    begins_asking: bool = False
    first: list[Any] = field(default_factory=list)
    later: list[Any] = field(default_factory=list)
    gates: frozenset[Hashable] = frozenset()


@contextlib.contextmanager
def beside(
    run: Any, given: Sequence[Sequence[Any]], *, are_cancelled: bool = True, shared: Sequence[Any] = ()
) -> Iterator[Companions]:
    """Evaluate functions side by side inside the context, each in `Companions.one`.

    At the end the requests of each function wait for the others, if these `are_cancelled` by an error. `given`: what
    each function alone is given; `shared`: what all functions are given. Raises: Barrier if a function has changed what
    the functions share.
    """
    companions, is_renewed = Companions(run, shared, given), False
    companions.forget_shared()
    try:
        yield companions
    except Renewed:
        is_renewed = True
        raise
    finally:
        if are_cancelled:
            companions.hold_back()
        if not is_renewed:
            companions.require_nothing_shared()


@dataclass
class Companions:
    """The functions side by side, in an evaluation. `shared`, `given`: see `beside`."""

    run: Any
    shared: Sequence[Any] = ()
    given: Sequence[Sequence[Any]] = ()
    _all: list[Companion] = field(default_factory=list)
    _asked_before: int = 0

    def __post_init__(self) -> None:
        self._asked_before = len(self.run.asks)

    @contextlib.contextmanager
    def one(self, *, is_cancelled: bool = True, given: Sequence[Any] = ()) -> Iterator[None]:
        """Evaluate a function inside the context. A function not read to the end may raise.

        `given`: what the function alone is given, if the number of functions was not known before.
        """
        run, place = self.run, len(self._all)
        own = Companion(is_cancelled, self.given[place] if self.given else given)
        before, met, asked = run.gates, len(run.met), len(run.asks)
        self._all.append(own)
        try:
            with run.together(len(self.given)), run.noting() as own.changes:
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

    def forget_shared(self) -> None:
        """Forget the content of what the functions share, if an unread function among the functions may change it."""
        if len(self.given) > 1 and self.run.is_beside_unread:
            self.run.forget_shared([self.shared, self.shared, *self.given])

    def require_nothing_shared(self) -> None:
        """Raises: Barrier if functions share what a function has changed; then no request of theirs is certain."""
        if len(self._all) > 1 and self._shares():
            for ask in list(self.run.asks.values())[self._asked_before :]:
                ask.is_possible = True
            raise Barrier("functions that run beside each other change what they share")

    def _shares(self) -> bool:
        run = self.run
        changed = [
            {key: held for key, (held, _) in each.changes.items() if not run.stands_outside(held)} for each in self._all
        ]
        all_changed = {key: held for each in changed for key, held in each.items()}
        if not all_changed:
            return False
        if run.can_share(all_changed, self.shared):
            return True
        if not any(run.reached(all_changed, [root for each in self._all for root in each.given])):
            return False
        for place, own in enumerate(self._all):
            found = set(run.reached(all_changed, own.given))
            if any(found & other.keys() for at, other in enumerate(changed) if at != place):
                return True
        return False
