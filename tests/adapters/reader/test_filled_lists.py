"""Lists and sets that a loop over a reply fills: what is certain behind them, and that nothing else is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from teola_plugin.adapters.reader import instances
from tests.adapters.reader import random_groups, random_lists, random_sets
from tests.adapters.reader.fuzzing import Difference, judged
from tests.adapters.reader.random_programs import inputs
from tests.adapters.reader.test_fuzz_semantics import FIRST, PROGRAMS, module_of
from tests.adapters.reader.world import Model, ModelAsker, predicted, read, same_as_original

pytestmark = pytest.mark.usefixtures("no_batches")

PER_FILE = 50


def lines(question: Any, number: int) -> str:
    return "b\n\n a?\nb\n2. c?" if len(str(question)) < 3 else f"re {question}"


def filled(m: Any, text: str) -> list[str]:
    found = []
    for line in m.ask(text).split("\n"):
        if line.strip():
            found.append(line)  # noqa: PERF401
    return found


def cleaned(m: Any, text: str) -> list[str]:
    found = []
    for line in m.ask(text).split("\n"):
        question = re.sub(r"^\d+\.\s*", "", line.strip())
        if question.endswith("?"):
            found.append(question)
    return found


def chosen(m: Any, text: str) -> list[str]:
    return [line.strip() for line in m.ask(text).split("\n") if line.strip()]


def numbered(xs: list[str]) -> str:
    text = ""
    for at, x in enumerate(xs, start=1):
        text += f"{at}: {x}\n"
    return text


def without_twins(xs: list[str]) -> list[str]:
    seen = set()
    found = []
    for x in xs:
        if x not in seen:
            seen.add(x)
            found.append(x)
    return found


def in_place(xs: list[str]) -> list[str]:
    xs.sort(key=len)
    xs.extend({x.strip() for x in xs})
    xs += sorted(xs)
    xs += ["c"]
    return xs


USES: list[Callable[[list[str]], Any]] = [
    lambda xs: xs,
    lambda xs: set(xs),
    lambda xs: len(set(xs)),
    lambda xs: "b" in set(xs),
    lambda xs: {*xs, "d"},
    lambda xs: list(set(xs)),
    lambda xs: list(xs),
    lambda xs: tuple(xs),
    lambda xs: sorted(frozenset(xs)),
    lambda xs: sorted(xs),
    lambda xs: sorted(set(xs), key=len, reverse=True),
    lambda xs: list(dict.fromkeys(xs)),
    lambda xs: [*xs, "end"],
    lambda xs: xs[:2] + ["a"],  # noqa: RUF005
    lambda xs: "\n".join(xs[::-1]),
    lambda xs: ", ".join([x.strip() for x in xs]),
    lambda xs: ", ".join(x.strip() for x in xs if len(x) > 1),
    lambda xs: list({x.strip() for x in xs}),
    lambda xs: set(x.strip() for x in xs),  # noqa: C401
    lambda xs: list(reversed(xs.copy())),
    lambda xs: [f"{at}. {x}" for at, x in enumerate(xs)],
    lambda xs: [one + two for one, two in zip(xs, xs[1:], strict=False)],  # noqa: RUF007
    numbered,
    without_twins,
    in_place,
]


@pytest.mark.parametrize("fill", [filled, cleaned, chosen])
@pytest.mark.parametrize("use", USES, ids=[str(at) for at in range(len(USES))])
def test_what_does_not_need_the_items_is_asked_beside(use: Callable[[Any], Any], fill: Callable[..., Any]) -> None:
    def each(m: Any) -> Any:
        return [use(fill(m, text)) for text in ("x", "y", "z")]

    def behind(m: Any) -> Any:
        found = use(fill(m, "x"))
        return found, m.ask("behind")

    for program, first in ((each, ["x", "y", "z"]), (behind, ["x", "behind"])):
        original, fast = Model(lines), Model(lines)
        expected = program(original)
        found, rounds = predicted(program, fast)
        assert (found.value, found.error) == (expected, None)
        assert rounds == [first] == [original.asked]


# --- what is not certain ---------------------------------------------------------------------------------------------


def joined_with_a_number(m: Any) -> Any:
    xs = filled(m, "x")
    xs.append(5)  # type: ignore[arg-type]
    return ",".join(xs)


def joined_with_what_an_alias_added(m: Any) -> Any:
    xs: list[Any] = filled(m, "x")
    ys = xs
    ys += [5]
    return ",".join(xs)


def joined_with_an_item_of_another_list(m: Any) -> Any:
    xs: list[Any] = filled(m, "x")
    xs.extend((1, 2))
    ys = ["k"]
    ys.append(xs[0])
    return ",".join(ys)


def joined_after_a_store(m: Any) -> Any:
    xs: list[Any] = filled(m, "x")
    xs[1:2] = [3]
    return ",".join(xs)


def walked_after_a_change(m: Any) -> Any:
    xs: list[Any] = filled(m, "x")
    pairs = enumerate(xs)
    xs.append(5)
    return [x.strip() for _, x in pairs]


def changed_by_a_later_round(m: Any) -> Any:
    xs: list[Any] = filled(m, "x")
    for _ in m.ask("w").split("\n"):
        ",".join(xs)
        xs.append(5)
    return xs


def changed_by_the_round_before_the_last(m: Any) -> Any:
    xs: list[Any] = filled(m, "x")
    ys, zs, ws, us = [filled(m, text) for text in ("y", "z", "w", "u")]
    for _ in m.ask("w").split("\n"):
        ",".join(us)
        us.extend(ws)
        ws.extend(zs)
        zs.extend(ys)
        ys.extend(xs)
        xs.append(5)
    return xs


def changed_while_it_is_walked(m: Any) -> Any:
    words: list[Any] = m.ask("x").split("\n")
    for at, word in enumerate(words):
        word.strip()
        if at < 9:
            words.append(at)
    return words


def changed_on_one_path(m: Any) -> Any:
    xs: list[Any] = filled(m, "x")
    if "zz" in m.ask("q"):
        ys = ["a"]
    else:
        xs.append(4)
        ys = xs
    return ",".join(ys)


def changed_on_both_paths(m: Any) -> Any:
    xs: list[Any] = filled(m, "x")
    ys: list[Any] = ["a"]
    if "zz" in m.ask("q"):
        ys = xs
    else:
        xs.append(4)
        ys = xs
    return ",".join(ys)


def sorted_with_a_number(m: Any) -> Any:
    seen: set[Any] = set(filled(m, "x"))
    seen.add(3)
    return sorted(seen)


def sorted_with_numbers_of_another(m: Any) -> Any:
    seen: set[Any] = set(filled(m, "x"))
    seen.update({4})
    seen |= {5}
    return sorted(seen)


def sorted_with_several_others(m: Any) -> Any:
    seen: set[Any] = set(filled(m, "x"))
    seen.update(["a"], [3])
    return sorted(seen)


def a_set_of_lists(m: Any) -> Any:
    xs: list[Any] = filled(m, "x")
    xs.append([1])
    return {*xs}


def a_set_made_of_lists(m: Any) -> Any:
    xs: list[Any] = filled(m, "x")
    xs.append([1])
    return set(xs)


def joined_after_another_list(m: Any) -> Any:
    xs: list[Any] = ["k"]
    ys: list[Any] = filled(m, "x")
    ys.append(5)
    xs.extend(ys)
    return ",".join(xs)


def joined_after_a_tuple(m: Any) -> Any:
    xs: list[Any] = filled(m, "x")
    xs.extend((1, 2))
    return ",".join(xs)


def joined_after_an_insertion(m: Any) -> Any:
    xs: list[Any] = filled(m, "x")
    xs.insert(0, 3)
    return ",".join(xs)


def sorted_list_with_a_number(m: Any) -> Any:
    xs: list[Any] = filled(m, "x")
    xs.append(5)
    return sorted(xs)


def changed_while_it_is_looped_over(m: Any) -> Any:
    words: list[Any] = m.ask("x").split("\n")
    for word in words:
        word.strip()
        if len(words) < 9:
            words.append(len(words))
    return words


def changed_by_the_round_before_while_it_is_looped_over(m: Any) -> Any:
    words: list[Any] = m.ask("x").split("\n")
    other: Any = "a"
    second: Any = "b"
    third: Any = "c"
    for word in words:
        word.strip()
        if len(words) < 9:
            words.append(other)
            other, second, third = second, third, 5
    return words


def changed_on_the_first_path(m: Any) -> Any:
    xs: list[Any] = filled(m, "x")
    if "zz" not in m.ask("q"):
        xs.append(4)
        ys = xs
    else:
        ys = ["a"]
    return ",".join(ys)


def changed_in_a_try(m: Any) -> Any:
    xs: list[Any] = filled(m, "x")
    one = two = three = four = 0
    try:
        one = int(m.ask("1"))
        two = int(m.ask("2"))
        three = int(m.ask("3"))
        four = int(m.ask("4"))
        int(m.ask("1"))
        xs.append(5)
        return int(m.ask("5")), one, two, three, four
    except ValueError:
        return ",".join(xs)


def the_first_of_none(m: Any) -> Any:
    return filled(m, "x")[0]


def a_number_of_a_text(m: Any) -> Any:
    return int(filled(m, "x").pop())


def a_list_of_a_step_of_zero(m: Any) -> Any:
    xs = filled(m, "x")
    return xs[::0]


UNSAFE = [
    joined_with_a_number, joined_with_what_an_alias_added, joined_with_an_item_of_another_list, joined_after_a_store,
    walked_after_a_change, changed_by_a_later_round, changed_while_it_is_walked, changed_on_one_path,
    changed_on_both_paths, sorted_with_a_number, sorted_with_numbers_of_another, sorted_with_several_others,
    a_set_of_lists, a_set_made_of_lists, joined_after_another_list, joined_after_a_tuple, joined_after_an_insertion,
    sorted_list_with_a_number, changed_while_it_is_looped_over, changed_on_the_first_path, changed_in_a_try,
    changed_by_the_round_before_the_last, changed_by_the_round_before_while_it_is_looped_over,
    the_first_of_none, a_number_of_a_text, a_list_of_a_step_of_zero,
]  # fmt: skip


@pytest.mark.parametrize("program", UNSAFE)
def test_nothing_is_certain_behind_what_may_raise(program: Callable[..., Any]) -> None:
    def behind(m: Any) -> Any:
        program(m)
        return m.ask("behind")

    def caught(m: Any) -> Any:
        try:
            program(m)
        except Exception as e:
            return m.ask(type(e).__name__)
        return m.ask("behind")

    assert "behind" not in read(behind, Model(lines)).certain
    for reply in (
        lines,
        lambda q, _: "zz" if q == "q" else "7" if q in "1234" else "a\nb",
        lambda q, n: "" if len(q) < 3 else "re",
    ):
        for each in (behind, caught):
            found, fast, original = same_as_original(each, reply)
            assert fast.asked == original.asked or not found.is_known


def test_of_a_list_changed_otherwise_no_kind_of_items_is_known() -> None:
    def program(m: Any) -> Any:
        xs: list[Any] = filled(m, "x")
        xs.insert(0, 3)
        try:
            ",".join(xs)
        except TypeError:
            return m.ask("refused")
        return m.ask("joined")

    assert set(read(program, Model(lines)).possible) == {"refused", "joined"}


# --- what a list of unknown content is changed by --------------------------------------------------------------------


def used_up_by_a_sum(m: Any) -> Any:
    xs: list[Any] = filled(m, "x")
    items = iter([1, 2])
    xs += items
    return m.ask(f"left: {list(items)}")


def used_up_by_the_first(m: Any) -> Any:
    items = iter([1, 2])
    filled(m, "x").extend(items)  # type: ignore[arg-type]
    return m.ask(f"left: {list(items)}")


def repeated(m: Any) -> Any:
    xs = filled(m, "x")
    try:
        xs *= 2
    except TypeError:
        return m.ask("refused")
    return m.ask("repeated")


def repeated_by_a_text(m: Any) -> Any:
    xs: Any = filled(m, "x")
    try:
        xs *= "2"
    except TypeError:
        return m.ask("refused")
    return m.ask("repeated")


def kept_as_it_was(m: Any) -> Any:
    xs: list[Any] = filled(m, "x")
    texts = tuple(xs)
    xs.append(3)
    return m.ask(f"about {len(','.join(texts))}")


@pytest.mark.parametrize(
    "program", [used_up_by_a_sum, used_up_by_the_first, repeated, repeated_by_a_text, kept_as_it_was]
)
def test_what_a_list_of_unknown_content_is_changed_by(program: Callable[..., Any]) -> None:
    original, fast = Model(lines), Model(lines)
    expected = program(original)
    found, _ = predicted(program, fast)
    assert (found.value, found.error) == (expected, None)
    assert fast.asked == original.asked


def test_an_item_depends_on_the_replies_that_filled_the_list() -> None:
    """Rounds that ask one component in one place are a batch, although the reply to one of them may not parse."""

    def program(m: Any) -> Any:
        found = []
        for text in ("x", "y", "z"):
            found.append(int(filled(m, text)[0]))  # noqa: PERF401
        return found, m.ask("behind")

    found = read(program, Model(lines))
    assert (found.certain, found.possible) == (["x", "y", "z"], ["behind"])


def test_an_item_depends_on_what_was_put_into_the_list_later() -> None:
    def program(m: Any, other: Any) -> Any:
        more = other.ask("more")
        found = []
        for text in ("x", "y"):
            xs = m.ask(text).split("\n")
            xs.append(more)
            found.append(int(xs[-1]))
        return found

    found = read(program, Model(lines), Model(lines))
    assert (found.certain, found.possible) == (["more", "x"], ["y"])


# --- functions that call themselves ----------------------------------------------------------------------------------


def combined(m: Any, texts: list[str]) -> str:
    found = []
    for at in range(0, len(texts), 2):
        found.append(m.ask(f"sum {' '.join(texts[at : at + 2])}"))  # noqa: PERF401
    return found[0] if len(found) == 1 else combined(m, found)


def test_a_function_that_calls_itself_is_not_read_deeper_than_is_known() -> None:
    class Counting(ModelAsker):
        count = 0

        def attribute(self, *args: Any) -> Any:
            Counting.count += 1
            return super().attribute(*args)

    def program(m: Any) -> Any:
        m.ask("beside")
        return combined(m, m.ask("x").split("\n"))

    found = read(program, Model(lines), asker=Counting())
    assert found.certain == ["beside", "x"]
    assert Counting.count < 50
    original, fast = Model(lines), Model(lines)
    expected = program(original)
    found, rounds = predicted(program, fast)
    assert (found.value, fast.asked) == (expected, original.asked)
    assert [len(each) for each in rounds] == [2, 3, 2, 1]


def test_a_function_that_calls_itself_for_certain_is_read() -> None:
    def down(m: Any, left: int) -> Any:
        return down(m, left - 1) if left else m.ask("down")

    def program(m: Any) -> Any:
        return down(m, 10), m.ask("behind")

    assert read(program, Model(lines)).certain == ["down", "behind"]


def test_a_function_that_calls_itself_a_known_number_of_times_is_read() -> None:
    def again(m: Any, text: str, left: int) -> str:
        return text if not left or m.ask(text) == "yes" else again(m, text + "!", left - 1)

    def program(m: Any) -> Any:
        again(m, "x", 5)
        return m.ask("behind")

    assert read(program, Model(lines)).certain == ["x", "behind"]


# --- random programs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(FIRST, FIRST + max(1, PROGRAMS // PER_FILE // 2)))
@pytest.mark.parametrize(
    "forms", [random_lists.FORMS, random_groups.FORMS, random_sets.FORMS], ids=["lists", "groups", "sets"]
)
def test_what_is_read_of_random_lists_is_so(
    seed: int, forms: random_lists.Forms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "text_accessor", lambda: None)  # as in test_fuzz_semantics
    text = random_lists.source(seed, PER_FILE, forms)
    module = module_of(text, tmp_path / f"random_lists_{seed}_{len(forms.fills)}.py")
    asks = 0
    for number in range(PER_FILE):
        name, case = f"program_{number}", seed * 1000 + number
        try:
            verdict = judged(getattr(module, name), inputs(case), case)
        except Difference as e:
            shown = text.split(f"def {name}(")[1].split("\n\ndef ")[0]
            raise AssertionError(f"{e}\n\ndef {name}({shown}") from e
        asks += verdict.asks if verdict is not None else 0
    assert asks > PER_FILE
