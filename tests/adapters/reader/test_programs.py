"""Programs that ask a model: what is certain when, and what they come to, against a run of CPython."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.adapters.reader.world import Model, ModelAsker, predicted, read, same_as_original

DOCS = ["a doc", "b doc", "c doc", "d doc"]


def judge(question: Any, number: int) -> str:
    return "yes" if "a" in str(question)[:1] or "c" in str(question)[:1] else "no"


def grade(model: Any, docs: Any) -> Any:
    keep = []
    search = "No"
    for d in docs:
        print("grading", d)
        if model.ask(d) == "yes":
            keep.append(d)
        else:
            search = "Yes"
            continue
    return {"documents": keep, "search": search}


def grade_comprehension(model: Any, docs: Any) -> Any:
    return [d for d in docs if model.ask(d).strip().lower() == "yes"]


def two_in_turn(model: Any, docs: Any) -> Any:
    first = model.ask(docs[0])
    second = model.ask(docs[1])
    return f"{first} / {second}"


def chained(model: Any, docs: Any) -> Any:
    first = model.ask(docs[0])
    return model.ask(f"{first} and {docs[1]}")


def either(model: Any, docs: Any) -> Any:
    if model.ask(docs[0]) == "yes":
        return model.ask("one")
    return model.ask("two")


def both_arms(model: Any, docs: Any) -> Any:
    if model.ask(docs[0]) == "yes":
        note = "good"
        x = model.ask("same")
    else:
        note = "bad"
        x = model.ask("same")
    return note, x


def until(model: Any, docs: Any) -> Any:
    for d in docs:
        if model.ask(d) == "no":
            break
    else:
        return "all"
    return d


def returning(model: Any, docs: Any) -> Any:
    found = []
    for d in docs:
        reply = model.ask(d)
        if reply == "no":
            return found
        found.append(d)
    return None


def trying(model: Any, docs: Any) -> Any:
    out = []
    for d in docs:
        try:
            out.append(model.ask(d).upper())
        except Exception as e:
            out.append(str(e))
    return out


def returning_what_is_caught(model: Any, docs: Any) -> Any:
    def one(d: str) -> int:
        try:
            if model.ask(d) == "no":
                return 0
            return int(model.ask(d + d))
        except ValueError:
            return 1

    return [one(d) for d in docs]


def caught_in_a_known_state(model: Any, docs: Any) -> Any:
    rows = [{"d": d} for d in docs]
    for row in rows:
        try:
            row["score"] = int(model.ask(row["d"]))
        except ValueError:
            row["score"] = 0
        row["seen"] = len(row)
    return [model.ask(str(row["seen"])) for row in rows]


def caught_between_changes(model: Any, docs: Any) -> Any:
    seen: list[Any] = []
    try:
        seen.append(int(model.ask(docs[0])))
        seen.append(int(model.ask(docs[1])))
    except ValueError:
        seen.append("bad")
    return model.ask(str(seen))


def an_iterator_that_an_error_leaves_behind(model: Any, docs: Any) -> Any:
    each = enumerate(docs)
    try:
        int(model.ask("first"))
        next(each)
    except ValueError:
        pass
    return model.ask(str(next(each)))


def left_by_way_of_finally(model: Any, docs: Any) -> Any:
    seen = []

    def one() -> Any:
        try:
            if model.ask("first") == "no":
                return "no"
        finally:
            seen.append(1)
        return "yes"

    return one(), model.ask(str(seen))


def by_helper(model: Any, docs: Any) -> Any:
    def one(d: str) -> str:
        return model.ask("q " + d)  # type: ignore[no-any-return]

    return ", ".join(one(d) for d in docs)


def guarded(model: Any, docs: Any) -> Any:
    if "forbidden" in docs[0]:
        raise ValueError("no")
    return model.ask(docs[0])


def nested(model: Any, docs: Any) -> Any:
    scores = {}
    for _, d in enumerate(docs):
        verdict = model.ask(d)
        scores[d] = 1 if verdict == "yes" else 0
    best = [k for k, v in scores.items() if v]
    return model.ask(" ".join(best)), scores


async def gathered(model: Any, docs: Any) -> Any:
    replies = await asyncio.gather(*[model.aask(d) for d in docs])
    return list(replies)


PROGRAMS: list[tuple[Callable[..., Any], int]] = [
    (grade, 1), (grade_comprehension, 1), (two_in_turn, 1), (chained, 2), (either, 2), (both_arms, 1), (until, 2),
    (returning, 2), (trying, 1), (by_helper, 1), (guarded, 1), (nested, 2), (gathered, 1),
    (returning_what_is_caught, 2), (caught_in_a_known_state, 1), (caught_between_changes, 2),
    (an_iterator_that_an_error_leaves_behind, 2), (left_by_way_of_finally, 2),
]  # fmt: skip


@pytest.mark.parametrize(("program", "rounds"), PROGRAMS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_program_is_read_as_it_runs(program: Callable[..., Any], rounds: int) -> None:
    original, model = Model(judge), Model(judge)
    expected = program(original, DOCS)
    if asyncio.iscoroutine(expected):
        expected = asyncio.run(expected)
    found, asked = predicted(program, model, DOCS)
    assert found.is_known, (found.barrier, found.barrier and found.barrier.where)
    assert found.error is None
    assert found.value == expected
    assert sorted(map(str, model.asked)) == sorted(map(str, original.asked))
    assert len(asked) == rounds, asked


def test_nothing_is_certain_behind_what_may_raise() -> None:
    def program(model: Any) -> Any:
        first = model.ask("one")
        int(first)
        return model.ask("two")

    found, asked = predicted(program, Model(lambda q, n: "no number"))
    assert asked == [["one"]]
    assert isinstance(found.error, ValueError)


def test_a_judge_that_may_raise_overlaps_with_itself_alone() -> None:
    def program(model: Any, other: Any) -> Any:
        for d in "abc":
            model.ask(d)
        return other.ask("z")

    asker = ModelAsker(may_raise=True)
    _, asked = predicted(program, Model(judge), Model(judge), asker=asker)
    assert asked[0] == ["a", "b", "c"]


def test_a_set_that_was_made_empty_is_walked_in_its_order() -> None:
    def program(m: Model) -> Any:
        found, words, more = [], set(), set()
        for batch in (["b", "a", "e"], ["d", "c"]):
            used = set()
            for each in batch:
                used.add(each)
                words.add(each + each)
            found.append([m.ask(each) for each in used])
            more.update(used)
        words.discard("aa")
        return found, [m.ask(each) for each in words], [m.ask(each * 3) for each in more]

    found, fast, original = same_as_original(program, lambda question, number: f"{question}{number}")
    assert found.is_known
    assert fast.asked == original.asked


def test_whether_a_set_of_unknown_items_has_an_attribute_is_not_taken_for_true() -> None:
    def program(m: Model, names: set[str]) -> None:
        names |= {m.ask("first")}
        if hasattr(names, "name"):
            m.ask("never")

    asks = read(program, Model(lambda question, number: "x"), {"a"}).asks
    assert [each.is_possible for each in asks] == [False, True]


def stir(held: set[Any]) -> None:
    """Leave the elements as before, but in another order."""
    for each in "stuvwxyz":
        held.add(each)
    for each in "stuvwxyz":
        held.discard(each)


def filled_in_rounds(m: Model) -> Any:
    found = []
    for batch in ([7, 15, 23, 31], [8, 0, 16], ["a", "b", "c"]):
        used: set[Any] = set()
        try:
            for each in batch:
                used.add(each)
            stir(used)
            found.append(m.ask(str(list(used))))
            if "no" in m.ask(str(batch)):
                continue
            words = set(used)
            words.update(batch, used)
            found.append(m.ask(str(list(words))))
        except ValueError:
            continue
    return found


def test_sets_that_rounds_fill_are_walked_in_their_order() -> None:
    def reply(question: Any, number: int) -> str:
        return f"{question}{number}"

    original, fast = Model(reply), Model(reply)
    value = filled_in_rounds(original)
    found, rounds = predicted(filled_in_rounds, fast)
    assert found.value == value
    assert rounds[0] == [each for at in (0, 3, 6) for each in original.asked[at : at + 2]]
    assert sorted(fast.asked) == sorted(original.asked)


def stirred_on_one_path(m: Model, used: set[Any]) -> None:
    if m.ask("?") == "yes":
        stir(used)


def stirred_on_the_other_path(m: Model, used: set[Any]) -> None:
    if m.ask("?") != "yes":
        pass
    else:
        stir(used)


def stirred_before_an_error(m: Model, used: set[Any]) -> None:
    try:
        stir(used)
        int(m.ask("?"))
    except ValueError:
        return


@pytest.mark.parametrize("stirs", [stirred_on_one_path, stirred_on_the_other_path, stirred_before_an_error])
def test_a_set_that_is_in_one_of_two_orders_is_not_walked(stirs: Any) -> None:
    def program(m: Model) -> Any:
        used: set[Any] = set()
        used.update([7, 15, 23, 31])
        stirs(m, used)
        return [m.ask(str(each)) for each in used]

    assert read(program, Model(lambda question, number: "yes")).certain == ["?"]
    for reply in ("yes", "no", "1"):
        found, _, _ = same_as_original(program, lambda question, number, reply=reply: reply)
        assert found.is_known


def test_a_set_that_is_put_back_for_the_other_path_is_not_walked() -> None:
    def program(m: Model) -> Any:
        used: set[Any] = set()
        used.update([7, 15, 23, 31])
        stir(used)
        for _ in range(1):
            if m.ask("?") == "yes":
                used.add(0)
                continue
            m.ask(str(list(used)))
        return None

    found = read(program, Model(lambda question, number: "no"))
    assert (found.certain, found.possible) == (["?"], [])


def test_what_has_no_hash_of_its_own_leaves_no_known_order() -> None:
    def program(m: Model) -> Any:
        nan = float("nan")
        used = {nan}
        used -= {nan}
        used.update([7, 15, 23])
        return m.ask(str(list(used)))

    assert read(program, Model(lambda question, number: "no")).certain == []
