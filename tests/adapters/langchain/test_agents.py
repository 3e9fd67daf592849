"""Agents: calls of tools that only read start while the model writes; whoever could object is asked first."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, after_model, wrap_model_call, wrap_tool_call
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import BaseTool, create_retriever_tool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, tools_condition
from pydantic import PrivateAttr

from teola_plugin import explain, optimize, optimized, pure, reads, writes
from teola_plugin.engines import Batch, Completion, Delta, Done, Emit
from teola_plugin.errors import TeolaError
from teola_plugin.items.tool_calls import write_tool_calls
from teola_plugin.models.langchain import EngineChatModel
from tests.adapters.langgraph.test_langgraph_differential import told as without_ids
from tests.support.fakes import FakeEngine
from tests.support.langchain_world import Engines, Recorder

QUESTION: Any = {"messages": [HumanMessage("Who?")]}
FINAL = "So it is."
WAIT_S = 10.0


class World(FakeEngine):
    """An engine that calls tools, then answers. It ends a reply with calls when `go_on` is set, or after WAIT_S.

    `asked`: the arguments that functions were called with, `early`: those while the model was still writing.
    """

    def __init__(self, *calls: tuple[str, dict[str, Any]], waits: bool = True) -> None:
        super().__init__(name="llm", concurrent=True)
        self.calls = [write_tool_calls([{"name": name, "arguments": arguments}]) for name, arguments in calls]
        self.go_on = threading.Event()
        self.waits = waits
        self.begins_s = self.lingers_s = 0.0
        self.is_writing = False
        self.asked: list[Any] = []
        self.early: list[Any] = []
        self.model = EngineChatModel(engine=self)

    def note(self, what: Any) -> None:
        self.asked.append(what)
        if self.is_writing:
            self.early.append(what)
            if len(self.early) == len(self.calls):
                self.go_on.set()

    async def run(self, batch: Batch, emit: Emit) -> None:
        self.batches.append(batch)
        for position, item in enumerate(batch.items):
            if batch.op == "partial_prefilling":
                emit(position, Done(1))
            elif "Tool: " in item.payload:
                emit(position, Done(Completion(FINAL, pieces=[FINAL])))
            else:
                await self._call(position, emit)

    async def _call(self, position: int, emit: Emit) -> None:
        self.is_writing = True
        await asyncio.sleep(self.begins_s)
        for call in self.calls:
            emit(position, Delta(call))
        deadline = time.monotonic() + WAIT_S
        while self.waits and not self.go_on.is_set() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.sleep(self.lingers_s)
        self.is_writing = False
        emit(position, Done(Completion("".join(self.calls), pieces=self.calls)))

    def reading(self, name: str = "search", value: Callable[[str], Any] = str.upper) -> BaseTool:
        """A tool that only reads."""

        @tool(name)
        @reads("web")
        def search(query: str) -> Any:
            """Look it up."""
            self.note(query)
            return value(query)

        return search

    def awaiting(self, name: str = "search", takes_s: float = 0) -> BaseTool:
        @tool(name)
        @reads("web")
        async def search(query: str) -> str:
            """Look it up."""
            await asyncio.sleep(takes_s)
            self.note(query)
            return query.upper()

        return search

    def mailing(self) -> BaseTool:
        @tool
        def mail(query: str) -> str:
            """Send it."""
            self.note(query)
            return "sent"

        return mail


def told(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [(m.type, str(m.content)) for m in answer["messages"]]


def tree(recorder: Recorder) -> str:
    """The runs, without what differs from run to run."""
    return re.sub(r"call_[0-9a-f]+", "call", without_ids(recorder.tree()))


ANSWER = [("human", "Who?"), ("ai", ""), ("tool", "BEES"), ("tool", "WASPS"), ("ai", FINAL)]
TWO = ("search", {"query": "bees"}), ("search", {"query": "wasps"})


def call(agent: Any, form: str, **options: Any) -> Any:
    async def astream() -> Any:
        return [value async for value in agent.astream(QUESTION, stream_mode="values", **options)][-1]

    match form:
        case "invoke":
            return agent.invoke(QUESTION, **options)
        case "ainvoke":
            return asyncio.run(agent.ainvoke(QUESTION, **options))
        case "stream":
            return list(agent.stream(QUESTION, stream_mode="values", **options))[-1]
        case _:
            return asyncio.run(astream())


FORMS = ["invoke", "ainvoke", "stream", "astream"]


# --- early -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_calls_start_while_the_model_writes_and_are_made_once(form: str) -> None:
    world = World(*TWO)
    agent = optimize(create_agent(world.model, [world.reading()], system_prompt="Be brief."))
    assert told(call(agent, form)) == ANSWER
    assert sorted(world.early) == ["bees", "wasps"]
    assert sorted(world.asked) == ["bees", "wasps"]
    report = optimized(agent).reports[-1]
    assert (report.hits, report.wasted, report.fallbacks) == (2, 0, ())


@pytest.mark.parametrize("form", ["ainvoke", "astream"])
def test_coroutines_run_on_the_callers_loop(form: str) -> None:
    world = World(*TWO)
    agent = optimize(create_agent(world.model, [world.awaiting()]))
    assert told(call(agent, form)) == ANSWER
    assert sorted(world.early) == ["bees", "wasps"]
    assert sorted(world.asked) == ["bees", "wasps"]


def answer_early(agent: Any, world: World) -> int:
    """Call an agent until its nodes were read before the model wrote; return the number of calls."""
    world.begins_s = 0.05
    for calls in range(1, 11):
        assert told(agent.invoke(QUESTION)) == ANSWER
        if world.early:
            return calls
        optimized(agent).wake()
    pytest.fail("no call was made early")


def test_a_graph_made_by_hand() -> None:
    world = World(*TWO)
    builder = StateGraph(MessagesState)
    bound = world.model.bind_tools([world.reading()])
    builder.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode([world.reading()]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    agent = optimize(builder.compile())
    answer_early(agent, world)
    assert sorted(set(world.early)) == ["bees", "wasps"]


@pytest.mark.parametrize("is_called", [False, True])
def test_an_agent_in_another_graph(is_called: bool) -> None:
    """As a node of it, or called by one."""
    world = World(*TWO)
    inner = create_agent(world.model, [world.reading()])

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": inner.invoke(state)["messages"]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", ask if is_called else inner)
    builder.add_edge(START, "agent")
    agent = optimize(builder.compile())
    calls = answer_early(agent, world)
    assert sorted(set(world.early)) == ["bees", "wasps"]
    assert sorted(world.asked) == sorted(["bees", "wasps"] * calls)


@pure
class Lookup(BaseTool):
    name: str = "search"
    description: str = "Look it up."
    _world: Any = PrivateAttr()

    def _run(self, query: str) -> str:
        self._world.note(query)
        return query.upper()


def test_who_says_that_a_tool_only_reads() -> None:
    """The mark on its class, and the hint of MCP."""
    for hinted in (False, True):
        world = World(*TWO)
        if hinted:
            found = world.mailing().model_copy(update={"metadata": {"readOnlyHint": True}, "name": "search"})
        else:
            found = Lookup()
            found._world = world
        optimize(create_agent(world.model, [found])).invoke(QUESTION)
        assert sorted(world.early) == ["bees", "wasps"]
        assert sorted(world.asked) == ["bees", "wasps"]


def test_of_a_retriever_tool_the_search_runs_ahead_and_the_tool_itself_is_heard_once() -> None:
    engines, world = Engines(), World(("kb", {"query": "bees"}), waits=False)
    agent = create_agent(
        world.model, [create_retriever_tool(engines.store("agents").as_retriever(), "kb", "Search the kb.")]
    )
    plain, fast = Recorder(), Recorder()
    expected = told(agent.invoke(QUESTION, {"callbacks": [plain]}))
    twin = optimize(agent)
    assert told(twin.invoke(QUESTION, {"callbacks": [fast]})) == expected
    assert tree(fast) == tree(plain)
    report = optimized(twin).reports[-1]
    assert report.hits + report.shared >= 2  # the embedding and the search, and perhaps the model before them
    assert report.wasted == 0


def test_a_tool_that_asks_a_runnable_tells_of_it_itself() -> None:
    inner = RunnableLambda(lambda query: query.upper()).with_config(run_name="inner")
    world = World(*TWO)

    def ask(query: str) -> Any:
        world.go_on.wait(WAIT_S)  # until both calls have started: what the first comes to ends early starts
        return inner.invoke(query)

    agent = create_agent(world.model, [world.reading(value=ask)])
    fast = optimize(agent)
    recorder = Recorder()
    assert told(fast.invoke(QUESTION, {"callbacks": [recorder]})) == ANSWER
    assert sorted(world.asked) == ["bees", "bees", "wasps", "wasps"]
    world.waits = False
    plain = Recorder()
    agent.invoke(QUESTION, {"callbacks": [plain]})
    assert tree(recorder) == tree(plain)
    assert tree(recorder).count("inner") == 2
    world.asked.clear()
    fast.invoke(QUESTION)
    assert sorted(world.asked) == ["bees", "wasps"], "nothing of it is shared, so it does not start early again"


def test_the_next_prompt_is_prefilled_while_a_tool_works() -> None:
    world = World(("search", {"query": "bees"}), ("slow", {"query": "wasps"}), waits=False)
    is_prefilled = threading.Event()

    def slowly(query: str) -> str:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline and not any("BEES" in text for text in prefilled()):
            time.sleep(0.001)
        is_prefilled.set()
        return query.upper()

    def prefilled() -> list[str]:
        return [item.payload for b in world.batches if b.op == "partial_prefilling" for item in b.items]

    agent = optimize(create_agent(world.model, [world.reading(), world.reading("slow", slowly)]))
    assert told(agent.invoke(QUESTION)) == ANSWER
    assert is_prefilled.is_set()
    (_, prompt) = [item.payload for b in world.batches if b.op == "decoding" for item in b.items]
    assert prefilled()
    assert all(prompt.startswith(text) for text in prefilled())
    assert max(map(len, prefilled())) < len(prompt)


def test_the_callers_loop_does_not_wait_for_the_reply_that_a_prefix_needs() -> None:
    """One tool has answered; the other goes on while the model writes on."""
    world = World(("search", {"query": "bees"}), ("slow", {"query": "wasps"}))
    agent = optimize(create_agent(world.model, [world.awaiting(), world.awaiting("slow", 0.2)]))
    assert told(call(agent, "ainvoke")) == ANSWER
    assert sorted(world.early) == ["bees", "wasps"]


@pytest.mark.parametrize("first", ["search", "slow"])
@pytest.mark.parametrize("lingers_s", [0.0, 0.2])
def test_what_is_prefilled_is_what_the_next_prompt_begins_with(first: str, lingers_s: float) -> None:
    """Whichever tool answers first, and however long the model writes on behind its calls."""
    calls = [("search", {"query": "bees"}), ("slow", {"query": "wasps"})]
    world = World(*(calls if first == "search" else calls[::-1]))
    world.lingers_s = lingers_s

    def slowly(query: str) -> str:
        time.sleep(0.4)
        return query.upper()

    agent = create_agent(world.model, [world.reading(), world.reading("slow", slowly)])
    found = told(optimize(agent).invoke(QUESTION))
    (_, prompt) = [item.payload for b in world.batches if b.op == "decoding" for item in b.items]
    texts = [item.payload for b in world.batches if b.op == "partial_prefilling" for item in b.items]
    assert all(prompt.startswith(text) for text in texts)
    assert all(len(text) < len(prompt) for text in texts)
    world.waits = False
    assert told(agent.invoke(QUESTION)) == found


# --- not early -------------------------------------------------------------------------------------------------------


def not_early(world: World, agent: Any, **options: Any) -> Any:
    world.waits = False
    threads = itertools.count()

    def invoke(agent: Any) -> Any:
        config = {"configurable": {"thread_id": str(next(threads))}, **options.get("config", {})}
        return told(agent.invoke(QUESTION, **{**options, "config": config}))

    expected = invoke(agent)
    world.asked.clear()
    fast = optimize(agent)
    world.lingers_s = 0.1  # time enough to start early
    assert invoke(fast) == expected
    assert world.early == []
    return fast


def test_a_tool_that_nobody_vouches_for() -> None:
    world = World(("mail", {"query": "bees"}), ("search", {"query": "wasps"}))
    fast = not_early(world, create_agent(world.model, [world.mailing()]))
    assert world.asked == ["bees"]
    assert "TB130 mail: nobody said that it only reads" in explain(fast)


def test_what_is_given_more_than_the_model_writes() -> None:
    world = World(*TWO)

    @tool
    @reads("web")
    def search(query: str, state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Look it up."""
        world.note(query)
        return query

    assert "the state" in explain(not_early(world, create_agent(world.model, [search])))

    @tool("search")
    @reads("web")
    def configured(query: str, config: RunnableConfig) -> str:
        """Look it up."""
        world.note(query)
        return query

    assert "config" in explain(not_early(world, create_agent(world.model, [configured])))


