"""Workflows of the user's own: each step is read as it begins, and LlamaIndex's engine runs them as ever."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import LLM, CompletionResponse, MockLLM
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import TextNode
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step
from llama_index.llms.openai_like import OpenAILike
from pydantic import field_validator

import teola_plugin
from teola_plugin.adapters.llamaindex.own_parts import own_steps
from teola_plugin.adapters.llamaindex.reading import LlamaIndexAsker
from teola_plugin.adapters.llamaindex.reading_builders import Builder, maker_of
from teola_plugin.adapters.llamaindex.reading_workflows import StepContext
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Barrier, Opaque, Pending
from tests.adapters.llamaindex.test_llamaindex_own import slowly
from tests.adapters.llamaindex.test_llamaindex_workflows import BY_CHANCE, running
from tests.support.llamaindex_comparing import Stage, same
from tests.support.llamaindex_parts import local_index
from tests.support.llamaindex_reading import Found, reading
from tests.support.llamaindex_workflows import (
    WORKFLOWS,
    Answer,
    Built,
    CorrectiveRAG,
    Draft,
    Failing,
    Judged,
    JudgingNodes,
    MakingModels,
    Note,
    Noting,
    Query,
    Reflecting,
    Retrieved,
    SubQuestions,
    TellingSynchronously,
    build,
    nodes,
    noted,
)
from tests.support.llamaindex_world import QUESTION

Resource = pytest.importorskip("workflows.resource").Resource

if not hasattr(Reflecting.write, "_step_config"):
    pytest.skip("steps are read from llama-index-workflows 2 on", allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore:ServiceManager is deprecated:DeprecationWarning"),  # an older Workflow's own
]


def _requests(workflow: Any, stage: Stage) -> Any:
    return sorted(stage.engines.llm.seen), sorted(map(str, stage.engines.embedder.seen)), list(noted)


@pytest.mark.parametrize("kind", WORKFLOWS)
def test_events_results_and_requests_are_the_same(kind: type[Built]) -> None:
    by_chance = BY_CHANCE + r"|SubQuestions\.combine|Answer" if kind is SubQuestions else None
    look = None if kind is Failing else _requests  # an engine of this process may be asked behind what may raise
    assert same(build(kind), running(**WORKFLOWS[kind]), exact=False, look=look, by_chance=by_chance)


@pytest.mark.parametrize(("kind", "least"), [(CorrectiveRAG, 5), (JudgingNodes, 4), (Reflecting, 6), (SubQuestions, 2)])
def test_steps_find_what_was_asked_ahead(kind: type[Built], least: int) -> None:
    by_chance = BY_CHANCE + r"|SubQuestions\.combine|Answer" if kind is SubQuestions else None
    same(build(kind), running(**WORKFLOWS[kind]), exact=False, least_hits=least, by_chance=by_chance)


def test_a_context_is_carried_over_from_run_to_run() -> None:
    async def act(workflow: Any) -> Any:
        context = Context(workflow)
        first = await workflow.run(ctx=context, **WORKFLOWS[CorrectiveRAG])
        return [first, await context.store.get("query_str"), await workflow.run(ctx=context, query_str="And honey?")]

    same(build(CorrectiveRAG), act, exact=False, look=_requests)


def test_many_runs_at_once() -> None:
    async def act(workflow: Any) -> Any:
        return await asyncio.gather(*(workflow.run(query_str=f"{QUESTION} {i}") for i in range(3)))

    same(build(CorrectiveRAG), act, exact=False, look=_requests)


# --- what is asked when ----------------------------------------------------------------------------------------------


def read_step(
    kind: type[Workflow], name: str, event: Any, state: dict[str, Any] | None = None, *, is_steady: bool = True,
    collected: Any = (), llm: Any = None,
) -> Found:  # fmt: skip
    """Read a step that begins with this event and state."""
    workflow = build(kind)(Stage())  # type: ignore[arg-type]
    workflow.llm = llm or workflow.llm
    function = vars(kind)[name]
    config = function._step_config

    def program(asker: LlamaIndexAsker, run: Run, given: Any) -> Any:
        is_async = asyncio.iscoroutinefunction(function)
        context = StepContext(given[1], False, {"default": given[2]}, lambda waits: is_steady, is_async)
        values = {config.event_name: given[0]}
        if config.context_parameter:
            values[config.context_parameter] = Opaque(context, is_own=True)
        found = call(run, run.load(function), (run.load(workflow),), values)
        return found.force() if type(found) is Pending else found

    return reading(program, [event, state or {}, list(collected)], is_async=asyncio.iscoroutinefunction(function))


@pytest.mark.parametrize(
    ("kind", "name", "event", "state", "rounds"),
    [
        (CorrectiveRAG, "retrieve", StartEvent(query_str=QUESTION), {}, [1]),
        (CorrectiveRAG, "retrieve", StartEvent(other=1), {}, []),
        (CorrectiveRAG, "eval_relevance", Retrieved(retrieved_nodes=nodes(5)), {"query_str": QUESTION}, [5]),
        (CorrectiveRAG, "query_result", Judged(relevant_text="x"), {"query_str": QUESTION}, [1]),
        (JudgingNodes, "judge", StartEvent(query_str=QUESTION), {}, [1, 4]),
        (JudgingNodes, "answer", Retrieved(retrieved_nodes=nodes(3)), {}, [3]),
        (TellingSynchronously, "judge", StartEvent(query_str=QUESTION), {}, []),
        (SubQuestions, "query", StartEvent(query=QUESTION), {}, [1]),
        (SubQuestions, "sub_question", Query(question="q"), {}, [1]),
        (Reflecting, "write", StartEvent(topic="bees"), {}, [3, 1]),
        (Reflecting, "write", Draft(text="x", tries=1), {"topic": "bees"}, [3, 1]),
        (Reflecting, "write", Draft(text="x", tries=2), {"topic": "bees"}, []),
        (MakingModels, "ask", StartEvent(query=QUESTION), {}, []),  # an effect comes first
    ],
)
def test_what_a_step_asks_together(kind: Any, name: str, event: Any, state: Any, rounds: list[int]) -> None:
    read = read_step(kind, name, event, state)
    assert ([len(each) for each in read.rounds], read.error) == (rounds, None)


class Handed(Built):
    """Gets its parts with the event."""

    @step
    async def ask(self, ev: StartEvent) -> StopEvent:
        llm, index = ev.get("llm"), ev.index
        if index is None:
            return StopEvent(result=None)
        return StopEvent(result=[str(await llm.acomplete(text)) for text in ev.get("texts", [])])


def test_parts_that_come_with_an_event_are_used() -> None:
    index, model = object(), Stage().engines.model
    read = read_step(Handed, "ask", StartEvent(llm=model, index=index, texts=["a", "b", "c"]))
    assert ([len(each) for each in read.rounds], read.barrier) == ([3], "")

    async def act(workflow: Any) -> Any:
        return await workflow.run(llm=workflow.llm, index=index, texts=["a", "b", "c"])

    same(build(Handed), act, exact=False, look=_requests)


class Indexed(Workflow):
    """Holds an index, and makes what asks it where it is asked."""

    def __init__(self, index: Any, **settings: Any) -> None:
        super().__init__(timeout=60, **settings)
        self.index = index

    async def find(self, query: str) -> str:
        nodes = await self.index.as_retriever(similarity_top_k=2).aretrieve(query)
        return " ".join(node.text for node in nodes)

    @step
    async def ask(self, ev: StartEvent) -> StopEvent:
        said = [await self.find(f"{ev.query} {n}") for n in range(3)]
        for n in range(2):
            said.append(str(await self.index.as_query_engine(similarity_top_k=1).aquery(f"Who is {n}?")))  # noqa: PERF401
        return StopEvent(result=said)


def indexed(stage: Stage) -> Any:
    Settings.llm = stage.engines.model
    Settings.llm.callback_manager = Settings.callback_manager  # as any engine sets it
    return Indexed(local_index(stage, "bees"))


def test_what_an_index_makes_is_used_where_it_is_made() -> None:
    same(indexed, running(query=QUESTION), exact=False, look=_requests, least_hits=6)


class Modelled(Indexed):
    """Has an index make an engine of a model."""

    def __init__(self, index: Any, llm: Any, **settings: Any) -> None:
        super().__init__(index, **settings)
        self.llm = llm

    @step
    async def ask(self, ev: StartEvent) -> StopEvent:
        engine = self.index.as_query_engine(llm=self.llm, response_mode=ResponseMode.TREE_SUMMARIZE, similarity_top_k=1)
        return StopEvent(result=[str(await engine.aquery(f"{ev.query} {n}")) for n in range(3)])


def modelled(stage: Stage) -> Any:
    stage.engines.model.callback_manager = Settings.callback_manager  # as any engine sets it
    return Modelled(local_index(stage, "bees"), stage.engines.model)


def test_an_engine_of_a_given_model_is_used_where_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_llm", None)
    same(modelled, running(query=QUESTION), exact=False, look=_requests, least_hits=6)


def test_a_model_keeps_its_callbacks_until_the_run_makes_the_engine() -> None:
    workflow = modelled(Stage())
    for callbacks in (workflow.llm.callback_manager, CallbackManager()):
        workflow.llm.callback_manager = callbacks
        read = read_on(workflow, lambda self: str(self.index.as_query_engine(llm=self.llm).query("a")))
        assert ("callbacks" in read.barrier) is (callbacks is not Settings.callback_manager)
        assert workflow.llm.callback_manager is callbacks


def test_an_engine_of_a_model_of_the_users_is_not_made_early() -> None:
    workflow = modelled(Stage())
    workflow.llm = _OwnModel()
    noted.clear()
    read = read_on(workflow, lambda self: str(self.index.as_query_engine(llm=self.llm).query("a")))
    assert "without a known model" in read.barrier
    assert not noted


def test_an_index_that_has_got_more_nodes_makes_nothing_again() -> None:
    """The run has changed the index, and may have asked the first retriever before."""
    index, made = local_index(Stage(), "bees"), Builder(lambda run: None)
    first = _made_of(made, index)
    assert _made_of(made, index) is first
    index.insert_nodes([TextNode(text="A new hive.")])
    with pytest.raises(Barrier, match="index that has changed"):
        _made_of(made, index)


def _made_of(builder: Builder, index: Any) -> Any:
    make = maker_of(index, "as_retriever")
    assert make is not None
    return builder.method(index, "as_retriever", make).handler(Run(LlamaIndexAsker(is_async=False)), (), {}).held


class _OwnIndex(VectorStoreIndex):
    def as_retriever(self, **settings: Any) -> Any:
        noted.append("made")
        return super().as_retriever(**settings)


def test_an_index_of_the_users_makes_nothing_early() -> None:
    workflow, made = indexed(Stage()), len(noted)
    workflow.index.__class__ = _OwnIndex
    assert not read_on(workflow, lambda self: self.index.as_retriever().retrieve("a")).rounds
    workflow = indexed(Stage())
    vars(workflow.index)["as_retriever"] = lambda **settings: noted.append("made")
    assert not read_on(workflow, lambda self: self.index.as_retriever().retrieve("a")).rounds
    assert len(noted) == made


def test_a_replaced_method_of_indexes_makes_nothing_early(monkeypatch: pytest.MonkeyPatch) -> None:
    workflow, made = indexed(Stage()), len(noted)
    monkeypatch.setattr(VectorStoreIndex, "as_retriever", lambda self, **settings: noted.append("made"))
    assert not read_on(workflow, lambda self: self.index.as_retriever().retrieve("a")).rounds
    assert len(noted) == made


class _OwnModel(MockLLM):
    @property
    def metadata(self) -> Any:
        noted.append("metadata")
        return super().metadata


def test_metadata_of_a_model_of_the_users_is_not_read_early(monkeypatch: pytest.MonkeyPatch) -> None:
    workflow = indexed(Stage())
    monkeypatch.setattr(Settings, "_llm", _OwnModel())
    noted.clear()
    read = read_on(workflow, lambda self: str(self.index.as_query_engine().query("a")))
    assert "without a known model" in read.barrier
    assert not noted


def test_a_stream_of_an_engine_made_there_is_left_alone() -> None:
    read = read_on(indexed(Stage()), lambda self: str(self.index.as_query_engine(streaming=True).query("a")))
    assert "as_query_engine in an unusual way" in read.barrier


def test_no_model_is_made_up_for_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    workflow = indexed(Stage())
    monkeypatch.setattr(Settings, "_llm", None)
    assert "llm of Settings" in read_on(workflow, lambda self: self.index.as_query_engine().query("a")).barrier


def read_on(workflow: Any, function: Any) -> Found:
    """Read a function of a workflow."""
    return reading(lambda asker, run, given: call(run, run.load(function), (run.load(workflow),), {}), [])


async def _set_model() -> LLM:
    return Settings.llm


class Resourceful(Workflow):
    """Holds nothing: LlamaIndex hands a step the objects that the step names."""

    @step
    async def ask(self, ev: StartEvent, llm: Annotated[LLM, Resource(_set_model)]) -> StopEvent:
        return StopEvent(result=[str(await llm.acomplete(f"{ev.query} {n}")) for n in range(3)])


def test_models_that_a_workflow_makes_for_its_steps_are_used() -> None:
    def made(stage: Stage) -> Any:
        Settings.llm = stage.engines.model
        return Resourceful(timeout=60)

    same(made, running(query=QUESTION), exact=False, look=_requests, least_hits=2)


def test_what_was_collected_is_joined() -> None:
    answers = [Answer(question=f"q{i}", answer="a") for i in range(3)]
    assert read_step(SubQuestions, "combine", answers[2], {"count": 3}, collected=answers[:1]).rounds == []
    read = read_step(SubQuestions, "combine", answers[2], {"count": 3}, collected=answers[:2])
    assert [len(each) for each in read.rounds] == [2]
    assert "q0: a\n\nq1: a\n\nq2: a" in read.prompts[0]


def test_a_state_that_may_change_is_not_read() -> None:
    event = Retrieved(retrieved_nodes=nodes(2))
    read = read_step(CorrectiveRAG, "eval_relevance", event, {"query_str": QUESTION}, is_steady=False)
    assert (read.rounds, read.barrier) == ([], "it reads what other steps may change meanwhile")


def test_what_a_step_stores_it_finds_again() -> None:
    read = read_step(Reflecting, "write", StartEvent(topic="bees"), is_steady=False)
    assert [len(each) for each in read.rounds] == [3, 1]


def test_nothing_is_asked_behind_a_step_that_raises() -> None:
    model = OpenAILike(model="m", api_base="http://127.0.0.1:9/v1", api_key="k", is_chat_model=True)
    read = read_step(Failing, "ask", StartEvent(query=QUESTION), llm=model)
    assert isinstance(read.error, ValueError)
    assert [len(each) for each in read.rounds] == [1]


def test_properties_of_events_are_read_and_do_not_run() -> None:
    noted.clear()
    read = read_step(Noting, "ask", Note(text="x"))
    assert noted == []
    assert [len(each) for each in read.rounds] == [2]


def test_explain_shows_each_step() -> None:
    twin: Any = teola_plugin.optimize(build(CorrectiveRAG)(slowly()))
    asyncio.run(_run(twin))
    said = " ".join(twin.explain().split())
    assert "CorrectiveRAG.eval_relevance: eval_relevance (llamaindex_workflows.py:" in said
    assert said.count("read whole") == 3


async def _run(workflow: Any) -> Any:
    return await workflow.run(**WORKFLOWS[CorrectiveRAG])


def test_explain_names_the_construct_that_ends_reading() -> None:
    twin: Any = teola_plugin.optimize(build(MakingModels)(slowly()))

    async def act() -> Any:
        return await twin.run(**WORKFLOWS[MakingModels])

    asyncio.run(act())
    said = " ".join(twin.explain().split())
    assert "read up to llamaindex_workflows.py:" in said or "read on behind llamaindex_workflows.py:" in said
    assert "whose source cannot be read" in said


# --- the state of a workflow -----------------------------------------------------------------------------------------


class Racing(Built):
    """A step changes what another reads after it has waited."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Query | None:
        await ctx.store.set("word", "old")
        ctx.send_event(Query(question="a"))
        ctx.send_event(Draft(text="b", tries=0))
        return None

    @step
    async def reads(self, ctx: Context, ev: Query) -> StopEvent | None:
        await self.llm.acomplete("wait")
        while await ctx.store.get("word") == "old":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        reply = await self.llm.acomplete(f"The word is {await ctx.store.get('word')}")
        return StopEvent(result=str(reply))

    @step
    async def writes(self, ctx: Context, ev: Draft) -> None:
        await ctx.store.set("word", "new")


