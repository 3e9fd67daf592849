"""A session: what of a call runs ahead, at which urgency, and when it stops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from teola_plugin import seams
from teola_plugin.engines import EngineSpec, Foreign, Urgency
from teola_plugin.errors import Cancelled
from teola_plugin.graph import parse
from teola_plugin.plan import make_plan
from teola_plugin.runtime.engines.python import PythonEngine
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.session.plan_executor import PATIENCE_S, Prepared
from teola_plugin.runtime.session.session import NEXT, Session
from teola_plugin.trace import Function
from tests.support.fakes import FakeEngine

AFTER_BARRIER = """
inputs(question)
load = call(question, fn='load') @ pipeline
v = embedding(load) @ embedder
outputs(v)
"""


@pytest.fixture
def host() -> Iterator[LocalHost]:
    host = LocalHost()
    yield host
    host.close()


def settled(host: LocalHost) -> None:
    """Everything the loop can do without anybody's help has been done."""
    for _ in range(40):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), host.loop).result()


def gate(host: LocalHost) -> asyncio.Event:
    async def made() -> asyncio.Event:
        return asyncio.Event()

    return asyncio.run_coroutine_threadsafe(made(), host.loop).result()


def prepared(engine: FakeEngine, text: str = AFTER_BARRIER) -> Prepared:
    return Prepared(make_plan(parse(text)), {}, {"embedder": engine.spec})


def test_what_the_framework_waits_for_is_more_urgent_than_what_runs_ahead(host: LocalHost) -> None:
    engine = FakeEngine()
    session = Session(host, urgency=Urgency(3, 9.0))
    session.ask(engine.spec, "embedding", ["a"], {})[0].result()
    (item,) = engine.batches[0].items
    assert (item.urgency.depth, item.urgency.remaining_s) == (4, 9.0)
    session.close()


def test_a_search_that_is_out_of_date_is_stopped(host: LocalHost) -> None:
    engine = FakeEngine(max_items=1)
    engine.gate = gate(host)
    session = Session(host)
    (ahead,) = session.submit_ahead(engine.spec, "searching", ["v"], {}, NEXT)
    settled(host)
    engine.version += 1
    session.ask(engine.spec, "searching", ["v"], {})
    settled(host)
    assert len(engine.aborted) == 1
    assert ahead.outcome is not None
    host.loop.call_soon_threadsafe(engine.gate.set)
    assert session.close().stale == 1


def test_of_a_component_that_runs_twice_the_first_value_counts(host: LocalHost) -> None:
    engine = FakeEngine()
    session = Session(host)
    component = object()
    session.run_ahead(prepared(engine), [{"question": "why"}], {id(component): "load"})
    settled(host)
    for value in ("first", "second"):
        session.observe(component, value)
        settled(host)
    assert engine.seen == ["first"]
    assert session.close().fallbacks == ()


@pytest.mark.parametrize("beside", [False, True])
def test_a_front_in_place_of_another_stops_it(host: LocalHost, beside: bool) -> None:
    text = "inputs(x); a = embedding(x) @ embedder; b = embedding(a) @ embedder; outputs(b)"
    engine = FakeEngine(lambda text: f"{text}!", max_items=8)
    engine.gate = gate(host)
    session = Session(host)
    session.run_ahead(prepared(engine, text), [{"x": "old"}], {})
    settled(host)
    session.run_ahead(prepared(engine, text), [{"x": "new"}], {}, beside=beside)
    settled(host)
    host.loop.call_soon_threadsafe(engine.gate.set)
    settled(host)
    assert ("old!" in engine.seen) is beside
    assert "new!" in engine.seen
    session.close()


def test_a_fault_in_following_is_never_the_users(host: LocalHost) -> None:
    def follow(*_: Any) -> None:
        raise LookupError("ours")

    session = Session(host)
    session.follow(follow)
    assert session.enter(object(), "a value") is None
    assert session.enter(object(), "another") is None
    assert session.close().fallbacks == ("TF001 LookupError: ours",)


def test_what_follows_what_the_framework_came_to_runs_ahead(host: LocalHost) -> None:
    engine = FakeEngine()
    ahead = prepared(engine, "inputs(x); a = embedding(x) @ embedder; outputs(a)")
    session = Session(host)
    session.follow(lambda component, value, asides: (ahead, {"x": value}, {}) if value == "go" else None)
    assert session.enter(object(), "stay") is None
    assert session.enter(object(), "go") is not None
    settled(host)
    assert engine.seen == ["go"]
    session.close()


