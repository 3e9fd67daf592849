"""What of composed LlamaIndex pipelines runs ahead: their graphs, and what the framework's run then finds waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.core.postprocessor import LLMRerank
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.schema import Document, NodeWithScore, QueryBundle, TextNode, TransformComponent
from llama_index.core.tools import QueryEngineTool

from teola_plugin import explain, optimize
from teola_plugin.adapters.llamaindex import adapter
from teola_plugin.api import optimized as behind
from teola_plugin.events import PrimitiveRan
from tests.adapters.llamaindex.test_llamaindex_differential import Patient, call, optimized
from tests.adapters.llamaindex.test_llamaindex_engines import built
from tests.adapters.llamaindex.test_llamaindex_trace import check
from tests.support.llamaindex_comparing import Stage
from tests.support.llamaindex_query_engines import ENGINES, decompose, sub_question
from tests.support.llamaindex_replies import reply
from tests.support.llamaindex_world import QUESTION, Engines, apart, engine_of, index_of


@pytest.fixture
def stage() -> Iterator[Stage]:
    before = Settings._llm, Settings._embed_model, Settings._callback_manager
    stage = Stage()
    Settings.llm, Settings.embed_model = stage.engines.model, stage.engines.embedding
    Settings.callback_manager = stage.callback_manager
    yield stage
    Settings._llm, Settings._embed_model, Settings._callback_manager = before


# --- graphs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hyde", "step_decompose", "citation", "sub_question"])
def test_each_engine_that_is_read(name: str, stage: Stage, update_golden: bool) -> None:
    check(adapter.trace(built(ENGINES[name], False)(stage)), name, update_golden)


def test_an_ingestion(update_golden: bool) -> None:
    check(adapter.trace(ingestion(Engines())), "ingestion", update_golden)


def test_the_parts_of_an_engine_that_is_not_read(stage: Stage) -> None:
    traced = adapter.trace(built(ENGINES["router"], False)(stage))
    assert traced.graph.primitives == ()
    assert sorted({name.partition("_")[0] for name in traced.parts}) == ["RetrieverQueryEngine", "TreeSummarize"]
    text = explain(optimize(built(ENGINES["router"], False)(stage)))
    assert "of its parts as the run gets to them" in text
    assert "p-graph of the part RetrieverQueryEngine" in text


# --- hits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("hyde", 4),  # the document, two vectors, the answer
        ("step_decompose", 3),  # the question, its vector, the answer
        ("citation", 2),
        ("sub_question", 8),  # the questions, a vector and an answer for each of three, the answer
        ("sub_question_async", 8),
    ],
)
def test_all_that_is_asked_was_foreseen(name: str, asked: int, stage: Stage) -> None:
    twin, calls = optimized(built(ENGINES[name], False)(stage), Patient)
    call(twin, "query")
    (report,) = calls.reports
    assert (report.hits + report.shared, report.misses, report.wasted, report.fallbacks) == (asked, 0, 0, ())


@pytest.mark.parametrize("form", ["query", "aquery"])
def test_the_parts_of_a_router_run_ahead_when_it_comes_to_them(form: str) -> None:
    engines = Engines()
    tool = QueryEngineTool.from_defaults(engine_of(engines, mode="accumulate", rerank=True), description="notes")
    twin, calls = optimized(tool, Patient)
    assert apart(twin.call, QUESTION).content
    (report,) = calls.reports
    assert (report.misses, report.wasted) == (0, 0)


class Noting(CustomQueryEngine):
    """A query engine that leaves a trace of each of its runs."""

    ran: Any

    def custom_query(self, query_str: str) -> str:
        self.ran.append(query_str)
        return f"noted {query_str}"


def test_a_sub_question_for_a_tool_that_leaves_traces_is_asked_in_its_place_alone(stage: Stage) -> None:
    stage.engines.llm.answer = reply  # one question for each tool
    ran: list[str] = []
    twin, calls = optimized(sub_question(stage, False, engines=[Noting(ran=ran)]), Patient)
    call(twin, "query")
    (report,) = calls.reports
    assert len(ran) == 1
    assert (report.hits + report.shared, report.misses, report.fallbacks) == (5, 1, ())


def test_a_tool_that_prints_what_it_does_prints_it_in_its_place(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.engines.llm.answer = reply
    loud = decompose(stage, False)
    engine = sub_question(stage, False, engines=[loud])
    call(engine, "query")
    printed = capsys.readouterr().out
    twin, calls = optimized(engine, Patient)
    call(twin, "query")
    (report,) = calls.reports
    assert capsys.readouterr().out == printed
    assert (report.hits + report.shared, report.misses, report.fallbacks) == (8, 1, ())


def test_a_tree_of_three_levels() -> None:
    engines = Engines(context_window=420)
    index = index_of(engines)
    engine = index.as_query_engine(llm=engines.model, response_mode="tree_summarize", similarity_top_k=12)
    original = call(engine, "query")
    twin, calls = optimized(engine, Patient)
    assert call(twin, "query") == original
    ran = {event.primitive for event in calls.reports[0].events if isinstance(event, PrimitiveRan)}
    assert {"answers", "answers_above", "answers_above_2"} <= ran
    assert (calls.reports[0].misses, calls.reports[0].wasted) == (0, 0)


def test_a_reranker_by_itself() -> None:
    engines = Engines()
    found = [NodeWithScore(node=TextNode(text=f"note {i}"), score=0.5) for i in range(6)]
    reranker = LLMRerank(llm=engines.model, choice_batch_size=2, top_n=3)
    original = apart(reranker.postprocess_nodes, found, QueryBundle(QUESTION))
    twin, calls = optimized(reranker, Patient)
    assert apart(twin.postprocess_nodes, found, QueryBundle(QUESTION)) == original
    assert (calls.reports[0].hits, calls.reports[0].misses) == (3, 0)


# --- ingestion --------------------------------------------------------------------------------------------------------


def documents(many: int = 4) -> list[Document]:
    return [
        Document(text=" ".join(f"Sentence {i} of book {d} about bees." for i in range(60)), metadata={"book": d})
        for d in range(many)
    ]


def ingestion(engines: Engines, *first: TransformComponent, **settings: Any) -> IngestionPipeline:
    steps = [*first, SentenceSplitter(chunk_size=64, chunk_overlap=5), engines.embedding]
    return IngestionPipeline(transformations=steps, **settings)


@pytest.mark.parametrize("form", ["run", "arun"])
def test_what_is_split_is_embedded_at_once(form: str) -> None:
    engines = Engines()
    twin = optimize(ingestion(engines))
    nodes = apart(_ingest, twin, form, documents())
    (report,) = behind(twin).reports
    assert len(nodes) == 4 * 12
    assert (report.hits + report.shared, report.misses, report.wasted) == (len(nodes), 0, 0)
    first = engines.embedder.batches[0].items
    assert len(first) < len(nodes)  # of the first book, before the last was split


def test_all_texts_of_another_parser_are_embedded_together() -> None:
    engines = Engines()
    engines.embedding.embed_batch_size = 3
    pipeline = IngestionPipeline(transformations=[MarkdownNodeParser(), engines.embedding])
    twin = optimize(pipeline)
    assert len(apart(_ingest, twin, "run", [Document(text="\n".join(f"# {i}\nx" for i in range(8)))])) == 8
    (report,) = behind(twin).reports
    assert (report.hits + report.shared, report.misses, report.wasted) == (8, 0, 0)


def test_a_cache_that_may_know_the_embeddings_is_waited_for() -> None:
    engines = Engines()
    twin = optimize(ingestion(engines))
    for _ in range(2):
        apart(_ingest, twin, "run", documents(1))
    assert len(engines.embedder.seen) == 12
    assert [report.wasted for report in behind(twin).reports] == [0, 0]


def test_nothing_runs_ahead_of_worker_processes() -> None:
    engines = Engines()
    twin = optimize(ingestion(engines))
    own = apart(_ingest, twin, "arun", documents(2))  # what the splitter imports need not be imported in each process
    of_processes = apart(asyncio.run, twin.arun(documents=documents(2), num_workers=2))
    assert [node.embedding for node in of_processes] == [node.embedding for node in own]
    assert len(engines.embedder.seen) == len(own)
    first, second = behind(twin).reports
    assert first.hits + first.shared == len(own)
    assert first.graphs
    assert (second.graphs, second.misses) == ((), 0)


@pytest.mark.filterwarnings("ignore:Call to deprecated method get_doc_id:DeprecationWarning")  # older LlamaIndex's own
def test_the_class_of_an_index() -> None:
    engines = Engines()
    made = apart(
        lambda: optimize(VectorStoreIndex).from_documents(
            documents(2),
            embed_model=engines.embedding,
            transformations=[SentenceSplitter(chunk_size=64, chunk_overlap=5)],
        )
    )
    assert isinstance(made, VectorStoreIndex)
    assert behind(made.as_query_engine(llm=engines.model)).traced.graph.primitives
    apart(made.insert, documents(1)[0])
    (report,) = behind(made).reports
    assert report.misses == 0
    assert report.hits + report.shared > 8


def _ingest(pipeline: Any, form: str, given: list[Document]) -> Any:
    if form == "run":
        return pipeline.run(documents=given)
    return asyncio.run(pipeline.arun(documents=given))
