"""Programs that change what they did not make: what does not need it is found, and nothing else is asked."""

from __future__ import annotations

import random
import textwrap
from pathlib import Path
from typing import Any

import pytest

from teola_plugin.adapters.reader import stacks
from tests.adapters.reader.fuzzing import native
from tests.adapters.reader.resumed import HIDDEN, SideBySide
from tests.adapters.reader.test_fuzz_semantics import module_of
from tests.adapters.reader.test_resuming import Prompt, numbered

pytestmark = pytest.mark.usefixtures("no_batches")

WORLD = f"""
import dataclasses
import functools
import sys
from collections import defaultdict, deque
from pydantic import BaseModel

{HIDDEN}

class Row(BaseModel):
    name: str
    size: int = 0

class Box:
    shared = []

    def __init__(self):
        self.number, self.seen, self.names, self.last = 0, [], {{}}, None

    def count(self):
        self.number += 1

    def note(self, what):
        self.last = what
        self.seen.append(what)

    @property
    def doubled(self):
        return self.number * 2

    @doubled.setter
    def doubled(self, value):
        self.number = value // 2

class Careful:
    def __init__(self):
        self.number = 0

    def __setattr__(self, name, value):
        if value == 2:
            raise ValueError(value)
        object.__setattr__(self, name, value)

def reset():
    global ROWS
    ROWS = [Row(name=each) for each in "acdefghijklmnopqrstuvwxyz"] + [Row(name="b", size=2)]
    global BOX, CAREFUL, LOG, COUNTS, GROUPS, RECENT, NAMES, TOTAL, NESTED, LAST
    BOX, CAREFUL, LOG, COUNTS, GROUPS = Box(), Careful(), ["start"], {{"a": 0, "b": 0}}, defaultdict(list)
    RECENT, NAMES, TOTAL, NESTED, LAST = deque(["z"], maxlen=3), {{"n"}}, 0, {{"a": {{"x": 1}}, "b": []}}, None
    Box.shared = []
    global INNER
    INNER = NESTED["a"]

reset()
HERE = sys.modules[__name__]

def set_total(number):
    global TOTAL
    TOTAL = number

def counted(m, what):
    global TOTAL
    TOTAL += 1
    return m.ask(what)

def remembered(m, what):
    if what not in GROUPS:
        GROUPS[what] = m.ask(what)
    return GROUPS[what]
"""

FOUND = {
    "a counter of an object": (3, """
        BOX.number += 1
        return [m.ask(each) for each in "abc"]
    """),
    "a counter in a loop": (3, """
        out = []
        for each in "abc":
            BOX.count()
            out.append(m.ask(each))
        return out
    """),
    "a history that is kept of replies": (3, """
        for each in "abc":
            LOG.append(m.ask(each))
        return len(LOG)
    """),
    "counts by name": (3, """
        for each in "abc":
            COUNTS["a"] += 1
            m.ask(each)
        return COUNTS
    """),
    "counts by any name": (3, """
        tally = TALLY
        for each in "abc":
            tally[each] += 1
            m.ask(each)
        return dict(tally)
    """),
    "lists by name": (3, """
        for each in "abc":
            GROUPS[each].append(m.ask(each))
        return dict(GROUPS)
    """),
    "models that stay as they are": (3, """
        for each in "abc":
            row = next((each for each in ROWS if each.name == "b"), None)
            LOG.append(row.size)
            m.ask(row.name + each)
        return list(LOG)
    """),
    "a dict in a dict": (3, """
        for each in "abc":
            NESTED["a"]["x"] = each
            NESTED["b"].append(m.ask(each))
        return NESTED
    """),
    "a list that is made anew and filled": (3, """
        BOX.seen = []
        for each in "abc":
            BOX.seen.append(m.ask(each))
        return len(BOX.seen)
    """),
    "a dict that is made anew and filled": (3, """
        BOX.names = {}
        for each in "abc":
            BOX.names[each] = m.ask(each)
        return BOX.names
    """),
    "a set that is made anew, with another name": (3, """
        mine = BOX.names = set()
        for each in "abc":
            m.ask(each)
            BOX.names.add(each)
            mine.add("z")
        return mine
    """),
    "a total that is global": (3, """
        return [counted(m, each) for each in "abc"], TOTAL
    """),
    "an attribute that is stored and used": (3, """
        BOX.last = "topic"
        return [m.ask(BOX.last + each) for each in "abc"]
    """),
    "an attribute that is new": (3, """
        BOX.topic = m.ask("topic")
        return m.ask("a"), m.ask("b"), BOX.topic
    """),
    "a method that notes": (3, """
        for each in "abc":
            BOX.note(m.ask(each))
        return BOX.seen, BOX.last
    """),
    "a property that is set": (3, """
        BOX.doubled = 8
        return [m.ask(f"{BOX.doubled}{each}") for each in "abc"]
    """),
    "a list of a class": (3, """
        for each in "abc":
            Box.shared.append(m.ask(each))
        return Box.shared
    """),
    "a closed-over counter": (3, """
        number = 0
        def up():
            nonlocal number
            number += 1
            return number
        return [m.ask(str(up())) for _ in range(3)]
    """),
    "a set and a deque": (3, """
        for each in "abc":
            NAMES.add(each)
            RECENT.append(m.ask(each))
        return sorted(NAMES), list(RECENT)
    """),
    "a list that what is not read has made": (3, """
        out = unread(lambda: [])
        rows = unread(lambda: ["a", "b", "c"])
        for each in rows:
            out.append(m.ask(each))
        return out
    """),
    "a count that decides, behind it": (3, """
        BOX.number += 1
        if BOX.number > 5:
            return None
        return [m.ask(each) for each in "abc"]
    """),
    "a text that is shown, behind it": (3, """
        LOG.append("b")
        return m.ask(f"{LOG}"), m.ask("same"), m.ask(f"{len(LOG)}")
    """),
}  # fmt: skip
"""Programs, and how many of their requests are found when everything is read at once."""

