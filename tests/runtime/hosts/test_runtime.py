"""Host, session and run-ahead together, on fake engines: slots, faults, cancellation, and what a call leaves behind."""

from __future__ import annotations

import asyncio
import contextvars
import textwrap
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from teola_plugin import configure, runtime
from teola_plugin.engines import Batch, Done, Emit, EngineSpec
from teola_plugin.errors import Cancelled, EngineClosed, EngineError, TeolaError
from teola_plugin.graph import parse
from teola_plugin.plan import make_plan
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.session import plan_executor
from teola_plugin.runtime.session.graph_runner import run_query
from teola_plugin.runtime.session.plan_executor import Prepared
from teola_plugin.runtime.session.session import NEXT, Session
from teola_plugin.seams import Reply, active, current
from teola_plugin.trace import Function
from tests.support.fakes import FakeEngine, collect_garbage, says

TEXT = """
inputs(question)
kv = prefilling('rewrite: ', question) @ llm
rewrites: [] = partial_decoding(kv, items='lines') @ llm
q: [] = embedding(*rewrites, normalize=True) @ embedder
q0 = embedding(question, normalize=True) @ embedder
hits: [] = searching(*q, top_k=2) @ store, reads(kb)
out = call(q0, hits, fn='join') @ python
outputs(out)
"""


@pytest.fixture
def host() -> Iterator[LocalHost]:
    host = LocalHost()
    yield host
    host.close()


def engines() -> dict[str, FakeEngine]:
    return {
        "llm": FakeEngine(lambda prompt: says("one\ntwo"), name="llm", concurrent=True),
        "embedder": FakeEngine(lambda text: f"v({text})", name="embedder"),
        "store": FakeEngine(lambda vector: [f"doc of {vector}"], name="store"),
    }


def prepared(fakes: dict[str, FakeEngine], text: str = TEXT) -> Prepared:
    functions = {"join": Function(lambda *a: a, is_glue=True), "boom": Function(_boom, is_glue=True)}
    return Prepared(make_plan(parse(text)), functions, {n: e.spec for n, e in fakes.items()})


def _boom(*_: Any) -> Any:
    raise RuntimeError("boom")


def gated(host: LocalHost) -> asyncio.Event:
    """An event of the host's loop that holds an engine back until it is set."""

    async def gate() -> asyncio.Event:
        return asyncio.Event()

    return asyncio.run_coroutine_threadsafe(gate(), host.loop).result()


def barrier(host: LocalHost) -> None:
    """Everything the loop can do without anybody's help has been done."""
    for _ in range(40):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), host.loop).result()


def test_what_ran_ahead_is_taken_and_nothing_runs_twice(host: LocalHost) -> None:
    fakes = engines()
    session = Session(host)
    session.run_ahead(prepared(fakes), [{"question": "why"}], {})
    barrier(host)
    text = session.ask(fakes["llm"].spec, "decoding", ["rewrite: why"], {})[0]
    assert "".join(text.stream()) == "one\ntwo" == text.result()
    vectors = session.ask(fakes["embedder"].spec, "embedding", ["why", "one", "two"], {"normalize": True})
    assert [v.result() for v in vectors] == ["v(why)", "v(one)", "v(two)"]
    hits = session.ask(fakes["store"].spec, "searching", ["v(one)", "v(two)"], {"top_k": 2})
    assert [h.result() for h in hits] == [["doc of v(one)"], ["doc of v(two)"]]
    report = session.close()
    assert (report.hits, report.misses, report.shared, report.stale, report.wasted) == (6, 0, 0, 0, 0)
    assert sorted(fakes["embedder"].seen) == ["one", "two", "why"]
    assert report.fallbacks == ()


def test_a_leaf_that_came_first_is_shared_with_the_run_ahead(host: LocalHost) -> None:
    fakes = engines()
    session = Session(host)
    first = session.ask(fakes["llm"].spec, "decoding", ["rewrite: why"], {})[0]
    session.run_ahead(prepared(fakes), [{"question": "why"}], {})
    first.result()
    barrier(host)
    assert session.ask(fakes["embedder"].spec, "embedding", ["one"], {"normalize": True})[0].result() == "v(one)"
    report = session.close()
    assert fakes["llm"].seen == ["rewrite: why"]
    assert (report.shared, report.hits, report.misses) == (1, 1, 0)


