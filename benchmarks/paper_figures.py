"""The papers' figures, ours beside the published ones (`make bench-papers`).

    python benchmarks/paper_figures.py --list
    python benchmarks/paper_figures.py teola-figure7 parrot    one figure, and all whose names begin with parrot-
    python benchmarks/paper_figures.py --simulated --html papers.html --markdown papers.md

The figures themselves are in benchmarks/papers/.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer
from papers.catalog import FIGURES, chosen
from papers.figures import Setting
from papers.making import Made, make, processes
from papers.page import page
from papers.report import head_of, lines
from papers.report import markdown as text_of

from teola_plugin.errors import TeolaError
from teola_plugin.screen import own_screen, progress_bar

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Only these; see --list.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Print the names and stop.")] = False,
    simulated: Annotated[bool, typer.Option("--simulated", help="None that takes real time.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: whether it runs. Implies --simulated.")] = False,
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Also write a page.")] = None,
    markdown: Annotated[Path | None, typer.Option(dir_okay=False, help="Also write the tables.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals and delays.")] = 0,
) -> None:
    """Make the papers' figures in simulation, ours beside the published ones."""
    if list_:
        width = max(len(figure.name) for figure in FIGURES)
        for figure in FIGURES:
            typer.echo(f"{figure.name:{width}}  {figure.title} ({figure.source})")
        return
    for path, hint in ((html, "--html"), (markdown, "--markdown")):
        if path and not path.absolute().parent.is_dir():  # better now than after minutes
            raise typer.BadParameter(f"there is no folder {path.parent}", param_hint=hint)
    try:
        figures = chosen(names or [], simulated=simulated or (quick and not names))
    except TeolaError as e:
        typer.echo(e, err=True)
        raise typer.Exit(2) from e
    began_s = time.perf_counter()
    made: list[Made] = []
    with own_screen() as screen:
        with progress_bar(screen.console) as progress:
            task = progress.add_task("starting", total=None)
            with processes(progress=lambda done, total: progress.update(task, completed=done, total=total)) as spread:
                for figure in figures:
                    progress.update(task, description=figure.name)
                    made.append(make(figure, Setting(quick, seed, spread)))
                    for line in lines(made[-1]):
                        screen.say(line)
        command = _command(names or [], simulated, quick, seed)
        head = head_of(command, seed, time.perf_counter() - began_s, is_quick=quick)
        for label, text in head.rows:
            screen.say(f"{label}: {text}")
        for path, written in ((html, page), (markdown, text_of)):
            if path:
                path.write_text(written(made, head), encoding="utf-8")
                screen.say(f"written: {path}")


def _command(names: list[str], simulated: bool, quick: bool, seed: int) -> str:
    flags = [flag for flag, is_set in (("--simulated", simulated), ("--quick", quick)) if is_set]
    options = [*flags, *(["--seed", str(seed)] if seed else [])]
    return shlex.join(["python", "benchmarks/paper_figures.py", *names, *options])


if __name__ == "__main__":
    app()
