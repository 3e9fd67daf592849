"""How fast an application could be: the longest path through the requests of one of its runs.

A request depends on the earlier ones whose marks it contains (that is data), on those that its table names (a router or
a guard reads their reply; or their reply leaves no mark, such as a vector), and on what these depend on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from public.server import Asked


@dataclass(frozen=True)
class Needs:
    """What the requests of an application wait for.

    `stages`: the name of a request by a marker in its text, the first that fits; else its kind. `after`: the stages all
    of whose earlier requests one of a stage waits for. A stage without an entry waits for all that ended before it.
    """

    stages: tuple[tuple[str, str], ...] = ()
    after: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def stage(self, asked: Asked) -> str:
        if asked.kind != "chat":
            return asked.kind
        return next((stage for marker, stage in self.stages if marker in asked.text), asked.kind)


ROUTE = ("expert at routing", "route")
GRADE = ("relevance of a retrieved document", "grade")
ADDRESSES = ("addresses / resolves", "address")
REWRITE = ("question re-writer", "rewrite")
JUDGED = {
    "route": (), "embed": ("route",), "grade": ("embed",), "search": ("route", "grade", "address"),
    "chat": ("embed", "grade", "search", "ground"), "ground": ("embed",), "address": ("ground",),
    "rewrite": ("grade", "ground", "address"),
}  # fmt: skip
"""Retrieve, grade each document, then write (chat), search or rewrite; is it grounded; does it address the question."""

RAG = Needs((ROUTE, GRADE, ("is grounded in", "ground"), ADDRESSES, REWRITE), JUDGED)
QUIZ = Needs((ROUTE, GRADE, ("FACTS", "ground"), ("grading a quiz", "address")), JUDGED)
DATA = Needs(after={"chat": (), "search": (), "embed": ()})
"""All data leave marks, and no reply decides whether another request is made."""
READ = Needs(after={"chat": ("embed",), "search": (), "embed": ()})
"""So too, but for documents that were found by vectors."""

NEEDS: dict[str, Needs] = {
    "crag": RAG,
    "adaptive_rag": RAG,
    "self_rag": RAG,
    "course_agentic_rag": RAG,
    "adaptive_rag_local": QUIZ,
    "mistral_adaptive_rag": QUIZ,
    "nvidia_agentic_rag": QUIZ,
    "crag_local": Needs((("grading a quiz", "grade"),), JUDGED),
    "rewoo": DATA,  # the plan's steps name the earlier steps they need, whose results hold marks
    "rag_research_agent": Needs(
        (("job is to classify", "route"), ("generate a plan", "plan"), ("search queries to search for", "queries")),
        {"route": (), "plan": ("route",), "queries": (), "embed": (), "chat": ("route", "embed")},
    ),
    "report_generator": DATA,  # each section is written from its title
    "deep_research": Needs(
        (("Rate the credibility", "rate"), ("Extract key entities", "extract")),
        {"rate": (), "extract": ("rate",), "search": (), "chat": ("rate",)},
    ),
    "academy_map_reduce": DATA,
    "academy_research_assistant": DATA,  # a question that says thanks ends an interview: the next step holds its mark
    "storm_interview": DATA,
    "rag_fusion": DATA,
    "stepback": DATA,
    "rewrite_retrieve_read": DATA,
    "hyde": READ,
    "rag_conversation": READ,
    "multi_query": READ,
    "skeleton_of_thought": DATA,
    "chain_of_note": DATA,
    "multi_index_fusion": READ,  # the question's vector waits for nothing
    "multi_index_router": Needs(after={"search": ("chat",), "chat": ()}),
    "research_assistant": DATA,
    "multiple_chains": DATA,
    "chain_of_verification": DATA,
    "ensemble": DATA,
    "self_consistency": DATA,
    "debate": DATA,
    "corrective_rag": Needs((("Grade this document", "grade"),), {"embed": (), "grade": ("embed",)}),
    "storm": DATA,
    "csv_crag": RAG,
    "onboarding_chatbot": Needs(
        (("relevant to the retrieved document", "grade"),), {"embed": (), "grade": ("embed",), "chat": ("grade",)}
    ),
    "multi_query_chatbot": READ,
    "next_question": READ,  # but its prompts hold the time of day, which nobody knows ahead
    "mixture_of_models": DATA,
    "research_team": DATA,
}
"""Of the others each request waits for all that had ended: agents, critics and chains of steps."""


def bound_s(name: str, asked: Sequence[Asked], seconds: float) -> float:
    """The time of the longest path, and of what the run spent while no request was under way."""
    needs = NEEDS.get(name, Needs())
    ends: list[float] = []
    for n, each in enumerate(asked):
        waited = max((ends[k] for k in depends(needs, asked, n)), default=0.0)
        ends.append(waited + each.end_s - each.start_s)
    return max(ends, default=0.0) + seconds - _busy_s(asked)


def depends(needs: Needs, asked: Sequence[Asked], at: int) -> set[int]:
    """The earlier requests that this one needs."""
    stage = needs.stage(asked[at])
    earlier = range(at)
    if stage not in needs.after:
        return {k for k in earlier if asked[k].end_s <= asked[at].start_s}
    uses = set(asked[at].uses)
    return {k for k in earlier if needs.stage(asked[k]) in needs.after[stage] or uses & set(asked[k].gives)}


def _busy_s(asked: Sequence[Asked]) -> float:
    """The time in which a request was under way."""
    total, until = 0.0, 0.0
    for each in sorted(asked, key=lambda a: a.start_s):
        total += max(0.0, each.end_s - max(each.start_s, until))
        until = max(until, each.end_s)
    return total
