"""The report of one call of an optimized pipeline, as kept by the callback handler."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from teola_plugin.codes import CODES
from teola_plugin.events import BatchRan
from teola_plugin.explanation.measure import Measured, measure
from teola_plugin.explanation.text import run_text
from teola_plugin.graph import Graph
from teola_plugin.runtime.session.report import Report
from teola_plugin.trace import Break


@dataclass(frozen=True)
class RunReport:
    """The report of one call. `run_ids`: the root runs of the call, the first runs for a batch. `breaks`: the parts
    left to the framework. `error`: the exception of the pipeline, if any."""

    run_ids: tuple[str, ...]
    name: str
    report: Report
    breaks: tuple[Break, ...] = ()
    error: str = ""

    @property
    def run_id(self) -> str:
        """The root run, the first one of a batch."""
        return self.run_ids[0] if self.run_ids else ""

    @property
    def batches(self) -> list[BatchRan]:
        """The engines' batches with items of the call, in order of start."""
        return sorted((e for e in self.report.events if isinstance(e, BatchRan)), key=lambda e: e.started_s)

    @cached_property
    def measured(self) -> Measured:
        """Steps with their times and waits, critical path and bound; computed on first use."""
        return replace(measure(Graph((), (), ()), self.report), error=self.error)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON. Times of batches are seconds since the start of the call."""
        start_s = self.report.started_s
        return {
            "optimized": True,
            "run_ids": list(self.run_ids),
            "name": self.name,
            **self.measured.as_dict(),
            "batches": [
                {"engine": b.engine, "op": b.op, "items": b.items,
                 "began_s": b.started_s - start_s, "ended_s": b.ended_s - start_s}
                for b in self.batches
            ],
            "breaks": [asdict(b) for b in self.breaks],
        }  # fmt: skip

    def __str__(self) -> str:
        runs = f", {len(self.run_ids)} root runs" if len(self.run_ids) > 1 else ""
        rest = f"; {CODES['TF002']}" if self.report.rested else ""
        return f"{run_text(f'{self.name}: optimized{runs}{rest}', self.measured, self.breaks)}\n\n{self._batch_lines()}"

    def _batch_lines(self) -> str:
        sizes = Counter((b.engine, b.op, b.items) for b in self.batches)
        lines = [f"  {count} x {op} of {n} @ {engine}" for (engine, op, n), count in sorted(sizes.items())]
        return "\n".join(["batches", "-------", *(lines or ["  none"])])
