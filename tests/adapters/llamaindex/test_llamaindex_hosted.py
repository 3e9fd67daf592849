"""LlamaIndex on its own default stack: embeddings and chats of a hosted service, and stores in this process."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import httpx
import pytest
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms import LLM
from llama_index.core.postprocessor import LLMRerank
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import CustomQueryEngine, RetrieverQueryEngine, TransformQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step
from llama_index.llms.openai_like import OpenAILike
from pydantic import Field

from teola_plugin import explain, optimize
from teola_plugin.adapters.configured import AsSetNow, Vector
from teola_plugin.adapters.llamaindex.hosted_embeddings import instrument_loaded, is_hosted
from teola_plugin.adapters.llamaindex.own_runs import innermost
from teola_plugin.adapters.llamaindex.reachable import reachable
from teola_plugin.adapters.llamaindex.reading_workflows import HAS_ENGINE
from teola_plugin.adapters.reader.prediction import Prediction
from teola_plugin.adapters.rehearsal import rehearse
from teola_plugin.api import optimized
from teola_plugin.events import Retired
from teola_plugin.seams import Reply
from tests.support.hosted_service import Service, asked_side_by_side, counted
from tests.support.llamaindex_world import apart

openai = pytest.importorskip("llama_index.embeddings.openai")

QUESTION = "Who keeps the hives?"
TEXTS = ("Anna keeps hive 1.", "Ben keeps hive 2.", "Carla keeps hive 3.", "Nobody keeps hive 4.")


def embedder(service: Service, **settings: Any) -> Any:
    return openai.OpenAIEmbedding(**{"api_key": "none", "api_base": service.url, "max_retries": 0, **settings})


def chat(service: Service, name: str = "m") -> Any:
    return OpenAILike(
        model=name, api_base=service.url, api_key="none", is_chat_model=True, max_retries=0, context_window=4096
    )


def retriever(service: Service, **settings: Any) -> Any:
    nodes = [TextNode(text=text, id_=f"n{number}") for number, text in enumerate(TEXTS)]
    return VectorStoreIndex(nodes, embed_model=embedder(service, **settings)).as_retriever(similarity_top_k=2)


class Splitting(CustomQueryEngine):
    """Searches for each part of a question, one after the other."""

    retriever: BaseRetriever
    llm: LLM

    def custom_query(self, query_str: str) -> str:
        found = ""
        for part in self.llm.complete(f"Split {query_str}").text.split("\n"):
            found += self.retriever.retrieve(part)[0].text
        return str(self.llm.complete(f"{query_str} by {found}"))


def splitting(service: Service) -> Any:
    return Splitting(retriever=retriever(service), llm=chat(service))


def fusing(service: Service, **settings: Any) -> Any:
    llm, searches = chat(service), [retriever(service), retriever(service)]
    prompt = "Split {query} {num_queries}"
    fusion = QueryFusionRetriever(searches, llm=llm, num_queries=3, query_gen_prompt=prompt, **settings)
    return RetrieverQueryEngine(fusion, get_response_synthesizer(llm=llm))


def plain(service: Service) -> Any:
    return RetrieverQueryEngine(retriever(service), get_response_synthesizer(llm=chat(service)))


def hyde(service: Service) -> Any:
    return TransformQueryEngine(plain(service), HyDEQueryTransform(llm=chat(service)))


ENGINES: dict[str, Callable[[Service], Any]] = {
    "splitting": splitting,
    "fusing": lambda service: fusing(service, use_async=False),
    "plain": plain,
    "hyde": hyde,
}


def asked(engine: Any, *, is_async: bool) -> str:
    return apart(lambda: str(asyncio.run(_asked(engine)) if is_async else engine.query(QUESTION)))


async def _asked(engine: Any) -> Any:
    """The answer; clients are closed while their event loop is there."""
    try:
        return await engine.aquery(QUESTION)
    finally:
        for model in reachable(engine, (BaseEmbedding,)):
            if (client := getattr(model, "_aclient", None)) is not None:
                await client.close()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("name", ENGINES)
def test_answers_and_requests_are_the_same(service: Service, name: str, is_async: bool) -> None:
    with counted(service) as original:
        answer = asked(ENGINES[name](service), is_async=is_async)
    engine = ENGINES[name](service)
    with counted(service) as built:
        fast = optimize(engine)
        assert asked(fast, is_async=is_async) == answer
    assert built == original - counted_of_storing(service, ENGINES[name])
    assert optimized(fast).reports[-1].wasted == 0


def counted_of_storing(service: Service, make: Callable[[Service], Any]) -> Any:
    with counted(service) as made:
        make(service)
    return made


@pytest.mark.parametrize("is_async", [False, True])
def test_searches_run_ahead(service: Service, is_async: bool) -> None:
    fast = optimize(splitting(service))
    service.holds, service.awaits = "embed ['hive 1']", "embed ['hive 3']"
    asked(fast, is_async=is_async)
    assert not service.has_waited_in_vain
    report = optimized(fast).reports[-1]
    assert (report.wasted, report.fallbacks) == (0, ())
    assert [e.outcome for e in report.events if isinstance(e, Retired) and e.op == "embedding"][1:] == ["hit", "hit"]


def test_each_client_gets_a_vector_of_its_own(service: Service) -> None:
    engine = splitting(service)
    model, vectors = engine.retriever._embed_model, list[Any]()
    original = type(engine.retriever)._get_nodes_with_embeddings

    def note(self: Any, bundle: Any) -> Any:
        vectors.append(bundle.embedding)
        bundle.embedding.append(1.0)
        bundle.embedding.pop()
        return original(self, bundle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(engine.retriever), "_get_nodes_with_embeddings", note)
        asked(optimize(engine), is_async=False)
    assert all(type(each) is list for each in vectors)
    assert model.get_query_embedding("hive 1") in vectors


class Own(openai.OpenAIEmbedding):  # type: ignore[misc,name-defined]
    """May do more than ask."""


def _replaced(service: Service) -> Any:
    model = embedder(service)
    vars(model)["_get_query_embedding"] = lambda query: [0.0]
    return model


@pytest.mark.parametrize(
    ("make", "is_known"),
    [
        (embedder, True),
        (lambda service: Own(api_key="none", api_base=service.url), False),
        (lambda service: embedder(service, http_client=httpx.Client()), False),
        (lambda service: embedder(service, async_http_client=httpx.AsyncClient()), False),
        (_replaced, False),
    ],
)
def test_only_stock_clients_are_known(service: Service, make: Callable[[Service], Any], is_known: bool) -> None:
    assert is_hosted(make(service)) is is_known


def test_a_cache_is_asked_in_its_place(service: Service) -> None:
    engine = RetrieverQueryEngine(
        retriever(service, embeddings_cache=SimpleKVStore()), get_response_synthesizer(llm=chat(service))
    )
    fast = optimize(engine)
    assert {each.code for each in optimized(fast).traced.breaks} == {"TB205", "TB214"}


def test_documents_are_embedded_by_the_framework_alone(service: Service) -> None:
    index = VectorStoreIndex([TextNode(text=TEXTS[0])], embed_model=embedder(service))
    fast = optimize(index)
    with counted(service) as made:
        fast.insert_nodes([TextNode(text=TEXTS[1])])
    assert made.total() == 1


def test_what_tells_vectors_apart(service: Service) -> None:
    model, other = embedder(service), embedder(service)

    def key(model: Any, method: str = "get_query_embedding", text: str = "a") -> Any:
        (asked,) = rehearse(lambda: getattr(model, method)(text))
        return asked.payload.key

    instrument_loaded()
    assert is_hosted(model)
    assert is_hosted(other)
    first = key(model)
    assert key(model) == first
    assert len({first, key(other), key(model, "get_text_embedding"), key(model, text="b")}) == 4
    model._query_engine = "another"
    assert key(model) != first


def test_two_takers_have_vectors_of_their_own() -> None:
    vector = [1.0]
    met = Vector((Reply(), True), AsSetNow.of(object()))
    assert met.taken(vector) == vector
    assert met.taken(vector) is not vector


def test_settings_that_change_are_asked_with(service: Service) -> None:
    engine = plain(service)
    fast = optimize(engine)
    engine._retriever._embed_model.additional_kwargs["dimensions"] = 8
    with counted(service) as made:
        asked(fast, is_async=False)
    assert [each for each in made if each.startswith("embed")] == [f"embed ['{QUESTION}'] 8"]


# --- handlers --------------------------------------------------------------------------------------------------------


class Counts(BaseCallbackHandler):
    """Counts what models are asked; may refuse the second request."""

    def __init__(self, *, refuses: bool) -> None:
        super().__init__([], [])
        self.refuses, self.notes = refuses, list[int]()

    def on_event_start(self, event_type: Any, *args: Any, event_id: str = "", **kwargs: Any) -> str:
        self.notes.append(1)
        if self.refuses and len(self.notes) > 1:
            raise PermissionError("the budget is spent")
        return event_id

    def on_event_end(self, *args: Any, **kwargs: Any) -> None:
        """Nothing."""

    def start_trace(self, trace_id: str | None = None) -> None:
        """Nothing."""

    def end_trace(self, *args: Any, **kwargs: Any) -> None:
        """Nothing."""


class Telling(CustomQueryEngine):
    llm: LLM
    notes: list[int]

    def custom_query(self, query_str: str) -> str:
        self.llm.complete("A")
        self.llm.complete(f"B {len(self.notes)}")
        return self.llm.complete("C").text


class Notices(BaseEventHandler):
    notes: list[int] = Field(default_factory=list)

    def handle(self, event: Any, **kwargs: Any) -> None:
        self.notes.append(1)


@pytest.mark.parametrize("kind", ["counts", "refuses", "notices"])
def test_what_handlers_note_or_refuse_is_not_asked_ahead(service: Service, kind: str) -> None:
    def made(is_fast: bool) -> Any:
        handler, notices, llm = Counts(refuses=kind == "refuses"), Notices(), chat(service)
        llm.callback_manager = CallbackManager([] if kind == "notices" else [handler])
        engine: Any = Telling.model_construct(
            llm=llm, notes=notices.notes if kind == "notices" else handler.notes, callback_manager=CallbackManager([])
        )
        dispatcher = get_dispatcher()
        with counted(service) as asked_for:
            if kind == "notices":
                dispatcher.add_event_handler(notices)
            try:
                (optimize(engine) if is_fast else engine).query(QUESTION)
            except PermissionError:
                pass
            finally:
                dispatcher.event_handlers[:] = [each for each in dispatcher.event_handlers if each is not notices]
        return asked_for

    assert made(True) == made(False)


# --- engines behind what is not read ---------------------------------------------------------------------------------


class Behind(CustomQueryEngine):
    """Asks its engine for each word, behind a call that is not read; `is_asked`: that asks for the first word, too."""

    engine: Any
    words: tuple[str, ...]
    is_asked: bool = False

    def custom_query(self, query_str: str) -> str:
        before = copy_context().run(self.prepare, query_str)
        said = []
        for word in self.words:
            said.append(str(self.engine.query(word)))  # noqa: PERF401  one statement for each
        return f"{before} {said}"

    def prepare(self, query_str: str) -> str:
        """Returns once the reading of `custom_query` has ended for now."""
        own = innermost.get()
        while own is not None and (own.prediction is None or own.prediction.is_reading or not own.prediction.may_go_on):
            time.sleep(0.005)
        return str(self.engine.query(self.words[0])) if self.is_asked else query_str


def test_an_engine_is_asked_again_while_the_run_is_in_it_behind_what_is_not_read(service: Service) -> None:
    engine = Behind(engine=plain(service), words=("hive 1", "hive 2"))
    answer = asked(engine, is_async=False)
    fast = optimize(engine)
    service.holds, service.awaits = "Query: hive 1", "embed ['hive 2']"
    assert asked(fast, is_async=False) == answer
    assert not service.has_waited_in_vain
    report = optimized(fast).reports[-1]
    assert (report.wasted, report.fallbacks) == (0, ())


@pytest.mark.parametrize("is_asked", [False, True])
@pytest.mark.parametrize("words", [("hive 1",), ("hive 1", "hive 1", "hive 1"), ("hive 1", "hive 2", "hive 1")])
def test_an_engine_behind_what_is_not_read_is_asked_as_often(
    service: Service, words: tuple[str, ...], is_asked: bool
) -> None:
    engine = Behind(engine=plain(service), words=words, is_asked=is_asked)
    with counted(service) as original:
        answer = asked(engine, is_async=False)
    fast = optimize(engine)
    with counted(service) as made:
        assert asked(fast, is_async=False) == answer
    assert made == original
    assert optimized(fast).reports[-1].wasted == 0


def test_an_engine_that_the_run_has_come_to_is_not_asked_beside_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading goes on late, when the run is in the second engine."""
    engine = Behind(engine=plain(service), words=("hive 1", "hive 2", "hive 3"))
    with counted(service) as original:
        answer = asked(engine, is_async=False)
    evaluate, service.lasts_s = Prediction._evaluate, 0.05

    def late(self: Prediction) -> None:
        time.sleep(0.13)
        evaluate(self)

    monkeypatch.setattr(Prediction, "_evaluate", late)
    fast = optimize(engine)
    with counted(service) as made:
        assert asked(fast, is_async=False) == answer
    assert made == original
    assert optimized(fast).reports[-1].wasted == 0


