"""What of LangChain may do more than ask for one reply, or runs code of the user's, is not read; and what may raise."""

from __future__ import annotations

import sys
import types
import urllib.request
from operator import itemgetter
from typing import Any

import pytest
from langchain_classic.output_parsers import OutputFixingParser
from langchain_classic.retrievers.ensemble import EnsembleRetriever
from langchain_community.retrievers import BM25Retriever
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler, StreamingStdOutCallbackHandler
from langchain_core.documents import Document
from langchain_core.example_selectors import BaseExampleSelector
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, FewShotPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    ConfigurableField,
    RouterRunnable,
    RunnableBranch,
    RunnableConfig,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    chain,
)
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI
from openai._legacy_response import to_raw_response_wrapper
from pydantic import BaseModel, Field, field_validator, v1

from teola_plugin.adapters.langchain.models import as_set_now
from teola_plugin.adapters.langchain.reading import LangChainAsker
from teola_plugin.adapters.langchain.reading_builders import _without_warning
from teola_plugin.adapters.langchain.reading_parts import require_clean_schema
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Barrier
from tests.adapters.reader.langchain_reading import check, hosted, read, stopped
from tests.support.langchain_world import Engines, ask

E = Engines()
LLM = hosted()
RAN: list[str] = []


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    RAN.clear()
    yield
    assert not RAN


class Grade(BaseModel):
    score: str


class Checked(BaseModel):
    score: str

    @field_validator("score")
    @classmethod
    def check(cls, value: str) -> str:
        RAN.append("check")
        return value


class Refusing(BaseCallbackHandler):
    raise_error = True


REFUSING = Refusing()


class Selector(BaseExampleSelector):
    def select_examples(self, variables: Any) -> Any:
        RAN.append("select")
        return []

    def add_example(self, example: Any) -> None:
        RAN.append("add")


class Mine(ChatPromptTemplate):
    def format_messages(self, **kwargs: Any) -> Any:
        RAN.append("format")
        return []


class Text(str):
    def __format__(self, spec: str) -> str:
        RAN.append("format")
        return "x"


class Own(BaseOutputParser[str]):
    def parse(self, text: str) -> str:
        RAN.append("parse")
        return text


class MyModel(ChatOpenAI):
    def __init__(self, **fields: Any) -> None:
        RAN.append("init")
        super().__init__(**fields)


class Shown(BaseModel):
    """A score."""

    score: str = Field("", json_schema_extra=lambda schema: RAN.append("schema"))


class Invoking(BaseRetriever):
    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        RAN.append("invoke")
        return []

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return []


def shouted(text: str) -> str:
    RAN.append("shouted")
    return text.upper()


@tool
def echo(text: str) -> str:
    """Returns the text."""
    return text


@tool
def of_grades(grade: Checked) -> str:
    """Takes a grade."""
    return grade.score


def built(make: Any) -> Any:
    """A node that builds a component and asks it."""

    def node(state: dict[str, Any]) -> Any:
        return make().invoke(state["x"])

    return node


@chain
def named(question: str, config: RunnableConfig) -> Any:
    return LLM.invoke(f"{config['configurable']['name']}: {question}").content


