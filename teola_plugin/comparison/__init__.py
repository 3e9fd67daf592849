"""`compare`: the original and the optimized pipeline on the same inputs, in pairs.

    print(compare(chain, ["What is a heap queue?"], repeats=10))

Each pair runs both pipelines back to back and in alternating order (AB, BA, AB, ...), so that changes of the machine's
speed affect both alike. The figure is the median of the pairs' ratios with a 95 % bootstrap interval. The first round
is a warm-up, in which the callbacks of both are recorded and compared as trees. Outputs and exceptions are compared in
every pair.
"""

from __future__ import annotations

from teola_plugin.comparison.pairs import compare
from teola_plugin.comparison.result import Comparison, Interval
from teola_plugin.comparison.trees import Node, canonical_tree, tree_differences
from teola_plugin.comparison.values import differences, plain

__all__ = [
    "Comparison", "Interval", "Node", "canonical_tree", "compare", "differences", "plain", "tree_differences",
]  # fmt: skip
