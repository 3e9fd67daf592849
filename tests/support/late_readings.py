"""Readings that begin late, as on a machine with much to do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from teola_plugin.runtime.session import background


@contextmanager
def late_until(event: threading.Event, kinds: Sequence[str] = ("begin_reading", "begin")) -> Iterator[None]:
    """Let what runs in the background begin only after the event, or after some seconds.

    `kinds`: "begin" for components that run early, "begin_reading" for readings.
    """

    def late(begin: Callable[..., Any]) -> Callable[..., Any]:
        def begin_late(work: Callable[[], Any], *more: Any) -> Any:
            def read() -> None:
                event.wait(5)
                work()

            return begin(read, *more)

        return begin_late

    with pytest.MonkeyPatch.context() as patched:
        for each in kinds:
            patched.setattr(background, each, late(getattr(background, each)))
        yield
