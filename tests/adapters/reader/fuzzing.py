"""Judges the reader by CPython: what it says of a program, after none, some and all answers, holds in each real run.

A program is run for several worlds of replies. A reading that has some answers must hold for all worlds that agree with
them: what is certain is asked, what is known is so, what is known not to raise does not.
"""

from __future__ import annotations

import contextlib
import enum
import io
import random
import signal
import sys
import types
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.adapters.reader import amounts, classes, records
from teola_plugin.adapters.reader.asking import NOT_MINE, Nobody, Request
from teola_plugin.adapters.reader.calls import call
from teola_plugin.adapters.reader.heap import of_lists
from teola_plugin.adapters.reader.run import Answer, Given, Run
from teola_plugin.adapters.reader.table import require_order
from teola_plugin.adapters.reader.values import ANYWHERE, Barrier, Callee, Lazy, Opaque, Stalled, Undecided, Unknown
from tests.adapters.reader.oracle import holds_right
from tests.adapters.reader.random_programs import MODELS
from tests.adapters.reader.world import ELSEWHERE

Key = tuple[str, str]
Reply = Callable[[Key, int], Any]
NATIVE_S = 2.0


class TooLong(BaseException):
    """The program itself does not end."""


class Asked:
    """A model of a program's world. Its replies are made by `reply`; an exception is raised."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world

    def ask(self, question: Any) -> Any:
        key = self.name, repr(question)
        number = self.world.counts[key]
        self.world.counts[key] += 1
        reply = self.world.reply(key, number)
        if isinstance(reply, Exception):
            raise reply
        return reply


class World:
    """Replies, and how often each question was asked."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.counts: Counter[Key] = Counter()
        self.models = {name: Asked(name, self) for name in MODELS}


class Worldly(Nobody):
    """Knows the models of a world. Each ask is a source of its own, so that no ask is taken for one of a batch."""

    def __init__(self, *, may_raise: bool) -> None:
        super().__init__()
        object.__setattr__(self, "_may_raise", may_raise)

    def attribute(self, run: Run, owner: Opaque, name: str) -> Any:
        held = owner.held
        if type(held) is not Asked or name != "ask":
            return NOT_MINE

        def ask(run: Run, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            (question,) = args
            holds = MODELS[held.name]
            try:
                run.require_known(question)
            except Undecided:
                run.unread = True  # type: ignore[attr-defined]
                if self._may_raise:  # type: ignore[attr-defined]
                    run.raises()
                return run.unknown(question, holds=holds, is_safe=True)
            require_order(run, question)  # the key shows it
            key = held.name, repr(question)
            source = key, run.counts[key]
            may_raise = self._may_raise  # type: ignore[attr-defined]
            return run.ask(
                Request(key, ELSEWHERE, "decoding", question, {}, lambda reply: reply, holds, may_raise, source)
            )

        return Callee(ask, name)


# --- replies ---------------------------------------------------------------------------------------------------------


def replies(seed: int, *, may_raise: bool = False) -> Reply:
    """A world's replies: a function of model and question."""

    def reply(key: Key, number: int) -> Any:
        rnd = random.Random(zlib.crc32(repr((seed, key)).encode()))
        if may_raise and rnd.random() < 0.25:
            return ValueError("no reply")
        return _reply(rnd, key[0])

    return reply


TEXTS = ["yes", "no", "yes", "no", "a", "7", "", "a b", "Yes", '{"k": [1, 2]}']


def _reply(rnd: random.Random, model: str) -> Any:
    from langchain_core.messages import AIMessage

    match MODELS[model]:
        case "text":
            return rnd.choice(TEXTS)
        case "bool":
            return rnd.random() < 0.5
        case "number":
            return rnd.choice([0, 1, 2, -1, 3, 0, 1, 2, -1, 3, 2.5, 10**400])
        case "texts":
            return [rnd.choice(TEXTS) for _ in range(rnd.randint(0, 3))]
        case "message":
            return AIMessage(rnd.choice(TEXTS))
        case _:
            return rnd.choice([
                "yes", "no", 0, 1, None, True, ["a", "no"], [1, 2], {"k": "v", "a": 1}, {}, [], ("a", 1), 2.5,
                {"k": ["x"]},
            ])  # fmt: skip


# --- real runs -------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a real run came to."""

    value: Any
    error: Exception | None
    inputs: Mapping[str, Any]
    counts: Counter[Key]
    has_raised: bool
    """Whether anything has raised, caught by the program or not."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TooLong in the block when the time is over, and behind it if the block has caught the error."""
    is_over = False

    def over(*_: Any) -> None:
        nonlocal is_over
        is_over = True
        raise TooLong

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)  # again, if the first is lost in a finalizer
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if is_over:
        raise TooLong


