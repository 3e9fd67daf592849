"""Which loops over a stream take the whole stream, so that requests behind the next item are certain."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from pathlib import Path
from pprint import pprint
from types import SimpleNamespace
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from teola_plugin import optimize, optimized
from teola_plugin.adapters.langchain.stream_readers import LONGEST_TEXT, Taker, taker_at
from tests.adapters.langchain.test_langchain_functions import Slow, Waiting
from tests.adapters.langgraph.test_langgraph_requests import built

GIVEN = {"q": "x"}
LAST: Any = None
found: list[Any] = []


class Graph:
    """A graph of one node, whose stream notes what is said of its reader."""

    stream_mode = "updates"

    def stream(self, given: Any, **options: Any) -> Iterator[Any]:
        found.append(taker_at(sys._getframe(1), self, options))
        yield {"node": {"answer": given}}

    async def astream(self, given: Any, **options: Any) -> AsyncIterator[Any]:
        found.append(taker_at(sys._getframe(1), self, options))
        yield {"node": {"answer": given}}


def prints_nodes(app: Any) -> None:
    for output in app.stream(GIVEN):
        for key, value in output.items():
            pprint(f"Node '{key}':")
            if key != "__end__" and "node" in output:
                print(key, value, sep=": ")
        print("---")


def keeps_items(app: Any) -> None:
    kept: list[Any] = []
    for output in app.stream(GIVEN, stream_mode=["values", "updates"]):
        """All of them."""
        kept.append(output)
        last = output
        print(f"{last}", flush=True)


async def awaits_items(app: Any) -> None:
    async for output in app.astream(GIVEN, stream_mode="updates"):
        for value in output.values():
            print(value)
        for key in output.keys():  # noqa: SIM118
            print(key)


def takes_nothing_from_items(app: Any) -> None:
    holder = type("Holder", (), {"app": app})()
    for _ in holder.app.stream(GIVEN):
        pass


def stores_a_global(app: Any) -> None:
    global LAST
    for output in app.stream(GIVEN):
        for LAST, _ in output.items():  # noqa: B007
            continue


WHOLE = [prints_nodes, keeps_items, awaits_items, takes_nothing_from_items, stores_a_global]


def breaks(app: Any) -> None:
    for output in app.stream(GIVEN):
        print(output)
        break


def returns(app: Any) -> Any:
    for output in app.stream(GIVEN):
        return output
    return None


def yields(app: Any) -> Iterator[Any]:
    for output in app.stream(GIVEN):
        yield output, 1


def subscripts(app: Any) -> None:
    for output in app.stream(GIVEN):
        print(output["node"])


def calls_its_own(app: Any) -> None:
    for output in app.stream(GIVEN):
        str(output)


def prints_elsewhere(app: Any) -> None:
    for output in app.stream(GIVEN):
        print(output, file=sys.stderr)


def prints_by_another(app: Any) -> None:
    print = str
    for output in app.stream(GIVEN):
        print(output)


def names_what_is_not_set(app: Any) -> None:
    for output in app.stream(GIVEN):
        if "other" in output:
            late = output
        if "node" not in output:
            print(late)
    late = 1


def is_caught(app: Any) -> Any:
    for output in app.stream(GIVEN):
        last = output
    return lambda: last


def takes_part(app: Any) -> None:
    for _, output in zip(range(1), app.stream(GIVEN), strict=False):
        print(output)


def takes_one_first(app: Any) -> None:
    chunks = app.stream(GIVEN)
    next(chunks)
    for output in chunks:
        print(output)


def takes_updates_for_tuples(app: Any) -> None:
    for output in app.stream(GIVEN, subgraphs=True):
        for key in output.keys():  # noqa: SIM118
            print(key)


def takes_values_for_updates(app: Any) -> None:
    for output in app.stream(GIVEN, stream_mode="values"):
        for key in output.keys():  # noqa: SIM118
            print(key)


def appends_to_another(app: Any) -> None:
    kept = type("Kept", (list,), {})()
    for output in app.stream(GIVEN):
        kept.append(output)


def formats(app: Any) -> None:
    for output in app.stream(GIVEN):
        print(f"{output:>10}")


def waits_between(app: Any) -> Any:
    async def run() -> None:
        async for _ in app.astream(GIVEN):
            await asyncio.sleep(0)

    return run()


def takes_anothers(app: Any) -> None:
    part = type("Part", (), {"stream": lambda self, given: islice(app.stream(given), 1)})()
    for output in part.stream(GIVEN):
        print(output)


def prints_with_an_unknown_option(app: Any) -> None:
    for output in app.stream(GIVEN):
        print(output, colour=None)  # type: ignore[call-overload]


class Loud:
    """Shown by code of the program, which also runs when the object ends."""

    def __repr__(self) -> str:
        return "loud"

    def __del__(self) -> None:
        found.extend(())


def prints_an_object(app: Any) -> None:
    loud = Loud()
    for _ in app.stream(GIVEN):
        print(loud)


def formats_an_object(app: Any) -> None:
    loud = [Loud()]
    for _ in app.stream(GIVEN):
        text = f"{loud}"
        print(text)


def prints_an_object_by_another_name(app: Any) -> None:
    loud = [Loud()]
    for _ in app.stream(GIVEN):
        shown = loud
        print(shown)


def prints_an_object_at_first(app: Any) -> None:
    shown = [Loud()]
    for output in app.stream(GIVEN):
        print(shown)
        shown = output


def ends_an_object(app: Any) -> None:
    loud: Any = Loud()
    for output in app.stream(GIVEN):
        loud = output
    print(loud)


PARTLY: list[Callable[[Any], Any]] = [
    breaks, returns, yields, subscripts, calls_its_own, prints_elsewhere, prints_by_another, names_what_is_not_set,
    is_caught, takes_part, takes_one_first, takes_updates_for_tuples, takes_values_for_updates, appends_to_another,
    formats, waits_between, takes_anothers, prints_with_an_unknown_option, prints_an_object, formats_an_object,
    prints_an_object_by_another_name, prints_an_object_at_first, ends_an_object,
]  # fmt: skip


def run(reader: Callable[[Any], Any], app: Any) -> None:
    made = reader(app)
    if inspect.iscoroutine(made):
        asyncio.run(made)
    elif hasattr(made, "__next__"):
        list(made)


@pytest.mark.parametrize("reader", [*WHOLE, *PARTLY])
@pytest.mark.filterwarnings("ignore:coroutine")
def test_which_loops_take_the_whole_stream(reader: Callable[[Any], Any]) -> None:
    found.clear()
    try:
        run(reader, Graph())
    except (AttributeError, TypeError):
        assert reader in PARTLY
    assert [each is not None for each in found] == [reader in WHOLE]


def test_what_a_loop_changes_is_known() -> None:
    found.clear()
    stores_a_global(Graph())
    assert found == [Taker(frozenset({(id(globals()), "LAST")}), shows=False)]


@pytest.mark.parametrize("reader", [prints_nodes, keeps_items])
def test_a_loop_shows_values_of_the_stream(reader: Callable[[Any], Any]) -> None:
    found.clear()
    reader(Graph())
    assert [each.shows for each in found] == [True]


def test_a_loop_of_a_notebook_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "app = 1\nfor output in graph.stream(1):\n    print(output)\n"
    monkeypatch.setattr("linecache.getlines", lambda *_: text.splitlines(keepends=True))
    found.clear()
    for statement in ast.parse(text).body:
        exec(compile(ast.Module([statement], []), "<cell>", "exec"), {"graph": Graph()})
    exec(compile(text.replace("print(output)", "print(output); break"), "<cell>", "exec"), {"graph": Graph()})
    assert [each is not None for each in found] == [True, False]


@pytest.mark.parametrize("reader", [prints_nodes, awaits_items])
def test_behind_a_stream_that_is_taken_whole_requests_are_certain(reader: Callable[[Any], Any]) -> None:
    model = Waiting()
    nodes: Any = {
        "a": lambda s: {"a": model.invoke(f"first {s['q']}").content},
        "b": lambda s: {"b": model.invoke(f"second {s['q']}").content},
    }
    fast = optimize(built(nodes, (START, "a"), ("a", "b")).compile())
    run(reader, fast)
    assert model._met == [True]


class Budget:
    """May be shown a number of times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __repr__(self) -> str:
        self.times -= 1
        if self.times < 0:
            raise RuntimeError("over budget")
        return "budget"


