"""What a component takes, and what a query may set.

    options={"top_k": number(16, "search_top_k")}          # of a Searching; app.run(..., search_top_k=4)

An option has a value, a check and words for what is right, so that a wrong one is refused where it is given, with the
names of component and option.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from teola_plugin.errors import GraphError


@dataclass(frozen=True, slots=True)
class Takes:
    """A value that a component needs: the first of `names` that there is.

    `depth`: how many lists deep it must be at least.
    """

    names: tuple[str, ...]
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Option:
    """A setting: `expected` says in words what `is_right` checks; `short` are other names by which a query gives it."""

    value: Any
    is_right: Callable[[Any], bool]
    expected: str
    short: tuple[str, ...] = ()


def is_name(value: object) -> bool:
    """It can be the name of a value."""
    return isinstance(value, str) and value.isidentifier()


def is_whole(value: object, least: int) -> bool:
    """A whole number, not below `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def text(value: str, *short: str) -> Option:
    """A text, such as a prompt."""
    return Option(value, lambda v: isinstance(v, str) and v != "", "a text", short)


def number(value: int | None, *short: str, least: int = 1, optional: bool = False) -> Option:
    """A whole number."""

    def is_right(given: Any) -> bool:
        return optional if given is None else is_whole(given, least)

    return Option(value, is_right, f"a whole number >= {least}" + (" or None" if optional else ""), short)


def choice(value: str | None, known: Sequence[str | None], *short: str) -> Option:
    """One of some words."""
    return Option(value, lambda v: v in known, f"one of {', '.join(map(repr, known))}", short)


def placeholders(prompt: str) -> list[tuple[str, str | None]]:
    """The pieces of a prompt: a text and the name in braces after it, if there is one.

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
