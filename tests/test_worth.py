"""Running ahead rests where it gains nothing."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

from teola_plugin import explain, optimize, optimized
from teola_plugin.models.langchain import EngineLLM
from teola_plugin.runtime.engines.simulated import ProfileLLM
from teola_plugin.runtime.session.report import Report
from teola_plugin.worth import CALLS_BEFORE_CHECK, CHECKS, MOST_REST_CALLS, REST_CALLS, UNCHECKED_CALLS, Worth
from tests.conftest import CHECKED_CALLS, CHECKED_GAIN, PATIENCE_CALLS, READING
from tests.support.tiny_profiles import TINY_CPU_LLM

CHECKED = pytest.mark.usefixtures("checks")
USELESS = Report(hits=3, gained_s=0.02, started_s=7.0, ended_s=8.0)
USEFUL = Report(hits=3, gained_s=0.04, started_s=7.0, ended_s=8.0)
PREFILLED = Report(prefills=1, ended_s=1.0)
SHORT = Report(hits=3, ended_s=0.001)


@pytest.fixture(autouse=True)
def rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines rest here, unlike in other tests."""
    monkeypatch.setattr("teola_plugin.worth.PATIENCE_CALLS", PATIENCE_CALLS)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gains are checked in the test, unlike in other tests."""
    monkeypatch.setattr("teola_plugin.worth.CHECKED_GAIN", CHECKED_GAIN)
    monkeypatch.setattr("teola_plugin.worth.CHECKED_CALLS", CHECKED_CALLS)
    monkeypatch.setattr("teola_plugin.worth.READING", READING)


def judge(worth: Worth, report: Report, calls: int = 1) -> None:
    """Judge a call which began after all earlier ones had ended."""
    later_s = worth.useless_s
    worth.judge(replace(report, started_s=report.started_s + later_s, ended_s=report.ended_s + later_s), calls)


def runs(*reports: Report) -> list[bool]:
    """Which of so many calls, in turn, ran ahead."""
    worth, ran = Worth(), []
    for report in reports:
        ran.append(worth.is_worth())
        if ran[-1]:
            judge(worth, report)
    return ran


def test_it_rests_after_calls_that_gained_nothing_and_tries_again() -> None:
    calls = runs(*[USELESS] * (PATIENCE_CALLS + 3 * REST_CALLS + 2))
    assert calls == [True] * PATIENCE_CALLS + [False] * REST_CALLS + [True] + [False] * 2 * REST_CALLS + [True]


def test_a_call_that_asks_for_nothing_does_not_count_beside_calls_that_do() -> None:
    """As where a graph is interrupted, and a second call resumes it."""
    first, idle = Report(misses=3, ended_s=1.0), Report(ended_s=0.1)
    assert runs(*[first, idle], *[USEFUL, idle] * 20) == [True] * 42
    assert not all(runs(*[idle] * 5))


def test_a_rest_has_an_end_and_a_gain_makes_the_next_one_short() -> None:
    worth = Worth()
    for _ in range(20):
        worth.resting = 0
        judge(worth, USELESS)
    assert worth.resting == MOST_REST_CALLS
    judge(worth, USEFUL)
    for _ in range(PATIENCE_CALLS):
        judge(worth, USELESS)
    assert worth.resting == REST_CALLS


def test_calls_side_by_side_count_once() -> None:
    """Eight calls at once, of which each is the first one, are no more evidence than one."""
    worth = Worth()
    assert [worth.is_worth() for _ in range(8)] == [True] * 8
    for at in range(8):
        worth.judge(replace(USELESS, ended_s=8.0 + at))
    assert worth.is_worth()
    assert worth.useless == 1


def test_one_call_of_several_side_by_side_tries_again_after_a_rest() -> None:
    worth = Worth()
    for _ in range(PATIENCE_CALLS):
        judge(worth, USELESS)
    tries = [worth.is_worth() for _ in range(3 * REST_CALLS + 2)]
    assert tries == [*[False] * REST_CALLS, True, *[False] * 2 * REST_CALLS, True]
    judge(worth, USEFUL)
    assert [worth.is_worth() for _ in range(8)] == [True] * 8


def test_a_call_that_tries_again_and_asks_for_nothing_tells_nothing() -> None:
    worth = Worth()
    for _ in range(PATIENCE_CALLS):
        judge(worth, USELESS)
    worth.resting = 0
    assert worth.is_worth()
    judge(worth, Report(ended_s=0.1))
    assert worth.is_worth()


def test_it_rests_sooner_after_calls_without_a_hit() -> None:
    assert runs(*[replace(USELESS, hits=0, misses=3)] * 4) == [True, True, False, False]


def test_reading_that_costs_more_cpu_than_it_gains_rests() -> None:
    read = Report(hits=1, gained_s=0.01, ended_s=0.015, reading_s=0.011)
    assert runs(*[read] * (PATIENCE_CALLS + 1))[-1] is False
    assert all(runs(*[replace(read, reading_s=0.001)] * 10))
    assert all(runs(*[Report(hits=3, gained_s=0.67, ended_s=2.2, reading_s=0.23)] * 10))  # 0.38 s sooner


@CHECKED
def test_a_gain_that_took_much_reading_is_checked() -> None:
    def ran(at_rest_s: float) -> list[bool]:
        return checked(1.0, at_rest_s, calls=CALLS_BEFORE_CHECK + 2 * CHECKS + 1, share=0.3, reading_s=0.2)

    assert ran(1.2).count(False) == 2  # the checks; 0.2 s sooner
    assert ran(0.9)[-1] is False


def test_requests_that_cost_more_than_they_gain_rest() -> None:
    many = Report(hits=30, hosted_hits=30, gained_s=0.05, ended_s=0.3)
    assert runs(*[many] * (PATIENCE_CALLS + 1))[-1] is False
    assert all(runs(*[replace(many, hosted_hits=10)] * 10))


def checked(ahead_s: float, at_rest_s: float, *, calls: int, share: float = 0.1, reading_s: float = 0.0) -> list[bool]:
    """Which of so many calls with a small estimated gain ran ahead."""
    worth, ran = Worth(), []
    for _ in range(calls):
        ran.append(worth.is_worth())
        took_s = ahead_s if ran[-1] else at_rest_s
        report = Report(hits=3, gained_s=share * took_s, ended_s=took_s, rested=not ran[-1], reading_s=reading_s)
        judge(worth, report)
    return ran


@CHECKED
def test_a_call_that_asks_is_not_compared_with_one_that_asks_for_nothing() -> None:
    worth, ran = Worth(), []
    for at in range(40):
        ran.append(worth.is_worth())
        took_s = 0.1 if at % 2 else 1.0 if ran[-1] else 1.05
        asks = Report(hits=3, gained_s=0.1 * took_s)
        judge(worth, replace(Report() if at % 2 else asks, ended_s=took_s, rested=not ran[-1]))
    assert 4 < sum(not each for each in ran) < 12
    assert ran[-4:] == [True] * 4


@CHECKED
def test_a_small_gain_that_is_none_beside_calls_at_rest_rests() -> None:
    before = [True] * CALLS_BEFORE_CHECK + [False, True] * CHECKS
    again = [True, False, True]
    ran = checked(1.0, 0.97, calls=len(before) + 3 * REST_CALLS + 2 * len(again) + 1)
    assert ran == [*before, *[False] * REST_CALLS, *again, *[False] * 2 * REST_CALLS, *again, False]
    assert all(checked(1.0, 0.9, calls=20, share=CHECKED_GAIN))


@CHECKED
def test_any_gain_of_calls_side_by_side_is_checked() -> None:
    """The estimate of a gain counts the delays of calls by each other."""
    for calls in (1, CHECKED_CALLS):
        worth, ran = Worth(), []
        for _ in range(CALLS_BEFORE_CHECK + 2 * CHECKS + 1):
            ran.append(worth.is_worth())
            took_s = 1.0 if ran[-1] else 0.9
            judge(worth, Report(hits=3, gained_s=3.0, ended_s=took_s, rested=not ran[-1]), calls)
        assert ran[-1] is (calls == 1)


@CHECKED
def test_calls_that_end_before_any_call_at_rest_are_no_check() -> None:
    """Calls side by side: several had begun before the first check."""
    worth = Worth()
    for _ in range(PATIENCE_CALLS + 2 * CHECKS):
        worth.judge(Report(hits=3, gained_s=0.1, ended_s=1.0))
    assert not worth.is_worth()  # the call at rest
    worth.judge(Report(misses=3, ended_s=1.05, rested=True))
    assert worth.is_worth()
    assert worth.resting == 0


@CHECKED
def test_a_small_gain_that_is_one_is_checked_ever_more_seldom() -> None:
    ran = checked(1.0, 1.05, calls=100)
    rests = [at for at, is_ahead in enumerate(ran) if not is_ahead]
    assert rests[0] == CALLS_BEFORE_CHECK
    assert [b - a - 1 for a, b in itertools.pairwise(rests)] == [UNCHECKED_CALLS * 2**i for i in range(4)]


@CHECKED
def test_calls_of_different_lengths_are_compared_with_both_neighbours() -> None:
    """Calls that become longer and longer are not taken for slower ones."""
    worth, rested = Worth(), 0
    for at in range(16):
        is_ahead = worth.is_worth()
        rested += not is_ahead
        took_s = (1.0 if is_ahead else 1.05) * (1 + 0.08 * at)
        judge(worth, Report(hits=3, gained_s=0.1 * took_s, ended_s=took_s, rested=not is_ahead))
    assert rested == 2


def test_one_gain_is_enough_to_go_on() -> None:
    assert all(runs(*[USELESS, USELESS, USEFUL] * 5))
    assert all(runs(*[USELESS, USELESS, PREFILLED] * 5))
    again = runs(*[USELESS] * (PATIENCE_CALLS + REST_CALLS), USEFUL, USELESS, USELESS)
    assert again[-3:] == [True] * 3


def test_short_calls_rest_too() -> None:
    assert runs(*[SHORT] * (PATIENCE_CALLS + 1))[-1] is False


def chain(ask: Runnable[Any, Any], *, in_turn: bool) -> Runnable[Any, Any]:
    """Two questions, which LangChain asks side by side or in turn, and one about the answers."""
    both = {"a": RunnableLambda(lambda x: x["q"] + "a") | ask, "b": RunnableLambda(lambda x: x["q"] + "b") | ask}
    first: Runnable[Any, Any] = RunnablePassthrough.assign(**both)
    if in_turn:
        first = RunnablePassthrough.assign(a=both["a"]) | RunnablePassthrough.assign(b=both["b"])
    return first | RunnableLambda(lambda x: x["a"] + x["b"]) | ask


def test_a_rest_that_two_threads_counted_below_zero_is_over() -> None:
    assert Worth(resting=-1).is_worth()


def test_a_pipeline_that_is_parallel_by_itself_is_left_alone_and_one_in_turn_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pipeline in turn gains half of its time, the other at times some of it by chance, on a busy machine."""
    monkeypatch.setattr("teola_plugin.worth.GAIN", 0.25)
    ask = EngineLLM(engine=ProfileLLM("llm", TINY_CPU_LLM["tiny"]), max_tokens=12)
    for in_turn in (True, False):
        plain = chain(ask, in_turn=in_turn)
        fast = optimize(plain)
        assert {fast.invoke({"q": "why"}) for _ in range(6)} == {plain.invoke({"q": "why"})}
        assert optimized(fast).reports[-1].rested is not in_turn
        assert "hits" in (measured := explain(fast, analyze={"q": "why"}))
        assert "nothing ran ahead" not in measured


def test_it_rests_under_concurrent_calls_too(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []

    class Counting(Worth):
        def judge(self, report: Report, calls: int = 1) -> None:
            counts.append(calls)
            super().judge(report, calls)

    monkeypatch.setattr("teola_plugin.api.Worth", Counting)
    ask = EngineLLM(engine=ProfileLLM("llm", TINY_CPU_LLM["tiny"]), max_tokens=12)
    plain = chain(ask, in_turn=False)
    fast = optimize(plain)
    with ThreadPoolExecutor(4) as pool:
        answers = set(pool.map(lambda _: fast.invoke({"q": "why"}), range(40)))
    assert answers == {plain.invoke({"q": "why"})}
    assert any(report.rested for report in optimized(fast).reports)
    assert 1 < max(counts) <= 4
