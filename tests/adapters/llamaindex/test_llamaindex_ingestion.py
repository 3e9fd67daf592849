"""Original against optimized: ingestion pipelines and indexes. Nodes, stores, docstores and caches are the same
afterwards, also where something raised in the middle."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import chromadb
import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.extractors import KeywordExtractor, SummaryExtractor
from llama_index.core.ingestion import DocstoreStrategy, IngestionCache, IngestionPipeline
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import BaseNode, Document, TextNode, TransformComponent
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.vector_stores.chroma import ChromaVectorStore

import teola_plugin
from teola_plugin import runtime
from tests.support.llamaindex_comparing import Stage, picture, same
from tests.support.llamaindex_parts import documents, notes
from tests.support.llamaindex_replies import reply
from tests.support.llamaindex_world import QUESTION, vector

RUNS = ("run", "arun")
STORES = ("chroma", "simple", "none")
_names = (f"ingested-{number}" for number in itertools.count())


# --- pieces -----------------------------------------------------------------------------------------------------------


def named(i: int, document: BaseNode) -> str:
    return f"{document.node_id}-{i}"


class BreakingSplitter(SentenceSplitter):
    """Cannot split the fourth document."""

    def _parse_nodes(self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any) -> list[BaseNode]:
        if any(node.node_id == "d3" for node in nodes):
            raise ValueError("d3 has no sentences")
        return super()._parse_nodes(nodes, show_progress, **kwargs)


class FullStore(SimpleVectorStore):
    """Takes ten nodes at most, and no part of more."""

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        if len(nodes) + len(self.data.embedding_dict) > 10:
            raise OSError(28, "No space left on device")
        return super().add(nodes, **kwargs)


class LeakyStore(SimpleVectorStore):
    """Takes ten nodes and then raises: what LlamaIndex leaves half-written stays so."""

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        super().add(nodes[: 10 - len(self.data.embedding_dict)], **kwargs)
        raise OSError(28, "No space left on device")


class Marking(TransformComponent):
    """A step of the user's own; says what it was given."""

    heard: list[Any]

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        self.heard.append([node.node_id for node in nodes])
        for node in nodes:
            node.metadata["marked"] = len(node.get_content())
        return nodes


def splitter(kind: type[SentenceSplitter] = SentenceSplitter) -> SentenceSplitter:
    return kind(chunk_size=64, chunk_overlap=8, id_func=named)


def make_store(stage: Stage, kind: str) -> Any:
    """A vector store, kept by the stage."""
    if kind == "chroma":
        collection = chromadb.EphemeralClient().create_collection(next(_names), embedding_function=None)
        stage.kept["store"] = ChromaVectorStore(chroma_collection=collection)
    else:
        kinds = {"simple": SimpleVectorStore, "full": FullStore, "leaky": LeakyStore}
        stage.kept["store"] = kinds[kind]() if kind in kinds else None
    return stage.kept["store"]


def make_pipeline(
    stage: Stage, *, store: str = "chroma", strategy: DocstoreStrategy | None = None,
    steps: Callable[[Stage], list[TransformComponent]] | None = None, **settings: Any,
) -> IngestionPipeline:  # fmt: skip
    """Split and embed in batches of four."""
    stage.engines.llm.answer = reply
    stage.engines.embedding.embed_batch_size = 4
    docstore = stage.kept["docstore"] = SimpleDocumentStore() if strategy else None
    cache = stage.kept["cache"] = IngestionCache()
    return IngestionPipeline(
        transformations=steps(stage) if steps else [splitter(), stage.engines.embedding],
        vector_store=make_store(stage, store), docstore=docstore, cache=cache,
        docstore_strategy=strategy or DocstoreStrategy.UPSERTS, **settings,
    )  # fmt: skip


def stored(component: Any, stage: Stage) -> Any:
    """All that is written: vectors, documents and cached nodes."""
    store, docstore, cache = (stage.kept.get(name) for name in ("store", "docstore", "cache"))
    return {
        "store": _content(store),
        "docstore": docstore.to_dict() if docstore else None,
        "cache": [*cache.cache.to_dict().values()] if cache else None,
    }


