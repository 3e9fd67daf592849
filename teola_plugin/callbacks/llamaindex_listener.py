"""Events of LlamaIndex's models for a handler, also of models whose own callback managers lack the handler.

LlamaIndex's root dispatcher reports the events. One event handler of ours is registered there from the first recorded
run until the last `TeolaCallbackHandler` is gone. While no run is recorded, the event handler only checks one context
variable.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core.instrumentation import root_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.embedding import EmbeddingEndEvent, EmbeddingStartEvent
from llama_index.core.instrumentation.events.exception import ExceptionEvent
from llama_index.core.instrumentation.events.llm import (
    LLMChatEndEvent,
    LLMChatStartEvent,
    LLMCompletionEndEvent,
    LLMCompletionStartEvent,
)
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.instrumentation.events.span import SpanDropEvent  # type: ignore[attr-defined]
from llama_index.core.instrumentation.events.synthesis import SynthesizeEndEvent
from pydantic import PrivateAttr

from teola_plugin.callbacks import runs as kept
from teola_plugin.callbacks.llamaindex_places import go, in_stream, place_of, remember, under_way
from teola_plugin.callbacks.prediction import Recorded
from teola_plugin.callbacks.runs import Call, Place, Runs, Start, leaf_at, text_of
from teola_plugin.runtime.session.session import Session
from teola_plugin.seams import current

Texts = tuple[str, ...]


class Listener(BaseEventHandler):
    """The event handler of all models in the process, which keeps the events of recorded runs.

    `_open`: leaves by span and kind, in order of start, each with its place in the runs of all handlers.
    """

    _open: OrderedDict[tuple[str | None, str], list[list[tuple[Runs, Place]]]] = PrivateAttr(
        default_factory=OrderedDict
    )

    @classmethod
    def class_name(cls) -> str:
        """Return the name in serialised handlers."""
        return "TeolaListener"

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        """Handle an event. The dispatcher ignores errors."""
        if begun := _BEGINS.get(type(event)):
            self._begin(event, *begun)
        elif isinstance(event, SynthesizeEndEvent):
            remember(getattr(event.response, "response_gen", None))
        elif ended := _ENDS.get(type(event)):
            self._end(event, *ended)
        elif isinstance(event, SpanDropEvent | ExceptionEvent):
            self._fail(event, getattr(event, "exception", None))

    def _begin(self, event: Any, kind: str, read: Callable[[Any], Texts]) -> None:
        start = Start(kind, class_of(event.span_id[:-37]) if event.span_id else kind, read, event)
        places: list[tuple[Runs, Place]] = []
        here = under_way.get()
        for runs, found in {**in_stream(), **here}.items():
            above = place_of(runs) or found
            if above.run is None or (above.run.ended_s and not above.is_late):
                continue  # a task outlives its run
            around = above.leaf
            if kind == "embedding" and around and around.kind == "retriever" and not around.is_around:
                places.append((runs, Place(above.run, leaf=around, above=above)))
                continue
            places.append((runs, leaf_at(above, start)._replace(above=above, is_late=above.is_late)))
            # Nothing runs inside of an embedding, and a batch begins several before the first ends.
            if kind != "embedding" and runs in here:
                go(*places[-1])
        if places:
            self._open.setdefault((event.span_id, kind), []).append(places)
            if len(self._open) > kept.MAX_OPEN:
                self._open.popitem(last=False)

    def _fail(self, event: Any, error: BaseException | None) -> None:
        is_closed = isinstance(error, GeneratorExit)  # a stream closed by the reader
        of_streams: list[Recorded | Call] = []
        for kind in _KINDS:
            for places in self._open.pop((event.span_id, kind), ()):
                _leave(places, (), failed=not is_closed)
                of_streams += [place.run for _, place in places if place.run and place.run.ended_s]
        if isinstance(session := current(), Session):
            of_streams += [call for call in session.listeners if isinstance(call, Call) and call.is_over]
        for run in () if is_closed else of_streams:
            run.error = text_of(error) if error else run.error or event.err_str

    def _end(self, event: Any, kind: str, given: Callable[[Any], Texts], said: Callable[[Any], Texts]) -> None:
        waiting = self._open.get((event.span_id, kind))
        if not waiting:
            return
        places = waiting.pop(0)
        if not waiting:
            self._open.pop((event.span_id, kind), None)
        for _, place in places:
            if place.run and place.leaf and (texts := given(event)):
                place.run.give(place.leaf, texts)
        _leave(places, said(event), failed=False)


def _leave(places: Sequence[tuple[Runs, Place]], said: Texts, *, failed: bool) -> None:
    for runs, place in places:
        if place.run and place.leaf and place.is_leaf:
            place.run.end(place.leaf, said, failed=failed)
        if under_way.get().get(runs) is place:
            go(runs, place.above)


_listener = Listener()
_listening: set[int] = set()


def listen(runs: Runs) -> None:
    """Listen from now on, until the handler of the runs is gone."""
    if not any(handler is _listener for handler in root_dispatcher.event_handlers):
        root_dispatcher.add_event_handler(_listener)
    if id(runs) not in _listening:
        _listening.add(id(runs))
        weakref.finalize(runs, _forget, id(runs)).atexit = False


def _forget(number: int) -> None:
    """Remove the listener with a new list of handlers, since other threads may be iterating the old list."""
    _listening.discard(number)
    if not _listening:
        others = [handler for handler in root_dispatcher.event_handlers if handler is not _listener]
        root_dispatcher.event_handlers = others


def class_of(span_name: str) -> str:
    """Return `RetrieverQueryEngine` of `RetrieverQueryEngine.query`."""
    return span_name.split(".")[0]


# --- texts -----------------------------------------------------------------------------------------------------------


def _of_query(event: RetrievalStartEvent) -> Texts:
    query = event.str_or_query_bundle
    return (query,) if isinstance(query, str) else (query.query_str, *(query.custom_embedding_strs or ()))


def of_nodes(nodes: Any) -> Texts:
    """Return the nodes' texts without metadata."""
    return tuple(node.get_content() for node in nodes)


