"""The OpenAI-compatible engine against small real servers of each kind."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.tools import tool
from llama_index.core.base.llms.types import ChatMessage

from teola_plugin import optimize, runtime
from teola_plugin.chat import read_chat, write_chat
from teola_plugin.engines import Batch, Completion, Delta, Done, Failed, Item, Outcome
from teola_plugin.errors import Cancelled, DeadlineExceeded, EngineError, EngineUnavailable
from teola_plugin.models import langchain as lc
from teola_plugin.models import llamaindex as li
from teola_plugin.runtime.engines import openai as module
from teola_plugin.runtime.engines.openai import OpenAIEngine
from teola_plugin.runtime.engines.openai_limits import LONGEST_BACKOFF_S, PERIOD_S, Budget, retry_after_s
from tests.runtime.hosts.test_forks import in_child
from tests.support.openai_service import ANSWER, MODEL, Break, Refuse, Service, free_port, served

TEXT = "".join(ANSWER)
CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Who?"}]
LONG = "What bees say to one another. " * 20


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.slept.append(delay_s)
        self.now_s += delay_s
        await asyncio.sleep(0)


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    with served(Service(**getattr(request, "param", {}))) as service:
        yield service


@pytest.fixture
def hosted() -> Iterator[Service]:
    with served(Service("hosted")) as service:
        yield service


@asynccontextmanager
async def opened(url: str, **arguments: Any) -> AsyncIterator[OpenAIEngine]:
    engine = OpenAIEngine(MODEL, url, **arguments)
    try:
        yield engine
    finally:
        await engine.close()


async def outcomes(engine: OpenAIEngine, op: str, items: Sequence[Item | str], **settings: Any) -> list[list[Outcome]]:
    """What was told of each item."""
    batch = Batch(op, settings, tuple(i if isinstance(i, Item) else Item(i, id=n) for n, i in enumerate(items)))
    told: list[list[Outcome]] = [[] for _ in items]
    await engine.run(batch, lambda position, outcome: told[position].append(outcome))
    for said in told:
        assert [isinstance(outcome, Delta) for outcome in said] == [True] * (len(said) - 1) + [False]
    return told


async def decode(engine: OpenAIEngine, item: Item | str, **settings: Any) -> Completion:
    ((*_, last),) = await outcomes(engine, "decoding", [item], **settings)
    if isinstance(last, Failed):
        raise last.error
    assert isinstance(last, Done)
    value: Completion = last.value
    return value


async def warm(engine: OpenAIEngine, text: str) -> int:
    ((last,),) = await outcomes(engine, "partial_prefilling", [text])
    assert isinstance(last, Done), last
    return int(last.value)


# --- conversations as one text ---------------------------------------------------------------------------------------

contents = st.text(st.characters(codec="utf-8") | st.sampled_from("\x01\x02\x04\x10ABDP"))
chats = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": contents}), min_size=1)


@given(chats, st.sampled_from([[], [{"type": "function", "function": {"name": "\x01f"}}]]))
def test_a_conversation_is_read_as_it_was_written(messages: list[dict[str, Any]], tools: list[Any]) -> None:
    chat = read_chat(write_chat(messages, tools))
    assert chat
    assert (list(chat.messages), list(chat.tools), chat.is_whole) == (messages, tools, True)


@given(chats, st.text("ab\n ", min_size=1), st.integers(0, 20))
def test_a_prefix_is_the_conversation_cut_in_its_last_message(
    messages: list[dict[str, Any]], last: str, at: int
) -> None:
    text = write_chat([*messages, {"role": "user", "content": last}])
    cut = min(at, len(last))
    chat = read_chat(text[: len(text) - 1 - len(last) + cut])
    assert chat
    assert not chat.is_whole
    assert list(chat.messages) == [*messages, {"role": "user", "content": last[:cut]}]


def test_other_texts_are_no_conversations() -> None:
    assert read_chat("System: Hello") is None
    with pytest.raises(EngineError, match="parts that do not fit"):
        read_chat(write_chat(CHAT).replace("Who?", "\x01Who?"))


# --- budgets ---------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 50), st.integers(0, 50)), max_size=40),
    st.integers(1, 5) | st.none(),
    st.integers(50, 120) | st.none(),
)
def test_no_minute_holds_more_than_the_budget(
    requests: list[tuple[float, int, int]], most_requests: int | None, most_tokens: int | None
) -> None:
    budget, now_s, taken = Budget(most_requests, most_tokens), 0.0, []
    for pause_s, tokens, used in requests:
        now_s += pause_s
        while (delay_s := budget.delay_s(now_s, tokens)) > 0:
            assert not math.isinf(delay_s)
            now_s += delay_s
        ticket = budget.take(now_s, tokens)
        taken.append(ticket)
        budget.settle(ticket, min(used, tokens))
    for first in taken:
        minute = [t for t in taken if first.at_s <= t.at_s < first.at_s + PERIOD_S]
        assert most_requests is None or len(minute) <= most_requests
        assert most_tokens is None or sum(t.tokens for t in minute) <= most_tokens


def test_what_is_given_back_may_be_taken_at_once() -> None:
    budget = Budget(tokens_per_minute=100)
    ticket = budget.take(0.0, 90)
    assert budget.delay_s(1.0, 20) == PERIOD_S - 1
    budget.settle(ticket, 80)
    assert budget.delay_s(1.0, 20) == 0
    assert math.isinf(budget.delay_s(1.0, 101))


async def test_a_budget_delays_and_is_never_exceeded(hosted: Service) -> None:
    clock = Clock()
    limits = {"requests_per_minute": 3, "tokens_per_minute": 1000, "clock": clock, "sleep": clock.sleep}
    async with opened(hosted.url, **limits) as engine:
        told = await outcomes(engine, "decoding", [f"Question {n}" for n in range(7)], max_tokens=9)
        assert all(isinstance(said[-1], Done) for said in told)
        assert len(hosted.seen) == 7
        assert clock.slept == [60.0, 60.0]
        with pytest.raises(EngineError, match="1000 a minute"):
            await decode(engine, "Question", max_tokens=999)
        deadline_s = asyncio.get_running_loop().time() + 30
        with pytest.raises(DeadlineExceeded, match="too late"):
            await outcomes_of_many(engine, [Item(f"Q {n}", id=n, deadline_s=deadline_s) for n in range(4)])
    assert clock.slept == [60.0, 60.0]


async def test_tokens_that_an_answer_did_not_need_are_free_again(hosted: Service) -> None:
    clock = Clock()
    async with opened(hosted.url, tokens_per_minute=100, clock=clock, sleep=clock.sleep) as engine:
        for _ in range(3):
            assert await decode(engine, "Who?", max_tokens=70) == TEXT
    assert clock.slept == []


async def outcomes_of_many(engine: OpenAIEngine, items: Sequence[Item]) -> None:
    for said in await outcomes(engine, "decoding", items, max_tokens=9):
        if isinstance(said[-1], Failed):
            raise said[-1].error


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90.0),
        ({"retry-after": "120"}, 120.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "0"}, None),
        ({"retry-after": "120.1"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after-ms": "nan", "retry-after": "7"}, None),
        ({"retry-after-ms": "x", "retry-after": "7"}, 7.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:05 GMT"}, None),
        ({"retry-after": "Thu, 01 Jan 2970 00:00:05 GMT"}, None),
        ({"retry-after": "Thu, 99 Jan 1970 00:00:05 GMT"}, None),
        ({}, None),
    ],
    ids=str,
)
def test_when_a_service_wants_to_be_asked_again(headers: dict[str, str], wait_s: float | None) -> None:
    import httpx
    import openai

    response = httpx.Response(429, headers=headers, request=httpx.Request("POST", "http://x"))
    error = openai.RateLimitError("no", response=response, body=None)
    assert retry_after_s(error, lambda: 10.0) == wait_s


# --- what is asked, and what comes back ------------------------------------------------------------------------------


async def test_a_text_is_completed_piece_by_piece(service: Service) -> None:
    async with opened(service.url) as engine:
        ((*deltas, last),) = await outcomes(engine, "decoding", [Item("Who?", priority=-3)], max_tokens=3, top_k=1)
        assert isinstance(last, Done)
        whole: Completion = last.value
        assert [delta.text for delta in deltas if isinstance(delta, Delta)] == ANSWER[:3]
        assert (whole, whole.pieces, whole.token_ids) == ("Bees dance, ", tuple(ANSWER[:3]), (0, 1, 2))
        assert (whole.finish_reason, whole.prompt_tokens, whole.output_tokens) == ("length", 7, 3)
    ((path, body),) = service.seen
    assert path == "completions"
    assert body == {
        "model": MODEL, "prompt": "Who?", "max_tokens": 3, "top_k": 1, "priority": -3, "return_token_ids": True,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert service.probed == ["v1/models", "version", "metrics"]  # once


async def test_a_chat_goes_as_the_messages_that_it_is(service: Service) -> None:
    async with opened(service.url) as engine:
        whole = await decode(engine, engine.render_chat(CHAT))
    assert (whole, whole.token_ids) == (TEXT, (0, 1, 2, 3, 4))
    ((path, body),) = service.seen
    assert (path, body["messages"]) == ("chat/completions", CHAT)
    assert "tools" not in body


@pytest.fixture
def engine(service: Service) -> Iterator[OpenAIEngine]:
    yield OpenAIEngine(MODEL, service.url)
    runtime.host.close()


def test_langchain_models_stand_on_it(service: Service, engine: OpenAIEngine) -> None:
    model = lc.EngineChatModel(engine=engine, max_tokens=4)
    message = model.invoke([SystemMessage("Be short."), HumanMessage("Who?")])
    assert message.content == "".join(ANSWER[:4])
    assert message.usage_metadata == {"input_tokens": 7, "output_tokens": 4, "total_tokens": 11}
    assert [chunk.content for chunk in model.stream("Who?")] == [*ANSWER[:4], ""]
    assert asyncio.run(model.ainvoke("Who?")).content == message.content
    assert lc.EngineLLM(engine=engine).invoke("Who?") == TEXT
    assert service.seen[0][1]["messages"] == CHAT
    assert [path for path, _ in service.seen] == ["chat/completions"] * 3 + ["completions"]


def test_llamaindex_models_stand_on_it(service: Service, engine: OpenAIEngine) -> None:
    llm = li.EngineLLM(engine=engine, max_tokens=4)
    response = llm.chat([ChatMessage(role="system", content="Be short."), ChatMessage(role="user", content="Who?")])
    assert response.message.content == "".join(ANSWER[:4])
    assert llm.complete("Who?").text == "".join(ANSWER[:4])
    assert service.seen[0][1]["messages"] == CHAT
    assert service.seen[1][1]["prompt"] == "Who?"


def test_an_optimized_chain_sends_what_the_plain_one_sends(service: Service, engine: OpenAIEngine) -> None:
    model = lc.EngineChatModel(engine=engine)
    first = ChatPromptTemplate.from_messages([("system", "Be short."), ("user", "In general: {question}")])
    second = ChatPromptTemplate.from_messages([("system", f"{LONG}{{question}}"), ("user", "{general} \x01")])
    chain = RunnablePassthrough.assign(general=first | model | StrOutputParser()) | second | model
    plain = chain.invoke({"question": "Who?"})
    sent = [body["messages"] for _, body in service.seen]
    service.seen.clear()
    fast = optimize(chain).invoke({"question": "Who?"})
    assert fast.content == plain.content
    decoded = [body["messages"] for _, body in service.seen if not body.get("continue_final_message")]
    assert decoded == sent  # nothing twice
    warmed = [body for _, body in service.seen if body.get("continue_final_message")]
    assert [body["max_tokens"] for body in warmed] == [1]
    assert warmed[0]["messages"] == [
        {"role": "system", "content": f"{LONG}Who?"}
    ]  # of the second message, nothing is known


@tool
def search(query: str) -> str:
    """Find it."""
    return query


def test_tools_are_the_model_s_own_matter_at_vllm(service: Service, engine: OpenAIEngine) -> None:
    service.answer = ["<tool_call>", '{"name": "search", "arguments": {"query": "bees"}}', "</tool_call>"]
    asked = [HumanMessage("Who?"), AIMessage("", tool_calls=[{"name": "search", "args": {"query": "é"}, "id": "1"}])]
    message = (
        lc.EngineChatModel(engine=engine).bind_tools([search]).invoke([*asked, ToolMessage("x", tool_call_id="1")])
    )
    assert [(call["name"], call["args"]) for call in message.tool_calls] == [("search", {"query": "bees"})]
    body = service.seen[0][1]
    assert body["tool_choice"] == "none"
    assert body["tools"][0]["function"]["name"] == "search"
    assert json.loads(body["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {"query": "é"}
    assert body["messages"][2] == {"role": "tool", "content": "x", "tool_call_id": "1"}


@pytest.mark.parametrize("service", [{"kind": "hosted"}], indirect=True)
def test_calls_that_a_server_parsed_are_read_all_the_same(service: Service, engine: OpenAIEngine) -> None:
    service.answer = ["I look."]
    service.calls = [("search", '{"query": "bees"}'), ("search", '{"query": "}{"}'), ("search", "")]
    model = lc.EngineChatModel(engine=engine).bind_tools([search])
    for message in (model.invoke("Who?"), model.stream("Who?")):
        if not isinstance(message, AIMessage):
            first, *rest = message
            message = sum(rest, first)
        assert message.content == "I look."
        calls = [call["args"] for call in message.tool_calls]
        assert calls == [{"query": "bees"}, {"query": "}{"}, {}]
        assert message.response_metadata["finish_reason"] == "stop"
    assert "tool_choice" not in service.seen[0][1]


@pytest.mark.parametrize("service", [{"kind": "hosted", "endpoints": ("chat/completions",)}], indirect=True)
async def test_a_text_goes_to_the_chat_where_there_is_nothing_else(service: Service) -> None:
    async with opened(service.url) as engine:
        for _ in range(2):
            assert await decode(engine, "Who?") == TEXT
    assert [path for path, _ in service.seen] == ["completions", "chat/completions", "chat/completions"]
    assert service.seen[-1][1]["messages"] == [{"role": "user", "content": "Who?"}]


@pytest.mark.parametrize("service", [{"kind": "llama.cpp", "endpoints": ("completions",)}], indirect=True)
async def test_a_chat_goes_as_plain_lines_where_there_is_nothing_else(service: Service) -> None:
    async with opened(service.url) as engine:
        for _ in range(2):
            assert await decode(engine, engine.render_chat(CHAT)) == TEXT
    assert [path for path, _ in service.seen] == ["chat/completions", "completions", "completions"]
    assert service.seen[-1][1]["prompt"] == "System: Be short.\nUser: Who?\nAssistant:"


@pytest.mark.parametrize("service", [{"endpoints": ()}], indirect=True)
async def test_a_server_with_neither_endpoint_is_told_of(service: Service) -> None:
    async with opened(service.url) as engine:
        with pytest.raises(EngineError, match="404: no completions for this model"):
            await decode(engine, "Who?")


@pytest.mark.parametrize(
    ("kind", "settings", "fields"),
    [
        ("vllm", {"structured_outputs": {"regex": "a"}}, {"structured_outputs": {"regex": "a"}}),
        ("vllm", {"stop": ("x",), "stop_token_ids": (5,), "min_tokens": 2}, {"stop": ["x"], "stop_token_ids": [5]}),
        ("vllm", {"logit_bias": {5: 1}, "ignore_eos": True}, {"logit_bias": {"5": 1.0}, "ignore_eos": True}),
        ("sglang", {"include_stop_str_in_output": True}, {"no_stop_trim": True}),
        ("sglang", {"structured_outputs": {"regex": "a"}}, {"regex": "a"}),
        ("llama.cpp", {"repetition_penalty": 1.5}, {"repeat_penalty": 1.5}),
        ("llama.cpp", {"structured_outputs": {"grammar": "g"}}, {"grammar": "g"}),
        ("llama.cpp", {"structured_outputs": {"json": '{"type": "null"}'}}, {"json_schema": {"type": "null"}}),
        ("hosted", {"structured_outputs": {"json_object": True}}, {"response_format": {"type": "json_object"}}),
        ("hosted", {"extra_body": {"reasoning_effort": "low"}, "seed": None}, {"reasoning_effort": "low"}),
    ],
    ids=str,
)
async def test_settings_become_the_fields_of_the_server(
    kind: str, settings: dict[str, Any], fields: dict[str, Any]
) -> None:
    with served(Service(kind)) as service:
        async with opened(service.url) as engine:
            await decode(engine, "Who?", **settings)
    body = service.seen[0][1]
    assert {name: body[name] for name in fields} == fields
    assert not {"extra_body", "seed"} & body.keys()
    assert ("return_token_ids" in body) == (kind == "vllm")


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("vllm", {"tempreature": 0}, "no setting tempreature for vllm; there are max_tokens"),
        ("hosted", {"top_k": 1, "ignore_eos": True}, "no setting ignore_eos, top_k for this server"),
        ("llama.cpp", {"min_tokens": 3}, "no setting min_tokens for llama.cpp"),
        ("hosted", {"structured_outputs": {"regex": "a"}}, "no server but vLLM can be held .* regex"),
    ],
    ids=str,
)
async def test_a_setting_that_the_server_does_not_have_is_named(kind: str, settings: dict[str, Any], said: str) -> None:
    with served(Service(kind)) as service:
        async with opened(service.url) as engine:
            with pytest.raises(EngineError, match=said):
                await decode(engine, "Who?", **settings)
            assert await decode(engine, "Who?") == TEXT
    assert len(service.seen) == 1


async def test_fields_that_a_server_does_not_know_are_left_out_from_then_on(service: Service) -> None:
    def check(path: str, body: dict[str, Any]) -> Refuse | None:
        if "priority" in body:
            return Refuse(400, "Got priority -1 but Priority scheduling is not enabled.")
        if "max_tokens" in body:
            return Refuse(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return None

    service.check = check
    async with opened(service.url) as engine:
        for _ in range(2):
            await decode(engine, Item("Who?", priority=-1), max_tokens=3)
    assert len(service.seen) == 4
    assert service.seen[-1][1]["max_completion_tokens"] == 3


async def test_tenants_share_no_prefix_at_the_server(service: Service) -> None:
    async with opened(service.url, api_key="k") as engine, opened(service.url, api_key="other") as another:
        for asked in (engine, another):
            for tenant in ("", "a", "a", "b"):
                await decode(asked, Item("Who?", tenant=tenant))
    salts = [body.get("cache_salt") for _, body in service.seen]
    assert (salts[0], salts[1]) == (None, salts[2])
    assert len({*salts}) == 5  # whoever knows another's name does not know its salt


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Refuse(429, headers={"Retry-After": "7"}), Refuse(408), Refuse(409), Refuse(503), Break(0),
        Break(0, {"message": "overloaded", "code": 503}),
    ],
    ids=str,
)  # fmt: skip
async def test_what_passes_is_tried_again(hosted: Service, fault: Refuse | Break) -> None:
    clock = Clock()
    hosted.faults.extend([fault, fault])
    async with opened(hosted.url, clock=clock, sleep=clock.sleep) as engine:
        assert await decode(engine, "Who?") == TEXT
    assert len(hosted.seen) == 3
    assert len(clock.slept) == 2 or fault.headers  # type: ignore[union-attr]
    if isinstance(fault, Refuse) and fault.headers:
        assert clock.slept == [7.0, 7.0]


async def test_a_refused_item_waits_alone(hosted: Service) -> None:
    clock = Clock()
    hosted.faults.append(Refuse(429, headers={"Retry-After": "60"}))
    woken = asyncio.Event()

    async def sleep(delay_s: float) -> None:
        clock.slept.append(delay_s)
        await woken.wait()

    async with opened(hosted.url, max_items=1, requests_per_minute=99, clock=clock, sleep=sleep) as engine:
        first = asyncio.ensure_future(decode(engine, "Who?"))
        await until(lambda: len(clock.slept) == 1)
        assert await asyncio.gather(*(decode(engine, Item("Why?", id=n)) for n in range(1, 4))) == [TEXT] * 3
        assert not first.done()
        woken.set()
        assert await first == TEXT
    assert clock.slept == [60.0]


async def test_a_wait_for_a_service_ends_with_the_item(hosted: Service) -> None:
    clock = Clock()

    async def sleep(delay_s: float) -> None:
        clock.slept.append(delay_s)
        await asyncio.Event().wait()

    async with opened(hosted.url, clock=clock, sleep=sleep) as engine:
        hosted.faults.append(Refuse(429, headers={"Retry-After": "60"}))
        told = asyncio.ensure_future(decode(engine, Item("Who?", id=7)))
        await until(lambda: len(clock.slept) == 1)
        engine.abort([7])
        with pytest.raises(Cancelled):
            await told
        hosted.faults.append(Refuse(429, headers={"Retry-After": "60"}))
        with pytest.raises(EngineError, match="429"):  # the deadline comes before that
            await decode(engine, Item("Who?", deadline_s=asyncio.get_running_loop().time() + 30))
        assert await decode(engine, "Who?") == TEXT
    assert clock.slept == [60.0]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Refuse(400, "the prompt is too long"), "answered 400: the prompt is too long"),
        (Refuse(429, "pay first", code="insufficient_quota"), "answered 429: pay first"),
        (Refuse(501, "not here"), "not here"),
        (Break(2), "http://127.*the connection failed: "),
        (Break(2, {"message": "overloaded", "code": 503}), "broke off its answer with an error: overloaded"),
        (Break(2, quiet=True), "ended an answer early, without a reason"),
    ],
    ids=str,
)
async def test_what_does_not_pass_or_has_begun_fails_at_once(hosted: Service, fault: Refuse | Break, said: str) -> None:
    clock = Clock()
    hosted.endpoints = ("completions",)
    hosted.faults.append(fault)
    async with opened(hosted.url, clock=clock, sleep=clock.sleep) as engine:
        told = await outcomes(engine, "decoding", ["Who?"])
        assert [outcome.text for outcome in told[0][:-1] if isinstance(outcome, Delta)] == (
            ANSWER[:2] if isinstance(fault, Break) else []
        )
        assert isinstance(told[0][-1], Failed)
        assert isinstance(told[0][-1].error, EngineError)
        with pytest.raises(EngineError, match=said):
            raise told[0][-1].error
        assert await decode(engine, "Who?") == TEXT
    assert not clock.slept


async def test_attempts_end_by_their_number_and_by_the_deadline(hosted: Service) -> None:
    clock = Clock()
    hosted.faults.extend([Refuse(503, "busy")] * 20)
    async with opened(hosted.url, max_attempts=3, clock=clock, sleep=clock.sleep) as engine:
        with pytest.raises(EngineError, match="503: busy"):
            await decode(engine, "Who?")
        assert len(hosted.seen) == 3
        hosted.faults.clear()
        hosted.faults.append(Refuse(503, "later", {"Retry-After": "100"}))
        with pytest.raises(EngineError, match="503: later"):
            await decode(engine, Item("Who?", deadline_s=asyncio.get_running_loop().time() + 60))
        assert len(hosted.seen) == 4
        hosted.faults.append(Refuse(503, "tomorrow", {"Retry-After": "86400"}))
        assert await decode(engine, "Who?") == TEXT
        assert len(hosted.seen) == 6
    assert max(clock.slept) <= LONGEST_BACKOFF_S


async def test_an_answer_that_is_not_there_by_the_deadline_is_given_up(service: Service) -> None:
    service.gate = threading.Event()
    async with opened(service.url) as engine:
        await engine.start()
        with pytest.raises(DeadlineExceeded, match="before the deadline"):
            await decode(engine, Item("Who?", deadline_s=asyncio.get_running_loop().time() + 0.2))
        await until(lambda: not service.open)


async def until(is_so: Callable[[], bool]) -> None:
    """The test's own timeout ends the waiting."""
    while not is_so():  # noqa: ASYNC110  nothing tells it
        await asyncio.sleep(0.002)


