"""One measured run: what each request took, the critical path, and the bound.

The run-ahead tells when each request of a primitive began and ended, the engines when each batch did. From these:

- *wait*: from the request until its batch started; *engine*: from there until its end.
- *critical path*: from the request that ended last, back over the value that came last, to the start. What it waited
  for on the way stands in it too.
- *bound*: the longest path through the e-graph of the engine times alone: what this graph would take if no request ever
  waited for an engine and the framework took no time. An item of a text that is handed on while it is written counts
  from when it was written, and what only the framework's own run could compute from when it was there.
- *(framework)*: a batch that nobody foresaw. It counts as in need of everything that had ended before it.
- A tool that started early counts as in need of what an engine had written by then.
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
"""Two events of one cause are this close together."""

FRAMEWORK = "(framework)"
"""Stands in place of a primitive where the framework's run asked for something that nobody foresaw."""

Sources = Mapping[str, tuple[frozenset[str], bool]]
"""For each primitive the requests whose values reach it without another request between, and whether the framework has
to compute something on the way."""


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
    """A step of the critical path, and when the next one took over: at its end, or when an item of its was written."""

    step: Step
    until_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """`late`: what the framework's run asked for first, as (engine, operation, seconds since the start).

    Some of it the run-ahead wanted too, a moment later: those are the report's `shared`.
    """

    seconds: float
    steps: tuple[Step, ...]
    path: tuple[Link, ...]
    bound_s: float
    late: tuple[tuple[str, str, float], ...] = ()
    report: Report = field(default_factory=Report)
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
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
    """What the report of one call says. `graph` is the e-graph if the report names none."""
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
    """The request with the batch that ended it: the first that started after it was asked and holds its end."""
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
    """The batches that the framework's run asked for and that the call did not outlive: their end is the call's."""
    seen = [*batches, *(BatchRan(e.engine, ops[e.primitive], e.items, e.started_s, e.ended_s) for e in ran)]

    def is_served(asked: Retired) -> bool:
        """The end of the batch before may be told a moment after the framework, which has its reply, asks again."""
        its = (b for b in seen if (b.engine, b.op) == (asked.engine, asked.op))
        return any(b.started_s >= asked.at_s - CLOCK_S or b.ended_s >= asked.at_s + 5 * CLOCK_S for b in its)

    asked = [e for e in report.events if isinstance(e, Retired) and e.outcome != "hit" and not is_served(e)]
    last = {(e.engine, e.op): e.at_s for e in asked}
    return [BatchRan(engine, op, 1, at_s, report.ended_s) for (engine, op), at_s in last.items()]


def _unforeseen(
    ran: Sequence[PrimitiveRan], ops: Mapping[str, str], batches: Sequence[BatchRan], start_s: float
) -> Iterator[Step]:
    """The batches in whose time no primitive waited for that engine."""
    for b in batches:
        its = (e for e in ran if e.engine == b.engine and ops[e.primitive] == b.op)
        is_foreseen = any(_is_within(b, e) or _is_within(e, b) for e in its)
        if b.op != "partial_prefilling" and not is_foreseen:
            yield Step(FRAMEWORK, b.engine, b.items, b.started_s - start_s, b.started_s - start_s, b.ended_s - start_s)


def _is_within(first: BatchRan | PrimitiveRan, second: BatchRan | PrimitiveRan) -> bool:
    """The middle of the first lies in the second."""
    return second.started_s <= (first.started_s + first.ended_s) / 2 <= second.ended_s


def _before(graphs: Sequence[Graph]) -> Sources:
    """For primitives of several graphs: what is before them in any."""
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
    begins: dict[int, float] = {}  # id of a step -> when it would begin
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
