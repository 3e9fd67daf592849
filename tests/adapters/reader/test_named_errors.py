"""Parsing a reply in a `try`: where the handlers name each error that may come, requests behind are certain."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.reader.forms_parsing import NAMED, OTHERS, Parse
from tests.adapters.reader.test_python_forms import TEXTS, certain_behind
from tests.adapters.reader.world import same_as_original


@pytest.mark.parametrize(("parse", "errors"), NAMED)
def test_behind_errors_that_are_all_named_requests_are_certain(
    parse: Parse, errors: tuple[type[Exception], ...]
) -> None:
    assert certain_behind(lambda m, text, xs: tried(parse, errors, text))


@pytest.mark.parametrize(("parse", "errors"), OTHERS)
def test_behind_errors_with_other_names_no_request_is_certain(
    parse: Parse, errors: tuple[type[Exception], ...]
) -> None:
    assert not certain_behind(lambda m, text, xs: tried(parse, errors, text))


@pytest.mark.parametrize(("parse", "errors"), [*NAMED, *OTHERS])
@pytest.mark.parametrize("said", [*TEXTS, '{"a": 1}', "stop\na\nb", "1 2.5"])
def test_nothing_is_asked_of_a_parse_but_what_the_original_asks(
    parse: Parse, errors: tuple[type[Exception], ...], said: str
) -> None:
    same_as_original(lambda m: m.ask(tried(parse, errors, m.ask("text"))), lambda *_: said)


def tried(parse: Parse, errors: tuple[type[Exception], ...], text: str) -> Any:
    try:
        return parse(text)
    except errors as e:
        return f"none: {type(e).__name__}"
