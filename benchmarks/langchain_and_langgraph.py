"""LangChain and LangGraph pipelines: original, optimized, and the same requests overlapped by hand.

    python benchmarks/langchain_and_langgraph.py                    engines that wait by published profiles
    python benchmarks/langchain_and_langgraph.py --engines openai   ChatOpenAI on a vLLM server, MiniLM and Chroma
    python benchmarks/langchain_and_langgraph.py --only barrier     rows whose name contains this

`profile`: a 7B model, an embedding model and a vector store as of the paper (real waiting, so no GPU is needed).
`openai`: `python -m vllm.entrypoints.openai.api_server` with the tiny model, started and ended here. Its answers are
greedy and of fixed lengths; what must be a list is held to that by a regular expression. It is no agent: no such row.

`by hand` is asyncio code without a framework that asks for the same things as early as their inputs exist: what a
careful user could write, and the bound of the row. It is timed after each pair.
"""

from __future__ import annotations

import asyncio
import json
import operator
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Protocol, TypedDict

import typer
from langchain.agents import create_agent
from langchain_chroma import Chroma
from langchain_classic.retrievers import EnsembleRetriever, MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import NumberedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.tools import tool
from langchain_huggingface import HuggingFaceEmbeddings
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from side_by_side import Told, ms, print_rows, seconds_of
from vllm_server import MODEL, vllm_server

from teola_plugin import compare, optimize, reads
from teola_plugin.demo.corpus import passages
from teola_plugin.demo.parts import THREE_LINES, chroma_without
from teola_plugin.demo.tiny_model import minilm_path
from teola_plugin.models.langchain import EngineChatModel, EngineEmbeddings
from teola_plugin.profile import PAPER, PAPER_LLM
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM

ROW = "{:28}{:>8}{:>8}{:>9}  {:18}{:>9}  {}"
QUESTION = {"q": "Why is the sky blue at noon and red in the evening?"}


class Engines(StrEnum):
    profile = "profile"
    openai = "openai"


@dataclass(frozen=True)
class Row:
    """A pipeline, an input, and the same by hand. The answer is text or documents: a message says when it was made."""

    name: str
    pipeline: Any
    given: Any
    by_hand: Callable[[], Awaitable[Any]]
    form: str = "invoke"


def main(
    engines: Annotated[Engines, typer.Option()] = Engines.profile,
    repeats: Annotated[int, typer.Option(min=1, help="Timed pairs for each row.")] = 7,
    only: Annotated[str, typer.Option(help="Rows whose name contains this.")] = "",
) -> None:
    """Print one row for each shape of pipeline."""
    print_rows(
        ROW, ("pipeline", "orig.", "opt.", "by hand", "ratio [95 %]", "/by hand", "equal"),
        f"{engines} engines, milliseconds, {repeats} pairs", only,
        parts=openai_models() if engines == "openai" else profile_models(), rows=rows,
        measured=partial(_measured, repeats),
    )  # fmt: skip


def _measured(repeats: int, row: Row, runner: asyncio.Runner, told: Told) -> list[str]:
    by_hand: list[float] = []

    def after_pair(done: int, total: int) -> None:
        by_hand.append(runner.run(seconds_of(row.by_hand)))
        told(done, total)

    found = compare(
        row.pipeline, [row.given], optimized=optimize(row.pipeline), repeats=repeats, mode=row.form, progress=after_pair
    )
    by_hand_s = statistics.median(by_hand[-repeats:])
    return [
        row.name, ms(found.original_median_s), ms(found.optimized_median_s), ms(by_hand_s), str(found.ratio),
        f"{found.optimized_median_s / by_hand_s:.2f}", f"NO ANSWER: {found.error}" if found.errors else found.verdict,
    ]  # fmt: skip


# --- what they are made of -------------------------------------------------------------------------------------------


class Chat(Protocol):
    """Makes a chat model whose replies have that many tokens, or are items in that shape within so many tokens."""

    def __call__(self, max_tokens: int, shape: str = "") -> BaseChatModel: ...


