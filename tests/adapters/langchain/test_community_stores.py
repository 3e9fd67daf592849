"""Searches in stores of langchain-community: queries in turn are embedded at once; changes of FAISS's wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypedDict
from unittest import mock

import pytest
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS, Chroma
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.graph import END, START, StateGraph

from teola_plugin.adapters.interception import interception
from teola_plugin.adapters.langchain import faiss_stores, hosted_embeddings
from teola_plugin.seams import active
from tests.adapters.reader.langchain_reading import Recording, read
from tests.support.hosted_service import Service, asked_side_by_side, served
from tests.support.langgraph_reading import read as read_graph


class State(TypedDict, total=False):
    found: list[str]
    said: str


@pytest.fixture
def service() -> Iterator[Service]:
    with served() as service, interception.installed():
        hosted_embeddings.instrument_loaded()
        yield service


def store_of(service: Service, cls: type[FAISS] = FAISS) -> FAISS:
    given: dict[str, Any] = {"api_key": "none", "base_url": service.url, "check_embedding_ctx_length": False}
    return cls.from_texts(["one", "two", "three", "four"], OpenAIEmbeddings(model="e", max_retries=0, **given))


def model(service: Service) -> ChatOpenAI:
    return ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0)  # type: ignore[arg-type,call-arg]


def retrieving(store: FAISS) -> Callable[[str], Any]:
    retriever = store.as_retriever(search_kwargs={"k": 2})
    return lambda query: [each.page_content for each in retriever.invoke(query)]


def searching(store: FAISS) -> Callable[[str], Any]:
    return lambda query: [(each.page_content, str(score)) for each, score in store.similarity_search_with_score(query)]


def with_diversity(store: FAISS) -> Callable[[str], Any]:
    retriever = store.as_retriever(search_type="mmr", search_kwargs={"k": 2, "fetch_k": 3})
    return lambda query: [each.page_content for each in retriever.invoke(query)]


def chroma_of(service: Service) -> Chroma:
    given: dict[str, Any] = {"api_key": "none", "base_url": service.url, "check_embedding_ctx_length": False}
    embeddings = OpenAIEmbeddings(model="e", max_retries=0, **given)
    return Chroma.from_texts(["one", "two", "three"], embeddings, collection_name=f"c{id(service)}")


@pytest.mark.parametrize("make", [retrieving, searching, with_diversity])
@pytest.mark.parametrize("kind", [store_of, chroma_of])
@pytest.mark.filterwarnings("ignore:The class `Chroma` was deprecated")
def test_searches_in_turn_run_side_by_side(service: Service, kind: Any, make: Any) -> None:
    find, llm = make(kind(service)), model(service)

    def search(state: State) -> State:
        return {"found": [str(find(query)) for query in ("hive 1", "hive 2", "hive 3")]}

    def say(state: State) -> State:
        return {"said": str(llm.invoke("\n".join(state["found"])).content)}

    builder = StateGraph(State).add_node("searching", search).add_node("saying", say)
    builder.add_edge(START, "searching").add_edge("searching", "saying").add_edge("saying", END)
    asked_side_by_side(service, builder.compile(), "embed ['hive 1']", "embed ['hive 3']")


def test_awaited_searches_run_side_by_side(service: Service) -> None:
    retriever = store_of(service).as_retriever()

    async def search(given: Any) -> Any:
        return [[each.page_content for each in await retriever.ainvoke(query)] for query in ("a", "b", "c")]

    def call(app: Any) -> Any:
        return asyncio.run(app.ainvoke("x"))

    asked_side_by_side(service, RunnableLambda(search), "embed ['a']", "embed ['c']", call)


class Own(FAISS):
    def similarity_search(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("it runs early")


class OwnDocuments(InMemoryDocstore):
    def search(self, search: str) -> Any:
        raise AssertionError("it runs early")


class OwnEmbeddings(Embeddings):
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[1.0, 2.0] for _ in texts]

    def embed_query(self, text: str) -> list[float]:
        raise AssertionError("it runs early")


def of_a_subclass(service: Service) -> FAISS:
    return store_of(service, Own)


def with_documents_of_the_users(service: Service) -> FAISS:
    store = store_of(service)
    store.docstore = OwnDocuments(store.docstore._dict)  # type: ignore[attr-defined]
    return store


def with_an_index_of_the_users(service: Service) -> FAISS:
    store = store_of(service)
    store.index = type("Index", (), {"search": lambda *args: 1 / 0})()
    return store


def with_embeddings_of_the_users(service: Service) -> FAISS:
    return FAISS.from_texts(["one"], OwnEmbeddings())


def with_a_method_of_its_own(service: Service) -> FAISS:
    store = store_of(service)
    store.similarity_search = lambda *args, **kwargs: 1 / 0  # type: ignore[method-assign,assignment]
    return store


@pytest.mark.parametrize(
    "make",
    [
        of_a_subclass,
        with_documents_of_the_users,
        with_an_index_of_the_users,
        with_embeddings_of_the_users,
        with_a_method_of_its_own,
    ],
)
def test_stores_with_code_of_the_users_are_not_searched_early(service: Service, make: Any) -> None:
    store = make(service)
    service.forget()
    assert read(lambda query: store.similarity_search(query), "a").stopped
    assert read(store.as_retriever(), "a").stopped
    assert not service.asked


def in_memory(service: Service) -> InMemoryVectorStore:
    given: dict[str, Any] = {"api_key": "none", "base_url": service.url, "check_embedding_ctx_length": False}
    return InMemoryVectorStore(OpenAIEmbeddings(model="e", max_retries=0, **given))


@pytest.mark.parametrize("kind", [store_of, chroma_of, in_memory])
@pytest.mark.parametrize("fake", [lambda *args, **kwargs: 1 / 0, mock.MagicMock(side_effect=AssertionError)])
@pytest.mark.filterwarnings("ignore:The class `Chroma` was deprecated")
def test_a_search_that_a_test_replaced_does_not_run_early(service: Service, kind: Any, fake: Any) -> None:
    store = kind(service)
    service.forget()
    with mock.patch.object(type(store), "similarity_search", fake):
        assert read(lambda query: store.similarity_search(query), "a").stopped
        assert read(store.as_retriever(), "a").stopped
    assert not service.asked


def test_a_change_waits_for_an_early_search(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    store, begun, goes_on, added = store_of(service), threading.Event(), threading.Event(), threading.Event()
    found = InMemoryDocstore.search

    def slow(self: Any, search: str) -> Any:
        begun.set()
        assert goes_on.wait(10)
        return found(self, search)

    monkeypatch.setattr(InMemoryDocstore, "search", slow)

    def look() -> None:
        with active(Recording(is_unheard=True)):
            store.similarity_search_by_vector([1.0] * 8)

    def add() -> None:
        store.add_embeddings([("five", [1.0] * 8)])
        added.set()

    threads = [threading.Thread(target=look), threading.Thread(target=add)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    assert not added.wait(0.1)
    goes_on.set()
    for thread in threads:
        thread.join()
    assert added.is_set()
    assert Document(page_content="five").page_content in {each.page_content for each in store.docstore._dict.values()}  # type: ignore[attr-defined]


def test_searches_of_the_frameworks_run_do_not_wait(service: Service) -> None:
    store = store_of(service)
    with faiss_stores._lock:
        thread = threading.Thread(target=lambda: store.similarity_search_by_vector([1.0] * 8))
        thread.start()
        thread.join(5)
        assert not thread.is_alive()


def told_of(documents: list[Document]) -> str:
    """What a program makes of documents that it marks as used."""
    for each in documents:
        each.metadata["used"] = each.metadata.get("used", 0) + 1
    return str([(each.page_content, each.metadata) for each in documents])


def test_documents_that_the_program_changes(service: Service) -> None:
    """FAISS finds the documents themselves: what the program changes in them, the next search finds changed."""
    store, llm = store_of(service), model(service)

    def answer(query: str) -> list[str]:
        return [str(llm.invoke(told_of(store.similarity_search(f"{query} {n}"))).content) for n in range(3)]

    found = read(answer, "a")
    assert "did not make" in found.stopped
    assert all(each.startswith("embed") for each in service.asked)

    def again(state: dict[str, Any]) -> dict[str, Any]:
        told_of(state["found"])
        return {"said": llm.invoke(told_of(store.similarity_search("a"))).content}

    app = StateGraph(dict).add_node("again", again).add_edge(START, "again").add_edge("again", END).compile()
    whole = read_graph(app, {"found": list(store.docstore._dict.values())})  # type: ignore[attr-defined]
    assert "changed a document" in whole.barrier
    assert not whole.asked
