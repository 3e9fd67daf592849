"""Calls of optimized LlamaIndex pipelines as events of LlamaIndex, on a dispatcher of our own.

from teola_plugin.callbacks.instrumentation import OptimizedCallEvent, dispatcher
dispatcher.add_event_handler(MyEventHandler())     # told of each call from now on

Nothing reaches the root dispatcher, so traces stay unchanged. Without a handler no event is made.
"""

from __future__ import annotations

from typing import Any

from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.events import BaseEvent
from pydantic import Field

from teola_plugin import api
from teola_plugin.callbacks.run_report import RunReport
from teola_plugin.runtime.session.report import Report

dispatcher = get_dispatcher("teola_plugin")
dispatcher.propagate = False


class OptimizedCallEvent(BaseEvent):
    """A call of an optimized pipeline is over, and its stream read.

    The counts are the counts of `teola_plugin.runtime.session.session.Report`. `seconds` is the time of the call,
    `bound_seconds` the longest path of engine times alone. `critical_path`: primitives of the graph. `report`: the full
    report, for printing; not part of a dump. `span_id` and `tags` come from around the call.
    """

    pipeline: str
    seconds: float
    bound_seconds: float
    hits: int
    shared: int
    misses: int
    stale: int
    wasted: int
    prefills: int
    fallbacks: list[str]
    critical_path: list[str]
    report: Any = Field(exclude=True, repr=False)

    @classmethod
    def class_name(cls) -> str:
        """The name in dumps."""
        return "OptimizedCallEvent"


def _tell(pipeline: api.OptimizedPipeline, report: Report) -> None:
    if not dispatcher.event_handlers or pipeline.adapter.name != "llamaindex":
        return
    name = type(pipeline.pipeline).__qualname__
    run = RunReport((), name, report, pipeline.traced.breaks)
    facts = {k: v for k, v in run.measured.as_dict().items() if k in OptimizedCallEvent.model_fields}
    dispatcher.event(OptimizedCallEvent(pipeline=name, report=run, **facts))


api.on_every_call.append(_tell)