ended: list[Any] = []


class Ending:
    def __del__(self) -> None:
        ended.append(1)


def appends_to_the_state(app: Any) -> None:
    kept: list[Any] = []
    for output in app.stream({**GIVEN, "kept": kept}):
        kept.append(f"{output}")  # noqa: PERF401


def takes_all(app: Any) -> None:
    for _ in app.stream({**GIVEN, "kept": Ending()}):
        pass


def prints_values(app: Any) -> None:
    for output in app.stream({**GIVEN, "kept": Budget(1)}, stream_mode="values"):
        print(output)


LOOPS: dict[str, tuple[Callable[[Any], Any], Callable[[], dict[str, Any]]]] = {
    "a node's value is shown by the program": (prints_nodes, lambda: {"a": Budget(0)}),
    "a value given is shown by the program": (prints_values, lambda: {"a": 1}),
    "a list of the state is changed": (appends_to_the_state, lambda: {"a": 1}),
    "an object of the state ends": (takes_all, lambda: {"kept": None}),
}


@pytest.mark.parametrize("is_off", [False, True], ids=["at rest", "switched off"])
def test_a_call_where_nothing_runs_ahead_looks_at_no_source(is_off: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = built({"a": lambda state: {"a": Slow().invoke("first").content}}, (START, "a")).compile()
    fast = optimize(plain)
    if is_off:
        monkeypatch.setenv("TEOLA_STANCE", "original")
    else:
        optimized(fast)._worth = SimpleNamespace(is_worth=lambda: False, judge=lambda *report: None)  # type: ignore[assignment]
    monkeypatch.setattr("teola_plugin.adapters.langchain.twin.taker_at", lambda *given: pytest.fail("looked at"))
    items = []
    for item in fast.stream(GIVEN):
        items.append(item)  # noqa: PERF402
    assert items == list(plain.stream(GIVEN))
    assert fast.invoke(GIVEN) == plain.invoke(GIVEN)


@pytest.mark.parametrize("name", LOOPS)
def test_what_a_loop_may_stop_or_change_is_not_certain(name: str) -> None:
    reader, made = LOOPS[name]
    model = Slow()

    class State(TypedDict, total=False):
        q: str
        kept: Any
        a: Any
        b: Any

    def first(state: State) -> State:
        model.invoke(f"first {state['q']}")
        return State(**made())  # type: ignore[typeddict-item]

    def second(state: State) -> State:
        kept = state.get("kept")
        return {"b": model.invoke(f"second {len(kept) if type(kept) is list else len(ended)}").content}

    builder = StateGraph(State).add_node("first", first).add_node("second", second)
    graph = builder.add_edge(START, "first").add_edge("first", "second").compile()
    fast: Any = optimize(graph)
    asked: list[list[str]] = []
    for app in (graph, fast, graph, fast):
        model._calls.clear()
        ended.clear()
        with contextlib.suppress(RuntimeError):
            run(reader, app)
        asked.append([said for _, said in model._calls])
    assert asked[1:] == asked[:1] * 3
    assert optimized(fast).reports[-1].hits == 0


def test_a_loop_in_an_optimized_function_takes_the_whole_stream() -> None:
    model = Waiting()
    nodes: Any = {
        "a": lambda s: {"a": model.invoke(f"first {s['q']}").content},
        "b": lambda s: {"b": model.invoke(f"second {s['q']}").content},
    }
    app = optimize(built(nodes, (START, "a"), ("a", "b")).compile())

    def answer(question: str) -> None:
        for output in app.stream({"q": question}):
            print(output)

    optimize(answer)("x")
    assert model._met == [True]


def test_no_long_file_is_compiled_while_a_stream_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    found.clear()
    for length in (0, LONGEST_TEXT):
        text = "for output in graph.stream(1):\n    print(output)\n" + "\n" * length
        monkeypatch.setattr("linecache.getlines", lambda *_, text=text: [text])
        exec(compile(text, "<script>", "exec"), {"graph": Graph()})
    assert [each is not None for each in found] == [True, False]


SCRIPT = """
name = "before"
def a(state):
    return {"a": model.invoke("first").content}
def b(state):
    return {"b": model.invoke(f"second {name}").content}
app = made({"a": a, "b": b})
for output in app.stream({"q": "x"}):
    for name, _ in output.items():
        print(name)
"""


def test_what_the_loop_of_a_script_stores_is_not_known(tmp_path: Path) -> None:
    model = Slow()

    def asked(made: Callable[[Any], Any]) -> list[str]:
        model._calls.clear()
        path = tmp_path / "script.py"
        path.write_text(SCRIPT)
        exec(compile(SCRIPT, str(path), "exec"), {"model": model, "made": made})
        return [said for _, said in model._calls]

    def made(nodes: Any) -> Any:
        return built(nodes, (START, "a"), ("a", "b")).compile()

    assert asked(made) == asked(lambda nodes: optimize(made(nodes))) == ["first", "second a"]
