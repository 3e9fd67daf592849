"""Functions beside one that is not read to its end: what it may store to is not known to them."""

from __future__ import annotations

import asyncio
import atexit
import heapq
import operator
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langgraph.graph import END, START, StateGraph
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step

from teola_plugin import optimize
from tests.adapters.llamaindex.test_llamaindex_hosted import chat
from tests.adapters.test_late_readings import Pipeline, hosted
from tests.support.hosted_service import Service, counted


class Box:
    mode = ""


@dataclass
class Settings:
    mode: str = ""


class World:
    def __init__(self) -> None:
        self.box = Box()
        self.items: dict[str, list[str]] = {"modes": []}
        self.settings = Settings()
        self.messages = [HumanMessage("")]


def unread(service: Service) -> bool:
    """Whether the function beside this one has begun."""
    open("/dev/null").close()
    return "chat second" in service.asked


def to_attribute(world: World) -> None:
    world.box.mode = "set"


def to_list(world: World) -> None:
    world.items["modes"].append("set")


def to_dataclass(world: World) -> None:
    world.settings.mode = "set"


def to_message(world: World) -> None:
    message = world.messages[0]
    message.content = "set"


def by_setattr(world: World) -> None:
    setattr(world.box, "mode", "set")  # noqa: B010


def is_set(world: World, change: Any) -> bool:
    if change is to_attribute or change is by_setattr:
        return world.box.mode == "set"
    if change is to_message:
        return world.messages[0].content == "set"
    return world.settings.mode == "set" if change is to_dataclass else bool(world.items["modes"])


Way = Callable[[World], None]


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]


def functions(service: Service, change: Way) -> tuple[Any, Any]:
    llm, world = hosted(service), World()

    def first(x: Any) -> dict[str, list[str]]:
        if not is_set(world, change):
            while not unread(service):
                time.sleep(0.001)
            change(world)
        return {"said": [str(llm.invoke("first").content)]}

    def second(x: Any) -> dict[str, list[str]]:
        said = [str(llm.invoke("second").content)]
        if not is_set(world, change):
            said.append(str(llm.invoke("unset").content))
        return {"said": said}

    return first, second


def graph(service: Service, change: Way, is_first: bool) -> Pipeline:
    first, second = functions(service, change)
    names = ("a", "b") if is_first else ("b", "a")
    made = StateGraph(State)
    for name, function in zip(names, (first, second), strict=True):
        made.add_node(name, function).add_edge(START, name).add_edge(name, END)
    return made.compile(), lambda graph: sorted(graph.invoke({"said": []})["said"])


def branches(service: Service, change: Way, is_first: bool) -> Pipeline:
    first, second = functions(service, change)
    steps = {"first": first, "second": second} if is_first else {"second": second, "first": first}
    return RunnableParallel(steps), lambda chain: chain.invoke("x")


def gathered(service: Service, change: Way, is_first: bool) -> Pipeline:
    llm, world = hosted(service), World()

    async def first() -> list[str]:
        while not unread(service):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        change(world)
        return [str((await llm.ainvoke("first")).content)]

    async def second() -> list[str]:
        said = [str((await llm.ainvoke("second")).content)]
        if not is_set(world, change):
            said.append(str((await llm.ainvoke("unset")).content))
        return said

    async def both(x: str) -> list[list[str]]:
        if is_first:
            return list(await asyncio.gather(first(), second()))
        return list(await asyncio.gather(second(), first()))

    return RunnableLambda(both), lambda chain: asyncio.run(chain.ainvoke("x"))


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("change", [to_attribute, to_list, to_dataclass, to_message, by_setattr])
@pytest.mark.parametrize("make", [graph, branches, gathered])
def test_what_an_unread_function_stores_is_not_known_beside_it(
    service: Service, make: Callable[[Service, Way, bool], Pipeline], change: Way, is_first: bool
) -> None:
    pipeline, call = make(service, change, is_first)
    call(optimize(pipeline))  # the service is known to answer
    service.holds, service.awaits = "second", "first"
    pipeline, call = make(service, change, is_first)
    with counted(service) as original:
        expected = call(pipeline)
    pipeline, call = make(service, change, is_first)
    fast = optimize(pipeline)
    service.awaits = "first"
    with counted(service) as asked:
        assert call(fast) == expected
    assert "chat unset" not in original
    assert asked == original


class Begun(Event):
    pass


class AlsoBegun(Event):
    pass


class Ended(Event):
    said: list[str]


class Steps(Workflow):
    def __init__(self, service: Service, change: Way) -> None:
        super().__init__(timeout=60)
        self.llm, self.world, self.service, self.change = chat(service), World(), service, change

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Begun | AlsoBegun | None:
        ctx.send_event(AlsoBegun())
        ctx.send_event(Begun())
        return None

    @step
    async def first(self, ev: Begun) -> Ended:
        while not unread(self.service):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        self.change(self.world)
        return Ended(said=[str(await self.llm.acomplete("first"))])

    @step
    async def second(self, ev: AlsoBegun) -> Ended:
        said = [str(await self.llm.acomplete("second"))]
        if not is_set(self.world, self.change):
            said.append(str(await self.llm.acomplete("unset")))
        return Ended(said=said)

    @step
    async def join(self, ctx: Context, ev: Ended) -> StopEvent | None:
        ended = ctx.collect_events(ev, [Ended, Ended])
        return None if ended is None else StopEvent(result=sorted(said for each in ended for said in each.said))


