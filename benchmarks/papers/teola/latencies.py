"""Figure 8 of Teola: each application in all ways of running it, with the distance to what is possible.

| load | bound |
|---|---|
| light | ours one at a time, on engines without end (the critical path), and around the work of engines (bounds.py) |
| heavy | a burst, if its busiest engine never waited: the capacity |
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from papers.figures import Cell, Plot, Result, Row, Series, Setting, Table
from papers.teola.bounds import Runs, bounds_of
from papers.teola.critical_path import WAITING, in_words
from papers.teola.curves import MANY, Curves, Sizes, curves
from papers.teola.measure import Load, Place, measure, path_of, plan_of, written_of
from papers.teola.modes import AHEAD, AT_ONCE, BEST, FRAMEWORK, MORE, OURS, PAPERS, TUNED, WAYS, Way
from papers.teola.testbed import LLM_SIZES

FEW_SHARES = (0.1, 0.5, 0.85, 1.0)
QUERIES = {"D": 42}
"""Of a run, where one query takes long to simulate: a context is written for each of its 48 chunks."""

EQUAL = 0.995
"""A ratio that is less is not 1.00 when it is written down."""

FEW_TEXTS = 8
"""Of so many that an LLM writes for a query nothing is said: they are a synthesis, and not what others wait for."""


def app_result(app: str, published: float | None, has_embedder: bool, setting: Setting) -> Result:
    """Tables and the plot of one application; where it embeds documents, also with the faster embedder."""
    place = Place((app,))
    sizes = Sizes.of(setting, queries=QUERIES.get(app, 120))
    has_branches = plan_of(place, app, AHEAD).graph != plan_of(place, app, BEST).graph
    found = curves(setting, place, (*WAYS, AHEAD) if has_branches else WAYS, sizes)
    rows = [_summary("ours", found, published), _summary("ours, tuned", found, published, TUNED)]
    if has_branches:
        rows.append(_summary("ours, branches ahead", found, published, AHEAD))
    more: tuple[Table, ...] = ()
    if has_embedder:
        faster = curves(setting, replace(place, has_logs=True), WAYS, Sizes.of(setting, FEW_SHARES, sizes.queries))
        rows.append(_summary("ours, embedder of the prototype's logs", faster, published))
        more = (_speed_ups("Embedder of the prototype's logs: how many times as long as ours", faster),)
    light, paths = _light(setting, place, found, sizes), _paths(setting, place)
    tables = (
        Table("Speed-up of ours (critical path)", SUMMARY, tuple(rows)),
        _speed_ups("How many times as long as ours (critical path)", found),
        _latencies("Mean latency", found, found.mean_s),
        _latencies("P99 latency", found, found.p99_s),
        light.table,
        _heavy(found),
        _path_table(paths),
        *more,
    )
    batches = "; ".join(f"{way} {found.largest[way][0]} and {found.largest[way][1]}" for way in WAYS if way.is_tuned)
    says = (
        light.says,
        f"The end of one query waits for: {PAPERS[0]}: {in_words(paths[PAPERS[0]])}; ours: {in_words(paths[BEST])}.",
        f"Largest batches of LLMs and of other engines, by doubling: {batches}.",
        *_behind(setting, place, found, sizes),
        *(_for_nothing(found) if has_branches else ()),
        *_texts(setting, place, sizes),
    )
    return Result(tables, (_plot(app, found),), says)


SUMMARY = (
    "largest over the paper's four",
    "at light load, over the slowest",
    "least over LlamaDistPC",
    "least, it with a full cache",
)


def _summary(label: str, found: Curves, published: float | None, ours: Way = BEST) -> Row:
    light = max(found.speed_up(way, 0, ours) for way in PAPERS)
    return Row(
        label,
        (
            Cell(found.most(PAPERS, ours), published, "x"),
            Cell(light, unit="x"),
            Cell(found.least(PAPERS[2:], ours), unit="x"),
            Cell(found.least(MORE[:2], ours), unit="x"),
        ),
    )


def _columns(found: Curves) -> tuple[str, ...]:
    return tuple(f"{rate:.2f}/s" for rate in found.rates)


def _speed_ups(title: str, found: Curves) -> Table:
    def cell(way: Way, at: int) -> Cell:
        note = "" if found.is_steady(way, at) else "beyond what it can serve: grows with the length of the run"
        return Cell(found.speed_up(way, at), unit="x", note=note)

    rows = [Row(way.name, tuple(cell(way, at) for at in range(len(found.rates)))) for way in found.runs if way != BEST]
    return Table(title, _columns(found), tuple(rows), "rate")


def _latencies(title: str, found: Curves, of: Callable[[Way, int], float]) -> Table:
    rows = [Row(way.name, tuple(Cell(of(way, at), unit="s") for at in range(len(found.rates)))) for way in found.runs]
    return Table(title, _columns(found), tuple(rows), "rate")


@dataclass(frozen=True, slots=True)
class _Light:
    """The bound at light load, as a table and in words."""

    table: Table
    says: str


def _light(setting: Setting, place: Place, found: Curves, sizes: Sizes) -> _Light:
    alone = Load(place, BEST, 0.0, sizes.queries, setting.seed)  # the queries of the runs
    loads = [alone, replace(alone, instances=MANY), replace(alone, way=PAPERS[0])]
    one, unlimited, chain = setting.map(measure, loads)
    light_s = found.mean_s(BEST, 0)
    (bounds,) = setting.map(bounds_of, [Runs(one, chain, unlimited)])
    tightest = max(bounds, key=lambda each: each.together_s)
    bound_s = max(unlimited.mean_s, tightest.together_s)
    cells = (
        Cell(light_s, unit="s"),
        Cell(one.mean_s, unit="s"),
        Cell(unlimited.mean_s, unit="s"),
        Cell(tightest.together_s, unit="s"),
        Cell(100 * (light_s / one.mean_s - 1), unit="%"),
        Cell(100 * (light_s / bound_s - 1), unit="%"),
        Cell(100 * (one.mean_s / bound_s - 1), unit="%"),
        Cell(chain.mean_s, unit="s"),
        Cell(chain.mean_s / bound_s, unit="x"),
    )
    columns = (
        "mean at the lowest rate", "one at a time", "engines without end", "work of engines, and around it",
        "lowest rate over one at a time", "over both bounds", "one at a time over them",
        f"{PAPERS[0]}, one at a time", "at most possible over it",
    )  # fmt: skip
    says = (
        f"Alone, {PAPERS[0]} takes {chain.mean_s:.2f} s. Our e-graph takes {unlimited.mean_s:.2f} s on engines without "
        f"end. The work of {tightest.name} takes {tightest.work_s:.2f} s, and what has to come before and after it "
        f"{tightest.around_s:.2f} s: at light load the speed-up cannot pass {chain.mean_s / bound_s:.2f}x."
    )
    return _Light(Table("Light load: distance to the critical path", columns, (Row("ours", cells),)), says)


def _behind(setting: Setting, place: Place, found: Curves, sizes: Sizes) -> Iterator[str]:
    """Where LlamaDistPC is ahead: what ours takes with its batches."""
    for at, rate in enumerate(found.rates):
        way = min(PAPERS[2:], key=lambda each: found.mean_s(each, at))
        if found.speed_up(way, at) >= EQUAL:
            continue
        loads = [Load(place, BEST, rate, sizes.queries, seed, found.largest[way]) for seed in sizes.seeds]
        alike_s = statistics.fmean(run.mean_s for run in setting.map(measure, loads))
        theirs, ours = found.largest[way][0], found.largest[BEST][0]
        yield (
            f"At {rate:.2f}/s {way} takes {found.mean_s(way, at):.2f} s, with batches of at most {theirs} for an LLM. "
            f"Ours takes {alike_s:.2f} s with those, and {found.mean_s(BEST, at):.2f} s with at most {ours}."
        )


def _for_nothing(found: Curves) -> Iterator[str]:
    """What is read for nothing where branches are read ahead."""
    asked, wanted = (
        sum(use.items for run in found.runs[way][0] for name, use in run.engines.items() if name not in LLM_SIZES)
        for way in (AHEAD, BEST)
    )
    queries = sum(run.load.queries for run in found.runs[BEST][0])
    yield (
        f'Branches ahead (speculate="branches", no default): for {queries} queries at the lowest rate, {asked} items '
        f"for engines other than LLMs in place of {wanted}."
    )


def _texts(setting: Setting, place: Place, sizes: Sizes) -> Iterator[str]:
    """Where many texts are written for a query: how much of what follows overlaps, and what it is without waves."""
    alone = Load(place, BEST, 0.0, sizes.queries, setting.seed)
    (written,) = setting.map(written_of, [alone])
    if written.count <= FEW_TEXTS:
        return
    in_waves, at_once = setting.map(measure, [alone, replace(alone, way=AT_ONCE)])
    yield (
        f"Of {written.count} texts that {written.engine} writes for a query of ours the first is there after "
        f"{written.first_s:.2f} s, the last after {written.last_s:.2f} s: what follows can overlap "
        f"{written.last_s - written.first_s:.2f} s of it. Queries one at a time take {in_waves.mean_s:.2f} s; without "
        f"waves (runtime/scheduler/staggered_prefills.py), all texts at once, they take {at_once.mean_s:.2f} s."
    )


def _heavy(found: Curves) -> Table:
    rows = []
    for way, run in found.bursts.items():
        name, busy = run.busiest
        cells = (
            Cell(run.per_s, unit="/s"),
            Cell(name),
            Cell(100 * busy, unit="%"),
            Cell(run.capacity_per_s, unit="/s"),
        )
        rows.append(Row(way.name, cells))
    columns = ("queries", "busiest engine", "busy", "if it were always busy")
    return Table("Heavy load: a burst, and the bound by capacity", columns, tuple(rows))


def _paths(setting: Setting, place: Place) -> Mapping[Way, Mapping[str, float]]:
    ways = (*PAPERS, BEST)
    return dict(zip(ways, setting.map(path_of, [Load(place, way, 0.0, 1, setting.seed) for way in ways]), strict=True))


def _path_table(paths: Mapping[Way, Mapping[str, float]]) -> Table:
    engines = [name for name in dict.fromkeys(name for path in paths.values() for name in path) if name != WAITING]
    rows = []
    for way, path in paths.items():
        seconds = (*(path.get(name, 0.0) for name in engines), path[WAITING], sum(path.values()))
        rows.append(Row(way.name, tuple(Cell(each, unit="s") for each in seconds)))
    columns = (*engines, "in queues and between engines", "together")
    return Table("One query alone: what its end waited for", columns, tuple(rows))


def _plot(app: str, found: Curves) -> Plot:
    """The top is well above ours, so that what saturates earlier leaves the picture."""
    places = range(len(found.rates))
    series = tuple(
        Series(way.name, tuple((found.rates[at], found.mean_s(way, at)) for at in places), way == FRAMEWORK)
        for way in (*PAPERS, FRAMEWORK, OURS[1], BEST, *((AHEAD,) if AHEAD in found.runs else ()))
    )
    top = 4 * max(found.mean_s(BEST, at) for at in places)
    return Plot(f"App {app}: mean latency", "queries a second", "seconds", series, top)