@pytest.mark.parametrize("is_ahead", [True, False])
def test_a_coroutine_of_a_foreign_model_runs_on_the_callers_loop(host: LocalHost, is_ahead: bool) -> None:
    async def call() -> None:
        loops: list[Any] = []

        async def model() -> str:
            loops.append(asyncio.get_running_loop())
            return "said"

        session = Session(host, loop=asyncio.get_running_loop())
        engine = PythonEngine()
        spec = EngineSpec("engine", engine)
        foreign = Foreign("key", model, is_async=True)
        if is_ahead:
            (reply,) = session.submit_ahead(spec, "decoding", [foreign], {}, NEXT)
        else:
            (reply,) = session.ask(spec, "decoding", [foreign], {})
        assert await reply.aresult() == "said"
        assert loops == [asyncio.get_running_loop()]
        session.close()

    asyncio.run(call())


def test_a_guess_that_would_wait_is_not_made_and_one_that_is_not_wanted_is_stopped(host: LocalHost) -> None:
    engine = FakeEngine(max_items=1)
    engine.gate = gate(host)
    session = Session(host)
    guessed = session.guess(engine.spec, "decoding", ["a"], {}, NEXT)
    settled(host)
    assert guessed is not None
    assert session.guess(engine.spec, "decoding", ["b"], {}, NEXT) is None
    session.settle(guessed, is_wanted=False)
    settled(host)
    assert guessed[0].outcome is not None
    assert len(engine.aborted) == 1
    host.loop.call_soon_threadsafe(engine.gate.set)
    session.close()
    assert session.guess(engine.spec, "decoding", ["c"], {}, NEXT) is None


def test_the_report_says_what_became_of_each_item(host: LocalHost) -> None:
    engine = FakeEngine()
    session = Session(host)
    taken, left = session.submit_ahead(engine.spec, "decoding", ["taken", "left"], {}, NEXT)
    settled(host)
    for prompt in ("taken", "unforeseen"):
        session.ask(engine.spec, "decoding", [prompt], {})[0].result()
    (shared,) = session.submit_ahead(engine.spec, "decoding", ["unforeseen"], {}, NEXT)
    report = session.close()
    assert (taken.result(), left.result(), shared.result()) == ("taken", "left", "unforeseen")
    assert (report.hits, report.misses, report.shared, report.wasted) == (1, 0, 1, 1)
    assert report.hosted_hits == 0


def test_the_report_says_how_many_hits_are_of_a_provider(host: LocalHost) -> None:
    session, spec = Session(host), EngineSpec("engine", PythonEngine())
    foreseen, unforeseen = (Foreign(key, lambda: "said") for key in ("foreseen", "unforeseen"))
    session.submit_ahead(spec, "decoding", [foreseen], {}, NEXT)
    for foreign in (foreseen, unforeseen):
        session.ask(spec, "decoding", [foreign], {})[0].result()
    report = session.close()
    assert (report.hits, report.misses, report.hosted_hits) == (1, 1, 1)


@pytest.mark.parametrize("is_beside", [False, True])
@pytest.mark.parametrize("is_until_rewound", [False, True])
def test_what_began_before_the_slots_were_rewound_asks_for_nothing_new(
    host: LocalHost, is_until_rewound: bool, is_beside: bool
) -> None:
    engine = FakeEngine()
    session = Session(host)
    if is_beside:
        session.follow(lambda component, value, asides: None, beside=True)
    asks, ended = threading.Event(), threading.Event()
    claims: list[bool] = []

    def work() -> None:
        asks.wait()
        try:
            current = seams.current()
            assert current is not None
            with contextlib.suppress(Cancelled):
                current.ask(engine.spec, "decoding", ["late"], {})[0].result()
            with contextlib.suppress(Cancelled):
                claims.append(current.claim(engine.spec, "decoding", "later", {})[1])
        finally:
            ended.set()

    session.ask(engine.spec, "decoding", ["late"], {})[0].result()  # the framework's run was there
    session.aside("", work, is_until_rewound=is_until_rewound)
    session.rewind()
    asks.set()
    ended.wait()
    settled(host)
    assert engine.seen == (["late"] if is_until_rewound else ["late", "late"])
    assert claims == [not is_until_rewound]
    session.close()


LATE = {
    "itself": "inputs(x); y = call(x, fn='late') @ python; a = decoding(y) @ embedder; outputs(a)",
    "a function": "inputs(x); y = call(x, fn='late') @ python; a = call(y, fn='ask') @ python; outputs(a)",
}


