"""State graphs, original against optimized: same answers, chunks, events, history and effects in every way of calling.

Graphs are made up at random (langgraph_world.py), TEOLA_TEST_GRAPHS of them. Every other one runs optimized more than
once, as fronts that were not met before are learned beside the first call. Where it differs from the original, that
runs again, and again: what nodes of one superstep come to may be chance.

Then graphs where something must run ahead: the engine holds a node's reply back until another node has asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest
from langchain_core.callbacks import get_usage_metadata_callback
from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableParallel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy

from teola_plugin import optimize, optimized, runtime
from teola_plugin.adapters.langgraph import adapter, places
from teola_plugin.engines import Batch, Completion
from teola_plugin.models.langchain import EngineChatModel
from tests.adapters.langchain.test_langchain_foreign import Hosted
from tests.conftest import REST_VISITS
from tests.support.langchain_world import Recorder, answer, ask, plain_text
from tests.support.langgraph_world import Boom, Given, Maker, Patient, State

GRAPHS = int(os.environ.get("TEOLA_TEST_GRAPHS", "250"))

MODES = ("values", "updates", "messages", "debug", "custom", "tasks", "checkpoints")
OURS = ("teola-host", "teola-call", "teola-ask", "teola-read", "teola-trace", "teola-chroma")
"""Threads that outlive a call."""

_threads = (f"thread-{number}" for number in itertools.count())


# --- what a call comes to --------------------------------------------------------------------------------------------

_IDS = re.compile(
    r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b|thread-\d+"
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*\+00:00|'\d+\.\d{16}'|0\.\d{12,}|\bcall_[0-9a-f]{20}"
)
"""What differs from run to run: addresses, ids of runs, tasks, threads, interrupts and the like, times, versions."""


def told(value: Any) -> str:
    """A value without what differs from run to run."""
    return _IDS.sub("<>", _shown(value)).replace("'id': '<>'", "'id': None")  # a message gets its id while it is saved


def _shown(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{k}: {_shown(v)}" for k, v in sorted(value.items(), key=lambda i: str(i[0]))) + "}"
        case list() | tuple() | set() | frozenset():
            return "[" + ", ".join(map(_shown, value)) + "]"
        case BaseException():
            return f"{type(value).__name__}{value.args}"
        case BaseMessage():
            return f"{type(value).__name__}({vars(value)})"  # as its repr, which takes a hundred times as long
        case _:
            return repr(value)


class Listener(Recorder):
    """The tree of runs, with what was said in each."""

    def _start(self, kind: str, serialized: Any, given: Any, **kwargs: Any) -> None:
        super()._start(kind, serialized, given, **kwargs)
        self.runs[kwargs["run_id"]][3].pop("tags", None)  # LangGraph's own handlers may have been here first

    def _say(self, what: Any, **kwargs: Any) -> None:
        if (run := self.runs.get(kwargs["run_id"])) is not None:
            run.append(what)

    def on_llm_new_token(self, token: str, **kwargs: Any) -> None:
        self._say(("token", token), **kwargs)

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        self._say((name, plain_text(data)), **kwargs)

    def tree(self, parent: Any = None) -> list[Any]:
        nodes = [[told(self.runs[run]), self.tree(run)] for run in self.children.get(parent, [])]
        return sorted(nodes, key=repr)


@dataclass(frozen=True)
class Call:
    """A way of calling, and what comes after the first call where there is a checkpointer."""

    form: str
    modes: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    after: str = ""


@dataclass
class Outcome:
    """`answers` of the call and those after it; `asked`: requests that reached the engine; `left`: what outlived it."""

    answers: list[Any] = field(default_factory=list)
    failed: bool = False
    tree: list[Any] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)


def converse(maker: Maker, graph: Any, call: Call) -> Outcome:
    """One conversation, and all that can be seen of it."""
    maker.world.reset()
    listener, outcome = Listener(), Outcome()
    threads = set(threading.enumerate())
    config: Any = {"callbacks": [listener], "tags": ["mine"], "metadata": {"who": "me"}, "recursion_limit": 15}
    config["configurable"] = {"thread_id": next(_threads)}
    has_thread = maker.has_saver and "batch" not in call.form
    try:
        for said in conversation(graph, call, config, outcome.left, has_thread=has_thread):
            outcome.answers.append(said)
    except Exception as e:  # compared, whatever it is
        outcome.answers.append(told(e))
        outcome.failed = True
    outcome.tree = listener.tree()
    settle(maker.world.engine)
    outcome.left += [t.name for t in set(threading.enumerate()) - threads if not t.name.startswith(OURS)]
    outcome.effects = sorted(maker.world.effects)
    outcome.asked = maker.world.engine.asked
    return outcome


def conversation(graph: Any, call: Call, config: Any, left: list[str], *, has_thread: bool) -> Iterator[Any]:
    """Call the graph, resume it where it stopped, go on from an older checkpoint, look at the history."""
    yield run(graph, call, {"question": "Who keeps hive 3?"}, config, left)
    if not has_thread:
        return
    later = replace(call, options={k: v for k, v in call.options.items() if not k.startswith("interrupt")})
    for _ in range(4):
        state = graph.get_state(config)
        if not state.next:
            break
        resumed = Command(resume="yes") if any(task.interrupts for task in state.tasks) else None
        yield run(graph, later, resumed, config, left)
    yield history(graph, config)
    past = list(graph.get_state_history(config))
    middle = past[len(past) // 2].config
    match call.after:
        case "travel":
            yield run(graph, later, None, {**config, **middle}, left)
        case "fork":
            forked = graph.update_state(middle, {"k0": "forked", "log": ["forked"]}, as_node="n0")
            yield run(graph, later, None, {**config, **forked}, left)
        case "again":
            yield run(graph, later, {"question": "And hive 4?"}, config, left)
        case _:
            return
    yield history(graph, config)


def history(graph: Any, config: Any) -> list[Any]:
    return [
        told([
            s.values, sorted(s.next), s.metadata, s.interrupts,
            sorted(told([t.name, t.error, t.interrupts, t.result, t.path]) for t in s.tasks),
        ])
        for s in graph.get_state_history(config)
    ]  # fmt: skip


def settle(engine: Any) -> None:
    """Wait until nothing of the call is on its way: fronts that are learned, items that were cancelled."""
    for thread in threading.enumerate():
        if thread.name == "teola-trace":
            thread.join()
    for _ in range(1000):
        for _ in range(2):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), runtime.host.loop).result()
        if not engine.running:
            return
        time.sleep(0.001)


def run(graph: Any, call: Call, given: Any, config: Any, left: list[str]) -> Any:
    options = {**call.options, **({"stream_mode": call.modes} if call.modes else {})}
    match call.form:
        case "invoke":
            return told(graph.invoke(given, config, **options))
        case "batch":
            other = {**config, "configurable": {"thread_id": next(_threads)}}
            return told(graph.batch([given, {"question": "What about hive 11?"}], [config, other], **options))
        case "stream":
            return canonical(graph.stream(given, config, **options), call)
        case "ainvoke":
            return told(asyncio.run(alone(graph.ainvoke(given, config, **options), left)))
        case "abatch":
            return told(asyncio.run(alone(graph.abatch([given], config, **options), left)))
        case "astream":
            return canonical(asyncio.run(alone(gather(graph.astream(given, config, **options)), left)), call)
        case _:
            events = graph.astream_events(given, config, version="v2", **call.options)
            return happened(asyncio.run(alone(gather(events), left)))


async def alone(work: Any, left: list[str]) -> Any:
    """Its result; `left` gets the tasks that it leaves behind."""
    try:
        return await work
    finally:
        for _ in range(500):
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if not others:
                break
            await asyncio.sleep(0.001)
        else:
            left += [repr(task.get_coro()) for task in others]


async def gather(chunks: AsyncIterator[Any]) -> list[Any]:
    return [chunk async for chunk in chunks]


def canonical(chunks: Any, call: Call) -> list[Any]:
    """The chunks by supersteps, where the values of the state tell these.

    Nodes of one superstep have no order among them, and the chunks of one message have.
    """
    is_many, is_nested = isinstance(call.modes, list), call.options.get("subgraphs", False)
    steps: list[dict[str, list[str]]] = [{}]
    for number, chunk in enumerate(chunks):
        parts = list(chunk) if is_many or is_nested else [chunk]
        where = parts.pop(0) if is_nested else ()
        mode = parts.pop(0) if is_many else call.modes
        (payload,) = parts
        source = payload[0].id if mode == "messages" else number
        steps[-1].setdefault(repr([where, source]), []).append(told([mode, where, payload]))
        if mode == "values" and not where and "__interrupt__" not in payload:  # that is told at once
            steps.append({})
    return [sorted(step.values()) for step in steps]


def happened(events: list[Any]) -> list[Any]:
    """The events, each run's in their order; but in which order nodes of one superstep tell a graph is chance."""
    runs: dict[str, list[str]] = {}
    for event in events:
        shown = {k: v for k, v in event.items() if k not in ("run_id", "parent_ids")}
        runs.setdefault(event["run_id"], []).append(told([shown, len(event["parent_ids"])]))
        if isinstance(event["data"].get("chunk"), dict):
            runs[event["run_id"]].sort()
    return sorted(runs.values())


