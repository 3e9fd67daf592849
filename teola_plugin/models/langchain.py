"""LangChain components on engines: chat model, LLM, embeddings and reranker.

    engine = VllmEngine("/models/llama")
    chain = prompt | EngineChatModel(engine=engine, max_tokens=64) | StrOutputParser()

Further settings of the engine go into `settings`, or into a call: `model.bind(structured_outputs={"choice": [...]})`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForLLMRun,
    CallbackManagerForLLMRun,
    Callbacks,
)
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel, BaseLLM, LangSmithParams, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ChatMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import (
    ChatGeneration,
    ChatGenerationChunk,
    ChatResult,
    Generation,
    GenerationChunk,
    LLMResult,
)
from pydantic import ConfigDict, Field

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

ROLES = {"human": "user", "ai": "assistant"}


class EngineChatModel(BaseChatModel):
    """A chat model on an engine. Greedy unless told otherwise; `None` leaves a setting to the engine."""

    engine: Engine = Field(exclude=True, repr=False)
    temperature: float | None = 0.0
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    stop: list[str] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)

    @property
    def spec(self) -> EngineSpec:
        """The engine as a graph names it."""
        return spec_of(self.engine)

    def request_for(
        self, messages: LanguageModelInput, stop: Sequence[str] | None = None, **kwargs: Any
    ) -> tuple[str, dict[str, Any]]:
        """Prompt and settings of the `decoding` that a call with these arguments makes.

        Raises: EngineError if a message is not plain text.
        """
        conversation = [_message(m) for m in self._convert_input(messages).to_messages()]
        return render(self.engine, conversation), _settings(self, stop, kwargs)

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None, **kwargs: Any,
    ) -> ChatResult:  # fmt: skip
        prompt, settings = self.request_for(messages, stop, **kwargs)
        (completion,) = results(ask(self.engine, "decoding", [prompt], settings))
        return self._result(completion)

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None, **kwargs: Any,
    ) -> ChatResult:  # fmt: skip
        prompt, settings = self.request_for(messages, stop, **kwargs)
        (completion,) = await aresults(ask(self.engine, "decoding", [prompt], settings))
        return self._result(completion)

    def _stream(
        self, messages: list[BaseMessage], stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None, **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:  # fmt: skip
        prompt, settings = self.request_for(messages, stop, **kwargs)
        (reply,) = ask(self.engine, "decoding", [prompt], settings)
        with contextlib.closing(pieces(reply)) as texts:
            for text in texts:
                chunk = ChatGenerationChunk(message=AIMessageChunk(content=text))
                if run_manager:
                    run_manager.on_llm_new_token(text, chunk=chunk)
                yield chunk
        yield self._last_chunk(reply.result())

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None, **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:  # fmt: skip
        prompt, settings = self.request_for(messages, stop, **kwargs)
        (reply,) = ask(self.engine, "decoding", [prompt], settings)
        async with contextlib.aclosing(apieces(reply)) as texts:
            async for text in texts:
                chunk = ChatGenerationChunk(message=AIMessageChunk(content=text))
                if run_manager:
                    await run_manager.on_llm_new_token(text, chunk=chunk)
                yield chunk
        yield self._last_chunk(await reply.aresult())

    def _result(self, completion: str) -> ChatResult:
        message = AIMessage(
            content=str(completion), response_metadata=self._metadata(completion), usage_metadata=_usage(completion)
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _last_chunk(self, completion: str) -> ChatGenerationChunk:
        message = AIMessageChunk(
            content="", response_metadata=self._metadata(completion), usage_metadata=_usage(completion),
            chunk_position="last",
        )  # fmt: skip
        return ChatGenerationChunk(message=message)

    def _metadata(self, completion: str) -> dict[str, Any]:
        return {"finish_reason": finish_reason(completion), "model_name": self.engine.name}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return _traced_as(self.engine, super()._get_ls_params(stop, **kwargs))

    @property
    def _llm_type(self) -> str:
        return "teola-engine-chat"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {**identity_of(self.engine), **_settings(self, None, {})}


class EngineLLM(BaseLLM):
    """A completion model on an engine; many prompts at once are one request of many items."""

    engine: Engine = Field(exclude=True, repr=False)
    temperature: float | None = 0.0
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    stop: list[str] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)

    @property
    def spec(self) -> EngineSpec:
        """The engine as a graph names it."""
        return spec_of(self.engine)

    def request_for(
        self, prompt: LanguageModelInput, stop: Sequence[str] | None = None, **kwargs: Any
    ) -> tuple[str, dict[str, Any]]:
        """Prompt and settings of the `decoding` that a call with these arguments makes."""
        text = prompt if isinstance(prompt, str) else self._convert_input(prompt).to_string()
        return text, _settings(self, stop, kwargs)

    def _generate(
        self, prompts: list[str], stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None, **kwargs: Any,
    ) -> LLMResult:  # fmt: skip
        settings = _settings(self, stop, kwargs)
        return self._result(results(ask(self.engine, "decoding", prompts, settings)))

    async def _agenerate(
        self, prompts: list[str], stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None, **kwargs: Any,
    ) -> LLMResult:  # fmt: skip
        settings = _settings(self, stop, kwargs)
        return self._result(await aresults(ask(self.engine, "decoding", prompts, settings)))

    def _stream(
        self, prompt: str, stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None, **kwargs: Any,
    ) -> Iterator[GenerationChunk]:  # fmt: skip
        text, settings = self.request_for(prompt, stop, **kwargs)
        (reply,) = ask(self.engine, "decoding", [text], settings)
        with contextlib.closing(pieces(reply)) as texts:
            for piece in texts:
                chunk = GenerationChunk(text=piece)
                if run_manager:
                    run_manager.on_llm_new_token(piece, chunk=chunk)
                yield chunk
        yield GenerationChunk(text="", generation_info={"finish_reason": finish_reason(reply.result())})

    async def _astream(
        self, prompt: str, stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None, **kwargs: Any,
    ) -> AsyncIterator[GenerationChunk]:  # fmt: skip
        text, settings = self.request_for(prompt, stop, **kwargs)
        (reply,) = ask(self.engine, "decoding", [text], settings)
        async with contextlib.aclosing(apieces(reply)) as texts:
            async for piece in texts:
                chunk = GenerationChunk(text=piece)
                if run_manager:
                    await run_manager.on_llm_new_token(piece, chunk=chunk)
                yield chunk
        yield GenerationChunk(text="", generation_info={"finish_reason": finish_reason(await reply.aresult())})

    def _result(self, completions: Sequence[str]) -> LLMResult:
        generations = [
            [Generation(text=str(c), generation_info={"finish_reason": finish_reason(c)})] for c in completions
        ]
        counted = [counts for c in completions if (counts := usage(c))]
        total = {
            "prompt_tokens": sum(c["input_tokens"] for c in counted),
            "completion_tokens": sum(c["output_tokens"] for c in counted),
            "total_tokens": sum(c["total_tokens"] for c in counted),
        }
        return LLMResult(generations=generations, llm_output={"token_usage": total, "model_name": self.engine.name})

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return _traced_as(self.engine, super()._get_ls_params(stop, **kwargs))

    @property
    def _llm_type(self) -> str:
        return "teola-engine"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {**identity_of(self.engine), **_settings(self, None, {})}


class EngineEmbeddings(Embeddings):
    """Embeddings on an engine; the texts of one call are one request. `settings` are the engine's own."""

    def __init__(self, engine: Engine, **settings: Any) -> None:
        self.engine = engine
        self.settings = settings

    @property
    def spec(self) -> EngineSpec:
        """The engine as a graph names it."""
        return spec_of(self.engine)

    def request_for(self, text: str) -> tuple[str, dict[str, Any]]:
        """Payload and settings of the `embedding` of one text, be it a query or a document."""
        return str(text), dict(self.settings)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector per text."""
        return [vector.tolist() for vector in results(self._ask(texts))]

    def embed_query(self, text: str) -> list[float]:
        """The vector of one text."""
        return self.embed_documents([text])[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector per text."""
        return [vector.tolist() for vector in await aresults(self._ask(texts))]

    async def aembed_query(self, text: str) -> list[float]:
        """The vector of one text."""
        return (await self.aembed_documents([text]))[0]

    def _ask(self, texts: Sequence[str]) -> list[Any]:
        return ask(self.engine, "embedding", [self.request_for(text)[0] for text in texts], self.settings)