def test_each_slot_is_handed_out_once(host: LocalHost) -> None:
    fakes = engines()
    session = Session(host)
    session.run_ahead(prepared(fakes), [{"question": "why"}], {})
    barrier(host)
    spec = fakes["llm"].spec
    replies = session.ask(spec, "decoding", ["rewrite: why", "rewrite: why"], {})
    assert [r.result() for r in replies] == ["one\ntwo"] * 2
    assert fakes["llm"].seen.count("rewrite: why") == 2
    assert session.close().misses == 1


@pytest.mark.parametrize("op", ["embedding", "searching"])
def test_an_error_of_what_is_shared_is_raised_in_one_place(host: LocalHost, op: str) -> None:
    def broken(payload: Any) -> Any:
        raise RuntimeError("boom")

    engine = FakeEngine(broken)
    engine.gate = gated(host)
    session = Session(host)
    session.submit_ahead(engine.spec, op, ["one", "one"], {}, NEXT)
    replies = [session.ask(engine.spec, op, ["one"], {})[0] for _ in range(2)]
    host.soon(engine.gate.set)
    errors = []
    for reply in replies:
        with pytest.raises(RuntimeError, match="boom") as raised:
            reply.result()
        errors.append(raised.value)
    assert errors[0] is not errors[1]
    assert session.close().hits == 2


@pytest.mark.parametrize("is_beside", [False, True])
@pytest.mark.parametrize("is_taken_first", [False, True])
def test_what_a_function_gives_up_is_not_taken_from_others(
    host: LocalHost, is_taken_first: bool, is_beside: bool
) -> None:
    engine = FakeEngine(lambda text: f"v({text})")
    engine.gate = gated(host)
    session = Session(host)
    session._is_beside = is_beside
    function = session.asking(NEXT)
    (ahead,) = function.ask(engine.spec, "embedding", ["why"], {})
    taken = session.ask(engine.spec, "embedding", ["why"], {}) if is_taken_first else []
    barrier(host)
    ahead.cancel_unless_ended()  # it was stopped, or something else that it waits for has failed
    barrier(host)
    taken = taken or session.ask(engine.spec, "embedding", ["why"], {})
    host.soon(engine.gate.set)
    assert taken[0].result() == "v(why)"
    with pytest.raises(Cancelled):
        ahead.result()
    report = session.close()
    assert (report.hits, report.misses) == ((1, 0) if is_taken_first else (0, 1))


def test_the_same_embedding_is_computed_once(host: LocalHost) -> None:
    fakes = engines()
    session = Session(host)
    session.run_ahead(prepared(fakes), [{"question": "why"}], {})
    barrier(host)
    spec = fakes["embedder"].spec
    replies = session.ask(spec, "embedding", ["why", "why", "not", "not"], {"normalize": True})
    assert [r.result() for r in replies] == ["v(why)", "v(why)", "v(not)", "v(not)"]
    assert [fakes["embedder"].seen.count(text) for text in ("why", "not")] == [1, 1]
    report = session.close()
    assert (report.hits, report.misses) == (3, 1)


def test_the_same_search_is_computed_once_and_each_has_its_own_result(host: LocalHost) -> None:
    engine = FakeEngine(lambda vector: {"metadatas": [{"seen": 0}]})
    session = Session(host)
    first, second = (session.submit_ahead(engine.spec, "searching", ["v"], {}, NEXT)[0] for _ in range(2))
    assert first.result() == second.result() == {"metadatas": [{"seen": 0}]}
    first.result()["metadatas"][0]["seen"] = 1
    assert second.result() == {"metadatas": [{"seen": 0}]}
    third = session.submit_ahead(engine.spec, "searching", ["w"], {}, NEXT)[0]
    assert third.result() == session.submit_ahead(engine.spec, "searching", ["w"], {}, NEXT)[0].result()  # also later
    assert len(engine.seen) == 2
    (taken,) = session.ask(engine.spec, "searching", ["x"], {})
    taken.result()["metadatas"][0]["seen"] = 1
    (other,) = session.ask(engine.spec, "searching", ["x"], {})
    assert other.result() == {"metadatas": [{"seen": 0}]}, "what somebody had is not handed out again"
    session.close()


