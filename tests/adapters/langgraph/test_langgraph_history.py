"""The history of an optimized graph is that of the original: each checkpoint, what was pending at it, and its forks.

In durability "async", the default, a node that takes no time may change what is being saved. What a node does before
its model is asked races with the save of the checkpoint before it; what it does with the reply comes after that save,
also where the reply ran ahead, and with a saver that is slow to begin (`Tardy`).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.graph import END, START, StateGraph
from langgraph.pregel._loop import AsyncPregelLoop
from langgraph.types import Command

from teola_plugin import optimize, optimized, runtime
from teola_plugin.adapters.langgraph import adapter
from teola_plugin.adapters.langgraph.saves import _SAVES, Saves, _remembering_first
from teola_plugin.runtime.session.session import Session
from teola_plugin.seams import active
from tests.adapters.langgraph.test_langgraph_differential import _threads, settle, told
from tests.support.langchain_world import ask as prompt_of
from tests.support.langgraph_world import ChangedState, SteadyMaker, Tardy, World

GRAPHS = int(os.environ.get("TEOLA_TEST_HISTORIES", "80"))
ROUNDS = 8

GIVEN = {"question": "Who keeps hive 3?"}


# --- what is kept of a thread ----------------------------------------------------------------------------------------


def kept(graph: Any, thread: str) -> list[str]:
    """All checkpoints of a thread, also those of graphs inside, as far as they are the same in each run.

    With values, versions, who has seen which, what was pending, metadata, and the number of the parent.
    """
    by_graph: dict[str, list[Any]] = defaultdict(list)
    for saved in reversed([*graph.checkpointer.list({"configurable": {"thread_id": thread}})]):
        namespace = saved.config["configurable"]["checkpoint_ns"]
        by_graph["|".join(part.split(":")[0] for part in namespace.split("|"))].append(saved)
    return [told([name, *line]) for name, all_of in sorted(by_graph.items()) for line in _lines(all_of)]


def _lines(all_saved: list[Any]) -> Iterator[list[Any]]:
    numbers = {saved.checkpoint["id"]: number for number, saved in enumerate(all_saved)}
    for number, saved in enumerate(all_saved):
        checkpoint, parent = saved.checkpoint, saved.parent_config
        pending: dict[str, list[str]] = defaultdict(list)
        for task, key, value in saved.pending_writes:
            pending[task].append(told([key, value]))
        yield [
            number, parent and numbers.get(parent["configurable"]["checkpoint_id"]),
            {key: sorted(v) if isinstance(v, set) else v for key, v in checkpoint["channel_values"].items()},
            _versions(checkpoint["channel_versions"]),
            {node: _versions(seen) for node, seen in checkpoint["versions_seen"].items()},
            checkpoint["updated_channels"], sorted(pending.values()),
            {key: value for key, value in saved.metadata.items() if key != "thread_id"},
        ]  # fmt: skip


def _versions(versions: Any) -> dict[str, int]:
    """A version ends with random digits."""
    return {key: int(version.split(".")[0]) for key, version in versions.items()}


def shown(graph: Any, config: Any) -> list[str]:
    """The history as users see it."""
    return [
        told([
            s.values, s.next, s.metadata, s.interrupts,
            [(t.name, t.path, t.error, t.interrupts, t.result) for t in s.tasks],
        ])
        for s in graph.get_state_history(config)
    ]  # fmt: skip


def ask(graph: Any, form: str, given: Any, config: Any, durability: str = "async") -> str:
    """What a call comes to."""
    try:
        match form:
            case "ainvoke":
                return told(asyncio.run(graph.ainvoke(given, config, durability=durability)))
            case "stream":
                chunks = graph.stream(given, config, durability=durability, stream_mode=["values", "updates"])
                return told([*chunks][-1])
            case _:
                return told(graph.invoke(given, config, durability=durability))
    except Exception as e:  # compared, whatever it is
        return told(e)


def thread() -> dict[str, Any]:
    return {"configurable": {"thread_id": next(_threads)}, "recursion_limit": 15}


def conversation(maker: SteadyMaker, graph: Any, form: str, durability: str) -> list[Any]:
    """What is said and kept: a question, its interrupts, forks of each checkpoint, also edited, one more question."""
    config = thread()
    number = config["configurable"]["thread_id"]
    said: list[Any] = [ask(graph, form, {**GIVEN, "sheet": {}}, config, durability)]
    for _ in range(4):
        try:
            state = graph.get_state(config)
        except InvalidUpdateError as e:  # what failed cannot go on
            said.append(told(e))
            return said
        if not state.next:
            break
        resumed = Command(resume="yes") if any(task.interrupts for task in state.tasks) else None
        said.append(ask(graph, form, resumed, config, durability))
    past = [*graph.get_state_history(config)]
    said += [shown(graph, config), kept(graph, number)]
    said += [ask(graph, form, None, state.config, durability) for state in past]
    said.append(edit(graph, form, past[len(past) // 2].config, durability))
    said.append(ask(graph, form, GIVEN, config, durability))
    settle(maker.world.engine)
    return [*said, shown(graph, config), kept(graph, number)]


def edit(graph: Any, form: str, config: Any, durability: str) -> str:
    """What comes of a checkpoint that the user has changed."""
    try:
        changed = graph.update_state(config, {"k0": "changed", "log": ["changed"]}, as_node="n0")
    except Exception as e:  # compared, whatever it is
        return told(e)
    return ask(graph, form, None, changed, durability)


# --- a join ----------------------------------------------------------------------------------------------------------


class Joined:
    """b -> c; a and c -> d. What c asks is there before c runs, as a takes its time. Models take longer than saves."""

    def __init__(self) -> None:
        self.world = World(least_s=0.02)
        self.chat = self.world.chat

    def node(self, key: str) -> Any:
        chat = self.chat
        return lambda state: {key: chat.invoke(f"{key} {state['question']}").content}

    def graph(self, saver: Any, nodes: Any = None, state: Any = ChangedState) -> Any:
        builder: Any = StateGraph(state)
        for name, key in {"a": "k0", "b": "k1", "c": "k2", "d": "k3"}.items():
            builder.add_node(name, (nodes or {}).get(name) or self.node(key))
        builder.add_edge(START, "a")
        builder.add_edge(START, "b")
        builder.add_edge("b", "c")
        builder.add_edge(["a", "c"], "d")
        builder.add_edge("d", END)
        return builder.compile(checkpointer=saver())


def ahead(fast: Any, world: World, holds: str, awaits: str) -> Iterator[None]:
    """Two rounds in which something runs ahead: the reply to what is held comes once what is awaited is asked."""
    engine = world.engine
    engine.holds, engine.awaits = holds, awaits
    for _ in range(2):
        optimized(fast).wake()
        engine.began.clear()
        yield
        report = optimized(fast).reports[-1]
        assert not engine.gave_up
        assert report.hits or report.shared


NEXT = [(), ("d",), ("c",), ("a", "b"), ("__start__",)]


@pytest.mark.parametrize("form", ["invoke", "ainvoke", "stream"])
@pytest.mark.parametrize("saver", [InMemorySaver, Tardy])
@pytest.mark.parametrize("durability", ["async", "sync"])
def test_a_join_waits_in_each_checkpoint_for_who_has_not_come(form: str, saver: Any, durability: str) -> None:
    fast = optimize(Joined().graph(saver))
    for _ in range(ROUNDS):
        optimized(fast).wake()
        config = thread()
        ask(fast, form, GIVEN, config, durability)
        past = [*fast.get_state_history(config)]
        assert [state.next for state in past] == NEXT
        assert all("k3" in ask(fast, form, None, state.config, durability) for state in past)
        assert fast.update_state(past[2].config, {"k2": "edited"}, as_node="c")
        assert fast.get_state(config).next == ("d",)


class Observing(InMemorySaver):
    """Ends each save only once a node has been called, or after a while."""

    def __init__(self) -> None:
        super().__init__()
        self.called = threading.Event()
        self.waited: list[bool] = []

    def put(self, *args: Any, **kwargs: Any) -> Any:
        self.waited.append(self.called.wait(5))
        return super().put(*args, **kwargs)


def test_no_save_is_waited_for_where_nothing_runs_ahead() -> None:
    saver, joined = Observing(), Joined()
    nodes = dict.fromkeys("abc", lambda state: saver.called.set() or {"log": ["one"]})
    optimize(joined.graph(lambda: saver, nodes), speculate="off").invoke(GIVEN, thread())
    assert saver.waited[0]


@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
@pytest.mark.parametrize("durability", ["async", "sync"])
def test_what_a_node_changes_in_place_is_not_in_what_was_saved_before(form: str, durability: str) -> None:
    joined = Joined()
    prompt = RunnableLambda(lambda state: {"about": state["question"]}) | prompt_of("c {about}")

    def change(state: Any) -> Any:
        state["sheet"]["c"] = state["facts"][0] = "changed"
        return {"k2": state["text"]}

    nodes = {
        "b": lambda state: {"facts": ["kept"], "k1": joined.chat.invoke("b").content},
        "c": RunnablePassthrough.assign(text=prompt | joined.chat | StrOutputParser()) | change,
    }
    fast = optimize(joined.graph(Tardy, nodes))
    for _ in ahead(fast, joined.world, holds="b", awaits="c "):
        config = thread()
        ask(fast, form, {**GIVEN, "sheet": {"c": "kept"}}, config, durability)
        past = {state.next: state for state in fast.get_state_history(config)}
        assert [past[step].values["sheet"] for step in (("a", "b"), ("c",))] == [{"c": "kept"}] * 2
        assert past["c",].values["facts"] == ["kept"]
        assert {t.name: t.result for t in past["a", "b"].tasks}["b"]["facts"] == ["kept"]


def passed_on(world: World, saver: InMemorySaver, at: str, form: str) -> Any:
    """A graph whose nodes pass on a dict that each changes `at` a time: between two requests, or after them."""
    chat = world.chat

    def node(name: str) -> Any:
        def change(state: Any) -> Any:
            sheet = state["sheet"]
            text = chat.invoke(f"{name} {state['question']}").content
            if at == "between":
                sheet[name] = "was here"
            text += chat.invoke(f"{name} again {state['question']}").content
            if at == "after":
                sheet[name] = "was here"
            return {"k0": text, "sheet": sheet}

        async def achange(state: Any) -> Any:
            sheet = state["sheet"]
            text = (await chat.ainvoke(f"{name} {state['question']}")).content
            if at == "between":
                sheet[name] = "was here"
            text += (await chat.ainvoke(f"{name} again {state['question']}")).content
            if at == "after":
                sheet[name] = "was here"
            return {"k0": text, "sheet": sheet}

        return achange if form == "ainvoke" else change

    builder: Any = StateGraph(ChangedState)
    builder.add_sequence([(name, node(name)) for name in "abc"])
    builder.add_edge(START, "a")
    return builder.compile(checkpointer=saver)


def is_saved(saver: InMemorySaver, step: int) -> bool:
    """Whether the only thread has the checkpoints before the step, and the writes of `sheet` that they were made of."""
    checkpoints = [each for spaces in [*saver.storage.values()] for each in [*spaces.get("", ())]]
    writes = [write for each in [*saver.writes.values()] for write in [*each.values()]]
    return len(checkpoints) == step + 1 and [write[1] for write in writes].count("sheet") == step


@pytest.mark.parametrize("form", ["invoke", "ainvoke", "stream"])
@pytest.mark.parametrize(("make", "at"), [(InMemorySaver, "between"), (InMemorySaver, "after"), (Tardy, "after")])
def test_what_nodes_change_in_place_is_saved_as_in_the_original(form: str, make: type[InMemorySaver], at: str) -> None:
    """As in an original whose models take longer than its saves."""

    def outcome(graph: Any) -> list[Any]:
        config = thread()
        return [ask(graph, form, {**GIVEN, "sheet": {}}, config), shown(graph, config), graph.get_state(config).values]

    world, saver = World(), make()
    world.engine.is_due = lambda prompt: is_saved(saver, "abc".index(prompt.split()[1]) + 1)
    expected = outcome(passed_on(world, saver, at, form))
    assert not world.engine.gave_up
    world = World(least_s=0.2)
    fast = optimize(passed_on(world, make(), at, form))
    for _ in ahead(fast, world, holds="a Who", awaits="b Who"):
        assert outcome(fast) == expected


def test_a_checkpointer_that_asks_a_model_does_not_wait_for_itself() -> None:
    joined = Joined()

    class Titling(InMemorySaver):
        def put(self, *args: Any) -> Any:
            joined.chat.invoke("title")
            return super().put(*args)

    node = {name: lambda state: {"log": [joined.chat.invoke("title").content]} for name in "bc"}
    fast = optimize(joined.graph(Titling, node))
    for _ in range(3):
        optimized(fast).wake()
        assert "k3" in ask(fast, "invoke", GIVEN, thread())


def test_a_coroutine_that_blocks_its_loop_does_not_wait_for_tasks_of_it() -> None:
    joined = Joined()

    async def blocking(state: Any) -> Any:
        return {"k2": joined.chat.invoke(f"c {state['question']}").content}

    fast = optimize(joined.graph(Tardy, {"c": blocking}))
    for _ in ahead(fast, joined.world, holds="k1 ", awaits="c "):
        assert "k3" in ask(fast, "ainvoke", GIVEN, thread())


def test_a_graph_inside_a_coroutine_that_blocks_its_loop_goes_on_without_the_saves_of_that_loop() -> None:
    joined = Joined()
    inner = joined.graph(lambda: None)

    async def blocking(state: Any) -> Any:
        return {"k2": inner.invoke({"question": state["question"]})["k3"]}

    fast = optimize(joined.graph(Tardy, {"c": blocking}))
    for _ in ahead(fast, joined.world, holds="k1 ", awaits="k2 "):
        assert "k3" in ask(fast, "ainvoke", GIVEN, thread())


def test_a_save_that_fails_is_an_error_where_it_was_one() -> None:
    class Full(InMemorySaver):
        def put(self, *args: Any) -> Any:
            raise OSError("the disk is full")

    graph = Joined().graph(Full)
    assert ask(optimize(graph), "invoke", GIVEN, thread()) == ask(graph, "invoke", GIVEN, thread()) != ""


# --- reducers that work in place -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
def test_a_reducer_that_works_in_place_is_only_given_copies_ahead(form: str) -> None:
    joined = Joined()
    chat = joined.chat
    nodes = {
        "b": lambda state: {"facts": ["b"], "k1": chat.invoke(f"b {state['question']}").content},
        "c": lambda state: {"facts": ["c"], "k2": chat.invoke(f"c {state['facts']}").content},
        "d": lambda state: {"facts": ["d"], "k3": chat.invoke(f"d {state['facts']}").content},
    }

    def outcome(graph: Any) -> list[Any]:
        config = thread()
        return [ask(graph, form, {**GIVEN, "facts": ["first"]}, config), shown(graph, config)]

    expected = outcome(joined.graph(InMemorySaver, nodes))
    fast = optimize(joined.graph(InMemorySaver, nodes))
    for _ in ahead(fast, joined.world, holds="b ", awaits="c "):
        assert outcome(fast) == expected
        assert not optimized(fast).reports[-1].wasted


# --- graphs made up at random ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_random_history(seed: int) -> None:
    durability = "exit" if seed % 4 == 3 else "sync"  # in "async" a node that takes no time changes what is being saved
    maker, maker_of_fast = SteadyMaker(seed), SteadyMaker(seed)
    form = "ainvoke" if maker.is_async else ("invoke", "stream")[seed % 2]
    expected = conversation(maker, maker.graph(), form, durability)
    maker_of_fast.saver = Tardy if seed % 3 else InMemorySaver
    fast = optimize(maker_of_fast.graph())
    if adapter.calls_of(fast) is None:
        return  # it is the original: nothing of it can run ahead
    for _ in range(2):
        optimized(fast).wake()
        found = conversation(maker_of_fast, fast, form, durability)
        for one, other in zip(expected, found, strict=True):
            assert other == one


def test_saves_are_told_from_other_work() -> None:
    class Loop:
        checkpointer, cache = InMemorySaver(), InMemoryCache()

        def submit(self, work: Any) -> Future[Any]:
            return Future()

        def save(self) -> None: ...

    loop = Loop()
    saves = Saves(loop)
    works = (loop.save, loop.checkpointer.put_writes, loop.cache.set, print)
    futures = [saves.submit(work) for work in works]
    assert not saves.due(blocks_loop=False)
    saves.fall_due()
    assert len(saves.due(blocks_loop=False)) == 3
    for future in futures:
        future.set_result(None)
    assert not saves.due(blocks_loop=False)


def test_no_save_begins_while_it_is_held_back() -> None:
    saved = threading.Event()

    class Loop:
        checkpointer, cache = InMemorySaver(), None

        def __init__(self) -> None:
            self.submit = ThreadPoolExecutor(1).submit

        def save(self) -> None:
            saved.set()

    loop = Loop()
    saves = Saves(loop)
    with saves.held_back():
        over = saves.submit(loop.save)
        assert not saved.wait(0.02)
    over.result(10)
    assert saved.is_set()


def test_who_saves_waits_for_no_save() -> None:
    """A checkpointer that asks a model would wait for itself."""
    due: list[int] = []

    class Loop:
        checkpointer, cache = InMemorySaver(), None

        def __init__(self) -> None:
            self.submit = ThreadPoolExecutor(1).submit

        def save(self) -> None:
            due.append(len(saves.due(blocks_loop=False)))

    loop = Loop()
    saves = Saves(loop)
    with saves.held_back():
        over = saves.submit(loop.save)
        saves.fall_due()
        assert len(saves.due(blocks_loop=False)) == 1
    over.result(10)
    assert due == [0]


async def test_who_blocks_a_loop_waits_for_no_task_of_it() -> None:
    class Loop(AsyncPregelLoop):
        def __init__(self) -> None:
            self.checkpointer, self.cache = InMemorySaver(), None
            self.submit = lambda work: Future()  # type: ignore[assignment]

        async def save(self) -> None: ...

    async def due_in_another_loop() -> int:
        return len(saves.due(blocks_loop=True))

    loop = Loop()
    saves = Saves(loop)
    saves.submit(loop.save)
    saves.fall_due()
    assert len(saves.due(blocks_loop=False)) == 1
    assert len(saves.due(blocks_loop=True)) == 0
    assert await asyncio.to_thread(lambda: asyncio.run(due_in_another_loop())) == 1


@pytest.mark.parametrize("limit", [None, 1])
def test_saves_are_kept_in_mind_only_where_something_may_run_ahead(limit: int | None) -> None:
    loop: Any = SimpleNamespace(
        checkpointer=InMemorySaver(), cache=None, config={"max_concurrency": limit}, submit=lambda work: None
    )
    with active(Session(runtime.host)):
        _remembering_first(lambda loop: None)(loop)
    assert hasattr(loop, _SAVES) == (limit is None)
