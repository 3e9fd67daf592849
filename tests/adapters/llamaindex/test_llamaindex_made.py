"""Models, engines and their parts that a function makes in its body are those of the framework's run."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from llama_index.core import Document, PromptTemplate, Settings, VectorStoreIndex, get_response_synthesizer
from llama_index.core.evaluation import AnswerRelevancyEvaluator, FaithfulnessEvaluator, RelevancyEvaluator
from llama_index.core.llms import ChatMessage
from llama_index.core.postprocessor import LLMRerank, SimilarityPostprocessor
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode, TreeSummarize
from llama_index.core.retrievers import VectorIndexRetriever
from llama_index.core.schema import NodeRelationship, QueryBundle
from llama_index.core.vector_stores import (
    ExactMatchFilter,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai import OpenAI
from llama_index.llms.openai_like import OpenAILike

from teola_plugin import explain, optimize
from teola_plugin.adapters.llamaindex.models import as_set_now, spec_of
from teola_plugin.adapters.llamaindex.reading_builders import Builder
from tests.support.hosted_service import Service, asked_side_by_side, counted, served

TEXTS = ("first", "last")


class World:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.own: dict[str, Any] = {"api_base": service.url, "api_key": "x", "max_retries": 0}
        self.embeddings = OpenAIEmbedding(**self.own)
        self.index = self.index_of("text 0", "text 1", "text 2")
        filed = [Document(text=f"of {each}", metadata={"kind": each, "year": 1}) for each in TEXTS]
        self.filed = VectorStoreIndex.from_documents(filed, embed_model=self.embeddings)

    def index_of(self, *texts: str) -> Any:
        return VectorStoreIndex.from_documents([Document(text=each) for each in texts], embed_model=self.embeddings)

    def llm(self) -> Any:
        return OpenAI(model="gpt-4o-mini", temperature=0, **self.own)

    def retriever(self) -> Any:
        return VectorIndexRetriever(index=self.index, similarity_top_k=2)


@pytest.fixture
def world() -> Iterator[World]:
    with served() as service:
        yield World(service)


def for_each(form: Callable[[World, str], Any], world: World) -> Callable[[], Any]:
    """Return a function that asks each text by a helper, which makes all that it needs."""

    def ask(text: str) -> Any:
        return form(world, text)

    def app() -> Any:
        return [ask(each) for each in TEXTS]

    return app


def completed(world: World, text: str) -> Any:
    llm = OpenAI(model="gpt-4o-mini", temperature=0.3, additional_kwargs={"seed": 1}, **world.own)
    return llm.complete(text).text


def completed_alike(world: World, text: str) -> Any:
    return str(OpenAILike(model="m", is_chat_model=True, **world.own).complete(text))


def retrieved(world: World, text: str) -> Any:
    return [each.text for each in world.retriever().retrieve(text)]


def filtered(world: World, text: str) -> Any:
    filters = MetadataFilters(filters=[MetadataFilter(key="kind", value=text), ExactMatchFilter(key="year", value=1)])
    return [each.text for each in world.filed.as_retriever(filters=filters).retrieve(text)]


def filtered_by_dicts(world: World, text: str) -> Any:
    filters = MetadataFilters.from_dicts([{"key": "kind", "value": text}, {"key": "year", "value": 1}])
    found = world.filed.as_retriever(similarity_top_k=1, filters=filters).retrieve(text)
    return [each.text for each in found]


def filtered_by_a_reply(world: World, text: str) -> Any:
    kind = MetadataFilter(key="kind", value=world.llm().complete(text).text, operator=FilterOperator.NE)
    filters = MetadataFilters(filters=[kind], condition=FilterCondition.OR)
    return [each.text for each in world.filed.as_retriever(filters=filters).retrieve(text)]


def from_args(world: World, text: str) -> Any:
    return str(RetrieverQueryEngine.from_args(world.retriever(), llm=world.llm()).query(text))


def of_parts(world: World, text: str) -> Any:
    writer = get_response_synthesizer(llm=world.llm(), response_mode=ResponseMode.TREE_SUMMARIZE)
    near = SimilarityPostprocessor(similarity_cutoff=-1.0)
    return str(RetrieverQueryEngine(world.retriever(), writer, node_postprocessors=[near]).query(text))


def ranked_in_engine(world: World, text: str) -> Any:
    ranks = LLMRerank(llm=world.llm(), choice_batch_size=1, top_n=2)
    return str(world.index.as_query_engine(llm=world.llm(), node_postprocessors=[ranks]).query(text))


def templated(world: World, text: str) -> Any:
    told = PromptTemplate("{context_str} asked {query_str}")
    return str(world.index.as_query_engine(llm=world.llm(), text_qa_template=told).query(text))


def summarized(world: World, text: str) -> Any:
    return TreeSummarize(llm=world.llm()).get_response(text, ["a", "b"])


def judged(world: World, text: str) -> Any:
    return AnswerRelevancyEvaluator(llm=world.llm()).evaluate(query=text, response="yes").score


HELPERS = (
    completed, completed_alike, retrieved, filtered, filtered_by_dicts, from_args, of_parts, ranked_in_engine,
    templated, summarized, judged,
)  # fmt: skip


@pytest.mark.parametrize("form", HELPERS, ids=lambda form: form.__name__)
def test_what_a_helper_makes_is_read(world: World, form: Callable[[World, str], Any]) -> None:
    asked_side_by_side(world.service, for_each(form, world), "first", "last", lambda app: app())


def test_a_filter_by_a_reply_waits_for_the_reply(world: World) -> None:
    app = for_each(filtered_by_a_reply, world)
    with counted(world.service) as plain:
        assert app() == [["of last", "of first"], ["of first", "of last"]]
    fast = optimize(app)
    for _ in range(2):
        with counted(world.service) as asked:
            assert fast() == [["of last", "of first"], ["of first", "of last"]]
        assert asked == plain


def written(world: World, text: str) -> Any:
    writer = get_response_synthesizer(llm=world.llm())
    return str(writer.synthesize(text, nodes=world.retriever().retrieve(text)))


def cut(world: World, text: str) -> Any:
    near = SimilarityPostprocessor(similarity_cutoff=-1.0)
    nodes = near.postprocess_nodes(world.retriever().retrieve(text), query_str=text)
    return [each.get_content() for each in nodes]


def ranked(world: World, text: str) -> Any:
    ranks = LLMRerank(llm=world.llm(), choice_batch_size=2, top_n=1)
    nodes = ranks.postprocess_nodes(world.retriever().retrieve(text), query_bundle=QueryBundle(text))
    return [each.text for each in nodes]


def told(world: World, text: str) -> Any:
    nodes = "\n".join(each.get_content() for each in world.retriever().retrieve(text))
    asked = [ChatMessage(role="system", content="Answer."), ChatMessage(role="user", content=f"{nodes} {text}")]
    return world.llm().chat(asked).message.content


@pytest.mark.parametrize("form", [written, cut, ranked, told], ids=lambda form: form.__name__)
def test_what_is_made_of_found_nodes_raises_nothing(world: World, form: Callable[[World, str], Any]) -> None:
    asked_side_by_side(world.service, for_each(form, world), "embed ['first']", "last", lambda app: app())


def test_engines_of_an_index_made_in_the_body_are_read_behind_it(world: World) -> None:
    def app() -> Any:
        index, kind = world.index_of("one", "two"), [NodeRelationship.SOURCE]
        llm = OpenAI(model="gpt-4o-mini", **world.own)
        engine = RetrieverQueryEngine.from_args(VectorIndexRetriever(index=index), llm=llm)
        return [str(engine.query(each)) for each in ("before", *TEXTS)], len(kind)

    asked_side_by_side(world.service, app, "first", "last", lambda app: app())


def test_queries_that_are_timed_are_read_behind_settings_of_the_body(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "_llm", world.llm())
    monkeypatch.setattr(Settings, "_callback_manager", world.index._callback_manager)

    def app() -> Any:
        Settings.llm = OpenAI(model="gpt-4o-mini", **world.own)
        engine, took, found = world.index.as_query_engine(), 0.0, []
        for each in ("before", *TEXTS):
            began = time.time()
            found.append(str(engine.query(each)))
            took += time.time() - began
        return found, took > 0

    asked_side_by_side(world.service, app, "first", "last", lambda app: app())


def test_judges_of_an_index_made_in_the_body_are_read_behind_it(world: World) -> None:
    def app() -> Any:
        index, llm = world.index_of("one", "two"), OpenAI(model="gpt-4o-mini", **world.own)
        engine, judge = index.as_query_engine(llm=llm), FaithfulnessEvaluator(llm=llm)
        found = []
        for each in ("before", *TEXTS):
            answer = engine.query(each)
            found.append((str(answer), judge.evaluate_response(response=answer).passing))
        return found

    world.service.lasts_s = 0.1
    report = asked_side_by_side(world.service, app, "no", "no", lambda app: app())
    assert report.hits + report.shared >= 3


def test_answers_that_pass_a_judge_are_counted_in_a_loop(world: World) -> None:
    llm, engine = world.llm(), world.index.as_query_engine(llm=world.llm())
    faithful, relevant = FaithfulnessEvaluator(llm=llm), RelevancyEvaluator(llm=llm)

    def app() -> Any:
        passed = relevancy = 0
        for each in ("before", "first", "second", "last"):
            answer = engine.query(each)
            passed += faithful.evaluate_response(response=answer).passing
            relevancy += relevant.evaluate_response(query=each, response=answer).passing
        return passed, relevancy

    asked_side_by_side(world.service, app, "before", "last", lambda app: app())


def test_a_reranker_made_in_the_body_asks_once(world: World) -> None:
    def app() -> Any:
        ranks = LLMRerank(llm=world.llm(), choice_batch_size=1, top_n=2)
        engine = world.index.as_query_engine(llm=world.llm(), node_postprocessors=[ranks])
        return [str(engine.query(each)) for each in TEXTS]

    world.service.lasts_s = 0.02
    with counted(world.service) as original:
        plain = app()
    fast = optimize(app)
    for _ in range(6):
        with counted(world.service) as made:
            assert fast() == plain
        assert made == original


def test_an_engine_of_a_cached_function_is_asked_once(world: World) -> None:
    @functools.cache
    def engine_of(count: int) -> Any:
        found = VectorIndexRetriever(index=world.index, similarity_top_k=count)
        return RetrieverQueryEngine.from_args(found, llm=world.llm())

    def app() -> Any:
        return [str(engine_of(count).query("first")) for count in (1, 2)], world.llm().complete("last").text

    world.service.lasts_s = 0.05
    with counted(world.service) as original:
        plain = app()
    fast = optimize(app)
    for _ in range(4):
        engine_of.cache_clear()
        with counted(world.service) as made:
            assert fast() == plain
        assert made == original


def searched_by_a_text(world: World) -> Any:
    return VectorIndexRetriever(index=world.index, similarity_top_k="2").retrieve("first")  # type: ignore[arg-type]


def ranked_by_none(world: World) -> Any:
    return LLMRerank(llm=world.llm(), choice_batch_size=0).postprocess_nodes(
        world.retriever().retrieve("first"), None, "first"
    )


def sorted_nodes(world: World) -> Any:
    return sorted(world.retriever().retrieve("first"))  # type: ignore[type-var]


def best_node(world: World) -> Any:
    return max(world.retriever().retrieve("first"), default=None)  # type: ignore[type-var]


@pytest.mark.parametrize("form", [searched_by_a_text, ranked_by_none, sorted_nodes, best_node])
def test_nothing_is_asked_behind_what_raises(world: World, form: Callable[[World], Any]) -> None:
    def app() -> Any:
        return form(world), world.llm().complete("last").text

    world.llm().complete("the provider has answered")
    world.service.lasts_s = 0.05
    with counted(world.service) as original, pytest.raises((TypeError, ValueError)):
        app()
    fast = optimize(app)
    with counted(world.service) as made, pytest.raises((TypeError, ValueError)):
        fast()
    assert made == original


noted: list[str] = []


class _Kept(BaseNodePostprocessor):
    """Not stock: its code is the user's."""

    def __setattr__(self, name: str, value: Any) -> None:
        noted.append(name)
        super().__setattr__(name, value)

    def _postprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
        return nodes


