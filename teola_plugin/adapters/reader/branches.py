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


@dataclass(slots=True)
class Branches:
    """Those of one evaluation of a `prediction`. `is_assuming`: it is the second.

    `may_assume`: a branch is undecided that has a likely target. `has_assumed`: from here on all is only possible.
    """

    routes: CallRoutes
    prediction: Hashable
    is_assuming: bool = False
    may_assume: bool = False
    has_assumed: bool = False
    _times: Counter[Hashable] = field(default_factory=Counter)

    def undecided(self, branch: Hashable) -> Hashable | None:
        """What to assume of an `if`, of which only the reader can tell how it comes out."""
        if not self.is_assuming:
            self.routes.reached(branch, self._next(branch))
        return self.assumed(branch)

    def assumed(self, branch: Hashable) -> Hashable | None:
        """What to assume of an undecided branch; None if it is left undecided."""
        likely = self.routes.likely(branch)
        self.may_assume |= likely is not None
        if likely is None or not self.is_assuming:
            return None
        self.has_assumed = True
        return likely

    def decided(self, branch: Hashable, target: Hashable) -> None:
        """An `if` has come out so; that counts where it was undecided before."""
        if not self.is_assuming:
            self.routes.took(branch, target, self._next(branch))

    def _next(self, branch: Hashable) -> Hashable:
        self._times[branch] += 1
        return self.prediction, self._times[branch]
