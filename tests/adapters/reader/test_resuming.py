"""Reading on behind what is not read: nothing is asked that the run does not ask, and what it will ask is found."""

from __future__ import annotations

import gc
import random
import string
import textwrap
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from teola_plugin.adapters.reader import stacks
from teola_plugin.adapters.reader.resuming import Passed, Place, Stop
from teola_plugin.adapters.reader.values import STALE, Stale
from tests.adapters.reader import random_lists
from tests.adapters.reader.fuzzing import Key, TooLong, native, replies
from tests.adapters.reader.random_programs import inputs, shown, source
from tests.adapters.reader.resumed import HIDDEN, SideBySide, hide
from tests.adapters.reader.test_fuzz_semantics import FIRST, PROGRAMS, module_of

pytestmark = pytest.mark.usefixtures("no_batches")

PER_FILE = 50


@pytest.fixture(autouse=True)
def tests_are_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of this folder may stand between those of a program, as those of a framework do."""
    monkeypatch.setattr(stacks, "_PASSING", stacks._PASSING | {"tests", "contextlib"})
    monkeypatch.setattr(stacks, "_libraries", {})


def numbered(seed: int) -> Any:
    """Replies that differ each time that the same is asked."""

    def reply(key: Key, number: int) -> Any:
        return replies(zlib.crc32(repr((seed, number)).encode()))(key, 0)

    return reply


@pytest.mark.parametrize("seed", range(FIRST, FIRST + max(1, PROGRAMS // PER_FILE)))
def test_a_random_program_asks_for_what_it_would_have_asked(seed: int, tmp_path: Path) -> None:
    text = hide(source(seed, PER_FILE), random.Random(seed))
    module = module_of(text, tmp_path / f"hidden_programs_{seed}.py")
    found: Counter[str] = Counter()
    for number in range(PER_FILE):
        name, case = f"program_{number}", seed * 1000 + number
        for turn in range(3):
            program, make, reply = getattr(module, name), inputs(case), numbered(case)
            side = SideBySide(program, reply, random.Random(case + turn), is_beside=bool(case % 2))
            try:
                alone, value = native(program, make, reply), side.run(make())
            except TooLong:
                continue
            told = f"{shown(text, name)}\n{make()}"
            if side.extra:  # an earlier request has come to be equal to one that was asked ahead: see docs/limits.md
                alike = SideBySide(
                    program, lambda key, number, reply=reply: reply(key, 0), random.Random(case + turn),
                    is_beside=bool(case % 2),
                )  # fmt: skip
                alike.run(make())
                assert alike.extra == 0, told
                found["equal"] += 1
            assert repr(value) == repr(alone.value if alone.error is None else alone.error), told
            found["ahead"] += side.ahead
            found["behind"] += side.skipped > 0 and side.ahead > 0
    assert found["behind"] > 1, found
    assert found["equal"] < 3, found


def test_a_run_of_a_function_does_not_come_past_the_stop_of_another() -> None:
    """Two runs of a function, say in two nodes of a graph, have other variables."""
    place = Place(1, 1, 2, is_repeated=False, has_rounds=False, names=frozenset())
    mine, other = (Stop((numbered.__code__,), (place,), where) for where in ("mine", "another"))
    passed = Passed(mine, key="", mark=None, levels=(), seen={}, where="mine")
    assert passed.is_past(mine)
    assert not passed.is_past(other)


# --- one by one ------------------------------------------------------------------------------------------------------

READ_ON = {
    "a loop over rows of a client": (3, """
        rows = unread(lambda: ["a", "b", "c"])
        return [m.ask(row) for row in rows]
    """),
    "a file that is closed again": (3, """
        with unread(lambda: contextlib.nullcontext("a b c")) as file:
            text = file
        out = []
        for part in text.split():
            out.append(m.ask(part))
        return out
    """),
    "inside of a try": (3, """
        try:
            rows = unread(lambda: ["a", "b", "c"])
            out = []
            for row in rows:
                out.append(m.ask(row))
            return out
        except ValueError as e:
            return str(e)
    """),
    "a helper that has returned, and one that has not": (3, """
        rows = fetch(3)
        return judge(m, rows)
    """),
    "two clients in turn": (6, """
        rows = unread(lambda: ["a", "b", "c"])
        first = [m.ask(row) for row in rows]
        more = unread(lambda: ["d", "e", "f"])
        return first, [m.ask(row) for row in more]
    """),
    "a list that it fills": (3, """
        rows = []
        for name in ("a", "b", "c"):
            rows.extend(unread(lambda: [name]))
        return [m.ask(row) for row in rows]
    """),
    "what is made of its rows before the first request": (3, """
        rows = unread(lambda: ["a", "b", "c"])
        table = {row: row * 2 for row in rows}
        out = {}
        for key, value in table.items():
            out[key] = m.ask(value)
        return out
    """),
    "a request before it": (4, """
        first = m.ask("first")
        rows = unread(lambda: ["a", "b", "c"])
        return [first, *[m.ask(row) for row in rows]]
    """),
    "the same asked before, by what is not read": (3, """
        rows = unread(lambda: [m.ask("a"), "a", "a", "b"])
        return [m.ask(row) for row in rows[1:]]
    """),
    "a client that asks, made by what is not read": (3, """
        client = unread(lambda: ["b", "c"])
        rows = unread(lambda: [m.ask("a"), *client, "d"])
        return [m.ask(row) for row in rows[1:]]
    """),
    "what is changed between the two": (3, """
        counts = unread(lambda: [1])
        counts.append(len(counts) + 1)
        rows = unread(lambda: [m.ask("a"), "b", "c", "d"])
        return [m.ask(f"{row} {counts}") for row in rows[1:]]
    """),
    "what is outside, as it is behind it": (3, """
        before = BOX.number
        rows = unread(lambda: BOX.count() or ["a", "b", "c"])
        return [m.ask(f"{row} {BOX.number - before}") for row in rows]
    """),
    "a model that is handed on": (3, """
        rows = unread(lambda: ["a", "b", "c"])
        return ask_all(m, rows)
    """),
    "an argument of the function that asks": (3, """
        return ask_all(m, unread(lambda: ["a", "b", "c"]))
    """),
    "an argument that a function makes": (3, """
        found = ask_all(m, [row + "!" for row in fetch(3)])
        return found
    """),
    "an argument of a method": (4, """
        asker = ASKER
        found = asker.ask_all(m, xs=unread(lambda: ["a", "b", "c"]))
        return found, m.ask("behind")
    """),
    "an argument of a function with any arguments": (5, """
        first = m.ask("first")
        return ask_any(m, *unread(lambda: ["a", "b"]), more=first, last=fetch(1))
    """),
    "an argument, and what is behind it": (6, """
        found = ask_all(m, unread(lambda: ["a", "b", "c"]))
        rows = unread(lambda: [f"{each} again" for each in found])
        return [m.ask(row) for row in rows]
    """),
    "a list of the function around it": (2, """
        kept = ["a", "b"]
        found = ask_all(m, unread(lambda: kept))
        return found, kept
    """),
    "an argument that asks by itself": (4, """
        return ask_all(m, unread(lambda: [m.ask("first"), "b", "c", "d"]))
    """),
    "the time of each request": (3, """
        rows = unread(lambda: ["a", "b", "c"])
        taken, out = [time.time()], []
        for row in rows:
            start, label = time.perf_counter(), str(random.random())
            out.append(m.ask(row))
            taken.append(time.perf_counter() - start)
        return out, len(taken)
    """),
}  # fmt: skip
"""Programs, with how many requests are found ahead of the run from its second time on."""

LEFT = {
    "in a context that it changes": """
        with Noted(m, "none") as noted:
            unread(lambda: setattr(noted, "name", "other"))
            m.ask("x")
            m.ask("y")
        return m.ask("end")
    """,
    "in a finally block, with a result that it changes": """
        return m.ask(f"{kept(m, docs)}"), m.ask("end")
    """,
    "in a handler, with an error that it changes": """
        try:
            fails(m, Failed("none"))
        except Failed as e:
            m.ask(e.args[0])
        return m.ask("end")
    """,
    "in a finally block, with an error that it changes": """
        try:
            fails_at_last(m, Failed("none"))
        except Failed as e:
            m.ask(e.args[0])
        return m.ask("end")
    """,
    "in a loop": """
        out = []
        for name in ("a", "b", "a"):
            if name == "a":
                rows = unread(lambda: next(ROUNDS))
                for row in rows:
                    out.append(m.ask(row))
            elif out:
                out.append(m.ask("b, too"))
        return out
    """,
    "in a function that map calls": """
        out = []
        list(map(functools.partial(visit, m, out), ["a", "b", "a"]))
        return out
    """,
    "equal requests of a function written in C": """
        unread(lambda: 0)
        return sorted(["x"] * 4, key=lambda each: m.ask(each))
    """,
    "a list that the function around it has, too": """
        kept = ["x"]
        add(m, kept)
        return m.ask(str(kept))
    """,
    "one list under two names": """
        one = ["x"]
        pair = unread(lambda: (one, 1))
        m.ask("same")
        one.append("y")
        return m.ask(str(pair[0]))
    """,
    "variables that were handed out": """
        held = locals()
        rows = unread(lambda: ["a", "b", "c"])
        found = [m.ask(row) for row in rows]
        return found, sorted(held)
    """,
    "a list that changes between it and the request": """
        seen = []
        rows = unread(lambda: ["a", "b", "c"])
        seen.append(len(rows))
        return [m.ask(f"{row}{seen}") for row in rows]
    """,
    "what was given, changed in place": """
        unread(lambda: docs.append("new"))
        for each in ("a", "b"):
            m.ask(f"{each}{len(words)}")
        return docs
    """,
    "a function that looks at its variables": """
        rows = unread(lambda: ["a", "b", "c"])
        shown = sorted(locals())
        return [m.ask(f"{row}{shown}") for row in rows]
    """,
    "the class of what is not copied": """
        box = unread(lambda: Box())
        m.ask("same")
        return [m.ask(box.__class__.__name__), m.ask(type(box).__name__), m.ask(str(isinstance(box, Box)))]
    """,
    "whether it is of a class": """
        box = unread(lambda: Box())
        m.ask("same")
        return m.ask(str([isinstance(box, Box), isinstance(box, str), callable(box)]))
    """,
    "an object that changes": """
        box = unread(lambda: Box())
        m.ask("same")
        box.count()
        m.ask(str(box.number))
        unread(lambda: box.count())
        m.ask("same")
        return m.ask(str(box.number))
    """,
    "an object in a loop that changes": """
        boxes = unread(lambda: [Box(), Box()])
        for box in boxes:
            m.ask(f"{box.number}")
            boxes[1].count()
            m.ask(f"{boxes[1].number}")
        return [box.number for box in boxes]
    """,
    "a list of an object's that changes": """
        boxes = unread(lambda: [Box(), Box()])
        rows = boxes[0].rows
        m.ask("same")
        rows.append(1)
        m.ask(str(boxes[0].rows))
        unread(lambda: rows.append(2))
        m.ask("same")
        return m.ask(str(boxes[0].rows))
    """,
    "an object that an attribute holds": """
        box = unread(lambda: Box())
        box.inner = unread(lambda: Box())
        m.ask("same")
        box.inner.count()
        m.ask(f"{box.inner.number}{box.number}")
        unread(lambda: box.inner.count())
        m.ask("same")
        return m.ask(f"{box.inner.number}{box.number}")
    """,
    "a function that sets a variable of the one around it": """
        number = 0
        def count():
            nonlocal number
            number += 1
        unread(lambda: count())
        m.ask("same")
        count()
        return m.ask(str(number))
    """,
    "such a function that an object holds": """
        number = 0
        def count():
            nonlocal number
            number += 1
        box = unread(lambda: Box())
        box.act = count
        unread(lambda: box.act())
        m.ask("same")
        box.act()
        return m.ask(str(number))
    """,
    "a function that uses a variable that is set again": """
        number = 0
        shown = unread(lambda held=(lambda: number): held)
        m.ask("same")
        number = 5
        return m.ask(str(shown()))
    """,
    "an iterator that is used up in part": """
        steps = iter(["a", "b", "c", "d"])
        first = unread(lambda: next(steps))
        return [m.ask(first), *[m.ask(step) for step in steps]]
    """,
    "other variables on the way to the same request": """
        kept = ["x"]
        for number in range(2):
            kept = unread(lambda: [*kept, number])
        m.ask("same")
        return m.ask(str(kept.pop()))
    """,
    "an argument beside a list that is not read": """
        kept = ["x"]
        return both(kept, ask_all(m, unread(lambda: kept.append("y") or kept)), m.ask(str(kept)))
    """,
    "an argument beside a list that is evaluated before": """
        kept = ["x"]
        return ask_with(m, kept, ask_all(m, unread(lambda: kept.append("y") or ["a", "b"])))
    """,
    "an argument that the function replaces": """
        return ask_longer(m, unread(lambda: ["a", "b"]))
    """,
    "an argument that the function changes": """
        kept = unread(lambda: ["a"])
        ask_grown(m, unread(lambda: kept))
        return m.ask(str(kept))
    """,
    "an argument that is a variable of the function around": """
        kept = ["a"]
        ask_grown(m, unread(lambda: kept))
        return m.ask(str(kept))
    """,
    "one of two calls of a function": """
        return ask_all(m, ask_all(m, unread(lambda: ["a", "b"])) if docs else ["c"])
    """,
    "a call of one of two functions": """
        ask = ask_all if m.ask("which") == "yes" else ask_grown
        return ask(m, unread(lambda: ["a", "b"]))
    """,
    "a call in a loop": """
        out = []
        for name in ("a", "b"):
            out.append(ask_all(m, unread(lambda: [name, "x"])))
        return out
    """,
    "an argument that changes what was evaluated before": """
        box = [1]
        return ask_with(m, str(box), unread(lambda: box.append(2) or box))
    """,
    "a function that calls itself with it": """
        return ask_down(m, unread(lambda: ["a", "b"]))
    """,
    "in one of two ways, by the time": """
        rows = unread(lambda: ["a", "b"])
        began = time.time()
        if began < 0:
            m.ask("a")
            m.ask("never")
        return [m.ask(row) for row in rows]
    """,
    "in rounds of an unknown number, a later one of which raises": """
        unread(lambda: random.seed(5))
        while random.random() < 2:
            1 / random.randint(0, 1)
            m.ask("a")
        return m.ask("never")
    """,
}
"""Programs that go on as far as it is certain, or not at all."""


class Prompt(random.Random):
    """Everything is read, and answered, at once."""

    def random(self) -> float:
        return 0.0

    def randrange(self, *_: Any) -> int:
        return 0


HELPERS = """
import contextlib
import functools
import itertools
import random
import time

