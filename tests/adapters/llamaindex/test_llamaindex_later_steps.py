"""Steps behind the step that runs are read, and their requests made, as far as both are certain."""

from __future__ import annotations

import asyncio
import os
import re
import time
import types
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step

from teola_plugin import optimize
from teola_plugin.adapters.llamaindex import reading_workflows
from teola_plugin.adapters.llamaindex.later_steps import LaterSteps, _Reading
from teola_plugin.adapters.llamaindex.parts import steps_of
from teola_plugin.adapters.llamaindex.reading import LlamaIndexAsker
from teola_plugin.adapters.llamaindex.reading_workflows import Beginning, StepContext, kind_of_event, make_event
from teola_plugin.adapters.reader.companions import Companions
from teola_plugin.adapters.reader.prediction import Prediction
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Stalled, Unknown
from teola_plugin.api import optimized
from tests.adapters.llamaindex.test_llamaindex_hosted import chat
from tests.support.hosted_service import Service, counted
from tests.support.llamaindex_world import apart

if not reading_workflows.HAS_ENGINE:
    pytest.skip("the engine of another release of llama-index-workflows", allow_module_level=True)

from workflows.runtime.types import internal_state

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Part(Event):
    q: str


class Other(Event):
    q: str


class Said(Event):
    a: str


class Listed(Event):
    texts: list[str]


class Planned(Event):
    plan: dict[str, Any]
    parts: list[dict[str, list[str]]] | None = None
    texts: Any = None


class Blocks(Workflow):
    """Holds a model."""

    def __init__(self, llm: Any) -> None:
        super().__init__(timeout=60)
        self.llm = llm
        self.done: list[str] = []

    def ask(self, text: str) -> str:
        return str(self.llm.complete(text))


class Fan(Blocks):
    """Several events, each answered by a synchronous call."""

    @step
    async def start(self, ctx: Context, ev: StartEvent) -> Part | None:
        for n in range(3):
            ctx.send_event(Part(q=f"part {n} of {ev.q}"))
        return None

    @step
    async def answer(self, ctx: Context, ev: Part) -> Said:
        return Said(a=self.ask(ev.q))

    @step
    async def join(self, ctx: Context, ev: Said) -> StopEvent | None:
        found = ctx.collect_events(ev, [Said] * 3)
        return None if found is None else StopEvent(result=[each.a for each in found])


class Parsing(Fan):
    """A reply may be another than the step can read."""

    @step
    async def answer(self, ctx: Context, ev: Part) -> Said:
        return Said(a=self.ask(ev.q).split("<")[1])


class Both(Blocks):
    """Two steps begin with the same event."""

    @step
    async def risk(self, ev: StartEvent) -> Part:
        return Part(q=self.ask(f"risk of {ev.q}"))

    @step
    async def tone(self, ev: StartEvent) -> Other:
        return Other(q=self.ask(f"tone of {ev.q}"))

    @step
    async def join(self, ctx: Context, ev: Part | Other) -> StopEvent | None:
        found = ctx.collect_events(ev, [Part, Other])
        return None if found is None else StopEvent(result=[each.q for each in found])


class Chain(Blocks):
    """The second step needs no reply of the first."""

    @step
    async def first(self, ctx: Context, ev: StartEvent) -> Part:
        await ctx.store.set("first", self.ask(f"first of {ev.q}"))
        await ctx.store.set("q", ev.q)
        return Part(q=ev.q)

    @step
    async def second(self, ctx: Context, ev: Part) -> StopEvent:
        said = self.ask(f"second of {ev.q} and {await ctx.store.get('q')}")
        return StopEvent(result=[await ctx.store.get("first"), said])


def run(workflow: Any, **given: Any) -> Any:
    async def act() -> Any:
        try:
            return await workflow.run(q="bees", **given)
        except Exception as e:
            return repr(e)

    return apart(asyncio.run, act())


