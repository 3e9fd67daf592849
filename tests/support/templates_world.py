"""Random templates over fakes whose answers depend on all that they are asked, and on what is in the stores by then."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from teola_plugin.engines import Batch, Capabilities, Completion, Delta, Done, Emit
from teola_plugin.graph import Graph
from teola_plugin.templates import (
    Apply,
    Branches,
    Chunking,
    Condition,
    Embedding,
    Generation,
    Ingestion,
    Loop,
    QueryExpansion,
    Reranking,
    Searching,
    Situating,
    Step,
    Synthesis,
    Tool,
    WebSearch,
)
from teola_plugin.templates.decompose import Decomposed
from teola_plugin.templates.flow import Chain, Component, as_step, chain, components
from teola_plugin.templates.values import shared
from tests.support.interpret import EngineFunction

ENGINES = ("llm", "embedder", "store", "reranker", "search", "tools")
INPUTS = {
    "question": "who is it?",
    "document": "one two three four five six seven eight nine ten",
    "topics": ["a", "b"],
}
DEEPEST = 3


def number(*parts: Any) -> int:
    return crc32(repr(parts).encode())


def functions_of(decomposed: Decomposed) -> dict[str, Any]:
    """What `fn=` stands for, as the interpreter has it."""
    return {**{name: function.call for name, function in decomposed.functions.items()}, **decomposed.rounds}


class World:
    """The engines of one run, as in `tests.support.world.World`. A store is keyed by the query that it belongs to."""

    def __init__(self, graph: Graph, decomposed: Decomposed | None) -> None:
        self.rows: dict[str, dict[str, str]] = {"store": {}, "tools": {}}
        self.engines: dict[str, EngineFunction] = {
            name: lambda op, payload, settings, name=name: self.answer(name, op, payload, settings) for name in ENGINES
        }
        self.functions = functions_of(decomposed) if decomposed else {}

    def answer(self, engine: str, op: str, payload: Any, settings: Mapping[str, Any]) -> Any:
        seen = tuple(sorted(self.rows.get(engine, {}).items()))
        told = (op, payload, tuple(sorted(settings.items())))
        match op:
            case "ingestion":
                self.rows[engine][repr(payload)] = "added"
                return None
            case "tool" if "by" in settings:
                self.rows[engine][repr(payload)] = settings["by"]
                return f"done<{number(told)}>"
            case "searching" | "websearch":
                return {"documents": [f"text {(number(told, seen) + n) % 50}" for n in range(settings["top_k"])]}
            case "reranking":
                return number(told) % 1000 / 1000
            case "decoding":
                return "\n".join(f"line {n} of {number(told)}" for n in range(number(told) % 4))
            case _:
                return f"{op}<{number(told, seen)}>"


class WorldEngine:
    """One engine of a world, for a host."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world
        self.capabilities = Capabilities(max_items=3, prefix=name == "llm", concurrent=name == "llm", abort=True)

    async def run(self, batch: Batch, emit: Emit) -> None:
        for position, item in enumerate(batch.items):
            if batch.op == "partial_prefilling":
                emit(position, Done(1))
                continue
            value = self.world.answer(self.name, batch.op, item.payload, batch.settings)
            if batch.op == "decoding":
                value = Completion(value, pieces=list(value))
                for piece in value.pieces:
                    emit(position, Delta(piece))
            emit(position, Done(value))

    def abort(self, ids: Any) -> None:
        pass

    async def close(self) -> None:
        pass


# --- random templates -----------------------------------------------------------------------------------------------


