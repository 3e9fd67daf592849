"""What is asked ahead of a state graph's run, and when; and what LangGraph's run reveals."""

from __future__ import annotations

import asyncio
import json
import logging
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph._internal._config import ensure_config
from langgraph._internal._constants import CONFIG_KEY_RESUMING
from langgraph.channels.ephemeral_value import EphemeralValue
from langgraph.channels.named_barrier_value import NamedBarrierValue
from langgraph.channels.topic import Topic
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError, InvalidUpdateError
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.managed import IsLastStep, RemainingSteps
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy, Command, Send, StreamWriter, interrupt
from pydantic import BaseModel

from teola_plugin import compare, explain, optimize, optimized
from teola_plugin.adapters.langchain.binding import Entered
from teola_plugin.adapters.langchain.reading import LangChainAsker
from teola_plugin.adapters.langgraph.follow import _front_of, _tasks, _way_of, prepared, trace
from teola_plugin.adapters.langgraph.front import SIDE_BY_SIDE, Front, Task
from teola_plugin.adapters.langgraph.inside import LangGraphAsker
from teola_plugin.adapters.langgraph.reading import GraphReader
from teola_plugin.adapters.reader.run import Given, Run
from teola_plugin.adapters.reader.values import Unknown
from teola_plugin.engines import Batch
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.seams import Reply
from teola_plugin.trace import Progress
from tests.conftest import PATIENCE_CALLS
from tests.support.fakes import FakeEngine, says
from tests.support.langchain_world import ask
from tests.support.langgraph_reading import WAY, Found, read
from tests.support.langgraph_world import Patient

engine = FakeEngine(lambda prompt: says(f"<{prompt}>"), name="llm", concurrent=True)
llm = EngineChatModel(engine=engine, max_tokens=None, temperature=None)
noted: list[str] = []


class State(TypedDict, total=False):
    q: str
    a: str
    b: str
    c: str
    d: str
    e: str
    log: Annotated[list[str], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]


class Odd(State, total=False):
    odd: Annotated[str, lambda old, new: unread_note(noted, new) or new]


def asks(key: str, *reads: str) -> Any:
    """A node that asks about what it reads and writes the answer under `key`."""
    first, second = (*reads, *reads)[:2]

    def node(state: State) -> dict[str, Any]:
        return {key: llm.invoke(f"{key}: {state[first]} {state[second]}").content, "log": [key]}  # type: ignore[literal-required]

    async def anode(state: State) -> dict[str, Any]:
        reply = await llm.ainvoke(f"{key}: {state[first]} {state[second]}")  # type: ignore[literal-required]
        return {key: reply.content, "log": [key]}

    return anode if key == "e" else node


def built(nodes: dict[str, Any], *edges: tuple[Any, str], state: type = State, **options: Any) -> Any:
    graph: Any = StateGraph(state)
    for name, node in nodes.items():
        graph.add_node(name, node)
    for start, end in edges:
        graph.add_edge(start, end)
    return graph.compile(**options)


A, B, C, D, E = asks("a", "q"), asks("b", "a"), asks("c", "a"), asks("d", "b"), asks("e", "c", "d")
BARRIER = ((START, "A"), ("A", "B"), ("A", "C"), ("B", "D"), (["C", "D"], "E"), ("E", END))
ROUNDS = [["a: x x"], ["b: <a> <a>", "c: <a> <a>"], ["d: <b> <b>"], ["e: <c> <d>"]]
ASYNC = replace(WAY, is_async=True)


def barrier(**options: Any) -> Any:
    """D waits for C by the barrier alone."""
    return built({"A": A, "B": B, "C": C, "D": D, "E": E}, *BARRIER, **options)


def asked(found: Found) -> str:
    """The first letters of what is asked, round by round."""
    return " ".join("".join(prompt[0] for prompt in each) for each in found.rounds)


unread_note = eval("lambda noted, what: noted.append(what)")
"""A function without source."""


def effect(state: State) -> dict[str, Any]:
    """What nobody reads."""
    unread_note(noted, "effect")
    return {}


# --- supersteps ------------------------------------------------------------------------------------------------------


def test_all_that_is_certain_is_asked_as_replies_come() -> None:
    found = read(barrier(), {"q": "x"}, way=ASYNC)
    assert found.rounds == ROUNDS
    assert found.steps == [["A"], ["B", "C"], ["D"], ["E"]]
    assert not found.barrier


def test_a_node_waits_for_what_it_reads_not_for_what_runs_beside_it() -> None:
    """D is asked while C's reply is awaited."""
    held: list[str] = []

    def slow_c(prompt: str) -> str:
        held.append(prompt)
        return f"<{prompt[:1]}>"

    nodes = {"A": A, "B": lambda s: {"b": s["a"]}, "C": C, "D": D, "E": lambda s: {"e": llm.invoke(s["c"]).content}}
    assert read(built(nodes, *BARRIER), {"q": "x"}, answer=slow_c).rounds[1] == ["c: <a> <a>", "d: <a> <a>"]


def test_a_node_that_is_not_read_ends_it_after_those_beside_it() -> None:
    nodes = {"A": A, "B": effect, "C": C, "D": D, "E": E}
    found = read(built(nodes, *BARRIER), {"q": "x"})
    assert (asked(found), found.steps) == ("a c", [["A"], ["B", "C"]])
    assert found.barrier
    assert not noted


def test_what_a_node_that_is_not_read_may_have_decided_is_no_doubt_of_those_beside_it() -> None:
    def unread(state: State) -> dict[str, Any]:
        if llm.invoke("w").content == "<x>":
            return {}
        return effect(state)

    def beside(state: State) -> dict[str, Any]:
        return {"log": [llm.invoke("first").content, llm.invoke("second").content]}

    found = read(built({"A": unread, "B": beside}, (START, "A"), (START, "B")), {"q": "x"})
    assert found.rounds == [["first", "second", "w"]]


def test_an_edge_from_each_of_two_nodes_is_no_join() -> None:
    edges = ((START, "A"), ("A", "B"), ("A", "C"), ("B", "D"), ("C", "E"), ("D", "E"))
    nodes = {"A": A, "B": B, "C": C, "D": D, "E": lambda s: {"e": s.get("d", ""), "log": ["e"]}}
    assert read(built(nodes, *edges), {"q": "x"}).steps == [["A"], ["B", "C"], ["D", "E"], ["E"]]