def same(service: Service, kind: Any, runs: int = 2) -> Any:
    """Run an original and an optimized workflow, and compare; the report of the last run."""
    llm = chat(service)
    original, fast = kind(llm), optimize(kind(llm))
    for _ in range(runs):
        with counted(service) as wanted:
            result = run(original)
        with counted(service) as made:
            assert run(fast) == result
        assert made == wanted
    assert (original.done, optimized(fast).reports[-1].wasted) == (fast.done, 0)
    return optimized(fast).reports[-1]


@pytest.mark.parametrize(
    ("kind", "holds", "awaits"),
    [
        (Fan, "part 0", "part 2"),
        (Parsing, "part 0", "part 2"),
        (Both, "risk", "tone"),
        (Chain, "first", "second of bees and bees"),
    ],
)
def test_the_next_steps_are_asked_for_while_a_step_blocks(service: Service, kind: Any, holds: str, awaits: str) -> None:
    same(service, kind)
    fast = optimize(kind(chat(service)))
    service.holds, service.awaits = holds, awaits
    run(fast)
    assert not service.has_waited_in_vain
    report = optimized(fast).reports[-1]
    assert (report.wasted, report.misses, report.fallbacks) == (0, 0, ())


def test_explain_counts_the_requests_of_each_step(service: Service) -> None:
    fast: Any = optimize(Fan(chat(service)))
    for _ in range(20):  # a step may end before it is read
        run(fast)
        said = " ".join(fast.explain().split())
        if re.search(r"Fan.start: [^:]*:\d+\): read whole; no requests found", said):
            break
    else:
        pytest.fail(said)
    assert re.search(r"Fan.answer: [^:]*:\d+\): read whole; 1 request found, 1 of them before", said)


# --- what is not certain ---------------------------------------------------------------------------------------------


class FirstWins(Fan):
    """Ends with the first reply, before the other events are answered."""

    @step
    async def join(self, ctx: Context, ev: Said) -> StopEvent | None:
        return StopEvent(result=ev.a)


class Raising(Fan):
    """A step fails for some replies, and then the workflow does."""

    @step
    async def answer(self, ctx: Context, ev: Part) -> Said:
        said = self.ask(ev.q)
        if "part 0" in said:
            raise ValueError(said)
        return Said(a=said)


class BothParse(Both):
    """The first of two steps may fail, and then the second is not run."""

    @step
    async def risk(self, ev: StartEvent) -> Part:
        return Part(q=self.ask(f"risk of {ev.q}").split("?")[1])


class JoinParses(Fan):
    """What follows a reply may fail, and then the other events are not answered."""

    @step
    async def join(self, ctx: Context, ev: Said) -> StopEvent | None:
        number = int(ev.a)
        found = ctx.collect_events(ev, [Said] * 3)
        return None if found is None else StopEvent(result=[number, *[each.a for each in found]])


class AnswerEnds(Fan):
    """A step that answers may end the workflow."""

    @step
    async def answer(self, ctx: Context, ev: Part) -> Said | StopEvent:
        said = self.ask(ev.q)
        return StopEvent(result=said) if "part 0" in said else Said(a=said)


class Writing(Fan):
    """A step changes the state for the next."""

    @step
    async def answer(self, ctx: Context, ev: Part) -> Said:
        before = await ctx.store.get("last", "none")
        await ctx.store.set("last", ev.q)
        return Said(a=self.ask(f"{ev.q} after {before}"))


class JoinWrites(Fan):
    """What follows a reply changes the state, when the other steps have read it."""

    @step
    async def answer(self, ctx: Context, ev: Part) -> Said:
        before = await ctx.store.get("last", "none")
        return Said(a=str(await self.llm.acomplete(f"{ev.q} after {before}")))

    @step
    async def join(self, ctx: Context, ev: Said) -> StopEvent | None:
        await ctx.store.set("last", "seen")
        found = ctx.collect_events(ev, [Said] * 3)
        return None if found is None else StopEvent(result=sorted(each.a for each in found))


