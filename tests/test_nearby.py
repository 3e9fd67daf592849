"""Calls between two processes of one machine, both ends on one loop here; between processes: test_ray.py."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from teola_plugin.errors import EngineCrashed, EngineError
from teola_plugin.runtime.nearby import Connection, Server, connect

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sockets are Linux's")


def _uvloop() -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = pytest.importorskip("uvloop").new_event_loop()
    return loop


@pytest.fixture(params=[asyncio.new_event_loop, _uvloop])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Coroutine[Any, Any, None]]], None]:
    """Runs a coroutine on each of the loops that an engine's process may have."""

    def run_it(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(work(), 20))

    return run_it


class Answers:
    """What was called, and answers on demand."""

    def __init__(self, *, is_held: bool = False) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.called = asyncio.Event()
        self.may_answer = asyncio.Event()
        if not is_held:
            self.may_answer.set()
        self.ended: list[str] = []

    async def __call__(self, method: str, client: str, *args: Any) -> Any:
        self.calls.append((method, client, *args))
        self.called.set()
        try:
            if method == "wait":
                await self.may_answer.wait()
            if method == "fail":
                raise args[0]
            return (lambda: None) if method == "odd" else args
        finally:
            self.ended.append(method)


async def echo(method: str, client: str, *args: Any) -> Any:
    return method, client, *args


@contextlib.asynccontextmanager
async def serving(answer: Any) -> AsyncIterator[Server]:
    server = Server(answer, pickle.dumps)
    await server.start()
    try:
        yield server
    finally:
        server.close()
        await asyncio.sleep(0.01)  # uvloop closes in later turns, and says so of what is left


@contextlib.asynccontextmanager
async def connected(answer: Any) -> AsyncIterator[Connection]:
    async with serving(answer) as server:
        connection = await connect(server.name, pickle.dumps)
        assert connection is not None
        try:
            yield connection
        finally:
            connection.close()


async def until(happened: Callable[[], Any]) -> None:
    while not happened():  # noqa: ASYNC110  a list that grows
        await asyncio.sleep(0.001)


def test_calls_side_by_side_each_get_their_own_answer(run: Any) -> None:
    async def work() -> None:
        async with connected(echo) as connection:
            found = await asyncio.gather(*(connection.call("m", "me", i, "x" * i * 999) for i in range(200)))
            assert found == [("m", "me", i, "x" * i * 999) for i in range(200)]

    run(work)


def test_a_call_that_takes_long_holds_up_no_other(run: Any) -> None:
    async def work() -> None:
        answers = Answers(is_held=True)
        async with connected(answers) as connection:
            slow = asyncio.ensure_future(connection.call("wait", "me"))
            with pytest.raises(KeyError):
                await connection.call("fail", "me", KeyError("quick"))
            assert not slow.done()
            slow.cancel()

    run(work)


def test_a_large_array_arrives_whole_and_as_the_callers_own(run: Any) -> None:
    async def work() -> None:
        async with connected(echo) as connection:
            sent = np.arange(2_000_000, dtype=np.float32)
            _, _, found = await connection.call("m", "me", sent)
            np.testing.assert_array_equal(found, sent)
            found[0] = 1.0
            assert sent[0] == 0.0

    run(work)


def test_an_error_comes_as_what_it_was(run: Any) -> None:
    async def work() -> None:
        async with connected(Answers()) as connection:
            with pytest.raises(EngineCrashed, match="being started"):
                await connection.call("fail", "me", EngineCrashed("being started"))

    run(work)


def test_an_error_of_a_connection_of_its_own_is_an_answer_too(run: Any) -> None:
    async def work() -> None:
        async with connected(Answers()) as connection:
            with pytest.raises(ConnectionError, match="of the engine's"):
                await connection.call("fail", "me", ConnectionError("of the engine's"))
            assert connection.is_open

    run(work)


def test_an_answer_that_cannot_travel_is_an_error_of_that_call_alone(run: Any) -> None:
    async def work() -> None:
        async with connected(Answers()) as connection:
            with pytest.raises((EngineError, AttributeError, pickle.PicklingError), match="lambda"):
                await connection.call("odd", "me")
            assert connection.is_open

    run(work)


def test_a_question_that_cannot_travel_is_not_asked(run: Any) -> None:
    async def work() -> None:
        async with connected(echo) as connection:
            with pytest.raises((AttributeError, pickle.PicklingError)):
                await connection.call("m", "me", lambda: None)
            assert await connection.call("m", "me") == ("m", "me")

    run(work)


def test_who_waits_hears_that_the_other_process_is_gone(run: Any) -> None:
    async def work() -> None:
        answers = Answers(is_held=True)
        async with connected(answers) as connection:
            waiting = asyncio.ensure_future(connection.call("wait", "me"))
            await answers.called.wait()
            connection.close()  # what the kernel does for a process that is killed
            with pytest.raises(ConnectionError, match="gone"):
                await waiting
            assert not connection.is_open
            with pytest.raises(ConnectionError, match="gone"):
                await connection.call("m", "me")

    run(work)


def test_clients_whose_process_is_gone_have_left_and_their_calls_end(run: Any) -> None:
    async def work() -> None:
        answers = Answers(is_held=True)
        async with connected(answers) as connection, connected(answers) as other:
            lost = [asyncio.ensure_future(connection.call("wait", client)) for client in ("a", "b")]
            kept = asyncio.ensure_future(other.call("wait", "c"))
            await until(lambda: len(answers.calls) == 3)
            connection.close()
            await until(lambda: len(answers.ended) == 4)
            assert sorted(answers.calls[3:]) == [("leave", "a"), ("leave", "b")]
            assert sorted(answers.ended) == ["leave", "leave", "wait", "wait"]
            answers.may_answer.set()
            assert await kept == ()
            assert {type(e) for e in await asyncio.gather(*lost, return_exceptions=True)} == {ConnectionError}

    run(work)


def test_a_process_of_another_user_is_not_called(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with serving(echo) as server:
            mine = os.geteuid()
            monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
            assert await connect(server.name, pickle.dumps) is None
            await asyncio.sleep(0.01)  # until the other end has found out

    run(work)


def test_a_process_of_another_user_is_not_answered(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        answers, mine = Answers(), os.geteuid()
        async with serving(answers) as server:
            users = iter([mine])
            monkeypatch.setattr(os, "geteuid", lambda: next(users, mine + 1))  # of who calls, then of who is called
            connection = await connect(server.name, pickle.dumps)
            assert connection is not None
            with pytest.raises(ConnectionError):
                await connection.call("m", "me")
            assert (answers.calls, connection.is_open) == ([], False)

    run(work)


def test_there_is_no_way_to_a_name_that_nobody_has(run: Any) -> None:
    async def work() -> None:
        assert await connect("nobody", pickle.dumps) is None

    run(work)


def test_a_server_has_one_name_however_often_it_is_started(run: Any) -> None:
    async def work() -> None:
        async with serving(echo) as server:
            name = server.name
            await server.start()
            assert server.name == name

    run(work)


def test_a_connection_belongs_to_its_loop() -> None:
    async def is_open(connection: Connection) -> bool:
        return connection.is_open

    async def work() -> None:
        async with connected(echo) as connection:
            assert connection.is_open
            assert not await asyncio.to_thread(asyncio.run, is_open(connection))

    asyncio.run(work())


def test_elsewhere_than_on_linux_there_is_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    server = Server(echo, pickle.dumps)
    asyncio.run(server.start())
    assert server.name == ""
