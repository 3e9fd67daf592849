"""Estimates of the number of items of a value and of the time when the value is ready, from a graph and profiles.

Sizes are known only at run time; passes need an order of magnitude to tell early from late values. Where an engine has
no profile, the paper's testbed is the default. A value `@ pipeline` exists when the framework's own run has got there:
after everything that is written before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from teola_plugin.engines import NOT_URGENT, Taker, Urgency
from teola_plugin.graph import DECODES, PIPELINE, PREFILLS, Arg, Graph, Literal, Primitive, map_depth, yields
from teola_plugin.passes.rewrite import Context
from teola_plugin.plan import Plan, is_request, make_plan
from teola_plugin.profile import PAPER, PAPER_LLM, TOKEN_CHARACTERS, LlmProfile, Profile

TESTBED = {
    "embedding": PAPER["embedding"],
    "ingestion": PAPER["ingestion"],
    "searching": PAPER["searching"],
    "reranking": PAPER["reranking"],
    "tool": Profile.affine(0.5),
    "websearch": Profile.affine(0.5),
}
"""Profiles by kind, where an engine has no profile of its own. The last two are guesses."""


def instances(p: Primitive, depths: dict[str, int], items: dict[str, float], unknown: float) -> float:
    """Return the number of instances of a primitive, if a list of unknown length has `unknown` items."""
    mapped = map_depth(p, depths)
    if mapped == 0:
        return 1
    return min((items[r.name] for r in p.refs if r.star and depths[r.name] == mapped), default=unknown**mapped)


def item_counts(graph: Graph, unknown: float) -> dict[str, float]:
    """Return the number of items of each value, over all its lists; for an `unknown` of infinity the maximum."""
    depths = graph.depths()
    items: dict[str, float] = {i.name: unknown**i.depth for i in graph.inputs}
    for p in graph:
        count = instances(p, depths, items, unknown)
        if yields(p, depths):
            count *= p.setting("wanted", unknown) if p.is_splittable else unknown
        items[p.name] = 1 if p.kind == "ingestion" else count
    return items


@dataclass(frozen=True, slots=True)
class Timing:
    """The time when each value of a query is whole (`ready`, seconds from the start), on engines without other load.

    `seconds`: the duration of each primitive. `before`: the dependencies of each primitive, direct and indirect.
    `remote`: engines that serve requests side by side.
    """

    graph: Graph
    ready: Mapping[str, float]
    seconds: Mapping[str, float]
    before: Mapping[str, frozenset[str]]
    remote: frozenset[str]

    def idle_from(self, p: Primitive, begin_s: float, end_s: float) -> tuple[float, tuple[str, ...]]:
        """Return from when in an interval the engine of `p` runs no dependency of `p`, and the last dependencies."""
        awaited = [r for r in self._running(p.engine, begin_s, end_s) if r.name in self.before[p.name]]
        if map_depth(p, self.graph.depths()) and any(r.is_splittable for r in awaited):
            return end_s, tuple(r.name for r in awaited)  # `p` takes items while the text is still being written
        last = [r.name for r in awaited if not any(r.name in self.before[other.name] for other in awaited)]
        return max((min(end_s, self.ready[name]) for name in last), default=begin_s), tuple(last)

    def is_used(self, p: Primitive, begin_s: float, end_s: float) -> bool:
        """Whether, in an interval, the engine of `p` runs work unrelated to `p`."""
        others = [r for r in self._running(p.engine, begin_s, end_s) if p.name not in self.before[r.name]]
        return any(r.name not in self.before[p.name] for r in others)

    def _running(self, engine: str, begin_s: float, end_s: float) -> list[Primitive]:
        if engine in self.remote:
            return []
        requests = [r for r in self.graph if r.engine == engine and is_request(r)]
        return [
            r for r in requests if self._starts_s(r) < end_s and max(begin_s, self._starts_s(r)) < self.ready[r.name]
        ]

    def _starts_s(self, r: Primitive) -> float:
        return self.ready[r.name] - self.seconds[r.name]


def timing(graph: Graph, context: Context) -> Timing:
    """Return the timing of a valid graph."""
    seconds = durations(graph, context)
    ready = {i.name: 0.0 for i in graph.inputs}
    before: dict[str, frozenset[str]] = {i.name: frozenset() for i in graph.inputs}
    for p in graph:
        before[p.name] = frozenset(p.dependencies).union(*(before[d] for d in p.dependencies))
        if p.engine == PIPELINE:
            ready[p.name] = max(ready.values(), default=0.0)
        else:
            ready[p.name] = max((ready[d] for d in p.dependencies), default=0.0) + seconds[p.name]
    remote = frozenset(name for name, known in context.capabilities.items() if known.remote)
    return Timing(graph, ready, seconds, before, remote)


def durations(graph: Graph, context: Context) -> dict[str, float]:
    """Return the seconds that all instances of each primitive take on an engine without other load, in graph order."""
    depths = graph.depths()
    items = item_counts(graph, context.expected_items)
    unknown = context.expected_items
    return {p.name: _duration_s(p, instances(p, depths, items, unknown), context) for p in graph}


def planned(graph: Graph, context: Context, then: Urgency = NOT_URGENT) -> Plan:
    """Return the plan of a valid graph, with predicted durations. `then`: see `make_plan`."""
    return make_plan(graph, durations(graph, context), then, slowest_takers(graph, context))


def slowest_takers(graph: Graph, context: Context) -> dict[str, Taker]:
    """Return the slowest requests that take texts singly, for texts that LLMs write for items arriving together.

    None if a primitive waits for all texts. Only engines that run a single batch at a time, with a known profile,
    count.
    """
    depths, consumers = graph.depths(), graph.consumers()
    givers = {p.name: p for p in graph}
    found = {}
    for p in graph:
        if p.kind in DECODES and map_depth(p, depths) and _begin_together(p, givers, depths):
            profiles = _batched(takers(p, depths, consumers), context)
            if slowest := max(map(_taker, profiles), key=lambda each: each.item_s, default=None):
                found[p.name] = slowest
    return found


def _begin_together(p: Primitive, givers: Mapping[str, Primitive], depths: Mapping[str, int]) -> bool:
    """Whether no producer hands over items singly."""
    seen, open_ = {p.name}, [p]
    while open_:
        for ref in open_.pop().refs:
            giver = givers.get(ref.name)
            if giver is None or not ref.star or giver.name in seen:
                continue
            seen.add(giver.name)
            if giver.is_splittable or (is_request(giver) and map_depth(giver, depths)):
                return False
            if map_depth(giver, depths):
                open_.append(giver)
    return True


def takers(
    p: Primitive, depths: Mapping[str, int], consumers: Mapping[str, Sequence[Primitive]]
) -> Collection[Primitive]:
    """Return the requests that take the values of a primitive singly; none if a primitive waits for all values."""
    found: dict[str, Primitive] = {}
    seen, open_ = {p.name}, [p]
    while open_:
        giver = open_.pop()
        for taker in consumers[giver.name]:
            stars = [ref.star for ref in taker.refs if ref.name == giver.name]
            is_each = map_depth(taker, depths) == map_depth(p, depths) and stars and all(stars)
            if not is_each or giver.name in (*taker.after, *taker.gated) or taker.engine == PIPELINE:
                return ()
            if is_request(taker):
                found[taker.name] = taker
            elif taker.name not in seen:
                seen.add(taker.name)
                open_.append(taker)
    return found.values()


def _batched(requests: Iterable[Primitive], context: Context) -> Iterator[Profile]:
    """Return the profiles of engines that run a single batch at a time."""
    for request in requests:
        known = context.capabilities.get(request.engine)
        profile = context.profiles.get(request.engine)
        if isinstance(profile, Profile) and not (known and known.concurrent):
            yield profile


def _taker(profile: Profile) -> Taker:
    one_s, most = profile.predict_s(1), max(2, profile.max_items)
    item_s = (profile.predict_s(most) - one_s) / (most - 1)
    return Taker(max(0.0, one_s - item_s), item_s)


def batch_s(p: Primitive, count: float, context: Context) -> float:
    """Return the seconds for `count` items of `p`; an LLM writes the usual lengths, at most `max_tokens`."""
    items = max(1, round(count))
    if p.kind in DECODES:
        llm = llm_profile(p.engine, context)
        written = min(p.setting("max_tokens") or llm.output_tokens, llm.output_tokens)
        return llm.prefill_s(items * context.expected_tokens, items=items) + written * llm.step_s(items)
    profile = context.profiles.get(p.engine) or TESTBED.get(p.kind)
    return profile.predict_s(items) if profile else 0.0


def piece_tokens(piece: Arg, context: Context) -> int:
    """Return the length of a piece of a prompt, in tokens."""
    if isinstance(piece, Literal):
        return len(str(piece.value)) // TOKEN_CHARACTERS
    return context.expected_tokens


def llm_profile(engine: str, context: Context) -> LlmProfile:
    """Return the engine's own profile, else the profile of the paper's 7B model."""
    profile = context.profiles.get(engine)
    return profile if isinstance(profile, LlmProfile) else PAPER_LLM["7b"]


def _duration_s(p: Primitive, count: float, context: Context) -> float:
    if p.kind in PREFILLS or p.engine == PIPELINE:
        return 0.0  # counted in the decoding, or computed by the framework
    return batch_s(p, count, context)
