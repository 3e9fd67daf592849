"""LangChain pipelines of real components on fake engines, and a record of the events they cause.

The language model answers with a digest of its prompt: one different character anywhere and the whole answer changes.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any
from uuid import UUID

import numpy as np
from langchain_chroma import Chroma
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.retrievers import ContextualCompressionRetriever, EnsembleRetriever
from langchain_classic.retrievers.multi_query import LineListOutputParser, MultiQueryRetriever
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.output_parsers import NumberedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import Runnable, RunnableBranch, RunnableLambda, RunnableParallel, RunnablePassthrough

from teola_plugin import pure, writes
from teola_plugin.engines import Completion
from teola_plugin.models.langchain import EngineChatModel, EngineEmbeddings, EngineLLM, EngineReranker
from tests.support.fakes import FakeEngine, says

_names = (f"langchain-{number}" for number in itertools.count())

TEXTS = [f"Note {i}: hive {i} is kept by {hashlib.sha256(str(i).encode()).hexdigest()[:8]}." for i in range(12)]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def answer(prompt: str) -> Completion:
    """Words that tell the prompt, as a list where one is asked for."""
    words = [digest(prompt)[i : i + 6] for i in range(0, 30, 6)]
    if "numbered" in prompt:
        return says("Here:\n" + "\n".join(f"{n}. {word} hive" for n, word in enumerate(words[:3], 1)))
    if "lines" in prompt:
        return says("\n".join([words[0], "", words[1], f"{words[2]} bees"]))
    return says(" ".join(words))


def vector(text: str) -> Any:
    return np.random.default_rng(int(digest(text)[:8], 16)).normal(size=8).astype(np.float32)


def score(pair: tuple[str, str]) -> float:
    return int(digest("|".join(pair))[:6], 16) / 0xFFFFFF


class Engines:
    """The fake engines of one pipeline, and LangChain models on them."""

    def __init__(self, llm: FakeEngine | None = None) -> None:
        self.llm = llm or FakeEngine(answer, name="llm", concurrent=True)
        self.embedder = FakeEngine(vector, name="embedder")
        self.reranker = FakeEngine(score, name="reranker")
        self.chat = EngineChatModel(engine=self.llm, max_tokens=None, temperature=None)
        self.completion = EngineLLM(engine=self.llm, max_tokens=None, temperature=None)
        self.embeddings = EngineEmbeddings(self.embedder)
        self.rerank = EngineReranker(engine=self.reranker, top_n=2)

    def store(self, name: str = "") -> Chroma:
        store = Chroma(name or next(_names), self.embeddings)
        store.reset_collection()
        store.add_texts(TEXTS, ids=[f"note-{i}" for i in range(len(TEXTS))])
        return store


def ask(template: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_template(template)


def format_docs(docs: list[Document]) -> str:
    return "\n\n".join(doc.page_content for doc in docs)


# --- pipelines -----------------------------------------------------------------------------------------------


def naive_rag(e: Engines) -> Runnable[Any, Any]:
    retriever = e.store("naive").as_retriever(search_kwargs={"k": 3})
    return (
        {"context": retriever | format_docs, "question": RunnablePassthrough()}
        | ask("Context: {context}\nQuestion: {question}")
        | e.chat
        | StrOutputParser()
    )


def advanced_rag(e: Engines) -> Runnable[Any, Any]:
    expand = PromptTemplate.from_template("Rewrite in lines: {question}") | e.completion | LineListOutputParser()
    queries = MultiQueryRetriever(
        retriever=e.store("advanced").as_retriever(search_kwargs={"k": 4}), llm_chain=expand, verbose=False
    )
    best = ContextualCompressionRetriever(base_retriever=queries, base_compressor=e.rerank)
    prompt = ChatPromptTemplate.from_messages(
        [("system", "You keep bees."), ("human", "{context}\n\nQuestion: {question}")]
    )
    return {"context": best | format_docs, "question": RunnablePassthrough()} | prompt | e.chat | StrOutputParser()


def assigns(e: Engines) -> Runnable[Any, Any]:
    retriever = e.store("assigns").as_retriever()
    return (
        RunnablePassthrough.assign(summary=ask("Sum up {question}") | e.chat | StrOutputParser())
        | RunnablePassthrough.assign(docs=(lambda x: x["question"]) | retriever)
        | RunnablePassthrough.assign(context=lambda x: format_docs(x["docs"]))
        | RunnablePassthrough.assign(translation=ask("Translate {question}") | e.chat | StrOutputParser())
        | ask("{summary} {context} {translation}")
        | e.chat.bind(stop=["\n\n"])
        | StrOutputParser()
    )


def branch(e: Engines) -> Runnable[Any, Any]:
    return (
        RunnableBranch(
            (lambda x: "code" in x["question"], ask("Write code: {question}") | e.chat),
            (
                ask("Is this {question}?") | e.chat | (lambda m: m.content.startswith("a")),
                ask("Short: {question}") | e.chat,
            ),
            ask("Answer {question}") | e.chat,
        )
        | StrOutputParser()
    )


@pure
def is_odd(said: str) -> bool:
    return int(digest(said)[:2], 16) % 2 == 1


def judged(e: Engines) -> Runnable[Any, Any]:
    """Retrieves from one store or the other, as the model says."""
    found = RunnableBranch(
        (
            ask("Odd? {question}") | e.chat | StrOutputParser() | is_odd,
            (lambda x: x["question"]) | e.store("odd").as_retriever(search_kwargs={"k": 2}) | format_docs,
        ),
        (lambda x: x["text"]) | e.store("even").as_retriever(search_kwargs={"k": 1}) | format_docs,
    )
    return RunnablePassthrough.assign(context=found) | ask("{context} {question}") | e.chat | StrOutputParser()


def map_reduce(e: Engines) -> Runnable[Any, Any]:
    def join(parts: list[str]) -> str:
        return "; ".join(parts)

    plan = ask("A numbered list of parts of {question}") | e.chat | NumberedListOutputParser()
    write = ask("Write about {part}") | e.chat | StrOutputParser()
    return plan | write.map() | join | ask("Sum up {parts}") | e.chat | StrOutputParser()


def map_of_records(e: Engines) -> Runnable[Any, Any]:
    facts = ask("Facts on {topic}") | e.completion
    return (
        RunnableLambda(lambda x: [{"topic": t} for t in x["question"].split()])
        | RunnablePassthrough.assign(facts=facts, size=lambda x: len(x["topic"])).map()
        | (lambda rows: max(rows, key=lambda row: row["size"]))
        | ask("{topic}: {facts}")
        | e.chat
    )


def retrieval_chain(e: Engines) -> Runnable[Any, Any]:
    stuff = create_stuff_documents_chain(e.chat, ask("Use {context} for {input}"))
    made: Runnable[Any, Any] = create_retrieval_chain(e.store("chain").as_retriever(), stuff)
    return made


def ensemble(e: Engines) -> Runnable[Any, Any]:
    store = e.store("ensemble")
    both = EnsembleRetriever(
        retrievers=[
            store.as_retriever(search_kwargs={"k": 3}),
            store.as_retriever(search_type="mmr", search_kwargs={"k": 2, "fetch_k": 6}),
        ],
        weights=[0.5, 0.5],
    )
    return both | format_docs | ask("Read {text}") | e.chat


def ingest(e: Engines) -> Runnable[Any, Any]:
    store = e.store("ingest")

    @writes("ingest")
    def load(x: dict[str, str]) -> dict[str, str]:
        store.add_texts([x["text"]], ids=["loaded"])
        return x

    return (
        RunnablePassthrough.assign(loaded=load, guess=ask("Guess {question}") | e.chat | StrOutputParser())
        | RunnablePassthrough.assign(docs=(lambda x: x["question"]) | store.as_retriever(search_kwargs={"k": 2}))
        | ask("{docs} {guess}")
        | e.chat
    )


def barrier(e: Engines) -> Runnable[Any, Any]:
    """An unknown function: models start at once, the search waits."""
    seen: list[Any] = []

    def unknown(x: dict[str, str]) -> str:
        seen.append(x)
        return x["question"].upper()

    return (
        RunnablePassthrough.assign(loud=unknown)
        | RunnableParallel(
            docs=(lambda x: x["question"]) | e.store("barrier").as_retriever(),
            echo=ask("Echo {loud}") | e.chat,
            other=ask("Other {question}") | e.chat,
        )
    )  # fmt: skip


PIPELINES: dict[str, Callable[[Engines], Runnable[Any, Any]]] = {
    f.__name__: f
    for f in (
        naive_rag, advanced_rag, assigns, branch, judged, map_reduce, map_of_records, retrieval_chain, ensemble, ingest,
        barrier,
    )
}  # fmt: skip


def input_of(name: str) -> Any:
    """What the pipeline is called with."""
    if name in ("naive_rag", "advanced_rag", "ensemble"):
        return "Who keeps hive 3?"
    if name == "retrieval_chain":
        return {"input": "Who keeps hive 3?"}
    return {"question": "Who keeps hive 3?", "text": "Hive 99 is empty."}


# --- events --------------------------------------------------------------------------------------------------


class Recorder(BaseCallbackHandler):
    """The tree of runs: name, kind, tags, metadata, outcome; siblings have no order."""

    run_inline = True

    def __init__(self) -> None:
        self.runs: dict[UUID, list[Any]] = {}
        self.children: dict[UUID | None, list[UUID]] = {}

    def _start(self, kind: str, serialized: Any, given: Any, **kwargs: Any) -> None:
        metadata = {k: v for k, v in (kwargs.get("metadata") or {}).items() if k != "ls_integration"}
        self.runs[kwargs["run_id"]] = [
            kind,
            kwargs.get("name"),
            sorted(kwargs.get("tags") or ()),
            metadata,
            plain_text(given),
        ]
        self.children.setdefault(kwargs.get("parent_run_id"), []).append(kwargs["run_id"])

    def _end(self, kind: str, value: Any, **kwargs: Any) -> None:
        self.runs[kwargs["run_id"]].append((kind, plain_text(value)))

    def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
        self._start("chain", serialized, inputs, **kwargs)

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self._start("chat", serialized, messages, **kwargs)

    def on_llm_start(self, serialized: Any, prompts: Any, **kwargs: Any) -> None:
        self._start("llm", serialized, prompts, **kwargs)

    def on_retriever_start(self, serialized: Any, query: Any, **kwargs: Any) -> None:
        self._start("retriever", serialized, query, **kwargs)

    def on_tool_start(self, serialized: Any, input_str: Any, **kwargs: Any) -> None:
        self._start("tool", serialized, kwargs.get("inputs"), **{"name": (serialized or {}).get("name"), **kwargs})

    def on_chain_end(self, outputs: Any, **kwargs: Any) -> None:
        self._end("ended", outputs, **kwargs)

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self._end("ended", [[g.text for g in gs] for gs in response.generations], **kwargs)

    def on_retriever_end(self, documents: Any, **kwargs: Any) -> None:
        self._end("ended", documents, **kwargs)

    def on_tool_end(self, output: Any, **kwargs: Any) -> None:
        self._end("ended", output, **kwargs)

    def on_tool_error(self, error: BaseException, **kwargs: Any) -> None:
        self._end("failed", error, **kwargs)

    def on_chain_error(self, error: BaseException, **kwargs: Any) -> None:
        self._end("failed", error, **kwargs)

    def on_llm_error(self, error: BaseException, **kwargs: Any) -> None:
        self._end("failed", error, **kwargs)

    def on_retriever_error(self, error: BaseException, **kwargs: Any) -> None:
        self._end("failed", error, **kwargs)

    def tree(self, parent: UUID | None = None) -> list[Any]:
        """Each run with its children, siblings sorted."""
        nodes = [[*self.runs[run], self.tree(run)] for run in self.children.get(parent, [])]
        return sorted(nodes, key=repr)


def plain_text(value: Any) -> str:
    """A value's content without the ids that differ from run to run."""
    match value:
        case dict():
            return "{" + ", ".join(f"{k}: {plain_text(v)}" for k, v in sorted(value.items())) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(plain_text, value)) + "]"
        case BaseException():
            return f"{type(value).__name__}({value})"
        case _ if hasattr(value, "content"):
            return f"{value.type}({value.content!r})"
        case _ if hasattr(value, "messages"):
            return plain_text(value.messages)
        case _:
            return repr(value)
