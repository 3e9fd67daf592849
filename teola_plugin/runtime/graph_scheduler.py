"""The graph scheduler: values and fragments in, ready requests out. Pure: it reads no clock and calls nobody.

One for each query. Its whole state:

- `_values[name]`: the fragments of a value by *ancestry tag* (`()` for a plain value, `(2,)` for item 2, `(2, 5)` for
  item 5 of item 2) and, for each list, how many items it has once that is known (it is *closed*);
- `_started[name]`: tags of the instances of a primitive that were handed out;
- `_skipped`: values whose `when` came out otherwise, and what depends on them.

An instance is ready when each argument exists at its place in the ancestry: an item for a starred argument, the
whole list for an unstarred one, the list below its own ancestor for a deeper one. Order edges wait for the whole
primitive. Instances that become ready together form one `Ready`, cut into `stage_items`. A failed instance leaves
`LOST` in place of its value, and an instance with a lost argument or condition is lost without being run: all end.
(Not so `@ pipeline`, whose value the framework tells.)

    scheduler = GraphScheduler(plan, {"question": "..."})
    for ready in scheduler.start(): ...
    for ready in scheduler.apply([Fragment("q", (0,), vector)]): ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.errors import GraphError
from teola_plugin.graph import PIPELINE, Literal, Primitive, Ref
from teola_plugin.plan import Plan

Tag = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A value, or one item of it."""

    name: str
    tag: Tag
    value: Any


@dataclass(frozen=True, slots=True)
class Closed:
    """The list at `tag` of the value `name` has `count` items, whether they have arrived or not."""

    name: str
    tag: Tag
    count: int


@dataclass(frozen=True, slots=True)
class Lost:
    """This instance of a primitive ended without a value; what depends on it will not run."""

    name: str
    tag: Tag


Event = Fragment | Closed | Lost


class _Lost:
    def __repr__(self) -> str:
        return "LOST"


LOST = _Lost()
"""Stands where a value would, had its primitive not failed."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Instances of one primitive whose arguments exist: one request. `args[i]` belongs to `tags[i]`."""

    primitive: Primitive
    tags: tuple[Tag, ...]
    args: tuple[tuple[Any, ...], ...]

    @property
    def instances(self) -> Iterator[tuple[Tag, tuple[Any, ...]]]:
        """Each tag with its arguments."""
        return zip(self.tags, self.args, strict=True)


@dataclass(slots=True)
class _Value:
    depth: int
    fragments: dict[Tag, Any] = field(default_factory=dict)
    counts: dict[Tag, int] = field(default_factory=dict)
    has_lost: bool = False
    open_lists: int = 0
    expected: int = 0

    def __post_init__(self) -> None:
        self.open_lists, self.expected = (1, 0) if self.depth else (0, 1)

    def put(self, tag: Tag, item: Any) -> None:
        self.fragments[tag] = item
        self.has_lost |= item is LOST

    def close(self, tag: Tag, count: int) -> None:
        self.counts[tag] = count
        self.open_lists -= 1
        if len(tag) + 1 == self.depth:
            self.expected += count
        else:
            self.open_lists += count

    def is_whole(self) -> bool:
        if self.open_lists or len(self.fragments) != self.expected:
            return False
        # An inner list may close before the one around it; the counts mean nothing until both have.
        return self.depth < 2 or all(tag[:-1] in self.counts for tag in self.counts if tag)

    def has(self, tag: Tag) -> bool:
        """Everything at or below `tag` is there."""
        if len(tag) == self.depth:
            return tag in self.fragments
        if not tag:
            return self.is_whole()
        return tag in self.counts and all(self.has((*tag, i)) for i in range(self.counts[tag]))

    def get(self, tag: Tag) -> Any:
        """The value at `tag`: an item, or the nested list below it in ancestry order."""
        if len(tag) == self.depth:
            return self.fragments[tag]
        return [self.get((*tag, i)) for i in range(self.counts[tag])]


