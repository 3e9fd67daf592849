"""Functions, methods and objects of plain classes: the same answers and requests, the certain ones side by side."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Generic, TypedDict, TypeVar
from unittest import mock

import pytest
from langchain_classic.chains.question_answering import load_qa_chain
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.globals import set_llm_cache
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from llama_index.core import ChatPromptTemplate as ChatPromptTemplates
from llama_index.core import Document, PromptTemplate, VectorStoreIndex
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai_like import OpenAILike

from teola_plugin import compare, explain, optimize, optimized, pure
from teola_plugin.adapters.functions import known, runs
from tests.support.hosted_service import Service, asked_side_by_side, counted, served


@pytest.fixture(params=[True, False], ids=["both frameworks", "LangChain alone"])
def frameworks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(runs, "has_llamaindex", lambda: False)
        monkeypatch.setattr(known, "has_llamaindex", lambda: False)


def chat(service: Service, **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(model="m", base_url=service.url, api_key="x", max_retries=0, **settings)


T = TypeVar("T")


class Rag:
    """Asks for three parts, one after the other, and for all of them."""

    style: ClassVar[str] = "plain"

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.asked = 0

    def _part(self, text: str) -> Any:
        return self.llm.invoke(text).content

    def query(self, text: str, *, parts: int = 3) -> Any:
        found = [self._part(f"{text} {number} {self.style}") for number in range(parts)]
        return self._part(" ".join(found))

    async def aquery(self, text: str) -> Any:
        first, second = await self.llm.ainvoke(f"1 {text}"), await self.llm.ainvoke(f"2 {text}")
        return first.content + second.content

    def count(self, text: str) -> int:
        self.asked += 1
        self._part(text)
        return self.asked

    def words(self, text: str) -> Iterator[str]:
        yield self._part(text)

    @optimize
    def decorated(self, text: str) -> Any:
        """Decorated."""
        return self.query(text)


def function_of(llm: Any) -> Callable[[str], Any]:
    chain = ChatPromptTemplate.from_template("about {x}") | llm | StrOutputParser()

    def answer(text: str) -> Any:
        parts = [chain.invoke({"x": f"{text} {number}"}) for number in range(3)]
        kept = [part for part in parts if "7" not in llm.invoke(f"judge {part}").content]
        return llm.invoke(" ".join(kept)).content

    return answer


def run(function: Callable[[str], Any]) -> Any:
    found = function("hive")
    return asyncio.run(found) if inspect.iscoroutine(found) else found


QUERY, AQUERY = (" 0 plain", " 2 plain"), ("1 hive", "2 hive")
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], tuple[str, str], Callable[[Any], Any]]] = {
    "a function": (function_of, ("about hive 0", "about hive 2"), run),
    "a method": (lambda llm: Rag(llm).query, QUERY, run),
    "a decorated method": (lambda llm: Rag(llm).decorated, QUERY, run),
    "an object": (Rag, QUERY, lambda rag: run(rag.query)),
    "a coroutine function": (lambda llm: Rag(llm).aquery, AQUERY, run),
    "a coroutine function of an object": (Rag, AQUERY, lambda rag: run(rag.aquery)),
}


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_parts_of_an_answer_are_asked_for_side_by_side(service: Service, name: str) -> None:
    make, (first, last), call = FUNCTIONS[name]
    asked_side_by_side(service, make(chat(service)), first, last, call)


def test_what_comes_back_is_of_the_same_kind(service: Service) -> None:
    rag = Rag(chat(service))
    function = function_of(rag.llm)
    fast = optimize(function)
    assert inspect.isfunction(fast)
    assert (fast.__name__, inspect.signature(fast)) == ("answer", inspect.signature(function))
    assert optimize(fast) is fast
    method = optimize(rag.query)
    assert inspect.ismethod(method)
    assert method.__self__ is rag
    assert inspect.iscoroutinefunction(optimize(rag.aquery))
    assert Rag.decorated.__doc__ == "Decorated."
    assert inspect.iscoroutinefunction(optimize(rag).aquery)


def test_an_object_shares_its_attributes_with_the_user_s(service: Service) -> None:
    rag = Rag(chat(service))
    fast = optimize(rag)
    assert isinstance(fast, Rag)
    assert (type(fast).__name__, type(fast).__module__) == ("Rag", __name__)
    assert [fast.count("a"), rag.count("b"), fast.count("c")] == [1, 2, 3]
    fast.llm = None
    assert rag.llm is None
    assert optimize(fast) is fast
    assert type(copy.copy(fast)) is type(copy.deepcopy(fast)) is Rag
    assert type(pickle.loads(pickle.dumps(fast))) is Rag


def test_a_generator_method_runs_as_it_is(service: Service) -> None:
    assert [*optimize(Rag(chat(service))).words("one")] == ["<one>"]


def test_a_method_that_is_replaced_afterwards_is_used(service: Service) -> None:
    fast = optimize(Rag(chat(service)))
    with mock.patch.object(Rag, "query", lambda self, text: f"{self.asked} {text}"):
        assert fast.query("x") == "0 x"
    assert fast.query("x", parts=1) == "<<x 0 plain>>"


def part_of(llm: Any, text: str) -> Any:
    return llm.invoke(text).content


def asking_an_argument(text: str, llm: Any) -> Any:
    return [llm.invoke(f"{text} {number}").content for number in range(3)]


def handing_an_argument_on(text: str, llm: Any) -> Any:
    return [part_of(llm, f"{text} {number}") for number in range(3)]


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("function", [asking_an_argument, handing_an_argument_on])
def test_a_component_may_be_an_argument(service: Service, function: Any) -> None:
    llm = chat(service)
    asked_side_by_side(service, function, "hive 0", "hive 2", lambda made: made("hive", llm))


class Refused(Exception):
    pass


def refusing(llm: Any) -> Callable[[str], Any]:
    def check(text: str) -> None:
        if "secret" in text:
            raise Refused(text)

    def guarded(text: str) -> Any:
        llm.invoke(f"greet {text}")
        check(text)
        return llm.invoke(f"tell {text}").content

    return guarded


@pytest.mark.usefixtures("frameworks")
def test_nothing_behind_a_guard_that_raises_is_asked(service: Service) -> None:
    fast = optimize(refusing(chat(service)))
    fast("hello")
    with counted(service) as found, pytest.raises(Refused, match="a secret"):
        fast("a secret")
    assert found == {"chat greet a secret": 1}


def test_an_error_is_the_function_s_own(service: Service) -> None:
    @optimize
    def failing(llm: Any) -> Any:
        llm.invoke("a")
        return {}["b"]

    with pytest.raises(KeyError, match="b") as raised:
        failing(chat(service))
    assert raised.traceback[-1].name == "failing"


def test_a_response_cache_forbids_early_requests(service: Service) -> None:
    llm = chat(service)
    fast = optimize(Rag(llm).query)
    service.lasts_s = 0.02
    set_llm_cache(InMemoryCache())
    try:
        fast("cached")
    finally:
        set_llm_cache(None)
    assert ran_ahead(fast) == 0
    fast("not cached")
    assert ran_ahead(fast) > 0


def test_a_cache_that_the_function_sets_answers_what_it_knows(service: Service) -> None:
    llm = chat(service)

    def answer(text: str) -> Any:
        first = llm.invoke(text).content
        set_llm_cache(InMemoryCache())
        found = [llm.invoke(f"{text} again").content for _ in range(3)]
        set_llm_cache(None)
        return [first, *found, llm.invoke(f"{text} last").content]

    service.lasts_s = 0.02
    with counted(service) as original:
        expected = answer("hive")
    fast = optimize(answer)
    for _ in range(2):
        with counted(service) as made:
            assert fast("hive") == expected
        assert made == original


def ran_ahead(fast: Any) -> int:
    """Of the last call, how many requests were made ahead of the function."""
    report = optimized(fast).reports[-1]
    return report.hits + report.shared


class Hearing(BaseCallbackHandler):
    pass


CONFIGS: dict[str, tuple[dict[str, Any], bool]] = {
    "a handler": ({"callbacks": [Hearing()]}, True),
    "a limit": ({"max_concurrency": 1}, False),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_config_of_the_chain_around_counts(service: Service, name: str) -> None:
    config, may_run_ahead = CONFIGS[name]
    fast = optimize(Rag(chat(service)).query)
    service.lasts_s = 0.02
    around = RunnableLambda(lambda text: fast(text))
    around.invoke("first", config)
    assert (ran_ahead(fast) > 0) == may_run_ahead


async def test_replies_that_are_streamed_as_events_are_not_asked_whole(service: Service) -> None:
    fast = optimize(Rag(chat(service)).aquery)
    service.lasts_s = 0.02

    async def call(text: str) -> Any:
        return await fast(text)

    around = RunnableLambda(call)
    with counted(service) as found:
        events = [each["event"] async for each in around.astream_events("hive", version="v2")]
    assert events.count("on_chat_model_end") == 2
    assert set(found.values()) == {1}
    assert ran_ahead(fast) == 0


def test_only_the_public_methods_of_an_object_open_calls(service: Service) -> None:
    fast = optimize(Rag(chat(service)))
    fast._part("one")
    assert not optimized(fast).reports
    fast.query("two")
    assert len(optimized(fast).reports) == 1


class Strict(BaseCallbackHandler):
    raise_error = True

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        self.allowed -= 1
        if self.allowed < 0:
            raise Refused


@pytest.mark.parametrize("allowed", [0, 1])
def test_a_handler_that_refuses_forbids_early_requests(allowed: int, service: Service) -> None:
    fast = optimize(Rag(chat(service)).query)
    fast("first")
    around = RunnableLambda(lambda text: fast(text))
    service.lasts_s = 0.2  # time enough to read
    with counted(service) as found, pytest.raises(Refused):
        around.invoke("refused", {"callbacks": [Strict(allowed)]})
    assert found.total() == allowed


def test_a_function_inside_another_is_read_with_it(service: Service) -> None:
    llm = chat(service)

    @optimize
    def part(text: str) -> Any:
        return llm.invoke(text).content

    def whole(text: str) -> Any:
        return [part(f"{text} 1"), part(f"{text} 2")]

    asked_side_by_side(service, whole, "hive 1", "hive 2", run)
    assert len(optimized(part).reports) == 2  # of the original


@pytest.mark.usefixtures("frameworks")
def test_what_stands_behind_what_is_not_read_is_asked_for_side_by_side(service: Service) -> None:
    llm = chat(service)
    unread: Any = eval("lambda act: act()", {"__name__": "client"})

    def answer(text: str) -> Any:
        rows = unread(lambda: [f"{text} {number}" for number in range(3)])
        return [llm.invoke(row).content for row in rows]

    asked_side_by_side(service, answer, "hive 1", "hive 2", run)


class Told(TypedDict, total=False):
    text: str
    first: str
    second: str


@pytest.mark.usefixtures("frameworks")
def test_an_optimized_graph_inside_a_function_runs_ahead_by_itself(service: Service) -> None:
    llm = chat(service)
    graph = StateGraph(Told)
    graph.add_node("one", lambda state: {"first": llm.invoke(f"{state['text']} 1").content})
    graph.add_node("two", lambda state: {"second": llm.invoke(f"{state['text']} 2").content})
    graph.add_edge(START, "one").add_edge("one", "two")
    app: Any = optimize(graph.compile())

    def answer(text: str) -> Any:
        found = app.invoke({"text": text})
        return [llm.invoke(f"{found['first']} {number}").content for number in (3, 4)]

    asked_side_by_side(service, answer, "hive 1", "hive 2", run)
    asked_side_by_side(service, answer, "<hive 1> 3", "<hive 1> 4", run)
    assert optimized(app).reports


@pytest.mark.usefixtures("frameworks")
def test_a_coroutine_that_a_function_returns_is_not_asked_for_before_it_is_awaited(service: Service) -> None:
    llm = chat(service)

    async def later(text: str) -> Any:
        return llm.invoke(f"later {text}").content

    @optimize
    def function(text: str) -> Any:
        llm.invoke(f"1 {text}")
        llm.invoke(f"2 {text}")
        return later(text)

    service.lasts_s = 0.1
    with counted(service) as found:
        function("dropped").close()
    assert found == {"chat 1 dropped": 1, "chat 2 dropped": 1}
    assert optimized(function).reports[-1].hits == 1
    with counted(service) as found:
        assert asyncio.run(function("awaited")) == "<later awaited>"
    assert found == {"chat 1 awaited": 1, "chat 2 awaited": 1, "chat later awaited": 1}


def test_a_coroutine_runs_without_an_event_loop(service: Service) -> None:
    llm = chat(service)

    @optimize
    async def function(text: str) -> Any:
        return llm.invoke(text).content

    with pytest.raises(StopIteration) as ended:
        function("by hand").send(None)
    assert ended.value.value == "<by hand>"


class Shop(Rag):
    """Its class counts, and knows the objects."""

    count_of_class: ClassVar[int] = 0
    known: ClassVar[list[Any]] = []

    @classmethod
    def count_all(cls) -> type:
        cls.count_of_class += 1
        return cls

    @property
    def is_shop(self) -> bool:
        return type(self) is Shop

    @is_shop.setter
    def is_shop(self, value: bool) -> None:
        self.known.append(self)

    def sell(self, text: str) -> Any:
        found = [self._part(f"{text} {number}") for number in range(2)]
        return self.count_all() is Shop, self.is_shop, named(self), self in self.known, found

    def itself(self) -> Any:
        return self

    async def aitself(self) -> Any:
        return self


class Base(ABC, Generic[T]):
    """The user's own base class, as in applications with several of a kind."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    @abstractmethod
    def part(self, text: str, number: int) -> T: ...

    @property
    @abstractmethod
    def name(self) -> str: ...

    def query(self, text: str) -> list[T]:
        return [self.part(f"{text} of {self.name}", number) for number in range(2)]


