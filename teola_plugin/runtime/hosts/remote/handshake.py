"""A handshake: two processes prove knowledge of a secret before either trusts the peer's messages.

    client                                server
      hello, its number            -->
                                   <--    its number, HMAC(secret, "server", both numbers)
      HMAC(secret, "client", ...)  -->

The numbers are random and new for each connection, so messages heard on a connection prove nothing on another. All
messages have a fixed size. The module does no input or output: the owner of a connection sends `opening`, hands each
message of `due` bytes to `take` and sends the result, until `due` is 0.
"""

from __future__ import annotations

import hmac
import secrets

HELLO = b"teola-nearby-1\n"
NUMBER_BYTES = SECRET_BYTES = PROOF_BYTES = 32


class Stranger(Exception):
    """The peer does not know the secret. The text says how the peer failed."""


class ClientSide:
    """The connecting end."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._number = secrets.token_bytes(NUMBER_BYTES)
        self.opening = HELLO + self._number
        self.due = NUMBER_BYTES + PROOF_BYTES

    def take(self, message: bytes) -> bytes:
        """Return the client's proof, in answer to the server's. Raises: Stranger."""
        server, proof = message[:NUMBER_BYTES], message[NUMBER_BYTES:]
        _check(proof, self._secret, b"server", self._number, server)
        self.due = 0
        return _proof(self._secret, b"client", self._number, server)


class ServerSide:
    """The listening end."""

    opening = b""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._number = secrets.token_bytes(NUMBER_BYTES)
        self._client = b""
        self.due = len(HELLO) + NUMBER_BYTES

    def take(self, message: bytes) -> bytes:
        """Return the proof, in answer to the greeting; nothing in answer to the client's proof. Raises: Stranger."""
        if self._client:
            _check(message, self._secret, b"client", self._client, self._number)
            self.due = 0
            return b""
        if not message.startswith(HELLO):
            raise Stranger("it does not greet as a client does")
        self._client = message[len(HELLO) :]
        self.due = PROOF_BYTES
        return self._number + _proof(self._secret, b"server", self._client, self._number)


def _proof(secret: bytes, role: bytes, client: bytes, server: bytes) -> bytes:
    return hmac.digest(secret, role + client + server, "sha256")


def _check(proof: bytes, secret: bytes, role: bytes, client: bytes, server: bytes) -> None:
    if not hmac.compare_digest(proof, _proof(secret, role, client, server)):
        raise Stranger("it does not know the secret")
