"""Callback trees in a canonical form, to compare the events of two runs.

The order of siblings is left out, since it differs between two runs of an unmodified parallel chain. Everything else
counts: kinds, names, tags, metadata, parents, and ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Node:
    """One run, span or event. `facts` are compared besides kind and name."""

    kind: str
    name: str
    parent: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)


Tree = tuple[str, tuple["Tree", ...]]
"""The description of a node, and its children in sorted order."""


def canonical_tree(nodes: Mapping[str, Node]) -> tuple[Tree, ...]:
    """Return the roots of the tree of all nodes (by id), each with its children, sorted.

    A node without a known parent is a root.

    >>> canonical_tree({"2": Node("llm", "b", "1"), "1": Node("chain", "a")})
    (('chain a', (('llm b', ()),)),)
    """
    children: dict[str | None, list[str]] = {}
    for key, node in nodes.items():
        children.setdefault(node.parent if node.parent in nodes else None, []).append(key)

    def build(key: str) -> Tree:
        return (_say(nodes[key]), tuple(sorted(build(child) for child in children.get(key, ()))))

    return tuple(sorted(build(root) for root in children.get(None, ())))


def tree_differences(first: Iterable[Tree], second: Iterable[Tree]) -> list[str]:
    """Return a line for each path (root to node) whose frequency differs between the trees."""
    ours, theirs = Counter(_paths(first)), Counter(_paths(second))
    return [
        f"{path}: {ours[path]} x in the original, {theirs[path]} x in the optimized"
        for path in sorted(ours.keys() | theirs.keys())
        if ours[path] != theirs[path]
    ]


def node_count(trees: Iterable[Tree]) -> int:
    """Return the total number of nodes."""
    return sum(1 + node_count(children) for _, children in trees)


def _paths(trees: Iterable[Tree], above: str = "") -> Iterator[str]:
    for label, children in trees:
        path = f"{above} > {label}" if above else label
        yield path
        yield from _paths(children, path)


def _say(node: Node) -> str:
    facts = [
        f"{key}={_settled(value)!r}" for key, value in sorted(node.facts.items()) if value not in (None, [], {}, "")
    ]
    return " ".join([node.kind, node.name, *facts])


def _settled(value: Any) -> Any:
    """Return the value so that equal facts print equally: mappings by key."""
    if isinstance(value, Mapping):
        return {str(key): _settled(value[key]) for key in sorted(value, key=str)}
    return [_settled(item) for item in value] if isinstance(value, list | tuple) else value