BARRIERS: dict[str, tuple[Any, Any]] = {
    "rate limiter": (hosted(rate_limiter=InMemoryRateLimiter()), "a"),
    "cached": (hosted(cache=InMemoryCache()), "a"),
    "refuse": (hosted(callbacks=[Refusing()]), "a"),
    "it asks": (FakeListChatModel(responses=["a"]), "a"),
    "streamed": (LLM.bind(stream=True), "a"),
    "are streamed": (hosted(streaming=True, callbacks=[StreamingStdOutCallbackHandler()]), "a"),
    "reads an item": (
        lambda x: named.with_config(configurable={"name": "b"}).invoke(x, {"configurable": {"name": "a"}}), "a",
    ),
    "limits": (lambda x: LLM.invoke(x, config={"max_concurrency": 1}).content, "a"),
    "have replies streamed": (lambda x: LLM.invoke(x, config={"callbacks": [REFUSING]}).content, "a"),
    "may be a tool call": (lambda x: echo.run({"type": "tool_call", "text": x}), "a"),
    "with options": (lambda x: echo.run(x, verbose=True), "a"),
    "template language": (
        ChatPromptTemplate.from_messages([("human", "{{ x }}")], template_format="jinja2") | LLM,
        {"x": "a"},
    ),
    "example selector": (
        FewShotPromptTemplate(
            example_selector=Selector(), example_prompt=PromptTemplate.from_template("{y}"), suffix="{x}",
            input_variables=["x"],
        ) | LLM,
        {"x": "a"},
    ),
    "of the class Mine": (Mine.from_messages([("human", "{x}")]) | LLM, {"x": "a"}),
    "holds code of the user's": (
        ChatPromptTemplate.from_messages([HumanMessage("s", additional_kwargs={"k": Text("a")}), ("human", "{x}")])
        | LLM,
        {"x": "a"},
    ),
    "of the class Own": (LLM | Own(), "a"),
    "OutputFixingParser": (LLM | OutputFixingParser.from_llm(llm=E.chat, parser=JsonOutputParser()), "a"),
    "of the class Invoking": (Invoking() | (lambda docs: len(docs)), "a"),
    "Shown runs code": (built(lambda: LLM.bind_tools([Shown])), {"x": "a"}),
    "Checked runs code": (built(lambda: LLM.with_structured_output(Checked)), {"x": "a"}),
    "the tool": (built(lambda: LLM.bind_tools([of_grades])), {"x": "a"}),
    "is given no_such": (built(lambda: ChatOpenAI(model="m", api_key="k", no_such=1)), {"x": "a"}),
    "MyModel": (built(lambda: MyModel(model="m", api_key="k")), {"x": "a"}),
    "configurable": (LLM.configurable_fields(temperature=ConfigurableField(id="t")), "a"),
    "listeners": (LLM.with_listeners(on_start=lambda run: RAN.append("start")), "a"),
    "tries again": ((ask("{y}") | LLM).with_retry(), {"x": "a"}),
    "falls back": ((ask("{y}") | LLM).with_fallbacks([LLM]), {"x": "a"}),
    "several replies at once": (E.completion.map(), ["a", "b"]),
    "whose arguments": (lambda x: of_grades.invoke({"grade": {"score": x}}), "a"),
}  # fmt: skip


@pytest.mark.parametrize("why", BARRIERS)
def test_it_is_left_to_the_frameworks_run(why: str) -> None:
    assert why in stopped(*BARRIERS[why])


def test_an_ensemble_is_asked_only_if_all_of_it_is_known() -> None:
    known = E.store("barriers").as_retriever()
    assert not stopped(EnsembleRetriever(retrievers=[known, known], weights=[0.5, 0.5]) | len, "a")
    assert stopped(EnsembleRetriever(retrievers=[known, Invoking()], weights=[0.5, 0.5]) | len, "a")


RANKER = """
class BM25Okapi:
    def __init__(self, corpus):
        self.corpus = corpus

    def get_scores(self, query):
        return [sum(word in query for word in words) for words in self.corpus]

    def get_top_n(self, query, documents, n=5):
        scores = self.get_scores(query)
        return [documents[at] for at in sorted(range(len(documents)), key=lambda at: -scores[at])][:n]
"""


@pytest.fixture
def by_words(monkeypatch: pytest.MonkeyPatch) -> BM25Retriever:
    """A retriever that ranks by the code of a package."""
    package = types.ModuleType("rank_bm25")
    exec(RANKER, vars(package))
    monkeypatch.setitem(sys.modules, "rank_bm25", package)
    return BM25Retriever.from_documents([Document("bees dance"), Document("a hive")], k=1)


def test_documents_are_ranked_by_words_and_by_vectors(by_words: BM25Retriever) -> None:
    retriever = EnsembleRetriever(retrievers=[by_words, E.store("barriers5").as_retriever()], weights=[0.5, 0.5])
    assert not stopped(retriever | len, "bees")
    assert stopped(BM25Retriever.from_documents([Document("a")], preprocess_func=_split) | len, "bees")
    by_words.vectorizer.get_scores = lambda query: RAN.append("scores") or [0, 0]
    assert stopped(retriever | len, "bees")


