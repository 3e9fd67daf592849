"""LlamaIndex: whatever a model or an engine could tell apart has different keys; other settings have other answers."""

from __future__ import annotations

import asyncio
import copy
import inspect
import itertools
from collections.abc import Callable, Hashable
from typing import Any

import pytest
from llama_index.core.base.llms.types import AudioBlock, ChatMessage, DocumentBlock, ImageBlock, MessageRole, TextBlock
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.llms.openai import OpenAI
from llama_index.llms.openai_like import OpenAILike
from openai.resources.chat.completions import Completions as ChatCompletions

from teola_plugin import optimize, pure
from teola_plugin.adapters.llamaindex import adapter, models
from teola_plugin.engines import Batch, Completion, Delta, Done, Emit, Foreign
from teola_plugin.models.llamaindex import EngineEmbedding, EngineLLM, EngineRerank
from teola_plugin.request_identity import request_key
from teola_plugin.runtime.engines.sampling import KNOWN
from teola_plugin.seams import active
from tests.adapters.llamaindex.test_llamaindex_models import Server, engine_of
from tests.support.fakes import FakeEngine
from tests.support.llamaindex_world import QUESTION, Engines, apart, digest, index_of
from tests.support.request_variants import (
    ANSWER_FIRST,
    REASONING_FIRST,
    VALUES,
    Noting,
    arguments_of,
    assert_all_differ,
    keys_asked,
    noted,
    variants,
    with_each_field,
)
from tests.test_value_keys import Opaque, written

MODELS: dict[str, Callable[[], Any]] = {
    "OpenAI": lambda: OpenAI(model="gpt-4o", api_key="none", api_base="http://nowhere/v1"),
    "OpenAILike": lambda: OpenAILike(model="m", api_key="none", api_base="http://nowhere/v1", is_chat_model=True),
}
METHODS = (*models.SYNC, *models.ASYNC)


@pytest.fixture(autouse=True)
def _instrumented() -> None:
    models.install()


def given(method: str) -> Any:
    return [ChatMessage(content="why")] if method.endswith("chat") else "why"


