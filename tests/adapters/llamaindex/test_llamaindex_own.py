"""Query engines, retrievers and postprocessors of the user's own classes: read, and run by LlamaIndex as ever."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import pytest
from llama_index.core import PromptTemplate, Settings, SQLDatabase, VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.llms import LLM, ChatMessage, CustomLLM, MessageRole
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.retrievers import BaseRetriever, SQLRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field
from sqlalchemy import StaticPool, create_engine, text

import teola_plugin
from teola_plugin.adapters.llamaindex.own_runs import OwnRun
from teola_plugin.api import optimized as behind
from tests.support.fakes import says
from tests.support.hosted_service import Service, counted, served
from tests.support.llamaindex_comparing import Stage, same
from tests.support.llamaindex_parts import notes, rag, vector_retriever
from tests.support.llamaindex_programs import (
    ENGINES,
    QA,
    RETRIEVERS,
    GradingPostprocessor,
    GradingQueryEngine,
    Verdict,
    found,
    grading_postprocessor,
)
from tests.support.llamaindex_reading import read_call
from tests.support.llamaindex_replies import failing, reply
from tests.support.llamaindex_world import QUESTION, engine_of, vector

FORMS = ("sync", "async")


def asking(name: str, form: str, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """Call a method, or the coroutine of its name."""

    def act(component: Any) -> Any:
        return getattr(component, name if form == "sync" else f"a{name}")(*args, **kwargs)

    return act


def asked_by(make: Callable[[Stage], Any], name: str, form: str, *args: Any) -> Counter[str]:
    """What the original asks of its model."""
    prompts: list[str] = []

    def look(component: Any, stage: Stage) -> None:
        prompts.extend(stage.engines.llm.seen)

    same(make, asking(name, form, *args), look=look, ways=[], exact=False)
    return Counter(prompts)


# --- the same as LlamaIndex ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ENGINES)
def test_engines_answer_the_same(name: str, form: str) -> None:
    same(ENGINES[name], asking("query", form, QUESTION), exact=form == "sync", look=_requests)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", RETRIEVERS)
def test_retrievers_find_the_same(name: str, form: str) -> None:
    same(RETRIEVERS[name], asking("retrieve", form, QUESTION), exact=form == "sync", look=_requests)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("args", [{"query_str": QUESTION}, {"query_bundle": QueryBundle(QUESTION)}, {}])
def test_postprocessors_keep_the_same(args: dict[str, Any], form: str) -> None:
    def act(component: Any) -> Any:
        return asking("postprocess_nodes", form, found(), **args)(component)

    same(grading_postprocessor, act, exact=form == "sync", look=_requests)


def _requests(component: Any, stage: Stage) -> Any:
    """What was asked, so that nothing is asked more often."""
    return sorted(stage.engines.llm.seen), sorted(map(str, stage.engines.embedder.seen))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("which", ["Rate", "relevant"])
def test_a_model_that_fails_fails_in_its_place(which: str, form: str) -> None:
    def build(stage: Stage) -> Any:
        stage.engines.llm.answer = failing(which, RuntimeError("the model broke"))
        return ENGINES["stock with own" if which == "Rate" else "grading"](stage)

    same(build, asking("query", form, QUESTION), exact=False)


# --- what is asked when ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in ENGINES if name not in ("rag", "stock with own")])
@pytest.mark.parametrize("form", FORMS)
def test_reading_finds_each_request_and_no_other(name: str, form: str) -> None:
    stage = Stage()
    settings = vars(Settings).copy()
    try:
        read = read_call(ENGINES[name](stage), "query" if form == "sync" else "aquery", QUESTION)
    finally:
        vars(Settings).update(settings)
    assert read.error is None
    assert Counter(read.prompts) == asked_by(ENGINES[name], "query", form, QUESTION)


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        ("strings", [1, 1]),
        ("grading", [1, 4, 1]),  # a search, all judgements, the answer
        ("tree", [1, 2, 1]),
        ("chatting", [1, 3]),
        ("nested", [1, 3, 3, 1]),  # queries, searches, judgements, the answer
    ],
)
def test_what_needs_nothing_of_each_other_is_asked_together(name: str, rounds: list[int]) -> None:
    settings = vars(Settings).copy()
    try:
        read = read_call(ENGINES[name](Stage()), "query", QUESTION)
    finally:
        vars(Settings).update(settings)
    assert [len(each) for each in read.rounds] == rounds


def test_nodes_are_rated_together() -> None:
    read = read_call(grading_postprocessor(Stage()), "postprocess_nodes", found(5), QueryBundle(QUESTION))
    assert [len(each) for each in read.rounds] == [5]


def test_values_are_those_of_the_run() -> None:
    stage = Stage()
    processor = grading_postprocessor(stage)
    read = read_call(processor, "postprocess_nodes", found(), QueryBundle(QUESTION))
    kept = processor.postprocess_nodes(found(), QueryBundle(QUESTION))
    assert [(node.node_id, node.score) for node in read.value] == [(node.node_id, node.score) for node in kept]


def test_a_run_finds_what_was_asked_ahead() -> None:
    same(ENGINES["grading"], asking("query", "sync", QUESTION), least_hits=5)


def test_a_stock_engine_goes_on_behind_what_is_read() -> None:
    same(ENGINES["stock with own"], asking("query", "sync", QUESTION), least_hits=5)


class Sleeping:
    """Takes a moment, so that there is time to read."""

    async def wait(self) -> None:
        await asyncio.sleep(0.1)


def slowly() -> Stage:
    stage = Stage()
    stage.engines.llm.gate = stage.engines.embedder.gate = Sleeping()  # type: ignore[assignment]
    return stage


def test_explain_says_how_far_it_was_read() -> None:
    twin: Any = teola_plugin.optimize(ENGINES["grading"](slowly()))
    assert "GradingQueryEngine: custom_query (llamaindex_programs.py:" in twin.explain()
    assert "not read yet" in twin.explain()
    twin.query(QUESTION)
    assert "read whole; 6 requests found" in " ".join(twin.explain().split())
    assert not behind(twin).traced.breaks


# --- components that may do more than ask ----------------------------------------------------------------------------


class OwnEmbedding(BaseEmbedding):
    """Of which nobody knows what it does."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return [float(each) for each in vector(text)]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def elsewhere(stage: Stage) -> Any:
    """A retriever whose embedding model is not known: its run tells what it finds."""
    index = VectorStoreIndex(notes("bees"), embed_model=OwnEmbedding(), callback_manager=stage.callback_manager)
    return index.as_retriever(similarity_top_k=4)


