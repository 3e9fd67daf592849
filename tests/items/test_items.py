"""Item grammars against the parsers of the frameworks, on random texts cut at random places."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_classic.retrievers.multi_query import LineListOutputParser
from langchain_core.exceptions import OutputParserException
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    MarkdownListOutputParser,
    NumberedListOutputParser,
)
from llama_index.core.llms import MockLLM
from llama_index.core.question_gen.output_parser import SubQuestionOutputParser
from llama_index.core.retrievers import QueryFusionRetriever

from teola_plugin.errors import GraphError, ItemsError
from teola_plugin.items import GRAMMARS, MAX_CHARS, parse_items, parser_for
from teola_plugin.items import json as json_items
from teola_plugin.items.tool_calls import ToolCallParser

_RETRIEVER = QueryFusionRetriever([object()], llm=MockLLM(), num_queries=10_000, mode="simple")  # type: ignore[list-item]


def _fusion_queries(text: str) -> list[str]:
    _RETRIEVER._llm = SimpleNamespace(complete=lambda prompt: SimpleNamespace(text=text))
    return [query.query_str for query in _RETRIEVER._get_queries("q")]


FRAMEWORK: dict[str, Callable[[str], Any]] = {
    "lines": LineListOutputParser().parse,
    "fusion_lines": _fusion_queries,
    "numbered": NumberedListOutputParser().parse,
    "markdown": MarkdownListOutputParser().parse,
    "csv": CommaSeparatedListOutputParser().parse,
    "json": JsonOutputParser().parse,
}
TEXT_GRAMMARS = [g for g in GRAMMARS if g not in ("json", "sub_questions")]

BLANKS = ["\n", "\r", "\r\n", " ", "\t", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029", "\xa0"]
MARKS = [
    ",",
    '"',
    '""',
    "`",
    "```",
    "```json",
    "- ",
    "* ",
    "-",
    "1.",
    "12. ",
    "2.\n",
    "\u0663. ",
    "\\",
    "\\n",
    "\0",
]
WORDS = ["red", "light green", "é", "日本", "😀", "5"]
TEXTS = st.lists(st.sampled_from([*BLANKS, *MARKS, *WORDS, "\n", ", "]) | st.text(max_size=3), max_size=24).map("".join)


@st.composite
def _cuts(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> tuple[str, list[str]]:
    """A text, and the same text in pieces (some of them empty)."""
    text = draw(texts)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return text, [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def _parse_pieces(grammar: str, pieces: list[str]) -> list[Any]:
    parser = parser_for(grammar)
    return [item for piece in pieces for item in parser.feed(piece)] + parser.close()


def _outcome(parse: Callable[[], Any]) -> Any:
    """The items as text that tells 1 from True and NaN from NaN not; 'no array' for whatever is none."""
    try:
        value = parse()
    except (ItemsError, OutputParserException):
        return "no array"
    return json.dumps(value) if isinstance(value, list) else "no array"


@pytest.mark.parametrize("grammar", TEXT_GRAMMARS)
@given(case=_cuts(TEXTS))
@settings(deadline=None, max_examples=400)
@example(case=("", [""]))
@example(case=(" \n", [" ", "\n"]))
@example(case=("a \n\n b\n ", ["a ", "\n", "\n b", "\n "]))
@example(case=("1.\n2. x\n3", ["1.", "\n2", ". x", "\n3"]))
@example(case=("x- a\n-\nb\n \n* c", ["x", "- a\n", "-", "\nb", "\n \n", "* c"]))
@example(case=("```\nred\ngreen``\nblue```", ["``", "`\nred", "\ngreen``", "\nblue`", "``"]))
@example(case=("a, b,c\rd", ["a,", " b,", "c\r", "d"]))
@example(case=('a,"b, c",d', ["a,", '"b,', ' c",d']))
def test_items_equal_the_frameworks_whatever_the_cut(grammar: str, case: tuple[str, list[str]]) -> None:
    text, pieces = case
    expected = FRAMEWORK[grammar](text)
    assert _parse_pieces(grammar, pieces) == expected
    assert parse_items(grammar, text) == expected


@pytest.mark.parametrize("grammar", TEXT_GRAMMARS)
@given(begin=TEXTS, end=TEXTS)
@settings(deadline=None, max_examples=400)
@example(begin="a,b,", end="c\rd")
@example(begin="a ,", end="c\rd")
@example(begin="a \n", end="")
@example(begin="a\n \n", end="b")
def test_an_item_handed_out_survives_any_continuation(grammar: str, begin: str, end: str) -> None:
    given_early = parser_for(grammar).feed(begin)
    assert FRAMEWORK[grammar](begin + end)[: len(given_early)] == given_early


@pytest.mark.parametrize(
    ("grammar", "pieces", "early"),
    [
        ("lines", ["  red", "\n", "green\n"], [[], ["red"], ["green"]]),
        ("lines", ["red ", "\n", "\ngreen"], [[], [], ["red "]]),
        ("fusion_lines", ["```\nred", " \ngre", "en\n"], [[], ["red"], ["green"]]),
        ("numbered", ["1. red", "\n2. gre", "en\n"], [[], ["red"], ["green"]]),
        ("markdown", ["- red", "\n* gre", "en\n"], [[], ["red"], ["green"]]),
        ("csv", ["red, gre", "en,", " blue"], [["red"], ["green"], []]),
        ("csv", ['red, "green", blue,', " black,"], [["red"], []]),
        ("csv", ["red\n", "green, blue,"], [[], []]),
        ("json", ["[1", ', "a]', '", {"b": [2]} ', ", 3]"], [[], [1], ["a]"], [{"b": [2]}, 3]]),
        ("json", ["```json\n", '["red"', ', "gre', 'en"]\n```'], [[], [], ["red"], ["green"]]),
        ("json", ["Here you are:\n``", "`js", 'on\n["red",', ' "green"]'], [[], [], ["red"], ["green"]]),
        ("json", ['[{"a": 1, "b": [2, 3]}', ", 4,"], [[], [{"a": 1, "b": [2, 3]}, 4]]),
        ("json", ['["a\nb"', ", 2"], [[], ["a\nb"]]),
        ("json", ["[1.", "5", "e1", ", 2"], [[], [], [], [15.0]]),
        ("json", ['{"a": [1, 2', "]}"], [[], []]),
        ("json", ["[1] and ", "[2, 3]"], [[1], []]),
        ("json", ["[1] ", "2, 3", ", 4"], [[1], [], []]),
        (
            "sub_questions",
            ['Sure [so]:\n```json\n{"items": [', '{"a": 1', '}, {"b"', ": 2}\n]"],
            [[], [], [{"a": 1}], [{"b": 2}]],
        ),
        ("sub_questions", ['[{"a": 1},', '{"b": 2}', "]"], [[{"a": 1}], [], [{"b": 2}]]),
        ("sub_questions", ['{"others": [1, 2]', "}"], [[], []]),
        ("sub_questions", ['{"a": {', '"items": [1, ', '2]}, "items": [3]}'], [[], [], []]),
        ("sub_questions", ["Sure [so]:\n", '```json\n[{"a": 1}, '], [[], [{"a": 1}]]),
    ],
)
def test_items_come_as_soon_as_they_are_certain(grammar: str, pieces: list[str], early: Any) -> None:
    parser = parser_for(grammar)
    assert [parser.feed(piece) for piece in pieces] == early


# --- json ---------------------------------------------------------------------------------------------------

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["]", '"', "\\", "`"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
_LAYOUTS = st.sampled_from([{}, {"indent": 1}, {"ensure_ascii": False}, {"separators": (" , ", " :\n")}])
_WRAPPERS = st.sampled_from(
    [
        "{}",
        " \n{}\n ",
        "```json\n{}\n```",
        "```\n{}```",
        "Sure, here it is:\n```json\n{}\n```\nAnything else?",
        "`{}`",
        "{} Done.",
    ]
)


@st.composite
def _arrays(draw: st.DrawFn) -> str:
    values = draw(st.lists(_VALUES, max_size=5))
    return draw(_WRAPPERS).replace("{}", json.dumps(values, **draw(_LAYOUTS)))


_SCRAPS = [
    *'[]{},:"\\',
    "[",
    '"',
    "1",
    "-",
    "1.5",
    "tru",
    "true",
    "NaN",
    '"a"',
    " ",
    "\n",
    "```",
    "json",
    "x",
]
_SCRAP_TEXTS = st.builds(
    lambda begin, rest: begin + "".join(rest),
    st.sampled_from(["", "[", "[1, ", "```json [1, ", '["a", ']),
    st.lists(st.sampled_from(_SCRAPS), max_size=16),
)


@given(case=_cuts(_arrays()))
@settings(deadline=None, max_examples=300)
def test_json_elements_equal_the_frameworks_whatever_the_cut(case: tuple[str, list[str]]) -> None:
    text, pieces = case
    expected = _outcome(lambda: FRAMEWORK["json"](text))
    assert expected != "no array"
    assert _outcome(lambda: _parse_pieces("json", pieces)) == expected


@given(case=_cuts(st.tuples(_arrays(), st.integers(0, 40)).map(lambda t: t[0][: t[1]])))
@settings(deadline=None, max_examples=300)
def test_json_that_stops_half_way_is_mended_as_the_framework_does(case: tuple[str, list[str]]) -> None:
    text, pieces = case
    assert _outcome(lambda: _parse_pieces("json", pieces)) == _outcome(lambda: FRAMEWORK["json"](text))


@given(case=_cuts(_SCRAP_TEXTS))
@settings(deadline=None, max_examples=1500)
@example(case=("[1, 2]]", ["[1, 2", "]]"]))
@example(case=("[[1, 2, 3], 5, {x} [", ["[[1, 2, 3], 5, ", "{x} ["]))
@example(case=("x ] ```[1]", ["x ] ```[1]"]))
@example(case=('3 ```["a"]', ['3 ```["a"]']))
def test_json_gone_wrong_gives_the_frameworks_array_or_raises(case: tuple[str, list[str]]) -> None:
    text, pieces = case
    got, expected = _outcome(lambda: _parse_pieces("json", pieces)), _outcome(lambda: FRAMEWORK["json"](text))
    assert got == _outcome(lambda: parse_items("json", text))
    assert got in (expected, "no array")
    if expected != "no array" and got == "no array":  # the documented exception: elements had been handed out
        assert parser_for("json").feed(text)


@pytest.mark.parametrize("text", ["", "no list", '{"a": 1}', '"a"', "[1, 2]]", "[" * 100_000, "[" + "9" * 5000 + "]"])
def test_json_without_an_array_raises(text: str) -> None:
    with pytest.raises(ItemsError, match="items='json'"):
        parse_items("json", text)


# --- sub-questions ------------------------------------------------------------------------------------------

_QUESTIONS = st.lists(
    st.fixed_dictionaries({
        "sub_question": st.text(max_size=6) | st.sampled_from(["]", '"', "\\", "}"]),
        "tool_name": st.sampled_from("ab"),
    }),
    min_size=1, max_size=4,
)  # fmt: skip
_QUESTION_WRAPPERS = [
    "{}",
    '{"items": {}}',
    '```json\n{"items": {}}\n```',
    "Here they are:\n```json\n{}\n```",
    " {}\n Done.",
]


def _sub_questions(text: str) -> list[Any]:
    try:
        return [question.model_dump() for question in SubQuestionOutputParser().parse(text).parsed_output]
    except Exception as e:  # of several parsers, each with errors of its own
        raise ItemsError("no sub-questions") from e


@st.composite
def _question_texts(draw: st.DrawFn) -> str:
    questions = json.dumps(draw(_QUESTIONS), **draw(_LAYOUTS))
    return draw(st.sampled_from(_QUESTION_WRAPPERS)).replace("{}", questions)


@given(case=_cuts(_question_texts()))
@settings(deadline=None, max_examples=300)
def test_sub_questions_equal_the_frameworks_whatever_the_cut(case: tuple[str, list[str]]) -> None:
    text, pieces = case
    assert _parse_pieces("sub_questions", pieces) == _sub_questions(text)


@given(case=_cuts(st.tuples(_question_texts(), st.integers(0, 99)).map(lambda t: t[0][: t[1]]) | _SCRAP_TEXTS))
@settings(deadline=None, max_examples=600)
def test_sub_questions_gone_wrong_are_a_list_or_raise(case: tuple[str, list[str]]) -> None:
    text, pieces = case
    got = _outcome(lambda: _parse_pieces("sub_questions", pieces))
    assert got == "no array" or got == _outcome(lambda: parse_items("sub_questions", text))
    expected = _outcome(lambda: _sub_questions(text))
    if "no array" not in (got, expected):
        assert json.loads(got) == json.loads(expected)


# --- work ---------------------------------------------------------------------------------------------------


def _work_of(make: Callable[[], Any], text: str) -> int:
    """How many characters the functions of C could have read while the text came in pieces of four.

    Counted are the texts that such a function is called on, or that its caller has in local variables or in attributes
    of `self`; of lists of pieces those that are joined.
    """
    work = 0

    def count(frame: Any, event: str, function: Any) -> None:
        nonlocal work
        if event != "c_call" or "/teola_plugin/" not in frame.f_code.co_filename:
            return
        held = [*frame.f_locals.values(), *vars(frame.f_locals.get("self", count)).values()]
        if function.__name__ == "join":
            held += [piece for value in held if isinstance(value, list) for piece in value]
        work += sum(len(value) for value in held if isinstance(value, str))

    parser = make()
    sys.setprofile(count)
    try:
        for at in range(0, len(text), 4):
            parser.feed(text[at : at + 4])
    finally:
        sys.setprofile(None)
    return work


_CALL = '<tool_call>{"name": "a", "arguments": {"b": "%s"}}</tool_call>'
_LONG: list[tuple[str, Callable[[int], str]]] = [
    *[(grammar, lambda n: "x" * n) for grammar in GRAMMARS],
    *[(grammar, lambda n: " " * n) for grammar in GRAMMARS],
    *[(grammar, lambda n: "`" * n) for grammar in GRAMMARS],
    *[(grammar, lambda n: "ab\n- cd\n2. ef\n, g" * (n // 16)) for grammar in GRAMMARS],
    *[(grammar, lambda n: "- x" + "\n " * (n // 2)) for grammar in GRAMMARS],
    ("numbered", lambda n: "1" * n),
    ("numbered", lambda n: "1. " + "2." * (n // 2)),
    ("markdown", lambda n: "- " + "x" * n),
    ("markdown", lambda n: "- x\n" * (n // 4)),
    ("markdown", lambda n: "\n" * n + "-"),
    ("csv", lambda n: "a,b c," * (n // 6)),
    ("json", lambda n: "Well. " * (n // 12) + '```json\n["' + "x" * (n // 2) + '", 2]\n```'),
    ("json", lambda n: "[" + '{"a": [1, "b,"]}, ' * (n // 18) + "3]"),
    ("json", lambda n: '["' + "\\\\" * (n // 2) + '"]'),
    ("sub_questions", lambda n: "Well. " * (n // 12) + '```json\n{"items": ["' + "x" * (n // 2) + '", 2]}\n```'),
    ("sub_questions", lambda n: "{" + " " * n),
    ("calls", lambda n: _CALL % ("x" * n)),
    ("calls", lambda n: (_CALL % "x") * (n // 60)),
    ("calls", lambda n: "<tool" * (n // 5)),
    ("calls", lambda n: "<tool_call>" + "x" * n),
]


@pytest.mark.parametrize(("grammar", "text"), _LONG)
def test_a_text_twice_as_long_is_twice_the_work(grammar: str, text: Callable[[int], str]) -> None:
    make = ToolCallParser if grammar == "calls" else lambda: parser_for(grammar)
    once, twice = (_work_of(make, text(n)) for n in (3_000, 6_000))
    assert twice < 2.5 * once


def test_json_that_stops_half_way_is_mended_with_so_much_work(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[1, {"a": 2}, nonsense'
    assert parse_items("json", text) == FRAMEWORK["json"](text)
    monkeypatch.setattr(json_items, "MENDING_CHARS", 3 * len(text))
    with pytest.raises(ItemsError, match="items='json'"):
        parse_items("json", text)


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_text_beyond_all_measure_is_not_read(grammar: str) -> None:
    parser = parser_for(grammar)
    parser.feed("x" * MAX_CHARS)
    with pytest.raises(ItemsError, match="characters"):
        parser.feed("x")


@given(case=_cuts(st.tuples(st.sampled_from(["Well, [so] it is.", "{...}", "`", "7 "]), _arrays()).map("".join)))
@settings(deadline=None, max_examples=300)
def test_json_after_prose_equals_the_frameworks_whatever_the_cut(case: tuple[str, list[str]]) -> None:
    text, pieces = case
    got, expected = _outcome(lambda: _parse_pieces("json", pieces)), _outcome(lambda: FRAMEWORK["json"](text))
    assert got == _outcome(lambda: parse_items("json", text))
    assert got in (expected, "no array")


# --- the registry -------------------------------------------------------------------------------------------


def test_an_unknown_grammar_is_refused_by_name() -> None:
    with pytest.raises(GraphError, match=re.escape("items='haiku'")):
        parser_for("haiku")


def test_sub_questions_that_were_handed_out_must_be_those_of_the_whole_text() -> None:
    """A fence that comes later makes everything before it no part of the array."""
    parser = parser_for("sub_questions")
    assert parser.feed('[{"sub_question": "who?"}, ') == [{"sub_question": "who?"}]
    assert parser.feed('```json\n[{"sub_question": "why?"}]\n```') == []
    with pytest.raises(ItemsError, match="sub_questions"):
        parser.close()
