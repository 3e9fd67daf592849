"""A node that returns one of several dicts, as its reply decides, holds up nothing that its keys do not decide.

Nor do several tasks of a node that are sent.

Each graph is a node of several returns, a node that looks at the state in one way, and a node that asks about the
question alone, whose request is begun before the first reply is there.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Overwrite, Send
from pydantic import PrivateAttr

from teola_plugin import optimize, pure
from tests.adapters.langchain.test_langchain_foreign import Hosted
from tests.adapters.langgraph.test_langgraph_requests import RUNS, State, built, invoked, outcome

REPLIES = {"an object": '{"b": "found"}', "no object": "just text", "an object without the key": "{}"}


@pure
class Answering(Hosted):
    """Answers the first question with `text`, not before the last question or so many seconds."""

    text: str
    patience_s: float = 0.0
    _last: threading.Event = PrivateAttr(default_factory=threading.Event)
    _ahead: threading.Event = PrivateAttr(default_factory=threading.Event)
    """No flag: a model whose settings change in a call is called again by the framework."""

    def _said(self, how: str, messages: Any, kwargs: Any) -> str:
        said, prompt = super()._said(how, messages, kwargs), str(messages[0].content)
        if prompt.startswith("e:"):
            self._last.set()
        if not prompt.startswith("a:"):
            time.sleep(0.02)
            return said
        if self._last.wait(self.patience_s):
            self._ahead.set()
        return self.text


class World:
    def __init__(self, text: str, *, is_patient: bool = False, patience_s: float = 0.0) -> None:
        self.llm = Answering(text=text, patience_s=0.5 if is_patient else patience_s)

    def asks(self, key: str) -> Callable[[State], Any]:
        return lambda state: {key: self.llm.invoke(f"{key}: {state['q']}").content}

    def asked(self) -> list[str]:
        return sorted(prompt for _, prompt in self.llm._calls)


def parsed(w: World) -> Callable[[State], Any]:
    def node(state: State) -> Any:
        reply = str(w.llm.invoke(f"a: {state['q']}").content)
        try:
            found = json.loads(reply).get("b", "nothing")
        except Exception:
            return {"a": reply, "d": "missing", "log": ["missing"]}
        return {"a": reply, "b": found}

    return node


def three(w: World) -> Callable[[State], Any]:
    def node(state: State) -> Any:
        reply = str(w.llm.invoke(f"a: {state['q']}").content)
        if reply == "{}":
            return {"e": "empty"}
        if reply.startswith("{"):
            return {"b": reply, "log": [reply]}
        return {"a": reply, "b": "text"}

    return node


def wrapped(w: World) -> Any:
    """Return a graph of the node."""
    return built({"P": parsed(w)}, (START, "P"), ("P", END)).compile()


def returned(w: World) -> Callable[[State], Any]:
    """Return a node that gives the state back with more keys."""
    node = parsed(w)

    def spread(state: State) -> Any:
        return {**state, **node(state)}

    return spread


def stored(w: World) -> Callable[[State], Any]:
    def node(state: State) -> Any:
        found: dict[str, Any] = {"a": str(w.llm.invoke(f"a: {state['q']}").content)}
        try:
            found["b"] = json.loads(found["a"]).get("b", "nothing")
        except Exception:
            found["d"] = "missing"
            found["log"] = ["missing"]
        return found

    return node


def in_place(w: World) -> Callable[[State], Any]:
    """Return a node that changes the state that it was given, and gives it back."""

    def node(state: State) -> Any:
        reply = str(w.llm.invoke(f"a: {state['q']}").content)
        try:
            state["b"] = json.loads(reply).get("b", "nothing")
        except Exception:
            state["d"] = "missing"
        state["a"] = reply
        return state

    return node


FIRST: dict[str, Callable[[World], Any]] = {
    "parsed": parsed, "three": three, "subgraph": wrapped, "spread": returned, "stored": stored, "in place": in_place,
}  # fmt: skip


def words(state: State) -> Iterator[str]:
    yield from (f"{key}={state[key]}" for key in state if key != "q")  # type: ignore[literal-required]


def changed(state: State) -> str:
    state.setdefault("d", "set")
    return f"{state.pop('d')} {len(state)}"


LOOKS: dict[str, Callable[[State], object]] = {
    "a sure key": lambda state: state["q"],
    "get": lambda state: state.get("d", "none"),
    "get without a default": lambda state: state.get("b"),
    "in": lambda state: "with" if "d" in state else "without",
    "not in": lambda state: "without" if "d" not in state else "with",
    "a sure key in": lambda state: "q" in state and "d" in state,
    "subscript": lambda state: state["d"],
    "keys": lambda state: ",".join(sorted(state)),
    "items": lambda state: " ".join(f"{key}={value}" for key, value in state.items()),
    "length": lambda state: len(state),
    "truth": lambda state: bool(state),
    "copy": lambda state: dict(state).get("d", "none"),
    "copy of a sure key": lambda state: {**state}["q"],
    "union": lambda state: (state | {"d": "mine"})["d"],
    "equal": lambda state: state == {"q": "one two"},
    "generator": lambda state: " ".join(words(state)),
    "changed": changed,
    "values": lambda state: [str(value) for value in state.values()],
    "reducer": lambda state: "/".join(state.get("log", [])),
}


AHEAD = ("a sure key", "get", "in", "not in", "a sure key in", "length", "truth", "copy of a sure key", "reducer")
"""Looks that raise for no reply: behind these, the last request is certain before the reply."""


def looking(w: World, how: str) -> Callable[[State], Any]:
    def node(state: State) -> Any:
        return {"c": str(w.llm.invoke(f"c: {LOOKS[how](state)}").content)}

    return node


def graph_of(w: World, first: str, how: str) -> Any:
    nodes = {"A": FIRST[first](w), "B": looking(w, how), "C": w.asks("e")}
    return built(nodes, (START, "A"), ("A", "B"), ("B", "C")).compile()


def require_alike(original: Any, graph: Any, plain: World, fast: World) -> None:
    """Require the same outcomes and requests of several runs."""
    for run in range(RUNS):
        fast.llm._last.clear()
        assert outcome(invoked(), graph, run) == outcome(invoked(), original, run)
        assert fast.asked() == plain.asked(), f"run {run}"


@pytest.mark.parametrize("how", LOOKS)
@pytest.mark.parametrize("first", FIRST)
def test_what_a_node_may_write_is_looked_at(first: str, how: str) -> None:
    is_patient = how in AHEAD
    for reply in REPLIES.values():
        plain, fast = World(reply), World(reply, is_patient=is_patient)
        original, graph = graph_of(plain, first, how), optimize(graph_of(fast, first, how))
        require_alike(original, graph, plain, fast)
        assert fast.llm._ahead.is_set() is is_patient


def routed(w: World, first: str, by: Callable[[State], Any]) -> Any:
    graph = built({"A": FIRST[first](w), "B": w.asks("c"), "C": w.asks("e")}, (START, "A"), ("B", "C"))
    graph.add_conditional_edges("A", by, ["B", "C"])
    return graph.compile()


def decided(state: State) -> str:
    return "B" if state["q"] else "C"


ROUTERS: dict[str, Callable[[State], Any]] = {
    "in": lambda state: "B" if "d" in state else "C",
    "get": lambda state: "B" if state.get("b") == "found" else "C",
    "a sure key": decided,
    "subscript": lambda state: "B" if state["b"] else "C",
}


@pytest.mark.parametrize("how", ROUTERS)
@pytest.mark.parametrize("first", ["parsed", "three", "spread", "stored", "in place"])
def test_a_router_looks_at_what_a_node_may_write(first: str, how: str) -> None:
    is_patient = how == "a sure key" or (first, how) == ("three", "in")  # which never writes it
    for reply in REPLIES.values():
        plain, fast = World(reply), World(reply, is_patient=is_patient, patience_s=0.1)
        original, graph = routed(plain, first, ROUTERS[how]), optimize(routed(fast, first, ROUTERS[how]))
        require_alike(original, graph, plain, fast)
        assert fast.llm._ahead.is_set() is is_patient


@pytest.mark.parametrize("keys", [("a", "a"), ("b", "a"), ("log", "log"), ("d", "d")])
def test_two_nodes_that_may_write_one_key(keys: tuple[str, str]) -> None:
    """The framework refuses two writes of a key without a reducer, which happen for some replies only."""
    for reply in REPLIES.values():

        def made(w: World) -> Any:
            def beside(state: State) -> Any:
                value: Any = [state["q"]] if keys[0] == "log" else state["q"]
                return {keys[0]: value}

            nodes = {"A": parsed(w), "N": beside, "B": looking(w, "items"), "C": w.asks("e")}
            return built(nodes, (START, "A"), (START, "N"), (["A", "N"], "B"), ("B", "C")).compile()

        plain, fast = World(reply), World(reply)
        original, graph = made(plain), optimize(made(fast))
        for run in range(RUNS):
            assert outcome(invoked(), graph, run) == outcome(invoked(), original, run)
            assert fast.asked() == plain.asked(), f"run {run}"


def test_a_command_or_a_dict() -> None:
    """A node's kind of return is not known before its reply: what follows is held up, and the same."""
    for reply in REPLIES.values():

        def made(w: World) -> StateGraph[Any]:
            def node(state: State) -> Any:
                text = str(w.llm.invoke(f"a: {state['q']}").content)
                return Command(goto="C", update={"a": text}) if text.startswith("{") else {"b": text}

            return built({"A": node, "B": looking(w, "items"), "C": w.asks("e")}, (START, "A"), ("A", "B"))

        plain, fast = World(reply), World(reply)
        original, graph = made(plain).compile(), optimize(made(fast).compile())
        for run in range(RUNS):
            assert outcome(invoked(), graph, run) == outcome(invoked(), original, run)
            assert fast.asked() == plain.asked(), f"run {run}"


