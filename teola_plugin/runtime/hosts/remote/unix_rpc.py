"""Remote calls between two processes of a machine, for calls shorter than the overhead of the usual transport.

    await connection.call("submit", client, requests) --frame--> await answer("submit", client, requests)
    its value, or its error                           <--frame--

A call of Ray takes a millisecond or more, there and back, and about as much CPU time; a call over a socket takes a
tenth.

**Who may call.** Arriving frames are unpickled, and a pickle can run code, so neither end unpickles anything before the
peer has proved knowledge of the server's secret (handshake.py). The server makes the secret, and hands the secret out
with the path of the socket (`UnixAddress`) by a way that clients trust already, such as an actor of Ray. A peer without
proof within `HANDSHAKE_S` is disconnected.

The socket is a file in a folder that only the user can enter (unix_sockets.py), and both ends ask the kernel for the
peer's user. A client whose connection ends has left.

A frame is the length of the pickle, 8 bytes, big-endian, and the pickle.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import pickle
import secrets
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from teola_plugin.runtime.hosts.remote.handshake import SECRET_BYTES, ClientSide, ServerSide, Stranger
from teola_plugin.runtime.hosts.remote.messages import PackedError, UnixAddress
from teola_plugin.runtime.hosts.remote.unix_sockets import listening
from teola_plugin.runtime.hosts.tasks import spawn

log = logging.getLogger(__name__)

Answer = Callable[..., Awaitable[Any]]
"""A function that takes the name of a method, the client's name, and arguments. `leave` is called for a client that is
gone."""

Dumps = Callable[[Any], bytes]

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of the peer of a socket, as Linux reports them."""

_LENGTH = struct.Struct(">Q")

HANDSHAKE_S = 10.0
"""The time limit of a handshake, in seconds: a process that loads a model may not serve sockets for seconds."""


class _Frames(asyncio.Protocol):
    """An end of a connection: a handshake, and then frames."""

    def __init__(self, dumps: Dumps, handshake: ClientSide | ServerSide) -> None:
        self._dumps = dumps
        self._handshake = handshake
        self._transport: asyncio.Transport | None = None
        self._late: asyncio.TimerHandle | None = None
        self._buffer = bytearray()

    @property
    def is_open(self) -> bool:
        """Whether the peer was connected a moment ago."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by class
        self._transport.write(self._handshake.opening)
        self._late = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._refuse, "it took too long to greet")

    def data_received(self, data: bytes) -> None:
        if self.is_open:  # refused data is not kept either
            self._buffer += data
            while self._take_one():
                pass

    def _take_one(self) -> bool:
        """Take a message of the handshake or a frame, if complete."""
        if not self.is_open:
            return False
        due = self._handshake.due
        begin, end = (0, due) if due else self._frame()
        if len(self._buffer) < end:
            return False
        found = bytes(self._buffer[begin:end])
        del self._buffer[:end]
        if due:
            self._greet(found)
        else:
            self._take(pickle.loads(found))
        return True

    def _frame(self) -> tuple[int, int]:
        """Return where the first frame begins and ends, as far as known."""
        begin = _LENGTH.size
        return begin, begin + (_LENGTH.unpack_from(self._buffer)[0] if len(self._buffer) >= begin else 0)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._late:
            self._late.cancel()

    def _greet(self, message: bytes) -> None:
        try:
            answer = self._handshake.take(message)
        except Stranger as e:
            self._refuse(str(e))
            return
        if self._transport:
            self._transport.write(answer)
        if not self._handshake.due:
            self._welcome()

    def _welcome(self) -> None:
        """Accept the peer, which has proved knowledge of the secret."""
        if self._late:
            self._late.cancel()

    def _refuse(self, why: str) -> None:
        log.warning("a process at the other end of a socket is not talked to: %s", why)
        if self._transport:
            self._transport.abort()

    def close(self) -> None:
        if self._transport:
            self._transport.close()

    def _send(self, message: Any) -> None:
        """Send a message. Raises: errors of pickling the message; ConnectionError."""
        frame = self._dumps(message)
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the process at the other end is gone")
        self._transport.writelines((_LENGTH.pack(len(frame)), frame))

    def _take(self, message: Any) -> None:
        raise NotImplementedError


class Connection(_Frames):
    """The calling end. Belongs to the event loop that made the connection."""

    def __init__(self, dumps: Dumps, secret: bytes) -> None:
        super().__init__(dumps, ClientSide(secret))
        self._loop = asyncio.get_running_loop()
        self._is_proved = self._loop.create_future()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    @property
    def is_open(self) -> bool:
        """Whether the connection can be used on the running loop, and the peer was connected a moment ago."""
        return super().is_open and asyncio.get_running_loop() is self._loop

    async def proved(self) -> bool:
        """Whether the peer is the server; known once the peer has proved knowledge of the secret, or is gone."""
        found: bool = await self._is_proved
        return found

    def let_go(self) -> None:
        """Close the connection, from whichever thread collects the owner."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self.close)

    async def call(self, method: str, client: str, *args: Any) -> Any:
        """Call a method. Raises: the server's error, or EngineError with its text; ConnectionError without a peer."""
        number, answered = next(self._numbers), self._loop.create_future()
        self._waiting[number] = answered
        try:
            self._send((number, method, client, *args))
            return await answered
        finally:
            del self._waiting[number]

    def _welcome(self) -> None:
        super()._welcome()
        if not self._is_proved.done():
            self._is_proved.set_result(True)

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
        super().connection_lost(exc)
        if not self._is_proved.done():
            self._is_proved.set_result(False)
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(ConnectionError("the process at the other end is gone"))


