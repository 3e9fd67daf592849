"""The nouns and the text form of a graph."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import teola_plugin.graph
from teola_plugin.errors import GraphError
from teola_plugin.graph import (
    ANYTHING,
    KINDS,
    Graph,
    Input,
    Literal,
    Primitive,
    Ref,
    When,
    conflicts,
    map_depth,
    parse,
    validate,
    yields,
)
from tests.support.strategies import LITERALS, graphs

RAG = """\
inputs(question, docs=[], books=[[]])
chunks: [] = call(docs, fn='splitter', size=256) @ python
vecs: [] = embedding(*chunks) @ embedder
load = ingestion(*vecs, *chunks) @ chroma, writes(kb)
c = condition(question, fn='is_hard')
kv = prefilling('One \\'rewrite"\\n per line: ', question) @ llm, when(c)
rewrites: [] = decoding(kv, items='lines', stop=['\\n\\n', ()], penalty=-0.5) @ llm, when(c, False)
pages: [[]] = chunking(*books, fn='pages'), when(c, {'a': (1, None)})
q: [] = embedding(*rewrites) @ embedder
hits: [] = searching(*q, top_k=16) @ chroma, reads(kb, web), after(load, c)
mine = call(hits, fn='f') @ pipeline, reads(kb), writes(anything), after(hits)
outputs(hits, mine, hits)"""


def test_doctests() -> None:
    assert doctest.testmod(teola_plugin.graph).failed == 0


# --- text form ----------------------------------------------------------------------------------------------


def test_text_form() -> None:
    assert str(parse(RAG)) == RAG


@pytest.mark.parametrize("value", [True, 1, 1.0, False, 0, None, "True", (1,)])
def test_conditions_come_back_with_value_and_type(value: object) -> None:
    said = Primitive("y", "aggregate", (Literal(0),), when=When("c", value))
    (read,) = parse(str(Graph((Input("c"),), (said,), ("y",))))
    assert read.when is not None
    assert (type(read.when.value), read.when.value) == (type(value), value)


@settings(deadline=None)
@given(graphs())
def test_printing_and_parsing_gives_the_same_graph(graph: Graph) -> None:
    assert parse(str(graph)) == graph


@settings(deadline=None)
@given(
    st.lists(LITERALS, max_size=3), st.dictionaries(st.sampled_from(["top_k", "stop", "name", "x"]), LITERALS), LITERALS
)
def test_literals_come_back_with_value_and_type(args: list, options: dict, equal: object) -> None:
    p = Primitive("a", "tool", tuple(map(Literal, args)), tuple(options.items()), "e", when=When("c", equal))
    again = parse(str(Graph((Input("c"),), (p,), ("a",))))["a"]
    assert again == p
    assert repr(again) == repr(p)  # 1 == True == 1.0


def test_unicode_names() -> None:
    text = "inputs(größe)\nπ = call(größe, fn='f')\noutputs(π)"
    assert str(parse(text)) == text


def test_a_semicolon_and_comments_are_fine() -> None:
    assert str(parse("inputs(x); outputs(x)  # all of it")) == "inputs(x)\noutputs(x)"


def test_inputs_that_are_lists_come_last() -> None:
    graph = Graph((Input("docs", 1), Input("q")), (), ("q",))
    assert [i.name for i in graph.inputs] == ["q", "docs"]
    assert parse(str(graph)) == graph


def test_origin_is_no_part_of_a_graph() -> None:
    graph = parse("inputs(x); y = call(x, fn='f'); outputs(y)")
    assert graph.replacing({"y": [replace(graph["y"], origin="f (a.py:1)")]}) == graph


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("inputs(x", 1),
        ("inputs(x)\nx + 1", 2),
        ("inputs(x)\ninputs(y)\noutputs(x)", 2),
        ("inputs(x)\noutputs(x)\noutputs(x)", 3),
        ("inputs(1)", 1),
        ("inputs(x=0)", 1),
        ("inputs(x)\ny = x", 2),
        ("inputs(x)\ny = call(x, fn='f') @ 'engine'", 2),
        ("inputs(x)\ny = call(x, fn=g)", 2),
        ("inputs(x)\ny = call(x.y, fn='f')", 2),
        ("inputs(x)\ny = call(f'{x}', fn='f')", 2),
        ("inputs(x)\ny = call(*[x], fn='f')", 2),
        ("inputs(x)\ny = call({[]: 1}, fn='f')", 2),
        ("inputs(x)\ny = call(x, fn='f'), when(x, x)", 2),
        ("inputs(x)\ny = call(x, fn='f'), when(x, 1, 2)", 2),
        ("inputs(x)\ny = call(x, fn='f'), before(x)", 2),
        ("inputs(x)\ny = call(x, fn='f'), after('x')", 2),
        ("inputs(x)\ny: [1] = call(x, fn='f')", 2),
        ("inputs(x)\ny: list = call(x, fn='f')", 2),
        ("inputs(x)\nfor y in x: pass", 2),
        ("inputs(x)\0", 1),
    ],
)
def test_what_cannot_be_read_names_the_line(text: str, line: int) -> None:
    with pytest.raises(GraphError, match=f"^line {line}: "):
        parse(text)


# --- validation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y = calls(x, fn='f')", "unknown kind 'calls'; the kinds are embedding"),
        ("x = call(fn='f')", "the name 'x' is defined twice"),
        ("y = call(x, fn='f'); y = call(x, fn='f')", "the name 'y' is defined twice"),
        ("y = call(z, fn='f')", "'z' is used before it is defined"),
        ("y = call(y, fn='f')", "'y' is used before it is defined"),
        ("y = call(x, fn='f'), after(z)", "'z' is used before it is defined"),
        ("y = call(x, fn='f'), when(z)", "'z' is used before it is defined"),
        ("y: [] = call(*x, fn='f')", r"\*x maps over x, which is no list"),
        ("y = call(x, fn='f'), when(xs)", r"when\(xs\) is decided by a list"),
        ("y = call(x)", "a call needs fn="),
        ("y = condition(x)", "a condition needs fn="),
        ("y: [] = chunking(x)", "a chunking needs fn="),
        ("y = decoding('a')", "takes exactly one prefill"),
        ("y = decoding(x, x)", "takes exactly one prefill"),
        ("y: [] = ingestion(*xs)", "an ingestion has one value, not a list"),
        ("y = embedding(*xs)", "depth 0 does not fit its starred inputs of depth 1"),
        ("y: [] = embedding(x)", "depth 1 does not fit its starred inputs of depth 0"),
        ("y: [[]] = embedding(*xs)", "depth 2 does not fit"),
        ("y: [[]] = call(x, fn='f')", "depth 2 does not fit"),
        ("y = decoding(x, items='lines')", "depth 0 does not fit"),
        ("y: [] = decoding(*xs, items='lines')", "depth 1 does not fit"),
        ("y = chunking(x, fn='f')", "depth 0 does not fit"),
        ("y = call(x, fn='f', fn='g')", "a setting is given twice"),
        ("y = call(x, **{'fn': 'f'})", "'' is not an identifier"),
        ("y = call(x, fn='f', r=1e999)", "inf cannot be written as a literal"),
        ("outputs(z)", r"outputs\(z\): no such value"),
    ],
)
def test_what_does_not_hold_together(body: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        parse(f"inputs(x, xs=[]); {body}")


CALL = Primitive("y", "call", (Ref("x"),), (("fn", "f"),))


@pytest.mark.parametrize(
    "broken",
    [
        replace(CALL, name="a b"),
        replace(CALL, name="class"),
        replace(CALL, name="ﬁt"),  # Python reads it back as "fit"
        replace(CALL, engine="gpt-4"),
        replace(CALL, reads=("my store",)),
        replace(CALL, writes=("*",)),
        replace(CALL, settings=(("fn", "f"), ("from", 1))),
        replace(CALL, settings=(("fn", "f"), ("fn", "f"))),
        replace(CALL, settings=(("fn", len),)),
        replace(CALL, args=(Literal(float("nan")),)),
        replace(CALL, args=(Literal([{"a": (float("inf"),)}]),)),
        replace(CALL, args=(Literal(frozenset()),)),
        replace(CALL, args=(Literal(type("Text", (str,), {})("a")),)),
        replace(CALL, when=When("x", NotImplemented)),
        replace(CALL, depth=-1),
    ],
    ids=str,
)
def test_what_the_text_form_would_lose_is_refused(broken: Primitive) -> None:
    with pytest.raises(GraphError):
        validate(Graph((Input("x"),), (broken,)))


def test_inputs_are_checked() -> None:
    for inputs in ([Input("x"), Input("x", 1)], [Input("a b")], [Input("x", -1)]):
        with pytest.raises(GraphError):
            validate(Graph(tuple(inputs)))


def test_an_error_names_the_origin() -> None:
    with pytest.raises(GraphError, match=r"y = call\(\.\.\.\) from f \(app\.py:7\): 'x' is used"):
        validate(Graph((), (replace(CALL, origin="f (app.py:7)"),)))


# --- what a graph says --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "mapped", "made"),
    [
        ("y = call(a, fn='f')", 0, 0),
        ("y: [] = call(a, fn='f')", 0, 1),
        ("y: [] = call(*b, fn='f')", 1, 0),
        ("y: [[]] = call(*b, fn='f')", 1, 1),
        ("y: [] = call(*c, fn='f')", 1, 0),
        ("y: [[]] = embedding(*c, *b)", 2, 0),
        ("y: [] = embedding(*c, *b)", 1, 0),
        ("y: [] = decoding(a, items='lines')", 0, 1),
        ("y: [[]] = partial_decoding(*b, items='lines')", 1, 1),
        ("y: [[]] = chunking(*b, fn='f')", 1, 1),
        ("y: [] = aggregate(b, b)", 0, 1),
        ("y: [] = websearch(a)", 0, 1),
        ("y = ingestion(*c, *b)", 2, 0),
        ("y = ingestion(c)", 0, 0),
    ],
)
def test_depths(line: str, mapped: int, made: int) -> None:
    graph = parse(f"inputs(a, b=[], c=[[]]); {line}; outputs(y)")
    assert map_depth(graph["y"], graph.depths()) == mapped
    assert yields(graph["y"], graph.depths()) == made


def _touching(reads: tuple[str, ...] = (), writes: tuple[str, ...] = ()) -> Primitive:
    return Primitive("p", "tool", reads=reads, writes=writes)


@pytest.mark.parametrize(
    ("first", "second", "resources"),
    [
        (_touching(reads=("a",)), _touching(reads=("a",)), ()),
        (_touching(writes=("a",)), _touching(reads=("a",)), ("a",)),
        (_touching(reads=("a",)), _touching(writes=("a",)), ("a",)),
        (_touching(writes=("a",)), _touching(writes=("a",)), ("a",)),
        (_touching(writes=("a",)), _touching(reads=("b",), writes=("b",)), ()),
        (_touching(writes=("a",)), _touching(), ()),
        (_touching(writes=(ANYTHING,)), _touching(), ()),
        (_touching(writes=(ANYTHING,)), _touching(reads=("a", "b")), ("a", "b")),
        (_touching(reads=("a",)), _touching(writes=(ANYTHING,)), ("a",)),
        (_touching(reads=(ANYTHING,)), _touching(writes=("a",)), ("a",)),
        (_touching(writes=(ANYTHING,)), _touching(writes=(ANYTHING,)), (ANYTHING,)),
        (_touching(writes=("a",), reads=("a",)), _touching(writes=("a",), reads=("a",)), ("a",)),
        (_touching(reads=("a",)).with_settings(ahead=True), _touching(writes=("a",)), ()),  # its value is passed on
    ],
)
def test_conflicts(first: Primitive, second: Primitive, resources: tuple[str, ...]) -> None:
    assert conflicts(first, second) == resources


def test_settings() -> None:
    p = parse("inputs(x); y: [] = decoding(x, items='lines', wanted=3, max_tokens=9); outputs(y)")["y"]
    assert p.engine_settings == {"max_tokens": 9}
    assert p.setting("wanted") == 3
    assert p.setting("top_k", 5) == 5
    assert p.with_settings(wanted=None, top_k=2).settings == (("items", "lines"), ("max_tokens", 9), ("top_k", 2))
    assert p.is_splittable
    assert not p.is_batchable


def test_edges() -> None:
    graph = parse(RAG)
    assert graph["hits"].dependencies == ("q", "load", "c")
    assert [p.name for p in graph.consumers()["c"]] == ["kv", "rewrites", "pages", "hits"]
    assert graph["vecs"].is_batchable
    with pytest.raises(KeyError):
        graph["question"]


def test_every_kind_has_a_text_form() -> None:
    for kind in KINDS:
        extra, depth = (", fn='f'", ": []" if kind == "chunking" else "")
        assert parse(f"inputs(x); y{depth} = {kind}(x{extra}) @ e; outputs(y)")["y"].kind == kind
