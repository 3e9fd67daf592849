"""LlamaIndex components on engines: LLM, embedding and reranker.

    engine = VllmEngine("/models/llama")
    query_engine = index.as_query_engine(llm=EngineLLM(engine=engine, max_tokens=64))

Further settings of the engine go into `settings`, or into a call: `llm.complete(prompt, top_k=5)`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
    TextBlock,
)
from llama_index.core.bridge.pydantic import Field
from llama_index.core.callbacks import CBEventType, EventPayload
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.llm import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from teola_plugin.engines import Engine, EngineSpec
from teola_plugin.errors import EngineError
from teola_plugin.models.asking import (
    DEFAULT_MAX_TOKENS,
    apieces,
    aresults,
    ask,
    finish_reason,
    identity_of,
    pieces,
    render,
    results,
    sampling_settings,
    spec_of,
    usage,
)
from teola_plugin.seams import Reply


class EngineLLM(LLM):
    """An LLM on an engine, for chat (by default) or for plain completion.

    Greedy by default; `None` leaves a setting to the engine. Chat prompts are rendered by the engine's own template
    unless `messages_to_prompt` is given.
    """

    engine: Engine = Field(exclude=True, repr=False)
    temperature: float | None = 0.0
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    context_window: int = 4096
    is_chat_model: bool = True
    stop: list[str] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    model: str = ""
    """The identity of the answers in the caches of ingestion, as given by the engine."""

    def __init__(self, **fields: Any) -> None:
        engine = fields.get("engine")
        if engine is not None:
            fields.setdefault("model", _identity(engine))
        if engine is not None and fields.get("messages_to_prompt") is None:
            fields["messages_to_prompt"] = lambda messages: render(engine, [_message(m) for m in messages])
        super().__init__(**fields)

    @classmethod
    def class_name(cls) -> str:
        """Return the name in serialised pipelines."""
        return "EngineLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """The metadata by which LlamaIndex sizes prompts."""
        return LLMMetadata(
            context_window=self.context_window, num_output=self.max_tokens or DEFAULT_MAX_TOKENS,
            is_chat_model=self.is_chat_model, model_name=self.engine.name,
        )  # fmt: skip

    @property
    def spec(self) -> EngineSpec:
        """The engine, as named in a graph."""
        return spec_of(self.engine)

    def request_for(
        self, messages_or_prompt: Sequence[ChatMessage] | str, stop: Sequence[str] | None = None, *,
        formatted: bool = False, **kwargs: Any,
    ) -> tuple[str, dict[str, Any]]:  # fmt: skip
        """Return prompt and settings of the `decoding` made by `chat` (for messages) or `complete` (for a text).

        Raises: EngineError if a message is not plain text.
        """
        own = {"temperature": self.temperature, "max_tokens": self.max_tokens, "stop": self.stop}
        asked = {**kwargs, "stop": stop} if stop is not None else kwargs
        settings = sampling_settings(own, self.settings, asked)
        if not isinstance(messages_or_prompt, str):
            return str(self.messages_to_prompt(messages_or_prompt)), settings  # type: ignore[misc]
        if not formatted:
            messages_or_prompt = self.completion_to_prompt(messages_or_prompt)  # type: ignore[misc]
        return str(messages_or_prompt), settings

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Return the whole answer."""
        (completion,) = results([self._ask(messages, kwargs)])
        return _chatted(completion)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Return the whole answer."""
        (completion,) = await aresults([self._ask(messages, kwargs)])
        return _chatted(completion)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Return the whole answer."""
        (completion,) = results([self._ask(prompt, {"formatted": formatted, **kwargs})])
        return _completed(completion)

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Return the whole answer."""
        (completion,) = await aresults([self._ask(prompt, {"formatted": formatted, **kwargs})])
        return _completed(completion)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Yield one response per token, and a last response with the usage."""
        return _chat_told(self._ask(messages, kwargs))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Yield one response per token, and a last response with the usage."""
        return _told(self._ask(prompt, {"formatted": formatted, **kwargs}))

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """Yield one response per token, and a last response with the usage."""
        return _achat_told(self._ask(messages, kwargs))

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        """Yield one response per token, and a last response with the usage."""
        return _atold(self._ask(prompt, {"formatted": formatted, **kwargs}))

    def _ask(self, messages_or_prompt: Sequence[ChatMessage] | str, kwargs: dict[str, Any]) -> Reply:
        prompt, settings = self.request_for(messages_or_prompt, **kwargs)
        return ask(self.engine, "decoding", [prompt], settings)[0]


def _identity(engine: Engine) -> str:
    return "/".join(identity_of(engine).values())


class EngineEmbedding(BaseEmbedding):
    """Embeddings on an engine; the texts of a call are a single request."""

    engine: Engine = Field(exclude=True, repr=False)
    settings: dict[str, Any] = Field(default_factory=dict)

    def __init__(self, **fields: Any) -> None:
        if engine := fields.get("engine"):
            fields.setdefault("model_name", _identity(engine))
        super().__init__(**fields)

    @classmethod
    def class_name(cls) -> str:
        """Return the name in serialised pipelines."""
        return "EngineEmbedding"

    @property
    def spec(self) -> EngineSpec:
        """The engine, as named in a graph."""
        return spec_of(self.engine)

    def request_for(self, text: str) -> tuple[str, dict[str, Any]]:
        """Return payload and settings of the `embedding` of one text, be it a query or a node's text."""
        return str(text), dict(self.settings)

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [vector.tolist() for vector in results(self._ask(texts))]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [vector.tolist() for vector in await aresults(self._ask(texts))]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await self._aget_text_embedding(query)

    def _ask(self, texts: Sequence[str]) -> list[Reply]:
        return ask(self.engine, "embedding", [self.request_for(text)[0] for text in texts], self.settings)


