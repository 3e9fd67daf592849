"""Dicts of lists whose keys are not known yet: what is certain behind them, and that nothing else is."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from tests.adapters.reader.world import Model, ModelAsker, predicted, read, same_as_original


def lines(question: Any, number: int) -> str:
    return "b\na\nb\nc d" if len(str(question)) < 3 else f"re {question}"


def by_setdefault(words: list[str]) -> Any:
    groups: dict[str, list[int]] = {}
    for at, word in enumerate(words):
        groups.setdefault(word, []).append(at)
    return groups


def by_defaultdict(words: list[str]) -> Any:
    groups = defaultdict(list)
    for at, word in enumerate(words):
        groups[word].append(at)
    return groups


def by_test(words: list[str]) -> Any:
    groups: dict[str, list[int]] = {}
    for at, word in enumerate(words):
        if word not in groups:
            groups[word] = []
        groups[word].append(at)
    return groups


def by_both_ways(words: list[str]) -> Any:
    groups: dict[str, list[int]] = {}
    for at, word in enumerate(words):
        if word in groups:
            groups[word] += [at]
        else:
            groups[word] = [at]
    return groups


def by_sums(words: list[str]) -> Any:
    groups: dict[str, list[int]] = OrderedDict()
    for at, word in enumerate(words):
        groups[word] = groups.get(word, []) + [at]  # noqa: RUF005
    return groups


def by_pairs(words: list[str]) -> Any:
    groups = defaultdict(list)
    for at, word in enumerate(words):
        groups[(word, at % 2)].append(at)
    return groups


def by_pairs_that_are_stored(words: list[str]) -> Any:
    groups: dict[Any, list[int]] = {}
    for at, word in enumerate(words):
        key = (word, at % 2)
        if key not in groups:
            groups[key] = []
        groups[key].append(at)
    return groups


def by_name(words: list[str]) -> Any:
    groups: dict[str, list[int]] = {}
    for at, word in enumerate(words):
        ranks = groups.setdefault(word, [])
        ranks.append(at)
        ranks.extend([at])
    return groups


FILLS: list[Callable[[list[str]], Any]] = [
    by_setdefault, by_defaultdict, by_test, by_both_ways, by_sums, by_pairs, by_pairs_that_are_stored, by_name,
]  # fmt: skip
USES: list[Callable[[Any], Any]] = [
    lambda groups: groups,
    lambda groups: {**groups},
    lambda groups: {**groups, "z": [1]},
    lambda groups: dict(groups),
    lambda groups: groups.copy(),
    lambda groups: len(groups),
    lambda groups: [len(ranks) for ranks in groups.values()],
    lambda groups: sum(len(ranks) for ranks in groups.values()),
    lambda groups: [(key, ranks[:2]) for key, ranks in groups.items()],
    lambda groups: sum(map(len, groups.values())),
    lambda groups: str(groups),
    lambda groups: sorted(groups, key=lambda key: len(groups[key]), reverse=True),
    lambda groups: max(groups, key=lambda key: len(groups[key]), default="none"),
    lambda groups: {key: list(ranks) for key, ranks in groups.items()},
]


def require_asked_at_once(use: Callable[[Any], Any], fill: Callable[..., Any]) -> None:
    """Require that three replies, filled in and used one after the other, are asked for in one round."""

    def each(m: Any) -> Any:
        return [use(fill(m.ask(text).split("\n"))) for text in ("x", "y", "z")]

    original, fast = Model(lines), Model(lines)
    expected = each(original)
    found, rounds = predicted(each, fast)
    assert (found.value, found.error) == (expected, None)
    assert rounds == [["x", "y", "z"]]


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("use", USES, ids=map(str, range(len(USES))))
def test_what_does_not_need_the_lists_is_asked_beside(use: Callable[[Any], Any], fill: Callable[..., Any]) -> None:
    require_asked_at_once(use, fill)


COMPREHENSIONS: list[Callable[[list[str]], Any]] = [
    lambda words: {word: len(word) for word in words},
    lambda words: {word: at for at, word in enumerate(words) if word != "b"},
    lambda words: {len(word): word for word in words},
    lambda words: {word: [word] for word in words},
    lambda words: {**{word: 1.5 * len(word) for word in words}, "z": 2},
]
USES_OF_PAIRS: list[Callable[[Any], Any]] = [
    lambda pairs: pairs,
    lambda pairs: {**pairs},
    lambda pairs: [str(each) for each in pairs.values()],
    lambda pairs: [f"{key}: {value}" for key, value in pairs.items()],
    lambda pairs: (len(pairs), str(pairs), "a" in pairs, pairs.get("a", 0)),
    lambda pairs: pairs.update({"q": 1}) or len(pairs),
]


@pytest.mark.parametrize("fill", COMPREHENSIONS, ids=map(str, range(len(COMPREHENSIONS))))
@pytest.mark.parametrize("use", USES_OF_PAIRS, ids=map(str, range(len(USES_OF_PAIRS))))
def test_a_dict_that_a_comprehension_makes(use: Callable[[Any], Any], fill: Callable[..., Any]) -> None:
    require_asked_at_once(use, fill)


MIXED: list[tuple[str, Any]] = [("a", "x"), ("b", None)]
RAISING: list[Callable[[list[str]], Any]] = [
    lambda words: {word: len(word) for word in words}["none"],
    lambda words: [each.strip() for each in {word: [word] for word in words}.values()],  # type: ignore[attr-defined]
    lambda words: [each.strip() for each in {**{word: word for word in words}, "z": None}.values()],  # type: ignore[union-attr]
    lambda words: [each.strip() for each in {key: each for key, each in MIXED if key in words}.values()],
    lambda words: {(word, [word]): 1 for word in words},
    lambda words: {word: 1 // (len(word) - 1) for word in words},
]


@pytest.mark.parametrize("form", RAISING, ids=map(str, range(len(RAISING))))
def test_a_dict_that_a_comprehension_makes_may_raise(form: Callable[..., Any]) -> None:
    def each(m: Any) -> Any:
        return form(m.ask("x").split("\n")), m.ask("behind")

    found, rounds = predicted(each, Model(lines))
    assert found.error is not None
    assert rounds == [["x"]]


def fused(m: Any) -> Any:
    ranks: dict[str, list[int]] = {}
    for text in ("x", "y"):
        for rank, each in enumerate(m.ask(text).split("\n"), start=1):
            if each not in ranks:
                ranks[each] = []
            ranks[each].append(rank)
    scores = {}
    for each, found in ranks.items():
        scores[each] = sum(1.0 / (rank + 60) for rank in found)
    best = sorted(scores.keys(), key=lambda key: scores[key], reverse=True)
    return best, m.ask("behind")


def counted(m: Any) -> Any:
    counts: Counter[str] = Counter()
    counts.update(m.ask("x").split("\n"))
    counts.update(["a"])
    return counts.most_common(2), sum(counts.values()), m.ask("behind")


def listed(m: Any) -> Any:
    found, seen = [], {}
    for line in m.ask("x").split("\n"):
        found.append({"text": line, "words": line.split()})
        seen[line] = (line, len(found))
    return found, {**seen}, m.ask("behind")


def kept_on(m: Any) -> Any:
    defaults: dict[str, list[str]] = {}
    defaults.setdefault(m.ask("x"), ["a"])
    defaults.update({"b": ["c"]})
    return defaults, m.ask("behind")


def error_names(m: Any) -> Any:
    told = []
    try:
        int(m.ask("x"))
    except Exception as error:
        told.append(f"{error.__class__.__name__}: {error} {error.__class__.__qualname__}")
    return len(told), m.ask("behind")


@pytest.mark.parametrize("program", [fused, counted, listed, kept_on, error_names])
def test_a_request_behind_is_certain(program: Callable[..., Any]) -> None:
    found, _, original = same_as_original(program, lines)
    assert found.error is None
    assert found.is_known
    assert sorted(read(program, Model(lines)).certain) == sorted(original.asked)


# --- what is not certain ---------------------------------------------------------------------------------------------


def a_list_as_key(m: Any) -> Any:
    groups: dict[Any, list[int]] = {}
    groups.setdefault(m.ask("x"), []).append(1)
    return groups, m.ask("behind")


def a_list_as_key_of_a_defaultdict(m: Any) -> Any:
    groups = defaultdict(list)
    groups[m.ask("x")].append(1)
    return groups, m.ask("behind")


def a_list_in_a_key(m: Any) -> Any:
    groups = defaultdict(list)
    groups[("a", m.ask("x"))].append(1)
    return groups, m.ask("behind")


def a_list_that_is_stored_under_a_list(m: Any) -> Any:
    groups = {}
    groups[m.ask("x")] = [1]
    return groups, m.ask("behind")


def a_list_that_is_asked_for(m: Any) -> Any:
    groups: dict[Any, list[int]] = {}
    return groups.get(m.ask("x"), []), m.ask("behind")


@pytest.mark.parametrize(
    "program",
    [
        a_list_as_key, a_list_as_key_of_a_defaultdict, a_list_in_a_key, a_list_that_is_stored_under_a_list,
        a_list_that_is_asked_for,
    ],
)  # fmt: skip
def test_a_key_of_unknown_kind_may_have_no_hash(program: Callable[..., Any]) -> None:
    assert read(program, Model(lines), asker=ModelAsker("any")).certain == ["x"]
    if program is not a_list_that_is_asked_for:
        assert read(program, Model(lines)).certain == ["x", "behind"]


class Loud(dict):  # type: ignore[type-arg]
    def setdefault(self, key: Any, default: Any = None) -> Any:
        raise ValueError(key)

    def __missing__(self, key: Any) -> Any:
        raise ValueError(key)


class Key:
    def __init__(self, m: Any, text: str) -> None:
        self.m, self.text = m, text

    def __hash__(self) -> int:
        return len(self.m.ask(f"hash {self.text}"))

    def __eq__(self, other: object) -> bool:
        return bool(self.m.ask("equal"))


def a_subclass_of_dict(m: Any) -> Any:
    groups = Loud()
    try:
        groups.setdefault(m.ask("x"), []).append(1)
    except ValueError:
        return m.ask("refused")
    return m.ask("behind")


def a_factory_of_ones_own(m: Any) -> Any:
    groups: Any = defaultdict(lambda: m.ask("made").split())
    groups[m.ask("x")].append(1)
    return m.ask("behind")


def keys_of_ones_own(m: Any) -> Any:
    groups: Any = {}
    groups.setdefault(m.ask("x"), []).append(1)
    groups.setdefault(Key(m, "x"), []).append(2)
    groups[Key(m, "y")] = []
    return m.ask("behind")


def a_number_by_another_name(m: Any) -> Any:
    groups: Any = {}
    for word in m.ask("x").split("\n"):
        groups.setdefault(word, []).append(word)
    mine = groups.setdefault("a", [])
    mine.append(5)
    return [", ".join(words) for words in groups.values()], m.ask("behind")


def a_number_in_a_copy(m: Any) -> Any:
    groups: Any = {}
    for word in m.ask("x").split("\n"):
        groups.setdefault(word, []).append(word)
    for words in {**groups}.values():
        words.append(5)
    return [", ".join(words) for words in groups.values()], m.ask("behind")


def a_number_in_a_slice_that_is_stored(m: Any) -> Any:
    groups: Any = defaultdict(list)
    for word in m.ask("x").split("\n"):
        groups[word].append(word)
    part = groups["a"][:1]
    groups["b"] = part
    part.append(5)
    return [", ".join(words) for words in groups.values()], m.ask("behind")


def a_list_that_has_another_name(m: Any) -> Any:
    mine: Any = ["a"]
    groups: Any = {}
    for word in m.ask("x").split("\n"):
        groups[word] = mine
    for words in groups.values():
        words.append(5)
    return ", ".join(mine), m.ask("behind")


def a_default_that_has_another_name(m: Any) -> Any:
    mine: Any = ["a"]
    groups: Any = {}
    for word in m.ask("x").split("\n"):
        groups.setdefault(word, mine).append(5)
    return ", ".join(mine), m.ask("behind")


def a_list_that_gets_another_name(m: Any) -> Any:
    groups: Any = {}
    for word in m.ask("x").split("\n"):
        groups[word] = mine = ["a"]
        mine.append(5)
    return [", ".join(words) for words in groups.values()], m.ask("behind")


def a_list_that_is_emptied_by_another_name(m: Any) -> Any:
    groups: Any = defaultdict(list)
    for word in m.ask("x").split("\n"):
        groups[word].append(word)
    if groups["a"]:
        for words in groups.values():
            words.clear()
        return groups["a"][0], m.ask("behind")
    return None


def a_change_of_what_is_walked(m: Any) -> Any:
    groups: Any = defaultdict(list)
    for word in m.ask("x").split("\n"):
        groups[word].append(word)
    for key in groups:
        groups[key + "!"].append(1)
    return m.ask("behind")


def a_key_that_is_gone(m: Any) -> Any:
    groups: Any = {}
    for word in m.ask("x").split("\n"):
        groups.setdefault(word, []).append(word)
    for key in list(groups):
        del groups[key]
        groups[key].append(1)
    return m.ask("behind")


def a_number_by_the_function_of_the_class(m: Any) -> Any:
    groups: Any = {}
    for word in m.ask("x").split("\n"):
        groups.setdefault(word, []).append(word)
    list.append(groups.setdefault("a", []), 5)
    return [", ".join(words) for words in groups.values()], m.ask("behind")


def another_value(m: Any) -> Any:
    groups: Any = {}
    for word in m.ask("x").split("\n"):
        groups.setdefault(word, []).append(word)
    groups["a"] = 5
    return [len(words) for words in groups.values()], m.ask("behind")


@pytest.mark.parametrize(
    "program",
    [
        a_number_by_another_name, a_number_in_a_copy, a_number_in_a_slice_that_is_stored,
        a_list_that_has_another_name, a_default_that_has_another_name, a_list_that_gets_another_name,
        a_list_that_is_emptied_by_another_name, a_change_of_what_is_walked, a_key_that_is_gone,
        a_number_by_the_function_of_the_class, another_value,
    ],
)  # fmt: skip
def test_what_may_raise_holds_back_what_is_behind(program: Callable[..., Any]) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError, KeyError, IndexError)):
        program(Model(lines))
    assert read(program, Model(lines)).certain == ["x"]
    same_as_original(program, lines)


@pytest.mark.parametrize("program", [a_subclass_of_dict, a_factory_of_ones_own, keys_of_ones_own])
def test_code_of_ones_own_is_not_passed_over(program: Callable[..., Any]) -> None:
    asked = Model(lines)
    program(asked)
    assert read(program, Model(lines)).certain == asked.asked[: len(read(program, Model(lines)).certain)]
    same_as_original(program, lines)


def is_it_the_same(m: Any) -> Any:
    groups: Any = defaultdict(list)
    for word in m.ask("x").split("\n"):
        groups[word].append(word)
    one, two = groups["a"], groups["b"]
    return m.ask(f"{one is two} {one == two} {one is groups['a']}")


def an_item_of_what_may_be_a_defaultdict(m: Any) -> Any:
    groups: Any = defaultdict(list)
    groups["a"].append(1)
    other = groups if m.ask("x") != "no" else {}
    told = []
    try:
        told.append(other["z"])
    except Exception as error:
        told.append(str(error))
    return m.ask(f"keys {len(groups)}")


@pytest.mark.parametrize("program", [is_it_the_same, an_item_of_what_may_be_a_defaultdict])
def test_what_is_not_known_is_not_asked(program: Callable[..., Any]) -> None:
    assert read(program, Model(lines)).certain == ["x"]
    same_as_original(program, lines)
