"""Reading on behind an unread statement, once the framework's run has come past the statement.

An unread statement (a client of a database, a file, a class in C) ends a reading; only the framework's run knows the
result. When the framework's run makes its next request, the functions under reading stand on the stack, behind the
statement, with all variables. The reading of the function starts again from the beginning. At the statement the
variables become copies of the variables on the stack:

    rows = index.query(vector)                 not read: `Stop`
    for row in rows:                           the run asks for the first row: `Passed` has copies of its variables
        notes.append(model.invoke(row))        read on from here: all rows are asked for

The request itself confirms the reading. If the reading comes to the same request, with the same values in all
variables, the same objects in the same places and unchanged inputs, then the framework's run and the reading are in the
same state. Otherwise the reading ends.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import inspect
import operator
import types
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from teola_plugin.adapters.reader import classes, foreign, records
from teola_plugin.adapters.reader.asking import Nobody, Request
from teola_plugin.adapters.reader.calls import FunctionValue
from teola_plugin.adapters.reader.dataframes import OfPandas, are_rows, is_same
from teola_plugin.adapters.reader.facts import MODEL_SLOTS, facts_of
from teola_plugin.adapters.reader.heap import DICTS, SETS, Frame
from teola_plugin.adapters.reader.run import NOWHERE, Given, Run
from teola_plugin.adapters.reader.table import kind_of, unknown_atom
from teola_plugin.adapters.reader.values import (
    ANYWHERE,
    STALE,
    Barrier,
    Callee,
    Method,
    Opaque,
    Stalled,
    Undecided,
    Unknown,
    is_random_id,
    isinstance_of,
)
from teola_plugin.adapters.source import original_of
from teola_plugin.request_identity import request_key
from teola_plugin.value_keys import is_comparable, value_key

_GROUPS = (list, set, deque, tuple, frozenset)
NO_HOLDERS = (types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
MAX_HOLDERS = 200
"""Objects that are looked at for what variables hold, too."""

OPERATIONS = 20_000
"""Parts of values that are copied a second time."""

LOOKING = frozenset({
    "locals", "vars", "eval", "exec", "dir", "f_locals", "getrefcount", "get_referrers", "get_objects",
})  # fmt: skip
"""Names by which functions get the variables of a frame, where the copies would show."""


@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """A statement: the first and last line, and the last line of the block around.

    `is_repeated`: in a loop. `has_rounds`: contains a comprehension. `names`: all names mentioned. `targets`: variables
    that the `for` loops around set, once in each round.
    """

    start: int
    end: int
    until: int
    is_repeated: bool
    has_rounds: bool
    names: frozenset[str]
    targets: tuple[str, ...] = ()

    def holds(self, line: int) -> bool:
        """Whether a run at the line is in the statement."""
        return self.start <= line <= self.end

    def is_before(self, line: int) -> bool:
        """Whether a run at the line has come past the statement, in the same block."""
        return self.end < line <= self.until


def place_of(
    node: ast.stmt | ast.expr, block: Sequence[ast.stmt | ast.expr], targets: Sequence[str] | None = None
) -> Place:
    """Return the place of a statement of a block, or of the expression of a lambda.

    `targets`: see `Place`; None outside of loops.
    """
    inner = list(ast.walk(node))
    return Place(
        node.lineno, _end(node), _end(block[-1]), targets is not None,
        any(isinstance(each, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) for each in inner),
        frozenset(each.id for each in inner if isinstance(each, ast.Name)), tuple(targets or ()),
    )  # fmt: skip


def _end(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno


def targets_of(node: ast.For) -> list[str]:
    """Return the variables that a loop sets at the beginning of a round, and that nothing in the round sets again."""
    again = {name for part in node.body for each in ast.walk(part) for name in _set_by(each)}
    return [name for each in ast.walk(node.target) for name in _set_by(each) if name not in again]


def head_of(node: ast.For, targets: Sequence[str] | None) -> Place | None:
    """Return the place of the part of a loop that gives the items; None if a line has a part of the body, too.

    The place is passed at the beginning of each round. `targets`: see `place_of`.
    """
    end = _end(node.iter)
    if node.body[0].lineno <= end:
        return None
    inner = [each for part in (node.target, node.iter) for each in ast.walk(part)]
    names = frozenset(each.id for each in inner if isinstance(each, ast.Name))
    own = (*(targets or ()), *targets_of(node))
    return Place(node.lineno, end, _end(node.body[-1]), is_repeated=True, has_rounds=False, names=names, targets=own)


def _set_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node by itself may set or delete."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.alias(name=path, asname=name):
            yield name or path.partition(".")[0]
        case _:
            found = (getattr(node, "name", None), getattr(node, "rest", None))
            yield from (name for name in found if isinstance(name, str))


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of a reading: the code objects of the functions on the reader's stack, and the place in each.

    `where`: which run of the function, see `run.Run`. `callee`: the function that the statement calls with a value that
    is not read, where reading goes on in this function (`return ask(load())`), not behind the statement.
    """

    codes: tuple[types.CodeType, ...]
    places: tuple[Place, ...]
    where: Hashable = ()
    callee: types.CodeType | None = None

    @property
    def is_repeated(self) -> bool:
        """Whether the framework's run may come past the stop several times, in rounds of a loop."""
        return self.places[-1].is_repeated

    def is_at(self, other: Stop) -> bool:
        """Whether both stops are the same place, maybe in different runs."""
        return (
            len(self.codes) == len(other.codes)
            and self.callee is other.callee
            and all(map(operator.is_, self.codes, other.codes))
            and all(map(operator.is_, self.places, other.places))
        )

    def is_passed(self, levels: Sequence[tuple[types.CodeType, int]]) -> bool:
        """Whether functions on a stack, each at some line, have come past the stop."""
        if self.callee is not None:
            inner = levels[len(self.codes) :]
            return self.is_inside(levels) and bool(inner) and inner[0][0] is self.callee
        return self._is_around(levels) and self.places[-1].is_before(levels[len(self.places) - 1][1])

    def is_inside(self, levels: Sequence[tuple[types.CodeType, int]]) -> bool:
        """Whether functions on a stack, each at some line, are in the statement of the stop."""
        return self._is_around(levels) and self.places[-1].holds(levels[len(self.places) - 1][1])

    def _is_around(self, levels: Sequence[tuple[types.CodeType, int]]) -> bool:
        if len(levels) < len(self.codes):
            return False
        if not all(code is mine for mine, (code, _) in zip(self.codes, levels, strict=False)):
            return False
        return all(place.holds(line) for place, (_, line) in zip(self.places[:-1], levels, strict=False))