def native(program: Any, make: Callable[[], Mapping[str, Any]], reply: Reply) -> Outcome:
    """CPython runs the program."""
    world, given = World(reply), make()
    value, error = None, None
    with contextlib.redirect_stdout(io.StringIO()), limited(NATIVE_S), noticing() as raised:
        try:
            value = program(**world.models, **given)
        except Exception as e:
            error = e
    return Outcome(value, error, given, world.counts, bool(raised))


@contextlib.contextmanager
def noticing() -> Iterator[list[type]]:
    """Notice the exceptions that any Python code of this thread raises, or lets pass, in the block."""
    raised: list[type] = []

    def trace(frame: types.FrameType, event: str, arg: Any) -> Any:
        frame.f_trace_lines = False
        if event == "exception":
            raised.append(arg[0])
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield raised
    finally:
        sys.settrace(before)


# --- judging ---------------------------------------------------------------------------------------------------------


class Difference(AssertionError):
    """The reader says something that is not so."""


@dataclass
class Verdict:
    """What judging a program has found."""

    is_known: bool = False
    barrier: str = ""
    where: str = ""
    is_stalled: bool = False
    rounds: int = 0
    asks: int = 0
    claims: int = 0


def shown(value: Any) -> str:
    """A value in a message; it may hold what is not known."""
    try:
        return repr(value)
    except (Undecided, Barrier):
        return f"an object of {type(value)}"


