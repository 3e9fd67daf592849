"""What a condition may lead to is read before it is decided.

    needs = condition(verdict, fn='needs_search') @ python
    pages = websearch(question, top_k=4) @ search, when(needs)
 ->
    needs = condition(verdict, fn='needs_search') @ python
    pages_ahead = websearch(question, ahead=True, top_k=4) @ search
    pages = aggregate(pages_ahead), when(needs)

The value counts only if the condition comes out so; its errors, too. If it comes out otherwise, what is still on its
way is cancelled. An engine that has something else to do is not asked before the condition is decided (`ahead`).

Only what reads and does nothing else: embeddings, searches, rerankings, web searches, each on what is there without the
condition, or on what is read ahead itself. Texts are not written ahead: that costs an LLM as much as what is wanted.
Not where the condition is decided no later than the arguments are there.

*Not among the default passes*, since others can see it: a search engine is asked for what nobody wants to know, and may
charge for it. `optimize(pipeline, speculate="branches")` and `App(..., passes=BRANCHES)` have it. Source: the
speculative branches of LangGraph optimizers, there with the branch as a whole.
"""

from __future__ import annotations

from dataclasses import replace

from teola_plugin.graph import PIPELINE, Graph, Literal, Primitive, Ref
from teola_plugin.passes.estimates import Timing, timing
from teola_plugin.passes.rewrite import Context, Record, free_name

NAME = "speculate_branches"
READS = ("embedding", "searching", "reranking", "websearch")


def speculate_branches(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
    """The graph with reads ahead of their conditions where they are predicted to pay."""
    times = timing(graph, context)
    taken = set(graph.depths())
    ahead: dict[str, Primitive] = {}
    ready_s = dict(times.ready)
    changes, records = {}, []
    for p in graph:
        if p.when is None or p.kind not in READS or p.engine == PIPELINE or p.writes:
            continue
        begin_s = max((ready_s[ahead[d].name if d in ahead else d] for d in _needed(p)), default=0.0)
        gain_s = min(times.seconds[p.name], times.ready[p.when.condition] - begin_s)
        record = _decide(p, gain_s, times, ahead, context)
        records.append(record)
        if record.applied:
            name = free_name(f"{p.name}_ahead", taken)
            taken.add(name)
            early, changes[p.name] = _split(p, name, ahead)
            ahead[p.name] = early
            ready_s[name] = begin_s + times.seconds[p.name]
    return graph.replacing(changes), records


def _needed(p: Primitive) -> list[str]:
    """What it needs to run, but for the condition."""
    return [*(r.name for r in p.refs), *p.after]


def _decide(p: Primitive, gain_s: float, times: Timing, ahead: dict[str, Primitive], context: Context) -> Record:
    assert p.when is not None
    condition = p.when.condition
    bound = [d for d in _needed(p) if d not in ahead and (d == condition or condition in times.before[d])]
    if bound:
        reason = f"{bound[0]} is there only after {condition}" if bound[0] != condition else f"it takes {condition}"
        return Record("TR802", NAME, p.name, False, reason)
    if gain_s <= context.overhead_s:
        reason = f"predicted gain {gain_s * 1e3:.1f} ms, cost {context.overhead_s * 1e3:.1f} ms"
        return Record("TR803", NAME, p.name, False, reason, gain_s)
    return Record("TR801", NAME, p.name, True, f"{gain_s * 1e3:.1f} ms of it before {condition} is known", gain_s)


def _split(p: Primitive, name: str, ahead: dict[str, Primitive]) -> tuple[Primitive, list[Primitive]]:
    args = tuple(
        a if isinstance(a, Literal) or a.name not in ahead else replace(a, name=ahead[a.name].name) for a in p.args
    )
    early = replace(p, name=name, args=args, when=None).with_settings(ahead=True)
    kept = Primitive(p.name, "aggregate", (Ref(name, star=p.depth > 0),), depth=p.depth, when=p.when, origin=p.origin)
    return early, [early, kept]
