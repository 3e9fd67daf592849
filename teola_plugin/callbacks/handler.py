"""The callback handler: it hears LangChain's events, and from them which session is running.

A call of an optimized pipeline has a session. The first event within it (its root run's start) makes the handler known
to that session, which tells it at the end what the call came to; all other events are only counted in and out. A run
without a session is recorded: when each leaf began and ended, and its texts.

Everything is kept in containers whose single operations are atomic, and no lock is held around them: the garbage
collector may close a stream, and so end a run, in any thread at any moment.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from teola_plugin.adapters import SUPPORTED, adapter_for
from teola_plugin.api import optimized
from teola_plugin.callbacks import texts
from teola_plugin.callbacks.prediction import Prediction, Recorded, Seen
from teola_plugin.callbacks.run_report import RunReport
from teola_plugin.finalizers import kept_off
from teola_plugin.runtime.session import Report, Session
from teola_plugin.seams import current
from teola_plugin.trace import Break, Traced

MAX_OPEN = 4096
"""So many runs may be under way at once; those begun first are forgotten, as they may never end."""

MAX_ROOTS = 256
"""So many root runs of one batch are named in its report."""


class TeolaCallbackHandler(BaseCallbackHandler):
    """An ordinary LangChain handler, for any number of runs at once: config={"callbacks": [handler]}.

    Of each call of an optimized pipeline `reports` says what it came to. Of each run of any other pipeline
    `predictions` says what `optimize` would gain: an estimate, and an upper limit for one query alone. The last
    `maxlen` runs are kept, newest last.

    `pipeline`: predictions then also list what `optimize` would leave to the framework.
    """

    run_inline = True
    raise_error = False
    ignore_retry = True
    ignore_custom_event = True

    def __init__(self, pipeline: Any = None, *, maxlen: int = 32) -> None:
        self._breaks = None if pipeline is None else _breaks_of(pipeline)
        self._runs: deque[RunReport | Recorded] = deque(maxlen=maxlen)
        self._open: OrderedDict[UUID, _Place] = OrderedDict()
        self._joining = threading.RLock()

    # --- what was heard ----------------------------------------------------------------------------------------------

    @property
    def reports(self) -> list[RunReport]:
        """Calls of optimized pipelines, newest last."""
        return [run for run in self._runs.copy() if isinstance(run, RunReport)]

    @property
    def predictions(self) -> list[Prediction]:
        """Runs of other pipelines, newest last."""
        return [run.prediction for run in self._runs.copy() if isinstance(run, Recorded)]

    @property
    def prediction(self) -> Prediction | None:
        """That of the last run of a pipeline that was not optimized."""
        return next((run.prediction for run in reversed(self._runs.copy()) if isinstance(run, Recorded)), None)

    def report(self) -> str:
        """The last run, to be read."""
        last = self._last()
        return "no run has ended yet" if last is None else str(last)

    def as_dict(self) -> dict[str, Any]:
        """The last run as plain data, for JSON; `optimized` says which of both kinds it is."""
        last = self._last()
        return {} if last is None else last.as_dict()

    def on_report(self, report: RunReport) -> None:
        """For subclasses: a call of an optimized pipeline is over. What it raises is logged, no more."""

    def __str__(self) -> str:
        return self.report()

    def _last(self) -> RunReport | Prediction | None:
        runs = self._runs.copy()
        return None if not runs else runs[-1].prediction if isinstance(runs[-1], Recorded) else runs[-1]

    # --- LangChain's events ------------------------------------------------------------------------------------------

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._began(_Start("chain", serialized, kwargs, _nothing, None), run_id, parent_run_id)

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._began(_Start("chat model", serialized, kwargs, texts.of_messages, messages), run_id, parent_run_id)

    def on_llm_start(
        self, serialized: Any, prompts: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._began(_Start("llm", serialized, kwargs, tuple, prompts), run_id, parent_run_id)

    def on_retriever_start(
        self, serialized: Any, query: str, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._began(_Start("retriever", serialized, kwargs, tuple, [query]), run_id, parent_run_id)

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._began(_Start("tool", serialized, kwargs, tuple, [input_str]), run_id, parent_run_id)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._ended(run_id, _nothing, None)

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._ended(run_id, texts.of_result, response)

    def on_retriever_end(self, documents: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._ended(run_id, texts.of_documents, documents)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._ended(run_id, texts.of_output, output)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._ended(run_id, _nothing, None, error)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._ended(run_id, _nothing, None, error)

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._ended(run_id, _nothing, None, error)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._ended(run_id, _nothing, None, error)

    # --- keeping count -----------------------------------------------------------------------------------------------

    def _began(self, start: _Start, run_id: UUID, parent_run_id: UUID | None) -> None:
        above = self._open.get(parent_run_id) if parent_run_id else None
        session = current()
        call = self._joined(session, start) if isinstance(session, Session) else None
        if call is not None and (above is None or not call.run_ids) and len(call.run_ids) < MAX_ROOTS:
            call.run_ids.append(str(run_id))
        self._open[run_id] = self._place(start, run_id, above, is_optimized=session is not None)
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)

    def _place(self, start: _Start, run_id: UUID, above: _Place | None, *, is_optimized: bool) -> _Place:
        if above is None and is_optimized:
            return _OPTIMIZED
        place = above or _Place(Recorded(str(run_id), start.name, self._breaks), is_root=True)
        if place.run is None:
            return place
        if start.kind == "chain":
            return _Place(place.run, leaf=place.leaf) if above and (above.is_root or above.is_leaf) else place
        if place.leaf:
            place.leaf.is_around = True
        leaf = place.run.begin(start.name, start.kind, start.read(start.given))
        return _Place(place.run, above is None, leaf or place.leaf, leaf is not None)

    def _ended(self, run_id: UUID, read: Callable[[Any], Any], said: Any, error: BaseException | None = None) -> None:
        place = self._open.pop(run_id, None)
        if error is not None and isinstance(session := current(), Session) and (call := self._call_of(session)):
            call.failed(str(run_id), error)
        if place is None or place.run is None:
            return
        if place.leaf and place.is_leaf:
            place.run.end(place.leaf, read(said), failed=error is not None)
        if place.is_root:
            place.run.ended_s = time.perf_counter()
            place.run.error = "" if error is None else _text_of(error)
            self._runs.append(place.run)

    # --- calls of optimized pipelines --------------------------------------------------------------------------------

    def _call_of(self, session: Session) -> _Call | None:
        return next((c for c in session.listeners if isinstance(c, _Call) and c.handler is self), None)

    def _joined(self, session: Session, start: _Start) -> _Call:
        call = self._call_of(session)
        if call is None:
            with kept_off, self._joining:  # several runs of a batch begin at once
                call = self._call_of(session)
                if call is None:
                    call = _Call(self, start.name)
                    session.listeners.append(call)
        return call

    def _heard(self, run: RunReport) -> None:
        self._runs.append(run)
        self.on_report(run)


class _Start(NamedTuple):
    """What begins; `read` makes texts of what it was given."""

    kind: str
    serialized: Any
    facts: dict[str, Any]
    read: Callable[[Any], tuple[str, ...]]
    given: Any

    @property
    def name(self) -> str:
        told = self.serialized or {}
        return str(self.facts.get("name") or told.get("name") or (told.get("id") or ["?"])[-1])


class _Place(NamedTuple):
    """Where a run that is under way belongs. `run` None: to a call of an optimized pipeline.

    `leaf`: itself (`is_leaf`), or the leaf around it.
    """

    run: Recorded | None
    is_root: bool = False
    leaf: Seen | None = None
    is_leaf: bool = False


_OPTIMIZED = _Place(None)


class _Call:
    """Listens to one session, for one handler."""

    __slots__ = ("error", "handler", "name", "run_ids")

    def __init__(self, handler: TeolaCallbackHandler, name: str) -> None:
        self.handler = handler
        self.name = name
        self.run_ids: list[str] = []
        self.error = ""

    def failed(self, run_id: str, error: BaseException) -> None:
        if run_id in self.run_ids:
            self.error = _text_of(error)

    def __call__(self, report: Report, traced: Traced) -> None:
        self.handler._heard(RunReport(tuple(self.run_ids), self.name, report, traced.breaks, self.error))


def _breaks_of(pipeline: Any) -> tuple[Break, ...]:
    adapter = adapter_for(pipeline)
    if adapter is None:
        what = f"{type(pipeline).__qualname__} is no pipeline teola_plugin knows; supported are {SUPPORTED}"
        return (Break("TB001", what),)
    is_optimized = adapter.calls_of(pipeline) is not None
    return (optimized(pipeline).traced if is_optimized else adapter.trace(pipeline)).breaks


def _text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _nothing(_: Any) -> tuple[str, ...]:
    return ()
