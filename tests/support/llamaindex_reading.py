"""Reads a function of a LlamaIndex component, and tells what is asked for when: without its run, in one thread."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.adapters.llamaindex.reading import LlamaIndexAsker
from teola_plugin.adapters.reader.asking import Request
from teola_plugin.adapters.reader.prediction import Prediction, State
from teola_plugin.adapters.reader.run import Given, Run
from teola_plugin.engines import Done
from teola_plugin.seams import Reply
from teola_plugin.trace import Mark
from tests.support.llamaindex_world import answer

Read = Callable[[LlamaIndexAsker, Run, Any], Any]


@dataclass
class Found:
    """What reading came to. `rounds`: what was asked with all replies to what came before; `value`: what it returns."""

    rounds: list[list[str]] = field(default_factory=list)
    barrier: str = ""
    value: Any = None
    error: Exception | None = None

    @property
    def prompts(self) -> list[str]:
        """All that models were asked."""
        return [text for each in self.rounds for text in each if not text.startswith("beside ")]


class _Line:
    """Implements `prediction.Line`."""

    def __init__(self, reply: Callable[[str], Any]) -> None:
        self.reply = reply
        self.works: deque[Callable[[], None]] = deque()
        self.open: list[tuple[Reply, str, Any]] = []

    def ask(self, request: Request, mark: Mark | None = None) -> Reply:
        reply = Reply()
        told = f"beside {request.shown}" if request.act else str(request.payload)
        self.open.append((reply, told, request.act))
        return reply

    def soon(self, work: Callable[[], None]) -> None:
        self.works.append(work)

    def spent(self, seconds: float) -> None:
        """Nobody asks."""


def reading(program: Read, given: Any, *, reply: Callable[[str], Any] = answer, is_async: bool = False) -> Found:
    """Read a program; what is asked in a round is answered together."""
    found, line, copies = Found(), _Line(reply), Given()
    held = copies.copy(given)
    asker = LlamaIndexAsker(is_async=is_async)

    def evaluate(run: Run) -> None:
        asker.begin()
        try:
            found.value = program(asker, run, held)
        except Exception as e:
            found.error = e
            raise

    prediction = Prediction(asker, line, State(evaluate, copies))
    prediction.begin()
    while line.works or line.open:
        while line.works:
            line.works.popleft()()
        asked, line.open = line.open, []
        if asked:
            found.rounds.append([told for _, told, _ in asked])
        for waiting, told, act in asked:
            waiting.put(Done(_done(act) if act else line.reply(told)))
    found.barrier = prediction.barriers[-1].what if prediction.barriers else ""
    return found


def _done(act: Callable[[], Any]) -> Any:
    value = act()
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def read_call(component: Any, method: str, *args: Any, **settings: Any) -> Found:
    """Read a method of a component of the user's."""

    def program(asker: LlamaIndexAsker, run: Run, given: Any) -> Any:
        return asker.use(run, component, method, tuple(given), {})

    return reading(program, list(args), is_async=method.startswith("a"), **settings)
