"""Graphs whose routes are learned: what probably follows is asked ahead, and nothing else is different.

That something was asked ahead is shown by an engine that holds a reply back until another node has asked.
"""

from __future__ import annotations

import asyncio
import operator
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send

from teola_plugin import explain, optimize, optimized, pure
from teola_plugin import routes as rule
from teola_plugin.adapters.langgraph import adapter
from teola_plugin.engines import Batch, Failed
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.routes import ACCOUNT_CALLS, LEAST
from teola_plugin.runtime.session.session import Session
from teola_plugin.seams import Reply
from tests.adapters.langchain.test_langchain_foreign import Hosted
from tests.adapters.langgraph.test_langgraph_differential import (
    Call,
    Holding,
    assert_asked,
    compared,
    converse,
    run,
    same_as_some,
    settle,
    some_call,
)
from tests.support.fakes import says
from tests.support.langgraph_world import Maker


class State(TypedDict, total=False):
    q: str
    way: str
    pages: list[str]
    answer: str
    log: Annotated[list[str], operator.add]


def said(text: str) -> str:
    """A router says the last word of its prompt, a judge "no" to a bad page, all others repeat what they are told."""
    if text.startswith("[route]"):
        return text.split()[-1]
    if text.startswith("[left") and "down" in text:
        raise ConnectionError("the service is down")
    if text.startswith("[judge]"):
        return "no" if "bad" in text else "yes"
    return f"<{text}>"


class Ours:
    """A model on an engine of this process."""

    def __init__(self, engine: Any = None) -> None:
        self.engine = engine or Holding()
        self.engine.answer = lambda payload: says(said(_told(payload)))
        self.model = EngineChatModel(engine=self.engine, max_tokens=None, temperature=None)

    def hold(self, held: str, until: str) -> None:
        """Hold the reply to `held` back until `until` is asked; "" no more."""
        self.engine.holds, self.engine.awaits, self.engine.began = held, until, []

    @property
    def has_waited_in_vain(self) -> bool:
        return self.engine.gave_up

    def asked(self) -> Counter[str]:
        settle(self.engine)
        return Counter(map(_told, self.engine.seen))


def _told(payload: Any) -> str:
    return str(payload).removeprefix("User: ").removesuffix("\nAssistant:")


@pure
class _Hosted(Hosted):
    """A hosted model; `_world` is a `Theirs`."""

    def _said(self, how: str, messages: Any, kwargs: Any) -> str:
        text = str(messages[0].content)
        world: Theirs = self.__dict__["world"]
        world.texts.append(text)
        if world.awaited and world.awaited in text:
            world.is_asked.set()
        if world.held and world.held in text:
            known = len(world.texts)
            world.has_waited_in_vain |= not world.is_asked.wait(world.patience_s)
            world.asked_while_held = world.texts[known:]
        return said(text)