class Keeping(Fan):
    """A step changes an object of the workflow, which the next reads."""

    @step
    async def answer(self, ctx: Context, ev: Part) -> Said:
        self.done.append(ev.q)
        return Said(a=self.ask(f"{ev.q} after {len(self.done)}"))


class Storing(Fan):
    """A step stores to the workflow where the others have stored before it goes on."""

    topic = ""

    @step
    async def answer(self, ctx: Context, ev: Part) -> Said:
        self.topic = ev.q
        await asyncio.sleep(0.02)
        return Said(a=self.ask(f"about {self.topic}"))


class StoringBehind(Blocks):
    """One event begins two steps, which store in the same place."""

    topic = ""

    @step
    async def start(self, ev: StartEvent) -> Part:
        return Part(q=ev.q)

    @step
    async def answer(self, ev: Part) -> Said:
        self.topic = "one"
        await asyncio.sleep(0.02)
        return Said(a=self.ask(f"about {self.topic}"))

    @step
    async def other(self, ev: Part) -> Other:
        self.topic = "two"
        return Other(q=ev.q)

    @step
    async def drop(self, ev: Other) -> Said | None:
        return None

    @step
    async def end(self, ev: Said) -> StopEvent:
        return StopEvent(result=ev.a)


class JoinKeeps(Fan):
    """What follows a reply changes an object of the workflow."""

    @step
    async def answer(self, ctx: Context, ev: Part) -> Said:
        return Said(a=self.ask(f"{ev.q} after {len(self.done)}"))

    @step
    async def join(self, ctx: Context, ev: Said) -> StopEvent | None:
        self.done.append(ev.a)
        found = ctx.collect_events(ev, [Said] * 3)
        return None if found is None else StopEvent(result=[each.a for each in found])


class Refusing(Fan):
    """The first reply is refused: the workflow fails before the others are asked for."""

    @step
    async def join(self, ctx: Context, ev: Said) -> StopEvent | None:
        int(ev.a)
        return None


class SendsThenStores(Blocks):
    """The step that begins meanwhile sees the old value."""

    @step
    async def start(self, ctx: Context, ev: StartEvent) -> Part | None:
        await ctx.store.set("word", "old")
        ctx.send_event(Part(q=ev.q))
        await asyncio.sleep(0.05)
        await ctx.store.set("word", "new")
        return None

    @step
    async def answer(self, ctx: Context, ev: Part) -> StopEvent:
        return StopEvent(result=self.ask(f"say {await ctx.store.get('word')}"))


class OneParses(Blocks):
    """Two events begin two steps; the first may fail, and then the second is not run."""

    @step
    async def start(self, ctx: Context, ev: StartEvent) -> Part | Other | None:
        ctx.send_event(Part(q=f"part {ev.q}"))
        ctx.send_event(Other(q=f"other {ev.q}"))
        return None

    @step
    async def answer(self, ev: Part) -> Said:
        return Said(a=self.ask(ev.q).split("?")[1])

    @step
    async def other(self, ev: Other) -> Said:
        return Said(a=self.ask(ev.q))

    @step
    async def join(self, ctx: Context, ev: Said) -> StopEvent | None:
        found = ctx.collect_events(ev, [Said] * 2)
        return None if found is None else StopEvent(result=[each.a for each in found])


class SendsPerhaps(Blocks):
    """Whether an event is sent depends on a reply."""

    @step
    async def start(self, ctx: Context, ev: StartEvent) -> Part | None:
        if "absent" in self.ask(f"start {ev.q}"):
            ctx.send_event(Part(q="perhaps"))
        ctx.send_event(Part(q="sure"))
        return None

    @step
    async def answer(self, ev: Part) -> Said:
        return Said(a=self.ask(ev.q))

    @step
    async def end(self, ev: Said) -> StopEvent:
        return StopEvent(result=ev.a)