class Timed(Workflow):
    """Ends its own work after some time."""

    def __init__(self, service: Service, change: Way) -> None:
        super().__init__(timeout=60)
        self.llm, self.world, self.service, self.change = chat(service), World(), service, change

    def end(self) -> None:
        self.change(self.world)

    @step
    async def ask(self, ev: StartEvent) -> StopEvent:
        asyncio.get_running_loop().call_later(0.05, self.end)
        said = [str(await self.llm.acomplete("second"))]
        await asyncio.sleep(0.15)
        if not is_set(self.world, self.change):
            said.append(str(await self.llm.acomplete("unset")))
        return StopEvent(result=said)


async def run(workflow: Any) -> Any:
    return await workflow.run()


@pytest.mark.parametrize("change", [to_attribute, to_list, to_dataclass])
@pytest.mark.parametrize("made", [Steps, Timed])
def test_what_steps_and_timers_store_is_not_known_beside_them(service: Service, made: Any, change: Way) -> None:
    asyncio.run(run(optimize(made(service, change))))  # the service is known to answer
    service.holds, service.awaits = ("second", "first") if made is Steps else ("", "")
    with counted(service) as original:
        expected = asyncio.run(run(made(service, change)))
    fast = optimize(made(service, change))
    service.awaits = "first"
    with counted(service) as asked:
        assert asyncio.run(run(fast)) == expected
    assert "chat unset" not in original
    assert asked == original


VARIABLE = "TEOLA_PLUGIN_TEST_MODE"
POOL, OTHER_POOL = ThreadPoolExecutor(1), ThreadPool(1)
atexit.register(OTHER_POOL.terminate)
SLEEP_S = 0.05


class Shared:
    def __init__(self) -> None:
        self.items: list[str] = []
        self.event = threading.Event()
        self.history = InMemoryChatMessageHistory()


def under_another_name(shared: Shared) -> None:
    items = shared.items
    items += ["set"]


def by_a_function(shared: Shared) -> None:
    heapq.heappush(shared.items, "set")


def by_a_method_of_another_name(shared: Shared) -> None:
    add = shared.items.append
    add("set")


def to_event(shared: Shared) -> None:
    shared.event.set()


def to_history(shared: Shared) -> None:
    shared.history.add_user_message("set")


def to_environment(shared: Shared) -> None:
    os.environ[VARIABLE] = "set"


CHECKS: dict[Any, Callable[[Shared], bool]] = {
    under_another_name: lambda shared: bool(shared.items),
    by_a_function: lambda shared: bool(shared.items),
    by_a_method_of_another_name: lambda shared: bool(shared.items),
    to_event: lambda shared: shared.event.is_set(),
    to_history: lambda shared: len(shared.history.messages) > 0,
    to_environment: lambda shared: os.environ.get(VARIABLE) is not None,
}


def asks_unless(llm: Any, is_set: Callable[[], bool]) -> dict[str, list[str]]:
    said = [str(llm.invoke("second").content)]
    if not is_set():
        said.append(str(llm.invoke("unset").content))
    return {"said": said}


def graph_of(*nodes: Any) -> Any:
    made = StateGraph(State)
    for name, node in zip("ab", nodes, strict=False):
        made.add_node(name, node).add_edge(START, name).add_edge(name, END)
    return made.compile()


def asks_the_same(service: Service, make: Callable[[], Any]) -> None:
    """Compare the requests of a graph whose request "second" is held until a change is made."""
    llm = hosted(service)
    optimize(RunnableLambda(lambda text: llm.invoke(text).content)).invoke("is there")  # it is known to answer
    service.holds, service.awaits = "second", "first"
    with counted(service) as original:
        make().invoke({"said": []})
    assert "chat unset" not in original
    for _ in range(2):  # in the second call the end of a reading is known before the run comes there
        service.awaits = "first"
        with counted(service) as asked:
            optimize(make()).invoke({"said": []})
        assert asked == original


@pytest.mark.filterwarnings("ignore:The class `InMemoryChatMessageHistory`")
@pytest.mark.parametrize("change", CHECKS)
def test_changes_by_other_ways_are_seen(service: Service, change: Any) -> None:
    llm = hosted(service)

    def make() -> Any:
        os.environ.pop(VARIABLE, None)
        shared, check = Shared(), CHECKS[change]

        def first(state: State) -> dict[str, list[str]]:
            open("/dev/null").close()
            time.sleep(SLEEP_S)
            change(shared)
            return {"said": [str(llm.invoke("first").content)]}

        return graph_of(lambda state: asks_unless(llm, lambda: check(shared)), first)

    asks_the_same(service, make)


class Later(threading.Thread):
    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.run = work  # type: ignore[method-assign]


def in_executor(work: Callable[[], None]) -> None:
    POOL.map(lambda each: work(), [0])


def in_pool(work: Callable[[], None]) -> None:
    OTHER_POOL.map_async(lambda each: work(), [0])


def in_own_thread(work: Callable[[], None]) -> None:
    Later(work).start()


@pytest.mark.parametrize("start", [in_executor, in_pool, in_own_thread])
def test_what_started_functions_store_is_not_known(service: Service, start: Any) -> None:
    llm = hosted(service)

    def make() -> Any:
        box = Box()

        def later() -> None:
            time.sleep(SLEEP_S)
            box.mode = "set"
            llm.invoke("first")

        def node(state: State) -> dict[str, list[str]]:
            open("/dev/null").close()
            start(later)
            return asks_unless(llm, lambda: box.mode == "set")

        return graph_of(node)

    asks_the_same(service, make)
