"""Models of others: what the run-ahead asked is handed to the framework, once, unless the reply is streamed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar, copy_context
from threading import Event, Lock, Semaphore
from types import SimpleNamespace
from typing import Any

import httpx
import openai as openai_sdk
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import LLM, BaseChatModel, FakeListChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.output_parsers import NumberedListOutputParser, StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, GenerationChunk
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_openai import ChatOpenAI
from pydantic import PrivateAttr

from teola_plugin import explain, optimize, optimized, providers, pure, writes
from teola_plugin.adapters.langchain import adapter
from teola_plugin.adapters.langchain.binding import Entered
from teola_plugin.adapters.langchain.models import foreign_call, is_as_published
from teola_plugin.adapters.service import service_of
from teola_plugin.engines import Batch, Delta, Failed, Foreign, Item, Outcome
from teola_plugin.errors import Cancelled
from teola_plugin.events import BatchRan, Retired
from teola_plugin.providers import FEW, ProviderCall
from teola_plugin.runtime.engines.python import PythonEngine
from teola_plugin.runtime.session import queued_calls, session
from teola_plugin.runtime.session.report import Report
from tests.support.langchain_world import Engines, Recorder, ask, digest


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


def test_of_a_streamed_call_models_in_a_map_are_asked_ahead() -> None:
    """The framework streams only whole items of it."""
    said = ask("For {claim}") | Hosted()
    asking = [adapter.trace(chain).functions["messages"].call for chain in (said.map(), said)]
    foreseen = asking[0](Entered([{"claim": "x"}], "stream"), "x")
    assert foreseen == asking[1](Entered({"claim": "x"}, "invoke"), "x")
    with pytest.raises(LookupError, match="streamed"):
        asking[1](Entered({"claim": "x"}, "stream"), "x")


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


def test_a_function_that_changes_its_message_in_place_does_so_once() -> None:
    """Ahead of the framework's run, which waits until the second call was made, it is given a message of its own."""

    class Late(BaseCallbackHandler):
        def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
            called.wait(10)

    class Second(Hosted):
        def _said(self, how: str, messages: list[BaseMessage], kwargs: dict[str, Any]) -> str:
            if str(messages[0].content).startswith("Second"):
                called.set()
            return super()._said(how, messages, kwargs)

    @pure
    def exclaimed(message: AIMessage) -> str:
        message.content = f"{message.content}!"
        return str(message.content)

    called, model = Event(), pure(Second)()
    exclaiming = ask("First {q}") | model | exclaimed | ask("Second {x}") | model
    chain = RunnableParallel(a=exclaiming, b=ask("Other {q}") | model)
    fast = optimize(chain)
    assert fast.invoke({"q": "x"}, {"callbacks": [Late()]})["a"].content == chain.invoke({"q": "x"})["a"].content
    assert sorted(model._calls[:3]) == sorted(model._calls[3:])
    assert report_of(fast).hits + report_of(fast).shared == 3


def test_the_same_error_of_a_call_in_place() -> None:
    """Whoever came first, the framework's own call is the last one that failed."""
    model = Hosted()
    chain = optimize(RunnableParallel(a=ask("fail {claim}") | model, b=ask("{claim}") | model))
    with pytest.raises(ConnectionError, match="down") as raised:
        chain.invoke({"claim": "x"})
    assert raised.value.__context__ is None
    assert model._calls.count(("call", "fail x")) in (1, 2)
    assert model._calls.count(("call", "x")) == 1


@pure
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


@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
def test_calls_are_counted_where_nothing_can_run_ahead(form: str) -> None:
    def call(pipeline: Runnable[Any, Any]) -> Any:
        return pipeline.invoke({"q": "x"}) if form == "invoke" else asyncio.run(pipeline.ainvoke({"q": "x"}))

    service = Service()
    model, parser = openai(service), StrOutputParser()
    plain = ask("{q}") | model | parser | ask("A {text}") | model | parser
    expected = call(plain)
    chain = optimize(plain)
    assert call(chain) == expected
    assert service.made == ["x", "A <x>"] * 2
    events = report_of(chain).events
    assert [event.outcome for event in events if isinstance(event, Retired)] == ["miss"] * 2
    assert [event.op for event in events if isinstance(event, BatchRan)] == ["decoding"] * 2


def test_a_provider_hears_of_calls_where_nothing_can_run_ahead() -> None:
    service = Service(refuse="x")
    chain = optimize(ask("{q}") | openai(service))
    with pytest.raises(openai_sdk.RateLimitError):
        chain.invoke({"q": "x"})
    breaker = providers.provider(service_of(openai(service)))._breaker
    assert (breaker.failures, breaker.successes) == (FEW, 0)  # a refusal counts as an outage
    chain.invoke({"q": "x"})
    assert (breaker.failures, breaker.successes) == (0, 1)


