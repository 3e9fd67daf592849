"""Searches by the embedding model of a hosted service: the requests are the original's, only sooner."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Hashable
from contextlib import closing
from functools import partial
from operator import itemgetter
from typing import Any, TypedDict

import httpx
import pytest
from langchain_classic.retrievers.multi_query import MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore, VectorStoreRetriever
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.graph import END, START, StateGraph

from teola_plugin import optimize, seams
from teola_plugin.adapters.langchain import models
from teola_plugin.adapters.langchain.hosted_embeddings import instrument_loaded, provider_spec
from teola_plugin.api import optimized
from teola_plugin.engines import EngineSpec, Foreign
from teola_plugin.events import Retired
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.session.session import Session
from teola_plugin.seams import Reply, active
from tests.support.hosted_service import Service, asked_side_by_side, counted

QUESTION = {"question": "Who keeps the hives?"}
TEXTS = ("Anna keeps hive 1.", "Ben keeps hive 2.", "Carla keeps hive 3.", "Nobody keeps hive 4.")


class State(TypedDict, total=False):
    question: str
    parts: list[str]
    answer: str


def embedder(service: Service, **settings: Any) -> OpenAIEmbeddings:
    given = {"model": "e", "api_key": "none", "base_url": service.url, "check_embedding_ctx_length": False}
    return OpenAIEmbeddings(**{**given, **settings})


def stored(embeddings: OpenAIEmbeddings) -> InMemoryVectorStore:
    store = InMemoryVectorStore(embeddings)
    store.add_documents([Document(text) for text in TEXTS])
    return store


def app_of(service: Service, embeddings: OpenAIEmbeddings, *, is_async: bool) -> Any:
    """A graph of two nodes: a question is split, and what is found for each part is told to a model in turn."""
    retriever = stored(embeddings).as_retriever(search_kwargs={"k": 1})
    llm = ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0)  # type: ignore[arg-type,call-arg]

    def split(state: State) -> dict[str, Any]:
        return {"parts": str(llm.invoke(f"Split: {state['question']}").content).split("\n")}

    def answer(state: State) -> dict[str, Any]:
        found = ""
        for part in state["parts"]:
            docs = retriever.invoke(part)
            found += str(llm.invoke(f"{part} by {docs[0].page_content}").content)
        return {"answer": found}

    async def aanswer(state: State) -> dict[str, Any]:
        found = ""
        for part in state["parts"]:
            docs = await retriever.ainvoke(part)
            found += str((await llm.ainvoke(f"{part} by {docs[0].page_content}")).content)
        return {"answer": found}

    builder = StateGraph(State)
    builder.add_node("split", split)
    builder.add_node("answer", aanswer if is_async else answer)
    builder.add_edge(START, "split").add_edge("split", "answer").add_edge("answer", END)
    return builder.compile()


def call(app: Any, *, is_async: bool) -> Any:
    return asyncio.run(app.ainvoke(QUESTION)) if is_async else app.invoke(QUESTION)


@pytest.mark.parametrize("is_async", [False, True])
def test_searches_run_ahead(service: Service, is_async: bool) -> None:
    app = app_of(service, embedder(service), is_async=is_async)
    with counted(service) as original:
        plain = call(app, is_async=is_async)
    fast = optimize(app)
    service.holds, service.awaits = "chat hive 1", "embed ['hive 3']"
    with counted(service) as made:
        assert call(fast, is_async=is_async) == plain
    assert not service.has_waited_in_vain
    assert made == original
    report = optimized(fast).reports[-1]
    assert (report.wasted, report.fallbacks) == (0, ())
    assert [e.outcome for e in report.events if isinstance(e, Retired) and e.op == "embedding"][1:] == ["hit", "hit"]


def _with_bar(service: Service) -> OpenAIEmbeddings:
    return embedder(service, show_progress_bar=True)


def _with_client(service: Service) -> OpenAIEmbeddings:
    return embedder(service, http_client=httpx.Client())


def _replaced(service: Service) -> OpenAIEmbeddings:
    embeddings = embedder(service)
    original = embeddings.embed_documents
    vars(embeddings)["embed_documents"] = lambda texts, **kwargs: original(texts, **kwargs)
    return embeddings


class _Own(OpenAIEmbeddings):
    def embed_query(self, text: str, **kwargs: Any) -> list[float]:
        return super().embed_query(f"{text}!", **kwargs)


class _Asking(OpenAIEmbeddings):
    @property
    def _invocation_params(self) -> dict[str, Any]:
        return {**super()._invocation_params, "user": "me"}


def _asking(service: Service) -> OpenAIEmbeddings:
    return _Asking(model="e", api_key="none", base_url=service.url, check_embedding_ctx_length=False)  # type: ignore


def _subclass(service: Service) -> OpenAIEmbeddings:
    return _Own(model="e", api_key="none", base_url=service.url, check_embedding_ctx_length=False)  # type: ignore


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("make", [_with_bar, _with_client, _replaced, _subclass, _asking])
def test_what_a_call_may_do_besides_is_left_to_the_framework(
    service: Service, make: Callable[[Service], OpenAIEmbeddings], is_async: bool
) -> None:
    app = app_of(service, embeddings := make(service), is_async=is_async)
    with counted(service) as original:
        plain = call(app, is_async=is_async)
    fast = optimize(app)
    with counted(service) as made:
        assert call(fast, is_async=is_async) == plain
    assert made == original
    asked = [event.op for event in optimized(fast).reports[-1].events if isinstance(event, Retired)]
    assert provider_spec(embeddings) is None
    assert "embedding" not in asked


class Claims(seams.Session):
    """A session that notes keys, and hands out one reply for each."""

    def __init__(self) -> None:
        self.replies: dict[Hashable, Reply] = {}

    def ask(self, *args: Any) -> Any:
        raise AssertionError("whatever is hosted is claimed")

    def claim(self, spec: EngineSpec, op: str, payload: Foreign, settings: Any) -> tuple[Reply, bool]:
        is_first = payload.key not in self.replies
        return self.replies.setdefault(payload.key, Reply()), is_first


def test_whatever_the_service_could_tell_apart_has_its_own_vector(service: Service) -> None:
    claims, one = Claims(), embedder(service)
    assert provider_spec(one)
    with active(claims):
        vectors = [
            one.embed_query("hive 1"), one.embed_query("hive 2"), embedder(service, dimensions=4).embed_query("hive 1"),
            embedder(service, model="f").embed_query("hive 1"), one.embed_query("Hive 1"),
        ]  # fmt: skip
        assert len(claims.replies) == len(vectors)
        again = one.embed_query("hive 1")
    assert len(claims.replies) == len(vectors)
    assert again == vectors[0]
    assert again is not vectors[0]


@pytest.mark.parametrize("rest", [False, True])
def test_a_vector_of_a_call_that_rests_counts_at_its_provider(service: Service, rest: bool) -> None:
    instrument_loaded()
    embeddings = embedder(service)
    expected = embeddings.embed_query("hive 1")
    assert provider_spec(embeddings)
    with closing(LocalHost()) as host:
        session = Session(host)
        session.be_alone(rest=rest)
        with active(session):
            assert embeddings.embed_query("hive 1") == expected
        assert session.close().misses == 1


def test_a_vector_is_not_asked_alone_once_something_runs_ahead_meanwhile(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread begins to run ahead as the model is about to be asked; the same vector is among its requests."""
    instrument_loaded()
    embeddings = embedder(service)
    spec, is_known = models.spec_of(embeddings), models.is_known_by_settings
    with closing(LocalHost()) as host:
        session = Session(host)
        with active(session):
            embeddings.embed_query("hive 2")  # the provider answers
        session.rest()

        def runs_ahead(model: Any) -> bool:
            monkeypatch.undo()
            key = models.as_set_now(model).key("hive 1")
            session.request(spec, "embedding", Foreign(key, lambda: embeddings.embed_query("hive 1")), {})
            return is_known(model)

        monkeypatch.setattr(models, "is_known_by_settings", runs_ahead)
        with active(session), counted(service) as made:
            embeddings.embed_query("hive 1")
        report = session.close()
    assert made.total() == 1
    assert (report.shared, report.wasted) == (1, 0)


