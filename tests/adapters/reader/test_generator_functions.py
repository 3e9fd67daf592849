"""Generator functions that only compute are read as the generator expressions that equal them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda

from teola_plugin.adapters.reader import calls
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Barrier, Callee, Opaque
from tests.adapters.reader.langchain_reading import check, hosted, real
from tests.adapters.reader.langchain_reading import read as langchain_read
from tests.adapters.reader.oracle import new_run
from tests.adapters.reader.world import Model, ModelAsker, predicted, read, same_as_original

SIZE = 2
LIST = ["a", "b", "c", "d", "e"]


def parts(items: list[Any], size: int = SIZE) -> Iterator[Any]:
    """Give lists of so many items."""
    for at in range(0, len(items), size):
        yield items[at : at + size]


def named(items: list[Any], *more: Any, least: int = 0) -> Iterator[Any]:
    longest = max(least, len(items))
    for at, each in enumerate(items):
        if at != 1:
            low = each.lower()
            pair = (longest, low)
            if low not in more:
                yield *pair, at


def crossed(one: list[Any], two: list[Any]) -> Iterator[Any]:
    for first in one:
        for second, third in zip(two, two, strict=True):
            yield first + second + third


def silent(items: list[Any]) -> Iterator[None]:
    for _ in items:
        yield


def late(items: list[Any]) -> Iterator[Any]:
    count = len(items)
    for at in range(count):
        yield items[at]


def asked_in_a_loop(m: Any) -> Any:
    return [m.ask("".join(part)) for part in parts(LIST)], m.ask("behind")


def by_a_loop(m: Any) -> Any:
    found = []
    for part in parts(LIST, 3):
        part.append("!")
        found.append(m.ask("".join(part)))
    return found


def in_other_forms(m: Any) -> Any:
    texts = [f"{longest}{low}{at}" for longest, low, at in named(["A", "B", "C", "D"], "d", least=9)]
    texts += crossed(["a", "b"], ["c", "d"])
    return [m.ask(each) for each in texts], list(silent("ab")), next(parts("")), m.ask("behind")


def changed_between_elements(m: Any) -> Any:
    items, found = ["a", "b"], []
    for part in parts(items, 1):
        if len(items) < 5:
            items.append("c")
        found.append(m.ask(f"{part} of {items}"))
    items.clear()
    return found, [m.ask("".join(part)) for part in parts(items)], m.ask("behind")


def made_before_a_change(m: Any) -> Any:
    items = ["a"]
    made, more = late(items), late(items)
    items.append("b")
    first = [m.ask(each) for each in made]
    next(more)
    items.clear()
    return first, m.ask("between"), next(more)


def left_early(m: Any) -> Any:
    made = parts(LIST, 1)
    for part in made:
        if m.ask(part[0]):
            break
    return [m.ask(f"{part}") for part in made]


def of_a_nested_function(m: Any) -> Any:
    ending = "!"

    def marked(items: list[str]) -> Iterator[str]:
        for each in items:
            yield each + ending

    made = marked(["a", "b"])
    ending = "?"
    return [m.ask(each) for each in made]


def with_an_error(m: Any) -> Any:
    found = []
    try:
        for each in parts(["a", "b"], 0):
            found += [m.ask(each[0])]
    except ValueError:
        found.append(m.ask("no size"))
    try:
        for _, low, _ in named(["a", "b", 3]):
            found.append(m.ask(low))
    except AttributeError:
        found.append(m.ask("no text"))
    return found


@pytest.mark.parametrize(
    "program",
    [
        asked_in_a_loop, by_a_loop, changed_between_elements, made_before_a_change, left_early, of_a_nested_function,
        with_an_error,
    ],
)  # fmt: skip
@pytest.mark.parametrize("word", ["x", ""])
def test_elements_are_made_as_the_program_makes_them(program: Callable[[Any], Any], word: str) -> None:
    found, fast, original = same_as_original(program, lambda question, number: word and f"{question}{number}")
    assert found.is_known
    assert fast.asked == original.asked


def test_all_elements_of_known_items_are_certain_at_once() -> None:
    _, rounds = predicted(asked_in_a_loop, Model(lambda question, number: "x"))
    assert rounds == [["ab", "cd", "e", "behind"]]
    _, rounds = predicted(by_a_loop, Model(lambda question, number: "x"))
    assert rounds == [["abc!", "de!"]]


def test_elements_in_other_forms() -> None:
    found, fast, original = same_as_original(in_other_forms, lambda question, number: "x")
    assert type(found.error) is StopIteration
    assert fast.asked == original.asked


def asks(m: Any, items: list[Any]) -> Iterator[Any]:
    for each in items:
        yield m.ask(each)


def counts(items: list[Any]) -> Iterator[int]:
    total = 0
    for each in items:
        total += each
        yield total


def given_twice(items: list[Any]) -> Iterator[Any]:
    for items in items:  # noqa: B020
        yield items


def ends_with_more(items: list[Any]) -> Iterator[Any]:
    for each in items:
        yield [each]
    yield "end"


def has_an_else(items: list[Any]) -> Iterator[Any]:
    for each in items:
        yield each
    else:
        LIST.append("x")


def calls_its_own(items: list[Any]) -> Iterator[Any]:
    for each in range(*own(items)):
        yield [each]


def own(items: list[Any]) -> list[int]:
    return [len(items)]


def hides(items: list[Any], len: Callable[[Any], int] = lambda items: 1) -> Iterator[Any]:
    for each in range(len(items)):
        yield [each]


def stores(items: list[Any]) -> Iterator[Any]:
    for LIST[0] in items:
        yield 1


@pytest.mark.parametrize(
    "made",
    [counts, given_twice, ends_with_more, has_an_else, calls_its_own, hides, stores],
    ids=lambda made: made.__name__,
)
def test_other_generator_functions_are_not_read(made: Any) -> None:
    found = read(lambda m: [m.ask(each) for each in made([1, 2])], Model(lambda question, number: "x"))
    assert "is a generator function" in str(found.barrier)
    assert not found.asks


def test_a_generator_function_that_asks_is_not_read() -> None:
    found = read(lambda m: list(asks(m, ["a"])), Model(lambda question, number: "x"))
    assert "is a generator function" in str(found.barrier)


def test_a_replaced_builtin_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "len", lambda items: 1)
    found = read(lambda m: [m.ask(each) for each in parts(["a", "b"], 1)], Model(lambda question, number: "x"))
    assert "a builtin that has been replaced" in str(found.barrier)


def test_elements_of_unknown_items_are_not_known() -> None:
    found = read(lambda m: [m.ask(part) for part in parts(m.ask("a").split())], Model(lambda question, number: "x"))
    assert found.is_stalled
    assert found.certain == ["a"]


def test_the_place_of_a_call_that_takes_elements_stays() -> None:
    places = []

    class Taking(ModelAsker):
        def attribute(self, run: Run, owner: Opaque, name: str) -> Any:
            def take(run: Run, args: Any, kwargs: Any) -> int:
                places.append((run.site, run.levels[-1].call))
                found = len(list(args[0]))
                places.append((run.site, run.levels[-1].call))
                return found

            return Callee(take, name)

    found = read(lambda m: m.ask(parts(LIST)), Model(lambda question, number: "x"), asker=Taking())
    assert found.value == 3
    assert places[0] == places[1]


LLM = hosted()


def ask(text: str) -> Any:
    return LLM.invoke(text).content


class Parts:
    def of(self, items: list[Any]) -> Iterator[Any]:
        return self.each(items)

    def each(self, items: list[Any]) -> Iterator[Any]:
        for at in range(0, len(items), 2):
            yield items[at : at + 2]


PARTS = Parts()


@pytest.mark.parametrize("made", [parts, PARTS.each, functools.partial(parts)])
def test_a_framework_that_calls_a_generator_function_joins_the_elements(made: Any) -> None:
    """LangChain gives the sum of the elements to the next step."""
    chain = RunnableLambda(made) | RunnableLambda(lambda x: [ask(each) for each in x])
    expected, keys = real(chain, "abcd")
    assert len(expected) == len(keys) == 4
    assert "is a generator function" in langchain_read(chain, "abcd").stopped
    assert "is a generator function" in langchain_read(lambda x: [ask(each) for each in map(made, [x])], "abcd").stopped
    found = check(lambda x: [ask(each) for each in PARTS.each(x)], "abcd")
    assert found.certain[0] == [True, True]


def test_elements_that_are_taken_outside_of_functions_are_not_read() -> None:
    made = calls.call_site(new_run(), Opaque(parts), ((LIST,), {}))
    with pytest.raises(Barrier, match="outside of functions"):
        next(made)
