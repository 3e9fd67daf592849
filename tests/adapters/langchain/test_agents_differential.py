"""Agents, original against optimized: same answers, chunks, events, history and effects in every way of calling.

Agents are made up at random (agents_maker.py), TEOLA_TEST_AGENTS of them. Every other one runs twice optimized. Where
it differs from the original, that runs again, and again: what parallel calls of tools come to may be chance.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from teola_plugin import optimize, reads, writes
from teola_plugin.adapters.langchain import tools
from teola_plugin.adapters.langgraph import adapter
from teola_plugin.models.langchain import EngineChatModel
from tests.adapters.langgraph.test_langgraph_differential import (
    MODES,
    OURS,
    Call,
    Listener,
    alone,
    history,
    run,
    same_as_some,
    settle,
    told,
)
from tests.adapters.langgraph.test_langgraph_differential import _threads as thread_names
from tests.support.agents_maker import Maker
from tests.support.agents_reading_tools import Filters
from tests.support.agents_world import Writing, without_ids, written
from tests.support.langchain_world import digest

AGENTS = int(os.environ.get("TEOLA_TEST_AGENTS", "150"))


# --- what a call comes to --------------------------------------------------------------------------------------------


class ToolListener(Listener):
    """The tree of runs, those of tools too."""

    def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
        self._start("tool", serialized, [input_str, told(kwargs.get("inputs"))], **kwargs)

    def on_tool_end(self, output: Any, **kwargs: Any) -> None:
        self._end("ended", told(output), **kwargs)

    def on_tool_error(self, error: BaseException, **kwargs: Any) -> None:
        self._end("failed", error, **kwargs)

    def on_text(self, text: str, **kwargs: Any) -> None:
        self._say(("text", text), **kwargs)

    def tree(self, parent: Any = None) -> list[Any]:
        nodes = [[_GIVEN_IDS.sub("", told(self.runs[run])), self.tree(run)] for run in self.children.get(parent, [])]
        return sorted(nodes, key=repr)


_GIVEN_IDS = re.compile(r", id=\\*'<>\\*'")
"""A message that is shown gets its id at about that time."""


@dataclass
class Outcome:
    """`answers` of the call and those after it; `ran`: the work of the tools; `left`: what outlived the calls."""

    answers: list[Any] = field(default_factory=list)
    failed: bool = False
    tree: list[Any] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    ran: Counter[str] = field(default_factory=Counter)


def converse(maker: Maker, agent: Any, call: Call, config: dict[str, Any]) -> Outcome:
    """One conversation, and all that can be seen of it."""
    maker.world.reset()
    listener, outcome = ToolListener(), Outcome()
    threads = set(threading.enumerate())
    mine: Any = {"callbacks": [listener], "tags": ["mine"], "metadata": {"who": "me"}, **config}
    mine["configurable"] = {"thread_id": next(thread_names), "who": "me"}
    try:
        for said in conversation(maker, agent, call, mine, outcome.left):
            outcome.answers.append(said)
    except Exception as e:  # compared, whatever it is
        outcome.answers.append(told(e))
        outcome.failed = True
    outcome.tree = listener.tree()
    settle(maker.world.engine)
    at_the_end = maker.world.ran.total()
    outcome.left += [t.name for t in set(threading.enumerate()) - threads if not t.name.startswith(OURS)]
    outcome.effects = sorted(maker.world.effects)
    outcome.asked = Counter(map(without_ids, maker.world.engine.asked.elements()))
    outcome.ran = maker.world.ran.copy()
    if maker.seed % 5 == 0:
        time.sleep(0.02)
        assert maker.world.ran.total() == at_the_end or outcome.failed, "a tool began after the end of the call"
    return outcome


def conversation(maker: Maker, agent: Any, call: Call, config: Any, left: list[str]) -> Iterator[Any]:
    """Ask the agent, resume it where it stopped, go on from an older checkpoint, look at the history."""
    question = {"messages": [("user", "Who keeps hive 3?")]}
    if "batch" in call.form:
        yield batched(agent, call, question, config, left)
        return
    yield run(agent, call, question, config, left)
    if not maker.has_saver:
        return
    later = replace(call, options={k: v for k, v in call.options.items() if not k.startswith("interrupt")})
    for _ in range(4):
        state = agent.get_state(config)
        if not state.next:
            break
        yield run(agent, later, resumed(state), config, left)
    yield history(agent, config)
    past = list(agent.get_state_history(config))
    match call.after:
        case "travel":
            yield run(agent, later, None, {**config, **past[len(past) // 2].config}, left)
        case "again":
            yield run(agent, later, {"messages": [("user", "And hive 4?")]}, config, left)
        case _:
            return
    yield history(agent, config)


def resumed(state: Any) -> Any:
    """What a human says to each question."""

    def decided(value: Any) -> Any:
        asked = value.get("action_requests")
        return "yes" if asked is None else {"decisions": [{"type": "approve"}] * len(asked)}

    answers = {i.id: decided(i.value) for task in state.tasks for i in task.interrupts}
    return Command(resume=answers) if answers else None


def batched(agent: Any, call: Call, question: Any, config: Any, left: list[str]) -> Any:
    given = [question, {"messages": [("user", "What about hive 11?")]}]
    configs = [{**config, "configurable": {"thread_id": next(thread_names), "who": who}} for who in ("me", "you")]
    if call.form == "batch":
        return told(agent.batch(given, configs, **call.options))
    return told(asyncio.run(alone(agent.abatch(given, configs, **call.options), left)))


# --- agents made up at random ----------------------------------------------------------------------------------------


def some_call(maker: Maker) -> tuple[Call, dict[str, Any]]:
    """A way to call an agent, and the config, by chance."""
    chance = random.Random(maker.seed + 1_000_000)
    forms = ["invoke", "stream", "stream", "batch"]
    form = chance.choice(["ainvoke", "astream", "astream", "abatch", "events"] if maker.is_async else forms)
    options: dict[str, Any] = {}
    modes: Any = None
    if "stream" in form:
        several = [*dict.fromkeys(["values", *chance.sample(MODES, chance.randint(1, 3))])]
        usable = [mode for mode in MODES if maker.has_saver or mode != "checkpoints"]
        modes = chance.choice([several, several, chance.choice(usable)])
        options |= {"subgraphs": True} if chance.random() < 0.4 else {}
    if maker.has_saver and "batch" not in form and chance.random() < 0.2:
        when, where = chance.choice(["interrupt_before", "interrupt_after"]), chance.choice(["tools", maker.model_node])
        options[when] = chance.choice([[where], [where], "*"])
    config: dict[str, Any] = {"recursion_limit": chance.choice([25, 25, 25, 25, 3, 4])}
    if chance.random() < 0.1:
        config["max_concurrency"] = chance.choice([2, 3])  # LangGraph: one streams, none works
    return Call(form, modes, options, chance.choice(["", "travel", "again"])), config


@pytest.mark.parametrize("seed", range(AGENTS))
def test_random_agent(seed: int) -> None:
    maker = Maker(seed)
    agent = maker.agent()
    call, config = some_call(maker)
    plain = [converse(maker, agent, call, config)]
    maker_of_fast = Maker(seed)
    fast = optimize(maker_of_fast.agent())
    for _ in range(1 + seed % 2):
        if calls := adapter.calls_of(fast):
            calls.wake()
            calls.reports.clear()
        outcome = converse(maker_of_fast, fast, call, config)
        for name in compared(plain[0]):
            same_as_some(name, outcome, plain, lambda: converse(maker, agent, call, config), tries=6)
        assert_worked(outcome, plain, [*calls.reports] if calls else [])


def compared(plain: Outcome) -> list[str]:
    """What may be compared: chance decides what runs beside a failure, and which of it is heard."""
    names = [f.name for f in fields(plain) if f.name not in ("asked", "ran")]
    return ["failed", "answers", "left"] if plain.failed else names


def assert_worked(outcome: Outcome, plain: list[Outcome], reports: list[Any]) -> None:
    """Engine and tools did all that they do for the original, and no more than what the reports call wasted."""
    for report in reports:
        assert report.fallbacks == ()
    if outcome.failed:
        return
    wasted = sum(report.wasted for report in reports)
    more: list[Counter[str]] = []
    for one in plain:
        more.append(outcome.asked - one.asked)
        if not one.asked - outcome.asked and more[-1].total() <= wasted and not one.ran - outcome.ran:
            break
    else:
        assert (outcome.asked, outcome.ran) == (plain[0].asked, plain[0].ran), wasted


# --- one agent, and what may go wrong --------------------------------------------------------------------------------


class Keeper:
    """An agent whose first reply makes `calls`, and whose second is final. Tools wait for `gate`."""

    def __init__(self, *calls: tuple[str, dict[str, Any]]) -> None:
        self.calls = calls
        self.engine = Writing(self.reply)
        self.chat = EngineChatModel(engine=self.engine, max_tokens=None, temperature=None)
        self.gate = threading.Event()
        self.began: list[str] = []
        self.ended: list[str] = []
        self.gate.set()

    def reply(self, prompt: str) -> str:
        if "\nTool: " in prompt:
            return f"done {digest(without_ids(prompt))[:8]}"
        calls = "\n".join(written({"name": name, "arguments": arguments}) for name, arguments in self.calls)
        return f"{calls}\n" + "so much for that " * 20

    def agent(self, **options: Any) -> Any:
        @tool
        @reads("kb")
        def look(query: str) -> str:
            """Look something up."""
            self.began.append(query)
            self.gate.wait(5)
            self.ended.append(query)
            return f"found {query}"

        @tool
        @reads("kb")
        async def alook(query: str) -> str:
            """Look something up."""
            self.began.append(query)
            while not self.gate.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            self.ended.append(query)
            return f"found {query}"

        return create_agent(self.chat, [look, alook], **options)


GIVEN = {"messages": [("user", "Who keeps hive 3?")]}


@pytest.mark.parametrize("name", ["look", "alook"])
def test_a_cancelled_call_leaves_nothing_behind(name: str) -> None:
    """The tool hangs while the model still writes."""
    keeper = Keeper((name, {"query": "a"}), (name, {"query": "b"}))
    fast = optimize(keeper.agent())
    keeper.gate.clear()

    async def cancel() -> None:
        call = asyncio.create_task(fast.ainvoke(GIVEN))
        while len(keeper.began) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        if name == "look":  # a thread cannot be stopped, as without us
            keeper.gate.set()

    left: list[str] = []
    asyncio.run(alone(cancel(), left))
    settle(keeper.engine)
    keeper.gate.set()
    time.sleep(0.02)
    assert not left
    assert sorted(keeper.began) == ["a", "b"]
    assert len(keeper.ended) == (2 if name == "look" else 0)
    assert told(asyncio.run(fast.ainvoke(GIVEN))) == told(asyncio.run(keeper.agent().ainvoke(GIVEN)))


@pytest.mark.parametrize("form", ["stream", "astream"])
def test_a_stream_that_is_closed_early_leaves_nothing_behind(form: str) -> None:
    name = "look" if form == "stream" else "alook"
    keeper = Keeper((name, {"query": "a"}), (name, {"query": "b"}))
    fast = optimize(keeper.agent())

    async def afirst() -> Any:
        chunks = fast.astream(GIVEN, stream_mode="messages")
        async with contextlib.aclosing(chunks):
            return await anext(chunks)

    left: list[str] = []
    threads = set(threading.enumerate())
    for _ in range(3):
        if form == "astream":
            asyncio.run(alone(afirst(), left))
        else:
            with contextlib.closing(fast.stream(GIVEN, stream_mode="messages")) as chunks:
                next(chunks)
        settle(keeper.engine)
    time.sleep(0.02)
    begun = len(keeper.began)
    time.sleep(0.02)
    assert len(keeper.began) == begun
    assert not left
    assert all(t.name.startswith(OURS) for t in set(threading.enumerate()) - threads)


def test_calls_at_once_do_not_mix() -> None:
    """The same calls of tools, for other questions: each conversation has its own."""
    keeper = Keeper(("look", {"query": "a"}), ("look", {"query": "a"}), ("look", {"query": "b"}))
    agent = keeper.agent()
    fast = optimize(agent)
    given = [{"messages": [("user", f"Who keeps hive {n}?")]} for n in range(20)]
    plain = [told(agent.invoke(one)) for one in given]
    keeper.began.clear()
    with ThreadPoolExecutor(20) as pool:
        assert [*map(told, pool.map(fast.invoke, given))] == plain
    assert len(keeper.began) == 3 * 20
    assert [*map(told, fast.batch(given))] == plain


def test_copies_of_an_optimized_agent() -> None:
    keeper = Keeper(("look", {"query": "a"}))
    fast = optimize(keeper.agent())
    plain = told(fast.invoke(GIVEN))
    for twin in (copy.copy(fast), fast.with_config(tags=["x"]), fast.copy()):
        assert told(twin.invoke(GIVEN)) == plain


def test_what_the_user_does_to_a_result_is_seen_by_nobody_else() -> None:
    keeper = Keeper(("look", {"query": "a"}), ("look", {"query": "a"}))
    fast = optimize(keeper.agent())
    first = fast.invoke(GIVEN)
    plain = told(first)
    first["messages"][2].content = "changed"
    assert told(fast.invoke(GIVEN)) == plain


@pytest.mark.parametrize("how", ["of the graph", "of the call"])
@pytest.mark.parametrize("when", [{"interrupt_before": ["tools"]}, {"interrupt_after": ["model"]}])
def test_nothing_starts_early_before_an_interrupt(how: str, when: dict[str, Any]) -> None:
    keeper = Keeper(("look", {"query": "a"}))
    of_graph = how == "of the graph"
    fast = optimize(keeper.agent(checkpointer=InMemorySaver(), **(when if of_graph else {})))
    config: Any = {"configurable": {"thread_id": next(thread_names)}}
    fast.invoke(GIVEN, config, **({} if of_graph else when))
    settle(keeper.engine)
    assert fast.get_state(config).next == ("tools",)
    assert not keeper.began
    fast.invoke(None, config)
    assert keeper.began == ["a"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}), (0.0, -0.0), (1, 1.0), (1, True), ([1], (1,)), ({1}, frozenset({1})),
        (Decimal("1.0"), Decimal("1.00")), (Filters(query="a"), Filters(query="a", secret="b")),
        (datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 1, 13, tzinfo=timezone(timedelta(hours=1)))),
    ],
)  # fmt: skip
def test_arguments_that_a_tool_can_tell_apart(one: Any, other: Any) -> None:
    assert tools._key((), {"x": [one]}) == tools._key((), {"x": [copy.deepcopy(one)], "run_manager": 1}) is not None
    assert tools._key((), {"x": [one]}) != tools._key((), {"x": [other]})


@pytest.mark.parametrize("name", ["look", "alook"])
def test_callbacks_of_the_tools_themselves_hear_each_call_once(name: str) -> None:
    keeper = Keeper((name, {"query": "a"}), (name, {"query": "b"}))

    def heard(wrap: Any) -> list[Any]:
        listener = ToolListener()
        agent = keeper.agent()
        for each in agent.nodes["tools"].bound.tools_by_name.values():
            each.callbacks = [listener]
        asyncio.run(wrap(agent).ainvoke(GIVEN))
        settle(keeper.engine)
        return sorted(told(run[:2]) for run in listener.runs.values())

    plain = heard(lambda agent: agent)
    assert len(plain) == 2
    assert heard(optimize) == plain


def test_what_follows_a_write_in_a_reply_reads_what_was_written() -> None:
    book: list[str] = []

    @tool
    @writes("kb")
    async def note(text: str) -> str:
        """Takes a note."""
        book.append(text)
        return "noted"

    @tool
    @reads("kb")
    async def recall() -> str:
        """All notes."""
        return str(book)

    keeper = Keeper(("note", {"text": "a"}), ("recall", {}))
    fast = optimize(create_agent(keeper.chat, [note, recall]))
    found = asyncio.run(fast.ainvoke(GIVEN))
    assert [message.content for message in found["messages"][2:4]] == ["noted", "['a']"]


@pytest.mark.parametrize("name", ["look", "alook"])
def test_a_call_starts_while_the_model_still_writes(name: str) -> None:
    """Or else the tests above could not fail."""
    keeper = Keeper((name, {"query": "a"}), (name, {"query": "b"}))
    keeper.engine.is_due = lambda prompt: len(keeper.began) == 2
    fast = optimize(keeper.agent())

    async def stream() -> None:
        async for _ in fast.astream(GIVEN, stream_mode="messages"):
            pass

    asyncio.run(stream())
    assert not keeper.engine.gave_up
    assert sorted(keeper.began) == ["a", "b"]
