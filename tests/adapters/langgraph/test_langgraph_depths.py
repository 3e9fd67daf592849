"""How far a graph is read: no further than something may be found."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

from teola_plugin import optimize
from teola_plugin.adapters.langgraph.reading import GraphReader
from teola_plugin.adapters.reader.prediction import Prediction
from teola_plugin.worth import Worth
from tests.support.hosted_service import READ_S, Service, asked_side_by_side, counted


class State(TypedDict, total=False):
    question: str
    said: list[str]
    n1: str
    n2: str
    n3: str
    n4: str
    n5: str


Readings = list[list[int]]


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Readings:
    """The supersteps of each evaluation."""
    found: Readings = []
    superstep, evaluate = GraphReader.superstep, Prediction._read_anew

    def begun(self: Prediction, *given: Any, **more: Any) -> Any:
        found.append([])
        return evaluate(self, *given, **more)

    def noted(self: GraphReader, run: Any, front: Any, way: Any) -> Any:
        found[-1].append(front.number)
        return superstep(self, run, front, way)

    monkeypatch.setattr(Prediction, "_read_anew", begun)
    monkeypatch.setattr(GraphReader, "superstep", noted)
    monkeypatch.setattr(Worth, "is_worth", lambda self: True)
    return found


def model(service: Service) -> ChatOpenAI:
    return ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0)  # type: ignore[arg-type,call-arg]


def in_turn(**nodes: Any) -> Any:
    graph: Any = StateGraph(State)
    for before, name in zip([START, *nodes], nodes, strict=False):
        graph.add_node(name, nodes[name]).add_edge(before, name)
    return graph.add_edge(name, END).compile()


def chain(service: Service, *, has_independent: bool) -> Any:
    """Asks, computes, asks about the reply, about the reply to that, and perhaps about the question again."""
    llm = model(service)
    nodes = {
        "n1": lambda state: {"n1": llm.invoke(f"n1 {state['question']}").content},
        "n2": lambda state: {"n2": state["n1"][::-1]},
        "n3": lambda state: {"n3": llm.invoke(f"n3 {state['n2']}").content},
        "n4": lambda state: {"n4": llm.invoke(f"n4 {state['n3']}").content},
        "n5": lambda state: {"n5": llm.invoke(f"n5 {state['question']}").content},
    }
    if not has_independent:
        del nodes["n5"]
    return in_turn(**{f"step{name}": node for name, node in nodes.items()})


@pytest.mark.parametrize("has_independent", [False, True])
def test_a_reading_ends_where_all_waits(service: Service, readings: Readings, has_independent: bool) -> None:
    app, service.lasts_s = chain(service, has_independent=has_independent), READ_S
    given = {"question": "why"}
    with counted(service) as original:
        expected = app.invoke(given)
    fast = optimize(app)
    if has_independent:
        service.holds, service.awaits = "n1 why", "n5 why"
    with counted(service) as made:
        assert fast.invoke(given) == expected
    assert made == original
    assert not service.has_waited_in_vain
    last = 5 if has_independent else 4
    assert readings[0] == [*range(1, last + 1)]
    assert len(readings) > last - 1
    assert all(len(each) == 1 for each in readings[1:])


def test_a_reading_goes_on_with_each_reply_that_something_waits_for_alone(service: Service) -> None:
    llm = model(service)

    def ask(state: State) -> State:
        return {"said": [str(llm.invoke(f"item {number}").content) for number in range(3)]}

    def grade(state: State) -> State:
        return {"said": [str(llm.invoke(f"grade {said}").content) for said in state["said"]]}

    asked_side_by_side(service, in_turn(ask=ask, grade=grade), "chat item 1", "grade <item 2>")


def test_a_reply_that_nothing_waits_for_alone_is_not_read(service: Service, readings: Readings) -> None:
    llm = model(service)

    def ask(state: State) -> State:
        return {"said": [str(llm.invoke(f"item {number}").content) for number in range(5)]}

    def tell(state: State) -> State:
        return {"n1": str(llm.invoke(f"all {state['said']}").content)}

    app = in_turn(ask=ask, tell=tell)
    expected = app.invoke({})
    assert optimize(app).invoke({}) == expected
    assert len(readings) <= 5  # at the beginning, with the first five replies at once or one by one, with the last


def test_what_one_reply_decides_is_read(service: Service) -> None:
    """A request that did need another reply needs it no more, once it is known which way the program goes."""
    llm = model(service)

    def first(state: State) -> State:
        return {"n1": str(llm.invoke("flag").content)}

    def second(state: State) -> State:
        return {"n2": str(llm.invoke("long").content) if "yes" in state["n1"] else "short"}

    def third(state: State) -> State:
        llm.invoke("other")
        return {"n3": str(llm.invoke(f"about {state['n2']}").content)}

    asked_side_by_side(service, in_turn(first=first, second=second, third=third), "chat other", "about short")


def test_a_loop_of_known_length_is_read_anew(service: Service) -> None:
    """What was found behind a loop of unknown length says little of what follows once the length is known."""
    llm = model(service)

    def split(state: State) -> State:
        return {"said": str(llm.invoke("Split it.").content).split("\n")}

    def ask(state: State) -> State:
        return {"said": [str(llm.invoke(f"item {name}").content) for name in state["said"]]}

    def grade(state: State) -> State:
        return {"said": [str(llm.invoke(f"grade {said}").content) for said in state["said"]]}

    asked_side_by_side(service, in_turn(split=split, ask=ask, grade=grade), "chat item hive 1", "grade <item hive 2>")
