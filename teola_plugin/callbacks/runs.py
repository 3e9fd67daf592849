"""The runs kept by a callback handler, for any framework.

A call of an optimized pipeline has a session. The first event within the call registers the handler with the session,
which reports the call at the end; all other events are only counted in and out. A run without a session is recorded:
the start and end of each leaf, and the texts.

Everything is kept in containers with atomic single operations, without a lock: the garbage collector may close a
stream, and so end a run, in any thread at any moment.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from teola_plugin.callbacks.prediction import Recorded, Seen
from teola_plugin.callbacks.run_report import RunReport
from teola_plugin.finalizers import kept_off
from teola_plugin.runtime.session.report import Report
from teola_plugin.runtime.session.session import Session
from teola_plugin.seams import current
from teola_plugin.trace import Break, Traced

MAX_OPEN = 4096
"""The most open runs; the oldest are forgotten, as some may never end."""

MAX_ROOTS = 256
"""The most root runs of one batch which are named in the report."""


def nothing(_: Any) -> tuple[str, ...]:
    """No texts."""
    return ()


class Start(NamedTuple):
    """The start of an event.

    `read` returns the texts of the input. `kind`: the kind of a leaf, or `chain` for anything else.
    """

    kind: str
    name: str
    read: Callable[[Any], tuple[str, ...]] = nothing
    given: Any = None


class Place(NamedTuple):
    """The position of an open event. `run` None: within a call of an optimized pipeline.

    `leaf`: the event itself (`is_leaf`), or the leaf around. For frameworks whose events do not name their parents,
    `above` is the surrounding place, `is_trace` marks a trace of the framework, and `is_late` marks a stream which is
    read after the pipeline returned.
    """

    run: Recorded | None
    is_root: bool = False
    leaf: Seen | None = None
    is_leaf: bool = False
    above: Place | None = None
    is_trace: bool = False
    is_late: bool = False


OPTIMIZED = Place(None)


class Runs:
    """The runs of one handler: `open`, by the key of the event, and the last `ended` runs, newest last.

    `tell` receives each report. Copies in other processes are empty.
    """

    def __init__(self, maxlen: int, breaks: tuple[Break, ...] | None, tell: Callable[[RunReport], None]) -> None:
        self.breaks = breaks
        self.tell = tell
        self.ended: deque[RunReport | Recorded] = deque(maxlen=maxlen)
        self.open: OrderedDict[Hashable, Place] = OrderedDict()
        self._joining = threading.RLock()

    def __reduce__(self) -> tuple[type[Runs], tuple[Any, ...]]:
        return Runs, (self.ended.maxlen, self.breaks, self.tell)

    def begin(self, start: Start, key: Hashable, above: Place | None) -> Place:
        """Record a start at `above` (None: outside), and open a place for the event."""
        session = current()
        call = self.joined(session, start.name) if isinstance(session, Session) else None
        if call is not None and (above is None or not call.run_ids) and len(call.run_ids) < MAX_ROOTS:
            call.run_ids.append(str(key))
        self.open[key] = place = self._place(start, key, above, is_optimized=session is not None)
        if len(self.open) > MAX_OPEN:
            self.open.popitem(last=False)
        return place

    def _place(self, start: Start, key: Hashable, above: Place | None, *, is_optimized: bool) -> Place:
        if above is None and is_optimized:
            return OPTIMIZED
        place = above or Place(Recorded(str(key), start.name, self.breaks), is_root=True)
        if place.run is None:
            return place
        if start.kind == "chain":
            return Place(place.run, leaf=place.leaf) if above and (above.is_root or above.is_leaf) else place
        return leaf_at(place, start)._replace(is_root=above is None)

    def end(
        self, key: Hashable, read: Callable[[Any], tuple[str, ...]], said: Any, error: BaseException | None = None
    ) -> None:
        """Record the end of the event with the key: the output texts, or the error."""
        place = self.open.pop(key, None)
        if error is not None and isinstance(session := current(), Session) and (call := self.call_of(session)):
            call.failed(str(key), error)
        if place is None or place.run is None:
            return
        if place.leaf and place.is_leaf:
            place.run.end(place.leaf, read(said), failed=error is not None)
        if place.is_root:
            self.finish(place.run, error)

    def finish(self, run: Recorded, error: BaseException | None) -> None:
        """Record the end of a recorded run."""
        run.ended_s = time.perf_counter()
        run.error = "" if error is None else text_of(error)
        self.ended.append(run)

    # --- calls of optimized pipelines --------------------------------------------------------------------------------

    def call_of(self, session: Session) -> Call | None:
        """Return the call which the handler has joined."""
        return next((c for c in session.listeners if isinstance(c, Call) and c.runs is self), None)

    def joined(self, session: Session, name: str) -> Call:
        """Return the call, joining it if necessary."""
        call = self.call_of(session)
        if call is None:
            with kept_off, self._joining:  # several runs of a batch begin at once
                call = self.call_of(session)
                if call is None:
                    call = Call(self, name)
                    session.listeners.append(call)
        return call


class Call:
    """A listener on one session, for one handler. `handled`: see `Recorded`.

    `is_over`: the pipeline has returned, maybe with a stream.
    """

    __slots__ = ("error", "handled", "is_over", "name", "run_ids", "runs")

    def __init__(self, runs: Runs, name: str) -> None:
        self.runs = runs
        self.name = name
        self.run_ids: list[str] = []
        self.error = ""
        self.handled = 0
        self.is_over = False

    def failed(self, run_id: str, error: BaseException) -> None:
        """Record the error of an event; only errors of root runs count."""
        if run_id in self.run_ids:
            self.error = text_of(error)

    def __call__(self, report: Report, traced: Traced) -> None:
        run = RunReport(tuple(self.run_ids), self.name, report, traced.breaks, self.error)
        self.runs.ended.append(run)
        self.runs.tell(run)


def leaf_at(place: Place, start: Start) -> Place:
    """Return the place of a leaf at `place`; surrounding leaves then are no leaves."""
    assert place.run is not None
    if place.leaf:
        place.leaf.is_around = True
    leaf = place.run.begin(start.name, start.kind, start.read(start.given))
    return Place(place.run, leaf=leaf or place.leaf, is_leaf=leaf is not None)


def text_of(error: BaseException) -> str:
    """Return the error as the last line of a traceback."""
    return "".join(traceback.format_exception_only(error)).strip()
