"""Programs without a model come to what they come to in CPython, or are left to the framework's run; nothing runs."""

from __future__ import annotations

import abc
import asyncio
import copy
import dataclasses
import functools
import importlib.util
import itertools
import linecache
import math
import operator
import re
import sys
import types
import typing
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic.v1
import pytest
from langchain_core.documents import Document
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.graph.message import add_messages
from llama_index.core.schema import NodeWithScore, TextNode
from pydantic import BaseModel, ConfigDict

from teola_plugin import pure, writes
from teola_plugin.adapters.reader import bounds, calls, classes, methods, table
from teola_plugin.adapters.reader.annotations import field_of
from teola_plugin.adapters.reader.asking import Nobody
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Barrier, Opaque, Pending, Unknown, is_random_id
from tests.adapters.reader.world import read

RAN: list[str] = []


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    RAN.clear()
    yield
    assert not RAN


def new_run() -> Run:
    return Run(Nobody())


def use(function: Any, *args: Any, **kwargs: Any) -> Any:
    return calls.call(new_run(), Opaque(function), args, kwargs)


# --- as in CPython ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Row:
    x: int
    tags: list[str] = dataclasses.field(default_factory=list)
    total: int = dataclasses.field(default=0, init=False)


class Held:
    def __init__(self) -> None:
        self.items = [1]

    @property
    def x(self) -> str:
        return "property"


HELD = Held()
vars(HELD)["x"] = "own"


def sorted_in_reverse() -> Any:
    words = ["bb", "aa", "c", "d"]
    words.sort(key=len, reverse=True)
    return words, sorted([(1, "a"), (1, "b"), (0, "c")], key=lambda pair: pair[0], reverse=True)


def the_first_of_equal_ones() -> Any:
    return max(["aa", "bb", "c"], key=len), min(["b", "a"], key=len)


def the_list_while_it_is_sorted() -> Any:
    items, seen = [2, 1], []
    items.sort(key=lambda x: seen.append(len(items)) or x)
    return items, seen


def unpacked_by_stars() -> Any:
    first, *middle, last = range(5)
    *some, end = "ab"
    return first, middle, last, some, end


def a_variable_of_a_comprehension() -> Any:
    x = "mine"
    found = [x for x in range(2)]  # noqa: C416
    return x, found, [y := z for z in range(3)], y


def the_name_of_an_error() -> Any:
    error = 1
    try:
        raise KeyError("k")
    except KeyError as error:
        str(error)
    return error


def returned_before_a_finally_block() -> Any:
    def inner(n: int) -> Any:
        for each in range(n):
            try:
                if each:
                    return each
            finally:
                _ = [n]
        return None

    return inner(0), inner(3)


def asserted() -> Any:
    return [{"a": 1}["a"], functools.reduce(lambda a, b: a * 10 + b, [1, 2, 3])]


def matched_in_many_ways() -> Any:
    found = []
    for value in ([1], [1, 2], [1, 2, 3], {"a": 1}, {"a": 1, "b": 2}, "x", 5):
        match value:
            case [x, y]:
                found.append(("two", x, y))
            case [x]:
                found.append(("one", x))
            case {"a": 1, "b": y}:
                found.append(("both", y))
            case {"a": x}:
                found.append(("a", x))
            case int(n) if n > 10:
                found.append("great")
            case _:
                found.append("other")
    for row in (Row(1), Row(2)):
        match row:
            case Row(x=2, tags=[]):
                found.append("row of two")
            case Row(x):
                found.append(("row", x))
    return found


def partial_functions() -> Any:
    own = functools.partial(dict, a=1, b=2)
    return list(own(b=3).items()), PARTIAL("y", b=4), functools.partial(operator.sub, 10)(3)


def show(*args: Any, **kwargs: Any) -> Any:
    return [*args, sorted(kwargs.items())]


PARTIAL = functools.partial(show, "x", a=1, b=2)


def with_defaults(a: int, b: int = 2, c: int = 3) -> Any:
    return a, b, c


def called_with_defaults() -> Any:
    return with_defaults(1), with_defaults(1, 5), with_defaults(1, c=6)


def called_with_too_much() -> Any:
    return with_defaults(1, d=5)  # type: ignore[call-arg]


