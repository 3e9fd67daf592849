"""Methods of other packages are replaced while an optimized object lives, and put back then, all of them."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.runnables import Runnable, RunnablePassthrough

from teola_plugin import optimize, optimized, seams, uninstall
from teola_plugin.adapters.interception import Interception, interception, muted
from teola_plugin.adapters.records import _HeldBack
from tests.adapters.test_outages import Service, chain_of, chat
from tests.runtime.hosts.test_forks import in_child

intercept = interception.intercept

EVERYWHERE = """
import gc, logging, sys
def replaced():
    todo, seen, found = [object], set(), []
    while todo:
        cls = todo.pop()
        if cls in seen:
            continue
        seen.add(cls)
        todo += type.__subclasses__(cls)
        for name, member in list(vars(cls).items()):
            function = getattr(member, "__func__", member)
            if type(function) is type(replaced) and "__teola_original__" in vars(function):
                found.append(f"{cls.__module__}.{cls.__qualname__}.{name}")
    return found
handle, filters = logging.Logger.handle, [*logging.root.filters]
"""
"""Looks through all classes of the process."""

BUILDS = {
    "langchain": """
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_openai import ChatOpenAI
model = ChatOpenAI(api_key="x", model="m", base_url="http://127.0.0.1:9/v1", max_retries=0)
prompt = ChatPromptTemplate.from_template("{q}")
pipeline = RunnablePassthrough.assign(a=prompt | model) | RunnablePassthrough.assign(b=prompt | model)
call = lambda made: made.invoke({"q": "x"})
""",
    "langgraph": """
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
model = ChatOpenAI(api_key="x", model="m", base_url="http://127.0.0.1:9/v1", max_retries=0)
def node(state):
    return {"messages": [model.invoke("a"), model.invoke("b")]}
pipeline = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
call = lambda made: made.invoke({"messages": []})
""",
    "llamaindex": """
from llama_index.core import Document, Settings, SummaryIndex
from llama_index.llms.openai_like import OpenAILike
llm = OpenAILike(model="m", api_base="http://127.0.0.1:9/v1", api_key="x", max_retries=0)
index = SummaryIndex.from_documents([Document(text=t) for t in ("a", "b", "c")])
pipeline = index.as_query_engine(llm=llm, response_mode="accumulate")
call = lambda made: made.query("x")
""",
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("framework", BUILDS)
def test_when_the_last_optimized_object_is_gone_no_class_is_changed(framework: str) -> None:
    program = f"""{EVERYWHERE}{BUILDS[framework]}
from teola_plugin import optimize
made = optimize(pipeline)
assert made is not pipeline
before = replaced()
assert before, "nothing was replaced"
assert logging.Logger.handle is handle
try:
    call(made)
except Exception as e:
    assert "Connection" in type(e).__name__, repr(e)
    del e
else:
    raise AssertionError("nobody was asked")
assert set(before) <= set(replaced())
del made
for _ in range(50):
    gc.collect()
    if not replaced():
        break
    import time; time.sleep(0.1)
assert replaced() == [], replaced()
assert logging.root.filters == filters
again = optimize(pipeline)
assert set(before) <= set(replaced()), set(before) - set(replaced())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def assigns(model: Any) -> Runnable[Any, Any]:
    return RunnablePassthrough.assign(a=chain_of(model, "0")) | RunnablePassthrough.assign(b=chain_of(model, "1"))


def service_and_chain() -> tuple[Service, Runnable[Any, Any]]:
    service = Service()
    model = chat(service, 1)
    model.invoke("a first answer")
    service.made.clear()
    return service, assigns(model)


