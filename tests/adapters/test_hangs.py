"""Calls that wait for one another, or for the thread they run on, end: with their answer or with an error of ours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableParallel
from langchain_core.tools import tool
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.openai import OpenAI
from pydantic import PrivateAttr

from teola_plugin import optimize, optimized, pure, runtime
from teola_plugin.engines import (
    Batch,
    Capabilities,
    Completion,
    Done,
    Emit,
    EngineSpec,
    Failed,
    First,
    Foreign,
    Item,
    Outcome,
)  # fmt: skip
from teola_plugin.errors import EngineLoopBlocked
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.runtime.engines.python import MAX_ITEMS, PythonEngine
from teola_plugin.runtime.session import queued_calls
from teola_plugin.runtime.session.session import NEXT, Session
from teola_plugin.seams import Reply, current, share
from teola_plugin.templates import App, Generation
from tests.support.fakes import FakeEngine
from tests.support.langchain_world import ask

pytestmark = pytest.mark.timeout(60)

CALLERS = 24
assert CALLERS > MAX_ITEMS


@pure
class Nesting(BaseChatModel):
    """Answers with the answers of a pipeline that holds this very model, as deep as the message says."""

    _pipeline: Any = PrivateAttr(default=None)

    @property
    def _llm_type(self) -> str:
        return "nesting"

    def _inner(self, messages: list[BaseMessage]) -> dict[str, str] | None:
        text = str(messages[-1].content)
        return {"q": text.replace("deeper ", "", 1)} if "deeper " in text else None

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        inner = self._inner(messages)
        return _result(messages, self._pipeline.invoke(inner) if inner else "")

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> ChatResult:
        inner = self._inner(messages)
        return _result(messages, await self._pipeline.ainvoke(inner) if inner else "")


def _result(messages: list[BaseMessage], inner: Any) -> ChatResult:
    said = f"({messages[-1].content} {inner})"
    return ChatResult(generations=[ChatGeneration(message=AIMessage(content=said))])


def nested(prepare: Callable[[Any], Any], width: int = 2) -> Runnable[Any, Any]:
    model = Nesting()
    inner = RunnableParallel({f"i{n}": ask(f"i{n} {{q}}") | model | StrOutputParser() for n in range(2)})
    model._pipeline = prepare(inner)
    return prepare(RunnableParallel({f"o{n}": ask(f"o{n} {{q}}") | model | StrOutputParser() for n in range(width)}))  # type: ignore[no-any-return]


def by_threads(chain: Runnable[Any, Any], inputs: list[Any]) -> list[Any]:
    with ThreadPoolExecutor(len(inputs)) as pool:
        return list(pool.map(chain.invoke, inputs))


def by_tasks(chain: Runnable[Any, Any], inputs: list[Any]) -> list[Any]:
    async def gathered() -> list[Any]:
        return await asyncio.gather(*map(chain.ainvoke, inputs))

    return asyncio.run(gathered())


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("call", [by_threads, by_tasks, lambda chain, inputs: chain.batch(inputs)])
def test_models_that_call_pipelines_with_themselves(call: Callable[..., list[Any]], depth: int) -> None:
    inputs = [{"q": f"{'deeper ' * depth}{n}"} for n in range(CALLERS)]
    assert call(nested(optimize), inputs) == call(nested(lambda pipeline: pipeline), inputs)


@pytest.mark.parametrize("is_async", [False, True])
def test_one_call_with_more_such_models_than_run_side_by_side(is_async: bool) -> None:
    """What a model asks counts to the call around it where the framework's run makes the call of the model."""
    pipelines: list[Any] = []

    def prepare(pipeline: Any) -> Any:
        pipelines.append(optimize(pipeline))
        return pipelines[-1]

    fast, plain = nested(prepare, CALLERS), nested(lambda pipeline: pipeline, CALLERS)
    found = asyncio.run(fast.ainvoke({"q": "deeper x"})) if is_async else fast.invoke({"q": "deeper x"})
    assert found == plain.invoke({"q": "deeper x"})
    reports = [report for pipeline in pipelines for report in optimized(pipeline).reports]
    assert sum(report.hits + report.shared + report.misses for report in reports) <= CALLERS + 2 * CALLERS
    assert sum(report.wasted for report in reports) == 0


