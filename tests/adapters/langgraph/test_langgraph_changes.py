"""Nodes and functions that change what they did not make: counters, histories, the state of an app."""

from __future__ import annotations

import asyncio
import operator
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.prompts import ChatPromptTemplate, HumanMessagePromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

from teola_plugin import optimize, optimized
from teola_plugin.adapters.langgraph.follow import Following
from tests.support.hosted_service import Service, counted

RUNS = 5
HISTORY: list[str] = []
COUNTS: dict[str, int] = {"asked": 0}
TOTAL = 0


class State(TypedDict, total=False):
    names: list[str]
    said: Annotated[list[str], operator.add]


class Kept(TypedDict, total=False):
    results: Any
    said: list[str]


class App:
    """Nodes that are methods, with what they note."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.calls = 0
        self.topic = ""
        self.history: list[str] = []
        self.seen: dict[str, int] = {}
        self.template = ChatPromptTemplate.from_messages([("human", "{name}")])

    def ask(self, text: str) -> str:
        self.calls += 1
        reply = str(self.llm.invoke(text).content)
        self.history.append(reply)
        return reply

    def ask_all(self, state: State) -> State:
        return {"said": [self.ask(name) for name in state["names"]]}

    def set_topic(self, state: State) -> State:
        self.topic = self.ask("which topic")
        return {"said": [self.topic]}

    def ask_about_it(self, state: State) -> State:
        return {"said": [self.ask(f"{self.topic} {name}") for name in state["names"]]}

    def ask_with_history(self, state: State) -> State:
        said = []
        for name in state["names"]:
            last = self.history[-1] if self.history else ""
            said.append(self.ask(f"{name} after {len(self.history)} {last[:3]}"))
        return {"said": said}

    def ask_by_count(self, state: State) -> State:
        global TOTAL
        TOTAL += 1
        COUNTS["asked"] += 1
        HISTORY.append(state["names"][0])
        return {"said": [self.ask(f"{name} {TOTAL} {COUNTS} {HISTORY[-1]}") for name in state["names"]]}

    def extend_the_template(self, state: State) -> State:
        self.template.messages.append(HumanMessagePromptTemplate.from_template("and {name}"))
        chain = self.template | self.llm
        return {"said": [chain.invoke({"name": name}).content for name in state["names"]]}

    def extend_between(self, state: State) -> State:
        chain = self.template | self.llm
        said = [chain.invoke({"name": "a"}).content]
        self.template.messages.append(HumanMessagePromptTemplate.from_template("and {name}"))
        return {"said": said + [chain.invoke({"name": name}).content for name in ("b", "a", "c")]}

    def stop_at_a_limit(self, state: State) -> State:
        self.seen["x"] = self.seen.get("x", 0) + 1
        if self.seen["x"] % 2 == 0:
            raise ValueError("enough")
        return {"said": [self.ask(name) for name in state["names"]]}


def model(service: Service) -> Any:
    return ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0)  # type: ignore[arg-type,call-arg]


def in_turn(*nodes: Any) -> Any:
    builder = StateGraph(State)
    for number, node in enumerate(nodes):
        builder.add_node(f"n{number}", node).add_edge(f"n{number - 1}" if number else START, f"n{number}")
    return builder.add_edge(f"n{len(nodes) - 1}", END).compile()


def beside(*nodes: Any) -> Any:
    builder = StateGraph(State)
    for number, node in enumerate(nodes):
        builder.add_node(f"n{number}", node).add_edge(START, f"n{number}").add_edge(f"n{number}", END)
    return builder.compile()


GIVEN = {"names": ["a", "b", "c"]}


def reset() -> None:
    global TOTAL
    TOTAL = 0
    HISTORY.clear()
    COUNTS["asked"] = 0


def outcomes(app: Any) -> list[Any]:
    found: list[Any] = []
    for _ in range(RUNS):
        try:
            found.append(app.invoke(GIVEN))
        except ValueError as e:
            found.append(str(e))
    return found


def compared(make: Callable[[App], Any], service: Service) -> App:
    """Run an app several times, and the same optimized. Returns the state of the optimized app."""
    reset()
    plain, fast = App(model(service)), App(model(service))
    optimize(make(plain)).invoke(GIVEN)  # the service is known to answer
    plain = App(model(service))
    reset()
    with counted(service) as original:
        expected = outcomes(make(plain))
    reset()
    app = optimize(make(fast))
    with counted(service) as made:
        assert outcomes(app) == expected
    assert made == original
    own, others = vars(fast).copy(), vars(plain).copy()
    del own["llm"], others["llm"]
    assert own == others
    return fast


IN_TURN = [
    [App.ask_all],
    [App.set_topic, App.ask_about_it],
    [App.ask_about_it, App.set_topic, App.ask_about_it],
    [App.ask_with_history, App.ask_with_history],
    [App.ask_by_count, App.ask_by_count],
    [App.stop_at_a_limit],
    [App.extend_the_template],
    [App.extend_between],
    [App.ask_all, App.stop_at_a_limit, App.ask_with_history],
]


@pytest.fixture(params=[True, False])
def reads_first(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is read before the nodes run, or beside them."""
    predict = Following._predict

    def prompt(following: Following, *args: Any) -> None:
        predict(following, *args)
        ends_s = time.monotonic() + 2
        while following.prediction is not None and following.prediction.is_reading and time.monotonic() < ends_s:
            time.sleep(0.001)

    if request.param:
        monkeypatch.setattr(Following, "_predict", prompt)


