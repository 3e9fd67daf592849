"""What a tracer foresees of a leaf is what the seam asks for, and its value becomes what the framework makes of it.

Each framework component runs once for real, in a session that writes down what it is asked.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from teola_plugin.adapters.leaf import Leaf, is_stock_of
from teola_plugin.adapters.rehearsal import outcome, rehearse
from teola_plugin.runtime.engines import engine_for
from teola_plugin.seams import active
from teola_plugin.value_keys import value_key
from tests.support.real_models import InlineSession, cross_encoder, minilm, minilm_path, values

pytestmark = pytest.mark.real

TEXTS = ["a cat\nsat", "on a mat", "in order"]


def equals(leaf: Leaf | None, asked: tuple[Any, ...], *given: Any) -> bool:
    """The seam asked for exactly what the leaf foresees of what the component was given."""
    assert leaf is not None
    spec, op, payload, settings = asked
    assert (leaf.spec.key, leaf.op, leaf.settings) == (spec.key, op, settings)
    return bool(value_key(leaf.payload(*given)) == value_key(payload))


def value_of(leaf: Leaf, *given: Any) -> Any:
    return values(engine_for(leaf.spec), leaf.op, [leaf.payload(*given)], **leaf.settings)[0]


# --- LangChain -----------------------------------------------------------------------------------------------


@cache
def embeddings() -> Any:
    from langchain_huggingface import HuggingFaceEmbeddings

    return HuggingFaceEmbeddings(model_name=str(minilm_path()), model_kwargs={"device": "cpu"})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"encode_kwargs": {"normalize_embeddings": True, "batch_size": 2}},
        {"encode_kwargs": {"prompt": "p: "}, "query_encode_kwargs": {"prompt": "q: ", "truncate_dim": 8}},
    ],
)
def test_langchain_embeddings(changes: dict[str, Any]) -> None:
    from teola_plugin.adapters.langchain import leaves

    model = embeddings().model_copy(update=changes)
    query, session = leaves.query_embedding(model), InlineSession()
    plain = model.embed_query(TEXTS[0]), model.embed_documents(TEXTS)
    with active(session):
        asked = model.embed_query(TEXTS[0]), model.embed_documents(TEXTS)
    assert np.allclose(asked[0], plain[0], atol=1e-5)
    assert np.allclose(asked[1], plain[1], atol=1e-5)
    assert type(asked[0][0]) is float
    assert equals(query, session.asked[0], TEXTS[0])
    assert [payload for _, _, payload, _ in session.asked[1:]] == [text.replace("\n", " ") for text in TEXTS]


def test_langchain_embeddings_that_are_not_stock() -> None:
    from langchain_huggingface import HuggingFaceEmbeddings

    from teola_plugin.adapters.langchain import leaves

    class Upper(HuggingFaceEmbeddings):
        def embed_query(self, text: str) -> list[float]:
            return super().embed_query(text.upper())

    assert leaves.query_embedding(Upper(model_name=str(minilm_path()))) is None
    assert leaves.query_embedding(embeddings().model_copy(update={"multi_process": True})) is None
    assert leaves.query_embedding(embeddings().model_copy(update={"encode_kwargs": {"precision": "int8"}})) is None
    assert leaves.query_embedding(object()) is None


def test_llamaindex_embeddings_that_are_not_stock() -> None:
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    from teola_plugin.adapters.llamaindex.known import is_embedder

    class Upper(HuggingFaceEmbedding):
        def _get_query_embedding(self, query: str) -> list[float]:
            return super()._get_query_embedding(query.upper())

    model = HuggingFaceEmbedding(str(minilm_path()), device="cpu")
    assert is_embedder(model)
    assert not is_embedder(Upper.model_construct())
    model._parallel_process = True
    assert not is_embedder(model)


def langchain_store() -> Any:
    import chromadb
    from langchain_chroma import Chroma

    name = f"langchain-{id(object())}"
    client = chromadb.EphemeralClient()
    if name in [c.name for c in client.list_collections()]:
        client.delete_collection(name)
    store = Chroma(collection_name=name, embedding_function=embeddings(), client=client)
    store.add_texts(["a cat", "a dog", "a mat", "an order"], metadatas=[{"n": i} for i in range(4)], ids=list("wxyz"))
    return store


@pytest.mark.parametrize(
    ("search", "arguments"),
    [
        ("similarity_search", {}),
        ("similarity_search", {"k": 2, "filter": {"n": {"$gt": 0}}, "where_document": {"$contains": "a"}}),
        ("similarity_search_with_score", {"k": 3}),
        ("similarity_search_with_relevance_scores", {"k": 3, "score_threshold": 0.1}),
        ("max_marginal_relevance_search", {"k": 2, "fetch_k": 4, "lambda_mult": 0.3}),
    ],
)
def test_langchain_searches(search: str, arguments: dict[str, Any]) -> None:
    from teola_plugin.adapters.langchain import leaves

    store, session = langchain_store(), InlineSession()
    embedding = leaves.query_embedding(store.embeddings)  # from now on the model is met at its seam
    leaf = leaves.search(store, search, **arguments)
    assert embedding is not None
    assert leaf is not None
    plain = getattr(store, search)("the cat", **arguments)
    with active(session):
        asked = getattr(store, search)("the cat", **arguments)
    vector = value_of(embedding, "the cat")
    assert [op for _, op, _, _ in session.asked] == ["embedding", "searching"]
    assert equals(leaf, session.asked[1], vector)
    ahead = leaves.documents_of(store, value_of(leaf, vector), search, vector, **arguments)
    assert _documents(ahead) == _documents(asked) == _documents(plain)


def _documents(found: Any) -> Any:
    return [(d[0], round(float(d[1]), 4)) if isinstance(d, tuple) else d for d in found]


def test_langchain_stores_that_are_not_stock() -> None:
    from langchain_chroma import Chroma

    from teola_plugin.adapters.langchain import leaves

    class Reversed(Chroma):
        def similarity_search(self, *args: Any, **kwargs: Any) -> Any:
            return super().similarity_search(*args, **kwargs)[::-1]

    assert leaves.search(Reversed("reversed", embedding_function=embeddings())) is None
    assert leaves.search(Chroma("texts-only")) is None
    assert leaves.search(object()) is None
    assert leaves.search(langchain_store(), "similarity_search_by_image", uri="x") is None


def test_line_breaks_of_a_query_are_replaced_before_it_is_embedded() -> None:
    from langchain_core.runnables import RunnableLambda

    from teola_plugin.adapters.langchain import adapter

    search = langchain_store().as_retriever()
    made_up = RunnableLambda(lambda x: x["a"] + x["b"]) | search
    assert "fn='one_line'" in str(adapter.trace(made_up).graph)
    assert "fn='one_line'" not in str(adapter.trace(search).graph)


def test_langchain_reranker() -> None:
    from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
    from langchain_community.cross_encoders import HuggingFaceCrossEncoder
    from langchain_core.documents import Document

    from teola_plugin.adapters.langchain import leaves

    encoder = HuggingFaceCrossEncoder.model_construct(client=cross_encoder())
    compressor = CrossEncoderReranker(model=encoder, top_n=2)
    documents = [Document(page_content=text, metadata={"n": i}) for i, text in enumerate(TEXTS)]
    leaf, session = leaves.reranking(compressor), InlineSession()
    assert leaf is not None
    plain = compressor.compress_documents(documents, "who sat?")
    with active(session):
        asked = compressor.compress_documents(documents, "who sat?")
    assert all(equals(leaf, item, "who sat?", d) for item, d in zip(session.asked, documents, strict=True))
    scores = [value_of(leaf, "who sat?", document) for document in documents]
    assert leaves.reranked(compressor, "who sat?", documents, scores) == asked == plain
    assert leaves.reranked(compressor, "who sat?", [], []) == []
    assert leaves.reranking(object()) is None

    class Last(CrossEncoderReranker):
        def compress_documents(self, *args: Any, **kwargs: Any) -> Any:
            return super().compress_documents(*args, **kwargs)[-1:]

    assert leaves.reranking(Last(model=encoder)) is None


# --- rehearsals ----------------------------------------------------------------------------------------------


def test_a_rehearsal_ends_at_what_has_no_answer_and_runs_no_engine() -> None:
    from teola_plugin.adapters import sentence_transformers

    assert sentence_transformers.spec_of(cross_encoder())

    def act() -> Any:
        vector = minilm().encode("a")
        return cross_encoder().predict(("a", str(vector)))

    assert sentence_transformers.spec_of(minilm())
    vector = np.ones(3, dtype=np.float32)
    asked = rehearse(act, embedding=[vector])
    assert [(a.op, a.payload) for a in asked] == [("embedding", "a"), ("reranking", ("a", str(vector)))]
    assert outcome(act, embedding=[vector], reranking=[np.float32(0.5)]) == np.float32(0.5)
    with pytest.raises(LookupError):
        outcome(act, embedding=[vector])


def test_a_rehearsal_ends_at_a_call_that_items_cannot_express() -> None:
    from teola_plugin.adapters import chroma, sentence_transformers

    assert sentence_transformers.spec_of(minilm())
    collection = langchain_store()._collection
    assert chroma.spec_of(collection)
    for act in (
        lambda: minilm().encode("a", precision="int8"),
        lambda: collection.query(query_embeddings=[[0.0]], ids=["w"]),
        lambda: collection.get("w"),
    ):
        with pytest.raises(LookupError):
            outcome(act, embedding=[None], searching=[None])


def test_what_a_user_overrides_of_a_library_is_not_stock() -> None:
    from llama_index.core.postprocessor import SimilarityPostprocessor

    class Renamed(SimilarityPostprocessor):
        pass

    class Louder(SimilarityPostprocessor):
        def _postprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
            return nodes

    stock = [is_stock_of(made(), "llama_index.core") for made in (SimilarityPostprocessor, Renamed, Louder)]
    assert stock == [True, True, False]
