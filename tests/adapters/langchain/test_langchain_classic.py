"""Pieces of langchain-classic: what runs ahead of them, and that nobody can tell."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from langchain_classic.chains import create_history_aware_retriever, create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.chains.combine_documents.map_reduce import MapReduceDocumentsChain
from langchain_classic.chains.combine_documents.map_rerank import MapRerankDocumentsChain
from langchain_classic.chains.combine_documents.reduce import ReduceDocumentsChain
from langchain_classic.chains.combine_documents.refine import RefineDocumentsChain
from langchain_classic.chains.combine_documents.stuff import StuffDocumentsChain
from langchain_classic.chains.llm import LLMChain
from langchain_classic.memory import SimpleMemory
from langchain_classic.output_parsers import RegexParser
from langchain_classic.retrievers import (
    EnsembleRetriever,
    MergerRetriever,
    ParentDocumentRetriever,
    SelfQueryRetriever,
)
from langchain_classic.retrievers.multi_query import LineListOutputParser, MultiQueryRetriever
from langchain_classic.storage import InMemoryStore
from langchain_community.query_constructors.chroma import ChromaTranslator
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.runnables.router import RouterRunnable
from langchain_core.structured_query import Comparator, Comparison, StructuredQuery
from langchain_openai import ChatOpenAI, OpenAI
from langchain_text_splitters import CharacterTextSplitter

from teola_plugin import optimize, runtime
from teola_plugin.adapters.langchain import adapter
from teola_plugin.adapters.langchain.classic import without_stop
from tests.adapters.langchain.test_langchain_differential import FORMS, call, report_of, run
from tests.adapters.langchain.test_langchain_trace import FOLDER, shown
from tests.runtime.hosts.test_runtime import gated
from tests.support.langchain_world import TEXTS, Engines, answer, ask, format_docs

pytestmark = [
    pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The a?apply_and_parse method is deprecated"),
    pytest.mark.filterwarnings("ignore:Relevance scores must be between"),
]

DOCS = [Document(text, metadata={"number": number}) for number, text in enumerate(TEXTS[:4])]


# --- retrievers ------------------------------------------------------------------------------------------------------


def merged(e: Engines) -> MergerRetriever:
    store = e.store()
    return MergerRetriever(
        retrievers=[
            store.as_retriever(search_kwargs={"k": 3}),
            store.as_retriever(search_type="mmr", search_kwargs={"k": 2, "fetch_k": 9, "lambda_mult": 0.1}),
        ]
    )


def merger(e: Engines) -> Runnable[Any, Any]:
    return merged(e) | format_docs | ask("Read {text}") | e.chat


def queries_merged(e: Engines) -> Runnable[Any, Any]:
    """A merger inside a map."""
    expand = PromptTemplate.from_template("Rewrite in lines: {question}") | e.completion | LineListOutputParser()
    return MultiQueryRetriever(retriever=merged(e), llm_chain=expand, verbose=False) | format_docs


def queries_and_question(e: Engines) -> Runnable[Any, Any]:
    """They find the same documents, and the question itself is searched last."""
    expand = PromptTemplate.from_template("Rewrite in lines: {question}") | e.completion | LineListOutputParser()
    search = e.store().as_retriever(search_kwargs={"k": 3})
    queries = MultiQueryRetriever(retriever=search, llm_chain=expand, include_original=True, verbose=False)
    return queries | format_docs | ask("Read {text}") | e.chat


def weighted(e: Engines) -> Runnable[Any, Any]:
    """Two stores, of which the second counts more."""
    retrievers = [e.store().as_retriever(search_kwargs={"k": k}) for k in (3, 5)]
    both = EnsembleRetriever(retrievers=retrievers, weights=[0.1, 0.9])
    return both | format_docs | ask("Read {text}") | e.chat


def history_aware(e: Engines) -> Runnable[Any, Any]:
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Rephrase."), MessagesPlaceholder("chat_history"), ("human", "{input}")]
    )
    return create_history_aware_retriever(e.chat, e.store().as_retriever(), prompt)


def conversation(e: Engines) -> Runnable[Any, Any]:
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Use {context}"), MessagesPlaceholder("chat_history", optional=True), ("human", "{input}")]
    )
    made: Runnable[Any, Any] = create_retrieval_chain(history_aware(e), create_stuff_documents_chain(e.chat, prompt))
    return made


def parents(e: Engines, search_type: str = "similarity", **search_kwargs: Any) -> ParentDocumentRetriever:
    store = e.store()
    store.reset_collection()
    retriever = ParentDocumentRetriever(
        vectorstore=store,
        docstore=InMemoryStore(),
        child_splitter=CharacterTextSplitter(separator=" ", chunk_size=20, chunk_overlap=0),
        search_type=search_type,
        search_kwargs={"k": 3, **search_kwargs},
    )
    retriever.add_documents(DOCS, ids=[f"parent-{number}" for number in range(len(DOCS))])
    return retriever


def parent_documents(e: Engines) -> Runnable[Any, Any]:
    return parents(e) | format_docs | ask("Read {text}") | e.chat


class Shown(StructuredQuery):
    def __repr__(self) -> str:
        return f"Shown({self.query!r})"


def parents_of_different_pieces(e: Engines) -> Runnable[Any, Any]:
    return parents(e, "mmr", fetch_k=6) | format_docs


def parents_of_near_pieces(e: Engines) -> Runnable[Any, Any]:
    return parents(e, "similarity_score_threshold", score_threshold=-100.0) | format_docs


def parents_for_queries(e: Engines) -> Runnable[Any, Any]:
    """In a map, where nobody can tell whose documents they are."""
    expand = PromptTemplate.from_template("Rewrite in lines: {question}") | e.completion | LineListOutputParser()
    queries = MultiQueryRetriever(retriever=MergerRetriever(retrievers=[parents(e)]), llm_chain=expand, verbose=False)
    return queries | format_docs | ask("Read {text}") | e.chat


def self_query(e: Engines) -> Runnable[Any, Any]:
    def structured(words: str) -> StructuredQuery:
        above = Comparison(comparator=Comparator.GT, attribute="number", value=1)
        return Shown(query=words, filter=above, limit=2)

    store = e.store()
    store.add_documents(DOCS, ids=[f"numbered-{number}" for number in range(len(DOCS))])
    retriever = SelfQueryRetriever(
        vectorstore=store,
        llm_chain=ask("Search for {query}") | e.chat | StrOutputParser() | structured,
        structured_query_translator=ChromaTranslator(),
    )
    return retriever | format_docs | ask("Read {text}") | e.chat


# --- chains of documents ---------------------------------------------------------------------------------------------


def asking(e: Engines, template: str, model: Any = None, **fields: Any) -> LLMChain:
    return LLMChain(llm=model or e.chat, prompt=PromptTemplate.from_template(template, **fields))


def stuff(e: Engines) -> StuffDocumentsChain:
    return StuffDocumentsChain(
        llm_chain=asking(e, "Combine {context} for {question}"), document_variable_name="context"
    )


def map_reduce(e: Engines, model: Any = None) -> MapReduceDocumentsChain:
    return MapReduceDocumentsChain(
        llm_chain=asking(e, "Sum up {context} for {question}", model),
        document_variable_name="context",
        reduce_documents_chain=stuff(e),
        return_intermediate_steps=True,
    )


def map_reduce_completions(e: Engines) -> MapReduceDocumentsChain:
    return map_reduce(e, e.completion)


def map_reduce_bound(e: Engines) -> MapReduceDocumentsChain:
    return map_reduce(e, e.chat.bind(max_tokens=7))


def map_reduce_failing(e: Engines) -> MapReduceDocumentsChain:
    """The model fails for one of the documents."""

    def answer_most(prompt: str) -> Any:
        if DOCS[2].page_content in prompt:
            raise ValueError("no bees here")
        return answer(prompt)

    e.llm.answer = answer_most
    return map_reduce(e)


def map_collapse(e: Engines) -> MapReduceDocumentsChain:
    """What the map step wrote is too long for one prompt."""
    e.chat.custom_get_token_ids = lambda text: list(range(len(text.split())))
    made = map_reduce(e)
    made.reduce_documents_chain = ReduceDocumentsChain(combine_documents_chain=stuff(e), token_max=16)
    return made


def refine(e: Engines) -> RefineDocumentsChain:
    return RefineDocumentsChain(
        initial_llm_chain=asking(e, "Answer {question} from {context}"),
        refine_llm_chain=asking(e, "Refine {before} of {question} with {context}"),
        document_variable_name="context",
        initial_response_name="before",
        document_prompt=PromptTemplate.from_template("{number}: {page_content}"),
    )


def map_rerank(e: Engines) -> MapRerankDocumentsChain:
    parser = RegexParser(regex=r"(?:[^1-9]*)([1-9]).*?(\w*)$", output_keys=["score", "answer"])
    return MapRerankDocumentsChain(
        llm_chain=asking(e, "Rate {context} for {question}", output_parser=parser),
        document_variable_name="context",
        rank_key="score",
        answer_key="answer",
        metadata_keys=["number"],
    )


def map_reduce_of_a_search(e: Engines) -> Runnable[Any, Any]:
    return (
        {"input_documents": e.store().as_retriever(), "question": RunnablePassthrough()}
        | map_reduce(e)
        | (lambda x: x["output_text"])
        | ask("Translate {text}")
        | e.chat
    )


def map_rerank_mapped(e: Engines) -> Runnable[Any, Any]:
    return RunnableLambda(lambda x: [x, {**x, "question": "Why?"}]) | map_rerank(e).map()


def assigned(e: Engines) -> Runnable[Any, Any]:
    """Each of the chains has the same input and could start at once."""
    return (
        RunnablePassthrough.assign(a=map_reduce(e))
        | RunnablePassthrough.assign(b=refine(e))
        | RunnablePassthrough.assign(c=map_rerank(e))
        | RunnablePassthrough.assign(d=stuff(e))
        | RunnablePassthrough.assign(e=asking(e, "Just {question}"))
        | RunnablePassthrough.assign(f=ask("Read {a} {b} {c} {d} {question}") | e.chat)
    )


def with_metadata(e: Engines) -> MapReduceDocumentsChain:
    """The prompt that combines the answers shows what the documents say of themselves."""
    chain: Any = map_reduce(e)
    chain.reduce_documents_chain.document_prompt = PromptTemplate.from_template("{number}: {page_content}")
    return chain  # type: ignore[no-any-return]


def with_arguments(e: Engines) -> Runnable[Any, Any]:
    """One chain has arguments for its model."""
    chain = asking(e, "Just {question}")
    chain.llm_kwargs = {"seed": 3}
    return RunnablePassthrough.assign(a=chain) | RunnablePassthrough.assign(b=asking(e, "Only {question}"))


def with_stop_words(e: Engines) -> Runnable[Any, Any]:
    """What stands before a chain makes its stop words."""
    chains = RunnablePassthrough.assign(a=asking(e, "Just {question}"), b=asking(e, "Only {question}"))
    return RunnablePassthrough.assign(stop=lambda x: ["hive", x["question"]]) | chains


def with_a_memory(e: Engines) -> Runnable[Any, Any]:
    chain = asking(e, "Just {question} of {hive}")
    chain.memory = SimpleMemory(memories={"hive": "hive 4"})
    return RunnablePassthrough.assign(a=chain) | RunnablePassthrough.assign(b=asking(e, "Only {question}"))


# --- runnables -------------------------------------------------------------------------------------------------------


def router(e: Engines) -> Runnable[Any, Any]:
    return RouterRunnable({
        "long": ask("At length: {question}") | e.chat | StrOutputParser(),
        "short": {"a": ask("In short: {question}") | e.chat, "b": ask("In a word: {question}") | e.chat},
        "same": RunnableLambda(lambda x: x["question"]),
    })  # fmt: skip


def message_history(e: Engines) -> Runnable[Any, Any]:
    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("before"), ("human", "{question}")])
    return RunnableWithMessageHistory(
        prompt | e.chat,
        lambda session_id: InMemoryChatMessageHistory(messages=[*TURNS]),
        input_messages_key="question",
        history_messages_key="before",
    ).with_config(configurable={"session_id": "mine"})


QUESTION = "Who keeps hive 3?"
TURNS = [HumanMessage("Who keeps hive 2?"), AIMessage("Nobody.")]
ASKED = {"input_documents": DOCS, "question": QUESTION}
CASES: dict[str, tuple[Callable[[Engines], Runnable[Any, Any]], Any]] = {
    "merger": (merger, QUESTION),
    "queries_merged": (queries_merged, QUESTION),
    "queries_and_question": (queries_and_question, QUESTION),
    "history_aware": (history_aware, {"input": QUESTION, "chat_history": TURNS}),
    "history_aware_first": (history_aware, {"input": QUESTION}),
    "conversation": (conversation, {"input": QUESTION, "chat_history": TURNS}),
    "conversation_first": (conversation, {"input": QUESTION, "chat_history": []}),
    "parent_documents": (parent_documents, QUESTION),
    "parents_of_different_pieces": (parents_of_different_pieces, QUESTION),
    "parents_of_near_pieces": (parents_of_near_pieces, QUESTION),
    "parents_for_queries": (parents_for_queries, QUESTION),
    "self_query": (self_query, QUESTION),
    "stuff": (stuff, ASKED),
    "map_reduce": (map_reduce, ASKED),
    "map_reduce_completions": (map_reduce_completions, ASKED),
    "map_reduce_bound": (map_reduce_bound, ASKED),
    "map_reduce_of_nothing": (map_reduce, {"input_documents": [], "question": QUESTION}),
    "map_reduce_of_a_search": (map_reduce_of_a_search, QUESTION),
    "map_collapse": (map_collapse, ASKED),
    "refine": (refine, ASKED),
    "map_rerank": (map_rerank, ASKED),
    "map_rerank_mapped": (map_rerank_mapped, ASKED),
    "assigned": (assigned, ASKED),
    "with_metadata": (with_metadata, ASKED),
    "with_arguments": (with_arguments, {"question": QUESTION}),
    "with_stop_words": (with_stop_words, {"question": QUESTION}),
    "with_a_memory": (with_a_memory, {"question": QUESTION}),
    "router": (router, {"key": "short", "input": {"question": QUESTION}}),
    "router_same": (router, {"key": "same", "input": {"question": QUESTION}}),
    "message_history": (message_history, {"question": QUESTION}),
}
FAILING: dict[str, tuple[Callable[[Engines], Runnable[Any, Any]], Any]] = {
    "history_aware": (history_aware, {"chat_history": TURNS}),
    "map_reduce": (map_reduce, {"input_documents": DOCS}),
    "map_reduce_failing": (map_reduce_failing, ASKED),
    "refine": (refine, {"input_documents": [], "question": QUESTION}),
    "map_rerank": (map_rerank, {"input_documents": [], "question": QUESTION}),
    "router": (router, {"key": "unknown", "input": {"question": QUESTION}}),
}
GRAPHS = (
    "merger", "queries_merged", "conversation", "parent_documents", "self_query", "map_reduce", "map_collapse",
    "refine", "map_rerank", "map_reduce_of_a_search", "router", "message_history",
)  # fmt: skip


IN_TURN = (
    "parent_documents", "parents_of_different_pieces", "parents_of_near_pieces", "self_query", "stuff", "refine",
    "router_same", "map_reduce_of_nothing", "message_history", "with_stop_words",
)  # fmt: skip
"""By themselves they ask for one thing after the other, or for nothing."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_same_as_the_original(name: str, form: str) -> None:
    build, given = CASES[name]
    plain = call(build(Engines()), form, given, [])
    assert not plain.failed, plain.value
    fast = optimize(build(Engines()))
    assert call(fast, form, given, []) == plain
    if adapter.calls_of(fast) is not None:
        assert report_of(fast).fallbacks == ()
        assert report_of(fast).wasted == 0 or form in ("batch", "abatch")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", FAILING)
