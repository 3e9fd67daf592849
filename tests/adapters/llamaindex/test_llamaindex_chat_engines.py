"""Original against optimized: chat engines. Two turns each, in every form; the memory is the same afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.chat_engine.types import StreamingAgentChatResponse
from llama_index.core.memory import ChatMemoryBuffer, Memory

from tests.support.fakes import says
from tests.support.llamaindex_comparing import Stage, same
from tests.support.llamaindex_parts import chroma_retriever, fusion, local_index, rag, vector_retriever
from tests.support.llamaindex_replies import failing, reply

TURNS = ("Who keeps the bees?", "And the hives?")
FORMS = ("chat", "achat", "stream_chat", "astream_chat")

JOINS_THREADS = hasattr(StreamingAgentChatResponse, "write_response_to_history_thread")
"""Releases before do not wait for the thread that writes the history when a stream is closed."""


def memory(stage: Stage) -> Any:
    """The stock kind, which keeps its messages in a database, in half of the tests; the other kind else."""
    kind = Memory if stage.kept.get("memory") == "Memory" else ChatMemoryBuffer
    return kind.from_defaults(token_limit=3000)


def simple(stage: Stage) -> Any:
    return SimpleChatEngine.from_defaults(llm=stage.engines.model, memory=memory(stage), system_prompt="Be brief.")


def context(stage: Stage, retriever: Callable[[Stage], Any] = chroma_retriever) -> Any:
    return ContextChatEngine.from_defaults(
        retriever(stage), llm=stage.engines.model, memory=memory(stage), node_postprocessors=[stage.engines.rerank],
        system_prompt="Be brief.",
    )  # fmt: skip


def condense_question(stage: Stage) -> Any:
    return CondenseQuestionChatEngine.from_defaults(
        rag(stage, retriever=fusion(stage)), llm=stage.engines.model, memory=memory(stage), verbose=True
    )


def condense_plus_context(stage: Stage) -> Any:
    return CondensePlusContextChatEngine.from_defaults(
        vector_retriever(stage), llm=stage.engines.model, memory=memory(stage), verbose=True,
        node_postprocessors=[stage.engines.rerank],
    )  # fmt: skip


def of_an_index(stage: Stage, mode: str) -> Any:
    return local_index(stage).as_chat_engine(chat_mode=mode, llm=stage.engines.model, memory=memory(stage))


ENGINES: dict[str, Callable[[Stage], Any]] = {
    make.__name__: make for make in (simple, context, condense_question, condense_plus_context)
} | {f"index, {mode}": partial(of_an_index, mode=mode) for mode in ("condense_plus_context", "context")}


def built(make: Callable[..., Any], *, answer: Callable[[str], Any] = reply, kind: str = "") -> Callable[[Stage], Any]:
    def build(stage: Stage) -> Any:
        stage.engines.llm.answer = answer
        stage.kept["memory"] = kind
        return make(stage)

    return build


def talking(form: str, turns: tuple[str, ...] = TURNS) -> Callable[[Any], Any]:
    """Say these things one after the other; answers, pieces and sources, or the error of a turn."""
    return (lambda engine: _atalk(engine, form, turns)) if form.startswith("a") else lambda e: _talk(e, form, turns)


def _talk(engine: Any, form: str, turns: tuple[str, ...]) -> list[Any]:
    said = []
    for turn in turns:
        try:
            response = getattr(engine, form)(turn)
            pieces = list(response.response_gen) if form == "stream_chat" else None
            said.append(_told(response, pieces))
        except Exception as e:
            said.append(e)
    return said


async def _atalk(engine: Any, form: str, turns: tuple[str, ...]) -> list[Any]:
    said = []
    for turn in turns:
        try:
            response = await getattr(engine, form)(turn)
            streams = form == "astream_chat"
            pieces = [piece async for piece in response.async_response_gen()] if streams else None
            said.append(_told(response, pieces))
        except Exception as e:
            said.append(e)
    return said


def _told(response: Any, pieces: list[str] | None) -> list[Any]:
    sources = [[source.tool_name, source.content, source.raw_input] for source in response.sources]
    return [type(response), pieces, str(response), response.source_nodes, sources, getattr(response, "metadata", None)]


def remembered(engine: Any, stage: Stage) -> list[Any]:
    said = [[message.role.value, message.content] for message in engine._memory.get_all()]
    if isinstance(engine._memory, Memory):  # it would warn of its open database wherever it is collected
        asyncio.run(engine._memory.sql_store._async_engine.dispose())
    return said


def is_exact(form: str) -> bool:
    """A stream of messages is read on a thread or task beside the caller."""
    return form == "chat"


@pytest.mark.parametrize(("kind", "is_chat_model"), [("Memory", True), ("ChatMemoryBuffer", False)])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ENGINES)
def test_two_turns(name: str, form: str, kind: str, is_chat_model: bool) -> None:
    build = built(ENGINES[name], kind=kind)
    outcome = same(
        build, talking(form), exact=is_exact(form) and kind != "Memory", is_chat_model=is_chat_model, look=remembered
    )
    assert all("Error" not in turn[0] for turn in outcome)


@pytest.mark.parametrize("which", ["answers", "half"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["simple", "context", "condense_question", "condense_plus_context"])
def test_a_model_that_fails(name: str, form: str, which: str) -> None:
    answer = failing(which, RuntimeError("the model broke"))
    same(built(ENGINES[name], answer=answer), talking(form), exact=is_exact(form), look=remembered, ways=["patient"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["context", "condense_plus_context"])
def test_nothing_is_found(name: str, form: str) -> None:
    def make(stage: Stage) -> Any:
        engine = ENGINES[name](stage)
        engine._retriever = local_index(stage, count=0).as_retriever()
        return engine

    same(built(make), talking(form), exact=is_exact(form), look=remembered)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ENGINES)
def test_a_history_of_the_callers_own(name: str, form: str) -> None:
    history = [ChatMessage(role="user", content="Hello."), ChatMessage(role="assistant", content="Hello!")]

    def act(engine: Any) -> Any:
        response = getattr(engine, form)(TURNS[0], chat_history=list(history))
        return _awhole(response) if asyncio.iscoroutine(response) else _whole(response)

    same(built(ENGINES[name]), act, exact=is_exact(form), look=remembered, ways=["racing"])


def _whole(response: Any) -> list[Any]:
    return _told(response, list(response.response_gen) if hasattr(response, "queue") else None)


async def _awhole(asked: Any) -> list[Any]:
    response = await asked
    streams = hasattr(response, "queue")
    return _told(response, [piece async for piece in response.async_response_gen()] if streams else None)


CHANGES: dict[str, Callable[[Any], object]] = {
    "context": lambda engine: setattr(engine._retriever, "_similarity_top_k", 1),
    "condense_question": lambda engine: setattr(engine._query_engine.retriever, "num_queries", 1),
    "simple": lambda engine: engine._prefix_messages.clear(),
    "condense_plus_context": lambda engine: setattr(engine, "_skip_condense", True),
}


@pytest.mark.parametrize("form", ["chat", "achat"])
@pytest.mark.parametrize("name", CHANGES)
def test_changes_after_optimize(name: str, form: str) -> None:
    build = built(ENGINES[name])
    changed = same(build, talking(form), exact=is_exact(form), look=remembered, change=CHANGES[name])
    assert changed != same(build, talking(form), ways=())


@pytest.mark.parametrize("name", ENGINES)
def test_reset_and_history_are_those_of_the_users_object(name: str) -> None:
    def act(engine: Any) -> Any:
        first = str(engine.chat(TURNS[0]))
        before = len(engine.chat_history)
        engine.reset()
        return [first, before, len(engine.chat_history), str(engine.chat(TURNS[1]))]

    assert same(built(ENGINES[name]), act, look=remembered)[2] == 0


@pytest.mark.parametrize("form", ["stream_chat", "astream_chat"])
@pytest.mark.parametrize("name", ENGINES)
def test_a_stream_that_is_left(name: str, form: str) -> None:
    """The history is written all the same: a thread or a task of LlamaIndex's reads on."""

    def leave(engine: Any) -> list[str]:
        response = engine.stream_chat(TURNS[0])
        stream = response.response_gen
        pieces = [next(stream), next(stream)]
        stream.close()
        while response.is_writing_to_memory and not response.is_done:
            time.sleep(0.001)
        return pieces

    async def aleave(engine: Any) -> list[str]:
        stream = (await engine.astream_chat(TURNS[0])).async_response_gen()
        pieces = [await anext(stream), await anext(stream)]
        await stream.aclose()
        return pieces

    act = leave if form == "stream_chat" else aleave
    by_chance = None if JOINS_THREADS else "'exit', 'StreamingAgentChatResponse.write_response_to_history'"
    assert len(same(built(ENGINES[name]), act, exact=False, look=remembered, by_chance=by_chance)) == 2