def test_a_ranking_of_the_users_is_not_made_early(by_words: BM25Retriever) -> None:
    class Okapi(type(by_words.vectorizer)):  # type: ignore[misc]
        def get_scores(self, query: Any) -> Any:
            RAN.append("scores")

    by_words.vectorizer = Okapi([[], []])
    assert stopped(EnsembleRetriever(retrievers=[by_words], weights=[1.0]) | len, "bees")


def _split(text: str) -> list[str]:
    if text == "a":
        return [text]
    RAN.append("split")
    return []


def test_a_retriever_that_was_given_a_method_is_left() -> None:
    retriever = E.store("barriers3").as_retriever()
    both = EnsembleRetriever(retrievers=[retriever, retriever], weights=[0.5, 0.5])
    assert not stopped(both | len, "a")
    object.__setattr__(both, "weighted_reciprocal_rank", lambda lists: RAN.append("ranked") or [])
    assert stopped(both | len, "a")
    object.__setattr__(retriever, "_get_relevant_documents", lambda query, **options: RAN.append("found") or [])
    assert stopped(retriever | len, "a")


def test_a_filter_of_the_users_is_not_called_early() -> None:
    store = InMemoryVectorStore(E.store("barriers4").embeddings)
    assert not stopped(store.as_retriever(search_kwargs={"k": 1}) | len, "a")
    assert stopped(store.as_retriever(search_kwargs={"filter": lambda document: RAN.append("filter")}) | len, "a")


def test_the_kind_of_search_counts() -> None:
    kind = {"search_type": "similarity_score_threshold", "search_kwargs": {"score_threshold": 0.0}}
    assert stopped(E.store("barriers2").as_retriever(**kind) | len, "a")


def test_components_of_other_arguments_are_others() -> None:
    def node(state: dict[str, Any]) -> Any:
        found = []
        for text in ("One {x}", "Two {x}"):
            prompt = ChatPromptTemplate.from_template(text)
            found += [(prompt | LLM.bind(stop=[end]) | StrOutputParser()).invoke({"x": state["x"]}) for end in "!?"]
        return found

    assert check(node, {"x": "a"}).shown == [4]


def test_arguments_of_a_call_count() -> None:
    def node(state: dict[str, Any]) -> Any:
        return [LLM.bind(stop=["!"]).invoke(state["x"], stop=["?"]).content, LLM.invoke(state["x"], stop=["."]).content]

    assert check(node, {"x": "a"}).shown == [2]


def test_settings_of_our_models_count() -> None:
    one, two = E.chat.bind(temperature=0.1), E.chat.bind(temperature=0.9)
    keys = [next(iter(read(each, "a").keys)) for each in (one, two)]
    assert keys[0] != keys[1]


def test_replies_are_sent_without_their_ids() -> None:
    def node(state: dict[str, Any]) -> Any:
        first = LLM.invoke(state["x"])
        return LLM.invoke([("human", state["x"]), first, ("human", "more")]).content

    assert check(node, {"x": "a"}).shown == [1, 1]


# --- what may raise --------------------------------------------------------------------------------------------------


def test_a_branch_does_not_wait_for_what_may_raise_in_another() -> None:
    strict = LLM | JsonOutputParser()
    found = read(RunnableParallel(a=strict | (lambda x: LLM.invoke(str(x))), b=LLM.bind(stop=["b"])), "x")
    assert found.certain[0] == [True, True]
    found = read(RunnableParallel(a=strict, b=RunnablePassthrough()) | itemgetter("b") | LLM.bind(stop=["c"]), "x")
    assert found.certain[0] == [True, False]
    found = read(RunnableParallel(a=strict, b=RunnablePassthrough()) | itemgetter("b") | LLM, "y")
    assert found.certain[0] == [True, False]


def test_a_branch_that_raises_lets_the_others_begin() -> None:
    def fails(x: Any) -> Any:
        raise ValueError(x)

    assert read(RunnableParallel(a=RunnableLambda(fails), b=LLM), "x").shown == [1]


