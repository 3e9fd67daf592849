"""Types, classes and cached functions in a function's body: as CPython has them, and no code of the user's runs."""

from __future__ import annotations

import functools
import typing
import urllib.parse
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph.message import add_messages
from pydantic import BaseModel, Field

from teola_plugin.adapters.reader import chat
from teola_plugin.adapters.reader.heap import NO_SOURCES
from teola_plugin.adapters.reader.run import Answer, Run
from teola_plugin.adapters.reader.values import Unknown
from tests.adapters.reader.world import Model, ModelAsker, read

RAN: list[str] = []


class Meta(type):
    def __or__(cls, other: Any) -> Any:
        RAN.append("or")
        return other

    def __hash__(cls) -> int:
        RAN.append("hash")
        return 1


class Watched(metaclass=Meta):
    pass


class Items:
    def __class_getitem__(cls, item: Any) -> Any:
        RAN.append("class_getitem")
        return cls


class Loud:
    def __hash__(self) -> int:
        RAN.append("hash")
        return hash("a")

    def __eq__(self, other: object) -> bool:
        RAN.append("eq")
        return True


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    RAN.clear()
    yield
    assert not RAN


# --- types -----------------------------------------------------------------------------------------------------------


def test_types_of_the_language_are_made() -> None:
    def program(value: Any) -> Any:
        hints = (list[str], Optional[int], Union[str, None], Literal["a", 1], Annotated[str, "why"], int | None)  # noqa: UP007, UP045
        return [len(hints), typing.cast(dict[str, int], value), hints[1] is Optional[int]]  # noqa: UP045

    assert read(program, "x").value == program("x") == [6, "x", True]


@pytest.mark.parametrize(
    "program",
    [
        lambda: list[Watched],
        lambda: Optional[Watched],  # noqa: UP045
        lambda: Watched | None,
        lambda: int | Watched,
        lambda: Items[int],
        lambda: Annotated[int, Loud()],
        lambda: Literal[Loud()],  # type: ignore[misc]
        lambda: dict[str, Items],
    ],
)
def test_types_run_no_code_of_the_users(program: Any) -> None:
    assert read(program).error is None  # and `_quiet` looks what ran


def test_a_union_of_what_is_no_type_is_left() -> None:
    assert read(lambda: {"a": 1} | list[int]).barrier is not None  # type: ignore[operator]


# --- classes ---------------------------------------------------------------------------------------------------------


def test_a_data_class_shows_itself_as_in_cpython() -> None:
    def program(text: str) -> Any:
        @dataclass
        class Piece:
            text: str
            score: int = 1

        piece = Piece(text)
        return [repr(piece), piece == Piece(text, 1), Piece.__name__, isinstance(piece, Piece)]

    assert read(program, "x").value == program("x")


def test_a_data_class_in_an_inner_function_is_not_read() -> None:
    def program() -> Any:
        def inner() -> Any:
            @dataclass
            class Piece:
                text: str

            return repr(Piece("x"))

        return inner()

    assert read(program).barrier is not None


def test_a_model_with_fields_is_made() -> None:
    def program(text: str) -> Any:
        class Answer(BaseModel):
            score: Literal["yes", "no"] = Field(description="which")
            items: list[str] = Field(default_factory=list)
            note: Optional[str] = None  # noqa: UP045

        made = Answer(score=text)  # type: ignore[arg-type]
        return [made.score, made.items, made.note, made.model_dump(), repr(made)]

    assert read(program, "yes").value == program("yes")
    assert type(read(program, "maybe").error).__name__ == "ValidationError"


def test_a_factory_of_the_users_is_not_called() -> None:
    def program() -> Any:
        class Answer(BaseModel):
            items: list[str] = Field(default_factory=lambda: RAN.append("factory") or [])

        return Answer().items

    assert read(program).barrier is not None


# --- cached functions ------------------------------------------------------------------------------------------------


MODEL = Model(lambda question, number: f"re {question}")


class Tool:
    name = "tool"


@functools.lru_cache
def kept(name: str = "a", *, size: int = 1) -> Tool:
    return Tool()


@functools.cache
def shown(name: str) -> str:
    return name.upper()


@functools.cache
def listed(name: str) -> list[str]:
    return [name]


@functools.cache
def asked(question: str) -> str:
    return MODEL.ask(question)


@functools.lru_cache(typed=True)
def typed(number: float) -> str:
    return str(number)


