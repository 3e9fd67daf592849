"""JSON that programs cut out of replies: what the text begins with decides the type of what it parses to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.adapters.reader.world import Model, predicted, read

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


def _then(program: Callable[..., Any]) -> Callable[..., Any]:
    def both(m: Any) -> Any:
        found = program(m)
        m.ask("z")
        return found

    return both


@pytest.mark.parametrize(
    ("program", "is_certain"),
    [*((each, True) for each in (*CERTAIN, *RAISING)), *((each, False) for each in UNCERTAIN)],
)
def test_what_is_certain_behind_a_parsed_reply(program: Callable[..., Any], is_certain: bool) -> None:
    found = read(_then(_tried(program)), Model(lambda question, number: "5"))
    assert ("z" in found.certain) is is_certain
    assert "z" in found.certain or "z" in found.possible


@pytest.mark.parametrize("program", RAISING)
def test_a_text_that_is_no_json_holds_up_what_stands_behind(program: Callable[..., Any]) -> None:
    found = read(_then(program), Model(lambda question, number: "5"))
    assert "z" not in found.certain
    assert "z" in found.possible


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("program", [*CERTAIN, *UNCERTAIN, *RAISING])
def test_a_program_that_parses_a_reply_asks_the_same(program: Callable[..., Any], answer: str) -> None:
    original, fast = (Model(lambda question, number: answer) for _ in range(2))
    expected, error = None, None
    try:
        expected = _then(program)(original)
    except Exception as e:
        error = e
    found, rounds = predicted(_then(program), fast)
    assert (found.value, repr(found.error)) == (expected, repr(error))
    assert sorted(fast.asked) == sorted(original.asked)
    assert not set(rounds[0]) - set(original.asked)
