"""The parts of a template: components, and the ways to join them.

    a >> b >> c                 a chain: one after the other
    [a, b] >> c, a >> [b, c]    branches: side by side, then joined
    Condition(test, of="verdict", then=search, otherwise=skip)
    Loop(draft >> critique, until=is_good, of="critique", at_most=3)

A *component* is one step from the author's view, with a rule which makes the primitives. A component names its engines,
inputs, outputs and options. `Chunking`, `Synthesis` and so on make components with the rules of the paper; a custom
rule is a function of a `Part` (part.py).

Source: arXiv 2407.00326, section 3.2, Algorithm 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Union

from teola_plugin.errors import GraphError
from teola_plugin.templates.options import Option, Takes, is_name, is_whole, placeholders
from teola_plugin.templates.part import Part

HERE = str(Path(__file__).parent)


class Joined:
    """`a >> b` for all parts of a template."""

    def __rshift__(self, after: Step) -> Chain:
        return chain(as_step(self), after)

    def __rrshift__(self, before: Step) -> Chain:
        return chain(before, as_step(self))


@dataclass(frozen=True, eq=False)
class Component(Joined):
    """One step of a template; see the module. `rule` adds the primitives to its part of the graph.

    `inputs`: by the rule's roles. `outputs`: names of the outputs, by role. `prompts`: the options which are prompts; a
    name in braces is either a `blank`, filled in by the rule, or the name of a value. `engines`: names by role.
    `scope`: the list for each item of which the component runs once (`"request"`: once per query; empty: for each item
    of the inputs). `batchable`: items may go to an engine in stages. `splittable`: items may be passed on one by one
    while the list is still written.

    Raises: GraphError naming component and field.
    """

    name: str
    rule: Callable[[Part], None]
    inputs: Mapping[str, Takes] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    engines: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Option] = field(default_factory=dict)
    prompts: tuple[str, ...] = ()
    blanks: tuple[str, ...] = ()
    scope: str = ""
    batchable: bool = True
    splittable: bool = True
    origin: str = ""

    def __post_init__(self) -> None:
        if not self.origin:
            object.__setattr__(self, "origin", f"{self.name} ({_place()})")
        taken = [name for takes in self.inputs.values() for name in takes.names]
        for where, names in (
            ("name", [self.name]), ("takes", taken), ("gives", [*self.outputs.values()]), ("options", [*self.options]),
            ("engine", [*self.engines.values()]),
        ):  # fmt: skip
            for name in names:
                if not is_name(name):
                    raise self.fault(where, "an identifier", name)
        for where in ("batchable", "splittable"):
            if not isinstance(getattr(self, where), bool):
                raise self.fault(where, "True or False", getattr(self, where))
        for name, option in self.options.items():
            self.check(name, option.value)

    def fault(self, where: str, expected: str, got: object) -> GraphError:
        """Return the error which names the faulty field."""
        return GraphError(f"component {self.name!r}: {where}: expected {expected}, got {got!r}")

    def check(self, option: str, value: Any) -> Any:
        """Return the value, if valid for the option. Raises: GraphError naming component and option."""
        if not self.options[option].is_right(value):
            raise self.fault(option, self.options[option].expected, value)
        if option in self.prompts and value is not None:
            self._named_in(option, value)
        return value

    def needs(self, options: Mapping[str, Any]) -> dict[str, Takes]:
        """Return all inputs under the options, including values named in prompts, by role."""
        found = dict(self.inputs)
        for prompt in self.prompts:
            for name in self._named_in(prompt, options[prompt] or ""):
                if name not in (*self.blanks, *found):
                    found[name] = Takes((name,))
        return found

    def named(self, takes: Mapping[str, str] | None, gives: Mapping[str, str] | None) -> Component:
        """Return a copy with renamed inputs and outputs. Raises: GraphError for an unknown role."""
        for where, names, roles in (("takes", takes, self.inputs), ("gives", gives, self.outputs)):
            for role in names or {}:
                if role not in roles:
                    raise self.fault(where, f"names for {', '.join(map(repr, roles)) or 'nothing'}", role)
        changed = {role: replace(self.inputs[role], names=(name,)) for role, name in (takes or {}).items()}
        return replace(self, inputs={**self.inputs, **changed}, outputs={**self.outputs, **(gives or {})})

    def _named_in(self, option: str, prompt: str) -> list[str]:
        try:
            return [name for _, name in placeholders(prompt) if name is not None]
        except GraphError as e:
            raise GraphError(f"component {self.name!r}: {option}: {e}") from e


@dataclass(frozen=True, eq=False)
class Chain(Joined):
    """Steps in sequence."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Branches(Joined):
    """Steps side by side; a step waits for another only to take a value."""

    ways: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Condition(Joined):
    """Runs `then` if `test` is true of the values called `of`, else `otherwise`.

    An output of both sides comes from the side which ran. An output of one side only is, where the other side runs, the
    value before (in a loop), else `default`, or an empty list for a list. Nested lists are flattened to one list.
    """

    test: Callable[..., bool]
    of: str | Sequence[str]
    then: Step
    otherwise: Step | None = None
    default: Any = ""
    name: str = "condition"

    def __post_init__(self) -> None:
        _check_test(self.name, self.test, self.of)


