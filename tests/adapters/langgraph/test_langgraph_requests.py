"""Whatever ends a run early, or bends its way, the optimized graph asks its models what the original asks, and no more.

Each graph runs several times: what follows from where a run stands is learnt when a run first comes there.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langchain_openai import ChatOpenAI
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import NodeTimeoutError
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import CachePolicy, Command, Send

from teola_plugin import optimize, optimized, pure
from teola_plugin.engines import Batch, Emit
from teola_plugin.models.langchain import EngineChatModel
from tests.adapters.langchain.test_langchain_foreign import Hosted
from tests.support.fakes import FakeEngine, says
from tests.support.hosted_service import Service, counted

RUNS = 3
WORDS = (("a", "first"), ("b", "second"))


class State(TypedDict, total=False):
    q: str
    a: str
    b: str
    c: str
    d: str
    e: str
    log: Annotated[list[str], operator.add]


class Slow(FakeEngine):
    """Takes its time, and knows how many requests it had at once."""

    now = most = 0

    async def run(self, batch: Batch, emit: Emit) -> None:
        self.now += len(batch.items)
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        await super().run(batch, emit)
        self.now -= len(batch.items)


class World:
    """One graph's model, and what it was asked."""

    def __init__(self) -> None:
        self.engine = Slow(lambda prompt: says(f"<{prompt}>"), name="llm", concurrent=True)
        self.llm = EngineChatModel(engine=self.engine, max_tokens=None, temperature=None)

    def asks(self, key: str, *reads: str) -> Any:
        """A node that asks about what it reads and writes the answer under `key`."""
        llm, first, last = self.llm, reads[0], reads[-1]

        def node(state: State) -> dict[str, Any]:
            return {key: llm.invoke(f"{key}: {state[first]} {state[last]}").content}  # type: ignore[literal-required]

        return node

    def asked(self) -> Counter[str]:
        return Counter(str(prompt).removeprefix("User: ").split("\n")[0] for prompt in self.engine.seen)


def built(nodes: dict[str, Any], *edges: tuple[Any, str]) -> StateGraph[Any]:
    graph = StateGraph(State)
    for name, node in nodes.items():
        graph.add_node(name, node)
    for start, end in edges:
        graph.add_edge(start, end)
    return graph


BARRIER = ((START, "A"), ("A", "B"), ("A", "C"), ("B", "D"), (["C", "D"], "E"), ("E", END))


def barrier(w: World) -> StateGraph[Any]:
    """D waits for C by the superstep alone, which takes its time."""

    def c(state: State) -> dict[str, Any]:
        time.sleep(0.05)
        return {"c": state["a"]}

    nodes = {"A": w.asks("a", "q"), "B": w.asks("b", "a"), "C": c, "D": w.asks("d", "b"), "E": w.asks("e", "c", "d")}
    return built(nodes, *BARRIER)


def side_by_side(w: World) -> StateGraph[Any]:
    """B reads what A writes beside it, and sees what was there before."""
    nodes = {"S": w.asks("a", "q"), "A": w.asks("a", "a"), "B": w.asks("b", "a"), "C": w.asks("c", "a", "b")}
    edges = ((START, "S"), ("S", "A"), ("S", "B"), ("S", "D"), (["A", "B", "D"], "C"))
    return built({**nodes, "D": w.asks("d", "a")}, *edges)


def sending(w: World) -> StateGraph[Any]:
    """B runs for each of several inputs, and what follows reads all that came of it."""
    ask = w.llm

    def split(state: State) -> list[Send]:
        return [Send("B", {"a": word}) for word in state["q"].split()]

    def each(state: State) -> dict[str, Any]:
        return {"log": [str(ask.invoke(f"each: {state['a']}").content)]}

    nodes = {"A": w.asks("a", "q"), "B": each, "D": w.asks("d", "log"), "E": w.asks("e", "a")}
    graph = built(nodes, (START, "A"), ("B", "D"), ("B", "E"))
    graph.add_conditional_edges("A", split, ["B"])
    return graph


def commanding(w: World) -> StateGraph[Any]:
    """A goes on to C by its own word, besides along its edge."""
    ask = w.llm

    def a(state: State) -> Command[Literal["C"]]:
        return Command(goto="C", update={"a": ask.invoke(f"a: {state['q']}").content})

    nodes = {"A": a, "B": w.asks("b", "a"), "C": w.asks("c", "a"), "D": w.asks("d", "b")}
    return built(nodes, (START, "A"), ("A", "B"), ("B", "D"))


def leaving_out(w: World) -> StateGraph[Any]:
    """B mostly leaves `a` as it was."""

    def b(state: State) -> dict[str, Any]:
        if len(state["q"]) > 100:
            return {"a": "none"}
        return {"b": state["a"]}

    return built({"A": w.asks("a", "q"), "B": b, "C": w.asks("c", "a", "b")}, (START, "A"), ("A", "B"), ("B", "C"))


