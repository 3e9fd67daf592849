"""Reading on behind what is not read in a loop: up to the end of the round, and again in the next round."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from teola_plugin.adapters.reader import prediction
from tests.adapters.reader.resumed import SideBySide
from tests.adapters.reader.test_resuming import (
    Prompt,
    numbered,
    program_of,
    sides,
    tests_are_no_program,
)

__all__ = ["tests_are_no_program"]

ROUNDS = {
    "requests of an inner loop": (6, """
        out = []
        for name in ("a", "b"):
            text = unread(lambda: name + "!")
            for part in ("x", "y", "z"):
                out.append(m.ask(f"{part} {text}"))
        return out
    """),
    "two requests": (6, """
        out = []
        for name in docs + ["b", "c"]:
            text = unread(lambda: name)
            out.append((m.ask(f"one {text}"), m.ask(f"two {text}")))
        return out
    """),
    "rounds without a request": (4, """
        out = []
        for rows in ([], ["p", "q"], [], ["r", "s"]):
            found = unread(lambda: rows)
            out += [m.ask(row) for row in found]
        return out
    """),
    "a request before it, which is its round's": (5, """
        out = []
        for name in ("a", "b"):
            first = m.ask(f"first {name}")
            text = unread(lambda: name)
            out.append((first, m.ask(f"one {text}"), m.ask(f"two {text}")))
        return out
    """),
    "two of them": (12, """
        out = []
        for name in ("a", "b", "c"):
            rows = unread(lambda: [name, name + "2"])
            out += [m.ask(row) for row in rows]
            more = unread(lambda: ["more " + row for row in rows])
            out += [m.ask(row) for row in more]
        return out
    """),
    "what is behind the loop": (9, """
        out = []
        for name in ("a", "b", "c"):
            rows = unread(lambda: [name, name + "2"])
            out += [m.ask(row) for row in rows]
        return out + [m.ask(f"{each} behind") for each in docs + words + ["c"]]
    """),
    "a loop in a loop": (8, """
        out = []
        for name in ("a", "b"):
            for number, part in enumerate(("x", "y")):
                text = unread(lambda: f"{name}{part}{number}")
                out += [m.ask(f"{text} {each}") for each in (1, 2)]
        return out
    """),
    "what breaks the loop": (3, """
        out = []
        for name in ("a", "b", "c"):
            rows = unread(lambda: [name, "x"])
            out += [m.ask(row) for row in rows]
            if len(out) > 1:
                break
        else:
            m.ask("else")
        return m.ask("behind")
    """),
    "an error that is caught in a round": (4, """
        out = []
        for name in ("a", "", "c"):
            try:
                rows = unread(lambda: [name[0], name])
                out += [m.ask(row + "!") for row in rows]
            except IndexError:
                continue
        return out
    """),
    "the first round of a loop with a condition": (2, """
        out = []
        while len(out) < 4:
            rows = unread(lambda: [len(out), "x"])
            out += [m.ask(f"{row}") for row in rows]
        return out
    """),
    "what the loop is over": (6, """
        out = []
        for name in unread(lambda: ["a", "b"]):
            out.append([m.ask(f"{each} {name}") for each in (1, 2, 3)])
        return out
    """),
    "what the loop is over, which is made as it goes": (9, """
        out = []
        for number, name in unread(lambda: enumerate(iter("ab"))):
            out.append([m.ask(f"{each} {name}{number}") for each in (1, 2, 3)])
            if number:
                break
        else:
            m.ask("else")
        return [m.ask(f"{each} behind") for each in (1, 2, 3)]
    """),
    "what the loop is over, in a loop, and more": (12, """
        out = []
        for part in ("x", "y"):
            for name in unread(lambda: ["a", "b"]):
                text = unread(lambda: name + part)
                out += [m.ask(f"{each} {text}") for each in (1, 2, 3)]
        return out
    """),
    "an argument of a function": (6, """
        out = []
        for name in ("a", "b"):
            found = ask_all(m, unread(lambda: [name, "x", "y"]))
            out += found
        return out
    """),
}  # fmt: skip
"""Programs, with how many requests are found ahead of the run, or as the run makes them, from the second time on."""

LEFT = {
    "a list in a list of an object": """
        inner, box = [], Box()
        box.rows.append(inner)
        for name in ("a", "b"):
            text = unread(lambda: name)
            inner.append(m.ask(f"one {text}"))
            inner.append(m.ask(f"two {box.rows}"))
        return inner
    """,
    "a list that an object holds, too": """
        box = Box()
        rows = box.rows
        for name in ("a", "b"):
            text = unread(lambda: name)
            rows.append(m.ask(f"one {text}"))
            rows.append(m.ask(f"two {box.rows}"))
        return rows
    """,
    "equal requests in each round": """
        out = []
        for name in ("a", "b", "c", "d"):
            text = unread(lambda: "same")
            if m.ask(text) == "yes":
                out.append(m.ask("then"))
            out.append(m.ask(f"last {m.ask(text)}"))
        return out
    """,
    "equal items": """
        out = []
        for name in ("a", "b", "a", "a"):
            text = unread(lambda: next(ROUNDS))
            for each in text:
                out.append(m.ask(each))
            if out:
                out.append(m.ask("end"))
        return out
    """,
    "a list that what is not read changes": """
        out, names = [], ["a", "b", "c"]
        for name in names:
            unread(lambda: names.append(names.pop(0)))
            out.append(m.ask(name))
            out.append(m.ask(f"{name} again"))
            if len(out) > 8:
                break
        return out
    """,
    "a list that the body changes": """
        out, names = [], ["a", "b", "c"]
        for name in names:
            text = unread(lambda: name)
            if len(names) > 1:
                names.remove(name)
            out.append(m.ask(text))
            out.append(m.ask(f"{text} {names}"))
        return out
    """,
    "a list that is turned in rounds without requests": """
        out, names = [], ["a", "b"]
        for name in names:
            m.ask(f"begin {name}") if out else None
            turned = unread(lambda: names.reverse() or names[0] == "a")
            if turned:
                out.append(m.ask(name))
                out.append(m.ask("end"))
        return out
    """,
    "a variable of the loop that the body sets": """
        out = []
        for name in ("a", "b"):
            rows = unread(lambda: ["x", "x"])
            for row in rows:
                name = "".join([row, "fresh"])
                out.append(m.ask(name))
        return out
    """,
    "a variable of the loop that a function sets": """
        def change():
            nonlocal name
            name = "".join(["f", "resh"])
        out = []
        for name in ("a", "b"):
            rows = unread(lambda: ["x", "x"])
            for row in rows:
                unread(lambda: change())
                out.append(m.ask(name))
        return out
    """,
    "one variable of two loops": """
        out = []
        for name in ("a", "b"):
            for name in ("x", "y", "x"):
                text = unread(lambda: name)
                out.append(m.ask(text))
                out.append(m.ask("same"))
            rows = unread(lambda: [1, 2])
            for row in rows:
                out.append(m.ask(f"{row} {name}"))
        return out
    """,
    "what is not read asks": """
        out = []
        for name in ("a", "b", "c"):
            rows = unread(lambda: [m.ask("x"), m.ask(name)])
            for row in rows:
                out.append(m.ask("x"))
                out.append(m.ask(f"{row}"))
        return out
    """,
    "requests that hang on the round": """
        out, number = [], 0
        for name in ("a", "b", "c"):
            number += 1
            text = unread(lambda: "t")
            for each in range(number):
                out.append(m.ask(text))
            number += out.count("yes")
        return m.ask(str(number))
    """,
    "a generator as what the loop is over": """
        out = []
        for name in unread(lambda: (each for each in "abc")):
            text = unread(lambda: name)
            out.append(m.ask(text))
            out.append(m.ask("same"))
            if "yes" in out:
                break
        return out
    """,
    "a loop in a function that is called in a loop": """
        out = []
        for name in ("a", "b"):
            for part in ("x", "y"):
                out.append(judge(m, [name, part]))
                out.append(m.ask("same"))
        return out
    """,
    "a function that calls itself": """
        def down(names, number):
            for name in names:
                text = unread(lambda: name)
                m.ask(text)
                if number:
                    down(names, number - 1)
                m.ask("same")
        down(["a", "b"], 2)
    """,
    "a parameter that rounds change": """
        for name in ("a", "b", "c"):
            text = unread(lambda: name)
            m.ask(f"{text}{docs}")
            m.ask(f"{text}{words}")
            docs = docs + [text]
            words.append(name)
        return docs
    """,
    "an error that is caught around the loop": """
        out = []
        try:
            for name in ("a", "b", ""):
                rows = unread(lambda: [name[0], name])
                for row in rows:
                    out.append(m.ask(row))
        except IndexError:
            out.append(m.ask("caught"))
        finally:
            out.append(m.ask("at last"))
        return out
    """,
    "a finally block in each round": """
        out = []
        for name in ("a", "b", "c"):
            try:
                text = unread(lambda: name)
                if m.ask(text) == "yes":
                    continue
                m.ask("further")
            finally:
                out.append(m.ask("at last"))
        return out
    """,
    "a round that returns": """
        for name in ("a", "b", "c"):
            text = unread(lambda: name)
            found = m.ask(text)
            if found in ("yes", "a"):
                return m.ask("found")
            m.ask("none")
        return m.ask("behind")
    """,
    "a loop over replies": """
        names = [m.ask("a"), m.ask("b")]
        for name in names:
            text = unread(lambda: "x")
            m.ask(text)
            m.ask(f"{text}{name}")
        return names
    """,
    "calls of two functions in one round": """
        out = []
        for name in ("a", "b", "c"):
            out.append(judge(m, [name]) + judge(m, [name, "x"]))
            add(m, out)
        return out
    """,
    "rounds of a comprehension": """
        return [judge(m, [name, "x"]) for name in ("a", "b", "a")]
    """,
    "what the loop is over, changed by rounds": """
        out = []
        for name in unread(lambda: SHARED):
            if name in ("a", "x"):
                SHARED.append("a")
                SHARED.remove("a")
                continue
            out.append(m.ask("same"))
            out.append(m.ask(name))
        return out
    """,
    "what the loop is over, which asks": """
        out = []
        for name in unread(lambda: (m.ask(each) for each in ("x", "x", "y"))):
            out.append(m.ask("x"))
            out.append(m.ask(f"{name}"))
        return out
    """,
    "what is behind the loop, and counts the rounds": """
        out = []
        for name in unread(lambda: ["a", "b", "c"]):
            out.append(m.ask(name))
            out.append(m.ask("same"))
        return m.ask(f"{len(out)}")
    """,
    "what the loop is over, with equal items": """
        out = []
        for name in unread(lambda: ["a", "a", "b", "a"]):
            out.append(m.ask(name))
            if "yes" in out:
                out.append(m.ask("more"))
            out.append(m.ask(name))
        else:
            out.append(m.ask(name))
        return out
    """,
    "what the loop is over, which raises": """
        out = []
        try:
            for name in unread(lambda: (1 // each for each in (1, 1, 0, 1))):
                out.append(m.ask(f"{name}"))
                out.append(m.ask("same"))
        except ZeroDivisionError:
            out.append(m.ask("caught"))
        return out
    """,
    "a store outside of the function in each round": """
        for name in ("a", "b", "c"):
            rows = unread(lambda: BOX.count() or [name])
            BOX.rows = rows
            m.ask(f"{BOX.number} {BOX.rows}")
            m.ask(f"{BOX.number} again")
    """,
    "what is not read in some rounds": """
        out = []
        for number in range(4):
            if number == 2:
                unread(lambda: None)
            out.append(m.ask(f"{number}"))
        return out
    """,
    "what is not read in some rounds, and equal requests": """
        out = []
        for number in range(5):
            if number == 2:
                unread(lambda: out.append("y"))
            m.ask("same")
            if m.ask("same") == "yes":
                m.ask(f"{number}")
            if len(out) > 1 and number == 3:
                break
            out.append(m.ask("same"))
        return out, m.ask("same")
    """,
    "what is not read in some rounds, and equal items": """
        out = []
        for name in ("a", "b", "a", "b", "a"):
            if len(out) == 2:
                unread(lambda: None)
            out.append(m.ask(name))
            m.ask("same")
            if len(out) == 3:
                break
        return out
    """,
    "a function with a default of the round": """
        for name in ("a", "b", "c"):
            tell = lambda text, name=name: m.ask(f"{text} {name}")
            text = unread(lambda: "t")
            m.ask(text + name)
            tell("x")
            tell("y")
    """,
    "a function of the round": """
        for name in ("a", "b", "c"):
            if name == "a":
                def tell(): return m.ask("one")
            else:
                def tell(): return m.ask("two " + name)
            text = unread(lambda: "t")
            m.ask(text + name)
            tell()
            m.ask("end " + name)
    """,
    "a part of a function of the round": """
        for name in ("a", "b", "c"):
            tell = functools.partial(ask_with, m, "t " + name)
            text = unread(lambda: "t")
            m.ask(text + name)
            tell(["x", "y"])
    """,
    "a method of an object of the round": """
        for name in ("a", "b", "c"):
            box = Box()
            box.rows = [name, "x"]
            tell = box.rows.copy
            text = unread(lambda: "t")
            m.ask(text + name)
            for row in tell():
                m.ask(row)
    """,
    "an error of the round": """
        try:
            for name in ("a", "b", "c"):
                try:
                    int(name)
                except ValueError:
                    text = unread(lambda: "t")
                    m.ask(text + name)
                    if name == "b":
                        raise
        except ValueError as e:
            m.ask(str(e))
            m.ask("end")
    """,
    "a finally block with a result of the round": """
        def first(names):
            for name in names:
                try:
                    if name != "a":
                        return name
                finally:
                    text = unread(lambda: "t")
                    m.ask(text + name)
                    if name == "a":
                        m.ask("x")
        found = first(["a", "b", "c"])
        m.ask("got " + found)
        return m.ask("end " + found)
    """,
    "a finally block of another round": """
        def first(names):
            for name in names:
                try:
                    if name == "a":
                        continue
                    return "r " + name
                finally:
                    text = unread(lambda: "t")
                    m.ask(text + name)
                    m.ask("x" + name)
        return m.ask(f"got {first(['a', 'b', 'c'])}")
    """,
    "a context of the round": """
        @contextlib.contextmanager
        def noted(name):
            yield
            m.ask("end " + name)
        for name in ("a", "b", "c"):
            with noted(name):
                text = unread(lambda: "t")
                m.ask(text + name)
                m.ask("x" + name)
    """,
    "a context of a class": """
        for name in ("a", "b", "c"):
            with Noted(m, name) as noted:
                text = unread(lambda: "t")
                m.ask(text + name)
                m.ask("x" + name)
        return m.ask("end")
    """,
    "a context of a class around": """
        with Noted(m, "none") as noted:
            for name in ("a", "b", "c"):
                text = unread(lambda: "t")
                m.ask(text + name)
                noted.name += name
                m.ask("x" + name)
                if name == "b":
                    break
        return m.ask("end")
    """,
    "what is not read before a loop, whose first round asks nothing": """
        rows = unread(lambda: [[], ["x"], ["y"]])
        for number, row in enumerate(rows):
            if number == 0:
                unread(lambda: None)
            elif number == 1:
                unread(lambda: None)
            for each in row:
                m.ask(each)
                m.ask("same")
    """,
    "what is not read before a loop, which begins later": """
        unread(lambda: None)
        for number in range(4):
            if unread(lambda: number > 0) if number < 2 else True:
                m.ask(f"{number}")
                m.ask("same")
    """,
    "a number outside that each round changes": """
        for name in ("a", "a", "a"):
            number = BOX.number
            rows = unread(lambda: BOX.count() or ["x"])
            for row in rows:
                m.ask(row)
                m.ask(f"{BOX.number} {number}")
    """,
    "a number outside in a call": """
        def tell(number, found):
            return m.ask(f"{number} {found}")
        for name in ("a", "a", "a"):
            tell(BOX.number, judge(m, ["x"]))
            m.ask("same")
            unread(lambda: BOX.count())
    """,
    "a generator over the rounds": """
        def rounds():
            for name in ("a", "b", "c"):
                m.ask("make " + name)
                yield name
        for name in rounds():
            text = unread(lambda: "t")
            m.ask(text + name)
            m.ask("x" + name)
            if name == "b":
                break
        return m.ask("end")
    """,
    "an iterator beside the loop": """
        names = iter(["a", "b", "c", "d"])
        for number in range(3):
            text = unread(lambda: "t")
            m.ask(f"{text}{number}")
            m.ask(next(names))
            m.ask("same")
    """,
}
"""Programs that go on as far as it is certain, or not at all."""


@pytest.mark.parametrize("name", ROUNDS)
def test_the_rest_of_a_round_is_found(name: str, tmp_path: Path) -> None:
    ahead, text = ROUNDS[name]
    program = program_of(text, tmp_path, "rounds")
    runs = sides(program, {"docs": ["a"], "words": ["b"]}, Prompt())
    assert [run.ahead for run in runs[1:]] == [ahead] * 2, [run.barriers for run in runs]
    assert [run.extra for run in runs] == [0] * 3


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("is_beside", [False, True])
def test_what_hangs_on_another_round_is_left(name: str, seed: int, is_beside: bool, tmp_path: Path) -> None:
    program = program_of(LEFT[name], tmp_path, "left")
    program.__globals__["SHARED"] = ["x", "a", "b", "c"]
    rnd = Prompt() if seed == 0 else random.Random(seed)
    runs = sides(program, {"docs": ["a"], "words": ["b"]}, rnd, is_beside=is_beside)
    assert [run.extra for run in runs] == [0] * 3


@pytest.mark.parametrize("name", ROUNDS)
@pytest.mark.parametrize("seed", range(1, 8))
def test_the_rest_of_a_round_is_found_at_other_times(name: str, seed: int, tmp_path: Path) -> None:
    program = program_of(ROUNDS[name][1], tmp_path, "rounds")
    runs = sides(program, {"docs": ["a"], "words": ["b"]}, random.Random(seed))
    assert [run.extra for run in runs] == [0] * 3


def test_rounds_of_one_request_are_not_read_for_long(tmp_path: Path) -> None:
    program = program_of(
        """
        for number in range(50):
            text = unread(lambda: number)
            m.ask(f"{text}")
        return [m.ask(f"behind {each}") for each in range(3)]
        """,
        tmp_path,
        "many",
    )
    side: Any = None
    for _ in range(3):
        side = SideBySide(program, numbered(0), Prompt())
        side.run({"docs": [], "words": []})
        assert side.extra == 0
    assert len(side.barriers) < 5 * prediction.MAX_IN_VAIN
    assert side.ahead >= 3