@pytest.mark.parametrize(("joined", "steps"), [
    ({}, [["D"]]), ({"join:C+D:E": frozenset("C")}, [["D"], ["E"]]), ({"join:C+D:E": frozenset("D")}, [["D"]]),
])  # fmt: skip
def test_a_join_remembers_who_came(joined: Any, steps: Any) -> None:
    def at_d(front: Front) -> Front:
        return replace(front, tasks=(Task("D"),), state={**front.state, "b": "b", "c": "c"}, joined=joined)

    assert read(barrier(), {"q": "x"}, way=ASYNC, of=at_d).steps == steps


def test_a_join_that_is_complete_leads_on_once() -> None:
    graph = barrier()
    channel: Any = NamedBarrierValue(str, {"C", "D"})
    channel.update(["C", "D"])
    loop = loop_at(graph, "E", channels={**graph.channels, "join:C+D:E": channel})
    front = _front_of(loop, graph, (Task("E"),), Given())
    assert front.joined == {"join:C+D:E": frozenset()}


STOPS = [
    ({"stops_before": frozenset("D")}, [["A"], ["B", "C"]]), ({"stops_after": frozenset("B")}, [["A"], ["B", "C"]]),
    ({"stops_before": frozenset("*")}, [["A"]]), ({"stops_after": frozenset("*")}, [["A"]]),
    ({"stops_before": frozenset("A")}, [["A"], ["B", "C"], ["D"], ["E"]]), ({"stop": 2}, [["A"], ["B", "C"]]),
]  # fmt: skip


@pytest.mark.parametrize(("stops", "steps"), STOPS)
def test_nothing_is_read_behind_an_interrupt_or_the_limit(stops: Any, steps: Any) -> None:
    assert read(barrier(), {"q": "x"}, way=replace(ASYNC, **stops)).steps == steps


def test_a_conditional_edge_is_followed_once_it_is_decided() -> None:
    def way(state: State) -> str:
        return "D" if llm.invoke(f"way {state['c']}").content == "<w>" else END

    graph = StateGraph(State)
    for name, node in {"A": A, "B": B, "C": C, "D": D}.items():
        graph.add_node(name, node)
    for start, end in [(START, "A"), ("A", "B"), ("A", "C")]:
        graph.add_edge(start, end)
    graph.add_conditional_edges("C", way, ["D", END])
    assert asked(read(graph.compile(), {"q": "x"})) == "a bc w d"
    assert asked(read(graph.compile(), {"q": "x"}, answer=lambda prompt: "no")) == "a bc w"


@pytest.mark.parametrize(("way", "ways"), [
    (lambda state: [END, "B"], None), (lambda state: "on", {"on": "B", "off": END}),
    (lambda state: ["on", "off"], {"on": "B", "off": END}),
])  # fmt: skip
def test_a_conditional_edge_may_name_its_ways_and_end_one_of_them(way: Any, ways: Any) -> None:
    builder = built({"A": A, "B": B}, (START, "A")).builder
    builder.add_conditional_edges("A", way, ways)
    assert read(builder.compile(), {"q": "x"}).rounds == [["a: x x"], ["b: <a> <a>"]]


def test_nothing_is_read_behind_two_nodes_that_write_one_key() -> None:
    nodes = {"A": A, "B": B, "C": lambda s: {"b": llm.invoke("c: ").content}, "D": lambda s: llm.invoke("d: ")}
    graph = built(nodes, (START, "A"), ("A", "B"), ("A", "C"), ("B", "D"))
    assert asked(read(graph, {"q": "x"})) == "ac b"
    with pytest.raises(InvalidUpdateError):
        graph.invoke({"q": "x"})


def test_a_cache_for_all_nodes_is_asked_first() -> None:
    graph = barrier()
    graph.cache_policy = CachePolicy()
    assert read(graph, {"q": "x"}).asked == []


def test_a_node_is_read_up_to_where_it_interrupts_the_graph() -> None:
    def node(state: State) -> dict[str, Any]:
        first = llm.invoke("first").content
        return {"a": first, "b": llm.invoke(f"b {interrupt('who?')}").content}

    found = read(built({"A": node}, (START, "A")), {"q": "x"})
    assert (found.asked, found.barrier) == (["first"], "it interrupts the graph")


def test_a_graph_that_is_called_with_a_config_that_limits_it_is_left_to_its_run() -> None:
    inner = built({"B": B}, (START, "B"))

    def calls(state: State) -> dict[str, Any]:
        return {"d": inner.invoke({"a": state["q"]}, {"max_concurrency": 3})["b"]}

    assert read(built({"I": calls}, (START, "I")), {"q": "x"}).asked == []


class Narrow(TypedDict, total=False):
    c: str


def test_a_conditional_edge_sees_what_its_node_sees_and_what_it_wrote() -> None:
    def node(state: Narrow) -> dict[str, Any]:
        return {"c": llm.invoke("c: ").content, "log": ["C"]}

    graph = StateGraph(State)
    graph.add_node("C", node)
    graph.add_node("D", lambda state: {"d": llm.invoke("d: ").content})
    graph.add_edge(START, "C")
    graph.add_conditional_edges("C", lambda state: "D" if sorted(state) == ["c", "log"] else END)
    assert asked(read(graph.compile(), {"q": "x"})) == "cd"
    assert "d" in graph.compile().invoke({"q": "x"})


def test_a_loop_is_followed_to_its_end() -> None:
    def turn(state: State) -> dict[str, Any]:
        return {"log": [llm.invoke(f"{len(state['log'])}: ").content]}

    graph = StateGraph(State)
    graph.add_node("A", turn)
    graph.add_edge(START, "A")
    graph.add_conditional_edges("A", lambda state: "A" if len(state["log"]) < 3 else END)
    assert asked(read(graph.compile(), {"q": "x"})) == "012"  # no reply decides how often