def busy(w: World) -> StateGraph[Any]:
    """D could be asked while C is."""
    nodes = {"A": w.asks("a", "q"), "B": w.asks("b", "a"), "C": w.asks("c", "a"), "D": w.asks("d", "b")}
    return built(nodes, (START, "A"), ("A", "B"), ("A", "C"), ("B", "D"))


def failing(w: World) -> StateGraph[Any]:
    def c(state: State) -> dict[str, Any]:
        raise ValueError("c")

    nodes = {"A": w.asks("a", "q"), "C": c, "D": w.asks("d", "a")}
    return built(nodes, (START, "A"), ("A", "C"), ("C", "D"))


Act = Callable[[Any, int], Any]


def invoked(**options: Any) -> Act:
    return lambda graph, run: graph.invoke({"q": "one two"}, **options)


def on_a_thread(**options: Any) -> Act:
    """Two calls: a question, and whatever is left of its run."""

    def act(graph: Any, run: int) -> Any:
        config: Any = {"configurable": {"thread_id": str(run)}}
        return graph.invoke({"q": "one two"}, config, **options), graph.invoke(None, config)

    return act


def saved(make: Any, **options: Any) -> Any:
    return lambda w: make(w).compile(checkpointer=InMemorySaver(), **options)


def compiled(make: Any) -> Any:
    return lambda w: make(w).compile()


CASES: dict[str, tuple[Any, Act]] = {
    **{f"limit {n}": (compiled(barrier), invoked(config={"recursion_limit": n})) for n in (1, 2, 3, 4, 5)},
    "side by side": (compiled(side_by_side), invoked()),
    "send": (compiled(sending), invoked()),
    "command": (compiled(commanding), invoked()),
    "a node that fails": (compiled(failing), invoked()),
    "a key left out": (compiled(leaving_out), invoked()),
    "before D": (saved(barrier, interrupt_before=["D"]), on_a_thread()),
    "after B": (saved(barrier, interrupt_after=["B"]), on_a_thread()),
    "before each": (saved(barrier, interrupt_before="*"), on_a_thread()),
    "after each": (saved(barrier, interrupt_after="*"), on_a_thread()),
    "before D of one call": (saved(barrier), on_a_thread(interrupt_before=["D"])),
    "after B of one call": (saved(barrier), on_a_thread(interrupt_after=["B"])),
    "after each of one call": (saved(barrier), on_a_thread(interrupt_after="*")),
}


def outcome(act: Act, graph: Any, run: int) -> tuple[str, Any]:
    try:
        return "", act(graph, run)
    except Exception as e:
        return type(e).__name__, str(e)


@pytest.mark.parametrize("case", CASES)
def test_the_same_is_asked(case: str) -> None:
    make, act = CASES[case]
    plain, fast = World(), World()
    original, graph = make(plain), optimize(make(fast))
    for run in range(RUNS):
        assert outcome(act, graph, run) == outcome(act, original, run)
        time.sleep(0.02)  # what follows from a front is learnt beside the run
        assert fast.asked() == plain.asked(), f"run {run}"
    reports = optimized(graph).reports
    assert [r.fallbacks for r in reports] == [()] * len(reports)


class Behind(Hosted):
    """Answers what is asked first a little later, so that what could run ahead of the answer does."""

    def _said(self, how: str, messages: Any, kwargs: Any) -> str:
        said = super()._said(how, messages, kwargs)
        time.sleep(0.2 if said and "first" in str(messages[0].content) else 0)
        return said


