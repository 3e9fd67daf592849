"""Predictions: what is asked of which engine, once, and when a prediction is over."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import pytest

from teola_plugin.adapters.reader import prediction as predictions
from teola_plugin.adapters.reader.asking import Ask, Nobody, Request
from teola_plugin.adapters.reader.prediction import Prediction, State, may_be_asked, read_whole
from teola_plugin.adapters.reader.run import Given, Run
from teola_plugin.adapters.reader.stacks import Listener
from teola_plugin.adapters.reader.values import Stalled, Unknown
from teola_plugin.engines import Done, EngineSpec, Failed
from teola_plugin.request_identity import request_key
from teola_plugin.seams import Reply
from teola_plugin.trace import Asked, Mark
from tests.adapters.reader.world import ELSEWHERE

HERE = EngineSpec("python", object(), "ours")


def request(question: str, spec: EngineSpec = ELSEWHERE, value: Callable[[Any], Any] = lambda reply: reply) -> Request:
    return Request(question, spec, "decoding", question, {}, value, "text", source=question)


class Line:
    """Does work at once, and gives replies that others end."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.replies: dict[str, Reply] = {}

    def ask(self, request: Request, mark: Mark | None = None) -> Reply | None:
        self.asked.append(request.payload)
        return self.replies.setdefault(request.payload, Reply())

    def soon(self, work: Callable[[], None]) -> None:
        work()

    def spent(self, seconds: float) -> None:
        """Nobody counts."""


def predicted(program: Callable[[Run], Any], given: Given | None = None, **options: Any) -> tuple[Prediction, Line]:
    line = Line()
    begun = Prediction(Nobody(), line, State(program, given or Given()), **options)
    begun.begin()
    return begun, line


def asking(*questions: str) -> Callable[[Run], None]:
    def program(run: Run) -> None:
        for question in questions:
            run.ask(request(question))

    return program


@pytest.mark.parametrize(
    ("spec", "gates", "is_possible", "expected"),
    [
        (ELSEWHERE, [], False, True), (ELSEWHERE, ["a"], False, False), (ELSEWHERE, [], True, False),
        (HERE, [], False, True), (HERE, ["a"], False, True), (HERE, [], True, False),
    ],
)  # fmt: skip
def test_only_what_is_certain_leaves_this_process(
    spec: EngineSpec, gates: list[str], is_possible: bool, expected: bool
) -> None:
    ask = Ask(request("q", spec), 0, frozenset[Hashable](gates), is_possible)
    assert may_be_asked(ask) is expected
    assert may_be_asked(ask, speculates=True)


def test_each_request_is_made_once_and_the_prediction_ends_with_the_program() -> None:
    begun, line = predicted(asking("a", "b"))
    assert line.asked == ["a", "b"]
    line.replies["a"].put(Done("x"))
    assert not begun.is_over
    line.replies["b"].put(Done("y"))
    assert line.asked == ["a", "b"]
    assert begun.is_over


class Threads(Line):
    """Does work in a thread for each."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []

    def soon(self, work: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=work))
        self.threads[-1].start()

    def join(self) -> None:
        """Wait for all work."""
        for each in self.threads:
            each.join(60)
            assert not each.is_alive()


def gathering(monkeypatch: pytest.MonkeyPatch) -> tuple[Prediction, Threads]:
    """A prediction with one of two replies, which waits for the other."""
    monkeypatch.setattr(predictions, "GATHERING", 1e9)
    line = Threads()
    begun = Prediction(Nobody(), line, State(asking("a", "b"), Given()))
    begun.begin()
    line.join()
    line.replies["a"].put(Done("x"))
    return begun, line


def test_replies_that_come_together_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, line = gathering(monkeypatch)
    line.threads[-1].join(0.05)
    assert begun.readings == 1
    line.replies["b"].put(Done("y"))
    line.join()
    assert (begun.readings, begun.is_over) == (2, True)


def test_a_prediction_that_is_over_waits_for_no_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, line = gathering(monkeypatch)
    begun.stop()
    line.join()
    assert begun.readings == 1


def heard(*questions: str, where: Hashable = ()) -> Listener:
    """The framework's run has made these requests by now."""
    listener = Listener(lambda: where)
    for question in questions:
        listener.hear(Asked(partial(request_key, ELSEWHERE, "decoding", question, {}), lambda: None))
    return listener


def test_nothing_is_asked_by_a_reading_that_may_have_come_too_late() -> None:
    """The run has asked for something else: what is outside of the function may have been changed by it since."""
    _, line = predicted(asking("mode 1", "mode 3"), listener=heard("mode 1", "mode 2"))
    assert line.asked == []


def test_it_goes_on_where_the_run_has_made_the_same_requests() -> None:
    _, line = predicted(asking("mode 1", "mode 2", "mode 3"), listener=heard("mode 2", "mode 1"))
    assert line.asked == ["mode 1", "mode 2", "mode 3"]


def test_a_request_that_is_made_more_often_than_it_is_read_is_another() -> None:
    _, line = predicted(asking("mode 1", "mode 2"), listener=heard("mode 1", "mode 1"))
    assert line.asked == []


def test_requests_of_another_run_of_the_function_tell_nothing() -> None:
    _, line = predicted(asking("mode 1"), listener=heard("mode 2", where="another"))
    assert line.asked == ["mode 1"]


