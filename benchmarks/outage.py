"""What an outage costs: requests to the service and time to the error, original against optimized.

    python benchmarks/outage.py                         all pipelines, all outages
    python benchmarks/outage.py --only assigns          pipelines whose name contains this
    python benchmarks/outage.py --queries 40            more calls in each cell

A loopback server stands for the hosted service. It answers after `LATENCY_S`, or fails:

    500, 429, 503       with that status (429 and 503 with a Retry-After)
    drop                the connection ends without an answer
    third               each third request fails with 500
    start               all fail for the first second, and none from then on
    none                nothing fails: what the care for outages costs

The clients are `ChatOpenAI` with two retries, its default, or none where it says so, and `OpenAILike` with one. The
pauses of the SDK, and those of LangGraph's retries, are a tenth of their defaults: the table takes minutes. Each
cell is a run of `--queries` calls one after the other, of the original and the optimized pipeline by turns. Each has a
service of its own, of which nothing is known when the first call begins. `hits` are what ran ahead and was used.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any, TypedDict

import openai._base_client
import typer
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy
from llama_index.core import VectorStoreIndex
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import TextNode
from llama_index.llms.openai_like import OpenAILike

from teola_plugin import optimize, optimized, runtime
from teola_plugin.models.llamaindex import EngineEmbedding
from teola_plugin.profile import PAPER
from teola_plugin.runtime.engines.simulated import ProfileEmbedding

ROW = "{:24}{:7}{:7}{:>7}{:>7}{:>7}  {:>8}{:>8}{:>7}{:>6}  {}"
LATENCY_S = 0.05
FAILURE_S = 0.01
OUTAGES = ("500", "429", "503", "drop", "third", "start", "none")
QUESTION = {"q": "why"}
AT_ONCE = 12


@dataclass
class Service:
    """The hosted service, and how it fails."""

    outage: str
    requests: int = 0
    url: str = ""
    began_s: float = field(default_factory=time.perf_counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fails(self) -> bool:
        """Whether this request does."""
        with self._lock:
            self.requests += 1
            match self.outage:
                case "none":
                    return False
                case "third":
                    return self.requests % 3 == 0
                case "start":
                    return time.perf_counter() - self.began_s < 1
                case _:
                    return True

    @property
    def status(self) -> int:
        """Of a failure; 0 for a connection that ends."""
        return 0 if self.outage == "drop" else int(self.outage) if self.outage.isdigit() else 500


@contextmanager
def served(outage: str) -> Iterator[Service]:
    """The service, answering at its `url`."""
    service = Service(outage)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not service.fails():
                time.sleep(LATENCY_S)
                message = {"role": "assistant", "content": f"<{asked['messages'][-1]['content']}>"}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                self.answer(200, {"id": "1", "object": "chat.completion", "model": "m", "choices": [choice]})
                return
            time.sleep(FAILURE_S)
            if service.status == 0:
                self.close_connection = True
            else:
                self.answer(service.status, {"error": {"message": "as planned"}})

        def answer(self, status: int, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if status in (429, 503):
                self.send_header("Retry-After", "0.05")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that has gone."""

    server = Server(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()


# --- pipelines -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A pipeline on the service of this address, and how it is called, by `form`."""

    name: str
    make: Callable[[str], Any]
    call: Callable[[Any], Any]
    acall: Callable[[Any], Any]


def main(
    queries: Annotated[int, typer.Option(min=1, help="Calls in each cell.")] = 20,
    only: Annotated[str, typer.Option(help="Pipelines whose name contains this.")] = "",
    outage: Annotated[str, typer.Option(help="One of them only.")] = "",
) -> None:
    """Print one row for each pipeline, outage and form."""
    openai._base_client.INITIAL_RETRY_DELAY /= 10  # type: ignore[misc]
    openai._base_client.MAX_RETRY_DELAY /= 10  # type: ignore[misc]
    print(f"{queries} calls each; requests to the service, median seconds of a call")
    print(
        ROW.format(
            "pipeline", "outage", "form", "orig.", "opt.", "ratio", "orig. s", "opt. s", "ratio", "hits", "outcomes"
        )
    )  # fmt: skip
    totals: dict[str, list[float]] = {}
    for shape in SHAPES:
        for each in OUTAGES:
            for form in ("sync", "async"):
                if only in shape.name and outage in ("", each):
                    print_row(shape, each, form, queries, totals)
    for each, (asked, asked_fast) in totals.items():
        print(f"all, {each}: {asked:.0f} -> {asked_fast:.0f} requests, {asked_fast / asked:.3f}")
    runtime.host.close()


def print_row(shape: Shape, outage: str, form: str, queries: int, totals: dict[str, list[float]]) -> None:
    """Measure one cell, the original first, and print it."""
    with served(outage) as plain, served(outage) as fast, asyncio.Runner() as runner:
        pipelines = shape.make(plain.url), optimize(shape.make(fast.url))
        took_s: list[list[float]] = [[], []]
        said: list[list[str]] = [[], []]
        plain.began_s = fast.began_s = time.perf_counter()
        for _ in range(queries):
            for which, pipeline in enumerate(pipelines):
                began_s = time.perf_counter()
                said[which].append(outcome(shape, pipeline, form, runner))
                took_s[which].append(time.perf_counter() - began_s)
        hits = sum(report.hits for report in optimized(pipelines[1]).reports)
    total = totals.setdefault(outage, [0, 0])
    total[0], total[1] = total[0] + plain.requests, total[1] + fast.requests
    (plain_s, fast_s), ratio = map(statistics.median, took_s), f"{fast.requests / plain.requests:.2f}"
    same = "equal" if set(said[0]) == set(said[1]) else "vary"
    print(
        ROW.format(
            shape.name, outage, form, plain.requests, fast.requests, ratio, f"{plain_s:.3f}", f"{fast_s:.3f}",
            f"{fast_s / plain_s:.2f}", hits, same,
        ),
        flush=True,
    )  # fmt: skip


def outcome(shape: Shape, pipeline: Any, form: str, runner: asyncio.Runner) -> str:
    """The answer of one call, or the kind of its error."""
    try:
        return str(shape.call(pipeline) if form == "sync" else runner.run(shape.acall(pipeline)))
    except Exception as e:
        return type(e).__name__


def ask(url: str, text: str, retries: int = 2) -> Runnable[Any, str]:
    model = ChatOpenAI(model="m", api_key="none", base_url=url, max_retries=retries)  # type: ignore[arg-type,call-arg]
    return ChatPromptTemplate.from_template(text) | model | StrOutputParser()


def parallel(url: str) -> Any:
    return RunnableParallel({f"k{n}": ask(url, f"{n}: {{q}}") for n in range(5)})


def assigns(url: str, retries: int = 2) -> Any:
    chain: Runnable[Any, Any] = RunnablePassthrough()
    for n in range(3):
        chain = chain | RunnablePassthrough.assign(**{f"k{n}": ask(url, f"{n}: {{q}}", retries)})
    return chain


def at_once(pipeline: Any) -> Any:
    """What `AT_ONCE` queries come to that begin together. Raises: the error of the first one."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [pool.submit(pipeline.invoke, QUESTION) for _ in range(AT_ONCE)]
    return [each.result() for each in asked]


async def gathered(pipeline: Any) -> Any:
    """`at_once` for coroutines."""
    answers = await asyncio.gather(*(pipeline.ainvoke(QUESTION) for _ in range(AT_ONCE)), return_exceptions=True)
    for error in answers:
        if isinstance(error, BaseException):
            raise error
    return answers


def mapped(url: str) -> Any:
    return ask(url, "{q}").map() | RunnableLambda(" ".join)


def graph(url: str) -> Any:
    class State(TypedDict, total=False):
        q: str
        a: str
        b: str
        c: str

    builder = StateGraph(State)
    retry = RetryPolicy(initial_interval=0.05, jitter=False)
    for name in "abc":
        chain = ask(url, f"{name}: {{q}}")
        builder.add_node(name + "_", RunnableParallel({name: chain}), retry_policy=retry)
    builder.add_edge(START, "a_")
    builder.add_edge("a_", "b_")
    builder.add_edge("b_", "c_")
    builder.add_edge("c_", END)
    return builder.compile()


def accumulate(url: str) -> Any:
    llm = OpenAILike(model="m", api_key="none", api_base=url, is_chat_model=True, max_retries=1)
    nodes = [TextNode(text=f"Note {n}.") for n in range(4)]
    index = VectorStoreIndex(nodes, embed_model=EngineEmbedding(engine=ProfileEmbedding(8, PAPER["embedding"])))
    return RetrieverQueryEngine.from_args(
        index.as_retriever(similarity_top_k=4),
        llm=llm,
        response_mode="accumulate",  # type: ignore[arg-type]
    )


SHAPES = [
    Shape("parallel of 5", parallel, lambda p: p.invoke(QUESTION), lambda p: p.ainvoke(QUESTION)),
    Shape("assigns in turn", assigns, lambda p: p.invoke(QUESTION), lambda p: p.ainvoke(QUESTION)),
    Shape(
        "assigns, no retries", lambda url: assigns(url, 0), lambda p: p.invoke(QUESTION), lambda p: p.ainvoke(QUESTION)
    ),
    Shape("12 of these at once", lambda url: assigns(url, 0), at_once, gathered),
    Shape(
        "batch of 4 assigns", assigns, lambda p: p.batch([QUESTION] * 4, {"max_concurrency": 4}),
        lambda p: p.abatch([QUESTION] * 4, {"max_concurrency": 4}),
    ),
    Shape("map of 4", mapped, lambda p: p.invoke([QUESTION] * 4), lambda p: p.ainvoke([QUESTION] * 4)),
    Shape("LangGraph, RetryPolicy", graph, lambda p: p.invoke(QUESTION), lambda p: p.ainvoke(QUESTION)),
    Shape("LlamaIndex accumulate", accumulate, lambda p: p.query("why"), lambda p: p.aquery("why")),
]  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
