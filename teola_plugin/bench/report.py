"""Figures as a page, as Markdown and as text: ours beside the published.

page(made, head)       one HTML page without outside resources
markdown(made, head)   docs/papers.md
lines(made)            the terminal
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from os import cpu_count

from jinja2 import Environment, PackageLoader

from teola_plugin.bench.figures import Cell, Plot, Table, number
from teola_plugin.bench.making import Made

TITLE = "The papers' figures"
ABOUT = (
    "Latencies come out of the simulator (teola_plugin/simulator): the schedulers, policies, passes and plans of real "
    "queries in virtual time, on engines that take as long as their latency profiles say. Figures that take real time "
    "say so. Beside each of our figures stands the published one, in brackets."
)


@dataclass(frozen=True, slots=True)
class Head:
    """How the figures were made."""

    command: str
    seed: int
    machine: str
    versions: str
    took_s: float

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        return (
            ("command", self.command),
            ("seed", str(self.seed)),
            ("machine", self.machine),
            ("versions", self.versions),
            ("time", f"{self.took_s:.0f} s"),
        )


def head_of(command: str, seed: int, took_s: float) -> Head:
    """With this machine and what is installed on it."""
    machine = f"{platform.system()} {platform.machine()}, {cpu_count()} cores, no accelerator used"
    ours, python = version("teola-plugin"), platform.python_version()
    return Head(command, seed, machine, f"teola-plugin {ours}, Python {python}", took_s)


# --- page -----------------------------------------------------------------------------------------------------------


def page(made: Sequence[Made], head: Head) -> str:
    """One HTML page, light or dark as the reader's system is."""
    environment = Environment(
        loader=PackageLoader("teola_plugin.bench", ""), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    drawings = {id(plot): draw(plot) for each in made for plot in each.result.plots}
    template = environment.get_template("report.html.j2")
    return template.render(title=TITLE, about=ABOUT, head=head.rows, made=made, drawing=lambda plot: drawings[id(plot)])


@dataclass(frozen=True, slots=True)
class Line:
    """One series on paper: `points` as SVG has them."""

    label: str
    points: str
    is_dashed: bool


@dataclass(frozen=True, slots=True)
class Drawing:
    """A plot on paper: ticks are places and what stands there."""

    width: float
    height: float
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    lines: tuple[Line, ...]


WIDTH, HEIGHT, TICKS = 560.0, 260.0, 4
ROOM = 40.0
"""For a number below the x axis."""


def draw(plot: Plot) -> Drawing:
    """Both axes begin at 0. What is above `plot.top` is for the page to cut off."""
    xs = sorted({x for series in plot.series for x, _ in series.points})
    right = max(xs, default=0.0) or 1.0
    top = plot.top or max((y for series in plot.series for _, y in series.points), default=0.0) or 1.0
    return Drawing(
        WIDTH,
        HEIGHT,
        _apart([(x / right * WIDTH, number(x)) for x in xs]),
        tuple((HEIGHT - part / TICKS * HEIGHT, number(part / TICKS * top)) for part in range(TICKS + 1)),
        tuple(
            Line(
                series.label,
                " ".join(f"{x / right * WIDTH:.1f},{HEIGHT - y / top * HEIGHT:.1f}" for x, y in series.points),
                series.is_dashed,
            )
            for series in plot.series
        ),
    )


def _apart(ticks: Sequence[tuple[float, str]]) -> tuple[tuple[float, str], ...]:
    """Those that do not stand in one another's place."""
    kept: list[tuple[float, str]] = []
    for tick in ticks:
        if not kept or tick[0] - kept[-1][0] >= ROOM:
            kept.append(tick)
    return tuple(kept)


# --- Markdown and text ----------------------------------------------------------------------------------------------


def markdown(made: Sequence[Made], head: Head) -> str:
    """Tables and sentences; plots are on the page only."""
    parts = [f"# {TITLE}", "Written by the command below; do not edit.", ABOUT]
    parts.append("\n".join(f"- {label}: {f'`{text}`' if label == 'command' else text}" for label, text in head.rows))
    for each in made:
        kind = " · in real time" if each.figure.is_real else ""
        parts += [f"## {each.figure.title}", f"`teola bench {each.figure.name}` · {each.figure.source}{kind}"]
        parts += [_markdown_table(table) for table in each.result.tables]
        if each.result.says:
            parts.append("\n".join(f"- {sentence}" for sentence in each.result.says))
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    notes = [cell.note for row in table.rows for cell in row.cells if cell.note]
    lines = [_markdown_line([table.corner, *table.columns]), "|" + "---|" * (1 + len(table.columns))]
    lines += [_markdown_line([row.label, *(_with_mark(cell, notes) for cell in row.cells)]) for row in table.rows]
    below = [f"\\{'*' * (at + 1)} {note}" for at, note in enumerate(dict.fromkeys(notes))]
    return "\n\n".join([f"**{table.title}**", "\n".join(lines), *below])


def _with_mark(cell: Cell, notes: Sequence[str]) -> str:
    if not cell.note:
        return str(cell)
    return f"{cell} {'*' * (1 + list(dict.fromkeys(notes)).index(cell.note))}".replace("*", "\\*")


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def lines(each: Made) -> Iterator[str]:
    """One figure for a terminal, columns as wide as they need to be."""
    yield f"{each.figure.title}  [{each.figure.name}]  {each.figure.source}  ({each.took_s:.1f} s)"
    for table in each.result.tables:
        yield ""
        yield f"  {table.title}"
        yield from _text_table(table)
    for sentence in each.result.says:
        yield f"  {sentence}"
    yield ""


def _text_table(table: Table) -> Iterator[str]:
    grid = [[table.corner, *table.columns], *([row.label, *map(str, row.cells)] for row in table.rows)]
    widths = [max(len(line[at]) for line in grid) for at in range(len(grid[0]))]
    for line in grid:
        first, *others = line
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        yield "    " + "  ".join(cells).rstrip()
    notes = dict.fromkeys(cell.note for row in table.rows for cell in row.cells if cell.note)
    yield from (f"    {note}" for note in notes)
