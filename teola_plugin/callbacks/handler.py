"""The callback handler for both frameworks: one object for LangChain and LlamaIndex at once.

LangChain requires handlers of its class, so ours has the class where LangChain is installed; LlamaIndex calls any
object with the four methods. Both kinds of events go to the same `Runs`.

    LangChain   each run names its parent, and belongs to the parent's run
    LlamaIndex  see callbacks/llamaindex.py
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from teola_plugin.adapters import SUPPORTED, adapter_for
from teola_plugin.api import optimized
from teola_plugin.callbacks import texts
from teola_plugin.callbacks.prediction import Prediction, Recorded
from teola_plugin.callbacks.run_report import RunReport
from teola_plugin.callbacks.runs import Runs, Start, nothing
from teola_plugin.trace import Break

if TYPE_CHECKING:
    from langchain_core.callbacks import BaseCallbackHandler
else:
    try:
        from langchain_core.callbacks import BaseCallbackHandler
    except ImportError:
        BaseCallbackHandler = object


class TeolaCallbackHandler(BaseCallbackHandler):
    """An ordinary handler of LangChain and of LlamaIndex, for any number of runs at once.

    chain.invoke(question, config={"callbacks": [handler]})
    query_engine.callback_manager.add_handler(handler)    # or Settings.callback_manager = CallbackManager([handler])

    `reports` has a report of each call of an optimized pipeline. `predictions` has the predicted gain by `optimize` for
    each run of any other pipeline: an estimate for a single query alone, which may be too high or too low. The last
    `maxlen` runs are kept, newest last.

    `pipeline`: predictions then also list what `optimize` would leave to the framework.

    A deep copy (of an engine with the handler) is the handler itself; a pickled handler has no runs.
    """

    run_inline = True
    raise_error = False
    ignore_retry = True
    ignore_custom_event = True
    event_starts_to_ignore = event_ends_to_ignore = ("chunking", "templating", "exception")

    def __init__(self, pipeline: Any = None, *, maxlen: int = 32) -> None:
        self._runs = Runs(maxlen, None if pipeline is None else _breaks_of(pipeline), self._heard)
        if llamaindex := sys.modules.get("llama_index.core.callbacks.base_handler"):
            llamaindex.BaseCallbackHandler.register(type(self))

    def __deepcopy__(self, memo: Mapping[int, Any]) -> TeolaCallbackHandler:
        return self

    # --- what was heard ----------------------------------------------------------------------------------------------

    @property
    def reports(self) -> list[RunReport]:
        """Calls of optimized pipelines, newest last."""
        return [run for run in self._runs.ended.copy() if isinstance(run, RunReport)]

    @property
    def predictions(self) -> list[Prediction]:
        """Runs of other pipelines, newest last."""
        return [run.prediction for run in self._runs.ended.copy() if isinstance(run, Recorded)]

    @property
    def prediction(self) -> Prediction | None:
        """The prediction for the last run of a pipeline which was not optimized."""
        return next((run.prediction for run in reversed(self._runs.ended.copy()) if isinstance(run, Recorded)), None)

    def report(self) -> str:
        """Return the last run as readable text."""
        last = self._last()
        return "no run has ended yet" if last is None else str(last)

    def as_dict(self) -> dict[str, Any]:
        """Return the last run as plain data, for JSON; `optimized` tells the two kinds apart."""
        last = self._last()
        return {} if last is None else last.as_dict()

    def on_report(self, report: RunReport) -> None:
        """Hook for subclasses: a call of an optimized pipeline is over. Errors of the hook are only logged."""

    def __str__(self) -> str:
        return self.report()

    def _last(self) -> RunReport | Prediction | None:
        runs = self._runs.ended.copy()
        return None if not runs else runs[-1].prediction if isinstance(runs[-1], Recorded) else runs[-1]

    def _heard(self, report: RunReport) -> None:
        self.on_report(report)

    # --- LangChain's events ------------------------------------------------------------------------------------------

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._began(Start("chain", _name(serialized, kwargs)), run_id, parent_run_id)

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        start = Start("chat model", _name(serialized, kwargs), texts.of_messages, messages)
        self._began(start, run_id, parent_run_id)

    def on_llm_start(
        self, serialized: Any, prompts: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._began(Start("llm", _name(serialized, kwargs), tuple, prompts), run_id, parent_run_id)

    def on_retriever_start(
        self, serialized: Any, query: str, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._began(Start("retriever", _name(serialized, kwargs), tuple, [query]), run_id, parent_run_id)

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        self._began(Start("tool", _name(serialized, kwargs), tuple, [input_str]), run_id, parent_run_id)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._runs.end(run_id, nothing, None)

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._runs.end(run_id, texts.of_result, response)

    def on_retriever_end(self, documents: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._runs.end(run_id, texts.of_documents, documents)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._runs.end(run_id, texts.of_output, output)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._runs.end(run_id, nothing, None, error)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._runs.end(run_id, nothing, None, error)

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._runs.end(run_id, nothing, None, error)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._runs.end(run_id, nothing, None, error)

    def _began(self, start: Start, run_id: UUID, parent_run_id: UUID | None) -> None:
        self._runs.begin(start, run_id, self._runs.open.get(parent_run_id) if parent_run_id else None)

    # --- LlamaIndex's events: its package is loaded when they come ----------------------------------------------------

    def start_trace(self, trace_id: str | None = None) -> None:
        from teola_plugin.callbacks import llamaindex

        llamaindex.trace_began(self._runs, trace_id)

    def end_trace(self, trace_id: str | None = None, trace_map: Mapping[str, Any] | None = None) -> None:
        from teola_plugin.callbacks import llamaindex

        llamaindex.trace_ended(self._runs)

    def on_event_start(
        self, event_type: Any, payload: Mapping[Any, Any] | None = None, event_id: str = "", parent_id: str = "",
        **kwargs: Any,
    ) -> str:  # fmt: skip
        from teola_plugin.callbacks import llamaindex

        llamaindex.event_began(self._runs, event_type, payload or {}, event_id)
        return event_id

    def on_event_end(
        self, event_type: Any, payload: Mapping[Any, Any] | None = None, event_id: str = "", **kwargs: Any
    ) -> None:
        from teola_plugin.callbacks import llamaindex

        llamaindex.event_ended(self._runs, event_type, payload or {}, event_id)


def _name(serialized: Any, facts: Mapping[str, Any]) -> str:
    told = serialized or {}
    return str(facts.get("name") or told.get("name") or (told.get("id") or ["?"])[-1])


def _breaks_of(pipeline: Any) -> tuple[Break, ...]:
    adapter = adapter_for(pipeline)
    if adapter is None:
        what = f"{type(pipeline).__qualname__} is no pipeline teola_plugin knows; supported are {SUPPORTED}"
        return (Break("TB001", what),)
    is_optimized = adapter.calls_of(pipeline) is not None
    return (optimized(pipeline).traced if is_optimized else adapter.trace(pipeline)).breaks
