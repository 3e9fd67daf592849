"""`teola bench`: the papers' figures, ours beside the published ones.

teola bench --list
teola bench teola-figure7 parrot          one figure, and all whose names begin with parrot-
teola bench --simulated --html papers.html --markdown papers.md
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from rich.console import Console

from teola_plugin.screen import progress_bar


def list_figures(console: Console) -> None:
    """Print names and titles."""
    from teola_plugin.bench.catalog import FIGURES

    width = max(len(figure.name) for figure in FIGURES)
    for figure in FIGURES:
        _say(console, f"{figure.name:{width}}  {figure.title} ({figure.source})")


def run_figures(
    names: list[str],
    console: Console,
    *,
    simulated: bool,
    quick: bool,
    seed: int,
    html: Path | None,
    markdown: Path | None,
) -> None:
    """Make the figures, print them, and write what was asked for. Raises: TeolaError for an unknown name."""
    from teola_plugin.bench.catalog import chosen
    from teola_plugin.bench.figures import Setting
    from teola_plugin.bench.making import Made, make, processes
    from teola_plugin.bench.page import page
    from teola_plugin.bench.report import head_of, lines
    from teola_plugin.bench.report import markdown as text_of

    figures = chosen(names, simulated=simulated or (quick and not names))
    began_s = time.perf_counter()
    made: list[Made] = []
    with progress_bar(console) as progress:
        task = progress.add_task("starting", total=None)
        with processes(progress=lambda done, total: progress.update(task, completed=done, total=total)) as spread:
            for figure in figures:
                progress.update(task, description=figure.name)
                made.append(make(figure, Setting(quick, seed, spread)))
                for line in lines(made[-1]):
                    _say(console, line)
    head = head_of(_command(names, simulated, quick, seed), seed, time.perf_counter() - began_s, is_quick=quick)
    for label, text in head.rows:
        _say(console, f"{label}: {text}")
    for path, written in ((html, page), (markdown, text_of)):
        if path:
            path.write_text(written(made, head), encoding="utf-8")
            _say(console, f"written: {path}")


def _command(names: list[str], simulated: bool, quick: bool, seed: int) -> str:
    flags = [flag for flag, is_set in (("--simulated", simulated), ("--quick", quick)) if is_set]
    options = [*flags, *(["--seed", str(seed)] if seed else [])]
    return shlex.join(["teola", "bench", *names, *options])


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
