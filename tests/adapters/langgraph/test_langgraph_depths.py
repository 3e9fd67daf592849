"""How far ahead a graph is read: as far as readings with as many replies have found requests in earlier calls."""

from __future__ import annotations

import math
from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from teola_plugin import optimize
from teola_plugin.adapters.langgraph.depths import EVERY, FEW, Depths
from teola_plugin.adapters.langgraph.reading import GraphReader
from teola_plugin.worth import Worth
from tests.support.langgraph_world import World


class State(TypedDict, total=False):
    question: str
    n1: str
    n2: str
    n3: str
    n4: str
    n5: str


def graph_of(w: World, *, has_independent: bool) -> Any:
    """Asks, computes, asks about the reply, about the reply to that, and perhaps about the question again."""
    nodes = {
        "n1": lambda state: {"n1": w.chat.invoke(f"n1 {state['question']}").content},
        "n2": lambda state: {"n2": state["n1"][::-1]},
        "n3": lambda state: {"n3": w.chat.invoke(f"n3 {state['n2']}").content},
        "n4": lambda state: {"n4": w.chat.invoke(f"n4 {state['n3']}").content},
        "n5": lambda state: {"n5": w.chat.invoke(f"n5 {state['question']}").content},
    }
    names = [*nodes] if has_independent else [*nodes][:-1]
    graph: Any = StateGraph(State)
    for before, name in zip([START, *names], names, strict=False):
        graph.add_node(name, nodes[name]).add_edge(before, name)
    return graph.add_edge(names[-1], END).compile()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The supersteps that are read, in order."""
    found: list[int] = []
    superstep = GraphReader.superstep

    def noted(self: GraphReader, run: Any, front: Any, way: Any) -> Any:
        found.append(front.number)
        return superstep(self, run, front, way)

    monkeypatch.setattr(GraphReader, "superstep", noted)
    return found


@pytest.mark.parametrize("has_independent", [False, True])
def test_a_reading_ends_where_nothing_was_found_before(
    read: list[int], monkeypatch: pytest.MonkeyPatch, has_independent: bool
) -> None:
    monkeypatch.setattr(Worth, "is_worth", lambda self: True)
    w = World(least_s=0.02)
    app = graph_of(w, has_independent=has_independent)
    fast, reached = optimize(app), list[int]()
    for number in range(EVERY):
        read.clear()
        given = {"question": f"why {number}"}
        assert fast.invoke(given) == app.invoke(given)
        first = read[: read[1:].index(read[0]) + 1] if read[0] in read[1:] else read
        reached.append(max(first))
    if has_independent:  # the last node is read with the first
        assert set(reached) == {5}
    else:
        assert {*reached[:FEW], reached[EVERY - 1]} == {4}
        assert {*reached[FEW : EVERY - 1]} == {2}


def test_the_last_superstep() -> None:
    depths = Depths()
    assert depths.last(0) == math.inf
    for _ in range(FEW):
        depths.begin()
        assert depths.last(0) == math.inf
        for superstep, replies in ((1, 0), (2, 1), (3, 2), (3, 1), (5, 4)):
            depths.note(superstep, replies, has_found=True)
        for superstep, replies in ((2, 0), (3, 0), (4, 4), (5, 1), (5, 3)):
            depths.note(superstep, replies, has_found=False)
    depths.begin()
    assert [depths.last(replies) for replies in range(5)] == [1, 4, 4, 4, math.inf]
    depths.note(7, 2, has_found=True)  # by a late reading: nobody has looked there with fewer replies
    assert depths.last(0) == math.inf
    depths.note(7, 1, has_found=False)
    assert [depths.last(replies) for replies in range(3)] == [1, 4, math.inf]
    for _ in range(EVERY - FEW - 1):
        depths.begin()
    assert depths.last(1) == math.inf
