"""Declared and assumed effects of functions, as the graph of a pipeline shows them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda

from teola_plugin import optimize, optimized, pure, reads, writes
from tests.test_api import chain

Step = Callable[[dict[str, str]], dict[str, str]]


def upper(x: dict[str, str]) -> dict[str, str]:
    return {"x": x["x"].upper()}


def copied(function: Step = upper) -> Step:
    """The function as another object, which can carry other marks."""

    def step(x: dict[str, str]) -> dict[str, str]:
        return function(x)

    return step


def wrapped(function: Step) -> Step:
    return functools.wraps(function)(copied(function))


class Filing:
    def step(self, x: dict[str, str]) -> dict[str, str]:
        return upper(x)


class Decorated:
    """An object that stands for a function, as decorators written as classes make it."""

    def __init__(self, function: Step) -> None:
        functools.update_wrapper(self, function)

    def __call__(self, x: dict[str, str]) -> dict[str, str]:
        return upper(x)


@writes("kb")
class Saving(Decorated):
    pass


def place(function: Any, assume_pure: Iterable[Any] = ()) -> str:
    """Where a pipeline runs this function, with the resources it reads and writes."""
    graph = optimized(optimize(RunnableLambda(function) | chain(), assume_pure=assume_pure)).traced.graph
    return next(
        line.partition(" @ ")[2] for line in str(graph).splitlines() if "fn='only_x'" not in line and "call(" in line
    )


FILING = Filing()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (upper, "reader"),
        (pure(copied()), "python"),
        (reads("kb")(copied()), "python, reads(kb)"),
        (writes("kb")(copied()), "pipeline, writes(kb)"),
        (reads("a")(reads("b")(copied())), "python, reads(b, a)"),
        (writes("a")(writes("b")(copied())), "pipeline, writes(b, a)"),
        (pure(writes("kb")(copied())), "pipeline, writes(kb)"),
        (writes("kb")(pure(copied())), "pipeline, writes(kb)"),
        (wrapped(pure(copied())), "reader"),
        (wrapped(writes("kb")(copied())), "pipeline, writes(kb)"),
        (pure(wrapped(writes("kb")(copied()))), "pipeline, writes(kb)"),
    ],
)
def test_declared_effects_decide_where_a_function_runs(function: Step, expected: str) -> None:
    assert place(function) == expected


@pytest.mark.parametrize(
    ("function", "assumed", "expected"),
    [
        (upper, upper, "python"),
        (FILING.step, FILING.step, "python"),
        (FILING.step, Filing.step, "python"),
        (FILING.step, Filing().step, "reader, reads(outside)"),
        (writes("kb")(upper_too := copied()), upper_too, "pipeline, writes(kb)"),
        (Decorated(pure(copied())), Decorated, "python"),
        (Saving(pure(copied())), Decorated, "reader"),
    ],
)
def test_assumed_effects_count_where_nothing_is_declared(function: Step, assumed: Any, expected: str) -> None:
    assert place(function, [assumed]) == expected
