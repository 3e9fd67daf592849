"""Gates: steps before a request to the outside that may raise (see `gated` in graph.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from teola_plugin.graph import Primitive


def gate_requests(primitives: dict[str, Primitive], before: Mapping[str, tuple[str, ...]]) -> None:
    """Give each request to outside this process its gates: the raising steps of `before`, less the implied steps.

    A gate is implied if the request waits for the whole step anyhow: behind a data edge without a star, a condition, an
    order edge, or another gate. `primitives`: by name, in program order; changed in place.
    """
    waits_for: dict[str, set[str]] = {}
    for name, p in primitives.items():
        whole = {ref.name for ref in p.refs if not ref.star} | set(p.after)
        if p.when:
            whole.add(p.when.condition)
        behind = {*whole, *(ref.name for ref in p.refs)}
        waits_for[name] = whole.union(*(waits_for.get(known, ()) for known in behind))
        gates = [gate for gate in before.get(name, ()) if gate not in waits_for[name]]
        implied = set[str]().union(*(waits_for.get(gate, ()) for gate in gates))
        primitives[name] = replace(p, gated=tuple(gate for gate in gates if gate not in implied))
        waits_for[name].update(gates, implied)
