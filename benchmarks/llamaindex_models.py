"""The models and stores that the LlamaIndex benchmark stands on: by published profiles, or real ones on the CPU."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor import SentenceTransformerRerank
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import Document, TextNode
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from llama_index.vector_stores.chroma import ChromaVectorStore

from teola_plugin import runtime
from teola_plugin.demo.corpus import passages
from teola_plugin.demo.parts import chroma_without, llm_parts
from teola_plugin.demo.tiny_model import minilm_path, tiny_cross_encoder
from teola_plugin.models.llamaindex import EngineEmbedding, EngineLLM, EngineRerank
from teola_plugin.profile import PAPER, PAPER_LLM
from teola_plugin.runtime.engines.prefix_cache import PrefixCache
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM, ProfileReranker
from teola_plugin.runtime.engines.simulated_text import complete

TOPICS = ("the smallest item of a heap", "a deque of a fixed length", "the cache of a function", "a temporary file")
ANSWER_TOKENS = 32
INGESTED_NODES, DOCUMENT_NODES = 192, 8
LONG_CHARACTERS = 600
"""Two such texts are more than 256 tokens."""


@dataclass(frozen=True)
class Models:
    """`llm` makes a model of an answer's length in tokens and, where it is to write a list, of the list's shape.

    `bulk_embedding` is the same, sooner, for many texts at a time. `forget`: the LLM's prefix cache is emptied.
    """

    llm: Callable[..., LLM]
    embedding: BaseEmbedding
    bulk_embedding: BaseEmbedding
    reranker: BaseNodePostprocessor
    forget: Callable[[], None] = lambda: None

    def store(self, name: str) -> ChromaVectorStore:
        """An empty one."""
        collection = chroma_without(name).create_collection(name, embedding_function=None)
        return ChromaVectorStore(chroma_collection=collection)

    def index(self, chunk_tokens: int) -> VectorStoreIndex:
        """An index of the standard library's docstrings in chunks of so many tokens."""
        storage = StorageContext.from_defaults(vector_store=self.store(f"chunks_{chunk_tokens}"))
        nodes = [TextNode(text=text, id_=str(n)) for n, text in enumerate(chunks(chunk_tokens))]
        VectorStoreIndex(nodes, storage_context=storage, embed_model=self.bulk_embedding)
        return VectorStoreIndex.from_vector_store(storage.vector_store, embed_model=self.embedding)


@contextmanager
def profile_models() -> Iterator[Models]:
    """Published latencies. Embedding in bulk: 28 ms a batch and 1 ms a text, as logged by the paper's prototype."""
    cache = PrefixCache()
    engine = ProfileLLM("llm", PAPER_LLM["7b"], cache=cache, reply=written)

    def llm(max_tokens: int = ANSWER_TOKENS, shape: str = "") -> LLM:
        return EngineLLM(engine=engine, max_tokens=max_tokens, settings={"shape": shape} if shape else {})

    yield Models(
        llm,
        EngineEmbedding(engine=ProfileEmbedding(64, PAPER["embedding"])),
        EngineEmbedding(engine=ProfileEmbedding(64, PAPER["embedding_logs"], name="bulk_embedder")),
        EngineRerank(engine=ProfileReranker(PAPER["reranking"]), top_n=3),
        cache.clear,
    )


@contextmanager
def real_models() -> Iterator[Models]:
    """vLLM with the tiny model, MiniLM and a tiny cross-encoder."""
    parts = llm_parts("real")

    def llm(max_tokens: int = ANSWER_TOKENS, shape: str = "") -> LLM:
        return EngineLLM(engine=parts.llm, settings=dict(parts.queries if shape else parts.answer))

    embedding = HuggingFaceEmbedding(str(minilm_path()))
    reranker = SentenceTransformerRerank(model=str(tiny_cross_encoder()), top_n=3, device="cpu")
    yield Models(llm, embedding, embedding, reranker, partial(_forget_prefixes, parts.llm))


def _forget_prefixes(engine: Any) -> None:
    """Every question is a new one to vLLM, too."""

    async def forget() -> None:
        await engine.start()
        while not await engine._core.llm.reset_prefix_cache():  # noqa: ASYNC110  not while a request holds a block
            await asyncio.sleep(0.01)

    asyncio.run_coroutine_threadsafe(forget(), runtime.host.loop).result()


def written(prompt: str, settings: Mapping[str, Any]) -> str:
    """What the simulated model says: sub-questions as JSON, choices among documents, else words without meaning."""
    match settings.get("shape"):
        case "sub_questions":
            items = [
                {"sub_question": f"What is {topic}?", "tool_name": f"notes_{n % 2}"} for n, topic in enumerate(TOPICS)
            ]
            return f"```json\n{json.dumps({'items': items}, indent=4)}\n```"
        case "choices":
            draw = random.Random(prompt)
            return "\n".join(f"Doc: {n}, Relevance: {draw.randint(1, 10)}" for n in (1, 3))
    return str(complete(prompt, settings))


@cache
def chunks(chunk_tokens: int) -> list[str]:
    """The text of the corpus three times, in other orders, so that there are enough of the large chunks."""
    found: list[str] = []
    for turn in range(3):
        texts = [p.text for p in passages(240)]
        random.Random(turn).shuffle(texts)
        found += SentenceSplitter(chunk_size=chunk_tokens, chunk_overlap=0).split_text("\n\n".join(texts))
    return found


def documents() -> list[Document]:
    """What is ingested: of the same ids each time, and of texts so long that a splitter makes a node of each."""
    texts = [text for text in chunks(256) if len(text) > LONG_CHARACTERS][:INGESTED_NODES]
    groups = [texts[at : at + DOCUMENT_NODES] for at in range(0, INGESTED_NODES, DOCUMENT_NODES)]
    return [Document(text="\n\n".join(group), id_=f"d{n}") for n, group in enumerate(groups)]
