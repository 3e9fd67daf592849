"""SGLang's programs one by one.

python -m teola_plugin.bench.sglang --only judge    the programs whose name contains it
python -m teola_plugin.bench.sglang --quick         short answers and few users
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from teola_plugin.bench.figures import Setting
from teola_plugin.bench.making import Made, processes
from teola_plugin.bench.report import lines
from teola_plugin.bench.sglang.figure import FIGURES, result, rows


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Short answers and few users.")] = False,
    only: Annotated[str, typer.Option(help="Programs whose name contains this.")] = "",
) -> None:
    """Print the tables."""
    began_s = time.perf_counter()
    with processes() as spread:
        made = result(rows(Setting(quick, map=spread), only))
    for line in lines(Made(FIGURES[0], made, time.perf_counter() - began_s)):
        typer.echo(line)


if __name__ == "__main__":
    typer.run(main)
