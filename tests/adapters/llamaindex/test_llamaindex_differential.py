"""Original against optimized LlamaIndex pipelines: same answers, streams, nodes, events, spans, callbacks and errors.

The fake model's answer is a digest of its prompt, so equal answers mean equal prompts. `Patient` lets the run-ahead end
before the framework begins, so what is a hit and what is a miss does not hang on time.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.postprocessor import LLMRerank
from llama_index.core.prompts import PromptTemplate, SelectorPromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from teola_plugin import pure
from teola_plugin.adapters.llamaindex import adapter
from teola_plugin.api import OpenCall, OptimizedPipeline, Options
from teola_plugin.graph import PIPELINE
from teola_plugin.runtime.session.report import Report
from tests.support.fakes import says
from tests.support.llamaindex_world import MODES, QUESTION, Engines, Record, answer, apart, engine_of, index_of

FORMS = ("query", "aquery", "streaming", "async streaming")
GATHERS = ("accumulate", "compact_accumulate", "tree_summarize")
"""Modes that ask all prompts at once by themselves in coroutines: those are not foreseen."""


class Patient(OptimizedPipeline):
    """Gives the call to the framework once the run-ahead has all it can have, and again after it was told a value."""

    def open(self, inputs: Callable[[], Sequence[Any]], **options: Any) -> OpenCall:
        call = super().open(inputs, **options)
        if self.traced.follow and call.session:
            enter = call.session.enter

            def enter_and_wait(component: object, value: Any) -> object | None:
                front = enter(component, value)
                if front is not None:
                    _wait(call, _is_at_rest)
                return front

            call.session.enter = enter_and_wait  # type: ignore[method-assign]
            return call
        if not self.prepared.plan.has_slack:  # then nothing runs ahead
            return call
        if self.traced.observed and call.session:
            observe = call.session.observe

            def observe_and_wait(component: object, value: Any) -> None:
                observe(component, value)
                _wait(call)

            call.session.observe = observe_and_wait  # type: ignore[method-assign]
        else:
            _wait(call)
        return call


def _wait(call: OpenCall, is_at_rest: Callable[[Any], bool] = lambda run: run._scheduler.is_done) -> None:
    while call.session and not (call.session._runs and all(map(is_at_rest, call.session._runs))):
        time.sleep(0.001)  # gives way to the host's thread; how long does not matter


def _is_at_rest(run: Any) -> bool:
    """It is over, or waits for what only the framework's run can tell."""
    waits = any(p.engine == PIPELINE for p in run._plan.graph)
    return run._is_over or run._scheduler.is_done or (waits and run._on_its_way == 0 and not run._put_off)


def optimized(pipeline: Any, kind: type[OptimizedPipeline] = OptimizedPipeline) -> tuple[Any, OptimizedPipeline]:
    calls = kind(pipeline, adapter, adapter.trace(pipeline), Options())
    return adapter.twin(pipeline, calls), calls


# --- one call and all that is to be seen of it ------------------------------------------------------------------------


def call(engine: Any, form: str, question: Any = QUESTION) -> tuple[Any, ...]:
    """Text, stream, class, nodes and metadata of an answer, or the exception."""
    return apart(_call, engine, form, copy.deepcopy(question))


def _call(engine: Any, form: str, question: Any) -> tuple[Any, ...]:
    try:
        if form in ("query", "streaming"):
            response = engine.query(question)
            chunks = list(response.response_gen) if form == "streaming" else None
        else:
            response, chunks = asyncio.run(_acall(engine, form, question))
    except Exception as e:
        return (type(e), e.args)
    text = "".join(chunks) if chunks is not None else response.response
    return (text, chunks, type(response), _nodes(response.source_nodes), response.metadata)


async def _acall(engine: Any, form: str, question: Any) -> tuple[Any, list[str] | None]:
    response = await engine.aquery(question)
    if form == "aquery":
        return response, None
    return response, [chunk async for chunk in response.response_gen]


def _nodes(nodes: Sequence[NodeWithScore]) -> list[Any]:
    return [(n.node_id, n.node.get_content(), n.node.metadata, round(n.score or 0.0, 5)) for n in nodes]