@dataclass
class Maker:
    """`values`: by name, which list each of their levels is. `touches`: each step reads or writes a store.

    `is_plain`: of functions only, once for each query; `applied` are those, with what they take and give.
    """

    drawn: random.Random
    values: dict[str, tuple[str, ...]] = field(
        default_factory=lambda: {"question": (), "document": (), "topics": ("topics",)}
    )
    count: int = 0
    depth: int = 0
    touches: bool = False
    is_plain: bool = False
    applied: dict[int, tuple[Callable[..., Any], list[str], str]] = field(default_factory=dict)

    def template(self) -> Step:
        return self.steps(self.drawn.randint(2, 6))

    def steps(self, count: int) -> Step:
        made = [self.step() for _ in range(count)]
        return chain(*made)

    def step(self) -> Step:
        touching: list[Callable[[], Step | None]] = [self.indexing, self.searching, self.tool, self.tool]
        kinds: list[Callable[[], Step | None]] = touching if self.touches else [self.apply] if self.is_plain else [
            self.generation, self.generation, self.expansion, self.indexing, self.searching, self.searching,
            self.reranking, self.synthesis, self.synthesis, self.apply, self.tool,
        ]  # fmt: skip
        if self.depth < 2 and not self.touches:
            kinds += [self.condition, self.loop, self.branches]
        while True:
            if made := self.drawn.choice(kinds)():
                return made

    def applying(self, function: Callable[..., Any], of: list[str], to: str, **more: Any) -> Component:
        component = Apply(function, of, to, **more)
        self.applied[id(component)] = (function, of, to)
        return component

    # --- drawing -----------------------------------------------------------------------------------------------------

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}_{self.count}"

    def flip(self, chance: float = 0.5) -> bool:
        return self.drawn.random() < chance

    def name(self, fits: Callable[[tuple[str, ...]], bool] = lambda levels: True) -> str | None:
        names = [name for name, levels in self.values.items() if fits(levels)]
        return self.drawn.choice(names) if names else None

    def scope(self, below: tuple[str, ...] | None = None) -> tuple[str, tuple[str, ...]]:
        """The name of a list and its levels; with `below`, one around the innermost of these."""
        lists = [
            (name, levels)
            for name, levels in self.values.items()
            if levels and (below is None or (len(levels) < len(below) and below[: len(levels)] == levels))
        ]
        return self.drawn.choice(lists) if lists and self.flip() else ("request", ())

    def names(self, scope: str, levels: tuple[str, ...]) -> list[str]:
        """One or two that a component of this scope may take."""
        fits = [n for n, other in self.values.items() if shared(other, levels) in (0, min(len(other), len(levels)))]
        names = [self.drawn.choice(fits), scope if levels else self.drawn.choice(fits)]
        self.drawn.shuffle(names)
        return list(dict.fromkeys(names))

    def given(self, name: str, levels: tuple[str, ...]) -> None:
        self.values[name] = levels

    # --- components --------------------------------------------------------------------------------------------------

    def generation(self) -> Step:
        scope, levels = self.scope()
        names = self.names(scope, levels)
        to, items = self.fresh("text"), self.flip() and len(levels) < DEEPEST
        self.given(to, (*levels, to) if items else levels)
        return Generation(
            "Write: " + " and ".join(f"{{{n}}}" for n in names), to, scope=scope, items="lines" if items else None,
            wanted=self.drawn.choice([None, 1, 2]) if items else None, splittable=self.flip(0.8), max_tokens=4,
        )  # fmt: skip

    def expansion(self) -> Step:
        scope, levels = self.scope()
        source = scope if levels else self.drawn.choice(list(self.values))
        to = self.fresh("queries")
        self.given(to, (*levels, to))
        return QueryExpansion(
            self.drawn.randint(1, 3), scope=scope, takes={"question": source}, gives={"queries": to},
            splittable=self.flip(0.8),
        )  # fmt: skip

    def indexing(self) -> Step | None:
        source = self.name(lambda levels: len(levels) < DEEPEST - 1)
        if source is None:
            return None
        chunks, vectors = self.fresh("chunks"), self.fresh("vectors")
        levels = (*self.values[source], chunks)
        self.given(chunks, levels)
        steps: list[Step] = [
            Chunking(self.drawn.randint(2, 5), 1, takes={"document": source}, gives={"chunks": chunks})
        ]
        if self.flip(0.3):
            situated = self.fresh("situated")
            steps.append(Situating(2, takes={"chunks": chunks}, gives={"situated": situated}))
            self.given(situated, levels)
            chunks = situated
        steps.append(Embedding(takes={"texts": chunks}, gives={"vectors": vectors}, batchable=self.flip(0.8)))
        done = self.fresh("ingested")
        steps.append(Ingestion("store", takes={"vectors": vectors, "texts": chunks}, gives={"ingested": done}))
        return chain(*steps)

    def searching(self) -> Step | None:
        source = self.name(lambda levels: len(levels) < DEEPEST)
        if source is None:
            return None
        to, top_k = self.fresh("found"), self.drawn.randint(1, 4)
        self.given(to, (*self.values[source], to))
        if self.flip():
            return WebSearch(top_k, takes={"queries": source}, gives={"results": to})
        return Searching(top_k, within="store", takes={"queries": source}, gives={"found": to})

    def reranking(self) -> Step | None:
        passages = self.name(lambda levels: len(levels) > 0)
        if passages is None:
            return None
        levels = self.values[passages]
        question = self.name(lambda other: len(other) <= len(levels) and shared(other, levels) == len(other))
        scope, outer = self.scope(levels)
        to = self.fresh("best")
        self.given(to, (*outer, to))
        return Reranking(
            self.drawn.randint(1, 3), scope=scope, takes={"question": question or "question", "passages": passages},
            gives={"best": to},
        )  # fmt: skip

    def synthesis(self) -> Step | None:
        passages = self.name(lambda levels: len(levels) > 0)
        if passages is None:
            return None
        levels = self.values[passages]
        scope, outer = self.scope(levels)
        mode = self.drawn.choice(["one-shot", "tree"] if outer else ["one-shot", "tree", "refine"])
        to = self.fresh("answer")
        self.given(to, outer)
        return Synthesis(
            mode, scope=scope, passages=self.drawn.randint(1, 4), takes={"passages": passages}, gives={"answer": to}
        )

    def apply(self) -> Step:
        scope, levels = ("request", ()) if self.is_plain else self.scope()
        to = self.fresh("made")
        makes_list = self.flip() and len(levels) < DEEPEST
        function, names = several if makes_list else told, self.names(scope, levels)
        self.given(to, (*levels, to) if makes_list else levels)
        return self.applying(function, names, to, makes_list=makes_list, scope=scope)

    def tool(self) -> Step | None:
        source = self.name()
        assert source is not None
        to = self.fresh("observed")
        self.given(to, self.values[source])
        if self.flip():
            return Tool(source, to, writes=("tools",), settings={"by": to})
        return Tool(source, to, reads=("tools",))

    # --- control -----------------------------------------------------------------------------------------------------

    def inside(self, steps: int) -> tuple[Step, dict[str, tuple[str, ...]]]:
        """Some steps, and what they give; nobody else sees that yet."""
        before = dict(self.values)
        self.depth += 1
        made = self.steps(steps)
        self.depth -= 1
        given = {name: levels for name, levels in self.values.items() if name not in before}
        self.values = before
        return made, given

    def condition(self) -> Step:
        of = self.drawn.choice(list(self.values))
        then, given = self.inside(self.drawn.randint(1, 2))
        both = self.fresh("either")
        source = self.drawn.choice(list(self.values))
        then = chain(then, self.applying(told, [source], both))
        otherwise: Step | None = None
        if self.flip():
            more, others = self.inside(1)
            given |= others
            otherwise = chain(self.applying(others_told, [source], both), more)
        for name, levels in given.items():
            self.given(name, (name,) if levels else ())
        self.given(both, ())
        return Condition(is_even, of, then, otherwise, name=self.fresh("decision"))

    def loop(self) -> Step:
        state, source = self.fresh("state"), self.drawn.choice(list(self.values))
        first = self.applying(told, [source], state)
        self.given(state, ())
        body, given = self.inside(self.drawn.randint(1, 2))
        seen = self.drawn.choice([state, *given])
        again = self.applying(told, list(dict.fromkeys([state, seen])), state)
        for name, levels in given.items():
            self.given(name, (name,) if levels else ())
        at_most = self.drawn.choice([1, 2, 3, 5, None])
        loop = Loop(chain(body, again), is_even, state, at_most=at_most, name=self.fresh("rounds"))
        return chain(first, loop)

    def branches(self) -> Step:
        self.touches = self.flip() and not self.is_plain  # both do something to the same stores
        ways = [self.inside(self.drawn.randint(1, 2)) for _ in range(2)]
        self.touches = False
        for _, given in ways:
            self.values |= given
        made = [way for way, _ in ways]
        return Branches(tuple(reversed(made)) if self.flip() else tuple(made))


