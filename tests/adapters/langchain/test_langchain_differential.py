"""Original against optimized: same value or same exception, same tree of events, same effects, in every way of calling.

First the pipelines of langchain_world.py, then pipelines made up at random: prompts, models, parsers, dicts, branches,
maps, searches, functions with and without effects, retries, fallbacks and engines that fail. Last, calls that are given
up half-way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pytest
from langchain_core.output_parsers import NumberedListOutputParser, StrOutputParser
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
)

from teola_plugin import optimize, optimized, pure
from teola_plugin.adapters.langchain import adapter
from teola_plugin.engines import Completion
from teola_plugin.runtime import host
from tests.support.fakes import FakeEngine, collect_garbage
from tests.support.langchain_world import (
    PIPELINES,
    Engines,
    Recorder,
    answer,
    ask,
    digest,
    format_docs,
    input_of,
    is_odd,
    judged,
    plain_text,
)
from tests.support.langgraph_world import Patient

FORMS = ("invoke", "ainvoke", "batch", "abatch", "stream", "astream")


@dataclass
class Outcome:
    """What a call came to. `effects`: what functions with effects were called with."""

    value: str
    failed: bool
    tree: list[Any]
    effects: list[str] = field(default_factory=list)


def call(chain: Runnable[Any, Any], form: str, given: Any, effects: list[str]) -> Outcome:
    recorder = Recorder()
    config: Any = {"callbacks": [recorder], "tags": ["mine"], "metadata": {"who": "me"}}
    effects.clear()
    try:
        value, failed = plain_text(run(chain, form, given, config)), False
    except Exception as e:  # compared, whatever it is
        value, failed = plain_text(e), True
    return Outcome(value, failed, recorder.tree(), sorted(effects))


def run(chain: Runnable[Any, Any], form: str, given: Any, config: Any) -> Any:
    match form:
        case "invoke":
            return chain.invoke(given, config)
        case "ainvoke":
            return asyncio.run(chain.ainvoke(given, config))
        case "batch":
            return chain.batch([given, given], config)
        case "abatch":
            return asyncio.run(chain.abatch([given, given], config))
        case "stream":
            return added(list(chain.stream(given, config)))
        case _:

            async def collect() -> list[Any]:
                return [chunk async for chunk in chain.astream(given, config)]

            return added(asyncio.run(collect()))


def added(chunks: list[Any]) -> Any:
    return reduce(lambda a, b: a + b, chunks) if all(hasattr(c, "__add__") for c in chunks) else chunks


def report_of(chain: Runnable[Any, Any]) -> Any:
    return optimized(chain).reports[-1]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", PIPELINES)
def test_pipeline(name: str, form: str) -> None:
    plain = call(PIPELINES[name](Engines()), form, input_of(name), [])
    assert not plain.failed, plain.value
    chain = optimize(PIPELINES[name](Engines()))
    assert call(chain, form, input_of(name), []) == plain
    report = report_of(chain)
    assert report.fallbacks == ()
    if optimized(chain).prepared.plan.has_slack and form in ("invoke", "ainvoke", "stream", "astream"):
        assert report.wasted == 0  # what ran ahead is what the framework asked for; who came first is chance


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("form", FORMS)
def test_branches_read_ahead(form: str, number: int) -> None:
    given = {"question": f"Who keeps hive {number}?", "text": f"Hive {number} is empty."}
    plain = call(judged(Engines()), form, given, [])
    chain = optimize(judged(Engines()), speculate="branches")
    assert sum(record.code == "TR801" for record in optimized(chain).optimized.records) == 4
    assert call(chain, form, given, []) == plain
    assert report_of(chain).fallbacks == ()


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_read_that_failed_before_it_was_wanted_is_made_again(is_first: bool) -> None:
    given = {"question": a_question(is_first), "text": "the other hive"}
    plain = await judged(Engines()).ainvoke(given)
    e = Engines()
    chain = optimize(judged(e), speculate="branches")
    works = e.embedder.answer
    e.embedder.answer = lambda text: (_ for _ in ()).throw(OSError("the embedder is down"))
    e.llm.gate = asyncio.Event()
    e.embedder.batches.clear()
    task = asyncio.create_task(chain.ainvoke(given))
    while not (e.llm.batches and e.embedder.batches):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    e.embedder.answer = works
    host.loop.call_soon_threadsafe(e.llm.gate.set)
    assert await task == plain


def a_question(is_first: bool) -> str:
    """One for which the judge takes the first branch, or the other."""
    judge = ask("Odd? {question}") | Engines().chat | StrOutputParser()
    return next(q for n in range(100) if is_odd(judge.invoke({"question": (q := f"hive {n}")})) == is_first)


@pytest.mark.parametrize("is_first", [True, False])
async def test_the_branch_that_is_not_taken_is_given_up(is_first: bool) -> None:
    e = Engines()
    chain = optimize(judged(e), speculate="branches")
    given = {"question": a_question(is_first), "text": "the other hive"}
    e.llm.gate, e.embedder.gate = asyncio.Event(), asyncio.Event()
    e.embedder.batches.clear()  # of what the stores were filled with
    task = asyncio.create_task(chain.ainvoke(given))
    while not (e.llm.batches and e.embedder.batches):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert sorted(e.embedder.seen) == sorted([given["question"], given["text"]]), "before the model has spoken"
    ids = {item.payload: item.id for batch in e.embedder.batches for item in batch.items}
    host.loop.call_soon_threadsafe(e.llm.gate.set)
    unwanted = ids[given["text" if is_first else "question"]]
    while unwanted not in e.embedder.aborted:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    host.loop.call_soon_threadsafe(e.embedder.gate.set)
    await task
    assert e.embedder.aborted == [unwanted]
    assert len(e.embedder.seen) == 2


@pytest.mark.parametrize("name", PIPELINES)
def test_what_runs_ahead_is_taken(name: str) -> None:
    """Engines that answer at once lose the race against the framework now and then, but not always."""

    def takes() -> bool:
        run(chain, "invoke", input_of(name), {})
        return bool(report_of(chain).hits + report_of(chain).shared)

    chain = optimize(PIPELINES[name](Engines()))
    assert not optimized(chain).prepared.plan.has_slack or any(takes() for _ in range(100))


def test_iterators_are_left_to_the_framework() -> None:
    """Whoever reads one first has it all."""

    def unknown(x: dict[str, Any]) -> Any:
        print(end="")
        return iter(["c", "d"])

    e = Engines()
    chain = (
        RunnablePassthrough.assign(a=ask("A {question}") | e.chat, rows=unknown)
        | RunnablePassthrough.assign(b=ask("B {question}") | e.chat)
        | RunnablePassthrough.assign(n=lambda x: ", ".join(x["given"]) + ", ".join(x["rows"]))
        | RunnableLambda(lambda x: x["n"])
    )
    fast = optimize(chain)
    for _ in range(5):
        assert fast.invoke({"question": "x", "given": iter("ab")}) == "a, bc, d"


class Client:
    """`get` is a request, and so is all else."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def get(self, key: Any) -> Any:
        self.asked.append(key)
        return key

    __getitem__ = get

    def __str__(self) -> str:
        self.asked.append("text")
        return "client"


