"""Texts of LangChain's parsers, which are of a class of its own below `str`: requests of them are made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import pytest
import requests
from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.tools import Tool
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.graph import END, START, StateGraph
from openai import OpenAI

from teola_plugin import optimize, reads
from teola_plugin.value_keys import value_key
from tests.support.hosted_service import Service, counted

Find = Callable[[str], Any]


class State(TypedDict, total=False):
    found: Any


def retrieved(service: Service) -> Find:
    given: Any = {"model": "e", "api_key": "none", "base_url": service.url, "check_embedding_ctx_length": False}
    store = InMemoryVectorStore(OpenAIEmbeddings(**given))
    store.add_documents([Document("hive 1"), Document("hive 2")])
    retriever = store.as_retriever(search_kwargs={"k": 1})
    return lambda text: [each.page_content for each in retriever.invoke(text)]


def chatted(service: Service) -> Find:
    client = OpenAI(api_key="none", base_url=service.url, max_retries=0)

    def find(text: str) -> Any:
        reply = client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
        return reply.choices[0].message.content

    return find


def fetched(service: Service) -> Find:
    def find(text: str) -> Any:
        return [requests.get(f"{service.url}/pages", params={"n": n, "q": text}, timeout=5).json() for n in range(2)]

    return find


def looked_up(service: Service) -> Find:
    @reads("pages")
    def look(text: str) -> str:
        service.note(f"look {text}")
        return text.upper()

    tool = Tool("look", look, "Looks.")
    return lambda text: tool.invoke(text)


def told(service: Service) -> Find:
    llm = ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0)  # type: ignore[arg-type,call-arg]
    return lambda text: str(llm.invoke(text).content)


@pytest.mark.parametrize("make", [retrieved, chatted, fetched, looked_up, told])
def test_a_parsed_text_is_asked_for_once(service: Service, make: Callable[[Service], Find]) -> None:
    llm = ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0)  # type: ignore[arg-type,call-arg]
    parsed, find = llm | StrOutputParser(), make(service)

    def node(state: State) -> State:
        text = parsed.invoke("name")
        llm.invoke("hold")
        return {"found": find(text)}

    app = StateGraph(State).add_node("node", node).add_edge(START, "node").add_edge("node", END).compile()
    with counted(service) as original:
        expected = app.invoke({})
    fast = optimize(app)
    service.lasts_s = 0.3  # a reply that is there before the function was first read gains nothing
    service.holds, service.awaits = ("n=0", "n=1") if make is fetched else ("chat hold", "<name>")
    with counted(service) as made:
        assert fast.invoke({}) == expected
    assert made == original
    assert not service.has_waited_in_vain


def test_a_parsed_text_has_the_key_of_its_text() -> None:
    class Text(str):
        __slots__ = ()

    parsed = StrOutputParser().invoke(AIMessage("name"))
    assert type(parsed) is not str
    assert value_key({"q": parsed}) == value_key({"q": "name"})
    assert value_key(Text("name")) != value_key("name")