@pytest.mark.parametrize("is_beside", [False, True])
@pytest.mark.parametrize("asker", LATE)
def test_a_late_graph_gets_what_the_framework_asked_before_the_slots_were_rewound(
    host: LocalHost, asker: str, is_beside: bool
) -> None:
    engine = FakeEngine()
    session = Session(host)
    if is_beside:
        session.follow(lambda component, value, asides: None, beside=True)
    is_late = threading.Event()

    def late(x: str) -> str:
        is_late.wait()
        return x

    def ask(x: str) -> Any:
        current = seams.current()
        assert current is not None
        return current.ask(engine.spec, "decoding", [x], {})[0].result()

    functions = {"late": Function(late), "ask": Function(ask, asks=True)}
    front = session.run_ahead(
        Prepared(make_plan(parse(LATE[asker])), functions, {"embedder": engine.spec}), [{"x": "why"}], {}
    )
    session.ask(engine.spec, "decoding", ["why"], {})[0].result()
    session.rewind()
    is_late.set()
    while not front.is_over:
        settled(host)
    assert engine.seen == ["why"]
    assert session.close().wasted == 0


def test_a_reading_that_may_wait_begins_with_the_frameworks_next_request(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("teola_plugin.runtime.session.session.PATIENCE_S", 60.0)
    engine = FakeEngine()
    engine.gate = gate(host)
    session, begun = Session(host), threading.Event()
    session.read(begun.set, may_wait=True)
    assert not begun.wait(0.01)
    (reply,) = session.ask(engine.spec, "embedding", ["a"], {})
    assert begun.wait(10)
    begun.clear()
    session.read(begun.set, may_wait=True)  # the framework's run waits for the reply
    assert begun.wait(10)
    host.loop.call_soon_threadsafe(engine.gate.set)
    reply.result()
    session.close()


def test_a_reading_does_not_wait_long_for_a_request_that_does_not_come(host: LocalHost) -> None:
    session, begun = Session(host), threading.Event()
    session.read(begun.set, may_wait=True)
    assert begun.wait(10)
    session.close()


def test_a_reading_that_may_wait_begins_no_more_after_the_call(host: LocalHost) -> None:
    session, begun = Session(host), threading.Event()
    session.read(begun.set, may_wait=True)
    session.close()
    assert not begun.wait(2 * PATIENCE_S)


def asks_alone(session: Session) -> bool:
    return session.ask_alone(lambda: ("fake", None), "decoding") is not None


def test_the_framework_asks_alone_in_a_rest_unless_something_waits_for_it(host: LocalHost) -> None:
    engine, session = FakeEngine(), Session(host)
    session.request(engine.spec, "embedding", "a", {})
    session.rest()
    assert not asks_alone(session)
    session.ask(engine.spec, "embedding", ["a"], {})
    session.rest()
    assert asks_alone(session)
    session.request(engine.spec, "embedding", "b", {})
    assert not asks_alone(session)
    session.ask(engine.spec, "embedding", ["b"], {})
    session.rest()
    session.rewind()  # a prediction begins
    assert not asks_alone(session)
    session.aside("a tool that may ask later", lambda: None)
    session.rest()
    assert not asks_alone(session)
    session.close()


def test_nothing_is_asked_alone_once_something_runs_ahead_meanwhile(host: LocalHost) -> None:
    engine, session = FakeEngine(), Session(host)
    session.rest()
    before = session.progress()

    def asked() -> tuple[str, None]:
        session.request(engine.spec, "embedding", "a", {})
        return "fake", None

    assert session.ask_alone(asked, "decoding") is None
    assert session.progress() == before._replace(ahead=1)
    assert session.close().misses == 0


def test_requests_in_a_rest_are_counted(host: LocalHost) -> None:
    session = Session(host)
    before = session.progress()
    session.rest()
    assert asks_alone(session)
    assert session.progress() == before._replace(asked=1)
    session.close()


def test_a_reading_that_waits_keeps_nothing_alive_after_the_call(host: LocalHost) -> None:
    session = Session(host)

    def work() -> None:
        pass

    known = weakref.ref(work)
    session.read(work, may_wait=True)
    del work
    session.close()
    assert known() is None


@pytest.mark.parametrize("ends", [Session.close, Session.interrupt])
def test_a_reading_that_outlives_the_call_leaves_nothing_at_the_host(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch, ends: Callable[[Session], object]
) -> None:
    session, heard = Session(host), list[object]()
    ends(session)
    monkeypatch.setattr(host, "subscribe", lambda owner, sink: heard.append(owner))
    refused = session.request(FakeEngine().spec, "embedding", "a", {})
    assert not heard
    assert refused.outcome is not None
    session.close()
