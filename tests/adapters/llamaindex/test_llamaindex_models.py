"""Models that are not ours: OpenAILike met at its raw methods, MiniLM and a cross-encoder at their libraries'."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import httpx
import pytest
from llama_index.core.evaluation import GuidelineEvaluator
from llama_index.core.query_engine import RetrieverQueryEngine, RetryQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.llms.openai_like import OpenAILike

from teola_plugin import api, pure
from teola_plugin.adapters.llamaindex import adapter
from teola_plugin.api import OptimizedPipeline, Options
from teola_plugin.passes import BRANCHES
from tests.support.fakes import FakeTransport
from tests.support.llamaindex_world import QUESTION, Engines, Record, answer, apart, index_of

IS_CALLER: ContextVar[bool] = ContextVar("is_caller", default=False)


class Server:
    """An OpenAI-compatible server in this process; `asked` are the bodies it was sent, `paths` where to.

    `refuses_strangers`: it answers only what the caller's own context asks for.
    """

    def __init__(self, *, broken: bool = False, refuses_strangers: bool = False) -> None:
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.threads: set[int] = set()
        self.broken = broken
        self.refuses_strangers = refuses_strangers
        self.has_refused = threading.Event()

    def model(self, *, is_chat_model: bool) -> OpenAILike:
        return OpenAILike(
            model="m", api_base="http://server/v1", api_key="none", is_chat_model=is_chat_model, max_tokens=64,
            context_window=4096, max_retries=0, http_client=httpx.Client(transport=FakeTransport(self.answer)),
            async_http_client=httpx.AsyncClient(transport=FakeTransport(self.aanswer)),
        )  # fmt: skip

    def answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.asked.append(body)
        self.paths.append(request.url.path)
        prompt = body.get("prompt") or json.dumps(body.get("messages"))
        if self.refuses_strangers and not IS_CALLER.get():
            self.has_refused.set()
            return httpx.Response(429, json={"error": {"message": "too many at once"}})
        if self.broken and "search queries" not in prompt:
            return httpx.Response(500, json={"error": {"message": "broken"}})
        text = answer(prompt)
        if body.get("stream"):
            return httpx.Response(
                200, content=b"".join(_chunks(body, text.pieces)), headers={"content-type": "text/event-stream"}
            )
        return httpx.Response(200, json=_reply(body, str(text)))

    async def aanswer(self, request: httpx.Request) -> httpx.Response:
        self.threads.add(threading.get_ident())
        return self.answer(request)


def _reply(body: dict[str, Any], text: str, key: str = "message") -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    choice |= {key: {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
    kind = "chat.completion" if "messages" in body else "text_completion"
    return {"id": "1", "object": kind, "created": 0, "model": "m", "choices": [choice]}


def _chunks(body: dict[str, Any], pieces: tuple[str, ...]) -> list[bytes]:
    chunks = [f"data: {json.dumps(_reply(body, piece, 'delta'))}\n\n".encode() for piece in pieces]
    return [*chunks, b"data: [DONE]\n\n"]


def engine_of(
    llm: Any, *, mode: str = "accumulate", streaming: bool = False, use_async: bool = False
) -> RetrieverQueryEngine:
    engines = Engines()
    fusion = QueryFusionRetriever([index_of(engines).as_retriever(similarity_top_k=3)], llm=llm, use_async=False)
    return RetrieverQueryEngine(
        fusion, get_response_synthesizer(llm=llm, response_mode=mode, streaming=streaming, use_async=use_async)
    )


def ask(engine: Any, is_async: bool) -> Any:
    """What comes out, streams read to their end; exceptions by type."""

    def run() -> Any:
        try:
            return asyncio.run(_aask(engine)) if is_async else str(engine.query(QUESTION))
        except Exception as e:
            return type(e)

    return apart(run)


async def _aask(engine: Any) -> str:
    response = await engine.aquery(QUESTION)
    stream: AsyncIterator[str] | None = getattr(response, "response_gen", None)
    return "".join([chunk async for chunk in stream]) if stream else str(response)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_chat_model", [True, False])
@pytest.mark.parametrize("mode", ["accumulate", "tree_summarize", "compact", "generation"])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_servers_model_answers_the_same_and_is_asked_no_more(
    is_async: bool, is_chat_model: bool, mode: str, streaming: bool
) -> None:
    outcomes, bodies, said = [], [], []
    for is_optimized in (False, True):
        server = Server()
        with Record() as record:
            engine: Any = engine_of(server.model(is_chat_model=is_chat_model), mode=mode, streaming=streaming)
            record.said.clear()
            if is_optimized:
                calls = OptimizedPipeline(engine, adapter, adapter.trace(engine), Options())
                engine = adapter.twin(engine, calls)
            outcomes.append(ask(engine, is_async))
        bodies.append(sorted(map(str, server.asked)))
        said.append(sorted(map(str, record.said)))
    assert outcomes[1] == outcomes[0]
    assert bodies[1] == bodies[0]
    assert said[1] == said[0]
    assert calls.reports[0].fallbacks == ()


def test_an_error_of_the_server_is_the_frameworks_own() -> None:
    for is_async in (False, True):
        server = Server(broken=True)
        engine: Any = engine_of(server.model(is_chat_model=True))
        original = ask(engine, is_async)
        assert issubclass(original, Exception)
        assert ask(_optimized(engine), is_async) is original


def _asked(build: Callable[[Any], Any], *, is_async: bool, broken: bool = False) -> list[int]:
    """How often the server was asked: by the original, and by the optimized engine."""
    counts = []
    for is_optimized in (False, True):
        server = Server(broken=broken)
        engine = build(server.model(is_chat_model=True))
        ask(_optimized(engine) if is_optimized else engine, is_async)
        counts.append(len(server.asked))
    return counts


def test_two_models_of_a_pipeline_are_two_engines() -> None:
    """Each has a queue of its own: one that is kept waiting by many calls does not hold up the other."""
    writing, answering = (Server().model(is_chat_model=True) for _ in range(2))
    fusion = QueryFusionRetriever([index_of(Engines()).as_retriever()], llm=writing)
    traced = adapter.trace(RetrieverQueryEngine(fusion, get_response_synthesizer(llm=answering)))
    resources = [spec.resource for spec in traced.engines.values() if spec.kind == "python"]
    assert len(resources) == 2
    assert resources[0] is writing
    assert resources[1] is answering


class Own(BaseRetriever):
    """A retriever of the user's own."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text="a note", id_="own"), score=0.5)]


