"""The stack of the framework's run: the user's functions there, the line of each, and the variables.

A `Listener` hears of requests in the thread that makes them, and copies the variables where the framework's run has
come past the end of a reading. See resuming.py for the use of the copies.
"""

from __future__ import annotations

import asyncio
import contextlib
import dis
import functools
import inspect
import itertools
import sys
import threading
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.asking import Nobody
from teola_plugin.adapters.reader.dataframes import OfPandas
from teola_plugin.adapters.reader.notes import Notes, roots_of
from teola_plugin.adapters.reader.resuming import LOOKING, Passed, Stop, Variables, is_set_inside, parameters_of
from teola_plugin.adapters.reader.run import NOWHERE, Given, Run
from teola_plugin.adapters.reader.values import STALE, Barrier, Opaque, is_installed_file, isinstance_of
from teola_plugin.trace import Asked

OPERATIONS = 5_000
"""Parts of values that are copied while the framework's run waits: some 2 ms."""

MAX_CODES = 10_000
"""Functions whose owner (a library or the user) is cached."""

MAX_PARTS = 1_000
"""Parts of an object that are looked at."""

MAX_FRAMES = 400
"""Frames of a stack that are looked at."""

MAX_TASKS = 20
"""Tasks that wait for each other, as far as they are looked at."""

MAX_KNOWN, MAX_STOPS = 1_000, 32
"""Functions with ends of readings, and places in each, that are kept."""

MAX_ASKED = 1_000
"""Requests of a call that are noted."""

MAX_WRONG = 3
"""Wrong readings behind a place before the place is forgotten."""

_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})


Level = tuple[int, types.CodeType, int]
"""A function on a stack: the `id` of the frame, the code, and the current line."""


@dataclass(slots=True)
class Known:
    """The places where readings of a function ended, in all calls. `wrong`: how many readings behind each failed."""

    stops: tuple[Stop, ...] = ()
    wrong: dict[int, int] = field(default_factory=dict)


_known: dict[int, Known] = {}
"""Ends of readings by the `id` of the function's code, which the stops keep alive."""

NONE = Known()

_begun: dict[int, types.CodeType] = {}
"""The functions that have asked in some call, by the `id` of the code."""

_lock = threading.Lock()


def _note(stop: Stop) -> None:
    with _lock:
        if len(_known) > MAX_KNOWN:
            _known.clear()
        known = _known.setdefault(id(stop.codes[0]), Known())
        if not any(map(stop.is_at, known.stops)):
            known.stops = (*known.stops, replace(stop, where=()))[-MAX_STOPS:]


def is_wrong(stop: Stop) -> None:
    """Count a wrong reading behind a stop; after `MAX_WRONG` the stop is forgotten."""
    with _lock:
        known = _known.get(id(stop.codes[0]), Known())
        number = id(stop.places[-1])
        known.wrong[number] = known.wrong.get(number, 0) + 1
        if known.wrong[number] >= MAX_WRONG:
            known.stops = tuple(each for each in known.stops if not each.is_at(stop))


