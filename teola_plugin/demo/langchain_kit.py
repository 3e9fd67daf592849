"""LangChain models and a store for the demo's pipelines."""

from __future__ import annotations

from typing import Any

from langchain_chroma import Chroma
from langchain_core.documents.compressor import BaseDocumentCompressor
from langchain_core.embeddings import Embeddings

from teola_plugin.demo.langchain_rag import advanced, naive
from teola_plugin.demo.parts import Parts, Sizes, chroma_without
from teola_plugin.demo.tiny_model import minilm_path, tiny_cross_encoder
from teola_plugin.models.langchain import EngineChatModel, EngineEmbeddings, EngineReranker


class LangChainKit:
    """A store of all passages, and the pipelines on the store."""

    def __init__(self, parts: Parts, sizes: Sizes, collection: str) -> None:
        self.parts = parts
        self.llm = EngineChatModel(engine=parts.llm, settings=dict(parts.answer))
        self.writer = EngineChatModel(engine=parts.llm, settings=dict(parts.queries))
        self.embeddings = _embeddings(parts.kind)
        self.reranker = _reranker(parts.kind, sizes.top_n)
        client = chroma_without(collection)
        self.store = Chroma(collection, self.embeddings, client=client)
        self.store.add_texts(
            [p.text for p in sizes.passages],
            [{"source": p.source} for p in sizes.passages],
            ids=[str(i) for i in range(len(sizes.passages))],
        )

    def pipeline(self, app: str, *, streaming: bool = False, use_async: bool = False) -> Any:
        """The pipeline `app`; in LangChain every pipeline streams and runs its branches side by side."""
        if app == "advanced":
            return advanced(self.llm, self.writer, self.store, self.reranker)
        return naive(self.llm, self.store)


def _embeddings(kind: str) -> Embeddings:
    if kind == "profile":
        from teola_plugin.profile import PAPER
        from teola_plugin.runtime.engines.simulated import ProfileEmbedding

        return EngineEmbeddings(engine=ProfileEmbedding(64, PAPER["embedding"]))
    from langchain_huggingface import HuggingFaceEmbeddings

    return HuggingFaceEmbeddings(model_name=str(minilm_path()))


def _reranker(kind: str, top_n: int) -> BaseDocumentCompressor:
    if kind == "profile":
        from teola_plugin.profile import PAPER
        from teola_plugin.runtime.engines.simulated import ProfileReranker

        return EngineReranker(engine=ProfileReranker(PAPER["reranking"]), top_n=top_n)
    from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
    from langchain_community.cross_encoders import HuggingFaceCrossEncoder

    return CrossEncoderReranker(model=HuggingFaceCrossEncoder(model_name=str(tiny_cross_encoder())), top_n=top_n)
