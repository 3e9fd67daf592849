"""Async nodes with a statement that is not read: what they ask behind it is found where their first request is made.

LangChain sends the request of a model, and each step of a chain, in a task of its own, so the node is not on the stack.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from teola_plugin import optimize, optimized
from tests.support.hosted_service import Service, counted

RUNS = 4


class State(TypedDict, total=False):
    names: list[str]
    said: Annotated[list[str], operator.add]


class Client:
    """A client that is not read, with a coroutine of its own."""

    def __init__(self) -> None:
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    async def fetch(self, names: list[str]) -> list[str]:
        self.asked += 1
        await asyncio.sleep(0.01)
        return [f"row {name}" for name in names]


CLIENT = Client()
Ask = Callable[[str], Awaitable[str]]


def model(service: Service) -> Any:
    return ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0)  # type: ignore[arg-type,call-arg]


def by_model(service: Service) -> Ask:
    llm = model(service)

    async def ask(row: str) -> str:
        return str((await llm.ainvoke(row)).content)

    return ask


def by_chain(service: Service) -> Ask:
    chain = ChatPromptTemplate.from_template("{row}") | model(service) | (lambda reply: reply.content)

    async def ask(row: str) -> str:
        return str(await chain.ainvoke({"row": row}))

    return ask


ASKING = [by_model, by_chain]


def app_of(*nodes: Any, sent: int = 0) -> Any:
    builder = StateGraph(State)
    for number, node in enumerate(nodes):
        builder.add_node(f"n{number}", node).add_edge(f"n{number}", END)
        if not sent:
            builder.add_edge(START, f"n{number}")
    if sent:
        builder.add_conditional_edges(
            START, lambda state: [Send("n0", {"names": [f"{n}"]}) for n in range(sent)], ["n0"]
        )
    return builder.compile()


def in_a_loop(ask: Ask) -> Any:
    async def node(state: State) -> State:
        rows = await CLIENT.fetch(state["names"])
        said = []
        for row in rows:
            said.append(await ask(row))  # noqa: PERF401
        return {"said": said}

    return node


def in_a_comprehension(ask: Ask) -> Any:
    async def node(state: State) -> State:
        rows = await CLIENT.fetch(state["names"])
        return {"said": [await ask(row) for row in rows]}

    return node


def in_a_helper(ask: Ask) -> Any:
    async def judged(rows: list[str]) -> list[str]:
        said = []
        for row in rows:
            said.append(await ask(row))  # noqa: PERF401
        return said

    async def node(state: State) -> State:
        rows = await CLIENT.fetch(state["names"])
        return {"said": await judged(rows)}

    return node


def in_a_context(ask: Ask) -> Any:
    async def node(state: State) -> State:
        lock = asyncio.Lock()
        async with lock:
            rows = await CLIENT.fetch(state["names"])
        said = []
        for row in rows:
            said.append(await ask(row))  # noqa: PERF401
        return {"said": said}

    return node


def with_a_limit_of_time(ask: Ask) -> Any:
    async def node(state: State) -> State:
        rows = await CLIENT.fetch(state["names"])
        said = []
        for row in rows:
            said.append(await asyncio.wait_for(ask(row), 30))  # noqa: PERF401
        return {"said": said}

    return node


NODES = [in_a_loop, in_a_comprehension, in_a_helper, in_a_context]
GIVEN = {"names": ["a", "b", "c"]}


async def compared(app: Any, service: Service, given: Any = GIVEN) -> Any:
    """Run the original once and the optimized graph several times. Returns the optimized graph."""
    with counted(service) as original:
        plain = await app.ainvoke(given)
    fast = optimize(app)
    for _ in range(RUNS):
        before = CLIENT.asked
        with counted(service) as made:
            assert await fast.ainvoke(given) == plain
        assert made == original
        assert CLIENT.asked > before
    return fast


@pytest.mark.parametrize("asking", ASKING)
@pytest.mark.parametrize("make", NODES)
async def test_what_stands_behind_is_asked_at_once(service: Service, asking: Any, make: Any) -> None:
    app = app_of(make(asking(service)))
    await compared(app, service)
    plain, fast = await app.ainvoke(GIVEN), optimize(app)
    assert await fast.ainvoke(GIVEN) == plain
    service.holds, service.awaits = "row a", "row c"
    with counted(service):
        assert await fast.ainvoke(GIVEN) == plain
    assert not service.has_waited_in_vain
    assert optimized(fast).reports[-1].wasted == 0


@pytest.mark.parametrize("asking", ASKING)
async def test_what_may_be_cut_off_is_not_asked_early(service: Service, asking: Any) -> None:
    await compared(app_of(with_a_limit_of_time(asking(service))), service)


@pytest.mark.parametrize("asking", ASKING)
@pytest.mark.parametrize("make", NODES)
async def test_nodes_beside_each_other_ask_for_their_own(service: Service, asking: Any, make: Any) -> None:
    """Two nodes of one function, and one function that is sent several times: each has its own variables."""
    node = make(asking(service))
    await compared(app_of(node, node), service)
    await compared(app_of(node, sent=3), service)


@pytest.mark.parametrize("asking", ASKING)
async def test_coroutines_that_are_gathered_ask_for_their_own(service: Service, asking: Any) -> None:
    ask = asking(service)

    async def one(name: str) -> list[str]:
        rows = await CLIENT.fetch([name, f"{name}{name}"])
        return [await ask(row) for row in rows]

    async def node(state: State) -> State:
        found = await asyncio.gather(*[one(name) for name in state["names"]])
        return {"said": [each for some in found for each in some]}

    await compared(app_of(node), service)


@pytest.mark.parametrize("asking", ASKING)
async def test_a_variable_that_another_task_changes_meanwhile(service: Service, asking: Any) -> None:
    """The rows are changed while the first request is under way, behind the reader's copy of them."""
    ask = asking(service)

    async def node(state: State) -> State:
        rows = await CLIENT.fetch(state["names"])

        async def change() -> None:
            await asyncio.sleep(0)
            rows[-1] = "row changed"

        task = asyncio.create_task(change())
        said = [await ask(row) for row in rows]
        await task
        return {"said": said}

    await compared(app_of(node), service)


