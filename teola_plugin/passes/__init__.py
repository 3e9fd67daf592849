"""The passes: graph to graph, in sequence, each checked and applied as a whole or not at all.

    optimized = optimize_graph(graph, DEFAULT, context)
    print(optimized.graph, *optimized.records, sep="\\n")

The order of `DEFAULT` is the paper's: edges first, since stages and early prefills are judged by the dependencies;
repeated requests before the splits; shared prefixes once the early prefills are known. Any other order is as correct.
`OPTIONAL` passes must be requested. A user's pass is a function with the signature of `rewrite.Pass`.

A pass that raises, or whose graph does not validate or has other inputs or outputs, is dropped as a whole, and the next
pass gets the graph before it (TR001); with `strict` the failure is a PassError with the names of the pass and of the
passes before.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from teola_plugin.errors import GraphError, PassError
from teola_plugin.graph import Graph, validate
from teola_plugin.passes.decompose_stages import decompose_stages
from teola_plugin.passes.deduce_objectives import deduce_objectives
from teola_plugin.passes.pipeline_decoding import pipeline_decoding
from teola_plugin.passes.prune_dependencies import prune_dependencies
from teola_plugin.passes.rewrite import Context, Pass, Record
from teola_plugin.passes.share_prefixes import share_prefixes
from teola_plugin.passes.share_subexpressions import share_subexpressions
from teola_plugin.passes.speculate_branches import speculate_branches
from teola_plugin.passes.split_prefilling import split_prefilling

__all__ = ["BRANCHES", "DEFAULT", "OPTIONAL", "Context", "Optimized", "Pass", "Record", "optimize_graph"]

DEFAULT: tuple[Pass, ...] = (
    prune_dependencies, share_subexpressions, decompose_stages, split_prefilling, share_prefixes, pipeline_decoding,
)  # fmt: skip
OPTIONAL: tuple[Pass, ...] = (deduce_objectives, speculate_branches)
BRANCHES: tuple[Pass, ...] = (*DEFAULT, speculate_branches)
"""The default passes, with early reads of conditional branches."""

logger = logging.getLogger("teola_plugin.passes")


@dataclass(frozen=True, slots=True)
class Optimized:
    """The e-graph, the records of all decisions, and the graph after each pass (by pass name) for `explain`."""

    graph: Graph
    records: tuple[Record, ...] = ()
    snapshots: tuple[tuple[str, Graph], ...] = ()


def optimize_graph(
    graph: Graph,
    passes: Sequence[Pass] = DEFAULT,
    context: Context | None = None,
    *,
    strict: bool = False,
) -> Optimized:
    """Return the graph after all passes.

    Raises: GraphError if the input graph is not valid; PassError if `strict` and a pass fails.
    """
    validate(graph)
    records: list[Record] = []
    snapshots: list[tuple[str, Graph]] = []
    for one in passes:
        name = pass_name(one)
        try:
            after, found = one(graph, context or Context())
            found = tuple(found)
            _check(graph, after)
        except Exception as e:  # a pass may be the user's own code; the graph before it is as good
            if strict:
                earlier = ", ".join(done for done, _ in snapshots) or "none"
                raise PassError(f"{name}: {type(e).__name__}: {e} (passes before it: {earlier})") from e
            logger.warning("pass %s was dropped: %s: %s", name, type(e).__name__, e)
            after, found = graph, (Record("TR001", name, "", False, f"{type(e).__name__}: {e}"),)
        graph = after
        records += found
        snapshots.append((name, graph))
    return Optimized(graph, tuple(records), tuple(snapshots))


def pass_name(one: Pass) -> str:
    """Return the name of a function, or the class name of an object."""
    return getattr(one, "__name__", type(one).__name__)


def _check(before: Graph, after: Graph) -> None:
    validate(after)
    if after.inputs != before.inputs or after.outputs != before.outputs:
        raise GraphError("a pass must keep the inputs and outputs of the graph")
    depths = after.depths()
    changed = [name for name in before.outputs if before.depths()[name] != depths[name]]
    if changed:
        raise GraphError(f"a pass must keep the depth of the outputs; it changed {', '.join(changed)}")
