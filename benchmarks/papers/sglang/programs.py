"""SGLang's programs as a LangChain user writes them; nothing in here knows of `optimize`.

    fork per branch    RunnablePassthrough.assign(one=...) | RunnablePassthrough.assign(two=...) | merge      in turn
                       RunnablePassthrough.assign(one=..., two=...) | merge                                   by hand

Steps that stand in turn and need not are what code that grew looks like; whoever knows LangChain well puts them into
one `assign`, which runs them side by side. Both are here: the second is the best that the framework does by itself.
Prompts begin with what their branches share, as SGLang's do.

Sizes (branches, dimensions, turns, tokens to generate) are those of the programs in SGLang's repository; texts are
passages of the standard library's documentation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.tools import tool

from teola_plugin import reads
from teola_plugin.demo.corpus import QUESTIONS, passages
from teola_plugin.runtime.engines.simulated_text import complete

Form = Literal["in turn", "by hand"]
Given = Mapping[str, Any]
Say = Callable[..., BaseChatModel]
"""say(max_tokens, shape='') makes the model that writes so many tokens, or a list in that shape."""

CHAINS = 5
BRANCHES = 3
DIMENSIONS = ("content", "organization", "argument", "clarity", "grammar", "referencing")
DOCUMENTS = 4
SUBJECTS = 57
"""Of MMLU, each with examples of its own."""

TURNS = 4
LONG, MIDDLE, SHORT = 256, 64, 16
"""Tokens of an answer: of a chain of thought, of a note or a reply, of a choice."""

LOOK_UP_S = 0.5
"""Of the agent's tool: assumed, as for the searches of the other figures."""


CACHE = "the prefix cache itself (RadixAttention), which vLLM has today"


