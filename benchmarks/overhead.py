"""What `optimize` costs where it cannot gain anything: per call, and at import.

The chain is `prompt | model | parser` on an engine that answers at once, so that nothing but overhead is left. Original
and optimized take turns in blocks; the figure is the median of the differences of neighbouring blocks.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypedDict

import typer
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough, RunnableSequence
from langgraph.graph import START, StateGraph

from teola_plugin import optimize, optimized, runtime
from teola_plugin.engines import Batch, Capabilities, Completion, Done, Emit
from teola_plugin.models.langchain import EngineChatModel

BLOCK_CALLS = 50


class AtOnce:
    """An LLM engine that takes no time."""

    name = "llm"
    capabilities = Capabilities(concurrent=True)

    async def run(self, batch: Batch, emit: Emit) -> None:
        for position, _ in enumerate(batch.items):
            emit(position, Done(Completion("yes", pieces=["yes"])))

    def abort(self, ids: Any) -> None:
        pass

    async def close(self) -> None:
        pass


def main(blocks: Annotated[int, typer.Option(min=4)] = 40) -> None:
    """Print the figures."""
    plain = RunnableLambda(str.strip) | RunnableLambda(str.upper)
    print(f"a pipeline without leaves comes back as the same object: {optimize(plain) is plain}")
    llm = EngineChatModel(engine=AtOnce())
    ask = ChatPromptTemplate.from_template("Is {x} prime?") | llm | StrOutputParser()
    again = [RunnableLambda(lambda answer: {"x": answer}), RunnablePassthrough(), RunnableLambda(lambda x: x)]
    for name, pipeline in {
        "a chain of 3 steps": ask,
        "a chain of 10 steps": ask | RunnableSequence(*again) | ask | StrOutputParser(),
        "a graph of 10 nodes": _graph(llm),
    }.items():
        twin = optimize(pipeline)
        assert twin is not pipeline
        original_s, added_s = _per_call(partial(pipeline.invoke, {"x": "7"}), partial(twin.invoke, {"x": "7"}), blocks)
        assert not any(report.hits for report in optimized(twin).reports)
        print(f"{name} with nothing to gain: {original_s * 1000:.2f} ms a call, optimized {added_s * 1000:+.2f} ms")
    for statement in ("pass", "import teola_plugin", "from teola_plugin import optimize"):
        print(f"python -c '{statement}': {_python_s(statement) * 1000:.0f} ms")
    runtime.host.close()


class State(TypedDict):
    x: str


def _graph(llm: EngineChatModel) -> Any:
    """Nine nodes in a row that compute a little, and one that asks."""

    def node(state: State) -> State:
        return {"x": state["x"] + "."}

    def ask(state: State) -> State:
        return {"x": llm.invoke(state["x"]).text}

    graph = StateGraph(State)
    for at in range(10):
        graph.add_node(f"n{at}", ask if at == 5 else node)
        graph.add_edge(f"n{at - 1}" if at else START, f"n{at}")
    return graph.compile()


def _per_call(first: Callable[[], Any], second: Callable[[], Any], blocks: int) -> tuple[float, float]:
    """Seconds of one call of the first, and what the second takes more."""
    times: list[tuple[float, float]] = []
    for at in range(blocks):
        if at % 2:
            a, b = _block_s(first), _block_s(second)
        else:
            b, a = _block_s(second), _block_s(first)
        times.append((a, b))
    warm = times[2:]
    return statistics.median(a for a, _ in warm), statistics.median(b - a for a, b in warm)


def _block_s(call: Callable[[], Any]) -> float:
    started_s = time.perf_counter()
    for _ in range(BLOCK_CALLS):
        call()
    return (time.perf_counter() - started_s) / BLOCK_CALLS


def _python_s(statement: str, rounds: int = 5) -> float:
    """Median seconds of a fresh interpreter."""
    times = []
    for _ in range(rounds):
        started_s = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        times.append(time.perf_counter() - started_s)
    return statistics.median(times)


if __name__ == "__main__":
    typer.run(main)
