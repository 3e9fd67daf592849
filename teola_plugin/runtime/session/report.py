"""What one call of an optimized pipeline came to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from teola_plugin.events import Event
from teola_plugin.graph import Graph
from teola_plugin.trace import Traced


@dataclass(frozen=True, slots=True)
class Report:
    """What one call came to. `hits` + `shared` + `misses` + `stale` = items the framework's run asked for.

    Where a model calls a pipeline itself, what that asks is among them if the framework's run made the call of the
    model; if an engine made it, the pipeline has a report of its own.

    `hits` had run ahead (or were on their way). `shared`: the framework was there first and the run-ahead used its
    result. `misses`: the run-ahead did not foresee them. `stale`: foreseen, but the store changed in between.
    `wasted`: items that ran ahead and nobody took. `prefills`: prefixes that an engine prefilled early.
    `fallbacks`: why a run-ahead ended early, if one did. `rested`: none began, see `worth.py` and `processor.py`.
    `hosted_hits`: those of a provider outside this process. `gained_s`: how much later the framework would have had
    the last hit at most, had nothing run ahead. `graphs`: the e-graphs that ran ahead, one after the other.
    `reading_s`: CPU seconds that went into reading code of the user's.
    """

    hits: int = 0
    shared: int = 0
    misses: int = 0
    stale: int = 0
    wasted: int = 0
    prefills: int = 0
    started_s: float = 0.0
    ended_s: float = 0.0
    fallbacks: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    gained_s: float = 0.0
    hosted_hits: int = 0
    rested: bool = False
    graphs: tuple[Graph, ...] = ()
    reading_s: float = 0.0


Listener = Callable[[Report, Traced], None]
"""Is told what a call came to, and how its pipeline was read."""