def called_with_the_same_twice() -> Any:
    return with_defaults(1, a=5)  # type: ignore[misc]


def with_keywords(a: int, **more: Any) -> Any:
    return a, more


def called_with_the_same_twice_among_keywords() -> Any:
    return with_keywords(1, a=5)  # type: ignore[misc]


def copies_of_what_is_there_twice() -> Any:
    inner = [1]
    copied = copy.deepcopy([inner, inner])
    return copied[0] is copied[1], copied[0] is inner


def copied_rows() -> Any:
    row = Row(1, ["t"])
    made = dataclasses.asdict(row)
    made["tags"].append("more")
    return row, made


def a_field_that_cannot_be_given() -> Any:
    return dataclasses.replace(Row(1), total=3)


def own_objects() -> Any:
    held = Held()
    held.items.append(2)
    return held.items, held.x, HELD.x, HELD.items


def sums_of_sets() -> Any:
    return sum({1, 2, 3}), sorted({"b", "a"}), max({3, 1})


def mixed_fields() -> Any:
    return "{} {0}".format("a")  # noqa: F525


def fields_mixed_the_other_way() -> Any:
    return "{0} {}".format("a")  # noqa: F525


def texts_of_messages() -> Any:
    text = AIMessage("a").text
    return isinstance(text, str), text.upper(), sorted(HumanMessage("a", id="1").model_fields_set)


def the_class_of_a_text() -> Any:
    return type(AIMessage("a").text) is str


def metadata_of_its_own() -> Any:
    given = {"k": 1}
    document = Document("p", metadata=given)
    document.metadata["k"] = 2
    copied = document.model_copy()
    copied.metadata["k"] = 3
    return given, document.metadata


def sets_of_sets() -> Any:
    words, numbers = set("hello world"), set(range(0, 35, 7))
    return list(set(words)) == list(words.copy()), sorted(words | {"z"}), list(set(numbers))


def sets_of_its_own() -> Any:
    one, two = "one", "two"
    return list({one, two}), list({each + "!" for each in (one, two)})


def seen_in_a_loop() -> Any:
    found = []
    for each in range(5):
        if each == 1:
            continue
        if each == 4:
            break
        found.append(each)
    else:
        found.append(-1)
    return found


EXACT = [
    sorted_in_reverse, the_first_of_equal_ones, the_list_while_it_is_sorted, unpacked_by_stars,
    a_variable_of_a_comprehension, the_name_of_an_error, returned_before_a_finally_block, asserted,
    matched_in_many_ways, partial_functions, called_with_defaults, called_with_too_much, called_with_the_same_twice,
    copies_of_what_is_there_twice, copied_rows, a_field_that_cannot_be_given, own_objects, sums_of_sets, mixed_fields,
    fields_mixed_the_other_way, called_with_the_same_twice_among_keywords, sets_of_its_own,
    metadata_of_its_own, sets_of_sets, seen_in_a_loop,
]  # fmt: skip


HELD = (
    "(1, 2)", "range(3)", "datetime.date(2020, 1, 1)", "Decimal(1)", "Path('x')", "'abc'", "b'abc'", "frozenset('a')",
    "{1}", "object()", "Plain()", "Holding()", "len", "[1]", "{'a': 1}", "deque([1])", "None", "itertools.count()",
)  # fmt: skip
CHANGES = (
    "held[0] = 1", "held['a'] = 2", "held[:1] = [7]", "held[None] = 1", "del held[0]", "del held['b']", "del held[:]",
    "held[0] += 1", "held.x = 1", "del held.x", "held += 1", "held['a'], other = 1, 2",
)  # fmt: skip
PROGRAMS = """
import datetime, itertools
from collections import deque
from decimal import Decimal
from pathlib import Path

class Plain:
    pass

class Holding:
    def __setitem__(self, key, value):
        self.key = key

    def __delitem__(self, key):
        raise KeyError(key)
"""
PROGRAM = """
def program_{}():
    held = {}
    try:
        {}
    except Exception as e:
        return type(e).__name__
    return 1
"""