def test_an_error_is_the_originals(service: Service) -> None:
    app = app_of(service, embedder(service), is_async=False)
    service.fails = '"hive 2"'
    raised = []
    for each in (app, optimize(app)):
        with counted(service) as made, pytest.raises(Exception, match="as planned") as error:
            call(each, is_async=False)
        raised.append((type(error.value), str(error.value), made))
    assert raised[0][:2] == raised[1][:2]
    assert raised[0][2] <= raised[1][2]


def test_the_settings_of_the_day_count(service: Service) -> None:
    embeddings = embedder(service)
    app = app_of(service, embeddings, is_async=False)
    fast = optimize(app)
    call(fast, is_async=False)
    embeddings.dimensions = 4
    with counted(service) as original:
        plain = call(app, is_async=False)
    with counted(service) as made:
        assert call(fast, is_async=False) == plain
    assert made == original
    assert "embed ['hive 1'] 4" in made


def test_a_taker_may_change_its_vector(service: Service) -> None:
    embeddings = embedder(service)

    def twice(state: State) -> dict[str, Any]:
        one = embeddings.embed_query("hive 1")
        one.append(0.5)
        return {"answer": str([one, embeddings.embed_query("hive 1")])}

    builder = StateGraph(State)
    builder.add_node("twice", twice)
    app = builder.add_edge(START, "twice").add_edge("twice", END).compile()
    assert call(optimize(app), is_async=False) == call(app, is_async=False)