def test_a_command_is_followed_once_it_is_known() -> None:
    def node(state: State) -> Any:
        reply = llm.invoke("w").content
        return Command(goto="B" if reply == "<w>" else END, update=[("a", "1"), ("log", ["one"]), ("log", ["two"])])

    def after(state: State) -> dict[str, Any]:
        return {"b": llm.invoke(f"b: {state['a']} {state['log']}").content}

    graph = built({"A": node, "B": after}, (START, "A"))
    assert read(graph, {"q": "x"}).rounds == [["w"], ["b: 1 ['one', 'two']"]]
    assert read(graph, {"q": "x"}, answer=lambda prompt: "no").rounds == [["w"]]


def test_a_command_to_another_graph_is_left_to_langgraph() -> None:
    def node(state: State) -> Any:
        return Command(graph=Command.PARENT, goto="B", update={"a": llm.invoke("a").content})

    inner = built({"A": node, "B": B}, (START, "A"))
    found = read(inner, {"q": "x"})
    assert (found.asked, found.barrier) == (["a"], "a Command goes to another graph")
    outer = built({"I": inner, "B": C}, (START, "I"))
    assert read(outer, {"q": "x"}).asked == ["a"]
    engine.batches.clear()
    outer.invoke({"q": "x"})
    assert len(engine.seen) == 2


def test_each_of_several_commands_is_followed() -> None:
    def node(state: State) -> Any:
        return [Command(goto="B", update={"a": "1"}), Command(goto="C")]

    graph = built({"A": node, "B": B, "C": C}, (START, "A"))
    assert read(graph, {"q": "x"}).rounds == [["b: 1 1", "c: 1 1"]]


def test_sends_are_read_in_their_order_and_deferred_nodes_wait() -> None:
    def split(state: State) -> list[Send]:
        return [Send("B", {"a": word}) for word in state["q"].split()]

    def each(state: State) -> dict[str, Any]:
        return {"log": [llm.invoke(state["a"]).content]}

    graph = StateGraph(State)
    graph.add_node("A", A)
    graph.add_node("B", each)
    graph.add_node("D", lambda state: {"d": llm.invoke(",".join(state["log"])).content}, defer=True)
    graph.add_node("E", lambda state: {"e": llm.invoke(",".join(state["log"])).content})
    graph.add_edge(START, "A")
    graph.add_conditional_edges("A", split, ["B"])
    graph.add_edge("B", "E")
    assert read(graph.compile(), {"q": "one two"}).rounds == [["a: one two one two", "one", "two"], ["a,<o>,<t>"]]
    graph.add_edge("A", "D")
    found = read(graph.compile(), {"q": "one two"})  # LangGraph runs D beside what is sent
    assert (asked(found), found.steps) == ("a", [["A"]])
    builder = built({"A": A, "B": B}, (START, "A"), ("A", "B")).builder
    builder.add_node("D", lambda state: {"d": llm.invoke("d").content}, defer=True)
    builder.add_edge("A", "D")
    assert read(builder.compile(), {"q": "x"}).steps == [["A"], ["B"]]  # then D


class Best(TypedDict, total=False):
    q: str
    n: Annotated[int | None, operator.add]
    best: Annotated[Any, lambda old, new: f"{old} {new}"]


class Sparse(BaseModel):
    q: str | None = None
    a: str | None = None


WRITES: dict[str, tuple[Any, list[str]]] = {
    "the first value": (lambda state: {"n": 2}, ["x 2 -"]),
    "an overwrite": (lambda state: {"best": {"__overwrite__": "new"}}, []),
    "what a model leaves out": (lambda state: Sparse(a="a"), ["x - -"]),
    "what a model was given": (lambda state: Sparse(q=None), ["None - -"]),
}


@pytest.mark.parametrize("case", WRITES)
def test_a_node_writes_what_langgraph_makes_of_its_value(case: str) -> None:
    write, expected = WRITES[case]
    nodes = {"A": write, "B": lambda s: {"q": llm.invoke(f"{s['q']} {s.get('n', '-')} {s.get('best', '-')}").content}}
    graph = built(nodes, (START, "A"), ("A", "B"), state=Best)
    engine.batches.clear()
    graph.invoke({"q": "x"})
    told = [str(prompt).removeprefix("User: ").split("\n")[0] for prompt in engine.seen]
    assert read(graph, {"q": "x"}).asked == expected
    assert told == expected or not expected


def test_nodes_write_before_what_is_sent() -> None:
    graph = StateGraph(State)
    graph.add_node("A", lambda state: {"a": "a"})
    graph.add_node("B", lambda state: {"log": [state["a"]]})
    graph.add_node("C", lambda state: {"log": ["c"]})
    graph.add_node("D", lambda state: {"d": llm.invoke(f"{state['log']}").content})
    graph.add_edge(START, "A")
    graph.add_conditional_edges("A", lambda state: [Send("B", {"a": "sent"})], ["B"])
    graph.add_edge("A", "C")
    graph.add_edge("C", "D")
    engine.batches.clear()
    graph.compile().invoke({"q": "x"})
    assert [str(prompt).removeprefix("User: ").split("\n")[0] for prompt in engine.seen] == ["['c', 'sent']"]
    assert read(graph.compile(), {"q": "x"}).asked == ["['c', 'sent']"]


def test_reducers_are_interpreted_and_those_with_effects_end_it() -> None:
    def writes(state: State) -> dict[str, Any]:
        return {"messages": [HumanMessage(state["q"], id="1")]}

    def writes_odd(state: State) -> dict[str, Any]:
        return {"odd": state["q"]}

    reads = {"B": lambda s: {"a": llm.invoke(s["messages"]).content}}
    edges = ((START, "A"), ("A", "B"))
    assert len(read(built({"A": writes, **reads}, *edges), {"q": "x"}).rounds) == 1
    found = read(built({"A": writes_odd, **reads}, *edges, state=Odd), {"q": "x", "odd": "y"})
    assert (found.rounds, noted) == ([], [])
    assert found.barrier


