"""Values between components: the place of a value in the graph, and the list behind each of its levels.

    chunks of the document        Value("chunks", ("chunks",))
    queries of each claim         Value("queries", ("claims", "queries"), most=2)

Two values may be mapped over together if both stand in the same lists: a claim with its queries, not with chunks.
Source of the levels: ALTO's nested ancestry (arXiv 2403.04311).
"""

from __future__ import annotations

from dataclasses import dataclass

Levels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A value in a graph. `name`: of the primitive or input.

    `most`: the most items of the innermost lists, if known.
    """

    name: str
    levels: Levels = ()
    most: int | None = None

    @property
    def depth(self) -> int:
        """The list depth of the value."""
        return len(self.levels)


def shared(first: Levels, second: Levels) -> int:
    """Return the number of lists, from the outermost on, which two values have in common.

    >>> shared(("claims", "queries"), ("claims",)), shared(("chunks",), ("claims",))
    (1, 0)
    """
    pairs = zip(first, second, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