def _of_rerank(event: ReRankStartEvent) -> Texts:
    return (str(getattr(event.query, "query_str", event.query)), *of_nodes(event.nodes))


def _of_messages(event: LLMChatStartEvent) -> Texts:
    return tuple(str(message.content or "") for message in event.messages)


def _of_answer(event: LLMChatEndEvent) -> Texts:
    """Return the answer's text; nothing recognizable if the answer calls tools, whose arguments may be anything."""
    if event.response is None:
        return ()
    message = event.response.message
    calls = any(getattr(block, "block_type", "") == "tool_call" for block in getattr(message, "blocks", ()))
    return () if calls or message.additional_kwargs.get("tool_calls") else (str(message.content or ""),)


def _of_completion(event: LLMCompletionEndEvent) -> Texts:
    response: Any = event.response  # None of a stream without pieces, whatever its type says
    return () if response is None else (response.text,)


_BEGINS: dict[type, tuple[str, Callable[[Any], Texts]]] = {
    LLMChatStartEvent: ("chat model", _of_messages),
    LLMCompletionStartEvent: ("llm", lambda event: (event.prompt,)),
    EmbeddingStartEvent: ("embedding", kept.nothing),
    RetrievalStartEvent: ("retriever", _of_query),
    ReRankStartEvent: ("reranker", _of_rerank),
}
"""The kind of leaf, and a function for its input texts."""

_ENDS: dict[type, tuple[str, Callable[[Any], Texts], Callable[[Any], Texts]]] = {
    LLMChatEndEvent: ("chat model", kept.nothing, _of_answer),
    LLMCompletionEndEvent: ("llm", kept.nothing, _of_completion),
    EmbeddingEndEvent: ("embedding", lambda event: tuple(event.chunks), kept.nothing),
    RetrievalEndEvent: ("retriever", kept.nothing, lambda event: of_nodes(event.nodes)),
    ReRankEndEvent: ("reranker", kept.nothing, lambda event: of_nodes(event.nodes)),
}
"""The kind of leaf, a function for inputs known only at the end, and a function for its output. Vectors are not
recognizable.
"""

_KINDS = tuple(kind for kind, _ in _BEGINS.values())
