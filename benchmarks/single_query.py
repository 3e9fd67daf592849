"""One query at a time: original against optimized, side by side, and the bound that the same run allows.

    python benchmarks/single_query.py                     engines that wait by the profiles of the paper's testbed
    python benchmarks/single_query.py --engines real      vLLM, MiniLM, a cross-encoder and Chroma on this machine

Both pipelines share engines, models and caches, and run in pairs of alternating order (teola_plugin.compare).
`bound` is the longest path of engine times through the e-graph, as measured in the very runs it stands beside: no wait,
no framework. `async` is the original with LlamaIndex's own `use_async=True`, the best setting of its user. Each row is
printed when it is done, so what was measured before Ctrl-C stands.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer
from rich.progress import Progress, TaskID
from side_by_side import ms

from teola_plugin import compare, optimize, optimized, runtime
from teola_plugin.calling import Caller
from teola_plugin.demo.corpus import passages
from teola_plugin.demo.parts import Sizes, llm_parts
from teola_plugin.demo.run import FORMS, Case, cases_of, kit_for
from teola_plugin.explanation import measure
from teola_plugin.screen import own_screen, progress_bar

DOCUMENT_PASSAGES = 48
"""Ingested with the question in the advanced application, as in the paper's testbed."""

ROW = "{:27}{:>6}{:>7}{:>6}  {:17}{:>6}{:>8}  {}"


class Engines(StrEnum):
    profile = "profile"
    real = "real"


def main(
    engines: Annotated[Engines, typer.Option()] = Engines.profile,
    repeats: Annotated[int, typer.Option(min=1, help="Timed pairs for each row.")] = 7,
    only: Annotated[str, typer.Option(help='Rows whose name contains this, such as "llamaindex naive".')] = "",
) -> None:
    """Print one row for each application, framework and way of calling it."""
    sizes = Sizes(passages(240), document_passages=DOCUMENT_PASSAGES if engines == "profile" else 9)
    with own_screen() as screen, progress_bar(screen.console) as progress:
        try:
            task = progress.add_task("starting the engines", total=None)
            parts = llm_parts(engines)
            screen.say(f"{engines} engines, milliseconds, {repeats} pairs")
            screen.say(
                ROW.format("pipeline", "orig.", "async", "opt.", "ratio [95 %]", "bound", "/bound", "equal"),
            )
            for framework in FORMS:
                progress.update(task, description=f"storing passages ({framework})", completed=0, total=None)
                kit = kit_for(framework, parts, sizes)
                for case in cases_of(framework, ("advanced", "naive"), kit, sizes):
                    if only in case.name:
                        told = partial(_tell, progress, task, case.name)
                        screen.say(ROW.format(*_row(case, repeats, told)))
        finally:
            runtime.host.close()


def _tell(progress: Progress, task: TaskID, name: str, done: int, total: int) -> None:
    progress.update(task, description=name, completed=done, total=total)


def _row(case: Case, repeats: int, progress: Callable[[int, int], None]) -> list[str]:
    twin = optimize(case.pipeline)
    found = compare(case.pipeline, case.inputs, optimized=twin, repeats=repeats, mode=case.form, progress=progress)
    bound_s = _bound_s(twin, repeats)
    return [
        case.name, ms(found.original_median_s), _async_ms(case, repeats), ms(found.optimized_median_s),
        str(found.ratio), ms(bound_s), f"{found.optimized_median_s / bound_s:.2f}", found.verdict,
    ]  # fmt: skip


def _bound_s(twin: object, repeats: int) -> float:
    """The median bound of the last runs that ran ahead."""
    calls = optimized(twin)
    reports = [report for report in calls.reports if not report.rested][-repeats:]
    return statistics.median(measure(calls.optimized.graph, report).bound_s for report in reports)


def _async_ms(case: Case, repeats: int) -> str:
    if case.with_async is None:
        return "-"
    with Caller() as caller:
        times = [caller.call(case.with_async, case.form, case.inputs[0]).seconds for _ in range(repeats + 1)]
    return ms(statistics.median(times[1:]))


if __name__ == "__main__":
    typer.run(main)
