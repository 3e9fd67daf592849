"""What is certain of lists, comprehensions and dicts of which some items are not known yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from tests.adapters.reader.world import Model, ModelAsker, predicted, read

ONE, TWO = {"a": "1"}, {"a": "1", "b": "2"}
THREE = {"a": "7", "c": "3"}


def model() -> Model:
    return Model(lambda question, number: "yes" if question in ("q", "r") else f"re {question}")


# --- lists that grow -------------------------------------------------------------------------------------------------


def extended_by_words(m: Any) -> Any:
    found: list[str] = []
    found.extend(m.ask("a").split())
    m.ask("b")
    return m.ask(f"about {len(found)}")


def added_words(m: Any) -> Any:
    found = ["first"]
    found += m.ask("a").split()
    m.ask("b")
    return m.ask(f"about {len(found)} {found[0]}")


def extended_queue(m: Any) -> Any:
    found: deque[str] = deque()
    found.extend(m.ask("a"))
    m.ask("b")
    return m.ask(f"about {len(found)}")


GROWN = [(extended_by_words, "about 2"), (added_words, "about 3 first"), (extended_queue, "about 4")]


@pytest.mark.parametrize(("program", "last"), GROWN, ids=lambda each: getattr(each, "__name__", ""))
def test_what_does_not_need_a_list_that_grows_is_asked_beside(program: Callable[..., Any], last: str) -> None:
    original, fast = model(), model()
    expected = program(original)
    found, rounds = predicted(program, fast)
    assert (found.value, found.error) == (expected, None)
    assert rounds == [["a", "b"], [last]]
    assert original.asked == ["a", "b", last]


@pytest.mark.parametrize("program", [extended_by_words, added_words])
def test_nothing_is_certain_behind_what_perhaps_cannot_be_iterated(program: Callable[..., Any]) -> None:
    def grown(m: Any) -> Any:
        found: list[Any] = []
        if program is added_words:
            found += m.ask("a")
        else:
            found.extend(m.ask("a"))
        return m.ask("b")

    found = read(grown, model(), asker=ModelAsker("any"))
    assert (found.certain, found.possible) == (["a"], ["b"])


# --- comprehensions over what is not known yet -----------------------------------------------------------------------


def whose_length_is_asked_for(m: Any) -> Any:
    m.ask(str(len([word for each in "xy" for word in m.ask(each).split()])))


def kept_if_asked(m: Any) -> Any:
    _ = [word for each in "xy" for word in m.ask(each).split() if m.ask("same")]
    m.ask("b")


def of_sources_that_ask(m: Any) -> Any:
    _ = [part for each in "xy" for word in m.ask(each).split() for part in m.ask("same").split()]
    m.ask("b")


def of_words_of_words(m: Any) -> Any:
    _ = [part.upper() for each in "xy" for word in m.ask(each).split() for part in word.split()]
    m.ask("b")


def of_parts_of_words(m: Any) -> Any:
    _ = [each for each in "xy" for word in m.ask(each).split() for _ in word.split("-")[0]]
    m.ask("b")


def of_first_letters(m: Any) -> Any:
    _ = [word[0] for each in "xy" for word in m.ask(each).split()]
    m.ask("b")


def kept_by_first_letters(m: Any) -> Any:
    _ = [word for each in "xy" for word in m.ask(each).split() if word[0] == "r"]
    m.ask("b")


def of_letters_of_known_texts(m: Any) -> Any:
    _ = [each[0] + word for each in "xy" for word in m.ask(each).split()]
    m.ask("b")


COMPREHENSIONS: list[tuple[Callable[..., Any], list[str], list[str]]] = [
    (whose_length_is_asked_for, ["x", "y"], []),
    (kept_if_asked, ["x"], []),
    (of_sources_that_ask, ["x"], []),
    (of_words_of_words, ["x"], ["y", "b"]),
    (of_parts_of_words, ["x"], ["y", "b"]),
    (of_first_letters, ["x", "y"], ["b"]),
    (kept_by_first_letters, ["x", "y"], ["b"]),
    (of_letters_of_known_texts, ["x", "y"], ["b"]),
]


@pytest.mark.parametrize(
    ("program", "certain", "possible"), COMPREHENSIONS, ids=lambda each: getattr(each, "__name__", "")
)
def test_what_is_certain_of_a_nested_comprehension(
    program: Callable[..., Any], certain: list[str], possible: list[str]
) -> None:
    found = read(program, model())
    assert (found.certain, found.possible) == (certain, possible)
    original, fast = model(), model()
    program(original)
    _, rounds = predicted(program, fast)
    assert rounds[0] == certain
    assert sorted(fast.asked) == sorted(original.asked)


def test_a_condition_that_another_reply_may_spoil_comes_before_the_next_request() -> None:
    def program(m: Any, other: Any) -> Any:
        first = other.ask("first")
        return [word for each in "xy" for word in m.ask(each).split() if word == first[0]]

    found = read(program, model(), model())
    assert (found.certain, found.possible) == (["first", "x"], ["y"])


# --- dicts with keys that are perhaps there --------------------------------------------------------------------------


def either(m: Any) -> dict[str, str]:
    return ONE.copy() if m.ask("q") == "yes" else TWO.copy()


def a_key_of_both(m: Any) -> Any:
    m.ask(either(m)["a"])


def a_key_of_one(m: Any) -> Any:
    m.ask(either(m)["b"])
    m.ask("z")


def a_key_of_none(m: Any) -> Any:
    m.ask(either(m)["c"])
    m.ask("z")


def whether_a_key_is_there(m: Any) -> Any:
    found = either(m)
    if "b" in found:
        m.ask("there")
    if "a" in found:
        m.ask("z")
    if "c" in found:
        m.ask("never")


def a_key_with_a_default(m: Any) -> Any:
    found = either(m)
    m.ask(found.get("a", "none"))
    m.ask(found.get("c", "none"))
    m.ask(found.get("b", "none"))


def changed_afterwards(m: Any) -> Any:
    one, two = ONE.copy(), TWO.copy()
    found = one if m.ask("q") == "yes" else two
    one["a"] = "9"
    m.ask(found["a"])


def spread_over_a_key(m: Any) -> Any:
    found = {"b": "0", **either(m)}
    m.ask(found["b"])
    m.ask(found["a"])


def spread_beside_a_key(m: Any) -> Any:
    found = {**either(m), "c": "3"}
    m.ask(found["c"])
    m.ask(found["b"])
    m.ask("z")


def spread_twice(m: Any) -> Any:
    other = ONE.copy() if m.ask("r") == "yes" else THREE.copy()
    found = {**either(m), **other}
    m.ask(found["b"])
    m.ask("w" if "c" in found else "v")


def spread_over_a_perhaps(m: Any) -> Any:
    other = {"b": "5"} if m.ask("r") == "yes" else {"b": "5", "c": "6"}
    found = {**either(m), **other}
    m.ask(found["b"])
    m.ask(found["a"])


DICTS: list[tuple[Callable[..., Any], list[str], list[str]]] = [
    (a_key_of_both, ["q", "1"], []),
    (a_key_of_one, ["q"], ["2", "z"]),
    (a_key_of_none, ["q"], []),
    (whether_a_key_is_there, ["q", "z"], ["there"]),
    (a_key_with_a_default, ["q"], ["1", "none"]),
    (changed_afterwards, ["q"], []),
    (spread_over_a_key, ["q", "1"], []),
    (spread_beside_a_key, ["q", "3"], ["2", "z"]),
    (spread_twice, ["r", "q"], ["2"]),
    (spread_over_a_perhaps, ["r", "q", "5", "1"], []),
]


@pytest.mark.parametrize(("program", "certain", "possible"), DICTS, ids=lambda each: getattr(each, "__name__", ""))
def test_what_is_certain_of_one_of_two_dicts(
    program: Callable[..., Any], certain: list[str], possible: list[str]
) -> None:
    found = read(program, model())
    assert (found.certain, found.possible) == (certain, possible)


@pytest.mark.parametrize("answer", ["yes", "no"])
@pytest.mark.parametrize("program", [each for each, *_ in DICTS if each is not changed_afterwards])
def test_a_program_with_one_of_two_dicts_asks_the_same(program: Callable[..., Any], answer: str) -> None:
    original, fast = (Model(lambda question, number: answer) for _ in range(2))
    expected = None
    try:
        program(original)
    except KeyError as e:
        expected = e
    found, _ = predicted(program, fast)
    assert found.is_known
    assert repr(found.error) == repr(expected)
    assert sorted(fast.asked) == sorted(original.asked)