class GraphScheduler:
    """The run state of one query. `inputs` may leave names out; what needs them is never ready."""

    def __init__(self, plan: Plan, inputs: Mapping[str, Any]) -> None:
        self._plan = plan
        self._inputs = inputs
        self._values = {name: _Value(depth) for name, depth in plan.depths.items()}
        self._started: dict[str, set[Tag]] = {p.name: set() for p in plan.graph}
        self._folded: dict[str, int] = {p.name: 0 for p in plan.graph if p.kind == "ingestion"}
        self._skipped: set[str] = set()

    def start(self) -> list[Ready]:
        """What can run with the inputs alone."""
        changed = {p.name: p for p in self._plan.graph if not p.dependencies}
        for item in self._plan.graph.inputs:
            if item.name in self._inputs:
                self._spread(item.name, (), self._inputs[item.name], item.depth)
                changed.update((c.name, c) for c in self._plan.consumers[item.name])
        return self._settle(changed)

    def apply(self, events: Iterable[Event]) -> list[Ready]:
        """Take note of what happened; what became ready by it.

        Raises: GraphError for an item that arrives twice or at a place that its primitive does not have.
        """
        changed: dict[str, Primitive] = {}
        for event in events:
            self._record(event)
            changed[event.name] = self._plan.primitives[event.name]
            changed.update((c.name, c) for c in self._plan.consumers[event.name])
        return self._settle(changed)

    def value(self, name: str) -> Any:
        """A value that is whole. Raises: KeyError while it is not, or if it was skipped."""
        if not self._values[name].is_whole():
            raise KeyError(name)
        return self._values[name].get(())

    @property
    def is_done(self) -> bool:
        """Every output has its value, was skipped, or is lost."""
        return all(name in self._skipped or self._values[name].is_whole() for name in self._plan.graph.outputs)

    # --- taking note -------------------------------------------------------------------------------------------------

    def _record(self, event: Event) -> None:
        value = self._values[event.name]
        if event.name in self._folded:
            self._folded[event.name] += 1
            value.has_lost |= isinstance(event, Lost)
            return
        match event:
            case Fragment(name, tag, item):
                if tag in value.fragments or len(tag) != value.depth:
                    raise GraphError(f"{name}{list(tag)} arrived twice or does not exist")
                value.put(tag, item)
            case Closed(_, tag, count):
                value.close(tag, count)
            case Lost(name, tag):
                self._lose(self._plan.primitives[name], tag)

    def _lose(self, p: Primitive, tag: Tag) -> None:
        value = self._values[p.name]
        if not self._plan.yields[p.name]:
            value.put(tag, LOST)
        elif tag not in value.counts:  # after the items that did arrive
            arrived = sum(t[: len(tag)] == tag for t in value.fragments)
            value.put((*tag, arrived), LOST)
            value.close(tag, arrived + 1)

    def _spread(self, name: str, tag: Tag, value: Any, depth: int) -> None:
        """Enter a value `depth` lists deep, item by item."""
        if len(tag) == depth:
            self._values[name].put(tag, value)
            return
        self._values[name].close(tag, len(value))
        for i, item in enumerate(value):
            self._spread(name, (*tag, i), item, depth)

    # --- looking for what is ready -----------------------------------------------------------------------------------

    def _settle(self, changed: dict[str, Primitive]) -> list[Ready]:
        """Follow skips, losses and closed lists through the graph until nothing moves; collect what is ready."""
        ready: list[Ready] = []
        while changed:
            again: dict[str, Primitive] = {}
            for primitive in changed.values():
                moved, requests = self._look_at(primitive)
                ready += requests
                if moved:
                    again.update((c.name, c) for c in self._plan.consumers[primitive.name])
            changed = again
        return ready

    def _look_at(self, p: Primitive) -> tuple[bool, list[Ready]]:
        """Whether the value of `p` moved without running anything, and what of `p` is ready."""
        if p.name in self._skipped:
            return False, []
        if self._is_skipped(p):
            self._skipped.add(p.name)
            return True, []
        if p.when and not self._values[p.when.condition].is_whole():
            return False, []
        moved = self._pass_on_counts(p)
        if not all(name in self._skipped or self._values[name].is_whole() for name in p.after):
            return moved, []
        is_undecided = p.when is not None and self._values[p.when.condition].has_lost
        tags: list[Tag] = []
        args: list[tuple[Any, ...]] = []
        for tag in self._known_tags(p):
            if not all(self._has(p, ref, tag) for ref in p.refs):
                continue
            self._started[p.name].add(tag)
            if p.engine != PIPELINE and (is_undecided or any(self._is_lost(ref, tag) for ref in p.refs)):
                self._record(Lost(p.name, tag))
                moved = True
            else:
                tags.append(tag)
                args.append(tuple(self._argument(a, tag) for a in p.args if not self._is_absent(a)))
        moved |= self._end_fold(p)
        return moved, list(self._bundles(p, tags, args))

    def _bundles(self, p: Primitive, tags: list[Tag], args: list[tuple[Any, ...]]) -> Iterable[Ready]:
        size = self._plan.stage_items(p) or len(tags) or 1
        for at in range(0, len(tags), size):
            yield Ready(p, tuple(tags[at : at + size]), tuple(args[at : at + size]))

    def _is_skipped(self, p: Primitive) -> bool:
        if p.when:
            condition = self._values[p.when.condition]
            is_decided = condition.is_whole() and not condition.has_lost
            if p.when.condition in self._skipped or (is_decided and condition.get(()) != p.when.value):
                return True
        absent = [self._is_absent(ref) for ref in p.refs]
        return bool(absent) and (all(absent) if p.kind == "aggregate" else any(absent))

    def _is_absent(self, arg: Ref | Literal) -> bool:
        return isinstance(arg, Ref) and arg.name in self._skipped

    def _known_tags(self, p: Primitive) -> list[Tag]:
        """Places of instances not yet started, in ancestry order, as far as the items tell."""
        depth, started = self._plan.map_depths[p.name], self._started[p.name]
        if depth == 0:
            return [] if started else [()]
        driver = self._drivers(p)[0]
        places = driver.fragments if driver.depth == depth else (t for t in driver.counts if len(t) == depth)
        return sorted(tag for tag in places if tag not in started)

    def _drivers(self, p: Primitive) -> list[_Value]:
        """The lists that `p` maps over item by item."""
        depth = self._plan.map_depths[p.name]
        return [self._values[r.name] for r in p.refs if r.star and self._plan.depths[r.name] >= depth]

    def _place(self, ref: Ref, tag: Tag) -> Tag:
        return tag[: self._plan.depths[ref.name]] if ref.star else ()

    def _has(self, p: Primitive, ref: Ref, tag: Tag) -> bool:
        if ref.name in self._skipped:
            return True
        return self._values[ref.name].has(self._place(ref, tag))

    def _argument(self, arg: Ref | Literal, tag: Tag) -> Any:
        return arg.value if isinstance(arg, Literal) else self._values[arg.name].get(self._place(arg, tag))

    def _is_lost(self, ref: Ref, tag: Tag) -> bool:
        if ref.name in self._skipped or not self._values[ref.name].has_lost:
            return False
        return _contains_lost(self._argument(ref, tag), self._plan.depths[ref.name])

    # --- lists -------------------------------------------------------------------------------------------------------

    def _pass_on_counts(self, p: Primitive) -> bool:
        """Close the lists of `p` that are as long as the ones it maps over."""
        depth, value = self._plan.map_depths[p.name], self._values[p.name]
        if depth == 0 or p.name in self._folded:
            return False
        drivers, moved = self._drivers(p), False
        for tag in [t for t in drivers[0].counts if len(t) < depth and t not in value.counts]:
            counts = {d.counts.get(tag, -1) for d in drivers}
            if -1 in counts:
                continue
            if len(counts) > 1:
                raise GraphError(f"{p.name} = {p.kind}(...): its starred inputs have {sorted(counts)} items")
            if counts == {0} and not self._has_others(p):
                continue  # an empty list is whole at once, and `p` may yet be skipped
            value.close(tag, drivers[0].counts[tag])
            moved = True
        return moved

    def _has_others(self, p: Primitive) -> bool:
        """What `p` does not map over is there."""
        depth = self._plan.map_depths[p.name]
        others = [r.name for r in p.refs if not (r.star and self._plan.depths[r.name] >= depth)]
        return all(name in self._skipped or self._values[name].is_whole() for name in others)

    def _end_fold(self, p: Primitive) -> bool:
        """An ingestion has its one value once every item is in."""
        if p.name not in self._folded or self._values[p.name].fragments or not self._has_others(p):
            return False
        if not all(d.is_whole() and len(d.fragments) == self._folded[p.name] for d in self._drivers(p)):
            return False
        if self._plan.map_depths[p.name] == 0 and not self._folded[p.name]:
            return False
        self._values[p.name].put((), LOST if self._values[p.name].has_lost else None)
        return True


def _contains_lost(value: Any, depth: int) -> bool:
    if depth == 0 or not isinstance(value, list):
        return value is LOST
    return any(_contains_lost(item, depth - 1) for item in value)