def test_a_step_sees_what_another_writes_while_it_waits() -> None:
    same(build(Racing), running(query=QUESTION), exact=False, look=_requests)


def test_events_are_the_same_objects_to_the_steps() -> None:
    """A reply is the run's own, not the reader's copy."""
    kept: list[Any] = []

    class Keeping(Built):
        @step
        async def ask(self, ev: StartEvent) -> StopEvent:
            reply = await self.llm.acomplete(ev.query)
            kept.append(reply)
            return StopEvent(result=reply)

    def act(workflow: Any) -> Any:
        return running(query=QUESTION)(workflow)

    same(build(Keeping), act, exact=False, look=_requests)
    assert all(type(each) is CompletionResponse for each in kept)


# --- nothing of the user's runs early --------------------------------------------------------------------------------


class Checked(Event):
    """Its fields are checked by the user's code."""

    text: str

    @field_validator("text")
    @classmethod
    def check(cls, text: str) -> str:
        noted.append("checked")
        return text


class Prepared(Event):
    """Does something when it is made."""

    def __init__(self, **fields: Any) -> None:
        noted.append("made")
        super().__init__(**fields)


class Looked(Event):
    """Says itself what it has."""

    def __getattr__(self, name: str) -> Any:
        noted.append(name)
        return super().__getattr__(name)


