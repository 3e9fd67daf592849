"""Components which call an LLM: any prompt, queries from a question, an answer from passages.

    Generation("Is this true? {claims}", to="verdicts", scope="claims")       once for each claim
    QueryExpansion(count=3)                                                     question -> queries
    Synthesis(mode="refine")                                                    question, best -> answer

A name in braces in a prompt is a value of the application, found by exact name; a list becomes one text, line by line.
The three modes of a synthesis over passages p1, p2, p3:

    one-shot    prompt(p1 p2 p3) -> answer
    tree        prompt(p1), prompt(p2), prompt(p3) -> combine_prompt(three answers) -> answer
    refine      prompt(p1) -> refine_prompt(p2, answer) -> refine_prompt(p3, answer) -> answer

A refine has a step for each possible passage (`passages`, or the most passages of the component before); steps without
a passage do not run. Source: arXiv 2407.00326, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from teola_plugin.graph import When
from teola_plugin.items import GRAMMARS
from teola_plugin.templates.flow import Component
from teola_plugin.templates.functions import GLUE
from teola_plugin.templates.options import Takes, choice, number, text
from teola_plugin.templates.part import Part
from teola_plugin.templates.values import Value

MODES = ("one-shot", "tree", "refine")

EXPAND = "Write {count} searches that would help to answer this question, one per line.\nQuestion: {question}\n"
ANSWER = "Answer the question from the context.\nQuestion: {question}\nContext: {context}\nAnswer: "
REFINE = (
    "Improve the answer to the question by the context, if that helps.\nQuestion: {question}\nContext: {context}\n"
    "Answer so far: {answer}\nBetter answer: "
)
COMBINE = "Answer the question from these answers to it.\nQuestion: {question}\nAnswers: {answers}\nAnswer: "


def Generation(
    prompt: str, to: str = "text", *, items: str | None = None, wanted: int | None = None,
    max_tokens: int | None = None, engine: str = "llm", scope: str = "request", splittable: bool = True,
    name: str = "", settings: Mapping[str, Any] | None = None,
) -> Component:  # fmt: skip
    """Return a component whose output `to` is the LLM's text; with an item grammar (`lines`, `json`, ...) a list.

    `wanted`: the number of leading items to use. `scope`: the list for each item of which the LLM is called once.
    `settings`: passed to the engine unchanged.
    """

    def rule(part: Part) -> None:
        written = part.generate(
            "prompt", "llm", named="text", items=part.option("items"), wanted=part.option("wanted"),
            max_tokens=part.option("max_tokens"), **(settings or {}),
        )  # fmt: skip
        part.give("text", written)

    return Component(
        name or (to if to != "text" else "generation"), rule, {}, {"text": to}, {"llm": engine},
        {"prompt": text(prompt), "items": choice(items, [None, *GRAMMARS]), "wanted": number(wanted, optional=True),
         "max_tokens": number(max_tokens, optional=True)},
        ("prompt",), scope=scope, splittable=splittable,
    )  # fmt: skip


def QueryExpansion(
    count: int = 3, *, prompt: str = EXPAND, items: str = "lines", max_tokens: int | None = 64, engine: str = "llm",
    scope: str = "request", splittable: bool = True, name: str = "expansion",
    settings: Mapping[str, Any] | None = None, takes: Mapping[str, str] | None = None,
    gives: Mapping[str, str] | None = None,
) -> Component:  # fmt: skip
    """Return a component which makes `count` queries of the question."""

    def rule(part: Part) -> None:
        queries = part.generate(
            "prompt", "llm", named="queries", items=part.option("items"), wanted=part.option("count"),
            max_tokens=part.option("max_tokens"), blanks={"count": part.option("count")}, **(settings or {}),
        )  # fmt: skip
        part.give("queries", queries)

    return Component(
        name, rule, {"question": Takes(("question",))}, {"queries": "queries"}, {"llm": engine},
        {"count": number(count, "num_queries"), "prompt": text(prompt, "expansion_prompt"),
         "items": choice(items, list(GRAMMARS)), "max_tokens": number(max_tokens, optional=True)},
        ("prompt",), ("count",), scope=scope, splittable=splittable,
    ).named(takes, gives)  # fmt: skip


def Synthesis(
    mode: str = "one-shot", *, prompt: str = ANSWER, refine_prompt: str = REFINE, combine_prompt: str = COMBINE,
    max_tokens: int | None = None, passages: int | None = None, engine: str = "llm", scope: str = "request",
    name: str = "synthesis", settings: Mapping[str, Any] | None = None, takes: Mapping[str, str] | None = None,
    gives: Mapping[str, str] | None = None,
) -> Component:  # fmt: skip
    """Return a component which answers the question from the passages. `passages`: the most passages of a refine."""

    def rule(part: Part) -> None:
        passages = part.flat(part.value("passages"), part.levels)
        more = {"max_tokens": part.option("max_tokens"), **(settings or {})}
        match part.option("mode"):
            case "one-shot":
                answer = part.generate("prompt", "llm", named="answer", blanks={"context": passages}, **more)
            case "tree":
                notes = part.generate(
                    "prompt", "llm", levels=passages.levels, named="partial_answers", blanks={"context": passages},
                    **more,
                )  # fmt: skip
                answer = part.generate("combine_prompt", "llm", named="answer", blanks={"answers": notes}, **more)
            case _:
                answer = _refined(part, passages, more)
        part.give("answer", answer)

    return Component(
        name, rule,
        {"question": Takes(("question",)), "passages": Takes(("best", "found", "results", "chunks"), 1)},
        {"answer": "answer"}, {"llm": engine},
        {
            "mode": choice(mode, MODES, "synthesis_mode"), "prompt": text(prompt, "answer_prompt"),
            "refine_prompt": text(refine_prompt), "combine_prompt": text(combine_prompt),
            "max_tokens": number(max_tokens, "answer_tokens", optional=True),
            "passages": number(passages, optional=True),
        },
        ("prompt", "refine_prompt", "combine_prompt"), ("context", "answer", "answers"), scope=scope,
    ).named(takes, gives)  # fmt: skip


def _refined(part: Part, passages: Value, more: Mapping[str, Any]) -> Value:
    steps = part.option("passages") or passages.most
    if steps is None:
        raise part.fault("passages", f"how many of {passages.name} a refine takes at most is not known; say passages=")
    if part.levels:
        raise part.fault("scope", "a refine runs once per query; use mode 'tree' or 'one-shot' for each item of a list")
    outer = part.draft.guard
    answers: list[Value] = []
    for at in range(steps):
        is_last = at == steps - 1
        if at:
            there = part.add("condition", passages, at, fn=part.draft.call("has_item", GLUE["has_item"]),
                             named=f"has_passage_{at + 1}")  # fmt: skip
            part.draft.guard = When(there.name)
        context = part.call("item", passages, at, named=f"passage_{at + 1}")
        blanks = {"context": context, **({"answer": answers[-1]} if answers else {})}
        named = "answer" if is_last and not answers else f"draft_{at + 1}"
        prompt = "refine_prompt" if at else "prompt"
        answers.append(part.generate(prompt, "llm", named=named, blanks=blanks, **more))
    part.draft.guard = outer
    return answers[0] if steps == 1 else part.last(answers, named="answer")