@pure
class NestingOpenAI(OpenAI):
    """LlamaIndex's, with an answer from a pipeline that holds this very model."""

    _pipeline: Any = PrivateAttr(default=None)

    def _chat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        text = str(messages[-1].content)
        inner = self._pipeline.synthesize("why", nodes_of("c", "d")) if "why" not in text else "."
        return ChatResponse(message=ChatMessage(role="assistant", content=f"<{len(text)} {inner}>"))


def nodes_of(*texts: str) -> list[NodeWithScore]:
    return [NodeWithScore(node=TextNode(text=text, id_=text)) for text in texts]


def test_models_of_llamaindex_that_call_pipelines_with_themselves() -> None:
    def made(prepare: Callable[[Any], Any]) -> Any:
        model = NestingOpenAI(api_key="none")
        model._pipeline = prepare(get_response_synthesizer(llm=model, response_mode="accumulate"))
        return prepare(get_response_synthesizer(llm=model, response_mode="accumulate"))

    def answers(synthesizer: Any) -> list[str]:
        with ThreadPoolExecutor(CALLERS) as pool:
            return list(pool.map(lambda n: str(synthesizer.synthesize(f"ask {n}", nodes_of("a", "b"))), range(CALLERS)))

    assert answers(made(optimize)) == answers(made(lambda pipeline: pipeline))


def test_a_pure_tool_and_function_that_call_pipelines() -> None:
    inner = nested(optimize)

    @pure
    def looked_up(q: str) -> str:
        """Look it up."""
        return str(inner.invoke({"q": f"deeper {q}"})).replace("deeper", "")

    lookup = tool(looked_up)
    model = Nesting()

    def made(prepare: Callable[[Any], Any]) -> Any:
        steps = {f"t{n}": lookup | ask(f"{n} {{text}}") | model | StrOutputParser() for n in range(4)}
        return prepare(RunnableParallel(steps))

    inputs = [{"q": str(n)} for n in range(CALLERS)]
    assert by_threads(made(optimize), inputs) == by_threads(made(lambda pipeline: pipeline), inputs)


# --- who makes a call ------------------------------------------------------------------------------------------------


def ahead(session: Session, name: str, call: Callable[[], Any]) -> tuple[Foreign, Reply]:
    payload = Foreign(name, call)
    (reply,) = session.submit_ahead(SPEC, "decoding", [payload], {}, NEXT)
    return payload, reply


SPEC = EngineSpec("python", object(), "model")


@pytest.fixture
def full() -> Iterator[threading.Event]:
    """The engine of all such models has no slot left until the event is set."""
    free, begun = threading.Event(), threading.Semaphore(0)

    def call() -> None:
        begun.release()
        free.wait(30)

    session = Session(runtime.host)
    replies = [ahead(session, f"full{n}", call)[1] for n in range(MAX_ITEMS)]
    for _ in range(MAX_ITEMS):
        assert begun.acquire(timeout=30)
    yield free
    free.set()
    for reply in replies:
        reply.result()
    session.close()


def test_who_waits_for_a_queued_call_makes_it_and_the_engine_does_not(full: threading.Event) -> None:
    session, made = Session(runtime.host), []
    payload, reply = ahead(session, "a", lambda: made.append("engine"))
    value = share(session.claim(SPEC, "decoding", payload, {}), lambda: made.append("framework") or "own")
    assert value == reply.result() == "own"  # the run-ahead has it as well
    full.set()
    assert share(session.claim(SPEC, "decoding", payload, {}), lambda: "second") == "second"
    assert made == ["framework"]
    assert session.close().shared == 1