def grading_elsewhere(stage: Stage) -> Any:
    stage.engines.llm.gate = Sleeping()  # type: ignore[assignment]
    return GradingQueryEngine(retriever=elsewhere(stage), llm=stage.engines.model)


@pytest.mark.parametrize("form", FORMS)
def test_reading_goes_on_from_what_a_run_tells(form: str) -> None:
    same(grading_elsewhere, asking("query", form, QUESTION), exact=form == "sync", look=_requests, least_hits=2)


def several(stage: Stage) -> Any:
    """The same retriever is asked twice, and an engine that is read as a graph once."""

    class Several(CustomQueryEngine):
        retriever: BaseRetriever
        engine: Any
        llm: LLM

        def custom_query(self, query_str: str) -> str:
            nodes = [*self.retriever.retrieve(query_str), *self.retriever.retrieve(query_str.upper())]
            said = [str(self.llm.complete(f"{n}. Tell of {node.text}")) for n, node in enumerate(nodes)]
            return f"{said} {self.engine.query(said[0])}"

    return Several(retriever=elsewhere(stage), engine=rag(stage), llm=stage.engines.model)


@pytest.mark.parametrize("make", [several, ENGINES["rag"], ENGINES["nested"]])
def test_nothing_is_asked_twice_where_parts_are_in_parts(make: Callable[[Stage], Any]) -> None:
    same(make, asking("query", "sync", QUESTION), look=_requests)