@pytest.mark.usefixtures("reads_first")
@pytest.mark.parametrize("nodes", IN_TURN, ids=lambda nodes: "-".join(each.__name__ for each in nodes))
def test_nodes_in_turn_ask_as_before(service: Service, nodes: list[Any]) -> None:
    compared(lambda app: in_turn(*[node.__get__(app) for node in nodes]), service)


@pytest.mark.parametrize("nodes", [[App.ask_all], [App.ask_by_count], [App.set_topic, App.ask_all]])
def test_what_does_not_need_it_is_asked_at_once(service: Service, nodes: list[Any]) -> None:
    """The loop's first request waits for the last one, which the original would never come to."""
    reset()
    own = App(model(service))
    fast = optimize(in_turn(*[node.__get__(own) for node in nodes]))
    for _ in range(2):
        fast.invoke(GIVEN)
    service.holds, service.awaits = "chat a", "chat c"
    fast.invoke(GIVEN)
    assert service.has_waited_in_vain is (nodes == [App.ask_by_count])
    assert optimized(fast).reports[-1].wasted == 0


def asks_by_topic(app: App) -> Callable[[State], State]:
    def node(state: State) -> State:
        return {"said": [app.llm.invoke(f"{app.topic or 'nothing'} yet").content]}

    return node


def changes_the_topic(app: App) -> Callable[[State], State]:
    def node(state: State) -> State:
        app.topic = "news"
        return {"said": [app.llm.invoke("first").content, app.llm.invoke("second").content]}

    return node


@pytest.mark.parametrize("turned", [False, True])
def test_nodes_beside_each_other_that_share_an_object(service: Service, turned: bool) -> None:
    """Whichever comes first, as many requests are made."""

    def make(app: App) -> Any:
        nodes = [changes_the_topic(app), asks_by_topic(app)]
        return beside(*(nodes[::-1] if turned else nodes))

    for _ in range(3):
        own = App(model(service))
        with counted(service) as original:
            make(own).invoke(GIVEN)
        own = App(model(service))
        fast = optimize(make(own))
        fast.invoke(GIVEN)
        for _ in range(3):
            own.topic = ""
            with counted(service) as made:
                fast.invoke(GIVEN)
            assert made.total() == original.total()


@pytest.mark.usefixtures("reads_first")
@pytest.mark.parametrize("turned", [False, True])
def test_what_nodes_beside_each_other_store_is_not_known(service: Service, turned: bool) -> None:
    """The one that stores is the slower one."""

    def make() -> Any:
        own = App(model(service))

        def stores(state: State) -> State:
            time.sleep(0.1)
            own.topic = "news"
            return {"said": []}

        nodes = [stores, asks_by_topic(own)]
        return beside(*(nodes[::-1] if turned else nodes))

    optimize(make()).invoke(GIVEN)  # the service is known to answer
    with counted(service) as original:
        make().invoke(GIVEN)
    fast = optimize(make())
    with counted(service) as made:
        fast.invoke(GIVEN)
    assert made == original


def count(x: Any) -> Any:
    global TOTAL
    TOTAL += 1
    return x


async def test_gathered_coroutines_that_count(service: Service) -> None:
    reset()
    llm = model(service)

    async def one(name: str) -> str:
        COUNTS["asked"] += 1
        return str((await llm.ainvoke(name)).content)

    async def node(state: State) -> State:
        said = await asyncio.gather(*[one(name) for name in state["names"]])
        return {"said": [*said, str((await llm.ainvoke(f"in all {COUNTS['asked']}")).content)]}

    app = in_turn(node)
    with counted(service) as original:
        expected = [await app.ainvoke(GIVEN) for _ in range(RUNS)]
    reset()
    fast = optimize(app)
    with counted(service) as made:
        assert [await fast.ainvoke(GIVEN) for _ in range(RUNS)] == expected
    assert made == original


CHAINS: list[Callable[[Any], Any]] = [
    lambda llm: RunnableLambda(count) | (lambda x: llm.invoke(f"{x} {TOTAL}").content),
    lambda llm: (
        RunnableLambda(count) | ChatPromptTemplate.from_template("{a} now") | llm | (lambda x: count(x.content))
    ),
    lambda llm: RunnableLambda(lambda x: [count(x), llm.invoke("one").content, llm.invoke("two").content, TOTAL]),
    lambda llm: RunnableParallel(a=count, b=lambda x: llm.invoke(f"{x['a']} b").content) | (lambda x: (x, TOTAL)),
]


