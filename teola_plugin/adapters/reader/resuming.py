"""Reading on behind what is not read, once the framework's own run has come past it.

A statement that is not read (a client of a database, a file, a class of C) ends a reading; what it comes to is known
only to the framework's run. When that run makes its next request, the functions that are read stand on its stack,
behind the statement, with all their variables. The function is read again from its beginning. Where it comes to the
statement, its variables become copies of those on the stack:

    rows = index.query(vector)                 not read: `Stop`
    for row in rows:                           the run asks for the first row: `Passed` has copies of its variables
        notes.append(model.invoke(row))        read on from here: all rows are asked for

Whether that was right is seen at the request itself. If what is read comes to the same request, with the same values in
all variables, the same objects in the same places, and nothing changed in what it was given, the run and the reading
are in the same state. Otherwise nothing more is read.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import sys
import threading
import types
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.adapters.reader import classes, foreign, records
from teola_plugin.adapters.reader.asking import Nobody, Request
from teola_plugin.adapters.reader.calls import FunctionValue
from teola_plugin.adapters.reader.exchange import is_random_id
from teola_plugin.adapters.reader.facts import MODEL_SLOTS
from teola_plugin.adapters.reader.heap import DICTS, SETS, Frame
from teola_plugin.adapters.reader.run import Given, Run
from teola_plugin.adapters.reader.values import (
    STALE,
    Barrier,
    Callee,
    Opaque,
    Stalled,
    Undecided,
    Unknown,
    is_installed_file,
    isinstance_of,
)
from teola_plugin.request_identity import request_key
from teola_plugin.value_keys import is_comparable, value_key

OPERATIONS = 5_000
"""Parts of values that are copied while the framework's run waits: some 2 ms."""

MAX_CODES = 10_000
"""Functions of which it is kept whose they are."""

MAX_FRAMES = 400
"""So much of a stack is looked at."""

MAX_KNOWN, MAX_STOPS = 1_000, 32
"""Functions in which readings ended, and places in each, that are kept."""

MAX_ASKED = 1_000
"""Requests of a call that are noted."""

MAX_WRONG = 3
"""So often what is read behind a place may be wrong before it is forgotten."""

_LOOKING = frozenset({"locals", "vars", "eval", "exec", "dir", "f_locals"})
"""Names by which functions get the variables of a frame: looking at these would show in what they have."""

_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})


@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """A statement: its first and last line, and the last one of the block that it stands in.

    `is_repeated`: it stands in a loop. `has_rounds`: it has a comprehension. `names`: all that it mentions.
    """

    start: int
    end: int
    until: int
    is_repeated: bool
    has_rounds: bool
    names: frozenset[str]

    def is_before(self, line: int) -> bool:
        """A run that is at the line has come past the statement, in the same block."""
        return self.end < line <= self.until


def place_of(node: ast.stmt | ast.expr, block: Sequence[ast.stmt | ast.expr], *, is_repeated: bool) -> Place:
    """That of a statement of a block, or of the expression that is the body of a lambda."""
    inner = list(ast.walk(node))
    return Place(
        node.lineno, _end(node), _end(block[-1]), is_repeated,
        any(isinstance(each, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) for each in inner),
        frozenset(each.id for each in inner if isinstance(each, ast.Name)),
    )  # fmt: skip