async def test_a_bad_item_fails_alone(service: Service) -> None:
    service.check = lambda path, body: Refuse(400, "too long") if len(str(body.get("prompt"))) > 50 else None
    async with opened(service.url) as engine:
        long, lone, broken, good, empty = await outcomes(
            engine, "decoding", ["word " * 20, "lone \ud800 surrogate", "\x01{", "fine", ""]
        )
    assert isinstance(long[-1], Failed)
    assert "400: too long; the model takes 512 tokens" in str(long[-1].error)
    assert isinstance(lone[-1], Failed)
    assert isinstance(lone[-1].error, UnicodeEncodeError)
    assert isinstance(broken[-1], Failed)
    assert isinstance(broken[-1].error, EngineError)
    assert good[-1] == empty[-1] == Done(TEXT)


async def test_an_unknown_operation_fails(service: Service) -> None:
    async with opened(service.url) as engine:
        with pytest.raises(EngineError, match="not embedding"):
            await outcomes(engine, "embedding", ["x"])


# --- servers that are not as they should be --------------------------------------------------------------------------


async def test_no_server_at_the_address_is_said_with_what_to_start() -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    async with opened(url) as engine:
        with pytest.raises(EngineUnavailable, match=f"no server answers at {url}.*vllm serve"):
            await decode(engine, "Who?")
        with pytest.raises(EngineUnavailable, match="no server answers"):
            await engine.start()


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x/v1", "/v1", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(EngineError, match="is no address"):
        OpenAIEngine(MODEL, url)