def test_fails_as_the_original(name: str, form: str) -> None:
    build, given = FAILING[name]
    plain = call(build(Engines()), form, given, [])
    assert plain.failed
    fast = optimize(build(Engines()))
    outcome = call(fast, form, given, [])
    assert (outcome.value, outcome.failed) == (plain.value, plain.failed)
    if form in ("invoke", "ainvoke"):
        assert outcome.tree == plain.tree


@pytest.mark.parametrize("name", [name for name in CASES if name not in IN_TURN])
def test_what_runs_ahead_is_taken(name: str) -> None:
    """Engines that answer at once lose the race against the framework now and then, but not always."""
    build, given = CASES[name]
    fast = optimize(build(Engines()))

    def takes() -> bool:
        run(fast, "invoke", given, {})
        return bool(report_of(fast).hits + report_of(fast).shared)

    assert any(takes() for _ in range(100))


def test_what_combines_answers_runs_ahead_with_the_metadata() -> None:
    fast = optimize(with_metadata(Engines()))

    def misses() -> int:
        run(fast, "invoke", ASKED, {})
        return report_of(fast).misses

    assert any(not misses() for _ in range(100))


def test_an_input_with_stop_words_is_not_known() -> None:
    assert without_stop({"question": QUESTION}) == {"question": QUESTION}
    with pytest.raises(LookupError, match="stop words"):
        without_stop({"question": QUESTION, "stop": ["hive"]})


