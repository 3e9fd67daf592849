"""Dicts and lists that are filled on one path and stand beside others: each path has a content of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from teola_plugin.adapters.reader.values import ANYWHERE
from tests.adapters.reader.world import Model, predicted, read

ANSWERS = ("yes", "no", "5", '{"a": 2, "b": "c"}', "", "a yes")


def parsed(text: str) -> Any:
    if not text:
        return {"a": 0.5, "b": 0.5}
    try:
        data, found = json.loads(text), {}
        for name in ("a", "b"):
            found[name] = float(data[name]) if name in data else 0.25
        return found
    except Exception:
        return {"a": 0.0, "b": 1.0}


def walked_in_a_try(m: Any) -> Any:
    sums, bad = {"a": [], "b": []}, 0
    for question in "abc":
        try:
            for name, score in parsed(m.ask(question)).items():
                if name in sums:
                    sums[name].append(f"{score:.2f}")
        except Exception:
            bad += 1
    return sums, bad


def filled_on_both_paths(m: Any) -> Any:
    rows = []
    for question in "abc":
        if "yes" in m.ask(question):
            row = {"x": 1}
            row["y"] = 2
        else:
            row = {}
            row["x"], row["y"] = 3, 4
        for name, value in row.items():
            rows.append(f"{name} {value}")
    return rows


def a_list_of_each_path(m: Any) -> Any:
    def pair(text: str) -> Any:
        found = []
        if "yes" in text:
            found.append("x")
            found.append(text)
            return found
        found.append(text)
        found.append("y")
        return found

    rows = []
    for question in "abc":
        one, two = pair(m.ask(question))
        rows.append(one + two)
    return rows


def changed_on_the_other_path(m: Any) -> Any:
    one, two = {"x": "a"}, {"x": "b"}
    if "yes" in m.ask("q"):
        found = one
        two["x"] = "c"
    else:
        found = two
        one["x"] = "d"
    m.ask(f"{sorted(found)}")
    return found["x"], one["x"], two["x"]


def a_key_of_one_path_alone(m: Any) -> Any:
    one, two = {"x": 1}, {"x": 2}
    if "yes" in m.ask("q"):
        one["y"] = 1
        found = one
    else:
        two["z"] = 2
        found = two
    m.ask(f"y: {'y' in found}")
    m.ask(f"z: {'z' in found}")
    return one, two


def open_on_one_path(m: Any) -> Any:
    one = {"x": 1}
    if "yes" in m.ask("p"):
        one["y"] = 2
    if "a" in m.ask("q"):
        one["z"] = 3
        found = one
    else:
        one.pop("x")
        found = {"x": 5}
    return found.get("x"), found.get("y"), found.get("z"), sorted(one)


def opened_where_the_other_path_has_it(m: Any) -> Any:
    one = {"x": 1}
    if "yes" in m.ask("p"):
        one["w"] = 3
        found = one
    else:
        second = m.ask("q")
        if "a" in second:
            one["y"] = 2
        found = {"x": 5}
    m.ask(f"w: {'w' in found}")
    return found.get("w"), found.get("y")


def grown_unseen_on_one_path(m: Any) -> Any:
    rows, found = ["x"], ["y"]
    if "yes" in m.ask("q"):
        for line in m.ask("r").split("\n"):
            line = line.strip()
            rows.append(line)
        found = rows
    m.ask(f"{len(found)}")
    return found


def grown_unseen_on_the_other_path(m: Any) -> Any:
    rows, found = ["x"], ["y"]
    if "yes" not in m.ask("q"):
        for line in m.ask("r").split("\n"):
            line = line.strip()
            rows.append(line)
        found = rows
    m.ask(f"{len(found)}")
    return found


def changed_by_another_name(m: Any) -> Any:
    one, two = {"x": 1}, {"x": 2}
    if "yes" in m.ask("q"):
        one["x"] = 3
        found = one
    else:
        two["x"] = 4
        found = two
    one["x"] = 5
    m.ask("r")
    return found["x"], one, two


CERTAIN = [walked_in_a_try, filled_on_both_paths, a_list_of_each_path]
ALL = [
    *CERTAIN, changed_on_the_other_path, a_key_of_one_path_alone, open_on_one_path, opened_where_the_other_path_has_it,
    changed_by_another_name, grown_unseen_on_one_path, grown_unseen_on_the_other_path,
]  # fmt: skip


@pytest.mark.parametrize("program", CERTAIN)
def test_all_rounds_are_certain_with_what_each_path_has_filled(program: Callable[..., Any]) -> None:
    assert read(program, Model(lambda question, number: "yes")).certain == ["a", "b", "c"]


@pytest.mark.parametrize("second", ANSWERS)
@pytest.mark.parametrize("first", ANSWERS)
@pytest.mark.parametrize("program", ALL)
def test_a_program_that_fills_on_two_paths_asks_the_same(program: Callable[..., Any], first: str, second: str) -> None:
    def reply(question: str, number: int) -> str:
        return second if question in "bq" else first

    original, fast = Model(reply), Model(reply)
    expected = program(original)
    found, _ = predicted(program, fast)
    assert set(fast.asked) <= set(original.asked)
    if found.barrier is None:
        assert (found.value, sorted(fast.asked)) == (expected, sorted(original.asked))


def test_what_may_be_another_name_of_a_filled_dict_is_not_changed() -> None:
    assert read(changed_by_another_name, Model(lambda question, number: "yes")).barrier is not None


def test_what_a_path_has_filled_is_known_only_as_far_as_both_paths_know_it() -> None:
    def program(m: Any) -> None:
        one = {"x": 1}
        if "yes" in m.ask("p"):
            one["w"] = 3
            found = one
        else:
            found = {"x": 5, "w": 4}
            if "a" in m.ask("q"):
                one["y"] = 2
        found["w"] + 1
        m.ask("z")
        found["y"]
        m.ask("y")

    found = read(program, Model(lambda question, number: "yes"))
    assert "z" in found.certain
    assert "y" not in found.certain


def test_what_a_path_may_have_besides_hides_nothing() -> None:
    def program(m: Any) -> None:
        one = {"x": 1}
        if "yes" in m.ask("p"):
            if "a" in m.ask("q"):
                one["y"] = 2
            found = one
        else:
            found = {"x": 5}
            one["w"] = 3
        found["x"] + 1
        m.ask("z")

    assert "z" in read(program, Model(lambda question, number: "yes")).certain


def test_lists_of_texts_that_either_path_returns_are_joined() -> None:
    def texts_of(reply: str) -> Any:
        found = []
        if "yes" in reply:
            found.append("x")
            return found
        found.append("y")
        found.append(reply)
        return found

    def program(m: Any) -> None:
        found = texts_of(m.ask("a"))
        ",".join(found)
        m.ask("y")
        found[1]
        m.ask("z")

    found = read(program, Model(lambda question, number: "yes"))
    assert found.certain == ["a", "y"]
    assert ANYWHERE.isdisjoint(found.asks[-1].gates)