@pytest.mark.parametrize("takes", ["config", "runtime", "writer", "store"])
def test_nodes_may_take_more_than_the_state(takes: str) -> None:
    def with_config(state: State, config: RunnableConfig) -> dict[str, Any]:
        return {"a": llm.invoke(f"a{config['configurable']['who']}").content}

    def with_runtime(state: State, runtime: Runtime[Any]) -> dict[str, Any]:
        runtime.stream_writer("told")
        return {"a": llm.invoke(f"a{runtime.context}").content}

    def with_writer(state: State, writer: StreamWriter) -> dict[str, Any]:
        writer("told")
        return {"a": llm.invoke("a").content}

    def with_store(state: State, store: BaseStore) -> dict[str, Any]:
        store.put(("x",), "y", {})
        return {"a": llm.invoke("a").content}

    nodes = {"config": with_config, "runtime": with_runtime, "writer": with_writer, "store": with_store}
    config = {"configurable": {"who": "me"}, "recursion_limit": 25}
    runtime: Any = Runtime(context="me", store=InMemoryStore())
    found = read(built({"A": nodes[takes]}, (START, "A")), {"q": "x"}, way=replace(WAY, config=config, runtime=runtime))
    assert found.asked == {"config": ["ame"], "runtime": ["ame"], "writer": ["a"], "store": []}[takes]


def test_the_store_of_a_runtime_is_used_by_its_run_alone() -> None:
    def node(state: State, runtime: Runtime[Any]) -> dict[str, Any]:
        found = runtime.store.get(("x",), "y") if runtime.store else None
        return {"a": llm.invoke(f"a{found}").content}

    for store in (InMemoryStore(), None):
        runtime: Any = Runtime(store=store)
        found = read(built({"A": node}, (START, "A")), {"q": "x"}, way=replace(WAY, runtime=runtime))
        assert (found.asked, found.barrier) == ([], "it uses the store of the runtime")


class Managed(TypedDict, total=False):
    left: RemainingSteps
    is_last: IsLastStep
    a: str


def test_the_steps_that_remain_are_known() -> None:
    told: list[Any] = []

    def node(state: Managed) -> dict[str, Any]:
        return {"a": llm.invoke(f"{state['left']} {state['is_last']}").content}

    graph = StateGraph(Managed)
    graph.add_node("A", lambda state: {})
    graph.add_node("B", node)
    graph.add_edge(START, "A")
    graph.add_edge("A", "B")
    compiled = graph.compile()
    for limit in (3, 10):
        found = read(compiled, {"a": ""}, way=replace(WAY, stop=limit))
        engine.batches.clear()
        compiled.invoke({"a": ""}, {"recursion_limit": limit})
        told = [str(prompt).removeprefix("User: ").removesuffix("\nAssistant:") for prompt in engine.seen]
        assert found.asked == told


class Fleeting(TypedDict, total=False):
    a: str
    once: Annotated[str, EphemeralValue]


class Collected(TypedDict, total=False):
    a: str
    many: Annotated[list[str], Topic]


def test_a_key_that_lasts_for_one_superstep() -> None:
    graph = StateGraph(Fleeting)
    graph.add_node("A", lambda state: {"a": llm.invoke(str(sorted(state))).content})
    graph.add_node("B", lambda state: {"a": llm.invoke(str(sorted(state))).content})
    graph.add_edge(START, "A")
    graph.add_edge("A", "B")
    compiled = graph.compile()
    engine.batches.clear()
    compiled.invoke({"once": "x"})
    told = [str(prompt).removeprefix("User: ").removesuffix("\nAssistant:") for prompt in engine.seen]
    assert read(compiled, {"once": "x"}).asked == sorted(told) == ["['a']", "['once']"]


def test_keys_of_other_kinds_are_left_to_langgraph() -> None:
    graph = StateGraph(Collected)
    graph.add_node("A", lambda state: {"a": llm.invoke("a").content})
    graph.add_edge(START, "A")
    assert read(graph.compile(), {"a": "x"}).barrier == "many is a Topic"


@dataclass
class Record:
    q: str
    a: str = ""
    b: str = ""


class Model(BaseModel):
    q: str
    a: str = ""
    b: str = ""


@dataclass
class Checked(Record):
    def __post_init__(self) -> None:
        noted.append(self.q)


@dataclass
class Computed:
    a: str

    @property
    def b(self) -> str:
        noted.append("b")
        return "b"


@pytest.mark.parametrize(("state", "expected"), [(Record, "a b"), (Model, "a b"), (Checked, "a b")])
def test_states_that_are_objects(state: type, expected: str) -> None:
    graph: Any = StateGraph(state)
    graph.add_node("first", lambda state: {"a": llm.invoke("a" + state.q).content})
    graph.add_node("second", lambda state: {"b": llm.invoke("b" + state.a).content})
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    plain = graph.compile()
    noted.clear()
    assert asked(read(plain, {"q": "x"})) == expected
    assert not noted
    assert optimize(plain).invoke({"q": "x"}) == plain.invoke({"q": "x"})
    noted.clear()


@pytest.mark.parametrize(("made", "rounds"), [
    (lambda: Record("q", "made"), [["made"]]), (lambda: Model(q="q", a="made"), [["made"]]),
    (lambda: Computed("made"), []),
])  # fmt: skip
def test_updates_that_are_objects(made: Any, rounds: Any) -> None:
    """The properties of what a node returns are not run early."""
    nodes = {"A": lambda state: made(), "B": lambda state: {"b": llm.invoke(state["a"]).content}}
    graph = built(nodes, (START, "A"), ("A", "B"))
    noted.clear()
    assert read(graph, {"q": "x"}).rounds == rounds
    assert not noted
    assert optimize(graph).invoke({"q": "x"}) == graph.invoke({"q": "x"})
    noted.clear()


def test_what_the_kind_of_call_cannot_run_is_not_asked() -> None:
    graph = built({"A": A, "E": asks("e", "a")}, (START, "A"), ("A", "E"))
    assert asked(read(graph, {"q": "x"}, way=ASYNC)) == "a e"
    found = read(graph, {"q": "x"})  # LangGraph raises: the function of E is a coroutine's
    assert (asked(found), found.barrier) == ("a", "E cannot be called so")


def test_more_than_begin_at_once_wait_for_those_before_them() -> None:
    """Behind a failure LangGraph does not start what its pool has no worker for yet."""

    def each(state: State) -> dict[str, Any]:
        return {"log": [str(json.loads(str(llm.invoke(state["a"]).content)))]}

    words = SIDE_BY_SIDE + 2
    graph = StateGraph(State)
    graph.add_node("B", each)
    graph.add_conditional_edges(START, lambda state: [Send("B", {"a": str(n)}) for n in range(words)], ["B"])
    compiled = graph.compile()
    asker = LangGraphAsker(LangChainAsker(), WAY)
    reader, run = GraphReader(compiled, asker.run_component), Run(asker)
    prepared(compiled)
    reader.superstep(run, reader.entered(run, {"q": "x"}, WAY), WAY)
    assert [ask.is_certain for ask in run.asks.values()] == [True] * SIDE_BY_SIDE + [False] * 2


