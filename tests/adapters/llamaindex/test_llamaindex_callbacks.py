"""`TeolaCallbackHandler` on LlamaIndex: changes nothing, keeps runs apart, says what each came to or could come to."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import logging
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from llama_index.core.callbacks import CallbackManager
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index.core.callbacks.schema import CBEventType
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.instrumentation import root_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import (
    CustomQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)  # fmt: skip
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.tools import QueryEngineTool
from pydantic import PrivateAttr

from teola_plugin import TeolaCallbackHandler, optimize, optimized
from teola_plugin.callbacks import Prediction, RunReport, llamaindex_listener, llamaindex_places
from teola_plugin.callbacks import runs as runs_module
from teola_plugin.callbacks.instrumentation import OptimizedCallEvent, dispatcher
from teola_plugin.explanation.text import WIDTH
from tests.support.fakes import says
from tests.support.llamaindex_world import QUESTION, Engines, Record, answer, apart, engine_of

FORMS = ("query", "aquery", "streaming", "async streaming")


def ask(engine: Any, form: str, question: str = QUESTION) -> Any:
    """The answer, or the error; a stream is read to its end."""
    return apart(_ask, engine, form, question)


def _ask(engine: Any, form: str, question: str) -> Any:
    try:
        if "a" in form.split("str")[0]:
            return asyncio.run(aask(engine, form, question))
        response = engine.query(question)
        return "".join(response.response_gen) if form == "streaming" else response.response
    except Exception as e:
        return (type(e), e.args)


async def aask(engine: Any, form: str, question: str) -> Any:
    response = await engine.aquery(question)
    return "".join([piece async for piece in response.response_gen]) if "streaming" in form else response.response


def rag(handler: Any = None, form: str = "query", engines: Engines | None = None, **settings: Any) -> Any:
    """An engine that has only its own manager tell the handler, not those of its models."""
    engines = engines or Engines()
    settings = {"retriever": "fusion", "rerank": True, **settings}
    manager, other = CallbackManager(), CallbackManager()
    manager.set_handlers([handler] if handler else [])
    other.set_handlers([])  # else it would share the list of Settings.callback_manager
    engine = engine_of(engines, streaming="streaming" in form, callback_manager=manager, **settings)
    engines.model.callback_manager = engines.embedding.callback_manager = other
    return engine


def kinds(prediction: Prediction) -> list[str]:
    return [leaf.kind for leaf in prediction.leaves]


def needs(prediction: Prediction) -> list[tuple[int, ...]]:
    return [leaf.needs for leaf in prediction.leaves]


FUSION = ["llm", *["retriever"] * 4, "reranker", "chat model"]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert not llamaindex_listener._listener._open
    assert not llamaindex_places.under_way.get()


# --- it changes nothing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_optimized", [False, True])
@pytest.mark.parametrize("mode", ["compact", "refine", "tree_summarize"])
def test_answers_spans_events_and_callbacks_are_the_same_with_it(form: str, is_optimized: bool, mode: str) -> None:
    found, said = [], []
    for handlers in ([], [TeolaCallbackHandler()], [TeolaCallbackHandler(), TeolaCallbackHandler()]):
        with Record() as record:
            for handler in handlers:
                record.callback_manager.add_handler(handler)
            engine = engine_of(
                Engines(), mode=mode, retriever="fusion", rerank=True, streaming="streaming" in form,
                callback_manager=record.callback_manager,
            )  # fmt: skip
            record.said.clear()
            found.append(ask(optimize(engine) if is_optimized else engine, form))
        said.append(record.said)
        for handler in handlers:
            assert (len(handler.reports), len(handler.predictions)) == ((1, 0) if is_optimized else (0, 1))
    assert found[0] == found[1] == found[2]
    assert Counter(map(str, said[0])) == Counter(map(str, said[1])) == Counter(map(str, said[2]))
    if form in ("query", "streaming"):
        assert said[0] == said[1] == said[2]


def test_what_it_fails_at_breaks_no_query(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    handler, plain = TeolaCallbackHandler(), rag()
    expected = ask(plain, "query")
    plain.callback_manager.add_handler(handler)
    for name in ("begin", "end", "finish", "joined", "call_of"):
        with monkeypatch.context() as patch:
            patch.setattr(runs_module.Runs, name, lambda *args: 1 / 0)
            assert ask(plain, "query") == ask(optimize(plain), "query") == expected
    assert "lost an event" in caplog.text
    assert ask(plain, "query") == expected


def test_streams_beside_the_run_of_another_handler() -> None:
    outer, handler = TeolaCallbackHandler(), TeolaCallbackHandler()
    engine = rag(handler, "streaming")

    def within() -> None:
        with CallbackManager([outer]).as_trace("outer"):
            "".join(engine.query(QUESTION).response_gen)

    apart(within)
    assert outer.prediction
    assert handler.prediction
    assert kinds(handler.prediction) == FUSION
    assert kinds(outer.prediction) == [kind for kind in FUSION if kind != "reranker"]  # only callbacks tell of ours


def test_a_consumer_that_fails_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(TeolaCallbackHandler):
        def on_report(self, report: RunReport) -> None:
            raise RuntimeError("no disk")

    handler = Failing()
    engine = rag(handler)
    with caplog.at_level(logging.ERROR, "teola_plugin"):
        assert ask(optimize(engine), "query") == ask(rag(), "query")
    assert "no disk" in caplog.text
    assert len(handler.reports) == 1


# --- calls of optimized engines --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_reports(form: str) -> None:
    handler = TeolaCallbackHandler()

    class Ids(TeolaCallbackHandler):
        def on_event_start(self, event_type: Any, *args: Any, event_id: str = "", **kwargs: Any) -> str:
            self.ids = [*getattr(self, "ids", ()), event_id]
            return event_id

    fast, heard = optimize(rag(handler, form)), Ids()
    fast.callback_manager.add_handler(heard)
    ask(fast, form)
    (report,) = handler.reports
    assert report.report is optimized(fast).reports[-1]
    assert report.report.hits + report.report.shared >= 3
    assert report.run_ids == (heard.ids[0],)
    assert report.name == f"RetrieverQueryEngine.{'aquery' if 'async' in form or form == 'aquery' else 'query'}"
    assert report.error == ""
    assert json.dumps(handler.as_dict())
    for part in ("critical path", "bound", "hits", "left to the framework", "decoding of 1 @ llm"):
        assert part in str(handler)
    assert max(map(len, str(handler).splitlines())) <= WIDTH
    assert not handler.predictions
    assert not handler._runs.open


def test_a_part_of_a_plain_engine_that_is_optimized() -> None:
    handler = TeolaCallbackHandler()
    outer = TransformQueryEngine(
        optimize(rag(handler)), HyDEQueryTransform(Engines().model), callback_manager=CallbackManager([handler])
    )
    ask(outer, "query")
    assert len(handler.reports) == len(handler.predictions) == 1
    assert kinds(handler.predictions[0]) == ["chat model", *FUSION]


def test_an_engine_with_nothing_but_a_retriever_in_hand() -> None:
    handler = TeolaCallbackHandler()
    retriever = rag(handler).retriever
    apart(optimize(retriever).retrieve, QUESTION)
    apart(retriever.retrieve, QUESTION)
    assert (len(handler.reports), len(handler.predictions)) == (1, 1)
    assert kinds(handler.predictions[0]) == FUSION[:-2]
    assert handler.predictions[0].name == "QueryFusionRetriever.retrieve"


# --- predictions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("has_settings", [False, True])
def test_predictions(form: str, has_settings: bool) -> None:
    """The same leaves whether the managers of the models have the handler or not, and if it is there twice."""
    handler, engines = TeolaCallbackHandler(), Engines()
    engine = rag(handler, form, engines)
    if has_settings:
        engine.callback_manager.add_handler(handler)
        engines.model.callback_manager = engines.embedding.callback_manager = engine.callback_manager
    ask(engine, form)
    found = handler.prediction
    assert found
    assert not handler.reports
    assert kinds(found) == FUSION
    assert needs(found)[:2] == [(), ()]  # the query itself is searched for without waiting
    assert (0,) in needs(found)[2:5]
    assert needs(found)[5] == (1, 2, 3, 4)
    assert needs(found)[6][-1] == 5
    assert {leaf.name for leaf in found.leaves if leaf.kind == "retriever"} == {"VectorIndexRetriever"}
    path_s = sum(leaf.seconds for leaf in found.leaves if leaf.on_path)
    assert found.predicted_s == pytest.approx(path_s + found.glue_s)
    assert found.predicted_s < found.measured_s
    assert found.run_id
    assert not any(leaf.failed for leaf in found.leaves)
    assert json.dumps(handler.as_dict())
    assert not handler._runs.open


def test_a_prediction_lists_the_breaks_of_the_engine_it_was_given() -> None:
    plain = rag()
    plain._node_postprocessors.append(lambda: None)
    for given in (plain, optimize(rag())):
        handler = TeolaCallbackHandler(given)
        ask(rag(handler), "query")
        assert handler.prediction
        assert handler.prediction.breaks is not None
    assert "left to the framework" in str(handler)


def questions(prompt: str) -> Any:
    """Two questions where some are to be generated, else a digest."""
    if "sub-questions" in prompt or "sub questions" in prompt.lower():
        asked = [{"sub_question": f"What about the {word} of bees?", "tool_name": "notes"} for word in ("life", "hive")]
        return says("```json\n" + json.dumps({"items": asked}) + "\n```")
    return answer(prompt)


@pytest.mark.parametrize("form", ["query", "aquery"])
@pytest.mark.parametrize("use_async", [False, True])
def test_engines_inside_an_engine(form: str, use_async: bool) -> None:
    handler, engines = TeolaCallbackHandler(), Engines()
    engines.llm.answer = questions
    inner = engine_of(engines, mode="compact")
    tool = QueryEngineTool.from_defaults(inner, name="notes", description="notes on bees")
    synthesizer = get_response_synthesizer(llm=engines.model)
    synthesizer.callback_manager = CallbackManager([handler])
    engine = SubQuestionQueryEngine.from_defaults(
        [tool], engines.model, LLMQuestionGenerator.from_defaults(engines.model), synthesizer, use_async=use_async,
        verbose=False,
    )  # fmt: skip
    engine.callback_manager.add_handler(handler)
    try:
        ask(engine, form)
    finally:
        engine.callback_manager.set_handlers([h for h in engine.callback_manager.handlers if h is not handler])
    (found,) = handler.predictions
    assert Counter(kinds(found)) == {"chat model": 4, "retriever": 2}
    at = [n for n, leaf in enumerate(found.leaves) if leaf.kind == "retriever"]
    assert [found.leaves[n].needs for n in at] == [(0,), (0,)]  # not one after the other
    assert found.leaves[-1].needs[-2:] == tuple(n for n in range(1, 5) if n not in at)
    assert found.predicted_s < found.measured_s or use_async or form == "aquery"


def test_a_text_made_up_for_the_search_is_needed_by_it() -> None:
    handler, engines = TeolaCallbackHandler(), Engines()
    inner = engine_of(engines)
    outer = TransformQueryEngine(inner, HyDEQueryTransform(engines.model), callback_manager=CallbackManager([handler]))
    ask(outer, "query")
    assert handler.prediction
    assert kinds(handler.prediction) == ["chat model", "retriever", "chat model"]
    assert needs(handler.prediction)[1] == (0,)


class TwoQuestions(CustomQueryEngine):
    """No event but that of its trace is its own."""

    llm: Any

    def custom_query(self, query_str: str) -> str:
        return str(self.llm.complete("one: " + query_str)) + str(self.llm.complete("two: " + query_str))


def test_the_users_own_engine() -> None:
    handler = TeolaCallbackHandler()
    ask(TwoQuestions(llm=Engines().model, callback_manager=CallbackManager([handler])), "query")
    assert handler.prediction
    assert (kinds(handler.prediction), needs(handler.prediction)) == (["llm", "llm"], [(), ()])
    assert handler.prediction.name == "TwoQuestions.query"


def test_a_model_that_asks_another_is_one_leaf() -> None:
    """MockLLM answers messages by completing a text."""
    handler = TeolaCallbackHandler()
    llm = MockLLM(callback_manager=CallbackManager([handler]))
    from llama_index.core.llms import ChatMessage

    apart(llm.chat, [ChatMessage("a question of some length")])
    apart(llm.complete, "a question of some length")
    assert [len(p.leaves) for p in handler.predictions] == [1, 1]


def test_what_is_no_run() -> None:
    handler, engines = TeolaCallbackHandler(), Engines()
    engines.embedding.callback_manager = CallbackManager([handler])
    apart(engines.embedding.get_query_embedding, "bees")
    assert handler.report() == "no run has ended yet"


def test_a_synthesizer_by_itself() -> None:
    handler, engines = TeolaCallbackHandler(), Engines()
    nodes = apart(engine_of(engines).retriever.retrieve, QUESTION)
    synthesizer = get_response_synthesizer(
        llm=engines.model, response_mode="accumulate", callback_manager=CallbackManager([handler])
    )
    for each in (synthesizer, optimize(synthesizer)):
        apart(each.synthesize, QUESTION, nodes)
    assert handler.prediction
    assert needs(handler.prediction) == [()] * 4
    assert (len(handler.reports), len(handler.predictions)) == (1, 1)


# --- what goes wrong -------------------------------------------------------------------------------------------------


def refuses(prompt: str) -> Any:
    if "Context information" in prompt:
        raise RuntimeError("no answers today")
    return answer(prompt)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_everywhere", [False, True])
def test_errors(form: str, is_everywhere: bool) -> None:
    handler, engines = TeolaCallbackHandler(), Engines()
    engines.llm.answer = refuses
    engine = rag(handler, form, engines)
    if is_everywhere:
        engines.model.callback_manager = engine.callback_manager
    for each in (engine, optimize(engine)):
        assert ask(each, form) == (RuntimeError, ("no answers today",))
        assert "the pipeline raised" in str(handler)
    assert handler.prediction
    assert handler.prediction.leaves[-1].failed
    assert not any(leaf.failed for leaf in handler.prediction.leaves[:-1])
    assert handler.prediction.error.endswith("no answers today")
    assert handler.reports[0].error == "RuntimeError: no answers today"
    assert not handler._runs.open


@pytest.mark.parametrize("is_optimized", [False, True])
def test_what_the_caller_is_handling_is_not_what_the_engine_raised(is_optimized: bool) -> None:
    handler = TeolaCallbackHandler()
    engine = optimize(rag(handler)) if is_optimized else rag(handler)

    def within() -> None:
        try:
            raise KeyError("the caller's")
        except KeyError:
            engine.query(QUESTION)

    apart(within)
    assert [run.error for run in (*handler.reports, *handler.predictions)] == [""]


def test_an_error_that_the_engine_handles_is_not_its_own() -> None:
    handler, engines = TeolaCallbackHandler(), Engines()
    engines.llm.answer = refuses

    class Calm(CustomQueryEngine):
        llm: Any

        def custom_query(self, query_str: str) -> str:
            try:
                return str(self.llm.complete("Context information"))
            except RuntimeError:
                return str(self.llm.complete(query_str))

    ask(Calm(llm=engines.model, callback_manager=CallbackManager([handler])), "query")
    assert handler.prediction
    assert handler.prediction.error == ""
    assert [leaf.failed for leaf in handler.prediction.leaves] == [True, False]


def test_streams_that_are_not_read_to_their_end() -> None:
    handler, plain = TeolaCallbackHandler(), rag(form="streaming")
    plain.callback_manager.add_handler(handler)

    def first_piece(engine: Any) -> None:
        stream = engine.query(QUESTION).response_gen
        next(stream)
        stream.close()

    apart(first_piece, plain)
    assert handler.prediction
    assert kinds(handler.prediction) == FUSION
    assert not handler.prediction.leaves[-1].failed
    apart(first_piece, optimize(plain))
    assert len(handler.reports) == 1
    apart(plain.query, QUESTION)  # never read
    assert kinds(handler.predictions[-1])[:6] == FUSION[:-1]
    # Older versions of LlamaIndex ask the model before anybody reads.
    llamaindex_listener._listener._open.clear()


def test_a_stream_belongs_to_its_query_wherever_it_is_read() -> None:
    handler = TeolaCallbackHandler()
    engines = Engines()
    engine = rag(handler, "streaming", engines)
    first, second = (apart(engine.query, f"{QUESTION} {n}") for n in range(2))
    assert [kinds(p)[:6] for p in handler.predictions] == [FUSION[:-1]] * 2
    apart(engines.model.complete, "somebody else's question")
    apart("".join, second.response_gen)
    assert len(handler.predictions) == 2
    assert kinds(handler.predictions[1]) == FUSION
    apart("".join, first.response_gen)
    del first, second
    assert [kinds(p) for p in handler.predictions] == [FUSION, FUSION]
    assert all(p.leaves[-1].needs[-1] == 5 for p in handler.predictions)
    gc.collect()
    assert not llamaindex_places._streams


# --- several at once, and many ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_concurrent_queries_are_kept_apart(form: str) -> None:
    handler = TeolaCallbackHandler()
    plain = rag(handler, form)
    fast = optimize(plain)
    calls = [(engine, f"question {n} about bees") for n in range(6) for engine in (plain, fast)]
    if "a" in form.split("str")[0]:

        async def all_of_them() -> Any:
            return await asyncio.gather(*(aask(engine, form, question) for engine, question in calls))

        answers = apart(asyncio.run, all_of_them())
    else:
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda c: _ask(c[0], form, c[1]), calls))
    assert answers[::2] == answers[1::2]
    assert len(set(answers)) == 6
    assert [kinds(p) for p in handler.predictions] == [FUSION] * 6
    assert all(needs(p)[5] == (1, 2, 3, 4) for p in handler.predictions)
    assert len(handler.reports) == 6
    ids = [*(p.run_id for p in handler.predictions), *(r.run_id for r in handler.reports)]
    assert len(set(ids)) == 12
    assert not handler._runs.open


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = TeolaCallbackHandler(maxlen=2)
    engine = rag(handler, retriever="vector", rerank=False)
    for _ in range(4):
        ask(engine, "query")
    assert len(handler.predictions) == 2
    assert all(not run.seen for run in handler._runs.ended)  # type: ignore[union-attr]
    monkeypatch.setattr(runs_module, "MAX_OPEN", 3)

    def never_end() -> None:
        for n in range(6):
            handler.on_event_start(CBEventType.QUERY, {}, event_id=str(n))

    apart(never_end)
    assert len(handler._runs.open) == 3


# --- what it is ------------------------------------------------------------------------------------------------------


def test_copies() -> None:
    handler = TeolaCallbackHandler(maxlen=7)
    manager = CallbackManager([handler])
    engine = rag(handler)
    ask(engine, "query")
    assert copy.deepcopy(manager).handlers == [handler]
    (other,) = pickle.loads(pickle.dumps(manager)).handlers
    assert isinstance(other, TeolaCallbackHandler)
    assert not other.predictions
    assert other._runs.ended.maxlen == 7
    assert other._runs.tell.__self__ is other
    copied = copy.deepcopy(engine.callback_manager)
    assert copied.handlers == engine.callback_manager.handlers


def test_one_handler_for_both_frameworks() -> None:
    handler = TeolaCallbackHandler()
    assert isinstance(handler, BaseCallbackHandler)
    engine = rag(handler)
    chain = RunnableLambda(lambda question: str(engine.query(question)))
    apart(chain.invoke, QUESTION, {"callbacks": [handler]})
    assert {p.name for p in handler.predictions} == {"RunnableLambda", "RetrieverQueryEngine.query"}


def test_it_asks_for_no_langchain() -> None:
    code = (
        "import sys; sys.modules['langchain_core'] = None\n"
        "from teola_plugin import TeolaCallbackHandler\n"
        "from llama_index.core.callbacks import CallbackManager\n"
        "handler = TeolaCallbackHandler()\n"
        "with CallbackManager([handler]).as_trace('query'): pass\n"
        "print(handler.prediction.name)"
    )
    assert printed(code) == "query"


def test_it_leaves_the_dispatcher_as_it_was() -> None:
    code = (
        "import gc\n"
        "from teola_plugin import TeolaCallbackHandler\n"
        "from llama_index.core.callbacks import CallbackManager\n"
        "from llama_index.core.instrumentation import root_dispatcher\n"
        "def count():\n"
        "    gc.collect()\n"
        "    return len(root_dispatcher.event_handlers)\n"
        "found = [count()]\n"
        "handlers = [TeolaCallbackHandler(), TeolaCallbackHandler()]\n"
        "found.append(count())\n"
        "for handler in handlers * 2:\n"
        "    with CallbackManager([handler]).as_trace('query'): pass\n"
        "del handler\n"
        "found.append(count())\n"
        "handlers.pop()\n"
        "found.append(count())\n"
        "handlers.pop()\n"
        "print(*found, count())"
    )
    assert printed(code) == "1 1 2 2 1"


def printed(code: str) -> str:
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    return done.stdout.strip()


# --- our own events --------------------------------------------------------------------------------------------------


class Heard(BaseEventHandler):
    _events: list[Any] = PrivateAttr(default_factory=list)

    def handle(self, event: Any, **kwargs: Any) -> None:
        self._events.append(event)


@pytest.fixture
def ours() -> Iterator[Heard]:
    handler = Heard()
    dispatcher.add_event_handler(handler)
    yield handler
    dispatcher.event_handlers.remove(handler)


@pytest.mark.parametrize("form", FORMS)
def test_each_call_is_an_event_of_our_own(form: str, ours: Heard) -> None:
    plain, everywhere = rag(form=form), Heard()
    fast = optimize(plain)
    root_dispatcher.add_event_handler(everywhere)
    try:
        assert ask(plain, form) == ask(fast, form)
        RunnableLambda(lambda x: x).invoke(1)
    finally:
        root_dispatcher.event_handlers.remove(everywhere)
    (event,) = ours._events
    report = optimized(fast).reports[-1]
    assert (event.pipeline, event.hits, event.shared) == ("RetrieverQueryEngine", report.hits, report.shared)
    assert event.report.report is report
    assert event.critical_path == [link.step.primitive for link in event.report.measured.path]
    dumped = json.loads(event.model_dump_json())
    assert dumped["bound_seconds"] <= dumped["seconds"]
    assert "report" not in dumped
    assert event.model_dump()["class_name"] == "OptimizedCallEvent"
    assert "critical path" in str(event.report)
    assert not any(isinstance(event, OptimizedCallEvent) for event in everywhere._events)


def test_no_event_is_made_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunReport, "measured", None)
    assert ask(optimize(rag()), "query")


def test_a_handler_of_our_events_that_fails_breaks_nothing(ours: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Heard, "handle", lambda *args, **kwargs: 1 / 0)
    assert ask(optimize(rag()), "query") == ask(rag(), "query")
