"""Speculative branches: reads under a condition run before the condition is decided.

    needs = condition(verdict, fn='needs_search') @ python
    pages = websearch(question, top_k=4) @ search, when(needs)
 ->
    needs = condition(verdict, fn='needs_search') @ python
    pages_ahead = websearch(question, top_k=4, ahead=True) @ search
    pages = aggregate(pages_ahead), when(needs)

The value counts only if the condition selects the branch, and so do errors; a read that failed before the decision is
then made again. If the condition comes out otherwise, requests in flight are cancelled
(runtime/session/speculation.py). Requests that would have to wait for other work are not made before the decision.

Only pure reads: embeddings, searches, rerankings, web searches, each on values that exist without the condition, or on
values read ahead under the same condition, and in a framework's pipeline through the pure functions between them.
Writes that precede the decision still precede the read. Texts are not written ahead: an unwanted text costs an LLM as
much as a wanted text. Not where the condition is decided no later than the arguments are ready. An exception is a
branch, too: requests that leave this process no longer wait for primitives that may raise before them (`gated`).

*Not among the default passes*, since the effect is visible outside: a search engine gets requests that may turn out to
be unwanted, and may charge for them. `optimize(pipeline, speculate="branches")` and `App(..., passes=BRANCHES)` include
the pass. Source: the speculative branches of LangGraph optimizers, there with the branch as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from teola_plugin.graph import PIPELINE, Graph, Primitive, Ref, conflicts
from teola_plugin.passes.estimates import Timing, timing
from teola_plugin.passes.rewrite import Context, Record, free_name

NAME = "speculate_branches"
READS = ("embedding", "searching", "reranking", "websearch")


def speculate_branches(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
    """Return the graph with reads ahead of their conditions where the rewrite is predicted to pay."""
    branches = _Branches(graph, context, timing(graph, context), set(graph.depths()))
    records = [branches.decide(p) for p in graph if p.when and p.kind in READS and not (p.writes or p.setting("ahead"))]
    graph = graph.replacing(branches.changes)
    records += [_without_gates(p) for p in graph if p.gated]
    return replace(graph, primitives=tuple(replace(p, gated=()) for p in graph)), records


def _without_gates(p: Primitive) -> Record:
    return Record("TR804", NAME, p.name, True, f"asked although {', '.join(p.gated)} may yet raise", len(p.gated))


@dataclass(slots=True)
class _Branches:
    """`changes`: the replacements of each read. `ahead`: the early primitive for each read, and when it is ready."""

    graph: Graph
    context: Context
    times: Timing
    taken: set[str]
    changes: dict[str, list[Primitive]] = field(default_factory=dict)
    ahead: dict[str, tuple[Primitive, float]] = field(default_factory=dict)

    def decide(self, p: Primitive) -> Record:
        """Decide whether a read runs ahead, and record the replacement."""
        assert p.when is not None
        condition = p.when.condition
        if p.engine == PIPELINE:
            return Record("TR802", NAME, p.name, False, "the framework's own run computes it")
        functions = [q for r in p.refs if (q := self._pure(r.name, p))]
        after = (*p.after, *(a.name for a in self._written_before(p)))
        needed = [*(r.name for r in p.refs), *after, *(r.name for q in functions for r in q.refs)]
        free = {q.name for q in functions} | {n for n in needed if self._is_ahead(n, p)}
        bound = [n for n in needed if n not in free and condition in (n, *self.times.before[n])]
        if bound:
            reason = f"it takes {condition}" if bound[0] == condition else f"{bound[0]} is there only after {condition}"
            return Record("TR802", NAME, p.name, False, reason)
        there_s = [self.ahead[n][1] for n in needed if self._is_ahead(n, p)]
        there_s += [self.times.ready[n] for n in needed if n not in free]
        begin_s = max(there_s, default=0.0)
        gain_s = min(self.times.seconds[p.name], self.times.ready[condition] - begin_s)
        if gain_s <= self.context.overhead_s:
            reason = f"predicted gain {gain_s * 1e3:.1f} ms, cost {self.context.overhead_s * 1e3:.1f} ms"
            return Record("TR803", NAME, p.name, False, reason, gain_s)
        called = [self._run_ahead(q, q.after, begin_s) for q in functions if q.name not in self.ahead]
        early = self._run_ahead(p, after, begin_s + self.times.seconds[p.name])
        value = Ref(early.name, star=p.depth > 0)
        kept = Primitive(p.name, "aggregate", (value,), depth=p.depth, reads=p.reads, when=p.when, origin=p.origin)
        self.changes[p.name] = [*called, early, kept]
        return Record("TR801", NAME, p.name, True, f"{gain_s * 1e3:.1f} ms of it before {condition} is known", gain_s)

    def _is_ahead(self, name: str, p: Primitive) -> bool:
        """Whether the named primitive runs ahead of the same condition."""
        return name in self.ahead and self.graph[name].when == p.when

    def _pure(self, name: str, p: Primitive) -> Primitive | None:
        """Return the named function, if pure and under the same condition, else None."""
        q = next((q for q in self.graph if q.name == name), None)
        if q is None or (q.kind, q.engine, q.when) != ("call", "python", p.when) or q.reads or q.writes:
            return None
        return q if q.setting("fn") in self.context.pure else None

    def _written_before(self, p: Primitive) -> list[Primitive]:
        """Return the writes kept before a read only by the condition."""
        before = self.times.before[p.name]
        return [a for a in self.graph if a.name in before and a.name not in p.after and conflicts(a, p)]

    def _run_ahead(self, p: Primitive, after: tuple[str, ...], ready_s: float) -> Primitive:
        name = free_name(f"{p.name}_ahead", self.taken)
        self.taken.add(name)
        instead = {r.name: self.ahead[r.name][0].name for r in p.refs if self._is_ahead(r.name, p)}
        args = tuple(replace(a, name=instead.get(a.name, a.name)) if isinstance(a, Ref) else a for a in p.args)
        early = replace(p, name=name, args=args, after=after, when=None).with_settings(ahead=True)
        self.ahead[p.name] = early, ready_s
        return early
