"""A leaf as a tracer describes it: the engine call that the seam will see once the framework gets there.

A primitive hits only if its engine, operation, settings and payload equal those of the seam. So whatever
can be is found out by letting the framework's own code run into the seam (`rehearse`), not written here
again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import getattr_static
from typing import Any, NamedTuple, TypeVar

import numpy as np

from teola_plugin.engines import Done, EngineSpec
from teola_plugin.seams import Reply, active

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Leaf:
    """`payload` makes an item's payload of what the component gets: a text, a vector, query and document."""

    spec: EngineSpec
    op: str
    settings: Mapping[str, Any]
    payload: Callable[..., Any]


def is_stock(component: object, cls: type, *methods: str) -> bool:
    """It is a `cls` that leaves these methods as they are."""
    if type(component) is cls:
        return True
    return isinstance(component, cls) and all(
        getattr_static(type(component), m) is getattr_static(cls, m) for m in methods
    )


def as_vector(vector: Any) -> Any:
    """The payload of a search: float32, shape (dim,)."""
    return np.asarray(vector, dtype=np.float32)


class Asked(NamedTuple):
    """One item that a leaf asked for, as its seam saw it."""

    spec: EngineSpec
    op: str
    payload: Any
    settings: Mapping[str, Any]


class _Over(BaseException):
    """Ends a rehearsal that has no answer left; no `except Exception` of a framework must stop it."""


class _Rehearsal:
    """A session in which every operation has one answer, and no engine runs."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers
        self.asked: list[Asked] = []

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        self.asked += [Asked(spec, op, payload, settings) for payload in payloads]
        if op not in self.answers:
            raise _Over
        values = self.answers[op]
        replies = [Reply() for _ in payloads]
        for reply, value in zip(replies, values, strict=True):
            reply.put(Done(value))
        return replies

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        return self.ask(spec, op, [payload], settings)[0], False

    def observe(self, component: object, value: Any) -> None:
        """A rehearsal tells nobody."""


def rehearse(act: Callable[[], Any], **answers: Sequence[Any]) -> list[Asked]:
    """What the leaves asked for, up to the first thing that has no answer."""
    rehearsal = _Rehearsal(answers)
    with active(rehearsal), contextlib.suppress(_Over):
        act()
    return rehearsal.asked


def outcome(act: Callable[[], T], **answers: Sequence[Any]) -> T:
    """What the framework's own code makes of these answers, one list of values for each operation.

    Raises: LookupError if it asks for anything else.
    """
    try:
        with active(_Rehearsal(answers)):
            return act()
    except _Over as over:
        raise LookupError("the framework's code asked for more than was foreseen") from over
