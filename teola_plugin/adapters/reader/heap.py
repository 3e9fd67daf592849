"""The reader's own objects: changes since a point, and contents after an undecided branch.

Both arms of an undecided `if` are evaluated, first one and then the other, from the same state; differing values become
`Unknown`. So each change is first noted in a *log*: the object and the old content. A path that leaves (`continue`,
`break`, `return`) while the other path goes on is a `Leave`: the state is kept, and joined where both paths meet again.
Until then, evaluated statements may not happen.

    if reply == "no":        arm 1: leaves; its state is kept
        continue             arm 2: goes on; its asks are possible
    keep.append(d)
                             the end of the loop's body: both meet, `keep` has an unknown length
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import operator
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from teola_plugin.adapters.reader import amounts, facts, foreign
from teola_plugin.adapters.reader.asking import Round
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.values import (
    ANYWHERE,
    ARRAYS,
    CHANGED,
    COMPUTED,
    GENERAL,
    NO_SOURCES,
    RAISED,
    Barrier,
    Callee,
    Lazy,
    Managed,
    Opaque,
    Pending,
    Perhaps,
    Stalled,
    Undecided,
    Unknown,
    isinstance_of,
)

NO_ITEMS: Mapping[str, Any] = {}
OptionalItems = dict[int, tuple[Any, Mapping[str, Any]]]
"""Dicts by their ids, each with the items that it may have besides its own; replaced at each change."""

Log = dict[int, tuple[Any, Any]]
"""An object and a content of the object, by the object's id."""

_ANYTHING: frozenset[Hashable] = frozenset([GENERAL])

_UNBOUND = Unknown(sources=_ANYTHING)
"""A variable that is set on only one of two paths."""

NUMBERED, ZIPPED, WALKED, MAPPED, FILTERED = "numbered", "zipped", "walked", "mapped", "filtered"
ALIKE, LISTED, EITHER = "alike", "listed", "either"
KEYS, VALUES, ITEMS = "keys", "values", "items"
"""How an iterator, a list or a view makes its items: see `values.Unknown.over`."""

MAX_LEAVES = 40
"""Open leaves that are kept; in loops with more, rounds are no longer told apart."""

MAX_ROUNDS = 6
"""Evaluations of a loop body with an unknown number of rounds."""

MAX_MOMENTS = 8
"""States that are distinguished where an error may have left a `try`."""

LEAST_MOMENTS = 4
"""With so many, a state is compared with the last by what the program can still reach."""


OUTER, FUNCTION, RETURNED, RUN, SITE, YIELDED = 0, 1, 2, 3, 4, 5
"""Keys of a frame that are no variables: the outer frame, the function, the returned value, the run, the call site, and
what to evaluate at a `yield`."""


class Frame(dict[Any, Any]):
    """The variables of one call, by name, and the values under `OUTER` to `YIELDED`."""

    __slots__ = ()