def test_methods_of_the_users_objects_are_called_as_often_as_without_us() -> None:
    """What is no plain data is not handed to functions that were proven pure, wherever it comes from."""
    client, jobs = Client(), queue.Queue[str]()

    def unknown(x: dict[str, Any]) -> Any:
        print(end="")
        return client

    @pure
    def connect(x: dict[str, Any]) -> Any:
        return client if x["question"] else None

    e = Engines()
    chain = (
        RunnablePassthrough.assign(made=unknown, connection=connect)
        | RunnablePassthrough.assign(a=ask("A {question}") | e.chat)
        | RunnablePassthrough.assign(b=ask("B {client}") | e.chat, c=ask("C {made}") | e.chat)
        | RunnablePassthrough.assign(
            given=lambda x: x["client"].get("given"),
            observed=lambda x: x["made"].get("observed"),
            connected=lambda x: x["connection"].get("connected"),
            item=RunnablePick("connection") | (lambda c: c["item"]),
            job=lambda x: x["jobs"].get(),
        )
        | RunnablePassthrough.assign(d=ask("D {question}") | e.chat)
    )

    def asked(pipeline: Runnable[Any, Any]) -> list[Any]:
        client.asked.clear()
        jobs.put("job")
        assert pipeline.invoke({"question": "x", "client": client, "jobs": jobs})["job"] == "job"
        return sorted(client.asked)

    fast = optimize(chain)
    for _ in range(5):
        assert asked(fast) == asked(chain)
        assert report_of(fast).fallbacks == ()


