"""Retrievers: a search is the embedding of the query, a look-up in the store, and documents made of the hits.

Compound retrievers (several queries, several retrievers, reranking) are read as their steps, with the retriever's own
methods for the glue; their subclasses are left to the framework.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import VectorStoreRetriever

from teola_plugin.adapters.early import is_free_of_code
from teola_plugin.adapters.langchain import leaves
from teola_plugin.adapters.langchain.draft import Draft
from teola_plugin.adapters.langchain.values import Record, Symbol, Untraceable, Value
from teola_plugin.adapters.leaf import Leaf, is_stock
from teola_plugin.adapters.rehearsal import rehearse
from teola_plugin.graph_builder import unique

Trace = Callable[[Runnable[Any, Any], Symbol, str], Symbol]

_SEARCHES = {
    "similarity": "similarity_search",
    "similarity_score_threshold": "similarity_search_with_relevance_scores",
    "mmr": "max_marginal_relevance_search",
}


def trace_retriever(draft: Draft, retriever: BaseRetriever, given: Symbol, name: str, trace: Trace) -> Symbol:
    """Return the documents that a retriever finds. Raises: Untraceable."""
    query = draft.value(given, "query")
    if _is(retriever, "VectorStoreRetriever", "langchain_core.vectorstores.base"):
        return _search(draft, retriever, query, name)  # type: ignore[arg-type]
    if _is(retriever, "ContextualCompressionRetriever", "langchain_classic.retrievers.contextual_compression"):
        return _compressed(draft, retriever, query, name, trace)
    if _is(retriever, "MultiQueryRetriever", "langchain_classic.retrievers.multi_query"):
        return _multi_query(draft, retriever, query, name, trace)
    if _is(retriever, "EnsembleRetriever", "langchain_classic.retrievers.ensemble"):
        return _ensemble(draft, retriever, query, name, trace)
    if _is(retriever, "MergerRetriever", "langchain_classic.retrievers.merger_retriever"):
        return _merged(draft, retriever, query, name, trace)
    if _is(retriever, "MultiVectorRetriever", "langchain_classic.retrievers.multi_vector"):
        return _parents(draft, retriever, query, name)
    if _is(retriever, "SelfQueryRetriever", "langchain_classic.retrievers.self_query.base"):
        return _self_query(draft, retriever, query, name, trace)
    raise Untraceable("TB105", type(retriever).__name__)


def _is(retriever: BaseRetriever, name: str, module: str) -> bool:
    """Whether the retriever is of the class, or of a subclass with the same search."""
    cls = getattr(sys.modules.get(module), name, None)
    return isinstance(cls, type) and is_stock(retriever, cls)


# --- leaves ----------------------------------------------------------------------------------------------------------


def _query_embedding(embeddings: Any) -> Leaf | None:
    """Return the engine request of `embeddings.embed_query(text)`."""
    if embeddings is None:
        return None
    if not _is_ours(embeddings):
        return leaves.query_embedding(embeddings)
    ((spec, op, payload, settings),) = rehearse(lambda: embeddings.embed_query("a\nb"))
    return Leaf(spec, op, settings, lambda text: text if payload == "a\nb" else str(text).replace("\n", " "))


def _reranking(compressor: Any) -> Leaf | None:
    """Return the engine request of `compressor.compress_documents(documents, query)`, for each document."""
    if not _is_ours(compressor):
        return leaves.reranking(compressor)
    ((spec, op, _, settings),) = rehearse(lambda: compressor.compress_documents([Document("a")], "b"))
    return Leaf(spec, op, settings, lambda query, document: (query, document.page_content))


def _is_ours(component: Any) -> bool:
    """Whether the component is our own model, which only asks an engine."""
    return type(component).__module__.startswith("teola_plugin.models.")


# --- one search ------------------------------------------------------------------------------------------------------


def _search(draft: Draft, retriever: VectorStoreRetriever, query: Value, name: str) -> Value:
    store, search = retriever.vectorstore, _SEARCHES[retriever.search_type]
    settings = dict(retriever.search_kwargs)
    hit, vector = _hit(draft, store, search, settings, query)
    if retriever.search_type == "similarity_score_threshold":  # this search logs and warns about scores: once is enough
        return draft.await_run(name or "docs", retriever, "documents", [hit], None, is_pure=True)

    def documents(hit: Any, vector: Sequence[float] = (0.0,)) -> list[Any]:
        return leaves.documents_of(store, hit, search, vector, **settings)

    args = (hit, vector) if retriever.search_type == "mmr" else (hit,)
    return draft.call(
        name or "docs", "documents", documents, *args, identity=("documents", id(retriever)), lists=1,
        holds="documents", is_total=True,
    )  # fmt: skip


def _hit(draft: Draft, store: Any, search: str, settings: dict[str, Any], query: Value) -> tuple[Value, Value]:
    """Return the hits and the query vector of a search."""
    if not is_free_of_code(settings):
        raise Untraceable("TB105", "its arguments are objects of the user's")
    if not leaves.is_chroma(store):  # only the store knows its embedding model
        raise Untraceable("TB105", type(store).__name__)
    embedding = _query_embedding(store.embeddings)
    searching = leaves.search(store, search, **settings) if embedding is not None else None
    if embedding is None or searching is None:
        raise Untraceable("TB105", f"{type(store).__name__} with {type(store.embeddings).__name__}")
    if embedding.payload("a\nb") != "a\nb" and not draft.is_one_line(query):
        query = draft.call(
            f"{query.name}_line", "one_line", embedding.payload, query, identity=("line", embedding.spec.key),
            is_total=True,
        )  # fmt: skip
    vector = draft.ask("q", "embedding", embedding.spec, query, settings=embedding.settings)
    resource = unique(str(getattr(getattr(store, "_collection", None), "name", "store")), ())
    hit = draft.ask("hit", "searching", searching.spec, vector, settings=searching.settings, reads=(resource,))
    return hit, vector


def _parents(draft: Draft, retriever: Any, query: Value, name: str) -> Value:
    """Search the pieces early; their parent documents are in a user's store, asked only once."""
    hit, _ = _hit(draft, retriever.vectorstore, _SEARCHES[retriever.search_type], dict(retriever.search_kwargs), query)
    draft.leave("TB105", retriever, "what it found is looked up in its docstore")
    return draft.await_run(name or "docs", retriever, "parents", [hit], None, is_pure=True)