OLD_WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "called": lambda chain, given: chain(given),
    "only_outputs": lambda chain, given: chain(given, return_only_outputs=True),
    "called async": lambda chain, given: asyncio.run(chain.acall(given)),
    "run": lambda chain, given: chain.run(**given),
    "run async": lambda chain, given: asyncio.run(chain.arun(**given)),
    "applied": lambda chain, given: chain.apply([given, given]),
}


@pytest.mark.parametrize("way", OLD_WAYS)
def test_the_old_ways_to_call_a_chain_run_ahead_too(way: str) -> None:
    def single(e: Engines) -> Any:
        chain = map_reduce(e)
        chain.return_intermediate_steps = False
        return chain

    fast = optimize(single(Engines()))

    def takes() -> bool:
        assert OLD_WAYS[way](fast, ASKED) == OLD_WAYS[way](single(Engines()), ASKED)
        return bool(report_of(fast).hits + report_of(fast).shared)

    assert any(takes() for _ in range(100))


STOPPED: dict[str, Callable[[Engines], Any]] = {
    "root": map_reduce,
    "assigned": lambda e: RunnablePassthrough.assign(note=lambda x: "a note") | map_reduce(e),
    "made": lambda e: RunnableLambda(lambda x: {**x, "note": "a note"}) | map_reduce(e),
}


