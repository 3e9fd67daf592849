"""What a template is made of: components, and the ways in which they are joined.

    a >> b >> c                 a chain: one after the other
    [a, b] >> c, a >> [b, c]    branches: side by side, then joined
    Condition(test, of="verdict", then=search, otherwise=skip)
    Loop(draft >> critique, until=is_good, of="critique", at_most=3)

A *component* is one step as its author sees it, and the rule that makes primitives of it: it names its engines, the
values that it takes and gives, and its options. `Chunking`, `Synthesis` and the others make components with the rules
of the paper; a rule of your own is a function of a `Part` (part.py).

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
    """`a >> b` of all that a template is made of."""

    def __rshift__(self, after: Step) -> Chain:
        return chain(as_step(self), after)

    def __rrshift__(self, before: Step) -> Chain:
        return chain(before, as_step(self))


@dataclass(frozen=True, eq=False)
class Component(Joined):
    """See the module. `rule` adds the primitives to the part of the graph that it is handed.

    `inputs`: by the role that the rule knows them by. `outputs`: the names of what it gives, by role. `prompts`: which
    options are prompts; what stands in braces in them is one of the `blanks` that the rule fills in itself, or the name
    of a value. `engines`: names by role. `scope`: the list for each item of which it runs once
    (`"request"`: once per query; empty: for each item of what it takes). `batchable`: its items may go to an engine in
    stages. `splittable`: its items may be handed on one by one while the list is still written.

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
        """The error that says what is wrong in which field."""
        return GraphError(f"component {self.name!r}: {where}: expected {expected}, got {got!r}")

    def check(self, option: str, value: Any) -> Any:
        """The value, if it is right for this option. Raises: GraphError naming component and option."""
        if not self.options[option].is_right(value):
            raise self.fault(option, self.options[option].expected, value)
        if option in self.prompts and value is not None:
            self._named_in(option, value)
        return value

    def needs(self, options: Mapping[str, Any]) -> dict[str, Takes]:
        """All values that it takes under these options, those in its prompts among them, by role."""
        found = dict(self.inputs)
        for prompt in self.prompts:
            for name in self._named_in(prompt, options[prompt] or ""):
                if name not in (*self.blanks, *found):
                    found[name] = Takes((name,))
        return found

    def named(self, takes: Mapping[str, str] | None, gives: Mapping[str, str] | None) -> Component:
        """With other names for what it takes and gives. Raises: GraphError for a role that it does not have."""
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
    """One step after the other."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Branches(Joined):
    """Steps side by side; none waits for another unless it takes what that one gives."""

    ways: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Condition(Joined):
    """`then` if `test` is true of the values called `of`, else `otherwise`.

    What both give is given by the one that ran. What only one gives is, where the other runs, what it was before (in a
    loop); else `default`, or an empty list if it is a list. Nested lists come out as one list.
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
    """`body` again and again, until `until` is true of the values called `of`, `at_most` so many times.

    With None as often as it takes. The body may give anew what was there before, and takes what the round before gave.
    Afterwards each value is that of the last round that ran; nested lists come out as one list.
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
    """The steps in sequence; a list of steps is branches. Raises: GraphError for what is no step."""
    flat: list[Step] = []
    for step in map(as_step, steps):
        flat += step.steps if isinstance(step, Chain) else [step]
    return Chain(tuple(flat))


def as_step(given: Any) -> Component | Chain | Branches | Condition | Loop:
    """The step itself, or the branches that a list stands for. Raises: GraphError for what is no step."""
    match given:
        case Component() | Chain() | Branches() | Condition() | Loop():
            return given
        case list() | tuple() if given:
            return Branches(tuple(map(as_step, given)))
        case _:
            raise GraphError(f"a template is made of components, not of {given!r:.80}")


def components(step: Step) -> Iterator[Component]:
    """All components, in the order in which they are written."""
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
    """One name or several, as several."""
    return (of,) if isinstance(of, str) else tuple(of)


def _check_test(name: str, test: object, of: str | Sequence[str]) -> None:
    if not is_name(name):
        raise GraphError(f"{name!r}: name: expected an identifier")
    if not callable(test):
        raise GraphError(f"{name!r}: expected a function that says yes or no, got {test!r:.80}")
    if not names_of(of) or not all(map(is_name, names_of(of))):
        raise GraphError(f"{name!r}: of: expected names of values, got {of!r}")


def _place() -> str:
    """Where in the user's code the component is made."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((HERE, "<")):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
