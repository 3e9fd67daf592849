"""Pass 3 of the paper: what is early in a prompt is prefilled while the rest of it is still being computed.

    kv = prefilling('Answer: ', question, ' From: ', top) @ llm
 ->
    kv_early = partial_prefilling('Answer: ', question, ' From: ') @ llm
    kv = full_prefilling(kv_early, top) @ llm

The cut is made by readiness. Each piece is ready when its producer is, along the longest path with the
durations of the latency profiles; a prompt can be prefilled up to its first late piece. Of all cuts the one
with the largest gain is taken: the time to prefill the part before it, as far as that fits in the time for
which the rest lets it wait, less what splitting costs.

Not split, with the number that decided: an engine that cannot reuse a prefix, a prompt whose pieces come at
once, a gain below the cost, and a leading part that is the same in every call (literals): the prefix cache
has it from the second call on, unless it is so long that it may have been thrown out.

In a mapped prefill the early part is mapped only as far as its own pieces are: a question before the chunks
is prefilled once, not once per chunk. Source: Teola/Ayo, section 4.3, pass 3, and Table 3 for the cost; the
paper cuts at placeholders.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from teola_plugin.graph import PIPELINE, Arg, Graph, Literal, Primitive, Ref, map_depth
from teola_plugin.passes.estimates import llm_profile, ready_times
from teola_plugin.passes.rewrite import Context, Record

NAME = "split_prefilling"

TOKEN_CHARACTERS = 4
"""Of English text, about."""


def split_prefilling(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
    """The graph with early prefills where they are predicted to pay."""
    ready = ready_times(graph, context)
    taken = set(graph.depths())
    changes, records = {}, []
    for p in graph:
        if p.kind != "prefilling" or p.engine == PIPELINE:
            continue
        cut = _best_cut(p, ready, context)
        record = _decide(p, cut, context)
        records.append(record)
        if record.applied:
            name = _free_name(f"{p.name}_early", taken)
            taken.add(name)
            changes[p.name] = _split(p, cut.at, name, graph.depths())
    return graph.replacing(changes), records


@dataclass(frozen=True, slots=True)
class _Cut:
    """Before piece `at`. What is before it waits `slack_s`; prefilled early, it saves `saved_s`."""

    at: int
    slack_s: float
    saved_s: float
    is_shared: bool

    @property
    def gain_s(self) -> float:
        return 0.0 if self.is_shared else min(self.slack_s, self.saved_s)


def _best_cut(p: Primitive, ready: dict[str, float], context: Context) -> _Cut:
    """Of equal gains the later cut, which leaves less for the end."""
    start = ready[p.when.condition] if p.when else 0.0
    times = [max(start, ready[a.name]) if isinstance(a, Ref) else start for a in p.args]
    tokens = [_tokens(a, context) for a in p.args]
    profile, end = llm_profile(p.engine, context), max(times, default=start)
    cuts = [_Cut(0, 0.0, 0.0, False)]
    for at in range(1, len(p.args)):
        early, late = sum(tokens[:at]), sum(tokens[at:])
        is_shared = all(isinstance(a, Literal) for a in p.args[:at]) and early < context.long_prefix_tokens
        saved_s = profile.prefill_s(early + late) - profile.prefill_s(late, cached_tokens=early)
        cuts.append(_Cut(at, end - max(times[:at]), saved_s, is_shared))
    return max(cuts, key=lambda c: (c.gain_s, c.slack_s > 0, c.at))


def _decide(p: Primitive, cut: _Cut, context: Context) -> Record:
    def refuse(code: str, reason: str, number: float | None = None) -> Record:
        return Record(code, NAME, p.name, False, reason, number)

    if cut.slack_s <= 0:
        return refuse("TR304", "all pieces are ready at once", cut.slack_s)
    if p.engine not in context.capabilities or not context.capabilities[p.engine].prefix:
        return refuse("TR305", f"{p.engine or 'its engine'} does not reuse a prefix")
    if cut.is_shared:
        return refuse("TR303", "what is early is the same in every call: the prefix cache has it", cut.saved_s)
    tokens = sum(_tokens(a, context) for a in p.args)
    cost_s = context.split_tax * llm_profile(p.engine, context).prefill_s(tokens) + context.overhead_s
    numbers = f"predicted gain {_ms(cut.gain_s)}, cost {_ms(cost_s)}, slack {_ms(cut.slack_s)}"
    if cut.gain_s <= cost_s:
        return refuse("TR302", numbers, cut.gain_s - cost_s)
    return Record("TR301", NAME, p.name, True, f"cut before piece {cut.at}: {numbers}", cut.gain_s - cost_s)


def _split(p: Primitive, at: int, name: str, depths: dict[str, int]) -> list[Primitive]:
    leading, rest = p.args[:at], p.args[at:]
    depth = min(
        map_depth(p, depths),
        max((depths[a.name] for a in leading if isinstance(a, Ref) and a.star), default=0),
    )
    early = replace(p, name=name, kind="partial_prefilling", args=leading, depth=depth)
    full = replace(p, kind="full_prefilling", args=(Ref(name, star=depth > 0), *rest))
    return [early, full]


def _tokens(piece: Arg, context: Context) -> int:
    if isinstance(piece, Literal):
        return len(str(piece.value)) // TOKEN_CHARACTERS
    return context.expected_tokens


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