@pytest.mark.parametrize("name", STOPPED)
def test_stop_words_in_the_input_go_to_the_model(name: str) -> None:
    """Agents hand them over so. What does not know them would ask for something else."""
    fast = optimize(STOPPED[name](Engines()))
    given = {**ASKED, "stop": ["Observation:"]}
    assert call(fast, "invoke", given, []) == call(STOPPED[name](Engines()), "invoke", given, [])
    assert report_of(fast).wasted == report_of(fast).hits == 0
    run(fast, "invoke", ASKED, {})
    assert report_of(fast).wasted == 0


def from_question(retriever: Callable[[Engines], Runnable[Any, Any]]) -> Callable[[Engines], Runnable[Any, Any]]:
    return lambda e: (lambda x: x["question"]) | retriever(e)


AHEAD: dict[str, tuple[Callable[[Engines], Runnable[Any, Any]], Any, int]] = {
    "merger": (from_question(merger), {"question": QUESTION}, 2),
    "parents": (from_question(parents), {"question": QUESTION}, 1),
    "self_query": (from_question(self_query), {"question": QUESTION}, 1),
    "stuff": (stuff, ASKED, 1),
    "map_reduce": (map_reduce, ASKED, 4),
    "map_reduce_bound": (map_reduce_bound, ASKED, 4),
    "map_collapse": (map_collapse, ASKED, 4),
    "map_rerank": (map_rerank, ASKED, 4),
    "refine": (refine, ASKED, 1),
    "assigned": (assigned, ASKED, 7),
    "router": (router, {"key": "short", "question": "", "input": {"question": QUESTION}}, 2),
}


