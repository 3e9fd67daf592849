"""Models that are not ours: OpenAILike met at its raw methods, MiniLM and a cross-encoder at their libraries'."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.llms.openai_like import OpenAILike

from teola_plugin import api
from teola_plugin.adapters.llamaindex import adapter
from teola_plugin.api import OptimizedPipeline, Options
from tests.llamaindex_world import QUESTION, Engines, Record, answer, apart, index_of


class Server:
    """An OpenAI-compatible server in this process; `asked` are the bodies it was sent, `paths` where to."""

    def __init__(self, *, broken: bool = False) -> None:
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.broken = broken

    def model(self, *, is_chat_model: bool) -> OpenAILike:
        return OpenAILike(
            model="m", api_base="http://server/v1", api_key="none", is_chat_model=is_chat_model, max_tokens=64,
            context_window=4096, max_retries=0, http_client=httpx.Client(transport=httpx.MockTransport(self.answer)),
            async_http_client=httpx.AsyncClient(transport=httpx.MockTransport(self.aanswer)),
        )  # fmt: skip

    def answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.asked.append(body)
        self.paths.append(request.url.path)
        prompt = body.get("prompt") or json.dumps(body.get("messages"))
        if self.broken and "search queries" not in prompt:
            return httpx.Response(500, json={"error": {"message": "broken"}})
        text = answer(prompt)
        if body.get("stream"):
            return httpx.Response(
                200, content=b"".join(_chunks(body, text.pieces)), headers={"content-type": "text/event-stream"}
            )
        return httpx.Response(200, json=_reply(body, str(text)))

    async def aanswer(self, request: httpx.Request) -> httpx.Response:
        return self.answer(request)


def _reply(body: dict[str, Any], text: str, key: str = "message") -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    choice |= {key: {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
    kind = "chat.completion" if "messages" in body else "text_completion"
    return {"id": "1", "object": kind, "created": 0, "model": "m", "choices": [choice]}


def _chunks(body: dict[str, Any], pieces: tuple[str, ...]) -> list[bytes]:
    chunks = [f"data: {json.dumps(_reply(body, piece, 'delta'))}\n\n".encode() for piece in pieces]
    return [*chunks, b"data: [DONE]\n\n"]


def engine_of(llm: Any, *, mode: str = "accumulate", streaming: bool = False) -> RetrieverQueryEngine:
    engines = Engines()
    fusion = QueryFusionRetriever([index_of(engines).as_retriever(similarity_top_k=3)], llm=llm, use_async=False)
    return RetrieverQueryEngine(fusion, get_response_synthesizer(llm=llm, response_mode=mode, streaming=streaming))


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


def _optimized(engine: Any) -> Any:
    return adapter.twin(engine, OptimizedPipeline(engine, adapter, adapter.trace(engine), Options()))


def test_requests_for_a_coroutine_go_through_its_own_method() -> None:
    server = Server()
    traced = adapter.trace(engine_of(server.model(is_chat_model=True)))
    for is_async, method in ((False, "_chat"), (True, "_achat")):
        payload = traced.functions["request"].call(QUESTION, is_async)
        assert (payload.key[0], payload.is_async) == (method, is_async)
    assert server.asked == []


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

    from teola_plugin.runtime.engines.tiny_model import minilm_path, tiny_cross_encoder

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
