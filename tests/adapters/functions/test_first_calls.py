"""The first call of a function: the run may be past an unread statement before the reading has come there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.graph import StateGraph

from teola_plugin import optimize, optimized
from teola_plugin.adapters.reader import stacks
from teola_plugin.runtime.session import background
from tests.support.hosted_service import Service, counted


class State(TypedDict):
    text: str
    said: Any


Answers = Callable[[str], Any]


def of_function(answer: Answers) -> tuple[Any, Answers]:
    fast = optimize(answer)
    return fast, fast


def of_chain(answer: Answers) -> tuple[Any, Answers]:
    chain = optimize(RunnableLambda(answer) | RunnableLambda(lambda said: said))
    return chain, chain.invoke


def of_graph(answer: Answers) -> tuple[Any, Answers]:
    def node(state: State) -> Any:
        return {"said": answer(state["text"])}

    graph = optimize(StateGraph(State).add_node(node).set_entry_point("node").compile())
    return graph, lambda text: graph.invoke({"text": text})["said"]  # type: ignore[arg-type]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
    """No function has been called, and readings begin once the first request has been made."""
    monkeypatch.setattr(stacks, "_begun", {})
    monkeypatch.setattr(stacks, "_known", {})
    begin = background.begin_reading

    def begin_late(work: Callable[[], None]) -> Any:
        def read() -> None:
            with service.news:
                service.news.wait_for(lambda: service.asked, 5)
            work()

        return begin(read)

    monkeypatch.setattr(background, "begin_reading", begin_late)


def behind_a_file(llm: Any) -> Callable[[str], Any]:
    def answer(text: str) -> Any:
        with open(os.devnull) as file:
            rows = [f"{n}{file.read()}" for n in range(4)]
        return [llm.invoke(f"{text} {row}").content for row in rows]

    return answer


def behind_two(llm: Any) -> Callable[[str], Any]:
    def answer(text: str) -> Any:
        with open(os.devnull):
            first = llm.invoke(f"{text} first").content
        with open(os.devnull):
            pass
        return [first, *(llm.invoke(f"{text} {n}").content for n in range(4))]

    return answer


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("kind", [of_function, of_chain, of_graph])
@pytest.mark.parametrize("make", [behind_a_file, behind_two])
def test_the_first_call_goes_on_behind_what_is_not_read(
    make: Callable[[Any], Answers], kind: Callable[[Answers], tuple[Any, Answers]], service: Service
) -> None:
    plain, service.lasts_s = make(ChatOpenAI(model="m", base_url=service.url, api_key="x", max_retries=0)), 0.2
    with counted(service) as original:
        said = plain("hives")
    fast, call = kind(plain)
    service.forget()
    with counted(service) as asked:
        assert call("hives") == said
    assert asked == original
    assert optimized(fast).reports[-1].hits >= 3


def test_references_are_counted_as_without(service: Service) -> None:
    llm = ChatOpenAI(model="m", base_url=service.url, api_key="x", max_retries=0)

    def answer(text: str) -> Any:
        with open(os.devnull):
            rows = [text]
        said = [llm.invoke(f"{text} {n}").content for n in range(3)]
        return said, sys.getrefcount(rows)

    fast = optimize(answer)
    service.lasts_s = 0.05
    assert answer("hives") == fast("hives") == fast("hives") == fast("hives")