async def test_the_end_of_an_address_may_be_left_out(service: Service) -> None:
    async with opened(service.url.removesuffix("/v1")) as engine:
        assert await decode(engine, "Who?") == TEXT


@pytest.mark.parametrize("service", [{"models": ("tinny", "llama", "other")}], indirect=True)
async def test_a_model_that_the_server_does_not_have_is_refused_with_those_it_has(service: Service) -> None:
    async with opened(service.url) as engine:
        with pytest.raises(EngineUnavailable, match=r"no model 'tiny'; it has 'tinny' and 2 more"):
            await decode(engine, "Who?")
    assert not service.seen


@pytest.mark.parametrize("service", [{"kind": "hosted", "models": ("a", "b")}], indirect=True)
async def test_a_hosted_server_may_have_models_that_it_does_not_list(service: Service) -> None:
    async with opened(service.url) as engine:
        assert await decode(engine, "Who?") == TEXT
        service.check = lambda path, body: Refuse(400, "what model?")
        with pytest.raises(EngineError, match=r"what model.*it has no model 'tiny'; it has 'a', 'b'"):
            await decode(engine, "Who?")


@pytest.mark.parametrize("service", [{"kind": "hosted", "lists_models": False}], indirect=True)
async def test_a_server_need_not_list_its_models(service: Service) -> None:
    async with opened(service.url) as engine:
        assert (await engine.start()).kind == "unknown"
        assert await decode(engine, "Who?") == TEXT