def test_a_different_setting_is_a_miss_not_a_wrong_answer(host: LocalHost) -> None:
    fakes = engines()
    session = Session(host)
    session.run_ahead(prepared(fakes), [{"question": "why"}], {})
    session.ask(fakes["embedder"].spec, "embedding", ["why"], {"normalize": False})[0].result()
    report = session.close()
    assert (report.hits, report.misses) == (0, 1)
    assert report.wasted > 0


def test_a_search_that_ran_ahead_of_a_write_is_computed_anew(host: LocalHost) -> None:
    fakes = engines()
    session = Session(host)
    session.run_ahead(prepared(fakes), [{"question": "why"}], {})
    barrier(host)
    fakes["store"].version += 1
    fakes["store"].answer = lambda vector: ["new"]
    hits = session.ask(fakes["store"].spec, "searching", ["v(one)"], {"top_k": 2})
    assert hits[0].result() == ["new"]
    assert session.close().stale == 1


def test_an_engine_error_reaches_the_leaf_as_the_same_object(host: LocalHost) -> None:
    fakes = engines()
    error = ValueError("too long")

    def answer(prompt: str) -> Any:
        raise error

    fakes["llm"].answer = answer
    session = Session(host)
    session.run_ahead(prepared(fakes), [{"question": "why"}], {})
    barrier(host)
    with pytest.raises(ValueError, match="too long") as caught:
        session.ask(fakes["llm"].spec, "decoding", ["rewrite: why"], {})[0].result()
    assert caught.value is error
    assert session.close().hits == 1


def test_an_engine_that_raises_fails_its_batch_and_lives_on(host: LocalHost) -> None:
    class Dying(FakeEngine):
        async def run(self, batch: Batch, emit: Emit) -> None:
            if batch.items[0].payload == "bad":
                raise OSError("gone")
            await super().run(batch, emit)

    engine = Dying()
    bad, good = Reply(), Reply()
    host.submit(engine, "x", ["bad"], {}, [bad])
    host.submit(engine, "y", ["good"], {}, [good])
    with pytest.raises(OSError, match="gone"):
        bad.result()
    assert good.result() == "good"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_an_exit_raised_by_an_engine_reaches_its_caller_and_leaves_the_host_alive(
    host: LocalHost, error: BaseException
) -> None:
    class Exiting(FakeEngine):
        async def run(self, batch: Batch, emit: Emit) -> None:
            raise error

    reply, good = Reply(), Reply()
    host.submit(Exiting(), "x", ["a"], {}, [reply])
    with pytest.raises(type(error)):
        reply.result()
    host.submit(FakeEngine(), "x", ["a"], {}, [good])
    assert good.result() == "a"


def test_an_engine_that_forgets_an_item_does_not_hang_it(host: LocalHost) -> None:
    class Forgetful(FakeEngine):
        async def run(self, batch: Batch, emit: Emit) -> None:
            self.batches.append(batch)
            if batch.items[0].payload == "a":
                emit(0, Done("first"))
                emit(0, Done("again"))

    engine = Forgetful()
    replies = [Reply(), Reply()]
    host.submit(engine, "x", ["a", "b"], {}, replies)
    assert replies[0].result() == "first"
    with pytest.raises(EngineError, match="without an answer"):
        replies[1].result()
    assert engine.seen == ["a", "b", "b"], "asked once more, then no longer"


