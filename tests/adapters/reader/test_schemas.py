"""Schemas of replies: models of pydantic 1, of pydantic 2 with computed fields or random defaults."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Literal

import httpx
import pytest
from langchain_core.output_parsers import PydanticOutputParser, PydanticToolsParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field, computed_field, model_validator, v1

from teola_plugin.adapters.langchain.reading_builders import _require_likeness
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.pydantic_schemas import is_clean_model, is_clean_schema, is_made_without_code
from teola_plugin.adapters.reader.values import Barrier
from tests.adapters.reader.langchain_reading import check, hosted, read, stopped

RAN: list[str] = []


def ran(*args: Any, **kwargs: Any) -> Any:
    RAN.append("ran")
    return args[-1] if args else "ran"


LLM = hosted()
PROMPT = ChatPromptTemplate.from_template("Judge {x}")


class Inner(v1.BaseModel):
    note: str = "none"


class Old(v1.BaseModel):
    """A grade."""

    score: Literal["yes", "no"] = v1.Field(description="yes or no")
    why: str | None = None
    notes: list[str] = v1.Field(default_factory=list)
    inner: Inner | None = None
    more: dict[str, Any] = {}

    class Config:
        title = "Old"

    @property
    def is_good(self) -> bool:
        return self.score == "yes"


class Computed(BaseModel):
    score: str
    hidden: str | None = Field(default=None, exclude=True)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def is_good(self) -> bool:
        return self._is(self.score)

    @staticmethod
    def _is(score: str) -> bool:
        return score == "yes"


class Loud(BaseModel):
    score: str

    @computed_field  # type: ignore[prop-decorator]
    @property
    def is_good(self) -> bool:
        return bool(ran())


class Numbered(BaseModel):
    score: str
    id: uuid.UUID = Field(default_factory=uuid.uuid4)


def judged(schema: Any, **options: Any) -> Callable[[dict[str, Any]], Any]:
    grader = PROMPT | LLM.with_structured_output(schema, **options)

    def node(state: dict[str, Any]) -> Any:
        kept = []
        for doc in state["docs"]:
            grade = grader.invoke({"x": doc})
            if grade.is_good:
                kept.append(f"{doc}: {grade.score}")
        return kept

    return node


@pytest.mark.filterwarnings("ignore:Received a Pydantic BaseModel V1")
@pytest.mark.parametrize("schema", [Old, Computed])
@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_what_a_reply_comes_to_is_read_on(schema: Any, method: str) -> None:
    found = check(judged(schema, method=method), {"docs": ["a", "b", "c", "d"]})
    assert found.shown[0] == 4
    assert found.certain[0] == [True] * 4


@pytest.mark.filterwarnings("ignore:Received a Pydantic BaseModel V1")
@pytest.mark.parametrize("options", [{}, {"method": "function_calling"}])
def test_a_model_of_pydantic_1_in_the_body(options: dict[str, Any]) -> None:
    def node(state: dict[str, Any]) -> Any:
        grade = LLM.with_structured_output(Old, **options).invoke(state["x"])
        return LLM.invoke([("user", grade.score), ("user", str(grade.inner))]).content

    assert check(node, {"x": "a"}).shown == [1, 1]


@pytest.mark.filterwarnings("ignore")
def test_a_warning_that_may_be_an_error_ends_certainty(monkeypatch: pytest.MonkeyPatch) -> None:
    def node(x: str) -> Any:
        return LLM.with_structured_output(Old).invoke(x).score

    assert read(node, "a").certain == [[True]]
    monkeypatch.setattr("warnings.showwarning", ran)
    RAN.clear()
    assert read(node, "a").certain == [[False]]
    assert not RAN


class Plan(v1.BaseModel):
    queries: list[str] = v1.Field(description="what to look for")


class Guarded(v1.BaseModel):
    query: str

    @v1.validator("query")
    def noted(cls, value: str) -> str:
        RAN.append(value)
        return value


def test_a_model_of_pydantic_1_is_made_in_the_body() -> None:
    def made(x: str) -> Any:
        return [LLM.invoke(query).content for query in Plan(queries=[x, "b"]).queries]

    assert check(made, "a").shown == [2]
    assert "Guarded" in stopped(lambda x: Guarded(query=x).query, "a")
    assert not RAN


def test_a_model_of_pydantic_1_refuses_in_the_body() -> None:
    def node(x: str) -> Any:
        try:
            return LLM.invoke(Plan(queries=x).queries[0]).content
        except v1.ValidationError:
            return LLM.invoke("refused").content

    assert check(node, "a").shown == [1]


def test_parsers_make_objects_of_such_models() -> None:
    steps = PROMPT | LLM.bind_tools([Old]) | PydanticToolsParser(tools=[Old], first_tool_only=True)
    assert check(lambda x: steps.invoke({"x": x}).score, "a").shown == [1]


def test_a_random_default_is_not_known() -> None:
    grader = LLM.with_structured_output(Numbered, method="function_calling")

    def node(x: str) -> Any:
        grade = grader.invoke(x)
        return [LLM.invoke(grade.score).content, grade.id]

    found = read(node, "a")
    assert not found.stopped
    assert found.shown == [1, 1]
    assert found.value == "unknown"
    steps = PROMPT | grader | (lambda grade: LLM.invoke(str(grade)))
    assert read(steps, {"x": "a"}).shown == [1]


# --- attacks ---------------------------------------------------------------------------------------------------------


def test_what_shows_an_object_asks_its_computed_fields_in_the_framework_alone() -> None:
    grader = LLM.with_structured_output(Loud)
    shows: list[Callable[[Any], Any]] = [
        lambda grade: f"{grade}", str, repr, lambda grade: "%s" % grade,  # noqa: UP031
        lambda grade: "{} {}".format(*[grade, 1]),
        lambda grade: grade.model_dump(), lambda grade: grade.model_dump_json(), lambda grade: f"{[grade]}",
        lambda grade: PROMPT.invoke({"x": grade}).to_string(), lambda grade: str({"k": grade}),
        lambda grade: Loud.model_validate({"score": "a"}), lambda grade: Holder(held=grade).model_dump(),
        lambda grade: [("user", str(Holder.model_construct(held=grade)))], lambda grade: grade == Loud(score="a"),
    ]  # fmt: skip
    for show in shows:
        RAN.clear()
        found = read(lambda x, show=show: LLM.invoke(show(grader.invoke(x))), "a")
        assert not RAN
        assert found.stopped
        assert found.shown == [1]


class Holder(BaseModel):
    held: Any = None


def old_with(**members: Any) -> Any:
    return type("Odd", (v1.BaseModel,), {"__module__": __name__, "__annotations__": {"score": str}, **members})


class Typed(str):
    @classmethod
    def __get_validators__(cls) -> Any:
        RAN.append("asked for validators")
        yield ran


class Nested(v1.BaseModel):
    score: str

    @v1.validator("score", allow_reuse=True)
    def _checked(cls, value: str) -> str:
        return ran(value)


class Below(Nested):
    more: int = 0


def patched_field() -> Any:
    made = old_with()
    made.__fields__["score"].validators.append(ran)
    return made


def patched_roots() -> Any:
    made = old_with()
    made.__post_root_validators__.append((False, lambda cls, values: ran(values)))
    return made


def patched_config() -> Any:
    made = old_with()
    made.__config__.schema_extra = ran
    return made


def private() -> Any:
    return old_with(_held=v1.PrivateAttr(default_factory=ran))


OLD: dict[str, Callable[[], Any]] = {
    "validator": lambda: Nested,
    "inherited": lambda: Below,
    "root": lambda: old_with(r=v1.root_validator(pre=True, allow_reuse=True)(lambda cls, values: ran(values))),
    "root after": lambda: old_with(
        r=v1.root_validator(skip_on_failure=True, allow_reuse=True)(lambda cls, values: ran(values))
    ),
    "init": lambda: old_with(__init__=lambda self, **data: ran() and v1.BaseModel.__init__(self, **data)),
    "new": lambda: old_with(__new__=lambda cls, **data: ran() and object.__new__(cls)),
    "type": lambda: old_with(__annotations__={"score": Typed}),
    "list of types": lambda: old_with(__annotations__={"score": list[Typed]}),
    "nested": lambda: old_with(__annotations__={"score": Nested | str}),
    "factory": lambda: old_with(__annotations__={"score": str, "x": str}, x=v1.Field(default_factory=ran)),
    "extra": lambda: old_with(Config=type("Config", (), {"schema_extra": staticmethod(ran)})),
    "alias": lambda: old_with(Config=type("Config", (), {"getter_dict": ran})),
    "schema": lambda: old_with(schema=classmethod(ran)),
    "private": private,
    "privates": lambda: old_with(_init_private_attributes=ran),
    "setter": lambda: old_with(__setattr__=ran),
    "pattern": lambda: old_with(score=v1.Field(regex="(a+)+$")),
    "patched field": patched_field,
    "patched roots": patched_roots,
    "patched config": patched_config,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OLD)
def test_no_code_of_a_model_of_pydantic_1_runs(name: str) -> None:
    schema = OLD[name]()
    tool = {"type": "function", "function": {"name": "Odd", "parameters": {}}}
    parser = PydanticToolsParser(tools=[schema], first_tool_only=True)
    RAN.clear()
    foreign.begin()
    assert not is_made_without_code(schema)
    for program in (
        LLM.bind_tools([tool]) | parser,
        LLM | PydanticOutputParser(pydantic_object=schema),
        lambda x: LLM.with_structured_output(schema).invoke(x),
    ):
        assert stopped(program, "a")
        assert not RAN


class Checked(BaseModel):
    score: str

    @computed_field  # type: ignore[prop-decorator]
    @property
    def is_good(self) -> bool:
        return ran()

    @model_validator(mode="after")
    def checked(self) -> Any:
        return ran(self)


class Copied(BaseModel):
    score: str

    @computed_field  # type: ignore[prop-decorator]
    @property
    def is_good(self) -> bool:
        return ran()

    def __deepcopy__(self, memo: Any) -> Any:
        return ran(self)


class MadeUp(BaseModel):
    score: str
    id: Any = Field(default_factory=ran)


@pytest.mark.parametrize("schema", [Checked, Copied, MadeUp])
def test_models_with_more_code_are_left_alone(schema: Any) -> None:
    RAN.clear()
    assert not is_made_without_code(schema)
    assert stopped(lambda x: LLM.with_structured_output(schema).invoke(x), "a")
    assert not RAN


def test_others_than_clean_models_are_no_arguments_of_tools() -> None:
    """Those are written out."""
    for schema in (Old, Computed, Numbered):
        assert is_made_without_code(schema)
        assert not is_clean_model(schema)
        assert not is_clean_schema(schema)


def test_a_model_with_a_client_of_its_own_is_not_asked_ahead() -> None:
    """Two that are made alike cannot be told to be the same."""

    def node(x: str) -> Any:
        return OpenAI(api_key="key", base_url="http://service/v1").invoke(x)

    found = read(node, "a")
    assert "client of its own" in found.stopped
    assert not found.rounds


def test_models_whose_first_clients_were_made_side_by_side_are_alike_from_then_on() -> None:
    """LangChain keeps the first client; that two threads had a first one each says nothing about later models."""
    names = frozenset({"side by side"})
    early = ChatOpenAI(model="m", api_key="key", base_url="http://service/v1", http_client=httpx.Client())
    with pytest.raises(Barrier, match="for the first time"):
        _require_likeness(early, names, hosted)
    _require_likeness(hosted(), names, hosted)


def test_a_model_with_a_client_of_its_own_is_made_no_more_once_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def node(x: str) -> Any:
        return OpenAI(api_key="key", base_url="http://service/v1").invoke(x)

    read(node, "a")
    monkeypatch.setattr(OpenAI, "validate_environment", lambda self: RAN.append("made"), raising=True)
    RAN.clear()
    assert "client of its own" in read(node, "b").stopped
    assert not RAN
