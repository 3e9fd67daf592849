"""Agents of LangChain that functions call: independent agents are asked side by side, all else stays equal."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal
from unittest import mock

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRequest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command
from typing_extensions import TypedDict

from teola_plugin import optimize, optimized
from teola_plugin.adapters.reader.facts import kind_of
from teola_plugin.models.langchain import EngineChatModel
from tests.adapters.functions.test_settings_in_place import Cools, Told, chat
from tests.adapters.langgraph.test_langgraph_differential import Listener, told
from tests.support.fakes import FakeEngine, says
from tests.support.hosted_service import Service, asked_side_by_side, counted, served
from tests.support.langgraph_reading import WAY, read

engine = FakeEngine(lambda prompt: says(f"<{prompt}>"), name="llm", concurrent=True)
llm = EngineChatModel(engine=engine, max_tokens=None, temperature=None)
INSIDE = replace(WAY, runtime=Runtime(context="ours"))


class State(TypedDict, total=False):
    q: str
    found: list[str]
    messages: list[Any]


@pytest.fixture
def service() -> Iterator[Service]:
    with served() as made:
        yield made


def one_node(node: Any, **options: Any) -> Any:
    graph = StateGraph(State)
    graph.add_node("A", node)
    graph.add_edge(START, "A")
    return graph.compile(**options)


def in_turn(agents: list[Any], **options: Any) -> Callable[[State], dict[str, Any]]:
    """A node that asks one agent after the other the same."""

    def node(state: State) -> dict[str, Any]:
        found = []
        for at, agent in enumerate(agents):
            result = agent.invoke({"messages": [{"role": "user", "content": f"{at} {state['q']}"}]}, **options)
            found.append(result["messages"][-1].content)
        return {"found": found}

    return node


def asked(graph: Any, **state: Any) -> list[list[str]]:
    """The last line of all prompts, in rounds."""
    return [[each.split("User: ")[-1] for each in some] for some in read(graph, {"q": "x", **state}, way=INSIDE).rounds]


# --- what is asked early ---------------------------------------------------------------------------------------------

PROMPTS: list[Any] = [None, "Be brief.", SystemMessage("Be brief."), SystemMessage([{"type": "text", "text": "Be."}])]


@pytest.mark.parametrize("system_prompt", PROMPTS)
@pytest.mark.parametrize("name", [None, "worker"])
def test_agents_in_turn_are_asked_at_once(system_prompt: Any, name: str | None) -> None:
    agents = [create_agent(llm, system_prompt=system_prompt, name=name) for _ in range(3)]
    graph = one_node(in_turn(agents))
    assert asked(graph) == [["0 x", "1 x", "2 x"]]
    assert optimize(graph).invoke({"q": "x"}) == graph.invoke({"q": "x"})


class Quiet(BaseCallbackHandler):
    """Hears nothing."""


class Refusing(BaseCallbackHandler):
    """May end the call."""

    raise_error = True


READ: list[Any] = [
    {}, {"recursion_limit": 10}, {"tags": ["a"]}, {"metadata": {"a": 1}, "run_name": "r"}, {"tags": None},
    {"configurable": {"thread_id": "1"}}, {"configurable": {"thread_id": 1}, "recursion_limit": 2},
    {"callbacks": [Quiet()]}, {"configurable": {}},
]  # fmt: skip


@pytest.mark.parametrize("config", READ)
def test_agents_are_asked_at_once_with_a_config_of_their_own(config: Any) -> None:
    graph = one_node(in_turn([create_agent(llm), create_agent(llm)], config=config))
    assert asked(graph) == [["0 x", "1 x"]]
    assert optimize(graph).invoke({"q": "x"}) == graph.invoke({"q": "x"})


LEFT: list[Any] = [
    {"recursion_limit": 0}, {"recursion_limit": "2"}, {"max_concurrency": 1}, {"callbacks": [Refusing()]},
    {"configurable": {"model": "m"}}, {"configurable": {"thread_id": "1", "checkpoint_ns": "a"}},
    {"configurable": {"thread_id": None}}, {"tags": ("a",)}, {"tags": ["a", 1]}, {"thread_id": "1"}, {"run_id": None},
    "config",
]  # fmt: skip


@pytest.mark.parametrize("config", LEFT)
def test_agents_with_another_config_are_left_to_their_run(config: Any) -> None:
    assert asked(one_node(in_turn([create_agent(llm)], config=config))) == []


@pytest.mark.parametrize("config", [{"metadata": ["a"]}, {"tags": ("a",)}, {"tags": [None]}, {"run_name": 1}])
def test_chains_with_a_config_that_may_be_refused_are_left_to_their_run(config: Any) -> None:
    chain = RunnableLambda(lambda text: llm.invoke(text).content)
    assert asked(one_node(lambda state: {"found": [chain.invoke(state["q"], config)]})) == []
    assert asked(one_node(lambda state: {"found": [chain.invoke(state["q"], {"tags": ["a"], "run_name": "b"})]})) == [
        ["x"]
    ]


@pytest.mark.parametrize("name", ["invoke", "stream"])
def test_agents_with_a_method_replaced_are_left_to_their_run(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    agents = [create_agent(llm), create_agent(llm)]
    graph = one_node(in_turn(agents))
    assert asked(graph) == [["0 x", "1 x"]]
    monkeypatch.setattr(agents[0], name, mock.Mock())
    assert asked(graph) == []


@pytest.mark.parametrize("is_node", [True, False])
def test_parts_with_a_method_replaced_are_left_to_their_run(monkeypatch: pytest.MonkeyPatch, is_node: bool) -> None:
    part = RunnableLambda(lambda state: {"found": [llm.invoke(state["q"]).content]})
    graph = one_node(part if is_node else lambda state: part.invoke(state))
    assert asked(graph) == [["x"]]
    monkeypatch.setattr(part, "invoke", mock.Mock())
    assert asked(graph) == []


def test_a_store_with_a_method_replaced_is_left_to_its_run(monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
    embeddings = OpenAIEmbeddings(base_url=service.url, api_key="x", check_embedding_ctx_length=False)
    store, service.lasts_s = InMemoryVectorStore.from_texts(["hive"], embeddings), 0.1

    def node(state: State) -> Any:
        return {"found": [len(store.similarity_search(f"{state['q']} {part}")) for part in "ab"]}

    fast = optimize(one_node(node))
    fast.invoke({"q": "x"})
    assert optimized(fast).reports[-1].hits
    monkeypatch.setattr(store, "similarity_search", mock.Mock(return_value=[]))
    with counted(service) as found:
        assert fast.invoke({"q": "x"})["found"] == [0, 0]
    assert not found


def test_a_subgraph_with_a_method_replaced_is_left_to_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = one_node(lambda state: {"found": [llm.invoke(state["q"]).content]})
    graph = one_node(inner)
    assert asked(graph) == [["x"]]
    monkeypatch.setattr(inner, "invoke", mock.Mock())
    assert asked(graph) == []


def test_agents_are_asked_in_turn_where_a_handler_of_their_config_sets_the_model() -> None:
    with Told() as service:
        service.requests, service.lasts_s = [], 0.05
        threading.Thread(target=service.serve_forever, args=(0.02,), daemon=True).start()
        model = chat(service, temperature=1)
        graph = one_node(in_turn([create_agent(model)] * 3, config={"callbacks": [Cools(model)]}))
        made = []
        for app in (graph, fast := optimize(graph), fast):
            model.temperature = 1
            service.requests.clear()
            app.invoke({"q": "x"})
            made.append(Counter(service.requests))
        assert made[0] == made[1] == made[2]
        service.shutdown()


@tool
def look(word: str) -> str:
    """Look a word up."""
    return word


def test_the_first_request_of_an_agent_with_tools_is_certain() -> None:
    agents = [create_agent(llm, [look]), create_agent(llm, [look])]

    def first(state: State) -> dict[str, Any]:
        return {"found": [llm.invoke("first").content]}

    graph: Any = StateGraph(State)
    graph.add_node("A", first)
    graph.add_node("B", in_turn(agents))
    graph.add_edge(START, "A")
    graph.add_edge("A", "B")
    made = graph.compile()
    assert sorted(asked(made)[0]) == ["0 x", "first"]
    assert optimize(made).invoke({"q": "x"}) == made.invoke({"q": "x"})


def test_agents_are_called_with_names_of_arguments_and_without() -> None:
    agent, given = create_agent(llm), {"messages": [("user", "x")]}

    def known(state: State) -> dict[str, Any]:
        return {"found": [agent.invoke(input=given), agent.invoke(given, {"recursion_limit": 3})]}

    def unknown(state: State) -> dict[str, Any]:
        return {"found": [agent.invoke(given, stream_mode="updates")]}

    assert asked(one_node(known)) == [["x", "x"]]
    assert asked(one_node(unknown)) == []


def test_an_agent_ends_at_the_limit_of_its_call() -> None:
    def ask(state: State) -> dict[str, Any]:
        found = agent.invoke({"messages": [("user", "x")]}, {"recursion_limit": limits[0]})
        return {"found": [llm.invoke("then").content, found["messages"][-1].content]}

    agent, limits = create_agent(llm).with_config(recursion_limit=1), [9]
    assert asked(one_node(ask)) == [["then", "x"]]
    limits[0] = 1
    assert asked(one_node(ask)) == []


def test_a_graph_called_by_a_function_has_its_own_limit_before_that_of_the_caller() -> None:
    inner: Any = StateGraph(State)
    for at in range(4):
        inner.add_node(f"N{at}", lambda state: {"found": [llm.invoke("in").content]})
        inner.add_edge(f"N{at - 1}" if at else START, f"N{at}")
    short, long = {"recursion_limit": 2}, inner.compile().with_config(recursion_limit=9)
    graph = one_node(lambda state: long.invoke({"q": "x"}))
    assert graph.invoke({"q": "x"}, short) == {"q": "x", "found": ["<User: in\nAssistant:>"]}
    way = replace(INSIDE, config={**INSIDE.config, **short})
    assert len(read(graph, {"q": "x"}, way=way).asked) == 4

    def with_config(state: State, config: RunnableConfig) -> Any:
        return long.invoke({"q": "x"}, config)

    with pytest.raises(GraphRecursionError):
        one_node(with_config).invoke({"q": "x"}, short)
    assert len(read(one_node(with_config), {"q": "x"}, way=way).asked) < 4


def test_a_graph_on_a_thread_of_its_own_has_nothing_of_the_config_around() -> None:
    def inner(state: State, config: RunnableConfig, runtime: Runtime[Any]) -> dict[str, Any]:
        known = config["configurable"].get("user", "nobody")
        return {"found": [llm.invoke(f"{known} {runtime.context} {state['q']}").content]}

    inside = one_node(inner)

    def apart(state: State) -> dict[str, Any]:
        return inside.invoke({"q": state["q"]}, {"configurable": {"thread_id": "1"}})

    def within(state: State) -> dict[str, Any]:
        return inside.invoke({"q": state["q"]}, {"tags": ["a"]})

    way = replace(INSIDE, config={**INSIDE.config, "configurable": {"user": "me"}})
    assert read(one_node(apart), {"q": "x"}, way=way).asked == ["nobody None x"]
    assert read(one_node(within), {"q": "x"}, way=way).asked == ["me ours x"]


def test_what_a_graph_calls_has_the_config_of_the_graph() -> None:
    from langchain_core.runnables import chain

    @chain
    def asks(text: str, config: RunnableConfig) -> str:
        return str(llm.invoke(f"{config['configurable'].get('user', 'nobody')} {text}").content)

    inside = one_node(lambda state: {"found": [asks.invoke("in")]})

    def node(state: State) -> dict[str, Any]:
        found = inside.invoke({"q": "x"}, {"configurable": {"thread_id": "1"}})["found"]
        return {"found": [*found, asks.invoke("out")]}

    way = replace(INSIDE, config={**INSIDE.config, "configurable": {"user": "me"}})
    assert read(one_node(node), {"q": "x"}, way=way).asked == ["me out", "nobody in"]


def test_agents_that_go_on_by_commands_are_asked_at_once() -> None:
    first, second = create_agent(llm, name="first"), create_agent(llm, name="second")

    def research(state: MessagesState) -> Command[Literal["B"]]:
        result = first.invoke({"messages": [HumanMessage("find")]})
        return Command(update={"messages": [HumanMessage(result["messages"][-1].content, name="first")]}, goto="B")

    def write(state: MessagesState) -> Command[Literal["__end__"]]:
        result = second.invoke({"messages": [HumanMessage("write")]})
        return Command(update={"messages": [HumanMessage(result["messages"][-1].content, name="second")]}, goto=END)

    graph: Any = StateGraph(MessagesState)
    graph.add_node("A", research)
    graph.add_node("B", write)
    graph.add_edge(START, "A")
    made = graph.compile()
    given = {"messages": [HumanMessage("x", id="1")]}
    assert [sorted(some) for some in asked(made, **given)] == [["find", "write"]]
    assert told(optimize(made).invoke(given)) == told(made.invoke(given))


# --- what is left to the run -----------------------------------------------------------------------------------------


class Watching(AgentMiddleware):
    """Stands around the model."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(messages=[HumanMessage("other")]))


