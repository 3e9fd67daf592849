"""Plain Python functions as pipelines: functions, coroutine functions and methods that use a framework's components.

    def answer(question):                               no object of a framework is around these calls
        found = [retriever.invoke(each) for each in queries]
        return llm.invoke(prompt.format(found=found))

    answer = optimize(answer)                            or the object with the methods: rag = optimize(rag)

The function is read as it begins, like a node of a graph (adapters/reader), and its certain requests are made at once.
The function itself runs as it is, and takes the replies.

    known.py    what counts as a pipeline
    twin.py     the function or object that the user gets back
    runs.py     one run, and its reading; llamaindex/functions.py where LlamaIndex is loaded
    askers.py   the frameworks' knowledge, together
"""

from __future__ import annotations

from typing import Any

from teola_plugin.adapters import Adapter, Calls
from teola_plugin.adapters.functions import known, runs, twin
from teola_plugin.trace import Traced


class FunctionAdapter:
    """Implements `adapters.Adapter`."""

    name = "functions"

    def knows(self, pipeline: Any) -> bool:
        return known.knows(pipeline)

    def trace(self, pipeline: Any) -> Traced:
        return runs.trace(pipeline)

    def twin(self, pipeline: Any, calls: Calls) -> Any:
        return twin.make_twin(pipeline, calls)

    def calls_of(self, pipeline: Any) -> Calls | None:
        return twin.calls_of(pipeline)


adapter: Adapter = FunctionAdapter()
