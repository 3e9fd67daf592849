"""Functions and objects that call graphs: the requests of the graphs' nodes are asked early, all else stays equal."""

from __future__ import annotations

import asyncio
import inspect
import operator
import os
import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Send

from teola_plugin import explain, optimize, optimized
from teola_plugin.adapters.functions import known, runs
from tests.support.hosted_service import Service, asked_side_by_side, counted, served
from tests.support.late_readings import late_until


@pytest.fixture(params=[True, False], ids=["both frameworks", "LangChain alone"], autouse=True)
def frameworks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(runs, "has_llamaindex", lambda: False)
        monkeypatch.setattr(known, "has_llamaindex", lambda: False)


@pytest.fixture
def service() -> Iterator[Service]:
    with served() as made:
        yield made


@pytest.fixture
def llm(service: Service) -> ChatOpenAI:
    return ChatOpenAI(model="m", base_url=service.url, api_key="x", max_retries=0)


class State(TypedDict, total=False):
    text: str
    first: str
    second: str
    found: Annotated[list[str], operator.add]


def compiled(*nodes: Any, beside: bool = False, **options: Any) -> Any:
    """A graph of nodes, one after the other or all beside each other."""
    graph, last = StateGraph(State), START
    for at, node in enumerate(nodes):
        graph.add_node(str(at), node)
        graph.add_edge(START if beside else last, str(at))
        last = str(at)
    return graph.compile(**options)


def parts_of(llm: Any) -> list[Any]:
    return [
        lambda state: {"first": llm.invoke(f"{state['text']} a").content},
        lambda state: {"second": llm.invoke(f"{state['text']} b").content},
    ]


def run(function: Callable[[str], Any]) -> Any:
    found = function("hive")
    return asyncio.run(found) if inspect.iscoroutine(found) else found


# --- what is asked early ---------------------------------------------------------------------------------------------


def in_turn(llm: Any) -> Any:
    graph = compiled(*parts_of(llm))
    return lambda text: [graph.invoke({"text": f"{text} {number}"}) for number in range(3)]


def in_turn_async(llm: Any) -> Any:
    async def part(state: State) -> State:
        return {"first": (await llm.ainvoke(f"{state['text']} a")).content}

    graph = compiled(part, parts_of(llm)[1])

    async def answer(text: str) -> Any:
        return [await graph.ainvoke({"text": f"{text} {number}"}) for number in range(3)]

    return answer


def with_configs(llm: Any) -> Any:
    graph = compiled(*parts_of(llm))

    def answer(text: str) -> Any:
        first = graph.invoke({"text": f"{text} 0"}, {"recursion_limit": 5, "tags": ["t"]})
        return first, graph.invoke({"text": f"{text} 2"}, config={"run_name": "r"})

    return answer


def nested(llm: Any) -> Any:
    inner = compiled(*parts_of(llm))
    outer = compiled(lambda state: inner.invoke({"text": state["text"]}), inner)
    return lambda text: [outer.invoke({"text": f"{text} {number}"}) for number in range(3)]


def sent(llm: Any) -> Any:
    graph = StateGraph(State)
    graph.add_node("plan", lambda state: Command(goto=[Send("part", {"text": f"{state['text']} {n}"}) for n in (0, 2)]))
    graph.add_node("part", lambda state: {"found": [llm.invoke(f"{state['text']} a").content]})
    made = graph.add_edge(START, "plan").compile()

    def answer(text: str) -> Any:
        llm.invoke(f"{text} before")
        return made.invoke({"text": text})

    return answer


