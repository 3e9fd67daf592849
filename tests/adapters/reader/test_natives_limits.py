"""What handlers refuse: large results, slow regular expressions,
functions that somebody has put in place of known ones."""

from __future__ import annotations

import asyncio
import builtins
import copy
import datetime
import functools
import itertools
import json
import logging
import random
import re
import time
import uuid
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from teola_plugin.adapters.reader import calls, days, methods, natives, operators
from teola_plugin.adapters.reader.asking import Nobody
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.unknowns import unknown_method
from teola_plugin.adapters.reader.values import Barrier, Callee, Lazy, Opaque, Pending, Undecided, Unknown


def new_run() -> Run:
    return Run(Nobody())


def use(function: Any, *args: Any, **kwargs: Any) -> Any:
    return calls.call(new_run(), Opaque(function), args, kwargs)


LARGE: tuple[Callable[[], Any], ...] = (
    lambda: operators.binary(new_run(), "**", 10, 10**7),
    lambda: operators.binary(new_run(), "<<", 1, 10**9),
    lambda: operators.binary(new_run(), "*", "ab", 10**8),
    lambda: operators.binary(new_run(), "*", [0], 10**9),
    lambda: operators.binary(new_run(), "*", 10**9, (0,)),
    lambda: operators.binary(new_run(), "**", Fraction(3, 7), 10**7),
    lambda: operators.binary(new_run(), "%", "%999999999d", 5),
    lambda: operators.binary(new_run(), "%", "%*d", (999999999, 5)),
    lambda: operators.in_place(new_run(), "*", [0], 10**9),
    lambda: operators.formatted(new_run(), 5, "999999999d", ""),
    lambda: methods.method(new_run(), "{:{}}", "format", (5, 999999999), {}),
    lambda: methods.method(new_run(), "{:999999999}", "format", (5,), {}),
    lambda: methods.method(new_run(), "a", "ljust", (10**9,), {}),
    lambda: methods.method(new_run(), "a", "zfill", (10**9,), {}),
    lambda: methods.method(new_run(), "\t", "expandtabs", (10**9,), {}),
    lambda: methods.method(new_run(), "a" * 100_000, "replace", ("a", "b" * 10_000), {}),
    lambda: methods.method(new_run(), "a" * 10_000, "join", (["b"] * 10_000,), {}),
    lambda: methods.method(new_run(), "a" * 10_000, "translate", ({97: "b" * 10_000},), {}),
    lambda: methods.method(new_run(), 5, "to_bytes", (10**9, "big"), {}),
    lambda: use(pow, 3, 10**8),
    lambda: use(list, range(10**9)),
    lambda: use(sum, range(10**9)),
    lambda: use(sorted, range(10**9)),
    lambda: use(bytes, 10**9),
    lambda: use(int, Decimal("1e900000")),
    lambda: use(Decimal, "1e900000"),
    lambda: use(Fraction, "1e900000"),
    lambda: use(list, use(itertools.count)),
    lambda: use(list, use(itertools.cycle, [1])),
    lambda: use(list, use(itertools.repeat, 1)),
    lambda: use(list, use(itertools.product, range(1000), repeat=3)),
    lambda: use(any, use(map, Opaque(bool), use(itertools.repeat, 0))),
    lambda: use(max, use(itertools.count)),
    lambda: use(re.sub, "a", "b" * 10_000, "a" * 10_000),
    lambda: use(json.dumps, [1], indent=10**9),
)


@pytest.mark.parametrize("make", LARGE, ids=range(len(LARGE)))
def test_a_large_result_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(Barrier):
        make()


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|a)*$", r"(a|aa)+$", r"([a-z]+)*=", r"(.*)*x", r"(\w+\s?)*$",
r"^(a?){30}a{30}$",
                                     r"(a)\1*b", r"(?:(?:a*)*)*b", r"a*a*a*a*a*b"])  # fmt: skip
def test_a_slow_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(Barrier):
        use(re.search, pattern, "a" * 4_000 + "!")


@pytest.mark.parametrize(
    "pattern",
    [r"\d+\.\s*(.*)", r"```json(.*?)```", r"^\s*(yes|no)\b", r"\[(\d+)\]", r"(?i)score:\s*(\d+(?:\.\d+)?)", r"\n\s*\n"],
)
def test_a_usual_pattern_is_read(pattern: str) -> None:
    text = "1. first ```json\n{}``` \n" * 50
    assert use(re.findall, pattern, text) == re.findall(pattern, text)


# --- identity --------------------------------------------------------------------------------------------------------


def test_a_function_in_the_place_of_a_known_one_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "dumps", lambda value: "mine")
    assert natives.native_of(json.dumps) is None


