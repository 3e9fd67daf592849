"""The paper's advanced RAG as a template on real engines: vLLM, MiniLM, a cross-encoder, Chroma."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from teola_plugin.demo.parts import THREE_LINES
from teola_plugin.passes import DEFAULT
from teola_plugin.runtime.engines.chroma_documents import ChromaDocumentsEngine
from teola_plugin.runtime.engines.embedding import EmbeddingEngine
from teola_plugin.runtime.engines.reranking import RerankingEngine
from teola_plugin.runtime.engines.vllm import VllmEngine
from teola_plugin.templates import (
    App,
    Chunking,
    Embedding,
    Ingestion,
    QueryExpansion,
    Reranking,
    Searching,
    Synthesis,
)
from tests.support.real_models import cross_encoder, minilm

GREEDY = {"temperature": 0.0, "ignore_eos": True}
LINES = {"temperature": 0.0, "structured_outputs": {"regex": THREE_LINES}}


@pytest.mark.real
@pytest.mark.timeout(300)
async def test_in_sequence_and_as_a_graph_it_answers_the_same(vllm_engine: VllmEngine) -> None:
    template = (
        Chunking(24, 4)
        >> Embedding()
        >> Ingestion()
        >> QueryExpansion(3, settings=LINES)
        >> Searching(4)
        >> Reranking(3)
        >> Synthesis("refine", max_tokens=8, settings=GREEDY)
    )
    store = ChromaDocumentsEngine()
    engines: dict[str, Any] = {
        "llm": vllm_engine,
        "embedder": EmbeddingEngine(minilm()),
        "reranker": RerankingEngine(cross_encoder()),
        "store": store,
    }
    apps = {way: App("advanced RAG", template, engines, passes=way) for way in ((), DEFAULT)}
    asked = [
        {"question": f"What makes hive {n} of honey?", "synthesis_mode": mode, "document": document(n)}
        for n in range(2)
        for mode in ("refine", "tree", "one-shot")
    ]
    answers = [await asyncio.gather(*(app.arun(**each) for each in asked)) for app in apps.values()]
    assert answers[0] == answers[1]
    assert len(set(answers[0])) == len(asked)
    while store._collections:  # noqa: ASYNC110 (they go on another thread, and the test has a timeout)
        await asyncio.sleep(0.01)


def document(number: int) -> str:
    kept = "keeps {} thousand bees and makes {} kilos of honey in a good year."
    return " ".join(f"Hive {n} {kept.format(n * 7 % 90, n * number % 41)}" for n in range(12))
