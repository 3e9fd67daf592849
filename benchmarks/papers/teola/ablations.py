"""Figures 3, 10 and 11 of Ayo, and its Table 3: which part of the gain is whose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from papers.figures import Cell, Plot, Result, Row, Series, Setting, Table
from papers.teola.curves import MANY, Sizes, curves
from papers.teola.measure import Load, Measured, Place, measure
from papers.teola.modes import BEST, PAPERS, PARALLEL_ONLY, PIPELINED_ONLY, Way, with_passes
from teola_plugin.passes import DEFAULT
from teola_plugin.profile import PAPER_LLM

ADVANCED = ("C",)

# --- graph optimization ---------------------------------------------------------------------------------------------

GRAPH_WAYS = (
    (with_passes("none", ()), 1.73),
    (with_passes("pipelining only", PIPELINED_ONLY), 1.55),
    (with_passes("parallelism only", PARALLEL_ONLY), 1.40),
    (with_passes("full", DEFAULT), 1.0),
)
"""With the published latency relative to full."""


def graph_ablation(setting: Setting) -> Result:
    """App C, one query at a time, with parts of the passes; the paper has a 30B model."""
    queries, sizes, full = 1 if setting.quick else 10, ("30b", "7b"), GRAPH_WAYS[-1][0]
    loads = [Load(Place(ADVANCED, size), way, 0.0, queries, setting.seed) for size in sizes for way, _ in GRAPH_WAYS]
    endless = [replace(load, instances=MANY) for load in loads if load.way == full]
    means = [run.mean_s for run in setting.map(measure, [*loads, *endless])]
    by_size = [means[at * len(GRAPH_WAYS) : (at + 1) * len(GRAPH_WAYS)] for at in range(len(sizes))]

    def row(label: str, seconds: Sequence[float], published: float | None) -> Row:
        cells = [
            (Cell(each, unit="s"), Cell(each / found[-1], published if size == "30b" else None, "x"))
            for each, found, size in zip(seconds, by_size, sizes, strict=True)
        ]
        return Row(label, tuple(cell for pair in cells for cell in pair))

    rows = [
        row(way.name, [found[at] for found in by_size], published) for at, (way, published) in enumerate(GRAPH_WAYS)
    ]
    rows.append(row("full, engines without end", means[-len(sizes) :], None))
    columns = tuple(column for size in sizes for column in (f"core LLM {size}", "relative to full"))
    says = (
        "What one query gains has an end at the last row. The paper's profiles and lengths for this figure are not "
        "published; with ours, what can be pipelined (three queries to embed, search and rerank) is a small part.",
    )
    return Result((Table("One query at a time", columns, tuple(rows), "passes"),), says=says)


# --- topology-aware batching ----------------------------------------------------------------------------------------

BLIND = with_passes("blind (to)", DEFAULT, "to")
TOPOLOGY = with_passes("topology", DEFAULT, "topology")
BATCHING_WAYS = (BLIND, TOPOLOGY, BEST)
BATCHING_SHARES = (0.3, 0.6, 0.8, 0.95)


def batching_ablation(setting: Setting) -> Result:
    """App C with all passes: what the order of the queues alone does, with either embedder."""
    tables, plots = [], []
    for has_logs, title in ((False, "bge-large of figure 4"), (True, "embedder of the prototype's logs")):
        place = Place(ADVANCED, has_logs=has_logs)
        alone = _alone(setting, place, BATCHING_WAYS)
        found = curves(setting, place, BATCHING_WAYS, Sizes.of(setting, BATCHING_SHARES))
        rows = []
        for way, run in zip(BATCHING_WAYS, alone, strict=True):
            single = Cell(alone[0].mean_s / run.mean_s, 1.15 if way == TOPOLOGY else None, "x")
            changes = [100 * (1 / found.speed_up(BLIND, at, way) - 1) for at in range(len(found.rates))]
            most = Cell(min(changes), -19.2 if way == TOPOLOGY else None, "%")
            rows.append(Row(way.name, (single, *(Cell(change, unit="%") for change in changes), most)))
        columns = ("one query: blind / this", *(f"mean at {rate:.2f}/s" for rate in found.rates), "largest change")
        tables.append(Table(f"Against blind batching, {title}", columns, tuple(rows), "queues"))
        series = tuple(
            Series(way.name, tuple((rate, found.mean_s(way, at)) for at, rate in enumerate(found.rates)))
            for way in BATCHING_WAYS
        )
        plots.append(Plot(f"App C, all passes, {title}: mean latency", "queries a second", "seconds", series))
    return Result(tuple(tables), tuple(plots))


# --- figure 3 -----------------------------------------------------------------------------------------------------


def figure_3(setting: Setting) -> Result:
    """One query of advanced RAG: the chain of modules, and the e-graph."""
    chain, ours = _alone(setting, Place(ADVANCED), (PAPERS[0], BEST))
    ratio = Cell(chain.mean_s / ours.mean_s, 4.1 / 2.4, "x")
    cells = (Cell(chain.mean_s, 4.1, "s"), Cell(ours.mean_s, 2.4, "s"), ratio)
    return Result(
        (Table("One query", ("chain of modules", "e-graph", "ratio"), (Row("advanced RAG", cells),)),),
        says=("The paper does not say which model and lengths its example has; ours are those of app C.",),
    )


def _alone(setting: Setting, place: Place, ways: Sequence[Way]) -> list[Measured]:
    return setting.map(measure, [Load(place, way, 0.0, Sizes.of(setting).alone, setting.seed) for way in ways])


# --- split prefill --------------------------------------------------------------------------------------------------

PROMPT_TOKENS = (512, 1024, 2048, 3072)
EARLY_SHARES = (0.2, 0.4, 0.6, 0.8)


def split_prefill(setting: Setting) -> Result:
    """What a split costs, and what it takes off the critical path, by the latency profile of the 7B model."""
    profile = PAPER_LLM["7b"]
    rows, costs, gains = [], [], []
    for tokens in PROMPT_TOKENS:
        whole_s = profile.prefill_s(tokens)
        cells = []
        for share in EARLY_SHARES:
            early = round(share * tokens)
            late_s = profile.prefill_s(tokens - early, cached_tokens=early)
            cost, gain = profile.prefill_s(early) + late_s - whole_s, late_s - whole_s
            costs.append(100 * cost / whole_s)
            gains.append(100 * gain / whole_s)
            cells += [Cell(costs[-1], unit="%"), Cell(gains[-1], unit="%")]
        rows.append(Row(str(tokens), tuple(cells)))
    columns = tuple(f"{what}, {share:.0%} early" for share in EARLY_SHARES for what in ("compute", "on the path"))
    ranges = Row("all", (
        Cell(f"{min(costs):.1f}-{max(costs):.1f}%", (3.1, 12.1), "%"),
        Cell(f"{min(gains):.1f} to {max(gains):.1f}%", (-77.9, -17.1), "%"),
    ))  # fmt: skip
    return Result(
        (
            Table("Split prefill, range", ("more compute", "prefill on the critical path"), (ranges,)),
            Table("By length of the prompt and share that is early", columns, tuple(rows), "tokens"),
        )
    )