LEFT = {
    "what was there before": """
        before = BOX.number
        BOX.number += 1
        return m.ask(f"{before}"), m.ask(f"{BOX.number}")
    """,
    "a limit": """
        BOX.number += 1
        if BOX.number > 1:
            raise RuntimeError("too many")
        return m.ask("a"), m.ask("b")
    """,
    "a limit by a count that may be missing": """
        COUNTS.pop("b", None)
        COUNTS["b"] += 1
        return m.ask("a")
    """,
    "a key that may be gone": """
        m.ask("first")
        COUNTS.clear()
        COUNTS["x"] = 1
        return m.ask(f"{COUNTS['a']}")
    """,
    "a key that is gone": """
        COUNTS.clear()
        COUNTS["x"] = 1
        COUNTS["a"] += 1
        return m.ask("a")
    """,
    "a key that is deleted": """
        try:
            del COUNTS["a"]
        except KeyError:
            return None
        COUNTS["a"] += 1
        return m.ask("a")
    """,
    "a key that is deleted, or was not there": """
        try:
            del COUNTS["a"]
        except Exception:
            pass
        COUNTS["a"] += 1
        return m.ask("a")
    """,
    "a key that is not there, of texts": """
        COUNTS["q"] = "text"
        COUNTS["z"]
        return m.ask("a")
    """,
    "a key that is not there": """
        COUNTS["z"] += 1
        return m.ask("a")
    """,
    "a cache": """
        return [remembered(m, each) for each in "aba"]
    """,
    "an attribute with code": """
        CAREFUL.number += 1
        CAREFUL.number += 1
        return m.ask("a")
    """,
    "the order in which it is read": """
        first = m.ask("first")
        LOG.append(first)
        return m.ask(LOG[-1]), m.ask(f"{LOG}"), m.ask(LOG[0])
    """,
    "a list by two names": """
        mine = LOG
        mine.append("x")
        return m.ask(f"{LOG}{mine}"), m.ask(f"{mine is LOG}"), m.ask(f"{BOX.seen is BOX.seen}")
    """,
    "a list that is compared, and replaced": """
        is_same = BOX.seen is BOX.seen
        BOX.seen = ["y"]
        return m.ask(f"{is_same}")
    """,
    "a list that is replaced": """
        held = BOX.seen
        BOX.seen = [*BOX.seen, "y"]
        held.append("x")
        return m.ask(f"{BOX.seen}"), m.ask(f"{held}"), m.ask(f"{BOX.seen is held}")
    """,
    "either of two": """
        target = LOG if m.ask("which") == "yes" else BOX.seen
        target.append("z")
        return m.ask(f"{LOG}"), m.ask(f"{BOX.seen}")
    """,
    "stored on one of two ways": """
        BOX.last = "before"
        if m.ask("which") == "yes":
            BOX.last = "yes"
        return m.ask(BOX.last), m.ask("then")
    """,
    "stored on the second of two ways": """
        if m.ask("which") != "yes":
            pass
        else:
            BOX.last = "no"
        return m.ask(f"{BOX.last}"), m.ask("then")
    """,
    "rounds that are not known": """
        BOX.number = 0
        for word in m.ask("words").split():
            BOX.number += 1
        return m.ask(f"{BOX.number}"), m.ask("then")
    """,
    "a global that is not there": """
        try:
            ABSENT
        except NameError:
            m.ask("absent")
        globals_of(1)
        return m.ask("then")
    """,
    "behind what is not read": """
        LOG.append("one")
        rows = unread(lambda: LOG.append("two") or ["a", "b"])
        LOG.append("three")
        return [m.ask(f"{row}{LOG}") for row in rows]
    """,
    "another name of a list of the run's": """
        mine = unread(lambda: LOG)
        rows = unread(lambda: ["a", "b"])
        m.ask("first")
        mine.append("x")
        return [m.ask(f"{row}{LOG}{mine}") for row in rows]
    """,
    "another name of a list of the run's, twice": """
        mine = unread(lambda: LOG)
        m.ask("first")
        mine.append("x")
        rows = unread(lambda: ["a", "b"])
        m.ask("second")
        mine.append("y")
        return [m.ask(f"{row}{LOG}{mine}") for row in rows]
    """,
    "inside of a tuple, twice": """
        pair = unread(lambda: (LOG, 1))
        m.ask("first")
        held = {"log": pair[0]}
        rows = unread(lambda: ["a", "b"])
        m.ask("second")
        held["log"].append("y")
        return [m.ask(f"{row}{LOG}{held}") for row in rows]
    """,
    "a global name for an error": """
        global LAST
        try:
            raise ValueError(3)
        except ValueError as LAST:
            m.ask("raised")
        try:
            m.ask(f"{LAST}")
        except NameError:
            m.ask("gone")
        LAST = None
        return m.ask("then")
    """,
    "a name for an error, behind another error": """
        try:
            try:
                raise ValueError(3)
            except ValueError as e:
                raise KeyError from None
        except KeyError:
            m.ask("raised")
        try:
            m.ask(f"{e}")
        except NameError:
            m.ask("gone")
        return m.ask("then")
    """,
    "a dict inside of another, by two names": """
        inner = NESTED["a"]
        NESTED["z"] = 1
        NESTED["a"]["x"] = 5
        return m.ask(f"{INNER['x']}"), m.ask(f"{inner}")
    """,
    "a list that is stored and cleared there": """
        mine = ["a", "b"]
        GROUPS["x"] = mine
        GROUPS["x"].clear()
        return [m.ask(each) for each in mine]
    """,
    "an item of another kind": """
        GROUPS["a"] = "text"
        try:
            GROUPS["a"].append("x")
            return m.ask("fine")
        except AttributeError:
            return m.ask("error")
    """,
    "a number that comes to be a text": """
        COUNTS["a"] = "text"
        try:
            COUNTS["a"] += 1
            return m.ask("fine")
        except TypeError:
            return m.ask("error")
    """,
    "a global by the name of its module": """
        set_total(5)
        return m.ask(f"{HERE.TOTAL}"), m.ask("then")
    """,
    "a key that is new": """
        try:
            COUNTS["q"] += 1
            m.ask("fine")
        except KeyError:
            COUNTS["q"] = 1
        return m.ask("then")
    """,
    "an attribute that is new, behind it": """
        if hasattr(BOX, "topic"):
            m.ask("known")
        BOX.topic = 5
        return m.ask("then")
    """,
    "a list that is stored in front of what is not read": """
        mine = ["a"]
        BOX.seen = mine
        rows = unread(lambda: ["b"])
        m.ask("first")
        BOX.seen.append("b")
        return m.ask(f"{mine}{BOX.seen}")
    """,
    "a list that is made anew and filled by another name": """
        mine = []
        BOX.seen = mine
        m.ask("a")
        BOX.seen.append("x")
        m.ask(f"{mine}")
        mine.append("y")
        return m.ask(f"{BOX.seen}"), m.ask(str(len(mine)))
    """,
    "a list that is made anew in two places": """
        BOX.seen = BOX.last = mine = []
        m.ask("a")
        BOX.last.append("x")
        m.ask("b")
        BOX.seen.append("y")
        if len(mine) > 1:
            m.ask(f"{BOX.last}")
        return m.ask(f"{BOX.seen}")
    """,
    "a list that is made anew, or one of outside": """
        mine = ["o"]
        BOX.seen = mine if m.ask("q").endswith("0") else LOG
        m.ask("a")
        BOX.seen.append("x")
        return m.ask(f"{mine}"), m.ask(f"{LOG}")
    """,
    "a list in a list that is made anew": """
        mine = [[]]
        BOX.seen = mine
        m.ask("a")
        BOX.seen.append([])
        mine[0].append("x")
        BOX.seen[0].append("y")
        return m.ask(f"{mine}"), m.ask("then")
    """,
    "a dict that is made anew and emptied": """
        mine = {"a": 1}
        BOX.names = mine
        m.ask("a")
        m.ask("b")
        BOX.names.pop("a")
        if "a" in mine:
            m.ask("kept")
        return m.ask(f"{mine}")
    """,
    "a list that is made anew and replaced": """
        mine = BOX.seen = ["a"]
        m.ask("a")
        BOX.seen = ["b"]
        BOX.seen.append("c")
        m.ask(f"{mine}{BOX.seen}")
        BOX.seen.append("d")
        return m.ask(f"{mine}"), m.ask(f"{BOX.seen}")
    """,
    "an object that is stored in front of what is not read": """
        mine = Box()
        BOX.last = mine
        rows = unread(lambda: ["b"])
        m.ask("first")
        BOX.last.number = 9
        told = m.ask(f"{mine.number}{BOX.last.number}")
        BOX.last = None
        return told
    """,
}
"""Programs of which nothing wrong is asked, whenever they are read."""


