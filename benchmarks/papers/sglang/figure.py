"""SGLang's programs in plain LangChain: as they are written, by hand at their best, and optimized.

    make bench-papers ARGS=sglang-programs             some minutes
    make bench-papers ARGS='sglang-programs --quick'   short answers and few users

SGLang has programs in a language of its own, whose `fork` says what may run side by side. Here they are LangChain code,
and the branches are found in it. Two loads: one user, where branches side by side shorten the answer, and many, where
the engine is full and only what it need not compute gains anything. All ways have the same engine, prefix cache
included: what SGLang gains by having one is in every column, what it gains by its kernels in none.

Source: SGLang (NeurIPS 2024), section 6: up to 6.4x the throughput of the systems of its day, by program only in plots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from papers.figures import Cell, Figure, Result, Row, Setting, Table
from teola_plugin.errors import TeolaError

REQUESTS, QUICK_REQUESTS = 64, 8
"""How many requests all users together make at once, where branches run side by side: SGLang's benchmarks run 64."""

QUICK_SHARE = 1 / 16
"""Of the answers' lengths."""

ALONE = ("in turn", "by hand", "optimized")
MANY = ("by hand", "optimized", "ordered")
"""Ways of runs.py; `ordered` is optimized, and prompts that begin alike go next to each other."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One program, its figures by way, in virtual seconds.

    `alone_s`: how long one user waits. `per_s`, `mean_s`, `hits` of many users: queries a second, mean latency, and
    the share of the prompts' tokens that was not computed. `branches`, `prefixes`: what `optimize` found. `note`: what
    SGLang's own gain rests on where that is none of scheduling.
    """

    name: str
    alone_s: Mapping[str, float]
    per_s: Mapping[str, float]
    mean_s: Mapping[str, float]
    hits: Mapping[str, float]
    is_equal: bool
    branches: int
    prefixes: tuple[str, ...]
    published: str
    note: str


@dataclass(frozen=True, slots=True)
class Part:
    """One program, by its name."""

    program: str
    is_quick: bool


def rows(setting: Setting, only: str = "") -> list[Shown]:
    """The programs whose name contains `only`.

    Raises: TeolaError if LangChain is not installed.
    """
    try:
        from papers.sglang.programs import PROGRAMS
    except ImportError as e:
        raise TeolaError(f"SGLang's programs need the package {e.name}: pip install langchain") from e
    return setting.map(measure, [Part(name, setting.quick) for name in PROGRAMS if only in name])


def measure(part: Part) -> Shown:
    """One program, by every way. Where nothing stands in turn, that is the same code as by hand, and not run twice."""
    from papers.sglang.programs import PROGRAMS
    from papers.sglang.runs import WAYS, Load, found, hit_rate, run

    program, quick = PROGRAMS[part.program], part.is_quick
    share = QUICK_SHARE if quick else 1.0
    users = max(2, (QUICK_REQUESTS if quick else REQUESTS) // program.forks)
    load = Load(users, users * (1 if quick else program.rounds), share)
    ways = [way for way in ALONE if program.forks > 1 or way != "in turn"]
    alone = {way: run(program, WAYS[way], Load(1, 1, share)) for way in ways}
    many = {way: run(program, WAYS[way], load) for way in MANY}
    original, read = many["by hand"], found(program)
    return Shown(
        part.program,
        {way: made.mean_s for way, made in alone.items()},
        {way: made.per_s for way, made in many.items()},
        {way: made.mean_s for way, made in many.items()},
        {way: hit_rate(made, original) for way, made in many.items()},
        all(len({made.answers for made in each.values()}) == 1 for each in (alone, many)),
        read.branches, read.prefixes, program.published, program.kernel,
    )  # fmt: skip


def programs(setting: Setting) -> Result:
    """The figure."""
    return result(rows(setting))


def result(shown: Sequence[Shown]) -> Result:
    """Its tables."""
    return Result((alone_table(shown), many_table(shown), hits_table(shown)), says=tuple(_says(shown)))


def alone_table(shown: Sequence[Shown]) -> Table:
    """Latency of one user."""
    columns = ("in turn", "by hand", "optimized", "in turn / optimized", "by hand / optimized", "branches found")
    return Table(
        "One user: seconds to the answer", columns,
        tuple(
            Row(each.name, (
                *(Cell(each.alone_s.get(way), unit="s") for way in ALONE),
                *(_ratio(each.alone_s, way, "optimized") for way in ("in turn", "by hand")),
                Cell(each.branches),
            ))
            for each in shown
        ), corner="program",
    )  # fmt: skip


def many_table(shown: Sequence[Shown]) -> Table:
    """Throughput and mean latency of many users."""
    columns = (
        *MANY, "optimized / by hand", "ordered / by hand", "mean latency by hand / optimized", "equal answers",
    )  # fmt: skip
    return Table(
        "Many users: queries a second", columns,
        tuple(
            Row(each.name, (
                *(Cell(each.per_s[way], unit="/s") for way in MANY),
                _ratio(each.per_s, "optimized", "by hand", each.published),
                _ratio(each.per_s, "ordered", "by hand"),
                _ratio(each.mean_s, "by hand", "optimized"),
                Cell("yes" if each.is_equal else "NO"),
            ))
            for each in shown
        ), corner="program",
    )  # fmt: skip


def hits_table(shown: Sequence[Shown]) -> Table:
    """What of the prompts was not computed."""
    return Table(
        "Many users: prompts' tokens from the prefix cache", (*MANY, "beginnings found that prompts share"),
        tuple(
            Row(each.name, (
                *(Cell(100 * each.hits[way], unit="%") for way in MANY),
                Cell(len(each.prefixes)),
            ))
            for each in shown
        ), corner="program",
    )  # fmt: skip


def _ratio(figures: Mapping[str, float], above: str, below: str, published: str | None = None) -> Cell:
    if above not in figures or below not in figures:
        return Cell(None, published)
    return Cell(figures[above] / figures[below], published, "x")


def _says(shown: Sequence[Shown]) -> list[str]:
    lines = [
        "LangChain, run-ahead, schedulers and the 7B profile engine in virtual time: what the machine itself needs"
        " counts nothing, in any column.",
        "By hand: branches in one RunnablePassthrough.assign, first come first served. Optimized: the code in turn.",
        "With many users the engine is full in every column, so throughput can differ by what it need not compute, and"
        " by a few per cent for how the last queries end: critical_path answers some later, and the mean sooner.",
        "Published of cache-aware order, in a later system: hit rate 37 -> 56 %.",
    ]
    return lines + [f"{each.name}: SGLang's gain rests on {each.note}." for each in shown if each.note]


FIGURES = (
    Figure(
        "sglang-programs",
        "Programs of SGLang in plain LangChain",
        "SGLang, section 6, figures 5 and 6",
        programs,
    ),
)