class Theirs:
    """A model outside of this process."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.held = self.awaited = ""
        self.is_asked = threading.Event()
        self.has_waited_in_vain = False
        self.patience_s = 10.0
        self.asked_while_held: list[str] = []
        self.model = _Hosted()
        self.model.__dict__["world"] = self

    def hold(self, held: str, until: str) -> None:
        self.held, self.awaited = held, until
        self.is_asked.clear()

    def asked(self) -> Counter[str]:
        return Counter(self.texts)


World = Ours | Theirs
WORLDS = [Ours, Theirs]


WAYS = {"left": "left", "right": "right"}


def routed(w: World, **options: Any) -> Any:
    """The entry decides by a reply: to the left, where two things are asked, or to the right; or it raises."""
    llm = w.model

    def route(state: State) -> str:
        return WAYS[str(llm.invoke(f"[route] {state['q']}").content)]

    def left(state: State) -> dict[str, Any]:
        one, two = llm.invoke(f"[left 1] {state['q']}"), llm.invoke(f"[left 2] {state['q']}")
        return {"way": f"{one.content} {two.content}"}

    def right(state: State) -> dict[str, Any]:
        return {"way": llm.invoke(f"[right] {state['q']}").content}

    def end(state: State) -> dict[str, Any]:
        return {"answer": llm.invoke(f"[end] {state['way']}").content, "log": ["end"]}

    graph = StateGraph(State)
    for node in (left, right, end):
        graph.add_node(node)
    graph.add_conditional_edges(START, route, ["left", "right"])
    graph.add_edge("left", "end")
    graph.add_edge("right", "end")
    return graph.compile(**options)


def chosen(w: World) -> Any:
    """One node decides by a reply which of two ways it goes."""
    llm = w.model

    def choose(state: State) -> dict[str, Any]:
        if WAYS[str(llm.invoke(f"[route] {state['q']}").content)] == "left":
            one, two = llm.invoke(f"[left 1] {state['q']}"), llm.invoke(f"[left 2] {state['q']}")
            return {"answer": f"{one.content} {two.content}"}
        return {"answer": llm.invoke(f"[right] {state['q']}").content}

    graph = StateGraph(State)
    graph.add_node(choose)
    graph.add_edge(START, "choose")
    return graph.compile()


def commanded(w: World) -> Any:
    """A node says itself where it goes."""
    llm = w.model

    def first(state: State) -> Command[Any]:
        return Command(goto=llm.invoke(f"[route] {state['q']}").content, update={"log": ["first"]})

    def left(state: State) -> dict[str, Any]:
        return {"answer": llm.invoke(f"[left 1] {state['q']}").content}

    def right(state: State) -> dict[str, Any]:
        return {"answer": llm.invoke(f"[right] {state['q']}").content}

    graph = StateGraph(State)
    graph.add_node("first", first, destinations=("left", "right"))
    graph.add_node(left)
    graph.add_node(right)
    graph.add_edge(START, "first")
    return graph.compile()


def judged(w: World) -> Any:
    """If a reply lets them be, pages are judged one by one, and those that are kept go into the answer."""
    llm = w.model

    def begin(state: State) -> str:
        return "grade" if llm.invoke("[route] grade").content == "grade" else END

    def grade(state: State) -> dict[str, Any]:
        kept = []
        for page in state["q"].split():
            if llm.invoke(f"[judge] {page}").content == "yes":
                kept.append(page)
            else:
                continue
        return {"pages": kept}

    def decide(state: State) -> str:
        return "write" if state["pages"] else END

    def write(state: State) -> dict[str, Any]:
        return {"answer": llm.invoke(f"[write] {state['pages']}").content}

    graph = StateGraph(State)
    graph.add_node(grade)
    graph.add_node(write)
    graph.add_conditional_edges(START, begin, ["grade", END])
    graph.add_conditional_edges("grade", decide, ["write", END])
    return graph.compile()


def guarded(w: World) -> Any:
    """What comes before the router may raise, by what a reply says."""
    llm = w.model

    def guard(state: State) -> dict[str, Any]:
        return {"log": [{"yes": "fine"}[str(llm.invoke("[judge] it").content)]]}

    def onward(state: State) -> dict[str, Any]:
        return {"way": "on"}

    def route(state: State) -> str:
        return str(llm.invoke(f"[route] {state['q']}").content)

    def left(state: State) -> dict[str, Any]:
        return {"answer": llm.invoke(f"[left 1] {state['q']}").content}

    graph = StateGraph(State)
    for node in (guard, left):
        graph.add_node(node)
    graph.add_node("next", onward)
    graph.add_edge(START, "guard")
    graph.add_edge("guard", "next")
    graph.add_conditional_edges("next", route, ["left", END])
    return graph.compile()


def sending(w: World) -> Any:
    """How many tasks follow, and what they are given, hangs on a reply."""
    llm = w.model

    def plan(state: State) -> dict[str, Any]:
        return {"way": llm.invoke(f"[route] {state['q']}").content}

    def each(state: State) -> dict[str, Any]:
        return {"log": [str(llm.invoke(f"[each] {state['way']}").content)]}

    def split(state: State) -> list[Send]:
        return [Send("each", {"way": letter}) for letter in state["way"]]

    graph = StateGraph(State)
    graph.add_node(plan)
    graph.add_node(each)
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", split, ["each"])
    return graph.compile()


def call(w: World, graph: Any, q: str, form: str = "invoke") -> Any:
    found = run(graph, Call(form, "updates" if "stream" in form else None), {"q": q}, {}, [])
    w.asked()  # nothing of it is on its way
    return found


def taught(w: World, graph: Any, *questions: str, times: int = LEAST, hold: tuple[str, str] = ("", "")) -> Any:
    """The graph, learned, after so many calls, awake; in all but the first, `hold` is done."""
    fast = optimize(graph, speculate="learned")
    for n in range(times):
        for q in questions:
            w.hold(*(hold if n else ("", "")))
            call(w, fast, q)
    return fast


def report(graph: Any) -> Any:
    return optimized(graph).reports[-1]


# --- what is asked ahead ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("make", [routed, commanded])
def test_where_calls_went_is_asked_before_the_router_has_answered(make: Callable[[World], Any], form: str) -> None:
    w, plain = Ours(), Ours()
    graph = taught(w, make(w), "go left")
    w.hold("[route]", "[left 1]")
    assert call(w, graph, "go left", form) == call(plain, make(plain), "go left", form)
    assert not w.has_waited_in_vain
    assert (report(graph).wasted, report(graph).fallbacks) == (0, ())


@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
def test_a_hosted_model_is_asked_too(form: str) -> None:
    w, plain = Theirs(), Theirs()
    graph = taught(w, routed(w), "go left")
    w.hold("[route]", "[left 2]")
    assert call(w, graph, "go left", form) == call(plain, routed(plain), "go left", form)
    assert not w.has_waited_in_vain
    assert w.asked() == Counter({text: (LEAST + 1) * n for text, n in plain.asked().items()})


def test_a_hosted_model_is_not_asked_behind_what_may_raise_before_the_router() -> None:
    w = Theirs()
    graph = taught(w, guarded(w), "go left", times=2 * LEAST)
    w.hold("[judge]", "never")
    w.patience_s = 0.3
    call(w, graph, "go left")
    assert w.has_waited_in_vain
    assert w.asked_while_held == []


@pytest.mark.parametrize("make_world", WORLDS)
def test_how_an_if_of_a_loop_came_out_is_assumed_of_its_next_rounds(make_world: Callable[[], World]) -> None:
    w, plain = make_world(), make_world()
    graph = taught(w, judged(w), "a b c", times=2 * LEAST, hold=("[judge] a", "[judge] c"))
    w.hold("[judge]", "[write] ['d', 'e']")
    assert call(w, graph, "d e") == call(plain, judged(plain), "d e")
    assert not w.has_waited_in_vain
    assert report(graph).wasted == 0


@pytest.mark.parametrize("make_world", WORLDS)
@pytest.mark.parametrize("speculate", ["certain", "off"])
def test_who_does_not_ask_for_it_has_nothing_learned(speculate: Any, make_world: Callable[[], World]) -> None:
    w = make_world()
    graph = optimize(routed(w), speculate=speculate)
    assert optimized(graph).routes is None
    for _ in range(2 * LEAST):
        call(w, graph, "go left")
    before = w.asked()
    assert "<[right] go right>" in call(w, graph, "go right")
    assert set(w.asked() - before) == {"[route] go right", "[right] go right", "[end] <[right] go right>"}
    assert sum(r.wasted for r in optimized(graph).reports) == 0


# --- where it goes another way ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_world", WORLDS)
def test_a_wrong_guess_costs_requests_that_are_counted(make_world: Callable[[], World]) -> None:
    w, plain = make_world(), make_world()
    graph = taught(w, routed(w), "go left")
    before = w.asked()
    w.hold("[route]", "[end]")
    assert call(w, graph, "right") == call(plain, routed(plain), "right")
    assert not w.has_waited_in_vain
    asked = w.asked() - before
    assert asked - plain.asked() == Counter(
        ["[left 1] right", "[left 2] right", "[end] <[left 1] right> <[left 2] right>"]
    )
    assert plain.asked() - asked == Counter()
    assert report(graph).wasted == 3
    assert not optimized(graph).routes.has_budget  # 3 of 26


@pytest.mark.parametrize("make_world", WORLDS)
def test_what_fails_for_nothing_is_heard_of_by_nobody(make_world: Callable[[], World]) -> None:
    w, plain = make_world(), make_world()
    graph = taught(w, routed(w), "go left")
    w.hold("[route]", "[left 1]")
    assert call(w, graph, "down right") == call(plain, routed(plain), "down right")
    assert not w.has_waited_in_vain
    assert report(graph).fallbacks == ()


class _Slow(Holding):
    """Replies to the router once the left is asked, to the right once both requests of the left are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.is_patient = False
        self.dropped: list[Reply] = []

    async def hold(self, batch: Batch) -> None:
        text = _told(batch.items[0].payload)
        self.began.append(text)
        if not self.is_patient:
            await asyncio.sleep(0.05)  # so that all is read of the calls that teach
        elif text.startswith("[route]"):
            self.gave_up |= not await self.has_begun("[left 2]")
        elif text.startswith("[left"):
            await asyncio.sleep(20)
        elif text.startswith("[right]"):
            self.gave_up |= not await self.is_so(lambda: len(self.dropped) == 2)


