"""A pytest plugin for `make llamaindex`: of each test, so few cases that every value of every parameter occurs.

So every component and every form is there on the older releases, though not each component in each form.
`QueryPipeline`, which newer ones lack, is tested whole.

With `TEOLA_TEST_TURN` in the environment, each of two releases takes every other test, and the others at the next turn.
"""

from __future__ import annotations

import os
from collections import defaultdict
from importlib.metadata import version

import pytest

WHOLE = ("test_llamaindex_query_pipeline.py",)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is not in the sample."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.split("[")[0]].append(item)
    chosen = [cases[name] for name in sorted(cases)]
    if turn := os.environ.get("TEOLA_TEST_TURN"):
        is_later = version("llama-index-core") >= "0.13"
        chosen = [
            each for at, each in enumerate(chosen) if each[0].path.name in WHOLE or (at + int(turn)) % 2 == is_later
        ]
    taken = {item for each in chosen for item in _sample(each)}
    config.hook.pytest_deselected(items=[item for item in items if item not in taken])
    items[:] = [item for item in items if item in taken]


def _sample(cases: list[pytest.Item]) -> list[pytest.Item]:
    """The case with most values that no case before it has, until all have been."""
    if cases[0].path.name in WHOLE:
        return cases
    taken: list[pytest.Item] = []
    left = {item: _values(item) for item in sorted(cases, key=lambda item: item.nodeid)}  # shuffled, or not yet
    while any(left.values()) or not taken:
        taken.append(max(left, key=lambda item: len(left[item])))
        seen = left.pop(taken[-1])
        left = {item: values - seen for item, values in left.items()}
    return taken


def _values(item: pytest.Item) -> set[tuple[str, int]]:
    """Name and identity of each value."""
    callspec = getattr(item, "callspec", None)
    return {(name, id(value)) for name, value in callspec.params.items()} if callspec else set()
