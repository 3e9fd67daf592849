"""The inputs of a component, and the options which a query may set.

    options={"top_k": number(16, "search_top_k")}          # of a Searching; app.run(..., search_top_k=4)

An option has a value, a check and a description of valid values, so that an invalid value is rejected where given, with
the names of component and option.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from teola_plugin.errors import GraphError


@dataclass(frozen=True, slots=True)
class Takes:
    """An input of a component: the first available value of `names`.

    `depth`: the least list depth.
    """

    names: tuple[str, ...]
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Option:
    """A setting. `expected` describes the values with `is_right`; `short` are alternative names for queries."""

    value: Any
    is_right: Callable[[Any], bool]
    expected: str
    short: tuple[str, ...] = ()


def is_name(value: object) -> bool:
    """Whether the text can be the name of a value."""
    return isinstance(value, str) and value.isidentifier()


def is_whole(value: object, least: int) -> bool:
    """Whether the value is a whole number, at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def text(value: str, *short: str) -> Option:
    """Return an option for a text, such as a prompt."""
    return Option(value, lambda v: isinstance(v, str) and v != "", "a text", short)


def number(value: int | None, *short: str, least: int = 1, optional: bool = False) -> Option:
    """Return an option for a whole number."""

    def is_right(given: Any) -> bool:
        return optional if given is None else is_whole(given, least)

    return Option(value, is_right, f"a whole number >= {least}" + (" or None" if optional else ""), short)


def choice(value: str | None, known: Sequence[str | None], *short: str) -> Option:
    """Return an option for one of the known words."""
    return Option(value, lambda v: v in known, f"one of {', '.join(map(repr, known))}", short)


def placeholders(prompt: str) -> list[tuple[str, str | None]]:
    """Return the pieces of a prompt: each a text and the name in braces behind, if any.

    >>> placeholders("Answer {question}!")
    [('Answer ', 'question'), ('!', None)]

    Raises: GraphError, if the text is no prompt.
    """
    try:
        found = list(Formatter().parse(prompt))
    except ValueError as e:
        raise GraphError(f"{e}; write {{{{ and }}}} for braces") from e
    for _, name, spec, conversion in found:
        if name is not None and (not name.isidentifier() or spec or conversion):
            raise GraphError(f"{{{name}}} is not the name of a value; write {{{{ and }}}} for braces")
    return [(before, name) for before, name, _, _ in found]
