"""A reading that is late: the run has changed the settings of a component by then, and asked with the old ones."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_community.vectorstores import FAISS
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from llama_index.llms.openai import OpenAI
from tavily import TavilyClient

from teola_plugin import optimize, optimized
from tests.support.hosted_service import Service, served
from tests.support.late_readings import late_until


class Told(Service):
    """Notes the settings, too."""

    def reply_to(self, path: str, given: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(
            path + repr(sorted(each for each in given.items() if each[0] != "messages")) + repr(given)[-40:]
        )
        return super().reply_to(path, given)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr("tests.support.hosted_service.Service", Told)
    with served() as service:
        service.requests = []
        yield service


def chat(service: Service) -> tuple[Any, Callable[[str], Any], str, Any]:
    llm = ChatOpenAI(model="gpt-4o-mini", base_url=service.url, api_key="x", max_retries=0)
    return llm, lambda text: llm.invoke(text).content, "temperature", 0.9


def llama(service: Service) -> tuple[Any, Callable[[str], Any], str, Any]:
    llm = OpenAI(model="gpt-4o-mini", api_base=service.url, api_key="x", max_retries=0)
    return llm, lambda text: llm.complete(text).text, "temperature", 0.9


def search(service: Service) -> tuple[Any, Callable[[str], Any], str, Any]:
    client = TavilyClient("key", api_base_url=service.url)
    return client, client.search, "base_url", service.url + "/other"


@pytest.mark.parametrize("has_found", [False, True])  # what a search makes beside the call is compared with nothing
@pytest.mark.parametrize("is_chain", [True, False])
@pytest.mark.parametrize("kind", [chat, llama, search])
def test_a_late_reading_asks_for_nothing_with_settings_of_later(
    kind: Callable[[Service], Any], is_chain: bool, has_found: bool, service: Service
) -> None:
    component, ask, name, later = kind(service)
    embeddings = OpenAIEmbeddings(base_url=service.url, api_key="x", max_retries=0, check_embedding_ctx_length=False)
    retriever = InMemoryVectorStore.from_texts(["hive"], embeddings).as_retriever()
    first, changed = getattr(component, name), threading.Event()

    def change() -> None:
        with open(os.devnull):
            if name == "base_url":
                component.base_url = later
            else:
                component.temperature = later
        changed.set()

    def answer(text: str) -> Any:
        if has_found:
            retriever.invoke(text)
        found = [ask(f"{text} 1")]
        change()
        return [*found, ask(f"{text} 2"), ask(f"{text} 3")]

    plain: Any = RunnableLambda(answer) | RunnableLambda(lambda found: found) if is_chain else answer
    fast, asked = optimize(plain), list[Counter[str]]()
    for app in (plain, fast, fast):
        setattr(component, name, first)
        changed.clear()
        service.requests.clear()
        service.lasts_s = 0.1
        with late_until(changed):
            app.invoke("hives") if is_chain else app("hives")
        asked.append(Counter(service.requests))
    assert asked[0].total() == 3 + has_found
    assert asked[1] == asked[2] == asked[0]
    assert optimized(fast).reports[-1].wasted == 0


def test_a_late_reading_does_not_look_for_documents_that_the_program_has_changed(
    service: Service,
) -> None:
    own: Any = {"base_url": service.url, "api_key": "x", "max_retries": 0}
    llm, embeddings = ChatOpenAI(model="m", **own), OpenAIEmbeddings(**own, check_embedding_ctx_length=False)
    store, changed = FAISS.from_texts(["hive"], embeddings, metadatas=[{"n": 1}]), threading.Event()

    def answer(text: str) -> Any:
        found = store.similarity_search(text)
        first = llm.invoke(str([each.metadata for each in found])).content
        for each in found:
            each.metadata["seen"] = True
        changed.set()
        return first, llm.invoke("2").content, llm.invoke("3").content

    fast, asked = optimize(answer), list[Counter[str]]()
    for app in (answer, fast, fast):
        next(iter(store.docstore._dict.values())).metadata.pop("seen", None)
        changed.clear()
        service.requests.clear()
        service.lasts_s = 0.1
        with late_until(changed):
            app("hives")
        asked.append(Counter(service.requests))
    assert asked[1] == asked[2] == asked[0]
