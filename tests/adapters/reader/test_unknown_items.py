"""What is certain of lists, comprehensions and dicts of which some items are not known yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.adapters.reader.world import Model, ModelAsker, predicted, read

ONE, TWO = {"a": "1"}, {"a": "1", "b": "2"}
THREE = {"a": "7", "c": "3"}


def model() -> Model:
    return Model(lambda question, number: "yes" if question in ("q", "r") else f"re {question}")


# --- functions called for each item -----------------------------------------------------------------------------------


def score(row: Any) -> Any:
    found = 0
    if "docs" in row["link"]:
        found += 100
    return found


def label(row: Any) -> Any:
    if row.get("title"):
        return row["title"]
    return "none"


def sorted_by_a_score(m: Any) -> Any:
    found = [row["link"] for row in sorted(m.ask("a"), key=score, reverse=True)[:2]]
    return m.ask("b"), m.ask(f"about {found}")


def sorted_by_what_may_not_compare(m: Any) -> Any:
    rows = [row for row in m.ask("a") if "x" not in row["link"]]
    found = sorted(rows, key=label)
    return m.ask("b"), m.ask(f"about {len(found)}")


def best_by_a_score(m: Any) -> Any:
    found = max(m.ask("a"), key=score, default=None)
    return m.ask("b"), m.ask(f"about {found}")


def mapped_by_a_score(m: Any) -> Any:
    found: list[Any] = []
    found.extend(map(score, m.ask("a")))
    return m.ask("b"), m.ask(f"about {found}")


def joined_labels(m: Any) -> Any:
    found = ", ".join(map(label, m.ask("a")))
    return m.ask("b"), m.ask(f"about {found}")


def first_label(m: Any) -> Any:
    found = next(map(label, m.ask("a")), None)
    return m.ask("b"), m.ask(f"about {found}")


def chosen_by_a_score(m: Any) -> Any:
    found = [row["link"] for row in filter(score, m.ask("a"))]
    return m.ask("b"), m.ask(f"about {found}")


CALLED = [
    sorted_by_a_score, sorted_by_what_may_not_compare, best_by_a_score, mapped_by_a_score, joined_labels, first_label,
    chosen_by_a_score,
]  # fmt: skip
ROWS = [{"link": "docs/1"}, {"link": "x"}, {"link": "docs/2", "title": "two"}]


@pytest.mark.parametrize("rows", [ROWS, [], "y", None], ids=["rows", "none", "text", "nothing"])
@pytest.mark.parametrize("program", CALLED)
def test_a_function_with_branches_is_called_for_unknown_items(program: Callable[..., Any], rows: Any) -> None:
    def tried(m: Any) -> Any:
        try:
            return program(m)
        except Exception as e:
            return m.ask("b"), type(e).__name__

    original, fast = (Model(lambda question, number: rows if question == "a" else f"re {question}") for _ in range(2))
    expected = tried(original)
    found, rounds = predicted(tried, fast, asker=ModelAsker("any"))
    assert (found.value, found.error) == (expected, None)
    assert sorted(fast.asked) == sorted(original.asked)
    assert rounds[0] == ["a"]
    found = read(program, fast, asker=ModelAsker("any"))
    assert [each.request.payload for each in found.asks] == ["a", "b"]


def called_later(m: Any) -> Any:
    seen: list[Any] = []

    def note(row: Any) -> Any:
        seen.append(1)
        return row

    rows = map(note, m.ask("a"))
    m.ask(f"before {seen}")
    list(rows)
    m.ask(f"behind {seen}")


def asked_for_each(m: Any) -> Any:
    def judged(row: Any) -> Any:
        return m.ask("good?") if row else 0

    sorted(m.ask("a"), key=judged)
    m.ask("b")


def note(row: Any) -> str:
    return repr("x")


def noted_for_each(m: Any) -> Any:
    seen: list[Any] = []

    def seeing(row: Any) -> int:
        seen.append(1)
        return 1

    max(m.ask("a"), key=seeing)
    m.ask(f"{seen}")


class Noting:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def note(self, row: Any) -> int:
        self.seen.append(1)
        return 1


def noted_by_a_method(m: Any) -> Any:
    noting = Noting()
    list(map(noting.note, m.ask("a")))
    m.ask(f"{noting.seen}")


def noted_by_a_part(m: Any) -> Any:
    noting = Noting()
    sorted(m.ask("a"), key=partial(Noting.note, noting))
    m.ask(f"{noting.seen}")


def kept_by_append(m: Any) -> Any:
    seen: list[Any] = []
    list(map(seen.append, m.ask("a")))
    m.ask(f"{seen}")


def perhaps_not_sorted(m: Any) -> Any:
    found = "sorted"
    rows = m.ask("a")
    try:
        sorted(rows, key=note)
    except Exception:
        found = "not sorted"
    m.ask(found)


def perhaps_not_mapped(m: Any) -> Any:
    found = "mapped"
    rows = m.ask("a")
    try:
        map(note, rows)
    except Exception:
        found = "not mapped"
    m.ask(found)


def perhaps_not_mapped_to_the_end(m: Any) -> Any:
    found = "mapped"
    rows = map(note, m.ask("a"))
    try:
        list(rows)
    except Exception:
        found = "not mapped"
    m.ask(found)


def perhaps_not_the_first(m: Any) -> Any:
    found = "first"
    rows = map(note, m.ask("a"))
    try:
        next(rows, None)
    except Exception:
        found = "no first"
    m.ask(found)


@pytest.mark.parametrize(
    ("program", "asked"),
    [
        (called_later, ["a", "before []"]),
        (asked_for_each, ["a", "good?", "b"]),
        (noted_for_each, ["a"]),
        (noted_by_a_method, ["a"]),
        (noted_by_a_part, ["a"]),
        (kept_by_append, ["a"]),
        (perhaps_not_sorted, ["a"]),
        (perhaps_not_mapped, ["a"]),
        (perhaps_not_mapped_to_the_end, ["a"]),
        (perhaps_not_the_first, ["a"]),
    ],
)
def test_a_function_is_called_as_often_and_when_the_items_are_made(
    program: Callable[..., Any], asked: list[str]
) -> None:
    found = read(program, model(), asker=ModelAsker("any"))
    assert [each.request.payload for each in found.asks] == asked


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


def test_nothing_is_certain_behind_a_loop_over_what_perhaps_cannot_be_iterated() -> None:
    def looped(m: Any) -> Any:
        for _ in m.ask("a"):
            pass
        return m.ask("b")

    found = read(looped, model(), asker=ModelAsker("any"))
    assert (found.certain, found.possible) == (["a"], ["b"])


def _grown_by(m: Any) -> list[str]:
    found: list[str] = []
    for word in m.ask("a").split():
        found.append(word + "!")  # noqa: PERF401
    return found


def extended_by_a_list(m: Any) -> Any:
    found = ["first"]
    found.extend(_grown_by(m))
    m.ask("b")
    return m.ask(f"about {len(found)}")


def extended_by_a_comprehension(m: Any) -> Any:
    found = ["first"]
    found.extend([word for word in _grown_by(m)])  # noqa: C416
    m.ask("b")
    return m.ask(f"about {len(found)}")


def looped_over(m: Any) -> Any:
    size = 1
    for _ in _grown_by(m):
        size += 1
    m.ask("b")
    return m.ask(f"about {size}")


@pytest.mark.parametrize("program", [extended_by_a_list, extended_by_a_comprehension, looped_over])
def test_a_list_whose_elements_are_not_known_can_be_iterated(program: Callable[..., Any]) -> None:
    original, fast = model(), model()
    expected = program(original)
    found, rounds = predicted(program, fast)
    assert (found.value, found.error) == (expected, None)
    assert rounds == [["a", "b"], ["about 3"]] == [original.asked[:2], original.asked[2:]]


# --- what is one of two ----------------------------------------------------------------------------------------------


def the_same_list(m: Any) -> Any:
    one, two = [1], [1]
    if m.ask("q") == "yes":
        two = one
    return m.ask("same" if one is two else "other")


def the_same_list_in_a_tuple(m: Any) -> Any:
    one, two = [1], ([1], 2)
    for _ in m.ask("q").split():
        two = (one, 2)
    return m.ask("same" if two[0] is one else "other")


def another_kind_of_key(m: Any) -> Any:
    found: dict[Any, str] = {1: "a"}
    if m.ask("q") == "yes":
        found = {True: "a"}
    return m.ask(str(found))


def another_kind_of_key_behind_a_loop(m: Any) -> Any:
    found: dict[Any, str] = {0.0: "a"}
    for _ in m.ask("q").split():
        found = {-0.0: "a"}
    return m.ask(str(found))


def a_key_that_is_changed_in_place(m: Any) -> Any:
    found: dict[Any, str] = {(1, 2): "a"}
    if m.ask("q") == "yes":
        found.clear()
        found[1.0, 2] = "a"
    return m.ask(str(found))


def another_kind_of_element(m: Any) -> Any:
    found: set[Any] = {(0,)}
    for _ in m.ask("q").split():
        found.clear()
        found.add((False,))
    return m.ask(str(found))


def the_text_of_an_error(m: Any) -> Any:
    error = ValueError([0])
    for _ in m.ask("q").split():
        error.args[0].append(1)
    return m.ask(str(error))


ONE_OF_TWO = [
    the_same_list, the_same_list_in_a_tuple, another_kind_of_key, another_kind_of_key_behind_a_loop,
    a_key_that_is_changed_in_place, another_kind_of_element, the_text_of_an_error,
]  # fmt: skip


@pytest.mark.parametrize("program", ONE_OF_TWO)
def test_what_is_one_of_two_that_seem_equal_is_not_known(program: Callable[..., Any]) -> None:
    original, fast = model(), model()
    expected = program(original)
    found, rounds = predicted(program, fast)
    assert (found.value, found.error) == (expected, None)
    assert rounds[0] == ["q"]
    assert fast.asked == original.asked


# --- rounds of loops over what is not known yet ----------------------------------------------------------------------


def with_a_list_of_its_own(m: Any) -> Any:
    found = []
    for each in "xy":
        for word in m.ask(each).split():
            own = []
            own.append(word)
            found.append(own)
    return m.ask(f"about {len(found)}")


def _shown(word: str) -> str:
    marked = word + "!"
    shown = marked + "?"
    return shown  # noqa: RET504


def with_calls_of_a_function(m: Any) -> Any:
    found = []
    for each in "xy":
        for number, word in enumerate(m.ask(each).split()):
            found.append({"number": number, "word": _shown(word)})
    return m.ask(f"about {len(found)}")


def with_requests(m: Any) -> Any:
    found = []
    for each in "xy":
        for word in m.ask(each).split():
            said = m.ask(f"{word} of {each}")
            found.append(said)
    return m.ask(f"about {len(found)}")


@pytest.mark.parametrize("program", [with_a_list_of_its_own, with_calls_of_a_function, with_requests])
def test_what_a_round_makes_for_itself_holds_up_no_reading(program: Callable[..., Any]) -> None:
    original, fast = model(), model()
    expected = program(original)
    found, rounds = predicted(program, fast)
    assert (found.value, found.error) == (expected, None)
    assert rounds[0] == ["x", "y"]
    assert sorted(fast.asked) == sorted(original.asked)


def _shifted(m: Any) -> Any:
    """What is known behind one or two rounds is not known behind more."""
    first, last, now = "start", "start", "start"
    for word in m.ask("x y z").split():
        first, last, now = last, now, word
    return m.ask(f"about {first} {last}")


def _shift(held: dict[str, str], word: str) -> None:
    held["first"] = held["last"]
    held["last"] = held["now"]
    held["now"] = word


def _started() -> dict[str, str]:
    return dict.fromkeys(("first", "last", "now"), "start")


def _shifted_in_a_dict(m: Any) -> Any:
    held = _started()
    for word in m.ask("x y z").split():
        _shift(held, word)
    return m.ask(f"about {held['first']}")


def _shifted_behind_a_change(m: Any) -> Any:
    """The dict is reached by a name that the round gives to another."""
    seen = [_started()]
    for word in m.ask("x y z").split():
        own = seen.pop()
        _shift(own, word)
        seen = [own]
    return m.ask(f"about {seen[0]['first']}")


def _shifted_by_a_closure(m: Any) -> Any:
    def made() -> tuple[Callable[[str], None], Callable[[], str]]:
        first = last = now = "start"

        def shift(word: str) -> None:
            nonlocal first, last, now
            first, last, now = last, now, word

        return shift, lambda: first

    shift, held = made()
    for word in m.ask("x y z").split():
        shift(word)
    return m.ask(f"about {held()}")


def _shifted_in_a_default(m: Any) -> Any:
    def made() -> tuple[Callable[[str], None], Callable[[], str]]:
        held = _started()
        return (lambda word, own=held: _shift(own, word)), lambda own=held: own["first"]

    shift, get = made()
    for word in m.ask("x y z").split():
        shift(word)
    return m.ask(f"about {get()}")


class _Shift:
    def __init__(self) -> None:
        self.first = self.last = self.now = "start"

    def shift(self, word: str) -> None:
        self.first, self.last, self.now = self.last, self.now, word


def _shifted_by_an_object(m: Any) -> Any:
    shift = _Shift()
    for word in m.ask("x y z").split():
        shift.shift(word)
    return m.ask(f"about {shift.first}")


def _shifted_by_a_method(m: Any) -> Any:
    def made() -> Any:
        held = _started()
        return held.update, held.get

    shift, get = made()
    for word in m.ask("x y z").split():
        shift({"first": get("last")})
        shift({"last": get("now")})
        shift({"now": word})
    return m.ask(f"about {get('first')}")


def _moved_on_by_a_closure(m: Any) -> Any:
    """More rounds change what is seen than the rounds in which the loop's own variable comes to be unknown."""

    def made() -> tuple[Callable[[], None], Callable[[], str]]:
        a = b = c = d = e = "start"

        def move() -> None:
            nonlocal a, b, c, d, e
            a, b, c, d, e = b, c, d, e, "end"

        return move, lambda: a

    move, first = made()
    for _ in m.ask("1 2 3 4 5").split():
        move()
    return m.ask(f"about {first()}")


