"""What a handler hears of LlamaIndex.

The callback manager that has the handler tells where a run begins (a trace, or the outermost event) and ends. Within a
recorded run, LlamaIndex's root dispatcher tells of the models, also of those whose own managers lack the handler: one
event handler of ours is on it from the first recorded run on, until the last `TeolaCallbackHandler` is gone. It looks
at one context variable and turns to nothing else while no run is recorded.

LlamaIndex's own parent ids get mixed up where queries run at once. Ours come from that context variable, which holds
the place of each run under way in this context; LlamaIndex hands it on to its tasks and threads.

    trace       QUERY   RETRIEVE  embedding          the embedding is part of the retriever
                                  retriever          a retriever with others inside is no leaf
                        SYNTHESIZE  chat model       its stream may end long after the trace
"""

from __future__ import annotations

import functools
import logging
import sys
import weakref
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ParamSpec

from llama_index.core.callbacks.schema import CBEventType, EventPayload
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
from llama_index.core.instrumentation.span import active_span_id
from pydantic import PrivateAttr

from teola_plugin.callbacks import runs as kept
from teola_plugin.callbacks.prediction import Recorded
from teola_plugin.callbacks.runs import Call, Place, Runs, Start, leaf_at, text_of
from teola_plugin.runtime.session import Session
from teola_plugin.seams import current

log = logging.getLogger(__name__)
P = ParamSpec("P")
Texts = tuple[str, ...]

ROOTS = (
    CBEventType.QUERY, CBEventType.RETRIEVE, CBEventType.SYNTHESIZE, CBEventType.RERANKING, CBEventType.SUB_QUESTION,
    CBEventType.AGENT_STEP, CBEventType.FUNCTION_CALL,
)  # fmt: skip
"""An event outside of any trace that begins a run of its own."""

LEAVES = {CBEventType.RETRIEVE: "retriever", CBEventType.RERANKING: "reranker"}
"""Heard through callbacks too: the dispatcher's event may come before the run begins, and some rerankers have none."""

_places: ContextVar[Mapping[Runs, Place]] = ContextVar("teola_places", default={})  # noqa: B039 - never changed


def _quietly(function: Callable[P, None]) -> Callable[P, None]:
    """A callback manager lets what a handler raises break the query; ours must not."""

    @functools.wraps(function)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception:  # of subclasses of the user's nodes and messages too
            log.warning("TeolaCallbackHandler lost an event", exc_info=True)

    return quiet


# --- callbacks -------------------------------------------------------------------------------------------------------


@_quietly
def trace_began(runs: Runs, trace_id: str | None) -> None:
    """A manager with the handler tells of the outermost trace."""
    name = _span_name() or str(trace_id)
    above, session = _place(runs), current()
    if isinstance(session, Session):
        _joined(runs, session, name)
    if above is not None:
        _go(runs, above._replace(is_root=False, is_trace=True, above=above))
    elif session is None and (late := _in_stream().get(runs)):
        _go(runs, late)
    elif session is None:
        _listen(runs)
        _go(runs, Place(Recorded("", name, runs.breaks, handled=_handled()), is_root=True, is_trace=True))


@_quietly
def trace_ended(runs: Runs) -> None:
    """It is over, and so is the run, but for streams."""
    if isinstance(session := current(), Session) and (call := runs.call_of(session)):
        error = _raised(call.handled)
        call.error = "" if error is None else text_of(error)
        call.is_over = True
    place = _places.get().get(runs)
    while place is not None and not place.is_trace:
        place = place.above
    if place is None or place.run is None:
        return
    _go(runs, place.above)
    if place.is_root and not place.run.ended_s:
        runs.finish(place.run, _raised(place.run.handled))


@_quietly
def event_began(runs: Runs, kind: CBEventType, payload: Mapping[Any, Any], event_id: str) -> None:
    """Any event but those of models belongs between two places."""
    above, session = _place(runs), current()
    if isinstance(session, Session):
        call = _joined(runs, session, _span_name() or kind.value)
        call.run_ids += () if call.run_ids else (event_id,)
    if above is None:
        if session is not None or kind not in ROOTS:
            return
        _listen(runs)
    elif above.run and not above.run.run_id:
        above.run.run_id = event_id
    if kind in (CBEventType.LLM, CBEventType.EMBEDDING) or event_id in runs.open:
        return  # the dispatcher tells; or the handler was added to the manager twice
    place = runs.begin(_start(kind, payload, above), event_id, above)
    if above is None and place.run:
        place.run.handled = _handled()
    runs.open[event_id] = place = place._replace(above=above)
    _go(runs, place)


