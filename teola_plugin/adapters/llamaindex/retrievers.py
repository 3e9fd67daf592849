"""Retrievers as primitives.

    VectorIndexRetriever      embedding -> searching -> call(nodes)
    QueryFusionRetriever      prefilling -> decoding, one query per line -> embedding -> searching -> call(fuse)
    anything else             @ pipeline: its own run tells the value

Nodes and fusions are made by the components' own methods, in rehearsals; only the shape of the graph is defined here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import VectorStoreQueryMode

from teola_plugin.adapters.leaf import as_vector, is_stock
from teola_plugin.adapters.llamaindex.draft import Draft, star
from teola_plugin.adapters.llamaindex.known import (
    is_asked_each_time,
    is_embedder,
    is_local_docstore,
    is_local_store,
    is_store,
    resource_of,
)
from teola_plugin.adapters.llamaindex.models import from_coroutine, is_model
from teola_plugin.adapters.llamaindex.reading_parts import is_read
from teola_plugin.adapters.llamaindex.rehearsal import ANY_VECTOR, QUERY_MARK, pieces, stand_in
from teola_plugin.adapters.llamaindex.transforms import Query
from teola_plugin.adapters.llamaindex.unblocked import only_asks
from teola_plugin.adapters.rehearsal import Asked, outcome, rehearse
from teola_plugin.engines import Foreign
from teola_plugin.graph import Ref

Nodes = list[NodeWithScore]


def add_retriever(draft: Draft, retriever: BaseRetriever, query: Query) -> str:
    """Add `retriever` on `query`; returns the name of the nodes."""
    draft.reading(retriever)
    if is_stock(retriever, QueryFusionRetriever):
        return _add_fusion(draft, retriever, query)
    search = _read_search(draft, retriever)
    if search is None:
        return draft.await_run("nodes", retriever, "retrieve", query.text)
    vector = _add_vector(draft, search, "q", query)
    if search.asked is None:
        return draft.call("nodes", "retrieve", search.nodes, query.text, vector, is_rehearsal=True)
    hits = _add_searching(draft, search, "hits", Ref(vector))
    return draft.call("nodes", "nodes", search.nodes, query.text, hits, is_rehearsal=True)


# --- one search ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Search:
    """A vector retriever with known steps only. `asked` is None for a store in this process."""

    retriever: VectorIndexRetriever
    embedded: Asked
    asked: Asked | None

    @property
    def is_outside(self) -> bool:
        """Whether requests leave this process."""
        return any(each.spec.is_outside for each in (self.embedded, self.asked) if each)

    def nodes(self, query: str, found: Any) -> Nodes:
        """Return the nodes of `found`: the store's own columns, or the query vector for a store in this process."""
        vector, hits = (ANY_VECTOR, [found]) if self.asked else (found, [])
        bundle = QueryBundle(query, embedding=np.asarray(vector).tolist())
        return outcome(lambda: _retrieved(stand_in(self.retriever), bundle), searching=hits)


def _retrieved(retriever: BaseRetriever, bundle: QueryBundle) -> Nodes:
    nodes = retriever._retrieve(bundle)
    if any(isinstance(n.node, IndexNode) for n in nodes):
        raise LookupError("a node that stands for another retriever is followed by the framework alone")
    return retriever._handle_recursive_retrieval(bundle, nodes)


def may_embed(draft: Draft, component: object, model: Any) -> bool:
    """Whether requests to the embedding model of `component` are predictable; notes a break if not."""
    if not is_embedder(model):
        draft.leave("TB204", component, type(model).__name__, "use EngineEmbedding or HuggingFaceEmbedding")
        return False
    if not is_asked_each_time(model):
        draft.leave("TB205", model)
        return False
    return True


def _read_search(draft: Draft, retriever: BaseRetriever) -> _Search | None:
    """Return the leaf requests of `retriever`; None, with a break, if they are unpredictable."""
    if not is_stock(retriever, VectorIndexRetriever):
        if not is_read(retriever):
            draft.leave("TB201", retriever)
        return None
    assert isinstance(retriever, VectorIndexRetriever)
    store, model = retriever._vector_store, retriever._embed_model
    if retriever.object_map or not is_local_docstore(retriever._docstore):
        draft.leave("TB203", retriever)
        return None
    if not may_embed(draft, retriever, model):
        return None
    is_local = is_local_store(store)
    if not is_local and not is_store(store):
        draft.leave("TB206", retriever, type(store).__name__)
        return None
    asked = rehearse(
        lambda: stand_in(retriever)._retrieve(QueryBundle(QUERY_MARK)), embedding=[] if is_local else [ANY_VECTOR]
    )
    is_ranked_again = retriever._vector_store_query_mode == VectorStoreQueryMode.MMR  # by the vector left out here
    if is_ranked_again or [a.op for a in asked] != (["embedding"] if is_local else ["embedding", "searching"]):
        draft.leave("TB207", retriever, str(retriever._vector_store_query_mode))
        return None
    draft.rely_on(retriever, model)
    draft.cover(retriever)
    return _Search(retriever, asked[0], None if is_local else asked[1])


def _add_vector(draft: Draft, search: _Search, name: str, query: Query) -> str:
    """Add the query vector: the query's own, or the mean of several texts' vectors."""
    if query.strings is None:
        return _add_embedding(draft, search, name, Ref(query.text))
    if query.keeps_original and not isinstance(search.embedded.payload, Foreign):
        _add_embedding(draft, search, name, Ref("query"))  # known before the rest, and shared with them

    def mean(strings: list[str], vectors: list[Any]) -> Any:
        bundle = QueryBundle("query", custom_embedding_strs=strings)
        act = lambda: stand_in(search.retriever)._retrieve(bundle)  # noqa: E731
        asked = rehearse(act, embedding=vectors)
        return asked[-1].payload if search.asked else bundle.embedding

    vectors = _add_embedding(draft, search, name, star(query.strings))
    return draft.call("vector", "mean", mean, query.strings, vectors)


