"""Functions that are read on behind what is not read: requests and answers stay those of the original.

rows = unread(fetch)              a statement that the reader cannot read; the framework's run comes past it
[model.invoke(r) for r in rows]   ... and while it asks here, the rest is read from copies of its variables
"""

from __future__ import annotations

import itertools
import json
import operator
import shelve
import sqlite3
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from operator import itemgetter
from typing import Annotated, Any, ClassVar, TypedDict

import httpx
import pytest
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy, Send

from teola_plugin import optimize, pure
from teola_plugin.adapters.reader import stacks

ROUNDS = 3
TAKES_S = 0.03


class State(TypedDict, total=False):
    x: str
    out: list[Any]


@pure
class Service(httpx.BaseTransport):
    """Answers with the number of times that it was asked the same. `together`: so many are answered at once only."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.together: threading.Barrier | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        sent = json.loads(request.read())
        told = f"{sent['messages'][-1]['content']} {sent.get('temperature')}"
        self.asked.append(told)
        if self.together is None:
            time.sleep(TAKES_S)
        else:
            self.together.wait(10)
        message = {"role": "assistant", "content": f"to {told}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return httpx.Response(200, json={"id": "1", "object": "chat.completion", "model": "m", "choices": [choice]})


def unread(function: Callable[..., Any], *args: Any) -> Any:
    return copy_context().run(function, *args)


def told(model: Any, text: str) -> Any:
    return model.invoke(text).content


def tune(model: Any) -> None:
    model.temperature = 0.5


def tune_all(models: list[Any]) -> None:
    for each in models:
        tune(each)


Make = Callable[..., ChatOpenAI]


def body_of_a_class(make: Make) -> Callable[[State], State]:
    model = make()

    def node(state: State) -> State:
        unread(len, state["x"])

        class Made:
            before = 1
            asked = told(model, "body")
            after = before + 1

        return {"out": [Made.before, Made.asked, Made.after, told(model, "end")]}

    return node


def called_twice_in_a_statement(make: Make) -> Callable[[State], State]:
    model = make()

    def part(n: int) -> tuple[Any, bool]:
        n = unread(abs, n)
        return (told(model, "part"), True) if n else ("", False)

    def node(state: State) -> State:
        return {"out": [part(0)[1] and told(model, "other"), part(1)[0]]}

    return node


def default_that_is_changed(make: Make) -> Callable[[State], State]:
    model = make()

    def node(state: State) -> State:
        rows: list[str] = []

        def ask(n: int, rows: list[str] = rows) -> Any:
            return told(model, f"{n} {rows}")

        unread(rows.append, "row")
        return {"out": [told(model, "first"), ask(1), ask(2)]}

    return node


def bound_argument_that_is_changed(make: Make) -> Callable[[State], State]:
    model = make()

    def node(state: State) -> State:
        rows: list[str] = []
        ask = partial(lambda rows, n: told(model, f"{n} {rows}"), rows)
        unread(rows.append, "row")
        first = told(model, f"first {rows}")
        return {"out": [first, ask(1), ask(2)]}

    return node


def model_of_a_chain_that_is_changed(make: Make) -> Callable[[State], State]:
    model = make()

    def node(state: State) -> State:
        own = ChatOpenAI(model="m", http_client=model.http_client, api_key=model.openai_api_key)
        chain = ChatPromptTemplate.from_template("say {x}") | own
        unread(tune, own)
        first = told(model, "first")
        return {"out": [first, chain.invoke({"x": "1"}).content, chain.invoke({"x": "2"}).content]}

    return node


def model_in_a_list_that_is_changed(make: Make) -> Callable[[State], State]:
    model = make()

    def node(state: State) -> State:
        own = ChatOpenAI(model="m", http_client=model.http_client, api_key=model.openai_api_key)
        models = [own]
        unread(tune_all, models)
        first = told(model, "first")
        return {"out": [first, own.invoke("1").content, own.invoke("2").content]}

    return node


def asked_in_a_thread_before(make: Make) -> Callable[[State], State]:
    model = make()
    both = RunnableParallel(asked=model, given=RunnableLambda(lambda x: x))

    def node(state: State) -> State:
        unread(len, state["x"])
        return {"out": [both.invoke("same")["asked"].content, model.invoke("same").content]}

    return node


def asked_in_threads_by_a_batch(make: Make) -> Callable[[State], State]:
    model = make()

    def node(state: State) -> State:
        unread(len, state["x"])
        return {"out": [model.batch(["same", "same"])[0].content, model.invoke("same").content]}

    return node


def asked_by_what_is_not_read(make: Make) -> Callable[[State], State]:
    model = make()

    def node(state: State) -> State:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda text: told(model, text), ["same", "same"]))
        return {"out": [told(model, "same"), told(model, "same"), told(model, "last")]}

    return node


class Closing:
    """Says when it ends."""

    ends: ClassVar[list[str]] = []

    def __del__(self) -> None:
        self.ends.append("end")


def ends_of_objects(make: Make) -> Callable[[State], State]:
    model = make()

    def node(state: State) -> State:
        Closing.ends.clear()
        one = unread(Closing)
        first = told(model, "first")
        del one
        seen = unread(list, Closing.ends)
        return {"out": [first, seen, told(model, "last")]}

    return node


def closing() -> Generator[None]:
    """Return an object whose end shows, though nothing that the program mentions says so."""
    found = _closing()
    next(found)
    return found


def _closing() -> Generator[None]:
    try:
        yield
    finally:
        Closing.ends.append("end")


class Holder:
    """Holds an object whose end shows, in an attribute, or in a list."""

    def __init__(self) -> None:
        self.parts = [closing()]


class Held:
    """Holds what it is given."""

    def __init__(self, part: Any) -> None:
        self.part = part

    def hold(self) -> None:
        """Do nothing."""


class Slotted:
    """Holds an object whose end shows beside the attributes."""

    __slots__ = ("__dict__", "part")

    def __init__(self) -> None:
        self.part = closing()


class Several(list[Any]):
    """Holds objects as a list does."""


def closure_over(part: Any) -> Callable[[], Any]:
    return lambda: part


def default_of(part: Any) -> Callable[[], Any]:
    return lambda held=part: held


def ends_of(make_object: Callable[[], Any], name: str) -> Callable[[Make], Callable[[State], State]]:
    def program(make: Make) -> Callable[[State], State]:
        model = make()

        def node(state: State) -> State:
            Closing.ends.clear()
            one = unread(make_object)
            first = told(model, "first")
            del one
            second = told(model, f"behind {first}")  # the copies wait for its reply
            seen = unread(list, Closing.ends)
            return {"out": [first, seen, second, told(model, "last")]}

        return node

    program.__name__ = name
    return program


WATCHING = [weakref.finalize]


def ends_of_a_watched_object(make: Make) -> Callable[[State], State]:
    model = make()

    def node(state: State) -> State:
        Closing.ends.clear()
        one = unread(Held, "part")
        unread(WATCHING[0], one, Closing.ends.append, "end")
        first = told(model, "first")
        del one
        second = told(model, f"behind {first}")
        return {"out": [first, unread(list, Closing.ends), second, told(model, "last")]}

    return node


def ends_of_a_shelf(make: Make) -> Callable[[State], State]:
    """The end of an object of a library shows in another object."""
    model = make()
    kept: dict[Any, Any] = {}

    def node(state: State) -> State:
        kept.clear()
        one = unread(shelve.Shelf, kept, None, True)
        unread(operator.setitem, one, "a", [])
        unread(unread(operator.itemgetter("a"), one).append, 1)
        first = told(model, "first")
        del one
        second = told(model, f"behind {first}")
        return {"out": [first, second, unread(dict, kept), told(model, "last")]}

    return node


class Plain:
    """An object of the program's."""

    part: Any = None