def test_a_chain_as_a_node_is_read_like_any_chain() -> None:
    chain = {"a": ask("{q}?") | llm | StrOutputParser()}
    graph = built({"A": chain, "B": B}, (START, "A"), ("A", "B"))
    assert read(graph, {"q": "x"}).rounds == [["x?"], ["b: <x> <x>"]]
    assert optimize(graph).invoke({"q": "x"}) == graph.invoke({"q": "x"})


# --- graphs inside of graphs -----------------------------------------------------------------------------------------


def test_a_graph_inside_a_graph_is_read_to_its_end() -> None:
    inner = built({"B": B, "D": D}, (START, "B"), ("B", "D"))
    graph = built({"A": A, "I": inner, "C": C, "E": E}, (START, "A"), ("A", "I"), ("A", "C"), (["I", "C"], "E"))
    assert read(graph, {"q": "x"}, way=ASYNC).rounds == ROUNDS
    assert asyncio.run(optimize(graph).ainvoke({"q": "x"})) == asyncio.run(graph.ainvoke({"q": "x"}))


def test_a_graph_called_by_a_function_is_read_too() -> None:
    inner = built({"B": B, "D": D}, (START, "B"), ("B", "D"))

    def calls(state: State) -> dict[str, Any]:
        return {"d": inner.invoke({"a": state["a"]})["d"]}

    nodes = {"A": A, "I": calls, "E": lambda s: {"e": llm.invoke("e" + s["d"]).content}}
    graph = built(nodes, (START, "A"), ("A", "I"), ("I", "E"))
    assert asked(read(graph, {"q": "x"})) == "a b d e"
    assert optimize(graph).invoke({"q": "x"}) == graph.invoke({"q": "x"})


def test_a_graph_inside_a_graph_that_writes_nothing() -> None:
    inner = built({"B": lambda state: None}, (START, "B"))
    graph = built({"I": inner, "D": lambda s: {"d": llm.invoke(f"{s['log']}").content}}, (START, "I"), ("I", "D"))
    engine.batches.clear()
    graph.invoke({"q": "x", "log": ["l"]})
    assert read(graph, {"q": "x", "log": ["l"]}).asked == [
        str(p).removeprefix("User: ").split("\n")[0] for p in engine.seen
    ]


@pytest.mark.parametrize("own", [{"checkpointer": InMemorySaver()}, {"interrupt_before": ["B"]}])
def test_a_graph_inside_a_graph_that_keeps_or_stops_is_left_to_its_run(own: Any) -> None:
    inner = built({"B": B}, (START, "B"), **own)
    graph = built({"A": A, "I": inner, "D": D}, (START, "A"), ("A", "I"), ("I", "D"))
    assert asked(read(graph, {"q": "x"})) == "a"


def test_a_graph_inside_a_graph_that_was_resumed_is_left_to_its_run() -> None:
    inner = built({"B": B}, (START, "B"))
    graph = built({"A": A, "I": inner, "D": D}, (START, "A"), ("A", "I"), ("I", "D"))
    assert asked(read(graph, {"q": "x"})) == "a b d"
    assert asked(read(graph, {"q": "x"}, way=replace(WAY, is_resumed=True))) == "a"


@pytest.mark.parametrize(("limit", "error"), [(2, "GraphRecursionError"), (4, "")])
def test_a_graph_inside_a_graph_ends_at_the_limit(limit: int, error: str) -> None:
    inner = built({"B": B, "D": D}, (START, "B"), ("B", "D"))

    def calls(state: State) -> dict[str, Any]:
        return {"d": inner.invoke({"a": state["a"]})["d"]}

    nodes = {"A": A, "I": calls, "E": lambda s: {"e": llm.invoke("e" + s["d"]).content}}
    graph = built(nodes, (START, "A"), ("A", "I"), ("I", "E"))
    config = {"configurable": {}, "recursion_limit": limit}
    assert ("e" in asked(read(graph, {"q": "x"}, way=replace(WAY, config=config)))) == (not error)
    raised = ""
    try:
        graph.invoke({"q": "x"}, config)
    except GraphRecursionError as e:
        raised = type(e).__name__
    assert raised == error


def test_a_graph_that_writes_nothing_of_what_it_returns_returns_none() -> None:
    inner: Any = StateGraph(State, output_schema=Narrow)
    inner.add_node("B", lambda state: {"b": "b"})
    inner.add_edge(START, "B")
    inside = inner.compile()
    assert inside.invoke({"q": "x"}) is None
    graph = built({"I": lambda state: {"d": llm.invoke(f"{inside.invoke({'q': 'x'})}").content}}, (START, "I"))
    assert read(graph, {"q": "x"}).asked == ["None"]


def test_a_graph_inside_a_graph_ends_at_a_limit_of_its_own() -> None:
    inner = built({"B": B, "D": D}, (START, "B"), ("B", "D"))

    def read_with(graph: Any, limit: Any) -> str:
        config = {"configurable": {}, "recursion_limit": limit}
        nodes = {"A": A, "I": graph, "E": lambda s: {"e": llm.invoke("e").content}}
        whole = built(nodes, (START, "A"), ("A", "I"), ("I", "E"))
        return asked(read(whole, {"q": "x"}, way=replace(WAY, config=config)))

    default, short, long = ensure_config({})["recursion_limit"], 1, 32
    assert read_with(inner, default) == read_with(inner, long) == "ae b d"
    for limit in (default, short, long):
        assert "e" not in read_with(inner.with_config(recursion_limit=short), limit)
    assert read_with(inner.with_config(recursion_limit=long), default) == "ae b d"
    assert "e" not in read_with(inner.with_config(recursion_limit=long), short)
    assert "b" not in read_with(inner, None)


