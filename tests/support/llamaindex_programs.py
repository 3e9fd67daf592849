"""Engines, retrievers and postprocessors as users write them, in the forms of LlamaIndex's documentation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core import PromptTemplate, Settings
from llama_index.core.async_utils import run_jobs
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import Response
from llama_index.core.indices.keyword_table.retrievers import KeywordTableSimpleRetriever
from llama_index.core.llms import LLM, ChatMessage
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import CustomQueryEngine, RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer, get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever, VectorIndexRetriever
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
from pydantic import BaseModel, PrivateAttr

from tests.support.llamaindex_comparing import Stage
from tests.support.llamaindex_parts import keyword_retriever, vector_retriever
from tests.support.llamaindex_world import digest

QA = PromptTemplate("Context:\n{context_str}\nGiven this and no prior knowledge, answer.\nQuery: {query_str}\nAnswer: ")
RELEVANT = PromptTemplate("Is this relevant to {query_str}? yes or no.\n{context_str}")
SUMMARY = "Summarize for {query_str}:\n{context_str}"


class RAGQueryEngine(CustomQueryEngine):
    """A retriever and a synthesizer."""

    retriever: BaseRetriever
    response_synthesizer: BaseSynthesizer

    def custom_query(self, query_str: str) -> Any:
        nodes = self.retriever.retrieve(query_str)
        return self.response_synthesizer.synthesize(query_str, nodes)


class RAGStringQueryEngine(CustomQueryEngine):
    """A prompt of its own."""

    retriever: BaseRetriever
    response_synthesizer: BaseSynthesizer
    llm: LLM
    qa_prompt: PromptTemplate

    def custom_query(self, query_str: str) -> str:
        nodes = self.retriever.retrieve(query_str)
        context_str = "\n\n".join([n.node.get_content() for n in nodes])
        response = self.llm.complete(self.qa_prompt.format(context_str=context_str, query_str=query_str))
        return str(response)


class GradingQueryEngine(CustomQueryEngine):
    """Each document is judged, one after the other; what is left is answered from."""

    retriever: BaseRetriever
    llm: LLM
    _least: int = PrivateAttr(default=1)

    def custom_query(self, query_str: str) -> Response:
        nodes = self.retriever.retrieve(query_str)
        relevant = []
        for node in nodes:
            verdict = self.llm.predict(RELEVANT, context_str=node.get_content(), query_str=query_str)
            print("judged", node.node.node_id)
            if "a" in verdict.lower():
                relevant.append(node)
        if len(relevant) < self._least:
            return Response("I do not know.")
        context_str = "\n\n".join(node.get_content(metadata_mode=MetadataMode.LLM) for node in relevant)
        answer = self.llm.predict(QA, context_str=context_str, query_str=query_str)
        return Response(response=answer, source_nodes=relevant)

    async def acustom_query(self, query_str: str) -> Response:
        nodes = await self.retriever.aretrieve(query_str)
        relevant = []
        for node in nodes:
            verdict = await self.llm.acomplete(RELEVANT.format(context_str=node.get_content(), query_str=query_str))
            if "a" in verdict.text.lower():
                relevant.append(node)
        context_str = "\n\n".join(node.get_content() for node in relevant)
        answer = await self.llm.apredict(QA, context_str=context_str, query_str=query_str)
        return Response(response=answer, source_nodes=relevant)


class TreeQueryEngine(CustomQueryEngine):
    """Summaries of summaries, by a helper that calls itself."""

    retriever: BaseRetriever
    llm: LLM

    def custom_query(self, query_str: str) -> str:
        nodes = self.retriever.retrieve(QueryBundle(query_str))
        return self._combine([node.get_content() for node in nodes], query_str)

    def _combine(self, texts: list[str], query_str: str, width: int = 2) -> str:
        answers = []
        for at in range(0, len(texts), width):
            context_str = "\n".join(texts[at : at + width])
            answers.append(self.llm.complete(SUMMARY.format(context_str=context_str, query_str=query_str)).text)
        return answers[0] if len(answers) == 1 else self._combine(answers, query_str, width)


class ChattingQueryEngine(BaseQueryEngine):
    """No pydantic; chats by the `Settings`' model."""

    def __init__(self, retriever: BaseRetriever) -> None:
        super().__init__(callback_manager=None)
        self._retriever = retriever

    def _get_prompt_modules(self) -> Any:
        return {}

    def _query(self, query_bundle: QueryBundle) -> Response:
        found = self._retriever.retrieve(query_bundle)
        answers = []
        for node in found:
            messages = [
                ChatMessage(role="system", content="You are terse."),
                ChatMessage(role="user", content=f"{node.text}\n\n{query_bundle.query_str}"),
            ]
            answers.append(Settings.llm.chat(messages).message.content)
        return Response("\n".join(str(each) for each in answers), found)

    async def _aquery(self, query_bundle: QueryBundle) -> Response:
        found = await self._retriever.aretrieve(query_bundle)
        tasks = [Settings.llm.acomplete(f"{node.text} {query_bundle.query_str}") for node in found]
        answers = await run_jobs(tasks, workers=2)
        return Response("\n".join(map(str, answers)), found)


