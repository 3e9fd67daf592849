"""What clients log of requests: the user's handlers hear it as they would have, also of what ran ahead."""

from __future__ import annotations

import asyncio
import io
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

from teola_plugin import optimize, optimized
from tests.adapters.test_outages import Service, chain_of, chat

QUESTION = {"q": "x"}
_IDS = re.compile("[0-9a-f]{8}-[0-9a-f-]{27}|0x[0-9a-f]+|[0-9.]+ seconds")
HERE = logging.getLogger("tests.records")


class Keeps(logging.Handler):
    """Notes of each record who made it, where, and on which thread it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        frame: Any = sys._getframe()
        while frame.f_code.co_filename in (logging.__file__, __file__):  # who logs, as other kinds of logging find it
            frame = frame.f_back
        caller = frame.f_globals["__name__"], frame.f_code.co_name, frame.f_lineno
        thread = (
            re.sub("Executor.*", "", record.threadName or ""),
            threading.current_thread() is threading.main_thread(),
        )
        is_here = record.name == HERE.name
        place = record.pathname, record.funcName, record.lineno
        said = _IDS.sub("", record.getMessage())
        where = None if is_here else (*place, *caller)
        self.heard.append((record.name, record.levelname, said, where, *thread, getattr(record, "mark", None)))


class Marks(logging.Filter):
    """Counts what passes it, and changes it."""

    count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == "asyncio":  # an event loop that is made
            return False
        self.count += 1
        record.mark = self.count
        return self.count % 3 != 0


class Refuses(Keeps):
    """Raises at the second request, as its source says."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        self.count += record.name == "httpx"
        if record.name == "httpx" and self.count == 2:
            raise PermissionError("the budget is spent")