def compare(
    make: Callable[[Record], Any], form: str, *, exact: bool = True, question: Any = QUESTION,
    last: type[OptimizedPipeline] = Patient,
) -> tuple[tuple[Any, ...], Report]:  # fmt: skip
    """Call a fresh original and two fresh optimized pipelines, one in a race with the run-ahead and one after it.

    Everything must be equal. What came out, and the report of the last one.
    """
    outcomes, said = [], []
    for kind in (None, OptimizedPipeline, last):
        with Record() as record:
            engine = make(record)
            record.said.clear()
            if kind:
                engine, calls = optimized(engine, kind)
            outcomes.append(call(engine, form, question))
        said.append(record.said)
        assert outcomes[-1] == outcomes[0]
        if exact:
            assert said[-1] == said[0]
        assert Counter(map(str, said[-1])) == Counter(map(str, said[0]))
        if kind:
            assert [r.fallbacks for r in calls.reports] == [()]
    return outcomes[0], calls.reports[0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "compact_accumulate"])
@pytest.mark.parametrize("retriever", ["vector", "fusion"])
@pytest.mark.parametrize("is_chat_model", [True, False])
@pytest.mark.parametrize("rerank", [True, False])
def test_all_shapes(form: str, mode: str, retriever: str, is_chat_model: bool, rerank: bool) -> None:
    def make(record: Record) -> Any:
        return engine_of(
            Engines(is_chat_model=is_chat_model), mode=mode, retriever=retriever, rerank=rerank,
            streaming="streaming" in form, callback_manager=record.callback_manager,
        )  # fmt: skip

    outcome, report = compare(make, form, exact=form in ("query", "streaming"))
    if mode == "accumulate" and "streaming" in form:
        assert outcome == (ValueError, ("Unable to stream in Accumulate response mode",))
    else:
        assert outcome[0]
        assert report.hits >= (2 if mode in GATHERS and form.startswith("a") else 3)


@pytest.mark.parametrize("form", ["query", "aquery"])
@pytest.mark.parametrize("mode", ["tree_summarize", "accumulate", "refine", "compact"])
def test_a_small_window_makes_many_prompts(form: str, mode: str) -> None:
    compare(
        lambda record: engine_of(Engines(context_window=900), mode=mode, callback_manager=record.callback_manager),
        form,
        exact=form == "query",
    )


@pytest.mark.parametrize("form", ["query", "aquery"])
@pytest.mark.parametrize("mode", ["tree_summarize", "accumulate"])
def test_async_inside_sync(form: str, mode: str) -> None:
    def make(record: Record) -> Any:
        engine = engine_of(Engines(), mode=mode, retriever="fusion", use_async=True)
        engine._response_synthesizer._use_async = True
        return engine

    compare(make, form, exact=False)


# --- what must be a hit -----------------------------------------------------------------------------------------------


def counted(engine: Any, form: str = "query", question: Any = QUESTION) -> tuple[int, int, int]:
    """Hits, misses and waste of a patient call."""
    twin, calls = optimized(engine, Patient)
    outcome = call(twin, form, question)
    assert not isinstance(outcome[0], type), outcome
    (report,) = calls.reports
    assert report.fallbacks == ()
    return report.hits + report.shared, report.misses, report.wasted


@pytest.mark.parametrize("form", ["query", "aquery"])
@pytest.mark.parametrize(
    ("mode", "steps_behind"),
    [
        ("accumulate", 0),
        ("compact_accumulate", 0),
        ("simple_summarize", 0),
        ("generation", 0),
        ("compact", 0),
        ("tree_summarize", 0),
        ("refine", 3),  # four nodes: each later step waits for the answer before it
    ],
)
@pytest.mark.parametrize("is_chat_model", [True, False])
def test_every_prompt_that_can_be_known_was(form: str, mode: str, steps_behind: int, is_chat_model: bool) -> None:
    hits, misses, wasted = counted(engine_of(Engines(is_chat_model=is_chat_model), mode=mode), form)
    if mode in GATHERS and form == "aquery":
        assert (hits, wasted) == (2, 0)
    else:
        assert (misses, wasted) == (steps_behind, 0)
        assert hits >= 3


@pytest.mark.parametrize("form", ["query", "aquery"])
def test_fusion_and_reranking_are_foreseen_to_the_last_item(form: str) -> None:
    engines = Engines()
    hits, misses, wasted = counted(engine_of(engines, mode="accumulate", retriever="fusion", rerank=True), form)
    # 1 prompt for queries, 4 vectors, 4 searches, 5 pairs, 3 answers; of the 5 lines written, 3 are wanted
    assert (hits, misses) == ((17, 0) if form == "query" else (14, 3))
    assert wasted <= 4


