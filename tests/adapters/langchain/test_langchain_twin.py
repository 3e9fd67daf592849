"""What `optimize` returns for a runnable is, to whoever looks, the same runnable."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.load import dumps
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    ConfigurableField,
    Runnable,
    RunnableBinding,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnableSequence,
)
from langchain_core.runnables.config import RunnableConfig

from teola_plugin import optimize, optimized
from teola_plugin.adapters.langchain import adapter
from teola_plugin.adapters.langchain.binding import Entered
from teola_plugin.adapters.langchain.observe import _report
from teola_plugin.graph import Graph
from teola_plugin.seams import Session, current
from teola_plugin.trace import Traced
from tests.support.langchain_world import Engines, Recorder, ask


class Said(Session):
    """A session that only listens."""

    is_closed = False

    def __init__(self) -> None:
        self.observed: list[Any] = []

    def ask(self, *args: Any) -> Any:
        raise AssertionError

    claim = ask

    def observe(self, component: object, value: Any) -> None:
        self.observed.append(value)


class OneCall:
    def __init__(self) -> None:
        self.session = Said()

    def close(self) -> None:
        self.session.is_closed = True


class Noted:
    """Calls that are only noted down."""

    traced = Traced(Graph((), (), ()))

    def __init__(self) -> None:
        self.opened: list[tuple[list[Entered], bool]] = []
        self.calls: list[OneCall] = []
        self.locksteps: list[bool] = []

    def open(
        self, inputs: Callable[[], Sequence[Any]], *, count: int = 1, loop: asyncio.AbstractEventLoop | None = None,
        is_lockstep: bool = False,
    ) -> OneCall:  # fmt: skip
        self.opened.append((list(inputs()), loop is not None))
        self.locksteps.append(is_lockstep)
        self.calls.append(OneCall())
        return self.calls[-1]

    def again(self, pipeline: Any) -> Any:
        return adapter.twin(pipeline, self)

    def explain(self, format: str = "text", analyze: Any = None) -> str:
        return f"explained as {format}"

    @property
    def modes(self) -> list[str]:
        return [entered.mode for inputs, _ in self.opened for entered in inputs]


def inside(x: Any) -> str:
    """Whether it runs in a call."""
    return f"{x}{'!' if current() else '?'}"


def is_twin(runnable: Any) -> bool:
    return hasattr(type(runnable), "__teola__")


SEQUENCE = RunnableLambda(inside) | StrOutputParser()
TEMPLATED = ask("Tell {topic}") | StrOutputParser()


def exclaims(x: Iterator[str]) -> Iterator[str]:
    for part in x:
        yield inside(part)


@pytest.mark.parametrize(
    "original",
    [
        SEQUENCE, RunnableLambda(inside), RunnableParallel(a=inside), RunnablePassthrough.assign(a=inside),
        RunnableLambda(inside).with_retry(), RunnableLambda(inside).bind(), RunnableLambda(inside).map(),
        RunnableLambda(inside).with_fallbacks([SEQUENCE]), RunnableGenerator(exclaims), TEMPLATED, Engines().chat,
        RunnableLambda(inside).with_config(run_name="named", tags=["t"]),
    ],
)  # fmt: skip
def test_looks_the_same(original: Runnable[Any, Any]) -> None:
    twin = adapter.twin(original, Noted())
    assert isinstance(twin, type(original))
    assert type(twin).__name__ == type(original).__name__
    assert type(twin).__qualname__ == type(original).__qualname__
    assert repr(twin) == repr(original)
    assert (twin == original, original == twin, twin == copy.copy(twin)) == (True, True, True)
    assert twin != SEQUENCE or original == SEQUENCE
    assert twin.get_name() == original.get_name()
    assert dumps(twin) == dumps(original)
    assert twin.get_input_jsonschema() == original.get_input_jsonschema()
    assert twin.get_output_jsonschema() == original.get_output_jsonschema()
    assert twin.config_specs == original.config_specs
    assert twin.get_graph().draw_mermaid() == original.get_graph().draw_mermaid()
    assert not any("teola" in name for name in vars(original))
    assert not is_twin(original)


def test_pickles_are_plain() -> None:
    restored = pickle.loads(pickle.dumps(adapter.twin(TEMPLATED, Noted())))
    assert type(restored) is RunnableSequence
    assert restored == TEMPLATED


def test_each_sync_entry_opens_one_call() -> None:
    calls = Noted()
    twin = adapter.twin(SEQUENCE, calls)
    assert twin.invoke("a") == "a!"
    assert twin.batch(["a", "b"]) == ["a!", "b!"]
    assert list(twin.stream("a")) == ["a!"]
    assert sorted(twin.batch_as_completed(["a", "b"])) == [(0, "a!"), (1, "b!")]
    assert calls.modes == ["invoke", "batch", "batch", "stream", "invoke", "invoke"]
    assert [(len(inputs), has_loop) for inputs, has_loop in calls.opened] == [
        (1, False),
        (2, False),
        (1, False),
        (2, False),
    ]
    assert all(call.session.is_closed for call in calls.calls)
    assert current() is None


async def test_each_async_entry_opens_one_call() -> None:
    calls = Noted()
    twin = adapter.twin(SEQUENCE, calls)
    assert await twin.ainvoke("a") == "a!"
    assert await twin.abatch(["a", "b"]) == ["a!", "b!"]
    assert [c async for c in twin.astream("a")] == ["a!"]
    assert [c async for c in twin.abatch_as_completed(["a"])] == [(0, "a!")]
    events = [e async for e in twin.astream_events("a", version="v2")]
    assert events[-1]["data"]["output"] == "a!"
    assert calls.modes == ["ainvoke", "abatch", "abatch", "astream", "ainvoke", "events"]
    assert all(has_loop for _, has_loop in calls.opened)
    assert all(call.session.is_closed for call in calls.calls)
    assert current() is None


def tagged(x: str, config: RunnableConfig) -> str:
    if x == "bad":
        raise ValueError(x)
    return f"{x}{config['tags']}"


async def test_each_entry_hands_on_what_it_is_given() -> None:
    twin, config = adapter.twin(RunnableLambda(tagged), Noted()), RunnableConfig(tags=["t"])
    inputs = ["a", "bad"]
    assert twin.invoke("a", config) == await twin.ainvoke("a", config) == "a['t']"
    assert [*twin.stream("a", config)] == [c async for c in twin.astream("a", config)] == ["a['t']"]
    whole = [twin.batch(inputs, config, return_exceptions=True)]
    whole.append(await twin.abatch(inputs, config, return_exceptions=True))
    parts = [sorted(twin.batch_as_completed(inputs, config, return_exceptions=True))]
    parts.append(sorted([c async for c in twin.abatch_as_completed(inputs, config, return_exceptions=True)]))
    for found in (*whole, *([value for _, value in each] for each in parts)):
        assert list(map(repr, found)) == ["\"a['t']\"", "ValueError('bad')"]


def test_code_of_what_is_in_the_input_runs_in_the_frameworks_run_alone() -> None:
    noted: list[str] = []

    class Loud:
        def __deepcopy__(self, memo: Any) -> Any:
            noted.append("copied")
            return self

        def __str__(self) -> str:
            return "loud"

    chain = RunnableParallel(a=ask("A {q}") | Engines().chat, b=ask("B {q} {p}") | Engines().chat)
    given = {"q": Loud(), "p": (part for part in "p")}
    assert optimize(chain).invoke(given)["a"].content == chain.invoke({"q": "loud", "p": ""})["a"].content
    assert noted == []


def test_a_deep_copy_runs_ahead_on_its_own() -> None:
    fast = optimize(RunnableParallel(a=ask("A {q}") | Engines().chat, b=ask("B {q}") | Engines().chat))
    other = copy.deepcopy(fast)
    assert optimized(other) is not optimized(fast)
    other.invoke({"q": "x"})
    assert (len(optimized(other).reports), len(optimized(fast).reports)) == (1, 0)
    report = optimized(other).reports[-1]
    assert (report.hits + report.shared, report.misses, report.wasted) == (2, 0, 0)


def test_what_ends_with_an_abandoned_stream_ends_in_its_call() -> None:
    ended: list[str] = []

    def parts(chunks: Iterator[str]) -> Iterator[str]:
        try:
            yield from ("a", "b")
        finally:
            ended.append(inside("ended"))

    chunks = adapter.twin(RunnableGenerator(parts), Noted()).stream("x")
    assert next(chunks) == "a"
    chunks.close()
    assert ended == ["ended!"]


def test_a_stream_keeps_its_call_open_and_the_context_to_itself() -> None:
    calls = Noted()
    chunks = adapter.twin(RunnableLambda(letters) | StrOutputParser(), calls).stream("ab")
    assert calls.calls == []
    assert next(chunks) == "a!"
    assert current() is None
    assert not calls.calls[0].session.is_closed
    chunks.close()
    assert calls.calls[0].session.is_closed


def letters(text: str) -> Iterator[str]:
    for letter in text:
        yield inside(letter)


async def aletters(text: str) -> AsyncIterator[str]:
    for letter in text:
        yield inside(letter)


async def test_an_abandoned_async_stream_closes_its_call() -> None:
    calls = Noted()
    chunks = adapter.twin(RunnableLambda(aletters) | StrOutputParser(), calls).astream("ab")
    async for _ in chunks:
        break
    await asyncio.create_task(chunks.aclose())  # in another task, and so in another context
    assert calls.calls[0].session.is_closed


def test_a_transform_is_one_call_and_its_input_none_of_it() -> None:
    calls = Noted()
    read: list[str] = []

    def given() -> Iterator[str]:
        for letter in "ab":
            read.append(inside(letter))
            yield letter

    chunks = adapter.twin(RunnableGenerator(exclaims) | StrOutputParser(), calls).transform(given())
    assert (calls.opened, read) == ([], [])
    assert next(chunks) == "a!"
    assert (calls.opened, calls.calls[0].session.is_closed) == ([([], False)], False)
    assert current() is None
    chunks.close()
    assert calls.calls[0].session.is_closed
    assert read == ["a?", "b?"]  # LangChain reads its input to the end, for the trace
    assert list(adapter.twin(SEQUENCE, calls).transform(["a", "b"])) == ["ab!"]


async def test_an_abandoned_async_transform_closes_its_call() -> None:
    calls = Noted()
    read: list[str] = []

    async def given() -> AsyncIterator[str]:
        for letter in "ab":
            read.append(inside(letter))
            yield letter

    chunks = adapter.twin(RunnableLambda(aletters) | StrOutputParser(), calls).atransform(given())
    async for chunk in chunks:
        assert chunk == "a!"
        break
    assert calls.opened == [([], True)]
    await asyncio.create_task(chunks.aclose())  # in another task, and so in another context
    assert calls.calls[0].session.is_closed
    assert read == ["a?", "b?"]
    assert current() is None


def test_who_waits_for_the_whole_input_runs_ahead_of_it() -> None:
    calls = Noted()
    assert list(adapter.twin(RunnableLambda(inside).map(), calls).transform(iter([["a"], ["b"]]))) == [["a!", "b!"]]
    assert calls.modes == ["stream"]


@pytest.mark.parametrize("is_async", [False, True])
def test_transform_looks_the_same(is_async: bool) -> None:
    def letters_of(word: str) -> Iterator[str]:
        yield from word

    async def aletters_of(word: str) -> AsyncIterator[str]:
        for letter in word:
            yield letter

    async def collect(chain: Any, config: Any) -> list[Any]:
        return [chunk async for chunk in chain.atransform(aletters_of("tea"), config)]

    def run(chain: Any) -> tuple[list[Any], Any]:
        recorder = Recorder()
        config: Any = {"callbacks": [recorder], "tags": ["mine"]}
        chunks = asyncio.run(collect(chain, config)) if is_async else list(chain.transform(letters_of("tea"), config))
        return chunks, recorder.tree()

    def chain() -> Runnable[Any, Any]:
        e = Engines()
        model = e.chat | StrOutputParser()
        return RunnableParallel(a=ask("A {x}") | model, b=ask("B {x}") | model) | ask("{a} {b}") | model

    fast = optimize(chain())
    found, tree = run(chain())
    assert run(fast) == (found, tree)
    report = optimized(fast).reports[-1]
    assert (report.misses, report.hits, report.fallbacks) == (3, 0, ())


def test_errors_pass_and_close_the_call() -> None:
    calls = Noted()
    error = KeyError("mine")

    def fail(x: Any) -> Any:
        raise error

    twin = adapter.twin(RunnableLambda(fail), calls)
    for act in (lambda: twin.invoke(1), lambda: list(twin.stream(1)), lambda: twin.batch([1, 2])):
        with pytest.raises(KeyError) as caught:
            act()
        assert caught.value is error
    assert all(call.session.is_closed for call in calls.calls)


def test_raising_stays_eager() -> None:
    async def only_async(x: Any) -> Any:
        yield 1

    with pytest.raises(NotImplementedError):
        RunnableGenerator(only_async).stream(1)
    with pytest.raises(NotImplementedError):
        adapter.twin(RunnableGenerator(only_async), Noted()).stream(1)


def test_a_twin_in_a_call_is_plain() -> None:
    outer, inner = Noted(), Noted()
    chain = RunnableLambda(inside) | adapter.twin(RunnableParallel(a=inside), inner)
    assert adapter.twin(chain, outer).invoke("x") == {"a": "x!!"}
    assert inner.opened == []
    assert chain.invoke("x") == {"a": "x?!"}
    assert len(inner.opened) == 1


def test_what_is_made_of_a_twin_is_one() -> None:
    twin = adapter.twin(SEQUENCE, Noted())
    made = [
        twin | str.upper, (lambda x: x) | twin, twin.pipe(str.upper), twin.bind(), twin.with_config(run_name="r"),
        twin.with_retry(), twin.with_fallbacks([SEQUENCE]), twin.with_types(input_type=str), twin.map(),
        twin.with_listeners(on_start=print), copy.copy(twin), copy.deepcopy(twin), twin.model_copy(),
        adapter.twin(RunnableParallel(a=inside), Noted()).assign(b=inside),
        adapter.twin(RunnableParallel(a=inside), Noted()).pick("a"),
    ]  # fmt: skip
    assert all(map(is_twin, made))
    assert (twin | str.upper) == (SEQUENCE | str.upper)
    assert type((twin | str.upper).first) is RunnableLambda
    assert not is_twin(twin.bind().bound)


def test_calls_that_run_something_else_do_not_run_ahead() -> None:
    calls = Noted()
    twin = adapter.twin(SEQUENCE, calls)
    twin.invoke("a", {"max_concurrency": 1})
    twin.batch(["a", "b"], [{}, {"max_concurrency": 2}])
    twin.batch(None)
    RunnableLambda(lambda x: twin.invoke(x)).invoke("a", {"max_concurrency": 3})
    adapter.twin(RunnableLambda(lambda x, **kwargs: x), calls).invoke("a", stop=["b"])
    assert calls.opened == [([], False)] * 5


def test_a_response_cache_set_later_is_asked_first() -> None:
    e = Engines()
    fast = optimize(RunnableParallel(a=ask("A {q}") | e.chat, b=ask("B {q}") | e.chat))
    set_llm_cache(InMemoryCache())
    try:
        first, second = (fast.invoke({"q": "x"}) for _ in range(2))
    finally:
        set_llm_cache(None)
    assert [first[k].content for k in "ab"] == [second[k].content for k in "ab"]
    assert len(e.llm.seen) == 2


def test_what_a_binding_configures_is_not_guessed() -> None:
    e, other = Engines(), Engines()
    model = e.chat.configurable_alternatives(ConfigurableField("llm"), default_key="a", b=other.chat)
    chain = RunnableParallel(a=ask("A {q}") | model | StrOutputParser(), b=ask("B {q}") | model | StrOutputParser())
    for bound in (chain.with_config(configurable={"llm": "b"}), chain.with_config(max_concurrency=1)):
        assert [b.code for b in adapter.trace(bound).breaks][:1] == ["TB112"]
    fast = optimize(chain)
    assert optimize(chain.with_config(configurable={"llm": "b"})).invoke({"q": "x"}) == fast.invoke(
        {"q": "x"}, {"configurable": {"llm": "b"}}
    )
    assert (len(e.llm.seen), len(other.llm.seen)) == (0, 4)


def test_stream_is_a_generator_function_where_it_was() -> None:
    twin = adapter.twin(SEQUENCE, Noted())
    for name in ("stream", "batch_as_completed", "transform"):
        assert inspect.isgeneratorfunction(getattr(twin, name))
    for name in ("astream", "abatch_as_completed", "atransform"):
        assert inspect.isasyncgenfunction(getattr(twin, name))
    watched = RunnableLambda(print)
    adapter.trace(watched | ask("{x}") | Engines().chat)
    assert inspect.isgeneratorfunction(watched.transform)
    assert inspect.isasyncgenfunction(watched.atransform)


def test_what_the_users_functions_hold_may_raise_when_looked_at() -> None:
    class Absent:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("outside of a request")

    request = Absent()
    assert is_twin(optimize(RunnableParallel(a=ask("A {q}") | Engines().chat, b=lambda x: request.user.name)))


def test_calls_and_explain() -> None:
    calls = Noted()
    twin = adapter.twin(SEQUENCE, calls)
    assert adapter.calls_of(twin) is calls
    assert adapter.calls_of(SEQUENCE) is None
    assert adapter.knows(twin)
    assert not adapter.knows("text")
    assert twin.explain() == "explained as text"


def test_components_that_only_the_framework_runs_are_observed() -> None:
    printed: list[str] = []

    def unknown(x: str) -> str:
        printed.append(x)
        return x.upper()

    chain = RunnableLambda(unknown) | ask("{x}") | Engines().chat.with_config(run_name="m")
    assert len(adapter.trace(chain).observed) == 1
    for run in (lambda t: t.invoke("a"), lambda t: list(t.stream("a")), lambda t: asyncio.run(t.ainvoke("a"))):
        calls = Noted()
        with pytest.raises(AssertionError):  # the model asks a session that only listens
            run(adapter.twin(chain, calls))
        assert calls.calls[0].session.observed[0] == "A"
    assert printed == ["a"] * 3


def test_what_is_observed_is_the_whole_of_a_stream_and_plain_data() -> None:
    printed: list[str] = []

    def parts(chunks: Iterator[str]) -> Iterator[str]:
        printed.extend(chunks)
        yield from ("a", "b")

    def iterator(x: str) -> Iterator[str]:
        printed.append(x)
        return iter([x])

    for component, observed in ((RunnableGenerator(parts), ["ab"]), (RunnableLambda(iterator), [])):
        calls = Noted()
        chain = component | ask("{x}") | Engines().chat
        assert len(adapter.trace(chain).observed) == 1
        with pytest.raises(AssertionError):  # the model asks a session that only listens
            list(adapter.twin(chain, calls).stream("x"))
        assert calls.calls[0].session.observed[:1] == observed


def test_of_a_component_in_two_places_no_value_is_told() -> None:
    """Nobody can say which of its runs a value comes from."""
    printed: list[str] = []

    def parts(chunks: Iterator[str]) -> Iterator[str]:
        printed.extend(chunks)
        yield "a"

    component, chat = RunnableGenerator(parts), Engines().chat
    one, two = component | ask("A {x}") | chat, component | ask("B {x}") | chat
    assert [b.code for b in adapter.trace(RunnableParallel(one=one)).breaks] == ["TB102"]
    found = [b.code for b in adapter.trace(RunnableParallel(one=one, two=two)).breaks]
    assert found.count("TB107") == 1


def test_binding_keeps_its_delegation() -> None:
    twin = adapter.twin(Engines().chat.bind(stop=["a"]), Noted())
    assert isinstance(twin, RunnableBinding)
    assert twin._llm_type == "teola-engine-chat"
    assert ChatPromptTemplate.from_template("{a}") | twin


def test_a_batch_that_ends_with_the_first_error_is_in_lockstep() -> None:
    calls = Noted()
    twin = adapter.twin(SEQUENCE, calls)
    twin.batch(["a", "b"])
    twin.batch(["a", "b"], return_exceptions=True)
    asyncio.run(twin.abatch(["a", "b"]))
    asyncio.run(twin.abatch(["a", "b"], return_exceptions=True))
    list(twin.batch_as_completed(["a", "b"]))
    assert calls.locksteps == [True, False, True, False, False]


def test_an_iterator_that_a_component_returns_is_the_frameworks_to_read() -> None:
    told: list[Any] = []
    session: Any = SimpleNamespace(wants_values=True, observe=lambda component, value: told.append(value))
    for value in (iter("ab"), [iter("ab")], ["a", "b"]):
        _report(session, object(), value)
    assert told == [["a", "b"]]
