"""A LangGraph research graph: two searches side by side, a review of the shorter one, a report.

    python examples/langgraph_research.py

LangGraph runs in supersteps: the review waits until the longer section is done too, although it does not read it.
The optimized graph writes it meanwhile; checkpoints, history and streams are LangGraph's own.
"""

from __future__ import annotations

from typing import TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from teola_plugin import compare, explain, optimize
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.profile import PAPER_LLM
from teola_plugin.runtime.engines.simulated import ProfileLLM

engine = ProfileLLM("llm", PAPER_LLM["7b"])  # waits like a 7B model on a GPU; VllmEngine(...) for a real one
short, long = (EngineChatModel(engine=engine, max_tokens=n) for n in (8, 24))


class State(TypedDict, total=False):
    question: str
    facts: str
    history: str
    review: str
    report: str


def facts(state: State) -> State:
    return {"facts": short.invoke(f"Facts about {state['question']}").text}


def history(state: State) -> State:
    return {"history": long.invoke(f"The history of {state['question']}").text}


def review(state: State) -> State:
    return {"review": long.invoke(f"Is this right? {state['facts']}").text}


def report(state: State) -> State:
    return {"report": short.invoke(f"Report on {state['review']} and {state['history']}").text}


graph = StateGraph(State).add_node(facts).add_node(history).add_node(review).add_node(report)
graph.add_edge(START, "facts").add_edge(START, "history").add_edge("facts", "review")
graph.add_edge(["review", "history"], "report")
plain = graph.compile(checkpointer=InMemorySaver())

if __name__ == "__main__":
    print(explain(optimize(plain)))
    print(compare(graph.compile(), [{"question": "bees"}], repeats=2))