# --- graphs made up at random ----------------------------------------------------------------------------------------


def some_call(seed: int, is_async: bool, has_saver: bool, names: list[str]) -> Call:
    """A way to call a graph, by chance."""
    chance = random.Random(seed)
    form = chance.choice(["invoke", "stream", "stream", "batch", "ainvoke", "astream", "astream", "abatch", "events"])
    if is_async:
        form = {"invoke": "ainvoke", "stream": "astream", "batch": "abatch"}.get(form, form)
    options: dict[str, Any] = {}
    modes: Any = None
    if "stream" in form:
        several = [*dict.fromkeys(["values", *chance.sample(MODES, chance.randint(1, 3))])]
        modes = chance.choice([several, several, chance.choice(MODES)])
        options |= {"subgraphs": True} if chance.random() < 0.4 else {}
    if has_saver and form not in ("batch", "abatch"):
        if chance.random() < 0.3:
            options[chance.choice(["interrupt_before", "interrupt_after"])] = chance.choice(
                [[chance.choice(names)], "*"]
            )
        options |= {"durability": chance.choice(["sync", "async", "exit"])} if chance.random() < 0.3 else {}
    if form != "events" and "batch" not in form and chance.random() < 0.1:
        options["output_keys"] = ["k0", "log"]
    return Call(form, modes, options, chance.choice(["", "travel", "fork", "again"]))


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_random_graph(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most calls are read whole. In every fourth graph, places without room rest over three calls."""
    rests = seed % 4 == 3
    if rests:
        monkeypatch.setattr(places, "REST_VISITS", REST_VISITS)
    maker = Maker(seed)
    graph = maker.graph()
    call = some_call(seed, maker.is_async, maker.has_saver, maker.names)
    plain = [converse(maker, graph, call)]
    maker_of_fast = Maker(seed)
    fast = optimize(maker_of_fast.graph())
    for number in range(3 if rests else 1 + seed % 2):
        if calls := adapter.calls_of(fast):
            if not (rests and number):
                calls.wake()
            calls.reports.clear()
        outcome = converse(maker_of_fast, fast, call)
        for name in compared(plain[0]):
            same_as_some(name, outcome, plain, lambda: converse(maker, graph, call))
        assert_asked(call, outcome, plain, calls.reports if calls else [])


def compared(plain: Outcome) -> list[str]:
    """What may be compared: chance decides what runs beside a failure, and which of it is heard."""
    names = [f.name for f in fields(plain) if f.name != "asked"]
    return ["failed", "answers", "left"] if plain.failed else names


def same_as_some(name: str, outcome: Any, plain: list[Any], again: Any, tries: int = 8) -> None:
    """The outcome is one of those that the original has; it is run again so often to find out."""

    def seen() -> Iterator[Any]:
        yield from plain
        for _ in range(tries):
            plain.append(again())
            yield plain[-1]

    if not any(getattr(outcome, name) == getattr(one, name) for one in seen()):
        assert getattr(outcome, name) == getattr(plain[0], name), name


def assert_asked(call: Call, outcome: Outcome, plain: list[Outcome], reports: Any) -> None:
    """The engine saw what it sees of the original, and no more than that and what the reports call wasted."""
    if outcome.failed:
        return
    for one in plain:
        missed, more = one.asked - outcome.asked, outcome.asked - one.asked
        if not missed and more.total() <= sum(r.wasted for r in reports):
            break
    else:
        assert outcome.asked == plain[0].asked, [r.wasted for r in reports]
    for report in reports:
        assert report.fallbacks == ()
    if reports:
        asked = sum(r.hits + r.shared + r.misses + r.stale for r in reports)
        of_condition = int(call.after == "fork")  # asked by `update_state`, which is no call
        assert any(0 <= one.asked.total() - asked <= of_condition for one in plain)


# --- graphs where something must run ahead ---------------------------------------------------------------------------


class Holding(Patient):
    """Takes no time but for what it holds back."""

    def __init__(self) -> None:
        super().__init__(answer)

    async def hold(self, batch: Batch) -> None:
        await self.hold_back(batch)


class Barrier:
    """a -> {b -> d, c} -> e, again and again if `turns` is more than one; d need not wait for c."""

    def __init__(self, kind: str = "function", turns: int = 1) -> None:
        self.engine = Holding()
        self.chat = chat = EngineChatModel(engine=self.engine, max_tokens=None, temperature=None)
        self.turns = turns
        self.d: Any = {
            "function": lambda s: {"k3": chat.invoke(f"[d {s['turns']}] {s['k1']}").content},
            "chain": ask("[d {turns}] {k1}") | chat | StrOutputParser() | (lambda text: {"k3": text}),
            "parallel": RunnableParallel(k3=ask("[d {turns}] {k1}") | chat | StrOutputParser()),
        }.get(kind)
        if kind == "coroutine":
            self.d = self.in_coroutine

    def a(self, state: State) -> dict[str, Any]:
        return {"k0": str(self.chat.invoke(f"[a {state['turns']}] {state['question']}").content)}

    def b(self, state: State) -> dict[str, Any]:
        return {"k1": str(self.chat.invoke(f"[b {state['turns']}] {state['k0']}").content)}

    def c(self, state: State) -> dict[str, Any]:
        return {"k2": str(self.chat.invoke(f"[c {state['turns']}] {state['k0']}").content), "log": ["c"]}

    async def in_coroutine(self, state: State) -> dict[str, Any]:
        reply = await self.chat.ainvoke(f"[d {state['turns']}] {state['k1']}")
        return {"k3": str(reply.content)}

    def e(self, state: State) -> dict[str, Any]:
        return {"log": [state["k2"], state["k3"]], "turns": 1}

    def builder(self, **options: Any) -> Any:
        """All but how it begins."""
        builder: Any = StateGraph(State)
        for name in "abcde":
            builder.add_node(name, getattr(self, name), **options)
        builder.add_edge("a", "b")
        builder.add_edge("a", "c")
        builder.add_edge("b", "d")
        builder.add_edge(["c", "d"], "e")
        builder.add_conditional_edges("e", lambda s: "a" if s["turns"] < self.turns else END, ["a", END])
        return builder

    def graph(self, **options: Any) -> Any:
        return self.builder().add_edge(START, "a").compile(**options)

    def call(self, graph: Any, form: str, given: Any = None, **config: Any) -> Any:
        given = given or {"question": "Who keeps hive 3?"}
        found = run(graph, Call(form, "values" if "stream" in form else None), given, config, [])
        settle(self.engine)
        return found


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("function", "invoke"), ("function", "ainvoke"), ("function", "stream"), ("function", "astream"),
        ("function", "events"), ("coroutine", "ainvoke"), ("coroutine", "astream"), ("chain", "invoke"),
        ("chain", "astream"), ("parallel", "stream"),
    ],
)  # fmt: skip
def test_a_node_runs_ahead_of_the_barrier(kind: str, form: str) -> None:
    barrier = Barrier(kind)
    graph = barrier.graph()
    plain = barrier.call(graph, form)
    barrier.engine.began.clear()
    barrier.engine.holds, barrier.engine.awaits = "[c 0]", "[d 0]"
    fast = optimize(graph)
    assert barrier.call(fast, form) == plain
    assert not barrier.engine.gave_up
    report = optimized(fast).reports[-1]
    assert (report.wasted, report.fallbacks) == (0, ())
    assert report.hits


def test_the_original_waits_at_the_barrier() -> None:
    """Or else the test above could not fail."""
    barrier = Barrier()
    barrier.call(barrier.graph(), "invoke")
    assert "[d 0]" in barrier.engine.began[-1]


@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
def test_a_loop_runs_ahead_in_each_turn(form: str) -> None:
    barrier = Barrier(turns=3)
    graph = barrier.graph()
    plain = barrier.call(graph, form)
    fast = optimize(graph)
    assert barrier.call(fast, form) == plain  # what follows a turn is learned
    for turn in range(3):
        barrier.engine.began.clear()
        barrier.engine.holds, barrier.engine.awaits = f"[c {turn}]", f"[d {turn}]"
        optimized(fast).wake()
        assert barrier.call(fast, form) == plain
        assert not barrier.engine.gave_up, turn


@pytest.mark.parametrize("form", ["invoke", "astream"])
def test_a_resumed_thread_runs_ahead(form: str) -> None:
    barrier = Barrier()
    graph = barrier.graph(checkpointer=InMemorySaver(), interrupt_before=["b"])
    fast = optimize(graph)

    def resumed(graph: Any) -> Any:
        config = {"configurable": {"thread_id": next(_threads)}}
        barrier.call(graph, form, **config)
        assert graph.get_state(config).next == ("b", "c")
        return run(graph, Call(form, "values" if form == "astream" else None), None, config, [])

    plain = resumed(graph)
    assert resumed(fast) == plain
    settle(barrier.engine)
    barrier.engine.began.clear()
    barrier.engine.holds, barrier.engine.awaits = "[c 0]", "[d 0]"
    optimized(fast).wake()
    assert resumed(fast) == plain
    assert not barrier.engine.gave_up


@pytest.mark.parametrize("when", ["interrupt_before", "interrupt_after"])
@pytest.mark.parametrize("is_of_call", [False, True])
def test_nothing_runs_ahead_of_an_interrupt(when: str, is_of_call: bool) -> None:
    barrier = Barrier()
    interrupt = {when: ["d" if when == "interrupt_before" else "b"]}
    fast = optimize(barrier.graph(checkpointer=InMemorySaver(), **({} if is_of_call else interrupt)))
    barrier.engine.holds, barrier.engine.awaits, barrier.engine.patience = "[c 0]", "[d 0]", 50
    for _ in range(2):
        config = {"configurable": {"thread_id": next(_threads)}}
        barrier.engine.began.clear()
        fast.invoke({"question": "Who keeps hive 3?"}, config, **(interrupt if is_of_call else {}))
        settle(barrier.engine)
        assert fast.get_state(config).next == ("d",)
        assert not any("[d" in text for text in barrier.engine.began)


def test_what_follows_a_condition_runs_ahead() -> None:
    barrier = Barrier()
    builder = barrier.builder()
    builder.add_conditional_edges(START, lambda s: "a" if s["question"] else END, ["a", END])
    graph = builder.compile()
    plain, fast = barrier.call(graph, "invoke"), optimize(graph)
    assert barrier.call(fast, "invoke") == plain
    barrier.engine.began.clear()
    barrier.engine.holds, barrier.engine.awaits = "[c 0]", "[d 0]"
    assert barrier.call(fast, "invoke") == plain
    assert not barrier.engine.gave_up


def test_a_cancelled_call_leaves_nothing_behind() -> None:
    barrier = Barrier("coroutine")
    fast = optimize(barrier.graph())
    plain = barrier.call(fast, "ainvoke")
    barrier.engine.began.clear()
    barrier.engine.holds, barrier.engine.awaits = "[c 0]", "never"

    async def cancel() -> None:
        call = asyncio.create_task(fast.ainvoke({"question": "Who keeps hive 3?"}))
        await barrier.engine.has_begun("[d 0]")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        barrier.engine.began.append("never")  # the thread of a node that runs is waited for, as without us

    left: list[str] = []
    asyncio.run(alone(cancel(), left))
    assert not left
    settle(barrier.engine)
    report = optimized(fast).reports[-1]
    assert 1 <= report.wasted <= 3  # d, and b and c where the run has not come to them by then
    assert not any("[e" in text for text in barrier.engine.began)
    assert barrier.call(fast, "ainvoke") == plain


@pytest.mark.parametrize("form", ["stream", "astream"])
def test_a_stream_that_is_closed_early_leaves_nothing_behind(form: str) -> None:
    barrier = Barrier()
    graph = barrier.graph()
    fast = optimize(graph)

    async def afirst(graph: Any) -> Any:
        chunks = graph.astream({"question": "Who keeps hive 3?"}, stream_mode="updates")
        async with contextlib.aclosing(chunks):
            return await anext(chunks)

    def first(graph: Any, left: list[str]) -> Any:
        if form == "astream":
            return asyncio.run(alone(afirst(graph), left))
        with contextlib.closing(graph.stream({"question": "Who keeps hive 3?"}, stream_mode="updates")) as chunks:
            return next(chunks)

    left: list[str] = []
    threads = set(threading.enumerate())
    plain = barrier.call(graph, "invoke")
    for _ in range(3):
        assert told(first(fast, left)) == told(first(graph, []))
        settle(barrier.engine)
    assert not left
    assert all(t.name.startswith(OURS) for t in set(threading.enumerate()) - threads)
    assert len(optimized(fast).reports) == 3
    assert barrier.call(fast, "invoke") == plain


def test_calls_at_once_do_not_mix() -> None:
    barrier = Barrier(turns=2)
    graph = barrier.graph()
    fast = optimize(graph)
    given = [{"question": f"Who keeps hive {n}?"} for n in range(12)]
    plain = [graph.invoke(one) for one in given]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(fast.invoke, given)) == plain

    async def at_once() -> list[Any]:
        return await asyncio.gather(*map(fast.ainvoke, given))

    assert asyncio.run(at_once()) == plain
    assert fast.batch(given) == plain


def test_hooks_of_libraries_hear_of_each_reply_once() -> None:
    barrier = Barrier()
    graph = barrier.graph()
    fast = optimize(graph)

    def used(graph: Any) -> Any:
        with get_usage_metadata_callback() as heard:
            barrier.call(graph, "invoke")
        return heard.usage_metadata

    barrier.engine.answer = lambda prompt: Completion(prompt, prompt_tokens=len(prompt))
    plain = used(graph)
    barrier.engine.began.clear()
    barrier.engine.holds, barrier.engine.awaits = "[c 0]", "[d 0]"
    assert used(fast) == plain != {}
    assert not barrier.engine.gave_up


def test_an_optimized_graph_as_a_node() -> None:
    barrier = Barrier()
    inner = barrier.graph()
    fast = optimize(inner)

    def outcome(node: Any, form: str) -> Any:
        builder: Any = StateGraph(State)
        builder.add_node("inner", node)
        builder.add_node("last", lambda s: {"k7": s["k3"], "log": s["log"]})
        builder.add_edge(START, "inner")
        builder.add_edge("inner", "last")
        graph = builder.compile(checkpointer=InMemorySaver(), interrupt_after=["inner"])
        listener = Listener()
        config: Any = {"callbacks": [listener], "configurable": {"thread_id": next(_threads)}}
        call = Call(form, ["values", "updates"] if "stream" in form else None)
        said = [run(graph, call, given, config, []) for given in ({"question": "Who keeps hive 3?"}, None)]
        return said, history(graph, config), listener.tree()

    for form in ("invoke", "ainvoke", "stream", "astream"):
        assert outcome(fast, form) == outcome(inner, form)
    assert sum(report.hits + report.shared for report in optimized(fast).reports)


def test_a_model_that_fails_at_first_is_asked_again_by_the_framework() -> None:
    barrier = Barrier()
    builder = barrier.builder(retry_policy=RetryPolicy(initial_interval=0.001, jitter=False, retry_on=Boom))
    builder.add_edge(START, "a")
    graph = builder.compile()
    failed: set[str] = set()

    def fails_once(prompt: str) -> Any:
        if prompt not in failed:
            failed.add(prompt)
            raise Boom("not yet")
        return answer(prompt)

    plain = barrier.call(graph, "invoke")
    barrier.engine.answer = fails_once
    assert barrier.call(graph, "invoke") == plain
    for _ in range(2):
        failed.clear()
        fast = optimize(graph)
        assert barrier.call(fast, "invoke") == plain


def test_a_thread_that_failed_goes_on_where_it_was() -> None:
    barrier = Barrier()
    graph = barrier.graph(checkpointer=InMemorySaver())
    fast = optimize(graph)

    def fails(prompt: str) -> Any:
        if "[d 0]" in prompt:
            raise Boom("the engine failed")
        return answer(prompt)

    def outcome(graph: Any) -> Any:
        config: Any = {"configurable": {"thread_id": next(_threads)}}
        barrier.engine.answer = fails
        with pytest.raises(Boom):
            barrier.call(graph, "invoke", **config)
        before = history(graph, config)
        barrier.engine.answer = answer
        barrier.engine.began.clear()
        return before, told(graph.invoke(None, config)), history(graph, config), sorted(barrier.engine.began)

    plain = outcome(graph)
    for _ in range(3):
        assert outcome(fast) == plain


def test_a_hosted_model_does_not_overtake_a_condition_that_may_refuse() -> None:
    hosted, barrier = Hosted(), Barrier()

    def refuses(state: State) -> str:
        barrier.chat.invoke("is it allowed")
        raise Boom("refused")

    def tells(state: State) -> dict[str, Any]:
        return {"k3": str(hosted.invoke("tell " + state["question"]).content)}

    builder: Any = StateGraph(State)
    builder.add_node("a", barrier.a)
    builder.add_node("d", tells)
    builder.add_edge(START, "a")
    builder.add_edge("a", "d")
    builder.add_conditional_edges("a", refuses, [END])
    barrier.engine.holds, barrier.engine.awaits, barrier.engine.patience = "is it allowed", "never", 100
    with pytest.raises(Boom):
        optimize(builder.compile()).invoke({"question": "Who keeps hive 3?"})
    settle(barrier.engine)
    assert not hosted._calls


@pytest.mark.parametrize("schema", [State, Given])
def test_a_chain_that_reads_the_whole_state_is_foreseen(schema: Any) -> None:
    barrier = Barrier()

    def waits(state: State) -> dict[str, Any]:
        barrier.chat.invoke("[c 0]")
        return {}

    builder: Any = StateGraph(State)
    builder.add_node("a", barrier.a)
    builder.add_node("b", barrier.b)
    builder.add_node("c", waits)
    chain = (lambda s: f"[d] {json.dumps(s)}") | barrier.chat | (lambda m: {"k3": m.content})
    builder.add_node("d", chain, input_schema=schema)
    for start, end in ((START, "a"), ("a", "b"), ("a", "c"), ("b", "d")):
        builder.add_edge(start, end)
    graph = builder.compile()
    plain, fast = barrier.call(graph, "invoke"), optimize(graph)
    barrier.engine.began.clear()
    barrier.engine.holds, barrier.engine.awaits = "[c 0]", "[d]"
    assert barrier.call(fast, "invoke") == plain
    assert not barrier.engine.gave_up
    assert optimized(fast).reports[-1].wasted == 0