def meaning(step: Step, values: dict[str, Any], maker: Maker) -> dict[str, Any]:
    """What a template of functions gives, said without graphs."""
    match as_step(step):
        case Component() as component:
            function, names, to = maker.applied[id(component)]
            return {to: function(*(values[name] for name in names))}
        case Chain(steps=parts) | Branches(ways=parts):
            given: dict[str, Any] = {}
            for part in parts:
                given |= meaning(part, values | given, maker)
            return given
        case Condition(test=test, of=str(of), then=then, otherwise=otherwise):
            taken, other = (then, otherwise) if test(values[of]) else (otherwise, then)
            names = {} if other is None else {name: None for c in components(other) for name in c.outputs.values()}
            before = {name: values.get(name, [] if maker.values[name] else "") for name in names}
            return before | ({} if taken is None else meaning(taken, values, maker))
        case Loop(body=body, until=until, of=str(of), at_most=at_most):
            given = {}
            for _ in range(at_most or 1000):
                given |= meaning(body, values | given, maker)
                if until(given[of]):
                    break
            return given
        case other_step:
            raise AssertionError(other_step)


def told(*args: Any) -> str:
    return f"told<{number(args)}>"


def others_told(*args: Any) -> str:
    return f"others<{number(args)}>"


def several(*args: Any) -> list[str]:
    return [f"item {n} of {number(args)}" for n in range(number(args) % 4)]


def is_even(*args: Any) -> bool:
    return number(args) % 2 == 0
