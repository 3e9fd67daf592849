"""The `teola` command.

    teola demo                               two RAG pipelines, original against optimized, on real engines
    teola compare app:chain -i '"a question"'   the same for a pipeline of yours
    teola explain app:chain                  what optimize makes of it, and why not more
    teola profile engines.toml               how long the engines of a file take, for `optimize` to decide by
    teola engines list                       engines on a Ray cluster; also: start, scale, stop
    teola doctor                             what is installed, and whether it fits

Exit status: 0 all well, 1 something differs or is missing, 2 wrong usage, 130 Ctrl-C.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from teola_plugin import cli_engines
from teola_plugin.errors import TeolaError
from teola_plugin.screen import own_screen, progress_bar

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich",
    help="Makes LangChain and LlamaIndex pipelines on self-hosted models faster, with the same outputs.",
)  # fmt: skip

app.add_typer(cli_engines.app, name="engines")

CLOSING_S = 10.0
"""Seconds for the engines to shut down."""

Target = Annotated[str, typer.Argument(metavar="MODULE:OBJECT", help="where your pipeline is, such as app:chain")]


class Framework(StrEnum):
    langchain = "langchain"
    llamaindex = "llamaindex"


class App(StrEnum):
    advanced = "advanced"
    naive = "naive"


class Engines(StrEnum):
    real = "real"
    profile = "profile"


class Runtime(StrEnum):
    local = "local"
    ray = "ray"


class Format(StrEnum):
    text = "text"
    mermaid = "mermaid"
    json = "json"


def _version(wanted: bool) -> None:
    if wanted:
        from teola_plugin import __version__

        typer.echo(f"teola-plugin {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and stop.")
    ] = False,
) -> None:
    """Every command has its own --help."""


@app.command()
def demo(
    framework: Annotated[
        list[Framework] | None, typer.Option(metavar="langchain|llamaindex", help="Only this one; may be repeated.")
    ] = None,
    app_name: Annotated[
        list[App] | None, typer.Option("--app", metavar="advanced|naive", help="Only this one; may be repeated.")
    ] = None,
    engines: Annotated[Engines, typer.Option(help="Real models, or waiting by latency profiles.")] = Engines.real,
    model: Annotated[str | None, typer.Option(help="A model for vLLM: folder or hub name.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed pairs for each row.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="One pair for each row, fewer passages.")] = False,
    html: Annotated[Path | None, typer.Option(file_okay=False, help="Folder for a page about each row.")] = None,
    runtime: Annotated[Runtime, typer.Option(help="Engines in this process, or on Ray.")] = Runtime.local,
) -> None:
    """Answer questions with the plain and the optimized pipeline, side by side. Exit status 1 if anything differs."""
    from teola_plugin.demo.run import Choice, run_demo

    if model and engines is Engines.profile:
        raise typer.BadParameter("profile engines have no model", param_hint="--model")
    choice = Choice(
        [f.value for f in framework or Framework], [a.value for a in app_name or App], engines.value, model,
        1 if quick else repeats, 96 if quick else 240, html, runtime.value,
    )  # fmt: skip
    _run(lambda console: run_demo(choice, console))


@app.command()
def compare(
    target: Target,
    inputs: Annotated[list[str] | None, typer.Option("--input", "-i", help="JSON, or else a text. Repeatable.")] = None,
    inputs_file: Annotated[Path | None, typer.Option("--inputs", help="A file with one input on each line.")] = None,
    mode: Annotated[str, typer.Option(help="Method to call: invoke, ainvoke, stream, query, aquery, ...")] = "auto",
    repeats: Annotated[int, typer.Option(min=1, help="Timed pairs for each input.")] = 5,
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Also write a page.")] = None,
) -> None:
    """Run your pipeline and its optimized twin in pairs. Exit status 1 if anything differs."""
    from teola_plugin.comparison import compare as run_pairs

    values = [*map(_value, inputs or []), *_lines(inputs_file)]
    if not values:
        raise typer.BadParameter("give at least one, with --input or --inputs", param_hint="--input")
    if html and not html.parent.is_dir():  # better now than after all the runs
        raise typer.BadParameter(f"there is no folder {html.parent}", param_hint="--html")

    def work(console: Console) -> bool:

        pipeline = _load(target)
        with progress_bar(console) as progress:
            task = progress.add_task(target, total=None)
            comparison = run_pairs(
                pipeline, values, repeats=repeats, mode=mode,
                progress=lambda done, total: progress.update(task, completed=done, total=total),
            )  # fmt: skip
        _say(console, str(comparison))
        if html:
            comparison.to_html(html)
            _say(console, f"written: {html}")
        return comparison.equal

    _run(work)


@app.command()
def explain(
    target: Target,
    format: Annotated[Format, typer.Option("--format", "-f")] = Format.text,
    analyze: Annotated[str | None, typer.Option(help="Run it once on this input (JSON, or else a text).")] = None,
) -> None:
    """Show the graphs, what each pass did or refused and why, and what is left to the framework."""
    from teola_plugin.adapters import adapter_for
    from teola_plugin.api import optimize
    from teola_plugin.explanation import explain as say

    def work(console: Console) -> bool:
        pipeline = _load(target)
        if adapter_for(pipeline):  # else `say` raises, and says why
            pipeline = optimize(pipeline)
        _say(console, say(pipeline, format.value, None if analyze is None else _value(analyze)))
        return True

    _run(work)


@app.command()
def profile(
    engines: Annotated[Path | None, typer.Argument(metavar="ENGINES.toml", help="Tables [engines.NAME].")] = None,
    only: Annotated[
        list[str] | None, typer.Option("--engine", metavar="NAME", help="Only this one; repeatable.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Without a file: embedding, reranking, vllm, ...")] = None,
    model: Annotated[str, typer.Option(help="And its folder or hub name.")] = "",
    executable: Annotated[str, typer.Option(help="Of kind custom: package.module:callable.")] = "",
    config: Annotated[str, typer.Option(help="And its arguments, as JSON.")] = "{}",
    name: Annotated[str | None, typer.Option(help="And its name; else its kind.")] = None,
    op: Annotated[str | None, typer.Option(help="What to measure, of an engine of kind custom.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False)] = Path("profiles.json"),
    budget: Annotated[float, typer.Option(min=0.1, help="Seconds for each engine.")] = 60.0,
    max_items: Annotated[int | None, typer.Option(min=1, help="The largest batch; else the engine's.")] = None,
    tokens: Annotated[str | None, typer.Option(help="Lengths of items, such as 16,64,256.")] = None,
) -> None:
    """Measure how long engines take for batches of all sizes, and keep it for `optimize` and the schedulers."""
    from teola_plugin.registry import EngineConfig, load_engines

    if (engines is None) == (kind is None):
        raise typer.BadParameter("give a file of engines, or --kind and --model")
    if not all(part.strip().isdigit() for part in (tokens or "1").split(",")):
        raise typer.BadParameter(f"{tokens!r} is not numbers with commas between", param_hint="--tokens")
    if not output.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {output.absolute().parent}", param_hint="--output")
    lengths = [int(part) for part in tokens.split(",")] if tokens else None

    def work(console: Console) -> bool:
        from teola_plugin.profiling.report import profile_engines

        if engines:
            configs = chosen(load_engines(engines), only or [])
        else:
            said = {
                "name": name or kind, "kind": kind, "model": model, "executable": executable, "config": _value(config)
            }  # fmt: skip
            configs = [EngineConfig.from_json(said)]
        with progress_bar(console) as progress:
            task = progress.add_task("loading", total=None)
            return profile_engines(
                configs, output, console, lambda text: progress.update(task, description=text),
                op=op, max_items=max_items, lengths=lengths, budget_s=budget,
            )  # fmt: skip

    def chosen(there: Mapping[str, EngineConfig], names: list[str]) -> list[EngineConfig]:
        if missing := [one for one in names if one not in there]:
            raise TeolaError(f"{engines} has no engine {missing[0]!r}; there are {', '.join(there)}")
        return [there[one] for one in names or there]

    _run(work)


@app.command()
def doctor(
    imports: Annotated[bool, typer.Option("--imports", help="Also try to import each part; slow.")] = False,
) -> None:
    """Show what is installed, and what is missing for which part. Exit status 1 if something is broken."""
    from teola_plugin.doctor import examine

    raise typer.Exit(0 if examine(Console(), imports=imports) else 1)


def _run(work: Callable[[Console], bool]) -> NoReturn:
    """Run a command on a new screen and exit with the command's status.

    Errors of the package and Ctrl-C print one line each; any other exception is the user's and keeps the traceback."""
    from teola_plugin import runtime

    try:
        with own_screen() as screen:
            try:
                status = 0 if work(screen.console) else 1
            except KeyboardInterrupt:
                screen.console.print("\nstopped", style="yellow")
                raise
            except (Exception, SystemExit) as e:
                if isinstance(e, TeolaError):
                    _say(screen.console, f"teola: {e}", style="red")
                if screen.log.stat().st_size:
                    _say(screen.console, f"what was printed meanwhile is in {screen.log}")
                if isinstance(e, TeolaError):
                    raise typer.Exit(1) from e
                raise
            finally:
                runtime.host.close(CLOSING_S)
    except KeyboardInterrupt:
        for child in multiprocessing.active_children():
            child.terminate()
        os._exit(130)  # a thread which loads a model cannot be stopped, and may take long
    raise typer.Exit(status)


def _say(console: Console, text: str, style: str | None = None) -> None:
    """Print the text unchanged: no markup, no added colours, no wrapping."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _load(target: str) -> Any:
    """Return the object named by `module:object`; the current folder is on the path, as for `python -m`."""
    from teola_plugin.registry import object_named

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return object_named(target)


def _value(text: str) -> Any:
    """Return the parsed JSON, or the text if it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _lines(path: Path | None) -> list[Any]:
    if path is None:
        return []
    try:
        return [_value(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as e:
        raise typer.BadParameter(f"cannot read {path}: {e}", param_hint="--inputs") from e


if __name__ == "__main__":
    app()
