"""How many items a value will have and when it will be there, as far as a graph and profiles can tell.

Sizes are known only at run time; passes need an order of magnitude to tell what is early from what is late.
Where an engine has no profile, the paper's testbed stands in for it. A value `@ pipeline` exists when the
framework's own run has got there: after everything that is written before it.
"""

from __future__ import annotations

from teola_plugin.graph import DECODES, PIPELINE, PREFILLS, Graph, Primitive, map_depth, yields
from teola_plugin.passes.rewrite import Context
from teola_plugin.profile import PAPER, PAPER_LLM, LlmProfile, Profile

TESTBED = {
    "embedding": PAPER["embedding"],
    "ingestion": PAPER["ingestion"],
    "searching": PAPER["searching"],
    "reranking": PAPER["reranking"],
    "tool": Profile.affine(0.5),
    "websearch": Profile.affine(0.5),
}
"""By kind, where an engine has no profile of its own. The last two are guesses."""


def instances(p: Primitive, depths: dict[str, int], items: dict[str, float], unknown: float) -> float:
    """How many instances a primitive has, if a list of unknown length has `unknown` items."""
    mapped = map_depth(p, depths)
    if mapped == 0:
        return 1
    return min((items[r.name] for r in p.refs if r.star and depths[r.name] == mapped), default=unknown**mapped)


def item_counts(graph: Graph, unknown: float) -> dict[str, float]:
    """How many items each value has, over all its lists; for an `unknown` of infinity the most."""
    depths = graph.depths()
    items: dict[str, float] = {i.name: unknown**i.depth for i in graph.inputs}
    for p in graph:
        count = instances(p, depths, items, unknown)
        if yields(p, depths):
            count *= p.setting("wanted", unknown) if p.is_splittable else unknown
        items[p.name] = 1 if p.kind == "ingestion" else count
    return items


def ready_times(graph: Graph, context: Context) -> dict[str, float]:
    """Seconds from the start of a query until each value is whole, on engines that nobody else uses."""
    depths = graph.depths()
    items = item_counts(graph, context.expected_items)
    ready = {i.name: 0.0 for i in graph.inputs}
    for p in graph:
        if p.engine == PIPELINE:
            ready[p.name] = max(ready.values(), default=0.0)
            continue
        count = instances(p, depths, items, context.expected_items)
        ready[p.name] = max((ready[d] for d in p.dependencies), default=0.0) + _duration_s(p, count, context)
    return ready


def batch_s(p: Primitive, count: float, context: Context) -> float:
    """Seconds for one batch of `count` items of `p`; an LLM's have the usual lengths."""
    items = max(1, round(count))
    if p.kind in DECODES:
        return llm_profile(p.engine, context).predict_s(items, items * context.expected_tokens)
    profile = context.profiles.get(p.engine) or TESTBED.get(p.kind)
    return profile.predict_s(items) if profile else 0.0


def llm_profile(engine: str, context: Context) -> LlmProfile:
    """The engine's own, else the paper's 7B model."""
    profile = context.profiles.get(engine)
    return profile if isinstance(profile, LlmProfile) else PAPER_LLM["7b"]


def _duration_s(p: Primitive, count: float, context: Context) -> float:
    if p.kind in PREFILLS:
        return 0.0  # the decoding carries it
    return batch_s(p, count, context)