def test_an_engine_with_code_of_the_users_is_not_made_early(world: World) -> None:
    kept = _Kept()

    def app() -> Any:
        llm = OpenAI(model="gpt-4o-mini", **world.own)
        engine = RetrieverQueryEngine.from_args(world.retriever(), llm=llm, node_postprocessors=[kept])
        return str(engine.query("first"))

    plain, fast = app(), optimize(app)
    noted.clear()
    assert fast() == plain
    assert noted == ["callback_manager"]
    assert "hands" in explain(fast)


class _Noting(VectorStoreIndex):
    @property
    def vector_store(self) -> Any:
        noted.append("vector_store")
        return super().vector_store


def test_an_index_of_the_users_is_searched_by_the_run_alone(world: World) -> None:
    index = world.index_of("one", "two")
    index.__class__ = _Noting

    def app() -> Any:
        return [each.text for each in VectorIndexRetriever(index=index).retrieve("first")]

    fast = optimize(app)
    noted.clear()
    plain, times = app(), len(noted)
    assert fast() == plain
    assert len(noted) == 2 * times


def test_an_index_that_the_run_has_changed_is_not_searched_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading begins again with each reply, and here comes to the retriever once the index has lost a document."""
    make = Builder.make

    def make_late(self: Builder, *given: Any) -> Any:
        if self._made:
            time.sleep(0.05)
        return make(self, *given)

    llm = world.llm()

    def app(index: Any) -> Any:
        said = llm.complete("before").text
        found = index.as_retriever(similarity_top_k=2).retrieve("first")
        index.delete_ref_doc("1")
        return said, len(found), llm.complete("last").text

    def call(made: Any) -> tuple[Any, Any]:
        docs = [Document(text=f"text {n}", id_=f"{n}") for n in range(3)]
        index = VectorStoreIndex.from_documents(docs, embed_model=world.embeddings)
        with counted(world.service) as asked:
            answer = made(index)
            time.sleep(0.1)
        return answer, asked

    monkeypatch.setattr(Builder, "make", make_late)
    world.service.lasts_s = 0.02
    fast = optimize(app)
    for _ in range(5):
        assert call(fast) == call(app)


# --- models with equal settings --------------------------------------------------------------------------------------


def test_models_with_equal_settings_are_one_engine(world: World) -> None:
    first, second = world.llm(), world.llm()
    first.complete("a client is made")
    assert spec_of(first).resource is spec_of(second).resource
    assert as_set_now(first).key("asked") == as_set_now(second).key("asked")
    second.temperature = 0.5
    assert as_set_now(first).key("asked") != as_set_now(second).key("asked")


class _Own(OpenAI):
    """A user's class."""


UNLIKE: dict[str, Callable[[World], Any]] = {
    "temperature": lambda world: OpenAI(model="gpt-4o-mini", temperature=1, **world.own),
    "key": lambda world: OpenAI(model="gpt-4o-mini", temperature=0, **{**world.own, "api_key": "y"}),
    "class": lambda world: OpenAILike(model="gpt-4o-mini", temperature=0, **world.own),
    "own class": lambda world: _Own(model="gpt-4o-mini", temperature=0, **world.own),
    "client": lambda world: OpenAI(model="gpt-4o-mini", temperature=0, openai_client=_client(world), **world.own),
    "attribute": lambda world: _with_attribute(world.llm()),
}


def _client(world: World) -> Any:
    import openai

    return openai.OpenAI(api_key="z", base_url=world.service.url)


def _with_attribute(llm: Any) -> Any:
    vars(llm)["_get_model_kwargs"] = lambda **kwargs: {"model": "other"}
    return llm


@pytest.mark.parametrize("other", UNLIKE.values(), ids=UNLIKE)
def test_models_that_differ_are_not_the_same(world: World, other: Callable[[World], Any]) -> None:
    assert as_set_now(world.llm()).key("asked") != as_set_now(other(world)).key("asked")