def test_a_reading_that_has_caught_up_asks_again() -> None:
    def program(run: Run) -> None:
        reply = run.ask(request("a"))
        run.ask(request("b"))
        run.require_known(reply)
        run.ask(request(f"more of {reply}"))
        run.ask(request("c"))

    listener = heard("a")
    _, line = predicted(program, listener=listener)
    listener.hear(Asked(lambda: request_key(ELSEWHERE, "decoding", "b", {}), lambda: None))
    listener.hear(Asked(lambda: request_key(ELSEWHERE, "decoding", "more of x", {}), lambda: None))
    line.replies["a"].put(Done("x"))
    assert line.asked == ["a", "b", "more of x", "c"]


def test_what_the_run_asks_meanwhile_counts_at_once() -> None:
    listener = heard("mode 1")

    class Late(Line):
        def ask(self, request: Request, mark: Mark | None = None) -> Reply | None:
            if request.payload == "mode 2":
                listener.hear(Asked(lambda: request_key(ELSEWHERE, "decoding", "mode 4", {}), lambda: None))
            return super().ask(request, mark)

    line = Late()
    Prediction(Nobody(), line, State(asking("mode 1", "mode 2", "mode 3"), Given()), listener=listener).begin()
    assert line.asked == ["mode 1", "mode 2"]


def test_nothing_is_asked_behind_an_engine_that_fails() -> None:
    def program(run: Run) -> None:
        run.ask(request("a"))
        reply = run.ask(request("b"))
        run.require_known(reply)
        run.ask(request(f"more of {reply}"))

    begun, line = predicted(program)
    line.replies["a"].put(Failed(OSError()))
    assert begun.is_over
    line.replies["b"].put(Done("x"))
    assert line.asked == ["a", "b"]


def test_a_reply_that_cannot_be_read_is_an_error_of_the_programs() -> None:
    def program(run: Run) -> None:
        try:
            reply = run.ask(request("a", value=int))
        except ValueError:
            run.ask(request("caught"))
        else:
            run.require_known(reply)

    _, line = predicted(program)
    line.replies["a"].put(Done("no number"))
    assert line.asked == ["a", "caught"]


def test_what_is_given_is_the_same_in_each_evaluation() -> None:
    given, seen = Given(), list[list[int]]()
    held = given.copy([1])

    def program(run: Run) -> None:
        seen.append(list(held))
        run.touch(held)
        held.append(2)
        run.ask(request("a"))

    _, line = predicted(program, given)
    line.replies["a"].put(Done("x"))
    assert seen == [[1], [1]]


def test_a_reply_is_copied() -> None:
    theirs, found = ["x"], list[Any]()

    def program(run: Run) -> None:
        found.append(run.ask(request("a")))

    _, line = predicted(program)
    line.replies["a"].put(Done(theirs))
    assert found[-1] == theirs
    assert found[-1] is not theirs


def test_an_evaluation_goes_on_from_the_state_that_was_reached() -> None:
    numbers: list[int] = []

    def second(run: Run) -> None:
        run.ask(request("a"))
        numbers.extend(ask.number for ask in run.asks.values())

    predicted(lambda run: State(second, Given(), Counter[Hashable]({"a": 2})))
    assert numbers == [2]


def test_nothing_is_asked_once_it_is_over() -> None:
    def program(run: Run) -> None:
        run.ask(request("a"))
        begun.stop()

    line = Line()
    begun = Prediction(Nobody(), line, State(program, Given()))
    begun.begin()
    assert line.asked == []


def test_a_program_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "MAX_READINGS", 3)
    counts: list[int] = []

    def program(run: Run) -> Any:
        counts.append(1)
        if len(counts) > 10:
            raise Stalled
        return State(program, Given())

    begun, _ = predicted(program)
    assert (len(counts), begun.is_over) == (3, True)


def test_a_fault_of_the_readers_own_ends_the_prediction() -> None:
    class Faulty(Line):
        def ask(self, request: Request, mark: Mark | None = None) -> Reply | None:
            raise RuntimeError("a fault")

    begun = Prediction(Nobody(), Faulty(), State(asking("a"), Given()))
    begun.begin()
    assert begun.is_over


# --- read_whole ------------------------------------------------------------------------------------------------------


def answered(request: Request) -> Reply:
    reply = Reply()
    reply.put(Done(request.payload + "!"))
    return reply


def test_a_program_is_read_to_its_end() -> None:
    found = read_whole(Nobody(), answered, lambda run: [run.ask(request("a")), run.ask(request("b"))], Given())
    assert found == ["a!", "b!"]


def test_what_hangs_on_replies_is_what_it_is_with_them() -> None:
    found = read_whole(Nobody(), answered, lambda run: type(run.ask(request("a"))) is Unknown, Given())
    assert found is False


def test_a_program_that_changes_its_input_is_left_to_the_frameworks_run() -> None:
    given = Given()
    held = given.copy([1])

    def program(run: Run) -> Any:
        run.touch(held)
        held.append(2)
        return held

    with pytest.raises(LookupError, match="changes its input"):
        read_whole(Nobody(), answered, program, given)


def test_what_the_program_raises_is_raised() -> None:
    def program(run: Run) -> Any:
        raise KeyError("k")

    with pytest.raises(KeyError):
        read_whole(Nobody(), answered, program, Given())
