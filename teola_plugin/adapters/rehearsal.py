"""The frameworks' own glue run ahead of time, with canned answers wherever the glue asks a model or a store.

Prompts, documents, nodes and fusions are never computed by code of ours: frameworks change their helpers from release
to release. A *rehearsal* runs the stock method itself, inside a session of its own, so its leaves ask the rehearsal:

    asked = rehearse(lambda: retriever._retrieve(QueryBundle("x")), embedding=[vector])
    asked[-1].op, asked[-1].payload, asked[-1].settings         # "searching", exactly as in the run itself

A rehearsal fires no callbacks and costs no requests. A rehearsal ends where no answer is left, and where an
interception would make the call unchanged (`end_rehearsal`). Meanwhile loggers are mute in its context (records.py), as
are the methods that an adapter wraps by `interception.muted`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from teola_plugin.engines import Completion, Delta, Done, EngineSpec
from teola_plugin.seams import Reply, Session, active, current

T = TypeVar("T")


class Asked(NamedTuple):
    """An item requested by a leaf, as seen by the interception."""

    spec: EngineSpec
    op: str
    payload: Any
    settings: Mapping[str, Any]


class _Over(BaseException):
    """The end of a rehearsal. Not an `Exception`: synthesizers and retries swallow exceptions."""


class _Rehearsal(Session):
    """A session whose engines are answers, by operation; each answer is used once."""

    is_unheard = True

    def __init__(self, answers: Mapping[str, Iterable[Any]]) -> None:
        self.asked: list[Asked] = []
        self._answers = {op: iter(values) for op, values in answers.items()}

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        self.asked += [Asked(spec, op, payload, dict(settings)) for payload in payloads]
        return [_reply(self._answer(op)) for _ in payloads]

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        return self.ask(spec, op, [payload], settings)[0], False

    def _answer(self, op: str) -> Any:
        for value in self._answers.get(op, ()):
            return value
        raise _Over


def _reply(value: Any) -> Reply:
    reply = Reply()
    if isinstance(value, str):
        reply.put(Delta(str(value)))
        value = value if isinstance(value, Completion) else Completion(value, pieces=(value,))
    reply.put(Done(value))
    return reply


def rehearse(act: Callable[[], Any], **answers: Iterable[Any]) -> list[Asked]:
    """Return the items that leaves asked for while `act` ran, in order. `answers` by operation; a text for a model.

    Raises: all errors of the framework's code.
    """
    rehearsal = _Rehearsal(answers)
    with active(rehearsal), contextlib.suppress(_Over):
        act()
    return rehearsal.asked


def outcome(act: Callable[[], T], **answers: Iterable[Any]) -> T:
    """Return the result of `act` with these answers.

    Raises: LookupError if `act` asks for anything else, and all errors of the framework's code.
    """
    try:
        with active(_Rehearsal(answers)):
            return act()
    except _Over as over:
        raise LookupError("the framework's code asked for more than was foreseen") from over


def is_rehearsing() -> bool:
    """Whether a rehearsal runs in this context."""
    return isinstance(current(), _Rehearsal)


def end_rehearsal() -> None:
    """End a rehearsal before an interception calls the original, which would reach a model or store. No-op outside."""
    if is_rehearsing():
        raise _Over
