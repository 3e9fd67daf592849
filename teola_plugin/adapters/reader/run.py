"""One evaluation of a program by the reader: limits, copies of outside values, requests.

An evaluation is a function of the program, the inputs, the outside values (globals, attributes) and the answers so far.
Each new answer starts an evaluation from the beginning, so an evaluation must be cheap, and keeps no state.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from teola_plugin.adapters.reader import (
    alone,
    arrays,
    classes,
    dataframes,
    foreign,
)
from teola_plugin.adapters.reader.asking import Ask, Asker, Nobody, Request, Round
from teola_plugin.adapters.reader.branches import Branches
from teola_plugin.adapters.reader.changes import CONTAINERS, Changed, Changes, Place, is_of_program, like
from teola_plugin.adapters.reader.facts import runs_at_end
from teola_plugin.adapters.reader.foreign import MISSING
from teola_plugin.adapters.reader.heap import MAPPINGS, YIELDED, Frame, Heap, Rounds, of_lists, without_number
from teola_plugin.adapters.reader.held import reached
from teola_plugin.adapters.reader.notes import Notes, is_class_of_others, place_in, roots_of
from teola_plugin.adapters.reader.outer import held_at, outside, place_of
from teola_plugin.adapters.reader.values import (
    ANYWHERE,
    CHANGED,
    COMPUTED,
    NO_SOURCES,
    TIMED,
    Barrier,
    Opaque,
    Renewed,
    Stalled,
    Undecided,
    Unknown,
    isinstance_of,
    type_name,
)
from teola_plugin.errors import Cancelled

T = TypeVar("T")

OPERATIONS = 20_000
"""Operations of one evaluation: some 10 ms. Longer loops are left to the framework's run."""

UNREAD: Hashable = "a function that is not read runs beside others"
"""The key in `changes.Changed` that says so: what any function stores to is not known."""

NOWHERE: Hashable = None
"""`Run.where` of functions whose runs cannot be told apart."""

MAX_CHANGED = 20
"""Outside values that a program may change."""

COMPUTES_S = 0.0005
"""The time between two pauses of a reading. A thread that comes back from a system call waits up to 5 ms for one that
computes (`sys.getswitchinterval`), and the framework's run makes several for each request: readings of a graph of 7
requests delayed its call by 130 ms without pauses, and by 48 ms with them (on two busy cores).
"""

PAUSE_S = 0.00005
"""The length of a pause: what another thread needs to take over the interpreter."""

MAX_DEPTH = 60
"""The depth of nested calls."""

_FACTORIES = (None, list, dict, set, int, str, float)
"""The factories of a `defaultdict` of plain data."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of an ask: the value that the program gets, or the error to raise there."""

    value: Any = None
    error: Exception | None = None


class TooLarge(ValueError):
    """A value has too many parts to be read."""


class Given:
    """The inputs of one prediction, shared by all evaluations.

    `copies`: copies of the arguments, which the program may change. `outer`: copies of outside values. `names`: the
    values of outside names and attributes. `guarded`: copies that a framework's object holds, by their ids, which may
    not be changed. `exact`: copies of variables behind a barrier, which may. All are kept as first read: the
    framework's run goes on meanwhile, and its changes must not be seen twice. All copies are stored by the id of the
    original, which is kept alive. `notes`: of what the program can reach; see notes.py. `alone`: the number of the
    thread of a call alone in the process; else 0. `heard`: see `Run`.
    """

    def __init__(self, heard: Set[Hashable] = frozenset()) -> None:
        self.heard = heard
        self.copies: dict[int, tuple[Any, Any]] = {}
        self.outer: dict[int, tuple[Any, Any]] = {}
        self.guarded: dict[int, Any] = {}
        self.aliased: dict[int, Any] = {}
        """Copies of inputs within reach of the program from outside, too."""
        self.exact: dict[int, Any] = {}
        self.escaped: set[type] = set()
        """Types of objects that something outside of the program has, too; the program may have them as an input."""
        self.notes: Notes | None = None
        self.alone = 0
        self.is_quiet = arrays.is_quiet()
        """Whether numpy raises for no number, in the thread of the framework's run."""
        self.lengths: dict[str, str] = {}
        """The lengths of vectors, by the names of the embedding models; see arrays.py."""
        self.names: dict[tuple[int, str], tuple[Any, Any]] = {}
        """Values of looked-up names and attributes, by the id of the function or object and the name."""
        self.settings: dict[int, tuple[Any, Hashable]] = {}
        """Clients that are asked, by their ids, each with the settings of the first reading."""
        self.reached: dict[int, tuple[Any, Set[Hashable] | None]] = {}
        """What objects can reach, by their ids; see held.py."""

    def copy(self, value: Any) -> Any:
        """Return a copy that the reader owns; objects other than plain data become `Opaque`. Raises: TooLarge."""
        run = Run(Nobody(), given=self, operations=10 * OPERATIONS)
        run.heard.update(self.heard)
        try:
            return run.load(value, is_given=True)
        except Barrier as e:
            raise TooLarge(e.what) from e

    def note(self, roots: Iterable[Any], before: Notes | None = None) -> Notes:
        """Note what functions and objects can reach before the functions run, and what the inputs can.

        `before`: notes from an earlier position of the same functions' run.
        """
        given = roots_of(self.copies.values())
        if before is not None and before.are_lasting:
            before.add(given)
        if before is None or not before.are_lasting:
            before = Notes([*roots, *given])
        self.notes = before
        return before

    def note_alone(self) -> None:
        """Note whether the call beginning in the current thread is alone, if functions store something."""
        if self.notes is not None and self.notes.stores_alone:
            self.alone = alone.thread_alone()

    def renew(self, value: Any, outer: dict[int, tuple[Any, Any]] | None = None, exact: Set[int] = frozenset()) -> Any:
        """Copy a value that an evaluation has made; the copy replaces the value from here on.

        `outer`: the outside values of the evaluation. What the value has of these stays what it is, but for those in
        `exact`, copies of variables behind a barrier, which the program may change: these become a part of the inputs.
        """
        outer = self.outer if outer is None else outer
        kept = {id(copy): (copy, copy) for _, copy in outer.values() if id(copy) not in exact}
        self.copies.update(kept)
        fresh = self.copy(value)
        for number in kept:
            del self.copies[number]
        for known in (self.copies, outer):
            for key, (held, copy) in list(known.items()):
                if id(copy) in self.copies:
                    self.copies[key] = held, self.copies[id(copy)][1]
                    if known is outer:
                        del outer[key]
        return fresh