def test_what_cannot_be_changed_raises_what_it_raises_in_cpython(tmp_path: Path) -> None:
    """Unless the reader stops there."""
    changes = [(held, change) for held in HELD for change in CHANGES]
    bodies = [PROGRAM.format(number, *change) for number, change in enumerate(changes)]
    path = tmp_path / "changes.py"
    path.write_text(PROGRAMS + "".join(bodies))
    module = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("changes", path))  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    read_whole = 0
    for number, change in enumerate(changes):
        program = getattr(module, f"program_{number}")
        found = read(program)
        assert found.barrier or found.value == program(), change
        read_whole += not found.barrier
    assert read_whole > len(changes) * 0.6


@pytest.mark.parametrize("program", EXACT, ids=lambda each: each.__name__)
def test_it_comes_to_what_it_comes_to_in_cpython(program: Callable[[], Any]) -> None:
    found = read(program)
    assert found.is_known, found.barrier
    expected, error = None, None
    try:
        expected = program()
    except Exception as e:
        error = e
    assert (found.value, type(found.error)) == (expected, type(error))


def test_the_text_of_a_message_is_a_plain_text() -> None:
    assert read(texts_of_messages).value == (True, "A", ["content", "id"])


def test_the_class_of_a_text_is_not_known() -> None:
    """LangChain has a class of texts of its own."""
    assert not read(the_class_of_a_text).is_known


# --- left to the framework's run -------------------------------------------------------------------------------------


class Loud:
    def __eq__(self, other: object) -> bool:
        RAN.append("eq")
        return True

    def __hash__(self) -> int:
        RAN.append("hash")
        return 1

    def __bool__(self) -> bool:
        RAN.append("bool")
        return False


LOUD, QUIET = Loud(), object()


class Odd(Exception):
    def __init__(self, text: str) -> None:
        RAN.append("init")
        super().__init__(text)


class Texts(str):
    def upper(self) -> str:
        RAN.append("upper")
        return "x"


@writes("file")
def saves() -> None:
    RAN.append("saves")


def generated() -> Any:
    yield 1


COUNTS = {"a", "b", "c"}
APPEND = RAN.append
SOME: set[float] = {0.1, 0.2, 0.3, 1e16}


def sets_a_global() -> Any:
    global COUNTS
    COUNTS = set()


def imports_what_is_not_there() -> Any:
    import antigravity  # type: ignore[import-not-found]  # noqa: F401


def fails(error: type[Exception]) -> Pending:
    def force() -> Any:
        raise error

    return Pending(force)


def makes_a_value() -> None:
    RAN.append("factory")


def makes_a_dict() -> Any:
    return defaultdict(makes_a_value)["a"]


def sorted_list_of_constants() -> Any:
    return list({"a", "b", "c"})


def grows_by_a_set() -> Any:
    found: list[str] = []
    found.extend(COUNTS)
    return found


def walks_an_updated_set() -> Any:
    found = {"z"}
    found.update(COUNTS)
    return list(found)


def prints_to_a_file() -> None:
    print("x", file=sys.stderr)


def compares_by_identity() -> Any:
    a = "x" * 3
    return a is "".join(["x", "xx"])


LONG = "b" * 100_000


def replaces_by_much() -> Any:
    return re.sub("a", lambda match: LONG, "a" * 1000)


def fills_a_template() -> Any:
    return ("{:9999}" * 1100).format(*range(1100))


LEFT: list[Callable[[], Any]] = [
    lambda: LOUD == QUIET, lambda: bool(LOUD), lambda: LOUD in [QUIET], lambda: Odd("a"), lambda: saves(),
    lambda: list(generated()), lambda: APPEND("x"), lambda: sum(SOME), lambda: max(SOME, key=abs),
    sets_a_global, imports_what_is_not_there, makes_a_dict, sorted_list_of_constants, grows_by_a_set,
    walks_an_updated_set, prints_to_a_file, compares_by_identity, replaces_by_much, fills_a_template,
    lambda: [[0] * 900_000 for _ in range(3)], lambda: "a".ljust(50_000_000),
    lambda: re.compile("a", re.DEBUG), lambda: re.compile("a" * 3_000),
    lambda: str.upper(Texts("a")),
]  # fmt: skip