def test_the_value_of_an_engine_that_was_asked_before_is_not_told_from_that_time(service: Service) -> None:
    fast = optimize(Behind(engine=plain(service), words=("hive 1", "hive 2"), is_asked=True))
    asked(fast, is_async=False)
    assert "already" in str(explain(fast))


class Swapping(CustomQueryEngine):
    """Asks the model of the settings, and sets another one."""

    other: Any

    def custom_query(self, query_str: str) -> str:
        said = [str(Settings.llm.complete(f"first {n}")) for n in range(3)]
        Settings.llm = self.other
        return str([*said, *(str(Settings.llm.complete(f"second {n}")) for n in range(3))])


def test_a_model_of_the_settings_that_the_function_replaces_is_asked_as_often(service: Service) -> None:
    found = []
    service.lasts_s = 0.02
    before = Settings._llm
    try:
        for wrap in (lambda engine: engine, optimize):
            Settings.llm = chat(service)
            with counted(service) as made:
                answer = asked(wrap(Swapping(other=chat(service, "m2"))), is_async=False)
            found.append((answer, made))
    finally:
        Settings._llm = before
    assert found[0] == found[1]


# --- what comes with an event ----------------------------------------------------------------------------------------


class Given(Workflow):
    """Asks a retriever that comes with the event that begins it."""

    @step
    async def find(self, ev: StartEvent) -> StopEvent:
        first = await ev.retriever.aretrieve("hive 1")
        second = await ev.retriever.aretrieve("hive 3")
        return StopEvent(result=[each.text for each in (*first, *second)])