@pytest.fixture
def _no_call_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls that tests before have left open do not count; behind the test everything is in place again."""
    monkeypatch.setattr(interception, "_calls", 0)
    yield
    with interception.installed():
        pass


@pytest.mark.usefixtures("_no_call_runs")
def test_what_was_optimized_before_runs_as_the_original_until_the_next_optimize() -> None:
    service, chain = service_and_chain()
    made = optimize(chain)
    expected = chain.invoke({"q": "x"})
    assert uninstall() == []
    assert interception.patched == ()
    service.made.clear()
    assert made.invoke({"q": "x"}) == expected
    assert len(service.made) == 2
    assert not optimized(made).reports
    again = optimize(chain)
    for each in (made, again):
        assert each.invoke({"q": "x"}) == expected
        report = optimized(each).reports[-1]
        assert report.hits + report.shared
    assert len(service.made) == 6


@pytest.mark.usefixtures("_no_call_runs")
def test_a_call_that_runs_is_left_as_it_is_until_it_ends() -> None:
    service, chain = service_and_chain()
    made = optimize(chain)
    during: list[tuple[str, ...]] = []

    def plan(said: str, count: int) -> None:
        if not during:
            uninstall()
            during.append(interception.patched)

    service.plan = plan
    made.invoke({"q": "x"})
    assert len(service.made) == 2
    assert during[0]
    assert interception.patched == ()
    report = optimized(made).reports[-1]
    assert report.hits + report.shared == 2


def test_a_method_that_somebody_else_replaced_meanwhile_stays_and_is_named() -> None:
    class Model:
        def ask(self) -> str:
            return "asked"

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def ask(self: Any) -> Any:
            return f"we {original(self)}"

        return ask

    one = Interception()
    with one.installed():
        one.intercept(Model, "ask", wrapper)
        ours = Model.ask
        Model.ask = lambda self: f"they {ours(self)}"  # type: ignore[method-assign]
    assert [each.rpartition(".")[2] for each in one.uninstall()] == ["ask"]
    assert Model().ask() == "they we asked"
    Model.ask = ours  # type: ignore[method-assign]
    with one.installed():
        assert Model().ask() == "we asked"
    assert Model().ask() == "asked"
    assert one.uninstall() == []


def test_replaced_methods_are_put_in_and_out_together_and_in_order() -> None:
    said: list[str] = []

    def saying(word: str) -> Callable[..., Any]:
        def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
            def method(*args: Any) -> Any:
                said.append(word)
                return original(*args)

            return method

        wrapper.__qualname__ = word
        return wrapper

    class Base:
        def work(self) -> str:
            return "done"

        @classmethod
        def make(cls) -> str:
            return cls.__name__

        def inherited(self) -> str:
            return "base"

    class Derived(Base):
        pass

    before, one = dict(vars(Base)), Interception()
    for _ in range(3):
        with one.installed():
            for word in ("first", "second"):
                one.intercept(Derived, "work", saying(word))
                one.intercept(Derived, "make", saying(word))
            one.intercept(Derived, "inherited", saying("own"), is_inherited=True)
            assert (Derived().work(), Derived.make(), Derived().inherited()) == ("done", "Derived", "base")
            assert said == ["second", "first", "second", "first", "own"]
            said.clear()
            assert Base().inherited() == "base"
            assert said == []
        assert dict(vars(Base)) == before
        assert "inherited" not in vars(Derived)
        assert (Derived().work(), said) == ("done", [])
    assert len(one._patches) <= 5


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with interception._installing, interception._lock:
            is_held.set()
            is_over.wait(30)

    def count() -> int:
        with interception.installed():
            return len(interception.patched)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert is_held.wait(10)
        assert in_child(count).isdigit()
    finally:
        is_over.set()
        thread.join()


def test_no_class_is_kept_alive() -> None:
    class Parent:
        def ask(self) -> str:
            return "asked"

    class Model(Parent):
        def ask(self) -> str:
            return super().ask()

    held, one = weakref.ref(Model), Interception()
    one.intercept(Model, "ask", muted("nothing"))
    del Model
    gc.collect()
    assert held() is None


@pytest.mark.usefixtures("_no_call_runs")
def test_loggers_and_handlers_are_as_they_were_afterwards() -> None:
    _, chain = service_and_chain()
    logger, handler = logging.getLogger("tests.interception"), logging.StreamHandler()
    logger.addFilter(own := logging.Filter())
    logging.root.addHandler(handler)
    try:
        made = optimize(chain)
        made.invoke({"q": "x"})
        assert [type(each) for each in logger.filters] == [_HeldBack, logging.Filter]
        assert [type(each) for each in handler.filters] == [_HeldBack]
        uninstall()
        assert (logger.filters, handler.filters) == ([own], [])
    finally:
        logging.root.removeHandler(handler)
        logger.removeFilter(own)


class Unheard:
    is_closed = False
    is_unheard = True


def test_what_runs_ahead_is_not_heard() -> None:
    said: list[str] = []

    class Speaker:
        def say(self, what: str) -> str:
            said.append(what)
            return "said"

    intercept(Speaker, "say", muted("nothing"))
    assert Speaker().say("a") == "said"
    with seams.active(Unheard()):  # type: ignore[arg-type]
        assert Speaker().say("b") == "nothing"
    assert said == ["a"]


def test_a_method_is_instrumented_once_by_each_wrapper() -> None:
    calls: list[str] = []

    def first(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any) -> Any:
            calls.append("first")
            return original(*args)

        return method

    def second(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any) -> Any:
            calls.append("second")
            return original(*args)

        return method

    class Base:
        def work(self) -> str:
            """Works."""
            return "done"

        @classmethod
        def make(cls) -> str:
            return cls.__name__

    class Derived(Base):
        pass

    for wrapper in (first, first, second, first):
        intercept(Derived, "work", wrapper)
        intercept(Derived, "make", wrapper)
        intercept(Derived, "missing", wrapper)
    assert Derived().work() == "done"
    assert calls == ["second", "first"]
    assert Derived.make() == "Derived"
    assert Base.work.__doc__ == "Works."
    assert not hasattr(Derived, "missing")


COLLECTED_WHILE_BOUND = """
import gc
from teola_plugin.adapters.interception import Interception

class Pool:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

class Owner:
    pass

def wrapper(original):
    def method(self, *args):
        return original(self, *args)
    return method

interception, pool = Interception(), Pool()
interception.intercept(Pool, "__exit__", wrapper)
gc.disable()
gc.collect()
for allocations in [*range(1, 12)] * 20:
    owner = Owner()
    owner.me = owner
    interception.keep(owner)
    del owner
    gc.set_threshold(gc.get_count()[0] + allocations)
    gc.enable()
    with pool:
        pass
    gc.disable()
    gc.collect()
print(interception.patched)
"""
"""A collection after each of the first allocations; with CPython 3.11, one of them binds `__exit__` to the pool."""


def test_a_method_that_is_being_bound_is_put_back_by_the_garbage_collector() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECTED_WHILE_BOUND], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "()\n"), done.stderr
