"""Nothing runs ahead while Python computes all the time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.graph import START

from teola_plugin import optimize, optimized, processor
from teola_plugin.processor import AGAIN_S, BUSY, FREE, STALE_S, WINDOW_S, Processor
from tests.adapters.langgraph.test_langgraph import A, D, built


class Clocks:
    """Of a process that computes for a `share` of the time."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = self.thread_s = 100.0

    def perf_counter(self) -> float:
        return self.wall_s

    def process_time(self) -> float:
        return self.cpu_s

    def thread_time(self) -> float:
        return self.thread_s

    def go_on(self, seconds: float, share: float = 1.0) -> None:
        self.wall_s += seconds
        self.cpu_s += share * seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(processor, "time", clocks)
    return clocks


def called(judge: Processor, clocks: Clocks, seconds: float, share: float = 1.0) -> bool:
    """Whether the process is busy after a call of this length."""
    judge.begin()
    clocks.go_on(seconds, share)
    judge.end()
    return judge.is_busy


def test_it_is_busy_once_a_window_of_calls_was_computed_through(clocks: Clocks) -> None:
    judge = Processor()
    assert not called(judge, clocks, 0.6 * WINDOW_S)
    clocks.go_on(10, share=0)  # nobody calls
    assert called(judge, clocks, 0.6 * WINDOW_S)


def test_calls_that_wait_leave_it_free(clocks: Clocks) -> None:
    judge = Processor()
    assert not called(judge, clocks, 2 * WINDOW_S, share=BUSY - 0.1)
    assert called(judge, clocks, 2 * WINDOW_S, share=BUSY + 0.1)
    assert called(judge, clocks, 2 * WINDOW_S, share=BUSY - 0.1)  # less would be free, were there nothing at rest
    assert not called(judge, clocks, 2 * WINDOW_S, share=FREE - 0.1)


def test_it_is_tried_again_after_a_while_whether_a_busy_process_has_time(clocks: Clocks) -> None:
    judge = Processor()
    assert called(judge, clocks, WINDOW_S)
    calls = [called(judge, clocks, WINDOW_S, share=BUSY - 0.1) for _ in range(int(1.5 * AGAIN_S / WINDOW_S))]
    assert calls.count(True) == AGAIN_S / WINDOW_S - 1
    assert not calls[-1]


def test_how_many_calls_were_side_by_side_is_known_for_another_window(clocks: Clocks) -> None:
    judge = Processor()
    assert judge.side_by_side == 0
    for _ in range(3):
        judge.begin()
    clocks.go_on(WINDOW_S)
    for _ in range(3):
        judge.end()
    assert judge.side_by_side == 3
    called(judge, clocks, 0.5 * WINDOW_S)
    assert judge.side_by_side == 3
    called(judge, clocks, WINDOW_S)
    called(judge, clocks, WINDOW_S)
    assert judge.side_by_side == 1


def test_calls_side_by_side_leave_less_time(clocks: Clocks) -> None:
    judge = Processor()
    assert not called(judge, clocks, WINDOW_S, share=BUSY - 0.1)
    judge.begin()
    assert called(judge, clocks, WINDOW_S, share=BUSY - 0.1)
    clocks.go_on(WINDOW_S, share=0)
    judge.end()
    assert not judge.is_busy
    assert not called(judge, clocks, WINDOW_S, share=BUSY - 0.1)  # one call at a time again


def test_a_judgement_is_forgotten(clocks: Clocks) -> None:
    judge = Processor()
    assert called(judge, clocks, WINDOW_S)
    clocks.go_on(1.1 * STALE_S)
    judge.begin()
    assert not judge.is_busy


def test_what_is_computed_between_calls_does_not_count(clocks: Clocks) -> None:
    judge = Processor()
    clocks.go_on(10)
    assert not called(judge, clocks, WINDOW_S, share=0.5)
    clocks.go_on(10)
    assert not called(judge, clocks, WINDOW_S, share=0.5)


def test_calls_side_by_side_are_one_stretch_of_time(clocks: Clocks) -> None:
    judge = Processor()
    judge.begin()
    judge.begin()
    clocks.go_on(0.6 * WINDOW_S)
    judge.end()
    assert not judge.is_busy
    clocks.go_on(0.6 * WINDOW_S)
    judge.end()
    assert judge.is_busy


def test_local_models_do_not_count(clocks: Clocks) -> None:
    judge = Processor()
    judge.begin()
    with judge.model():
        clocks.go_on(WINDOW_S)
        clocks.thread_s += WINDOW_S
    judge.end()
    assert not judge.is_busy


@pytest.fixture
def busy() -> Iterator[None]:
    limits, processor.processor.limits = processor.processor.limits, (-1.0, -1.0)
    yield
    processor.processor.limits = limits


def test_calls_of_a_busy_process_are_left_to_the_framework(busy: None) -> None:
    plain = built({"A": A, "D": D}, (START, "A"), ("A", "D"))
    given = {"q": "x", "b": "b"}
    fast: Any = optimize(plain)
    while not processor.processor.is_busy:
        assert fast.invoke(given) == plain.invoke(given)
    optimized(fast).wake()  # calls that gained nothing rest as well
    assert fast.invoke(given) == plain.invoke(given)
    assert optimized(fast).reports[-1].rested