@_quietly
def event_ended(runs: Runs, kind: CBEventType, payload: Mapping[Any, Any], event_id: str) -> None:
    """An event within a run ends where it began, but in a context that tasks may have copied in between."""
    place = runs.open.get(event_id)
    call = runs.call_of(session) if isinstance(session := current(), Session) else None
    handled = place.run.handled if place and place.run else call.handled if call else _handled()
    runs.end(event_id, _of_nodes, payload.get(EventPayload.NODES, ()), _raised(handled))
    here = _places.get().get(runs)
    if place and here and here.run is place.run:
        _go(runs, place.above)


def _start(kind: CBEventType, payload: Mapping[Any, Any], above: Place | None) -> Start:
    name = _span_name() or kind.value
    if kind not in LEAVES or (above and above.leaf and above.is_leaf and above.leaf.kind == LEAVES[kind]):
        return Start("chain", name)  # of such a leaf the dispatcher has told already
    given = (payload.get(EventPayload.QUERY_STR, ""), payload.get(EventPayload.NODES, ()))
    is_own_span = name.endswith(("retrieve", "postprocess_nodes"))
    name = _class_name(name) if is_own_span else str(payload.get(EventPayload.MODEL_NAME, LEAVES[kind]))
    return Start(LEAVES[kind], name, lambda given: (str(given[0]), *_of_nodes(given[1])), given)


def _joined(runs: Runs, session: Session, name: str) -> Call:
    _listen(runs)
    call = runs.joined(session, name)
    call.handled = call.handled or _handled()
    return call


def _handled() -> int:
    """Which exception the caller was handling before anything began."""
    return id(sys.exc_info()[1])


def _raised(handled: int) -> BaseException | None:
    """The exception that passes through here: callbacks are told of it at one of many places only."""
    error = sys.exc_info()[1]
    return None if id(error) == handled else error


# --- places ----------------------------------------------------------------------------------------------------------


def _place(runs: Runs) -> Place | None:
    """Where this context is in a run of this handler that is not over."""
    place = _places.get().get(runs)
    if place is None or place.run is None or (place.run.ended_s and not place.is_late):
        return None
    return place


def _go(runs: Runs, place: Place | None) -> None:
    others = {other: at for other, at in _places.get().items() if other is not runs}
    _places.set(others if place is None else {**others, runs: place})


def _span_name() -> str:
    """`RetrieverQueryEngine.query` of the span that is open: what stands before the UUID."""
    return (active_span_id.get() or "")[:-37]


def _class_name(span_name: str) -> str:
    return span_name.split(".")[0]


# --- streams ---------------------------------------------------------------------------------------------------------

_streams: dict[int, tuple[weakref.ref[Any], Mapping[Runs, Place]]] = {}
"""What synthesizers returned, by id: some ask their model only when it is read, which may be anywhere."""


def _remember(stream: Any) -> None:
    places = {runs: Place(at.run, is_trace=True, is_late=True) for runs in _places.get() if (at := _place(runs))}
    if not places or not isinstance(stream, Generator | AsyncGenerator):
        return
    key = id(stream)
    _streams[key] = (weakref.ref(stream, lambda _: _streams.pop(key, None)), places)
    for place in places.values():
        if place.run:
            place.run.stream = _streams[key][0]


def _in_stream() -> Mapping[Runs, Place]:
    """Where the stream belongs that is being read here: its frame is one of those around us."""
    if not _streams:
        return {}
    frames: dict[int, Mapping[Runs, Place]] = {}
    for reference, places in list(_streams.values()):
        stream = reference()
        frames[id(getattr(stream, "gi_frame", None) or getattr(stream, "ag_frame", None))] = places
    frame = sys._getframe()
    while frame.f_back and id(frame) not in frames:
        frame = frame.f_back
    return frames.get(id(frame), {})


# --- the dispatcher --------------------------------------------------------------------------------------------------