class Choosing(Blocks):
    """The reply decides what comes next."""

    @step
    async def start(self, ev: StartEvent) -> Part | Other:
        return Part(q="yes") if "absent" in self.ask(f"start {ev.q}") else Other(q="no")

    @step
    async def yes(self, ev: Part) -> StopEvent:
        return StopEvent(result=self.ask("yes"))

    @step
    async def no(self, ev: Other) -> StopEvent:
        return StopEvent(result=self.ask("no"))


class Guarding(Blocks):
    """Nothing is asked behind a reply that is no number."""

    @step
    async def start(self, ev: StartEvent) -> Part:
        int(self.ask(f"start {ev.q}"))
        return Part(q=ev.q)

    @step
    async def answer(self, ev: Part) -> StopEvent:
        return StopEvent(result=self.ask(ev.q))


class Handing(Blocks):
    """The event's contents are changed behind its making, and by the step that gets it first."""

    @step
    async def start(self, ctx: Context, ev: StartEvent) -> Part:
        part = Part(q="old", more=["a"])  # type: ignore[call-arg]
        part.q = self.ask(f"start {ev.q}")[:0] + "new"
        part.more.append("b")
        return part

    @step
    async def answer(self, ev: Part) -> StopEvent:
        return StopEvent(result=self.ask(f"{ev.q} {ev.more} {ev.get('absent')} {'more' in ev}"))


class EndsBetween(Fan):
    """The first part answers the second as well."""

    @step
    async def join(self, ctx: Context, ev: Said) -> StopEvent | None:
        found = ctx.collect_events(ev, [Said] * 2)
        return None if found is None else StopEvent(result=[each.a for each in found])


class Listing(Blocks):
    """An event has a list of its own."""

    @step
    async def start(self, ev: StartEvent) -> Listed:
        texts = [ev.q]
        listed = Listed(texts=texts)
        texts.append("more")
        return listed

    @step
    async def answer(self, ev: Listed) -> StopEvent:
        return StopEvent(result=self.ask(f"of {ev.texts}"))


class Sharing(Blocks):
    """The event keeps the list that the step changes."""

    @step
    async def start(self, ev: StartEvent) -> Planned:
        texts = [ev.q]
        planned = Planned(plan={}, texts=texts)
        texts.append("more")
        return planned

    @step
    async def answer(self, ev: Planned) -> StopEvent:
        return StopEvent(result=self.ask(f"of {ev.texts}"))


UNCERTAIN = [
    EndsBetween, Listing, Sharing, Raising, BothParse, OneParses, JoinParses,
    FirstWins, AnswerEnds, Writing, JoinWrites, Keeping, Storing, StoringBehind, JoinKeeps, Refusing, SendsThenStores,
    SendsPerhaps, Choosing, Guarding, Handing,
]  # fmt: skip


@pytest.mark.parametrize("kind", UNCERTAIN)
def test_nothing_is_asked_that_is_not_certain(service: Service, kind: Any) -> None:
    same(service, kind)


def unread(kind: Any, *, lasts_s: float = 0.1) -> Any:
    """A kind of `Fan` whose events are sent by a step that is not read."""

    class Unread(kind):  # type: ignore[misc]
        @step
        async def start(self, ctx: Context, ev: StartEvent) -> Part | None:
            Path(os.devnull).read_text()  # noqa: ASYNC240
            time.sleep(lasts_s)  # noqa: ASYNC251  # its reading has ended when the next step begins, if that is long
            for n in range(3):
                ctx.send_event(Part(q=f"part {n} of {ev.q}"))
            return None

    return Unread


class Checked(Fan):
    """What pydantic may refuse is in the event."""

    @step
    async def answer(self, ctx: Context, ev: Part) -> Said:
        return Said(a=self.llm.complete(ev.q).text)


KNOWS_WHAT_COMES = "deliveries" in getattr(internal_state.BrokerState, "__dataclass_fields__", ())