class Before(AgentMiddleware):
    """Stands before the model."""

    def before_model(self, state: Any, runtime: Any) -> Any:
        return {"messages": [HumanMessage("more")]}


def test_middleware_is_no_plain_data() -> None:
    assert kind_of(Watching) == kind_of(Before) == "component"


@pytest.mark.parametrize("middleware", [Watching(), Before()])
def test_middleware_says_what_is_asked(middleware: Any) -> None:
    graph = one_node(in_turn([create_agent(llm, middleware=[middleware]) for _ in range(2)]))
    engine.batches.clear()
    plain = graph.invoke({"q": "x"})
    before = sorted(map(str, engine.seen))
    engine.batches.clear()
    fast = optimize(graph)
    assert fast.invoke({"q": "x"}) == plain
    assert sorted(map(str, engine.seen)) == before


def test_an_agent_that_keeps_its_threads_is_left_to_its_run() -> None:
    agent = create_agent(llm, checkpointer=InMemorySaver())
    assert asked(one_node(in_turn([agent], config={"configurable": {"thread_id": "1"}}))) == []


def test_an_agent_is_not_asked_behind_what_needs_its_reply() -> None:
    agent = create_agent(llm)

    def node(state: State) -> dict[str, Any]:
        first = agent.invoke({"messages": [HumanMessage("a")]})
        return {"found": agent.invoke({"messages": [*first["messages"], HumanMessage("b")]})["messages"]}

    assert [len(some) for some in asked(one_node(node))] == [1, 1]


