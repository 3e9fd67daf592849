"""LlamaIndex components on models and stores that we know, as leaves; and what they make of the values.

    search(store, VectorStoreQuery(...)) -> Leaf             # spec, op, settings, payload, as the seam sees
    nodes_of(store, hit, query) -> VectorStoreQueryResult    # by the store's own code, from what was found

Each function answers None for a component that is not stock, which is then left to the framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryResult

from teola_plugin.adapters import chroma, sentence_transformers
from teola_plugin.adapters.leaf import Leaf, as_vector, is_stock
from teola_plugin.adapters.llamaindex.rehearsal import fresh, outcome, rehearse

METHODS = (
    "_get_query_embedding", "_get_text_embedding", "_get_text_embeddings", "_embed", "_embed_with_retry",
)  # fmt: skip
"""What may not be overridden in an embedding model."""

# --- embedding ----------------------------------------------------------------------------------------------


def query_embedding(embedding: Any) -> Leaf | None:
    """`embedding.get_query_embedding(text)`; `payload(text)`."""
    return _embedding(embedding, "query")


def text_embedding(embedding: Any) -> Leaf | None:
    """One text of `embedding.get_text_embedding_batch(texts)`; `payload(text)`."""
    return _embedding(embedding, "text")


def _embedding(embedding: Any, prompt_name: str) -> Leaf | None:
    try:
        from llama_index.embeddings.huggingface import HuggingFaceEmbedding
    except ImportError:
        return None
    if not is_stock(embedding, HuggingFaceEmbedding, *METHODS) or embedding._parallel_process:
        return None
    spec = sentence_transformers.spec_of(embedding._model)
    settings = sentence_transformers.embedding_settings(
        embedding._model,
        prompt_name=prompt_name,
        normalize_embeddings=embedding.normalize,
        batch_size=embedding.embed_batch_size,
    )
    return Leaf(spec, "embedding", settings, str) if spec is not None and settings is not None else None


# --- searching ----------------------------------------------------------------------------------------------


def search(store: Any, query: VectorStoreQuery, **kwargs: Any) -> Leaf | None:
    """The search that `store.query(query, **kwargs)` asks for, whatever its vector; `payload(vector)`.

    Raises: what the framework raises for such arguments.
    """
    if not _is_chroma(store) or chroma.spec_of(store._collection) is None:
        return None
    asked = rehearse(lambda: store.query(replace(query, query_embedding=[1.0]), **kwargs))
    if [a.op for a in asked] != ["searching"]:
        return None
    return Leaf(asked[0].spec, "searching", asked[0].settings, as_vector)


def nodes_of(store: Any, hit: Any, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
    """What `store.query(query, **kwargs)` makes of the columns that the engine found."""
    if not query.query_embedding:  # only the mode MMR looks at it
        query = replace(query, query_embedding=[1.0])
    result: VectorStoreQueryResult = outcome(lambda: store.query(query, **kwargs), searching=[hit])
    return result


def _is_chroma(store: Any) -> bool:
    try:
        from llama_index.vector_stores.chroma import ChromaVectorStore
    except ImportError:
        return False
    return is_stock(store, ChromaVectorStore, "query", "_query", "_mmr_search")


# --- reranking ----------------------------------------------------------------------------------------------


def reranking(reranker: Any) -> Leaf | None:
    """A score that `reranker.postprocess_nodes(nodes, query_bundle)` asks for; `payload(query, node)`."""
    try:
        from llama_index.core.postprocessor import SentenceTransformerRerank
    except ImportError:
        return None
    if not is_stock(reranker, SentenceTransformerRerank, "_postprocess_nodes"):
        return None
    spec = sentence_transformers.spec_of(reranker._model)
    settings = sentence_transformers.reranking_settings(reranker._model)
    return Leaf(spec, "reranking", settings, _pair) if spec is not None and settings is not None else None


def _pair(query: QueryBundle | str, node: NodeWithScore) -> tuple[str, str]:
    text = query.query_str if isinstance(query, QueryBundle) else query
    return str(text), node.node.get_content(metadata_mode=MetadataMode.EMBED)


def reranked(
    reranker: Any, query: QueryBundle | str, nodes: Sequence[NodeWithScore], scores: Sequence[Any]
) -> list[NodeWithScore]:
    """What the reranker keeps of the nodes, given the engine's score of each; the nodes stay as they are."""
    bundle = query if isinstance(query, QueryBundle) else QueryBundle(query)
    return outcome(lambda: list(reranker._postprocess_nodes(fresh(nodes), bundle)), reranking=scores)
