"""One query at a time: original against optimized, side by side, and the bound that the same run allows.

    python benchmarks/single_query.py                     engines that wait by the profiles of the paper's testbed
    python benchmarks/single_query.py --engines real      vLLM, MiniLM, a cross-encoder and Chroma on this machine

Both pipelines share engines, models and caches, and run in pairs of alternating order (teola_plugin.compare).
`bound` is the longest path of engine times through the e-graph, as measured in the very runs it stands beside: no wait,
no framework. `async` is the original with LlamaIndex's own `use_async=True`, the best setting of its user.
"""

from __future__ import annotations

import statistics
from typing import Annotated

import typer
from rich.table import Table

from teola_plugin import compare, optimize, optimized, runtime
from teola_plugin.calling import Caller
from teola_plugin.comparison import Comparison
from teola_plugin.demo.corpus import passages
from teola_plugin.demo.parts import Sizes, llm_parts
from teola_plugin.demo.run import FORMS, Case, cases_of, kit_for
from teola_plugin.demo.table import progress_bar
from teola_plugin.explanation import measure
from teola_plugin.screen import own_screen

DOCUMENT_PASSAGES = 48
"""Ingested with the question in the advanced application, as in the paper's testbed."""


def main(
    engines: Annotated[str, typer.Option(help="profile or real")] = "profile",
    repeats: Annotated[int, typer.Option(min=1)] = 7,
    only: Annotated[str, typer.Option(help="rows whose name contains this")] = "",
) -> None:
    """Print one row for each application, framework and way of calling it."""
    sizes = Sizes(passages(240), document_passages=DOCUMENT_PASSAGES if engines == "profile" else 9)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title=f"{engines} engines, ms, {repeats} pairs")
    for title in ("pipeline", "orig.", "async", "opt.", "ratio \\[95 %]", "bound", "/bound", "equal"):
        table.add_column(title, justify="left" if title == "pipeline" else "right", no_wrap=True)
    with own_screen() as screen, progress_bar(screen.console) as progress:
        try:
            task = progress.add_task("starting the engines", total=None)
            parts = llm_parts(engines)
            for framework in FORMS:
                kit = kit_for(framework, parts, sizes)
                for case in cases_of(framework, ("advanced", "naive"), kit, sizes):
                    if only in case.name:
                        progress.update(task, description=case.name)
                        table.add_row(*_row(case, repeats))
            progress.stop()
            screen.console.print(table)
        finally:
            runtime.host.close()


def _row(case: Case, repeats: int) -> list[str]:
    twin = optimize(case.pipeline)
    found = compare(case.pipeline, case.inputs, optimized=twin, repeats=repeats, mode=case.form)
    bound_s = _bound_s(twin, repeats)
    return [
        case.name, _ms(found.original_median_s), _async_ms(case, repeats), _ms(found.optimized_median_s),
        str(found.ratio).replace("[", "\\["), _ms(bound_s), f"{found.optimized_median_s / bound_s:.2f}", _equal(found),
    ]  # fmt: skip


def _bound_s(twin: object, repeats: int) -> float:
    """The median bound of the last runs."""
    calls = optimized(twin)
    reports = list(calls.reports)[-repeats:]
    return statistics.median(measure(calls.optimized.graph, report).bound_s for report in reports)


def _async_ms(case: Case, repeats: int) -> str:
    if case.with_async is None:
        return "-"
    with Caller() as caller:
        times = [caller.call(case.with_async, case.form, case.inputs[0]).seconds for _ in range(repeats + 1)]
    return _ms(statistics.median(times[1:]))


def _equal(found: Comparison) -> str:
    return "yes" if found.equal else f"NO ({len(found.differences)}, {len(found.tree_differences)})"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f}"


if __name__ == "__main__":
    typer.run(main)
