"""Ways of running one application on the same engines: the paper's baselines, the framework alone, and ours.

| way            | modules                       | policy | prefix cache | largest batch |
|---|---|---|---|---|
| LlamaDist      | one after the other           | po, to | none         | po: the engine's, to: doubled |
| LlamaDistPC    | independent ones side by side | po, to | instructions | po: the engine's, to: doubled |
| ... full cache | the same                      | po, to | full         | po: the engine's, to: doubled |
| framework      | one after the other, its own async inside of each | to | full | the engine's |
| ours           | one after the other, then the passes | topology, critical_path | instructions, full | the engine's |
| ours, tuned    | the same | critical_path | full | doubled |
| ours, branches ahead | and what a condition may lead to | critical_path | full | the engine's |

`po` is the paper's per-invocation oriented scheduling: what one module asks of an engine is a bundle, and bundles go
one at a time. `to` is its throughput oriented one: first come first served over all queries, in batches whose largest
size was found by doubling it. (The paper takes the size with the best throughput; here it is the one with the lowest
mean latency, the better for the baseline.) LlamaDistPC with a full prefix cache is no baseline of the paper: it shows
which part of our gain is the cache's. Source: Teola/Ayo, section 7.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from teola_plugin.graph import Graph, conflicts
from teola_plugin.passes import BRANCHES, DEFAULT, Context, Pass, Record
from teola_plugin.passes.decompose_stages import decompose_stages
from teola_plugin.passes.pipeline_decoding import pipeline_decoding
from teola_plugin.passes.prune_dependencies import prune_dependencies
from teola_plugin.passes.split_prefilling import split_prefilling
from teola_plugin.runtime.scheduler.policies import PolicyName

PrefixCache = Literal["full", "instruction", "none"]
Shape = Literal["chain", "parallel"]


@dataclass(frozen=True, slots=True)
class Way:
    """How queries are run. `shape`: of the graph before the passes. `is_tuned`: the largest batch was doubled.

    `in_waves`: the LLM scheduler may know which texts are handed on one by one
    (runtime/scheduler/staggered_prefills.py).
    """

    name: str
    shape: Shape
    policy: PolicyName
    prefix_cache: PrefixCache
    passes: tuple[Pass, ...] = ()
    is_tuned: bool = False
    in_waves: bool = True

    @property
    def has_bundles(self) -> bool:
        """`po`: what one invocation asks runs alone, on LLMs too."""
        return self.policy == "po"

    def __str__(self) -> str:
        return self.name


PAPERS = (
    Way("LlamaDist-PO", "chain", "po", "none"),
    Way("LlamaDist-TO", "chain", "to", "none", is_tuned=True),
    Way("LlamaDistPC-PO", "parallel", "po", "instruction"),
    Way("LlamaDistPC-TO", "parallel", "to", "instruction", is_tuned=True),
)
"""The paper's four baselines."""

FRAMEWORK = Way("framework", "chain", "to", "full")
"""What a user has today: LlamaDist-TO on engines as they are, with their prefix cache and largest batches."""

MORE = (
    Way("LlamaDistPC-PO, full cache", "parallel", "po", "full"),
    Way("LlamaDistPC-TO, full cache", "parallel", "to", "full", is_tuned=True),
    FRAMEWORK,
)
"""Baselines of ours: the first two have what our engines have."""

OURS = (
    Way("ours, topology, instruction cache", "chain", "topology", "instruction", DEFAULT),
    Way("ours, topology", "chain", "topology", "full", DEFAULT),
    Way("ours, critical path, instruction cache", "chain", "critical_path", "instruction", DEFAULT),
    Way("ours, critical path", "chain", "critical_path", "full", DEFAULT),
)

BEST = OURS[-1]
"""What `optimize` does unless it is told otherwise."""

TUNED = replace(BEST, name="ours, critical path, tuned", is_tuned=True)
"""With the largest batches found as for the baselines: what somebody gets who measures them once (`teola profile`)."""

AHEAD = replace(BEST, name="ours, branches ahead", passes=BRANCHES)
"""`speculate="branches"`, for applications that have conditions: some of what is read is for nothing."""

AT_ONCE = replace(BEST, name="ours, all texts at once", in_waves=False)

WAYS = (*PAPERS, *MORE, *OURS, TUNED)


def keep_modules_in_order(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
    """Without the order edges beside which data flows: one module after the other, in parts where the data comes so."""
    before: dict[str, set[str]] = {}
    primitives = []
    for p in graph:
        sources = [r.name for r in p.refs if r.name in before]
        before[p.name] = set(sources).union(*(before[name] for name in sources))
        kept = (name for name in p.after if name not in before[p.name] or conflicts(graph[name], p))
        primitives.append(replace(p, after=tuple(kept)))
    return replace(graph, primitives=tuple(primitives)), []


PARALLEL_ONLY: tuple[Pass, ...] = (prune_dependencies, split_prefilling)
PIPELINED_ONLY: tuple[Pass, ...] = (keep_modules_in_order, decompose_stages, pipeline_decoding)
"""Passes 1 and 3 of the paper, and 2 and 4 (its section 7.4)."""


def with_passes(name: str, passes: tuple[Pass, ...], policy: PolicyName = "topology") -> Way:
    """Our way with some of the passes."""
    return Way(name, "chain", policy, "full", passes)