@after_model
def _look(state: Any, runtime: Any) -> None:
    """Whoever looks at a reply may change it."""


@wrap_tool_call
def _wrapped(request: Any, handler: Any) -> Any:
    return handler(request)


@wrap_model_call
def _around(request: Any, handler: Any) -> Any:
    return handler(request)


@pytest.mark.parametrize(
    "made",
    [
        {"middleware": [_look]},
        {"middleware": [_wrapped]},
        {"middleware": [_around]},
        {"middleware": [HumanInTheLoopMiddleware({"search": True})], "checkpointer": InMemorySaver()},
        {"interrupt_before": ["tools"], "checkpointer": InMemorySaver()},
        {"interrupt_after": ["model"], "checkpointer": InMemorySaver()},
    ],
)
def test_whoever_may_object_is_asked_first(made: dict[str, Any]) -> None:
    world = World(*TWO)
    agent = create_agent(world.model, [world.reading()], **made)
    not_early(world, agent)


@pytest.mark.parametrize(
    "options",
    [
        {"interrupt_before": ["tools"]},
        {"interrupt_before": "*"},
        {"interrupt_after": "*"},
        {"config": {"max_concurrency": 1}},
    ],
)
def test_a_call_that_stops_at_the_tools_or_limits_them(options: dict[str, Any]) -> None:
    world = World(*TWO)
    not_early(world, create_agent(world.model, [world.reading()]), **options)