def test_a_known_function_with_another_code_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert natives.native_of(copy.copy) is not None
    monkeypatch.setattr(copy.copy, "__code__", (lambda x: x).__code__)
    assert natives.native_of(copy.copy) is None


EFFECTS = (
    "exec", "eval", "compile", "__import__", "globals", "locals", "vars", "dir", "input", "breakpoint",
    "setattr", "delattr",
)  # fmt: skip


@pytest.mark.parametrize("name", EFFECTS)
def test_what_has_effects_is_not_known(name: str) -> None:
    assert natives.native_of(getattr(builtins, name)) is None


def test_a_wrapped_function_is_not_known() -> None:
    assert natives.native_of(functools.lru_cache(len)) is None


# --- effects and chance ----------------------------------------------------------------------------------------------


def test_nothing_is_printed_or_logged(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    assert use(print, "a", Unknown("text")) is None
    assert use(logging.Logger.warning, Opaque(logging.getLogger()), "%s", 5) is None
    assert use(logging.warning, "a") is None
    assert capsys.readouterr().out == ""
    assert not caplog.records


ALL_DAY_S = 86_400
"""No day has as much left, so that the present day is not known."""


@pytest.mark.parametrize(
    "function", [time.time, datetime.datetime.now, datetime.date.today, random.random, uuid.uuid4, time.perf_counter]
)
def test_chance_is_not_known_and_does_not_raise(function: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(days, "LEFT_S", ALL_DAY_S)
    run = new_run()
    found = calls.call(run, Opaque(function), (), {})
    assert type(found) is Unknown
    assert type(operators.formatted(run, found, "", "")) is Unknown
    assert not run.gates


def test_a_formatted_time_does_not_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(days, "LEFT_S", ALL_DAY_S)
    run = new_run()
    now = calls.call(run, Opaque(datetime.datetime.now), (), {})
    assert methods.unknown_method(run, now, "strftime", ("%Y",), {}).holds == "text"
    assert methods.unknown_field(run, now, "year").holds == "int128"
    assert operators.formatted(run, now, "%Y-%m-%d", "").holds == "text"
    assert operators.binary(run, "-", now, datetime.timedelta(days=1)).holds is datetime.datetime
    assert not run.gates
    methods_of_text = operators.formatted(run, now, "", "r")
    assert methods.unknown_method(run, methods_of_text, "lower", (), {}).holds == "text"
    assert not run.gates


def test_shuffling_makes_the_order_unknown() -> None:
    run, held = new_run(), [1, 2, 3]
    calls.call(run, Opaque(random.shuffle), (held,), {})
    with pytest.raises(Undecided):
        operators.subscript(run, held, 0)


# --- changes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "args"), [("append", (4,)), ("sort", ()), ("pop", ()), ("extend", ([4],))])
def test_what_is_not_its_own_is_not_changed(name: str, args: tuple[Any, ...]) -> None:
    run, theirs = new_run(), [3, 1, 2]
    held = run.load(theirs)
    with pytest.raises(Barrier):
        methods.method(run, held, name, args, {})
    with pytest.raises(Barrier):
        operators.in_place(run, "+", held, [1])
    with pytest.raises(Barrier):
        operators.set_item(run, held, 0, 1)
    assert theirs == held == [3, 1, 2]


@pytest.mark.parametrize("items", [Unknown(), Unknown("texts")])
def test_a_list_extended_by_unknown_items_is_not_known(items: Unknown) -> None:
    run, held = new_run(), [1, 2]
    assert methods.method(run, held, "extend", (items,), {}) is None
    assert run.is_unknown(held)
    other: list[Any] = [1]
    assert operators.in_place(run, "+", other, items) is other
    assert run.is_unknown(other)


@pytest.mark.parametrize(("name", "args"), [("pop", ("hole",)), ("insert", ("hole", 1)), ("remove", ("hole",))])
def test_a_list_changed_in_an_unknown_way_is_not_known(name: str, args: tuple[Any, ...]) -> None:
    run, held = new_run(), [1, 2]
    given = tuple(Unknown() if each == "hole" else each for each in args)
    with pytest.raises(Undecided):
        methods.method(run, held, name, given, {})
    assert run.is_unknown(held)


@pytest.mark.parametrize(
    ("one", "two", "holds"),
    [
        (["a"], [], "texts"),
        (["a"], ["b", "c"], "texts"),
        (["a"], [1, 2], "list"),
        (["a"], Unknown("texts"), "texts"),
        ([{}, {}], Unknown("texts"), "list"),
        (["a"], {}, "any"),
    ],
)
def test_either_of_two_lists_is_changed_by_no_other_name(one: Any, two: Any, holds: str) -> None:
    run = new_run()
    found = run.joined(one, two)
    assert found.holds == holds
    changes: list[Callable[[Any], Any]] = [
        lambda held: (unknown_method if type(held) is Unknown else methods.method)(run, held, "append", (1,), {}),
        lambda held: operators.in_place(run, "+", held, [1]),
        lambda held: operators.set_item(run, held, 0, 1),
    ]
    for held in (found, one, two) if holds != "any" else (found,):
        for change in changes:
            with pytest.raises(Barrier):
                change(held)


def test_a_view_of_a_dict_that_is_not_known_any_more() -> None:
    run, held = new_run(), {"a": 1}
    view = methods.method(run, held, "items", (), {})
    iterator = calls.call(run, Opaque(iter), (held,), {})
    run.taint(held)
    for each in (view, iterator):
        with pytest.raises(Undecided):
            calls.call(run, Opaque(list), (each,), {})


def test_an_iterator_is_lost_after_an_undecided_step() -> None:
    run = new_run()
    test = Callee(lambda r, args, kwargs: Unknown("bool") if args[0] == 2 else True, "test")
    found = calls.call(run, Opaque(filter), (test, [1, 2, 3]), {})
    assert type(found) is Lazy
    assert next(found) == 1
    for _ in range(2):
        with pytest.raises(Undecided):
            next(found)


def test_a_change_through_an_unknown_value_is_refused() -> None:
    run = new_run()
    for act in (
        lambda: methods.unknown_method(run, Unknown(), "append", (1,), {}),
        lambda: operators.set_item(run, Unknown(), 0, 1),
        lambda: operators.in_place(run, "+", Unknown(), [1]),
    ):
        with pytest.raises(Barrier):
            act()


# --- asyncio ---------------------------------------------------------------------------------------------------------


def failing(error: Exception) -> Pending:
    def force() -> Any:
        raise error

    return Pending(force)


def test_gather_evaluates_all_in_order() -> None:
    order: list[int] = []
    parts = [Pending(lambda i=i: order.append(i) or i) for i in range(3)]  # type: ignore[misc]
    found = use(asyncio.gather, *parts)
    assert order == []
    assert found.force() == [0, 1, 2]
    assert order == [0, 1, 2]


def test_gather_raises_after_all_are_evaluated() -> None:
    order: list[int] = []
    last = Pending(lambda: order.append(1))
    with pytest.raises(KeyError):
        use(asyncio.gather, failing(KeyError()), last).force()
    assert order == [1]
    back = use(asyncio.gather, failing(KeyError()), last, return_exceptions=True).force()
    assert type(back[0]) is KeyError


def test_a_task_is_evaluated_once() -> None:
    order: list[int] = []
    task = use(asyncio.create_task, Pending(lambda: order.append(1) or 5))  # type: ignore[func-returns-value]
    assert [task.force(), task.force()] == [5, 5]
    assert order == [1]


def test_a_time_limit_may_raise() -> None:
    run = new_run()
    part = calls.call(run, Opaque(asyncio.wait_for), (Pending(lambda: 5), 1.0), {})
    assert part.force() == 5
    assert run.gates


# --- LangGraph -------------------------------------------------------------------------------------------------------


def test_add_messages_merges_as_langgraph_does() -> None:
    messages = pytest.importorskip("langchain_core.messages")
    add_messages = pytest.importorskip("langgraph.graph.message").add_messages
    one, two = messages.HumanMessage("a", id="1"), messages.AIMessage("b", id="2")
    cases = [
        ([one], [two]), ([one, two], [messages.HumanMessage("c", id="1")]), ([one], two), ([one], "x"),
        ([], [("ai", "x")]),
        ([one, two], [messages.RemoveMessage(id="1")]), ([one], [messages.RemoveMessage(id="9")]),
        ([one, two], [messages.RemoveMessage(id="__remove_all__"), messages.AIMessage("n", id="5")]),
        ([one], [{"role": "user", "content": "q"}]),
    ]  # fmt: skip

    def shown(act: Callable[[], Any]) -> Any:
        try:
            return [(type(each), each.content) for each in act()]
        except ValueError as e:
            return type(e)

    for left, right in cases:
        run = new_run()
        given = run.load(left), run.load(right)
        ours = shown(lambda g=given, r=run: calls.call(r, Opaque(add_messages), g, {}))  # type: ignore[misc]
        theirs = shown(lambda a=left, b=right: add_messages(copy.deepcopy(a), copy.deepcopy(b)))  # type: ignore[misc]
        assert ours == theirs


def test_a_framework_function_that_was_replaced_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("langchain_core.messages.utils")
    assert natives.native_of(module.get_buffer_string) is not None
    monkeypatch.setattr(module, "get_buffer_string", lambda messages: "mine")
    assert natives.native_of(module.get_buffer_string) is None
