"""Classes that random programs use."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

from pydantic import BaseModel


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Failure(Exception):
    pass


class Note(BaseModel):
    title: str
    rank: int = 0
    notes: list[str] = []


class Pair(NamedTuple):
    text: str
    number: int


@dataclass
class Person:
    name: str
    score: int
    tags: list[str] = field(default_factory=list)

    def greet(self, other: str) -> str:
        return f"{self.name} greets {other}"

    @property
    def is_good(self) -> bool:
        return self.score > 1


class State(TypedDict):
    text: str
    docs: list[str]