def embedded(component: Any, stage: Stage) -> Any:
    """The texts that were embedded, as often as each was."""
    return sorted(map(str, stage.engines.embedder.seen))


def _content(store: Any) -> Any:
    if isinstance(store, ChromaVectorStore):
        found = store._collection.get(include=["embeddings", "documents", "metadatas"])
        vectors = [[float(x) for x in each] for each in found["embeddings"]]
        return [found["ids"], vectors, found["documents"], found["metadatas"]]
    return store.data.to_dict() if store else None


def running(form: str, *rounds: dict[str, Any]) -> Callable[[Any], Any]:
    """Run once for each of `rounds`; the nodes, or the error, of each."""

    def act(pipeline: Any) -> Any:
        return arun(pipeline) if form == "arun" else run(pipeline)

    def run(pipeline: Any) -> list[Any]:
        results: list[Any] = []
        for arguments in rounds:
            try:
                results.append(picture(pipeline.run(**_fresh(arguments))))
            except Exception as e:
                results.append(e)
        return results

    async def arun(pipeline: Any) -> list[Any]:
        results: list[Any] = []
        for arguments in rounds:
            try:
                results.append(picture(await pipeline.arun(**_fresh(arguments))))
            except Exception as e:
                results.append(e)
        return results

    return act


def _fresh(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: [each.model_copy(deep=True) for each in value] if isinstance(value, list) else value
            for name, value in arguments.items()}  # fmt: skip


def changed_documents() -> list[Document]:
    """One is other, one is gone, one is there twice, one is new."""
    first, _, third, *others = documents()
    return [first, third, third, Document(text="Wholly new words. " * 30, id_="new"),
            *(Document(text=f"Other words. {each.text}", id_=each.id_) for each in others)]  # fmt: skip


# --- pipelines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", RUNS)
@pytest.mark.parametrize("store", STORES)
def test_split_embed_and_store(store: str, form: str) -> None:
    def build(stage: Stage) -> Any:
        return make_pipeline(stage, store=store)

    outcome = same(build, running(form, {"documents": documents()}), exact=form == "run", look=stored)
    assert len(outcome[0]) > 12


@pytest.mark.parametrize("form", RUNS)
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("strategy", DocstoreStrategy)
def test_strategies_of_docstores(strategy: DocstoreStrategy, store: str, form: str) -> None:
    rounds = [{"documents": documents()}, {"documents": changed_documents()}, {"documents": changed_documents()}]

    def build(stage: Stage) -> Any:
        return make_pipeline(stage, store=store, strategy=strategy)

    same(build, running(form, *rounds), exact=form == "run", look=stored)


@pytest.mark.parametrize("form", RUNS)
def test_a_cache_serves_the_second_run(form: str) -> None:
    rounds = [{"documents": documents()}, {"documents": documents()}, {"documents": documents(2)}]

    def look(component: Any, stage: Stage) -> Any:
        return [stored(component, stage), len(stage.engines.embedder.seen)]

    outcome = same(make_pipeline, running(form, *rounds), exact=form == "run", look=look)
    assert outcome[0] == outcome[1]


@pytest.mark.parametrize("form", RUNS)
def test_a_cache_that_knows_the_pieces_of_another_cut_is_asked_first(form: str) -> None:
    """The splitter was changed and runs again; it makes the same pieces, whose embeddings are in the cache."""
    short = {"documents": [Document(text=f"A sentence on hive {i}.", id_=f"d{i}") for i in range(4)]}

    def act(pipeline: Any) -> Any:
        first = running("run", short)(pipeline)
        pipeline.transformations[0].chunk_size += 1
        second = running(form, short)(pipeline)
        return [first, asyncio.run(second) if form == "arun" else second]

    same(make_pipeline, act, exact=form == "run", look=embedded, least_hits=4)