@pytest.mark.parametrize("name", AHEAD)
def test_what_does_not_need_a_slow_step_is_asked_beside_it(name: str) -> None:
    build, given, items = AHEAD[name]
    e = Engines()
    fast = optimize(RunnablePassthrough.assign(slow=ask("Slow: {question}") | e.chat | StrOutputParser()) | build(e))
    known = len(e.embedder.seen)
    e.llm.gate = gated(runtime.host)
    call = threading.Thread(target=lambda: fast.invoke(given))
    call.start()
    try:
        wait_until(lambda: len(e.llm.seen) + len(e.embedder.seen) - known == 1 + items)
    finally:
        runtime.host.loop.call_soon_threadsafe(e.llm.gate.set)
        call.join()
    report = report_of(fast)
    assert report.hits >= items
    assert report.wasted == 0


@pytest.mark.parametrize("build", [queries_and_question, weighted])
def test_a_prompt_of_documents_of_several_searches_is_foreseen(build: Callable[[Engines], Runnable[Any, Any]]) -> None:
    """All of it runs ahead of the framework, which still waits for a slow model before it."""
    slow, e = Engines(), Engines()
    first = RunnablePassthrough.assign(slow=ask("Slow: {question}") | slow.chat | StrOutputParser())
    fast = optimize(first | from_question(build)(e))
    slow.llm.gate = gated(runtime.host)
    call = threading.Thread(target=lambda: fast.invoke({"question": QUESTION}))
    call.start()
    try:
        wait_until(lambda: any(prompt.startswith("User: Read") for prompt in e.llm.seen))
    finally:
        runtime.host.loop.call_soon_threadsafe(slow.llm.gate.set)
        call.join()
    assert (report_of(fast).misses, report_of(fast).wasted) == (0, 0)


