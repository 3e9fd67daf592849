"""Functions of a chain: read, told by the framework's own run where they cannot be read, and in whose order."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time
import types
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatResult
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.tools import Tool
from pydantic import PrivateAttr

from teola_plugin import explain, optimize, optimized, pure, writes
from teola_plugin.adapters.langchain import adapter
from teola_plugin.adapters.reader.reach import Reach, reach_of
from tests.adapters.langchain.test_langchain_foreign import Hosted
from tests.support.langchain_world import ask

assign = RunnablePassthrough.assign
SEEN: list[str] = []


@pure
class Waiting(Hosted):
    """Answers what begins with `first` only once something else has been asked, or after a while."""

    _is_asked: threading.Event = PrivateAttr(default_factory=threading.Event)
    _met: list[bool] = PrivateAttr(default_factory=list)

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kw: Any
    ) -> ChatResult:
        if str(messages[0].content).startswith("first"):
            self._met.append(self._is_asked.wait(5))
        else:
            self._is_asked.set()
        return super()._generate(messages, stop, run_manager, **kw)


@pure
class Slow(Hosted):
    """Takes its time."""

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        time.sleep(0.05)
        return super()._generate(*args, **kwargs)


def opens(x: dict[str, str]) -> str:
    with open(os.devnull) as file:
        return x["q"] + file.read()


def raises(x: dict[str, str]) -> str:
    raise ValueError(x["q"])


def two(model: Any, function: Any) -> Any:
    answer = model | StrOutputParser()
    return assign(f=function) | assign(a=ask("first {f}") | answer) | assign(b=ask("second {f} {q}") | answer)


def loops(x: dict[str, str]) -> str:
    words = [*x["q"]]
    words.append("?")
    return " ".join(words)


@pytest.mark.parametrize("function", [opens, loops])
def test_what_stands_behind_a_function_goes_on_from_its_value(function: Any) -> None:
    model = Waiting()
    given = {"q": "why"}
    assert optimize(two(model, function)).invoke(given) == two(Hosted(), function).invoke(given)
    assert model._met == [True]  # the second was asked ahead, whether the function was read or told
    assert len(model._calls) == 2


def test_nothing_is_asked_behind_a_function_that_raises() -> None:
    model = Waiting()
    with pytest.raises(ValueError, match="why"):
        optimize(two(model, raises)).invoke({"q": "why"})
    assert model._calls == []


def test_the_time_to_read_a_function_of_a_chain_is_reported() -> None:
    model = Slow()

    def asks(x: dict[str, str]) -> str:
        return str(model.invoke(x["q"]).content)

    fast = optimize(two(model, asks))
    fast.invoke({"q": "why"})
    assert optimized(fast).reports[-1].reading_s > 0


def test_a_coroutine_that_nobody_awaits_asks_for_nothing() -> None:
    model = Slow()

    async def asks(x: Any) -> Any:
        return (await model.ainvoke(f"never {x}")).content

    def drop(x: Any) -> Any:
        x["coroutine"].close()
        return x["a"]

    coroutine = RunnableLambda(lambda x: asks(x))
    chain = RunnableParallel(a=lambda x: model.invoke(x).content, coroutine=coroutine) | drop
    fast = optimize(chain)
    for _ in range(2):
        assert asyncio.run(fast.ainvoke("why")) == fast.invoke("why")
    assert {said for _, said in model._calls} == {"why"}


def test_a_coroutine_that_a_tool_returns_asks_for_nothing() -> None:
    model = Slow()

    async def asks(x: Any) -> Any:
        return (await model.ainvoke(f"never {x}")).content

    tool = Tool("asks", lambda x: asks(x), "Asks.")

    async def function(x: Any) -> Any:
        (await tool.ainvoke(x)).close()
        return (await model.ainvoke("why")).content

    fast = optimize(RunnableLambda(function))
    for _ in range(2):
        asyncio.run(fast.ainvoke("x"))
    assert {said for _, said in model._calls} == {"why"}


def test_no_event_loop_begins_where_one_is_running() -> None:
    model = Slow()

    async def asks(x: Any) -> Any:
        return (await model.ainvoke(x)).content

    def begins_a_loop(x: Any) -> Any:
        coroutine = asks(f"never {x}")
        try:
            return asyncio.run(coroutine)
        except RuntimeError:
            coroutine.close()
            return "running"

    async def function(x: Any) -> Any:
        return [await asks(x), begins_a_loop(x)]

    async def called_in_a_loop(pipeline: Any) -> Any:
        return pipeline.invoke("why")

    for _ in range(2):
        assert asyncio.run(optimize(RunnableLambda(function)).ainvoke("why"))[1] == "running"
        chain = RunnableLambda(lambda x: model.invoke(x).content and x) | begins_a_loop
        assert asyncio.run(called_in_a_loop(optimize(chain))) == "running"
    assert {said for _, said in model._calls} == {"why"}


def test_what_a_table_holds_under_a_key_is_not_taken_for_the_key() -> None:
    table, model = {"why": "because"}, Waiting()
    optimize(two(model, lambda x: table[x["q"]])).invoke({"q": "why"})
    assert sorted(text for _, text in model._calls) == ["first because", "second because why"]


def test_the_same_function_in_two_places_is_told_of_neither() -> None:
    both = RunnableLambda(lambda text: opens({"q": text}))
    model = Waiting()
    answer = model | StrOutputParser()
    late = ask("first {q}") | answer | both | {"x": RunnablePassthrough()} | ask("A {x}") | answer
    chain = RunnableParallel(
        late=late, soon=(lambda x: x["q"] + "!") | both | {"x": RunnablePassthrough()} | ask("B {x}") | answer
    )
    optimize(chain).invoke({"q": "x"})
    assert [text for _, text in model._calls if text[0] == "B"] == ["B x!"]
    assert len(model._calls) == 3  # the value of the one is not taken for that of the other


@writes("file")
def saves(x: dict[str, str]) -> dict[str, str]:
    return x


def generates(x: str) -> Any:
    yield x


def test_what_is_left_to_the_framework_is_told() -> None:
    def why(function: Any) -> str:
        return " ".join(explain(optimize(function | ask("A {q}") | Hosted())).split())

    assert "generates: it is a generator function" in why(RunnableLambda(generates))
    assert "it stands behind something with effects" in why(RunnableLambda(saves) | RunnableLambda(stored))
    assert "it stands behind" not in why(RunnableLambda(stored) | RunnableLambda(stored))


@pure
def routes(x: dict[str, str]) -> Any:
    return RunnableLambda(lambda x: {"q": "routed " + x["q"]})


def test_a_runnable_that_a_declared_function_returns_is_run_and_is_no_value() -> None:
    model, original = Waiting(), Waiting()
    steps = [RunnableLambda(routes) | RunnablePassthrough() | ask("A {q}") | each for each in (model, original)]
    assert optimize(steps[0]).invoke({"q": "x"}).content == steps[1].invoke({"q": "x"}).content
    assert model._calls == original._calls
    chain = RunnableLambda(routes) | {"x": RunnablePassthrough()} | ask("A {x}") | model
    with pytest.raises(LookupError, match="runnable"):
        adapter.trace(chain).functions["routes"].call({"q": "x"})


def remembers(x: str) -> None:
    SEEN.append(x)


def imports(x: str) -> str:
    from tests.support import world

    return world.digest(x)


def stored(x: dict[str, str]) -> dict[str, str]:
    x["more"] = "y"
    return x


def own(x: dict[str, str]) -> dict[str, str]:
    made = dict(x)
    made["more"] = "y"
    return made


def helped(x: dict[str, str]) -> Any:
    return stored(x)


def asks_model(x: str) -> Any:
    return MODEL.invoke(x)


def asks_inside(x: str) -> Any:
    def inner(y: str) -> Any:
        return MODEL.invoke(y)

    return inner(x)


MODEL = Hosted()


def closing_over(model: Any) -> Any:
    def inner(x: str) -> Any:
        return model.invoke(x)

    return inner


def with_a_default(x: str, model: Any = MODEL) -> Any:
    return model.invoke(x)


def asks_twice(x: str) -> Any:
    return MODEL.invoke(x), MODEL.invoke("and")


def asks_each(x: list[str]) -> Any:
    return [MODEL.invoke(each) for each in x]


def asks_by_a_function(x: str) -> Any:
    return asks_model(x), asks_model("and")


class Asking:
    def __init__(self) -> None:
        self.model = MODEL

    def ask(self, x: str) -> Any:
        return self.model.invoke(x)

    def each(self, x: list[str]) -> Any:
        return [self.ask(each) for each in x]

    def joined(self, x: list[str]) -> Any:
        return self.ask(", ".join(str(each) for each in x))


class Retrieving(Asking):
    """A component by its method's name alone."""

    def invoke(self, x: str) -> Any:
        return [self.model.invoke(each) for each in x.split()]