class Models:
    """Chat models of several lengths on one engine, and two stores on one embedding model."""

    def __init__(self, chat: Chat, embeddings: Embeddings, agent: BaseChatModel | None = None) -> None:
        """`agent`: writes CALLS, then an answer."""
        self.chat, self.embeddings, self.agent = chat, embeddings, agent
        self.short, self.middle, self.long = (chat(tokens) for tokens in (8, 16, 40))
        self.stores = [self.store(name) for name in ("notes", "manuals")]

    def store(self, name: str) -> Chroma:
        store = Chroma(name, self.embeddings, client=chroma_without(name))
        store.add_texts([p.text for p in passages(16)])
        return store


@contextmanager
def profile_models() -> Iterator[Models]:
    engine = ProfileLLM("llm", PAPER_LLM["7b"])

    def chat(max_tokens: int, shape: str = "") -> BaseChatModel:
        return EngineChatModel(engine=engine, settings={"max_tokens": max_tokens} | ({"shape": shape} if shape else {}))

    def reply(prompt: str, settings: Mapping[str, Any]) -> str:
        return "Take the train at 9:10, and a coat." if "Tool: " in prompt else CALLS

    agent = EngineChatModel(engine=ProfileLLM("agent", PAPER_LLM["7b"], reply=reply))
    yield Models(chat, EngineEmbeddings(ProfileEmbedding(64, PAPER["embedding"])), agent)


SHAPES = {"lines:3": THREE_LINES, "numbered:12": r"\n".join(rf"{n}\. [a-z]{{3,6}}" for n in range(1, 13))}
"""As regular expressions, for a model of random weights."""


@contextmanager
def openai_models() -> Iterator[Models]:
    with vllm_server() as url:

        def chat(max_tokens: int, shape: str = "") -> BaseChatModel:
            body = {"structured_outputs": {"regex": SHAPES[shape]}} if shape else {"ignore_eos": True}
            return ChatOpenAI(
                base_url=url, api_key="none", model=MODEL, temperature=0, max_tokens=max_tokens, extra_body=body
            )

        yield Models(chat, HuggingFaceEmbeddings(model_name=str(minilm_path())))