@pytest.mark.parametrize("name", ENGINES)
def test_a_chat_that_is_cancelled(name: str) -> None:
    async def cancel(engine: Any) -> Any:
        task = asyncio.ensure_future(engine.achat(TURNS[0]))
        await asyncio.sleep(0)
        task.cancel()
        return (await asyncio.gather(task, return_exceptions=True))[0].__class__

    by_chance = "." if "context" in name else None  # they ask the embedder first, which may have answered by then
    outcome = same(built(ENGINES[name]), cancel, exact=False, look=remembered, by_chance=by_chance)
    assert outcome == "CancelledError"


class Both:
    """A gate that opens once two prompts are here: no talk is over before the other has begun."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    async def wait(self) -> None:
        while len(self._engine.seen) < 2:  # noqa: ASYNC110  both are on the loop of the host
            await asyncio.sleep(0.001)


class InOrder(ChatMemoryBuffer):
    """The stock one has threads, and so chance, decide which of two talks at once is noted first."""

    async def aput(self, message: ChatMessage) -> None:
        self.put(message)

    async def aget(self, input: str | None = None, **more: Any) -> list[ChatMessage]:
        return self.get(input, **more)


def test_two_talks_at_once_do_not_mix() -> None:
    def make(stage: Stage) -> Any:
        stage.engines.llm.answer = lambda prompt: says("bees" if "bees" in prompt else "hives")
        stage.engines.llm.gate = Both(stage.engines.llm)
        buffer = InOrder.from_defaults(token_limit=3000)
        return SimpleChatEngine.from_defaults(llm=stage.engines.model, memory=buffer, system_prompt="Be brief.")

    async def both(engine: Any) -> list[str]:
        return [str(response) for response in await asyncio.gather(*map(engine.achat, TURNS))]

    same(make, both, exact=False)