def weak_references(make: Make) -> Callable[[State], State]:
    model = make()

    def node(state: State) -> State:
        one = unread(Plain)
        seen = unread(weakref.ref, one)
        first = told(model, "first")
        del one
        return {"out": [first, unread(seen) is None, told(model, "last")]}

    return node


def weak_references_made_later(make: Make) -> Callable[[State], State]:
    model = make()

    def node(state: State) -> State:
        one = unread(Plain)
        first, second = told(model, "first"), told(model, "second")
        seen = weakref.ref(one)
        del one
        return {"out": [first, second, seen() is None, told(model, "last")]}

    return node


def parts_that_are_added_later(make: Make) -> Callable[[State], State]:
    model = make()

    def node(state: State) -> State:
        Closing.ends.clear()
        one = unread(Plain)
        first, second = told(model, "first"), told(model, "second")
        one.part = Closing()
        del one
        return {"out": [first, second, told(model, f"ended: {Closing.ends}")]}

    return node


PROGRAMS = [
    body_of_a_class, called_twice_in_a_statement, default_that_is_changed, bound_argument_that_is_changed,
    model_of_a_chain_that_is_changed, model_in_a_list_that_is_changed, asked_in_a_thread_before,
    asked_in_threads_by_a_batch, asked_by_what_is_not_read, ends_of_objects, ends_of(Holder, "ends_in_a_list"),
    ends_of(Slotted, "ends_in_a_slot"), ends_of(lambda: Several([closing()]), "ends_in_a_subclass"),
    ends_of(lambda: [closing().send], "ends_in_a_method"), ends_of(lambda: closing().send, "ends_of_a_method"),
    ends_of(lambda: Held(Held(closing()).hold), "ends_in_a_callback"), ends_of(closing, "ends_of_a_generator"),
    ends_of(lambda: Held(closing().send), "ends_in_a_callback_of_C"),
    ends_of(lambda: Held(closure_over(closing())), "ends_in_a_closure"),
    ends_of(lambda: closure_over(closing()), "ends_of_a_closure"),
    ends_of(lambda: default_of(closing()), "ends_of_a_default"),
    ends_of(lambda: partial(str, closing()), "ends_of_a_partial"),
    ends_of(lambda: iter([closing()]), "ends_of_an_iterator"),
    ends_of(lambda: (each for each in [closing()]), "ends_of_an_expression"),
    ends_of(lambda: map(str, [closing()]), "ends_of_a_map"),
    ends_of(lambda: Held(default_of(closing())), "ends_in_a_default"), weak_references,
    weak_references_made_later, parts_that_are_added_later, ends_of_a_watched_object, ends_of_a_shelf,
]  # fmt: skip


