"""`teola engines`: engines on a Ray cluster, which all processes of the cluster share.

teola engines start engines.toml         the engines of the file; they run until stopped
teola engines list
teola engines scale llm 3
teola engines stop llm                   after the requests in progress
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from teola_plugin import shown
from teola_plugin.errors import EngineError, TeolaError

app = typer.Typer(no_args_is_help=True, help="Start, list, scale and stop engines on a Ray cluster.")

CLUSTER = "RAY_AUTH_MODE=token ray start --head --include-dashboard=false"
COLUMNS = ("engine", "kind", "model", "instances", "clients", "waiting", "running", "done", "failed", "crashes")
Address = Annotated[
    str, typer.Option(metavar="HOST:PORT", envvar="RAY_ADDRESS", help="The cluster; auto: the one on this machine.")
]


@app.command()
def start(
    path: Annotated[Path, typer.Argument(metavar="ENGINES.TOML", exists=True, dir_okay=False)],
    name: Annotated[list[str] | None, typer.Option("--engine", help="Only this one; may be repeated.")] = None,
    address: Address = "auto",
) -> None:
    """Start the engines of a file. A running engine with the same settings is left running."""
    from teola_plugin.registry import load_engines

    def work(console: Console) -> None:
        declared = load_engines(path)
        for wanted in name or declared:
            if wanted not in declared:
                raise EngineError(f"{path} declares no engine {wanted!r}, but: {', '.join(declared) or 'none'}")
        rays = _rays(address)
        for wanted in name or declared:
            with console.status(f"starting {wanted}"):
                hello = rays.start(declared[wanted], lifetime="detached").hello
            console.print(f"{wanted}: {hello.kind} {shown.address(hello.model)}", markup=False, highlight=False)

    _run(work)


@app.command("list")
def list_engines(address: Address = "auto") -> None:
    """What runs on the cluster."""

    def work(console: Console) -> None:
        table = Table(*COLUMNS)
        for engine in _rays(address).engines():
            if engine.hello is None:
                table.add_row(engine.name, "does not answer (starting, restarting, or hanging)")
                continue
            stats = engine.stats
            table.add_row(
                engine.name, engine.hello.kind, shown.address(engine.hello.model), str(engine.hello.instances),
                *(str(stats[column]) for column in ("clients", "queued", "running", "done", "failed", "crashes")),
            )  # fmt: skip
        console.print(table if table.row_count else "no engines")

    _run(work)


@app.command()
def scale(
    name: Annotated[str, typer.Argument(metavar="ENGINE")],
    instances: Annotated[int, typer.Argument(min=1)],
    address: Address = "auto",
) -> None:
    """Have so many instances of an engine. Instances to be ended finish their work first."""

    def work(console: Console) -> None:
        console.print(f"{name}: {_rays(address).scale(name, instances)} instances")

    _run(work)


@app.command()
def stop(
    names: Annotated[list[str] | None, typer.Argument(metavar="ENGINE...")] = None,
    every: Annotated[bool, typer.Option("--all", help="All engines of the cluster.")] = False,
    drain_s: Annotated[float, typer.Option("--drain", min=0, help="Seconds to wait for what is under way.")] = 30.0,
    address: Address = "auto",
) -> None:
    """Stop engines once what they have been asked for is done."""
    if not names and not every:
        raise typer.BadParameter("name engines, or say --all", param_hint="ENGINE...")

    def work(console: Console) -> None:
        rays = _rays(address)
        for name in [each.name for each in rays.engines()] if every else names or []:
            left = rays.stop(name, drain_s=drain_s)
            console.print(f"{name}: stopped" + (f"; {left} items were not done" if left else ""))

    _run(work)


def _rays(address: str) -> Any:
    """Connect to Ray and return the module of Ray's engines."""
    from teola_plugin.runtime.hosts.ray import cluster, engines

    try:
        cluster.connect(address)
    except EngineError as e:
        raise EngineError(f"{e}\nA cluster that asks for a token: {CLUSTER}") from e
    return engines


def _run(work: Any) -> None:
    from teola_plugin import runtime

    console = Console()
    try:
        work(console)
    except TeolaError as e:
        Console(stderr=True).print(f"teola: {e}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from e
    finally:
        runtime.host.close()