def test_what_a_cache_has_is_taken_and_counts_no_hit() -> None:
    def program() -> Any:
        return [listed("a"), shown("x"), kept("b", size=2).name, listed(name="z")]

    listed("a").append("changed")
    listed(name="z").append("changed")
    shown("x")
    kept("b", size=2)
    before = [each.cache_info() for each in (listed, shown, kept)]
    RAN.clear()
    assert read(program).value == [["a", "changed"], "X", "tool", ["z", "changed"]]
    assert [each.cache_info() for each in (listed, shown, kept)] == before


def test_what_a_cache_has_not_is_read_and_not_kept() -> None:
    before = shown.cache_info()
    assert read(lambda: shown("never")).value == "NEVER"
    assert shown.cache_info() == before
    assert read(lambda: kept("never").name).value == "tool"


@pytest.mark.parametrize(
    "program",
    [lambda: listed("new"), lambda: shown(name=["a"]), lambda: shown(Loud())],  # type: ignore[arg-type]
)
def test_what_is_not_exact_is_left(program: Any) -> None:
    assert read(program).barrier is not None


def test_a_cached_function_asks_once() -> None:
    def program() -> Any:
        return [asked("new"), asked("new")]

    found = read(program)
    assert found.barrier is not None
    assert found.certain == ["new"]
    again = read(program, answers={ask.key: Answer("known") for ask in found.asks})
    assert again.barrier is not None
    assert again.asks == []


def test_a_cache_by_type_tells_equal_numbers_apart() -> None:
    typed.cache_clear()
    typed(1)
    typed(number=2.0)
    before = typed.cache_info()
    said = read(lambda: [typed(1), typed(1.0), typed(True), typed(number=2), typed(number=2.0)])
    assert said.value == ["1", "1.0", "True", "2", "2.0"]
    assert typed.cache_info() == before


def test_parts_of_an_address_are_kept_by_the_standard_library() -> None:
    def program(text: str) -> Any:
        parts = urllib.parse.urlsplit(text)
        return [parts.netloc, parts.path, parts.hostname, parts[0]]

    urllib.parse.clear_cache()  # others may have asked with objects of their own
    for text in ("http://a.b:80/c?d#e", "http://a.b:80/never"):
        assert read(program, text=text).value == ["a.b:80", text[13:].partition("?")[0], "a.b", "http"]
        program("http://a.b:80/c?d#e")


def test_caches_by_objects_are_left() -> None:
    shown.cache_clear()
    functools.cache(len)
    loud = functools.cache(lambda value: "x")
    loud(Loud())
    RAN.clear()
    assert read(lambda: loud("a")).barrier is not None


# --- messages --------------------------------------------------------------------------------------------------------


def _run() -> Run:
    return Run(ModelAsker())


@pytest.mark.parametrize("given", ["text", ("user", "text"), {"role": "assistant", "content": "text"}, ("system", "x")])
def test_a_message_is_made_as_the_framework_makes_it(given: Any) -> None:
    run = _run()
    (expected,) = add_messages([], [given])
    made = chat.message_of(run, given)
    assert type(made) is type(expected)
    assert {**vars(made), "id": None} == {**vars(expected), "id": None}


def test_chats_of_which_only_texts_are_unknown_are_sure() -> None:
    run, text, anything = _run(), Unknown("text", NO_SOURCES), Unknown("any", NO_SOURCES)
    message = HumanMessage("x")
    vars(message)["content"] = text
    assert chat.is_chat(run, [message, ("user", text), text, Unknown("message"), AIMessage("y")])
    vars(message)["content"] = anything
    assert not chat.is_chat(run, [message])
    for odd in ([("user", anything)], [("robot", text)], [{"role": "tool", "content": text}], [anything], anything):
        assert not chat.is_chat(run, odd)


# --- names of functions around ---------------------------------------------------------------------------------------

NAME = "of the module"


def _asking(is_set: bool) -> Any:
    def program(m: Any) -> Any:
        return m.ask(NAME)

    if is_set:
        NAME = "of the function"
    return program


def test_a_variable_of_a_function_around_that_is_not_set_is_not_that_of_the_module() -> None:
    found = read(_asking(is_set=False), Model(lambda question, number: "reply"))
    assert type(found.error) is NameError
    assert not found.asks
    assert read(_asking(is_set=True), Model(lambda question, number: "reply")).certain == ["of the function"]
