"""A p-graph under construction.

Each method adds one primitive and returns its name; names are made unique by a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from teola_plugin.adapters.leaf import plain_class
from teola_plugin.adapters.llamaindex.observers import await_value
from teola_plugin.adapters.methods import Methods
from teola_plugin.engines import EngineSpec
from teola_plugin.graph import PIPELINE, Arg, Graph, Input, Primitive, Ref, validate
from teola_plugin.graph_builder import GraphBuilder, unique
from teola_plugin.trace import Function, Traced

_METHODS = (
    "query", "aquery", "_query", "_aquery", "retrieve", "aretrieve", "_retrieve", "_aretrieve",
    "synthesize", "asynthesize", "get_response", "aget_response",
    "postprocess_nodes", "apostprocess_nodes", "_postprocess_nodes", "_apostprocess_nodes",
    "complete", "acomplete", "chat", "achat", "predict", "apredict", "structured_predict", "astructured_predict",
    "_complete", "_acomplete", "_chat", "_achat", "_get_query_embedding", "_aget_query_embedding",
    "get_query_embedding", "aget_query_embedding", "get_agg_embedding_from_queries", "aget_agg_embedding_from_queries",
    "_get_nodes_with_embeddings", "_aget_nodes_with_embeddings", "_handle_recursive_retrieval",
    "format", "format_messages",
)  # fmt: skip
"""Methods that a run of the graph stands in for, or calls."""


def star(name: str) -> Ref:
    """Return a reference to each item of `name`."""
    return Ref(name, star=True)


class Draft(GraphBuilder):
    """The graph of one component, built step by step.

    Gates (see `GraphBuilder`) are functions of the user's, and values of the framework's run. LlamaIndex's own glue
    raises only for malformed replies.
    """

    def __init__(self, *, is_async: bool = False) -> None:
        """`is_async`: the graph is for calls from a coroutine, if the two kinds of calls differ; see `has_modes`."""
        super().__init__()
        self.is_async = is_async
        self.has_modes = False
        self.covered: set[int] = set()
        self.ahead: set[int] = set()
        self._origin = ""
        self._static: list[tuple[object, Any]] = []
        self._conditions: list[Callable[[], bool]] = []
        self._awaits_run = False
        self._methods = Methods(_METHODS)

    def reading(self, component: object) -> None:
        """Make the component the origin of all primitives added from now on."""
        self._origin = plain_class(component).__name__

    def take(self, name: str) -> str:
        """Reserve the name of an input, so no primitive gets the name."""
        self.taken.add(name)
        return name

    def cover(self, *components: object) -> None:
        """Mark components with all requests predicted by the graph, so no second prediction covers a component."""
        self.covered.update(map(id, components))
        self.rely_on_methods(*map(plain_class, components))

    def run_ahead(self, *components: object) -> None:
        """As `cover`; but the graph runs these components' own code, so their inner components are entered there."""
        self.cover(*components)
        self.ahead.update(map(id, components))

    @property
    def is_whole(self) -> bool:
        """Whether everything was read, and only later steps of an answer are left to the framework."""
        is_left = any(p.engine == PIPELINE for p in self.primitives.values())
        return not is_left and all(b.code == "TB214" for b in self.breaks)

    def rely_on(self, *components: object) -> None:
        """Note that the graph holds settings of these components, and no longer fits once the settings change."""
        self._static += [(component, _state(component)) for component in components]
        self.rely_on_methods(*map(plain_class, components))

    def rely_on_methods(self, *classes: type) -> None:
        """Note that the graph no longer fits once a method of these classes is replaced."""
        for each in classes:
            self._methods.note(each)

    def rely_on_that(self, holds: Callable[[], bool]) -> None:
        """Note that the graph fits only as long as the condition `holds`."""
        self._conditions.append(holds)

    def still_fits(self) -> bool:
        """Whether all settings and conditions of the graph, and the methods of the components, are unchanged."""
        is_same = (
            not self._methods.replaced
            and self._methods.are_unchanged()
            and all(_state(component) == state for component, state in self._static)
        )
        return is_same and all(holds() for holds in self._conditions)

    def call(
        self, name: str, fn: str, function: Callable[..., Any], *args: str | Ref, depth: int = 0,
        is_rehearsal: bool = False, may_raise: bool = False,
    ) -> str:  # fmt: skip
        """Add a pure function of values. `is_rehearsal`: the function runs framework code, which takes milliseconds.

        `may_raise`: for values that are possible here.
        """
        if self._awaits_run:
            function = self._if_it_fits(function)
        fn = self.function(fn, Function(function, is_glue=not is_rehearsal, is_total=not may_raise))
        refs = tuple(Ref(arg) if isinstance(arg, str) else arg for arg in args)
        name = self._add(name, "call", refs, {"fn": fn}, "python", depth)
        if may_raise:
            self.gate(name)
        return name

    def run(
        self, name: str, fn: str, function: Callable[..., Any], *args: Arg, depth: int = 0,
        engine: tuple[str, EngineSpec] | None = None, is_async: bool | None = None, is_outside: bool = False,
    ) -> str:  # fmt: skip
        """Add a run of a component that asks models and stores itself. A coroutine function in a call from a coroutine.

        `engine`: the engine that the run waits for, by name. `is_async`: overrides whether the function is a coroutine
        function. `is_outside`: requests of the run leave this process.
        """
        self.has_modes = True
        is_async = self.is_async if is_async is None else is_async
        fn = self.function(fn, Function(function, asks=True, is_async=is_async))
        asked = self.engine(engine[1], engine[0]) if engine else "python"
        name = self._add(name, "call", args, {"fn": fn}, asked, depth, is_outside=is_outside)
        self.gate(name)
        return name

    def ask(
        self, name: str, kind: str, spec: EngineSpec, *args: Arg, depth: int = 0,
        settings: Mapping[str, Any] | None = None, reads: tuple[str, ...] = (),
    ) -> str:  # fmt: skip
        """Add work for an engine."""
        engine = self.engine(spec, kind)
        return self._add(name, kind, args, dict(settings or {}), engine, depth, reads, is_outside=spec.is_outside)

    def await_run(self, name: str, component: object, fn: str, *args: str, depth: int = 0) -> str:
        """Add a value that only the framework's own run of `component` may compute; the plan goes on from the value."""
        fn = unique(fn, self.functions)
        name = self._add(name, "call", tuple(map(Ref, args)), {"fn": fn}, PIPELINE, depth)
        self.observed[id(component)] = name
        self.gate(name)
        await_value(component)
        self._awaits_run = True
        return name

    def _if_it_fits(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that raises LookupError once the graph no longer fits: code of the user's ran before it."""

        def call(*args: Any) -> Any:
            if not self.still_fits():
                raise LookupError("a component was changed by the run")
            return function(*args)

        return call

    def leave(self, code: str, component: object, detail: str = "", hint: str = "") -> None:
        """Note the reason why a part of `component` is left to the framework."""
        origin = plain_class(component).__name__
        self.add_break(code, origin, origin, detail, hint)

    def traced(
        self, inputs: tuple[str, ...], outputs: tuple[str, ...], bind: Callable[[Any], Mapping[str, Any]]
    ) -> Traced:
        """Return the finished p-graph, with the used inputs only."""
        self.gate_requests()
        primitives = tuple(self.primitives.values())
        used = {ref.name for p in primitives for ref in p.refs} - self.primitives.keys()
        known = tuple(Input(name) for name in inputs if name in used)
        graph = validate(Graph(known, primitives, outputs))
        return Traced(graph, self.functions, self.engines, bind, self.observed, tuple(self.breaks))

    def _add(
        self, name: str, kind: str, args: tuple[Arg, ...], settings: Mapping[str, Any], engine: str, depth: int,
        reads: tuple[str, ...] = (), is_outside: bool = False,
    ) -> str:  # fmt: skip
        name = self.unique(name)
        added = Primitive(name, kind, args, tuple(settings.items()), engine, depth, reads, origin=self._origin)
        self.append(added, is_outside=is_outside)
        return name


def _state(component: object) -> Any:
    """Return attributes by value if plain, else by identity. Callback managers come and go without effect."""
    state: dict[str, Any] = {}
    for name, value in vars(component).items():
        if isinstance(value, str | int | float | None):
            state[name] = value
        elif "callback_manager" not in name:
            state[name] = [id(v) for v in value] if isinstance(value, list) else id(value)
    return state
