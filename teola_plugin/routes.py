"""Branch prediction: the routes of one pipeline's calls, and the likely route of the next call.

A *branch* is a decision of a pipeline: the superstep of a graph, whose conditional edges choose the next nodes, or an
`if` of a function. The *target* is the result of the decision. With `optimize(..., speculate="learned")` an undecided
branch is assumed to take its likely target, and the requests behind it run ahead, although they may be wasted. Like the
branch predictor of a processor, the prediction uses history alone:

- A branch has a *likely* target once reached LEAST times, with SHARE of the LAST times at the target. A call which
  ended at a superstep (raised, interrupted or cancelled) counts as a decision without target.
- No speculative request is made while more than WASTE of the requests of the last ACCOUNT_CALLS calls were wasted
  (`Report.wasted`). Each ended call replaces the oldest in the account, so the account recovers; learning goes on all
  the while. Running calls count when ended.

    reached, took ... end  ->  Routes  ->  likely
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Sequence

LAST = 10
"""The outcomes of a branch that are remembered: a habit that changes is unlearned within two calls."""

LEAST = 5
"""The fewest outcomes by which a target is likely."""

SHARE = 0.9
"""The least share of the remembered outcomes for a likely target: one of ten may differ."""

WASTE = 0.1
"""The largest share of wasted requests, of those that `ACCOUNT_CALLS` calls made, which SHARE leads to by itself."""

ACCOUNT_CALLS = 20

MAX_BRANCHES = 4096
"""The number of branches kept per pipeline; further branches are not learned."""

LEARNING_CALLS = 2 * LEAST
"""The number of first calls of a pipeline whose gain is not judged."""


class Routes:
    """The history of one pipeline. Thread-safe. `calls`: the number of ended calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._lock = threading.Lock()
        self._targets: dict[Hashable, deque[Hashable]] = {}
        self._spent: deque[tuple[int, int]] = deque(maxlen=ACCOUNT_CALLS)

    def likely(self, branch: Hashable) -> Hashable | None:
        """Return the likely target of a branch; None if unpredictable."""
        with self._lock:
            return _likely(self._targets.get(branch, ()))

    def known(self) -> dict[Hashable, Hashable]:
        """Return all branches with a likely target."""
        with self._lock:
            return {branch: found for branch, each in self._targets.items() if (found := _likely(each)) is not None}

    @property
    def has_budget(self) -> bool:
        """Whether speculative requests may be made."""
        with self._lock:
            return sum(wasted for _, wasted in self._spent) <= WASTE * sum(asked for asked, _ in self._spent)

    def end(self, taken: Sequence[tuple[Hashable, Hashable | None]], asked: int, wasted: int) -> bool:
        """Record the decisions and requests of an ended call.

        Returns whether a branch has gained its first likely target.
        """
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
    """The routes of one call: the decisions to learn, and the likely targets, which do not change while the call runs.

    `has_budget`: see `Routes.has_budget`. `is_at_rest`: the call only learns, and nothing runs ahead.
    """

    def __init__(self, routes: Routes, *, is_at_rest: bool = False) -> None:
        self.is_at_rest = is_at_rest
        self.has_budget = not is_at_rest and routes.has_budget
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
        """Record that the call has reached a branch; `at` tells repeated visits apart."""
        with self._lock:
            self._open.add((branch, at))

    def took(self, branch: Hashable, target: Hashable | None, at: Hashable = None) -> None:
        """Record the decision of a reached branch; None: an unpredictable target."""
        with self._lock:
            if (branch, at) in self._open:
                self._open.discard((branch, at))
                self._taken.append((branch, target))

    def forget(self, reader: object) -> None:
        """Forget the undecided branches of a reader; another reader goes on from the call's position."""
        with self._lock:
            self._open = {(branch, at) for branch, at in self._open if type(at) is not tuple or at[0] is not reader}

    @property
    def is_learning(self) -> bool:
        """Whether the pipeline has run too few times for its gain to be judged."""
        return self._routes.calls <= LEARNING_CALLS

    def end(self, asked: int, wasted: int) -> bool:
        """End the call; see `Routes.end`.

        A superstep reached but not decided counts as a decision without target. An `if` without an observed decision is
        left out: the readers may be behind the call.
        """
        with self._lock:
            left = [branch for branch, at in self._open if at is None]
            self._open = set()
            return self._routes.end([*self._taken, *((branch, None) for branch in left)], asked, wasted)
