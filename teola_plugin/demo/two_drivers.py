"""The demo on Ray, part two: another process asks the same engines at the same time.

this process   --queries-->  engines on Ray  <--queries--  `teola demo --runtime ray --quick`, a process of its own
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from teola_plugin.errors import EngineError

ARGUMENTS = ("demo", "--runtime", "ray", "--quick", "--alone", "--framework", "langchain")


def run_beside(console: Console, engines: str, ask: Callable[[], Any]) -> None:
    """Have another process run the demo while this one goes on asking. Raises: EngineError if that one fails."""
    before = _batches()
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said.txt"
        with said.open("w") as out:
            other = subprocess.Popen(
                [sys.executable, "-m", "teola_plugin.cli", *ARGUMENTS, "--engines", engines], stdout=out, stderr=out
            )
            try:
                while other.poll() is None:
                    ask()
            finally:
                other.kill()
                other.wait()
        console.print(_table(before, _batches()))
        if other.returncode:
            raise EngineError(f"the second process ended with status {other.returncode}:\n{said.read_text()[-2000:]}")
    console.print("A second process used the same engines meanwhile; its answers and callback trees are equal too.")


def _batches() -> dict[str, Sequence[int]]:
    """Items, batches, and batches with items of several queries, by engine."""
    from teola_plugin.runtime.ray_engines import engines

    return {
        each.name: [each.stats["taken"], each.stats["batches"], each.stats["mixed"]]
        for each in engines() if each.stats
    }  # fmt: skip


def _table(before: dict[str, Sequence[int]], after: dict[str, Sequence[int]]) -> Table:
    table = Table("engine on Ray", "items", "batches", "of both processes", title="two processes, the same engines")
    for name, counts in after.items():
        earlier = before.get(name, (0, 0, 0))
        if counts[0] == earlier[0]:
            continue  # LlamaIndex's: neither process asks it now
        table.add_row(name, *(str(now - then) for now, then in zip(counts, earlier, strict=True)))
    return table
