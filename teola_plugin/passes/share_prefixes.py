"""Shared prefixes: the common prefix of several prompts of a query is prefilled once for all prompts.

    a = prefilling('Code: ', code, ' Review it.') @ llm
    b = prefilling('Code: ', code, ' Test it.') @ llm
 ->
    a_shared = partial_prefilling('Code: ', code) @ llm
    a = full_prefilling(a_shared, ' Review it.') @ llm
    b = full_prefilling(a_shared, ' Test it.') @ llm

The common prefix is counted in whole pieces, written in the template or produced at run time. So are the instances of a
mapped prompt (a document before each question), and the early parts made by `split_prefilling`, which runs before this
pass: of several equal early parts a single part remains.

The rewrite pays where a prefix can be reused only once the whole prefix is computed (`Capabilities.prefix_at_end`), so
that N prompts which come together compute the prefix N times, as in vLLM's engine before V1, in TensorRT-LLM (where the
request has to end first) and at services that say so. There the engine scheduler lets the prompts of a query wait for
the prefill of the prefix. N times the cost of the prefix, less a single prefix and the wait for it, has to exceed the
cost of a further request:

    without   [P a][P b][P c]       N (P + rest) in one pass
    with      [P] [a b c]           one pass more

The rewrite does not pay, and is refused with this reason, where prompts that are prefilled in the same step find each
other's blocks: vLLM V1 enters blocks in the prefix cache at allocation, before the computation; SGLang holds back
prompts that share a prefix with a prompt in flight. Nor does it pay for short literals, which the prefix cache has from
the previous call. Source: Parrot (OSDI'24) and SGLang's `fork`; both share prefixes inside the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from teola_plugin.graph import PIPELINE, Arg, Graph, Literal, Primitive, Ref, When, map_depth
from teola_plugin.passes.estimates import Timing, instances, item_counts, llm_profile, piece_tokens, timing
from teola_plugin.passes.rewrite import Context, Record, free_name
from teola_plugin.profile import LlmProfile

NAME = "share_prefixes"
MEMBERS = ("prefilling", "partial_prefilling")


def share_prefixes(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
    """Return the graph with a single prefill for each common prefix that is worth sharing."""
    records: list[Record] = []
    while True:
        decided = [(group, _decide(group, context)) for group in _groups(graph, context)]
        applied = [(group, record) for group, record in decided if record.applied]
        if not applied:
            longest = {group.members: record for group, record in decided}
            return graph, [*records, *longest.values()]
        group, record = max(applied, key=lambda each: each[1].number or 0.0)
        graph = _shared(graph, group)
        records.append(record)


@dataclass(frozen=True, slots=True)
class _Group:
    """Prompts whose first `pieces` are the same, at the same place in the ancestry (`depth`).

    `prompts`: the number of instances that come together. `prefixes`: the number of prefixes, one for each item among
    the pieces. `prefix_tokens` of a prefix, `rest_tokens` of all rests. `idle_s`: the time between the prefix and the
    first rest, less the time in which the engine runs dependencies of the rest, which are `after`.
    """

    members: tuple[Primitive, ...]
    pieces: tuple[Arg, ...]
    depth: int
    prompts: float
    prefixes: float
    prefix_tokens: int
    rest_tokens: float
    idle_s: float
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Beginning:
    """The common prefix of prompts: the `texts` of the pieces, and where and when the prompts are prefilled."""

    engine: str
    when: When | None
    after: tuple[str, ...]
    gated: tuple[str, ...]
    depth: int
    texts: tuple[str, ...]


def _groups(graph: Graph, context: Context) -> Iterator[_Group]:
    """Return every prefix that several prompts have, in the order of the graph, shorter prefixes first."""
    depths, times = graph.depths(), timing(graph, context)
    items = item_counts(graph, context.expected_items)
    found: dict[_Beginning, list[Primitive]] = {}
    for p in graph:
        if p.kind not in MEMBERS or p.engine == PIPELINE:
            continue
        for count in range(1, 1 + len(p.args)):
            pieces = p.args[:count]
            if count > 1 or not _is_prefilled(graph, pieces[0]):
                depth = min(map_depth(p, depths), _deepest_star(pieces, depths))
                beginning = _Beginning(p.engine, p.when, p.after, p.gated, depth, tuple(map(_text, pieces)))
                found.setdefault(beginning, []).append(p)
    for beginning, members in found.items():
        pieces, depth = members[0].args[: len(beginning.texts)], beginning.depth
        prompts = {p.name: instances(p, depths, items, context.expected_items) for p in members}
        stars = [a.name for a in pieces if isinstance(a, Ref) and a.star and depths[a.name] == depth]
        prefixes = min((items[name] for name in stars), default=1.0)
        if sum(prompts.values()) > prefixes:
            yield _group(graph, tuple(members), pieces, depth, prompts, prefixes, times, context)


def _group(
    graph: Graph, members: tuple[Primitive, ...], pieces: tuple[Arg, ...], depth: int, prompts: Mapping[str, float],
    prefixes: float, times: Timing, context: Context,
) -> _Group:  # fmt: skip
    lead, first = members[0], min(members, key=lambda p: times.ready[p.name])
    tokens = sum(_tokens(graph, a, context) for a in pieces)
    begin_s = max((times.ready[name] for name in replace(lead, args=pieces).dependencies), default=0.0)
    end_s = times.ready[first.name]
    idle_from_s, after = times.idle_from(first, begin_s, end_s)
    # Prompts that come later, or when the engine is full, find the prefix in the cache.
    soon_s = end_s + llm_profile(lead.engine, context).prefill_s(tokens)
    together = [p for p in members if times.ready[p.name] <= soon_s]
    rests = [prompts[p.name] * sum(_tokens(graph, a, context) for a in p.args[len(pieces) :]) for p in together]
    count = sum(prompts[p.name] for p in together)
    known = context.capabilities.get(lead.engine)
    share = min(1.0, known.max_items / count) if known else 1.0
    idle_s = end_s - idle_from_s
    return _Group(
        members, pieces, depth, share * count, prefixes, tokens, share * sum(rests), idle_s, after if idle_s > 0 else ()
    )


def _decide(group: _Group, context: Context) -> Record:
    lead = group.members[0]

    def refuse(code: str, reason: str, number: float | None = None) -> Record:
        return Record(code, NAME, lead.name, False, reason, number)

    known = context.capabilities.get(lead.engine)
    if known is None or not known.prefix:
        return refuse("TR605", f"{lead.engine or 'its engine'} does not reuse a prefix")
    if not known.prefix_at_end:
        return refuse("TR604", f"{lead.engine} computes it once for prompts that come together", group.prefix_tokens)
    if all(isinstance(a, Literal) for a in group.pieces) and group.prefix_tokens < context.long_prefix_tokens:
        return refuse("TR603", "it is the same in every call: the prefix cache has it", group.prefix_tokens)
    gain_s, wait_s = _gain_s(group, llm_profile(lead.engine, context))
    numbers = (
        f"{group.prefix_tokens} tokens once, not {group.prompts:.0f} times, for "
        f"{', '.join(p.name for p in group.members)}: predicted gain {gain_s * 1e3:.1f} ms, after a wait of "
        f"{wait_s * 1e3:.1f} ms, cost {context.overhead_s * 1e3:.1f} ms"
    )
    net_s = gain_s - context.overhead_s
    return Record("TR601", NAME, lead.name, True, numbers, net_s) if net_s > 0 else refuse("TR602", numbers, net_s)


def _gain_s(group: _Group, profile: LlmProfile) -> tuple[float, float]:
    """Return the seconds gained, and the seconds for which the prompts wait for the prefix."""

    def prefill_s(tokens: float, prompts: float, cached_tokens: int = 0) -> float:
        return profile.prefill_s(round(tokens), cached_tokens, items=max(1, round(prompts))) if tokens else 0.0

    each_s = prefill_s(group.prompts * group.prefix_tokens + group.rest_tokens, group.prompts)
    rest_s = prefill_s(group.rest_tokens, group.prompts, group.prefix_tokens)
    wait_s = max(0.0, prefill_s(group.prefixes * group.prefix_tokens, group.prefixes) - group.idle_s)
    return each_s - rest_s - wait_s, wait_s


def _shared(graph: Graph, group: _Group) -> Graph:
    """Return the graph with a single prefill of the prefix, in the place of the first prompt."""
    lead, count = group.members[0], len(group.pieces)
    whole = [p.name for p in group.members if p.kind == "partial_prefilling" and len(p.args) == count]
    name = whole[0] if whole else free_name(f"{lead.name}_shared", graph.depths())
    after = tuple(dict.fromkeys((*lead.after, *group.after)))
    made = replace(
        lead, name=name, kind="partial_prefilling", args=group.pieces, settings=(), depth=group.depth, after=after
    )
    changes: dict[str, list[Primitive]] = {gone: [] for gone in whole}
    for p in group.members:
        if p.name not in whole:
            kind = "full_prefilling" if p.kind == "prefilling" else p.kind
            args = (Ref(name, star=group.depth > 0), *p.args[count:])
            changes[p.name] = [replace(p, kind=kind, args=args)]
    changes[lead.name].insert(0, made)
    return _renamed(graph.replacing(changes), dict.fromkeys(whole, name))


def _renamed(graph: Graph, instead: dict[str, str]) -> Graph:
    def rename(p: Primitive) -> Primitive:
        args = tuple(Ref(instead.get(a.name, a.name), a.star) if isinstance(a, Ref) else a for a in p.args)
        return replace(p, args=args)

    return replace(graph, primitives=tuple(map(rename, graph)))


def _deepest_star(pieces: Iterable[Arg], depths: dict[str, int]) -> int:
    return max((depths[a.name] for a in pieces if isinstance(a, Ref) and a.star), default=0)


def _tokens(graph: Graph, piece: Arg, context: Context) -> int:
    """Return the tokens of a piece that is not prefilled yet."""
    return 0 if _is_prefilled(graph, piece) else piece_tokens(piece, context)


def _is_prefilled(graph: Graph, piece: Arg) -> bool:
    return isinstance(piece, Ref) and any(p.name == piece.name and p.kind == "partial_prefilling" for p in graph)


def _text(piece: Arg) -> str:
    return ("*" if piece.star else "") + piece.name if isinstance(piece, Ref) else repr(piece.value)
