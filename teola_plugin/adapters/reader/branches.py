"""Undecided branches of an evaluation: learned targets and assumed targets.

A prediction with routes to learn from evaluates the program twice. The first evaluation assumes nothing, so routes do
not change which requests are certain. The first evaluation notes the undecided branches, and their targets once the
replies are there. If an undecided branch has a likely target, the second evaluation goes there. Requests of the second
evaluation alone are possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from teola_plugin.routes import CallRoutes


@dataclass(slots=True)
class Branches:
    """The branches of one evaluation of a `prediction`. `is_assuming`: the second evaluation.

    `may_assume`: an undecided branch has a likely target. `has_assumed`: from here on all requests are only possible.
    """

    routes: CallRoutes
    prediction: Hashable
    is_assuming: bool = False
    may_assume: bool = False
    has_assumed: bool = False
    _times: Counter[Hashable] = field(default_factory=Counter)

    def undecided(self, branch: Hashable) -> Hashable | None:
        """Return the target to assume of an undecided `if`, or None. Counts the branch as reached."""
        if not self.is_assuming:
            self.routes.reached(branch, self._next(branch))
        return self.assumed(branch)

    def assumed(self, branch: Hashable) -> Hashable | None:
        """Return the target to assume of an undecided branch; None to leave the branch undecided."""
        likely = self.routes.likely(branch)
        self.may_assume |= likely is not None
        if likely is None or not self.is_assuming:
            return None
        self.has_assumed = True
        return likely

    def decided(self, branch: Hashable, target: Hashable) -> None:
        """Record the target of an `if`, which counts if the branch was undecided before."""
        if not self.is_assuming:
            self.routes.took(branch, target, self._next(branch))

    def _next(self, branch: Hashable) -> Hashable:
        self._times[branch] += 1
        return self.prediction, self._times[branch]
