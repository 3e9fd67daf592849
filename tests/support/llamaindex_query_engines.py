"""Every kind of LlamaIndex query engine on the fake engines, built by name: `ENGINES`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.evaluation import GuidelineEvaluator
from llama_index.core.indices.query.query_transform import (
    DecomposeQueryTransform,
    HyDEQueryTransform,
    StepDecomposeQueryTransform,
)
from llama_index.core.objects import ObjectIndex
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import (
    CitationQueryEngine,
    CustomQueryEngine,
    FLAREInstructQueryEngine,
    MultiStepQueryEngine,
    RetrieverQueryEngine,
    RetryQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
    ToolRetrieverRouterQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import TreeSummarize
from llama_index.core.schema import QueryBundle

from tests.support.llamaindex_comparing import Stage
from tests.support.llamaindex_parts import fusion, rag, selector, synthesizer, tools, vector_retriever


def hyde(stage: Stage, streaming: bool) -> Any:
    transform = HyDEQueryTransform(llm=stage.engines.model, include_original=True)
    return TransformQueryEngine(rag(stage, streaming), transform, callback_manager=stage.callback_manager)


def decompose(stage: Stage, streaming: bool) -> Any:
    transform = DecomposeQueryTransform(llm=stage.engines.model, verbose=True)
    return TransformQueryEngine(
        rag(stage, streaming), transform, {"index_summary": "notes"}, callback_manager=stage.callback_manager
    )


def step_decompose(stage: Stage, streaming: bool) -> Any:
    transform = StepDecomposeQueryTransform(llm=stage.engines.model)
    return TransformQueryEngine(rag(stage, streaming), transform, callback_manager=stage.callback_manager)


def router(stage: Stage, streaming: bool, *, is_multi: bool = False, engines: Sequence[Any] = ()) -> Any:
    summarizer = TreeSummarize(stage.engines.model, stage.callback_manager, streaming=streaming)
    return RouterQueryEngine(
        selector(stage, is_multi=is_multi), tools(stage, streaming, engines), stage.engines.model, summarizer,
        verbose=True,
    )  # fmt: skip


def multi_router(stage: Stage, streaming: bool) -> Any:
    return router(stage, streaming, is_multi=True)


def sub_question(
    stage: Stage, streaming: bool, *, use_async: bool = False, engines: Sequence[Any] = (), **settings: Any
) -> Any:
    return SubQuestionQueryEngine.from_defaults(
        tools(stage, engines=engines), stage.engines.model, LLMQuestionGenerator.from_defaults(stage.engines.model),
        synthesizer(stage, streaming=streaming), use_async=use_async, **settings,
    )  # fmt: skip


def sub_question_async(stage: Stage, streaming: bool) -> Any:
    return sub_question(stage, streaming, use_async=True)


def multi_step(stage: Stage, streaming: bool, num_steps: int | None = 2) -> Any:
    transform = StepDecomposeQueryTransform(llm=stage.engines.model)
    return MultiStepQueryEngine(
        rag(stage), transform, synthesizer(stage, streaming=streaming), num_steps, index_summary="notes"
    )


def multi_step_until_none(stage: Stage, streaming: bool) -> Any:
    return multi_step(stage, streaming, num_steps=None)


def retry(stage: Stage, streaming: bool) -> Any:
    judge = GuidelineEvaluator(
        stage.engines.model,
        eval_template=PromptTemplate("{query}\n{response}\n{guidelines}\nNow provide constructive criticism.\n"),
    )
    return RetryQueryEngine(rag(stage, streaming), judge, 2, stage.callback_manager)


def citation(stage: Stage, streaming: bool) -> Any:
    return CitationQueryEngine(
        vector_retriever(stage), stage.engines.model, synthesizer(stage, streaming=streaming), citation_chunk_size=32,
        citation_chunk_overlap=4, callback_manager=stage.callback_manager,
    )  # fmt: skip


def flare(stage: Stage, streaming: bool) -> Any:
    return FLAREInstructQueryEngine(
        rag(stage, streaming), stage.engines.model, max_lookahead_query_tasks=2, max_iterations=4, verbose=True,
        callback_manager=stage.callback_manager,
    )  # fmt: skip


def tool_router(stage: Stage, streaming: bool) -> Any:
    objects = ObjectIndex.from_objects(
        tools(stage, streaming), index_cls=VectorStoreIndex, embed_model=stage.engines.embedding
    )
    return ToolRetrieverRouterQueryEngine(objects.as_retriever(similarity_top_k=2), stage.engines.model)


def fusion_rag(stage: Stage, streaming: bool) -> Any:
    return rag(stage, streaming, retriever=fusion(stage), postprocessors=[stage.engines.rerank])


def nested(stage: Stage, streaming: bool) -> Any:
    """A router over sub-questions over fusion."""
    inner = sub_question(stage, streaming, engines=[fusion_rag(stage, False)])
    return router(stage, streaming, is_multi=True, engines=[inner])


class Custom(CustomQueryEngine):
    """A query engine of the user's own."""

    retriever: Any
    model: Any
    summary: Any

    def custom_query(self, query_str: str) -> Any:
        found = self.retriever.retrieve(query_str)
        first = self.model.complete(f"Sum up {[node.get_content() for node in found]}").text
        return self.summary.synthesize(f"{query_str} {first}", found)

    async def acustom_query(self, query_str: str) -> Any:
        found = await self.retriever.aretrieve(query_str)
        first = (await self.model.acomplete(f"Sum up {[node.get_content() for node in found]}")).text
        return await self.summary.asynthesize(f"{query_str} {first}", found)


def custom(stage: Stage, streaming: bool) -> Any:
    return Custom(
        retriever=vector_retriever(stage), model=stage.engines.model, summary=synthesizer(stage, streaming=streaming),
        callback_manager=stage.callback_manager,
    )  # fmt: skip


class Loud(RetrieverQueryEngine):
    """A subclass of a stock engine that does more than it."""

    def _query(self, query_bundle: QueryBundle) -> Any:
        response = super()._query(query_bundle)
        response.metadata = {**(response.metadata or {}), "loud": query_bundle.query_str.upper()}
        return response


def loud(stage: Stage, streaming: bool) -> Any:
    return Loud(vector_retriever(stage), synthesizer(stage, streaming=streaming), [], stage.callback_manager)


Engine = Callable[[Stage, bool], Any]
ENGINES: dict[str, Engine] = {
    make.__name__: make
    for make in (
        hyde, decompose, step_decompose, router, multi_router, sub_question, sub_question_async, multi_step,
        multi_step_until_none, retry, citation, flare, tool_router, fusion_rag, nested, custom, loud,
    )
}  # fmt: skip