@pytest.mark.parametrize("form", RUNS)
def test_a_text_that_cannot_be_embedded_is_sent_once(form: str) -> None:
    """The embedding model has refused it before the pipeline comes to it."""

    def build(stage: Stage) -> Any:
        stage.engines.embedder.answer = lambda text: 1 / 0 if "Book 3." in text else vector(text)
        return make_pipeline(stage)

    def look(component: Any, stage: Stage) -> int:
        return sum("Book 3." in text for text in stage.engines.embedder.seen)

    rounds = [{"documents": documents()}]
    outcome = same(build, running(form, *rounds), exact=form == "run", look=look, least_hits=12)
    assert outcome == [["ZeroDivisionError", ["division by zero"]]]


@pytest.mark.parametrize("form", RUNS)
@pytest.mark.parametrize("arguments", [{"in_place": False}, {"cache_collection": "mine"}, {"store_doc_text": False}])
def test_arguments_of_a_run(arguments: dict[str, Any], form: str) -> None:
    def build(stage: Stage) -> Any:
        return make_pipeline(stage, strategy=DocstoreStrategy.UPSERTS, documents=documents(1))

    rounds = [{"nodes": notes("bees"), **arguments}, {"documents": documents(), **arguments}, {"documents": []}]
    same(build, running(form, *rounds), exact=form == "run", look=stored)


@pytest.mark.parametrize("form", RUNS)
@pytest.mark.parametrize("is_cached", [True, False])
def test_steps_that_ask_a_model_and_steps_of_the_users_own(is_cached: bool, form: str) -> None:
    def steps(stage: Stage) -> list[TransformComponent]:
        settings = {"llm": stage.engines.model, "show_progress": False}
        extractors = [KeywordExtractor(**settings), SummaryExtractor(**settings)]
        return [splitter(), *extractors, Marking(heard=stage.heard), stage.engines.embedding]

    def build(stage: Stage) -> Any:
        return make_pipeline(stage, steps=steps, disable_cache=not is_cached)

    same(build, running(form, {"documents": documents(3)}), exact=False, look=stored)


# --- what raises in the middle ----------------------------------------------------------------------------------------


def _breaking_splitter(stage: Stage) -> Any:
    return make_pipeline(
        stage, strategy=DocstoreStrategy.UPSERTS,
        steps=lambda stage: [splitter(BreakingSplitter), stage.engines.embedding],
    )  # fmt: skip


def _breaking_embedding(stage: Stage) -> Any:
    def fail(text: str) -> Any:
        if "Line 17" in text and "d3" not in text:
            raise RuntimeError("no vector for this")
        return vector(text)

    stage.engines.embedder.answer = fail
    return make_pipeline(stage, strategy=DocstoreStrategy.UPSERTS)


def _full_store(stage: Stage) -> Any:
    return make_pipeline(stage, store="full", strategy=DocstoreStrategy.UPSERTS)


def _leaky_store(stage: Stage) -> Any:
    return make_pipeline(stage, store="leaky", strategy=DocstoreStrategy.DUPLICATES_ONLY)


def _other_dimension(stage: Stage) -> Any:
    pipeline = make_pipeline(stage, strategy=DocstoreStrategy.UPSERTS)
    pipeline.vector_store._collection.add(ids=["old"], embeddings=[[1.0, 2.0, 3.0]], documents=["old"])
    return pipeline


BREAKING = (_breaking_splitter, _breaking_embedding, _full_store, _leaky_store, _other_dimension)


@pytest.mark.parametrize("form", RUNS)
@pytest.mark.parametrize("make", BREAKING)
def test_what_raises_in_the_middle(make: Callable[[Stage], Any], form: str) -> None:
    """And runs again, with what it can take."""
    rounds = [{"documents": documents()}, {"documents": documents(1)}, {"documents": documents()}]
    outcome = same(make, running(form, *rounds), exact=form == "run", look=stored)
    assert isinstance(outcome[0][0], str)
    assert outcome[0][0].endswith("Error")


def test_a_run_that_is_cancelled_writes_nothing() -> None:
    """While the embedding model is silent."""

    def build(stage: Stage) -> Any:
        stage.engines.embedder.gate = stage.kept["gate"] = asyncio.Event()
        return make_pipeline(stage, strategy=DocstoreStrategy.UPSERTS)

    async def cancel(pipeline: Any) -> str:
        task = asyncio.ensure_future(pipeline.arun(documents=documents()))
        await asyncio.sleep(0.1)
        task.cancel()
        return type((await asyncio.gather(task, return_exceptions=True))[0]).__name__

    def look(component: Any, stage: Stage) -> Any:
        runtime.host.loop.call_soon_threadsafe(stage.kept["gate"].set)
        return stored(component, stage)

    assert same(build, cancel, exact=False, look=look) == "CancelledError"


