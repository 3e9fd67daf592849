"""LangChain: whatever a model or engine could tell apart has different keys, where it runs ahead and where it is met.

The cases are made from fields and signatures of the models, messages and clients themselves.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import Callable, Hashable, Mapping
from contextvars import copy_context
from typing import Any

import httpx
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableParallel, RunnablePassthrough
from langchain_openai import ChatOpenAI, OpenAI
from openai.resources.chat.completions import Completions as ChatCompletions
from openai.resources.completions import Completions
from pydantic import SecretStr

from teola_plugin import optimize, optimized, pure
from teola_plugin.adapters.langchain.models import foreign_call, instrument_model, spec_of
from teola_plugin.engines import Batch, Completion, Delta, Done, Emit, Foreign
from teola_plugin.models.langchain import EngineChatModel, EngineEmbeddings, EngineLLM, EngineReranker
from teola_plugin.request_identity import request_key
from teola_plugin.runtime.engines.sampling import KNOWN
from tests.adapters.langchain.test_langchain_foreign import Hosted, HostedNatively, Service
from tests.support.fakes import FakeEngine
from tests.support.langchain_world import ask, digest
from tests.support.request_variants import (
    ANSWER_FIRST,
    REASONING_FIRST,
    VALUES,
    arguments_of,
    assert_all_differ,
    keys_asked,
    noted,
    variants,
    with_each_field,
)
from tests.test_value_keys import written

UNSENT = ("callbacks", "callback_manager")
"""Fields of a model that hear of its calls."""

STOPS: tuple[Any, ...] = (None, [], ["a"], ["b"], ["a", "b"], ["b", "a"], ["a", "b", "c"], [""], ("a",))


class Told(BaseChatModel):
    """What it is asked, and how, is all in its answer."""

    temperature: float = 0.0
    prefix: str = ""

    @property
    def _llm_type(self) -> str:
        return "told"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        said = f"{self.temperature!r} {self.prefix} {[m.model_dump() for m in messages]!r} {stop!r} {kwargs!r}"
        return ChatResult(generations=[ChatGeneration(message=AIMessage(digest(said)[:12]))])


pure(Told)

Make = Callable[[], Any]

MODELS: dict[str, Make] = {
    "ChatOpenAI": lambda: ChatOpenAI(model="m", api_key=SecretStr("none"), base_url="http://nowhere/v1"),
    "OpenAI": lambda: OpenAI(model="m", api_key=SecretStr("none"), base_url="http://nowhere/v1"),
    "Hosted": Hosted,
    "Told": Told,
}
CLIENTS: dict[str, Any] = {"OpenAI": Completions.create}

MESSAGES: dict[type[BaseMessage], Mapping[str, Any]] = {
    HumanMessage: {},
    SystemMessage: {},
    AIMessage: {"tool_calls": [{"name": "t", "args": {"a": 1, "b": 2}, "id": "1", "type": "tool_call"}]},
    ToolMessage: {"tool_call_id": "1"},
    FunctionMessage: {"name": "f"},
    ChatMessage: {"role": "user"},
}


def content_of(model: Any, text: str = "why") -> list[Any]:
    return [HumanMessage(text)] if isinstance(model, BaseChatModel) else [text]


def met(model: Any, content: Any, /, stop: Any = None, is_async: bool = False, **kwargs: Any) -> Hashable:
    """The key under which the framework's own call looks for what ran ahead."""
    instrument_model(type(model))
    if is_async:
        return keys_asked(lambda: asyncio.run(model._agenerate(content, stop=stop, **kwargs)))[0]
    return keys_asked(lambda: model._generate(content, stop=stop, **kwargs))[0]


def foreseen(model: Any, content: Any, /, stop: Any = None, is_async: bool = False, **kwargs: Any) -> Hashable:
    """The key under which the same call runs ahead."""
    call = foreign_call(model, content, is_async, {"stop": stop, **kwargs}, copy_context())
    return request_key(spec_of(model), "decoding", call, {})


SIDES: dict[str, Callable[..., Hashable]] = {"met": met, "foreseen": foreseen}


