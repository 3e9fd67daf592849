"""Tools: which may start early, and why no other may; what tells two calls of one apart."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from contextvars import copy_context
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any

import pytest
from langchain_core.callbacks import CallbackManagerForToolRun
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool, tool
from pydantic import BaseModel

from teola_plugin import pure, reads, runtime, writes
from teola_plugin.adapters.interception import interception
from teola_plugin.adapters.langchain import tools
from teola_plugin.adapters.langchain.tools import EarlyTool, TalkedError, read_tool
from teola_plugin.runtime.session.session import Session
from teola_plugin.seams import Reply, active


@pure
def find(word: str) -> str:
    """Finds a word."""
    return word


@reads("kb")
async def afind(word: str) -> str:
    """Finds a word."""
    return word


def shout(word: str) -> str:
    """May do anything."""
    print(word)
    return word


async def ashout(word: str) -> str:
    """May do anything."""
    print(word)
    return word


@writes("kb")
def note(word: str) -> str:
    """Writes a word down."""
    return word


@pure
def configured(word: str, config: RunnableConfig) -> str:
    """Sees how it was called."""
    return word


@pure
def given(word: str, user: Annotated[str, InjectedToolArg]) -> str:
    """Is told who asks."""
    return word


def complain(error: Exception) -> str:
    print(error)
    return "no"


@pure
def calm(error: Exception) -> str:
    return str(error)


def made(function: Any = None, coroutine: Any = None, **fields: Any) -> BaseTool:
    return StructuredTool.from_function(func=function, coroutine=coroutine, name="find", description="d", **fields)


@pure
class Declared(BaseTool):
    name: str = "declared"
    description: str = "d"

    def _run(self, word: str) -> str:
        print(word)
        return word


class Configured(Declared):
    def _run(self, word: str, config: RunnableConfig) -> str:  # type: ignore[override]
        return word


HINT = {"readOnlyHint": True}


@pytest.mark.parametrize(
    "early",
    [
        made(find), made(None, afind), made(find, afind), made(shout, metadata=HINT), made(find, metadata=HINT),
        made(find, handle_tool_error=calm), made(find, handle_tool_error=True), Declared(), tool(find),
    ],
)  # fmt: skip
def test_tools_that_only_read(early: BaseTool) -> None:
    found = read_tool(early)
    assert isinstance(found, EarlyTool)
    assert found.is_so_still()


@pytest.mark.parametrize(
    ("late", "why"),
    [
        (made(shout), "nobody said that it only reads"),
        (made(note), ""),
        (made(find, ashout), ""),
        (made(shout, afind), ""),
        (made(find, metadata={"readOnlyHint": False}, coroutine=ashout), ""),
        (made(shout, metadata={"readOnlyHint": False}), ""),
        (made(shout, metadata={"readOnlyHint": "yes"}), ""),
        (made(note, metadata=HINT), ""),
        (made(find, note, metadata=HINT), ""),
        (made(configured), "it takes the call's config"),
        (Configured(), "it takes the call's config"),
        (made(given), "it is given user"),
        (made(find, handle_tool_error=complain), "what handles its errors is not declared free of effects"),
        (made(find, handle_validation_error=complain), "what handles its errors is not declared free of effects"),
    ],
)
def test_tools_that_may_do_more(late: BaseTool, why: str) -> None:
    found = read_tool(late)
    assert isinstance(found, str)
    assert found.startswith(why) or why in found


def test_only_what_reads_nothing_is_changeless() -> None:
    changeless = {name: read_tool(made(f)).is_changeless for name, f in (("pure", find), ("reads", None)) if f}  # type: ignore[union-attr]
    assert changeless == {"pure": True}
    assert not read_tool(made(None, afind)).is_changeless  # type: ignore[union-attr]
    assert not read_tool(made(shout, metadata=HINT)).is_changeless  # type: ignore[union-attr]


# --- what tells two calls apart --------------------------------------------------------------------------------------


class Colour(Enum):
    RED = 1
    CRIMSON = "1"


class Point(BaseModel):
    x: float = 0.0
    y: float = 0.0


class Place(BaseModel):
    x: float = 0.0
    y: float = 0.0


def key(*args: Any, **kwargs: Any) -> Any:
    return tools._key(args, kwargs)


ARGUMENTS = [
    0, 0.0, -0.0, False, "0", b"0", None, 1, 1.0, True, "1", Decimal("1"), Decimal("1.0"), Colour.RED, Colour.CRIMSON,
    [], (), {}, set(), frozenset(), OrderedDict(), [1], (1,), [1, 2], [2, 1], {1}, frozenset({1}), [[1], 2], [1, [2]],
    {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}, {"a": True}, OrderedDict(a=1), {"a": {"b": 1}}, {"a": {"b": 1.0}},
    math.inf, -math.inf, Point(), Point(x=0.0), Point(x=1.0), Place(), 10**20, float(10**20),
]  # fmt: skip
"""No two of these are the same to a tool."""


def test_a_tool_s_arguments_are_told_apart_as_a_function_can() -> None:
    for n, one in enumerate(ARGUMENTS):
        for m, other in enumerate(ARGUMENTS):
            assert (key(x=one) == key(x=other)) == (n == m), (one, other)
            assert (key(one) == key(other)) == (n == m), (one, other)
    assert key(x=1) != key(y=1) != key(1) != key(x=1, y=1)


def test_what_the_framework_adds_is_no_argument() -> None:
    manager = CallbackManagerForToolRun.get_noop_manager()
    assert key(x=1, run_manager=manager, config={"tags": ["a"]}) == key(x=1)


def test_arguments_that_cannot_be_compared_have_no_key() -> None:
    assert key(x=object()) is None
    assert key(x=[lambda: 1]) is None


def test_a_coroutine_is_used_where_the_tool_has_one_and_the_run_is_asynchronous() -> None:
    for early, is_async, expected in (
        (made(find, afind), True, True), (made(find, afind), False, False), (made(find), True, False),
        (Declared(), True, False), (made(None, afind), True, True),
    ):  # fmt: skip
        found = read_tool(early)
        assert isinstance(found, EarlyTool)
        call, is_coroutine = found.begin("find", {"word": "bee"}, is_async, copy_context())
        assert is_coroutine is expected
        message = asyncio.run(call()) if is_coroutine else call()
        assert message.content == "bee"


# --- calls inside a session ------------------------------------------------------------------------------------------


class Own(StructuredTool):
    """Instrumented here alone."""


interception.keep(Own)
tools.instrument_tool(Own)


def test_a_coroutine_s_call_is_not_that_of_the_function() -> None:
    claimed: list[Any] = []

    class Noting(Session):
        def claim(self, spec: Any, op: str, payload: Any, settings: Any) -> tuple[Reply, bool]:
            claimed.append(payload)
            return Reply(), True

    early = Own.from_function(func=find, coroutine=afind, name="find", description="d", metadata=HINT)
    with active(Noting(runtime.host)):
        assert early.invoke({"word": "bee"}) == asyncio.run(early.ainvoke({"word": "bee"})) == "bee"
    assert len(set(claimed)) == 2


def test_a_tool_that_changes_its_arguments_is_not_asked_early_again() -> None:
    def grow(words: list[str]) -> str:
        """Adds a word."""
        words.append("bee")
        return words[-1]

    early = read_tool(Own.from_function(func=grow, name="grow", description="d", metadata=HINT))
    assert isinstance(early, EarlyTool)

    class Ahead(Session):
        is_unheard = True

    with active(Ahead(runtime.host)):
        call, _ = early.begin("grow", {"words": []}, False, copy_context())
        with pytest.raises(TalkedError):
            call()
    assert not early.is_so_still()
    assert early.tool.invoke({"words": []}) == "bee"