class Barred(CustomQueryEngine):
    """Reading ends before the engine that it asks, which then runs ahead by itself."""

    engine: Any
    seen: list[str] = Field(default_factory=list)

    def custom_query(self, query_str: str) -> str:
        self.seen.append(query_str)
        return str(self.engine.query(query_str))


def test_what_reading_does_not_reach_runs_ahead_by_itself() -> None:
    def build(stage: Stage) -> Any:
        stage.engines.llm.gate = stage.engines.embedder.gate = Sleeping()  # type: ignore[assignment]
        return Barred(engine=engine_of(stage.engines, mode="accumulate"))

    same(build, asking("query", "sync", QUESTION), look=_requests, least_hits=1)


# --- forms of asking -------------------------------------------------------------------------------------------------


class Asking(CustomQueryEngine):
    """Asks by a function that a test gives it."""

    llm: LLM
    ask: str = ""

    def custom_query(self, query_str: str) -> Any:
        return ASKS[self.ask](self.llm, query_str)


def _structured(llm: LLM, question: str) -> Any:
    prompt = PromptTemplate("Extract the keeper: {question}")
    return str([llm.structured_predict(Verdict, prompt, question=f"{question} {n}").name for n in range(2)])


def _chat(llm: LLM, question: str) -> Any:
    return str([llm.chat([ChatMessage(role="user", content=f"{question} {n}")]) for n in range(2)])


def _predict(llm: LLM, question: str) -> Any:
    return "".join(llm.predict(QA.partial_format(query_str=question), context_str=str(n)) for n in range(2))


def _options(llm: LLM, question: str) -> Any:
    return "".join(llm.complete(f"{question} {n}", temperature=0.5).text.upper() for n in range(2))


def _messages(llm: LLM, question: str) -> Any:
    return str([str(llm.chat(QA.format_messages(context_str=str(n), query_str=question))) for n in range(2)])


def _from_texts(llm: LLM, question: str) -> Any:
    texts = [ChatMessage.from_str(question, role="system"), ChatMessage.from_str("really?")]
    first = llm.chat([*texts, ChatMessage.from_str(content=question, role=MessageRole.USER)])
    return str([first, llm.chat([ChatMessage.from_str(f"{question} again", "assistant")])])


def _structured_model(llm: LLM, question: str) -> Any:
    judge = llm.as_structured_llm(Verdict)
    found = judge.chat([ChatMessage.from_str(f"{question} 0")])
    other = judge.complete(f"{question} 1")
    return found.message.content, found.raw, other.text, other.raw, str(found), str(other)


def _structured_models(llm: LLM, question: str) -> Any:
    judges = [llm.as_structured_llm(output_cls=Verdict), llm.as_structured_llm(Verdict, system_prompt="Be fair.")]
    return [judge.complete(f"{question} {n}").raw.name for n, judge in enumerate(judges)]  # type: ignore[attr-defined]


ASKS = {
    each.__name__: each
    for each in (
        _structured, _chat, _predict, _options, _messages, _from_texts, _structured_model, _structured_models,
    )
}  # fmt: skip


@pytest.mark.parametrize("ask", ASKS)
def test_each_form_of_asking_is_read(ask: str) -> None:
    def build(stage: Stage) -> Any:
        stage.engines.llm.answer = reply
        return Asking(llm=stage.engines.model, ask=ask)

    read = read_call(build(Stage()), "query", QUESTION, reply=reply)
    assert (read.barrier, [len(each) for each in read.rounds]) == ("", [2])
    same(build, asking("query", "sync", QUESTION), look=_requests, least_hits=2)


# --- what is not certain is not asked --------------------------------------------------------------------------------


class Guarded(CustomQueryEngine):
    """What stands behind a reply that may be refused."""

    llm: LLM

    def custom_query(self, query_str: str) -> str:
        number = int(self.llm.complete(f"How many? {query_str}").text, 16)
        return str(self.llm.complete(f"And then? {query_str}")) + str(number)