def refused_in_company(service: Service, chain: Runnable[Any, Any]) -> Any:
    """Call a chain whose first request is refused while a request of another call runs ahead."""
    provider = providers.provider(service_of(openai(service)))
    early = ProviderCall(provider, is_own=False)
    provider.begin(early)
    early.has_ended = True  # so that nobody waits
    try:
        return chain.invoke({"q": "x"})
    finally:
        provider.end(early)


def test_a_call_refused_because_of_what_runs_ahead_of_others_is_repeated() -> None:
    service = Service(refuse="x")
    assert refused_in_company(service, optimize(ask("{q}") | openai(service) | StrOutputParser())) == "<x>"
    assert service.made == ["x", "x"]


def test_so_is_a_call_of_a_resting_pipeline() -> None:
    service = Service(refuse="x")
    step = ask("{q}") | openai(service) | StrOutputParser()
    chain = optimize(RunnablePassthrough.assign(a=step) | RunnablePassthrough.assign(b=step))
    optimized(chain)._worth = SimpleNamespace(is_worth=lambda: False, judge=lambda *report: None)  # type: ignore[assignment]
    assert refused_in_company(service, chain) == {"q": "x", "a": "<x>", "b": "<x>"}
    assert service.made == ["x"] * 3
    assert report_of(chain).rested


def test_a_call_with_hooks_is_not_repeated() -> None:
    service, sent = Service(refuse="<x>"), list[Any]()
    client = httpx.Client(transport=service, event_hooks={"request": [sent.append]})
    hooked = ChatOpenAI(model="m", api_key="none", base_url="http://service/v1", max_retries=0, http_client=client)  # type: ignore[arg-type,call-arg]
    plain = openai(Service())
    chain = ask("{q}") | plain | StrOutputParser() | RunnableLambda(lambda text: text) | hooked
    fast = optimize(chain)
    assert fast is not chain
    with pytest.raises(openai_sdk.RateLimitError):
        refused_in_company(service, fast)
    assert len(sent) == 1


def test_a_method_replaced_between_two_calls_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = openai(Service())
    assert is_as_published(model)
    monkeypatch.setattr(ChatOpenAI, "_convert_input", lambda self, given: given)
    assert not is_as_published(model)
    monkeypatch.undo()
    assert is_as_published(model)


def test_no_hosted_call_overtakes_a_function_that_may_be_a_guard() -> None:
    service = Service()
    model = openai(service)

    def moderate(x: dict[str, str]) -> None:
        time.sleep(0.1)  # time enough to be overtaken
        raise PermissionError(x["q"])

    @writes("notes")
    def note(x: dict[str, str]) -> None:
        moderate(x)

    asks = RunnablePassthrough.assign(a=ask("A {q}") | model) | RunnablePassthrough.assign(b=ask("B {q}") | model)
    for guard in (moderate, note):
        guarded = optimize(RunnablePassthrough.assign(ok=guard) | asks)
        with pytest.raises(PermissionError):
            guarded.invoke({"q": "forbidden"})
        assert service.made == []


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


def test_what_is_asked_is_what_the_messages_were() -> None:
    """Whoever holds the messages may change them before the call is made."""
    message = HumanMessage("before")
    (ask_it,) = [f.call for f in adapter.trace(RunnablePassthrough() | Hosted()).functions.values()]
    asked = ask_it(Entered([message], "invoke"), [message])
    message.content = "after"
    assert str(asked.call()) == Hosted().invoke("before").content
    again = ask_it(Entered([message], "invoke"), [message])
    assert str(again.call()) == Hosted().invoke("after").content


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


def test_models_that_are_declared_to_write_are_left_alone() -> None:
    class Writing(Hosted):
        __teola_effects__ = None

    writes("log")(Writing)
    chain = debate(Writing())
    assert optimize(chain) is chain


def test_models_with_state_are_left_alone() -> None:
    class Counting(Hosted):
        __teola_effects__ = None

    chain = debate(Counting())
    assert optimize(chain) is chain
    fast = optimize(chain, assume_pure=[Counting])
    assert fast.invoke({"claim": "x"}).content == chain.invoke({"claim": "x"}).content
    assert report_of(fast).hits + report_of(fast).shared + report_of(fast).misses == 3
    again = fast.with_config(tags=["later"])
    again.invoke({"claim": "x"})
    assert report_of(again).hits + report_of(again).shared + report_of(again).misses == 3
    assert "Counting, assumed pure" in explain(fast)
    assert optimize(chain) is chain


