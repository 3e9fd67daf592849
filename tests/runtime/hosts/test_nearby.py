"""Calls between two processes of one machine, both ends on one loop here; between processes: test_ray.py."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import stat
import struct
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from teola_plugin.errors import EngineCrashed, EngineError
from teola_plugin.runtime.hosts.remote import unix_rpc
from teola_plugin.runtime.hosts.remote.handshake import HELLO, NUMBER_BYTES, PROOF_BYTES
from teola_plugin.runtime.hosts.remote.messages import UnixAddress
from teola_plugin.runtime.hosts.remote.unix_rpc import Connection, Server, connect

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sockets are Linux's")


def _uvloop() -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = pytest.importorskip("uvloop").new_event_loop()
    return loop


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sockets are below it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / f"teola-{os.geteuid()}"


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
    async with serving(answer) as server, client_of(server) as connection:
        yield connection


@contextlib.asynccontextmanager
async def client_of(server: Server) -> AsyncIterator[Connection]:
    assert server.address
    connection = await connect(server.address, pickle.dumps)
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


@pytest.mark.parametrize("whose", [[1], [0, 1]], ids=["called", "answered"])
def test_a_process_of_another_user_is_neither_called_nor_answered(
    whose: list[int], run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        answers, mine = Answers(), os.geteuid()
        async with serving(answers) as server:
            assert server.address
            users = iter([mine + each for each in whose])
            monkeypatch.setattr(os, "geteuid", lambda: next(users, mine + 1))  # one end asks, and then the other
            assert await connect(server.address, pickle.dumps) is None
            assert answers.calls == []
            await asyncio.sleep(0.01)  # until the other end has found out

    run(work)


def test_there_is_no_way_to_a_file_that_is_not_there(run: Any, tmp_path: Path) -> None:
    async def work() -> None:
        assert await connect(UnixAddress(str(tmp_path / "nobody"), b"s"), pickle.dumps) is None

    run(work)


def test_a_server_has_one_address_however_often_it_is_started(run: Any) -> None:
    async def work() -> None:
        async with serving(echo) as server:
            address = server.address
            await server.start()
            assert server.address is address is not None

    run(work)


def test_a_connection_belongs_to_its_loop() -> None:
    async def is_open(connection: Connection) -> bool:
        return connection.is_open

    async def work() -> None:
        async with connected(echo) as connection:
            assert connection.is_open
            assert not await asyncio.to_thread(asyncio.run, is_open(connection))

    asyncio.run(work())


def test_elsewhere_than_on_linux_there_is_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    server = Server(echo, pickle.dumps)
    asyncio.run(server.start())
    assert server.address is None


# --- strangers -------------------------------------------------------------------------------------------------------

ran: list[str] = []
"""What code in a pickle did."""


def of_a_stranger(what: str) -> None:
    ran.append(what)


class Planted:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return of_a_stranger, ("code",)


def test_what_is_planted_would_run() -> None:
    pickle.loads(pickle.dumps(Planted()))
    assert ran == ["code"]
    ran.clear()


def frame(message: Any) -> bytes:
    pickled = pickle.dumps(message)
    return struct.pack(">Q", len(pickled)) + pickled


NUMBER = b"n" * NUMBER_BYTES
PLANTED = frame((0, "m", "stranger", Planted()))
STRANGERS = {
    "frame at once": [PLANTED],
    "greeting and frame": [HELLO + NUMBER + PLANTED],
    "wrong proof and frame": [HELLO + NUMBER, b"p" * PROOF_BYTES + PLANTED],
    "huge length": [struct.pack(">Q", 2**62) + b"x" * 100_000],
    "wrong greeting": [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + PLANTED],
    "nothing, and goes": [],
}


@pytest.fixture(autouse=True)
def nothing_ran() -> Any:
    ran.clear()
    yield
    assert ran == []


async def said_to(server: Server, parts: list[bytes]) -> bytes:
    """What a stranger hears who sends this, and then waits for the connection to be closed."""
    assert server.address
    reader, writer = await asyncio.open_unix_connection(server.address.path)
    heard = b""
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            if part is not parts[-1]:
                heard += await reader.readexactly(NUMBER_BYTES + PROOF_BYTES)
        if not parts:
            writer.close()
        return heard + await reader.read()
    except ConnectionError:
        return heard
    finally:
        writer.close()


@pytest.mark.parametrize("parts", STRANGERS.values(), ids=STRANGERS)
def test_what_a_stranger_sends_is_not_unpickled_and_the_others_go_on(parts: list[bytes], run: Any) -> None:
    async def work() -> None:
        answers = Answers()
        async with serving(answers) as server, client_of(server) as connection:
            heard = await said_to(server, parts)
            assert len(heard) in (0, NUMBER_BYTES + PROOF_BYTES)
            assert await connection.call("m", "me", 1) == (1,)
            assert answers.calls == [("m", "me", 1)]

    run(work)


def test_who_stops_in_the_middle_of_the_greeting_is_let_go(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_rpc, "HANDSHAKE_S", 0.1)

    async def work() -> None:
        async with serving(echo) as server:
            slow = [asyncio.ensure_future(said_to(server, [HELLO[:3]])) for _ in range(20)]
            slow.append(asyncio.ensure_future(said_to(server, [HELLO + NUMBER, b"p"])))
            async with client_of(server) as connection:
                assert await connection.call("m", "me") == ("m", "me")
                assert [len(heard) for heard in await asyncio.gather(*slow)] == [0] * 20 + [64]
                assert await connection.call("m", "me") == ("m", "me")  # who has greeted has all the time

    run(work)


def test_a_client_with_another_secret_gets_no_connection(run: Any) -> None:
    async def work() -> None:
        answers = Answers()
        async with serving(answers) as server:
            assert server.address
            assert await connect(UnixAddress(server.address.path, b"x" * 32), pickle.dumps) is None
            assert answers.calls == []

    run(work)


def test_proofs_that_were_heard_prove_nothing(run: Any) -> None:
    """Neither the server's own, nor those of another connection."""

    async def work() -> None:
        answers = Answers()
        async with serving(answers) as server:
            assert server.address
            for old in (None, b"o" * 64):
                reader, writer = await asyncio.open_unix_connection(server.address.path)
                writer.write(HELLO + NUMBER)
                heard = await reader.readexactly(NUMBER_BYTES + PROOF_BYTES)
                writer.write((old or heard)[NUMBER_BYTES:] + PLANTED)
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
            assert answers.calls == []

    run(work)


