"""Models of which some values are unknown: field by field what pydantic makes of the same values."""

from __future__ import annotations

import itertools
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from teola_plugin.adapters.reader.open_models import open_model
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Barrier, Opaque, Unknown
from tests.adapters.reader.world import Model, ModelAsker, read

RAN: list[str] = []


class Graph:
    def __deepcopy__(self, memo: Any) -> Graph:
        RAN.append("deepcopy")
        return Graph()


class Plain:
    """Copied part by part."""


class Other:
    """Of another class."""


class Reduced:
    def __reduce__(self) -> Any:
        return Plain, ()


class Kind(Enum):
    ONE = "one"


class Inner(BaseModel):
    name: str = "inner"


class State(BaseModel):
    text: str = ""
    number: int = 0
    share: float = 0.5
    flag: bool = False
    maybe: str | None = None
    texts: list[str] = []
    numbers: list[int] = Field(default_factory=list)
    table: dict[str, Any] = {}
    kind: Kind = Kind.ONE
    word: Literal["a", "b"] = "a"
    inner: Inner = Inner()
    either: int | str = 1
    anything: Any = None


class Held(BaseModel, arbitrary_types_allowed=True):
    graph: Graph = Graph()
    text: str = ""


class Several(BaseModel, arbitrary_types_allowed=True):
    plain: Plain = Plain()
    other: Any = Other()
    reduced: Any = Reduced()
    graph: Any = Graph()


class Wanting(BaseModel, arbitrary_types_allowed=True):
    plain: Plain


class WantingReduced(BaseModel, arbitrary_types_allowed=True):
    reduced: Reduced


class WantingGraph(BaseModel, arbitrary_types_allowed=True):
    graph: Graph


class Checked(State):
    @field_validator("text")
    @classmethod
    def check(cls, value: str) -> str:
        RAN.append("check")
        return value


class Whole(State):
    @model_validator(mode="before")
    @classmethod
    def check(cls, value: Any) -> Any:
        RAN.append("check")
        return value


class Stripped(State, str_strip_whitespace=True):
    pass


class Strict(State, extra="forbid"):
    pass


VALUES = [
    "x",
    "",
    3,
    "3",
    0.5,
    True,
    None,
    ["a"],
    [1, "2"],
    {"a": 1},
    {1: 2},
    "one",
    "a",
    Inner(name="y"),
    (1, 2),
    "yes",
]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    RAN.clear()


@pytest.mark.parametrize(("name", "value"), list(itertools.product(State.model_fields, VALUES)))
def test_a_field_holds_what_pydantic_makes_of_it(name: str, value: Any) -> None:
    try:
        expected: Any = State(**{name: value})
    except ValidationError as e:
        expected = type(e)
    try:
        made = open_model(Run(ModelAsker()), State, {name: value})
    except ValidationError as e:
        made = type(e)
    if isinstance(expected, State):
        assert made == expected
        assert list(vars(made)) == list(vars(expected))
        assert made.model_fields_set == expected.model_fields_set
        assert [type(each) for each in vars(made).values()] == [type(each) for each in vars(expected).values()]
    else:
        assert made is expected


def test_defaults_are_copies() -> None:
    run = Run(ModelAsker())
    one, two = (open_model(run, State, {}) for _ in range(2))
    assert one.texts is not two.texts
    assert one.texts is not State.model_fields["texts"].default


@pytest.mark.parametrize(
    ("cls", "name", "source", "is_certain"),
    [(Wanting, "plain", "plain", True), (Wanting, "plain", "other", False), (Wanting, "plain", "graph", False),
     (WantingGraph, "graph", "graph", False), (WantingReduced, "reduced", "reduced", False)],
)  # fmt: skip
def test_the_copy_of_a_default_has_the_class_of_the_default(cls: Any, name: str, source: str, is_certain: bool) -> None:
    run = Run(ModelAsker())
    default = vars(open_model(run, Several, {}))[source]
    assert not run.gates
    assert type(vars(open_model(run, cls, {name: default}))[name]) is Unknown
    assert bool(run.gates) is not is_certain
    assert not RAN


@pytest.mark.parametrize(
    ("name", "holds", "kept"),
    [("text", "text", True), ("maybe", "text", True), ("flag", "bool", True), ("anything", "any", True),
     ("texts", "texts", True), ("text", "any", False), ("number", "text", False), ("numbers", "texts", False),
     ("word", "text", False), ("inner", "any", False), ("table", "any", False), ("either", "text", False)],
)  # fmt: skip
def test_what_is_unknown_in_one_field_stays_there(name: str, holds: str, kept: bool) -> None:
    run = Run(ModelAsker())
    made = open_model(run, State, {name: Unknown(holds, frozenset(["model"])), "number": 4} | ({name: Unknown(holds)}))
    assert type(vars(made)[name]) is Unknown
    assert made.share == 0.5
    assert bool(run.gates) is not kept


def test_an_unknown_text_in_a_list() -> None:
    run, text = Run(ModelAsker()), Unknown("text")
    given = ["a", text]
    made = open_model(run, State, {"texts": given})
    assert made.texts == given
    assert made.texts is not given
    assert not run.gates
    open_model(run, State, {"numbers": [1, text]})
    assert run.gates


def test_an_object_of_others_is_carried_and_its_default_not_copied() -> None:
    run, graph = Run(ModelAsker()), Opaque(Graph())
    assert open_model(run, Held, {"graph": graph}).graph is graph
    assert type(open_model(run, Held, {"text": "x"}).graph) is Unknown
    with pytest.raises(Barrier):
        open_model(run, Held, {"graph": Opaque(object())})
    assert not RAN


def test_a_model_that_was_given_code_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inner, "__init__", lambda self, **data: RAN.append("init"))
    assert open_model(Run(ModelAsker()), Inner, {"name": Unknown("text")}) is None
    assert not RAN


@pytest.mark.parametrize("cls", [Checked, Whole, Stripped, Strict])
def test_models_with_code_or_settings_are_made_as_a_whole_or_not_at_all(cls: type) -> None:
    assert open_model(Run(ModelAsker()), cls, {"text": Unknown("text")}) is None
    assert not RAN


def test_a_request_behind_an_open_model_is_certain() -> None:
    model = Model(lambda question, number: f"re {question}")

    def program(model: Model) -> Any:
        state = State(text=model.ask("one"), number="3")  # type: ignore[arg-type]
        return [model.ask(f"two {state.number}"), state.text]

    assert read(program, model).certain == ["one", "two 3"]
