"""One evaluation of a program by the reader: limits, copies of what comes from outside, and what it asks for.

An evaluation is a function of the program, its inputs, what is outside (globals, attributes), and the answers that have
come so far. It is repeated from the start as answers come, so it costs little and keeps nothing.
"""

from __future__ import annotations

import asyncio
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from teola_plugin.adapters.reader import classes
from teola_plugin.adapters.reader.asking import Ask, Asker, Nobody, Request, Round
from teola_plugin.adapters.reader.branches import Branches
from teola_plugin.adapters.reader.heap import Frame, Heap
from teola_plugin.adapters.reader.outer import outside, place_of
from teola_plugin.adapters.reader.values import (
    ANYWHERE,
    TIMED,
    Barrier,
    Opaque,
    Undecided,
    Unknown,
    isinstance_of,
    type_name,
)

OPERATIONS = 20_000
"""Of one evaluation: some 10 ms. A loop that computes more than that is left to the framework's run."""

NOWHERE: Hashable = None
"""`Run.where` of functions that cannot be told apart."""

MAX_DEPTH = 60
"""Calls inside calls."""

_FACTORIES = (None, list, dict, set, int, str, float)
"""Of a `defaultdict` that is plain data."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of an ask: the value that the program gets, or the error that is raised there."""

    value: Any = None
    error: Exception | None = None


class TooLarge(ValueError):
    """A value has too many parts to be read."""


class Given:
    """What one prediction is made from, the same for all its evaluations.

    `copies` of what the program is given, which it may change. `outer` copies of what it reads from outside, and
    `names` from outside with what they stood for, as they were when it first came to them: the framework's own run,
    which goes on meanwhile, may change them, and what it has done already is not to be seen twice. All copies by the id
    of what they are made of, which is kept alive.
    """

    def __init__(self) -> None:
        self.copies: dict[int, tuple[Any, Any]] = {}
        self.outer: dict[int, tuple[Any, Any]] = {}
        self.names: dict[tuple[int, str], tuple[Any, Any]] = {}
        """What names and attributes stand for that were looked up, by the function or object that has them."""

    def copy(self, value: Any) -> Any:
        """A copy of the reader's own; what is no plain data is `Opaque`. Raises: TooLarge."""
        run = Run(Nobody(), given=self, operations=10 * OPERATIONS)
        try:
            return run.load(value, is_given=True)
        except Barrier as e:
            raise TooLarge(e.what) from e

    def renew(self, value: Any) -> Any:
        """A copy of what an evaluation has made of the program's values, which from here on stands for them."""
        fresh = self.copy(value)
        for key, (held, copy) in list(self.copies.items()):
            if id(copy) in self.copies:
                self.copies[key] = held, self.copies[id(copy)][1]
        return fresh


@dataclass(slots=True)
class Level:
    """A function of the program that is evaluated. `place`: the statement it is at; `code`: of one that exists.

    `is_direct`: it was called by a call expression of the one around it, once each time that it is evaluated.
    `call`: where the call ends that it is at.
    """

    frame: Frame
    name: str
    code: types.CodeType | None
    is_direct: bool
    place: Any = None
    call: Any = None