class EngineReranker(BaseDocumentCompressor):
    """Keeps the `top_n` documents that score highest against the query, best first.

    Each is a copy with its score in `metadata["relevance_score"]`. Documents of equal score stay in their order.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    engine: Engine = Field(exclude=True, repr=False)
    top_n: int = 3
    settings: dict[str, Any] = Field(default_factory=dict)

    @property
    def spec(self) -> EngineSpec:
        """The engine as a graph names it."""
        return spec_of(self.engine)

    def request_for(self, query: str, document: Document | str) -> tuple[tuple[str, str], dict[str, Any]]:
        """Payload and settings of the `reranking` of one document."""
        passage = document.page_content if isinstance(document, Document) else document
        return (str(query), str(passage)), dict(self.settings)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The best documents."""
        return self._best(documents, results(self._ask(documents, query)))

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The best documents."""
        return self._best(documents, await aresults(self._ask(documents, query)))

    def _ask(self, documents: Sequence[Document], query: str) -> list[Any]:
        payloads = [self.request_for(query, document)[0] for document in documents]
        return ask(self.engine, "reranking", payloads, self.settings)

    def _best(self, documents: Sequence[Document], scores: Sequence[float]) -> list[Document]:
        ranked = sorted(zip(documents, scores, strict=True), key=lambda pair: -float(pair[1]))
        return [
            document.model_copy(update={"metadata": {**document.metadata, "relevance_score": float(score)}})
            for document, score in ranked[: self.top_n]
        ]


def _settings(model: EngineChatModel | EngineLLM, stop: Sequence[str] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    own = {"temperature": model.temperature, "max_tokens": model.max_tokens, "stop": model.stop}
    asked = {**kwargs, "stop": stop} if stop is not None else kwargs
    return sampling_settings(own, model.settings, asked)


def _traced_as(engine: Engine, params: LangSmithParams) -> LangSmithParams:
    """The model under the name that its replies have; LangChain looks for fields that these models lack."""
    return {"ls_model_name": engine.name, **params, "ls_provider": "teola"}


def _message(message: BaseMessage) -> dict[str, Any]:
    content = message.content
    if isinstance(content, list):
        blocks = [{"type": "text", "text": block} if isinstance(block, str) else block for block in content]
        if strange := [block.get("type") for block in blocks if block.get("type") != "text"]:
            raise EngineError(f"an engine takes text only, not a block of type {strange[0]!r}")
        content = "".join(block["text"] for block in blocks)
    role = message.role if isinstance(message, ChatMessage) else ROLES.get(message.type, message.type)
    return {"role": role, "content": content}


def _usage(completion: str) -> UsageMetadata | None:
    counts = usage(completion)
    return UsageMetadata(**counts) if counts else None  # type: ignore[typeddict-item]