def test_a_function_that_fails_in_the_run_ahead_harms_nothing(host: LocalHost) -> None:
    fakes = engines()
    text = TEXT.replace("q0 = embedding(question", "x = call(question, fn='boom') @ python\nq0 = embedding(x")
    session = Session(host)
    session.run_ahead(prepared(fakes, text), [{"question": "why"}], {})
    assert session.ask(fakes["llm"].spec, "decoding", ["rewrite: why"], {})[0].result() == "one\ntwo"
    barrier(host)
    assert session.ask(fakes["embedder"].spec, "embedding", ["one"], {"normalize": True})[0].result() == "v(one)"
    assert session.close().fallbacks == ()


def test_a_fault_of_the_run_ahead_is_counted_and_the_framework_goes_on(host: LocalHost) -> None:
    fakes = engines()
    broken = Prepared(prepared(fakes).plan, {}, {"llm": fakes["llm"].spec, "embedder": fakes["embedder"].spec})
    session = Session(host)
    session.run_ahead(broken, [{"question": "why"}], {})
    barrier(host)
    assert session.ask(fakes["store"].spec, "searching", ["v"], {"top_k": 2})[0].result() == ["doc of v"]
    assert any("TF001" in f for f in session.close().fallbacks)


def test_the_value_of_a_barrier_lets_the_run_ahead_go_on(host: LocalHost) -> None:
    fakes = engines()
    text = """
    inputs(question)
    load = call(question, fn='ingest') @ pipeline, writes(kb)
    v = embedding(load) @ embedder
    hit = searching(v, top_k=1) @ store, reads(kb), after(load)
    outputs(hit)
    """
    session = Session(host)
    component = object()
    session.run_ahead(prepared(fakes, textwrap.dedent(text)), [{"question": "why"}], {id(component): "load"})
    barrier(host)
    assert fakes["embedder"].seen == []
    session.observe(component, "loaded")
    barrier(host)
    assert fakes["store"].seen == ["v(loaded)"]
    session.close()


