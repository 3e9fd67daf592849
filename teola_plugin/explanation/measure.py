"""One measured run: the time of each request, the critical path, and the bound.

The run-ahead reports start and end of each request of a primitive, the engines of each batch. The results:

- *wait*: from the request until its batch started; *engine*: from there until its end.
- *critical path*: from the request which ended last, back over the value which came last, to the start. Waits on the
  way are part of the path.
- *bound*: the longest path of engine times alone through the e-graph: the time of the graph if no request ever waited
  for an engine and the framework took no time. A streamed item counts from the time it was written, and a value of the
  framework's own run from the time it came.
- *(framework)*: an unforeseen batch. It counts as dependent on everything which had ended before.
- A tool started early counts as dependent on the engine's text up to the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from teola_plugin.events import BatchRan, PrimitiveRan, Retired
from teola_plugin.graph import PIPELINE, Graph
from teola_plugin.plan import is_request
from teola_plugin.runtime.session.report import Report
from teola_plugin.runtime.session.session import ASIDE

CLOCK_S = 1e-3
"""The largest distance of two events with one cause, in seconds."""

FRAMEWORK = "(framework)"
"""Replaces the primitive of a request by the framework's run which was not foreseen."""

Sources = Mapping[str, tuple[frozenset[str], bool]]
"""For each primitive the requests whose values reach it directly, and whether the framework computes a step between."""


@dataclass(frozen=True, slots=True)
class Step:
    """One request of a primitive. Seconds since the start of the call; `began_s` is when its last batch started."""

    primitive: str
    engine: str
    items: int
    asked_s: float
    began_s: float
    ended_s: float
    failed: bool = False

    @property
    def wait_s(self) -> float:
        return self.began_s - self.asked_s

    @property
    def engine_s(self) -> float:
        return self.ended_s - self.began_s


@dataclass(frozen=True, slots=True)
class Link:
    """A step of the critical path, and the time when the next step took over: its end, or a written item."""

    step: Step
    until_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured run. `late`: requests first made by the framework's run, as (engine, operation, seconds since start).

    Some were wanted by the run-ahead too, a moment later: the report counts them as `shared`.
    """

    seconds: float
    steps: tuple[Step, ...]
    path: tuple[Link, ...]
    bound_s: float
    late: tuple[tuple[str, str, float], ...] = ()
    report: Report = field(default_factory=Report)
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {
            "seconds": self.seconds,
            "bound_seconds": self.bound_s,
            "hits": self.report.hits,
            "shared": self.report.shared,
            "misses": self.report.misses,
            "stale": self.report.stale,
            "wasted": self.report.wasted,
            "prefills": self.report.prefills,
            "fallbacks": list(self.report.fallbacks),
            "rested": self.report.rested,
            "steps": [asdict(step) for step in self.steps],
            "critical_path": [link.step.primitive for link in self.path],
            "late": [{"engine": e, "op": op, "at_s": at} for e, op, at in self.late],
            "error": self.error,
        }


def measure(graph: Graph, report: Report, error: BaseException | None = None) -> Measured:
    """Measure the report of one call. `graph` is the e-graph if the report names none."""
    graphs = report.graphs or (graph,)
    batches = [e for e in report.events if isinstance(e, BatchRan)]
    ran = sorted((e for e in report.events if isinstance(e, PrimitiveRan)), key=lambda e: e.started_s)
    ops = {e.primitive: ASIDE for e in ran if e.engine == ASIDE}
    ops |= {p.name: p.kind.removeprefix("partial_") for graph in graphs for p in graph}
    steps = [_step(e, ops[e.primitive], batches, report.started_s) for e in ran]
    batches += _unended(report, ran, ops, batches)
    steps = sorted([*steps, *_unforeseen(ran, ops, batches, report.started_s)], key=lambda s: s.asked_s)
    before = _before(graphs)
    late = tuple(
        (e.engine, f"{e.op} (stale)" if e.outcome == "stale" else e.op, e.at_s - report.started_s)
        for e in report.events
        if isinstance(e, Retired) and e.outcome != "hit"
    )
    return Measured(
        report.ended_s - report.started_s,
        tuple(steps),
        tuple(_critical_path(steps, before)),
        _bound(steps, before),
        late,
        report,
        "" if error is None else f"{type(error).__name__}: {error}",
    )


def _step(ran: PrimitiveRan, op: str, batches: Sequence[BatchRan], start_s: float) -> Step:
    """Return the request with the batch which ended it: the first started after the request and spanning its end."""
    began_s = ran.started_s
    for batch in batches:
        is_its = batch.engine == ran.engine or batch.op == op
        if (
            is_its
            and batch.op == op
            and ran.started_s - CLOCK_S <= batch.started_s <= ran.ended_s <= batch.ended_s + CLOCK_S
        ):
            began_s = max(began_s, batch.started_s)
            break
    return Step(
        ran.primitive,
        ran.engine,
        ran.items,
        ran.started_s - start_s,
        began_s - start_s,
        ran.ended_s - start_s,
        ran.failed,
    )


def _unended(
    report: Report, ran: Sequence[PrimitiveRan], ops: Mapping[str, str], batches: Sequence[BatchRan]
) -> list[BatchRan]:
    """Return the batches of the framework's run which outlived the call; they end with the call."""
    seen = [*batches, *(BatchRan(e.engine, ops[e.primitive], e.items, e.started_s, e.ended_s) for e in ran)]

    def is_served(asked: Retired) -> bool:
        """Whether a batch served the request. The end of a batch may be reported just after the next request."""
        its = (b for b in seen if (b.engine, b.op) == (asked.engine, asked.op))
        return any(b.started_s >= asked.at_s - CLOCK_S or b.ended_s >= asked.at_s + 5 * CLOCK_S for b in its)

    asked = [e for e in report.events if isinstance(e, Retired) and e.outcome != "hit" and not is_served(e)]
    last = {(e.engine, e.op): e.at_s for e in asked}
    return [BatchRan(engine, op, 1, at_s, report.ended_s) for (engine, op), at_s in last.items()]