class Full(InMemorySaver):
    """Saves the input, and no superstep."""

    def put(self, config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        if metadata["step"] > 0:
            raise OSError("the disk is full")
        return super().put(config, checkpoint, metadata, versions)


@pytest.mark.parametrize("ends", ["the reader of a stream", "a checkpointer of the user's"])
def test_whoever_may_end_a_run_between_two_supersteps_comes_first(ends: str) -> None:
    """A hosted model is not asked for what follows."""
    model = pure(Behind)()
    nodes: Any = {key: lambda s, key=key, say=say: {key: model.invoke(f"{say} {s['q']}").content} for key, say in WORDS}
    fast = optimize(built(nodes, (START, "a"), ("a", "b")).compile(checkpointer=Full() if "user" in ends else None))
    for run in range(RUNS):
        model._calls.clear()
        config: Any = {"configurable": {"thread_id": str(run)}}
        if "user" in ends:
            with pytest.raises(OSError, match="full"):
                fast.invoke({"q": "x"}, config, durability="sync")
        else:
            chunks: Any = fast.stream({"q": "x"}, stream_mode="updates")
            next(chunks)
            chunks.close()
        assert [said for _, said in model._calls] == ["first x"]


@pytest.mark.parametrize("is_the_graphs_own", [False, True])
def test_no_more_is_asked_at_once_than_a_config_allows(is_the_graphs_own: bool) -> None:
    plain, fast = World(), World()
    original, graph, act = compiled(busy)(plain), compiled(busy)(fast), invoked()
    if is_the_graphs_own:
        original, graph = (each.with_config(max_concurrency=1) for each in (original, graph))
    else:
        act = invoked(config={"max_concurrency": 1})
    graph = optimize(graph)
    for run in range(RUNS):
        assert outcome(act, graph, run) == outcome(act, original, run)
    assert fast.asked() == plain.asked()
    assert (plain.engine.most, fast.engine.most) == (1, 1)


async def test_a_watched_graph_asks_hosted_models_for_streams_alone() -> None:
    def make(model: Hosted) -> Any:
        async def asks(state: State) -> dict[str, Any]:
            return {"b": (await model.ainvoke(f"b: {state['a']}")).content}

        async def asks_more(state: State) -> dict[str, Any]:
            return {"d": (await model.ainvoke(f"d: {state['b']}")).content}

        nodes = {"A": lambda s: {"a": s["q"]}, "B": asks, "C": lambda s: {"c": s["q"]}, "D": asks_more}
        return built(nodes, (START, "A"), ("A", "B"), ("A", "C"), (["B", "C"], "D")).compile()

    plain, fast = Hosted(), Hosted()
    original, graph = make(plain), optimize(make(fast))
    for _ in range(RUNS):
        for each in (original, graph):
            kinds = [event["event"] async for event in each.astream_events({"q": "x"}, version="v2")]
            assert "on_chat_model_stream" in kinds
    assert sorted(fast._calls) == sorted(plain._calls)


LIMIT_S = 1.0


def unlimited(asks: Any) -> Any:
    return built({"A": asks}, (START, "A")).compile()


def limited_node(asks: Any) -> Any:
    graph: Any = StateGraph(State)
    graph.add_node("A", asks, timeout=LIMIT_S)
    return graph.add_edge(START, "A").compile()


def limited_step(asks: Any) -> Any:
    inner: Any = built({"A": asks}, (START, "A")).compile()
    inner.step_timeout = LIMIT_S
    return built({"B": inner, "C": asks}, (START, "B"), ("B", "C")).compile()


@pytest.mark.parametrize("make", [unlimited, limited_node, limited_step])
async def test_what_a_limit_of_time_may_cut_off_is_not_asked(service: Service, make: Callable[[Any], Any]) -> None:
    """The service keeps the first reply back until the second request is there, or the limit has long passed."""
    llm: Any = ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0)  # type: ignore[arg-type,call-arg]

    async def asks(state: State) -> dict[str, Any]:
        one = await llm.ainvoke(f"first {state['q']}")
        two = await llm.ainvoke(f"second {state['q']}")
        return {"a": one.content, "b": two.content}

    fast = optimize(make(asks))
    await fast.ainvoke({"q": "soon"})
    service.holds, service.awaits = "first late", "second late"
    with counted(service) as asked, contextlib.suppress(TimeoutError, NodeTimeoutError):
        await asyncio.wait_for(fast.ainvoke({"q": "late"}), 2 * LIMIT_S)
    service.note("second late")  # the first reply is kept back no longer
    assert any("second late" in text for text in asked) is (make is unlimited)


def test_what_a_cache_knows_is_not_asked() -> None:
    def make(w: World) -> Any:
        graph = barrier(w)
        graph.nodes["D"] = replace(graph.nodes["D"], cache_policy=CachePolicy())
        return graph.compile(cache=InMemoryCache())

    plain, fast = World(), World()
    original, graph = make(plain), optimize(make(fast))
    for run in range(RUNS):
        assert outcome(invoked(), graph, run) == outcome(invoked(), original, run)
    assert fast.asked() == plain.asked()
    assert sorted(n for prompt, n in plain.asked().items() if prompt.startswith(("a:", "d:"))) == [1, RUNS]


class Talk(State):
    messages: Annotated[list[Any], add_messages]


def test_no_id_that_the_framework_makes_up_is_guessed() -> None:
    w = World()
    llm = w.llm

    def a(state: Talk) -> dict[str, Any]:
        return {"a": llm.invoke(f"a: {state['q']}").content, "messages": ("ai", "said")}

    def b(state: Talk) -> dict[str, Any]:
        return {"b": llm.invoke(f"b: {state['messages'][-1].id}").content}

    def c(state: Talk) -> dict[str, Any]:
        return {"c": [llm.invoke(f"c{n}: {state['a']}").content for n in range(2)]}

    graph: Any = StateGraph(Talk)
    for name, node in {"A": a, "B": b, "C": c}.items():
        graph.add_node(name, node)
    for start, end in ((START, "A"), ("A", "B"), ("A", "C")):
        graph.add_edge(start, end)
    fast = optimize(graph.compile())
    ids = []
    for _ in range(RUNS):
        ids.append(fast.invoke({"q": "one"})["messages"][-1].id)
        time.sleep(0.02)
    assert sorted(prompt for prompt in w.asked() if prompt[0] == "b") == sorted(f"b: {each}" for each in ids)
    assert w.asked().total() == 4 * RUNS
    assert sum(report.hits for report in optimized(fast).reports)
