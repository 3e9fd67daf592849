"""A row of the LlamaIndex benchmark, and what its requests by hand are made of: asyncio without a framework."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llama_index.core import PromptHelper, get_response_synthesizer
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import LLM
from llama_index.core.prompts.chat_prompts import CHAT_TEXT_QA_PROMPT
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from llamaindex_models import Models

from teola_plugin.demo.corpus import QUESTIONS
from teola_plugin.demo.llamaindex_rag import WINDOW_TOKENS

QUESTION = QUESTIONS[0]
Act = Callable[[Any], Any]
AsyncAct = Callable[[Any], Awaitable[Any]]


def ask_engine(engine: Any, given: Any) -> Any:
    return engine.query(given)


async def aask_engine(engine: Any, given: Any) -> Any:
    return await engine.aquery(given)


@dataclass(frozen=True)
class Row:
    """A pipeline, and the same by hand, which takes what `prepare` returns, as `call` and `acall` do.

    `concurrent`: the pipeline with LlamaIndex's `use_async=True`. `seen`: what by hand must come to as well, read right
    after each call.
    """

    name: str
    pipeline: Any
    by_hand: AsyncAct
    concurrent: Any = None
    call: Callable[[Any, Any], Any] | None = ask_engine
    acall: Callable[[Any, Any], Awaitable[Any]] = aask_engine
    prepare: Callable[[], Any] = lambda: QUESTION
    seen: Act = str


def text_of(node: NodeWithScore) -> str:
    return node.node.get_content(metadata_mode=MetadataMode.LLM)


async def found(m: Models, retriever: BaseRetriever, text: str) -> list[NodeWithScore]:
    return await nearest(retriever, text, await m.embedding.aget_query_embedding(text))


async def nearest(retriever: BaseRetriever, text: str, vector: list[float]) -> list[NodeWithScore]:
    """Neither Chroma nor its retriever has a coroutine that does not hold up the loop."""
    return await asyncio.to_thread(retriever.retrieve, QueryBundle(text, embedding=vector))


async def answered(llm: LLM, question: str, nodes: Sequence[NodeWithScore]) -> str:
    """All of them fit into one prompt."""
    context = "\n\n".join(text_of(node).strip() for node in nodes)
    return await llm.apredict(CHAT_TEXT_QA_PROMPT, context_str=context, query_str=question)


def engine_on(retriever: BaseRetriever, llm: LLM, mode: str, *, use_async: bool = False, **more: Any) -> Any:
    helper = more.pop("prompt_helper", None) or PromptHelper(context_window=WINDOW_TOKENS, num_output=64)
    synthesizer = get_response_synthesizer(llm=llm, response_mode=mode, use_async=use_async, prompt_helper=helper)  # type: ignore[arg-type]
    return RetrieverQueryEngine(retriever, synthesizer, **more)