def test_a_second_model_of_a_chain_waits_for_the_parser_of_the_first_in_each_round() -> None:
    first = RunnableParallel(a=LLM | JsonOutputParser(), b=RunnablePassthrough()) | itemgetter("b")
    steps = first | LLM.bind(stop=["c"])

    def node(state: dict[str, Any]) -> Any:
        return [steps.invoke(word) for word in state["words"]]

    def in_turn(state: dict[str, Any]) -> Any:
        left = [*state["words"]]
        while left:
            (ask(left.pop()) | LLM | JsonOutputParser()).invoke({})

    assert read(node, {"words": ["a", "b"]}).certain[0] == [True, False, True, False]
    assert read(in_turn, {"words": ["a", "b"]}).certain[0] == [True, True]
    each = RunnableLambda(lambda text: text.split()) | (LLM | JsonOutputParser()).map()
    assert read(each | (lambda _: {"x": "1"}) | ask("{x}") | LLM, "a b").certain[0] == [True, True, False]
    both = RunnableParallel(a=first.map(), b=RunnablePassthrough()) | itemgetter("b") | (lambda _: LLM.invoke("x"))
    assert read(both, ["a", "b"]).certain[0] == [True, True, False]
    assert read(lambda words: steps.batch(words), ["a", "b"]).certain[0] == [True, True, False, False]
    strict = RunnableParallel(a=itemgetter("text") | LLM | JsonOutputParser(), b=itemgetter("words"))
    items = strict | itemgetter("b") | LLM.bind(stop=["c"]).map()
    assert read(items, {"text": "x", "words": ["a", "b"]}).certain[0] == [True, False, False]


def test_what_stands_behind_a_parser_is_not_certain() -> None:
    def node(state: dict[str, Any]) -> Any:
        parsed = (LLM | JsonOutputParser()).invoke(state["x"])
        return parsed, LLM.invoke("other").content

    assert read(node, {"x": "a"}).certain[0] == [True, False]


def test_what_stands_behind_structured_output_is_not_certain() -> None:
    grader = LLM.with_structured_output(Grade, method="json_schema")

    def node(state: dict[str, Any]) -> Any:
        return grader.invoke(state["x"]), LLM.invoke("other").content

    assert read(node, {"x": "a"}).certain[0] == [True, False]


def test_a_model_of_another_package_may_warn_of_structured_output(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        """A class of a package that is not installed."""

    Other.__module__ = "langchain_of_another.chat_models"
    model, run = hosted(model="gpt-4"), Run(LangChainAsker())
    assert _without_warning(run, model, (), {}) == {"method": "function_calling"}
    monkeypatch.setattr("teola_plugin.adapters.langchain.reading_builders.stock_class", lambda value: Other)
    with pytest.raises(Barrier, match="may warn"):
        _without_warning(run, model, (), {})


def test_a_placeholder_takes_messages_only() -> None:
    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("human", "{x}")])

    def node(state: dict[str, Any]) -> Any:
        prompt.invoke({"history": LLM.invoke("a").content, "x": "b"})
        return LLM.invoke("other").content

    assert read(node, {}).certain[0] == [True, False]


def test_an_assign_takes_dicts_only() -> None:
    steps = LLM | StrOutputParser() | RunnablePassthrough.assign(y=lambda x: LLM.invoke("other").content)
    assert read(steps, "a").certain[0] == [True, False]


def test_a_prompt_of_anything_may_be_refused() -> None:
    def node(state: dict[str, Any]) -> Any:
        LLM.invoke(LLM.invoke(state["x"]).additional_kwargs)
        return LLM.invoke("other").content

    assert read(node, {"x": "a"}).certain[0] == [True, False]


def test_a_missing_variable_raises_before_the_others_are_known() -> None:
    def node(state: dict[str, Any]) -> Any:
        ask("{y} {z}").invoke({"z": LLM.invoke(state["x"]).content})
        return LLM.invoke("other").content

    found = read(node, {"x": "a"})
    assert found.shown == [1]
    assert type(found.raised) is KeyError


# --- composites ------------------------------------------------------------------------------------------------------


def test_a_branch_has_the_default_that_is_last() -> None:
    branch = RunnableBranch(
        (lambda x: x["n"] == 1, ask("One {n}") | LLM), (lambda x: x["n"] == 2, ask("Two {n}") | LLM), ask("{n}") | LLM
    )
    for n in (1, 2, 3):
        assert check(branch, {"n": n}).shown == [1]