@pytest.mark.parametrize("is_async", [False, True])
def test_the_queries_of_a_fusion_are_asked_for_once(is_async: bool) -> None:
    def build(llm: Any) -> Any:
        fusion = QueryFusionRetriever([index_of(Engines()).as_retriever(), Own()], llm=llm, use_async=False)
        return RetrieverQueryEngine(fusion, get_response_synthesizer(llm=llm))

    assert _asked(build, is_async=is_async) == [2, 2]


def _retrying(llm: Any, *, streaming: bool = False) -> RetryQueryEngine:
    found = get_response_synthesizer(llm=llm, streaming=streaming)
    engine = RetrieverQueryEngine(index_of(Engines()).as_retriever(), found)
    return RetryQueryEngine(engine, GuidelineEvaluator(llm), max_retries=1)


def test_an_error_on_a_thread_beside_the_loop_is_not_asked_for_again() -> None:
    assert _asked(_retrying, is_async=True, broken=True) == [1, 1]


def test_a_stream_is_not_read_on_a_thread_beside_the_loop() -> None:
    before, after = _asked(partial(_retrying, streaming=True), is_async=True)
    assert before == after


def _optimized(engine: Any, options: Options = Options()) -> Any:  # noqa: B008
    return adapter.twin(engine, OptimizedPipeline(engine, adapter, adapter.trace(engine), options))