RETRIEVING = Retrieving()


def calls_its_own(x: str) -> Any:
    return RETRIEVING.invoke(x)


def calls_each(x: list[str]) -> Any:
    return [each(x) for each in (MODEL, MODEL)]


@pytest.mark.parametrize(
    ("function", "reach"),
    [
        (str.strip, Reach(False, False, False)),
        (lambda x: x["q"].strip(), Reach(False, False, False)),
        (loops, Reach(False, False, False)),
        (own, Reach(False, False, False)),
        (remembers, Reach(False, False, True, alters=True)),
        (stored, Reach(False, False, True, alters=True)),
        (helped, Reach(False, False, True, alters=True)),
        (lambda x: x["list"].sort(), Reach(False, False, True, alters=True)),
        (lambda x: x["list"].__setitem__(0, "z"), Reach(False, False, True, alters=True)),
        (lambda x: x["thing"].advance(), Reach(False, False, True)),
        (lambda f: f(), Reach(False, False, True)),
        (opens, Reach(False, True, True)),
        (lambda x: os.getenv(x), Reach(False, True, True)),
        (imports, Reach(True, True, True)),
        (lambda x: setattr(x["thing"], "name", "z"), Reach(False, True, True, alters=True)),
        (asks_model, Reach(True, True, True)),
        (asks_inside, Reach(True, True, True)),
        (closing_over(MODEL), Reach(True, True, True)),
        (with_a_default, Reach(True, True, True)),
        (asks_twice, Reach(True, True, True, repeats=True)),
        (asks_each, Reach(True, True, True, repeats=True)),
        (asks_by_a_function, Reach(True, True, True, repeats=True)),
        (Asking().each, Reach(True, True, True, repeats=True)),
        (Asking().joined, Reach(True, True, True)),
        (calls_its_own, Reach(True, True, True, repeats=True)),
        (calls_each, Reach(True, True, True, repeats=True)),
    ],
)
def test_what_a_function_may_reach(function: Any, reach: Reach) -> None:
    assert reach_of(function, lambda value: False) == reach


def stores_first(called: Any, *args: Any) -> Any:
    called.latest = args
    return None


def test_what_stands_in_place_of_a_method_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = types.FunctionType(stores_first.__code__, {"__name__": "teola_plugin.adapters.interception"})
    monkeypatch.setattr(type(MODEL), "invoke", functools.wraps(type(MODEL).invoke)(ours))
    assert not reach_of(asks_each, lambda value: False).alters
    monkeypatch.setattr(type(MODEL), "invoke", stores_first)
    assert reach_of(asks_each, lambda value: False).alters