class Listener(BaseEventHandler):
    """Hears of all models of the process, and keeps what belongs to a recorded run.

    `_open`: leaves by their span and kind, first come first, each with its place in the runs of all handlers.
    """

    _open: OrderedDict[tuple[str | None, str], list[list[tuple[Runs, Place]]]] = PrivateAttr(
        default_factory=OrderedDict
    )

    @classmethod
    def class_name(cls) -> str:
        """The name in serialised handlers."""
        return "TeolaListener"

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        """What it raises, the dispatcher ignores."""
        if begun := _BEGINS.get(type(event)):
            self._begin(event, *begun)
        elif isinstance(event, SynthesizeEndEvent):
            _remember(getattr(event.response, "response_gen", None))
        elif ended := _ENDS.get(type(event)):
            self._end(event, *ended)
        elif isinstance(event, SpanDropEvent | ExceptionEvent):
            self._fail(event, getattr(event, "exception", None))

    def _begin(self, event: Any, kind: str, read: Callable[[Any], Texts]) -> None:
        start = Start(kind, _class_name(event.span_id[:-37]) if event.span_id else kind, read, event)
        places: list[tuple[Runs, Place]] = []
        here = _places.get()
        for runs, found in {**_in_stream(), **here}.items():
            above = _place(runs) or found
            if above.run is None or (above.run.ended_s and not above.is_late):
                continue  # what a task left over from a run that is over does
            around = above.leaf
            if kind == "embedding" and around and around.kind == "retriever" and not around.is_around:
                places.append((runs, Place(above.run, leaf=around, above=above)))
                continue
            places.append((runs, leaf_at(above, start)._replace(above=above, is_late=above.is_late)))
            if (
                kind != "embedding" and runs in here
            ):  # nothing runs inside; a batch begins several before the first ends
                _go(*places[-1])
        if places:
            self._open.setdefault((event.span_id, kind), []).append(places)
            if len(self._open) > kept.MAX_OPEN:
                self._open.popitem(last=False)

    def _fail(self, event: Any, error: BaseException | None) -> None:
        is_closed = isinstance(error, GeneratorExit)  # a stream, by its reader
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
        if _places.get().get(runs) is place:
            _go(runs, place.above)


_listener = Listener()
_listening: set[int] = set()


def _listen(runs: Runs) -> None:
    if not any(handler is _listener for handler in root_dispatcher.event_handlers):
        root_dispatcher.add_event_handler(_listener)
    if id(runs) not in _listening:
        _listening.add(id(runs))
        weakref.finalize(runs, _forget, id(runs)).atexit = False


def _forget(number: int) -> None:
    """Other threads may be going through the list of handlers: they keep the old one."""
    _listening.discard(number)
    if not _listening:
        others = [handler for handler in root_dispatcher.event_handlers if handler is not _listener]
        root_dispatcher.event_handlers = others


# --- texts -----------------------------------------------------------------------------------------------------------


def _of_query(event: RetrievalStartEvent) -> Texts:
    query = event.str_or_query_bundle
    return (query,) if isinstance(query, str) else (query.query_str, *(query.custom_embedding_strs or ()))


def _of_nodes(nodes: Any) -> Texts:
    return tuple(node.get_content() for node in nodes)


def _of_rerank(event: ReRankStartEvent) -> Texts:
    return (str(getattr(event.query, "query_str", event.query)), *_of_nodes(event.nodes))


def _of_messages(event: LLMChatStartEvent) -> Texts:
    return tuple(str(message.content or "") for message in event.messages)


def _of_answer(event: LLMChatEndEvent) -> Texts:
    """Nothing that could be recognized if it calls tools, whose arguments may be anything."""
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
"""The kind of leaf, and the texts it was given."""

_ENDS: dict[type, tuple[str, Callable[[Any], Texts], Callable[[Any], Texts]]] = {
    LLMChatEndEvent: ("chat model", kept.nothing, _of_answer),
    LLMCompletionEndEvent: ("llm", kept.nothing, _of_completion),
    EmbeddingEndEvent: ("embedding", lambda event: tuple(event.chunks), kept.nothing),
    RetrievalEndEvent: ("retriever", kept.nothing, lambda event: _of_nodes(event.nodes)),
    ReRankEndEvent: ("reranker", kept.nothing, lambda event: _of_nodes(event.nodes)),
}
"""The kind, what it was given that only its end tells, and what it said. Nobody can recognize a vector."""

_KINDS = tuple(kind for kind, _ in _BEGINS.values())
