"""The interface between reader and adapters: uses of the frameworks' objects, and the requests of each use."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from teola_plugin.adapters.reader.values import Opaque
from teola_plugin.engines import EngineSpec

Run = Any
"""A `run.Run`, which is made of asks."""

NOT_MINE: Any = object()
"""The result of a hook for objects that the adapter does not know."""

TOLD = "told"
"""The operation of a request that never runs ahead: the framework's own run reports the value."""


@dataclass(frozen=True, slots=True)
class Round:
    """One of several calls of a component at one place of a program, as the source of requests: see `Ask.gates`."""

    component: Hashable
    number: int


@dataclass(frozen=True, slots=True)
class Request:
    """A request of an engine, as the framework's run will make it, and the use of the reply.

    `key` tells requests apart: equal requests have equal keys. `value` turns the engine's reply into the value that the
    framework returns to the program, and may raise the framework's errors. `holds`: see `values.Unknown`.
    `may_raise`: `value` may raise for some replies. `source`: the component that the program asks, or a `Round` of it.

    `act`: replaces the request of an engine (for a retriever, or a tool that only reads) by a function that runs beside
    the call, inside of the session. The result replaces the engine's reply. `is_async`: `act` is a coroutine function.
    `op` is "act", unless the function makes a single request, that of `spec`, `op`, `payload` and `settings`.
    `may_pass(self, other)`: whether the request may be sent while an earlier one is under way (None: any of them).
    `shares`: `act` makes one request, and returns objects of the component's own, which the program may change.
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
    may_pass: Callable[[Request, Request], bool] | None = None
    shares: bool = False

    @property
    def has_own_requests(self) -> bool:
        """Whether the requests of engines are made inside, and are not this request."""
        return self.act is not None or self.op == TOLD


@dataclass(slots=True)
class Ask:
    """A request that an evaluation found, the n-th of the key.

    `gates`: the sources of operations before the request that may raise, except replies to the same component at the
    same place, and replies to requests of earlier rounds of a loop: a loop that asks a judge about each item is read as
    a batch of a chain, which LangChain asks at once whatever the replies. Operations of the same round that may raise
    do count: no second model is asked behind a reply that is no JSON. `is_possible`: the request stands on a path that
    may not be taken. `mark`: see `trace.Asides.when_asked`.
    `where`: see `run.Run`.
    """

    request: Request
    number: int
    gates: frozenset[Hashable]
    is_possible: bool
    mark: Any = None
    where: Hashable = None

    @property
    def key(self) -> tuple[Hashable, int]:
        """The identity of the ask within an evaluation."""
        return self.request.key, self.number

    @property
    def is_certain(self) -> bool:
        """Whether the program makes the request, unless an engine fails."""
        return not (self.is_possible or self.gates)


class Asker(Protocol):
    """An adapter's knowledge of the framework's objects. Each hook returns NOT_MINE for unknown objects."""

    def attribute(self, run: Run, owner: Opaque, name: str) -> Any:
        """Return an attribute of a framework's object."""
        ...

    def call(self, run: Run, callee: Opaque, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return the result of a call of a framework's object or function."""
        ...

    def construct(self, run: Run, cls: type, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return a new object of a framework's class."""
        ...

    def combine(self, run: Run, left: Any, right: Any) -> Any:
        """Return the result of `left | right`."""
        ...


class Nobody:
    """An asker that knows no objects."""

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