ROUNDS = itertools.cycle([[], ["p", "q"]])

class Box:
    number = 0

    def __init__(self):
        self.rows = []

    def count(self):
        self.number += 1

BOX = Box()

def ask_all(m, xs):
    return [m.ask(x) for x in xs]

class Asker:
    def ask_all(self, m, xs):
        return [m.ask(x) for x in xs]

ASKER = Asker()

def ask_any(m, first, *rows, more, **rest):
    return [m.ask(x) for x in (first, *rows, more, *rest["last"])][1:]

def ask_longer(m, xs):
    xs = [*xs, "c"]
    return [m.ask(f"{x} {len(xs)}") for x in xs]

def ask_grown(m, xs):
    xs.append("z")
    return [m.ask(x) for x in xs]

def ask_with(m, text, xs):
    return [m.ask(f"{text} {x}") for x in xs]

def ask_down(m, xs):
    return m.ask(xs[0]), xs and ask_down(m, unread(lambda: xs[1:])) if len(xs) > 1 else None

def both(*given):
    return given

def fetch(n):
    return unread(lambda: ["a", "b", "c"][:n])

def judge(m, rows):
    kept = unread(lambda: [row for row in rows if row])
    return [m.ask(row) for row in kept]

def visit(m, out, name):
    if name == "a":
        rows = unread(lambda: next(ROUNDS))
        for row in rows:
            out.append(m.ask(row))
    elif out:
        out.append(m.ask("b, too"))