def _end(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a reading ended: the code objects of the functions on its stack, and where each of them is."""

    codes: tuple[types.CodeType, ...]
    places: tuple[Place, ...]

    def is_at(self, other: Stop) -> bool:
        """It is the same place."""
        return (
            len(self.codes) == len(other.codes)
            and all(map(_is_same, self.codes, other.codes))
            and all(map(_is_same, self.places, other.places))
        )

    def is_passed(self, levels: Sequence[tuple[types.CodeType, int]]) -> bool:
        """Functions on a stack, each at some line, have come past it."""
        if len(levels) < len(self.codes):
            return False
        if not all(code is mine for mine, (code, _) in zip(self.codes, levels, strict=False)):
            return False
        for place, (_, line) in zip(self.places[:-1], levels, strict=False):
            if not place.start <= line <= place.end:
                return False
        return self.places[-1].is_before(levels[len(self.places) - 1][1])


def _is_same(one: Any, two: Any) -> bool:
    return one is two


def stop_here(run: Run, frame: Frame, place: Place) -> Stop | None:
    """The place of a statement that is not read, if reading might go on behind it: it runs once, and certainly."""
    *around, level = run.levels
    if run.in_doubt or run.is_assuming or place.is_repeated or level.frame is not frame or level.code is None:
        return None
    for each in around:
        if each.code is None or each.place is None or each.place.is_repeated or each.place.has_rounds:
            return None
    if any(_LOOKING.intersection(each.code.co_names) for each in run.levels if each.code is not None):
        return None
    if not all(each.is_direct for each in run.levels[1:]):  # `map` calls it, say
        return None
    codes = tuple(each.code for each in run.levels if each.code is not None)
    return Stop(codes, (*(each.place for each in around), place))


def goes_on(run: Run, frame: Frame, place: Place, barrier: Barrier) -> bool:
    """Whether reading goes on behind a statement that is not read, with what the framework's run has there."""
    stop = None if run.is_lost else stop_here(run, frame, place)
    if stop is None:
        return False
    passed: Passed | None = run.open
    if passed is None or not stop.is_passed(passed.places):
        passed = run.passed[run.used] if run.open is None and run.used < len(run.passed) else None
        try:
            if passed is None or not (passed.stop.is_at(stop) and passed.is_of(run)):
                run.stops.append(stop)
                return False
        except Undecided as e:
            raise Stalled from e
        run.used += 1
    passed.fill(run, frame, place)
    run.open = passed
    run.skipped.append(barrier)
    return True


@dataclass(slots=True)
class Variables:
    """Those of one function on the stack of the framework's run, which is at `line`, as copies by name.

    `call`: where the expression ends that it is at.
    `seen`: as they were. `copies`: to read on with, where what the program was given is what the reader has of it.
    """

    code: types.CodeType
    line: int
    call: tuple[int | None, int | None]
    seen: dict[str, Any]
    copies: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Passed:
    """The framework's run has come past `stop`, and makes a request. `mark`: see `trace.Asides.when_asked`.

    `seen`: all copies, with what they were made of, by its id. For the program that reads on: `given`, pairs of what
    the reader has of what it was given, and what that was then; `outside`, copies of what is outside, from then on.
    `is_alone`: all requests before were made under the function.
    """

    stop: Stop
    key: Hashable
    mark: Any
    levels: tuple[Variables, ...]
    seen: Mapping[int, tuple[Any, Any]]
    given: Sequence[tuple[Any, Any]] = ()
    outside: Given = field(default_factory=Given)
    is_alone: bool = True

    def bind(self, given: Given, heard: Set[Hashable]) -> None:
        """A program that was given this reads on. `heard`: see `Run`. Raises: Barrier if there is too much."""
        both = [(given.copies[number], self.seen[number]) for number in given.copies.keys() & self.seen.keys()]
        self.given = [(mine, seen) for (_, mine), (_, seen) in both]
        self.outside.copies = {id(seen): (seen, mine) for mine, seen in self.given}
        for seen in (seen for number, (_, seen) in self.seen.items() if number in heard):
            self.outside.copies[id(seen)] = seen, Unknown()
        run = Run(Nobody(), given=self.outside, operations=4 * OPERATIONS)
        for level in self.levels:
            level.copies = {name: run.load(seen) for name, seen in level.seen.items()}
        own = self.outside.outer
        self.outside.copies = given.copies
        self.outside.outer = {
            number: (held, own[id(seen)][1]) for number, (held, seen) in self.seen.items() if id(seen) in own
        }

    @property
    def places(self) -> list[tuple[types.CodeType, int]]:
        """See `Stop.is_passed`."""
        return [(each.code, each.line) for each in self.levels]

    def is_of(self, run: Run) -> bool:
        """The framework's run was given what is read here. Raises: Undecided."""
        same, frame, level = _Same(run), run.levels[0].frame, self.levels[0]
        return all(same(frame.get(name), level.seen.get(name)) for name in _parameters(level.code))

    def fill(self, run: Run, frame: Frame, place: Place) -> None:
        """Give the variables of a frame the values that they have behind a statement."""
        level = self.levels[len(run.levels) - 1]
        same = _Same(run)
        parameters = _parameters(level.code)
        is_changed = False
        for name, seen in level.seen.items():
            if name in parameters and (len(run.levels) == 1 or name not in place.names):
                continue
            if name in frame:
                mine = frame[name]
                if _is_own(mine):
                    if name not in place.names and _is_kept(level.code, name, mine, seen):
                        continue
                else:
                    with contextlib.suppress(Undecided):
                        if same(mine, seen):
                            continue
                is_changed = is_changed or not classes.is_atom(mine)
            run.note(frame)
            frame[name] = level.copies[name]
        if is_changed:
            _forget_own(run)
        run.is_outside(self.outside)
        run.mark = self.mark
        self.mark.is_beside |= run.is_beside

    def require(self, run: Run, request: Request) -> None:
        """Reading has come to the request that the framework's run was making. Raises: Barrier, Stalled."""
        try:
            run.is_lost = not (self._is_asked(run, request) and self._is_right(run, request))
        except Undecided as e:
            raise Stalled from e
        if run.is_lost:
            raise Barrier("it does not come to where the run is")

    def _is_asked(self, run: Run, request: Request) -> bool:
        if request.act is not None:  # it makes requests of its own
            return True
        key = request_key(request.spec, request.op, request.payload, request.settings)
        if not is_comparable(key) or key != self.key:
            return False
        return self.is_alone or self.mark.taken(key) == run.counts[request.key]

    def _is_right(self, run: Run, request: Request) -> bool:
        if len(run.levels) > len(self.levels) or (len(run.levels) < len(self.levels) and request.act is None):
            return False
        same = _Same(run)
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


def _parameters(code: types.CodeType) -> tuple[str, ...]:
    variadic = (code.co_flags & inspect.CO_VARARGS, code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + sum(map(bool, variadic))]


def _is_own(value: Any) -> bool:
    """The reader made it of stock parts, or of functions that the program defines; nothing else has it."""
    return isinstance_of(value, Callee) or (type(value) is Opaque and value.is_own)


def _is_kept(code: types.CodeType, name: str, mine: Any, seen: Any) -> bool:
    """Whether a variable that holds what the reader made still does so in the framework's run, as far as can be told.

    No statement that was not read has mentioned it. A function that is defined there may set it all the same.
    """
    if type(mine) is FunctionValue:
        function = seen.held if type(seen) is Opaque else None
        return type(function) is types.FunctionType and function.__code__.co_name == mine.name
    return name not in code.co_cellvars


def _forget_own(run: Run) -> None:
    """What the program holds was changed by what is not read: so may be what the reader made of it."""
    frames = [level.frame for level in run.levels]
    for frame in frames:
        for name, value in list(frame.items()):
            if type(name) is str and _is_own(value) and not (isinstance_of(value, Callee) and value.is_plain(frames)):
                run.note(frame)
                frame[name] = STALE


class _Same:
    """Whether a value of the reader's is what the framework's run has: the same parts, shared in the same way."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen_for: dict[int, tuple[Any, Any]] = {}
        self._has_seen: dict[int, Any] = {}

    def __call__(self, mine: Any, seen: Any) -> bool:
        """Raises: Undecided if something in it is not known."""
        self._run.tick()
        kind = type(mine)
        if is_random_id(mine):
            return type(seen) is str
        if self._run.is_unknown(mine):
            raise Undecided
        if isinstance_of(mine, Opaque):
            return type(seen) is Opaque and (mine.held is seen.held or _is_twin(mine.held, seen.held))
        if kind is not type(seen):
            return False
        if classes.is_atom(mine):
            return mine is seen or bool(value_key(mine) == value_key(seen))
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
        return all(_slot(mine, name) == _slot(seen, name) for name in MODEL_SLOTS[:1])


def _is_twin(one: Any, two: Any) -> bool:
    """Two objects are one, seen through two classes: what `optimize` gives back for a component of LlamaIndex's."""
    own = foreign.own_attributes(one)
    return own is not None and own is foreign.own_attributes(two)


def _told(element: Any) -> Hashable:
    return type(element), value_key(element)


def _slot(value: Any, name: str) -> Any:
    return records.model_slot(value, name)


# --- the stack of the framework's run --------------------------------------------------------------------------------


Level = tuple[int, types.CodeType, int]
"""A function on a stack: its frame, by its `id`, its code and the line that it is at."""


@dataclass(slots=True)
class Known:
    """Where readings of a function ended, in all calls. `wrong`: how often what was read behind each was not so."""

    stops: tuple[Stop, ...] = ()
    wrong: dict[int, int] = field(default_factory=dict)


_known: dict[int, Known] = {}
"""By the `id` of the code of the function, which its stops keep."""

NONE = Known()

_lock = threading.Lock()


def _note(stop: Stop) -> None:
    """A reading ended there."""
    with _lock:
        if len(_known) > MAX_KNOWN:
            _known.clear()
        known = _known.setdefault(id(stop.codes[0]), Known())
        if not any(map(stop.is_at, known.stops)):
            known.stops = (*known.stops, stop)[-MAX_STOPS:]


def is_wrong(stop: Stop) -> None:
    """What was read behind it was not what the run did: if that happens again and again, it is forgotten."""
    with _lock:
        known = _known.get(id(stop.codes[0]), Known())
        number = id(stop.places[-1])
        known.wrong[number] = known.wrong.get(number, 0) + 1
        if known.wrong[number] >= MAX_WRONG:
            known.stops = tuple(each for each in known.stops if not each.is_at(stop))


class Listener:
    """Hears where the framework's run has come past places where readings of a program ended.

    It is to hear all requests of that run, from before it comes to the program: what counts is the first one behind
    such a place. The run may be faster than the reading. So it is also noted when it has come past one that is known
    of earlier calls, and as long as it has not made its next request the reading can go on from there.
    """

    def __init__(self) -> None:
        self.on_news: Callable[[], None] = lambda: None
        self.is_over = False
        self._asked: list[list[Level]] = []
        self._heard: set[tuple[int, int]] = set()
        self._passed: dict[int, Passed] = {}
        self._lock = threading.Lock()

    def note(self, stops: Sequence[Stop]) -> None:
        """A reading has ended there."""
        for stop in stops:
            _note(stop)

    def find(self, stops: Sequence[Stop]) -> Passed | None:
        """How the framework's run has come past one of these stops; told once."""
        with self._lock:
            for number, passed in list(self._passed.items()):
                if any(map(passed.stop.is_at, stops)):
                    return self._passed.pop(number)
        return None

    def hear(self, key: Callable[[], Hashable], mark: Callable[[], Any]) -> bool:
        """The framework's run makes a request in this thread. Returns whether to tell of the next one."""
        if self.is_over:
            return False
        frames = _frames()
        levels = [(id(frame), frame.f_code, frame.f_lineno) for frame in frames]
        with self._lock:
            for number, *_ in levels:
                self._passed.pop(number, None)
            known = [stop for _, code, _ in levels for stop in _known.get(id(code), NONE).stops]
            come_to = [(stop, at) for stop in known if (at := self._has_passed(stop, levels)) is not None]
            if len(self._asked) < MAX_ASKED:
                self._asked.append(levels)
        if not come_to:
            return True
        stop, at = come_to[0]
        number = levels[at][0]
        is_alone = all(any(each == number for each, *_ in earlier) for earlier in self._asked[:-1])
        passed = _passed(stop, frames[at:], key(), mark(), is_alone=is_alone)
        if passed is not None:
            with self._lock:
                self._passed[levels[at][0]] = passed
            self.on_news()
        return True

    def _has_passed(self, stop: Stop, levels: Sequence[Level]) -> int | None:
        """Where on a stack the function begins that has come past a stop now, for the first time."""
        begins = [at for at, (_, code, _) in enumerate(levels) if code is stop.codes[0]]
        if len(begins) != 1 or len(self._asked) == MAX_ASKED:
            return None
        (at,) = begins
        heard = levels[at][0], id(stop.places[-1])
        if heard in self._heard or not stop.is_passed([(code, line) for _, code, line in levels[at:]]):
            return None
        self._heard.add(heard)
        for earlier in self._asked:  # the reading may have ended there since
            began = next((number for number, level in enumerate(earlier) if level[0] == levels[at][0]), None)
            if began is not None and stop.is_passed([(code, line) for _, code, line in earlier[began:]]):
                return None
        return at


def _passed(
    stop: Stop, frames: Sequence[types.FrameType], key: Hashable, mark: Any, *, is_alone: bool
) -> Passed | None:
    """None if its variables cannot be copied, or are too much."""
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return None
    if any(_LOOKING.intersection(frame.f_code.co_names) for frame in frames):
        return None
    if not all(frame.f_code.co_flags & inspect.CO_OPTIMIZED for frame in frames):
        return None  # the body of a class or of a module: its variables are those that it defines
    copies = Given()
    run = Run(Nobody(), given=copies, operations=OPERATIONS)
    levels = []
    calls = _calls(frames)
    kept = [_outside_of(frame) for frame in frames]
    kept.append(list(_variables_of(frames[0], _parameters(frames[0].f_code)).values()))
    try:
        for frame, call in zip(frames, calls, strict=True):
            code = frame.f_code
            variables = _variables_of(frame, (*code.co_varnames, *code.co_cellvars))
            seen = {name: _copy_of(run, copies, value, kept) for name, value in variables.items()}
            levels.append(Variables(frame.f_code, frame.f_lineno, call, seen))
    except Barrier:
        return None
    return Passed(stop, key, mark, tuple(levels), copies.copies, is_alone=is_alone)


def _calls(frames: Sequence[types.FrameType]) -> list[tuple[int | None, int | None]]:
    """Where the expression ends, by line and column, that each frame is at: maybe in a comprehension of its own."""
    found: list[tuple[int | None, int | None]] = []
    frame: types.FrameType | None = sys._getframe(1)
    inner: types.FrameType | None = None
    while frame is not None and len(found) < len(frames):
        if frame is frames[-1 - len(found)]:
            found.append(_end_of(inner or frame))
            inner = None
        elif frame.f_code.co_name in _COMPREHENSIONS and not _is_library(frame):
            inner = inner or frame
        frame = frame.f_back
    return found[::-1]


def _end_of(frame: types.FrameType) -> tuple[int | None, int | None]:
    _, line, _, column = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    return line, column


def _frames() -> list[types.FrameType]:
    """The frames of the user's functions that run in this thread; the last of them asks."""
    found: list[types.FrameType] = []
    frame: types.FrameType | None = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        if not (frame.f_code.co_name in _COMPREHENSIONS or _is_library(frame)):
            found.append(frame)
        frame = frame.f_back
    return found[::-1]


def _is_library(frame: types.FrameType) -> bool:
    code = frame.f_code
    known = _libraries.get(id(code))
    if known is not None and known[0] is code:
        return known[1]
    name = frame.f_globals.get("__name__")
    is_passing = type(name) is str and name.partition(".")[0] in _PASSING
    if len(_libraries) > MAX_CODES:
        _libraries.clear()
    _libraries[id(code)] = code, is_passing or is_installed_file(code.co_filename)
    return _libraries[id(code)][1]


_libraries: dict[int, tuple[types.CodeType, bool]] = {}


_PASSING = frozenset({"teola_plugin", "threading", "concurrent", "asyncio", "contextlib", "contextvars"})
"""Packages that no package manager has installed, whose functions may stand between those of the user's."""


def _copy_of(run: Run, copies: Given, value: Any, kept: Sequence[Sequence[Any]]) -> Any:
    """STALE if the copy would keep something alive whose end is seen: a file, a connection, an object of the user's."""
    before = set(copies.copies)
    copy = run.load(value, is_given=True)
    fresh = copies.copies.keys() - before
    is_kept = any(value is each for some in kept for each in some)
    if is_kept or all(_may_be_kept(*copies.copies[number], kept) for number in fresh):
        return copy
    for number in fresh:
        del copies.copies[number]
    return STALE


def _may_be_kept(held: Any, copy: Any, kept: Sequence[Sequence[Any]]) -> bool:
    kind = type(held)
    if any(held is each for some in kept for each in some):
        return True
    if foreign.in_mro(kind, "__del__") is not foreign.MISSING:
        return False
    if not isinstance_of(copy, Opaque) or kind in _LASTING or foreign.is_class(held):
        return True
    if kind is types.MethodType:
        return _may_be_kept(held.__self__, Opaque(held.__self__), kept)
    return foreign.module_of(kind).partition("_")[0].partition(".")[0] in _FRAMEWORKS


_LASTING = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_FRAMEWORKS = frozenset({"langchain", "langgraph", "llama"})
"""Packages, by how their names begin, of whose objects nobody sees when they end."""


def _outside_of(frame: types.FrameType) -> list[Any]:
    """What the names from outside of a function stand for: it lives on when the function has ended."""
    code, names = frame.f_code, frame.f_globals
    around = [names[name] for name in code.co_names if name in names] if type(names) is dict else []
    return [*around, *_variables_of(frame, code.co_freevars).values()]


def _variables_of(frame: types.FrameType, names: Sequence[str]) -> dict[str, Any]:
    """What variables of a frame hold, which keeps nothing of it."""
    local = frame.f_locals
    held = {name: local[name] for name in names if name in local}
    if type(local) is dict and sys.getrefcount(local) <= _OWN_REFERENCES:  # kept with the frame, up to Python 3.12
        local.clear()
    return held


_OWN_REFERENCES = 3
"""To the variables of a frame, if nobody else looks at them: its own, a local variable and an argument."""
