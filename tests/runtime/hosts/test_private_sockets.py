"""Sockets that are files: whose folder they are in, and which files there are removed; in use: test_nearby.py."""

from __future__ import annotations

import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from teola_plugin.runtime.hosts.remote import unix_sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sockets are Linux's")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sockets are to be in it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / f"teola-{os.geteuid()}"


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_folder_of_another_user_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    theirs = folder.parent / f"teola-{other}"
    theirs.mkdir(mode=0o700)  # ours, as the system sees it
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(PermissionError, match="not a folder of this user's alone"):
        unix_sockets.listening()
    assert files(theirs) == set()


def test_a_link_to_a_folder_is_not_followed(folder: Path) -> None:
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)
    with pytest.raises(PermissionError, match="not a folder of this user's alone"):
        unix_sockets.listening()
    assert files(elsewhere) == set()


def test_a_socket_that_does_not_listen_yet_is_left_alone(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as coming:
        coming.bind(str(folder / ".coming"))
        path, sock = unix_sockets.listening()
        with sock:
            assert files(folder) == {".coming", path.name}


def test_a_socket_has_its_name_only_once_it_listens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before: list[str] = []

    class Socket(socket.socket):
        def listen(self, *args: int) -> None:
            before.extend(files(folder))
            super().listen(*args)

    monkeypatch.setattr(socket, "socket", Socket)
    path, sock = unix_sockets.listening()
    with sock, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert [name[0] for name in before] == ["."]
        assert files(folder) == {path.name}
        assert not path.name.startswith(".")
        assert stat.S_ISSOCK(path.stat().st_mode)