@pytest.mark.parametrize("says", [PLANTED, b"n" * 64 + PLANTED, b"", b"n" * 63], ids=["frame", "proof", "none", "half"])
def test_a_false_server_is_told_nothing_and_not_unpickled(
    says: bytes, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_rpc, "HANDSHAKE_S", 0.1)
    heard: list[bytes] = []

    async def false(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        with contextlib.suppress(ConnectionError):
            heard.append(await reader.read())
        writer.close()

    async def work() -> None:
        async with await asyncio.start_unix_server(false, str(tmp_path / "false")):
            assert await connect(UnixAddress(str(tmp_path / "false"), b"s" * 32), pickle.dumps) is None
            await asyncio.sleep(0.01)
            assert all(len(each) == len(HELLO) + NUMBER_BYTES for each in heard)

    run(work)


def test_the_secret_is_new_each_time_and_shown_nowhere(run: Any) -> None:
    async def work() -> None:
        async with serving(echo) as one, serving(echo) as other:
            shown = [repr(each.address) for each in (one, other)]
            told = [each.address.secret for each in (one, other) if each.address]
            assert len(told[0]) == len(told[1]) == 32
            assert told[0] != told[1]
            assert not any(repr(secret) in text for secret in told for text in shown)

    run(work)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_only_its_user_can_enter_the_folder_of_the_sockets(run: Any, folder: Path) -> None:
    async def work() -> None:
        async with serving(echo) as server:
            assert server.address
            assert files(folder) == {Path(server.address.path).name}
            assert Path(server.address.path).parent == folder

    run(work)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert files(folder) == set()


def test_a_folder_that_others_can_enter_is_not_used(run: Any, folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)

    async def work() -> None:
        async with serving(echo) as server:
            assert server.address is None

    run(work)
    assert files(folder) == set()


def test_sockets_of_processes_that_were_killed_are_removed(run: Any, folder: Path) -> None:
    def leave() -> None:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(folder / "left"))
        (folder / "file").write_text("of somebody")

    async def work() -> None:
        async with serving(echo) as server:
            leave()
            async with serving(echo) as other, client_of(server) as connection:
                names = {Path(each.address.path).name for each in (server, other) if each.address}
                assert files(folder) == {*names, "file"}
                assert await connection.call("m", "me") == ("m", "me")

    run(work)