@dataclass(slots=True)
class Level:
    """A function of the program under evaluation.

    `place`: the current statement. `code`: the code object, for functions that exist outside of the reading.
    `is_direct`: called by a call expression of the function around, once per evaluation of the expression.
    `call`: where the current call expression ends. `compiled`: what is evaluated. `doubts`: see `heap.Heap.doubts`.
    """

    frame: Frame
    name: str
    code: types.CodeType | None
    is_direct: bool
    compiled: Any = None
    doubts: int = 0
    place: Any = None
    call: Any = None


@dataclass(frozen=True, slots=True)
class Met:
    """A request that an evaluation came to (`source`), or a component with unknown input (no source).

    `place`: the component and the call expression. `ask`: of a request without an answer. `unknown`: the sources of the
    input's unknown parts.
    """

    source: Hashable
    place: Hashable
    ask: Ask | None = None
    unknown: frozenset[Hashable] = NO_SOURCES
    is_answered: bool = False

    @property
    def needs(self) -> frozenset[Hashable] | None:
        """The sources of what is waited for; empty if that cannot be told, None if nothing is waited for."""
        if self.ask is None:
            return None if self.is_answered else self.unknown
        return None if self.ask.is_certain else NO_SOURCES if self.ask.is_possible else self.ask.gates


