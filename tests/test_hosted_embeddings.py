"""Searches by the embedding model of a hosted service: the requests are the original's, only sooner."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import itemgetter
from typing import Any, TypedDict

import httpx
import pytest
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.graph import END, START, StateGraph

from teola_plugin import optimize
from teola_plugin.api import optimized

QUESTION = {"question": "Who keeps the hives?"}
TEXTS = ("Anna keeps hive 1.", "Ben keeps hive 2.", "Carla keeps hive 3.", "Nobody keeps hive 4.")


class Service(ThreadingHTTPServer):
    """Chat and embeddings of OpenAI's kind. The reply to `holds` waits until `awaits` is asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.holds = self.awaits = ""
        self.has_waited_in_vain = False
        self.news = threading.Condition()
        self.fails = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def reply_to(self, path: str, given: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/embeddings"):
            texts = [given["input"]] if isinstance(given["input"], str) else given["input"]
            self._note(f"embed {texts} {given.get('dimensions')}")
            data = [{"object": "embedding", "index": n, "embedding": vector(text)} for n, text in enumerate(texts)]
            return {"object": "list", "model": "m", "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}
        told = given["messages"][-1]["content"]
        self._note(f"chat {told}")
        said = "hive 1\nhive 2\nhive 3" if told.startswith("Split") else f"<{told}>"
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        return {"id": "1", "object": "chat.completion", "model": "m", "choices": [choice]}

    def _note(self, asked: str) -> None:
        with self.news:
            self.asked.append(asked)
            self.news.notify_all()
            if self.holds and self.holds in asked:
                is_there = self.news.wait_for(lambda: any(self.awaits in each for each in self.asked), 10)
                self.has_waited_in_vain |= not is_there


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["content-length"])))
        fails = bool(self.server.fails) and self.server.fails in json.dumps(given)
        said = json.dumps({"error": {"message": "as planned"}} if fails else self.server.reply_to(self.path, given))
        self.send_response(400 if fails else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said.encode())

    def log_message(self, *args: Any) -> None:
        pass


def vector(text: str) -> list[float]:
    return [float(byte) for byte in hashlib.sha256(text.encode()).digest()[:8]]


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        thread = threading.Thread(target=service.serve_forever, daemon=True)
        thread.start()
        yield service
        service.shutdown()
        thread.join()


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


@contextmanager
def counted(service: Service) -> Iterator[Counter[str]]:
    service.asked.clear()
    found: Counter[str] = Counter()
    yield found
    found.update(service.asked)


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
    assert (report.wasted, report.misses, report.fallbacks) == (0, 0, ())


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


def _subclass(service: Service) -> OpenAIEmbeddings:
    return _Own(model="e", api_key="none", base_url=service.url, check_embedding_ctx_length=False)  # type: ignore


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("make", [_with_bar, _with_client, _replaced, _subclass])
def test_what_a_call_may_do_besides_is_left_to_the_framework(
    service: Service, make: Callable[[Service], OpenAIEmbeddings], is_async: bool
) -> None:
    app = app_of(service, make(service), is_async=is_async)
    with counted(service) as original:
        plain = call(app, is_async=is_async)
    with counted(service) as made:
        assert call(optimize(app), is_async=is_async) == plain
    assert made == original


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
