"""LlamaIndex pipelines as graphs (`tests/pipelines/llamaindex_*.txt`), and what is left to the framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import LLM, MockLLM
from llama_index.core.postprocessor import LongContextReorder, PrevNextNodePostprocessor, SimilarityPostprocessor
from llama_index.core.prompts import PromptTemplate, SelectorPromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine, RouterQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.core.tools import QueryEngineTool
from llama_index.core.types import BaseOutputParser

from teola_plugin.adapters.llamaindex import adapter, observers
from teola_plugin.adapters.llamaindex.entries import Entry
from teola_plugin.graph import parse
from teola_plugin.models.llamaindex import EngineEmbedding, EngineLLM, EngineRerank
from teola_plugin.trace import Traced
from tests.support.fakes import collect_garbage
from tests.support.llamaindex_world import MODES, QUESTION, Engines, Record, apart, engine_of, index_of

GOLDEN = Path(__file__).parents[2] / "pipelines"


class OwnRetriever(BaseRetriever):
    """A user's own retriever."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        raise AssertionError("tracing called the user's code")


def check(traced: Traced, name: str, update: bool) -> None:
    """The graph and the breaks are those of `tests/pipelines/llamaindex_<name>.txt`."""
    text = str(traced.graph).replace(_collection_in(traced), "kb_notes")
    text += "".join(f"\n# {b.code} {b.what}" for b in traced.breaks) + "\n"
    path = GOLDEN / f"llamaindex_{name}.txt"
    if update:
        path.write_text(text)
    assert text == path.read_text()
    assert parse(str(traced.graph)) == traced.graph


def _collection_in(traced: Traced) -> str:
    return next((name for p in traced.graph for name in p.reads), "kb_notes")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_chat_model", [True, False], ids=["chat", "completion"])
def test_each_synthesizer(mode: str, is_chat_model: bool, update_golden: bool) -> None:
    engine = engine_of(Engines(is_chat_model=is_chat_model), mode=mode)
    name = f"{mode}_{'chat' if is_chat_model else 'completion'}"
    traced = adapter.trace(engine)
    check(traced, name, update_golden)
    assert [b.code for b in traced.breaks] == (["TB214"] if mode in ("refine", "compact") else [])


def test_fusion_with_reranking(update_golden: bool) -> None:
    check(adapter.trace(engine_of(Engines(), retriever="fusion", rerank=True)), "fusion_rerank", update_golden)


def test_fusion_of_two_retrievers(update_golden: bool) -> None:
    engines = Engines()
    index = index_of(engines)
    both = [index.as_retriever(similarity_top_k=k) for k in (2, 3)]
    for use_async, name in ((True, "fusion_two"), (False, "fusion_two_in_turn")):
        fusion = QueryFusionRetriever(both, llm=engines.model, num_queries=3, use_async=use_async)
        check(adapter.trace(fusion), name, update_golden)


def test_fusion_without_queries_of_its_own(update_golden: bool) -> None:
    engines = Engines()
    fusion = QueryFusionRetriever([index_of(engines).as_retriever()], llm=engines.model, num_queries=1)
    check(adapter.trace(fusion), "fusion_one_query", update_golden)


def test_a_chain_of_postprocessors(update_golden: bool) -> None:
    engine = engine_of(Engines(), rerank=True)
    engine._node_postprocessors = [SimilarityPostprocessor(), *engine._node_postprocessors, LongContextReorder()]
    check(adapter.trace(engine), "postprocessors", update_golden)


def test_a_store_in_this_process(update_golden: bool) -> None:
    engines = Engines()
    index = VectorStoreIndex([TextNode(text="a note")], embed_model=engines.embedding)
    check(adapter.trace(index.as_query_engine(llm=engines.model)), "local_store", update_golden)


def test_an_unknown_retriever_is_waited_for(update_golden: bool) -> None:
    engines = Engines()
    own = OwnRetriever()
    engine = RetrieverQueryEngine(own, get_response_synthesizer(llm=engines.model), [engines.rerank])
    traced = adapter.trace(engine)
    check(traced, "own_retriever", update_golden)
    assert traced.observed == {id(own): "nodes"}
    assert observers._awaited[id(own)] is own
    key = id(own)
    del own, engine, traced
    collect_garbage()
    assert key not in observers._awaited


def test_an_unknown_postprocessor_is_waited_for(update_golden: bool) -> None:
    engine = engine_of(Engines(), mode="accumulate")
    engine._node_postprocessors = [PrevNextNodePostprocessor(docstore=SimpleDocumentStore())]
    check(adapter.trace(engine), "own_postprocessor", update_golden)


def test_a_synthesizer_by_itself(update_golden: bool) -> None:
    check(adapter.trace(get_response_synthesizer(llm=Engines().model)), "synthesizer", update_golden)


# --- what is left to the framework ------------------------------------------------------------------------------------


