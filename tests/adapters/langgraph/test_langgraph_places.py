"""Places of a graph without room: left to the framework for some visits, and the requests stay the same."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

from teola_plugin import optimize, optimized
from teola_plugin.adapters.langchain import models
from teola_plugin.adapters.langgraph import places
from teola_plugin.adapters.langgraph.follow import Following
from teola_plugin.adapters.langgraph.places import LATE_PREDICTIONS, MOST_REST_VISITS, Places
from teola_plugin.seams import current
from teola_plugin.trace import Progress
from teola_plugin.worth import Worth
from tests.conftest import REST_VISITS
from tests.support.hosted_service import Service, counted


class State(TypedDict, total=False):
    question: str
    items: list[str]
    way: str
    n1: str
    n2: str
    said: list[str]


@pytest.fixture(autouse=True)
def only_places_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "REST_VISITS", REST_VISITS)
    monkeypatch.setattr(Worth, "is_worth", lambda self: True)


def model(service: Service) -> ChatOpenAI:
    return ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0)  # type: ignore[arg-type,call-arg]


def in_turn(**nodes: Callable[[State], State]) -> Any:
    graph: Any = StateGraph(State)
    for before, name in zip([START, *nodes], nodes, strict=False):
        graph.add_node(name, nodes[name]).add_edge(before, name)
    return graph.add_edge(name, END).compile()


def asks_in_turn(service: Service) -> Any:
    """Each request needs the reply to the one before."""
    llm = model(service)
    return in_turn(
        first=lambda state: {"n1": llm.invoke(f"first {state['question']}").content},
        second=lambda state: {"n2": llm.invoke(f"second {state['n1']}").content},
    )


def asks_items(service: Service) -> Any:
    """Asks about each item; with several items there is room."""
    llm = model(service)

    def ask(state: State) -> State:
        return {"said": [str(llm.invoke(f"item {item}").content) for item in state["items"]]}

    return in_turn(ask=ask)


def routed(service: Service) -> Any:
    """A reply decides whether the question is asked about once or twice."""
    llm = model(service)

    def plan(state: State) -> State:
        return {"way": str(llm.invoke(f"plan {state['question']}").content)}

    def once(state: State) -> State:
        return {"n1": str(llm.invoke(f"once {state['question']}").content)}

    def twice(state: State) -> State:
        one, two = llm.invoke(f"one {state['question']}"), llm.invoke(f"two {state['question']}")
        return {"n1": f"{one.content} {two.content}"}

    graph: Any = StateGraph(State)
    for node in (plan, once, twice):
        graph.add_node(node)
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", lambda state: "twice" if "both" in state["way"] else "once", ["once", "twice"])
    return graph.add_edge("once", END).add_edge("twice", END).compile()


def places_of(fast: Any) -> Places:
    places: Places = optimized(fast).traced.follow.__self__.places  # type: ignore[union-attr]
    return places


def leave_out_next_visits(fast: Any) -> None:
    for rest in places_of(fast)._rests.values():
        rest.left = 50


def was_read(service: Service, app: Any, fast: Any, given: State) -> bool:
    """Whether a call read anything; it answers and asks as the original."""
    with counted(service) as original:
        expected = app.invoke(given)
    with counted(service) as made:
        assert fast.invoke(given) == expected
    assert made == original
    assert optimized(fast).reports[-1].wasted == 0
    return bool(optimized(fast).reports[-1].reading_s > 0)


def until_left_out(service: Service, app: Any, fast: Any, given: State) -> None:
    """Call until a call is not read: on a busy machine a reading may come too late to be judged."""
    for _ in range(20):
        if not was_read(service, app, fast, given):
            return
    raise AssertionError("each call was read")


def test_requests_in_turn_are_left_to_the_framework_and_tried_again(service: Service) -> None:
    app = asks_in_turn(service)
    fast = optimize(app)
    given: State = {"question": "why"}
    until_left_out(service, app, fast, given)
    calls = [was_read(service, app, fast, given) for _ in range(4 * REST_VISITS)]
    assert True in calls
    assert calls.count(False) > len(calls) // 2
    optimized(fast).wake()
    assert was_read(service, app, fast, given)


def test_a_loop_that_gets_more_rounds_is_read_again(service: Service) -> None:
    app = asks_items(service)
    fast = optimize(app)
    until_left_out(service, app, fast, {"items": ["a"]})
    leave_out_next_visits(fast)
    many: State = {"items": ["a", "b", "c"]}
    assert True in [was_read(service, app, fast, many) for _ in range(10)]
    service.holds, service.awaits = "item a", "item c"
    fast.invoke(many)
    assert not service.has_waited_in_vain


def test_a_way_that_was_not_taken_before_is_read(service: Service) -> None:
    app = routed(service)
    fast = optimize(app)
    until_left_out(service, app, fast, {"question": "why"})
    both: State = {"question": "both"}
    assert was_read(service, app, fast, both)
    service.holds, service.awaits = "one both", "two both"
    fast.invoke(both)
    assert not service.has_waited_in_vain


def test_requests_of_a_place_behind_one_that_is_left_out_are_made_once(service: Service) -> None:
    llm = model(service)
    app = in_turn(
        first=lambda state: {"n1": llm.invoke(f"first {state['question']}").content},
        each=lambda state: {"said": [llm.invoke(f"{n} {state['n1']}").content for n in range(3)]},
        last=lambda state: {"n2": llm.invoke(f"last {state['said']}").content},
    )
    fast = optimize(app)
    for n in range(6):
        places_of(fast).judge([(("first",), BEGIN)], BEGIN._replace(asked=1), had_room=False)
        was_read(service, app, fast, {"question": f"{n}"})


def test_nodes_that_the_framework_runs_side_by_side_are_left_out(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, note = model(service), service.note
    monkeypatch.setattr(service, "note", lambda asked: (note(asked), time.sleep(0.1)))
    graph: Any = StateGraph(State)
    for name in ("n1", "n2"):
        graph.add_node(
            f"ask {name}", lambda state, name=name: {name: llm.invoke(f"{name} {state['question']}").content}
        )
        graph.add_edge(START, f"ask {name}").add_edge(f"ask {name}", END)
    app = graph.compile()
    until_left_out(service, app, optimize(app), {"question": "why"})


def test_supersteps_without_requests_are_left_out_although_no_reading_had_the_time(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = model(service)

    def perhaps(state: State) -> State:
        return {"n1": str(llm.invoke("n1").content)} if "ask" in state["question"] else {"n1": "nothing"}

    app = in_turn(perhaps=perhaps)
    fast, begun, predict = optimize(app), [], Following._predict

    def noted(self: Following, *given: Any) -> None:
        begun.append(given)
        predict(self, *given)

    monkeypatch.setattr(Following, "_predict", noted)
    for _ in range(12):
        was_read(service, app, fast, {"question": "no"})
    assert len(begun) < 8
    begun.clear()
    for _ in range(2):  # in the first at the latest, it is noticed that there are requests after all
        was_read(service, app, fast, {"question": "ask"})
    assert begun


def test_a_tool_that_starts_while_a_model_of_a_rest_is_asked(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node of the superstep ends the rest as the model is about to be asked."""
    app = asks_in_turn(service)
    fast = optimize(app)
    given: State = {"question": "why"}
    until_left_out(service, app, fast, given)
    leave_out_next_visits(fast)
    is_known, begun = models.is_known_by_settings, []

    def begins_an_aside(model: Any) -> bool:
        session: Any = current()
        if session is not None and session._is_idle:
            session.aside("", lambda: begun.append(model))
        return is_known(model)

    monkeypatch.setattr(models, "is_known_by_settings", begins_an_aside)
    was_read(service, app, fast, given)
    assert begun


