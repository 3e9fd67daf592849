"""Pass 1 of the paper: order edges only where effects require them.

Adapters write down the order of the user's program: a primitive with an effect runs after everything before it.

    load = ingestion(*rows) @ chroma, writes(kb)
    note = call(x, fn='words') @ python, after(load)
    hits: [] = searching(*q) @ chroma, reads(kb), after(note)
 ->
    load = ingestion(*rows) @ chroma, writes(kb)
    note = call(x, fn='words') @ python
    hits: [] = searching(*q) @ chroma, reads(kb), after(load)

An order edge stays if the ends conflict: an end writes a resource that the other end reads or writes
(`graph.conflicts`). Two conflicting ends that were ordered only through a third primitive, as above, get an edge of
their own. Each edge has its own reason, so no edge depends on a primitive in the middle that may be skipped or have no
items.

*A data edge never replaces an order edge*: a data edge may be served in parts, and then a search would read a
collection that is half ingested. So an edge between conflicting ends stays even if a data edge runs beside it.

A primitive is removed if its value is unused and no engine runs it. An unused model call stays: the framework's own run
will make the call, and without the run-ahead would wait for the reply. Source: Teola/Ayo, section 4.3, pass 1; the
paper infers dependencies from names, which loses the dependencies of effects.
"""

from __future__ import annotations

from dataclasses import replace

from teola_plugin.graph import INLINE_KINDS, PIPELINE, Graph, Primitive, conflicts
from teola_plugin.passes.rewrite import Context, Record

NAME = "prune_dependencies"


def prune_dependencies(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
    """Return the graph with the order edges that effects require, without unused glue."""
    ordered = _ordered_before(graph)
    graph, records = _without_dead_code(graph)
    primitives = []
    for p in graph:
        demanded = [a for a in graph if a.name in ordered[p.name] and conflicts(a, p)]
        records += _records(p, demanded)
        primitives.append(replace(p, after=tuple(a.name for a in demanded)))
    return replace(graph, primitives=tuple(primitives)), records


def _without_dead_code(graph: Graph) -> tuple[Graph, list[Record]]:
    used, kept, records = set(graph.outputs), [], []
    for p in reversed(graph.primitives):
        if p.name in used or not _is_glue(p):
            # An order edge alone keeps nothing alive: without effects there is nothing to be kept in order.
            used.update([*(r.name for r in p.refs), *([p.when.condition] if p.when else []), *p.gated])
            kept.append(p)
        else:
            records.append(Record("TR104", NAME, p.name, True, f"nobody uses the value of this {p.kind}"))
    return replace(graph, primitives=tuple(reversed(kept))), records[::-1]


def _is_glue(p: Primitive) -> bool:
    return p.kind in INLINE_KINDS and p.engine != PIPELINE and not p.writes


def _ordered_before(graph: Graph) -> dict[str, set[str]]:
    """Return, for each primitive, the primitives with a path to it that has an order edge."""
    before: dict[str, set[str]] = {}  # on any path
    ordered: dict[str, set[str]] = {}
    for p in graph:
        links = [d for d in p.dependencies if d in before]  # not the graph's inputs
        before[p.name] = set(links).union(*(before[d] for d in links))
        by_order = [a for a in p.after if a in before]
        ordered[p.name] = set(by_order).union(*(before[a] for a in by_order), *(ordered[d] for d in links))
    return ordered


def _records(p: Primitive, demanded: list[Primitive]) -> list[Record]:
    reasons = {a.name: ", ".join(conflicts(a, p)) for a in demanded}
    records = []
    for name in p.after:
        if name in reasons:
            records.append(Record("TR102", NAME, p.name, False, f"after({name}) stays for {reasons[name]}"))
        else:
            records.append(Record("TR101", NAME, p.name, True, f"after({name}) orders no effect"))
    records += [
        Record(
            "TR103",
            NAME,
            p.name,
            True,
            f"after({name}) added for {resources}: kept apart through others before",
        )
        for name, resources in reasons.items()
        if name not in p.after
    ]
    return records
