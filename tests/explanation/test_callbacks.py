"""`TeolaCallbackHandler` changes nothing, keeps runs apart, and says what each came to or could come to."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any, TypedDict
from uuid import uuid4

import pytest
from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler, CallbackManager
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.tools import tool
from langchain_core.tracers._streaming import _StreamingCallbackHandler
from langgraph.graph import END, START, StateGraph

from teola_plugin import TeolaCallbackHandler, compare, optimize, optimized
from teola_plugin.callbacks import Prediction, RunReport, texts
from teola_plugin.callbacks import prediction as prediction_module
from teola_plugin.callbacks import runs as runs_module
from teola_plugin.callbacks.prediction import Seen, predict
from teola_plugin.explanation.text import WIDTH
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.runtime.engines.simulated import ProfileLLM
from tests.support.fakes import FakeEngine, says
from tests.support.langchain_world import PIPELINES, Engines, Recorder, ask, input_of, plain_text
from tests.support.tiny_profiles import TINY_CPU_LLM

MODES = ("invoke", "ainvoke", "stream", "astream", "batch", "abatch")


def call(pipeline: Any, value: Any, *handlers: BaseCallbackHandler, mode: str = "invoke", callbacks: Any = None) -> Any:
    """The answer, or the error it raises; chunks of a stream are one list."""
    config: Any = {"callbacks": list(handlers) if callbacks is None else callbacks}

    async def chunks() -> list[Any]:
        return [chunk async for chunk in pipeline.astream(value, config)]

    try:
        match mode:
            case "stream":
                return list(pipeline.stream(value, config))
            case "astream":
                return asyncio.run(chunks())
            case "batch" | "abatch":
                found = getattr(pipeline, mode)([value, value], config)
                return asyncio.run(found) if mode == "abatch" else found
            case _:
                found = getattr(pipeline, mode)(value, config)
                return asyncio.run(found) if mode == "ainvoke" else found
    except ValueError as e:
        return e


def echo(prompt: str) -> Any:
    return says(f"<{prompt.removeprefix('Human: ')}>")


def in_turn(llm: Any = None) -> Runnable[Any, Any]:
    """Two questions, one after the other although neither needs the other, and one about both answers."""
    llm = llm or EngineChatModel(engine=FakeEngine(echo, name="llm", concurrent=True), max_tokens=None)
    first, second = (ask(f"{word} of {{q}}") | llm | StrOutputParser() for word in ("Summary", "Keywords"))
    both = RunnablePassthrough.assign(a=first) | RunnablePassthrough.assign(b=second)
    return both | ask("Headline for {a}, {b}") | llm | StrOutputParser()


def needs(prediction: Prediction) -> list[tuple[int, ...]]:
    return [leaf.needs for leaf in prediction.leaves]


# --- it changes nothing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("mode", MODES)
def test_answers_and_trees_are_the_same_with_it(name: str, mode: str) -> None:
    pipeline = PIPELINES[name](Engines())
    found = []
    for each in (pipeline, optimize(pipeline)):
        for more in ([], [TeolaCallbackHandler()]):
            recorder = Recorder()
            answer = plain_text(call(each, input_of(name), *more, recorder, mode=mode))
            found.append((answer if mode in ("invoke", "batch") else "", recorder.tree()))
    assert all(one == found[0] for one in found[1:])


@pytest.mark.parametrize("mode", MODES)
def test_each_kind_of_pipeline_leaves_its_kind_of_report(mode: str) -> None:
    plain, handler = in_turn(), TeolaCallbackHandler()
    roots = 2 if "batch" in mode else 1
    call(plain, {"q": "bees"}, handler, mode=mode)
    assert len(handler.predictions) == roots
    assert needs(handler.predictions[-1]) == [(), (), (0, 1)]
    call(optimize(plain), {"q": "bees"}, handler, mode=mode)
    (report,) = handler.reports
    assert len(set(report.run_ids)) == roots
    assert report.report.hits + report.report.shared + report.report.misses == 3 * roots
    assert not handler._runs.open


class Chat(BaseChatModel):
    """Notes which way it was asked."""

    ways: list[str] = []  # noqa: RUF012 - pydantic copies it

    @property
    def _llm_type(self) -> str:
        return "chat"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.ways.append("generate")
        return ChatResult(generations=[ChatGeneration(message=AIMessage(messages[-1].text))])

    def _stream(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        self.ways.append("stream")
        yield ChatGenerationChunk(message=AIMessageChunk(messages[-1].text))


def test_it_makes_no_model_stream() -> None:
    chat, handler = Chat(), TeolaCallbackHandler()
    assert not isinstance(handler, _StreamingCallbackHandler)
    for pipeline in (in_turn(chat), optimize(in_turn(chat))):
        for mode in ("invoke", "ainvoke"):
            call(pipeline, {"q": "bees"}, handler, mode=mode)
    assert set(chat.ways) == {"generate"}


# --- where it may be put ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("manager", [CallbackManager, AsyncCallbackManager])
def test_one_of_several_in_a_manager(manager: Any) -> None:
    handler, recorder = TeolaCallbackHandler(), Recorder()
    mode = "invoke" if manager is CallbackManager else "ainvoke"
    for pipeline in (in_turn(), optimize(in_turn())):
        callbacks = manager(handlers=[recorder], inheritable_handlers=[recorder, handler])
        callbacks.add_handler(handler)
        call(pipeline, {"q": "bees"}, mode=mode, callbacks=callbacks)
    assert (len(handler.predictions), len(handler.reports)) == (1, 1)
    assert handler.reports[0].run_id in map(str, recorder.runs)


def test_bound_to_the_pipeline() -> None:
    handler = TeolaCallbackHandler()
    fast = optimize(in_turn().with_config(callbacks=[handler]))
    fast.invoke({"q": "bees"})
    optimize(in_turn()).with_config(callbacks=[handler]).invoke({"q": "bees"})
    assert [r.report for r in handler.reports[:1]] == list(optimized(fast).reports)
    assert len(handler.reports) == 2


def test_an_optimized_object_inside_another_reports_nothing() -> None:
    handler, inner = TeolaCallbackHandler(), optimize(in_turn())
    call(optimize(RunnablePassthrough.assign(c=inner) | itemgetter("c")), {"q": "bees"}, handler)
    assert len(handler.reports) == 1
    assert not handler.predictions


@pytest.mark.parametrize("mode", ["invoke", "ainvoke"])
def test_an_optimized_object_inside_a_plain_one_reports(mode: str) -> None:
    handler, inner = TeolaCallbackHandler(), optimize(in_turn())
    call(RunnablePassthrough.assign(c=inner) | itemgetter("c"), {"q": "bees"}, handler, mode=mode)
    assert len(handler.reports) == len(handler.predictions) == 1
    assert len(handler.predictions[0].leaves) == 3


def test_the_stance_makes_it_a_plain_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEOLA_STANCE", "original")
    handler = TeolaCallbackHandler()
    call(optimize(in_turn()), {"q": "bees"}, handler)
    assert not handler.reports
    assert handler.prediction


# --- what goes wrong -------------------------------------------------------------------------------------------------


def refuses(prompt: str) -> Any:
    if "Keywords" in prompt:
        raise ValueError("no keywords")
    return echo(prompt)


def test_errors() -> None:
    llm = EngineChatModel(engine=FakeEngine(refuses, name="llm", concurrent=True), max_tokens=None)
    handler = TeolaCallbackHandler()
    for pipeline in (in_turn(llm), optimize(in_turn(llm))):
        for mode in ("invoke", "ainvoke", "stream", "batch"):
            assert isinstance(call(pipeline, {"q": "bees"}, handler, mode=mode), ValueError)
            assert "the pipeline raised ValueError: no keywords" in str(handler)
    assert {r.error for r in [*handler.reports, *handler.predictions]} == {"ValueError: no keywords"}
    assert [leaf.failed for leaf in handler.predictions[0].leaves] == [False, True]
    assert not handler._runs.open


def test_streams_that_are_closed_early() -> None:
    handler = TeolaCallbackHandler()
    for pipeline in (in_turn(), optimize(in_turn())):
        before = len(handler._runs.ended)
        stream: Any = pipeline.stream({"q": "bees"}, {"callbacks": [handler]})
        next(stream)
        assert len(handler._runs.ended) == before
        stream.close()
        assert len(handler._runs.ended) == before + 1

        async def one_chunk(pipeline: Any = pipeline) -> None:
            chunks = pipeline.astream({"q": "bees"}, {"callbacks": [handler]})
            await anext(chunks)
            await chunks.aclose()

        asyncio.run(one_chunk())
    assert (len(handler.predictions), len(handler.reports)) == (2, 2)
    assert not handler._runs.open


def test_a_consumer_that_fails_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(TeolaCallbackHandler):
        def on_report(self, report: RunReport) -> None:
            raise RuntimeError("no disk")

    handler, second = Failing(), TeolaCallbackHandler()
    fast = optimize(in_turn())
    with caplog.at_level(logging.ERROR, "teola_plugin"):
        assert call(fast, {"q": "bees"}, handler, second) == call(in_turn(), {"q": "bees"})
    assert "no disk" in caplog.text
    assert len(handler.reports) == len(second.reports) == 1


# --- several at once, and many ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_concurrent_runs_are_kept_apart(is_async: bool) -> None:
    handler, recorder = TeolaCallbackHandler(), Recorder()
    plain = in_turn()
    fast = optimize(plain)
    config: Any = {"callbacks": [handler, recorder]}
    calls = [(pipeline, {"q": f"question {n}"}) for n in range(8) for pipeline in (plain, fast)]
    if is_async:

        async def all_of_them() -> Any:
            return await asyncio.gather(*(pipeline.ainvoke(value, config) for pipeline, value in calls))

        answers = asyncio.run(all_of_them())
    else:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda c: c[0].invoke(c[1], config), calls))
    assert answers[::2] == answers[1::2]
    assert len(set(answers)) == 8
    assert [needs(p) for p in handler.predictions] == [[(), (), (0, 1)]] * 8
    assert [(r.report.hits + r.report.shared + r.report.misses) for r in handler.reports] == [3] * 8
    roots = [*(p.run_id for p in handler.predictions), *(run_id for r in handler.reports for run_id in r.run_ids)]
    assert sorted(roots) == sorted(map(str, recorder.children[None]))


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = TeolaCallbackHandler(maxlen=3)
    chain = RunnableLambda(lambda x: x)
    for _ in range(10):
        call(chain, "x", handler)
    assert len(handler.predictions) == 3
    monkeypatch.setattr(runs_module, "MAX_OPEN", 5)
    for _ in range(10):
        handler.on_chain_start(None, {}, run_id=uuid4())  # and they never end
    assert len(handler._runs.open) == 5


def test_a_run_of_many_leaves_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_module, "MAX_LEAVES", 2)
    handler = TeolaCallbackHandler()
    call(in_turn(), {"q": "bees"}, handler)
    assert handler.prediction
    assert len(handler.prediction.leaves) == 2
    assert "1 leaves too many" in str(handler)
    monkeypatch.setattr(prediction_module, "MAX_CHARACTERS", 30)
    call(in_turn(), {"q": "bees and their hives"}, handler)
    assert handler.prediction
    assert needs(handler.prediction) == [(), (0,)]  # it was too much to keep, so it may need anything
    assert handler._runs.ended[-1].seen == []  # type: ignore[union-attr]


# --- what is said ----------------------------------------------------------------------------------------------------


def test_reports_say_what_the_call_came_to() -> None:
    handler = TeolaCallbackHandler()
    fast = optimize(in_turn(EngineChatModel(engine=ProfileLLM("llm", TINY_CPU_LLM["tiny"]), max_tokens=2)))
    call(fast, {"q": "bees"}, handler)
    report = handler.reports[-1]
    assert report.report is optimized(fast).reports[-1]
    assert report.measured.bound_s > 0
    assert {b.op for b in report.batches} == {"decoding"}
    assert 2 <= sum(b.items for b in report.batches) <= 3  # the end of the last may be told too late
    said = json.loads(json.dumps(handler.as_dict()))
    assert said["optimized"]
    assert said["hits"] + said["shared"] + said["misses"] == 3
    assert said["critical_path"][-1] == "answer"
    assert {step["primitive"] for step in said["steps"]} == {"a", "b", "answer"}
    for part in ("critical path", "bound", "hits", "left to the framework", "x decoding of "):
        assert part in str(handler)
    assert max(map(len, handler.report().splitlines())) <= WIDTH


def in_parts(x: Any) -> Iterator[Any]:
    yield x


def with_a_break() -> Runnable[Any, Any]:
    return PIPELINES["barrier"](Engines()) | RunnableLambda(in_parts)


def test_breaks_are_listed() -> None:
    handler = TeolaCallbackHandler()
    fast = optimize(with_a_break())
    call(fast, input_of("barrier"), handler)
    assert handler.reports[-1].breaks == optimized(fast).traced.breaks != ()
    assert "TB" in str(handler)


def test_a_prediction_lists_the_breaks_of_the_pipeline_it_was_given() -> None:
    plain = with_a_break()
    for given in (plain, optimize(plain)):
        handler = TeolaCallbackHandler(given)
        call(plain, input_of("barrier"), handler)
        assert handler.prediction
        assert handler.prediction.breaks == optimized(optimize(plain)).traced.breaks
        assert "left to the framework" in str(handler)
    said = json.loads(json.dumps(handler.as_dict()))
    assert (said["optimized"], said["breaks"][0]["code"][:2]) == (False, "TB")
    unknown = TeolaCallbackHandler(3)
    call(plain, input_of("barrier"), unknown)
    assert "int is no pipeline" in str(unknown)


def test_a_prediction_is_near_what_optimize_comes_to() -> None:
    """Ratios are compared loosely: the prediction lies between the longest leaf and all of them in turn."""
    llm = EngineChatModel(engine=ProfileLLM("llm", TINY_CPU_LLM["tiny"]), max_tokens=8)
    handler = TeolaCallbackHandler()
    call(in_turn(llm), {"q": "bees"}, handler)
    found = handler.prediction
    assert found
    seconds = [leaf.seconds for leaf in found.leaves]
    assert needs(found) == [(), (), (0, 1)]
    assert max(seconds) < found.predicted_s < sum(seconds) + found.glue_s
    assert found.measured_s == pytest.approx(sum(seconds) + found.glue_s)
    assert 1 < found.ratio < 2
    assert sum(leaf.on_path for leaf in found.leaves) == 2
    assert "may be too high" in found.caveat
    assert "effects" in str(handler)
    assert max(map(len, str(handler).splitlines())) <= WIDTH
    call(optimize(in_turn(llm)), {"q": "bees"}, handler)
    assert handler.reports[-1].measured.bound_s < found.measured_s


def test_nothing_ran_yet() -> None:
    handler = TeolaCallbackHandler()
    assert (handler.report(), handler.as_dict(), handler.prediction) == ("no run has ended yet", {}, None)


# --- predictions, from what was seen ---------------------------------------------------------------------------------


def seen(name: str, began_s: float, ended_s: float | None, given: str, *said: str) -> Seen:
    return Seen(name, "llm", [given], began_s, ended_s, said)


def predicted(*leaves: Seen, ended_s: float = 10.0) -> tuple[list[tuple[int, ...]], float, float]:
    found, glue_s = predict(leaves, 0.0, ended_s)
    return [leaf.needs for leaf in found], sum(leaf.seconds for leaf in found if leaf.on_path), glue_s


A = seen("a", 1.0, 3.0, "question", "an answer of some length")
SHORT = seen("a", 1.0, 3.0, "question", "yes")


@pytest.mark.parametrize(("leaves", "expected"), [
    ([], ([], 0.0, 10.0)),
    ([A], ([()], 2.0, 8.0)),
    ([A, seen("b", 3.0, 4.0, "question")], ([(), ()], 2.0, 7.0)),
    ([A, seen("b", 3.0, 4.0, "Given: an answer of some length.")], ([(), (0,)], 3.0, 7.0)),
    ([SHORT, seen("b", 3.0, 4.0, "question")], ([(), (0,)], 3.0, 7.0)),
    ([A, seen("b", 2.0, 4.0, "an answer of some length")], ([(), ()], 2.0, 7.0)),  # begun before that was there
    ([A, seen("b", 3.0, None, "question")], ([(), ()], 7.0, 1.0)),  # it ended with the run
    ([A, seen("b", 5.0, 6.0, "question")], ([(), ()], 2.0, 7.0)),  # the time between two is glue
])  # fmt: skip
def test_predict(leaves: list[Seen], expected: Any) -> None:
    assert predicted(*leaves) == expected


def test_a_leaf_around_others_is_none() -> None:
    around = Seen("multi", "retriever", [""], 0.0, 9.0, is_around=True)
    assert predicted(around, A) == predicted(A)


@pytest.mark.parametrize(
    ("said", "given"),
    [
        ("1. keep the hive dry\n2. feed the bees", "Search: feed the bees"),
        ('{"queries": ["keep the hive dry", "x"]}', "keep the hive dry"),
        ("word " * 100, "word " * 50),
        ("", "anything"),
    ],
)
def test_a_part_of_an_answer_is_recognized(said: str, given: str) -> None:
    assert texts.occurs(texts.pieces([said]), [given])
    assert not texts.occurs(texts.pieces(["a long line of something else"]), [given])


def test_what_a_leaf_said_as_text() -> None:
    called = AIMessage("I will look it up", tool_calls=[{"name": "f", "args": {"x": "1"}, "id": "1"}])
    assert texts.of_result(LLMResult(generations=[[ChatGeneration(message=called)]])) == ()
    assert texts.of_documents([Document("a document's text")]) == ("a document's text",)
    assert texts.of_documents([]) == ()
    assert texts.of_output(3) == texts.of_output({"x": object()}) == ("",)
    blocks = HumanMessage([{"type": "text", "text": "in blocks"}, {"type": "image_url", "image_url": {"url": "x"}}])
    assert texts.of_messages([[blocks]]) == ("in blocks",)
    assert texts.of_output(blocks) == ("in blocks",)


def test_retrievers_and_tools_are_leaves() -> None:
    @tool
    def shout(text: str) -> str:
        """Louder."""
        return f"{text.upper()} AND LOUDER!"

    e, handler = Engines(), TeolaCallbackHandler()
    store = e.store()
    chain = RunnablePassthrough.assign(
        docs=itemgetter("q") | store.as_retriever(search_kwargs={"k": 2}) | (lambda ds: ds[0].page_content)
    ) | RunnablePassthrough.assign(loud=(lambda x: {"text": x["q"]}) | shout)
    call(chain | ask("{docs} {loud}") | e.chat, {"q": "who keeps the bees?"}, handler)
    assert handler.prediction
    assert [leaf.kind for leaf in handler.prediction.leaves] == ["retriever", "tool", "chat model"]
    assert needs(handler.prediction) == [(), (), (0, 1)]


def test_a_retriever_with_others_inside() -> None:
    handler = TeolaCallbackHandler()
    call(PIPELINES["advanced_rag"](Engines()), input_of("advanced_rag"), handler)
    assert handler.prediction
    assert {leaf.name for leaf in handler.prediction.leaves} == {"VectorStoreRetriever", "EngineLLM", "EngineChatModel"}


# --- LangGraph -------------------------------------------------------------------------------------------------------

llm = EngineChatModel(engine=FakeEngine(echo, name="llm", concurrent=True), max_tokens=None)


class State(TypedDict, total=False):
    q: str
    a: str
    b: str
    c: str


def a(state: State) -> dict[str, str]:
    return {"a": llm.invoke("summary of " + state["q"]).text}


def b(state: State) -> dict[str, str]:
    return {"b": llm.invoke("keywords of " + state["q"]).text}


def c(state: State) -> dict[str, str]:
    return {"c": llm.invoke("headline for " + state["a"] + " and " + state["b"]).text}


def graph_in_turn(*, is_conditional: bool = False) -> Any:
    graph = StateGraph(State)
    for name, node in {"A": a, "B": b, "C": c}.items():
        graph.add_node(name, node)
    graph.add_edge(START, "A")
    if is_conditional:
        graph.add_conditional_edges("A", lambda state: "B", ["B"])
    else:
        graph.add_edge("A", "B")
    graph.add_edge("B", "C")
    graph.add_edge("C", END)
    return graph.compile()


@pytest.mark.parametrize("is_conditional", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_graphs(mode: str, is_conditional: bool) -> None:
    plain, handler = graph_in_turn(is_conditional=is_conditional), TeolaCallbackHandler()
    fast, trees = optimize(plain), []
    for pipeline, more in ((plain, []), (plain, [handler]), (fast, [handler]), (fast, [handler]), (fast, [])):
        recorder = Recorder()
        answer = call(pipeline, {"q": "the bees"}, *more, recorder, mode=mode)
        trees.append((answer, [run[:3] for run in recorder.runs.values()]))
    assert all(sorted(tree, key=repr) == sorted(trees[0][1], key=repr) for _, tree in trees)
    assert all(answer == trees[0][0] for answer, _ in trees)
    roots = 2 if "batch" in mode else 1
    assert [needs(p) for p in handler.predictions] == [[(), (), (0, 1)]] * roots
    assert [len(report.run_ids) for report in handler.reports] == [roots] * 2
    for report in handler.reports:  # what runs ahead of a condition is another graph than what comes first
        assert json.dumps(report.as_dict())
        assert str(report)
    assert not handler._runs.open


def test_compare_does_not_hear_it() -> None:
    assert compare(in_turn().with_config(callbacks=[TeolaCallbackHandler()]), [{"q": "bees"}], repeats=1).equal


class Session:
    """Says how often somebody has looked who listens to it."""

    def __init__(self) -> None:
        self.looked = threading.Semaphore(0)
        self._listeners: list[Any] = []

    @property
    def listeners(self) -> list[Any]:
        self.looked.release()
        return self._listeners


def test_a_handler_joins_a_call_once_though_several_of_its_runs_begin_together() -> None:
    runs, session = runs_module.Runs(1, None, lambda report: None), Session()
    with ThreadPoolExecutor(2) as pool:
        with runs._joining:
            joined = [pool.submit(runs.joined, session, "chain") for _ in range(2)]  # type: ignore[arg-type]
            for _ in joined:
                session.looked.acquire()
        first, second = (each.result() for each in joined)
    assert first is second
    assert session.listeners == [first]