def test_a_graph_inside_a_graph_is_read_where_a_call_says_no_limit() -> None:
    inner = built({"B": B, "D": D}, (START, "B"), ("B", "D"))
    nodes = {"A": A, "I": inner, "C": C, "E": lambda s: {"e": llm.invoke("e" + s["c"]).content}}
    graph = built(nodes, (START, "A"), ("A", "I"), ("A", "C"), (["I", "C"], "E"))
    limit = _way_of(loop_at(graph, config=ensure_config({})), speculates=False).config["recursion_limit"]
    config = {"configurable": {}, "recursion_limit": limit}
    assert asked(read(graph, {"q": "x"}, way=replace(WAY, config=config))) == "a bc de"


def test_a_graph_inside_a_graph_with_deferred_nodes_is_left_to_its_run() -> None:
    inner = StateGraph(State)
    inner.add_node("B", B)
    inner.add_node("D", D, defer=True)
    inner.add_edge(START, "B")
    inner.add_edge("B", "D")
    nodes = {"A": A, "I": inner.compile(), "E": lambda s: {"e": llm.invoke("e").content}}
    graph = built(nodes, (START, "A"), ("A", "I"), ("I", "E"))
    assert asked(read(graph, {"q": "x"})) == "a b"
    assert optimize(graph).invoke({"q": "x"}) == graph.invoke({"q": "x"})


def test_a_graph_that_is_called_with_a_command_is_left_to_its_run() -> None:
    inner = built({"B": B}, (START, "B"))

    def calls(state: State) -> dict[str, Any]:
        return {"d": inner.invoke(Command(update={"a": state["q"]}))["b"]}

    assert read(built({"I": calls}, (START, "I")), {"q": "x"}).asked == []


def test_a_graph_that_asks_nothing_comes_back_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    graph = built({"A": lambda state: {"a": state["q"] + str(len(STOPS))}}, (START, "A"))
    with caplog.at_level(logging.INFO, "teola_plugin"):
        assert optimize(graph) is graph
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "this CompiledStateGraph has nothing to gain" in caplog.text


def makes_its_model(state: State) -> dict[str, Any]:
    chain = ChatPromptTemplate.from_template("{q}") | ChatOpenAI(model="m", api_key="none")  # type: ignore[arg-type]
    return {"a": chain.invoke({"q": state["q"]})}


def imports_its_model(state: State) -> dict[str, Any]:
    from langchain_openai import ChatOpenAI

    return {"a": ChatOpenAI(model="m", api_key="none").invoke(state["q"])}  # type: ignore[arg-type]


@pytest.mark.parametrize("node", [makes_its_model, imports_its_model])
def test_a_graph_whose_nodes_make_their_models_is_followed(node: Any) -> None:
    graph = built({"A": node}, (START, "A"))
    assert optimize(graph) is not graph


# --- following a run -------------------------------------------------------------------------------------------------


class Standing(SimpleNamespace):
    """A loop of LangGraph's, as far as it is looked at."""


class Beside(SimpleNamespace):
    """What begins beside a call: nothing."""

    speculates = False
    routes = None

    def __init__(self) -> None:
        super().__init__(rewound=0, works=[])

    def rewind(self) -> None:
        self.rewound += 1

    def read(self, work: Any, *, may_wait: bool = False) -> None:
        self.works.append(work)

    def spent(self, seconds: float) -> None:
        """Nobody counts."""

    def request(self, *args: Any) -> Reply:
        return Reply()

    def when_asked(self, hear: Any) -> None:
        """Nobody asks."""

    def progress(self) -> Progress:
        return Progress(0, 0, 0.0, 0)

    def are_asked_together(self, replies: Any) -> bool:
        return False


def loop_at(graph: Any, *nodes: str, **more: Any) -> Any:
    tasks = {name: SimpleNamespace(name=name, path=("__pregel_pull", name), writes=()) for name in nodes}
    channels = {key: channel.copy() for key, channel in graph.channels.items()}
    channels["q"].update(["x"])
    fields = {"config": {}, "manager": None, "checkpointer": None, "step": 1, "stop": 25, "channels": channels}
    return Standing(**{**fields, "tasks": tasks, "interrupt_before": (), "interrupt_after": (), **more})


def test_where_a_loop_stands() -> None:
    graph = barrier()
    joins: Any = NamedBarrierValue(str, {"C", "D"})
    joins.update(["C"])
    sent = SimpleNamespace(name="B", path=("__pregel_push", 0), input={"a": "1"}, writes=())
    loop = loop_at(graph, "D", channels={**loop_at(graph).channels, "join:C+D:E": joins}, interrupt_before=["A"])
    loop.tasks["sent"] = sent
    front = _front_of(loop, graph, _tasks(loop), Given())
    assert front == Front(
        (Task("D"), Task("B", {"a": "1"})), {"q": "x", "log": [], "messages": []}, 1, {"join:C+D:E": frozenset("C")}
    )
    way = _way_of(loop, speculates=False)
    assert (way.stops_before, way.stop, way.is_async) == (frozenset("A"), 25, False)


def test_tasks_stand_in_the_order_of_their_writes() -> None:
    assert _tasks(loop_at(barrier(), "C", "B")) == (Task("B"), Task("C"))


def test_a_deferred_node_that_is_to_run_is_seen() -> None:
    graph = StateGraph(State)
    graph.add_node("A", A)
    graph.add_node("B", B)
    graph.add_node("D", D, defer=True)
    graph.add_edge(START, "A")
    graph.add_edge("A", "D")
    graph.add_edge(["A", "B"], "D")
    compiled = graph.compile()
    assert not _front_of(loop_at(compiled, "B"), compiled, (Task("B"),), Given()).waits
    for key, value in (("branch:to:D", None), ("join:A+B:D", "A")):
        loop = loop_at(compiled, "B")
        loop.channels[key].update([value])
        assert _front_of(loop, compiled, (Task("B"),), Given()).waits


def test_one_node_to_interrupt_at_may_be_named_alone() -> None:
    way = _way_of(loop_at(barrier(), interrupt_before="agent", interrupt_after="*"), speculates=False)
    assert (way.stops_before, way.stops_after) == ({"agent"}, {"*"})


def test_what_langgraph_puts_into_the_config_of_a_node_is_not_known() -> None:
    own = {"checkpoint_ns": "x", "__pregel_task_id": "1", CONFIG_KEY_RESUMING: True}
    way = _way_of(loop_at(barrier(), config={"configurable": {**own, "who": "me"}}), speculates=False)
    configurable = way.config["configurable"]
    assert configurable["who"] == "me"
    assert all(type(configurable[key]) is Unknown for key in own)
    assert way.is_resumed