# --- made up at random ---------------------------------------------------------------------------------------


class Boom(Exception):
    pass


class Maker:
    """A pipeline by chance. Every `dict` step takes and gives a dict that has the key `question`."""

    def __init__(self, seed: int, llm: FakeEngine | None = None) -> None:
        self.chance = random.Random(seed)
        self.engines = Engines(llm)
        self.engines.llm.answer = self._answer
        self.fails = self.chance.random() < 0.3
        self.effects: list[str] = []
        self.store: Any = None

    def pipeline(self) -> Runnable[Any, Any]:
        steps = [self.dict_step(3) for _ in range(self.chance.randint(1, 3))]
        last = self.chance.choice([self.text_step(3), RunnablePassthrough(), self.dict_step(2)])
        return reduce(lambda a, b: a | b, [*steps, last])

    def _answer(self, prompt: str) -> Completion:
        if self.fails and int(digest(prompt)[:2], 16) < 40:
            raise Boom("the engine failed")
        return answer(prompt)

    def pick(self, options: list[Callable[[int], Runnable[Any, Any]]], deep: int) -> Runnable[Any, Any]:
        return self.chance.choice(options if deep else options[:2])(deep - 1)

    # dict -> dict

    def dict_step(self, deep: int) -> Runnable[Any, Any]:
        return self.pick([self.assign, self.assign, self.parallel, self.two, self.noted, self.branched], deep)

    def assign(self, deep: int) -> Runnable[Any, Any]:
        names = self.chance.sample("abcd", self.chance.randint(1, 2))
        return RunnablePassthrough.assign(**{name: self.text_step(max(deep, 0)) for name in names})

    def parallel(self, deep: int) -> Runnable[Any, Any]:
        kept: Any = self.chance.choice([lambda x: x["question"], lambda x: x["question"].upper()])
        return RunnableParallel(question=kept, a=self.text_step(deep), b=self.text_step(deep))

    def two(self, deep: int) -> Runnable[Any, Any]:
        return self.dict_step(deep) | self.dict_step(deep)

    def noted(self, deep: int) -> Runnable[Any, Any]:
        def note(x: dict[str, Any]) -> dict[str, Any]:
            self.effects.append(plain_text(x))
            return x

        return self.chance.choice([RunnableLambda(note), RunnablePassthrough(note)])

    def branched(self, deep: int) -> Runnable[Any, Any]:
        return RunnableBranch((self.condition(), self.dict_step(deep)), self.dict_step(deep))

    # dict -> text

    def text_step(self, deep: int) -> Runnable[Any, Any]:
        options = [
            self.chat, self.completion, self.chat, self.pure, self.impure, self.searched, self.choice, self.mapped,
            self.twice, self.retried, self.rescued, self.asking, self.asking,
        ]  # fmt: skip
        return self.pick(options, deep)

    def chat(self, deep: int) -> Runnable[Any, Any]:
        model = self.chance.choice([self.engines.chat, self.engines.chat.bind(stop=["zz"])])
        return ask(self.words("{question}")) | model | StrOutputParser()

    def completion(self, deep: int) -> Runnable[Any, Any]:
        return ask(self.words("{question}")) | self.engines.completion

    def pure(self, deep: int) -> Runnable[Any, Any]:
        return RunnableLambda(
            self.chance.choice([
                lambda x: x["question"][::-1],
                lambda x: x["question"] + x.get("a", "none"),
                lambda x: ", ".join(sorted(x)),
                lambda x: x["b"] if "b" in x else "no b",  # noqa: SIM401
            ])
        )  # fmt: skip

    def impure(self, deep: int) -> Runnable[Any, Any]:
        def count(x: dict[str, Any]) -> str:
            self.effects.append(plain_text(x))
            return f"{x['question']} noted"

        async def acount(x: dict[str, Any]) -> str:
            await asyncio.sleep(0)
            return count(x)

        return self.chance.choice([RunnableLambda(count), RunnableLambda(count, acount)])

    def asking(self, deep: int) -> Runnable[Any, Any]:
        model, inner, words = self.engines.chat, self.text_step(min(deep, 1)), self.words("")

        def asks(x: dict[str, Any]) -> str:
            reply = model.invoke(f"{words}{x['question']}")
            return str(reply.content).upper()

        def asks_inside(x: dict[str, Any]) -> str:
            return ", ".join([inner.invoke({"question": x["question"]}), words])

        def asks_and_notes(x: dict[str, Any]) -> str:
            self.effects.append(plain_text(x))
            return str(model.invoke(words).content)

        async def asks_in_coroutine(x: dict[str, Any]) -> str:
            question = x["question"]  # a stream may not have it yet, and what is made before that is never awaited
            first, second = await asyncio.gather(model.ainvoke(words), inner.ainvoke({"question": question}))
            return str(first.content) + second

        # where an engine fails too, chance decides which of two branches is heard
        coroutines = [] if self.fails else [asks_in_coroutine]
        function = self.chance.choice([asks, asks_inside, asks_and_notes, *coroutines])
        return self.chance.choice(
            [RunnableLambda(function), RunnableLambda(function), RunnableLambda(asks, asks_in_coroutine)]
        )

    def searched(self, deep: int) -> Runnable[Any, Any]:
        if self.store is None:
            self.store = self.engines.store("differential")
        retriever = self.store.as_retriever(search_kwargs={"k": self.chance.randint(1, 3)})
        return self.text_step(deep) | retriever | format_docs

    def choice(self, deep: int) -> Runnable[Any, Any]:
        return RunnableBranch((self.condition(), self.text_step(deep)), self.text_step(deep))

    def condition(self) -> Any:
        return self.chance.choice([
            lambda x: "hive" in x["question"],
            lambda x: "a" in x,
            ask(self.words("{question}")) | self.engines.chat | (lambda m: m.content < "8"),
            self.impure(0) | (lambda text: len(text) % 2 == 0),
        ])  # fmt: skip

    def mapped(self, deep: int) -> Runnable[Any, Any]:
        listed = ask(self.words("numbered {question}")) | self.engines.chat | NumberedListOutputParser()
        each = self.chance.choice([
            ask(self.words("{part}")) | self.engines.chat | StrOutputParser(),
            RunnableLambda(lambda part: {"question": part}) | self.text_step(deep),
        ])  # fmt: skip
        return listed | each.map() | (lambda parts: "; ".join(parts))

    def twice(self, deep: int) -> Runnable[Any, Any]:
        return self.text_step(deep) | ask(self.words("{text}")) | self.engines.chat | StrOutputParser()

    def retried(self, deep: int) -> Runnable[Any, Any]:
        return self.text_step(deep).with_retry(
            stop_after_attempt=2, wait_exponential_jitter=False, exponential_jitter_params={"max": 0}
        )

    def rescued(self, deep: int) -> Runnable[Any, Any]:
        return self.text_step(deep).with_fallbacks([RunnableLambda(lambda x: "rescued")])

    def words(self, rest: str) -> str:
        return " ".join([self.chance.choice(["red", "green", "blue", "gray"]) for _ in range(2)] + [rest])


