"""Query engines with a retriever or postprocessor of a user's class, called by a function that is read."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex, get_response_synthesizer
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import CustomQueryEngine, RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores import (
    MetadataFilter,
    MetadataFilters,
    SimpleVectorStore,
    VectorStoreQuery,
)
from llama_index.core.vector_stores.types import VectorStoreQueryMode

from teola_plugin import optimize, optimized
from teola_plugin.adapters.llamaindex.reachable import reachable
from tests.adapters.llamaindex.test_llamaindex_hosted import TEXTS, chat, embedder, retriever
from tests.support.hosted_service import Service, asked_side_by_side, counted
from tests.support.llamaindex_comparing import Stage, same
from tests.support.llamaindex_parts import local_index
from tests.support.llamaindex_world import QUESTION, apart

chroma = pytest.importorskip("llama_index.vector_stores.chroma")
chromadb = pytest.importorskip("chromadb")

PARTS = ("the queens", "the workers", "the drones")
_names = map("apart-{}".format, range(10_000))


class Queries(BaseRetriever):
    """Embeds the question and asks the vector store by itself, as LlamaIndex's guides do."""

    def __init__(self, store: Any, embedder: Any, **settings: Any) -> None:
        self._store, self._embedder, self._settings = store, embedder, settings
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        vector = self._embedder.get_query_embedding(query_bundle.query_str)
        query = VectorStoreQuery(query_embedding=vector, similarity_top_k=2, **self._settings)
        result = self._store.query(query)
        found = []
        for at, node in enumerate(result.nodes):
            score = None
            if result.similarities is not None:
                score = result.similarities[at]
            found.append(NodeWithScore(node=node, score=score))
        return found

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        vector = await self._embedder.aget_query_embedding(query_bundle.query_str)
        result = await self._store.aquery(VectorStoreQuery(query_embedding=vector, similarity_top_k=2))
        return [NodeWithScore(node=node, score=0.5) for node in result.nodes]


class Wraps(BaseRetriever):
    """Asks another retriever."""

    def __init__(self, inner: BaseRetriever, fails_at: str = "nothing") -> None:
        self._inner, self._fails_at = inner, fails_at
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self._fails_at in query_bundle.query_str:
            raise ValueError(self._fails_at)
        return self._inner.retrieve(query_bundle)[:1]


class Marks(BaseNodePostprocessor):
    """Keeps the last nodes, with scores of its own."""

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return [NodeWithScore(node=each.node, score=0.25) for each in nodes[-1:]]


def store_of(service: Service) -> Any:
    collection = chromadb.EphemeralClient().create_collection(next(_names), embedding_function=None)
    store = chroma.ChromaVectorStore(chroma_collection=collection)
    model = embedder(service)
    store.add(
        [
            TextNode(text=text, id_=f"n{at}", embedding=model.get_text_embedding(text), metadata={"at": at})
            for at, text in enumerate(TEXTS)
        ]
    )
    return store


def engine_of(service: Service, retriever: Any, *processors: Any) -> RetrieverQueryEngine:
    return RetrieverQueryEngine(
        retriever, get_response_synthesizer(llm=chat(service)), node_postprocessors=[*processors]
    )


ENGINES: dict[str, Callable[[Service], Any]] = {
    "a store": lambda service: engine_of(service, Queries(store_of(service), embedder(service))),
    "a retriever": lambda service: engine_of(service, Wraps(retriever(service))),
    "a postprocessor": lambda service: engine_of(service, retriever(service), Marks(), SimilarityPostprocessor()),
    "both": lambda service: engine_of(service, Wraps(retriever(service)), Marks()),
}


def asks(engine: Any) -> Callable[[str], list[str]]:
    def ask(question: str) -> list[str]:
        return [f"{part}: {engine.query(f'{question} of {part}')}" for part in PARTS]

    return ask


def asks_async(engine: Any) -> Callable[[str], Any]:
    async def ask(question: str) -> list[str]:
        return [f"{part}: {await engine.aquery(f'{question} of {part}')}" for part in PARTS]

    return ask


