"""Retrievers that have a model extract from, or judge, each document: the documents are shown to it side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import LLMChainExtractor, LLMChainFilter
from langchain_core.documents import Document
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from teola_plugin import optimize, optimized
from tests.support.hosted_service import Service, asked_side_by_side, counted, served


class Judge(Service):
    """Finds all but the first text relevant, and extracts nothing from it."""

    def reply_to(self, path: str, given: dict[str, Any]) -> dict[str, Any]:
        reply = super().reply_to(path, given)
        told = given.get("messages", [{}])[-1].get("content", "")
        if "judge" in told or "extract" in told:
            said = "NO" if "judge" in told else "NO_OUTPUT"
            if "text 0" not in told:
                said = "YES" if "judge" in told else "some of it"
            reply["choices"][0]["message"]["content"] = said
        return reply


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr("tests.support.hosted_service.Service", Judge)
    with served() as service:
        yield service


def compressing(service: Service, kind: Any, **settings: Any) -> ContextualCompressionRetriever:
    llm = ChatOpenAI(model="m", base_url=service.url, api_key="x", max_retries=0)
    own = {"base_url": service.url, "api_key": "x", "max_retries": 0, "check_embedding_ctx_length": False}
    store = InMemoryVectorStore.from_texts([f"text {n}" for n in range(3)], OpenAIEmbeddings(**own))
    verb = "judge" if kind is LLMChainFilter else "extract"
    compressor = kind.from_llm(llm, **settings)
    template = PromptTemplate.from_template(verb + " {context} for {question}")
    template.output_parser = compressor.llm_chain.first.output_parser
    compressor.llm_chain.first = template
    return ContextualCompressionRetriever(base_compressor=compressor, base_retriever=store.as_retriever())


def shown(documents: list[Document]) -> str:
    return ", ".join(each.page_content for each in documents)


def as_chain(retriever: Any) -> Runnable[Any, Any]:
    return retriever | RunnableLambda(shown)


def as_function(retriever: Any) -> Any:
    def find(question: str) -> str:
        return shown(retriever.invoke(question))

    return RunnableLambda(find)


@pytest.mark.parametrize("made", [as_chain, as_function])
def test_a_text_is_extracted_from_each_document_side_by_side(service: Service, made: Callable[[Any], Any]) -> None:
    app = made(compressing(service, LLMChainExtractor))
    first, *_, last = asked_order(service, app)
    asked_side_by_side(service, app, first, last, lambda app: app.invoke("q"))
    assert app.invoke("q") == "some of it, some of it"


def asked_order(service: Service, app: Any) -> list[str]:
    """What the original asks the model, in order."""
    service.forget()
    app.invoke("q")
    return [asked for asked in service.asked if asked.startswith("chat")]


@pytest.mark.parametrize("kind", [LLMChainExtractor, LLMChainFilter])
async def test_what_a_function_asks_behind_is_asked_with_what_is_left(service: Service, kind: Any) -> None:
    retriever = compressing(service, kind)
    llm = ChatOpenAI(model="m", base_url=service.url, api_key="x", max_retries=0)

    async def answer(question: str) -> Any:
        found = await retriever.ainvoke(question)
        return [(await llm.ainvoke(f"{each.page_content} {n}")).content for n in range(2) for each in found]

    service.lasts_s = 0.02
    app = RunnableLambda(answer)
    fast: Any = optimize(app)
    with counted(service) as original:
        expected = await app.ainvoke("q")
    for _ in range(2):
        with counted(service) as made:
            assert await fast.ainvoke("q") == expected
        assert made == original
    report = optimized(fast).reports[-1]
    assert report.hits + report.shared >= 4
    assert report.wasted == 0


def test_an_input_of_the_user_s_is_left_to_the_framework(service: Service) -> None:
    made: list[str] = []

    def own_input(query: str, document: Document) -> dict[str, Any]:
        made.append(document.page_content)
        return {"question": query, "context": document.page_content.upper()}

    fast = optimize(as_function(compressing(service, LLMChainExtractor, get_input=own_input)))
    service.lasts_s = 0.02
    for turn in range(1, 3):
        with counted(service) as asked:
            fast.invoke("q")
        assert len(made) == 3 * turn
        assert sum(asked.values()) == 4
