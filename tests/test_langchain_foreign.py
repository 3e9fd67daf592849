"""Models of others: what the run-ahead asked is handed to the framework, once, unless the reply is streamed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextvars import ContextVar
from threading import Event, Lock, Semaphore
from typing import Any

import httpx
import pytest
from langchain_core.language_models import LLM, BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_openai import ChatOpenAI
from pydantic import PrivateAttr

from teola_plugin import optimize, optimized, pure, writes
from teola_plugin.runtime.session import Report
from tests.langchain_world import Engines, Recorder, ask, digest


@pure
class Hosted(BaseChatModel):
    """Answers with a digest of its messages; counts its calls, which no answer depends on."""

    _calls: list[tuple[str, str]] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "hosted"

    def _said(self, how: str, messages: list[BaseMessage], kwargs: dict[str, Any]) -> str:
        self._calls.append((how, str(messages[0].content)))
        if "fail" in str(messages[0].content):
            raise ConnectionError("the service is down")
        return digest(f"{messages[0].content} {sorted(kwargs)}")[:8]

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        message = AIMessage(
            content=self._said("call", messages, kwargs),
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        )
        return ChatResult(generations=[ChatGeneration(message=message)], llm_output={"model": "m"})

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        for letter in self._said("stream", messages, kwargs):
            yield ChatGenerationChunk(message=AIMessageChunk(content=letter))


@pure
class HostedNatively(Hosted):
    """With a coroutine of its own, which belongs to the loop it is called on."""

    _loops: list[Any] = PrivateAttr(default_factory=list)

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        self._loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return self._generate(messages, stop, **kwargs)


@pure
class HostedLLM(LLM):
    _calls: list[str] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "hosted-llm"

    def _call(self, prompt: str, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> str:
        self._calls.append(prompt)
        return digest(prompt)[:8]


def debate(model: Runnable[Any, Any]) -> Runnable[Any, Any]:
    return (
        RunnableParallel(
            pro=ask("For {claim}") | model | StrOutputParser(), con=ask("Against {claim}") | model | StrOutputParser()
        )
        | ask("Judge {pro} {con}")
        | model
    )


def report_of(chain: Runnable[Any, Any]) -> Report:
    return optimized(chain).reports[-1]


@pytest.mark.parametrize("cls", [Hosted, HostedNatively])
@pytest.mark.parametrize("is_async", [False, True])
def test_each_call_is_made_once(cls: type[Hosted], is_async: bool) -> None:
    def run(model: Hosted, chain: Runnable[Any, Any]) -> tuple[Any, Any, Any]:
        recorder = Recorder()
        config: Any = {"callbacks": [recorder]}
        value = asyncio.run(chain.ainvoke({"claim": "x"}, config)) if is_async else chain.invoke({"claim": "x"}, config)
        return (value.content, value.response_metadata, value.usage_metadata), recorder.tree(), sorted(model._calls)

    plain, fast = cls(), cls()
    chain = optimize(debate(fast))
    assert run(fast, chain) == run(plain, debate(plain))
    report = report_of(chain)
    assert (report.wasted, report.fallbacks) == (0, ())
    assert report.hits + report.shared + report.misses >= 3


async def test_a_coroutine_runs_on_the_callers_loop() -> None:
    model = HostedNatively()
    await optimize(debate(model)).ainvoke({"claim": "x"})
    assert set(model._loops) == {asyncio.get_running_loop()}


def test_streams_are_left_to_the_framework() -> None:
    plain, fast = Hosted(), Hosted()
    chain = optimize(debate(fast))
    assert "".join(c.content for c in chain.stream({"claim": "x"})) == "".join(
        c.content for c in debate(plain).stream({"claim": "x"})
    )
    assert sorted(fast._calls) == sorted(plain._calls)
    assert {how for how, _ in fast._calls} == {"stream"}


async def test_events_are_left_to_the_framework() -> None:
    model = Hosted()
    kinds = [e["event"] async for e in optimize(debate(model)).astream_events({"claim": "x"}, version="v2")]
    assert "on_chat_model_stream" in kinds
    assert len(model._calls) == 3


def test_replies_are_the_callers_own() -> None:
    chain = optimize(debate(Hosted()))
    first = chain.invoke({"claim": "x"})
    first.content = "changed"
    assert chain.invoke({"claim": "x"}).content != "changed"


def test_the_same_error_of_a_call_in_place() -> None:
    """Whoever came first, the framework's own call is the last one that failed."""
    model = Hosted()
    chain = optimize(RunnableParallel(a=ask("fail {claim}") | model, b=ask("{claim}") | model))
    with pytest.raises(ConnectionError, match="down") as raised:
        chain.invoke({"claim": "x"})
    assert raised.value.__context__ is None
    assert model._calls.count(("call", "fail x")) in (1, 2)
    assert model._calls.count(("call", "x")) == 1


