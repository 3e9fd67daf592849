"""The LangGraph adapter: compiled state graphs, followed from superstep to superstep.

    follow.py       LangGraph's loop tells where it is; what runs ahead begins anew where it must
    front.py        where a run stands, and how it goes on
    reading.py      from there on, superstep by superstep, what the nodes ask for
    writes.py       what a node writes, and the state after that
    inside.py       graphs that nodes call, and what LangGraph gives to nodes
    agents.py       calls of tools that only read start while the model still writes
    saves.py        a checkpoint is saved before the nodes that follow it run

The superstep structure is LangGraph's own: task ids, checkpoints, history, interrupts and streams come from its run.
"""

from __future__ import annotations

from typing import Any

from langgraph.pregel import Pregel

from teola_plugin.adapters import Calls
from teola_plugin.adapters.langchain import twin
from teola_plugin.adapters.langgraph import follow, saves
from teola_plugin.trace import Traced


class LangGraphAdapter:
    """Implements `adapters.Adapter`."""

    name = "langgraph"

    def knows(self, pipeline: Any) -> bool:
        """See `adapters.Adapter.knows`."""
        return isinstance(pipeline, Pregel)

    def trace(self, pipeline: Any) -> Traced:
        """See `adapters.Adapter.trace`."""
        return follow.trace(pipeline)

    def twin(self, pipeline: Any, calls: Calls) -> Any:
        """See `adapters.Adapter.twin`."""
        return twin.make_twin(pipeline, calls, [node.bound for node in pipeline.nodes.values()])

    def calls_of(self, pipeline: Any) -> Calls | None:
        """See `adapters.Adapter.calls_of`."""
        return twin.calls_of(pipeline)


follow.install()
saves.install()
adapter = LangGraphAdapter()
