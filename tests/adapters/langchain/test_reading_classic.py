"""Chains of langchain-classic in functions: several of them ask side by side, as the framework asks in turn."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from langchain_classic.chains import LLMChain, RetrievalQA
from langchain_classic.chains.combine_documents.stuff import StuffDocumentsChain
from langchain_classic.memory import ConversationBufferMemory
from langchain_core.documents import Document
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from teola_plugin import optimize, optimized
from tests.support.hosted_service import Service, asked_side_by_side, counted

pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.deprecation.LangChainDeprecationWarning")


def chat(service: Service) -> ChatOpenAI:
    return ChatOpenAI(model="m", base_url=service.url, api_key="x", max_retries=0)


def llm_chain(service: Service, **settings: Any) -> LLMChain:
    with warnings.catch_warnings(action="ignore"):
        return LLMChain(llm=chat(service), prompt=PromptTemplate.from_template("about {x}"), **settings)


def retrieval_qa(service: Service, **settings: Any) -> RetrievalQA:
    own = {"base_url": service.url, "api_key": "x", "max_retries": 0, "check_embedding_ctx_length": False}
    store = InMemoryVectorStore.from_texts([f"text {n}" for n in range(3)], OpenAIEmbeddings(**own))
    prompt = PromptTemplate.from_template("{question} of {context}")
    with warnings.catch_warnings(action="ignore"):
        return RetrievalQA.from_chain_type(
            chat(service), retriever=store.as_retriever(), chain_type_kwargs={"prompt": prompt}, **settings
        )


def stuffing(service: Service) -> StuffDocumentsChain:
    with warnings.catch_warnings(action="ignore"):
        inner = LLMChain(llm=chat(service), prompt=PromptTemplate.from_template("{question} of {context}"))
        return StuffDocumentsChain(llm_chain=inner, document_variable_name="context")


Called = Callable[[Any, str], Any]
DOCUMENTS = [Document("one"), Document("two")]

FORMS: dict[str, tuple[Callable[[Service], Any], Called, tuple[str, str]]] = {
    "LLMChain": (llm_chain, lambda chain, text: chain.invoke({"x": text}), ("about q 0", "about q 2")),
    "LLMChain, by text": (llm_chain, lambda chain, text: chain.invoke(text), ("about q 0", "about q 2")),
    "LLMChain.run": (llm_chain, lambda chain, text: chain.run(text), ("about q 0", "about q 2")),
    "LLMChain.predict": (llm_chain, lambda chain, text: chain.predict(x=text), ("about q 0", "about q 2")),
    "LLMChain, called": (llm_chain, lambda chain, text: chain({"x": text}), ("about q 0", "about q 2")),
    "RetrievalQA": (
        retrieval_qa, lambda chain, text: chain.invoke({"query": text})["result"], ("embed ['q 0']", "embed ['q 2']"),
    ),
    "RetrievalQA with sources": (
        lambda service: retrieval_qa(service, return_source_documents=True),
        lambda chain, text: [each.page_content for each in chain.invoke(text)["source_documents"]],
        ("embed ['q 0']", "embed ['q 2']"),
    ),
    "RetrievalQA.run": (retrieval_qa, lambda chain, text: chain.run(text), ("chat q 0 of", "chat q 2 of")),
    "StuffDocumentsChain": (
        stuffing,
        lambda chain, text: chain.invoke({"input_documents": DOCUMENTS, "question": text})["output_text"],
        ("chat q 0 of one", "chat q 2 of one"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_chains_in_a_function_ask_side_by_side(service: Service, name: str) -> None:
    make, call, (first, last) = FORMS[name]
    chain = make(service)

    def answer(text: str) -> Any:
        return [call(chain, f"{text} {number}") for number in range(3)]

    asked_side_by_side(service, RunnableLambda(answer), first, last, lambda app: app.invoke("q"))


async def test_coroutines_of_chains(service: Service) -> None:
    chain = retrieval_qa(service)

    async def answer(text: str) -> Any:
        return [(await chain.ainvoke({"query": f"{text} {number}"}))["result"] for number in range(3)]

    service.lasts_s = 0.02
    app = RunnableLambda(answer)
    fast: Any = optimize(app)
    with counted(service) as original:
        expected = await app.ainvoke("q")
    with counted(service) as made:
        assert await fast.ainvoke("q") == expected
    assert made == original
    report = optimized(fast).reports[-1]
    assert report.hits + report.shared > 3
    assert report.wasted == 0


def test_the_input_stands_beside_the_result(service: Service) -> None:
    chain, llm = retrieval_qa(service), chat(service)

    def answer(text: str) -> Any:
        found = chain.invoke(text)
        return [llm.invoke(f"{found['query']} {found['result']} {number}").content for number in range(2)]

    asked_side_by_side(service, RunnableLambda(answer), "chat q <q of", "> 1", lambda app: app.invoke("q"))


class Own(LLMChain):
    def prep_inputs(self, inputs: Any) -> Any:
        return {"x": f"own {inputs}"}


def with_method(chain: LLMChain) -> LLMChain:
    vars(chain)["prep_inputs"] = lambda inputs: {"x": f"own {inputs}"}
    return chain


def of_the_same_name(service: Service) -> Any:
    """A chain of a class LLMChain of the user's, in a module of the name of LangChain's."""
    cls: Any = type("LLMChain", (Own,), {"__module__": "app.llm"})
    return cls(llm=chat(service), prompt=PromptTemplate.from_template("about {x}"))


LEFT: dict[str, Callable[[Service], Any]] = {
    "a memory": lambda service: llm_chain(service, memory=ConversationBufferMemory()),
    "a class of the user's": lambda service: Own(llm=chat(service), prompt=PromptTemplate.from_template("about {x}")),
    "a class of the user's with the same name": of_the_same_name,
    "a method of the object's own": lambda service: with_method(llm_chain(service)),
    "all generations": lambda service: llm_chain(service, return_final_only=False),
}


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.filterwarnings("ignore")
def test_other_chains_are_left_to_the_framework(service: Service, name: str) -> None:
    chain, again = LEFT[name](service), LEFT[name](service)

    def answering(chain: Any) -> Any:
        return RunnableLambda(lambda text: [str(chain.invoke({"x": f"{text} {number}"})) for number in range(2)])

    with counted(service) as original:
        expected = answering(chain).invoke("q")
    fast = optimize(answering(again))
    service.lasts_s = 0.02
    with counted(service) as made:
        found = fast.invoke("q")
    assert [each.split("full_generation")[0] for each in found] == [
        each.split("full_generation")[0] for each in expected
    ]
    assert made == original
    assert optimized(fast).reports[-1].hits == 0
