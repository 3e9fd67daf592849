"""The reference interpreter: what a graph means."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.support.interpret
from teola_plugin.errors import GraphError
from teola_plugin.graph import Graph, parse
from teola_plugin.rounds import Rounds
from teola_plugin.trace import Function
from tests.support.interpret import interpret
from tests.support.strategies import graphs
from tests.support.world import run_in_any_order, run_in_order, some_inputs

FUNCTIONS = {
    "show": lambda *args: repr(args if len(args) != 1 else args[0]),
    "double": lambda x: [x, x],
    "none": lambda *_: None,
    "same": lambda x: x,
}


def echo(op: str, payload: Any, settings: Any) -> Any:
    return (op, payload, dict(settings))


def run(text: str, **inputs: Any) -> dict[str, Any]:
    return interpret(parse(text), inputs, {"e": echo}, FUNCTIONS)


def test_doctests() -> None:
    assert doctest.testmod(tests.support.interpret).failed == 0


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y = call(a, xs, fn='show')", "('A', [1, 2])"),
        ("y: [] = call(*xs, fn='show')", ["1", "2"]),
        ("y: [] = call(*xs, *ys, a, 'x', fn='show')", ["(1, 3, 'A', 'x')", "(2, 4, 'A', 'x')"]),
        ("y: [[]] = call(*xss, fn='show')", [["5"], ["6", "7"]]),
        ("y: [[]] = call(*xs, *xss, fn='show')", [["(1, 5)"], ["(2, 6)", "(2, 7)"]]),  # broadcast
        ("y: [] = call(*xs, *xss, fn='show')", ["(1, [5])", "(2, [6, 7])"]),  # aggregation
        ("y: [] = call(*xss, fn='show')", ["[5]", "[6, 7]"]),
        ("y: [[]] = call(*xs, xs, fn='double')", None),
        ("y: [] = call(a, fn='double')", ["A", "A"]),
        ("y: [[]] = call(*xs, fn='double')", [[1, 1], [2, 2]]),
        ("y: [[]] = chunking(*xs, fn='double')", [[1, 1], [2, 2]]),
        ("y = call(fn='show')", "()"),
        ("y: [] = call(*empty, fn='show')", []),
        ("y: [[]] = call(*empty, fn='double')", []),
    ],
)
def test_items(line: str, expected: Any) -> None:
    inputs: dict[str, Any] = {"a": "A", "xs": [1, 2], "ys": [3, 4], "xss": [[5], [6, 7]], "empty": []}
    text = f"inputs(a, xs=[], ys=[], xss=[[]], empty=[]); {line}; outputs(y)"
    if expected is None:
        with pytest.raises(TypeError):  # the function's own error, as it is
            run(text, **inputs)
    else:
        assert run(text, **inputs) == {"y": expected}


@pytest.mark.parametrize("inputs", [{"xs": [1], "ys": []}, {"xs": [[1], [2]], "ys": [[1], [2, 3]]}])
def test_zipped_lists_must_be_equally_long(inputs: dict[str, Any]) -> None:
    depth = "[[]]" if inputs["ys"] else "[]"
    with pytest.raises(GraphError, match=r"y = call\(\.\.\.\): its starred inputs have \[\d, \d\] items"):
        run(f"inputs(xs={depth}, ys={depth}); y: {depth} = call(*xs, *ys, fn='show'); outputs(y)", **inputs)


def test_none_is_a_value() -> None:
    text = """
    inputs(x, xs=[])
    a = call(x, fn='same')
    b: [] = call(*xs, fn='same')
    c = call(a, b, fn='show'), when(a, None)
    d = aggregate(a, c)
    outputs(a, b, c, d)"""
    got = run("\n".join(line.strip() for line in text.strip().splitlines()), x=None, xs=[None])
    assert got == {"a": None, "b": [None], "c": "(None, [None])", "d": None}


def test_engines_get_op_payload_and_their_own_settings() -> None:
    text = """\