@pytest.mark.skipif(not HAS_ENGINE, reason="steps are read from llama-index-workflows 2 on")
def test_a_component_that_comes_with_an_event_is_asked_early(service: Service) -> None:
    async def found(workflow: Workflow) -> Any:
        given = retriever(service)
        try:
            return await workflow.run(retriever=given)
        finally:
            await given._embed_model._aclient.close()

    def run(workflow: Workflow) -> Any:
        return apart(lambda: asyncio.run(found(workflow)))

    with counted(service) as original:
        texts = run(Given())
    fast = optimize(Given())
    assert run(fast) == texts
    service.holds, service.awaits = "embed ['hive 1']", "embed ['hive 3']"
    with counted(service) as made:
        assert run(fast) == texts
    assert not service.has_waited_in_vain
    assert made == original
    assert optimized(fast).reports[-1].wasted == 0


# --- arguments that are not sent -------------------------------------------------------------------------------------


class Between(CustomQueryEngine):
    """Asks its model before and after a question; `settings`: further arguments of the question."""

    llm: LLM
    settings: dict[str, Any]

    def custom_query(self, query_str: str) -> str:
        return (
            f"{self.llm.complete('first')} {self.llm.complete(query_str, **self.settings)} {self.llm.complete('last')}"
        )


def test_a_text_that_needs_no_template_is_certain_to_be_sent(service: Service) -> None:
    asked_side_by_side(service, *_twice(service, {"formatted": True}))


