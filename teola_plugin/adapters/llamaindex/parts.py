"""The parts of a pipeline that are read by themselves: what its own run leads to, and which of them, nobody foresees.

A router chooses among engines, an agent among tools, a workflow runs functions of the user's. Where such a run comes to
a part, an engine, retriever or synthesizer that can be read, it says so (`entered`), and what runs ahead of that part
begins:

    router.query -> selector -> engine 2 .query   --enter(engine 2)-->   the graph of engine 2, with this query

What a graph stands for is not entered again inside of it: its retriever, its synthesizer, the tools of its
sub-questions.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from teola_plugin.adapters.llamaindex.entries import Entry
from teola_plugin.seams import current, inside
from teola_plugin.trace import Asides, Traced


@dataclass(frozen=True, slots=True)
class Part:
    """`traced` for calls, and for calls from a coroutine. `covered`: ids of the components it stands for.

    `ahead`: those of them that run ahead by their own code, and are parts there.
    """

    component: Any
    traced: Traced
    atraced: Traced
    covered: frozenset[int]
    ahead: frozenset[int] = frozenset()


_parts: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""The components that are a part of some pipeline, by id: those of pydantic have no hash."""

_covered: dict[int, frozenset[int]] = {}
_here: ContextVar[frozenset[int]] = ContextVar("teola_covered", default=frozenset())


def part_of(component: object) -> Any | None:
    """The component, or the one that it is a twin of, if a run of it is to be told."""
    if not _parts:
        return None
    for each in (component, original_of(component)):
        if _parts.get(id(each)) is each and id(each) not in _here.get():
            return each
    return None


def original_of(component: object) -> object:
    """What a twin is the twin of; any other component is its own."""
    return vars(type(component)).get("__teola_twin_of__", component)


@contextlib.contextmanager
def entered(component: object, entry: Entry) -> Iterator[None]:
    """The run of a part begins, in the session of the call, if there is one."""
    session = current()
    front = session.enter(component, entry) if session else None
    if front is None:
        yield
        return
    token = _here.set(_here.get() | _covered.get(id(component), frozenset()))
    try:
        with inside(front):
            yield
    finally:
        _here.reset(token)


class Parts:
    """Implements `trace.Follower`, for all calls of one pipeline: there is nothing to remember of a call."""

    is_beside = True

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = {id(part.component): part for part in parts}
        for number, part in self._parts.items():
            if number not in _covered:
                weakref.finalize(part.component, _covered.pop, number, None).atexit = False
            _parts[number], _covered[number] = part.component, part.covered

    def follow(self, value: Any) -> Parts:
        """See `trace.Traced.follow`."""
        return self

    def tell(self, component: object, value: Any, asides: Asides) -> tuple[Traced, Mapping[str, Any]] | None:
        """See `trace.Follower.tell`."""
        part = self._parts.get(id(component))
        if part is None or not isinstance(value, Entry):
            return None
        traced = part.atraced if value.is_async else part.traced
        inputs = traced.bind(value)
        return (traced, inputs) if inputs.keys() - {"is_async"} else None
