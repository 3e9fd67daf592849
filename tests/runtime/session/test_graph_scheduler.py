"""The graph scheduler against the reference interpreter: any order of completion gives the same values."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teola_plugin.errors import GraphError
from teola_plugin.graph import Graph, parse
from teola_plugin.plan import make_plan
from teola_plugin.runtime.session.graph_scheduler import (
    LOST,
    Closed,
    Event,
    Fragment,
    Fragments,
    GraphScheduler,
    Lost,
    Ready,
)
from tests.support.interpret import interpret

RAG = """
inputs(question, docs)
chunks: [] = call(docs, fn='split') @ python
vecs: [] = embedding(*chunks, stage_items=2) @ embedder
load = ingestion(*vecs, *chunks) @ chroma, writes(kb)
kv = prefilling('rewrite: ', question) @ llm
rewrites: [] = partial_decoding(kv, items='lines') @ llm
q: [] = embedding(*rewrites) @ embedder
hits: [] = searching(*q, top_k=2) @ chroma, reads(kb), after(load)
outputs(hits)
"""


def names(ready: list[Ready]) -> list[tuple[str, tuple[tuple[int, ...], ...]]]:
    return [(r.primitive.name, r.tags) for r in ready]


def scheduler(text: str, **inputs: Any) -> GraphScheduler:
    return GraphScheduler(make_plan(parse(textwrap.dedent(text))), inputs)


def test_items_flow_on_before_their_list_is_closed() -> None:
    s = scheduler(RAG, question="q", docs="d")
    assert names(s.start()) == [("kv", ((),)), ("chunks", ((),))]
    s.apply([Fragment("kv", (), "P")])
    assert names(s.apply([Fragment("rewrites", (0,), "r0")])) == [("q", ((0,),))]


def test_the_longest_path_to_the_output_says_how_urgent_a_primitive_is() -> None:
    graph = parse(
        "inputs(x)\nv = embedding(x) @ embedder\nhits = searching(v, top_k=9) @ kb\nnear = searching(v, top_k=1) @ kb\n"
        "top = reranking(x, hits) @ reranker\noutputs(near, top)"
    )
    remaining = make_plan(graph, {"v": 1.0, "hits": 2.0, "near": 4.0, "top": 3.0}).remaining
    found = {name: (urgency.depth, urgency.remaining_s) for name, urgency in remaining.items()}
    assert found == {"v": (3, 6.0), "hits": (2, 5.0), "near": (1, 4.0), "top": (1, 3.0)}


@pytest.mark.parametrize(
    ("barrier", "has_slack"),
    [("mine = call(x, fn='f') @ pipeline", True), ("mine = call(v, fn='f') @ pipeline", False), ("", False)],
    ids=["beside a barrier", "before a barrier", "alone"],
)
def test_a_request_has_slack_where_the_framework_does_something_else_meanwhile(barrier: str, has_slack: bool) -> None:
    text = f"inputs(x)\nv = embedding(x) @ embedder\n{barrier}\noutputs(v{', mine' if barrier else ''})"
    assert make_plan(parse(text)).has_slack == has_slack


AHEAD = """
inputs(question)
kv = prefilling(question) @ llm
verdict = decoding(kv) @ llm
first = condition(verdict, fn='is_yes') @ python
second = condition(verdict, fn='is_no') @ python
q_ahead = embedding(question, ahead=True) @ embedder
q = aggregate(q_ahead), when(first)
hit_ahead = searching(q_ahead, ahead=True) @ kb
hit = aggregate(hit_ahead), when(second)
w = ingestion(question) @ kb, after(hit_ahead)
outputs(q, hit, w)
"""


@pytest.mark.parametrize(
    ("events", "q", "hit"),
    [
        ([], None, None),
        ([Fragment("first", (), True)], True, None),
        ([Fragment("first", (), False)], None, None),
        ([Fragment("second", (), False)], None, False),
        ([Fragment("first", (), False), Fragment("second", (), False)], False, False),
        ([Fragment("first", (), False), Fragment("second", (), True)], True, True),
        ([Lost("first", ()), Lost("second", ())], False, False),
        ([Lost("first", ())], None, None),
    ],
)
def test_what_runs_ahead_is_wanted_by_those_who_take_it(events: list[Event], q: bool | None, hit: bool | None) -> None:
    s = scheduler(AHEAD, question="q")
    s.start()
    s.apply(events)
    assert (s.is_wanted("q_ahead"), s.is_wanted("hit_ahead")) == (q, hit)


def test_requests_are_cut_into_stages() -> None:
    s = scheduler(RAG, question="q", docs="d")
    s.start()
    ready = s.apply([*(Fragment("chunks", (i,), f"c{i}") for i in range(3)), Closed("chunks", (), 3)])
    assert names(ready) == [("vecs", ((0,), (1,))), ("vecs", ((2,),))]
    assert ready[0].args == (("c0",), ("c1",))


def test_instances_come_in_the_order_of_their_ancestry() -> None:
    s = scheduler(RAG, question="q", docs="d")
    s.start()
    ready = s.apply([Fragment("chunks", (2,), "c"), Fragment("chunks", (0,), "a")])
    assert names(ready) == [("vecs", ((0,), (2,)))]
    assert ready[0].args == (("a",), ("c",))


def test_an_order_edge_waits_for_the_whole_ingestion() -> None:
    s = scheduler(RAG, question="q", docs="d")
    s.start()
    s.apply([Fragment("chunks", (0,), "a"), Fragment("chunks", (1,), "b"), Closed("chunks", (), 2)])
    s.apply([Fragment("kv", (), "P")])
    s.apply([Fragment("rewrites", (0,), "r"), Closed("rewrites", (), 1)])
    s.apply([Fragment("vecs", (0,), 1), Fragment("vecs", (1,), 2)])
    assert names(s.apply([Fragment("q", (0,), 3)])) == []
    assert names(s.apply([Fragment("load", (0,), None)])) == []
    assert names(s.apply([Fragment("load", (1,), None)])) == [("hits", ((0,),))]


def test_an_empty_list_ends_everything_that_maps_over_it() -> None:
    s = scheduler(RAG, question="q", docs="d")
    s.start()
    s.apply([Closed("chunks", (), 0), Fragment("kv", (), "P"), Closed("rewrites", (), 0)])
    assert s.is_done
    assert s.value("hits") == []
    assert s.value("load") is None


def test_none_is_a_value() -> None:
    s = scheduler("inputs(x); y = call(x, fn='f') @ python; z = call(y, fn='g') @ python; outputs(z)", x=None)
    assert names(s.start()) == [("y", ((),))]
    assert s.apply([Fragment("y", (), None)])[0].args == ((None,),)


def test_a_lost_item_loses_its_own_descendants_only() -> None:
    s = scheduler(
        "inputs(xs=[]); y: [] = embedding(*xs) @ e; z: [] = searching(*y) @ c; w = call(z, fn='f') @ p; outputs(w)",
        xs=["a", "b"],
    )
    s.start()
    assert names(s.apply([Fragment("y", (1,), 1), Lost("y", (0,))])) == [("z", ((1,),))]
    assert names(s.apply([Fragment("z", (1,), 2)])) == []
    assert s.value("z") == [LOST, 2]
    assert s.value("w") is LOST


def test_a_decoding_lost_in_the_middle_keeps_the_items_it_handed_out() -> None:
    s = scheduler(RAG, question="q", docs="d")
    s.start()
    s.apply([Fragment("kv", (), "P"), Fragment("rewrites", (0,), "r0"), Lost("rewrites", ())])
    assert s.value("rewrites") == ["r0", LOST]


def test_what_the_framework_tells_is_not_lost_with_its_argument() -> None:
    s = scheduler(
        """
        inputs(x)
        y = call(x, fn='f') @ python
        load = call(y, fn='ingest') @ pipeline, writes(kb)
        hit = searching(x) @ chroma, reads(kb), after(load)
        outputs(hit)
        """,
        x=1,
    )
    s.start()
    assert names(s.apply([Lost("y", ())])) == [("load", ((),))]
    assert not s.is_done, "the search waits for the framework's write"
    assert names(s.apply([Fragment("load", (), None)])) == [("hit", ((),))]


BRANCH = """
inputs(x)
c = condition(x, fn='is_math') @ python
a = call(x, fn='f') @ python, when(c)
b = call(x, fn='g') @ python, when(c, False)
out = aggregate(a, b)
outputs(out)
"""


@pytest.mark.parametrize(("chosen", "branch"), [(True, "a"), (False, "b")])
def test_only_the_chosen_branch_runs(chosen: bool, branch: str) -> None:
    s = scheduler(BRANCH, x=1)
    assert names(s.start()) == [("c", ((),))]
    assert names(s.apply([Fragment("c", (), chosen)])) == [(branch, ((),))]
    assert names(s.apply([Fragment(branch, (), 7)])) == [("out", ((),))]


def test_a_lost_condition_chooses_no_branch_and_lets_no_order_edge_pass() -> None:
    s = scheduler(
        """
        inputs(x)
        c = condition(x, fn='is_new') @ python
        load = call(x, fn='ingest') @ pipeline, writes(kb), when(c)
        hit = searching(x) @ chroma, reads(kb), after(load)
        told = call(x, fn='tell') @ python, when(c, False)
        outputs(hit, told)
        """,
        x=1,
    )
    s.start()
    assert names(s.apply([Lost("c", ())])) == [("load", ((),))]
    assert s.value("told") is LOST
    assert names(s.apply([Fragment("load", (), None)])) == [("hit", ((),))]


NESTED = """
inputs(style, topics=[])
claims: [[]] = call(*topics, fn='claims') @ python
proof: [[]] = call(*claims, *topics, style, fn='proof') @ python
verdict: [] = call(*topics, *proof, fn='verdict') @ python
report = call(verdict, fn='report') @ python
census = call(claims, fn='census') @ python
outputs(report, census)
"""


GATED = """
inputs(question, key, words=[])
ok = call(question, fn='check') @ python
each: [] = call(*words, fn='check') @ python
said: [] = embedding(*each) @ remote, gated(ok, each, key)
other = condition(question, fn='is_yes') @ python
maybe = call(question, fn='check') @ python, when(other)
last = embedding(question) @ remote, gated(maybe)
outputs(said, last)
"""


def test_a_request_waits_for_the_whole_of_its_gates() -> None:
    s = scheduler(GATED, question="q", words=["a", "b"], key=1)
    s.start()
    assert names(s.apply([Fragment("each", (0,), "a"), Fragment("ok", (), True)])) == []
    assert names(s.apply([Fragment("each", (1,), "b")])) == [("said", ((0,), (1,)))]
    assert s.has_passed("each")
    assert not s.has_passed("maybe")


@pytest.mark.parametrize("lost", [Lost("ok", ()), Lost("each", (1,))])
def test_a_request_behind_a_lost_gate_is_lost(lost: Lost) -> None:
    s = scheduler(GATED, question="q", words=["a", "b"], key=1)
    s.start()
    events = [Fragment("ok", (), True), Fragment("each", (0,), "a"), Fragment("each", (1,), "b")]
    assert names(s.apply([lost, *(e for e in events if (e.name, e.tag) != (lost.name, lost.tag))])) == []
    assert not s.has_passed(lost.name)


def test_a_request_under_a_condition_is_lost_with_its_gate() -> None:
    s = scheduler(
        """
        inputs(question)
        ok = call(question, fn='check') @ python
        other = condition(question, fn='is_yes') @ python
        said = embedding(question) @ remote, gated(ok), when(other)
        outputs(said)
        """,
        question="q",
    )
    s.start()
    assert names(s.apply([Fragment("other", (), True)])) == []
    assert names(s.apply([Lost("ok", ())])) == []


def test_an_input_that_is_not_there_is_a_gate_that_stays_closed() -> None:
    s = scheduler(GATED, question="q", words=["a"])
    s.start()
    assert names(s.apply([Fragment("each", (0,), "a"), Fragment("ok", (), True)])) == []


def test_a_gate_that_is_skipped_is_open() -> None:
    s = scheduler(GATED, question="q", words=[], key=1)
    s.start()
    assert names(s.apply([Fragment("other", (), False)])) == [("last", ((),))]
    assert s.has_passed("maybe")


def test_nested_lists_join_at_their_own_ancestor() -> None:
    s = scheduler(NESTED, topics=["t0", "t1"], style="s")
    s.start()
    ready = s.apply([*(Fragment("claims", (0, i), f"c{i}") for i in range(2)), Closed("claims", (0,), 2)])
    assert names(ready) == [("proof", ((0, 0),)), ("proof", ((0, 1),))]
    assert ready[1].args == (("c1", "t0", "s"),)
    ready = s.apply([Fragment("proof", (0, i), f"p{i}") for i in range(2)])
    assert ready[0].args == (("t0", ["p0", "p1"]),)
    assert names(s.apply([Closed("claims", (1,), 0)])) == [("census", ((),)), ("verdict", ((1,),))]


def test_an_inner_list_may_close_before_the_list_around_it() -> None:
    s = scheduler(
        """
        inputs(x)
        topics: [] = call(x, fn='topics') @ python
        claims: [[]] = call(*topics, fn='claims') @ python
        report = call(claims, fn='report') @ python
        outputs(report)
        """,
        x=1,
    )
    s.start()
    s.apply([Fragment("topics", (0,), "t0")])
    assert names(s.apply([Fragment("claims", (0, 0), "c"), Closed("claims", (0,), 1)])) == []
    s.apply([Fragment("topics", (1,), "t1"), Closed("topics", (), 2)])
    assert names(s.apply([Closed("claims", (1,), 0)])) == [("report", ((),))]
    assert s.value("claims") == [["c"], []]


def test_starred_inputs_of_different_length_are_an_error() -> None:
    s = scheduler("inputs(a=[], b=[]); c: [] = call(*a, *b, fn='f') @ python; outputs(c)", a=[1], b=[1, 2])
    with pytest.raises(GraphError, match="1, 2"):
        s.start()


def test_an_item_may_not_arrive_twice() -> None:
    s = scheduler("inputs(x); y = call(x, fn='f') @ python; outputs(y)", x=1)
    s.start()
    s.apply([Fragment("y", (), 1)])
    with pytest.raises(GraphError, match="y"):
        s.apply([Fragment("y", (), 2)])
    with pytest.raises(GraphError, match="y"):
        s.apply([Fragments("y", [()], [2])])


def test_an_item_has_its_place() -> None:
    for tags in ([(0,)], [()], [(0, 1), (0, 1, 2)]):
        s = scheduler(NESTED, topics=["t0", "t1"], style="s")
        s.start()
        with pytest.raises(GraphError, match="claims"):
            s.apply([Fragments("claims", tags, ["x"] * len(tags))])


def run(
    graph: Graph, inputs: Mapping[str, Any], function: Callable[..., Any], rng: random.Random
) -> tuple[GraphScheduler, list[tuple[str, tuple[int, ...]]]]:
    """Play the runtime: complete what is ready in any order, list producers item by item."""
    plan = make_plan(graph)
    s = GraphScheduler(plan, inputs)
    events: list[Event] = []
    started: list[tuple[str, tuple[int, ...]]] = []

    def begin(ready: list[Ready]) -> None:
        for r in ready:
            for tag, args in r.instances:
                started.append((r.primitive.name, tag))
                value = function(r.primitive.name, *args)
                if plan.yields[r.primitive.name]:
                    events.extend(Fragment(r.primitive.name, (*tag, i), v) for i, v in enumerate(value))
                    events.append(Closed(r.primitive.name, tag, len(value)))
                else:
                    events.append(Fragment(r.primitive.name, tag, value))

    begin(s.start())
    while events:
        some = [events.pop(rng.randrange(len(events))) for _ in range(rng.randint(1, len(events)))]
        begin(s.apply(together(some) if rng.random() < 0.5 else some))
    return s, started


def together(events: list[Event]) -> list[Event]:
    """The items of each value as one event."""
    items: dict[str, list[Fragment]] = {}
    for event in events:
        if isinstance(event, Fragment):
            items.setdefault(event.name, []).append(event)
    bulk = [Fragments(name, [f.tag for f in found], [f.value for f in found]) for name, found in items.items()]
    return [*bulk, *(event for event in events if not isinstance(event, Fragment))]


STREAMED = NESTED.replace(
    "inputs(style, topics=[])", "inputs(style, sizes)\ntopics: [] = call(sizes, fn='topics') @ python"
)


def of_nested(name: str, *args: Any) -> Any:
    if name == "topics":
        return [f"t{n}" for n in args[0]]
    if name == "claims":
        return [f"{args[0]}.{i}" for i in range(int(args[0][-1]))]
    return (name, args)


@pytest.mark.parametrize("text", [NESTED, STREAMED], ids=["given", "streamed"])
@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=4), st.randoms(use_true_random=False))
def test_any_order_of_completion_gives_what_the_interpreter_gives(
    text: str, sizes: list[int], rng: random.Random
) -> None:
    graph = parse(text)
    inputs = {"topics": of_nested("topics", sizes), "sizes": sizes, "style": "s"}
    s, started = run(graph, inputs, of_nested, rng)
    functions = {p.name: (lambda *a, n=p.name: of_nested(n, *a)) for p in graph}
    assert {name: s.value(name) for name in graph.outputs} == interpret(graph, inputs, {}, functions)
    assert len(started) == len(set(started)), "an instance ran twice"
