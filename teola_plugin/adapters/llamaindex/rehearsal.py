"""Rehearsals of LlamaIndex's code (see adapters/rehearsal.py): muted callbacks, copies, prompts in pieces.

No event of a rehearsal is heard: meanwhile LlamaIndex's dispatchers and callback managers are mute in the rehearsal's
context (splitting a text is enough to open a span). A rehearsal works on copies: `stand_in` has its own templates,
because `PromptTemplate.partial_format` is not thread-safe.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import numpy as np
from llama_index.core.callbacks import CallbackManager
from llama_index.core.callbacks.base import EventContext
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.schema import NodeWithScore
from llama_index_instrumentation.dispatcher import Dispatcher

from teola_plugin.adapters.interception import intercept, muted
from teola_plugin.graph import Arg, Literal, Ref
from teola_plugin.seams import is_unheard

T = TypeVar("T")

QUERY_MARK = "\u241fquery\u241f"
"""The mark of the user's query while a prompt is cut into pieces. U+241F is no white space, so no splitter strips the
mark.
"""


def install() -> None:
    """Mute dispatchers and callback managers in rehearsals. Idempotent."""
    for method in ("event", "span_enter", "span_exit", "span_drop"):
        intercept(Dispatcher, method, muted(None))
    for method, answer in {"on_event_start": "", "on_event_end": None, "start_trace": None, "end_trace": None}.items():
        intercept(CallbackManager, method, muted(answer))
    for method in ("event", "as_trace"):
        intercept(CallbackManager, method, _muted_block)


def _muted_block(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper that does not mark errors as reported where callbacks are muted.

    The framework's own run gets the same error objects.
    """

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_unheard():
            return original(self, *args, **kwargs)
        kind = args[0] if args else kwargs.get("event_type")
        return nullcontext(EventContext(self, kind, kwargs.get("event_id")))  # type: ignore[arg-type]

    return method


def stand_in(component: T, **changes: Any) -> T:
    """Return a shallow copy with its own templates, silent on the console, with `changes` to its attributes."""
    double = copy.copy(component)
    for name, value in vars(component).items():
        if isinstance(value, BasePromptTemplate):
            setattr(double, name, copy.deepcopy(value))
    for name, value in {"_verbose": False, **changes}.items():
        if name in vars(double):
            setattr(double, name, value)
    return double


def fresh(nodes: Sequence[NodeWithScore]) -> list[NodeWithScore]:
    """Return copies that the framework's code may write to: scores, metadata and text, but not deeper."""
    return [
        NodeWithScore(node=n.node.model_copy(update={"metadata": dict(n.node.metadata or {})}), score=n.score)
        for n in nodes
    ]


def pieces(text: str, mark: str, name: str) -> tuple[Arg, ...]:
    """Return the arguments of a prefilling: `text` cut at each mark, with a reference to `name` for each mark."""
    args: list[Arg] = []
    for at, piece in enumerate(text.split(mark)):
        args += [Ref(name)] if at else []
        args += [Literal(piece)] if piece else []
    return tuple(args)


ANY_VECTOR = np.zeros(1, dtype=np.float32)
"""A vector for rehearsals with a canned search."""
