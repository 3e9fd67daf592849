"""What LlamaIndex query engines are made of, on the fake engines; built by name: `RETRIEVERS`, `POSTPROCESSORS`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core import SimpleKeywordTableIndex, StorageContext, VectorStoreIndex
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.postprocessor import (
    KeywordNodePostprocessor,
    LLMRerank,
    LongContextReorder,
    MetadataReplacementPostProcessor,
    PrevNextNodePostprocessor,
    SentenceEmbeddingOptimizer,
    SimilarityPostprocessor,
)
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import (
    AutoMergingRetriever,
    BaseRetriever,
    QueryFusionRetriever,
    RecursiveRetriever,
    RouterRetriever,
    TransformRetriever,
)
from llama_index.core.schema import (
    Document,
    IndexNode,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.selectors import LLMMultiSelector, LLMSingleSelector
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.tools import QueryEngineTool, RetrieverTool

from tests.support.llamaindex_comparing import Stage
from tests.support.llamaindex_replies import TOPICS
from tests.support.llamaindex_world import digest, index_of

FUSION_MODES = ("reciprocal_rerank", "relative_score", "dist_based_score", "simple")


# --- small pieces -----------------------------------------------------------------------------------------------------


def notes(topic: str, count: int = 6) -> list[TextNode]:
    """Nodes of a few sentences, each knowing the one before and after it."""
    made = [
        TextNode(text=f"On {topic} {i}. " + f"Keeper {digest(topic + str(i))[:6]} of {topic}. " * 6, id_=f"{topic}-{i}")
        for i in range(count)
    ]
    for before, after in itertools.pairwise(made):
        before.relationships[NodeRelationship.NEXT] = RelatedNodeInfo(node_id=after.node_id)
        after.relationships[NodeRelationship.PREVIOUS] = RelatedNodeInfo(node_id=before.node_id)
    for node in made:
        node.metadata = {"window": f"window of {node.node_id}"}
    return made


def local_index(stage: Stage, topic: str = "bees", count: int = 6) -> VectorStoreIndex:
    """An index in this process."""
    return VectorStoreIndex(
        notes(topic, count), embed_model=stage.engines.embedding, callback_manager=stage.callback_manager
    )


def vector_retriever(stage: Stage, topic: str = "bees", top_k: int = 3) -> Any:
    return local_index(stage, topic).as_retriever(similarity_top_k=top_k)


def chroma_retriever(stage: Stage) -> Any:
    return index_of(stage.engines).as_retriever(similarity_top_k=4)


def synthesizer(stage: Stage, *, mode: str = "compact", streaming: bool = False, **settings: Any) -> Any:
    return get_response_synthesizer(
        llm=stage.engines.model, response_mode=mode, streaming=streaming, callback_manager=stage.callback_manager,
        **settings,
    )  # fmt: skip


def rag(
    stage: Stage, streaming: bool = False, *, retriever: BaseRetriever | None = None, mode: str = "compact",
    postprocessors: Sequence[Any] = (), topic: str = "bees", **settings: Any,
) -> RetrieverQueryEngine:  # fmt: skip
    """Retrieve and answer."""
    return RetrieverQueryEngine(
        retriever or vector_retriever(stage, topic), synthesizer(stage, mode=mode, streaming=streaming, **settings),
        list(postprocessors), stage.callback_manager,
    )  # fmt: skip


def tools(stage: Stage, streaming: bool = False, engines: Sequence[Any] = ()) -> list[QueryEngineTool]:
    """One engine for each topic; `engines` stand in for the first ones."""
    engines = [*engines, *(rag(stage, streaming, topic=topic) for topic in TOPICS[len(engines) :])]
    return [
        QueryEngineTool.from_defaults(engine, name=topic, description=f"All about {topic}.")
        for topic, engine in zip(TOPICS, engines, strict=True)
    ]


def selector(stage: Stage, *, is_multi: bool) -> Any:
    kind = LLMMultiSelector if is_multi else LLMSingleSelector
    return kind.from_defaults(llm=stage.engines.model)


# --- retrievers -------------------------------------------------------------------------------------------------------


def fusion(stage: Stage, mode: str = "reciprocal_rerank", use_async: bool = False) -> Any:
    return QueryFusionRetriever(
        [vector_retriever(stage), keyword_retriever(stage)], llm=stage.engines.model, mode=mode, num_queries=3,
        similarity_top_k=4, use_async=use_async, callback_manager=stage.callback_manager,
    )  # fmt: skip


def keyword_retriever(stage: Stage) -> Any:
    """Matches words, as BM25 does, and asks no engine."""
    index = SimpleKeywordTableIndex(notes("bees"), callback_manager=stage.callback_manager)
    return index.as_retriever(retriever_mode="simple")


def llm_keyword_retriever(stage: Stage) -> Any:
    index = SimpleKeywordTableIndex(notes("bees"), callback_manager=stage.callback_manager)
    return index.as_retriever(retriever_mode="default")


def auto_merging(stage: Stage) -> Any:
    """Two parents of three notes each; most of a parent's notes found, and the parent stands in for them."""
    leaves = notes("bees")
    parents = [TextNode(text=f"All of {i}", id_=f"parent-{i}") for i in range(2)]
    for i, leaf in enumerate(leaves):
        parent = parents[i // 3]
        leaf.relationships[NodeRelationship.PARENT] = RelatedNodeInfo(node_id=parent.node_id)
        children = parent.relationships.setdefault(NodeRelationship.CHILD, [])
        children.append(RelatedNodeInfo(node_id=leaf.node_id))  # type: ignore[union-attr]
    docstore = SimpleDocumentStore()
    docstore.add_documents([*leaves, *parents])
    storage = StorageContext.from_defaults(docstore=docstore)
    index = VectorStoreIndex(leaves, storage_context=storage, embed_model=stage.engines.embedding)
    return AutoMergingRetriever(
        index.as_retriever(similarity_top_k=4), storage, verbose=True, callback_manager=stage.callback_manager
    )


def _links(stage: Stage) -> VectorStoreIndex:
    links = [IndexNode(text=f"Where to find {topic}.", index_id=topic, id_=f"link-{topic}") for topic in TOPICS]
    return VectorStoreIndex(links, embed_model=stage.engines.embedding, callback_manager=stage.callback_manager)


def recursive(stage: Stage) -> Any:
    """Links to a retriever, a query engine and a note."""
    return RecursiveRetriever(
        "root",
        {"root": _links(stage).as_retriever(similarity_top_k=3), "bees": vector_retriever(stage, "bees", 2)},
        {"hives": rag(stage, topic="hives")},
        {"honey": TextNode(text="The note on honey.", id_="honey-note")},
        stage.callback_manager,
    )


def linked(stage: Stage) -> Any:
    """A vector retriever whose nodes are links to another retriever."""
    link = IndexNode(text="Where to find bees.", index_id="bees", id_="link", obj=vector_retriever(stage, "bees", 2))
    index = VectorStoreIndex(objects=[link], nodes=[], embed_model=stage.engines.embedding)
    return index.as_retriever(similarity_top_k=2)


def _retriever_tools(stage: Stage) -> list[RetrieverTool]:
    return [
        RetrieverTool.from_defaults(vector_retriever(stage, topic, 2), name=topic, description=f"All about {topic}.")
        for topic in TOPICS
    ]


def router_retriever(stage: Stage) -> Any:
    return RouterRetriever(selector(stage, is_multi=False), _retriever_tools(stage), llm=stage.engines.model)


def multi_router_retriever(stage: Stage) -> Any:
    return RouterRetriever(selector(stage, is_multi=True), _retriever_tools(stage), llm=stage.engines.model)


def transform_retriever(stage: Stage) -> Any:
    transform = HyDEQueryTransform(llm=stage.engines.model)
    return TransformRetriever(vector_retriever(stage), transform, callback_manager=stage.callback_manager)


class OwnRetriever(BaseRetriever):
    """A retriever of the user's own, around another."""

    def __init__(self, inner: BaseRetriever, heard: list[Any]) -> None:
        self._inner, self._heard = inner, heard
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self._heard.append(query_bundle.query_str)
        return self._inner.retrieve(query_bundle.query_str.upper())[::-1]


def own_retriever(stage: Stage) -> Any:
    return OwnRetriever(vector_retriever(stage), stage.heard)


Retriever = Callable[[Stage], Any]
RETRIEVERS: dict[str, Retriever] = {
    make.__name__: make
    for make in (
        vector_retriever, chroma_retriever, keyword_retriever, llm_keyword_retriever, auto_merging, recursive, linked,
        router_retriever, multi_router_retriever, transform_retriever, own_retriever,
    )
}  # fmt: skip


# --- postprocessors ---------------------------------------------------------------------------------------------------


def rerank(stage: Stage) -> Any:
    return stage.engines.rerank


def llm_rerank(stage: Stage) -> Any:
    return LLMRerank(llm=stage.engines.model, choice_batch_size=2, top_n=2)


def similarity(stage: Stage) -> Any:
    return SimilarityPostprocessor(similarity_cutoff=-0.2)


def keyword(stage: Stage) -> Any:
    """Needs spaCy, which is not there: everybody's error."""
    return KeywordNodePostprocessor(required_keywords=["bees"])


def prev_next(stage: Stage) -> Any:
    docstore = SimpleDocumentStore()
    docstore.add_documents(notes("bees"))
    return PrevNextNodePostprocessor(docstore=docstore, num_nodes=1, mode="both")


def reorder(stage: Stage) -> Any:
    return LongContextReorder()


def replacement(stage: Stage) -> Any:
    return MetadataReplacementPostProcessor(target_metadata_key="window")


def optimizer(stage: Stage) -> Any:
    return SentenceEmbeddingOptimizer(embed_model=stage.engines.embedding, percentile_cutoff=0.5)


Postprocessor = Callable[[Stage], Any]
POSTPROCESSORS: dict[str, Postprocessor] = {
    make.__name__: make
    for make in (rerank, llm_rerank, similarity, keyword, prev_next, reorder, replacement, optimizer)
}


def documents(count: int = 5) -> list[Document]:
    """Documents that a splitter cuts into a few nodes each."""
    lines = [" ".join(f"Line {n} on {digest(f'{i}/{n}')[:6]}." for n in range(20)) for i in range(count)]
    return [Document(text=f"Book {i}. {text}", id_=f"d{i}") for i, text in enumerate(lines)]
