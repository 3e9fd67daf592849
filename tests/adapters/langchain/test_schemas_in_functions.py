"""Structured replies of a class that a function defines in its body: asked as if the class stood outside."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal, Optional

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import PydanticOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

from teola_plugin import optimize
from teola_plugin.adapters.reader.foreign import READER
from teola_plugin.adapters.reader.made_classes import likeness
from tests.support.hosted_service import Service, asked_side_by_side, counted, served

SCHEMAS: list[Any] = []


class Serving(Service):
    """Replies with an object for each schema, and keeps what was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.whole: list[str] = []
        self.lasts_s = 0.1
        self.content: Callable[[Any, str], str] = lambda schema, told: json.dumps(filled(schema, schema, told))

    def reply_to(self, path: str, given: dict[str, Any]) -> dict[str, Any]:
        self.whole.append(json.dumps(given, sort_keys=True))
        reply = super().reply_to(path, given)
        message = reply["choices"][0]["message"]
        told = given["messages"][-1]["content"]
        if told.startswith("JSON"):
            message["content"] = '{"a": "x"}'
        if "response_format" in given:
            message["content"] = self.content(given["response_format"]["json_schema"]["schema"], told)
        if "tools" in given:
            function = given["tools"][0]["function"]
            arguments = self.content(function["parameters"], told)
            call = {"id": "c", "type": "function", "function": {"name": function["name"], "arguments": arguments}}
            message.update(content=None, tool_calls=[call])
        return reply


def filled(schema: Any, root: Any, told: str) -> Any:
    """Return a value of a JSON schema."""
    if "$ref" in schema:
        return filled(root["$defs"][schema["$ref"].rpartition("/")[2]], root, told)
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return filled(schema["anyOf"][0], root, told)
    if schema["type"] == "object":
        return {name: filled(each, root, told) for name, each in schema.get("properties", {}).items()}
    if schema["type"] == "array":
        return [filled(schema["items"], root, told)] * 2
    return {"string": f"s {told[:9]}", "integer": 3, "number": 0.5, "boolean": True}[schema["type"]]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    SCHEMAS.clear()
    monkeypatch.setattr("tests.support.hosted_service.Service", Serving)
    with served() as found:
        yield found
    SCHEMAS.clear()


