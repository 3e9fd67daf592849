"""The LlamaIndex adapter.

    trace.py          a pipeline as one graph, or as the graphs of its parts
      engines.py, retrievers.py, transforms.py, postprocessors.py, synthesizers.py, ingestion.py, query_pipeline.py
    twin.py           the object that the user gets back; indexes.py, streams.py
    observers.py      the position of the framework's own run, and its values; parts.py
    models.py         hosted models; known.py: the predictable components
    unblocked.py      synchronous code in coroutines
    in_turn.py        stock loops with independent rounds
    rehearsal.py      the framework's own code, run early with callbacks muted

`adapter` is the name that `teola_plugin.adapters` looks for; importing the package installs the interceptions.
"""

from __future__ import annotations

from typing import Any

from teola_plugin.adapters import Adapter, Calls
from teola_plugin.adapters.llamaindex import (
    in_turn,
    ingestion,
    models,
    observers,
    query_pipeline,
    reading_workflows,
    rehearsal,
    streams,
    trace,
    twin,
    unblocked,
)
from teola_plugin.trace import Traced


class LlamaIndexAdapter:
    """Implements `adapters.Adapter`."""

    name = "llamaindex"

    def knows(self, pipeline: Any) -> bool:
        return trace.knows(pipeline)

    def trace(self, pipeline: Any) -> Traced:
        return trace.trace(pipeline)

    def twin(self, pipeline: Any, calls: Calls) -> Any:
        return twin.make_twin(pipeline, calls)

    def calls_of(self, pipeline: Any) -> Calls | None:
        return twin.calls_of(pipeline)


models.install()
observers.install()
query_pipeline.install()
rehearsal.install()
unblocked.install()
in_turn.install()
ingestion.install()
streams.install()
reading_workflows.install()
adapter: Adapter = LlamaIndexAdapter()
