"""Graphs whose state is one value (`StateGraph(dict)`): each node gets the value itself, and may change it in place."""

from __future__ import annotations

import asyncio
import copy
import operator
import random
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from typing_extensions import TypedDict

from teola_plugin import optimize, optimized
from tests.adapters.langgraph.test_langgraph_differential import told
from tests.support.langgraph_reading import read
from tests.support.langgraph_world import World

Node = Callable[[Any], Any]
GIVEN = {"question": "why", "log": ["begin"]}


def keeps(w: World, name: str) -> Node:
    def node(state: dict[str, Any]) -> dict[str, Any]:
        state[name] = w.chat.invoke(f"{name} {state.get('question', '')}").content
        return state

    return node


def keeps_errors(w: World, name: str) -> Node:
    def node(state: dict[str, Any]) -> dict[str, Any]:
        try:
            state[name] = w.chat.invoke(f"{name} {state['question']}").content
        except Exception as e:
            state["log"].append(str(e))
        return state

    return node


def rebuilds(w: World, name: str) -> Node:
    return lambda state: {**state, name: w.chat.invoke(f"{name} {len(state)}").content}


def replaces(w: World, name: str) -> Node:
    return lambda state: {"question": w.chat.invoke(f"{name} {state.get('question')}").content, "log": [name]}


def appends(w: World, name: str) -> Node:
    def node(state: dict[str, Any]) -> dict[str, Any]:
        state.setdefault("log", []).append(w.chat.invoke(f"{name} {len(state.get('log', []))}").content[:3])
        state.pop("question", None)
        return state

    return node


def returns_nothing(w: World, name: str) -> Node:
    def node(state: dict[str, Any]) -> None:
        state[name] = name
        w.effects.append(f"{name} {sorted(state)}")

    return node


def goes(w: World, name: str) -> Node:
    def node(state: dict[str, Any]) -> Any:
        state[name] = w.chat.invoke(f"{name} goes").content
        return Command(goto=END) if "log" not in state else Command(goto=[])

    return node


def commands(w: World, name: str) -> Node:
    return lambda state: [Command(update={"__root__": {**state, name: w.chat.invoke(name).content}})]


FORMS = (keeps, keeps, keeps_errors, rebuilds, replaces, appends, returns_nothing, goes, commands)


def graph_of(forms: list[Any], w: World, *, is_branched: bool = False, saver: Any = None) -> Any:
    graph: Any = StateGraph(dict)
    names = [f"n{number}" for number in range(len(forms))]
    for name, form in zip(names, forms, strict=True):
        graph.add_node(name, form(w, name))
    for before, name in zip([START, *names], [*names, END], strict=True):
        if is_branched and before != START and name != END:
            graph.add_conditional_edges(before, lambda state, name=name: END if "n9" in state else name)
        else:
            graph.add_edge(before, name)
    return graph.compile(checkpointer=saver)


def outcome(app: Any, w: World, way: str) -> Any:
    w.reset()
    given, config = copy.deepcopy(GIVEN), {"configurable": {"thread_id": "thread-1"}}
    try:
        if way == "invoke":
            found = app.invoke(given, config)
        elif way == "ainvoke":
            found = asyncio.run(app.ainvoke(given, config))
        else:
            found = [told(chunk) for chunk in app.stream(given, config, stream_mode=["values", "updates"])]
    except Exception as e:
        found = e
    history = [told(each.values) for each in app.get_state_history(config)] if app.checkpointer else []
    return told(found), told(given), history, list(w.effects)


@pytest.mark.parametrize("seed", range(60))
def test_graphs_made_up_at_random(seed: int) -> None:
    chance = random.Random(seed)
    forms = [chance.choice(FORMS) for _ in range(chance.randint(2, 5))]
    way, is_branched = chance.choice(["invoke", "invoke", "ainvoke", "stream"]), chance.random() < 0.3
    is_saved = chance.random() < 0.4
    fails = chance.choice(["nobody", "nobody", "n1"])

    def made(w: World) -> Any:
        return graph_of(forms, w, is_branched=is_branched, saver=InMemorySaver() if is_saved else None)

    w = World(fails=lambda prompt: fails in str(prompt), least_s=0.005)
    plain, asked = outcome(made(w), w, way), w.engine.asked
    fast = optimize(made(w))
    for _ in range(1 if is_saved else 2):
        assert outcome(fast, w, way) == plain
        assert (
            w.engine.asked >= asked if fails == "n1" else w.engine.asked == asked
        )  # an engine of our own, which fails


def test_nodes_that_change_the_state_in_place_run_ahead() -> None:
    w = World()
    found = read(graph_of([keeps, keeps_errors, rebuilds, keeps], w), {"question": "why", "log": []})
    assert not found.barrier
    assert [len(each) for each in found.rounds] == [4]
    fast = optimize(graph_of([keeps] * 4, World(least_s=0.05)))
    fast.invoke(dict(GIVEN))
    fast.invoke(dict(GIVEN))
    assert optimized(fast).reports[-1].hits >= 3


def test_a_reply_that_is_asked_about_is_waited_for() -> None:
    def about(w: World, name: str) -> Node:
        return lambda state: {**state, name: w.chat.invoke(f"{name} {state['n0']}").content}

    found = read(graph_of([keeps, about, keeps], World()), {"question": "why"})
    assert [len(each) for each in found.rounds] == [2, 1]


def test_nodes_beside_each_other_are_not_read() -> None:
    """Both get the same dict; which of them sees what the other stores is chance."""
    w = World()
    graph: Any = StateGraph(dict)
    for name in ("a", "b"):
        graph.add_node(name, keeps(w, name)).add_edge(START, name)
    found = read(graph.add_edge("a", END).compile(), {"question": "why"})
    assert "beside each other" in found.barrier
    assert not found.asked


class Listed(TypedDict):
    said: str


@pytest.mark.parametrize("schema", [Annotated[list, operator.add], list])
def test_states_that_are_lists(schema: Any) -> None:
    w = World(least_s=0.005)
    graph: Any = StateGraph(schema)
    graph.add_node("a", lambda state: [w.chat.invoke(f"a {len(state)}").content])
    graph.add_node("b", lambda state: [w.chat.invoke(f"b {len(state)}").content])
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
    app = graph.compile()
    found = read(app, ["x"])
    assert [len(each) for each in found.rounds] == [2]
    assert optimize(app).invoke(["x"]) == app.invoke(["x"])


def test_a_graph_inside_a_graph() -> None:
    w = World(least_s=0.005)
    inner = graph_of([keeps, keeps], w)

    def calls(w: World, name: str) -> Node:
        return lambda state: {**state, name: inner.invoke({"question": "inside"})["n1"]}

    app = graph_of([keeps, calls, keeps], w)
    assert [len(each) for each in read(app, {"question": "why"}).rounds] == [4]
    assert optimize(app).invoke(dict(GIVEN)) == app.invoke(dict(GIVEN))
