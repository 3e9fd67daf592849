"""Decomposition of a template into a graph of primitives, for one configuration of the options.

    decompose(Chunking() >> Embedding()) -> Decomposed(graph, functions, outputs)

Each component's rule adds the component's primitives. Values are found by exact name: an input of a component must be
an output of an earlier component, or come with the query. The order of a chain becomes order edges, from the last
primitives of a component to all primitives of the next: the order written by the author, and followed by any system
which runs modules in sequence. Pass 1 (prune_dependencies) removes the order edges which neither data nor effects need.
Branches have no other edges between them.

    Condition   c = condition(...); then: when(c); otherwise: when(c, False); each output: aggregate of both
    Loop        round 1; done = until(...); round 2: when(done, False); ...; each output: of the last round
                rounds after UNROLLED: call(...), when(done, False), of `Rounds`: a further graph, for each round

Source: arXiv 2407.00326, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.errors import GraphError
from teola_plugin.graph import Graph, Input, When, validate
from teola_plugin.rounds import Rounds
from teola_plugin.templates.flow import Branches, Chain, Component, Condition, Loop, Step, as_step, components, names_of
from teola_plugin.templates.options import Takes
from teola_plugin.templates.order import in_order
from teola_plugin.templates.part import Draft, Part
from teola_plugin.templates.values import Levels, Value, shared
from teola_plugin.trace import Function

REQUEST = "request"
"""The scope of a component which runs once per query of the application."""

GIVEN = {"question": 0, "document": 0}
"""Values which may come with a query without declaration, with their list depths."""

UNROLLED = 3
"""The number of rounds of a loop which are part of the query's graph, where passes see across rounds (the prompt of a
round is prefilled as far as known). Later rounds are revealed one by one."""


@dataclass(frozen=True, slots=True)
class Decomposed:
    """The graph of a template. `outputs`: the primitive of each value of the answer, by name.

    `functions`, `rounds`: the meaning of `fn=`.
    """

    graph: Graph
    functions: Mapping[str, Function]
    outputs: Mapping[str, str]
    rounds: Mapping[str, Rounds] = field(default_factory=dict)


def decompose(
    template: Step, *, inputs: Mapping[str, int] | None = None, outputs: Sequence[str] = (),
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Decomposed:  # fmt: skip
    """Return the graph of a template. `inputs`: names of values given with a query, with their depths.

    `options`: options of components, by label; missing options keep the component's values. `outputs`: names of the
    values which make the answer, instead of the values of the last component.

    Raises: GraphError naming component and field.
    """
    labels = labels_of(template)
    chosen = {labels[id(c)]: {name: option.value for name, option in c.options.items()} for c in components(template)}
    for label, given in (options or {}).items():
        chosen[label].update(given)
    draft = Draft(taken={*GIVEN, *(inputs or {})})
    return _Decomposition(template, inputs or {}, labels, chosen, outputs, draft).run()


def labels_of(template: Step) -> dict[int, str]:
    """Return a unique label for each component, by id. Raises: GraphError for a component used twice."""
    labels: dict[int, str] = {}
    for component in components(template):
        if id(component) in labels:
            raise GraphError(
                f"component {component.name!r} comes after itself: a cycle; make another component, or a Loop"
            )
        label, number = component.name, 1
        while label in labels.values():
            number += 1
            label = f"{component.name}_{number}"
        labels[id(component)] = label
    if not labels:
        raise GraphError("the template has no component")
    return labels


@dataclass
class _Scope:
    """The available values by name, and the outputs of a step, in order."""

    values: dict[str, Value]
    given: dict[str, Value] = field(default_factory=dict)
    may_give_anew: frozenset[str] = frozenset()

    def give(self, name: str, value: Value) -> None:
        self.values[name] = self.given[name] = value

    def inner(self, may_give_anew: Iterable[str] = ()) -> _Scope:
        return _Scope(dict(self.values), {}, frozenset(may_give_anew))


@dataclass
class _Decomposition:
    """The decomposition of one template."""

    template: Step
    inputs: Mapping[str, int]
    labels: Mapping[int, str]
    options: Mapping[str, Mapping[str, Any]]
    outputs: Sequence[str]
    draft: Draft
    truths: dict[int, Callable[..., bool]] = field(default_factory=dict)

    def run(self) -> Decomposed:
        scope = _Scope({})
        self._step(self.template, scope, ())
        last = self._last(self.template)
        for name in self.outputs:
            if name not in scope.values:
                raise GraphError(f"outputs: nothing gives {name!r}, but {', '.join(scope.values) or 'nothing'}")
        wanted = {name: scope.values[name].name for name in self.outputs or last}
        # A writing primitive is an output too: if the write fails, the query has failed.
        names = tuple(dict.fromkeys((*wanted.values(), *self.draft.effects)))
        graph = Graph(tuple(self.draft.inputs.values()), tuple(self.draft.primitives.values()), names)
        return Decomposed(validate(graph), self.draft.functions, wanted, self.draft.rounds)

    def _last(self, step: Step) -> list[str]:
        """Return the names given by the end of a template."""
        match as_step(step):
            case Chain(steps=steps):
                return self._last(steps[-1])
            case Component(outputs=outputs):
                return list(outputs.values())
            case other:
                return list(dict.fromkeys(name for c in components(other) for name in c.outputs.values()))

    # --- steps: each takes the primitives that it comes after, and says which come after them -----------------------

    def _step(self, step: Step, scope: _Scope, before: tuple[str, ...]) -> tuple[str, ...]:
        match as_step(step):
            case Component() as component:
                return self._component(component, scope, before)
            case Chain(steps=steps):
                for each in steps:
                    before = self._step(each, scope, before)
                return before
            case Branches(ways=ways):
                ends = [self._step(way, scope, before) for way in in_order(ways, scope.values, self._needs)]
                return tuple(dict.fromkeys(name for end in ends for name in end))
            case Condition() as condition:
                return self._condition(condition, scope, before)
            case Loop() as loop:
                return self._loop(loop, scope, before)

    def _needs(self, component: Component) -> Iterable[Takes]:
        return component.needs(self.options[self.labels[id(component)]]).values()

    def _component(self, component: Component, scope: _Scope, before: tuple[str, ...]) -> tuple[str, ...]:
        label = self.labels[id(component)]
        options = self.options[label]
        needs = component.needs(options)
        values = {role: self._found(label, takes, scope) for role, takes in needs.items()}
        part = Part(
            label, self.draft, values, component.outputs, options, component.engines,
            self._levels(label, component, values, scope), before, component.batchable, component.splittable,
            component.origin,
        )  # fmt: skip
        component.rule(part)
        for role, name in component.outputs.items():
            if role not in part.given:
                raise part.fault("outputs", f"its rule did not give {role!r}")
            is_there = (name in scope.values or name in self.draft.inputs) and name not in scope.may_give_anew
            if is_there or name in scope.given:
                raise part.fault("gives", f"{name!r} is there already; name one of the two otherwise")
        for role, name in component.outputs.items():
            scope.give(name, part.given[role])
        return self._ends(part.added) or before

    def _ends(self, added: Sequence[str]) -> tuple[str, ...]:
        """Return the added primitives on which no other added primitive depends."""
        own = [p for p in self.draft.primitives.values() if p.name in added]
        taken = {name for p in own for name in (*(r.name for r in p.refs), *([p.when.condition] if p.when else []))}
        return tuple(p.name for p in own if p.name not in taken)

    def _found(self, label: str, takes: Takes, scope: _Scope) -> Value:
        value = self._there(takes.names, scope)
        if value is None:
            raise GraphError(f"component {label!r}: takes: {_missing(self, takes, scope)}")
        if value.depth < takes.depth:
            raise GraphError(f"component {label!r}: takes: expected a list, and {value.name!r} is a single value")
        return value

    def _there(self, names: Sequence[str], scope: _Scope) -> Value | None:
        """Return the first of the named values which is available, or comes with the query."""
        for name in names:
            if name in scope.values:
                return scope.values[name]
        for name in names:
            depth = self.inputs.get(name, GIVEN.get(name))
            if depth is not None:
                self.draft.inputs[name] = Input(name, depth)
                scope.values[name] = Value(name, tuple(f"{name}_{at}" for at in range(depth)))
                return scope.values[name]
        return None

    def _levels(self, label: str, c: Component, values: Mapping[str, Value], scope: _Scope) -> Levels:
        if c.scope in ("", REQUEST):
            return ()
        lists = ", ".join(name for name, v in scope.values.items() if v.depth) or "there is none"
        if c.scope not in scope.values and c.scope not in self.inputs:
            raise GraphError(f"component {label!r}: scope: expected {REQUEST!r} or a list ({lists}), got {c.scope!r}")
        levels = self._found(label, Takes((c.scope,)), scope).levels
        if not levels or all(shared(v.levels, levels) < len(levels) for v in values.values()):
            raise GraphError(
                f"component {label!r}: scope: nothing that it takes has a part for each item of {c.scope!r}; lists are"
                f" {lists}"
            )
        return levels

    # --- conditions and loops ----------------------------------------------------------------------------------------

    @contextmanager
    def _guarded(self, guard: When | None) -> Iterator[None]:
        outer, self.draft.guard = self.draft.guard, guard
        try:
            yield
        finally:
            self.draft.guard = outer

    def _test(
        self, name: str, test: Callable[..., bool], of: str | Sequence[str], scope: _Scope, before: tuple[str, ...]
    ) -> str:
        values = [self._found(name, Takes((each,)), scope) for each in names_of(of)]
        part = self._glue(name, before)
        return part.add("condition", *values, fn=self.draft.call(name, self._truth(test)), named=name).name

    def _truth(self, test: Callable[..., Any]) -> Callable[..., bool]:
        """Return a function which converts the test's result to a bool; always the same function for the same test."""
        return self.truths.setdefault(id(test), lambda *values: bool(test(*values)))

    def _glue(self, name: str, before: tuple[str, ...] = ()) -> Part:
        return Part(name, self.draft, {}, {}, {}, {}, before=before)

    def _condition(self, condition: Condition, scope: _Scope, before: tuple[str, ...]) -> tuple[str, ...]:
        decided = self._test(condition.name, condition.test, condition.of, scope, before)
        ends: list[str] = [decided]
        ways: list[tuple[When, _Scope]] = []
        for step, guard in ((condition.then, When(decided)), (condition.otherwise, When(decided, False))):
            inner = scope.inner(scope.may_give_anew)
            with self._guarded(guard):
                if step is not None:
                    ends += self._step(step, inner, before)
            ways.append((guard, inner))
        for name in dict.fromkeys(name for _, inner in ways for name in inner.given):
            scope.give(name, self._either(condition, name, ways, scope))
        return tuple(dict.fromkeys(ends))

    def _either(self, c: Condition, name: str, ways: Sequence[tuple[When, _Scope]], scope: _Scope) -> Value:
        glue, earlier = self._glue(c.name), scope.values.get(name)
        if earlier is None and (
            name in self.inputs or name in self.draft.inputs
        ):  # in a loop, which replaces the value
            earlier = self._there((name,), scope)
        found = [inner.given.get(name) for _, inner in ways]
        is_list = any(v.depth > 0 for v in (*found, earlier) if v is not None)
        values = []
        for (guard, _), value in zip(ways, found, strict=True):
            with self._guarded(guard):
                if value is not None:
                    values.append(self._as_given(c.name, value))
                    continue
                kept: Any = glue.flat(earlier) if earlier is not None else [] if is_list else c.default
                values.append(glue.call("same", kept, makes_list=is_list, most=0, named=f"other_{name}"))
        return glue.last(values, named=f"{name}_either")

    def _as_given(self, name: str, value: Value) -> Value:
        """Return the value without nested lists. An input passed on as output is skipped along with its component."""
        glue = self._glue(name)
        value = glue.flat(value)
        guard = self.draft.guard
        if guard is None or any(p.name == value.name and p.when == guard for p in self.draft.primitives.values()):
            return value
        return glue.call("same", value, named=f"{value.name}_passed", makes_list=value.depth > 0, most=value.most)

    def _loop(self, loop: Loop, scope: _Scope, before: tuple[str, ...]) -> tuple[str, ...]:
        names = {name for c in components(loop.body) for name in c.outputs.values()}
        there = {*scope.values, *self.inputs, *GIVEN}
        anew = (names & there) | scope.may_give_anew
        rounds: list[dict[str, Value]] = []
        inner = scope
        outer, ends = self.draft.guard, list(before)
        for at in range(min(loop.at_most or UNROLLED, UNROLLED)):
            inner = inner.inner(anew | (names if at else set()))
            before = self._step(loop.body, inner, before)
            ends += before
            rounds.append({name: self._as_given(loop.name, value) for name, value in inner.given.items()})
            if at + 1 != loop.at_most:
                done = self._test(f"{loop.name}_done", loop.until, loop.of, inner, before)
                self.draft.guard = When(done, False)
                ends.append(done)
        if loop.at_most is None or loop.at_most > UNROLLED:
            rest = self._glue(loop.name, before)
            rounds.append(self._revealed(loop, inner.inner(anew | names), list(rounds[0]), rest))
            ends += rest.added
        self.draft.guard = outer
        for name in rounds[0]:
            values = [each[name] for each in rounds]
            scope.give(
                name, values[0] if len(values) == 1 else self._glue(loop.name).last(values, named=f"{name}_last")
            )
        return tuple(dict.fromkeys(ends))

    def _revealed(self, loop: Loop, scope: _Scope, names: Sequence[str], part: Part) -> dict[str, Value]:
        """Return the outputs of the rounds after the unrolled rounds, by name: one call for all of them."""
        outer, before = self.draft, dict(scope.values)
        # A separate graph, but names stay unique: an engine knows a value of a query by name.
        outer.taken.update(before)
        inner = self.draft = Draft(taken=outer.taken)
        try:
            scope.values |= {name: Value(name, v.levels, v.most) for name, v in before.items()}
            ends = self._step(loop.body, scope, ())
            gives = {name: self._glue(loop.name).flat(scope.given[name]) for name in names}
            done = self._test(f"{loop.name}_done", loop.until, loop.of, scope, ends)
        finally:
            self.draft = outer
        taken = {ref.name for p in inner.primitives.values() for ref in p.refs} | {v.name for v in scope.given.values()}
        inputs = [Input(name, v.depth) for name, v in before.items() if name in taken] + list(inner.inputs.values())
        again = {i.name: scope.given[i.name] for i in inputs if i.name in scope.given}
        _check_alike(part, [(v, again.get(name, v)) for name, v in before.items() if name in taken])
        told = dict.fromkeys([*(v.name for v in (*again.values(), *gives.values())), done, *inner.effects])
        outputs = [name for name in told if name not in before and name not in inner.inputs]
        graph = Graph(tuple(inputs), tuple(inner.primitives.values()), tuple(outputs))
        rounds = Rounds(
            validate(graph), inner.functions, {name: v.name for name, v in again.items()},
            {name: v.name for name, v in gives.items()}, done,
            None if loop.at_most is None else loop.at_most - UNROLLED, inner.rounds,
        )  # fmt: skip
        outside = _Scope(before)
        args = [self._found(loop.name, Takes((i.name,)), outside) for i in rounds.graph.inputs]
        values = part.add(
            "call", *args, fn=outer.add_rounds(loop.name, rounds), named=f"{loop.name}_rounds",
            reads=tuple(dict.fromkeys(name for p in graph for name in p.reads)),
            writes=tuple(dict.fromkeys(name for p in graph for name in p.writes)),
        )  # fmt: skip
        glue = self._glue(loop.name)
        return {
            name: glue.call("value_of", values, name, named=f"{name}_rounds", makes_list=v.depth > 0, most=v.most)
            for name, v in gives.items()
        }


def _check_alike(part: Part, pairs: Iterable[tuple[Value, Value]]) -> None:
    """Check that the inputs of a round have the shapes of the outputs. Raises: GraphError."""
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    for taken, given in pairs:
        is_alike = taken.depth == given.depth and all(
            before.setdefault(b, a) == a and after.setdefault(a, b) == b
            for a, b in zip(taken.levels, given.levels, strict=True)
        )
        if not is_alike:
            raise part.fault(
                "gives",
                f"{given.name} is in other lists than {taken.name} of the round before: at_most={UNROLLED} at most",
            )


def _missing(decomposition: _Decomposition, takes: Takes, scope: _Scope) -> str:
    wanted = " or ".join(map(repr, takes.names))
    later = [
        decomposition.labels[id(c)]
        for c in components(decomposition.template)
        if set(takes.names) & set(c.outputs.values())
    ]
    if later:
        return f"{wanted} is given by {later[0]!r}, which does not come before it: a cycle, or a missing >>"
    there = ", ".join(dict.fromkeys((*scope.values, *decomposition.inputs, *GIVEN)))
    return f"nothing gives {wanted}; there are {there} (inputs=[...] of the App declares what comes with a query)"