@pytest.mark.parametrize(
    "settings",
    [{"extra_headers": {"X-Title": "hives", "helicone-cache": "on, 1 day"}, "temperature": 0.2, "stop": ["x"]}, {}],
)
def test_settings_and_headers_are_certain_to_be_sent(service: Service, settings: dict[str, Any]) -> None:
    asked_side_by_side(service, *_twice(service, settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"extra_headers": {"x-title": "Bienenstöcke"}},
        {"extra_headers": {"x-title": "hives\nx: y"}},
        {"extra_headers": {"x title": "hives"}},
        {"extra_headers": {"x-title": 1}},
        {"extra_headers": {"X-Stainless-Raw-Response": "true"}},
        {"stop": ["\ud800"]},
    ],
    ids=str,
)
def test_nothing_is_asked_behind_settings_that_a_client_refuses(service: Service, settings: dict[str, Any]) -> None:
    engine, *_ = _twice(service, settings)
    service.lasts_s = 0.1
    with counted(service) as original, pytest.raises(Exception) as raised:  # noqa: PT011 - of httpx, of h11
        asked(engine, is_async=False)
    with counted(service) as made, pytest.raises(raised.type):
        asked(optimize(engine), is_async=False)
    assert made == original


def test_nothing_is_asked_behind_arguments_that_a_client_may_refuse(service: Service) -> None:
    engine, *_ = _twice(service, {"formatted": True, "no_such": 1})
    fast = optimize(engine)
    with counted(service) as made, pytest.raises(TypeError, match="no_such"):
        asked(fast, is_async=False)
    assert made == {"chat first": 1}


