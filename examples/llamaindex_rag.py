"""Advanced RAG with LlamaIndex: queries written by the model, reranking, an answer refined passage by passage.

    python examples/llamaindex_rag.py

Each written query is searched for while the model still writes the next. The engines wait by published figures and
answer with fixed words, so this runs anywhere; HuggingFaceEmbedding, SentenceTransformerRerank and
EngineLLM(engine=VllmEngine("/path/to/model")) make the same engine of real models.
"""

from __future__ import annotations

import chromadb
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import TextNode
from llama_index.vector_stores.chroma import ChromaVectorStore

from teola_plugin import compare, explain, optimize
from teola_plugin.models.llamaindex import EngineEmbedding, EngineLLM, EngineRerank
from teola_plugin.profile import PAPER, PAPER_LLM
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM, ProfileReranker

NOTES = ("Bees dance to tell where flowers are.", "A hive has one queen.", "Drones do not sting.", "Wax holds honey.")

model = ProfileLLM("llm", PAPER_LLM["7b"])
llm = EngineLLM(engine=model, max_tokens=12)
writer = EngineLLM(engine=model, max_tokens=48, settings={"shape": "lines:3"})  # a real model needs no shape
embedding = EngineEmbedding(engine=ProfileEmbedding(64, PAPER["embedding_logs"]))
reranker = EngineRerank(engine=ProfileReranker(PAPER["reranking"]), top_n=2)

collection = chromadb.EphemeralClient().create_collection("bees", embedding_function=None)
storage = StorageContext.from_defaults(vector_store=ChromaVectorStore(chroma_collection=collection))
nodes = [TextNode(text=note, id_=str(n)) for n, note in enumerate(NOTES)]
index = VectorStoreIndex(nodes, storage_context=storage, embed_model=embedding)

retriever = QueryFusionRetriever([index.as_retriever(similarity_top_k=3)], llm=writer, num_queries=4, use_async=False)
engine = RetrieverQueryEngine.from_args(retriever, llm=llm, response_mode="refine", node_postprocessors=[reranker])

if __name__ == "__main__":
    fast = optimize(engine)
    print(explain(fast, analyze="How do bees talk?"))
    print(fast.query("How do bees talk?"))
    print(compare(engine, ["How do bees talk?"], optimized=fast, repeats=2))
