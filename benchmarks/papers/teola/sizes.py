"""Figures 8 and 9 of Ayo: core LLMs of three sizes, and two applications on the same engines."""

from __future__ import annotations

from papers.figures import Cell, Result, Row, Setting, Table
from papers.teola.curves import Curves, Sizes, curves
from papers.teola.measure import Place
from papers.teola.modes import BEST, FRAMEWORK, OURS, PAPERS, Way
from papers.teola.testbed import SIZES

SHARES = (0.1, 0.5, 0.9)
TOGETHER = ("B", "C")
PUBLISHED_RATE_PER_S = 3.0
"""Of each app."""

PUBLISHED_TOGETHER = (1.2, 1.55)
"""Over LlamaDistPC, at that rate."""


def by_size(setting: Setting) -> Result:
    """The largest and least speed-up over the paper's baselines, for each size of the core LLM."""
    rows = []
    for app, published in (("A", 1.79), ("B", 1.62), ("C", 2.09)):
        for size in SIZES:
            found = curves(setting, Place((app,), size), (*PAPERS, BEST), Sizes.of(setting, SHARES, 60))
            light = [found.speed_up(way, 0) for way in PAPERS]
            cells = (
                *(Cell(each, unit="x") for each in light),
                Cell(found.most(PAPERS), published, "x"),
                Cell(found.least(PAPERS[2:]), unit="x"),
            )
            rows.append(Row(f"{app}, {size}", cells))
    columns = (*(f"{way}, light load" for way in PAPERS), "largest, all rates", "least over LlamaDistPC")
    says = (
        "Only the 7B model has a published profile; those of 13B and 30B are assumed: its seconds by the number of "
        "parameters. The published figure of an application is its largest, of whichever model.",
    )
    return Result((Table("Speed-up over the paper's baselines", columns, tuple(rows), "app, core LLM"),), says=says)


def together(setting: Setting) -> Result:
    """Naive and advanced RAG on the same engines, at shares of the capacity and each at 3 queries a second."""
    baselines = (*PAPERS[2:], FRAMEWORK)
    ways = (*baselines, OURS[1], BEST)
    tables, says = [], []
    for has_logs, title in ((False, "bge-large of figure 4"), (True, "embedder of the prototype's logs")):
        place = Place(TOGETHER, "13b", has_logs)
        found = curves(setting, place, ways, Sizes.of(setting, SHARES), [2 * PUBLISHED_RATE_PER_S])
        rows = [_over(found, baseline, each) for baseline in baselines for each in OURS[1::2]]
        columns = ("largest, at a rate it can serve", *(f"{rate:.2f}/s" for rate in found.rates))
        of = f"Mean latency over ours, both apps together, {title}"
        tables.append(Table(of, columns, tuple(rows), "core LLM 13B"))
        served = ", ".join(f"{way} {found.bursts[way].capacity_per_s:.2f}/s" for way in ways)
        says.append(f"What can be served of both, {title}: {served}. The paper has 3/s of each, 6/s together.")
    says.append(
        "The framework is LlamaDist-TO with the prefix cache and the largest batches that the engines have: module "
        "after module, each with its own async, and only the engines put requests of several queries into one batch."
    )
    return Result(tuple(tables), says=tuple(says))


def _over(found: Curves, baseline: Way, ours: Way) -> Row:
    """How many times as long the baseline takes: at most, at rates that it can serve, and at every rate."""
    most = Cell(found.most((baseline,), ours), None if baseline == FRAMEWORK else PUBLISHED_TOGETHER, "x")
    cells = [
        Cell(
            found.speed_up(baseline, at, ours),
            unit="x",
            note="" if found.is_steady(baseline, at) else "beyond what the baseline can serve",
        )
        for at in range(len(found.rates))
    ]
    return Row(f"{baseline} over {ours}", (most, *cells))