def test_an_agent_whose_own_config_limits_the_tools() -> None:
    world = World(*TWO)
    not_early(world, create_agent(world.model, [world.reading()]).with_config(max_concurrency=1))


def test_a_call_behind_one_that_may_write_is_not_early() -> None:
    world = World(("mail", {"query": "bees"}), ("search", {"query": "wasps"}))
    not_early(world, create_agent(world.model, [world.mailing(), world.reading()]))


@pytest.mark.parametrize("between", ["sibling", "node"])
def test_a_node_beside_or_behind_the_model_comes_before_the_tools(between: str) -> None:
    """It may write what they read."""
    world = World(*TWO)
    bound = world.model.bind_tools([world.reading()])
    builder: Any = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
    builder.add_node("other", lambda state: {"messages": []})
    builder.add_node("tools", ToolNode([world.reading()]))
    builder.add_edge(START, "model")
    builder.add_edge("tools", "model")
    if between == "sibling":
        builder.add_edge(START, "other")
        builder.add_conditional_edges("model", tools_condition)
    else:
        builder.add_edge("other", "tools")
        ways = {"tools": "other", END: END}
        builder.add_conditional_edges("model", tools_condition, ways)
    not_early(world, builder.compile())


@pytest.mark.parametrize("who", ["model", "sibling"])
def test_what_is_written_before_the_tools_have_their_turn_is_read(who: str) -> None:
    """By the node itself once it has the reply, or by another one of its superstep."""
    world, kb = World(("search", {"query": "bees"})), list[str]()

    def write(state: MessagesState) -> dict[str, Any]:
        kb.append("written")
        return {"messages": []}

    def model(state: MessagesState) -> dict[str, Any]:
        reply = bound.invoke(state["messages"])
        if who == "model":
            kb.append("written")
        return {"messages": [reply]}

    bound = world.model.bind_tools([world.reading(value=lambda query: str(kb))])
    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("sibling", write)
    builder.add_node("tools", ToolNode([world.reading(value=lambda query: str(kb))]))
    builder.add_edge(START, "model")
    if who == "sibling":
        builder.add_edge(START, "sibling")
    builder.add_conditional_edges("model", tools_condition)
    world.waits = False
    fast = optimize(builder.compile())
    for _ in range(3):
        kb.clear()
        assert told(fast.invoke(QUESTION))[-1] == ("tool", "['written']")
    assert world.early == []


