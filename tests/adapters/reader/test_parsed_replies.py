"""JSON that programs cut out of replies: what the text begins with decides the type of what it parses to."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.adapters.reader.world import Model, asks_the_same, predicted, read, then_asked

FENCED = r"```(?:json)?\s*(\{.*?\})\s*```"

ANSWERS = (
    'so: {"x": {"y": 1}, "rows": ["a"]} ok', '{"y": 1}', "[1, {}]", 'it is ["x"]', '```json\n{"x": 5}\n```', "5",
    "", "{", "x}5", 'x {"a": 1} 5', "[5", "} {",
)  # fmt: skip


def matched(m: Any) -> Any:
    found = re.search(r"\{.*\}", m.ask("a"), re.DOTALL)
    data = json.loads(found.group() if found else "{}")
    m.ask(str(data.get("x", 5) is None))


def matched_by_a_group(m: Any) -> Any:
    found = re.search(FENCED, m.ask("a"), re.DOTALL)
    data = json.loads(found.group(1)) if found else {"x": 1}
    return data.get("x")


def matched_by_a_group_of_all_groups(m: Any) -> Any:
    found = re.search(FENCED, m.ask("a"), re.DOTALL)
    if found:
        (text,) = found.groups()
        return json.loads(text).get("x")
    return None


def helper(text: str) -> Any:
    try:
        found = re.search(r"\{[\s\S]*\}", text)
        if found:
            return json.loads(found.group(0))
    except json.JSONDecodeError:
        pass
    return {}


def parsed_by_a_helper(m: Any) -> Any:
    data = helper(m.ask("a"))
    return {"x": data.get("x", 0), "is_there": "y" in data}


def an_item_that_may_be_missing(m: Any) -> Any:
    data = helper(m.ask("a"))
    try:
        return data["x"]
    except KeyError:
        return None


def items_of_a_parsed_dict(m: Any) -> Any:
    try:
        found = re.search(r"\s*\{.*\}", m.ask("a"), re.DOTALL)
        data = json.loads(found.group().strip().replace("\n", " ")) if found else {}
    except ValueError:
        data = {"y": 1}
    return {**data, "z": data.get("y")}


def changed_and_read(m: Any) -> Any:
    text = m.ask("a")
    data = json.loads(text[text.find("{") : text.rfind("}") + 1] or "{}")
    data["z"] = 5
    data.setdefault("y", 1)
    return sorted(data)


def cut_by_places(m: Any) -> Any:
    text = m.ask("a")
    start, end = text.find("{"), text.rfind("}")
    try:
        data = json.loads(text[start : end + 1])
    except json.JSONDecodeError:
        return {}
    return data.get("x")


def cut_behind_a_check(m: Any) -> Any:
    text = m.ask("a")
    start = text.find("[")
    end = text.rfind("]") + 1
    try:
        if start == -1 or end <= start:
            return []
        data = json.loads(text[start:end])
    except json.JSONDecodeError:
        return []
    return [str(each) for each in data][:3]


def cut_from_what_is_there(m: Any) -> Any:
    text = m.ask("a")
    try:
        data = json.loads(text[text.index("{") :])
    except ValueError:
        return {}
    return len(data)


def a_list_of_rows(m: Any) -> Any:
    found = re.search(r"\[.*\]", m.ask("a"), re.DOTALL)
    try:
        rows = json.loads(found.group()) if found else []
    except json.JSONDecodeError:
        rows = []
    rows = list(rows)
    rows.append(1)
    return len(rows), isinstance(rows, list)


CERTAIN = [
    parsed_by_a_helper, an_item_that_may_be_missing, items_of_a_parsed_dict, cut_by_places, cut_behind_a_check,
    cut_from_what_is_there, a_list_of_rows,
]  # fmt: skip


def begins_with_something_else(m: Any) -> Any:
    found = re.search(r".*\{.*\}", m.ask("a"), re.DOTALL)
    return json.loads(found.group()).get("x") if found else None


def begins_with_either(m: Any) -> Any:
    found = re.search(r"\{.*\}|\[.*\]", m.ask("a"), re.DOTALL)
    return json.loads(found.group()).get("x") if found else None


def begins_with_what_may_be_missing(m: Any) -> Any:
    found = re.search(r"\{?.*", m.ask("a"), re.DOTALL)
    return json.loads(found.group()).get("x") if found else None


def with_another_default(m: Any) -> Any:
    found = re.search(r"\{.*\}", m.ask("a"), re.DOTALL)
    return json.loads(found.group() if found else "[]").get("x")


def with_a_value_that_is_no_dict(m: Any) -> Any:
    try:
        found = re.search(r"\{.*\}", m.ask("a"), re.DOTALL)
        data = json.loads(found.group() if found else "{}")
    except json.JSONDecodeError:
        data = None
    return data.get("x")


def with_nothing_instead(m: Any) -> Any:
    found = re.search(r"\{.*\}", m.ask("a"), re.DOTALL)
    data = json.loads(found.group()) if found else None
    return data.get("x")


def replaced_at_the_beginning(m: Any) -> Any:
    found = re.search(r"\{.*\}", m.ask("a"), re.DOTALL)
    return json.loads(found.group().replace("{", "[").replace("}", "]")).get("x") if found else None


def white_space_replaced_at_the_beginning(m: Any) -> Any:
    found = re.search(r"\s*\{.*\}", f" {m.ask('a')}", re.DOTALL)
    return json.loads(found.group().replace(" ", "5")).get("x") if found else None


def put_before_the_beginning(m: Any) -> Any:
    found = re.search(r"\{.*\}", m.ask("a"), re.DOTALL)
    return json.loads(found.group().replace("", "5")).get("x") if found else None


def stripped_of_the_beginning(m: Any) -> Any:
    found = re.search(r"\{.*\}", m.ask("a"), re.DOTALL)
    return json.loads(found.group().lstrip("{")).get("x") if found else None


def cut_behind_the_beginning(m: Any) -> Any:
    text = m.ask("a")
    try:
        data = json.loads(text[text.find("{") + 1 : text.rfind("}") + 1])
    except json.JSONDecodeError:
        return {}
    return data.get("x")


def cut_from_what_may_be_missing(m: Any) -> Any:
    text = m.ask("a")
    try:
        data = json.loads(text[text.find("{") :])
    except json.JSONDecodeError:
        return {}
    return data.get("x")


def cut_by_the_places_of_another_text(m: Any) -> Any:
    text, other = m.ask("a"), m.ask("q")
    try:
        data = json.loads(text[other.index("{") :])
    except ValueError:
        return {}
    return data.get("x")


def cut_to_another_bracket(m: Any) -> Any:
    text = m.ask("a")
    try:
        data = json.loads(text[text.find("{") : text.rfind("]") + 1])
    except json.JSONDecodeError:
        return {}
    return data.get("x")


def cut_to_a_place_in_another_text(m: Any) -> Any:
    text, other = m.ask("a"), m.ask("q")
    try:
        data = json.loads(text[text.find("{") : other.rfind("}") + 1])
    except json.JSONDecodeError:
        return {}
    return data.get("x")


def cut_with_a_step(m: Any) -> Any:
    text = m.ask("a")
    try:
        data = json.loads(text[text.rfind("{") : text.rfind("}") + 1 : -1])
    except json.JSONDecodeError:
        return {}
    return data.get("x")


def an_item_of_what_it_is_not_certain_of(m: Any) -> Any:
    return helper(m.ask("a"))["x"]


def whose_items_are_made_by_a_hook(m: Any) -> Any:
    found = re.search(r"\{.*\}", m.ask("a"), re.DOTALL)
    return json.loads(found.group(), object_hook=lambda items: 5).get("x") if found else None


def of_another_beginning_in_a_later_round(m: Any) -> Any:
    text = m.ask("a")
    found = re.search(r"(\{.*\})", text, re.DOTALL)
    if not found:
        return None
    now, then, data = found.group(), found.group(1), None
    for _ in text.split():
        pass
    for _ in text.split():
        try:
            data = json.loads(now).get("x")
        except json.JSONDecodeError:
            data = None
        now, then = then, text
    return data


RAISING = [matched, matched_by_a_group, matched_by_a_group_of_all_groups, changed_and_read]
"""Programs in which the text may be no JSON, and nothing else raises."""

UNCERTAIN = [
    begins_with_something_else, begins_with_either, begins_with_what_may_be_missing, with_another_default,
    with_nothing_instead, with_a_value_that_is_no_dict,
    replaced_at_the_beginning, white_space_replaced_at_the_beginning,
    put_before_the_beginning, stripped_of_the_beginning, cut_behind_the_beginning, cut_from_what_may_be_missing,
    cut_by_the_places_of_another_text, cut_to_another_bracket, cut_to_a_place_in_another_text, cut_with_a_step,
    an_item_of_what_it_is_not_certain_of, whose_items_are_made_by_a_hook, of_another_beginning_in_a_later_round,
]  # fmt: skip


def _tried(program: Callable[..., Any]) -> Callable[..., Any]:
    def tried(m: Any) -> Any:
        try:
            return program(m)
        except json.JSONDecodeError:
            return None

    return tried


@pytest.mark.parametrize(
    ("program", "is_certain"),
    [*((each, True) for each in (*CERTAIN, *RAISING)), *((each, False) for each in UNCERTAIN)],
)
def test_what_is_certain_behind_a_parsed_reply(program: Callable[..., Any], is_certain: bool) -> None:
    found = read(then_asked(_tried(program)), Model(lambda question, number: "5"))
    assert ("z" in found.certain) is is_certain
    assert "z" in found.certain or "z" in found.possible


@pytest.mark.parametrize("program", RAISING)
def test_a_text_that_is_no_json_holds_up_what_stands_behind(program: Callable[..., Any]) -> None:
    found = read(then_asked(program), Model(lambda question, number: "5"))
    assert "z" not in found.certain
    assert "z" in found.possible


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("program", [*CERTAIN, *UNCERTAIN, *RAISING])
def test_a_program_that_parses_a_reply_asks_the_same(program: Callable[..., Any], answer: str) -> None:
    asks_the_same(then_asked(program), answer)


# --- computing with what is parsed -----------------------------------------------------------------------------------

VALUES = ("1", "-2.5", "true", "null", '"ab"', "[1]", "[]", "{}", "0", "1e999", "NaN", "1" + "0" * 400)
OBJECTS = (*(f'{{"x": {value}, "y": {value}, "z": [{value}]}}' for value in VALUES), '{"x": 5}', "{}", "[5]", "5", "")


def a_sum(m: Any, data: Any, so_far: Any) -> Any:
    so_far += data["x"]
    return so_far


def a_sum_from_the_right(m: Any, data: Any, so_far: Any) -> Any:
    return data["x"] + so_far


def a_difference(m: Any, data: Any, so_far: Any) -> Any:
    so_far -= data["x"]
    return so_far


def a_weighted_sum(m: Any, data: Any, so_far: Any) -> Any:
    so_far += 0.5 * data["x"]
    return so_far


def a_quotient(m: Any, data: Any, so_far: Any) -> Any:
    so_far += data["x"] / data["y"]
    return so_far


def a_remainder(m: Any, data: Any, so_far: Any) -> Any:
    return (so_far + 7) % data["x"]


def a_sum_with_a_default(m: Any, data: Any, so_far: Any) -> Any:
    so_far += data.get("x", 0)
    return so_far


def a_sum_of_either(m: Any, data: Any, so_far: Any) -> Any:
    if "y" in data:
        so_far += data["x"] if data["z"] else 2
    return so_far


def a_sum_in_parts(m: Any, data: Any, so_far: Any) -> Any:
    for each in data["z"]:
        so_far += each
    return so_far


def a_sum_of_all(m: Any, data: Any, so_far: Any) -> Any:
    so_far += sum(data["z"])
    return so_far


def a_sum_of_items(m: Any, data: Any, so_far: Any) -> Any:
    so_far += data["z"][0]
    return so_far


def a_sum_of_a_copy(m: Any, data: Any, so_far: Any) -> Any:
    so_far += copy.deepcopy(data)["x"]
    return so_far


COMPUTING = [
    a_sum, a_sum_from_the_right, a_difference, a_weighted_sum, a_quotient, a_remainder, a_sum_with_a_default,
    a_sum_of_either, a_sum_in_parts, a_sum_of_items, a_sum_of_a_copy,
]  # fmt: skip


def _summing(step: Callable[..., Any], *, is_tried: bool = False) -> Callable[..., Any]:
    def all_together(m: Any) -> Any:
        so_far, bad = 0, 0
        for question in "abcd":
            if is_tried:
                try:
                    so_far = step(m, json.loads(m.ask(question)), so_far)
                except Exception:
                    bad += 1
            else:
                so_far = step(m, json.loads(m.ask(question)), so_far)
        return repr(so_far), bad

    return all_together


@pytest.mark.parametrize("is_tried", [True, False])
@pytest.mark.parametrize("step", COMPUTING)
def test_numbers_of_parsed_replies_may_be_added(step: Callable[..., Any], is_tried: bool) -> None:
    found = read(_summing(step, is_tried=is_tried), Model(lambda question, number: "5"))
    assert [*found.certain, *found.possible] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("answer", OBJECTS)
@pytest.mark.parametrize("step", [*COMPUTING, a_sum_of_all])
def test_a_program_that_adds_parsed_numbers_asks_the_same(step: Callable[..., Any], answer: str) -> None:
    for is_tried in (True, False):
        original, fast = (Model(lambda question, number: answer) for _ in range(2))
        expected, error = None, None
        try:
            expected = _summing(step, is_tried=is_tried)(original)
        except Exception as e:
            error = e
        found, _ = predicted(_summing(step, is_tried=is_tried), fast)
        assert (found.value, type(found.error)) == (expected, type(error))
        if error is None:  # the rounds of a loop are asked together, also where one of them raises
            assert sorted(fast.asked) == sorted(original.asked)


def a_list_grows(m: Any) -> None:
    rows = json.loads(m.ask("a"))
    rows += json.loads(m.ask("b"))


def a_list_is_multiplied(m: Any) -> None:
    rows = json.loads(m.ask("a"))
    rows *= len(m.ask("b"))


def an_item_is_stored(m: Any) -> None:
    json.loads(m.ask("a"))["x"] = 5


def a_list_gains_an_item(m: Any) -> None:
    json.loads(m.ask("a"))["x"].append(5)


@pytest.mark.parametrize("program", [a_list_grows, a_list_is_multiplied, an_item_is_stored, a_list_gains_an_item])
def test_what_may_be_a_list_that_something_else_holds_is_not_changed(program: Callable[..., Any]) -> None:
    found = read(then_asked(program), Model(lambda question, number: "[]"))
    assert found.barrier is not None
    assert "z" not in found.certain


def added(x: Any) -> Any:
    return x + 1


def subtracted(x: Any) -> Any:
    return 5 - x


def added_to_a_text(x: Any) -> Any:
    return "a" + x


def divided(x: Any) -> Any:
    return x / 2


def copied(x: Any) -> Any:
    return copy.deepcopy(x)


def summed(x: Any) -> Any:
    return sum(x)


def got(x: Any) -> Any:
    return x.get("y", 5)


@pytest.mark.parametrize("step", [added, subtracted, added_to_a_text, divided, copied, summed, got])
def test_computing_with_what_is_parsed_may_raise(step: Callable[..., Any]) -> None:
    def program(m: Any) -> None:
        try:
            x = json.loads(m.ask("a"))["x"]
        except Exception:
            x = 0
        step(x)
        m.ask("z")

    assert "z" in read(program, Model(lambda question, number: "5")).possible


def test_the_items_of_a_parsed_list_may_be_no_numbers() -> None:
    def program(m: Any) -> None:
        found = re.search(r"\[.*\]", m.ask("a"), re.DOTALL)
        if found:
            try:
                sum(json.loads(found.group()))
            except json.JSONDecodeError:
                found = None
        m.ask("z")

    assert "z" in read(program, Model(lambda question, number: "5")).possible


def repeated_text(data: Any) -> Any:
    return 2 * data["x"]


def filled_text(data: Any) -> Any:
    return data["x"] % 5


def joined_lists(data: Any) -> Any:
    return data["x"] + data["y"]


def a_set_instead(data: Any) -> Any:
    return data.get("x", {1}) - data.get("y", {2})


def either_of_two_sets(data: Any) -> Any:
    one = data["x"] if data["z"] else {1}
    return one - (data["y"] if data["z"] else {2})


@pytest.mark.parametrize("step", [repeated_text, filled_text, joined_lists, a_set_instead, either_of_two_sets])
def test_what_may_be_no_number_is_not_taken_for_one(step: Callable[..., Any]) -> None:
    def program(m: Any) -> None:
        try:
            made = step(json.loads(m.ask("a")))
        except Exception:
            made = 0
        ordered = made <= 5
        m.ask("z")
        return ordered

    assert "z" not in read(program, Model(lambda question, number: "5")).certain