def following(graph: Any) -> Any:
    traced = trace(graph)
    assert traced.follow is not None
    return traced.follow(Entered({"q": "x"}, "invoke"))


def test_a_run_is_followed_as_long_as_it_goes_where_it_was_expected_to() -> None:
    graph = built({"A": A, "B": lambda s: {"b": "b"}, "C": C}, (START, "A"), ("A", "B"), ("B", "C"))
    one, asides, loop = following(graph), Beside(), loop_at(graph, "A")
    one.tell(graph.nodes, loop, asides)
    first = one.prediction
    asides.works.pop()()
    assert one.expected == {1: ("A",), 2: ("B",), 3: ("C",)}
    for nodes in (graph.nodes, {}):  # the same graph inside itself, or another one
        one.tell(nodes, loop_at(graph, "C"), asides)
        assert one.prediction is first
    loop.tasks, loop.step = loop_at(graph, "B").tasks, 2
    one.tell(graph.nodes, loop, asides)
    assert (one.prediction, asides.rewound) == (first, 1)
    loop.tasks, loop.step = loop_at(graph, "A", "C").tasks, 3
    one.tell(graph.nodes, loop, asides)
    assert (one.prediction is first, asides.rewound, first.is_over) == (False, 2, True)


def test_another_graph_that_runs_first_is_not_followed() -> None:
    graph, asides = barrier(), Beside()
    one = following(graph)
    one.tell({}, loop_at(graph, "A"), asides)
    assert (one.prediction, one.loop) == (None, None)


def test_a_superstep_with_a_limit_of_time_is_left_to_langgraph() -> None:
    graph, asides = barrier(), Beside()
    graph.step_timeout = 1
    one = following(graph)
    one.tell(graph.nodes, loop_at(graph, "A"), asides)
    assert one.prediction is None


@pytest.mark.parametrize("changes", [
    {"config": {"max_concurrency": 2}}, {"tasks": {"A": SimpleNamespace(name="A", path=("p", "A"), writes=[("a", 1)])}},
    {"tasks": {"S": SimpleNamespace(name=START, path=("p", START), writes=())}},
])  # fmt: skip
def test_where_nothing_is_read(changes: Any) -> None:
    graph = barrier()
    one, asides = following(graph), Beside()
    one.tell(graph.nodes, loop_at(graph, "A", **changes), asides)
    assert (one.prediction, asides.works) == (None, [])


# --- runs ------------------------------------------------------------------------------------------------------------


class Gated(Patient):
    """Answers a prompt with `c:` only once the one with `d:` has begun."""

    has_d = False

    async def hold(self, batch: Batch) -> None:
        (text,) = (str(item.payload) for item in batch.items)
        self.has_d |= "d: " in text
        for _ in range(5_000 if "c: " in text else 0):
            if self.has_d:
                return
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("is_async", [False, True])
def test_d_begins_while_c_runs(is_async: bool) -> None:
    gated = Gated(lambda prompt: says(f"<{prompt}>"))
    chat = EngineChatModel(engine=gated, max_tokens=None, temperature=None)

    def asking(key: str, read: str) -> Any:
        return lambda state: {key: chat.invoke(f"{key}: {state[read]}").content}

    nodes = {"A": lambda state: {"a": state["q"]}, "B": asking("b", "a"), "C": asking("c", "a"), "D": asking("d", "b")}
    fast = optimize(built({**nodes, "E": lambda state: {"e": state["c"]}}, *BARRIER))
    found = asyncio.run(fast.ainvoke({"q": "x"})) if is_async else fast.invoke({"q": "x"})
    assert "d: " in found["d"]
    assert gated.has_d
    report = optimized(fast).reports[-1]
    assert (report.wasted, report.fallbacks) == (0, ())


class Long(Patient):
    """Takes long for prompts with `c:` or `d:`."""

    async def hold(self, batch: Batch) -> None:
        if any(name in str(item.payload) for item in batch.items for name in ("c: ", "d: ")):
            await asyncio.sleep(0.4)


