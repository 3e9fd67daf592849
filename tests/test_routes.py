"""Which targets of branches are likely, and when requests may be for nothing: the rule alone."""

from __future__ import annotations

from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor

import pytest

from teola_plugin.adapters.reader.branches import Branches
from teola_plugin.routes import ACCOUNT_CALLS, LAST, LEARNING_CALLS, LEAST, MAX_BRANCHES, CallRoutes, Routes


def after(*targets: Hashable | None, asked: int = 0, wasted: int = 0) -> Routes:
    """The routes of as many calls, each of which came to one branch."""
    routes = Routes()
    for target in targets:
        routes.end([("b", target)], asked, wasted)
    return routes


@pytest.mark.parametrize(
    ("targets", "likely"),
    [
        (["x"] * (LEAST - 1), None),
        (["x"] * LEAST, "x"),
        (["x"] * (LEAST - 1) + ["y"], None),
        (["x"] * 9 + ["y"], "x"),
        (["x"] * 8 + ["y"] * 2, None),
        (["y"] * LAST + ["x"] * LAST, "x"),
        (["x"] * LAST + ["y"], "x"),
        (["x"] * LAST + ["y"] * 2, None),
        (["x"] * 9 + [None], "x"),
        (["x"] * 8 + [None] * 2, None),
        ([None] * LAST, None),
        ([False] * LEAST, False),
    ],
)
def test_a_target_is_likely_that_nearly_all_of_the_last_calls_took(targets: list[Hashable], likely: Hashable) -> None:
    routes = after(*targets)
    assert routes.likely("b") == likely
    assert routes.likely("another") is None
    assert routes.known() == ({} if likely is None else {"b": likely})


def test_a_call_says_when_a_branch_becomes_likely() -> None:
    routes = Routes()
    assert [routes.end([("b", "x")], 1, 0) for _ in range(LEAST + 1)] == [False] * (LEAST - 1) + [True, False]


def test_nothing_is_asked_for_nothing_once_a_tenth_was_wasted_until_that_is_long_ago() -> None:
    routes = after(*"xxxxx", asked=9)
    assert routes.has_budget
    routes.end([], 10, 5)
    assert routes.has_budget  # 5 of 55
    routes.end([], 10, 3)
    assert not routes.has_budget  # 8 of 65
    assert not CallRoutes(routes).has_budget
    for _ in range(2):
        routes.end([], 10, 0)
    assert routes.has_budget  # 8 of 85
    routes.end([], 10, 10)
    assert not routes.has_budget
    for _ in range(ACCOUNT_CALLS):
        routes.end([], 10, 0)
    assert routes.has_budget


def test_what_a_call_takes_to_be_likely_does_not_change_while_it_runs() -> None:
    routes = after(*["x"] * LEAST)
    call = CallRoutes(routes)
    assert call.likely("b") == "x"
    for _ in range(LAST):
        routes.end([("b", "y")], 1, 0)
    assert (call.likely("b"), CallRoutes(routes).likely("b")) == ("x", "y")


def test_a_branch_that_was_reached_and_not_decided_led_nowhere() -> None:
    routes = after(*["x"] * 8)
    for _ in range(2):
        call = CallRoutes(routes)
        call.reached("b")
        call.end(1, 0)
    assert routes.likely("b") is None


def test_only_what_was_reached_is_decided_and_each_time_counts() -> None:
    routes, reader = Routes(), object()
    call = CallRoutes(routes)
    for at in range(LEAST):
        call.took("never", "x", (reader, at))
        call.reached("b", (reader, at))
        call.took("b", "x", (reader, at))
    call.end(1, 0)
    assert routes.known() == {"b": "x"}


def test_what_a_reader_has_left_open_is_another_ones() -> None:
    routes, readers = after(*["y"] * LEAST), (object(), object())
    for _ in range(LAST):
        call = CallRoutes(routes)
        for reader in readers:
            call.reached("b", (reader, 1))
        call.forget(readers[0])
        call.took("b", "x", (readers[1], 1))
        call.end(1, 0)
    assert routes.likely("b") == "x"


def test_each_round_of_an_if_is_decided_by_itself() -> None:
    routes = Routes()
    call = CallRoutes(routes)
    first, second = Branches(call, "reader"), Branches(call, "reader")
    for _ in range(LEAST):
        assert first.undecided("b") is None
    for _ in range(LEAST):
        second.decided("b", "x")
    call.end(1, 0)
    assert routes.known() == {"b": "x"}


def test_how_an_if_comes_out_behind_what_is_assumed_is_not_learned() -> None:
    routes = after(*["x"] * LEAST)
    for _ in range(LAST):
        call = CallRoutes(routes)
        Branches(call, "reader").undecided("b")
        assuming = Branches(call, "reader", is_assuming=True)
        assert assuming.undecided("b") == "x"
        assert assuming.has_assumed
        assuming.decided("b", "y")
        call.end(1, 0)
    assert routes.known() == {"b": "x"}


def test_a_call_at_rest_learns_and_asks_nothing() -> None:
    call = CallRoutes(after(*["x"] * LEAST), is_at_rest=True)
    assert (call.likely("b"), call.has_budget) == ("x", False)


def test_the_first_calls_are_not_judged() -> None:
    routes = after(*["x"] * LEARNING_CALLS)
    assert CallRoutes(routes).is_learning
    routes.end([], 1, 0)
    assert not CallRoutes(routes).is_learning


def test_memory_is_bounded() -> None:
    routes = Routes()
    for _ in range(LEAST):
        routes.end([(n, "x") for n in range(2 * MAX_BRANCHES)], 1, 0)
    assert len(routes.known()) == MAX_BRANCHES


def test_calls_at_once_lose_nothing() -> None:
    routes = Routes()

    def call(n: int) -> None:
        one = CallRoutes(routes)
        one.reached(n % 4)
        one.took(n % 4, "x")
        one.end(1, 0)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(call, range(400)))
    assert (routes.calls, routes.known()) == (400, dict.fromkeys(range(4), "x"))