def _twice(service: Service, settings: dict[str, Any]) -> Any:
    engine = Between(llm=chat(service), settings=settings)
    return engine, QUESTION, "chat last", lambda app: str(app.query(QUESTION))


class Rewriting(CustomQueryEngine):
    """Searches for what its model makes of a question, and for something else."""

    retriever: BaseRetriever
    llm: LLM
    makes: Any

    def custom_query(self, query_str: str) -> str:
        said = self.makes(self.llm.complete(query_str).text, query_str)
        first, second = self.retriever.retrieve(said), self.retriever.retrieve("hive 3")
        return f"{first[0].text} {second[0].text}"


def shown(said: str, question: str) -> str:
    return f"passage: {said}"


def added(said: str, question: str) -> str:
    return said + " hives"


def either(said: str, question: str) -> str:
    return said or question


@pytest.mark.parametrize("makes", [shown, added, either])
def test_what_stands_behind_a_search_for_a_text_to_come_is_asked_early(service: Service, makes: Any) -> None:
    engine = Rewriting(retriever=retriever(service), llm=chat(service), makes=makes)
    fast = optimize(engine)
    with counted(service) as original:
        answer = asked(engine, is_async=False)
    assert asked(fast, is_async=False) == answer
    service.holds, service.awaits = f"chat {QUESTION}", "embed ['hive 3']"
    with counted(service) as made:
        assert asked(fast, is_async=False) == answer
    assert not service.has_waited_in_vain
    assert made == original
    assert optimized(fast).reports[-1].wasted == 0


def whole(said: str, question: str) -> str:
    return said


def cut(said: str, question: str) -> str:
    return f"{said}"[:0]


def none_of_it(said: str, question: str) -> str:
    return ""