NO_COROUTINE = "a coroutine function synchronously"
CHAINS = int(os.environ.get("TEOLA_TEST_CHAINS", "100"))


@pytest.mark.parametrize("seed", range(CHAINS))
def test_random_pipeline(seed: int) -> None:
    forms = random.Random(seed).sample(FORMS, len(FORMS))
    given = {"question": f"hive {seed % 5}"}
    maker = Maker(seed)
    chain = maker.pipeline()
    plain = {form: call(chain, form, given, maker.effects) for form in forms}
    maker = Maker(seed)
    chain = optimize(maker.pipeline())
    for form in forms:
        outcome = call(chain, form, given, maker.effects)
        assert outcome.failed == plain[form].failed, form
        if NO_COROUTINE not in plain[form].value and not _is_chance(form, outcome, plain[form]):
            assert outcome.value == plain[form].value, form
        if "'failed'" not in repr(plain[form].tree):  # chance decides what runs beside a failure, and which is heard
            assert outcome.tree == plain[form].tree, form
            assert outcome.effects == plain[form].effects, form
        if adapter.calls_of(chain) is not None:  # else there was nothing to optimize
            assert report_of(chain).fallbacks == (), form


def _is_chance(form: str, *outcomes: Outcome) -> bool:
    """In a stream of which two branches fail, the original too may end with the error of either."""
    planted = all(each.failed and each.value.startswith(("Boom(", "KeyError(")) for each in outcomes)
    return "stream" in form and planted


