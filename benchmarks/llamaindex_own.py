"""LlamaIndex programs of the user's own: original, optimized, and the same requests overlapped by hand.

    python benchmarks/llamaindex_own.py                     all of them
    python benchmarks/llamaindex_own.py --only workflow     rows whose name contains this

Query engines, postprocessors and workflows in the forms of LlamaIndex's documentation, on a hosted chat model: a
service on loopback, in a process of its own, that sleeps for a fixed time before each reply, however many it is asked
for. Its replies depend on the request alone. `by hand` asks for the same as early as the inputs exist and is the bound
of the row. Requests are compared as multisets, answers as they are.
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import socket
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
import typer
import uvicorn
from fastapi import FastAPI, Request
from llama_index.core import PromptTemplate, VectorStoreIndex
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import CustomQueryEngine, RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step
from llama_index.llms.openai_like import OpenAILike

from teola_plugin import optimize, runtime
from teola_plugin.demo.corpus import QUESTIONS, passages
from teola_plugin.models.llamaindex import EngineEmbedding
from teola_plugin.profile import PAPER
from teola_plugin.runtime.engines.simulated import ProfileEmbedding

QUESTION = QUESTIONS[0]
TOP_K = 6
QA = PromptTemplate("Context:\n{context_str}\nQuery: {query_str}\nAnswer: ")
RELEVANCY = PromptTemplate("Document:\n{context_str}\nIs it relevant to: {query_str}? Answer yes or no.")
SUMMARY = PromptTemplate("Summarize for the question {query_str}:\n{context_str}")
RATING = PromptTemplate("Rate how well this answers {query_str}:\n{context_str}")


# --- the service -----------------------------------------------------------------------------------------------------


def serve(door: socket.socket, reply_s: float) -> None:
    """Answer chats after a fixed time; `/asked` hands over their prompts since the last time."""
    app, asked = FastAPI(), list[str]()

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> dict[str, Any]:
        prompt = str((await request.json())["messages"])
        asked.append(prompt)
        await asyncio.sleep(reply_s)
        message = {"role": "assistant", "content": reply_to(prompt)}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}

    @app.get("/asked")
    async def told() -> list[str]:
        found = list(asked)
        asked.clear()
        return found

    uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none")).run(sockets=[door])


def reply_to(prompt: str) -> str:
    words = hashlib.sha256(prompt.encode()).hexdigest()
    if "yes or no" in prompt:
        return "no" if words[0] in "01234" else "yes"
    return " ".join(words[at : at + 6] for at in range(0, 36, 6))


@contextmanager
def service(reply_s: float) -> Iterator[str]:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        process = multiprocessing.get_context("fork").Process(target=serve, args=(door, reply_s), daemon=True)
        process.start()
        try:
            yield f"http://127.0.0.1:{door.getsockname()[1]}"
        finally:
            process.kill()


# --- programs --------------------------------------------------------------------------------------------------------


class GradingQueryEngine(CustomQueryEngine):
    """Grades each document, one after the other, and answers from those that are relevant."""

    retriever: BaseRetriever
    llm: LLM

    def custom_query(self, query_str: str) -> str:
        nodes = self.retriever.retrieve(query_str)
        relevant = []
        for node in nodes:
            grade = self.llm.complete(RELEVANCY.format(context_str=node.node.get_content(), query_str=query_str))
            if "yes" in str(grade):
                relevant.append(node.node.get_content())
        context_str = "\n\n".join(relevant)
        return str(self.llm.complete(QA.format(context_str=context_str, query_str=query_str)))


class TreeQueryEngine(CustomQueryEngine):
    """Response synthesis from scratch: summaries of summaries."""

    retriever: BaseRetriever
    llm: LLM

    def custom_query(self, query_str: str) -> str:
        texts = [node.node.get_content() for node in self.retriever.retrieve(query_str)]
        return self.combine(texts, query_str)

    def combine(self, texts: list[str], query_str: str, num_children: int = 2) -> str:
        answers = []
        for at in range(0, len(texts), num_children):
            context_str = "\n\n".join(texts[at : at + num_children])
            answers.append(self.llm.predict(SUMMARY, context_str=context_str, query_str=query_str))
        return answers[0] if len(answers) == 1 else self.combine(answers, query_str, num_children)


class RatingPostprocessor(BaseNodePostprocessor):
    """Has each node rated, and sorts them."""

    llm: LLM
    top_n: int = 3

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("Missing query bundle in extra info.")
        rated = []
        for node in nodes:
            reply = self.llm.complete(
                RATING.format(context_str=node.node.get_content(), query_str=query_bundle.query_str)
            )
            rated.append(NodeWithScore(node=node.node, score=float(sum(map(ord, reply.text)) % 97)))
        return sorted(rated, key=lambda node: node.score or 0.0, reverse=True)[: self.top_n]


class Retrieved(Event):
    """What was found."""

    nodes: list[NodeWithScore]


class Relevant(Event):
    """What is relevant of it."""

    text: str


class CorrectiveRAG(Workflow):
    """Retrieve, judge each document, answer."""

    def __init__(self, retriever: BaseRetriever, llm: LLM) -> None:
        super().__init__(timeout=120)
        self.retriever, self.llm = retriever, llm

    @step
    async def retrieve(self, ctx: Context, ev: StartEvent) -> Retrieved | None:
        query_str = ev.get("query_str")
        if query_str is None:
            return None
        await ctx.store.set("query_str", query_str)
        return Retrieved(nodes=await self.retriever.aretrieve(query_str))

    @step
    async def eval_relevance(self, ctx: Context, ev: Retrieved) -> Relevant:
        query_str = await ctx.store.get("query_str")
        results = []
        for node in ev.nodes:
            relevancy = await self.llm.acomplete(RELEVANCY.format(context_str=node.text, query_str=query_str))
            results.append(relevancy.text.lower().strip())
        relevant = [node.text for node, result in zip(ev.nodes, results, strict=True) if result == "yes"]
        return Relevant(text="\n".join(relevant))

    @step
    async def answer(self, ctx: Context, ev: Relevant) -> StopEvent:
        query_str = await ctx.store.get("query_str")
        return StopEvent(result=str(await self.llm.acomplete(QA.format(context_str=ev.text, query_str=query_str))))


class Draft(Event):
    """A text to be improved."""

    text: str
    round: int


class Reflection(Workflow):
    """Three critics, then another draft, twice."""

    def __init__(self, llm: LLM) -> None:
        super().__init__(timeout=120)
        self.llm = llm

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Draft:
        await ctx.store.set("query_str", ev.query_str)
        return Draft(text=str(await self.llm.acomplete(f"Draft an answer to {ev.query_str}")), round=0)

    @step
    async def improve(self, ctx: Context, ev: Draft) -> Draft | StopEvent:
        if ev.round == 2:
            return StopEvent(result=ev.text)
        query_str = await ctx.store.get("query_str")
        criticism = ""
        for role in ("a lawyer", "an engineer", "a writer"):
            said = await self.llm.acomplete(f"As {role}, criticize this answer to {query_str}: {ev.text}")
            criticism += f"{role}: {said}\n"
        better = await self.llm.acomplete(f"Rewrite {ev.text} after\n{criticism}")
        return Draft(text=str(better), round=ev.round + 1)


# --- the same by hand ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hand:
    """Requests without a framework around them."""

    llm: LLM
    retriever: BaseRetriever

    async def ask(self, prompt: str) -> str:
        return str(await self.llm.acomplete(prompt))

    async def nodes(self) -> list[NodeWithScore]:
        return await self.retriever.aretrieve(QUESTION)

    async def each(self, template: PromptTemplate, texts: list[str]) -> list[str]:
        prompts = [template.format(context_str=text, query_str=QUESTION) for text in texts]
        return list(await asyncio.gather(*map(self.ask, prompts)))

    async def grading(self, glue: str) -> str:
        texts = [node.node.get_content() for node in await self.nodes()]
        grades = await self.each(RELEVANCY, texts)
        relevant = [text for text, grade in zip(texts, grades, strict=True) if "yes" in grade]
        return await self.ask(QA.format(context_str=glue.join(relevant), query_str=QUESTION))

    async def tree(self) -> str:
        texts = [node.node.get_content() for node in await self.nodes()]
        while len(texts) > 1:
            texts = await self.each(SUMMARY, ["\n\n".join(texts[at : at + 2]) for at in range(0, len(texts), 2)])
        return texts[0]

    async def rating(self, synthesizer: Any) -> str:
        nodes = await self.nodes()
        ratings = await self.each(RATING, [node.node.get_content() for node in nodes])
        scores = [float(sum(map(ord, reply)) % 97) for reply in ratings]
        best = sorted(zip(scores, nodes, strict=True), key=lambda pair: pair[0], reverse=True)[:3]
        return str(await synthesizer.asynthesize(QUESTION, [node for _, node in best]))

    async def reflecting(self) -> str:
        text = await self.ask(f"Draft an answer to {QUESTION}")
        for _ in range(2):
            roles = ("a lawyer", "an engineer", "a writer")
            said = await asyncio.gather(
                *(self.ask(f"As {role}, criticize this answer to {QUESTION}: {text}") for role in roles)
            )
            criticism = "".join(f"{role}: {each}\n" for role, each in zip(roles, said, strict=True))
            text = await self.ask(f"Rewrite {text} after\n{criticism}")
        return text


# --- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A pipeline, how it is called, and the same by hand."""

    name: str
    pipeline: Any
    call: Callable[[Any], Any]
    by_hand: Callable[[], Awaitable[str]]