@pytest.mark.skipif(not KNOWS_WHAT_COMES, reason="an engine that does not know what is on its way")
@pytest.mark.parametrize("kind", [Fan, Parsing, Checked])
def test_steps_are_asked_for_beside_the_first_of_them(service: Service, kind: Any) -> None:
    same(service, unread(kind), runs=3)
    fast = optimize(unread(kind)(chat(service)))
    service.holds, service.awaits = "part 0", "part 2"
    run(fast)
    assert not service.has_waited_in_vain
    report = optimized(fast).reports[-1]
    assert (report.wasted, report.misses, report.fallbacks) == (0, 0, ())


@pytest.mark.parametrize("lasts_s", [0.1, 0.0])
@pytest.mark.parametrize("kind", [kind for kind in UNCERTAIN if vars(kind).get("start", Fan.start) is Fan.start])
def test_nothing_is_asked_that_is_not_certain_behind_a_step_that_is_not_read(
    service: Service, kind: Any, lasts_s: float
) -> None:
    same(service, unread(kind, lasts_s=lasts_s))


class Slow(Fan):
    """Each step waits before it ends: all others have begun by then."""

    @step
    async def answer(self, ctx: Context, ev: Part) -> Said:
        said = str(await self.llm.acomplete(ev.q))
        return Said(a=said + str(await self.llm.acomplete(f"again {ev.q}")))

    @step
    async def join(self, ctx: Context, ev: Said) -> StopEvent | None:
        found = ctx.collect_events(ev, [Said] * 3)
        return None if found is None else StopEvent(result=sorted(each.a for each in found))


@pytest.mark.parametrize(
    "kind", [Slow, Fan, Both, unread(Slow), unread(Checked), unread(Slow, lasts_s=0), unread(Checked, lasts_s=0)]
)
def test_steps_with_coroutines_and_joins(service: Service, kind: Any) -> None:
    same(service, kind, runs=3)


class Narrow(Fan):
    """One part at a time."""

    @step(num_workers=1)
    async def answer(self, ctx: Context, ev: Part) -> Said:
        return Said(a=self.ask(ev.q))


@pytest.mark.parametrize("kind", [Narrow, unread(Narrow)])
def test_no_more_parts_are_asked_for_at_a_time_than_a_step_has_workers(service: Service, kind: Any) -> None:
    fast = optimize(kind(chat(service)))
    run(fast)
    service.forget()
    seen = hold(service, "part 0")
    run(fast)
    assert seen == ["chat part 0 of bees"]


@pytest.mark.parametrize("kind", [Narrow, unread(Narrow)])
def test_steps_with_one_worker(service: Service, kind: Any) -> None:
    same(service, kind)


class NarrowAndLong(Fan):
    """One part at a time, with requests that need the first reply."""

    @step(num_workers=1)
    async def answer(self, ctx: Context, ev: Part) -> Said:
        found = str(await self.llm.acomplete(ev.q))
        said = ""
        for each in ("former", "middle", "latter"):
            said += str(await self.llm.acomplete(f"{ev.q}: {each} of {found}"))
        return Said(a=said)


class NarrowAndRaising(NarrowAndLong):
    """A part fails for some replies, and then the workflow does."""

    @step(num_workers=1)
    async def answer(self, ctx: Context, ev: Part) -> Said:
        found = str(await self.llm.acomplete(ev.q))
        if "part 1" in found:
            raise ValueError(found)
        return Said(a=str(await self.llm.acomplete(f"more of {found}")))


@pytest.mark.parametrize("kind", [NarrowAndLong, NarrowAndRaising])
def test_the_only_worker_of_a_step_asks_as_often_as_before(service: Service, kind: Any) -> None:
    same(service, kind, runs=3)


