"""Values of a query as they arrive, by ancestry tag, and where the instances of a primitive find arguments.

tag       ()   a plain value      (2,)   item 2      (2, 5)   item 5 of item 2

call(x, *docs, *parts), mapped over parts (two lists deep): the instance (2, 5) takes
    x whole     docs at (2,)     parts at (2, 5)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from teola_plugin.graph import Arg, Literal, Primitive
from teola_plugin.plan import Plan

Tag = tuple[int, ...]


class _Lost:
    def __repr__(self) -> str:
        return "LOST"


LOST = _Lost()
"""The placeholder for the value of a primitive that failed."""


class Value:
    """The fragments of a value that have arrived, and the number of items of each closed list."""

    __slots__ = ("counts", "depth", "expected", "fragments", "has_lost", "open_lists")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.fragments: dict[Tag, Any] = {}
        self.counts: dict[Tag, int] = {}
        self.has_lost = False
        self.open_lists, self.expected = (1, 0) if depth else (0, 1)

    def put(self, tag: Tag, item: Any) -> None:
        """Add an item; `LOST` stands for a failed item."""
        self.fragments[tag] = item
        self.has_lost |= item is LOST

    def put_all(self, tags: Sequence[Tag], items: Sequence[Any]) -> bool:
        """Add items none of which is lost. Returns False if an item was there before or has no place in the value."""
        expected = len(self.fragments) + len(tags)
        self.fragments.update(zip(tags, items, strict=True))
        return len(self.fragments) == expected and set(map(len, tags)) <= {self.depth}

    def spread(self, tag: Tag, value: Any) -> None:
        """Add everything at or below `tag`, item by item."""
        if len(tag) == self.depth:
            self.put(tag, value)
            return
        self.close(tag, len(value))
        if len(tag) + 1 == self.depth:
            self.put_all([(*tag, i) for i in range(len(value))], value)
            return
        for i, item in enumerate(value):
            self.spread((*tag, i), item)

    def close(self, tag: Tag, count: int) -> None:
        """Set the number of items of the list at `tag`."""
        self.counts[tag] = count
        self.open_lists -= 1
        if len(tag) + 1 == self.depth:
            self.expected += count
        else:
            self.open_lists += count

    def is_whole(self) -> bool:
        """Whether the whole value has arrived."""
        if self.open_lists or len(self.fragments) != self.expected:
            return False
        # An inner list may close before the outer list; the counts mean nothing until both are closed.
        return self.depth < 2 or all(tag[:-1] in self.counts for tag in self.counts if tag)

    def has(self, tag: Tag) -> bool:
        """Whether everything at or below `tag` has arrived."""
        if len(tag) == self.depth:
            return tag in self.fragments
        if not tag:
            return self.is_whole()
        return tag in self.counts and all(self.has((*tag, i)) for i in range(self.counts[tag]))

    def get(self, tag: Tag) -> Any:
        """Return the value at `tag`: an item, or the nested list below the tag in ancestry order."""
        if len(tag) == self.depth:
            return self.fragments[tag]
        if len(tag) + 1 == self.depth:
            fragments, places = self.fragments, range(self.counts[tag])
            tags: Iterable[Tag] = [(*tag, i) for i in places] if tag else zip(places)
            return [fragments[at] for at in tags]
        return [self.get((*tag, i)) for i in range(self.counts[tag])]


class Where(Enum):
    """Where an instance finds an argument: a literal, the whole value, the item of the tag, or a part by tag."""

    LITERAL = 0
    WHOLE = 1
    ITEM = 2
    PART = 3


@dataclass(frozen=True, slots=True)
class Sight:
    """The facts about a primitive that are known before the run.

    `args`: for each argument, where to find the value, and the name of the value (of a literal, the value). `whole`:
    names that are taken whole. `driver`: the first list that is mapped over item by item, which decides the instances;
    `drivers`: all lists mapped over item by item. `beside`: the remaining starred names, each with the number of digits
    of a tag that lead to the part. `is_fold`: all items together make a single value. `is_free`: without dependencies.
    """

    primitive: Primitive
    map_depth: int
    args: tuple[tuple[Where, Any], ...]
    whole: tuple[str, ...]
    driver: str
    drivers: tuple[str, ...]
    beside: tuple[tuple[str, int], ...]
    stage_items: int
    is_fold: bool
    is_free: bool


def sights_of(plan: Plan) -> dict[str, Sight]:
    """Return the sight of each primitive, by name."""
    return {p.name: _sight(p, plan) for p in plan.graph}


def _sight(p: Primitive, plan: Plan) -> Sight:
    depth = plan.map_depths[p.name]
    stars = [ref.name for ref in plan.refs[p.name] if ref.star]
    drivers = tuple(name for name in stars if plan.depths[name] >= depth)
    driver = drivers[0] if drivers else ""
    return Sight(
        primitive=p,
        map_depth=depth,
        args=tuple(_where(arg, depth, plan) for arg in p.args),
        whole=tuple(ref.name for ref in plan.refs[p.name] if not ref.star),
        driver=driver,
        drivers=drivers,
        beside=tuple((name, min(plan.depths[name], depth)) for name in dict.fromkeys(stars) if name != driver),
        stage_items=plan.stage_items(p),
        is_fold=p.kind == "ingestion",
        is_free=not p.dependencies,
    )


def _where(arg: Arg, map_depth: int, plan: Plan) -> tuple[Where, Any]:
    if isinstance(arg, Literal):
        return Where.LITERAL, arg.value
    if not arg.star:
        return Where.WHOLE, arg.name
    return (Where.ITEM if plan.depths[arg.name] == map_depth else Where.PART), arg.name


def contains_lost(value: Any, depth: int) -> bool:
    """Whether a value of `depth` nested lists contains `LOST`."""
    if depth == 0 or not isinstance(value, list):
        return value is LOST
    return any(contains_lost(item, depth - 1) for item in value)