def chosen_by_the_model(engines: Engines, mode: str = "compact", **settings: Any) -> RetrieverQueryEngine:
    """Four nodes in batches of two; the model chooses."""
    settings = {"choice_batch_size": 2, "top_n": 3, **settings}
    source = index_of(engines).as_retriever(similarity_top_k=4)
    synthesizer = get_response_synthesizer(llm=engines.model, response_mode=mode)
    return RetrieverQueryEngine(source, synthesizer, [LLMRerank(llm=engines.model, **settings)])


@pytest.mark.parametrize("form", ["query", "aquery"])
@pytest.mark.parametrize("is_chat_model", [True, False])
def test_all_batches_of_a_reranking_by_the_model_are_foreseen(form: str, is_chat_model: bool) -> None:
    def make(record: Record) -> Any:
        return chosen_by_the_model(Engines(is_chat_model=is_chat_model))

    compare(make, form, exact=form == "query")
    hits, misses, wasted = counted(chosen_by_the_model(Engines(is_chat_model=is_chat_model)), form)
    assert (hits, misses, wasted) == (1 + 1 + 2 + 1, 0, 0)  # vector, search, two batches, the answer


def test_choices_that_a_model_cannot_say_are_the_same_error() -> None:
    def make(record: Record) -> Any:
        engines = Engines()
        engines.llm.answer = lambda prompt: says("Doc: 7, Relevance: 7" if "Relevance: 7" in prompt else "an answer")
        return chosen_by_the_model(engines, parse_choice_select_answer_fn=beyond)

    outcome, _ = compare(make, "query")
    assert outcome[0] is IndexError


@pure
def beyond(answer: str, choices: int) -> tuple[list[int], list[float]]:
    return [choices + 5], [1.0]


def test_what_the_users_own_functions_choose_is_waited_for() -> None:
    heard: list[str] = []

    def parse(answer: str, choices: int) -> tuple[list[int], list[float]]:
        heard.append(answer)
        return [1], [1.0]

    compare(lambda record: chosen_by_the_model(Engines(), parse_choice_select_answer_fn=parse), "query")
    assert len(heard) == 3 * 2


def test_a_tree_of_two_levels() -> None:
    engines = Engines(context_window=420)
    _, misses, wasted = counted(engine_of(engines, mode="tree_summarize"))
    assert (misses, wasted) == (0, 0)
    assert len(engines.llm.seen) >= 3


def test_two_retrievers_in_a_fusion() -> None:
    for use_async in (True, False):
        engines = Engines()
        index = index_of(engines)
        both = [index.as_retriever(similarity_top_k=k) for k in (2, 3)]
        fusion = QueryFusionRetriever(both, llm=engines.model, num_queries=3, use_async=use_async)
        engine = RetrieverQueryEngine(fusion, get_response_synthesizer(llm=engines.model))
        original = call(engine, "query")
        twin, calls = optimized(engine, Patient)
        assert call(twin, "query") == original
        assert calls.reports[0].misses == 0


@pytest.mark.parametrize("form", ["query", "aquery"])
def test_the_later_prompts_of_a_refinement_are_prefilled(form: str) -> None:
    engines = Engines()
    twin, calls = optimized(engine_of(engines, mode="refine"), Patient)
    call(twin, form)
    prompts = [i.payload for b in engines.llm.batches if b.op == "decoding" for i in b.items]
    prefixes = [i.payload for b in engines.llm.batches if b.op == "partial_prefilling" for i in b.items]
    assert calls.reports[0].prefills == 3
    assert len(prefixes) == 3
    for prefix, prompt in zip(sorted(prefixes), sorted(prompts[1:]), strict=True):
        assert prompt.startswith(prefix)
        assert len(prefix) > len(prompt) / 2


@pytest.mark.parametrize("form", ["query", "aquery"])
def test_the_run_ahead_goes_on_from_a_retriever_of_the_users_own(form: str) -> None:
    class Own(BaseRetriever):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            return [NodeWithScore(node=TextNode(text=f"note {i}", id_=f"n{i}"), score=0.1 * i) for i in range(5)]

    def make(record: Record) -> Any:
        engines = Engines()
        synthesizer = get_response_synthesizer(llm=engines.model, response_mode="accumulate")
        return RetrieverQueryEngine(Own(), synthesizer, [engines.rerank])

    _, report = compare(make, form, exact=form == "query")
    assert (report.hits, report.misses) == ((5 + 3, 0) if form == "query" else (5, 3))  # pairs and answers


