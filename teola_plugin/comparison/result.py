"""The result of `compare`, as a value, a table and a page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from teola_plugin.codes import CODES

RESAMPLES = 2000
SEED = 2407_00326  # any fixed number: the same measurements always give the same interval


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and its 95 % bootstrap interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the median, with the interval if there is more than one value."""
        return f"{self.median:.2f}" + ("" if self.low == self.high else f" [{self.low:.2f}, {self.high:.2f}]")


def interval(values: Sequence[float]) -> Interval:
    """Return the median of the values and the 2.5 and 97.5 percentiles of the medians of resamples.

    >>> str(interval([1.0, 1.1, 1.2, 1.3]))
    '1.15 [1.00, 1.30]'
    """
    found = np.asarray(values, dtype=float)
    draws = np.random.default_rng(SEED).integers(0, len(found), (RESAMPLES, len(found)))
    low, high = np.percentile(np.median(found[draws], axis=1), [2.5, 97.5])
    return Interval(float(np.median(found)), float(low), float(high))


@dataclass(frozen=True, slots=True)
class Comparison:
    """One pipeline, called in one form. Times in seconds, one per pair, originals and optimized in the same order.

    `differences`: of answers and exceptions. `tree_differences`: of callback trees. `errors`: the number of pairs whose
    original raised, `error` the first exception. `hits` to `wasted` are sums over the timed calls of the optimized
    pipeline; `fallbacks` has the reasons of run-aheads which ended early; in `rested` calls nothing ran ahead (TF002).
    """

    pipeline: str
    form: str
    original_s: tuple[float, ...]
    optimized_s: tuple[float, ...]
    original_first_s: tuple[float, ...] = ()
    optimized_first_s: tuple[float, ...] = ()
    differences: tuple[str, ...] = ()
    tree_differences: tuple[str, ...] = ()
    tree_nodes: int = 0
    errors: int = 0
    error: str = ""
    is_optimized: bool = True
    hits: int = 0
    shared: int = 0
    misses: int = 0
    stale: int = 0
    wasted: int = 0
    fallbacks: tuple[str, ...] = ()
    rested: int = 0
    ratio: Interval = field(init=False)

    def __post_init__(self) -> None:
        pairs = zip(self.original_s, self.optimized_s, strict=True)
        object.__setattr__(self, "ratio", interval([original / optimized for original, optimized in pairs]))

    @property
    def equal(self) -> bool:
        """Whether user and callbacks see no difference."""
        return not self.differences and not self.tree_differences

    @property
    def verdict(self) -> str:
        """`yes`, or the number of different answers and callback trees."""
        return "yes" if self.equal else f"NO ({len(self.differences)}, {len(self.tree_differences)})"

    @property
    def original_median_s(self) -> float:
        return statistics.median(self.original_s)

    @property
    def optimized_median_s(self) -> float:
        return statistics.median(self.optimized_s)

    def items(self) -> str:
        """The outcomes of the items requested by the framework's run, and the wasted items."""
        return f"{self.hits} hits, {self.shared} shared, {self.misses} misses, {self.stale} stale, {self.wasted} wasted"

    def rows(self) -> list[tuple[str, str]]:
        """Return the lines of the report, as label and text."""
        rows = [
            ("pipeline", f"{self.pipeline}.{self.form}"),
            ("pairs", str(len(self.original_s))),
            ("original", f"{_ms(self.original_median_s)} median"),
            ("optimized", f"{_ms(self.optimized_median_s)} median"),
            (
                "original / optimized",
                f"{self.ratio}" + (" (median of pairs, 95 % interval)" if len(self.original_s) > 1 else ""),
            ),
        ]
        if self.original_first_s and self.optimized_first_s:
            first = statistics.median(self.original_first_s), statistics.median(self.optimized_first_s)
            rows.append(("first piece", f"{_ms(first[0])} original, {_ms(first[1])} optimized"))
        rows += [
            ("answers", _verdict(self.differences)),
            ("callback trees", _verdict(self.tree_differences) + f" ({self.tree_nodes} nodes)"),
        ]
        if self.errors:
            rows.append(("raised", f"in {self.errors} of {len(self.original_s)} pairs: {self.error:.160}"))
        if self.is_optimized:
            rows.append(("items", self.items()))
        else:
            rows.append(("note", "nothing ran ahead: nothing to optimize, or TEOLA_STANCE=original is set"))
        if self.rested:
            rows.append(("run-ahead rested", f"in {self.rested} calls: TF002 {CODES['TF002']}"))
        return rows + [("run-ahead ended early", reason) for reason in self.fallbacks[:3]]

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(label) for label, _ in rows)
        lines = [f"{label:{width}}  {text}" for label, text in rows]
        details = [*self.differences, *self.tree_differences]
        return "\n".join([*lines, *(f"  ! {line:.105}" for line in details[:20])])

    def to_html(self, path: str | Path | None = None) -> str:
        """Return the result as one page without outside resources; also written to `path` if given."""
        from jinja2 import Environment, PackageLoader

        page = Environment(loader=PackageLoader("teola_plugin.comparison", ""), autoescape=True).get_template(
            "report.html.j2"
        )
        longest = max(*self.original_s, *self.optimized_s)
        html = page.render(comparison=self, rows=self.rows(), longest_s=longest)
        if path is not None:
            Path(path).write_text(html, encoding="utf-8")
        return html


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.{1 if seconds >= 1e-3 else 3}f} ms"


def _verdict(found: Sequence[str]) -> str:
    return "equal" if not found else f"{len(found)} DIFFERENCES"