class Listener:
    """Hears when the framework's run has come past an end of a reading.

    A listener must hear all requests of the framework's run, from before the program begins: the first request behind a
    stop counts. The framework's run may be faster than the reading. So a stop known from earlier calls is noted too,
    and the reading can go on from there until the framework's run makes the next request. In the first call of a
    function no stop is known, and the run may be past one before the reading has come there: so the variables at the
    first request are kept until then.
    """

    def __init__(
        self, where: Callable[[], Hashable] = lambda: (), *, is_only: bool = False, code: types.CodeType | None = None,
        roots: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        """Prepare to hear requests.

        `where`: identifies the run of a function that asks (see `run.Run`). `code`: the code of the program's function.
        `is_only`: the program is a function whose runs cannot be told apart: heard if run by itself, and once.
        `roots`: the functions of the program; see notes.py.
        """
        self._where = where
        self._code = code
        self._roots = roots
        self._made: dict[Hashable, list[Callable[[], Hashable]]] = defaultdict(list)
        self._around = [(id(frame), frame.f_code) for frame in _frames()]
        self._is_only_run = is_only
        self.on_news: Callable[[], None] = lambda: None
        self.is_over = False
        self._asked: list[list[Level]] = []
        self._heard: set[tuple[int, int]] = set()
        self._rounds: dict[Hashable, tuple[int, ...]] = {}
        self._repeated: list[Stop] = []
        """Stops in loops, of each of which all requests were heard since `_rounds` has the first round."""
        self._left: list[Stop] = []
        self._has_all_keys = True
        """Whether the key of each item was heard."""
        self._passed: dict[int, Passed] = {}
        self._lock = threading.Lock()

    def end(self) -> None:
        """Hear of no more requests."""
        self.is_over = True
        self.on_news = lambda: None

    def note(self, stops: Sequence[Stop]) -> None:
        """Note the stops where a reading has ended."""
        for stop in stops:
            _note(stop)

    def find(self, stops: Sequence[Stop]) -> Passed | None:
        """Return how the framework's run has come past some of these stops, once."""
        with self._lock:
            for number, passed in list(self._passed.items()):
                stop = next(filter(passed.is_past, stops), None)
                if stop is not None:
                    passed.stop = passed.stop or stop
                    return self._passed.pop(number)
        return None

    def made(self, where: Hashable, since: int = 0) -> Sequence[Callable[[], Hashable]]:
        """Return what makes the keys of the requests of a run of a function, in order, without the first `since`."""
        with self._lock:
            return self._made.get(where, [])[since:]

    def hear(self, asked: Asked | None) -> bool:
        """Hear of a request that the framework's run makes in this thread; see `trace.Hear`."""
        if asked is None:
            self.end()
        if asked is None or self.is_over:
            return False
        where = self._where()
        frames = asked.once(_frames)
        levels = [(id(frame), frame.f_code, frame.f_lineno) for frame in frames]
        is_own = self._code is None or any(code is self._code for _, code, _ in levels)
        with self._lock:
            self._has_all_keys &= asked.items == 1
            made = len(self._made.get(where, ()))
            if is_own and where is not NOWHERE:
                self._made[where].append(functools.cache(asked.key))
            for number, *_ in levels:
                self._passed.pop(number, None)
            known = [stop for _, code, _ in levels for stop in _known.get(id(code), NONE).stops]
            known += [stop for stop in self._repeated if not any(map(stop.is_at, known))]
            come_to = [(stop, at) for stop in known if (at := self._has_passed(stop, levels, frames)) is not None]
            if len(self._asked) < MAX_ASKED:
                self._asked.append(levels)
        begins = self._begins(levels)
        stop, at = come_to[0] if come_to else (None, begins)
        if at is None or where is NOWHERE:
            return True
        number = levels[at][0]
        is_alone = all(any(each == number for each, *_ in earlier) for earlier in self._asked[:-1])
        if self._is_only_run and not self._is_only(levels, at, self._around):
            return True
        key, mark = asked.key(), asked.mark()
        pass_by = partial(_passed, stop, frames[at:], key, mark, is_alone=is_alone, where=where, made=made)
        passed = pass_by()
        if passed is not None and self._note_reach(passed).may_show_ends:
            passed = pass_by(keeps_objects=False)
        if passed is not None:
            passed.has_all_keys = self._has_all_keys
            self._note_reach(passed)
            with self._lock:
                self._passed[number] = passed
            if stop is not None:  # else the reading, which has not come to any stop yet, will look
                self.on_news()
        return True

    def _note_reach(self, passed: Passed) -> Notes:
        """Note what the functions can reach at a passed stop."""
        notes = passed.outside.notes = Notes([*self._roots, *roots_of(passed.seen.values())])
        return notes

    def _begins(self, levels: Sequence[Level]) -> int | None:
        """Return the index on a stack of the program's function, if the function asks for the first time; else None."""
        around = {number for number, _ in self._around}
        at = next((at for at, (number, *_) in enumerate(levels) if number not in around), None)
        if at is None or _begun.get(id(levels[at][1])) is levels[at][1]:
            return None
        with _lock:
            if len(_begun) > MAX_CODES:
                _begun.clear()
            _begun[id(levels[at][1])] = levels[at][1]
        return at

    def _is_only(self, levels: Sequence[Level], at: int, around: Sequence[tuple[int, types.CodeType]]) -> bool:
        """Whether only frames from the start of the call stand around the function, which has not run before."""
        number, code, _ = levels[at]
        runs = {own for earlier in self._asked for own, each, _ in earlier if each is code}
        return runs <= {number} and all((own, each) in around for own, each, _ in levels[:at])

    def leave(self, stop: Stop) -> None:
        """Hear no more of a stop in a loop, as reading on from the stop gains nothing."""
        self._left.append(stop)

    def _has_passed(self, stop: Stop, levels: Sequence[Level], frames: Sequence[types.FrameType]) -> int | None:
        """Return the index on a stack of the function that has come past a stop now; else None.

        Only the first request behind a stop counts: of all, or of a round of a loop around.
        """
        begins = [at for at, (_, code, _) in enumerate(levels) if code is stop.codes[0]]
        if len(begins) != 1 or len(self._asked) == MAX_ASKED:
            return None
        (at,) = begins
        heard = levels[at][0], id(stop.places[-1])
        if not stop.is_passed([(code, line) for _, code, line in levels[at:]]):
            return None
        if stop.is_repeated:
            key = levels[at][0], tuple(map(id, stop.places))
            before, self._rounds[key] = self._rounds.get(key), _round_of(stop, frames[at + len(stop.places) - 1])
            if not any(map(stop.is_at, self._repeated)):
                self._repeated.append(stop)
            if before is not None:
                is_left = before == self._rounds[key] or any(map(stop.is_at, self._left))
                return None if is_left else at
        elif heard in self._heard:
            return None
        self._heard.add(heard)
        for earlier in self._asked:  # the reading may have ended there since
            began = next((number for number, level in enumerate(earlier) if level[0] == levels[at][0]), None)
            if began is not None and stop.is_passed([(code, line) for _, code, line in earlier[began:]]):
                return None
        return at


def _round_of(stop: Stop, frame: types.FrameType) -> tuple[int, ...]:
    """Return what tells a round of the loops around a stop from the next one: the objects that the loops are at.

    Only the loops set these variables. Where two rounds have the same objects, the second is not told apart.
    """
    code = frame.f_code
    targets = stop.places[-1].targets
    own = [name for name in targets if name not in code.co_freevars and not is_set_inside(code, name)]
    return tuple(map(id, variables_of(frame, own).values()))


def _passed(
    stop: Stop | None,
    frames: Sequence[types.FrameType],
    key: Hashable,
    mark: Any,
    *,
    is_alone: bool,
    where: Hashable,
    made: int,
    keeps_objects: bool = True,
) -> Passed | None:
    """Copy the variables of the frames; None if they cannot be copied, or are too many.

    `keeps_objects`: whether objects of plain classes are kept alive.
    """
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return None
    if any(LOOKING.intersection(frame.f_code.co_names) for frame in frames):
        return None
    if not all(frame.f_code.co_flags & inspect.CO_OPTIMIZED for frame in frames):
        return None  # the body of a class or module: its variables are its definitions
    copies = Given()
    run = Run(Nobody(), given=copies, operations=OPERATIONS)
    levels = []
    calls = _calls(frames)
    kept = [_outside_of(frame) for frame in frames]
    kept.append(list(variables_of(frames[0], parameters_of(frames[0].f_code)).values()))
    try:
        for frame, call in zip(frames, calls, strict=True):
            code = frame.f_code
            variables = variables_of(frame, (*code.co_varnames, *code.co_cellvars))
            seen = {name: _copy_of(run, copies, value, kept, keeps_objects) for name, value in variables.items()}
            levels.append(Variables(frame.f_code, frame.f_lineno, call, seen))
    except Barrier:
        return None
    if _is_shared(frames, copies):
        return None
    copied = copies.copies.items()
    kept_alive = {number: (None if type(copy) is OfPandas else held, copy) for number, (held, copy) in copied}
    return Passed(stop, key, mark, tuple(levels), kept_alive, is_alone=is_alone, where=where, made=made)


def _is_shared(frames: Sequence[types.FrameType], copies: Given) -> bool:
    """Whether another task may change meanwhile what the functions use.

    A task of a function inside of the functions may, a task with a container of the functions, and a task which sets
    a variable of a function around both.
    """
    task = _task()
    if task is None:
        return False
    own = [task]
    while len(own) < MAX_TASKS and (waiting := _waiting_for(own[-1])) is not None:
        own.append(waiting)
    others = [each for each in asyncio.all_tasks() if not any(each is mine for mine in own)]
    inside = tuple(f"{frame.f_code.co_qualname}.<locals>." for frame in frames)
    around = {name for frame in frames for name in frame.f_code.co_freevars}
    used = {id(part) for part in _parts([each for frame in frames for each in _outside_of(frame)])} | {*copies.copies}
    for frame in (frame for other in others for frame in _suspended(other) if not _is_library(frame)):
        if frame.f_code.co_qualname.startswith(inside):
            return True
        if not around.isdisjoint(_set_around(frame.f_code)):
            return True
        if any(id(part) in used for part in _parts([*frame.f_locals.values(), *_outside_of(frame)])):
            return True
    return False


def _parts(values: list[Any]) -> list[Any]:
    """Return the containers among the values, and among what they hold, up to a number."""
    for value in values:
        kind = type(value)
        if len(values) < OPERATIONS and kind in (list, tuple, set, dict):
            values += value.values() if kind is dict else value
    return [each for each in values if type(each) in _CONTAINERS]


_CONTAINERS = (list, dict, set, deque, defaultdict, Counter, OrderedDict, bytearray)


@functools.lru_cache(MAX_CODES)
def _set_around(code: types.CodeType) -> frozenset[str]:
    """Return the variables of functions around that a function sets."""
    stored = (each.argval for each in dis.get_instructions(code) if each.opname == "STORE_DEREF")
    return frozenset(stored).intersection(code.co_freevars)


def _calls(frames: Sequence[types.FrameType]) -> list[tuple[int | None, int | None]]:
    """Return where the current expression of each frame ends (line, column); comprehensions have own frames."""
    found: list[tuple[int | None, int | None]] = []
    inner: types.FrameType | None = None
    for frame in _stack():
        if len(found) == len(frames):
            break
        if frame is frames[-1 - len(found)]:
            found.append(_end_of(inner or frame))
            inner = None
        elif frame.f_code.co_name in _COMPREHENSIONS and not _is_library(frame):
            inner = inner or frame
    return found[::-1]


def _end_of(frame: types.FrameType) -> tuple[int | None, int | None]:
    _, line, _, column = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    return line, column


def _frames() -> list[types.FrameType]:
    """Return the frames of the user's functions in this thread; the last frame makes the request."""
    frames = itertools.islice(_stack(), MAX_FRAMES)
    found = [each for each in frames if not (each.f_code.co_name in _COMPREHENSIONS or _is_library(each))]
    return found[::-1]


def _stack() -> Iterator[types.FrameType]:
    """Yield the frames of this thread from the innermost; those of waiting tasks before those of the event loop.

    A task that a library starts for a call stands for the coroutine that waits for the task.
    """
    frame: types.FrameType | None = sys._getframe(1)
    root = _root_of(task := _task())
    while frame is not None:
        yield frame
        if frame is root:
            for _ in range(MAX_TASKS):
                if (task := _waiting_for(task)) is None:
                    break
                yield from _suspended(task)
        frame = frame.f_back


def _task() -> Any:
    """Return the task of the current thread."""
    with contextlib.suppress(RuntimeError):
        return asyncio.current_task()
    return None


def _root_of(task: Any) -> Any:
    return getattr(task.get_coro(), "cr_frame", None) if task is not None else None


def _suspended(task: Any) -> list[types.FrameType]:
    """Return the frames of a task that waits, from the innermost."""
    found: list[types.FrameType] = []
    coroutine = task.get_coro()
    while type(coroutine) is types.CoroutineType and coroutine.cr_frame is not None and len(found) < MAX_FRAMES:
        found.append(coroutine.cr_frame)
        coroutine = coroutine.cr_await
    return found[::-1]


def _waiting_for(future: Any) -> Any:
    """Return the task that waits for a future, also by `asyncio.gather`; None unless there is one."""
    for _ in range(MAX_TASKS):
        called = [function for function, _ in future._callbacks or ()]
        owners = [owner for each in called if isinstance(owner := getattr(each, "__self__", None), asyncio.Task)]
        if owners:
            return owners[0] if len(owners) == 1 else None
        outer = [found for each in called if (found := _outer_of(each)) is not None]
        if len(outer) != 1:
            return None
        (future,) = outer
    return None


def _outer_of(callback: Any) -> Any:
    """Return the future for several futures, where a callback of asyncio's counts the finished futures."""
    if type(callback) is not types.FunctionType or callback.__module__ != "asyncio.tasks":
        return None
    cells = dict(zip(callback.__code__.co_freevars, callback.__closure__ or (), strict=True))
    found = cells["outer"].cell_contents if "outer" in cells else None
    return found if isinstance(found, asyncio.Future) else None


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
"""Packages outside of site-packages whose functions may stand between the user's functions."""


def _copy_of(run: Run, copies: Given, value: Any, kept: Sequence[Sequence[Any]], keeps_objects: bool) -> Any:
    """Return a copy, or STALE if the copy would delay a visible end (of a file, a connection, a user's object)."""
    before = set(copies.copies)
    copy = run.load(value, is_given=True)
    fresh = copies.copies.keys() - before
    is_kept = any(value is each for some in kept for each in some)
    if is_kept or all(_may_be_kept(*copies.copies[number], kept, keeps_objects) for number in fresh):
        return copy
    for number in fresh:
        del copies.copies[number]
    return STALE


def _may_be_kept(held: Any, copy: Any, kept: Sequence[Sequence[Any]], keeps_objects: bool = True) -> bool:
    kind = type(held)
    if any(held is each for some in kept for each in some):
        return True
    if foreign.in_mro(kind, "__del__") is not foreign.MISSING:
        return False
    if foreign.is_one_of(kind, _FUNCTIONS):
        return _ends_unseen(held, kept, keeps_objects)
    if type(copy) is OfPandas:
        return True
    if not isinstance_of(copy, Opaque) or kind is types.ModuleType or foreign.is_class(held):
        return True
    return _is_of_frameworks(kind) or (keeps_objects and _ends_unseen(held, kept))


def _is_of_frameworks(kind: type) -> bool:
    return foreign.module_of(kind).partition("_")[0].partition(".")[0] in _FRAMEWORKS


def _ends_unseen(held: Any, kept: Sequence[Sequence[Any]], keeps_objects: bool = True) -> bool:
    """Whether nothing shows the end of an object, and of all that the object holds; see `_may_be_kept`."""
    left, seen = [held], dict[int, Any]()
    for _ in range(MAX_PARTS):
        if not left:
            return True
        value = left.pop()
        kind = type(value)
        if foreign.is_atom(value) or foreign.is_class(value) or id(value) in seen:
            continue
        if any(value is each for some in kept for each in some):
            continue
        if foreign.in_mro(kind, "__del__") is not foreign.MISSING:
            return False
        seen[id(value)] = value
        if kind is dict:
            left += [*value.keys(), *value.values()]
        elif foreign.is_one_of(kind, (list, tuple, set, frozenset)):
            left += value
        elif kind is types.FunctionType:
            left += _parts_of_function(value)
        elif foreign.is_one_of(kind, _FUNCTIONS):
            left.append(value.__self__)
        elif not (kind is types.ModuleType or _is_of_frameworks(kind)):
            parts = _parts_of_object(value) if keeps_objects else None
            if parts is None or weakref.getweakrefcount(value):
                return False
            left += parts
    return False


def _parts_of_function(function: types.FunctionType) -> list[Any]:
    """Return what a function alone may hold: variables of functions around, defaults and attributes."""
    parts = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *function.__dict__.values()]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not set yet
            parts.append(cell.cell_contents)
    return parts


