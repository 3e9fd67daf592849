"""`explain`: the optimized form of a pipeline, refused rewrites with reasons, and with `analyze` a measured run.

print(explain(chain))                          the p-graph, each decision of the passes, the e-graph, the breaks
print(explain(chain, analyze="a question"))    besides, one measured run: times, critical path and bound
print(explain(chain, format="mermaid"))        the e-graph as a flowchart
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal, Protocol

from teola_plugin.adapters import SUPPORTED, Adapter, Calls, adapter_for
from teola_plugin.calling import Caller, first_form, name_of
from teola_plugin.errors import TeolaError
from teola_plugin.explanation.measure import Measured, measure
from teola_plugin.explanation.mermaid import flowchart
from teola_plugin.explanation.text import as_text
from teola_plugin.passes import Optimized
from teola_plugin.routes import Routes
from teola_plugin.runtime.session.report import Report
from teola_plugin.trace import Traced

__all__ = ["Format", "Measured", "explain", "explain_pipeline", "measure"]

Format = Literal["text", "mermaid", "json"]


class Explainable(Calls, Protocol):
    """The record of an optimized object, as far as `explain` needs."""

    @property
    def pipeline(self) -> Any: ...
    @property
    def adapter(self) -> Adapter: ...
    @property
    def traced(self) -> Traced: ...
    @property
    def optimized(self) -> Optimized: ...
    @property
    def reports(self) -> Sequence[Report]: ...
    @property
    def assumed(self) -> Sequence[str]: ...
    @property
    def routes(self) -> Routes | None: ...

    def wake(self) -> None: ...


def explain(pipeline: Any, format: str = "text", analyze: Any = None) -> str:
    """Return the explanation of an optimized object, as `format`: "text", "mermaid" or "json".

    With `analyze`, an input of the pipeline, the optimized pipeline really runs once on the input. A run which raises
    is explained too.

    Raises: TeolaError, with the reason, for an object which was not optimized, and for an unknown format.
    """
    adapter = adapter_for(pipeline)
    calls = adapter.calls_of(pipeline) if adapter else None
    if calls is None:
        raise TeolaError(_why_not(pipeline, adapter))
    return calls.explain(format, analyze)


def explain_pipeline(calls: Explainable, format: str = "text", analyze: Any = None) -> str:
    """See `explain`."""
    if format not in ("text", "mermaid", "json"):
        raise TeolaError(f'explain knows the formats "text", "mermaid" and "json", not {format!r}')
    measured = None if analyze is None else _analyze(calls, analyze)
    name = name_of(calls.pipeline)
    if format == "text":
        is_called = bool(calls.reports)
        return as_text(name, calls.traced, calls.optimized, measured, calls.assumed, calls.routes, is_called=is_called)
    if format == "mermaid":
        return flowchart(calls.optimized.graph, measured)
    return json.dumps(_as_dict(name, calls, measured), indent=2, default=repr)


def _analyze(calls: Explainable, value: Any) -> Measured:
    twin = calls.adapter.twin(calls.pipeline, calls)
    earlier = calls.reports[-1] if calls.reports else None
    calls.wake()
    with Caller() as caller:
        answer = caller.call(twin, first_form(twin), value)
    if not calls.reports or calls.reports[-1] is earlier:
        raise TeolaError("the run left no report; is TEOLA_STANCE=original set?")
    return measure(calls.optimized.graph, calls.reports[-1], answer.error)


def _as_dict(name: str, calls: Explainable, measured: Measured | None) -> dict[str, Any]:
    done = calls.optimized
    return {
        "pipeline": name,
        "p_graph": str(calls.traced.graph),
        "records": [
            {"code": r.code, "pass": r.pass_name, "primitive": r.primitive, "applied": r.applied,
             "reason": r.reason, "number": r.number}
            for r in done.records
        ],
        "e_graph": str(done.graph),
        "origins": {p.name: p.origin for p in done.graph},
        "early": list(calls.traced.early),
        "readings": [asdict(each) for each in calls.traced.readings],
        "parts": {name: str(part.graph) for name, part in calls.traced.parts.items()},
        "assumed_pure": list(calls.assumed),
        "breaks": [{"code": b.code, "what": b.what, "origin": b.origin, "hint": b.hint} for b in calls.traced.breaks],
        "learns": calls.routes is not None,
        "measured": None if measured is None else measured.as_dict(),
    }  # fmt: skip


def _why_not(pipeline: Any, adapter: Adapter | None) -> str:
    name = name_of(pipeline)
    if adapter is None:
        return f"{name} is no pipeline teola_plugin knows, so there is nothing to explain; supported are {SUPPORTED}"
    traced = adapter.trace(pipeline)
    if traced.may_gain:
        return f"this {name} was not optimized; explain what optimize() returns: explain(optimize(pipeline))"
    return nothing_to_gain(pipeline, traced)


def nothing_to_gain(pipeline: Any, traced: Traced) -> str:
    """Return the reason why `optimize` returns the same object."""
    reasons = "".join(f"\n  {b.code} {b.what}" for b in traced.breaks)
    return (
        f"this {name_of(pipeline)} has nothing to gain: no model, embedding, search or reranker in it that may run "
        f"ahead, so optimize() returned the same object{reasons}"
    )