@pytest.mark.parametrize("make", CHAINS)
def test_functions_of_chains_that_count(service: Service, make: Callable[[Any], Any]) -> None:
    reset()
    chain = make(model(service))
    with counted(service) as original:
        expected = [chain.invoke({"a": "x"}) for _ in range(RUNS)]
    reset()
    fast = optimize(chain)
    with counted(service) as made:
        assert [fast.invoke({"a": "x"}) for _ in range(RUNS)] == expected
    assert made == original


def test_the_result_of_a_function_that_changes_something_waits_for_its_run(service: Service) -> None:
    """Another thread stores all the time where the function stores."""

    def called(change: Callable[[Any], Any]) -> Counter[str]:
        own = App(model(service))

        def keeps(name: str) -> dict[str, str]:
            own.llm.invoke("one")
            own.llm.invoke("two")
            own.topic = name
            time.sleep(0.1)
            return {"name": own.topic}

        chain = change(RunnableLambda(keeps) | own.template | own.llm)
        with counted(service) as made, ThreadPoolExecutor(1) as pool:
            call = pool.submit(chain.invoke, "a")
            while not call.done():
                own.topic = "b"
                time.sleep(0.001)
        return made

    called(optimize)  # the service is known to answer
    assert called(optimize) == called(lambda chain: chain) == {"chat one": 1, "chat two": 1, "chat b": 1}


RESULTS: list[str] = []
STORE: dict[str, list[str]] = {"results": RESULTS}


def gives_list(state: Kept) -> Kept:
    return {"results": RESULTS}


def gives_a_part(state: Kept) -> Kept:
    return {"results": [STORE]}


def notes_and_gives(state: Kept) -> Kept:
    RESULTS.append("noted")
    return {"results": RESULTS}


def tosses_a_coin(state: Kept) -> Kept:
    found = ["heads"]
    if random.random() < 2:
        found.append("tails")
    return {"results": found}


def is_quiet(state: Kept) -> Kept:
    return {}


@pytest.mark.usefixtures("reads_first")
@pytest.mark.parametrize("first", [gives_list, gives_a_part, notes_and_gives, tosses_a_coin])
@pytest.mark.parametrize("between", [[], [is_quiet]])
@pytest.mark.parametrize("notes", [True, False])
def test_a_list_that_is_outside_and_in_the_state(service: Service, first: Any, between: list[Any], notes: bool) -> None:
    llm = model(service)

    def asks(state: Kept) -> Kept:
        if notes:
            RESULTS.append("more")
        return {"said": [str(llm.invoke(f"about {state['results']}").content)]}

    def make() -> Any:
        RESULTS[:] = ["old"]
        builder = StateGraph(Kept)
        for number, node in enumerate([first, *between, asks]):
            builder.add_node(f"n{number}", node).add_edge(f"n{number - 1}" if number else START, f"n{number}")
        return builder.add_edge(f"n{len(between) + 1}", END).compile()

    optimize(make()).invoke({})  # the service is known to answer
    app = make()
    with counted(service) as original:
        expected = [repr(app.invoke({})) for _ in range(2)]
    fast = optimize(make())
    with counted(service) as made:
        assert [repr(fast.invoke({})) for _ in range(2)] == expected
    assert made == original


@pytest.mark.usefixtures("reads_first")
@pytest.mark.parametrize("reads_first", [True], indirect=True)
def test_a_list_that_is_in_the_state_and_that_another_thread_changes(service: Service) -> None:
    llm = model(service)

    def asks(state: Kept) -> Kept:
        RESULTS.append("more")
        time.sleep(0.1)
        return {"said": [str(llm.invoke(f"about {state['results']}").content)]}

    def called(change: Callable[[Any], Any]) -> Counter[str]:
        RESULTS[:] = ["old"]
        builder = StateGraph(Kept).add_node("a", gives_list).add_node("b", asks)
        app = change(builder.add_edge(START, "a").add_edge("a", "b").add_edge("b", END).compile())
        with counted(service) as made, ThreadPoolExecutor(1) as pool:
            call = pool.submit(app.invoke, {})
            while "more" not in RESULTS and not call.done():
                time.sleep(0.001)
            RESULTS.append("other")
        return made

    called(optimize)  # the service is known to answer
    assert called(optimize) == called(lambda app: app) == {"chat about ['old', 'more', 'other']": 1}


def test_calls_beside_each_other_that_share_an_object(service: Service) -> None:
    own = App(model(service))

    def ask(topic: str) -> str:
        own.topic = topic
        own.llm.invoke("first")
        return str(own.llm.invoke(own.topic).content)

    chain = RunnableLambda(ask)
    topics = [f"topic {number}" for number in range(8)]
    with counted(service) as original:
        chain.batch(topics)
    fast = optimize(chain)
    fast.batch(topics)
    for _ in range(3):
        with counted(service) as made:
            fast.batch(topics)
        assert made.total() == original.total()
