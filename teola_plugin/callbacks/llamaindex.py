"""Events of LlamaIndex's runs for the handler.

The callback manager with the handler reports the start (a trace, or the outermost event) and end of a run. The root
dispatcher reports the models within a recorded run (llamaindex_listener.py). A context variable holds the position in
each open run (llamaindex_places.py).

    trace       QUERY   RETRIEVE  embedding          the embedding is part of the retriever
                                  retriever          a retriever around further retrievers is no leaf
                        SYNTHESIZE  chat model       the stream may end long after the trace
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.instrumentation.span import active_span_id

from teola_plugin.callbacks.llamaindex_listener import class_of, listen, of_nodes
from teola_plugin.callbacks.llamaindex_places import go, in_stream, place_of, under_way
from teola_plugin.callbacks.prediction import Recorded
from teola_plugin.callbacks.runs import Call, Place, Runs, Start, text_of
from teola_plugin.runtime.session.session import Session
from teola_plugin.seams import current

log = logging.getLogger(__name__)
P = ParamSpec("P")

ROOTS = (
    CBEventType.QUERY, CBEventType.RETRIEVE, CBEventType.SYNTHESIZE, CBEventType.RERANKING, CBEventType.SUB_QUESTION,
    CBEventType.AGENT_STEP, CBEventType.FUNCTION_CALL,
)  # fmt: skip
"""Events which, outside of any trace, begin a run."""

LEAVES = {CBEventType.RETRIEVE: "retriever", CBEventType.RERANKING: "reranker"}
"""Leaves observed through callbacks too: the dispatcher's event may come before the run begins, and some rerankers have
none.
"""


def _quietly(function: Callable[P, None]) -> Callable[P, None]:
    """Log errors of a callback instead of raising, since a callback manager lets a handler's error break the query."""

    @functools.wraps(function)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception:  # of subclasses of the user's nodes and messages too
            log.warning("TeolaCallbackHandler lost an event", exc_info=True)

    return quiet


@_quietly
def trace_began(runs: Runs, trace_id: str | None) -> None:
    """Record the outermost trace of a manager with the handler."""
    name = _span_name() or str(trace_id)
    above, session = place_of(runs), current()
    if isinstance(session, Session):
        _joined(runs, session, name)
    if above is not None:
        go(runs, above._replace(is_root=False, is_trace=True, above=above))
    elif session is None and (late := in_stream().get(runs)):
        go(runs, late)
    elif session is None:
        listen(runs)
        go(runs, Place(Recorded("", name, runs.breaks, handled=_handled()), is_root=True, is_trace=True))


@_quietly
def trace_ended(runs: Runs) -> None:
    """Record the end of the trace, and of the run except for streams."""
    if isinstance(session := current(), Session) and (call := runs.call_of(session)):
        error = _raised(call.handled)
        call.error = "" if error is None else text_of(error)
        call.is_over = True
    place = under_way.get().get(runs)
    while place is not None and not place.is_trace:
        place = place.above
    if place is None or place.run is None:
        return
    go(runs, place.above)
    if place.is_root and not place.run.ended_s:
        runs.finish(place.run, _raised(place.run.handled))


@_quietly
def event_began(runs: Runs, kind: CBEventType, payload: Mapping[Any, Any], event_id: str) -> None:
    """Record the start of an event between two places; events of models are left out."""
    above, session = place_of(runs), current()
    if isinstance(session, Session):
        call = _joined(runs, session, _span_name() or kind.value)
        call.run_ids += () if call.run_ids else (event_id,)
    if above is None:
        if session is not None or kind not in ROOTS:
            return
        listen(runs)
    elif above.run and not above.run.run_id:
        above.run.run_id = event_id
    if kind in (CBEventType.LLM, CBEventType.EMBEDDING) or event_id in runs.open:
        return  # the dispatcher tells; or the handler was added to the manager twice
    place = runs.begin(_start(kind, payload, above), event_id, above)
    if above is None and place.run:
        place.run.handled = _handled()
    runs.open[event_id] = place = place._replace(above=above)
    go(runs, place)


@_quietly
def event_ended(runs: Runs, kind: CBEventType, payload: Mapping[Any, Any], event_id: str) -> None:
    """Record the end of an event. The context may meanwhile have been copied by tasks."""
    place = runs.open.get(event_id)
    call = runs.call_of(session) if isinstance(session := current(), Session) else None
    handled = place.run.handled if place and place.run else call.handled if call else _handled()
    runs.end(event_id, of_nodes, payload.get(EventPayload.NODES, ()), _raised(handled))
    here = under_way.get().get(runs)
    if place and here and here.run is place.run:
        go(runs, place.above)


def _start(kind: CBEventType, payload: Mapping[Any, Any], above: Place | None) -> Start:
    name = _span_name() or kind.value
    if kind not in LEAVES or (above and above.leaf and above.is_leaf and above.leaf.kind == LEAVES[kind]):
        return Start("chain", name)  # of such a leaf the dispatcher has told already
    given = (payload.get(EventPayload.QUERY_STR, ""), payload.get(EventPayload.NODES, ()))
    is_own_span = name.endswith(("retrieve", "postprocess_nodes"))
    name = class_of(name) if is_own_span else str(payload.get(EventPayload.MODEL_NAME, LEAVES[kind]))
    return Start(LEAVES[kind], name, lambda given: (str(given[0]), *of_nodes(given[1])), given)


def _joined(runs: Runs, session: Session, name: str) -> Call:
    listen(runs)
    call = runs.joined(session, name)
    call.handled = call.handled or _handled()
    return call


def _handled() -> int:
    """Return the id of the exception which the caller handled before anything began."""
    return id(sys.exc_info()[1])


def _raised(handled: int) -> BaseException | None:
    """Return the exception passing through, since callbacks are told of exceptions in only one of many places."""
    error = sys.exc_info()[1]
    return None if id(error) == handled else error


def _span_name() -> str:
    """Return `RetrieverQueryEngine.query` of the open span: the part before the UUID."""
    return (active_span_id.get() or "")[:-37]
