"""The graph scheduler: values and fragments in, ready requests out. Pure: reads no clock and has no side effects.

Each query has a scheduler of its own, with this state:

- `_values[name]`: the fragments of a value by *ancestry tag* (`()` for a plain value, `(2,)` for item 2, `(2, 5)` for
  item 5 of item 2), and the number of items of each list that is known (*closed*);
- `_started[name]`: tags of the instances of a primitive that were handed out, or the number of items of the mapped
  list that were looked at (`_seen`), with the tags that still wait for another argument (`_waiting`);
- `_skipped`: values whose `when` came out otherwise, and all values that depend on skipped values.

An instance is ready when each argument exists at the right place in the ancestry: an item for a starred argument, the
whole list for an unstarred argument, the list below the instance's own ancestor for a deeper argument. Order edges and
control edges wait for the whole primitive. Instances that become ready together form a single `Ready`, cut into
`stage_items`. A failed instance leaves `LOST` in place of the value, and an instance with a lost argument, condition or
gate is lost without being run, so every instance ends. (Exceptions: `@ pipeline`, whose value the framework reports,
and `@ reader`, where the framework may report the value.)

The *sight* of a primitive holds all that is known about the arguments before the run. A caller that runs many queries
of the same plan may keep `sights_of(plan)`.

    scheduler = GraphScheduler(plan, {"question": "..."})
    for ready in scheduler.start(): ...
    for ready in scheduler.apply([Fragment("q", (0,), vector)]): ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from teola_plugin.errors import GraphError
from teola_plugin.graph import PIPELINE, READER, Primitive
from teola_plugin.plan import Plan
from teola_plugin.runtime.session.ancestry import LOST as LOST
from teola_plugin.runtime.session.ancestry import Sight, Tag, Value, Where, contains_lost, sights_of


@dataclass(frozen=True, slots=True)
class Fragment:
    """A value, or an item of a value."""

    name: str
    tag: Tag
    value: Any


@dataclass(frozen=True, slots=True)
class Fragments:
    """Several items of a value that arrived together: `values[i]` at `tags[i]`."""

    name: str
    tags: Sequence[Tag]
    values: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Closed:
    """The list at `tag` of the value `name` has `count` items, arrived or not."""

    name: str
    tag: Tag
    count: int


@dataclass(frozen=True, slots=True)
class Lost:
    """An instance of a primitive ended without a value; dependent instances will not run."""

    name: str
    tag: Tag


Event = Fragment | Fragments | Closed | Lost


@dataclass(frozen=True, slots=True)
class Ready:
    """Instances of a primitive whose arguments exist, as a single request. `args[i]` belongs to `tags[i]`."""

    primitive: Primitive
    tags: tuple[Tag, ...]
    args: tuple[tuple[Any, ...], ...]

    @property
    def instances(self) -> Iterator[tuple[Tag, tuple[Any, ...]]]:
        """Return pairs of a tag and the arguments of the instance."""
        return zip(self.tags, self.args, strict=True)


class GraphScheduler:
    """The run state of a query. `inputs` may omit names; primitives that need an omitted name are never ready."""

    def __init__(self, plan: Plan, inputs: Mapping[str, Any], sights: Mapping[str, Sight] | None = None) -> None:
        self._plan = plan
        self._inputs = inputs
        self._sights = sights_of(plan) if sights is None else sights
        self._values = {name: Value(depth) for name, depth in plan.depths.items()}
        self._started: dict[str, set[Tag]] = {}
        self._seen: dict[str, int] = {}
        self._waiting: dict[str, list[Tag]] = {}
        self._folded: dict[str, int] = {name: 0 for name, sight in self._sights.items() if sight.is_fold}
        self._skipped: set[str] = set()
        self._has_lost = False

    def start(self) -> list[Ready]:
        """Return the instances that can run with the inputs alone."""
        changed = {name: self._plan.primitives[name] for name, sight in self._sights.items() if sight.is_free}
        for item in self._plan.graph.inputs:
            if item.name in self._inputs:
                self._values[item.name].spread((), self._inputs[item.name])
                changed.update((c.name, c) for c in self._plan.consumers[item.name])
        return self._settle(changed)

    def apply(self, events: Iterable[Event]) -> list[Ready]:
        """Record events. Returns the instances that became ready.

        Raises: GraphError for an item that arrives twice or at a place that the primitive does not have.
        """
        names: dict[str, None] = {}
        for event in events:
            self._record(event)
            names[event.name] = None
        changed: dict[str, Primitive] = {}
        for name in names:
            if name in self._folded:
                changed[name] = self._plan.primitives[name]
            for consumer in self._plan.consumers[name]:
                changed[consumer.name] = consumer
        return self._settle(changed)

    def value(self, name: str) -> Any:
        """Return a whole value. Raises: KeyError if the value is not whole, or was skipped."""
        if not self._values[name].is_whole():
            raise KeyError(name)
        return self._values[name].get(())

    def has_passed(self, name: str) -> bool:
        """Whether all instances of a primitive ended well, or the primitive was skipped."""
        return name in self._skipped or (self._values[name].is_whole() and not self._values[name].has_lost)

    def is_wanted(self, name: str) -> bool | None:
        """Whether any consumer takes the value; None while the deciding conditions are open."""
        takers = (c for c in self._plan.consumers[name] if any(ref.name == name for ref in c.refs))
        wanted = {self._takes(taker) for taker in takers}
        return True if True in wanted else None if None in wanted else False

    def _takes(self, p: Primitive) -> bool | None:
        """Whether a primitive runs, as far as the condition tells; None while the condition is open."""
        if p.name in self._skipped:
            return False
        if p.setting("ahead"):
            return self.is_wanted(p.name)
        if p.when is None:
            return True
        condition = self._values[p.when.condition]
        return None if not condition.is_whole() else not condition.has_lost

    @property
    def is_done(self) -> bool:
        """Whether every output has a value, was skipped, or is lost."""
        return all(name in self._skipped or self._values[name].is_whole() for name in self._plan.graph.outputs)

    def outputs(self) -> dict[str, Any] | None:
        """Return the values of the outputs, without skipped outputs; None if any output is lost or not whole."""
        names = [name for name in self._plan.graph.outputs if name not in self._skipped]
        values = [self._values[name] for name in names]
        if any(value.has_lost or not value.is_whole() for value in values):
            return None
        return {name: value.get(()) for name, value in zip(names, values, strict=True)}

    # --- taking note -------------------------------------------------------------------------------------------------

    def _record(self, event: Event) -> None:
        name = event.name
        value = self._values[name]
        if name in self._folded:
            self._folded[name] += len(event.tags) if isinstance(event, Fragments) else 1
            self._has_lost |= isinstance(event, Lost)
            value.has_lost |= isinstance(event, Lost)
            return
        match event:
            case Fragments():
                if not value.put_all(event.tags, event.values):
                    raise GraphError(f"{name}: of its items {list(event.tags)} some arrived twice or do not exist")
            case Fragment():
                if event.tag in value.fragments or len(event.tag) != value.depth:
                    raise GraphError(f"{name}{list(event.tag)} arrived twice or does not exist")
                value.put(event.tag, event.value)
            case Closed():
                value.close(event.tag, event.count)
            case Lost():
                self._lose(self._plan.primitives[name], event.tag)

    def _lose(self, p: Primitive, tag: Tag) -> None:
        self._has_lost = True
        value = self._values[p.name]
        if not self._plan.yields[p.name]:
            value.put(tag, LOST)
        elif tag not in value.counts:  # after the arrived items
            arrived = sum(t[: len(tag)] == tag for t in value.fragments)
            value.put((*tag, arrived), LOST)
            value.close(tag, arrived + 1)

    # --- ready instances ---------------------------------------------------------------------------------------------

    def _settle(self, changed: dict[str, Primitive]) -> list[Ready]:
        """Follow skips, losses and closed lists through the graph until nothing moves. Returns the ready instances."""
        ready: list[Ready] = []
        while changed:
            again: dict[str, Primitive] = {}
            for primitive in changed.values():
                moved, requests = self._look_at(primitive)
                ready += requests
                if moved:
                    for consumer in self._plan.consumers[primitive.name]:
                        again[consumer.name] = consumer
            changed = again
        return ready

    def _look_at(self, p: Primitive) -> tuple[bool, list[Ready]]:
        """Return whether the value of `p` changed without a run, and the ready instances of `p`."""
        if p.when or self._skipped:
            if p.name in self._skipped:
                return False, []
            if self._is_skipped(p):
                self._skipped.add(p.name)
                return True, []
            if p.when and not self._values[p.when.condition].is_whole():
                return False, []
        sight = self._sights[p.name]
        moved = sight.map_depth > 0 and self._pass_on_counts(sight)
        if p.after and not self._are_whole(p.after):
            return moved, []
        if p.gated and not self._are_whole(p.gated):
            return moved, []
        tags = self._free_tags(p.name, sight)
        if tags and self._has_lost and p.engine != PIPELINE and (lost := self._lost_among(p, tags)):
            for tag in lost if p.engine != READER else ():
                self._record(Lost(p.name, tag))
                moved = True
            tags = [tag for tag in tags if tag not in lost]
        if sight.is_fold:
            moved |= self._end_fold(sight)
        return moved, self._requests(sight, tags) if tags else []

    def _requests(self, sight: Sight, tags: Sequence[Tag]) -> list[Ready]:
        known = sight.args
        if self._skipped:
            known = tuple([arg for arg in known if arg[0] is Where.LITERAL or arg[1] not in self._skipped])
        if len(tags) == 1:
            only = tuple([self._argument(where, what, tags[0]) for where, what in known])
            return [Ready(sight.primitive, tuple(tags), (only,))]
        columns = [self._column(where, what, tags) for where, what in known]
        args = tuple(zip(*columns, strict=True)) if columns else ((),) * len(tags)
        if (size := sight.stage_items or len(tags)) >= len(tags):
            return [Ready(sight.primitive, tuple(tags), args)]
        stages = range(0, len(tags), size)
        return [Ready(sight.primitive, tuple(tags[at : at + size]), args[at : at + size]) for at in stages]

    def _column(self, where: Where, what: Any, tags: Sequence[Tag]) -> list[Any]:
        """Return an argument for each of the instances."""
        if where is Where.ITEM:
            fragments = self._values[what].fragments
            return [fragments[tag] for tag in tags]
        if where is Where.LITERAL or (where is Where.WHOLE and self._values[what].depth == 0):
            return [self._argument(where, what, ())] * len(tags)
        return [self._argument(where, what, tag) for tag in tags]

    def _argument(self, where: Where, what: Any, tag: Tag) -> Any:
        if where is Where.LITERAL:
            return what
        value = self._values[what]
        return value.get(() if where is Where.WHOLE else tag[: value.depth])

    def _is_skipped(self, p: Primitive) -> bool:
        if p.when:
            condition = self._values[p.when.condition]
            is_decided = condition.is_whole() and not condition.has_lost
            if p.when.condition in self._skipped or (is_decided and condition.get(()) != p.when.value):
                return True
        absent = [ref.name in self._skipped for ref in self._plan.refs[p.name]]
        return bool(absent) and (all(absent) if p.kind == "aggregate" else any(absent))

    def _are_whole(self, names: Sequence[str]) -> bool:
        """Whether all values that are not skipped are whole."""
        for name in names:
            if name in self._skipped:
                continue
            if not self._values[name].is_whole():
                return False
        return True

    def _free_tags(self, name: str, sight: Sight) -> list[Tag]:
        """Mark the instances whose arguments all exist as started. Returns the tags, in ancestry order."""
        if sight.map_depth == 0:
            if name in self._started or (sight.whole and not self._are_whole(sight.whole)):
                return []
            self._started[name] = {()}
            return [()]
        driver = self._values[sight.driver]
        if driver.depth > sight.map_depth:
            return self._free_scopes(name, sight, driver)
        known, seen = self._waiting.pop(name, None), self._seen.get(name, 0)
        if len(driver.fragments) > seen:
            known = sorted([*(known or ()), *islice(driver.fragments, seen, None)])
            self._seen[name] = len(driver.fragments)
        if not known:
            return []
        free = self._free_of(known, sight)
        if len(free) < len(known):
            started = set(free)
            self._waiting[name] = [tag for tag in known if tag not in started]
        return free

    def _free_of(self, known: list[Tag], sight: Sight) -> list[Tag]:
        if sight.whole and not self._are_whole(sight.whole):
            return []
        for name, digits in sight.beside:
            value = self._values[name]
            if name in self._skipped:
                continue
            if digits == value.depth == sight.map_depth:
                fragments = value.fragments
                known = [tag for tag in known if tag in fragments]
            else:
                known = [tag for tag in known if value.has(tag[:digits])]
        return known

    def _free_scopes(self, name: str, sight: Sight, driver: Value) -> list[Tag]:
        """Return the free tags where an instance takes a list below the tag."""
        started = self._started.setdefault(name, set())
        known = sorted(tag for tag in driver.counts if len(tag) == sight.map_depth and tag not in started)
        free = self._free_of([tag for tag in known if driver.has(tag)], sight)
        started.update(free)
        return free

    def _lost_among(self, p: Primitive, tags: Sequence[Tag]) -> set[Tag]:
        """Return the tags that cannot run because an argument, the condition or a gate is lost."""
        needed = (p.when.condition, *p.gated) if p.when else p.gated
        if any(self._values[name].has_lost for name in needed):
            return set(tags)
        refs = [(at, name) for at, name in self._sights[p.name].args if at is not Where.LITERAL]
        lost = [(at, name) for at, name in refs if self._values[name].has_lost and name not in self._skipped]
        depths = self._plan.depths
        return {tag for tag in tags for at, name in lost if contains_lost(self._argument(at, name, tag), depths[name])}

    # --- lists -------------------------------------------------------------------------------------------------------

    def _pass_on_counts(self, sight: Sight) -> bool:
        """Close the lists of a value that are as long as the mapped lists of the primitive."""
        known = self._values[sight.driver].counts
        if sight.is_fold or not known:
            return False
        p, depth, value = sight.primitive, sight.map_depth, self._values[sight.primitive.name]
        if depth == 1 and () in value.counts:
            return False
        drivers, moved = [self._values[name] for name in sight.drivers], False
        for tag in [t for t in known if len(t) < depth and t not in value.counts]:
            counts = {d.counts.get(tag, -1) for d in drivers}
            if -1 in counts:
                continue
            if len(counts) > 1:
                raise GraphError(f"{p.name} = {p.kind}(...): its starred inputs have {sorted(counts)} items")
            if counts == {0} and not self._has_others(sight):
                continue  # an empty list is whole at once, and `p` may yet be skipped
            value.close(tag, known[tag])
            moved = True
        return moved

    def _has_others(self, sight: Sight) -> bool:
        """Whether all arguments that are not mapped over item by item are whole."""
        return self._are_whole((*sight.whole, *(name for name, _ in sight.beside if name not in sight.drivers)))

    def _end_fold(self, sight: Sight) -> bool:
        """Give an ingestion a single value once every item has arrived."""
        folded, value = self._folded[sight.primitive.name], self._values[sight.primitive.name]
        drivers = [self._values[name] for name in sight.drivers]
        if value.fragments or not all(d.is_whole() and len(d.fragments) == folded for d in drivers):
            return False
        if not self._has_others(sight) or (sight.map_depth == 0 and not folded):
            return False
        value.put((), LOST if value.has_lost else None)
        return True
