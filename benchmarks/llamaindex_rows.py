"""The pipelines of the LlamaIndex benchmark, each beside the same requests by hand."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from llama_index.core import PromptHelper, PromptTemplate, VectorStoreIndex
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.indices.utils import (
    default_format_node_batch_for_chat_fn,
    default_parse_choice_select_answer_fn,
)
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import ChatMessage
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor import LLMRerank
from llama_index.core.prompts.chat_prompts import (
    CHAT_CONTENT_CHOICE_SELECT_PROMPT,
    CHAT_REFINE_PROMPT,
    CHAT_TEXT_QA_PROMPT,
    CHAT_TREE_SUMMARIZE_PROMPT,
)
from llama_index.core.prompts.default_prompts import DEFAULT_HYDE_PROMPT
from llama_index.core.query_engine import SubQuestionQueryEngine, TransformQueryEngine
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.question_gen.prompts import DEFAULT_SUB_QUESTION_PROMPT_TMPL, build_tools_text
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode
from llama_index.core.tools import QueryEngineTool
from llamaindex_by_hand import Row, answered, engine_on, found, nearest, text_of
from llamaindex_models import Models, documents

from teola_plugin.demo.corpus import QUESTIONS
from teola_plugin.demo.llamaindex_rag import QUERIES, WINDOW_TOKENS, advanced
from teola_plugin.models.asking import aresults, ask

LEAF_TOKENS = 300
MARK = "\u241f"


def profile_rows(m: Models) -> Iterable[Row]:
    index = m.index(256)
    for make in (accumulate, tree_summarize, sub_questions):
        yield make(m, index)
    yield fusion(m, index, 256)
    yield fusion(m, m.index(1024), 1024)
    yield hyde(m, index)
    yield llm_rerank(m, index)
    yield ingestion(m)


def real_rows(m: Models) -> Iterable[Row]:
    for chunk_tokens in (256, 1024):
        yield fusion(m, m.index(chunk_tokens), chunk_tokens)
    yield ingestion(m)


def accumulate(m: Models, index: VectorStoreIndex) -> Row:
    """Twelve chunks, each answered from; LlamaIndex does it in turn unless told otherwise."""
    llm, retriever = m.llm(8), index.as_retriever(similarity_top_k=12)

    async def by_hand(question: str) -> str:
        nodes = await found(m, retriever, question)
        answers = await asyncio.gather(*(answered(llm, question, [node]) for node in nodes))
        return "\n---------------------\n".join(f"Response {n}: {text}" for n, text in enumerate(answers, 1))

    plain, concurrent = (engine_on(retriever, llm, "accumulate", use_async=use) for use in (False, True))
    return Row("accumulate over 12", plain, by_hand, concurrent)


def tree_summarize(m: Models, index: VectorStoreIndex) -> Row:
    """Leaves that need nothing of each other, and a root that needs all of them."""
    llm, retriever = m.llm(16), index.as_retriever(similarity_top_k=8)
    helper = PromptHelper(context_window=WINDOW_TOKENS, num_output=64, chunk_size_limit=LEAF_TOKENS)

    async def by_hand(question: str) -> str:
        texts = [text_of(node) for node in await found(m, retriever, question)]
        prompt = CHAT_TREE_SUMMARIZE_PROMPT.partial_format(query_str=question)
        while len(texts := helper.repack(prompt, texts, llm=llm)) > 1:
            texts = await asyncio.gather(*(llm.apredict(prompt, context_str=text) for text in texts))
        return await llm.apredict(prompt, context_str=texts[0])

    plain, concurrent = (
        engine_on(retriever, llm, "tree_summarize", use_async=use, prompt_helper=helper) for use in (False, True)
    )
    return Row("tree_summarize", plain, by_hand, concurrent)


def sub_questions(m: Models, index: VectorStoreIndex) -> Row:
    """Four questions, each for one of two tools; by hand asks each as soon as it is written."""
    writer, llm, retriever = m.llm(256, "sub_questions"), m.llm(16), index.as_retriever(similarity_top_k=2)

    def engine(*, use_async: bool) -> SubQuestionQueryEngine:
        tools = [
            QueryEngineTool.from_defaults(engine_on(retriever, llm, "compact"), f"notes_{n}", f"Half {n} of the notes")
            for n in range(2)
        ]
        return SubQuestionQueryEngine.from_defaults(
            tools, llm, LLMQuestionGenerator.from_defaults(writer), use_async=use_async, verbose=False,
            response_synthesizer=engine_on(retriever, llm, "compact")._response_synthesizer,
        )  # fmt: skip

    plain, concurrent = (engine(use_async=use) for use in (False, True))

    async def one(item: str) -> NodeWithScore:
        question = json.loads(item)["sub_question"]
        answer = await answered(llm, question, await found(m, retriever, question))
        return NodeWithScore(node=TextNode(text=f"Sub question: {question}\nResponse: {answer}"))

    async def by_hand(question: str) -> str:
        tools = build_tools_text(plain._metadatas)
        begun: list[asyncio.Task[NodeWithScore]] = []
        prompt = PromptTemplate(DEFAULT_SUB_QUESTION_PROMPT_TMPL)
        async for piece in await writer.astream_chat(prompt.format_messages(tools_str=tools, query_str=question)):
            items = re.findall(r"\{[^{}]*\}", str(piece.message.content))
            begun += [asyncio.create_task(one(item)) for item in items[len(begun) :]]
        return await answered(llm, question, await asyncio.gather(*begun))

    return Row("4 sub-questions", plain, by_hand, concurrent)


def fusion(m: Models, index: VectorStoreIndex, chunk_tokens: int) -> Row:
    """Three queries are written, four searched for; the best three chunks are answered from, one after the other."""
    llm, writer = m.llm(), m.llm(64, "lines:3")
    retriever = index.as_retriever(similarity_top_k=16)

    def refining(text: str, question: str, answer: str) -> dict[str, str]:
        return {"context_msg": text, "query_str": question, "existing_answer": answer}

    async def by_hand(question: str) -> str:
        begun = [asyncio.create_task(found(m, retriever, question))]
        async for piece in await writer.astream_complete(QUERIES.format(num_queries=3, query=question)):
            lines = piece.text.split("\n") if piece.delta == "" else piece.text.split("\n")[:-1]
            begun += [asyncio.create_task(found(m, retriever, line)) for line in lines[len(begun) - 1 :]]
        best = await m.reranker.apostprocess_nodes(fused(await asyncio.gather(*begun)), query_str=question)
        first, *others = map(text_of, best)
        text, _ = await asyncio.gather(
            llm.apredict(CHAT_TEXT_QA_PROMPT, context_str=first, query_str=question),
            warm([CHAT_REFINE_PROMPT.format_messages(**refining(text, question, MARK)) for text in others]),
        )
        for other in others:
            text = await llm.apredict(CHAT_REFINE_PROMPT, **refining(other, question, text))
        return text

    def fused(several: list[list[NodeWithScore]]) -> list[NodeWithScore]:
        nodes: dict[str, NodeWithScore] = {}
        for node in sorted((node for each in several for node in each), key=lambda node: -(node.score or 0.0)):
            nodes.setdefault(node.node_id, node)
        return list(nodes.values())[:48]

    async def warm(prompts: list[list[ChatMessage]]) -> None:
        """What stands before the existing answer is computed with the first prompt."""
        known = [llm.messages_to_prompt(messages).split(MARK)[0] for messages in prompts]
        await aresults(ask(llm.engine, "partial_prefilling", known, {}))

    plain, concurrent = (
        advanced(llm, writer, m.embedding, index.vector_store, m.reranker, use_async=use) for use in (False, True)
    )
    return Row(f"fusion, rerank, refine {chunk_tokens}", plain, by_hand, concurrent)


def hyde(m: Models, index: VectorStoreIndex) -> Row:
    """Eight queries on one event loop, which the transform of each would hold up."""
    llm, retriever = m.llm(16), index.as_retriever(similarity_top_k=3)
    transform = HyDEQueryTransform(m.llm())
    engine = TransformQueryEngine(engine_on(retriever, llm, "compact"), transform)

    async def one(question: str) -> str:
        own = asyncio.create_task(m.embedding.aget_query_embedding(question))
        text = await transform._llm.apredict(DEFAULT_HYDE_PROMPT, context_str=question)
        vectors = await asyncio.gather(m.embedding.aget_query_embedding(text), own)
        mean = [sum(numbers) / 2 for numbers in zip(*vectors, strict=True)]
        return await answered(llm, question, await nearest(retriever, question, mean))

    async def by_hand(questions: list[str]) -> list[str]:
        return await asyncio.gather(*map(one, questions))

    async def acall(engine: Any, questions: list[str]) -> list[Any]:
        return await asyncio.gather(*map(engine.aquery, questions))

    return Row(
        "HyDE, 8 at once", engine, by_hand, call=None, acall=acall,
        prepare=lambda: [f"{question} ({n})" for n in range(2) for question in QUESTIONS],
        seen=lambda answers: list(map(str, answers)),
    )  # fmt: skip


def llm_rerank(m: Models, index: VectorStoreIndex) -> Row:
    """Six batches of nodes, judged in turn, or four at once in a coroutine."""
    llm, judge, retriever = m.llm(16), m.llm(64, "choices"), index.as_retriever(similarity_top_k=24)
    reranker = LLMRerank(llm=judge, choice_batch_size=4, top_n=3)

    async def judged(question: str, batch: Sequence[NodeWithScore]) -> list[NodeWithScore]:
        shown = default_format_node_batch_for_chat_fn([node.node for node in batch])
        text = await judge.apredict(CHAT_CONTENT_CHOICE_SELECT_PROMPT, context_messages=shown, query_str=question)
        chosen = zip(*default_parse_choice_select_answer_fn(text, len(batch)), strict=True)
        return [NodeWithScore(node=batch[n - 1].node, score=score) for n, score in chosen]

    async def by_hand(question: str) -> str:
        nodes = await found(m, retriever, question)
        batches = [nodes[at : at + 4] for at in range(0, len(nodes), 4)]
        chosen = [node for each in await asyncio.gather(*(judged(question, b) for b in batches)) for node in each]
        return await answered(llm, question, sorted(chosen, key=lambda node: node.score or 0.0, reverse=True)[:3])

    return Row("LLMRerank, 6 batches", engine_on(retriever, llm, "compact", node_postprocessors=[reranker]), by_hand)


def ingestion(m: Models) -> Row:
    """Documents split (for real), embedded, and added to Chroma (for real)."""
    splitter = SentenceSplitter(chunk_size=256, chunk_overlap=0, id_func=lambda n, document: f"{document.node_id}-{n}")
    store = m.store("ingested")
    pipeline = IngestionPipeline(transformations=[splitter, m.bulk_embedding], vector_store=store)

    def prepare() -> list[Any]:
        pipeline.cache.clear()
        if store._collection.count():
            store.clear()
        return documents()

    def stored(_: Any) -> Any:
        rows = store._collection.get(include=["documents", "metadatas", "embeddings"])
        columns = (rows["ids"], rows["documents"], rows["metadatas"], rows["embeddings"].tolist())
        return sorted(zip(*columns, strict=True), key=lambda row: row[0])

    async def by_hand(given: list[Any]) -> None:
        added: asyncio.Task[Any] | None = None
        for at in range(0, len(given), 6):
            nodes = await asyncio.to_thread(splitter.get_nodes_from_documents, given[at : at + 6])
            added = asyncio.create_task(add(nodes, added))
        assert added is not None
        await added

    async def add(nodes: list[Any], before: asyncio.Task[Any] | None) -> None:
        texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        vectors = await m.bulk_embedding.aget_text_embedding_batch(texts)
        if before is not None:
            await before
        for node, vector in zip(nodes, vectors, strict=True):
            node.embedding = vector
        await asyncio.to_thread(store.add, nodes)

    async def arun(pipeline: Any, given: list[Any]) -> Any:
        return await pipeline.arun(documents=given)

    return Row(
        "ingestion of 192 nodes", pipeline, by_hand, call=lambda pipeline, given: pipeline.run(documents=given),
        acall=arun, prepare=prepare, seen=stored,
    )  # fmt: skip