BEGIN = Progress(0, 0, 0.0, 0)


def visits(*ends: Progress, had_room: bool = False, late: int = 0) -> list[bool]:
    """Which of so many visits were left out, if those that were not ended so, the first `late` of them late."""
    places, left = Places(), []
    for number, end in enumerate(ends):
        left.append(places.is_left_out(("a",)))
        if not left[-1]:
            places.judge([(("a",), BEGIN)], end, had_room=had_room, is_late=number < late)
    return left


def test_predictions_that_are_always_too_late_are_left_out() -> None:
    end = Progress(1, 0, 0.0, 0)
    assert visits(*[end] * 6, late=6) == [False] * LATE_PREDICTIONS + [True] * 2
    assert visits(*[end] * 6, late=3) == [False] * 4 + [True] * 2
    assert not any(visits(*[end] * 6, late=6, had_room=True))
    assert visits(*[end] * 3, late=1) == [False, False, True]


def test_each_rest_is_twice_as_long_up_to_a_limit() -> None:
    left = visits(*[Progress(1, 0, 0.0, 0)] * 1000)
    rests = [len([*run]) for is_left, run in itertools.groupby(left) if is_left]
    assert rests[:4] == [REST_VISITS, 2 * REST_VISITS, 4 * REST_VISITS, 8 * REST_VISITS]
    assert max(rests) == MOST_REST_VISITS


@pytest.mark.parametrize("end", [Progress(1, 0, 0.03, 0), Progress(1, 1, 0.0, 0), Progress(1, 0, 0.0, 1)])
def test_a_place_that_gained_is_not_left_out(end: Progress) -> None:
    assert not any(visits(*[end] * 10))


def test_a_place_with_room_is_not_left_out() -> None:
    assert not any(visits(*[Progress(2, 0, 0.0, 0)] * 10, had_room=True))


def test_the_last_round_of_a_loop_asks_nothing_and_shows_nothing() -> None:
    places = Places()

    def left_out(asked: int) -> bool:
        if places.is_left_out(("a",)):
            return True
        places.judge([(("a",), BEGIN)], BEGIN._replace(asked=asked), had_room=asked > 1)
        return False

    assert not any(map(left_out, [3, 3, 0] * 4))
    assert [*map(left_out, [0, 0, 3])] == [False, True, True]  # two in a row: it asks nothing now
    unasked = Places()
    unasked.judge([(("a",), BEGIN)], BEGIN, had_room=False)
    assert unasked.is_left_out(("a",))


def test_all_places_are_read_again_after_more_requests_or_a_new_place() -> None:
    places = Places()

    def learn() -> None:
        places.judge([(("a",), BEGIN), (("b",), BEGIN._replace(asked=1))], Progress(2, 0, 0.0, 0), had_room=False)

    learn()
    places.compare((("a",), BEGIN), Progress(1, 0, 0.0, 0), ("b",))
    assert places.is_left_out(("a",))
    places.compare((("a",), BEGIN), Progress(2, 0, 0.0, 0), ("b",))
    assert not places.is_left_out(("b",))
    learn()
    places.compare((("a",), BEGIN), Progress(1, 0, 0.0, 0), ("c",))
    assert not places.is_left_out(("a",))
