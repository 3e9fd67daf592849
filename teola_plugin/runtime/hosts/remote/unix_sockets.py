"""Unix sockets: files of a user, in a folder that no other user can enter.

    $XDG_RUNTIME_DIR/teola-1000/4f0c9a...       else in the temporary folder

A killed process leaves a file behind; the next process that makes a socket removes the file.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import tempfile
from pathlib import Path


def listening() -> tuple[Path, socket.socket]:
    """Return a listening socket, and the file. Raises: OSError."""
    folder = _folder()
    _sweep(folder)
    name = secrets.token_hex(8)
    sock = socket.socket(socket.AF_UNIX)  # made here: the socket gets its name only once listening
    try:
        sock.bind(str(folder / f".{name}"))
        sock.listen()
        return (folder / f".{name}").rename(folder / name), sock
    except OSError:
        sock.close()
        raise


def _folder() -> Path:
    """Return the folder of this user's sockets, which no other user can enter. Raises: OSError."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    parent = runtime if runtime.is_absolute() and runtime.is_dir() else Path(tempfile.gettempdir())
    folder = parent / f"teola-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o700:
        raise PermissionError(f"{folder} is not a folder of this user's alone (mode 0700)")
    return folder


def _sweep(folder: Path) -> None:
    """Remove the files of killed processes: sockets without a listener."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
            sock.setblocking(False)
            try:
                sock.connect(str(path))
            except ConnectionRefusedError:
                if path.is_socket() and not path.name.startswith("."):  # a socket with a dot may not listen yet
                    path.unlink()