def _stopped_by_a_task(ask: Ask) -> Any:
    """A task of the node's own stops it while a request is under way."""

    async def node(state: State) -> State:
        stop: list[int] = []

        async def guard() -> None:
            await asyncio.sleep(0.01)
            stop.append(1)

        task = asyncio.create_task(guard())
        rows = await CLIENT.fetch(state["names"])
        said = []
        for row in rows:
            if stop:
                break
            said.append(await ask(row))
            await asyncio.sleep(0.03)
        await task
        return {"said": said}

    return node


async def _guard(rows: list[str]) -> None:
    await asyncio.sleep(0.03)
    rows.clear()


def _stopped_by_a_function(ask: Ask) -> Any:
    async def node(state: State) -> State:
        rows = await CLIENT.fetch(state["names"])
        task = asyncio.create_task(_guard(rows))
        said = []
        for row in rows:
            said.append(await ask(row))
            await asyncio.sleep(0.06)
        await task
        return {"said": said}

    return node


def _stopped_by_another(ask: Ask) -> Any:
    """Two coroutines are gathered, of which the second stops the first."""

    async def node(state: State) -> State:
        stop: list[int] = []

        async def asker() -> list[str]:
            said = []
            for row in state["names"]:
                if stop:
                    break
                said.append(await ask(row))
            return said

        async def stopper() -> None:
            stop.append(1)

        said, _ = await asyncio.gather(asker(), stopper())
        return {"said": said}

    return node


def _stopped_by_a_later_task(ask: Ask) -> Any:
    async def node(state: State) -> State:
        stop: list[int] = []

        async def asker() -> list[str]:
            said = []
            for row in state["names"]:
                if stop:
                    break
                said.append(await ask(row))
            return said

        async def stopper() -> None:
            stop.append(1)

        first, second = asyncio.create_task(asker()), asyncio.create_task(stopper())
        said = await first
        await second
        return {"said": said}

    return node


def _changed_by_the_node(ask: Ask) -> Any:
    """The node goes on, and stops its task, as it waits for something else."""

    async def node(state: State) -> State:
        stop: list[int] = []

        async def asker() -> list[str]:
            said = []
            for row in state["names"]:
                if stop:
                    break
                said.append(await ask(row))
            return said

        task = asyncio.create_task(asker())
        await asyncio.sleep(0)
        stop.append(1)
        return {"said": await task}

    return node


BESIDE = [
    _stopped_by_a_task, _stopped_by_a_function, _stopped_by_another, _stopped_by_a_later_task, _changed_by_the_node,
]  # fmt: skip


@pytest.mark.parametrize("make", BESIDE)
async def test_what_runs_beside_may_stop_it(service: Service, make: Any) -> None:
    app = app_of(make(by_model(service)))
    with counted(service) as original:
        plain = await app.ainvoke(GIVEN)
    for _ in range(2):
        fast = optimize(app)
        for _ in range(3):
            with counted(service) as made:
                assert await fast.ainvoke(GIVEN) == plain
            assert made == original


def _beside_by_a_list(ask: Ask) -> list[Any]:
    """Two nodes of one step, of which the second stops the first, once it has its first reply."""
    stop: list[int] = []

    async def work(state: State) -> State:
        rows = await CLIENT.fetch(state["names"])
        said = []
        for row in rows:
            if stop:
                break
            said.append(await ask(row))
            await asyncio.sleep(0.05)
        stop.clear()
        return {"said": said}

    async def guard(state: State) -> State:
        await asyncio.sleep(0.03)
        stop.append(1)
        return {"said": []}

    return [work, guard]


def _beside_by_a_variable(ask: Ask) -> list[Any]:
    stop = False

    async def work(state: State) -> State:
        nonlocal stop
        rows = await CLIENT.fetch(state["names"])
        said = []
        for row in rows:
            if stop:
                break
            said.append(await ask(row))
            await asyncio.sleep(0.05)
        stop = False
        return {"said": said}

    async def guard(state: State) -> State:
        nonlocal stop
        await asyncio.sleep(0.03)
        stop = True
        return {"said": []}

    return [work, guard]