@pytest.mark.parametrize("seed", range(CHAINS // 4))
def test_a_call_that_is_given_up_leaves_nothing_behind(seed: int) -> None:
    """Cancelled, or its stream closed early, at a random moment on a slow engine; the next call is as ever."""
    given, form = {"question": f"hive {seed % 5}"}, random.Random(seed).choice(("ainvoke", "astream", "stream"))
    maker = Maker(seed)
    plain = call(maker.pipeline(), "invoke", given, maker.effects)
    slow = Patient(answer)
    maker = Maker(seed, slow)
    chain = optimize(maker.pipeline())
    threads = set(threading.enumerate())
    chance = random.Random(seed)
    with contextlib.suppress(Boom, TypeError):  # a coroutine function cannot be called from a thread
        match form:
            case "ainvoke":
                asyncio.run(_cancel(chain.ainvoke(given), chance.uniform(0, 0.02)))
            case "astream":
                asyncio.run(_leave(chain.astream(given), chance.randint(0, 3)))
            case _:
                with contextlib.closing(chain.stream(given)) as stream:  # type: ignore[type-var]
                    for _ in zip(range(chance.randint(0, 3)), stream, strict=False):
                        pass
    deadline = time.monotonic() + 60  # in a large process, one collection takes a second or two
    while time.monotonic() < deadline and (slow.running or _left(threads)):
        collect_garbage()  # a stream that failed keeps LangChain's own threads until then
        time.sleep(0.01)
    assert (slow.running, _left(threads)) == (0, [])
    outcome = call(chain, "invoke", given, maker.effects)
    assert (outcome.value, outcome.failed) == (plain.value, plain.failed)


async def _cancel(call: Coroutine[Any, Any, Any], after_s: float) -> None:
    task = asyncio.create_task(call)
    await asyncio.sleep(after_s)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await _ended()


async def _leave(stream: AsyncIterator[Any], after: int) -> None:
    try:
        for _ in range(after):
            await anext(stream)
    except StopAsyncIteration:
        pass
    finally:
        await stream.aclose()  # type: ignore[attr-defined]
    await _ended()


async def _ended() -> None:
    """Tasks that were cancelled end in a moment, with the framework's own."""
    deadline = time.monotonic() + 10
    while len(asyncio.all_tasks()) > 1 and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert len(asyncio.all_tasks()) == 1


def _left(before: set[threading.Thread]) -> list[str]:
    """Threads that a call began, other than ours, which stay."""
    return [t.name for t in set(threading.enumerate()) - before if not t.name.startswith("teola-")]