class Branching(CustomQueryEngine):
    """A second request in one arm."""

    llm: LLM

    def custom_query(self, query_str: str) -> str:
        if self.llm.complete(f"Sure? {query_str}").text == "yes":
            return "yes"
        return str(self.llm.complete(f"Why not? {query_str}"))


def hosted() -> Any:
    """A model of somebody else's, whom nobody asks here."""
    return OpenAILike(model="m", api_base="http://127.0.0.1:9/v1", api_key="k", is_chat_model=True)


def test_a_branch_that_is_not_decided_is_not_asked() -> None:
    read = read_call(Branching(llm=Stage().engines.model), "query", QUESTION, reply=lambda prompt: says("no"))
    assert [len(each) for each in read.rounds] == [1, 1]


@pytest.mark.parametrize(("model", "rounds"), [(hosted, [1, 1]), (lambda: Stage().engines.model, [2])])
def test_what_may_raise_holds_up_hosted_models(model: Callable[[], Any], rounds: list[int]) -> None:
    read = read_call(Guarded(llm=model()), "query", QUESTION, reply=lambda prompt: says("12"))
    assert ([len(each) for each in read.rounds], read.error) == (rounds, None)


class Structured(CustomQueryEngine):
    """Asks for objects of a class, and then for something else; each `way` is another form."""

    llm: LLM
    way: str

    def custom_query(self, query_str: str) -> str:
        found = str((WAYS | LEFT)[self.way](self.llm, query_str))
        return found + self.llm.complete("And then?").text


def _of_what_is_known(llm: LLM, question: str) -> Any:
    return llm.as_structured_llm(Verdict).complete(question)


def _of_a_reply(llm: LLM, question: str) -> Any:
    return llm.as_structured_llm(Verdict).complete(llm.complete("Who?").text)


def _predicted_of_a_reply(llm: LLM, question: str) -> Any:
    return llm.structured_predict(Verdict, PromptTemplate("{who}"), who=llm.complete("Who?").text)


WAYS = {each.__name__: each for each in (_of_what_is_known, _of_a_reply, _predicted_of_a_reply)}


@pytest.mark.parametrize("way", WAYS)
def test_a_structured_reply_may_not_parse(way: str) -> None:
    read = read_call(Structured(llm=hosted(), way=way), "query", QUESTION, reply=reply)
    rounds = [1, 1] if way == "_of_what_is_known" else [1, 1, 1]
    assert ([len(each) for each in read.rounds], read.error, read.barrier) == (rounds, None, "")


class Noted(Verdict):
    """A reply with code of the user's, which tells of each use."""

    def model_dump_json(self, **given: Any) -> str:
        ran.append("text")
        return super().model_dump_json(**given)


def _of_a_class_with_code(llm: LLM, question: str) -> Any:
    return llm.complete(question)


def _of_a_class_inside(llm: LLM, question: str) -> Any:
    return llm.as_structured_llm(Verdict).predict(PromptTemplate("{who}"), who=question)


def _with_more_than_a_text(llm: LLM, question: str) -> Any:
    return llm.chat([ChatMessage.from_str(question, additional_kwargs={"n": 1})])


LEFT = {each.__name__: each for each in (_of_a_class_with_code, _of_a_class_inside, _with_more_than_a_text)}


@pytest.mark.parametrize("way", LEFT)
def test_other_structured_requests_are_left_to_the_run(way: str) -> None:
    ran.clear()
    llm = hosted().as_structured_llm(Noted) if way == "_of_a_class_with_code" else hosted()
    read = read_call(Structured(llm=llm, way=way), "query", QUESTION, reply=reply)
    assert (list(read.rounds), ran) == ([], [])
    assert read.barrier


def test_nothing_is_asked_behind_an_error() -> None:
    read = read_call(Guarded(llm=hosted()), "query", QUESTION, reply=lambda prompt: says("many"))
    assert [len(each) for each in read.rounds] == [1]
    assert isinstance(read.error, ValueError)