class Hiding(Built):
    """Makes and uses events with code."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Checked | Looked:
        reply = await self.llm.acomplete(f"{ev.query}")
        ctx.write_event_to_stream(Prepared(said="x"))
        await self.llm.acomplete("after an event that does something")
        return Checked(text=reply.text) if ev.query else Looked(text="y")

    @step
    async def end(self, ev: Checked | Looked) -> StopEvent:
        return StopEvent(result=str(await self.llm.acomplete(f"{ev.text}")))


@pytest.mark.parametrize(
    ("name", "event"),
    [("begin", StartEvent(query=QUESTION)), ("end", Checked(text="x")), ("end", Looked(text="x"))],
)
def test_code_of_events_does_not_run(name: str, event: Any) -> None:
    read = read_step(Hiding, name, event)  # which begins with nothing noted
    assert noted == []
    assert read.error is None


def test_events_with_code_do_as_much_as_ever() -> None:
    same(build(Hiding), running(query=QUESTION), exact=False, look=_requests)


class Meta(type(Built)):  # type: ignore[misc]
    """A metaclass of the user's."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class OfMeta(Built, metaclass=Meta):
    """Whose attributes may be anything."""

    @step
    async def ask(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=str(await self.llm.acomplete(f"{ev.query}")))


def test_a_workflow_with_a_metaclass_is_left_to_the_run() -> None:
    assert read_step(OfMeta, "ask", StartEvent(query=QUESTION)).rounds == []
    same(build(OfMeta), running(query=QUESTION), exact=False, look=_requests)