def test_a_dict_or_nothing() -> None:
    for reply in REPLIES.values():

        def made(w: World) -> Any:
            def node(state: State) -> Any:
                text = str(w.llm.invoke(f"a: {state['q']}").content)
                return {"b": text} if text.startswith("{") else None

            nodes = {"A": node, "B": looking(w, "get without a default"), "C": w.asks("e")}
            return built(nodes, (START, "A"), ("A", "B"), ("B", "C")).compile()

        plain, fast = World(reply), World(reply, patience_s=0.05)
        original, graph = made(plain), optimize(made(fast))
        require_alike(original, graph, plain, fast)


def of_reply(reply: str, question: str) -> Any:
    return {"log": [question]} if reply.startswith("{") else {}


def of_reply_or_not(reply: str, question: str) -> Any:
    return {"log": [question, reply]} if reply.startswith("{") else {"log": ["text"]}


def to_one_place(reply: str, question: str) -> Any:
    return {"d": question} if reply.startswith("{") else {}


def over_all(reply: str, question: str) -> Any:
    return {"log": Overwrite([question])} if reply.startswith("{") else {"log": [question]}


def of_another_kind(reply: str, question: str) -> Any:
    return {"log": reply} if reply.startswith("{") else {"log": [question]}


SENT = {each.__name__: each for each in (of_reply, of_reply_or_not, to_one_place, over_all, of_another_kind)}