@pytest.mark.parametrize("engine", ENGINES)
def test_questions_to_an_engine_with_own_parts_are_asked_side_by_side(engine: str, service: Service) -> None:
    app = asks(ENGINES[engine](service))
    first, last = f"{QUESTION} of {PARTS[0]}\nAnswer", f"{QUESTION} of {PARTS[-1]}\nAnswer"
    asked_side_by_side(service, app, first, last, lambda app: app(QUESTION))


@pytest.mark.parametrize("engine", ENGINES)
async def test_questions_to_an_engine_with_own_parts_are_the_same(engine: str, service: Service) -> None:
    made = ENGINES[engine](service)
    plain = asks_async(made)
    fast = optimize(plain)
    try:
        with counted(service) as original:
            value = await plain(QUESTION)
        for _ in range(3):
            with counted(service) as requests:
                assert await fast(QUESTION) == value
            assert requests == original
    finally:
        for model in reachable(made, (BaseEmbedding,)):
            if (client := getattr(model, "_aclient", None)) is not None:
                await client.close()
    assert optimized(fast).reports[-1].wasted == 0


@pytest.mark.parametrize("part", PARTS)
def test_what_stands_behind_an_error_of_an_own_part_is_not_asked(part: str, service: Service) -> None:
    app = asks(engine_of(service, Wraps(retriever(service), part)))
    fast = optimize(app)

    def requests_of(app: Any) -> Any:
        with counted(service) as requests, pytest.raises(ValueError, match=part):
            app(QUESTION)
        return requests

    for _ in range(3):
        assert requests_of(fast) == requests_of(app)


CHANGED: dict[str, Callable[[Any], Any]] = {
    "query": lambda method: lambda text: method(f"other {text}"),
    "_query": lambda method: lambda bundle: method(QueryBundle(f"other {bundle.query_str}")),
    "retrieve": lambda method: lambda bundle: method(QueryBundle(f"other {bundle.query_str}")),
    "_apply_node_postprocessors": lambda method: lambda nodes, query_bundle: nodes[1:],
}


@pytest.mark.parametrize("name", CHANGED)
def test_an_engine_with_a_method_of_the_object_is_not_taken_apart(name: str, service: Service) -> None:
    def changed() -> Any:
        engine = ENGINES["a postprocessor"](service)
        engine.__dict__[name] = CHANGED[name](getattr(engine, name))
        return asks(engine)

    plain, fast = changed(), optimize(changed())
    with counted(service) as original:
        value = plain(QUESTION)
    for _ in range(3):
        with counted(service) as requests:
            assert fast(QUESTION) == value
        assert requests == original


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_behind_what_is_not_read_is_asked_as_often(engine: str, service: Service) -> None:
    made = ENGINES[engine](service)

    def app(question: str) -> list[str]:
        said = []
        for part in PARTS[:2]:
            sys._getframe()  # not read
            said += [str(made.query(f"{question} of {part}")), str(made.query(part))]
        sys._getframe()
        return [*said, str(made.query(f"{question} of {PARTS[-1]}")), str(made.query(f"{question} of {PARTS[0]}"))]

    with counted(service) as original:
        value = app(QUESTION)
    fast = optimize(app)
    for _ in range(4):
        with counted(service) as requests:
            assert fast(QUESTION) == value
        assert requests == original


class Several(CustomQueryEngine):
    """A pipeline that asks an engine several times."""

    engine: Any

    def custom_query(self, query_str: str) -> str:
        return " ".join(str(self.engine.query(f"{query_str} {part}")) for part in PARTS)


@pytest.mark.parametrize("processors", [(), (Marks(),), (SimilarityPostprocessor(), Marks())])
def test_what_is_to_be_seen_is_the_same(processors: Any) -> None:
    def build(stage: Stage) -> Any:
        inner = Wraps(local_index(stage).as_retriever(similarity_top_k=3))
        writes = get_response_synthesizer(llm=stage.engines.model, callback_manager=stage.callback_manager)
        engine = RetrieverQueryEngine(inner, writes, [*processors], callback_manager=stage.callback_manager)
        return Several(engine=engine, callback_manager=stage.callback_manager)

    same(build, lambda engine: str(engine.query(QUESTION)), least_hits=2)