# --- models of others: fields, arguments, messages --------------------------------------------------------------------


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", MODELS)
def test_each_field_of_a_model_counts_as_it_is_when_the_model_is_asked(name: str, side: str) -> None:
    model = MODELS[name]()
    content, key_of = content_of(model), SIDES[side]
    before = dict(vars(model))
    keys = {"as it was": key_of(model, content)}
    for field, change in with_each_field(model, UNSENT):
        change()
        keys[field] = key_of(model, content)
        vars(model).update(before)
    assert_all_differ(keys)
    assert key_of(model, content) == keys["as it was"] == met(model, content)


@pytest.mark.parametrize("name", MODELS)
def test_each_argument_counts_and_both_sides_have_the_same_key(name: str) -> None:
    model = MODELS[name]()
    content = content_of(model)
    arguments = arguments_of(CLIENTS.get(name, ChatCompletions.create), ("messages", "prompt", "stop"))
    asked: dict[str, dict[str, Any]] = {
        f"{argument}={value!r}": {argument: value} for argument in arguments for value in VALUES
    }
    asked |= {f"stop={stop!r}": {"stop": stop} for stop in STOPS}
    asked |= {"async": {"is_async": True}, "two": {"seed": 1, "user": "a"}}
    keys = {each: foreseen(model, content, **copy.deepcopy(kwargs)) for each, kwargs in asked.items()}
    assert_all_differ(keys)
    for each, kwargs in asked.items():
        assert met(model, content, **kwargs) == keys[each], each


@pytest.mark.parametrize("side", SIDES)
def test_prompts_of_a_completion_model_count(side: str) -> None:
    model = MODELS["OpenAI"]()
    assert_all_differ({text: SIDES[side](model, [text]) for text in ("why", "why ", "Why", "")})


def messages() -> dict[str, Callable[[], list[BaseMessage]]]:
    """Conversations that differ in one field of one message, in the class of one, in number and in order."""
    made: dict[str, Callable[[], list[BaseMessage]]] = {}
    contents: tuple[Any, ...] = ("why", "why ", ["why"], [{"type": "text", "text": "why"}],
                                 [{"text": "why", "type": "text"}], [{"type": "text", "text": "why", "x": 0.0}],
                                 [{"type": "text", "text": "why", "x": -0.0}])  # fmt: skip
    for cls, fields in MESSAGES.items():
        plain: Any = cls(content="why", **fields)
        made[cls.__name__] = lambda plain=plain: [plain.model_copy(deep=True)]
        for content in contents[1:]:
            made[f"{cls.__name__} {content!r}"] = lambda cls=cls, fields=fields, content=content: [
                cls(content=content, **fields)
            ]
        for name in cls.model_fields:
            if name in ("content", "type"):
                continue
            for number, value in enumerate(variants(getattr(plain, name))):
                made[f"{cls.__name__}.{name} {number}"] = lambda plain=plain, name=name, value=value: [
                    plain.model_copy(update={name: value}, deep=True)
                ]
        for extra in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 2.0}, {"a": True, "b": 2}):
            made[f"{cls.__name__} with {extra}"] = lambda cls=cls, fields=fields, extra=extra: [
                cls(content="why", additional_kwargs=extra, **fields)
            ]
    made["two"] = lambda: [HumanMessage("why"), AIMessage("because")]
    made["two turned"] = lambda: [AIMessage("because"), HumanMessage("why")]
    return made


@pytest.mark.parametrize("name", ["ChatOpenAI", "Told"])
def test_each_field_of_each_message_counts(name: str) -> None:
    model = MODELS[name]()
    made = messages()
    if name == "ChatOpenAI":
        made = {each: make for each, make in made.items() if ".id " not in each}
    keys = {each: foreseen(model, make()) for each, make in made.items()}
    assert_all_differ(keys)
    for each, make in made.items():
        assert met(model, make()) == keys[each], each


