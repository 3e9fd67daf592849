"""How things end: a server that is told to, and work that nobody wants any more, at whatever moment."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pytest

from tests.chaos.apps import IS_FULL, expected
from tests.chaos.serving import INTERRUPTED, serve

QUERIES = 100 if IS_FULL else 20
END_S = 60

pytestmark = pytest.mark.timeout(400)


class Server:
    """One that runs, with `QUERIES` in flight (serving.py); `told` is what it said since."""

    def __init__(self, process: Any, line: Connection) -> None:
        self._process = process
        self._line = line
        self._children = psutil.Process(process.pid).children(recursive=True)
        self.told: list[dict[str, Any]] = []

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def let_more_come(self) -> None:
        self._line.send("")

    def hear(self) -> dict[str, Any]:
        """The next that it tells. Raises: EOFError."""
        self.told.append(self._line.recv())
        return self.told[-1]

    def ended(self) -> int:
        """How it ended; nothing that it had started is left."""
        with contextlib.suppress(EOFError):
            while True:
                self.hear()
        self._process.join(END_S)
        assert not psutil.wait_procs(self._children, timeout=10)[1]
        return int(self._process.exitcode)

    def outcomes(self, kind: str) -> Counter[str]:
        """How many of a kind of questions were answered, or with which error they ended."""
        of_kind = [each for each in self.told if each["question"].startswith(kind)]
        return Counter(each.get("error", "answered") for each in of_kind)


Serving = Callable[[str], AbstractContextManager[Server]]


@pytest.fixture(scope="module")
def serving() -> Serving:
    """Servers are forked off a process that has imported all they need, which takes its time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.chaos.serving", "teola_plugin.adapters.langchain", "teola_plugin.adapters.chroma"]
    )

    @contextlib.contextmanager
    def serving(form: str) -> Iterator[Server]:
        ours, line = multiprocessing.Pipe()
        process = context.Process(target=serve, args=(form, QUERIES, line))
        process.start()
        line.close()
        try:
            server = Server(process, ours)
            while server.hear() != {"is_running": True}:
                pass
            server.told.pop()
            yield server
        finally:
            process.kill()
            process.join()
            ours.close()

    return serving


@pytest.mark.parametrize("form", ["graph", "LangChain", "threads"])
def test_a_server_that_is_told_to_end_answers_what_it_took_in(serving: Serving, form: str) -> None:
    with serving(form) as server:
        server.signal(signal.SIGTERM)
        server.let_more_come()
        assert server.ended() == -signal.SIGTERM
    assert server.outcomes("question") == {"answered": QUERIES}
    late = server.outcomes("late")
    assert late["Overloaded"]
    assert set(late) <= {"Overloaded", "answered"}  # the first may have come before the signal
    said = {each["question"]: each["said"] for each in server.told if "said" in each}
    assert said == asyncio.run(expected("graph" if form == "graph" else "LangChain", said))


@pytest.mark.parametrize("form", ["LangChain", "threads"])
def test_who_tells_it_twice_is_not_kept_waiting(serving: Serving, form: str) -> None:
    with serving(form) as server:
        server.signal(signal.SIGTERM)
        server.let_more_come()
        while not server.outcomes("question"):  # by then it has noticed the first
            server.hear()
        server.signal(signal.SIGTERM)
        assert server.ended() == -signal.SIGTERM
    assert server.outcomes("question")["answered"] < QUERIES


@pytest.mark.parametrize("form", ["LangChain", "threads"])
def test_ctrl_c_ends_it_at_once(serving: Serving, form: str) -> None:
    with serving(form) as server:
        server.signal(signal.SIGINT)
        server.let_more_come()  # its thread that waits for this is not to be the one that keeps it
        assert server.ended() == INTERRUPTED
    assert server.outcomes("question")["answered"] < QUERIES