STOP: list[int] = []


async def _guard_of_the_module(state: State) -> State:
    await asyncio.sleep(0.03)
    STOP.append(1)
    return {"said": []}


def _beside_by_the_module(ask: Ask) -> list[Any]:
    async def work(state: State) -> State:
        rows = await CLIENT.fetch(state["names"])
        said = []
        for row in rows:
            if STOP:
                break
            said.append(await ask(row))
            await asyncio.sleep(0.05)
        STOP.clear()
        return {"said": said}

    return [work, _guard_of_the_module]


@pytest.mark.parametrize("make", [_beside_by_a_list, _beside_by_a_variable, _beside_by_the_module])
async def test_a_node_beside_may_stop_it(service: Service, make: Any) -> None:
    app = app_of(*make(by_model(service)))
    with counted(service) as original:
        plain = await app.ainvoke(GIVEN)
    for _ in range(2):
        fast = optimize(app)
        for _ in range(3):
            with counted(service) as made:
                assert await fast.ainvoke(GIVEN) == plain
            assert made == original


# --- tasks that the reader does not see begin -------------------------------------------------------------------------

BEGUN: list[asyncio.Task[None]] = []


class Starting(Client):
    """Begins tasks, and hands out a list that it keeps. `has_rows`: the list is there."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[str] = []
        self.has_rows = asyncio.Event()

    async def begin(self, work: Any) -> None:
        BEGUN.append(asyncio.create_task(work))

    async def fetch(self, names: list[str]) -> list[str]:
        self.rows = await super().fetch(names)
        self.has_rows.set()
        return self.rows

    async def rows_for_a_while(self) -> list[str]:
        await self.has_rows.wait()
        self.has_rows.clear()
        await asyncio.sleep(0.03)
        return self.rows


def _by_a_function_inside(ask: Ask) -> tuple[Any, Any]:
    client = Starting()

    async def node(state: State) -> State:
        is_stopped = False

        async def guard() -> None:
            nonlocal is_stopped
            await asyncio.sleep(0.03)
            is_stopped = True

        await client.begin(guard())
        said = []
        for row in state["names"]:
            if is_stopped:
                break
            said.append(await ask(row))
            await asyncio.sleep(0.06)
        return {"said": said}

    async def nothing() -> None:
        pass

    return node, nothing


def _by_a_list_of_the_client(ask: Ask) -> tuple[Any, Any]:
    client = Starting()

    async def node(state: State) -> State:
        rows = await client.fetch(state["names"])
        said = []
        for row in rows:
            said.append(await ask(row))
            await asyncio.sleep(0.06)
        return {"said": said}

    async def clear(client: Starting) -> None:
        await client.has_rows.wait()
        rows = client.rows
        await client.rows_for_a_while()
        rows.clear()

    return node, lambda: clear(client)


def _by_a_list_around(ask: Ask) -> tuple[Any, Any]:
    client = Starting()
    stop: list[int] = []

    async def node(state: State) -> State:
        rows = await client.fetch(state["names"])
        said = []
        for row in rows:
            if stop:
                break
            said.append(await ask(row))
            await asyncio.sleep(0.06)
        return {"said": said}

    async def guard(stop: list[int]) -> None:
        stop.clear()
        await client.rows_for_a_while()
        stop.append(1)

    return node, lambda: guard(stop)


def _by_a_variable_around(ask: Ask) -> tuple[Any, Any]:
    client, is_stopped = Starting(), False

    async def node(state: State) -> State:
        rows = await client.fetch(state["names"])
        said = []
        for row in rows:
            if is_stopped:
                break
            said.append(await ask(row))
            await asyncio.sleep(0.06)
        return {"said": said}

    async def guard() -> None:
        nonlocal is_stopped
        is_stopped = False
        await client.rows_for_a_while()
        is_stopped = True

    return node, guard


@pytest.mark.parametrize(
    "make", [_by_a_function_inside, _by_a_list_of_the_client, _by_a_list_around, _by_a_variable_around]
)
async def test_a_task_that_is_not_of_the_graph_may_stop_it(service: Service, make: Any) -> None:
    node, guard = make(by_model(service))
    app = app_of(node)

    async def run(app: Any) -> Any:
        task = asyncio.create_task(guard())
        said = await app.ainvoke(GIVEN)
        await asyncio.gather(task, *BEGUN)
        BEGUN.clear()
        return said

    with counted(service) as original:
        plain = await run(app)
    assert len(plain["said"]) == 1
    fast = optimize(app)
    for _ in range(RUNS):
        with counted(service) as made:
            assert await run(fast) == plain
        assert made == original


async def test_a_node_that_is_cancelled_asks_for_nothing_more(service: Service) -> None:
    app = app_of(in_a_loop(by_model(service)))
    fast = await compared(app, service)
    service.holds, service.awaits = "row a", "row z"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(fast.ainvoke(GIVEN), 0.3)
    with service.news:
        service.asked.append("row z")
        service.news.notify_all()
    asked = len(service.asked)
    await asyncio.sleep(0.2)
    assert len(service.asked) == asked