def rows(llm: LLM) -> Iterator[Row]:
    nodes = [TextNode(text=passage.text, id_=f"n{number}") for number, passage in enumerate(passages(40))]
    embedding = EngineEmbedding(engine=ProfileEmbedding(64, PAPER["embedding"]))
    retriever = VectorStoreIndex(nodes, embed_model=embedding).as_retriever(similarity_top_k=TOP_K)
    hand, synthesizer = Hand(llm, retriever), get_response_synthesizer(llm=llm)

    def query(engine: Any) -> Any:
        return engine.query(QUESTION)

    async def run(workflow: Any) -> Any:
        return await workflow.run(query_str=QUESTION)

    yield Row("grading engine", GradingQueryEngine(retriever=retriever, llm=llm), query, lambda: hand.grading("\n\n"))
    yield Row("tree engine", TreeQueryEngine(retriever=retriever, llm=llm), query, hand.tree)
    rated = RetrieverQueryEngine(retriever, synthesizer, [RatingPostprocessor(llm=llm)])
    yield Row("stock engine, own postprocessor", rated, query, lambda: hand.rating(synthesizer))
    yield Row("corrective RAG workflow", CorrectiveRAG(retriever, llm), run, lambda: hand.grading("\n"))
    yield Row("reflection workflow", Reflection(llm), run, hand.reflecting)


