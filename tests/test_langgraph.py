"""State graphs as p-graphs, front by front, and what LangGraph's run reveals."""

from __future__ import annotations

import asyncio
import operator
import re
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableConfig
from langgraph.channels.named_barrier_value import NamedBarrierValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

from teola_plugin import compare, explain, optimize, optimized, pure
from teola_plugin.adapters.langchain.binding import ABSENT, Entered
from teola_plugin.adapters.langchain.values import Constant
from teola_plugin.adapters.langgraph.follow import Fronts, _front
from teola_plugin.adapters.langgraph.returned import Written, returned_keys
from teola_plugin.adapters.langgraph.supersteps import Front, _Steps, first_front, trace_from
from teola_plugin.graph import PIPELINE
from teola_plugin.models.langchain import EngineChatModel
from tests.fakes import FakeEngine, says
from tests.langchain_world import ask

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
    odd: Annotated[str, lambda old, new: noted.append(new) or new]  # type: ignore[func-returns-value]


def asks(key: str, *reads: str) -> Any:
    """A node that asks about what it reads and writes the answer under `key`."""
    first, second = (*reads, *reads)[:2]

    def node(state: State) -> dict[str, Any]:
        return {key: llm.invoke(f"{key}: {state[first]} {state[second]}").content, "log": [key]}  # type: ignore[literal-required]

    async def anode(state: State) -> dict[str, Any]:
        reply = await llm.ainvoke(f"{key}: {state[first]} {state[second]}")  # type: ignore[literal-required]
        return {key: reply.content, "log": [key]}

    return anode if key == "e" else node


def built(nodes: dict[str, Any], *edges: tuple[Any, str], **options: Any) -> Any:
    graph = StateGraph(State)
    for name, node in nodes.items():
        graph.add_node(name, node)
    for start, end in edges:
        graph.add_edge(start, end)
    return graph.compile(**options)


A, B, C, D, E = asks("a", "q"), asks("b", "a"), asks("c", "a"), asks("d", "b"), asks("e", "c", "d")
BARRIER = ((START, "A"), ("A", "B"), ("A", "C"), ("B", "D"), (["C", "D"], "E"), ("E", END))


def barrier(**options: Any) -> Any:
    """D waits for C by the barrier alone."""
    return built({"A": A, "B": B, "C": C, "D": D, "E": E}, *BARRIER, **options)


def fronts(graph: Any, front: Front) -> list[list[str]]:
    return [sorted(step) for step in trace_from(graph, front).steps]


def ahead(graph: Any, front: Front) -> dict[str, set[str]]:
    """The nodes that may run ahead, and all that each waits for, but for the run's own."""
    traced = trace_from(graph, front).traced
    behind: dict[str, set[str]] = {}
    for p in traced.graph:
        behind[p.name] = set(p.dependencies).union(*(behind.get(d, set()) for d in p.dependencies))
    nodes = set(graph.nodes)
    return {p.name: behind[p.name] & nodes for p in traced.graph if p.name in nodes and p.engine != PIPELINE}


# --- supersteps ------------------------------------------------------------------------------------------------------


def test_a_node_waits_for_what_it_reads_not_for_the_barrier() -> None:
    graph = barrier()
    assert first_front(graph).nodes == {"A"}
    assert fronts(graph, first_front(graph)) == [["A"], ["B", "C"], ["D"], ["E"]]
    assert ahead(graph, first_front(graph)) == {"B": {"A"}, "C": {"A"}, "D": {"A", "B"}, "E": {"A", "B", "C", "D"}}


def test_an_edge_from_each_of_two_nodes_is_no_join() -> None:
    edges = ((START, "A"), ("A", "B"), ("A", "C"), ("B", "D"), ("C", "E"), ("D", "E"))
    graph = built({"A": A, "B": B, "C": C, "D": D, "E": E}, *edges)
    assert fronts(graph, first_front(graph)) == [["A"], ["B", "C"], ["D", "E"]]  # then E once more, unforeseen


def test_a_join_remembers_who_came() -> None:
    graph = barrier()
    assert fronts(graph, Front(frozenset({"D"}))) == [["D"]]
    assert fronts(graph, Front(frozenset({"D"}), frozenset({("join:C+D:E", "C")}))) == [["D"], ["E"]]


