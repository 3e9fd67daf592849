"""Engines that emit what they may not: each item has one end, and none has the value of another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from teola_plugin.engines import Batch, Capabilities, Completion, Delta, Done, Emit, Failed, Foreign
from teola_plugin.errors import EngineError
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.hosts.virtual_time import VirtualLoop
from teola_plugin.runtime.scheduler import worker
from teola_plugin.runtime.scheduler.work_table import Counts
from teola_plugin.seams import Reply

Told = Callable[[Batch, Emit], None]


class Odd:
    """Emits what `told` says; `alone`: only if there is more than one item, and otherwise as it should."""

    def __init__(self, told: Told, *, is_right_alone: bool = False) -> None:
        self.name = "odd"
        self.capabilities = Capabilities(max_items=8)
        self.sizes: list[int] = []
        self._told = told
        self._is_right_alone = is_right_alone

    async def run(self, batch: Batch, emit: Emit) -> None:
        self.sizes.append(len(batch.items))
        if self._is_right_alone and len(batch.items) == 1:
            emit(0, Done(value(batch, 0)))
        else:
            self._told(batch, emit)

    def abort(self, ids: Sequence[int]) -> None:
        pass

    async def close(self) -> None:
        pass


def value(batch: Batch, at: int) -> str:
    return f"of {batch.items[at].payload}"


def asked(engine: Odd, op: str, payloads: Sequence[Any], **settings: Any) -> tuple[list[Any], Counts]:
    """What each payload came to, an error as such."""

    async def work() -> tuple[list[Any], Counts]:
        host = LocalHost(loop=asyncio.get_running_loop())
        replies = [Reply() for _ in payloads]
        host.submit(engine, op, payloads, settings, replies)
        found = await asyncio.wait_for(
            asyncio.gather(*(reply.aresult() for reply in replies), return_exceptions=True), 1000
        )
        counts = host.counts(engine)
        await host.aclose()
        return found, counts

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work())


def rightly(batch: Batch, emit: Emit) -> None:
    for at in range(len(batch.items)):
        emit(at, Done(value(batch, at)))


def at_wrong(position: Any) -> Told:
    """The first value is emitted there, and then the others where they belong."""

    def told(batch: Batch, emit: Emit) -> None:
        emit(position, Done(value(batch, 0)))
        for at in range(1, len(batch.items)):
            emit(at, Done(value(batch, at)))

    return told


def shifted(batch: Batch, emit: Emit) -> None:
    """Counts from -1, as who subtracts one from places that count from 0 already."""
    for at in range(len(batch.items)):
        emit(at - 1, Done(value(batch, at)))


WRONG = [-1, -3, 3, 10**30, True, False, 0.0, None, "0", np.float32(0)]


@pytest.mark.parametrize("op", ["embedding", "tool", "decoding"])
@pytest.mark.parametrize("position", WRONG, ids=repr)
def test_no_value_goes_to_another_item(position: Any, op: str) -> None:
    found, counts = asked(Odd(at_wrong(position)), op, ["a", "b", "c"])
    for payload, each in zip("abc", found, strict=True):
        assert isinstance(each, EngineError) or each == f"of {payload}"
    assert isinstance(found[0], EngineError)
    assert "broke its protocol" in str(found[0])
    assert counts.misplaced
    assert counts.open == 0


@pytest.mark.parametrize("told", [shifted, *map(at_wrong, WRONG)])
def test_what_an_engine_does_right_alone_is_had(told: Told) -> None:
    engine = Odd(told, is_right_alone=True)
    found, counts = asked(engine, "embedding", ["a", "b", "c"])
    assert found == ["of a", "of b", "of c"]
    assert engine.sizes[0] == 3
    assert engine.sizes[-1] == 1
    assert counts.done == 3


def test_what_has_effects_is_not_tried_again() -> None:
    engine = Odd(shifted)
    found, _ = asked(engine, "tool", ["a", "b", "c"])
    assert engine.sizes == [3]
    assert all(isinstance(each, EngineError) for each in found)


def test_a_wrong_position_is_logged_without_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[logging.LogRecord] = []
    alone = logging.Logger("alone")  # whoever sets up logging in this process may have disabled the registered loggers
    alone.handle = records.append  # type: ignore[method-assign]
    monkeypatch.setattr(worker, "log", alone)
    asked(Odd(at_wrong(-1), is_right_alone=True), "embedding", ["a", "b"])
    (told,) = [each for each in records if each.levelno >= logging.ERROR]
    assert "emitted a Done for position -1, in a batch of 2" in told.getMessage()
    assert "of a" not in told.getMessage()


def test_an_index_of_numpy_is_one() -> None:
    found, counts = asked(Odd(at_wrong(np.int64(0))), "embedding", ["a", "b"])
    assert (found, counts.misplaced) == (["of a", "of b"], 0)


@pytest.mark.parametrize("outcome", ["text", None, 7, Delta(7), Done], ids=repr)  # type: ignore[arg-type]
def test_what_is_no_outcome_is_told_to_nobody(outcome: Any) -> None:
    def told(batch: Batch, emit: Emit) -> None:
        emit(0, outcome)

    found, counts = asked(Odd(told, is_right_alone=True), "embedding", ["a", "b"])
    assert found == ["of a", "of b"]
    assert counts.misplaced == 1
    (error,), _ = asked(Odd(told), "embedding", ["a"])
    assert "broke its protocol" in str(error)


def test_the_first_end_of_an_item_counts() -> None:
    def told(batch: Batch, emit: Emit) -> None:
        rightly(batch, emit)
        emit(0, Failed(ValueError("after all not")))
        emit(1, Done("another"))
        emit(1, Delta("more"))

    found, counts = asked(Odd(told), "embedding", ["a", "b"])
    assert (found, counts.done, counts.late) == (["of a", "of b"], 2, 2)


def test_what_is_missing_is_asked_for_once_more_and_then_fails() -> None:
    def told(batch: Batch, emit: Emit) -> None:
        for at in range(len(batch.items)):
            if batch.items[at].payload != "b":
                emit(at, Done(value(batch, at)))

    engine = Odd(told)
    found, counts = asked(engine, "embedding", ["a", "b", "c"])
    assert (found[0], found[2], counts.open) == ("of a", "of c", 0)
    with pytest.raises(EngineError, match="ended without an answer"):
        raise found[1]
    assert engine.sizes == [3, 1]


def test_who_raises_in_the_middle_keeps_what_was_told() -> None:
    def told(batch: Batch, emit: Emit) -> None:
        emit(0, Done(value(batch, 0)))
        raise ValueError("no more")

    found, _ = asked(Odd(told), "tool", ["a", "b"])
    assert found[0] == "of a"
    assert isinstance(found[1], ValueError)


@pytest.mark.parametrize("answer", [None, 7, b"text", ["text"]], ids=repr)
def test_an_answer_of_an_llm_that_is_no_text_is_an_error(answer: Any) -> None:
    def told(batch: Batch, emit: Emit) -> None:
        emit(0, Done(answer if batch.items[0].payload == "a" else Completion("of b")))

    found, _ = asked(Odd(told, is_right_alone=False), "decoding", ["a"])
    with pytest.raises(EngineError, match=f"the answer is a {type(answer).__name__}, not a text"):
        raise found[0]
    assert asked(Odd(told), "decoding", ["b"])[0] == ["of b"]


def test_a_foreign_model_may_answer_anything() -> None:
    def told(batch: Batch, emit: Emit) -> None:
        emit(0, Done({"any": 1}))

    assert asked(Odd(told), "decoding", [Foreign("key", lambda: None)])[0] == [{"any": 1}]


@pytest.mark.parametrize("odd", [float("nan"), np.full(3, np.nan), np.array([np.inf], dtype=np.float64), np.zeros(0)])
def test_values_are_handed_on_as_they_are(odd: Any) -> None:
    def told(batch: Batch, emit: Emit) -> None:
        emit(0, Done(odd))

    (found,), _ = asked(Odd(told), "embedding", ["a"])
    assert found is odd
