"""Where a run of a state graph stands, and how it goes on from there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.graph.state import CompiledStateGraph

Graph = CompiledStateGraph[Any, Any, Any, Any]
Names = frozenset[str]

NOTHING: Any = object()
"""Stands for a value that is not there."""

SIDE_BY_SIDE = min(32, (os.cpu_count() or 1) + 4)
"""So many tasks of a superstep begin at once: the width of the thread pools that LangGraph runs them in."""


@dataclass(frozen=True)
class Task:
    """A node that is to run; `argument` where a `Send` gives it one of its own."""

    name: str
    argument: Any = NOTHING

    @property
    def is_sent(self) -> bool:
        """A `Send` asked for it."""
        return self.argument is not NOTHING


@dataclass(frozen=True)
class Front:
    """The tasks of superstep `number`, which are about to run, what the state holds, and who has come to which join.

    `waits`: deferred nodes are to run as soon as no edge leads to any other node. `has_written`: something of what the
    graph gives back was written.
    """

    tasks: tuple[Task, ...]
    state: Mapping[str, Any]
    number: int
    joined: Mapping[str, frozenset[str]] = field(default_factory=dict)
    waits: bool = False
    has_written: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Of its tasks, in the order of their writes."""
        return tuple(task.name for task in self.tasks)


@dataclass(frozen=True)
class Way:
    """How one call runs a graph: asynchronously or not, with which config, to which superstep at most.

    `stops_before` and `stops_after`: where it interrupts. `is_resumed`: the graphs in it may go on from where an
    earlier call has left them. `speculates`: what is merely possible is asked too.
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
        """LangGraph interrupts the run there."""
        return _meets(before.names, self.stops_after) or _meets(after.names, self.stops_before)


def interrupts(nodes: str | Iterable[str] | None) -> Names:
    """Where to interrupt, as LangGraph takes it: names, or "*"."""
    return frozenset([nodes] if isinstance(nodes, str) else nodes or ())


def _meets(names: Sequence[str], stops: Names) -> bool:
    return bool(names and stops) and (stops == frozenset({"*"}) or not stops.isdisjoint(names))