@pytest.mark.parametrize(("stops", "steps"), [
    ({"interrupt_before": ["D"]}, [["A"], ["B", "C"]]), ({"interrupt_after": ["B"]}, [["A"], ["B", "C"]]),
    ({"interrupt_before": "*"}, [["A"]]), ({"interrupt_after": "*"}, [["A"]]), ({"interrupt_before": ["A"]}, None),
])  # fmt: skip
def test_nothing_runs_ahead_of_an_interrupt(stops: Any, steps: Any) -> None:
    graph = barrier(**stops)
    assert fronts(graph, first_front(graph)) == (steps or [["A"], ["B", "C"], ["D"], ["E"]])


def test_a_conditional_edge_ends_what_is_certain() -> None:
    graph = StateGraph(State)
    for name, node in {"A": A, "B": B, "C": C, "D": D}.items():
        graph.add_node(name, node)
    for start, end in [(START, "A"), ("A", "B"), ("A", "C"), ("B", "D")]:
        graph.add_edge(start, end)
    graph.add_conditional_edges("C", lambda state: END)
    compiled = graph.compile()
    assert fronts(compiled, first_front(compiled)) == [["A"], ["B", "C"], ["D"]]
    assert ahead(compiled, first_front(compiled)) == {"B": {"A"}, "C": {"A"}, "D": {"A", "B"}}


def test_a_loop_is_unrolled_once() -> None:
    graph = built({"A": A, "B": B}, (START, "A"), ("A", "B"), ("B", "A"))
    assert fronts(graph, first_front(graph)) == [["A"], ["B"]]


def test_a_node_that_may_command_ends_what_is_certain() -> None:
    def node(state: State) -> Command[Literal["B"]]:
        return Command(goto="B", update={"a": state["q"]})

    graph = built({"A": node, "B": B}, (START, "A"))
    assert fronts(graph, first_front(graph)) == [["A"]]


def test_reducers_are_langgraphs_own_and_those_with_effects_are_left_to_it() -> None:
    def odd(state: State) -> dict[str, Any]:
        return {"odd": state["q"], "messages": [HumanMessage(state["q"], id="1")]}

    def reads(state: State) -> dict[str, Any]:
        return {"a": llm.invoke(state["messages"]).content}

    def reads_odd(state: State) -> dict[str, Any]:
        return {"b": llm.invoke(state["odd"]).content}

    graph = built({"A": odd, "B": reads, "C": reads_odd}, (START, "A"), ("A", "B"), ("A", "C"))
    traced = trace_from(graph, first_front(graph)).traced
    assert [b.code for b in traced.breaks] == ["TB120"]
    assert "update_messages" in str(traced.graph)


def test_nodes_that_take_more_than_the_state_or_have_effects_are_barriers() -> None:
    def configured(state: State, config: RunnableConfig) -> dict[str, Any]:
        return {"a": llm.invoke(state["q"]).content}

    def shouts(state: State) -> dict[str, Any]:
        noted.append(state["a"])
        return {"b": "b"}

    graph = built({"S": A, "A": configured, "B": shouts, "D": D}, (START, "S"), ("S", "A"), ("A", "B"), ("B", "D"))
    traced = trace_from(graph, first_front(graph)).traced
    assert sorted(b.code for b in traced.breaks) == ["TB101", "TB101"]
    assert [p.name for p in traced.graph if p.engine == PIPELINE] == ["S", "A", "B"]


@dataclass
class Record:
    q: str
    a: str = ""
    b: str = ""


def test_states_that_are_objects() -> None:
    def first(state: Record) -> dict[str, str]:
        return {"a": llm.invoke(state.q).content}  # type: ignore[dict-item]

    def second(state: Record) -> dict[str, str]:
        return {"b": llm.invoke(state.a).content}  # type: ignore[dict-item]

    graph = StateGraph(Record)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    plain = graph.compile()
    assert not trace_from(plain, first_front(plain)).traced.breaks
    assert optimize(plain).invoke({"q": "x"}) == plain.invoke({"q": "x"})


def test_a_chain_as_a_node_is_read_like_any_chain() -> None:
    chain = {"a": ask("{q}?") | llm | StrOutputParser()}
    graph = built({"A": chain, "B": B}, (START, "A"), ("A", "B"))  # type: ignore[dict-item]
    text = explain(optimize(graph))
    assert "kv = prefilling(q, '?') @ llm" in text or "prefilling(" in text
    assert optimize(graph).invoke({"q": "x"}) == graph.invoke({"q": "x"})


