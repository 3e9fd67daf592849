"""Replies: what their readers hear, whenever they come and however they leave; and who computes what is claimed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from teola_plugin.engines import Delta, Done, Failed, Outcome
from teola_plugin.errors import Cancelled
from teola_plugin.runtime.session.nested import AskedAhead
from teola_plugin.seams import Held, Reply, active, ashare, share


class Boom(Exception):
    """What the work of these tests fails with."""


def text_of(*pieces: str) -> Reply:
    reply = Reply()
    for piece in pieces:
        reply.put(Delta(piece))
    reply.put(Done("".join(pieces)))
    return reply


def test_a_listener_that_comes_late_hears_all_in_order() -> None:
    heard: list[Outcome] = []
    text_of("a", "b").listen(heard.append)
    assert heard == [Delta("a"), Delta("b"), Done("ab")]


class Saving:
    """Work of the framework that is under way."""

    def __init__(self) -> None:
        self.work: Future[None] = Future()

    def due(self, *, blocks_loop: bool) -> Sequence[Future[None]]:
        return [] if self.work.done() else [self.work]


async def _streamed(reply: Reply) -> str:
    return "".join([piece async for piece in reply.astream()])


READERS: dict[str, Callable[[Reply], Any]] = {
    "result": lambda reply: asyncio.to_thread(reply.result),
    "aresult": lambda reply: reply.aresult(),
    "stream": lambda reply: asyncio.to_thread(lambda: "".join(reply.stream())),
    "astream": _streamed,
}


@pytest.mark.parametrize("how", READERS)
async def test_nobody_reads_a_reply_before_the_work_that_it_waits_for(how: str) -> None:
    reply, saving = text_of("a", "b"), Saving()
    reply.held = Held([saving], time.perf_counter() + 60)
    reading = asyncio.ensure_future(READERS[how](reply))
    assert not (await asyncio.wait([reading], timeout=0.05))[0]
    saving.work.set_result(None)
    assert await reading == "ab"


def test_nothing_is_heard_after_the_end() -> None:
    reply, heard = Reply(), list[Outcome]()
    reply.listen(heard.append)
    for outcome in (Done(1), Done(2), Delta("late"), Failed(Boom())):
        reply.put(outcome)
    assert heard == [Done(1)]
    assert reply.result() == 1
    assert list(reply.stream()) == []


def test_all_hear_of_an_end_though_one_of_them_fails() -> None:
    reply, heard = Reply(), list[str]()

    def fail(_: object = None) -> None:
        raise Boom

    reply.listen(fail)
    reply.listen(lambda outcome: heard.append("listener"))
    reply.when_ended(fail)
    reply.when_ended(lambda: heard.append("ender"))
    with pytest.raises(Boom):
        reply.put(Done(1))
    assert heard == ["listener", "ender"]


def test_deltas_are_no_end() -> None:
    reply, heard = Reply(), list[str]()
    reply.when_ended(lambda: heard.append("ended"))
    reply.put(Delta("a"))
    assert heard == []
    assert reply.outcome is None
    reply.put(Done("a"))
    reply.when_ended(lambda: heard.append("at once"))
    assert heard == ["ended", "at once"]


@pytest.mark.parametrize("is_early", [True, False])
def test_a_copy_has_a_value_of_its_own(is_early: bool) -> None:
    reply = Reply()
    early = reply.copied()
    reply.put(Done({"a": [1]}))
    copied = early if is_early else reply.copied()
    copied.result()["a"].append(2)
    assert reply.result() == {"a": [1]}


def test_a_stream_that_is_closed_early_cancels_the_work_and_one_that_ended_does_not() -> None:
    cancelled: list[str] = []
    reply = Reply(lambda: cancelled.append("cancel"))
    reply.put(Delta("a"))
    stream = reply.stream()
    assert next(stream) == "a"
    stream.close()  # type: ignore[attr-defined]
    assert cancelled == ["cancel"]
    with pytest.raises(Cancelled):
        reply.result()
    whole = text_of("a", "b")
    whole.cancel = lambda: cancelled.append("again")
    assert list(whole.stream()) == ["a", "b"]
    assert cancelled == ["cancel"]


async def test_an_async_stream_that_is_closed_early_cancels_the_work() -> None:
    cancelled: list[str] = []
    reply = Reply(lambda: cancelled.append("cancel"))
    reply.put(Delta("a"))
    stream = reply.astream()
    assert await anext(stream) == "a"
    await stream.aclose()  # type: ignore[attr-defined]
    assert cancelled == ["cancel"]


async def test_a_stream_gives_the_pieces_and_then_the_error() -> None:
    reply = Reply()
    reply.put(Delta("a"))
    reply.put(Failed(Boom()))
    stream, astream = reply.stream(), reply.astream()
    assert (next(stream), await anext(astream)) == ("a", "a")
    with pytest.raises(Boom):
        next(stream)
    with pytest.raises(Boom):
        await anext(astream)


@pytest.mark.parametrize("is_async", [False, True])
def test_who_waits_is_woken_by_another_thread(is_async: bool) -> None:
    import threading

    reply = Reply()
    timer = threading.Timer(0.05, reply.put, (Done("late"),))
    timer.start()
    assert (asyncio.run(reply.aresult()) if is_async else reply.result()) == "late"
    timer.join()


# --- what is claimed ----------------------------------------------------------------------------------------------


class Ahead(AskedAhead):
    """A function that runs ahead."""

    def __init__(self) -> None:
        self._call = None  # type: ignore[assignment]


def shared(claimed: tuple[Reply, bool], compute: Callable[[], Any], *, is_async: bool) -> Any:
    if not is_async:
        return share(claimed, compute)

    async def acompute() -> Any:
        return compute()

    return asyncio.run(ashare(claimed, acompute))


both = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


def failed(error: BaseException) -> Reply:
    reply = Reply()
    reply.put(Failed(error))
    return reply


@both
def test_what_is_there_is_not_computed(is_async: bool) -> None:
    assert shared((text_of("ahead"), False), lambda: 1 / 0, is_async=is_async) == "ahead"


@both
def test_who_has_to_compute_tells_the_others(is_async: bool) -> None:
    reply = Reply()
    assert shared((reply, True), lambda: "mine", is_async=is_async) == "mine"
    assert reply.result() == "mine"


@both
def test_who_has_to_compute_and_fails_tells_the_others_too(is_async: bool) -> None:
    reply, error = Reply(), Boom()

    def fail() -> Any:
        raise error

    with pytest.raises(Boom):
        shared((reply, True), fail, is_async=is_async)
    assert reply.outcome == Failed(error)


@both
def test_what_failed_ahead_is_computed_by_the_framework(is_async: bool) -> None:
    assert shared((failed(Boom()), False), lambda: "anew", is_async=is_async) == "anew"


@both
def test_what_failed_is_not_computed_by_what_runs_ahead_itself(is_async: bool) -> None:
    with active(Ahead()), pytest.raises(Boom):  # type: ignore[arg-type]
        shared((failed(Boom()), False), lambda: "anew", is_async=is_async)


def test_an_interrupt_of_the_wait_is_not_the_error_of_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Reply) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Reply, "result", interrupted)
    computed: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        share((Reply(), False), lambda: computed.append(1))
    assert computed == []


async def test_a_task_that_is_cancelled_while_it_waits_computes_nothing() -> None:
    computed: list[int] = []

    async def compute() -> None:
        computed.append(1)

    waiting = asyncio.ensure_future(ashare((Reply(), False), compute))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert computed == []
