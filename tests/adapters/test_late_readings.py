"""Values outside of functions that the framework's run has changed before the reader looks at them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step

from teola_plugin import optimize
from teola_plugin.adapters.reader.prediction import Prediction
from tests.adapters.llamaindex.test_llamaindex_hosted import chat
from tests.support.hosted_service import Service, counted

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")

NAMES = ["a", "b", "c"]
WAIT_S = 2.0
TOPIC = ""
SEEN: list[str] = []
COUNTS: dict[str, int] = {}


@dataclass
class Settings:
    topic: str = ""
    parts: dict[str, str] = field(default_factory=dict)


SETTINGS = Settings()


class Counter:
    total = 0

    def __init__(self) -> None:
        self.number = 0

    def count(self) -> None:
        self.number += 1


class App:
    """What the functions change. `has_changed`: seen by the tests, which wait for it."""

    kept: str

    def __init__(self) -> None:
        self.topic = ""
        self.marked: str | None = "yes"
        self.history: list[str] = []
        self.recent: deque[str] = deque()
        self.seen: set[str] = set()
        self.parts: dict[str, Any] = {"inner": {"topic": ""}}
        self.counter = Counter()
        self.others = [Counter(), Counter()]
        self._hidden = ""

    @property
    def hidden(self) -> str:
        return self._hidden

    @hidden.setter
    def hidden(self, topic: str) -> None:
        self._hidden = topic


Way = Callable[[App], bool]
"""Whether something was noted before; notes it."""


def by_attribute(app: App) -> bool:
    if app.topic:
        return True
    app.topic = "known"
    return False


def by_setattr(app: App) -> bool:
    if app.topic:
        return True
    setattr(app, "topic", "known")  # noqa: B010
    return False


def by_deletion(app: App) -> bool:
    if app.marked != "yes":
        return True
    app.marked = None
    return False


def by_new_attribute(app: App) -> bool:
    if hasattr(app, "kept"):
        return True
    app.kept = "known"
    return False


def by_property(app: App) -> bool:
    if app.hidden:
        return True
    app.hidden = "known"
    return False


def by_list(app: App) -> bool:
    if app.history:
        return True
    app.history.append("known")
    return False


def by_alias(app: App) -> bool:
    history = app.history
    if history:
        return True
    history += ["known"]
    return False


def by_deque(app: App) -> bool:
    if len(app.recent) > 0:
        return True
    app.recent.append("known")
    return False


def by_set(app: App) -> bool:
    if "known" in app.seen:
        return True
    app.seen.add("known")
    return False


def by_item(app: App) -> bool:
    if app.parts["inner"]["topic"]:
        return True
    app.parts["inner"]["topic"] = "known"
    return False


def by_method_of_another(app: App) -> bool:
    if app.counter.number > 0:
        return True
    app.counter.count()
    return False


def by_object_in_a_list(app: App) -> bool:
    if app.others[1].number > 0:
        return True
    app.others[1].count()
    return False


def by_class_attribute(app: App) -> bool:
    if Counter.total > 0:
        return True
    Counter.total += 1
    return False


def by_global(app: App) -> bool:
    global TOPIC
    if TOPIC:
        return True
    TOPIC = "known"
    return False


def by_global_list(app: App) -> bool:
    if SEEN:
        return True
    SEEN.append("known")
    return False


def by_global_dict(app: App) -> bool:
    if COUNTS.get("asked", 0) > 0:
        return True
    COUNTS["asked"] = COUNTS.get("asked", 0) + 1
    return False


def by_dataclass(app: App) -> bool:
    if SETTINGS.topic:
        return True
    SETTINGS.topic = "known"
    return False


def by_dict_of_a_dataclass(app: App) -> bool:
    if SETTINGS.parts:
        return True
    SETTINGS.parts["topic"] = "known"
    return False


def by_nonlocal(app: App) -> bool:
    """Stands for `closed_over`."""
    raise NotImplementedError


def closed_over() -> Way:
    topic = ""

    def by_variable(app: App) -> bool:
        nonlocal topic
        if topic:
            return True
        topic = "known"
        return False

    return by_variable


WAYS: list[Way] = [
    by_attribute, by_setattr, by_deletion, by_new_attribute, by_property, by_list, by_alias, by_deque, by_set, by_item,
    by_method_of_another, by_object_in_a_list, by_class_attribute, by_global, by_global_list, by_global_dict,
    by_dataclass, by_dict_of_a_dataclass, by_nonlocal,
]  # fmt: skip


def reset() -> None:
    global TOPIC
    TOPIC = ""
    SEEN.clear()
    COUNTS.clear()
    SETTINGS.topic = ""
    SETTINGS.parts.clear()
    Counter.total = 0


class State(TypedDict, total=False):
    said: list[str]


def hosted(service: Service) -> Any:
    return ChatOpenAI(model="m", api_key="none", base_url=service.url, max_retries=0)  # type: ignore[arg-type,call-arg]


Pipeline = tuple[Any, Callable[[Any], Any]]
"""A pipeline, and how it is called."""


def graph_of(node: Any) -> Any:
    return StateGraph(State).add_node("node", node).add_edge(START, "node").add_edge("node", END).compile()


def graph(service: Service, way: Way, app: App) -> Pipeline:
    llm = hosted(service)

    def node(state: State) -> State:
        if way(app):
            llm.invoke("again")
        return {"said": [str(llm.invoke(name).content) for name in NAMES]}

    return graph_of(node), lambda graph: graph.invoke({})


def async_graph(service: Service, way: Way, app: App) -> Pipeline:
    llm = hosted(service)

    async def node(state: State) -> State:
        if way(app):
            await llm.ainvoke("again")
        return {"said": [str((await llm.ainvoke(name)).content) for name in NAMES]}

    return graph_of(node), lambda graph: asyncio.run(graph.ainvoke({}))


def behind_a_request(service: Service, way: Way, app: App) -> Pipeline:
    llm = hosted(service)

    def node(state: State) -> State:
        llm.invoke("first")
        if way(app):
            llm.invoke("again")
        return {"said": [str(llm.invoke(name).content) for name in NAMES]}

    return graph_of(node), lambda graph: graph.invoke({})


def chain(service: Service, way: Way, app: App) -> Pipeline:
    llm = hosted(service)

    def ask(x: str) -> list[str]:
        if way(app):
            llm.invoke("again")
        return [str(llm.invoke(name).content) for name in NAMES]

    return RunnableLambda(ask), lambda chain: chain.invoke("x")


def async_chain(service: Service, way: Way, app: App) -> Pipeline:
    llm = hosted(service)

    async def ask(x: str) -> list[str]:
        if way(app):
            await llm.ainvoke("again")
        return [str((await llm.ainvoke(name)).content) for name in NAMES]

    return RunnableLambda(ask), lambda chain: asyncio.run(chain.ainvoke("x"))


class Engine(CustomQueryEngine):
    llm: Any
    way: Any
    app: Any

    def custom_query(self, query_str: str) -> str:
        if self.way(self.app):
            self.llm.complete("again")
        return " ".join([str(self.llm.complete(name)) for name in NAMES])


def engine(service: Service, way: Way, app: App) -> Pipeline:
    return Engine(llm=chat(service), way=way, app=app), lambda engine: str(engine.query("x"))


class Steps(Workflow):
    def __init__(self, llm: Any, way: Way, app: App) -> None:
        super().__init__(timeout=60)
        self.llm = llm
        self.way = way
        self.app = app

    @step
    async def ask(self, ev: StartEvent) -> StopEvent:
        if self.way(self.app):
            await self.llm.acomplete("again")
        return StopEvent(result=[str(await self.llm.acomplete(name)) for name in NAMES])


def workflow(service: Service, way: Way, app: App) -> Pipeline:
    async def run(workflow: Any) -> Any:
        return await workflow.run(query="x")

    return Steps(chat(service), way, app), lambda workflow: asyncio.run(run(workflow))


MAKERS: list[Callable[[Service, Way, App], Pipeline]] = [
    async_graph, behind_a_request, chain, async_chain, engine, workflow,
]  # fmt: skip
CASES = [*((graph, way) for way in WAYS), *product(MAKERS, (by_attribute, by_global_list, by_item))]


def is_noted(way: Way, app: App) -> bool:
    """Whether the way has noted something: what `way` returns, without noting anything."""
    told = [TOPIC, *SEEN, *COUNTS, SETTINGS.topic, *SETTINGS.parts, Counter.total, app.topic, app.marked is None]
    told += [*app.history, *app.recent, *app.seen, app.parts["inner"]["topic"], app.counter.number, app.hidden]
    told += [app.others[1].number, hasattr(app, "kept"), *[each.cell_contents for each in way.__closure__ or ()]]
    return any(told)


@pytest.mark.parametrize(("make", "way"), CASES, ids=lambda case: case.__name__)
def test_a_value_that_the_run_has_changed_before_it_is_read(
    service: Service, monkeypatch: pytest.MonkeyPatch, make: Callable[[Service, Way, App], Pipeline], way: Way
) -> None:
    """Readings wait until the run has gone the way on which it changes the value."""
    evaluate = Prediction._evaluate
    own: tuple[Way, App] | None = None

    def late(prediction: Prediction) -> None:
        ends_s = time.monotonic() + WAIT_S
        while own is not None and not is_noted(*own) and time.monotonic() < ends_s:
            time.sleep(0.001)
        evaluate(prediction)

    def made() -> tuple[Way, App, Any, Callable[[Any], Any]]:
        reset()
        used, app = closed_over() if way is by_nonlocal else way, App()
        return used, app, *make(service, used, app)

    monkeypatch.setattr(Prediction, "_evaluate", late)
    *_, pipeline, call = made()
    call(optimize(pipeline))  # the service is known to answer
    *_, pipeline, call = made()
    with counted(service) as original:
        expected = call(pipeline)
    used, app, pipeline, call = made()
    fast = optimize(pipeline)
    own = used, app
    with counted(service) as asked:
        assert call(fast) == expected
    assert asked == original
