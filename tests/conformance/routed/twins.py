"""Twins of other people's pipelines, and what became of them in numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

from teola_plugin.adapters import adapter_for
from teola_plugin.api import OptimizedPipeline, Options, optimize
from teola_plugin.events import PrimitiveRan
from teola_plugin.runtime.session.report import Report


class Twins:
    """`tally` counts pipelines and the calls of their twins."""

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()

    def twin_of(self, pipeline: Any) -> Any:
        """The optimized pipeline; if `optimize` finds nothing to do, a twin whose calls have nothing to run ahead."""
        made = optimize(pipeline, callbacks=[self._note])
        self.tally["declined" if made is pipeline else "optimized"] += 1
        if made is not pipeline:
            return made
        adapter = adapter_for(pipeline)
        if adapter is None:
            self.tally["unknown"] += 1
            return pipeline
        traced = adapter.trace(pipeline)
        return adapter.twin(pipeline, OptimizedPipeline(pipeline, adapter, traced, Options(callbacks=(self._note,))))

    def _note(self, report: Report) -> None:
        self.tally["calls"] += 1
        ran_ahead = report.hits or any(isinstance(event, PrimitiveRan) for event in report.events)
        self.tally["ran ahead"] += bool(ran_ahead)  # a reader asks without primitives
        for count in ("hits", "shared", "misses", "stale", "wasted", "prefills"):
            self.tally[count] += getattr(report, count)
        self.tally["fallbacks"] += len(report.fallbacks)

    def summary(self) -> str:
        """The counts in one line."""
        t = self.tally
        return (
            f"{t['optimized']} pipelines optimized, {t['declined']} declined ({t['unknown']} of them not known); "
            f"{t['calls']} calls of twins, {t['ran ahead']} ran ahead: {t['hits']} hits, {t['shared']} shared, "
            f"{t['misses']} misses, {t['stale']} stale, {t['wasted']} wasted, {t['prefills']} prefills, "
            f"{t['fallbacks']} fallbacks"
        )