def _moved_on_by_a_partial(m: Any) -> Any:
    def move(held: list[str]) -> None:
        held[:] = [*held[1:], "end"]

    def made() -> tuple[Callable[[], None], Callable[[], list[str]]]:
        held = ["start"] * 5
        return partial(move, held), held.copy

    moved, held = made()
    for _ in m.ask("1 2 3 4 5").split():
        moved()
    return m.ask(f"about {held()[0]}")


class _Line:
    def __init__(self) -> None:
        self.a = self.b = self.c = self.d = self.e = "start"

    def move(self) -> None:
        self.a, self.b, self.c, self.d, self.e = self.b, self.c, self.d, self.e, "end"


def _moved_on_in_an_object(m: Any) -> Any:
    line = _Line()
    for _ in m.ask("1 2 3 4 5").split():
        line.move()
    return m.ask(f"about {line.a}")


def _grown_in_place(m: Any) -> Any:
    held: dict[str, list[str]] = {"a": []}
    for word in m.ask("x").split():
        held["a"].append(word)
    return m.ask(f"about {held['a']}")


def _kept_from_the_round_before(m: Any) -> Any:
    last: list[str] = []
    for word in m.ask("x").split():
        last.append(word)
        last = [word]
    return m.ask(f"about {last}")


def _grown_by_a_closure(m: Any) -> Any:
    def made() -> Callable[[str], list[str]]:
        held: list[str] = []

        def add(word: str) -> list[str]:
            held.append(word)
            return held

        return add

    add = made()
    for word in m.ask("x").split():
        add(word)
    return m.ask(f"about {add('end')}")