def state_of_engine(
    running: list[tuple[str, Any]], queued: dict[str, int], coming: list[tuple[str | None, Any]], **more: Any
) -> Any:
    def worker(name: str, kind: Any, workers: int) -> Any:
        return types.SimpleNamespace(
            in_progress=[types.SimpleNamespace(event=event) for each, event in running if each == name],
            queue=[None] * queued.get(name, 0), collected_waiters=more.get(name, []),
            config=types.SimpleNamespace(num_workers=workers, accepted_events=[kind]),
        )  # fmt: skip

    return types.SimpleNamespace(
        workers={"one": worker("one", Part, 1), "many": worker("many", Other, 4)}, children=more.get("children", {}),
        deliveries=dict(enumerate(types.SimpleNamespace(step_id=to, event=each) for to, each in coming)),
    )  # fmt: skip


PART, OTHER = Part(q="x"), Other(q="x")
ALONE: dict[str, tuple[bool, str, Any]] = {
    "it alone": (True, "one", state_of_engine([("one", PART)], {}, [])),
    "of many alone": (True, "many", state_of_engine([("many", PART)], {}, [])),
    "queued": (True, "one", state_of_engine([("one", PART)], {"one": 2}, [])),
    "coming": (True, "one", state_of_engine([("one", PART)], {}, [("one", PART), (None, Part(q="y"))])),
    "many coming": (False, "many", state_of_engine([("many", PART)], {}, [("many", OTHER)])),
    "others coming": (False, "one", state_of_engine([("one", PART)], {}, [(None, OTHER)])),
    "others called": (False, "one", state_of_engine([("one", PART)], {}, [("many", PART)])),
    "others queued": (False, "one", state_of_engine([("one", PART)], {"many": 1}, [])),
    "others": (False, "one", state_of_engine([("one", PART), ("many", OTHER)], {}, [])),
    "ended": (False, "one", state_of_engine([], {}, [])),
    "waiting": (False, "one", state_of_engine([("one", PART)], {}, [], many=[None])),
    "inside": (False, "one", state_of_engine([("one", PART)], {}, [], children={"a": None})),
    "another release": (False, "one", types.SimpleNamespace()),
}


@pytest.mark.parametrize("case", ALONE)
def test_a_step_is_alone_while_no_other_may_begin(case: str) -> None:
    is_alone, name, state = ALONE[case]
    engine = type("Engine", (), {"state": state})()
    assert reading_workflows.runs_alone(reading_workflows.Running(engine), name, PART) is is_alone


def hold(service: Service, text: str) -> list[str]:
    """Let requests with a text wait for half a second; what was asked until then."""
    waits, seen = service.news.wait_for, list[str]()

    def waits_in_vain(predicate: Any, timeout: Any) -> Any:
        waits(predicate, 0.5)
        seen.extend(service.asked)
        return True

    service.holds, service.awaits = text, "never"
    service.news.wait_for = waits_in_vain  # type: ignore[assignment,method-assign]
    return seen


class Overtaken(Blocks):
    """Another step ends the workflow while one waits for its reply, so that the next is never asked for."""

    @step
    async def start(self, ctx: Context, ev: StartEvent) -> Part | Other | None:
        ctx.send_event(Part(q=ev.q))
        ctx.send_event(Other(q=ev.q))
        return None

    @step
    async def answer(self, ev: Part) -> Said:
        await self.llm.acomplete(f"part {ev.q}")
        return Said(a=ev.q)

    @step
    async def after(self, ev: Said) -> StopEvent:
        return StopEvent(result=self.ask(f"after {ev.a}"))

    @step
    async def ends(self, ev: Other) -> Listed:
        return Listed(texts=[ev.q])

    @step
    async def end(self, ev: Listed) -> StopEvent:
        return StopEvent(result="")


def test_a_step_that_another_may_prevent_is_not_asked_for(service: Service) -> None:
    run(optimize(Chain(chat(service))))  # the provider has answered
    hold(service, "part")
    llm = chat(service)
    original, fast = Overtaken(llm), optimize(Overtaken(llm))
    for _ in range(2):
        with counted(service) as made:
            assert run(fast) == run(original)
        assert made.keys() <= {"chat part bees"}  # if the workflow does not end before the step has sent it


