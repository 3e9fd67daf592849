"""A call leaves no cycles of references: all that a call made is freed at its end."""

from __future__ import annotations

import gc
import operator
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.llms.openai_like import OpenAILike

from teola_plugin import optimize, optimized
from tests.support.hosted_service import Service, served


@pytest.fixture
def service() -> Iterator[Service]:
    with served() as running:
        running.lasts_s = 0.01
        yield running


def chain(url: str) -> Any:
    """A function that asks three times, of which two times in a loop, and is not read to its end."""
    model = ChatOpenAI(model="m", base_url=url, api_key="none")

    def answer(question: str) -> str:
        found = [model.invoke(f"{part} of {question}").content for part in ("start", "end")]
        grade = model.invoke(f"grade {question}").content
        open("/dev/null").close()  # a barrier
        return f"{found}{grade}{model.invoke(question).content}"

    return RunnableLambda(answer)


class State(TypedDict, total=False):
    question: str
    notes: Annotated[list[str], operator.add]
    answer: str


def graph(url: str) -> Any:
    model = ChatOpenAI(model="m", base_url=url, api_key="none")

    def first(state: State) -> State:
        return {"notes": [str(model.invoke(f"first {state['question']}").content)]}

    def second(state: State) -> State:
        open("/dev/null").close()  # a barrier
        return {"notes": [str(model.invoke(f"second {state['question']}").content)]}

    def last(state: State) -> State:
        plans = [model.invoke([HumanMessage(f"{note} and {state['question']}")]) for note in ("a", "b")]
        return {"answer": f"{state['notes']}{[plan.content for plan in plans]}"}

    built = StateGraph(State)
    for name, node in (("first", first), ("second", second), ("last", last)):
        built.add_node(name, node)
    for begins, ends in ((START, "first"), (START, "second"), ("first", "last"), ("second", "last")):
        built.add_edge(begins, ends)
    built.add_conditional_edges("last", lambda state: "first" if not state["answer"] else "__end__")
    return built.compile()


class Engine(CustomQueryEngine):
    llm: Any

    def custom_query(self, query_str: str) -> str:
        found = [str(self.llm.complete(f"{part} of {query_str}")) for part in ("start", "end")]
        return f"{found}{self.llm.complete(query_str)}"


def engine(url: str) -> Any:
    return Engine(llm=OpenAILike(model="m", api_base=url, api_key="none", is_chat_model=True))


def garbage_of(call: Callable[[], object]) -> list[Any]:
    """What a call leaves to the garbage collector, once its threads are done; not what other tests have made."""
    gc.collect()
    gc.disable()
    before = {id(value) for value in gc.get_objects()}
    try:
        call()
        time.sleep(0.3)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return [value for value in gc.garbage if id(value) not in before]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def is_in_a_cycle_of_ours(value: Any, garbage: dict[int, Any]) -> bool:
    """Whether an object of ours refers to itself over other garbage; the frameworks leave cycles of their own."""
    if type(value).__module__.split(".")[0] != "teola_plugin":
        return False
    todo, seen = [value], set[int]()
    while todo:
        for held in gc.get_referents(todo.pop()):
            if held is value:
                return True
            if id(held) in garbage and id(held) not in seen:
                seen.add(id(held))
                todo.append(held)
    return False


CALLS: list[tuple[Callable[[str], Any], Callable[[Any], object]]] = [
    (chain, lambda pipeline: pipeline.invoke("why")),
    (graph, lambda pipeline: pipeline.invoke({"question": "why"})),
    (engine, lambda pipeline: pipeline.query("why")),
]


@pytest.mark.parametrize(("make", "call"), CALLS, ids=["chain", "graph", "engine"])
def test_a_call_leaves_nothing_of_ours_to_the_garbage_collector(
    service: Service, make: Callable[[str], Any], call: Callable[[Any], object]
) -> None:
    fast = optimize(make(service.url))
    for _ in range(3):  # the first calls read sources, and make what stays
        call(fast)
    garbage = {id(value): value for value in garbage_of(lambda: call(fast))}
    assert optimized(fast).reports[-1].hits
    assert not [value for value in garbage.values() if is_in_a_cycle_of_ours(value, garbage)]


def test_the_input_of_a_call_is_freed_at_its_end(service: Service) -> None:
    class Question(str):
        """A text that can be watched."""

    fast = optimize(chain(service.url))
    for _ in range(3):
        fast.invoke("why")
    gc.collect()
    gc.disable()
    try:
        question = Question("why")
        watched = weakref.ref(question)
        fast.invoke(question)
        del question
        time.sleep(0.3)
        assert watched() is None
    finally:
        gc.enable()