@dataclass(frozen=True, eq=False)
class Loop(Joined):
    """Repeats `body` until `until` is true of the values called `of`, at most `at_most` times.

    With `at_most=None`, without limit. The body may replace values from before, and takes the values of the previous
    round. Afterwards each value is the value of the last round; nested lists are flattened to one list.
    """

    body: Step
    until: Callable[..., bool]
    of: str | Sequence[str]
    at_most: int | None = 3
    name: str = "loop"

    def __post_init__(self) -> None:
        _check_test(self.name, self.until, self.of)
        if self.at_most is not None and not is_whole(self.at_most, 1):
            raise GraphError(f"{self.name!r}: at_most: expected a whole number >= 1 or None, got {self.at_most!r}")


Step = Union[Component, Chain, Branches, Condition, Loop, "Sequence[Step]"]


def chain(*steps: Step) -> Chain:
    """Return the steps in sequence; a list of steps becomes branches. Raises: GraphError for any other object."""
    flat: list[Step] = []
    for step in map(as_step, steps):
        flat += step.steps if isinstance(step, Chain) else [step]
    return Chain(tuple(flat))


def as_step(given: Any) -> Component | Chain | Branches | Condition | Loop:
    """Return the step itself, or the branches of a list. Raises: GraphError for any other object."""
    match given:
        case Component() | Chain() | Branches() | Condition() | Loop():
            return given
        case list() | tuple() if given:
            return Branches(tuple(map(as_step, given)))
        case _:
            raise GraphError(f"a template is made of components, not of {given!r:.80}")


def components(step: Step) -> Iterator[Component]:
    """Yield all components, in written order."""
    match as_step(step):
        case Component() as component:
            yield component
        case Chain(steps=parts) | Branches(ways=parts):
            for part in parts:
                yield from components(part)
        case Condition(then=then, otherwise=otherwise):
            yield from components(then)
            if otherwise is not None:
                yield from components(otherwise)
        case Loop(body=body):
            yield from components(body)


def names_of(of: str | Sequence[str]) -> tuple[str, ...]:
    """Return one name or several names as a tuple."""
    return (of,) if isinstance(of, str) else tuple(of)


def _check_test(name: str, test: object, of: str | Sequence[str]) -> None:
    if not is_name(name):
        raise GraphError(f"{name!r}: name: expected an identifier")
    if not callable(test):
        raise GraphError(f"{name!r}: expected a function that says yes or no, got {test!r:.80}")
    if not names_of(of) or not all(map(is_name, names_of(of))):
        raise GraphError(f"{name!r}: of: expected names of values, got {of!r}")


def _place() -> str:
    """Return the place in the user's code which makes the component."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((HERE, "<")):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
