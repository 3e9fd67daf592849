"""Rows of the tables that compare ways: seconds, and ratios of seconds; what is read off a curve."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from papers.figures import Cell, Row, T


def per_way(values: Sequence[T], count: int) -> list[Sequence[T]]:
    """So many parts of equal length.

    >>> per_way([1, 2, 3, 4], 2)
    [[1, 2], [3, 4]]
    """
    size = len(values) // count
    return [values[at : at + size] for at in range(0, len(values), size)]


def ratios(
    label: str, theirs: Sequence[float], ours: Sequence[float], published: Sequence[float | None] = (), note: str = ""
) -> Row:
    """How much faster ours is than theirs. What is published for the first ones; `note` goes with it."""
    pairs = enumerate(zip(theirs, ours, strict=True))
    known = [*published, *[None] * len(ours)]
    return Row(label, tuple(Cell(a / b, known[at], "x", note if known[at] else "") for at, (a, b) in pairs))


def times(label: str, seconds: Sequence[float], published: Sequence[float | None] = (), unit: str = "s") -> Row:
    """Seconds, or whatever `unit` says."""
    known = [*published, *[None] * len(seconds)]
    return Row(label, tuple(Cell(each, known[at], unit) for at, each in enumerate(seconds)))


def rate_at(curve: Sequence[tuple[float, float]], limit: float) -> float:
    """The rate at which a curve goes above the limit for the first time, on a line between its points.

    0 if it begins above; infinite if it stays below.

    >>> rate_at([(1.0, 50.0), (2.0, 150.0), (3.0, 90.0)], 100.0), rate_at([(1.0, 50.0)], 100.0)
    (1.5, inf)
    """
    if curve[0][1] > limit:
        return 0.0
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if y1 > limit:
            return x0 + (x1 - x0) * (limit - y0) / (y1 - y0)
    return math.inf
