"""What the reader asks the adapters: how their frameworks' objects are used, and what a use of them asks for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from teola_plugin.adapters.reader.values import Opaque
from teola_plugin.engines import EngineSpec

Run = Any
"""A `run.Run`, which is made of asks."""

NOT_MINE: Any = object()
"""What a hook answers to what it does not know."""


@dataclass(frozen=True, slots=True)
class Round:
    """One of several calls of a component at one place of a program, as the source of requests: see `Ask.gates`."""

    component: Hashable
    number: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request of an engine, as the framework's own run will make it, and what becomes of its reply.

    `key` tells requests apart: equal for two that ask for the same. `value` makes of the engine's reply what the
    framework hands to the program; it may raise what the framework would raise. `holds`: see `values.Unknown`.
    `may_raise`: `value` may raise for some reply. `source`: the component that the program asks, or a `Round` of it.

    `act`: what is not one request of one engine (a retriever, a tool that only reads): a function that runs beside the
    call, inside its session, and whose result takes the place of the engine's reply. `is_async`: a coroutine function.
    """

    key: Hashable
    spec: EngineSpec
    op: str
    payload: Any
    settings: Mapping[str, Any]
    value: Callable[[Any], Any]
    holds: str | type = "any"
    may_raise: bool = False
    source: Hashable = None
    shown: str = ""
    act: Callable[[], Any] | None = None
    is_async: bool = False


@dataclass(slots=True)
class Ask:
    """A request that an evaluation came to, the n-th of its key.

    `gates`: the sources of what may raise before it, other than replies to the same component at the same place: a loop
    that asks one judge about each of its items is read as a batch, which LangChain asks at once whatever the replies.
    What may raise in the same round does count: the component asks no second model behind a reply that is no JSON.
    `is_possible`: it stands on a path that may not be taken. `mark`: see `trace.Asides.when_asked`. `where`: see
    `run.Run`.
    """

    request: Request
    number: int
    gates: frozenset[Hashable]
    is_possible: bool
    mark: Any = None
    where: Hashable = None

    @property
    def key(self) -> tuple[Hashable, int]:
        """Tells apart the asks of one evaluation."""
        return self.request.key, self.number

    @property
    def is_certain(self) -> bool:
        """The program makes it, unless an engine fails."""
        return not (self.is_possible or self.gates)


class Asker(Protocol):
    """An adapter's knowledge of its framework's objects. Each hook answers NOT_MINE for what it does not know."""

    def attribute(self, run: Run, owner: Opaque, name: str) -> Any:
        """What reading an attribute of a framework's object gives."""
        ...

    def call(self, run: Run, callee: Opaque, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What calling a framework's object or function gives."""
        ...

    def construct(self, run: Run, cls: type, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What making an object of a framework's class gives."""
        ...

    def combine(self, run: Run, left: Any, right: Any) -> Any:
        """What `left | right` gives."""
        ...


@dataclass(frozen=True, slots=True)
class Nobody:
    """An asker that knows no objects."""

    answers: Mapping[Any, Any] = field(default_factory=dict)

    def attribute(self, run: Run, owner: Opaque, name: str) -> Any:
        """See `Asker`."""
        return NOT_MINE

    def call(self, run: Run, callee: Opaque, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """See `Asker`."""
        return NOT_MINE

    def construct(self, run: Run, cls: type, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """See `Asker`."""
        return NOT_MINE

    def combine(self, run: Run, left: Any, right: Any) -> Any:
        """See `Asker`."""
        return NOT_MINE
