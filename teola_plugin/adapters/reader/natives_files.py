"""Files that the program writes: the framework's run writes them, a reading only tells what the calls return.

    with open(f"{topic}.md", "w") as file:      may raise, unless the folder is there and can be written to
        file.write(reply.content)               the length of the text

A full disk is not foreseen, nor is a broken pipe of `print`. What a file holds is not read, so a request that may look
at a file, or that names a file which the program has written, is left to the framework's run.
"""

from __future__ import annotations

import builtins
import csv
import io
import locale
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from teola_plugin.adapters.reader import amounts, foreign, outlets
from teola_plugin.adapters.reader.table import is_text, known, register
from teola_plugin.adapters.reader.values import Arguments, Barrier, Callee, Opaque, Unknown

_ENCODINGS = ("utf-8", "utf8", "utf-8-sig", "utf-16", "utf-32", "ascii", "us-ascii", "latin-1", "iso-8859-1", "cp1252")
_OF_THE_SYSTEM = "/proc/", "/sys/", "/dev/"
_MODES = ("w", "wt", "wb", "a", "at", "ab")
_OPTIONS = ("mode", "encoding", "errors", "newline")


class Output:
    """A file that the program has opened for writing. `encoding`: None for bytes; `state`: whether it is `closed`."""

    def __init__(self, encoding: str | None, errors: str) -> None:
        self.encoding = encoding
        self.errors = errors
        self.state = {"closed": False}


class Rows:
    """A writer of the `csv` module. `names`: the columns of a `DictWriter`."""

    def __init__(self, output: Any, names: Sequence[str] | None = None) -> None:
        self.output = output
        self.names = names


def is_output(value: Any) -> bool:
    """Whether a value is a file that is written: the program's own, or an open one of the framework's run."""
    held = value.held if type(value) is Opaque else None
    return type(held) is Output or (type(held) is io.TextIOWrapper and _is_of_the_system(held) and not held.closed)


def _is_of_the_system(file: Any) -> bool:
    """Whether a file is written by the system alone: what lies below may be an object of the program's."""
    buffer = file.buffer
    if not vars(file).keys() <= {"mode"}:
        return False
    return type(buffer) is io.BufferedWriter and type(buffer.raw) is io.FileIO


def attribute(value: Opaque, name: str) -> Any:
    """Return an attribute of a path, of a file that is written, or of a writer of rows; None for all others."""
    if (path := path_in(value)) is not None:
        return _of_path(path, name)
    if type(value.held) is Rows:
        act = _OF_ROWS.get(name)
    elif is_output(value):
        act = _OF_FILES.get(name)
    else:
        return None
    return Callee(lambda run, args, kwargs: act(run, value, *args, **kwargs), name) if act is not None else None


# --- paths -----------------------------------------------------------------------------------------------------------

_PATH = type(pathlib.Path())
_TEXTS = ("name", "stem", "suffix")
_READ = (*_TEXTS, "parent", "__str__", "__truediv__", "__rtruediv__", "joinpath", "with_suffix", "as_posix")
_WRITING = ("write_text", "write_bytes", "open", "mkdir", "exists", "is_file", "is_dir")
_CALLED = io.open, os.mkdir
_FOUND = {name: foreign.in_mro(_PATH, name) for name in (*_READ, *_WRITING)}


def path_in(value: Any) -> pathlib.Path | None:
    """Return the path that a value is, None for other values. Paths do not change, and are only combined here."""
    held = value.held if type(value) is Opaque else None
    is_plain = (
        type(held) is _PATH
        and (io.open, os.mkdir) == _CALLED
        and all(foreign.in_mro(_PATH, name) is found for name, found in _FOUND.items())
    )
    return held if is_plain else None


def _parts_in(values: Arguments) -> list[Any] | None:
    """Return known texts and paths as such; None if a value is neither."""
    parts = [each if type(each) is str else path_in(each) for each in values]
    return None if None in parts else parts


