"""The report of a call of an optimized pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from teola_plugin.events import Event
from teola_plugin.graph import Graph
from teola_plugin.trace import Traced


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a call. `hits` + `shared` + `misses` + `stale` = items requested by the framework's run.

    Where a model calls a pipeline, the pipeline's requests are counted here if the framework's run made the call of the
    model; if an engine made the call, the pipeline has a report of its own.

    `hits`: items that had run ahead (or were in flight). `shared`: the framework asked first and the run-ahead used the
    result. `misses`: not foreseen by the run-ahead. `stale`: foreseen, but the store changed in between. `wasted`:
    items that ran ahead and were never taken. `prefills`: prefixes that an engine prefilled early. `fallbacks`: why a
    run-ahead ended early, if any did. `rested`: no run-ahead began, see `worth.py` and `processor.py`. `hosted_hits`:
    hits at a provider outside this process. `gained_s`: an upper bound of how much later the framework would have had
    the last hit without running ahead. `graphs`: the e-graphs that ran ahead, in order. `reading_s`: CPU seconds spent
    reading user code.
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
"""A callback that receives the report of a call, and how the pipeline was read."""
