"""Reads a graph from its input on, and tells what is asked for when: without LangGraph's run, replies come at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from teola_plugin.adapters.langchain.reading import LangChainAsker
from teola_plugin.adapters.langgraph.follow import _Supersteps, prepared, readings_of
from teola_plugin.adapters.langgraph.front import Front, Graph, Way
from teola_plugin.adapters.langgraph.inside import LangGraphAsker
from teola_plugin.adapters.langgraph.reading import GraphReader
from teola_plugin.adapters.reader.asking import Request
from teola_plugin.adapters.reader.prediction import Prediction, State
from teola_plugin.adapters.reader.run import Given, Run
from teola_plugin.engines import Done
from teola_plugin.seams import Reply
from teola_plugin.trace import Mark, Reading
from tests.support.fakes import says

WAY = Way(is_async=False, config={"configurable": {}, "recursion_limit": 25}, stop=25)


@dataclass
class Found:
    """What reading a graph came to.

    `rounds`: the prompts asked with all replies to those before, sorted. `steps`: the nodes of each superstep that was
    read. `barrier`: what ended it, if it is not read.
    """

    rounds: list[list[str]] = field(default_factory=list)
    steps: list[list[str]] = field(default_factory=list)
    barrier: str = ""
    readings: dict[str, Reading] = field(default_factory=dict)

    @property
    def asked(self) -> list[str]:
        """All prompts."""
        return [prompt for each in self.rounds for prompt in each]


class _Line:
    """Implements `prediction.Line` in this thread; answers when nothing more is asked."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.answer = answer
        self.works: deque[Callable[[], None]] = deque()
        self.open: list[tuple[Reply, str]] = []

    def ask(self, request: Request, mark: Mark | None = None) -> Reply:
        reply = Reply()
        self.open.append((reply, str(request.payload).removeprefix("User: ").removesuffix("\nAssistant:")))
        return reply

    def soon(self, work: Callable[[], None]) -> None:
        self.works.append(work)

    def spent(self, seconds: float) -> None:
        """Nobody counts."""


def read(
    graph: Graph, given: Any, *, way: Way = WAY, answer: Callable[[str], str] = lambda prompt: f"<{prompt[:1]}>",
    of: Callable[[Front], Front] = lambda front: front,
) -> Found:  # fmt: skip
    """Reads a graph as it is read ahead of a run. `of`: another front to begin from, made of the first."""
    prepared(graph)
    copies = Given()
    asker = LangGraphAsker(LangChainAsker(is_async=way.is_async), way)
    found, expected = Found(readings=readings_of(graph)), dict[int, tuple[str, ...]]()
    reader = GraphReader(graph, asker.run_component, found.readings)
    steps, start = _Supersteps(reader, way, copies, expected), copies.copy(given)

    def program(run: Run) -> State:
        return steps.state(steps._kept(run, of(reader.entered(run, start, replace(way, stops_before=frozenset())))))

    line = _Line(answer)
    prediction = Prediction(asker, line, State(program, copies))
    prediction.begin()
    while line.works or line.open:
        while line.works:
            line.works.popleft()()
        asked, line.open = line.open, []
        if asked:
            found.rounds.append(sorted(prompt for _, prompt in asked))
        for reply, prompt in asked:
            reply.put(Done(says(answer(prompt))))
    found.steps = [list(expected[number]) for number in sorted(expected)]
    found.barrier = prediction.barriers[-1].what if prediction.barriers else ""
    return found
