"""Which way the calls of one pipeline went at its branches, and which way the next call will probably go.

A *branch* is where a pipeline decides what comes next: the superstep of a graph, whose conditional edges say which
nodes follow, or an `if` of a function. Its *target* is what the decision was. With `optimize(..., speculate="learned")`
a branch that is not decided yet is taken to have its likely target, and what stands behind it is asked ahead, although
it may be for nothing. As the branch predictor of a processor does, this goes by history alone:

- A branch has a *likely* target once it was reached LEAST times, and went there SHARE of the LAST times. A call that
  came to a superstep and no further (it raised, was interrupted or cancelled) went nowhere, and counts as such.
- Nothing is asked for nothing while more than WASTE of the requests of the last ACCOUNT_CALLS calls were wasted
  (`Report.wasted`). Each call that ends takes the oldest out of the account, so it recovers; what calls do is learned
  all the while. Calls under way count when they end.

    reached, took ... end  ->  Routes  ->  likely
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Sequence

LAST = 10
LEAST = 5
SHARE = 0.9
WASTE = 0.1
ACCOUNT_CALLS = 20

MAX_BRANCHES = 4096
"""Those of a pipeline that are kept; of any more nothing is learned."""

LEARNING_CALLS = 2 * LEAST
"""So many first calls of a pipeline are not judged by what they gain."""


class Routes:
    """The history of one pipeline. Safe to use from any thread. `calls`: how many have ended."""

    def __init__(self) -> None:
        self.calls = 0
        self._lock = threading.Lock()
        self._targets: dict[Hashable, deque[Hashable]] = {}
        self._spent: deque[tuple[int, int]] = deque(maxlen=ACCOUNT_CALLS)

    def likely(self, branch: Hashable) -> Hashable | None:
        """Where a branch will probably lead to; None if nobody can tell."""
        with self._lock:
            return _likely(self._targets.get(branch, ()))

    def known(self) -> dict[Hashable, Hashable]:
        """All branches that have a likely target."""
        with self._lock:
            return {branch: found for branch, each in self._targets.items() if (found := _likely(each)) is not None}

    @property
    def has_budget(self) -> bool:
        """Whether requests may be made that are perhaps for nothing."""
        with self._lock:
            return sum(wasted for _, wasted in self._spent) <= WASTE * sum(asked for asked, _ in self._spent)

    def end(self, taken: Sequence[tuple[Hashable, Hashable | None]], asked: int, wasted: int) -> bool:
        """A call has ended, and what it came to. Returns whether a branch has a likely target that had none before."""
        is_news = False
        with self._lock:
            self.calls += 1
            self._spent.append((asked, wasted))
            for branch, target in taken:
                if branch not in self._targets and len(self._targets) >= MAX_BRANCHES:
                    continue
                history = self._targets.setdefault(branch, deque(maxlen=LAST))
                before = _likely(history)
                history.append(target)
                is_news |= before is None and _likely(history) is not None
        return is_news


def _likely(history: Sequence[Hashable]) -> Hashable | None:
    if len(history) < LEAST:
        return None
    most = max(history, key=history.count)
    return most if history.count(most) >= SHARE * len(history) else None


class CallRoutes:
    """One call: what it learns, and what it takes to be likely, which does not change while it runs.

    `may_ask`: see `Routes.has_budget`. `is_at_rest`: the call only learns, nothing of it runs ahead.
    """

    def __init__(self, routes: Routes, *, is_at_rest: bool = False) -> None:
        self.is_at_rest = is_at_rest
        self.may_ask = not is_at_rest and routes.has_budget
        self._routes = routes
        self._lock = threading.Lock()
        self._likely: dict[Hashable, Hashable | None] = {}
        self._taken: list[tuple[Hashable, Hashable | None]] = []
        self._open: set[tuple[Hashable, Hashable]] = set()

    def likely(self, branch: Hashable) -> Hashable | None:
        """See `Routes.likely`."""
        with self._lock:
            if branch not in self._likely:
                self._likely[branch] = self._routes.likely(branch)
            return self._likely[branch]

    def reached(self, branch: Hashable, at: Hashable = None) -> None:
        """The call has come to a branch; `at` tells apart the times that it does."""
        with self._lock:
            self._open.add((branch, at))

    def took(self, branch: Hashable, target: Hashable | None, at: Hashable = None) -> None:
        """A branch was decided that the call had reached; None: as nobody can foresee."""
        with self._lock:
            if (branch, at) in self._open:
                self._open.discard((branch, at))
                self._taken.append((branch, target))

    def forget(self, reader: object) -> None:
        """What it reached and did not decide is left to another, which goes on from where the call is."""
        with self._lock:
            self._open = {(branch, at) for branch, at in self._open if type(at) is not tuple or at[0] is not reader}

    @property
    def is_learning(self) -> bool:
        """The pipeline has run too few times to be judged by what it gains."""
        return self._routes.calls <= LEARNING_CALLS

    def end(self, asked: int, wasted: int) -> bool:
        """The call has ended; see `Routes.end`.

        Of a superstep that was reached, and not decided, nobody knows why. An `if` that no reader has seen decided is
        left out: the readers may be behind the call.
        """
        with self._lock:
            left = [branch for branch, at in self._open if at is None]
            self._open = set()
            return self._routes.end([*self._taken, *((branch, None) for branch in left)], asked, wasted)