class Run(Heap):
    """`asks`: what was asked for and has no answer yet, in order. `asker`: knows the objects of the frameworks.

    `site`: the call expression that is evaluated, within those that led to it. `branches`: see branches.py.
    `heard`: what whoever hears of requests may change whenever one is made (see `handlers.noted_by`).
    `locks`: how many of the program's are held; `limits`: to how many limits of time what is evaluated has to keep.

    `levels`: the functions that are evaluated, one inside the other. `stops`: where they ended at what is not read,
    and `skipped`: what was not read where they went on.
    `passed`: where the framework's run has come past such a place, of which so many are `used`; `open`: the last one,
    until it is seen at a request that it was right to read on; `is_lost`: it was not; `mark`: where the run was then.
    `is_beside`: others ask beside the function that is evaluated. `where`: which run of a function of the program's it
    is that is evaluated, where the same one may run several times, maybe side by side. See resuming.py.
    """

    def __init__(
        self, asker: Asker, *, answers: Mapping[Hashable, Answer] | None = None, given: Given | None = None,
        operations: int = OPERATIONS, branches: Branches | None = None,
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
        self.limits = 0
        self.levels: list[Level] = []
        self.is_direct = False
        self.stops: list[Any] = []
        self.skipped: list[Barrier] = []
        self.passed: Sequence[Any] = ()
        self.used = 0
        self.open: Any = None
        self.is_lost = False
        self.mark: Any = None
        self.is_beside = False
        self.where: Hashable = ()
        self._answers = answers if answers is not None else {}
        self._left = operations
        given = given or Given()
        self._copies, self._outer, self._names = given.copies, given.outer, given.names
        self._given = {id(copy): copy for _, copy in self._copies.values()}
        self._fixed = {id(copy): copy for _, copy in self._outer.values()}
        self._made_exceptions: dict[int, BaseException] = {}

    # --- limits ------------------------------------------------------------------------------------------------------

    def tick(self, n: int = 1) -> None:
        """Spend operations. Raises: Barrier when none are left."""
        self._left -= n
        if self._left < 0:
            raise Barrier("it computes for too long")

    def enter(self) -> None:
        """Begin a call inside of this one. Raises: Barrier."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Barrier("it calls itself too deeply")

    # --- what comes from outside -------------------------------------------------------------------------------------

    def load(self, value: Any, *, is_given: bool = False) -> Any:
        """The reader's own copy of plain data, which may not be changed unless it is given; anything else is Opaque."""
        kind = type(value)
        if classes.is_atom(value):
            return value
        known = self._copies.get(id(value)) or self._outer.get(id(value))
        if known is not None and id(value) not in self.heard:
            return known[1]
        if isinstance_of(value, Opaque) or kind is Unknown:
            return value
        if id(value) in self.heard:
            return Unknown()
        self.tick()
        copies = self._copies if is_given else self._outer
        return self._copied(value, kind, copies, is_given)

    def load_name(self, function: Any, name: str) -> Any:
        """What a name from outside of a function stands for. Raises: NameError, Barrier."""
        if self.heard and place_of(function, name) in self.heard:
            return Unknown()
        key = (id(function), name)
        if key not in self._names:
            self._names[key] = function, outside(function, name)
        return self.load(self._names[key][1])

    def load_attribute(self, owner: Any, name: str, value: Any) -> Any:
        """The attribute of an object of somebody else's, as it was when it was first looked up.

        The program's own run may have changed it since: it was read before that.
        """
        if id(owner) in self.heard:
            return Unknown()
        return self.load(self.as_first_read(owner, name, value))

    def as_first_read(self, owner: Any, name: str, value: Any) -> Any:
        """The value that was given for something of an object when an evaluation first came to it."""
        return self._names.setdefault((id(owner), name), (owner, value))[1]

    def _copied(self, value: Any, kind: type, copies: dict[int, tuple[Any, Any]], is_given: bool) -> Any:
        def keep(copy: Any) -> Any:
            copies[id(value)] = value, copy
            if not is_given:
                self.fix(copy)
            return copy

        def load(part: Any) -> Any:
            return part if classes.is_atom(part) else self.load(part, is_given=is_given)

        if kind is defaultdict and not any(value.default_factory is each for each in _FACTORIES):
            return keep(Opaque(value))
        copied = classes.copy_of(value, load, self.load, keep)
        return keep(Opaque(value)) if copied is classes.MISSING else copied

    def is_outside(self, given: Given) -> None:
        """From here on, what comes from outside is as it was when this was made."""
        self._outer, self._names = given.outer, given.names
        self._fixed.update((id(copy), copy) for _, copy in given.outer.values())

    def hand_on(self, given: Given) -> None:
        """Let what comes from outside be as it is here for what is read from here on."""
        given.outer, given.names = self._outer, self._names

    # --- own objects -------------------------------------------------------------------------------------------------

    def touch(self, held: Any) -> None:
        """Call before each change of an object. Raises: Barrier if it stands for one of somebody else's."""
        if id(held) in self._fixed:
            raise Barrier(f"it changes a {type_name(type(held))} that it did not make")
        if self._logs or id(held) in self._given:
            self.note(held)

    def made_exception(self, error: BaseException) -> BaseException:
        """The program made this exception with arguments of its own."""
        self._made_exceptions[id(error)] = error
        return error

    def is_own_exception(self, error: BaseException) -> bool:
        """See `made_exception`."""
        return id(error) in self._made_exceptions

    # --- what is not known -------------------------------------------------------------------------------------------

    def is_unknown(self, value: Any) -> bool:
        """The value, or what a container holds, is not known."""
        return type(value) is Unknown or (bool(self._tainted) and id(value) in self._tainted)

    def require_known(self, *values: Any) -> None:
        """Raises: Undecided if something in the values is not known, Barrier if it is an object of somebody else's."""
        todo = list(values)
        seen: set[int] = set()
        while todo:
            value = todo.pop()
            kind = type(value)
            if kind in classes.ATOMS:
                continue
            if kind is Unknown or self.is_tainted(value):
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
                todo += (classes.fields_of(value) or {}).values()

    def parts(self, value: Any) -> Iterable[Any]:
        """See `Heap`."""
        kind = type(value)
        if kind in (list, tuple, set, frozenset, deque):
            return value  # type: ignore[no-any-return]
        if kind in (dict, OrderedDict, Counter, defaultdict):
            return value.values()  # type: ignore[no-any-return]
        return () if isinstance_of(value, Opaque) else (classes.fields_of(value) or {}).values()

    def require_hashable(self, value: Any) -> None:
        """Raises: what a key of a dict raises that is not to be hashed: Undecided, Barrier."""
        if type(value) not in classes.ATOMS:
            self.require_known(value)

    def unknown(
        self, *operands: Any, holds: str | type = "any", is_safe: bool = False, error: type[Exception] = Exception
    ) -> Unknown:
        """What an operation on these comes to. Unless it `is_safe`, it may also raise an `error`."""
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
        """What an undecided branch is taken to come to, by what was found there; None if it is left undecided.

        Whatever it hangs on has not raised then.
        """
        if self.branches is None:
            return None
        target = self.branches.undecided(branch)
        if target is not None:
            self.gates -= self.sources(found) - ANYWHERE
        return target

    def decided_as(self, branch: Hashable, target: Hashable) -> None:
        """A branch is decided."""
        if self.branches is not None:
            self.branches.decided(branch, target)

    # --- asks --------------------------------------------------------------------------------------------------------

    def ask(self, request: Request) -> Any:
        """The value of a request, Unknown while there is no answer. Raises: what the answer says, Barrier, Stalled."""
        if self.open is not None:
            self.open.require(self, request)
            self.open = None
            self.has_come_here()
        if self.locks:
            raise Barrier("it asks while it holds a lock", hint="ask outside of the with statement")
        try:
            return self._ask(request)
        finally:
            if self.limits:  # whoever waits for the reply may be cancelled
                self.raises(TIMED, error=asyncio.CancelledError)

    def _ask(self, request: Request) -> Any:
        number = self.counts[request.key]
        self.counts[request.key] += 1
        key = (request.key, number)
        answer = None if request.key in self.uncounted else self._answers.get(key)  # it may be that of another time
        if answer is not None:
            if answer.error is not None:
                raise answer.error
            return answer.value
        ask = self.asks.get(key)
        source = (request.source, self.site)
        if ask is None:
            ask = self.asks[key] = Ask(request, number, self._gates_of(source), self.in_doubt, self.mark)
            ask.where = self.where
        else:
            ask.gates |= self._gates_of(source)
            ask.is_possible = ask.is_possible and self.in_doubt
        if self._asked:
            self._asked[-1].add(key)
        sources: frozenset[Hashable] = frozenset([source])
        if request.may_raise:
            self.raises(sources)
        return Unknown(request.holds, sources)

    def _gates_of(self, source: tuple[Hashable, Hashable]) -> frozenset[Hashable]:
        """See `Ask.gates`."""
        component, site = source
        if type(component) is not Round:
            return self.gates - {source}
        return frozenset(gate for gate in self.gates if not _is_of_another_round(gate, component, site))

    def decided(self, asked: set[Hashable]) -> None:
        """See `Heap`."""
        for key in asked:
            if key in self.asks:
                self.asks[key].is_possible = False


def _is_of_another_round(gate: Hashable, own: Round, site: Hashable) -> bool:
    if type(gate) is not tuple or type(gate[0]) is not Round:
        return False
    return gate[0].component == own.component and gate[0].number != own.number and bool(gate[1] == site)
