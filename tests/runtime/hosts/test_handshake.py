"""The proofs of both ends of a connection, without one; over sockets: test_nearby.py."""

from __future__ import annotations

import pytest

from teola_plugin.runtime.hosts.remote.handshake import HELLO, NUMBER_BYTES, ClientSide, ServerSide, Stranger

SECRET = b"s" * 32


def test_two_ends_that_know_the_secret_believe_each_other() -> None:
    client, server = ClientSide(SECRET), ServerSide(SECRET)
    assert server.take(client.take(server.take(client.opening))) == b""
    assert (client.due, server.due) == (0, 0)


def test_what_a_client_said_on_one_connection_proves_nothing_on_another() -> None:
    client, server, other = ClientSide(SECRET), ServerSide(SECRET), ServerSide(SECRET)
    proof = client.take(server.take(client.opening))
    other.take(client.opening)
    with pytest.raises(Stranger, match="secret"):
        other.take(proof)


def test_what_a_server_said_to_one_client_proves_nothing_to_another() -> None:
    client, server, other = ClientSide(SECRET), ServerSide(SECRET), ClientSide(SECRET)
    proof = server.take(client.opening)
    with pytest.raises(Stranger, match="secret"):
        other.take(proof)


def test_a_server_that_sends_a_proof_back_proves_nothing() -> None:
    """Neither end's proof is one of the other end, even of the same numbers."""
    client, server = ClientSide(SECRET), ServerSide(SECRET)
    proof = server.take(client.opening)[NUMBER_BYTES:]
    with pytest.raises(Stranger, match="secret"):
        server.take(proof)


def test_who_greets_in_another_way_hears_no_proof() -> None:
    with pytest.raises(Stranger, match="greet"):
        ServerSide(SECRET).take(b"x" * len(HELLO) + b"n" * NUMBER_BYTES)