inputs(a, b, xs=[])
one = reranking(a, b, top_k=3, stage_items=2) @ e
none = tool(unit='C') @ e
vecs: [] = embedding(*xs) @ e
kv_early = partial_prefilling('<', a) @ e
kv = full_prefilling(kv_early, b, '>') @ e
text = partial_decoding(kv, max_tokens=8, wanted=1, early_stop=True) @ e
outputs(one, none, vecs, kv, text)"""
    assert run(text, a="A", b="B", xs=["x"]) == {
        "one": ("reranking", ("A", "B"), {"top_k": 3}),
        "none": ("tool", (), {"unit": "C"}),
        "vecs": [("embedding", "x", {})],
        "kv": "<AB>",
        "text": ("decoding", "<AB>", {"max_tokens": 8}),
    }


def test_a_single_prompt_that_is_no_text_passes_through() -> None:
    text = "inputs(m); kv = prefilling(m) @ e; y = decoding(kv) @ e; outputs(y)"
    assert run(text, m=["messages"]) == {"y": ("decoding", ["messages"], {})}


def test_only_texts_are_joined() -> None:
    with pytest.raises(GraphError, match=r"kv = prefilling\(\.\.\.\): only texts can be joined, not str, int"):
        run("inputs(m); kv = prefilling('a', m) @ e; outputs(kv)", m=1)


@pytest.mark.parametrize(("wanted", "expected"), [("", ["a", "b", "c"]), (", wanted=2", ["a", "b"])])
def test_item_grammar(wanted: str, expected: list[str]) -> None:
    graph = parse(f"inputs(x); y: [] = decoding(x, items='lines'{wanted}) @ llm; outputs(y)")
    assert interpret(graph, {"x": ""}, {"llm": lambda *_: "a\nb\nc"}) == {"y": expected}


BRANCHES = """\
inputs(x)
c = call(x, fn='same')
yes = call('yes', fn='same'), when(c)
no = call('no', fn='same'), when(c, False)
after_yes = call(yes, fn='show')
either = aggregate(yes, no)
shown = aggregate(no, yes, x, fn='show')
nested = call('n', fn='same'), when(yes, 'yes')
neither = aggregate(after_yes, nested)
free = call('f', fn='same'), after(yes, no)
outputs(yes, no, after_yes, either, shown, nested, neither, free)"""


def test_what_depends_on_a_skipped_primitive_is_skipped() -> None:
    taken = run(BRANCHES, x=True)
    assert taken == {
        "yes": "yes",
        "after_yes": "'yes'",
        "either": "yes",
        "shown": "('yes', True)",
        "nested": "n",
        "neither": "'yes'",
        "free": "f",
    }
    assert run(BRANCHES, x=False) == {"no": "no", "either": "no", "shown": "('no', False)", "free": "f"}


@pytest.mark.parametrize(
    "line",
    [
        "y = call(x, skipped, fn='show')",
        "y = prefilling(skipped, x) @ e",
        "y = searching(x, skipped) @ e",
        "y: [] = call(*xs, skipped, fn='show')",
        "y = aggregate(x), when(skipped, 'a')",
    ],
)
def test_one_skipped_input_is_enough(line: str) -> None:
    text = f"inputs(x, no, xs=[]); skipped = call(x, fn='same'), when(no); {line}; outputs(y)"
    assert run(text, x="a", no=False, xs=["b"]) == {}
    assert run(text, x="a", no=True, xs=["b"]).keys() == {"y"}


@pytest.mark.parametrize(("at_most", "rounds"), [(None, 4), (6, 4), (4, 4), (3, 3), (1, 1)])
def test_rounds_go_on_until_they_are_done(at_most: int | None, rounds: int) -> None:
    """Each takes what the one before gave, and what does not change."""
    one = parse(
        "inputs(text, end); more = call(text, end, fn='add'); done = call(more, fn='is_long'); outputs(more, done)"
    )
    functions = {"add": Function(lambda text, end: text + end), "is_long": Function(lambda text: len(text) >= 4)}
    loop = Rounds(
        one, functions, again={"text": "more"}, gives={"last": "more", "by": "end"}, done="done", at_most=at_most
    )
    graph = parse("inputs(x); y = call(x, '!', fn='loop'); outputs(y)")
    assert interpret(graph, {"x": ""}, {}, {"loop": loop}) == {"y": {"last": "!" * rounds, "by": "!"}}


def test_ingestion_is_a_fold_with_the_value_none() -> None:
    rows: list[Any] = []
    graph = parse("inputs(a, xss=[[]]); y = ingestion(a, *xss) @ db, writes(db); outputs(y)")
    got = interpret(graph, {"a": 0, "xss": [[1], [2, 3]]}, {"db": lambda op, row, _: rows.append((op, row))})
    assert got == {"y": None}
    assert rows == [("ingestion", (0, 1)), ("ingestion", (0, 2)), ("ingestion", (0, 3))]


def test_the_pipeline_is_an_engine_like_others() -> None:
    graph = parse("inputs(x); a = tool(x) @ pipeline; b = call(x, fn='show') @ pipeline; outputs(a, b)")
    assert interpret(graph, {"x": 1}, {"pipeline": echo}, FUNCTIONS) == {"a": ("tool", 1, {}), "b": "1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inputs(x, zs=[]); outputs(x)", r"inputs\(x, zs\): no value given"),
        ("y = tool() @ nowhere; outputs(y)", r"y = tool\(\.\.\.\): no engine 'nowhere' was given"),
        ("y = call(fn='g'); outputs(y)", r"y = call\(\.\.\.\): no function fn='g' was given"),
    ],
)
def test_what_is_missing_is_named(text: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        interpret(parse(text), {})


def test_an_engine_s_error_is_the_same_object() -> None:
    error = RuntimeError("out of memory")

    def fail(*_: Any) -> Any:
        raise error

    with pytest.raises(RuntimeError) as caught:
        interpret(parse("y = tool() @ e; outputs(y)"), {}, {"e": fail})
    assert caught.value is error


@settings(deadline=None)
@given(graphs(), st.integers(0, 3), st.randoms(use_true_random=False))
def test_the_graph_scheduler_agrees_in_any_order(graph: Graph, items: int, random: Any) -> None:
    inputs = some_inputs(graph, items)
    assert run_in_any_order(graph, inputs, random.randrange) == run_in_order(graph, inputs)


def test_what_runs_ahead_fails_for_whoever_takes_its_value() -> None:
    graph = parse(
        """
        inputs(x, is_wanted)
        y_ahead = embedding(x, ahead=True) @ e
        z_ahead = searching(y_ahead, ahead=True) @ kb
        z = aggregate(z_ahead), when(is_wanted)
        outputs(z)
    """.replace("        ", "")
    )
    error = OSError("gone")

    def fail(*_: Any) -> Any:
        raise error

    engines = {"e": fail, "kb": lambda *_: "hit"}
    assert interpret(graph, {"x": "a", "is_wanted": False}, engines) == {}
    with pytest.raises(OSError, match="gone") as caught:
        interpret(graph, {"x": "a", "is_wanted": True}, engines)
    assert caught.value is error
