"""The frameworks' own glue run ahead of time, with canned answers wherever it asks a model or a store.

Prompts, documents, nodes and fusions are never computed by code of ours: frameworks change their helpers from release
to release. A *rehearsal* runs the stock method itself, inside a session of its own, so its leaves ask the rehearsal:

    asked = rehearse(lambda: retriever._retrieve(QueryBundle("x")), embedding=[vector])
    asked[-1].op, asked[-1].payload, asked[-1].settings         # "searching", exactly as the run itself will ask it

Nobody may hear or pay for a rehearsal. It ends where it has no answer left, and where a seam would make the call as it
is (`end_rehearsal`). While one runs, loggers are mute in its context (records.py), and so is what an adapter wraps by
`interception.muted`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from teola_plugin.engines import Completion, Delta, Done, EngineSpec
from teola_plugin.seams import Hold, Reply, active, current

T = TypeVar("T")


class Asked(NamedTuple):
    """One item that a leaf asked for, as its seam saw it."""

    spec: EngineSpec
    op: str
    payload: Any
    settings: Mapping[str, Any]


class _Over(BaseException):
    """Ends a rehearsal. Not an `Exception`: synthesizers and retries swallow those."""


class _Rehearsal:
    """A session whose engines are answers, by operation; each is used once."""

    is_closed = False
    is_unheard = True

    def __init__(self, answers: Mapping[str, Iterable[Any]]) -> None:
        self.asked: list[Asked] = []
        self._answers = {op: iter(values) for op, values in answers.items()}

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        self.asked += [Asked(spec, op, payload, dict(settings)) for payload in payloads]
        return [_reply(self._answer(op)) for _ in payloads]

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        return self.ask(spec, op, [payload], settings)[0], False

    def observe(self, component: object, value: Any) -> None:
        """A rehearsal tells nobody."""

    def enter(self, component: object, value: Any) -> None:
        """Nor where it is."""

    def hold(self, hold: Hold) -> None:
        """What is rehearsed waits for nothing."""

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
    """What the leaves asked for while `act` ran, in order. `answers` by operation; a text where a model is asked.

    Raises: whatever the framework's code raises.
    """
    rehearsal = _Rehearsal(answers)
    with active(rehearsal), contextlib.suppress(_Over):
        act()
    return rehearsal.asked


def outcome(act: Callable[[], T], **answers: Iterable[Any]) -> T:
    """What `act` returns with these answers.

    Raises: LookupError if it asks for anything else, and whatever the framework's code raises.
    """
    try:
        with active(_Rehearsal(answers)):
            return act()
    except _Over as over:
        raise LookupError("the framework's code asked for more than was foreseen") from over


def is_rehearsing() -> bool:
    """A rehearsal runs in this context."""
    return isinstance(current(), _Rehearsal)


def end_rehearsal() -> None:
    """What every seam calls before the original, which would reach a model or a store. Does nothing outside."""
    if is_rehearsing():
        raise _Over
