"""Functions beside each other on an event loop: where one raises, the others are cancelled and ask nothing more."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step

from teola_plugin import optimize
from tests.adapters.llamaindex.test_llamaindex_hosted import chat
from tests.adapters.test_late_readings import hosted
from tests.support.hosted_service import Service, asked_side_by_side, counted


class State(TypedDict, total=False):
    one: int
    two: str


Checks = Callable[[str], Any]
"""What the first function does with its reply."""


class Two:
    """Two functions: the first asks, and checks the reply; the second asks twice, and its first reply takes long."""

    def __init__(self, llm: ChatOpenAI, checks: Checks) -> None:
        self.llm = llm
        self.checks = checks

    async def one(self, _: Any) -> Any:
        return {"one": self.checks(str((await self.llm.ainvoke("first")).content))}

    async def two(self, _: Any) -> Any:
        said = (await self.llm.ainvoke("slow")).content
        return {"two": f"{said} {(await self.llm.ainvoke('behind')).content}"}


def nodes(llm: ChatOpenAI, checks: Checks) -> Any:
    both = Two(llm, checks)
    builder = StateGraph(State)
    for name, node in (("b", both.one), ("a", both.two)):
        builder.add_node(name, node)
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    return builder.compile()


def sends(llm: ChatOpenAI, checks: Checks) -> Any:
    both = Two(llm, checks)

    async def node(state: Any) -> Any:
        return await (both.one(state) if state["is_first"] else both.two(state))

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_conditional_edges(START, lambda _: [Send("node", {"is_first": each}) for each in (False, True)])
    return builder.compile()


def gathered(llm: ChatOpenAI, checks: Checks) -> Any:
    both = Two(llm, checks)

    async def node(_: Any) -> Any:
        second, first = await asyncio.gather(both.two({}), both.one({}))
        return {"one": first["one"], "two": second["two"]}

    return StateGraph(State).add_node("node", node).add_edge(START, "node").compile()


def tasks(llm: ChatOpenAI, checks: Checks) -> Any:
    both = Two(llm, checks)

    async def node(_: Any) -> Any:
        first, second = asyncio.create_task(both.one({})), asyncio.create_task(both.two({}))
        return {"one": (await first)["one"], "two": (await second)["two"]}

    return StateGraph(State).add_node("node", node).add_edge(START, "node").compile()


def parallel(llm: ChatOpenAI, checks: Checks) -> Any:
    both = Two(llm, checks)
    beside = RunnableParallel(two=RunnableLambda(both.two), one=RunnableLambda(both.one))

    async def node(_: Any) -> Any:
        found = await beside.ainvoke({})
        return {"one": found["one"]["one"], "two": found["two"]["two"]}

    return StateGraph(State).add_node("node", node).add_edge(START, "node").compile()


FORMS = [nodes, sends, gathered, tasks, parallel]
CALLS = 3
ASKED = Counter(["chat first", "chat slow"] * CALLS)
"""What is asked at most; the error may come before the slow request has been sent."""

LATE_S = 0.2
"""After so long the service has noted what a call that is over has sent."""


def invoked(app: Any) -> Any:
    return asyncio.run(app.ainvoke({}))


def tried(app: Any) -> str:
    with pytest.raises(ValueError, match="invalid literal") as caught:
        invoked(app)
    return str(caught.value)


@pytest.mark.parametrize("form", FORMS)
def test_what_an_error_beside_it_prevents_is_not_asked(form: Any, service: Service) -> None:
    service.holds, service.awaits = "slow", "behind"
    app = form(hosted(service), int)
    expected = tried(app)
    time.sleep(LATE_S)
    fast = optimize(app)
    with counted(service) as made:
        assert [tried(fast) for _ in range(CALLS)] == [expected] * CALLS
    assert made <= ASKED


@pytest.mark.parametrize("checks", [int, str])
@pytest.mark.parametrize("form", FORMS)
def test_what_no_error_prevents_is_asked_once_that_is_known(form: Any, checks: Checks, service: Service) -> None:
    service.says = "7"
    asked_side_by_side(service, form(hosted(service), checks), "slow", "behind", invoked)


@pytest.mark.parametrize("is_first", [False, True])
def test_an_error_that_stands_before_all_requests_prevents_them(service: Service, is_first: bool) -> None:
    both = Two(hosted(service), str)

    async def parses(state: Any) -> Any:
        int(state["one"])

    builder = StateGraph(State).add_node("first", both.one).add_edge(START, "first")
    nodes = [("a", both.two), ("b", parses)]
    for name, node in nodes[::-1] if is_first else nodes:
        builder.add_node(name, node)
        builder.add_edge("first", name)
    app = builder.compile()
    service.lasts_s = LATE_S
    with counted(service) as original:
        tried(app)
        time.sleep(LATE_S)
    fast = optimize(app)
    for _ in range(CALLS):
        with counted(service) as made:
            tried(fast)
            time.sleep(LATE_S)
        assert made == original == Counter(["chat first"])


def test_an_error_that_is_returned_prevents_nothing(service: Service) -> None:
    both = Two(hosted(service), int)

    async def node(_: Any) -> Any:
        second, first = await asyncio.gather(both.two({}), both.one({}), return_exceptions=True)
        return {"one": type(first).__name__, "two": second["two"]}  # type: ignore[index]

    app = StateGraph(State).add_node("node", node).add_edge(START, "node").compile()
    asked_side_by_side(service, app, "slow", "behind", invoked)


class First(Event):
    pass


class Second(Event):
    pass


class Part(Event):
    is_first: bool


class Said(Event):
    said: str


class Steps(Workflow):
    """As `Two`: two steps."""

    def __init__(self, llm: Any, checks: Checks) -> None:
        super().__init__(timeout=20)
        self.llm = llm
        self.checks = checks

    @step
    async def start(self, ctx: Context, ev: StartEvent) -> First | Second | None:
        ctx.send_event(Second())
        ctx.send_event(First())
        return None

    @step
    async def one(self, ev: First) -> Said:
        return Said(said=str(self.checks((await self.llm.acomplete("first")).text)))

    @step
    async def two(self, ev: Second) -> Said:
        said = (await self.llm.acomplete("slow")).text
        return Said(said=f"{said} {(await self.llm.acomplete('behind')).text}")

    @step
    async def join(self, ctx: Context, ev: Said) -> StopEvent | None:
        found = ctx.collect_events(ev, [Said, Said])
        return StopEvent(result=sorted(each.said for each in found)) if found else None


class Fan(Workflow):
    """As `Two`: one step, for two events."""

    def __init__(self, llm: Any, checks: Checks) -> None:
        super().__init__(timeout=20)
        self.llm = llm
        self.checks = checks

    @step
    async def start(self, ctx: Context, ev: StartEvent) -> Part | None:
        ctx.send_event(Part(is_first=False))
        ctx.send_event(Part(is_first=True))
        return None

    @step(num_workers=2)
    async def each(self, ev: Part) -> Said:
        if ev.is_first:
            return Said(said=str(self.checks((await self.llm.acomplete("first")).text)))
        said = (await self.llm.acomplete("slow")).text
        return Said(said=f"{said} {(await self.llm.acomplete('behind')).text}")

    @step
    async def join(self, ctx: Context, ev: Said) -> StopEvent | None:
        found = ctx.collect_events(ev, [Said, Said])
        return StopEvent(result=sorted(each.said for each in found)) if found else None


async def ran(app: Any) -> Any:
    return await app.run()


@pytest.mark.parametrize("workflow", [Steps, Fan])
def test_what_an_error_of_another_step_prevents_is_not_asked(workflow: Any, service: Service) -> None:
    service.holds, service.awaits = "slow", "behind"
    app = workflow(chat(service), int)
    fast = optimize(app)
    with counted(service) as made:
        for _ in range(CALLS):
            with pytest.raises(ValueError, match="invalid literal"):
                asyncio.run(ran(fast))
    assert made <= ASKED


@pytest.mark.parametrize("checks", [int, str])
def test_what_no_error_of_another_event_prevents_is_asked_once_that_is_known(checks: Checks, service: Service) -> None:
    service.says = "7"
    asked_side_by_side(service, Fan(chat(service), checks), "slow", "behind", lambda app: asyncio.run(ran(app)))