def test_a_call_taken_over_that_fails_fails_for_both(full: threading.Event) -> None:
    session = Session(runtime.host)
    payload, reply = ahead(session, "a", lambda: "engine")

    def fail() -> None:
        full.set()  # a call that fails is made again when those beside it have ended
        raise ConnectionError

    with pytest.raises(ConnectionError):
        share(session.claim(SPEC, "decoding", payload, {}), fail)
    with pytest.raises(ConnectionError):
        reply.result()
    session.close()


def test_a_function_that_runs_ahead_takes_a_queued_call_over_for_all(full: threading.Event) -> None:
    session = Session(runtime.host)
    session.follow(lambda *_: None, beside=True)
    inner: Any = session.asking(NEXT)
    payload, reply = ahead(inner, "a", lambda: "engine")
    assert share(inner.claim(SPEC, "decoding", payload, {}), lambda: "function") == "function"
    assert share(session.claim(SPEC, "decoding", payload, {}), lambda: "framework") == "function"
    assert reply.result() == "function"
    session.close()


def test_a_call_that_is_taken_over_leaves_the_queue() -> None:
    reply, left = Reply(), []
    _, asked = queued_calls.queued(Foreign("a", str), reply)
    asked.cancel = lambda: left.append("queue")
    assert queued_calls.taken_over(reply) is reply
    assert left == ["queue"]
    assert reply.outcome is None


def test_one_of_several_callers_takes_a_queued_call_over() -> None:
    """The framework's run and a function running ahead wait for the same call."""
    outer, inner = Reply(), Reply()
    queued_calls.queued(Foreign("a", str), outer)
    inner.queued = outer.queued
    assert [queued_calls.taken_over(reply) for reply in (inner, outer, inner)] == [outer, None, None]


def test_a_call_that_has_ended_is_not_taken_over() -> None:
    reply = Reply()
    queued_calls.queued(Foreign("a", str), reply)
    reply.put(Done("said"))
    assert queued_calls.taken_over(reply) is None


def test_who_gives_a_queued_call_up_reaches_its_engine() -> None:
    reply, told = Reply(), []
    _, asked = queued_calls.queued(Foreign("a", str), reply)
    asked.cancel = lambda: told.append("cancelled")
    asked.withdraw = lambda agrees: told.append(agrees)
    reply.withdraw(bool)
    reply.cancel_unless_ended()
    assert told == [bool, "cancelled"]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_only_a_call_that_is_streamed_is_left_to_an_engine_about_to_begin(
    monkeypatch: pytest.MonkeyPatch, is_streamed: bool
) -> None:
    class BegunMeanwhile(First):
        def wait(self, timeout_s: float) -> bool:
            self.is_me("engine")
            return super().wait(timeout_s)

    monkeypatch.setattr(queued_calls, "First", BegunMeanwhile)
    reply = Reply()
    queued_calls.queued(Foreign("a", str, is_streamed=is_streamed), reply)
    assert (queued_calls.taken_over(reply) is None) == is_streamed


def test_equal_calls_are_made_by_whoever_begins_each() -> None:
    payload, replies = Foreign("a", str), [Reply(), Reply()]
    for reply in replies:
        queued_calls.queued(payload, reply)
    assert [queued_calls.taken_over(reply) for reply in replies] == replies


async def test_a_call_cancelled_before_its_first_step_takes_no_other_with_it() -> None:
    engine, emitted = PythonEngine(), dict[int, Outcome]()
    items = tuple(Item(Foreign(n, lambda: "said"), id=n) for n in (1, 2))
    run = asyncio.ensure_future(engine.run(Batch("decoding", {}, items), emitted.__setitem__))
    asyncio.get_running_loop().call_soon(engine.abort, [1])
    await run
    assert isinstance(emitted[0], Failed)
    assert emitted[1] == Done("said")
    await engine.close()


# --- calls on the event loop of the engines --------------------------------------------------------------------------


