"""A caller that gives up: whatever was under way, nothing more is asked from then on."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langgraph.graph import END, START, StateGraph

from teola_plugin import optimize
from tests.adapters.test_outages import QUESTION, Service, State, assigns, chain_of, chat
from tests.support.langchain_world import ask


class GivesUp(BaseException):
    """What a signal handler of the user's raises."""


def steps(model: Any) -> Runnable[Any, Any]:
    last = ask("2 {k1}") | model | StrOutputParser()
    return assigns(model, 2) | RunnablePassthrough.assign(k2=last)


def body(model: Any) -> Runnable[Any, Any]:
    def asks(x: Any) -> Any:
        said = [model.invoke(f"{n} x").content for n in range(2)]
        return model.invoke(f"2 {said[1]}").content

    async def asks_async(x: Any) -> Any:
        said = [(await model.ainvoke(f"{n} x")).content for n in range(2)]
        return (await model.ainvoke(f"2 {said[1]}")).content

    is_async = asyncio._get_running_loop() is not None
    return RunnablePassthrough() | RunnableLambda(asks_async if is_async else asks) | RunnableLambda(lambda x: {"q": x})


def graph(model: Any) -> Any:
    builder = StateGraph(State)
    for n in range(3):
        asked = chain_of(model, str(n)) if n < 2 else RunnableLambda(lambda x: f"2 {x['said'][-1]}") | model
        builder.add_node(str(n), asked | StrOutputParser() | RunnableLambda(lambda text: {"said": [text]}))
    for one, other in zip((START, *"012"), (*"012", END), strict=True):
        builder.add_edge(one, other)
    return builder.compile()


FORMS: list[Callable[[Any], Any]] = [steps, body, graph]


class Holding(Service):
    """Answers nothing before `gate` is set; `asked` is set by the second request, which runs ahead."""

    def __init__(self) -> None:
        super().__init__(self.hold)
        self.gate, self.asked = threading.Event(), threading.Event()
        self.gate.set()

    def hold(self, said: str, count: int) -> None:
        if count == 2:
            self.asked.set()
        self.gate.wait(20)


def held(form: Callable[[Any], Any]) -> tuple[Holding, Any]:
    service = Holding()
    model = chat(service)
    pipeline = optimize(form(model))
    model.invoke("a first answer")
    service.made.clear()
    service.asked.clear()
    service.gate.clear()
    return service, pipeline


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", ["cancel", "wait_for"])
async def test_nothing_is_asked_after_a_task_was_cancelled(form: Callable[[Any], Any], how: str) -> None:
    service, pipeline = held(form)
    call = asyncio.create_task(pipeline.ainvoke(QUESTION))
    await asyncio.to_thread(service.asked.wait, 20)
    if how == "cancel":
        call.cancel()
    with contextlib.suppress(asyncio.CancelledError, TimeoutError):
        await asyncio.wait_for(call, 0.01)
    service.gate.set()
    await asyncio.sleep(0.2)
    assert sorted(service.made) == ["0 x", "1 x"]


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_asked_after_a_signal_ended_a_call(form: Callable[[Any], Any]) -> None:
    service, pipeline = held(form)

    def give_up(*args: Any) -> None:
        threading.Timer(0.1, service.gate.set).start()  # LangChain waits for the threads of a parallel
        raise GivesUp

    before = signal.signal(signal.SIGALRM, give_up)
    threading.Thread(target=lambda: service.asked.wait(20) and signal.setitimer(signal.ITIMER_REAL, 0.01)).start()
    try:
        with pytest.raises(GivesUp):
            pipeline.invoke(QUESTION)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    service.gate.wait(20)
    time.sleep(0.2)
    assert sorted(service.made) == ["0 x", "1 x"]


def test_nothing_is_asked_after_a_generator_was_closed() -> None:
    service, pipeline = held(graph)
    service.gate.set()
    stream = pipeline.stream(QUESTION)
    next(stream)
    stream.close()
    made = list(service.made)
    time.sleep(0.2)
    assert service.made == made
