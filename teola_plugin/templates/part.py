"""The part of a graph made by one component: the rule adds primitives to the part.

    def shout(part: Part) -> None:
        part.give("loud", part.call("upper", part.value("text"), named="loud"))

The levels of the values (values.py) decide the mapping over lists. With `levels` the lists for whose items the
component runs, an argument

- in the same lists, or in fewer, is passed item by item, or to all items below;
- in more lists is the list below the item: an aggregation scope;
- in different lists is passed whole.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from teola_plugin.effects import declared_effects
from teola_plugin.errors import GraphError
from teola_plugin.graph import Arg, Input, Literal, Primitive, Ref, When, conflicts
from teola_plugin.graph_builder import GraphBuilder, unique
from teola_plugin.rounds import Rounds
from teola_plugin.templates.functions import GLUE
from teola_plugin.templates.options import placeholders
from teola_plugin.templates.values import Levels, Value, shared
from teola_plugin.trace import Function

OPEN = ("call", "tool", "websearch", "aggregate")
"""Kinds whose depth alone does not show that a list below an item becomes another list."""

STAGED = ("embedding", "ingestion", "searching", "reranking", "websearch", "tool")
CALLED = ("call", "condition", "chunking")


class Draft(GraphBuilder):
    """The graph of a template while being built.

    `guard`: the condition of the primitives being added. `effects`: the writing primitives. `rounds`: the functions
    that are graphs.
    """

    def __init__(self, taken: set[str]) -> None:
        super().__init__(taken)
        self.inputs: dict[str, Input] = {}
        self.rounds: dict[str, Rounds] = {}
        self.guard: When | None = None
        self.effects: list[str] = []

    def call(self, name: str, call: Callable[..., Any]) -> str:
        """Return the name of a function in the graph."""
        return self.function(name, Function(call, is_glue=GLUE.get(name) is call), (name, id(call)))

    @property
    def function_names(self) -> Container[str]:
        """See `GraphBuilder.function_names`."""
        return {*self.functions, *self.rounds}

    def add_rounds(self, name: str, rounds: Rounds) -> str:
        """Return the name of the rounds in the graph."""
        name = unique(name, self.function_names)
        self.rounds[name] = rounds
        return name

    def append(self, primitive: Primitive, *, is_outside: bool = False) -> None:
        """Add a primitive, after all conflicting primitives."""
        before = [p.name for p in self.primitives.values() if conflicts(p, primitive)]
        after = tuple(dict.fromkeys((*primitive.after, *before)))
        super().append(replace(primitive, after=after), is_outside=is_outside)
        if primitive.writes:
            self.effects.append(primitive.name)


@dataclass
class Part:
    """One component in one query's graph.

    `values`: the inputs, by role. `outputs`: names of the outputs, by role. `levels`: the lists for whose items the
    component runs; `before`: the primitives which come before the whole part. `given`: the outputs so far, by role.
    """

    name: str
    draft: Draft
    values: Mapping[str, Value]
    outputs: Mapping[str, str]
    options: Mapping[str, Any]
    engines: Mapping[str, str]
    levels: Levels = ()
    before: tuple[str, ...] = ()
    batchable: bool = True
    splittable: bool = True
    origin: str = ""
    added: list[str] = field(default_factory=list)
    given: dict[str, Value] = field(default_factory=dict)

    def value(self, role: str) -> Value:
        """Return the input of a role."""
        return self.values[role]

    def option(self, name: str) -> Any:
        """Return the query's value of an option."""
        return self.options[name]

    def give(self, role: str, value: Value) -> None:
        """Set the component's output of a role."""
        self.given[role] = value

    def fault(self, where: str, problem: str) -> GraphError:
        """Return the error which names the faulty field."""
        return GraphError(f"component {self.name!r}: {where}: {problem}")

    def deepest(self, *values: Value) -> Levels:
        """Return the levels of the value in the most lists.

        Raises: GraphError if the values stand in different lists.
        """
        deepest = max((v.levels for v in values), key=len, default=())
        for value in values:
            if shared(value.levels, deepest) < value.depth:
                raise self.fault("takes", f"{value.name} and {deepest[-1]} stand in different lists")
        return deepest

    # --- adding ------------------------------------------------------------------------------------------------------

    def add(
        self, kind: str, *args: Any, engine: str = "", levels: Levels | None = None, named: str = "",
        makes_list: bool = False, most: int | None = None, reads: tuple[str, ...] = (), writes: tuple[str, ...] = (),
        **settings: Any,
    ) -> Value:  # fmt: skip
        """Add a primitive and return its value. `args`: values and constants. `engine`: a role; none: python.

        `named`: the role of the output, or another name. `makes_list`: each instance makes a list, of at most `most`
        items. `levels`: the part's levels by default.

        Raises: GraphError if two of the arguments stand in different lists.
        """
        levels = self.levels if levels is None else levels
        levels = levels[: max((self._shared(a, levels) for a in args if isinstance(a, Value)), default=0)]
        stars = [isinstance(a, Value) and self._shared(a, levels) > 0 for a in args]
        deeper = any(star and a.depth > len(levels) for star, a in zip(stars, args, strict=True))
        if makes_list and deeper and kind in OPEN:
            whole = self.add(kind, *args, engine=engine, levels=levels, named=f"{self._wanted(named, kind)}_of_each",
                             reads=reads, writes=writes, **settings)  # fmt: skip
            return self.call("same", whole, named=named, makes_list=True, most=most, levels=levels)
        name = self.draft.unique(self._wanted(named, kind))
        is_fold = kind == "ingestion"
        made = () if is_fold else (*levels, *([name] if makes_list else []))
        if not self.batchable and kind in STAGED:
            settings["stage_items"] = 0
        given = tuple((k, v) for k, v in settings.items() if v is not None)
        refs = tuple(_arg(a, star) for a, star in zip(args, stars, strict=True))
        engine_name = self.engines[engine] if engine else "python" if kind in CALLED else ""
        awaited = {a.name for a, star in zip(args, stars, strict=True) if isinstance(a, Value) and not star}
        before = tuple(n for n in self.before if n not in awaited)
        guard, origin = self.draft.guard, self.origin
        self.draft.append(
            Primitive(name, kind, refs, given, engine_name, len(made), reads, writes, before, guard, origin)
        )
        self.added.append(name)
        return Value(name, made, most)

    def call(self, function: str | Callable[..., Any], *args: Any, fn: str = "", **more: Any) -> Value:
        """Add a call of one of our functions (by name), or of a user function, and return its value.

        Effects of a user function may be declared by `teola_plugin.reads` and `writes`, as anywhere.
        """
        if isinstance(function, str):
            return self.add("call", *args, fn=self.draft.call(function, GLUE[function]), **more)
        effects = declared_effects(function)
        if effects is not None:
            more = {"reads": effects.reads, "writes": effects.writes, **more}
        return self.add("call", *args, fn=self.draft.call(fn or self.name, function), **more)

    def last(self, values: Sequence[Value], *, named: str = "") -> Value:
        """Return the last of the values which ran; a single value or a list, not a list of lists."""
        depth = max(v.depth for v in values)
        if depth > 1 or any(v.depth != depth for v in values):
            what = ", ".join(f"{v.name} ({v.depth} lists deep)" for v in values)
            raise self.fault("gives", f"there is no choosing among {what}: they must be single values, or lists")
        name = self.draft.unique(self._wanted(named, "last"))
        refs = tuple(Ref(v.name) for v in reversed(values))
        primitive = Primitive(name, "aggregate", refs, depth=depth, when=self.draft.guard, origin=self.origin)
        self.draft.append(primitive)
        self.added.append(name)
        most = [v.most for v in values]
        return Value(name, (name,) * depth, None if None in most else max(m for m in most if m is not None))

    # --- prompts -----------------------------------------------------------------------------------------------------

    def generate(
        self, prompt: str, engine: str, *, levels: Levels | None = None, named: str = "", items: str | None = None,
        wanted: int | None = None, blanks: Mapping[str, Any] | None = None, **settings: Any,
    ) -> Value:  # fmt: skip
        """Return the LLM's text for the prompt of an option: a prefill and a decoding.

        With an item grammar the value is a list, of which the first `wanted` items count. `blanks`: replacements for
        names in braces which name no value.
        """
        name = self._wanted(named, "text")
        pieces = self.pieces(prompt, levels, blanks or {})
        kv = self.add("prefilling", *pieces, engine=engine, levels=levels, named=f"{name}_kv")
        if items is None or self.splittable:
            grammar: dict[str, Any] = {"items": items, "wanted": wanted} if items else {}
            return self.add(
                "decoding", kv, engine=engine, named=named, levels=kv.levels, makes_list=items is not None, most=wanted,
                **grammar, **settings,
            )  # fmt: skip
        text = self.add("decoding", kv, engine=engine, named=f"{name}_text", levels=kv.levels, **settings)
        return self.call("parsed", text, items, wanted, named=named, levels=kv.levels, makes_list=True, most=wanted)

    def pieces(self, prompt: str, levels: Levels | None = None, blanks: Mapping[str, Any] | None = None) -> list[Any]:
        """Return the constants and values of a prompt; a list is joined to one text."""
        levels = self.levels if levels is None else levels
        pieces: list[Any] = []
        for before, name in placeholders(self.option(prompt)):
            pieces.append(before)
            if name is not None:
                blank = blanks[name] if blanks and name in blanks else self.value(name)
                pieces.append(self.text(blank, levels) if isinstance(blank, Value) else str(blank))
        return _merged(pieces)

    def text(self, value: Value, levels: Levels | None = None) -> Value:
        """Return one text for each item of `levels`."""
        levels = self.levels if levels is None else levels
        if value.depth <= self._shared(value, levels):
            return value
        return self.call("joined", value, levels=levels, named=f"{value.name}_text")

    def flat(self, value: Value, levels: Levels = ()) -> Value:
        """Return one list for each item of `levels`, with all lists below flattened."""
        if value.depth <= len(levels) + 1:
            return value
        return self.call("flattened", value, levels=levels, named=f"{value.name}_flat", makes_list=True)

    # ----------------------------------------------------------------------------------------------------------------

    def _wanted(self, named: str, kind: str) -> str:
        return self.outputs.get(named, named) or f"{self.name}_{kind}"

    def _shared(self, value: Value, levels: Levels) -> int:
        count = shared(value.levels, levels)
        if 0 < count < min(value.depth, len(levels)):
            raise self.fault("scope", f"{value.name} and {levels[-1]} stand in different lists")
        return count


def _arg(given: Any, star: bool) -> Arg:
    return Ref(given.name, star) if isinstance(given, Value) else Literal(given)


def _merged(pieces: Sequence[Any]) -> list[Any]:
    """Join adjacent constants and drop empty constants."""
    merged: list[Any] = []
    for piece in pieces:
        if piece == "":
            continue
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged
