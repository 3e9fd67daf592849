"""Graphs of networkx, of which only the class is known: nodes and edges may be added; counts and copies are unknown."""

from __future__ import annotations

import sys
import types
from typing import Any

from teola_plugin.adapters.reader import amounts, foreign
from teola_plugin.adapters.reader.values import Arguments, Barrier, Handler, Opaque, Unknown

_MODULES = {
    "networkx.classes.graph": "Graph",
    "networkx.classes.digraph": "DiGraph",
    "networkx.classes.multigraph": "MultiGraph",
    "networkx.classes.multidigraph": "MultiDiGraph",
}
_NODES = {"add_node": 1, "add_edge": 2}
"""The methods that add, with the number of nodes that they take."""

_PARAMETERS = frozenset({"self", "node_for_adding", "u_of_edge", "v_of_edge", "u_for_edge", "v_for_edge"})
"""The names of the nodes, which no attribute may have."""

_WITH_KEYS = frozenset({"MultiGraph", "MultiDiGraph"})
"""The classes whose `add_edge` returns the key of the edge."""

_COUNTS = frozenset({"number_of_nodes", "number_of_edges", "order", "size"})


def is_graph_class(cls: Any) -> bool:
    """Whether the class is one of networkx's own."""
    name = foreign.module_of(cls) if foreign.is_class(cls) else ""
    module = sys.modules.get(name) if name in _MODULES else None
    return type(module) is types.ModuleType and vars(module).get(_MODULES[name]) is cls


def make_graph(run: Any, cls: type, args: Arguments, kwargs: dict[str, Any]) -> Unknown:
    """Return a graph that a program makes. Raises: Barrier for a graph of data."""
    if args or kwargs:
        raise Barrier("it makes a graph of data")
    return run.unknown(holds=cls, is_safe=True)  # type: ignore[no-any-return]


def method_of(graph_class: Any, function: Any) -> Handler | None:
    """Return the handler of a method of a graph class, if known."""
    if type(function) is not types.FunctionType or not is_graph_class(graph_class):
        return None
    name = function.__name__
    if foreign.in_mro(graph_class, name) is not function:
        return None
    if name == "copy" or name in _COUNTS:
        return _copy if name == "copy" else _count
    return _adding(name) if name in _NODES else None


def native_of(function: types.FunctionType) -> Handler | None:
    """Return the handler of a method that is called for a graph which the program did not make."""

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        held = args[0].held if args and type(args[0]) is Opaque else None
        handler = method_of(type(held), function)
        if handler is None:
            raise Barrier(f"it calls {function.__name__} of a graph")
        return handler(run, args, kwargs)

    name = function.__module__
    is_known = name in _MODULES and function.__name__ in {"copy", *_COUNTS, *_NODES}
    return handle if is_known else None


def _count(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Unknown:
    is_safe = len(args) == 1 and not kwargs and _has_own_parts(args[0])
    return run.unknown(*args, holds="number", is_safe=is_safe)  # type: ignore[no-any-return]


def _copy(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Unknown:
    if len(args) != 1 or kwargs or not _has_own_parts(args[0]):
        raise Barrier("it makes a view of a graph, or copies one")
    cls = type(args[0].held) if type(args[0]) is Opaque else args[0].holds
    return run.unknown(holds=cls, is_safe=True)  # type: ignore[no-any-return]


def _has_own_parts(graph: Any) -> bool:
    """Whether a graph holds its nodes and edges itself: a view counts those that its filters let through."""
    own = (foreign.own_attributes(graph.held) or {}) if type(graph) is Opaque else None
    return own is None or all(type(own.get(name)) is dict for name in ("_node", "_adj"))


def _adding(name: str) -> Handler:
    def add(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        graph, nodes = args[0], args[1:]
        hashed = (*nodes, kwargs.get("key", ""))  # the key of an edge
        is_usual = len(nodes) == _NODES[name] and _PARAMETERS.isdisjoint(kwargs)
        if not is_usual or not all(amounts.is_atom(amounts.holds_of(each)) for each in hashed):
            run.raises(run.sources(*hashed))
        if type(graph) is Opaque:
            stored = (*nodes, *kwargs.values())
            run.store((id(graph.held), name), graph.held, stored, "it changes a graph that it did not make")
        elif graph.sources:  # one without is made by the program, or for it
            raise Barrier("it changes a graph that may be another's")
        cls = type(graph.held) if type(graph) is Opaque else graph.holds
        return run.unknown(is_safe=True) if foreign.name_of_class(cls) in _WITH_KEYS and name == "add_edge" else None

    return add