class Judge:
    """Compares what a reading says with one real run."""

    def __init__(self, run: Run, *, is_final: bool) -> None:
        self.run = run
        self.is_final = is_final
        self.claims = 0
        self._twins: dict[int, tuple[Any, Any]] = {}
        self._back: dict[int, Any] = {}

    def compare(self, said: Any, real: Any, path: str) -> None:
        """Raises: Difference."""
        kind = type(said)
        if kind is Unknown:
            self._unknown(said, real, path)
        elif isinstance(said, Lazy | Opaque) and not isinstance(real, Opaque):
            return
        elif kind is not type(real):
            if kind.__name__ not in ("dict", "list") or self.is_final or not self.run.is_tainted(said):
                raise Difference(f"{path}: {shown(said)} of {kind} is really {real!r} of {type(real)}")
        elif self.run.is_tainted(said):
            self._items(said, real, path)
        else:
            self.claims += 1
            self._same(kind, said, real, path)

    def _unknown(self, said: Unknown, real: Any, path: str) -> None:
        from langchain_core.messages import AIMessage

        if self.is_final and not said.sources <= ANYWHERE:  # as the text of an error that the program did not make
            raise Difference(f"{path} is not known in the end")
        holds = said.holds
        is_so = {
            "text": lambda: type(real) is str,
            "bool": lambda: type(real) is bool,
            "texts": lambda: type(real) is list and all(type(each) is str for each in real),
            "message": lambda: type(real) is AIMessage,
        }
        is_right = is_so[holds]() if holds in is_so else amounts.parts_of(holds) is None or holds_right(holds, real)
        if not is_right or (said.is_true and not real):
            raise Difference(f"{path}: what should be {holds} is {real!r}")
        if (len(said.over) == 1 or of_lists(said) is not None) and isinstance(real, Iterable):
            self._items(said, real, path)
        if isinstance(holds, type) and not isinstance(real, holds):
            raise Difference(f"{path}: what should be {holds} is {real!r}")

    def _items(self, said: Any, real: Any, path: str) -> None:
        """What is known of the items of an iterable whose content is not."""
        if (each := self.run.each_of(said)) is None:
            return
        self.claims += 1
        if each.holds is None and real:
            raise Difference(f"{path}: what should have no items is {real!r}")
        for item in real:
            self._unknown(Unknown(each.holds or "any"), item, f"an item of {path}")
        for value in real.values() if isinstance(real, dict) else ():
            if each.lists is not None and type(value) is not list:
                raise Difference(f"a value of {path}: what should be a list is {value!r}")
            if each.lists is not None:
                self._items(each.lists.one, value, f"a value of {path}")
            elif each.value != "list":
                self._unknown(Unknown(each.value or "any"), value, f"a value of {path}")

    def _same(self, kind: type, said: Any, real: Any, path: str) -> None:
        is_object = kind in (list, dict, set, deque, OrderedDict, Counter, defaultdict) or records.is_record(said)
        if is_object and not self._is_new(said, real, path):
            return
        if kind in (list, tuple, deque):
            if len(said) != len(real):
                raise Difference(f"{path}: {shown(said)} is really {real!r}")
            for at, (one, two) in enumerate(zip(said, real, strict=True)):
                self.compare(one, two, f"{path}[{at}]")
        elif kind in (dict, OrderedDict, Counter, defaultdict):
            if list(map(_shape, said)) != list(map(_shape, real)):
                raise Difference(f"{path}: keys {shown(said)} are really {list(real)!r}")
            for key, value in said.items():
                self.compare(value, real[key], f"{path}[{key!r}]")
        elif kind in (set, frozenset):
            shape = list if self.run.has_order(said) else set
            if shape(map(_shape, said)) != shape(map(_shape, real)):
                raise Difference(f"{path}: {shown(said)} is really {real!r}")
        elif isinstance(said, BaseException):
            if self.run.is_own_exception(said):
                self.compare(said.args, real.args, f"{path}.args")
        elif records.is_record(said):
            self._record(said, real, path)
        elif _shape(said) != _shape(real):
            raise Difference(f"{path}: {shown(said)} is really {real!r}")

    def _record(self, said: Any, real: Any, path: str) -> None:
        one, two = records.fields_of(said) or {}, records.fields_of(real) or {}
        if list(one) != list(two):
            raise Difference(f"{path}: fields {list(one)} are really {list(two)}")
        for name in one:
            self.compare(one[name], two[name], f"{path}.{name}")
        slots = [records.model_slot(each, "__pydantic_fields_set__") for each in (said, real)]
        if slots[0] is not classes.MISSING and not self.run.is_tainted(slots[0]) and slots[0] != slots[1]:
            raise Difference(f"{path}: set fields {slots[0]} are really {slots[1]}")

    def _is_new(self, said: Any, real: Any, path: str) -> bool:
        """Objects are the same in both, or different in both."""
        known = self._twins.get(id(said))
        if known is not None:
            if self.is_final and known[1] is not real:
                raise Difference(f"{path} is one object where there are really two")
            return not self.is_final and known[1] is not real
        if self.is_final and id(real) in self._back:
            raise Difference(f"{path} is a second object where there is really one")
        self._twins[id(said)] = said, real
        self._back[id(real)] = real
        return True


def _shape(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_shape, value))
    return type(value), value if isinstance(value, enum.Enum) else repr(value)


@dataclass
class Reading:
    """One evaluation, which is not put back yet."""

    run: Run
    value: Any = None
    error: Exception | None = None
    barrier: Barrier | None = None
    is_stalled: bool = False
    asks: list[Any] = field(default_factory=list)


def evaluated(program: Any, asker: Any, answers: Mapping[Hashable, Answer], given: Given, kwargs: Any) -> Reading:
    """One evaluation of a program."""
    run = Run(asker, answers=answers, given=given)
    found = Reading(run)
    try:
        found.value = call(run, run.load(program), (), dict(kwargs))
    except Barrier as e:
        found.barrier = e
    except (Stalled, Undecided):
        found.is_stalled = True
    except Exception as e:
        found.error = e
    found.asks = list(run.asks.values())
    return found


MAX_ROUNDS = 40