def _concatenated(docs: list[Document]) -> str:
    return " ".join(doc.page_content for doc in docs)


class Twice(BaseRetriever):
    """A retriever of the user's, which searches in turn."""

    inner: Any

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [*self.inner.invoke(f"{query} 1"), *self.inner.invoke(f"{query} 2")]


def chain_of(service: Service) -> Any:
    """Several searches that wait for a model's reply, and one by a retriever of the user's."""
    retriever = stored(embedder(service)).as_retriever(search_kwargs={"k": 1})
    llm = ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0)  # type: ignore[arg-type,call-arg]
    asked = ChatPromptTemplate.from_template("{question}") | llm | StrOutputParser()
    return (
        RunnablePassthrough.assign(said=asked)
        | RunnablePassthrough.assign(found=itemgetter("question") | retriever | _concatenated)
        | RunnablePassthrough.assign(more=itemgetter("question") | Twice(inner=retriever) | _concatenated)
    )


@pytest.mark.parametrize("is_async", [False, True])
def test_searches_of_a_chain_run_ahead(service: Service, is_async: bool) -> None:
    chain = chain_of(service)
    with counted(service) as original:
        plain = call(chain, is_async=is_async)
    fast = optimize(chain)
    service.holds, service.awaits = "chat Who", "hives? 2"
    with counted(service) as made:
        assert call(fast, is_async=is_async) == plain
    assert not service.has_waited_in_vain
    assert made == original
    report = optimized(fast).reports[-1]
    assert (report.wasted, report.misses, report.fallbacks) == (0, 0, ())


def _wordings(query: str) -> list[str]:
    return [f"{query} hive {n}" for n in (1, 2, 3)]


class Rewording(BaseRetriever):
    """A retriever of the user's whose own methods search, in a loop, by a function of the module."""

    inner: Any

    def _search(self, query: str) -> list[Document]:
        return self.inner.invoke(query)  # type: ignore[no-any-return]

    def _reworded(self, query: str) -> list[str]:
        return _wordings(query)

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [doc for each in self._reworded(query) for doc in self._search(each)]


@pytest.mark.parametrize("is_async", [False, True])
def test_searches_by_methods_of_a_retriever_of_the_users_run_ahead(service: Service, is_async: bool) -> None:
    """The retriever alone has something to run ahead, and what only its methods name is noted before the call."""
    chain = itemgetter("question") | Rewording(inner=stored(embedder(service)).as_retriever()) | _concatenated
    ask = partial(call, is_async=is_async)
    assert asked_side_by_side(service, chain, "hives? hive 1", "hives? hive 3", ask).misses == 0


def test_a_model_that_is_made_in_a_body_asks_no_more(service: Service) -> None:
    llm = ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0)  # type: ignore[arg-type,call-arg]

    def ask(state: State) -> dict[str, Any]:
        return {"parts": str(llm.invoke("Split it.").content).split("\n")}

    def embed(state: State) -> dict[str, Any]:
        embeddings = OpenAIEmbeddings(model="e", api_key="none", base_url=service.url, check_embedding_ctx_length=False)
        found = InMemoryVectorStore(embeddings).as_retriever().invoke(state["question"])
        return {"answer": f"{embeddings.embed_query(state['question'])} {len(found)}"}

    builder = StateGraph(State).add_node("ask", ask).add_node("embed", embed)
    app = builder.add_edge(START, "ask").add_edge("ask", "embed").add_edge("embed", END).compile()
    with counted(service) as original:
        plain = call(app, is_async=False)
    with counted(service) as made:
        assert call(optimize(app), is_async=False) == plain
    assert made == original