@pytest.fixture(autouse=True)
def tests_are_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of this folder may stand between those of a program, as those of a framework do."""
    monkeypatch.setattr(stacks, "_PASSING", stacks._PASSING | {"tests", "contextlib"})
    monkeypatch.setattr(stacks, "_libraries", {})


def runs(text: str, tmp_path: Path, rnd: random.Random, name: str = "changing") -> list[SideBySide]:
    """Three runs of a program, each in a world of its own, which come to what it comes to alone."""
    body = textwrap.indent(textwrap.dedent(text), "    ")
    more = "from collections import Counter\nTALLY = Counter()\ndef globals_of(x):\n    global ABSENT\n    ABSENT = x\n"
    module = module_of(f"{WORLD}{more}def program(m, **rest):\n{body}", tmp_path / f"{name}.py")
    made: list[SideBySide] = []
    for _ in range(3):
        reply = numbered(0)
        alone = native(module.program, dict, reply)
        state = shown(module)
        fresh(module)
        made.append(SideBySide(module.program, reply, rnd))
        value = made[-1].run({})
        assert repr(value) == repr(alone.value if alone.error is None else alone.error)
        assert shown(module) == state
        fresh(module)
    return made


def fresh(module: Any) -> None:
    module.reset()
    module.TALLY.clear()
    module.__dict__.pop("ABSENT", None)


def shown(module: Any) -> str:
    """The state of the world, with all that the program has changed."""
    named = ("LOG", "COUNTS", "GROUPS", "RECENT", "TOTAL", "NESTED", "TALLY", "LAST")
    return repr([vars(module.BOX), sorted(module.NAMES), [getattr(module, name) for name in named]])


@pytest.mark.parametrize("name", FOUND)
def test_what_does_not_need_it_is_found(name: str, tmp_path: Path) -> None:
    ahead, text = FOUND[name]
    made = runs(text, tmp_path, Prompt())
    assert [run.extra for run in made] == [0] * 3
    assert [run.ahead for run in made[1:]] == [ahead] * 2, [run.barriers for run in made]


@pytest.mark.parametrize("name", [*FOUND, *LEFT])
@pytest.mark.parametrize("seed", range(8))
def test_nothing_else_is_asked(name: str, seed: int, tmp_path: Path) -> None:
    text = LEFT[name] if name in LEFT else FOUND[name][1]
    made = runs(text, tmp_path, Prompt() if seed == 0 else random.Random(seed))
    assert [run.extra for run in made] == [0] * 3, [run.barriers for run in made]
