"""An application without a framework: the paper's advanced RAG on a document that comes with the question.

    python examples/template_rag.py

The same template runs twice: component by component, and as the graph that the passes make of it. LLM, embedder and
reranker wait as long as published profiles say; the document of each query is in a real Chroma, as long as it runs.
"""

from __future__ import annotations

import asyncio
import time

from teola_plugin.profile import PAPER, PAPER_LLM
from teola_plugin.runtime.engines.chroma_documents import ChromaDocumentsEngine
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM, ProfileReranker
from teola_plugin.templates import App, Chunking, Embedding, Ingestion, QueryExpansion, Reranking, Searching, Synthesis

rag = (
    Chunking(size=32, overlap=4)
    >> Embedding()
    >> Ingestion()
    >> QueryExpansion(count=3, max_tokens=24, settings={"shape": "lines:3"})
    >> Searching(top_k=8)
    >> Reranking(top_k=3)
    >> Synthesis(mode="refine", max_tokens=8)
)
engines = {
    "llm": ProfileLLM("llm", PAPER_LLM["7b"]),
    "embedder": ProfileEmbedding(64, PAPER["embedding"]),
    "reranker": ProfileReranker(PAPER["reranking"]),
    "store": ChromaDocumentsEngine(),
}
document = " ".join(
    f"Hive {n} has {n * 7 % 90} thousand bees and makes {n * 13 % 40} kilos of honey." for n in range(60)
)


async def ask(app: App, questions: int, **options: object) -> tuple[list[str], float]:
    began_s = time.perf_counter()
    asked = [app.arun(question=f"Honey of hive {n}?", document=document, **options) for n in range(questions)]
    return await asyncio.gather(*asked), time.perf_counter() - began_s


if __name__ == "__main__":
    chained, fast = App("RAG, in sequence", rag, engines, passes=()), App("RAG", rag, engines)
    print(fast.explain())
    fast.run(question="Is Chroma there?", document=document)
    for questions, options in ((1, {}), (1, {"synthesis_mode": "tree", "num_queries": 2}), (4, {})):
        said, slow_s = asyncio.run(ask(chained, questions, **options))
        same, fast_s = asyncio.run(ask(fast, questions, **options))
        print(f"\n{questions} at once, {options}: {slow_s:.2f} s in sequence, {fast_s:.2f} s as a graph; {same[0]!r}")
        print("the same answers" if said == same else "DIFFERENCES")