def in_turn(model: Runnable[Any, Any]) -> Runnable[Any, Any]:
    """Two requests of which the second does not need the first."""
    parse = StrOutputParser()
    first = RunnablePassthrough.assign(a=ask("A {q}") | model | parse)
    return first | RunnablePassthrough.assign(b=ask("B {q}") | model | parse)


@pytest.mark.cold
@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
def test_a_model_that_its_calls_change_is_asked_as_often_as_the_original_asks(form: str) -> None:
    """Declared all the same, it would give its next answer to whoever asks once more."""

    def said(pipeline: Runnable[Any, Any], text: str) -> Any:
        given = {"q": text}
        return pipeline.invoke(given) if form == "invoke" else asyncio.run(pipeline.ainvoke(given))

    plain, fast = (FakeListChatModel(responses=list("abcdefgh"), sleep=0.05) for _ in range(2))
    original, chain = in_turn(plain), optimize(in_turn(fast), assume_pure=[FakeListChatModel])
    assert [said(chain, q) for q in "123"] == [said(original, q) for q in "123"]
    assert fast.i == plain.i == 6


class Lazy(Hosted):
    """Makes its client when it is first asked."""

    client: Any = None

    def _said(self, how: str, messages: list[BaseMessage], kwargs: dict[str, Any]) -> str:
        self.client = self.client or object()
        return super()._said(how, messages, kwargs)


@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
def test_a_model_whose_latest_call_left_it_as_it_was_is_asked_ahead_again(form: str) -> None:
    model = Lazy()

    def ask_ahead() -> str:
        return str(foreign_call(model, [HumanMessage("why")], False, {}, copy_context()).call())

    for _ in range(2):
        with pytest.raises(Cancelled, match="was changed"):
            ask_ahead()
    assert len(model._calls) == 1
    chain = optimize(debate(model))
    chain.invoke({"claim": "x"}) if form == "invoke" else asyncio.run(chain.ainvoke({"claim": "x"}))
    assert len(model._calls) == 4
    assert ask_ahead() == model.invoke("why").content


def test_what_a_model_that_is_assumed_pure_will_be_asked_is_foreseen() -> None:
    class Unmarked(Hosted):
        __teola_effects__ = None

    model = Unmarked()
    traced = optimized(optimize(debate(model), assume_pure=[Unmarked])).traced
    foreseen = traced.functions["messages"].call(Entered({"claim": "x"}, "invoke"), "x")
    assert str(foreseen.call()) == model.invoke("For x").content


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


# --- lists that are streamed -----------------------------------------------------------------------------------------

COLOURS = "1. red\n2. green\n3. blue"


@pure
class Writer(BaseChatModel):
    """Asked for a list it writes one; streamed, it does not end before somebody asked about an item."""

    fails: bool = False
    _calls: list[str] = PrivateAttr(default_factory=list)
    _asked: Event = PrivateAttr(default_factory=Event)

    @property
    def _llm_type(self) -> str:
        return "writer"

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        asked = str(messages[0].content)
        self._calls.append(f"call {asked}")
        is_list = asked.startswith("List")
        if not is_list:
            self._asked.set()
        text = COLOURS if is_list else digest(asked)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content=text))])

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        self._calls.append(f"stream {messages[0].content}")
        for text in ("1. re", "", "d\n2. green\n"):
            yield ChatGenerationChunk(message=AIMessageChunk(content=text))
        assert self._asked.wait(10)
        if self.fails:
            raise ConnectionError("cut off")
        yield ChatGenerationChunk(message=AIMessageChunk(content="3. blue", response_metadata={"done": True}))


@pure
class NativeWriter(Writer):
    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return self._generate(messages, stop, **kwargs)

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        chunks = self._stream(messages, stop)
        while chunk := await asyncio.to_thread(next, chunks, None):
            yield chunk


