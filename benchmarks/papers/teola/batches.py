"""Figures 4 and 7 of Teola: one engine, and what the order and size of its batches do.

    figure 7     engine: two prompts of 512 tokens at most; one takes 0.5 s, two take 0.8 s
                 query 1 waits with A, which its output needs next, and B, which it needs later; query 2 with G

    blind        [A B] 0.8 s, then [G] 1.3 s        query 2 goes on at 1.3 s
    topology     [A G] 0.8 s, then [B] 1.3 s        both go on at 0.8 s

For figure 7 the `EngineScheduler` of real queries is asked directly; only the engine is a latency profile.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator import Arrival, LlmServer, System, Workload, simulate

from papers.apps import ANSWER_TOKENS, CHUNK_TOKENS, text_of
from papers.figures import Cell, Result, Row, Setting, Table
from teola_plugin.engines import Capabilities, Item
from teola_plugin.graph import parse
from teola_plugin.plan import make_plan
from teola_plugin.profile import PAPER, PAPER_LLM, Profile
from teola_plugin.runtime.scheduler.batching import EngineScheduler
from teola_plugin.runtime.scheduler.policies import POLICIES
from teola_plugin.runtime.scheduler.work_item import Request, WorkItem

PROMPT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that waits when the engine becomes free: `depth` requests from its query's output."""

    name: str
    query: int
    depth: int
    items: int = 1


FIGURE_7 = (Ask("A", 1, 2), Ask("B", 1, 1), Ask("G", 2, 2))


def ends(asks: Sequence[Ask], policy: str, profile: Profile, max_items: int) -> Mapping[str, float]:
    """When each request is done, in seconds after the engine became free."""
    scheduler = EngineScheduler(POLICIES[policy], Capabilities(max_items=max_items))
    waits: dict[int, str] = {}
    for ask in asks:
        ids = range(len(waits), len(waits) + ask.items)
        waits |= dict.fromkeys(ids, ask.name)
        items = [Item(f"{ask.name}{each}", id=each) for each in ids]
        # Seconds to the output go with the depth, queries came one after the other.
        request = Request("prefilling", {}, [], ask.query, ask.depth, 0.5 * ask.depth, ask.query / 100)
        request.items = [WorkItem(item, request) for item in items]
        scheduler.submit(request)
    now_s = 0.0
    ended: dict[str, float] = {}
    while attempt := scheduler.next_batch(now_s):
        now_s += profile.predict_s(len(attempt.works))
        scheduler.finish(attempt.works, now_s)
        ended |= {waits[work.item.id]: now_s for work in attempt.works}
    return ended


def figure_7(setting: Setting) -> Result:
    """The A/B/G case with each policy."""
    profile = PAPER_LLM["figure7"].prefill
    rows = []
    for policy, label, published in (
        ("to", "blind batching (to)", (0.8, 1.3)),
        ("topology", "topology-aware batching", (0.8, 0.8)),
        ("critical_path", "critical path", (0.8, 0.8)),
    ):
        ended = ends(FIGURE_7, policy, profile, profile.max_items)
        goes_on = [Cell(ended[name], s, "s") for name, s in zip(("A", "G"), published, strict=True)]
        rows.append(Row(label, (*goes_on, Cell(ended["B"], unit="s"))))
    table = Table("When each query goes on", ("query 1 (A)", "query 2 (G)", "B, needed later"), tuple(rows), "policy")
    return Result((table,))


def figure_4(setting: Setting) -> Result:
    """What batches do for one query: 48 texts to embed, and a tree of prompts."""
    return Result(
        (_embedding(), _tree()),
        says=(
            f"The tree: {LEAVES} prompts with {CHUNK_TOKENS} tokens each and one with their answers, {ANSWER_TOKENS} "
            "tokens each, one instance of the 7B model. The paper says neither lengths nor batches of its example, "
            "1.6 and 1.15 s.",
        ),
    )


def _embedding() -> Table:
    seconds = {size: ends([Ask("texts", 1, 1, 48)], "to", PAPER["embedding"], size)["texts"] for size in (4, 16)}
    cells = (Cell(seconds[4], 1.8, "s"), Cell(seconds[16], 1.35, "s"), Cell(seconds[4] / seconds[16], 1.8 / 1.35, "x"))
    return Table("48 texts of one query", ("batches of 4", "batches of 16", "ratio"), (Row("embedding", cells),))


LEAVES = 3
TREE = f"""
inputs(question, chunks=[])
kvs: [] = prefilling(question, *chunks) @ llm
notes: [] = decoding(*kvs, max_tokens={ANSWER_TOKENS}) @ llm
joined = call(notes, fn='joined') @ python
kv = prefilling(question, joined) @ llm
answer = decoding(kv, max_tokens={ANSWER_TOKENS}) @ llm
outputs(answer)
"""


def _tree() -> Table:
    drawn = random.Random(LEAVES)
    given = {"question": text_of(drawn, 20), "chunks": [text_of(drawn, CHUNK_TOKENS) for _ in range(LEAVES)]}
    workload = Workload(make_plan(parse(TREE)), {"joined": "\n".join}, lambda number: given)

    def seconds(max_items: int) -> float:
        system = System({"llm": LlmServer(PAPER_LLM["7b"], max_items=max_items, prefix_cache="none")}, "to")
        return simulate([Arrival(0, "tree", 0.0)], {"tree": workload}, system).took_s

    one_s, two_s, all_s = map(seconds, (1, 2, LEAVES))
    cells = (Cell(one_s, unit="s"), Cell(two_s, unit="s"), Cell(all_s, unit="s"), Cell(two_s / all_s, 1.4, "x"))
    columns = ("one at a time", "two at a time", "all leaves at once", "two at a time / all")
    return Table("A tree of depth 2", columns, (Row("synthesis", cells),))
