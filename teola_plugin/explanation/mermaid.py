"""An e-graph as a Mermaid flowchart: a colour for each engine, thick arrows for items, dotted arrows for order."""

from __future__ import annotations

from collections.abc import Iterator

from teola_plugin.explanation.measure import Measured
from teola_plugin.graph import PIPELINE, PREFILLS, Graph, Primitive

COLOURS = ("#cfe3f7", "#d5efd9", "#fbe3c6", "#eadcf5", "#f9d7d7", "#d3f0ef", "#f3efc3", "#e2e2e2")
"""Backgrounds for black text; engines take the colours in turn."""


def flowchart(graph: Graph, measured: Measured | None = None) -> str:
    """Return the text of the flowchart, with characters of user text escaped where Mermaid would interpret them."""
    return "\n".join(_lines(graph, measured))


def _lines(graph: Graph, measured: Measured | None) -> Iterator[str]:
    ids = {name: f"n{i}" for i, name in enumerate(graph.depths())}
    engines = list(dict.fromkeys(p.engine for p in graph if p.engine))
    yield "flowchart TD"
    for item in graph.inputs:
        yield f'  {ids[item.name]}(["{_safe(item.name)}"])'
    for p in graph:
        left, right = ("[[", "]]") if p.engine == PIPELINE else ("(", ")") if p.kind in PREFILLS else ("[", "]")
        yield f'  {ids[p.name]}{left}"{_label(p, measured)}"{right}'
    for p in graph:
        yield from _edges(p, ids)
    for name in graph.outputs:
        yield f'  {ids[name]} --> out_{ids[name]}(["output"])'
    for i, engine in enumerate(engines):
        members = ",".join(ids[p.name] for p in graph if p.engine == engine)
        yield f"  classDef engine{i} fill:{COLOURS[i % len(COLOURS)]},stroke:#555,color:#111"
        yield f"  class {members} engine{i}"
    path = {link.step.primitive for link in measured.path} if measured else set()
    if critical := [ids[p.name] for p in graph if p.name in path]:  # unforeseen requests have no place in the graph
        yield "  classDef critical stroke:#b3372f,stroke-width:3px"
        yield f"  class {','.join(critical)} critical"


def _label(p: Primitive, measured: Measured | None) -> str:
    lines = [_safe(p.name + "[]" * p.depth), _safe(p.kind + (f" @ {p.engine}" if p.engine else ""))]
    if p.when:
        lines.append(_safe(f"when {p.when.condition} is {p.when.value!r}"))
    steps = [s for s in measured.steps if s.primitive == p.name] if measured else []
    if steps:
        lines.append(f"{sum(s.items for s in steps)} items, {sum(s.engine_s for s in steps) * 1000:.0f} ms")
    return "<br/>".join(lines)


def _edges(p: Primitive, ids: dict[str, str]) -> Iterator[str]:
    data = dict.fromkeys(r.name for r in p.refs)
    starred = {r.name for r in p.refs if r.star}
    for name in data:
        yield f"  {ids[name]} {'==>' if name in starred else '-->'} {ids[p.name]}"
    if p.when and p.when.condition not in data:
        yield f"  {ids[p.when.condition]} -. when .-> {ids[p.name]}"
    for name in p.after:
        yield f"  {ids[name]} -.-> {ids[p.name]}"
    for name in p.gated:
        yield f"  {ids[name]} -. gate .-> {ids[p.name]}"


def _safe(text: str) -> str:
    """Return the text with everything but letters, digits and a few harmless signs as Mermaid's numbered entities."""
    return "".join(c if c.isalnum() or c in " _@.[]-" else f"#{ord(c)};" for c in text)