class Waiting(BaseRetriever):
    """Finds its node once the server has refused somebody."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server = server

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        assert self.server.has_refused.wait(60)
        return [NodeWithScore(node=TextNode(text="a note"), score=0.5)]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


@pytest.mark.parametrize("is_async", [False, True])
def test_what_failed_only_for_running_ahead_is_asked_again(is_async: bool) -> None:
    server = Server(refuses_strangers=True)
    llm = server.model(is_chat_model=True)
    engine = RetrieverQueryEngine(Waiting(server), get_response_synthesizer(llm=llm, response_mode="generation"))
    optimized = _optimized(engine, Options(passes=BRANCHES))  # the retriever may raise

    def run() -> Any:
        IS_CALLER.set(True)
        return asyncio.run(_aask(optimized)) if is_async else str(optimized.query(QUESTION))

    answered = apart(run)
    assert len(server.asked) == 2
    assert server.asked[0] == server.asked[1]
    assert answered == answer(json.dumps(server.asked[0]["messages"]))


def test_coroutines_on_a_loop_of_the_frameworks_own_do_not_run_ahead() -> None:
    server = Server()
    engine: Any = engine_of(server.model(is_chat_model=True), use_async=True)
    traced = adapter.trace(engine)
    assert [b.code for b in traced.breaks] == ["TB215"]
    nodes = [NodeWithScore(node=TextNode(text="a note"), score=0.5)] * 2
    assert apart(traced.functions["rehearse"].call, QUESTION, nodes, False) == []
    assert all(a.payload.is_async for a in apart(traced.functions["rehearse"].call, QUESTION, nodes, True))
    outcomes, threads = [], []
    for asked in (engine, _optimized(engine)):
        outcomes.append(ask(asked, False))
        threads.append(len(server.threads))
        server.threads.clear()
    assert outcomes[1] == outcomes[0]
    assert threads == [1, 1]


def test_a_subclass_of_the_users_is_known_once_it_is_declared() -> None:
    written: list[Any] = []

    class Audited(OpenAILike):
        def chat(self, messages: Any, **kwargs: Any) -> Any:
            written.append(messages)
            return super().chat(messages, **kwargs)

    class Renamed(OpenAILike):
        """As it was."""

    @pure
    class Declared(Audited):
        pass

    fields: dict[str, Any] = {"model": "m", "api_base": "http://server/v1", "api_key": "none", "is_chat_model": True}
    assert {b.code for b in adapter.trace(engine_of(Audited(**fields))).breaks} == {"TB208"}
    assert written == []
    for cls in (Renamed, Declared):
        assert adapter.trace(engine_of(cls(**fields))).breaks == ()


def test_requests_for_a_coroutine_go_through_its_own_method() -> None:
    server = Server()
    traced = adapter.trace(engine_of(server.model(is_chat_model=True)))
    has_coroutine = hasattr(QueryFusionRetriever, "_aget_queries")  # older releases block the loop
    for is_async, method in ((False, "_chat"), (True, "_achat" if has_coroutine else "_chat")):
        payload = traced.functions["request"].call(QUESTION, is_async)
        assert (payload.call.method, payload.is_async) == (method, is_async and has_coroutine)
    assert server.asked == []


@pytest.mark.skipif("rate_limiter" not in OpenAILike.model_fields, reason="models of older releases have no limiters")
def test_a_limiter_before_the_model_is_respected() -> None:
    class Limiter:
        acquired = 0

        def acquire(self) -> None:
            self.acquired += 1

    server = Server()
    llm = server.model(is_chat_model=True)
    llm.rate_limiter = Limiter()
    engine: Any = engine_of(llm)
    assert {b.code for b in adapter.trace(engine).breaks} == {"TB208"}
    assert ask(_optimized(engine), False) == ask(engine, False)
    assert llm.rate_limiter.acquired == len(server.asked)


@pytest.mark.real
@pytest.mark.parametrize("is_async", [False, True])
def test_minilm_and_a_cross_encoder(is_async: bool) -> None:
    import chromadb
    from llama_index.core import StorageContext, VectorStoreIndex
    from llama_index.core.postprocessor import SentenceTransformerRerank
    from llama_index.core.schema import TextNode
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding
    from llama_index.vector_stores.chroma import ChromaVectorStore

    from teola_plugin.demo.tiny_model import minilm_path, tiny_cross_encoder

    collection = chromadb.EphemeralClient().create_collection(f"real-{is_async}", embedding_function=None)
    storage = StorageContext.from_defaults(vector_store=ChromaVectorStore(chroma_collection=collection))
    embedding = HuggingFaceEmbedding(str(minilm_path()), device="cpu")
    nodes = [TextNode(text=f"The keeper of hive {i} is number {i * i}.", id_=f"n{i}") for i in range(20)]
    index = VectorStoreIndex(nodes, storage_context=storage, embed_model=embedding)
    engines = Engines()
    fusion = QueryFusionRetriever([index.as_retriever(similarity_top_k=6)], llm=engines.model, mode="reciprocal_rerank")
    rerank = SentenceTransformerRerank(model=str(tiny_cross_encoder()), top_n=3, device="cpu")
    synthesizer = get_response_synthesizer(llm=engines.model, response_mode="accumulate")
    engine: Any = RetrieverQueryEngine(fusion, synthesizer, [rerank])
    original = ask(engine, is_async)
    optimized = api.optimize(engine)
    assert ask(optimized, is_async) == original
    (report,) = api.optimized(optimized).reports
    assert report.hits + report.shared > report.misses
    assert report.fallbacks == ()


@pytest.mark.real
def test_a_cross_encoder_whose_call_items_cannot_express_is_waited_for() -> None:
    from llama_index.core.postprocessor import SentenceTransformerRerank

    from teola_plugin.demo.tiny_model import tiny_cross_encoder

    rerank = SentenceTransformerRerank(model=str(tiny_cross_encoder()), device="cpu")
    rerank._model._distributed_inference = object()
    engine = engine_of(Engines().model)
    engine._node_postprocessors = [rerank]
    assert [b.code for b in adapter.trace(engine).breaks] == ["TB202"]
