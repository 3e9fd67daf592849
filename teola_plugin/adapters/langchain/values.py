"""Symbolic values: inputs and outputs of components while a pipeline is only being read.

    Root        the caller's input, whose keys are taken separately
    Record      a dict with known fields, and perhaps the unknown rest of another value
    Value       a value of the graph; in a map at `level`, an item of the value
    Constant    a value, the same in every call
    Prompt      a template and its variables: known piece by piece, before the whole text

Reading is exact or not at all: `Untraceable` leaves the component to the framework, under a stable code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.prompts import BasePromptTemplate

from teola_plugin.graph import Ref

Holds = Literal["any", "text", "message", "documents", "prompt"]
"""The known type of a value. `message`: a chat model's reply, of which the graph has the text."""


@dataclass(frozen=True, slots=True)
class Value:
    """The graph's value `name`, `depth` lists deep; inside `level` maps, the items at that level."""

    name: str
    depth: int = 0
    level: int = 0
    holds: Holds = "any"

    @property
    def ref(self) -> Ref:
        return Ref(self.name, star=self.level > 0)

    @property
    def is_list(self) -> bool:
        return self.depth > self.level


@dataclass(frozen=True, slots=True)
class Constant:
    """A value known when the pipeline is read."""

    value: Any


@dataclass(frozen=True, slots=True)
class Root:
    """The input of the whole pipeline."""


@dataclass(frozen=True, slots=True)
class Record:
    """A dict; `rest` (a dict too) has the keys outside `fields`.

    `whole` makes the whole dict, where joining `rest` and `fields` would not give the same.
    """

    fields: Mapping[str, Symbol] = field(default_factory=dict)
    rest: Root | Value | None = None
    whole: Callable[[], Value] | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """The result of `template.format_prompt(**variables)`."""

    template: BasePromptTemplate[Any]
    variables: Mapping[str, Symbol]


Symbol = Value | Constant | Root | Record | Prompt


class Untraceable(Exception):
    """The component is left to the framework: `code` (codes.py), details, and a hint for the user."""

    def __init__(self, code: str, detail: str = "", hint: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.detail = detail
        self.hint = hint
