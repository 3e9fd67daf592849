"""Common subexpressions: requests that a query makes twice are computed once.

    a = searching(q, top_k=3) @ db, reads(kb)
    b = searching(q, top_k=3) @ db, reads(kb)
    top = reranking(question, b) @ encoder
 ->
    a = searching(q, top_k=3) @ db, reads(kb)
    top = reranking(question, a) @ encoder

Two primitives are equal if their lines read the same but for the name. Dependent primitives are compared later, so
whole branches merge. An output keeps the name: `b = aggregate(a)`. Equal requests in flight at the same time are merged
at the engine anyway (runtime/scheduler/worker.py), unless the engine is a hosted service. This pass removes the second
request, and the primitives that only prepare it.

Not shared: values that may differ each time (sampled generations, tools, web searches, writes, functions that ask
models, the framework's own values), values with a write in between, and values with another condition or order edge.
*Nor where a framework's own run makes both requests*: the n-th request takes the n-th slot
(runtime/session/session.py), so a value that ran ahead once would be computed again for the second request.

Source: common subexpression elimination; across LLM calls in Helium (arXiv 2603.16104).
"""

from __future__ import annotations

from dataclasses import replace

from teola_plugin.engines import is_repeatable
from teola_plugin.graph import DECODES, PIPELINE, PREFILLS, Graph, Primitive, Ref, When, conflicts, print_primitive
from teola_plugin.passes.estimates import durations
from teola_plugin.passes.rewrite import Context, Record
from teola_plugin.plan import is_request

NAME = "share_subexpressions"
FUNCTIONS = ("call", "condition", "chunking", "aggregate")


def share_subexpressions(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
    """Return the graph in which no request is made twice."""
    seconds = durations(graph, context)
    asked: dict[str, list[Primitive]] = {}  # the first of each request, and the unequal repetitions
    instead: dict[str, str] = {}
    primitives: list[Primitive] = []
    records: list[Record] = []
    for original in graph:
        p = _with_names(original, instead)
        if p.engine == PIPELINE or _is_alias(p):
            primitives.append(p)
            continue
        alike = asked.setdefault(_question(p), [])
        found = [_decide(graph, earlier, p, seconds[p.name], context) for earlier in alike]
        source = next((earlier for earlier, record in zip(alike, found, strict=True) if record.applied), None)
        records += [record for record in found if record.applied][:1] or (found[:1] if is_request(p) else [])
        if source is None:
            alike.append(p)
            primitives.append(p)
            continue
        instead[p.name] = source.name
        if p.name in graph.outputs:
            primitives.append(Primitive(p.name, "aggregate", (Ref(source.name, star=p.depth > 0),), depth=p.depth))
    return replace(graph, primitives=tuple(primitives)), records


def _question(p: Primitive) -> str:
    """Return the request of a primitive, without name, order and condition."""
    return print_primitive(replace(p, name="x", after=(), gated=(), when=None))


def _is_alias(p: Primitive) -> bool:
    return p.kind == "aggregate" and len(p.args) == 1 and p.setting("fn") is None


def _decide(graph: Graph, earlier: Primitive, p: Primitive, seconds: float, context: Context) -> Record:
    def refuse(code: str, reason: str) -> Record:
        return Record(code, NAME, p.name, False, reason, seconds)

    if not _is_the_same_each_time(p):
        return refuse("TR502", f"another {p.kind} like {earlier.name} may come to something else")
    if writer := _written_between(graph, earlier, p):
        return refuse("TR504", f"asks for the same as {earlier.name}, and {writer} writes what is read in between")
    if (earlier.when, {*earlier.after, *earlier.gated}) != (p.when, {*p.after, *p.gated}):
        return refuse("TR505", f"asks for the same as {earlier.name}, after something else or under another condition")
    if not context.allow_early_stop:
        return refuse("TR503", f"asks for the same as {earlier.name}, and the framework's own run asks for both")
    reason = f"asks for the same as {earlier.name}, which saves {seconds * 1e3:.1f} ms of work"
    return Record("TR501", NAME, p.name, True, reason, seconds)


def _is_the_same_each_time(p: Primitive) -> bool:
    if p.writes:
        return False
    if p.kind in PREFILLS:
        return True
    if p.kind in FUNCTIONS:
        return p.engine in ("", "python")  # functions on other engines make requests
    return is_repeatable("decoding" if p.kind in DECODES else p.kind, dict(p.settings))


def _written_between(graph: Graph, earlier: Primitive, p: Primitive) -> str:
    """Return the name of a primitive between the two that writes a resource which both read, or ""."""
    names = [each.name for each in graph]
    between = graph.primitives[names.index(earlier.name) + 1 : names.index(p.name)]
    return next((each.name for each in between if conflicts(each, p)), "")


def _with_names(p: Primitive, instead: dict[str, str]) -> Primitive:
    """Return the primitive with references to removed primitives replaced."""
    args = tuple(Ref(instead.get(a.name, a.name), a.star) if isinstance(a, Ref) else a for a in p.args)
    after, gated = (tuple(dict.fromkeys(instead.get(n, n) for n in names)) for names in (p.after, p.gated))
    when = When(instead.get(p.when.condition, p.when.condition), p.when.value) if p.when else None
    return replace(p, args=args, after=after, gated=gated, when=when)