@pure
class ListingLLM(LLM):
    _calls: list[str] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "listing"

    def _call(self, prompt: str, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> str:
        self._calls.append("call")
        return COLOURS

    def _stream(
        self, prompt: str, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[GenerationChunk]:
        self._calls.append("stream")
        yield from (GenerationChunk(text=line) for line in COLOURS.splitlines(keepends=True))


def listing(writer: Any, about: Any) -> Runnable[Any, Any]:
    each = ask("About {colour}") | about | StrOutputParser()
    return ask("List {q}") | writer | NumberedListOutputParser() | each.map()


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "HEAD_START_S", 10)
    monkeypatch.setattr(queued_calls, "HEAD_START_S", 10)


def said(chain: Runnable[Any, Any], is_async: bool) -> Any:
    return asyncio.run(chain.ainvoke({"q": "x"})) if is_async else chain.invoke({"q": "x"})


@pytest.mark.parametrize("cls", [Writer, NativeWriter])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_items_go_on_while_a_streamed_list_is_written(cls: type[Writer], is_async: bool, fails: bool) -> None:
    plain, fast = cls(), cls(fails=fails)
    chain = optimize(listing(fast, fast), stream_lists=True)
    assert said(chain, is_async) == said(listing(plain, plain), is_async)
    again = ["call List x"] if fails else []  # by the framework
    assert sorted(fast._calls) == sorted(["stream List x", *again, *plain._calls[1:]])
    assert (report_of(chain).wasted, report_of(chain).fallbacks) == (0, ())


@pytest.mark.parametrize("writer", [Writer(), Writer(disable_streaming=True), ListingLLM()])
def test_no_list_is_streamed_unless_asked_for(writer: Any) -> None:
    about = Writer()
    is_asked = getattr(writer, "disable_streaming", False)
    assert said(optimize(listing(writer, about), stream_lists=is_asked), False) == said(listing(writer, about), False)
    assert "stream" not in " ".join(writer._calls)


def test_only_lists_are_streamed() -> None:
    model = Hosted()
    optimize(debate(model), stream_lists=True).invoke({"claim": "x"})
    assert {how for how, _ in model._calls} == {"call"}


def test_one_of_several_lists_to_one_prompt_is_not_streamed() -> None:
    writer = ListingLLM()
    assert said(optimize(listing(writer.bind(n=2), Writer()), stream_lists=True), False)
    assert writer._calls == ["call"]


def test_a_list_of_an_llm_is_streamed() -> None:
    writer, about = ListingLLM(), Writer()
    chain = optimize(listing(writer, about), stream_lists=True)
    assert said(chain, False) == said(listing(ListingLLM(), about), False)
    assert writer._calls == ["stream"]


def test_the_framework_itself_asks_for_no_stream() -> None:
    """Something that only its own run computes comes first, and it makes the call in place."""
    writer = Writer()

    def unknown(x: Any) -> Any:
        print(end="")
        return x

    chain = optimize(RunnableLambda(unknown) | writer | NumberedListOutputParser(), stream_lists=True)
    assert chain.invoke("List x") == ["red", "green", "blue"]
    assert writer._calls == ["call List x"]


def test_a_streamed_list_of_chatopenai() -> None:
    class Streaming(Service):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            asked = json.loads(request.read())
            if not asked["messages"][0]["content"].startswith("List"):
                return super().handle_request(request)
            self.made.append("stream" if asked.get("stream") else "call")
            head = {"id": "1", "object": "chat.completion", "model": "m", "created": 1}
            if not asked.get("stream"):
                message = {"role": "assistant", "content": COLOURS}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                return httpx.Response(200, json={**head, "choices": [choice]})
            pieces = [COLOURS[i : i + 3] for i in range(0, len(COLOURS), 3)]
            deltas = [*({"role": "assistant", "content": piece} for piece in pieces), {}]
            lines = [
                json.dumps({**head, "choices": [{"index": 0, "delta": d, "finish_reason": None if d else "stop"}]})
                for d in deltas
            ]
            body = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"])
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    plain, service = Streaming(), Streaming()
    writer = openai(service)
    got: list[Any] = []

    def keep(message: Any) -> Any:
        got.append((message.content, message.response_metadata["finish_reason"]))
        return message

    chain = optimize(
        ask("List {q}") | writer | RunnableParallel(kept=keep, items=NumberedListOutputParser()), stream_lists=True
    )
    assert said(chain, False)["items"] == ["red", "green", "blue"]
    assert said(optimize(listing(writer, writer), stream_lists=True), False) == said(
        listing(openai(plain), openai(plain)), False
    )
    assert sorted(service.made) == sorted(["call", "stream", *plain.made[1:]])
    assert got == [(COLOURS, "stop")]


async def test_a_stream_that_nobody_waits_for_is_closed() -> None:
    told, ended = Event(), Event()
    emitted: list[Outcome] = []
    heard = asyncio.Event()

    def emit(_: int, outcome: Outcome) -> None:
        emitted.append(outcome)
        heard.set()

    def stream(tell: Any) -> None:
        try:
            tell("a")
            assert told.wait(10)
            tell("b")
        finally:
            ended.set()

    engine = PythonEngine()
    payload = Foreign("a", lambda: None, stream=stream, is_streamed=True)
    run = asyncio.create_task(engine.run(Batch("decoding", {}, (Item(payload, id=1),)), emit))
    await heard.wait()
    engine.abort([1])
    await run
    told.set()
    assert await asyncio.to_thread(ended.wait, 10)
    await asyncio.sleep(0)
    first, second = emitted
    assert first == Delta("a")
    assert isinstance(second, Failed)
    assert isinstance(second.error, Cancelled)
    await engine.close()