@pytest.mark.parametrize("program", LEFT, ids=range(len(LEFT)))
def test_it_is_left_to_the_frameworks_run(program: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert read(program).barrier is not None
    assert capsys.readouterr().out == ""


def test_coroutines_are_awaited_once() -> None:
    async def program() -> Any:
        async def inner() -> int:
            return 1

        pending = inner()
        return [await pending, await pending]

    assert type(read(program).error) is RuntimeError


def test_gathered_errors_of_several_kinds_are_left() -> None:
    with pytest.raises(Barrier):
        use(asyncio.gather, fails(KeyError), fails(ValueError)).force()


@pytest.mark.parametrize(
    "pattern",
    [r"(?:a+)+$", r"(a)\1*b", r"a*a*a*a*a*b", r"(?:xa*a*a*a*a*b|y)", r"(?:ab|a)*c", r"(?=(a+)+b)", r"(a+)\1b"],
)
def test_the_time_of_a_pattern_is_told_before_it_is_used(pattern: str) -> None:
    with pytest.raises(Barrier):
        bounds.matching(new_run(), re.compile(pattern), "a" * 1_000)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"a?" * 20 + "a" * 20, "a" * 18 + "b" * 10),  # 2**20 ways
        (r"(?:a|b|ab)" * 14 + "c", "ab" * 40),
        (r"x\w+\w+\w+=\w+\w+\w+!", "x" + "a" * 20 + "=" + "a" * 40),
        (r"\s*\w+\w+\w+\w+=", "a" * 100 + "="),  # one end, but all the ways to it
        (r"\w+(?:=x)?\w+\w+!", "=" + "a" * 400),  # nobody has to come past the equals sign
        (r"(?i)\w+b\w+\w+!", "B" + "a" * 400),
        (r"\w+(?i:b)\w+\w+!", "B" + "a" * 400),
    ],
)
def test_every_way_to_try_a_pattern_counts(pattern: str, text: str) -> None:
    with pytest.raises(Barrier):
        bounds.matching(new_run(), re.compile(pattern), text)


def test_texts_that_have_to_follow_bound_the_ways_to_try_a_pattern() -> None:
    plan = r"Plan:\s*(.+)\s*(#E\d+)\s*=\s*(\w+)\s*\[([^\]]+)\]"
    steps = [f"Plan: Look up part {n} of it. #E{n} = Google[part {n}{n}{n}{n} given #E1]" for n in range(30)]
    bounds.matching(new_run(), re.compile(plan), "\n".join(steps))
    bounds.matching(new_run(), re.compile(r"(?:a|ab)?\w+=\w+=\w+=\w+="), "a" * 60 + " = " + "b" * 60)
    bounds.matching(new_run(), re.compile(rb"\w+=\w+="), b"a" * 60 + b" = ")


def test_a_pattern_takes_as_long_as_its_text_is_long_for_each_start() -> None:
    bounds.matching(new_run(), re.compile("a*b"), "a" * 1_000)
    with pytest.raises(Barrier):
        bounds.matching(new_run(), re.compile("a*b"), "a" * 3_000)


def test_only_functions_of_the_standard_library_are_known() -> None:
    table.register(table.nothing, show)
    assert table.registered(show) is None


def test_a_hash_by_who_an_object_is_is_not_known() -> None:
    @dataclasses.dataclass(eq=False)
    class Row:
        x: int = 1

    run = new_run()
    assert type(calls.call(run, Opaque(hash), (run.load(Row()),), {})) is Unknown


def test_a_class_that_is_registered_later_belongs_to_the_abstract_one() -> None:
    class Base(abc.ABC):  # noqa: B024
        pass

    class Late:
        pass

    assert not issubclass(Late, Base)
    Base.register(Late)
    run = new_run()
    assert classes.is_subclass(run, run.load(Late), run.load(Base)) is True


def test_a_sum_of_numbers_and_a_reply_may_be_too_large_for_a_float() -> None:
    for others, may_raise in (([1, 2], False), ([0.5], True)):
        run = new_run()
        calls.call(run, Opaque(sum), ([*others, Unknown("number")],), {})
        assert bool(run.gates) is may_raise


def test_a_module_that_makes_its_attributes_is_not_asked() -> None:
    module = types.ModuleType("making")
    module.__getattr__ = lambda name: RAN.append(name)  # type: ignore[method-assign, assignment, func-returns-value]
    with pytest.raises(Barrier):
        classes.attribute(new_run(), Opaque(module), "missing")


