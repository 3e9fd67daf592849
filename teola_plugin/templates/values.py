"""What flows between components: a value's place in the graph, and which list each of its levels is.

    chunks of the document        Value("chunks", ("chunks",))
    queries of each claim         Value("queries", ("claims", "queries"), most=2)

Two values may be mapped over together where they stand in the same lists: a claim with its queries, not with chunks.
Source of the levels: ALTO's nested ancestry (arXiv 2403.04311).
"""

from __future__ import annotations

from dataclasses import dataclass

Levels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """`name`: of the primitive or input. `most`: how many items its innermost lists have at most, if that is known."""

    name: str
    levels: Levels = ()
    most: int | None = None

    @property
    def depth(self) -> int:
        """How many lists deep it is."""
        return len(self.levels)


def shared(first: Levels, second: Levels) -> int:
    """How many lists, from the outermost on, two values have in common.

    >>> shared(("claims", "queries"), ("claims",)), shared(("chunks",), ("claims",))
    (1, 0)
    """
    pairs = zip(first, second, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