def _unforeseen(
    ran: Sequence[PrimitiveRan], ops: Mapping[str, str], batches: Sequence[BatchRan], start_s: float
) -> Iterator[Step]:
    """Yield a step for each batch during which no primitive waited for the engine."""
    for b in batches:
        its = (e for e in ran if e.engine == b.engine and ops[e.primitive] == b.op)
        is_foreseen = any(_is_within(b, e) or _is_within(e, b) for e in its)
        if b.op != "partial_prefilling" and not is_foreseen:
            yield Step(FRAMEWORK, b.engine, b.items, b.started_s - start_s, b.started_s - start_s, b.ended_s - start_s)


def _is_within(first: BatchRan | PrimitiveRan, second: BatchRan | PrimitiveRan) -> bool:
    """Whether the middle of the first lies within the second."""
    return second.started_s <= (first.started_s + first.ended_s) / 2 <= second.ended_s


def _before(graphs: Sequence[Graph]) -> Sources:
    """Return, for primitives of several graphs, the sources in any graph."""
    found: dict[str, tuple[frozenset[str], bool]] = {}
    for graph in graphs:
        for name, (sources, has_barrier) in _requests_before(graph).items():
            others, had_barrier = found.get(name, (frozenset(), False))
            found[name] = (others | sources, had_barrier or has_barrier)
    return found


def _requests_before(graph: Graph) -> Sources:
    behind: dict[str, tuple[frozenset[str], bool]] = {i.name: (frozenset(), False) for i in graph.inputs}
    out: dict[str, tuple[frozenset[str], bool]] = {}
    for p in graph:
        found = [behind[name] for name in p.dependencies]
        out[p.name] = (frozenset().union(*(names for names, _ in found)), any(barrier for _, barrier in found))
        if is_request(p):
            behind[p.name] = (frozenset({p.name}), False)
        else:
            behind[p.name] = (out[p.name][0], out[p.name][1] or p.engine == PIPELINE)
    return out


def _critical_path(steps: Sequence[Step], before: Sources) -> list[Link]:
    if not steps:
        return []
    step = max(steps, key=lambda s: s.ended_s)
    path = [Link(step, step.ended_s)]
    while True:
        found = [Link(s, min(s.ended_s, step.asked_s)) for s in steps if _is_before(s, step, before)]
        if not found:
            return path[::-1]
        link = max(found, key=lambda x: (x.until_s, x.step.ended_s <= step.asked_s, x.step.began_s))
        step = link.step
        path.append(link)


def _is_before(first: Step, step: Step, before: Sources) -> bool:
    if first.asked_s >= step.asked_s:
        return False
    if step.primitive == FRAMEWORK:
        return first.ended_s <= step.asked_s + 5 * CLOCK_S
    if step.engine == ASIDE:
        return first.engine != ASIDE
    return first.primitive in before[step.primitive][0]


def _bound(steps: Sequence[Step], before: Sources) -> float:
    begins: dict[int, float] = {}  # id of a step -> predicted start
    last = 0.0
    for step in steps:  # in the order in which they were asked
        has_barrier = step.primitive in before and before[step.primitive][1]
        ready = step.asked_s if has_barrier else 0.0
        for other in steps:
            if id(other) in begins and _is_before(other, step, before):
                handed_s = min(other.ended_s, step.asked_s)
                ready = max(ready, begins[id(other)] + max(0.0, handed_s - other.began_s))
        begins[id(step)] = ready
        last = max(last, ready + step.engine_s)
    return last
