"""A server to be ended: it has so many queries in flight, and tells each end through a pipe.

    {"is_running": True}                              all are in
    {"question": "question 3", "said": "..."}         an answer
    {"question": "late 0", "error": "Overloaded"}     one that came later: every tenth of a second, from when it is told

FORM `threads` asks in threads, and in the main thread too; the others (apps.py) in an event loop, as web servers do.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from teola_plugin import drain_on_sigterm, optimize, runtime
from teola_plugin.tenancy import ANYBODY
from tests.chaos.apps import FORMS, Answer, Engines, chain, make_engines

TIMEOUT_S = 60
INTERRUPTED = 130
"""How a shell tells of Ctrl-C."""

Tell = Callable[[dict[str, Any]], None]


def serve(form: str, queries: int, line: Connection) -> None:
    """The life of the server."""
    lock = threading.Lock()
    all_are_in = threading.Event()

    async def sleep(seconds: float) -> None:
        while not all_are_in.is_set():  # noqa: ASYNC110  its event is for threads
            await asyncio.sleep(0.01)
        await asyncio.sleep(seconds)

    def tell(what: dict[str, Any]) -> None:
        with lock:
            line.send(what)

    def is_running() -> None:
        while runtime.host.admission.inside < queries:
            time.sleep(0.01)
        all_are_in.set()
        tell({"is_running": True})
        line.recv()

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is in its background without
    drain_on_sigterm(TIMEOUT_S)
    try:
        if form == "threads":
            in_threads(make_engines(sleep=sleep), queries, tell, is_running)
        else:
            asyncio.run(in_loop(FORMS[form](make_engines(sleep=sleep)), queries, tell, is_running))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


async def in_loop(answer: Answer, queries: int, tell: Tell, is_running: Callable[[], None]) -> None:
    async def ask(question: str) -> None:
        try:
            tell({"question": question, "said": await answer(question, ANYBODY)})
        except Exception as e:
            tell({"question": question, "error": type(e).__name__})

    begun = [asyncio.ensure_future(ask(f"question {number}")) for number in range(queries)]
    await asyncio.to_thread(is_running)
    for number in itertools.count():
        await asyncio.sleep(0.1)
        await ask(f"late {number}")
    await asyncio.gather(*begun)


def in_threads(engines: Engines, queries: int, tell: Tell, is_running: Callable[[], None]) -> None:
    pipeline = optimize(chain(engines))

    def ask(question: str) -> None:
        try:
            tell({"question": question, "said": pipeline.invoke({"question": question})})
        except Exception as e:
            tell({"question": question, "error": type(e).__name__})

    def come_late() -> None:
        is_running()
        for number in itertools.count():
            time.sleep(0.1)
            ask(f"late {number}")

    asking = [threading.Thread(target=ask, args=(f"question {n}",), daemon=True) for n in range(1, queries)]
    for thread in (*asking, threading.Thread(target=come_late, daemon=True)):
        thread.start()
    ask("question 0")
    threading.Event().wait(TIMEOUT_S)
