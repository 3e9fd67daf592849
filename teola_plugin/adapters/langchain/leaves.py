"""LangChain components on known models and stores, as leaves; and their results from the engines' values.

    search(store, k=4) -> Leaf                         # spec, op, settings, payload, as the interception sees them
    documents_of(store, hit, k=4) -> [Document, ...]   # by the store's own code, from the engine's value

Each function returns None for a component that is not stock (a subclass with methods of its own, several processes),
which is then left to the framework.
"""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from teola_plugin.adapters import chroma, sentence_transformers
from teola_plugin.adapters.early import is_harmless
from teola_plugin.adapters.leaf import Leaf, as_vector, is_stock
from teola_plugin.adapters.rehearsal import outcome, rehearse

SEARCHES = (
    "similarity_search", "similarity_search_with_score", "similarity_search_with_relevance_scores",
    "max_marginal_relevance_search",
)  # fmt: skip
"""The search methods of a store for a single text, each with a single query to the collection."""

_CHROMA = ("langchain_chroma.vectorstores", "langchain_community.vectorstores.chroma")
"""The modules of stores on a Chroma collection."""

# --- embedding ----------------------------------------------------------------------------------------------


def query_embedding(embeddings: Any) -> Leaf | None:
    """Return the leaf of `embeddings.embed_query(text)`; `payload(text)`."""
    if not _is_known(embeddings):
        return None
    return _embedding(embeddings, embeddings.query_encode_kwargs or embeddings.encode_kwargs)


def _is_known(embeddings: Any) -> bool:
    try:
        from langchain_huggingface import HuggingFaceEmbeddings
    except ImportError:
        return False
    stock = is_stock(embeddings, HuggingFaceEmbeddings)
    return stock and not embeddings.multi_process


def _embedding(embeddings: Any, encode_kwargs: dict[str, Any]) -> Leaf | None:
    spec = sentence_transformers.spec_of(embeddings._client)
    settings = sentence_transformers.embedding_settings(embeddings._client, **encode_kwargs)
    if spec is None or settings is None:
        return None
    return Leaf(spec, "embedding", settings, lambda text: str(text).replace("\n", " "))


# --- searching ----------------------------------------------------------------------------------------------


def search(store: Any, search: str = "similarity_search", **search_kwargs: Any) -> Leaf | None:
    """Return the collection query made by `store.<search>(text, **search_kwargs)`; `payload(vector)`.

    The vector is the result of `store.embeddings.embed_query(text)`.

    Raises: the framework's errors for such arguments.
    """
    if search not in SEARCHES or not is_chroma(store) or chroma.spec_of(store._collection) is None:
        return None
    asked = rehearse(lambda: getattr(_answered(store), search)("", **search_kwargs))
    if [a.op for a in asked] != ["searching"]:
        return None
    return Leaf(asked[0].spec, "searching", asked[0].settings, as_vector)


def documents_of(
    store: Any, hit: Any, search: str = "similarity_search", vector: Any = (0.0,), **search_kwargs: Any
) -> list[Any]:
    """Return the result of `store.<search>` from the columns found: documents, or (document, score) pairs.

    Only `max_marginal_relevance_search` looks at `vector`.
    """
    answered = _answered(store, vector)
    return outcome(lambda: list(getattr(answered, search)("", **search_kwargs)), searching=[hit])


def is_chroma(store: Any) -> bool:
    """Whether the store is a stock store on a Chroma collection, with searches free of user code."""
    loaded = (vars(sys.modules.get(module, types)).get("Chroma") for module in _CHROMA)
    cls = next((each for each in loaded if each is not None and isinstance(store, each)), None)
    scores = None if cls is None else store.override_relevance_score_fn
    is_plain = cls is not None and is_stock(store, cls) and (scores is None or is_harmless(scores))
    return is_plain and store._embedding_function is not None


def _answered(store: Any, vector: Any = (0.0,)) -> Any:
    """Return a copy of the store with a known embedding for any query, so no model is asked."""
    double = copy.copy(store)
    double._embedding_function = _Known(vector)
    return double


class _Known(Embeddings):
    def __init__(self, vector: Any) -> None:
        self._vector = as_vector(vector).tolist()

    def embed_query(self, text: str) -> list[float]:
        return list(self._vector)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [list(self._vector) for _ in texts]


# --- reranking ----------------------------------------------------------------------------------------------


def reranking(compressor: Any) -> Leaf | None:
    """Return the score requested by `compressor.compress_documents(documents, query)`; `payload(query, document)`."""
    if not _is_reranker(compressor):
        return None
    spec = sentence_transformers.spec_of(compressor.model.client)
    settings = sentence_transformers.reranking_settings(compressor.model.client)
    if spec is None or settings is None:
        return None
    return Leaf(spec, "reranking", settings, lambda query, document: (str(query), str(document.page_content)))


def reranked(compressor: Any, query: str, documents: Sequence[Document], scores: Sequence[Any]) -> list[Document]:
    """Return the documents kept by the compressor, given the engine's score of each."""
    if not documents:  # the model gets no pairs, and the result is empty
        return []
    return outcome(lambda: list(compressor.compress_documents(list(documents), query)), reranking=scores)


def _is_reranker(compressor: Any) -> bool:
    try:
        from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
        from langchain_community.cross_encoders import HuggingFaceCrossEncoder
    except ImportError:
        return False
    return is_stock(compressor, CrossEncoderReranker) and is_stock(compressor.model, HuggingFaceCrossEncoder)