def test_a_graph_inside_a_graph_is_read_to_its_end() -> None:
    inner = built({"B": B, "D": D}, (START, "B"), ("B", "D"))
    graph = built({"A": A, "I": inner, "C": C, "E": E}, (START, "A"), ("A", "I"), ("A", "C"), (["I", "C"], "E"))
    assert ahead(graph, first_front(graph))["E"] == {"A", "C"}
    text = str(trace_from(graph, first_front(graph)).traced.graph)
    assert "D = call(mode, b, fn='node_4') @ llm" in text
    assert asyncio.run(optimize(graph).ainvoke({"q": "x"})) == asyncio.run(graph.ainvoke({"q": "x"}))


def test_a_graph_inside_a_graph_that_decides_is_left_to_its_run() -> None:
    deciding = StateGraph(State)
    deciding.add_node("B", B)
    deciding.add_edge(START, "B")
    deciding.add_conditional_edges("B", lambda state: END)
    graph = built({"A": A, "I": deciding.compile(), "D": D}, (START, "A"), ("A", "I"), ("I", "D"))
    assert [b.code for b in trace_from(graph, first_front(graph)).traced.breaks] == ["TB121"]
    assert optimize(graph).invoke({"q": "x"}) == graph.invoke({"q": "x"})


def test_a_graph_that_asks_nothing_comes_back_as_it_is() -> None:
    graph = built({"A": lambda state: {"a": state["q"]}}, (START, "A"))
    assert optimize(graph) is graph


def test_what_runs_ahead_gives_no_message_its_id() -> None:
    graph, given = barrier(), HumanMessage("x")
    steps: Any = _Steps(graph, first_front(graph))
    merged = steps._merged("messages", lambda: Constant(ABSENT), [lambda: Constant(ABSENT)])
    functions = steps.draft.traced(merged).functions
    (merge,) = (function.call for name, function in functions.items() if name.startswith("update_messages"))
    assert merge(ABSENT, [given])[0].id
    assert given.id is None


@dataclass
class Checked(Record):
    def __post_init__(self) -> None:
        noted.append(self.q)


@pytest.mark.parametrize(("state", "codes"), [(Record, []), (Checked, ["TB101", "TB101"])])
def test_a_state_with_code_of_its_own_is_not_made_early(state: type, codes: list[str]) -> None:
    graph: Any = StateGraph(state)
    graph.add_node("first", lambda state: {"a": llm.invoke(state.q).content})
    graph.add_node("second", lambda state: {"b": llm.invoke(state.a).content})
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    compiled = graph.compile()
    assert [b.code for b in trace_from(compiled, first_front(compiled)).traced.breaks] == codes


# --- following a run -------------------------------------------------------------------------------------------------


class Standing(SimpleNamespace):
    """A loop of LangGraph's, as far as it is looked at."""


def loop_at(graph: Any, *nodes: str, **more: Any) -> Any:
    tasks = {name: SimpleNamespace(name=name, path=("__pregel_pull", name)) for name in nodes}
    fields = {"config": {}, "manager": None, "step": 0, "stop": 25, "channels": graph.channels}
    return Standing(**{**fields, "tasks": tasks, "interrupt_before": (), "interrupt_after": (), **more})


def test_where_a_loop_stands() -> None:
    joins = NamedBarrierValue(str, {"C", "D"})
    joins.update(["C"])
    loop = loop_at(barrier(), "D", channels={"join:C+D:E": joins}, interrupt_before=["A"], interrupt_after="*")
    joined = frozenset({("join:C+D:E", "C")})
    assert _front(loop, frozenset("D")) == Front(frozenset("D"), joined, frozenset("A"), frozenset("*"))


def test_a_run_is_followed_as_long_as_it_goes_where_it_was_expected_to() -> None:
    graph = barrier()
    following = Fronts(graph).follow(Entered({"q": "x"}, "invoke"))
    loop, asides = loop_at(graph, "A"), None
    assert following.tell(graph.nodes, loop, asides) is not None  # type: ignore[arg-type]
    rest = [{"B", "C"}, {"D"}, {"E"}]
    assert following.expected == rest
    for other in ((graph.nodes, loop_at(graph, "A")), ({}, loop)):  # the same graph inside itself, or another one
        assert following.tell(*other, asides) is None  # type: ignore[arg-type]
        assert following.expected == rest
    loop.tasks = loop_at(graph, "B", "C").tasks
    assert following.tell(graph.nodes, loop, asides) is None  # type: ignore[arg-type]
    assert following.expected == rest[1:]
    loop.tasks = loop_at(graph, "E").tasks
    following.tell(graph.nodes, loop, asides)  # type: ignore[arg-type]
    assert following.expected == []