class Stumbles(Keeps):
    """Raises at the last request, which its source does not say."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        "abcdef"[len(self.heard) if record.name == "httpx" else 0]


class Together:
    """The plan of a service that holds each reply until the second request of the call, unless calls are plain."""

    def __init__(self, is_fast: bool) -> None:
        self._is_asked = threading.Event()
        if not is_fast:
            self._is_asked.set()

    def __call__(self, said: str, count: int) -> None:
        if said == "1 x":
            self._is_asked.set()
        assert self._is_asked.wait(10), said


@contextmanager
def handled(handler: logging.Handler, level: int = logging.INFO) -> Iterator[None]:
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(level)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


def assigns(model: Any, first: Runnable[Any, Any] | None = None) -> Runnable[Any, Any]:
    chain = first or RunnableLambda(told)
    for n in range(3):
        chain = chain | RunnablePassthrough.assign(**{f"k{n}": chain_of(model, str(n))})
    return chain


def told(x: Any) -> Any:
    HERE.info("here")
    return x


def node(model: Any) -> Runnable[Any, Any]:
    def body(x: Any) -> Any:
        said = []
        for n in range(3):
            HERE.info("asks for %s", n)
            said.append(model.invoke(f"{n} {x['q']}").content)
        return said

    return RunnablePassthrough() | RunnableLambda(body)


def async_node(model: Any) -> Runnable[Any, Any]:
    async def body(x: Any) -> Any:
        return [(await model.ainvoke(f"{n} {x['q']}")).content for n in range(3)]

    return RunnablePassthrough() | RunnableLambda(body)


def outcome_of(
    build: Callable[[Any], Any], run: Callable[[Any], Any], handler: Any, *, is_fast: bool, plan: Any = None,
    level: int = logging.INFO,
) -> tuple[Any, list[str], int]:  # fmt: skip
    """What came of a call, the requests, and how many of them were hits."""
    service = Service()
    model = chat(service, 1)
    pipeline = optimize(build(model)) if is_fast else build(model)
    model.invoke("a first answer")
    service.made.clear()
    service.plan = plan or (lambda said, count: time.sleep(0.02))
    with handled(handler, level):
        try:
            came = run(pipeline)
        except Exception as e:
            came = repr(e)
    hits = sum(report.hits for report in optimized(pipeline).reports) if is_fast else 0
    return came, service.made, hits


RUNS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "assigns.invoke": (assigns, lambda p: p.invoke(QUESTION)),
    "node.invoke": (node, lambda p: p.invoke(QUESTION)),
    "node.ainvoke": (async_node, lambda p: asyncio.run(p.ainvoke(QUESTION))),
}


@pytest.mark.parametrize("form", RUNS)
@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_a_handler_of_the_users_hears_of_requests_in_their_place(form: str, level: int) -> None:
    said = []
    for is_fast in (False, True):
        handler = Keeps()
        handler.addFilter(Marks())
        plan = Together(is_fast)
        came, made, hits = outcome_of(*RUNS[form], handler, is_fast=is_fast, plan=plan, level=level)
        said.append((came, sorted(made), handler.heard))
    assert said[1] == said[0]
    assert hits


def test_what_a_plain_program_sets_up_writes_the_same_lines() -> None:
    lines = []
    for is_fast in (False, True):
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(threadName)s %(funcName)s %(message)s"))
        hits = outcome_of(*RUNS["assigns.invoke"], handler, is_fast=is_fast, plan=Together(is_fast))[2]
        lines.append(re.sub("Executor-[0-9_]+", "", stream.getvalue()))
    assert lines[1] == lines[0]
    assert hits


def test_what_an_error_was_logged_with_is_logged_where_it_is_raised() -> None:
    said = []
    for is_fast in (False, True):
        handler = Keeps()
        came, _, _ = outcome_of(
            *RUNS["node.invoke"], handler, is_fast=is_fast, plan=lambda text, count: 400 if text == "1 x" else None
        )
        said.append((came, handler.heard))
    assert said[1] == said[0]


def test_of_what_nobody_takes_nothing_is_logged() -> None:
    def build(model: Any) -> Runnable[Any, Any]:
        def body(x: Any) -> Any:
            first = model.invoke("0").content
            if x["q"] == "x" and HERE.handlers:  # which the reader does not know
                return first
            return model.invoke("1").content

        return RunnablePassthrough() | RunnableLambda(body)

    said = []
    for is_fast in (False, True):
        handler = Keeps()
        outcome_of(build, RUNS["node.invoke"][1], handler, is_fast=is_fast)
        said.append(handler.heard)
    assert said[1] == said[0]


def quiet(model: Any) -> Runnable[Any, Any]:
    """Nothing but the client logs anything."""
    return assigns(model, RunnablePassthrough())


@pytest.mark.parametrize("build", [node, quiet])
def test_a_handler_that_may_refuse_a_request_hears_of_it_before_the_next(build: Callable[[Any], Any]) -> None:
    said = []
    for is_fast in (False, True):
        handler = Refuses()
        came, made, _ = outcome_of(build, lambda p: p.invoke(QUESTION), handler, is_fast=is_fast)
        said.append((came, made, handler.heard))
    assert said[1] == said[0]


def test_where_a_handler_stumbles_the_client_itself_meets_the_error() -> None:
    came = [outcome_of(*RUNS["node.invoke"], Stumbles(), is_fast=is_fast)[0] for is_fast in (False, True)]
    assert came[1] == came[0]


def test_what_a_handler_counts_is_not_known_ahead() -> None:
    handler = Keeps()

    def build(model: Any) -> Runnable[Any, Any]:
        def body(x: Any) -> Any:
            model.invoke("first")
            return model.invoke(f"second {len(handler.heard)}").content

        return RunnablePassthrough() | RunnableLambda(body)

    said = []
    for is_fast in (False, True):
        handler.heard.clear()
        said.append(outcome_of(build, RUNS["node.invoke"][1], handler, is_fast=is_fast)[:2])
    assert said[1] == said[0]


def test_a_logger_that_is_made_during_a_request_is_heard_in_its_place_once() -> None:
    said = []
    for is_fast in (False, True):
        first, second = Keeps(), Keeps()
        first.addFilter(Marks())

        together = Together(is_fast)

        def plan(text: str, count: int, name: str = f"tests.made.{is_fast}", together: Any = together) -> None:
            logging.getLogger(f"{name}.{text}").info("asked")
            together(text, count)

        with handled(second):
            hits = outcome_of(*RUNS["assigns.invoke"], first, is_fast=is_fast, plan=plan)[2]
        said.append([[(each[2], each[-1]) for each in handler.heard] for handler in (first, second)])
    assert said[1] == said[0]
    assert hits