class EngineRerank(BaseNodePostprocessor):
    """Keeps the `top_n` nodes with the highest scores for the query, best first, with the new score.

    `keep_retrieval_score`: the earlier score is kept in the metadata as `retrieval_score`.
    """

    engine: Engine = Field(exclude=True, repr=False)
    top_n: int = 2
    keep_retrieval_score: bool = False
    settings: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def class_name(cls) -> str:
        """Return the name in serialised pipelines."""
        return "EngineRerank"

    @property
    def spec(self) -> EngineSpec:
        """The engine, as named in a graph."""
        return spec_of(self.engine)

    def request_for(self, query: QueryBundle | str, node: NodeWithScore) -> tuple[tuple[str, str], dict[str, Any]]:
        """Return payload and settings of the `reranking` of one node."""
        asked = query.query_str if isinstance(query, QueryBundle) else query
        return (asked, node.node.get_content(metadata_mode=MetadataMode.EMBED)), dict(self.settings)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = _given(query_bundle)
        with self._event(nodes, query) as ended:
            return ended(self._best(nodes, results(self._ask(nodes, query))))

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = _given(query_bundle)
        with self._event(nodes, query) as ended:
            return ended(self._best(nodes, await aresults(self._ask(nodes, query))))

    def _ask(self, nodes: Sequence[NodeWithScore], query: QueryBundle) -> list[Reply]:
        payloads = [self.request_for(query, node)[0] for node in nodes]
        return ask(self.engine, "reranking", payloads, self.settings)

    def _best(self, nodes: Sequence[NodeWithScore], scores: Sequence[float]) -> list[NodeWithScore]:
        for node, score in zip(nodes, scores, strict=True):
            if self.keep_retrieval_score:
                node.node.metadata["retrieval_score"] = node.score
            node.score = float(score)
        return sorted(nodes, key=lambda node: -(node.score or 0.0))[: self.top_n]

    @contextlib.contextmanager
    def _event(
        self, nodes: Sequence[NodeWithScore], query: QueryBundle
    ) -> Iterator[Callable[[list[NodeWithScore]], list[NodeWithScore]]]:
        payload: dict[str, Any] = {
            EventPayload.NODES: nodes, EventPayload.MODEL_NAME: self.engine.name,
            EventPayload.QUERY_STR: query.query_str, EventPayload.TOP_K: self.top_n,
        }  # fmt: skip
        with self.callback_manager.event(CBEventType.RERANKING, payload=payload) as event:

            def ended(best: list[NodeWithScore]) -> list[NodeWithScore]:
                event.on_end(payload={EventPayload.NODES: best})
                return best

            yield ended


def _given(query: QueryBundle | None) -> QueryBundle:
    if query is None:
        raise ValueError("reranking needs a query")  # the error type of LlamaIndex
    return query


def _message(message: ChatMessage) -> dict[str, Any]:
    if strange := [block.block_type for block in message.blocks if not isinstance(block, TextBlock)]:
        raise EngineError(f"an engine takes text only, not a block of type {strange[0]!r}")
    return {"role": MessageRole(message.role).value, "content": message.content or ""}


def _counts(completion: str) -> dict[str, Any]:
    """Return the token counts under the names expected by LlamaIndex's token counter."""
    counts = usage(completion)
    if counts is None:
        return {}
    return {
        "prompt_tokens": counts["input_tokens"],
        "completion_tokens": counts["output_tokens"],
        "total_tokens": counts["total_tokens"],
    }


def _completed(completion: str, delta: str | None = None) -> CompletionResponse:
    raw = {"finish_reason": finish_reason(completion), "usage": _counts(completion)}
    return CompletionResponse(text=str(completion), delta=delta, raw=raw, additional_kwargs=_counts(completion))


def _chatted(completion: str) -> ChatResponse:
    return _as_chat(_completed(completion))


def _as_chat(response: CompletionResponse) -> ChatResponse:
    return ChatResponse(
        message=ChatMessage(role=MessageRole.ASSISTANT, content=response.text), delta=response.delta,
        raw=response.raw, additional_kwargs=response.additional_kwargs,
    )  # fmt: skip


def _told(reply: Reply) -> Generator[CompletionResponse, None, None]:
    text = ""
    with contextlib.closing(pieces(reply)) as deltas:
        for delta in deltas:
            text += delta
            yield CompletionResponse(text=text, delta=delta)
    yield _completed(reply.result(), "")


def _chat_told(reply: Reply) -> Generator[ChatResponse, None, None]:
    with contextlib.closing(_told(reply)) as responses:
        yield from map(_as_chat, responses)


async def _atold(reply: Reply) -> AsyncGenerator[CompletionResponse, None]:
    text = ""
    async with contextlib.aclosing(apieces(reply)) as deltas:
        async for delta in deltas:
            text += delta
            yield CompletionResponse(text=text, delta=delta)
    yield _completed(await reply.aresult(), "")


async def _achat_told(reply: Reply) -> AsyncGenerator[ChatResponse, None]:
    async with contextlib.aclosing(_atold(reply)) as responses:
        async for response in responses:
            yield _as_chat(response)