def add(m, kept):
    unread(lambda: kept.append("y"))
    m.ask("same")

class Noted:
    def __init__(self, m, name):
        self.m, self.name = m, name

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.m.ask("end " + self.name)

class Failed(Exception):
    pass

def kept(m, rows):
    rows = [*rows, "b"]
    try:
        return rows
    finally:
        unread(lambda: rows.append("z"))
        m.ask("x")

def fails(m, error):
    try:
        raise error
    except Failed:
        unread(lambda: setattr(error, "args", ("other",)))
        m.ask("x")
        raise

def fails_at_last(m, error):
    try:
        raise error
    finally:
        unread(lambda: setattr(error, "args", ("other",)))
        m.ask("x")

def program(m, docs, words, **rest):
"""


def program_of(text: str, tmp_path: Path, name: str) -> Any:
    body = textwrap.indent(textwrap.dedent(text), "    ")
    return module_of(f"{HIDDEN}\n{HELPERS}{body}", tmp_path / f"{name}.py").program


def sides(program: Any, given: dict[str, Any], rnd: random.Random, *, is_beside: bool = False) -> list[SideBySide]:
    """Three runs of a program, which come to what it comes to alone."""
    made: list[SideBySide] = []
    for _ in range(3):
        make, reply = lambda: {key: list(value) for key, value in given.items()}, numbered(0)
        alone = native(program, make, reply)
        made.append(SideBySide(program, reply, rnd, is_beside=is_beside))
        value = made[-1].run(make())
        assert repr(value) == repr(alone.value if alone.error is None else alone.error)
    return made


@pytest.mark.parametrize("name", READ_ON)
def test_what_stands_behind_it_is_found(name: str, tmp_path: Path) -> None:
    ahead, text = READ_ON[name]
    program = program_of(text, tmp_path, "read_on")
    runs = sides(program, {"docs": ["a"], "words": ["b"]}, Prompt())
    assert [run.ahead for run in runs[1:]] == [ahead] * 2, [run.barriers for run in runs]
    assert [run.extra for run in runs] == [0] * 3


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_not_certain_is_left(name: str, seed: int, tmp_path: Path) -> None:
    program = program_of(LEFT[name], tmp_path, "left")
    runs = sides(program, {"docs": ["a"], "words": ["b"]}, Prompt() if seed == 0 else random.Random(seed))
    assert [run.extra for run in runs] == [0] * 3


@pytest.mark.parametrize("seed", [0, 86, 117])
def test_a_reply_is_not_used_while_it_may_be_that_of_another_time(seed: int, tmp_path: Path) -> None:
    program = program_of(
        """
        if m.ask("first") == "yes":
            m.ask("same")
        found = m.ask("same")
        return m.ask(f"then {found}")
        """,
        tmp_path,
        "perhaps",
    )
    side = SideBySide(program, numbered(seed), random.Random(seed))
    side.run({"docs": [], "words": []})
    assert side.extra == 0


@pytest.mark.parametrize("seed", range(FIRST, FIRST + max(1, PROGRAMS // PER_FILE // 3)))
def test_what_is_read_behind_an_argument_is_so(seed: int, tmp_path: Path) -> None:
    text = f"{HIDDEN}\n{random_lists.source_of_calls(seed, PER_FILE)}"
    module = module_of(text, tmp_path / f"hidden_arguments_{seed}.py")
    behind = 0
    for number in range(PER_FILE):
        program, case = getattr(module, f"program_{number}"), seed * 1000 + number
        for turn in range(3):
            module.ASKS.count = 0
            alone = native(program, inputs(case), numbered(case))
            module.ASKS.count = 0
            side = SideBySide(program, numbered(case), random.Random(case + turn))
            value = side.run(inputs(case)())
            assert (side.extra, repr(value)) == (0, repr(alone.value if alone.error is None else alone.error)), number
            behind += side.skipped > 0 and side.ahead > 0
    assert behind > PER_FILE


class Later(SideBySide):
    """Something changes what is outside, between a request and the reading of what comes behind it."""

    def _turn(self) -> None:
        if self._works:
            self._program.__globals__["BOX"].count()
        super()._turn()


def test_what_comes_to_another_request_asks_for_nothing(tmp_path: Path) -> None:
    text = """
        rows = unread(lambda: ["a", "b", "c"])
        return [m.ask(f"{row} {BOX.number}") for row in rows]
    """
    program = program_of(text, tmp_path, "later")
    for _ in range(3):
        side = Later(program, numbered(0), Prompt())
        side.run({"docs": [], "words": []})
        assert side.extra == 0


class Counting(SideBySide):
    """A part of a package, of which there is no note, is replaced before what has been heard is read."""

    def _turn(self) -> None:
        if self._works:
            string.octdigits += "8"
        super()._turn()


def test_a_reading_that_comes_to_another_request_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
        rows = unread(lambda: ["a", "b", "c"])
        return [m.ask(f"{row} {string.octdigits}") for row in rows]
    """
    program = program_of(text, tmp_path, "counting")
    program.__globals__["string"] = string
    monkeypatch.setattr(string, "octdigits", "")
    for _ in range(3):
        side = Counting(program, numbered(0), Prompt())
        side.run({"docs": [], "words": []})
        assert side.barriers[-1] == "it does not come to where the run is"
        assert side.extra == 0


def test_who_looks_through_all_objects_finds_none_that_refuses() -> None:
    found = [each for each in gc.get_objects() if isinstance(each, Stale)]
    assert any(each is STALE.held for each in found)
