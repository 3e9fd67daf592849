"""The plan of an e-graph for the graph scheduler, made once per pipeline.

    make_plan(graph) -> Plan

All physical decisions are made here: which primitives fuse (a prefill is no separate request; the consuming decoding
carries the whole prompt), the number of items per request, and the distance of each primitive from the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from teola_plugin.engines import NOT_URGENT, Taker, Urgency
from teola_plugin.graph import (
    DECODES,
    INLINE_KINDS,
    OUTSIDE,
    PIPELINE,
    READER,
    Graph,
    Primitive,
    Ref,
    map_depth,
    validate,
    yields,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The facts of an e-graph for the graph scheduler. `depths`, `map_depths`, `yields`, `refs`: see graph.py.

    `consumers`: the primitives to check when a value changes. `remaining`: engine requests on the longest path from the
    start of a primitive to the output, the primitive included (the *depth* of Teola's topology-aware batching, section
    5.2): larger is more urgent, equal values batch together. Also in seconds, by the latency profiles. `has_slack`:
    running ahead can pay even for one query, because some request need not wait for the request before.
    """

    graph: Graph
    primitives: Mapping[str, Primitive]
    depths: Mapping[str, int]
    map_depths: Mapping[str, int]
    yields: Mapping[str, int]
    consumers: Mapping[str, tuple[Primitive, ...]]
    refs: Mapping[str, tuple[Ref, ...]]
    remaining: Mapping[str, Urgency]
    has_slack: bool

    def stage_items(self, primitive: Primitive) -> int:
        """Return the number of items per request; 0 is no limit.

        LLM requests are single: the engine batches continuously.
        """
        if primitive.kind in DECODES or primitive.kind == "partial_prefilling" or primitive.kind in INLINE_KINDS:
            return 1
        return int(primitive.setting("stage_items", 0))


def is_request(primitive: Primitive) -> bool:
    """Whether the primitive is a request to an engine ahead of the framework, or a function which calls engines."""
    if primitive.kind in ("call", "condition"):
        return (
            OUTSIDE in primitive.reads if primitive.engine == READER else primitive.engine not in ("python", PIPELINE)
        )
    return primitive.kind not in INLINE_KINDS and primitive.engine != PIPELINE


def make_plan(
    graph: Graph, seconds: Mapping[str, float] | None = None, then: Urgency = NOT_URGENT,
    takers: Mapping[str, Taker] | None = None,
) -> Plan:  # fmt: skip
    """Return the plan of a valid graph. `seconds`: predicted seconds of each primitive (`passes.estimates`).

    `then`: the work which follows the whole graph. `takers`: the consumers which take values of a primitive one by one.

    Raises: GraphError.
    """
    validate(graph)
    depths = graph.depths()
    consumers = graph.consumers()
    remaining: dict[str, Urgency] = {}
    for p in reversed(graph.primitives):
        behind = [remaining[c.name] for c in consumers[p.name]]
        own_s = (seconds or {}).get(p.name, 0.0)
        remaining[p.name] = Urgency(
            max((each.depth for each in behind), default=then.depth) + is_request(p),
            max((each.remaining_s for each in behind), default=then.remaining_s) + own_s,
            p.setting("objective", ""),
            own_s,
            (takers or {}).get(p.name),
        )
    return Plan(
        graph,
        {p.name: p for p in graph},
        depths,
        {p.name: map_depth(p, depths) for p in graph},
        {p.name: yields(p, depths) for p in graph},
        consumers,
        {p.name: p.refs for p in graph},
        remaining,
        _has_slack(graph),
    )


def _has_slack(graph: Graph) -> bool:
    """Whether some request is mapped over items, streamed, or independent of the request (or barrier) before."""
    behind: dict[str, frozenset[str]] = {i.name: frozenset() for i in graph.inputs}
    before: list[str] = []
    for p in graph:
        behind[p.name] = frozenset(p.dependencies).union(*(behind[d] for d in p.dependencies))
        if not (is_request(p) or p.engine == PIPELINE):
            continue
        if is_request(p) and (p.is_batchable or p.kind.startswith("partial_")):
            return True
        if is_request(p) and any(b not in behind[p.name] for b in before):
            return True
        if p.engine == PIPELINE and any(b not in behind[p.name] and is_request(graph[b]) for b in before):
            return True
        before.append(p.name)
    return False