def _counted_by_a_closure(m: Any) -> Any:
    def made() -> Callable[[], int]:
        count = 0

        def add() -> int:
            nonlocal count
            count += 1
            return count

        return add

    add = made()
    for _ in m.ask("x").split():
        add()
    return m.ask(f"about {add()}")


def _grown_by_a_method(m: Any) -> Any:
    found: list[str] = []
    add = found.append
    for word in m.ask("x").split():
        add(word)
    return m.ask(f"about {found}")


class _Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


def _counted_by_an_object(m: Any) -> Any:
    counter = _Counter()
    for _ in m.ask("x").split():
        counter.add()
    return m.ask(f"about {counter.count}")


def _grown_in_an_iterator(m: Any) -> Any:
    held: list[str] = []
    items = iter([held])
    for word in m.ask("x").split():
        for each in items:
            each.append(word)
    return m.ask(f"about {held}")


def _shifted_places(m: Any) -> Any:
    places, now, then, last = ["x", "y"], 0, 1, ""
    words = m.ask("q").split()
    for _ in words:
        pass
    for _ in words:
        last = places[now]
        now, then = then, 5  # raises in the third round
    return m.ask("z"), last


ROUNDS = [
    _shifted, _shifted_in_a_dict, _shifted_behind_a_change, _shifted_by_a_closure, _shifted_in_a_default,
    _shifted_by_an_object, _shifted_by_a_method, _grown_in_place, _kept_from_the_round_before, _grown_by_a_closure,
    _counted_by_a_closure, _grown_by_a_method, _counted_by_an_object, _grown_in_an_iterator, _moved_on_by_a_closure,
    _moved_on_by_a_partial, _moved_on_in_an_object, _shifted_places,
]  # fmt: skip