FILTERS = MetadataFilters(filters=[MetadataFilter(key="at", value=2)])
SETTINGS: list[dict[str, Any]] = [
    {}, {"mode": "default"}, {"mode": VectorStoreQueryMode.DEFAULT}, {"mode": VectorStoreQueryMode.MMR},
    {"filters": FILTERS}, {"query_str": "bees"}, {"alpha": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS)
def test_queries_of_a_store_are_the_same(settings: dict[str, Any], service: Service) -> None:
    found = Queries(store_of(service), embedder(service), **settings)

    def app(question: str) -> list[str]:
        return [f"{each.score} {each.text}" for part in PARTS for each in found.retrieve(f"{question} {part}")]

    with counted(service) as original:
        value = app(QUESTION)
    fast = optimize(app)
    for _ in range(3):
        with counted(service) as requests:
            assert fast(QUESTION) == value
        assert requests == original


def test_a_store_in_memory_finds_ids(service: Service) -> None:
    model, store = embedder(service), SimpleVectorStore()
    store.add([TextNode(text=text, id_=text, embedding=model.get_text_embedding(text)) for text in TEXTS])
    llm = chat(service)

    def app(question: str) -> list[str]:
        out = []
        for part in PARTS:
            vector = model.get_query_embedding(f"{question} {part}")
            ids = store.query(VectorStoreQuery(query_embedding=vector, similarity_top_k=1)).ids
            out.append(str(llm.complete(f"{part}: {ids}")))
        return out

    asked_side_by_side(service, app, PARTS[0] + ": [", PARTS[-1] + ": [", lambda app: app(QUESTION))


def test_what_is_added_between_two_queries_is_found(service: Service) -> None:
    model, store = embedder(service), store_of(service)
    index = VectorStoreIndex.from_vector_store(store, embed_model=model)

    def app(question: str) -> list[str]:
        vector = model.get_query_embedding(question)
        out = [str(store.query(VectorStoreQuery(query_embedding=vector)).ids)]
        index.insert_nodes([TextNode(text=question, id_=f"{question} {len(out)}")])
        out.append(str(store.query(VectorStoreQuery(query_embedding=vector)).ids))
        store.delete_nodes([f"{question} 1"])
        return out

    value = app("anyone")
    fast = optimize(app)
    for _ in range(3):
        assert fast("anyone") == value
    assert "anyone 1" in value[1]
    assert "anyone 1" not in value[0]


NAMES: list[str] = []


class First(BaseRetriever):
    """Asks twice, and shows what others have noted by then."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        raise NotImplementedError

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        await self._llm.acomplete("the first")
        return [NodeWithScore(node=TextNode(text=str(await self._llm.acomplete(f"first: {NAMES}"))), score=1.0)]


class Second(First):
    """Asks, notes its name, and asks again."""

    async def aretrieve(self, str_or_query_bundle: Any) -> list[NodeWithScore]:
        await self._llm.acomplete("the second")
        NAMES.append("second")
        return [NodeWithScore(node=TextNode(text=str(await self._llm.acomplete("second: noted"))), score=0.5)]


@pytest.mark.parametrize("kinds", [(First, Second), (Second, First)])
def test_coroutines_of_own_retrievers_in_a_fusion_run_beside_each_other(kinds: Any, service: Service) -> None:
    def fusion() -> Any:
        llm = chat(service)
        return QueryFusionRetriever([kind(llm) for kind in kinds], llm=llm, num_queries=1, use_async=True)

    def call(fusion: Any) -> list[str]:
        NAMES.clear()
        return sorted(each.text for each in apart(lambda: asyncio.run(_retrieved(fusion))))

    async def _retrieved(fusion: Any) -> Any:
        return await fusion.aretrieve(QUESTION)

    service.holds, service.awaits = "the first", "second: noted"
    with counted(service) as original:
        value = call(fusion())
    fast = optimize(fusion())
    for _ in range(3):
        with counted(service) as requests:
            assert call(fast) == value
        assert requests == original