def test_calls_of_tools_that_could_not_be_read_are_answered() -> None:
    """`create_agent` puts messages of tools behind them; the history of the agent is then another one."""
    broken = {"name": "t", "args": "{", "id": "7", "error": "no", "type": "invalid_tool_call"}
    history = [HumanMessage("a"), AIMessage("b", invalid_tool_calls=[broken])]

    def given(more: list[Any]) -> Any:
        def node(state: State) -> dict[str, Any]:
            messages = create[0].invoke({"messages": [*history, *more, HumanMessage("c")]})["messages"]
            return {"found": [f"{type(each).__name__} {each.content}" for each in messages]}

        return one_node(node)

    create = [create_agent(llm)]
    for more in ([], [ToolMessage("done", tool_call_id="7")]):
        graph = given(more)
        engine.batches.clear()
        plain = graph.invoke({"q": "x"})
        assert optimize(graph).invoke({"q": "x"}) == plain
        assert len(engine.seen) == 2
        assert engine.seen[0] == engine.seen[1]


# --- runs ------------------------------------------------------------------------------------------------------------


def hosted(service: Service) -> Any:
    return ChatOpenAI(model="m", base_url=service.url, api_key="none", max_retries=0)  # type: ignore[arg-type]


def test_hosted_agents_are_asked_side_by_side(service: Service) -> None:
    agents = [create_agent(hosted(service), system_prompt=f"You are {at}.", name=f"w{at}") for at in range(3)]
    graph = one_node(in_turn(agents, config={"recursion_limit": 5}))
    asked_side_by_side(service, graph, "0 x", "2 x", lambda app: told(app.invoke({"q": "x"})))


