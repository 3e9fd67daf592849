"""Public LangChain and LangGraph applications, unmodified, against a service that sleeps: original and optimized.

    python benchmarks/public_apps.py                            all of them, two at a time
    python benchmarks/public_apps.py --app crag --repeats 5     one, or all whose name contains this
    python benchmarks/public_apps.py --apps DIRECTORY           where the applications' text lies (NAME/app.py)

Their text is other people's and no part of this repository: benchmarks/public/README.md says where each is from. Each
runs in a process of its own beside a service of its own, whose replies depend on the request alone and whose times are
fixed. `bound` is the longest path through the requests of the original's run, by the tables of public/bounds.py. Equal
means: answers, histories, streamed updates, trees of callbacks; requests are compared as multisets.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from public.cases import CASES
from public.worker import OWN, Found, Settings, run

HERE = Path(__file__).parent
ROW = "{:28}{:>7}{:>7}{:>7}{:>7}{:>7}{:>5}{:>6}{:>6}  {}"
MEASURED = ("orig.", "opt.", "ratio", "bound", "/bound", "req.", "extra", "miss.", "equal")
LOAD = "{:28}{:>9}{:>9}{:>7}{:>7}  {}"
LOADED = ("orig. ms", "opt. ms", "ratio", "aside", "raised")
FORKS = multiprocessing.get_context("forkserver")
PRELOADED = ("public.worker", "langchain_openai", "langchain_community.retrievers", "langgraph.prebuilt")
LIMIT_S = 1800
WORTH, REACHED, SLOWER = 1.2, 0.9, 0.98


def main(
    app: Annotated[str, typer.Option(help="Applications whose name contains this.")] = "",
    apps: Annotated[str, typer.Option(help="Directory of the applications.")] = str(HERE / "public" / "apps"),
    inputs: Annotated[int, typer.Option(min=1, max=4)] = 4,
    repeats: Annotated[int, typer.Option(min=1, help="Timed pairs for each input.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Applications at a time.")] = 2,
    chat_ms: Annotated[float, typer.Option()] = 250,
    embed_ms: Annotated[float, typer.Option()] = 60,
    search_ms: Annotated[float, typer.Option()] = 200,
    speculate: Annotated[str, typer.Option(help="As of `optimize`.")] = "",
    side_by_side: Annotated[int, typer.Option(help="Measure so many calls side by side instead, 0 ms models.")] = 0,
    waiting: Annotated[bool, typer.Option("--waiting", help="Side by side, too, models take their times.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was measured as JSON lines.")] = False,
) -> None:
    """Print one row for each application, then a summary."""
    if side_by_side and not waiting:
        chat_ms = embed_ms = search_ms = 0
    settings = Settings(
        str(Path(apps).resolve()), inputs, repeats, chat_ms, embed_ms, search_ms, speculate, side_by_side, waiting
    )
    names = [name for name in CASES if app in name]
    if not as_json:
        print(LOAD.format("application", *LOADED) if side_by_side else ROW.format("application", *MEASURED))
    FORKS.set_forkserver_preload([*PRELOADED, "langchain_community.vectorstores", "teola_plugin.comparison"])
    found = []
    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed(pool.submit(_found, name, settings) for name in names):
            found.append(result := done.result())
            row = _load_row if side_by_side else _row
            print(json.dumps(asdict(result)) if as_json else row(result), flush=True)
    if not (as_json or side_by_side):
        print(_summary(found))


def _found(name: str, settings: Settings) -> Found:
    """What a process of its own finds, forked from one that has imported the frameworks."""
    if not (Path(settings.apps) / name).is_dir():
        return Found(name, error="not here")
    mine, its = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=run, args=(name, settings, its))
    process.start()
    its.close()
    try:
        result: Found = mine.recv() if mine.poll(LIMIT_S) else Found(name, error=f"not done after {LIMIT_S} s")
    except EOFError:
        result = Found(name, error="the process ended")
    process.join(10)
    process.kill()
    return result


def _ratio(found: Found) -> float:
    return statistics.fmean(each.original_ms / each.optimized_ms for each in found.inputs)


def _bound(found: Found) -> float:
    return statistics.fmean(each.original_ms / each.bound_ms for each in found.inputs)


def _row(found: Found) -> str:
    if found.error:
        return f"{found.name:28} NOT RUN: {found.error.strip().splitlines()[-1][:140]}"
    each = found.inputs
    original, optimized = (statistics.fmean(v) for v in ([m.original_ms for m in each], [m.optimized_ms for m in each]))
    differences = dict.fromkeys(text for m in each for text in m.differences)
    told = ["same object"] if found.is_same_object else []
    told += [f"raises {error}" for error in dict.fromkeys(m.raised for m in each if m.raised)]
    told += ["; ".join(differences) if differences else "equal"]
    return ROW.format(
        found.name, f"{original:.0f}", f"{optimized:.0f}", f"{_ratio(found):.2f}", f"{_bound(found):.2f}",
        f"{_ratio(found) / _bound(found):.2f}", max(m.requests for m in each), max(m.extra for m in each),
        max(m.missing for m in each), ", ".join(told),
    )  # fmt: skip


def _load_row(found: Found) -> str:
    """Milliseconds for each call, of CPU or of wall-clock time (see `Bench.mixed`); the ratio is that of throughput."""
    if found.error:
        return _row(found)
    load = found.load
    average = statistics.median if load.aside_ms is None else statistics.fmean
    original, optimized = average(load.original_ms), average(load.optimized_ms)
    aside = "wall" if load.aside_ms is None else f"{load.aside_ms:.2f}"
    return LOAD.format(
        found.name, f"{original:.2f}", f"{optimized:.2f}", f"{original / optimized:.2f}", aside,
        ", ".join(dict.fromkeys(each[:60] for each in load.raised)),
    )  # fmt: skip


def _summary(found: list[Found]) -> str:
    run = [each for each in found if not each.error]
    worth = [each for each in run if _bound(each) >= WORTH]
    reached = [each for each in worth if _ratio(each) >= REACHED * _bound(each)]
    slower = [each.name for each in run if _ratio(each) < SLOWER]
    unequal = [
        each.name for each in run if any(not text.startswith(OWN) for m in each.inputs for text in m.differences)
    ]
    return "\n".join(
        (
            f"{len(run)} of {len(found)} run; {sum(each.is_same_object for each in run)} came back as the same object",
            f"{len(reached)} of the {len(worth)} with a bound of {WORTH} or more reach {REACHED:.0%} of it",
            f"{len(slower)} below {SLOWER}: {', '.join(slower) or '-'}",
            f"{sum(m.extra for each in run for m in each.inputs)} extra requests, "
            f"{sum(m.missing for each in run for m in each.inputs)} missing; unequal: {', '.join(unequal) or '-'}",
        )
    )


if __name__ == "__main__":
    typer.run(main)