def test_entries_run_ahead_of_what_they_do_and_of_no_more() -> None:
    engines = Engines()
    engine = engine_of(engines, mode="accumulate", retriever="fusion", rerank=True)
    twin, calls = optimized(engine)
    nodes = apart(twin.retrieve, QueryBundle(QUESTION))
    assert _nodes(nodes) == _nodes(apart(engine.retrieve, QueryBundle(QUESTION)))
    assert len(engines.llm.seen) == 2  # the two prompts for queries, no answer
    assert len(calls.reports) == 1


def test_a_synthesizer_by_itself() -> None:
    engines = Engines()
    synthesizer = get_response_synthesizer(llm=engines.model, response_mode="accumulate")
    nodes = [NodeWithScore(node=TextNode(text=f"note {i}"), score=0.5) for i in range(4)]
    original = apart(synthesizer.synthesize, QUESTION, nodes).response
    twin, calls = optimized(synthesizer, Patient)
    assert apart(twin.synthesize, QUESTION, nodes).response == original
    assert (calls.reports[0].hits, calls.reports[0].misses) == (4, 0)


def test_no_nodes_no_prompts() -> None:
    engines = Engines()
    synthesizer = get_response_synthesizer(llm=engines.model)
    twin, calls = optimized(synthesizer, Patient)
    assert apart(twin.synthesize, QUESTION, []).response == "Empty Response"
    assert engines.llm.seen == []
    assert calls.reports[0].wasted == 0


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("error", [RuntimeError("the model broke"), ValueError("too long")])
@pytest.mark.parametrize("mode", ["compact", "tree_summarize"])
def test_an_error_of_the_model_comes_in_the_same_place(form: str, error: Exception, mode: str) -> None:
    def failing(prompt: str) -> Any:
        if "search queries" in prompt:
            return answer(prompt)
        raise type(error)(*error.args)  # a new one: LlamaIndex writes on it

    def make(record: Record) -> Any:
        engines = Engines()
        engines.llm.answer = failing
        return engine_of(
            engines, mode=mode, retriever="fusion", streaming="streaming" in form,
            callback_manager=record.callback_manager,
        )  # fmt: skip

    compare(make, form, exact=form in ("query", "streaming"))


@pytest.mark.parametrize("which", ["embedder", "reranker"])
def test_an_error_of_another_engine(which: str) -> None:
    def make(record: Record) -> Any:
        engines = Engines()
        engine = engine_of(engines, retriever="fusion", rerank=True, callback_manager=record.callback_manager)

        def fail(payload: Any) -> Any:
            raise ConnectionError("gone")

        getattr(engines, which).answer = fail
        return engine

    outcome, _ = compare(make, "query")
    assert outcome == (ConnectionError, ("gone",))


# --- changes after optimize -------------------------------------------------------------------------------------------


def _more_nodes(engine: Any) -> None:
    engine.retriever._retrievers[0].similarity_top_k = 6


def _other_prompt(engine: Any) -> None:
    template = PromptTemplate("Q: {query_str}\nC: {context_str}\nA:")
    engine.update_prompts({"response_synthesizer:text_qa_template": template})


def _fewer_queries(engine: Any) -> None:
    engine.retriever.num_queries = 2


def _other_query_prompt(engine: Any) -> None:
    engine.retriever.query_gen_prompt = "{num_queries} search queries for {query}:"


def _warmer(engine: Any) -> None:
    engine._response_synthesizer._llm.temperature = 0.5


def _no_postprocessor(engine: Any) -> None:
    engine._node_postprocessors.clear()


def _streaming(engine: Any) -> None:
    engine._response_synthesizer._streaming = True


CHANGES = (_more_nodes, _other_prompt, _fewer_queries, _other_query_prompt, _warmer, _no_postprocessor, _streaming)


@pytest.mark.parametrize("change", CHANGES)
def test_settings_that_change_after_optimize_count(change: Callable[[Any], None]) -> None:
    form = "streaming" if change is _streaming else "query"
    engine = engine_of(Engines(), retriever="fusion", rerank=True)
    twin, calls = optimized(engine)
    before = call(twin, "query")
    change(engine)
    assert call(twin, form) == call(engine, form)
    assert change is _warmer or call(twin, form) != before  # the fake model knows no warmth
    assert calls.reports[-1].fallbacks == ()


def test_a_changed_template_is_still_foreseen() -> None:
    engine = engine_of(Engines(), mode="accumulate")
    twin, calls = optimized(engine, Patient)
    _other_prompt(engine)
    call(twin, "query")
    assert calls.reports[-1].misses == 0