class Service(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Answers with the prompt. The first call for `refuse` is refused as one too many; all others wait until it was."""

    def __init__(self, refuse: str = "") -> None:
        self.refuse = refuse
        self.refused = Event()
        self.arrived = Semaphore(0)
        self.made: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        said = json.loads(request.read())["messages"][0]["content"]
        self.made.append(said)
        self.arrived.release()
        if said == self.refuse and not self.refused.is_set():
            self.refused.set()
            return httpx.Response(429, json={"error": {"message": "too many"}})
        assert not self.refuse or self.refused.wait(10)
        choice = {"index": 0, "message": {"role": "assistant", "content": f"<{said}>"}, "finish_reason": "stop"}
        return httpx.Response(200, json={"id": "1", "object": "chat.completion", "model": "m", "choices": [choice]})

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return await asyncio.to_thread(self.handle_request, request)


def openai(service: Service) -> ChatOpenAI:
    return ChatOpenAI(
        model="m", api_key="none", base_url="http://service/v1", max_retries=0,
        http_client=httpx.Client(transport=service), http_async_client=httpx.AsyncClient(transport=service),
    )  # type: ignore[arg-type,call-arg]  # fmt: skip


@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
def test_a_call_that_failed_ahead_is_made_in_place(form: str) -> None:
    service = Service(refuse="B x")
    model = openai(service)
    chain = optimize(
        RunnablePassthrough.assign(a=ask("A {q}") | model | StrOutputParser())
        | RunnablePassthrough.assign(b=ask("B {q}") | model | StrOutputParser())
    )
    said = chain.invoke({"q": "x"}) if form == "invoke" else asyncio.run(chain.ainvoke({"q": "x"}))
    assert said == {"q": "x", "a": "<A x>", "b": "<B x>"}
    assert sorted(service.made) == ["A x", "B x", "B x"]
    assert report_of(chain).fallbacks == ()


def test_no_hosted_call_overtakes_a_function_that_may_be_a_guard() -> None:
    service = Service()
    model = openai(service)

    def moderate(x: dict[str, str]) -> None:
        time.sleep(0.1)  # time enough to be overtaken
        raise PermissionError(x["q"])

    @writes("notes")
    def note(x: dict[str, str]) -> None:
        assert all(service.arrived.acquire(timeout=10) for _ in range(2))

    asks = RunnablePassthrough.assign(a=ask("A {q}") | model) | RunnablePassthrough.assign(b=ask("B {q}") | model)
    guarded = optimize(RunnablePassthrough.assign(ok=moderate) | asks)
    assert optimized(guarded).optimized.graph["b"].after == ("ok",)
    with pytest.raises(PermissionError):
        guarded.invoke({"q": "forbidden"})
    assert service.made == []
    assert optimize(RunnablePassthrough.assign(ok=note) | asks).invoke({"q": "x"})["b"].content == "<B x>"


def test_a_retry_calls_again() -> None:
    model = Hosted()
    chain = optimize(
        RunnableParallel(
            a=ask("{claim}") | model,
            b=ask("fail {claim}") | model.with_retry(stop_after_attempt=2, wait_exponential_jitter=False),
        )
    )
    with pytest.raises(ConnectionError):
        chain.invoke({"claim": "x"})
    assert model._calls.count(("call", "fail x")) in (2, 3)


def test_bound_arguments_tell_calls_apart() -> None:
    model = Hosted()
    chain = RunnableParallel(
        a=ask("{q}") | model.bind(seed=1), b=ask("{q}") | model, c=ask("{q}") | model.bind(stop=["x"])
    )
    assert {k: v.content for k, v in optimize(chain).invoke({"q": "x"}).items()} == {
        k: v.content for k, v in chain.invoke({"q": "x"}).items()
    }
    assert len(model._calls) == 6


def test_llms() -> None:
    model = HostedLLM()
    chain = RunnableParallel(a=ask("A {q}") | model, b=ask("B {q}") | model) | ask("{a} {b}") | model
    fast = optimize(chain)
    assert fast.invoke({"q": "x"}) == chain.invoke({"q": "x"})
    assert asyncio.run(fast.ainvoke({"q": "x"})) == asyncio.run(chain.ainvoke({"q": "x"}))
    assert fast.batch([{"q": "x"}, {"q": "y"}]) == chain.batch([{"q": "x"}, {"q": "y"}])
    assert len(model._calls) == 24


def test_models_with_state_are_left_alone() -> None:
    class Counting(Hosted):
        __teola_effects__ = None

    chain = debate(Counting())
    assert optimize(chain) is chain


def test_what_comes_after_a_reply_that_did_not_run_ahead_still_does() -> None:
    def unknown(text: str) -> str:
        print(end="")
        return text

    e = Engines()
    both = RunnableParallel(x=ask("B {x}") | e.chat, y=ask("C {x}") | e.chat)
    rescued = (ask("fail {q}") | Hosted() | StrOutputParser()).with_fallbacks([RunnableLambda(lambda _: "rescued")])
    for first, form in ((ask("A {q}") | Hosted() | StrOutputParser(), "stream"), (rescued, "invoke")):
        chain = optimize(first | RunnableLambda(unknown) | both)
        list(getattr(chain, form)({"q": "a"}))
        assert report_of(chain).fallbacks == ()


TENANT: ContextVar[str] = ContextVar("tenant", default="")


class Odd(Hosted):
    """Says who asks, keeps something that cannot be copied, or fails in ways that are hard on event loops."""

    error: Any = None

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        if self.error:
            raise self.error("odd")
        message = AIMessage(content=f"{TENANT.get()} {messages[0].content}", additional_kwargs={"client": Lock()})
        return ChatResult(generations=[ChatGeneration(message=message)])


@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
def test_a_call_has_the_context_of_the_caller(form: str) -> None:
    chain = optimize(debate(Odd()))
    TENANT.set("me")
    said = chain.invoke({"claim": "x"}) if form == "invoke" else asyncio.run(chain.ainvoke({"claim": "x"}))
    assert said.content == "me Judge me For x me Against x"


@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt])
def test_any_error_reaches_the_caller(error: type[BaseException]) -> None:
    chain = debate(Odd(error=error))
    for pipeline in (chain, optimize(chain)):
        with pytest.raises(error):
            pipeline.invoke({"claim": "x"})