# --- the keys a function writes --------------------------------------------------------------------------------------


def only_a(x: Any) -> Any:
    def inner() -> Any:
        return {"z": 1}

    return {"a": inner()}


def a_or_b(x: Any) -> Any:
    if x:
        return {"a": 1, "c": 2}
    else:  # noqa: RET505
        return {"b": 1, "c": 2}


def perhaps(x: Any) -> Any:  # noqa: RET503
    if x:
        return {"a": x}
    print(x)


def spread(x: Any) -> Any:
    return {"a": 1, **x}


def by_name(x: Any) -> Any:
    made = {"a": 1}
    made["b"] = x
    return made


def guarded(x: Any) -> Any:
    try:
        return {"a": x()}
    except ValueError:
        return {"a": None}


@pytest.mark.parametrize(("function", "keys"), [
    (only_a, Written(frozenset("a"))), (a_or_b, Written(frozenset("c"), frozenset("ab"))), (spread, None),
    (perhaps, Written(frozenset(), frozenset("a"))), (by_name, None), (guarded, Written(frozenset("a"))),
    (lambda x: {"a": x}, Written(frozenset("a"))), (len, None),
])  # fmt: skip
def test_returned_keys(function: Any, keys: Any) -> None:
    assert returned_keys(function) == keys


# --- runs ------------------------------------------------------------------------------------------------------------


class Gate:
    """An engine that answers a prompt with `c:` only once the one with `d:` has begun."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.asked = FakeEngine(self.answer, name="gated", concurrent=True)

    def answer(self, prompt: str) -> Any:
        if "d: " in prompt:
            self.began.set()
        return says(f"<{prompt}>")


@pytest.mark.parametrize("is_async", [False, True])
def test_d_begins_while_c_runs(is_async: bool) -> None:
    gate = Gate()
    gated = EngineChatModel(engine=gate.asked, max_tokens=None, temperature=None)

    def b(state: State) -> dict[str, Any]:
        return {"b": gated.invoke("b: " + state["a"]).content}

    def c(state: State) -> dict[str, Any]:
        if not gate.began.wait(20):  # no `assert`: pytest rewrites it, and then this function has no source
            raise TimeoutError("D did not run ahead of the barrier")
        return {"c": state["a"]}

    def d(state: State) -> dict[str, Any]:
        return {"d": gated.invoke("d: " + state["b"]).content}

    nodes = {"A": lambda state: {"a": state["q"]}, "B": b, "C": c, "D": d, "E": lambda state: {"e": state["c"]}}
    fast = optimize(built(nodes, *BARRIER))
    found = asyncio.run(fast.ainvoke({"q": "x"})) if is_async else fast.invoke({"q": "x"})
    assert "d: " in found["d"]
    report = optimized(fast).reports[-1]
    assert (report.wasted, report.fallbacks) == (0, ())


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
    monkeypatch.setattr("teola_plugin.adapters.langgraph.follow.trace_from", boom)
    assert optimize(graph) is graph


def test_compare_and_explain_take_graphs() -> None:
    found = compare(barrier(), [{"q": "x"}], repeats=1)
    assert found.equal
    assert found.tree_nodes > 5
    assert "E = call(mode, c, d, fn='anode') @ llm" in explain(optimize(barrier()), analyze={"q": "x"})


reduced_in: list[str] = []


@pure
def merge(old: list[str], new: list[str]) -> list[str]:
    reduced_in.append(threading.current_thread().name)
    return old + new


class Merged(TypedDict, total=False):
    docs: Annotated[list[str], merge]
    found: str


def test_a_reducer_of_the_users_does_not_hold_up_the_engines() -> None:
    graph = StateGraph(Merged)
    graph.add_node("b", lambda state: {"docs": [llm.invoke("b").content]})
    graph.add_node("d", lambda state: {"found": llm.invoke(str(state["docs"])).content})
    graph.add_edge(START, "b")
    graph.add_edge("b", "d")
    graph.add_node("c", lambda state: {"found": llm.invoke("c").content})
    graph.add_edge("d", "c")
    optimize(graph.compile()).invoke({"docs": ["a"]})
    assert reduced_in
    assert "teola-host" not in reduced_in


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
