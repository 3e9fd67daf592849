"""The LlamaIndex adapter.

    trace.py          a pipeline as one graph, or as those of its parts
      engines.py, retrievers.py, transforms.py, postprocessors.py, synthesizers.py, ingestion.py, query_pipeline.py
    twin.py           the object that the user gets back; indexes.py, streams.py
    observers.py      where the framework's own run is, and what it came to; parts.py
    models.py         hosted models; known.py: which components can be foreseen
    unblocked.py      synchronous code in coroutines
    in_turn.py        stock loops whose rounds do not need each other
    rehearsal.py      the framework's own code, run ahead unheard

`adapter` is what `teola_plugin.adapters` looks for; importing it puts the seams in place.
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
adapter: Adapter = LlamaIndexAdapter()
