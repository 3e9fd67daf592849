"""A LlamaIndex ingestion pipeline: texts are embedded and stored while the next ones are still being split.

    python examples/llamaindex_ingestion.py

What is stored, and in which order, is the same. Should a step raise, nothing is left half-written.
"""

from __future__ import annotations

import time

import chromadb
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import Document
from llama_index.vector_stores.chroma import ChromaVectorStore

from teola_plugin import optimize
from teola_plugin.models.llamaindex import EngineEmbedding
from teola_plugin.profile import PAPER
from teola_plugin.runtime.engines.simulated import ProfileEmbedding

SENTENCES = "Bees dance to tell where flowers are. A hive has one queen. Drones do not sting. Wax holds the honey. "
documents = [Document(text=f"Chapter {n}. " + SENTENCES * 24, id_=f"chapter-{n}") for n in range(16)]
# Waits like a model on a GPU; HuggingFaceEmbedding(...) is a real one.
embedding = EngineEmbedding(engine=ProfileEmbedding(64, PAPER["embedding_logs"]))
splitter = SentenceSplitter(chunk_size=128, chunk_overlap=0)
client = chromadb.EphemeralClient()


def pipeline(collection: str) -> IngestionPipeline:
    store = ChromaVectorStore(chroma_collection=client.create_collection(collection, embedding_function=None))
    return IngestionPipeline(transformations=[splitter, embedding], vector_store=store)


def ingest(ingestion: IngestionPipeline) -> list[str]:
    started_s = time.perf_counter()
    nodes = ingestion.run(documents=documents)
    print(f"{len(nodes)} nodes in {time.perf_counter() - started_s:.2f} s")
    return [node.get_content() for node in nodes]


if __name__ == "__main__":
    pipeline("warm_up").run(documents=documents[:1])  # loads the tokenizer, and wakes Chroma
    original, optimized = pipeline("original"), optimize(pipeline("optimized"))
    print("equal:", ingest(original) == ingest(optimized))
