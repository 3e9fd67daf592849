"""Contexts for random programs: decorated generator functions, and classes with `__enter__` and `__exit__`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.adapters.reader.random_classes import Failure


@contextlib.contextmanager
def noting(seen: list[Any], x: Any) -> Iterator[Any]:
    """Without a `try`: an error skips the end."""
    seen.append(x)
    yield seen
    seen.append("end")


@contextlib.contextmanager
def telling(m: Any, x: Any, last: str = "bye") -> Iterator[str]:
    """Asks before and after, whatever happens."""
    said = m.ask(x)
    try:
        yield said + "!"
    finally:
        m.ask(last)


@contextlib.contextmanager
def swallowing(seen: list[Any]) -> Iterator[None]:
    """Swallows all errors."""
    try:
        yield
    except Exception as e:
        seen.append(type(e).__name__)
    else:
        seen.append("fine")


@contextlib.contextmanager
def sifting(seen: list[Any], m: Any) -> Iterator[str]:
    """Swallows some errors, and tells of others."""
    try:
        yield "sifted"
    except ValueError:
        seen.append("swallowed")
    except Exception:
        m.ask("failed")
        raise


@contextlib.contextmanager
def turning(x: Any = "turned") -> Iterator[Any]:
    """Turns errors into others."""
    try:
        yield x
    except TypeError as e:
        raise Failure("turned", 2) from e


@contextlib.contextmanager
def choosing(x: Any, m: Any) -> Iterator[str]:
    """Yields in one of two places, from another context."""
    if x == "yes":
        with telling(m, "chosen") as said:
            yield said
        return
    yield "other"


@contextlib.contextmanager
def hesitating(m: Any) -> Iterator[str]:
    """Does not yield for some replies, which is an error."""
    if m.ask("q") != "no":
        yield "one"


class Noted:
    """Notes its use."""

    def __init__(self, seen: list[Any], *, swallows: bool = False) -> None:
        self.seen = seen
        self.swallows = swallows

    def __enter__(self) -> Any:
        self.seen.append("in")
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        self.seen.append("out" if kind is None else "failed")
        return self.swallows and kind is not None


class Asked:
    """Asks at both ends."""

    def __init__(self, m: Any) -> None:
        self.m = m

    def __enter__(self) -> str:
        return str(self.m.ask("in"))

    def __exit__(self, *error: object) -> None:
        self.m.ask("out" if error[1] is None else "out again")