def _parts_of_object(value: Any) -> list[Any] | None:
    """Return what an object holds; None if parts of C code or slots may hold more, or lookups could run code."""
    own = foreign.own_attributes(value)
    if own is None:
        return None
    parts = list(own.values())
    for cls in foreign.mro_of(type(value)):
        for each in () if cls is object else foreign.namespace_of(cls).values():
            if foreign.is_one_of(type(each), _HOLDING):
                return None
    return parts


_HOLDING = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType, types.MemberDescriptorType,
)  # fmt: skip
"""Attributes of classes in C, or with slots, whose objects may hold more than attributes."""


_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_FRAMEWORKS = frozenset({"langchain", "langgraph", "llama"})
"""Packages, by the beginning of the name, whose objects end without visible effects."""


def _outside_of(frame: types.FrameType) -> list[Any]:
    """Return the values of the outside names of a function, which outlive the function."""
    code, names = frame.f_code, frame.f_globals
    around = [names[name] for name in code.co_names if name in names] if type(names) is dict else []
    return [*around, *variables_of(frame, code.co_freevars).values()]


def variables_of(frame: types.FrameType, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of variables of a frame, keeping no part of the frame alive."""
    local = frame.f_locals
    held = {name: local[name] for name in names if name in local}
    if type(local) is dict and sys.getrefcount(local) <= _OWN_REFERENCES:  # kept with the frame, up to Python 3.12
        local.clear()
    return held


_OWN_REFERENCES = 3
"""References to the variables of an otherwise unobserved frame: of the frame, a local variable and an argument."""