class HybridRetriever(BaseRetriever):
    """Vectors and keywords, as in the documentation."""

    def __init__(self, vectors: VectorIndexRetriever, words: KeywordTableSimpleRetriever, mode: str = "OR") -> None:
        self._vector_retriever = vectors
        self._keyword_retriever = words
        if mode not in ("AND", "OR"):
            raise ValueError("Invalid mode.")
        self._mode = mode
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        vector_nodes = self._vector_retriever.retrieve(query_bundle)
        keyword_nodes = self._keyword_retriever.retrieve(query_bundle)
        vector_ids = {n.node.node_id for n in vector_nodes}
        keyword_ids = {n.node.node_id for n in keyword_nodes}
        combined_dict = {n.node.node_id: n for n in vector_nodes}
        combined_dict.update({n.node.node_id: n for n in keyword_nodes})
        retrieve_ids = vector_ids & keyword_ids if self._mode == "AND" else vector_ids.union(keyword_ids)
        return [combined_dict[rid] for rid in sorted(retrieve_ids)]


class RewritingRetriever(BaseRetriever):
    """Writes queries, searches for each, and ranks what was found by its ranks."""

    def __init__(self, inner: BaseRetriever, llm: LLM) -> None:
        self._inner, self._llm = inner, llm
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        written = self._llm.complete(f"Write three search queries for: {query_bundle.query_str}")
        queries = [query_bundle.query_str, *written.text.split()[:2]]
        results = {query: self._inner.retrieve(query) for query in queries}
        return fuse(results, top=3)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        written = await self._llm.acomplete(f"Write three search queries for: {query_bundle.query_str}")
        queries = [query_bundle.query_str, *written.text.split()[:2]]
        found = await asyncio.gather(*[self._inner.aretrieve(query) for query in queries])
        return fuse(dict(zip(queries, found, strict=True)), top=3)


def fuse(results: dict[str, list[NodeWithScore]], top: int) -> list[NodeWithScore]:
    """Reciprocal rank fusion."""
    scores: dict[str, float] = {}
    by_id: dict[str, NodeWithScore] = {}
    for found in results.values():
        for rank, node in enumerate(sorted(found, key=lambda x: x.score or 0.0, reverse=True)):
            number = node.node.node_id
            by_id[number] = node
            scores[number] = scores.get(number, 0.0) + 1.0 / (rank + 60.0)
    ranked = sorted(scores.items(), key=lambda x: x[1], reverse=True)
    return [NodeWithScore(node=by_id[number].node, score=score) for number, score in ranked[:top]]


class GradingPostprocessor(BaseNodePostprocessor):
    """A model says of each node what it is worth."""

    llm: LLM
    cutoff: float = 0.1
    _seen: int = PrivateAttr(default=0)

    @classmethod
    def class_name(cls) -> str:
        return "GradingPostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("Missing query bundle.")
        kept = []
        for node in nodes:
            reply = self.llm.complete(f"Rate {node.node.get_content()} for {query_bundle.query_str}")
            worth = sum(map(ord, reply.text)) % 10 / 10
            if worth > self.cutoff:
                kept.append(NodeWithScore(node=node.node, score=worth))
        return sorted(kept, key=lambda x: x.score or 0.0, reverse=True)


class Verdict(BaseModel):
    """What a judge says."""

    name: str
    hive: int


Program = Callable[[Stage], Any]


def _rag(stage: Stage) -> Any:
    return RAGQueryEngine(
        retriever=vector_retriever(stage, top_k=3),
        response_synthesizer=get_response_synthesizer(llm=stage.engines.model),
    )


def _strings(stage: Stage) -> Any:
    return RAGStringQueryEngine(
        retriever=vector_retriever(stage, top_k=3), llm=stage.engines.model, qa_prompt=QA,
        response_synthesizer=get_response_synthesizer(llm=stage.engines.model, response_mode="compact"),
    )  # fmt: skip


def _grading(stage: Stage) -> Any:
    return GradingQueryEngine(retriever=vector_retriever(stage, top_k=4), llm=stage.engines.model)


def _tree(stage: Stage) -> Any:
    return TreeQueryEngine(retriever=vector_retriever(stage, top_k=4), llm=stage.engines.model)


def _chatting(stage: Stage) -> Any:
    Settings.llm = stage.engines.model
    return ChattingQueryEngine(vector_retriever(stage, top_k=3))


def _hybrid(stage: Stage) -> Any:
    return HybridRetriever(vector_retriever(stage, top_k=3), keyword_retriever(stage))


def _rewriting(stage: Stage) -> Any:
    return RewritingRetriever(vector_retriever(stage, top_k=3), stage.engines.model)


def _nested(stage: Stage) -> Any:
    """An engine of the user's on a retriever of the user's."""
    return GradingQueryEngine(retriever=_rewriting(stage), llm=stage.engines.model)


def _stock_with_own(stage: Stage) -> Any:
    """A stock engine with a retriever and a postprocessor of the user's."""
    return RetrieverQueryEngine.from_args(
        _rewriting(stage), llm=stage.engines.model, node_postprocessors=[GradingPostprocessor(llm=stage.engines.model)]
    )


ENGINES: dict[str, Program] = {
    "rag": _rag, "strings": _strings, "grading": _grading, "tree": _tree, "chatting": _chatting, "nested": _nested,
    "stock with own": _stock_with_own,
}  # fmt: skip
RETRIEVERS: dict[str, Program] = {"hybrid": _hybrid, "rewriting": _rewriting}


def grading_postprocessor(stage: Stage) -> Any:
    return GradingPostprocessor(llm=stage.engines.model)


def found(count: int = 4) -> list[NodeWithScore]:
    """What a postprocessor may be given."""
    return [
        NodeWithScore(node=TextNode(text=f"Hive {i} {digest(str(i))[:6]}", id_=f"n{i}"), score=0.5)
        for i in range(count)
    ]


def texts(nodes: Sequence[NodeWithScore]) -> list[str]:
    return [node.get_content() for node in nodes]


__all__ = ["ENGINES", "RETRIEVERS", "Verdict", "found", "grading_postprocessor", "texts"]
