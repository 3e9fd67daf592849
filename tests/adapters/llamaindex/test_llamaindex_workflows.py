"""Original against optimized: workflows and agents. Their steps, the events they write and their results are the
same; only what they ask engines for may come sooner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step

from teola_plugin.engines import Completion
from tests.support.fakes import says
from tests.support.llamaindex_comparing import Stage, same
from tests.support.llamaindex_parts import rag, tools
from tests.support.llamaindex_query_engines import fusion_rag
from tests.support.llamaindex_replies import ToolCaller, failing, reply
from tests.support.llamaindex_world import QUESTION, digest

BY_CHANCE = r"AllAtOnce\.join|\[\w+:\d+\]|aggregate_tool_results"
"""A step that collects events runs again where another of it ended meanwhile."""

# LlamaIndex's own, where it makes the class of an agent's metaclass.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince211"),
    pytest.mark.filterwarnings("ignore:ServiceManager is deprecated:DeprecationWarning"),  # an older Workflow's own
    pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning"),  # a ReActAgent's
]

# --- workflows --------------------------------------------------------------------------------------------------------


class Found(Event):
    """What an engine answered."""

    text: str
    of: int = 0


class Progress(Event):
    """Written to the stream of events."""

    said: str


class OneByOne(Workflow):
    """Ask an engine, then a model; say so meanwhile."""

    def __init__(self, engine: Any, model: Any, heard: list[Any], **settings: Any) -> None:
        super().__init__(**settings)
        self.engine, self.model, self.heard = engine, model, heard

    @step
    async def ask(self, context: Context, event: StartEvent) -> Found:
        self.heard.append("ask")
        context.write_event_to_stream(Progress(said="asking"))
        response = await self.engine.aquery(event.question)
        await context.store.set("nodes", [node.node_id for node in response.source_nodes])
        return Found(text=str(response))

    @step
    async def sum_up(self, context: Context, event: Found) -> StopEvent:
        self.heard.append("sum up")
        async for piece in await self.model.astream_complete(f"Sum up {event.text}"):
            context.write_event_to_stream(Progress(said=piece.delta or ""))
        return StopEvent(result=[piece.text, await context.store.get("nodes")])


class AllAtOnce(OneByOne):
    """Ask three times at once, and join what comes."""

    @step
    async def ask(self, context: Context, event: StartEvent) -> Found | None:  # type: ignore[override]
        for i in range(3):
            context.send_event(Found(text=f"{event.question} {i}", of=i))
        return None

    @step(num_workers=3)
    async def sum_up(self, context: Context, event: Found) -> Progress:  # type: ignore[override]
        response = await self.engine.aquery(event.text)
        return Progress(said=f"{event.of}: {response}")

    @step
    async def join(self, context: Context, event: Progress) -> StopEvent | None:
        said = context.collect_events(event, [Progress] * 3)
        if said is None:
            return None
        summed = await self.model.acomplete("\n".join(sorted(each.said for each in said)))
        return StopEvent(result=summed.text)


class Blocking(OneByOne):
    """Steps that are no coroutines."""

    @step
    def ask(self, event: StartEvent) -> Found:  # type: ignore[override]
        return Found(text=str(self.engine.query(event.question)))

    @step
    def sum_up(self, event: Found) -> StopEvent:  # type: ignore[override]
        return StopEvent(result=self.model.complete(f"Sum up {event.text}").text)


WORKFLOWS = (OneByOne, AllAtOnce, Blocking)


def built(kind: type[Workflow], *, answer: Callable[[str], Any] = reply, **settings: Any) -> Callable[[Stage], Any]:
    def build(stage: Stage) -> Any:
        stage.engines.llm.answer = answer
        return kind(fusion_rag(stage, False), stage.engines.model, stage.heard, **settings)

    return build


def running(**arguments: Any) -> Callable[[Any], Any]:
    """Run it; the events of its stream, and its result or error."""

    async def act(workflow: Any) -> Any:
        handler = workflow.run(**arguments)
        events = [_event(event) async for event in handler.stream_events()]
        try:
            result = await handler
        except Exception as e:
            result = e
        return [events, result, type(workflow), type(handler)]

    return act


def _event(event: Any) -> list[Any]:
    """An event by its name and what it says, times apart."""
    return [type(event).__name__, {name: str(value) for name, value in event.items()}, str(event)]


@pytest.mark.parametrize("is_verbose", [False, True])
@pytest.mark.parametrize("kind", WORKFLOWS)
def test_steps_events_and_results(kind: type[Workflow], is_verbose: bool) -> None:
    outcome = same(built(kind, verbose=is_verbose), running(question=QUESTION), exact=False, by_chance=BY_CHANCE)
    assert outcome[1]
    assert not (isinstance(outcome[1][0], str) and outcome[1][0].endswith("Error"))


@pytest.mark.parametrize("kind", WORKFLOWS)
def test_a_step_that_raises(kind: type[Workflow]) -> None:
    """With branches: how far the others come is LlamaIndex's chance."""
    build = built(kind, answer=failing("answers", RuntimeError("the model broke")))
    same(build, running(question=QUESTION), exact=False, by_chance="." if kind is AllAtOnce else None)


