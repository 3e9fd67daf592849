"""The LangGraph adapter: compiled state graphs, followed from superstep to superstep.

    follow.py       LangGraph's loop reports its position; the prediction begins anew where needed
    front.py        the position of a run, and the settings of its continuation
    reading.py      from there on, superstep by superstep, the requests of the nodes
    writes.py       the writes of a node, and the state after them
    inside.py       graphs called by nodes, and the arguments injected by LangGraph
    agents.py       calls of read-only tools start while the model still writes
    saves.py        a checkpoint is saved before the nodes after it run

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