def stop_here(run: Run, frame: Frame, place: Place) -> Stop | None:
    """Return the stop at an unread statement; None unless the statement runs for certain, and once in a round."""
    *around, level = run.levels
    if run.in_doubt or run.is_assuming or level.frame is not frame or level.code is None:
        return None
    if run.where is NOWHERE or (place.is_repeated and run.tasks):
        return None
    for each in around:
        if each.code is None or each.place is None or each.place.is_repeated or each.place.has_rounds:
            return None
    if any(LOOKING.intersection(each.code.co_names) for each in run.levels if each.code is not None):
        return None
    if not all(each.is_direct for each in run.levels[1:]):  # such as a function called by `map`
        return None
    codes = tuple(each.code for each in run.levels if each.code is not None)
    return Stop(codes, (*(each.place for each in around), place), run.where)


def goes_on(run: Run, frame: Frame, place: Place, barrier: Barrier, stops: list[Stop]) -> bool:
    """Whether reading goes on behind an unread statement, with the variables of the framework's run.

    If the framework's run has not come past the statement yet, the stop is added to `stops`.
    """
    return _come_past(run, frame, place, barrier, stops) is not None


def _come_past(
    run: Run, frame: Frame, place: Place, barrier: Barrier, stops: list[Stop], callee: types.CodeType | None = None
) -> Passed | None:
    stop = None if run.is_lost else stop_here(run, frame, place)
    if stop is None or run.has_escaped():  # the copies do not tell what else has the same object
        return None
    if stop.is_repeated and stops is run.after:  # the rounds are read all the same
        return None
    stop = replace(stop, callee=callee)
    passed: Passed | None = run.open
    if passed is None or passed.where != stop.where or not stop.is_passed(passed.places):
        is_next = passed is None or (passed.where == stop.where and stop.is_inside(passed.places))
        passed = run.passed[run.used] if is_next and run.used < len(run.passed) else None
        try:
            if passed is None or not (passed.is_past(stop) and passed.is_of(run) and passed.is_later(run, stop)):
                stops.append(stop)
                return None
        except Undecided as e:
            raise Stalled from e
        run.used += 1
    passed.fill(run, frame, place)
    run.open = run.behind = run.counting = passed
    run.skipped.append(barrier.bare())
    return passed