def _later(steps: Any) -> LaterSteps:
    return LaterSteps(steps, "start", Beginning([], [], [], [], [], {}), [])


class Racing(Fan):
    """A step may end the workflow while another waits for its first reply."""

    @step
    async def start(self, ctx: Context, ev: StartEvent) -> Part | Other | None:
        ctx.send_event(Part(q=ev.q))
        ctx.send_event(Other(q=ev.q))
        return None

    @step
    async def ends(self, ev: Other) -> StopEvent | None:
        return StopEvent(result="")


def test_a_step_that_may_end_the_workflow_stands_beside_no_early_steps(service: Service) -> None:
    workflow = Racing(chat(service))
    optimize(workflow)
    steps, run = steps_of(workflow), Run(LlamaIndexAsker(is_async=True))
    reading = _Reading(_later(steps), run, StepContext({}, False, {}, lambda waits: True), {}, [], Companions(run))
    assert [reading._may_run_beside(name) for name in ("answer", "ends", "start")] == [True, False, True]


def test_a_step_joins_a_reading_as_often_as_the_step_was_read(service: Service) -> None:
    workflow = Fan(chat(service))
    optimize(workflow)
    later = _later(steps_of(workflow))
    later.reached["answer"] = 2
    assert [later.takes("answer") for _ in range(3)] == [True, True, False]
    assert not later.takes("join")


@pytest.mark.parametrize("count", [0, 2])
def test_events_that_were_collected_before_count(service: Service, count: int) -> None:
    workflow = Fan(chat(service))
    optimize(workflow)
    steps, run = steps_of(workflow), Run(LlamaIndexAsker(is_async=True))
    collected = {"join": {"default": [Said(a="x")] * count}}
    reading = _Reading(
        _later(steps), run, StepContext({}, False, {}, lambda waits: True), collected, [], Companions(run)
    )
    ends = reading._read("join", make_event(run, Said, (), {"a": "y"}))
    assert list(map(kind_of_event, ends)) == [StopEvent] * (count == 2)


def test_a_join_of_steps_side_by_side_is_left_to_the_run() -> None:
    """Its events come in the order in which the steps end."""
    asker = LlamaIndexAsker(is_async=True)
    for is_beside in (False, True):
        run = Run(asker)
        event = make_event(run, Part, (), {"q": "a"})
        context = StepContext({}, False, {}, lambda waits: True, is_beside=is_beside)
        collect = asker._contexts.attribute(run, context, "collect_events").handler
        expected = [run.load(Part)]
        if is_beside:
            with pytest.raises(Stalled):
                collect(run, (event, expected), {})
        else:
            assert collect(run, (event, expected), {}) == [event]


@pytest.mark.parametrize("given", [{"q": 1}, {}, {"q": "a", "_data": {}}])
def test_contents_that_pydantic_may_change_are_not_known(given: dict[str, Any]) -> None:
    assert type(make_event(Run(LlamaIndexAsker(is_async=True)), Part, (), given)) is Unknown


def test_the_contents_of_an_event_are_known() -> None:
    run, given = Run(LlamaIndexAsker(is_async=True)), {"q": "a", "more": 1}
    made = make_event(run, Part, (), given)
    wanted = Part(**given)  # type: ignore[arg-type]
    assert (made, made.get("more"), made.model_fields_set) == (wanted, 1, wanted.model_fields_set)


def test_an_event_copies_what_pydantic_copies() -> None:
    plan: dict[str, Any] = {"queries": ["a"]}
    given: dict[str, Any] = {"plan": plan, "parts": [{"q": ["b"]}], "texts": ["c"]}
    made = make_event(Run(LlamaIndexAsker(is_async=True)), Planned, (), given)
    wanted = Planned(**given)
    plan["more"] = 1
    for held in (plan["queries"], given["parts"][0]["q"], given["texts"]):
        held.append("later")
    given["parts"][0]["r"] = []
    assert made == wanted


