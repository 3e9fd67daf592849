"""A run-ahead by itself: what it asks of its session after each answer, and what it makes of it."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from teola_plugin.engines import Batch, Delta, Done, Emit, EngineSpec, Failed, Foreign, Urgency
from teola_plugin.errors import EngineError
from teola_plugin.events import PrimitiveRan
from teola_plugin.graph import parse
from teola_plugin.plan import make_plan
from teola_plugin.rounds import Rounds
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.session.ancestry import LOST, contains_lost
from teola_plugin.runtime.session.graph_runner import run_query
from teola_plugin.runtime.session.graph_scheduler import Ready
from teola_plugin.runtime.session.plan_executor import PlanExecutor, Prepared, PreparedRounds
from teola_plugin.runtime.session.slots import Since
from teola_plugin.runtime.session.speculation import Speculation
from teola_plugin.seams import Reply
from teola_plugin.trace import Function, Items
from tests.support.fakes import FakeEngine, says

ENGINE = FakeEngine()
SPECS = {name: EngineSpec("engine", ENGINE, name) for name in ("llm", "embedder", "store")}


class Asked:
    """Implements `run_ahead.Ahead`; nothing is answered but by the test."""

    callers_loop = None
    is_retiring_busy = False

    def __init__(self) -> None:
        self.replies: dict[Any, Reply] = {}
        self.ops: dict[Any, str] = {}
        self.errors: list[BaseException] = []
        self.settled: list[bool] = []
        self.closed = 0

    def submit_ahead(
        self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any], urgency: Urgency,
        since: Since | None = None,
    ) -> list[Reply]:  # fmt: skip
        found = [Reply() for _ in payloads]
        self.replies |= dict(zip(payloads, found, strict=True))
        self.ops |= dict.fromkeys(payloads, op)
        return found

    def guess(self, *args: Any) -> list[Reply] | None:
        return self.submit_ahead(*args)

    def settle(self, replies: Sequence[Reply], *, is_wanted: bool) -> None:
        self.settled += [is_wanted] * bool(replies)

    def fell_back(self, error: BaseException) -> None:
        self.errors.append(error)

    def asking(self, urgency: Urgency, since: Since | None = None) -> Asked:
        return self

    def close(self) -> None:
        self.closed += 1

    is_closed, is_unheard, alone = False, True, None


class Run:
    """A run-ahead of a graph, and what it asked for."""

    def __init__(self, text: str, inputs: Mapping[str, Any] | None = None, **more: Any) -> None:
        plan = make_plan(parse(textwrap.dedent(text)))
        functions = {name: each for name, each in more.items() if isinstance(each, Function)}
        rest = {name: each for name, each in more.items() if name not in functions}
        self.session = Asked()
        self.events: list[PrimitiveRan] = []
        self.ahead = PlanExecutor(
            Prepared(plan, functions, SPECS, **rest), inputs or {"x": "x"}, self.session, self.events.append
        )
        self.ahead.start()

    async def settled(self) -> list[Any]:
        """All payloads it has asked for by now."""
        for _ in range(20):
            await asyncio.sleep(0)
        assert self.session.errors == []
        return list(self.session.replies)

    async def told(self, payload: Any, *outcomes: Any) -> list[Any]:
        for outcome in outcomes:
            self.session.replies[payload].put(outcome)
        return await self.settled()


STREAMED = """
inputs(x)
lines: [] = partial_decoding(x, items='lines'{more}) @ llm
vectors: [] = embedding(*lines) @ embedder
all = call(lines, fn='f') @ python
outputs(vectors, all)
"""
JOIN = Function(lambda lines: "+".join(map(str, lines)), is_glue=True)


async def test_items_of_a_text_are_asked_for_as_they_are_written() -> None:
    run = Run(STREAMED.format(more=""), f=JOIN)
    assert await run.told("x", Delta("one\ntw")) == ["x", "one"]
    assert await run.told("x", Delta("o\nthree")) == ["x", "one", "two"]
    assert await run.told("x", Done("one\ntwo\nthree")) == ["x", "one", "two", "three"]
    for payload in ("one", "two", "three"):
        await run.told(payload, Done(payload.upper()))
    assert run.ahead.outputs() == {"vectors": ["ONE", "TWO", "THREE"], "all": "one+two+three"}
    assert run.ahead.is_done


async def test_a_text_that_is_told_at_once_has_its_items_too() -> None:
    run = Run(STREAMED.format(more=""), f=JOIN)
    assert await run.told("x", Done("one\ntwo")) == ["x", "one", "two"]


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_no_more_items_are_asked_for_than_are_wanted(is_streamed: bool) -> None:
    run = Run(STREAMED.format(more=", wanted=2"), f=JOIN)
    deltas = [Delta("one\n"), Delta("two\nthree\nfo"), Delta("ur\nfive\n")] if is_streamed else []
    assert await run.told("x", *deltas, Done("one\ntwo\nthree\nfour\nfive\n")) == ["x", "one", "two"]
    assert run.session.replies["x"].outcome == Done("one\ntwo\nthree\nfour\nfive\n"), "it is written to its end"


async def test_a_text_is_stopped_at_its_last_wanted_item() -> None:
    run = Run(STREAMED.format(more=", wanted=1, early_stop=True"), f=JOIN)
    await run.told("x", Delta("one\ntwo"))
    assert isinstance(run.session.replies["x"].outcome, Failed)


async def test_a_text_that_is_lost_ends_its_list() -> None:
    run = Run(STREAMED.format(more=""), f=JOIN)
    await run.told("x", Delta("one\n"))
    await run.told("x", Failed(ValueError("gone")))
    await run.told("one", Done(1))
    assert run.ahead.is_done
    assert run.ahead.outputs() is None
    assert [event.failed for event in run.events if event.primitive == "lines"] == [True]


async def test_items_that_are_parsed_at_the_end_are_as_many_as_wanted() -> None:
    run = Run("inputs(x); lines: [] = decoding(x, items='lines', wanted=2) @ llm; v: [] = embedding(*lines) @ embedder")
    assert await run.told("x", Done("one\ntwo\nthree")) == ["x", "one", "two"]


async def test_a_failed_item_is_lost_and_the_others_go_on() -> None:
    run = Run(
        "inputs(xs=[]); v: [] = embedding(*xs) @ embedder; h: [] = searching(*v) @ store; outputs(h)",
        {"xs": ["a", "b"]},
    )
    run.session.replies["a"].put(Failed(ValueError("gone")))
    assert await run.told("b", Done("vb")) == ["a", "b", "vb"]
    await run.told("vb", Done("found"))
    assert run.ahead.is_done
    assert run.ahead.outputs() is None


async def test_what_was_stopped_asks_for_nothing_more() -> None:
    run = Run("inputs(x); y = decoding(x) @ llm; z = decoding(y) @ llm; outputs(z)")
    run.ahead.stop()
    assert await run.told("x", Done("y")) == ["x"]


async def test_a_list_that_is_told_in_parts_goes_on_where_it_was() -> None:
    run = Run("inputs(x); ys: [] = call(x, fn='f') @ pipeline; v: [] = embedding(*ys) @ embedder; outputs(v)")
    run.ahead.observe("ys", Items(["a", "b"], is_last=False))
    assert await run.settled() == ["a", "b"]
    run.ahead.observe("ys", Items(["c"], is_last=True))
    assert await run.settled() == ["a", "b", "c"]
    for payload in ("a", "b", "c"):
        await run.told(payload, Done(payload))
    assert run.ahead.outputs() == {"v": ["a", "b", "c"]}


async def test_a_list_that_is_told_whole_is_closed() -> None:
    run = Run("inputs(x); ys: [] = call(x, fn='f') @ pipeline; v: [] = embedding(*ys) @ embedder; outputs(v)")
    run.ahead.observe("ys", ["a"])
    await run.settled()
    await run.told("a", Done("A"))
    assert run.ahead.outputs() == {"v": ["A"]}


def fail(*_: Any) -> Any:
    raise LookupError


@pytest.mark.parametrize("work", [str.upper, fail])
async def test_a_function_that_asks_is_closed_and_told_of(work: Callable[..., Any]) -> None:
    run = Run("inputs(x); y = call(x, fn='f') @ python; z = decoding(y) @ llm; outputs(z)", f=Function(work, asks=True))
    while not run.events:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    asked = await run.settled()
    assert [(event.primitive, event.failed) for event in run.events] == [("y", work is fail)]
    assert asked == ([] if work is fail else ["X"])
    assert run.session.closed == 1
    assert run.ahead.is_done is (work is fail)


async def test_a_foreign_text_is_streamed_where_its_items_are_followed() -> None:
    foreign = Foreign("key", str)
    for streams in (True, False):
        run = Run(STREAMED.format(more=""), {"x": foreign}, f=JOIN, streams_lists=streams)
        (asked,) = await run.settled()
        assert asked.is_streamed is streams


# --- guesses ---------------------------------------------------------------------------------------------------------

GUESSED = """
inputs(x)
judged = decoding(x) @ llm
is_so = condition(judged, fn='f') @ python
q_ahead = embedding(x, 'q', ahead=True) @ embedder
q = aggregate(q_ahead), when(is_so)
hit = searching(q) @ store
outputs(hit)
"""
IS_YES = Function(lambda text: text == "yes", is_glue=True)


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_a_guess_is_settled_when_it_is_decided(is_wanted: bool) -> None:
    run = Run(GUESSED, f=IS_YES)
    guessed = ("x", "q")
    assert await run.settled() == ["x", guessed]
    await run.told(guessed, Done("v"))
    assert run.session.settled == []
    asked = await run.told("x", Done("yes" if is_wanted else "no"))
    assert run.session.settled == [is_wanted]
    assert asked == ["x", guessed, *["v"] * is_wanted]


async def test_a_guess_that_failed_is_asked_for_again_once_it_is_wanted() -> None:
    run = Run(GUESSED, f=IS_YES)
    guessed = ("x", "q")
    await run.settled()
    await run.told(guessed, Failed(ValueError("crowded out")))
    first = run.session.replies[guessed]
    await run.told("x", Done("yes"))
    assert run.session.replies[guessed] is not first
    assert await run.told(guessed, Done("v")) == ["x", guessed, "v"]


def test_what_is_decided_cannot_be_withdrawn() -> None:
    guesses: Speculation[str] = Speculation()
    (p, *_) = make_plan(parse("inputs(x); y = embedding(x) @ embedder; outputs(y)")).graph
    guess = guesses.add(Ready(p, ((),), (("x",),)), "asked")
    assert guesses.decided(lambda name: None) == []
    assert guesses.decided(lambda name: True) == [(guess, True)]
    assert guesses.open == []
    assert not guesses.withdraw(guess)
    assert guess.request == "asked"
    other = guesses.add(guess.ready, "asked")
    assert guesses.withdraw(other)
    assert other.request is None


# --- rounds ----------------------------------------------------------------------------------------------------------

ROUND = "inputs(draft); better = decoding(draft) @ llm; done = call(better, fn='f') @ python; outputs(better, done)"


async def run_rounds(at_most: int | None, says: Callable[[str], str]) -> tuple[list[Any], Any]:
    graph = parse(ROUND)
    functions = {"f": Function(lambda text: text == "good", is_glue=True)}
    rounds = Rounds(graph, functions, {"draft": "better"}, {"better": "better", "first": "draft"}, "done", at_most)
    each = Prepared(make_plan(graph), functions, SPECS)
    text = "inputs(x); y = call(x, fn='rounds') @ python; z = call(y, fn='g') @ python; outputs(z)"
    run = Run(text, g=Function(lambda y: y, is_glue=True), rounds={"rounds": PreparedRounds(rounds, each)})
    done = 0
    while done < len(asked := await run.settled()) < 20:
        for payload in asked[done:]:
            run.session.replies[payload].put(Done(says(payload)))
        done = len(asked)
    return asked, run.ahead.outputs()


async def test_rounds_end_when_they_are_done() -> None:
    asked, outputs = await run_rounds(None, lambda text: "good" if text == "xaa" else f"{text}a")
    assert asked == ["x", "xa", "xaa"]
    assert outputs == {"z": {"better": "good", "first": "xaa"}}


async def test_rounds_end_at_the_last_one() -> None:
    asked, outputs = await run_rounds(2, lambda text: f"{text}a")
    assert asked == ["x", "xa"]
    assert outputs == {"z": {"better": "xaa", "first": "xa"}}


# --- what there is to know beforehand --------------------------------------------------------------------------------


def test_a_loss_is_found_at_any_depth() -> None:
    assert contains_lost([["a"], ["b", LOST]], 2)
    assert contains_lost([LOST], 2)
    assert not contains_lost([["a", "b"], []], 2)
    assert contains_lost(LOST, 0)
    assert not contains_lost("a", 0)


# --- a query of its own ----------------------------------------------------------------------------------------------


class NoPrefills(FakeEngine):
    """It fails what is prefilled early."""

    async def run(self, batch: Batch, emit: Emit) -> None:
        if batch.op == "partial_prefilling":
            raise EngineError("no")
        await super().run(batch, emit)


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        ("a = partial_prefilling('p: ') @ llm; b = full_prefilling(a, x) @ llm; y = decoding(b) @ llm", {"y": "P: X"}),
        ("y: [] = partial_decoding(x, items='lines', wanted=1, early_stop=True) @ llm", {"y": ["X"]}),
    ],
)
async def test_what_nobody_needs_may_fail_or_be_cut_short(text: str, outputs: dict[str, Any]) -> None:
    engine = NoPrefills(lambda prompt: says(f"{prompt.upper()}\nand more\nand more"), concurrent=True)
    if "lines" not in text:
        engine.answer = str.upper
    host = LocalHost(loop=asyncio.get_running_loop())
    prepared = Prepared(make_plan(parse(f"inputs(x); {text}; outputs(y)")), {}, {"llm": engine.spec})
    assert await run_query(host, prepared, {"x": "x"}) == outputs
    await host.aclose()
