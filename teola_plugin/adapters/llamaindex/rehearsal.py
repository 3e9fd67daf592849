"""The framework's own glue run ahead of time, with canned answers wherever it asks a model or a store.

Prompts, node lists and fusions are never computed by code of ours: LlamaIndex changes its helpers from release to
release. A *rehearsal* runs the stock method itself, inside a session of its own, so its leaves ask the rehearsal:

    asked = rehearse(lambda: retriever._retrieve(QueryBundle("x")), embedding=[vector])
    asked[-1].op, asked[-1].payload, asked[-1].settings         # "searching", exactly as the run itself will ask it

An answer that is not known yet is a *mark*. A prompt without a mark is final; one with a mark is known up to it. Where
no answer makes sense, the rehearsal ends there (`rehearse` returns what was asked so far).

Nobody may hear a rehearsal: while one runs, LlamaIndex's dispatchers and callback managers and all loggers are mute in
its context (splitting a text is enough to open a span, and a chunk too long for it to log a warning). It works on
copies: `stand_in` has its own templates, because `PromptTemplate.partial_format` is not thread-safe.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from llama_index.core.callbacks import CallbackManager
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.schema import NodeWithScore
from llama_index_instrumentation.dispatcher import Dispatcher

from teola_plugin.engines import Completion, Delta, Done, EngineSpec
from teola_plugin.graph import Arg, Literal, Ref
from teola_plugin.seams import Reply, active, instrument

T = TypeVar("T")

MARK = "\u241fanswer\u241f"
"""Stands for an answer that no model has written yet. U+241F is no white space, so no splitter strips it."""

QUERY_MARK = "\u241fquery\u241f"
"""Stands for the user's query while a prompt is taken apart into its pieces."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One item that a leaf asked for, as its seam saw it."""

    spec: EngineSpec
    op: str
    payload: Any
    settings: Mapping[str, Any]

    @property
    def is_final(self) -> bool:
        """It does not hang on an answer that is not known yet."""
        return MARK not in str(self.payload)

    def known_prefix(self) -> str:
        """The text before the first unknown answer."""
        return str(self.payload).split(MARK, 1)[0]


class _Over(BaseException):
    """Ends a rehearsal. Not an `Exception`: synthesizers and retries swallow those."""


class _Rehearsal:
    """A session whose engines are lists of answers, by operation."""

    is_rehearsal = True

    def __init__(self, answers: Mapping[str, Sequence[Any]]) -> None:
        self.asked: list[Asked] = []
        self._answers = {op: iter(values) for op, values in answers.items()}

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        asked = [Asked(spec, op, payload, dict(settings)) for payload in payloads]
        self.asked += asked
        return [_reply(self._answer(a)) for a in asked]

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        return self.ask(spec, op, [payload], settings)[0], False

    def observe(self, component: object, value: Any) -> None:
        """A rehearsal tells nobody."""

    def _answer(self, asked: Asked) -> Any:
        for value in self._answers.get(asked.op, ()):
            return value
        if asked.op == "decoding":
            return MARK
        if asked.op == "partial_prefilling":
            return None
        raise _Over


def _reply(value: Any) -> Reply:
    reply = Reply()
    if isinstance(value, str):
        reply.put(Delta(str(value)))
        value = Completion(value, pieces=(value,))
    reply.put(Done(value))
    return reply


def rehearse(act: Callable[[], Any], **answers: Sequence[Any]) -> list[Asked]:
    """What the leaves were asked while `act` ran, in order. `answers` by operation; a text where a model is asked.

    Raises: whatever the framework's code raises.
    """
    return _perform(act, answers)[0]


def outcome(act: Callable[[], T], **answers: Sequence[Any]) -> T:
    """What `act` returns with these answers.

    Raises: LookupError if it asked for more than that, and whatever the framework's code raises.
    """
    value = _perform(act, answers)[1]
    if isinstance(value, _Over):
        raise LookupError("the framework's code asked for more than was foreseen") from value
    return value  # type: ignore[no-any-return]


def _perform(act: Callable[[], Any], answers: Mapping[str, Sequence[Any]]) -> tuple[list[Asked], Any]:
    rehearsal = _Rehearsal(answers)
    value: Any
    with active(rehearsal), quiet():
        try:
            value = _drained(act())
        except _Over as over:
            value = over
    return rehearsal.asked, value


def _drained(value: Any) -> Any:
    """A stream asks its model only when it is read."""
    stream = getattr(value, "response_gen", value)
    if isinstance(stream, Generator):
        for _ in stream:
            pass
    return value


# --- silence ---------------------------------------------------------------------------------------------------------

_is_quiet: ContextVar[bool] = ContextVar("teola_llamaindex_is_quiet", default=False)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No span, event, callback or log record leaves this context."""
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)


def _mutable(answer: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            return answer if _is_quiet.get() else original(*args, **kwargs)

        return method

    return wrapper


def install() -> None:
    """Make dispatchers, callback managers and loggers heed `quiet`. Idempotent."""
    for method in ("event", "span_enter", "span_exit", "span_drop"):
        instrument(Dispatcher, method, _mutable(None))
    for method, answer in {"on_event_start": "", "on_event_end": None, "start_trace": None, "end_trace": None}.items():
        instrument(CallbackManager, method, _mutable(answer))
    instrument(logging.Logger, "handle", _mutable(None))


# --- copies and pieces -----------------------------------------------------------------------------------------------


def stand_in(component: T, **changes: Any) -> T:
    """A shallow copy with templates of its own, silent on the console, with `changes` to its attributes."""
    double = copy.copy(component)
    for name, value in vars(component).items():
        if isinstance(value, BasePromptTemplate):
            setattr(double, name, copy.deepcopy(value))
    for name, value in {"_verbose": False, **changes}.items():
        if name in vars(double):
            setattr(double, name, value)
    return double


def fresh(nodes: Sequence[NodeWithScore]) -> list[NodeWithScore]:
    """Copies that the framework's code may write to: scores, metadata and text, but not deeper."""
    return [
        NodeWithScore(node=n.node.model_copy(update={"metadata": dict(n.node.metadata or {})}), score=n.score)
        for n in nodes
    ]


def pieces(text: str, mark: str, name: str) -> tuple[Arg, ...]:
    """The arguments of a prefilling: `text` cut at each mark, which is a reference to `name`."""
    args: list[Arg] = []
    for at, piece in enumerate(text.split(mark)):
        args += [Ref(name)] if at else []
        args += [Literal(piece)] if piece else []
    return tuple(args)


ANY_VECTOR = np.zeros(1, dtype=np.float32)
"""For a rehearsal whose search is canned."""