def test_what_is_made_of_answers_is_what_the_chain_makes() -> None:
    chain = map_rerank(Engines())
    made = chain.invoke(ASKED)
    texts = [answer(f"User: Rate {doc.page_content} for {QUESTION}\nAssistant:") for doc in DOCS]
    best = adapter.trace(chain).functions["best"].call(DOCS, texts)
    assert {**ASKED, **best} == made


def test_a_merger_asks_its_retrievers_at_once() -> None:
    both = Engines(), Engines()
    fast = optimize(MergerRetriever(retrievers=[e.store().as_retriever() for e in both]))
    known = [len(e.embedder.seen) for e in both]
    for e in both:
        e.embedder.gate = gated(runtime.host)
    call = threading.Thread(target=lambda: fast.invoke(QUESTION))
    call.start()
    try:
        wait_until(lambda: [len(e.embedder.seen) - k for e, k in zip(both, known, strict=True)] == [1, 1])
    finally:
        for e in both:
            assert e.embedder.gate
            runtime.host.loop.call_soon_threadsafe(e.embedder.gate.set)
        call.join()


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.005)


# --- what is not read ------------------------------------------------------------------------------------------------


def codes(component: Runnable[Any, Any]) -> list[str]:
    return [b.code for b in adapter.trace(component).breaks]


def test_breaks() -> None:
    e = Engines()
    assert codes(map_collapse(e)) == ["TB113"]
    assert codes(refine(e)) == ["TB214"]
    assert codes(parent_documents(e)) == codes(MergerRetriever(retrievers=[parents(e)])) == ["TB105"]
    assert codes(message_history(e)) == ["TB102"]
    for name in ("merger", "conversation", "stuff", "map_reduce", "map_rerank", "router"):
        assert codes(CASES[name][0](e)) == []