class Signal:
    """The end of a statement, other than going on to the next (None)."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


BREAK, CONTINUE, RETURN = Signal("break"), Signal("continue"), Signal("return")
NOWHERE = Signal("nowhere")
"""No path goes on: each has left, and is kept as a `Leave`."""

Ended = Signal | None
Block = Callable[[Frame], Ended]

_UNKNOWN_PARTS = object()
"""Stands for the parts of an object of which not all are known."""

LISTS = (list, deque)
MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
DICTS = (*MAPPINGS, Frame)
SETS = (set, frozenset)
_WATCHED = (*MAPPINGS, set, deque)
"""Containers whose iterators refuse to go on after a change."""

ATOMS = (str, int, bool, type(None), bytes)


class Lists:
    """The lists in a dict with unknown keys; nothing else holds the lists.

    `one`: a list of unknown content, which stands for each list: an item put into any list is put into `one`.
    """

    __slots__ = ("one",)

    def __init__(self) -> None:
        self.one: list[Any] = []


@dataclass(frozen=True, slots=True)
class Each:
    """What is known of every item of a container whose content is unknown.

    `holds`: the kind of each item, "any" for items that differ; None if no item has been seen. `sources`: the origins
    of the items, and of the decisions on how many there are. `value`: of a dict, whose items are keys, the kind of each
    value; "list" if all are of `lists`.
    """

    holds: str | type | None
    sources: frozenset[Hashable]
    value: str | type | None = None
    lists: Lists | None = None

    def joined(self, other: Each) -> Each:
        """Return what holds for the items of both."""
        kinds = (each.holds for each in (self, other) if each.holds is not None)
        value = amounts.any_of(each.value for each in (self, other) if each.value is not None)
        lists = [each.lists for each in (self, other) if each.lists is not None]
        if value == "list" and lists[0] is not lists[-1]:
            value = "any"
        sources = self.sources | other.sources
        return Each(amounts.any_of(kinds), sources, value, lists[0] if value == "list" else None)


@dataclass(slots=True)
class Marks:
    """The state of a path besides the contents of objects."""

    counts: Counter[Hashable]
    tainted: dict[int, Any]
    each: Mapping[int, Each]
    optional: OptionalItems
    gates: frozenset[Hashable]
    true: Mapping[Any, Any]
    touched: object

    def keep_common(self, true: Mapping[Any, Any], touched: object) -> None:
        """Forget what is known of values on this path, but not on another, which has `true` and `touched`."""
        self.true = {key: each for key, each in self.true.items() if key in true}
        self.touched = self.touched if touched is self.touched else object()


@dataclass(slots=True)
class Moment:
    """A state: the contents of objects changed since a `Beginning`.

    `changes`: the number of changes when the state was last found equal.
    """

    contents: Log
    marks: Marks
    changes: int


@dataclass(slots=True, eq=False)
class Beginning:
    """The state at the start of a `try`, and the moments since at which an operation may have raised (None: too many).

    `errors`: the errors that may have been raised. `around`: the beginnings of the statements around, each with the
    number of moments before. `frames`: the frames at the start, which an error that leaves the `try` comes back to.
    """

    log: Log
    marks: Marks
    leaves: int
    raised: int
    advanced: int
    frames: Sequence[Frame]
    moments: list[Moment] | None = field(default_factory=list)
    errors: set[type[BaseException]] = field(default_factory=set)
    around: list[tuple[Beginning, int]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Leave:
    """A path that left. `contents`: the contents that differ from the start of the path that goes on (in `log`).

    `why`: the sources of the decision to take the path.
    """

    how: Signal
    value: Any
    contents: Log
    marks: Marks
    why: frozenset[Hashable]
    log: Log = field(default_factory=dict)

    def content(self, key: int, here: Any) -> Any:
        """Return the content of an object when the path left; `here`: the object, for the content now."""
        found = self.contents.get(key) or self.log.get(key)
        return found[1] if found else content_of(here)

    def complete(self, since: Log) -> None:
        """Extend the path to start from the state before the changes in `since`."""
        for key, (held, _) in since.items():
            if key not in self.contents:
                self.contents[key] = held, self.content(key, held)


@dataclass(frozen=True, slots=True)
class _Path:
    """One of two paths that are merged: the contents of the objects that differ, and what `Marks` says of them."""

    contents: Log = field(default_factory=dict)
    tainted: Mapping[int, Any] = field(default_factory=dict)
    optional: OptionalItems = field(default_factory=dict)


_NO_PATH = _Path()


class Rounds:
    """The rounds of a loop under evaluation, as a batch: see `asking.Ask.gates`.

    `_before`: the gates of the loop as a whole. `_earlier`, `_now`: the sources of what may have raised in an earlier
    round, and in the present one. `_asked`: the sources of the requests of the loop.
    """

    def __init__(self, before: frozenset[Hashable], number: int) -> None:
        """Begin a loop. `number`: how many requests the evaluation has come to."""
        self._before = before
        self._earlier: set[Hashable] = set()
        self._now: set[Hashable] = set()
        self._asked: set[Hashable] = set()
        self._number = number

    def raises(self, sources: frozenset[Hashable]) -> None:
        """Note that an operation of the present round may raise."""
        self._now |= sources

    def next(self, met: Sequence[Any]) -> None:
        """Begin the next round. `met`: the requests that the evaluation has come to."""
        self._asked.update(each.source for each in met[self._number :])
        self._number = len(met)
        self._earlier |= self._now & self._asked
        self._now = set()

    def is_earlier(self, gate: Hashable) -> bool:
        """Whether a gate is but the reply to a request of an earlier round."""
        return gate in self._earlier and gate not in self._now and gate not in self._before


class Heap:
    """The state of one evaluation. `in_doubt`: the path may not be taken. `path`: a separate number for each arm.

    `counts`: how often each request was made; at least so often for requests in `uncounted`.
    """

    def __init__(self) -> None:
        self.counts: Counter[Hashable] = Counter()
        self.uncounted: set[Hashable] = set()
        self.gates: frozenset[Hashable] = NO_SOURCES
        self.rounds: list[Rounds] = []
        self.path = 0
        self.raised = 0
        self.handlers = 0
        """The number of `try` statements around whose handlers may catch an error."""
        self.advanced = 0
        self._changes = 0
        self._beginnings: list[Beginning] = []
        self._paths = 0
        self._arms = 0
        self._tainted: dict[int, Any] = {}
        self._each: Mapping[int, Each] = {}
        self._open: Mapping[int, Any] = {}
        self._true: Mapping[Any, Any] = {}
        self._other_true: Mapping[Any, Any] = {}
        self._touched = object()
        self._stores = 0
        self._stored: frozenset[Hashable] = NO_SOURCES
        self._logs: list[Log] = []
        self._leaves: list[Leave] = []
        self._fixed: dict[int, Any] = {}
        self._optional: OptionalItems = {}
        self._given: dict[int, Any] = {}
        self._exact: dict[int, Any] = {}
        self._changed: Log = {}
        self._restored: Log = {}
        self._unsettled: Log = {}
        self._here = self._there = _NO_PATH
        self._standing: dict[int, Any] = {}
        self._made: dict[int, tuple[int, Any]] = {}
        self._orders: dict[int, Any] = {}
        self._asked: list[set[Hashable]] = []
        self._lists: dict[int, tuple[Any, Lists]] = {}
        self._perhaps_filled: dict[int, Any] = {}
        self.texts_of: dict[tuple[int, str], tuple[Unknown, Unknown]] = {}
        self.new_list: Any = None
        self._why: frozenset[Hashable] = NO_SOURCES

    @property
    def in_doubt(self) -> bool:
        """Whether the current path may not be taken."""
        return bool(self._arms or self._leaves)

    @property
    def doubts(self) -> int:
        """The number of undecided branches around the current path."""
        return self._arms + len(self._leaves)

    @property
    def is_logging(self) -> bool:
        """Whether changes of variables must be noted."""
        return bool(self._logs)

    def raises(self, sources: frozenset[Hashable] = NO_SOURCES, *, error: type[BaseException] = Exception) -> None:
        """Note that an operation may raise an `error` in the state of this moment.

        `sources`: the values on which the error depends (none: on anything).
        """
        self.raised += 1
        sources = sources or _ANYTHING
        if not self._stored.isdisjoint(sources):  # what is stored may raise, whatever is found
            sources |= _ANYTHING
        self.gates |= (sources - ARRAYS) or _ANYTHING
        for each in self.rounds:
            each.raises(sources)
        if not COMPUTED.isdisjoint(sources):
            self.uses(COMPUTED)
        for beginning in self._beginnings:
            beginning.errors.add(error)
            self._note_moment(beginning)

    def _note_moment(self, beginning: Beginning) -> None:
        moments = beginning.moments
        if moments is None:
            return
        if moments and self._is_as_in(moments[-1], beginning, len(moments)):
            moments[-1].marks.keep_common(self._true, self._touched)
            return
        if len(moments) == MAX_MOMENTS:
            beginning.moments = None
            return
        moments.append(Moment(_contents_now(beginning.log), self._marks(), self._changes))

    def _is_as_in(self, moment: Moment, beginning: Beginning, moments: int) -> bool:
        """Whether the state is that of an earlier moment, but for objects that nothing reaches behind the `try`.

        Such are the variables of a comprehension, and of a function that the body calls. What is reached must be the
        same objects, as another object of equal content is told apart by `is` and by later changes; then the earlier
        state reached no other objects either. An object that was reached at the start counts as reached, because a
        statement around may hold the object in no variable. `moments`: the number of states so far.
        """
        if not _are_equal(moment.marks.counts, self.counts):
            return False
        if moment.changes == self._changes:
            return True
        if moments < LEAST_MOMENTS:
            return False
        changed = {
            key: held
            for key, (held, before) in beginning.log.items()
            if not _have_same_parts(moment.contents.get(key, (held, before))[1], content_of(held))
        }
        now, then = self._optional, moment.marks.optional
        both = {**then, **now}.items()
        changed |= {key: held for key, (held, _) in both if now.get(key) is not then.get(key)}
        changed |= {key: held for key, held in self._tainted.items() if key not in moment.marks.tainted}
        changed |= self._known_otherwise(moment.marks.each)
        frames = beginning.frames
        if not frames or self.can_reach(changed, *_lost(beginning.log), frames=frames):
            return False
        moment.changes = self._changes  # equal as far as can be told, until the next change
        return True

    # --- objects -----------------------------------------------------------------------------------------------------

    def fix(self, held: Any) -> None:
        """Forbid changes of the object from here on: the object stands for a foreign object."""
        self._fixed[id(held)] = held

    def note(self, held: Any) -> None:
        """Note that an object, which the reader may change, is about to change."""
        key = id(held)
        self._changes += 1
        if (key in self._given or key in self._exact) and key not in self._changed:
            self._changed[key] = held, content_of(held)
        for log in self._logs:
            if key not in log:
                log[key] = held, content_of(held)

    @property
    def has_changed_given(self) -> bool:
        """Whether the program has changed an input in place."""
        return not self._changed.keys() <= self._exact.keys()

    def is_exact(self, held: Any) -> bool:
        """Whether the object is a copy of a variable behind a barrier, which the program may change."""
        return id(held) in self._exact

    def keep_order(self, held: Any, *made_of: Any) -> Any:
        """Note that the program made a set of these objects as CPython does, so with the elements in the same order.

        The order of a set that was changed in place depends on the set's past even if the set was empty.
        """
        is_changed = any(each is held for each in made_of)
        is_made = not is_changed or (id(held) in self._orders and all(map(has_own_hash, held)))
        if is_made and all(map(self.has_order, made_of)):
            self._orders[id(held)] = held
        else:
            self._orders.pop(id(held), None)
        return held

    def has_order(self, held: Any) -> bool:
        """Whether iteration has the order of the framework's run: the order of a set depends on all past changes."""
        if type(held) not in SETS or len(held) < 2:
            return True
        return id(held) in self._orders and all(map(has_own_hash, held))

    def forget_order(self, held: Any) -> None:
        """Note that the elements of a set may have another order in the framework's run."""
        self._orders.pop(id(held), None)

    def _set_content(self, held: Any, content: Any) -> None:
        """Set the content of an object; elements of a set that is filled at once may be in another order."""
        set_content(held, content)
        self.forget_order(held)

    def put_back(self) -> None:
        """Restore the inputs of the evaluation, and the variables with which it went on behind a barrier."""
        for held, content in self._changed.values():
            set_content(held, content)
        self._restored, self._changed = self._changed, {}

    def taint(self, held: Any) -> None:
        """Note that the content of the object is unknown from here on."""
        self.note(held)
        self.close(held)
        if id(held) not in self._tainted:
            self._tainted = {**self._tainted, id(held): held}
        if id(held) in self._each:
            self._each = {key: each for key, each in self._each.items() if key != id(held)}

    def taint_with(self, held: Any, each: Each | None) -> Any:
        """Note that nothing but `each` is known of the content of a list, a deque or a set. Returns the object."""
        self.taint(held)
        if each is not None:
            self._each = {**self._each, id(held): each}
        return held

    def gain(self, held: Any, *items: Any) -> None:
        """Note that the program may have put these items into an object of unknown content."""
        each = self._each.get(id(held))
        if each is not None and (now := each.joined(self._each_in(items))) != each:
            self.note(held)
            self._each = {**self._each, id(held): now}

    def each_of(self, value: Any) -> Each | None:
        """Return what is known of the items of a container; None if an item is not known at all."""
        if type(value) is Unknown:
            return self._each_of_unknown(value)
        if type(value) not in (*LISTS, set, *MAPPINGS) or id(value) in self._open:
            return None
        if id(value) not in self._tainted:
            return self._each_in(value)
        found = self._each.get(id(value))
        return None if found is None else Each(found.holds, self.sources(value), found.value, found.lists)

    # --- dicts of lists ----------------------------------------------------------------------------------------------

    def lists_for(self, held: Any, each: Each, why: frozenset[Hashable]) -> Lists | None:
        """Return the lists of a dict to which a new list is added; None if the dict has values of further kinds.

        `each`: what is known of the dict before. `why`: the sources of the key.
        """
        if each.value not in (None, "list"):
            return None
        lists = each.lists or self._lists.setdefault(id(held), (held, Lists()))[1]
        if not self.is_tainted(lists.one):
            self.taint_with(lists.one, Each(None, why or ANYWHERE))
        return lists

    def put_into(self, lists: Lists, new: Any) -> None:
        """Note that a list, known to the program's expression alone, belongs to the lists."""
        own, each = self.each_of(lists.one), self.each_of(new)
        self.taint_with(lists.one, own.joined(each) if own and each else None)

    def listed(self, lists: Any, sources: frozenset[Hashable]) -> Unknown:
        """Return what stands for some list of these, or for a list which nothing else holds."""
        one = lists.one if type(lists) is Lists else lists
        return Unknown("list", sources or ANYWHERE, over=(LISTED, one))

    def fill_perhaps(self) -> None:
        """Note that an item of an unknown value is taken, which may be a defaultdict of the program's."""
        for each in self._perhaps_filled.values():
            self.touch(each)
            self.taint(each)

    def touch(self, held: Any) -> None:
        """Allow a change of an object."""

    def is_new(self, value: Any) -> bool:
        """Whether a value is a list that only the program's expression knows; see `new_list`."""
        return value is self.new_list and type(value) in (list, Unknown)

    def lists_in(self, held: Any) -> list[Any]:
        """Return what stands for the lists in a dict of unknown content."""
        each = self._each.get(id(held)) if self._each and type(held) in MAPPINGS else None
        return [] if each is None or each.lists is None else [each.lists.one]

    def _each_of_unknown(self, value: Unknown) -> Each | None:
        if (item := amounts.item_of(value.holds)) is not None:
            return Each(item, value.sources or ANYWHERE)
        if not value.over:
            holds = {"texts": "text", "list": "any"}.get(str(value.holds))
            return None if holds is None else Each(holds, value.sources or ANYWHERE)
        if len(value.over) == 1:
            return Each(value.over[0], self.sources(value))
        if value.over[0] is EITHER:
            self.use_up(value)
            return None
        if value.over[0] is LISTED:
            found = self.each_of(value.over[1])
            return None if found is None else Each(found.holds, self.sources(value))
        if value.over[0] is WALKED:
            self._goes_on(value)
            return self.each_of(value.over[1])
        if value.over[0] is ITEMS:
            return Each("any", self.sources(value))
        return Each(None, self.sources(value) or ANYWHERE).joined(self._each_in(self.items_of(value)))

    def items_of(self, value: Any) -> list[Any]:
        """Return what stands for the items of an unknown iterable, each made in another round; see `repeat`."""
        self._goes_on(value)
        items, frame = list[Any](), (self.frames() or [Frame()])[-1]
        with self._going_over(value):
            self.repeat(frame, lambda _: items.append(self.item_of(value)), self.sources(value) or ANYWHERE)
        return items

    def list_of(self, value: Any) -> Unknown:
        """Return a list that is made at once of the items of an unknown iterable."""
        found = functools.reduce(self.joined, self.items_of(value))
        return Unknown("list", self.sources(value) or ANYWHERE, over=(ALIKE, _as_kept(found)))

    def use_up(self, value: Any) -> None:
        """Note that items of an unknown iterator may be made, which may call functions."""
        if type(value) is Unknown and len(value.over) > 1:
            try:
                self.items_of(value)
            except Undecided:  # of a function in C, which does no more than compute
                self.raises(self.sources(value))

    def iterator(self, how: str, *parts: Any, sources: frozenset[Hashable] = NO_SOURCES) -> Unknown:
        """Return an iterator that makes its items later; see `values.Unknown.over`."""
        found = Unknown("any", self.sources(*parts) or sources, over=(how, *parts))
        found.of = self._touched
        return found

    def _goes_on(self, value: Any) -> None:
        """Note that an iterator is used: it refuses if what it goes over was changed since it was made."""
        if type(value) is not Unknown or len(value.over) < 2:
            return
        is_old = type(value.of) is object and value.of is not self._touched
        if is_old and any(
            type(each) in _WATCHED or (self._stores and _may_be_dict(each)) for each in self.views_in(value)
        ):
            self.raises(error=RuntimeError)
            return
        for each in value.over[1:]:
            self._goes_on(each)

    def is_true(self, value: Any) -> bool:
        """Whether a value that is not known certainly counts as true."""
        return self._is_true(value, self._true)

    def _is_true(self, value: Any, true: Mapping[Any, Any]) -> bool:
        if id(value) in true:
            return _is_constant(value) or not self.may_change(value)
        if type(value) is Unknown:
            return value.is_true
        return type(value) in (*ATOMS, float, list, tuple) and not self.is_tainted(value) and bool(value)

    def note_truth(self, value: Any, is_true: bool) -> None:
        """Note what a value that is not known shows on this path, on which it counts as true or not."""
        while type(value) is Unknown or type(value) is list:
            if _has_names(value):
                return  # by another name the list may be emptied
            if is_true:
                self._true = {**self._true, id(value): (value,)}
            of = value.of if type(value) is Unknown else None
            if type(of) is not tuple or of[1] is not is_true or (of[2] is not None and of[2] is not self._touched):
                return
            if type(of[0]) is tuple:
                for each in of[0]:
                    self.note_truth(each, is_true)
                return
            if len(of) == 4 and not _has_names(of[0]):
                self.note_key(of[0], of[3])
            value, is_true = of[0], True

    def forget_truth(self, held: Any) -> None:
        """Note that a container is changed, so it may be empty from here on."""
        self._touched = object()
        if self._true:
            self._true = {key: each for key, each in self._true.items() if each[0] is not held}

    def store_in_found(self, held: Unknown) -> None:
        """Note that the program stores a text or number in a document that a search has made; see `values.FOUND`.

        The sources of the document no longer tell what an operation on a part may raise.
        """
        self.forget_truth(held)
        self._stores += 1
        self._stored |= held.sources

    @contextlib.contextmanager
    def _going_over(self, items: Any) -> Iterator[None]:
        """Note that a walk over what may be the metadata of a found document raises where an item is stored inside."""
        stores = self._stores
        yield
        if self._stores > stores and any(map(_may_be_dict, self.views_in(items))):
            self.raises(error=RuntimeError)

    def shown(self, value: Any, is_true: bool, *key: Any) -> tuple[Any, ...]:
        """Return what a flag shows of another value as it is now; see `Unknown.of`."""
        return value, is_true, None if _is_constant(value) else self._touched, *key

    def note_key(self, held: Any, key: Any) -> None:
        """Note that a dict of unknown content has a key on this path, a text a part, a list an item at an index."""
        self._true = {**self._true, (id(held), _named(key)): (held, key)}

    def has_key(self, held: Any, key: Any) -> bool:
        """Whether a dict of unknown content certainly has a key; see `note_key`."""
        return (id(held), _named(key)) in self._true and not self.may_change(held)

    def has_part(self, text: Unknown, part: str) -> bool:
        """Whether a text that is not known certainly contains the part; see `note_key`."""
        parts = [each[1] for each in self._true.values() if each[0] is text and len(each) == 2]
        return any(type(each) is str and part in each for each in parts)

    def may_change(self, held: Any) -> bool:
        """Whether a container may be changed by what is not read here."""
        return self.stands_outside(held) or not CHANGED.isdisjoint(self.sources(held))

    def item_of(self, value: Any) -> Any:
        """Return what stands for any item of an unknown iterable. Calls the function that makes it, if there is one."""
        if type(value) is Unknown and len(value.over) > 1:
            return self._item_of_made(value, *value.over)
        each = self.each_of(value)
        whole = amounts.holds_of(value)
        holds = (None if each is None else each.holds) or (whole if whole in (amounts.JSON, "text") else "any")
        item = Unknown(holds, self.sources(value))
        item.is_true = whole == "text"
        return self._key_of(value, item)

    def _key_of(self, held: Any, key: Any) -> Any:
        """Return an item of what may be a dict, which has the item as a key until it is changed."""
        if type(held) in MAPPINGS:
            self.note_key(held, key)
        return key

    def _item_of_made(self, value: Unknown, how: str, first: Any, *rest: Any) -> Any:
        if how is EITHER:
            raise Barrier("it goes over an iterator that was made on one of two paths")
        if how is WALKED:
            return self.item_of(first)
        if how is LISTED:
            each = self.each_of(value)
            return Unknown("any" if each is None else each.holds or "any", self.sources(value))
        if how is ALIKE:
            return _another(first)
        if how is MAPPED:
            return call(self, first, tuple(map(self.item_of, rest)), {})
        if how is FILTERED:
            item = self.item_of(rest[0])
            with self.noting() as log:
                call(self, first, (item,), {})
            if self.can_reach({key: held for key, (held, _) in log.items()}):
                raise Stalled("it is not known how often a function is called, which may change something")
            return item
        if how in (KEYS, VALUES, ITEMS):
            each = self.each_of(first) or Each("any", ANYWHERE, "any")
            key, item = (Unknown(holds or "any", self.sources(value)) for holds in (each.holds, each.value))
            item = item if each.lists is None else self.listed(each.lists, self.sources(value))
            key = self._key_of(first, key) if how is not VALUES else key
            return (key, item) if how is ITEMS else key if how is KEYS else item
        items = (self.item_of(first), *map(self.item_of, rest))
        return (Unknown(amounts.COUNT, self.sources(value)), *items) if how is NUMBERED else items

    def views_in(self, value: Any) -> Iterator[Any]:
        """Return what an unknown iterable goes over: dicts and sets must not change meanwhile."""
        if type(value) is not Unknown:
            yield value
            return
        for each in value.over[1:]:
            yield from self.views_in(each)
        if not value.over:
            yield value

    def repeat_over(self, items: Any, frame: Frame, round_: Block) -> None:
        """Go on with the state after any number of rounds, one for each of the items; see `repeat`."""
        self._goes_on(items)
        views = list(self.views_in(items))
        kinds = [(each, each.holds) for each in views if type(each) is Unknown]
        with self.noting() as log, self._going_over(items):
            self.repeat(frame, round_, self.sources(items) or ANYWHERE)
        if any(each.holds != holds for each, holds in kinds):
            raise Stalled("a loop changes what it goes over")
        if any(id(each) in log and type(each) in _WATCHED for each in views):
            self.raises(error=RuntimeError)

    def _each_in(self, items: Iterable[Any]) -> Each:
        """Return what is known of every one of these items."""
        held = list(items)
        values = [*items.values()] if isinstance(items, dict) else []
        kinds = (amounts.any_of(map(_holds_if_hashed, each)) for each in (held, values))
        return Each(next(kinds), self.sources(*held, *values), next(kinds))

    def _known_otherwise(self, before: Mapping[int, Each]) -> dict[int, Any]:
        """Return the objects of which something else was known of the items before."""
        both = before.keys() & self._tainted.keys() if before else ()
        return {key: self._tainted[key] for key in both if not _are_alike(self._each.get(key), before[key])}

    def taint_but(self, held: dict[str, Any], optional: Mapping[str, Any]) -> None:
        """Note that the order of a dict's items is unknown, and that the dict may have each of the `optional` items."""
        self.taint(held)
        self._optional = {**self._optional, id(held): (held, optional)}

    def close(self, held: Any) -> None:
        """Forget which items the dict may have."""
        if id(held) in self._optional:
            self._optional = {key: each for key, each in self._optional.items() if key != id(held)}

    def optional_of(self, held: Any) -> Mapping[str, Any] | None:
        """Return the items which the dict may have besides the certain items; None if there are none, or any may be."""
        other, optional = self._optional.get(id(held), (NO_ITEMS, NO_ITEMS))
        return optional if other is held and id(held) not in self._open else None

    def open_items(self, value: Any) -> Mapping[Any, Any] | None:
        """Return the items of a dict of which some may be missing, these as `Perhaps`; None for other values."""
        if type(value) is Unknown:
            return value.items
        optional = self.optional_of(value)
        return None if optional is None else _with_optional(value, optional)

    def open_parts(self, value: Any) -> Iterable[Any]:
        """Return the parts of a dict, with the parts that the dict may have."""
        items = self.open_items(value) or NO_ITEMS
        return [each.value if type(each) is Perhaps else each for each in items.values()]

    def got(self, value: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any] | None:
        """Return the result of `get` of such a dict, in a tuple; None for other calls."""
        if name != "get" or kwargs or len(args) not in (1, 2) or type(args[0]) is not str:
            return None
        items, default = self.open_items(value), args[1] if len(args) == 2 else None
        if items is None:
            return None
        item = items.get(args[0], default)
        return (self.joined(default, item.value) if type(item) is Perhaps else item,)

    def spread(self, found: dict[Any, Any], items: Mapping[Any, Any]) -> None:
        """Update items by others, each of which may be `Perhaps`."""
        for key, item in items.items():
            if type(item) is not Perhaps or key not in found:
                found[key] = item
            elif type(found[key]) is Perhaps:
                found[key] = Perhaps(self.joined(found[key].value, item.value))
            else:
                found[key] = self.joined(found[key], item.value)

    def is_tainted(self, held: Any) -> bool:
        """Whether the content of the object is unknown; see `taint`, and `changes.Changes.opened`."""
        return bool(self._tainted or self._open) and (id(held) in self._tainted or id(held) in self._open)

    def sources(self, *values: Any) -> frozenset[Hashable]:
        """Return the sources of all unknown parts of the values; empty without unknown parts."""
        found: set[Hashable] = set()
        todo, seen = list(values), set[int]()
        while todo:
            value = todo.pop()
            if type(value) is Unknown:
                found |= value.sources or ANYWHERE
                todo += value.over[1:]
            elif type(value) not in ATOMS and id(value) not in seen:
                seen.add(id(value))
                todo += self.parts(value)
            if self.is_tainted(value):
                each = self._each.get(id(value)) if id(value) not in self._open else None
                found |= ANYWHERE if each is None else each.sources or ANYWHERE
                found |= CHANGED if self.stands_outside(value) else NO_SOURCES
                todo += self.lists_in(value)
            if type(value) in (*LISTS, set) and id(value) in self._unsettled:
                found |= ANYWHERE
        return frozenset(found)

    def parts(self, value: Any) -> Iterable[Any]:
        """Return the parts of a value."""
        if type(value) is dict:
            return value.values()
        return value if type(value) in (list, tuple) else ()

    # --- undecided branches ------------------------------------------------------------------------------------------

    def fork(
        self, frame: Frame, first: Block, second: Block, why: frozenset[Hashable] = ANYWHERE,
        on: tuple[Any, bool] = (None, True),
    ) -> Ended:  # fmt: skip
        """Evaluate both arms and go on with the joined state. Raises: Stalled if the states cannot be joined.

        `why`: the sources of the decision between the arms. `on`: a value that decides, and its truth in the first arm.
        """
        why -= ARRAYS  # what is decided by a number is no array
        if GENERAL in why:  # the source of what is perhaps not set
            why = why - _ANYTHING | RAISED
        outer, self._why = self._why, self._why | why
        self.uses(why)
        try:
            return self._fork(frame, first, second, why, on)
        finally:
            self._why = outer

    def _fork(self, frame: Frame, first: Block, second: Block, why: frozenset[Hashable], on: tuple[Any, bool]) -> Ended:
        before, log, marked = self._marks(), self._log(), len(self._leaves)
        try:
            self.note_truth(*on)
            one = self._arm(frame, first)
            one_left = _contents_now(log)
            one_log = dict(log)
            for leave in self._leaves[marked:]:
                leave.complete(log)
            for held, content in log.values():
                self._set_content(held, content)
            for leave in self._leaves[marked:]:
                leave.log.clear()
            log.clear()
            one_marks = self._marks()
            self._set(before)
            made = len(self._leaves)
            self.note_truth(on[0], not on[1])
            two = self._arm(frame, second)
            for leave in self._leaves[made:]:
                leave.complete(log)
                leave.log.clear()
        finally:
            self._logs = [other for other in self._logs if other is not log]
        self._agree(one.asked & two.asked)
        return self._meet(one, one_left, one_log, one_marks, two, log, why)

    def _meet(
        self, one: _Arm, one_left: Log, one_log: Log, one_marks: Marks, two: _Arm, two_log: Log,
        why: frozenset[Hashable],
    ) -> Ended:  # fmt: skip
        if one.has_raised and two.has_raised:
            raise Stalled("both arms raise")
        if one.has_raised or two.has_raised:
            if two.has_raised:
                self._become(one_left, two_log, one_marks)
            self.gates |= _ANYTHING
            return one.ended if two.has_raised else two.ended
        if one.ended is two.ended and one.ended is not NOWHERE:
            returned = self._merge({**two_log, **one_left}, one_marks, why, (two.value, one.value))
            if one.ended is RETURN:
                two.frame[RETURNED] = returned
            return two.ended
        if one.ended is not None and one.ended is not NOWHERE:
            self._leave(Leave(one.ended, one.value, {**two_log, **one_left}, one_marks, self._why))
        if two.ended is not None and two.ended is not NOWHERE:
            base = _contents_now(one_log)  # not changed by arm two
            self._leave(Leave(two.ended, two.value, {**base, **_contents_now(two_log)}, self._marks(), self._why))
        if two.ended is None:
            return None
        if one.ended is None:
            self._become(one_left, two_log, one_marks)
            return None
        return NOWHERE

    def begin(self) -> Beginning:
        """Start noting changes, and the moments at which an operation may raise."""
        frames = self.frames()
        beginning = Beginning(self._log(), self._marks(), len(self._leaves), self.raised, self.advanced, frames)
        beginning.around = [(each, len(each.moments or ())) for each in self._beginnings]
        self._beginnings.append(beginning)
        return beginning

    def end(self, beginning: Beginning) -> None:
        """Stop noting changes and moments of `begin`."""
        self._beginnings.remove(beginning)
        self._logs = [log for log in self._logs if log is not beginning.log]

    def caught(self, beginning: Beginning) -> None:
        """Note that possible errors since the beginning are caught, so later requests do not depend on them."""
        self.raised = beginning.raised
        self.gates = beginning.marks.gates
        for leave in self._leaves[beginning.leaves :]:
            leave.marks.gates = self.gates

    def has_come_here(self) -> None:
        """Note that the framework's run has come to this place, so no operation before has raised."""
        self.gates = NO_SOURCES
        for beginning in self._beginnings:
            beginning.raised, beginning.moments = self.raised, []
            beginning.errors.clear()

    def go_back(self, beginning: Beginning, why: frozenset[Hashable]) -> None:
        """Set the state to a join of all moments since at which an operation may have raised; see `fork`.

        Raises: Stalled for too many moments.
        """
        gates = self.gates
        if beginning.moments is None:
            raise Stalled("an error may have left a try in too many states")
        for number, moment in enumerate(beginning.moments):
            contents = {key: moment.contents.get(key, noted) for key, noted in beginning.log.items()}
            if number == 0:
                self._become(contents, {}, moment.marks)
            else:
                self._merge(contents, moment.marks, why)
        self.gates = gates

    def pass_through(self, frame: Frame, beginning: Beginning, block: Block, failed: Block) -> None:
        """Evaluate what follows a body, where an error may have left the body (`failed`), as `finally` does.

        The error leaves the statements around in the state behind `failed`, not in that of the body. Raises: Stalled.
        """
        for around, moments in beginning.around:
            del (around.moments or [])[moments:]
        why = self.gates or ANYWHERE

        def second(inner: Frame) -> Ended:
            self.go_back(beginning, why)
            failed(inner)
            for around, _ in beginning.around:
                around.errors |= beginning.errors
                self._note_moment(around)
            return NOWHERE

        if self.fork(frame, block, second, why) is not None:
            raise Stalled("it raises behind what may have raised")

    def leave_iterators(self) -> None:
        """Forbid further use of the iterators made before: their positions are unknown."""
        self._paths += 1
        self.path = self._paths

    def repeat(self, frame: Frame, round_: Block, why: frozenset[Hashable]) -> None:
        """Go on with the state after any number of rounds; see `fork`. Raises: Stalled if the state is unknown.

        A round is evaluated until another round changes no known value; where a round may return, the last round
        returns for all. Only values made by the joins of earlier rounds
        are compared by what is known of them: such a value is held in one place, so no other value is the same.
        """
        first = len(self._made)

        def is_of_rounds(value: Any) -> bool:
            number, other = self._made.get(id(value), (-1, None))
            return other is value and number >= first

        for _ in range(MAX_ROUNDS):
            tainted, optional, marked = self._tainted.keys(), self._optional, len(self._leaves)
            known, true, stored = self._each, self._true.keys(), self._stored
            with self.noting() as log:
                ended = self.fork(frame, round_, lambda _: None, why)
            if ended is not None or any(leave.how is not RETURN for leave in self._leaves[marked:]):
                raise Stalled("a round of a loop may leave it, and it is not known which")
            self._optional = {key: each for key, each in self._optional.items() if optional.get(key) is each}
            changed = {
                key: held
                for key, (held, content) in log.items()
                if not (self.is_tainted(held) or _have_same_parts(content, content_of(held), is_of_rounds))
            }
            changed |= {key: held for key, held in self._tainted.items() if key not in tainted}
            changed |= self._known_otherwise(known)
            changed |= {key: held for key, (held, _) in optional.items() if key not in self._optional}
            is_same = self._stored == stored and true <= self._true.keys()
            if is_same and (not changed or not self.can_reach(changed, frame)):
                return
            self.drop_leaves(marked)  # the next round stands for this one, too
        raise Stalled("what a loop comes to hangs on how many rounds it has")

    @contextlib.contextmanager
    def noting(self) -> Iterator[Log]:
        """Note the objects changed inside the context, with the contents before."""
        log = self._log()
        try:
            yield log
        finally:
            self._logs = [other for other in self._logs if other is not log]

    def can_reach(self, changed: Mapping[int, Any], *roots: Any, frames: Sequence[Frame] | None = None) -> bool:
        """Whether the program may still use any of the objects: a frame or `roots` reach one, or one is from outside.

        No frame reaches what only a finished function used, for example its variables. `frames`: the frames that count.
        """
        return not self._given.keys().isdisjoint(changed) or self.can_share(changed, roots, frames)

    def can_share(
        self, changed: Mapping[int, Any], roots: Iterable[Any], frames: Sequence[Frame] | None = None
    ) -> bool:
        """Whether functions beside each other may use any of the objects: as `can_reach`, but for own inputs."""
        is_outside = any(key in self._exact or self.stands_outside(held) for key, held in changed.items())
        return is_outside or any(self.reached(changed, [*roots, *(self.frames() if frames is None else frames)]))

    def reached(self, changed: Collection[int], roots: Iterable[Any]) -> Iterator[int]:
        """Yield the ids that `roots` reach among the ids of changed objects; all ids behind what has unknown parts."""
        if not changed:
            return
        for value in self._walk(roots):
            if value is _UNKNOWN_PARTS:
                yield from changed
            elif id(value) in changed:
                yield id(value)

    def forget_shared(self, roots: Sequence[Sequence[Any]]) -> None:
        """Forget the content of what several of the `roots` reach, as an unread function may change the content."""
        found: dict[int, Any] = {}
        several: dict[int, Any] = {}
        for each in roots:
            mine = {id(value): value for value in self._walk(each) if value is not _UNKNOWN_PARTS}
            several |= {key: value for key, value in mine.items() if key in found}
            found |= mine
        for value in several.values():
            if not self.may_be_forgotten(value):
                continue
            if type(value) in (*LISTS, *MAPPINGS, set):
                self.taint(value)
            else:
                self.note(value)
                set_content(value, dict.fromkeys(content_of(value), Unknown()))

    def may_be_forgotten(self, value: Any) -> bool:
        """Whether an unread function may change a container, or a record's fields."""
        return type(value) in (*LISTS, *MAPPINGS, set)

    def _walk(self, roots: Iterable[Any]) -> Iterator[Any]:
        """Yield what `roots` reach but for atoms, near objects first; _UNKNOWN_PARTS last if there may be more."""
        todo = list(roots)
        seen = set[int]()
        for value in todo:  # `todo` grows
            kind = type(value)
            if kind in ATOMS or id(value) in seen:
                continue
            yield value
            seen.add(id(value))
            todo += self.open_parts(value)
            todo += self.lists_in(value)
            if kind is Unknown:
                todo += value.over[1:]
                continue
            if isinstance_of(value, Opaque):
                if kind is Opaque and value.is_own:
                    todo.append(value.held)
                elif kind is Pending or kind is Managed:
                    todo += value.given
                elif kind is not Opaque:
                    parts = value.parts() if isinstance_of(value, Callee) else None
                    if parts is None:
                        yield _UNKNOWN_PARTS
                        return
                    todo += parts
                continue
            if kind is Lazy:
                yield _UNKNOWN_PARTS
                return
            if kind in (tuple, frozenset):
                todo += value
                continue
            if foreign.is_of_transport(kind) or (foreign.is_class(value) and foreign.is_library_class(value)):
                continue
            found = _content_if_any(value)
            self.tick(1 + len(found) // 50)
            if kind is Frame:
                found = {name: held for name, held in found.items() if name not in _OF_THE_CALL}
            todo += [*found, *found.values()] if type(found) is dict else found

    def stands_outside(self, held: Any) -> bool:
        """Whether the object stands for something outside of the program that the program changes; see changes.py."""
        return False

    def uses(self, sources: frozenset[Hashable]) -> None:
        """Note the use of values with the given sources."""

    def tick(self, n: int = 1) -> None:
        """Spend operations."""

    def frames(self) -> Sequence[Frame]:
        """Return the frames of the functions under evaluation."""
        return ()

    def absorb(self, frame: Frame, how: Signal, ended: Ended, marked: int, until: int | None = None) -> Ended:
        """Join all paths that left by `how` since `marked`, and the arriving path (None), if there is one.

        Paths since `until`, and the arriving path with them, leave the statement around: `break` in the `else` of a
        loop.
        """
        mine = [leave for leave in self._leaves[marked:until] if leave.how is how]
        is_here = ended is how and until is None
        if mine and ended not in (None, NOWHERE) and not is_here:  # the path that is evaluated goes elsewhere
            self._leave(
                Leave(ended, frame[RETURNED] if ended is RETURN else None, {}, self._marks(), self._why | ANYWHERE)
            )
            ended = NOWHERE
        for leave in mine:
            if ended is NOWHERE:
                self._become({**leave.log, **leave.contents}, {}, leave.marks)
                frame[RETURNED] = leave.value
            else:
                before = frame.get(RETURNED) if ended is RETURN else None
                contents = {**leave.log, **leave.contents}
                frame[RETURNED] = self._merge(contents, leave.marks, leave.why, (before, leave.value))
            ended = RETURN if how is RETURN else None
            self._forget(leave)
        return None if is_here and how is not RETURN else ended

    def settle(self, block: Block, frame: Frame) -> Ended:
        """Evaluate a block in which paths may leave. After an error on one path, the paths that left before go on."""
        marked = len(self._leaves)
        try:
            return block(frame)
        except Exception:  # of the program that is read
            if len(self._leaves) == marked:
                raise
            self.raises()
            for leave in self._leaves[marked:]:  # where the paths meet, an error may have been raised
                leave.marks.gates |= self.gates
            return NOWHERE

    @property
    def leaves(self) -> int:
        """The number of paths that have left and not met the current path."""
        return len(self._leaves)

    def drop_leaves(self, marked: int) -> None:
        """Forget the paths that left since, as the evaluation of the paths is over."""
        for leave in self._leaves[marked:]:
            self._forget(leave)

    # --- joins -------------------------------------------------------------------------------------------------------

    def joined(self, one: Any, two: Any, why: frozenset[Hashable] = ANYWHERE) -> Any:
        """Return a value that stands for either value; see `fork`."""
        if one is two:
            return one
        kind, why = type(one), why - ARRAYS
        if kind is type(two):
            if kind in ATOMS and one == two:
                return one
            if kind is tuple and len(one) == len(two):
                return tuple([self.joined(a, b, why) for a, b in zip(one, two, strict=True)])
            if kind is list or kind is dict:
                here, there = self._content_on(self._here, one), self._content_on(self._there, two)
                if here is not None and there is not None and (found := self._alike(here, there, why)) is not None:
                    return self._standing_for(one, two, found)
            if kind is Opaque and one.held is two.held:
                return one
            if (lists := of_lists(one)) is not None and lists is of_lists(two):
                made = self.listed(lists, why | self.sources(one, two))
                self._note_made(made)
                return made
        self._perhaps_filled |= {id(each): each for each in (one, two) if type(each) is defaultdict}
        held_one, held_two = self._held(one), self._held(two)
        holds = "list" if {held_one, held_two} == {"texts", "list"} else amounts.either(held_one, held_two)
        found = Unknown(holds, why | self.sources(one, two), self._united(one, two, why))
        found.is_true = self.is_true(one) and self._is_true(two, self._other_true)
        ends = [end for each in (one, two) if (end := end_of(each)) is not None]
        found.of = max(ends) if len(ends) == 2 else _opening_of_both(one, two)
        found.is_dict = found.items is None and _is_dict(one) and _is_dict(two)
        if holds in ("texts", "list"):
            found.is_shared = True
            for each in (one, two):
                self._share(each)
        if iterators := list(filter(may_call, (one, two))):
            found.over = (EITHER, *iterators)
        self._note_made(found)
        return found

    def _alike(self, one: Any, two: Any, why: frozenset[Hashable]) -> Any:
        """Return the joined contents of two lists of one length, or two dicts with the same keys; None for others."""
        if type(one) is list:
            return [self.joined(a, b, why) for a, b in zip(one, two, strict=True)] if len(one) == len(two) else None
        if not _have_same_keys(one, two):
            return None
        return {key: self.joined(one[key], two[key], why) for key in one}

    def _content_on(self, path: _Path, held: Any) -> Any:
        """Return the content of a list or dict on a path under merge; None if the content is not known."""
        if id(held) not in self._unsettled:
            return None if self.is_tainted(held) else held
        return None if id(held) in path.tainted or id(held) in self._open else path.contents[id(held)][1]

    def _share(self, held: Any) -> None:
        """Forbid changes of a list from here on."""
        if type(held) is Unknown:
            held.is_shared = True
        else:
            self.fix(held)

    def _held(self, value: Any) -> str | type:
        """Return the kind of a value; a list of texts may be known in part."""
        if type(value) is not list:
            return amounts.holds_of(value)
        if id(value) not in self._unsettled and self.is_tainted(value):
            each = self.each_of(value)
            return "texts" if each is not None and each.holds == "text" else "list"
        are_texts = all(amounts.holds_of(each) == "text" for each in value)
        return "texts" if are_texts and self._is_settled(value) else "list"

    def _united(self, one: Any, two: Any, why: frozenset[Hashable]) -> Mapping[Any, Any] | None:
        """Return the items of either of two dicts, of which each may stand for several; see `Unknown.items`."""
        first, second = self._items_on(self._here, one), self._items_on(self._there, two)
        if first is None or second is None:
            return None
        united = self._either(first, second, why)
        for each in (one, two):
            self.fix(each)
        return united

    def _either(self, one: Mapping[Any, Any], two: Mapping[Any, Any], why: frozenset[Hashable]) -> dict[Any, Any]:
        """Return the items of either: `Perhaps` if one of them lacks the key."""
        united: dict[Any, Any] = {}
        for key in (*one, *(key for key in two if key not in one)):
            found = [each[key] for each in (one, two) if key in each]
            values = [each.value if type(each) is Perhaps else each for each in found]
            value = values[0] if len(values) == 1 else self.joined(values[0], values[1], why)
            is_certain = len(found) == 2 and Perhaps not in map(type, found)
            united[key] = value if is_certain else Perhaps(value)
        return united

    def _items_on(self, path: _Path, value: Any) -> Mapping[Any, Any] | None:
        """Return the items of a dict with texts as keys, on a path under merge."""
        if id(value) not in self._unsettled and (items := self.open_items(value)) is not None:
            return items
        if id(value) in path.optional and id(value) not in self._open:
            return _with_optional(path.contents[id(value)][1], path.optional[id(value)][1])
        found = self._content_on(path, value) if type(value) is dict else None
        return found if found is not None and all(type(key) is str for key in found) else None

    def _is_settled(self, held: Any) -> bool:
        """Whether the content of the object is known, and the same on both paths under merge."""
        return id(held) not in self._unsettled and not self.is_tainted(held)

    def _standing_for(self, one: Any, two: Any, held: Any) -> Any:
        """Return an object that stands for either of two, and fix all three: a change of any may change another."""
        for each in (one, two, held):
            self.fix(each)
        self.stand_in(held)
        self._note_made(held)
        return held

    def _note_made(self, value: Any) -> None:
        """Note that the value was made by a join; see `repeat`."""
        self._made[id(value)] = len(self._made), value

    def stand_in(self, held: Any) -> None:
        """Note that the object stands for another; see `stands_in`."""
        self._standing[id(held)] = held

    def stands_in(self, held: Any) -> bool:
        """Whether the object stands for one of several, so that only the object itself is known to be the same."""
        return id(held) in self._standing

    def _merge(
        self, others: Log, marks: Marks, why: frozenset[Hashable], values: tuple[Any, Any] = (None, None)
    ) -> Any:  # fmt: skip
        """Let each object hold either its content or the content in `others`, of a path with `marks`; see `fork`.

        Returns what stands for either of two `values`, of the current path and of the other.
        """
        self._unsettled, self._other_true = others, marks.true
        self._here = _Path(_contents_now(others), self._tainted, self._optional)
        self._there = _Path(others, marks.tainted, marks.optional)
        found = self.joined(*values, why)
        apart = {key for key, each in self._optional.items() if marks.optional.get(key) is not each}
        known = {key: each for key, each in self._each.items() if key in others or marks.each.get(key) == each}
        self._each = known
        for held, other in others.values():
            self._merge_one(held, other, marks, why)
        self._unsettled, self._other_true, self._here, self._there = {}, {}, _NO_PATH, _NO_PATH
        self._optional = {key: each for key, each in self._optional.items() if key not in apart or key in others}
        self._merge_marks(marks)
        is_lost = type(found) is Unknown and found.items is None
        return self.joined(*values, why) if is_lost else found

    def _merge_one(self, held: Any, other: Any, marks: Marks, why: frozenset[Hashable]) -> None:
        now = self._here.contents[id(held)][1]
        kind = type(held)
        is_open = id(held) in self._optional or id(held) in marks.optional
        if kind is dict and (is_open or not _have_same_keys(now, other)):
            self._merge_items(held, other, marks, why)
            return
        is_lost = id(held) in self._tainted or id(held) in marks.tainted
        is_lost = is_lost and not (is_open and kind is dict)
        if kind in LISTS:
            if is_lost or len(now) != len(other):
                self.taint_with(held, self._each_of_either(held, other, marks, why))
                return
            merged: Any = [self.joined(a, b, why) for a, b in zip(now, other, strict=True)]
        elif kind in MAPPINGS and is_lost:
            self.taint_with(held, self._each_of_either(held, other, marks, why))
            return
        elif kind is Frame:
            names = [*now, *(name for name in other if name not in now)]
            merged = {n: self.joined(now[n], other[n], why) if n in now and n in other else _UNBOUND for n in names}
        elif kind is set:
            self.forget_order(held)  # equal sets that were filled otherwise
            if is_lost or not _same_atoms(now, other):
                self.taint_with(held, self._each_of_either(held, other, marks, why))
            return
        elif not _have_same_keys(now, other):
            self.taint_with(held, self._each_of_either(held, other, marks, why) if kind in MAPPINGS else None)
            return
        else:
            merged = {key: self.joined(value, other[key], why) for key, value in now.items()}
        self.note(held)
        set_content(held, merged)

    def _each_of_either(self, held: Any, other: Any, marks: Marks, why: frozenset[Hashable]) -> Each | None:
        """Return what is known of the items of an object on both paths; see `_merge`."""
        one = self._each.get(id(held)) if id(held) in self._tainted else self._each_in(content_of(held))
        two = marks.each.get(id(held)) if id(held) in marks.tainted else self._each_in(other)
        if one is None or two is None or id(held) in self._open:
            return None
        return one.joined(two).joined(Each(None, why))

    def _merge_items(self, held: dict[Any, Any], other: dict[Any, Any], marks: Marks, why: frozenset[Hashable]) -> None:
        """Let a dict hold the items that both paths know, and perhaps the items of one alone."""
        first, second = self.open_items(held), None
        if first is None and not self.is_tainted(held):
            first = held
        if id(held) in marks.optional:
            second = _with_optional(other, marks.optional[id(held)][1])
        elif id(held) not in marks.tainted and id(held) not in self._open:
            second = other
        if first is None or second is None or any(type(key) is not str for key in (*first, *second)):
            self.taint_with(held, self._each_of_either(held, other, marks, why))
            return
        items = self._either(first, second, why)
        self.note(held)
        set_content(held, {key: each for key, each in items.items() if type(each) is not Perhaps})
        self.taint_but(held, {key: each.value for key, each in items.items() if type(each) is Perhaps})

    def _become(self, contents: Log, since: Log, marks: Marks) -> None:
        """Replace the state by another path's: its `contents`, and else the contents before the changes in `since`."""
        for key, (held, content) in {**since, **contents}.items():
            self.note(held)
            self._set_content(held, content if key in contents else since[key][1])
        self._set(marks)

    # --- paths -------------------------------------------------------------------------------------------------------

    def _arm(self, frame: Frame, block: Block) -> _Arm:
        outer, self._paths = self.path, self._paths + 1
        self.path = self._paths
        self._arms += 1
        asked: set[Hashable] = set()
        self._asked.append(asked)
        try:
            ended = block(frame)
            return _Arm(frame, asked, ended, frame.get(RETURNED) if ended is RETURN else None)
        except (RecursionError, Barrier) as e:  # of the reader; the program may never come there
            raise Stalled from e
        except Exception as e:  # of the program that is read
            self.raises(error=type(e))  # in the state of this moment, before the other arm is evaluated
            return _Arm(frame, asked, has_raised=True)
        finally:
            self._asked.pop()
            self._arms -= 1
            self.path = outer

    @contextlib.contextmanager
    def doubted(self) -> Iterator[None]:
        """Evaluate a path that may not be taken inside the context."""
        self._arms += 1
        try:
            yield
        finally:
            self._arms -= 1

    def _agree(self, asked: set[Hashable]) -> None:
        """Note requests that both arms made."""
        if self._asked:
            self._asked[-1] |= asked
        if not self.in_doubt:
            self.decided(asked)

    def decided(self, asked: set[Hashable]) -> None:
        """Note asks that happen on each path."""

    def _leave(self, leave: Leave) -> None:
        if len(self._leaves) >= MAX_LEAVES:
            raise Stalled("too many ways")
        self._leaves.append(leave)
        self._logs.append(leave.log)

    def _forget(self, leave: Leave) -> None:
        self._leaves = [other for other in self._leaves if other is not leave]
        self._logs = [log for log in self._logs if log is not leave.log]

    def _log(self) -> Log:
        log: Log = {}
        self._logs.append(log)
        return log

    def _marks(self) -> Marks:
        counts = self.counts.copy()
        return Marks(counts, self._tainted, self._each, self._optional, self.gates, self._true, self._touched)

    def _set(self, marks: Marks) -> None:
        self.counts, self._tainted, self.gates = marks.counts.copy(), marks.tainted, marks.gates
        self._each, self._optional = marks.each, marks.optional
        self._true, self._touched = marks.true, marks.touched

    def _merge_marks(self, marks: Marks) -> None:
        if not _are_equal(self.counts, marks.counts):
            both = self.counts.keys() | marks.counts.keys()
            self.uncounted |= {key for key in both if self.counts[key] != marks.counts[key]}
            self.counts &= marks.counts
        self._tainted = {**self._tainted, **marks.tainted}
        self.gates |= marks.gates
        self._true = {key: each for key, each in self._true.items() if key in marks.true}
        self._touched = self._touched if marks.touched is self._touched else object()


@dataclass(slots=True)
class _Arm:
    """The result of evaluating one arm."""

    frame: Frame
    asked: set[Hashable]
    ended: Ended = None
    value: Any = None
    has_raised: bool = False


def _may_be_dict(value: Any) -> bool:
    return type(value) is Unknown and value.holds == "any"


def may_call(value: Any) -> bool:
    """Whether a value is an iterator that may call functions of the program to make its items."""
    if type(value) is Unknown and len(value.over) > 1:
        return value.over[0] in (MAPPED, FILTERED, EITHER) or any(map(may_call, value.over[1:]))
    return type(value) is Lazy


def end_of(value: Any) -> int | None:
    """Return a number that an index, known or unknown, is below; None for another value."""
    if type(value) is Unknown:
        return value.of if type(value.of) is int else None
    return value + 1 if type(value) is int and value >= 0 else None


def opening_of(value: Any) -> str | None:
    """Return the bracket of JSON's with which a text, known or unknown, begins; None for another value."""
    if type(value) is Unknown:
        return value.of if amounts.holds_of(value) == "text" and type(value.of) is str else None
    begins = value.lstrip()[:1] if type(value) is str else ""
    return begins if begins in ("{", "[") else None


def _bound(value: Unknown) -> int | str | None:
    """Return what a join leaves of `Unknown.of`."""
    return value.of if type(value.of) in (int, str) else None


def _opening_of_both(one: Any, two: Any) -> str | None:
    found = opening_of(one)
    return found if found is not None and found == opening_of(two) else None


def _is_dict(value: Any) -> bool:
    return type(value) is dict or (type(value) is Unknown and value.is_dict)


def of_lists(value: Any) -> list[Any] | None:
    """Return what stands for the lists of which an unknown value is one; see `Heap.listed`."""
    is_listed = type(value) is Unknown and len(value.over) == 2 and value.over[0] is LISTED
    return value.over[1] if is_listed else None


def _has_names(value: Any) -> bool:
    """Whether the program may know an unknown list by another name."""
    return of_lists(value) is not None or (type(value) is Unknown and value.is_shared)


def changed_by(value: Any) -> Any:
    """Return the list of the reader's that a change of a value changes, for one of a dict's lists."""
    lists = of_lists(value)
    return value if lists is None or value.is_shared else lists


def _as_kept(value: Any) -> Any:
    """Return what stands for a value that is kept: what may change is not known but for its kind."""
    if type(value) is tuple:
        return tuple(map(_as_kept, value))
    if type(value) in (*ATOMS, float) or (type(value) is Unknown and amounts.is_atom(value.holds)):
        return value
    found = Unknown(value.holds, value.sources) if type(value) is Unknown else Unknown(sources=ANYWHERE)
    found.is_shared = True
    return found


def _another(value: Any) -> Any:
    """Return what stands for another value of which the same is known, from `_as_kept`."""
    if type(value) is tuple:
        return tuple(map(_another, value))
    if type(value) is not Unknown:
        return value
    found = Unknown(value.holds, value.sources)
    found.is_shared, found.is_true = value.is_shared, value.is_true
    found.of = value.of if _bound(value) is not None else None
    return found


_are_equal = dict.__eq__
"""Whether two counters are equal, compared in C."""

_OF_THE_CALL = (FUNCTION, RUN, YIELDED)
"""The names of a frame's function and run."""


def _content_if_any(held: Any) -> Any:
    """Return the content of an object of the reader's; nothing for an object without attributes."""
    try:
        return content_of(held)
    except AttributeError:
        return ()


def content_of(held: Any) -> Any:
    """Return the content of an object of the reader's now, as a copy of one level."""
    kind = type(held)
    if kind in LISTS:
        return list(held)
    if kind in DICTS:
        return dict(held)
    if kind is set:
        return set(held)
    return dict(object.__getattribute__(held, "__dict__"))


def _contents_now(log: Log) -> Log:
    """Return the objects of a log with their contents of now."""
    return {key: (held, content_of(held)) for key, (held, _) in log.items()}


def _lost(log: Log) -> Iterator[Any]:
    """Yield the parts that the objects of a log have lost since."""
    for held, content in log.values():
        now = set(map(id, _all_parts(content_of(held))))
        yield from (part for part in _all_parts(content) if id(part) not in now)


def _all_parts(content: Any) -> Iterable[Any]:
    return [*content, *content.values()] if type(content) is dict else content


def set_content(held: Any, content: Any) -> None:
    """Set the content of an object to a result of `content_of`."""
    kind = type(held)
    if kind is list:
        held[:] = content
    elif kind is deque:
        held.clear()
        held.extend(content)
    elif kind is Counter:
        held.clear()
        dict.update(held, content)
    elif kind in DICTS or kind is set:
        held.clear()
        held.update(content)
    else:
        fields = object.__getattribute__(held, "__dict__")
        fields.clear()
        fields.update(content)


_HASHED = (
    str, int, bool, float, type(None), bytes, datetime.datetime, datetime.date, datetime.time, datetime.timedelta,
    uuid.UUID, Fraction,
)  # fmt: skip


def _is_constant(value: Any) -> bool:
    """Whether nothing can change the value."""
    holds = amounts.holds_of(value)
    return amounts.is_atom(holds) or (type(holds) is str and holds == "match")


def has_own_hash(value: Any) -> bool:
    """Whether the hash depends on the content alone, so is the same for the equal object in the framework's run."""
    kind = type(value)
    if kind in (tuple, frozenset):
        return all(map(has_own_hash, value))
    return (kind in _HASHED and bool(value == value)) or facts.kind_of(kind) == "enum"  # NaN has that of its object


def _named(key: Any) -> Hashable:
    """Return what a key is found by: an unknown key by being the same."""
    return (type(key), key) if type(key) in ATOMS else id(key)


def _holds_if_hashed(value: Any) -> str | type:
    """Return the kind of a value that has a hash and never changes, "any" for others."""
    return holds if amounts.is_atom(holds := amounts.holds_of(value)) else "any"


def sources_of(value: Any) -> frozenset[Hashable]:
    """Return the origins of an unknown value."""
    return value.sources if type(value) is Unknown else NO_SOURCES


def _origins(value: Unknown) -> frozenset[Hashable]:
    """Return the sources of an unknown value, without the numbers of rounds: another round of a loop has others."""
    return frozenset(map(without_number, value.sources))


def _are_alike(one: Each | None, two: Each) -> bool:
    """Whether the same is known, but for the numbers of rounds."""
    if one is None:
        return False
    is_same = (one.holds, one.value, one.lists) == (two.holds, two.value, two.lists)
    return is_same and set(map(without_number, one.sources)) == set(map(without_number, two.sources))


def without_number(source: Hashable) -> Hashable:
    """Return a source without the numbers of rounds: the same in each evaluation."""
    if type(source) is Round:
        return source.component
    return tuple(map(without_number, source)) if type(source) is tuple else source


def _with_optional(own: Mapping[Any, Any], optional: Mapping[str, Any]) -> dict[Any, Any]:
    return {**own, **{key: Perhaps(each) for key, each in optional.items()}}


def _no_value(value: Any) -> bool:
    return False


def _have_same_parts(one: Any, two: Any, may_differ: Callable[[Any], bool] = _no_value) -> bool:
    """Whether two results of `content_of` hold the same values; see `_are_same`."""
    if type(one) is dict:
        return _have_same_keys(one, two) and all(
            _are_same(a, b, may_differ) for a, b in zip(one.values(), two.values(), strict=True)
        )
    if type(one) is list:
        return len(one) == len(two) and all(_are_same(a, b, may_differ) for a, b in zip(one, two, strict=True))
    return _same_atoms(one, two)


def _are_same(one: Any, two: Any, may_differ: Callable[[Any], bool]) -> bool:
    """Whether no program can tell the values apart, or the first `may_differ` and the same is known of both."""
    if one is two:
        return True
    kind = type(one)
    if kind is not type(two):
        return False
    if kind is tuple:
        return len(one) == len(two) and all(_are_same(a, b, may_differ) for a, b in zip(one, two, strict=True))
    if kind in ATOMS:
        return bool(one == two)
    if kind is float:
        return repr(one) == repr(two)  # 0.0 and -0.0 are equal
    if not may_differ(one):
        return False
    if kind is Unknown:
        are_kinds = (one.holds, one.is_shared, one.is_dict, one.is_true, _bound(one)) == (
            two.holds, two.is_shared, two.is_dict, two.is_true, _bound(two),
        )  # fmt: skip
        is_alike = are_kinds and _origins(one) == _origins(two)
        is_alike &= len(one.over) == len(two.over) and all(map(_are_identical, one.over, two.over))
        return is_alike and (one.items is two.items or _have_same_items(one.items, two.items, may_differ))
    return kind in (list, dict) and _have_same_parts(one, two, may_differ)


_are_identical = operator.is_


def _have_same_items(
    one: Mapping[Any, Any] | None, two: Mapping[Any, Any] | None, may_differ: Callable[[Any], bool]
) -> bool:
    if one is None or two is None or not _have_same_keys(one, two):
        return False
    return all(
        _are_same(a.value, b.value, may_differ)
        if type(a) is Perhaps and type(b) is Perhaps
        else _are_same(a, b, may_differ)
        for a, b in zip(one.values(), two.values(), strict=True)
    )


def _same_atoms(one: set[Any], two: set[Any]) -> bool:
    return len(one) == len(two) and set(map(_told, one)) == set(map(_told, two))


def _have_same_keys(one: Any, two: Any) -> bool:
    """Whether two dicts have the same keys in the same order. Equal keys may differ: 1, 1.0 and True."""
    return len(one) == len(two) and all(_told(a) == _told(b) for a, b in zip(one, two, strict=True))


def _told(key: Any) -> Hashable:
    """Return what equal keys that a program can tell apart differ in."""
    kind = type(key)
    if kind in (tuple, frozenset):
        return kind, kind(map(_told, key))
    return kind, repr(key) if kind in (float, complex) else key