class ByAttributes(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    double: int


class Doubled(BaseModel):
    double: int


@dataclasses.dataclass
class Doubling:
    x: int = 1

    @property
    def double(self) -> int:
        RAN.append("double")
        return 2


class Around(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    inner: ByAttributes


@pytest.mark.parametrize(
    "program",
    [
        lambda: ByAttributes.model_validate(Doubling()).double,
        lambda: Doubled.model_validate(Doubling(), from_attributes=True).double,
        lambda: Around(inner=Doubling()).inner.double,  # type: ignore[arg-type]
    ],
)
def test_pydantic_reads_no_attributes_of_objects(program: Callable[[], Any]) -> None:
    assert read(program).barrier is not None


class Fixed(BaseModel):
    model_config = ConfigDict(frozen=True)
    x: int = 1


def test_a_frozen_model_is_read_and_not_changed() -> None:
    def change() -> None:
        Fixed().x = 2  # type: ignore[misc]

    assert read(lambda: [Fixed(x=3).x, Fixed() == Fixed(), {Fixed(): "a"}[Fixed()]]).value == [3, True, "a"]
    barrier = read(change).barrier
    assert barrier is not None
    assert "checks it" in barrier.what


def decorated_class() -> Any:
    @functools.total_ordering
    class Piece:
        x: int = 1

    return Piece.x


def test_a_class_with_another_decorator_is_left() -> None:
    assert read(decorated_class).barrier is not None
    assert read(lambda: OutputParserException("x")).barrier is not None


def test_a_reply_is_changed_to_what_was_foretold_only() -> None:
    run, reply = new_run(), Unknown("message")
    classes.set_attribute(run, reply, "content", "text")
    classes.set_attribute(run, reply, "name", Unknown("text"))
    for name, value in (("content", 5), ("content", Unknown("any")), ("tool_calls", "x")):
        with pytest.raises(Barrier):
            classes.set_attribute(run, reply, name, value)


def test_a_list_is_no_list_of_texts_once_something_else_is_in_it() -> None:
    words = Unknown("texts")
    methods.unknown_method(new_run(), words, "append", (Unknown("text"),), {})
    assert words.holds == "texts"
    methods.unknown_method(new_run(), words, "append", (5,), {})
    assert words.holds == "any"


# --- what fields hold ------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Declared:
    text: str
    row: Row


class Hiding(Declared):
    @property
    def text(self) -> int:  # type: ignore[override]
        return 1


def test_what_a_declared_field_holds() -> None:
    assert field_of(Declared, "text") == "text"
    assert field_of(Declared, "row") is Row
    assert field_of(Hiding, "text") is None
    assert field_of(Declared, "missing") is None
    run = new_run()
    assert classes.attribute(run, Unknown(Row), "x").holds == "int"
    assert not run.gates


class Defaults(pydantic.BaseModel):
    needed: str
    lacking: str = None  # type: ignore[assignment]
    given: str = "none"
    words: list[str] = []
    no_words: list[str] = None  # type: ignore[assignment]
    mixed_words: list[str] = [1]  # type: ignore[list-item]
    made: list[str] = pydantic.Field(default_factory=lambda: None)  # type: ignore[arg-type, return-value]
    number: int = True
    row: Row = None  # type: ignore[assignment]
    ratio: float = 1


class OldDefaults(pydantic.v1.BaseModel):
    needed: str
    lacking: str = None  # type: ignore[assignment]
    given: str = "none"
    words: list[str] = pydantic.v1.Field(default_factory=list)


@dataclasses.dataclass
class DataDefaults:
    needed: str
    lacking: str = None  # type: ignore[assignment]
    given: str = "none"
    words: list[str] = dataclasses.field(default_factory=list)


def test_a_default_is_not_always_what_its_annotation_says() -> None:
    kinds = {
        "needed": "text", "lacking": "any", "given": "text", "words": "texts", "no_words": "any",
        "mixed_words": "any", "made": "any", "number": "any", "row": "any", "ratio": "mixed",
    }  # fmt: skip
    assert {name: field_of(Defaults, name) for name in Defaults.model_fields} == kinds
    kinds = {"needed": "text", "lacking": "any", "given": "text", "words": "texts"}
    for cls in (OldDefaults, DataDefaults):
        assert {name: field_of(cls, name) for name in kinds} == kinds
    listing = pydantic.create_model("listing", rows=(list[Row], pydantic.Field(default_factory=list)))
    assert field_of(listing, "rows") == "list"


def test_a_name_in_quotes_is_that_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    assert field_of(Row, "x") == "int"
    monkeypatch.setitem(globals(), "int", str)
    assert field_of(Row, "x") == "any"


# --- where names come from -------------------------------------------------------------------------------------------


def uses_a_builtin() -> Any:
    return len("abc")


def test_names_of_builtins_are_those_of_the_function() -> None:
    def two(value: Any) -> int:
        return 2

    own = {"__builtins__": {"len": two}, "__name__": __name__}
    changed = types.FunctionType(uses_a_builtin.__code__, own)
    assert (read(uses_a_builtin).value, read(changed).value) == (3, 2)


def test_a_function_whose_file_has_changed_is_left(tmp_path: Path) -> None:
    path = tmp_path / "changing.py"
    path.write_text("def program():\n    return 1\n")
    spec = importlib.util.spec_from_file_location("changing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path.write_text("def program():\n    return 22\n")
    linecache.checkcache(str(path))
    assert read(module.program).barrier is not None


# --- frameworks ------------------------------------------------------------------------------------------------------


def test_messages_are_merged_as_langgraph_does() -> None:
    one = HumanMessage("a", id="1")
    cases: list[tuple[Any, Any]] = [
        ([one], [RemoveMessage(id="1"), AIMessage("again", id="1")]),
        ([HumanMessage("a"), HumanMessage("b")], [AIMessage("c")]),
        ([one, HumanMessage("b", id="2")], [AIMessage("new", id="1")]),
        (
            [one],
            [RemoveMessage(id="__remove_all__"), AIMessage("x", id="5"), RemoveMessage(id="__remove_all__"),
             AIMessage("y", id="6")],
        ),
    ]  # fmt: skip
    for left, right in cases:
        run = new_run()
        given = run.load(left, is_given=True), run.load(right, is_given=True)
        made = calls.call(run, Opaque(add_messages), given, {})
        expected = add_messages(copy.deepcopy(left), copy.deepcopy(right))
        assert [(type(each), each.content) for each in made] == [(type(each), each.content) for each in expected]
        known = {"1", "2", "5", "6"}
        ids = [each.id if each.id in known else None for each in expected]
        assert [None if is_random_id(vars(each)["id"]) else each.id for each in made] == ids


def test_a_message_of_the_programs_own_gets_no_id_ahead() -> None:
    """The framework writes it into the message itself."""
    run = new_run()
    with pytest.raises(Barrier, match="it changes a HumanMessage"):
        calls.call(run, Opaque(add_messages), (run.load([HumanMessage("a")]), []), {})


class OwnNode(TextNode):
    def get_content(self, *args: Any, **options: Any) -> str:
        RAN.append("get_content")
        return "own"


SCORED = [NodeWithScore(node=cls(text="text"), score=0.5) for cls in (TextNode, OwnNode)]


def test_a_node_of_the_users_own_class_tells_its_content_itself() -> None:
    assert read(lambda: SCORED[0].get_content()).value == "text"
    assert read(lambda: SCORED[1].get_content()).value != "text"


def test_tokens_are_not_counted_by_a_model() -> None:
    from langchain_core.messages import trim_messages

    run = new_run()
    history = run.load([HumanMessage("a")])
    with pytest.raises(Barrier, match="by a model"):
        calls.call(run, Opaque(trim_messages), (history,), {"max_tokens": 2, "token_counter": Opaque(Loud())})


@pure
def doubled(x: int) -> int:
    RAN.append("doubled")
    return 2 * x


def test_a_declared_function_is_asked_and_not_read() -> None:
    asks = read(lambda: doubled(2)).asks
    assert [ask.request.key[:2] == ("declared", ask.request.source) for ask in asks] == [True]


def test_a_product_is_as_large_as_it_is() -> None:
    assert list(use(itertools.product, "ab", repeat=2)) == list(itertools.product("ab", repeat=2))
    assert math.prod([2, 3]) == use(math.prod, [2, 3])
    assert use(typing.cast, Opaque(int), "x") == "x"