# --- compound retrievers ---------------------------------------------------------------------------------------------


def _compressed(draft: Draft, retriever: Any, query: Value, name: str, trace: Trace) -> Value:
    compressor = retriever.base_compressor
    leaf = _reranking(compressor)
    if leaf is None:
        raise Untraceable("TB105", f"{type(compressor).__name__} is no reranker we know")
    docs = trace(retriever.base_retriever, query, "docs")
    if not isinstance(docs, Value) or not docs.is_list:
        raise Untraceable("TB105", "its documents are made by something we cannot read")
    each = replace(docs, level=docs.level + 1)
    texts = passages(draft, each)
    scores = draft.ask("scores", "reranking", leaf.spec, query, texts, settings=leaf.settings)
    scores = replace(scores, level=docs.level)

    def top(query: str, docs: Sequence[Document], scores: Sequence[Any]) -> list[Document]:
        return leaves.reranked(compressor, query, docs, scores)

    return draft.call(
        name or "top", "top", top, query, docs, scores, identity=("top", id(compressor)), lists=1, holds="documents",
        is_total=True,
    )  # fmt: skip


def passages(draft: Draft, docs: Value) -> Value:
    """Return the texts of documents."""
    return draft.call("passages", "passage", page_content, docs, identity="passage", holds="text", is_total=True)


def page_content(document: Document) -> str:
    """Return the text of a document."""
    return document.page_content


def _multi_query(draft: Draft, retriever: Any, query: Value, name: str, trace: Trace) -> Value:
    queries = trace(retriever.llm_chain, Record({"question": query}), "queries")
    if not isinstance(queries, Value):
        raise Untraceable("TB105", "its queries are made by something we cannot read")
    if retriever.include_original:
        queries = draft.call(
            "all_queries", "with_original", _with_original, queries, query, identity="with_original", lists=1,
            is_total=True,
        )  # fmt: skip
    item = draft.items(queries)
    draft.level += 1
    found = trace(retriever.retriever, item, "docs")
    draft.level -= 1
    if not isinstance(found, Value) or found.level != item.level or draft.is_untold(found):
        raise Untraceable("TB105", "its documents are made by something we cannot read")

    def union(lists: Sequence[Sequence[Document]]) -> list[Document]:
        united: list[Document] = retriever.unique_union([d for docs in lists for d in docs])
        return united

    found = replace(found, level=item.level - 1)
    return draft.call(
        name or "union", "union", union, found, identity=("union", id(retriever)), lists=1, holds="documents",
        is_total=True,
    )  # fmt: skip


def _with_original(queries: Sequence[str], query: str) -> list[str]:
    return [*queries, query]


def _ensemble(draft: Draft, retriever: Any, query: Value, name: str, trace: Trace) -> Value:
    def fusion(*lists: Sequence[Document]) -> list[Document]:
        fused: list[Document] = retriever.weighted_reciprocal_rank([list(docs) for docs in lists])
        return fused

    found = _found_by_each(retriever.retrievers, query, trace)
    return draft.call(
        name or "fused", "fusion", fusion, *found, identity=("fusion", id(retriever)), lists=1, holds="documents",
        is_total=True,
    )  # fmt: skip


def _merged(draft: Draft, retriever: Any, query: Value, name: str, trace: Trace) -> Value:
    def merge(*lists: Sequence[Document]) -> list[Document]:
        from langchain_classic.retrievers import MergerRetriever

        double = MergerRetriever.model_construct(retrievers=[_Found(docs) for docs in lists])
        return double.merge_documents("", CallbackManagerForRetrieverRun.get_noop_manager())

    found = _found_by_each(retriever.retrievers, query, trace)
    return draft.call(
        name or "merged", "merge", merge, *found, identity=("merge", id(retriever)), lists=1, holds="documents",
        is_total=True,
    )  # fmt: skip


def _found_by_each(retrievers: Sequence[BaseRetriever], query: Value, trace: Trace) -> list[Value]:
    found = [trace(r, query, "docs") for r in retrievers]
    values = [f for f in found if isinstance(f, Value)]
    if len(values) < len(found):
        raise Untraceable("TB105", "its documents are made by something we cannot read")
    return values


@dataclass(frozen=True, slots=True)
class _Found:
    """A stand-in for a retriever after its search."""

    docs: Sequence[Document]

    def invoke(self, query: str, config: Any = None) -> Sequence[Document]:
        return self.docs


def _self_query(draft: Draft, retriever: Any, query: Value, name: str, trace: Trace) -> Value:
    """Ask the model early; its answer decides how the store is searched."""
    asked = draft.value(trace(retriever.query_constructor, Record({"query": query}), "structured_query"))
    draft.leave("TB105", retriever, "how it searches is in the answer of its model")
    return draft.await_run(name or "docs", retriever, "documents", [asked], None, is_pure=True)
