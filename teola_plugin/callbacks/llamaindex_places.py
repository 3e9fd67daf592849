"""Where this context is in each run under way.

LlamaIndex's own parent ids get mixed up where queries run at once. Ours come from a context variable, which LlamaIndex
hands on to its tasks and threads. A stream is read later, in any context: it is known by its frame.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import AsyncGenerator, Generator, Mapping
from contextvars import ContextVar
from typing import Any

from teola_plugin.callbacks.runs import Place, Runs

under_way: ContextVar[Mapping[Runs, Place]] = ContextVar("teola_places", default={})  # noqa: B039 - never changed
"""Also of runs that are over, where a task was left over from them."""


def place_of(runs: Runs) -> Place | None:
    """Where this context is in a run of this handler that is not over."""
    place = under_way.get().get(runs)
    if place is None or place.run is None or (place.run.ended_s and not place.is_late):
        return None
    return place


def go(runs: Runs, place: Place | None) -> None:
    """This context is there now; None is outside of that handler's runs."""
    others = {other: at for other, at in under_way.get().items() if other is not runs}
    under_way.set(others if place is None else {**others, runs: place})


# --- streams ---------------------------------------------------------------------------------------------------------

_streams: dict[int, tuple[weakref.ref[Any], Mapping[Runs, Place]]] = {}
"""What synthesizers returned, by id: some ask their model only when it is read, which may be anywhere."""


def remember(stream: Any) -> None:
    """Who reads this stream is where this context is now."""
    places = {runs: Place(at.run, is_trace=True, is_late=True) for runs in under_way.get() if (at := place_of(runs))}
    if not places or not isinstance(stream, Generator | AsyncGenerator):
        return
    key = id(stream)
    _streams[key] = (weakref.ref(stream, lambda _: _streams.pop(key, None)), places)
    for place in places.values():
        if place.run:
            place.run.stream = _streams[key][0]


def in_stream() -> Mapping[Runs, Place]:
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