def arguments_behind(
    run: Run, frame: Frame, function: Any, barrier: Barrier
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of a call, one of which is not read, once the framework's run has come into the function.

    The call must be all that its statement evaluates: values that the reader has evaluated before the unread one may be
    changed by that. Returns None if the framework's run has not come there yet (the stop is added), or cannot be told.
    """
    is_method = type(function) is Method
    plain = function.function if is_method else function
    place = run.levels[-1].place
    if type(plain) is not Opaque or type(plain.held) is not types.FunctionType or place is None:
        return None
    if original_of(plain.held) is not plain.held:
        return None
    code = plain.held.__code__
    if code.co_flags & _LATER or (passed := _come_past(run, frame, place, barrier, run.stops, code)) is None:
        return None
    level = passed.levels[len(run.levels)]
    known = {
        id(seen): own.frame[name]
        for own, each in zip(run.levels, passed.levels, strict=False)
        for name, seen in each.seen.items()
        if name in own.frame and not classes.is_atom(seen)
    }
    given = {
        name: known.get(id(level.seen[name]), level.copies[name]) for name in parameters_of(code) if name in level.seen
    }
    if len(given) < len(parameters_of(code)):
        return None
    values = [given.pop(name) for name in code.co_varnames[: code.co_argcount]]
    names = list(parameters_of(code)[code.co_argcount + code.co_kwonlyargcount :])
    more = given.pop(names.pop(0)) if code.co_flags & inspect.CO_VARARGS else ()
    named = given.pop(names.pop(0)) if code.co_flags & inspect.CO_VARKEYWORDS else {}
    if type(more) is not tuple or type(named) is not dict:
        return None
    return (*values[is_method:], *more), {**given, **named}


_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Functions that do not run when they are called."""


@dataclass(slots=True)
class Variables:
    """Copies of the variables of a function on the stack of the framework's run, by name. `line`: the current line.

    `call`: where the current call expression ends.
    `seen`: the values as found. `copies`: the values to read on with; inputs are replaced by the reader's copies.
    """

    code: types.CodeType
    line: int
    call: tuple[int | None, int | None]
    seen: dict[str, Any]
    copies: dict[str, Any] = field(default_factory=dict)


def _is_constant(seen: Any) -> bool:
    return foreign.is_atom(seen) or type(seen) in (tuple, frozenset) or isinstance_of(seen, Opaque)


def _parts_of(value: Any) -> list[Any]:
    """Return what a container or a plain object holds. Made at once, as the program may change the object meanwhile."""
    if isinstance_of(value, dict):
        return [*dict.values(value)]
    return [*value] if type(value) in _GROUPS else [*(foreign.own_attributes(value) or {}).values()]


@dataclass(slots=True)
class Passed:
    """The framework's run has come past `stop`, and makes a request. `mark`: see `trace.Asides.when_asked`.

    Without a `stop`, it has come to its first request: then it is past each stop before that place.
    `where`: which run of the function, see `run.Run`.
    `seen`: all copies with the originals, by the original's id. For the program that reads on: `given`, pairs of the
    reader's copy of an input and the copy from the stack; `outside`, copies of outside values from then on.
    `is_alone`: all requests before were made under the function. `counts`: how often each request had been made when
    reading went on, of those asked then or since; `began`: when the function began.
    """

    stop: Stop | None
    key: Hashable
    mark: Any
    levels: tuple[Variables, ...]
    seen: Mapping[int, tuple[Any, Any]]
    given: Sequence[tuple[Any, Any]] = ()
    outside: Given = field(default_factory=Given)
    is_alone: bool = True
    where: Hashable = ()
    made: int = 0
    """The number of requests that the run of the function had made before."""

    made_keys: Counter[Hashable] = field(default_factory=Counter)
    """The keys of these requests."""

    has_all_keys: bool = True
    """Whether these are the keys of all items requested so far, which tell how often each item was requested."""

    began: Counter[Hashable] = field(default_factory=Counter)
    counts: dict[Hashable, int] = field(default_factory=dict)

    @property
    def again(self) -> Stop | None:
        """The stop, if the framework's run may be heard there again, in a later round of a loop."""
        if self.stop is None or not any(place.targets for place in self.stop.places):
            return None
        return replace(self.stop, where=self.where)

    def is_past(self, stop: Stop) -> bool:
        """Whether the run in which a reading ended has come past the stop, as recorded here."""
        is_past = self.stop.is_at(stop) if self.stop is not None else stop.is_passed(self.places)
        return self.where == stop.where and is_past

    def bind(self, given: Given, heard: Set[Hashable]) -> None:
        """Prepare the copies for a program with these inputs, to read on. `heard`: see `Run`.

        Raises: Barrier if there is too much to copy, or if an object without a copy holds a copied value.
        """
        self._require_apart()
        both = [(given.copies[number], self.seen[number]) for number in given.copies.keys() & self.seen.keys()]
        self.given = [(mine, seen) for (_, mine), (_, seen) in both]
        self.outside.copies = {id(seen): (seen, mine) for mine, seen in self.given}
        for seen in (seen for number, (_, seen) in self.seen.items() if number in heard):
            self.outside.copies[id(seen)] = seen, Unknown()
        run = Run(Nobody(), given=self.outside, operations=OPERATIONS)
        for level in self.levels:
            level.copies = {name: run.load(seen) for name, seen in level.seen.items()}
        own = self.outside.outer
        self.outside.copies = given.copies
        self.outside.outer = {
            number: (held, own[id(seen)][1]) for number, (held, seen) in self.seen.items() if id(seen) in own
        }
        self.outside.exact = {id(copy): copy for _, copy in self.outside.outer.values()}

    def _require_apart(self) -> None:
        """Require variables' objects without any container or record copied for a variable, too. Raises: Barrier."""
        held = [seen.held for level in self.levels for seen in level.seen.values() if type(seen) is Opaque]
        copied = {number for number, (_, seen) in self.seen.items() if not _is_constant(seen)}
        looked_at = set[int]()
        for each in held:  # which grows
            if id(each) in looked_at or foreign.is_class(each) or type(each) in NO_HOLDERS:
                continue
            looked_at.add(id(each))
            parts = _parts_of(each)
            if any(id(part) in copied for part in parts):
                raise Barrier("an object holds what a variable holds, too")
            if len(looked_at) < MAX_HOLDERS:
                held += [part for part in parts if not foreign.is_atom(part)]

    @property
    def places(self) -> list[tuple[types.CodeType, int]]:
        """The code and line of each level; see `Stop.is_passed`."""
        return [(each.code, each.line) for each in self.levels]

    def is_of(self, run: Run) -> bool:
        """Whether the framework's run had the same arguments as the reading. Raises: Undecided."""
        same, frame, level = _Same(run), run.levels[0].frame, self.levels[0]
        return all(same(frame.get(name), level.seen.get(name)) for name in parameters_of(level.code))

    def is_later(self, run: Run, stop: Stop) -> bool:
        """Whether the framework's run is in no earlier round of a loop than the reading: has made all requests.

        Reading goes on in that round. What else the reading has from an earlier round must not be used.
        """
        if not stop.is_repeated:
            return True
        return self.has_all_keys and all(
            not request.has_own_requests and run.number_of(request) <= self.made_keys[key_of(request)]
            for request in run.requested.values()
        )

    def count(self, run: Run, request: Request) -> None:
        """Give a request, the first of the key in the reading behind the stop, the number of the framework's run.

        Raises: Barrier in a loop for a request that is made by other requests, which are not told apart by their keys.
        """
        if request.has_own_requests and self.again is not None:
            raise Barrier("a retriever or tool is called in a round of a loop, behind what is not read")
        if request.key not in self.counts:
            if not request.has_own_requests:
                made = run.began[request.key] + self.made_keys[key_of(request)]
                run.counts[request.key] = max(run.counts[request.key], made)
            self.counts[request.key] = run.counts[request.key]

    def fill(self, run: Run, frame: Frame, place: Place) -> None:
        """Give the variables of a frame the values from behind a statement."""
        level = self.levels[len(run.levels) - 1]
        same = _Same(run)
        parameters = parameters_of(level.code)
        is_changed = False
        for name, seen in level.seen.items():
            if name in parameters and (len(run.levels) == 1 or name not in place.names):
                continue
            if name in frame:
                mine = frame[name]
                if _is_own(mine):
                    is_lasting = _is_lasting(level.code, name, mine) if place.is_repeated else name not in place.names
                    if is_lasting and _is_kept(level.code, name, mine, seen):
                        continue
                else:
                    with contextlib.suppress(Undecided):
                        if same(mine, seen):
                            if run.is_exact(mine):
                                run.note(frame)
                                frame[name] = level.copies[name]
                            continue
                is_changed = is_changed or not classes.is_atom(mine)
            run.note(frame)
            frame[name] = level.copies[name]
        if is_changed or place.is_repeated:
            _forget_own(run)
        run.is_outside(self.outside)
        run.mark = self.mark
        self.mark.is_beside |= run.is_beside
        self.counts, self.began = {}, run.began
        for request in run.requested.values():
            self.count(run, request)

    def require_lasting(self, function: types.FunctionType) -> None:
        """Raises: Barrier if a function uses variables of the run's frames that the reader may change in its own."""
        if any(_sees_changes(level, function) for level in self.levels):
            raise Barrier(f"it calls {function.__name__}, which uses variables of a function that is not read whole")

    def require(self, run: Run, request: Request) -> None:
        """Check the reading at the request that the framework's run was making. Raises: Barrier, Stalled."""
        try:
            run.is_lost = not (self._is_asked(run, request) and self._is_right(run, request))
        except Undecided as e:
            raise Stalled from e
        if run.is_lost:
            raise Barrier("it does not come to where the run is")

    def _is_asked(self, run: Run, request: Request) -> bool:
        if request.has_own_requests:
            return True
        key = key_of(request)
        if not is_comparable(key) or key != self.key:
            return False
        self.count(run, request)
        if self.has_all_keys and run.number_of(request) != self.made_keys[key]:
            return False
        return self.is_alone or self.mark.taken(key) == run.counts[request.key]

    def _is_right(self, run: Run, request: Request) -> bool:
        if len(run.levels) > len(self.levels) or (len(run.levels) < len(self.levels) and not request.has_own_requests):
            return False
        same = _Same(run, allows_unknown=not run.in_doubt)
        for own, level in zip(run.levels, self.levels, strict=False):
            if own.call != level.call:
                return False
            if own.code is not level.code and not (own.code is None and own.name == level.code.co_name):
                return False
            if own.place is None or not own.place.start <= level.line <= own.place.end:
                return False
            names = [name for name in own.frame if type(name) is str]
            if len(names) != len(level.seen):
                return False
            for name in names:
                if name not in level.seen:
                    return False
                mine, seen = own.frame[name], level.seen[name]
                if mine is STALE:
                    continue
                if not (_is_kept(level.code, name, mine, seen) if _is_own(mine) else same(mine, seen)):
                    return False
        return all(_Same(run)(copy, seen) for copy, seen in self.given)


def parameters_of(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of the parameters of a function."""
    variadic = (code.co_flags & inspect.CO_VARARGS, code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + sum(map(bool, variadic))]


def key_of(request: Request) -> Hashable:
    """Return the key of a request's reply at the engine."""
    return request_key(request.spec, request.op, request.payload, request.settings)


def _is_own(value: Any) -> bool:
    """Whether the reader made the value, of stock parts or functions of the program, and no other object holds it."""
    return isinstance_of(value, Callee) or (type(value) is Opaque and value.is_own)


def _is_kept(code: types.CodeType, name: str, mine: Any, seen: Any) -> bool:
    """Whether a variable with a value of the reader's holds the same in the framework's run, as far as can be told.

    No unread statement has mentioned the variable, but a function defined inside may set the variable all the same.
    """
    if type(mine) is FunctionValue:
        function = seen.held if type(seen) is Opaque else None
        return type(function) is types.FunctionType and function.__code__.co_name == mine.name
    return not is_set_inside(code, name)


def _is_lasting(code: types.CodeType, name: str, value: Any) -> bool:
    """Whether a variable has the same value of the reader's in all rounds of a loop: a function, set in one place."""
    setting = [each for each in dis.get_instructions(code) if each.argval == name and each.opname in _SETTING_ALL]
    return type(value) is FunctionValue and not value.has_defaults and len(setting) == 1


@functools.lru_cache(maxsize=1024)
def is_set_inside(code: types.CodeType, name: str) -> bool:
    """Whether a function (or comprehension) inside of a function sets a variable of the latter."""
    inner = [each for each in code.co_consts if type(each) is types.CodeType and name in each.co_freevars]
    return any(
        any(each.argval == name and each.opname in _SETTING for each in dis.get_instructions(part))
        or is_set_inside(part, name)
        for part in inner
    )


_SETTING = frozenset({"STORE_DEREF", "DELETE_DEREF"})
_SETTING_ALL = _SETTING | {"STORE_FAST", "DELETE_FAST"}


def _sees_changes(level: Variables, function: Any, found: Set[str] = frozenset()) -> bool:
    """Whether a function that is defined in another uses variables of the latter that may change from here on."""
    if type(function) is not types.FunctionType:
        return False
    code = function.__code__
    if not code.co_qualname.startswith(f"{level.code.co_qualname}.<locals>."):
        return False
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if name in level.code.co_cellvars and name not in found:
            if name not in level.seen or is_set_inside(level.code, name) or _is_set_again(level.code, name):
                return True
            with contextlib.suppress(ValueError):  # not set yet
                if _sees_changes(level, cell.cell_contents, found | {name}):
                    return True
    return False


@functools.lru_cache(maxsize=1024)
def _is_set_again(code: types.CodeType, name: str) -> bool:
    """Whether a function sets a variable in more than one place, the call among them."""
    number = sum(each.argval == name and each.opname in _SETTING for each in dis.get_instructions(code))
    return bool(number + (name in parameters_of(code)) > 1)


def _forget_own(run: Run) -> None:
    """Mark the reader's own values as stale: an unread statement has changed values of the program, maybe these too."""
    frames = [level.frame for level in run.levels]
    for frame in frames:
        for name, value in list(frame.items()):
            if type(name) is str and _is_own(value) and not (isinstance_of(value, Callee) and value.is_plain(frames)):
                run.note(frame)
                frame[name] = STALE


class _Same:
    """Whether a value of the reader's equals a value of the framework's run: the same parts, shared in the same way.

    `allows_unknown`: a number or text that no reply decides, such as the time, stays unknown, and equals any.
    """

    def __init__(self, run: Run, *, allows_unknown: bool = False) -> None:
        self._run = run
        self._allows_unknown = allows_unknown
        self._seen_for: dict[int, tuple[Any, Any]] = {}
        self._has_seen: dict[int, Any] = {}

    def __call__(self, mine: Any, seen: Any) -> bool:
        """Compare two values. Raises: Undecided if a part is unknown."""
        self._run.tick()
        kind = type(mine)
        if is_random_id(mine):
            return type(seen) is str
        if self._allows_unknown and unknown_atom(mine) and mine.sources <= ANYWHERE:
            return type(seen) in _OF_KINDS.get(kind_of(mine), ())
        if self._run.is_unknown(mine):
            raise Undecided
        if type(mine) is OfPandas:
            return is_same(self._run, mine, seen)
        if isinstance_of(mine, Opaque):
            return type(seen) is Opaque and (mine.held is seen.held or _is_twin(mine.held, seen.held))
        if kind is not type(seen) and not are_rows(kind, type(seen)):
            return False
        if classes.is_atom(mine):
            return mine is seen or bool(value_key(mine) == value_key(seen))
        if facts_of(kind).kind == "enum":
            return mine is seen
        if kind is not tuple and kind is not frozenset:
            if id(mine) in self._seen_for:
                return self._seen_for[id(mine)][1] is seen
            if id(seen) in self._has_seen:
                return False
            self._seen_for[id(mine)], self._has_seen[id(seen)] = (mine, seen), seen
        return self._are_parts(mine, seen, kind)

    def _are_parts(self, mine: Any, seen: Any, kind: type) -> bool:
        if kind in (list, tuple, deque):
            is_alike = kind is not deque or mine.maxlen == seen.maxlen
            return is_alike and len(mine) == len(seen) and all(map(self, mine, seen))
        if kind in DICTS:
            if kind is defaultdict and mine.default_factory is not seen.default_factory:
                return False
            return (
                len(mine) == len(seen) and all(map(self, mine, seen)) and all(map(self, mine.values(), seen.values()))
            )
        if kind in SETS:
            return len(mine) == len(seen) and set(map(_told, mine)) == set(map(_told, seen))
        own, theirs = records.fields_of(mine), records.fields_of(seen)
        if own is None or theirs is None or own.keys() != theirs.keys():
            return False
        if not all(self(own[name], theirs[name]) for name in own):
            return False
        return bool(records.model_slot(mine, MODEL_SLOTS[0]) == records.model_slot(seen, MODEL_SLOTS[0]))


_OF_KINDS: dict[str, tuple[type, ...]] = {
    "text": (str,), "float": (float,), "int": (int, bool), "bool": (bool,), "number": (int, float, bool),
}  # fmt: skip
"""The types of what is of a kind."""


def _is_twin(one: Any, two: Any) -> bool:
    """Whether two objects share their attributes, like a LlamaIndex component and the result of `optimize`."""
    own = foreign.own_attributes(one)
    return own is not None and own is foreign.own_attributes(two)


def _told(element: Any) -> Hashable:
    return type(element), value_key(element)
