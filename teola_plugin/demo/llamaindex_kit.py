"""LlamaIndex models and a store for the demo's pipelines."""

from __future__ import annotations

from typing import Any

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.postprocessor import SentenceTransformerRerank
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import TextNode
from llama_index.vector_stores.chroma import ChromaVectorStore

from teola_plugin.demo.llamaindex_rag import advanced, naive
from teola_plugin.demo.parts import Parts, Sizes, chroma_without
from teola_plugin.demo.tiny_model import minilm_path, tiny_cross_encoder
from teola_plugin.models.llamaindex import EngineEmbedding, EngineLLM, EngineRerank


class LlamaIndexKit:
    """A store of all passages, and the query engines on the store."""

    def __init__(self, parts: Parts, sizes: Sizes, collection: str) -> None:
        self.parts = parts
        self.llm = EngineLLM(engine=parts.llm, settings=dict(parts.answer))
        self.writer = EngineLLM(engine=parts.llm, settings=dict(parts.queries))
        self.embedding = _embedding(parts.kind)
        self.reranker = _reranker(parts.kind, sizes.top_n)
        client = chroma_without(collection)
        self.store = ChromaVectorStore(chroma_collection=client.create_collection(collection))
        nodes = [TextNode(text=p.text, metadata={"source": p.source}, id_=str(i)) for i, p in enumerate(sizes.passages)]
        storage = StorageContext.from_defaults(vector_store=self.store)
        VectorStoreIndex(nodes, storage_context=storage, embed_model=self.embedding)

    def pipeline(self, app: str, *, streaming: bool = False, use_async: bool = False) -> Any:
        """The query engine `app`."""
        if app == "advanced":
            return advanced(
                self.llm,
                self.writer,
                self.embedding,
                self.store,
                self.reranker,
                streaming=streaming,
                use_async=use_async,
            )
        return naive(self.llm, self.embedding, self.store, streaming=streaming, use_async=use_async)


def _embedding(kind: str) -> BaseEmbedding:
    if kind == "profile":
        from teola_plugin.profile import PAPER
        from teola_plugin.runtime.engines.simulated import ProfileEmbedding

        return EngineEmbedding(engine=ProfileEmbedding(64, PAPER["embedding"]))
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    return HuggingFaceEmbedding(str(minilm_path()))


def _reranker(kind: str, top_n: int) -> BaseNodePostprocessor:
    if kind == "profile":
        from teola_plugin.profile import PAPER
        from teola_plugin.runtime.engines.simulated import ProfileReranker

        return EngineRerank(engine=ProfileReranker(PAPER["reranking"]), top_n=top_n)
    return SentenceTransformerRerank(model=str(tiny_cross_encoder()), top_n=top_n, device="cpu")