def codes(pipeline: Any) -> list[str]:
    return [b.code for b in adapter.trace(pipeline).breaks]


def test_overridden_methods_are_left_alone() -> None:
    class Louder(type(get_response_synthesizer(llm=MockLLM()))):  # type: ignore[misc]
        def get_response(self, query_str: str, text_chunks: Any, **kwargs: Any) -> Any:
            raise AssertionError("tracing called the user's code")

    engines = Engines()
    assert codes(Louder(llm=engines.model)) == ["TB209"]
    retriever: Any = index_of(engines).as_retriever()
    retriever._retrieve = lambda bundle: []
    assert codes(retriever) == ["TB201"]


def test_models_and_stores_that_cannot_be_foreseen() -> None:
    engines = Engines()
    retriever = index_of(engines).as_retriever()
    assert codes(RetrieverQueryEngine(retriever, get_response_synthesizer(llm=MockLLM()))) == ["TB208"]
    assert codes(QueryFusionRetriever([retriever], llm=MockLLM())) == ["TB208"]
    index = VectorStoreIndex([TextNode(text="a note")], embed_model=MockEmbedding(3))
    assert codes(index.as_retriever()) == ["TB204"]
    assert codes(index_of(engines).as_retriever(vector_store_query_mode="mmr")) == ["TB207"]