@pytest.mark.parametrize("make", [routed, chosen])
def test_what_is_on_its_way_is_dropped_when_the_router_says_otherwise(
    make: Callable[[World], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, plain = _Slow(), Ours()
    w, drop = Ours(engine), Session.drop
    monkeypatch.setattr(Session, "drop", lambda self, reply: (drop(self, reply), engine.dropped.append(reply))[0])
    graph = taught(w, make(w), "go left")
    engine.is_patient, engine.began = True, []
    assert call(w, graph, "right") == call(plain, make(plain), "right")
    assert not w.has_waited_in_vain
    assert [type(reply.outcome) for reply in engine.dropped] == [Failed, Failed]
    assert report(graph).wasted == 2


def test_an_error_is_the_same_and_the_way_there_is_no_route() -> None:
    w, plain = Ours(), Ours()
    graph = taught(w, routed(w), "go left")
    for _ in range(3):
        with pytest.raises(KeyError) as expected:
            call(plain, routed(plain), "nowhere")
        with pytest.raises(KeyError) as raised:
            call(w, graph, "nowhere")
        assert str(raised.value) == str(expected.value)
    assert ("superstep", 0, (START,)) not in optimized(graph).routes.known()
    before = w.asked()
    with pytest.raises(KeyError):
        call(w, graph, "nowhere")
    assert set(w.asked() - before) == {"[route] nowhere"}


def test_calls_that_do_not_agree_have_nothing_asked_for_nothing() -> None:
    w = Ours()
    graph = taught(w, routed(w), "go left", "go right", times=LEAST)
    assert sum(r.wasted for r in optimized(graph).reports) == 0
    before = w.asked()
    call(w, graph, "go right")
    assert not any("left" in text for text in w.asked() - before)


def test_a_spent_budget_stops_it_and_it_begins_again_when_that_is_long_ago() -> None:
    w = Ours()
    graph = taught(w, routed(w), "go left")
    routes = optimized(graph).routes
    routes.end([], 0, 100)
    assert not routes.has_budget
    before = w.asked()
    w.hold("[route]", "[left 1]")
    w.engine.patience = 50
    call(w, graph, "go right")
    assert w.has_waited_in_vain
    w.hold("", "")
    w.engine.patience, w.engine.gave_up = 5_000, False
    assert not any("left" in text for text in w.asked() - before)
    for _ in range(ACCOUNT_CALLS - 2):
        call(w, graph, "go left")
    assert sum(r.wasted for r in optimized(graph).reports) == 0
    assert not routes.has_budget
    call(w, graph, "go left")
    assert routes.has_budget
    optimized(graph).wake()
    w.hold("[route]", "[left 1]")
    call(w, graph, "go left")
    assert not w.has_waited_in_vain


def test_what_is_sent_is_no_route() -> None:
    w, plain = Ours(), Ours()
    graph = taught(w, sending(w), "abc", times=2 * LEAST)
    assert call(w, graph, "ab") == call(plain, sending(plain), "ab")
    assert ("superstep", 1, ("plan",)) not in optimized(graph).routes.known()
    assert sum(r.wasted for r in optimized(graph).reports) == 0


# --- nothing else differs --------------------------------------------------------------------------------------------

CHANGING = ["go left"] * 7 + ["go right", "x left"] + ["go right"] * 7


def threads(graph: Any) -> list[Any]:
    """The history of each of several threads that go different ways."""
    found = []
    for n, q in enumerate(CHANGING):
        config: Any = {"configurable": {"thread_id": str(n % 5)}}
        graph.invoke({"q": q}, config)
        history = graph.get_state_history(config)
        found.append([(s.values, s.next, s.metadata["step"], s.metadata["source"]) for s in history])
    return found


@pytest.mark.parametrize("make_world", WORLDS)
def test_histories_are_the_same(make_world: Callable[[], World]) -> None:
    w, plain = make_world(), make_world()
    graph = optimize(routed(w, checkpointer=InMemorySaver()), speculate="learned")
    assert threads(graph) == threads(routed(plain, checkpointer=InMemorySaver()))
    assert plain.asked() - w.asked() == Counter()
    assert (w.asked() - plain.asked()).total() <= sum(r.wasted for r in optimized(graph).reports)


def test_an_interrupt_is_where_it_was() -> None:
    def interrupted(graph: Any) -> list[Any]:
        found = []
        for n in range(2 * LEAST):
            config: Any = {"configurable": {"thread_id": str(n)}}
            found += [graph.invoke({"q": "go left"}, config), graph.invoke(None, config)]
        return found

    w, plain = Ours(), Ours()
    options = {"interrupt_before": ["left", "right"]}
    graph = optimize(routed(w, checkpointer=InMemorySaver(), **options), speculate="learned")
    assert interrupted(graph) == interrupted(routed(plain, checkpointer=InMemorySaver(), **options))
    assert w.asked() == plain.asked()


@pytest.mark.parametrize("form", ["batch", "abatch", "threads", "tasks"])
@pytest.mark.parametrize("make_world", WORLDS)
def test_calls_at_once_do_not_mix(make_world: Callable[[], World], form: str) -> None:
    def answers(graph: Any) -> list[Any]:
        inputs: Any = [{"q": f"{n} {q}"} for n, q in enumerate(CHANGING)]
        if form == "batch":
            return list(graph.batch(inputs))
        if form == "threads":
            with ThreadPoolExecutor(8) as pool:
                return list(pool.map(graph.invoke, inputs))

        async def gathered() -> list[Any]:
            if form == "abatch":
                return list(await graph.abatch(inputs))
            return list(await asyncio.gather(*map(graph.ainvoke, inputs)))

        return asyncio.run(gathered())

    w, plain = make_world(), make_world()
    graph = taught(w, routed(w), "go left")
    taught_ = w.asked()
    for _ in range(3):
        assert answers(graph) == answers(routed(plain))
    asked = w.asked() - taught_
    assert plain.asked() - asked == Counter()
    assert (asked - plain.asked()).total() <= sum(r.wasted for r in optimized(graph).reports)


def test_it_learns_at_rest_and_wakes_when_it_has() -> None:
    w = Ours()
    graph = optimize(routed(w), speculate="learned")
    optimized(graph)._worth.resting = 1000
    for _ in range(LEAST):
        call(w, graph, "go left")
    assert [r.rested for r in optimized(graph).reports] == [True] * LEAST
    w.hold("[route]", "[left 1]")
    call(w, graph, "go left")
    assert not report(graph).rested
    assert not w.has_waited_in_vain


def test_explain_says_that_requests_may_be_for_nothing() -> None:
    w = Ours()
    graph = taught(w, routed(w), "go left")
    text = " ".join(explain(graph).split())
    assert "may be for nothing" in text
    assert "after __start__: left" in text
    assert "may be for nothing" not in explain(optimize(routed(w)))


@pytest.mark.parametrize("seed", range(40))
def test_random_graph(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "LEAST", 1)
    maker = Maker(seed)
    graph = maker.graph()
    asks = some_call(seed, maker.is_async, maker.has_saver, maker.names)
    plain = [converse(maker, graph, asks)]
    maker_of_fast = Maker(seed)
    fast = optimize(maker_of_fast.graph(), speculate="learned")
    for _ in range(3):
        if calls := adapter.calls_of(fast):
            calls.wake()
            calls.reports.clear()
        outcome = converse(maker_of_fast, fast, asks)
        for name in compared(plain[0]):
            same_as_some(name, outcome, plain, lambda: converse(maker, graph, asks))
        assert_asked(asks, outcome, plain, calls.reports if calls else [])