def test_a_tool_declared_to_write_is_not_early_whatever_it_hints() -> None:
    world = World(("mail", {"query": "bees"}))

    @tool
    @writes("outbox")
    def mail(query: str) -> str:
        """Send it."""
        world.note(query)
        return "sent"

    mail.metadata = {"readOnlyHint": True}
    not_early(world, create_agent(world.model, [mail]))


# --- what else may happen --------------------------------------------------------------------------------------------


def test_an_error_is_that_of_the_framework_s_run() -> None:
    def fails(query: str) -> str:
        raise ValueError(f"no {query}")

    world = World(*TWO)
    agent = create_agent(world.model, [world.reading(value=fails)])
    with pytest.raises(ValueError, match=r"no (bees|wasps)"):
        optimize(agent).invoke(QUESTION)
    assert world.early
    assert {*world.early} <= {"bees", "wasps"}  # once it has failed it is not asked ahead any more


def test_a_stream_that_is_left_cancels_what_began() -> None:
    world = World(*TWO)
    agent = optimize(create_agent(world.model, [world.awaiting()]))

    async def leave() -> set[Any]:
        stream = agent.astream(QUESTION, stream_mode="updates")
        async for _ in stream:
            break
        await stream.aclose()
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(leave()) == set()


@pure
class Service(BaseChatModel):
    """A model that is not ours: it streams its calls in small chunks, and goes on when the first has begun."""

    _world: Any = PrivateAttr()

    @property
    def _llm_type(self) -> str:
        return "service"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=[t.name for t in tools])

    def _chunks(self, messages: list[Any]) -> Iterator[ChatGenerationChunk]:
        if isinstance(messages[-1], ToolMessage):
            yield ChatGenerationChunk(message=AIMessageChunk(content=FINAL))
            return
        self._world.is_writing = True
        for index, query in enumerate(("bees", "wasps")):
            pieces = [("search", ""), (None, '{"query": '), (None, f'"{query}"'), (None, "}")]
            for name, args in pieces:
                part = {"name": name, "args": args, "id": f"{index}" if name else None, "index": index}
                yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[part]))  # type: ignore[list-item]

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        for chunk in self._chunks(messages):
            if run_manager:
                run_manager.on_llm_new_token("", chunk=chunk)
            yield chunk
        if self._world.is_writing:
            self._world.go_on.wait(WAIT_S)
            self._world.is_writing = False

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        for chunk in self._chunks(messages):
            if run_manager:
                await run_manager.on_llm_new_token("", chunk=chunk)
            yield chunk
        deadline = time.monotonic() + WAIT_S
        while self._world.is_writing and not self._world.go_on.is_set() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        self._world.is_writing = False

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        whole: Any = None
        for chunk in self._chunks(messages):
            whole = chunk.message if whole is None else whole + chunk.message
        self._world.is_writing = False
        message = AIMessage(content=whole.content, tool_calls=whole.tool_calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_model_of_others_is_heard_where_the_framework_streams_it(is_async: bool) -> None:
    world, service = World(*TWO), Service()
    service._world = world
    agent = optimize(create_agent(service, [world.awaiting() if is_async else world.reading()]))

    async def astream() -> list[Any]:
        return [part async for part in agent.astream(QUESTION, stream_mode=["messages", "values"])]

    parts = asyncio.run(astream()) if is_async else list(agent.stream(QUESTION, stream_mode=["messages", "values"]))
    assert told([value for mode, value in parts if mode == "values"][-1]) == ANSWER
    assert sorted(world.early) == ["bees", "wasps"]
    assert sorted(world.asked) == ["bees", "wasps"]
    world.early.clear()
    if not is_async:
        agent.invoke(QUESTION)
        assert world.early == []


@pure
class Passing(Service):
    """Passes on what the model of its superclass writes."""

    def _stream(self, *args: Any, **kwargs: Any) -> Any:
        yield from super()._stream(*args, **kwargs)


def test_a_call_that_a_model_passes_on_is_heard_once() -> None:
    for kind in (Service, Passing):  # the first one instruments the superclass of the second
        world, service = World(*TWO), kind()
        service._world = world
        agent = optimize(create_agent(service, [world.reading()]))
        *_, (_, answer) = agent.stream(QUESTION, stream_mode=["messages", "values"])
        assert told(answer) == ANSWER
        assert sorted(world.asked) == ["bees", "wasps"]
        assert optimized(agent).reports[-1].wasted == 0


def test_explain_names_what_may_start_early() -> None:
    world = World(*TWO)
    text = explain(optimize(create_agent(world.model, [world.reading(), world.mailing()])))
    assert "search (test_agents.py:" in text
    assert "mail: it calls world" not in text.split("left to the framework")[0]


def test_a_measured_run_shows_the_tools_and_the_turns() -> None:
    world = World(*TWO)
    text = explain(optimize(create_agent(world.model, [world.reading()])), analyze=QUESTION)
    measured = text.split("measured run")[1]
    assert "2 hits" in measured
    assert measured.count("search") >= 2
    assert measured.count("(framework) ") >= 2


def test_an_agent_without_such_tools_is_as_it_was() -> None:
    world = World(*TWO)
    agent = create_agent(world.model, [world.mailing()])
    if optimize(agent) is agent:
        with pytest.raises(TeolaError):
            explain(agent)
