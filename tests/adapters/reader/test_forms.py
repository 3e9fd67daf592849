"""The ways to write a node: all are read, or there is a reason why not."""

from __future__ import annotations

import pytest

from tests.adapters.reader.forms import FORMS
from tests.adapters.reader.forms_world import check


@pytest.mark.parametrize("name", list(FORMS))
def test_form(name: str) -> None:
    form = FORMS[name]
    found = check(form)
    assert (found.rounds[0], form.why in found.stopped, not found.stopped) == (form.first, True, not form.why), found