def main(
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds for each row.")] = 5,
    reply_ms: Annotated[float, typer.Option(help="What the service takes for a reply.")] = 300,
    only: Annotated[str, typer.Option(help="Rows whose name contains this.")] = "",
) -> None:
    """Print one row for each program."""
    layout = "{:34}{:>7}{:>7}{:>9}{:>7}{:>10}{:>6}  {}"
    print(layout.format("program", "orig.", "opt.", "by hand", "ratio", "/by hand", "req.", "equal"))
    with service(reply_ms / 1000) as url, asyncio.Runner() as runner:
        llm = OpenAILike(model="m", api_base=f"{url}/v1", api_key="k", is_chat_model=True, max_retries=0)
        for row in rows(llm):
            if only in row.name:
                print(layout.format(*measured(row, url, repeats, runner)), flush=True)
    runtime.host.close()


def measured(row: Row, url: str, repeats: int, runner: asyncio.Runner) -> list[Any]:
    twin = optimize(row.pipeline)
    acts = {"orig.": lambda: row.call(row.pipeline), "opt.": lambda: row.call(twin), "by hand": row.by_hand}
    seconds: dict[str, list[float]] = {name: [] for name in acts}
    equal = True
    asked: Counter[str] = Counter()
    for turn in range(1 + repeats):
        answers, requests = {}, {}
        for name, act in acts.items():
            httpx.get(f"{url}/asked")
            started_s = time.perf_counter()
            answers[name] = called(act, runner)
            taken_s = time.perf_counter() - started_s
            requests[name] = asked = Counter(httpx.get(f"{url}/asked").json())
            if turn:
                seconds[name].append(taken_s)
        equal = equal and answers["orig."] == answers["opt."] == answers["by hand"]
        equal = equal and requests["orig."] == requests["opt."] == requests["by hand"]
    original, optimized, by_hand = (statistics.median(times) for times in seconds.values())
    return [
        row.name, *(f"{each * 1000:.0f}" for each in (original, optimized, by_hand)), f"{original / optimized:.2f}",
        f"{optimized / by_hand:.2f}", asked.total(), "equal" if equal else "DIFFERENT",
    ]  # fmt: skip


def called(act: Callable[[], Any], runner: asyncio.Runner) -> str:
    """What it comes to. A program without coroutines runs outside of any event loop."""

    async def awaited(value: Any) -> Any:
        return await value

    value = act()
    return str(runner.run(awaited(value)) if asyncio.iscoroutine(value) else value)


if __name__ == "__main__":
    typer.run(main)