def _add_embedding(draft: Draft, search: _Search, name: str, text: Ref) -> str:
    asked = search.embedded
    depth = int(text.star)
    if asked.payload != QUERY_MARK:  # the model writes an instruction around the query

        def embedded_text(query: str) -> Any:
            return rehearse(lambda: stand_in(search.retriever)._retrieve(QueryBundle(query)))[0].payload

        if text.star:
            each = lambda queries: [embedded_text(q) for q in queries]  # noqa: E731
            text = star(draft.call("texts", "embedded_texts", each, text.name, depth=1))
        else:
            text = Ref(draft.call("text", "embedded_text", embedded_text, text.name))
    return draft.ask(name, "embedding", asked.spec, text, depth=depth, settings=asked.settings)


def _add_searching(draft: Draft, search: _Search, name: str, vector: Ref) -> str:
    asked = search.asked
    assert asked is not None
    if isinstance(search.embedded.payload, Foreign):  # a list of numbers, as the service returned them
        vectors = draft.call("vector", "as_vector", as_vector, vector, depth=int(vector.star))
        vector = Ref(vectors, star=vector.star)
    return draft.ask(
        name, "searching", asked.spec, vector, depth=int(vector.star), settings=asked.settings,
        reads=(resource_of(search.retriever._vector_store),),
    )  # fmt: skip


# --- query fusion ----------------------------------------------------------------------------------------------------


def _add_fusion(draft: Draft, fusion: Any, query: Query) -> str:
    searches = [_read_search(draft, r) for r in fusion._retrievers]
    draft.reading(fusion)
    draft.rely_on(fusion, fusion._llm)
    wanted = fusion.num_queries - 1
    queries = _add_queries(draft, fusion, wanted, query.text) if wanted > 0 else None
    is_known = all(searches) and (queries or wanted <= 0)
    others = [r for r, search in zip(fusion._retrievers, searches, strict=True) if search is None]
    is_gated = not all(map(only_asks, others))  # they take turns with the searches, may raise, and change settings
    found: list[str] = []
    vectors: tuple[str, ...] = ()
    for search in searches:
        if search is None or (is_gated and search.is_outside):
            continue
        if not vectors or fusion.use_async:  # else the first retriever leaves its vector in the bundle for all
            vectors = (_add_vector(draft, search, "q0", query),)
            vectors += (_add_embedding(draft, search, "q", star(queries)),) if queries else ()
        if search.asked is None:  # a search in this process follows from the vectors, and costs next to nothing
            found += vectors
            continue
        found.append(_add_searching(draft, search, "hits0", Ref(vectors[0])))
        found += [_add_searching(draft, search, "hits", star(v)) for v in vectors[1:]]
    draft.cover(fusion)  # also if its own run reports the nodes: its own requests are in the graph
    if not is_known or fusion.object_map:
        return draft.await_run("nodes", fusion, "retrieve", query.text, *found)

    def fuse(query: str, *values: Any) -> Nodes:
        texts = [query, *values[0][:wanted]] if queries else [query]
        tables = [(first,) for first in values]
        if queries:
            tables = [(first, *others) for first, others in zip(values[1::2], values[2::2], strict=True)]
        canned = [
            _Canned(iter([s.nodes(text, hits) for text, hits in zip(texts, table, strict=False)]))
            for s, table in zip(searches, tables, strict=True)
            if s
        ]
        double = stand_in(fusion, use_async=False, _retrievers=canned)
        double._get_queries = lambda original: [QueryBundle(text) for text in texts[1:]]
        return outcome(lambda: _retrieved(double, QueryBundle(query)))

    return draft.call("nodes", "fuse", fuse, query.text, *((queries,) if queries else ()), *found, is_rehearsal=True)


@dataclass(frozen=True, slots=True)
class _Canned:
    """A retriever with prepared answers, in the order of fusion's requests."""

    answers: Iterator[Nodes]

    def retrieve(self, query_bundle: QueryBundle) -> Nodes:
        return next(self.answers)


def _add_queries(draft: Draft, fusion: Any, wanted: int, text: str) -> str | None:
    """Add the queries written by an LLM, each as an item."""
    if not is_model(fusion._llm):
        draft.leave("TB208", fusion, type(fusion._llm).__name__)
        return None

    def asked(query: str) -> Asked:
        return rehearse(lambda: stand_in(fusion)._get_queries(query))[0]

    def request(query: str, is_async: bool) -> Any:
        payload = asked(query).payload
        is_asked_in_coroutine = is_async and hasattr(fusion, "_aget_queries")  # older releases block the loop
        return from_coroutine(payload) if is_asked_in_coroutine else payload

    first = asked(QUERY_MARK)
    if isinstance(first.payload, str):
        kv = draft.ask("kv", "prefilling", first.spec, *pieces(first.payload, QUERY_MARK, text))
    else:
        asking = draft.call("request", "request", request, text, "is_async")
        kv = draft.ask("kv", "prefilling", first.spec, Ref(asking))
    settings = {"items": "fusion_lines", "wanted": wanted, **first.settings}
    return draft.ask("queries", "decoding", first.spec, Ref(kv), depth=1, settings=settings)