class _Serving(_Frames):
    """The called end. `lost` is called with the clients of the connection once the connection is over."""

    def __init__(
        self, dumps: Dumps, secret: bytes, answer: Answer, lost: Callable[[_Serving, set[str]], None]
    ) -> None:  # fmt: skip
        super().__init__(dumps, ServerSide(secret))
        self._answer = answer
        self._lost = lost
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not _is_own(transport.get_extra_info("socket")):
            self._refuse("it belongs to another user")

    def _take(self, message: Any) -> None:
        number, method, client, *args = message
        self._clients.add(client)
        spawn(self._answered(number, method, client, args), self._tasks)

    async def _answered(self, number: int, method: str, client: str, args: list[Any]) -> None:
        try:
            told = await self._answer(method, client, *args)
        except Exception as e:  # any error of the work goes to the caller
            told = PackedError.of(e)
        if not self.is_open:
            return
        try:
            self._send((number, told))
        except Exception as e:  # whatever pickling it raises
            self._send((number, PackedError.of(e)))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for task in list(self._tasks):
            task.cancel()
        self._lost(self, self._clients)


class Server:
    """A server that answers calls as long as the loop runs. `address`: to `connect` to, None where there is no way."""

    def __init__(self, answer: Answer, dumps: Dumps) -> None:
        self.address: UnixAddress | None = None
        self._answer = answer
        self._dumps = dumps
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[_Serving] = set()
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Listen, where the system can."""
        if self._server or sys.platform != "linux":
            return
        try:
            path, sock = listening()
        except OSError as e:
            log.warning("processes of this machine cannot call this one directly: %s", e)
            return
        self.address = UnixAddress(str(path), secrets.token_bytes(SECRET_BYTES))
        self._server = await asyncio.get_running_loop().create_unix_server(self._called, sock=sock)

    def close(self) -> None:
        """Take no more calls."""
        if self._server and self.address:
            self._server.close()
            Path(self.address.path).unlink(missing_ok=True)
        for connection in list(self._connections):
            connection.close()

    def _called(self) -> _Serving:
        assert self.address
        connection = _Serving(self._dumps, self.address.secret, self._answer, self._lost)
        self._connections.add(connection)
        return connection

    def _lost(self, connection: _Serving, clients: set[str]) -> None:
        self._connections.discard(connection)
        for client in clients:
            spawn(self._left(client), self._tasks)

    async def _left(self, client: str) -> None:
        try:
            await self._answer("leave", client)
        except Exception as e:  # around the user's engine: the call has no waiter
            log.debug("client %s could not leave: %s", client, e)


def _is_own(sock: socket.socket) -> bool:
    """Whether the peer is a process of the same user."""
    told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(told)[1]
    return user == os.geteuid()


async def connect(address: UnixAddress, dumps: Dumps) -> Connection | None:
    """Return a connection; None without a file on this machine, or with another process behind the file."""
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    try:
        sock.connect(address.path)
        if not _is_own(sock):  # uvloop does not close a given socket that the protocol refuses at once
            raise PermissionError("it is another user's")
    except OSError as e:
        log.debug("no connection to %s: %s", address.path, e)
        sock.close()
        return None
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_unix_connection(lambda: Connection(dumps, address.secret), sock=sock)
    try:
        return connection if await connection.proved() else None
    except asyncio.CancelledError:
        connection.close()
        raise
