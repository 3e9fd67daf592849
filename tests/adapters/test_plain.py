"""Plain data: what a function that was proven pure may be handed ahead of time."""

from __future__ import annotations

import datetime
import enum
import io
import queue
import uuid
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult, Generation, LLMResult
from langchain_core.prompt_values import ChatPromptValue
from langchain_core.runnables.utils import AddableDict
from llama_index.core.schema import NodeWithScore, TextNode
from pydantic import BaseModel, ConfigDict, PrivateAttr, computed_field, field_validator

from teola_plugin.adapters.plain import is_plain, on_plain_data

SEEN: list[Any] = []
T = TypeVar("T")


class Kind(enum.Enum):
    LONG = "long"


class Word(str, enum.Enum):  # noqa: UP042 (as many of them are)
    LONG = "long"


class Flags(enum.IntFlag):
    ONE = 1


@dataclass(frozen=True, order=True)
class Row:
    text: str
    parts: Any = field(default_factory=list)


class Pair(NamedTuple):
    left: Any
    right: int = 0


Point = namedtuple("Point", "x y")


class Plan(BaseModel):
    model_config = ConfigDict(extra="allow")
    _cost: int = PrivateAttr(0)
    steps: list[Any] = []


class LongPlan(Plan):
    kind: Kind = Kind.LONG


class Of(BaseModel, Generic[T]):
    item: T


@pytest.mark.parametrize(
    "value",
    [
        None, 1, 1.5, "a", b"a", [1, ["a"]], ("a", {"b": {1}}), {"a": {("b", 1): None}}, deque([1]), Counter("ab"),
        OrderedDict(a=1), AddableDict(a=[1]), np.zeros((2, 2)), np.float32(1), Decimal(1), uuid.uuid4(),
        datetime.datetime.now(), Document("text", metadata={"n": 1}), HumanMessage("a"), AIMessageChunk("a"),
        AIMessage("a", tool_calls=[{"name": "f", "args": {}, "id": "1"}]), AIMessage("a").text,
        ChatPromptValue(messages=[HumanMessage("a")]), LLMResult(generations=[[Generation(text="a")]]),
        ChatResult(generations=[ChatGeneration(message=AIMessage("a"))]), NodeWithScore(node=TextNode(text="a")),
        Kind.LONG, Word.LONG, Flags.ONE, Row("a"), Pair(1), Point(1, 2), Plan(steps=[1], more=2), LongPlan(),
        Of[int](item=1), [Row("a", [Plan()])],
    ],
)  # fmt: skip
def test_plain(value: Any) -> None:
    assert is_plain(value)


class Client:
    def get(self, key: Any) -> Any:
        SEEN.append(key)


class OwnDict(dict[Any, Any]):
    def get(self, key: Any, default: Any = None) -> Any:
        SEEN.append(key)


class Speaking(enum.Enum):
    ONE = 1

    def get(self) -> None: ...


@dataclass
class Saving:
    text: str

    def get(self) -> None: ...


@dataclass
class Computed:
    text: str

    @property
    def upper(self) -> str:
        return self.text.upper()


@dataclass
class Calling:
    text: str
    find = partial(print)


@dataclass(slots=True)
class Slotted:
    """Its fields would have to be looked up one by one."""

    text: str


class Validated(Plan):
    @field_validator("steps")
    @classmethod
    def look(cls, value: Any) -> Any:
        return value


class Computing(Plan):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def length(self) -> int:
        return len(self.steps)


@pytest.mark.parametrize(
    "value",
    [
        object(), Client(), OwnDict(), defaultdict(list), iter([1]), (c for c in "a"), queue.Queue(), io.StringIO(),
        print, Row, Path("a"), [Client()], {"a": [Client()]}, {Client(): 1}, np.array([Client()]), Speaking.ONE,
        Saving("a"), Computed("a"), Calling("a"), Slotted("a"), Validated(), Computing(), Row("a", Client()),
        Pair(Client()),
        Plan(steps=[Client()]), Plan(more=Client()), Of[Any](item=Client()), Document("a", metadata={"a": Client()}),
        AIMessage("a", additional_kwargs={"client": Lock()}),
    ],
)  # fmt: skip
def test_not_plain(value: Any) -> None:
    assert not is_plain(value)


def test_what_holds_itself_ends() -> None:
    loop: list[Any] = []
    loop += [loop, loop]
    assert not is_plain(loop)


def test_a_function_on_plain_data() -> None:
    get = on_plain_data(lambda x, key: x.get(key))
    assert get({"a": 1}, "a") == 1
    with pytest.raises(LookupError, match="plain"):
        get(Client(), "a")
    assert SEEN == []