@pytest.mark.parametrize("program", ROUNDS)
def test_what_rounds_change_is_not_known_until_they_are_over(program: Callable[..., Any]) -> None:
    original, fast = model(), model()
    expected = program(original)
    found, rounds = predicted(program, fast)
    assert (found.value, found.error) == (expected, None)
    assert len(rounds[0]) == 1
    assert fast.asked == original.asked


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


def kept_by_a_count(m: Any) -> Any:
    count = 0

    def counted() -> bool:
        nonlocal count
        count += 1
        return True

    _ = [letter for _ in m.ask("x").split() if counted() for letter in "ab"]
    m.ask(f"about {count}")


COMPREHENSIONS: list[tuple[Callable[..., Any], list[str], list[str]]] = [
    (whose_length_is_asked_for, ["x", "y"], []),
    (kept_if_asked, ["x", "y", "b"], ["same"]),
    (kept_by_a_count, ["x"], []),
    (of_sources_that_ask, ["x"], []),
    (of_words_of_words, ["x"], ["y", "b"]),
    (of_parts_of_words, ["x"], ["y", "b"]),
    (of_first_letters, ["x", "y"], ["b"]),
    (kept_by_first_letters, ["x", "y"], ["b"]),
    (of_letters_of_known_texts, ["x", "y", "b"], []),
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


def stored_in_one_arm(m: Any) -> Any:
    found = ONE.copy()
    other = found
    if m.ask("q") == "yes":
        other["b"] = "2"
    m.ask(found["a"])
    m.ask(found.get("b", "none"))


def stored_in_each_arm(m: Any) -> Any:
    found = ONE.copy()
    if m.ask("q") == "yes":
        found["a"], found["b"] = "5", "2"
    else:
        found["c"] = "3"
    m.ask("w" if "d" in found else "v")
    m.ask(found["a"])


def stored_twice(m: Any) -> Any:
    found = ONE.copy()
    if m.ask("q") == "yes":
        found["b"] = "2"
    if m.ask("r") == "yes":
        found["b"] = "8"
    else:
        found["c"] = "3"
    m.ask(found["a"])
    m.ask(found.get("b", "none"))


def stored_over_a_perhaps(m: Any) -> Any:
    found = ONE.copy()
    if m.ask("q") == "yes":
        found["b"] = "2"
    found["b"] = "5"
    m.ask(found["b"])
    m.ask(str(len(found)))


def removed_from_perhaps(m: Any) -> Any:
    found = ONE.copy()
    if m.ask("q") == "yes":
        found["b"] = "2"
    del found["a"]
    m.ask(found.get("a", "gone"))


def stored_before_another_branch(m: Any) -> Any:
    found = ONE.copy()
    if m.ask("q") == "yes":
        if m.ask("r") == "yes":
            found["b"] = "2"
        m.ask(found.get("b", "none"))
    else:
        found["b"] = "7"
        m.ask(found["b"])
    m.ask(found["a"])


def stored_in_rounds(m: Any) -> Any:
    found = ONE.copy()
    for _ in m.ask("q").split("e"):
        if "c" in found:
            found["d"] = "4"
        if "b" in found:
            found["c"] = "3"
        found["b"] = "2"
    m.ask(found.get("d", "none"))


def stored_before_an_error(m: Any) -> Any:
    found = ONE.copy()
    try:
        found["b"] = "2"
        found["c"] = str(int(m.ask("q")))
    except ValueError:
        found["d"] = "4"
    m.ask(found["b"])
    m.ask(found.get("d", "none"))


def stored_in_rounds_of_a_dict_with_perhaps(m: Any) -> Any:
    found, seen, rounds = ONE.copy(), "none", m.ask("r").split("e")
    if m.ask("q") == "yes":
        found["b"] = "2"
    for each in rounds:  # noqa: B007
        pass
    for each in rounds:  # noqa: B007
        seen = found.get("c", "none")
        found["c"] = "3"
    m.ask(seen)


def stored_in_a_dict_that_perhaps_is_there(m: Any) -> Any:
    found: dict[str, Any] = {"a": "1"}
    seen, rounds = "none", m.ask("r").split("e")
    if m.ask("q") == "yes":
        found["b"] = {"first": "none", "second": "none", "third": "none"}
    for _ in rounds:  # the third round changes nothing but the inner dict
        if "b" in found:
            seen = found["b"]["third"]
            found["b"]["third"] = found["b"]["second"]
            found["b"]["second"] = found["b"]["first"]
            found["b"]["first"] = "3"
    m.ask(seen)


def spread_in_an_unknown_order(m: Any) -> Any:
    found = {"a": "1"}
    if m.ask("q") == "yes":
        found["b"] = "2"
    found["c"] = "3"
    made = {**found, "b": "5"}
    m.ask(made["b"])
    m.ask(",".join(made))


DICTS: list[tuple[Callable[..., Any], list[str], list[str]]] = [
    (stored_in_one_arm, ["q", "1"], []),
    (stored_in_each_arm, ["q", "v"], []),
    (stored_twice, ["q", "r", "1"], []),
    (stored_over_a_perhaps, ["q", "5"], []),
    (removed_from_perhaps, ["q"], []),
    (stored_before_another_branch, ["q", "1"], ["r", "7"]),
    (stored_in_rounds, ["q"], []),
    (stored_before_an_error, ["q", "2"], []),
    (stored_in_rounds_of_a_dict_with_perhaps, ["r", "q"], []),
    (stored_in_a_dict_that_perhaps_is_there, ["r", "q"], []),
    (spread_in_an_unknown_order, ["q", "5"], []),
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
