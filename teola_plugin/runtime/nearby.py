"""Calls between two processes of one machine, where a transport's own take longer than the work that they ask for.

    await connection.call("submit", client, requests) --frame--> await answer("submit", client, requests)
    its value, or its error                           <--frame--

A call of Ray takes a millisecond and more, there and back, and about as much of a processor; these take a tenth. The
socket is of Linux's abstract namespace: it has no file that a killed process would leave behind. What arrives is
unpickled, so a process talks to those of its own user only; the kernel tells who they are. A client whose connection
ends has left.

A frame is the length of what follows, 8 bytes, big-endian, and a pickle.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import pickle
import socket
import struct
import sys
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, cast

from teola_plugin.runtime.messages import PackedError
from teola_plugin.runtime.tasks import spawn

log = logging.getLogger(__name__)

Answer = Callable[..., Awaitable[Any]]
"""Takes the name of a method, the client's name, and arguments. `leave` is said of a client that is gone."""

Dumps = Callable[[Any], bytes]

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group, as Linux tells them of who is at the other end of a socket."""

_LENGTH = struct.Struct(">Q")


class _Frames(asyncio.Protocol):
    """One end of a connection."""

    def __init__(self, dumps: Dumps) -> None:
        self._dumps = dumps
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()

    @property
    def is_open(self) -> bool:
        """The other process was there a moment ago."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by class

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            frame = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            if self.is_open:
                self._take(pickle.loads(frame))

    def close(self) -> None:
        if self._transport:
            self._transport.close()

    def _send(self, message: Any) -> None:
        """Raises: what pickling it raises; ConnectionError."""
        frame = self._dumps(message)
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the process at the other end is gone")
        self._transport.writelines((_LENGTH.pack(len(frame)), frame))

    def _take(self, message: Any) -> None:
        raise NotImplementedError


class Connection(_Frames):
    """The calling end. Belongs to the event loop that made it."""

    def __init__(self, dumps: Dumps) -> None:
        super().__init__(dumps)
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    @property
    def is_open(self) -> bool:
        """It can be used here, and the other process was there a moment ago."""
        return super().is_open and asyncio.get_running_loop() is self._loop

    def let_go(self) -> None:
        """Close it, from whichever thread collects who had it."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self.close)

    async def call(self, method: str, client: str, *args: Any) -> Any:
        """Raises: what the other side raised, or EngineError with its text; ConnectionError if it is gone."""
        number, answered = next(self._numbers), self._loop.create_future()
        self._waiting[number] = answered
        try:
            self._send((number, method, client, *args))
            return await answered
        finally:
            del self._waiting[number]

    def _take(self, message: Any) -> None:
        number, value = message
        answered = self._waiting.get(number)
        if answered is None or answered.done():
            return
        if isinstance(value, PackedError):
            answered.set_exception(value.arrived())
        else:
            answered.set_result(value)

    def connection_lost(self, exc: Exception | None) -> None:
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(ConnectionError("the process at the other end is gone"))


class _Serving(_Frames):
    """The called end. `lost` hears of its clients once it is over."""

    def __init__(self, dumps: Dumps, answer: Answer, lost: Callable[[_Serving, set[str]], None]) -> None:
        super().__init__(dumps)
        self._answer = answer
        self._lost = lost
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not _is_own(transport.get_extra_info("socket")):
            transport.close()

    def _take(self, message: Any) -> None:
        number, method, client, *args = message
        self._clients.add(client)
        spawn(self._answered(number, method, client, args), self._tasks)

    async def _answered(self, number: int, method: str, client: str, args: list[Any]) -> None:
        try:
            told = await self._answer(method, client, *args)
        except Exception as e:  # whatever the work raises is the caller's
            told = PackedError.of(e)
        if not self.is_open:
            return
        try:
            self._send((number, told))
        except Exception as e:  # whatever pickling it raises
            self._send((number, PackedError.of(e)))

    def connection_lost(self, exc: Exception | None) -> None:
        for task in list(self._tasks):
            task.cancel()
        self._lost(self, self._clients)


class Server:
    """Answers calls as long as its loop runs. `name`: to `connect` to, empty where there is no way."""

    def __init__(self, answer: Answer, dumps: Dumps) -> None:
        self.name = ""
        self._answer = answer
        self._dumps = dumps
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[_Serving] = set()
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Listen, where the system can."""
        if self._server or sys.platform != "linux":
            return
        self.name = f"teola-{uuid.uuid4().hex}"
        sock = socket.socket(socket.AF_UNIX)  # made here: uvloop, which Ray uses if it is there, knows only paths
        sock.bind(f"\0{self.name}")
        self._server = await asyncio.get_running_loop().create_unix_server(self._called, sock=sock)

    def close(self) -> None:
        """Take no more calls."""
        if self._server:
            self._server.close()
        for connection in self._connections:
            connection.close()

    def _called(self) -> _Serving:
        connection = _Serving(self._dumps, self._answer, self._lost)
        self._connections.add(connection)
        return connection

    def _lost(self, connection: _Serving, clients: set[str]) -> None:
        self._connections.discard(connection)
        for client in clients:
            spawn(self._left(client), self._tasks)

    async def _left(self, client: str) -> None:
        try:
            await self._answer("leave", client)
        except Exception as e:  # around the user's engine: nobody waits for this
            log.debug("client %s could not leave: %s", client, e)


def _is_own(sock: socket.socket) -> bool:
    """A process of our user is at the other end."""
    told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(told)[1]
    return user == os.geteuid()


async def connect(name: str, dumps: Dumps) -> Connection | None:
    """A connection; None where there is no way: no such name on this machine, or in this network namespace."""
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    try:
        sock.connect(f"\0{name}")
        if not _is_own(sock):
            raise PermissionError("it is another user's")
    except OSError as e:
        log.debug("no connection to %s: %s", name, e)
        sock.close()
        return None
    _, connection = await asyncio.get_running_loop().create_unix_connection(lambda: Connection(dumps), sock=sock)
    return connection
