"""Garbage of the user's that runs on when it is closed is not closed by a thread, or under a lock, others wait for."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from teola_plugin.engines import Done
from teola_plugin.runtime.engines.worker import Worker
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.seams import Reply
from tests.support.fakes import collect_garbage

closed_by: list[int] = []


@pytest.fixture(autouse=True)
def _only_collected_by_hand() -> Iterator[None]:
    collect_garbage()
    gc.disable()
    closed_by.clear()
    yield
    gc.enable()


def suspended() -> Iterator[int]:
    try:
        yield 1
        yield 2
    finally:
        closed_by.append(threading.get_ident())


class Cycle:
    """What only the garbage collector gets rid of."""

    def __init__(self, held: Any) -> None:
        self.held, self.me = held, self


def begun() -> Iterator[int]:
    numbers = suspended()
    next(numbers)
    return numbers


def on_host(function: Callable[[], Any]) -> None:
    host = LocalHost()

    async def call() -> None:
        function()

    asyncio.run_coroutine_threadsafe(call(), host.loop).result()
    host.close()


def on_worker(function: Callable[[], Any]) -> None:
    asyncio.run(Worker("test").call(function))


def under_a_lock(function: Callable[[], Any]) -> None:
    reply = Reply()
    reply.put(Done(1))
    reply.listen(lambda _: function())


@pytest.mark.parametrize("collecting", [on_host, on_worker, under_a_lock])
def test_garbage_found_where_others_wait_for_us_is_closed_elsewhere(collecting: Callable[..., None]) -> None:
    Cycle(begun())
    collecting(collect_garbage)
    assert closed_by == []
    collect_garbage()
    assert closed_by == [threading.get_ident()]


def test_also_when_the_generator_is_part_of_the_cycle() -> None:
    def holds_itself() -> Iterator[Any]:
        me = yield
        try:
            yield me
        finally:
            closed_by.append(threading.get_ident())

    numbers: Any = holds_itself()
    next(numbers)
    numbers.send(numbers)
    del numbers
    on_host(collect_garbage)
    assert closed_by == []
    collect_garbage()
    assert closed_by == [threading.get_ident()]


def test_what_is_still_in_use_is_not_kept_any_longer() -> None:
    numbers = begun()
    on_host(collect_garbage)
    del numbers
    assert closed_by == [threading.get_ident()]
