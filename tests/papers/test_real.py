"""App C on real engines: what is said of answers that differ or are shorter than they were to be."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from papers.teola.modes import PAPERS
from papers.teola.real import Tried, equal, short_texts

from teola_plugin.engines import Batch, Capabilities, Completion, Done, Emit, Item, Outcome

ENDLESS = {"ignore_eos": True, "max_tokens": 3}


class Writer:
    """An LLM that writes as many words as a prompt says."""

    name, capabilities = "llm", Capabilities()

    async def run(self, batch: Batch, emit: Emit) -> None:
        for at, item in enumerate(batch.items):
            emit(at, Done(Completion("word " * item.payload, output_tokens=item.payload)))

    def abort(self, ids: Any) -> None: ...


@pytest.mark.parametrize(
    ("settings", "short"),
    [(ENDLESS, {"ours": 1}), ({"max_tokens": 3}, {}), ({**ENDLESS, "structured_outputs": {"regex": "a"}}, {})],
)
def test_texts_that_only_the_limit_ends_are_counted_where_they_end_before(
    settings: Mapping[str, Any], short: Mapping[str, int]
) -> None:
    llm = Writer()
    found = short_texts(llm)
    told: list[Outcome] = []
    items = (Item(1, tenant="ours"), Item(3, tenant="ours"), Item(3, tenant="theirs"))
    asyncio.run(llm.run(Batch("decoding", settings, items), lambda at, outcome: told.append(outcome)))
    assert (found, len(told)) == (short, 3)


def test_answers_are_compared_query_by_query() -> None:
    first = Tried(PAPERS[0], None, {"a": "one", "b": "two", "c": "three"})
    other = Tried(PAPERS[1], None, {"a": "one", "b": "2", "c": "three"})
    assert [equal(other, first, 0), equal(other, first, 4)] == ["2 of 3", "2 of 3, 4 SHORT"]
