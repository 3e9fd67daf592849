"""Scheduling objectives of texts: texts with a waiting consumer, and groups of texts of which only the last counts.

    kvs: [] = prefilling('Sum up: ', *chunks) @ llm
    notes: [] = decoding(*kvs) @ llm
    kv = prefilling('Answer from: ', joined) @ llm
    answer = decoding(kv) @ llm
 ->
    notes: [] = decoding(*kvs, objective='throughput') @ llm
    answer = decoding(kv, objective='latency') @ llm

Walking back from the outputs: a decoding whose text goes into an output, through functions alone, is a *latency*
decoding, and so is a single text that all later requests wait for. The texts of a map that are gathered in front of a
latency decoding are a *throughput* group: later requests start with the last text of the group, so each text alone may
wait. The instances of the engine use the objective (runtime/scheduler/replicas.py): while several queries are at work,
a throughput group leaves some slots of an instance free for the rest.

The pass applies only if a decode step takes longer for many texts than for a single text. *Not among the default
passes*: on the mix of benchmarks/load.py, in virtual time, with steps 3.7 times as long at 32 texts as at one, it does
nothing with two instances of 32 slots, and with one instance of 8 slots it lowers the mean by 0.4 to 3 % (chat by 2 to
17 %) and makes tree summaries 3 to 11 % slower. To let throughput groups fill instances in sequence, as Parrot does,
cost 3 to 15 % there: prompts no longer went to the instance with their prefix. Source: Parrot (OSDI'24, 5.2).
"""

from __future__ import annotations

from teola_plugin.graph import DECODES, PIPELINE, Graph, Primitive, map_depth
from teola_plugin.passes.estimates import llm_profile
from teola_plugin.passes.rewrite import Context, Record
from teola_plugin.plan import is_request

NAME = "deduce_objectives"
SLOWER = 1.5
"""The minimum ratio of a step of the largest batch to a step of a single text. The paper's 7B model: 1.1."""


def deduce_objectives(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
    """Return the graph with an `objective` on the decodings."""
    changes, records = {}, []
    for p in graph:
        if p.kind not in DECODES or p.engine == PIPELINE or p.setting("objective") is not None:
            continue
        step = llm_profile(p.engine, context).step
        slower = step.predict_s(step.max_items) / step.predict_s(1) if step.predict_s(1) else 1.0
        if slower < SLOWER:
            reason = f"a step of {step.max_items} texts takes {slower:.2f} times as long as one of a single text"
            records.append(Record("TR703", NAME, p.name, False, reason, slower))
            continue
        gatherers = _gatherers(graph, p)
        if gatherers:
            reason = f"{', '.join(gatherers)} waits for the last of them"
            records.append(Record("TR702", NAME, p.name, True, reason, slower))
        else:
            records.append(Record("TR701", NAME, p.name, True, "what is behind it waits for it", slower))
        changes[p.name] = [p.with_settings(objective="throughput" if gatherers else "latency")]
    return graph.replacing(changes), records


def _gatherers(graph: Graph, p: Primitive) -> list[str]:
    """Return the requests that wait for all instances of `p`, if every later request does."""
    depths = graph.depths()
    mapped = map_depth(p, depths)
    if mapped == 0 or p.name in graph.outputs:
        return []
    behind = _requests_behind(graph, p)
    return [r.name for r in behind] if all(map_depth(r, depths) < mapped for r in behind) else []


def _requests_behind(graph: Graph, p: Primitive) -> list[Primitive]:
    """Return the next requests behind a primitive, each once."""
    found: dict[str, Primitive] = {}
    for user in graph.consumers()[p.name]:
        requests = [user] if is_request(user) or user.engine == PIPELINE else _requests_behind(graph, user)
        found |= {r.name: r for r in requests}
    return list(found.values())
