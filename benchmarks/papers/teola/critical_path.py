"""What a query spends its time with, and how little it could be.

The chain of requests that its end waited for, walked back from the end:

    embedder  [......]
    store             [..]
    llm       [..........]    [........]        walked back: llm, store, embedder

And around the work of one engine, in whatever order: until its first request can begin, and what has yet to follow
its last. No order of things makes a query shorter than all three together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from simulator import Span

from teola_plugin.graph import Graph
from teola_plugin.plan import is_request

WAITING = "waiting"


def spent_s(graph: Graph, spans: Sequence[Span], latency_s: float) -> Mapping[str, float]:
    """Seconds by engine, and those in between: in queues, and between engines.

    `spans`: of one query of this graph that had the engines to itself and began at 0.
    """
    by_primitive: dict[str, list[Span]] = {}
    for span in spans:
        by_primitive.setdefault(span.primitive, []).append(span)
    spent = {WAITING: 0.0}
    now_s, names = latency_s, _nearest(graph, graph.outputs, by_primitive)
    while before := [span for name in names for span in by_primitive[name] if span.begin_s < now_s]:
        last = max(before, key=lambda span: (min(span.end_s, now_s), -span.begin_s))
        end_s = min(last.end_s, now_s)
        spent[last.engine] = spent.get(last.engine, 0.0) + end_s - last.begin_s
        spent[WAITING] += now_s - end_s
        now_s, names = last.begin_s, _nearest(graph, graph[last.primitive].dependencies, by_primitive)
    spent[WAITING] += now_s
    return spent


@dataclass(frozen=True, slots=True)
class Around:
    """At least so many seconds until each primitive begins, and to the end of the query from when it has ended."""

    engines: Mapping[str, str]
    before_s: Mapping[str, float]
    after_s: Mapping[str, float]

    def of(self, engine: str) -> float:
        """Before the first and after the last that an engine does, together."""
        mine = [name for name, each in self.engines.items() if each == engine]
        return min(self.before_s[name] for name in mine) + min(self.after_s[name] for name in mine)


def around(graph: Graph, spans: Sequence[Span], single_s: Callable[[Span], float]) -> Around:
    """Of the primitives that asked for something.

    `spans`: of one query of this graph that began at 0, on engines without end. `single_s`: what a request takes of
    which only one item is left.
    """
    shortest_s: dict[str, float] = {}
    for span in spans:
        shortest_s[span.primitive] = min(single_s(span), shortest_s.get(span.primitive, single_s(span)))
    consumers = graph.consumers()
    after_s: dict[str, float] = {}
    for p in reversed(graph.primitives):
        behind = consumers[p.name] if p.name in shortest_s or not is_request(p) else ()  # not of one that was skipped
        after_s[p.name] = max((shortest_s.get(c.name, 0.0) + after_s[c.name] for c in behind), default=0.0)
    before_s: dict[str, float] = {}
    for span in spans:
        before_s[span.primitive] = min(span.begin_s, before_s.get(span.primitive, span.begin_s))
    return Around({span.primitive: span.engine for span in spans}, before_s, after_s)


def _nearest(graph: Graph, names: Iterable[str], asked: Mapping[str, Sequence[Span]]) -> set[str]:
    """The requests among these, and in place of each other primitive those that it waits for."""
    inputs = {each.name for each in graph.inputs}
    found: set[str] = set()
    for name in names:
        if name in asked:
            found.add(name)
        elif name not in inputs:
            found |= _nearest(graph, graph[name].dependencies, asked)
    return found


def in_words(spent: Mapping[str, float]) -> str:
    """The largest first.

    >>> in_words({"llm": 1.2, "embedder": 0.456, "waiting": 0.0})
    'llm 1.20 s, embedder 0.46 s'
    """
    largest = sorted(spent.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in largest if seconds >= 0.005)
