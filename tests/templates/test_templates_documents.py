"""Documents of queries in a real Chroma: each query finds its own, and nothing stays behind."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from teola_plugin.engines import Batch, Done, Emit, Failed, Item
from teola_plugin.errors import Cancelled, EngineError
from teola_plugin.registry import EngineConfig
from teola_plugin.runtime.engines.build import build
from teola_plugin.runtime.engines.chroma_documents import ChromaDocumentsEngine
from teola_plugin.runtime.engines.simulated_text import embed
from teola_plugin.templates import App, Chunking, Embedding, Generation, Ingestion, Searching
from tests.support.fakes import FakeEngine, says

TEXTS = ["bees dance", "queens rule", "drones rest"]


async def run(engine: ChromaDocumentsEngine, op: str, items: list[tuple[int, Any]], **settings: Any) -> list[Any]:
    outcomes: dict[int, Any] = {}

    def emit(position: int, outcome: Any) -> None:
        assert position not in outcomes
        outcomes[position] = outcome

    batch = Batch(op, settings, tuple(Item(payload, owner) for owner, payload in items))
    await engine.run(batch, emit)
    return [outcomes[at] for at in range(len(items))]


def row(text: str) -> tuple[Any, str]:
    return embed(text, 8), text


@pytest.fixture
async def engine() -> Any:
    engine = ChromaDocumentsEngine()
    yield engine
    await engine.close()


async def test_each_query_finds_its_own(engine: ChromaDocumentsEngine) -> None:
    rows = [(1 + at % 2, row(text)) for at, text in enumerate([*TEXTS, *TEXTS])]
    assert await run(engine, "ingestion", rows) == [Done(None)] * 6
    hits = await run(
        engine, "searching", [(2, embed("queens rule", 8)), (1, embed("rest", 8)), (3, embed("x", 8))], top_k=1
    )
    found = [hit.value["documents"] for hit in hits]
    assert found == [["queens rule"], ["drones rest"], []]
    (hit,) = await run(engine, "searching", [(1, embed("bees", 8))], top_k=99)
    assert sorted(hit.value["documents"]) == sorted(TEXTS)
    assert len(hit.value["distances"]) == 3


async def test_a_query_that_is_over_leaves_nothing(engine: ChromaDocumentsEngine) -> None:
    await run(engine, "ingestion", [(1, row("a")), (2, row("b"))])
    assert len(collections(engine)) == 2
    engine.release(1)
    engine.release(7)  # which brought nothing
    (hit,) = await run(engine, "searching", [(2, embed("b", 8))], top_k=1)
    assert hit.value["documents"] == ["b"]
    assert len(collections(engine)) == 1
    (late,) = await run(engine, "ingestion", [(1, row("late"))])
    assert isinstance(late, Failed)
    assert isinstance(late.error, Cancelled)
    await engine.close()
    assert not collections(engine)


async def test_what_is_wrong_fails_alone(engine: ChromaDocumentsEngine) -> None:
    rows = [(1, row("a")), (1, (np.zeros(3, np.float32), "short")), (2, row("b")), (0, row("nobody's"))]
    outcomes = await run(engine, "ingestion", rows)
    assert [type(each) for each in outcomes] == [Done, Failed, Done, Failed]
    assert "belongs to none" in str(outcomes[3].error)
    (other,) = await run(engine, "embedding", [(1, "x")])
    assert "understands ingestion, searching, not 'embedding'" in str(other.error)
    (hit,) = await run(engine, "searching", [(1, embed("a", 8))], top_k=5)
    assert hit.value["documents"] == ["a"]


def test_it_can_be_declared() -> None:
    config = {"per_query": True}
    engine = build(EngineConfig("docs", "chroma", model="memory://", config=config, max_items=5))
    assert isinstance(engine, ChromaDocumentsEngine)
    assert (engine.name, engine.capabilities.max_items) == ("docs", 5)
    with pytest.raises(EngineError, match="'docs': instances: what a query brings is in one place"):
        build(EngineConfig("docs", "chroma", model="memory://", config=config, instances=2))
    with pytest.raises(EngineError, match=r"'docs': config\.collection: with per_query each query has its own"):
        build(EngineConfig("docs", "chroma", model="memory://", config={**config, "collection": "c"}))


class Embedder:
    """MiniLM's place: vectors by words."""

    def __init__(self) -> None:
        self.inner = FakeEngine(lambda text: embed(text, 16), name="embedder")
        self.name, self.capabilities = self.inner.name, self.inner.capabilities

    async def run(self, batch: Batch, emit: Emit) -> None:
        await self.inner.run(batch, emit)

    def abort(self, ids: Any) -> None:
        pass

    async def close(self) -> None:
        pass


async def test_an_application_on_it() -> None:
    store = ChromaDocumentsEngine()
    llm = FakeEngine(says, name="llm", concurrent=True)
    template = (
        Chunking(4, 0) >> Embedding() >> Ingestion() >> Searching(1) >> Generation("{question} {found}", "answer")
    )
    app = App("rag", template, {"llm": llm, "embedder": Embedder(), "store": store})
    documents = [f"bees number {n} dance. queens number {n} rule. drones number {n} rest." for n in range(6)]
    asked = [app.arun(question="queens rule", document=document, chunk_size=6) for document in documents]
    assert await asyncio.gather(*asked) == [f"queens rule queens number {n} rule." for n in range(6)]
    llm.answer = lambda prompt: (_ for _ in ()).throw(KeyError("mine"))
    with pytest.raises(KeyError, match="mine"):
        await app.arun(question="queens rule", document=documents[0])
    while collections(store):  # noqa: ASYNC110 (they go on another thread, and the test has a timeout)
        await asyncio.sleep(0.001)


def collections(engine: ChromaDocumentsEngine) -> list[str]:
    return [c.name for c in engine._connected().list_collections() if c.name.startswith(engine._prefix)]
