"""Texts that a program splits behind a test: what the test has shown decides which parts are certainly there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.adapters.reader.world import Model, ModelAsker, asks_the_same, read, then_asked

ANSWERS = ("", "A", "xAyBz", "A:B", "```json\n5```", "```", "B\nxA\n:", "A\nB", "AAA", "BA", ":A:")


def a_part_in_an_expression(m: Any) -> Any:
    text = m.ask("a")
    return text.split("A")[1] if "A" in text else "none"


def parts_in_an_if(m: Any) -> Any:
    text = m.ask("a").strip()
    if "```json" in text:
        text = text.split("```json")[1].split("```")[0].strip()
    elif "```" in text:
        text = text.split("```")[1]
    return text


def a_smaller_separator(m: Any) -> Any:
    text = m.ask("a")
    return text.split("`")[-2] if "```" in text else text


def behind_a_return(m: Any) -> Any:
    text = m.ask("a")

    def part() -> Any:
        if "A" not in text:
            return ""
        return text.rsplit("A")[1]

    return part()


def behind_the_beginning(m: Any) -> Any:
    text = m.ask("a")
    if text.startswith("```"):
        text = text.split("```")[1]
        if text.startswith("json"):
            text = text[4:]
    return text


def behind_the_end(m: Any) -> Any:
    text = m.ask("a")
    return text.split(sep="A", maxsplit=2)[1] if text.endswith("A") else text


def two_parts(m: Any) -> Any:
    text = m.ask("a")
    if ":" in text:
        name, value = text.split(":", 1)
        return name.strip(), value.strip()
    return None


def two_parts_of_each_line(m: Any) -> Any:
    found = {}
    for line in m.ask("a").split("\n"):
        if ":" in line:
            name, value = line.rsplit(":", maxsplit=1)
            found[name.strip()] = value.strip()
    return found


def of_a_comprehension(m: Any) -> Any:
    return [line.split("A")[1] for line in m.ask("a").split("\n") if "A" in line]


def by_the_length(m: Any) -> Any:
    parts = m.ask("a").split("A")
    one = parts[1] if len(parts) > 1 else None
    two = parts[-2] if len(parts) >= 2 else None
    if len(parts) != 2:
        return one, two, None
    return one, two, parts[1]


def by_a_small_length(m: Any) -> Any:
    parts = m.ask("a").split("A")
    if len(parts) <= 1:
        return None
    return parts[1] if len(parts) < 3 else parts[-2]


def behind_two_tests(m: Any) -> Any:
    text = m.ask("a")
    if "A" in text and "B" in text:
        return text.split("A")[1], text.split("B")[1]
    return None


def behind_neither_of_two_tests(m: Any) -> Any:
    text = m.ask("a")
    if "A" not in text or "B" not in text:
        return None
    return text.split("A")[1], text.split("B")[1]


def a_part_of_one_of_all(m: Any) -> Any:
    rows = sorted(enumerate(m.ask("a").split("\n")))
    return [row.split("A")[1] if "A" in row else row for _, row in rows]


CERTAIN = [
    a_part_in_an_expression, parts_in_an_if, a_smaller_separator, behind_a_return, behind_the_beginning,
    behind_the_end, two_parts, two_parts_of_each_line, of_a_comprehension, by_the_length, by_a_small_length,
    behind_two_tests, behind_neither_of_two_tests, a_part_of_one_of_all,
]  # fmt: skip


def of_the_other_arm(m: Any) -> Any:
    text = m.ask("a")
    return text if "A" in text else text.split("A")[1]


def behind_a_test_for_less(m: Any) -> Any:
    text = m.ask("a")
    return text.split("```json")[1] if "```" in text else text


def behind_a_test_for_nothing(m: Any) -> Any:
    text = m.ask("a")
    return text[0] if "" in text else text


def a_third_part(m: Any) -> Any:
    text = m.ask("a")
    return text.split("A")[2] if "A" in text else text


def a_third_part_from_the_end(m: Any) -> Any:
    text = m.ask("a")
    return text.split("A")[-3] if "A" in text else text


def behind_another_beginning(m: Any) -> Any:
    text = m.ask("a")
    return text if text.startswith("A") else text.split("A")[1]


def not_split_at_all(m: Any) -> Any:
    text = m.ask("a")
    return text.split("A", 0)[1] if "A" in text else text


def split_at_white_space(m: Any) -> Any:
    text = m.ask("a")
    return text.split()[1] if "A" in text else text


def of_another_text(m: Any) -> Any:
    text = m.ask("a")
    return text.lower().split("A")[1] if "A" in text else text


def perhaps_more_than_two(m: Any) -> Any:
    text = m.ask("a")
    if "A" in text:
        one, two = text.split("A", 2)
        return one, two
    return None


def of_a_shortened_list(m: Any) -> Any:
    text = m.ask("a")
    if "A" in text:
        parts = text.split("A")
        parts.clear()
        return parts[1]
    return None


def by_a_length_before_a_change(m: Any) -> Any:
    parts = m.ask("a").split("A")
    are_several = len(parts) > 1
    parts.clear()
    return parts[1] if are_several else None


def by_a_length_that_is_too_small(m: Any) -> Any:
    parts = m.ask("a").split("A")
    return parts[1] if len(parts) >= 1 else None


def by_another_length(m: Any) -> Any:
    parts = m.ask("a").split("A")
    return None if len(parts) == 2 else parts[1]


def by_a_great_length(m: Any) -> Any:
    parts = m.ask("a").split("A")
    return parts[1] if len(parts) < 2 else None


def behind_either_of_two_tests(m: Any) -> Any:
    text = m.ask("a")
    return text.split("A")[1] if "A" in text or "B" in text else None


def behind_not_both_of_two_tests(m: Any) -> Any:
    text = m.ask("a")
    return None if "A" not in text and "B" not in text else text.split("A")[1]


def a_part_of_all_behind_a_test_of_one(m: Any) -> Any:
    rows = sorted(enumerate(m.ask("a").split("\n")))
    found = None
    for _, row in rows:
        if "A" in row:
            for _, other in rows:
                found = other.split("A")[1]
    return found


UNCERTAIN = [
    of_the_other_arm, behind_a_test_for_less, behind_a_test_for_nothing, a_third_part, a_third_part_from_the_end,
    behind_another_beginning, not_split_at_all, split_at_white_space, of_another_text, perhaps_more_than_two,
    of_a_shortened_list, by_a_length_before_a_change, by_a_length_that_is_too_small, by_another_length,
    by_a_great_length, behind_either_of_two_tests, behind_not_both_of_two_tests, a_part_of_all_behind_a_test_of_one,
]  # fmt: skip


@pytest.mark.parametrize(
    ("program", "is_certain"), [*((each, True) for each in CERTAIN), *((each, False) for each in UNCERTAIN)]
)
def test_what_is_certain_behind_the_parts_of_a_reply(program: Callable[..., Any], is_certain: bool) -> None:
    found = read(then_asked(program), Model(lambda question, number: "A"))
    assert ("z" in found.certain) is is_certain
    assert "z" in found.certain or "z" in found.possible


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("program", [*CERTAIN, *UNCERTAIN])
def test_a_program_that_splits_a_reply_asks_the_same(program: Callable[..., Any], answer: str) -> None:
    asks_the_same(then_asked(program), answer)


def the_text_of_a_message(m: Any) -> None:
    reply = m.ask("a")
    if "A" in reply.content:
        reply.content.split("A")[1]


def the_text_of_a_changed_message(m: Any) -> None:
    reply = m.ask("a")
    if "A" in reply.content:
        reply.content = "B"
        reply.content.split("A")[1]


def the_text_of_another_message(m: Any) -> None:
    reply, other = m.ask("a"), m.ask("b")
    if "A" in reply.content:
        other.content.split("A")[1]


def the_text_of_a_document(m: Any) -> None:
    found = m.ask("a")
    if "A" in found.page_content:
        found.page_content.split("A")[1]


def the_text_of_a_changed_document(m: Any) -> None:
    found = m.ask("a")
    if "A" in found.page_content:
        found.page_content = "B"
        found.page_content.split("A")[1]


@pytest.mark.parametrize(
    ("holds", "program", "is_certain"),
    [
        ("message", the_text_of_a_message, True), ("message", the_text_of_a_changed_message, False),
        ("message", the_text_of_another_message, False), ("document", the_text_of_a_document, True),
        ("document", the_text_of_a_changed_document, False),
    ],
)  # fmt: skip
def test_a_field_is_the_same_text_until_a_field_is_changed(
    holds: str, program: Callable[..., Any], is_certain: bool
) -> None:
    found = read(then_asked(program), Model(lambda question, number: "A"), asker=ModelAsker(holds))
    assert ("z" in found.certain) is is_certain