class Showing(Built):
    """A property beside its steps."""

    @property
    def shown(self) -> str:
        noted.append("shown")
        return "x"

    @step
    async def ask(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=str(await self.llm.acomplete(f"{ev.query}")))


def test_optimizing_a_workflow_reads_no_property_of_it() -> None:
    workflow = build(Showing)(Stage())
    noted.clear()
    assert teola_plugin.optimize(workflow) is not workflow
    assert noted == []


def test_classes_that_cannot_be_looked_at_are_left_alone() -> None:
    odd = type("Odd", (CorrectiveRAG,), {OddName("x"): 1})
    same(build(odd), running(**WORKFLOWS[CorrectiveRAG]), exact=False, look=_requests)


def test_objects_of_classes_that_cannot_be_looked_at_are_left_alone() -> None:
    workflow = build(Showing)(Stage())
    workflow.odd = type("Held", (), {OddName("x"): 1})()
    assert teola_plugin.optimize(workflow) is not workflow


class OddName(str):
    """The name of an attribute that is no plain text."""

    __slots__ = ()


# --- which steps run beside each other -------------------------------------------------------------------------------


class Ingesting(CorrectiveRAG):
    """Another step begins with the same event, and leaves the context alone."""

    @step
    async def ingest(self, ctx: Context, ev: StartEvent) -> StopEvent | None:
        return None


