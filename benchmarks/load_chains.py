"""Applications of the load benchmark in LangChain, on the engines of the demo."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_classic.retrievers.multi_query import LineListOutputParser
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough
from load_runs import PROFILE_S, Measured, Meter, Way, measured
from simulator.arrivals import Arrival, drive

from teola_plugin import optimize, runtime
from teola_plugin.api import optimized
from teola_plugin.demo.corpus import QUESTIONS, passages
from teola_plugin.demo.langchain_kit import LangChainKit
from teola_plugin.demo.langchain_rag import ANSWER, QUERIES, REFINE
from teola_plugin.demo.parts import Sizes, llm_parts
from teola_plugin.passes import DEFAULT
from teola_plugin.profiling import measure
from teola_plugin.runtime.engines import engine_for

MIX = {"naive RAG": 3, "advanced RAG": 1, "two views": 2, "chat": 4}
CHAT = ChatPromptTemplate.from_template("You are a friendly assistant.\n\n{question}")
SUMMARY = ChatPromptTemplate.from_template("What is known about: {question}")
CRITIQUE = ChatPromptTemplate.from_template("What is doubtful about: {question}")
VIEWS = ChatPromptTemplate.from_template("{question}\n\nKnown: {known}\n\nDoubtful: {doubtful}")


class Chains:
    """Implements `load_runs.World`, in real time: all runs share the engines."""

    has_original = True

    def __init__(self, kind: str, apps: Sequence[str]) -> None:
        parts = llm_parts(kind)
        if kind == "real":
            parts.llm.profile = measure(parts.llm, budget_s=PROFILE_S)
        kit = LangChainKit(parts, Sizes(passages(64)), "load")
        chains = {
            "naive RAG": kit.pipeline("naive"),
            "advanced RAG": advanced(kit),
            "two views": two_views(kit.llm),
            "chat": CHAT | kit.llm | StrOutputParser(),
        }
        self.mix: Mapping[str, float] = {name: n for name, n in MIX.items() if any(part in name for part in apps)}
        self._chains = {name: chains[name] for name in self.mix}
        self._twins = {
            has_passes: {name: optimize(chain, passes=passes) for name, chain in self._chains.items()}
            for has_passes, passes in ((True, DEFAULT), (False, ()))
        }
        specs = [s for twin in self._twins[True].values() for s in optimized(twin).prepared.engines.values()]
        self._meters = [Meter(engine) for engine in {id(e): e for e in map(engine_for, specs)}.values()]
        for name, chain in self._chains.items():
            chain.invoke({"question": f"{name}?"})  # what is loaded and compiled at first use

    def measure(self, way: Way, arrivals: Sequence[Arrival], run: int) -> Measured:
        runtime.host.use(way.policy or "to")
        chains = self._twins[way.has_passes] if way.policy else self._chains

        def ask(arrival: Arrival) -> Any:
            question = f"{QUESTIONS[arrival.number % len(QUESTIONS)]} ({run}-{arrival.number})"
            return chains[arrival.app].ainvoke({"question": question})

        return asyncio.run(measured(drive(arrivals, ask), self._meters))


def advanced(kit: LangChainKit) -> Runnable[dict[str, str], str]:
    """Three searches are written; of what they find, the best passages are answered from one after the other."""
    found = ContextualCompressionRetriever(
        base_compressor=kit.reranker,
        base_retriever=MultiQueryRetriever(
            retriever=kit.store.as_retriever(search_kwargs={"k": 8}),
            llm_chain=QUERIES | kit.writer | LineListOutputParser(),
        ),
    )
    return (
        RunnablePassthrough.assign(passages=itemgetter("question") | found)
        | RunnablePassthrough.assign(passage=lambda x: x["passages"][0].page_content)
        | RunnablePassthrough.assign(answer=ANSWER | kit.llm | StrOutputParser())
        | RunnablePassthrough.assign(passage=lambda x: x["passages"][1].page_content)
        | REFINE
        | kit.llm
        | StrOutputParser()
    )


def two_views(llm: Runnable[Any, Any]) -> Runnable[dict[str, str], str]:
    """Two steps that stand one after the other, and need not."""
    return (
        RunnablePassthrough.assign(known=SUMMARY | llm | StrOutputParser())
        | RunnablePassthrough.assign(doubtful=CRITIQUE | llm | StrOutputParser())
        | VIEWS
        | llm
        | StrOutputParser()
    )
