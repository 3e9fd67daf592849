"""Figures as Markdown and as text, ours beside the published; page.py has the HTML page.

markdown(made, head)   docs/papers.md
lines(made)            the terminal
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from os import cpu_count

from papers.figures import Cell, Table
from papers.making import Made

TITLE = "The papers' figures"
ABOUT = (
    "Latencies come out of the simulator (benchmarks/simulator): real plans on this package's own host in virtual "
    "time, on engines that take as long as their latency profiles say. Figures that take real time say so. Where a "
    "paper has a number, it stands beside ours."
)
TINY = "tiny, by --quick: they show that every figure can be made, and no number is a result"


@dataclass(frozen=True, slots=True)
class Head:
    """How the figures were made."""

    command: str
    seed: int
    machine: str
    versions: str
    took_s: float
    is_quick: bool = False

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        return (
            ("command", self.command),
            ("seed", str(self.seed)),
            ("machine", self.machine),
            ("versions", self.versions),
            ("time", f"{self.took_s:.0f} s"),
            *((("sizes", TINY),) if self.is_quick else ()),
        )


def head_of(command: str, seed: int, took_s: float, *, is_quick: bool = False) -> Head:
    """With this machine and what is installed on it."""
    machine = f"{platform.system()} {platform.machine()}, {cpu_count()} cores, no accelerator used"
    ours, python = version("teola-plugin"), platform.python_version()
    return Head(command, seed, machine, f"teola-plugin {ours}, Python {python}", took_s, is_quick)


def markdown(made: Sequence[Made], head: Head) -> str:
    """Tables and sentences; plots are on the page only."""
    parts = [f"# {TITLE}", "Written by the command below; do not edit.", ABOUT]
    parts.append("\n".join(f"- {label}: {f'`{text}`' if label == 'command' else text}" for label, text in head.rows))
    for each in made:
        kind = " · in real time" if each.figure.is_real else ""
        parts += [
            f"## {each.figure.title}",
            f"`make bench-papers ARGS={each.figure.name}` · {each.figure.source}{kind}",
        ]
        parts += [_markdown_table(table) for table in each.result.tables]
        if each.result.says:
            parts.append("\n".join(f"- {sentence}" for sentence in each.result.says))
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    lines = [_markdown_line([table.corner, *table.columns]), "|" + "---|" * (1 + len(table.columns))]
    lines += [_markdown_line([row.label, *(_markdown_cell(cell, table) for cell in row.cells)]) for row in table.rows]
    below = [f"{_escaped(mark)} {note}" for note, mark in table.marks.items()]
    return "\n\n".join([f"**{table.title}**", "\n".join(lines), *below])


def _markdown_cell(cell: Cell, table: Table) -> str:
    return f"{cell} {_escaped(table.marks[cell.note])}" if cell.note else str(cell)


def _escaped(mark: str) -> str:
    return mark.replace("*", "\\*")


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
    marks = table.marks
    room = max(map(len, marks.values()), default=0)
    shown = ([str(cell) + marks.get(cell.note, "").ljust(room) for cell in row.cells] for row in table.rows)
    grid = [
        [table.corner, *table.columns],
        *([row.label, *cells] for row, cells in zip(table.rows, shown, strict=True)),
    ]
    widths = [max(len(line[at]) for line in grid) for at in range(len(grid[0]))]
    for line in grid:
        first, *others = line
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        yield "    " + "  ".join(cells).rstrip()
    yield from (f"    {mark} {note}" for note, mark in marks.items())