@pytest.mark.parametrize("kind", WORKFLOWS)
def test_a_workflow_without_a_question(kind: type[Workflow]) -> None:
    same(built(kind), running(), exact=False)


def test_steps_that_are_free_functions() -> None:
    def build(stage: Stage) -> Any:
        class Free(Workflow):
            pass

        engine, model = rag(stage), stage.engines.model

        @step(workflow=Free)
        async def ask(event: StartEvent) -> Found:
            return Found(text=str(await engine.aquery(event.question)))

        @step(workflow=Free)
        async def sum_up(event: Found) -> StopEvent:
            return StopEvent(result=(await model.acomplete(event.text)).text)

        return Free(timeout=20)

    assert same(build, running(question=QUESTION), exact=False)[1]


def test_many_runs_at_once() -> None:
    async def act(workflow: Any) -> Any:
        return await asyncio.gather(*(workflow.run(question=f"{QUESTION} {i}") for i in range(4)))

    same(built(OneByOne), act, exact=False, look=lambda workflow, stage: sorted(stage.heard), ways=["racing"])


def test_a_context_is_carried_over() -> None:
    async def act(workflow: Any) -> Any:
        context = Context(workflow)
        first = await workflow.run(ctx=context, question=QUESTION)
        return [first, await context.store.get("nodes"), await workflow.run(ctx=context, question="And the hives?")]

    same(built(OneByOne), act, exact=False)


@pytest.mark.parametrize("kind", [OneByOne, AllAtOnce])
def test_a_workflow_that_is_cancelled(kind: type[Workflow]) -> None:
    async def act(workflow: Any) -> Any:
        handler = workflow.run(question=QUESTION)
        await asyncio.sleep(0)
        await handler.cancel_run()
        return type((await asyncio.gather(handler, return_exceptions=True))[0])

    same(built(kind), act, exact=False, by_chance=".")


def test_changes_after_optimize() -> None:
    def change(workflow: Any) -> None:
        workflow.engine = rag(Stage(), topic="hives")
        workflow.model.max_tokens = 7

    same(built(OneByOne), running(question=QUESTION), exact=False, change=change)


# --- agents -----------------------------------------------------------------------------------------------------------


def react(prompt: str) -> Completion:
    """Two thoughts that ask a tool, and an answer; what is no thought, as ever."""
    if "Action Input" not in prompt:
        return reply(prompt)
    observed = prompt.rsplit("Current Conversation", 1)[-1].count("Observation:")
    mark = digest(prompt)[:6]
    if observed < 2:
        topic = ("bees", "hives")[observed]
        return says(f'Thought: I need a tool.\nAction: {topic}\nAction Input: {{"input": "What of {mark}?"}}\n')
    return says(f"Thought: I can answer without using any more tools.\nAnswer: It is {mark}.")


def react_agent(stage: Stage) -> Any:
    stage.engines.llm.answer = react
    return ReActAgent(
        tools=tools(stage), llm=wide_model(stage), name="keeper", description="Knows bees.", streaming=True
    )


def wide_model(stage: Stage) -> Any:
    stage.engines.model.context_window = 30_000
    return stage.engines.model


def function_agent(stage: Stage, name: str = "keeper", **settings: Any) -> Any:
    stage.engines.llm.answer = reply
    return FunctionAgent(tools=tools(stage), llm=ToolCaller(), name=name, description="Knows bees.", **settings)


def plain_function_agent(stage: Stage) -> Any:
    return function_agent(stage, streaming=False)


def agent_workflow(stage: Stage) -> Any:
    return AgentWorkflow(agents=[function_agent(stage)], root_agent="keeper")


AGENTS = (react_agent, function_agent, plain_function_agent, agent_workflow)


@pytest.mark.parametrize("make", AGENTS)
def test_agents(make: Callable[[Stage], Any]) -> None:
    async def act(agent: Any) -> Any:
        memory = ChatMemoryBuffer.from_defaults(token_limit=20_000)
        handler = agent.run(QUESTION, memory=memory)
        events = [[type(event).__name__, str(event)] async for event in handler.stream_events()]
        answer = await handler
        calls = [[call.tool_name, call.tool_kwargs, str(call.tool_output)] for call in answer.tool_calls]
        said = [[message.role.value, message.content] for message in memory.get_all()]
        return [sorted(events), str(answer), sorted(calls, key=str), said, type(agent)]

    outcome = same(make, act, exact=False, by_chance=BY_CHANCE)
    assert len(outcome) > 2, outcome
    assert len(outcome[2]) == 2


@pytest.mark.parametrize("make", AGENTS)
def test_agents_whose_tools_fail(make: Callable[[Stage], Any]) -> None:
    def build(stage: Stage) -> Any:
        agent = make(stage)

        def fail(text: str) -> Any:
            raise ConnectionError("gone")

        stage.engines.embedder.answer = fail
        return agent

    async def act(agent: Any) -> Any:
        return str(await agent.run(QUESTION, memory=ChatMemoryBuffer.from_defaults(token_limit=20_000)))

    same(build, act, exact=False, by_chance=BY_CHANCE)