def test_a_loop_of_judgements_by_a_hosted_model_is_a_batch() -> None:
    read = read_call(GradingPostprocessor(llm=hosted()), "postprocess_nodes", found(4), QueryBundle(QUESTION))
    assert [len(each) for each in read.rounds] == [4]


# --- nothing of the user's runs early --------------------------------------------------------------------------------

ran: list[str] = []


def _effects(component: Any, stage: Stage) -> Any:
    """What the user's code did, and what was asked."""
    return list(ran), _requests(component, stage)


class OwnTexts(str):
    """A text with a method of its own."""

    def __format__(self, spec: str) -> str:
        ran.append("format")
        return "x"


class Watching(BaseModel):
    """A validator of the user's."""

    text: str = Field(default_factory=lambda: ran.append("factory") or "x")  # type: ignore[func-returns-value]


class Attack(CustomQueryEngine):
    """Code of the user's wherever it may hide; each `trap` before two requests."""

    llm: LLM
    trap: Any = None

    @property
    def hidden(self) -> str:
        ran.append("property")
        return "hidden"

    def _note(self) -> str:
        ran.append("method")
        return "noted"

    def custom_query(self, query_str: str) -> str:
        return TRAPS[self.trap](self, query_str)


def _reads_a_property(self: Attack, question: str) -> str:
    return self.llm.complete(f"{self.hidden} {question}").text + self.llm.complete("again").text


def _calls_a_method(self: Attack, question: str) -> str:
    return self.llm.complete(f"{self._note()} {question}").text + self.llm.complete("again").text


def _formats_a_text(self: Attack, question: str) -> str:
    return self.llm.complete(f"{OwnTexts(question)}").text + self.llm.complete("again").text


def _makes_a_model(self: Attack, question: str) -> str:
    return self.llm.complete(Watching().text).text + self.llm.complete("again").text


def _prints_and_counts(self: Attack, question: str) -> str:
    ran.append("appended")
    return self.llm.complete(question).text + self.llm.complete("again").text


TRAPS = {
    each.__name__: each
    for each in (_reads_a_property, _calls_a_method, _formats_a_text, _makes_a_model, _prints_and_counts)
}


@pytest.mark.parametrize("trap", TRAPS)
def test_nothing_of_the_users_runs_while_it_is_read(trap: str) -> None:
    ran.clear()
    read_call(Attack(llm=Stage().engines.model, trap=trap), "query", QUESTION)
    assert ran == []


@pytest.mark.parametrize("trap", TRAPS)
def test_effects_happen_once(trap: str) -> None:
    def build(stage: Stage) -> Any:
        ran.clear()
        return Attack(llm=stage.engines.model, trap=trap)

    same(
        build, asking("query", "sync", QUESTION), look=lambda component, stage: [list(ran), _requests(component, stage)]
    )


class Counting(CustomLLM):
    """A model of the user's, which counts."""

    @property
    def metadata(self) -> Any:
        from llama_index.core.llms import LLMMetadata

        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        from llama_index.core.llms import CompletionResponse

        ran.append(prompt)
        return CompletionResponse(text=prompt)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError


def test_a_model_of_the_users_is_not_asked_ahead() -> None:
    ran.clear()
    read = read_call(Asking(llm=Counting(), ask="_options"), "query", QUESTION)
    assert (ran, read.rounds, read.barrier) == ([], [], "it asks Counting")


class Overriding(GradingQueryEngine):
    """Another `query`."""

    def query(self, str_or_query_bundle: Any) -> Any:
        ran.append("query")
        return super().query(str_or_query_bundle)


def test_a_query_of_the_users_is_read_up_to_llamaindexs_own() -> None:
    def build(stage: Stage) -> Any:
        ran.clear()
        return Overriding(retriever=vector_retriever(stage, top_k=4), llm=stage.engines.model)

    same(
        build, asking("query", "sync", QUESTION), look=lambda component, stage: [list(ran), _requests(component, stage)]
    )
    assert read_call(build(Stage()), "query", QUESTION).barrier == "it uses query of super()"


