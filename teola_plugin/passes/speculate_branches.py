"""What a condition may lead to is read before it is decided.

    needs = condition(verdict, fn='needs_search') @ python
    pages = websearch(question, top_k=4) @ search, when(needs)
 ->
    needs = condition(verdict, fn='needs_search') @ python
    pages_ahead = websearch(question, top_k=4, ahead=True) @ search
    pages = aggregate(pages_ahead), when(needs)

The value counts only if the condition comes out so, and so do errors; a read that failed before is made again then. If
the condition comes out otherwise, what is still on its way is cancelled (runtime/session/speculation.py). What would
have to wait for other work is not asked before the condition is decided.

Only what reads and does nothing else: embeddings, searches, rerankings, web searches, each on what is there without the
condition, or on what is read ahead under the same one, and in a framework's pipeline through the pure functions between
them. What is written before the condition is decided is written before the read. Texts are not written ahead: that
costs an LLM as much as what is wanted. Not where the condition is decided no later than the arguments are there.

An exception is a branch, too: requests that leave this process no longer wait for what may raise before them
(`gated`).

*Not among the default passes*, since others can see it: a search engine is asked for what nobody wants to know, and may
charge for it. `optimize(pipeline, speculate="branches")` and `App(..., passes=BRANCHES)` have it. Source: the
speculative branches of LangGraph optimizers, there with the branch as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from teola_plugin.graph import PIPELINE, Graph, Primitive, Ref, conflicts
from teola_plugin.passes.estimates import Timing, timing
from teola_plugin.passes.rewrite import Context, Record, free_name

NAME = "speculate_branches"
READS = ("embedding", "searching", "reranking", "websearch")


def speculate_branches(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
    """The graph with reads ahead of their conditions where they are predicted to pay."""
    branches = _Branches(graph, context, timing(graph, context), set(graph.depths()))
    records = [branches.decide(p) for p in graph if p.when and p.kind in READS and not (p.writes or p.setting("ahead"))]
    graph = graph.replacing(branches.changes)
    records += [_without_gates(p) for p in graph if p.gated]
    return replace(graph, primitives=tuple(replace(p, gated=()) for p in graph)), records


def _without_gates(p: Primitive) -> Record:
    return Record("TR804", NAME, p.name, True, f"asked although {', '.join(p.gated)} may yet raise", len(p.gated))


@dataclass(slots=True)
class _Branches:
    """`changes`: what stands in place of a read. `ahead`: what runs ahead in place of which, and is there when."""

    graph: Graph
    context: Context
    times: Timing
    taken: set[str]
    changes: dict[str, list[Primitive]] = field(default_factory=dict)
    ahead: dict[str, tuple[Primitive, float]] = field(default_factory=dict)

    def decide(self, p: Primitive) -> Record:
        """Whether it runs ahead; then it is noted down."""
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
        """It runs ahead, of the same condition."""
        return name in self.ahead and self.graph[name].when == p.when

    def _pure(self, name: str, p: Primitive) -> Primitive | None:
        """The function of that name, if it may be called for nothing, and runs under the same condition."""
        q = next((q for q in self.graph if q.name == name), None)
        if q is None or (q.kind, q.engine, q.when) != ("call", "python", p.when) or q.reads or q.writes:
            return None
        return q if q.setting("fn") in self.context.pure else None

    def _written_before(self, p: Primitive) -> list[Primitive]:
        """What only the condition kept apart from a read that needs it."""
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