@pytest.mark.parametrize("is_responses_api", [False, True])
def test_no_request_of_langchain_openai_tells_the_ids_of_messages(is_responses_api: bool) -> None:
    """That is why these may differ between the run-ahead and the framework's own call."""
    model: Any = ChatOpenAI(model="m", api_key=SecretStr("none"), use_responses_api=is_responses_api)
    for cls, fields in MESSAGES.items():
        if cls in (FunctionMessage, ChatMessage) and is_responses_api:
            continue
        others = [cls(content="why", id=each, **fields) for each in (None, "lc_run--1", "msg_2", "resp_3")]
        asked = {written(model._get_request_payload([HumanMessage("who"), other])) for other in others}
        assert len(asked) == 1
        assert len({foreseen(model, [other]) for other in others}) == 1


@pytest.mark.parametrize("side", SIDES)
def test_tools_count_with_their_order_and_that_of_their_fields(side: str) -> None:
    model = MODELS["ChatOpenAI"]()
    first, second = (
        {"type": "function", "function": {"name": name, "parameters": REASONING_FIRST["json"]}} for name in "ab"
    )
    turned = copy.deepcopy(first)
    turned["function"]["parameters"] = ANSWER_FIRST["json"]  # type: ignore[index]
    tools = [[], [first], [second], [first, second], [second, first], [turned], [first, first]]
    assert_all_differ({repr(each): SIDES[side](model, content_of(model), tools=each) for each in tools})


def test_what_is_like_nothing_is_met_by_the_model_itself() -> None:
    model = Told()
    instrument_model(Told)
    session = noted(lambda: model._generate(content_of(model), lock=object()))
    assert session.keys == []


# --- ours -------------------------------------------------------------------------------------------------------------


def ours(engine: FakeEngine) -> dict[str, tuple[Any, Callable[..., Any]]]:
    """Our components, and how each is asked."""
    chat, llm = EngineChatModel(engine=engine), EngineLLM(engine=engine)
    embeddings, rerank = EngineEmbeddings(engine), EngineReranker(engine=engine)
    return {
        "chat": (chat, lambda **kwargs: chat.invoke("why", **kwargs)),
        "llm": (llm, lambda **kwargs: llm.invoke("why", **kwargs)),
        "embeddings": (embeddings, lambda: embeddings.embed_query("why")),
        "documents": (embeddings, lambda: embeddings.embed_documents(["why"])),
        "rerank": (rerank, lambda: rerank.compress_documents([Document("because")], "why")),
    }


FIELDS = {"temperature": (0.0, -0.0, 0, 0.5, None, False), "max_tokens": (1, 2, None, True),
          "stop": (["a"], ["b"], ["a", "b"], ["b", "a"], None)}  # fmt: skip


@pytest.mark.parametrize("name", ["chat", "llm", "embeddings", "documents", "rerank"])
def test_ours_are_the_same_only_if_the_engine_is_asked_the_same(name: str) -> None:
    """Fields that are set after the fact, and arguments that the engine knows."""
    engine = FakeEngine(str)
    model, act = ours(engine)[name]
    found: dict[str, set[Hashable]] = {}

    def note(act: Callable[[], Any]) -> None:
        session = noted(act)
        (key,), (request,) = session.keys, session.requests
        found.setdefault(written(request), set()).add(key)

    note(act)
    if name in ("chat", "llm"):
        for argument, value in itertools.product([name for name in KNOWN if name != "stop"], VALUES):
            note(lambda argument=argument, value=value: act(**{argument: value}))
        for stop in STOPS:
            note(lambda stop=stop: act(stop=stop))
        for field, values in FIELDS.items():
            for value in values:
                changed = model.model_copy()
                vars(changed)[field] = value
                note(lambda changed=changed: changed.invoke("why"))
    for value in VALUES:
        vars(model)["settings"] = {"x": value}
        note(act)
    assert len({key for keys in found.values() for key in keys}) == len(found)
    assert all(len(keys) == 1 for keys in found.values())
    assert len(found) >= len(VALUES) - 1


def test_another_engine_is_another_request() -> None:
    one, other = FakeEngine(str), FakeEngine(str)
    for name, (_, act) in ours(one).items():
        assert keys_asked(act) == keys_asked(act) != keys_asked(ours(other)[name][1])


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


def exact() -> EngineChatModel:
    return EngineChatModel(engine=Exact(concurrent=True), max_tokens=None)


PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "schema order": ({"structured_outputs": REASONING_FIRST}, {"structured_outputs": ANSWER_FIRST}),
    "stop": ({"stop": ["a", "b"]}, {"stop": ["a", "c"]}),
    "stop order": ({"stop": ["a", "b"]}, {"stop": ["b", "a"]}),
    "a flag": ({"ignore_eos": True}, {"ignore_eos": 1}),
    "a number": ({"seed": 1}, {"seed": 1.0}),
    "a zero": ({"top_p": 0.0}, {"top_p": -0.0}),
    "lists": ({"bad_words": ["a"]}, {"bad_words": ("a",)}),
    "one more": ({}, {"seed": 1}),
}


def twice(model: Any, first: Mapping[str, Any], second: Mapping[str, Any]) -> Runnable[Any, Any]:
    asked = ask("Think about {q}")
    return RunnablePassthrough.assign(first=asked | model.bind(**first) | StrOutputParser()) | (
        RunnablePassthrough.assign(second=asked | model.bind(**second) | StrOutputParser())
    )


def side_by_side(model: Any, first: Mapping[str, Any], second: Mapping[str, Any]) -> Runnable[Any, Any]:
    asked = ask("Think about {q}")
    return RunnableParallel(
        first=asked | model.bind(**first) | StrOutputParser(), second=asked | model.bind(**second) | StrOutputParser()
    )


@pytest.mark.parametrize("form", ["invoke", "ainvoke", "batch", "stream"])
@pytest.mark.parametrize("shape", [twice, side_by_side])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("make", [exact, Told])
def test_equal_prompts_with_other_settings_have_answers_of_their_own(
    pair: str, shape: Callable[..., Runnable[Any, Any]], form: str, make: Make
) -> None:
    first, second = PAIRS[pair]

    def run(chain: Runnable[Any, Any]) -> Any:
        match form:
            case "ainvoke":
                return asyncio.run(chain.ainvoke({"q": "bees"}))
            case "batch":
                return chain.batch([{"q": "bees"}, {"q": "hives"}])
            case "stream":
                whole: dict[str, Any] = {}
                for chunk in chain.stream({"q": "bees"}):
                    for key, text in chunk.items():
                        whole[key] = whole.get(key, "") + text
                return whole
        return chain.invoke({"q": "bees"})

    expected = run(shape(make(), first, second))
    one = expected[0] if form == "batch" else expected
    assert one["first"] != one["second"]
    fast = optimize(shape(make(), first, second))
    for _ in range(3):
        assert run(fast) == expected
    if form == "invoke":
        reports = optimized(fast).reports
        assert sum(report.hits + report.shared for report in reports)
        assert not any(report.wasted or report.fallbacks for report in reports)


def test_two_pipelines_of_one_engine_that_are_not_optimized() -> None:
    """They meet in the queue of the engine, where the same work is done once."""
    model = exact()
    chains = [ask("Think about {q}") | model.bind(structured_outputs=s) for s in (REASONING_FIRST, ANSWER_FIRST)]
    alone = [chain.invoke({"q": "bees"}).content for chain in chains]

    async def together() -> list[str]:
        found = await asyncio.gather(*(chain.ainvoke({"q": "bees"}) for chain in chains * 4))
        return [message.content for message in found]

    assert alone[0] != alone[1]
    assert asyncio.run(together()) == alone * 4


# --- models that are changed ------------------------------------------------------------------------------------------


class Changing(BaseCallbackHandler):
    """Changes the model when it has answered for the first time: user code that no analysis of the pipeline reads."""

    run_inline = True

    def __init__(self, model: Any, fields: Mapping[str, Any]) -> None:
        self._model, self._fields = model, fields

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        for name, value in self._fields.items():
            setattr(self._model, name, value)


