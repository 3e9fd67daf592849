"""One application, as a graph and as a LangChain pipeline, on engines that really wait; and how many of it at once.

Three notes on a question are written side by side while something is found for it, and then the answer is written. All
texts follow from the question, so that an answer that is somebody else's shows.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any
from zlib import crc32

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableParallel
from langchain_core.vectorstores import InMemoryVectorStore

from teola_plugin import optimize, runtime, terms
from teola_plugin.engines import EngineSpec
from teola_plugin.errors import DeadlineExceeded
from teola_plugin.graph import parse
from teola_plugin.models.langchain import EngineChatModel, EngineEmbeddings
from teola_plugin.plan import make_plan
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM, Sleep
from teola_plugin.runtime.engines.simulated_text import Writer
from teola_plugin.runtime.session.graph_runner import run_query
from teola_plugin.runtime.session.plan_executor import Prepared
from teola_plugin.tenancy import ANYBODY, Terms

IS_FULL = os.environ.get("TEOLA_CHAOS") == "full"

NOTES = 3
ITEMS = NOTES + 1
"""Texts that the LLM writes for one query."""

TEXTS = ["A lane is one engine.", "A debt ends once.", "Nobody waits for ever.", "Results retire in order."]
SLOTS = 8
TOKENS = 16
STEP_S = 0.015

GRAPH = """
inputs(question)
vector = embedding(question) @ embedder
a_kv = prefilling('Note first: ', question) @ llm
a = decoding(a_kv, max_tokens=16, temperature=0) @ llm
b_kv = prefilling('Note second: ', question) @ llm
b = decoding(b_kv, max_tokens=16, temperature=0) @ llm
c_kv = prefilling('Note third: ', question) @ llm
c = decoding(c_kv, max_tokens=16, temperature=0) @ llm
kv = prefilling('Answer from: ', a, ' ', b, ' ', c, ' and ', vector) @ llm
answer = decoding(kv, max_tokens=16, temperature=0) @ llm
outputs(answer)
"""


@dataclass(frozen=True)
class Engines:
    """What all queries share."""

    llm: ProfileLLM
    embedder: ProfileEmbedding


def make_engines(step_s: float = STEP_S, *, reply: Writer | None = None, sleep: Sleep = asyncio.sleep) -> Engines:
    """`reply`: what the LLM writes, by default `write`. `sleep`: how it waits."""
    profile = LlmProfile(prefill=Profile.affine(step_s / 10), step=Profile.affine(step_s))
    llm = ProfileLLM("llm", profile, max_items=SLOTS, reply=reply or write, sleep=sleep)
    return Engines(llm, ProfileEmbedding(16, Profile.affine(0.002 if step_s else 0.0)))


def write_much(prompt: str, settings: Mapping[str, Any]) -> str:
    """As many words as may be."""
    return " ".join(f"{prompt[:4].lower()}{n}" for n in range(settings["max_tokens"]))


def write(prompt: str, settings: Mapping[str, Any]) -> str:
    """From 2 to 7 words, so that queries do not keep in step with one another."""
    number = crc32(prompt.encode())
    return " ".join(f"{prompt[:4].lower()}{number >> shift & 255}" for shift in range(2 + number % 6))


Answer = Callable[[str, Terms], Awaitable[str]]
"""One query. Raises: Overloaded if it is not let in."""


def as_graph(engines: Engines) -> Answer:
    """Let in as the pipelines of frameworks are, and run on the host's loop."""
    specs = {"llm": EngineSpec("engine", engines.llm, "llm"), "embedder": EngineSpec("engine", engines.embedder, "e")}
    prepared = Prepared(make_plan(parse(GRAPH)), {}, specs)
    host = runtime.host

    async def answer(question: str, on: Terms) -> str:
        host.admission.enter(on, time.monotonic())
        try:
            ran = run_query(host, prepared, {"question": question}, terms=on)
            outputs = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ran, host.loop))
        finally:
            host.admission.leave(on, time.monotonic())
        return str(outputs["answer"])

    return answer


def as_chain(engines: Engines, *, is_original: bool = False) -> Answer:
    """As users run it: in an event loop of their own."""
    pipeline = chain(engines) if is_original else optimize(chain(engines))

    async def answer(question: str, on: Terms) -> str:
        left_s = None if on.deadline_s == math.inf else on.deadline_s - time.monotonic()
        if left_s is not None and left_s <= 0:  # a busy machine was late
            raise DeadlineExceeded("before the call")
        with terms(tenant=on.tenant, deadline_s=left_s):
            return str(await pipeline.ainvoke({"question": question}))

    return answer


def chain(engines: Engines) -> Any:
    """The pipeline as a user writes it. Takes `{"question": ...}`."""
    llm = EngineChatModel(engine=engines.llm, max_tokens=TOKENS)
    store = InMemoryVectorStore.from_texts(TEXTS, EngineEmbeddings(engine=engines.embedder))

    def note(which: str) -> Any:
        return ChatPromptTemplate.from_template(f"Note {which}: {{question}}") | llm | StrOutputParser()

    found = itemgetter("question") | store.as_retriever(search_kwargs={"k": 1}) | (lambda found: found[0].page_content)
    return (
        RunnableParallel(a=note("first"), b=note("second"), c=note("third"), found=found)
        | ChatPromptTemplate.from_template("Answer from: {a} {b} {c} and {found}")
        | llm
        | StrOutputParser()
    )


FORMS: dict[str, Callable[[Engines], Answer]] = {"graph": as_graph, "LangChain": as_chain}


async def expected(form: str, questions: Iterable[str]) -> dict[str, str]:
    """What has to come out, from engines that do not wait and with nothing run ahead."""
    engines = make_engines(0.0)
    ask = as_graph(engines) if form == "graph" else as_chain(engines, is_original=True)
    return {question: await ask(question, ANYBODY) for question in questions}