def test_a_query_bundle_of_the_callers_own() -> None:
    for bundle in (QueryBundle(QUESTION), QueryBundle(QUESTION, custom_embedding_strs=["bees", "hives"])):
        compare(lambda record: engine_of(Engines()), "query", question=bundle, last=OptimizedPipeline)


# --- many at once, and streams that are left --------------------------------------------------------------------------


async def test_many_queries_at_once() -> None:
    engine = engine_of(Engines(), mode="accumulate", retriever="fusion", rerank=True, use_async=True)
    questions = [f"{QUESTION} {i}" for i in range(8)]
    expected = [(await engine.aquery(q)).response for q in questions]
    twin, calls = optimized(engine)
    assert [r.response for r in await asyncio.gather(*map(twin.aquery, questions))] == expected
    assert len(calls.reports) == 8
    assert sum(r.hits + r.shared for r in calls.reports) > 0


def test_a_stream_that_is_closed_early() -> None:
    said = []
    for is_optimized in (False, True):
        with Record() as record:
            engine = engine_of(Engines(), streaming=True, callback_manager=record.callback_manager)
            record.said.clear()
            if is_optimized:
                engine, calls = optimized(engine)
            apart(_read_two_and_close, engine)
        said.append(record.said)
    assert said[1] == said[0]
    assert len(calls.reports) == 1


def _read_two_and_close(engine: Any) -> None:
    stream = engine.query(QUESTION).response_gen
    next(stream)
    next(stream)
    stream.close()


def test_a_search_sees_the_notes_of_its_moment() -> None:
    engines = Engines()
    index = index_of(engines)
    engine = index.as_query_engine(llm=engines.model, similarity_top_k=20)
    twin, _ = optimized(engine)
    assert len(apart(twin.query, QUESTION).source_nodes) == 12
    index.insert_nodes([TextNode(text="a new note")])
    assert len(apart(twin.query, QUESTION).source_nodes) == 13


# --- what is heard beside the callbacks -------------------------------------------------------------------------------


def test_the_log_says_everything_once(caplog: pytest.LogCaptureFixture) -> None:
    logs = []
    for is_optimized in (False, True):
        engine: Any = engine_of(Engines(context_window=420), mode="tree_summarize")
        if is_optimized:
            engine, _ = optimized(engine, Patient)
        with caplog.at_level(logging.DEBUG):
            caplog.clear()
            call(engine, "query")
            logs.append([r.getMessage() for r in caplog.records if r.name.startswith("llama_index")])
    assert logs[0]
    assert logs[1] == logs[0]


# --- functions of the user's that make prompts ------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["messages", "completion", "condition", "mapping"])
def test_functions_of_the_users_run_as_often_as_they_did(where: str) -> None:
    counts = []
    for is_optimized in (False, True):
        said: list[str] = []
        engine = _with_function(where, said)
        twin = optimized(engine, Patient)[0] if is_optimized else engine
        if where == "mapping":  # only now: what was read when it was optimized no longer holds
            template = PromptTemplate("{context_str} {query_str}", function_mappings={"context_str": _said(said)})
            engine.update_prompts({"response_synthesizer:text_qa_template": template})
        counts.append((call(twin, "query"), said))
    assert counts[0][1]
    assert counts[1] == counts[0]


def _with_function(where: str, said: list[str]) -> Any:
    engines = Engines(is_chat_model=where != "completion")
    engine = engine_of(engines, mode="accumulate", retriever="fusion")
    if where == "messages":
        engines.model.messages_to_prompt = _said(said)
    elif where == "completion":
        engines.model.completion_to_prompt = _said(said)
    elif where == "condition":
        template = PromptTemplate("{context_str} {query_str}")
        engine._response_synthesizer._text_qa_template = SelectorPromptTemplate(template, [(_said(said), template)])
    return engine


def _said(said: list[str]) -> Callable[..., str]:
    def function(*args: Any, **kwargs: Any) -> str:
        said.append("called")
        return f"{[*map(str, args)]} {kwargs.get('context_str')}"

    return function


def test_a_prompt_function_without_effects_is_no_obstacle() -> None:
    engines = Engines()
    engines.model.messages_to_prompt = pure(lambda messages: "|".join([str(m.content) for m in messages]))
    _, misses, _ = counted(engine_of(engines, mode="accumulate"))
    assert misses == 0