def test_hosted_agents_are_awaited_side_by_side(service: Service) -> None:
    agents = [create_agent(hosted(service)) for _ in range(3)]

    async def node(state: State) -> dict[str, Any]:
        found = []
        for at, agent in enumerate(agents):
            result = await agent.ainvoke({"messages": [HumanMessage(f"{at} {state['q']}")]})
            found.append(result["messages"][-1].content)
        return {"found": found}

    asked_side_by_side(service, one_node(node), "0 x", "2 x", lambda app: asyncio.run(app.ainvoke({"q": "x"})))


@pytest.mark.parametrize("config", [{}, {"tags": ["a"]}, {"configurable": {"thread_id": "1"}}])
def test_callbacks_streams_and_checkpoints_are_those_of_the_original(config: Any) -> None:
    agents = [create_agent(llm, system_prompt="s", name=f"w{at}") for at in range(2)]

    def seen(is_fast: bool) -> list[Any]:
        saver = InMemorySaver()
        graph = one_node(in_turn(agents, config=config), checkpointer=saver)
        app, listener = optimize(graph) if is_fast else graph, Listener()
        call: Any = {"configurable": {"thread_id": "7"}, "callbacks": [listener]}
        streamed = [
            told(part) for part in app.stream({"q": "x"}, call, stream_mode=["updates", "messages"], subgraphs=True)
        ]
        kept = [told(each.checkpoint["channel_values"]) for each in saver.list(None)]
        return [
            streamed,
            kept,
            listener.forest() if hasattr(listener, "forest") else told(list(listener.runs.values())),
        ]

    assert seen(is_fast=True) == seen(is_fast=False)


