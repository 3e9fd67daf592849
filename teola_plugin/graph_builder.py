"""A graph under construction, for LangChain pipelines, LlamaIndex components and templates.

    builder = GraphBuilder()
    kv = builder.unique("kv")
    builder.append(Primitive(kv, "prefilling", (Ref("question"),), engine=builder.engine(spec, "prefilling")))

Primitives are kept in program order. The builder makes the names of primitives, functions and engines, and keeps the
objects behind the names.

A step that may raise is a *gate* for each later request that leaves this process (see graph.py).
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Container, Hashable
from typing import Any

from teola_plugin.codes import CODES
from teola_plugin.engines import EngineSpec
from teola_plugin.gates import gate_requests
from teola_plugin.graph import PIPELINE, READER, Primitive
from teola_plugin.trace import Break, Function

ENGINE_NAMES = {
    "embedding": "embedder",
    "searching": "store",
    "reranking": "reranker",
    "decoding": "llm",
    "prefilling": "llm",
}
"""The name of an unnamed engine, by its first operation."""


def unique(name: str, taken: Container[str]) -> str:
    """Return an identifier like `name` that is not taken."""
    name = re.sub(r"\W+", "_", name).strip("_") or "value"
    if name[0].isdigit() or keyword.iskeyword(name):
        name = f"_{name}"
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name}_{number}", number + 1
    return candidate


class GraphBuilder:
    """The primitives, functions and engines of a graph, by name, and the reasons why parts are left out.

    `observed`: the primitives @ pipeline or @ reader that the framework's run reports, by the `id` of the component.
    `taken`: names that no primitive may get; a nested graph shares the set with the graph around it.
    """

    def __init__(self, taken: set[str] | None = None) -> None:
        self.primitives: dict[str, Primitive] = {}
        self.functions: dict[str, Function] = {}
        self.engines: dict[str, EngineSpec] = {}
        self.observed: dict[int, str] = {}
        self.breaks: list[Break] = []
        self.taken: set[str] = set() if taken is None else taken
        self.gates: tuple[str, ...] = ()
        self._gates_before: dict[str, tuple[str, ...]] = {}
        self._known_functions: dict[Hashable, str] = {}

    def unique(self, name: str) -> str:
        """Return a name like `name` for a primitive or an input, and take it."""
        name = unique(name, self.taken)
        self.taken.add(name)
        return name

    def function(self, name: str, function: Function, identity: Any = None) -> str:
        """Return the name of a function; functions with the same `identity`, if given, share a name."""
        if identity is not None and identity in self._known_functions:
            return self._known_functions[identity]
        name = unique(name, self.function_names)
        self.functions[name] = function
        if identity is not None:
            self._known_functions[identity] = name
        return name

    @property
    def function_names(self) -> Container[str]:
        """The names that no further function may get."""
        return self.functions

    def drop_function(self, name: str) -> None:
        """Remove a function."""
        del self.functions[name]
        self._known_functions = {k: known for k, known in self._known_functions.items() if known != name}

    def engine(self, spec: EngineSpec, kind: str) -> str:
        """Return the name of an engine; `kind`: the operation, or a name, where the engine has no name."""
        for name, known in self.engines.items():
            if known.key == spec.key:
                return name
        name = unique(spec.name or ENGINE_NAMES.get(kind, kind), {*self.engines, PIPELINE, READER})
        self.engines[name] = spec
        return name

    def append(self, primitive: Primitive, *, is_outside: bool = False) -> None:
        """Add a primitive. `is_outside`: the requests of the primitive leave this process, and wait for all gates."""
        self.primitives[primitive.name] = primitive
        if is_outside:
            self._gates_before[primitive.name] = self.gates

    def gate(self, name: str) -> None:
        """Make a primitive or an input a gate: later steps in program order are reached only with the value."""
        if name not in self.gates:
            self.gates += (name,)

    def gate_requests(self) -> None:
        """Give each request to outside this process its gates. Called once, at the end."""
        gate_requests(self.primitives, self._gates_before)

    def add_break(self, code: str, described: str, origin: str, detail: str = "", hint: str = "") -> None:
        """Note the reason why a part is left to the framework. `described`: the part, in words."""
        what = f"{described}: {CODES[code]}" + (f" ({detail})" if detail else "")
        self.breaks.append(Break(code, what, origin, hint))
