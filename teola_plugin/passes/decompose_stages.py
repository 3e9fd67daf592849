"""Pass 2 of the paper: many items go to an engine in stages, so that the next engine can start earlier.

    vecs: [] = embedding(*chunks) @ embedder
    hits: [] = searching(*vecs) @ chroma
 ->
    vecs: [] = embedding(*chunks, stage_items=16) @ embedder
    hits: [] = searching(*vecs) @ chroma

A single big batch is the fastest way through an engine, but the next engine waits for the whole batch. Up to the *knee*
of the latency profile a batch gains by each further item; beyond the knee two halves take no longer than the whole, so
stages of the knee's size cost next to nothing, and the next engine starts after the first stage:

    one batch    embed embed embed | search search search
    stages       embed | embed  | embed
                       | search | search | search

The number of items is known only at run time, so the setting is a size and not a number of parts; a few items stay a
single batch. A stage is useful only if another engine works item by item, directly or behind glue. A primitive that
*receives* items in parts needs no stages: items that arrive separately are run separately. Source: Teola/Ayo, section
4.3, pass 2.
"""

from __future__ import annotations

from math import ceil, inf

from teola_plugin.graph import DECODES, INLINE_KINDS, PIPELINE, Graph, Primitive, map_depth
from teola_plugin.passes.estimates import batch_s, instances, item_counts
from teola_plugin.passes.rewrite import Context, Record

NAME = "decompose_stages"
STAGED = ("embedding", "ingestion", "searching", "reranking", "websearch", "tool")


def decompose_stages(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
    """Return the graph with `stage_items` on batchable primitives whose items another engine waits for."""
    candidates = [p for p in graph if p.kind in STAGED and p.is_batchable and p.engine != PIPELINE]
    changes, records = {}, []
    for p in candidates:
        if p.setting("stage_items") is not None:
            continue
        record = _decide(graph, p, context)
        records.append(record)
        if record.applied:
            changes[p.name] = [p.with_settings(stage_items=context.profiles[p.engine].knee_items)]
    return graph.replacing(changes), records


def _decide(graph: Graph, p: Primitive, context: Context) -> Record:
    def refuse(code: str, reason: str, number: float | None = None) -> Record:
        return Record(code, NAME, p.name, False, reason, number)

    profile = context.profiles.get(p.engine)
    if profile is None:
        return refuse("TR202", f"no latency profile for {p.engine}")
    knee = profile.knee_items
    most = instances(p, graph.depths(), item_counts(graph, inf), inf)
    if most <= knee:
        return refuse("TR204", f"at most {most:.0f} items, and the knee of {p.engine} is {knee}", most)
    takers = _takers(graph, p)
    if not takers:
        return refuse("TR203", "nothing behind works item by item on another engine", 0)
    count = max(context.expected_items, 2 * knee)
    gain_s = max(_gain_s(p, taker, knee, count, context) for taker in takers)
    overhead_s = context.overhead_s * (ceil(count / knee) - 1)
    numbers = f"at {count} items and a knee of {knee}"
    if gain_s <= overhead_s:
        reason = f"predicted gain {gain_s * 1e3:.1f} ms <= overhead {overhead_s * 1e3:.1f} ms {numbers}"
        return refuse("TR205", reason, gain_s)
    behind = ", ".join(taker.name for taker in takers)
    reason = f"predicted gain {gain_s * 1e3:.1f} ms {numbers}, pipelined into {behind}"
    return Record("TR201", NAME, p.name, True, reason, gain_s)


def _takers(graph: Graph, p: Primitive) -> list[Primitive]:
    """Return the primitives of other engines that work on single items of `p`, directly or behind glue."""
    depths, consumers = graph.depths(), graph.consumers()
    found: dict[str, Primitive] = {}
    passed_on = [p]
    while passed_on:
        source = passed_on.pop()
        for user in consumers[source.name]:
            one_by_one = map_depth(user, depths) >= source.depth > 0
            if not one_by_one or not any(r.star and r.name == source.name for r in user.refs):
                continue
            if user.kind in (*INLINE_KINDS, "partial_prefilling"):
                passed_on.append(user)
            elif user.engine != p.engine:
                found[user.name] = user
    return [q for q in graph if q.name in found]


def _gain_s(p: Primitive, taker: Primitive, knee: int, count: int, context: Context) -> float:
    """Return how much earlier the taker ends with `count` items in stages than after full batches."""
    limit = context.capabilities[p.engine].max_items if p.engine in context.capabilities else count
    whole_s = sum(batch_s(p, min(limit, count - at), context) for at in range(0, count, limit))
    stages, stage_s = ceil(count / knee), batch_s(p, knee, context)
    taken_s, last_s = batch_s(taker, count, context), batch_s(taker, knee, context)
    if taker.kind in DECODES:  # new requests join the running batch
        staged_s = max(stages * stage_s + last_s, stage_s + taken_s)
    else:
        staged_s = stage_s + (stages - 1) * max(stage_s, last_s) + last_s
    return whole_s + taken_s - staged_s