class Derived(Base[str]):
    @property
    def name(self) -> str:
        return "hive"

    def part(self, text: str, number: int) -> str:
        return str(self.llm.invoke(f"{text} {number}").content)


def test_objects_of_classes_with_abstract_bases(service: Service) -> None:
    made = Derived(chat(service))
    asked_side_by_side(service, made, "bees of hive 0", "bees of hive 1", lambda each: each.query("bees"))
    fast = optimize(made)
    assert isinstance(fast, Base)
    assert type(fast).__name__ == "Derived"
    assert fast.name == "hive"
    assert vars(fast) is vars(made)


class Naming(Rag):
    """A class of the tests."""

    def __repr__(self) -> str:
        return f"{self.__class__.__name__} of {type(self).__module__}: {type(self).__doc__}"

    def _path(self) -> str:
        return type(self).__qualname__


def test_objects_that_show_the_name_of_their_class(service: Service) -> None:
    made = Naming(chat(service))
    asked_side_by_side(service, made, "bees 0", "bees 1", lambda each: each.query("bees"))
    fast = optimize(made)
    assert repr(fast) == repr(made)
    assert fast._path() == made._path()


def named(value: object) -> bool:
    return type(value) is Shop


def copied(value: Any) -> Any:
    made = object.__new__(type(value))
    vars(made).update(vars(value), llm=value.llm.bind(stop=["x"]))
    return made