def judged(program: Any, make: Callable[[], Mapping[str, Any]], seed: int, worlds: int = 3) -> Verdict | None:
    """Reads the program round after round. None if it does not end by itself. Raises: Difference."""
    rnd = random.Random(seed)
    may_raise, is_partial = rnd.random() < 0.15, rnd.random() < 0.4
    replied = [replies(seed * 10 + n, may_raise=may_raise) for n in range(worlds)]
    verdict = Verdict()
    given = Given()
    pristine = make()
    args = {name: given.copy(each) for name, each in pristine.items()}
    models = {name: given.copy(each) for name, each in World(replied[0]).models.items()}
    answers: dict[Hashable, Answer] = {}
    known: dict[tuple[Key, int], Any] = {}
    asker = Worldly(may_raise=may_raise)
    for _ in range(MAX_ROUNDS):
        found = evaluated(program, asker, answers, given, {**models, **args})
        try:
            outcomes = [native(program, make, _agreeing(replied[0], reply, known)) for reply in replied]
            _compared(found, outcomes, args, verdict)
        except TooLong:
            return None
        finally:
            found.run.put_back()
        _restored(args, make(), found.run)
        fresh = [ask for ask in found.asks if ask.is_certain and ask.key not in answers]
        if not fresh:
            break
        if is_partial:
            fresh = rnd.sample(fresh, rnd.randint(1, len(fresh)))
        verdict.rounds += 1
        verdict.asks += len(fresh)
        for ask in fresh:
            reply = replied[0](ask.request.key, ask.number)
            known[ask.key] = ask.number
            is_error = isinstance(reply, Exception)
            answers[ask.key] = Answer(error=reply) if is_error else Answer(given.copy(reply))
    if found.barrier is not None:
        verdict.barrier, verdict.where = found.barrier.what, found.barrier.where
    verdict.is_stalled = found.is_stalled or bool(found.asks) or hasattr(found.run, "unread")
    verdict.is_known = not (found.barrier or verdict.is_stalled or found.run.gates)
    if verdict.is_known:
        _final(known, outcomes[0])
    return verdict


def _agreeing(first: Reply, reply: Reply, known: Mapping[tuple[Key, int], Any]) -> Reply:
    """The replies of a world, but those to questions of which a reply is known, which are the first world's."""
    keys = {key for key, _ in known}
    return lambda key, number: (first if key in keys else reply)(key, number)


def _compared(found: Reading, outcomes: list[Outcome], args: Mapping[str, Any], verdict: Verdict) -> None:
    run = found.run
    is_over = found.barrier is None and not found.is_stalled
    for outcome in outcomes:
        for ask in found.asks:
            is_sure = ask.is_certain or not (ask.is_possible or outcome.has_raised)
            if is_sure and outcome.counts[ask.request.key] <= ask.number:
                raise Difference(f"the request {ask.key} is called certain and is not made")
        if not is_over or (run.gates and (found.error is not None or outcome.error is not None)):
            continue  # what is said holds if nothing raises before
        if found.error is not None or outcome.error is not None:
            _same_error(found, outcome)
        judge = Judge(run, is_final=not (found.asks or hasattr(run, "unread")))
        if found.error is None:
            judge.compare(found.value, outcome.value, "value")
        else:
            judge.compare(found.error, outcome.error, "error")
        for name, arg in args.items():
            judge.compare(arg, outcome.inputs[name], name)
        verdict.claims += judge.claims


def _same_error(found: Reading, outcome: Outcome) -> None:
    if type(found.error) is type(outcome.error):
        return
    raise Difference(f"it raises {shown(found.error)} where CPython raises {outcome.error!r}")


def _restored(args: Mapping[str, Any], fresh: Mapping[str, Any], run: Run) -> None:
    judge = Judge(Run(Nobody()), is_final=True)
    for name, arg in args.items():
        try:
            judge.compare(arg, fresh[name], name)
        except Difference as e:
            raise Difference(f"an input is not put back: {e}") from None


def _final(known: Mapping[tuple[Key, int], Any], outcome: Outcome) -> None:
    asked = Counter(key for key, _ in known)
    if asked != outcome.counts:
        raise Difference(f"asked {asked - outcome.counts} too often, {outcome.counts - asked} not at all")