class _Memory:
    """Holds a store where only its own methods look."""

    def __init__(self, store: InMemoryVectorStore) -> None:
        self._store = store

    def search(self, query: str) -> list[Document]:
        return self._store.similarity_search(query, k=1)


def test_the_first_search_of_a_store_that_an_object_holds_is_shared(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process in which no pipeline has asked an embedding model yet."""
    as_published = inspect.unwrap(OpenAIEmbeddings.embed_query)
    monkeypatch.setattr(OpenAIEmbeddings, "embed_query", as_published)
    memory = _Memory(stored(embedder(service)))
    builder = StateGraph(State)
    builder.add_node("find", lambda state: {"answer": memory.search(state["question"])[0].page_content})
    builder.add_edge(START, "find").add_edge("find", END)
    optimize(builder.compile())
    assert OpenAIEmbeddings.embed_query is not as_published


class _Kept(InMemoryVectorStore):
    """Says where its texts come from and how it is searched, and searches as LangChain does."""

    @classmethod
    def from_index(cls, name: str, embeddings: OpenAIEmbeddings) -> _Kept:
        return cls(embeddings)

    def as_retriever(self, **options: Any) -> VectorStoreRetriever:
        return super().as_retriever(search_kwargs={"k": 1}, **options)


class _Counting(InMemoryVectorStore):
    """Notes how often it is searched."""

    looked = 0

    def similarity_search(self, query: str, k: int = 4, **options: Any) -> list[Document]:
        type(self).looked += 1
        return super().similarity_search(query, k, **options)


class _Rebound(InMemoryVectorStore):
    """Finds its embedding model by code of its own, which is noted."""

    looked = 0

    @property
    def embeddings(self) -> Any:
        type(self).looked += 1
        return self.embedding


def _by_several_queries(store: InMemoryVectorStore, service: Service) -> Any:
    llm = ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0)  # type: ignore[arg-type,call-arg]
    prompt = PromptTemplate.from_template("Split: {question}")
    found = MultiQueryRetriever.from_llm(retriever=store.as_retriever(), llm=llm, prompt=prompt)
    return {"context": found} | RunnableLambda(lambda x: [each.page_content for each in x["context"]])


def _by_a_loop(store: InMemoryVectorStore, service: Service) -> Any:
    def find(question: str) -> list[str]:
        return [store.similarity_search(part, k=1)[0].page_content for part in ("hive 1", "hive 2", "hive 3")]

    return RunnableLambda(find) | RunnableLambda(lambda found: found)


@pytest.mark.parametrize("make", [_by_several_queries, _by_a_loop])
@pytest.mark.parametrize("store", [InMemoryVectorStore, _Kept])
def test_searches_of_one_component_run_side_by_side(
    service: Service, store: type[InMemoryVectorStore], make: Callable[[Any, Service], Any]
) -> None:
    kept = store(embedder(service))
    kept.add_documents([Document(text) for text in TEXTS])
    chain = make(kept, service)
    fast = optimize(chain)
    with counted(service) as original:
        plain = chain.invoke("Who?")
    assert fast.invoke("Who?") == plain  # the service has answered from here on
    service.holds, service.awaits = "embed ['hive 1']", "embed ['hive 3']"
    with counted(service) as made:
        assert fast.invoke("Who?") == plain
    assert not service.has_waited_in_vain
    assert made == original
    assert optimized(fast).reports[-1].wasted == 0


@pytest.mark.parametrize("make", [_by_several_queries, _by_a_loop])
@pytest.mark.parametrize("store", [_Counting, _Rebound])
def test_a_store_that_searches_by_code_of_its_own_is_left_to_the_framework(
    service: Service, store: Any, make: Callable[[Any, Service], Any]
) -> None:
    kept = store(embedder(service))
    kept.add_documents([Document(text) for text in TEXTS])
    chain = make(kept, service)
    store.looked = 0
    fast = optimize(chain)
    assert store.looked == 0
    plain = chain.invoke("Who?")
    once, store.looked = store.looked, 0
    for _ in range(2):
        assert fast.invoke("Who?") == plain
    assert store.looked == 2 * once
