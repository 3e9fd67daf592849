"""Plots on paper: where axes, lines and marks go, for page.py.

    y |      .-o        axes begin at 0 and end at a whole tick
      | o---/
      +-----------      what is above them is for the page to cut off
    0            x

Lines differ by colour and by the shape of their marks: no reader needs the colours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from papers.figures import Plot, Series

WIDTH, HEIGHT = 600.0, 280.0
TICKS = 6
"""On each axis, beside 0, at most."""

SHAPES = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",  # disc
    "M-3.6,-3.6h7.2v7.2h-7.2z",  # square
    "M0,-4.6L4.4,3.6H-4.4z",  # triangle
    "M0,-5L5,0L0,5L-5,0z",  # diamond
    "M0,4.6L4.4,-3.6H-4.4z",  # triangle on its point
    "M-1.5,-4.8h3v3.3h3.3v3h-3.3v3.3h-3v-3.3h-3.3v-3h3.3z",  # cross
    "M0,-6L1.5,-1.5L6,0L1.5,1.5L0,6L-1.5,1.5L-6,0L-1.5,-1.5z",  # star
    "M-4.6,0L3.6,-4.4V4.4z",  # triangle on its side
)
"""Of marks, around 0, as paths of SVG; the page has as many colours."""


@dataclass(frozen=True, slots=True)
class Line:
    """One series: the places of its points, the same as SVG has them, and which colour and mark it has."""

    series: Series
    places: tuple[tuple[float, float], ...]
    points: str
    style: int

    @property
    def shape(self) -> str:
        return SHAPES[self.style]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Ticks are places and what stands there. `is_cut`: a line goes on above the top."""

    width: float
    height: float
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    lines: tuple[Line, ...]
    is_cut: bool


def draw(plot: Plot) -> Drawing:
    """The plot on paper; x from left to right, y from above."""
    points = [point for series in plot.series for point in series.points]
    xs = ticks(max((x for x, _ in points), default=0.0))
    ys = ticks(min(plot.top or math.inf, max((y for _, y in points), default=0.0)))
    right, top = xs[-1][0], ys[-1][0]

    def place(x: float, y: float) -> tuple[float, float]:
        return x / right * WIDTH, HEIGHT - y / top * HEIGHT

    lines = []
    for at, series in enumerate(plot.series):
        places = tuple(place(x, y) for x, y in series.points)
        lines.append(Line(series, places, " ".join(f"{x:.1f},{y:.1f}" for x, y in places), at % len(SHAPES)))
    return Drawing(
        WIDTH,
        HEIGHT,
        tuple((place(x, 0.0)[0], text) for x, text in xs),
        tuple((place(0.0, y)[1], text) for y, text in ys),
        tuple(lines),
        any(y > top for _, y in points),
    )


def ticks(largest: float) -> tuple[tuple[float, str], ...]:
    """From 0 in steps of 1, 2 or 5, times a power of ten, to the first that is not below the largest.

    >>> [text for _, text in ticks(0.83)], [text for _, text in ticks(43.0)]
    (['0.0', '0.2', '0.4', '0.6', '0.8', '1.0'], ['0', '10', '20', '30', '40', '50'])
    """
    largest = largest or 1.0
    least = largest / TICKS
    power = math.floor(math.log10(least))
    step = next(factor * 10.0**power for factor in (1, 2, 5, 10) if factor * 10.0**power >= least)
    decimals = max(0, -math.floor(math.log10(step)))
    return tuple((at * step, f"{at * step:.{decimals}f}") for at in range(math.ceil(largest / step - 1e-9) + 1))
