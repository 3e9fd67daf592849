"""The position of the current context in each open run.

LlamaIndex's own parent ids get mixed up between concurrent queries. Our parents come from a context variable, which
LlamaIndex copies to its tasks and threads. A stream is read later, in any context, and is recognized by its frame.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import AsyncGenerator, Generator, Mapping
from contextvars import ContextVar
from typing import Any

from teola_plugin.callbacks.runs import Place, Runs

under_way: ContextVar[Mapping[Runs, Place]] = ContextVar("teola_places", default={})  # noqa: B039 - never changed
"""The places by run; may include ended runs, where a task outlives its run."""


def place_of(runs: Runs) -> Place | None:
    """Return the current place in an open run of the handler."""
    place = under_way.get().get(runs)
    if place is None or place.run is None or (place.run.ended_s and not place.is_late):
        return None
    return place


def go(runs: Runs, place: Place | None) -> None:
    """Move the current context to a place; None is outside of the handler's runs."""
    others = {other: at for other, at in under_way.get().items() if other is not runs}
    under_way.set(others if place is None else {**others, runs: place})


# --- streams ---------------------------------------------------------------------------------------------------------

_streams: dict[int, tuple[weakref.ref[Any], Mapping[Runs, Place]]] = {}
"""Streams returned by synthesizers, by id: some call their model only when read, in any context."""


def remember(stream: Any) -> None:
    """Store the current place for the reader of the stream."""
    places = {runs: Place(at.run, is_trace=True, is_late=True) for runs in under_way.get() if (at := place_of(runs))}
    if not places or not isinstance(stream, Generator | AsyncGenerator):
        return
    key = id(stream)
    _streams[key] = (weakref.ref(stream, lambda _: _streams.pop(key, None)), places)
    for place in places.values():
        if place.run:
            place.run.stream = _streams[key][0]


def in_stream() -> Mapping[Runs, Place]:
    """Return the places of the stream being read here, found by its frame on the stack."""
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
