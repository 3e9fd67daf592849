"""Models with `streaming=True`, whose `invoke` makes a whole reply of a stream: the chunks are requested early."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableConfig, RunnableLambda, RunnablePassthrough
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph

from teola_plugin import optimize, optimized
from tests.adapters.reader.langchain_reading import stopped
from tests.support.hosted_service import Service, counted


class State(TypedDict, total=False):
    q: str
    said: Any


class Tokens(BaseCallbackHandler):
    """Hears the tokens of models."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_llm_new_token(self, token: str, **kwargs: Any) -> None:
        self.heard.append(token)


@tool
def look_up(word: str) -> str:
    """Looks a word up."""
    return word


def model_of(service: Service, **given: Any) -> ChatOpenAI:
    return ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0, streaming=True, **given)


def invoked(llm: Any) -> Any:
    return lambda state: {"said": [llm.invoke(f"{n} {state['q']}") for n in range(2)]}


def awaited(llm: Any) -> Any:
    async def node(state: State) -> Any:
        return {"said": [await llm.ainvoke(f"{n} {state['q']}") for n in range(2)]}

    return node


def configured(llm: Any) -> Any:
    def node(state: State, config: RunnableConfig) -> Any:
        return {"said": [llm.invoke(f"{n} {state['q']}", config) for n in range(2)]}

    return node


def with_tools(llm: Any) -> Any:
    return invoked(llm.bind_tools([look_up]))


def made_in_the_body(llm: Any) -> Any:
    return lambda state: {"said": [llm.model_copy().invoke("0"), ChatOpenAI(
        model="m", api_key="none", base_url=llm.openai_api_base, max_retries=0, streaming=True,
    ).invoke("1 " + state["q"])]}  # fmt: skip


def parsed(llm: Any) -> Any:
    chain = ChatPromptTemplate.from_template("{n} {q}") | llm | StrOutputParser()
    return lambda state: {"said": [chain.invoke({"n": n, "q": state["q"]}) for n in range(2)]}


def in_turn(llm: Any) -> Any:
    """A chain without functions."""
    asked = [ChatPromptTemplate.from_template(f"{n} {{q}}") | llm | StrOutputParser() for n in range(2)]
    chain: Any = RunnablePassthrough.assign(a=asked[0]) | RunnablePassthrough.assign(b=asked[1])
    return chain | RunnableLambda(lambda found: {"said": [found["a"], found["b"]]})


def graph_of(node: Any) -> Any:
    return StateGraph(State).add_node("n", node).add_edge(START, "n").compile()


def call(pipeline: Any, handlers: list[Any]) -> Any:
    node = pipeline.nodes["n"] if hasattr(pipeline, "nodes") else None
    config = {"callbacks": handlers}
    if node is not None and getattr(node.bound, "func", None) is None:
        return asyncio.run(pipeline.ainvoke({"q": "why"}, config))
    return pipeline.invoke({"q": "why"}, config)


def shown(said: Any) -> Any:
    """What was said, without the ids of runs."""
    return [each if isinstance(each, str) else each.model_copy(update={"id": None}) for each in said["said"]]


@pytest.mark.parametrize("make", [invoked, awaited, configured, with_tools, parsed, in_turn])
def test_a_reply_that_langchain_makes_of_chunks_is_requested_early(
    service: Service, make: Callable[[Any], Any]
) -> None:
    """Each request is made once, and the message is the same: an AIMessage with the metadata of chunks."""
    service.lasts_s = 0.05
    made = make(model_of(service))
    plain = made if make is in_turn else graph_of(made)
    fast = optimize(plain)
    expected = shown(call(plain, []))
    for _ in range(2):
        with counted(service) as asked:
            assert shown(call(fast, [])) == expected
        assert sorted(asked.values()) == [1, 1]
    assert optimized(fast).reports[-1].hits


@pytest.mark.parametrize("make", [invoked, awaited, configured, parsed, in_turn])
def test_who_hears_tokens_gets_them_as_they_come(service: Service, make: Callable[[Any], Any]) -> None:
    service.lasts_s = 0.05
    made = make(model_of(service))
    plain = made if make is in_turn else graph_of(made)
    fast = optimize(plain)
    call(fast, [])
    one, other = Tokens(), Tokens()
    expected = shown(call(plain, [one]))
    with counted(service) as asked:
        assert shown(call(fast, [other])) == expected
        time.sleep(0.1)
    assert sorted(asked.values()) == [1, 1]
    assert one.heard == other.heard != []
    assert optimized(fast).reports[-1].hits == 0


@pytest.mark.parametrize("where", ["model", "config", "binding"])
def test_a_handler_of_the_function_s_hears_tokens(service: Service, where: str) -> None:
    handler = Tokens()
    llm: Any = model_of(service, callbacks=[handler] if where == "model" else None)
    if where == "binding":
        llm = llm.with_config(callbacks=[handler])
    given: Any = {"callbacks": [handler]} if where == "config" else None
    assert stopped(lambda x: llm.invoke(x, config=given).content, "a")


def test_streams_that_the_function_reads_are_left_to_the_framework(service: Service) -> None:
    llm = model_of(service)

    def node(state: State) -> Any:
        return {"said": ["".join(str(each.content) for each in llm.stream(state["q"])), llm.invoke("1").content]}

    fast = optimize(graph_of(node))
    for _ in range(2):
        with counted(service) as asked:
            assert fast.invoke({"q": "why"})["said"] == ["<why>", "<1>"]
        assert sorted(asked.values()) == [1, 1]


def test_tokens_of_a_graph_are_streamed(service: Service) -> None:
    plain = graph_of(invoked(model_of(service)))
    fast = optimize(plain)
    streams = [
        [each[0].content for each in p.stream({"q": "why"}, stream_mode="messages")] for p in (plain, fast, fast)
    ]
    assert streams[0] == streams[1] == streams[2]
