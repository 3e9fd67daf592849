"""LangChain components on engines: chat model, LLM, embeddings and reranker.

    engine = VllmEngine("/models/llama")
    chain = prompt | EngineChatModel(engine=engine, max_tokens=64) | StrOutputParser()
    agent = create_agent(EngineChatModel(engine=engine), tools=[search])

Further settings of the engine go into `settings`, or into a call: `model.bind(structured_outputs={"choice": [...]})`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, NamedTuple

from langchain_core.callbacks import (
    AsyncCallbackManagerForLLMRun,
    CallbackManagerForLLMRun,
    Callbacks,
)
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel, BaseLLM, LangSmithParams, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import (
    ChatGeneration,
    ChatGenerationChunk,
    ChatResult,
    Generation,
    GenerationChunk,
    LLMResult,
)
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ConfigDict, Field

from teola_plugin.engines import Engine, EngineSpec
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
    tell_of_calls,
    usage,
)
from teola_plugin.models.langchain_messages import Chunks, Ids, constraint, for_template, new_ids, said
from teola_plugin.seams import Reply
from teola_plugin.turns import Turn

NOT_YET_KNOWN = "\u27e8not yet known\u27e9"


class _Asked(NamedTuple):
    """A running request; `ids`: the ids of the calls in the answer, if the model may call tools."""

    reply: Reply
    ids: Ids | None = None


class EngineChatModel(BaseChatModel):
    """A chat model on an engine. Greedy unless told otherwise; `None` leaves a setting to the engine."""

    engine: Engine = Field(exclude=True, repr=False)
    temperature: float | None = 0.0
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    stop: list[str] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)

    @property
    def spec(self) -> EngineSpec:
        """The engine, as named in a graph."""
        return spec_of(self.engine)

    def request_for(
        self, messages: LanguageModelInput, stop: Sequence[str] | None = None, **kwargs: Any
    ) -> tuple[str, dict[str, Any]]:
        """Return prompt and settings of the `decoding` made by a call with the same arguments.

        Raises: EngineError if a message is not plain text.
        """
        tools, choice = kwargs.pop("tools", None) or (), kwargs.pop("tool_choice", None)
        conversation = [for_template(m) for m in self._convert_input(messages).to_messages()]
        settings = _settings(self, stop, {**constraint(tools, choice), **kwargs})
        return render(self.engine, conversation, () if choice == "none" else tools), settings

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], *,
        tool_choice: str | bool | dict[str, Any] | None = None, **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:  # fmt: skip
        """Return the model with tools to call, in the format of Hermes and Qwen: `<tool_call>{...}</tool_call>`.

        `tool_choice`: "auto", "none", "any" (or "required", True: vLLM forces a call) or the name of a tool.
        """
        chosen = {} if tool_choice is None else {"tool_choice": tool_choice}
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **chosen, **kwargs)

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None, **kwargs: Any,
    ) -> ChatResult:  # fmt: skip
        asked = self._ask(messages, stop, kwargs)
        (completion,) = results([asked.reply])
        return self._result(completion, asked)

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None, **kwargs: Any,
    ) -> ChatResult:  # fmt: skip
        asked = self._ask(messages, stop, kwargs)
        (completion,) = await aresults([asked.reply])
        return self._result(completion, asked)

    def _stream(
        self, messages: list[BaseMessage], stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None, **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:  # fmt: skip
        asked = self._ask(messages, stop, kwargs)
        chunks = Chunks(asked.ids)
        with contextlib.closing(pieces(asked.reply)) as texts:
            for text in texts:
                for chunk in chunks.feed(text):
                    if run_manager:
                        run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk
        yield from chunks.close()
        yield self._last_chunk(asked.reply.result())

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None, **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:  # fmt: skip
        asked = self._ask(messages, stop, kwargs)
        chunks = Chunks(asked.ids)
        async with contextlib.aclosing(apieces(asked.reply)) as texts:
            async for text in texts:
                for chunk in chunks.feed(text):
                    if run_manager:
                        await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk
        for chunk in chunks.close():
            yield chunk
        yield self._last_chunk(await asked.reply.aresult())

    def _ask(self, messages: list[BaseMessage], stop: Sequence[str] | None, kwargs: dict[str, Any]) -> _Asked:
        prompt, settings = self.request_for(messages, stop, **kwargs)
        (reply,) = ask(self.engine, "decoding", [prompt], settings)
        if not kwargs.get("tools"):
            return _Asked(reply)
        ids = new_ids()

        def follow_up(answers: Sequence[str]) -> str:
            """See `Turn.follow_up`."""
            answer = AIMessage(**said(str(reply.result()), ids))
            texts = zip(answer.tool_calls, (*answers, NOT_YET_KNOWN), strict=False)
            tools = [ToolMessage(text, name=call["name"], tool_call_id=call["id"]) for call, text in texts]
            prompt, _ = self.request_for([*messages, answer, *tools], stop, **kwargs)
            return prompt.partition(NOT_YET_KNOWN)[0]

        tell_of_calls(reply, Turn(self.spec, follow_up))
        return _Asked(reply, ids)

    def _result(self, completion: str, asked: _Asked) -> ChatResult:
        fields = said(str(completion), asked.ids) if asked.ids else {"content": str(completion)}
        message = AIMessage(**fields, response_metadata=self._metadata(completion), usage_metadata=_usage(completion))
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
        """The engine, as named in a graph."""
        return spec_of(self.engine)

    def request_for(
        self, prompt: LanguageModelInput, stop: Sequence[str] | None = None, **kwargs: Any
    ) -> tuple[str, dict[str, Any]]:
        """Return prompt and settings of the `decoding` made by a call with the same arguments."""
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
    """Embeddings on an engine; the texts of one call are one request. `settings` are passed to the engine."""

    def __init__(self, engine: Engine, **settings: Any) -> None:
        self.engine = engine
        self.settings = settings

    @property
    def spec(self) -> EngineSpec:
        """The engine, as named in a graph."""
        return spec_of(self.engine)

    def request_for(self, text: str) -> tuple[str, dict[str, Any]]:
        """Return payload and settings of the `embedding` of one text, be it a query or a document."""
        return str(text), dict(self.settings)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return one vector per text."""
        return [vector.tolist() for vector in results(self._ask(texts))]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of one text."""
        return self.embed_documents([text])[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return one vector per text."""
        return [vector.tolist() for vector in await aresults(self._ask(texts))]

    async def aembed_query(self, text: str) -> list[float]:
        """Return the vector of one text."""
        return (await self.aembed_documents([text]))[0]

    def _ask(self, texts: Sequence[str]) -> list[Any]:
        return ask(self.engine, "embedding", [self.request_for(text)[0] for text in texts], self.settings)


class EngineReranker(BaseDocumentCompressor):
    """Keeps the `top_n` documents with the highest scores for the query, best first.

    Each is a copy with the score in `metadata["relevance_score"]`. Documents of equal score keep their order.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    engine: Engine = Field(exclude=True, repr=False)
    top_n: int = 3
    settings: dict[str, Any] = Field(default_factory=dict)

    @property
    def spec(self) -> EngineSpec:
        """The engine, as named in a graph."""
        return spec_of(self.engine)

    def request_for(self, query: str, document: Document | str) -> tuple[tuple[str, str], dict[str, Any]]:
        """Return payload and settings of the `reranking` of one document."""
        passage = document.page_content if isinstance(document, Document) else document
        return (str(query), str(passage)), dict(self.settings)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return the best documents."""
        return self._best(documents, results(self._ask(documents, query)))

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return the best documents."""
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
    """Return the trace parameters with the replies' model name; LangChain looks for fields which these models lack."""
    return {"ls_model_name": engine.name, **params, "ls_provider": "teola"}


def _usage(completion: str) -> UsageMetadata | None:
    counts = usage(completion)
    return UsageMetadata(**counts) if counts else None  # type: ignore[typeddict-item]
