"""Applications at work: answers and errors, options of a query, streams, and what is left behind."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import teola_plugin.templates
from teola_plugin import runtime
from teola_plugin.engines import Batch, Capabilities, Completion, Delta, Done, Emit, Failed
from teola_plugin.errors import Cancelled, DeadlineExceeded, GraphError
from teola_plugin.graph import When
from teola_plugin.passes import BRANCHES, DEFAULT
from teola_plugin.profile import Profile
from teola_plugin.registry import EngineConfig
from teola_plugin.templates import (
    App,
    Apply,
    Branches,
    Chunking,
    Component,
    Condition,
    Embedding,
    Generation,
    Ingestion,
    Loop,
    QueryExpansion,
    Searching,
    Takes,
    Tool,
    WebSearch,
)
from teola_plugin.templates.part import Part
from teola_plugin.tenancy import terms
from tests.support.fakes import FakeEngine, says


def llm(answer: Callable[[str], str] = lambda prompt: f"<{prompt}>") -> FakeEngine:
    return FakeEngine(lambda prompt: says(answer(prompt)), name="llm", concurrent=True)


class Store:
    """Finds what its query has put in; `broken` fails each ingestion."""

    ops = ("ingestion", "searching")
    is_per_query = True

    def __init__(self, broken: Exception | None = None) -> None:
        self.name = "store"
        self.capabilities = Capabilities(max_items=16)
        self.broken = broken
        self.rows: dict[Any, list[str]] = {}
        self.owners: set[Any] = set()
        self.over: set[Any] = set()
        self.batches: list[Batch] = []

    async def run(self, batch: Batch, emit: Emit) -> None:
        self.batches.append(batch)
        for at, item in enumerate(batch.items):
            if item.owner in self.over:  # it was on its way when the query ended
                emit(at, Failed(Cancelled("the query is over")))
                continue
            self.owners.add(item.owner)
            if batch.op == "searching":
                emit(at, Done({"documents": self.rows.get(item.owner, [])[: batch.settings["top_k"]]}))
            elif self.broken:
                emit(at, Failed(self.broken))
            else:
                self.rows.setdefault(item.owner, []).append(item.payload[1])
                emit(at, Done(None))

    def release(self, owner: Any) -> None:
        self.over.add(owner)
        self.owners.discard(owner)
        self.rows.pop(owner, None)

    def abort(self, ids: Any) -> None:
        pass

    async def close(self) -> None:
        pass


def rag(store: Store, **more: Any) -> App:
    template = (
        Chunking(2, 0)
        >> Embedding()
        >> Ingestion()
        >> Searching(2)
        >> Generation("{question}: {found}", "answer", name="synthesis")
    )
    return App("rag", template, {"llm": llm(), "embedder": FakeEngine(name="embedder"), "store": store}, **more)


def test_a_query_is_answered_from_its_own_document() -> None:
    app = rag(Store())
    assert app.run(question="who", document="one two three four") == "<who: one two\nthree>"
    assert app.run(question="who", document="one two three four", search_top_k=1) == "<who: one two>"
    assert app.run(question="who", document="one two three four", chunk_size=9) == "<who: one two three four>"


@pytest.mark.parametrize("passes", [(), DEFAULT])
async def test_queries_share_engines_and_batches_and_nothing_else(passes: Any) -> None:
    store = Store()
    app = rag(store, passes=passes)
    embedder: Any = app.engines["embedder"]
    embedder.gate = gate = asyncio.Event()
    asked = asyncio.gather(*(app.arun(question="q", document=f"text{n} of {n}") for n in range(8)))
    await until(lambda: sum(runtime.host.load(embedder)) >= 16)
    runtime.host.loop.call_soon_threadsafe(gate.set)
    assert await asked == [f"<q: text{n} of\n{n}>" for n in range(8)]
    await until(lambda: not store.rows and not store.owners)
    assert max(len({item.owner for item in batch.items}) for batch in embedder.batches) > 1


def test_threads_may_ask_at_once() -> None:
    app = rag(Store())
    with ThreadPoolExecutor(8) as threads:
        got = list(threads.map(lambda n: app.run(question=f"q{n}", document=f"text{n}"), range(24)))
    assert got == [f"<q{n}: text{n}>" for n in range(24)]


def test_several_values_come_by_name() -> None:
    app = App("x", Branches((Generation("{question}", "a"), Generation("!{question}", "b"))), {"llm": llm()})
    assert app.run(question="q") == {"a": "<q>", "b": "<!q>"}
    app = App("x", Generation("{question}", "a") >> Generation("{a}", "b"), {"llm": llm()}, outputs=["b", "a"])
    assert app.run(question="q") == {"b": "<<q>>", "a": "<q>"}


def test_a_value_whose_way_was_not_taken_is_none() -> None:
    both = Condition(str.isupper, "question", Generation("A {question}", "a"), Generation("B {question}", "b"))
    taken = {"a": "<A Q>", "b": ""}
    assert App("x", both, {"llm": llm()}).run(question="Q") == taken
    for name, said in taken.items():
        assert App("x", both, {"llm": llm()}, outputs=[name]).run(question="Q") == said


def test_an_output_that_was_skipped() -> None:
    """A rule may give a value that does not run; by itself it is None, among others it is left out."""

    def rule(part: Part) -> None:
        is_long = part.add("condition", part.value("text"), fn=part.draft.call("is_long", lambda text: len(text) > 3))
        part.draft.guard = When(is_long.name)
        part.give("loud", part.call(str.upper, part.value("text"), fn="upper", named="loud"))
        part.draft.guard = None

    loud = Component("loudly", rule, {"text": Takes(("question",))}, {"loud": "loud"})
    for question, said in (("long", "LONG"), ("no", None)):
        assert App("x", loud, {}).run(question=question) == said
    with_text = loud >> Generation("{question}", "text")
    app = App("x", with_text, {"llm": llm()}, outputs=["loud", "text"])
    assert app.run(question="no") == {"text": "<no>"}
    assert app.run(question="long") == {"loud": "LONG", "text": "<long>"}


def test_every_query_is_counted_out() -> None:
    inside: list[int] = []

    def count(text: str) -> str:
        inside.append(runtime.host.admission.inside)
        return text

    def fail(text: str) -> str:
        raise ValueError(text)

    assert App("x", Apply(count, "question", "a"), {}).run(question="q") == "q"
    with pytest.raises(ValueError, match="q"):
        App("x", Apply(fail, "question", "a"), {}).run(question="q")
    assert (inside, runtime.host.admission.inside) == ([1], 0)


def test_pages_are_told_with_title_and_address() -> None:
    pages = [{"title": "Bees", "snippet": "make honey", "url": "http://bees"}, {"snippet": "no title"}, "text"]
    search = FakeEngine(lambda query: pages, name="search")
    app = App("x", WebSearch(2), {"search": search})
    assert app.run(question="q") == ["Bees: make honey (http://bees)", "no title", "text"]


# --- errors ---------------------------------------------------------------------------------------------------------


async def test_an_error_is_the_same_object_and_leaves_nothing_behind() -> None:
    error, store = KeyError("mine"), Store()
    app = rag(store)
    app.engines["llm"].answer = lambda prompt: (_ for _ in ()).throw(error)  # type: ignore[attr-defined]
    with pytest.raises(KeyError) as caught:
        await app.arun(question="q", document="d")
    assert caught.value is error
    await until(lambda: not store.rows and not store.owners)


def test_an_ingestion_that_fails_fails_its_query() -> None:
    error = OSError("no space")
    with pytest.raises(OSError, match="no space") as caught:
        rag(Store(error)).run(question="q", document="d")
    assert caught.value is error


@pytest.mark.parametrize("is_async", [False, True])
def test_the_error_of_a_function_is_the_query_s(is_async: bool) -> None:
    error = ValueError("mine")

    def fail(text: str) -> str:
        raise error

    async def afail(text: str) -> str:
        raise error

    app = App("x", Apply(afail if is_async else fail, "question", "a"), {})
    with pytest.raises(ValueError, match="mine") as caught:
        app.run(question="q")
    assert caught.value is error


def test_a_coroutine_function_is_a_function() -> None:
    async def shout(text: str) -> str:
        await asyncio.sleep(0)
        return text.upper()

    assert App("x", Apply(shout, "question", "a"), {}).run(question="q") == "Q"


async def test_a_cancelled_query_ends_its_work() -> None:
    store, engine = Store(), llm()
    app = rag(store)
    app.engines["llm"] = engine
    app = App("rag", app.template, app.engines)
    engine.gate = asyncio.Event()  # never set: the engine's loop is another one
    task = asyncio.create_task(app.arun(question="q", document="d"))
    await until(lambda: engine.batches)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: engine.aborted and not store.owners)


# --- conditions, loops ----------------------------------------------------------------------------------------------


def test_only_the_way_that_is_taken_is_asked() -> None:
    search = FakeEngine(lambda call: f"saw {call}", name="tools")
    judge = Condition(lambda said: "?" in said, of="question", then=Tool("question", "seen"), default="nothing")
    app = App("x", judge >> Generation("{question} {seen}", "answer"), {"llm": llm(), "tools": search})
    assert app.run(question="hi") == "<hi nothing>"
    assert search.seen == []
    assert app.run(question="who?") == "<who? saw who?>"
    assert search.seen == ["who?"]


class Judged:
    """A judge that says what it is told to, and a search that it decides on."""

    def __init__(self, verdict: str, **search: Any) -> None:
        self.search = FakeEngine(
            **{"answer": lambda vector: {"documents": [f"saw {vector}"]}, "name": "store", **search}
        )
        self.llm = FakeEngine(self._write, name="llm", concurrent=True)
        self.verdict = verdict
        judge = Generation("Judge {question}", "verdict", name="judge")
        found = Condition(lambda said: said == "yes", of="verdict", then=Searching(1))
        engines = {"llm": self.llm, "embedder": FakeEngine(name="embedder"), "store": self.search}
        self.app = App("x", judge >> found >> Generation("{question} {found}", "answer"), engines, passes=BRANCHES)

    def _write(self, prompt: str) -> Completion:
        return says(self.verdict if prompt.startswith("Judge") else f"<{prompt}>")

    async def asked(self, *, while_judged: Callable[[], Awaitable[None]]) -> Any:
        """The answer; the judge waits for `while_judged`."""
        self.llm.gate = asyncio.Event()
        task = asyncio.create_task(self.app.arun(question="q"))
        await until(lambda: self.llm.batches)
        await while_judged()
        runtime.host.loop.call_soon_threadsafe(self.llm.gate.set)
        return await task


@pytest.mark.parametrize(("verdict", "answer"), [("yes", "<q saw q>"), ("no", "<q >")])
async def test_what_a_condition_may_lead_to_is_read_before_it_is_decided(verdict: str, answer: str) -> None:
    judged = Judged(verdict)
    assert await judged.asked(while_judged=lambda: until(lambda: judged.search.seen == ["q"])) == answer
    assert judged.search.seen == ["q"]


@pytest.mark.parametrize(("verdict", "answer"), [("yes", None), ("no", "<q >")])
async def test_the_error_of_what_is_read_ahead_counts_only_if_it_is_wanted(verdict: str, answer: str | None) -> None:
    error = OSError("the store is gone")
    judged = Judged(verdict, answer=lambda vector: (_ for _ in ()).throw(error))
    if answer is None:
        with pytest.raises(OSError, match="the store is gone") as caught:
            await judged.asked(while_judged=lambda: until(lambda: judged.search.batches))
        assert caught.value is error
    else:
        assert await judged.asked(while_judged=lambda: until(lambda: judged.search.batches)) == answer


async def test_where_the_judge_fails_its_error_is_the_query_s() -> None:
    error = ValueError("no judge")
    judged = Judged("yes", answer=lambda vector: (_ for _ in ()).throw(OSError("the store is gone")))
    judged.llm.answer = lambda prompt: (_ for _ in ()).throw(error)
    with pytest.raises(ValueError, match="no judge") as caught:
        await judged.asked(while_judged=lambda: until(lambda: judged.search.batches))
    assert caught.value is error
    assert len(judged.search.batches) == 1


async def test_what_is_read_ahead_for_nothing_is_not_waited_for() -> None:
    judged = Judged("no")
    judged.search.gate = asyncio.Event()  # never set
    assert await judged.asked(while_judged=lambda: until(lambda: judged.search.batches)) == "<q >"
    await until(lambda: judged.search.aborted)


@pytest.mark.parametrize(("verdict", "seen"), [("yes", 3), ("no", 2)])
async def test_an_engine_with_other_things_to_do_is_not_asked_ahead(verdict: str, seen: int) -> None:
    judged = Judged(verdict, max_items=1)
    store = App("other", Searching(1), {"embedder": FakeEngine(name="embedder"), "store": judged.search})
    judged.search.gate = asyncio.Event()
    others = [asyncio.create_task(store.arun(question=f"other {n}")) for n in range(2)]
    await until(lambda: sum(runtime.host.load(judged.search)) == 2)

    async def go_on() -> None:
        embedder: Any = judged.app.engines["embedder"]
        await until(lambda: embedder.batches)
        await asyncio.sleep(0.05)
        assert sum(runtime.host.load(judged.search)) == 2
        runtime.host.loop.call_soon_threadsafe(judged.search.gate.set)
        await asyncio.gather(*others)
        assert len(judged.search.seen) == 2

    await judged.asked(while_judged=go_on)
    assert len(judged.search.seen) == seen


async def test_what_comes_after_a_condition_was_decided_against_is_not_read() -> None:
    judge = FakeEngine(lambda question: "no", name="tools")
    embedder, writer = FakeEngine(name="embedder"), llm(lambda prompt: "one\ntwo\nthree")
    writer.gate = asyncio.Event()
    both = Branches((Tool("question", "verdict"), QueryExpansion(3)))
    found = Condition(lambda said: said == "yes", of="verdict", then=Searching(1))
    engines = {"llm": writer, "embedder": embedder, "store": FakeEngine(name="store"), "tools": judge}
    slow = {"tools": Profile.affine(60.0)}
    app = App("x", both >> found, engines, passes=BRANCHES, profiles=slow, outputs=["queries", "found"])
    assert "ahead=True" in app.explain()
    task = asyncio.create_task(app.arun(question="q"))
    await until(lambda: judge.batches and writer.batches)
    await asyncio.sleep(0.05)
    runtime.host.loop.call_soon_threadsafe(writer.gate.set)
    assert await task == {"queries": ["one", "two", "three"], "found": []}
    assert embedder.seen == []


@pytest.mark.parametrize(("enough", "calls"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_a_loop_ends_as_soon_as_it_may(enough: int, calls: int) -> None:
    engine = llm(lambda prompt: prompt + "+")
    body = Generation("{question}", "draft", name="better", engine="llm")
    again = Generation("{draft}", "draft", name="again")
    loop = Loop(again, lambda draft: draft.count("+") > enough, of="draft", at_most=3)
    app = App("x", body >> loop, {"llm": engine})
    assert app.run(question="q") == "q+" + "+" * calls
    assert len([batch for batch in engine.batches if batch.op == "decoding"]) == calls + 1


def test_a_retrieval_goes_on_with_what_it_found() -> None:
    hop = (
        Generation("{question}|{notes}", "query")
        >> Searching(1, takes={"queries": "query"})
        >> Apply(lambda notes, found: notes + found[0], ["notes", "found"], "notes")
    )
    hops = Loop(hop, lambda notes: notes.endswith("c"), of="notes", at_most=5, name="hops")
    template = Apply(lambda question: "", "question", "notes", name="nothing_yet") >> hops
    engine = llm(lambda prompt: prompt.partition("|")[2])
    store = FakeEngine(lambda seen: {"documents": ["abc"[len(seen)]]}, name="store")
    app = App(
        "x", template, {"llm": engine, "embedder": FakeEngine(name="embedder"), "store": store}, outputs=["notes"]
    )
    assert app.run(question="q") == "abc"
    assert store.seen == ["", "a", "ab"]


@pytest.mark.parametrize("at_most", [8, None])
@pytest.mark.parametrize("enough", [2, 6, 8])
def test_rounds_are_revealed_until_it_is_enough(at_most: int | None, enough: int) -> None:
    engine = llm(lambda prompt: prompt + "+")
    again = Generation("{question}", "question", name="again")
    loop = Loop(again, lambda said: re.search(rf"\+{{{enough}}}", said), of="question", at_most=at_most)
    app = App("x", loop >> Generation("{question}!", "answer"), {"llm": engine})
    assert app.run(question="q") == "q" + "+" * enough + "!+"
    assert len([batch for batch in engine.batches if batch.op == "decoding"]) == enough + 1


@pytest.mark.parametrize("at_most", [1, 3, 4, 6])
def test_a_loop_that_is_never_enough_ends_after_its_last_round(at_most: int) -> None:
    loop = Loop(Apply(lambda n: n + 1, "n", "n"), lambda n: False, of="n", at_most=at_most)
    assert App("x", loop, {}, inputs=["n"], outputs=["n"]).run(n=0) == at_most


def test_two_functions_of_one_component_are_two() -> None:
    def rule(part: Part) -> None:
        part.give("loud", part.call(str.upper, part.value("text"), named="loud"))
        part.give("quiet", part.call(str.lower, part.value("text"), named="quiet"))

    both = Component("both", rule, {"text": Takes(("question",))}, {"loud": "loud", "quiet": "quiet"})
    assert App("x", both, {}, outputs=["loud", "quiet"]).run(question="Who") == {"loud": "WHO", "quiet": "who"}


def test_a_function_may_have_the_name_of_a_loop() -> None:
    loop = Loop(Apply(lambda n: n + 1, "n", "n"), lambda n: False, of="n", at_most=6, name="count")
    app = App("sums", loop >> Apply(lambda n: n * 100, "n", "m", name="count"), {}, inputs=["n"])
    assert app.run(n=0) == 600


def test_an_error_in_a_late_round_is_that_of_the_query() -> None:
    def fails(count: int) -> int:
        if count == 5:
            raise ValueError("mine")
        return count + 1

    loop = Loop(Apply(fails, "count", "count"), lambda count: False, of="count", at_most=None)
    app = App("x", loop, {}, inputs=["count"], outputs=["count"])
    with pytest.raises(ValueError, match="mine"):
        app.run(count=0)


def passing(source: str, to: str) -> Component:
    """Gives what it takes."""
    return Component(
        f"{source}_as_{to}", lambda part: part.give("v", part.value("s")), {"s": Takes((source,))}, {"v": to}
    )


@pytest.mark.parametrize("at_most", [3, 6, None])
@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5])
def test_values_that_are_passed_on_are_those_of_the_last_round(rounds: int, at_most: int | None) -> None:
    counting = Apply(lambda n: n + 1, "n", "n")
    swap = passing("a", "c") >> passing("b", "a") >> passing("c", "b") >> counting
    loop = Loop(swap, lambda n: n >= rounds, of="n", at_most=at_most)
    app = App("x", loop, {}, inputs=["a", "b", "n"], outputs=["a", "b", "n"])
    ran = min(rounds, at_most or rounds)
    assert app.run(a="A", b="B", n=0) == {"a": "BA"[ran % 2 == 0], "b": "AB"[ran % 2 == 0], "n": ran}


def test_a_way_that_passes_a_value_on_gives_it_only_where_it_is_taken() -> None:
    ways = Condition(bool, "n", passing("a", "chosen"), passing("b", "chosen"))
    app = App("x", ways, {}, inputs=["a", "b", "n"], outputs=["chosen"])
    assert [app.run(a="A", b="B", n=n) for n in (0, 1)] == ["B", "A"]


@pytest.mark.parametrize("at_most", [3, None])
def test_what_comes_with_the_query_stays_where_a_round_does_not_change_it(at_most: int | None) -> None:
    more = Apply(lambda question: question + "+", "question", "question")
    body = Condition(lambda n: n == 1, "n", more) >> Apply(lambda n: n + 1, "n", "n")
    app = App("x", Loop(body, lambda n: n >= 3, of="n", at_most=at_most), {}, inputs=["n"], outputs=["question"])
    assert app.run(question="q", n=0) == "q+"


async def test_who_cancels_ends_rounds_without_end() -> None:
    engine = llm(lambda prompt: prompt)
    body = Generation("{question}", "question", name="again")
    app = App("x", Loop(body, lambda said: False, of="question", at_most=None), {"llm": engine})
    running = asyncio.ensure_future(app.arun(question="q"))
    await until(lambda: len(engine.batches) > 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: runtime.host.load(engine) == (0, 0))
    await asyncio.sleep(0.05)
    count = len(engine.batches)
    await asyncio.sleep(0.05)
    assert len(engine.batches) == count


def test_a_deadline_ends_rounds_without_end() -> None:
    engine = llm(lambda prompt: prompt)
    body = Generation("{question}", "question", name="again")
    app = App("x", Loop(body, lambda said: False, of="question", at_most=None), {"llm": engine})
    with terms(deadline_s=0.3), pytest.raises(DeadlineExceeded):
        app.run(question="q")
    counting = Loop(Apply(lambda n: n + 1, "n", "n"), lambda n: False, of="n", at_most=None)
    with terms(deadline_s=0.3), pytest.raises(DeadlineExceeded, match="the query had not ended before its deadline"):
        App("x", counting, {}, inputs=["n"], outputs=["n"]).run(n=0)


def test_lists_in_lists_end_in_their_scopes() -> None:
    def answer(prompt: str) -> str:
        kind, _, rest = prompt.partition(" ")
        return {"claims": "a\nb", "queries": f"{rest}1\n{rest}2"}.get(kind, f"({rest})")

    template = (
        Generation("claims {question}", "claims", items="lines")
        >> QueryExpansion(2, prompt="queries {question}", scope="claims", takes={"question": "claims"})
        >> Tool("queries", "hits")
        >> Generation("verdict {claims}: {hits}", "verdicts", scope="claims")
    )
    app = App("x", template, {"llm": llm(answer), "tools": FakeEngine(str.upper, name="tools")})
    assert app.run(question="q") == ["(a: A1\nA2)", "(b: B1\nB2)"]


# --- streams --------------------------------------------------------------------------------------------------------


class Slow:
    """Says one word at each step of `gate`, and notes when it was aborted."""

    def __init__(self) -> None:
        self.name = "llm"
        self.capabilities = Capabilities(max_items=4, concurrent=True, abort=True)
        self.gate = threading.Semaphore(0)
        self.aborted: list[int] = []

    async def run(self, batch: Batch, emit: Emit) -> None:
        for word in ("one ", "two ", "three"):
            while not self.gate.acquire(blocking=False):
                await asyncio.sleep(0.001)
                if self.aborted:
                    return
            emit(0, Delta(word))
        emit(0, Done(Completion("one two three", pieces=("one ", "two ", "three"))))

    def abort(self, ids: Any) -> None:
        self.aborted += ids

    async def close(self) -> None:
        pass


def test_an_answer_is_told_as_it_is_written() -> None:
    engine = Slow()
    pieces = App("x", Generation("{question}", "answer"), {"llm": engine}).stream(question="q")
    engine.gate.release()
    assert next(pieces) == "one "
    engine.gate.release(2)
    assert list(pieces) == ["two ", "three"]


async def test_who_leaves_a_stream_ends_its_query() -> None:
    engine = Slow()
    pieces = App("x", Generation("{question}", "answer"), {"llm": engine}).astream(question="q")
    engine.gate.release()
    assert await anext(pieces) == "one "
    await pieces.aclose()  # type: ignore[attr-defined]
    await until(lambda: engine.aborted)


def test_who_leaves_a_stream_without_a_loop_ends_its_query() -> None:
    engine = Slow()
    pieces: Any = App("x", Generation("{question}", "answer"), {"llm": engine}).stream(question="q")
    engine.gate.release()
    assert next(pieces) == "one "
    pieces.close()
    asyncio.run(until(lambda: engine.aborted))


def test_a_stream_ends_with_its_error() -> None:
    engine = llm()
    engine.answer = lambda prompt: (_ for _ in ()).throw(ValueError("mine"))
    pieces = App("x", Generation("{question}", "answer"), {"llm": engine}).stream(question="q")
    with pytest.raises(ValueError, match="mine"):
        list(pieces)


def test_of_two_ways_the_one_that_is_taken_is_told() -> None:
    ways = Generation("a {question}", "answer"), Generation("b {question}", "answer", name="other")
    app = App("x", Condition(lambda said: said == "q", "question", *ways), {"llm": llm()})
    assert "".join(app.stream(question="q")) == "<a q>"
    assert "".join(app.stream(question="r")) == "<b r>"


def test_what_is_no_one_text_cannot_be_streamed() -> None:
    again = Generation("{draft}", "draft", name="again")
    for template in (
        Generation("{question}", "answers", items="lines"),
        Generation("{question}", "draft") >> Loop(again, bool, of="draft"),
        Condition(bool, "question", Generation("{question}", "answer")),
    ):
        app = App("x", template, {"llm": llm()})
        with pytest.raises(GraphError, match="only an answer that an LLM writes as one text can be streamed"):
            app.stream(question="q")


async def until(is_so: Callable[[], Any]) -> None:
    while not is_so():  # noqa: ASYNC110 (it happens on another thread, and the test has a timeout)
        await asyncio.sleep(0.001)


# --- the guide ------------------------------------------------------------------------------------------------------


def test_what_the_guide_says_works() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "templates.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(blocks) == 5
    fakes: dict[str, Any] = {name: FakeEngine(name=name) for name in ("embedder", "reranker", "search", "tools")}
    fakes |= {"llm": llm(lambda prompt: "yes\nnothing"), "small_llm": llm(lambda prompt: "yes"), "store": Store()}
    fakes["reranker"].answer = len
    fakes["search"].answer = lambda query: [{"title": query, "url": "u", "snippet": "s"}]
    names: dict[str, Any] = {**{n: getattr(teola_plugin.templates, n) for n in teola_plugin.templates.__all__}, **fakes}
    names |= {"engines": fakes, "EngineConfig": EngineConfig}
    apps = []
    for block in blocks:
        exec(block.replace('question="...", document="..."', 'question="q", document="a b"'), names)
        apps.append(names["app"])
    assert names["answer"] == "yes\nnothing"
    assert apps[1].run(answer="a")[0] == "yes\nnothing"
    assert apps[2].run(question="q") == "yes\nnothing"
