"""A figure of a paper: how it is made, and the tables and plots that come out, ours beside the published.

    def chain(setting: Setting) -> Result:
        parts = [Part(tokens, setting.seed) for tokens in ((25,) if setting.quick else (25, 50, 75, 100))]
        ratios = setting.map(ratio_of, parts)                  # side by side in processes; `ratio_of` is of a module
        row = Row("ours", tuple(Cell(ratio, published, "x") for ratio, published in zip(ratios, PUBLISHED)))
        return Result(
            tables=(Table("Parrot over vLLM", ("25", "50", "75", "100"), (row,), corner="output tokens"),),
            says=("What is on the critical path, in numbers.",),
        )

    FIGURES = (Figure("parrot-chain", "Chain summary", "Parrot, section 8.2, figure 11", chain),)

Each file of figures ends with its tuple `FIGURES`; catalog.py joins them, report.py and page.py show them,
`make bench-papers ARGS=NAME` makes one. A figure takes its sizes from `Setting.quick` (all quick ones together in under
a minute) and every seed from `Setting.seed`; it reads no clock, unless a clock is what it measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")

Published = float | tuple[float, float] | str | None
"""A value, a range, or what the paper has in words (`"only in a plot"`). None: it has nothing."""


class Map(Protocol):
    """Results in the order of the items. Both must be picklable: functions of modules, frozen dataclasses."""

    def __call__(self, function: Callable[[T], R], items: Sequence[T], /) -> list[R]: ...


def one_by_one(function: Callable[[T], R], items: Sequence[T], /) -> list[R]:
    """A `Map` in this process."""
    return [function(item) for item in items]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a figure is made with; see the module."""

    quick: bool = False
    seed: int = 0
    map: Map = one_by_one


@dataclass(frozen=True, slots=True)
class Cell:
    """What we have, a number in `unit` or a text, and what the paper has. `note`: of this one cell, a short sentence.

    Units: `x` (a ratio, larger is better), `s`, `ms`, `%`, `/s`, or any word.

    >>> print(Cell(2.314, 2.09, "x"), Cell(1.35, (1.2, 1.55), "x"), Cell(0.1234, unit="s"), Cell("no"), sep=" | ")
    2.31x (paper 2.09x) | 1.35x (paper 1.20-1.55x) | 0.12 s | no
    """

    ours: float | str | None
    published: Published = None
    unit: str = ""
    note: str = ""

    def __str__(self) -> str:
        return self.text + (f" (paper {self.published_text})" if self.published is not None else "")

    @property
    def text(self) -> str:
        """Ours, with the unit."""
        return shown(self.ours, self.unit)

    @property
    def published_text(self) -> str:
        """The paper's, with the unit; empty if there is none."""
        match self.published:
            case None:
                return ""
            case (low, high):
                return f"{number(low)}{'-' if low >= 0 else ' to '}{shown(high, self.unit)}"
            case value:
                return shown(value, self.unit)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: what it is of, and a cell for each column."""

    label: str
    cells: tuple[Cell, ...]

    @property
    def is_ours(self) -> bool:
        return is_ours(self.label)


@dataclass(frozen=True, slots=True)
class Table:
    """`corner` is the head of the labels. Every row has a cell for each column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    corner: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                found = f"{len(row.cells)} cells for {len(self.columns)} columns"
                raise ValueError(f"{self.title}: the row {row.label!r} has {found}")

    @property
    def marks(self) -> Mapping[str, str]:
        """Asterisks for each note of its cells, in the order in which they come."""
        notes = dict.fromkeys(cell.note for row in self.rows for cell in row.cells if cell.note)
        return {note: "*" * (1 + at) for at, note in enumerate(notes)}

    @property
    def has_published(self) -> tuple[bool, ...]:
        """Of each column: the paper has something for one of its cells."""
        return tuple(any(row.cells[at].published is not None for row in self.rows) for at in range(len(self.columns)))


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a plot: points from left to right. `is_dashed` for what is a bound, or stands in the background."""

    label: str
    points: tuple[tuple[float, float], ...]
    is_dashed: bool = False

    @property
    def is_ours(self) -> bool:
        return is_ours(self.label)


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines over one pair of axes, which begin at 0. `top`: where the y axis ends at the latest."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    top: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What came out. `says`: sentences below, such as why a row falls short, in numbers."""

    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    says: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """One entry of the catalog: `name` for the command line, `source` is the paper and its figure or section.

    `is_real`: it takes real time, on real engines or profile engines that wait.
    """

    name: str
    title: str
    source: str
    make: Callable[[Setting], Result] = field(compare=False)
    is_real: bool = False


def is_ours(label: str) -> bool:
    """What stands there is of this plugin, and not of something that it is measured against.

    >>> [is_ours(label) for label in ("ours", "ours, topology", "LlamaDist-PO over ours, topology")]
    [True, True, False]
    """
    return label.split(",")[0] == "ours"


def shown(value: float | str | None, unit: str = "") -> str:
    """A value with its unit; a text as it is, `-` for nothing."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return number(value) + (unit if unit in ("x", "%", "/s", "") else f" {unit}")


NOTHING = 1e-6
"""Less is what rounding leaves where two equal numbers are subtracted."""


def number(value: float) -> str:
    """Two decimals, more where it is small and fewer where it is large; a whole number as it is.

    >>> [number(value) for value in (3, 1.7866, 12.345, 1234.5, 0.00321, 0.0, -2e-13, math.inf)]
    ['3', '1.79', '12.3', '1234', '0.0032', '0.00', '0.00', '-']
    """
    if not math.isfinite(value):
        return "-"
    if isinstance(value, int):
        return str(value)
    size = abs(value)
    if size < NOTHING:
        return "0.00"
    if size < 0.1:
        return f"{value:.{1 - math.floor(math.log10(size))}f}"
    return f"{value:.{0 if size >= 100 else 1 if size >= 10 else 2}f}"