def changed_between(
    model: Any, fields: Mapping[str, Any], *, is_optimized: bool, is_async: bool = False
) -> Mapping[str, Any]:
    """What comes of two calls of a model that is changed after the first; the second one runs ahead of that."""
    chain: Any = RunnablePassthrough.assign(first=ask("First {q}") | model | StrOutputParser()) | (
        RunnablePassthrough.assign(second=ask("Second {q}") | model | StrOutputParser())
    )
    chain = optimize(chain) if is_optimized else chain
    config = {"callbacks": [Changing(model, fields)]}
    return asyncio.run(chain.ainvoke({"q": "bees"}, config)) if is_async else chain.invoke({"q": "bees"}, config)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("fields", [{"temperature": 0.9}, {"temperature": -0.0}, {"temperature": 0}])
@pytest.mark.parametrize("make", [exact, Told])
def test_a_model_that_is_changed_between_two_calls_is_asked_as_it_is(
    make: Make, fields: dict[str, Any], is_async: bool
) -> None:
    expected = changed_between(make(), fields, is_optimized=False, is_async=is_async)
    for _ in range(3):
        assert changed_between(make(), fields, is_optimized=True, is_async=is_async) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.9},
        {"model_name": "other"},
        {"model_kwargs": {"user": "a"}},
        {"extra_body": {"a": 1}},
        {"stop": ["x"]},
        {"max_tokens": 3},
        {"seed": 1},
    ],
)
def test_a_hosted_model_that_is_changed_is_asked_as_it_is(fields: dict[str, Any]) -> None:
    """The requests that the service gets for the framework's own calls are those of the original."""
    sent: list[dict[str, Any]] = []

    class Noting(Service):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            body = json.loads(request.read())
            sent.append(body)
            text = digest(written(body))[:12]
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            said = {"id": "1", "object": "chat.completion", "model": "m", "choices": [choice]}
            return httpx.Response(200, json=said)

    def model() -> ChatOpenAI:
        return ChatOpenAI(
            model="m", api_key=SecretStr("none"), base_url="http://service/v1", max_retries=0, temperature=0.1,
            http_client=httpx.Client(transport=Noting()), http_async_client=httpx.AsyncClient(transport=Noting()),
        )  # fmt: skip

    expected = changed_between(model(), fields, is_optimized=False)
    original = [written(body) for body in sent]
    sent.clear()
    assert changed_between(model(), fields, is_optimized=True) == expected
    assert set(original) <= {written(body) for body in sent}


@pytest.mark.parametrize("cls", [Hosted, HostedNatively])
@pytest.mark.parametrize("at", ["before", "within"])
def test_a_call_that_runs_ahead_is_of_the_model_as_it_was_foreseen(cls: Any, at: str) -> None:
    """Changed while the call waits for its thread, or while it is made: what comes back is nobody's answer."""
    model = cls(metadata={"a": 1})
    call: Foreign = foreign_call(model, [HumanMessage("why")], cls is HostedNatively, {}, copy_context())

    def change(*args: Any, **kwargs: Any) -> Any:
        model.metadata = {"a": 2}
        return said(*args, **kwargs)

    said = model._said
    if at == "before":
        model.metadata = {"a": 2}
    else:
        object.__setattr__(model, "_said", change)

    async def made() -> Any:
        return await call.call()

    with pytest.raises(Exception, match="was changed"):
        asyncio.run(made()) if call.is_async else call.call()
    assert len(model._calls) == (at == "within")


def test_a_foreseen_call_is_made_with_what_it_was_foreseen_with() -> None:
    """The user may change messages and arguments before it is made."""
    model = Told()
    message, kwargs, stop = HumanMessage("why", additional_kwargs={"a": [1]}), {"tools": [{"a": [1]}]}, ["a"]
    before = model._generate([message.model_copy(deep=True)], stop=["a"], tools=[{"a": [1]}]).generations[0].text
    key = foreseen(model, [message], stop, **kwargs)
    call = foreign_call(model, [message], False, {"stop": stop, **kwargs}, copy_context())
    message.additional_kwargs["a"].append(2)
    kwargs["tools"][0]["a"].append(2)
    stop.append("b")
    assert str(call.call()) == before
    assert foreseen(model, [message], stop, **kwargs) != key


def test_two_models_of_a_call_are_two_though_one_is_gone() -> None:
    """The key holds the model: another one at the same address is another one."""
    keys = [foreseen(Told(), [HumanMessage("why")]) for _ in range(50)]
    assert len(set(keys)) == 50