def ask(template: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_template(template)


def format_docs(docs: Sequence[Document]) -> str:
    return "\n".join(d.page_content for d in docs)


def rows(m: Models) -> list[Row]:
    whole = [assigns(m), batch(m), list_into_map(m), ensemble(m), multi_query(m), barrier(m), fan_out(m)]
    return [*whole, *([react(m.agent)] if m.agent else [])]


# --- rows ------------------------------------------------------------------------------------------------------------


def assigns(m: Models) -> Row:
    """Two steps that stand one after the other, and need not."""
    summary, critic = ask("Summarize: {q}"), ask("Criticize: {q}")
    last = ask("Answer {q} with {summary} and {critique}")
    chain = (
        RunnablePassthrough.assign(summary=summary | m.middle | StrOutputParser())
        | RunnablePassthrough.assign(critique=critic | m.middle | StrOutputParser())
        | last
        | m.middle
        | StrOutputParser()
    )

    async def by_hand() -> Any:
        first, second = await asyncio.gather(*(m.middle.ainvoke(t.invoke(QUESTION)) for t in (summary, critic)))
        return await m.middle.ainvoke(last.invoke({**QUESTION, "summary": first.content, "critique": second.content}))

    return Row("assigns in turn", chain, QUESTION, by_hand)


def batch(m: Models) -> Row:
    """LangChain's batch takes each step for all inputs before the next one."""
    questions = [{"q": f"{QUESTION['q']} ({n})", "brief": n % 4 != 0} for n in range(8)]
    last = ask("Judge {draft}")

    def draft(x: dict[str, Any]) -> str:
        if x["brief"]:
            return str(m_short.invoke(f"Draft: {x['q']}").content)
        return str(m_long.invoke(f"Draft: {x['q']}").content)

    def judged(x: dict[str, Any]) -> str:
        if x["brief"]:
            return str(m_long.invoke(f"Judge {x['draft']}").content)
        return str(m_short.invoke(f"Judge {x['draft']}").content)

    m_short, m_long = m.short, m.long
    chain = RunnablePassthrough.assign(draft=draft) | RunnableLambda(judged)

    async def one(x: dict[str, Any]) -> Any:
        first, second = (m.short, m.long) if x["brief"] else (m.long, m.short)
        draft = await first.ainvoke(f"Draft: {x['q']}")
        return await second.ainvoke(last.invoke({"draft": draft.content}))

    async def by_hand() -> Any:
        return await asyncio.gather(*map(one, questions))

    return Row("batch of 8", chain, questions, by_hand, "batch")


def list_into_map(m: Models) -> Row:
    """Twelve items, each explained: LangChain runs as many at once as it has threads for (6 on two cores)."""
    writer = m.chat(64, "numbered:12")
    first, each, last = ask("List aspects of: {q}"), ask("Explain {item}"), ask("Conclude from {parts}")

    def join(parts: list[str]) -> dict[str, str]:
        return {"parts": "\n".join(parts)}

    one = {"item": RunnablePassthrough()} | each | m.middle | StrOutputParser()
    chain = first | writer | NumberedListOutputParser() | one.map() | join | last | m.middle | StrOutputParser()

    async def by_hand() -> Any:
        text = await writer.ainvoke(first.invoke(QUESTION))
        items = NumberedListOutputParser().parse(str(text.content))
        replies = await asyncio.gather(*(m.middle.ainvoke(each.invoke({"item": item})) for item in items))
        return await m.middle.ainvoke(last.invoke(join([str(reply.content) for reply in replies])))

    return Row("list into map", chain, QUESTION, by_hand)


def ensemble(m: Models) -> Row:
    """Several retrievers, which LangChain asks in turn."""
    retrievers = [store.as_retriever(search_kwargs={"k": 3}) for store in m.stores]
    retriever = EnsembleRetriever(retrievers=retrievers, weights=[0.5, 0.5])

    async def by_hand() -> Any:
        vector = await m.embeddings.aembed_query(QUESTION["q"])
        return await asyncio.gather(*(store.asimilarity_search_by_vector(vector, k=3) for store in m.stores))

    return Row("ensemble of 2 retrievers", retriever, QUESTION["q"], by_hand)


def multi_query(m: Models) -> Row:
    """Queries are searched for in turn, once all of them are written."""
    retriever = m.stores[0].as_retriever(search_kwargs={"k": 3})
    writer = m.chat(40, "lines:3")
    several = MultiQueryRetriever.from_llm(retriever=retriever, llm=writer)
    last = ask("Answer {q} from {context}")
    searched = RunnablePassthrough.assign(context=operator.itemgetter("q") | several | format_docs)
    chain: Runnable[Any, Any] = searched | last | m.middle | StrOutputParser()

    async def by_hand() -> Any:
        text, asked = "", []
        async for piece in writer.astream(several.llm_chain.first.invoke({"question": QUESTION["q"]})):
            text += str(piece.content)
            lines = [line for line in text.split("\n")[:-1] if line]
            asked += [asyncio.create_task(retriever.ainvoke(line)) for line in lines[len(asked) :]]
        lines = [line for line in text.split("\n") if line]
        asked += [asyncio.create_task(retriever.ainvoke(line)) for line in lines[len(asked) :]]
        docs = {d.page_content: d for found in await asyncio.gather(*asked) for d in found}
        return await m.middle.ainvoke(last.invoke({**QUESTION, "context": format_docs(list(docs.values()))}))

    return Row("multi-query RAG", chain, QUESTION, by_hand)


class State(TypedDict, total=False):
    q: str
    a: str
    b: str
    c: str
    d: str
    d2: str
    e: str


def compiled(nodes: dict[str, Any], *edges: tuple[Any, str]) -> Any:
    graph = StateGraph(State)
    for name, node in nodes.items():
        graph.add_node(name, node)
    for start, end in edges:
        graph.add_edge(start, end)
    return graph.compile()


async def asked(model: Any, prompt: str) -> str:
    return str((await model.ainvoke(prompt)).content)


def barrier(m: Models) -> Row:
    """a -> {b -> d -> d2, c} -> e, where c is as long as b, d and d2 together; LangGraph lets d wait for c."""
    short, long = m.short, m.long

    def a(s: State) -> State:
        return {"a": short.invoke(f"a {s['q']}").content}

    def b(s: State) -> State:
        return {"b": short.invoke(f"b {s['a']}").content}

    def c(s: State) -> State:
        return {"c": long.invoke(f"c {s['a']}").content}

    def d(s: State) -> State:
        return {"d": short.invoke(f"d {s['b']}").content}

    def d2(s: State) -> State:
        return {"d2": short.invoke(f"d2 {s['d']}").content}

    def e(s: State) -> State:
        return {"e": short.invoke(f"e {s['c']} {s['d2']}").content}

    graph = compiled(
        {"A": a, "B": b, "C": c, "D": d, "D2": d2, "E": e},
        (START, "A"), ("A", "B"), ("A", "C"), ("B", "D"), ("D", "D2"), (["C", "D2"], "E"), ("E", END),
    )  # fmt: skip

    async def by_hand() -> Any:
        first = await asked(short, f"a {QUESTION['q']}")

        async def branch() -> str:
            second = await asked(short, f"b {first}")
            return await asked(short, f"d2 {await asked(short, f'd {second}')}")

        other, found = await asyncio.gather(asked(long, f"c {first}"), branch())
        return await asked(short, f"e {other} {found}")

    return Row("LangGraph barrier", graph, QUESTION, by_hand)


def fan_out(m: Models) -> Row:
    """A plan, two searches that each write a section, a review of one, and a report."""
    middle, short, long = m.middle, m.short, m.long
    retriever = m.stores[0].as_retriever(search_kwargs={"k": 3})

    def plan(s: State) -> State:
        return {"a": short.invoke(f"Plan {s['q']}").content}

    def section(s: State) -> State:
        found = retriever.invoke(f"first {s['a']}")
        return {"b": short.invoke(f"Write {found[0].page_content}").content}

    def other(s: State) -> State:
        found = retriever.invoke(f"second {s['a']}")
        return {"c": long.invoke(f"Write {found[0].page_content}").content}

    def review(s: State) -> State:
        return {"d": middle.invoke(f"Review {s['b']}").content}

    def report(s: State) -> State:
        return {"e": middle.invoke(f"Report {s['c']} {s['d']}").content}

    graph = compiled(
        {"plan": plan, "one": section, "two": other, "review": review, "report": report},
        (START, "plan"), ("plan", "one"), ("plan", "two"), ("one", "review"), (["two", "review"], "report"),
    )  # fmt: skip

    async def by_hand() -> Any:
        first = await asked(short, f"Plan {QUESTION['q']}")

        async def branch() -> str:
            found = await retriever.ainvoke(f"first {first}")
            return await asked(middle, f"Review {await asked(short, f'Write {found[0].page_content}')}")

        async def second() -> str:
            found = await retriever.ainvoke(f"second {first}")
            return await asked(long, f"Write {found[0].page_content}")

        left, right = await asyncio.gather(second(), branch())
        return await asked(middle, f"Report {left} {right}")

    return Row("LangGraph research", graph, QUESTION, by_hand)


CALLS = (
    '<tool_call>{"name": "trains", "arguments": {"start": "Zurich", "end": "Milan", "day": "tomorrow"}}</tool_call>\n'
    '<tool_call>{"name": "weather", "arguments": {"city": "Milan", "day": "tomorrow"}}</tool_call>'
)


def react(model: BaseChatModel) -> Row:
    """Two tools called in one reply, the slow one first; what it finds is long, and all of it is in the next prompt."""
    messages = [HumanMessage("To Milan tomorrow?", id="question")]

    @tool
    @reads("timetable")
    def trains(start: str, end: str, day: str) -> str:
        """Trains between cities."""
        time.sleep(0.8)
        return "\n".join(f"{hour}:10 {start} - {hour + 3}:37 {end}, {day}, second class" for hour in range(6, 21))

    @tool
    @reads("forecast")
    def weather(city: str, day: str) -> str:
        """The weather in a city."""
        time.sleep(0.6)
        return f"Rain in {city} {day}."

    tools = {each.name: each for each in (trains, weather)}

    async def by_hand() -> Any:
        bound, reply, begun = model.bind_tools(list(tools.values())), None, []
        async for chunk in bound.astream(messages):
            reply = chunk if reply is None else reply + chunk
            for part in chunk.tool_call_chunks:
                call = {"name": part["name"], "args": json.loads(part["args"]), "id": part["id"], "type": "tool_call"}
                begun.append(asyncio.create_task(asyncio.to_thread(tools[part["name"]].invoke, call)))
        return await bound.ainvoke([*messages, reply, *await asyncio.gather(*begun)])

    return Row("ReAct agent, 2 tools", create_agent(model, list(tools.values())), {"messages": messages}, by_hand)


if __name__ == "__main__":
    typer.run(main)
