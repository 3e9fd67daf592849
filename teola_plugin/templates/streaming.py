"""The decodings which write the answer, so that the answer can be streamed.

    answer = decoding(kv)                                                   the decoding itself
    answer = aggregate(a, b) of decodings with when(c) and when(c, False)   whichever runs

If several texts are written and only the last counts, as in a refine, the decoding is unknown in advance.
"""

from __future__ import annotations

from teola_plugin.graph import DECODES, Graph, Primitive


def writers_of(graph: Graph, name: str) -> tuple[str, ...]:
    """Return the decodings of which exactly one writes the value; none if undecided, or if it is no single text."""
    primitives = {p.name: p for p in graph}
    p = primitives.get(name)
    if p is None or p.depth:
        return ()
    if p.kind in DECODES:
        return (name,)
    if p.kind != "aggregate" or not _are_either_or([primitives[r.name] for r in p.refs if r.name in primitives]):
        return ()
    writers = [writers_of(graph, r.name) for r in p.refs]
    return tuple(name for found in writers for name in found) if all(writers) else ()


def _are_either_or(ways: list[Primitive]) -> bool:
    guards = {(p.when.condition, p.when.value) for p in ways if p.when}
    return (
        len(ways) == 2 and len({condition for condition, _ in guards}) == 1 and {v for _, v in guards} == {True, False}
    )