@pytest.mark.parametrize("given", [{"plan": {1: "a"}}, {"plan": {}, "parts": [{"q": "b"}]}, {"plan": [("q", "a")]}])
def test_a_dict_that_pydantic_may_change_is_not_known(given: dict[str, Any]) -> None:
    assert type(make_event(Run(LlamaIndexAsker(is_async=True)), Planned, (), given)) is Unknown


class Planning(Blocks):
    """A plan in a dict, whose questions the next step asks."""

    @step
    async def start(self, ev: StartEvent) -> Planned:
        said = str(await self.llm.acomplete(f"plan {ev.q}"))
        return Planned(plan={"queries": [f"{said} {n}" for n in range(3)]})

    @step
    async def answer(self, ev: Planned) -> StopEvent:
        return StopEvent(result=[self.ask(each) for each in ev.plan["queries"]])


def test_the_questions_of_a_plan_in_a_dict_are_asked_at_once(service: Service) -> None:
    run(optimize(Chain(chat(service))))  # the provider has answered
    llm = chat(service)
    original, fast = Planning(llm), optimize(Planning(llm))
    service.lasts_s = 0.1
    with counted(service) as made:
        said = run(fast)
    with counted(service) as wanted:
        assert run(original) == said
    assert made == wanted
    assert optimized(fast).reports[-1].hits == 2


class Noting(Blocks):
    """Steps that keep in the workflow what they have found."""

    @step
    async def start(self, ev: StartEvent) -> Part:
        self.topic = ev.q
        self.done.append(self.ask(f"topic {ev.q}"))
        return Part(q=ev.q)

    @step
    async def answer(self, ev: Part) -> Said:
        self.done.append(self.ask(f"part {ev.q}"))
        return Said(a=self.ask(f"again {self.topic} {len(self.done)}"))

    @step
    async def end(self, ev: Said) -> StopEvent:
        self.done.append(self.ask(f"last {self.done[-1]}"))
        return StopEvent(result=[ev.a, *self.done])


class NotingInParts(Fan):
    """Steps beside each other that keep what they have found, which the join asks with."""

    @step
    async def answer(self, ctx: Context, ev: Part) -> Said:
        self.done.append(self.ask(ev.q))
        return Said(a=self.ask(f"with {len(self.done)}"))


@pytest.mark.parametrize("kind", [Noting, NotingInParts])
def test_steps_that_keep_what_they_find(service: Service, kind: Any) -> None:
    same(service, kind, runs=3)


def test_steps_are_read_on_behind_what_they_keep(service: Service) -> None:
    fast = optimize(Noting(chat(service)))
    run(fast)
    seen = hold(service, "topic")
    service.forget()
    run(fast)
    assert "chat part bees" in seen


class Loading(Blocks):
    """Loads what is there before anything is asked."""

    @step
    async def load(self, ctx: Context, ev: StartEvent) -> Part:
        return Part(q="known" if Path("nowhere").exists() else "new")  # noqa: ASYNC240

    @step
    async def pass_on(self, ctx: Context, ev: Part) -> Other:
        return Other(q=ev.q)

    @step
    async def answer(self, ctx: Context, ev: Other) -> StopEvent:
        return StopEvent(result=[self.ask(f"{ev.q} {each}") for each in ("bees", "hives", "flowers")])


def test_a_reading_that_begins_behind_its_step_gives_way(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = Prediction._read

    def late(prediction: Prediction) -> None:
        time.sleep(0.0 if prediction.readings else 0.1)
        at_once(prediction)

    monkeypatch.setattr(Prediction, "_read", late)
    same(service, Loading, runs=3)
    fast = optimize(Loading(chat(service)))
    run(fast)
    service.holds, service.awaits = "new bees", "new flowers"
    run(fast)
    assert not service.has_waited_in_vain
