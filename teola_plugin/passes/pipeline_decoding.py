"""Pass 4 of the paper: a decoding that writes a list hands over each item as soon as the item is written.

    rewrites: [] = decoding(kv, items='lines') @ llm
    q: [] = embedding(*rewrites) @ embedder
 ->
    rewrites: [] = partial_decoding(kv, items='lines') @ llm
    q: [] = embedding(*rewrites) @ embedder

The rewrite pays if a consumer takes the items singly; a consumer of the whole list waits for the end anyway. The
number of items is not known and need not be: nothing is made beforehand for items that may never come.

The rewrite does not pay if the items only become prompts of the same LLM: the last item is not written any sooner, and
the prefills of earlier items delay the decoding in turn, where all prefills together would have been a single batch.
(A hosted service answers requests side by side.)

`early_stop` ends the generation when all `wanted` items are written, but only where only the graph sees the text: the
framework's own run reads the text to the end, so there the answer would differ. Source: Teola/Ayo, section 4.3, pass 4;
the paper makes a fixed number of partial decodings instead.
"""

from __future__ import annotations

from dataclasses import replace

from teola_plugin.graph import DECODES, PIPELINE, Graph, Primitive, map_depth
from teola_plugin.passes.estimates import llm_profile
from teola_plugin.passes.rewrite import Context, Record
from teola_plugin.plan import is_request

NAME = "pipeline_decoding"


def pipeline_decoding(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
    """Return the graph with partial decodings where items are taken singly."""
    changes, records = {}, []
    for p in graph:
        if not p.is_splittable or p.kind != "decoding" or p.engine == PIPELINE:
            continue
        takers = _takers(graph, p)
        if not takers:
            records.append(Record("TR402", NAME, p.name, False, "nobody takes its items one by one", 0))
            continue
        loss_s = _loss_s(graph, p, takers, context)
        if loss_s > 0:
            reason = f"all prompts of its items at once are prefilled {loss_s * 1000:.0f} ms sooner than one by one"
            records.append(Record("TR405", NAME, p.name, False, reason, loss_s))
            continue
        reason = f"items go on one by one to {', '.join(takers)}"
        if _is_remote(p, context) and not context.streams_lists:
            reason += ", where the pipeline streams this reply; optimize(stream_lists=True) always does"
        records.append(Record("TR401", NAME, p.name, True, reason, len(takers)))
        changed = replace(p, kind="partial_decoding")
        if (wanted := p.setting("wanted")) is not None and context.allow_early_stop:
            changed = changed.with_settings(early_stop=True)
            records.append(Record("TR403", NAME, p.name, True, f"ends with item {wanted}", wanted))
        elif wanted is not None:
            records.append(Record("TR404", NAME, p.name, False, "the whole text may be seen", wanted))
        changes[p.name] = [changed]
    return graph.replacing(changes), records


LLM_KINDS = (*DECODES, "partial_prefilling", "call")
ITEM_TOKENS = 16
"""The tokens of a line in a list, to estimate the number of items in a text of the usual length."""


def _loss_s(graph: Graph, p: Primitive, takers: list[str], context: Context) -> float:
    """Return the seconds that prefills of the items delay the decoding; 0 unless the same engine runs both."""
    requests = [request for taker in takers for request in _requests(graph, taker)]
    if _is_remote(p, context):
        return 0.0
    if any(request.kind not in LLM_KINDS or request.engine != p.engine for request in requests):
        return 0.0
    llm = llm_profile(p.engine, context)
    items = max(2, llm.output_tokens // ITEM_TOKENS)
    tokens = context.expected_tokens
    return items * llm.prefill_s(tokens) - llm.prefill_s(items * tokens, items=items)


def _is_remote(p: Primitive, context: Context) -> bool:
    known = context.capabilities.get(p.engine)
    return known is not None and known.remote


def _requests(graph: Graph, name: str) -> list[Primitive]:
    """Return the next requests from a primitive on."""
    p = graph[name]
    if is_request(p) or p.engine == PIPELINE:
        return [p]
    return [request for user in graph.consumers()[name] for request in _requests(graph, user.name)]


def _takers(graph: Graph, p: Primitive) -> list[str]:
    """Return the consumers with an instance for each single item."""
    depths = graph.depths()
    return [
        user.name
        for user in graph.consumers()[p.name]
        if any(r.star and r.name == p.name for r in user.refs) and map_depth(user, depths) >= p.depth
    ]