def sending(w: World, writes: Callable[[str, str], Any], how: str) -> Any:
    def node(state: State) -> Any:
        return writes(str(w.llm.invoke(f"a: {state['q']}").content), state["q"])

    def sends(state: State) -> list[Send]:
        return [Send("P", {"q": f"{state['q']} {number}"}) for number in range(3)]

    graph = built({"P": node, "B": looking(w, how), "C": w.asks("e")}, ("P", "B"), ("B", "C"))
    graph.add_conditional_edges(START, sends, ["P"])
    return graph.compile()


@pytest.mark.parametrize("how", ["a sure key", "reducer", "items"])
@pytest.mark.parametrize("writes", SENT)
def test_several_tasks_may_write_one_key(writes: str, how: str) -> None:
    """What may raise holds up what follows: two values without a reducer, or a value that the reducer refuses."""
    is_patient = writes in ("of_reply", "of_reply_or_not") and how in AHEAD
    for reply in REPLIES.values():
        plain, fast = World(reply), World(reply, is_patient=is_patient)
        original, graph = sending(plain, SENT[writes], how), optimize(sending(fast, SENT[writes], how))
        require_alike(original, graph, plain, fast)
        assert fast.llm._ahead.is_set() is is_patient


class Merged(TypedDict, total=False):
    q: str
    e: str
    log: Annotated[list[str], lambda held, more: held + more if len(held) < 2 else 1 / 0]


def test_a_reducer_of_the_users_may_refuse_what_a_task_may_write() -> None:
    for reply in REPLIES.values():

        def made(w: World) -> Any:
            def node(state: State) -> Any:
                return of_reply(str(w.llm.invoke(f"a: {state['q']}").content), state["q"])

            graph = StateGraph(Merged)
            graph.add_node("P", node)
            graph.add_node("C", w.asks("e"))
            graph.add_conditional_edges(START, lambda state: [Send("P", {"q": n}) for n in "abc"], ["P"])
            graph.add_edge("P", "C")
            return graph.compile()

        plain, fast = World(reply), World(reply, patience_s=0.05)
        original, graph = made(plain), optimize(made(fast))
        require_alike(original, graph, plain, fast)
