"""The position of a run of a state graph, and the settings of its continuation."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.graph.state import CompiledStateGraph

Graph = CompiledStateGraph[Any, Any, Any, Any]
Names = frozenset[str]

NOTHING: Any = object()
"""The mark of an absent value."""

SIDE_BY_SIDE = min(32, (os.cpu_count() or 1) + 4)
"""The number of tasks of a superstep begun at once: the width of LangGraph's thread pools."""


@dataclass(frozen=True)
class Task:
    """A node due to run; `argument`: its own input from a `Send`."""

    name: str
    argument: Any = NOTHING

    @property
    def is_sent(self) -> bool:
        """Whether the task comes from a `Send`."""
        return self.argument is not NOTHING


@dataclass(frozen=True)
class Front:
    """The next tasks, in superstep `number`, the state, and the nodes that have reached each join.

    `waits`: deferred nodes run as soon as no edge leads to a non-deferred node. `has_written`: part of the graph's
    output was written; None: it is not known.
    """

    tasks: tuple[Task, ...]
    state: Mapping[str, Any]
    number: int
    joined: Mapping[str, frozenset[str]] = field(default_factory=dict)
    waits: bool = False
    has_written: bool | None = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks, in the order of their writes."""
        return tuple(task.name for task in self.tasks)


@dataclass(frozen=True)
class Way:
    """The settings of one call of a graph: asynchronous or not, the config, the last superstep.

    `stops_before` and `stops_after`: the interrupts. `is_resumed`: subgraphs may continue from the state of an earlier
    call. `speculates`: merely possible requests are made too.
    """

    is_async: bool
    config: Mapping[str, Any]
    runtime: Any = None
    stop: int = 0
    stops_before: Names = frozenset()
    stops_after: Names = frozenset()
    is_resumed: bool = False
    speculates: bool = False

    def stops_between(self, before: Front, after: Front) -> bool:
        """Whether LangGraph interrupts the run between the two fronts."""
        return _meets(before.names, self.stops_after) or _meets(after.names, self.stops_before)


def interrupts(nodes: str | Iterable[str] | None) -> Names:
    """Return the nodes to interrupt at, in LangGraph's form: names, or "*"."""
    return frozenset([nodes] if isinstance(nodes, str) else nodes or ())


def _meets(names: Sequence[str], stops: Names) -> bool:
    return bool(names and stops) and (stops == frozenset({"*"}) or not stops.isdisjoint(names))