def model(service: Service, **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(model="gpt-4o", base_url=service.url, api_key="x", max_retries=0, **settings)  # type: ignore[arg-type]


def outcome(function: Callable[[Any], Any], value: Any) -> Any:
    try:
        found = "", repr(function(value))
    except Exception as e:
        found = type(e).__name__, str(e)
    return re.sub("lc_run--[-0-9a-f]*", "id", str(found))


# --- asked early -----------------------------------------------------------------------------------------------------


def fields(llm: Any, text: str) -> Any:
    class Grade(BaseModel):
        """How good a document is.

        A second paragraph.
        """

        score: str = Field(description="yes or no")
        reason: Optional[str] = Field(default=None, max_length=90)  # noqa: UP045
        kind: Literal["a", "b"] = "b"
        size: int = 1
        share: float
        sure: bool = False
        tags: list[str] = Field(default_factory=list, description="some")

    chain, found = llm.with_structured_output(Grade), []
    grades = [chain.invoke([("system", "x"), ("human", f"{text} {number}")]) for number in range(3)]
    for grade in grades:
        found.append([grade.score, grade.reason, grade.kind, grade.size, grade.tags, type(grade) is Grade])
        found.append([isinstance(grade, Grade), grade.__class__ is Grade, grade == Grade(**grade.model_dump())])
        found.append([repr(grade), str(grade), grade.model_dump(), type(grade).__name__, Grade.__qualname__])
    return found


def with_a_prompt(llm: Any, text: str) -> Any:
    class Out(BaseModel):
        a: str
        b: int

    chain = ChatPromptTemplate.from_messages([("system", "x"), ("human", "{q} {n}")]) | llm.with_structured_output(Out)
    return [chain.invoke({"q": text, "n": number}).a for number in range(3)]


def nested(llm: Any, text: str) -> Any:
    class Item(BaseModel):
        """A thing."""

        name: str

    class Basket(BaseModel):
        items: list[Item]
        first: Item
        other: Optional[Item] = None  # noqa: UP045
        by_name: list[dict[str, Item]] = []

    baskets = [llm.with_structured_output(Basket).invoke(f"{text} {number}") for number in range(3)]
    return [[each.items[1].name, [type(item) is Item for item in (*each.items, each.first)]] for each in baskets]


def in_each_round(llm: Any, text: str) -> Any:
    found = []
    for number in range(3):

        class Out(BaseModel):
            a: str

        made = llm.with_structured_output(Out).invoke(f"{text} {number}")
        found.append((made, Out))
    return [(made.a, [isinstance(made, cls) for _, cls in found]) for made, _ in found]


def by_a_helper(llm: Any, text: str) -> Any:
    def grade(number: int) -> Any:
        class Out(BaseModel):
            a: str

        made = llm.with_structured_output(Out).invoke(f"{text} {number}")
        return made, Out

    return [(made.a, isinstance(made, cls), repr(made)) for made, cls in [grade(number) for number in range(3)]]


def with_raw(llm: Any, text: str) -> Any:
    class Out(BaseModel):
        a: str

    found = [llm.with_structured_output(Out, include_raw=True).invoke(f"{text} {number}") for number in range(3)]
    return [(each["parsed"].a, each["raw"].content, each["parsing_error"]) for each in found]


def of_calls(llm: Any, text: str) -> Any:
    class Out(BaseModel):
        """What to say."""

        a: str

    chain = llm.with_structured_output(Out, method="function_calling")
    return [chain.invoke(f"{text} {number}").a for number in range(3)]


def strictly(llm: Any, text: str) -> Any:
    class Out(BaseModel):
        a: str

    return [llm.with_structured_output(Out, strict=True).invoke(f"{text} {number}").a for number in range(3)]


def by_a_parser(llm: Any, text: str) -> Any:
    class Out(BaseModel):
        a: str = Field(description="what to say")

    parser = PydanticOutputParser(pydantic_object=Out)
    chain = ChatPromptTemplate.from_template("JSON {how}\n{q} {n}").partial(how=parser.get_format_instructions()) | llm
    return [(chain | parser).invoke({"q": text, "n": number}).a for number in range(3)]


def typed_dict(llm: Any, text: str) -> Any:
    class Out(TypedDict):
        """What to say."""

        a: str

    return [llm.with_structured_output(Out).invoke(f"{text} {number}")["a"] for number in range(3)]


EARLY = [fields, with_a_prompt, nested, in_each_round, by_a_helper, of_calls, strictly, typed_dict]


@pytest.mark.parametrize("program", EARLY)
def test_a_class_of_the_body_is_asked_for_early(service: Any, program: Callable[[Any, str], Any]) -> None:
    llm = model(service)
    asked_side_by_side(service, lambda text: program(llm, text), "chat q 0", "chat q 2", lambda app: app("q"))
    assert len(set(service.whole)) == 3  # each of the three calls asks the same


@pytest.mark.parametrize("program", [*EARLY, with_raw, by_a_parser])
def test_coroutines_ask_the_same(service: Any, program: Callable[[Any, str], Any]) -> None:
    llm = model(service)

    async def app(text: str) -> Any:
        return program(llm, text)

    fast = optimize(app)
    plain = asyncio.run(app("q"))
    with counted(service) as made:
        assert [asyncio.run(fast("q")) for _ in range(3)] == [plain] * 3
    assert set(made.values()) == {3}
    assert len(set(service.whole)) == 3


# --- as the original -------------------------------------------------------------------------------------------------


def compared(service: Any, program: Callable[[Any, str], Any], *, may_ask_more: bool = False, **settings: Any) -> None:
    """The optimized function comes to the same as the original and asks the same.

    `may_ask_more`: a reply may end a loop over one model, which is asked as a batch, also for a class from outside.
    """
    llm = model(service, **settings)
    plain = outcome(lambda text: program(llm, text), "q")
    original, service.whole = service.whole, []
    fast = optimize(lambda text: program(llm, text))
    for _ in range(3):
        service.whole.clear()
        assert outcome(fast, "q") == plain
        if may_ask_more:
            assert set(original) <= set(service.whole)
            assert {re.sub("q [12]", "q 0", each) for each in service.whole} == {original[0]}
        else:
            assert sorted(service.whole) == sorted(original)


def pair(llm: Any, text: str) -> Any:
    class Out(BaseModel):
        a: str
        b: int

    return [llm.with_structured_output(Out).invoke(f"{text} {number}").b for number in range(2)]


def caught(llm: Any, text: str) -> Any:
    class Out(BaseModel):
        a: str
        b: int = Field(le=2)

    found = []
    for number in range(2):
        try:
            found.append(llm.with_structured_output(Out).invoke(f"{text} {number}").a)
        except Exception as e:
            found.append((type(e).__name__, str(e), getattr(e, "response", None) is None))
    return found


SAID = {
    "no JSON": "yes",
    "another type": '{"a": 1, "b": "x"}',
    "a missing field": '{"a": "x"}',
    "text for a number": '{"a": "x", "b": "2"}',
    "nothing": "",
}


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("program", [pair, caught, fields])
def test_replies_that_do_not_fit_raise_the_same(service: Any, program: Callable[[Any, str], Any], said: str) -> None:
    service.content = lambda schema, told: SAID[said]
    compared(service, program, may_ask_more=program is not caught)


def with_validator(llm: Any, text: str) -> Any:
    class Out(BaseModel):
        a: str

        @field_validator("a")
        @classmethod
        def longer(cls, value: str) -> str:
            return value * 2

    return [llm.with_structured_output(Out).invoke(f"{text} {number}").a for number in range(2)]


def of_one_name(llm: Any, text: str) -> Any:
    class Out(BaseModel):
        a: str

    inner = Out

    class Out(BaseModel):  # type: ignore[no-redef]
        b: inner  # type: ignore[valid-type]

    return [llm.with_structured_output(Out).invoke(f"{text} {number}").b.a for number in range(2)]


def handed_on(llm: Any, text: str) -> Any:
    class Out(BaseModel):
        a: str

    grade = llm.with_structured_output(Out, include_raw=True).invoke(text)
    said = AIMessage("so", additional_kwargs={"grade": grade["parsed"]})
    return [llm.invoke([HumanMessage(text), each, HumanMessage("more")]).content for each in (said, grade["raw"])]


def two_alike(llm: Any, text: str) -> Any:
    class Out(BaseModel):
        a: str

    first = Out

    class Out(BaseModel):  # type: ignore[no-redef]
        a: str

    made = [llm.with_structured_output(cls).invoke(f"{text} {n}") for n in range(2) for cls in (first, Out, first)]
    return [[isinstance(each, first), isinstance(each, Out), each.a] for each in made]


def two_unlike(llm: Any, text: str) -> Any:
    class Out(BaseModel):
        a: str

    first = Out

    class Out(BaseModel):  # type: ignore[no-redef]
        """Another."""

        a: str

    made = [llm.with_structured_output(cls).invoke(f"{text} {n}") for n in range(2) for cls in (first, Out, first)]
    return [[isinstance(each, first), isinstance(each, Out), each.a] for each in made]


def decides(llm: Any, text: str) -> Any:
    found = []
    for number in range(2):

        class Out(BaseModel):
            a: str

        made = llm.with_structured_output(Out).invoke(f"{text} {number}")
        found.append(llm.invoke(f"is {isinstance(made, Out)} {number}").content)
    return found


def of_its_own_names(llm: Any, text: str) -> Any:
    size = 5

    class Out(BaseModel):
        size: int = 1
        other: str = f"{size}"

    chain = llm.with_structured_output(Out)
    return [(chain.invoke(f"{text} {number}").other, size) for number in range(2)]


def bound(llm: Any, text: str) -> Any:
    class Out(BaseModel):
        a: str

    replies = [llm.bind(response_format=Out).invoke(f"{text} {number}") for number in range(2)]
    return [(each.content, each.additional_kwargs["parsed"].a, repr(each)) for each in replies]


def shown(llm: Any, text: str) -> Any:
    class Out(BaseModel):
        a: str

    found = [llm.with_structured_output(Out).invoke(f"{text} {number}") for number in range(2)]
    return [str(found), str(type(found[0])), repr(Out), Out.__module__, f"{found[0]!r}", Out.__qualname__]


@pytest.mark.parametrize(
    "program",
    [
        with_validator, of_one_name, handed_on, two_alike, two_unlike, of_its_own_names, bound, shown, decides,
    ],
)  # fmt: skip
def test_what_is_not_so_plain_comes_to_the_same(service: Any, program: Callable[[Any, str], Any]) -> None:
    compared(service, program)


@pytest.mark.parametrize("settings", [{"streaming": True}, {"use_responses_api": True}, {"n": 2}], ids=str)
def test_other_ways_to_reply_come_to_the_same(service: Any, settings: dict[str, Any]) -> None:
    compared(service, pair, may_ask_more=True, **settings)


def test_a_class_of_each_call_does_not_stay(service: Any) -> None:
    llm = model(service)

    def program(text: str) -> Any:
        class Out(BaseModel):
            a: str

        SCHEMAS.append(weakref.ref(Out))
        return [llm.with_structured_output(Out).invoke(f"{text} {number}").a for number in range(2)]

    fast = optimize(program)
    for _ in range(6):
        fast("q")
    gc.collect()
    assert sum(each() is not None for each in SCHEMAS) <= 1


@pytest.mark.parametrize("program", [fields, by_a_helper, of_calls])
def test_the_readers_classes_do_not_stay(service: Any, program: Callable[[Any, str], Any]) -> None:
    llm = model(service)
    fast = optimize(lambda text: program(llm, text))

    def made_after(calls: int) -> int:
        for _ in range(calls):
            fast("q")
        gc.collect()
        made = [each for each in BaseModel.__subclasses__() if each.__module__ == READER]
        return sum(each.__name__ in ("Grade", "Out") for each in made)

    before, calls = made_after(2), 6  # those of the last call are known until the next one begins
    assert made_after(calls) - before < calls


def test_models_are_alike_if_a_service_is_told_the_same() -> None:
    def made(text: str, description: str) -> type[BaseModel]:
        class Out(BaseModel):
            __doc__ = text
            a: str = Field(description=description)

        return Out

    alike = likeness(made("One.", "of it"))
    assert alike is not None
    assert alike == likeness(made("One.", "of it"))
    assert alike != likeness(made("Another.", "of it"))
    assert alike != likeness(made("One.", "of another"))