def made(service: Service, program: Callable[[Make], Any], host: str) -> Any:
    def make(**settings: Any) -> ChatOpenAI:
        client = httpx.Client(transport=service, base_url=f"http://{host}/v1")
        return ChatOpenAI(
            model="m", base_url=f"http://{host}/v1", api_key="x", max_retries=0, http_client=client, **settings
        )

    graph = StateGraph(State)
    graph.add_node("node", program(make))
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    return graph.compile()


def rounds(service: Service, app: Any) -> list[Any]:
    found = []
    for n in range(ROUNDS):
        service.asked.clear()
        value = app.invoke({"x": str(n)})
        found.append((value, Counter(service.asked)))
    return found


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_requests_are_those_of_the_original(program: Any) -> None:
    stacks._begun.clear()  # programs share functions, and the first call of each is read on as none after it is
    host = f"{program.__name__.replace('_', '-')}.invalid"
    service = Service()
    original = rounds(service, made(service, program, host))
    service = Service()
    assert rounds(service, optimize(made(service, program, host))) == original


class Judge:
    """A component of the program's, with a model."""

    def __init__(self, model: Any) -> None:
        self.model, self.seen = model, dict[str, list[str]]()

    def judge(self, name: str) -> str:
        return told(self.model, name)


def test_methods_of_an_object_made_where_nothing_is_read_are_read() -> None:
    def judges(make: Make) -> Callable[[State], State]:
        model = make()

        def node(state: State) -> State:
            judge = unread(Judge, model)
            return {"out": [judge.judge("a"), judge.judge("b"), judge.judge("c")]}

        return node

    service = Service()
    app = optimize(made(service, judges, "judges.invalid"))
    app.invoke({"x": ""})
    app.invoke({"x": ""})
    service.together = threading.Barrier(3)
    assert app.invoke({"x": ""})["out"] == ["to a None", "to b None", "to c None"]


def test_what_stands_behind_it_is_asked_at_once() -> None:
    """A connection is on the stack, too."""

    def rows(make: Make) -> Callable[[State], State]:
        model = make()

        def node(state: State) -> State:
            cursor = sqlite3.connect(":memory:").cursor()
            names = [name for (name,) in cursor.execute("values ('a'), ('b'), ('c')")]
            return {"out": [told(model, name) for name in names]}

        return node

    service = Service()
    app = optimize(made(service, rows, "rows.invalid"))
    app.invoke({"x": ""})
    app.invoke({"x": ""})
    service.together = threading.Barrier(3)
    assert app.invoke({"x": ""})["out"] == ["to a None", "to b None", "to c None"]


# --- one function that runs several times in a call ------------------------------------------------------------------