def _ask(template: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_template(template)


async def _once(pipeline: Runnable[Any, Any], given: Given) -> Any:
    return await pipeline.ainvoke(given)


@dataclass(frozen=True, slots=True)
class Program:
    """`build` makes the pipeline, `given` the input of query number n, `call` runs one query. A user has `rounds`.

    `forks`: how many branches run side by side at most. `kernel`: what SGLang's own gain rests on where that is none of
    scheduling. `published`: of this program, what the paper says in words.
    """

    build: Callable[[Say, Form], Runnable[Any, Any]]
    given: Callable[[int], Given]
    forks: int = 1
    rounds: int = 4
    kernel: str = ""
    published: str = "only in a plot"
    call: Callable[[Runnable[Any, Any], Given], Awaitable[Any]] = _once


def fork(steps: Mapping[str, Runnable[Any, Any]], form: Form) -> Runnable[Any, Any]:
    """Steps that do not need one another, one after the other or side by side."""
    if form == "by hand":
        return RunnablePassthrough.assign(**steps)
    first, *others = [RunnablePassthrough.assign(**{name: step}) for name, step in steps.items()]
    chain: Runnable[Any, Any] = first
    for step in others:
        chain = chain | step
    return chain


def reply(prompt: str, settings: Mapping[str, Any]) -> str:
    """What the engine writes: the agent's thoughts (of 64 tokens: `calls:64`) and calls, else what such engines say."""
    layout, _, count = str(settings.get("shape", "")).partition(":")
    if layout != "calls":
        return str(complete(prompt, settings))
    done = prompt.count("Tool: ")
    topics = ("heaps", "queues") if done < 2 else ("schedulers",) if done < 3 else ()
    calls = [f'<tool_call>{{"name": "look_up", "arguments": {{"topic": "{each}"}}}}</tool_call>' for each in topics]
    return "\n".join([str(complete(prompt, {"max_tokens": int(count)})), *calls])


# --- texts -----------------------------------------------------------------------------------------------------------


def _text(number: int, count: int) -> str:
    """So many passages, about 80 tokens each; others for another number."""
    found = passages(256)
    return "\n\n".join(found[(number * count + n) % len(found)].text for n in range(count))


def _question(number: int) -> str:
    return f"{QUESTIONS[number % len(QUESTIONS)]} ({number})"


# --- programs --------------------------------------------------------------------------------------------------------


def _multi_chain(say: Say, form: Form) -> Runnable[Any, Any]:
    attempt = "Solve the question step by step.\n\n{text}\n\nQuestion: {question}\n\nAttempt "
    steps = {f"chain_{n}": _ask(f"{attempt}{n}:") | say(LONG) | StrOutputParser() for n in range(1, CHAINS + 1)}
    listed = "\n\n".join(f"{{{name}}}" for name in steps)
    vote = _ask(f"Which answer do most of these give to: {{question}}\n\n{listed}")
    return fork(steps, form) | vote | say(MIDDLE) | StrOutputParser()


def _tree_of_thought(say: Say, form: Form) -> Runnable[Any, Any]:
    """Each branch goes on from its own plan: plan, answer, reflection; then the best one is chosen."""

    def branch(number: int) -> Runnable[Any, Any]:
        plan = f"Plan how to solve the question, concisely.\n\n{{text}}\n\nQuestion: {{question}}\n\nPlan {number}:"
        answer = f"{plan} {{plan_{number}}}\n\nNow solve it by this plan:"
        score = f"{answer} {{answer_{number}}}\n\nCheck it, and score it from 1 to 5:"
        return (
            RunnablePassthrough.assign(**{f"plan_{number}": _ask(plan) | say(LONG) | StrOutputParser()})
            | RunnablePassthrough.assign(**{f"answer_{number}": _ask(answer) | say(LONG) | StrOutputParser()})
            | _ask(score)
            | say(LONG)
            | StrOutputParser()
        )

    steps = {f"thought_{n}": branch(n) for n in range(1, BRANCHES + 1)}
    listed = "\n\n".join(f"{{{name}}}" for name in steps)
    return fork(steps, form) | _ask(f"The best of:\n\n{listed}") | say(MIDDLE) | StrOutputParser()


def _judge(say: Say, form: Form) -> Runnable[Any, Any]:
    start = "Judge this article rigorously, as an impartial judge.\n\n{text}\n\nJudge only its "
    steps = {name: _ask(f"{start}{name}:") | say(LONG) | StrOutputParser() for name in DIMENSIONS}
    listed = "\n".join(f"{name}: {{{name}}}" for name in steps)
    return fork(steps, form) | _ask(f"{{text}}\n\n{listed}\n\nScore from 1 to 10:") | say(2) | StrOutputParser()


def _documents(say: Say, form: Form) -> Runnable[Any, Any]:
    start = "Note what matters for the question.\n\nQuestion: {question}\n\nDocument:\n\n"
    steps = {
        f"note_{n}": _ask(f"{start}{{document_{n}}}") | say(MIDDLE) | StrOutputParser() for n in range(1, DOCUMENTS + 1)
    }
    listed = "\n\n".join(f"{{{name}}}" for name in steps)
    answer = _ask(f"Answer from the notes.\n\nQuestion: {{question}}\n\nNotes:\n\n{listed}")
    return fork(steps, form) | answer | say(MIDDLE) | StrOutputParser()


def _few_shot(say: Say, form: Form) -> Runnable[Any, Any]:
    return _ask("{examples}\n\nQuestion: {question}\nAnswer:") | say(SHORT) | StrOutputParser()


def _chat(say: Say, form: Form) -> Runnable[Any, Any]:
    prompt = ChatPromptTemplate.from_messages([
        ("system", "You are a friendly assistant."), MessagesPlaceholder("history"), ("human", "{text}"),
    ])  # fmt: skip
    return prompt | say(MIDDLE) | StrOutputParser()


async def _talk(pipeline: Runnable[Any, Any], given: Given) -> Any:
    """The whole conversation: each turn is a call with all that was said before."""
    history: list[Any] = []
    for text in given["texts"]:
        said = await pipeline.ainvoke({"history": list(history), "text": text})
        history += [HumanMessage(text), AIMessage(said)]
    return [message.content for message in history]


def _json(say: Say, form: Form) -> Runnable[Any, Any]:
    return _ask("List what this describes, as JSON.\n\n{text}") | say(LONG, "json:12") | JsonOutputParser()


def _react(say: Say, form: Form) -> Runnable[Any, Any]:
    @tool
    @reads("library")
    async def look_up(topic: str) -> str:
        """The documentation on a topic."""
        await asyncio.sleep(LOOK_UP_S)
        return _text(len(topic), 3)

    return create_agent(say(LONG, f"calls:{MIDDLE}"), [look_up], system_prompt="Look things up before you answer.")


async def _act(pipeline: Runnable[Any, Any], given: Given) -> Any:
    """What was said and found; ids are new in each run."""
    done = await pipeline.ainvoke(dict(given))
    return [(message.type, str(message.content)) for message in done["messages"]]


def _examples(number: int) -> Given:
    subject = random.Random(number).randrange(SUBJECTS)
    return {"examples": f"Subject {subject}.\n\n{_text(subject, 6)}", "question": _question(number)}


def _documents_of(number: int) -> Given:
    documents = {f"document_{n}": _text(number + n, 5) for n in range(1, DOCUMENTS + 1)}
    return {"question": _question(number), **documents}


def _conversation(number: int) -> Given:
    return {"texts": [f"{_text(number + 64 * turn, 3)} ({number})" for turn in range(TURNS)]}


PROGRAMS = {
    "multi-chain reasoning": Program(
        _multi_chain, lambda n: {"question": _question(n), "text": _text(n, 3)}, forks=CHAINS
    ),
    "tree of thought": Program(
        _tree_of_thought, lambda n: {"question": _question(n), "text": _text(n, 3)}, forks=BRANCHES
    ),
    "LLM judge": Program(_judge, lambda n: {"text": f"{_text(n, 6)} ({n})"}, forks=len(DIMENSIONS)),
    "multi-document QA": Program(
        _documents, _documents_of, forks=DOCUMENTS,
        kernel="joining the documents' KV caches, which are not computed again",
    ),
    "few-shot": Program(_few_shot, _examples, rounds=8, kernel=CACHE),
    "multi-turn chat": Program(_chat, _conversation, rounds=2, kernel=CACHE, call=_talk),
    "JSON decoding": Program(
        _json, lambda n: {"text": f"{_text(n, 3)} ({n})"},
        kernel="jump-forward decoding: several tokens a step where the grammar leaves no choice",
    ),
    "ReAct": Program(_react, lambda n: {"messages": [HumanMessage(_question(n), id=str(n))]}, kernel=CACHE, call=_act),
}  # fmt: skip