def test_chains_of_the_users_are_left_to_the_framework() -> None:
    class Loud(MapReduceDocumentsChain):
        def combine_docs(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(args)
            return super().combine_docs(*args, **kwargs)

    class LoudMerger(MergerRetriever):
        def merge_documents(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(args)
            return super().merge_documents(*args, **kwargs)

    class LoudParser(StrOutputParser):
        def parse(self, text: str) -> str:
            seen.append(text)
            return text

    seen: list[Any] = []
    e = Engines()
    plain = map_reduce(e)
    parsed = asking(e, "Just {question}")
    parsed.output_parser = LoudParser()
    remembering = asking(e, "Just {question}")
    remembering.memory = SimpleMemory(memories={"question": "?"})
    whole = asking(e, "Just {question}")
    whole.return_final_only = False  # it returns a `full_generation` besides
    fields = {name: getattr(plain, name) for name in MapReduceDocumentsChain.model_fields}
    assert codes(Loud(**fields)) == codes(remembering) == codes(whole) == ["TB102"]
    assert codes(parsed) == ["TB101"]
    assert codes(LoudMerger(retrievers=[])) == ["TB105"]
    assert seen == []


def test_models_of_others_in_chains() -> None:
    """A chat model that is asked for one document after the other; one for completions gets all prompts in one call."""
    e = Engines()
    hosted = ChatOpenAI(model="gpt-4o", base_url="http://127.0.0.1:1/v1", api_key="none")  # type: ignore[arg-type]
    assert codes(map_reduce(e, hosted)) == []
    assert codes(map_reduce(e, FakeListChatModel(responses=["a"]))) == ["TB104"]
    assert codes(map_reduce(e, OpenAI(api_key="none"))) == ["TB103"]  # type: ignore[arg-type]


def test_chains_called_as_they_used_to_be() -> None:
    def outcomes(chain: Any) -> list[Any]:
        return [chain(ASKED), chain(ASKED, return_only_outputs=True), chain.combine_docs(DOCS, question=QUESTION)]

    assert outcomes(optimize(map_reduce(Engines()))) == outcomes(map_reduce(Engines()))
    chain = asking(Engines(), "Just {question}")
    assert optimize(chain).run(QUESTION) == chain.run(QUESTION)
    assert optimize(chain).invoke(QUESTION) == chain.invoke(QUESTION)


def test_an_optimized_retriever_in_a_merger() -> None:
    e = Engines()
    fast = optimize(MergerRetriever(retrievers=[optimize(merged(e)), parents(e)]))
    assert [d.page_content for d in fast.invoke(QUESTION)] == [
        d.page_content for d in MergerRetriever(retrievers=[merged(e), fast.retrievers[1]]).invoke(QUESTION)
    ]


def test_what_a_message_history_wraps_can_be_optimized() -> None:
    e = Engines()
    slow, quick = (ask(f"{word} {{question}} {{before}}") | e.chat | StrOutputParser() for word in ("Slow", "Quick"))
    inner = RunnablePassthrough.assign(slow=slow) | RunnablePassthrough.assign(quick=quick) | (lambda x: x["quick"])
    kept = [InMemoryChatMessageHistory(), InMemoryChatMessageHistory()]
    fast = optimize(inner)
    keys = {"input_messages_key": "question", "history_messages_key": "before"}
    plain, wrapped = (
        RunnableWithMessageHistory(runnable, lambda session_id, history=history: history, **keys)
        for runnable, history in zip((inner, fast), kept, strict=True)
    )
    for _ in range(2):
        config: Any = {"configurable": {"session_id": "mine"}}
        assert wrapped.invoke({"question": QUESTION}, config) == plain.invoke({"question": QUESTION}, config)
    assert kept[0].messages == kept[1].messages
    assert len(kept[0].messages) == 4


# --- graphs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRAPHS)
def test_graph(name: str, update_golden: bool) -> None:
    traced = adapter.trace(CASES[name][0](Engines()))
    text = re.sub(r"langchain_\d+", "notes", shown(traced))
    path = FOLDER / f"langchain_classic_{name}.txt"
    if update_golden:
        path.write_text(text)
    assert text == path.read_text()
