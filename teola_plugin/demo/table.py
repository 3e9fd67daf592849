"""Tables of comparisons for a terminal; 80 columns are enough."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from teola_plugin.comparison import Comparison


def results_table(rows: Sequence[tuple[str, Comparison]]) -> Table:
    """Return one row for each comparison.

    Times are medians in milliseconds; `equal` covers answers and callback trees.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("pipeline", overflow="fold", min_width=10)
    for title in ("orig.", "opt. ms", "ratio \\[95 %]", "hit/miss/waste"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("equal", no_wrap=True)
    for name, c in rows:
        table.add_row(
            name, f"{c.original_median_s * 1000:.0f}", f"{c.optimized_median_s * 1000:.0f}",
            str(c.ratio).replace("[", "\\["), f"{c.hits + c.shared}/{c.misses + c.stale}/{c.wasted}", _verdict(c),
        )  # fmt: skip
    return table


def _verdict(found: Comparison) -> str:
    if found.differences:
        return "[red]ANSWERS[/]"
    return "[red]TREES[/]" if found.tree_differences else "[green]yes[/]"