def joined(a: Any, b: Any) -> Opaque | None:
    """Return `a / b` for a path and a known text or path; None for other values."""
    parts = _parts_in((a, b))
    if parts is None or type(a) is type(b) is str:
        return None
    return Opaque(_PATH(*parts), is_own=True)


def _make_path(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Opaque:
    known(run, *args)
    if kwargs or (parts := _parts_in(args)) is None:
        raise Barrier("it makes a path in an unusual way")
    return Opaque(_PATH(*parts), is_own=True)


def _of_path(path: pathlib.Path, name: str) -> Any:
    if name in _TEXTS:
        return getattr(path, name)
    if name == "parent":
        return Opaque(path.parent, is_own=True)
    if name in ("joinpath", "with_suffix", "as_posix"):
        return Callee(lambda run, args, kwargs: _read(run, path, name, args, kwargs), name)
    act = _OF_PATHS.get(name)
    return Callee(lambda run, args, kwargs: act(run, path, args, kwargs), name) if act is not None else None


def _read(run: Any, path: pathlib.Path, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    known(run, *args)
    if kwargs or (given := _parts_in(args)) is None:
        raise Barrier(f"it calls {name} of a path in an unusual way")
    found = getattr(path, name)(*given)
    return found if type(found) is str else Opaque(found, is_own=True)


def _write_text(run: Any, path: pathlib.Path, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if not 1 <= len(args) <= 2 or "data" in kwargs:
        raise Barrier("it writes a text in an unusual way")
    named = {"encoding": args[1], **kwargs} if len(args) == 2 else kwargs
    return write(run, _open(run, (str(path), "w"), named), args[0])


def _write_bytes(run: Any, path: pathlib.Path, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        raise Barrier("it writes bytes in an unusual way")
    return write(run, _open(run, (str(path), "wb"), {}), args[0])


def _make_folder(run: Any, path: pathlib.Path, args: Arguments, kwargs: dict[str, Any]) -> None:
    run.require_known(*kwargs.values())
    if args or kwargs.keys() - {"parents", "exist_ok"} or not kwargs.get("parents"):
        raise Barrier("it makes a folder in an unusual way")
    _make_folders(run, (str(path),), {"exist_ok": bool(kwargs.get("exist_ok"))})


_OF_PATHS: dict[str, Callable[..., Any]] = {
    "open": lambda run, path, args, kwargs: _open(run, (str(path), *args), kwargs),
    "write_text": _write_text,
    "write_bytes": _write_bytes,
    "mkdir": _make_folder,
    **dict.fromkeys(
        ("exists", "is_file", "is_dir"),
        lambda run, path, args, kwargs: _tells_of_files(run, (str(path), *args), kwargs),
    ),
}

# --- opening ---------------------------------------------------------------------------------------------------------


def _open(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Opaque:
    given = dict(zip(("file", "mode"), args, strict=False)) | kwargs
    named = {name: given.get(name) for name in _OPTIONS}
    run.require_known(*named.values())
    mode: Any = named["mode"]
    if len(args) > 2 or given.keys() - {"file", *_OPTIONS} or mode not in _MODES:
        raise Barrier("it opens a file to read it, or in an unusual way")
    is_binary = "b" in mode
    texts = [named[name] for name in ("encoding", "errors", "newline")]
    if not all(each is None or type(each) is str for each in texts) or (is_binary and texts != [None] * 3):
        raise Barrier("it opens a file in an unusual way")
    if "\0" in f"{named['encoding']}{named['errors']}" or named["newline"] not in (None, "", "\n", "\r", "\r\n"):
        raise Barrier("it opens a file in an unusual way")
    encoding = str(named["encoding"] or ("utf-8" if sys.flags.utf8_mode else locale.getencoding()))
    path = _text_of(run, given.get("file"))
    if path is None or not _can_be_opened(run, path) or not _is_usual(encoding):
        run.raises(run.sources(given.get("file")))
    run.written.add(path or "")
    return Opaque(Output(None if is_binary else encoding, named["errors"] or "strict"), is_own=True)


def _is_usual(encoding: str) -> bool:
    return encoding.lower().replace("_", "-") in _ENCODINGS


def _text_of(run: Any, path: Any) -> str | None:
    """Return a path as a text, None for an unusual or unknown one, which may raise. Raises: Barrier."""
    if type(path) is Unknown and is_text(path):
        return None
    known(run, path)
    path = str(found) if (found := path_in(path)) is not None else path
    if type(path) is not str:
        raise Barrier("it writes to a file that has no path")
    is_usual = path and "\0" not in path and len(path) < 1000 and ".." not in path.split(os.sep)
    return path if is_usual else None


def _can_be_opened(run: Any, path: str) -> bool:
    """Whether a file can be opened for writing, as the folders are now."""
    at = os.path.abspath(path)
    if at.startswith(_OF_THE_SYSTEM):
        return False
    if os.path.lexists(path) and at not in run.made_folders:
        return os.path.isfile(path) and os.access(path, os.W_OK)
    folder = os.path.dirname(at)
    can_be_made = folder in run.made_folders or _can_be_filled(folder)
    return can_be_made and at not in run.made_folders and _is_name(os.path.basename(path))


def _is_name(name: str) -> bool:
    return 0 < len(name.encode(errors="replace")) < 200 and name.isprintable()


def _can_be_filled(folder: str) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


def _make_folders(run: Any, args: Arguments, kwargs: dict[str, Any]) -> None:
    run.require_known(*args[1:], *kwargs.values())
    if len(args) != 1 or kwargs.keys() - {"exist_ok"} or (io.open, os.mkdir) != _CALLED:
        raise Barrier("it makes folders in an unusual way")
    path, may_be_there = _text_of(run, args[0]), bool(kwargs.get("exist_ok"))
    if path is None or not _can_be_made(run, os.path.abspath(path), may_be_there=may_be_there):
        run.raises(run.sources(args[0]))
    run.written.add("")


def _can_be_made(run: Any, path: str, *, may_be_there: bool) -> bool:
    """Whether a folder and those above it can be made, as the folders are now."""
    made = list[str]()
    while not os.path.lexists(path) and path not in run.made_folders:
        made.append(path)
        path = os.path.dirname(path)
    files = {os.path.abspath(each) for each in run.written if each}
    if not made:
        return may_be_there and (path in run.made_folders or os.path.isdir(path))
    is_sure = path in run.made_folders or _can_be_filled(path)
    if not is_sure or not files.isdisjoint(made) or not all(_is_name(os.path.basename(each)) for each in made):
        return False
    if run.is_in_order:
        run.made_folders.update(made)
    return True


def _tells_of_files(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Unknown:
    """Return an unknown flag: files may come and go before the framework's run looks.

    Raises: Barrier outside of loops, where reading goes on behind the statement, which tells.
    """
    if len(args) != 1 or kwargs or _text_of(run, args[0]) is None:
        raise Barrier("it looks for a file in an unusual way")
    place = run.levels[-1].place
    if place is None or not place.is_repeated:
        raise Barrier("it looks for a file")
    return run.unknown(holds="bool", is_safe=True)  # type: ignore[no-any-return]


# --- writing ---------------------------------------------------------------------------------------------------------


def _use(run: Any, value: Any) -> Any:
    """Return the file. Raises: Barrier once it is closed."""
    held = value.held
    if type(held) is Output and (run.is_unknown(held.state) or held.state["closed"]):
        raise Barrier("it uses a file that may be closed")
    return held


def write(run: Any, value: Any, text: Any) -> Any:
    """Return what `file.write(text)` returns."""
    held = _use(run, value)
    if type(held) is not Output:
        run.written.add("")
    elif held.encoding is None:
        known(run, text)
        if type(text) is not bytes:
            raise Barrier("it writes something else than bytes to a file")
        return len(text)
    if not is_text(text):
        known(run, text)
        raise TypeError("write() argument must be str")
    if not encodes(held, [text if type(text) is str else None]):
        run.raises(run.sources(text))
    return len(text) if type(text) is str else run.unknown(text, holds=amounts.COUNT, is_safe=True)


def encodes(held: Any, texts: Sequence[str | None]) -> bool:
    """Whether a file of texts certainly takes the texts, None standing for any text."""
    if held.errors != "strict":
        return held.errors in ("ignore", "replace", "backslashreplace", "xmlcharrefreplace", "namereplace")
    return held.encoding is not None and all(outlets.is_encoded(text, str(held.encoding)) for text in texts)


def _write_lines(run: Any, value: Opaque, lines: Any) -> None:
    known(run, lines)
    if type(lines) not in (list, tuple):
        raise Barrier("it writes the lines of something else than a list")
    for each in lines:
        write(run, value, each)


def flush(run: Any, value: Opaque) -> None:
    """Do nothing to an open file. Raises: Barrier."""
    _use(run, value)


def leave(run: Any, value: Opaque) -> None:
    """Close a file. Raises: Barrier for a file of the framework's run."""
    if type(value.held) is not Output:
        raise Barrier("it closes a file that it has not opened")
    run.touch(value.held.state)
    value.held.state["closed"] = True


# --- rows ------------------------------------------------------------------------------------------------------------


def _writer(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Opaque:
    run.require_known(*kwargs.values())
    if len(args) != 1 or not is_output(args[0]) or kwargs.keys() - {"delimiter", "lineterminator"}:
        raise Barrier("it writes rows in an unusual way")
    csv.writer(io.StringIO(), **kwargs)
    return Opaque(Rows(args[0]), is_own=True)


def _dict_writer(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Opaque:
    names: Any = args[1] if len(args) > 1 else kwargs.get("fieldnames")
    run.require_known(names, *kwargs.values())
    is_plain = type(names) is list and all(type(each) is str for each in names)
    if not 1 <= len(args) <= 2 or not is_output(args[0]) or kwargs.keys() - {"fieldnames"} or not is_plain:
        raise Barrier("it writes rows in an unusual way")
    return Opaque(Rows(args[0], [*names]), is_own=True)


def _write_row(run: Any, value: Any, row: Any) -> Any:
    known(run, row)
    names, kind = value.held.names, type(row)
    if kind is not (list if names is None else dict):
        raise Barrier("it writes a row of another type")
    held: Any = row if names is None else row.values()
    if names is not None and not {*row} <= {*names}:
        run.raises()
    file, texts = value.held.output.held, [each for each in held if type(each) is str]
    if any(not _is_shown(each) for each in held) or not encodes(file, texts):
        run.raises()
    found = run.unknown(holds="text", is_safe=True)
    return write(run, value.held.output, found)


def _write_rows(run: Any, value: Opaque, rows: Any) -> None:
    known(run, rows)
    if type(rows) is not list:
        raise Barrier("it writes rows of something else than a list")
    for each in rows:
        _write_row(run, value, each)


def _write_header(run: Any, value: Opaque) -> Any:
    if value.held.names is None:
        raise AttributeError("writeheader")
    return _write_row(run, value, {name: name for name in value.held.names})


def _is_shown(value: Any) -> bool:
    """Whether a value of a row is certainly written; a number of many digits is refused."""
    if type(value) is int:
        return value.bit_length() < 10_000
    return type(value) in (float, bool, type(None)) or is_text(value)


_OF_FILES: dict[str, Callable[..., Any]] = {
    "write": write, "writelines": _write_lines, "flush": flush, "close": leave,
}  # fmt: skip
_OF_ROWS: dict[str, Callable[..., Any]] = {
    "writerow": _write_row, "writerows": _write_rows, "writeheader": _write_header,
}  # fmt: skip

register(_make_path, pathlib.Path, _PATH)
register(_open, builtins.open)
register(_make_folders, os.makedirs)
register(_tells_of_files, os.path.exists, os.path.isfile, os.path.isdir)
register(_writer, csv.writer)
register(_dict_writer, csv.DictWriter)