def asking(llm: Any, method: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """What calls the raw method of a model, as LlamaIndex's public ones do."""

    def act() -> Any:
        made = getattr(llm, method)(*args, **kwargs)
        return asyncio.run(made) if inspect.isawaitable(made) else made

    return act


def met(llm: Any, method: str, *args: Any, **kwargs: Any) -> Hashable:
    return keys_asked(asking(llm, method, *args, **kwargs))[0]


def foreseen(llm: Any, method: str, *args: Any, **kwargs: Any) -> Hashable:
    """As the rehearsal sees it whose requests run ahead."""
    return noted(asking(llm, method, *args, **kwargs), is_unheard=True).keys[0]


SIDES: dict[str, Callable[..., Hashable]] = {"met": met, "foreseen": foreseen}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", MODELS)
def test_each_field_of_a_model_counts_as_it_is_when_the_model_is_asked(name: str, side: str) -> None:
    llm = MODELS[name]()
    before = dict(vars(llm))
    keys = {"as it was": SIDES[side](llm, "_chat", given("_chat"))}
    for field, change in with_each_field(llm, ("callback_manager", "rate_limiter")):
        change()
        keys[field] = SIDES[side](llm, "_chat", given("_chat"))
        vars(llm).update(before)
    assert_all_differ(keys)
    assert keys["as it was"] == met(llm, "_chat", given("_chat")) == foreseen(llm, "_chat", given("_chat"))


@pytest.mark.parametrize("method", METHODS)
def test_each_argument_counts_and_both_sides_have_the_same_key(method: str) -> None:
    llm = MODELS["OpenAILike"]()
    arguments = arguments_of(ChatCompletions.create, ("messages",))
    asked: dict[str, dict[str, Any]] = {
        f"{argument}={value!r}": {argument: value} for argument in arguments for value in VALUES
    }
    keys = {each: foreseen(llm, method, given(method), **copy.deepcopy(kwargs)) for each, kwargs in asked.items()}
    keys["none"] = foreseen(llm, method, given(method))
    assert_all_differ(keys)
    for each, kwargs in asked.items():
        assert met(llm, method, given(method), **kwargs) == keys[each], each


def test_methods_are_told_apart() -> None:
    llm = MODELS["OpenAILike"]()
    assert_all_differ({method: met(llm, method, given(method)) for method in METHODS})
    assert_all_differ({f"formatted={each}": met(llm, "_complete", "why", each) for each in (True, False, 1, 0)})


def messages() -> dict[str, Callable[[], list[ChatMessage]]]:
    """Conversations that differ in one field of one message or block, in number and in order."""
    made: dict[str, Callable[[], list[ChatMessage]]] = {"plain": lambda: [ChatMessage(content="why")]}
    for role in MessageRole:
        if role is not MessageRole.USER:
            made[role] = lambda role=role: [ChatMessage(content="why", role=role)]
    for extra in (*VALUES, {"a": 1, "b": 2}, {"b": 2, "a": 1}):
        made[f"with {extra!r}"] = lambda extra=extra: [ChatMessage(content="why", additional_kwargs={"x": extra})]
    for block in (TextBlock(text="why"), ImageBlock(url="http://a/b.png"), AudioBlock(url="http://a/b.mp3"),
                  DocumentBlock(url="http://a/b.pdf", title="b")):  # fmt: skip
        for name in type(block).model_fields:
            for number, value in enumerate(each for each in variants(getattr(block, name)) if type(each) is not object):
                changed = block.model_copy(update={name: value})
                made[f"{type(block).__name__}.{name} {number}"] = lambda changed=changed: [
                    ChatMessage.model_construct(role=MessageRole.USER, additional_kwargs={}, blocks=[changed])
                ]
    made["two"] = lambda: [ChatMessage(content="why"), ChatMessage(content="because", role="assistant")]
    made["two turned"] = lambda: [ChatMessage(content="because", role="assistant"), ChatMessage(content="why")]
    made["two blocks"] = lambda: [ChatMessage(blocks=[TextBlock(text="w"), TextBlock(text="hy")])]
    return made


def test_each_field_of_each_message_and_block_counts() -> None:
    llm, made = MODELS["OpenAILike"](), messages()
    keys = {each: foreseen(llm, "_chat", make()) for each, make in made.items()}
    assert_all_differ(keys)
    assert len(made) > 60
    for each, make in made.items():
        assert met(llm, "_chat", make()) == keys[each], each


def test_a_text_that_looks_like_a_message_is_none() -> None:
    llm = MODELS["OpenAILike"]()
    message = ChatMessage(content="why")
    assert_all_differ({
        "message": met(llm, "_chat", [message]),
        "its repr": met(llm, "_chat", repr([message])),
        "in a tuple": met(llm, "_chat", (message,)),
    })  # fmt: skip


def test_a_foreseen_call_is_made_with_what_it_was_foreseen_with() -> None:
    server = Server()
    llm = server.model(is_chat_model=True)
    message, kwargs = ChatMessage(content="why", additional_kwargs={"a": [1]}), {"extra_body": {"a": [1]}}
    llm._chat([copy.deepcopy(message)], **copy.deepcopy(kwargs))
    (payload, _), = noted(asking(llm, "_chat", [message], **kwargs), is_unheard=True).requests  # fmt: skip
    message.additional_kwargs["a"].append(2)
    kwargs["extra_body"]["a"].append(2)
    payload.call()
    assert written(server.asked[0]) == written(server.asked[1])


@pytest.mark.parametrize("method", METHODS)
def test_a_call_that_runs_ahead_is_of_the_model_as_it_was_foreseen(method: str) -> None:
    server = Server()
    llm = server.model(is_chat_model=method.endswith("chat"))
    (payload, _), = noted(asking(llm, method, given(method)), is_unheard=True).requests  # fmt: skip
    llm.temperature = 0.9

    async def made() -> Any:
        return await payload.call()

    with pytest.raises(Exception, match="was changed"):
        asyncio.run(made()) if payload.is_async else payload.call()
    assert server.asked == []
    asking(llm, method, given(method))()
    assert len(server.asked) == 1


def test_the_run_on_a_thread_ends_at_what_is_like_nothing() -> None:
    """The run on the loop could not find the reply, and the model would be asked twice."""
    from teola_plugin.adapters.llamaindex import unblocked

    outer = Noting()
    session = unblocked._Noting(unblocked._Notes(outer))
    with active(session), pytest.raises(BaseException, match=r"^$"):
        session.claim(EngineLLM(engine=FakeEngine(str)).spec, "decoding", Opaque(), {})
    assert outer.keys == []


# --- ours -------------------------------------------------------------------------------------------------------------


def ours(engine: FakeEngine) -> dict[str, tuple[Any, Callable[..., Any]]]:
    """Our components, and how each is asked."""
    llm, embedding, rerank = EngineLLM(engine=engine), EngineEmbedding(engine=engine), EngineRerank(engine=engine)
    nodes = [NodeWithScore(node=TextNode(text="because"), score=0.0)]
    return {
        "chat": (llm, lambda **kwargs: llm.chat([ChatMessage(content="why")], **kwargs)),
        "complete": (llm, lambda **kwargs: llm.complete("why", **kwargs)),
        "embedding": (embedding, lambda: embedding.get_query_embedding("why")),
        "rerank": (rerank, lambda: rerank.postprocess_nodes(nodes, QueryBundle("why"))),
    }


@pytest.mark.parametrize("name", ["chat", "complete", "embedding", "rerank"])
def test_ours_are_the_same_only_if_the_engine_is_asked_the_same(name: str) -> None:
    engine = FakeEngine(str)
    model, act = ours(engine)[name]
    found: dict[str, set[Hashable]] = {}

    def note(act: Callable[[], Any]) -> None:
        session = noted(act)
        (key,), (request,) = session.keys, session.requests
        found.setdefault(written(request), set()).add(key)

    note(act)
    if name in ("chat", "complete"):
        for argument, value in itertools.product([each for each in KNOWN if each != "stop"], VALUES):
            note(lambda argument=argument, value=value: act(**{argument: value}))
        for stop in (["a"], ["b"], ["a", "b"], ["b", "a"], [], ["a", "b", "c"]):
            note(lambda stop=stop: act(stop=stop))
        for field, values in {"temperature": (0.0, -0.0, 0, 0.5), "max_tokens": (1, 2), "stop": (["a"], ["b"])}.items():
            for value in values:
                vars(model)[field] = value
                note(act)
    for value in VALUES:
        vars(model)["settings"] = {"x": value}
        note(act)
    assert len({key for keys in found.values() for key in keys}) == len(found)
    assert all(len(keys) == 1 for keys in found.values())


# --- end to end -------------------------------------------------------------------------------------------------------


class Exact(FakeEngine):
    """Its answer tells the prompt and all settings, in their order."""

    async def run(self, batch: Batch, emit: Emit) -> None:
        self.batches.append(batch)
        await asyncio.sleep(0.002)
        for position, item in enumerate(batch.items):
            text = digest(f"{item.payload} {written(dict(batch.settings))}")[:12]
            emit(position, Delta(text))
            emit(position, Done(Completion(text, pieces=[text])))


PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "schema order": ({"structured_outputs": REASONING_FIRST}, {"structured_outputs": ANSWER_FIRST}),
    "stop": ({"stop": ["a", "b"]}, {"stop": ["a", "c"]}),
    "a flag": ({"ignore_eos": True}, {"ignore_eos": 1}),
    "a zero": ({"top_p": 0.0}, {"top_p": -0.0}),
    "one more": ({}, {"seed": 1}),
}