@pytest.mark.parametrize("service", [{"key": "sk-right"}], indirect=True)
async def test_keys_are_told_to_nobody(
    service: Service, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-environment")
    caplog.set_level(logging.DEBUG)
    service.faults.extend([Refuse(503), Refuse(400, "I will not take sk-right")])
    async with opened(service.url, api_key="sk-right") as engine:
        with pytest.raises(EngineError, match=r"take \*\*\*") as refused:
            await decode(engine, "Who?")
        seen = [
            repr(engine),
            repr(vars(engine)),
            repr(lc.EngineChatModel(engine=engine)),
            repr(refused.value.__cause__),
        ]
    async with opened(service.url, api_key="sk-wrong") as engine:
        with pytest.raises(EngineError, match=r"401: wrong key.*give the right api_key") as refused:
            await decode(engine, "Who?")
        seen += [str(refused.value), repr(refused.value.__cause__)]
    assert not any("sk-" in text for text in [*seen, *caplog.messages])
    async with opened(service.url) as engine:
        with pytest.raises(EngineError, match="401"):
            await decode(engine, "Who?")
    assert not any("environment" in str(headers) for headers in service.headers)
    monkeypatch.setenv("OPENAI_BASE_URL", service.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-right")
    engine = OpenAIEngine(MODEL)
    assert await decode(engine, "Who?") == TEXT
    await engine.close()


def test_a_missing_package_is_named_with_its_extra(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openai", None)
    engine = OpenAIEngine(MODEL, service.url)
    with pytest.raises(EngineUnavailable, match=r"package openai: install teola-plugin\[openai\]"):
        asyncio.run(decode(engine, "Who?"))


# --- prefixes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "arguments", "warms"),
    [
        ({"kind": "vllm"}, {}, True),
        ({"kind": "sglang"}, {}, True),
        ({"kind": "llama.cpp"}, {}, True),
        ({"kind": "vllm", "keeps_prefixes": False}, {}, False),
        ({"kind": "sglang", "keeps_prefixes": False}, {}, False),
        ({"kind": "vllm"}, {"prefix": "off"}, False),
        ({"kind": "hosted"}, {}, False),
        ({"kind": "hosted"}, {"prefix": "free"}, True),
        ({"kind": "hosted"}, {"server": "vllm"}, False),
    ],
    ids=str,
)
async def test_prefixes_are_computed_ahead_only_where_that_is_free(
    kind: dict[str, Any], arguments: dict[str, Any], warms: bool
) -> None:
    with served(Service(**kind)) as service:
        async with opened(service.url, **arguments) as engine:
            assert await warm(engine, LONG) == (7 if warms else 0)
            assert engine.capabilities.prefix == warms
            assert await warm(engine, "too short") == 0
    assert [(path, body["prompt"], body["max_tokens"]) for path, body in service.seen] == (
        [("completions", LONG, 1)] if warms else []
    )


@pytest.mark.parametrize("service", [{"kind": "vllm"}, {"kind": "llama.cpp"}], indirect=True)
async def test_the_prefix_of_a_chat_ends_in_its_last_message(service: Service) -> None:
    async with opened(service.url) as engine:
        text = engine.render_chat([CHAT[0], {"role": "user", "content": LONG}], [{"type": "function"}])
        await warm(engine, text[:-9])
        await warm(engine, text.removesuffix(f"{LONG}\x04") + "x" * 256)
        await warm(engine, engine.render_chat([{"role": "user", "content": LONG}])[:-1] + '\x01{"role": "user"}\x02')
        first, second, third = (body for _, body in service.seen)
    assert [m["content"] for m in first["messages"]] == ["Be short.", LONG[:-8]]
    assert first["tools"] == [{"type": "function"}]
    assert second["messages"][-1]["content"] == "x" * 256
    assert [m["content"] for m in third["messages"]] == [LONG]
    for body in (first, second, third):
        continued = (body.get("continue_final_message"), body.get("add_generation_prompt"))
        assert continued == ((True, False) if service.kind == "vllm" else (None, None))


# --- start and end ---------------------------------------------------------------------------------------------------


async def test_no_more_requests_run_at_once_than_allowed(service: Service) -> None:
    service.gate = threading.Event()
    async with opened(service.url, max_items=3) as engine:
        work = asyncio.ensure_future(outcomes(engine, "decoding", [f"Question {n}" for n in range(9)]))
        await until(lambda: service.open == 3)
        for _ in range(20):
            await asyncio.sleep(0.002)
        assert len(service.seen) == 3
        service.gate.set()
        assert all(isinstance(said[-1], Done) for said in await work)
    assert service.most_open == 3


async def test_abort_closes_the_stream_and_frees_its_place(service: Service) -> None:
    service.gate = threading.Event()
    async with opened(service.url, max_items=2) as engine:
        work = asyncio.ensure_future(outcomes(engine, "decoding", [f"Question {n}" for n in range(4)]))
        await until(lambda: service.open == 2)
        engine.abort([0, 3])  # one that runs, one that waits
        await until(lambda: len(service.seen) == 3 and service.open == 2)
        service.gate.set()
        first, second, third, fourth = await work
        for said in (first, fourth):
            assert isinstance(said[-1], Failed)
            assert isinstance(said[-1].error, Cancelled)
        assert second[-1] == third[-1] == Done(TEXT)
        assert not engine._tasks
        assert await decode(engine, "And then") == TEXT
    await until(lambda: not service.open)


async def test_closing_cancels_and_a_later_use_starts_again(service: Service) -> None:
    service.gate = threading.Event()
    async with opened(service.url) as engine:
        work = asyncio.ensure_future(outcomes(engine, "decoding", ["Question"]))
        await until(lambda: service.open == 1)
        await engine.close()
        ((*_, last),) = await work
        assert isinstance(last, Failed)
        assert isinstance(last.error, Cancelled)
        await until(lambda: not service.open)
        service.gate.set()
        assert await decode(engine, "Question") == TEXT
    assert service.probed.count("v1/models") == 2


def test_an_engine_goes_with_its_event_loop_to_the_next(service: Service) -> None:
    engine = OpenAIEngine(MODEL, service.url)

    async def once() -> str:
        answer = await decode(engine, "Who?")
        with pytest.raises(EngineError, match="another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(decode(engine, "Who?")))
        if engine._connection:
            await engine._connection.client.close()  # the sockets go; the engine does not know
        return answer

    assert [asyncio.run(once()) for _ in range(2)] == [TEXT, TEXT]


def test_a_forked_child_asks_by_itself(service: Service, engine: OpenAIEngine) -> None:
    model = lc.EngineLLM(engine=engine)
    assert model.invoke("Who?") == TEXT
    assert in_child(lambda: model.invoke("Who?")) == repr(TEXT)
    assert model.invoke("Who?") == TEXT
    assert os.getpid()


def test_one_probe_serves_all_that_begin_at_once(service: Service) -> None:
    async def many() -> None:
        async with opened(service.url) as engine:
            await outcomes(engine, "decoding", [f"Question {n}" for n in range(10)])

    asyncio.run(many())
    assert service.probed == ["v1/models", "version", "metrics"]
    assert module.MAX_ITEMS > 10
