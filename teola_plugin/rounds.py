"""Loops of a graph: the number of rounds is known only while running.

    draft_rounds = call(topic, draft, fn='reflection')      in the graph of a query
    {"reflection": Rounds(graph, ...)}                      the meaning of `fn=`: a further graph

    inputs --graph--> outputs --> done? their value
       ^                 | else
       +---- again ------+

Each round is an ordinary run of `graph` within the same query; rounds run in sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.graph import Graph
from teola_plugin.trace import Function


@dataclass(frozen=True, slots=True)
class Rounds:
    """A loop. `graph`: one round, whose inputs are the arguments of the call, in order.

    `again`: the output (or input) which replaces an input in the next round. `gives`: the outputs (or inputs) which
    make the value, by their names in the value. `done`: the output which ends the loop; the loop also ends after
    `at_most` rounds. `functions` and `rounds`: the meaning of `fn=` in `graph`.
    """

    graph: Graph
    functions: Mapping[str, Function]
    again: Mapping[str, str]
    gives: Mapping[str, str]
    done: str
    at_most: int | None = None
    rounds: Mapping[str, Rounds] = field(default_factory=dict)

    def first(self, args: Sequence[Any]) -> dict[str, Any]:
        """Return the inputs of the first round."""
        return dict(zip((i.name for i in self.graph.inputs), args, strict=True))

    def after(self, number: int, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the inputs of the round after round `number`, counted from 1; None after the last round."""
        if outputs[self.done] or number == self.at_most:
            return None
        known = {**inputs, **outputs}
        return {**inputs, **{name: known[source] for name, source in self.again.items()}}

    def value(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value of the call, from the last round."""
        known = {**inputs, **outputs}
        return {name: known[source] for name, source in self.gives.items()}
