"""A LlamaIndex query engine in tree mode: three answers that nobody has to write one after the other.

    python examples/llamaindex_tree.py

The engines wait by published figures and answer with fixed words, so this runs anywhere. For real models use
HuggingFaceEmbedding as always, and EngineLLM(engine=VllmEngine("/path/to/model")).
"""

from __future__ import annotations

import chromadb
from llama_index.core import PromptHelper, StorageContext, VectorStoreIndex, get_response_synthesizer
from llama_index.core.schema import TextNode
from llama_index.vector_stores.chroma import ChromaVectorStore

from teola_plugin import compare, optimize
from teola_plugin.models.llamaindex import EngineEmbedding, EngineLLM
from teola_plugin.profile import PAPER, PAPER_LLM
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM

NOTES = ("A heap keeps its smallest item first.", "A deque is fast at both ends.", "A counter counts what it is given.")


def query_engine():  # type: ignore[no-untyped-def]
    embedding = EngineEmbedding(engine=ProfileEmbedding(32, PAPER["embedding"]))
    collection = chromadb.EphemeralClient().get_or_create_collection("example_notes", embedding_function=None)
    storage = StorageContext.from_defaults(vector_store=ChromaVectorStore(chroma_collection=collection))
    nodes = [TextNode(text=note * 12, id_=str(i)) for i, note in enumerate(NOTES)]
    index = VectorStoreIndex(nodes, storage_context=storage, embed_model=embedding)
    llm = EngineLLM(engine=ProfileLLM("llm", PAPER_LLM["7b"]), max_tokens=16)
    one_note = PromptHelper(context_window=4096, num_output=16, chunk_size_limit=150)
    synthesizer = get_response_synthesizer(llm=llm, response_mode="tree_summarize", prompt_helper=one_note)
    return index.as_query_engine(llm=llm, response_synthesizer=synthesizer, similarity_top_k=3)


if __name__ == "__main__":
    engine = query_engine()
    print(optimize(engine).query("What is fast at both ends?"))
    print(compare(engine, ["What is fast at both ends?"], repeats=3))