def test_methods_run_on_the_user_s_own_object(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shop, "count_of_class", 0)
    shop = Shop(chat(service))
    monkeypatch.setattr(Shop, "known", [shop])
    fast = optimize(shop)
    service.lasts_s = 0.1
    assert fast.sell("a") == (True, True, True, True, ["<a 0>", "<a 1>"])
    assert optimized(fast).reports[-1].hits == 1
    assert Shop.count_of_class == 1
    assert fast.count_all() is type(fast).count_all() is Shop
    assert fast.is_shop
    fast.is_shop = True
    assert Shop.known == [shop, shop]
    assert fast.itself() is fast
    assert asyncio.run(fast.aitself()) is fast
    other = copied(fast)
    with counted(service) as found:
        assert other.sell("b") == (True, True, True, False, ["<b 0>", "<b 1>"])
    assert sum(found.values()) == 2


def test_a_method_that_is_mocked_or_deleted_afterwards(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = optimize(Rag(chat(service)))
    with mock.patch.object(Rag, "query", return_value="mocked") as mocked:
        assert fast.query("x") == "mocked"
    mocked.assert_called_once_with("x")
    monkeypatch.delattr(Rag, "query")
    with pytest.raises(AttributeError, match="'Rag' object has no attribute 'query'"):
        fast.query("x")


class Lazy:
    """A proxy that connects once its class is asked for."""

    @property
    def __class__(self) -> Any:
        raise Refused("connected")


class Equal(type):
    def __eq__(cls, other: object) -> bool:
        return True

    __hash__ = type.__hash__


class Same(metaclass=Equal):
    pass


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("make", [Lazy, Same])
def test_objects_that_a_function_mentions_run_nothing(service: Service, make: Callable[[], Any]) -> None:
    llm, mentioned = chat(service), make()

    def answer(text: str) -> Any:
        return mentioned.go() if text == "never" else [llm.invoke(f"{text} {number}").content for number in (1, 2)]

    asked_side_by_side(service, answer, "hive 1", "hive 2", run)


# --- LlamaIndex ------------------------------------------------------------------------------------------------------


def llama(service: Service) -> OpenAILike:
    return OpenAILike(model="m", api_base=service.url, api_key="x", max_retries=0, is_chat_model=True)


def test_a_function_with_a_model_of_llamaindex(service: Service) -> None:
    llm = llama(service)
    template = PromptTemplate("about {x}")

    def answer(text: str) -> Any:
        first = llm.complete(template.format(x=text)).text
        second = llm.predict(template, x=f"{text} too")
        return llm.complete(f"{first} {second}").text

    asked_side_by_side(service, answer, "about hive", "about hive too", run)


def test_a_template_is_told_of_the_model(service: Service) -> None:
    llm = llama(service)
    text_of, chat_of = PromptTemplate("about {x}"), ChatPromptTemplates.from_messages([("user", "judge {x}")])

    def answer(text: str) -> Any:
        first = llm.complete(text_of.format(llm, x=text)).text
        second = llm.chat(chat_of.format_messages(llm=llm, x=text)).message.content
        return [first, second, text_of.format(llm=llm, x=first)]

    asked_side_by_side(service, answer, "about hive", "judge hive", run)


def test_a_function_with_an_engine_of_llamaindex(service: Service) -> None:
    embedding = OpenAIEmbedding(api_base=service.url, api_key="x", max_retries=0)
    index = VectorStoreIndex.from_documents([Document(text="bees dance")], embed_model=embedding)
    engine = index.as_query_engine(llm=llama(service))

    def answer(text: str) -> Any:
        return [str(engine.query(f"{text} {number}")) for number in range(3)]

    asked_side_by_side(service, answer, "embed ['hive 0']", "embed ['hive 2']", run)


def test_a_batch_of_texts_is_embedded_once(service: Service) -> None:
    llm, embedding = llama(service), OpenAIEmbedding(api_base=service.url, api_key="x", max_retries=0)

    @optimize
    def answer(text: str) -> Any:
        first, second = llm.complete(f"{text} 1").text, llm.complete(f"{text} 2").text
        return first, second, embedding.get_text_embedding_batch([text, "b"])

    service.lasts_s = 0.05
    with counted(service) as found:
        answer("a")
    assert found == {"chat a 1": 1, "chat a 2": 1, "embed ['a', 'b'] None": 1}
    assert optimized(answer).reports[-1].hits == 1


def test_an_engine_that_the_run_has_begun_is_not_asked_beside_it(service: Service) -> None:
    embedding = OpenAIEmbedding(api_base=service.url, api_key="x", max_retries=0)
    index = VectorStoreIndex.from_documents([Document(text="bees dance")], embed_model=embedding)
    engine = index.as_query_engine(llm=llama(service))

    def answer(text: str) -> Any:
        return [str(engine.query(f"{text} {number}")) for number in range(4)]

    fast, service.lasts_s = optimize(answer), 0.04
    with counted(service) as original:
        answer("hive")
    for _ in range(4):
        with counted(service) as made:
            fast("hive")
        assert made == original
        assert optimized(fast).reports[-1].hits


class Asking(Workflow):
    llm: Any

    @step
    async def ask(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=[(await self.llm.acomplete(f"{ev.text} {number}")).text for number in range(2)])


def test_an_optimized_workflow_in_a_function_asks_as_often(service: Service) -> None:
    workflow = Asking(timeout=10)
    workflow.llm = llama(service)
    workflow = optimize(workflow)

    async def answer(text: str) -> Any:
        before = [(await workflow.llm.acomplete(f"before {number}")).text for number in range(2)]
        return before, await workflow.run(text=text), await workflow.run(text=f"{text} too")

    fast, service.lasts_s = optimize(answer), 0.04
    with counted(service) as original:
        asyncio.run(answer("hive"))
    for _ in range(4):
        with counted(service) as made:
            asyncio.run(fast("hive"))
        assert made == original
        assert optimized(fast).reports[-1].hits


def test_a_function_with_models_of_both_frameworks(service: Service) -> None:
    one, two = llama(service), chat(service)

    def answer(text: str) -> Any:
        return one.complete(f"{text} 1").text + two.invoke(f"{text} 2").content

    asked_side_by_side(service, answer, "hive 1", "hive 2", run)


@optimize
def asking_later(text: str) -> Any:
    return [set_later.invoke(f"{text} {number}").content for number in range(3)]  # noqa: F821


def test_a_model_may_be_made_after_the_function(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "set_later", chat(service))
    asked_side_by_side(service, asking_later, "hive 0", "hive 2", run)
    assert ran_ahead(asking_later) > 0


# --- what stays as it is ---------------------------------------------------------------------------------------------


class Ending(Rag):
    def __del__(self) -> None:
        pass


class Making(Rag):
    def another(self) -> Any:
        return type(self)(self.llm)


class Counting(Rag):
    def style_of(self) -> str:
        return self.__class__.style


class Slotted:
    __slots__ = ("llm",)


def without_models(text: str) -> str:
    return text.upper()


def generating(llm: Any) -> Iterator[Any]:
    yield llm.invoke("a")


def test_what_is_no_pipeline_comes_back_as_it_is(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    llm = chat(service)
    others: list[Any] = [
        Ending(llm),
        Making(llm),
        Counting(llm),
        Slotted(),
        without_models,
        generating,
        json_of,
        load_qa_chain,
        print,
        "text",
        3,
        Rag,
    ]
    with caplog.at_level(logging.INFO, "teola_plugin"):
        assert all(optimize(each) is each for each in others)
    assert len(caplog.records) == len(others)


json_of = copy.copy
"""A function of the standard library."""


def test_a_function_may_still_be_assumed_pure(service: Service) -> None:
    def plain(text: str) -> str:
        return text + "!"

    chain = RunnableLambda(plain) | chat(service)
    assert optimized(optimize(chain, assume_pure=[plain])).assumed
    assert optimized(optimize(RunnableLambda(pure(plain)) | chat(service)))


@pytest.mark.usefixtures("frameworks")
def test_a_function_is_compared_and_explained(service: Service) -> None:
    function, service.lasts_s = function_of(chat(service)), 0.1
    found = compare(function, ["a"], repeats=1)
    assert found.pipeline.endswith("answer")
    assert not found.differences
    told = explain(optimize(function), analyze="b")
    assert "answer: what is certain in 1 function" in told
    assert "read whole; 7 requests found" in told
    assert "7 requests found, 0 of them" not in told


def test_the_stance_leaves_a_function_alone(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = optimize(Rag(chat(service)).query)
    monkeypatch.setenv("TEOLA_STANCE", "original")
    assert fast("a", parts=1) == "<<a 0 plain>>"
    assert not optimized(fast).reports


class Speaker:
    def __init__(self, role: str) -> None:
        self.role, self.said = role, list[str]()

    def say(self, text: str) -> str:
        said = SPEAKING[0].invoke(f"{self.role}: {text}").content
        self.said.append(said)
        return str(said)


class Debate:
    """Holds objects whose methods ask."""

    def __init__(self) -> None:
        self.speakers = [Speaker("pro"), Speaker("con"), Speaker("last")]

    def run(self, text: str) -> list[str]:
        return [each.say(text) for each in self.speakers]


class Collector:
    def __init__(self) -> None:
        self.seen = set[str]()

    def run(self, text: str) -> int:
        for each in ("pro", "con", "last"):
            self.seen.add(SPEAKING[0].invoke(f"{each}: {text}").content)
        return len(self.seen)


SPEAKING: list[Any] = []


@pytest.mark.parametrize("make", [Debate, Collector])
def test_objects_that_keep_what_is_said_are_pipelines(make: Callable[[], Any]) -> None:
    with served() as service:
        SPEAKING[:] = [ChatOpenAI(model="m", base_url=service.url, api_key="x", max_retries=0)]
        asked_side_by_side(service, make(), "pro", "last", lambda app: app.run("hives"))