class Keeping(BaseRetriever):
    """Remembers what it was asked."""

    def __init__(self, inner: BaseRetriever, llm: LLM) -> None:
        self.asked: list[str] = []
        self._inner, self._llm = inner, llm
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        better = self._llm.complete(f"Better: {query_bundle.query_str}").text
        self.asked.append(better)
        return self._inner.retrieve(better)


def test_what_a_component_remembers_does_not_end_reading() -> None:
    def build(stage: Stage) -> Any:
        return Keeping(vector_retriever(stage), stage.engines.model)

    read = read_call(build(Stage()), "retrieve", QUESTION)
    assert not read.barrier
    assert [len(each) for each in read.rounds] == [1, 1]
    same(build, asking("retrieve", "sync", QUESTION), look=lambda c, stage: [c.asked, _requests(c, stage)])


def test_a_template_with_a_function_is_left_to_the_run() -> None:
    def loud(**kwargs: Any) -> str:
        ran.append("mapped")
        return "x"

    class Mapping(CustomQueryEngine):
        llm: LLM
        prompt: PromptTemplate

        def custom_query(self, query_str: str) -> str:
            return self.llm.predict(self.prompt, query_str=query_str)

    def build(stage: Stage) -> Any:
        ran.clear()
        prompt = PromptTemplate("{query_str} {more}", function_mappings={"more": loud})
        return Mapping(llm=stage.engines.model, prompt=prompt)

    component = build(Stage())
    assert read_call(component, "query", QUESTION).rounds == []
    assert ran == []
    same(build, asking("query", "sync", QUESTION), look=_effects)


def test_a_component_that_changed_after_optimize_is_read_as_it_is() -> None:
    def change(processor: GradingPostprocessor) -> None:
        processor.cutoff = 0.8

    def act(component: Any) -> Any:
        return component.postprocess_nodes(found(), query_str=QUESTION)

    same(grading_postprocessor, act, change=change, look=_requests)


# --- many at once ----------------------------------------------------------------------------------------------------


class Noting(CustomQueryEngine):
    """Asks twice, and notes when it runs."""

    llm: LLM
    heard: list[str]

    def custom_query(self, query_str: str) -> str:
        draft = self.llm.complete(f"Draft {query_str}").text
        answer = self.llm.complete(f"Improve {draft}").text
        self.heard.append(query_str)
        return str(answer)


async def _together(engine: Any, count: int = 4) -> list[str]:
    return [str(each) for each in await asyncio.gather(*(engine.aquery(f"q{n}") for n in range(count)))]


def _noting(service: Service) -> Noting:
    llm = OpenAILike(
        model="m", api_base=service.url, api_key="none", is_chat_model=True, max_retries=0, context_window=4096
    )
    return Noting(llm=llm, heard=[])


@pytest.mark.parametrize("awaited", ["Draft q3", "Improve <Draft q3>"])
def test_code_that_blocks_the_event_loop_runs_when_its_replies_are_there(awaited: str) -> None:
    with served() as service:
        plain, engine = _noting(service), _noting(service)
        with counted(service) as original:
            answers = asyncio.run(_together(plain))
        service.holds, service.awaits = awaited.replace("q3", "q0"), f"chat {awaited}"
        with counted(service) as made:
            assert asyncio.run(_together(teola_plugin.optimize(engine))) == answers
        assert not service.has_waited_in_vain
        assert made == original
        assert engine.heard == plain.heard == ["q0", "q1", "q2", "q3"]


@pytest.mark.cold
def test_what_was_left_is_asked_once_another_call_has_an_answer() -> None:
    with served() as service:
        engine = _noting(service)
        service.holds, service.awaits = "Improve <Draft q0>", "chat Improve <Draft q3>"
        asyncio.run(_together(teola_plugin.optimize(engine)))
        assert not service.has_waited_in_vain
        assert engine.heard == ["q0", "q1", "q2", "q3"]