def test_subclasses_of_our_models_that_do_more_are_left_alone() -> None:
    class AuditedLLM(EngineLLM):
        def chat(self, messages: Any, **kwargs: Any) -> Any:
            raise AssertionError("tracing called the user's code")

    class AuditedEmbedding(EngineEmbedding):
        def _get_query_embedding(self, query: str) -> list[float]:
            raise AssertionError("tracing called the user's code")

    class AuditedRerank(EngineRerank):
        def _postprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
            raise AssertionError("tracing called the user's code")

    engines = Engines()
    assert codes(get_response_synthesizer(llm=AuditedLLM(engine=engines.llm))) == ["TB208"]
    engine = engine_of(engines, mode="accumulate")
    engine._node_postprocessors = [AuditedRerank(engine=engines.reranker)]
    assert codes(engine) == ["TB202"]
    engines.embedding = AuditedEmbedding(engine=engines.embedder)
    assert codes(VectorStoreIndex([], embed_model=engines.embedding).as_retriever()) == ["TB204"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"vector_store_query_mode": "sparse"},
        {"vector_store_query_mode": "text_search"},
        {"vector_store_kwargs": {"ids": ["n1", "n2"]}},
        {"vector_store_kwargs": {"include": ["data"]}},
    ],
)
def test_tracing_does_not_reach_the_store(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    retriever: Any = index_of(Engines()).as_retriever(**arguments)
    server = retriever._vector_store._collection._client
    reached: list[str] = []
    for method in ("_get", "_query"):
        monkeypatch.setattr(server, method, lambda *args, method=method, **kwargs: reached.append(method))
    embeds = arguments.keys() == {"vector_store_query_mode"} and not hasattr(retriever, "_needs_embedding")
    assert codes(retriever) == ([] if embeds else ["TB207"])  # older releases embed the query in these modes too
    assert reached == []


@pytest.mark.skipif("rate_limiter" not in LLM.model_fields, reason="models of older releases have no limiters")
def test_a_limiter_or_cache_before_a_model_is_not_passed_by() -> None:
    class Limiter:
        def acquire(self) -> None:
            raise AssertionError("tracing used up the limit")

    engines = Engines()
    retriever = index_of(engines).as_retriever()
    engines.model.rate_limiter = Limiter()
    assert codes(get_response_synthesizer(llm=engines.model)) == ["TB208"]
    engines.embedding.rate_limiter = Limiter()
    assert codes(retriever) == ["TB205"]


def test_a_cache_of_embeddings_is_not_passed_by() -> None:
    engines = Engines()
    engines.embedding = EngineEmbedding(engine=engines.embedder, embeddings_cache=SimpleKVStore())
    index = VectorStoreIndex([TextNode(text="a note")], embed_model=engines.embedding)
    assert codes(index.as_retriever()) == ["TB205"]


def test_nodes_that_stand_for_other_components_are_left_to_the_framework() -> None:
    retriever = index_of(Engines()).as_retriever()
    retriever.object_map = {"n1": OwnRetriever()}
    assert codes(retriever) == ["TB203"]


class Shouting(BaseOutputParser):
    """A user's own parser."""

    def parse(self, output: str) -> str:
        raise AssertionError("tracing called the user's code")

    def format(self, query: str) -> str:
        raise AssertionError("tracing called the user's code")


def unlike_any(*args: Any, **kwargs: Any) -> Any:
    print(args)
    raise AssertionError("tracing called the user's code")


@pytest.mark.parametrize(
    "settings",
    [
        {"output_parser": Shouting()},
        {"messages_to_prompt": unlike_any},
        {"completion_to_prompt": unlike_any},
    ],
)
def test_a_model_that_calls_the_users_code_is_left_to_the_framework(settings: dict[str, Any]) -> None:
    model = EngineLLM(engine=Engines().llm, **settings)
    assert codes(get_response_synthesizer(llm=model)) == ["TB208"]
    retriever = index_of(Engines()).as_retriever()
    assert "TB208" in codes(QueryFusionRetriever([retriever], llm=model))


@pytest.mark.parametrize(
    "template",
    [
        PromptTemplate("{context_str} {query_str}", output_parser=Shouting()),
        SelectorPromptTemplate(
            PromptTemplate("{context_str} {query_str}"), [(unlike_any, PromptTemplate("{query_str}"))]
        ),
        SelectorPromptTemplate(PromptTemplate("{context_str} {query_str}", output_parser=Shouting())),
    ],
)
def test_a_template_that_calls_the_users_code_is_left_to_the_framework(template: Any) -> None:
    assert codes(get_response_synthesizer(llm=Engines().model, text_qa_template=template)) == ["TB212"]


def test_templates_that_run_the_users_code() -> None:
    def shout(**kwargs: Any) -> str:
        raise AssertionError("tracing called the user's code")

    template = PromptTemplate("{context_str} {query_str}", function_mappings={"context_str": shout})
    synthesizer = get_response_synthesizer(llm=Engines().model, text_qa_template=template)
    assert codes(synthesizer) == ["TB212"]


def test_structured_answers() -> None:
    synthesizer = get_response_synthesizer(llm=Engines().model, structured_answer_filtering=True)
    assert codes(synthesizer) == ["TB211"]
    assert codes(get_response_synthesizer(llm=Engines().model, output_cls=ChatMessage)) == ["TB211"]


def test_a_query_engine_that_is_not_read() -> None:
    engines = Engines()
    tool = QueryEngineTool.from_defaults(engine_of(engines), description="notes")
    router = RouterQueryEngine(LLMSingleSelector.from_defaults(engines.model), [tool], llm=engines.model)
    traced = adapter.trace(router)
    assert [b.code for b in traced.breaks] == ["TB200", "TB214"]
    assert traced.graph.primitives == ()
    assert {*traced.parts} == {"RetrieverQueryEngine", "TreeSummarize"}


def test_code_of_the_framework_that_raises_is_a_break() -> None:
    synthesizer = get_response_synthesizer(llm=Engines(context_window=70).model)
    assert codes(synthesizer) == ["TB213"]


# --- tracing as such --------------------------------------------------------------------------------------------------


def test_nobody_hears_or_pays_for_tracing() -> None:
    engines = Engines()
    engine = engine_of(engines, mode="refine", retriever="fusion", rerank=True)
    engines.embedder.batches.clear()
    with Record() as record:
        engine.callback_manager = record.callback_manager
        traced = adapter.trace(engine)
        nodes = [NodeWithScore(node=TextNode(text="a note"), score=0.5)] * 3
        asked = apart(traced.functions["rehearse"].call, QUESTION, nodes)
        assert len(traced.functions["prompts"].call(asked)) == 1
        assert len(traced.functions["prefixes"].call(asked)) == 2
    assert record.said == []
    assert [e.batches for e in (engines.llm, engines.embedder, engines.reranker)] == [[], [], []]


def test_functions_leave_their_arguments_alone() -> None:
    engines = Engines()
    traced = adapter.trace(engine_of(engines, rerank=True))
    nodes = [NodeWithScore(node=TextNode(text=f"note {i}", metadata={"page": i}), score=0.5) for i in range(4)]
    before = [n.model_dump() for n in nodes]
    engines.rerank.keep_retrieval_score = True
    top = traced.functions["top"].call(QUESTION, nodes, [0.1, 0.4, 0.3, 0.2])
    assert [n.node.metadata["page"] for n in top] == [1, 2, 3]
    assert [n.model_dump() for n in nodes] == before


def test_the_inputs_of_a_call() -> None:
    traced = adapter.trace(engine_of(Engines()))
    assert traced.bind(QUESTION) == {"query": QUESTION, "question": QUESTION, "is_async": False}
    assert traced.bind(QueryBundle(QUESTION)) == traced.bind(QUESTION)
    assert traced.bind(Entry(QUESTION, is_async=True, answers=False)) == {"query": QUESTION, "is_async": True}
    assert "query" not in traced.bind(QueryBundle(QUESTION, custom_embedding_strs=["something else"]))
    assert "query" not in traced.bind(QueryBundle(QUESTION, embedding=[1.0]))
    assert traced.bind(None) == traced.bind("") == {}


def test_a_pipeline_whose_settings_changed_does_not_run_ahead() -> None:
    engine = engine_of(Engines())
    traced = adapter.trace(engine)
    engine._response_synthesizer._streaming = True
    assert traced.bind(QUESTION)
    engine.retriever.similarity_top_k = 1
    assert traced.bind(QUESTION) == {}