@pytest.mark.parametrize("makes", [whole, cut, none_of_it])
def test_nothing_is_asked_behind_a_search_for_a_text_that_may_be_empty(service: Service, makes: Any) -> None:
    """LlamaIndex makes no embedding of an empty text, and its store raises."""
    engine = Rewriting(retriever=retriever(service), llm=chat(service), makes=makes)
    service.says = ""
    with counted(service) as original, pytest.raises(TypeError) as raised:
        asked(engine, is_async=False)
    service.lasts_s = 0.1
    with counted(service) as made, pytest.raises(TypeError, match=re.escape(str(raised.value))):
        asked(optimize(engine), is_async=False)
    assert made == original


class Checking(BaseNodePostprocessor):
    """Asks about what was found, and then changes an object of the pipeline."""

    llm: LLM
    change: Any = None

    def _postprocess_nodes(self, nodes: list[Any], query_bundle: Any = None) -> list[Any]:
        for node in nodes:
            self.llm.complete(f"Check {node.text}")
        self.change()
        return nodes


def checked(service: Service, *more: Any, **settings: Any) -> tuple[Any, Checking]:
    """A query engine that checks what it has found, and its check."""
    llm = chat(service)
    check = Checking(llm=llm)
    settings = {"llm": llm, "response_mode": "accumulate", **settings}
    return RetrieverQueryEngine.from_args(retriever(service), node_postprocessors=[check, *more], **settings), check


def other_model(service: Service, part: str) -> Any:
    """A query engine whose own check gives another of its parts another model."""
    new = chat(service).model_copy(update={"model": "new"})
    reranker = LLMRerank(llm=chat(service), choice_batch_size=1)
    engine, check = checked(service, *([reranker] if part == "reranker" else ()))
    synthesizer = get_response_synthesizer(llm=new)
    changes: dict[str, Callable[[], object]] = {
        "reranker": lambda: setattr(reranker, "llm", new),
        "model": lambda: setattr(engine._response_synthesizer, "_llm", new),
        "synthesizer": lambda: setattr(engine, "_response_synthesizer", synthesizer),
    }
    check.change = changes[part]
    return engine


@pytest.mark.parametrize("part", ["reranker", "model", "synthesizer"])
def test_a_model_that_the_run_replaces_is_not_asked(part: str, service: Service) -> None:
    engine, fast = other_model(service, part), optimize(other_model(service, part))
    with counted(service) as plain:
        answer = str(engine.query(QUESTION))
    with counted(service) as made:
        assert str(fast.query(QUESTION)) == answer
    assert made == plain
    report = optimized(fast).reports[-1]
    assert (report.wasted, report.misses > 0, report.hits + report.shared > 0) == (0, True, True)


def test_a_model_that_is_replaced_between_two_calls_is_not_asked(service: Service) -> None:
    engine = RetrieverQueryEngine.from_args(retriever(service), llm=chat(service), response_mode="accumulate")
    fast = optimize(engine)
    fast.query(QUESTION)
    assert optimized(fast).reports[-1].misses == 0
    engine._response_synthesizer._llm = chat(service)
    with counted(service) as plain:
        answer = str(engine.query(QUESTION))
    with counted(service) as made:
        assert str(fast.query(QUESTION)) == answer
    assert made == plain


class Refusing(BaseRetriever):
    """Finds one text, unless it is asked about the second hive. May set how many numbers a vector has."""

    def __init__(self, model: Any = None) -> None:
        self.model = model
        super().__init__()

    def _retrieve(self, query_bundle: Any) -> list[NodeWithScore]:
        if self.model is not None:
            self.model.dimensions = 8
        elif "2" in query_bundle.query_str:
            raise ValueError("no such hive")
        return [NodeWithScore(node=TextNode(text=query_bundle.query_str, id_=query_bundle.query_str), score=0.5)]


