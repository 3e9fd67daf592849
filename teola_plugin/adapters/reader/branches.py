"""Branches that an evaluation comes to before they are decided: what is learned of them, and what is assumed.

A prediction with routes to learn from evaluates its program twice. The first evaluation assumes nothing, so what is
certain is what it ever was; it notes which branches are undecided, and how they come out when their replies are there.
If one of these has a likely target, the second evaluation goes there. What only that one comes to is possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from teola_plugin.routes import CallRoutes

Undecided = set[tuple[Hashable, int]]
"""Branches that no evaluation of a prediction has seen decided, and which time it is that one comes there."""


@dataclass(slots=True)
class Branches:
    """Those of one evaluation. `is_assuming`: it is the second. `has_assumed`: from here on all is only possible.

    `may_assume`: a branch is undecided that has a likely target.
    """

    routes: CallRoutes
    open: Undecided
    is_assuming: bool = False
    has_assumed: bool = False
    may_assume: bool = False
    _times: Counter[Hashable] = field(default_factory=Counter)

    def undecided(self, branch: Hashable) -> Hashable | None:
        """What to assume of an undecided `if`."""
        if not self.is_assuming:
            self.open.add(self._next(branch))
        return self.assumed(branch)

    def assumed(self, branch: Hashable) -> Hashable | None:
        """What to assume of a branch that others learn of."""
        likely = self.routes.likely(branch)
        self.may_assume |= likely is not None
        if likely is None or not self.is_assuming:
            return None
        self.has_assumed = True
        return likely

    def decided(self, branch: Hashable, target: Hashable) -> None:
        """An `if` has come out so. Only those are learned that were undecided once."""
        if not self.is_assuming and (at := self._next(branch)) in self.open:
            self.open.discard(at)
            self.routes.took(branch, target)

    def _next(self, branch: Hashable) -> tuple[Hashable, int]:
        self._times[branch] += 1
        return branch, self._times[branch]
