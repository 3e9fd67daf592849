"""Functions whose source cannot be read: nothing of them runs early, and pipelines with them answer as ever."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel
from langgraph.graph import END, START, StateGraph
from llama_index.core.prompts import PromptTemplate
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeWithScore, TextNode

from teola_plugin import explain, optimize
from tests.support.langchain_world import Engines, ask
from tests.support.llamaindex_world import Engines as LlamaIndexEngines

calls: list[str] = []
_made: dict[str, Any] = {"calls": calls}
exec(  # what is tested is a function without a source
    "def function(x):\n    calls.append('called')\n    return {'q': str(x)[:20]}\n"
    "one_line = lambda x: (calls.append('called'), {'q': str(x)[:20]})[1]\n"
    "class Callable:\n    def __call__(self, x):\n        calls.append('called')\n        return {'q': str(x)[:20]}\n"
    "    def method(self, x):\n        return self(x)\n",
    _made,
)


def _decorated(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(function)
    def wrapper(x: Any) -> Any:
        return function(x)

    return wrapper


def _counted(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of C, which cannot count its calls: `map` does, and so reads nothing early either."""
    return lambda x: calls.append("called") or {"q": str(function(x))}  # type: ignore[func-returns-value]


FUNCTIONS = {
    "exec": _made["function"],
    "lambda of a REPL": _made["one_line"],
    "partial": functools.partial(_made["function"]),
    "decorated": _decorated(_made["function"]),
    "object": _made["Callable"](),
    "method": _made["Callable"]().method,
    "a file that is gone": types.FunctionType(
        _made["function"].__code__.replace(co_filename="/gone.py", co_firstlineno=99), _made
    ),
    "of C": _counted(repr),
}


class State(TypedDict):
    q: str
    answer: str


def in_a_chain(function: Callable[[Any], Any], engines: Engines) -> tuple[Any, Any]:
    def both(a: str, b: str) -> Runnable[Any, Any]:
        return RunnableParallel({name: ask(f"{name} {{q}}") | engines.chat | StrOutputParser() for name in (a, b)})

    return both("a", "b") | RunnableLambda(function) | both("c", "d"), {"q": "Who?"}


def in_a_graph(function: Callable[[Any], Any], engines: Engines) -> tuple[Any, Any]:
    graph = StateGraph(State)
    answer: Any = ask("Say {q}") | engines.chat | StrOutputParser() | RunnableLambda(lambda text: {"answer": text})
    graph.add_node("first", RunnableLambda(function))
    graph.add_node("answers", answer)
    graph.add_edge(START, "first")
    graph.add_edge("first", "answers")
    graph.add_edge("answers", END)
    return graph.compile(), {"q": "Who?", "answer": ""}


@pytest.mark.parametrize("make", [in_a_chain, in_a_graph])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_langchain_and_langgraph(name: str, make: Callable[..., tuple[Any, Any]]) -> None:
    pipeline, value = make(FUNCTIONS[name], Engines())
    calls.clear()
    fast = optimize(pipeline)
    if fast is not pipeline:
        explain(fast)
    assert calls == []
    found = fast.invoke(value)
    assert calls == ["called"]
    assert found == pipeline.invoke(value)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_llamaindex(name: str) -> None:
    engines = LlamaIndexEngines()

    def context(**given: Any) -> str:
        return str(FUNCTIONS[name](given["context_str"]))

    hidden: Any = types.FunctionType(
        context.__code__.replace(co_filename="/gone.py"), globals(), closure=context.__closure__
    )
    template = PromptTemplate("{context_str} {query_str}", function_mappings={"context_str": hidden})
    pipeline = get_response_synthesizer(llm=engines.model, response_mode="simple_summarize", text_qa_template=template)
    nodes = [NodeWithScore(node=TextNode(text=text, id_=text)) for text in ("one", "two")]
    calls.clear()
    fast = optimize(pipeline)
    if fast is not pipeline:
        explain(fast)
    assert calls == []
    found = str(fast.synthesize("Who?", nodes))
    made = len(calls)
    calls.clear()
    assert found == str(pipeline.synthesize("Who?", nodes))
    assert made == len(calls)