@pytest.mark.parametrize(("changes", "use_async"), [(False, False), (True, False), (True, True)])
def test_a_search_that_takes_turns_with_a_retriever_of_the_users_is_not_made_early(
    changes: bool, use_async: bool, service: Service
) -> None:
    def outcome(made: Callable[[Any], Any]) -> Any:
        stock = retriever(service)
        both = [Refusing(stock._embed_model if changes else None), stock]
        prompt = "Split {num_queries} {query}"
        fusion = made(QueryFusionRetriever(both, chat(service), prompt, num_queries=4, use_async=use_async))
        service.forget()
        try:
            found: Any = asyncio.run(fusion.aretrieve(QUESTION)) if use_async else fusion.retrieve(QUESTION)
        except ValueError as e:
            found = str(e)
        return str(found), sorted(service.asked)

    assert outcome(optimize) == outcome(lambda fusion: fusion)


class Widening(BaseRetriever):
    """Asks a model, and then lets another retriever find more."""

    def __init__(self, llm: Any, other: Any) -> None:
        self.llm, self.other = llm, other
        super().__init__()

    def _retrieve(self, query_bundle: Any) -> list[NodeWithScore]:
        self.llm.complete(f"Look for {query_bundle.query_str}")
        self.other.similarity_top_k = 4
        return []


def test_what_a_function_on_the_loop_changes_is_changed_before_what_began_after_it(service: Service) -> None:
    def found(made: Callable[[Any], Any]) -> Any:
        stock = retriever(service)
        both = [Widening(chat(service), stock), stock]
        fusion = QueryFusionRetriever(both, chat(service), num_queries=1, use_async=True, similarity_top_k=9)
        return [node.text for node in asyncio.run(made(fusion).aretrieve(QUESTION))]

    assert len(found(lambda fusion: fusion)) == 4
    assert found(optimize) == found(lambda fusion: fusion)


# --- the vector that a retriever notes in the question ---------------------------------------------------------------


def one_question(first: Any, second: Any, llm: Any) -> str:
    question = QueryBundle("How do bees dance?")
    found = first.retrieve(question) + second.retrieve(question)
    llm.complete("What is it about?")
    return str(llm.complete(" ".join(each.text for each in found)))


def two_questions(first: Any, second: Any, llm: Any) -> str:
    found = [each for part in (first, second) for each in part.retrieve(QueryBundle("How do bees dance?"))]
    return str(llm.complete(" ".join(each.text for each in found)))


async def one_question_in_turn(first: Any, second: Any, llm: Any) -> str:
    question = QueryBundle("How do bees dance?")
    found = await first.aretrieve(question) + await second.aretrieve(question)
    return str(await llm.acomplete(" ".join(each.text for each in found)))


class TwoIndexes(BaseRetriever):
    def __init__(self, first: Any, second: Any) -> None:
        self._first, self._second = first, second
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> Any:
        found = self._first.retrieve(query_bundle) + self._second.retrieve(query_bundle)
        return sorted(found, key=lambda each: each.score or 0, reverse=True)


def of_two_indexes(first: Any, second: Any, llm: Any) -> str:
    return str(RetrieverQueryEngine.from_args(TwoIndexes(first, second), llm).query("How do bees dance?"))


@pytest.mark.parametrize("program", [one_question, two_questions, one_question_in_turn, of_two_indexes])
def test_a_question_that_was_embedded_is_not_embedded_again(service: Service, program: Any) -> None:
    parts = retriever(service), retriever(service), chat(service)

    def app() -> Any:
        return program(*parts)

    async def awaited() -> Any:
        return await program(*parts)

    def told(each: Any) -> tuple[str, Any]:
        with counted(service) as asked:
            return each(), asked

    async def told_by_coroutines(*calls: Any) -> list[tuple[str, Any]]:
        found = []
        for each in calls:
            with counted(service) as asked:
                found.append((await each(), asked))
        for part in (parts[0]._embed_model, parts[1]._embed_model, parts[2]):
            if part._aclient is not None:
                await part._aclient.close()
        return found

    if inspect.iscoroutinefunction(program):
        fast: Any = optimize(awaited)
        all_told = asyncio.run(told_by_coroutines(awaited, fast, fast, fast))
    else:
        fast = optimize(app)
        all_told = [told(each) for each in (app, fast, fast, fast)]
    assert all_told[1:] == all_told[:1] * 3
