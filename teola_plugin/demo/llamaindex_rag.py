"""The same two RAG pipelines as a LlamaIndex user writes them; nothing in here knows of `optimize`.

advanced   writes 3 queries, searches 16 nodes for each (query fusion), reranks to the best 3, answers in refine mode.
naive      searches the 3 nearest nodes and answers in tree mode, with room for one node at a time.
"""

from __future__ import annotations

from llama_index.core import PromptHelper, VectorStoreIndex, get_response_synthesizer
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.vector_stores.types import BasePydanticVectorStore

QUERIES = "Write {num_queries} different search queries for this question, one per line.\n\n{query}\n"
WINDOW_TOKENS = 4096
NODE_TOKENS = 140
"""The most tokens of context per LLM call in tree mode."""


def advanced(
    llm: LLM, writer: LLM, embedding: BaseEmbedding, store: BasePydanticVectorStore, reranker: BaseNodePostprocessor,
    *, streaming: bool = False, use_async: bool = False,
) -> RetrieverQueryEngine:  # fmt: skip
    """Return the query engine. `writer` is the LLM made to write three lines."""
    index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
    retriever = QueryFusionRetriever(
        [index.as_retriever(similarity_top_k=16)], llm=writer, query_gen_prompt=QUERIES, num_queries=4,
        similarity_top_k=48, use_async=use_async,
    )  # fmt: skip
    synthesizer = get_response_synthesizer(
        llm=llm, response_mode=ResponseMode.REFINE, streaming=streaming,
        prompt_helper=PromptHelper(context_window=WINDOW_TOKENS, num_output=64),
    )  # fmt: skip
    return RetrieverQueryEngine(retriever, synthesizer, node_postprocessors=[reranker])


def naive(
    llm: LLM, embedding: BaseEmbedding, store: BasePydanticVectorStore,
    *, streaming: bool = False, use_async: bool = False,
) -> RetrieverQueryEngine:  # fmt: skip
    """Return the query engine: three nodes, three calls, and a fourth call over the three answers."""
    index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
    helper = PromptHelper(context_window=WINDOW_TOKENS, num_output=64, chunk_size_limit=NODE_TOKENS)
    synthesizer = get_response_synthesizer(
        llm=llm, response_mode=ResponseMode.TREE_SUMMARIZE, prompt_helper=helper,
        streaming=streaming, use_async=use_async,
    )  # fmt: skip
    return RetrieverQueryEngine(index.as_retriever(similarity_top_k=3), synthesizer)