def test_two_runs_at_once() -> None:
    async def both(pipeline: Any) -> Any:
        found = await asyncio.gather(*(pipeline.arun(nodes=notes(topic)) for topic in ("bees", "hives")))
        return [picture(each) for each in found]

    same(make_pipeline, both, exact=False, look=lambda own, stage: sorted(_content(stage.kept["store"])[0]))


CHANGES: dict[str, Callable[[Any], object]] = {
    "steps": lambda pipeline: pipeline.transformations.insert(1, Marking(heard=[])),
    "store": lambda pipeline: setattr(pipeline, "vector_store", None),
    "strategy": lambda pipeline: setattr(pipeline, "docstore_strategy", DocstoreStrategy.DUPLICATES_ONLY),
    "cache": lambda pipeline: setattr(pipeline, "disable_cache", True),
    "size": lambda pipeline: setattr(pipeline.transformations[0], "chunk_size", 40),
}


@pytest.mark.parametrize("form", RUNS)
@pytest.mark.parametrize("name", CHANGES)
def test_changes_after_optimize(name: str, form: str) -> None:
    def build(stage: Stage) -> Any:
        return make_pipeline(stage, strategy=DocstoreStrategy.UPSERTS)

    rounds = [{"documents": documents()}, {"documents": changed_documents()}]
    same(build, running(form, *rounds), exact=form == "run", look=stored, change=CHANGES[name])


# --- indexes ----------------------------------------------------------------------------------------------------------


def make_index(stage: Stage, kind: str = "chroma") -> Any:
    stage.engines.llm.answer = reply
    storage = StorageContext.from_defaults(vector_store=make_store(stage, kind), docstore=SimpleDocumentStore())
    stage.kept["docstore"] = storage.docstore
    return VectorStoreIndex(
        notes("bees"), storage_context=storage, embed_model=stage.engines.embedding, transformations=[splitter()],
        callback_manager=stage.callback_manager, insert_batch_size=5,
    )  # fmt: skip


def _documents_and_nodes(index: Any) -> Any:
    index.insert(documents(1)[0])
    index.insert_nodes(notes("honey"))
    index.insert_nodes([])
    refreshed = index.refresh_ref_docs(changed_documents())
    index.update_ref_doc(Document(text="Other words. " * 20, id_="d0"))
    index.delete_ref_doc("d4", delete_from_docstore=True)
    index.delete_nodes(["honey-1"], delete_from_docstore=True)
    return [refreshed, sorted(index.ref_doc_info), [n.node_id for n in index.as_retriever().retrieve(QUESTION)]]


async def _documents_and_nodes_async(index: Any) -> Any:
    await index.ainsert(documents(1)[0])
    await index.ainsert_nodes(notes("honey"))
    refreshed = await index.arefresh_ref_docs(changed_documents())
    await index.adelete_ref_doc("d4", delete_from_docstore=True)
    return [refreshed, [n.node_id for n in await index.as_retriever().aretrieve(QUESTION)]]


def _ask(index: Any) -> Any:
    engine = index.as_query_engine(similarity_top_k=3, response_mode="accumulate")
    chat = index.as_chat_engine(chat_mode="condense_plus_context", memory=ChatMemoryBuffer.from_defaults())
    before = [str(engine.query(QUESTION)), index.as_retriever(similarity_top_k=2).retrieve(QUESTION)]
    index.insert_nodes(notes("hives"))
    return [*before, str(engine.query(QUESTION)), str(chat.chat(QUESTION)), type(index), type(engine), type(chat)]


def _all_missing(index: Any) -> Any:
    index.delete_nodes([node.node_id for node in notes("bees")], delete_from_docstore=True)
    return [str(index.as_query_engine().query(QUESTION)), index.as_retriever().retrieve(QUESTION)]