@pytest.mark.parametrize("patience_s", [0.0, 1000.0])
def test_a_function_is_put_off_while_the_framework_is_busy(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    monkeypatch.setattr(plan_executor, "PATIENCE_S", patience_s)
    fakes = engines()
    text = """
    inputs(question)
    load = call(question, fn='load') @ pipeline
    prompt = call(load, fn='rehearse') @ python
    kv = prefilling(prompt) @ llm
    answer = decoding(kv) @ llm
    outputs(answer)
    """
    functions = {"rehearse": Function(str.upper)}
    component = object()
    session = Session(host)
    ahead = replace(prepared(fakes, textwrap.dedent(text)), functions=functions)
    session.run_ahead(ahead, [{"question": "why"}], {id(component): "load"})
    session.ask(fakes["embedder"].spec, "embedding", ["x"], {})[0].result()  # from here on the framework is busy
    session.observe(component, "loaded")
    if patience_s:
        barrier(host)
        assert fakes["llm"].seen == []
        fakes["embedder"].gate = gated(host)
        session.ask(fakes["embedder"].spec, "embedding", ["y"], {})  # and here it waits
    while not fakes["llm"].seen:
        barrier(host)
    assert fakes["llm"].seen == ["LOADED"]
    session.close()
    if fakes["embedder"].gate:
        host.loop.call_soon_threadsafe(fakes["embedder"].gate.set)


def test_closing_the_session_cancels_what_nobody_took(host: LocalHost) -> None:
    fakes = engines()
    fakes["llm"].gate = gated(host)
    session = Session(host)
    session.run_ahead(prepared(fakes), [{"question": "why"}], {})
    barrier(host)
    report = session.close()
    barrier(host)
    assert len(fakes["llm"].aborted) == 1
    assert report.wasted == 2
    assert fakes["llm"].released
    host.loop.call_soon_threadsafe(fakes["llm"].gate.set)


def test_who_asks_after_the_end_is_answered(host: LocalHost) -> None:
    """A branch that failed ends the call; the others run on, and may want what ran ahead for them."""
    fakes = engines()
    session = Session(host)
    gate = gated(host)
    fakes["llm"].gate = gate
    session.run_ahead(prepared(fakes), [{"question": "why"}], {})
    barrier(host)
    session.close()
    host.loop.call_soon_threadsafe(gate.set)
    for prompt in fakes["llm"].seen or ["anything"]:
        (reply,) = session.ask(fakes["llm"].spec, "decoding", [prompt], {})
        assert isinstance(reply.result(), str)


def test_closing_a_stream_early_cancels_its_item(host: LocalHost) -> None:
    engine = FakeEngine(lambda p: says("a b c"), concurrent=True)
    engine.gate = gated(host)
    reply = Reply()
    host.submit(engine, "decoding", ["p"], {}, [reply])
    barrier(host)
    stream = reply.stream()
    reply.cancel_unless_ended()
    with pytest.raises(Cancelled):
        list(stream)
    barrier(host)
    assert engine.aborted
    host.loop.call_soon_threadsafe(engine.gate.set)


async def test_a_reply_can_be_awaited_and_streamed_from_another_loop(host: LocalHost) -> None:
    engine = FakeEngine(lambda p: says("a b c"), concurrent=True)
    reply = Reply()
    host.submit(engine, "decoding", ["p"], {}, [reply])
    assert [d async for d in reply.astream()] == ["a ", "b ", "c"]
    assert await reply.aresult() == "a b c"


async def test_a_cancelled_waiter_leaves_the_reply_alone(host: LocalHost) -> None:
    reply = Reply()
    waiter = asyncio.ensure_future(reply.aresult())
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    reply.put(Done(1))
    assert await reply.aresult() == 1


def test_closing_the_host_ends_all_work_and_a_new_call_starts_it_afresh() -> None:
    host = LocalHost()
    engine = FakeEngine()
    engine.gate = gated(host)
    running, queued = Reply(), Reply()
    host.submit(engine, "x", ["a"], {}, [running])
    host.submit(engine, "y", ["b"], {}, [queued])
    host.close()
    for reply in (running, queued):
        with pytest.raises(EngineClosed):
            reply.result()
    assert engine.is_closed
    engine.gate = None
    again = Reply()
    host.submit(engine, "x", ["a"], {}, [again])
    assert again.result() == "a"
    host.close()


def test_the_host_keeps_no_engine_alive(host: LocalHost) -> None:
    engine = FakeEngine()
    reply = Reply()
    host.submit(engine, "x", ["a"], {}, [reply])
    reply.result()
    gone = weakref.ref(engine)
    del engine, reply
    barrier(host)
    collect_garbage()
    assert gone() is None


def test_two_queries_share_a_batch(host: LocalHost) -> None:
    engine = FakeEngine()
    first = Reply()
    engine.gate = gated(host)
    host.submit(engine, "embedding", ["warm"], {}, [first])
    barrier(host)
    sessions = [Session(host), Session(host)]
    replies = [s.ask(EngineSpec("engine", engine), "embedding", [f"q{i}"], {})[0] for i, s in enumerate(sessions)]
    barrier(host)
    host.loop.call_soon_threadsafe(engine.gate.set)
    assert [r.result() for r in replies] == ["q0", "q1"]
    assert [len(b.items) for b in engine.batches] == [1, 2]


def test_who_joins_a_text_late_hears_the_same_deltas(host: LocalHost) -> None:
    engine = FakeEngine(lambda prompt: says("one two three four"), concurrent=True)
    pieces: list[list[str]] = [[], []]
    replies = [Reply(), Reply()]
    settings = {"temperature": 0}

    def hear(outcome: Any) -> None:
        pieces[0].append(getattr(outcome, "text", "end"))
        if len(pieces[0]) == 2:
            host.submit(engine, "decoding", ["x"], settings, [replies[1]])

    replies[0].listen(hear)
    host.submit(engine, "decoding", ["x"], settings, [replies[0]])
    replies[1].listen(lambda outcome: pieces[1].append(getattr(outcome, "text", "end")))
    assert replies[0].result() == replies[1].result() == "one two three four"
    assert pieces == [["one ", "two ", "three ", "four", "end"]] * 2
    assert engine.seen == ["x"]


def test_work_given_on_the_loop_thread_waits_its_turn(host: LocalHost) -> None:
    order: list[str] = []
    seen = contextvars.ContextVar("seen", default="nothing")

    def outer() -> None:
        seen.set("the caller's")
        host.soon(lambda: order.append(f"inner sees {seen.get()}"))
        order.append("outer ended")

    host.soon(outer)
    barrier(host)
    assert order == ["outer ended", "inner sees nothing"]


def test_an_engine_outside_the_protocol_fails_its_items(host: LocalHost) -> None:
    @dataclass
    class Unhashable:
        name: str = "broken"

    reply = Reply()
    host.submit(Unhashable(), "x", ["a"], {}, [reply])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unhashable"):
        reply.result()


def test_an_item_cancelled_on_its_way_is_not_begun(host: LocalHost) -> None:
    engine, reply = FakeEngine(), Reply()

    def both_at_once() -> None:
        host.submit(engine, "x", ["a"], {}, [reply])
        reply.cancel_unless_ended()

    host.soon(both_at_once)
    barrier(host)
    assert engine.seen == []


def test_a_cancelled_queue_lets_the_engine_go(host: LocalHost) -> None:
    engine = FakeEngine(max_items=1)
    engine.gate = gated(host)
    replies = [Reply(), Reply()]
    host.submit(engine, "x", ["runs", "waits"], {}, replies)
    barrier(host)
    for reply in replies:
        reply.cancel_unless_ended()
    host.loop.call_soon_threadsafe(engine.gate.set)
    barrier(host)
    gone = weakref.ref(engine)
    del engine, replies, reply
    collect_garbage()
    assert gone() is None


def test_nothing_runs_ahead_after_the_end(host: LocalHost) -> None:
    fakes = engines()
    session = Session(host)
    session.close()
    replies = session.submit_ahead(fakes["llm"].spec, "decoding", ["late"], {}, NEXT)
    session.prefill(fakes["llm"].spec, "late", {}, NEXT)
    barrier(host)
    with pytest.raises(Cancelled):
        replies[0].result()
    assert fakes["llm"].seen == []


def test_a_task_that_outlives_its_call_has_no_session(host: LocalHost) -> None:
    session = Session(host)
    with active(session):
        assert current() is session
        session.close()
        assert current() is None


def test_a_long_batch_runs_ahead_a_part_at_a_time(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("teola_plugin.runtime.session.session.MAX_RUNS", 4)
    engine = FakeEngine(max_items=64, concurrent=True)
    engine.gate = gated(host)
    text = "inputs(x); a = decoding(x) @ llm; b = decoding(a) @ llm; outputs(b)"
    session = Session(host)
    session.run_ahead(prepared({"llm": engine}, text), [{"x": str(i)} for i in range(10)], {})
    barrier(host)
    assert engine.seen == ["0", "1", "2", "3"]
    host.loop.call_soon_threadsafe(engine.gate.set)
    barrier(host)
    assert sorted(engine.seen) == sorted(2 * list(map(str, range(10))))
    session.close()


def test_a_generation_ends_when_its_wanted_items_are_written(host: LocalHost) -> None:
    fakes = engines()
    fakes["llm"].answer = lambda prompt: says("\n".join(f"line {i}" for i in range(50)))
    text = """
inputs(x)
rewrites: [] = partial_decoding(x, items='lines', wanted=2, early_stop=True) @ llm
q: [] = embedding(*rewrites) @ embedder
outputs(q)
"""
    session = Session(host)
    session.run_ahead(prepared(fakes, text), [{"x": "why"}], {})
    barrier(host)
    assert fakes["embedder"].seen == ["line 0", "line 1"]
    assert len(fakes["llm"].aborted) == 1
    session.close()


async def test_a_query_that_goes_on_comes_before_one_that_begins() -> None:
    """One slot; the first query asks again as soon as it is answered, while others wait."""
    host = LocalHost("critical_path", loop=asyncio.get_running_loop())
    engine = FakeEngine(str, max_items=1, concurrent=True)
    plan = prepared(
        {"llm": engine}, "inputs(x); a = decoding(x) @ llm; b = prefilling(a, ' more') @ llm; c = decoding(b) @ llm"
    )
    await asyncio.gather(*(run_query(host, plan, {"x": f"query {n}"}) for n in range(3)))
    assert engine.seen == [f"query {n}{more}" for n in range(3) for more in ("", " more")]
    await host.aclose()


@pytest.mark.parametrize(
    ("early_beside", "running", "is_saturated"), [(1, 1, False), (1, 2, True), (0, 0, False), (0, 1, True)]
)
def test_beside_how_many_texts_prefixes_are_still_prefilled(
    host: LocalHost, early_beside: int, running: int, is_saturated: bool
) -> None:
    engine = FakeEngine(concurrent=True)
    engine.capabilities = replace(engine.capabilities, early_beside=early_beside)
    engine.gate = gated(host)
    session = Session(host)
    for n in range(running):
        session.ask(engine.spec, "decoding", [f"text {n}"], {})
    barrier(host)
    session.prefill(engine.spec, "a prefix", {}, NEXT)
    barrier(host)
    assert ("a prefix" in engine.seen) is not is_saturated
    host.soon(engine.gate.set)
    session.close()


async def test_queries_of_one_turn_do_not_all_find_an_idle_engine() -> None:
    host = LocalHost(loop=asyncio.get_running_loop())
    engine = FakeEngine(concurrent=True)

    async def ask() -> None:
        reply = Reply()
        host.submit(engine, "decoding", ["text"], {}, [reply])
        await reply.aresult()

    await ask()
    engine.gate = asyncio.Event()
    asked = [asyncio.ensure_future(ask()) for _ in range(2)]
    await asyncio.sleep(0)
    assert host.load(engine) == (0, 0), "both are on their way to the queue"
    assert host.is_saturated(engine)
    engine.gate.set()
    await asyncio.gather(*asked)
    assert not host.is_saturated(engine)
    await host.aclose()


def test_items_of_several_batches_share_them_with_those_of_their_length(host: LocalHost) -> None:
    engine = FakeEngine(str.upper, max_items=2, pads=True)
    texts = ["a", "long text", "bc", "a longer text"]
    replies = Session(host).ask(engine.spec, "embedding", texts, {})
    assert [reply.result() for reply in replies] == [text.upper() for text in texts]
    assert engine.seen == ["a longer text", "long text", "bc", "a"]


async def test_what_hangs_on_the_query_is_not_shared_between_queries() -> None:
    host = LocalHost(loop=asyncio.get_running_loop())
    for is_per_query in (False, True):
        engine = FakeEngine(str)
        engine.is_per_query = is_per_query  # type: ignore[attr-defined]
        plan = prepared({"llm": engine}, "inputs(x); y = embedding(x) @ llm; outputs(y)")
        await asyncio.gather(*(run_query(host, plan, {"x": "the same"}) for _ in range(2)))
        assert engine.seen == ["the same"] * (2 if is_per_query else 1)
    await host.aclose()


async def test_an_aggregate_of_lists_is_a_list() -> None:
    host = LocalHost(loop=asyncio.get_running_loop())
    text = """
inputs(x, xs=[])
ys: [] = aggregate(xs)
zs: [] = embedding(*ys) @ llm
outputs(zs)
"""
    assert await run_query(host, prepared({"llm": FakeEngine(str)}, text), {"x": 1, "xs": ["a", "b"]}) == {
        "zs": ["a", "b"]
    }
    await host.aclose()


def test_configure_refuses_what_makes_no_sense() -> None:
    for wrong in ({"max_queries": 0}, {"aging_s": -1.0}, {"prefix_tolerance_s": -0.1}):
        with pytest.raises(TeolaError, match=next(iter(wrong))):
            configure(**wrong)  # type: ignore[arg-type]
    before = runtime.host.rules
    try:
        configure(prefix_tolerance_s=0.0)
        assert runtime.host.rules.limits == replace(before.limits, prefix_tolerance_s=0.0)
    finally:
        runtime.host.rule(before)
