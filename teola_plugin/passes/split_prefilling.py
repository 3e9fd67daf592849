"""Pass 3 of the paper: the early part of a prompt is prefilled while the rest is still being computed.

    kv = prefilling('Answer: ', question, ' From: ', top) @ llm
 ->
    kv_early = partial_prefilling('Answer: ', question, ' From: ') @ llm
    kv = full_prefilling(kv_early, top) @ llm

The cut is made by readiness. Each piece is ready when the producer is, along the longest path with the durations of the
latency profiles; a prompt can be prefilled up to the first late piece. Of all cuts, the pass chooses the cut with the
largest gain: the time to prefill the part before the cut, as far as it fits in the wait for the rest, less the cost of
splitting.

A prefill delays everything else that the engine is doing. If the engine is writing the very answer that the rest of the
prompt waits for, compute spent now is missing there, and a further pass over the model is added: nothing is gained. So
an early prefill waits (`after`) for such answers, and gains only the idle time of the engine after them:

    llm      queries queries queries | early |         answer        not    early queries queries ..
    others                           | embed, search |

If the early prefill may delay other requests of the same query, the base of a further pass is added to the cost. (No
such delays are counted at a hosted service, where requests side by side do not slow down each other.)

Not split, with the number that decided: an engine that cannot reuse a prefix, or works until the rest is there, a
prompt whose pieces arrive at once, a gain below the cost, and a leading part that is the same in every call (literals):
the prefix cache has the part from the second call on, unless the part is so long that the cache may have evicted it.

In a mapped prefill the early part is mapped only as far as its own pieces are: a question before the chunks is
prefilled once, not once per chunk. Source: Teola/Ayo, section 4.3, pass 3, and Table 3 for the cost; the paper cuts at
placeholders, and says nothing of the delays that an early prefill causes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from teola_plugin.graph import PIPELINE, Graph, Literal, Primitive, Ref, map_depth
from teola_plugin.passes.estimates import Timing, llm_profile, piece_tokens, timing
from teola_plugin.passes.rewrite import Context, Record, free_name

NAME = "split_prefilling"


def split_prefilling(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
    """Return the graph with early prefills where the rewrite is predicted to pay."""
    times = timing(graph, context)
    taken = set(graph.depths())
    changes, records = {}, []
    for p in graph:
        if p.kind != "prefilling" or p.engine == PIPELINE:
            continue
        cut = _best_cut(p, times, context)
        record = _decide(p, cut, context)
        records.append(record)
        if record.applied:
            name = free_name(f"{p.name}_early", taken)
            taken.add(name)
            changes[p.name] = _split(p, cut, name, graph.depths())
    return graph.replacing(changes), records


@dataclass(frozen=True, slots=True)
class _Cut:
    """A cut before piece `at`. The part before the cut waits `slack_s`; an early prefill saves `saved_s`.

    The early prefill waits for the requests `after` on the same engine, which leaves `idle_s` of the slack, and delays
    other requests by `holds_up_s`.
    """

    at: int
    slack_s: float
    saved_s: float
    is_shared: bool
    idle_s: float = 0.0
    holds_up_s: float = 0.0
    after: tuple[str, ...] = ()

    @property
    def gain_s(self) -> float:
        return 0.0 if self.is_shared else min(self.idle_s, self.saved_s)


def _best_cut(p: Primitive, times: Timing, context: Context) -> _Cut:
    """Return the cut with the largest gain; of equal gains the later cut, which leaves less for the end."""
    start = times.ready[p.when.condition] if p.when else 0.0
    ready = [max(start, times.ready[a.name]) if isinstance(a, Ref) else start for a in p.args]
    tokens = [piece_tokens(a, context) for a in p.args]
    profile, end = llm_profile(p.engine, context), max(ready, default=start)
    cuts = [_Cut(0, 0.0, 0.0, False)]
    for at in range(1, len(p.args)):
        early, late = sum(tokens[:at]), sum(tokens[at:])
        is_shared = all(isinstance(a, Literal) for a in p.args[:at]) and early < context.long_prefix_tokens
        saved_s = profile.prefill_s(early + late) - profile.prefill_s(late, cached_tokens=early)
        begin = max(ready[:at])
        idle, after = times.idle_from(p, begin, end)
        holds_up_s = profile.prefill_s(0) if times.is_used(p, idle, end) else 0.0
        cuts.append(_Cut(at, end - begin, saved_s, is_shared, end - idle, holds_up_s, after))
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
    if cut.idle_s <= 0:
        reason = f"{p.engine} works until then on what the rest waits for: {', '.join(cut.after)}"
        return refuse("TR306", reason, cut.slack_s)
    tokens = sum(piece_tokens(a, context) for a in p.args)
    cost_s = context.split_tax * llm_profile(p.engine, context).prefill_s(tokens) + context.overhead_s
    numbers = f"predicted gain {_ms(cut.gain_s)}, cost {_ms(cost_s + cut.holds_up_s)}, slack {_ms(cut.idle_s)}"
    if cut.holds_up_s:
        numbers += f", of the cost {_ms(cut.holds_up_s)} to others on {p.engine}"
    net_s = cut.gain_s - cost_s - cut.holds_up_s
    if net_s <= 0:
        return refuse("TR302", numbers, net_s)
    return Record("TR301", NAME, p.name, True, f"cut before piece {cut.at}: {numbers}", net_s)


def _split(p: Primitive, cut: _Cut, name: str, depths: dict[str, int]) -> list[Primitive]:
    leading, rest = p.args[: cut.at], p.args[cut.at :]
    depth = min(
        map_depth(p, depths),
        max((depths[a.name] for a in leading if isinstance(a, Ref) and a.star), default=0),
    )
    after = tuple(dict.fromkeys((*p.after, *cut.after)))
    early = replace(p, name=name, kind="partial_prefilling", args=leading, depth=depth, after=after)
    full = replace(p, kind="full_prefilling", args=(Ref(name, star=depth > 0), *rest))
    return [early, full]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