class Run(Heap):
    """One evaluation of a program.

    `asks`: the requests without an answer, in order. `asker`: knows the objects of the frameworks.
    `site`: the call expression under evaluation, and the expressions that led there. `branches`: see branches.py.
    `heard`: values that a listener to requests may change at each request (see `handlers.noted_by`).
    `written`: the paths of files that the program has written ("" if unknown), `made_folders`: those of folders made.
    `locks`: how many locks the program holds. `lives`: how many displays of rich's take the standard streams.
    `limits`: how many time limits apply. `paused_s`: how long the program has paused.

    `levels`: the functions under evaluation, from the outermost. `requested`: the requests of the outermost, by their
    keys; `began`: how often each request had been made before. `stops`: where functions ended at an unread statement.
    `skipped`: the unread statements behind which reading went on. `passed`: how the framework's run has come past a
    stop, of which `used` were used. `open`: the last of these, until a request confirms the reading; `behind`: the
    last of these, also then; `counting`: likewise, until the outermost function ends. `is_lost`: the request did not.
    `mark`: where the framework's run was then. `is_beside`: requests are made beside the function under evaluation.
    `tasks`: tasks that nothing has awaited yet. `where`:
    identifies the run of a function, as the same function of the program may run several times, even side by side. See
    resuming.py.
    `awaited`: unknown objects of a component's own, which the program may have changed.

    `changes`: what the program changes outside of itself, and has changed since the last of `passed` was used; `after`:
    stops behind such changes. `changed`: what earlier evaluations have changed, by the number of `passed` that were
    used before; see changes.py.
    """

    def __init__(
        self, asker: Asker, *, answers: Mapping[Hashable, Answer] | None = None, given: Given | None = None,
        operations: int = OPERATIONS, branches: Branches | None = None, changed: Sequence[Changed] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        classes.begin()
        self.asker = asker
        self.asks: dict[Hashable, Ask] = {}
        self.depth = 0
        self.site: Hashable = None
        self.branches = branches
        heard: set[Hashable] | None = getattr(asker, "heard", None)
        self.heard = set[Hashable]() if heard is None else heard
        self.locks = 0
        self.lives = 0
        self.written: set[str] = set()
        self.made_folders: set[str] = set()
        self.limits = 0
        self.paused_s = 0.0
        self.levels: list[Level] = []
        self.requested: dict[Hashable, Request] = {}
        self.began = Counter[Hashable]()
        self.counting: Any = None
        self.is_direct = False
        self.stops: list[Any] = []
        self.skipped: list[Barrier] = []
        self.passed: Sequence[Any] = ()
        self.used = 0
        self.open: Any = None
        self.behind: Any = None
        self.is_lost = False
        self.mark: Any = None
        self.is_beside = False
        self.tasks: list[Any] = []
        self.where: Hashable = ()
        self.met: list[Met] = []
        self.awaited: Unknown | None = None
        self._answers = answers if answers is not None else {}
        self._left = operations
        self._until_s = math.inf  # the next pause
        given = given or Given()
        self._copies, self._outer, self._names, self._notes = given.copies, given.outer, given.names, given.notes
        self._given = {id(copy): copy for _, copy in self._copies.values()}
        self._changed_in = changed
        self.changes = Changes()
        self.after: list[Any] = []
        self._is_guarded = False
        self._is_noted = False
        self._is_together = False
        self._guarded = given.guarded
        self._known_alone: dict[int, Any] = {}
        self._aliased = given.aliased
        self._settings = given.settings
        self._reached = given.reached
        self._alone, self._is_alone = given.alone, None if given.alone else False
        self._examples: dict[int, tuple[Any, ...]] = {}
        self._escaped: dict[int, Any] = {}
        self._had_escaped = given.escaped
        self._begin_changes()
        self._made_exceptions: dict[int, BaseException] = {}
        self._given_all = given
        self.lengths = given.lengths
        self.computed = 0
        self.warns: bool | None = None

    @property
    def is_in_coroutine(self) -> bool:
        """Whether a coroutine function is under evaluation, or calls the function that is."""
        return any(level.compiled.is_async for level in self.levels)

    # --- limits ------------------------------------------------------------------------------------------------------

    def tick(self, n: int = 1) -> None:
        """Spend operations, and pause if it is time to. Raises: Barrier when none are left."""
        self._left -= n
        if time.perf_counter() > self._until_s:
            time.sleep(PAUSE_S)
            self.give_way()
        if self._left < 0:
            raise Barrier("it computes for too long")

    def give_way(self) -> None:
        """Pause from now on every `COMPUTES_S`, as other threads need the interpreter."""
        self._until_s = time.perf_counter() + COMPUTES_S

    def enter(self) -> None:
        """Begin a nested call. Raises: Barrier."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Barrier("it calls itself too deeply")

    # --- outside values ----------------------------------------------------------------------------------------------

    def load(self, value: Any, *, is_given: bool = False) -> Any:
        """Return the reader's copy of plain data, read-only unless `is_given`; other objects as Opaque."""
        kind = type(value)
        if classes.is_atom(value):
            return value
        known = self._copies.get(id(value)) or self._outer.get(id(value))
        if known is not None and id(value) not in self.heard:
            if id(value) not in self._copies:
                self._require_alone(value, kind)
            elif not is_given:
                self._aliased[id(known[1])] = known[1]
            return known[1]
        if isinstance_of(value, Opaque) or kind is Unknown:
            return value
        if id(value) in self.heard:
            return Unknown()
        self.tick()
        copies = self._copies if is_given else self._outer
        kept = len(copies)
        try:
            return self._copied(value, kind, copies, is_given)
        except BaseException:
            for number in list(copies)[kept:]:  # a part has not been copied
                del copies[number]
            raise

    def load_name(self, function: Any, name: str) -> Any:
        """Return the value of an outside name of a function. Raises: NameError, Barrier."""
        if self.heard and place_of(function, name) in self.heard:
            return Unknown()
        if self.changes.changed and self.changes.holds(place := place_of(function, name)):
            return self.changed_value(place, partial(outside, function, name), error=NameError)
        key = (id(function), name)
        if key not in self._names or self.is_beside_unread:
            value = held_at(function, name)
            self.require_as_noted(place_of(function, name), function, name, value)
        if key not in self._names:
            self._names[key] = function, outside(function, name) if value is MISSING else value
        return self._unshared(self._load_noted(self._names[key][1]))

    def require_as_noted(self, place: Hashable, owner: Any, name: str, value: Any) -> None:
        """Require that an outside value is the one from before the framework's run. Raises: Renewed, Barrier.

        `place`: see `notes.Notes.is_noted`. `value`: MISSING for an empty place.
        """
        notes = self._notes
        if notes is None or self.changes.changed is None:
            return
        if self.is_beside_unread and notes.may_store_beside(owner, name):
            self._change(place, owner, f"{name} may be changed beside it", is_shared=True)
        if not notes.is_as_noted(place, owner, name, value):
            self._change(place, owner, f"{name} may have been changed already", is_shared=not notes.is_noted(place))

    @property
    def is_beside_unread(self) -> bool:
        """Whether unread functions run beside the functions under evaluation."""
        return self.changes.holds(UNREAD)

    def may_be_forgotten(self, value: Any) -> bool:
        """See `Heap`."""
        if self._notes is None:
            return False
        if type(value) in CONTAINERS:
            return self._notes.alters
        return any(self._notes.may_store(value, name) for name in classes.fields_of(value) or ())

    @property
    def _has_others(self) -> bool:
        """Whether functions beside the function under evaluation may store to the same places."""
        return self._is_together or self.is_beside_unread

    def _require_alone(self, value: Any, kind: type) -> None:
        """Require that no unread function may change a container or record, or a part. Raises: Renewed, Barrier."""
        notes, number = self._notes, id(value)
        if notes is None or not self.is_beside_unread or self.changes.holds(number) or number in self._known_alone:
            return
        self.tick()
        self._known_alone[number] = value  # a part may refer to the whole
        try:
            self._require_not_changed(value, kind)
            for part in _parts_of(value, kind):
                self._require_alone(part, type(part))
        except BaseException:
            del self._known_alone[number]
            raise

    def _require_not_changed(self, value: Any, kind: type) -> None:
        what = f"a {type_name(kind)} may be changed beside it"
        if dataframes.is_table(kind):
            raise Barrier(what)
        if kind not in CONTAINERS:
            if self.may_be_forgotten(value):
                raise Barrier(what)
        elif self._is_guarded:
            raise Barrier(what)
        elif self.may_be_forgotten(value):
            self._change(id(value), value, what, is_shared=True)

    def environment(self, *used: Any) -> os._Environ[str]:
        """Return the environment variables from before the framework's run, for use with known values.

        Raises: Barrier.
        """
        self.require_known(*used)
        notes = self._notes
        if notes and (not notes.has_environment or (self.is_beside_unread and notes.may_change_environment)):
            raise Barrier("environment variables have been changed already")
        return os.environ

    def _load_noted(self, value: Any) -> Any:
        """Return the reader's copy of a value that notes should tell about."""
        outer, self._is_noted = self._is_noted, True
        try:
            return self.load(value)
        finally:
            self._is_noted = outer

    def _require_kept(self, value: Any, kind: type) -> None:
        """Require that a container or record, copied now, has its content from before the framework's run.

        Raises: Renewed, Barrier.
        """
        self._require_alone(value, kind)
        notes = self._notes
        if notes is None or self.changes.changed is None or self.changes.holds(id(value)):
            return
        is_kept = notes.is_kept(value)
        is_shared = is_kept is None
        if is_kept or (is_shared and not (self._is_noted and notes.alters and kind in CONTAINERS)):
            return
        what = f"a {type_name(kind)} may have been changed already"
        if kind not in CONTAINERS or self._is_guarded:
            raise Barrier(what)
        self._change(id(value), value, what, is_shared=is_shared)

    def load_attribute(self, owner: Any, name: str, value: Any) -> Any:
        """Return the attribute of a foreign object, as first looked up.

        The framework's run may have changed the attribute since: the reading was earlier.
        """
        if id(owner) in self.heard:
            return Unknown()
        if is_of_program(owner, name):
            return self._unshared(self._load_noted(self.as_first_read(owner, name, value)))
        guarded, self._is_guarded = self._is_guarded, True
        try:
            found = self.load(self.as_first_read(owner, name, value))
        finally:
            self._is_guarded = guarded
        if id(found) in self.changes.opened:
            raise Barrier(f"it changes a {type_name(type(found))} that {classes.describe(owner)} holds")
        if type(found) in CONTAINERS:
            self._guarded[id(found)] = found
        return found

    def _unshared(self, found: Any) -> Any:
        """Return an outside value. Raises: Barrier if functions that run beside each other change the value."""
        if self._is_together and id(found) in self._exact and id(found) in self._changed:
            raise Barrier("functions that run beside each other change what they share")
        return found

    def as_first_read(self, owner: Any, name: str, value: Any) -> Any:
        """Return the first value given for this name of the object. Raises: Renewed, Barrier."""
        is_new = (id(owner), name) not in self._names or self.is_beside_unread
        if is_new and (place := place_in(owner, name)) is not None:
            self.require_as_noted(place, owner, name, value)
        return self._names.setdefault((id(owner), name), (owner, value))[1]

    def _copied(self, value: Any, kind: type, copies: dict[int, tuple[Any, Any]], is_given: bool) -> Any:
        def keep(copy: Any) -> Any:
            copies[id(value)] = value, copy
            if not is_given:
                self._close(value, copy)
            return copy

        def load(part: Any) -> Any:
            return part if classes.is_atom(part) else self.load(part, is_given=is_given)

        if kind is defaultdict and not any(value.default_factory is each for each in _FACTORIES):
            return keep(Opaque(value))
        copied = classes.copy_of(value, load, self.load, keep)
        if copied is classes.MISSING:
            if is_given and runs_at_end(kind):
                raise Barrier("it has an object that runs code when it ends")
            table = self._table(value, is_given)
            return keep(Opaque(value) if table is None else table)
        if not is_given:
            self._require_kept(value, kind)
        return copied

    def _table(self, value: Any, is_given: bool) -> Any:
        """Return the copy of a DataFrame or Series, as the object was before the framework's run; None if not known."""
        notes = self._notes
        if not dataframes.is_table(type(value)) or self.is_beside_unread:
            return None
        now = dataframes.copied(value)
        if now is None or is_given or notes is None or self.changes.changed is None:
            return now
        if (before := notes.table(value)) is None:
            return None if notes.alters else now
        if (columns := dataframes.changed_columns(before, now)) is None:
            return None
        for column in columns:
            if not self.changes.holds((id(value), column)):
                what = "a DataFrame may have been changed already"
                self._change((id(value), column), dataframes.root_of(value), what, is_shared=True)
        return dataframes.copied(value, before)

    def frames(self) -> Sequence[Frame]:
        """See `Heap`."""
        return [level.frame for level in self.levels]

    def is_outside(self, given: Given) -> None:
        """Use the outside values and names recorded in `given` from here on."""
        self._outer, self._names, self._guarded, self._notes = given.outer, given.names, given.guarded, given.notes
        self._exact = {**self._exact, **given.exact}
        self._begin_changes()
        if self._notes is not None and self._notes.has_threads:  # what was not read may have started something
            self.begin_beside_unread()
            self.limits += self._notes.has_timers

    def renewed(self, given: Given, value: Any) -> Any:
        """Return a value for later evaluations; see `Given.renew`."""
        return given.renew(value, self._outer, self._exact.keys())

    def has_open(self, *values: Any) -> bool:
        """Whether a part has unknown content, so that no later evaluation can begin with the values."""
        todo, seen = list(values), set[int]()
        while todo and (self._tainted or self._open):
            value = todo.pop()
            if type(value) in classes.ATOMS or type(value) is Unknown or id(value) in seen:
                continue
            if self.is_tainted(value):
                return True
            seen.add(id(value))
            todo += self.parts(value)
        return False

    def hand_on(self, given: Given) -> None:
        """Record the outside values and names of the evaluation in `given`, for later evaluations."""
        given.outer, given.names, given.guarded, given.notes = self._outer, self._names, self._guarded, self._notes
        given.escaped |= {type(each) for each in self._escaped.values()}
        if self.changes.changed is not None:
            for original, copy in self._outer.values():
                if id(copy) in self._restored:
                    self.changes.changed[id(original)] = Place(original)

    # --- own objects -------------------------------------------------------------------------------------------------

    def touch(self, held: Any) -> None:
        """Allow a change of an object; call before each change.

        Raises: Barrier if the object stands for a foreign object.
        """
        if id(held) in self._fixed:
            what = f"it changes a {type_name(type(held))} that it did not make"
            found = self._original_of(held)
            if found is None or type(held) not in CONTAINERS or id(held) in self._guarded:
                raise Barrier(what)
            self._change(id(found), found, what)
        if id(held) in self.changes.opened:
            self._touch_opened(held, f"it changes a {type_name(type(held))} that it did not make")
        self.close(held)
        self.forget_truth(held)
        if self._logs or id(held) in self._given or id(held) in self._exact:
            self.note(held)

    # --- changes outside of the program ------------------------------------------------------------------------------

    def _begin_changes(self) -> None:
        """Begin with the outside values of now: unknown where the program changes them, else not to be changed."""
        number = self.changes.number
        changed = self._changed_in[self.used] if self.used < len(self._changed_in) else None
        self.changes = Changes(changed, number)
        self._open = self.changes.opened
        for original, copy in self._outer.values():
            self._close(original, copy)

    def _close(self, original: Any, copy: Any) -> None:
        """Forbid changes of the copy of an outside value, or let the content be unknown if the program changes it."""
        if self._is_guarded and type(copy) in CONTAINERS:
            self._guarded[id(copy)] = copy
        if id(copy) in self._exact:
            return
        if not self.changes.holds(id(original)):
            self.fix(copy)
            return
        self._fixed.pop(id(copy), None)
        self.changes.opened[id(copy)] = copy
        if self.changes.is_shared(id(original)):
            self.changes.shrunk.add(id(copy))

    def _original_of(self, held: Any) -> Any:
        """Return the outside container of which an object is the copy; None for other objects."""
        return next((original for original, copy in self._outer.values() if copy is held), None)

    def _touch_opened(self, held: Any, what: str) -> None:
        """Note a change of a container of unknown content, and of all containers for which the container may stand."""
        self._note_change(what)
        original = self._original_of(held)
        if original is not None:
            if self._has_others and not self.changes.is_shared(id(original)):
                self._change(id(original), original, what)
            return
        for example in self._all_examples(held):
            if id(example) in self._given or id(example) in self._copies or id(example) in self._guarded:
                raise Barrier(what)
            original = self._original_of(example)
            if original is None and id(example) in self._escaped:  # the program has made it; see below
                continue
            original = example if original is None else original
            copy = self._outer.get(id(original), (None, None))[1]
            if id(copy) in self._guarded or id(copy) in self._exact:
                raise Barrier(what)
            if not self.changes.is_shared(id(original)):
                self._change(id(original), original, what, is_shared=True)
        if type(held) in self._had_escaped:
            raise Barrier(what)
        for each in [each for each in self._escaped.values() if type(each) is type(held) and each is not held]:
            if id(each) not in self.changes.opened:
                self.touch(each)
                self.taint(each)

    def _all_examples(self, held: Any) -> Iterator[Any]:
        """Yield what an object stands for; of another stand-in, what that one stands for."""
        for example in self._examples.get(id(held), ()):
            yield from self._all_examples(example) if id(example) in self._examples else (example,)

    def escapes(self, held: Any, *values: Any) -> None:
        """Note that values are stored in something outside of the program, if `held` is that."""
        if id(held) in self.changes.opened or any(
            id(held) in each for each in (self._exact, self._given, self._escaped)
        ):
            self._escape(values)

    def _escape(self, values: Iterable[Any]) -> None:
        todo = list(values)
        while todo:
            value = todo.pop()
            kind = type(value)
            if kind in classes.ATOMS or id(value) in self._escaped:
                continue
            todo += self.open_parts(value)
            for lists in filter(None, [of_lists(value), *self.lists_in(value)]):
                self.taint(lists)
                self.fix(lists)
            if kind is Unknown:
                continue
            if kind is Opaque and not value.is_own:
                continue
            self.tick()
            if kind is not tuple and kind is not frozenset:
                self._escaped[id(value)] = value
            if isinstance_of(value, Opaque):
                if kind is Opaque and not isinstance_of(value.held, Opaque):
                    self._escaped[id(value.held)] = value.held
                    todo += (foreign.own_attributes(value.held) or {}).values()
                continue
            todo += self.parts(value)

    def has_escaped(self) -> bool:
        """Whether functions have a value of the program's own that something outside of the program has, too."""
        own = {
            key: each
            for key, each in self._escaped.items()
            if not any(key in some for some in (self._given, self._exact, self._fixed, self.changes.opened))
        }
        return bool(own) and self.can_reach(own)

    def _change(self, key: Hashable, owner: Any, what: str, *, is_shared: bool = False) -> None:
        """Let the value at a key be unknown to the whole evaluation. Raises: Renewed, Barrier if nothing may change."""
        changed = self.changes.changed
        is_shared = is_shared or self._has_others
        known = changed.get(key) if changed is not None else None
        if changed is None or len(changed) >= MAX_CHANGED or (known is not None and known.is_shared >= is_shared):
            raise Barrier(what)
        changed[key] = Place(owner, is_shared)
        raise Renewed

    def require_unchanged(self, seen_by: Any = None) -> None:
        """Require that the program changes nothing outside before this place, or beside it. Raises: Barrier.

        A function that runs early sees what is outside as it is now, without the changes of statements further up.
        `seen_by`: an object of a library's that runs early, which sees only what it can reach.
        """
        changed = self.changes.changed or {}
        is_seen = self.changes.number and (seen_by is None or self._is_reached(seen_by))
        if is_seen or self.is_beside_unread or any(place.is_shared for place in changed.values()):
            raise Barrier(self.changes.what or "it changes what it did not make")

    def _is_reached(self, root: Any) -> bool:
        """Whether an object can reach something that the program changes."""
        known = self._reached.get(id(root))
        if known is None or known[0] is not root:
            known = self._reached[id(root)] = root, reached(root)
        return known[1] is None or not self.changes.places.isdisjoint(known[1])

    def require_settings_kept(self, client: Any, settings: Hashable) -> None:
        """Require that a client has the settings of the first reading, and the program stores none. Raises: Barrier.

        Else what the framework's run has asked already, before it changed the client, would be asked with new settings.
        """
        own = foreign.own_attributes(client) or {}
        self.require_as_set_before(client)
        places = {id(own), *map(id, own.values())}
        is_stored = not self.changes.places.isdisjoint(places)
        if is_stored or self._settings.setdefault(id(client), (client, settings))[1] != settings:
            raise Barrier(f"it changes {type_name(type(client))}, a client that it asks")

    def require_as_set_before(self, component: Any, places: Collection[Hashable] = ()) -> None:
        """Require that a component has the settings from before the framework's run, but for fields of a user's class.

        The run may have changed the settings already, before this function was read. A model of the user's may count
        its calls in a field; what a property keeps is no setting, nor is what the program sets (`places`).
        Raises: Renewed, Barrier.
        """
        if (notes := self._notes) is None:
            return
        for place, name, value in _settings_of(component):
            if notes.is_noted(place) and place not in places:
                self.require_as_noted(place, component, name, value)
            if notes.is_kept(value) is False and self.changes.changed is not None:
                self._change(place, component, f"{name} may have been changed already")

    def begin_as_set_before(
        self, begin: Callable[[], T], components: Sequence[Any], places: Collection[Hashable] = ()
    ) -> Callable[[], T]:
        """Return `begin`, which raises Cancelled if a component has other settings by then than before the call.

        `places`: settings that the program sets.
        """
        if (notes := self._notes) is None:
            return begin

        def is_changed(place: Hashable, component: Any, name: str, value: Any) -> bool:
            is_other = (
                place not in places and notes.is_noted(place) and not notes.is_as_noted(place, component, name, value)
            )
            return is_other or notes.is_kept(value) is False

        def begin_if_as_before() -> T:
            for component in components:
                if any(is_changed(place, component, name, value) for place, name, value in _settings_of(component)):
                    raise Cancelled("a component was changed after this call of it was foreseen")
            return begin()

        return begin_if_as_before

    def _note_change(self, what: str) -> None:
        self.changes.number += 1
        self.changes.what = what

    def store(self, key: Hashable, owner: Any, value: Any, what: str) -> None:
        """Store an outside value, at a key for its place; `owner` keeps the place alive. Raises: Renewed, Barrier."""
        if not self.changes.holds(key) or (self._has_others and not self.changes.is_shared(key)):
            self._change(key, owner, what)
        self._note_change(what)
        cell = self.changes.cell(key)
        self.note(cell)
        cell["value"] = value
        self._escape([value])
        if self.changes.is_shared(key):
            self.taint(cell)

    def _forget_stored(self) -> None:
        """Forget what the program has stored outside: while a request waits, other calls may store there."""
        for key, cell in self.changes.cells.items():
            if cell and type(cell["value"]) is not Unknown and not self.is_tainted(cell) and not self._keeps(key):
                self.note(cell)
                cell["value"] = self.unknown_like(cell["value"])

    def _keeps(self, key: Hashable) -> bool:
        """Whether nobody else may store to a place: neither who runs beside the call, nor who hears of the request."""
        changed = self.changes.changed or {}
        if not self._alone or self.is_beside_unread or self.tasks or key not in changed:
            return False
        if any(key in self.heard or id(place.owner) in self.heard for key, place in changed.items()):
            return False
        if self._is_alone is None:
            notes = self._notes
            self._is_alone = notes is not None and notes.stores_alone and alone.is_alone(self._alone)
        return self._is_alone

    def begin_beside_unread(self) -> None:
        """Note that functions which are read apart run beside the program, and store something. Raises: Renewed."""
        if not self.is_beside_unread and self.changes.changed is not None:
            self._change(UNREAD, None, "it runs beside functions that store something")

    @contextlib.contextmanager
    def together(self, count: int) -> Iterator[None]:
        """Evaluate `count` functions inside the context, which run beside each other."""
        around, self._is_together = self._is_together, self._is_together or count > 1
        try:
            yield
        except (Barrier, Stalled, Undecided):
            if self._is_together:  # what is not read may change what the others read
                self.begin_beside_unread()
            raise
        finally:
            self._is_together = around

    def changed_value(
        self, key: Hashable, now: Callable[[], Any], *, error: type[Exception], default: Any = MISSING
    ) -> Any:
        """Return the value at the key of a change: as stored, or unknown before.

        `now` reads the place; `default`: what the program gets if the place is empty, `error` if there is no default.
        """
        cell = self.changes.cell(key)
        if self.is_tainted(cell):
            return self.unknown(Unknown(sources=CHANGED))
        if cell:
            return cell["value"]
        if self.changes.is_shared(key):
            return self.unknown(Unknown(sources=CHANGED), error=error)
        try:
            found = now()
        except (NameError, KeyError):
            found = MISSING
        if self._notes is not None:
            found = self._notes.first(key, found)
        found = default if found is MISSING else found
        if found is MISSING:
            return self.unknown(Unknown(sources=CHANGED), error=error)
        return self.unknown_like(found)

    def changed_item(self, held: Any, at: Any) -> Any:
        """Return the item at a key of a container of unknown content. Raises: Undecided."""
        example = self.changes.item(held, at)
        is_plain = type(held) is Counter or type(held) is defaultdict
        if example is classes.MISSING or (self._is_together and not is_plain):
            raise Undecided
        if id(held) in self._examples and type(held) is not Counter:  # a container in what it stands for is not known
            raise Undecided
        if self._beginnings and not is_plain:  # the key may be as new as a change by the framework's run
            self.raises(CHANGED, error=KeyError)
        return self.unknown_like(example, is_made=example is not held.get(at))

    def unknown_like(self, example: Any, *, is_made: bool = False) -> Any:
        """Return an unknown value of the kind of an example. `is_made`: the example is no value of the program's."""
        made = like(example)
        if type(made) is not Unknown:
            self.changes.opened[id(made)] = made
            self._examples[id(made)] = () if is_made else (example,)
            self.stand_in(made)
        return made

    def is_from_before(self, value: Any) -> bool:
        """Whether the value is unknown since the program changes it."""
        return id(value) in self._examples or (type(value) is Unknown and not CHANGED.isdisjoint(value.sources))

    def stands_outside(self, held: Any) -> bool:
        """See `Heap`."""
        return self.changes.stand(held)

    def can_share(
        self, changed: Mapping[int, Any], roots: Iterable[Any], frames: Sequence[Frame] | None = None
    ) -> bool:
        """See `Heap`."""
        return not self._aliased.keys().isdisjoint(changed) or super().can_share(changed, roots, frames)

    def may_change(self, held: Any) -> bool:
        """See `Heap`."""
        return self._is_together or id(held) in self._escaped or super().may_change(held)

    def uses(self, sources: frozenset[Hashable]) -> None:
        """See `Heap`."""
        self.changes.is_needed = self.changes.is_needed or not (CHANGED | COMPUTED).isdisjoint(sources)

    @property
    def is_quiet(self) -> bool:
        """Whether numpy raises for no number, where the framework's run was when its variables were copied last."""
        return (self._given_all if self.behind is None else self.behind.outside).is_quiet

    @property
    def is_in_order(self) -> bool:
        """Whether the statement under evaluation certainly runs, and before all that is evaluated later."""
        return not (self.in_doubt or self.gates or self.is_beside_others)

    @property
    def is_beside_others(self) -> bool:
        """Whether functions that may change the same objects run beside the function under evaluation."""
        return self.is_beside or self._is_together or self.is_beside_unread

    def note_computed(self) -> None:
        """Note that the statement computes a value that is known once the framework's run has come past."""
        self.computed += 1

    def made_exception(self, error: BaseException) -> BaseException:
        """Note an exception made by the program with arguments of the program. Returns the exception."""
        self._made_exceptions[id(error)] = error
        return error

    def is_own_exception(self, error: BaseException) -> bool:
        """Whether the program made the exception; see `made_exception`."""
        return id(error) in self._made_exceptions

    # --- unknown values ----------------------------------------------------------------------------------------------

    def is_unknown(self, value: Any) -> bool:
        """Whether the value, or a part of the container, is unknown."""
        return type(value) is Unknown or self.is_tainted(value)

    def require_known(self, *values: Any) -> None:
        """Require known values. Raises: Undecided if a part is unknown, Barrier if a part is a foreign object."""
        todo = list(values)
        seen: set[int] = set()
        while todo:
            value = todo.pop()
            kind = type(value)
            if kind in classes.ATOMS:
                continue
            if kind is Unknown or self.is_tainted(value):
                self.uses(self.sources(value))
                raise Undecided
            if isinstance_of(value, Opaque):
                raise Barrier(f"it hands on {classes.describe(value)}")
            if id(value) in seen:
                continue
            seen.add(id(value))
            self.tick()
            if kind in (list, tuple, set, frozenset, deque):
                todo += value
            elif kind in (dict, OrderedDict, Counter, defaultdict):
                todo += value.values()
                todo += (key for key in value if type(key) not in classes.ATOMS)
            else:
                todo += self.parts(value)

    def parts(self, value: Any) -> Iterable[Any]:
        """See `Heap`."""
        kind = type(value)
        if kind in (list, tuple, set, frozenset, deque):
            return value  # type: ignore[no-any-return]
        if kind is slice:
            return (value.start, value.stop, value.step)
        if kind in (dict, OrderedDict, Counter, defaultdict):
            return value.values()  # type: ignore[no-any-return]
        return () if isinstance_of(value, Opaque) else (classes.fields_of(value) or {}).values()

    def has_changed(self, kind: type) -> bool:
        """Whether the program has changed, in place, a given object of this class or a part of one."""
        todo = [each for each in (*self._given.values(), *self._exact.values()) if type(each) is kind]
        while self._changed and todo:
            part = todo.pop()
            if id(part) in self._changed:
                return True
            todo += () if classes.is_atom(part) else self.parts(part)
        return False

    def require_hashable(self, value: Any) -> None:
        """Require a hashable value. Raises: Undecided or Barrier, as an unhashable key of a dict would."""
        if type(value) not in classes.ATOMS:
            self.require_known(value)

    def unknown(
        self, *operands: Any, holds: str | type = "any", is_safe: bool = False, error: type[Exception] = Exception
    ) -> Unknown:
        """Return the unknown result of an operation. Unless `is_safe`, the operation may raise an `error`."""
        sources = self.sources(*operands)
        if not is_safe:
            self.raises(sources, error=error)
        return Unknown(holds, sources)

    # --- branches ----------------------------------------------------------------------------------------------------

    @property
    def is_assuming(self) -> bool:
        """See `Branches`."""
        return self.branches is not None and self.branches.is_assuming

    @property
    def has_assumed(self) -> bool:
        """See `Branches`."""
        return self.branches is not None and self.branches.has_assumed

    def assumed(self, branch: Hashable, found: Any) -> Hashable | None:
        """Return the assumed target of an undecided branch, by the value found there; None leaves the branch undecided.

        An assumed target implies that the sources of the value have not raised.
        """
        if self.branches is None:
            return None
        target = self.branches.undecided(branch)
        if target is not None:
            self.gates -= self.sources(found) - ANYWHERE - CHANGED
        return target

    def decided_as(self, branch: Hashable, target: Hashable) -> None:
        """Record the target of a decided branch."""
        if self.branches is not None:
            self.branches.decided(branch, target)

    # --- asks --------------------------------------------------------------------------------------------------------

    def ask(self, request: Request) -> Any:
        """Return the value of a request, Unknown while there is no answer.

        Raises: the answer's error, Barrier, Stalled.
        """
        if self.open is not None:
            self.open.require(self, request)
            self.open = None
            self.has_come_here()
        self._forget_stored()
        if self.locks:
            raise Barrier("it asks while it holds a lock", hint="ask outside of the with statement")
        if self.written:
            self._require_unwritten(request)
        try:
            return self._ask(request)
        finally:
            if self.limits:  # a waiter for the reply may be cancelled
                self.raises(TIMED, error=asyncio.CancelledError)

    def _require_unwritten(self, request: Request) -> None:
        """Refuse requests that may read a file which the program has written. Raises: Barrier."""
        asked = repr(request.key) if any(self.written) else ""
        names = (each if "." in each or "/" in each else repr(each) for each in self.written if each)
        may_read = request.op == "call" or (request.op == "act" and not request.shares)
        if may_read or any(each in asked for each in names):
            raise Barrier("it asks what may read a file that it has written")

    def _ask(self, request: Request) -> Any:
        if self.counting is not None:
            self.counting.count(self, request)
        number = self.counts[request.key]
        self.counts[request.key] += 1
        self.requested[request.key] = request
        key = (request.key, number)
        source = (request.source, self.site)
        answer = None if request.key in self.uncounted else self._answers.get(key)  # may belong to another repetition
        if answer is not None:
            self.met.append(Met(source, without_number(source), is_answered=True))
            if answer.error is not None:
                raise answer.error
            return answer.value
        ask = self.asks.get(key)
        if ask is None:
            gates = self._gates_of(source) | self._awaited_by(request)
            ask = self.asks[key] = Ask(request, number, gates, self.in_doubt, self.mark)
            ask.where = self.where
        else:
            ask.gates |= self._gates_of(source)
            ask.is_possible = ask.is_possible and self.in_doubt
        self.met.append(Met(source, without_number(source), ask))
        if self._asked:
            self._asked[-1].add(key)
        sources: frozenset[Hashable] = frozenset([source])
        if request.may_raise:
            self.raises(sources)
        return Unknown(request.holds, sources)

    def begin_function(self) -> None:
        """Begin the outermost function of a program."""
        self.began, self.requested, self.counting = self.counts.copy(), {}, None

    def number_of(self, request: Request) -> int:
        """Return how often the outermost function has made a request."""
        return self.counts[request.key] - self.began[request.key]

    def _gates_of(self, source: tuple[Hashable, Hashable]) -> frozenset[Hashable]:
        """See `Ask.gates`."""
        component, site = source
        if type(component) is not Round:
            return self._gates - {source}
        return frozenset(gate for gate in self._gates if not _is_of_another_round(gate, component, site))

    @property
    def _gates(self) -> frozenset[Hashable]:
        """The gates but for the replies of earlier rounds of the loops around."""
        if not self.rounds:
            return self.gates
        return frozenset(gate for gate in self.gates if not any(each.is_earlier(gate) for each in self.rounds))

    @contextlib.contextmanager
    def in_rounds(self, frame: Frame) -> Iterator[Rounds]:
        """Evaluate the rounds of a loop inside the context; no batch in a generator, which others run in between."""
        rounds = Rounds(self._gates, len(self.met))
        if YIELDED in frame:
            yield rounds
            return
        self.rounds.append(rounds)
        try:
            yield rounds
        finally:
            self.rounds.remove(rounds)

    def _awaited_by(self, request: Request) -> frozenset[Hashable]:
        """Return the earlier requests whose replies a request has to wait for, as gates."""
        if (may_pass := request.may_pass) is None:
            return frozenset()
        return frozenset(each.key for each in self.asks.values() if not may_pass(request, each.request))

    def decided(self, asked: set[Hashable]) -> None:
        """See `Heap`."""
        for key in asked:
            if key in self.asks:
                self.asks[key].is_possible = False


def _settings_of(component: Any) -> Iterator[tuple[Hashable, str, Any]]:
    """Yield the place, the name and the value of each setting of a component, but for fields of a user's class."""
    own, cls = foreign.own_attributes(component) or {}, type(component)
    of_user = [each for each in foreign.mro_of(cls) if not is_class_of_others(each)]
    names = {name for each in of_user for name in foreign.namespace_of(each).get("__annotations__", ())}
    names |= foreign.caching_in(cls)
    for name, value in list(own.items()):
        if name not in names:
            yield (id(own), name), name, value


def _is_of_another_round(gate: Hashable, own: Round, site: Hashable) -> bool:
    if type(gate) is not tuple or type(gate[0]) is not Round:
        return False
    return gate[0].component == own.component and gate[0].number != own.number and bool(gate[1] == site)


def _parts_of(value: Any, kind: type) -> list[Any]:
    """Return the parts of plain data that are no atoms."""
    if kind in MAPPINGS:
        found: Iterable[Any] = value.values()
    elif kind in CONTAINERS or kind is tuple or kind is frozenset:
        found = value
    else:
        found = (classes.fields_of(value) or {}).values()
    return [each for each in list(found) if not classes.is_atom(each)]