def pair_of_engines(first: dict[str, Any], second: dict[str, Any]) -> list[RetrieverQueryEngine]:
    """Two query engines over one index and one LLM that differ in the settings of it alone."""
    engines = Engines()
    llm, index = Exact(concurrent=True), index_of(engines)
    return [
        RetrieverQueryEngine(
            index.as_retriever(similarity_top_k=2),
            get_response_synthesizer(
                llm=EngineLLM(engine=llm, settings=settings), response_mode="accumulate", use_async=True
            ),
        )
        for settings in (first, second)
    ]


@pytest.mark.parametrize("is_optimized", [False, True])
@pytest.mark.parametrize("pair", PAIRS)
def test_equal_prompts_with_other_settings_have_answers_of_their_own(pair: str, is_optimized: bool) -> None:
    """Side by side they meet in the queue of the engine."""

    def alone() -> list[str]:
        return [str(engine.query(QUESTION)) for engine in pair_of_engines(*PAIRS[pair])]

    async def together(engines: list[Any]) -> list[str]:
        return [str(each) for each in await asyncio.gather(*(engine.aquery(QUESTION) for engine in engines * 3))]

    expected = apart(alone)
    assert expected[0] != expected[1]
    engines: list[Any] = pair_of_engines(*PAIRS[pair])
    if is_optimized:
        engines = [optimize(engine) for engine in engines]
    assert apart(lambda: [str(engine.query(QUESTION)) for engine in engines]) == expected
    assert apart(lambda: asyncio.run(together(engines))) == expected * 3


@pure
class Changing(BaseNodePostprocessor):
    """Changes the model between the search and the answer."""

    llm: Any
    name: str
    value: Any

    def _postprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
        setattr(self.llm, self.name, self.value)
        return nodes


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.9),
        ("temperature", 1),
        ("model", "other"),
        ("additional_kwargs", {"seed": 1}),
        ("max_tokens", 3),
    ],
)
def test_a_model_that_is_changed_between_two_calls_is_asked_as_it_is(name: str, value: Any, is_async: bool) -> None:
    def run(is_optimized: bool) -> tuple[str, list[str]]:
        server = Server()
        engines, llm = Engines(), server.model(is_chat_model=True)
        synthesizer = get_response_synthesizer(llm=llm, response_mode="accumulate")
        made: Any = RetrieverQueryEngine(
            index_of(engines).as_retriever(similarity_top_k=2), synthesizer,
            node_postprocessors=[Changing(llm=llm, name=name, value=value)],
        )  # fmt: skip
        engine = optimize(made) if is_optimized else made
        said = [str(asyncio.run(engine.aquery(QUESTION)) if is_async else engine.query(QUESTION)) for _ in range(2)]
        return repr(said), sorted({written(body) for body in server.asked})

    expected = apart(run, False)
    said, asked = apart(run, True)
    assert said == expected[0]
    assert set(expected[1]) <= set(asked)


def test_what_the_plan_asks_has_the_settings_of_the_model_at_that_time() -> None:
    llm = Server().model(is_chat_model=True)
    request = adapter.trace(engine_of(llm)).functions["request"]
    keys = []
    for temperature in (0.1, 0.9, 0.1):
        llm.temperature = temperature
        payload: Any = request.call(QUESTION, False)
        assert isinstance(payload, Foreign)
        keys.append(request_key(payload.call.spec, "decoding", payload, {}))
    assert keys[0] == keys[2] != keys[1]