def test_a_caller_that_waits_no_more_leaves_the_turn_to_others() -> None:
    async def act(engine: Any) -> list[Any]:
        calls = [asyncio.create_task(engine.aquery(f"q{n}")) for n in range(3)]
        await asyncio.sleep(0.05)
        calls[1].cancel()
        return list(await asyncio.gather(*calls, return_exceptions=True))

    with served() as service:
        engine = _noting(service)
        service.holds, service.awaits = "Draft q0", "no such thing"
        fast = teola_plugin.optimize(engine)
        timer = threading.Timer(0.3, lambda: service.note("no such thing"))
        timer.start()
        first, second, third = asyncio.run(act(fast))
        timer.join()
        assert (str(first), type(second), str(third)) == (
            "<Improve <Draft q0>>", asyncio.CancelledError, "<Improve <Draft q2>>",
        )  # fmt: skip
        assert engine.heard == ["q0", "q2"]


# --- databases -------------------------------------------------------------------------------------------------------


class Querying(CustomQueryEngine):
    """Has a database do what a model wrote, and shows the model what came of it, ids and all."""

    rows: BaseRetriever
    llm: LLM

    def custom_query(self, query_str: str) -> str:
        said = str(self.llm.complete(f"SQL: {query_str}"))
        found = self.rows.retrieve(f"INSERT INTO said VALUES ('{said}') RETURNING word")
        return f"{len(found)} and {len(str(self.llm.complete(f'Tell of {found}')))}"


def querying(stage: Stage) -> Any:
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE said (word TEXT)"))
    stage.kept["database"] = engine
    return Querying(rows=SQLRetriever(SQLDatabase(engine)), llm=stage.engines.model)


def _written(component: Any, stage: Stage) -> Any:
    """What the database holds, and how often the model was asked."""
    with stage.kept["database"].begin() as connection:
        return [row.word for row in connection.execute(text("SELECT word FROM said"))], len(stage.engines.llm.seen)


@pytest.mark.parametrize("form", FORMS)
def test_a_database_is_asked_once_and_by_the_run(form: str) -> None:
    same(querying, asking("query", form, QUESTION), exact=form == "sync", look=_written, by_chance="Tell of")


# --- behind what is not read -----------------------------------------------------------------------------------------


def unread(function: Callable[..., Any], *args: Any) -> Any:
    return copy_context().run(function, *args)


class Behind(CustomQueryEngine):
    """Asks engines behind what is not read. `first`: what is asked before that, by what is not read or by itself."""

    engine: Any
    llm: LLM
    first: str

    def custom_query(self, query_str: str) -> str:
        words = unread(str.split, query_str)
        first: Any = ""
        if self.first == "unread":
            first = unread(self.llm.complete, words[0])
        if self.first == "read":
            first = self.llm.complete(words[0])
        said = []
        for word in words[1:3]:
            said.append(str(self.engine.query(word)))  # noqa: PERF401  one statement for each
        return f"{first} {said}"


@pytest.mark.parametrize("first", ["", "unread", "read"])
def test_what_is_read_behind_asks_nothing_twice(first: str) -> None:
    def build(stage: Stage) -> Any:
        return Behind(engine=rag(stage), llm=stage.engines.model, first=first)

    def act(component: Any) -> Any:
        return [str(component.query(QUESTION)) for _ in range(4)]

    same(build, act, look=_requests)


def test_a_run_of_a_component_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    takes = OwnRun.takes

    def noting(self: OwnRun, component: Any, enter: Callable[[], object]) -> bool:
        found = takes(self, component, enter)
        taken.extend([component] * found)
        return found

    monkeypatch.setattr(OwnRun, "takes", noting)

    def build(stage: Stage) -> Any:
        return Behind(engine=rag(stage), llm=stage.engines.model, first="read")

    def act(component: Any) -> Any:
        answers = []
        for _ in range(3):
            answers.append(str(component.query(QUESTION)))
            counts.append(len(taken))
            taken.clear()
        return answers

    counts: list[int] = []
    same(build, act, ways=["patient"])
    assert 1 <= max(counts) <= 2, "its `_query` calls its `retrieve` and its `synthesize`"