def test_a_router_takes_the_key() -> None:
    router = RouterRunnable({"a": ask("A {x}") | LLM, "b": ask("B {x}") | LLM})
    assert check(router, {"key": "b", "input": {"x": "1"}}).shown == [1]


def test_arguments_of_a_chain_are_those_of_its_first_step() -> None:
    assert check((LLM | StrOutputParser()).bind(stop=["!"]), "a").shown == [1]


def test_a_picked_key_may_be_missing() -> None:
    assert check(RunnablePassthrough().pick("y") | (lambda y: LLM.invoke(str(y)).content), {"x": "a"}).shown == [1]


# --- clients ---------------------------------------------------------------------------------------------------------


def another_method(model: Any) -> None:
    def post(self: Any, *args: Any, **options: Any) -> None:
        """Of the same name."""

    model.client._post = types.MethodType(post, model.root_client)


def another_method_of_a_resource_of_its_own(model: Any) -> None:
    """Which the client itself does not refer to."""
    model.client = type(model.client)(model.root_client)
    assert as_set_now(model).configured == as_set_now(hosted()).configured
    another_method(model)


def another_wrapped(model: Any) -> None:
    model.client.with_raw_response.create = to_raw_response_wrapper(lambda *args, **options: None)


def another_timeout(model: Any) -> None:
    model.root_client.timeout = 1234.5


def another_address(model: Any) -> None:
    model.root_client.base_url = "http://elsewhere/v1"


def one_more_attribute(model: Any) -> None:
    model.root_client.something = 5


def another_transport(model: Any) -> None:
    model.root_client._client = ChatOpenAI(model="m", api_key="key").root_client._client


CHANGES = [
    another_method, another_method_of_a_resource_of_its_own, another_wrapped, another_timeout, another_address,
    one_more_attribute, another_transport,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_client_that_was_changed_is_another(change: Any) -> None:
    same, model = as_set_now(hosted()).configured, hosted()
    model.invoke("a")
    assert as_set_now(model).configured == same
    change(model)
    assert as_set_now(model).configured != same


def test_what_is_told_of_a_schema_says_what_to_write_instead() -> None:
    class Old(v1.BaseModel):
        score: str
        _known = v1.validator("score", allow_reuse=True)(lambda cls, value: value)

    class Checked(BaseModel):
        score: str

        @field_validator("score")
        @classmethod
        def known(cls, value: str) -> str:
            return value

    hints = []
    for schema in (Old, Checked):
        with pytest.raises(Barrier) as told:
            require_clean_schema(schema)
        hints.append(told.value.hint)
    assert "BaseModel of pydantic 2" in hints[0]
    assert "without validators" in hints[1]


def test_what_stops_in_code_of_others_may_be_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "_opener", None)  # others may have installed one

    def node(x: str) -> Any:
        return LLM.invoke(urllib.request.urlopen(x).read()).content

    def own(x: str) -> Any:
        return LLM.invoke(open(x).read()).content

    hints = []
    for function in (node, own):
        run = Run(LangChainAsker())
        with pytest.raises(Barrier) as told:
            call(run, run.load(function), ("a",), {})
        hints.append(told.value.hint)
    assert "teola_plugin.reads" in hints[0]
    assert "reads" not in hints[1]


@pytest.mark.parametrize("is_async", [False, True])
def test_what_fails_in_a_batch_that_returns_errors_goes_no_further(is_async: bool) -> None:
    chain = ask("{y}") | LLM | StrOutputParser()
    given = [{"y": "a"}, {"x": "b"}, {"y": "c"}]

    def kinds(found: list[Any]) -> list[str]:
        return ["error" if isinstance(each, Exception) else "text" for each in found]

    async def abatch(x: Any) -> list[str]:
        return kinds(await chain.abatch(x, return_exceptions=True))

    found = read(abatch if is_async else lambda x: kinds(chain.batch(x, return_exceptions=True)), given)
    assert found.value == ["text", "error", "text"]
    assert found.shown == [2]
