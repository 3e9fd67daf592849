"""Gates of a batch in lockstep: a request leaves this process once no input of the batch can prevent the request.

LangChain runs a batch step by step, each step for all inputs. If an input raises, no input reaches the next step
(unless `return_exceptions` is set). Each input has a run-ahead of its own. For a request that leaves this process,
every primitive that may raise in *any* of the runs is therefore a gate:

    inputs      check      ask a hosted model
    0           passed     waits for check of 1
    1           runs       waits for check of 1

Pure state; the loop thread only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from teola_plugin.engines import EngineSpec
from teola_plugin.graph import OUTSIDE, PIPELINE, Graph, Primitive
from teola_plugin.trace import Function


def batch_gates(
    graph: Graph, functions: Mapping[str, Function], engines: Mapping[str, EngineSpec]
) -> dict[str, frozenset[str]]:
    """Return, for each primitive whose requests leave this process, the names that must have ended well in all runs."""
    before: dict[str, frozenset[str]] = {i.name: frozenset([i.name]) for i in graph.inputs}
    for p in graph:
        behind = frozenset[str]().union(*(before[name] for name in p.dependencies))
        before[p.name] = behind | {p.name} if _may_raise(p, functions) else behind
    return {p.name: before[p.name] - {p.name} for p in graph if _is_outside(p, engines)}


def _may_raise(p: Primitive, functions: Mapping[str, Function]) -> bool:
    function = functions.get(p.setting("fn"))
    return p.engine == PIPELINE or (function is not None and not function.is_total)


def _is_outside(p: Primitive, engines: Mapping[str, EngineSpec]) -> bool:
    spec = engines.get(p.engine)
    return OUTSIDE in p.reads or bool(p.gated) or (spec is not None and spec.is_outside)


class Lockstep:
    """The gates that all `runs` of a batch have passed, and the callbacks that wait for gates."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._passed: Counter[str] = Counter()
        self._waiting: list[tuple[frozenset[str], Callable[[], None]]] = []

    def passed(self, name: str) -> None:
        """Count a run that has passed a gate; after the last run, call the callbacks whose gates are all open."""
        self._passed[name] += 1
        if self._passed[name] < self._runs:
            return
        free = [then for gates, then in self._waiting if self.is_open(gates)]
        self._waiting = [(gates, then) for gates, then in self._waiting if not self.is_open(gates)]
        for then in free:
            then()

    def is_open(self, gates: frozenset[str]) -> bool:
        """Whether all runs have passed all of the gates."""
        return all(self._passed[name] == self._runs for name in gates)

    def when_open(self, gates: frozenset[str], then: Callable[[], None]) -> None:
        """Call `then` once all runs have passed all of the gates, which are not yet open."""
        self._waiting.append((gates, then))