class App:
    """Holds a graph with nodes of its own."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.asked = 0
        self.graph = compiled(self.part, self.other)

    def part(self, state: State) -> State:
        return {"first": self.llm.invoke(f"{state['text']} a").content}

    def other(self, state: State) -> State:
        return {"second": self.llm.invoke(f"{state['text']} b").content}

    def __call__(self, text: str) -> Any:
        self.asked += 1
        return self.graph.invoke({"text": f"{text} 0"}), self.graph.invoke({"text": f"{text} 2"})


ASKED: dict[str, Any] = {
    "in turn": in_turn, "in turn, async": in_turn_async, "with configs": with_configs, "nested": nested, "sent": sent,
    "an object": App,
}  # fmt: skip


@pytest.mark.parametrize("form", ASKED)
def test_the_requests_of_graphs_are_asked_side_by_side(service: Service, llm: Any, form: str) -> None:
    last = "a" if form == "sent" else "b"
    asked_side_by_side(service, ASKED[form](llm), "hive 0 a", f"hive 2 {last}", run)


def test_agents_are_asked_side_by_side(service: Service, llm: Any) -> None:
    agents = [create_agent(llm), create_agent(llm, name="other")]

    def answer(text: str) -> Any:
        asked = [each.invoke({"messages": [("user", f"{text} {at}")]}) for at, each in enumerate(agents)]
        return [each["messages"][-1].content for each in asked]

    asked_side_by_side(service, answer, "hive 0", "hive 1", run)


# --- what is left to the framework's run -----------------------------------------------------------------------------


def stored(llm: Any) -> Any:
    def node(state: State, *, store: BaseStore) -> State:
        return {"first": llm.invoke(f"{state['text']} {store.get(('a',), 'b')}").content}

    return compiled(node, *parts_of(llm), store=InMemoryStore())


LEFT: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a store": (stored, {}, "has a store of its own"),
    "a checkpointer": (
        lambda llm: compiled(*parts_of(llm), checkpointer=InMemorySaver()),
        {"config": {"configurable": {"thread_id": "1"}}},
        "has a checkpointer of its own",
    ),
    "an interrupt": (
        lambda llm: compiled(*parts_of(llm), interrupt_after=["1"], checkpointer=InMemorySaver()),
        {"config": {"configurable": {"thread_id": "1"}}},
        "has a checkpointer of its own",
    ),
    "a way to return": (
        lambda llm: compiled(*parts_of(llm)),
        {"stream_mode": "updates"},
        "arguments that are not read",
    ),
    "some keys": (lambda llm: compiled(*parts_of(llm)), {"output_keys": "first"}, "arguments that are not read"),
}


@pytest.mark.parametrize("form", LEFT)
def test_graphs_with_more_than_nodes_are_left_to_their_run(service: Service, llm: Any, form: str) -> None:
    make, options, why = LEFT[form]
    graph = make(llm)

    def answer(text: str) -> Any:
        return graph.invoke({"text": text}, **options)

    fast = optimize(answer)
    for _ in range(2):
        with counted(service) as plain:
            expected = answer("hive")
        with counted(service) as found:
            assert fast("hive") == expected
        assert found == plain
    assert optimized(fast).reports[-1].hits == 0
    assert why in explain(fast)


def test_a_function_inside_a_run_leaves_graphs_to_their_run(service: Service, llm: Any) -> None:
    """The graph would be a part of the run, whose settings count for the graph too."""
    graph = compiled(*parts_of(llm))

    @optimize
    def answer(text: str) -> Any:
        return graph.invoke({"text": text})

    with counted(service) as found:
        assert RunnableLambda(lambda text: answer(text)).invoke("hive")["second"] == "<hive b>"
    assert found == {"chat hive a": 1, "chat hive b": 1}
    assert optimized(answer).reports[-1].hits == 0


# --- the same answers ------------------------------------------------------------------------------------------------

NUMBER = 0


def counting(llm: Any) -> Any:
    def count(state: State) -> State:
        global NUMBER
        NUMBER += 1
        return {"first": llm.invoke(f"{state['text']} {NUMBER}").content}

    graph = compiled(count, *parts_of(llm))
    return lambda text: [graph.invoke({"text": text}) for _ in range(2)] + [llm.invoke(f"after {NUMBER}").content]


def raising(llm: Any) -> Any:
    def part(state: State) -> State:
        said = llm.invoke(f"{state['text']} a").content
        if "1" in said:
            raise ValueError(said)
        return {"first": said}

    graph = compiled(part, *parts_of(llm))

    def answer(text: str) -> Any:
        found = []
        for number in range(3):
            try:
                found.append(graph.invoke({"text": f"{text} {number}"}))
            except ValueError as e:
                found.append(llm.invoke(f"handled {e}").content)
        return found

    return answer


def limited(llm: Any) -> Any:
    graph = compiled(*parts_of(llm))

    def answer(text: str) -> Any:
        try:
            return graph.invoke({"text": text}, {"recursion_limit": 1})
        except GraphRecursionError:
            return llm.invoke(f"{text} instead").content

    return answer


def without_config(llm: Any) -> Any:
    graph = compiled(*parts_of(llm))

    def answer(text: str) -> Any:
        try:
            get_config()
        except RuntimeError:
            return llm.invoke(f"{text} outside").content, graph.invoke({"text": text})
        return llm.invoke(f"{text} inside").content

    return answer


def changed(llm: Any) -> Any:
    graph = compiled(*parts_of(llm), lambda state: {"found": [state["first"]]})

    def answer(text: str) -> Any:
        given: Any = {"text": text, "found": []}
        one = graph.invoke(given)
        one["found"].append("mine")
        return given, one, graph.invoke({"text": one["found"][0], "found": one["found"]})

    return answer


def beside(llm: Any) -> Any:
    graph = compiled(*parts_of(llm), beside=True)
    return lambda text: [graph.invoke({"text": f"{text} {number}"}) for number in range(2)]


SAME: dict[str, Any] = {
    "counting": counting, "raising": raising, "limited": limited, "without config": without_config, "changed": changed,
    "beside": beside,
}  # fmt: skip


@pytest.mark.parametrize("form", SAME)
def test_answers_and_requests_stay_the_same(service: Service, llm: Any, form: str) -> None:
    global NUMBER
    answer = SAME[form](llm)
    fast = optimize(answer)
    for _ in range(3):
        told = []
        for each in (answer, fast):
            NUMBER = 0
            with counted(service) as found:
                told.append((run(each), NUMBER, found))
        assert told[0] == told[1]


MODE = ""


def test_a_late_reading_asks_for_nothing_with_values_of_later(service: Service, llm: Any) -> None:
    global MODE
    changed = threading.Event()
    graph = compiled(lambda state: {"first": llm.invoke(f"{state['text']} {MODE}").content})

    def change() -> None:
        global MODE
        with open(os.devnull):
            MODE = "later"
        changed.set()

    def answer(text: str) -> Any:
        found = [graph.invoke({"text": f"{text} 1"})]
        change()
        return [*found, graph.invoke({"text": f"{text} 2"}), graph.invoke({"text": f"{text} 3"})]

    fast, told = optimize(answer), []
    for app in (answer, fast, fast):
        MODE = "first"
        changed.clear()
        service.lasts_s = 0.1
        with late_until(changed), counted(service) as found:
            told.append((app("hive"), found))
    assert told[0] == told[1] == told[2]


def test_requests_behind_a_node_that_is_not_read_are_asked_side_by_side(service: Service, llm: Any) -> None:
    unread: Any = eval("lambda act: act()", {"__name__": "client"})
    graph = compiled(lambda state: {"first": unread(lambda: state["text"])}, *parts_of(llm))

    def answer(text: str) -> Any:
        found = [graph.invoke({"text": f"{text} {number}"}) for number in range(2)]
        return [llm.invoke(f"{each['text']} {number}").content for each in found for number in (5, 6)]

    asked_side_by_side(service, answer, "hive 1 5", "hive 1 6", run)
