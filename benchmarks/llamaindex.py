"""LlamaIndex pipelines: original, with LlamaIndex's own `use_async`, optimized, and the same overlapped by hand.

    python benchmarks/llamaindex.py                  engines that wait by published profiles; a real splitter and Chroma
    python benchmarks/llamaindex.py --engines real   vLLM, MiniLM, a cross-encoder and Chroma, all on this machine
    python benchmarks/llamaindex.py --only HyDE      rows whose name contains this

A row is one way of calling: `query` beside the original whose components have `use_async=True` (`own`), `aquery`, whose
original is LlamaIndex's own async. `by hand` is asyncio code without a framework that asks for the same things as early
as their inputs exist, and the bound of the row. All take turns, in an order that rotates; each starts with an empty
prefix cache (profile engines) and an empty store (ingestion). By hand must come to the same answers too.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer
from llamaindex_by_hand import Row
from llamaindex_models import Models, profile_models, real_models
from llamaindex_rows import profile_rows, real_rows
from side_by_side import Told, ms, print_rows

from teola_plugin import optimize
from teola_plugin.comparison import Comparison, canonical_tree, differences, plain, tree_differences
from teola_plugin.comparison.llamaindex import recording

ROW = "{:33}{:>7}{:>7}{:>7}{:>9}  {:18}{:>9}{:>6}  {}"
HEADS = ("pipeline", "orig.", "own", "opt.", "by hand", "ratio [95 %]", "/by hand", "/own", "equal")


UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Engines(StrEnum):
    profile = "profile"
    real = "real"


@dataclass(frozen=True)
class Line:
    """One way of calling a row's pipelines. `acts`, by name, take what `row.prepare` returns; some give coroutines."""

    name: str
    row: Row
    forget: Callable[[], None]
    twin: Any
    acts: dict[str, Callable[[Any], Any]]


def main(
    engines: Annotated[Engines, typer.Option()] = Engines.profile,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds for each row.")] = 5,
    only: Annotated[str, typer.Option(help="Rows whose name contains this.")] = "",
) -> None:
    """Print one row for each pipeline and way of calling it."""
    is_real = engines == Engines.real
    print_rows(
        ROW, HEADS, f"{engines} engines, milliseconds, {repeats} rounds", only,
        parts=real_models() if is_real else profile_models(),
        rows=partial(_lines, real_rows if is_real else profile_rows), measured=partial(_measured, repeats),
    )  # fmt: skip


def _lines(rows: Callable[[Models], Iterable[Row]], m: Models) -> Iterable[Line]:
    for row in rows(m):
        twin = optimize(row.pipeline)
        if row.call is not None:
            acts = {"original": partial(row.call, row.pipeline), "optimized": partial(row.call, twin)}
            own = {"own": partial(row.call, row.concurrent)} if row.concurrent else {}
            yield Line(f"{row.name} sync", row, m.forget, twin, {**acts, **own, "by hand": row.by_hand})
        acts = {"original": partial(row.acall, row.pipeline), "optimized": partial(row.acall, twin)}
        yield Line(f"{row.name} async", row, m.forget, twin, {**acts, "by hand": row.by_hand})


def _measured(repeats: int, line: Line, runner: asyncio.Runner, told: Told) -> list[str]:
    seconds: dict[str, list[float]] = {name: [] for name in line.acts}
    found: list[str] = []
    trees: dict[str, Any] = {}
    for turn in range(1 + repeats):
        said: dict[str, Any] = {}
        names = [*line.acts][turn % len(line.acts) :] + [*line.acts][: turn % len(line.acts)]
        for name in names:
            pipelines = {"original": line.row.pipeline, "optimized": line.twin}
            is_recorded = not turn and name in pipelines
            with recording(pipelines[name]) if is_recorded else nullcontext({}) as nodes:
                said[name], taken_s = _called(line, name, runner)
            if is_recorded:
                trees[name] = canonical_tree(nodes)
            if turn:
                seconds[name].append(taken_s)
        found += _differences(said)
        told(turn + 1, 1 + repeats)
    both = seconds["original"], seconds["optimized"]
    tree_found = tree_differences(trees["original"], trees["optimized"])
    compared = Comparison(
        line.name, "", *map(tuple, both), differences=tuple(found), tree_differences=tuple(tree_found)
    )
    first = next((f": {each:.150}" for each in (*compared.differences, *compared.tree_differences)), "")
    return [line.name, *_figures(seconds, compared), compared.verdict + first]


def _called(line: Line, name: str, runner: asyncio.Runner) -> tuple[dict[str, Any], float]:
    """What one call came to, and how long it took."""
    given = line.row.prepare()
    line.forget()
    act = line.acts[name]

    async def timed() -> tuple[Any, float]:
        started_s = time.perf_counter()
        return await act(given), time.perf_counter() - started_s

    if inspect.iscoroutinefunction(act):
        answer, taken_s = runner.run(timed())
    else:
        started_s = time.perf_counter()
        answer = act(given)
        taken_s = time.perf_counter() - started_s
    return _without_ids({"answer": plain(answer), "seen": plain(line.row.seen(answer))}, {}), taken_s


def _without_ids(value: Any, names: dict[str, str]) -> Any:
    """The same with numbers for the ids that LlamaIndex draws, as for the nodes made of sub-questions."""
    match value:
        case str():
            return UUID.sub(lambda found: names.setdefault(found[0], f"id {len(names)}"), value)
        case dict():
            return {_without_ids(key, names): _without_ids(each, names) for key, each in value.items()}
        case list():
            return [_without_ids(each, names) for each in value]
    return value


def _differences(said: dict[str, dict[str, Any]]) -> list[str]:
    """Of the answers as a whole, and of what else came to the same in another way."""
    whole = differences(said["original"], said["optimized"])
    others = (differences(said["original"]["seen"], said[name]["seen"], name) for name in said.keys() - {"optimized"})
    return [*whole, *(each for other in others for each in other)]


def _figures(seconds: dict[str, list[float]], compared: Comparison) -> list[str]:
    median_s = {name: statistics.median(times) for name, times in seconds.items()}
    own_s = median_s.get("own")
    return [
        ms(median_s["original"]), ms(own_s) if own_s else "-", ms(median_s["optimized"]), ms(median_s["by hand"]),
        str(compared.ratio), f"{median_s['optimized'] / median_s['by hand']:.2f}",
        f"{median_s['optimized'] / (own_s or median_s['original']):.2f}",
    ]  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
