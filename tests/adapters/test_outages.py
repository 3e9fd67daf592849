"""Outages of hosted models: no more requests than the original makes, its errors, and its answers."""

from __future__ import annotations

import asyncio
import json
import operator
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import httpx
import openai
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, PrivateAttr, ValidationError

from teola_plugin import optimize, optimized, providers, pure
from teola_plugin.providers import ENOUGH
from tests.support.langchain_world import ask

CALLS = 6
QUERIES = 12
WIDEST = 5
QUESTION = {"q": "x"}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.001)


@pure
class Service(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Answers with the prompt, or fails by `plan`: a status, or 0 for a connection that breaks; None for an answer."""

    def __init__(self, plan: Callable[[str, int], int | None] = lambda said, count: None) -> None:
        self.plan = plan
        self.made: list[str] = []
        self.lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        said = json.loads(request.read())["messages"][-1]["content"]
        with self.lock:
            self.made.append(said)
            count = len(self.made)
        status = self.plan(said, count)
        if status == 0:
            raise httpx.ConnectError("as planned")
        if status:
            time.sleep(0.02)  # by then the framework's run waits for what it is to wait for
            headers = {"retry-after": "0.001"} if status in (429, 503) else {}
            return httpx.Response(status, json={"error": {"message": "as planned"}}, headers=headers)
        choice = {"index": 0, "message": {"role": "assistant", "content": f"<{said}>"}, "finish_reason": "stop"}
        return httpx.Response(200, json={"id": "1", "object": "chat.completion", "model": "m", "choices": [choice]})

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return await asyncio.to_thread(self.handle_request, request)


def chat(service: Service, retries: int = 2) -> ChatOpenAI:
    return ChatOpenAI(
        model="m", api_key="none", base_url="http://service/v1", max_retries=retries,
        http_client=httpx.Client(transport=service), http_async_client=httpx.AsyncClient(transport=service),
    )  # type: ignore[arg-type,call-arg]  # fmt: skip


def chain_of(model: Any, text: str) -> Runnable[Any, Any]:
    return ask(f"{text} {{q}}") | model | StrOutputParser()


def parallel(model: Any) -> Runnable[Any, Any]:
    return RunnableParallel({f"k{n}": chain_of(model, str(n)) for n in range(5)})


def assigns(model: Any, count: int = 3) -> Runnable[Any, Any]:
    chain: Runnable[Any, Any] = RunnablePassthrough()
    for n in range(count):
        chain = chain | RunnablePassthrough.assign(**{f"k{n}": chain_of(model, str(n))})
    return chain


class State(TypedDict, total=False):
    q: str
    said: Annotated[list[str], operator.add]


def graph(model: Any) -> Any:
    builder = StateGraph(State)
    retry = RetryPolicy(initial_interval=0.001, jitter=False)
    for name in "abc":
        said = chain_of(model, name) | RunnableLambda(_listed)
        builder.add_node(name, RunnableParallel(said=said), retry_policy=retry)
    for one, other in zip((START, *"abc"), (*"abc", END), strict=True):
        builder.add_edge(one, other)
    return builder.compile()


@pure
def _listed(text: str) -> list[str]:
    return [text]


class Notes(BaseRetriever):
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text=f"note {n}"), score=0.5) for n in range(4)]


def accumulate(service: Service) -> Any:
    llm = OpenAILike(
        model="m", api_key="none", api_base="http://service/v1", is_chat_model=True, max_retries=1,
        http_client=httpx.Client(transport=service), async_http_client=httpx.AsyncClient(transport=service),
    )  # fmt: skip
    return RetrieverQueryEngine.from_args(Notes(), llm=llm, response_mode="accumulate")


FORMS: dict[str, tuple[Callable[[Service], Any], Callable[[Any], Any]]] = {
    "parallel.invoke": (lambda s: parallel(chat(s)), lambda p: p.invoke(QUESTION)),
    "parallel.ainvoke": (lambda s: parallel(chat(s)), lambda p: asyncio.run(p.ainvoke(QUESTION))),
    "parallel.stream": (lambda s: parallel(chat(s)), lambda p: list(p.stream(QUESTION))),
    "assigns.invoke": (lambda s: assigns(chat(s)), lambda p: p.invoke(QUESTION)),
    "assigns.ainvoke": (lambda s: assigns(chat(s)), lambda p: asyncio.run(p.ainvoke(QUESTION))),
    "assigns.batch": (lambda s: assigns(chat(s)), lambda p: p.batch([QUESTION], return_exceptions=True)),
    "retry.invoke": (
        lambda s: assigns(chat(s).with_retry(stop_after_attempt=2, wait_exponential_jitter=False)),
        lambda p: p.invoke(QUESTION),
    ),
    "fallback.invoke": (
        lambda s: assigns(chat(s).with_fallbacks([chat(Service(), 0)])), lambda p: p.invoke(QUESTION)
    ),
    "graph.invoke": (lambda s: graph(chat(s)), lambda p: p.invoke(QUESTION)),
    "graph.ainvoke": (lambda s: graph(chat(s)), lambda p: asyncio.run(p.ainvoke(QUESTION))),
    "accumulate.query": (accumulate, lambda p: str(p.query("x"))),
}  # fmt: skip


def outcome(call: Callable[[Any], Any], pipeline: Any) -> str:
    try:
        return repr(call(pipeline))
    except openai.APIError as e:
        return repr(type(e))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("status", [500, 429, 0])
def test_an_outage_is_not_multiplied(form: str, status: int) -> None:
    make, call = FORMS[form]
    plain, fast = Service(lambda said, count: status), Service(lambda said, count: status)
    original, pipeline = make(plain), optimize(make(fast))
    assert outcome(call, pipeline) == outcome(call, original)
    first, first_fast = len(plain.made), len(fast.made)
    assert first_fast <= first + WIDEST  # those that had begun when the first one failed, without their retries
    for _ in range(CALLS - 1):
        assert outcome(call, pipeline) == outcome(call, original)
    later, later_fast = len(plain.made) - first, len(fast.made) - first_fast
    if form == "parallel.ainvoke":  # its own gather cancels what is behind when the first one fails
        assert later_fast <= 15 * (CALLS - 1)
    else:
        assert later_fast == later


@pytest.mark.cold
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("status", [500, 0])
def test_an_outage_that_began_before_the_first_request_is_not_multiplied_at_all(form: str, status: int) -> None:
    make, call = FORMS[form]
    plain, fast = Service(lambda said, count: status), Service(lambda said, count: status)
    assert outcome(call, optimize(make(fast))) == outcome(call, make(plain))
    if form == "parallel.ainvoke":  # see above
        assert max(Counter(fast.made).values()) <= 3
    else:
        assert Counter(fast.made) == Counter(plain.made)


@pytest.mark.cold
@pytest.mark.parametrize("is_async", [False, True])
def test_queries_that_begin_together_in_an_outage_make_one_request_each(is_async: bool) -> None:
    service = Service(lambda said, count: 500)
    pipeline = optimize(assigns(chat(service, 0)))

    async def gathered() -> list[Any]:
        return await asyncio.gather(*(pipeline.ainvoke(QUESTION) for _ in range(QUERIES)), return_exceptions=True)

    if is_async:
        ended = asyncio.run(gathered())
    else:
        with ThreadPoolExecutor(QUERIES) as pool:
            ended = [each.exception() for each in [pool.submit(pipeline.invoke, QUESTION) for _ in range(QUERIES)]]
    assert all(isinstance(error, openai.APIError) for error in ended)
    assert service.made == ["0 x"] * QUERIES


@pytest.mark.cold
@pytest.mark.parametrize("form", ["invoke", "ainvoke", "batch"])
def test_the_first_answer_of_a_provider_lets_the_others_run_ahead(form: str) -> None:
    together, answered = threading.Barrier(2), threading.Event()

    def plan(said: str, count: int) -> None:
        if said == "0 x":
            time.sleep(0.1)  # time enough for the others
            assert service.made == ["0 x"]
            answered.set()
        else:
            assert answered.is_set()
            together.wait(20)

    service = Service(plan)
    chain: Any = optimize(assigns(chat(service)))
    if form == "batch":
        (said,) = chain.batch([QUESTION])
    else:
        said = asyncio.run(chain.ainvoke(QUESTION)) if form == "ainvoke" else chain.invoke(QUESTION)
    assert said == {"q": "x", **{f"k{n}": f"<{n} x>" for n in range(3)}}
    assert sorted(service.made) == ["0 x", "1 x", "2 x"]
    report = optimized(chain).reports[-1]
    assert (report.hits + report.shared, report.misses, report.wasted) == (3, 0, 0)
    assert report.hits  # of what came after the first answer, the framework's run may be there first


@pytest.mark.cold
@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
def test_the_answer_to_a_call_with_nothing_ahead_lets_the_next_call_run_ahead(form: str) -> None:
    second = threading.Event()

    def plan(said: str, count: int) -> int | None:
        if said == "1 x":
            second.set()
        return 400 if said == "0 x" and not second.wait(10) else None

    service = Service(plan)
    model = chat(service)
    single, chain = optimize(chain_of(model, "alone")), optimize(assigns(model))
    call = (lambda chain: asyncio.run(chain.ainvoke(QUESTION))) if form == "ainvoke" else (lambda c: c.invoke(QUESTION))
    assert call(single) == "<alone x>"
    assert call(chain) == {"q": "x", **{f"k{n}": f"<{n} x>" for n in range(3)}}
    assert optimized(chain).reports[-1].misses == 0


@pytest.mark.cold
def test_a_function_that_runs_ahead_asks_no_provider_that_has_not_answered() -> None:
    service = Service(lambda said, count: 500)
    first, second = chain_of(chat(service, 0), "0"), chain_of(chat(service, 0), "1")

    @pure
    def asking(x: Any) -> Any:
        return second.invoke(x)

    chain = optimize(RunnablePassthrough.assign(a=first) | RunnablePassthrough.assign(b=RunnableLambda(asking)))
    with pytest.raises(openai.InternalServerError):
        chain.invoke(QUESTION)
    assert service.made == ["0 x"]


@pytest.mark.parametrize("form", [form for form in FORMS if "stream" not in form])
def test_single_failures_are_not_multiplied_either(form: str) -> None:
    make, call = FORMS[form]

    def plan() -> Callable[[str, int], int | None]:
        asked: Counter[str] = Counter()

        def third(said: str, count: int) -> int | None:
            asked[said] += 1
            return 503 if asked[said] % 3 == 0 else None

        return third

    plain, fast = Service(plan()), Service(plan())
    original, pipeline = make(plain), optimize(make(fast))
    for _ in range(CALLS // 2):
        assert outcome(call, pipeline) == outcome(call, original)
    assert sorted(fast.made) == sorted(plain.made)


def test_an_outage_ends() -> None:
    down = [True]
    service = Service(lambda said, count: 500 if down[0] else None)
    pipeline = optimize(assigns(chat(service, 0)))
    reports = optimized(pipeline).reports
    with pytest.raises(openai.InternalServerError):
        pipeline.invoke(QUESTION)
    began = len(service.made)
    with pytest.raises(openai.InternalServerError):
        pipeline.invoke(QUESTION)
    assert len(service.made) == began + 1  # nothing ran ahead
    down[0] = False
    calls = ENOUGH // 3
    for _ in range(calls):
        optimized(pipeline).wake()  # on a busy machine, calls that gain nothing may end in a rest
        assert pipeline.invoke(QUESTION)["k2"] == "<2 x>"
        assert reports[-1].hits == 0
    optimized(pipeline).wake()
    for _ in range(2):  # in the first of them it has succeeded often enough
        pipeline.invoke(QUESTION)
    assert reports[-1].hits + reports[-1].shared > 0  # the framework's run may be there first
    assert len(service.made) == began + 1 + 3 * (calls + 2)


def test_after_a_failure_nothing_more_of_a_query_runs_ahead_at_its_provider() -> None:
    """Another object for the same address is the same provider; another address is not."""
    service, elsewhere = Service(lambda said, count: 401 if said == "0 x" else None), Service()
    failed = threading.Event()
    model, other = chat(service), chat(service)

    @pure
    def then(x: Any) -> Any:
        assert failed.wait(20)
        return x

    class Told(BaseCallbackHandler):
        def on_llm_error(self, error: BaseException, **kwargs: Any) -> None:
            failed.set()
            time.sleep(0.2)  # time enough for the others

    third = ChatOpenAI(
        model="m", api_key="none", base_url="http://elsewhere/v1", http_client=httpx.Client(transport=elsewhere)
    )  # type: ignore[arg-type,call-arg]
    chain = RunnableParallel(
        a=chain_of(model, "0"),
        b=RunnableLambda(then) | RunnablePassthrough.assign(z=chain_of(other, "1")) | chain_of(other, "2"),
    )
    with pytest.raises(openai.AuthenticationError):
        optimize(chain | chain_of(third, "3")).invoke(QUESTION, {"callbacks": [Told()]})
    assert service.made.count("0 x") == 1
    assert service.made.count("1 x") <= 1  # by the framework's own run, at most
    assert elsewhere.made == []


# --- the error is the one of the run-ahead ---------------------------------------------------------------------------


class StatusError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status_code = status


@pure
class Failing(BaseChatModel):
    """Fails with an error of its own each time, once the framework's run waits for it."""

    status: int = 500
    _errors: list[Exception] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "failing"

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        call = providers.running()
        while call and not call.is_taken:
            time.sleep(0.001)
        if not self.status:
            run_manager.on_custom_event  # noqa: B018  an AttributeError where nobody gave it a manager
            return ChatResult(generations=[ChatGeneration(message=AIMessage(content="answer"))])
        self._errors.append(StatusError(self.status))
        raise self._errors[-1]


class Heard(BaseCallbackHandler):
    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def on_llm_error(self, error: BaseException, **kwargs: Any) -> None:
        self.errors.append(error)


@pytest.mark.parametrize("form", ["invoke", "ainvoke", "batch"])
@pytest.mark.parametrize("status", [500, 429, 400])
def test_the_framework_takes_the_error_of_the_run_ahead(form: str, status: int) -> None:
    model, heard = Failing(status=status), Heard()
    chain: Any = optimize(ask("A {q}") | model | StrOutputParser() | RunnableParallel(a=_listed, b=_listed))
    config: Any = {"callbacks": [heard]}
    raised: BaseException
    if form == "batch":
        (raised,) = chain.batch([QUESTION], config, return_exceptions=True)
    else:
        with pytest.raises(StatusError) as caught:
            asyncio.run(chain.ainvoke(QUESTION, config)) if form == "ainvoke" else chain.invoke(QUESTION, config)
        raised = caught.value
    assert model._errors == [raised]
    assert heard.errors == [raised]
    assert raised.__context__ is None


def test_each_error_is_raised_once() -> None:
    model, heard = Failing(), Heard()
    chain = optimize(RunnableParallel({str(n): chain_of(model, str(n)) for n in range(3)}))
    with pytest.raises(StatusError):
        chain.invoke(QUESTION, {"callbacks": [heard]})
    assert len(model._errors) == 3
    assert set(map(id, heard.errors)) == set(map(id, model._errors))
    assert len(heard.errors) == 3


def test_a_retry_of_the_framework_asks_anew() -> None:
    model, heard = Failing(), Heard()
    retried = model.with_retry(stop_after_attempt=3, wait_exponential_jitter=False)
    chain = optimize(RunnableParallel(a=ask("A {q}") | retried, b=_listed_q))
    with pytest.raises(StatusError) as raised:
        chain.invoke(QUESTION, {"callbacks": [heard]})
    assert heard.errors == model._errors
    assert len(model._errors) == 3
    assert raised.value is model._errors[-1]


@pure
def _listed_q(x: dict[str, Any]) -> list[str]:
    return [x["q"]]


def test_an_error_that_only_the_run_ahead_can_meet_is_not_taken() -> None:
    chain = optimize(RunnableParallel(a=chain_of(Failing(status=0), "A"), b=chain_of(Failing(status=0), "B")))
    assert chain.invoke(QUESTION) == {"a": "answer", "b": "answer"}


# --- what only the run-ahead's concurrency causes --------------------------------------------------------------------


class OneAtATime(Service):
    """Refuses whoever comes while another is served."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status
        self.is_busy = threading.Lock()
        self.refused = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not self.is_busy.acquire(blocking=False):
            self.refused += 1
            if self.status == 0:
                raise httpx.ConnectError("as planned")
            return httpx.Response(self.status, json={"error": {"message": "too many requests at a time"}})
        try:
            time.sleep(0.1)
            return super().handle_request(request)
        finally:
            self.is_busy.release()


@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
@pytest.mark.parametrize("status", [429, 503, 0, 400, 402, 418])
@pytest.mark.parametrize("retries", [0, 2])
def test_a_service_that_takes_one_at_a_time(form: str, status: int, retries: int) -> None:
    service = OneAtATime(status)
    chain = optimize(assigns(chat(service, retries), 4))
    for _ in range(3):
        said = chain.invoke(QUESTION) if form == "invoke" else asyncio.run(chain.ainvoke(QUESTION))
        assert said == {"q": "x", **{f"k{n}": f"<{n} x>" for n in range(4)}}
    assert service.refused


def test_what_runs_ahead_is_not_repeated_before_it_is_waited_for() -> None:
    """B is broken, A takes its time: one attempt for B ahead, then the ladder of the framework's own run."""
    failed = threading.Event()
    held: list[Any] = []

    def plan(said: str, count: int) -> int | None:
        if said == "0 x":
            assert failed.wait(20)
            time.sleep(0.2)  # time enough for a ladder
            held.append(service.made.count("1 x"))
            return None
        failed.set()
        return 500

    service = Service(plan)
    with pytest.raises(openai.InternalServerError):
        optimize(assigns(chat(service), 2)).invoke(QUESTION)
    assert held == [1]
    assert service.made.count("1 x") == 1 + 3
    assert service.made.count("0 x") == 1


class Grade(BaseModel):
    grade: int


class Unreadable(Service):
    """Its first reply to a grade is no JSON, and the next one is."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        said = self.made[-1]
        if said.startswith("G"):
            body = json.loads(response.content)
            is_first = self.made.count(said) == 1
            body["choices"][0]["message"]["content"] = "no JSON" if is_first else '{"grade": 1}'
            return httpx.Response(200, json=body)
        return response


@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
def test_a_reply_that_cannot_be_read_is_an_error_of_the_request(form: str) -> None:
    def build(model: Any) -> Runnable[Any, Any]:
        graded = ask("G {q}") | model.with_structured_output(Grade)
        return RunnablePassthrough.assign(a=chain_of(model, "A")) | RunnablePassthrough.assign(g=graded)

    made = []
    for prepare in (lambda pipeline: pipeline, optimize):
        service = Unreadable()
        pipeline: Any = prepare(build(chat(service, 0)))
        with pytest.raises(ValidationError):
            asyncio.run(pipeline.ainvoke(QUESTION)) if form == "ainvoke" else pipeline.invoke(QUESTION)
        made.append(sorted(service.made))
    assert made[0] == made[1]
