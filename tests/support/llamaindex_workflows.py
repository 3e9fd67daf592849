"""Workflows as users write them, in the forms of LlamaIndex's documentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llama_index.core import PromptTemplate, Settings
from llama_index.core.llms import LLM
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step

from tests.support.llamaindex_comparing import Stage
from tests.support.llamaindex_parts import rag, vector_retriever

RELEVANCY = PromptTemplate("Is this about {query_str}? yes or no.\n{context_str}")


class Built(Workflow):
    """Holds a retriever, an engine and a model."""

    def __init__(self, retriever: Any, engine: Any, llm: LLM, heard: list[Any], **settings: Any) -> None:
        super().__init__(timeout=60, **settings)
        self.retriever, self.engine, self.llm, self.heard = retriever, engine, llm, heard


class Retrieved(Event):
    """What was found."""

    retrieved_nodes: list[NodeWithScore]


class Judged(Event):
    """The relevant texts."""

    relevant_text: str


class Progress(Event):
    """Written to the stream."""

    msg: str


class CorrectiveRAG(Built):
    """Retrieve, judge each document, answer from those that are relevant."""

    @step
    async def retrieve(self, ctx: Context, ev: StartEvent) -> Retrieved | None:
        query_str: str | None = ev.get("query_str")
        if query_str is None:
            return None
        await ctx.store.set("query_str", query_str)
        nodes = await self.retriever.aretrieve(query_str)
        return Retrieved(retrieved_nodes=nodes)

    @step
    async def eval_relevance(self, ctx: Context, ev: Retrieved) -> Judged:
        retrieved_nodes = ev.retrieved_nodes
        query_str = await ctx.store.get("query_str")
        relevancy_results = []
        for node in retrieved_nodes:
            prompt = RELEVANCY.format(context_str=node.text, query_str=query_str)
            relevancy = await self.llm.acomplete(prompt)
            relevancy_results.append(relevancy.text.lower().strip())
        await ctx.store.set("relevancy_results", relevancy_results)
        relevant_texts = [
            node.text for node, result in zip(retrieved_nodes, relevancy_results, strict=True) if "a" in result
        ]
        return Judged(relevant_text="\n".join(relevant_texts))

    @step
    async def query_result(self, ctx: Context, ev: Judged) -> StopEvent:
        query_str = await ctx.store.get("query_str")
        result = await self.llm.acomplete(f"{ev.relevant_text}\n{query_str}")
        return StopEvent(result=str(result))


class JudgingNodes(Built):
    """One step that judges synchronously and keeps the nodes; another says so."""

    @step
    def judge(self, ev: StartEvent) -> Retrieved:
        kept = []
        for node in self.retriever.retrieve(ev.query_str):
            if "a" in Settings.llm.complete(f"Is {node.text} about {ev.query_str}?").text:
                kept.append(NodeWithScore(node=node.node, score=1.0))  # noqa: PERF401
        return Retrieved(retrieved_nodes=kept)

    @step
    async def answer(self, ctx: Context, ev: Retrieved) -> StopEvent:
        for node in ev.retrieved_nodes:
            ctx.write_event_to_stream(Progress(msg=f"kept {node.node.node_id}"))
            await self.llm.acomplete(f"Tell me of {node.text}")
        self.heard.append(len(ev.retrieved_nodes))
        return StopEvent(result="\n".join(node.text for node in ev.retrieved_nodes))


class TellingSynchronously(Built):
    """LlamaIndex itself has no loop there."""

    @step
    def judge(self, ctx: Context, ev: StartEvent) -> StopEvent:
        ctx.write_event_to_stream(Progress(msg="judging"))
        return StopEvent(result=self.llm.complete(ev.query_str).text)


class Query(Event):
    """A question of several."""

    question: str


class Answer(Event):
    """What came of it."""

    question: str
    answer: str


class SubQuestions(Built):
    """Questions are sent, answered side by side, and joined."""

    @step
    async def query(self, ctx: Context, ev: StartEvent) -> Query | None:
        questions = (await self.llm.acomplete(f"Questions for {ev.query}")).text.split()[:3]
        await ctx.store.set("count", len(questions))
        await ctx.store.set("query", ev.query)
        for question in questions:
            ctx.send_event(Query(question=question))
        return None

    @step(num_workers=3)
    async def sub_question(self, ctx: Context, ev: Query) -> Answer:
        response = await self.engine.aquery(ev.question)
        return Answer(question=ev.question, answer=str(response))

    @step
    async def combine(self, ctx: Context, ev: Answer) -> StopEvent | None:
        ready = ctx.collect_events(ev, [Answer] * await ctx.store.get("count"))
        if ready is None:
            return None
        answers = "\n\n".join(sorted(f"{each.question}: {each.answer}" for each in ready))
        first = await self.llm.acomplete(f"Combine {answers}")
        second = await self.llm.acomplete(f"Check {answers}")
        return StopEvent(result=f"{first} {second}")


class Draft(Event):
    """A text to be improved."""

    text: str
    tries: int


class Reflecting(Built):
    """A loop: write, judge by three, write again."""

    @step
    async def write(self, ctx: Context, ev: StartEvent | Draft) -> Draft | StopEvent:
        if isinstance(ev, StartEvent):
            await ctx.store.set("topic", ev.topic)
            text, tries = ev.topic, 0
        else:
            text, tries = ev.text, ev.tries
        if tries == 2:
            return StopEvent(result=text)
        votes = []
        for judge in ("critic", "friend", "owner"):
            votes.append(str(await self.llm.acomplete(f"As a {judge}: {text}")))  # noqa: PERF401
        better = await self.llm.acomplete(f"Improve {text} by {votes} for {await ctx.store.get('topic')}")
        return Draft(text=better.text, tries=tries + 1)


class Failing(Built):
    """A step that raises between two requests."""

    @step
    async def ask(self, ev: StartEvent) -> StopEvent:
        first = await self.llm.acomplete(f"First {ev.query}")
        if len(first.text) > 3:
            raise ValueError(first.text)
        return StopEvent(result=str(await self.llm.acomplete(f"Second {ev.query}")))


unread = eval("lambda heard: heard.append('asking')")
"""A function without source."""


class MakingModels(Built):
    """A template that is made in the body, and an effect in front of what is asked."""

    @step
    async def ask(self, ev: StartEvent) -> StopEvent:
        unread(self.heard)
        prompt = PromptTemplate("{kind}: {query}")
        replies = [await self.llm.apredict(prompt, kind=kind, query=ev.query) for kind in ("short", "long")]
        return StopEvent(result=replies)


class Note(Event):
    """With code of its own: reading a note makes a note."""

    text: str

    @property
    def shown(self) -> str:
        noted.append("shown")
        return self.text


noted: list[str] = []


class Noting(Built):
    """Events with properties of the user's."""

    @step
    async def begin(self, ev: StartEvent) -> Note:
        return Note(text=ev.query)

    @step
    async def ask(self, ev: Note) -> StopEvent:
        first = await self.llm.acomplete(ev.shown)
        return StopEvent(result=f"{first}{await self.llm.acomplete('again')}")


def build(kind: type[Built], **settings: Any) -> Callable[[Stage], Any]:
    def made(stage: Stage) -> Any:
        noted.clear()
        Settings.llm = stage.engines.model
        return kind(vector_retriever(stage, top_k=4), rag(stage), stage.engines.model, stage.heard, **settings)

    return made


WORKFLOWS: dict[type[Built], dict[str, Any]] = {
    CorrectiveRAG: {"query_str": "Who keeps the bees?"},
    JudgingNodes: {"query_str": "Who keeps the bees?"},
    SubQuestions: {"query": "Who keeps the bees?"},
    Reflecting: {"topic": "bees"},
    MakingModels: {"query": "Who keeps the bees?"},
    Noting: {"query": "Who keeps the bees?"},
    Failing: {"query": "Who keeps the bees?"},
}


def nodes(count: int) -> list[NodeWithScore]:
    return [NodeWithScore(node=TextNode(text=f"Hive {i}", id_=f"n{i}"), score=0.5) for i in range(count)]
