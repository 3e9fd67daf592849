"""Functions beside each other that change an object which another function reads: nothing is asked of a guess.

The reply to the first function's first request comes once the second function has changed the list and shown it.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypedDict

import pytest
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from langgraph.types import Send
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step

from teola_plugin import optimize, optimized
from tests.adapters.llamaindex.test_llamaindex_hosted import chat
from tests.support.hosted_service import Service, asked_side_by_side, counted


class State(TypedDict, total=False):
    name: str
    names: list[str]
    first: str
    second: str


Call = Callable[[], Any]
Nodes = dict[str, Any]


def synchronous(service: Service) -> Nodes:
    llm = model(service)

    def ask(text: str) -> str:
        return str(llm.invoke(text).content)

    def first(state: State) -> State:
        ask("the first")
        state["names"].append("first")
        return {"first": ask(f"first: {state['names']}")}

    def second(state: State) -> State:
        ask("the second")
        state["names"].append("second")
        return {"second": ask(f"second: {state['names']}")}

    return {"first": first, "second": second}


def asynchronous(service: Service) -> Nodes:
    llm = model(service)

    async def ask(text: str) -> str:
        return str((await llm.ainvoke(text)).content)

    async def first(state: State) -> State:
        await ask("the first")
        state["names"].append("first")
        return {"first": await ask(f"first: {state['names']}")}

    async def second(state: State) -> State:
        await ask("the second")
        state["names"].append("second")
        return {"second": await ask(f"second: {state['names']}")}

    return {"first": first, "second": second}


def unread(service: Service) -> Nodes:
    """The second function is not read to the end, the first one changes nothing."""
    llm = model(service)

    def first(state: State) -> State:
        llm.invoke("the first")
        return {"first": str(llm.invoke(f"first: {state['names']}").content)}

    def second(state: State) -> State:
        llm.invoke("the second")
        sys._getframe()
        state["names"].append("second")
        return {"second": str(llm.invoke(f"second: {state['names']}").content)}

    return {"first": first, "second": second}


def model(service: Service) -> ChatOpenAI:
    return ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0)  # type: ignore[arg-type,call-arg]


def state() -> Any:
    return {"name": "", "names": []}


def called(app: Any, nodes: Nodes) -> Call:
    if asyncio.iscoroutinefunction(nodes["first"]):
        return lambda: asyncio.run(app.ainvoke(state()))
    return lambda: app.invoke(state())


def graph(nodes: Nodes) -> Any:
    builder = StateGraph(State)
    for name, node in nodes.items():
        builder.add_node(name + "_node", node).add_edge(START, name + "_node")
    return builder.compile()


def behind(nodes: Nodes) -> Any:
    """A graph in which the list is made by a node."""
    builder = StateGraph(State).add_node("made", lambda state: {"names": []}).add_edge(START, "made")
    for name, node in nodes.items():
        builder.add_node(name + "_node", node).add_edge("made", name + "_node")
    return builder.compile()


def sent(nodes: Nodes) -> Any:
    def to_both(state: State) -> list[Send]:
        names: list[str] = []
        return [Send(f"{name}_node", {"name": name, "names": names}) for name in nodes]

    builder = StateGraph(State)
    for name, node in nodes.items():
        builder.add_node(name + "_node", node)
    return builder.add_conditional_edges(START, to_both, [f"{name}_node" for name in nodes]).compile()


NAMES: dict[str, list[str]] = {}


def held(nodes: Nodes) -> Any:
    """A graph whose second node is sent a list of a global dict, which the first one reads there."""
    first, second = nodes["first"], nodes["second"]

    def by_name(state: State) -> Any:
        return first({**state, "names": NAMES["all"]})

    def to_both(state: State) -> list[Send]:
        NAMES["all"] = []
        return [Send("first_node", {"name": "first"}), Send("second_node", {"names": NAMES["all"]})]

    async def by_name_async(state: State) -> Any:
        return await first({**state, "names": NAMES["all"]})

    is_async = asyncio.iscoroutinefunction(first)
    builder = StateGraph(State).add_node("first_node", by_name_async if is_async else by_name)
    builder.add_node("second_node", second)
    return builder.add_conditional_edges(START, to_both, ["first_node", "second_node"]).compile()


def parallel(nodes: Nodes) -> Any:
    return RunnableParallel({name: RunnableLambda(node) for name, node in nodes.items()})


def assigned(nodes: Nodes) -> Any:
    return RunnablePassthrough.assign(**{name: RunnableLambda(node) for name, node in nodes.items()})


def made(nodes: Nodes) -> Any:
    """Branches made by a function."""
    return RunnableLambda(lambda state: RunnableParallel({name: RunnableLambda(each) for name, each in nodes.items()}))


def turned(make: Callable[[Nodes], Any]) -> Callable[[Nodes], Any]:
    return lambda nodes: make(dict(reversed(nodes.items())))


FORMS = [graph, behind, sent, held, parallel, assigned, made]


@pytest.mark.parametrize("form", [*FORMS, *map(turned, FORMS)])
@pytest.mark.parametrize("nodes_of", [synchronous, asynchronous, unread])
def test_what_depends_on_the_order_of_changes_is_not_asked_early(
    nodes_of: Callable[[Service], Nodes], form: Callable[[Nodes], Any], service: Service
) -> None:
    nodes = nodes_of(service)
    service.holds, service.awaits = "the first", "second: ['second']"
    plain, fast = called(form(nodes), nodes), called(optimize(form(nodes)), nodes)
    with counted(service) as original:
        value = plain()
    for _ in range(3):
        with counted(service) as requests:
            assert fast() == value
        assert requests == original
    assert not service.has_waited_in_vain


class Kept:
    name = ""


class Counter:
    count = 0

    def add(self) -> None:
        self.count += 1

    def __call__(self) -> None:
        self.count += 1


class Doubly(Counter):
    def add(self) -> None:
        super().add()


class Registry:
    seen: ClassVar[list[str]] = []

    @staticmethod
    def note() -> None:
        Registry.seen.append("it")


COUNTER, DOUBLY = Counter(), Doubly()
BOUND = COUNTER.add
PART = functools.partial(Registry.seen.append, "it")
CHANGES: dict[str, Callable[[], object]] = {
    "a method that calls super()": lambda: DOUBLY.add(),
    "a static method": lambda: Registry.note(),
    "a bound method": lambda: BOUND(),
    "a partial": lambda: PART(),
    "a call of an object": lambda: COUNTER(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_branch_changes_by_other_ways_is_not_guessed(change: str, service: Service) -> None:
    llm = model(service)

    def shown() -> str:
        return f"{COUNTER.count} {DOUBLY.count} {len(Registry.seen)}"

    def first(name: str) -> str:
        llm.invoke("the first")
        return str(llm.invoke(f"first: {shown()}").content)

    def second(name: str) -> str:
        llm.invoke("the second")
        CHANGES[change]()
        return str(llm.invoke(f"second: {name}").content)

    def call(app: Any) -> Any:
        COUNTER.count = DOUBLY.count = 0
        Registry.seen.clear()
        return app.invoke("it")

    app = RunnableParallel(first=first, second=second)
    service.holds, service.awaits = "the first", "second: it"
    with counted(service) as original:
        value = call(app)
    fast = optimize(app)
    for _ in range(3):
        with counted(service) as requests:
            assert call(fast) == value
        assert requests == original


@pytest.mark.parametrize("is_mapped", [False, True])
def test_what_the_function_of_another_input_stores_is_not_guessed(is_mapped: bool, service: Service) -> None:
    llm = model(service)

    def fast_or_slow(name: str) -> str:
        llm.invoke(f"the {name}")
        if name == "second":
            Kept.name = "second"
        return str(llm.invoke(f"{name}: {Kept.name}").content)

    function = RunnableLambda(fast_or_slow)
    app, names = function.map() if is_mapped else function, ["first", "second"]

    def call(app: Any) -> Any:
        Kept.name = ""
        return app.invoke(names) if is_mapped else app.batch(names)

    service.holds, service.awaits = "the first", "second: second"
    with counted(service) as original:
        value = call(app)
    fast = optimize(app)
    for _ in range(3):
        with counted(service) as requests:
            assert call(fast) == value
        assert requests == original


def test_what_each_function_changes_for_itself_is_known(service: Service) -> None:
    def own(name: str) -> Callable[[State], State]:
        llm = model(service)

        def node(state: State) -> Any:
            names = [state["name"]]
            names.append(str(llm.invoke(f"the {name}").content))
            state["name"] = name
            return {name: str(llm.invoke(f"{state['name']}: {names}").content)}

        return node

    def last(state: State) -> Any:
        return {"name": str(model(service).invoke("the last").content)}

    builder = StateGraph(State).add_node("last", last)
    for name in ("first", "second"):
        builder.add_node(name + "_node", own(name)).add_edge(START, name + "_node")
    builder.add_edge(["first_node", "second_node"], "last")
    call = lambda app: app.invoke(state())  # noqa: E731
    asked_side_by_side(service, builder.compile(), "the second", "the last", call)


def test_a_branch_that_changes_its_own_list_knows_its_input(service: Service) -> None:
    llm = model(service)

    def names_of(state: State) -> list[str]:
        return [state["names"][0]]

    def first(state: State) -> str:
        names = names_of(state)
        names.append("first")  # by the source this may be a list of the input
        llm.invoke("the first")
        return str(llm.invoke(f"first: {names}").content)

    app = RunnableParallel(first=RunnableLambda(first), second=RunnablePassthrough())
    call = lambda app: app.invoke({"names": ["any"]})  # noqa: E731
    asked_side_by_side(service, app, "the first", "first: ['any', 'first']", call)


def test_what_sent_nodes_change_for_themselves_is_known(service: Service) -> None:
    llm = model(service)

    def node(state: State) -> Any:
        state["names"].append("own")
        state["name"] += "!"
        return {state["name"][:-1]: str(llm.invoke(f"the {state['name']} {state['names']}").content)}

    def to_each(state: State) -> list[Send]:
        return [Send("node", {"name": name, "names": []}) for name in ("first", "second")]

    def last(state: State) -> Any:
        return {"name": str(llm.invoke("the last").content)}

    builder = StateGraph(State).add_node("node", node).add_node("last", last).add_edge("node", "last")
    builder.add_node("begin", lambda state: {}).add_edge(START, "begin")
    app = builder.add_conditional_edges("begin", to_each, ["node"]).compile()
    asked_side_by_side(service, app, "the second", "the last", lambda app: app.invoke(state()))


class Part(Event):
    name: str
    names: Any


class Done(Event):
    said: str


@pytest.mark.parametrize("order", ["first second", "second first"])
def test_what_steps_share_is_not_guessed(order: str, service: Service) -> None:
    ask: Callable[[str], Awaitable[Any]] = chat(service).acomplete

    class Shares(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> Part | None:
            names: list[str] = []
            for name in order.split():
                ctx.send_event(Part(name=name, names=names))
            return None

        @step(num_workers=2)
        async def work(self, ev: Part) -> Done:
            await ask(f"the {ev.name}")
            ev.names.append(ev.name)
            return Done(said=str(await ask(f"{ev.name}: {ev.names}")))

        @step
        async def join(self, ctx: Context, ev: Done) -> StopEvent | None:
            found = ctx.collect_events(ev, [Done] * 2)
            return None if found is None else StopEvent(result=sorted(each.said for each in found))

    async def run(app: Any) -> Any:
        return await app.run()

    service.holds, service.awaits = "the first", "second: ['second']"
    with counted(service) as original:
        value = asyncio.run(run(Shares()))
    fast = optimize(Shares())
    for _ in range(3):
        with counted(service) as requests:
            assert asyncio.run(run(fast)) == value
        assert requests == original
    assert optimized(fast).reports[-1].wasted == 0