class Rows:
    """Other rows each time. Those for "late" come once the model was asked twice, and has answered."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._numbers = itertools.count(1)
        self._made = itertools.count(1)

    def __call__(self, name: str) -> list[str]:
        if name == "many" and next(self._made) % 2 == 0:  # the second run asks for nothing for a while
            time.sleep(8 * TAKES_S)
        if name == "late":
            while len(self._service.asked) < 2:
                time.sleep(0.001)
            time.sleep(4 * TAKES_S)
        return [f"{name} {row} of {next(self._numbers) if name == 'many' else 'x'}" for row in "ab"]


class Gathered(TypedDict, total=False):
    x: str
    out: Annotated[list[Any], operator.add]
    end: str


class World:
    """A model, rows, and `ask`: a function that asks for each row; of other names, functions with the same code."""

    def __init__(self, service: Service, host: str) -> None:
        client = httpx.Client(transport=service, base_url=f"http://{host}/v1")
        self.model = ChatOpenAI(model="m", base_url=f"http://{host}/v1", api_key="x", max_retries=0, http_client=client)
        self.rows = Rows(service)

    def asking(self, name: str) -> Callable[[Any], Any]:
        def ask(given: Any) -> Any:
            rows = unread(self.rows, name)
            return {"x": given["x"], "told": [self.model.invoke(row).content for row in rows]}

        return ask

    def asking_once(self, name: str) -> Callable[[Any], Any]:
        def ask(given: Any) -> Any:
            rows = unread(self.rows, name)
            return {"x": given["x"], "told": self.model.invoke(rows[0]).content}

        return ask

    def then(self, name: str) -> Any:
        return ChatPromptTemplate.from_template(name + " {told}") | self.model


def in_branches(world: World) -> Runnable[Any, Any]:
    return RunnableParallel({name: RunnableLambda(world.asking(name)) | world.then(name) for name in ("late", "two")})


def inside_of_another(world: World) -> Runnable[Any, Any]:
    other = RunnableLambda(world.asking("two"))

    def inside(given: Any) -> Any:
        return other.invoke(given)

    first = RunnableLambda(world.asking("late")) | world.then("late")
    return RunnableParallel(late=first, two=RunnableLambda(inside) | world.then("two"))


def in_a_map(world: World) -> Runnable[Any, Any]:
    def twice(given: Any) -> list[Any]:
        return [given, given]

    return RunnableLambda(twice) | (RunnableLambda(world.asking("many")) | world.then("then")).map()


def in_a_superstep(world: World) -> Any:
    def node(name: str) -> Callable[[Gathered], Gathered]:
        def run(state: Gathered) -> Gathered:
            rows = unread(world.rows, name)
            return {"out": [world.model.invoke(row).content for row in rows]}

        return run

    graph = StateGraph(Gathered)
    for name in ("late", "two"):
        graph.add_node(name, node(name))
        graph.add_edge(START, name)
    graph.add_node("last", lambda state: {"end": world.model.invoke(f"last {state['out']}").content})
    graph.add_edge(["late", "two"], "last")
    return graph.compile()


def in_tasks_that_are_sent(world: World) -> Any:
    def run(given: Any) -> Gathered:
        rows = unread(world.rows, given["name"])
        asked = [world.model.invoke(row).content for row in rows]
        return {"out": asked}

    graph = StateGraph(Gathered)
    graph.add_node("run", run)
    graph.add_conditional_edges(START, lambda state: [Send("run", {"name": "many"}) for _ in "ab"], ["run"])
    graph.add_node("last", lambda state: {"end": world.model.invoke("last").content})
    graph.add_edge("run", "last")
    return graph.compile()


def tried_again(world: World) -> Any:
    """The rows of the first try are not those of the second."""
    tries = itertools.count()

    def run(state: Gathered) -> Gathered:
        rows = unread(world.rows, "many")
        first = world.model.invoke(rows[0]).content
        if unread(next, tries) % 2 == 0:
            raise ValueError
        return {"out": [first, world.model.invoke(rows[1]).content]}

    graph = StateGraph(Gathered)
    graph.add_node("run", run, retry_policy=RetryPolicy(initial_interval=0.01, retry_on=ValueError))
    graph.add_edge(START, "run")
    return graph.compile()


SEVERAL = [in_branches, inside_of_another, in_a_map, in_a_superstep, in_tasks_that_are_sent, tried_again]


def several_rounds(
    kind: Callable[[World], Any], host: str, wrap: Callable[[Any], Any], call: Callable[[Any], Any]
) -> list[Counter[str]]:
    service = Service()
    app = wrap(kind(World(service, host)))
    found = []
    for _ in range(ROUNDS):
        service.asked.clear()
        call(app)
        found.append(Counter(service.asked))
    return found


@pytest.mark.parametrize("kind", SEVERAL)
def test_one_run_of_a_function_is_not_taken_for_another(kind: Callable[[World], Any]) -> None:
    def call(app: Any) -> Any:
        return app.invoke({"x": ""})

    host = f"{kind.__name__.replace('_', '-')}.invalid"
    original = several_rounds(kind, host, lambda app: app, call)
    assert several_rounds(kind, host, optimize, call) == original


@pytest.mark.parametrize("asking", [World.asking, World.asking_once])
def test_one_input_of_a_batch_is_not_taken_for_another(asking: Any) -> None:
    """The function gets the same of both inputs, the step behind it does not."""

    def chain(world: World) -> Runnable[Any, Any]:
        told = RunnableLambda(itemgetter("given")) | RunnableLambda(asking(world, "many")) | itemgetter("told")
        return RunnablePassthrough.assign(told=told) | ChatPromptTemplate.from_template("{y} {told}") | world.model

    def call(app: Any) -> Any:
        return app.batch([{"given": {"x": ""}, "y": "one"}, {"given": {"x": ""}, "y": "two"}])

    for asked in several_rounds(chain, f"{asking.__name__.replace('_', '-')}.invalid", optimize, call):
        assert max(asked.values()) == 1
        assert sum(text.startswith(("one", "two")) for text in asked) == 2