class Naming(CorrectiveRAG):
    """So does this one, which keeps something in the context."""

    @step
    async def name(self, ctx: Context, ev: StartEvent) -> StopEvent | None:
        await ctx.store.set("name", "x")
        return None


class NamingLater(Ingesting):
    """It leads to a step that keeps something in the context."""

    @step
    async def ingest(self, ctx: Context, ev: StartEvent) -> Draft | None:
        return None

    @step
    async def keep(self, ctx: Context, ev: Draft) -> StopEvent | None:
        return await ctx.store.set("name", "x")


ALL = frozenset({"retrieve", "eval_relevance", "query_result"})


@pytest.mark.parametrize(
    ("kind", "undisturbed"),
    [
        (CorrectiveRAG, ALL),
        (Ingesting, ALL),
        (Naming, frozenset()),
        (NamingLater, frozenset()),
        (SubQuestions, frozenset()),
        (Reflecting, frozenset({"write"})),
    ],
)
def test_steps_beside_which_none_uses_the_context(kind: type[Built], undisturbed: frozenset[str]) -> None:
    steps = own_steps(build(kind)(Stage()))
    assert steps is not None
    assert steps.undisturbed - {"ingest", "name", "keep"} == undisturbed


@pytest.mark.parametrize(("kind", "least"), [(Ingesting, 5), (Naming, 1)])
def test_a_step_may_begin_with_the_same_event(kind: type[Built], least: int) -> None:
    run = running(**WORKFLOWS[CorrectiveRAG])
    assert same(build(kind), run, exact=False, look=_requests, least_hits=least)