# --- the library's requests ------------------------------------------------------------------------------------------


def test_a_request_holds_what_the_library_keeps() -> None:
    def node(state: State) -> dict[str, Any]:
        made = ModelRequest(model=llm, messages=[1], tools=[2], state=given, runtime=other)
        known = [made.messages, made.system_message, made.tools, made.tool_choice, made.model_settings, made.state]
        return {"found": [made.model.invoke(f"{known} {made.response_format} {made.runtime}").content]}

    given: Any = {"messages": []}
    other: Any = "r"
    graph = one_node(node)
    plain = graph.invoke({"q": "x"})
    assert plain["found"] == [f"<User: {asked(graph)[0][0]}\nAssistant:>"]


def test_other_requests_are_left_to_their_run(monkeypatch: pytest.MonkeyPatch) -> None:
    usual: Any = {"model": llm, "messages": [], "tools": [], "state": {"messages": []}, "runtime": "r"}

    def asks_with(**given: Any) -> list[list[str]]:
        def node(state: State) -> dict[str, Any]:
            made = ModelRequest(**given)
            return {"found": [llm.invoke(f"{made.tools}").content]}

        return asked(one_node(node))

    assert asks_with(**usual) == [["[]"]]
    assert asks_with(**usual, system_prompt="s") == asks_with(**{**usual, "tools": None}) == []
    assert asks_with(**{name: held for name, held in usual.items() if name != "tools"}) == []

    def newer(self: Any, *, more: Any = None, **known: Any) -> None:
        """Keeps something else."""

    newer.__module__ = ModelRequest.__module__
    monkeypatch.setattr(ModelRequest, "__init__", newer)
    assert asks_with(**usual) == []


def test_a_request_that_is_changed_is_left_to_its_run() -> None:
    def node(state: State) -> dict[str, Any]:
        made: Any = ModelRequest(model=llm, messages=[], tools=[], state={"messages": []}, runtime=other)
        try:
            made.tools = [1]
        except AttributeError:
            return {"found": [llm.invoke("never").content]}
        return {"found": [llm.invoke(f"{made.tools}").content]}

    other: Any = "r"
    assert asked(one_node(node)) == []


def test_lists_of_the_same_messages_are_equal() -> None:
    def node(state: State) -> dict[str, Any]:
        reply, message = llm.invoke("a"), HumanMessage("b")
        one, two, three = [reply, message], [reply, message], [reply, llm.invoke("c")]
        differ = one != two
        found = "equal" if one == two and not differ else "other"
        return {"found": [llm.invoke(found).content, llm.invoke("same" if one == three else "not").content]}

    assert asked(one_node(node)) == [["a", "c", "equal"]]


def test_a_number_need_not_equal_itself() -> None:
    def node(state: State) -> dict[str, Any]:
        number = float(llm.invoke("a").content)
        return {"found": [llm.invoke(f"{[number] == [number + 0]} {[number] == [number]}").content]}

    graph = one_node(node)
    assert read(graph, {"q": "x"}, way=INSIDE, answer=lambda prompt: "nan").asked == ["a", "False True"]
