"""Rounds of a graph that are revealed as they run: how many there are is seen only then.

    draft_rounds = call(topic, draft, fn='reflection')      in the graph of a query
    {"reflection": Rounds(graph, ...)}                      what `fn=` stands for: one more graph

    inputs --graph--> outputs --> done? their value
       ^                 | else
       +---- again ------+

Each round is a run of `graph` as any other, under the same query; only the rounds come one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.graph import Graph
from teola_plugin.trace import Function


@dataclass(frozen=True, slots=True)
class Rounds:
    """`graph`: one round. Its inputs are what the call takes, in this order.

    `again`: the output (or input) that takes the place of an input in the next round. `gives`: the outputs (or inputs)
    that are the value, by the names they have in it. `done`: the output after which there is no other round; nor is
    there after `at_most`. `functions` and `rounds`: what `fn=` stands for in `graph`.
    """

    graph: Graph
    functions: Mapping[str, Function]
    again: Mapping[str, str]
    gives: Mapping[str, str]
    done: str
    at_most: int | None = None
    rounds: Mapping[str, Rounds] = field(default_factory=dict)

    def first(self, args: Sequence[Any]) -> dict[str, Any]:
        """The inputs of the first round."""
        return dict(zip((i.name for i in self.graph.inputs), args, strict=True))

    def after(self, number: int, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """The inputs of the round after round `number`, the first being 1; None if that was the last."""
        if outputs[self.done] or number == self.at_most:
            return None
        known = {**inputs, **outputs}
        return {**inputs, **{name: known[source] for name, source in self.again.items()}}

    def value(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
        """What the call gives, of the last round."""
        known = {**inputs, **outputs}
        return {name: known[source] for name, source in self.gives.items()}