@pytest.mark.parametrize("gains", [True, False])
def test_a_graph_that_is_read_for_nothing_rests(gains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """D behind B need not wait for C; or else each node waits for the one before it."""
    chat = EngineChatModel(engine=Long(lambda prompt: says("reply")), max_tokens=None, temperature=None)

    def asking(key: str, read: str) -> Any:
        return lambda state: {key: chat.invoke(f"{key}: {state[read]}").content}

    nodes = {"A": asking("a", "q"), "B": asking("b", "a"), "C": asking("c" if gains else "e", "a")}
    nodes |= {"D": asking("d", "b"), "E": asking("e", "d")}
    serial = ((START, "A"), ("A", "B"), ("B", "D"), ("D", "E"))
    fast = optimize(built(nodes, *BARRIER) if gains else built(nodes, *serial))
    monkeypatch.setattr("teola_plugin.worth.PATIENCE_CALLS", PATIENCE_CALLS)
    for _ in range(PATIENCE_CALLS + 1):
        fast.invoke({"q": "x"})
    rested = [report.rested for report in optimized(fast).reports]
    assert rested == [False] * (PATIENCE_CALLS + 1) if gains else rested[-1]


def test_a_thread_that_goes_on_is_followed_from_where_it_is() -> None:
    def asking(state: State) -> dict[str, Any]:
        return {"a": interrupt("who?")}

    nodes = {"A": asking, "B": B, "C": C, "D": D, "E": E}
    plain = built(nodes, *BARRIER, checkpointer=InMemorySaver())
    fast = optimize(built(nodes, *BARRIER, checkpointer=InMemorySaver()))
    for thread in "12":  # what follows from a front is only learnt when a run first comes to it
        config: Any = {"configurable": {"thread_id": thread}}
        for graph in (plain, fast):
            asyncio.run(graph.ainvoke({"q": "x"}, config))
        answers = [asyncio.run(graph.ainvoke(Command(resume="me"), config)) for graph in (plain, fast)]
        assert answers[0] == answers[1]
        histories = [[(s.values, s.next) for s in graph.get_state_history(config)] for graph in (plain, fast)]
        assert histories[0] == histories[1]


def test_send_is_left_to_langgraph_and_what_follows_is_not() -> None:
    def split(state: State) -> list[Send]:
        return [Send("B", {"a": word}) for word in state["q"].split()]

    graph = StateGraph(State)
    graph.add_node("A", A)
    graph.add_node("B", lambda state: {"log": [llm.invoke(state["a"]).content]})
    graph.add_node("D", lambda state: {"d": ",".join(state["log"])})
    graph.add_edge(START, "A")
    graph.add_conditional_edges("A", split, ["B"])
    graph.add_edge("B", "D")
    plain = graph.compile()
    assert optimize(plain).invoke({"q": "one two three"}) == plain.invoke({"q": "one two three"})


def test_a_fault_of_ours_is_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(*_: Any) -> Any:
        raise RuntimeError("ours")

    graph = barrier()
    fast = optimize(graph)
    monkeypatch.setattr("teola_plugin.adapters.langgraph.follow.Following.tell", boom)
    assert asyncio.run(fast.ainvoke({"q": "x"})) == asyncio.run(graph.ainvoke({"q": "x"}))
    assert optimized(fast).reports[-1].fallbacks == ("TF001 RuntimeError: ours",)
    monkeypatch.setattr("teola_plugin.adapters.langgraph.follow.prepared", boom)
    assert optimize(graph) is graph


def test_a_fault_of_ours_while_reading_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(*_: Any) -> Any:
        raise RuntimeError("ours")

    graph = barrier()
    monkeypatch.setattr("teola_plugin.adapters.langgraph.reading.updates_of", boom)
    assert read(graph, {"q": "x"}).rounds == []
    assert asyncio.run(optimize(graph).ainvoke({"q": "x"}))["e"]


def test_compare_and_explain_take_graphs() -> None:
    found = compare(barrier(), [{"q": "x"}], repeats=1)
    assert found.equal
    assert found.tree_nodes > 5
    fast = optimize(barrier())
    said = r"E: anode \(test_langgraph.py:\d+\): read whole; 1 request found, \d of"
    text = explained(fast, lambda: asyncio.run(fast.ainvoke({"q": "x"})), said)
    assert "p-graph" not in text


def explained(fast: Any, call: Callable[[], Any], said: str) -> str:
    """What `explain` says once it says this: no engine holds the calls up, which may be ahead of the readers."""
    for _ in range(100):
        call()
        if re.search(said, text := explain(fast)):
            return text
    raise AssertionError(text)


def one_or_other(state: State) -> str:
    return "A"


def test_explain_tells_what_no_call_has_come_to() -> None:
    builder = StateGraph(State).add_node("A", A).add_node("B", B).add_node("C", C)
    builder.add_conditional_edges(START, one_or_other, ["A", "B"]).add_edge("A", "C")
    fast = optimize(builder.compile())
    assert explain(fast).count("call the pipeline once") == 3
    text = explained(fast, lambda: fast.invoke({"q": "x"}), r"A: node \(\S+: read whole")
    assert "call the pipeline once" not in text
    assert re.search(r"B: node \(\S+: not read yet: no call has come to it", " ".join(text.split()))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_node_that_hands_its_config_on_is_read(is_async: bool) -> None:
    def node(state: State, config: RunnableConfig) -> dict[str, Any]:
        return {"b": llm.invoke("said", config).content}

    async def anode(state: State, config: RunnableConfig) -> dict[str, Any]:
        return {"b": (await llm.ainvoke("said", config=config)).content}

    fast = optimize(built({"A": A, "B": anode if is_async else node}, (START, "A"), ("A", "B")))
    call = (lambda: asyncio.run(fast.ainvoke({"q": "x"}))) if is_async else (lambda: fast.invoke({"q": "x"}))
    explained(fast, call, r"B: \S+ \(\S+: read whole; 1 request")


def test_explain_names_what_is_not_read() -> None:
    graph = built({"A": A, "B": effect, "D": D}, (START, "A"), ("A", "B"), ("B", "D"))
    fast = optimize(graph)
    assert "A: node (test_langgraph.py" in explain(fast)
    assert "not read yet" in explain(fast)
    said = r"B: effect \(test_langgraph.py:\d+\): read up to test_langgraph.py:\d+, where it "
    explained(fast, lambda: fast.invoke({"q": "x", "b": "b"}), said)
    noted.clear()


# --- bad input -------------------------------------------------------------------------------------------------------


class Refuses(BaseCallbackHandler):
    raise_error = True

    def on_chain_start(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError("the handler")


LOOP = built({"A": A, "B": lambda s: {"q": "x" + s["q"][:3]}}, (START, "A"), ("A", "B"), ("B", "A"))
NO_DICT = built({"A": A, "B": lambda s: "text", "C": lambda s: {"a": "1"}}, (START, "A"), ("A", "B"), ("A", "C"))
TWICE = built({"A": A, "B": B, "C": lambda s: {"b": "1"}}, (START, "A"), ("A", "B"), ("A", "C"))
STRANGE = built({"A": A, "B": lambda s: {"strange": 1}}, (START, "A"), ("A", "B"))


@pytest.mark.parametrize(("graph", "given", "config", "error"), [
    (LOOP, {"q": "x"}, {"recursion_limit": 5}, "GraphRecursionError"), (NO_DICT, {"q": "x"}, {}, "InvalidUpdateError"),
    (TWICE, {"q": "x"}, {}, "InvalidUpdateError"), (STRANGE, {"q": "x"}, {}, ""), (TWICE, None, {}, "EmptyInputError"),
    (STRANGE, {}, {}, "KeyError"), (STRANGE, {"q": "\ud800"}, {}, ""), (STRANGE, "text", {}, "InvalidUpdateError"),
    (STRANGE, {"q": "x"}, {"callbacks": [Refuses()]}, "ValueError"),
])  # fmt: skip
def test_bad_input_is_langgraphs_own_affair(graph: Any, given: Any, config: Any, error: str) -> None:
    def outcome(graph: Any) -> tuple[str, str]:
        try:
            return "", str(graph.invoke(given, config))
        except Exception as e:
            return type(e).__name__, re.sub(r"[0-9a-f-]{36}", "*", str(e))

    expected, fast = outcome(graph), optimize(graph)
    assert [outcome(fast), outcome(fast)] == [expected, expected]
    assert expected[0] == error