class Calling:
    """An engine of the user's, which calls `function` on the event loop of the engines."""

    name = "calling"
    capabilities = Capabilities()

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    async def run(self, batch: Batch, emit: Emit) -> None:
        for position in range(len(batch.items)):
            emit(position, Done(Completion(str(self._function()))))

    def abort(self, ids: Any) -> None:
        """Nothing runs for long."""

    async def close(self) -> None:
        """Nothing is open."""


def on_loop(function: Callable[[], Any]) -> Any:
    return EngineChatModel(engine=Calling(function)).invoke("?").content


def parallel(model: Any) -> Runnable[Any, Any]:
    return RunnableParallel({name: ask(f"{name} {{q}}") | model | StrOutputParser() for name in "ab"})


def engine_model() -> EngineChatModel:
    return EngineChatModel(engine=FakeEngine(lambda prompt: Completion("x"), concurrent=True))


def template() -> Any:
    return App("asks", Generation("Say {question}"), {"llm": FakeEngine(lambda prompt: Completion("x"))})


@pytest.mark.parametrize(
    "function",
    [
        lambda: optimize(parallel(engine_model())).invoke({"q": "x"}),
        lambda: optimize(parallel(optimize(parallel(engine_model())) | str)).invoke({"q": "x"}),
        lambda: engine_model().invoke("x"),
        lambda: list(engine_model().stream("x")),
        lambda: Reply().result(),
        lambda: next(Reply().stream()),
        lambda: template().run(question="x"),
        lambda: list(template().stream(question="x")),
        runtime.host.close,
        lambda: runtime.host.admission.drain(60),
    ],
)
def test_what_only_an_engine_can_do_raises_on_its_loop(function: Callable[[], Any]) -> None:
    with pytest.raises(EngineLoopBlocked, match="synchronous call on the event loop"):
        on_loop(function)
    assert on_loop(lambda: "fine") == "fine"


def test_other_pipelines_run_as_the_original_there() -> None:
    fast, plain = optimize(parallel(Nesting())), parallel(Nesting())
    before = len(optimized(fast).reports)
    assert on_loop(lambda: fast.invoke({"q": "x"})) == str(plain.invoke({"q": "x"}))
    assert on_loop(lambda: fast.batch([{"q": "x"}])) == str(plain.batch([{"q": "x"}]))
    assert len(optimized(fast).reports) == before


def test_parts_of_a_pipeline_ask_no_session_there() -> None:
    sessions: list[Any] = []
    on_loop(lambda: optimize(parallel(Nesting()) | (lambda _: sessions.append(current()))).invoke({"q": "x"}))
    assert sessions == [None]


def test_a_reply_that_is_there_is_read_on_the_loop() -> None:
    reply = Reply()
    reply.put(Done("there"))
    assert on_loop(reply.result) == "there"


def test_coroutines_and_threads_go_on_there() -> None:
    fast = optimize(parallel(engine_model()))

    async def called() -> list[Any]:
        return [await fast.ainvoke({"q": "x"}), await asyncio.to_thread(fast.invoke, {"q": "x"})]

    found = asyncio.run_coroutine_threadsafe(called(), runtime.host.loop).result(30)
    assert found == [{"a": "x", "b": "x"}] * 2


def test_a_finalizer_and_a_listener_on_the_loop() -> None:
    fast, plain = optimize(parallel(Nesting())), parallel(Nesting())
    found: list[Any] = []

    class Finalized:
        def __del__(self) -> None:
            found.append(fast.invoke({"q": "x"}))

    on_loop(Finalized)
    reply = Reply()
    reply.listen(lambda _: found.append(fast.invoke({"q": "x"})))
    on_loop(lambda: reply.put(Done(1)))
    assert found == [plain.invoke({"q": "x"})] * 2


async def test_a_synchronous_call_on_a_loop_of_the_users_waits() -> None:
    assert engine_model().invoke("x").content == "x"