@pytest.mark.parametrize("act", [_documents_and_nodes, _documents_and_nodes_async, _ask, _all_missing])
@pytest.mark.parametrize("store", ["chroma", "simple"])
def test_an_index(store: str, act: Callable[[Any], Any]) -> None:
    def build(stage: Stage) -> Any:
        return make_index(stage, store)

    same(build, act, exact=not asyncio.iscoroutinefunction(act), look=stored)


@pytest.mark.filterwarnings("ignore:Call to deprecated method get_doc_id:DeprecationWarning")  # older LlamaIndex's own
@pytest.mark.parametrize("fault", ["embedding", "store"])
@pytest.mark.parametrize("method", ["insert_nodes", "insert", "ainsert_nodes"])
def test_an_insertion_that_raises(method: str, fault: str) -> None:
    def build(stage: Stage) -> Any:
        index = make_index(stage, "full" if fault == "store" else "chroma")
        if fault == "embedding":

            def fail(text: str) -> Any:
                if "honey 3" in text or "Line 17" in text:
                    raise RuntimeError("no vector for this")
                return vector(text)

            stage.engines.embedder.answer = fail
        return index

    def act(index: Any) -> Any:
        return getattr(index, method)(documents(1)[0] if method == "insert" else notes("honey"))

    outcome = same(build, act, exact=method != "ainsert_nodes", look=stored)
    assert outcome is None or outcome[0] in ("RuntimeError", "OSError")


@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize("fault", [None, "splitter", "embedding", "store"])
@pytest.mark.parametrize("store", ["chroma", "simple"])
def test_an_index_from_documents(store: str, fault: str | None, use_async: bool) -> None:
    stages: list[Stage] = []

    def build(stage: Stage) -> Any:
        stages.append(stage)
        make_pipeline(stage, store="full" if fault == "store" else store)
        if fault == "embedding":
            stage.engines.embedder.answer = lambda text: vector(text) if "Line 17" not in text else 1 / 0
        return VectorStoreIndex

    def act(cls: Any) -> Any:
        stage = stages[-1]
        storage = StorageContext.from_defaults(vector_store=stage.kept["store"], docstore=SimpleDocumentStore())
        stage.kept["docstore"] = storage.docstore
        index = cls.from_documents(
            documents(), storage, callback_manager=stage.callback_manager, embed_model=stage.engines.embedding,
            transformations=[splitter(BreakingSplitter if fault == "splitter" else SentenceSplitter)],
            insert_batch_size=6, use_async=use_async,
        )  # fmt: skip
        return [type(index), index.as_retriever(similarity_top_k=3).retrieve(QUESTION), index.index_struct.nodes_dict]

    outcome = same(build, act, exact=not use_async, look=stored)
    assert (outcome[0] == "VectorStoreIndex") == (fault is None)


def test_nodes_without_words_and_nodes_twice() -> None:
    def act(index: Any) -> Any:
        empty, twice = TextNode(text="", id_="empty"), TextNode(text="twice", id_="twice")
        index.insert_nodes([twice, empty])
        index.insert_nodes([twice])
        return index.as_retriever(similarity_top_k=9).retrieve("twice")

    same(make_index, act, look=stored)


def test_a_class_derived_from_the_optimized_one() -> None:
    stage = Stage()
    optimized: Any = teola_plugin.optimize(VectorStoreIndex)

    class Named(optimized):  # type: ignore[misc]
        def __init__(self, *args: Any, name: str = "none", **settings: Any) -> None:
            super().__init__(*args, **settings)
            self.name = name

    settings = {"embed_model": stage.engines.embedding, "transformations": [splitter()]}
    made = Named(notes("bees"), name="mine", **settings)
    assert (type(made), made.name, len(made.vector_store.data.embedding_dict)) == (Named, "mine", 6)
    assert type(Named.from_documents(documents(), **settings)) is Named
    index = optimized.from_documents(documents(), **settings)
    assert isinstance(index, optimized)
    assert issubclass(VectorStoreIndex, optimized)
    assert not isinstance(index, Named)
